r"""The time of a rollout step against its batch: the fitted law and its fitter.

Around a recipe the time of a rollout step is affine in its kept responses R = rollout_batch,

    t_step = tau_0 + tau_1 R,                    q = R/t_step -> 1/tau_1,

where tau_0 gathers what the responses share (weight streaming, prefill, launch, synchronisation,
the drain of the longest response) and tau_1 what each one adds. The law is a tangent: decoding has a
plateau, t >= R/q_max, at capped concurrency, KV memory or the trainer's own rate. Fits see the plateau
only if a measured batch lies on it, so for larger batches it stays unknown within
[q at the largest measured batch, 1/tau_1].

A total over many steps is a sum, so the quantity to predict is the *mean* step time: least squares
on steady steps, never a median. Cold first steps and spikes (a stalled checkpoint) are left out by
the reader's `steady`. Steps of one run share their machine and their responses' length, so standard
errors come from run means, not from single steps.

References
----------
.. [1] Li et al. 2026, arXiv:2608.29296, local model t_gen = d_0 + d_1 B_gen and t_train = gamma B_train.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

SHARE_PRIOR = (0.1, 0.85)
"""Prior of tau_0/(tau_0 + tau_1 R) at a single measured batch, uniform. Measured: .47 (GRPO, generation,
P=128) and .75 (PPO, B=256) of Li et al. 2026, .58 (MLPerf GRPO, B=256); see `data/measured`."""

RUN_SPREAD, RUN_SPREAD_DOF = 0.08, 15.0
"""Relative spread over runs of a run's mean step time where no repeat shows it, and its degrees of freedom: .072,
.077 and .086 over six runs each at three batches of MLPerf GRPO, `data/measured/mlperf_grpo_runs.csv`."""

PLATEAU_ROOM = 8.0
"""Largest plateau considered, in units of the throughput at the largest measured batch, for a law
whose slope is not positive."""


@dataclass(frozen=True, kw_only=True)
class StepTimeFit:
    """An affine law of the rollout-step time, fitted to steady steps.

    Parameters
    ----------
    update_time_intercept : float [s]
        tau_0; NaN if one batch was measured.
    update_time_slope : float [s/response]
        tau_1; NaN if one batch was measured.
    covariance : ndarray, (2, 2)
        Of (tau_0, tau_1), from run means.
    dof : float
        Degrees of freedom behind the covariance.
    rollout_batch, step_time, step_time_se : tuple of float [responses], [s], [s]
        Measured batches, their mean step times and standard errors of these.
    success : bool
        Both parameters are identified.
    message : str
    """

    update_time_intercept: float
    update_time_slope: float
    covariance: NDArray[np.float64]
    dof: float
    rollout_batch: tuple[float, ...]
    step_time: tuple[float, ...]
    step_time_se: tuple[float, ...]
    success: bool
    message: str

    def predict(self, rollout_batch: ArrayLike, *, level: float = 0.8) -> NDArray[np.float64]:
        """Mean step time and its confidence limits under the affine law alone.

        Parameters
        ----------
        rollout_batch : array_like, (batch,) [responses]
        level : float [1]

        Returns
        -------
        ndarray, (3, batch) [s]
            Estimate, lower and upper limit; NaN if the law is not identified.
        """
        r = np.atleast_1d(np.asarray(rollout_batch, dtype=np.float64))
        design = np.stack([np.ones_like(r), r], axis=1)
        mean = design @ np.array([self.update_time_intercept, self.update_time_slope])
        error = np.sqrt(np.einsum("ij,jk,ik->i", design, self.covariance, design))
        half = stdtrit(self.dof, (1 + level) / 2) * error if self.dof > 0 else np.full_like(mean, np.nan)
        return np.stack([mean, mean - half, mean + half])


def step_time(
    rollout_batch: ArrayLike, *, update_time_intercept: ArrayLike, update_time_slope: ArrayLike
) -> NDArray[np.float64]:
    """Time of a rollout step under the affine law, tau_0 + tau_1 R.

    Parameters
    ----------
    rollout_batch : array_like, any shape [responses]
    update_time_intercept : array_like, broadcastable [s]
    update_time_slope : array_like, broadcastable [s/response]

    Returns
    -------
    ndarray [s]
    """
    return np.asarray(update_time_intercept + np.asarray(update_time_slope) * np.asarray(rollout_batch))


def fit_step_time(rollout_batch: ArrayLike, run: ArrayLike, seconds: ArrayLike) -> StepTimeFit:
    """Fit the affine law to steady steps by least squares on run means.

    Parameters
    ----------
    rollout_batch : array_like, (step,) [responses]
        Kept responses of each steady step.
    run : array_like, (step,)
        Label of the run each step belongs to.
    seconds : array_like, (step,) [s]
        Step times; NaN is left out.

    Returns
    -------
    StepTimeFit
        With one measured batch `success` is false and the law is left to a prior (`draw_law`).

    Notes
    -----
    A batch's time is the mean over its steady steps, its error the relative spread of run means, pooled over
    batches. With two batches the line passes through both means and its covariance is that of the means;
    with three or more, scatter about the line is added to it.
    """
    r, t = np.asarray(rollout_batch, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    labels = np.asarray(run)
    good = np.isfinite(t) & (t > 0)
    r, t, labels = r[good], t[good], labels[good]
    batches = np.unique(r)
    if not batches.size:
        return _unfitted((), (), (), "no steady step has a time; a log with step times would fit the law")
    means = np.array([t[r == b].mean() for b in batches])
    of_runs = [np.array([t[(r == b) & (labels == n)].mean() for n in np.unique(labels[r == b])]) for b in batches]
    spread, dof = _run_spread(of_runs)
    return fit_means(batches, means, spread * means, dof=dof)


def _run_spread(of_runs: list[NDArray[np.float64]]) -> tuple[NDArray[np.float64], float]:
    """Relative standard error of each batch's mean, from the spread over runs, and its degrees of freedom.

    The spread is the one pooled over batches, or the batch's own where that is larger; without repeats it is
    `RUN_SPREAD`. Single steps do not show it: they share their run's machine and lengths.
    """
    size = np.array([v.size for v in of_runs])
    own = np.array([v.var(ddof=1) / v.mean() ** 2 if v.size > 1 else 0.0 for v in of_runs])
    dof = float(np.sum(size - 1))
    pooled = float(np.sum(own * (size - 1))) / dof if dof else RUN_SPREAD**2
    floor = 1e-4
    return np.maximum(np.sqrt(np.maximum(own, pooled) / size), floor), dof or RUN_SPREAD_DOF


def fit_means(rollout_batch: ArrayLike, step_time: ArrayLike, step_time_se: ArrayLike, *, dof: float) -> StepTimeFit:
    """Fit the affine law to mean step times with known standard errors.

    Parameters
    ----------
    rollout_batch : array_like, (batch,) [responses]
        Distinct, increasing.
    step_time, step_time_se : array_like, (batch,) [s]
        Any common unit will do if only throughput ratios are wanted.
    dof : float
        Degrees of freedom behind the standard errors.

    Returns
    -------
    StepTimeFit
    """
    batches, mean, error = (np.asarray(v, dtype=np.float64) for v in (rollout_batch, step_time, step_time_se))
    measured = (tuple(batches.tolist()), tuple(mean.tolist()), tuple(error.tolist()))
    if batches.size == 1:
        return _unfitted(
            *measured,
            f"one rollout batch ({batches[0]:g} responses) cannot separate shared from per-response time; "
            f"a few steps at {2 * batches[0]:g} would",
        )
    design = np.stack([np.ones_like(batches), batches], axis=1)
    weight = 1 / error**2
    gram = design.T @ (weight[:, None] * design)
    estimate = np.linalg.solve(gram, design.T @ (weight * mean))
    covariance: NDArray[np.float64] = np.asarray(np.linalg.inv(gram), dtype=np.float64)
    if batches.size > 2:
        misfit = float(np.sum(weight * (mean - design @ estimate) ** 2) / (batches.size - 2))
        covariance = covariance * max(1.0, misfit)
        # Where the scatter about the line decides, it has the line's few degrees of freedom.
        dof = dof if misfit <= 1 else float(batches.size - 2)
    return StepTimeFit(
        update_time_intercept=float(estimate[0]),
        update_time_slope=float(estimate[1]),
        covariance=covariance,
        dof=max(float(dof), 1.0),
        rollout_batch=measured[0],
        step_time=measured[1],
        step_time_se=measured[2],
        success=True,
        message=f"affine law through {batches.size} rollout batches",
    )


def draw_law(
    fit: StepTimeFit, *, draws: int, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Draws of the law with its unknown plateau.

    Parameters
    ----------
    fit : StepTimeFit
        With at least one measured batch.
    draws : int
    rng : numpy.random.Generator

    Returns
    -------
    update_time_intercept, update_time_slope, throughput_max : ndarray, (draw,) [s], [s/response], [responses/s]
        tau_0 >= 0 and tau_1 > 0 by rejection (Student errors). q_max is log-uniform between the
        throughput at the largest measured batch and the smaller of 1/tau_1 and `PLATEAU_ROOM` times
        it: nothing measured says where the plateau lies.

    Notes
    -----
    With one measured batch the share tau_0/t is drawn from `SHARE_PRIOR`.
    """
    largest = fit.rollout_batch[-1]
    if fit.success:
        tau0, tau1 = _draw_student(fit, draws=draws, rng=rng)
    else:
        dof = 2.0
        mean = fit.step_time[0] + fit.step_time_se[0] * rng.standard_t(dof, size=draws)
        total = np.clip(mean, 0.5 * fit.step_time[0], 2 * fit.step_time[0])
        share = rng.uniform(*SHARE_PRIOR, size=draws)
        tau0, tau1 = share * total, (1 - share) * total / largest
    measured = largest / (tau0 + tau1 * largest)
    limit = np.minimum(1 / tau1, PLATEAU_ROOM * measured)
    return tau0, tau1, measured * (limit / measured) ** rng.uniform(size=draws)


