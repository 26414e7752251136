r"""N* of runs as an interval-censored normal of log N*: one mean per arm, one run-to-run spread for all.

An evaluation grid says that a run reached its target between two evaluations, before the first one, or not yet. With
y_r = log N*_r ~ N(mu_arm, s^2) known to lie in [l_r, h_r], a = (l - mu)/s and b = (h - mu)/s,

    log L = sum_r log(Phi(b_r) - Phi(a_r)),

in which censored runs and runs between two evaluations stand side by side and none is left out or moved to a midpoint.
Two terms in log s are added. An arm's mean is fitted, and without a term log(s^2 + n w^2/12)/2 per arm, w the width of
its narrowest interval, the spread of n runs would be too small (Cox & Reid's adjustment by the mean's own error; for
narrow intervals log s, which gives exactly the pooled standard deviation, and nothing for wide ones). And log s has a
normal prior around log .1 with a factor of sqrt(10) (reference convergence points scatter by 2 to 15 % over seeds): it
decides where no arm has repeats, and where all runs share one interval, which allows every smaller spread. AIC is
that of the likelihood alone, of the density where N* is a number.

An arm whose runs have limits on one side only has no mean; its runs still bound the law (`calibrate.discrepancy`).
Limits of a parameter are those of its profile likelihood: where twice the log-likelihood, maximised over the others,
has fallen by the quantile of chi square. The fit is a `GenericLikelihoodModel` of statsmodels, with exact derivatives.

References
----------
.. [1] Turnbull 1976, JRSS B 38:290 (censored and grouped data together).
.. [2] Cox & Reid 1987, JRSS B 49:1 (adjusted profile likelihood).
.. [3] MLCommons reference convergence points, mlcommons/logging @ 7bbf7926 (spread over seeds).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr

from batchsim.errors import InputError

Floats = NDArray[np.float64]

RUN_SPREAD = 0.1
"""Median of the prior of the relative spread of N* over runs."""
SPREAD_FACTOR = math.sqrt(10.0)
"""Factor of one standard deviation of that prior."""
LEAST_WIDTH = 1e-6
"""Width of log N* that stands for a number."""
SPREAD = "run_spread"


@dataclass(frozen=True, kw_only=True)
class ResponsesFit:
    """Means of log N* per arm and the spread over runs.

    Parameters
    ----------
    params, stderr : dict of str to float
        `log_responses[ARM]` [1] per arm with a mean, and `run_spread` [1], the standard deviation of log N* over runs.
    covariance : ndarray, (parameter, parameter)
        Of the means and of log s, in the order of `params`.
    log_likelihood, aic : float
    runs : int
        Runs in the fit.
    one_sided : tuple of str
        Arms whose runs have limits on one side only.
    low, high : ndarray, (run,) [1]
        Limits of log N*.
    arm : ndarray of int, (run,)
        Index into the arms with a mean.
    success : bool
    message : str
    """

    params: dict[str, float]
    stderr: dict[str, float]
    covariance: Floats
    log_likelihood: float
    aic: float
    runs: int
    one_sided: tuple[str, ...]
    low: Floats
    high: Floats
    arm: NDArray[np.int64]
    success: bool
    message: str

    @property
    def run_spread(self) -> float:
        """Standard deviation of log N* over runs [1]."""
        return self.params[SPREAD]

    def intervals(self, *, level: float = 0.8) -> dict[str, tuple[float, float]]:
        """Limits of every parameter by profile likelihood.

        Parameters
        ----------
        level : float in (0, 1) [1]

        Returns
        -------
        dict of str to (low, high)
        """
        from scipy.special import ndtri

        drop = float(ndtri((1 + level) / 2)) ** 2 / 2
        theta = np.array([*list(self.params.values())[:-1], math.log(self.run_spread)])
        top = _penalised(theta, self.low, self.high, self.arm)
        found = {}
        for i, name in enumerate(self.params):
            limits = tuple(self._limit(theta, i, side, top - drop) for side in (-1.0, 1.0))
            found[name] = (math.exp(limits[0]), math.exp(limits[1])) if name == SPREAD else limits
        return found  # type: ignore[return-value]

    def _limit(self, theta: Floats, index: int, side: float, wanted: float) -> float:
        """Where the profile of one parameter meets a height, by doubling and bisection."""
        from scipy.optimize import minimize

        others = np.delete(np.arange(theta.size), index)

        def profile(value: float) -> float:
            def cost(free: Floats) -> tuple[float, Floats]:
                full = np.insert(free, index, value)
                score = _derivatives(full, self.low, self.high, self.arm)[0]
                return -_penalised(full, self.low, self.high, self.arm), -score[others]

            if not others.size:
                return -cost(np.empty(0))[0]
            return -float(minimize(cost, theta[others], jac=True, method="BFGS").fun)

        step = side * max(math.sqrt(max(float(self.covariance[index, index]), 0.0)), 1e-3)
        inner, outer = theta[index], theta[index] + step
        for _ in range(12):
            if profile(outer) < wanted:
                break
            inner, step = outer, 2 * step
            outer += step
        else:
            return side * math.inf
        for _ in range(30):
            middle = (inner + outer) / 2
            inner, outer = (middle, outer) if profile(middle) > wanted else (inner, middle)
            if abs(outer - inner) < 1e-4 * max(abs(step), 1e-6):
                break
        return float((inner + outer) / 2)

    def summary(self, *, level: float = 0.8, profiles: bool = True) -> str:
        """The fit as text, with limits by profile likelihood unless these are not asked for (they take a while)."""
        limits = self.intervals(level=level) if profiles else {}
        lines = [f"N* of {self.runs} runs: log-likelihood {self.log_likelihood:.2f}, aic {self.aic:.2f}"]
        for name, value in self.params.items():
            shown = "" if name not in limits else f" ({limits[name][0]:.4f} to {limits[name][1]:.4f})"
            lines.append(f"  {name:<28} {value:>10.4f} +- {self.stderr[name]:<8.2g}{shown}".rstrip())
        return "\n".join([*lines, *([f"  {self.message}"] if self.message else [])])


def fit_responses(low: ArrayLike, high: ArrayLike, arm: Sequence[str]) -> ResponsesFit | None:
    """Fit arm means and the run-to-run spread to intervals of N*.

    Parameters
    ----------
    low, high : array_like, (run,) [responses]
        N* lies in [low, high]; 0 and infinity where there is no limit.
    arm : sequence of str, (run,)
        What each run repeats.

    Returns
    -------
    ResponsesFit or None
        None where no arm has limits on both sides.

    Raises
    ------
    InputError
        For limits that run from high to low or are negative.
    """
    n_low, n_high = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
    if not ((n_low >= 0) & (n_high >= n_low)).all():
        bad = int(np.flatnonzero(~((n_low >= 0) & (n_high >= n_low)))[0])
        raise InputError(f"N* of a run of '{arm[bad]}' lies between {n_low[bad]:g} and {n_high[bad]:g}")
    with np.errstate(divide="ignore"):
        lower, upper = np.log(n_low), np.log(n_high)
    labels = np.asarray(arm, dtype=str)
    names = list(dict.fromkeys(labels.tolist()))
    bounded = [n for n in names if np.isfinite(lower[labels == n]).any() and np.isfinite(upper[labels == n]).any()]
    if not bounded:
        return None
    used = np.isin(labels, bounded)
    index = np.array([bounded.index(n) for n in labels[used]], dtype=np.int64)
    lower, upper = lower[used], upper[used]
    narrow = upper - lower < LEAST_WIDTH
    with np.errstate(invalid="ignore"):
        middle = (lower + upper) / 2
    lower, upper = np.where(narrow, middle - LEAST_WIDTH / 2, lower), np.where(narrow, middle + LEAST_WIDTH / 2, upper)
    theta, converged, why = _maximise(lower, upper, index)
    hessian = _derivatives(theta, lower, upper, index)[1]
    covariance = np.asarray(np.linalg.pinv(-hessian, hermitian=True), dtype=np.float64)
    error = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    keys = [*(f"log_responses[{n}]" for n in bounded), SPREAD]
    spread = math.exp(theta[-1])
    height = float(np.sum(_log_mass(theta, lower, upper, index))) - int(narrow.sum()) * math.log(LEAST_WIDTH)
    return ResponsesFit(
        params=dict(zip(keys, [*theta[:-1].tolist(), spread], strict=True)),
        stderr=dict(zip(keys, [*error[:-1].tolist(), spread * float(error[-1])], strict=True)),
        covariance=covariance,
        log_likelihood=height,
        aic=2 * len(keys) - 2 * height,
        runs=int(used.sum()),
        one_sided=tuple(n for n in names if n not in bounded),
        low=lower,
        high=upper,
        arm=index,
        success=converged,
        message=_message(why, names, bounded, index),
    )


def _message(why: str, names: list[str], bounded: list[str], index: NDArray[np.int64]) -> str:
    said = [why] if why else []
    if index.size == len(bounded):
        said.append("no arm has two runs: the spread over runs is its prior; a second seed at one batch would tell")
    if len(bounded) < len(names):
        one_sided = ", ".join(n for n in names if n not in bounded)
        said.append(f"no mean for {one_sided}: N* there has limits on one side only")
    return "; ".join(said)


def _maximise(low: Floats, high: Floats, arm: NDArray[np.int64]) -> tuple[Floats, bool, str]:
    """Parameters (means, log s) of the largest adjusted likelihood, by statsmodels."""
    model = _model()(low, high, arm)
    middle = np.where(np.isfinite(low), np.where(np.isfinite(high), (low + high) / 2, low), high)
    means = np.array([middle[arm == i].mean() for i in range(int(arm.max()) + 1)])
    start = np.array([*means, math.log(RUN_SPREAD)])
    with warnings.catch_warnings():
        # What statsmodels warns of is asked below: whether the optimum was found.
        warnings.simplefilter("ignore")
        found = model.fit(start_params=start, method="bfgs", disp=0, maxiter=500, skip_hessian=True)
    theta = np.asarray(found.params, dtype=np.float64)
    # A few Newton steps: bfgs stops where its steps are small.
    for _ in range(5):
        score, hessian = _derivatives(theta, low, high, arm)
        step = np.linalg.lstsq(-hessian, score, rcond=None)[0]
        moved = theta + step
        if not _penalised(moved, low, high, arm) >= _penalised(theta, low, high, arm):
            break
        theta = moved
    slope = _derivatives(theta, low, high, arm)[0]
    converged = bool(np.abs(slope).max() < 1e-3 * max(low.size, 1))
    return theta, converged, "" if converged else "the likelihood's maximum was not reached"


def _model() -> Any:
    """The statsmodels class; statsmodels takes seconds to import, so only a fit does."""
    from statsmodels.base.model import GenericLikelihoodModel

    class IntervalCensored(GenericLikelihoodModel):  # type: ignore[misc]
        """Normal log N* known within limits; parameters are arm means and the log spread."""

        def __init__(self, low: Floats, high: Floats, arm: NDArray[np.int64]) -> None:
            self.low, self.high, self.arm = low, high, arm
            design = np.eye(int(arm.max()) + 1)[arm]
            super().__init__(endog=np.zeros(low.size), exog=design, extra_params_names=["log_spread"], missing="none")

        def loglike(self, params: Floats) -> float:
            return _penalised(params, self.low, self.high, self.arm)

        def score(self, params: Floats) -> Floats:
            return _derivatives(params, self.low, self.high, self.arm)[0]

        def hessian(self, params: Floats) -> Floats:
            return _derivatives(params, self.low, self.high, self.arm)[1]

    return IntervalCensored


def _log_mass(theta: Floats, low: Floats, high: Floats, arm: NDArray[np.int64]) -> Floats:
    """Log-probability of every run's interval; accurate in both tails."""
    mu, s = theta[:-1][arm], math.exp(theta[-1])
    a, b = (low - mu) / s, (high - mu) / s
    # In the upper tail Phi rounds to 1; its mirror image does not.
    upper = a + b > 0
    a, b = np.where(upper, -b, a), np.where(upper, -a, b)
    top = log_ndtr(b)
    with np.errstate(divide="ignore"):
        return np.asarray(top + np.log(-np.expm1(log_ndtr(a) - top)))


