"""The Tinker cookbook's `metrics.jsonl`: one flat JSON object per training iteration.

    {"step": 3, "progress/batch": 3, "optim/lr": 4e-05, "env/all/reward/total": 0.3, "time/total": 105.0, ...}

`config.json` beside it states the recipe.

Facts that matter:

- Iterations count from 0. The scores of a row (``test/...``) were measured BEFORE its training.
- `env/all/total_episodes` counts the responses of an iteration, after groups of equal rewards were removed where
  `remove_constant_reward_groups` is set: it varies then, and `responses` is its running sum.
- `groups_per_batch` counts prompts; `num_substeps` optimizer steps share an iteration, one pass over it.
- The service does the optimizer step: the cookbook logs no gradient norm. A back end that returns one
  (``unclipped_grad_l2:mean``) is read.
- `time/total` is the whole iteration with its evaluation; a span that occurred once is ``time/NAME``, one that
  repeated ``time/NAME:total`` (of parallel calls, so that it is no stage of the step).
- `sampling_client/step_*` is the iteration whose weights sampled; its distance from the step is the staleness.

References: tinker_cookbook/rl/train.py and utils/trace.py of thinking-machines-lab/tinker-cookbook.
"""

from __future__ import annotations

import math

from batchsim.logs.dialect import Dialect, Event, Metric
from batchsim.logs.keys import Keys
from batchsim.logs.reader import Objects, console
from batchsim.logs.recipe import Rules
from batchsim.logs.rows import Steps

_T = "time/"
EPISODES = "env/all/total_episodes"
RESPONSES = f"running sum of {EPISODES}"
STALEST = "step - sampling_client/step_min"
_STALE = "step - sampling_client/step_mean"
_EVALUATES = (_T + "run_evaluations_parallel", _T + "run_evals")


def _prepare(rows: Steps, notes: list[str]) -> None:
    """Responses so far, where every iteration counts them, and how old the sampler's weights were."""
    count, expected = 0.0, 0
    for step, row in rows.rows.items():
        episodes = row.get(EPISODES, math.nan)
        if step == expected and episodes > 0 and math.isfinite(episodes):
            count, expected = count + episodes, step + 1
            row[RESPONSES] = count
        for name, key in ((STALEST, "step_min"), (_STALE, "step_mean")):
            if math.isfinite(sampled := row.get(f"sampling_client/{key}", math.nan)):
                row[name] = step - sampled
    if len({row.get(EPISODES, math.nan) for row in rows.rows.values()}) == 1 or expected < len(rows.rows):
        # A constant count says no more than the recipe, and a gap ends the sum.
        for row in rows.rows.values():
            row.pop(RESPONSES, None)


DIALECT = Dialect(
    name="tinker",
    title="the Tinker cookbook",
    columns={
        "responses": Metric(keys=(RESPONSES,), scope=" [responses]"),
        "step_seconds": Metric(keys=(_T + "total",), scope=" [s], of the iteration"),
        "generation_seconds": Metric(keys=(_T + "sampling", _T + "sampling_time_max"), scope=" [s], of the iteration"),
        "training_seconds": Metric(keys=(_T + "train_step", _T + "train"), scope=" [s], of the iteration"),
        "sync_seconds": Metric(
            keys=(_T + "save_checkpoint_and_get_sampling_client", _T + "save_checkpoint"), scope=" [s]"
        ),
        "grad_norm": Metric(keys=("unclipped_grad_l2:mean", "optim/grad_norm"), scope=" [1], before clipping"),
        "learning_rate": Metric(keys=("optim/lr",), scope=" [1]"),
        "train_reward": Metric(keys=("env/all/reward/total",), scope=" [1], mean of the iteration"),
        "response_length": Metric(
            keys=("env/all/ac_tokens_per_trajectory", "env/all/ac_tokens_per_turn"), scope=" [tokens], mean"
        ),
        "truncated_share": Metric(
            keys=("env/all/ac_tokens_frac_at_max", "env/all/truncated"), scope=" [1], of the turns of the iteration"
        ),
        "staleness_mean": Metric(keys=(_STALE,), scope=" [iterations]"),
        "staleness_max": Metric(keys=(STALEST,), scope=" [iterations]"),
    },
    score=lambda name: name.startswith("test/") and name.endswith(("env/all/correct", "env/all/reward/total")),
    keys={
        "groups_per_batch": "prompts",
        "dataset_builder.groups_per_batch": "prompts",
        "dataset_builder.batch_size": "prompts",
        "group_size": "group_size",
        "dataset_builder.group_size": "group_size",
        "num_substeps": "updates_per_rollout",
        "learning_rate": "learning_rate",
        "model_name": "model",
        "max_tokens": "max_response_length",
        "temperature": "temperature",
        "async_config.max_steps_off_policy": "staleness_limit",
    },
    marks=frozenset(("progress/done_frac", EPISODES, "env/all/ac_tokens_per_turn")),
    rules=Rules(mini_batch="num_substeps", one_epoch=True),
    norms="mean over the updates of the step",
    first=0,
    evaluated_before=True,
    events=(Event(name="the evaluation", keys=_EVALUATES, included=True),),
    evaluation=_EVALUATES,
    samples=("test/env/all/total_episodes", "test/test/env/all/total_episodes"),
    validation=("test/",),
    counted=(EPISODES,),
    prepare=_prepare,
    advice={
        "score": "set eval_every and a test data set",
        "evaluations": "lower eval_every",
        "grad_norm": "the service does the optimizer step and the cookbook logs no norm",
    },
    paste=Keys(
        title="the Tinker cookbook",
        prompts="groups_per_batch",
        group_size="group_size",
        mini_batch="num_substeps",
        learning_rate="learning_rate",
        counts="updates",
    ),
)


READER = console(
    DIALECT,
    logs="the Tinker cookbook's metrics.jsonl",
    parser=Objects,
    needles={b'{"': None},
    mark=(b'": ', r'"(?:env/all/|progress/done_frac)'),
    section="model_name",
    beside=("config.json",),
)
