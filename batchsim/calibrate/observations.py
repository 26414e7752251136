r"""What runs and plans say of N* and r_N, as observations of the law.

Per arm (batch, learning rate) of the reference's group size, in this order:

    N* at the target   interval-censored per run; the spread over runs from `responses`. An arm whose intervals are
                       narrower than that spread (or a tenth) is one number, mean log N* with error s/sqrt(n); else
                       each run enters with its own limits, censored ones too
    curves             where fewer than two arms have N* on both sides: the runs' pace at equal responses (`overlay`),
                       one number per arm
    stated ratios      of a plan

One-sided runs enter only beside an arm that is bounded on both sides: without one, every N* may be shifted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from batchsim.calibrate.discrepancy import Seen
from batchsim.calibrate.overlay import OverlayFit, fit_overlay
from batchsim.calibrate.responses import RUN_SPREAD, ResponsesFit, fit_responses
from batchsim.errors import InputError
from batchsim.learning.curve import Curve, fit_curve
from batchsim.learning.lr_rule import EXPONENTS, LRRule
from batchsim.learning.lr_rule import learning_rate_ratio as rate_of_rule
from batchsim.learning.mechanism import trust_region_ceiling
from batchsim.measure import RULE_TOLERANCE
from batchsim.measure.runs import SAME_BY_DESIGN
from batchsim.plan import Learning, Plan
from batchsim.specs.recipe import Recipe

NARROW = 0.1
"""Width of an interval of log N* that counts as a number whatever the spread over runs."""


@dataclass(frozen=True, kw_only=True)
class RateLine:
    """Learning rates that forecasts follow where they are a function of the batch alone; the sqrt rule elsewhere."""

    recipe: Recipe
    lr_rule: LRRule
    ceiling: float

    def off(self, train_batch: float, learning_rate_ratio: float) -> float:
        """Octaves of a rate off the line; 0 within rounding."""
        rule: LRRule = self.lr_rule if callable(self.lr_rule) or self.lr_rule in EXPONENTS else "sqrt"
        x = train_batch / self.recipe.train_batch
        expected = float(rate_of_rule(x, lr_rule=rule, ceiling=self.ceiling))
        octaves = math.log2(learning_rate_ratio / expected)
        return octaves if abs(octaves) > math.log2(1 + RULE_TOLERANCE) else 0.0


def rate_ceiling(recipe: Recipe, given: Learning) -> float:
    """Largest eta/eta_0: the recipe's largest rate, or what the trust region leaves."""
    ceiling = math.inf
    if recipe.max_learning_rate and recipe.learning_rate:
        ceiling = recipe.max_learning_rate / recipe.learning_rate
    if given.kl_max is not None and given.kl_per_update is not None:
        ceiling = min(ceiling, float(trust_region_ceiling(kl_max=given.kl_max, kl_reference=given.kl_per_update)))
    return ceiling


def check_recipes(nodes: dict[str, xr.Dataset], *, allow_mixed: bool) -> None:
    """Refuse pilots whose settings differ beyond the batch and its learning rate.

    Parameters
    ----------
    nodes : dict of str to xarray.Dataset
        Runs of one group size.
    allow_mixed : bool
        Let them pass; `measure` says what differs.

    Raises
    ------
    InputError
        With every setting that differs.
    """
    said = []
    for name in sorted({n for ds in nodes.values() for n in ds.attrs} - SAME_BY_DESIGN):
        values = {str(ds.attrs.get(name, "not stated")): run for run, ds in nodes.items()}
        if len(values) > 1:
            said.append(f"{name} is {', '.join(f'{v} ({run})' for v, run in sorted(values.items())[:3])}")
    if said and not allow_mixed:
        raise InputError(
            f"the pilots are of different recipes: {'; '.join(said)}",
            remedy="leave out the runs of the other recipe, or take them as one with --allow-mixed (allow_mixed=True)",
        )


def curve_of_reference(nodes: dict[str, xr.Dataset], recipe: Recipe, metric: str) -> Curve | None:
    """Score over responses of the runs at the reference's batch and rate, None where no curve is identified."""
    own = [
        ds
        for ds in nodes.values()
        if ds.attrs["train_batch"] == recipe.train_batch
        and metric in ds["metric"].values
        and not abs(ds.attrs.get("learning_rate", math.nan) / (recipe.learning_rate or math.nan) - 1) > RULE_TOLERANCE
    ]
    if not own:
        return None
    responses = np.concatenate([ds["evaluation_responses"].values for ds in own])
    score = np.concatenate([ds["score"].sel(metric=metric).values for ds in own])
    try:
        fit = fit_curve(responses, score)
    except InputError:
        return None
    return fit.curve if fit.success and fit.identified else None


