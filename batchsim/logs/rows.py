"""Rows of a log by step: parts of one row, lines printed twice, and restarts from a checkpoint.

A step that comes again replaces what it repeats. Every framework's reader collects its rows here, so that
what a restart leaves is decided once.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import takewhile
from typing import Generic, TypeVar

import numpy as np

from batchsim.logs.timeline import Array

LARGEST_STEP = 10**9
MOST_RESTARTS = 5
"""Restarts of a log that are told one by one."""


def number(value: object) -> float:
    """A JSON value or a cell as a float; NaN if it is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


def whole_or_none(value: object) -> int | None:
    """A step number, or None where the value is not one."""
    result = number(value)
    return int(result) if 0 <= result <= LARGEST_STEP and result == int(result) else None


Row = TypeVar("Row", bound=Mapping[str, float])


def _repeats(row: Mapping[str, float], values: Mapping[str, float]) -> bool:
    """Whether a line says nothing that its row does not say already."""
    return bool(values) and all(
        name in row and (row[name] == value or (math.isnan(row[name]) and math.isnan(value)))
        for name, value in values.items()
    )


class Rows(ABC, Generic[Row]):
    """Rows by step number, in the order of the log; a step that comes again replaces what it repeats.

    Two lines of one step with different keys are one row written in two parts. The newest line once
    more, value for value, is the same line printed twice. Other keys that repeat, or a step number that
    falls, mean that the run was restarted from a checkpoint: the rows from that step on belong to a
    branch that was abandoned.
    """

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.repeated = 0
        self.restarts = 0
        self._told: list[str] = []

    @property
    def warnings(self) -> list[str]:
        """What was dropped: the first restarts one by one, the rest in numbers."""
        said = list(self._told)
        if self.restarts > MOST_RESTARTS:
            said.append(f"{self.restarts - MOST_RESTARTS} more restarts or duplicates of that kind")
        if self.repeated:
            said.append(f"{self.repeated} lines repeat the line before them and were used once")
        return said

    def tell(self, text: str) -> None:
        """Add a warning about the latest restart."""
        if self.restarts <= MOST_RESTARTS:
            self._told.append(text)

    @abstractmethod
    def joined(self, row: Row, values: Row) -> Row:
        """One row of two parts."""

    def add(self, step: int, values: Row, *, where: str) -> list[int]:
        """Add a line; the steps that it made obsolete."""
        row = self.rows.get(step)
        if row is not None and not row.keys() & values.keys():
            self.rows[step] = self.joined(row, values)
            return []
        newest = next(reversed(self.rows), None)
        if row is not None and step == newest and _repeats(row, values):
            self.repeated += 1
            return []
        dropped = list(takewhile(lambda old: old >= step, reversed(self.rows)))
        for old in dropped:
            del self.rows[old]
        if dropped:
            self.restarts += 1
            self.tell(
                f"{where}: step {step} follows step {newest}, a restart or a duplicate; "
                f"{len(dropped)} earlier rows from step {step} on were dropped"
            )
        self.rows[step] = values
        return dropped[::-1]

    def begins_again(self, step: int, values: Mapping[str, float], *, first: int) -> bool:
        """Whether training values of a step begin another run: the first step once more, after others.

        Parameters
        ----------
        step : int
            Number of the step.
        values : mapping
            Its training values; none for an evaluation.
        first : int
            Largest number that a first step can have.
        """
        if len(self.rows) < 2 or not values:
            return False
        start = next(iter(self.rows))
        return step <= min(first, start) and bool(self.rows[start].keys() & values.keys())

    def column(self, name: str) -> Array:
        """One column, NaN where a row lacks it."""
        return np.array([row.get(name, math.nan) for row in self.rows.values()], dtype=float)

    @property
    def step(self) -> Array:
        """Step numbers."""
        return np.array(list(self.rows), dtype=float)


class Steps(Rows[dict[str, float]]):
    """Rows as dictionaries, which may change after they were added."""

    def joined(self, row: dict[str, float], values: dict[str, float]) -> dict[str, float]:
        """One row of two parts."""
        return row | values
