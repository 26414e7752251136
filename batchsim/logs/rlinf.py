"""RLinf: a framed metric table per step on the console.

    ╭──────────────────────────── Metric Table ──────────────────────────╮
    │ Global Step:    3/5 │ Step Time: 34.1s │ ...
    ├─────────────── Time ───────────────┤
    │rollout=21.4 │ actor/training=9.2 │ sync_weights=1.1 ...
    ├─────────────── Training/Actor ─────┤
    │actor/grad_norm=0.41 ...
    ╰─────────────────────────────────────╯

Cells are ``name=value``, and a name belongs to the section above it. Trackers get ``time/...``, ``rollout/...`` and
``train/...``.

Facts that matter:

- The table states its own step, so that it counts if its frame closes.
- Stages may run beside each other: their times may exceed the step's.
- `data.rollout_batch_size` counts prompts, `algorithm.group_size` responses per prompt,
  `algorithm.n_minibatches` updates per step, and there is one epoch.
- Trackers number rows by minibatch, (step - 1) x n_minibatches, so that exports of trackers are not read.

The format is known from a table that other programs read, not from RLinf's own logs; see docs/logs.md.

References: rlinf/runners/reasoning_runner.py of RLinf/RLinf.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from batchsim.logs.dialect import Dialect, Entry, Metric
from batchsim.logs.keys import Keys
from batchsim.logs.parts import NUMBER, Block, Blocks, step_number, without_ray
from batchsim.logs.reader import console, entry_of
from batchsim.logs.recipe import Rules
from batchsim.logs.rows import number

_STEP = re.compile(r"Global Step: +(\d{1,10})/(\d{1,10})(?!\d)")
_SECONDS = re.compile(rf"Step Time: +({NUMBER}) ?s(?![\w.])")
_SECTION = re.compile(r"^├─+ *([A-Za-z][\w /-]{0,40}?) *─+┤?$")
_CELL = re.compile(rf"^ *([\w/.@-]{{1,200}})=({NUMBER}) *$")
STEP_TIME = "Step Time"

DIALECT = Dialect(
    name="rlinf",
    title="RLinf",
    columns={
        "step_seconds": Metric(keys=(STEP_TIME, "time/step"), scope=" [s], of the step"),
        "generation_seconds": Metric(keys=("time/rollout", "time/rollout/generate_one_epoch"), scope=" [s]"),
        "training_seconds": Metric(
            keys=("time/actor/training", "time/training", "time/actor/run_training"), scope=" [s], of the step"
        ),
        "logprob_seconds": Metric(keys=("time/actor/inference", "time/inference"), scope=" [s], of the step"),
        "reward_seconds": Metric(keys=("time/reward",), scope=" [s], of the step"),
        "sync_seconds": Metric(keys=("time/sync_weights",), scope=" [s], of the step"),
        "environment_seconds": Metric(keys=("time/env/interact",), scope=" [s], within the generation"),
        "grad_norm": Metric(keys=("training/actor/grad_norm", "training/actor/actor/grad_norm"), scope=" [1]"),
        "learning_rate": Metric(keys=("training/actor/lr", "training/actor/actor/lr"), scope=" [1]"),
        "train_reward": Metric(keys=("rollout/rewards", "rollout/rewards_mean"), scope=" [1], mean of the step"),
        "response_length": Metric(keys=("rollout/response_length",), scope=" [tokens], mean of the step"),
    },
    score=lambda name: name.startswith(("evaluation/", "eval/")),
    keys={
        "data.rollout_batch_size": "prompts",
        "algorithm.group_size": "group_size",
        "algorithm.n_minibatches": "updates_per_rollout",
        "actor.optim.lr": "learning_rate",
        "actor.model.model_path": "model",
        "actor.optim.clip_grad": "grad_clip",
    },
    rules=Rules(mini_batch="algorithm.n_minibatches", one_epoch=True),
    norms="last update of each row",
    validation=("evaluation/", "eval/"),
    advice={"score": "set runner.val_check_interval", "evaluations": "lower runner.val_check_interval"},
    paste=Keys(
        title="RLinf",
        prompts="data.rollout_batch_size",
        group_size="algorithm.group_size",
        mini_batch="algorithm.n_minibatches",
        learning_rate="actor.optim.lr",
        counts="updates",
    ),
)


class _Parser:
    """Tables, from frame to frame, of one process."""

    def __init__(self) -> None:
        self._blocks = Blocks()
        self._framed: str | None = None
        self._section = ""

    @property
    def notes(self) -> list[str]:
        return self._blocks.notes

    def read(self, text: str, line: int) -> Iterator[Entry]:
        process, text = without_ray(text)
        text, block = text.rstrip(), self._blocks.open
        if text.startswith("╭"):
            self._framed, self._section = process, ""
        elif process != self._framed:
            return
        elif text.startswith("╰"):
            self._framed = None
            if block is not None:
                block.whole = True
        elif match := _SECTION.match(text):
            self._section = match[1].strip().lower()
        elif match := _STEP.search(text):
            step, last = step_number(match[1]), step_number(match[2])
            if step is not None and last is not None:
                yield from map(entry_of, self._blocks.header(Block(step, last, line, process)))
            if (seconds := _SECONDS.search(text)) and self._blocks.open is not None:
                self._blocks.open.put(STEP_TIME, number(seconds[1]))
        elif block is not None and not block.whole:
            for cell in text.strip("│").split("│"):
                if match := _CELL.match(cell):
                    block.put(f"{self._section}/{match[1]}", number(match[2]))

    def close(self) -> Iterator[Entry]:
        yield from map(entry_of, self._blocks.last())


READER = console(
    DIALECT,
    logs="RLinf's metric tables",
    parser=_Parser,
    needles={"╭".encode(): None, "├".encode(): None, "│".encode(): None, "╰".encode(): None},
    mark=(b"Global Step: ", r"\xe2\x94\x82 *Global Step: +\d+/\d+"),
    section="rollout_batch_size",
)
