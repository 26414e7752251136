r"""The learning side of a calibration: draws of its parameters from priors and pilots.

The noise scale B_noise is drawn from prior times norm likelihood, on a fine grid; the shape k, the fraction c_0 of
the optimal rate, the penalty's shape p and the curvature ratio from priors. All are weighted by what the arms and the
updates ratios of a plan say,

    log N*_i ~ log N*_0 + log r_N(B_i, eta_i; parameters) + law's error,     N*_0 under a flat prior,

with errors from the spread over runs, the width of the evaluation intervals and the law's own error, a Brownian
motion that arms share (`calibrate.discrepancy`), widened where even the best draw misses the arms (Birge's factor).
One resampling gives the draws, each with its own N*_0 and its own misses at what was seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from batchsim.calibrate.discrepancy import Seen, condition
from batchsim.calibrate.lag import Lag
from batchsim.errors import InputError
from batchsim.learning.noise_scale import NoiseScale
from batchsim.learning.progress import step_cost, usable_slope
from batchsim.learning.sample_cost import cost_at_rate
from batchsim.plan import Learning
from batchsim.specs.recipe import Recipe

PRIOR_DRAWS = 40_000
GRID = 4001
NOISE_SCALE_PRIOR = (200.0, 50_000.0)
NORMS_BEYOND = 1000.0
"""Factor beyond the prior's limits that norms may still ask for; there the prior's density falls as 1/distance."""
SNR_SHAPE_PRIOR = (0.5, 4.0)
DRIFT_PROBABILITY = 0.5
LR_FRACTION_PRIOR = (0.01, 0.5)
PENALTY_SHAPE_PRIOR = (-1.0, 0.5)
CURVATURE_RATIO_PRIOR = (0.2, 1.0)
LAW_ERROR = 0.12
"""Standard deviation of log r_N per square root of an octave beyond the measured batches."""
FAR = 3.0
"""Standard errors from which a stated ratio is called out of reach."""
MIN_EFFECTIVE_DRAWS = 100
UNMOVED = 0.85
"""Share of a prior's width from which pilots are said to leave a parameter as it was."""
PARAMETERS = 5
"""B_noise, k, c_0, p and h_ratio, the free parameters of the learning side."""
LEARNING = ("noise_scale", "snr_shape", "lr_fraction", "penalty_shape", "curvature_ratio")

Floats = NDArray[np.float64]


def norm_evidence(estimates: list[NoiseScale]) -> tuple[list[NoiseScale], bool]:
    """Estimates that enter the likelihood, and whether the noise scale stays open above.

    Chunk norms of a step are compared at one point of training; norms of runs at several batches are
    not, so chunk norms stand alone where they exist. Windows that disagree enter as a mixture.
    """
    usable = [e for e in estimates if e.dof > 0]
    chunked = [e for e in usable if e.method == "chunk norms"]
    chosen = chunked or usable
    return chosen, bool(chosen) and not all(e.identified for e in chosen)


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """The learning side of a calibration.

    Parameters
    ----------
    parameters : dict of str to ndarray, (draw,)
    log_level : ndarray, (draw,) or None [1]
        log N*_0.
    log_seen : ndarray, (draw, seen) [1]
        log r_N of every observation, relative to the draw's own N*_0.
    law_spread : float [1]
        Standard deviation of the law's error per square root of an octave.
    effective : float
        Prior draws that the weights leave.
    sources : dict of str to str
    unmoved : tuple of str
        Parameters with a prior that the pilots leave as wide as it was.
    lag : Lag or None
    """

    parameters: dict[str, Floats]
    log_level: Floats | None
    log_seen: Floats
    law_spread: float
    effective: float
    sources: dict[str, str]
    unmoved: tuple[str, ...]
    lag: Lag | None = None


def draw_learning(
    given: Learning,
    recipe: Recipe,
    norms: list[NoiseScale],
    seen: tuple[Seen, ...],
    *,
    draws: int,
    rng: np.random.Generator,
    warnings: list[str],
    lag: Lag | None = None,
) -> Drawn:
    """Posterior draws of the learning side, of N*_0 and of what was seen, and where each parameter comes from."""
    prior = _draw_prior(given, norms, rng)
    log_weight = np.zeros(PRIOR_DRAWS)
    log_level, log_seen, law_spread = None, np.empty((PRIOR_DRAWS, 0)), LAW_ERROR
    if seen:
        log_cost = np.stack([log_law(o, recipe, lag=lag, **prior) for o in seen])
        warnings += _out_of_reach(seen, log_cost, recipe)
        numbers = tuple(o for o in seen if o.is_number and o.level != "ratio")
        if numbers:
            rows = [i for i, o in enumerate(seen) if o in numbers]
            alone = condition(
                numbers, log_cost[rows], reference_batch=recipe.train_batch, law_spread=LAW_ERROR, rng=rng
            )
            widened = math.sqrt(
                _excess(np.where(np.isfinite(alone.log_weight), alone.misfit, np.inf), numbers, warnings)
            )
            law_spread = LAW_ERROR * widened
            seen = tuple(replace(o, error=o.error * widened) for o in seen)
        found = condition(seen, log_cost, reference_batch=recipe.train_batch, law_spread=law_spread, rng=rng)
        log_weight, log_level, log_seen = found.log_weight, found.log_level, found.log_ratio
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
    measured = [o for o in seen if o.level != "ratio"]
    informed = len({o.train_batch for o in measured}) > 1 or bool(given.observed)
    probed = len({(o.train_batch, round(o.learning_rate_ratio, 6)) for o in measured}) > 2
    probed = probed or bool(given.observed)
    sources = {
        "noise_scale": _source(given.noise_scale, bool(norms) or informed),
        "snr_shape": _source(given.snr_shape, informed),
        "lr_fraction": _source(given.lr_fraction, probed),
        "penalty_shape": _source(given.penalty_shape, probed),
        "curvature_ratio": _source(given.curvature_ratio, probed),
    }
    warnings += _unidentified_learning(sources, recipe)
    parameters = {name: value[picks] for name, value in prior.items()}
    # Norms are data too: what they narrow is not as wide as the prior.
    before = prior | {"noise_scale": _draw_noise_scale(given, [], np.random.default_rng(0))}
    return Drawn(
        parameters=parameters,
        log_level=None if log_level is None else log_level[picks],
        log_seen=log_seen[picks],
        law_spread=law_spread,
        effective=effective,
        sources=sources,
        unmoved=tuple(n for n, v in parameters.items() if _share_left(before[n], v) > UNMOVED),
        lag=None if lag is None else lag.at(picks),
    )


