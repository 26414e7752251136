"""verl's logs: console lines ``step:12 - actor/grad_norm:0.31 - ...``, and the file logger's JSON lines.

One line per rollout step, behind an optional Ray prefix and colour codes; progress bars and other
processes' text may stand before it or be glued to its end. `lines` finds the values, `settings` reads
the configuration, `columns` knows what each key means.

Facts that matter:

- The number of responses is not logged. The configuration (the command line or the printed
  dictionary, both read, or a file) states it; else total tokens / mean length gives the rollout batch.
- `actor/grad_norm` is before clipping and the mean over the mini-batches of the step.
- Old versions print three decimals, so that a learning rate of 1e-6 reads 0.000: zeros are unknown.
- ``step:0`` with validation keys only is the evaluation before training. In 2024 the first training
  step was number 0, since then it is 1.
- A step number that comes again is a restart from a checkpoint: the last one counts. A restart from
  the first step is a new run.
  One that states another recipe is neither: its rows cannot be joined to those before, and it is refused.
- The configuration is printed before the steps that it governs. Its dictionary is read for 1 MiB or up
  to the next step line; elsewhere only lines with a step or an option are looked at, one in ten.
- The console prints the sizes of the training and then of the validation set (``dataset len:``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from batchsim.errors import InputError
from batchsim.logs.parts import without_colours
from batchsim.logs.reader import MAX_NAMES, Reader
from batchsim.logs.record import Evaluations, Run
from batchsim.logs.source import Source, matching_lines
from batchsim.logs.stated import is_open
from batchsim.logs.verl.columns import batch_from_tokens, columns_of
from batchsim.logs.verl.lines import (
    SCORE_PREFIXES,
    Layout,
    Layouts,
    PackedRows,
    Row,
    console_rows,
    file_row,
)
from batchsim.logs.verl.settings import (
    DICT_START,
    OPTION_NEEDLES,
    RECIPE_KEYS,
    RULES,
    PrintedConfig,
    options,
    same,
    settings,
)

SECTION = "actor_rollout_ref"
_DICT_BYTES = 2**20
_DICT_NEEDLE = DICT_START.encode()
_STEP_NEEDLE: dict[bytes, re.Pattern[bytes] | None] = {b"step:": re.compile(rb"\d+ - ")}
_NEEDLES = {**_STEP_NEEDLE, b"dataset len: ": None, **OPTION_NEEDLES}
_SIZE = re.compile(r"(filter )?dataset len: (\d{1,12})")
_EVALUATED = {
    "score": "val-core/*, val/*, test_score/* [1], of the whole evaluation",
    "evaluation_seconds": "timing_s/testing [s], of the step",
}


@dataclass
class _Segment:
    """One run within a file."""

    rows: PackedRows
    config: dict[str, str] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    scores: dict[int, dict[str, float]] = field(default_factory=dict)
    initial: dict[str, float] = field(default_factory=dict)
    layouts: Counter[Layout] = field(default_factory=Counter)


def is_file_log(head: str) -> bool:
    """Whether a text begins with a line of the file logger."""
    first = next((line for line in head.splitlines() if line.strip()), "")
    return first.lstrip().startswith("{") and file_row(first, Layouts()) is not None


def holds_step(block: bytes) -> bool:
    """Whether a line of a block is a console line with at least one value."""
    if b"step:" not in block:
        return False
    lines = (line for _, line in matching_lines(1, block, _STEP_NEEDLE))
    return any(console_rows(_text(line), Layouts()) for line in lines)


def read(source: Source) -> list[Run]:
    """Every run in one log of verl.

    Parameters
    ----------
    source : Source
        A console log or the file logger's lines.

    Raises
    ------
    InputError
        Where the log and `source.config` contradict each other.
    """
    reader = _Reader(source.path)
    if is_file_log(source.head):
        reader.read_file(source)
    else:
        reader.read_console(source)
    warnings = [*source.tail_warnings(), *reader.warnings, *reader.layouts.warnings()]
    if len(reader.segments) > 1:
        warnings.append(f"the file holds {len(reader.segments)} runs: training starts again at its first step")
    return [_run(source, segment, warnings) for segment in reader.segments]


def run_of_rows(
    source: Source, rows: Iterable[tuple[int, Mapping[str, float]]], logged: Mapping[str, str], warnings: Iterable[str]
) -> Run:
    """The run behind rows that something else kept of verl's metrics.

    Parameters
    ----------
    source : Source
        File, for name and messages.
    rows : iterable of (step, mapping)
        verl's values by name, steps increasing.
    logged : mapping
        verl's configuration, dotted key -> value, as far as it was kept.
    warnings : iterable of str
        What was said so far.
    """
    reader = _Reader(source.path)
    reader.pending.update(logged)
    for step, values in rows:
        reader.add(step, reader.layouts.row(tuple(values), list(values.values())), where=f"step {step}")
    return _run(source, reader.segments[-1], [*warnings])


def _text(line: bytes) -> str:
    return without_colours(line.removesuffix(b"\r").decode("utf-8", errors="replace"))


class _Reader:
    """What one pass through a log collects."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.layouts = Layouts()
        self.segments = [_Segment(PackedRows(self.layouts))]
        self.warnings: list[str] = []
        self.pending: dict[str, str] = {}
        self.stated_at: dict[str, str] = {}
        self.sizes: list[int] = []
        self.printed = PrintedConfig()
        self.printed_bytes = 0

    def read_console(self, source: Source) -> None:
        """Go through a console log."""
        for first, block in source.blocks():
            if _DICT_NEEDLE in block:
                self.printed_bytes = _DICT_BYTES
            for number, line in self._candidates(first, block):
                self._console_line(_text(line), f"line {number}")
            self.printed_bytes -= len(block)

    def read_file(self, source: Source) -> None:
        """Go through the file logger's lines."""
        unreadable = 0
        for number, line in enumerate(source.lines, start=1):
            entry = file_row(line, self.layouts)
            if entry is not None:
                self.add(*entry, where=f"line {number}")
            elif line.strip():
                unreadable += 1
        if unreadable:
            self.warnings.append(f"{unreadable} lines are not {{step, data}} and were not used")

    def _candidates(self, first: int, block: bytes) -> Iterator[tuple[int, bytes]]:
        if self.printed_bytes > 0:
            return enumerate(block[:-1].split(b"\n"), start=first)
        return matching_lines(first, block, _NEEDLES)

    def _console_line(self, line: str, where: str) -> None:
        if "step:" in line:
            for step, row in console_rows(line, self.layouts):
                self.add(step, row, where=where)
                self.printed_bytes = 0
                self.printed.close()
        self._configure(options(line), where)
        if self.printed_bytes > 0 and "'" in line:
            self._configure(self.printed.read(line), where)
        if "dataset len: " in line and (match := _SIZE.search(line)):
            # The filtered size replaces the one printed before it.
            self.sizes[len(self.sizes) - bool(match[1]) :] = [int(match[2])]

    def _configure(self, values: Mapping[str, str], where: str) -> None:
        self.pending.update(values)
        self.stated_at.update(dict.fromkeys(values, where))

    def _check_recipe(self, segment: _Segment, where: str) -> None:
        """Refuse a configuration that would change the recipe of steps that stay."""
        for key in RECIPE_KEYS:
            old, new = segment.config.get(key, ""), self.pending.get(key, "")
            if is_open(old) or is_open(new) or same(key, old, new):
                continue
            first, last = next(iter(segment.rows.rows)), next(reversed(segment.rows.rows))
            line = self.stated_at.get(key, where).removeprefix("line ")
            raise InputError(
                f"{key} changes from {old} to {new}, and the steps from {first} to {last} before it stay in the run",
                remedy="split the log there and read its parts apart",
                where=f"{self.path}:{line}" if line.isdigit() else self.path,
            )

    def _segment_of(self, step: int, train: Mapping[str, float], where: str) -> _Segment:
        """The run that a line belongs to: the current one, or a new one if training starts again."""
        current = self.segments[-1]
        rows = current.rows.rows
        evaluated_first = not train and step == 0 and len(rows) > 1
        if evaluated_first or current.rows.begins_again(step, train, first=1):
            current = _Segment(PackedRows(self.layouts), config=dict(current.config))
            self.segments.append(current)
        # Configuration comes before the steps it governs, also of a second run in the same file.
        if self.pending:
            earliest = next(iter(current.rows.rows), None)
            if earliest is not None and (earliest < step if train else earliest <= step):
                self._check_recipe(current, where)
            current.config.update(self.pending)
            self.pending.clear()
        if self.sizes:
            current.sizes, self.sizes = self.sizes, []
        return current

    def add(self, step: int, row: Row, *, where: str) -> None:
        """Add a step line to the run that it belongs to."""
        layout = row.layout
        if len(layout.keys) > MAX_NAMES:
            raise InputError(
                f"{where}: the row holds more than {MAX_NAMES} metrics",
                remedy="keep only the metrics of training and validation",
                where=self.path,
            )
        train = self.layouts.training(row)
        segment = self._segment_of(step, {} if layout.validation_only else train, where)
        segment.layouts[layout] += 1
        scores = {name: row.numbers[place] for name, place in layout.scores.items()}
        rows = segment.rows
        if layout.validation_only and step == 0 and not rows.rows:
            segment.initial = scores
            return
        if not layout.validation_only:
            gone = [dropped for dropped in rows.add(step, train, where=where) if segment.scores.pop(dropped, None)]
            if gone:
                steps = f"step {gone[0]}" if len(gone) == 1 else f"steps {gone[0]} to {gone[-1]} ({len(gone)} of them)"
                rows.tell(f"{where}: the evaluation at the dropped {steps} went with it")
        elif step in rows.rows:
            rows.rows[step] = rows.joined(rows.rows[step], train)
        if scores:
            segment.scores.setdefault(step, {}).update(scores)


