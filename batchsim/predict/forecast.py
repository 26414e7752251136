r"""r_N, q and T over (draw, train_batch) from calibrated draws.

    log r_N(B) = law(B; draw) + staleness (`calibrate.lag`) + the law's error given the arms (`calibrate.discrepancy`)
    T/T_0 = r_N/r_q,    N* = N*_0 r_N,    T = N*/q

Every draw carries one noise scale, shape, learning-rate fraction, step-time law and plateau through all candidates, so
what they share never counts as a difference between them. `sample_cost_ratio_floor` is r_N at a noise scale without
an upper limit, through the same arms.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from batchsim.calibrate import Calibration
from batchsim.calibrate.discrepancy import bend, gaps
from batchsim.calibrate.learning import log_law
from batchsim.calibrate.limits import binding_limits, critical_gen_batches
from batchsim.calibrate.observations import rate_ceiling
from batchsim.learning.lr_rule import LRRule
from batchsim.learning.mechanism import few_updates_factor
from batchsim.learning.sample_cost import critical_train_batch, rates_at, sample_cost_ratio
from batchsim.measure import BOUNDS
from batchsim.plan import Learning
from batchsim.system.pipeline import throughput

FREE = ("snr_shape", "lr_fraction", "penalty_shape", "curvature_ratio")
INFINITE_NOISE = 1e12
"""Noise scale [responses] that stands for "no upper limit"; the limit of r_N is reached long before it."""

Floats = NDArray[np.float64]


def forecast(
    calibration: Calibration, candidates: Floats, rule: LRRule, learning: Learning, *, level: float, seed: int
) -> xr.Dataset:
    """r_N, q and T over (draw, train_batch)."""
    recipe = calibration.recipe
    draws = calibration.noise_scale.size
    law: dict[str, Any] = {
        "reference_batch": float(recipe.train_batch),
        "lr_rule": rule,
        "ceiling": rate_ceiling(recipe, learning),
        "optimizer": recipe.optimizer,
    }
    column: dict[str, Any] = {name: getattr(calibration, name)[:, None] for name in FREE}
    normal = np.random.default_rng([seed, 1]).standard_normal((draws, gaps(calibration.seen)))
    r_n, floor = (
        sample_cost_ratio(candidates, noise_scale=noise, **column, **law)
        * np.exp(_bend(calibration, candidates, noise, normal))
        for noise in (calibration.noise_scale[:, None], np.full((draws, 1), INFINITE_NOISE))
    )
    if calibration.lag is not None:
        late = np.exp(calibration.lag.log_factor(candidates / float(recipe.train_batch)))
        r_n, floor = r_n * late, floor * late
    memory = _few_updates(calibration, learning, candidates, r_n)
    r_n, floor = r_n * memory, floor * memory
    rates = rates_at(candidates, noise_scale=calibration.noise_scale[:, None], **column, **law)
    scale = recipe.updates_per_rollout / recipe.epochs
    rollout = candidates * scale
    stages = {
        k: v[:, None] if isinstance(v, np.ndarray) else v for k, v in calibration.stages.items() if k != "gen_limits"
    }
    q = np.broadcast_to(throughput(rollout, **stages), (draws, candidates.size))
    r_q = q / throughput(float(recipe.rollout_batch), **stages)
    ratio = r_n / r_q
    n, t = _absolute(calibration, r_n, q, ratio)
    absolute = calibration.absolute
    per_draw = ("draw", "train_batch")
    data = {
        "sample_cost_ratio": (per_draw, r_n),
        "sample_cost_ratio_floor": (per_draw, np.broadcast_to(floor, r_n.shape)),
        "throughput_ratio": (per_draw, r_q),
        "time_ratio": (per_draw, ratio),
        "throughput": (per_draw, q if absolute else np.full_like(r_n, np.nan)),
        "step_time": (per_draw, rollout / q if absolute else np.full_like(r_n, np.nan)),
        "responses_to_target": (per_draw, n),
        "time_to_target": (per_draw, t),
        "step_time_law": (("train_batch", "bound"), _law_step_time(calibration, rollout, level)),
        "learning_rate_ratio": (per_draw, np.broadcast_to(rates, r_n.shape)),
        "learning_rate": (
            "train_batch",
            np.median(rates, axis=0) * (recipe.learning_rate or np.nan)
            if rates.ndim > 1
            else rates * (recipe.learning_rate or np.nan),
        ),
        "rollout_batch": ("train_batch", rollout),
        "prompts": ("train_batch", rollout / recipe.group_size),
        "binding_limit": ("train_batch", binding_limits(calibration, rollout)),
        "noise_scale": ("draw", calibration.noise_scale),
        **{name: ("draw", getattr(calibration, name)) for name in FREE},
        "critical_train_batch": (
            "draw",
            critical_train_batch(
                noise_scale=calibration.noise_scale,
                **{name: getattr(calibration, name) for name in FREE},
                **law,
            ),
        ),
        "critical_gen_batch": ("draw", critical_gen_batches(calibration)),
    }
    return xr.Dataset(data, coords={"train_batch": candidates, "bound": list(BOUNDS)})


def _bend(calibration: Calibration, candidates: Floats, noise_scale: Floats, normal: Floats) -> Floats:
    """The law's error at candidates given what it misses at the arms, (draw, train_batch), for given noise scales."""
    recipe, seen = calibration.recipe, calibration.seen
    law = {name: getattr(calibration, name) for name in FREE} | {"noise_scale": noise_scale[:, 0]}
    misses = np.empty((normal.shape[0], len(seen)))
    for i, o in enumerate(seen):
        misses[:, i] = calibration.log_seen[:, i] - log_law(o, recipe, lag=calibration.lag, **law)
    return bend(
        candidates,
        seen=seen,
        misses=misses,
        reference_batch=float(recipe.train_batch),
        law_spread=calibration.law_spread,
        normal=normal,
    )


def _few_updates(calibration: Calibration, learning: Learning, candidates: Floats, r_n: Floats) -> Floats:
    """Factor on r_N for momentum's memory, where the plan asks for it and N* of the reference is known."""
    n0 = calibration.responses_to_target
    if not learning.few_updates or n0 is None:
        return np.ones_like(r_n)
    epochs = calibration.recipe.epochs
    reference = epochs * n0[:, None] / calibration.recipe.train_batch
    updates = epochs * n0[:, None] * r_n / candidates
    return few_updates_factor(updates, reference_updates=reference, beta1=learning.beta1)


def _absolute(calibration: Calibration, r_n: Floats, q: Floats, ratio: Floats) -> tuple[Floats, Floats]:
    """N* and T over (draw, train_batch), NaN where the reference's are unknown."""
    unknown = np.full_like(r_n, np.nan)
    n = calibration.responses_to_target[:, None] * r_n if calibration.responses_to_target is not None else unknown
    if calibration.time_to_target is not None:
        return n, calibration.time_to_target[:, None] * ratio
    return n, n / q if calibration.absolute else unknown


def _law_step_time(calibration: Calibration, rollout: Floats, level: float) -> Floats:
    """Step time of the fitted law alone, without a plateau: (train_batch, bound)."""
    fit = calibration.step_time
    if fit is None or not fit.success or not calibration.absolute:
        return np.full((rollout.size, len(BOUNDS)), np.nan)
    estimate, low, high = fit.predict(rollout, level=level)
    return np.stack([low, estimate, high], axis=1)
