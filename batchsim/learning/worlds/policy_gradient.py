r"""GRPO and PPO on a softmax world: runs in which learning is real, with a truth to hold them against.

A rollout step keeps P prompts with G responses each. GRPO's advantages are differences within the group

    group          (r - mean)/std         leave_one_out   (r - mean) G/(G - 1)         mean   r - mean

and groups whose rewards are all equal are replaced (`refill`), left out (`drop`) or count with gradient zero (`keep`).
PPO's are r - V(p), normalised over the batch; V has an optimizer of its own and descends (r - V)^2/2. Both climb

    sum min(ratio A, clip(ratio, 1 - clip, 1 + clip) A) - kl KL(pi, pi_start),     ratio = pi/pi_sampling

in M updates over E passes of a rollout step, each update on P E/M prompts: B = P G E/M responses. Responses may be
`staleness` versions old: all of them (`constant`), as when a trainer runs behind by a fixed queue, or 0 to that many
(`uniform`), as partial rollouts make them.

Every evaluation is the exact expected score over all validation prompts, and optionally mean@k on some of them, as
logs have it. A run ends when the exact score reaches the target, after `responses_max` kept responses ("too many
responses"), where parameters outgrow floating point ("diverges"), or where groups with variance can no longer be found
("no signal": the policy has become certain). Learning never stops for another reason.

Nothing here knows `sample_cost`: what runs show is not put into them.

Cost at A = G = 8 and D = 128, on one core of an AMD EPYC of 2023: .4 us per group kept, groups sampled in vain
included (two passes over A D features and G draws; three passes and .65 us with mini-batches, stale responses, dropped
groups or a value function), .6 us more per update (joining chunks and a step of Adam), and .2 us per validation prompt
evaluated. Memory beyond what is recorded does not grow with the updates.

References
----------
.. [1] Shao et al. 2024, "DeepSeekMath", arXiv:2402.03300, section 4.1 (GRPO).
.. [2] Schulman et al. 2017, "Proximal Policy Optimization Algorithms", arXiv:1707.06347, eq. 7 (clipping).
.. [3] Yu et al. 2025, "DAPO", arXiv:2503.14476, section 3.2 (groups without variance are sampled anew).
.. [4] Kingma and Ba 2015, "Adam", arXiv:1412.6980.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax

from batchsim.errors import InputError
from batchsim.learning.curve.crossings import interpolated_crossing
from batchsim.learning.worlds import _policy_kernels as kernels
from batchsim.learning.worlds.softmax import ADVANTAGES, GROUP_MAX, ZERO_VARIANCE, Floats, SoftmaxWorld, check_name

ALGORITHMS = ("grpo", "ppo")
OPTIMIZERS = ("adam", "sgd")
LAGS = ("constant", "uniform")
OUTCOMES = ("running", "reached", "diverges", "no signal", "too many responses")
"""In the order of the kernels' codes."""
COLUMNS = (
    "responses", "responses_generated", "grad_norm", "sq_norm_chunk", "sq_norm_batch", "critic_grad_norm",
    "critic_sq_norm_chunk", "critic_sq_norm_batch", "train_reward", "staleness_mean", "clipped_share", "kept",
    "updates",
)  # fmt: skip
EVALUATION = ("responses", "score", "sampled_score", "updates")
"""Columns of a run's record and of its evaluations, in the order of the kernels'."""
PROMPTS_MAX = 2**20
STEPS_MAX = 10**8
RECORD_MAX = 2**31
"""Bytes of the record of one run."""
STALENESS_MAX = 4096
DROPPED = 50
"""Rollout steps, over those that would do if every group were kept, after which a run that drops groups ends."""


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """How a policy is trained.

    Parameters
    ----------
    algorithm : {'grpo', 'ppo'}
    advantage : {'group', 'mean', 'leave_one_out'}
        Of GRPO.
    zero_variance : {'refill', 'drop', 'keep'}
        What becomes of groups whose rewards are all equal (GRPO).
    normalise : bool
        PPO's advantages get mean 0 and standard deviation 1 over the rollout step.
    optimizer : {'adam', 'sgd'}
    beta1, beta2, epsilon : float [1]
        Of Adam.
    grad_clip : float > 0 [1]
        Largest gradient norm, of actor and critic each.
    updates_per_rollout, epochs : int [1]
        M and E; M is a multiple of E.
    clip : float > 0 [1]
        Of the ratio; inf never clips, and without `importance` there is none.
    importance : bool
        Stale responses, and those of later mini-batches, are weighted by the ratio at all.
    lag : {'constant', 'uniform'}
    kl : float >= 0 [1]
        Weight of the exact KL to the policy at theta = 0.

    Raises
    ------
    InputError
        For an unknown name, a value outside its bounds, or what belongs to the other algorithm.
    """

    algorithm: str = "grpo"
    advantage: str = "group"
    zero_variance: str = "refill"
    normalise: bool = True
    optimizer: str = "adam"
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    grad_clip: float = np.inf
    updates_per_rollout: int = 1
    epochs: int = 1
    clip: float = np.inf
    importance: bool = True
    lag: str = "constant"
    kl: float = 0.0

    def __post_init__(self) -> None:
        names = {"algorithm": ALGORITHMS, "advantage": ADVANTAGES, "zero_variance": ZERO_VARIANCE,
                 "optimizer": OPTIMIZERS, "lag": LAGS}  # fmt: skip
        for name, known in names.items():
            check_name(name, getattr(self, name), known)
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name):g}, outside [0, 1)", remedy="a decay lies below 1")
        for name in ("epsilon", "kl"):
            if not 0 <= getattr(self, name) < np.inf:
                raise InputError(
                    f"{name} is {getattr(self, name):g}; it must be finite and not negative", remedy="0 is none"
                )
        for name in ("grad_clip", "clip"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} is {getattr(self, name):g}, and it must be positive", remedy="inf: never")
        self._check_belongings()
        m, e = self.updates_per_rollout, self.epochs
        if not (1 <= e <= m and m % e == 0):
            raise InputError(
                f"updates_per_rollout is {m} over {e} epochs: not a whole number per epoch",
                remedy="make updates_per_rollout a multiple of epochs",
            )

    def _check_belongings(self) -> None:
        """Refuse what the algorithm would not look at."""
        if self.algorithm == "ppo" and (self.advantage, self.zero_variance) != ("group", "refill"):
            raise InputError(
                f"advantage '{self.advantage}' and zero_variance '{self.zero_variance}' are GRPO's: PPO compares with "
                f"its critic and keeps every response",
                remedy="leave both out, or choose algorithm 'grpo'",
            )
        if self.algorithm == "grpo" and not self.normalise:
            raise InputError(
                "normalise is PPO's, and GRPO's advantages are relative to their group",
                remedy="advantage 'mean' does not divide by the deviation",
            )
        if not self.importance and np.isfinite(self.clip):
            raise InputError(
                f"clip is {self.clip:g}, and without importance there is no ratio to clip",
                remedy="leave one of them out",
            )


