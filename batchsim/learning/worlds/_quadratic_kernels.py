r"""Compiled recursions of the noisy quadratic: floats and arrays only, nothing from another file.

A coordinate's state is s_n = (x_n, x_{n-1}, a_n), a the running average of x, and moves by a matrix A per update,

    x' = phi x - beta x_{-1} - alpha xi,     a' = rho a + (1 - rho) x',     phi = 1 + beta - alpha h

with alpha the effective rate of the coordinate and xi the noise of a batch, of variance c/B. The covariance from a
known start is C_n = Gamma - A^n Gamma A^nT, Gamma the stationary one, in closed form (`_stationary`). The loss
needs one row of A^n only, r = (0, 0, 1) A^n, so that

    E a_n^2 = (r s_0)^2 + Gamma_aa - r Gamma r^T

and going from n to n + 2^j is one product of r with A^(2^j), seven multiplications, since A leaves a out of x.
`first_crossings` looks at every update up to `scan` and at 32 per doubling after that, each at the price of one
update, then halves the gap. Each task is one pair of batch and rate, computed by one thread from start to end: the
result does not depend on the number of threads. Arrays lie coordinate last, so that the loops over it vectorise.

`adam_crossings` simulates instead: all replicas of a task draw from one splitmix64 stream, the same in every task,
so that rates and batches are compared under common random numbers. A random start, N(0, start^2), has the same second
moments as a known one, so linear optimizers lose the same: only Adam's kernel and `recursion` need to know.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

Floats = NDArray[np.float64]

REACHED, DIVERGES, FLOOR, UNFINISHED = range(4)
PER_OCTAVE = 32
LEVELS = 31
GOLDEN, MIX_1, MIX_2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
S30, S27, S31, S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
RELAXATIONS = 5.0
"""Relaxation times of the slowest coordinate after which Adam's loss is held to be at its floor."""


@njit(cache=True, error_model="numpy")  # type: ignore[misc,unused-ignore]
def _stationary(curvature: float, variance: float, alpha: float, beta: float, rho: float) -> tuple[float, ...]:
    """Gamma_xx, Gamma_x,x-1, Gamma_xa, Gamma_x-1,a, Gamma_aa of a stable coordinate."""
    phi = 1.0 + beta - alpha * curvature
    xx = alpha * variance * (1.0 + beta) / ((1.0 - beta) * curvature * (2.0 * (1.0 + beta) - alpha * curvature))
    xp = phi * xx / (1.0 + beta)
    xa = (1.0 - rho) * (xx - rho * beta * xp) / (1.0 - rho * phi + rho * rho * beta)
    pa = rho * xa + (1.0 - rho) * xp
    aa = (2.0 * rho * (phi * xa - beta * pa) + (1.0 - rho) * xx) / (1.0 + rho)
    return xx, xp, xa, pa, aa


@njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract"})  # type: ignore[misc,unused-ignore]
def _set_up(
    curvature: Floats, variance: Floats, alpha: Floats, beta: float, rho: float, power: Floats, gamma: Floats
) -> float:
    """Fill A and Gamma; return the floor of the loss, infinite where a coordinate is unstable."""
    for i in range(curvature.size):
        if not alpha[i] * curvature[i] < 2.0 * (1.0 + beta):
            return np.inf
    floor = 0.0
    for i in range(curvature.size):
        phi = 1.0 + beta - alpha[i] * curvature[i]
        power[0, i], power[1, i], power[2, i], power[3, i] = phi, -beta, 1.0, 0.0
        power[4, i], power[5, i], power[6, i] = (1.0 - rho) * phi, -(1.0 - rho) * beta, rho
        xx, xp, xa, pa, aa = _stationary(curvature[i], variance[i], alpha[i], beta, rho)
        gamma[0, i], gamma[1, i], gamma[2, i], gamma[3, i], gamma[4, i] = xx, xp, xa, pa, aa
        floor += 0.5 * curvature[i] * aa
    return floor


@njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract"})  # type: ignore[misc,unused-ignore]
def _square(power: Floats, result: Floats) -> None:
    for i in range(power.shape[1]):
        a, b, c, d = power[0, i], power[1, i], power[2, i], power[3, i]
        e, f, g = power[4, i], power[5, i], power[6, i]
        result[0, i], result[1, i] = a * a + b * c, a * b + b * d
        result[2, i], result[3, i] = c * a + d * c, c * b + d * d
        result[4, i], result[5, i] = e * a + f * c + g * e, e * b + f * d + g * f
        result[6, i] = g * g


@njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract"})  # type: ignore[misc,unused-ignore]
def _advance(
    row: Floats, power: Floats, result: Floats, gamma: Floats, curvature: Floats, start: Floats, floor: float
) -> float:
    """Row of A^(n + 2^j) from that of A^n, and the expected loss there."""
    loss = 0.0
    for i in range(curvature.size):
        p, q, s = row[0, i], row[1, i], row[2, i]
        u = p * power[0, i] + q * power[2, i] + s * power[4, i]
        v = p * power[1, i] + q * power[3, i] + s * power[5, i]
        w = s * power[6, i]
        result[0, i], result[1, i], result[2, i] = u, v, w
        mean = start[i] * (u + v + w)
        lost = gamma[0, i] * (u * u + v * v) + 2.0 * gamma[1, i] * u * v
        lost += w * (2.0 * (gamma[2, i] * u + gamma[3, i] * v) + gamma[4, i] * w)
        loss += 0.5 * curvature[i] * (mean * mean - lost)
    return floor + loss


@njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract"})  # type: ignore[misc,unused-ignore]
def _first_crossing(
    curvature: Floats,
    variance: Floats,
    start: Floats,
    alpha: Floats,
    beta: float,
    rho: float,
    target: float,
    updates_max: int,
    scan: int,
) -> tuple[float, int, float]:
    """Updates to the target, between two updates by a straight line; what became of it; the floor."""
    size = curvature.size
    powers = np.empty((LEVELS, 7, size))
    gamma = np.empty((5, size))
    floor = _set_up(curvature, variance, alpha, beta, rho, powers[0], gamma)
    if not np.isfinite(floor):
        return np.inf, DIVERGES, floor
    if floor >= target:
        return np.inf, FLOOR, floor
    row, trial = np.zeros((3, size)), np.empty((3, size))
    row[2] = 1.0
    before = 0.0
    for i in range(size):
        before += 0.5 * curvature[i] * start[i] ** 2
    n, level = 0, 0
    while n < updates_max:
        after = _advance(row, powers[level], trial, gamma, curvature, start, floor)
        if after <= target:
            while level > 0:
                level -= 1
                middle = _advance(row, powers[level], trial, gamma, curvature, start, floor)
                if middle > target:
                    row, trial, before = trial, row, middle
                    n += 1 << level
                else:
                    after = middle
            return n + (before - target) / (before - after), REACHED, floor
        row, trial, before = trial, row, after
        n += 1 << level
        if n >= scan and n >= PER_OCTAVE << (level + 1) and level + 1 < LEVELS:
            _square(powers[level], powers[level + 1])
            level += 1
    return np.inf, UNFINISHED, floor


@njit(cache=True, error_model="numpy", parallel=True)  # type: ignore[misc,unused-ignore]
def first_crossings(
    curvature: Floats,
    noise: Floats,
    start: Floats,
    scale: Floats,
    batch: Floats,
    rate: Floats,
    beta: float,
    rho: float,
    target: float,
    updates_max: int,
    scan: int,
) -> tuple[Floats, NDArray[np.int64], Floats]:
    """`_first_crossing` of each pair of batch and rate; `scale` is alpha at rate 1."""
    updates, floors = np.empty(batch.size), np.empty(batch.size)
    outcome = np.empty(batch.size, dtype=np.int64)
    for k in prange(batch.size):
        updates[k], outcome[k], floors[k] = _first_crossing(
            curvature, noise / batch[k], start, scale * rate[k], beta, rho, target, updates_max, scan
        )
    return updates, outcome, floors


