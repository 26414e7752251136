r"""THE chain: what is known in, time to target over candidate batches out.

    plan and logs -> calibrate (parameters with draws) -> r_N and q over candidates
                  -> T/T_0 = r_N/r_q, T = N*_0 r_N/q -> verdicts, range, star, next run

Every draw carries one noise scale, shape, learning-rate fraction, step-time law and plateau through
all candidates, so what they share never counts as a difference between them. Candidates are the
reference times 2^k, k = -2 ... 6, at the reference's group size, unless stated.

Where N*_0 is not known, absolute N* and T do not exist and stay NaN; the ratios remain. Where the norms
give the noise scale no upper limit, r_N is an upper bound: a batch can be called winning and not losing,
and range and critical batch are "at least" statements.

References
----------
.. [1] Li et al. 2026, arXiv:2608.29296, figures 8-10.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.special import ndtri

from batchsim.calibrate import Calibration, calibrate
from batchsim.calibrate.discrepancy import bend, gaps
from batchsim.calibrate.learning import log_law
from batchsim.calibrate.limits import binding_limits, critical_gen_batches, critical_gen_limit
from batchsim.calibrate.observations import rate_ceiling
from batchsim.calibrate.specified import SPECIFIED, specified
from batchsim.calibrate.what_if import ridge_batches, what_if
from batchsim.criterion import cost, gpu_hours, verdict
from batchsim.errors import InputError
from batchsim.learning.lr_rule import LRRule, rule_name
from batchsim.learning.mechanism import few_updates_factor
from batchsim.learning.sample_cost import critical_train_batch, rates_at, sample_cost_ratio
from batchsim.measure import BOUNDS, LEVEL, RULE_TOLERANCE, measure, noise_scale_record
from batchsim.plan import Learning, Plan
from batchsim.recommend import Recommendation, recommend
from batchsim.system.pipeline import throughput
from batchsim.variables import set_attrs

DOUBLINGS = range(-2, 7)
MAX_CANDIDATES = 64
LARGEST = 1e9
"""Largest candidate batch [responses], number of GPUs and price."""
FREE = ("snr_shape", "lr_fraction", "penalty_shape", "curvature_ratio")
INFINITE_NOISE = 1e12
"""Noise scale [responses] that stands for "no upper limit"; the limit of r_N is reached long before it."""

Floats = NDArray[np.float64]


def predict(
    plan_or_runs: Plan | xr.DataTree,
    *,
    plan: Plan | None = None,
    runs: xr.DataTree | None = None,
    target: float | None = None,
    metric: str | None = None,
    pilot_batches: Sequence[float] = (),
    batches: Sequence[float] = (),
    lr_rule: LRRule | None = None,
    gpus: float | None = None,
    price: float | None = None,
    level: float = LEVEL,
    draws: int = 2000,
    seed: int = 0,
) -> xr.Dataset:
    """Predict the time to target over candidate batches.

    Parameters
    ----------
    plan_or_runs : Plan or xarray.DataTree
        A plan (`plan.read_plan`), or measured runs (`logs.read_logs`).
    plan : Plan or None
        With runs: what else is known.
    runs : xarray.DataTree or None
        With a plan: its measured runs.
    target : float or None [1]
    metric : str or None
        As in `measure.measure`; the plan's own if None.
    pilot_batches : sequence of float [responses]
        Train batches to calibrate on; the other measured batches are held out. Empty means all.
    batches : sequence of float [responses]
        Candidate train batches; the plan's, else the reference times 2^k.
    lr_rule : str, callable or None
        The plan's, else the one the measured arms follow, else 'sqrt'.
    gpus : float or None [GPU]
    price : float or None [USD/(GPU*h)]
        For GPU-hours and cost; the plan's own if None.
    level : float in (0, 1) [1]
        Central probability of intervals.
    draws : int
    seed : int

    Returns
    -------
    xarray.Dataset
        Over (draw, train_batch). Attributes: reference_batch, group_size, lr_rule, level, seed, target, metric,
        effective_range, star, next_run, at_least, sources, noise_scale_records, summary, measured (of
        `measure`, or None), calibrated_on, gpus, price, critical_gen_limit, what_if (see
        `calibrate.what_if.what_if`), ridge_batch (of `calibrate.what_if.ridge_batches`, or None), warnings.

    Raises
    ------
    InputError
        For inputs that cannot be used; see `calibrate.calibrate` and `measure.measure`.
    """
    if isinstance(plan_or_runs, Plan):
        plan = plan_or_runs
    else:
        runs = plan_or_runs
    plan = plan or Plan()
    if not 0 < level < 1:
        raise InputError(f"level is {level:g}, outside (0, 1)", remedy="0.8 is a central 80 % interval")
    target = plan.target.score if target is None else target
    metric = (plan.target.metric or None) if metric is None else metric
    if target is not None and not math.isfinite(target):
        raise InputError(f"target is {target}, not a finite score")
    pilots = _pilots(runs, pilot_batches or plan.logs.pilot_batches)
    calibration = calibrate(
        pilots, plan, target=target, metric=metric, lr_rule=lr_rule, draws=draws, level=level, seed=seed
    )
    rule = lr_rule if lr_rule is not None else calibration.recipe.lr_rule
    planned = plan.recipe.batches if plan.recipe is not None else ()
    candidates, too_small = _trainable(calibration, _candidates(calibration.recipe, batches or planned))
    ds = _forecast(calibration, candidates, rule, plan.learning, level=level, seed=seed)
    gpus, price = _budget(plan, gpus, price)
    if gpus is not None:
        ds["gpu_hours"] = (("draw", "train_batch"), gpu_hours(seconds=ds["time_to_target"].values, gpus=gpus))
        if price is not None:
            # A diverging draw needs infinite GPU-hours, and a free one costs nothing all the same.
            hours = ds["gpu_hours"].values if price > 0 else np.zeros_like(ds["gpu_hours"].values)
            ds["cost"] = (("draw", "train_batch"), cost(gpu_hours=hours, price=price))
    measured = (
        measure(runs, target=target, metric=metric, reference=calibration.recipe, level=level, seed=seed)
        if runs is not None
        else None
    )
    known = _measured_candidates(measured, candidates) if measured is not None else None
    answer = recommend(ds["time_ratio"].values, measured=known)
    attrs = _attributes(ds, calibration, answer, rule, level=level, seed=seed)
    if measured is not None:
        target, metric = measured.attrs["target"], measured.attrs["metric"]
    attrs |= {"target": target, "metric": metric, "measured": measured, "gpus": gpus, "price": price}
    attrs["calibrated_on"] = _train_batches(pilots)
    attrs |= _what_if(plan, calibration, attrs, seed)
    attrs["warnings"] += too_small + _warnings(
        ds,
        calibration,
        attrs["lr_rule"],
        attrs["calibrated_on"],
        _train_batches(runs),
        few_updates=plan.learning.few_updates,
    )
    set_attrs(ds)
    ds.attrs = attrs
    return ds


def _what_if(plan: Plan, calibration: Calibration, attrs: dict[str, Any], seed: int) -> dict[str, Any]:
    """What other GPUs and splits would change at the star, or the reference, and where decode turns compute-bound.

    Nothing where the system is measured.
    """
    if calibration.sources.get("step_time") != SPECIFIED:
        return {"what_if": [], "ridge_batch": None}
    recipe = calibration.recipe
    batch = attrs["star"] or attrs["reference_batch"]
    prompts = max(1, round(batch * recipe.updates_per_rollout / recipe.epochs / recipe.group_size))
    system = specified(plan, recipe)
    return {
        "what_if": what_if(system, prompts * recipe.group_size, seed=seed),
        "ridge_batch": ridge_batches(system),
    }


def _pilots(runs: xr.DataTree | None, pilot_batches: Sequence[float]) -> xr.DataTree | None:
    """The runs to calibrate on."""
    if runs is None and pilot_batches:
        raise InputError("pilot batches are named and there is no log", remedy="name the logs, or drop --pilot")
    if runs is None or not pilot_batches:
        return runs
    wanted = {float(b) for b in pilot_batches}
    held = {float(node.attrs["train_batch"]) for node in runs.children.values()}
    if wanted - held:
        raise InputError(
            f"no run has train batch {', '.join(f'{b:g}' for b in sorted(wanted - held))}",
            remedy=f"measured: {', '.join(f'{b:g}' for b in sorted(held))} responses per update",
        )
    kept = {name: node.to_dataset() for name, node in runs.children.items() if node.attrs["train_batch"] in wanted}
    pilots = xr.DataTree.from_dict(kept)
    pilots.attrs = dict(runs.attrs)
    return pilots


def _budget(plan: Plan, gpus: float | None, price: float | None) -> tuple[float | None, float | None]:
    """GPUs and price, the plan's own where none are given."""
    given_price = price
    gpus = gpus if gpus is not None else plan.gpu.count
    price = price if price is not None else plan.gpu.price
    for name, value, least in (("gpus", gpus, 1), ("price", price, 0)):
        if value is not None and not least <= value <= LARGEST:
            raise InputError(f"{name} is {value:g}, outside {least} to {LARGEST:g}")
    if given_price is not None and gpus is None:
        raise InputError(f"a price of {given_price:g} USD needs a number of GPUs", remedy="give --gpus, or [gpu] count")
    return gpus, price


