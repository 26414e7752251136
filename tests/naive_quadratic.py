"""The noisy quadratic in plain Python: optimizers as their definitions read, one draw of noise per update.

Nothing is shared with the package: replicas are followed one update at a time, and the moments that the package
states exactly are averages here, with their standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def follow(
    *,
    curvature: Floats,
    noise: Floats,
    start: Floats,
    batch: float,
    rate: float,
    beta: float = 0.0,
    gain: float = 1.0,
    average: float = 0.0,
    power: float = 0.0,
    updates: int,
    replicas: int,
    rng: np.random.Generator,
    random_start: bool = False,
) -> tuple[Floats, Floats, Floats]:
    """Position, velocity and running average after some updates, each (replicas, D), of SGD with momentum."""
    x = np.tile(start, (replicas, 1))
    if random_start:
        x = x * rng.standard_normal(x.shape)
    v, a = np.zeros_like(x), x.copy()
    for _ in range(updates):
        g = curvature * x + np.sqrt(noise / batch) * rng.standard_normal(x.shape)
        v = beta * v + gain * g
        x = x - rate * curvature**-power * v
        a = average * a + (1 - average) * x
    return x, v, a


def first_update(loss: Callable[[int], float], target: float, most: int) -> float:
    """First update whose loss is at most the target, by a straight line from the update before."""
    before = loss(0)
    for n in range(1, most + 1):
        after = loss(n)
        if after <= target:
            return n - 1 + (before - target) / (before - after)
        before = after
    return math.inf


def uniforms(seed: int) -> Iterator[float]:
    """Numbers in (0, 1) of splitmix64, in whole numbers of Python."""
    mask, state = (1 << 64) - 1, seed
    while True:
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        yield (((z ^ (z >> 31)) >> 11) + 0.5) / 2.0**53


def normals(stream: Iterator[float]) -> Iterator[float]:
    """Normal numbers in pairs, by Box and Muller."""
    while True:
        radius, angle = math.sqrt(-2 * math.log(next(stream))), 2 * math.pi * next(stream)
        yield radius * math.cos(angle)
        yield radius * math.sin(angle)


def adam_losses(
    *,
    curvature: Floats,
    noise: Floats,
    start: Floats,
    batch: float,
    rate: float,
    seed: int,
    replicas: int,
    updates: int,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    average: float = 0.0,
    random_start: bool = False,
) -> list[float]:
    """Mean loss of replicas of Adam after 1, 2, ... updates, number by number."""
    stream = uniforms(seed)
    states: list[dict[str, Any]] = []
    for _ in range(replicas):
        for h, c, x0 in zip(curvature, noise, start, strict=True):
            x = float(x0)
            if random_start:
                x *= math.sqrt(-2 * math.log(next(stream))) * math.cos(2 * math.pi * next(stream))
            states.append({"h": float(h), "sd": math.sqrt(c / batch), "x": x, "m": 0.0, "v": 0.0, "a": x})
    draws = normals(stream)
    losses = []
    for n in range(1, updates + 1):
        loss = 0.0
        for s in states:
            g = s["h"] * s["x"] + s["sd"] * next(draws)
            s["m"] = beta1 * s["m"] + (1 - beta1) * g
            s["v"] = beta2 * s["v"] + (1 - beta2) * g * g
            s["x"] -= rate * (s["m"] / (1 - beta1**n)) / (math.sqrt(s["v"] / (1 - beta2**n)) + epsilon)
            s["a"] = average * s["a"] + (1 - average) * s["x"]
            loss += s["h"] * s["a"] ** 2 / 2
        losses.append(loss / replicas)
    return losses
