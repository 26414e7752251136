r"""Learning curves: what they look like, how a batch stretches them, when a run reached its target.

The reference recipe's score is a function of the responses it has used, J_ref(u) (`families`, fitted in `fit`).
Every other recipe runs along the same curve at its own pace (`warp`),

    dN/du = r(u; B),       J_B(N) = J_ref(N_B^-1(N)),       r_N(J*) = N_B(u*)/u*

with r the law of `sample_cost` at the noise scale that holds at progress u. A constant noise scale gives one r_N for
all targets; one that grows as the gradient shrinks gives an r_N that depends on the target, and a batch that should
grow along the run (`schedule`), by

    T = int r (tau_0/B + tau_1) du,       B(u) = sqrt((tau_0/tau_1) B_noise(u))    for tuned rates, drift.

What a run's log says about N* is an interval between evaluations (`crossings`), and runs with evaluation noise,
a grid and a spread between them can be made (`simulate`) to see what reading them does to an answer.

Crossing a target lives here once: `measure` and the fits use `crossing`.

References
----------
.. [1] Li et al. 2026, arXiv:2608.29296 (common validation target).
.. [2] McCandlish et al. 2018, arXiv:1812.06162, appendix D (integrals along a run, adaptive batch).
.. [3] Khatri et al. 2025, arXiv:2510.13786 (sigmoid curves of RL).
"""

from __future__ import annotations

from batchsim.learning.curve.crossings import (
    CENSORING,
    KINDS,
    Crossing,
    crossing,
    first_crossing_probability,
    interpolated_crossing,
    rising_curve,
)
from batchsim.learning.curve.families import FAMILIES, Curve, responses_at, score_at, slope_at
from batchsim.learning.curve.fit import CurveFit, fit_curve, fit_families, holdout_error
from batchsim.learning.curve.schedule import (
    Steps,
    adaptive_batch,
    adaptive_saving,
    along_schedule,
    best_schedule,
    steps_in_responses,
)
from batchsim.learning.curve.simulate import simulate_run, simulate_runs
from batchsim.learning.curve.warp import (
    at_rate,
    local_cost,
    lr_fraction_along,
    noise_scale_along,
    noise_scale_from_signal,
    progress_at,
    relative_progress,
    responses_used,
    sample_cost_to_target,
    signal_along,
    warped_score,
)

__all__ = [
    "CENSORING",
    "FAMILIES",
    "KINDS",
    "Crossing",
    "Curve",
    "CurveFit",
    "Steps",
    "adaptive_batch",
    "adaptive_saving",
    "along_schedule",
    "at_rate",
    "best_schedule",
    "crossing",
    "first_crossing_probability",
    "fit_curve",
    "fit_families",
    "holdout_error",
    "interpolated_crossing",
    "local_cost",
    "lr_fraction_along",
    "noise_scale_along",
    "noise_scale_from_signal",
    "progress_at",
    "relative_progress",
    "responses_at",
    "responses_used",
    "rising_curve",
    "sample_cost_to_target",
    "score_at",
    "signal_along",
    "simulate_run",
    "simulate_runs",
    "slope_at",
    "steps_in_responses",
    "warped_score",
]
