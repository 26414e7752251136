r"""Where the two sides meet: time to target over batches, its effective range and its optimum.

The learning side gives r_N and the system side q, each as one array over (draw, train_batch):

    T/T_0 = r_N / (q/q_0),          T = N*_0 r_N / q  where N*_0 is known.

Batches are judged draw by draw, so that what is common to all batches (a noise scale, a plateau) is not
counted as if it could favour one of them:

    effective range   contiguous batches with P(T <= 1.05 T_best) >= 1/2
    star              the smallest batch whose median T is within 5 % of the least median

With tuned rates, r_N = (1 + B/B_noise)/(1 + B_0/B_noise), and an affine step time t = tau_0 + tau_1 B, T is
least at the geometric mean of the noise scale and of tau_0/tau_1, where half the plateau is reached,

    B_opt = sqrt(B_noise tau_0/tau_1),    T(k B_opt)/T(B_opt) <= (2 + k + 1/k)/4,

so a batch wrong by a factor 2 costs at most 12.5 %. Only that rule and that time have this optimum.

References
----------
.. [1] Li et al. 2026, arXiv:2608.29296, section on the two critical batches, figures 8-10 (the star: smallest
   batch on the near-optimal plateau).
.. [2] McCandlish et al. 2018, arXiv:1812.06162, eq. 2.11.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

NEAR_BEST = 1.05
"""T relative to the best that still counts as best."""
RANGE_PROBABILITY = 0.5

Floats = NDArray[np.float64]


def p_near_best(time_ratio: ArrayLike) -> Floats:
    """Probability that a batch is within 5 % of the best candidate.

    Parameters
    ----------
    time_ratio : array_like, (draw, train_batch) [1]
        T/T_0; infinite where training diverges.

    Returns
    -------
    ndarray, (train_batch,) [1]
    """
    t = np.asarray(time_ratio, dtype=np.float64)
    best = t.min(axis=1, keepdims=True)
    return np.asarray(np.mean((t <= NEAR_BEST * best) & np.isfinite(t), axis=0))


def effective_range(time_ratio: ArrayLike) -> tuple[int, int] | None:
    """Contiguous batches that are probably within 5 % of the best, as indices.

    Parameters
    ----------
    time_ratio : array_like, (draw, train_batch) [1]
        Batches in increasing order.

    Returns
    -------
    (first, last) or None
        The run around the most probable batch; None if no batch reaches one half.
    """
    p = p_near_best(time_ratio)
    inside = p >= RANGE_PROBABILITY
    if not inside.any():
        return None
    first = last = int(np.argmax(p))
    while first > 0 and inside[first - 1]:
        first -= 1
    while last + 1 < p.size and inside[last + 1]:
        last += 1
    return first, last


def star(time_ratio: ArrayLike) -> int | None:
    """Index of the smallest batch whose median T is within 5 % of the least median.

    Parameters
    ----------
    time_ratio : array_like, (draw, train_batch) [1]
        Batches in increasing order.

    Returns
    -------
    int or None
        None without an effective range.
    """
    if effective_range(time_ratio) is None:
        return None
    median = np.median(np.asarray(time_ratio, dtype=np.float64), axis=0)
    near = np.isfinite(median) & (median <= NEAR_BEST * median.min())
    return int(np.flatnonzero(near)[0]) if near.any() else None


def optimal_train_batch(
    *, noise_scale: ArrayLike, update_time_intercept: ArrayLike, update_time_slope: ArrayLike
) -> Floats:
    """Batch of the least time to target for tuned rates and an affine step time.

    Parameters
    ----------
    noise_scale : array_like, any shape [responses]
    update_time_intercept : array_like, broadcastable [s]
    update_time_slope : array_like, broadcastable [s/response]

    Returns
    -------
    ndarray [responses]
        sqrt(B_noise tau_0/tau_1).

    Examples
    --------
    >>> float(optimal_train_batch(noise_scale=3750, update_time_intercept=247, update_time_slope=0.71).round())
    1142.0
    """
    return np.asarray(np.sqrt(noise_scale * (np.asarray(update_time_intercept) / np.asarray(update_time_slope))))


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
