"""slime: ``... - perf 12: {...}``, a printed dictionary per rollout from each of two processes.

Two axes: the rollout's number counts rollouts (``perf``, ``rollout``, ``eval``), the step's number counts
optimizer updates. For rollout 12 of 4 updates a log holds

    perf 12: {'rollout/response_len/mean': ..., 'perf/rollout_time': ...}      the rollout process
    step 48: {'train/grad_norm': ..., 'train/global_batch_size': ...}          the trainer, once per update
    ...
    perf 12: {'perf/train_wait_time': ..., 'perf/step_time': ...}              the trainer
    eval 12: {'eval/aime': ...}

Facts that matter:

- Updates of rollout k are numbered k M ... k M + M - 1. They precede the trainer's ``perf k``, as the same
  process prints both; updates that do not fit are not used.
- `--rollout-batch-size` counts prompts, `--global-batch-size` counts RESPONSES per update; the log states
  the latter and, by its lines, M, so that a log alone settles the batch.
- `perf/step_time` = train_wait_time + train_time. The wait holds the rollout, and also the weight update,
  the checkpoint and the evaluation before it; slime times no evaluation.
- In asynchronous training `perf/rollout_time` ran beside the training.
- `train/grad_norm` is before clipping, one per update; a row has their mean.
- Rollouts count from 0. ``eval 0`` comes before the training and perhaps once more after rollout 0.

References: slime/observability/rollout_metrics.py and train_metric_utils.py, train.py of THUDM/slime.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from batchsim.logs.dialect import Dialect, Entry, Event, Metric
from batchsim.logs.keys import Keys
from batchsim.logs.parts import printed_dict, step_number
from batchsim.logs.reader import console
from batchsim.logs.recipe import Rules
from batchsim.logs.rows import Steps

_LINE = re.compile(r" - (perf|rollout|step|eval) (\d{1,10}): (?=\{')")
UPDATES = "step lines of the rollout"
_NOT_SCORES = ("eval/step", "-truncated_ratio")
_ROLLOUT = ("perf/", "rollout/")
_TRAINED = ("perf/train_time", "perf/step_time", "perf/actor_train_time")


def _check_updates(rows: Steps, notes: list[str]) -> None:
    """Take out updates whose number is not that of the other rollouts: lines are missing among them."""
    _part_axes(rows, notes)
    counts = Counter(row[UPDATES] for row in rows.rows.values() if UPDATES in row)
    if len(counts) < 2:
        return
    usual = counts.most_common(1)[0][0]
    odd = [row for row in rows.rows.values() if row.get(UPDATES, usual) != usual]
    for row in odd:
        for name in [name for name in row if name.startswith("train/") or name == UPDATES]:
            del row[name]
    notes.append(f"{len(odd)} rollouts have another number of updates than {usual:g}; theirs were not used")


def _part_axes(rows: Steps, notes: list[str]) -> None:
    """Take out the updates that a tracker kept by their own number, where that is not the rollout's."""
    alone = [step for step, row in rows.rows.items() if not any(name.startswith(_ROLLOUT) for name in row)]
    if not alone or any(UPDATES in row for row in rows.rows.values()):
        return
    for step in alone:
        del rows.rows[step]
    for row in rows.rows.values():
        for name in [name for name in row if name.startswith("train/")]:
            del row[name]
    notes.append("train/* are numbered by update and not by rollout; a tracker does not tell whose they are: not used")


