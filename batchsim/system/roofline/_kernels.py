"""Compiled sums of a decode step over kernels: floats and arrays only, nothing from another file.

Columns of the arrays are named where `roofline.deployment` packs them.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, error_model="numpy")  # type: ignore[misc,unused-ignore]
def _both(read: float, product: float, overlap: float) -> float:
    if read <= 0.0:
        return product
    if product <= 0.0:
        return read
    high = max(read, product)
    low = min(read, product)
    return float(high * (1.0 + (low / high) ** overlap) ** (1.0 / overlap))


@njit(cache=True, error_model="numpy")  # type: ignore[misc,unused-ignore]
def touched(tokens: float, popularity: NDArray[np.float64], ranks: float, extreme: float) -> tuple[float, float]:
    """Experts that `tokens` tokens touch, in all and on the slowest of `ranks` ranks that hold equal shares.

    The count on a rank has mean U/ranks; its variance is that of the draws plus that of which experts lie there.
    """
    n = popularity.shape[0]
    total, square, draws = 0.0, 0.0, 0.0
    for i in range(n):
        p = popularity[i]
        u = 1.0 if p >= 1.0 else -np.expm1(tokens * np.log1p(-p))
        total += u
        square += u * u
        draws += u * (1.0 - u)
    if ranks <= 1.0:
        return total, total
    place = max(square / n - (total / n) ** 2, 0.0) * n / ranks * (1.0 - 1.0 / ranks)
    slowest = total / ranks + extreme * np.sqrt(draws / ranks + place)
    return total, min(slowest, min(n / ranks, total))


@njit(cache=True, error_model="numpy")  # type: ignore[misc,unused-ignore]
def _attended(start: float, prompt: float, window: float) -> float:
    """Pairs of a prompt token and a token it attends to, itself included, of `prompt` tokens after `start` others."""
    if prompt <= 0.0:
        return 0.0
    free = min(max(window - start, 0.0), prompt)
    growing = free * start + free * (free + 1.0) / 2.0
    # An infinite window times nothing beyond it is not a number.
    return growing if free >= prompt else growing + (prompt - free) * window


@njit(cache=True, error_model="numpy")  # type: ignore[misc,unused-ignore]
def step_parts(
    batch: NDArray[np.float64],
    padded: NDArray[np.float64],
    context: NDArray[np.float64],
    prompt: NDArray[np.float64],
    start: NDArray[np.float64],
    products: NDArray[np.float64],
    experts: NDArray[np.float64],
    popularity: NDArray[np.float64],
    attention: NDArray[np.float64],
    states: NDArray[np.float64],
    rest: NDArray[np.float64],
    parts: NDArray[np.float64],
) -> None:
    """Seconds of a step by part: weights, experts, cache, compute, communication, overhead."""
    for p in range(batch.shape[0]):
        n, s = batch[p], prompt[p]
        tokens = padded[p] + s
        weights, routed, cache, compute, wires, fixed = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        for d in range(products.shape[0]):
            count, elements, size, rate, speed, latency, sampled = products[d]
            rows = tokens if sampled == 0.0 else padded[p] + min(s, 1.0)
            read = (size + 2.0 * rows * elements) / rate
            work = rows * speed
            both = _both(read, work, rest[10])
            share = 1.0 if work <= 0.0 else (read / both) ** rest[10]
            weights += count * both * share
            compute += count * both * (1.0 - share)
            fixed += count * latency
        if experts.shape[0] > 0:
            layers, expert_read, token_work, latency, ranks, extreme, groups = experts
            seen = tokens * groups
            _, slowest = touched(seen, popularity, ranks, extreme)
            read = slowest * expert_read
            work = seen * token_work
            both = _both(read, work, rest[11])
            share = 1.0 if work <= 0.0 else (read / both) ** rest[11]
            routed += layers * both * share
            compute += layers * both * (1.0 - share)
            fixed += layers * latency
        for a in range(attention.shape[0]):
            count, latency, per_sequence, per_token, window, per_index, per_pair = attention[a]
            cache += count * n * (per_token * min(context[p], window) + per_index * context[p])
            compute += count * per_pair * _attended(start[p], s, window)
            fixed += count * (latency + per_sequence * n)
        for a in range(states.shape[0]):
            count, latency, per_sequence, per_prompt = states[a]
            cache += count * per_sequence * n
            compute += count * per_prompt * s
            fixed += count * latency
        wires += rest[0] * (rest[1] + rest[2] * tokens) + rest[3] * (rest[4] + rest[5] * tokens)
        fixed += rest[6] + rest[7] * n + rest[8] + rest[9] * tokens
        parts[p, 0], parts[p, 1], parts[p, 2] = weights, routed, cache
        parts[p, 3], parts[p, 4], parts[p, 5] = compute, wires, fixed
