"""AReaL: a box table of metrics per training step.

    20260801-10:01:41.000 StatsLogger INFO: Epoch 1/10 Step 1/58 Train step 1/580 done.
    20260801-10:01:41.000 StatsLogger INFO: Stats (1/1):
    ╒════════════════════════════╤════════════╤═══ ...
    │ ppo_actor/update/grad_norm │ 4.1000e-01 │ ppo_actor/seq_len/avg ...
    ╘════════════════════════════╧════════════╧═══ ...

Four pairs of name and value per row of the table, five digits each. A step may have several tables, (1/2)
and (2/2); a name that returns in a later one is averaged.

Facts that matter:

- No step time is logged: it is the sum of the stages, which follow each other. `timeperf/rollout` is then the
  time that the trainer was BLOCKED: in asynchronous training most of the generation is hidden.
- `timeperf/save`, `checkpoint_for_recover` and `eval` are no part of the step.
- `ppo_actor/update/grad_norm` is before clipping and the mean over the updates.
- `ppo_actor/seq_len` holds the prompt; less `prompt_len` it is the response.
- `train_dataset.batch_size` counts prompts, `gconfig.n_samples` is the group size, `actor.ppo_n_minibatches`
  the number of updates; `ppo_actor/n_seqs` counts the responses of a step.
- Staleness is in versions of the weights, over the generated tokens.

References: areal/utils/stats_logger.py, printing.py (tabulate_stats), trainer/ppo/actor.py of inclusionAI/AReaL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from batchsim.logs.dialect import Dialect, Entry, Metric
from batchsim.logs.keys import Keys
from batchsim.logs.parts import NUMBER, Block, Blocks, step_number
from batchsim.logs.reader import console, entry_of
from batchsim.logs.recipe import Rules
from batchsim.logs.rows import number

_HEADER = re.compile(r"Train step (\d{1,10})/(\d{1,10}) done\.")
_TABLE = re.compile(r"Stats \((\d{1,6})/(\d{1,6})\):")
_NUMBER = re.compile(NUMBER)
_T = "timeperf/"
_P = "ppo_actor/"
_AGE = (_P + "update/version_stats/sample_staleness_theta_", "version_stats/sample_staleness_theta_")

DIALECT = Dialect(
    name="areal",
    title="AReaL",
    columns={
        "generation_seconds": Metric(keys=(_T + "rollout",), scope=" [s], that the trainer was blocked"),
        "training_seconds": Metric(
            keys=(_T + "train_step", _T + "critic_train_step"), scope=" [s], of the step", add=True
        ),
        "logprob_seconds": Metric(
            keys=(_T + "recompute_logp", _T + "ref_logp", _T + "critic_values", _T + "teacher_logp"),
            scope=" [s], of the step",
            add=True,
        ),
        "sync_seconds": Metric(keys=(_T + "update_weights",), scope=" [s], of the step"),
        "other_seconds": Metric(keys=(_T + "compute_advantage", _T + "rollout_pause"), scope=" [s]", add=True),
        "checkpoint_seconds": Metric(
            keys=(_T + "save", _T + "checkpoint_for_recover"), scope=" [s], after the step", add=True
        ),
        "grad_norm": Metric(keys=(_P + "update/grad_norm",), scope=" [1], before clipping"),
        "critic_grad_norm": Metric(keys=("ppo_critic/update/grad_norm",), scope=" [1], before clipping"),
        "learning_rate": Metric(keys=(_P + "update/lr",), scope=" [1]"),
        "train_reward": Metric(keys=(_P + "task_reward/avg", "rollout/reward"), scope=" [1], mean of the step"),
        "response_length": Metric(
            keys=(_P + "seq_len/avg",), less=(_P + "prompt_len/avg",), scope=" [tokens], mean of the step"
        ),
        "truncated_share": Metric(keys=(_P + "no_eos_ratios/avg",), scope=" [1], of the responses of the step"),
        "staleness_mean": Metric(
            keys=tuple(f"{prefix}avg" for prefix in _AGE), scope=" [versions of the weights], over the step's tokens"
        ),
        "staleness_max": Metric(
            keys=tuple(f"{prefix}max" for prefix in _AGE), scope=" [versions of the weights], of the step"
        ),
    },
    score=lambda name: name.startswith("eval-rollout/") and name.endswith(("reward", "reward/avg", "acc", "acc/avg")),
    keys={
        "train_dataset.batch_size": "prompts",
        "gconfig.n_samples": "group_size",
        "actor.ppo_n_minibatches": "updates_per_rollout",
        "actor.optimizer.lr": "learning_rate",
        "actor.path": "model",
        "gconfig.max_new_tokens": "max_response_length",
        "gconfig.temperature": "temperature",
        "rollout.max_concurrent_rollouts": "max_num_seqs",
        "rollout.max_head_offpolicyness": "staleness_limit",
        "actor.gradient_clipping": "grad_clip",
        "sglang.mem_fraction_static": "memory_share",
    },
    marks=frozenset((_P + "update/grad_norm", _P + "task_reward/avg", _T + "train_step")),
    rules=Rules(mini_batch="actor.ppo_n_minibatches", one_epoch=True),
    norms="mean over the updates of the step",
    evaluation=(_T + "eval",),
    counted=(_P + "n_seqs",),
    validation=("eval-rollout/", "eval/"),
    advice={
        "score": "set evaluator.freq_steps and valid_dataset",
        "evaluations": "lower evaluator.freq_steps",
        "step_seconds": "keep timeperf/rollout and timeperf/train_step",
    },
    paste=Keys(
        title="AReaL",
        prompts="train_dataset.batch_size",
        group_size="gconfig.n_samples",
        mini_batch="actor.ppo_n_minibatches",
        learning_rate="actor.optimizer.lr",
        counts="updates",
    ),
)


class _Parser:
    """Tables below the line that names their step; one counts once its last border is there."""

    def __init__(self) -> None:
        self._blocks = Blocks()
        self._place: tuple[int, int] | None = None
        self._announced = False
        self._widths: tuple[int, ...] = ()
        self._table: dict[str, float] = {}
        self._seen: dict[str, list[float]] = {}

    @property
    def notes(self) -> list[str]:
        return self._blocks.notes

    def read(self, text: str, line: int) -> Iterator[Entry]:
        if match := _HEADER.search(text):
            step, last = step_number(match[1]), step_number(match[2])
            self._place, self._announced, self._widths, self._seen = None, False, (), {}
            if step is not None and last is not None:
                yield from map(entry_of, self._blocks.header(Block(step, last, line)))
        elif self._blocks.open is not None:
            self._line(text, self._blocks.open)

    def _line(self, text: str, block: Block) -> None:
        if match := _TABLE.search(text):
            place, count = int(match[1]), int(match[2])
            expected = (1 if self._place is None else self._place[0] + 1, self._place[1] if self._place else count)
            block.broken |= (place, count) != expected or block.whole
            self._place, self._announced = (place, count), True
        elif text.startswith("╒"):
            # A table without its announcement is of a step whose first lines are missing.
            self._widths, self._table = _stops(text, "╤") if self._announced else (), {}
            self._announced = False
        elif self._widths and text.startswith("╘"):
            block.broken |= _stops(text, "╧") != self._widths
            self._widths = ()
            self._end(block)
        elif self._widths and text.startswith("│"):
            block.broken |= _stops(text[1:-1], "│") != tuple(stop - 1 for stop in self._widths)
            self._cells(text, block)

    def _cells(self, text: str, block: Block) -> None:
        cells = [cell.strip() for cell in text.strip("│").split("│")]
        for name, value in zip(cells[::2], cells[1::2], strict=False):
            if name and _NUMBER.fullmatch(value):
                block.broken |= name in self._table
                self._table[name] = number(value)

    def _end(self, block: Block) -> None:
        for name, value in self._table.items():
            self._seen.setdefault(name, []).append(value)
        self._table = {}
        block.values = {name: sum(values) / len(values) for name, values in self._seen.items()}
        block.whole = self._place is not None and self._place[0] == self._place[1]

    def close(self) -> Iterator[Entry]:
        yield from map(entry_of, self._blocks.last())


def _stops(text: str, mark: str) -> tuple[int, ...]:
    """Columns at which a line of a table is divided."""
    return tuple(place for place, character in enumerate(text) if character == mark)


READER = console(
    DIALECT,
    logs="AReaL console logs",
    parser=_Parser,
    needles={
        b"Train step ": re.compile(rb"\d"),
        b"Stats (": None,
        "│ ".encode(): None,
        "╒".encode(): None,
        "╘".encode(): None,
    },
    mark=(b"rain step ", r"Train step \d+/\d+ done\."),
    section="gconfig",
)
