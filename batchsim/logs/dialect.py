"""What a framework calls its metrics and settings, and the run that follows from its rows.

A reader of one framework is two things: a `Dialect`, which says what the names mean, and a parser, which
finds numbered rows of names and values in the text (`reader`). The same dialect reads what a tracker kept
of the framework's metrics. Everything else is decided here, once for all:

- A metric is the first of some keys that a row holds, or their sum, less others, times a factor.
- A row is a rollout step. Rows of one step that hold different names are parts of one row; a step that
  comes again is a restart, and training that begins again is another run (`rows`).
- Scores are kept apart from rows, at the step after which they were measured: that of their line, or the
  one before where the framework evaluates before it trains.
- The step time leaves out evaluation and checkpoint (`core_time`).
- Configuration comes before the steps it governs. One that changes the recipe of steps that stay in the
  run is an error.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from batchsim.errors import InputError
from batchsim.logs.core_time import core_seconds
from batchsim.logs.recipe import COUNTS, Rules
from batchsim.logs.record import PHASES, Evaluations, Run
from batchsim.logs.rows import Steps
from batchsim.logs.source import Source
from batchsim.logs.stated import Options, is_open, merged, model_name, same_value
from batchsim.logs.timeline import Array

if TYPE_CHECKING:
    from batchsim.logs.keys import Keys

_RECIPE = (*COUNTS, "mini_prompts", "learning_rate")
_TEXT_FACTS = frozenset(("model", "rollout_mode", "advantage"))


@dataclass(frozen=True, kw_only=True)
class Metric:
    """How one of our columns follows from a row.

    Attributes
    ----------
    keys : tuple of str
        The framework's names; the first that a row holds counts, or all where `add` is set.
    scope : str
        Unit and scope, for the provenance.
    add : bool
        Whether the keys are parts of a sum.
    less : tuple of str
        Names that are subtracted; without them the value is unknown.
    factor : float
        From the framework's unit to ours.
    zero_unknown : bool
        Whether 0 is a number that was rounded away.
    """

    keys: tuple[str, ...]
    scope: str = ""
    add: bool = False
    less: tuple[str, ...] = ()
    factor: float = 1.0
    zero_unknown: bool = False

    def column(self, rows: Steps) -> Array:
        """The column, NaN where a row lacks it."""
        values = np.array([rows.column(key) for key in self.keys])
        if self.add:
            result = total(values)
        else:
            result = values[0]
            for other in values[1:]:
                result = np.where(np.isnan(result), other, result)
        for key in self.less:
            result = result - rows.column(key)
        return np.where(result == 0, np.nan, result) if self.zero_unknown else result * self.factor

    @property
    def source(self) -> str:
        """Where the column comes from."""
        text = (" + " if self.add else " or ").join(self.keys) + "".join(f" - {key}" for key in self.less)
        return text + self.scope


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that a step time may include but ours leaves out.

    Attributes
    ----------
    name : str
        For the notes.
    keys : tuple of str
        Metrics that hold its seconds [s]; the first that a row holds counts.
    included : bool
        Whether the framework's timer includes it where the log does not tell.
    """

    name: str
    keys: tuple[str, ...]
    included: bool


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """Names of one framework, and their meaning.

    Attributes
    ----------
    name, title : str
        As `read_logs` calls it, and for sentences.
    columns : mapping
        Our column -> `Metric`.
    score : callable
        Whether a metric is a validation score.
    keys : mapping
        Configuration key -> our name: recipe values, ``mini_prompts``, or a fact.
    filed : mapping
        Keys that count in a configuration file only, as other text has such words too.
    marks : frozenset of str
        Metrics that only this framework logs, for rows that a tracker kept.
    rules : Rules
        What the framework says about its recipe.
    always : mapping
        Our recipe name -> value that the framework fixes.
    logged : mapping
        Metric -> our recipe name, where every row states the same and no configuration does.
    caveat : str
        What the framework's numbers cannot tell, as a warning.
    norms : str
        How a row's gradient norms come from those of its updates.
    first : int
        Number of its first training step; a log that trains in step 0 counts from there.
    evaluated_before : bool
        Whether the scores of a row were measured before that row's training.
    events : tuple of Event
        Evaluation and checkpoint, as far as they are timed.
    evaluation : tuple of str
        Metrics that hold the seconds of an evaluation [s].
    samples : tuple of str
        Metrics that count the prompts or responses of an evaluation.
    validation : tuple of str
        What the names of metrics of an evaluation begin with; alone they are no row of training.
    counted : tuple of str
        Metrics that count the kept responses of a step.
    prefixes : tuple of str
        What trackers put in front of the names.
    axis : str
        Metric in which the framework tells trackers its step; '' for none.
    counts_calls : bool
        Whether a tracker's own step counts calls, so that rows cannot be placed without `axis`.
    prepare : callable or None
        Changes the rows before they are columns; receives them and the notes.
    advice : mapping
        Quantity -> setting that makes the framework log it.
    paste : Keys or None
        Keys of a candidate to run.
    """

    name: str
    title: str
    columns: Mapping[str, Metric]
    score: Callable[[str], bool]
    keys: Mapping[str, str]
    filed: Mapping[str, str] = field(default_factory=dict)
    marks: frozenset[str] = frozenset()
    rules: Rules = field(default_factory=Rules)
    always: Mapping[str, float] = field(default_factory=dict)
    logged: Mapping[str, str] = field(default_factory=dict)
    caveat: str = ""
    norms: str = ""
    first: int = 1
    evaluated_before: bool = False
    events: tuple[Event, ...] = ()
    evaluation: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()
    validation: tuple[str, ...] = ()
    counted: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    axis: str = ""
    counts_calls: bool = False
    prepare: Callable[[Steps, list[str]], None] | None = None
    advice: Mapping[str, str] = field(default_factory=dict)
    paste: Keys | None = None

    def own_name(self, name: str) -> str:
        """A tracker's name without what the tracker put in front."""
        for prefix in self.prefixes:
            if name.startswith(prefix):
                return name.removeprefix(prefix)
        return name


