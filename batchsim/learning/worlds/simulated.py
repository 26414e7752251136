r"""Runs of worlds in the layout of logs, for everything that reads logs.

`simulate_grpo`, `simulate_ppo` and `simulate_quadratic` train a world and hand its runs on as `batchsim.read_logs`
hands on a log: `measure`, `calibrate` and `predict` take them as they are, and here the truth is known. Each run has
its updates, gradient norms, chunk norms, rewards and scores from a real optimizer; only time is a law,

    t_step = tau_0 + tau_1 x responses GENERATED

so that groups thrown away cost time. q counts kept responses: with a share s of them kept, q = B/(tau_0 + tau_1 B/s).

Norms are root mean squares over the updates of a rollout step, of batches of B = P G E/M responses. Chunk norms are
those of 8 chunks, or of as many as an update has groups. Where groups are dropped a batch has no fixed size, and chunk
norms are left out.

A noisy quadratic's score is 1 - L(x)/L(start), L(start) the expected loss of the start, one yardstick for all runs; it
is 0 where nothing has been gained, so that scores stay within [0, 1]. Its runs are the trajectories whose mean
`expected_loss` knows, with noise that is exact in distribution at O(D) per update (see `_simulated_kernels`).

A run ends at the target, after `responses_max`, where it diverges, or where no group has a signal left; which of them
is its attribute `status`. A target that is not reached is right-censored for whoever reads the scores. Every number
depends on `seed`, the arm's place and the run's, never on threads.

References
----------
.. [1] Li et al. 2026, arXiv:2608.29296 (N*, q and T of runs at several batches).
.. [2] Zhang et al. 2019, arXiv:1907.04164 (noisy quadratic).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchsim.errors import InputError
from batchsim.learning.lr_rule import LRRule
from batchsim.learning.worlds import _simulated_kernels as kernels
from batchsim.learning.worlds._policy_kernels import CHUNKS
from batchsim.learning.worlds.policy_gradient import Trained, Trainer, train
from batchsim.learning.worlds.quadratic import Optimizer, Quadratic
from batchsim.learning.worlds.run_layout import (
    METRIC,
    Law,
    broadcast,
    check_counts,
    check_positive,
    check_rows,
    goal,
    layout_of,
    numba_threads,
    rates_of,
    recipe_of,
    run_names,
    tree_of,
    whole,
)
from batchsim.learning.worlds.softmax import Floats, SoftmaxWorld

if TYPE_CHECKING:
    import xarray as xr

STATUSES = ("running", "reached", "diverges", "too many responses")
"""Of the noisy quadratic's runs, in the order of the kernel's codes; policies also end with "no signal"."""
STEP_TIME_INTERCEPT = 10.0
"""[s]."""
STEP_TIME_SLOPE = 0.05
"""[s/response]."""
BATCH_MAX = 2**40


def simulate_grpo(
    world: SoftmaxWorld,
    *,
    prompts: ArrayLike,
    learning_rate: ArrayLike,
    group_size: ArrayLike = 8,
    lr_rule: LRRule | None = None,
    trainer: Trainer | None = None,
    staleness: ArrayLike = 0,
    responses_max: ArrayLike,
    target: float | None = None,
    evaluate_every: ArrayLike | None = None,
    mean_at: tuple[int, int] = (0, 0),
    step_time_intercept: float = STEP_TIME_INTERCEPT,
    step_time_slope: float = STEP_TIME_SLOPE,
    evaluation_seconds: float = 0.0,
    seeds: int = 1,
    seed: int = 0,
    threads: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> xr.DataTree:
    """Train a softmax policy by GRPO at several batches and return its runs as logs.

    Parameters
    ----------
    world : SoftmaxWorld
    prompts, group_size, staleness : array_like, broadcast to (arm,)
        P [prompts]; G [responses/prompt]; age of the responses [versions].
    learning_rate : array_like, scalar or (arm,) [1]
        One per arm; or one at the smallest batch, which `lr_rule` takes to the others.
    lr_rule : {'fixed', 'sqrt', 'linear'}, callable or None
        With one learning rate only; None is 'fixed'.
    trainer : Trainer or None
        Of algorithm 'grpo'; `Trainer()` if None.
    responses_max : array_like, broadcast to (arm,) [responses]
        Kept responses after which a run ends with its rollout step.
    target : float or None [1]
        Exact score at which a run ends.
    evaluate_every : array_like or None, broadcast to (arm,) [responses]
        Evaluations follow the first rollout steps at or beyond multiples of it; responses_max/100 if None.
    mean_at : (int, int)
        Validation prompts and samples of each for a second, noisy score `val/mean@k`, of which `measure` then wants to
        know which is meant; none if 0.
    step_time_intercept, step_time_slope : float >= 0 [s], [s/generated response]
        tau_0 and tau_1.
    evaluation_seconds : float >= 0 [s]
    seeds : int
        Runs of every arm.
    seed : int
    threads : int or None
        Runs at a time; Numba's number of threads if None.
    progress : callable or None
        Called with runs done and runs in all.

    Returns
    -------
    xarray.DataTree
        A child b<batch>_s<run> per run, in the layout of `batchsim.read_logs`; attribute `status` says how it ended.

    Raises
    ------
    InputError
        For values outside their bounds, prompts that mini-batches do not divide, or more than `ROWS_MAX` rollout steps.

    Examples
    --------
    >>> from batchsim.learning.worlds import softmax_world
    >>> from batchsim.measure import measure
    >>> world = softmax_world(dim=16, prompts=64, validation=64, seed=1)
    >>> runs = simulate_grpo(
    ...     world, prompts=[8, 32], learning_rate=0.01, lr_rule="sqrt", responses_max=20_000, target=0.5, seeds=2
    ... )
    >>> measure(runs)["arms"]["lr_rule"].values.tolist()
    ['reference', 'sqrt']
    """
    return _simulate_policy(
        world,
        _trainer(trainer, "grpo"),
        {"prompts": prompts, "group_size": group_size, "staleness": staleness},
        learning_rate,
        None,
        lr_rule,
        Law(step_time_intercept, step_time_slope, evaluation_seconds),
        responses_max=responses_max,
        target=target,
        evaluate_every=evaluate_every,
        mean_at=mean_at,
        seeds=seeds,
        seed=seed,
        threads=threads,
        progress=progress,
    )


def simulate_ppo(
    world: SoftmaxWorld,
    *,
    prompts: ArrayLike,
    learning_rate: ArrayLike,
    critic_learning_rate: ArrayLike | None = None,
    group_size: ArrayLike = 1,
    lr_rule: LRRule | None = None,
    trainer: Trainer | None = None,
    staleness: ArrayLike = 0,
    responses_max: ArrayLike,
    target: float | None = None,
    evaluate_every: ArrayLike | None = None,
    mean_at: tuple[int, int] = (0, 0),
    step_time_intercept: float = STEP_TIME_INTERCEPT,
    step_time_slope: float = STEP_TIME_SLOPE,
    evaluation_seconds: float = 0.0,
    seeds: int = 1,
    seed: int = 0,
    threads: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> xr.DataTree:
    """Train a softmax policy and its value function by PPO at several batches and return the runs as logs.

    Parameters
    ----------
    critic_learning_rate : array_like, scalar or (arm,), or None [1]
        One per arm; or one at the smallest batch, which follows `lr_rule` too; the actor's if None.
    group_size : array_like, broadcast to (arm,) [responses/prompt]
    trainer : Trainer or None
        Of algorithm 'ppo'; `Trainer(algorithm="ppo")` if None.
    world, prompts, learning_rate, lr_rule, staleness, responses_max, target, evaluate_every, mean_at, \
