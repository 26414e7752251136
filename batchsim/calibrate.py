r"""From pilots and priors to the parameters of both sides, with draws.

Learning side. The noise scale B_noise is drawn from prior times norm likelihood, the shape k, the fraction c_0 of
the optimal rate, the penalty's shape p and the curvature ratio from priors, and all are weighted by what arms say
(sampling, importance, resampling):

    gradient norms       profile Student likelihood of |G|^2 - tr(Sigma)/B_noise = 0
    N* of the arms       log N*_i ~ log N*_0 + log r_N(B_i, eta_i; B_noise, k, c_0), N*_0 profiled out,
                         errors from the spread over runs and the width of the evaluation intervals,
                         widened where even the best draw misses the arms (Birge's factor)
    observed intervals   the same for updates ratios that a plan states

Priors: B_noise log-uniform over 200 to 50,000 responses (published recipes cluster at 1k to 8k responses
per update, and B_noise of 0.65k to 20k has been measured in RL); drift with probability 1/2, else k
log-uniform over 1/2 to 4 (an isotropic softmax world has 1/2, a small transformer .56 to .78, tuned
pretraining prefers drift); c_0 uniform over 0.01 to 0.5; p uniform over -1 (quadratic) to 0.5 and h_ratio
log-uniform over 0.2 to 1 (a small transformer asks for p of .2 to .35 and h_ratio of .2 to .5; nothing else measured
tells, so that transformer is no independent test of these two). What no pilot identifies keeps its prior, and the
calibration says so and names the run that would tell.

System side. The affine law of the step time with its covariance and its unknown plateau (`step_time`),
capped by memory where the plan states it; or the plan's own stage laws.

The law extrapolates with an error of its own: predicting the largest batch from the smaller ones
missed by a median of 8 % per octave over 16 workloads, so log r_N gets a standard deviation of .12 per
square root of an octave beyond the measured batches.

References
----------
.. [1] Rubin 1987, "The calculation of posterior distributions by data augmentation: comment", JASA 82:543
   (sampling, importance, resampling).
.. [2] Birge 1932, "The calculation of errors by the method of least squares", Phys. Rev. 40:207.
.. [3] MLCommons reference convergence points, mlcommons/logging @ 7bbf7926, mlperf_logging/rcp_checker (law error).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri

from batchsim.errors import InputError
from batchsim.learning.lr_rule import EXPONENTS
from batchsim.learning.noise_scale import NoiseScale
from batchsim.learning.progress import step_cost, usable_slope
from batchsim.learning.sample_cost import cost_at_rate
from batchsim.measure import LEVEL, measure, noise_scales_to_target, same_group
from batchsim.plan import Learning, Plan
from batchsim.specs.recipe import Recipe
from batchsim.system.memory import concurrency_max
from batchsim.system.pipeline import capped_throughput
from batchsim.system.step_time import StepTimeFit, draw_law, fit_means, fit_step_time

PRIOR_DRAWS = 40_000
GRID = 4001
NOISE_SCALE_PRIOR = (200.0, 50_000.0)
SNR_SHAPE_PRIOR = (0.5, 4.0)
DRIFT_PROBABILITY = 0.5
LR_FRACTION_PRIOR = (0.01, 0.5)
PENALTY_SHAPE_PRIOR = (-1.0, 0.5)
CURVATURE_RATIO_PRIOR = (0.2, 1.0)
RUN_SPREAD = 0.1
"""Relative spread of N* over runs where no repeat shows it. Reference convergence points scatter by 2-5 % in
language-model pretraining and 5-15 % elsewhere (6 to 197 seeds each)."""
LAW_ERROR = 0.12
"""Standard deviation of log r_N per square root of an octave beyond the measured batches."""
MIN_EFFECTIVE_DRAWS = 100
PARAMETERS = 5
"""B_noise, k, c_0, p and h_ratio, the free parameters of the learning side."""
RELATIVE_REFERENCE_ERROR = 1e-3
"""Relative error of the reference's own time where only ratios to it are stated: ratios carry the error."""
STATED_DOF = 30.0
"""Degrees of freedom of errors that a plan states: near normal."""
LEARNING = ("noise_scale", "snr_shape", "lr_fraction", "penalty_shape", "curvature_ratio")

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Parameters of both sides with their draws.

    Parameters
    ----------
    recipe : Recipe
        The reference.
    noise_scale, snr_shape, lr_fraction, penalty_shape, curvature_ratio : ndarray, (draw,) [responses], [1], ...
    law_misfit : float [1]
        Standard deviation of log r_N by which the law misses the measured arms beyond their errors.
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
    warnings : list of str
    """

    recipe: Recipe
    noise_scale: Floats
    snr_shape: Floats
    lr_fraction: Floats
    penalty_shape: Floats
    curvature_ratio: Floats
    law_misfit: float
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
    warnings: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """Text table of every parameter: median, central 80 % interval, where it comes from."""
        lines = [f"{'parameter':<22} {'median':>10} {'10 %':>10} {'90 %':>10}  source"]
        for name in LEARNING:
            low, mid, high = np.quantile(getattr(self, name), [0.1, 0.5, 0.9], method="nearest")
            lines.append(f"{name:<22} {mid:>10.4g} {low:>10.4g} {high:>10.4g}  {self.sources[name]}")
        for name, value in self.stages.items():
            if isinstance(value, str):
                continue
            low, mid, high = np.quantile(np.atleast_1d(value), [0.1, 0.5, 0.9], method="nearest")
            lines.append(f"{name:<22} {mid:>10.4g} {low:>10.4g} {high:>10.4g}  {self.sources['step_time']}")
        return "\n".join(lines)


def calibrate(
    runs: xr.DataTree | None,
    plan: Plan,
    *,
    target: float | None = None,
    metric: str | None = None,
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
        Without runs and without a recipe.
    """
    if not 10 <= draws <= PRIOR_DRAWS:
        raise InputError(f"draws is {draws}, outside 10 to {PRIOR_DRAWS}")
    rng = np.random.default_rng(seed)
    target = plan.target.score if target is None else target
    metric = (plan.target.metric or None) if metric is None else metric
    warnings = plan.warnings(with_logs=runs is not None)
    measured = measure(runs, target=target, metric=metric, level=level, seed=seed) if runs is not None else None
    if measured is not None:
        warnings += [w for w in measured.attrs["warnings"] if "noise scale" not in w and "noise-scale" not in w]
    nodes = {name: node.to_dataset() for name, node in runs.children.items()} if runs is not None else {}
    recipe = _reference_recipe(measured, plan)
    nodes = same_group(nodes, recipe.group_size)
    estimates = []
    if measured is not None and nodes:
        estimates = noise_scales_to_target(nodes, measured["runs"].to_dataset(), recipe.group_size, level=level)
    evidence, open_above = _norm_evidence(estimates)
    open_above = open_above and plan.learning.noise_scale is None
    arms = _cost_arms(measured, recipe) if measured is not None else []
    learning, log_n0, law_misfit, sources = _draw_learning(
        plan.learning, recipe, evidence, arms, draws=draws, rng=rng, warnings=warnings
    )
    fit, stages, absolute = _system(nodes, plan, recipe, draws=draws, rng=rng, sources=sources, warnings=warnings)
    limit = _memory_limit(plan, recipe)
    stages = _cap(stages, limit, fit)
    n0 = np.exp(log_n0) if log_n0 is not None else None
    if plan.target.responses_to_target is not None:
        n0 = np.full(draws, plan.target.responses_to_target)
    t0 = plan.target.time_to_target
    return Calibration(
        recipe=recipe,
        **learning,
        law_misfit=law_misfit,
        stages=stages,
        absolute=absolute,
        responses_to_target=n0,
        time_to_target=np.full(draws, t0) if t0 is not None else None,
        measured_batches=tuple(
            sorted({float(recipe.train_batch)} | {a.train_batch for a in arms} | _observed(plan, recipe))
        ),
        step_time=fit,
        noise_scales=estimates,
        open_above=open_above,
        memory_limit=limit,
        sources=sources,
        warnings=warnings,
    )


