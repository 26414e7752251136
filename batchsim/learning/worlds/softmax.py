r"""A bandit with shared features: prompts that generalise to each other, and exact gradient moments of its policies.

A prompt p offers A answers with features phi_pa in R^D, the first C of which are correct. The policy is

    pi(a | p) = softmax_a(offset_pa + bounded(theta . phi_pa)),      bounded(z) = z, or bound tanh(z/bound)

so that what is learned on one prompt moves all others. A response is one answer, its reward 1 or 0. Correct answers
are those of the highest teacher score theta* . phi + label noise: what can be learned is the teacher's direction, and
offsets set how hard each prompt is at first.

GRPO's gradient of a group with m correct among G responses is W (phi_correct - phi_wrong), averages over the answers
drawn, with W = m advantage/G. Let sigma be the standard deviation of its rewards: W is sigma sqrt((G - 1)/G) with
group-normalised advantages (frameworks divide by the sample's), sigma^2 without the division, and sigma^2 G/(G - 1)
with leave-one-out.
Given m, correct and wrong answers are independent draws, so that, with Delta = E[phi | correct] - E[phi | wrong],

    E[g | p] = sum_m P(m) W Delta,      E[g^2 | p] = sum_m P(m) W^2 (Delta^2 + Var_correct/m + Var_wrong/(G - m))

are exact for any theta, the sums running over 0 < m < G. Groups without variance are left out of the batch, or count
as zero. Averages over prompts give the noise scale, its share from prompts and from responses, and each coordinate's.

PPO's gradients are (r - V) (phi_a - sum pi phi) and (r - V) psi, with V = psi . omega linear in features of its own:
averages over answers and prompts.

References
----------
.. [1] Shao et al. 2024, "DeepSeekMath", arXiv:2402.03300, section 4.1 (group-normalised advantages).
.. [2] Liu et al. 2025, "Understanding R1-Zero-Like Training", arXiv:2503.20783 (without the division).
.. [3] Ahmadian et al. 2024, "Back to Basics", arXiv:2402.14740, eq. 8 (leave-one-out).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, xlogy

from batchsim.errors import InputError, nearest

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]

ADVANTAGES = ("group", "mean", "leave_one_out")
ZERO_VARIANCE = ("refill", "drop", "keep")
BYTES_MAX = 2**31
"""Of the features, all prompts together."""
GROUP_MAX = 4096


@dataclass(frozen=True, eq=False, kw_only=True)
class SoftmaxWorld:
    """Prompts to train on and prompts to validate on.

    Parameters
    ----------
    features, validation : array_like (prompt, answer, D), kept as float32 [1]
    offset, validation_offset : array_like (prompt, answer) [1]
        Logits at theta = 0.
    correct : int
        C, from 1 to answers - 1: the first answers of every prompt.
    value_features : array_like (prompt, V), kept as float32 [1]
        psi of the training prompts, for PPO.
    value_start : array_like (V,) [1]
        omega before training.
    bound : float > 0 [1]
        Largest shift of a logit.

    Raises
    ------
    InputError
        For shapes that do not fit, values that are not finite, or features beyond `BYTES_MAX`.
    """

    features: Singles
    offset: Floats
    validation: Singles
    validation_offset: Floats
    correct: int
    value_features: Singles
    value_start: Floats
    bound: float = np.inf

    def __post_init__(self) -> None:
        kinds = {
            "features": (np.float32, 3), "validation": (np.float32, 3), "offset": (np.float64, 2),
            "validation_offset": (np.float64, 2), "value_features": (np.float32, 2), "value_start": (np.float64, 1),
        }  # fmt: skip
        for name, (kind, dimensions) in kinds.items():
            value = np.array(getattr(self, name), dtype=kind, order="C")
            if value.ndim != dimensions or not value.size:
                raise InputError(
                    f"{name} has shape {value.shape}, not {dimensions} dimensions of at least 1",
                    remedy="see the shapes of SoftmaxWorld",
                )
            if not np.isfinite(value).all():
                raise InputError(f"{name} is not finite everywhere", remedy="give finite numbers")
            value.flags.writeable = False
            object.__setattr__(self, name, value)
        prompts, answers, dim = self.features.shape
        wanted = {
            "offset": (prompts, answers), "validation": (len(self.validation), answers, dim),
            "validation_offset": (len(self.validation), answers),
            "value_features": (prompts, self.value_start.size),
        }  # fmt: skip
        for name, shape in wanted.items():
            if getattr(self, name).shape != shape:
                raise InputError(
                    f"{name} has shape {getattr(self, name).shape}, and the features ask for {shape}",
                    remedy="give one entry per prompt and answer",
                )
        if not 1 <= self.correct < answers:
            raise InputError(
                f"correct is {self.correct} of {answers} answers", remedy="at least one correct and one wrong answer"
            )
        if not self.bound > 0:
            raise InputError(f"bound is {self.bound:g}, and it must be positive", remedy="inf leaves logits unbounded")

    @property
    def dim(self) -> int:
        """D."""
        return int(self.features.shape[2])

    def score(self, theta: ArrayLike) -> float:
        """Expected share of correct answers over the validation prompts at parameters (D,) [1]."""
        probability, _ = _policy(self.validation, self.validation_offset, self._at(theta), self.bound)
        return float(probability[:, : self.correct].sum(axis=1).mean())

    def _at(self, theta: ArrayLike) -> Floats:
        point = np.asarray(theta, dtype=np.float64)
        if point.shape != (self.dim,):
            raise InputError(
                f"theta has shape {point.shape}, and the world {self.dim} coordinates",
                remedy="give one number per coordinate",
            )
        if not np.isfinite(point).all():
            raise InputError("theta is not finite everywhere", remedy="a run that diverges has no policy")
        return point


def softmax_world(
    *,
    dim: int = 128,
    prompts: int = 1024,
    validation: int = 512,
    answers: int = 8,
    correct: int = 1,
    signal: int | None = None,
    scale_spread: float = 0.0,
    rotated: bool = False,
    overlap: float = 0.0,
    topics: int = 16,
    difficulty: float = 0.5,
    label_noise: float = 0.0,
    start_score: float = 0.28,
    value_dim: int = 16,
    bound: float = np.inf,
    seed: int = 0,
) -> SoftmaxWorld:
    """Draw a world.

    Features are normal with a mean square norm of 1, the teacher's scores have variance 1.

    Parameters
    ----------
    dim : int
        D.
    prompts, validation : int
        Prompts to train on and to validate on; with 0 the training prompts are validated on, and what is learned of
        single prompts counts.
    answers, correct : int
        A and C of every prompt.
    signal : int or None
        Coordinates of which the teacher uses any; all if None. The fewer, the sparser the gradient.
    scale_spread : float [1]
        Standard deviation of the log scale of the coordinates: gradients then differ in noise and in signal-to-noise.
    rotated : bool
        Features are turned by a random rotation: the same prompts and policies, in a basis in which no coordinate is
        special.
    overlap : float in [0, 1) [1]
        Share of the features' variance that all prompts of a topic have in common.
    topics : int
    difficulty : float [1]
        Standard deviation over prompts of the logit offset of correct answers.
    label_noise : float [1]
        Noise of the teacher's score: a share of the labels cannot be learned.
    start_score : float in (0, 1) [1]
        Mean probability of a correct answer at theta = 0, over all prompts.
    value_dim : int
        Features of the value function without meaning, beside a constant and the start's probability of success.
    bound : float [1]
        See `SoftmaxWorld`.
    seed : int

    Returns
    -------
    SoftmaxWorld
        V(p) is the start's own probability of success before training.

    Raises
    ------
    InputError
        For sizes outside their bounds.
    """
    sizes = {"dim": dim, "prompts": prompts, "validation": validation, "answers": answers, "correct": correct,
             "topics": topics, "value_dim": value_dim}  # fmt: skip
    for name, size in sizes.items():
        least = 0 if name in ("value_dim", "validation") else 1
        if size < least:
            raise InputError(f"{name} is {size}, and it must be at least {least}", remedy=f"as {name}={max(least, 1)}")
    if correct >= answers:
        raise InputError(f"correct is {correct} of {answers} answers", remedy="leave at least one wrong answer")
    if signal is not None and not 1 <= signal <= dim:
        raise InputError(f"signal is {signal}, outside 1 to {dim} coordinates", remedy="None uses all")
    n = prompts + validation
    if 4 * n * answers * dim > BYTES_MAX:
        raise InputError(
            f"{n} prompts x {answers} answers x {dim} coordinates take {4e-9 * n * answers * dim:.1f} GB, more than "
            f"{BYTES_MAX / 1e9:.1f} GB",
            remedy="choose fewer prompts, answers or coordinates",
        )
    if not (0 <= overlap < 1 and 0 < start_score < 1):
        raise InputError(
            f"overlap {overlap:g} must lie in [0, 1) and start_score {start_score:g} in (0, 1)",
            remedy="both are shares: the defaults are 0 and 0.28",
        )
    for name, spread in {"scale_spread": scale_spread, "difficulty": difficulty, "label_noise": label_noise}.items():
        if not 0 <= spread <= 20:
            raise InputError(f"{name} is {spread:g}, outside 0 to 20", remedy="a standard deviation, as 0.5")
    rng = np.random.default_rng(seed)
    scale = np.exp(scale_spread * rng.standard_normal(dim))
    scale /= np.sqrt(np.sum(scale**2))
    teacher = rng.standard_normal(dim)
    used = np.zeros(dim)
    used[rng.permutation(dim)[: dim if signal is None else signal]] = 1.0
    teacher *= used
    teacher /= np.sqrt(np.sum((teacher * scale) ** 2))
    # Drawn in single precision, since nothing finer is kept.
    phi = rng.standard_normal((n, answers, dim), dtype=np.float32)
    if overlap > 0:
        common = rng.standard_normal((topics, answers, dim), dtype=np.float32)[rng.integers(topics, size=n)]
        phi = np.float32(np.sqrt(1 - overlap)) * phi + np.float32(np.sqrt(overlap)) * common
    phi *= scale.astype(np.float32)
    score = phi @ teacher + label_noise * rng.standard_normal((n, answers))
    phi = np.take_along_axis(phi, np.argsort(-score, axis=1)[:, :, None], axis=1)
    hard = difficulty * rng.standard_normal(n)
    offset = np.zeros((n, answers))
    offset[:, :correct] = (_shift(hard, answers, correct, start_score) + hard)[:, None]
    success = _success(offset[:, 0], answers, correct)
    psi = np.column_stack([np.ones(n), success, rng.standard_normal((n, value_dim)) / np.sqrt(max(value_dim, 1))])
    omega = np.zeros(psi.shape[1])
    omega[1] = 1.0
    if rotated:
        # Drawn last, so that the rest of the world is that of the same seed unrotated.
        basis, sign = np.linalg.qr(rng.standard_normal((dim, dim)))
        phi = phi @ (basis * np.sign(np.diag(sign))).astype(np.float32)
    return SoftmaxWorld(
        features=phi[:prompts],
        offset=offset[:prompts],
        validation=phi[prompts:] if validation else phi,
        validation_offset=offset[prompts:] if validation else offset,
        correct=correct,
        value_features=psi[:prompts].astype(np.float32),
        value_start=omega,
        bound=bound,
    )


def _success(offset: Floats, answers: int, correct: int) -> Floats:
    return np.asarray(1 / (1 + (answers - correct) / correct * np.exp(-offset)))


def _shift(hard: Floats, answers: int, correct: int, wanted: float) -> float:
    """Offset of correct answers at which the mean probability of success is the wanted one."""
    low, high = -40.0 - np.abs(hard).max(), 40.0 + np.abs(hard).max()
    for _ in range(80):
        middle = (low + high) / 2
        if _success(middle + hard, answers, correct).mean() < wanted:
            low = middle
        else:
            high = middle
    return float(low)


@dataclass(frozen=True, eq=False, kw_only=True)
class TrueNoise:
    """Exact moments of one response's gradient at a policy.

    Parameters
    ----------
    gradient : ndarray (D,) [1]
        G.
    variance : ndarray (D,) [responses]
        sigma^2: a batch of B responses has sigma^2/B. For GRPO, G times that of a group.
    prompt_variance : float [prompts]
        Trace of the covariance of E[g | prompt] over kept prompts.
    response_variance : float [responses]
        Trace of the covariance given the prompt: variance = group_size prompt_variance + response_variance.
    kept_share : float [1]
        Share of groups with variance.
    score : float [1]
        Expected share of correct answers on the training prompts.
    """

    gradient: Floats
    variance: Floats
    prompt_variance: float
    response_variance: float
    kept_share: float
    score: float

    @property
    def noise_scale(self) -> float:
        """tr(Sigma)/|G|^2 [responses]; infinite without a gradient."""
        signal = float(self.gradient @ self.gradient)
        return float(self.variance.sum()) / signal if signal > 0 else np.inf


def true_noise(
    world: SoftmaxWorld,
    theta: ArrayLike,
    *,
    group_size: int,
    advantage: str = "group",
    zero_variance: str = "refill",
) -> TrueNoise:
    """Exact moments of GRPO's gradient on its own policy, without a KL penalty.

    Parameters
    ----------
    world : SoftmaxWorld
    theta : array_like (D,) [1]
    group_size : int [responses/prompt]
        2 to `GROUP_MAX`.
    advantage : {'group', 'mean', 'leave_one_out'}
    zero_variance : {'refill', 'drop', 'keep'}
        Whether groups without variance are in the batch ('keep').

    Returns
    -------
    TrueNoise

    Raises
    ------
    InputError
        For unknown names, a group size outside its bounds, or a policy that leaves no group with variance to keep.
    """
    check_name("advantage", advantage, ADVANTAGES)
    check_name("zero_variance", zero_variance, ZERO_VARIANCE)
    if not 2 <= group_size <= GROUP_MAX:
        raise InputError(f"group_size is {group_size}, outside 2 to {GROUP_MAX}", remedy="as group_size=8")
    features = np.asarray(world.features, dtype=np.float64)
    probability, slope = _policy(features, world.offset, world._at(theta), world.bound)
    features = features * slope[:, :, None]
    c, g = world.correct, group_size
    right, wrong = _moments(probability[:, :c], features[:, :c]), _moments(probability[:, c:], features[:, c:])
    # Each from its own answers: 1 - success is all rounding where a policy is nearly certain.
    success, failure = probability[:, :c].sum(axis=1), probability[:, c:].sum(axis=1)
    m = np.arange(1, g)
    log_choose = gammaln(g + 1) - gammaln(m + 1) - gammaln(g - m + 1)
    mixed = np.exp(log_choose + xlogy(m, success[:, None]) + xlogy(g - m, failure[:, None]))
    kept = mixed.sum(axis=1)
    if zero_variance == "keep":
        prompt_share, chance = np.full(kept.size, 1 / kept.size), mixed
    elif kept.any():
        # A prompt without mixed groups has no share of the batch, whatever its chances.
        prompt_share, chance = kept / kept.sum(), mixed / np.where(kept > 0, kept, 1.0)[:, None]
    else:
        raise InputError(
            "no group has variance at this policy", remedy="zero_variance 'keep' counts them with gradient 0"
        )
    square = m * (g - m) / g**2
    weight = {"group": np.sqrt(square * (g - 1) / g), "mean": square, "leave_one_out": square * g / (g - 1)}[advantage]
    delta = right[0] - wrong[0]
    per_prompt = (chance @ weight)[:, None] * delta
    gradient = prompt_share @ per_prompt
    second = prompt_share @ (
        (chance @ weight**2)[:, None] * delta**2
        + (chance @ (weight**2 / m))[:, None] * right[1]
        + (chance @ (weight**2 / (g - m)))[:, None] * wrong[1]
    )
    return _true_noise(gradient, second, per_prompt, prompt_share, g, float(kept.mean()), float(success.mean()))


def true_value_noise(
    world: SoftmaxWorld, theta: ArrayLike, omega: ArrayLike, *, normalise: bool = True
) -> tuple[TrueNoise, TrueNoise]:
    """Exact moments of PPO's gradients on its own policy, one response per prompt: of the actor and of the critic.

    Parameters
    ----------
    world : SoftmaxWorld
    theta : array_like (D,) [1]
    omega : array_like (V,) [1]
    normalise : bool
        The mean advantage of all prompts is subtracted, as that of a large batch is. (The division by its spread
        scales mean and deviation alike.)

    Returns
    -------
    actor, critic : TrueNoise

    Raises
    ------
    InputError
        For parameters of another shape, or not finite.
    """
    weights = np.asarray(omega, dtype=np.float64)
    if weights.shape != world.value_start.shape or not np.isfinite(weights).all():
        raise InputError(
            f"omega must be finite, of shape {world.value_start.shape}; its shape is {weights.shape}",
            remedy="as world.value_start",
        )
    features = np.asarray(world.features, dtype=np.float64)
    probability, slope = _policy(features, world.offset, world._at(theta), world.bound)
    features = features * slope[:, :, None]
    features -= np.einsum("pa,pad->pd", probability, features)[:, None]
    psi = np.asarray(world.value_features, dtype=np.float64)
    value = psi @ weights
    success = probability[:, : world.correct].sum(axis=1)
    reward = np.zeros(probability.shape[1])
    reward[: world.correct] = 1.0
    advantage = reward - value[:, None] - (np.mean(success - value) if normalise else 0.0)
    share = np.full(value.size, 1 / value.size)
    one = np.einsum("pa,pa,pad->pd", probability, advantage, features)
    two = share @ np.einsum("pa,pa,pad->pd", probability, advantage**2, features**2)
    actor = _true_noise(share @ one, two, one, share, 1, 1.0, float(success.mean()))
    error = (success - value)[:, None] * psi
    square = share @ ((success * (1 - value) ** 2 + (1 - success) * value**2)[:, None] * psi**2)
    return actor, _true_noise(share @ error, square, error, share, 1, 1.0, float(success.mean()))


def _true_noise(
    gradient: Floats, second: Floats, per_prompt: Floats, share: Floats, group: int, kept: float, score: float
) -> TrueNoise:
    total = np.maximum(second - gradient**2, 0.0)
    between = np.maximum(share @ (per_prompt - gradient) ** 2, 0.0)
    return TrueNoise(
        gradient=gradient,
        variance=group * total,
        prompt_variance=float(between.sum()),
        response_variance=float(group * np.maximum(total - between, 0.0).sum()),
        kept_share=kept,
        score=score,
    )


def _policy(features: NDArray[np.floating], offset: Floats, theta: Floats, bound: float) -> tuple[Floats, Floats]:
    """Probabilities (prompt, answer) and the derivative of each logit by theta . phi."""
    z = np.asarray(features @ theta, dtype=np.float64)
    slope = np.ones_like(z)
    if np.isfinite(bound):
        t = np.tanh(z / bound)
        z, slope = bound * t, 1 - t * t
    logits = offset + z
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True), slope


def _moments(probability: Floats, features: Floats) -> tuple[Floats, Floats]:
    """Mean and variance (prompt, D) of the features of an answer drawn with these relative probabilities."""
    total = probability.sum(axis=1, keepdims=True)
    # Where the policy never gives such an answer, any distribution over them will do.
    p = np.where(total > 0, probability, 1.0)
    p = p / p.sum(axis=1, keepdims=True)
    mean = np.einsum("pa,pad->pd", p, features)
    return mean, np.einsum("pa,pad->pd", p, (features - mean[:, None]) ** 2)


def check_name(what: str, name: str, known: tuple[str, ...]) -> None:
    """Refuse a name that is not known."""
    if name not in known:
        raise InputError(f"{what} '{name}' is not known", remedy=nearest(name, list(known)))
