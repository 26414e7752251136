r"""From pilots and priors to the parameters of both sides, with draws.

Learning side. The noise scale B_noise is drawn from prior times norm likelihood, the shape k, the fraction c_0 of
the optimal rate, the penalty's shape p and the curvature ratio from priors, and all are weighted by what arms say
(sampling, importance, resampling):

    gradient norms       profile Student likelihood of |G|^2 - tr(Sigma)/B_noise = 0
    N* of the arms       log N*_i ~ log N*_0 + log r_N(B_i, eta_i; B_noise, k, c_0), N*_0 profiled out,
                         errors from the spread over runs and the width of the evaluation intervals, and the
                         law's own (below); widened where even the best draw misses the arms (Birge's factor)
    observed intervals   the same for updates ratios that a plan states

Priors: B_noise log-uniform over 200 to 50,000 responses (published recipes cluster at 1k to 8k responses
per update, and B_noise of 0.65k to 20k has been measured in RL), with tails that fall as the distance beyond where
norms were measured; drift with probability 1/2, else k
log-uniform over 1/2 to 4 (an isotropic softmax world has 1/2, a small transformer .56 to .78, tuned
pretraining prefers drift); c_0 uniform over 0.01 to 0.5; p uniform over -1 (quadratic) to 0.5 and h_ratio
log-uniform over 0.2 to 1 (a small transformer asks for p of .2 to .35 and h_ratio of .2 to .5; nothing else measured
tells, so that transformer is no independent test of these two). What no pilot identifies keeps its prior, and the
calibration says so and names the run that would tell.

System side. The affine law of the step time with its covariance and its unknown plateau (`step_time`),
capped by memory where the plan states it; or the plan's own stage laws.

The law extrapolates with an error of its own: predicting the largest batch from the smaller ones
missed by a median of 8 % per octave over 16 workloads, so log r_N differs from the law by a Brownian motion in log2 B
with a standard deviation of .12 per square root of an octave, conditioned on the measured arms (`discrepancy`).

References
----------
.. [1] Rubin 1987, "The calculation of posterior distributions by data augmentation: comment", JASA 82:543
   (sampling, importance, resampling).
.. [2] Birge 1932, "The calculation of errors by the method of least squares", Phys. Rev. 40:207.
.. [3] MLCommons reference convergence points, mlcommons/logging @ 7bbf7926, mlperf_logging/rcp_checker (law error).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from batchsim.calibrate.discrepancy import Seen
from batchsim.calibrate.lag import Lag, draw_lag
from batchsim.calibrate.laws import LawFit, compare_laws, table
from batchsim.calibrate.learning import (
    LAW_ERROR,
    LEARNING,
    MIN_EFFECTIVE_DRAWS,
    PRIOR_DRAWS,
    draw_learning,
    law_error,
    norm_evidence,
)
from batchsim.calibrate.observations import (
    Evidence,
    RateLine,
    check_recipes,
    curve_of_reference,
    observed_batches,
    rate_ceiling,
    run_evidence,
    stated_costs,
    target_in_sight,
)
from batchsim.calibrate.overlay import OverlayFit
from batchsim.calibrate.responses import ResponsesFit
from batchsim.calibrate.system import cap_stages, memory_limit, system_stages
from batchsim.errors import InputError
from batchsim.learning.curve import Curve
from batchsim.learning.lr_rule import EXPONENTS, LRRule, rule_name
from batchsim.learning.noise_scale import NoiseScale
from batchsim.measure import LEVEL, measure, noise_scales_to_target, same_group
from batchsim.plan import Plan
from batchsim.specs.recipe import Recipe
from batchsim.system.step_time import StepTimeFit

Floats = NDArray[np.float64]

_PROBE = "a run at {b} responses and twice the learning rate would tell of the rate"
WOULD_TELL = {
    "noise_scale": "gradient norms of two chunks of each batch over some tens of updates at {b} would tell of it",
    "snr_shape": "moments of single coordinates, or a batch that already costs more, would tell of the shape",
    "lr_fraction": _PROBE,
    "penalty_shape": _PROBE,
    "curvature_ratio": _PROBE,
}
"""The run that would tell of a parameter."""

__all__ = ["LAW_ERROR", "MIN_EFFECTIVE_DRAWS", "PRIOR_DRAWS", "Calibration", "calibrate", "law_error"]


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Parameters of both sides with their draws.

    Parameters
    ----------
    plan : Plan
        What was known beside the pilots.
    recipe : Recipe
        The reference.
    target, metric : float or None, str or None
        What N* speaks of.
    lr_rule : str
        Rule that arms were held against; 'user' for a function.
    level : float [1]
        Coverage of the noise-scale limits.
    calibrated_on : tuple of float [responses]
        Train batches of the pilots' runs.
    noise_scale, snr_shape, lr_fraction, penalty_shape, curvature_ratio : ndarray, (draw,) [responses], [1], ...
    seen : tuple of Seen
        What arms, runs and the plan say of N* or r_N.
    log_seen : ndarray, (draw, seen) [1]
        log r_N of each, relative to the draw's own N*_0.
    law_spread : float [1]
        Standard deviation of log r_N around the law per square root of an octave.
    stages : dict
        Arguments of `system.pipeline.throughput`, floats or (draw,).
    absolute : bool
        Stage times are in seconds; if not, only throughput ratios exist.
    responses_to_target, time_to_target : ndarray, (draw,) or None [responses], [s]
        N* and T of the reference where they are known.
    measured_batches : tuple of float [responses]
        Train batches that calibrated the learning side.
    step_time : StepTimeFit or None
    noise_scales : list of NoiseScale
        Estimates from norms that entered or were reported.
    open_above : bool
        The norms give the noise scale no upper limit (or disagree about it).
    memory_limit : tuple of float, str
        Rollout batch at which memory or the engine caps concurrency, and which.
    sources : dict of str to str
        Per parameter: measured, given or prior, in words.
    unmoved : tuple of str
        Learning parameters that the pilots leave as wide as their prior.
    effective_draws : float
        Prior draws that the weights leave, of `PRIOR_DRAWS`.
    lag : Lag or None
        Age of the responses, where logs state one.
    responses : ResponsesFit or None
        N* per arm and the spread over runs.
    overlay : OverlayFit or None
        Learning curves, where N* did not tell.
    laws : list of LawFit
        Competing laws on the arms, lowest AIC first; empty without two batches.
    reference_curve : Curve or None
        Score of the reference over responses, where it was asked for and identified.
    warnings : list of str
    """

    plan: Plan
    recipe: Recipe
    target: float | None
    metric: str | None
    lr_rule: str
    level: float
    calibrated_on: tuple[float, ...]
    noise_scale: Floats
    snr_shape: Floats
    lr_fraction: Floats
    penalty_shape: Floats
    curvature_ratio: Floats
    seen: tuple[Seen, ...]
    log_seen: Floats
    law_spread: float
    stages: dict[str, Any]
    absolute: bool
    responses_to_target: Floats | None
    time_to_target: Floats | None
    measured_batches: tuple[float, ...]
    step_time: StepTimeFit | None
    noise_scales: list[NoiseScale]
    open_above: bool
    memory_limit: tuple[float, str]
    sources: dict[str, str]
    unmoved: tuple[str, ...]
    effective_draws: float
    lag: Lag | None = None
    responses: ResponsesFit | None = None
    overlay: OverlayFit | None = None
    laws: list[LawFit] = field(default_factory=list)
    reference_curve: Curve | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def draws(self) -> dict[str, Floats]:
        """Posterior draws by name, (draw,) each: the learning side, N*_0, and the stage parameters that have draws."""
        found = {name: getattr(self, name) for name in LEARNING}
        if self.responses_to_target is not None:
            found["responses_to_target"] = self.responses_to_target
        size = self.noise_scale.shape
        return found | {n: v for n, v in self.stages.items() if isinstance(v, np.ndarray) and v.shape == size}

    @property
    def params(self) -> dict[str, float]:
        """Median of every parameter's draws."""
        return {name: float(np.quantile(v, 0.5, method="nearest")) for name, v in self.draws.items()}

    @property
    def stderr(self) -> dict[str, float]:
        """Half of the central 68 % of every parameter's draws; infinite where the draws are."""
        found = {}
        for name, v in self.draws.items():
            low, high = np.quantile(v, [0.16, 0.84], method="nearest")
            found[name] = math.inf if math.isinf(high) else float(high - low) / 2
        return found

    def intervals(self, *, level: float = LEVEL) -> dict[str, tuple[float, float]]:
        """Central interval of every parameter's draws.

        Parameters
        ----------
        level : float in (0, 1) [1]

        Returns
        -------
        dict of str to (low, high)
        """
        tail = (1 - level) / 2
        limits = {n: np.quantile(v, [tail, 1 - tail], method="nearest") for n, v in self.draws.items()}
        return {n: (float(low), float(high)) for n, (low, high) in limits.items()}

    @property
    def aic(self) -> float | None:
        """Lowest AIC of the package's laws on the arms (`laws`), None where they were not compared."""
        own = [f.aic for f in self.laws if f.name in ("drift", "coordinate")]
        return min(own) if own else None

    @property
    def success(self) -> bool:
        """Enough prior draws explain what was seen, and every fit behind it converged."""
        fits = [f for f in (self.responses,) if f is not None]
        return self.effective_draws >= MIN_EFFECTIVE_DRAWS and all(f.success for f in fits)

    @property
    def message(self) -> str:
        """What the pilots identify and what they do not, in one sentence."""
        told = [n for n in LEARNING if "pilots" in self.sources[n] and n not in self.unmoved]
        parts = [
            f"pilots narrow {', '.join(told)}" if told else "no pilot narrows the learning side",
            f"as wide as the prior: {', '.join(self.unmoved)}" if self.unmoved else "",
            *dict.fromkeys(WOULD_TELL[n].format(b=self.recipe.train_batch) for n in self.unmoved),
            f"step time: {self.sources['step_time']}",
        ]
        if not self.success:
            parts.append(f"{self.effective_draws:.0f} effective draws of {PRIOR_DRAWS}: read with care")
        return "; ".join(p for p in parts if p)

    def summary(self, *, profiles: bool = True) -> str:
        """Every parameter with its central 80 % interval and where it comes from, and the fits behind them.

        Parameters
        ----------
        profiles : bool
            With limits of N* by profile likelihood, which take some tenths of a second.

        Returns
        -------
        str
        """
        lines = [f"{'parameter':<22} {'median':>10} {'10 %':>10} {'90 %':>10}  source"]
        for name in LEARNING:
            low, mid, high = np.quantile(getattr(self, name), [0.1, 0.5, 0.9], method="nearest")
            lines.append(f"{name:<22} {mid:>10.4g} {low:>10.4g} {high:>10.4g}  {self.sources[name]}")
        for name, value in self.stages.items():
            if name.endswith(("curve", "limits")):
                continue
            if isinstance(value, str):
                continue
            low, mid, high = np.quantile(np.atleast_1d(value), [0.1, 0.5, 0.9], method="nearest")
            lines.append(f"{name:<22} {mid:>10.4g} {low:>10.4g} {high:>10.4g}  {self.sources['step_time']}")
        if self.responses is not None:
            lines.append(self.responses.summary(profiles=profiles))
        if self.overlay is not None:
            lines.append(self.overlay.summary())
        if self.responses is not None or self.overlay is not None:
            lines.append(table(self.laws))
        return "\n".join([*lines, self.message])