# -- the reference ------------------------------------------------------------------------------------


def _reference_recipe(measured: xr.DataTree | None, plan: Plan) -> Recipe:
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
    return _recipe_of(arm, lr_rule="sqrt" if len(rules) != 1 else rules.pop())


def _recipe_of(arm: xr.Dataset, *, lr_rule: str) -> Recipe:
    rollout, train = round(float(arm["rollout_batch"])), round(float(arm["train_batch"]))
    group = float(arm["group_size"])
    size = round(group) if np.isfinite(group) else 1
    rate = float(arm["learning_rate"])
    return Recipe(
        prompts=rollout // size,
        group_size=size,
        updates_per_rollout=rollout // math.gcd(rollout, train),
        epochs=train // math.gcd(rollout, train),
        learning_rate=rate if np.isfinite(rate) else None,
        lr_rule=lr_rule,  # type: ignore[arg-type]
    )


# -- the learning side --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Arm:
    """What one measured arm says of N*: log N* and its standard error at a batch and rate."""

    train_batch: float
    learning_rate_ratio: float
    log_responses: float
    error: float


def _norm_evidence(estimates: list[NoiseScale]) -> tuple[list[NoiseScale], bool]:
    """Estimates that enter the likelihood, and whether the noise scale stays open above.

    Chunk norms of a step are compared at one point of training; norms of runs at several batches are
    not, so chunk norms stand alone where they exist. Windows that disagree enter as a mixture.
    """
    usable = [e for e in estimates if e.dof > 0]
    chunked = [e for e in usable if e.method == "chunk norms"]
    chosen = chunked or usable
    return chosen, bool(chosen) and not all(e.identified for e in chosen)


