"""CSV tables: the documented way in for logs of any other origin.

Either one table with a row per rollout step:

    rollout_step, responses, step_seconds, grad_norm, ..., score
    run                       optional: several runs in one table; else the file name is the run
    score, score/NAME, val/NAME   blank except where an evaluation followed the step; a row with
                              nothing but scores at step 0 is the evaluation before training
    prompts, group_size, rollout_batch, train_batch, updates_per_rollout, epochs, learning_rate,
    lr_rule, seed, model, ...     optional, constant within a run

or the same in long form, a row per value:

    run, metric, rollout_step, value      metric names a column of the above, or is a name of verl or TRL

where several values of one metric at one step are those of several optimizer steps;
or up to three kinds of table in one folder, joined on `run`: runs (a row per run: the configuration),
steps (a row per rollout step) and evaluations (a row per evaluation: responses or rollout_step, and
scores). A table's kind follows from its columns, not from its name.

Names are the canonical ones of `batchsim.variables`, with a few aliases; units are seconds, responses
and tokens. `responses` is cumulative at the end of the step and may be missing: then every step used
rollout_batch. `step_seconds` excludes evaluation and checkpoints; where it is missing, the phases
are added up. Empty cells are unknown. A column that is not known is named in a warning, not used.
"""

from __future__ import annotations

import csv
import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from batchsim.errors import InputError, nearest
from batchsim.logs.long_table import Cell, one_value, several_per_step
from batchsim.logs.metrics import Logged, framework_of, run_of
from batchsim.logs.recipe import COUNTS
from batchsim.logs.record import COLUMNS, Evaluations, Run
from batchsim.logs.rows import LARGEST_STEP, whole_or_none
from batchsim.logs.source import Source
from batchsim.logs.timeline import Array

Index = npt.NDArray[np.intp]

ALIASES = {
    "run_name": "run",
    "update": "rollout_step",
    "step": "rollout_step",
    "responses_kept": "responses",
    "gen_seconds": "generation_seconds",
    "train_seconds": "training_seconds",
    "step_time": "step_seconds",
    "reward": "train_reward",
    "lr": "learning_rate",
    "actor_grad_norm": "grad_norm",
    "sq_norm_chunk_mean": "sq_norm_chunk",
    "actor_sq_norm_chunk_mean": "sq_norm_chunk",
    "actor_sq_norm_chunk": "sq_norm_chunk",
    "actor_sq_norm_batch": "sq_norm_batch",
    "critic_sq_norm_chunk_mean": "critic_sq_norm_chunk",
}
# The one axis that counts optimizer updates; the others count rollout steps.
_UPDATE = "update"
# Weights & Biases exports, of which only columns that the user names can be used.
_EXPORT_ALIASES = {"_step": "rollout_step", "Step": "rollout_step"}
CONFIGURATION = (*COUNTS, "learning_rate")
NUMERIC_FACTS = ("seed", "gpus", "target", "eval_samples", "chunks")
TEXT_FACTS = ("lr_rule", "model", "optimizer", "target_metric", "status")
PLACES = ("rollout_step", "responses", "evaluation_elapsed", "evaluation_wall", "evaluation_seconds")
NUMERIC = frozenset((*COLUMNS, *CONFIGURATION, *NUMERIC_FACTS, *PLACES))
LONG = ("metric", "value")
KNOWN = NUMERIC | {"run", *TEXT_FACTS, *LONG}
# Columns that only a row of training has; responses and configuration may stand in any table.
_ANYWHERE = frozenset(("responses", "elapsed", "learning_rate"))
_TRAINING = frozenset(COLUMNS) - _ANYWHERE
_UNKNOWN_CELLS = frozenset(("", "na", "n/a", "none", "null"))


@dataclass(frozen=True, kw_only=True)
class _Table:
    """One CSV: numeric columns as arrays of shape (rows,), the others as text."""

    source: Source
    kind: str
    numbers: Mapping[str, Array]
    texts: Mapping[str, list[str]]
    lines: list[int]
    titles: Mapping[str, str]

    @property
    def scores(self) -> list[str]:
        return [name for name in self.numbers if _is_score(name)]

    def where(self, row: int) -> str:
        return self.source.where(self.lines[row])


def recognises(source: Source, columns: Mapping[str, str] | None = None) -> bool:
    """Whether the first line is a header of one of the kinds of table."""
    return _kind(_header(source, columns)) is not None