def calibrate(
    runs: xr.DataTree | None,
    plan: Plan,
    *,
    target: float | None = None,
    metric: str | None = None,
    lr_rule: LRRule | None = None,
    allow_mixed: bool = False,
    with_curve: bool = False,
    draws: int = 2000,
    level: float = LEVEL,
    seed: int = 0,
) -> Calibration:
    """Fit what pilots identify and draw the rest from priors.

    Parameters
    ----------
    runs : xarray.DataTree or None
        Pilots, as `logs.read_logs` returns them.
    plan : Plan
        Its recipe, where given, is the reference; otherwise the smallest measured batch is.
    target, metric
        As in `measure`; the plan's own if None.
    lr_rule : str, callable or None
        Rule that forecasts will follow: arms off it carry an error of the law of their own. The recipe's if None.
    allow_mixed : bool
        Take pilots whose settings differ beyond batch and learning rate as one recipe, with a warning.
    with_curve : bool
        Fit the reference's learning curve, which a batch that grows along the run needs.
    draws : int
    level : float [1]
        Coverage of the noise-scale limits that decide whether it stays open above.
    seed : int

    Returns
    -------
    Calibration

    Raises
    ------
    InputError
        Without runs and without a recipe, for pilots of different recipes, or a target outside what a score can be.
    """
    if not 10 <= draws <= PRIOR_DRAWS:
        raise InputError(f"draws is {draws}, outside 10 to {PRIOR_DRAWS}", remedy="2000 is the default")
    rng = np.random.default_rng(seed)
    target = plan.target.score if target is None else target
    metric = (plan.target.metric or None) if metric is None else metric
    warnings = plan.warnings(with_logs=runs is not None)
    measured = measure(runs, target=target, metric=metric, level=level, seed=seed) if runs is not None else None
    if measured is not None:
        warnings += [w for w in measured.attrs["warnings"] if "noise scale" not in w and "noise-scale" not in w]
    nodes = {name: node.to_dataset() for name, node in runs.children.items()} if runs is not None else {}
    recipe = _reference_recipe(measured, nodes, plan)
    nodes = same_group(nodes, recipe.group_size)
    if measured is not None:
        check_recipes(nodes, allow_mixed=allow_mixed)
        target, metric = measured.attrs["target"], measured.attrs["metric"]
        warnings += target_in_sight(nodes, metric, target)
    estimates = []
    if measured is not None and nodes:
        estimates = noise_scales_to_target(nodes, measured["runs"].to_dataset(), recipe.group_size, level=level)
    evidence, open_above = norm_evidence(estimates)
    open_above = open_above and plan.learning.noise_scale is None
    rule = lr_rule if lr_rule is not None else recipe.lr_rule
    line = RateLine(recipe=recipe, lr_rule=rule, ceiling=rate_ceiling(recipe, plan.learning))
    found = (
        run_evidence(nodes, measured, recipe, line, warnings)
        if measured is not None
        else Evidence(seen=(), responses=None, overlay=None)
    )
    numbers = sum(o.is_number for o in found.seen)
    stated = stated_costs(plan.learning, recipe, line)
    seen = (*found.seen[:numbers], *stated, *found.seen[numbers:])
    lag = draw_lag(nodes, recipe, draws=PRIOR_DRAWS, rng=np.random.default_rng([seed, 2]), warnings=warnings)
    drawn = draw_learning(plan.learning, recipe, evidence, seen, draws=draws, rng=rng, warnings=warnings, lag=lag)
    sources = drawn.sources
    fit, stages, absolute = system_stages(
        nodes, plan, recipe, draws=draws, rng=rng, seed=seed, sources=sources, warnings=warnings
    )
    limit = memory_limit(plan, recipe, warnings)
    stages = cap_stages(stages, limit, fit)
    n0 = np.exp(drawn.log_level) if drawn.log_level is not None else None
    if plan.target.responses_to_target is not None:
        n0 = np.full(draws, plan.target.responses_to_target)
    t0 = plan.target.time_to_target
    laws = compare_laws(
        seen if drawn.lag is None else tuple(_at_one_age(o, drawn.lag, recipe) for o in seen),
        reference_batch=float(recipe.train_batch),
        lr_rule=rule,
        ceiling=line.ceiling,
        optimizer=recipe.optimizer,
    )
    batches = [ds.attrs["train_batch"] for ds in (runs.children.values() if runs is not None else ())]
    return Calibration(
        plan=plan,
        recipe=recipe,
        target=target,
        metric=metric,
        lr_rule=rule_name(rule),
        level=level,
        calibrated_on=tuple(sorted({float(b) for b in batches})),
        effective_draws=drawn.effective,
        unmoved=drawn.unmoved,
        lag=drawn.lag,
        responses=found.responses,
        overlay=found.overlay,
        laws=laws,
        reference_curve=curve_of_reference(nodes, recipe, metric) if with_curve and metric is not None else None,
        **drawn.parameters,
        seen=seen,
        log_seen=drawn.log_seen,
        law_spread=drawn.law_spread,
        stages=stages,
        absolute=absolute,
        responses_to_target=n0,
        time_to_target=np.full(draws, t0) if t0 is not None else None,
        measured_batches=tuple(
            sorted({float(recipe.train_batch)} | {o.train_batch for o in seen} | observed_batches(plan, recipe))
        ),
        step_time=fit,
        noise_scales=estimates,
        open_above=open_above,
        memory_limit=limit,
        sources=sources,
        warnings=warnings,
    )