@dataclass(frozen=True, slots=True)
class Entry:
    """Metrics of one step as one place of a log states them."""

    step: int
    values: dict[str, float]
    line: int


@dataclass
class _Segment:
    """One run within a file."""

    rows: Steps = field(default_factory=Steps)
    scores: dict[int, dict[str, float]] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    names: Counter[str] = field(default_factory=Counter)


class Collector:
    """What one pass through a log collects: its runs, and the configuration of each."""

    def __init__(self, dialect: Dialect, path: str) -> None:
        self.dialect = dialect
        self.path = path
        self.options = Options(dialect.keys)
        self.segments = [_Segment()]
        self._pending: dict[str, str] = {}
        self._stated_at: dict[str, int] = {}
        self._apart = frozenset((*dialect.evaluation, *dialect.samples))

    def configure(self, line: str, number: int) -> None:
        """Take the options of a line."""
        found = self.options.read(line)
        self._pending |= found
        self._stated_at |= dict.fromkeys(found, number)

    def add(self, entry: Entry) -> None:
        """Add the metrics of a step to the run that they belong to."""
        dialect = self.dialect
        scores = {name: value for name, value in entry.values.items() if dialect.score(name)}
        train = {name: value for name, value in entry.values.items() if name not in scores}
        trains = any(name not in self._apart and not name.startswith(dialect.validation) for name in train)
        place = entry.step - dialect.evaluated_before
        segment = self._segment_of(entry.step, place, train if trains else {}, entry.line)
        segment.names.update(entry.values.keys())
        if trains:
            for dropped in segment.rows.add(entry.step, train, where=f"line {entry.line}"):
                segment.scores.pop(dropped - dialect.evaluated_before, None)
        apart = {name: value for name, value in train.items() if name in self._apart}
        if scores or (apart and not trains):
            segment.scores.setdefault(place, {}).update(scores | apart)

    def _segment_of(self, step: int, place: int, train: Mapping[str, float], line: int) -> _Segment:
        current = self.segments[-1]
        if current.rows.begins_again(step, train, first=self.dialect.first) or (
            not train and place < self.dialect.first and place in current.scores and len(current.rows.rows) > 1
        ):
            current = _Segment(config=dict(current.config))
            self.segments.append(current)
        if self._pending:
            earliest = next(iter(current.rows.rows), None)
            if earliest is not None and earliest < step:
                self._check_recipe(current, line)
            current.config |= self._pending
            self._pending.clear()
        return current

    def _check_recipe(self, segment: _Segment, line: int) -> None:
        """Refuse a configuration that would change the recipe of steps that stay."""
        for key, new in self._pending.items():
            name, old = self.dialect.keys[key], segment.config.get(key, "")
            if name not in _RECIPE or is_open(old) or is_open(new) or same_value(name, old, new):
                continue
            first, last = next(iter(segment.rows.rows)), next(reversed(segment.rows.rows))
            raise InputError(
                f"{key} changes from {old} to {new}, and the steps from {first} to {last} before it stay in the run",
                remedy="split the log there and read its parts apart",
                where=f"{self.path}:{self._stated_at.get(key, line)}",
            )

    def runs(self, source: Source, warnings: Iterable[str]) -> list[Run]:
        """The runs of a file."""
        notes = list(warnings)
        if self._pending and not self.segments[-1].rows.rows:
            self.segments[-1].config |= self._pending
        if len(self.segments) > 1:
            notes.append(f"the file holds {len(self.segments)} runs: training starts again at its first step")
        return [_run(self.dialect, source, segment, notes) for segment in self.segments]


