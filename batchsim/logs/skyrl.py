"""SkyRL: a printed dictionary over many lines per step, floats as text of four decimals.

    2026-08-01 10:01:41.000 | INFO | skyrl...: Step 12:
    {'async/keep_rate': '0.9000',
     'generate/avg_num_tokens': '812.4000',
     ...
     'trainer/global_step': 12}

Facts that matter:

- Four decimals round a learning rate of 1e-6 to 0.0000: zeros are unknown, and small norms are coarse.
- `trainer.train_batch_size` and `policy_mini_batch_size` count prompts, `generator.n_samples_per_prompt` is the
  group size, `update_epochs_per_batch` the number of passes.
- `timing/step` holds checkpoints; evaluation (`timing/eval`) comes after it.
- `policy/grad_norm` is before clipping and the mean over the mini-batches.
- `generate/batch_num_seq` counts responses. The filter for groups of equal rewards masks their loss and keeps
  them in the batch, so that the batch that teaches is smaller: `reward/num_zero_variance_filtered`.
- Step 0 is the evaluation before the training.
- Keys are sorted, and a dictionary counts if it closes; it must come from the process that printed its header.

References: skyrl/train/trainer.py and skyrl/train/utils/tracking.py of NovaSky-AI/SkyRL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from batchsim.logs.dialect import Dialect, Entry, Event, Metric
from batchsim.logs.keys import Keys
from batchsim.logs.parts import NUMBER, Block, Blocks, step_number, without_ray
from batchsim.logs.reader import console, entry_of
from batchsim.logs.recipe import Rules
from batchsim.logs.rows import number

_HEADER = re.compile(r"(?:^|[\s:-])Step (\d{1,10}): ?$")
_PAIR = re.compile(rf"^([{{ ])'([^']{{1,300}})': (?:'({NUMBER})'|({NUMBER}))([,}}])$")
_OTHER = re.compile(r"^([{ ])'([^']{1,300})': .*([,}])$")
_T = "timing/"
_SCORES = ("avg_score", "mean_positive_reward")

DIALECT = Dialect(
    name="skyrl",
    title="SkyRL",
    columns={
        "step_seconds": Metric(keys=(_T + "step",), scope=" [s], of the step"),
        "generation_seconds": Metric(keys=(_T + "generate", _T + "wait_for_generation_buffer"), scope=" [s]"),
        "training_seconds": Metric(keys=(_T + "train_critic_and_policy", _T + "policy_train"), scope=" [s]"),
        "logprob_seconds": Metric(keys=(_T + "fwd_logprobs_values_reward",), scope=" [s], of the step"),
        "reward_seconds": Metric(
            keys=(_T + "postprocess_generator_output", _T + "compute_advantages_and_returns"), scope=" [s]", add=True
        ),
        "sync_seconds": Metric(keys=(_T + "sync_weights",), scope=" [s], of the step"),
        "checkpoint_seconds": Metric(keys=(_T + "save_checkpoints", _T + "save_hf_model"), scope=" [s]", add=True),
        "grad_norm": Metric(keys=("policy/grad_norm", "policy/raw_grad_norm"), scope=" [1], before clipping"),
        "critic_grad_norm": Metric(keys=("critic/grad_norm",), scope=" [1], before clipping"),
        "learning_rate": Metric(keys=("policy/policy_lr", "policy/lr"), scope=" [1]", zero_unknown=True),
        "train_reward": Metric(keys=("reward/avg_raw_reward",), scope=" [1], mean of the step"),
        "response_length": Metric(keys=("generate/avg_num_tokens",), scope=" [tokens], mean of the step"),
        "response_length_max": Metric(keys=("generate/max_num_tokens",), scope=" [tokens], longest of the step"),
        "kept_share": Metric(keys=("async/keep_rate",), scope=" [1], of the groups of the step"),
        "staleness_mean": Metric(keys=("async/staleness_mean",), scope=" [versions of the weights], of the step"),
        "staleness_max": Metric(keys=("async/staleness_max",), scope=" [versions of the weights], of the step"),
    },
    score=lambda name: name.startswith("eval/") and (name.endswith(_SCORES) or "/pass_at_" in name),
    keys={
        "trainer.train_batch_size": "prompts",
        "generator.n_samples_per_prompt": "group_size",
        "trainer.policy_mini_batch_size": "mini_prompts",
        "trainer.update_epochs_per_batch": "epochs",
        "trainer.policy.optimizer_config.lr": "learning_rate",
        "trainer.policy.optimizer_config.max_grad_norm": "grad_clip",
        "trainer.policy.model.path": "model",
        "generator.inference_engine.max_num_seqs": "max_num_seqs",
        "generator.max_num_seqs": "max_num_seqs",
        "generator.inference_engine.tensor_parallel_size": "tensor_parallel",
        "generator.inference_engine_tensor_parallel_size": "tensor_parallel",
        "generator.gpu_memory_utilization": "memory_share",
        "generator.sampling_params.max_generate_length": "max_response_length",
        "trainer.fully_async.max_staleness_steps": "staleness_limit",
    },
    marks=frozenset(
        ("trainer/tokens_per_second_per_gpu", "generate/avg_num_tokens", "timing/fwd_logprobs_values_reward")
    ),
    rules=Rules(mini_batch="trainer.policy_mini_batch_size"),
    norms="mean over the updates of the step",
    events=(
        Event(name="save_checkpoints", keys=(_T + "save_checkpoints",), included=True),
        Event(name="save_hf_model", keys=(_T + "save_hf_model",), included=True),
    ),
    evaluation=(_T + "eval",),
    counted=("generate/batch_num_seq",),
    validation=("eval/",),
    advice={
        "score": "set trainer.eval_interval",
        "evaluations": "lower trainer.eval_interval, set trainer.eval_before_train",
    },
    paste=Keys(
        title="SkyRL",
        prompts="trainer.train_batch_size",
        group_size="generator.n_samples_per_prompt",
        mini_batch="trainer.policy_mini_batch_size",
        learning_rate="trainer.policy.optimizer_config.lr",
        epochs="trainer.update_epochs_per_batch",
        counts="prompts",
    ),
)


class _Parser:
    """Dictionaries below the line that names their step."""

    def __init__(self) -> None:
        self._blocks = Blocks()
        self._last = ""
        self._begun = False

    @property
    def notes(self) -> list[str]:
        return self._blocks.notes

    def read(self, text: str, line: int) -> Iterator[Entry]:
        process, text = without_ray(text)
        if not text.startswith(("{'", " '")):
            if (match := _HEADER.search(text)) and (step := step_number(match[1])) is not None:
                self._last, self._begun = "", False
                yield from map(entry_of, self._blocks.header(Block(step, 0, line, process)))
            return
        block = self._blocks.open
        if block is None or block.whole or process != block.process:
            return
        pair = _PAIR.match(text) or _OTHER.match(text)
        if pair is None:
            return
        opens, name, ends = pair[1] == "{", pair[2], pair[pair.re.groups] == "}"
        # Keys are sorted: one that is not, and a brace in the middle, come from another dictionary.
        block.broken |= opens == self._begun or name <= self._last
        self._begun, self._last = True, name
        if pair.re is _PAIR:
            block.put(name, number(pair[3] or pair[4]))
        block.whole = ends

    def close(self) -> Iterator[Entry]:
        yield from map(entry_of, self._blocks.last())


READER = console(
    DIALECT,
    logs="SkyRL console logs",
    parser=_Parser,
    needles={b"Step ": re.compile(rb"\d+: ?\r?\n"), b"': ": None},
    mark=(
        b"': ",
        r"'(?:trainer/tokens_per_second_per_gpu|generate/avg_num_tokens|timing/fwd_logprobs_values_reward)': ",
    ),
    section="policy_mini_batch_size",
)
