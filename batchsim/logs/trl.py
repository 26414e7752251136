"""TRL's `trainer_state.json`: the log history that the Hugging Face trainer saves with checkpoints.

`log_history` is a list of dictionaries: rows of training every `logging_steps` optimizer steps, rows
of evaluation with keys `eval_*`, and a last row of totals. Numbers may be strings (transformers >= 5).

Facts that matter:

- The number of responses is nowhere. `train_batch_size` is per device, and neither the number of
  devices nor the accumulation steps are stored: the batch must be supplied.
- A row counts optimizer steps, so a row's batch is the train batch; with several updates per rollout
  `step_time` alternates and only its mean over whole rollouts means something.
- Metrics are means over the logging interval, `grad_norm` is the interval's last (before clipping).
- `step_time` includes generation and excludes evaluation. Older versions log no time at all.
- `reward` is the training reward. Most runs have no evaluation; `eval_reward` is a score.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from batchsim.errors import InputError
from batchsim.logs.record import Evaluations, Run, Steps, number, whole_or_none
from batchsim.logs.source import Source

COLUMNS = {
    "step_time": ("step_seconds", "step_time [s], per optimizer step, evaluation excluded"),
    "grad_norm": ("grad_norm", "grad_norm, before clipping, last of the logging interval"),
    "learning_rate": ("learning_rate", "learning_rate"),
    "reward": ("train_reward", "reward, mean over the logging interval"),
    "completions/mean_length": ("response_length", "completions/mean_length [tokens]"),
    "completion_length": ("response_length", "completion_length [tokens]"),
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


def recognises(source: Source) -> bool:
    """Whether the text is a JSON object with a log history."""
    text = source.text
    return text.lstrip().startswith("{") and '"log_history"' in text


def read(source: Source) -> list[Run]:
    """The run of one trainer_state.json."""
    state = _state(source)
    train, evaluated = Steps(), Steps()
    unplaced = 0
    for index, row in enumerate(state["log_history"], start=1):
        step = whole_or_none(row.get("step")) if isinstance(row, dict) else None
        if step is None:
            unplaced += 1
            continue
        where = f"row {index} of log_history"
        scores = {key: number(value) for key, value in row.items() if str(key).startswith("eval_")}
        values = {name: number(row[key]) for key, (name, _) in COLUMNS.items() if key in row}
        if scores:
            evaluated.add(step, scores, where=where)
        if values:
            train.add(step, values, where=where)
    warnings = [*source.warnings, *train.warnings, *evaluated.warnings]
    if unplaced:
        warnings.append(f"{unplaced} rows of log_history have no step and were not used")
    # Newer versions may state a fraction of the run instead of a number of steps.
    spacing = float(np.median(np.diff(train.step, prepend=0.0))) if train.rows else 1.0
    stride = whole_or_none(state.get("logging_steps")) or max(1, int(spacing))
    return [
        Run(
            name=source.name,
            framework="trl",
            path=source.path,
            step=train.step,
            columns={name: train.column(name) for name, _ in COLUMNS.values()},
            evaluations=_evaluations(evaluated),
            stated={},
            facts={},
            provenance=_provenance(train, evaluated),
            warnings=warnings,
            stride=stride,
            row_is_update=True,
            batch_hint=", and a trainer_state.json states only the batch per device",
        )
    ]


def _state(source: Source) -> Mapping[str, Any]:
    try:
        state = json.loads(source.text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", len(source.lines) + 1)
        raise InputError(
            f"the JSON is damaged or ends early ({getattr(error, 'msg', error)})",
            remedy="copy the file again, or give an earlier checkpoint's trainer_state.json",
            where=source.where(line),
        ) from error
    if not isinstance(state, dict) or not isinstance(state.get("log_history"), list):
        raise InputError("log_history is not a list", remedy="give a trainer_state.json", where=source.path)
    return state


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


def _provenance(train: Steps, evaluated: Steps) -> dict[str, str]:
    held = {name for row in train.rows.values() for name in row}
    sources = {name: text for name, text in COLUMNS.values() if name in held}
    if evaluated.rows:
        sources |= {"score": "eval_* rows", "evaluation_seconds": "eval_runtime [s]"}
    return sources
