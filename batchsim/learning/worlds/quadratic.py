r"""The noisy quadratic model: a loss whose optimizers can be followed exactly.

    L(x) = 1/2 sum_i h_i x_i^2,        g_i = h_i x_i + xi_i,   xi_i ~ N(0, c_i/B) for a batch of B responses

Coordinates do not mix, and the optimizers are linear in the gradient, so mean and covariance of position, velocity
and running average obey closed recursions, and with them the expected loss. With e_i = eta h_i^-p (the rate behind
a preconditioner of power p) and gain w (1, or 1 - beta where the velocity is an average of gradients),

    v' = beta v + w g,      x' = x - e v',      a' = rho a + (1 - rho) x'

SGD is beta = 0, where E x_i^2 = (1 - e h)^2 E x_i^2 + e^2 c/B per update. Stable rates have
w e h < 2 (1 + beta); noise keeps the loss on a floor, coordinate by coordinate

    h E x^2 = w e (c/B) (1 + beta)/((1 - beta) (2 (1 + beta) - w e h))          SGD: e (c/B)/(2 - e h)

which falls as 1/B, and which averaging the iterates (rho > 0) lowers. Adam divides by its own root mean square,
is not linear, and is simulated: replicas of all coordinates, seeded.

A target is reached at the first update whose expected loss is at most the target, interpolated by a straight line
within that update; a rate whose floor is not below the target never reaches it. The noise scales are exact at any
point: tr(Sigma)/|G|^2 and, weighted by the curvature as McCandlish's B_noise, tr(H Sigma)/(G' H G).

Cost: an update costs about 10 operations per coordinate, and a target n updates away is found within the price of
max(32, 30/(1 - beta)) + 32 log2(n) of them. Adam costs replicas x coordinates x updates, some 25 ns each.

References
----------
.. [1] Zhang et al. 2019, "Which Algorithmic Choices Matter at Which Batch Sizes?", arXiv:1907.04164, section 3.
.. [2] McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", arXiv:1812.06162 (noise scales).
.. [3] Kingma and Ba 2015, "Adam", arXiv:1412.6980.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchsim.errors import InputError, nearest
from batchsim.learning.worlds import _quadratic_kernels as kernels
from batchsim.variables import set_attrs

if TYPE_CHECKING:
    import xarray as xr

Floats = NDArray[np.float64]

OPTIMIZERS = ("sgd", "momentum", "adam")
OUTCOMES = ("reached", "diverges", "below the floor", "too many updates")
"""In the order of the kernels' codes."""
DIM_MAX = 100_000
UPDATES_MAX = 10**9
"""Where the search for a target ends. Rounding in powers of the recursion grows with them, and with 1/(1 - beta): of a
target 2e8 updates away, 4e-9 with SGD and 3e-5 at beta = 0.99."""
ADAM_UPDATES_MAX = 20_000
RECURSION_MAX = 10**7
SCAN_MAX = 4096
"""Updates that are looked at one by one where momentum oscillates, at most."""