def _at_one_age(seen: Seen, lag: Lag, recipe: Recipe) -> Seen:
    """An observation less what the age of its responses costs, at the median, since laws know of no age."""
    late = float(np.median(lag.log_factor(seen.train_batch / recipe.train_batch)))
    return replace(seen, low=seen.low - late, high=seen.high - late)


def _reference_recipe(measured: xr.DataTree | None, nodes: dict[str, xr.Dataset], plan: Plan) -> Recipe:
    """The plan's recipe, or the arm with the smallest batch."""
    if plan.recipe is not None:
        return plan.recipe
    if measured is None:
        raise InputError(
            "nothing to predict from: no logs and no [recipe]",
            where=plan.source or "plan",
            remedy="give [recipe] prompts and group_size, or log files",
        )
    arms = measured["arms"].to_dataset()
    arm = arms.isel(arm=arms.attrs["reference"])
    rules = {str(r) for r in arms["lr_rule"].values} & set(EXPONENTS)
    return _recipe_of(arm, nodes, lr_rule="sqrt" if len(rules) != 1 else rules.pop())


def _recipe_of(arm: xr.Dataset, nodes: dict[str, xr.Dataset], *, lr_rule: str) -> Recipe:
    rollout, train = round(float(arm["rollout_batch"])), round(float(arm["train_batch"]))
    group = float(arm["group_size"])
    size = round(group) if np.isfinite(group) else 1
    rate = float(arm["learning_rate"])
    updates, epochs = _updates_and_epochs(rollout, train, nodes)
    return Recipe(
        prompts=rollout // size,
        group_size=size,
        updates_per_rollout=updates,
        epochs=epochs,
        learning_rate=rate if np.isfinite(rate) else None,
        lr_rule=lr_rule,  # type: ignore[arg-type]
    )


def _updates_and_epochs(rollout: int, train: int, nodes: dict[str, xr.Dataset]) -> tuple[int, int]:
    """M and E as the logs of the reference state them, else the least that give its two batches."""
    stated = {
        (int(ds.attrs["updates_per_rollout"]), int(ds.attrs["epochs"]))
        for ds in nodes.values()
        if ds.attrs["train_batch"] == train and {"updates_per_rollout", "epochs"} <= ds.attrs.keys()
    }
    # Both batches leave M and E a common factor, which the age of responses and the number of updates depend on.
    fits = [(m, e) for m, e in stated if rollout * e == train * m]
    if len(fits) == 1:
        return fits[0]
    common = math.gcd(rollout, train)
    return rollout // common, train // common
