r"""Fitting a reference curve to the evaluations of a run.

Given the shape (scale and exponent) a curve J_0 + (A - J_0) F(u) is linear in J_0 and A, so a grid of
shapes with the two solved for exactly finds the basin, and least squares over all parameters
(scale and exponent as logarithms) polishes it. Errors follow from the Jacobian,

    covar = (D' D)^-1,    D = d residual / d parameter,    residual = (J - J_fit)/error

times redchi = chisqr/nfree where no error is given: stated errors are taken at their word.

Families are compared by AIC = n log(chisqr/n) + 2 nvarys, as lmfit writes it. Scores of one run are not
independent (its progress wanders, and authors smooth), so a difference of a few units means nothing and
the standard errors are too small; what a family is worth shows when it must predict the last third.

A run that still rises does not say where it will end. The asymptote is **identified** if moving it ten
times the scores' range beyond the best score makes the fit significantly worse (by an F test at 95 %;
with stated errors chisqr must rise by 3.84); else a target beyond the last score is
extrapolation that the data do not support, and the message says so.

References
----------
.. [1] Khatri et al. 2025, arXiv:2510.13786 (grid over asymptote and midpoint, +-0.02 on the asymptote
   from three runs).
.. [2] Golub and Pereyra 1973, SIAM J. Numer. Anal. 10, 413 (separable least squares).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from batchsim.errors import InputError, nearest
from batchsim.learning.curve.families import FAMILIES, Curve, Floats, score_at

BEYOND = 10.0
"""Where an asymptote counts as out of sight, in ranges of the scores above the best one."""
CHI_SQUARE_95 = 3.841459
_EXPONENTS = np.exp(np.linspace(np.log(0.05), np.log(20), 31))
_SCALES = 49


@dataclass(frozen=True, kw_only=True)
class CurveFit:
    """A fitted curve, in lmfit's vocabulary.

    Parameters
    ----------
    curve : Curve
        The best fit.
    params, stderr : mapping of str to float
        Value and standard error; the error is infinite where the scores do not determine it.
    covar : tuple of tuples of float
        Covariance of the parameters in the order of `params`.
    chisqr, redchi, aic : float
        Sum of squared residuals (over the errors, if given), divided by nfree, and Akaike's criterion.
    ndata, nvarys, nfree : int
    success : bool
        Whether the optimizer converged.
    identified : bool
        Whether the scores exclude an asymptote that is out of sight.
    reached : float [1]
        Share of the way from start to asymptote at the last evaluation.
    message : str
    """

    curve: Curve
    params: Mapping[str, float]
    stderr: Mapping[str, float]
    covar: tuple[tuple[float, ...], ...]
    chisqr: float
    redchi: float
    aic: float
    ndata: int
    nvarys: int
    nfree: int
    success: bool
    identified: bool
    reached: float
    message: str

    def summary(self) -> str:
        """The fit in a few lines."""
        lines = [f"{self.curve.family}: {self.ndata} scores, aic {self.aic:.1f}, redchi {self.redchi:.3g}"]
        lines += [f"  {name:<10}{self.params[name]:12.5g} +- {self.stderr[name]:.2g}" for name in self.params]
        return "\n".join([*lines, f"  {self.message}"])


def fit_curve(
    responses: ArrayLike, score: ArrayLike, *, score_error: ArrayLike | None = None, family: str = "best"
) -> CurveFit:
    """Fit a reference curve to the evaluations of a run.

    Parameters
    ----------
    responses : array_like, (evaluation,) [responses]
        Responses (or updates) used at each evaluation, not negative.
    score : array_like, (evaluation,) [1]
        NaN where there is none.
    score_error : array_like or None, broadcastable [1]
        Standard error of each score; estimated from the residuals if None.
    family : {'best', 'sigmoid', 'power', 'exponential'}
        'best' takes the lowest AIC.

    Returns
    -------
    CurveFit

    Raises
    ------
    InputError
        For an unknown family, an error that is not positive, negative responses, or fewer distinct
        evaluations than the curve has parameters plus one.
    """
    if family == "best":
        fits = fit_families(responses, score, score_error=score_error)
        return min(fits.values(), key=lambda f: f.aic)
    if family not in FAMILIES:
        raise InputError(f"unknown family of curves '{family}'", remedy=nearest(family, ("best", *FAMILIES)))
    u, j, weight = _data(responses, score, score_error, needed=len(FAMILIES[family].parameters) + 1, family=family)
    return _fit(u, j, weight, family=family, scaled=score_error is None)


def fit_families(
    responses: ArrayLike, score: ArrayLike, *, score_error: ArrayLike | None = None
) -> dict[str, CurveFit]:
    """Fits of every family that the number of evaluations allows.

    Parameters
    ----------
    responses, score, score_error
        See `fit_curve`.

    Returns
    -------
    dict of str to CurveFit
        By family.

    Raises
    ------
    InputError
        As `fit_curve`, if there are too few evaluations for every family.
    """
    u, _, _ = _data(responses, score, score_error, needed=4, family="exponential")
    known = [name for name, f in FAMILIES.items() if np.unique(u).size > len(f.parameters)]
    return {name: fit_curve(responses, score, score_error=score_error, family=name) for name in known}


def holdout_error(
    responses: ArrayLike,
    score: ArrayLike,
    *,
    family: str,
    share: float = 1 / 3,
    score_error: ArrayLike | None = None,
) -> float:
    """Root mean square error of the last evaluations, predicted from the ones before.

    Parameters
    ----------
    responses, score, score_error
        See `fit_curve`.
    family : str
        As in `fit_curve`, or 'last' for the last score that is not left out.
    share : float in (0, 1) [1]
        Of the evaluations that are left out, in order of responses.

    Returns
    -------
    float [1]

    Raises
    ------
    InputError
        As `fit_curve`, for what is left.
    """
    u, j, _ = _data(responses, score, score_error, needed=2, family=family)
    order = np.argsort(u, kind="stable")
    error = None if score_error is None else np.broadcast_to(np.asarray(score_error), np.shape(score))
    finite = np.isfinite(np.asarray(score, dtype=np.float64))
    kept = max(int(np.ceil(u.size * (1 - share) - 1e-9)), 1)
    early, late = order[:kept], order[kept:]
    if family == "last":
        predicted = np.full(late.size, j[early[-1]])
    else:
        known = None if error is None else error[finite][early]
        predicted = score_at(fit_curve(u[early], j[early], score_error=known, family=family).curve, u[late])
    return float(np.sqrt(np.mean((predicted - j[late]) ** 2))) if late.size else np.nan


def _data(
    responses: ArrayLike, score: ArrayLike, score_error: ArrayLike | None, *, needed: int, family: str
) -> tuple[Floats, Floats, Floats]:
    """Finite evaluations and the inverse of their errors."""
    u, j = np.broadcast_arrays(np.asarray(responses, dtype=np.float64), np.asarray(score, dtype=np.float64))
    error = np.broadcast_to(np.asarray(1.0 if score_error is None else score_error, dtype=np.float64), j.shape)
    seen = np.isfinite(j) & np.isfinite(u)
    u, j, error = u[seen], j[seen], error[seen]
    if (u < 0).any():
        raise InputError(f"responses are {u.min():g} at an evaluation, and they must not be negative")
    if not (error > 0).all():
        raise InputError(
            f"score_error is {error.min():g}, and a fit needs positive errors", remedy="leave it out to estimate it"
        )
    if np.unique(u).size < needed:
        raise InputError(
            f"{np.unique(u).size} evaluations at different responses, and the {family} curve needs {needed}",
            remedy="evaluate more often, or choose the family 'exponential' (3 parameters)",
        )
    return u, j, 1 / error


def _linear(rise: Floats, j: Floats, weight: Floats, asymptote: float | None = None) -> tuple[Floats, Floats, Floats]:
    """Start, asymptote and chi square of the best curve at each shape; rise is (shape, evaluation)."""
    left, right, y = weight * (1 - rise), weight * rise, weight * j
    if asymptote is not None:
        rest = y - asymptote * right
        square = np.maximum((left**2).sum(1), np.finfo(float).tiny)
        start = (left * rest).sum(1) / square
        return start, np.full_like(start, asymptote), ((rest - start[:, None] * left) ** 2).sum(1)
    a, b, c = (left**2).sum(1), (left * right).sum(1), (right**2).sum(1)
    p, q = (left * y).sum(1), (right * y).sum(1)
    determinant = a * c - b * b
    singular = determinant <= 1e-12 * np.maximum(a * c, np.finfo(float).tiny)
    safe = np.where(singular, 1.0, determinant)
    start, top = (c * p - b * q) / safe, (a * q - b * p) / safe
    chisqr = ((y - start[:, None] * left - top[:, None] * right) ** 2).sum(1)
    return start, top, np.where(singular, np.inf, chisqr)


def _shapes(u: Floats, family: str) -> tuple[Floats, Floats]:
    """Grid of scales and exponents, flattened."""
    smallest = u[u > 0].min()
    scales = np.exp(np.linspace(np.log(smallest / 10), np.log(100 * u.max()), _SCALES))
    exponents = _EXPONENTS if "exponent" in FAMILIES[family].parameters else np.ones(1)
    scale, exponent = np.meshgrid(scales, exponents, indexing="ij")
    return scale.ravel(), exponent.ravel()


def _polish(
    u: Floats, j: Floats, weight: Floats, begin: Sequence[float], family: str, asymptote: float | None
) -> tuple[Floats, Floats, float, bool]:
    """Least squares over (start, asymptote, log scale, log exponent): parameters, Jacobian, chi square, success."""
    from scipy.optimize import least_squares

    rise_of = FAMILIES[family].rise
    held = asymptote is not None
    log_span = np.log(1e4)

    def parameters(theta: Floats) -> Floats:
        return np.insert(theta, 1, asymptote) if held else theta  # type: ignore[arg-type]

    def residual(theta: Floats) -> Floats:
        p = parameters(theta)
        rise = rise_of(u / np.exp(p[2]), np.asarray(np.exp(p[3]) if p.size > 3 else 1.0))
        return np.asarray(weight * (p[0] + (p[1] - p[0]) * rise - j))

    x0 = np.asarray(begin, dtype=np.float64)
    low, high = np.full(x0.size, -np.inf), np.full(x0.size, np.inf)
    low[2], high[2] = np.log(u[u > 0].min()) - log_span, np.log(u.max()) + log_span
    low[3:], high[3:] = np.log(0.02), np.log(50)
    if held:
        x0, low, high = (np.delete(v, 1) for v in (x0, low, high))
    spread = max(float(np.ptp(j)), np.finfo(float).tiny)
    x_scale = np.where(np.arange(x0.size) < (1 if held else 2), spread, 1.0)
    x0 = np.clip(x0, low + 1e-9, high - 1e-9)
    found = least_squares(residual, x0, bounds=(low, high), x_scale=x_scale, xtol=1e-12, ftol=1e-12, gtol=1e-12)
    return parameters(found.x), np.asarray(found.jac), float(2 * found.cost), bool(found.success)


def _best(
    u: Floats, j: Floats, weight: Floats, family: str, asymptote: float | None = None
) -> tuple[Floats, Floats, float, bool]:
    scale, exponent = _shapes(u, family)
    rise = FAMILIES[family].rise(u / scale[:, None], exponent[:, None])
    start, top, chisqr = _linear(rise, j, weight, asymptote)
    at = int(np.argmin(chisqr))
    begin = [start[at], top[at], np.log(scale[at])]
    if "exponent" in FAMILIES[family].parameters:
        begin.append(np.log(exponent[at]))
    return _polish(u, j, weight, begin, family, asymptote)


def _fit(u: Floats, j: Floats, weight: Floats, *, family: str, scaled: bool) -> CurveFit:
    from scipy.special import stdtrit

    if np.ptp(j) == 0:
        raise InputError(f"all scores are {j[0]:g}: no curve can be fitted", remedy="evaluate where the score moves")
    names = FAMILIES[family].parameters
    theta, jacobian, chisqr, success = _best(u, j, weight, family)
    nfree = max(u.size - len(names), 1)
    redchi = chisqr / nfree
    natural = np.concatenate([theta[:2], np.exp(theta[2:])])
    values = dict(zip(names, map(float, natural), strict=True))
    curve = Curve(family=family, **values)
    covar = _covariance(jacobian, np.concatenate([[1.0, 1.0], natural[2:]])) * (redchi if scaled else 1.0)
    # The direction in which the scores move decides on which side the asymptote could vanish.
    falls = curve.asymptote < curve.start
    far = j.min() - BEYOND * np.ptp(j) if falls else j.max() + BEYOND * np.ptp(j)
    beyond = curve.asymptote <= far if falls else curve.asymptote >= far
    noise = max(redchi if scaled else 1.0, np.finfo(float).eps * float(np.mean((weight * j) ** 2)) * 1e-3)
    rise = CHI_SQUARE_95 if not scaled else float(stdtrit(nfree, 0.975)) ** 2
    identified = not beyond and _best(u, j, weight, family, far)[2] - chisqr > rise * noise
    last = float(score_at(curve, u.max()))
    reached = (last - curve.start) / (curve.asymptote - curve.start) if curve.asymptote != curve.start else np.nan
    return CurveFit(
        curve=curve,
        params=values,
        stderr=dict(zip(names, np.sqrt(np.diag(covar)).tolist(), strict=True)),
        covar=tuple(tuple(row) for row in covar.tolist()),
        chisqr=chisqr,
        redchi=redchi,
        aic=u.size * float(np.log(max(chisqr / u.size, np.finfo(float).tiny))) + 2 * len(names),
        ndata=u.size,
        nvarys=len(names),
        nfree=nfree,
        success=success,
        identified=identified,
        reached=reached,
        message=_message(success, identified, reached, curve),
    )


def _covariance(jacobian: Floats, scale: Floats) -> Floats:
    """(J'J)^-1 in natural parameters, infinite variances where it is singular."""
    size = np.sqrt((jacobian**2).sum(0))
    if (size == 0).any():
        return np.diag(np.full(size.size, np.inf))
    normed = jacobian / size
    _, singular, vt = np.linalg.svd(normed, full_matrices=False)
    if singular[-1] < 1e-10 * singular[0]:
        return np.diag(np.full(size.size, np.inf))
    inverse = (vt.T / singular**2) @ vt
    factor = scale / size
    return np.asarray(inverse * np.outer(factor, factor))


def _message(success: bool, identified: bool, reached: float, curve: Curve) -> str:
    if identified and not success:
        return "the optimizer did not converge"
    if identified:
        return f"{reached:.0%} of the way to the asymptote {curve.asymptote:.4g} at the last evaluation"
    return (
        "the asymptote is not identified: the scores allow one out of sight, so targets beyond the last score are "
        "extrapolation; train longer, or give the asymptote"
    )
