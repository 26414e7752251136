"""Long tables: one row per value, several rows where several optimizer steps share a step.

Times of a step's optimizer steps add up; of everything else the mean is the step's value. Where every
step but the last, which may be unfinished, has equally many gradient norms or learning rates, that
number is updates_per_rollout. Equal times are one time that was written several times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# One value of these per optimizer step: their number at a step is the number of updates.
PER_UPDATE = ("grad_norm", "actor/grad_norm", "train/grad_norm", "critic_grad_norm", "learning_rate")


@dataclass
class Cell:
    """Values of every metric at one step of one run, and the line of the first."""

    line: int
    values: dict[str, list[float]]


def one_value(name: str, values: Sequence[float]) -> float:
    """One value of a step, from those of its optimizer steps; NaN where none is known."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return math.nan
    if len(set(known)) == 1:
        return known[0]
    total = sum(known)
    return total if name.endswith("_seconds") else total / len(known)


def several_per_step(
    cells: Mapping[str, Mapping[float, Cell]], name: str, path: str, warnings: list[str]
) -> dict[str, int]:
    """Optimizer steps per rollout step of the runs that have several, by run.

    Parameters
    ----------
    cells : mapping
        Run -> step -> values.
    name, path : str
        Of the table, for a run without a name and for the warnings.
    warnings : list of str
        Receives a sentence for every run that has several values per step.
    """
    several = {}
    for run, steps in cells.items():
        if max((len(values) for cell in steps.values() for values in cell.values.values()), default=0) < 2:
            continue
        metric = next((m for m in PER_UPDATE if any(len(c.values.get(m, [])) > 1 for c in steps.values())), None)
        held = (
            [len(cell.values[metric]) for _, cell in sorted(steps.items()) if metric in cell.values] if metric else []
        )
        reason = "not equally many"
        if len(held) > 1 and len(set(held[:-1])) == 1:
            several[run] = held[0]
            reason = f"{held[0]} values of {metric} at every step: so many updates_per_rollout"
        warnings.append(
            f"{path}: {run or name} has several values per step ({reason}); where times differ they are added up, "
            "everything else is averaged"
        )
    return several
