"""TRL's `trainer_state.json` and console: what the Hugging Face trainer logs, saved or printed.

`log_history` is a list of dictionaries: rows of training every `logging_steps` optimizer steps, rows
of evaluation with keys `eval_*`, and a last row of totals. The console prints the same dictionaries
among progress bars, without their step. Numbers may be strings (transformers >= 5).

Facts that matter:

- The number of responses is nowhere. `train_batch_size` is per device, and neither the number of
  devices nor the accumulation steps are stored: arguments in the log or beside it (`trl_arguments`)
  settle the batch, or options do.
- A row counts optimizer steps, so a row's batch is the train batch; with several updates per rollout
  `step_time` alternates between generating and cheap steps, and is averaged over whole rollouts.
- Metrics are means over the logging interval, `grad_norm` is the interval's last (before clipping).
- `step_time` includes generation and excludes evaluation. Older versions log no time at all: the
  console's progress bar then gives it (`clock`).
- A printed row belongs to the step that the trainer's bar shows in front of it. Without a bar rows are
  counted, `logging_steps` apart.
- `reward` is the training reward. Most runs have no evaluation; `eval_reward` is a score.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from batchsim.errors import InputError
from batchsim.logs.clock import Clocked, from_clock
from batchsim.logs.reader import Reader
from batchsim.logs.recipe import Rules
from batchsim.logs.record import Evaluations, Run
from batchsim.logs.rows import Steps, number, whole_or_none
from batchsim.logs.source import Source, matching_lines
from batchsim.logs.trl_arguments import Settled, arguments_beside, arguments_in

COLUMNS = {
    "step_time": ("step_seconds", "step_time [s], per optimizer step, evaluation excluded"),
    "grad_norm": ("grad_norm", "grad_norm, before clipping, last of the logging interval"),
    "learning_rate": ("learning_rate", "learning_rate"),
    "reward": ("train_reward", "reward, mean over the logging interval"),
    "completions/mean_length": ("response_length", "completions/mean_length [tokens]"),
    "completion_length": ("response_length", "completion_length [tokens]"),
    "completions/max_length": ("response_length_max", "completions/max_length [tokens], mean over the interval"),
    "completions/clipped_ratio": ("truncated_share", "completions/clipped_ratio"),
}
# Not scores: the trainer's bookkeeping, and training diagnostics repeated during evaluation.
_NOT_SCORES = (
    "runtime",
    "samples_per_second",
    "steps_per_second",
    "model_preparation_time",
    "loss",
    "kl",
    "entropy",
    "num_tokens",
    "step_time",
    "completion_length",
    "completions/",
    "clip_ratio",
    "sampling/",
    "frac_reward_zero_std",
)
# What tells reinforcement learning from the Hugging Face trainer's other uses.
_REWARDED = ("reward", "completion")
_BOOKKEEPING = ("epoch", "step", "total_flos", "train_")
_ROW = re.compile(r"\{'[^{}]{2,50000}\}")
_PAIR = re.compile(r"'([^']{1,200})': (?:'([^']*)'|([^,'{}\[\]]+))(?=[,}])")
_BAR = re.compile(r"\s*\d{1,3}%\|[^|]*\|\s*(\d{1,9})/(\d{1,9}) \[(?:(\d{1,6}):)?(\d\d):(\d\d)<")


@dataclass
class History:
    """Rows by step, whichever way they were logged, and the clock behind them."""

    train: Steps = field(default_factory=Steps)
    evaluated: Steps = field(default_factory=Steps)
    clock: list[tuple[int, float]] = field(default_factory=list)
    clock_source: str = ""
    metrics: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)

    def add(self, step: int, row: Mapping[str, object], *, where: str) -> None:
        """Add one dictionary of the trainer."""
        self.metrics.update(list(row))
        scores = {key: number(value) for key, value in row.items() if key.startswith("eval_")}
        values = {name: number(row[key]) for key, (name, _) in COLUMNS.items() if key in row}
        if scores:
            self.evaluated.add(step, scores, where=where)
        if values:
            self.train.add(step, values, where=where)


def recognises(source: Source) -> bool:
    """Whether the text is a JSON object with a log history, or a console with rows of rewards."""
    return _is_state(source) or any(
        _rows_with_rewards(line.decode(errors="replace"))
        for first, block in source.blocks()
        for _, line in matching_lines(first, block, {b"'epoch': ": None})
    )


def _is_state(source: Source) -> bool:
    return source.head.lstrip().startswith("{") and '"log_history"' in source.head


@dataclass
class _Log:
    """One file of TRL's: what it holds, before it becomes a run."""

    source: Source
    history: History
    arguments: dict[str, str]
    saved: bool
    stride: int | None = None


