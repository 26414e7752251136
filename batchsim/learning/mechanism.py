r"""Mechanisms that bend the law of sample cost, each named and switchable.

The law of `sample_cost` knows the noise scale, its shape, the learning rate and the curvature. What else is known
to move r_N enters as a ceiling on the rate, or as a factor on the updates to the target:

    trust region    KL per update ~ eta^2, hardly a function of B:  s <= sqrt(KL_max/KL_0)
    few updates     momentum averages over beta_1/(1 - beta_1) updates, in which the gradient turns:
                    S -> S + a beta_1/(1 - beta_1), so r_N rises where few updates remain
    epsilon         A_i = G_i^2/(sqrt(G_i^2 + sigma_i^2/B) + eps): large batches lose first, since their
                    root mean square is smallest
    noise floor     distance to the floor F decays, not to the optimum: S ~ log((d_0 - F)/(d - F))
    staleness       responses sampled L updates ago: S -> S (1 + a L^q)
    KL penalty      a share of the slope pulls back to the start: S -> S/(1 - share)
    critic          the slower of two noise scales decides, or a weighted mean

All are hypotheses with one or two constants; where a constant has a default, it has one source, and no
forecast applies a mechanism unless a caller asks, or the logs hold the age of the responses.

References
----------
.. [1] Zhang et al. 2019, "Which Algorithmic Choices Matter at Which Batch Sizes?", arXiv:1907.04164 (noise floor).
.. [2] Bansal, critical batch study of OLMo2-1B GRPO, steps to target at 1, 2, 4 and 32 updates per rollout
   (RachitBansal/verl, experiments/critical_batch_size): the staleness constants.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchsim.errors import InputError
from batchsim.learning.sample_cost import sample_cost_ratio

STALENESS = (0.49, 0.87)
"""a and q of the staleness factor, per update of mean age. The published rows have 2, 4 and 32 updates per rollout
batch, mean ages of .5, 1.5 and 15.5 updates; the factor goes through the middle of 1.4 to 2.0 at 4 and of 5 to 8 at 32,
and gives 1.27 within 1.0 to 1.9 at 2 [2]_. One optimizer batch, one seed: an order of size."""
MOMENTUM_LOSS = 0.35
"""a of the few-updates term: tiny_grpo at 64 times the batch needs 2 to 4 updates (of 14 to 31) more than its
measured slope A(B) asks for, with beta_1 = 0.9, at three targets. From one sweep: an order of size."""


def trust_region_ceiling(*, kl_max: ArrayLike, kl_reference: ArrayLike) -> NDArray[np.float64]:
    """Largest learning rate, relative to the reference, whose update stays in the trust region.

    Parameters
    ----------
    kl_max : array_like, any shape [1]
        Largest KL divergence per update that training survives.
    kl_reference : array_like, broadcastable [1]
        KL per update of the reference recipe, as logged (`ppo_kl`).

    Returns
    -------
    ndarray [1]
        sqrt(KL_max/KL_0): the `ceiling` of `sample_cost_ratio`.

    Raises
    ------
    InputError
        For a divergence that is not positive.
    """
    most, usual = _positive("kl_max", kl_max), _positive("kl_reference", kl_reference)
    return np.sqrt(most / usual)


def few_updates_factor(
    updates: ArrayLike, *, reference_updates: ArrayLike, beta1: ArrayLike = 0.9, loss: ArrayLike = MOMENTUM_LOSS
) -> NDArray[np.float64]:
    """Factor on r_N because momentum remembers longer than a short run lasts.

    Parameters
    ----------
    updates, reference_updates : array_like, broadcastable [updates]
        S and S_0 that the law gives without momentum.
    beta1 : array_like, broadcastable in [0, 1) [1]
    loss : array_like, broadcastable [1]
        a: updates lost per update that momentum averages over.

    Returns
    -------
    ndarray [1]
        (1 + m/S)/(1 + m/S_0) with m = a beta_1/(1 - beta_1).

    Raises
    ------
    InputError
        For updates that are not positive or beta1 outside [0, 1).
    """
    s, s0 = _positive("updates", updates), _positive("reference_updates", reference_updates)
    b = np.asarray(beta1, dtype=np.float64)
    if not ((b >= 0) & (b < 1)).all():
        raise InputError(f"beta1 is {b.max() if (b >= 1).any() else b.min()}, outside [0, 1)")
    memory = np.asarray(loss) * b / (1 - b)
    return np.asarray((1 + memory / s) / (1 + memory / s0))


def epsilon_slope(relative_batch: ArrayLike, *, epsilon: ArrayLike) -> NDArray[np.float64]:
    """Slope that Adam can use when its epsilon is not negligible, for coordinates that are all alike.

    Parameters
    ----------
    relative_batch : array_like, any shape [1]
        b = B/B_noise > 0.
    epsilon : array_like, broadcastable [1]
        Adam's epsilon over the root mean square of the expected gradient's coordinates.

    Returns
    -------
    ndarray [1]
        1/(sqrt(1 + 1/b) + epsilon); use its ratio between two batches as 1/rk.

    Raises
    ------
    InputError
        For a batch that is not positive or a negative epsilon.
    """
    b, e = _positive("relative_batch", relative_batch), np.asarray(epsilon, dtype=np.float64)
    if (e < 0).any():
        raise InputError(f"epsilon is {e.min():g}, and it must not be negative")
    return np.asarray(1 / (np.sqrt(1 + 1 / b) + e))


def noise_floor_factor(
    *, start: ArrayLike, target: ArrayLike, floor: ArrayLike, reference_floor: ArrayLike = 0.0
) -> NDArray[np.float64]:
    """Factor on r_N because a constant rate only approaches a floor.

    Parameters
    ----------
    start, target : array_like, broadcastable [1]
        Distance to the optimum at the start and at the target, start > target > 0.
    floor, reference_floor : array_like, broadcastable [1]
        Distance that noise keeps at the candidate's and the reference's batch and rate.

    Returns
    -------
    ndarray [1]
        log((d_0 - F)/(d - F)) over the same for the reference; infinite where the floor lies at or above
        the target: it is never reached.

    Raises
    ------
    InputError
        If the target is no nearer than the start, or the reference cannot reach it.
    """
    d0, d = _positive("start", start), _positive("target", target)
    if not (d0 > d).all():
        raise InputError("the target must lie nearer to the optimum than the start")
    f, f0 = np.asarray(floor, dtype=np.float64), np.asarray(reference_floor, dtype=np.float64)
    if not (f0 < d).all():
        raise InputError(f"the reference's floor {np.max(f0):g} lies above the target {np.min(d):g}")
    with np.errstate(divide="ignore", invalid="ignore"):
        # (d_0 - F)/(d - F) is 1 + (d_0 - d)/(d - F): no digits are lost where the target is near the start.
        needed = np.where(f < d, np.log1p((d0 - d) / np.where(f < d, d - f, np.nan)), np.inf)
    return np.asarray(needed / np.log1p((d0 - d) / (d - f0)))


def staleness_factor(
    lag: ArrayLike, *, reference_lag: ArrayLike = 0.0, constants: tuple[ArrayLike, ArrayLike] = STALENESS
) -> NDArray[np.float64]:
    """Factor on r_N because responses were sampled some updates ago.

    Parameters
    ----------
    lag, reference_lag : array_like, broadcastable [updates]
        Mean age of a response when it is used; see `rollout_lag`.
    constants : tuple of array_like, broadcastable [1]
        a and q.

    Returns
    -------
    ndarray [1]
        (1 + a L^q)/(1 + a L_0^q).

    Raises
    ------
    InputError
        For a negative lag.
    """
    late, usual = np.asarray(lag, dtype=np.float64), np.asarray(reference_lag, dtype=np.float64)
    for name, value in (("lag", late), ("reference_lag", usual)):
        if (value < 0).any():
            raise InputError(f"{name} is {value.min():g}, and it must not be negative")
    a, q = (np.asarray(v, dtype=np.float64) for v in constants)
    return np.asarray((1 + a * late**q) / (1 + a * usual**q))


def rollout_lag(
    *, updates_per_rollout: ArrayLike = 1, in_flight: ArrayLike = 0.0, rollout_batch: ArrayLike = 1.0
) -> NDArray[np.float64]:
    """Mean age of a response when it is used.

    Parameters
    ----------
    updates_per_rollout : array_like, any shape [1]
        M: the m-th of M updates uses responses m - 1 updates old, over all passes.
    in_flight : array_like, broadcastable [responses]
        Responses that are being generated while the trainer works (asynchronous modes).
    rollout_batch : array_like, broadcastable [responses]
        Kept responses per rollout step.

    Returns
    -------
    ndarray [updates]
        (M - 1)/2 + M in_flight/rollout_batch, by Little's law.
    """
    m = np.asarray(updates_per_rollout, dtype=np.float64)
    return np.asarray((m - 1) / 2 + m * np.asarray(in_flight) / np.asarray(rollout_batch))


def kl_penalty_factor(share: ArrayLike, *, reference_share: ArrayLike = 0.0) -> NDArray[np.float64]:
    """Factor on r_N because a KL penalty takes a share of the slope.

    Parameters
    ----------
    share, reference_share : array_like, broadcastable [1]
        Slope of the penalty over the slope of the reward along the update. At one score both recipes
        have moved about as far from the start, the shares are equal, and the penalty cancels from r_N.

    Returns
    -------
    ndarray [1]
        (1 - share_0)/(1 - share); infinite at 1, where the penalty holds the policy in place.

    Raises
    ------
    InputError
        For a share outside [0, 1], or 1 at the reference.
    """
    k, k0 = np.asarray(share, dtype=np.float64), np.asarray(reference_share, dtype=np.float64)
    if not (((k >= 0) & (k <= 1)).all() and ((k0 >= 0) & (k0 < 1)).all()):
        raise InputError(f"the share of the slope is outside [0, 1]: {np.max(k):g}, reference {np.max(k0):g}")
    with np.errstate(divide="ignore"):
        return np.asarray((1 - k0) / (1 - k))


def actor_critic_cost(
    actor: ArrayLike, critic: ArrayLike, *, critic_weight: float | None = None
) -> NDArray[np.float64]:
    """Sample cost of a recipe whose actor and critic have noise scales of their own.

    Parameters
    ----------
    actor, critic : array_like, broadcastable [1]
        r_N of each at its own batch, noise scale and learning rate.
    critic_weight : float or None [1]
        Weight of the critic in a geometric mean; None takes the slower of the two.

    Returns
    -------
    ndarray [1]

    Raises
    ------
    InputError
        For a weight outside [0, 1].
    """
    a, c = _positive("actor", actor), _positive("critic", critic)
    if critic_weight is None:
        return np.maximum(a, c)
    if not 0 <= critic_weight <= 1:
        raise InputError(f"critic_weight is {critic_weight:g}, outside [0, 1]")
    return np.asarray(a ** (1 - critic_weight) * c**critic_weight)


def actor_critic_sample_cost(
    train_batch: ArrayLike,
    *,
    reference_batch: ArrayLike,
    actor_noise_scale: ArrayLike,
    critic_noise_scale: ArrayLike,
    critic_updates: ArrayLike = 1.0,
    reference_critic_updates: ArrayLike = 1.0,
    critic_weight: float | None = None,
    **law: Any,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Sample costs of actor and critic, each at its own batch, and of the recipe.

    The critic may make several updates per actor update, on equal parts of the same responses: its batch is
    B/critic_updates. Where its noise scale is several times smaller (a critic norm that does not fall with B), its
    cost departs first, and more critic updates move it back.

    Parameters
    ----------
    train_batch, reference_batch : array_like, broadcastable [responses]
        The actor's.
    actor_noise_scale, critic_noise_scale : array_like, broadcastable [responses]
    critic_updates, reference_critic_updates : array_like, broadcastable [1]
        Critic updates per actor update, at the candidate and at the reference.
    critic_weight : float or None [1]
        See `actor_critic_cost`.
    **law
        Further arguments of `sample_cost_ratio`, the same for both.

    Returns
    -------
    actor, critic, recipe : ndarray [1]
    """
    actor = sample_cost_ratio(train_batch, reference_batch=reference_batch, noise_scale=actor_noise_scale, **law)
    critic = sample_cost_ratio(
        np.asarray(train_batch) / _positive("critic_updates", critic_updates),
        reference_batch=np.asarray(reference_batch) / _positive("reference_critic_updates", reference_critic_updates),
        noise_scale=critic_noise_scale,
        **law,
    )
    return actor, critic, actor_critic_cost(actor, critic, critic_weight=critic_weight)


def _positive(name: str, value: ArrayLike) -> NDArray[np.float64]:
    v = np.asarray(value, dtype=np.float64)
    if not (v > 0).all():
        raise InputError(f"{name} is {np.min(v):g}, and it must be positive")
    return v
