"""prime-rl: JSON lines, several per step, and one line per step on the console of the trainer.

    {"step": 1, "time": 1.1, "optim/lr": 1e-06, "optim/grad_norm": 0.11}
    {"step": 1, "time": 1.2, "time/step": 64.2, "time/wait_for_batch": 12.0, ...}
    ... Step 1 | Time: 64.20s | Loss: 0.0123 | ... | Grad. Norm: 0.1100 | LR: 1.00e-06 | Throughput: ...

The orchestrator prints a line of its own (``Step 1 | 15m 56s | Reward 0.6250 | ... | Max Off-Policy 0 | ...``) and
sends its metrics to the same monitor. Fields are written with and without a colon.

Facts that matter:

- Training is asynchronous: `time/wait_for_batch` is only the wait that the trainer could not hide.
- `time/step` began after the weights were broadcast in some versions: where the stages without the broadcast
  make up the step, the broadcast is added to it. Checkpoints are outside.
- A batch is one optimizer step, one epoch: `orchestrator.batch_size` counts RESPONSES, `group_size`
  (`rollouts_per_example` before) responses per prompt.
- `optim/grad_norm` is before clipping.
- The trainer prints ``batch_size=4`` of its micro-batches, which is no such key: bare names count in files only.
- Non-finite values are dropped from the JSON lines.
- `off_policy/*` is in versions of the weights, over the responses of the batch.
- The orchestrator's seconds are those of its own step, so that they are not used as the step time.

References: src/prime_rl/trainer/rl/train.py and orchestrator of PrimeIntellect-ai/prime-rl.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from batchsim.logs.dialect import Dialect, Entry, Metric
from batchsim.logs.keys import Keys
from batchsim.logs.parts import NUMBER, step_number
from batchsim.logs.reader import Objects, console
from batchsim.logs.recipe import Rules
from batchsim.logs.rows import Steps, number

_T = "time/"
_STEP = re.compile(r"(?:^|\s)Step (\d{1,10}) \|(?= )")
_FIELD = re.compile(rf" ([A-Z][A-Za-z. -]{{1,30}}?):? ({NUMBER})(s|%)?(?= |$)")
_CONSOLE = {
    "Time": _T + "step",
    "Grad. Norm": "optim/grad_norm",
    "LR": "optim/lr",
    "Reward": "reward/all/mean",
    "Max Off-Policy": "off_policy/max",
    "Truncation": "truncation percent",
}
# Only the trainer's line has these; the orchestrator's seconds are of another clock.
_BARE_SECONDS = re.compile(rf"^\s*({NUMBER})s$")
_INSIDE = ("wait_for_batch", "load_data", "forward_backward")


def _add_broadcast(rows: Steps, notes: list[str]) -> None:
    """Count the broadcast in the step where the step's timer began after it."""
    step = rows.column(_T + "step")
    inside = np.sum([np.nan_to_num(rows.column(_T + name)) for name in _INSIDE], axis=0)
    broadcast = rows.column(_T + "broadcast_weights")
    known = np.isfinite(step) & np.isfinite(broadcast) & (inside > 0) & (broadcast > 0)
    if not known.any():
        return
    rest = (step - inside)[known]
    if float(np.median(np.abs(rest))) >= float(np.median(np.abs(rest - broadcast[known]))):
        return
    for row in rows.rows.values():
        if row.get(_T + "broadcast_weights", 0.0) > 0 and _T + "step" in row:
            row[_T + "step"] += row[_T + "broadcast_weights"]
    notes.append("time/step begins after the broadcast of the weights: time/broadcast_weights was added")


