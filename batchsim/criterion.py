r"""When a larger batch finishes sooner: the criterion and the budget it moves.

Let N* be the kept responses that reach a common validation target and q the kept responses per
second over that interval. Along a smooth learning curve

    dJ/dt = (dJ/dN) (dN/dt),        T = N*/q,

so a change of batch that multiplies N* by r_N and q by r_q multiplies the time to target by

    T/T_0 = r_N / r_q,              T < T_0  <=>  r_q > r_N.

This is an identity: what can be right or wrong is a *prediction* of r_N (the learning side) or of
r_q (the system side). Everything here is a closed form on floats or arrays that broadcast.

References
----------
.. [1] Li et al. 2026, "When Do Larger Batches Help Scale LLM Reinforcement Learning?",
   arXiv:2608.29296; the criterion, its worked example and the budget example of the introduction.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

SECONDS_PER_HOUR = 3600.0
WINS_AT = 0.9
LOSES_AT = 0.1


def time_to_target(*, responses_to_target: ArrayLike, throughput: ArrayLike) -> NDArray[np.float64]:
    """Time to the validation target, T = N*/q.

    Parameters
    ----------
    responses_to_target : array_like, any shape [responses]
        Kept responses to the target, N*.
    throughput : array_like, broadcastable [responses/s]
        Kept responses per second over the same interval, q > 0.

    Returns
    -------
    ndarray [s]
    """
    return np.asarray(np.asarray(responses_to_target) / np.asarray(throughput), dtype=np.float64)


def time_ratio(*, sample_cost_ratio: ArrayLike, throughput_ratio: ArrayLike) -> NDArray[np.float64]:
    """Time to target relative to the reference, T/T_0 = r_N/r_q.

    Parameters
    ----------
    sample_cost_ratio : array_like, any shape [1]
        r_N = N*/N*_0.
    throughput_ratio : array_like, broadcastable [1]
        r_q = q/q_0 > 0.

    Returns
    -------
    ndarray [1]

    Examples
    --------
    The paper's example: 20 % more responses at 1.5 times, then at 1.1 times the throughput.

    >>> float(time_ratio(sample_cost_ratio=1.2, throughput_ratio=1.5))
    0.7999999999999999
    >>> round(float(time_ratio(sample_cost_ratio=1.2, throughput_ratio=1.1)), 2)
    1.09
    """
    return np.asarray(np.asarray(sample_cost_ratio) / np.asarray(throughput_ratio), dtype=np.float64)


def is_faster(*, sample_cost_ratio: ArrayLike, throughput_ratio: ArrayLike) -> NDArray[np.bool_]:
    """Whether the batch reaches the target sooner than the reference, r_q > r_N.

    Parameters
    ----------
    sample_cost_ratio, throughput_ratio : array_like, broadcastable [1]

    Returns
    -------
    ndarray of bool
    """
    return np.asarray(throughput_ratio) > np.asarray(sample_cost_ratio)


def verdict(p_wins: float | None, *, wins_at: float = WINS_AT, loses_at: float = LOSES_AT) -> str | None:
    """Verdict on a batch from the probability that r_q > r_N.

    Parameters
    ----------
    p_wins : float in [0, 1] or None [1]
        None or NaN where nothing can be said.
    wins_at, loses_at : float [1]
        Probabilities from which the batch wins, and up to which it loses.

    Returns
    -------
    'wins', 'loses', 'undecided' or None
    """
    if p_wins is None or np.isnan(p_wins):
        return None
    if p_wins >= wins_at:
        return "wins"
    return "loses" if p_wins <= loses_at else "undecided"


def gpu_hours(*, seconds: ArrayLike, gpus: ArrayLike) -> NDArray[np.float64]:
    """GPU-hours that `gpus` GPUs use in a time.

    Parameters
    ----------
    seconds : array_like, any shape [s]
    gpus : array_like, broadcastable [GPU]

    Returns
    -------
    ndarray [GPU*h]

    Examples
    --------
    10,000 GPUs for 30 days, the budget of the paper's introduction:

    >>> float(gpu_hours(seconds=30 * 86400, gpus=10_000))
    7200000.0
    """
    return np.asarray(np.asarray(seconds) * np.asarray(gpus) / SECONDS_PER_HOUR, dtype=np.float64)


def cost(*, gpu_hours: ArrayLike, price: ArrayLike) -> NDArray[np.float64]:
    """Price of GPU-hours.

    Parameters
    ----------
    gpu_hours : array_like, any shape [GPU*h]
    price : array_like, broadcastable [USD/(GPU*h)]

    Returns
    -------
    ndarray [USD]

    Examples
    --------
    >>> float(cost(gpu_hours=7_200_000, price=3.0))
    21600000.0
    """
    return np.asarray(np.asarray(gpu_hours) * np.asarray(price), dtype=np.float64)


def saving(value: ArrayLike, *, time_ratio: ArrayLike) -> NDArray[np.float64]:
    """Part of a budget that a shorter time to target saves, value (1 - T/T_0).

    Parameters
    ----------
    value : array_like, any shape
        GPU-hours or price of the reference, in any unit.
    time_ratio : array_like, broadcastable [1]
        T/T_0; above 1 the saving is negative.

    Returns
    -------
    ndarray, the unit of `value`

    Examples
    --------
    >>> round(float(saving(7_200_000, time_ratio=0.9)))
    720000
    >>> round(float(saving(21_600_000, time_ratio=0.9)))
    2160000
    """
    return np.asarray(np.asarray(value) * (1 - np.asarray(time_ratio)), dtype=np.float64)