def _cost_arms(measured: xr.DataTree, recipe: Recipe) -> list[_Arm]:
    """Arms of the reference's group size whose N* is bounded on both sides."""
    ds = measured["arms"].to_dataset()
    arms = []
    for i in range(ds.sizes["arm"]):
        arm = ds.isel(arm=i)
        low, centre, high = arm["responses_to_target"].values
        rate = float(arm["learning_rate"]) / (recipe.learning_rate or math.nan)
        if not np.isfinite(rate) and float(arm["train_batch"]) == recipe.train_batch:
            # The reference is at its own rate, whatever that is.
            rate = 1.0
        group = float(arm["group_size"])
        other_group = np.isfinite(group) and group != recipe.group_size
        if not np.isfinite(centre) or not np.isfinite(rate) or other_group:
            continue
        spread = float(arm["responses_to_target_se"]) / centre
        size = math.sqrt(float(arm["runs"]))
        spread = spread if np.isfinite(spread) else RUN_SPREAD / size
        grid = (high - low) / math.sqrt(12) / size / centre
        arms.append(
            _Arm(
                train_batch=float(arm["train_batch"]),
                learning_rate_ratio=rate,
                log_responses=math.log(centre),
                error=math.hypot(spread, grid),
            )
        )
    return arms


def _draw_learning(
    given: Learning,
    recipe: Recipe,
    norms: list[NoiseScale],
    arms: list[_Arm],
    *,
    draws: int,
    rng: np.random.Generator,
    warnings: list[str],
) -> tuple[dict[str, Floats], Floats | None, float, dict[str, str]]:
    """Posterior draws of the learning side, of log N*_0, the law's misfit, and where each parameter comes from."""
    prior = _draw_prior(given, norms, rng)
    log_weight = np.zeros(PRIOR_DRAWS)
    log_n0, law_misfit = np.full(PRIOR_DRAWS, np.nan), 0.0
    if arms:
        misfit, centre, error = _arm_misfit(arms, recipe, prior)
        scale = _excess(misfit, arms, warnings)
        log_weight -= misfit / (2 * scale)
        error = error * math.sqrt(scale)
        law_misfit = math.sqrt((scale - 1) * float(np.mean([a.error**2 for a in arms])))
        log_n0 = centre + error * rng.standard_normal(PRIOR_DRAWS)
    for seen in given.observed:
        log_weight += _interval_likelihood(seen, recipe, prior)
    if not np.isfinite(log_weight).any():
        raise InputError(
            "no draw of the priors can explain the measured sample costs: under every one of them a measured recipe "
            "makes training diverge, or a stated ratio is impossible",
            remedy="check the learning rates and ratios; leave out the run or [[learning.observed]] entry at the "
            "highest rate, or give penalty_shape and lr_fraction intervals that allow it",
        )
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    effective = 1 / float(np.sum(weight**2))
    if effective < MIN_EFFECTIVE_DRAWS:
        warnings.append(
            f"the pilots leave {effective:.0f} effective prior draws of {PRIOR_DRAWS}: they contradict the law, the "
            "prior or each other; compare `batchsim measure` with the prediction at the measured batches"
        )
    # Systematic resampling: one uniform number, the least added noise.
    picks = np.searchsorted(np.cumsum(weight), (rng.uniform() + np.arange(draws)) / draws)
    picks = rng.permutation(np.minimum(picks, PRIOR_DRAWS - 1))
    chosen = {name: value[picks] for name, value in prior.items()}
    informed = len({a.train_batch for a in arms}) > 1 or bool(given.observed)
    probed = len({(a.train_batch, round(a.learning_rate_ratio, 6)) for a in arms}) > 2 or bool(given.observed)
    sources = {
        "noise_scale": _source(given.noise_scale, bool(norms) or informed),
        "snr_shape": _source(given.snr_shape, informed),
        "lr_fraction": _source(given.lr_fraction, probed),
        "penalty_shape": _source(given.penalty_shape, probed),
        "curvature_ratio": _source(given.curvature_ratio, probed),
    }
    warnings += _unidentified_learning(sources, recipe)
    return chosen, log_n0[picks] if arms else None, law_misfit, sources


