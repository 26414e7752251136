r"""Where the two sides meet: time to target over batches, its effective range and its optimum.

The learning side gives r_N and the system side q, each as one array over (draw, train_batch):

    T/T_0 = r_N / (q/q_0),          T = N*_0 r_N / q  where N*_0 is known.

Batches are judged draw by draw, so that what is common to all batches (a noise scale, a plateau) is not
counted as if it could favour one of them:

    effective range   contiguous batches with P(T <= 1.05 T_best) >= 1/2
    star              the smallest batch of the range whose median T is within 5 % of the least median

With tuned rates, r_N = (1 + B/B_noise)/(1 + B_0/B_noise), and an affine step time t = tau_0 + tau_1 B, T is
least at the geometric mean of the noise scale and of tau_0/tau_1, where half the plateau is reached,

    B_opt = sqrt(B_noise tau_0/tau_1),    T(k B_opt)/T(B_opt) <= (2 + k + 1/k)/4,

so a batch wrong by a factor 2 costs at most 12.5 %. Only that rule and that time have this optimum; far below the
best rate the sqrt rule and a fixed rate have their own, and where r_N falls or stays (linear, invariant) there is none.
All are derived in `docs/derivations.md`.

References
----------
.. [1] Li et al. 2026, arXiv:2608.29296, section on the two critical batches, figures 8-10 (the star: smallest
   batch on the near-optimal plateau).
.. [2] McCandlish et al. 2018, arXiv:1812.06162, eq. 2.11.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchsim.errors import InputError, nearest

NEAR_BEST = 1.05
"""T relative to the best that still counts as best."""
RANGE_PROBABILITY = 0.5
RULES = ("tuned", "sqrt", "fixed", "linear", "invariant")
"""Rules under which the best batch has a closed form."""

Floats = NDArray[np.float64]


def p_near_best(time_ratio: ArrayLike, *, near_best: float = NEAR_BEST) -> Floats:
    """Probability that a batch is within 5 % of the best candidate.

    Parameters
    ----------
    time_ratio : array_like, (draw, train_batch) [1]
        T/T_0; infinite where training diverges.
    near_best : float [1]
        T over that of the best that still counts as best.

    Returns
    -------
    ndarray, (train_batch,) [1]
    """
    t = np.asarray(time_ratio, dtype=np.float64)
    best = t.min(axis=1, keepdims=True)
    return np.asarray(np.mean((t <= near_best * best) & np.isfinite(t), axis=0))


def effective_range(time_ratio: ArrayLike, *, near_best: float = NEAR_BEST) -> tuple[int, int] | None:
    """Contiguous batches that are probably within 5 % of the best, as indices.

    Parameters
    ----------
    time_ratio : array_like, (draw, train_batch) [1]
        Batches in increasing order.
    near_best : float [1]
        See `p_near_best`. A smaller one never widens the range.

    Returns
    -------
    (first, last) or None
        The run around the batch that is most probably within 5 %; None if it does not reach one half.
    """
    p = p_near_best(time_ratio, near_best=near_best)
    inside = p >= RANGE_PROBABILITY
    # The centre does not move with near_best, so that ranges are nested.
    first = last = int(np.argmax(p if near_best == NEAR_BEST else p_near_best(time_ratio)))
    if not inside[first]:
        return None
    while first > 0 and inside[first - 1]:
        first -= 1
    while last + 1 < p.size and inside[last + 1]:
        last += 1
    return first, last


def star(time_ratio: ArrayLike) -> int | None:
    """Index of the smallest batch of the effective range whose median T is within 5 % of the least median.

    Parameters
    ----------
    time_ratio : array_like, (draw, train_batch) [1]
        Batches in increasing order.

    Returns
    -------
    int or None
        None without an effective range. Where no median of the range is within 5 % of the least one outside it
        (which draws of very different lengths can bring about), the batch of its least median.
    """
    found = effective_range(time_ratio)
    if found is None:
        return None
    first, last = found
    median = np.median(np.asarray(time_ratio, dtype=np.float64), axis=0)
    near = np.isfinite(median) & (median <= NEAR_BEST * median.min())
    within = np.flatnonzero(near[first : last + 1])
    return first + int(within[0] if within.size else np.argmin(median[first : last + 1]))


def optimal_train_batch(
    *,
    noise_scale: ArrayLike,
    update_time_intercept: ArrayLike,
    update_time_slope: ArrayLike,
    lr_rule: str = "tuned",
) -> Floats:
    """Batch of the least time to target for the drift family's sample cost and an affine step time.

    Parameters
    ----------
    noise_scale : array_like, any shape [responses]
    update_time_intercept : array_like, broadcastable [s]
    update_time_slope : array_like, broadcastable [s/response]
    lr_rule : {'tuned', 'sqrt', 'fixed', 'linear', 'invariant'}
        The last four at rates far below the best one.

    Returns
    -------
    ndarray [responses]
        With a = tau_0/tau_1: sqrt(a B_noise) tuned, (a + sqrt(a^2 + 8 a B_noise))/2 for sqrt,
        2 a/(1 + sqrt(1 + 8 a/B_noise)) for fixed; infinite for linear and invariant, where T falls with the batch.

    Raises
    ------
    InputError
        For an unknown rule.

    Examples
    --------
    >>> float(optimal_train_batch(noise_scale=3750, update_time_intercept=247, update_time_slope=0.71).round())
    1142.0
    >>> float(
    ...     optimal_train_batch(
    ...         noise_scale=3750, update_time_intercept=247, update_time_slope=0.71, lr_rule="sqrt"
    ...     ).round()
    ... )
    1799.0
    """
    a = np.asarray(update_time_intercept, dtype=np.float64) / np.asarray(update_time_slope, dtype=np.float64)
    noise = np.asarray(noise_scale, dtype=np.float64)
    if lr_rule == "tuned":
        return np.asarray(np.sqrt(noise) * np.sqrt(a))
    if lr_rule == "sqrt":
        return np.asarray((a + np.sqrt(a) * np.sqrt(a + 8 * noise)) / 2)
    if lr_rule == "fixed":
        return np.asarray(2 * a / (1 + np.sqrt(1 + 8 * a / noise)))
    if lr_rule in ("linear", "invariant"):
        return np.full(np.broadcast_shapes(a.shape, noise.shape), np.inf)
    raise InputError(f"no closed form of the best batch under the rule '{lr_rule}'", remedy=nearest(lr_rule, RULES))


def plateau_factor(
    *,
    noise_scale: ArrayLike,
    update_time_intercept: ArrayLike,
    update_time_slope: ArrayLike,
    tolerance: ArrayLike = NEAR_BEST - 1,
) -> Floats:
    """How far from the best batch T stays within a tolerance, with tuned rates and an affine step time.

    Parameters
    ----------
    noise_scale : array_like, any shape [responses]
    update_time_intercept : array_like, broadcastable [s]
    update_time_slope : array_like, broadcastable [s/response]
    tolerance : array_like, broadcastable [1]
        T/T_best - 1, not negative.

    Returns
    -------
    ndarray [1]
        k >= 1: T is within the tolerance from B_opt/k to k B_opt. It solves k + 1/k - 2 =
        tolerance (1 + w)^2/w with w^2 = tau_0/(tau_1 B_noise), and is least at w = 1.

    Raises
    ------
    InputError
        For a negative tolerance.

    Examples
    --------
    >>> float(plateau_factor(noise_scale=3750, update_time_intercept=247, update_time_slope=0.71).round(2))
    1.69
    """
    off = np.asarray(tolerance, dtype=np.float64)
    if not (off >= 0).all():
        raise InputError(f"tolerance is {np.min(off):g}, and it must not be negative")
    a = np.asarray(update_time_intercept, dtype=np.float64) / np.asarray(update_time_slope, dtype=np.float64)
    w = np.sqrt(a / np.asarray(noise_scale, dtype=np.float64))
    # k + 1/k - 2 = 4 sinh^2(log(k)/2).
    return np.asarray(np.exp(2 * np.arcsinh(np.sqrt(off / w) * (1 + w) / 2)))


def worst_penalty(factor: ArrayLike) -> Floats:
    """Largest T(k B_opt)/T(B_opt) over all noise scales and step times, (2 + k + 1/k)/4.

    Parameters
    ----------
    factor : array_like, any shape [1]
        k > 0, the batch over the optimal one.

    Returns
    -------
    ndarray [1]
        Attained where B_noise = tau_0/tau_1.
    """
    k = np.asarray(factor, dtype=np.float64)
    return np.asarray((2 + k + 1 / k) / 4)
