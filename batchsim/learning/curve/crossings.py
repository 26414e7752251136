r"""Reading a learning curve: when a run reached its target.

A run is evaluated now and then, so N* is known only as an interval: with evaluations after
N_1 < N_2 < ... kept responses and the first score at or above the target at N_j,

    N* in (N_{j-1}, N_j]      interval-censored
    N* in [0, N_1]            left-censored: the first evaluation already passed
    N* in (N_last, infinity)  right-censored: no evaluation passed

The first crossing of a noisy score comes early on a fine grid and late on a coarse one (7 % early
to 15 % late for a 1-point evaluation error on a slope of 0.6 points per 10,000 responses), so arms
with different grids are compared as intervals and never as points. With a known evaluation error the
interval widens to what the scores exclude. Three kinds of crossing are kept apart:

    first       the first score at or above the target
    sustained   the first after which no later score falls back
    smoothed    the first at which the rising curve nearest to the scores passes (least squares)

The nearest rising curve pools neighbours that fall into their mean, until none does (pool adjacent
violators). It needs no smoothing width, and the bounds it gives are still evaluations of the grid. A run
that collapses at the end drags it down: smooth up to the collapse.

The bias of the first crossing needs no simulation. With independent normal errors and the true scores
J_i, evaluation i is the first to pass with probability p_i prod_{j<i} (1 - p_j), p_i = Phi((J_i - J*)/error_i).

References
----------
.. [1] Li et al. 2026, arXiv:2608.29296 (common validation target).
.. [2] Barlow et al. 1972, "Statistical Inference under Order Restrictions", section 1.2 (pooling).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchsim.errors import InputError

CENSORING = ("left", "interval", "right")


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """Where a run reached its target.

    Parameters
    ----------
    low, high : float [responses]
        N* lies in (low, high]; low is 0 if left-censored, high infinite if right-censored.
    censoring : {'left', 'interval', 'right'}
    index_low, index_high : int or None
        Evaluations that bound the interval.
    best_score, best_at : float [1], [responses]
        Highest score of the run and the responses used at it.
    """

    low: float
    high: float
    censoring: str
    index_low: int | None
    index_high: int | None
    best_score: float
    best_at: float


KINDS = ("first", "sustained", "smoothed")


def crossing(
    responses: ArrayLike,
    score: ArrayLike,
    *,
    target: float,
    kind: str = "first",
    score_error: ArrayLike = 0.0,
) -> Crossing | None:
    """Evaluations between which a run reached its target.

    Parameters
    ----------
    responses : array_like, (evaluation,) [responses]
        Kept responses used at each evaluation, not decreasing.
    score : array_like, (evaluation,) [1]
        NaN where the evaluation did not report this score.
    target : float [1]
    kind : {'first', 'sustained', 'smoothed'}
        The first score at or above the target, the first after which none lies below it, or the first
        at which `rising_curve` through the scores is at or above it.
    score_error : array_like, broadcastable [1]
        Error of each score: the interval then starts before the first score that may have passed and
        ends at the first that has passed for sure. Smoothed scores keep it in full, which is cautious,
        and are weighted by 1/error^2 where all errors are positive.

    Returns
    -------
    Crossing or None
        None for a run with no finite score.

    Raises
    ------
    InputError
        For an unknown kind, or a negative error.
    """
    if kind not in KINDS:
        raise InputError(f"unknown kind of crossing '{kind}'", remedy=f"known: {', '.join(KINDS)}")
    error = np.asarray(score_error, dtype=np.float64)
    if not (error >= 0).all():
        raise InputError(f"score_error is {np.min(error):g}, and it must not be negative")
    n, j = np.asarray(responses, dtype=np.float64), np.asarray(score, dtype=np.float64)
    seen = np.flatnonzero(np.isfinite(j))
    if not seen.size:
        return None
    best = seen[np.argmax(j[seen])]
    error, curve = np.broadcast_to(error, j.shape)[seen], j[seen]
    if kind == "smoothed":
        curve = rising_curve(curve, weight=1 / error**2 if (error > 0).all() else 1.0)
    possible = _passes(curve + error >= target, kind)
    certain = _passes(curve - error >= target, kind)
    # Where no score passes, the target lies behind the last one.
    index_low = (possible if possible is not None else seen.size) - 1
    low = int(seen[index_low]) if index_low >= 0 else None
    high = int(seen[certain]) if certain is not None else None
    return Crossing(
        low=float(n[low]) if low is not None else 0.0,
        high=float(n[high]) if high is not None else np.inf,
        censoring="right" if high is None else "left" if low is None else "interval",
        index_low=low,
        index_high=high,
        best_score=float(j[best]),
        best_at=float(n[best]),
    )


def interpolated_crossing(responses: ArrayLike, score: ArrayLike, *, target: float) -> float:
    """N* of the first crossing on a straight line between its two evaluations, where scores have no error [responses].

    Parameters
    ----------
    responses, score : array_like, (evaluation,) [responses], [1]
        See `crossing`.
    target : float [1]

    Returns
    -------
    float [responses]
        That of the first evaluation if it has passed; infinite where none passes, NaN without a finite score.
    """
    found = crossing(responses, score, target=target)
    if found is None:
        return np.nan
    if found.index_high is None or found.index_low is None:
        # Of a left-censored run `low` is 0, which nothing was evaluated at.
        return found.high
    low, high = (float(np.asarray(score)[i]) for i in (found.index_low, found.index_high))
    return float(found.low + (target - low) / (high - low) * (found.high - found.low))


def _passes(above: NDArray[np.bool_], kind: str) -> int | None:
    """Position of the first pass, or of the first after which all pass; None if there is none."""
    if kind != "sustained":
        return int(np.argmax(above)) if above.any() else None
    below = np.flatnonzero(~above)
    start = int(below[-1]) + 1 if below.size else 0
    return start if start < above.size else None


def rising_curve(score: ArrayLike, *, weight: ArrayLike = 1.0) -> NDArray[np.float64]:
    """Non-decreasing curve nearest to the scores in weighted least squares.

    Parameters
    ----------
    score : array_like, (evaluation,) [1]
        Finite scores in the order of the run.
    weight : array_like, broadcastable
        Positive; 1/error^2 where the errors differ.

    Returns
    -------
    ndarray, (evaluation,) [1]
        At i, max over a <= i of min over b >= i of the mean of the scores a..b.

    Examples
    --------
    >>> rising_curve([0.1, 0.4, 0.2, 0.5])
    array([0.1, 0.3, 0.3, 0.5])
    """
    j = np.asarray(score, dtype=np.float64)
    blocks: list[tuple[float, float, int]] = []  # mean, weight, evaluations
    for mean, w in zip(
        j.tolist(), np.broadcast_to(np.asarray(weight, dtype=np.float64), j.shape).tolist(), strict=True
    ):
        count = 1
        while blocks and blocks[-1][0] > mean:
            before, w_before, more = blocks.pop()
            mean = before + (mean - before) * (w / (w_before + w))
            w, count = w_before + w, count + more
        blocks.append((mean, w, count))
    return np.repeat([b[0] for b in blocks], [b[2] for b in blocks]) if blocks else j


def first_crossing_probability(score: ArrayLike, *, target: float, score_error: ArrayLike) -> NDArray[np.float64]:
    """Probability that each evaluation is the first whose measured score passes.

    Parameters
    ----------
    score : array_like, (evaluation,) [1]
        True scores J_i.
    target : float [1]
        J*.
    score_error : array_like, broadcastable [1]
        Standard deviation of each measured score, positive.

    Returns
    -------
    ndarray, (evaluation,) [1]
        p_i prod_{j<i} (1 - p_j); what is missing to 1 is the probability that none passes.

    Raises
    ------
    InputError
        For an error that is not positive.

    Examples
    --------
    >>> first_crossing_probability([0.5, 0.5, 9.0], target=0.5, score_error=1.0)
    array([0.5 , 0.25, 0.25])
    """
    from scipy.special import ndtr

    error = np.asarray(score_error, dtype=np.float64)
    if not (error > 0).all():
        raise InputError(f"score_error is {np.min(error):g}; a probability needs a positive error")
    passes = ndtr((np.asarray(score, dtype=np.float64) - target) / error)
    before = np.cumprod(np.concatenate([[1.0], 1 - passes[:-1]])) if passes.size else passes
    return np.asarray(passes * before)
