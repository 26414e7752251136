"""Slow twins of the package's formulas: plain loops and definitions, sharing no code with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import mpmath

# -- learning -----------------------------------------------------------------------------------------


def signal_function(b: float, k: float) -> float:
    """E[y (1 + b y)^(-1/2)] by quadrature over the Gamma density of mean 1, not over its Laplace transform."""
    if math.isinf(k):
        return 1 / math.sqrt(1 + b)

    def integrand(y: mpmath.mpf) -> mpmath.mpf:
        density = mpmath.mpf(k) ** k * y ** (k - 1) * mpmath.exp(-k * y) / mpmath.gamma(k)
        return density * y / mpmath.sqrt(1 + b * y)

    with mpmath.workdps(20):
        cuts = sorted({0.0, *(s for s in (1 / b if b else 1.0, 0.1 / k, 1.0, 1 / k, 10.0, 20 / k) if s > 0)})
        return float(mpmath.quad(integrand, [*cuts, mpmath.inf]))


def adam_slope(signal: Sequence[float], deviation: Sequence[float], batch: float) -> float:
    """Slope along Adam's expected update, coordinate by coordinate: sum G^2 / sqrt(G^2 + sigma^2/B)."""
    return sum(g * g / math.sqrt(g * g + s * s / batch) for g, s in zip(signal, deviation, strict=True))


def normalised_step_cost(batch: float, noise_scale: float, curvature_ratio: float) -> float:
    """E[u'Hu] of an update of unit norm, over its large-batch limit, from the four traces themselves."""
    signal, noise = 1.0, noise_scale
    along_signal, along_noise = curvature_ratio * signal, 1.0 * noise
    cost = (along_signal + along_noise / batch) / (signal + noise / batch)
    return cost / (along_signal / signal)


def maximise(gain: Callable[[float], float], low: float, high: float) -> float:
    """Argument of the maximum of a unimodal function, by ternary search."""
    for _ in range(300):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        low, high = (a, high) if gain(a) < gain(b) else (low, b)
    return (low + high) / 2


def sample_cost(
    batch: float,
    reference: float,
    rate_ratio: float | str,
    *,
    slope: Callable[[float], float],
    curvature: Callable[[float], float],
    lr_fraction: float,
) -> float:
    """r_N by spending responses until unit progress is made, at B_0 and at B.

    The optimal rates are searched for, not solved for; `rate_ratio` may be 'tuned'.
    """

    def progress(rate: float, b: float) -> float:
        return rate * slope(b) - rate**2 * curvature(b) / 2

    def best_rate(b: float) -> float:
        return maximise(lambda rate: progress(rate, b), 0.0, 4 * slope(b) / curvature(b))

    reference_rate = lr_fraction * best_rate(reference)
    rate = best_rate(batch) if isinstance(rate_ratio, str) else rate_ratio * reference_rate
    gain = progress(rate, batch)
    if gain <= 0:
        return math.inf
    return (batch / gain) / (reference / progress(reference_rate, reference))


def smallest_rate_of_equal_cost(cost: Callable[[float], float]) -> float | None:
    """First rate ratio at which cost falls to 1, by walking up from 0 and bisecting; None if it never does."""
    previous, rate = 1e-6, 1e-6
    while rate < 1e6:
        previous, rate = rate, rate * 1.001
        if cost(rate) <= 1:
            break
    else:
        return None
    for _ in range(100):
        middle = (previous + rate) / 2
        previous, rate = (previous, middle) if cost(middle) <= 1 else (middle, rate)
    return rate


def crossing(responses: Sequence[float], score: Sequence[float], target: float) -> tuple[float, float, str] | None:
    """Walk along the evaluations until the score is reached."""
    last, seen = 0.0, 0
    for n, j in zip(responses, score, strict=True):
        if math.isnan(j):
            continue
        if j >= target:
            return last, n, "interval" if seen else "left"
        last, seen = n, seen + 1
    return (last, math.inf, "right") if seen else None


def unbiased_pair(batch: float, chunks: int, small: Sequence[float], large: Sequence[float]) -> tuple[float, float]:
    """|G|^2 and tr(Sigma) from chunk and batch norms, by solving two equations per update and averaging."""
    b = batch / chunks
    signal = noise = 0.0
    for s, whole in zip(small, large, strict=True):
        # s = G + S/b, whole = G + S/batch
        trace = (s - whole) / (1 / b - 1 / batch)
        noise += trace
        signal += whole - trace / batch
    return signal / len(small), noise / len(small)


def fieller(
    numerator: float, denominator: float, variances: tuple[float, float, float], t: float, grid: Sequence[float]
) -> list[float]:
    """Ratios of a grid that a t test of numerator - ratio * denominator does not reject."""
    vn, c, vd = variances
    return [
        ratio
        for ratio in grid
        if abs(numerator - ratio * denominator) <= t * math.sqrt(vn - 2 * ratio * c + ratio**2 * vd)
    ]


# -- system -------------------------------------------------------------------------------------------


def generation_in_waves(responses: int, concurrency: int, intercept: float, slope: float) -> float:
    """Seconds to decode responses when at most `concurrency` start together, one wave after another."""
    seconds, left = 0.0, responses
    while left > 0:
        wave = min(left, concurrency)
        seconds += intercept
        for _ in range(wave):
            seconds += slope
        left -= wave
    return seconds


def concurrency(memory: float, weights: float, kv_per_token: float, context: float, cap: float) -> int:
    """Responses admitted one at a time until the next one finds no room."""
    held, used = 0, weights
    while held < cap and used + kv_per_token * context <= memory:
        used += kv_per_token * context
        held += 1
    return held


def line(x: Sequence[float], y: Sequence[float], error: Sequence[float]) -> tuple[float, float]:
    """Weighted least-squares line by the textbook sums."""
    s = sx = sy = sxx = sxy = 0.0
    for a, b, e in zip(x, y, error, strict=True):
        w = 1 / e**2
        s, sx, sy, sxx, sxy = s + w, sx + w * a, sy + w * b, sxx + w * a * a, sxy + w * a * b
    slope = (s * sxy - sx * sy) / (s * sxx - sx**2)
    return (sy - slope * sx) / s, slope


# -- the hall -----------------------------------------------------------------------------------------


def p_near_best(time_ratio: Sequence[Sequence[float]], room: float = 1.05) -> list[float]:
    """Share of draws in which a batch is finite and within `room` of that draw's best."""
    counts = [0] * len(time_ratio[0])
    for draw in time_ratio:
        best = min(draw)
        for i, t in enumerate(draw):
            if math.isfinite(t) and t <= room * best:
                counts[i] += 1
    return [c / len(time_ratio) for c in counts]


def effective_range(p: Sequence[float]) -> tuple[int, int] | None:
    """All batches reached from the likeliest one without leaving p >= 1/2."""
    if max(p) < 0.5:
        return None
    peak = p.index(max(p))
    members = [i for i in range(len(p)) if all(p[j] >= 0.5 for j in range(min(i, peak), max(i, peak) + 1))]
    return members[0], members[-1]