def _run(source: Source, segment: _Segment, warnings: list[str]) -> Run:
    rows = segment.rows
    base = -1 if 0 in rows.rows else 0
    scores = dict(segment.scores)
    if segment.initial:
        scores = {base: segment.initial, **scores}
    notes = [*warnings, *rows.warnings]
    settled = settings(segment.config, source.config, where=source.path)
    columns = columns_of(rows, settled, base=base, notes=notes)
    notes += settled.notes
    evaluations = _evaluations(scores, rows, notes)
    inferred = batch_from_tokens(rows)
    counted = {} if inferred is None else {"inferred_rollout_batch": inferred}
    sizes = _evaluation_sizes(segment.sizes, evaluations)
    names = dict.fromkeys(sizes, "dataset len [1], the second that is printed")
    return Run(
        name=source.name,
        framework="verl",
        path=source.path,
        step=rows.step,
        columns=columns.values,
        evaluations=evaluations,
        stated=settled.stated,
        facts={
            **settled.facts,
            **sizes,
            **counted,
            "grad_norm_reduction": "mean",
            "unused": _unused(segment, evaluations),
        },
        provenance=columns.provenance | settled.names | names | (_EVALUATED if scores else {}),
        warnings=notes,
        inferred_rollout_batch=inferred,
        base=base,
        batch_hint=", and neither a command line nor a printed configuration is in the log",
        norm_reduction="mean over the updates of the step",
        rules=RULES,
    )


