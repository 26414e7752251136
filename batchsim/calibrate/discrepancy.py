r"""The law's own error: a Brownian motion in log2 of the batch, conditioned on what was measured.

A measured arm differs from the law for two reasons, its own error and the law's, and the law's error is shared by all
batches beyond the first one that shows it. With u = log2(B/B_0) and d the octaves of the learning rate off the line
that forecasts follow (the rule, with its ceiling),

    log N_i = log N_0 + log r_i(theta) + W(u_i) + V(d_i) + e_i,    e_i ~ N(0, error_i^2),

where W and V are independent Brownian motions from the reference, in both directions, with a standard deviation of
LAW_ERROR per square root of an octave. So cov(W(u), W(v)) = LAW_ERROR^2 min(|u|, |v|) on one side, 0 across it. The
likelihood of theta is that of the joint Gaussian, in which steps between successive arms, not the arms, are
independent; a forecast is the conditional distribution given the arms (kriging): a bridge between measured batches
that reproduces each within its error, and beyond the last one the law's ratio from there, with an error that
grows anew. A stated ratio to the reference has no N_0 and the errors of two runs.

A path of a Brownian motion is rough, and a law's error is not: with an independent error in every octave the best batch
would be anywhere by chance. So draws of a forecast have the mean and the variance of the Brownian motion at every
batch, independent between measured batches as it is, and one normal for all batches between the same two, or beyond
the last.

What was seen may be a number, an interval or one limit (censored runs). Then log N_i is drawn within it, one
observation after the other given those before, and the draw of theta is weighted by the product of the
probabilities (Geweke, Hajivassiliou & Keane): for numbers this is the Gaussian likelihood itself.

References
----------
.. [1] Kennedy & O'Hagan 2001, "Bayesian calibration of computer models", JRSS B 63:425 (law plus discrepancy).
.. [2] Rasmussen & Williams 2006, "Gaussian Processes for Machine Learning", eq. 2.23 and 4.11 (conditioning, Wiener).
.. [3] Geweke 1991, "Efficient simulation from the multivariate normal and Student-t distributions subject to linear
   constraints"; Hajivassiliou & McFadden 1998, Econometrica 66:863.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.special import log_ndtr, ndtri_exp

Floats = NDArray[np.float64]

LEVELS = ("target", "curve")
LEVEL_SPREAD = 10.0
"""Standard deviation of the prior of log N_0 around what the arms say: flat for every purpose."""
LEAST_ERROR = 1e-4
"""Smallest error of log N that is believed."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one arm, run or stated ratio says of N*.

    Parameters
    ----------
    train_batch : float [responses]
    learning_rate_ratio : float [1]
        eta/eta_0.
    low, high : float [1]
        Limits of log N*, or of log r_N for a stated ratio; equal for a number, infinite where there is no limit.
    error : float [1]
        Standard error of log N* that no other observation shares.
    level : {'target', 'curve', 'ratio'}
        What it is relative to: N* of the target has the level log N_0, the pace of a learning curve (`overlay`) a
        level of its own that means nothing, a stated ratio to the reference none.
    off_rule : float [1]
        Octaves of the learning rate off the line that forecasts follow.
    """

    train_batch: float
    learning_rate_ratio: float
    low: float
    high: float
    error: float
    level: str = "target"
    off_rule: float = 0.0

    @property
    def is_number(self) -> bool:
        """Known up to its error."""
        return self.low == self.high


@dataclass(frozen=True, kw_only=True)
class Conditioned:
    """Draws of the law's parameters against what was seen.

    Parameters
    ----------
    log_weight : ndarray, (draw,) [1]
        Log-likelihood, up to a constant.
    log_ratio : ndarray, (draw, seen) [1]
        log r_N of every observation, within its limits and relative to the draw's own level.
    log_level : ndarray, (draw,) or None [1]
        log N_0, where an observation tells it.
    misfit : ndarray, (draw,) [1]
        Sum of squared studentised innovations of the numbers.
    """

    log_weight: Floats
    log_ratio: Floats
    log_level: Floats | None
    misfit: Floats


def wiener(u: ArrayLike, v: ArrayLike) -> Floats:
    """Covariance of a two-sided Brownian motion from 0, min(|u|, |v|) on one side.

    Parameters
    ----------
    u, v : array_like, (a,), (b,)

    Returns
    -------
    ndarray, (a, b)
    """
    a, b = np.asarray(u, dtype=np.float64)[:, None], np.asarray(v, dtype=np.float64)[None, :]
    return np.where(a * b > 0, np.minimum(np.abs(a), np.abs(b)), 0.0)


def law_covariance(seen: tuple[Seen, ...], reference_batch: float, law_spread: float) -> Floats:
    """Covariance of the law's error between observations, their own errors added.

    Parameters
    ----------
    seen : tuple of Seen
    reference_batch : float [responses]
    law_spread : float [1]
        Standard deviation per square root of an octave.

    Returns
    -------
    ndarray, (seen, seen) [1]
    """
    u = np.log2([o.train_batch / reference_batch for o in seen])
    d = np.array([o.off_rule for o in seen])
    error = np.array([max(o.error, LEAST_ERROR) for o in seen])
    return np.asarray(law_spread**2 * (wiener(u, u) + wiener(d, d)) + np.diag(error**2))


def condition(
    seen: tuple[Seen, ...],
    log_cost: Floats,
    *,
    reference_batch: float,
    law_spread: float,
    rng: np.random.Generator,
) -> Conditioned:
    """Weigh draws of the law by what was seen, and draw what was seen within its limits.

    Parameters
    ----------
    seen : tuple of Seen
        Numbers before intervals before limits keeps the weights even.
    log_cost : ndarray, (seen, draw) [1]
        log r_N of the law; infinite where training diverges, which excludes the draw.
    reference_batch : float [responses]
    law_spread : float [1]
    rng : numpy.random.Generator

    Returns
    -------
    Conditioned
    """
    groups = [name for name in LEVELS if any(o.level == name for o in seen)]
    of_group = np.array([[float(o.level == name) for name in groups] for o in seen]).reshape(len(seen), len(groups))
    covariance = law_covariance(seen, reference_batch, law_spread)
    lower = np.linalg.cholesky(covariance + LEVEL_SPREAD**2 * of_group @ of_group.T)
    possible = np.isfinite(log_cost).all(axis=0)
    law = np.where(possible, log_cost, 0.0)
    rough = of_group @ np.array([_rough_level(seen, name) for name in groups])
    count = law.shape[1]
    eta, log_seen = np.zeros((len(seen), count)), np.empty((count, len(seen)))
    log_weight, misfit = np.zeros(count), np.zeros(count)
    for i, o in enumerate(seen):
        expected = law[i] + rough[i] + lower[i, :i] @ eta[:i]
        low, high = (o.low - expected) / lower[i, i], (o.high - expected) / lower[i, i]
        if o.is_number:
            eta[i] = low
            log_weight -= low**2 / 2
            misfit += low**2
        else:
            eta[i], mass = _within(low, high, rng)
            log_weight += mass
        log_seen[:, i] = np.clip(expected + lower[i, i] * eta[i], o.low, o.high)
    levels = np.zeros((count, len(groups)))
    if groups:
        # Generalised least squares of the levels, as LEVEL_SPREAD -> infinity.
        weighted = cho_solve(cho_factor(covariance), of_group)
        spread = np.linalg.inv(of_group.T @ weighted)
        centre = (log_seen - law.T) @ weighted @ spread
        levels = centre + rng.standard_normal(centre.shape) @ np.linalg.cholesky(spread).T
    return Conditioned(
        log_weight=np.where(possible, log_weight, -np.inf),
        log_ratio=log_seen - levels @ of_group.T,
        log_level=levels[:, groups.index("target")] if "target" in groups else None,
        misfit=misfit,
    )


def _rough_level(seen: tuple[Seen, ...], name: str) -> float:
    """Middle of what limits a level on both sides, else the finite limits."""
    own = [o for o in seen if o.level == name]
    two_sided = [(o.low + o.high) / 2 for o in own if np.isfinite(o.low + o.high)]
    limits = [v for o in own for v in (o.low, o.high) if np.isfinite(v)]
    known = two_sided or limits
    return float(np.mean(known)) if known else 0.0


def _within(low: Floats, high: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Standard normals between limits, and the log-probability of these; accurate in both tails."""
    # In the upper tail Phi rounds to 1; its mirror image does not.
    upper = low + high > 0
    a, b = np.where(upper, -high, low), np.where(upper, -low, high)
    top, bottom = log_ndtr(b), log_ndtr(a)
    with np.errstate(divide="ignore"):
        mass = top + np.log(-np.expm1(bottom - top))
    uniform = rng.uniform(size=low.shape)
    with np.errstate(divide="ignore"):
        drawn = np.clip(ndtri_exp(np.minimum(np.logaddexp(bottom, np.log(uniform) + mass), 0.0)), a, b)
    return np.where(upper, -drawn, drawn), np.asarray(mass)


