r"""Compiled runs of the noisy quadratic: floats and arrays only, nothing from another file.

One call is one run: one stream of random numbers (splitmix64, one word of state), one thread, no lock held, so that
results do not depend on the number of threads. A batch of B responses is cut into n equal chunks whose gradients are
G + xi_c with independent xi_ci ~ N(0, n c_i/B). Their mean, the batch's gradient, and the squares about it are
independent, and the latter are chi-squared with n - 1 degrees of freedom:

    g_i = G_i + sqrt(c_i/B) z,        mean_c |g_c|^2 = |g|^2 + sum_i (c_i/B) chi^2_{n-1}

so that norms of chunks cost O(D) whatever n and B. chi^2_{n-1} is twice an exponential per two degrees of freedom (one
logarithm of a product of uniform numbers), and the square of a normal number for an odd one: each coordinate takes
one Box-Muller pair, the other half of which is the gradient's.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RUNNING, REACHED, DIVERGES, UNFINISHED = range(4)
ROWS = 2
WHOLE, CHUNK = range(ROWS)
EVALUATION = 2
UPDATE, SCORE = range(EVALUATION)
RUNAWAY = 1e12
"""Loss, over that of the start, at which a run has diverged."""
GOLDEN, MIX_1, MIX_2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
S30, S27, S31, S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
UNIT = 2.0**-53


@njit(cache=True, error_model="numpy")  # type: ignore[misc,unused-ignore]
def _positive(state: NDArray[np.uint64]) -> float:
    """A uniform number in (0, 1], of which a logarithm can be taken."""
    state[0] += GOLDEN
    z = state[0]
    z = (z ^ (z >> S30)) * MIX_1
    z = (z ^ (z >> S27)) * MIX_2
    z = z ^ (z >> S31)
    return 1.0 - float(z >> S11) * UNIT


@njit(cache=True, error_model="numpy")  # type: ignore[misc,unused-ignore]
def _gradient(
    curvature: Floats, deviation: Floats, x: Floats, chunks: int, state: NDArray[np.uint64], gradient: Floats
) -> tuple[float, float]:
    """A batch's gradient, its squared norm and the mean squared norm of its chunks."""
    whole, spread = 0.0, 0.0
    for i in range(x.size):
        radius, angle = np.sqrt(-2.0 * np.log(_positive(state))), 2.0 * np.pi * _positive(state)
        g = curvature[i] * x[i] + deviation[i] * radius * np.cos(angle)
        gradient[i] = g
        whole += g * g
        if chunks > 1:
            product = 1.0
            for _ in range((chunks - 1) // 2):
                product *= _positive(state)
            square = -2.0 * np.log(product)
            if chunks % 2 == 0:
                square += (radius * np.sin(angle)) ** 2
            spread += deviation[i] * deviation[i] * square
    return whole, whole + spread


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[misc,unused-ignore]
def run(
    curvature: Floats,
    deviation: Floats,
    start: Floats,
    random_start: bool,
    start_loss: float,
    step: Floats,
    gain: float,
    beta: float,
    rho: float,
    adam: bool,
    beta2: float,
    epsilon: float,
    batch: float,
    chunks: int,
    every: float,
    updates_max: int,
    target: float,
    state: NDArray[np.uint64],
    rows: Floats,
    evaluations: Floats,
    counts: NDArray[np.int64],
) -> None:
    """One run, until an evaluation finds the score at the target, to its end, or until it runs away.

    The score is the share of the start's loss that is gone, 0 where none is.

    `counts` receives updates, outcome and evaluations.
    """
    size = curvature.size
    x, velocity, second, gradient = np.empty(size), np.zeros(size), np.zeros(size), np.empty(size)
    for i in range(size):
        x[i] = start[i]
        if random_start:
            x[i] *= np.sqrt(-2.0 * np.log(_positive(state))) * np.cos(2.0 * np.pi * _positive(state))
    average = x.copy()
    loss = 0.0
    for i in range(size):
        loss += 0.5 * curvature[i] * x[i] * x[i]
    decay1, decay2, next_evaluation = 1.0, 1.0, 0.0
    n, seen, outcome = 0, 0, RUNNING
    while outcome == RUNNING:
        last = n >= updates_max
        if n * batch >= next_evaluation or last:
            score = max(0.0, 1.0 - loss / start_loss)
            if seen < evaluations.shape[0]:
                evaluations[seen, UPDATE], evaluations[seen, SCORE] = float(n), score
                seen += 1
            next_evaluation = (np.floor(n * batch / every * (1.0 + 1e-12)) + 1.0) * every
            if score >= target:
                outcome = REACHED
            elif last:
                outcome = UNFINISHED
            if outcome != RUNNING:
                break
        whole, small = _gradient(curvature, deviation, x, chunks, state, gradient)
        if n < rows.shape[0]:
            rows[n, WHOLE], rows[n, CHUNK] = whole, small
        n += 1
        decay1 *= beta
        decay2 *= beta2
        loss, farthest = 0.0, 0.0
        for i in range(size):
            g = gradient[i]
            if adam:
                velocity[i] += (1.0 - beta) * (g - velocity[i])
                second[i] += (1.0 - beta2) * (g * g - second[i])
                root = np.sqrt(second[i] / (1.0 - decay2)) + epsilon
                # A gradient of exactly 0 from the start on has no direction to scale.
                if root > 0.0:
                    x[i] -= step[i] * velocity[i] / (1.0 - decay1) / root
            else:
                velocity[i] = beta * velocity[i] + gain * g
                x[i] -= step[i] * velocity[i]
            average[i] += (1.0 - rho) * (x[i] - average[i])
            loss += 0.5 * curvature[i] * average[i] * average[i]
            farthest += 0.5 * curvature[i] * x[i] * x[i]
        if not (loss < RUNAWAY * start_loss and farthest < RUNAWAY * start_loss):
            outcome = DIVERGES
    counts[0], counts[1], counts[2] = n, outcome, seen