def _source(given: object, informed: bool) -> str:
    if given is not None and not isinstance(given, tuple):
        return "given"
    start = "given interval" if given is not None else "prior"
    return f"{start} and pilots" if informed else start


def _unidentified_learning(sources: dict[str, str], recipe: Recipe) -> list[str]:
    b = recipe.train_batch
    said = []
    if sources["noise_scale"] == "prior":
        low, high = NOISE_SCALE_PRIOR
        said.append(
            f"nothing measured bears on the noise scale: it is a prior ({low:g} to {high:g} responses); gradient norms "
            f"of two chunks of each batch over some tens of updates at {b} responses would tell"
        )
    if sources["lr_fraction"] == "prior":
        said.append(
            "how far the learning rate is below its optimum is a prior; a run at twice the rate and the same batch "
            "would narrow it"
        )
    return said


def _draw_noise_scale(given: Learning, norms: list[NoiseScale], rng: np.random.Generator) -> Floats:
    """Noise scales from prior times norm likelihood, by inverting the distribution on a fine logarithmic grid."""
    if given.noise_scale is None:
        low, high = np.log(NOISE_SCALE_PRIOR)
        grid = np.linspace(low, high, GRID)
        log_density = np.zeros(GRID)
    elif isinstance(given.noise_scale, tuple):
        low, high = np.log(given.noise_scale)
        centre, spread = (low + high) / 2, (high - low) / (2 * ndtri(0.9))
        grid = np.linspace(centre - 5 * spread, centre + 5 * spread, GRID)
        log_density = -(((grid - centre) / spread) ** 2) / 2
    else:
        return np.full(PRIOR_DRAWS, float(given.noise_scale))
    if norms:
        # Several estimates, which share data, enter as a mixture with equal weights.
        likelihood = np.stack([e.log_likelihood(np.exp(grid)) for e in norms])
        log_density = log_density + np.logaddexp.reduce(likelihood, axis=0)
    mass = np.cumsum(np.exp(log_density - log_density.max()))
    return np.exp(np.interp(rng.uniform(size=PRIOR_DRAWS), mass / mass[-1], grid))


def _draw_prior(given: Learning, norms: list[NoiseScale], rng: np.random.Generator) -> dict[str, Floats]:
    n = PRIOR_DRAWS
    noise = _draw_noise_scale(given, norms, rng)
    shape: Floats
    if given.snr_shape is None:
        shape = np.exp(rng.uniform(math.log(SNR_SHAPE_PRIOR[0]), math.log(SNR_SHAPE_PRIOR[1]), size=n))
        shape = np.where(rng.uniform(size=n) < DRIFT_PROBABILITY, np.inf, shape)
    else:
        shape = np.full(n, np.inf if given.snr_shape == "drift" else float(given.snr_shape))
    return {
        "noise_scale": noise,
        "snr_shape": shape,
        "lr_fraction": _uniform(given.lr_fraction, LR_FRACTION_PRIOR, rng),
        "penalty_shape": _uniform(given.penalty_shape, PENALTY_SHAPE_PRIOR, rng),
        "curvature_ratio": np.exp(_uniform(_logarithm(given.curvature_ratio), _logarithm(CURVATURE_RATIO_PRIOR), rng)),
    }


