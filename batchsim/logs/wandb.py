"""Weights & Biases exports: a panel's CSV, the table of runs, and a run's history.

- **Panel**: ``"Step","run - metric","run - metric__MIN","run - metric__MAX"``, for every run of the
  panel. Run names may hold " - " themselves, metric names do not: the last one divides. Panels of the
  same runs in one call are joined.
- **Runs table**: a row per run with Name, State, Runtime, configuration and last values. Beside a panel
  or a history it supplies the configuration; alone, one row of last values per run.
- **History** (`run.history().to_csv()`): a row per log call, columns in no order, among them `_step`,
  `_runtime` and `_timestamp` [s].

Facts that matter:

- `Step` and `_step` count log calls. verl sets them to its own step; the Hugging Face trainer does not
  and sends `train/global_step` instead, so that TRL's rows cannot be placed without it.
- Panels and `run.history()` hold about 500 to 1,500 points unless more is asked for: a longer run has
  gaps, and in a panel the points may be means of what lies between `__MIN` and `__MAX`.
- `_runtime` counts seconds of the process, evaluations and checkpoints included; it is used only where
  the framework logged no step time.
- Metric names are those of the framework that logged: see `metrics`. An export without any of them is
  readable but of no use here, and is refused with what it holds and what it lacks.

Reference: W&B, https://docs.wandb.ai.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from batchsim.errors import InputError
from batchsim.logs.metrics import KNOWN_METRICS, Logged, dialect_named, framework_of, run_of
from batchsim.logs.reader import Reader
from batchsim.logs.record import Run
from batchsim.logs.rows import number, whole_or_none
from batchsim.logs.source import Source
from batchsim.logs.tables import last_row

_AXES = ("train/global_step", "training/global_step", "global_step", "rollout/step", "_step", "Step")
_CALLS = ("_step", "Step")
_BOUNDS = ("__MIN", "__MAX")
_TABLE = frozenset(("Name", "State"))
_TABLE_ONLY = frozenset(("Runtime", "Created", "User", "Tags", "Sweep", "Notes"))
_CLOCKS = ("_runtime", "_timestamp")
_CONFIGURED = ("data.train_batch_size", "actor_rollout_ref.rollout.n", "num_generations")
_SHOWN = 6


def recognises(source: Source) -> bool:
    """Whether the header is that of an export; a folder's exports of other things are passed over."""
    titles = _titles(source)
    shape = _shape(titles)
    if shape is None or source.explicit:
        return shape is not None
    return framework_of(_metrics(shape, titles)) is not None or any(name in titles for name in _CONFIGURED)


def read(sources: Sequence[Source]) -> list[Run]:
    """Every run in the exports, joined by the run's name.

    Raises
    ------
    InputError
        For an export without metrics that batchsim knows, and for TRL's rows without their step.
    """
    found: dict[str, tuple[Source, Logged, str]] = {}
    tables: list[Source] = []
    for source in sources:
        titles = _titles(source)
        source.check_columns(len(titles))
        shape = _shape(titles)
        if shape == "runs table":
            tables.append(source)
        elif shape == "panel":
            for name, logged, axis in _panel(source):
                _join(name, source, logged, axis, found)
        else:
            logged, axis = _history(source)
            _join(source.name, source, logged, axis, found)
    for source in tables:
        _add_table(source, found)
    return [_run(name, *held) for name, held in found.items()]


# -- shapes -------------------------------------------------------------------------------------------


def _titles(source: Source) -> list[str]:
    first = source.lines[0] if source.lines else source.tail
    try:
        return [title.strip() for title in next(csv.reader([first]), [])]
    except csv.Error:
        return []


def _shape(titles: Sequence[str]) -> str | None:
    held = set(titles)
    if "_step" in held and held & set(_CLOCKS):
        return "history"
    if held >= _TABLE and held & _TABLE_ONLY:
        return "runs table"
    named = [title for title in titles[1:] if title]
    return "panel" if titles and titles[0] in _AXES and named and all(" - " in title for title in named) else None


def _metrics(shape: str, titles: Sequence[str]) -> list[str]:
    """Names of metrics in a header, without the export's own columns."""
    if shape == "panel":
        return list(dict.fromkeys(_divided(title)[1] for title in titles[1:] if title))
    own = {*_TABLE, *_TABLE_ONLY, *_CLOCKS, *_AXES}
    return [title for title in titles if title and title not in own]


