"""Pieces of lines that several frameworks print: dictionaries of Python, JSON, Ray's prefixes, numbered blocks.

Only data are read, and nothing is evaluated. A dictionary counts if it closes; of its values those that are
numbers count: plain, as ``np.float64(...)``, quoted, or True and False. Whatever else a value is (text of a
model, a list, a tensor) is passed over as a whole, so that nothing inside it passes for a metric.

A block belongs to the number in its header only as far as the log runs on: where the next header jumps
ahead or counts to another total, lines are missing between the two, and which step the last lines before
the gap belong to cannot be known. That block is not used.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from batchsim.logs.rows import LARGEST_STEP, number

DEEPEST = 32
"""Levels of nested JSON that become one name."""

# One way only to match a run of digits, so that a million of them take no time.
NUMBER = r"[-+]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|nan|inf|NaN|Infinity)"
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_COLOUR = re.compile(r"\[\d+(?:;\d+)*m")
_RAY = re.compile(r"^\((?P<process>[\w.:-]{1,80} pid=\d+[^)]{0,60})\) ?")
_KEY = re.compile(r"\s*'((?:[^'\\]|\\.){1,300})': ")
_VALUE = re.compile(rf"(?:np\.\w+\(({NUMBER})\)|({NUMBER})|'({NUMBER})'|(?:np\.)?(True|False)_?)\s*(?=[,}}])")
# Most dictionaries hold plain numbers only, and two passes of the machine's own read them.
_PLAIN = re.compile(rf"(?:'[^'\\]{{1,300}}': {NUMBER}, )*+'[^'\\]{{1,300}}': {NUMBER}(?=\}})")
_PLAIN_PAIR = re.compile(rf"'([^'\\]{{1,300}})': ({NUMBER})")
_STOPS = re.compile(r"""['"\[\](){},]""")
_QUOTED = {
    "'": re.compile(r"'(?:[^'\\]|\\.)*'"),
    '"': re.compile(r'"(?:[^"\\]|\\.)*"'),
}
_CLOSES = {"[": "]", "(": ")", "{": "}"}


def without_colours(line: str) -> str:
    """A line without terminal codes, whether their escape byte survived or not."""
    if "\x1b" in line:
        line = _ESCAPE.sub("", line)
    return _COLOUR.sub("", line) if "[" in line else line


def without_ray(line: str) -> tuple[str, str]:
    """Ray's name of the process that wrote a line, '' without one, and the rest of the line."""
    if line.startswith("(") and (match := _RAY.match(line)):
        return match["process"], line[match.end() :]
    return "", line


def step_number(text: str) -> int | None:
    """A step number from digits, None for one that is too large."""
    return int(text) if len(text) <= len(str(LARGEST_STEP)) and int(text) <= LARGEST_STEP else None


def printed_dict(text: str, at: int) -> dict[str, float] | None:
    """Numbers of the Python dictionary that begins at ``text[at]``; None if it does not close."""
    if text[at : at + 1] != "{":
        return None
    at += 1
    if match := _PLAIN.match(text, at):
        return {key: number(value) for key, value in _PLAIN_PAIR.findall(text, at, match.end())}
    found: dict[str, float] = {}
    while match := _KEY.match(text, at):
        at = match.end()
        if value := _VALUE.match(text, at):
            truth = value[4]
            found[match[1]] = float(truth == "True") if truth else number(value[1] or value[2] or value[3])
            at = value.end()
        else:
            at = _behind(text, at)
        if text[at : at + 1] != ",":
            break
        at += 1
    return found if text[at : at + 1] == "}" else None


def _behind(text: str, at: int) -> int:
    """Where a value that is no number ends: at the comma or brace of its dictionary."""
    closing: list[str] = []
    while match := _STOPS.search(text, at):
        mark, at = match[0], match.start()
        if mark in _QUOTED:
            quoted = _QUOTED[mark].match(text, at)
            if quoted is None:
                break
            at = quoted.end()
            continue
        if not closing and mark in ",}":
            return at
        if mark in _CLOSES:
            closing.append(_CLOSES[mark])
        elif mark != "," and (not closing or closing.pop() != mark):
            break
        at += 1
    return len(text)


def json_object(text: str) -> dict[str, Any] | None:
    """The JSON object that a text is, None for anything else."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def flat_numbers(values: Mapping[str, object], *, prefix: str = "", depth: int = DEEPEST) -> dict[str, float]:
    """Numbers of a nested mapping, their keys joined by slashes; null is NaN, text is not used."""
    found: dict[str, float] = {}
    for key, value in values.items():
        name = f"{prefix}/{key}" if prefix else key
        if isinstance(value, Mapping):
            if depth > 0:
                found |= flat_numbers(value, prefix=name, depth=depth - 1)
        elif value is None:
            found[name] = math.nan
        elif isinstance(value, int | float):
            found[name] = float(value) if isinstance(value, bool) else number(value)
    return found


@dataclass
class Block:
    """One numbered block: its step, the total that its header counts to, and its metrics."""

    step: int
    total: int
    line: int
    process: str = ""
    values: dict[str, float] = field(default_factory=dict)
    whole: bool = False
    broken: bool = False

    def put(self, name: str, value: float) -> None:
        """Add a metric; a name that comes twice means that two blocks run into each other."""
        self.broken |= name in self.values
        self.values[name] = value


class Blocks:
    """Numbered blocks in the order of a log, each handed out once the next header confirms it."""

    def __init__(self) -> None:
        self.open: Block | None = None
        self._unsure = 0
        self._first_unsure = 0

    @property
    def notes(self) -> list[str]:
        """What was not used."""
        if not self._unsure:
            return []
        return [
            f"{self._unsure} blocks are incomplete, or the log has a gap behind them, and were not used; "
            f"the first begins at line {self._first_unsure}"
        ]

    def header(self, block: Block) -> Iterator[Block]:
        """Open a block; the one before it, if it is whole and this one follows it or starts again."""
        before, self.open = self.open, block
        if before is None:
            return
        follows = block.step == before.step + 1 and block.total == before.total
        if before.whole and not before.broken and (follows or block.step <= before.step):
            yield before
        else:
            self._reject(before)

    def last(self) -> Iterator[Block]:
        """The block that no header follows, if it is whole."""
        before, self.open = self.open, None
        if before is None:
            return
        if before.whole and not before.broken:
            yield before
        elif before.values:
            self._reject(before)

    def _reject(self, block: Block) -> None:
        self._unsure += 1
        self._first_unsure = self._first_unsure or block.line
