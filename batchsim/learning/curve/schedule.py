r"""Batch schedules: what a batch that changes along the run needs, and which one is fastest.

With progress u in responses of the reference recipe and r(u; B) responses spent per unit of it (`warp`), a schedule
B(u) whose rollout steps take tau_0 + tau_1 B needs

    N = int r du,      S = int (r/B) du,      T = int r (tau_0/B + tau_1) du.

The integrand holds B at u only, so the fastest schedule is the fastest batch at every u. For tuned rates and the
drift family r is proportional to B + n with n = B_noise(u), and

    B(u) = sqrt((tau_0/tau_1) n(u)),      dT = (sqrt(tau_0) + sqrt(tau_1 n))^2 dS_min

against (sqrt(tau_0) + sqrt(tau_1 <n>))^2 S_min for the best constant batch: the gain is that of the mean square
root over the root of the mean, at least 1, and 1 for a constant noise scale. Under the sqrt rule far below the
optimal rate B = (a + sqrt(a^2 + 8 a n))/2, a = tau_0/tau_1.

tau_0/tau_1 is a price of an update in responses, and with any other price r_x, B(u) = sqrt(r_x n(u)) is McCandlish's
adaptive batch: each price gives one point of the frontier of updates against responses, on which
(S/S_min - 1)(E/E_min - 1) = <sqrt n>^2/<n> <= 1, where constant batches have 1.

One rollout step is one update (rollout_batch = train_batch). The noise scale depends on progress and not on the
path; warm-up and Adam's averages after a change of the batch are not modelled, and neither is staleness.

References
----------
.. [1] McCandlish et al. 2018, arXiv:1812.06162, eq. 2.11, section 2.3 and appendix D (adaptive batch).
.. [2] Merrill et al. 2025, arXiv:2505.23971 (doubling the batch with the critical batch).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from batchsim.errors import InputError
from batchsim.learning.curve.families import Floats
from batchsim.learning.curve.quadrature import nodes_of, panels
from batchsim.learning.curve.warp import (
    LARGEST_FRACTION,
    LARGEST_RATIO,
    Along,
    along,
    local_cost,
    progress_at,
    responses_used,
)
from batchsim.learning.sample_cost import rates_at
from batchsim.variables import set_attrs

if TYPE_CHECKING:
    import xarray as xr

CANDIDATES = (0.25, 64.0)
"""Default range of batches, relative to the reference."""
POINTS = 65
STALLED = 1e-9
"""Progress per response, relative to the reference, below which a stage counts as diverging."""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """A batch that changes in steps; called with progress it gives the batch.

    Parameters
    ----------
    starts : tuple of float [responses]
        Progress from which each batch is used; the first is 0 and they increase.
    batches : tuple of float [responses]

    Raises
    ------
    InputError
        For lengths that differ, starts that do not increase from 0, or a batch that is not positive.
    """

    starts: tuple[float, ...]
    batches: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.starts or len(self.starts) != len(self.batches):
            raise InputError(f"{len(self.starts)} starts for {len(self.batches)} batches", remedy="give one per batch")
        if self.starts[0] != 0 or any(b <= a for a, b in zip(self.starts, self.starts[1:], strict=False)):
            raise InputError(f"starts {list(self.starts)} do not increase from 0")
        if not min(self.batches) > 0:
            raise InputError(f"batch {min(self.batches):g} is not positive")

    def __call__(self, progress: Floats) -> Floats:
        """Batch at each progress."""
        at = np.searchsorted(np.asarray(self.starts), progress, side="right") - 1
        return np.asarray(np.asarray(self.batches, dtype=np.float64)[np.maximum(at, 0)])


Batch = float | Steps | Callable[[Floats], ArrayLike]


def steps_in_responses(
    starts: Sequence[float], batches: Sequence[float], *, reference_batch: float, noise_scale: Along, **law: Any
) -> Steps:
    """A schedule given in the responses it has used itself, as one in progress.

    Parameters
    ----------
    starts : sequence of float [responses]
        Responses used from which each batch is used; the first is 0.
    batches : sequence of float [responses]
    reference_batch, noise_scale, **law
        See `warp.local_cost`.

    Returns
    -------
    Steps
        Stages that are never reached, because training diverges before, are left out.
    """
    given = Steps(starts=tuple(starts), batches=tuple(batches))
    reached = [0.0]
    for batch, used in zip(given.batches, np.diff(given.starts), strict=False):

        def cost(ahead: Floats, batch: float = batch, begun: float = reached[-1]) -> Floats:
            return local_cost(
                begun + ahead, train_batch=batch, reference_batch=reference_batch, noise_scale=noise_scale, **law
            )

        gained = float(progress_at(used, cost=cost))
        if gained < STALLED * used:
            break
        reached.append(reached[-1] + gained)
    return Steps(starts=tuple(reached), batches=given.batches[: len(reached)])


def along_schedule(
    batch: Batch,
    *,
    progress: ArrayLike,
    reference_batch: float,
    noise_scale: Along,
    update_time_intercept: float,
    update_time_slope: float,
    throughput_max: float = np.inf,
    lr_fraction: Along = 0.0,
    **law: Any,
) -> xr.Dataset:
    """Updates, responses and time along a batch schedule.

    Parameters
    ----------
    batch : float, Steps or callable [responses]
        B, constant or as a function of progress.
    progress : array_like, (progress,) [responses]
        Where to report, in responses of the reference recipe.
    reference_batch : float [responses]
        B_0.
    noise_scale, lr_fraction : float or callable
        See `warp.local_cost`.
    update_time_intercept : float [s]
        tau_0.
    update_time_slope : float [s/response]
        tau_1.
    throughput_max : float [responses/s]
        Plateau: no response takes less than its inverse.
    **law
        Of `sample_cost.sample_cost_ratio`: snr_shape, lr_rule, ...

    Returns
    -------
    xarray.Dataset
        train_batch, noise_scale, updates, responses and elapsed over progress.
    """
    import xarray as xr

    u = np.asarray(progress, dtype=np.float64)

    def cost(v: Floats) -> Floats:
        return local_cost(
            v,
            train_batch=batch,
            reference_batch=reference_batch,
            noise_scale=noise_scale,
            lr_fraction=lr_fraction,
            **law,
        )

    def cost_per_update(v: Floats) -> Floats:
        return cost(v) / along(batch, v)

    def cost_in_seconds(v: Floats) -> Floats:
        return cost(v) * np.maximum(update_time_intercept / along(batch, v) + update_time_slope, 1 / throughput_max)

    breaks = batch.starts if isinstance(batch, Steps) else ()
    responses = responses_used(u, cost=cost, breaks=breaks)
    updates = responses_used(u, cost=cost_per_update, breaks=breaks)
    here = {name: np.broadcast_to(along(value, u), u.shape) for name, value in
            (("train_batch", batch), ("noise_scale", noise_scale))}  # fmt: skip
    return set_attrs(
        xr.Dataset(
            {
                **{name: ("progress", values.copy()) for name, values in here.items()},
                "updates": ("progress", updates),
                "responses": ("progress", responses),
                "elapsed": ("progress", responses_used(u, cost=cost_in_seconds, breaks=breaks)),
            },
            coords={"progress": u},
        )
    )


def best_schedule(
    *,
    progress_to_target: float,
    reference_batch: float,
    noise_scale: Along,
    update_time_intercept: float,
    update_time_slope: float,
    throughput_max: float = np.inf,
    lr_fraction: Along = 0.0,
    batch_range: tuple[float, float] | None = None,
    candidates: Sequence[float] | None = None,
    **law: Any,
) -> xr.Dataset:
    """Schedule of the least time to the target, and what it gains over the best constant batch.

    Parameters
    ----------
    progress_to_target : float [responses]
        u*, the reference recipe's N*.
    reference_batch, noise_scale, update_time_intercept, update_time_slope, throughput_max, lr_fraction, **law
        See `along_schedule`. With a price of an update in responses as intercept and 1 as slope the answer is
        McCandlish's adaptive batch, and "time" is that price paid.
    batch_range : (float, float) or None [responses]
        Smallest and largest batch; the reference times 1/4 and 64 if None.
    candidates : sequence of float or None [responses]
        The only batches that can run, instead of a range.

    Returns
    -------
    xarray.Dataset
        train_batch, noise_scale and learning_rate_ratio over progress; updates_to_target, responses_to_target,
        time_to_target of the schedule; constant_batch and schedule_gain = T(constant)/T(schedule) >= 1. Attribute
        at_bound: whether the range cuts the schedule anywhere.

    Raises
    ------
    InputError
        For a target without progress, a range that is not increasing and positive, or if every batch diverges.
    """
    import xarray as xr

    low, high = _range(reference_batch, batch_range, candidates)
    if not 0 < progress_to_target < np.inf:
        raise InputError(
            f"progress_to_target is {progress_to_target:g}; it must be positive and finite",
            remedy="choose a target above the start and below the asymptote of the reference curve",
        )
    points = np.linspace(0, progress_to_target, POINTS)
    nodes, weights = nodes_of(panels(points))

    def cost_at(u: Floats, batch: Floats) -> Floats:
        """r(u; B) for batches (..., 1) or (..., progress)."""
        return local_cost(
            u,
            train_batch=lambda _: batch,
            reference_batch=reference_batch,
            noise_scale=noise_scale,
            lr_fraction=lr_fraction,
            **law,
        )

    def time_at(u: Floats, batch: Floats) -> Floats:
        return cost_at(u, batch) * np.maximum(update_time_intercept / batch + update_time_slope, 1 / throughput_max)

    def pointwise(u: Floats) -> Floats:
        return _minimise(lambda b: time_at(u, b), low, high, u.size, candidates)

    def total(batch: Floats) -> Floats:
        return np.asarray((time_at(nodes, batch) * weights).sum(-1, keepdims=True))

    constant = _minimise(total, low, high, 1, candidates)
    times = time_at(nodes, constant)
    scheduled = pointwise(nodes)
    # Where the search stopped short of the constant batch, that is the better one.
    scheduled = np.where(time_at(nodes, scheduled) <= times, scheduled, constant)
    cost = cost_at(nodes, scheduled)
    time, time_constant = float((time_at(nodes, scheduled) * weights).sum()), float((times * weights).sum())
    if not np.isfinite(time):
        raise InputError(
            "training diverges before the target at every batch of the range",
            remedy="lower lr_fraction, or choose another learning-rate rule",
        )
    shown = pointwise(points)
    noise = np.clip(along(noise_scale, points), reference_batch / LARGEST_RATIO, reference_batch * LARGEST_RATIO)
    rates = rates_at(
        shown,
        reference_batch=reference_batch,
        noise_scale=noise,
        lr_fraction=np.minimum(along(lr_fraction, points), LARGEST_FRACTION),
        **law,
    )
    ds = set_attrs(
        xr.Dataset(
            {
                "train_batch": ("progress", shown),
                "noise_scale": ("progress", np.broadcast_to(noise, shown.shape).copy()),
                "learning_rate_ratio": ("progress", np.broadcast_to(rates, shown.shape).copy()),
                "updates_to_target": ((), float((cost / scheduled * weights).sum())),
                "responses_to_target": ((), float((cost * weights).sum())),
                "time_to_target": ((), time),
                "constant_batch": ((), float(constant[0])),
                "schedule_gain": ((), time_constant / time),
            },
            coords={"progress": points},
        )
    )
    edge = (shown <= low * (1 + 1e-6)) | (shown >= high * (1 - 1e-6))
    ds.attrs = {"at_bound": bool(edge.any()), "batch_range": [low, high]}
    return ds


def adaptive_batch(noise_scale: ArrayLike, *, exchange_rate: ArrayLike) -> Floats:
    """McCandlish's adaptive batch for tuned rates, B = sqrt(r_x B_noise).

    Parameters
    ----------
    noise_scale : array_like, any shape [responses]
    exchange_rate : array_like, broadcastable [responses]
        r_x, responses that one update less is worth; tau_0/tau_1 for the least time.

    Returns
    -------
    ndarray [responses]

    Examples
    --------
    >>> adaptive_batch([1000, 4000], exchange_rate=250).round()
    array([ 500., 1000.])
    """
    return np.asarray(np.sqrt(np.asarray(exchange_rate, dtype=np.float64) * np.asarray(noise_scale)))


def adaptive_saving(noise_scale: ArrayLike, *, weight: ArrayLike = 1.0) -> Floats:
    """How far the adaptive batch moves the frontier of updates against responses.

    Parameters
    ----------
    noise_scale : array_like, (..., progress) [responses]
        At steps of equal progress per large-batch update (dS_min), or with their weights.
    weight : array_like, broadcastable [1]

    Returns
    -------
    ndarray, (...,) [1]
        (S/S_min - 1)(E/E_min - 1) = <sqrt n>^2/<n>, at most 1; 1 for constant batches and for a constant noise scale.
    """
    n = np.asarray(noise_scale, dtype=np.float64)
    w = np.broadcast_to(np.asarray(weight, dtype=np.float64), n.shape)
    w = w / w.sum(-1, keepdims=True)
    return np.asarray((w * np.sqrt(n)).sum(-1) ** 2 / (w * n).sum(-1))


def _range(
    reference_batch: float, batch_range: tuple[float, float] | None, candidates: Sequence[float] | None
) -> tuple[float, float]:
    if candidates is not None:
        batch_range = (min(candidates, default=0.0), max(candidates, default=0.0))
    low, high = batch_range or (CANDIDATES[0] * reference_batch, CANDIDATES[1] * reference_batch)
    if not 0 < low <= high < np.inf:
        raise InputError(
            f"batches from {low:g} to {high:g} are no range", remedy="give positive batches, smallest first"
        )
    return low, high


def _minimise(
    cost: Callable[[Floats], Floats], low: float, high: float, size: int, candidates: Sequence[float] | None
) -> Floats:
    """Batch of the least cost for each of `size` problems: a grid in log B, then ever finer ones around its best.

    `cost` maps batches that broadcast with (batch, size) to (batch, size).
    """
    if candidates is not None:
        batches = np.asarray(sorted(candidates), dtype=np.float64)
        values = cost(batches[:, None])
        return np.asarray(batches[np.argmin(np.broadcast_to(values, (batches.size, size)), axis=0)])
    grid = np.linspace(np.log(low), np.log(high), 49)[:, None]
    column = np.arange(size)
    for _ in range(11):
        values = np.broadcast_to(cost(np.exp(grid)), (grid.shape[0], size))
        best = np.argmin(values, axis=0)
        wide = np.broadcast_to(grid, (grid.shape[0], size))
        left = wide[np.maximum(best - 1, 0), column]
        right = wide[np.minimum(best + 1, grid.shape[0] - 1), column]
        found = wide[best, column]
        grid = np.linspace(left, right, 9)
    return np.asarray(np.clip(np.exp(found), low, high))
