"""Slow twin of `batchsim.learning.worlds._simulated_kernels`: one update and one chunk at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

MASK = 2**64 - 1


@dataclass
class Stream:
    """splitmix64, uniform in (0, 1]."""

    state: int

    def __call__(self) -> float:
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
        z ^= z >> 31
        return 1.0 - (z >> 11) / 2**53


@dataclass
class Coordinate:
    """One coordinate of a run."""

    curvature: float
    deviation: float
    step: float
    x: float
    average: float = 0.0
    velocity: float = 0.0
    second: float = 0.0


@dataclass
class Run:
    """What a run leaves behind."""

    whole: list[float] = field(default_factory=list)
    chunk: list[float] = field(default_factory=list)
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    outcome: str = ""


def run(
    *,
    curvature: list[float],
    noise: list[float],
    start: list[float],
    random_start: bool,
    start_loss: float,
    kind: str,
    rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    gain: float,
    rho: float,
    preconditioner: float,
    batch: float,
    chunks: int,
    every: float,
    updates_max: int,
    target: float,
    state: int,
) -> Run:
    """One noisy run."""
    uniform = Stream(state)
    held = []
    for h, variance, x in zip(curvature, noise, start, strict=True):
        if random_start:
            radius = math.sqrt(-2 * math.log(uniform()))
            x *= radius * math.cos(2 * math.pi * uniform())
        held.append(Coordinate(h, math.sqrt(variance / batch), rate * h**-preconditioner, x, average=x))
    left = Run()
    done = 0
    following = 0.0
    while True:
        loss = sum(0.5 * c.curvature * c.average**2 for c in held)
        far = sum(0.5 * c.curvature * c.x**2 for c in held)
        if not max(loss, far) < 1e12 * start_loss:
            left.outcome = "diverges"
            return left
        if done * batch >= following or done >= updates_max:
            score = max(0.0, 1 - loss / start_loss)
            left.evaluations.append((done, score))
            while following <= done * batch * (1 + 1e-12):
                following += every
            if score >= target:
                left.outcome = "reached"
                return left
            if done >= updates_max:
                left.outcome = "too many responses"
                return left
        gradient, about = [], 0.0
        for c in held:
            radius = math.sqrt(-2 * math.log(uniform()))
            angle = 2 * math.pi * uniform()
            gradient.append(c.curvature * c.x + c.deviation * radius * math.cos(angle))
            if chunks > 1:
                square = sum(-2 * math.log(uniform()) for _ in range((chunks - 1) // 2))
                if (chunks - 1) % 2:
                    square += (radius * math.sin(angle)) ** 2
                about += c.deviation**2 * square
        left.whole.append(sum(g * g for g in gradient))
        left.chunk.append(left.whole[-1] + about)
        done += 1
        for c, g in zip(held, gradient, strict=True):
            if kind == "adam":
                c.velocity = beta1 * c.velocity + (1 - beta1) * g
                c.second = beta2 * c.second + (1 - beta2) * g * g
                mean, square = c.velocity / (1 - beta1**done), c.second / (1 - beta2**done)
                c.x -= c.step * mean / (math.sqrt(square) + epsilon)
            else:
                c.velocity = (0.0 if kind == "sgd" else beta1) * c.velocity + gain * g
                c.x -= c.step * c.velocity
            c.average = rho * c.average + (1 - rho) * c.x