step_time_intercept, step_time_slope, evaluation_seconds, seeds, seed, threads, progress
        See `simulate_grpo`.

    Returns
    -------
    xarray.DataTree
        As `simulate_grpo`, with the critic's norms.

    Raises
    ------
    InputError
        As `simulate_grpo`.
    """
    return _simulate_policy(
        world,
        _trainer(trainer, "ppo"),
        {"prompts": prompts, "group_size": group_size, "staleness": staleness},
        learning_rate,
        critic_learning_rate,
        lr_rule,
        Law(step_time_intercept, step_time_slope, evaluation_seconds),
        responses_max=responses_max,
        target=target,
        evaluate_every=evaluate_every,
        mean_at=mean_at,
        seeds=seeds,
        seed=seed,
        threads=threads,
        progress=progress,
    )


def simulate_quadratic(
    world: Quadratic,
    optimizer: Optimizer | None = None,
    *,
    train_batch: ArrayLike,
    learning_rate: ArrayLike,
    lr_rule: LRRule | None = None,
    responses_max: ArrayLike,
    target: float | None = None,
    evaluate_every: ArrayLike | None = None,
    step_time_intercept: float = STEP_TIME_INTERCEPT,
    step_time_slope: float = STEP_TIME_SLOPE,
    evaluation_seconds: float = 0.0,
    seeds: int = 1,
    seed: int = 0,
    threads: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> xr.DataTree:
    """Descend a noisy quadratic at several batches and return the runs as logs.

    Parameters
    ----------
    world : Quadratic
    optimizer : Optimizer or None
        sgd, momentum or adam; sgd if None. Its replicas play no part: a run is one.
    train_batch : array_like, scalar or (arm,) [responses]
        B, whole numbers of responses; each stands for a prompt of its own.
    target : float in (0, 1) or None [1]
        Score 1 - L/L(start) at which a run ends.
    learning_rate, lr_rule, responses_max, evaluate_every, step_time_intercept, step_time_slope, evaluation_seconds, \