@njit(cache=True, error_model="numpy")  # type: ignore[misc,unused-ignore]
def floor_of(curvature: Floats, variance: Floats, alpha: Floats, beta: float, rho: float) -> float:
    """Expected loss after infinitely many updates, infinite where a coordinate is unstable."""
    size = curvature.size
    return float(_set_up(curvature, variance, alpha, beta, rho, np.empty((7, size)), np.empty((5, size))))


@njit(cache=True, error_model="numpy")  # type: ignore[misc,unused-ignore]
def losses_at(
    curvature: Floats,
    variance: Floats,
    start: Floats,
    alpha: Floats,
    beta: float,
    rho: float,
    updates: NDArray[np.int64],
) -> Floats:
    """Expected loss after each of `updates` updates, of a stable rate."""
    size = curvature.size
    power, square, gamma = np.empty((7, size)), np.empty((7, size)), np.empty((5, size))
    rows, trial = np.zeros((updates.size, 3, size)), np.empty((3, size))
    rows[:, 2] = 1.0
    floor = _set_up(curvature, variance, alpha, beta, rho, power, gamma)
    first = 0.0
    for i in range(size):
        first += 0.5 * curvature[i] * start[i] ** 2
    losses = np.full(updates.size, first)
    left = updates.copy()
    while left.max() > 0:
        for k in range(updates.size):
            if left[k] & 1:
                losses[k] = _advance(rows[k], power, trial, gamma, curvature, start, floor)
                rows[k] = trial
            left[k] >>= 1
        _square(power, square)
        power, square = square, power
    return losses


@njit(cache=True, error_model="numpy")  # type: ignore[misc,unused-ignore]
def recursion(
    curvature: Floats,
    variance: Floats,
    start: Floats,
    random_start: bool,
    step: Floats,
    gain: float,
    beta: float,
    rho: float,
    updates: NDArray[np.int64],
    mean: Floats,
    covariance: Floats,
) -> None:
    """Mean (update, 3, coordinate) and covariance (update, 3, 3, coordinate) of (x, v, a), one update at a time."""
    for i in range(curvature.size):
        h, e = curvature[i], step[i]
        a = np.zeros((3, 3))
        a[1, 0], a[1, 1] = gain * h, beta
        a[0, 0], a[0, 1] = 1.0 - e * gain * h, -e * beta
        a[2, 0], a[2, 1], a[2, 2] = (1.0 - rho) * a[0, 0], (1.0 - rho) * a[0, 1], rho
        b = np.array([-e * gain, gain, -(1.0 - rho) * e * gain])
        m, c = np.array([start[i], 0.0, start[i]]), np.zeros((3, 3))
        if random_start:
            m, c = np.zeros(3), np.outer(m, m)
        n = 0
        for k in range(updates.size):
            while n < updates[k]:
                m, c = a @ m, a @ c @ a.T + variance[i] * np.outer(b, b)
                n += 1
            mean[k, :, i] = m
            covariance[k, :, :, i] = c


@njit(cache=True, error_model="numpy")  # type: ignore[misc,unused-ignore]
def _uniform(state: NDArray[np.uint64]) -> float:
    """Next number in (0, 1) of a splitmix64 stream."""
    state[0] += GOLDEN
    z = state[0]
    z = (z ^ (z >> S30)) * MIX_1
    z = (z ^ (z >> S27)) * MIX_2
    z = z ^ (z >> S31)
    return float((np.float64(z >> S11) + 0.5) / 9007199254740992.0)


