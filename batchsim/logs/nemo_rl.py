"""NeMo-RL: a block of bullets per step on the console, and the merged JSON of its event files.

    ========================= Step 7/100 =========================
    📊 Training Results:
      • Avg Reward: 0.3123
    ⏱️  Timing:
      • Total step time: 112.00s
      • generation: 58.00s (51.8%)
    🔍 Performance Metrics: ...

``tests/json_dump_tb_logs.py`` of NeMo-RL merges event files into {tag: {step: value}}; tags are the names that
its trackers get, ``train/grad_norm``, ``timing/train/total_step_time``, ``validation/accuracy``.

Facts that matter:

- `num_prompts_per_step` counts prompts, `train_global_batch_size` counts RESPONSES per update, and there is one
  epoch. The console does not print them among the steps, but E2E samples per second times the step's seconds
  are the responses of a step (within the rounding).
- The gradient norm goes to trackers only: before clipping, of the LAST global batch of the step.
- The total step time holds validation and checkpointing.
- Percentages are of the total: a bullet that contradicts its own is of another step, and its block is not used.
- Asynchronous training prints `exposed_generation`, the wait that training could not hide.
- A validation prints its own number, "Starting validation at step 10", 0 before the training.

References: nemo_rl/algorithms/grpo.py and utils.py, docs and tests/json_dump_tb_logs.py of NVIDIA-NeMo/RL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from batchsim.errors import InputError
from batchsim.logs.dialect import Dialect, Entry, Event, Metric, run_of_rows
from batchsim.logs.keys import Keys
from batchsim.logs.parts import NUMBER, Block, Blocks, step_number, without_ray
from batchsim.logs.reader import Reader, check_names, console, entry_of, read_one
from batchsim.logs.recipe import Rules
from batchsim.logs.record import Run
from batchsim.logs.rows import Steps, number, whole_or_none
from batchsim.logs.source import Source

_T = "timing/train/"
TOTAL = _T + "total_step_time"
SAMPLES = "E2E (Samples/sec)"
PER_STEP = f"{SAMPLES} x total step time"
VALIDATION = "timing/validation/total_validation_time"
_HEADER = re.compile(r"^={5,} Step (\d{1,10})/(\d{1,10}) ={5,}$")
_VALIDATES = re.compile(r"Starting validation at step (\d{1,10})\b")
_BULLET = re.compile(rf"^\s*(?:•|-) (.{{1,200}}?): +({NUMBER})(s| tokens)?(?: \(({NUMBER})%\))?$")
_SECTIONS = {
    "Training Results:": "train",
    "Validation Results:": "validation",
    "Validation Timing:": "validated",
    "Performance Metrics:": "performance",
    "Timing:": "timing",
}
_TRAIN = {
    "Loss": "train/loss",
    "Generation KL Error": "train/gen_kl_error",
    "Avg Reward": "train/reward",
    "Mean Generation Length": "train/mean_gen_tokens_per_sample",
}
_VALIDATION = {
    "Accuracy": "validation/accuracy",
    "Average response length": "validation/avg_length",
    "Samples processed": "validation/num_samples",
}
_ROUNDING = 0.005
_MERGED = re.compile(r'^\{\s*"[\w./ -]+": \{\s*"\d+": ')


def _set_responses(rows: Steps, notes: list[str]) -> None:
    for row in rows.rows.values():
        if SAMPLES in row and TOTAL in row:
            row[PER_STEP] = float(round(row[SAMPLES] * row[TOTAL])) if row[SAMPLES] * row[TOTAL] < 1e9 else 0.0


DIALECT = Dialect(
    name="nemo_rl",
    title="NeMo-RL",
    columns={
        "step_seconds": Metric(keys=(TOTAL,), scope=" [s], of the step"),
        "generation_seconds": Metric(
            keys=(_T + "generation", _T + "exposed_generation"),
            scope=" [s], of the step; exposed_generation is what training does not hide (asynchronous)",
        ),
        "training_seconds": Metric(keys=(_T + "policy_training",), scope=" [s], of the step"),
        "logprob_seconds": Metric(keys=(_T + "policy_and_reference_logprobs",), scope=" [s], of the step"),
        "reward_seconds": Metric(keys=(_T + "reward_calculation",), scope=" [s], of the step"),
        "sync_seconds": Metric(
            keys=(_T + "prepare_for_generation/total", _T + "weight_sync"), scope=" [s], of the step"
        ),
        "checkpoint_seconds": Metric(keys=(_T + "checkpointing",), scope=" [s], of the step"),
        "grad_norm": Metric(keys=("train/grad_norm",), scope=" [1], before clipping"),
        "learning_rate": Metric(keys=("train/lr",), scope=" [1]"),
        "train_reward": Metric(keys=("train/reward",), scope=" [1], mean of the step"),
        "response_length": Metric(keys=("train/mean_gen_tokens_per_sample",), scope=" [tokens], mean of the step"),
        "truncated_share": Metric(keys=("train/truncation_rate",), scope=" [1], of the responses of the step"),
    },
    score=lambda name: (
        name.startswith("validation/") and not name.endswith(("avg_length", "num_samples")) and "/" not in name[11:]
    ),
    keys={
        "grpo.num_prompts_per_step": "prompts",
        "num_prompts_per_step": "prompts",
        "grpo.num_generations_per_prompt": "group_size",
        "num_generations_per_prompt": "group_size",
        "policy.train_global_batch_size": "train_batch",
        "train_global_batch_size": "train_batch",
        "policy.optimizer.kwargs.lr": "learning_rate",
        "policy.model_name": "model",
        "policy.max_total_sequence_length": "max_sequence_length",
        "policy.generation.vllm_cfg.tensor_parallel_size": "tensor_parallel",
        "policy.generation.vllm_cfg.gpu_memory_utilization": "memory_share",
        "policy.max_grad_norm": "grad_clip",
        "grpo.async_grpo.max_trajectory_age_steps": "staleness_limit",
    },
    marks=frozenset((TOTAL, "train/gen_kl_error", "train/global_valid_seqs", "train/token_mult_prob_error")),
    rules=Rules(mini_batch="policy.train_global_batch_size", one_epoch=True),
    norms="last update of each row",
    events=(
        Event(name="validation", keys=(VALIDATION,), included=True),
        Event(name="checkpointing", keys=(_T + "checkpointing",), included=True),
    ),
    evaluation=(VALIDATION,),
    samples=("validation/num_samples",),
    counted=(PER_STEP,),
    prepare=_set_responses,
    validation=("validation/", "timing/validation/"),
    advice={
        "score": "set grpo.val_period",
        "evaluations": "lower grpo.val_period, set grpo.val_at_start",
        "grad_norm": "the console lacks it: give the event files, or their merged JSON (tests/json_dump_tb_logs.py)",
        "evaluation_seconds": "keep the lines below 'Validation Timing:'",
    },
    paste=Keys(
        title="NeMo-RL",
        prompts="grpo.num_prompts_per_step",
        group_size="grpo.num_generations_per_prompt",
        mini_batch="policy.train_global_batch_size",
        learning_rate="policy.optimizer.kwargs.lr",
    ),
)


class _Parser:
    """Blocks of bullets, and validations by their own number."""

    def __init__(self) -> None:
        self._blocks = Blocks()
        self._section = ""
        self._validated: int | None = None
        self._seconds = 0.0
        self._done: list[Entry] = []

    @property
    def notes(self) -> list[str]:
        return self._blocks.notes

    def read(self, text: str, line: int) -> Iterator[Entry]:
        _, text = without_ray(text)
        text = text.rstrip()
        if match := _HEADER.match(text):
            step, last = step_number(match[1]), step_number(match[2])
            self._section = ""
            if step is not None and last is not None:
                yield from map(entry_of, self._blocks.header(Block(step, last, line)))
        elif match := _VALIDATES.search(text):
            self._section, self._validated = "", step_number(match[1])
        elif text.endswith(":") and (name := next((s for s in _SECTIONS if text.endswith(s)), None)):
            self._section = _SECTIONS[name]
        elif self._section and (match := _BULLET.match(text)):
            yield from self._bullet(match, line)

    def _bullet(self, match: re.Match[str], line: int) -> Iterator[Entry]:
        name, value = match[1], number(match[2])
        block = self._blocks.open
        if self._section in ("validation", "validated"):
            yield from self._validation(name, value, line)
        elif block is None:
            return
        elif self._section == "train" and name in _TRAIN:
            block.put(_TRAIN[name], value)
        elif self._section == "performance" and name == SAMPLES:
            block.put(SAMPLES, value)
        elif self._section == "timing" and match[3] == "s":
            if name == "Total step time":
                block.put(TOTAL, value)
                block.whole, self._seconds = True, value
            else:
                block.put(_T + name, value)
                block.broken |= not _is_share(value, self._seconds, number(match[4]))

    def _validation(self, name: str, value: float, line: int) -> Iterator[Entry]:
        block = self._blocks.open
        step = self._validated if self._validated is not None else (0 if block is None else block.step)
        if name in _VALIDATION:
            yield Entry(step, {_VALIDATION[name]: value}, line)
        elif name == "Total validation time":
            yield Entry(step, {VALIDATION: value}, line)
            if block is not None and block.step == step:
                block.put(VALIDATION, value)

    def close(self) -> Iterator[Entry]:
        yield from map(entry_of, self._blocks.last())


def _is_share(seconds: float, whole: float, percent: float) -> bool:
    """Whether a printed share fits the printed seconds, as far as both are rounded."""
    if not whole > 0 or percent != percent:
        return percent != percent or percent == 0
    slack = 0.05 + 100 * _ROUNDING * (1 + seconds / whole) / whole
    return abs(100 * seconds / whole - percent) <= 1.01 * slack


_NEEDLES = {
    b" Step ": re.compile(rb"\d"),
    b"\xe2\x80\xa2 ": None,
    b"    - E2E (Samples/sec): ": None,
    b"validation at step ": None,
    b"Results:": None,
    b"Timing:": None,
    b"Metrics:": None,
}


def is_merged(source: Source) -> bool:
    """Whether a source is the merged JSON of event files."""
    return not source.binary and _MERGED.match(source.head.lstrip()) is not None


def read(sources: Sequence[Source]) -> list[Run]:
    """A run per merged JSON, and every run of a console log."""
    runs: list[Run] = []
    for source in sources:
        runs += [_merged(source)] if is_merged(source) else read_one(DIALECT, source, _Parser(), _NEEDLES)
    return runs


def _merged(source: Source) -> Run:
    try:
        tags: Any = json.loads(source.text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"the JSON is damaged or ends early ({getattr(error, 'msg', error)})",
            remedy="merge the event files again",
            where=source.where(getattr(error, "lineno", 1)),
        ) from error
    rows: dict[int, dict[str, float]] = {}
    unplaced = 0
    for tag, values in tags.items():
        for key, value in values.items() if isinstance(values, dict) else ():
            step = whole_or_none(key)
            if step is None:
                unplaced += 1
                continue
            rows.setdefault(step, {})[str(tag)] = number(value)
    check_names(tags, set(), source, 1)
    if DIALECT.marks.isdisjoint(tags):
        raise InputError(
            "the merged event files hold none of NeMo-RL's metrics (train/..., timing/train/...)",
            remedy="merge those of a GRPO run",
            where=source.path,
        )
    notes = [*source.warnings, *([f"{unplaced} values have no whole step and were not used"] if unplaced else [])]
    return run_of_rows(DIALECT, source, sorted(rows.items()), {}, notes)


_CONSOLE = console(
    DIALECT,
    logs="",
    parser=_Parser,
    needles=_NEEDLES,
    mark=(b"tep", r"={5,} Step \d+/\d+ ={5,}|\xe2\x80\xa2 Total step time: "),
)
READER = Reader(
    name=DIALECT.name,
    logs="NeMo-RL console logs and the merged JSON of its event files",
    read=read,
    begins=is_merged,
    holds=_CONSOLE.holds,
    dialect=DIALECT,
    section="num_prompts_per_step",
)