seeds, seed, threads, progress
        See `simulate_grpo`.

    Returns
    -------
    xarray.DataTree
        As `simulate_grpo`; chunk norms are of 8 chunks, or of B where that is less, and absent at B = 1.

    Raises
    ------
    InputError
        For values outside their bounds, or more than `ROWS_MAX` updates.

    Examples
    --------
    >>> from batchsim.learning.worlds import power_law
    >>> runs = simulate_quadratic(
    ...     power_law(10), train_batch=[8, 64], learning_rate=0.1, lr_rule="linear", responses_max=8_000, target=0.9
    ... )
    >>> [run.attrs["status"] for run in runs.children.values()]
    ['reached', 'reached']
    """
    how = Optimizer() if optimizer is None else optimizer
    law = Law(step_time_intercept, step_time_slope, evaluation_seconds)
    check_counts(seeds, seed, threads)
    if target is not None and not 0 < target < 1:
        raise InputError(
            f"target is {target:g}, outside (0, 1), the share of the start's loss that is gone",
            remedy="0.99 leaves 1 % of it",
        )
    batch = whole("train_batch", train_batch, BATCH_MAX)
    rate, rule = rates_of("learning_rate", learning_rate, batch, lr_rule)
    length = broadcast(responses_max=responses_max)["responses_max"]
    every = length / 100 if evaluate_every is None else evaluate_every
    arms = broadcast(train_batch=batch, learning_rate=rate, responses_max=length, evaluate_every=every)
    for name in ("learning_rate", "responses_max", "evaluate_every"):
        check_positive(name, arms[name])
    updates_max = np.ceil(arms["responses_max"] / arms["train_batch"])
    check_rows(updates_max, seeds)
    todo = [(arm, number) for arm in range(updates_max.size) for number in range(seeds)]

    def one(arm: int, number: int) -> _Descent:
        return _descend(
            world,
            how,
            batch=float(arms["train_batch"][arm]),
            rate=float(arms["learning_rate"][arm]),
            every=float(arms["evaluate_every"][arm]),
            updates_max=int(updates_max[arm]),
            target=np.inf if target is None else float(target),
            state=np.random.SeedSequence(seed, spawn_key=(arm, number)).generate_state(1, np.uint64).astype(np.uint64),
        )

    # The first call compiles, which two threads would do twice.
    order = sorted(todo, key=lambda key: updates_max[key[0]])
    found = {order[0]: one(*order[0])}
    if progress is not None:
        progress(1, len(todo))
    with ThreadPoolExecutor(max_workers=threads or numba_threads()) as pool:
        try:
            waiting = {pool.submit(one, *key): key for key in reversed(order[1:])}
            for future in as_completed(waiting):
                found[waiting[future]] = future.result()
                if progress is not None:
                    progress(len(found), len(todo))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    names = run_names(arms["train_batch"], seeds)
    facts = {
        "optimizer": how.kind,
        **({} if how.kind == "sgd" else {"beta1": how.beta1}),
        **({"beta2": how.beta2, "epsilon": how.epsilon} if how.kind == "adam" else {}),
        "preconditioner": how.preconditioner,
        "iterate_average": how.iterate_average,
        **goal(target),
    }
    nodes = {}
    for (arm, number), run in sorted(found.items()):
        size = arms["train_batch"][arm]
        rate_here = arms["learning_rate"][arm]
        recipe = recipe_of(prompts=size, group_size=1, train_batch=size, updates=1, epochs=1, rate=rate_here, rule=rule)
        nodes[names[arm, number]] = run.layout(names[arm, number], law, recipe | facts | {"seed": number})
    return tree_of(nodes, "noisy quadratic", seed, [])


# -- policies -----------------------------------------------------------------------------------------


def _trainer(given: Trainer | None, algorithm: str) -> Trainer:
    if given is None:
        return Trainer(algorithm=algorithm)
    if given.algorithm != algorithm:
        raise InputError(
            f"the trainer's algorithm is '{given.algorithm}', not '{algorithm}'",
            remedy=f"give Trainer(algorithm='{algorithm}'), or call simulate_{given.algorithm}",
        )
    return given


def _simulate_policy(
    world: SoftmaxWorld,
    trainer: Trainer,
    arms: Mapping[str, ArrayLike],
    learning_rate: ArrayLike,
    critic_learning_rate: ArrayLike | None,
    lr_rule: LRRule | None,
    law: Law,
    *,
    responses_max: ArrayLike,
    target: float | None,
    evaluate_every: ArrayLike | None,
    mean_at: tuple[int, int],
    seeds: int,
    seed: int,
    threads: int | None,
    progress: Callable[[int, int], object] | None,
) -> xr.DataTree:
    check_counts(seeds, seed, threads)
    prompts, group = (whole(name, arms[name], 2**20) for name in ("prompts", "group_size"))
    sizes = broadcast(prompts=prompts, group_size=group)
    rollout = sizes["prompts"] * sizes["group_size"]
    batch = rollout * trainer.epochs / trainer.updates_per_rollout
    rate, rule = rates_of("learning_rate", learning_rate, batch, lr_rule)
    critic = None
    if critic_learning_rate is not None:
        # Of one per arm nothing is left to a rule, though the actor's may follow one.
        follows = lr_rule if np.size(critic_learning_rate) == 1 else None
        critic, _ = rates_of("critic_learning_rate", critic_learning_rate, batch, follows)
    length = broadcast(
        rollout=rollout,
        rate=rate,
        critic_rate=rate if critic is None else critic,
        responses_max=responses_max,
        staleness=arms["staleness"],
    )
    check_positive("responses_max", length["responses_max"])
    if evaluate_every is not None:
        check_positive("evaluate_every", broadcast(evaluate_every=evaluate_every)["evaluate_every"])
    check_rows(np.ceil(length["responses_max"] / length["rollout"]), seeds)
    runs = train(
        world,
        trainer,
        prompts=prompts,
        group_size=group,
        staleness=arms["staleness"],
        learning_rate=rate,
        critic_learning_rate=critic,
        responses_max=responses_max,
        target=target,
        mean_at=mean_at,
        record=True,
        seeds=seeds,
        seed=seed,
        threads=threads,
        evaluate_every=evaluate_every,
        progress=progress,
    )
    of_arm = {run.arm: run.prompts * run.group_size * trainer.epochs // trainer.updates_per_rollout for run in runs}
    names = run_names(np.array([of_arm[arm] for arm in sorted(of_arm)], dtype=np.float64), seeds)
    facts = _facts(trainer, mean_at) | goal(target)
    nodes = {
        names[run.arm, run.seed]: _policy_layout(
            run, trainer, law, names[run.arm, run.seed], mean_at[1], rule, of_arm[run.arm], facts
        )
        for run in runs
    }
    said = []
    if trainer.zero_variance == "drop" and trainer.algorithm == "grpo":
        said.append(
            "groups without variance are dropped, so batches are smaller than train_batch by the share kept: norms are "
            "those of what was kept, and chunk norms are left out"
        )
    return tree_of(nodes, f"softmax policy, {trainer.algorithm}", seed, said)


def _facts(trainer: Trainer, mean_at: tuple[int, int]) -> dict[str, Any]:
    """What all runs of a trainer share; what is infinite, as a clip that never binds, is not stated."""
    grpo = {"advantage": trainer.advantage, "zero_variance": trainer.zero_variance}
    numbers = {"clip": trainer.clip, "grad_clip": trainer.grad_clip, "kl": trainer.kl}
    adam = {"beta1": trainer.beta1, "beta2": trainer.beta2, "epsilon": trainer.epsilon}
    sampled = mean_at[0] * mean_at[1]
    return {
        "algorithm": trainer.algorithm,
        **(grpo if trainer.algorithm == "grpo" else {"normalise": str(trainer.normalise)}),
        "optimizer": trainer.optimizer,
        **(adam if trainer.optimizer == "adam" else {}),
        **{name: value for name, value in numbers.items() if np.isfinite(value)},
        "lag": trainer.lag,
        **({"eval_samples": sampled} if sampled else {}),
    }


def _policy_layout(
    run: Trained,
    trainer: Trainer,
    law: Law,
    name: str,
    samples: int,
    rule: str,
    batch: int,
    facts: Mapping[str, Any],
) -> xr.Dataset:
    """One run in the layout of a log."""
    record, seen = run.record, run.evaluations
    rollout = run.prompts * run.group_size
    drops = trainer.algorithm == "grpo" and trainer.zero_variance == "drop"
    generated = np.diff(record["responses_generated"], prepend=0.0)
    # Rollout steps that kept nothing have no row, and took their time.
    steps = np.rint(generated / rollout) if drops else np.ones_like(generated)
    columns = {
        column: record[column]
        for column in ("responses", "responses_generated", "grad_norm", "train_reward", "staleness_mean")
    }
    columns["kept_share"] = record["kept"] / generated
    columns["updates"] = record["updates"]
    groups = batch // run.group_size
    chunks = min(CHUNKS, groups)
    prefixes = ("", "critic_") if trainer.algorithm == "ppo" else ("",)
    if trainer.algorithm == "ppo":
        columns["critic_grad_norm"] = record["critic_grad_norm"]
    if chunks > 1 and not drops:
        for prefix in prefixes:
            for column in (f"{prefix}sq_norm_batch", f"{prefix}sq_norm_chunk"):
                columns[column] = record[column]
        facts = {**facts, "chunks": chunks}
    scores = {METRIC: seen["score"]}
    if "eval_samples" in facts:
        scores[f"val/mean@{samples}"] = seen["sampled_score"]
    recipe = recipe_of(
        prompts=run.prompts,
        group_size=run.group_size,
        train_batch=batch,
        updates=trainer.updates_per_rollout,
        epochs=trainer.epochs,
        rate=run.learning_rate,
        rule=rule,
    )
    notes = {"critic_learning_rate": repr(run.critic_learning_rate)} if trainer.algorithm == "ppo" else {}
    return layout_of(
        name,
        law,
        steps=steps,
        generated=generated,
        columns=columns,
        used=seen["responses"],
        scores=scores,
        attrs={**recipe, **facts, "staleness": run.staleness, "seed": run.seed, "status": run.outcome},
        notes=notes,
    )


# -- the noisy quadratic --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class _Descent:
    """One run of the noisy quadratic."""

    batch: float
    chunks: int
    rate: float
    rows: Floats
    evaluations: Floats
    outcome: str

    def layout(self, name: str, law: Law, attrs: Mapping[str, Any]) -> xr.Dataset:
        updates = np.arange(1, len(self.rows) + 1, dtype=np.float64)
        whole = self.rows[:, kernels.WHOLE]
        columns = {
            "responses": updates * self.batch,
            "responses_generated": updates * self.batch,
            "grad_norm": np.sqrt(whole),
            "updates": updates,
        }
        chunked = {}
        if self.chunks > 1:
            columns |= {"sq_norm_chunk": self.rows[:, kernels.CHUNK], "sq_norm_batch": whole}
            chunked = {"chunks": self.chunks}
        return layout_of(
            name,
            law,
            steps=np.ones_like(updates),
            generated=np.full_like(updates, self.batch),
            columns=columns,
            used=self.evaluations[:, kernels.UPDATE] * self.batch,
            scores={METRIC: self.evaluations[:, kernels.SCORE]},
            attrs={**attrs, **chunked, "status": self.outcome},
            notes={},
        )


def _descend(
    world: Quadratic,
    how: Optimizer,
    *,
    batch: float,
    rate: float,
    every: float,
    updates_max: int,
    target: float,
    state: NDArray[np.uint64],
) -> _Descent:
    seen_max = int(min(updates_max * batch / every, updates_max)) + 3
    rows, evaluations = np.zeros((updates_max, kernels.ROWS)), np.zeros((seen_max, kernels.EVALUATION))
    counts = np.zeros(3, dtype=np.int64)
    chunks = int(min(CHUNKS, batch))
    kernels.run(
        world.curvature,
        np.sqrt(world.noise / batch),
        world.start,
        world.random_start,
        world.start_loss,
        rate * world.curvature**-how.preconditioner,
        how.gain,
        how.beta,
        how.iterate_average,
        how.kind == "adam",
        how.beta2,
        how.epsilon,
        batch,
        chunks,
        every,
        updates_max,
        target,
        state,
        rows,
        evaluations,
        counts,
    )
    updates, outcome, seen = counts.tolist()
    return _Descent(
        batch=batch,
        chunks=chunks,
        rate=rate,
        rows=rows[:updates].copy(),
        evaluations=evaluations[:seen].copy(),
        outcome=STATUSES[outcome],
    )