def _divided(title: str) -> tuple[str, str, str]:
    """Run, metric and bound of a panel's column."""
    run, _, metric = title.rpartition(" - ")
    bound = next((end for end in _BOUNDS if metric.endswith(end)), "")
    return run, metric.removesuffix(bound), bound


def _cells(source: Source) -> Iterator[tuple[int, list[str]]]:
    """Rows below the header with their lines; a row of another length ends the reading."""
    titles = _titles(source)
    lines = itertools.islice(source.lines, 1, None)
    reader = csv.reader(lines)
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise InputError(
                f"not a CSV row ({error})", remedy="export it again", where=source.where(reader.line_num + 1)
            ) from error
        if row is None:
            break
        if not any(map(str.strip, row)):
            continue
        if len(row) != len(titles):
            raise InputError(
                f"the row has {len(row)} cells, the header {len(titles)}",
                remedy="export it again",
                where=source.where(reader.line_num + 1),
            )
        yield reader.line_num + 1, row
    if last := last_row(source, len(titles)):
        yield source.count + 1, last


def _notes(source: Source) -> list[str]:
    whole = last_row(source, len(_titles(source))) is not None
    return list(source.warnings if whole else source.tail_warnings())


def _useless(source: Source, shape: str, names: Sequence[str], runs: int, lacking: Sequence[str]) -> InputError:
    # Metrics are grouped by a slash; a table of runs does not tell them from configuration otherwise.
    names = [name for name in names if "/" in name] or names
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return InputError(
        f"this Weights & Biases {shape} can be read, but it is not a log that batchsim knows: it holds {runs} runs "
        f"with {shown or 'no metric'}, and lacks {', '.join(lacking)} under names that are {KNOWN_METRICS}",
        remedy="export a run of verl or TRL, or name the columns, for instance --column train_reward=NAME",
        where=source.path,
    )


def _lacking(*, clock: bool) -> list[str]:
    needed = ["the batch", "validation scores", "training reward", "gradient norm"]
    return needed if clock else [*needed, "step time"]


# -- panel --------------------------------------------------------------------------------------------


def _panel(source: Source) -> list[tuple[str, Logged, str]]:
    titles = _titles(source)
    columns = [(index, *_divided(title)) for index, title in enumerate(titles) if index and title]
    runs = {run: Logged(warnings=_notes(source)) for _, run, _, _ in columns}
    if framework_of(metric for _, _, metric, _ in columns) is None:
        raise _useless(source, "panel export", _metrics("panel", titles), len(runs), _lacking(clock=False))
    spread = dict.fromkeys(runs, 0)
    skipped = 0
    for _, cells in _cells(source):
        step = whole_or_none(cells[0])
        if step is None:
            skipped += 1
            continue
        bounds: dict[tuple[str, str], list[float]] = {}
        for index, run, metric, bound in columns:
            value = number(cells[index])
            if math.isnan(value):
                continue
            if bound:
                bounds.setdefault((run, metric), []).append(value)
            else:
                runs[run].rows.setdefault(step, {})[metric] = value
        for (run, _), limits in bounds.items():
            spread[run] += len(limits) == 2 and limits[0] != limits[1]
    for run, logged in runs.items():
        if spread[run]:
            logged.warnings.append(f"{spread[run]} points are means over several steps (their __MIN and __MAX differ)")
        if skipped:
            logged.warnings.append(f"{skipped} rows have no whole step and were not used")
    return [(run, logged, titles[0]) for run, logged in runs.items() if logged.rows]


# -- history ------------------------------------------------------------------------------------------


def _history(source: Source) -> tuple[Logged, str]:
    titles = _titles(source)
    names = _metrics("history", titles)
    if framework_of(names) is None:
        raise _useless(source, "history export", names, 1, _lacking(clock=True))
    dialect = dialect_named(framework_of(names))
    preferred = (dialect.axis,) if dialect is not None and dialect.axis else ()
    axis = next(name for name in (*preferred, *_AXES) if name in titles)
    clock = next(name for name in _CLOCKS if name in titles)
    logged = Logged(clock_source=f"W&B's {clock}", warnings=_notes(source))
    skipped = 0
    # verl sets W&B's own step to its step, and its evaluation before training has no other.
    calls = "_step" if framework_of(names) == "verl" and "_step" in titles else axis
    for _, cells in _cells(source):
        row = dict(zip(titles, cells, strict=True))
        values = {name: value for name in names if not math.isnan(value := number(row[name]))}
        step = whole_or_none(row[axis])
        if step is None and values:
            step = whole_or_none(row[calls])
        if step is None:
            skipped += bool(values)
            continue
        logged.rows.setdefault(step, {}).update(values)
        if math.isfinite(seconds := number(row[clock])):
            logged.clock.append((step, seconds))
    if skipped:
        logged.warnings.append(f"{skipped} rows have no {axis} and were not used")
    return logged, axis


