"""Step lines: from text to rows of numbers that share their keys.

A console line is ``step:12 - key:value - key:value``, the file logger's ``{"step": 12, "data": {...}}``.
A run repeats some 65 keys on every line, so keys are stored once, as a `Layout`, and a `Row` holds one
array of numbers: a gigabyte of log, 50,000 such lines, then takes 35 MB instead of 400.

Most lines are plain and are split at their separators at once. A line with anything else is split into
parts at " - ", and each part is read by itself:

- ``key:number`` with a plain key counts, also where another process' text is glued to the number.
- Else the part is divided at its last colon: names of data sets may hold spaces and colons.
- True and False are numbers, as Python has it.
- What is no number (``tensor(0.5)``, ``None``, a torn end) is not used; the log's `Layouts` count it.

Both ways give the same on plain lines.
"""

from __future__ import annotations

import json
import math
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from batchsim.logs.rows import Rows, number, whole_or_none
from batchsim.logs.timeline import Array

Index = npt.NDArray[np.intp]

_STEP = re.compile(r"step:(\d{1,9}) - ")
# One way only to match a run of digits, so that a million of them take no time.
_NUMBER = r"[-+]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|nan|inf)"
_TRUTH = r"(?:np\.)?(?:True|False)_?"
# A data set's name may hold a colon, and then even a number after it.
_STRICT = re.compile(rf"([^\s:]+):(?:np\.\w+\(({_NUMBER})\)|({_NUMBER}|{_TRUTH}))(?![\w./@:-])")
_LOOSE = re.compile(rf"([^\s:/]+/.*):(?:np\.\w+\(({_NUMBER})\)|({_NUMBER}|{_TRUTH}))\s*")
_ENDS_IN_VALUE = re.compile(rf":{_NUMBER}\s*$")
_NUMPY = re.compile(rf"np\.\w+\(({_NUMBER})\)(?![\w.])")
_KEY = re.compile(r"[^\s:]+")
_NOT_PLAIN = re.compile(r"[^-+.0-9e]")
_SCALED = re.compile(r"(.+)\((\d[\d.e+-]*)\)$")
_RENAMED = {
    "Tokens/Sec/GPU": "perf/throughput",
    "time_per_step": "perf/time_per_step",
    "total_num_tokens": "perf/total_num_tokens",
}
SCORE_PREFIXES = ("val-core/", "val/", "test_score/")
SIDE_SCORES = "val-aux/"
_LONGEST_NAME = 80
_MOST_NAMES = 1000
_SHOWN = 50
_OTHERS = "others"
_BOOKKEEPING = ("training/", "timing_s/testing")


class Layout:
    """The keys of a line as written, and what they mean: canonical names, factors, scores."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self.keys = keys
        names = [_canonical(key) for key in keys]
        self.factors = [(place, factor) for place, (_, factor) in enumerate(names) if factor != 1]
        self.names = tuple(name for name, _ in names)
        self.index = {name: place for place, name in enumerate(self.names)}
        self.plain = all(map(_KEY.fullmatch, keys))
        self.scores = {name: place for name, place in self.index.items() if _is_score(name)}
        self.training = tuple(place for place, name in enumerate(self.names) if name not in self.scores)
        self.validation_only = all(self.names[place].startswith(_BOOKKEEPING) for place in self.training)

    def row(self, numbers: array[float]) -> Row:
        """A row of numbers as written."""
        for place, factor in self.factors:
            # 2024: "actor/lr(1e-4):0.010" is 0.010 x 1e-4.
            numbers[place] *= factor
        return Row(self, numbers)


class Row(Mapping[str, float]):
    """The numbers of one step by name."""

    __slots__ = ("layout", "numbers")

    def __init__(self, layout: Layout, numbers: array[float]) -> None:
        self.layout = layout
        self.numbers = numbers

    def __getitem__(self, name: str) -> float:
        return self.numbers[self.layout.index[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout.index)

    def __len__(self) -> int:
        return len(self.layout.index)


class Layouts:
    """Every layout of a log, each held once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], Layout] = {}
        self.rejected: Counter[str] = Counter()

    def reject(self, name: str) -> None:
        """Count a part of a step line that is no number, by its name."""
        name = name.strip()[:_LONGEST_NAME]
        if name:
            self.rejected[name if name in self.rejected or len(self.rejected) < _MOST_NAMES else _OTHERS] += 1

    def warnings(self) -> list[str]:
        """What of the step lines is no number."""
        if not self.rejected:
            return []
        listed = [f"{name!r} in {lines}" for name, lines in self.rejected.most_common(_SHOWN)]
        more = len(self.rejected) - len(listed)
        rest = f" and {more} more names" if more else ""
        return [
            f"{self.rejected.total()} parts of step lines hold no number and were not used: {', '.join(listed)}{rest}"
        ]

    def __call__(self, keys: tuple[str, ...]) -> Layout:
        """The layout of these keys."""
        found = self._known.get(keys)
        if found is None:
            found = self._known[keys] = Layout(keys)
        return found

    def row(self, keys: tuple[str, ...], numbers: Iterable[float]) -> Row:
        """A row of numbers as written; names and factors come from its layout."""
        return self(keys).row(array("d", numbers))

    def training(self, row: Row) -> Row:
        """The row without its scores."""
        layout = row.layout
        if not layout.scores:
            return row
        keys = tuple(layout.keys[place] for place in layout.training)
        return Row(self(keys), array("d", [row.numbers[place] for place in layout.training]))

    def joined(self, one: Row, other: Row) -> Row:
        """One row of two parts."""
        return Row(self(one.layout.keys + other.layout.keys), one.numbers + other.numbers)