def target_in_sight(nodes: dict[str, xr.Dataset], metric: str | None, target: float | None) -> list[str]:
    """A sentence if the target lies above every score."""
    scores = [ds["score"].sel(metric=metric).values for ds in nodes.values() if metric in ds["metric"].values]
    seen = np.concatenate(scores) if scores else np.empty(0)
    seen = seen[np.isfinite(seen)]
    if target is None or not seen.size or target <= seen.max():
        return []
    best = float(seen.max())
    return [
        f"the target {target:g} lies above everything seen (best {best:.4g}): N* and T stay unknown, and r_N is that "
        f"of lower scores; train a run until it passes, or choose a target up to {best:.4g}"
    ]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Observations of the law, and the fits behind them.

    Parameters
    ----------
    seen : tuple of Seen
        Numbers before intervals before limits.
    responses : ResponsesFit or None
        Of N* at the target.
    overlay : OverlayFit or None
        Of learning curves, where they were asked.
    """

    seen: tuple[Seen, ...]
    responses: ResponsesFit | None
    overlay: OverlayFit | None


@dataclass(frozen=True, kw_only=True)
class _Arm:
    """Runs of one batch and learning rate with their limits of N*."""

    label: str
    train_batch: float
    rate: float
    names: list[str]
    low: list[float]
    high: list[float]


def run_evidence(
    nodes: dict[str, xr.Dataset],
    measured: xr.DataTree,
    recipe: Recipe,
    line: RateLine,
    warnings: list[str],
) -> Evidence:
    """What measured runs of the reference's group size say.

    Parameters
    ----------
    nodes : dict of str to xarray.Dataset
        Runs of the reference's group size.
    measured : xarray.DataTree
        Of `measure`.
    recipe : Recipe
        The reference.
    line : RateLine
    warnings : list of str
        Receives what the runs cannot say.

    Returns
    -------
    Evidence
    """
    arms = _arms(nodes, measured["runs"].to_dataset(), recipe)
    fit = (
        fit_responses(
            [v for a in arms for v in a.low],
            [v for a in arms for v in a.high],
            [a.label for a in arms for _ in a.names],
        )
        if arms
        else None
    )
    seen = [o for a in arms for o in _at_target(a, fit, line)] if fit is not None else []
    bounded = {(o.train_batch, o.learning_rate_ratio) for o in seen if math.isfinite(o.low + o.high)}
    overlay = None
    metric = measured.attrs["metric"]
    if len(bounded) < 2 and len(arms) > 1 and metric is not None:
        overlay = _overlay(nodes, arms, metric)
        if overlay.success:
            # Limits of runs that the curves speak of would count them twice.
            seen = [o for o in seen if math.isfinite(o.low + o.high)]
            seen += _on_curves(arms, overlay, line)
            warnings.append(_said_of_curves(overlay, measured.attrs["target"]))
        else:
            warnings.append(f"r_N from learning curves at equal responses: {overlay.message}")
    if not bounded:
        seen = [o for o in seen if o.level != "target"]
    order = sorted(seen, key=lambda o: (not o.is_number, not math.isfinite(o.low + o.high)))
    return Evidence(seen=tuple(order), responses=fit, overlay=overlay)


def _overlay(nodes: dict[str, xr.Dataset], arms: list[_Arm], metric: str) -> OverlayFit:
    """Curves of all arms, or where these do not tell, of as many of the smaller batches as do.

    A large batch has few evaluations in the stretch that all share, and takes with it what the others say.
    """
    fits = []
    for count in range(len(arms), 1, -1):
        chosen = arms[:count]
        fits.append(
            fit_overlay(
                {n: nodes[n] for a in chosen for n in a.names}, [a.label for a in chosen for _ in a.names], metric
            )
        )
        if fits[-1].success:
            return fits[-1]
    return fits[0]


def _arms(nodes: dict[str, xr.Dataset], runs: xr.Dataset, recipe: Recipe) -> list[_Arm]:
    """Arms whose learning rate is known, in increasing order."""
    found: dict[tuple[float, float], _Arm] = {}
    for i, name in enumerate(runs["run"].values.tolist()):
        if name not in nodes:
            continue
        batch, rate = float(runs["train_batch"].values[i]), float(runs["learning_rate"].values[i])
        ratio = rate / (recipe.learning_rate or math.nan)
        if not math.isfinite(ratio) and batch == recipe.train_batch:
            # The reference is at its own rate, whatever that is.
            ratio = 1.0
        if not math.isfinite(ratio):
            continue
        key = (batch, float(f"{ratio:.3g}"))
        arm = found.setdefault(
            key, _Arm(label=f"B={batch:g} rate x{ratio:.3g}", train_batch=batch, rate=ratio, names=[], low=[], high=[])
        )
        low, _, high = (float(v) for v in runs["responses_to_target"].values[i])
        # A run that passes before training, or has no such score, says nothing of N*.
        known = math.isfinite(low) and high > 0
        arm.names.append(name)
        arm.low.append(low if known else 0.0)
        arm.high.append(high if known else math.inf)
    return [found[key] for key in sorted(found)]


def _at_target(arm: _Arm, fit: ResponsesFit, line: RateLine) -> list[Seen]:
    """One number for an arm of narrow intervals, else one observation per run that has a limit."""
    place: dict[str, Any] = {
        "train_batch": arm.train_batch,
        "learning_rate_ratio": arm.rate,
        "off_rule": line.off(arm.train_batch, arm.rate),
    }
    with np.errstate(divide="ignore"):
        low, high = np.log(arm.low), np.log(arm.high)
    width, n = high - low, len(arm.names)
    if (width <= max(fit.run_spread, NARROW)).all():
        # The middle between evaluations, as `measure` takes it.
        centre = float(np.mean(np.log((np.array(arm.low) + np.array(arm.high)) / 2)))
        # Runs that share one interval say where in it they lie once, not once each.
        places = len(set(zip(arm.low, arm.high, strict=True)))
        error = math.sqrt(fit.run_spread**2 / n + float(np.mean(width**2)) / 12 / places)
        return [Seen(low=centre, high=centre, error=error, **place)]
    return [
        Seen(low=float(lo), high=float(hi), error=fit.run_spread, **place)
        for lo, hi in zip(low, high, strict=True)
        if math.isfinite(lo) or math.isfinite(hi)
    ]


def _on_curves(arms: list[_Arm], overlay: OverlayFit, line: RateLine) -> list[Seen]:
    """Mean pace of every arm's runs, with their spread."""
    pace = {a.label: [overlay.params[n] for n in a.names if n in overlay.params] for a in arms}
    own = {a.label: [overlay.stderr[n] for n in a.names if n in overlay.params] for a in arms}
    dof = sum(len(v) - 1 for v in pace.values() if v)
    squares = sum(float(np.var(v)) * len(v) for v in pace.values() if v)
    # The prior counts as one more repeat.
    spread = math.sqrt((squares + RUN_SPREAD**2) / (dof + 1))
    return [
        Seen(
            train_batch=a.train_batch,
            learning_rate_ratio=a.rate,
            low=float(np.mean(pace[a.label])),
            high=float(np.mean(pace[a.label])),
            error=math.sqrt((spread**2 + float(np.mean(np.square(own[a.label])))) / len(pace[a.label])),
            level="curve",
            off_rule=line.off(a.train_batch, a.rate),
        )
        for a in arms
        if pace[a.label]
    ]


