r"""Learning curves of several batches overlaid: what pilots that never reach the target say of r_N.

Batches run along one curve at their own pace (`learning.curve.warp`), so with a constant sample cost the curve of
run r is the common one over responses divided by a factor,

    J_r(N) = J(N/f_r),      log r_N(B) = mean of log f over runs at B - mean over runs at B_0.

Curve and factors are fitted together by least squares over all evaluations, for each family of `learning.curve`; the
lowest AIC is kept. Only the stretch that all batches cover is read: each run up to its first evaluation above the
highest (rising) score that every arm reaches. Every run has a factor of its own, which takes up how far its progress
wandered, so that repeats show the spread over runs as they do for N*.

Two runs whose scores barely moved overlay for any factor. Factors are **identified** if the contrast between arms has
a standard error below `WORST`; else the pilots do not tell, and the message says how far to run them.

Errors of the factors come from leaving out one evaluation at a time where that says more than the linear covariance.
To them is added what the start may cost, some three updates (`learning.mechanism`) over those of the stretch that was
read: a short pilot of a large batch counts them in full, and the whole run hardly.

A factor belongs to the scores that were compared. Where the noise scale grows along the run (|G|^2 falls), r_N of
larger batches at a target above them is smaller than there; the forecast does not correct for it, and says so.

References
----------
.. [1] Li et al. 2026, arXiv:2608.29296 (curves at equal cumulative responses).
.. [2] McCandlish et al. 2018, arXiv:1812.06162, appendix D (progress along a run).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from batchsim.learning.curve import FAMILIES, Curve, rising_curve
from batchsim.learning.mechanism import MOMENTUM_LOSS

Floats = NDArray[np.float64]

WORST = 0.35
"""Standard error of a contrast of log f above which curves do not tell batches apart."""
START_UPDATES = MOMENTUM_LOSS * 0.9 / (1 - 0.9)
"""Updates that the start may cost every run (`learning.mechanism`): an error of so many over those of the stretch."""
MIN_EVALUATIONS = 3
"""Evaluations of a run, the one before training included, without which it has no pace."""
LARGEST = math.log(30.0)
"""Largest log f that is considered, either way."""
MOVED = 2.0
"""AIC by which a curve must describe the scores better than their mean."""
STARTS = (0.3, 1.0, 3.0, 10.0)
"""First guesses of the curve's scale, in units of the responses that were read."""


@dataclass(frozen=True, kw_only=True)
class OverlayFit:
    """Factors in responses that lay the runs' curves over each other.

    Parameters
    ----------
    params, stderr : dict of str to float
        log f per run [1], their mean 0.
    curve : Curve or None
        The common curve, at f = 1; None if nothing was fitted.
    score : float [1]
        Highest score that every arm reaches: what the factors speak of.
    evaluations : int
    chisqr, aic : float
        Sum of squared residuals of the scores; n log(chisqr/n) + 2 parameters.
    contrast_error : float [1]
        Largest standard error of a difference between the means of two arms.
    success : bool
        Identified.
    message : str
    """

    params: dict[str, float]
    stderr: dict[str, float]
    curve: Curve | None
    score: float
    evaluations: int
    chisqr: float
    aic: float
    contrast_error: float
    success: bool
    message: str

    def summary(self) -> str:
        """The fit as text."""
        if self.curve is None:
            return self.message
        lines = [
            f"curves overlaid up to a score of {self.score:.4g}: {self.curve.family}, {self.evaluations} scores, "
            f"aic {self.aic:.1f}"
        ]
        lines += [f"  log f {name:<24} {v:>9.4f} +- {self.stderr[name]:.2g}" for name, v in self.params.items()]
        return "\n".join([*lines, f"  {self.message}"])