def read(sources: Sequence[Source], columns: Mapping[str, str] | None) -> tuple[list[Run], list[str]]:
    """Every run in the tables, joined folder by folder.

    Parameters
    ----------
    sources : sequence of Source
        Those that `recognises` accepts.
    columns : mapping or None
        Canonical name -> column name, where a table uses a name of its own.

    Returns
    -------
    runs, warnings : list of Run, list of str

    Raises
    ------
    InputError
        For a cell that is not a number, a row of the wrong length, a configuration that changes
        within a run, and tables that cannot be joined.
    """
    warnings: list[str] = []
    tracked = {source.path: found for source in sources if (found := _tracked(source, columns, warnings))}
    runs = [run for found in tracked.values() for run in found]
    sources = [source for source in sources if source.path not in tracked]
    tables = [_load(source, columns, warnings) for source in sources]
    for name, title in (columns or {}).items():
        held = {found for source in sources for found in _titles(source)}
        held |= {found for table in tables for found in table.titles.values()}
        if title not in held:
            raise InputError(f"no table has the column '{title}' named for {name}", remedy=nearest(title, held))
    for folder in dict.fromkeys(source.folder for source in sources):
        runs += _read_folder([table for table in tables if table.source.folder == folder], warnings)
    return runs, warnings


def _is_score(name: str) -> bool:
    return name == "score" or name.startswith(("score/", "val/", "val-core/"))


def _delimiter(line: str) -> str:
    return "\t" if "\t" in line and "," not in line else ","


def _header(source: Source, columns: Mapping[str, str] | None) -> list[str]:
    """Canonical column names; a name that is not known stays as it is."""
    first = source.lines[0] if source.lines else source.tail
    try:
        titles = next(csv.reader([first], delimiter=_delimiter(first)), [])
    except csv.Error:
        return []
    renamed = {title: name for name, title in (columns or {}).items()}
    aliases = ALIASES | _EXPORT_ALIASES if columns else ALIASES
    stripped = (title.strip() for title in titles)
    return [renamed.get(title, aliases.get(title, title)) for title in stripped]


def _kind(names: Sequence[str]) -> str | None:
    held = set(names)
    if held >= {*LONG, "rollout_step"}:
        return "long"
    scored = any(_is_score(name) for name in names)
    # Scores by run and step, without any column of training, are a table of evaluations.
    if "rollout_step" in held and (held & _TRAINING or not scored or "run" not in held):
        return "steps" if held & (_TRAINING | {"responses"}) or scored else None
    if scored and held & {"rollout_step", "responses"}:
        return "evaluations"
    return "runs" if "run" in held and held & set(CONFIGURATION) else None


def _load(source: Source, columns: Mapping[str, str] | None, warnings: list[str]) -> _Table:
    names = _header(source, columns)
    kind = _kind(names)
    assert kind is not None
    source.check_columns(len(names))
    twice = [name for name in names if names.count(name) > 1 and (name in KNOWN or _is_score(name))]
    if twice:
        raise InputError(f"two columns mean {twice[0]}", remedy="remove or rename one", where=source.where(1))
    rows, lines = _rows(source, len(names))
    if kind == "long":
        return _pivoted(source, names, rows, lines, columns, warnings)
    cells = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in names]
    numbers, texts = {}, {}
    for name, column in zip(names, cells, strict=True):
        if name in NUMERIC or _is_score(name):
            numbers[name] = _floats(column, name, source, lines)
        elif name in KNOWN:
            texts[name] = [cell.strip() for cell in column]
    warnings += _notes(source, len(names))
    unknown = [name for name in names if (name not in KNOWN or name in LONG) and not _is_score(name)]
    if unknown:
        warnings.append(f"{source.path}: columns not used: {', '.join(map(_with_nearest, unknown))}")
    titles = dict(zip(names, _titles(source), strict=True))
    return _Table(source=source, kind=kind, numbers=numbers, texts=texts, lines=lines, titles=titles)


