"""What a reader of one framework is, and the readers that a dialect and a parser make.

Every framework's module ends in a `Reader`, which `registry` lists. Whoever reads logs asks each of them the
same questions, in this order: does the file begin like one of yours, does a block of its lines hold one of
your steps, is it yours as a whole. `console` answers for frameworks whose rows stand in single lines or
numbered blocks; those that need more answer for themselves.

Consoles are streamed: only lines with a step or an option of the configuration are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from batchsim.errors import InputError
from batchsim.logs.dialect import Collector, Dialect, Entry
from batchsim.logs.parts import Block, flat_numbers, json_object, without_colours
from batchsim.logs.record import Run
from batchsim.logs.rows import whole_or_none
from batchsim.logs.source import Source, matching_lines

MAX_NAMES = 10_000
"""Metrics that one row may hold."""
MAX_ALL_NAMES = 100_000
"""Metrics that a log may hold."""
HYDRA = ("config.yaml", ".hydra/config.yaml", "overrides.yaml", ".hydra/overrides.yaml")
Needles = Mapping[bytes, re.Pattern[bytes] | None]


@dataclass(frozen=True, kw_only=True)
class Reader:
    """One framework's reader.

    Attributes
    ----------
    name : str
        As `read_logs` calls the framework.
    logs : str
        What is read, for the list of known logs.
    read : callable
        Sources of this framework -> runs; several sources may make one run.
    begins, whole : callable or None
        Whether a source is this framework's by its first lines, or by all of them.
    holds : callable or None
        Whether a block of whole lines holds a step.
    dialect : Dialect or None
        Names of its metrics, by which it is known in a tracker's export too.
    section : str
        What a configuration file beside the log must hold to be this framework's; '' where none is read.
    beside : tuple of str
        Names of such files.
    configured : bool
        Whether a configuration file can be named.
    """

    name: str
    logs: str
    read: Callable[[Sequence[Source]], list[Run]]
    begins: Callable[[Source], bool] | None = None
    holds: Callable[[bytes], bool] | None = None
    whole: Callable[[Source], bool] | None = None
    dialect: Dialect | None = None
    section: str = ""
    beside: tuple[str, ...] = HYDRA
    configured: bool = True


class Parser(Protocol):
    """Finds rows in the lines of one log, which come in order."""

    def read(self, text: str, line: int) -> Iterable[Entry]:
        """Rows that a line completes."""
        ...

    def close(self) -> Iterable[Entry]:
        """Rows that the end of the log completes."""
        ...

    @property
    def notes(self) -> list[str]:
        """What was not used, and why."""
        ...


class Lines:
    """A parser for frameworks whose rows are single lines: a function from a line to its rows."""

    def __init__(self, rows: Callable[[str, int], Iterable[Entry]]) -> None:
        self.read = rows
        self.notes: list[str] = []

    def close(self) -> Iterable[Entry]:
        """Nothing is open between lines."""
        return ()


class Objects:
    """A parser for JSON lines, ``{"step": 3, "name": 0.5, "group": {"name": 0.5}}``: a row per object.

    Parameters
    ----------
    others : callable or None
        Rows of a line that is no JSON object, for frameworks that print them too.
    without : tuple of str
        Names that are no metrics.
    """

    def __init__(
        self, others: Callable[[str, int], Iterable[Entry]] | None = None, *, without: tuple[str, ...] = ()
    ) -> None:
        self._others = others
        self._without = ("step", *without)
        self._lost = 0

    @property
    def notes(self) -> list[str]:
        """What was not used."""
        return [f"{self._lost} lines are no JSON object with a step and were not used"] if self._lost else []

    def read(self, text: str, line: int) -> Iterable[Entry]:
        """The row of a line."""
        if not text.lstrip().startswith("{"):
            return self._others(text, line) if self._others is not None else ()
        found = json_object(text)
        step = None if found is None else whole_or_none(found.get("step"))
        if found is None or step is None:
            self._lost += 1
            return ()
        values = {name: value for name, value in flat_numbers(found).items() if name not in self._without}
        return [Entry(step, values, line)] if values else ()

    def close(self) -> Iterable[Entry]:
        """Nothing is open between lines."""
        return ()


def entry_of(block: Block) -> Entry:
    """The row of a numbered block."""
    return Entry(block.step, block.values, block.line)


def console(
    dialect: Dialect,
    *,
    logs: str,
    parser: Callable[[], Parser],
    needles: Needles,
    mark: tuple[bytes, str],
    section: str = "",
    beside: tuple[str, ...] = HYDRA,
) -> Reader:
    """A reader of console logs or JSON lines.

    Parameters
    ----------
    dialect : Dialect
        What the names mean.
    logs : str
        What is read, for the list of known logs.
    parser : callable
        Makes the parser of one log.
    needles : mapping
        What stands in every line that the parser must see, and what must follow it.
    mark : tuple of (bytes, str)
        A piece of a line by which the framework is known, and the pattern around it.
    section, beside : str, tuple of str
        See `Reader`.
    """
    sign, pattern = mark[0], re.compile(mark[1].encode(), re.MULTILINE)

    def holds(block: bytes) -> bool:
        return sign in block and pattern.search(block) is not None

    def read(sources: Sequence[Source]) -> list[Run]:
        return [run for source in sources for run in read_one(dialect, source, parser(), needles)]

    return Reader(name=dialect.name, logs=logs, read=read, holds=holds, dialect=dialect, section=section, beside=beside)


def read_one(dialect: Dialect, source: Source, parser: Parser, needles: Needles) -> list[Run]:
    """Every run in one log.

    Raises
    ------
    InputError
        For a row or a log with too many metrics, and a configuration that contradicts itself.
    """
    collector = Collector(dialect, source.path)
    names: set[str] = set()

    def add(entries: Iterable[Entry]) -> None:
        for entry in entries:
            check_names(entry.values, names, source, entry.line)
            collector.add(entry)

    for first, block in source.blocks():
        # Few blocks hold an option, and looking for one in every line of a step is slow.
        options = [needle for needle in collector.options.needles if needle in block]
        for line, raw in matching_lines(first, block, {**dict.fromkeys(options), **needles}):
            text = without_colours(raw.decode("utf-8", errors="replace").rstrip("\r"))
            if options:
                collector.configure(text, line)
            add(parser.read(text, line))
    add(parser.close())
    return collector.runs(source, [*source.tail_warnings(), *parser.notes])


def check_names(values: Mapping[str, float], names: set[str], source: Source, line: int) -> None:
    """Refuse rows and logs with more metrics than any framework logs."""
    names.update(values)
    if len(values) > MAX_NAMES or len(names) > MAX_ALL_NAMES:
        what, limit = ("the row", MAX_NAMES) if len(values) > MAX_NAMES else ("the log", MAX_ALL_NAMES)
        raise InputError(
            f"{what} holds more than {limit} metrics",
            remedy="keep only the metrics of training and validation",
            where=source.where(line),
        )