def _out_of_reach(seen: tuple[Seen, ...], log_cost: Floats, recipe: Recipe) -> list[str]:
    """Sentences on stated ratios that no draw of the priors comes near: more likely a slip than a finding."""
    said = []
    for o, cost in zip(seen, log_cost, strict=True):
        known = cost[np.isfinite(cost)]
        if o.level != "ratio" or not known.size:
            continue
        octaves = abs(math.log2(o.train_batch / recipe.train_batch)) + abs(o.off_rule)
        slack = FAR * math.hypot(o.error, LAW_ERROR * math.sqrt(octaves))
        low, high = float(known.min()) - slack, float(known.max()) + slack
        if low <= o.high and o.low <= high:
            continue
        x = o.train_batch / recipe.train_batch
        said.append(
            f"[[learning.observed]] has B = {o.train_batch:g} at {math.exp(o.low) / x:.3g} to "
            f"{math.exp(o.high) / x:.3g} of the reference's updates, r_N = {math.exp(o.low):.3g} to "
            f"{math.exp(o.high):.3g}, and the law with its "
            f"errors allows {math.exp(low):.3g} to {math.exp(high):.3g}: check that updates, not responses or steps of "
            "another size, were counted"
        )
    return said


def _share_left(before: Floats, after: Floats) -> float:
    """Width of the central 80 % over that of the prior; 0 for a value that was given."""
    # Drift is an infinite shape, and shapes are compared as 1/k.
    if np.isinf(before).any():
        before, after = 1 / before, 1 / after
    wide, narrow = (np.ptp(np.quantile(v, [0.1, 0.9])) for v in (before, after))
    return float(narrow / wide) if wide > 0 else 0.0


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
        # The limits sum up published recipes; norms of the recipe itself may say otherwise.
        beyond = math.log(NORMS_BEYOND) if norms else 0.0
        grid = np.linspace(low - beyond, high + beyond, GRID)
        log_density = -np.maximum(np.maximum(low - grid, grid - high), 0.0)
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


def log_law(
    seen: Seen,
    recipe: Recipe,
    *,
    noise_scale: ArrayLike,
    snr_shape: ArrayLike,
    lr_fraction: ArrayLike,
    penalty_shape: ArrayLike,
    curvature_ratio: ArrayLike,
    lag: Lag | None = None,
) -> Floats:
    """The law's log r_N at the batch and rate of an observation.

    Parameters
    ----------
    seen : Seen
    recipe : Recipe
        The reference.
    noise_scale, snr_shape, lr_fraction, penalty_shape, curvature_ratio : array_like, broadcastable
        See `sample_cost.sample_cost_ratio`.
    lag : Lag or None
        Age of the responses, with as many draws.

    Returns
    -------
    ndarray, broadcast shape [1]
        Infinite where training diverges.
    """
    b0, b = float(recipe.train_batch), seen.train_batch
    slope = {"noise_scale": noise_scale, "snr_shape": snr_shape, "optimizer": recipe.optimizer}
    curvature = {"noise_scale": noise_scale, "curvature_ratio": curvature_ratio, "optimizer": recipe.optimizer}
    cost = cost_at_rate(
        b / b0,
        learning_rate_ratio=seen.learning_rate_ratio,
        lr_fraction=lr_fraction,
        slope_ratio=usable_slope(b0, **slope) / usable_slope(b, **slope),  # type: ignore[arg-type]
        cost_ratio=step_cost(b, **curvature) / step_cost(b0, **curvature),  # type: ignore[arg-type]
        penalty_shape=penalty_shape,
    )
    return np.log(cost) if lag is None else np.log(cost) + lag.log_factor(b / b0)


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


def _excess(misfit: Floats, arms: tuple[Seen, ...], warnings: list[str]) -> float:
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