def fit_overlay(nodes: dict[str, xr.Dataset], arms: Sequence[str], metric: str) -> OverlayFit:
    """Overlay the curves of runs.

    Parameters
    ----------
    nodes : dict of str to xarray.Dataset
        Runs as `logs.read_logs` returns them.
    arms : sequence of str, (run,)
        What each run repeats.
    metric : str

    Returns
    -------
    OverlayFit
        Without success where the curves do not tell.
    """
    curves = {name: _scores(ds, metric) for name, ds in nodes.items()}
    arm_of = dict(zip(nodes, arms, strict=True))
    usable = {n: c for n, c in curves.items() if c[0].size >= MIN_EVALUATIONS}
    present = list(dict.fromkeys(arm_of[n] for n in usable))
    if len(present) < 2:
        return _nothing(
            f"fewer than two batches have {MIN_EVALUATIONS} evaluations of '{metric}', so that their curves cannot be "
            "compared; evaluate more often"
        )
    tops = {n: rising_curve(j) for n, (_, j) in usable.items()}
    common = min(max(float(tops[n].max()) for n in usable if arm_of[n] == a) for a in present)
    cut = {}
    for name, (n, j) in usable.items():
        above = np.flatnonzero(tops[name] > common)
        end = int(above[0]) + 1 if above.size else n.size
        if end >= MIN_EVALUATIONS:
            cut[name] = (n[:end], j[:end])
    if len({arm_of[n] for n in cut}) < 2:
        return _nothing(
            f"the batches share no stretch of scores up to {common:.4g} with {MIN_EVALUATIONS} evaluations each; "
            "evaluate more often"
        )
    scores = np.concatenate([j for _, j in cut.values()])
    if np.ptp(scores) == 0:
        return _nothing(f"all scores are {scores[0]:g}: no pace can be read; train until they move")
    updates = {n: c[0][-1] / float(nodes[n].attrs["train_batch"]) for n, c in cut.items()}
    fits = [_fit(cut, arm_of, family, common, updates) for family in FAMILIES]
    known = [f for f in fits if f is not None]
    if not known:
        return _nothing("there are too few evaluations for a curve and one factor per run; evaluate more often")
    return min(known, key=lambda f: f.aic)


def _scores(ds: xr.Dataset, metric: str) -> tuple[Floats, Floats]:
    if metric not in ds["metric"].values:
        return np.empty(0), np.empty(0)
    n, j = ds["evaluation_responses"].values.astype(np.float64), ds["score"].sel(metric=metric).values
    seen = np.isfinite(j) & np.isfinite(n)
    return n[seen], np.asarray(j[seen], dtype=np.float64)


def _nothing(message: str) -> OverlayFit:
    return OverlayFit(
        params={},
        stderr={},
        curve=None,
        score=np.nan,
        evaluations=0,
        chisqr=np.nan,
        aic=np.inf,
        contrast_error=np.inf,
        success=False,
        message=message,
    )


def _fit(
    runs: dict[str, tuple[Floats, Floats]],
    arm_of: dict[str, str],
    family: str,
    common: float,
    updates: dict[str, float],
) -> OverlayFit | None:
    """Least squares over the curve and log f, in the gauge sum log f = 0; None with too few evaluations."""
    from scipy.optimize import least_squares

    names = list(runs)
    run = np.concatenate([np.full(runs[n][0].size, i) for i, n in enumerate(names)])
    n, j = (np.concatenate([runs[name][k] for name in names]) for k in (0, 1))
    shaped = len(FAMILIES[family].parameters) == 4
    free = (4 if shaped else 3) + len(names) - 1
    if j.size <= free:
        return None
    rise_of, spread, largest = FAMILIES[family].rise, float(np.ptp(j)), float(n.max())

    def unpack(theta: Floats) -> tuple[float, float, float, float, Floats]:
        factors = theta[4:] if shaped else theta[3:]
        return theta[0], theta[1], np.exp(theta[2]), np.exp(theta[3]) if shaped else 1.0, factors

    def residual(theta: Floats) -> Floats:
        start, end, scale, exponent, log_f = unpack(theta)
        rise = rise_of(n / (scale * np.exp(log_f[run])), np.asarray(exponent))
        # The last row fixes the gauge: a common factor is the curve's scale.
        return np.append((start + (end - start) * rise - j) / spread, log_f.sum())

    guess = _first_guess(runs, names)
    best = None
    for scale in STARTS:
        begin = np.array([j.min(), j.max() + spread, np.log(scale * largest), *([0.0] if shaped else []), *guess])
        low, high = np.full(begin.size, -LARGEST), np.full(begin.size, LARGEST)
        low[:2], high[:2] = j.min() - 3 * spread, j.max() + 10 * spread
        low[2], high[2] = np.log(largest) - 12, np.log(largest) + 12
        if shaped:
            low[3], high[3] = np.log(0.1), np.log(10)
        found = least_squares(residual, np.clip(begin, low + 1e-9, high - 1e-9), bounds=(low, high), x_scale="jac")
        best = found if best is None or found.cost < best.cost else best
    assert best is not None
    chisqr = float(2 * best.cost)
    jacobian = np.asarray(best.jac, dtype=np.float64)
    covariance = np.linalg.pinv(jacobian.T @ jacobian, rcond=1e-12) * chisqr / (j.size - free)
    at = np.arange(4 if shaped else 3, best.x.size)
    start, end, scale, exponent, log_f = unpack(best.x)
    block = covariance[np.ix_(at, at)]
    if _contrast_error(block, [arm_of[name] for name in names]) < WORST:
        block = np.maximum(1.0, _left_out(residual, best.x, n.size, low, high, at, block)) * block
    # Updates that the start costs are a share of the stretch, and a smaller one of the whole run.
    block = block + np.diag([(START_UPDATES / updates[name]) ** 2 for name in names])
    error = _contrast_error(block, [arm_of[name] for name in names])
    aic = _criterion(chisqr, j.size, free)
    # Scores that no curve describes better than their mean have no pace, whatever factors fit their noise.
    still = _criterion(float(np.sum((j - j.mean()) ** 2)) / spread**2, j.size, 1) < aic + MOVED
    success = bool(best.success) and error < WORST and not still and float(np.abs(log_f).max()) < 0.99 * LARGEST
    if still:
        said = (
            f"the scores up to {common:.4g} move too little for a pace; train the pilots until their scores have moved "
            "further, or evaluate more samples"
        )
    elif success:
        said = f"the curves tell batches apart to +- {error:.2g} in log r_N"
    else:
        said = (
            f"the curves leave +- {error:.2g} in log r_N between batches, and more than {WORST:g} says nothing; train "
            "the pilots until their scores have moved further, or evaluate more often"
        )
    return OverlayFit(
        params=dict(zip(names, log_f.tolist(), strict=True)),
        stderr=dict(zip(names, np.sqrt(np.maximum(np.diag(block), 0)).tolist(), strict=True)),
        curve=Curve(
            family=family,
            start=start,
            asymptote=end,
            scale=float(scale),
            **({"exponent": float(exponent)} if shaped else {}),
        ),
        score=common,
        evaluations=j.size,
        chisqr=chisqr * spread**2,
        aic=aic,
        contrast_error=error,
        success=success,
        message=said,
    )