def run_of_rows(
    dialect: Dialect,
    source: Source,
    rows: Iterable[tuple[int, Mapping[str, float]]],
    logged: Mapping[str, str],
    warnings: Iterable[str],
) -> Run:
    """The run behind rows that something else kept of a framework's metrics.

    Parameters
    ----------
    dialect : Dialect
        Whose names they are.
    source : Source
        File, for name and messages.
    rows : iterable of (step, mapping)
        Values by name, steps increasing.
    logged : mapping
        Configuration by key, as far as it was kept.
    warnings : iterable of str
        What was said so far.
    """
    collector = Collector(dialect, source.path)
    collector.segments[-1].config.update({key: value for key, value in logged.items() if key in dialect.keys})
    for step, values in rows:
        own = {dialect.own_name(name): value for name, value in values.items()}
        collector.add(Entry(step, own, step))
    return _run(dialect, source, collector.segments[-1], list(warnings))


def total(values: Array) -> Array:
    """Sum of the parts that a row has; NaN where it has none."""
    return np.where(np.isnan(values).all(axis=0), np.nan, np.nansum(values, axis=0))


def _run(dialect: Dialect, source: Source, segment: _Segment, warnings: list[str]) -> Run:
    rows, notes = segment.rows, [*warnings, *segment.rows.warnings]
    keys = {**dialect.keys, **dialect.filed}
    found = merged(keys, segment.config, source.config, where=source.path, synonyms=True)
    if dialect.prepare is not None:
        dialect.prepare(rows, notes)
    columns, provenance = _columns(dialect, rows, notes)
    evaluations, sizes, evaluated = _evaluations(dialect, segment)
    numbers, names = found.numbers, dict(found.names)
    _complete(dialect, rows, numbers, names, notes)
    if "mini_prompts" in numbers:
        by_epochs = f" x {names['epochs']}" if "epochs" in names else ""
        names["updates_per_rollout"] = f"{names.get('prompts', 'prompts')}{by_epochs} / {names['mini_prompts']}"
    inferred = _counted(dialect, rows)
    facts: dict[str, object] = {
        "model": model_name(found.texts.get("model", "")),
        **{name: _tidy(value) for name, value in numbers.items() if name not in (*_RECIPE, *_TEXT_FACTS)},
        **{name: found.texts[name] for name in _TEXT_FACTS - {"model"} if name in found.texts},
        **sizes,
        **({} if inferred is None else {"inferred_rollout_batch": inferred}),
        **({"grad_norm_reduction": dialect.norms.split(" ")[0]} if dialect.norms else {}),
        "unused": _unused(dialect, segment),
    }
    told = facts.keys() | numbers.keys() | {"updates_per_rollout"}
    return Run(
        name=source.name,
        framework=dialect.name,
        path=source.path,
        step=rows.step,
        columns=columns,
        evaluations=evaluations,
        stated={name: value for name, value in numbers.items() if name in _RECIPE},
        facts=facts,
        provenance=provenance | {name: text for name, text in names.items() if name in told} | evaluated,
        warnings=notes,
        inferred_rollout_batch=inferred,
        base=min(dialect.first, next(iter(rows.rows), dialect.first)) - 1,
        from_zero=dialect.first == 0,
        batch_hint=f", and neither the log nor a file beside it states a configuration of {dialect.title}",
        norm_reduction=dialect.norms,
        rules=dialect.rules,
    )