def _grids(low: Floats, high: Floats, arm: NDArray[np.int64]) -> Floats:
    """Variance of an arm's mean that its grid leaves, times its runs: n w^2/12 of its narrowest interval, (arm,)."""
    found = np.empty(int(arm.max()) + 1)
    for i in range(found.size):
        own = arm == i
        # The least upper limit less the largest lower one is the interval of two runs censored on either side.
        width = min(float(np.min(high[own] - low[own])), abs(float(np.min(high[own]) - np.max(low[own]))))
        found[i] = own.sum() * width**2 / 12
    return found


def _penalised(theta: Floats, low: Floats, high: Floats, arm: NDArray[np.int64]) -> float:
    off = (theta[-1] - math.log(RUN_SPREAD)) / math.log(SPREAD_FACTOR)
    adjustment = np.sum(np.log(math.exp(2 * theta[-1]) + _grids(low, high, arm))) / 2
    return float(np.sum(_log_mass(theta, low, high, arm)) + adjustment - off**2 / 2)


def _derivatives(theta: Floats, low: Floats, high: Floats, arm: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Gradient and Hessian of the adjusted likelihood in (means, log s)."""
    mu, s = theta[:-1][arm], math.exp(theta[-1])
    a, b = (low - mu) / s, (high - mu) / s
    log_mass = _log_mass(theta, low, high, arm)

    def density(z: Floats) -> tuple[Floats, Floats]:
        finite = np.isfinite(z)
        z = np.where(finite, z, 0.0)
        return z, np.exp(np.where(finite, -(z**2) / 2 - math.log(2 * math.pi) / 2 - log_mass, -np.inf))

    (a, pa), (b, pb) = density(a), density(b)
    g_mu, g_t = -(pb - pa) / s, -(b * pb - a * pa)
    h_mu = (a * pa - b * pb) / s**2 - g_mu**2
    h_mut = (pb - pa - b**2 * pb + a**2 * pa) / s - g_mu * g_t
    h_t = (b - b**3) * pb - (a - a**3) * pa - g_t**2
    m, factor = theta.size - 1, math.log(SPREAD_FACTOR) ** 2
    gradient, hessian = np.zeros(m + 1), np.zeros((m + 1, m + 1))
    gradient[:m] = np.bincount(arm, weights=g_mu, minlength=m)
    share = s**2 / (s**2 + _grids(low, high, arm))
    gradient[m] = g_t.sum() + share.sum() - (theta[-1] - math.log(RUN_SPREAD)) / factor
    hessian[np.arange(m), np.arange(m)] = np.bincount(arm, weights=h_mu, minlength=m)
    hessian[:m, m] = hessian[m, :m] = np.bincount(arm, weights=h_mut, minlength=m)
    hessian[m, m] = h_t.sum() + 2 * np.sum(share * (1 - share)) - 1 / factor
    return gradient, hessian