def _uniform(given: Any, prior: Any, rng: np.random.Generator) -> Floats:
    """Draws of a given value, or uniform ones between given or prior limits."""
    chosen = prior if given is None else given
    if isinstance(chosen, tuple):
        return rng.uniform(chosen[0], chosen[1], size=PRIOR_DRAWS)
    return np.full(PRIOR_DRAWS, float(chosen))


def _logarithm(value: Any) -> Any:
    if value is None:
        return None
    return tuple(math.log(v) for v in value) if isinstance(value, tuple) else math.log(value)


def _log_cost(train_batch: float, learning_rate_ratio: float, recipe: Recipe, prior: dict[str, Floats]) -> Floats:
    """Log r_N of a batch at a stated rate, per prior draw."""
    b0, noise = float(recipe.train_batch), prior["noise_scale"]
    slope = {"noise_scale": noise, "snr_shape": prior["snr_shape"], "optimizer": recipe.optimizer}
    bend = {"noise_scale": noise, "curvature_ratio": prior["curvature_ratio"], "optimizer": recipe.optimizer}
    cost = cost_at_rate(
        train_batch / b0,
        learning_rate_ratio=learning_rate_ratio,
        lr_fraction=prior["lr_fraction"],
        slope_ratio=usable_slope(b0, **slope) / usable_slope(train_batch, **slope),  # type: ignore[arg-type]
        cost_ratio=step_cost(train_batch, **bend) / step_cost(b0, **bend),  # type: ignore[arg-type]
        penalty_shape=prior["penalty_shape"],
    )
    return np.log(cost)


def law_error(train_batch: Any, measured_batches: tuple[float, ...]) -> Floats:
    """Standard deviation of log r_N that the law owes to extrapolation.

    Parameters
    ----------
    train_batch : array_like, any shape [responses]
    measured_batches : tuple of float [responses]

    Returns
    -------
    ndarray [1]
        `LAW_ERROR` times the square root of the octaves outside the measured batches; 0 within them.
    """
    b = np.asarray(train_batch, dtype=np.float64)
    outside = np.maximum(np.log2(b / max(measured_batches)), np.log2(min(measured_batches) / b))
    return np.asarray(LAW_ERROR * np.sqrt(np.maximum(outside, 0.0)))


def _arm_misfit(arms: list[_Arm], recipe: Recipe, prior: dict[str, Floats]) -> tuple[Floats, Floats, float]:
    """Sum of squared studentised residuals per draw with log N*_0 profiled out, its estimate and its error."""
    reference = (float(recipe.train_batch),)
    residual = np.stack(
        [a.log_responses - _log_cost(a.train_batch, a.learning_rate_ratio, recipe, prior) for a in arms]
    )
    # A rate away from its reference extrapolates the law as much as a batch does.
    away = [
        max(a.train_batch, recipe.train_batch * max(a.learning_rate_ratio, 1 / a.learning_rate_ratio)) for a in arms
    ]
    variance = np.array([a.error**2 for a in arms]) + law_error(away, reference) ** 2
    weight = (1 / variance)[:, None]
    # A draw under which a measured run diverges is impossible: its residual is minus infinity.
    possible = np.isfinite(residual).all(axis=0)
    residual = np.where(np.isfinite(residual), residual, 0.0)
    centre = np.sum(weight * residual, axis=0) / weight.sum()
    misfit = np.sum(weight * (residual - centre) ** 2, axis=0)
    return np.where(possible, misfit, np.inf), centre, float(weight.sum()) ** -0.5