def _train_batches(runs: xr.DataTree | None) -> list[float]:
    return sorted({float(node.attrs["train_batch"]) for node in runs.children.values()}) if runs is not None else []


def _candidates(recipe: Any, batches: Sequence[float]) -> Floats:
    """Train batches that are whole numbers of prompts, in increasing order."""
    per_prompt = recipe.group_size * recipe.epochs / recipe.updates_per_rollout
    if not batches:
        prompts = np.array([recipe.prompts * 2.0**k for k in DOUBLINGS])
        return np.asarray(prompts[(prompts >= 1) & (prompts % 1 == 0)] * per_prompt)
    if len(batches) > MAX_CANDIDATES:
        raise InputError(f"{len(batches)} candidate batches, and {MAX_CANDIDATES} are the most")
    chosen = np.unique(np.asarray(batches, dtype=np.float64))
    for b in chosen:
        prompts = b / per_prompt
        if not 0 < b <= LARGEST:
            raise InputError(
                f"candidate batch {b:g} is not a positive number of responses up to {LARGEST:g}",
                remedy=f"the smallest is {per_prompt:g}",
            )
        if abs(prompts - round(prompts)) > 1e-9 or b % 1:
            raise InputError(
                f"candidate batch {b:g} is not a whole number of prompts at {per_prompt:g} responses per prompt",
                remedy=f"the nearest is {max(1, round(prompts)) * per_prompt:g}",
            )
    return chosen


