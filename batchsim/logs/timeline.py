"""Steady steps, elapsed time and wall-clock time: decided once, for every reader.

- A rollout step is **steady** if it is not one of the first two that the log holds (compilation,
  cold caches, an empty pipeline), its time is known, and it is not a spike: more than five times
  the median of the others. Without timing only the first rule applies.
- **elapsed** adds up the step times, which exclude evaluation and checkpoints. A row may stand for
  several steps (TRL averages over its logging interval): it counts its time once per step. Up to
  three missing steps are bridged in the same way, and a step without a time takes the previous
  one's; after a longer gap the elapsed time is unknown, NaN, from there on.
- **wall** is elapsed plus the evaluations and checkpoints that came before. It is known as long as
  their durations are; only an evaluation before the first step may lack one, and then counts zero.

Everything but the spike rule looks backwards only, so a longer log never changes earlier values.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

COLD_STEPS = 2
SPIKE = 5.0
BRIDGED_STEPS = 3


def steady_steps(step_seconds: Array | None, count: int) -> npt.NDArray[np.bool_]:
    """Whether each of `count` rollout steps is steady, from their times [s], shape (count,)."""
    steady = np.arange(count) >= COLD_STEPS
    if step_seconds is None or not np.isfinite(step_seconds).any():
        return steady
    steady &= np.isfinite(step_seconds)
    if steady.any():
        steady &= ~(step_seconds > SPIKE * np.median(step_seconds[steady]))
    return steady


def elapsed_seconds(step: Array, step_seconds: Array, *, base: int, stride: int) -> tuple[Array, list[str]]:
    """Time since the run started at the end of each row [s], shape (rows,), and what was bridged.

    Parameters
    ----------
    step : array, shape (rows,)
        Step numbers [1], increasing.
    step_seconds : array, shape (rows,)
        Time per step [s], without evaluation and checkpoints; NaN where unknown.
    base : int
        Number of the step before the first one.
    stride : int
        Steps that one row normally stands for.
    """
    notes = []
    seconds = step_seconds.copy()
    known = np.isfinite(seconds)
    last = np.maximum.accumulate(np.where(known, np.arange(len(seconds)), -1))
    seconds = np.where(last >= 0, seconds[last], np.nan)
    if len(last) and last[0] < 0:
        notes.append("the first step has no time: elapsed time is unknown")
    filled = int((~known & (last >= 0)).sum())
    if filled:
        notes.append(f"{filled} steps have no time; elapsed counts the previous step's for them")
    stands_for = np.diff(step, prepend=base)
    elapsed = np.cumsum(seconds * stands_for)
    missing = stands_for - stride
    gaps = np.flatnonzero(missing > BRIDGED_STEPS)
    end = int(gaps[0]) if len(gaps) else len(step)
    if end < len(step):
        elapsed[end:] = np.nan
        before = int(step[end - 1]) if end else base
        notes.append(f"no steps between {before} and {int(step[end])}: elapsed time is unknown from there on")
    bridged = int(missing[:end][missing[:end] > 0].sum())
    if bridged:
        notes.append(f"{bridged} steps are missing; elapsed counts the next row's time for them")
    return elapsed, notes


def elapsed_at(position: Array, responses: Array, elapsed: Array | None) -> Array:
    """Elapsed time [s] when `position` responses had been used; NaN beyond what is known."""
    known = np.isfinite(elapsed) & np.isfinite(responses) if elapsed is not None else np.zeros(0, dtype=bool)
    start = np.where(position == 0, 0.0, np.nan)
    if elapsed is None or not known.any():
        return start
    x = np.concatenate([[0.0], responses[known]])
    y = np.concatenate([[0.0], elapsed[known]])
    # A tolerance because responses may be products and evaluations sums of the same numbers.
    inside = position <= x[-1] * (1 + 1e-9)
    return np.where(inside, np.interp(position, x, y), start)


def wall_seconds(elapsed: Array, durations: Array, checkpoints: Array, *, initial: npt.NDArray[np.bool_]) -> Array:
    """Wall-clock time at which each evaluation began [s], shape (evaluations,).

    Parameters
    ----------
    elapsed : array, shape (evaluations,)
        Time without evaluations and checkpoints [s].
    durations : array, shape (evaluations,)
        Duration of each evaluation [s]; NaN where unknown.
    checkpoints : array, shape (evaluations,)
        Checkpoint time before each evaluation [s].
    initial : bool array, shape (evaluations,)
        Whether the evaluation preceded the first step.
    """
    counted = np.where(initial & np.isnan(durations), 0.0, durations)
    before = np.concatenate([[0.0], np.cumsum(counted)[:-1]]) if len(counted) else counted
    wall: Array = elapsed + before + checkpoints
    return wall