def _tracked(source: Source, columns: Mapping[str, str] | None, warnings: list[str]) -> list[Run]:
    """Runs of a long table whose metrics have the names of verl or TRL; none for any other table."""
    names = _header(source, columns)
    if columns or _kind(names) != "long":
        return []
    rows, lines = _rows(source, len(names))
    at = {name: names.index(name) for name in ("run", "rollout_step", *LONG) if name in names}
    if framework_of(row[at["metric"]].strip() for row in rows) is None:
        return []
    values = _floats([row[at["value"]] for row in rows], "value", source, lines)
    cells: dict[str, dict[float, Cell]] = {}
    for row, line, value in zip(rows, lines, values.tolist(), strict=True):
        step = whole_or_none(row[at["rollout_step"]])
        if step is None:
            raise InputError("the step is not a whole number", remedy="number the steps", where=source.where(line))
        steps = cells.setdefault(row[at["run"]].strip() if "run" in at else source.name, {})
        steps.setdefault(step, Cell(line, {})).values.setdefault(row[at["metric"]].strip(), []).append(value)
    several = several_per_step(cells, source.name, source.path, warnings)
    runs = []
    for run, found in cells.items():
        logged = Logged(warnings=_notes(source, len(names)))
        for place, cell in found.items():
            logged.rows[int(place)] = {metric: one_value(metric, listed) for metric, listed in cell.values.items()}
        if framework_of(logged.names) is None:
            warnings.append(f"{source.path}: run {run} has no metric that batchsim knows and was left out")
            continue
        counted = {"updates_per_rollout": float(several[run])} if run in several else {}
        made = run_of(source, logged, framework="tables", name=run or source.name)
        # A table without the configuration has the default of tables, as documented.
        rules = replace(made.rules, mini_batch="")
        runs.append(replace(made, stated=counted | dict(made.stated), rules=rules))
    return runs


def _pivoted(
    source: Source,
    names: list[str],
    rows: list[list[str]],
    lines: list[int],
    columns: Mapping[str, str] | None,
    warnings: list[str],
) -> _Table:
    """The table of steps behind a long table."""
    at = {name: names.index(name) for name in ("run", "rollout_step", *LONG) if name in names}
    steps = _floats([row[at["rollout_step"]] for row in rows], "rollout_step", source, lines)
    values = _floats([row[at["value"]] for row in rows], "value", source, lines)
    renamed = {title: name for name, title in (columns or {}).items()}
    titles = {"rollout_step": _titles(source)[at["rollout_step"]]}
    unknown: dict[str, None] = {}
    cells: dict[str, dict[float, Cell]] = {}
    for row, line, step, value in zip(rows, lines, steps.tolist(), values.tolist(), strict=True):
        title = row[at["metric"]].strip()
        name = renamed.get(title) or ALIASES.get(title, title)
        if not (name in NUMERIC or _is_score(name)):
            unknown[title] = None
            continue
        if titles.setdefault(name, title) != title:
            raise InputError(
                f"'{title}' and '{titles[name]}' both mean {name}", remedy="rename one", where=source.where(line)
            )
        run = cells.setdefault(row[at["run"]].strip() if "run" in at else "", {})
        run.setdefault(step, Cell(line, {})).values.setdefault(name, []).append(value)
    warnings += _notes(source, len(names))
    if unknown:
        warnings.append(f"{source.path}: metrics not used: {', '.join(map(_with_nearest, unknown))}")
    order = [(run, step, cell) for run, found in cells.items() for step, cell in sorted(found.items())]
    several = several_per_step(cells, source.name, source.path, warnings)
    numbers = {"rollout_step": np.array([step for _, step, _ in order], dtype=float)}
    for name in titles.keys() - {"rollout_step"}:
        numbers[name] = np.array([one_value(name, cell.values.get(name, [])) for _, _, cell in order], dtype=float)
    if several:
        # Several updates share a step, which is a rollout step then, whatever it is called.
        titles["rollout_step"] = "rollout_step"
        numbers.setdefault("updates_per_rollout", np.array([several.get(run, math.nan) for run, _, _ in order]))
        titles.setdefault("updates_per_rollout", "values per step")
    texts = {"run": [run for run, _, _ in order]} if "run" in at else {}
    found_lines = [cell.line for _, _, cell in order]
    return _Table(source=source, kind="steps", numbers=numbers, texts=texts, lines=found_lines, titles=titles)


def _titles(source: Source) -> list[str]:
    first = source.lines[0] if source.lines else source.tail
    return [title.strip() for title in next(csv.reader([first], delimiter=_delimiter(first)), [])]


def _with_nearest(name: str) -> str:
    close = difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.8)
    return f"{name} (did you mean '{close[0]}'?)" if close else name