def _left_out(
    residual: Callable[[Floats], Floats],
    optimum: Floats,
    evaluations: int,
    low: Floats,
    high: Floats,
    at: NDArray[np.int64],
    block: Floats,
) -> float:
    """Variance of the factors by leaving out one evaluation at a time (jackknife), over the linear one.

    With some ten scores per run the linear covariance takes the curve for known where it bends, and is too small by a
    factor of about three.
    """
    from scipy.optimize import least_squares

    moved = []
    for i in range(evaluations):

        def without(theta: Floats, left_out: int = i) -> Floats:
            return np.delete(residual(theta), left_out)

        found = least_squares(without, optimum, bounds=(low, high), x_scale="jac", max_nfev=50)
        moved.append(found.x[at] - optimum[at])
    shifts = np.array(moved)
    shifts = shifts - shifts.mean(axis=0)
    jackknife = (evaluations - 1) / evaluations * (shifts.T @ shifts)
    linear = float(np.trace(block))
    return float(np.trace(jackknife)) / linear if linear > 0 else 1.0


def _criterion(chisqr: float, n: int, free: int) -> float:
    """AIC of scores with an unknown error."""
    return n * float(np.log(max(chisqr / n, np.finfo(float).tiny))) + 2 * free


def _first_guess(runs: dict[str, tuple[Floats, Floats]], names: list[str]) -> Floats:
    """Log f from the responses at which each rising curve passes the middle of the scores, their mean 0."""
    middle = min(float(rising_curve(j).max()) for _, j in runs.values())
    middle = (middle + max(float(j[0]) for _, j in runs.values())) / 2
    guess = []
    for name in names:
        n, j = runs[name]
        at = int(np.searchsorted(rising_curve(j), middle))
        guess.append(np.log(max(n[min(at, n.size - 1)], n[n > 0].min())))
    return np.asarray(np.array(guess) - np.mean(guess))


def _contrast_error(covariance: Floats, arms: list[str]) -> float:
    """Largest standard error of a difference between arm means."""
    labels = list(dict.fromkeys(arms))
    means = np.array([[1.0 / arms.count(a) if b == a else 0.0 for b in arms] for a in labels])
    of_means = means @ covariance @ means.T
    variance = np.diag(of_means)[:, None] + np.diag(of_means)[None, :] - 2 * of_means
    return float(np.sqrt(max(variance.max(), 0.0)))
