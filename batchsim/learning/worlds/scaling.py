r"""What a batch costs in a world, with the learning rate tuned: updates and responses to a target over B.

With the best constant rate at each batch, a noisy quadratic passes through three regimes: perfect scaling, where
twice the batch needs half the updates (the rate is bound by noise, and responses to the target stay the same);
diminishing returns; and maximal data parallelism, where updates no longer fall (the rate is bound by curvature).
They are read from the slope d log S/d log B. What moves the second bound moves the knee: momentum and a
preconditioner allow more progress per update at large batches only, averaging the iterates lowers the noise and
helps at small ones.

The rate is tuned by a grid over its logarithm and a zoom around the best point. The grid ends where either the
floor meets the target or the recursion diverges, whichever comes first; beyond, nothing reaches the target. So the
upper edge is exact, and the grid goes down until the least rate is no longer the best. Every level of the zoom
looks at the whole bracket. Where momentum oscillates, updates over the rate have many valleys; the grid is finer there,
and each batch tries its neighbours' best rates too. An error of 3e-5 in the logarithm of the rate is left, which at the
bottom of a smooth valley is about 1e-9 in the updates.

Responses can *fall* with the batch where a handful of updates suffice: a constant rate wastes small batches, since the
rate that forgets the start keeps the noise of the last responses only. With sgd and S updates at twice the batch the
fall is a share of order 1/S at most, since two updates equal one twice as large but for terms in the size of a step.
Momentum and averaging, whose memory is counted in updates, gain more from a larger batch.

Cost: some 110 crossings per batch (310 with momentum), each about 0.05 ms at 100 coordinates: a curve of 12 batches
takes 0.05 to 0.3 s, once compiled (some 15 s, kept). Adam is simulated at some 30 rates per batch (5 s per such curve),
from the largest down, each cut off at the best one so far; the updates at the chosen rate come from fresh seeds, since
the least of many noisy values is too small.

References
----------
.. [1] Zhang et al. 2019, "Which Algorithmic Choices Matter at Which Batch Sizes?", arXiv:1907.04164, section 3.
.. [2] Shallue et al. 2018, "Measuring the Effects of Data Parallelism", arXiv:1811.03600 (the three regimes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchsim.errors import InputError
from batchsim.learning.worlds.quadratic import (
    OUTCOMES,
    Floats,
    Optimizer,
    Quadratic,
    check_target,
    crossings,
    last_update,
    loss_floor,
    stable_rate,
)
from batchsim.variables import set_attrs

if TYPE_CHECKING:
    import xarray as xr

REGIMES = ("perfect scaling", "diminishing returns", "max data parallelism")
PERFECT, FLAT = -0.9, -0.1
"""Slopes of log updates over log batch that end the first regime and begin the last."""
DEPARTURE = 1.10
"""Responses over those at small batches at the critical training batch."""
BATCHES_MAX = 1000
EDGE = 1 - 1e-9
GRID = np.log(np.concatenate([np.geomspace(1e-3, 0.5, 32, endpoint=False), np.linspace(0.5, EDGE, 16)]))
FINE = np.log(np.linspace(0.01, EDGE, 200)[1:-1])
"""Further points where momentum oscillates, and the valleys are narrow."""
ZOOM, LEVELS = 16, 4
EXTENSIONS = 3
"""Times that the grid goes on below its end, by a factor of 1000 each."""
ADAM_CHUNK, ADAM_FACTOR, ADAM_ZOOM = 8, 1.6, 6
ADAM_GROUPS = 8
"""Independent repetitions at Adam's chosen rate, for the standard error."""


class Tuned(NamedTuple):
    """Best rate of a batch; updates inf and rate NaN where no rate reaches the target."""

    learning_rate: float
    updates: float
    updates_se: float
    outcome: str
    edge: bool


def tuned_rate(
    world: Quadratic,
    optimizer: Optimizer,
    *,
    train_batch: float,
    target: float,
    updates_max: int | None = None,
    seed: int = 0,
) -> Tuned:
    """Constant learning rate that reaches a target loss in the fewest updates.

    Parameters
    ----------
    world : Quadratic
    optimizer : Optimizer
    train_batch : float [responses]
    target : float [1]
    updates_max : int or None [updates]
        See `quadratic.updates_to_target`.
    seed : int
        Of Adam's simulation.

    Returns
    -------
    Tuned
        learning_rate [1], updates [updates] and their standard error (0 where exact), outcome (of `OUTCOMES`: here
        "reached" or "too many updates"), and whether the best rate lies at the edge of what is stable.

    Raises
    ------
    InputError
        For a batch or target outside its bounds.
    """
    check_target(world, target)
    if not 0 < train_batch < np.inf:
        raise InputError(
            f"train_batch is {train_batch:g}, and it must be positive and finite", remedy="as train_batch=64"
        )
    if optimizer.kind == "adam":
        return _tune_adam(world, optimizer, train_batch, target, updates_max, seed)

    return _tune_exact(world, optimizer, train_batch, target, updates_max, hints=())


