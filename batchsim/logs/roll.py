"""ROLL: one JSON object of metrics per rollout step, behind the logger's prefix.

    [2026-08-01 10:03:51] [rlvr_pipeline.py (832)] [INFO] {"time/step_total": 129.9, "system/global_step": 1, ...}

Facts that matter:

- In the RLVR pipeline `time/step_total` of step k is the duration of step k - 1, and 0 at the first step of
  a process: it is moved to the step that it timed. The agentic pipeline logs the step's own.
- The step is `system/global_step`, from 0. Older versions lack it: `system/samples` is
  (step + 1) x `system/batch_size`, which gives it.
- `system/batch_size` counts the responses of the step.
- `rollout_batch_size` counts prompts, `num_return_sequences_in_group` responses per prompt. A mini-batch is
  per_device_train_batch_size x gradient_accumulation_steps x data parallel size, and the last is not
  stated; `actor/backward_steps` is the number of updates, all epochs together.
- Validation runs at the beginning of its step, with the weights of the step before, inside the step's time.
- `token/total_response_length/clip` counts responses at the longest length of the step.
- Keys of a domain repeat those of all behind ``{domain}/``.

References: roll/pipeline/rlvr/rlvr_pipeline.py, roll/pipeline/rlvr/actor_worker.py and the metrics manager
of alibaba/ROLL.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from batchsim.logs.dialect import Dialect, Entry, Event, Metric
from batchsim.logs.keys import Keys
from batchsim.logs.parts import flat_numbers, json_object
from batchsim.logs.reader import Lines, console
from batchsim.logs.recipe import Rules
from batchsim.logs.rows import Steps, whole_or_none

TOTAL = "time/step_total"
AGENTIC = "agentic pipeline"
_PREFIX = re.compile(r"^(?:\[[^\]{]*\] ?)*(?:metrics_tag: ?)?")
_OBJECT = re.compile(r'\{"')


def _move_totals(rows: Steps, notes: list[str]) -> None:
    """Give each step its own duration, which the next one logs."""
    if any(AGENTIC in row for row in rows.rows.values()):
        return
    logged = {step: row.pop(TOTAL) for step, row in rows.rows.items() if TOTAL in row}
    for step, seconds in logged.items():
        # 0 is what a process logs that has timed no step yet.
        if step - 1 in rows.rows and seconds != 0:
            rows.rows[step - 1][TOTAL] = seconds
    if logged:
        notes.append(f"{TOTAL} is that of the step before and was moved there; the last step has none")


def _set_shares(rows: Steps) -> None:
    for row in rows.rows.values():
        clipped, responses = (row.get(name, math.nan) for name in (CLIPPED, "system/batch_size"))
        if responses > 0 and math.isfinite(clipped):
            row[CLIPPED_SHARE] = clipped / responses


CLIPPED = "token/total_response_length/clip"
CLIPPED_SHARE = f"{CLIPPED} / system/batch_size"


def _prepare(rows: Steps, notes: list[str]) -> None:
    _move_totals(rows, notes)
    _set_shares(rows)


DIALECT = Dialect(
    name="roll",
    title="ROLL",
    columns={
        "step_seconds": Metric(keys=(TOTAL,), scope=" [s], of the step"),
        "generation_seconds": Metric(keys=("time/step_generate",), scope=" [s], of the step"),
        "training_seconds": Metric(keys=("time/step_train",), scope=" [s], of the step"),
        "logprob_seconds": Metric(
            keys=("time/ref_log_probs_values", "time/old_log_probs"), scope=" [s], of the step", add=True
        ),
        "sync_seconds": Metric(keys=("time/step_model_update",), scope=" [s], of the step"),
        "grad_norm": Metric(keys=("actor_train/grad_norm", "actor/grad_norm"), scope=" [1], before clipping"),
        "critic_grad_norm": Metric(keys=("critic/grad_norm",), scope=" [1], before clipping"),
        "learning_rate": Metric(keys=("actor/lr",), scope=" [1]"),
        "train_reward": Metric(keys=("critic/rewards/mean", "critic/score/mean"), scope=" [1], mean of the step"),
        "response_length": Metric(keys=("token/response_length/mean",), scope=" [tokens], mean of the step"),
        "response_length_max": Metric(keys=("token/response_length/max",), scope=" [tokens], longest of the step"),
        "truncated_share": Metric(
            keys=(CLIPPED_SHARE,), scope=" [1], share of the responses at the longest length of the step"
        ),
    },
    score=lambda name: name.startswith("val_correct/"),
    keys={
        "rollout_batch_size": "prompts",
        "num_return_sequences_in_group": "group_size",
        "ppo_epochs": "epochs",
        "actor_train.training_args.learning_rate": "learning_rate",
        "async_generation_ratio": "async_generation_ratio",
    },
    filed={
        "pretrain": "model",
        "response_length": "max_response_length",
        "prompt_length": "max_prompt_length",
    },
    marks=frozenset(("time/step_generate", "system/actor_train/tps_gpu", "time/ref_log_probs_values")),
    rules=Rules(mini_batch="per_device_train_batch_size x gradient_accumulation_steps x data parallel size"),
    logged={"actor/backward_steps": "updates_per_rollout"},
    norms="mean over the updates of the step",
    first=0,
    evaluated_before=True,
    events=(Event(name="time/val_step", keys=("time/val_step",), included=True),),
    evaluation=("time/val_step",),
    counted=("system/batch_size",),
    prepare=_prepare,
    caveat="ROLL's step time holds checkpoints, which it does not time apart",
    validation=("val_correct/",),
    advice={"score": "set validation and eval_steps", "evaluations": "lower eval_steps"},
    paste=Keys(
        title="ROLL",
        prompts="rollout_batch_size",
        group_size="num_return_sequences_in_group",
        mini_batch="",
        learning_rate="actor_train.training_args.learning_rate",
        epochs="ppo_epochs",
        remark="# the updates per step follow from per_device_train_batch_size x gradient_accumulation_steps x "
        "data parallel size: let it be {train_batch} responses",
    ),
)


def _rows(text: str, line: int) -> Iterator[Entry]:
    prefix = _PREFIX.match(text)
    start = prefix.end() if prefix else 0
    found = json_object(text[start:]) if _OBJECT.match(text, start) else None
    if found is None:
        return
    step = whole_or_none(found.get("step"))
    if isinstance(found.get("metrics"), dict):
        found = found["metrics"]
    values = flat_numbers(found)
    if step is None:
        step = _step(values)
    if step is not None and values:
        agentic = {AGENTIC: 1.0} if "agentic_pipeline" in text[:start] else {}
        yield Entry(step, values | agentic, line)


def _step(values: dict[str, float]) -> int | None:
    if "system/global_step" in values:
        return whole_or_none(values["system/global_step"])
    samples, batch = (values.get(f"system/{name}", math.nan) for name in ("samples", "batch_size"))
    return whole_or_none(samples / batch - 1) if batch > 0 and math.isfinite(samples / batch) else None


READER = console(
    DIALECT,
    logs="ROLL console logs",
    parser=lambda: Lines(_rows),
    needles={b'{"': None},
    mark=(b'": ', r'"time/step_generate": '),
    section="num_return_sequences_in_group",
)