# -- runs table ---------------------------------------------------------------------------------------


def _add_table(source: Source, found: dict[str, tuple[Source, Logged, str]]) -> None:
    """Configuration for the runs found so far, or a row of last values where there are none."""
    titles = _titles(source)
    names = _metrics("runs table", titles)
    rows = [dict(zip(titles, cells, strict=True)) for _, cells in _cells(source)]
    alone = not found
    axis = next((name for name in _AXES if name in titles), None)
    if alone and (framework_of(names) is None or axis is None):
        lacking = _lacking(clock=False) if framework_of(names) is None else ["a step (train/global_step or _step)"]
        raise _useless(source, "table of runs", names, len(rows), lacking)
    for row in rows:
        name = row["Name"] or source.name
        arguments = {key.removesuffix(".value"): value for key, value in row.items() if value not in ("", "null")}
        if not alone:
            if name in found:
                found[name][1].arguments.update(arguments)
            continue
        step = whole_or_none(row[axis]) if axis else None
        values = {key: value for key in names if not math.isnan(value := number(row[key]))}
        if step is None or axis is None or framework_of(values) is None:
            continue
        logged = Logged(rows={step: values}, arguments=arguments, warnings=_notes(source))
        logged.warnings.append("a table of runs holds last values only: no curve, and no time")
        _join(name, source, logged, axis, found)
    if not found:
        raise _useless(source, "table of runs", names, len(rows), ["last values of any run"])


# -- both ---------------------------------------------------------------------------------------------


def _join(name: str, source: Source, logged: Logged, axis: str, found: dict[str, tuple[Source, Logged, str]]) -> None:
    """Add what one export holds of a run to what others do."""
    if name not in found:
        found[name] = (source, logged, axis)
        return
    first, known, axis_before = found[name]
    if axis != axis_before:
        raise InputError(
            f"run {name} is placed by {axis} here and by {axis_before} in {first.path}",
            remedy="export both with the same x axis",
            where=source.path,
        )
    for step, values in logged.rows.items():
        known.rows.setdefault(step, {}).update(values)
    known.clock = known.clock or logged.clock
    known.clock_source = known.clock_source or logged.clock_source
    known.warnings += [text for text in logged.warnings if text not in known.warnings]


def _run(name: str, source: Source, logged: Logged, axis: str) -> Run:
    if framework_of(logged.names) is None:
        names = list(logged.names)
        raise _useless(source, f"export of run {name}", names, 1, _lacking(clock=bool(logged.clock)))
    trainer = framework_of(logged.names)
    dialect = dialect_named(trainer)
    if axis in _CALLS and (trainer == "trl" or (dialect is not None and dialect.counts_calls)):
        title, needed = ("TRL", "train/global_step") if dialect is None else (dialect.title, dialect.axis)
        raise InputError(
            f"{axis} counts W&B's log calls, not {title}'s steps, and {needed} is missing",
            remedy=f"set the panel's x axis to {needed}, or export the history with it",
            where=source.path,
        )
    run = run_of(source, logged, framework="wandb", name=name)
    gaps = np.diff(run.step)
    if len(gaps) and gaps.max() > gaps.min():
        # Points were left out by the export, not by the run: time must not end at the first gap.
        note = (
            f"steps are {gaps.min():g} to {gaps.max():g} apart: W&B exports a sample of about 500 to 1,500 points; "
            "each row's time counts for the steps since the one before"
        )
        run = replace(run, stride=int(gaps.max()), warnings=[*run.warnings, note])
    return run


READER = Reader(
    name="wandb",
    logs="Weights & Biases exports",
    read=read,
    begins=lambda source: not source.binary and recognises(source),
    section="actor_rollout_ref",
)