@dataclass(frozen=True, eq=False, kw_only=True)
class Halves:
    """Moments per coordinate that a run summed up on its way, as `noise_scale.from_coordinate_moments` takes them.

    Parameters
    ----------
    mean : ndarray (2, D) [1]
        Mean gradient of two independent halves of every batch.
    variance : ndarray (2, D) [responses]
        Variance of one response's gradient within each: G times that of a group.
    responses : (float, float) [responses]
        Behind each mean.
    """

    mean: Floats
    variance: Floats
    responses: tuple[float, float]


@dataclass(frozen=True, eq=False, kw_only=True)
class Trained:
    """One run.

    Parameters
    ----------
    arm, seed : int
        Index into the arms asked for; number of the repetition, from 0.
    prompts, group_size, staleness : int
    learning_rate, critic_learning_rate : float [1]
    outcome : str
        Of `OUTCOMES`.
    updates, rollout_steps : int
    record : dict of str to ndarray (rollout_step,)
        Columns `COLUMNS`; empty unless asked for. Norms are root mean squares over the updates of the step, before
        clipping; a chunk is one of 8 of an update, or of as many as it has groups. clipped_share is that of responses
        with an advantage whose ratio was clipped.
    evaluations : dict of str to ndarray (evaluation,)
        Columns `EVALUATION`; sampled_score is NaN unless asked for.
    theta, omega : ndarray (D,), (V,) [1]
        Parameters of policy and value function at the end.
    halves : Halves or None
        None unless asked for, or with fewer than 4 groups per update.
    """

    arm: int
    seed: int
    prompts: int
    group_size: int
    staleness: int
    learning_rate: float
    critic_learning_rate: float
    outcome: str
    updates: int
    rollout_steps: int
    record: dict[str, Floats]
    evaluations: dict[str, Floats]
    theta: Floats
    omega: Floats
    halves: Halves | None

    def responses_to_target(self, target: float) -> float:
        """Kept responses at which the exact score first reaches a target [responses].

        By a straight line between evaluations; infinite where no evaluation reaches it, 0 where the first does.
        """
        return interpolated_crossing(self.evaluations["responses"], self.evaluations["score"], target=target)