def read(sources: Sequence[Source]) -> list[Run]:
    """A run per trainer_state.json and per console log; both of one run in one folder are one.

    Raises
    ------
    InputError
        For damaged JSON, and arguments that contradict a configuration file.
    """
    logs = [_state_log(source) if _is_state(source) else _console_log(source) for source in sources]
    taken: list[_Log] = []
    for state in (log for log in logs if log.saved):
        for console in (log for log in logs if not log.saved and log.source.folder == state.source.folder):
            if console not in taken and _same_run(state.history, console.history):
                taken.append(console)
                _merge(state, console)
                break
    return [_run(log) for log in logs if log not in taken]


def _state_log(source: Source) -> _Log:
    history, arguments = History(), dict[str, str]()
    state = _state(source)
    _add_state(state, history)
    if whole_or_none(state.get("train_batch_size")):
        arguments["per_device_train_batch_size"] = str(state["train_batch_size"])
    return _Log(source, history, arguments, saved=True, stride=whole_or_none(state.get("logging_steps")))


def _console_log(source: Source) -> _Log:
    history = History()
    arguments = _add_console(source, history)
    return _Log(source, history, arguments, saved=False, stride=whole_or_none(arguments.get("logging_steps")))


def _same_run(saved: History, printed: History) -> bool:
    """Whether a console shows the rows that a state holds, as far as it rounds them."""
    one, other = saved.train.rows, printed.train.rows
    steps = [step for step in other if step in one] if printed.clock else []
    pairs = [(one[step], other[step]) for step in steps]
    if not pairs and not printed.clock and len(one) == len(other):
        pairs = list(zip(one.values(), other.values(), strict=True))
    values = [(a[name], b[name]) for a, b in pairs for name in a.keys() & b.keys() if math.isfinite(a[name])]
    return len(values) > 1 and all(math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-12) for a, b in values)


def _merge(state: _Log, console: _Log) -> None:
    state.history.clock, state.history.clock_source = console.history.clock, console.history.clock_source
    state.arguments = state.arguments | console.arguments
    state.history.metrics |= console.history.metrics
    state.history.warnings.append(f"{console.source.path} shows the same run; its arguments and clock were used")


def _run(log: _Log) -> Run:
    source, history = log.source, log.history
    arguments = with_config(source, log.arguments, history.warnings)
    if log.saved:
        hint = ", and a trainer_state.json states only the batch per device"
    else:
        hint = ", and the log states no arguments of TRL"
    return run_of(history, arguments, source, stride=log.stride, hint=hint)


def with_config(source: Source, logged: Mapping[str, str], notes: list[str]) -> dict[str, str]:
    """Arguments of the log, and those of a configuration that the user named or that lies beside it."""
    if source.config is None:
        beside = {} if source.path == "-" else arguments_beside(source.folder, notes)
        return beside | dict(logged)
    named: dict[str, str] = {}
    for key, value in source.config.values.items():
        named |= arguments_in(f"{key.rpartition('.')[2]}={value}")
    for name in named.keys() & logged.keys():
        one, other = number(logged[name]), number(named[name])
        if math.isfinite(one) and math.isfinite(other) and not math.isclose(one, other, rel_tol=1e-6):
            raise InputError(
                f"{name} is {logged[name]} in the log but {named[name]} in {source.config.path}",
                remedy="give the configuration of this run, or none",
                where=source.path,
            )
    return named | dict(logged)