def _excess(misfit: Floats, arms: list[_Arm], warnings: list[str]) -> float:
    """Factor on the variances that makes the best draw fit the arms as well as their errors promise.

    With fewer arms than parameters nothing is left to judge the law by, and the factor is 1.
    """
    spare = len(arms) - 1 - PARAMETERS
    if spare < 1 or not np.isfinite(misfit).any():
        return 1.0
    excess = float(misfit.min()) / spare
    if excess > 1:
        warnings.append(
            f"the law misses the measured arms by {math.sqrt(excess):.1f} times their errors, which are widened by "
            "that factor; compare `batchsim measure` with the prediction at the measured batches and rates"
        )
    return max(1.0, excess)


def _interval_likelihood(seen: Any, recipe: Recipe, prior: dict[str, Floats]) -> Floats:
    """Log-probability that log(S/S_0) falls into a stated interval, per prior draw."""
    batch = seen.prompts * recipe.group_size * recipe.epochs / recipe.updates_per_rollout
    x = batch / recipe.train_batch
    log_updates = _log_cost(batch, x ** EXPONENTS[seen.lr_rule], recipe, prior) - math.log(x)
    # A ratio has the errors of two runs, and the law its own.
    error = math.hypot(math.sqrt(2) * seen.relative_error, float(law_error(batch, (float(recipe.train_batch),))))
    z_low, z_high = ((limit - log_updates) / error for limit in np.log(seen.updates_ratio))
    with np.errstate(invalid="ignore"):
        inside = -(z_low**2) / 2 if seen.updates_ratio[0] == seen.updates_ratio[1] else _log_normal_mass(z_low, z_high)
    return np.where(np.isfinite(log_updates), inside, -np.inf)


def _log_normal_mass(z_low: Floats, z_high: Floats) -> Floats:
    """log(Phi(z_high) - Phi(z_low)), accurate in both tails."""
    # In the upper tail Phi rounds to 1; its mirror image does not.
    upper = z_low > 0
    low, high = np.where(upper, -z_high, z_low), np.where(upper, -z_low, z_high)
    top = log_ndtr(high)
    with np.errstate(divide="ignore"):
        return np.asarray(top + np.log(-np.expm1(log_ndtr(low) - top)))


def _observed(plan: Plan, recipe: Recipe) -> set[float]:
    scale = recipe.group_size * recipe.epochs / recipe.updates_per_rollout
    return {float(o.prompts * scale) for o in plan.learning.observed}


# -- the system side ----------------------------------------------------------------------------------


def _system(
    nodes: dict[str, xr.Dataset],
    plan: Plan,
    recipe: Recipe,
    *,
    draws: int,
    rng: np.random.Generator,
    sources: dict[str, str],
    warnings: list[str],
) -> tuple[StepTimeFit | None, dict[str, Any], bool]:
    """The fitted law, the arguments of `pipeline.throughput`, and whether they are in seconds."""
    engine = plan.engine
    if engine.gen_time_slope is not None:
        sources["step_time"] = "given"
        stages = {
            "gen_time_intercept": engine.gen_time_intercept,
            "gen_time_slope": engine.gen_time_slope,
            "gen_throughput_max": engine.gen_throughput_max or np.inf,
            "gen_ratio": recipe.gen_ratio,
            "kept_share": engine.kept_share,
            "train_time_intercept": engine.train_time_intercept,
            "train_time_per_response": engine.train_time_per_response,
            "overhead_time": engine.overhead_time,
            "mode": engine.mode,
        }
        return None, stages, True
    fit, absolute, source = _fit_system(nodes, plan, recipe)
    if not fit.success:
        warnings.append(f"step time: {fit.message}; until then r_q rests on a prior share of shared time")
    else:
        warnings.append(
            f"nothing measured beyond a rollout batch of {fit.rollout_batch[-1]:g} responses shows a plateau of the "
            f"throughput; r_q above it spans every plateau up to the affine law's; a few steps at "
            f"{4 * fit.rollout_batch[-1]:g} would tell"
        )
    if fit.success and (fit.update_time_intercept < 0 or fit.update_time_slope <= 0):
        shown = ", ".join(f"{t:.4g} at {r:g}" for r, t in zip(fit.rollout_batch, fit.step_time, strict=True))
        warnings.append(
            f"step times ({shown} responses) are no affine law with a shared and a per-response part: they rise faster "
            "than in proportion, or fall; the forecast takes the nearest such law, so its r_q is not the measured one, "
            "and a larger batch may be slower than it says; compare `batchsim measure`"
        )
    sources["step_time"] = source if fit.success else f"{source}, shared part prior"
    tau0, tau1, q_max = draw_law(fit, draws=draws, rng=rng)
    return fit, {"gen_time_intercept": tau0, "gen_time_slope": tau1, "gen_throughput_max": q_max}, absolute