DIALECT = Dialect(
    name="slime",
    title="slime",
    columns={
        "step_seconds": Metric(keys=("perf/step_time",), scope=" [s], train_wait_time + train_time"),
        "generation_seconds": Metric(keys=("perf/rollout_time",), scope=" [s], of the rollout process"),
        "training_seconds": Metric(keys=("perf/actor_train_time",), scope=" [s], of the rollout's updates"),
        "logprob_seconds": Metric(
            keys=("perf/log_probs_time", "perf/ref_log_probs_time"), scope=" [s], of the step", add=True
        ),
        "sync_seconds": Metric(keys=("perf/update_weights_time",), scope=" [s], of the step"),
        "checkpoint_seconds": Metric(keys=("perf/save_model_time",), scope=" [s], of the step"),
        "grad_norm": Metric(keys=("train/grad_norm",), scope=" [1], before clipping"),
        "critic_grad_norm": Metric(keys=("train/critic-grad_norm",), scope=" [1], before clipping"),
        "learning_rate": Metric(keys=("train/lr-pg_0",), scope=" [1]"),
        "train_reward": Metric(keys=("rollout/raw_reward", "rollout/rewards"), scope=" [1], mean of the rollout"),
        "response_length": Metric(keys=("rollout/response_len/mean",), scope=" [tokens], mean of the rollout"),
        "response_length_max": Metric(keys=("rollout/response_len/max",), scope=" [tokens], longest of the rollout"),
        "truncated_share": Metric(keys=("rollout/truncated_ratio",), scope=" [1], share of the rollout's responses"),
    },
    score=lambda name: name.startswith("eval/") and name.count("/") == 1 and not name.endswith(_NOT_SCORES),
    keys={
        "rollout-batch-size": "prompts",
        "n-samples-per-prompt": "group_size",
        "global-batch-size": "train_batch",
        "num-steps-per-rollout": "updates_per_rollout",
        "--lr": "learning_rate",
        "hf-checkpoint": "model",
        "sglang-mem-fraction-static": "memory_share",
        "rollout-num-gpus-per-engine": "tensor_parallel",
        "rollout-max-response-len": "max_response_length",
        "over-sampling-batch-size": "gen_prompts",
    },
    marks=frozenset(("train/lr-pg_0", "perf/rollout_time", "perf/train_wait_time", "rollout/response_len/mean")),
    rules=Rules(mini_batch="--global-batch-size", one_epoch=True),
    logged={"train/global_batch_size": "train_batch", UPDATES: "updates_per_rollout"},
    norms="mean over the updates of the step",
    first=0,
    events=(Event(name="the checkpoint", keys=("perf/save_model_time",), included=True),),
    caveat="perf/step_time holds the evaluation before it, which slime does not time",
    validation=("eval/",),
    axis="rollout/step",
    counts_calls=True,
    prepare=_check_updates,
    advice={
        "score": "set --eval-interval and --eval-prompt-data",
        "evaluations": "lower --eval-interval",
        "evaluation_seconds": "slime does not log it",
    },
    paste=Keys(
        title="slime",
        prompts="rollout-batch-size",
        group_size="n-samples-per-prompt",
        mini_batch="global-batch-size",
        learning_rate="lr",
        option="--{key} {value}",
    ),
)


class _Parser:
    """Rollouts as they are, and updates once the trainer's line says whose they are."""

    def __init__(self) -> None:
        self._updates: dict[int, dict[str, float]] = {}
        self._trained: int | None = None
        self._lost = 0

    @property
    def notes(self) -> list[str]:
        lost = self._lost + len(self._updates)
        return [f"{lost} step lines belong to no rollout of the log and were not used"] if lost else []

    def read(self, text: str, line: int) -> Iterator[Entry]:
        for match in _LINE.finditer(text):
            step, values = step_number(match[2]), printed_dict(text, match.end())
            if step is None or not values:
                continue
            if match[1] == "step":
                self._updates[step] = values
            elif match[1] == "eval":
                # Before the training, and again after the first rollout: both are number 0.
                yield Entry(-1 if step == 0 and self._trained != 0 else step, values, line)
            elif values.keys().isdisjoint(_TRAINED):
                yield Entry(step, values, line)
            else:
                self._trained = step
                yield Entry(step, values | self._of_rollout(step), line)

    def _of_rollout(self, step: int) -> dict[str, float]:
        """Means over the updates of a rollout, if they are its own."""
        numbers, updates = sorted(self._updates), self._updates
        count = len(numbers)
        self._updates = {}
        if numbers != list(range(step * count, step * count + count)):
            self._lost += count
            return {}
        names = dict.fromkeys(name for values in updates.values() for name in values)
        means = {name: _mean([values[name] for values in updates.values() if name in values]) for name in names}
        return means | ({UPDATES: float(count)} if count else {})

    def close(self) -> Iterable[Entry]:
        return ()


def _mean(values: list[float]) -> float:
    # A sum of equal values divided by their number is not always that value.
    return values[0] if len(set(values)) == 1 else float(np.mean(values))


READER = console(
    DIALECT,
    logs="slime console logs",
    parser=_Parser,
    needles={b" - perf ": None, b" - rollout ": None, b" - step ": None, b" - eval ": None},
    mark=(b": {'", r" - (?:perf|step|eval|rollout) \d+: \{'(?:perf|rollout|train|eval)/"),
)
