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


def rising_curve(score: Sequence[float], weight: Sequence[float]) -> list[float]:
    """Max over a <= i of min over b >= i of the weighted mean of a..b."""

    def mean(a: int, b: int) -> float:
        return sum(w * j for w, j in zip(weight[a : b + 1], score[a : b + 1], strict=True)) / sum(weight[a : b + 1])

    n = len(score)
    return [max(min(mean(a, b) for b in range(i, n)) for a in range(i + 1)) for i in range(n)]


def first_crossings(score: Sequence[float], target: float, error: float) -> list[float]:
    """Probability of each first pass, by adding up all patterns of passes and failures."""
    passes = [0.5 * math.erfc(-(j - target) / error / math.sqrt(2)) for j in score]
    result = [0.0] * len(score)
    for pattern in range(1, 2 ** len(score)):
        bits = [bool(pattern >> i & 1) for i in range(len(score))]
        result[bits.index(True)] += math.prod(p if hit else 1 - p for p, hit in zip(passes, bits, strict=True))
    return result


def walk_updates(
    progress: float, batch: Callable[[float], float], cost: Callable[[float, float], float]
) -> tuple[float, float]:
    """Updates and responses to given progress, one update after another; the last one counts in part.

    An update of B responses advances by B/r; r is taken half an update ahead.
    """
    u = updates = responses = 0.0
    while u < progress:
        b = batch(u)
        step = b / cost(u, b)
        step = b / cost(u + step / 2, b)
        share = min(1.0, (progress - u) / step)
        u, updates, responses = u + step, updates + share, responses + share * b
    return updates, responses


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


def nested_variances(gradients: Sequence[Sequence[Sequence[float]]]) -> tuple[float, float, float]:
    """|G|^2, M and W of one update from the gradients themselves: (prompt, response, coordinate)."""
    prompts, group = len(gradients), len(gradients[0])
    means = [[sum(x) / group for x in zip(*responses, strict=True)] for responses in gradients]
    whole = [sum(x) / prompts for x in zip(*means, strict=True)]

    def gap(a: Sequence[float], b: Sequence[float]) -> float:
        return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))

    within = sum(gap(x, means[i]) for i, responses in enumerate(gradients) for x in responses)
    between = sum(gap(mean, whole) for mean in means)
    signal = sum(x * x for x in whole) - between / (prompts * (prompts - 1))
    return signal, group * between / (prompts - 1), within / (prompts * (group - 1))


def micro_batch_pair(squares: Sequence[float], sizes: Sequence[float], whole: float) -> tuple[float, float]:
    """|G|^2 and tr(Sigma) of one update of unequal micro-batches: two equations in expectation, solved by hand."""
    batch = sum(sizes)
    # sum_j (n_j/B) |g_j|^2 = G + S sum_j (n_j/B)/n_j,   |g_B|^2 = G + S/B
    left = sum(n / batch * s for n, s in zip(sizes, squares, strict=True))
    coefficient = sum(n / batch / n for n in sizes)
    noise = (left - whole) / (coefficient - 1 / batch)
    return whole - noise / batch, noise


def share_of_signal(b: float, k: float) -> float:
    """E[b y/(1 + b y)] by quadrature over the Gamma density of mean 1."""

    def integrand(y: mpmath.mpf) -> mpmath.mpf:
        return mpmath.mpf(k) ** k * y ** (k - 1) * mpmath.exp(-k * y) / mpmath.gamma(k) * b * y / (1 + b * y)

    with mpmath.workdps(20):
        return float(mpmath.quad(integrand, [0, 0.1 / k, 1, 1 / k, 10, 20 / k + 20, mpmath.inf]))


def group_signal(group: int, pass_rate: float, normalised: bool, filtered: bool) -> float:
    """Factor of the prompt's signal, from every sequence of right and wrong answers of the group."""
    total = kept = 0.0
    for code in range(2**group):
        rewards = [(code >> i) & 1 for i in range(group)]
        right = sum(rewards)
        weight = pass_rate**right * (1 - pass_rate) ** (group - right)
        if not 0 < right < group:
            continue
        mean = right / group
        deviation = math.sqrt(mean * (1 - mean)) if normalised else 1.0
        # A right answer has mean score 1 - p, a wrong one -p: their difference is 1.
        scores = [r - pass_rate for r in rewards]
        total += weight * sum((r - mean) / deviation * s for r, s in zip(rewards, scores, strict=True)) / group
        kept += weight
    return total / kept if filtered else total


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