def _trainable(calibration: Calibration, candidates: Floats) -> tuple[Floats, list[str]]:
    """Candidates that a trainer of specifications can train, and a sentence on those that it cannot."""
    stages, recipe = calibration.stages, calibration.recipe
    if "train_curve" not in stages:
        return candidates, []
    generated, trained = (np.asarray(stages[name][0], dtype=np.float64) for name in ("gen_curve", "train_curve"))
    refused = generated[generated < trained[0]]
    rollout = candidates * recipe.updates_per_rollout / recipe.epochs
    keep = rollout > (refused[-1] if refused.size else 0.0)
    if keep.all():
        return candidates, []
    named = ", ".join(f"{b:g}" for b in candidates[~keep])
    if not keep.any():
        raise InputError(
            f"no candidate of {named} gives every GPU that trains a response", remedy="raise them, or use fewer GPUs"
        )
    return candidates[keep], [f"left out, since some GPUs that train would get no response: B = {named}"]


def _forecast(
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
        misses[:, i] = calibration.log_seen[:, i] - log_law(o, recipe, **law)
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


def _measured_candidates(measured: xr.DataTree, candidates: Floats) -> NDArray[np.bool_]:
    """Candidates that have runs: another one of them is no news, also where its N* is censored."""
    return np.isin(candidates, measured["arms"].to_dataset()["train_batch"].values)


def _p_wins(throughput_ratio: Floats, sample_cost_ratio: Floats, reference: NDArray[np.bool_]) -> Floats:
    return np.where(reference, np.nan, np.mean(throughput_ratio > sample_cost_ratio, axis=0))


def _attributes(
    ds: xr.Dataset, calibration: Calibration, answer: Recommendation, rule: LRRule, *, level: float, seed: int
) -> dict[str, Any]:
    """Verdicts into the dataset; everything that is not an array into attributes."""
    batches = ds["train_batch"].values
    reference = float(calibration.recipe.train_batch)
    r_q = ds["throughput_ratio"].values
    p_wins = _p_wins(r_q, ds["sample_cost_ratio"].values, batches == reference)
    verdicts = [verdict(p) or "" for p in p_wins]
    if calibration.open_above:
        # A verdict stands only if it also holds for a noise scale without an upper limit.
        at_limit = _p_wins(r_q, ds["sample_cost_ratio_floor"].values, batches == reference)
        verdicts = [v if v == (verdict(p) or "") else "undecided" for v, p in zip(verdicts, at_limit, strict=True)]
    ds["p_wins"] = ("train_batch", p_wins)
    ds["verdict"] = ("train_batch", verdicts)
    chosen = answer.effective_range
    next_run = None
    if answer.next_run is not None:
        b = float(batches[answer.next_run.index])
        next_run = {"train_batch": b, "gain": answer.next_run.gain}
    return {
        "reference_batch": reference,
        "group_size": calibration.recipe.group_size,
        "lr_rule": rule_name(rule),
        "level": level,
        "seed": seed,
        "effective_range": None if chosen is None else (float(batches[chosen[0]]), float(batches[chosen[1]])),
        "star": None if answer.star is None else float(batches[answer.star]),
        "next_run": next_run,
        "at_least": calibration.open_above,
        "critical_gen_limit": critical_gen_limit(calibration),
        "sources": calibration.sources,
        "noise_scale_records": [noise_scale_record(e) for e in calibration.noise_scales],
        "summary": calibration.summary(),
        "warnings": list(calibration.warnings),
    }


def _warnings(
    ds: xr.Dataset,
    calibration: Calibration,
    rule: str,
    calibrated_on: list[float],
    measured: list[float],
    *,
    few_updates: bool,
) -> list[str]:
    said = []
    if calibration.responses_to_target is None and calibration.time_to_target is None:
        said.append(
            "neither N* nor T of the reference is known: absolute times, GPU-hours and cost are left out; give "
            "[target] responses_to_target or time_to_target, or a run that is evaluated before and after the target"
        )
    elif not np.isfinite(ds["time_to_target"].values).any():
        said.append(
            "N* is known and seconds are not: give a run with timing, --step-seconds or [target] time_to_target"
        )
    diverging = np.mean(np.isinf(ds["sample_cost_ratio"].values), axis=0)
    if (diverging > 0).any():
        shown = ", ".join(
            f"B = {b:g} ({100 * share:.0f} %)"
            for b, share in zip(ds["train_batch"].values, diverging, strict=True)
            if share > 0
        )
        said.append(f"training diverges in a share of the draws: {shown}; a lower learning rate there would not")
    said += _contradiction(calibration)
    if few_updates and calibration.responses_to_target is None:
        said.append("few_updates needs N* of the reference, which is not known: its cost is left out")
    if calibration.open_above:
        low = min((e.low for e in calibration.noise_scales if e.low > 0), default=0.0)
        bound = f"at least {low:,.0f} responses" if low > 0 else "nor a lower one"
        said.append(
            f"the norms give the noise scale no agreed upper limit ({bound}): r_N of larger batches is an upper bound, "
            "verdicts that a larger noise scale would change are undecided, and effective range and critical training "
            "batch are at least what is printed"
        )
        said += [e.message for e in calibration.noise_scales]
    if not np.isfinite(ds["critical_train_batch"].values).any():
        said.append(f"under the rule '{rule}' N* has no small-batch limit, so there is no critical training batch")
    other = [b for b in measured if b not in calibrated_on]
    if other:
        said.append(
            f"calibrated on {', '.join(f'{b:g}' for b in calibrated_on)}; measured beside, never read by the model: "
            f"{', '.join(f'{b:g}' for b in other)}"
        )
    return said


def _contradiction(calibration: Calibration) -> list[str]:
    """A sentence if N*, T and the step time of the reference do not agree."""
    n, t = calibration.responses_to_target, calibration.time_to_target
    if n is None or t is None or not calibration.absolute:
        return []
    r = float(calibration.recipe.rollout_batch)
    stages = {k: v for k, v in calibration.stages.items() if k != "gen_limits"}
    implied = float(np.median(n / throughput(r, **stages)))
    stated = float(np.median(t))
    if abs(implied / stated - 1) < CONTRADICTION:
        return []
    return [
        f"the stated time to target {stated:.0f} s and N*/q = {implied:.0f} s of the reference disagree; times follow "
        "the stated one"
    ]


CONTRADICTION = 0.1
"""Relative difference of T and N*/q that is said aloud."""
COMPARED = {
    "time_ratio": "time_ratio",
    "sample_cost_ratio": "sample_cost_ratio",
    "throughput_ratio": "throughput_ratio",
    "step_time_law": "step_seconds",
}
"""Predicted quantities and the measured ones they are compared with."""

Triple = tuple[float, float, float]
Measured = dict[float, dict[str, Triple]]


def matching_arms(ds: xr.Dataset) -> xr.Dataset | None:
    """Measured arms that the prediction speaks of: its reference, group size and learning rates.

    Parameters
    ----------
    ds : xarray.Dataset
        From `predict`.

    Returns
    -------
    xarray.Dataset or None
        Of `measure`, dims (arm, bound); None without runs, or if none of them ran the reference.
    """
    if ds.attrs["measured"] is None:
        return None
    arms: xr.Dataset = ds.attrs["measured"]["arms"].to_dataset()
    if not arms.attrs["is_asked"]:
        return None
    rates = dict(zip(ds["train_batch"].values.tolist(), ds["learning_rate"].values.tolist(), strict=True))
    predicted = np.array([rates.get(float(b), np.nan) for b in arms["train_batch"].values])
    apart = np.abs(arms["learning_rate"].values / predicted - 1) > RULE_TOLERANCE
    group = arms["group_size"].values
    other_group = np.isfinite(group) & (group != ds.attrs["group_size"])
    # An unknown rate on either side is no reason to leave a measurement out.
    return arms.isel(arm=np.flatnonzero(~apart & ~other_group))


def _measured_rows(ds: xr.Dataset) -> Measured:
    arms = matching_arms(ds)
    if arms is None:
        return {}
    rows: Measured = {}
    for i, b in enumerate(arms["train_batch"].values):
        arm = arms.isel(arm=i)
        seconds = float(arm["step_seconds"])
        # The forecast speaks of steady steps, so it is compared with the ratio of their means; where no step is
        # timed, with the ratio over the whole stretch.
        reference = arms.isel(arm=int(np.flatnonzero(arms["train_batch"].values == ds.attrs["reference_batch"])[0]))
        q = float(arm["rollout_batch"] / reference["rollout_batch"]) * float(reference["step_seconds"]) / seconds
        q = q if math.isfinite(q) else float(arm["throughput_ratio"])
        half = float(ndtri((1 + ds.attrs["level"]) / 2) * arm["throughput_ratio_se"])
        rows[float(b)] = {name: _triple(arm[name].values) for name in ("time_ratio", "sample_cost_ratio")} | {
            "throughput_ratio": (q - half, q, q + half),
            "step_seconds": (math.nan, seconds, math.nan),
        }
    return rows


def _triple(values: NDArray[np.float64]) -> Triple:
    low, middle, high = (float(v) for v in values)
    return low, middle, high


def compare(ds: xr.Dataset, rows: Measured | None = None) -> list[dict[str, Any]]:
    """Predictions beside measurements.

    Parameters
    ----------
    ds : xarray.Dataset
        From `predict`.
    rows : dict or None
        Train batch to quantity to (low, estimate, high), from elsewhere, limits NaN where unknown; the
        prediction's own runs (`matching_arms`) if None.

    Returns
    -------
    list of dict
        Keys claim, train_batch, predicted, interval, measured, measured_interval, error
        (predicted/measured - 1), covered (the interval holds the measured estimate) and held_out (the batch
        was kept from the calibration).
    """
    rows = _measured_rows(ds) if rows is None else rows
    reference = ds.attrs["reference_batch"]
    compared = []
    for b, values in sorted(rows.items()):
        if b in ds["train_batch"].values and b != reference:
            row = ds.sel(train_batch=b)
            compared += [
                _comparison(row, name, values[source], ds.attrs)
                for name, source in COMPARED.items()
                if source in values
            ]
    return [c for c in compared if c is not None]


def _comparison(row: xr.Dataset, name: str, measured: Triple, attrs: dict[str, Any]) -> dict[str, Any] | None:
    """One quantity at one batch; None where either side is unknown."""
    drawn = row[name].values
    if name != "step_time_law":
        tail = (1 - attrs["level"]) / 2
        drawn = np.quantile(drawn, [tail, 0.5, 1 - tail], method="nearest")
    low, predicted, high = _triple(drawn)
    if not (math.isfinite(predicted) and math.isfinite(measured[1])):
        return None
    b = float(row["train_batch"])
    return {
        "claim": name,
        "train_batch": b,
        "predicted": predicted,
        "interval": [low, high],
        "measured": measured[1],
        "measured_interval": [measured[0], measured[2]],
        "error": predicted / measured[1] - 1,
        "covered": low <= measured[1] <= high,
        "held_out": b not in attrs["calibrated_on"],
    }
