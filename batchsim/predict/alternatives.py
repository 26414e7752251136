r"""What else the draws say: the regimes of Li et al., how wide the plateau is, and two ways out of one constant batch.

Regimes. C_g is the batch where generation reaches 90 % of its plateau, C_N the one where N* has risen by 10 %. Below
both a larger batch is faster for little; above both it costs samples for no speed. Between them

    C_g < C_N    speed is spent, samples are not: T hardly moves
    C_N < C_g    each doubling buys speed with samples: T has its minimum here

Both orders occur, and the draws say how probable each is. C_g counts launched responses and is brought to train
batches.

Plateau. Batches whose T is within 5 % of the least, from T/T_0 of the candidates, interpolated (monotone cubic in
logarithms) in every draw.

Decoupled concurrency. Generation may run at the concurrency of a larger batch while each update keeps B_0. Responses in
flight beyond one batch grow old by L = L_0 + M g (R'/R_0 - 1) updates, g the recipe's gen_ratio (Little's law), which
costs the factor (1 + a L^q)/(1 + a L_0^q) of `mechanism.staleness_factor`, and N* is otherwise that of B_0:

    T/T_0 = staleness/r_q(R'),      a as uncertain as in `calibrate.lag`.

This is the most that decoupling can give: r_q of the larger batch is granted although what a step costs once (update,
synchronisation) then comes as often as before.

A batch that grows. The noise scale grows as the gradient falls along the reference's curve (`learning.curve`), and the
fastest batch with it; the best schedule over the candidates against the best constant one, at the middle of the draws.

References
----------
.. [1] Li et al. 2026, arXiv:2608.29296, figures 8-10 (two critical batches, three regimes).
.. [2] McCandlish et al. 2018, arXiv:1812.06162, appendix D (adaptive batch).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from batchsim.calibrate import Calibration
from batchsim.calibrate.lag import draw_cost
from batchsim.calibrate.observations import rate_ceiling
from batchsim.errors import InputError
from batchsim.learning.curve import best_schedule, noise_scale_along
from batchsim.learning.lr_rule import LRRule
from batchsim.learning.mechanism import STALENESS, rollout_lag, staleness_factor
from batchsim.time_to_target import NEAR_BEST

Floats = NDArray[np.float64]

FINE = 16
"""Points per octave between which the edge of a plateau is told."""
SHORTEST = 1e-3
"""Least share of a plan in which a batch of a schedule is used to be named."""


def regimes(ds: xr.Dataset, calibration: Calibration) -> dict[str, Any]:
    """Order of the two critical batches and what lies below, between and above them.

    Parameters
    ----------
    ds : xarray.Dataset
        Of the forecast, with critical_train_batch and critical_gen_batch over (draw,).
    calibration : Calibration

    Returns
    -------
    dict
        `p_generation_first` (None where a critical batch does not exist), `order` ('generation first', 'samples
        first' or 'undecided', from .9) and `rows` of `regime`, `from`, `to` [responses per update], limits of None
        where there are none; at the medians.
    """
    recipe, stages = calibration.recipe, calibration.stages
    launched = float(stages.get("gen_ratio", recipe.gen_ratio) / stages.get("kept_share", 1.0))
    per_update = recipe.epochs / recipe.updates_per_rollout / launched
    samples, speed = ds["critical_train_batch"].values, ds["critical_gen_batch"].values * per_update
    if np.isnan(samples).any() or not np.isfinite(np.median(speed)) or calibration.open_above:
        return {"p_generation_first": None, "order": None, "rows": []}
    p = float(np.mean(speed < samples))
    order = "generation first" if p >= 0.9 else "samples first" if p <= 0.1 else "undecided"
    c_n, c_g = float(np.median(samples)), float(np.median(speed))
    low, high = min(c_n, c_g), max(c_n, c_g)
    between = "speed is spent, samples are not" if c_g < c_n else "speed is bought with samples"
    rows: list[dict[str, Any]] = [
        {"regime": "faster for little", "from": None, "to": low},
        {"regime": between, "from": low, "to": high},
        {"regime": "samples for no speed", "from": high, "to": None},
    ]
    return {"p_generation_first": p, "order": order, "rows": [_finite(r) for r in rows]}


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}


def plateau(ds: xr.Dataset, *, level: float) -> dict[str, Any] | None:
    """Batches within 5 % of the least T, and how many octaves they span.

    Parameters
    ----------
    ds : xarray.Dataset
        With time_ratio over (draw, train_batch).
    level : float [1]

    Returns
    -------
    dict or None
        `train_batch` [low, high] of the median T, `octaves` of it, `octaves_interval` over the draws, and `at_edge`,
        whether a candidate beyond those could widen it. None with fewer than three finite candidates.
    """
    from scipy.interpolate import PchipInterpolator

    ratio = ds["time_ratio"].values
    keep = np.isfinite(ratio).all(axis=0)
    if keep.sum() < 3:
        return None
    u = np.log2(ds["train_batch"].values[keep])
    fine = np.linspace(u[0], u[-1], max(2, round(FINE * (u[-1] - u[0]))) + 1)
    log_t = PchipInterpolator(u, np.log(ratio[:, keep]), axis=1)(fine)
    middle = PchipInterpolator(u, np.log(np.median(ratio[:, keep], axis=0)))(fine)
    low, high = _span(fine, middle[None, :])
    each = _span(fine, log_t)
    tail = (1 - level) / 2
    widths = np.quantile(each[1] - each[0], [tail, 1 - tail])
    return {
        "train_batch": [float(2 ** low[0]), float(2 ** high[0])],
        "octaves": float(high[0] - low[0]),
        "octaves_interval": [float(w) for w in widths],
        "at_edge": bool(low[0] == fine[0] or high[0] == fine[-1]),
    }


def _span(u: Floats, log_t: Floats) -> tuple[Floats, Floats]:
    """Ends of the stretch around the minimum within 5 % of it, (row,) twice."""
    near = log_t <= log_t.min(axis=1, keepdims=True) + math.log(NEAR_BEST)
    at = np.argmin(log_t, axis=1)
    i = np.arange(u.size)[None, :]
    far_below = np.where(~near & (i < at[:, None]), i, -1).max(axis=1)
    far_above = np.where(~near & (i > at[:, None]), i, u.size).min(axis=1)
    return u[far_below + 1], u[far_above - 1]


def decoupled(ds: xr.Dataset, calibration: Calibration, *, level: float, seed: int) -> list[dict[str, Any]]:
    """Generation at the concurrency of every larger candidate, updates at the reference batch.

    Parameters
    ----------
    ds : xarray.Dataset
    calibration : Calibration
    level : float [1]
    seed : int
        Of the cost of staleness, where no log states an age.

    Returns
    -------
    list of dict
        `train_batch` whose concurrency it is, `lag` [updates], `staleness_factor` (at the median cost), `time_ratio`
        (median T/T_0, at best) and its `interval`.
    """
    recipe = calibration.recipe
    b0 = float(recipe.train_batch)
    usual = float(rollout_lag(updates_per_rollout=recipe.updates_per_rollout, in_flight=recipe.gen_ratio - 1))
    # Logs may say more of the age than the recipe does.
    logged = 0.0 if calibration.lag is None else max(calibration.lag.reference - usual, 0.0)
    if calibration.lag is None:
        cost = draw_cost(calibration.noise_scale.size, np.random.default_rng([seed, 3]))
        middle_cost = STALENESS[0]
    else:
        cost, middle_cost = calibration.lag.cost, float(np.median(calibration.lag.cost))
    rows = []
    tail = (1 - level) / 2
    for b in ds["train_batch"].values[ds["train_batch"].values > b0].tolist():
        in_flight = recipe.gen_ratio * b / b0 - 1
        lag = float(rollout_lag(updates_per_rollout=recipe.updates_per_rollout, in_flight=in_flight)) + logged
        factor, late = (
            staleness_factor(lag, reference_lag=usual + logged, constants=(a, STALENESS[1]))
            for a in (middle_cost, cost)
        )
        drawn = late / ds["throughput_ratio"].sel(train_batch=b).values
        low, middle, high = (float(v) for v in np.quantile(drawn, [tail, 0.5, 1 - tail], method="nearest"))
        rows.append(
            {
                "train_batch": b,
                "lag": lag,
                "staleness_factor": float(factor),
                "time_ratio": middle,
                "interval": [low, high],
            }
        )
    return rows


def growing_batch(ds: xr.Dataset, calibration: Calibration, rule: LRRule, warnings: list[str]) -> dict[str, Any] | None:
    """The best schedule of batches among the candidates, at the middle of the draws.

    Parameters
    ----------
    ds : xarray.Dataset
    calibration : Calibration
        With the reference's curve.
    rule : str or callable
    warnings : list of str
        Receives why there is none.

    Returns
    -------
    dict or None
        `gain` (T of the best constant batch over that of the schedule, at least 1), `constant_batch`, and `steps` of
        `progress` (share of the way to the target, in responses of the reference, from which) and `train_batch`.
    """
    stages, curve, n0 = calibration.stages, calibration.reference_curve, calibration.responses_to_target
    if n0 is None or curve is None or "gen_curve" in stages or "train_time_per_response" in stages:
        warnings.append(
            "what a batch that grows would gain needs N* of the reference, an identified learning curve of its runs "
            "and a fitted step time; one of them is missing"
        )
        return None
    if calibration.open_above:
        warnings.append("the noise scale has no upper limit, so a batch that grows with it has none either")
        return None
    recipe = calibration.recipe
    middle = {n: float(np.median(getattr(calibration, n))) for n in ("noise_scale", "lr_fraction", "penalty_shape")}
    shape, bend = float(np.median(calibration.snr_shape)), float(np.median(calibration.curvature_ratio))
    end, b0 = float(np.median(n0)), float(recipe.train_batch)

    def noise(u: Floats) -> Floats:
        # Norms are means over the runs up to the target, so the noise scale is that of half the way.
        return noise_scale_along(
            np.maximum(u, SHORTEST * end),
            curve=curve,
            noise_scale=middle["noise_scale"],
            measured_at=end / 2,
            reference_batch=b0,
            lr_fraction=middle["lr_fraction"],
            snr_shape=shape,
            optimizer=recipe.optimizer,
            penalty_shape=middle["penalty_shape"],
        )

    scale = recipe.updates_per_rollout / recipe.epochs
    try:
        found = best_schedule(
            progress_to_target=end,
            reference_batch=b0,
            noise_scale=noise,
            update_time_intercept=float(np.median(stages["gen_time_intercept"])) / scale,
            update_time_slope=float(np.median(stages["gen_time_slope"])),
            throughput_max=float(np.median(stages["gen_throughput_max"])),
            lr_fraction=middle["lr_fraction"],
            candidates=ds["train_batch"].values.tolist(),
            snr_shape=shape,
            lr_rule=rule,
            ceiling=rate_ceiling(recipe, calibration.plan.learning),
            curvature_ratio=bend,
            penalty_shape=middle["penalty_shape"],
            optimizer=recipe.optimizer,
        )
    except InputError as error:
        warnings.append(f"no schedule of batches: {error.message}")
        return None
    batch, share = found["train_batch"].values, found["progress"].values / end
    # The first point is where a curve may start flat; what is used for no time is no step.
    starts = [1, *(i for i in range(2, batch.size) if batch[i] != batch[i - 1])]
    return {
        "gain": float(found["schedule_gain"]),
        "constant_batch": float(found["constant_batch"]),
        "steps": [{"progress": 0.0 if i == 1 else float(share[i]), "train_batch": float(batch[i])} for i in starts],
    }
