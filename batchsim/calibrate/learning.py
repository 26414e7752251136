r"""The learning side of a calibration: draws of its parameters from priors and pilots.

The noise scale B_noise is drawn from prior times norm likelihood, on a fine grid; the shape k, the fraction c_0 of
the optimal rate, the penalty's shape p and the curvature ratio from priors. All are weighted by what the arms say,

    log N*_i ~ log N*_0 + log r_N(B_i, eta_i; parameters),     N*_0 profiled out,

with errors from the spread over runs, the width of the evaluation intervals and the law's own error, widened where
even the best draw misses the arms (Birge's factor), and by the updates ratios that a plan states. One resampling
gives the draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
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
from batchsim.plan import Learning, Plan
from batchsim.specs.recipe import Recipe

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
LEARNING = ("noise_scale", "snr_shape", "lr_fraction", "penalty_shape", "curvature_ratio")

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Arm:
    """What one measured arm says of N*: log N* and its standard error at a batch and rate."""

    train_batch: float
    learning_rate_ratio: float
    log_responses: float
    error: float


def norm_evidence(estimates: list[NoiseScale]) -> tuple[list[NoiseScale], bool]:
    """Estimates that enter the likelihood, and whether the noise scale stays open above.

    Chunk norms of a step are compared at one point of training; norms of runs at several batches are
    not, so chunk norms stand alone where they exist. Windows that disagree enter as a mixture.
    """
    usable = [e for e in estimates if e.dof > 0]
    chunked = [e for e in usable if e.method == "chunk norms"]
    chosen = chunked or usable
    return chosen, bool(chosen) and not all(e.identified for e in chosen)


def cost_arms(measured: xr.DataTree, recipe: Recipe) -> list[Arm]:
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
            Arm(
                train_batch=float(arm["train_batch"]),
                learning_rate_ratio=rate,
                log_responses=math.log(centre),
                error=math.hypot(spread, grid),
            )
        )
    return arms


def draw_learning(
    given: Learning,
    recipe: Recipe,
    norms: list[NoiseScale],
    arms: list[Arm],
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


def _arm_misfit(arms: list[Arm], recipe: Recipe, prior: dict[str, Floats]) -> tuple[Floats, Floats, float]:
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


def _excess(misfit: Floats, arms: list[Arm], warnings: list[str]) -> float:
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


def observed_batches(plan: Plan, recipe: Recipe) -> set[float]:
    """Train batches [responses] of the pilots whose sample cost a plan states."""
    scale = recipe.group_size * recipe.epochs / recipe.updates_per_rollout
    return {float(o.prompts * scale) for o in plan.learning.observed}