@dataclass(frozen=True, eq=False)
class Quadratic:
    """A diagonal noisy quadratic.

    Parameters
    ----------
    curvature : array_like (D,) [1]
        h_i > 0.
    noise : array_like (D,) [responses]
        c_i >= 0: variance of one response's gradient, in squared gradient units per 1/response.
    start : array_like (D,) or scalar [1]
        x_i before training.
    random_start : bool
        `start` is the standard deviation of x_i, drawn from a normal distribution with mean 0. The expected loss of
        sgd and momentum is the same; equal known starts would let Adam, with its equal steps, arrive everywhere at
        once.

    Raises
    ------
    InputError
        For sizes that differ, no coordinate, more than `DIM_MAX`, or values outside their bounds.
    """

    curvature: Floats
    noise: Floats
    start: Floats = field(default_factory=lambda: np.ones(1))
    random_start: bool = False

    def __post_init__(self) -> None:
        h = np.array(self.curvature, dtype=np.float64, ndmin=1)
        if h.ndim != 1 or not 1 <= h.size <= DIM_MAX:
            raise InputError(
                f"curvature has shape {h.shape}, and the model takes 1 to {DIM_MAX:,} coordinates",
                remedy="give one value per coordinate",
            )
        for name in ("curvature", "noise", "start"):
            value = np.array(getattr(self, name), dtype=np.float64)
            if value.shape not in ((), (1,), h.shape):
                raise InputError(
                    f"{name} has shape {value.shape}, curvature {h.shape}", remedy="give one value per coordinate"
                )
            value = np.broadcast_to(value, h.shape).copy()
            if not np.isfinite(value).all():
                raise InputError(f"{name} is not finite everywhere", remedy="give finite numbers")
            value.flags.writeable = False
            object.__setattr__(self, name, value)
        if not (self.curvature > 0).all():
            raise InputError(
                f"curvature is {self.curvature.min():g}, and it must be positive",
                remedy="leave flat directions out: they cost no loss",
            )
        if not (self.noise >= 0).all():
            raise InputError(
                f"noise is {self.noise.min():g}, and a variance must not be negative", remedy="give c_i >= 0"
            )
        if not self.start.any():
            raise InputError("start is 0 everywhere: there is nothing to learn", remedy="start away from the optimum")

    @property
    def start_loss(self) -> float:
        """Expected loss before training [1]."""
        return float(0.5 * np.sum(self.curvature * self.start**2))

    def noise_scale(self, at: ArrayLike | None = None) -> float:
        """Gradient noise scale tr(Sigma)/|G|^2 at a point (D,), the start if None [responses]; inf at the optimum.

        At a random start the ratio of the means.
        """
        g = self.curvature * self._point(at)
        return _ratio(float(np.sum(self.noise)), float(g @ g))

    def curvature_noise_scale(self, at: ArrayLike | None = None) -> float:
        """Noise scale weighted by curvature, tr(H Sigma)/(G' H G), at a point (D,) [responses]."""
        g = self.curvature * self._point(at)
        return _ratio(float(self.curvature @ self.noise), float(np.sum(self.curvature * g**2)))

    def _point(self, at: ArrayLike | None) -> Floats:
        x = self.start if at is None else np.asarray(at, dtype=np.float64)
        if x.shape != self.curvature.shape:
            raise InputError(f"the point has shape {x.shape}, the model {self.curvature.shape}")
        return x


def _ratio(noise: float, signal: float) -> float:
    if signal == 0:
        return np.inf
    return noise / signal