def _rows(source: Source, width: int) -> tuple[list[list[str]], list[int]]:
    rows, lines = [], []
    reader = csv.reader(source.lines[1:], delimiter=_delimiter(source.lines[0] if source.lines else ""))
    try:
        for row in reader:
            if not any(map(str.strip, row)):
                continue
            if len(row) != width:
                raise InputError(
                    f"the row has {len(row)} cells, the header {width}",
                    remedy="complete or remove the row",
                    where=source.where(reader.line_num + 1),
                )
            rows.append(row)
            lines.append(reader.line_num + 1)
    except csv.Error as error:
        raise InputError(
            f"not a CSV row ({error})",
            remedy="save the table as CSV again",
            where=source.where(reader.line_num + 1),
        ) from error
    if (last := last_row(source, width, _delimiter(source.tail))) and any(map(str.strip, last)):
        rows.append(last)
        lines.append(source.count + 1)
    return rows, lines


def last_row(source: Source, width: int, delimiter: str = ",") -> list[str] | None:
    """The unended last line, if its cells are all there and its last one is closed by a quote.

    Weights & Biases ends its exports without a line break, and a quoted number cannot be half a number.
    """
    if not source.tail.rstrip().endswith('"'):
        return None
    try:
        rows = list(csv.reader([source.tail], delimiter=delimiter, strict=True))
    except csv.Error:
        return None
    return rows[0] if len(rows) == 1 and len(rows[0]) == width and width > 1 else None


def _notes(source: Source, width: int) -> list[str]:
    """What opening the source, and its unended line, leave to say."""
    whole = last_row(source, width, _delimiter(source.tail)) is not None
    return [f"{source.path}: {text}" for text in (source.warnings if whole else source.tail_warnings())]


def _floats(cells: list[str], name: str, source: Source, lines: list[int]) -> Array:
    try:
        return np.array([float(cell) if cell else math.nan for cell in cells], dtype=float)
    except ValueError:
        pass
    values = []
    for cell, line in zip(cells, lines, strict=True):
        text = cell.strip()
        try:
            values.append(math.nan if text.lower() in _UNKNOWN_CELLS else float(text))
        except ValueError as error:
            raise InputError(
                f"{name} is {text!r}, not a number",
                remedy="correct the cell or leave it empty",
                where=source.where(line),
            ) from error
    return np.array(values, dtype=float)


def _by_run(table: _Table, only: str | None) -> dict[str, Index]:
    """Rows of each run; a table without a run column belongs to the run named `only`."""
    if "run" not in table.texts:
        if only is None:
            raise InputError(
                f"the table of {table.kind} has no run column and the folder holds several runs",
                remedy="add a run column, as in the other tables",
                where=table.source.path,
            )
        return {only: np.arange(len(table.lines))}
    groups: dict[str, list[int]] = {}
    for row, run in enumerate(table.texts["run"]):
        groups.setdefault(run, []).append(row)
    if "" in groups:
        raise InputError("the run is not named", remedy="fill in the run column", where=table.where(groups[""][0]))
    return {run: np.array(rows) for run, rows in groups.items()}


_Part = tuple[_Table, Index]


def _read_folder(tables: list[_Table], warnings: list[str]) -> list[Run]:
    parts: dict[str, dict[str, _Part]] = {}

    def collect(kind: str, only: str | None) -> None:
        for table in (table for table in tables if table.kind == kind):
            for run, rows in _by_run(table, table.source.name if kind == "steps" else only).items():
                if other := parts.setdefault(run, {}).get(kind):
                    raise InputError(
                        f"run {run} also stands in {other[0].source.path}",
                        remedy="give each run's rows in one table",
                        where=table.source.path,
                    )
                parts[run][kind] = (table, rows)

    collect("steps", None)
    only = next(iter(parts)) if len(parts) == 1 else None
    collect("evaluations", only)
    collect("runs", only)
    idle = [name for name, part in parts.items() if part.keys() == {"runs"}]
    if len(idle) == len(parts):
        raise InputError(
            "the tables hold no rollout steps and no evaluations",
            remedy="give the folder, or the tables of steps and evaluations too",
            where=tables[0].source.path,
        )
    if idle:
        warnings.append(f"runs without steps and evaluations were left out: {', '.join(sorted(idle))}")
    return [_run(name, part) for name, part in parts.items() if name not in idle]


