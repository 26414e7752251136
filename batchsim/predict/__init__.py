r"""THE chain: what is known in, time to target over candidate batches out.

    plan and logs -> calibrate (parameters with draws) -> r_N and q over candidates
                  -> T/T_0 = r_N/r_q, T = N*_0 r_N/q -> verdicts, range, star, next run

`forecast` carries every draw through all candidates of `candidates`; `compare` sets the answer beside measurements.

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
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from batchsim.calibrate import Calibration, calibrate
from batchsim.calibrate.limits import critical_gen_limit
from batchsim.calibrate.observations import RateLine, rate_ceiling
from batchsim.calibrate.specified import SPECIFIED, specified
from batchsim.calibrate.what_if import ridge_batches, what_if
from batchsim.criterion import cost, gpu_hours, verdict
from batchsim.errors import InputError
from batchsim.learning.lr_rule import LRRule, rule_name
from batchsim.measure import LEVEL, measure, noise_scale_record
from batchsim.plan import Plan
from batchsim.predict.alternatives import decoupled, growing_batch, plateau, regimes
from batchsim.predict.candidates import LARGEST, candidate_batches, trainable
from batchsim.predict.compare import Measured, compare, matching_arms
from batchsim.predict.forecast import forecast
from batchsim.recommend import Recommendation, recommend
from batchsim.system.pipeline import throughput
from batchsim.variables import set_attrs

CONTRADICTION = 0.1
"""Relative difference of T and N*/q that is said aloud."""

Floats = NDArray[np.float64]

__all__ = ["Measured", "choose_pilots", "compare", "matching_arms", "predict", "predict_targets"]


def predict(
    plan_or_runs: Plan | xr.DataTree | Calibration,
    *,
    plan: Plan | None = None,
    runs: xr.DataTree | None = None,
    target: float | None = None,
    metric: str | None = None,
    pilot_batches: Sequence[float] = (),
    batches: Sequence[float] = (),
    lr_rule: LRRule | None = None,
    allow_mixed: bool = False,
    schedule: bool = False,
    gpus: float | None = None,
    price: float | None = None,
    level: float = LEVEL,
    draws: int = 2000,
    seed: int = 0,
) -> xr.Dataset:
    """Predict the time to target over candidate batches.

    Parameters
    ----------
    plan_or_runs : Plan, xarray.DataTree or Calibration
        A plan (`plan.read_plan`), measured runs (`logs.read_logs`), or what `calibrate` made of them, with which plan,
        runs, pilots and draws are settled.
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
    allow_mixed : bool
        See `calibrate.calibrate`.
    schedule : bool
        Also ask what a batch that grows along the run would gain (`alternatives.growing_batch`).
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
        `calibrate.what_if.what_if`), regimes, plateau, decoupled, growth (of `alternatives`), ridge_batch (of
        `calibrate.what_if.ridge_batches`, or None), warnings.

    Raises
    ------
    InputError
        For inputs that cannot be used; see `calibrate.calibrate` and `measure.measure`.
    """
    if not 0 < level < 1:
        raise InputError(f"level is {level:g}, outside (0, 1)", remedy="0.8 is a central 80 % interval")
    if target is not None and not math.isfinite(target):
        raise InputError(f"target is {target}, not a finite score")
    if isinstance(plan_or_runs, Calibration):
        calibration = _settled(plan_or_runs, plan, runs, pilot_batches, target, metric)
        plan, target, metric = calibration.plan, calibration.target, calibration.metric
    else:
        if isinstance(plan_or_runs, Plan):
            plan = plan_or_runs
        else:
            runs = plan_or_runs
        plan = plan or Plan()
        target = plan.target.score if target is None else target
        metric = (plan.target.metric or None) if metric is None else metric
        calibration = calibrate(
            choose_pilots(runs, pilot_batches or plan.logs.pilot_batches),
            plan,
            target=target,
            metric=metric,
            lr_rule=lr_rule,
            allow_mixed=allow_mixed,
            with_curve=schedule,
            draws=draws,
            level=level,
            seed=seed,
        )
    rule = lr_rule if lr_rule is not None else _rule_of(calibration)
    calibration = _along(calibration, rule)
    planned = plan.recipe.batches if plan.recipe is not None else ()
    candidates, too_small = trainable(calibration, candidate_batches(calibration.recipe, batches or planned))
    ds = forecast(calibration, candidates, rule, plan.learning, level=level, seed=seed)
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
    # Another run of a batch that the model has read is no news; one that was held out would be.
    answer = recommend(ds["time_ratio"].values, measured=np.isin(candidates, calibration.calibrated_on))
    attrs = _attributes(ds, calibration, answer, rule, level=level, seed=seed)
    if measured is not None:
        target, metric = measured.attrs["target"], measured.attrs["metric"]
    attrs |= {"target": target, "metric": metric, "measured": measured, "gpus": gpus, "price": price}
    attrs["calibrated_on"] = list(calibration.calibrated_on)
    attrs |= _what_if(plan, calibration, attrs, seed)
    attrs |= {
        "regimes": regimes(ds, calibration),
        "plateau": plateau(ds, level=level),
        "decoupled": decoupled(ds, calibration, level=level, seed=seed),
        "growth": growing_batch(ds, calibration, rule, attrs["warnings"]) if schedule else None,
    }
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


def predict_targets(
    plan_or_runs: Plan | xr.DataTree | Calibration, targets: Sequence[float], **options: Any
) -> list[xr.Dataset]:
    """Forecasts of several targets: N* and the noise scale up to it, and so r_N and the choice, depend on the target.

    Parameters
    ----------
    plan_or_runs : Plan, xarray.DataTree or Calibration
    targets : sequence of float [1]
    **options
        Of `predict`, without target.

    Returns
    -------
    list of xarray.Dataset
        One forecast per target, targets in increasing order.

    Raises
    ------
    InputError
        Without targets, for several of a plan that states N* or T of one, and as `predict`.
    """
    ordered = sorted({float(t) for t in targets})
    if not ordered:
        raise InputError("no targets given", remedy="as 0.4,0.5,0.6")
    plan = plan_or_runs if isinstance(plan_or_runs, Plan) else options.get("plan")
    stated = plan is not None and (plan.target.responses_to_target or plan.target.time_to_target)
    if len(ordered) > 1 and stated:
        raise InputError(
            f"{len(ordered)} targets, and [target] states N* or T of the reference, which belong to one of them",
            remedy="drop responses_to_target and time_to_target, or ask for one target",
        )
    return [predict(plan_or_runs, target=t, **options) for t in ordered]


def _settled(
    calibration: Calibration,
    plan: Plan | None,
    runs: xr.DataTree | None,
    pilot_batches: Sequence[float],
    target: float | None,
    metric: str | None,
) -> Calibration:
    """A calibration that was made before; what would need another one is refused."""
    given = [
        name
        for name, value in (("a plan", plan is not None), ("runs", runs is not None), ("pilots", bool(pilot_batches)))
        if value
    ]
    if given:
        raise InputError(
            f"{', '.join(given)} beside a calibration, which holds its own", remedy="leave them out, or calibrate again"
        )
    for name, value, own in (("target", target, calibration.target), ("metric", metric, calibration.metric)):
        if value is not None and value != own:
            raise InputError(
                f"{name} {value} and a calibration for {name} {'unknown' if own is None else own}: N*, and with it "
                "r_N, belong to their target",
                remedy=f"calibrate again with that {name}",
            )
    return calibration


def _rule_of(calibration: Calibration) -> LRRule:
    """The rule that arms were held against; the recipe's where that was a function."""
    return calibration.recipe.lr_rule if calibration.lr_rule == "user" else calibration.lr_rule


