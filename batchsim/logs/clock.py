"""Step times from a clock that also ran during evaluations and checkpoints.

A progress bar (elapsed, exact to 1 s), Weights & Biases (`_runtime`) and TensorBoard (wall time of
each event) show only when a step ended. The time between two steps holds whatever happened there:

- An evaluation whose duration is known is taken out.
- What remains of an interval of more than five median step times, per step, is a checkpoint, an
  evaluation without a duration or a stall: the interval counts the median, and the excess becomes
  `checkpoint_seconds`, so that wall-clock time stays exact. An interval of many steps hides short ones.
- A clock or step number that falls is a restart. An interval from step 0 counts only if it covers no
  more steps than the others do: a resumed bar jumps over the steps it skips.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from batchsim.logs.timeline import SPIKE, Array


@dataclass(frozen=True, kw_only=True)
class Clocked:
    """Times of the rows [s], each of shape (rows,), and what was inferred."""

    step_seconds: Array
    checkpoint_seconds: Array
    notes: list[str]


@dataclass(frozen=True, kw_only=True)
class _Interval:
    """From the end of step `start` to the end of step `stop`."""

    start: int
    stop: int
    seconds: float
    fresh: bool

    @property
    def steps(self) -> int:
        return self.stop - self.start


def from_clock(
    rows: Array,
    observed: Iterable[tuple[int, float]],
    *,
    paused: Mapping[int, float],
    source: str,
    updates: int = 1,
) -> Clocked:
    """Time per step of each row from a clock read at the ends of steps.

    Parameters
    ----------
    rows : array, shape (rows,)
        Step numbers [1], increasing; a row stands for the steps since the one before.
    observed : iterable of (step, seconds)
        The clock [s] at the end of a step, in the order of the log.
    paused : mapping
        Step -> seconds of evaluation that followed its end [s].
    source : str
        What the clock is, for the notes.
    updates : int
        Steps of a rollout, of which one generates [1]; the clock counts where one ends.
    """
    ends = ((step, seconds) for step, seconds in observed if step % updates == 0)
    intervals = _intervals(ends, paused)
    usable = {stop: interval for stop, interval in intervals.items() if interval.seconds >= 0}
    nothing = np.full(len(rows), math.nan)
    if not usable:
        return Clocked(step_seconds=nothing, checkpoint_seconds=nothing.copy(), notes=[])
    usual = float(np.median([interval.seconds / interval.steps for interval in usable.values()]))
    long = {stop for stop, interval in usable.items() if interval.seconds > SPIKE * usual * interval.steps > 0}
    seconds, excess, covered = (np.zeros(len(rows)) for _ in range(3))
    for stop, interval in usable.items():
        row = int(np.searchsorted(rows, stop))
        if row == len(rows):
            continue
        counted = usual * interval.steps if stop in long else interval.seconds
        # An interval that several rows share has one pace.
        first = int(np.searchsorted(rows, interval.start, side="right"))
        bounds = np.concatenate([[interval.start], rows[first:row], [stop]])
        shared = np.diff(bounds)
        seconds[first : row + 1] += counted / interval.steps * shared
        covered[first : row + 1] += shared
        excess[row] += interval.seconds - counted
    known = covered > 0
    step_seconds = np.divide(seconds, covered, out=nothing.copy(), where=known)
    notes = [f"the log has no step time; {source} gives it"]
    if long:
        lost = sum(usable[stop].seconds - usual * usable[stop].steps for stop in long)
        notes.append(
            f"{len(long)} of {len(usable)} intervals last more than {SPIKE:g} usual ones: their {lost:.0f} s of excess "
            "count as checkpoints, not as steps"
        )
    if len(rows) and not known[0]:
        step_seconds[0] = usual
        notes.append(f"{source} does not time the first row: the median step, {usual:.4g} s, stands for it")
    return Clocked(step_seconds=step_seconds, checkpoint_seconds=np.where(excess > 0, excess, math.nan), notes=notes)


def _intervals(observed: Iterable[tuple[int, float]], paused: Mapping[int, float]) -> dict[int, _Interval]:
    """Intervals by the step that ends them; those of a restart replace what they repeat."""
    places = sorted(at for at, seconds in paused.items() if 0 < seconds < math.inf)
    total = [0.0, *accumulate(paused[at] for at in places)]
    found: dict[int, _Interval] = {}
    last: tuple[int, float] | None = None
    fresh = True
    for step, clock in observed:
        if not math.isfinite(clock) or (last is not None and step == last[0] and clock >= last[1]):
            continue
        if last is None or step < last[0] or clock < last[1]:
            last, fresh = (step, clock), True
            continue
        pause = total[bisect_left(places, step)] - total[bisect_left(places, last[0])]
        interval = _Interval(start=last[0], stop=step, seconds=clock - last[1] - pause, fresh=fresh)
        if not fresh or step not in found:
            found[step] = interval
        last, fresh = (step, clock), False
    lengths = [interval.steps for interval in found.values() if not interval.fresh]
    usual = float(np.median(lengths)) if lengths else 1.0
    return {
        stop: interval
        for stop, interval in found.items()
        if not (interval.fresh and interval.start == 0 and interval.steps > usual)
    }