def _run(name: str, part: Mapping[str, _Part]) -> Run:
    notes: list[str] = []
    table, rows = part["steps"] if "steps" in part else part["evaluations"]
    nothing = np.zeros(0, dtype=np.intp)
    trained, scored = _split(table, rows, notes) if "steps" in part else (nothing, nothing)
    step = table.numbers["rollout_step"][trained] if "steps" in part else np.zeros(0)
    columns = {column: table.numbers[column][trained] for column in COLUMNS if column in table.numbers}
    provenance = {column: table.titles[column] for column in columns}
    evaluations = Evaluations()
    if scored_in := _scored(name, part, scored, notes):
        evaluations = _evaluations(*scored_in)
        provenance |= _evaluation_provenance(scored_in[0], evaluations)
    stated, facts = _configuration(part.values())
    base = -1 if len(step) and step[0] == 0 else 0
    counts_updates = _counts_updates(part)
    return Run(
        name=name,
        framework="tables",
        path=table.source.path,
        step=step,
        columns=columns,
        evaluations=evaluations,
        stated=stated,
        facts=facts,
        provenance=provenance,
        warnings=notes,
        inferred_rollout_batch=_increment(step - base, columns.get("responses")),
        base=base,
        stride=_stride(step, notes),
        row_is_update=counts_updates,
    )


def _counts_updates(part: Mapping[str, _Part]) -> bool:
    """Whether a run's rows are optimizer updates, which the column `update` says."""
    placed = [held for kind, (held, _) in part.items() if kind != "runs" and "rollout_step" in held.numbers]
    axes = {held.titles.get("rollout_step") == _UPDATE: held for held in placed}
    if len(axes) > 1 and "responses" not in part["evaluations"][0].numbers:
        raise InputError(
            f"evaluations are placed by {axes[True].titles['rollout_step']} in one table "
            f"and by {axes[False].titles['rollout_step']} in the other",
            remedy="number both by update or both by rollout_step, or give the evaluations' responses",
            where=part["evaluations"][0].source.path,
        )
    steps = part.get("steps", part.get("evaluations"))
    return steps is not None and steps[0].titles.get("rollout_step") == _UPDATE


def _scored(name: str, part: Mapping[str, _Part], rows: Index, notes: list[str]) -> _Part | None:
    """The table and rows that hold a run's evaluations: one of its own, or `rows` of its steps."""
    if "evaluations" not in part:
        return (part["steps"][0], rows) if len(rows) else None
    table, own = part["evaluations"]
    if len(rows):
        raise InputError(
            f"run {name} has scores among its steps and in {table.source.path}",
            remedy="keep them in one table",
            where=part["steps"][0].source.path,
        )
    return table, _last_of_each(table, own, notes)


def _stride(step: Array, notes: list[str]) -> int:
    stride = int(np.diff(step).min()) if len(step) > 1 else 1
    if stride > 1:
        notes.append(f"the table holds every {stride}th step; each row's time counts for all of them")
    return stride


def _configuration(parts: Iterable[_Part]) -> tuple[dict[str, float], dict[str, object]]:
    """Recipe values and facts of one run, which must not change from row to row."""
    stated: dict[str, float] = {}
    facts: dict[str, object] = {}
    for table, rows in parts:
        for name in (*CONFIGURATION, *NUMERIC_FACTS):
            if name in table.numbers and (value := _constant(name, table.numbers[name], table, rows)) is not None:
                _agree(name, stated.setdefault(name, value), value, table, rows)
        for name in TEXT_FACTS:
            if name in table.texts:
                cells = np.array(table.texts[name])[rows]
                words = sorted(set(cells[cells != ""].tolist()))
                if len(words) > 1:
                    _changes(name, words[0], words[1], table, rows)
                if words:
                    _agree(name, facts.setdefault(name, words[0]), words[0], table, rows)
    for name in NUMERIC_FACTS:
        if name in stated:
            value = stated.pop(name)
            facts[name] = value if name == "target" or value != int(value) else int(value)
    return stated, facts


def _constant(name: str, column: Array, table: _Table, rows: Index) -> float | None:
    values = column[rows]
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    if (values != values[0]).any():
        if name == "learning_rate" and table.kind == "steps":
            return None
        other = values[values != values[0]][0]
        _changes(name, values[0], other, table, rows)
    return float(values[0])


