r"""How many seeds per arm a comparison of two batches needs.

log N* of a run scatters by sigma between seeds. Two arms of n seeds each are compared by the difference of their means,
whose standard error is sigma sqrt(2/n), and r_N = 1 is excluded where the central interval of the stated level does not
hold it. With delta = |log r_N| and alpha = (1 - level)/2 the power is

    normal    Phi(delta/se - z_(1-alpha)) + Phi(-delta/se - z_(1-alpha))           sigma known, from earlier sweeps
    student   P(|T| > t_(1-alpha, 2n-2)),  T noncentral t with delta/se             sigma from these 2 n runs themselves

An evaluation every D responses adds its grid: a crossing is uniform within D, so sigma^2 grows by (D/N*)^2/12.

References
----------
.. [1] Cohen 1988, "Statistical Power Analysis for the Behavioral Sciences", chapter 2 (noncentral t).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import nctdtr, ndtr, ndtri, stdtrit

from batchsim.errors import InputError, nearest

KINDS = ("student", "normal")
LEVEL, POWER = 0.8, 0.8
SEEDS_MAX = 100_000
"""Seeds per arm beyond which a comparison is called hopeless."""
SPREAD_MAX = 3.0
NONCENTRAL_MAX = 30.0
"""delta/se from which every test rejects; SciPy's noncentral t is not asked beyond."""
NORMAL_FROM = 500
"""Seeds per arm from which Student's distribution is taken as normal: they differ by less than .001 there."""


def power_of_seeds(
    seeds: ArrayLike,
    *,
    ratio: ArrayLike,
    spread: ArrayLike,
    level: float = LEVEL,
    kind: str = "student",
    evaluation_spacing: ArrayLike = 0.0,
) -> NDArray[np.float64]:
    """Probability that two arms of so many seeds tell r_N from 1.

    Parameters
    ----------
    seeds : array_like of int, any shape
        n per arm.
    ratio : array_like, broadcastable [1]
        r_N > 0.
    spread : array_like, broadcastable [1]
        sigma, standard deviation of log N* of a single run, up to 3.
    level : float in (0, 1) [1]
        Of the central interval that must not hold 1.
    kind : {'student', 'normal'}
        Whether sigma is estimated from the same runs or known.
    evaluation_spacing : array_like, broadcastable [1]
        D/N*.

    Returns
    -------
    ndarray [1]
        0 for Student's test with one seed per arm, which has no spread to judge by.

    Raises
    ------
    InputError
        For values outside their bounds.

    Examples
    --------
    >>> power_of_seeds([2, 4, 8], ratio=1.15, spread=0.05).round(2)
    array([0.8 , 0.99, 1.  ])
    """
    n, r, sigma, grid = np.broadcast_arrays(
        *(np.asarray(v, dtype=np.float64) for v in (seeds, ratio, spread, evaluation_spacing))
    )
    _check(n, r, sigma, grid, level, kind)
    alpha = (1 - level) / 2
    noncentral = np.abs(np.log(r)) / (np.hypot(sigma, grid / math.sqrt(12)) * np.sqrt(2 / n))
    z = ndtri(1 - alpha)
    normal = ndtr(noncentral - z) + ndtr(-noncentral - z)
    if kind == "normal":
        return np.asarray(normal)
    dof = np.maximum(2 * n - 2, 1.0)
    critical = stdtrit(dof, 1 - alpha)
    asked = np.minimum(noncentral, NONCENTRAL_MAX)
    student = 1 - nctdtr(dof, asked, critical) + nctdtr(dof, asked, -critical)
    # The far lower tail of a noncentral t is below rounding, and SciPy may say NaN.
    student = np.where(np.isnan(student), 1 - nctdtr(dof, asked, critical), student)
    student = np.where(noncentral >= NONCENTRAL_MAX + critical, 1.0, student)
    return np.where(n < 2, 0.0, np.where(n >= NORMAL_FROM, normal, np.clip(student, 0.0, 1.0)))


def seeds_needed(
    *,
    ratio: float,
    spread: float,
    power: float = POWER,
    level: float = LEVEL,
    kind: str = "student",
    evaluation_spacing: float = 0.0,
) -> int | None:
    """Least number of seeds per arm with which r_N is told from 1.

    Parameters
    ----------
    ratio : float [1]
        r_N.
    spread : float [1]
        Standard deviation of log N* of a single run.
    power : float in (0, 1) [1]
    level, kind, evaluation_spacing
        See `power_of_seeds`.

    Returns
    -------
    int or None
        None where r_N is 1, or more than `SEEDS_MAX` would be needed.

    Raises
    ------
    InputError
        For values outside their bounds.

    Examples
    --------
    >>> [seeds_needed(ratio=r, spread=0.1) for r in (1.05, 1.15, 1.5)]
    [39, 6, 2]
    """
    if not 0 < power < 1:
        raise InputError(f"power is {power:g}, outside (0, 1)", remedy="0.8 is usual")

    def enough(n: int) -> bool:
        found = power_of_seeds(
            n, ratio=ratio, spread=spread, level=level, kind=kind, evaluation_spacing=evaluation_spacing
        )
        return bool(found >= power)

    low, high = 0, 1
    while not enough(high):
        if high == SEEDS_MAX:
            return None
        low, high = high, min(2 * high, SEEDS_MAX)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _check(
    n: NDArray[np.float64],
    ratio: NDArray[np.float64],
    spread: NDArray[np.float64],
    grid: NDArray[np.float64],
    level: float,
    kind: str,
) -> None:
    if kind not in KINDS:
        raise InputError(f"no power of the test '{kind}'", remedy=nearest(kind, KINDS))
    if not 0 < level < 1:
        raise InputError(f"level is {level:g}, outside (0, 1)", remedy="0.8 is a central 80 % interval")
    bounds = (
        ("seeds", n, (n >= 1) & (n == np.floor(n)), "a whole number from 1", "as 3"),
        ("ratio", ratio, (ratio > 0) & np.isfinite(ratio), "positive and finite", "r_N of 15 % more responses is 1.15"),
        ("spread", spread, (spread > 0) & (spread <= SPREAD_MAX), f"above 0 and up to {SPREAD_MAX:g}", "5 % is 0.05"),
        ("evaluation_spacing", grid, (grid >= 0) & (grid <= 1), "within 0 to 1", "it is D/N*, a share of the run"),
    )
    for name, values, good, what, remedy in bounds:
        if not good.all():
            raise InputError(f"{name} is {values[~good].flat[0]:g}; it must be {what}", remedy=remedy)