def _complete(
    dialect: Dialect, rows: Steps, numbers: dict[str, float], names: dict[str, str], notes: list[str]
) -> None:
    """Recipe values that the framework fixes, and those that its rows state, in place."""
    if dialect.caveat:
        notes.append(dialect.caveat)
    for name, value in dialect.always.items():
        numbers[name], names[name] = value, f"{dialect.title}'s rule"
    splits = {"train_batch", "mini_prompts", "updates_per_rollout"}
    stated = numbers.keys() & splits
    for metric, name in dialect.logged.items():
        values = rows.column(metric)
        known = set(values[np.isfinite(values)].tolist())
        if name in numbers or (stated and name in splits) or not known:
            continue
        if len(known) > 1:
            notes.append(f"{metric} changes along the run ({min(known):g} to {max(known):g}); it settles nothing")
        else:
            numbers[name], names[name] = known.pop(), f"{metric}, in every row"


def _counted(dialect: Dialect, rows: Steps) -> float | None:
    """Responses per rollout step as the rows count them."""
    if not dialect.counted:
        return None
    values = Metric(keys=dialect.counted).column(rows)
    values = values[np.isfinite(values) & (values > 0)]
    return float(np.median(values)) if len(values) else None


def _columns(dialect: Dialect, rows: Steps, notes: list[str]) -> tuple[dict[str, Array], dict[str, str]]:
    columns = {name: metric.column(rows) for name, metric in dialect.columns.items()}
    provenance = {name: metric.source for name, metric in dialect.columns.items()}
    events = {event.name: Metric(keys=event.keys).column(rows) for event in dialect.events}
    for metric in dialect.columns.values():
        zeros = int((Metric(keys=metric.keys).column(rows) == 0).sum()) if metric.zero_unknown else 0
        if zeros:
            notes.append(f"{metric.keys[0]} is printed as 0 in {zeros} steps (rounded away); unknown there")
    if "step_seconds" in columns and events:
        parts = [columns[name] for name in (*PHASES, "other_seconds") if name in columns]
        phases = np.nan_to_num(total(np.array(parts))) if parts else np.zeros(len(rows.rows))
        timer = dialect.columns["step_seconds"].keys[0]
        known = tuple(int(event.included) for event in dialect.events)
        columns["step_seconds"] = core_seconds(
            columns["step_seconds"], phases, events, known=known, timer=timer, notes=notes
        )
        listed = " and ".join(events)
        provenance["step_seconds"] += f", less {listed} where it includes them"
    # The rest of the step is a phase of its own only where no timer covers the whole step.
    if "step_seconds" in columns:
        columns.pop("other_seconds", None)
    held = {name for name, values in columns.items() if np.isfinite(values).any()}
    return columns, {name: text for name, text in provenance.items() if name in held}


def _evaluations(dialect: Dialect, segment: _Segment) -> tuple[Evaluations, dict[str, object], dict[str, str]]:
    """Evaluations in order, facts about them, and their provenance."""
    scored = {place: row for place, row in sorted(segment.scores.items()) if any(dialect.score(name) for name in row)}
    names = dict.fromkeys(name for row in scored.values() for name in row if dialect.score(name))
    if not names:
        return Evaluations(), {}, {}

    def first_of(keys: tuple[str, ...]) -> list[float]:
        return [next((row[key] for key in keys if key in row), math.nan) for row in scored.values()]

    seconds = first_of(dialect.evaluation)
    evaluations = Evaluations(
        step=np.array(list(scored), dtype=float),
        seconds=np.array(seconds, dtype=float),
        scores={name: np.array([row.get(name, math.nan) for row in scored.values()]) for name in names},
    )
    shown = ", ".join(list(names)[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    provenance = {"score": f"{shown} [1], of the whole evaluation"}
    if np.isfinite(seconds).any():
        provenance["evaluation_seconds"] = " or ".join(dialect.evaluation) + " [s]"
    sizes = {size for size in first_of(dialect.samples) if math.isfinite(size) and size >= 1 and size == int(size)}
    if len(sizes) != 1:
        return evaluations, {}, provenance
    name = "eval_samples" if len(names) == 1 else "eval_samples_total"
    return evaluations, {name: int(sizes.pop())}, provenance | {name: " or ".join(dialect.samples)}


def _unused(dialect: Dialect, segment: _Segment) -> dict[str, int]:
    """Metrics that no quantity uses, and the number of entries that have them."""
    used = {key for metric in dialect.columns.values() for key in (*metric.keys, *metric.less)}
    used |= {key for event in dialect.events for key in event.keys}
    used |= {*dialect.evaluation, *dialect.samples, *dialect.counted, *dialect.logged}
    return {name: count for name, count in segment.names.items() if name not in used and not dialect.score(name)}


def _tidy(value: float) -> int | float:
    return int(value) if value == int(value) else value
