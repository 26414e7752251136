r"""Reference curves: the score of the reference recipe as a function of what it has used.

With u the responses used (or the updates made: any unit, as long as `scale` has the same), each curve
rises from `start` to `asymptote` along a function F from 0 to 1,

    J(u) = J_0 + (A - J_0) F(u)

    sigmoid       F = 1/(1 + (m/u)^beta)      m = scale, where half is reached; beta = exponent
    power         F = 1 - (1 + u/m)^-alpha    so that J = A - a (u + m)^-alpha, a = (A - J_0) m^alpha
    exponential   F = 1 - exp(-u/m)           the limit of power as alpha -> infinity at fixed m/alpha

The sigmoid is a logistic function of log u; ScaleRL fits it to GPU-hours with J_0 the score before
training. For beta > 1 it starts flat and has an inflection; for beta < 1 its slope at 0 is infinite. The
power law remembers its distance to the asymptote longest: 1 - F falls as u^-alpha, the sigmoid's as
u^-beta and the exponential's geometrically, so the same scores extrapolate to different asymptotes, and
which family holds decides more than the fit's error bars (`fit.holdout_error`).

A score at or above the asymptote is never reached (infinite), one at or below the start needs nothing.
A curve may also fall (a loss): asymptote below start.

References
----------
.. [1] Khatri et al. 2025, "The Art of Scaling Reinforcement Learning Compute for LLMs" (ScaleRL),
   arXiv:2510.13786 (the sigmoid).
.. [2] Hestness et al. 2017, arXiv:1712.00409 (power law with an offset).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchsim.errors import InputError, nearest

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Parameters of a reference curve.

    Parameters
    ----------
    family : {'sigmoid', 'power', 'exponential'}
    start, asymptote : float [1]
        J_0 and A.
    scale : float [responses]
        m > 0 (or updates, if the curve is one over updates).
    exponent : float [1]
        beta or alpha, positive; not used by 'exponential'.

    Raises
    ------
    InputError
        For an unknown family, a parameter that is not finite, or a scale or exponent that is not positive.
    """

    family: str
    start: float
    asymptote: float
    scale: float
    exponent: float = 1.0

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise InputError(f"unknown family of curves '{self.family}'", remedy=nearest(self.family, tuple(FAMILIES)))
        for name in ("start", "asymptote", "scale", "exponent"):
            value = getattr(self, name)
            if not np.isfinite(value) or (name in ("scale", "exponent") and value <= 0):
                kind = "positive and finite" if name in ("scale", "exponent") else "finite"
                raise InputError(f"{name} is {value:g}; it must be {kind}")


class Family(NamedTuple):
    """F(u/m), its inverse, m dF/du, and the parameters that a fit varies."""

    rise: Callable[[Floats, Floats], Floats]
    inverse: Callable[[Floats, Floats], Floats]
    slope: Callable[[Floats, Floats], Floats]
    parameters: tuple[str, ...]


def score_at(curve: Curve, responses: ArrayLike) -> Floats:
    """Score of a reference curve, J(u).

    Parameters
    ----------
    curve : Curve
    responses : array_like, any shape [responses]
        u >= 0.

    Returns
    -------
    ndarray [1]

    Examples
    --------
    >>> score_at(Curve(family="sigmoid", start=0.2, asymptote=0.8, scale=1e5, exponent=1.5), [0, 1e5, 1e9]).round(3)
    array([0.2, 0.5, 0.8])
    """
    rise = FAMILIES[curve.family].rise(_relative(curve, responses), np.asarray(curve.exponent))
    return np.asarray(curve.start + (curve.asymptote - curve.start) * rise)


def responses_at(curve: Curve, score: ArrayLike) -> Floats:
    """Responses at which a reference curve reaches a score, the inverse of `score_at`.

    Parameters
    ----------
    curve : Curve
    score : array_like, any shape [1]

    Returns
    -------
    ndarray [responses]
        0 at the start or before it, infinite at the asymptote or beyond.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (np.asarray(score, dtype=np.float64) - curve.start) / (curve.asymptote - curve.start)
        inside = np.where((share > 0) & (share < 1), share, 0.5)
        u = curve.scale * FAMILIES[curve.family].inverse(inside, np.asarray(curve.exponent))
    return np.where(np.isnan(share), np.nan, np.where(share >= 1, np.inf, np.where(share > 0, u, 0.0)))


def slope_at(curve: Curve, responses: ArrayLike) -> Floats:
    """Slope of a reference curve, dJ/du.

    Parameters
    ----------
    curve : Curve
    responses : array_like, any shape [responses]
        u >= 0.

    Returns
    -------
    ndarray [1/responses]
        At u = 0 a sigmoid's is infinite for exponent < 1 and 0 for exponent > 1.
    """
    slope = FAMILIES[curve.family].slope(_relative(curve, responses), np.asarray(curve.exponent))
    return np.asarray((curve.asymptote - curve.start) / curve.scale * slope)


def _relative(curve: Curve, responses: ArrayLike) -> Floats:
    return np.asarray(responses, dtype=np.float64) / curve.scale


# -- F, its inverse and its slope in units of the scale; overflow to 0 or infinity is the right limit ------


def _sigmoid(x: Floats, exponent: Floats) -> Floats:
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(1 / (1 + np.exp(-exponent * np.log(x))))


def _sigmoid_inverse(share: Floats, exponent: Floats) -> Floats:
    return np.asarray(np.exp((np.log(share) - np.log1p(-share)) / exponent))


def _sigmoid_slope(x: Floats, exponent: Floats) -> Floats:
    # beta x^(beta-1) (1 + x^beta)^-2 in logarithms; at 0 the limit of the first factor.
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        log_x = np.log(x)
        first = np.where(exponent == 1, 0.0, (exponent - 1) * log_x)
        return np.asarray(exponent * np.exp(first - 2 * np.logaddexp(0, exponent * log_x)))


def _power(x: Floats, exponent: Floats) -> Floats:
    return np.asarray(-np.expm1(-exponent * np.log1p(x)))


def _power_inverse(share: Floats, exponent: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return np.asarray(np.expm1(-np.log1p(-share) / exponent))


def _power_slope(x: Floats, exponent: Floats) -> Floats:
    return np.asarray(exponent * np.exp(-(exponent + 1) * np.log1p(x)))


def _exponential(x: Floats, exponent: Floats) -> Floats:
    return np.asarray(-np.expm1(-x) + 0 * exponent)


def _exponential_inverse(share: Floats, exponent: Floats) -> Floats:
    return np.asarray(-np.log1p(-share) + 0 * exponent)


def _exponential_slope(x: Floats, exponent: Floats) -> Floats:
    return np.asarray(np.exp(-x) + 0 * exponent)


_FOUR = ("start", "asymptote", "scale", "exponent")
FAMILIES: dict[str, Family] = {
    "sigmoid": Family(_sigmoid, _sigmoid_inverse, _sigmoid_slope, _FOUR),
    "power": Family(_power, _power_inverse, _power_slope, _FOUR),
    "exponential": Family(_exponential, _exponential_inverse, _exponential_slope, _FOUR[:3]),
}