def power_law(
    dim: int, *, exponent: float = 1.0, noise: float = 1.0, start: float = 1.0, random_start: bool = True
) -> Quadratic:
    """World with curvature h_i = i^-exponent and gradient noise of the same shape.

    Parameters
    ----------
    dim : int
        Coordinates, 1 to `DIM_MAX`.
    exponent : float [1]
        0 gives an isotropic world; 1 is that of [1]_ in the module's text.
    noise : float [responses]
        c_i = noise h_i, as for a likelihood near its optimum, where noise and curvature share their shape.
    start : float [1]
        Standard deviation of x_i before training, or x_i itself.
    random_start : bool
        See `Quadratic`.

    Returns
    -------
    Quadratic

    Raises
    ------
    InputError
        For a dimension outside its bounds, or an exponent whose condition number exceeds 1e12.
    """
    if not 1 <= dim <= DIM_MAX:
        raise InputError(f"dim is {dim:,}, outside 1 to {DIM_MAX:,}", remedy="choose fewer coordinates")
    if not (np.isfinite(exponent) and abs(exponent) * np.log10(dim) <= 12):
        raise InputError(
            f"exponent is {exponent:g}: the condition number dim^|exponent| would exceed 1e12",
            remedy="choose a flatter spectrum or fewer coordinates",
        )
    h = np.arange(1, dim + 1, dtype=np.float64) ** -exponent
    return Quadratic(curvature=h, noise=noise * h, start=np.full(dim, float(start)), random_start=random_start)


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """How the updates are made.

    Parameters
    ----------
    kind : str
        sgd, momentum or adam.
    beta1 : float in [0, 1) [1]
        Decay of the velocity (momentum) or of Adam's first moment; sgd has none.
    dampened : bool
        The velocity is an average of gradients, w = 1 - beta1, not their sum. Moves the best rate by 1/(1 - beta1)
        and nothing else.
    iterate_average : float in [0, 1) [1]
        rho: decay of the running average of the iterates, at which the loss is taken; 0 takes the last iterate.
    preconditioner : float in [0, 1] [1]
        p: the gradient is multiplied by h^-p; not with adam.
    beta2, epsilon : float [1]
        Of Adam.
    replicas : int
        Simulated copies of every coordinate (Adam).

    Raises
    ------
    InputError
        For an unknown kind or a value outside its bounds.
    """

    kind: str = "sgd"
    beta1: float = 0.9
    dampened: bool = False
    iterate_average: float = 0.0
    preconditioner: float = 0.0
    beta2: float = 0.999
    epsilon: float = 1e-8
    replicas: int = 8

    def __post_init__(self) -> None:
        if self.kind not in OPTIMIZERS:
            raise InputError(f"optimizer '{self.kind}' is not known", remedy=nearest(self.kind, OPTIMIZERS))
        for name in ("beta1", "beta2", "iterate_average"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise InputError(f"{name} is {value:g}, outside [0, 1)", remedy="a decay lies below 1")
        if not 0 <= self.preconditioner <= 1:
            raise InputError(
                f"preconditioner is {self.preconditioner:g}, outside [0, 1]",
                remedy="0 is none, 1 makes all curvatures equal",
            )
        if self.kind == "adam" and self.preconditioner:
            raise InputError("adam takes no preconditioner", remedy="it has its own: leave it at 0")
        if not 0 <= self.epsilon < np.inf:
            raise InputError(f"epsilon is {self.epsilon:g}, and it must not be negative", remedy="the default is 1e-8")
        if not 1 <= self.replicas <= 10_000:
            raise InputError(f"replicas is {self.replicas}, outside 1 to 10,000", remedy="8 is the default")

    @property
    def beta(self) -> float:
        """Decay of the velocity, 0 for sgd."""
        return 0.0 if self.kind == "sgd" else self.beta1

    @property
    def gain(self) -> float:
        """w: weight of a gradient in the velocity."""
        return 1.0 - self.beta if self.dampened else 1.0


class Moments(NamedTuple):
    """Exact moments after given updates; the last axis is the coordinate.

    `mean` has shape (updates, 3, D) and `covariance` (updates, 3, 3, D), over position x, velocity v and running
    average a, in this order; `loss` (updates,) is the expected loss at the running average (at x without one) [1].
    Moments that have outgrown floating point are inf or NaN, and the loss is inf.
    """

    mean: Floats
    covariance: Floats
    loss: Floats


def moments(
    world: Quadratic, optimizer: Optimizer, *, train_batch: float, learning_rate: float, updates: ArrayLike
) -> Moments:
    """Mean and covariance of position, velocity and running average, update by update.

    Exact for stable and unstable rates; O(updates x coordinates).

    Parameters
    ----------
    world : Quadratic
    optimizer : Optimizer
        sgd or momentum.
    train_batch : float [responses]
    learning_rate : float [1]
    updates : array_like (N,) of int [updates]
        In ascending order, the last at most `RECURSION_MAX`.

    Returns
    -------
    Moments

    Raises
    ------
    InputError
        For Adam, whose moments do not close, and for values outside their bounds.
    """
    _exact(optimizer)
    _positive(train_batch=train_batch, learning_rate=learning_rate)
    n = _whole(updates, RECURSION_MAX)
    if (np.diff(n) < 0).any():
        raise InputError("updates are not in ascending order", remedy="sort them")
    size = world.curvature.size
    mean, covariance = np.empty((n.size, 3, size)), np.empty((n.size, 3, 3, size))
    step = learning_rate * world.curvature**-optimizer.preconditioner
    kernels.recursion(
        world.curvature,
        world.noise / train_batch,
        world.start,
        world.random_start,
        step,
        optimizer.gain,
        optimizer.beta,
        optimizer.iterate_average,
        n,
        mean,
        covariance,
    )
    loss = 0.5 * (mean[:, 2] ** 2 + covariance[:, 2, 2]) @ world.curvature
    return Moments(mean, covariance, np.where(np.isnan(loss), np.inf, loss))


def expected_loss(
    world: Quadratic,
    optimizer: Optimizer,
    *,
    train_batch: float,
    learning_rate: float,
    updates: ArrayLike,
    seed: int = 0,
) -> Floats:
    """Expected loss after given numbers of updates.

    Parameters
    ----------
    world, optimizer, train_batch, learning_rate
        See `moments`.
    updates : array_like (N,) of int [updates]
        Up to `UPDATES_MAX`; for an unstable rate in ascending order up to `RECURSION_MAX`, for Adam up to
        `RECURSION_MAX`.
    seed : int
        Of Adam's simulation.

    Returns
    -------
    ndarray (N,) [1]
        Exact; of Adam the mean over replicas. An unstable rate grows without bound, to inf at last.

    Raises
    ------
    InputError
        For values outside their bounds.
    """
    _positive(train_batch=train_batch, learning_rate=learning_rate)
    if optimizer.kind == "adam":
        n = _whole(updates, RECURSION_MAX)
        losses = kernels.adam_losses(
            world.curvature,
            world.noise,
            world.start,
            world.random_start,
            float(train_batch),
            float(learning_rate),
            adam_seed(seed, 0),
            adam_settings(optimizer),
            optimizer.replicas,
            int(n.max()),
        )
        return np.concatenate([[world.start_loss], losses])[n]
    if learning_rate >= stable_rate(world, optimizer):
        return moments(world, optimizer, train_batch=train_batch, learning_rate=learning_rate, updates=updates).loss
    losses = kernels.losses_at(
        world.curvature,
        world.noise / train_batch,
        world.start,
        learning_rate * effective_scale(world, optimizer),
        optimizer.beta,
        optimizer.iterate_average,
        _whole(updates, UPDATES_MAX),
    )
    return np.asarray(losses)


def stable_rate(world: Quadratic, optimizer: Optimizer) -> float:
    """Learning rate at and above which the expected loss diverges [1]: 2 (1 + beta)/(w max h^(1-p)); inf for Adam."""
    if optimizer.kind == "adam":
        return np.inf
    return float(2 * (1 + optimizer.beta) / np.max(effective_scale(world, optimizer) * world.curvature))


def loss_floor(world: Quadratic, optimizer: Optimizer, *, train_batch: float, learning_rate: float) -> float:
    """Expected loss after infinitely many updates.

    Parameters
    ----------
    world, optimizer, train_batch, learning_rate
        See `moments`.

    Returns
    -------
    float [1]
        inf where the rate diverges; NaN for Adam, which has no closed form.

    Raises
    ------
    InputError
        For values outside their bounds.
    """
    _positive(train_batch=train_batch, learning_rate=learning_rate)
    if optimizer.kind == "adam":
        return np.nan
    return float(
        kernels.floor_of(
            world.curvature,
            world.noise / train_batch,
            learning_rate * effective_scale(world, optimizer),
            optimizer.beta,
            optimizer.iterate_average,
        )
    )


def updates_to_target(
    world: Quadratic,
    optimizer: Optimizer,
    *,
    train_batch: ArrayLike,
    learning_rate: ArrayLike,
    target: float,
    updates_max: int | None = None,
    seed: int = 0,
) -> xr.Dataset:
    """Updates and responses to a target loss, at every batch and rate.

    Of sgd and momentum the first crossing is exact except for a dip below the target that is over within 3 % of the
    updates so far, and only after the oscillations of momentum have died away. Of Adam it is that of the mean over
    replicas.

    Parameters
    ----------
    world, optimizer
    train_batch : array_like (K,) [responses]
    learning_rate : array_like (R,) [1]
    target : float [1]
        Expected loss to reach, below that of the start.
    updates_max : int or None [updates]
        Where the search ends: `UPDATES_MAX`, or `ADAM_UPDATES_MAX` for Adam, if None.
    seed : int
        Of Adam's simulation.

    Returns
    -------
    xarray.Dataset
        Over train_batch and learning_rate: updates_to_target, responses_to_target, loss_floor and training_outcome
        (one of `OUTCOMES`). What is not reached is right-censored: inf, for the reason that the outcome names. A
        rate that diverges is never said to reach, even if the loss passes the target on its way out.

    Raises
    ------
    InputError
        For values outside their bounds, or a target that the start meets.
    """
    import xarray as xr

    batches, rates = np.atleast_1d(train_batch).astype(np.float64), np.atleast_1d(learning_rate).astype(np.float64)
    _positive(train_batch=batches, learning_rate=rates)
    pair_batch, pair_rate = np.repeat(batches, rates.size), np.tile(rates, batches.size)
    updates, code, floor = crossings(world, optimizer, pair_batch, pair_rate, target, updates_max, seed)
    shape = (batches.size, rates.size)
    dims = ("train_batch", "learning_rate")
    ds = xr.Dataset(
        {
            "updates_to_target": (dims, updates.reshape(shape)),
            "responses_to_target": (dims, (updates * pair_batch).reshape(shape)),
            "loss_floor": (dims, floor.reshape(shape)),
            "training_outcome": (dims, np.array(OUTCOMES)[code].reshape(shape)),
        },
        coords={"train_batch": batches, "learning_rate": rates},
    )
    set_attrs(ds)
    ds.attrs = {"target": float(target), "optimizer": optimizer.kind}
    return ds


def crossings(
    world: Quadratic,
    optimizer: Optimizer,
    batch: Floats,
    rate: Floats,
    target: float,
    updates_max: int | None,
    seed: int | Sequence[int] = 0,
) -> tuple[Floats, NDArray[np.int64], Floats]:
    """Updates, outcome code and floor of pairs of batch and rate; `seed` may hold one number per pair (Adam)."""
    check_target(world, target)
    most = last_update(optimizer, updates_max)
    if optimizer.kind == "adam":
        seeds = [seed] * batch.size if isinstance(seed, int) else list(seed)
        updates, code = kernels.adam_crossings(
            world.curvature,
            world.noise,
            world.start,
            world.random_start,
            batch,
            rate,
            np.array([adam_seed(s, 0) for s in seeds]),
            adam_settings(optimizer),
            optimizer.replicas,
            target,
            most,
        )
        return updates, code, np.full(batch.size, np.nan)
    scan = 0 if optimizer.beta == 0 else min(int(np.ceil(30 / (1 - optimizer.beta))), SCAN_MAX)
    found: tuple[Floats, NDArray[np.int64], Floats] = kernels.first_crossings(
        world.curvature,
        world.noise,
        world.start,
        effective_scale(world, optimizer),
        batch,
        rate,
        optimizer.beta,
        optimizer.iterate_average,
        target,
        most,
        scan,
    )
    return found


def effective_scale(world: Quadratic, optimizer: Optimizer) -> Floats:
    """Effective rate of each coordinate (D,) at learning rate 1, w h^-p."""
    return np.asarray(optimizer.gain * world.curvature**-optimizer.preconditioner)


def adam_settings(optimizer: Optimizer) -> Floats:
    """Constants in the order of the kernel."""
    return np.array([optimizer.beta1, optimizer.beta2, optimizer.epsilon, optimizer.iterate_average])


def adam_seed(seed: int, group: int) -> np.uint64:
    """Start of a stream; groups of one seed are independent."""
    return np.uint64(np.random.SeedSequence([seed, group]).generate_state(1, np.uint64)[0])


def check_target(world: Quadratic, target: float) -> None:
    """Refuse a target that is no way from the start.

    Raises
    ------
    InputError
        For a target outside (0, loss at the start).
    """
    if not 0 < target < world.start_loss:
        raise InputError(
            f"target is {target:g}, outside (0, {world.start_loss:g}), the loss at the start",
            remedy="choose a loss between the optimum and the start",
        )


def last_update(optimizer: Optimizer, updates_max: int | None) -> int:
    """Where the search ends: the caller's choice, or the default of the optimizer.

    Raises
    ------
    InputError
        For less than one update or more than the bound.
    """
    adam = optimizer.kind == "adam"
    bound = RECURSION_MAX if adam else UPDATES_MAX
    most = (ADAM_UPDATES_MAX if adam else UPDATES_MAX) if updates_max is None else updates_max
    if not 1 <= most <= bound:
        raise InputError(f"updates_max is {most:,}, outside 1 to {bound:,}", remedy="leave it at its default")
    return int(most)


def _exact(optimizer: Optimizer) -> None:
    if optimizer.kind == "adam":
        raise InputError("moments of adam do not close", remedy="use expected_loss, which simulates it")


def _positive(**values: ArrayLike) -> None:
    for name, value in values.items():
        v = np.asarray(value, dtype=np.float64)
        if v.size == 0 or v.ndim > 1 or not (np.isfinite(v).all() and (v > 0).all()):
            raise InputError(
                f"{name} is {value!r}, and it must be positive and finite",
                remedy=f"give one {name} or a list of them",
            )


def _whole(updates: ArrayLike, most: int) -> NDArray[np.int64]:
    n = np.atleast_1d(np.asarray(updates))
    if n.ndim != 1 or n.size == 0 or not np.isfinite(n).all() or (n != np.floor(n)).any():
        raise InputError("updates are no list of whole numbers", remedy="as [0, 10, 100]")
    if n.min() < 0 or n.max() > most:
        raise InputError(
            f"updates reach from {n.min():g} to {n.max():g}, outside 0 to {most:,}", remedy="ask for fewer updates"
        )
    return n.astype(np.int64)