DIALECT = Dialect(
    name="prime_rl",
    title="prime-rl",
    columns={
        "step_seconds": Metric(
            keys=(_T + "step",), scope=" [s], with the broadcast of the weights, without checkpoint"
        ),
        "generation_seconds": Metric(
            keys=(_T + "wait_for_batch",), scope=" [s], that the trainer waited (asynchronous): exposed part only"
        ),
        "training_seconds": Metric(keys=(_T + "forward_backward",), scope=" [s], of the step"),
        "sync_seconds": Metric(keys=(_T + "broadcast_weights",), scope=" [s], of the step"),
        "checkpoint_seconds": Metric(keys=(_T + "save_ckpt",), scope=" [s], of the step"),
        "grad_norm": Metric(keys=("optim/grad_norm",), scope=" [1], before clipping"),
        "learning_rate": Metric(keys=("optim/lr",), scope=" [1]"),
        "train_reward": Metric(keys=("reward/all/mean", "reward/mean"), scope=" [1], mean of the batch"),
        "response_length": Metric(
            keys=("completion_len/all/mean", "seq_len/all/mean", "completion_len/mean"), scope=" [tokens]"
        ),
        "truncated_share": Metric(keys=("is_truncated/all/mean", "is_truncated/mean"), scope=" [1], of the batch"),
        "staleness_mean": Metric(keys=("off_policy/mean",), scope=" [versions of the weights], of the batch"),
        "staleness_max": Metric(keys=("off_policy/max",), scope=" [versions of the weights], of the batch"),
    },
    score=lambda name: name.startswith("eval/") and name.endswith(("/avg@1", "/mean", "reward/mean", "/pass@1")),
    keys={
        "orchestrator.batch-size": "rollout_batch",
        "orchestrator.group-size": "group_size",
        "orchestrator.rollouts-per-example": "group_size",
        "trainer.optim.lr": "learning_rate",
        "trainer.optim.max-norm": "grad_clip",
        "orchestrator.max-off-policy-steps": "staleness_limit",
    },
    filed={
        "batch_size": "rollout_batch",
        "group_size": "group_size",
        "rollouts_per_example": "group_size",
        "optim.lr": "learning_rate",
        "model.name": "model",
        "max_off_policy_steps": "staleness_limit",
    },
    marks=frozenset(("time/wait_for_batch", "time/forward_backward", "off_policy/in_flight/mean")),
    rules=Rules(one_epoch=True),
    always={"updates_per_rollout": 1.0},
    norms="last update of each row, which has one",
    first=1,
    validation=("eval/",),
    axis="step",
    prepare=_add_broadcast,
    advice={
        "score": "set orchestrator.eval",
        "evaluations": "lower orchestrator.eval.interval",
        "evaluation_seconds": "prime-rl evaluates beside the training and times no evaluation",
    },
    paste=Keys(
        title="prime-rl",
        prompts="",
        group_size="orchestrator.group-size",
        mini_batch="orchestrator.batch-size",
        learning_rate="trainer.optim.lr",
        option="--{key} {value}",
    ),
)


def _rows(text: str, line: int) -> Iterator[Entry]:
    if match := _STEP.search(text):
        step, values = step_number(match[1]), {}
        parts = text[match.end() :].split(" |")
        for part in parts:
            field = _FIELD.match(part) if (part.startswith(" ")) else None
            if field is not None and field.end() == len(part.rstrip()) and field[1] in _CONSOLE:
                values[_CONSOLE[field[1]]] = number(field[2])
        bare = _BARE_SECONDS.match(parts[0])
        if bare and "optim/grad_norm" in values:
            values[_T + "step"] = number(bare[1])
        if step is not None and values:
            yield Entry(step, values, line)


READER = console(
    DIALECT,
    logs="prime-rl JSON lines and console logs",
    parser=lambda: Objects(_rows, without=("time",)),
    needles={b'{"': None, b"Step ": re.compile(rb"\d+ \|")},
    mark=(b" ", r'"time/wait_for_batch": |\| Grad\. Norm|\| Max Off-Policy '),
    section="batch_size",
    beside=("orch.toml", "control/orch.toml", "orchestrator.toml", "rl.toml"),
)