def _tune_exact(
    world: Quadratic,
    optimizer: Optimizer,
    batch: float,
    target: float,
    updates_max: int | None,
    hints: Sequence[float],
) -> Tuned:
    """Grid and zoom; `hints` are rates that must not be better than the result."""

    def updates_at(log_rates: Floats) -> Floats:
        rates = np.exp(log_rates)
        return crossings(world, optimizer, np.full(rates.size, batch), rates, target, updates_max)[0]

    grid = GRID if optimizer.beta == 0 else np.concatenate([GRID, FINE])
    highest = _highest_rate(world, optimizer, batch, target)
    log_rates = np.unique(np.concatenate([np.log(highest) + grid, np.log(hints)]))
    found = updates_at(log_rates)
    for _ in range(EXTENSIONS):
        if np.isfinite(found).any() and np.argmin(found) > 0:
            break
        lower = log_rates[0] + np.log(1e-3) * np.linspace(1, 0, 32, endpoint=False)
        log_rates, found = np.concatenate([lower, log_rates]), np.concatenate([updates_at(lower), found])
    if not np.isfinite(found).any():
        return Tuned(np.nan, np.inf, np.nan, OUTCOMES[3], False)
    for _ in range(LEVELS):
        best = int(np.argmin(found))
        around = np.arange(max(best - 1, 0), min(best + 2, found.size))
        finer = np.linspace(log_rates[around[0]], log_rates[around[-1]], ZOOM + 2)[1:-1]
        # What is known stays in: the result can only improve.
        log_rates, index = np.unique(np.concatenate([log_rates[around], finer]), return_index=True)
        found = np.concatenate([found[around], updates_at(finer)])[index]
    best = int(np.argmin(found))
    edge = bool(log_rates[best] > np.log(stable_rate(world, optimizer)) - 1e-4)
    return Tuned(float(np.exp(log_rates[best])), float(found[best]), 0.0, OUTCOMES[0], edge)


def _highest_rate(world: Quadratic, optimizer: Optimizer, batch: float, target: float) -> float:
    """Rate at which the floor meets the target, or the stable one: the floor rises with the rate."""
    stable = stable_rate(world, optimizer)

    def floor(rate: float) -> float:
        return loss_floor(world, optimizer, train_batch=batch, learning_rate=rate)

    if floor(stable * EDGE) < target:
        return stable
    low, high = np.log(stable) - 1.0, np.log(stable)
    while floor(float(np.exp(low))) >= target:
        low, high = low - 2 * (np.log(stable) - low), low
    while high - low > 1e-12 * max(abs(low), 1.0):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if floor(float(np.exp(middle))) < target else (low, middle)
    return float(np.exp(low))


def _tune_adam(
    world: Quadratic, optimizer: Optimizer, batch: float, target: float, updates_max: int | None, seed: int
) -> Tuned:
    most = last_update(optimizer, updates_max)
    best_rate, best = np.nan, np.inf
    tried: dict[float, float] = {}

    def look(rates: Floats) -> None:
        nonlocal best_rate, best
        # Slower than the best so far is all that needs to be known.
        bound = int(min(most, np.ceil(best))) if np.isfinite(best) else most
        found = crossings(world, optimizer, np.full(rates.size, batch), rates, target, bound, seed)[0]
        tried.update(zip(rates.tolist(), found.tolist(), strict=True))
        least = int(np.argmin(found))
        if found[least] < best:
            best_rate, best = float(rates[least]), float(found[least])

    # Adam moves by about its rate per update: rates beyond the start overshoot it, and those below the least one
    # cannot arrive within the updates that are allowed.
    reach = float(np.abs(world.start).max())
    rate = 2.0 * reach
    while rate > 0.2 * reach / most:
        chunk = rate * ADAM_FACTOR ** -np.arange(ADAM_CHUNK, dtype=np.float64)
        before = best
        look(chunk)
        rate = float(chunk[-1]) / ADAM_FACTOR
        if np.isfinite(best) and (before == best or best_rate > chunk[-3]):
            break
    if not np.isfinite(best):
        return Tuned(np.nan, np.inf, np.nan, OUTCOMES[3], False)
    spacing = np.log(ADAM_FACTOR)
    for _ in range(2):
        steps = np.linspace(-spacing, spacing, ADAM_ZOOM + 2)[1:-1]
        look(best_rate * np.exp(steps))
        spacing *= 2 / (ADAM_ZOOM + 1)
    groups = np.random.SeedSequence([seed, 1]).generate_state(ADAM_GROUPS).tolist()
    fresh = crossings(
        world, optimizer, np.full(ADAM_GROUPS, batch), np.full(ADAM_GROUPS, best_rate), target, most, groups
    )[0]
    reached = fresh[np.isfinite(fresh)]
    if reached.size < ADAM_GROUPS:
        return Tuned(best_rate, np.inf, np.nan, OUTCOMES[3], False)
    error = float(reached.std(ddof=1) / np.sqrt(ADAM_GROUPS))
    return Tuned(best_rate, float(reached.mean()), error, OUTCOMES[0], False)