def _said_of_curves(overlay: OverlayFit, target: float | None) -> str:
    end = "of a target above that, r_N of larger batches is likely smaller, since the noise scale grows as |G|^2 falls"
    if target is not None and target <= overlay.score:
        end = f"the target {target:g} lies within that"
    return (
        f"fewer than two batches reach the target between two evaluations: r_N is read from learning curves at equal "
        f"responses, up to a score of {overlay.score:.4g} ({overlay.message}); {end}"
    )


def stated_costs(given: Learning, recipe: Recipe, line: RateLine) -> list[Seen]:
    """Updates ratios that a plan states, as sample costs relative to the reference."""
    said = []
    for seen in given.observed:
        batch = seen.prompts * recipe.group_size * recipe.epochs / recipe.updates_per_rollout
        x = batch / recipe.train_batch
        rate = x ** EXPONENTS[seen.lr_rule]
        low, high = (math.log(limit * x) for limit in seen.updates_ratio)
        said.append(
            Seen(
                train_batch=batch,
                learning_rate_ratio=rate,
                low=low,
                high=high,
                # A ratio has the errors of two runs.
                error=math.sqrt(2) * seen.relative_error,
                level="ratio",
                off_rule=line.off(batch, rate),
            )
        )
    return said


def observed_batches(plan: Plan, recipe: Recipe) -> set[float]:
    """Train batches [responses] of the pilots whose sample cost a plan states."""
    scale = recipe.group_size * recipe.epochs / recipe.updates_per_rollout
    return {float(o.prompts * scale) for o in plan.learning.observed}