def _draw_student(
    fit: StepTimeFit, *, draws: int, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    centre = np.array([fit.update_time_intercept, fit.update_time_slope])
    root = np.linalg.cholesky(fit.covariance + 1e-18 * np.diag(centre**2 + 1e-300))
    # A law with tau_0 < 0 or tau_1 <= 0 is no step time; the nearest admissible point stands in
    # for draws that rejection cannot replace.
    kept = np.empty((0, 2))
    for _ in range(64):
        z = rng.standard_normal((draws, 2)) / np.sqrt(rng.chisquare(fit.dof, size=(draws, 1)) / fit.dof)
        candidate = centre + z @ root.T
        kept = np.concatenate([kept, candidate[(candidate[:, 0] >= 0) & (candidate[:, 1] > 0)]])
        if len(kept) >= draws:
            return kept[:draws, 0], kept[:draws, 1]
    mean = float(np.mean(fit.step_time))
    floor = 1e-3 * mean / fit.rollout_batch[-1]
    fill = np.maximum(centre, [0.0, floor])[None, :].repeat(draws - len(kept), axis=0)
    kept = np.concatenate([kept, fill])
    return kept[:, 0], kept[:, 1]


def _unfitted(
    batches: tuple[float, ...], means: tuple[float, ...], errors: tuple[float, ...], message: str
) -> StepTimeFit:
    return StepTimeFit(
        update_time_intercept=float("nan"),
        update_time_slope=float("nan"),
        covariance=np.full((2, 2), np.nan),
        dof=0.0,
        rollout_batch=batches,
        step_time=means,
        step_time_se=errors,
        success=False,
        message=message,
    )
