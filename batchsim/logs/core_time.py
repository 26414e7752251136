"""Step time without evaluation and checkpoint, whichever of them a framework's timer includes.

A timer around the whole step may hold them or not, versions differ, and a run has one version. What a step
with such an event lasts beyond its phases is compared with the steps beside it that have none:

    core = step - sum_e a_e event_e,   a_e in {0, 1}
    excess = (step - phases) - median of (step - phases) of the nearest event-free rows (0 without any)
    the a_e minimise  sum_e median |excess - sum_e a_e event_e| over the rows that have event e

Where the log cannot tell, the framework's own rule stands (`known`).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np
import numpy.typing as npt

from batchsim.logs.timeline import Array

_NEIGHBOURS = 3


def core_seconds(
    step: Array, phases: Array, events: Mapping[str, Array], *, known: tuple[int, ...], timer: str, notes: list[str]
) -> Array:
    """Step time without the events that its timer includes [s], shape (rows,).

    Parameters
    ----------
    step : array, shape (rows,)
        The timer [s]; NaN where unknown.
    phases : array, shape (rows,)
        Sum of the stages within a step that are no events [s].
    events : mapping of arrays, shape (rows,)
        Event -> its seconds [s]; NaN or 0 where there was none.
    known : tuple of int
        Whether the timer includes each event where nothing in the log tells.
    timer : str
        Its name, for the notes.
    notes : list of str
        Receives a sentence for every event that is taken out.
    """
    seconds = np.array([np.nan_to_num(values) for values in events.values()]).reshape(len(events), len(step))
    excess = _beside(step - phases, np.isfinite(step), np.any(seconds > 0, axis=0))
    held = [(values > 0) & np.isfinite(excess) for values in seconds]
    if not any(some.any() for some in held):
        return step

    def misfit(included: tuple[int, ...]) -> float:
        left = np.abs(excess - np.array(included, dtype=float) @ seconds)
        return sum(float(np.median(left[some])) for some in held if some.any())

    # The first of equal ones is the rule that is known.
    choices: list[tuple[int, ...]] = [known, *product((1, 0), repeat=len(events))]
    included = min(choices, key=misfit)
    core = step
    for name, values, counted in zip(events, seconds, included, strict=True):
        lost = np.isfinite(step) & (values > 0)
        if counted and lost.any():
            core = core - values
            notes.append(
                f"{timer} includes {name}: {int(lost.sum())} rows count {values[lost].sum():.6g} s less "
                "(decided once, by the rows beside them)"
            )
    return core


def _beside(rest: Array, timed: npt.NDArray[np.bool_], event: npt.NDArray[np.bool_]) -> Array:
    """What rows with an event last beyond their phases, over the nearest rows without one [s]."""
    free = np.flatnonzero(timed & ~event)
    result = np.full(len(rest), np.nan)
    for row in np.flatnonzero(timed & event):
        at = int(np.searchsorted(free, row))
        near = free[max(at - _NEIGHBOURS, 0) : at + _NEIGHBOURS]
        result[row] = rest[row] - (np.median(rest[near]) if len(near) else 0.0)
    return result
