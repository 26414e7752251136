"""verl's names for a step's quantities, and what each means.

`timing_s/step` includes testing and save_checkpoint in some versions; `core_time` decides it from the rows.

Tool calls lie within `timing_s/gen`; their mean over trajectories is no phase of its own. DAPO draws
num_gen_batches batches of gen_batch_size prompts until train_batch_size groups are kept: its times
cover everything generated, its lengths and tokens only what was kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from batchsim.logs.core_time import core_seconds
from batchsim.logs.timeline import Array
from batchsim.logs.verl.lines import PackedRows
from batchsim.logs.verl.settings import Settings

_EVENTS = ("testing", "save_checkpoint")
_SUMS = {
    "generation_seconds": ("gen",),
    "training_seconds": ("update_actor", "update_critic"),
    "logprob_seconds": ("old_log_prob", "ref", "values"),
    "reward_seconds": ("reward", "adv"),
    "sync_seconds": ("update_weights",),
    "checkpoint_seconds": ("save_checkpoint",),
}
_OUTSIDE = ("start_profile", "stop_profile", "dump_rollout_generations")
_PHASES = tuple(phase for phases in (*_SUMS.values(), _OUTSIDE) for phase in phases if phase not in _EVENTS)
_AGE = "training/off_policy/trajectory_staleness"
_PLAIN = {
    "grad_norm": ("actor/grad_norm",),
    "critic_grad_norm": ("critic/grad_norm",),
    "learning_rate": ("actor/lr",),
    "train_reward": ("critic/rewards/mean", "critic/score/mean"),
    "response_length": ("response_length/mean",),
    "response_length_max": ("response_length/max",),
    "truncated_share": ("response_length/clip_ratio",),
    "environment_seconds": ("timing_s/agent_loop/tool_calls/mean",),
    "staleness_mean": (f"{_AGE}/mean",),
    "staleness_max": (f"{_AGE}/max",),
}
_SCOPE = {
    "grad_norm": " [1], before clipping",
    "critic_grad_norm": " [1], before clipping",
    "learning_rate": " [1]",
    "train_reward": " [1], mean of the step",
    "response_length": " [tokens], mean of the kept responses of the step",
    "response_length_max": " [tokens], longest of the kept responses of the step",
    "truncated_share": " [1], share of the kept responses of the step at the length limit",
    "environment_seconds": " [s], mean over trajectories, within timing_s/gen",
    "staleness_mean": " [versions of the weights], mean over the trajectories of the step",
    "staleness_max": " [versions of the weights], largest of the step",
}


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Canonical columns and where each comes from."""

    values: dict[str, Array]
    provenance: dict[str, str]


def columns_of(rows: PackedRows, settled: Settings, *, base: int, notes: list[str]) -> Columns:
    """Canonical columns of a run.

    Parameters
    ----------
    rows : PackedRows
        Its step lines.
    settled : Settings
        Its configuration, for what is counted in batches.
    base : int
        Number of the step before the first.
    notes : list of str
        Receives a sentence for every inference.
    """
    values, provenance = {}, {}
    for name, keys in _PLAIN.items():
        values[name] = _first([rows.column(key) for key in keys])
        provenance[name] = " or ".join(keys) + _SCOPE[name]
    for name, phases in _SUMS.items():
        values[name] = _sum([rows.column(f"timing_s/{phase}") for phase in phases])
        provenance[name] = " + ".join(f"timing_s/{phase}" for phase in phases) + " [s], of the step"
    values["step_seconds"] = _core_seconds(rows, notes)
    provenance["step_seconds"] = "timing_s/step [s], less testing and save_checkpoint where it includes them"
    rounded = values["learning_rate"] == 0
    if rounded.any():
        values["learning_rate"] = np.where(rounded, np.nan, values["learning_rate"])
        notes.append(f"actor/lr is printed as 0 in {int(rounded.sum())} steps (rounded away); unknown there")
    _set_generated(rows, settled, values, provenance, base)
    held = {name for name, column in values.items() if np.isfinite(column).any()}
    return Columns(values=values, provenance={name: text for name, text in provenance.items() if name in held})


def batch_from_tokens(rows: PackedRows) -> float | None:
    """Responses per rollout step from total tokens and mean lengths; None where they are not logged."""
    length = rows.column("prompt_length/mean") + rows.column("response_length/mean")
    tokens = rows.column("perf/total_num_tokens")
    usable = np.isfinite(tokens) & np.isfinite(length) & (length > 0) & (tokens > 0)
    return float(np.median(tokens[usable] / length[usable])) if usable.any() else None


def _first(values: list[Array]) -> Array:
    """The first of several columns that holds a value, row by row."""
    result = values[0]
    for other in values[1:]:
        result = np.where(np.isnan(result), other, result)
    return result


def _sum(values: list[Array]) -> Array:
    """Sum of the phases that a row has; NaN where it has none."""
    stacked = np.array(values)
    return np.where(np.isnan(stacked).all(axis=0), np.nan, np.nansum(stacked, axis=0))


def _core_seconds(rows: PackedRows, notes: list[str]) -> Array:
    """Step time without evaluation and checkpoint, whichever of them the version's timer includes."""
    step = _first([rows.column("timing_s/step"), rows.column("perf/time_per_step")])
    phases = np.nan_to_num(_sum([rows.column(f"timing_s/{phase}") for phase in _PHASES]))
    events = {name: rows.column(f"timing_s/{name}") for name in _EVENTS}
    # Where nothing tells, a timer around the whole step is the older rule.
    return core_seconds(step, phases, events, known=(1, 1), timer="timing_s/step", notes=notes)


def _set_generated(
    rows: PackedRows, settled: Settings, values: dict[str, Array], provenance: dict[str, str], base: int
) -> None:
    """DAPO: responses generated so far and the share that was kept, where the configuration gives both sizes."""
    group, prompts = settled.stated.get("group_size", np.nan), settled.stated.get("prompts", np.nan)
    if not np.isfinite(settled.gen_prompts * group * prompts):
        return
    launched = rows.column("train/num_gen_batches") * settled.gen_prompts
    # A step that the log lacks generated an unknown number.
    whole = np.cumprod(np.diff(rows.step, prepend=base) == 1) > 0
    values["responses_generated"] = np.where(whole, np.cumsum(launched) * group, np.nan)
    values["kept_share"] = prompts / np.where(launched > 0, launched, np.nan)
    generated = "train/num_gen_batches x data.gen_batch_size"
    provenance["responses_generated"] = f"running sum of {generated} x rollout.n [responses]"
    provenance["kept_share"] = f"data.train_batch_size / ({generated}) [1], of the step"
