r"""Results of a rollout as Datasets.

The tail begins where the running sequences fall below half of their maximum for the last time; its share of the time
to collect is what a slow response costs everybody. Tokens are counted where they were computed: `generated_tokens`
holds every sampled token, of kept responses and of others; recomputed ones are prefills of a position whose key and
value a sequence once had and lost.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from batchsim.system.rollout import _kernels as k
from batchsim.system.rollout import modes
from batchsim.system.rollout.engine import Simulation
from batchsim.system.rollout.modes import OUTCOMES, Updates
from batchsim.variables import set_attrs

TAIL_LEVEL = 0.5
"""Share of the largest concurrency below which the tail begins."""


def running_over_time(sim: Simulation, end: float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Running sequences over all replicas: a step function, right-continuous, up to a time.

    Parameters
    ----------
    sim : Simulation
    end : float [s]

    Returns
    -------
    time : ndarray [s]
        Where the number changes, and `end`.
    running : ndarray of int [sequences]
        From each time on.
    """
    rows = sim.shown[: sim.totals[k.SHOWN_ROWS]]
    # The kernel writes rows in the order of time, whichever replica they come from.
    time, change = rows[:, 0], rows[:, 2].astype(np.int64)
    if sim.engine.replicas > 1:
        change = np.empty(len(rows), dtype=np.int64)
        for r in range(sim.engine.replicas):
            mine = rows[:, 1] == r
            change[mine] = np.diff(rows[mine, 2], prepend=0.0).astype(np.int64)
        change = np.cumsum(change)
    last = np.append(time[1:] != time[:-1], True) & (time < end)
    if not last.any():
        return np.array([0.0, end]), np.zeros(2, dtype=np.int64)
    time, running = time[last], change[last]
    return np.append(time, end), np.append(running, running[-1])


def tail_share(time: NDArray[np.float64], running: NDArray[np.int64]) -> float:
    """Share of the time after the running sequences fall below half of their maximum for the last time [1]."""
    if time[-1] <= 0:
        return 0.0
    high = np.flatnonzero(running[:-1] >= TAIL_LEVEL * running.max())
    return float(1 - time[high[-1] + 1] / time[-1])


def step_dataset(
    sim: Simulation, *, gen_time: float, prompts: int | None, surplus: str, truncated: NDArray[np.bool_] | None
) -> xr.Dataset:
    """Dataset of one rollout step."""
    outcome = modes.outcomes(sim, prompts=prompts, surplus=surplus)
    tokens = modes.generated(sim)
    time, running = running_over_time(sim, gen_time)
    counted = np.bincount(outcome, minlength=len(OUTCOMES))
    made = float(tokens.sum())
    kept_tokens = float(tokens[outcome == modes.KEPT].sum())
    carried = float(tokens[outcome == modes.CARRIED].sum())
    data: dict[str, Any] = _responses(sim) | {
        "outcome": ("response", np.array(outcome)),
        "generated_tokens": ("response", tokens),
        "running": ("time", running),
        "gen_time": gen_time,
        "tail_share": tail_share(time, running),
        "token_throughput": made / gen_time,
        "kept_throughput": counted[modes.KEPT] / gen_time,
        "responses_kept": int(counted[modes.KEPT]),
        "responses_launched": int(counted.sum() - counted[modes.NOT_LAUNCHED]),
        "responses_wasted": int(counted[[modes.DROPPED, modes.SURPLUS, modes.CUT]].sum()),
        "wasted_tokens": made - kept_tokens - carried,
    }
    if truncated is not None:
        data["truncated_share"] = float(truncated[outcome != modes.NOT_LAUNCHED].mean())
    ds = xr.Dataset(data | _totals(sim), coords={"time": time})
    ds.attrs = {"law": sim.law.name, "outcomes": OUTCOMES, "mode": "sync"}
    return set_attrs(ds)


def pipeline_dataset(sim: Simulation, updates: Updates, *, prompts: int, mode: str, warm_up: int) -> xr.Dataset:
    """Dataset of a rollout around several updates."""
    group_size = sim.work.group_size
    used_by = updates.used_by.repeat(group_size)
    used = used_by >= 0
    age = np.where(used, used_by - sim.versions[:, 0], -1)
    spanned = np.where(used, sim.versions[:, 1] - sim.versions[:, 0], -1)
    end = float(updates.taken[-1])
    time, running = running_over_time(sim, end)
    count, steady = updates.taken.size, slice(warm_up, None)
    by_update = _by_update(sim, used_by, age, count)
    step = np.diff(updates.taken, prepend=0.0)
    # The lengths of what is launched, without the choice that finishing first makes.
    launched = ~np.isnan(sim.launched_at).repeat(group_size)
    data: dict[str, Any] = (
        _responses(sim)
        | {
            "used_by": ("response", used_by),
            "staleness": ("response", age),
            "versions_spanned": ("response", spanned),
            "running": ("time", running),
            "ready_time": ("update", updates.ready),
            "taken_time": ("update", updates.taken),
            "resumed_time": ("update", updates.resumed),
            "step_time": ("update", step),
            "response_length_launched": float(sim.work.response[launched].mean()),
            "kept_throughput": prompts * group_size / float(step[steady].mean()),
            "responses_launched": int(sim.totals[k.LAUNCHED]) * group_size,
            "responses_kept": int(used.sum()),
            "responses_wasted": int(sim.totals[k.DROPPED]) * group_size,
        }
        | {name: ("update", values) for name, values in by_update.items()}
        | _totals(sim)
    )
    ds = xr.Dataset(data, coords={"time": time, "update": np.arange(1, count + 1)})
    ds.attrs = {"law": sim.law.name, "mode": mode, "warm_up": warm_up}
    return set_attrs(ds)


def _by_update(
    sim: Simulation, used_by: NDArray[np.int64], age: NDArray[np.int64], count: int
) -> dict[str, NDArray[np.float64]]:
    used = used_by >= 0
    at, number = used_by[used], np.bincount(used_by[used], minlength=count)
    largest = np.zeros(count)
    np.maximum.at(largest, at, age[used])
    return {
        "response_length": np.bincount(at, weights=sim.work.response[used], minlength=count) / number,
        "staleness_mean": np.bincount(at, weights=age[used], minlength=count) / number,
        "staleness_max": largest,
    }


def _responses(sim: Simulation) -> dict[str, Any]:
    start = np.where(sim.start < 0, np.nan, sim.start)
    return {
        "start_time": ("response", start),
        "finish_time": ("response", sim.finish),
        "response_tokens": ("response", sim.work.response),
        "preemptions": ("response", sim.seq[:, k.PREEMPTED].astype(np.int32)),
        "replica": ("response", sim.grp[:, k.REPLICA].repeat(sim.work.group_size)),
    }


def _totals(sim: Simulation) -> dict[str, Any]:
    return {
        "preemptions_total": int(sim.totals[k.PREEMPTIONS]),
        "evictions": int(sim.totals[k.EVICTIONS]),
        "prefilled_tokens": float(sim.totals[k.PREFILLED]),
        "recomputed_tokens": float(sim.totals[k.RECOMPUTED]),
        "decode_steps": int(sim.totals[k.STEPS]),
    }