def scaling_curve(
    world: Quadratic,
    optimizer: Optimizer,
    *,
    train_batch: ArrayLike,
    target: float,
    updates_max: int | None = None,
    seed: int = 0,
    progress: Callable[[int, int], object] | None = None,
) -> xr.Dataset:
    """Updates and responses to a target over batches, with the rate tuned at each.

    Parameters
    ----------
    world : Quadratic
    optimizer : Optimizer
    train_batch : array_like (K,) [responses]
        In ascending order, at most `BATCHES_MAX`.
    target : float [1]
        Expected loss to reach.
    updates_max : int or None [updates]
        See `quadratic.updates_to_target`.
    seed : int
        Of Adam's simulation; the same for every batch, so that batches are compared under common random numbers.
    progress : callable or None
        Called with batches done and their number.

    Returns
    -------
    xarray.Dataset
        Over train_batch: learning_rate, updates_to_target, responses_to_target, responses_to_target_se (0 where
        exact), sample_cost_ratio (to the smallest batch that reaches the target), loss_floor at the tuned rate,
        training_outcome and regime (one of `REGIMES`, empty where there is no slope). Attributes: target,
        optimizer, noise_scale and curvature_noise_scale at the start [responses], critical_train_batch [responses]
        (see `critical_batch`; NaN if unknown) and warnings.

    Raises
    ------
    InputError
        For batches that are not positive, not ascending or too many, or a target outside its bounds.
    """
    import xarray as xr

    batches = np.atleast_1d(np.asarray(train_batch, dtype=np.float64))
    if not 1 <= batches.size <= BATCHES_MAX:
        raise InputError(f"{batches.size} batches, outside 1 to {BATCHES_MAX}", remedy="choose fewer batches")
    if batches.ndim > 1 or not (np.diff(batches) > 0).all():
        raise InputError("the batches are not in ascending order", remedy="sort them, without repeats")
    found = _tune_all(world, optimizer, batches.tolist(), target, updates_max, seed, progress)
    rates, updates = np.array([t.learning_rate for t in found]), np.array([t.updates for t in found])
    responses = batches * updates
    reached = np.isfinite(updates)
    reference = responses[reached][0] if reached.any() else np.nan
    floors = [
        loss_floor(world, optimizer, train_batch=float(b), learning_rate=r) if np.isfinite(r) else np.nan
        for b, r in zip(batches, rates.tolist(), strict=True)
    ]
    along = "train_batch"
    ds = xr.Dataset(
        {
            "learning_rate": (along, rates),
            "updates_to_target": (along, updates),
            "responses_to_target": (along, responses),
            "responses_to_target_se": (along, batches * np.array([t.updates_se for t in found])),
            "sample_cost_ratio": (along, responses / reference),
            "loss_floor": (along, np.array(floors)),
            "training_outcome": (along, np.array([t.outcome for t in found])),
            "regime": (along, regimes(batches, updates)),
        },
        coords={along: batches},
    )
    set_attrs(ds)
    ds.attrs = {
        "target": float(target),
        "optimizer": optimizer.kind,
        "noise_scale": world.noise_scale(),
        "curvature_noise_scale": world.curvature_noise_scale(),
        "critical_train_batch": critical_batch(batches, responses),
        "warnings": _warnings(batches, found, last_update(optimizer, updates_max)),
    }
    return ds


