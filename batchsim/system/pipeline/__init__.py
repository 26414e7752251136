r"""Stages of a rollout step composed into throughput.

    t_gen   = max(d_0 + d_1 B_gen, B_gen/q_gen_max)        generation, B_gen = gen_ratio R / kept_share
    t_train = c + gamma R                                   log-probabilities and updates
    t_step  = t_gen + t_train + o                           synchronous, and partial rollouts
    t_step  = max(t_gen, t_train) + o                       asynchronous
    q       = R/t_step                                      kept responses per second

R is the kept responses of a rollout step and o what neither stage hides (weight synchronisation). Only
kept responses count: filtering costs time. Capped concurrency C gives the plateau exactly, since B_gen
responses then decode in B_gen/C waves of d_0 + d_1 C seconds: q_gen_max = C/(d_0 + d_1 C).

Where stages come from specifications (`pipeline.specified`), t_gen and t_train are curves over R instead, on a grid and
interpolated in the logarithm of both. Where responses grow over training there is a curve per node of progress, and the
time of a step is its mean over progress: T = N*/R times the integral of t_step over it, by Gauss-Legendre quadrature.

References
----------
.. [1] Li et al. 2026, arXiv:2608.29296, section "raising throughput on fixed hardware" and figure 7.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchsim.errors import InputError

MODES = ("sync", "partial", "async")
PROGRESS, PROGRESS_WEIGHTS = (0.5 - math.sqrt(0.15), 0.5, 0.5 + math.sqrt(0.15)), (5 / 18, 8 / 18, 5 / 18)
"""Three nodes on [0, 1] [1] and their weights: exact for a step time of degree 5 in progress."""
PLATEAU_SHARE = 0.9
"""Throughput at the critical generation batch, relative to its plateau."""


Curve = tuple[ArrayLike, ArrayLike]


def mean_curve(curve: Curve) -> Curve:
    """A curve whose seconds are the mean over progress.

    Parameters
    ----------
    curve : tuple of array_like, (point,) [responses], (point,) or (progress, point) [s]

    Returns
    -------
    tuple of array_like, (point,) [responses], (point,) [s]
    """
    seconds = np.asarray(curve[1], dtype=np.float64)
    return curve[0], np.asarray(PROGRESS_WEIGHTS) @ seconds if seconds.ndim == 2 else seconds


def on_curve(rollout_batch: ArrayLike, curve: Curve) -> NDArray[np.float64]:
    """Seconds of a curve over rollout batches, log-linear between its points and beyond them.

    Parameters
    ----------
    rollout_batch : array_like, any shape [responses]
    curve : tuple of array_like, (point,) [responses], [s]
        Increasing batches, two or more, and positive seconds.

    Returns
    -------
    ndarray [s]
    """
    x, y = (np.log(np.asarray(v, dtype=np.float64)) for v in curve)
    at = np.log(np.asarray(rollout_batch, dtype=np.float64))
    i = np.clip(np.searchsorted(x, at) - 1, 0, x.size - 2)
    weight = (at - x[i]) / (x[i + 1] - x[i])
    return np.asarray(np.exp(y[i] + weight * (y[i + 1] - y[i])))


def gen_time(
    gen_batch: ArrayLike,
    *,
    gen_time_intercept: ArrayLike,
    gen_time_slope: ArrayLike,
    gen_throughput_max: ArrayLike = np.inf,
) -> NDArray[np.float64]:
    """Time to generate a rollout step's responses, max(d_0 + d_1 B_gen, B_gen/q_gen_max).

    Parameters
    ----------
    gen_batch : array_like, any shape [responses]
    gen_time_intercept : array_like, broadcastable [s]
    gen_time_slope : array_like, broadcastable [s/response]
    gen_throughput_max : array_like, broadcastable [responses/s]

    Returns
    -------
    ndarray [s]
    """
    b = np.asarray(gen_batch)
    affine = np.asarray(gen_time_intercept) + np.asarray(gen_time_slope) * b
    return np.asarray(np.maximum(affine, b / np.asarray(gen_throughput_max)))


def capped_throughput(
    concurrency_max: ArrayLike, *, gen_time_intercept: ArrayLike, gen_time_slope: ArrayLike
) -> NDArray[np.float64]:
    """Plateau of generation at capped concurrency, q_gen_max = C/(d_0 + d_1 C).

    Parameters
    ----------
    concurrency_max : array_like, any shape [responses]
    gen_time_intercept : array_like, broadcastable [s]
    gen_time_slope : array_like, broadcastable [s/response]

    Returns
    -------
    ndarray [responses/s]
    """
    c = np.asarray(concurrency_max, dtype=np.float64)
    return np.asarray(1 / (np.asarray(gen_time_intercept) / c + np.asarray(gen_time_slope)))


def rollout_step_time(
    rollout_batch: ArrayLike,
    *,
    gen_time_intercept: ArrayLike = 0.0,
    gen_time_slope: ArrayLike = 0.0,
    gen_throughput_max: ArrayLike = np.inf,
    gen_curve: Curve | None = None,
    gen_factor: ArrayLike = 1.0,
    gen_tilt: ArrayLike = 0.0,
    train_curve: Curve | None = None,
    train_factor: ArrayLike = 1.0,
    gen_ratio: ArrayLike = 1.0,
    kept_share: ArrayLike = 1.0,
    train_time_intercept: ArrayLike = 0.0,
    train_time_per_response: ArrayLike = 0.0,
    overhead_time: ArrayLike = 0.0,
    mode: str = "sync",
) -> NDArray[np.float64]:
    """Time of a rollout step, composed of its stages.

    Parameters
    ----------
    rollout_batch : array_like, any shape [responses]
        Kept responses of the step.
    gen_time_intercept, train_time_intercept, overhead_time : array_like, broadcastable [s]
    gen_time_slope, train_time_per_response : array_like, broadcastable [s/response]
        Per generated and per kept response.
    gen_throughput_max : array_like, broadcastable [responses/s]
        In generated responses.
    gen_curve, train_curve : tuple of array_like or None, (point,) [responses], (point,) or (progress, point) [s]
        Stage times over rollout batches, in the place of the laws; `gen_ratio` and `kept_share` lie within them. With
        a row per node of `PROGRESS` the mean over progress is returned.
    gen_factor, train_factor : array_like, broadcastable [1]
        Multiply the curves: what a model's error makes of them.
    gen_tilt : array_like, broadcastable [1]
        d log t_gen/d log R that the curve's error adds, about its middle.
    gen_ratio : array_like, broadcastable [1]
        Responses launched per kept response before filtering (2 in the paper's partial rollouts).
    kept_share : array_like, broadcastable in (0, 1] [1]
        Share of the generated responses that filtering keeps.
    mode : {'sync', 'partial', 'async'}

    Returns
    -------
    ndarray [s]

    Raises
    ------
    InputError
        For an unknown mode.
    """
    if mode not in MODES:
        raise InputError(f"unknown pipeline mode '{mode}'", remedy=f"known: {', '.join(MODES)}")
    if gen_curve is not None and np.ndim(gen_curve[1]) == 2:
        rest: dict[str, Any] = {
            "gen_factor": gen_factor,
            "gen_tilt": gen_tilt,
            "train_factor": train_factor,
            "train_time_intercept": train_time_intercept,
            "train_time_per_response": train_time_per_response,
            "overhead_time": overhead_time,
            "mode": mode,
        }
        nodes = [
            rollout_step_time(rollout_batch, gen_curve=_at(gen_curve, i), train_curve=_at(train_curve, i), **rest)
            for i in range(len(PROGRESS))
        ]
        return np.asarray(np.tensordot(PROGRESS_WEIGHTS, np.array(nodes), axes=1))
    r = np.asarray(rollout_batch, dtype=np.float64)
    if gen_curve is not None:
        tilt = (r / curve_middle(gen_curve)) ** np.asarray(gen_tilt)
        generation = np.asarray(gen_factor) * tilt * on_curve(r, gen_curve)
    else:
        generation = gen_time(
            r * np.asarray(gen_ratio) / np.asarray(kept_share),
            gen_time_intercept=gen_time_intercept,
            gen_time_slope=gen_time_slope,
            gen_throughput_max=gen_throughput_max,
        )
    training = np.asarray(train_time_intercept) + np.asarray(train_time_per_response) * r
    if train_curve is not None:
        training = training + np.asarray(train_factor) * on_curve(r, train_curve)
    stages = np.maximum(generation, training) if mode == "async" else generation + training
    return np.asarray(stages + np.asarray(overhead_time))


def _at(curve: Curve | None, node: int) -> Curve | None:
    """A curve's row of one node of progress, or the curve itself where it has one row."""
    if curve is None or np.ndim(curve[1]) == 1:
        return curve
    return curve[0], np.asarray(curve[1])[node]


def curve_middle(curve: Curve) -> float:
    """Geometric middle of a curve's batches [responses]."""
    batches = np.asarray(curve[0], dtype=np.float64)
    return float(np.sqrt(batches[0] * batches[-1]))


def critical_on_curve(rollout_batch: ArrayLike, seconds: ArrayLike, *, share: float = PLATEAU_SHARE) -> float:
    """Kept responses per step at which a simulated generation reaches a share of its highest throughput.

    Parameters
    ----------
    rollout_batch : array_like, (point,) [responses]
        Increasing.
    seconds : array_like, (point,) [s]
    share : float in (0, 1] [1]

    Returns
    -------
    float [responses]
        Interpolated in the logarithm; the smallest batch if that is enough, NaN on a curve of one batch.
    """
    batch, t = (np.asarray(v, dtype=np.float64) for v in (rollout_batch, seconds))
    if batch.size < 2:
        return float("nan")
    rate = batch / t
    goal = share * rate.max()
    first = int(np.argmax(rate >= goal))
    if first == 0:
        return float(batch[0])
    weight = (goal - rate[first - 1]) / (rate[first] - rate[first - 1])
    return float(np.exp((1 - weight) * np.log(batch[first - 1]) + weight * np.log(batch[first])))


def throughput(rollout_batch: ArrayLike, **stages: Any) -> NDArray[np.float64]:
    """Kept responses per second, q = R/t_step.

    Parameters
    ----------
    rollout_batch : array_like, any shape [responses]
    **stages
        See `rollout_step_time`.

    Returns
    -------
    ndarray [responses/s]
    """
    return np.asarray(rollout_batch, dtype=np.float64) / rollout_step_time(rollout_batch, **stages)


def critical_gen_batch(
    *, gen_time_intercept: ArrayLike, gen_time_slope: ArrayLike, gen_throughput_max: ArrayLike = np.inf
) -> NDArray[np.float64]:
    """Generated responses at which generation reaches 90 % of its plateau throughput.

    Parameters
    ----------
    gen_time_intercept : array_like, any shape [s]
    gen_time_slope : array_like, broadcastable [s/response]
    gen_throughput_max : array_like, broadcastable [responses/s]

    Returns
    -------
    ndarray [responses]
        Solves B/(d_0 + d_1 B) = .9 min(1/d_1, q_gen_max): B = d_0/(1/(.9 q) - d_1).
    """
    with np.errstate(divide="ignore"):
        plateau = np.minimum(1 / np.asarray(gen_time_slope, dtype=np.float64), gen_throughput_max)
        return np.asarray(gen_time_intercept / (1 / (PLATEAU_SHARE * plateau) - np.asarray(gen_time_slope)))