def run_of(
    history: History,
    arguments: Mapping[str, str],
    source: Source,
    *,
    name: str | None = None,
    stride: int | None = None,
    hint: str = "",
) -> Run:
    """The run of a history.

    Parameters
    ----------
    history : History
        Rows of training and evaluation.
    arguments : mapping
        TRL's arguments by name, as far as they are known.
    source : Source
        File, for messages.
    name : str or None
        The run's name, where it is not the file's.
    stride : int or None
        Optimizer steps per row [1], where it is known.
    hint : str
        What the source lacks about the batch, where no argument says anything.
    """
    train, evaluated = history.train, history.evaluated
    settled = Settled(arguments, frozenset(history.metrics))
    warnings = [*source.warnings, *history.warnings, *train.warnings, *evaluated.warnings, *settled.notes]
    columns = {name: train.column(name) for name, _ in COLUMNS.values()}
    provenance = _provenance(history) | settled.names
    clock = None if np.isfinite(columns["step_seconds"]).any() or not history.clock else _clock(history)
    unused = {name: rows for name, rows in history.metrics.items() if not _is_used(name)}
    # Newer versions may state a fraction of the run instead of a number of steps.
    spacing = float(np.median(np.diff(train.step, prepend=0.0))) if train.rows else 1.0
    per_device = set(arguments) <= {"per_device_train_batch_size"}
    return Run(
        name=name or source.name,
        framework="trl",
        path=source.path,
        step=train.step,
        columns=columns,
        evaluations=_evaluations(evaluated),
        stated=settled.stated,
        facts={**settled.facts, "grad_norm_reduction": "last", "unused": unused},
        provenance=provenance,
        warnings=warnings,
        stride=stride or max(1, int(spacing)),
        row_is_update=True,
        batch_hint=hint if per_device else settled.hint or hint,
        norm_reduction="the last update of each row",
        rules=Rules(one_epoch=True, divisor=settled.divisor),
        clock=clock,
        clock_source=history.clock_source,
    )


# -- trainer_state.json -------------------------------------------------------------------------------


def _add_state(state: Mapping[str, Any], history: History) -> None:
    unplaced = 0
    for index, row in enumerate(state["log_history"], start=1):
        step = whole_or_none(row.get("step")) if isinstance(row, dict) else None
        if step is None:
            unplaced += 1
            continue
        history.add(step, row, where=f"row {index} of log_history")
    if unplaced:
        history.warnings.append(f"{unplaced} rows of log_history have no step and were not used")