def gaps(seen: tuple[Seen, ...]) -> int:
    """Number of measured batches, gaps between them and ends beyond them, the reference counted."""
    return 2 * (len(seen) + 1) + 1


def bend(
    train_batch: Floats,
    *,
    seen: tuple[Seen, ...],
    misses: Floats,
    reference_batch: float,
    law_spread: float,
    normal: Floats,
) -> Floats:
    """The law's error at candidates given its misses at what was seen, in every draw.

    Mean and variance are those of the Brownian motion given what was seen; batches between the same two measured ones,
    and batches beyond the last one, share one normal.

    Parameters
    ----------
    train_batch : ndarray, (candidate,) [responses]
    seen : tuple of Seen
    misses : ndarray, (draw, seen) [1]
        log r_N that was seen less the law's.
    reference_batch : float [responses]
    law_spread : float [1]
    normal : ndarray, (draw, gap) [1]
        Standard normals, `gaps(seen)` in each draw.

    Returns
    -------
    ndarray, (draw, candidate) [1]
        To be added to the law's log r_N; 0 at the reference.
    """
    u = np.log2(np.asarray(train_batch, dtype=np.float64) / reference_batch)
    covariance = law_spread**2 * wiener(u, u)
    mean = np.zeros((normal.shape[0], u.size))
    if seen:
        at = np.log2([o.train_batch / reference_batch for o in seen])
        across = law_spread**2 * wiener(at, u)
        gain = np.linalg.solve(law_covariance(seen, reference_batch, law_spread), across)
        mean, covariance = misses @ gain, covariance - across.T @ gain
    spread = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    # Where two batches lie between the same measured ones they share one normal: see the module's text.
    places = np.unique(np.log2([1.0, *(o.train_batch / reference_batch for o in seen)]))
    gap = np.searchsorted(places, u) + np.searchsorted(places, u, side="right")
    return np.asarray(mean + np.where(u == 0, 0.0, spread) * normal[:, gap])