def _along(calibration: Calibration, rule: LRRule) -> Calibration:
    """The calibration with its arms held against the rule that is forecast; said where that was another one."""
    if rule_name(rule) == calibration.lr_rule:
        return calibration
    ceiling = rate_ceiling(calibration.recipe, calibration.plan.learning)
    line = RateLine(recipe=calibration.recipe, lr_rule=rule, ceiling=ceiling)
    seen = tuple(replace(o, off_rule=line.off(o.train_batch, o.learning_rate_ratio)) for o in calibration.seen)
    if seen == calibration.seen:
        return calibration
    said = (
        f"the calibration held its arms against the rule '{calibration.lr_rule}', and the forecast is of "
        f"'{rule_name(rule)}': arms off that carry the law's error, and their weights are those of before; calibrate "
        "with that rule for both"
    )
    return replace(calibration, seen=seen, warnings=[*calibration.warnings, said])


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


def choose_pilots(runs: xr.DataTree | None, pilot_batches: Sequence[float]) -> xr.DataTree | None:
    """The runs to calibrate on.

    Parameters
    ----------
    runs : xarray.DataTree or None
    pilot_batches : sequence of float [responses]
        All runs if empty.

    Returns
    -------
    xarray.DataTree or None

    Raises
    ------
    InputError
        For a batch that no run has.
    """
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
        "summary": calibration.summary(profiles=False),
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
            f"B = {b:g} ({100 * share:.0f} %)" if share >= 0.01 else f"B = {b:g} (under 1 %)"
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