def _state(source: Source) -> Mapping[str, Any]:
    try:
        state = json.loads(source.text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise InputError(
            f"the JSON is damaged or ends early ({getattr(error, 'msg', error)})",
            remedy="copy the file again, or give an earlier checkpoint's trainer_state.json",
            where=source.where(line),
        ) from error
    if not isinstance(state, dict) or not isinstance(state.get("log_history"), list):
        raise InputError("log_history is not a list", remedy="give a trainer_state.json", where=source.path)
    return state


# -- the console --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Printed:
    """A row on the console, and the bars' positions when it was printed: total -> step."""

    line: int
    values: dict[str, object]
    bar: int | None
    place: int


def _row(text: str) -> dict[str, object]:
    """Values of one printed dictionary of the trainer; each has its epoch."""
    values: dict[str, object] = {key: quoted or plain for key, quoted, plain in _PAIR.findall(text)}
    return values if "epoch" in values else {}


def _rows(line: str) -> Iterable[dict[str, object]]:
    if "'epoch': " not in line:
        return []
    return [row for match in _ROW.finditer(line) if (row := _row(match[0]))]


def _rows_with_rewards(line: str) -> bool:
    return any(name.removeprefix("eval_").startswith(_REWARDED) for row in _rows(line) for name in row)


def _add_console(source: Source, history: History) -> dict[str, str]:
    """Fill `history` from a console log; the arguments that it states."""
    arguments: dict[str, str] = {}
    printed: list[_Printed] = []
    bars: dict[int, list[tuple[int, float]]] = {}
    latest: int | None = None
    for count, line in enumerate(source.lines, start=1):
        for piece in line.split("\r"):
            if match := _BAR.match(piece):
                latest = int(match[2])
                step, clock = int(match[1]), _seconds(match)
                seen = bars.setdefault(latest, [])
                if not seen or seen[-1][0] != step:
                    seen.append((step, clock))
            rows = _rows(piece)
            for values in rows:
                printed.append(_Printed(count, values, latest, len(bars[latest]) - 1 if latest else 0))
            if not rows:
                arguments |= arguments_in(piece, printed=True)
    history.warnings += source.tail_warnings()[len(source.warnings) :]
    total = _training_bar(printed, bars)
    if total is None:
        _place_by_count(printed, arguments, history)
    else:
        _place_by_bar(printed, bars[total], total, history)
        history.clock, history.clock_source = bars[total], "the progress bar (elapsed, to 1 s)"
    return arguments


def _seconds(match: re.Match[str]) -> float:
    return 3600.0 * int(match[3] or 0) + 60.0 * int(match[4]) + int(match[5])


def _is_training(values: Mapping[str, object]) -> bool:
    return any(name in COLUMNS for name in values)


def _training_bar(printed: Sequence[_Printed], bars: Mapping[int, list[tuple[int, float]]]) -> int | None:
    """Total of the bar that most rows of training follow; data sets and evaluations have bars too."""
    votes = Counter(row.bar for row in printed if row.bar and _is_training(row.values) and bars[row.bar][row.place][0])
    return votes.most_common(1)[0][0] if votes else None


def _place_by_bar(printed: Sequence[_Printed], bar: Sequence[tuple[int, float]], total: int, history: History) -> None:
    step, trained, lost = 0, -1, 0
    pace = _pace(printed, bar, total)
    for row in printed:
        # An evaluation has a bar of its own; its row belongs to the step that the trainer's bar last showed.
        if row.bar == total:
            step = bar[row.place][0]
        if _is_training(row.values):
            # Lines are missing where the bar stands still from row to row, or the row's epoch is not the bar's.
            stands = row.bar == total and row.place == trained
            if not step or stands or _is_elsewhere(row.values, step, pace):
                lost += 1
                continue
            trained = row.place
        history.add(step, row.values, where=f"line {row.line}")
    if lost:
        history.warnings.append(f"{lost} rows do not belong to the step that the progress bar shows and were not used")


def _pace(printed: Sequence[_Printed], bar: Sequence[tuple[int, float]], total: int) -> float:
    """Epochs per step, NaN where not two thirds of three or more rows agree."""
    placed = [(row.values, bar[row.place][0]) for row in printed if row.bar == total and bar[row.place][0]]
    ratios = [epoch / step for values, step in placed if 0 < (epoch := number(values["epoch"])) < math.inf]
    pace = float(np.median(ratios)) if len(ratios) > 2 else math.nan
    strays = sum(_is_elsewhere(values, step, pace) for values, step in placed)
    return pace if 3 * strays <= len(placed) else math.nan


def _is_elsewhere(values: Mapping[str, object], step: int, pace: float) -> bool:
    """Whether a row's epoch, as far as it is rounded, is that of another step."""
    text = str(values["epoch"])
    epoch = number(text)
    decimals = len(text.partition(".")[2]) if "e" not in text else 16
    return math.isfinite(epoch) and abs(epoch - pace * step) > 0.5 * pace + 0.51 * 10.0**-decimals


def _place_by_count(printed: Sequence[_Printed], arguments: Mapping[str, str], history: History) -> None:
    stride, step = whole_or_none(arguments.get("logging_steps")) or 1, 0
    for row in printed:
        step += stride if _is_training(row.values) else 0
        history.add(step, row.values, where=f"line {row.line}")
    if not step:
        return
    reason = f"logging_steps is {stride}" if "logging_steps" in arguments else "logging_steps is not stated either"
    history.warnings.append(
        f"no progress bar says at which step a row was printed; {reason}: each row counts as {stride} optimizer "
        "steps (trainer_state.json has the true ones)"
    )


# -- both ---------------------------------------------------------------------------------------------


def _clock(history: History) -> Callable[[int], Clocked]:
    """Times of the rows from the clock, once it is known how many updates one generation serves."""
    durations = history.evaluated.column("eval_runtime")
    paused = dict(zip(history.evaluated.rows, durations.tolist(), strict=True))

    def clocked(updates: int) -> Clocked:
        return from_clock(
            history.train.step, history.clock, paused=paused, source=history.clock_source, updates=updates
        )

    return clocked


def _is_used(name: str) -> bool:
    return name in COLUMNS or name.startswith(("eval_", *_BOOKKEEPING))


def _is_score(key: str) -> bool:
    name = key.removeprefix("eval_")
    return not name.startswith(_NOT_SCORES) and not name.endswith(("_std", "/std"))


def _evaluations(evaluated: Steps) -> Evaluations:
    names = dict.fromkeys(key for row in evaluated.rows.values() for key in row if _is_score(key))
    scores = {name: evaluated.column(name) for name in names}
    some = np.isfinite(list(scores.values())).any(axis=0) if scores else np.zeros(len(evaluated.rows), dtype=bool)
    return Evaluations(
        step=evaluated.step[some],
        seconds=evaluated.column("eval_runtime")[some],
        scores={name: values[some] for name, values in scores.items()},
    )


def _provenance(history: History) -> dict[str, str]:
    sources = {name: text for key, (name, text) in COLUMNS.items() if key in history.metrics}
    if history.evaluated.rows:
        sources |= {"score": "eval_* rows", "evaluation_seconds": "eval_runtime [s]"}
    return sources


READER = Reader(
    name="trl",
    logs="TRL trainer_state.json and console logs",
    read=read,
    begins=lambda source: not source.binary and source.head.lstrip().startswith("{") and recognises(source),
    whole=recognises,
    section="actor_rollout_ref",
)