@njit(cache=True, error_model="numpy")  # type: ignore[misc,unused-ignore]
def _adam_run(
    curvature: Floats,
    deviation: Floats,
    start: Floats,
    random_start: bool,
    rate: float,
    betas: Floats,
    seed: np.uint64,
    replicas: int,
    target: float,
    updates_max: int,
    losses: Floats,
) -> tuple[float, int]:
    """Updates until the mean loss of the replicas is at most the target; fills `losses` as far as it reaches."""
    size = curvature.size
    beta1, beta2, epsilon, rho = betas
    state = np.empty(1, dtype=np.uint64)
    state[0] = seed
    x, average = np.empty((replicas, size)), np.empty((replicas, size))
    first, second = np.zeros((replicas, size)), np.zeros((replicas, size))
    before, slowest = 0.0, 0.0
    for i in range(size):
        x[:, i] = start[i]
        before += 0.5 * curvature[i] * start[i] ** 2
        size_of_gradient = np.hypot(curvature[i] * start[i], deviation[i])
        slowest = max(slowest, size_of_gradient / (rate * curvature[i]))
    relaxed = RELAXATIONS * (slowest + 1.0 / (1.0 - beta2) + 1.0 / (1.0 - rho))
    if random_start:
        for r in range(replicas):
            for i in range(size):
                x[r, i] *= np.sqrt(-2.0 * np.log(_uniform(state))) * np.cos(2.0 * np.pi * _uniform(state))
    average[:] = x
    spare, has_spare = 0.0, False
    decay1, decay2 = 1.0, 1.0
    for n in range(updates_max):
        decay1 *= beta1
        decay2 *= beta2
        loss = 0.0
        for r in range(replicas):
            for i in range(size):
                if has_spare:
                    normal, has_spare = spare, False
                else:
                    radius, angle = np.sqrt(-2.0 * np.log(_uniform(state))), 2.0 * np.pi * _uniform(state)
                    normal, spare, has_spare = radius * np.cos(angle), radius * np.sin(angle), True
                g = curvature[i] * x[r, i] + deviation[i] * normal
                first[r, i] += (1.0 - beta1) * (g - first[r, i])
                second[r, i] += (1.0 - beta2) * (g * g - second[r, i])
                root = np.sqrt(second[r, i] / (1.0 - decay2)) + epsilon
                # A gradient of exactly 0 from the start on has no direction to scale.
                if root > 0.0:
                    x[r, i] -= rate * first[r, i] / (1.0 - decay1) / root
                average[r, i] += (1.0 - rho) * (x[r, i] - average[r, i])
                loss += 0.5 * curvature[i] * average[r, i] ** 2
        loss /= replicas
        if n < losses.size:
            losses[n] = loss
        if loss <= target:
            return n + (before - target) / (before - loss), REACHED
        before = loss
        if n > relaxed and target > 0.0:
            return np.inf, FLOOR
    return np.inf, UNFINISHED


@njit(cache=True, error_model="numpy", parallel=True)  # type: ignore[misc,unused-ignore]
def adam_crossings(
    curvature: Floats,
    noise: Floats,
    start: Floats,
    random_start: bool,
    batch: Floats,
    rate: Floats,
    seed: NDArray[np.uint64],
    betas: Floats,
    replicas: int,
    target: float,
    updates_max: int,
) -> tuple[Floats, NDArray[np.int64]]:
    """Updates to the target of each triple of batch, rate and seed, and what became of it."""
    updates, outcome = np.empty(batch.size), np.empty(batch.size, dtype=np.int64)
    for k in prange(batch.size):
        updates[k], outcome[k] = _adam_run(
            curvature,
            np.sqrt(noise / batch[k]),
            start,
            random_start,
            rate[k],
            betas,
            seed[k],
            replicas,
            target,
            updates_max,
            np.empty(0),
        )
    return updates, outcome


@njit(cache=True, error_model="numpy")  # type: ignore[misc,unused-ignore]
def adam_losses(
    curvature: Floats,
    noise: Floats,
    start: Floats,
    random_start: bool,
    batch: float,
    rate: float,
    seed: np.uint64,
    betas: Floats,
    replicas: int,
    updates: int,
) -> Floats:
    """Mean loss of the replicas after 1, 2, ... updates."""
    losses = np.empty(updates)
    # No loss is below 0: the run goes on to the end.
    _adam_run(
        curvature, np.sqrt(noise / batch), start, random_start, rate, betas, seed, replicas, -1.0, updates, losses
    )
    return losses