def train(
    world: SoftmaxWorld,
    trainer: Trainer,
    *,
    prompts: ArrayLike,
    learning_rate: ArrayLike,
    group_size: ArrayLike | None = None,
    critic_learning_rate: ArrayLike | None = None,
    staleness: ArrayLike = 0,
    seeds: int = 1,
    seed: int = 0,
    responses_max: ArrayLike,
    target: float | None = None,
    evaluate_every: ArrayLike | None = None,
    mean_at: tuple[int, int] = (0, 0),
    record: bool = False,
    halves_until: ArrayLike = 0.0,
    theta: ArrayLike | None = None,
    threads: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> tuple[Trained, ...]:
    """Train all arms, each several times.

    Parameters
    ----------
    world : SoftmaxWorld
    trainer : Trainer
    prompts, learning_rate, group_size, critic_learning_rate, staleness : array_like, broadcast to (arm,)
        P [prompts]; eta [1]; G [responses/prompt] (8; 1 for PPO); the critic's rate [1] (the actor's; PPO alone has
        one); age [versions].
    seeds : int
        Runs of every arm.
    seed : int
        Every run draws from a stream of its own that depends on this, its arm's index and its number alone.
    responses_max : array_like, broadcast to (arm,) [responses]
        Kept responses after which a run ends with its rollout step.
    target : float or None [1]
        Exact score at which a run ends.
    evaluate_every : array_like or None, broadcast to (arm,) [responses]
        Evaluations follow the first rollout steps at or beyond multiples of it; responses_max/100 if None.
    mean_at : (int, int)
        Validation prompts, and samples of each, of a noisy evaluation beside the exact one.
    record : bool
        Whether every rollout step is recorded.
    halves_until : array_like, broadcast to (arm,) [responses]
        `Trained.halves` are summed up to here.
    theta : array_like (D,) or None [1]
        Start; 0 if None.
    threads : int or None
        Runs at a time; Numba's number of threads if None. Results do not depend on it.
    progress : callable or None
        Called with runs done and runs in all.

    Returns
    -------
    tuple of Trained
        Arm by arm, seeds within.

    Raises
    ------
    InputError
        For values outside their bounds, prompts that mini-batches do not divide, or a record that would not fit.

    Examples
    --------
    >>> from batchsim.learning.worlds import softmax_world
    >>> world = softmax_world(dim=16, prompts=64, validation=64, seed=1)
    >>> runs = train(world, Trainer(), prompts=[8, 32], learning_rate=[0.01, 0.02], responses_max=20_000, target=0.5)
    >>> [run.outcome for run in runs]
    ['reached', 'reached']
    """
    ppo = trainer.algorithm == "ppo"
    if critic_learning_rate is not None and not ppo:
        raise InputError(
            f"critic_learning_rate is {critic_learning_rate}, and GRPO has no critic",
            remedy="leave it out, or train by PPO",
        )
    arms = _arms(
        trainer,
        prompts=prompts,
        group_size=(1 if ppo else 8) if group_size is None else group_size,
        staleness=staleness,
        learning_rate=learning_rate,
        critic_learning_rate=learning_rate if critic_learning_rate is None else critic_learning_rate,
        responses_max=responses_max,
        evaluate_every=np.asarray(responses_max) / 100 if evaluate_every is None else evaluate_every,
        halves_until=halves_until,
    )
    if target is not None and not np.isfinite(target):
        raise InputError(f"target is {target}, not a finite score", remedy="None trains to the end")
    for name, count, least in (("seeds", seeds, 1), ("seed", seed, 0), ("threads", threads, 1)):
        if count is not None and count < least:
            raise InputError(f"{name} is {count}, and it must be at least {least}", remedy=f"as {name}={max(least, 1)}")
    if not (0 <= mean_at[0] <= len(world.validation) and mean_at[1] >= 0):
        raise InputError(
            f"mean_at is {mean_at}", remedy=f"give up to {len(world.validation)} prompts, and samples of each"
        )
    start = np.zeros(world.dim) if theta is None else world._at(theta)
    tasks = [
        _Task(
            arm=i,
            number=number,
            arguments=arguments,
            state=np.array(
                np.random.SeedSequence(seed, spawn_key=(i, number)).generate_state(1, np.uint64), dtype=np.uint64
            ),
            record=record,
        )
        for i, arguments in enumerate(arms)
        for number in range(seeds)
    ]
    shared = kernels.World(
        world.features,
        world.offset,
        log_softmax(world.offset, axis=1),
        world.value_features,
        world.validation,
        world.validation_offset,
        world.correct,
        float(world.bound),
    )
    how = _how(trainer, target, mean_at)

    def one(task: _Task) -> Trained:
        return task.run(shared, how, start, world.value_start)

    done: dict[tuple[int, int], Trained] = {}
    # The longest first, lest one of them runs alone at the end.
    ordered = sorted(tasks, key=lambda task: task.cost, reverse=True)
    with ThreadPoolExecutor(max_workers=threads or _threads()) as pool:
        try:
            waiting = {pool.submit(one, task): task for task in ordered}
            for future in as_completed(waiting):
                done[waiting[future].key] = future.result()
                if progress is not None:
                    progress(len(done), len(tasks))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return tuple(done[task.key] for task in tasks)


def _threads() -> int:
    import numba

    return int(numba.get_num_threads())


def _how(trainer: Trainer, target: float | None, mean_at: tuple[int, int]) -> kernels.How:
    return kernels.How(
        ppo=trainer.algorithm == "ppo",
        normalise=bool(trainer.normalise),
        advantage=ADVANTAGES.index(trainer.advantage),
        zero_variance=ZERO_VARIANCE.index(trainer.zero_variance),
        updates=int(trainer.updates_per_rollout),
        epochs=int(trainer.epochs),
        clip=float(trainer.clip),
        importance=bool(trainer.importance),
        lag_law=LAGS.index(trainer.lag),
        kl=float(trainer.kl),
        adam=trainer.optimizer == "adam",
        beta1=float(trainer.beta1),
        beta2=float(trainer.beta2),
        epsilon=float(trainer.epsilon),
        grad_clip=float(trainer.grad_clip),
        target=np.inf if target is None else float(target),
        sampled=int(mean_at[0]) if mean_at[1] else 0,
        samples=int(mean_at[1]),
    )


@dataclass(frozen=True, kw_only=True)
class _Arm:
    """Checked numbers of one arm."""

    prompts: int
    group_size: int
    staleness: int
    learning_rate: float
    critic_learning_rate: float
    responses_max: float
    evaluate_every: float
    halves_until: float
    steps_max: int


def _arms(trainer: Trainer, **given: ArrayLike) -> list[_Arm]:
    """Broadcast and check."""
    try:
        together = np.broadcast_arrays(*(np.atleast_1d(np.asarray(v, dtype=np.float64)) for v in given.values()))
    except ValueError as error:
        shapes = ", ".join(f"{name} {np.shape(v)}" for name, v in given.items() if np.ndim(v))
        raise InputError(
            f"arms do not match: {shapes}", remedy="give one value for all arms, or one for each"
        ) from error
    arrays: dict[str, Floats] = dict(zip(given, together, strict=True))
    whole = {"prompts": (1, PROMPTS_MAX), "group_size": (1, GROUP_MAX), "staleness": (0, STALENESS_MAX)}
    for name, (low, high) in whole.items():
        v = arrays[name]
        bad = ~((v >= low) & (v <= high) & (v == np.floor(v)))
        if bad.any():
            raise InputError(
                f"{name} is {v[bad][0]:g}, not a whole number from {low} to {high:,}", remedy=f"as {name}={max(low, 2)}"
            )
    for name in ("learning_rate", "critic_learning_rate", "responses_max", "evaluate_every", "halves_until"):
        v = arrays[name]
        may_be_0 = name == "halves_until"
        bad = ~((v >= 0 if may_be_0 else v > 0) & (v < np.inf))
        if bad.any():
            raise InputError(
                f"{name} is {v[bad][0]:g}; it must be finite and {'not negative' if may_be_0 else 'positive'}",
                remedy="give a number " + ("of at least 0" if may_be_0 else "above 0"),
            )
    if trainer.algorithm == "grpo" and (arrays["group_size"] < 2).any():
        raise InputError("group_size is 1, and GRPO compares the responses of a group", remedy="give 2 or more")
    passes = trainer.updates_per_rollout // trainer.epochs
    uneven = arrays["prompts"] % passes != 0
    if uneven.any():
        p = int(arrays["prompts"][uneven][0])
        raise InputError(
            f"{p} prompts do not divide into {passes} mini-batches",
            remedy="choose prompts as a multiple of updates_per_rollout/epochs",
        )
    arms = []
    for i in range(arrays["prompts"].size):
        number = {name: float(array[i]) for name, array in arrays.items()}
        p, g = int(number["prompts"]), int(number["group_size"])
        steps = math.ceil(number["responses_max"] / (p * g)) * (DROPPED if trainer.zero_variance == "drop" else 1)
        if steps > STEPS_MAX:
            raise InputError(
                f"{number['responses_max']:g} responses are {steps:,} rollout steps of {p * g}; at most {STEPS_MAX:,}",
                remedy="lower responses_max, or choose more prompts",
            )
        arms.append(
            _Arm(
                prompts=p,
                group_size=g,
                staleness=int(number["staleness"]),
                learning_rate=number["learning_rate"],
                critic_learning_rate=number["critic_learning_rate"],
                responses_max=number["responses_max"],
                evaluate_every=number["evaluate_every"],
                halves_until=number["halves_until"],
                steps_max=steps,
            )
        )
    return arms


@dataclass(frozen=True, kw_only=True)
class _Task:
    """One run to be made."""

    arm: int
    number: int
    arguments: _Arm
    state: NDArray[np.uint64]
    record: bool

    @property
    def key(self) -> tuple[int, int]:
        return self.arm, self.number

    @property
    def cost(self) -> float:
        """Proportional to time at most, roughly: prompts and evaluations."""
        return self.arguments.responses_max / self.arguments.group_size + self.arguments.steps_max

    def run(self, world: kernels.World, how: kernels.How, start: Floats, omega: Floats) -> Trained:
        a = self.arguments
        rows = a.steps_max if self.record else 0
        evaluations = int(min(a.responses_max / a.evaluate_every, a.steps_max)) + 3
        if 8 * (rows * kernels.COLUMNS + evaluations * kernels.EVALUATION) > RECORD_MAX:
            raise InputError(
                f"a record of {a.steps_max:,} rollout steps and {evaluations:,} evaluations does not fit in "
                f"{RECORD_MAX / 1e9:.1f} GB",
                remedy="lower responses_max, evaluate less often, or record nothing",
            )
        table, evaluated = np.zeros((rows, kernels.COLUMNS)), np.zeros((evaluations, kernels.EVALUATION))
        moments, counts = np.zeros((5, max(start.size, 3))), np.zeros(5, dtype=np.int64)
        theta, value = start.copy(), omega.copy()
        kernels.run(
            world, how, a.prompts, a.group_size, a.staleness, a.learning_rate, a.critic_learning_rate,
            a.responses_max, a.evaluate_every, a.steps_max, a.halves_until, self.state.copy(), theta, value, table,
            evaluated, moments, counts,
        )  # fmt: skip
        updates, outcome, filled, seen, steps = counts.tolist()
        columns = {name: table[:filled, i].copy() for i, name in enumerate(COLUMNS)} if self.record else {}
        scores = {name: evaluated[:seen, i].copy() for i, name in enumerate(EVALUATION)}
        if not how.sampled:
            scores["sampled_score"][:] = np.nan
        return Trained(
            arm=self.arm,
            seed=self.number,
            prompts=a.prompts,
            group_size=a.group_size,
            staleness=a.staleness,
            learning_rate=a.learning_rate,
            critic_learning_rate=a.critic_learning_rate,
            outcome=OUTCOMES[outcome],
            updates=updates,
            rollout_steps=steps,
            record=columns,
            evaluations=scores,
            theta=theta,
            omega=value,
            halves=_halves(moments, start.size, a.group_size),
        )


def _halves(moments: Floats, dim: int, group: int) -> Halves | None:
    first, second, updates = moments[4, :3]
    if not updates:
        return None
    return Halves(
        mean=moments[[0, 2], :dim] / moments[4, :2, None],
        variance=group * moments[[1, 3], :dim] / updates,
        responses=(first * group, second * group),
    )


def by_arm(runs: tuple[Trained, ...]) -> Iterator[list[Trained]]:
    """Runs of each arm in turn."""
    for arm in sorted({run.arm for run in runs}):
        yield [run for run in runs if run.arm == arm]


def mean_responses(runs: tuple[Trained, ...], target: float) -> tuple[Floats, Floats]:
    """N* of every arm and its standard error over seeds.

    Parameters
    ----------
    runs : tuple of Trained
    target : float [1]

    Returns
    -------
    mean, error : ndarray (arm,) [responses]
        Mean infinite where a run never reaches the target; error NaN with one seed, or without a finite mean.
    """
    found = [np.array([run.responses_to_target(target) for run in arm]) for arm in by_arm(runs)]
    mean = np.array([n.mean() for n in found])
    error = [n.std(ddof=1) / np.sqrt(n.size) if n.size > 1 and np.isfinite(n).all() else np.nan for n in found]
    return mean, np.array(error)