def _tune_all(
    world: Quadratic,
    optimizer: Optimizer,
    batches: list[float],
    target: float,
    updates_max: int | None,
    seed: int,
    progress: Callable[[int, int], object] | None,
) -> list[Tuned]:
    """Each batch with its neighbours' best rates among the candidates.

    At one rate a larger batch never needs more updates, so the tuned updates cannot rise with the batch: the rate of
    the next smaller batch sees to it, and that of the next larger one finds valleys that the grid missed.
    """
    found: list[Tuned] = []
    for i, batch in enumerate(batches):
        if optimizer.kind == "adam":
            found.append(
                tuned_rate(world, optimizer, train_batch=batch, target=target, updates_max=updates_max, seed=seed)
            )
        else:
            hints = [t.learning_rate for t in found[-1:] if np.isfinite(t.learning_rate)]
            found.append(_tune_exact(world, optimizer, batch, target, updates_max, hints))
        if progress is not None:
            progress(i + 1, len(batches))
    if optimizer.kind == "adam":
        return found
    for i in range(len(batches) - 2, -1, -1):
        rate = found[i + 1].learning_rate
        if np.isfinite(rate):
            one = np.array([rate]), np.array([batches[i]])
            if crossings(world, optimizer, one[1], one[0], target, updates_max)[0][0] < found[i].updates:
                found[i] = _tune_exact(world, optimizer, batches[i], target, updates_max, [rate])
    return found


def _warnings(batches: Floats, found: list[Tuned], most: int) -> list[str]:
    said = []
    unreached = [f"{b:g}" for b, t in zip(batches, found, strict=True) if t.outcome != OUTCOMES[0]]
    if unreached:
        said.append(f"B = {', '.join(unreached)}: no rate reaches the target within {most:,} updates")
    edges = [f"{b:g}" for b, t in zip(batches, found, strict=True) if t.edge]
    if edges:
        said.append(f"B = {', '.join(edges)}: the best rate lies at the edge of stability")
    return said


def regimes(train_batch: ArrayLike, updates: ArrayLike) -> NDArray[np.str_]:
    """Regime of each batch, from the slope of log updates over log batch.

    Parameters
    ----------
    train_batch : array_like (K,) [responses]
    updates : array_like (K,) [updates]
        To the target; inf where it is not reached.

    Returns
    -------
    ndarray (K,) of str
        One of `REGIMES`; empty where fewer than two neighbouring batches reach the target.
    """
    slope = log_slope(train_batch, updates)
    label = np.where(slope <= PERFECT, REGIMES[0], np.where(slope >= FLAT, REGIMES[2], REGIMES[1]))
    return np.where(np.isnan(slope), "", label)


def log_slope(train_batch: ArrayLike, updates: ArrayLike) -> Floats:
    """Slope d log S/d log B (K,) [1] of updates S, from the batches on both sides; NaN where there are not two."""
    b, s = np.log(np.asarray(train_batch, dtype=np.float64)), np.asarray(updates, dtype=np.float64)
    slope = np.full(b.shape, np.nan)
    known = np.flatnonzero(np.isfinite(s))
    # What is reached at a batch is reached at every larger one, but for a simulation: runs of neighbours are taken.
    for run in np.split(known, np.flatnonzero(np.diff(known) > 1) + 1):
        if run.size > 1:
            slope[run] = np.gradient(np.log(s[run]), b[run])
    return slope


def critical_batch(train_batch: ArrayLike, responses: ArrayLike, departure: float = DEPARTURE) -> float:
    """Largest batch whose responses are within 10 % of the least at smaller batches.

    Parameters
    ----------
    train_batch : array_like (K,) [responses]
    responses : array_like (K,) [responses]
        To the target.
    departure : float [1]

    Returns
    -------
    float [responses]
        Between batches by a straight line in logarithms; NaN where the curve stays within, or has no two batches.
    """
    b, n = np.asarray(train_batch, dtype=np.float64), np.asarray(responses, dtype=np.float64)
    b, n = b[np.isfinite(n)], n[np.isfinite(n)]
    if b.size < 2:
        return np.nan
    ratio = np.log(n / np.minimum.accumulate(n))
    over = np.flatnonzero(ratio > np.log(departure))
    if not over.size:
        return np.nan
    i = int(over[0])
    share = (np.log(departure) - ratio[i - 1]) / (ratio[i] - ratio[i - 1])
    return float(b[i - 1] * (b[i] / b[i - 1]) ** share)
