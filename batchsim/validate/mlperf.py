r"""18 runs of a 397B model (MLPerf Training, GRPO): q and T/T0 at B = 1,024 from the runs at 256 and 512 alone.

The runs bound little of learning: every one passes its target at its first scheduled evaluation, so N* has upper limits
only (4,608, 5,120 and 7,168 responses), r_N none, and T/T0 lies in [0, infinity). They fix the system: six seeds of
each batch give q of steady steps to about 3 %, and the time to the first evaluation. Held against the forecast are

    step time, q and r_q   of steady steps, which is what a forecast speaks of
    q and r_q end to end   cold first steps included, which it does not: the difference is a known bias
    the time to 7,168 responses over that of the reference to 4,608    where both runs were evaluated; r_N drops out
    T/T0                   predicted; the runs allow any value, so it has neither error nor coverage

Intervals of the measured means are Student's, over the six seeds.

The ladder begins with what the submission's configuration says of model, GPUs and division (`PLAN`). How long
responses are it does not say: the mean is that of the logs' first steps, so that rung has seen it. Tools and their
waits are in no specification here.

References
----------
.. [1] mlcommons/training @ aa344c7f, llm_post_training/rcp_logs (Apache-2.0).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from scipy.special import stdtrit

from batchsim.measure import LEVEL
from batchsim.plan import Plan, plan_from_dict
from batchsim.predict import compare, predict
from batchsim.validate.measured import Progress, make_row, power_law, quantiles, rungs, runs_of, score, silent

FOLDER = "mlperf_grpo"
PILOTS, ASKED = (256.0, 512.0), 1024.0
BATCHES = (*PILOTS, ASKED)
PLAN = {
    "recipe": {"prompts": 16, "group_size": 16, "learning_rate": 1e-6, "batches": [256, 512, 1024]},
    "model": {"name": "Qwen/Qwen3.5-397B-A17B"},
    "gpu": {"name": "GB300", "count": 256, "generation_count": 192},
    "engine": {"mode": "async", "tensor_parallel": 8},
    "trainer": {"tensor_parallel": 4, "pipeline_parallel": 2},
    "lengths": {"prompt_mean": 1000, "response_mean": 5700, "max_tokens": 65536},
}
"""What a plan could state before the first run, but for the mean response (5,700 tokens), read off the logs."""
SPECIFIED = "specifications"
STEADY, WHOLE = "steady steps", "end to end"


def validate_mlperf(
    data: Path | None = None, *, seed: int = 0, level: float = LEVEL, progress: Progress = silent
) -> dict[str, Any]:
    """Validate the forecast at B = 1,024 from B = 256 and 512.

    Parameters
    ----------
    data : Path or None
        Folder of measured data; else BATCHSIM_DATA or the folder beside a checkout.
    seed : int
        Of the draws.
    level : float in (0, 1) [1]
    progress : callable
        Takes the name of each stage as it begins.

    Returns
    -------
    dict
        name, overall (see `measured.score`), slices, rows, skipped, and pilots: the ladder (see `measured.rungs`).
        Seconds, responses/s and ratios. Where the runs bound a row only, `allowed` holds the limits, and
        `least_if_cost_rises` what T/T0 is at least if r_N is not below 1.

    Raises
    ------
    InputError
        For a named folder that does not exist, or a level outside (0, 1).
    """
    progress("reading 18 runs")
    runs, skipped = runs_of(data, FOLDER)
    if runs is None:
        return {"name": "mlperf", "overall": {}, "slices": [], "rows": [], "skipped": skipped, "pilots": []}
    progress("forecast")
    ds = predict(runs, pilot_batches=PILOTS, batches=BATCHES, level=level, seed=seed)
    rows = _rows(runs, ds)
    gain = next(row["measured"] for row in rows if row["claim"].startswith("r_q") and row["of"] == STEADY)
    parts = [(name, [r for r in rows if r["of"] == name]) for name in dict.fromkeys(r["of"] for r in rows)]
    progress("what a pilot buys")
    return {
        "name": "mlperf",
        "overall": score(rows, level=level) | {"peer": "power law through the pilots' step times"},
        "slices": [{"slice": name} | score(part, level=level) for name, part in parts],
        "rows": rows,
        "skipped": [
            *skipped,
            "N*, r_N and T/T0 have no measured value: all 18 runs pass their target at the first evaluation",
        ],
        "pilots": _ladder(runs, measured=gain, level=level, seed=seed),
    }


def _arms(ds: xr.Dataset) -> xr.Dataset:
    found: xr.Dataset = ds.attrs["measured"]["arms"].to_dataset().swap_dims(arm="train_batch")
    return found


def _student(values: Any, level: float) -> tuple[float, float, float]:
    """Mean of runs and its Student interval."""
    own = np.asarray(values, dtype=np.float64)
    half = float(stdtrit(own.size - 1, (1 + level) / 2)) * float(own.std(ddof=1)) / math.sqrt(own.size)
    return float(own.mean()) - half, float(own.mean()), float(own.mean()) + half


def _rows(runs: xr.DataTree, ds: xr.Dataset) -> list[dict[str, Any]]:
    level = float(ds.attrs["level"])
    arms, own = _arms(ds), ds.sel(train_batch=ASKED)
    at = arms.sel(train_batch=ASKED)
    compared = {c["claim"]: c for c in compare(ds) if c["train_batch"] == ASKED}
    of_runs = [n.to_dataset() for n in runs.children.values() if n.attrs["train_batch"] == ASKED]
    seconds = [float(run["step_seconds"].values[run["steady"].values].mean()) for run in of_runs]
    slow, mean, fast = _student(seconds, level)
    one, two = ((b, float(arms.sel(train_batch=b)["step_seconds"])) for b in PILOTS)
    line = power_law(ASKED, first=one, second=two)
    peer_gain = ASKED / PILOTS[0] * one[1] / line
    step, gain = compared["step_time_law"], compared["throughput_ratio"]
    q = quantiles(own["throughput"].values, level)
    r_q = quantiles(own["throughput_ratio"].values, level)
    per_run = ds.attrs["measured"]["runs"].to_dataset()
    whole = _student(per_run["throughput"].values[per_run["train_batch"].values == ASKED], level)
    z = (gain["measured_interval"][1] - gain["measured_interval"][0]) / 2
    ratio = float(at["throughput_ratio"])
    evaluated = arms["first_evaluation_responses"]
    more = float(evaluated.sel(train_batch=ASKED) / evaluated.sel(train_batch=PILOTS[0]))
    reach = quantiles(more / own["throughput_ratio"].values, level)
    t = quantiles(own["time_ratio"].values, level)
    at_b = f"at B = {ASKED:g}"
    return [
        make_row(
            f"step time (s) {at_b}, affine law",
            predicted=step["predicted"],
            interval=(step["interval"][0], step["interval"][1]),
            measured=mean,
            measured_interval=(slow, fast),
            peer=line,
            of=STEADY,
        ),
        make_row(
            f"q (responses/s) {at_b}",
            predicted=q[1],
            interval=(q[0], q[2]),
            measured=ASKED / mean,
            measured_interval=(ASKED / fast, ASKED / slow),
            peer=ASKED / line,
            of=STEADY,
        ),
        make_row(
            f"r_q {at_b}",
            predicted=r_q[1],
            interval=(r_q[0], r_q[2]),
            measured=gain["measured"],
            measured_interval=gain["measured_interval"],
            peer=peer_gain,
            of=STEADY,
        ),
        make_row(
            f"q (responses/s) {at_b}, cold start included",
            predicted=q[1],
            interval=(q[0], q[2]),
            measured=whole[1],
            measured_interval=(whole[0], whole[2]),
            peer=ASKED / line,
            of=WHOLE,
        ),
        make_row(
            f"r_q {at_b}, cold start included",
            predicted=r_q[1],
            interval=(r_q[0], r_q[2]),
            measured=ratio,
            measured_interval=(ratio - z, ratio + z),
            peer=peer_gain,
            of=WHOLE,
        ),
        make_row(
            f"time to the first evaluation {at_b} over that of the reference ({more:.3g} times the responses)",
            predicted=reach[1],
            interval=(reach[0], reach[2]),
            measured=float(at["first_evaluation_time_ratio"]),
            peer=more / peer_gain,
            of=WHOLE,
        ),
        make_row(
            f"T/T0 {at_b}",
            predicted=t[1],
            interval=(t[0], t[2]),
            measured=None,
            allowed=[float(at["time_ratio"].sel(bound="low")), None],
            least_if_cost_rises=1 / ratio,
            of="time to target",
        ),
    ]


def _ladder(runs: xr.DataTree, *, measured: float, level: float, seed: int) -> list[dict[str, Any]]:
    plan: Plan = plan_from_dict(PLAN, source="the submission's configuration")
    found: list[dict[str, Any]] = []
    for pilots in ((), PILOTS[:1], PILOTS, BATCHES):
        given: dict[str, Any] = {"runs": runs, "pilot_batches": pilots} if pilots else {}
        found += rungs(
            ", ".join(f"{b:g}" for b in pilots) or SPECIFIED,
            predict(plan, batches=BATCHES, level=level, seed=seed, **given),
            workload=FOLDER,
            train_batch=ASKED,
            measured={"throughput_ratio": measured},
            held_out=ASKED not in pilots,
        )
    return found