def _evaluations(scores: Mapping[int, Mapping[str, float]], rows: PackedRows, notes: list[str]) -> Evaluations:
    names = dict.fromkeys(key for row in scores.values() for key in row if not key.endswith("/std"))
    main = [name for name in names if name.startswith(SCORE_PREFIXES)]
    if names and not main:
        notes.append("only val-aux/ scores are logged; they are used")
    order = sorted(scores)
    nan = float("nan")
    testing = dict(zip(rows.rows, rows.column("timing_s/testing").tolist(), strict=True))
    return Evaluations(
        step=np.array(order, dtype=float),
        seconds=np.array([testing.get(step, nan) for step in order], dtype=float),
        scores={name: np.array([scores[step].get(name, nan) for step in order], dtype=float) for name in main or names},
    )


def _evaluation_sizes(sizes: list[int], evaluations: Evaluations) -> dict[str, object]:
    """Size of the validation set; of each score's only if they all come from one data source."""
    if len(sizes) != 2 or not evaluations.scores:
        return {}
    one_source = len({_data_source(name) for name in evaluations.scores}) == 1
    return {"eval_samples_total": sizes[1], **({"eval_samples": sizes[1]} if one_source else {})}


def _data_source(name: str) -> str:
    for prefix in ("val/test_score/", "test_score/"):
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    # val-core/openai/gsm8k/reward/mean@1: the data source may hold slashes.
    return name.partition("/")[2].rsplit("/", 2)[0]


def _unused(segment: _Segment, evaluations: Evaluations) -> dict[str, int]:
    """Keys of the step lines that no quantity uses, and the number of lines that have them."""
    counts: Counter[str] = Counter()
    for layout, lines in segment.layouts.items():
        for key, name in zip(layout.keys, layout.names, strict=True):
            if name not in segment.rows.used and name not in evaluations.scores:
                counts[key] += lines
    return dict(counts)


READER = Reader(
    name="verl",
    logs="verl console logs and JSON lines",
    read=lambda sources: [run for source in sources for run in read(source)],
    begins=lambda source: not source.binary and is_file_log(source.head),
    holds=holds_step,
    section=SECTION,
)