def _agree(name: str, one: object, other: object, table: _Table, rows: Index) -> None:
    if one != other:
        _changes(name, one, other, table, rows)


def _changes(name: str, one: object, other: object, table: _Table, rows: Index) -> None:
    raise InputError(
        f"{name} is both {one} and {other} within one run",
        remedy="give a run one configuration, or name two runs in the run column",
        where=table.where(int(rows[0])),
    )


def _steps_of(table: _Table, rows: Index) -> Array:
    step = table.numbers["rollout_step"][rows]
    wrong = np.flatnonzero(~((step >= 0) & (step <= LARGEST_STEP) & (step == np.floor(step))))
    if len(wrong):
        at = int(wrong[0])
        raise InputError(
            f"rollout_step is {step[at]:g}; it must be a whole number from 0 to {LARGEST_STEP}",
            remedy="number the rollout steps 1, 2, 3, ...",
            where=table.where(int(rows[at])),
        )
    return step


def _last_of_each(table: _Table, rows: Index, notes: list[str]) -> Index:
    """Rows in order; one whose place does not increase replaces those from that place on (a restart)."""
    if table.kind == "steps" or "responses" not in table.numbers:
        place = _steps_of(table, rows)
    else:
        place = table.numbers["responses"][rows]
        wrong = np.flatnonzero(~(place >= 0))
        if len(wrong):
            raise InputError(
                f"responses is {place[wrong[0]]:g} at an evaluation; it must be 0 or more",
                remedy="say after how many responses the evaluation began",
                where=table.where(int(rows[wrong[0]])),
            )
    kept: list[int] = []
    for index, value in enumerate(place.tolist()):
        while kept and place[kept[-1]] >= value:
            kept.pop()
        kept.append(index)
    if len(kept) < len(rows):
        notes.append(f"{len(rows) - len(kept)} rows were repeated or abandoned at a restart; the last of each was kept")
    return rows[kept]


def _split(table: _Table, rows: Index, notes: list[str]) -> tuple[Index, Index]:
    """Rows of training and rows with a score; a row may be both."""
    scored = _any_finite(table, table.scores, rows)
    training = [name for name in COLUMNS if name in table.numbers and name not in _ANYWHERE]
    # Without a column of training every numbered step counts, step 0 being the state before it.
    trained = _any_finite(table, training, rows) if training else _steps_of(table, rows) > 0
    trained |= ~scored
    return _last_of_each(table, rows[trained], notes), _last_of_each(table, rows[scored], notes)


def _any_finite(table: _Table, names: Sequence[str], rows: Index) -> npt.NDArray[np.bool_]:
    known = [np.isfinite(table.numbers[name][rows]) for name in names]
    return np.logical_or.reduce(known, axis=0) if known else np.zeros(len(rows), dtype=bool)


def _evaluations(table: _Table, rows: Index) -> Evaluations:
    numbers = table.numbers
    scores = {name: numbers[name][rows] for name in table.scores}
    placed = "responses" in numbers and np.isfinite(numbers["responses"][rows]).all()
    return Evaluations(
        step=numbers["rollout_step"][rows] if "rollout_step" in numbers else None,
        responses=numbers["responses"][rows] if placed else None,
        seconds=numbers["evaluation_seconds"][rows] if "evaluation_seconds" in numbers else None,
        elapsed=numbers["evaluation_elapsed"][rows] if "evaluation_elapsed" in numbers else None,
        wall=numbers["evaluation_wall"][rows] if "evaluation_wall" in numbers else None,
        scores={name: values for name, values in scores.items() if np.isfinite(values).any()},
    )


def _evaluation_provenance(table: _Table, evaluations: Evaluations) -> dict[str, str]:
    places = {name: name for name in PLACES if name.startswith("evaluation_")}
    places["evaluation_responses"] = "responses"
    held = {name: table.titles[column] for name, column in places.items() if column in table.titles}
    return held | {"score": ", ".join(table.titles[name] for name in evaluations.scores)}


def _increment(step: Array, responses: Array | None) -> float | None:
    """Responses per rollout step, counted at the last row that states them."""
    if responses is None:
        return None
    known = np.flatnonzero(np.isfinite(responses))
    if not len(known):
        return None
    last = known[-1]
    return float(responses[last] / step[last]) if step[last] > 0 and responses[last] > 0 else None
