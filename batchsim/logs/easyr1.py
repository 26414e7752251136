"""EasyR1: `experiment_log.jsonl`, one JSON object per step whose groups are nested.

    {"step": 1, "actor": {"grad_norm": 0.3, "lr": 1e-06}, "timing_s": {"gen": 30.0, "step": 90.0}, ...}

Joined by slashes the names are verl's, of which EasyR1 is a branch: ``actor/grad_norm``, ``timing_s/step``.
`experiment_config.json` beside the log states the recipe.

Facts that matter:

- `data.rollout_batch_size` and `worker.actor.global_batch_size` count prompts, `worker.rollout.n` is the group
  size, `worker.actor.ppo_epochs` the number of passes.
- `actor/grad_norm` is before clipping and the mean over the mini-batches.
- `timing_s/step` holds validation and checkpoints in some versions.
- Scores are ``val/reward_score`` and ``val/NAME_reward``; step 0 is the evaluation before the training.
- Total tokens over mean lengths count the responses of a step, as in verl.
- The console prints the same groups over many indented lines, which are not read.

References: verl/utils/logger/logger.py and verl/trainer of hiyouga/EasyR1.
"""

from __future__ import annotations

import math

from batchsim.logs.dialect import Dialect, Event, Metric
from batchsim.logs.keys import Keys
from batchsim.logs.reader import Objects, console
from batchsim.logs.recipe import Rules
from batchsim.logs.rows import Steps

_T = "timing_s/"
RESPONSES = "perf/total_num_tokens / (prompt_length/mean + response_length/mean)"


def _count_responses(rows: Steps, notes: list[str]) -> None:
    for row in rows.rows.values():
        length = row.get("prompt_length/mean", math.nan) + row.get("response_length/mean", math.nan)
        tokens = row.get("perf/total_num_tokens", math.nan)
        if length > 0 and math.isfinite(tokens / length):
            row[RESPONSES] = tokens / length


DIALECT = Dialect(
    name="easyr1",
    title="EasyR1",
    columns={
        "step_seconds": Metric(keys=(_T + "step", "perf/time_per_step"), scope=" [s], of the step"),
        "generation_seconds": Metric(keys=(_T + "gen",), scope=" [s], of the step"),
        "training_seconds": Metric(keys=(_T + "update_actor", _T + "update_critic"), scope=" [s]", add=True),
        "logprob_seconds": Metric(keys=(_T + "old", _T + "ref", _T + "values"), scope=" [s], of the step", add=True),
        "reward_seconds": Metric(keys=(_T + "reward", _T + "adv"), scope=" [s], of the step", add=True),
        "checkpoint_seconds": Metric(keys=(_T + "save_checkpoint",), scope=" [s], of the step"),
        "grad_norm": Metric(keys=("actor/grad_norm",), scope=" [1], before clipping"),
        "critic_grad_norm": Metric(keys=("critic/grad_norm",), scope=" [1], before clipping"),
        "learning_rate": Metric(keys=("actor/lr",), scope=" [1]"),
        "train_reward": Metric(
            keys=("critic/rewards/mean", "critic/score/mean", "reward/overall"), scope=" [1], mean of the step"
        ),
        "response_length": Metric(keys=("response_length/mean",), scope=" [tokens], mean of the step"),
        "response_length_max": Metric(keys=("response_length/max",), scope=" [tokens], longest of the step"),
        "truncated_share": Metric(keys=("response_length/clip_ratio",), scope=" [1], of the responses of the step"),
    },
    score=lambda name: name.startswith("val/") and name.endswith(("reward_score", "_reward", "pass@1")),
    keys={
        "data.rollout_batch_size": "prompts",
        "worker.rollout.n": "group_size",
        "worker.actor.global_batch_size": "mini_prompts",
        "worker.actor.ppo_epochs": "epochs",
        "worker.actor.optim.lr": "learning_rate",
        "worker.actor.model.model_path": "model",
        "worker.actor.max_grad_norm": "grad_clip",
        "worker.rollout.gpu_memory_utilization": "memory_share",
        "worker.rollout.tensor_parallel_size": "tensor_parallel",
        "worker.rollout.temperature": "temperature",
        "data.max_prompt_length": "max_prompt_length",
        "data.max_response_length": "max_response_length",
    },
    rules=Rules(mini_batch="worker.actor.global_batch_size"),
    norms="mean over the updates of the step",
    events=(
        Event(name="testing", keys=(_T + "testing", _T + "validation"), included=True),
        Event(name="save_checkpoint", keys=(_T + "save_checkpoint",), included=True),
    ),
    evaluation=(_T + "testing", _T + "validation"),
    validation=("val/", "val_response_length/", "val_prompt_length/"),
    counted=(RESPONSES,),
    prepare=_count_responses,
    advice={"score": "set trainer.val_freq", "evaluations": "lower trainer.val_freq, set trainer.val_before_train"},
    paste=Keys(
        title="EasyR1",
        prompts="data.rollout_batch_size",
        group_size="worker.rollout.n",
        mini_batch="worker.actor.global_batch_size",
        learning_rate="worker.actor.optim.lr",
        epochs="worker.actor.ppo_epochs",
        counts="prompts",
    ),
)


READER = console(
    DIALECT,
    logs="EasyR1's experiment_log.jsonl",
    parser=Objects,
    needles={b'{"': None},
    mark=(b'{"step": ', r'^\{"step": \d+, .*"(?:actor|timing_s|val|reward)": \{'),
    section="rollout_batch_size",
    beside=("experiment_config.json",),
)
