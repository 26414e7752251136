r"""Learning worlds of random coordinates: a truth that is no member of the fitted law.

A world has `COORDINATES` coordinates with signal G_i^2 and noise sigma_i^2 per response. At progress v (0 at the start,
1 at the target) the signal has shrunk, faster where it was larger in part of the worlds, and

    A(B; v) = sum_i G_i(v)^2/sqrt(G_i(v)^2 + sigma_i^2/B)          slope that Adam can use
    h(B; v) = 1 + kappa mean_i (sigma_i^2/B)/(G_i^2 + sigma_i^2/B)  curvature that its step meets
    c(B; v) = c_0 s [A(B_0; 1/2)/h(B_0; 1/2)] [h(B; v)/A(B; v)]     rate over the best one
    progress per update ~ s A(B; v) g(c)

so that updates to the target are S(B) = S_0 int dv/(s A g) over the same at B_0. s follows the rule up to a ceiling.
Then momentum loses m updates at the start, and responses that are L = in-flight/B updates old cost 1 + a L^q:

    N*(B) = B (S(B) (1 + a L^q) + m).

Ratios of signal to noise are Gamma, lognormal, or zero but for a few coordinates; none of it is drawn from a law that
`sample_cost` fits except the first, and there noise is correlated with signal and grows along the run.

References
----------
.. [1] Kingma & Ba 2015, arXiv:1412.6980 (a step is the mean gradient over its own root mean square).
.. [2] McCandlish et al. 2018, arXiv:1812.06162, appendix D (noise scale along a run).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from batchsim.learning.curve import Curve, score_at
from batchsim.learning.curve.families import responses_at
from batchsim.learning.curve.simulate import simulate_run
from batchsim.validate.decisions import ranges
from batchsim.validate.decisions.clusters import Cluster, draw_cluster

if TYPE_CHECKING:
    import xarray as xr

PROGRESS = 48
"""Points of progress at which a world is integrated."""
LEARNING_RATE = 1e-6

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class World:
    """A learning world with its cluster, as drawn.

    Parameters
    ----------
    number : int
    cluster : Cluster
    rule : {'sqrt', 'fixed'}
    noise_scale : float [responses]
        At the start.
    snr_shape : float [1]
    family : str
        Of the signal-to-noise ratios.
    signal, variance : ndarray, (coordinate,)
        G_i^2 at the start and sigma_i^2, tr(Sigma) = 1.
    decay : ndarray, (coordinate,) [1]
        Logarithm of G_i^2 at the start over that at the target.
    updates : float [updates]
        S*_0, with everything that costs updates.
    lr_fraction, noise_curvature : float [1]
    penalty : str
    ceiling : float [1]
        Of eta/eta_0; infinite without one.
    stated_ceiling : float or None [1]
        What the plan says of it.
    momentum_loss : float [1]
        Updates lost per update that momentum remembers.
    stale : tuple of float
        a, q, responses in flight; zeros without.
    lag_logged : bool
    curve : Curve
        Score over responses of the reference after the lost ones.
    target : float [1]
    spread, score_error : float [1]
    """

    number: int
    cluster: Cluster
    rule: str
    noise_scale: float
    snr_shape: float
    family: str
    signal: Floats
    variance: Floats
    decay: Floats
    updates: float
    lr_fraction: float
    noise_curvature: float
    penalty: str
    ceiling: float
    stated_ceiling: float | None
    momentum_loss: float
    stale: tuple[float, float, float]
    lag_logged: bool
    curve: Curve
    target: float
    spread: float
    score_error: float

    @property
    def reference(self) -> int:
        """B_0 [responses]."""
        return self.cluster.reference

    @property
    def lost_updates(self) -> float:
        """m, updates without progress at the start [updates]."""
        return self.momentum_loss * ranges.BETA1 / (1 - ranges.BETA1)


def draw_world(number: int, *, stream: int = ranges.STREAM) -> World:
    """Draw world `number` with its cluster.

    Parameters
    ----------
    number : int
    stream : int
        Another one draws other worlds from the same ranges.

    Returns
    -------
    World
    """
    rng = np.random.default_rng(np.random.SeedSequence(stream, spawn_key=(0, number)))
    reference = int(rng.choice(ranges.PROMPTS)) * ranges.GROUP_SIZE
    cluster = draw_cluster(rng, reference)
    noise_scale = _log_uniform(rng, ranges.NOISE_SCALE)
    shape = math.inf if rng.uniform() < ranges.DRIFT else _log_uniform(rng, ranges.SNR_SHAPE)
    family = str(rng.choice(ranges.FAMILIES)) if math.isfinite(shape) else "drift"
    signal, variance = _moments(rng, noise_scale, shape, family)
    growth = math.log(_log_uniform(rng, ranges.GROWTH))
    decay = np.full(signal.size, growth)
    if rng.uniform() < ranges.STRONG_FIRST:
        rank = np.argsort(np.argsort(signal / variance)) / signal.size
        decay = growth * 2 * rank
    ceiling, stated = math.inf, None
    if rng.uniform() < ranges.CEILING:
        ceiling = _log_uniform(rng, ranges.CEILING_RATE)
        said = ceiling * math.exp(ranges.CEILING_ERROR * rng.standard_normal())
        stated = max(said, 1.0) if rng.uniform() < ranges.CEILING_STATED else None
    loss = rng.uniform(*ranges.MOMENTUM_LOSS) if rng.uniform() < ranges.FEW_UPDATES else 0.0
    stale = (0.0, 1.0, 0.0)
    if rng.uniform() < ranges.STALE:
        flight = _log_uniform(rng, ranges.IN_FLIGHT) * reference
        stale = (float(rng.uniform(*ranges.STALE_COST)), float(rng.uniform(*ranges.STALE_POWER)), flight)
    updates = _log_uniform(rng, ranges.UPDATES)
    start, rise = float(rng.uniform(*ranges.START)), float(rng.uniform(*ranges.RISE))
    target = start + rise * float(rng.uniform(*ranges.TARGET_SHARE))
    curve_family = str(rng.choice(ranges.CURVES))
    exponent = float(rng.uniform(*ranges.EXPONENT[curve_family]))
    unit = Curve(family=curve_family, start=start, asymptote=start + rise, scale=1.0, exponent=exponent)
    lost = loss * ranges.BETA1 / (1 - ranges.BETA1)
    learning = reference * (updates - lost)
    samples = rng.integers(*ranges.EVALUATION_SAMPLES)
    world = World(
        number=number,
        cluster=cluster,
        rule=str(rng.choice(list(ranges.RULES), p=list(ranges.RULES.values()))),
        noise_scale=noise_scale,
        snr_shape=shape,
        family=family,
        signal=signal,
        variance=variance,
        decay=decay,
        updates=updates,
        lr_fraction=float(rng.uniform(*ranges.LR_FRACTION)),
        noise_curvature=float(rng.uniform(*ranges.NOISE_CURVATURE)),
        penalty=str(rng.choice(ranges.PENALTIES)),
        ceiling=ceiling,
        stated_ceiling=stated,
        momentum_loss=float(loss),
        stale=stale,
        # A stream of its own, so that the worlds are those of before.
        lag_logged=np.random.default_rng(np.random.SeedSequence(stream, spawn_key=(4, number))).uniform()
        < ranges.LAG_LOGGED,
        curve=Curve(
            family=curve_family, start=start, asymptote=start + rise, exponent=exponent,
            scale=learning / float(responses_at(unit, target)),
        ),
        target=target,
        spread=float(rng.uniform(*ranges.SPREAD)),
        score_error=math.sqrt(target * (1 - target) / samples),
    )  # fmt: skip
    # A recipe that never arrives is nobody's reference: its rate is halved until it does.
    while not np.isfinite(_per_share(world, world.reference)).all():
        world = replace(world, lr_fraction=world.lr_fraction / 2)
    return world


def _log_uniform(rng: np.random.Generator, limits: tuple[float, float]) -> float:
    return float(np.exp(rng.uniform(*np.log(limits))))


def _moments(rng: np.random.Generator, noise_scale: float, shape: float, family: str) -> tuple[Floats, Floats]:
    """G_i^2 and sigma_i^2 with the stated noise scale; ratios have the second moment that the shape names."""
    n = ranges.COORDINATES
    ratio = np.ones(n)
    if family == "gamma":
        ratio = rng.gamma(shape, 1 / shape, size=n)
    elif family == "lognormal":
        ratio = np.exp(math.sqrt(math.log1p(1 / shape)) * rng.standard_normal(n))
    elif family == "sparse":
        # Some signal everywhere, so that no coordinate is empty.
        ratio = np.where(np.arange(n) < max(1, round(n * shape / (1 + shape))), 1.0, 1e-4)
    follows, spread = rng.uniform(*ranges.VARIANCE_FOLLOWS), rng.uniform(*ranges.VARIANCE_SPREAD)
    log_ratio = np.log(np.maximum(ratio, 1e-6 * ratio.max()))
    variance = np.exp(spread * rng.standard_normal(n) + follows * (log_ratio - log_ratio.mean()))
    variance /= variance.sum()
    signal = np.exp(log_ratio) * variance
    return signal / (signal.sum() * noise_scale), variance


# -- the truth -----------------------------------------------------------------------------------------


def rate_ratio(world: World, train_batch: int) -> float:
    """Rate that a batch trains at, s = eta/eta_0, by the rule and below the ceiling [1]."""
    x = train_batch / world.reference
    return min(math.sqrt(x) if world.rule == "sqrt" else 1.0, world.ceiling)


def slope_and_curvature(world: World, train_batch: float, progress: Floats) -> tuple[Floats, Floats]:
    """A(B; v) and h(B; v) over (progress,)."""
    signal = world.signal * np.exp(-np.multiply.outer(progress, world.decay))
    noise = world.variance / train_batch
    slope = (signal / np.sqrt(signal + noise)).sum(axis=1)
    return slope, 1 + world.noise_curvature * (noise / (signal + noise)).mean(axis=1)


def kept_progress(relative_rate: Floats, penalty: str) -> Floats:
    """Share g(c) of its linear progress that a step keeps; 0 where it undoes all of it."""
    if penalty == "quadratic":
        return np.maximum(1 - relative_rate / 2, 0.0)
    return np.exp(-relative_rate) if penalty == "exponential" else 1 / (1 + relative_rate**2)


def _per_share(world: World, train_batch: int) -> Floats:
    """Updates per equal share of the progress, (progress,), in units of their own; infinite where none is made."""
    v = (np.arange(PROGRESS) + 0.5) / PROGRESS
    at, bend = slope_and_curvature(world, world.reference, np.array([0.5]))
    slope, curvature = slope_and_curvature(world, train_batch, v)
    s = rate_ratio(world, train_batch)
    relative = world.lr_fraction * at[0] / bend[0] * s * curvature / slope
    with np.errstate(divide="ignore"):
        return np.asarray(1 / (s * slope * kept_progress(relative, world.penalty)))


def updates_along(world: World, train_batch: int) -> Floats:
    """Updates until each of PROGRESS + 1 equal shares of the progress, (progress,) [updates]; infinite if never."""
    late = stale_factor(world, train_batch) / stale_factor(world, world.reference)
    learning = world.updates - world.lost_updates
    needed = _per_share(world, train_batch) / _per_share(world, world.reference).sum() * learning * late
    return np.concatenate([[0.0], np.cumsum(needed)]) + world.lost_updates


def stale_factor(world: World, train_batch: int) -> float:
    """1 + a L^q for responses in flight over the batch [1]."""
    a, q, flight = world.stale
    return float(1 + a * (flight / train_batch) ** q)


def responses_to_target(world: World, train_batch: int) -> float:
    """Mean N* of a batch [responses]; infinite where it never arrives."""
    return float(train_batch * updates_along(world, train_batch)[-1])


# -- logs ----------------------------------------------------------------------------------------------


def pilot(world: World, train_batch: int, *, responses: float, rng: np.random.Generator) -> xr.Dataset:
    """One pilot run in the layout of a log, with chunk norms.

    Parameters
    ----------
    world : World
    train_batch : int [responses]
    responses : float [responses]
        After which the run ends with its rollout step.
    rng : numpy.random.Generator

    Returns
    -------
    xarray.Dataset
    """
    used = train_batch * updates_along(world, train_batch)
    # Shares of progress are shares of the reference's own learning.
    own = world.reference * (updates_along(world, world.reference) - world.lost_updates)

    def score(spent: Floats) -> Floats:
        return score_at(world.curve, np.interp(spent, used, own))

    machine = math.exp(world.cluster.machine_spread * rng.standard_normal())
    noise = world.cluster.step_spread
    ds = simulate_run(
        score,
        train_batch=train_batch,
        rng=rng,
        responses_max=responses,
        evaluation_spacing=world.reference * world.updates / ranges.EVALUATIONS,
        score_error=world.score_error,
        spread=world.spread,
        step_seconds=float(world.cluster.step_seconds(train_batch)) * machine * math.exp(-(noise**2) / 2),
        step_seconds_spread=noise,
        group_size=ranges.GROUP_SIZE,
        learning_rate=LEARNING_RATE * rate_ratio(world, train_batch)
        if world.stated_ceiling is not None
        else LEARNING_RATE * (math.sqrt(train_batch / world.reference) if world.rule == "sqrt" else 1.0),
        path=f"b{train_batch}",
    )
    spent = ds["responses"].values - train_batch
    share = np.interp(spent, used, np.arange(PROGRESS + 1) / PROGRESS)
    chunk, batch = _norms(world, train_batch, share, rng)
    ds["sq_norm_chunk"], ds["sq_norm_batch"] = ("rollout_step", chunk), ("rollout_step", batch)
    ds["grad_norm"] = ("rollout_step", np.sqrt(batch))
    if world.stale[0] > 0 and world.lag_logged:
        ds["staleness_mean"] = ("rollout_step", np.full(share.size, world.stale[2] / train_batch))
    # What no log holds.
    del ds.attrs["log_pace"]
    ds.attrs |= {"chunks": ranges.CHUNKS, "lr_rule": world.rule}
    return ds


def _norms(world: World, train_batch: int, share: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Squared norms of chunks (their mean) and of the batch, over (update,): gradients are drawn, not their law."""
    size = train_batch / ranges.CHUNKS
    chunks, batches = np.empty(share.size), np.empty(share.size)
    burst = np.exp(ranges.BURSTS * rng.standard_normal(share.size))
    for i, v in enumerate(share):
        mean = np.sqrt(world.signal * np.exp(-v * world.decay))
        noise = rng.standard_normal((ranges.CHUNKS, mean.size)) * np.sqrt(burst[i] * world.variance / size)
        gradients = mean + noise
        chunks[i] = np.mean(np.sum(gradients**2, axis=1))
        batches[i] = np.sum(gradients.mean(axis=0) ** 2)
    return chunks, batches
