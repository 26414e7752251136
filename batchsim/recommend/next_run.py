r"""The effective range, the star, and the next run worth measuring.

The next run is the candidate whose measurement is expected to reduce the regret of the choice most per GPU-hour. With
draws tau of T/T_0 over candidates, the batch that is best on average costs min_j E[tau_j], and its regret is that less
E[min_j tau_j]. Were T_B measured, the choice could follow it; the regret falls by

    gain_B = min_j E[tau_j] - E[tau_c],   c = argmin_j E(tau_j | tau_B e),

with the conditional means from a quadratic regression of tau_j on the measured log tau_B over the draws, since
candidates share a noise scale and a plateau and one measurement informs them all. A run of one seed measures log tau_B
with the spread e between runs, and no measurement is worth more than it says. Gains are divided by E[tau_B], which
GPU-hours are proportional to on fixed hardware.

Measuring stops when the best is known: one batch is within 5 % of the best in 90 % of the draws. It also stops where no
run is expected to shorten the chosen one by half a percent.

References
----------
.. [1] Strong, Oakley & Brennan 2014, "Estimating multiparameter partial expected value of perfect
   information from a probabilistic sensitivity analysis sample", Medical Decision Making 34:311.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from batchsim.time_to_target import effective_range, p_near_best, star

WORTH_MEASURING = 0.005
"""Least expected shortening of T/T_0 for which a run is proposed."""
KNOWN = 0.9
"""Probability of lying within 5 % of the best from which the best is known."""
RUN_ERROR = 0.1
"""Relative spread of N* over runs, which a measurement of one run carries; the prior of `docs/theory.md`."""
CAP = 20.0
"""T/T_0 beyond which a batch is simply bad; keeps expectations finite where training may diverge."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class NextRun:
    """A run worth measuring.

    Parameters
    ----------
    index : int
        Candidate.
    gain : float [1]
        Expected shortening of T/T_0 of the run that is then chosen.
    """

    index: int
    gain: float


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """Range, star and next run, as indices into the candidates.

    Parameters
    ----------
    effective_range : tuple of int or None
    star : int or None
    next_run : NextRun or None
        None where the best is known, or no run is expected to help by half a percent.
    p_best : float [1]
        Probability of the batch that is most often within 5 % of the best.
    is_known : bool
        Whether that reaches 90 %.
    """

    effective_range: tuple[int, int] | None
    star: int | None
    next_run: NextRun | None
    p_best: float
    is_known: bool


def recommend(
    time_ratio: Floats, *, measured: NDArray[np.bool_] | None = None, run_error: float = RUN_ERROR
) -> Recommendation:
    """Range, star and next run from draws of the time ratio.

    Parameters
    ----------
    time_ratio : ndarray, (draw, train_batch) [1]
        T/T_0 per draw, candidates in increasing order.
    measured : ndarray of bool, (train_batch,) or None
        Candidates whose time to target was measured, which are not proposed again.
    run_error : float [1]
        Standard deviation of log T that a measured run would have.

    Returns
    -------
    Recommendation
    """
    p_best = float(p_near_best(time_ratio).max())
    known = p_best >= KNOWN
    return Recommendation(
        effective_range=effective_range(time_ratio),
        star=star(time_ratio),
        next_run=None if known else _next_run(time_ratio, measured, run_error),
        p_best=p_best,
        is_known=known,
    )


def expected_regret(time_ratio: Floats) -> Floats:
    """Expected regret of every candidate, E[tau_j/min_i tau_i] - 1.

    Parameters
    ----------
    time_ratio : ndarray, (draw, train_batch) [1]
        T/T_0 per draw; infinite where training diverges, capped at `CAP`.

    Returns
    -------
    ndarray, (train_batch,) [1]
    """
    tau = np.minimum(time_ratio, CAP)
    return np.asarray(np.mean(tau / tau.min(axis=1, keepdims=True), axis=0) - 1)


def _next_run(time_ratio: Floats, measured: NDArray[np.bool_] | None, run_error: float) -> NextRun | None:
    log_tau = np.log(np.minimum(time_ratio, CAP))
    tau = np.exp(log_tau)
    mean = tau.mean(axis=0)
    # The same errors for every candidate: they are compared, not estimated.
    error = run_error * np.random.default_rng(0).standard_normal(len(tau))
    best: NextRun | None = None
    for i in range(tau.shape[1]):
        known = measured is not None and bool(measured[i])
        if known or log_tau[:, i].std() < 1e-9:
            continue
        # The fit only chooses; the chosen batch is charged what the draws say, so that no gain exceeds the
        # value of knowing everything.
        choice = _conditional_means(tau, log_tau[:, i] + error).argmin(axis=1)
        gain = float(mean.min() - tau[np.arange(len(tau)), choice].mean())
        rate = gain / mean[i]
        if gain >= WORTH_MEASURING and (best is None or rate > best.gain / mean[best.index]):
            best = NextRun(index=i, gain=gain)
    return best


def _conditional_means(tau: Floats, log_tau: Floats) -> Floats:
    """Quadratic regression of every candidate's tau on one candidate's log tau, (draw, train_batch)."""
    z = (log_tau - log_tau.mean()) / log_tau.std()
    design = np.stack([np.ones_like(z), z, z**2], axis=1)
    coefficients, *_ = np.linalg.lstsq(design, tau, rcond=None)
    return np.asarray(design @ coefficients)