def _fit_system(nodes: dict[str, xr.Dataset], plan: Plan, recipe: Recipe) -> tuple[StepTimeFit, bool, str]:
    timed = {k: ds for k, ds in nodes.items() if "step_seconds" in ds and ds["steady"].values.any()}
    if timed:
        steady = {k: ds["step_seconds"].values[ds["steady"].values] for k, ds in timed.items()}
        batch = [np.full(v.size, timed[k].attrs["rollout_batch"], dtype=np.float64) for k, v in steady.items()]
        label = [np.full(v.size, i) for i, v in enumerate(steady.values())]
        fit = fit_step_time(np.concatenate(batch), np.concatenate(label), np.concatenate(list(steady.values())))
        if fit.rollout_batch:
            return fit, True, "measured"
    observed = sorted(plan.engine.observed, key=lambda o: o.prompts)
    in_seconds = bool(observed) and all(o.step_seconds is not None for o in observed)
    r0 = float(recipe.rollout_batch)
    rows: dict[float, tuple[float, float]] = {} if in_seconds else {r0: (r0, RELATIVE_REFERENCE_ERROR * r0)}
    for o in observed:
        r = float(o.prompts * recipe.group_size)
        if r in rows and (in_seconds or r != r0 or o.throughput_ratio != 1):
            raise InputError(
                f"[[engine.observed]] states {o.prompts} prompts twice, or a ratio other than 1 for the reference",
                where=plan.source or "plan",
                remedy="state every batch once; the reference's ratio is 1 by definition",
            )
        # Relative times have the reference at one response per unit of time.
        value = o.step_seconds if in_seconds else r / o.throughput_ratio if o.throughput_ratio else None
        if value is None:
            raise InputError(
                "[[engine.observed]] mixes step_seconds and throughput_ratio",
                where=plan.source or "plan",
                remedy="state every pilot in one of the two",
            )
        rows[r] = (value, o.relative_error * value)
    batches = sorted(rows)
    fit = fit_means(batches, [rows[b][0] for b in batches], [rows[b][1] for b in batches], dof=STATED_DOF)
    return fit, in_seconds, "given by the plan" if observed else "prior"


def _memory_limit(plan: Plan, recipe: Recipe) -> tuple[float, str]:
    """Rollout batch at which concurrency is capped, and by what; infinite where nothing says."""
    gpus = plan.gpu.generation_count or plan.gpu.count
    if gpus is None:
        return math.inf, ""
    engine = plan.engine
    concurrency, limit = concurrency_max(
        gpus=gpus,
        tensor_parallel=engine.tensor_parallel,
        max_num_seqs=engine.max_num_seqs or math.inf,
        memory=plan.gpu.memory,
        memory_share=engine.memory_share,
        weight_bytes=plan.model.weight_bytes,
        kv_bytes_per_token=plan.model.kv_bytes_per_token,
        context_length=plan.lengths.context_in_flight,
    )
    return concurrency * engine.kept_share / recipe.gen_ratio, limit


def _cap(stages: dict[str, Any], limit: tuple[float, str], fit: StepTimeFit | None) -> dict[str, Any]:
    """Stages whose generation plateau respects the concurrency limit."""
    capacity = limit[0]
    if math.isinf(capacity):
        return stages
    intercept, slope = stages["gen_time_intercept"], stages["gen_time_slope"]
    # The fitted law counts kept responses; a stated law counts generated ones.
    unit = 1.0 if fit is not None else float(stages["gen_ratio"] / stages["kept_share"])
    plateau = capped_throughput(capacity * unit, gen_time_intercept=intercept, gen_time_slope=slope)
    if fit is not None:
        # What was measured is possible, whatever the estimate of memory says.
        largest = fit.rollout_batch[-1]
        plateau = np.maximum(plateau, largest / (intercept + slope * largest))
    return {**stages, "gen_throughput_max": np.minimum(stages["gen_throughput_max"], plateau)}