class PackedRows(Rows[Row]):
    """The rows of one run, and which of their columns were used."""

    def __init__(self, layouts: Layouts) -> None:
        super().__init__()
        self.used: set[str] = set()
        self._layouts = layouts
        self._tables: list[tuple[Layout, Index, Array]] = []

    def joined(self, row: Row, values: Row) -> Row:
        """One row of two parts."""
        return self._layouts.joined(row, values)

    def column(self, name: str) -> Array:
        """One column, NaN where a row lacks it; the rows must be complete."""
        self.used.add(name)
        if not self._tables:
            self._tables = self._by_layout()
        column = np.full(len(self.rows), np.nan)
        for layout, rows, table in self._tables:
            place = layout.index.get(name)
            if place is not None:
                column[rows] = table[:, place]
        return column

    def _by_layout(self) -> list[tuple[Layout, Index, Array]]:
        groups: dict[Layout, list[int]] = {}
        for place, row in enumerate(self.rows.values()):
            groups.setdefault(row.layout, []).append(place)
        held = list(self.rows.values())
        tables = []
        for layout, places in groups.items():
            packed = b"".join([held[place].numbers.tobytes() for place in places])
            table = np.frombuffer(packed, dtype=float).reshape(len(places), len(layout.names))
            tables.append((layout, np.array(places), table))
        return tables


def console_rows(line: str, layouts: Layouts) -> list[tuple[int, Row]]:
    """Steps and rows of a console line without colours; normally none or one."""
    found = []
    at = line.find("step:")
    while at >= 0:
        if (at == 0 or line[at - 1].isspace() or line[at - 1] == ")") and (match := _STEP.match(line, at)):
            found.append((match.start(), match.end(), int(match[1])))
        at = line.find("step:", at + 1)
    stops = [*(start for start, _, _ in found), len(line)][1:]
    rows = [(step, _row(line[begin:stop], layouts)) for (_, begin, step), stop in zip(found, stops, strict=False)]
    return [(step, row) for step, row in rows if row is not None]


def file_row(line: str, layouts: Layouts) -> tuple[int, Row] | None:
    """Step and row of a line of the file logger, or None."""
    try:
        entry: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("data"), dict):
        return None
    step = whole_or_none(entry.get("step"))
    if step is None or not entry["data"]:
        return None
    for key, value in entry["data"].items():
        # null is NaN there.
        if value is not None and not isinstance(value, bool) and math.isnan(number(value)) and value != "NaN":
            layouts.reject(key)
    values = [float(value) if isinstance(value, bool) else number(value) for value in entry["data"].values()]
    return step, layouts.row(tuple(entry["data"]), values)


def _row(text: str, layouts: Layouts) -> Row | None:
    return _split(text, layouts) or _searched(text, layouts)


def _split(text: str, layouts: Layouts) -> Row | None:
    """The row of a plain line; None for any other."""
    if "np." in text:
        text = _NUMPY.sub(r"\1", text)
    parts = text.rstrip().replace(" - ", ":").split(":")
    keys, values = tuple(parts[::2]), parts[1::2]
    if len(keys) != len(values) or text.count(" - ") != len(keys) - 1 or _NOT_PLAIN.search("".join(values)):
        return None
    layout = layouts(keys)
    if not layout.plain:
        return None
    try:
        return layout.row(array("d", map(float, values)))
    except ValueError:
        return None


def _searched(text: str, layouts: Layouts) -> Row | None:
    """The row of any line, part by part; None if no part is a value."""
    found: dict[str, float] = {}
    loose: dict[str, float] = {}
    rejected = []
    for part in text.split(" - "):
        if match := _STRICT.match(part):
            found[match[1]] = _value(match)
        elif (match := _LOOSE.fullmatch(part)) and not _ENDS_IN_VALUE.search(match[1]):
            loose[match[1]] = _value(match)
        else:
            rejected.append(part.rpartition(":")[0] or part)
    # A sentence with a colon and a number at its end is no step line.
    if not found and not any(_is_score(key) for key in loose):
        return None
    for name in rejected:
        layouts.reject(name)
    values = found | loose
    return layouts.row(tuple(values), list(values.values()))


def _value(match: re.Match[str]) -> float:
    text = match[2] or match[3]
    truth = text.removeprefix("np.").removesuffix("_")
    return float(truth == "True") if truth in ("True", "False") else number(text)


def _canonical(key: str) -> tuple[str, float]:
    """Name of a key since 2025, and the factor that its old name holds."""
    factor = 1.0
    if scaled := _SCALED.match(key):
        key, factor = scaled[1], number(scaled[2])
    if key.startswith("timing/"):
        key = "timing_s/" + key.removeprefix("timing/")
    return _RENAMED.get(key, key), factor


def _is_score(name: str) -> bool:
    return name.startswith((*SCORE_PREFIXES, SIDE_SCORES))
