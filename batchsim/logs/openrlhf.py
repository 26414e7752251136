"""OpenRLHF: ``Global step 12: {...}`` on the console, a printed dictionary per rollout step.

Evaluations are lines of their own: ``Evaluation completed in 00:03:12, global_step 10, eval_metrics: {...}``,
or ``Eval at step 10: {...}`` where they run beside the training. Trackers get the same names behind
``train/`` and ``eval/``.

Facts that matter:

- ``rollout.batch_size`` counts prompts, ``train.batch_size`` counts RESPONSES per optimizer step (before
  version 0.10: ``rollout_batch_size``, ``train_batch_size``).
- `actor_grad_norm` is before clipping and that of the LAST mini-batch of the step.
- `timing/step_total` of synchronous training is the sum of the phases; of asynchronous training it is the
  trainer's clock, and `timing/generation` ran beside it. Neither holds evaluations.
- `timing/make_experience` holds rewards and log-probabilities together.
- `dynamic_filtering_pass_rate` is a percentage of prompt groups.
- Percentages, lengths and rewards are means over what was kept.
- `eval_*_pass1` is the mean over samples, `eval_*_pass{n}` the best of n. The number of samples counts
  responses.

References: openrlhf/trainer/ppo_trainer.py, ppo_trainer_async.py and ray/ppo_actor.py of OpenRLHF/OpenRLHF.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from batchsim.logs.dialect import Dialect, Entry, Metric
from batchsim.logs.keys import Keys
from batchsim.logs.parts import printed_dict, step_number
from batchsim.logs.reader import Lines, console
from batchsim.logs.recipe import Rules

_STEP = re.compile(r"Global step (\d{1,10})(?: \[\w+\])?: (?=\{)")
_EVALUATED = re.compile(r"Evaluation completed in (\d+):(\d\d):(\d\d), global_step (\d{1,10}), eval_metrics: (?=\{)")
_EVALUATED_BESIDE = re.compile(r"Eval at step (\d{1,10}): (?=\{)")
EVALUATION_SECONDS = "evaluation completed in"
_NOT_SCORES = ("_num_samples", "_response_length_mean", "_truncated_rate")

DIALECT = Dialect(
    name="openrlhf",
    title="OpenRLHF",
    columns={
        "step_seconds": Metric(keys=("timing/step_total",), scope=" [s], evaluation excluded"),
        "generation_seconds": Metric(keys=("timing/generation",), scope=" [s], of the step"),
        "logprob_seconds": Metric(
            keys=("timing/make_experience",), scope=" [s], of the step, rewards and log-probabilities together"
        ),
        "training_seconds": Metric(keys=("timing/ppo_train", "timing/policy_train"), scope=" [s], of the step"),
        "sync_seconds": Metric(keys=("timing/broadcast",), scope=" [s], of the step"),
        "grad_norm": Metric(keys=("actor_grad_norm",), scope=" [1], before clipping"),
        "critic_grad_norm": Metric(keys=("critic_grad_norm",), scope=" [1], before clipping"),
        "learning_rate": Metric(keys=("actor_lr",), scope=" [1]"),
        "train_reward": Metric(keys=("rollout/reward_mean", "reward"), scope=" [1], mean of the step"),
        "response_length": Metric(
            keys=("rollout/response_length_mean", "response_length"), scope=" [tokens], mean of the step"
        ),
        "truncated_share": Metric(keys=("rollout/truncated_rate",), scope=" [1], share of the responses of the step"),
        "kept_share": Metric(
            keys=("dynamic_filtering_pass_rate",), scope=" [%] / 100, of the prompt groups of the step", factor=0.01
        ),
    },
    score=lambda name: name.startswith("eval_") and not name.endswith(_NOT_SCORES),
    keys={
        "rollout.batch_size": "prompts",
        "rollout-batch-size": "prompts",
        "rollout.n_samples_per_prompt": "group_size",
        "n-samples-per-prompt": "group_size",
        "train.batch_size": "train_batch",
        "train-batch-size": "train_batch",
        "train.max_epochs": "epochs",
        "max-epochs": "epochs",
        "actor.adam.lr": "learning_rate",
        "actor-learning-rate": "learning_rate",
        "actor.model_name_or_path": "model",
        "--pretrain": "model",
        "vllm.gpu_memory_utilization": "memory_share",
        "vllm-gpu-memory-utilization": "memory_share",
        "vllm.tensor_parallel_size": "tensor_parallel",
        "vllm-tensor-parallel-size": "tensor_parallel",
        "train.async_queue_size": "staleness_limit",
    },
    # actor_grad_norm alone is a column of our own tables too.
    marks=frozenset(("timing/step_total", "timing/make_experience", "train/actor_grad_norm", "train/actor_lr")),
    rules=Rules(mini_batch="train.batch_size"),
    norms="last update of each row",
    evaluation=(EVALUATION_SECONDS,),
    samples=("eval_num_samples",),
    counted=("rollout/num_samples",),
    prefixes=("train/", "eval/"),
    axis="train/global_step",
    counts_calls=True,
    validation=("eval_",),
    advice={
        "score": "set eval.steps and eval.dataset",
        "evaluations": "lower eval.steps",
        "phases": "keep timing/generation and timing/ppo_train",
        "evaluation_seconds": "keep the line 'Evaluation completed in ...'",
    },
    paste=Keys(
        title="OpenRLHF",
        prompts="rollout.batch_size",
        group_size="rollout.n_samples_per_prompt",
        mini_batch="train.batch_size",
        learning_rate="actor.adam.lr",
        epochs="train.max_epochs",
        option="--{key} {value}",
    ),
)


def _rows(text: str, line: int) -> Iterator[Entry]:
    for pattern in (_STEP, _EVALUATED_BESIDE, _EVALUATED):
        for match in pattern.finditer(text):
            step, values = step_number(match[1] if pattern is not _EVALUATED else match[4]), None
            if step is not None:
                values = printed_dict(text, match.end())
            if step is None or not values:
                continue
            if pattern is _EVALUATED:
                hours, minutes, seconds = (float(match[place]) for place in (1, 2, 3))
                values[EVALUATION_SECONDS] = 3600 * hours + 60 * minutes + seconds
            yield Entry(step, values, line)


READER = console(
    DIALECT,
    logs="OpenRLHF console logs",
    parser=lambda: Lines(_rows),
    needles={b"Global step ": None, b"Evaluation completed in ": None, b"Eval at step ": None},
    mark=(b"lobal", r"Global step \d+(?: \[\w+\])?: \{'|Evaluation completed in [\d:]+, global_step "),
)
