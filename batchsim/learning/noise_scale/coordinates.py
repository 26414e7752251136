r"""What an optimizer with a step per coordinate can use of a batch, measured: A(B) and the shape k.

Adam's slope A(B) = sum_i G_i^2/sqrt(G_i^2 + sigma_i^2/B) depends on how signal-to-noise is spread over
coordinates, which norms do not show. Three measurements do, the first two from arrays that are read in
pieces, so that a checkpoint of any size passes through little memory:

* **Moments** (`from_coordinate_moments`): at a frozen policy, mean gradients g, h of two independent
  halves of n and m responses, and the variances sigma_i^2 within each. Products across the halves are
  unbiased: |G|^2 = sum g h, and sum (g^2 - s^2/n)(h^2 - t^2/m)/sigma^3 for sum G^4/sigma^3. In A(B) the
  numerator comes from one half and the denominator sqrt(h^2 + t^2 (1/B - 1/m)) from the other, both ways, less
  the bias 3/8 Var/(.)^2 of an inverse root (uncorrected, halves of 8 B responses make A up to 3 % too large). At
  small B, A departs from sqrt(B) by 1 + 1/k = B_noise (sum G^4/sigma^3)/(sum G^2/sigma) times what norms say.
* **Adam's state** (`from_adam_state`): m averages few gradients and v many, so that
  mean(m^2/v) = rho + (1 - rho) E[b y/(1 + b y)], rho = (1 - beta1)/(1 + beta1), y ~ Gamma(k, mean 1), which
  lies between rho (all noise) and rho + (1 - rho) b/(1 + b) (all coordinates alike).
* **Inner products** (`from_inner_products`): of an update direction u_B = g_B/sqrt(mean g_B^2), each batch
  with its own second moment, and an independent gradient: E<u_B, g'> = A(B), whatever the family.

At b = B/B_noise << 1 all of them see B_noise/(1 + 1/k) only: k needs B_noise from norms, and a batch that
reaches some tenths of it.

References
----------
.. [1] Kingma and Ba 2015, "Adam", arXiv:1412.6980, section 3 (the corrections of m and v for their start).
.. [2] Fieller 1954, JRSS B 16:175.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from batchsim.learning.noise_scale.estimate import (
    BLOCK,
    LEVEL,
    RESAMPLES,
    NoiseScale,
    block_covariance,
    block_length,
    fieller,
    scatter,
)
from batchsim.learning.noise_scale.shape import (
    SHAPES,
    SnrShape,
    fit_snr_shape,
    least,
    log_slope,
    scale_limits,
    snr_shape_estimate,
)

Floats = NDArray[np.float64]

PIECE = 2**18
"""Coordinates that are in memory as float64 at a time."""
UNITS = 16
"""Fewer arrays than this are cut further, so that something can be resampled."""
RESPONSES_PER_BATCH = 4
"""Responses of each half per response of the largest batch: A(B) is then biased by less than 1 %."""
# Nodes s = exp(u - exp(-u)) and weights exp(-s) ds: the integral of exp(-s) F(s), as in progress.py.
_U = np.arange(-3.9, 4.2, 1 / 24)
_NODES = np.exp(_U - np.exp(-_U))
_WEIGHTS = np.exp(-_NODES) * _NODES * (1 + np.exp(-_U)) / 24


@dataclass(frozen=True, kw_only=True)
class CoordinateNoise:
    """What moments per coordinate say.

    Parameters
    ----------
    noise_scale, noise_scale_low, noise_scale_high : float [responses]
        sum sigma^2/sum G^2 and its limits.
    signal_square, noise_trace : float
        sum G^2; sum sigma^2 [responses].
    first_order_factor : float [1]
        B_noise (sum G^4/sigma^3)/(sum G^2/sigma): 1 + 1/k of a Gamma family, read at B -> 0.
    train_batch : ndarray, (batch,) [responses]
    usable_slope, usable_slope_low, usable_slope_high : ndarray, (batch,) [1]
        A(B) relative to the first batch.
    shape : SnrShape
        The k whose family comes nearest to A over all batches, B_noise given.
    coordinates : int
        With a variance above zero.
    level : float [1]
    """

    noise_scale: float
    noise_scale_low: float
    noise_scale_high: float
    signal_square: float
    noise_trace: float
    first_order_factor: float
    train_batch: Floats
    usable_slope: Floats
    usable_slope_low: Floats
    usable_slope_high: Floats
    shape: SnrShape
    coordinates: int
    level: float

    @property
    def snr_shape_first_order(self) -> float:
        """K = 1/(factor - 1) [1]: what departs first, where the family need not hold further up."""
        return 1 / (self.first_order_factor - 1) if self.first_order_factor > 1 else float("inf")


@dataclass(frozen=True, kw_only=True)
class SlopeRatios:
    """A(B) over batches, measured without a family.

    Parameters
    ----------
    train_batch : ndarray, (batch,) [responses]
    usable_slope, low, high : ndarray, (batch,) [1]
        A(B) relative to the first batch, and Fieller limits.
    level : float [1]
    identified : bool
        The slope at the first batch differs from zero, so that all limits are finite.
    shape : SnrShape
    message : str
    """

    train_batch: Floats
    usable_slope: Floats
    low: Floats
    high: Floats
    level: float
    identified: bool
    shape: SnrShape
    message: str


def from_coordinate_moments(
    chunks: Iterable[tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike]],
    *,
    responses: tuple[float, float],
    train_batch: ArrayLike,
    epsilon: float = 0.0,
    level: float = LEVEL,
    seed: int = 0,
) -> CoordinateNoise:
    """Noise scale, A(B) and k from per-coordinate means and variances of two independent halves.

    Parameters
    ----------
    chunks : iterable of (mean, mean, variance, variance), each array_like of one shape
        Per layer, say: mean gradient of each half, and the variance of ONE response's gradient estimated in
        each half; for GRPO, G times the variance of a group's mean gradient. Consumed once.
    responses : (float, float) [responses]
        n, m behind the two means.
    train_batch : array_like, (batch,) [responses]
        Batches of A, the first being the reference. At most a quarter of the smaller half.
    epsilon : float
        Adam's epsilon, in the gradient's unit.
    level : float [1]
        Of limits that resample the arrays (or 16 pieces of each where there are fewer than 16 arrays). They hold
        how coordinates differ, and the noise of the halves only as far as it is independent between arrays.
    seed : int

    Returns
    -------
    CoordinateNoise
        NaN for A, k or the noise scale where |G|^2 is not positive: take larger halves.

    Raises
    ------
    ValueError
        For a batch above a quarter of a half, arrays of unequal shape, or no coordinate with a variance.
    """
    batches = np.atleast_1d(np.asarray(train_batch, dtype=np.float64))
    n, m = responses
    if np.any(batches * RESPONSES_PER_BATCH > min(n, m)) or np.any(batches <= 0):
        raise ValueError(
            f"train_batch {batches.max():g} is above a quarter of a half of {min(n, m):g} responses, whose own noise "
            "would bend A(B); average more responses or ask for smaller batches"
        )
    sums, units, count = [], [], 0
    for unit, (g, h, s, t) in _pieces(chunks, 4):
        some = (s > 0) & (t > 0)
        count += int(some.sum())
        sums.append(_moment_sums(g[some], h[some], s[some], t[some], n, m, batches, epsilon))
        units.append(unit)
    if not count:
        raise ValueError("no coordinate has a positive variance in both halves: nothing to measure")
    table = _by_unit(np.array(sums), units)
    draws = _resample(table, seed)
    derived = _derive(table.sum(axis=0)[None], batches)
    limits = _limits(derived[0], _derive(draws, batches), level, len(table))
    signal, noise = table.sum(axis=0)[:2]
    scale = float(derived[0, 0])
    slope = derived[0, 2:]
    return CoordinateNoise(
        noise_scale=scale,
        noise_scale_low=float(limits[0, 0]),
        noise_scale_high=float(limits[1, 0]),
        signal_square=float(signal),
        noise_trace=float(noise),
        first_order_factor=float(derived[0, 1]),
        train_batch=batches,
        usable_slope=slope,
        usable_slope_low=limits[0, 2:],
        usable_slope_high=limits[1, 2:],
        shape=_shape_of_slopes(derived, draws, batches, level, len(table)),
        coordinates=count,
        level=level,
    )


def from_adam_state(
    chunks: Iterable[tuple[ArrayLike, ArrayLike]],
    *,
    train_batch: float,
    noise_scale: float | NoiseScale,
    beta1: float = 0.9,
    beta2: float = 0.999,
    step: int | None = None,
    level: float = LEVEL,
) -> SnrShape:
    """Shape k from the moments that Adam keeps.

    Parameters
    ----------
    chunks : iterable of (exp_avg, exp_avg_sq), each array_like of one shape
        m and v of each parameter as the optimizer's state has them, not yet corrected for the start. Consumed
        once. Coordinates with v = 0 are left out.
    train_batch : float [responses]
        B of the updates behind the state.
    noise_scale : float or NoiseScale [responses]
        B_noise. With limits, k's limits are those at the worse end.
    beta1, beta2 : float [1]
    step : int or None [updates]
        Updates so far; None for many.
    level : float [1]
        Of Student limits from the scatter of arrays (or of 16 pieces of each where there are fewer than 16 arrays).

    Returns
    -------
    SnrShape
        Not identified where the limits of mean(m^2/v) reach outside (rho, rho + (1 - rho) b/(1 + b)), as they do
        where b is small. The noise of v itself enters to first order, for Gaussian gradients.

    Raises
    ------
    ValueError
        For betas outside [0, 1), a step below 2, or a state without any v > 0.
    """
    if not (0 <= beta1 < 1 and 0 <= beta2 < 1) or (step is not None and step < 2):
        raise ValueError(f"beta1 {beta1}, beta2 {beta2} must be in [0, 1) and step {step} at least 2")
    sums, units = [], []
    left1, left2 = (0.0, 0.0) if step is None else (beta1**step, beta2**step)
    correction = (1 - left2) / (1 - left1) ** 2
    for unit, (m, v) in _pieces(chunks, 2):
        some = v > 0
        sums.append([np.sum(m[some] ** 2 / v[some]) * correction, some.sum()])
        units.append(unit)
    table = _by_unit(np.array(sums, dtype=np.float64).reshape(-1, 2), units)
    if not table[:, 1].sum():
        raise ValueError("no coordinate has v > 0: the state is that of an optimizer before its first step")
    total = table.sum(axis=0)
    ratio = float(total[0] / total[1])
    slack = np.inf
    if len(table) >= 3:
        error = float(np.sqrt(scatter(table[:, :1].T, table[:, 1])[0, 0]))
        slack = float(stdtrit(len(table) - 1, (1 + level) / 2)) * error
    expected = _state_ratio(beta1, beta2, step)
    scale, scale_low, scale_high = scale_limits(noise_scale)
    low = _shape_of_ratio(ratio - slack, train_batch / scale_low if scale_low > 0 else np.inf, expected)
    high = _shape_of_ratio(ratio + slack, train_batch / scale_high, expected)
    value = _shape_of_ratio(ratio, train_batch / scale, expected)
    b = train_batch / scale
    said = (
        f"mean(m^2/v) = {ratio:.4g} between {expected(b, 0.0):.4g} (all noise) and {expected(b, np.inf):.4g} "
        f"(coordinates alike) at B/B_noise = {b:.3g}"
    )
    return snr_shape_estimate(
        value,
        low,
        high,
        level,
        float("nan"),
        "Adam's state",
        said,
        "the state of a run at a batch nearer to B_noise, with B_noise from chunk norms, would",
    )


def from_inner_products(
    train_batch: ArrayLike,
    inner: ArrayLike,
    *,
    noise_scale: float | NoiseScale | None = None,
    level: float = LEVEL,
    block: int = BLOCK,
) -> SlopeRatios:
    """A(B) relative to its smallest batch, and k, from inner products of updates with independent gradients.

    Parameters
    ----------
    train_batch : array_like, (batch,) [responses]
        Ascending, say B/4, B/2, B; two or more.
    inner : array_like, (update, batch)
        <u_b, g'>: u_b = g_b/sqrt(mean of g_b^2 over updates), EACH batch with its own mean square (with that of
        B for all, the products would not depend on b), and g' a gradient of responses that none of them saw.
    noise_scale : float, NoiseScale or None [responses]
        B_noise, for k; with limits, k's limits are the widest over them.
    level : float [1]
    block : int
        Consecutive updates that count as one observation.

    Returns
    -------
    SlopeRatios
        Fieller limits from block means. Not identified with fewer than three blocks more than batches, or where the
        slope at the first batch does not differ from zero.
    """
    b = np.asarray(train_batch, dtype=np.float64)
    values = np.asarray(inner, dtype=np.float64)
    values = values[np.isfinite(values).all(axis=1)].T
    size = block_length(values.shape[1], block)
    blocks = values.shape[1] // size
    if b.size < 2 or blocks < b.size + 2:
        why = f"{values.shape[1]} update(s) at {b.size} batch(es) are too few; log {8 * (b.size + 2)} updates or more"
        nothing = np.full(b.size, np.nan)
        return SlopeRatios(
            train_batch=b,
            usable_slope=nothing,
            low=np.zeros(b.size),
            high=np.full(b.size, np.inf),
            level=level,
            identified=False,
            shape=snr_shape_estimate(np.nan, 0.0, np.inf, level, np.nan, "inner products", why, "more updates would"),
            message=f"slope from inner products: not identified; {why}",
        )
    mean = values.mean(axis=1)
    covariance = block_covariance(values, size=size, weight=np.ones(values.shape[1]))
    t = float(stdtrit(blocks - 1, (1 + level) / 2))
    pairs = [fieller(mean[i], mean[0], covariance[np.ix_([i, 0], [i, 0])], t=t) for i in range(1, b.size)]
    low, high = (np.array([1.0, *side]) for side in zip(*pairs, strict=True))
    identified = bool(np.isfinite(high).all() and mean[0] > 0)
    ratios = ", ".join(f"{r:.3g} at {x:g}" for x, r in zip(b[1:], mean[1:] / mean[0], strict=True))
    return SlopeRatios(
        train_batch=b,
        usable_slope=mean / mean[0],
        low=low,
        high=high,
        level=level,
        identified=identified,
        shape=_shape_of_means(b, mean, covariance, t, noise_scale, level),
        message=f"slope relative to {b[0]:g} responses: {ratios}"
        if identified
        else f"slope at {b[0]:g} responses does not differ from zero (not identified); more updates, or a larger "
        "independent batch, would tell",
    )


# -- k ---------------------------------------------------------------------------------------------------


def _state_ratio(beta1: float, beta2: float, step: int | None) -> Callable[[float, float], float]:
    """E[m^2/v] over coordinates as a function of (b, k), with the noise of v to first order for Gaussian gradients.

    Let weights w of m and u of v sum to one, and s = b y. Then E m^2 = s + rho, E v = 1 + s, rho = sum w^2,
    Var v = (4 s + 2) sum u^2, Cov(m^2, v) = 4 s sum w u + 2 sum w^2 u, and
    E[m^2/v] = (s + rho)/(1 + s) (1 + Var v/(1 + s)^2) - Cov/(1 + s)^2 is a polynomial in 1/(1 + s), whose
    powers have E (1 + b y)^-j = int_0^inf exp(-t) t^(j-1)/(j-1)! (1 + b t/k)^-k dt.
    """

    def total(ratio: float) -> float:
        return (1 - (0.0 if step is None else ratio**step)) / (1 - ratio)

    w, u = total(beta1), total(beta2)
    rho, uu = total(beta1**2) / w**2, total(beta2**2) / u**2
    wu, wwu = total(beta1 * beta2) / (w * u), total(beta1**2 * beta2) / (w**2 * u)

    def expected(b: float, k: float) -> float:
        if k <= 0:
            powers = [1.0, 1.0, 1.0]
        elif np.isinf(k):
            powers = [(1 + b) ** -j for j in (1, 2, 3)]
        else:
            laplace = _WEIGHTS * np.exp(-k * np.log1p(b * _NODES / k))
            powers = [float(laplace @ _NODES**j / (1 + (j == 2))) for j in (0, 1, 2)]
        one, two, three = powers
        spread = uu * (4 * one - (6 - 4 * rho) * two + 2 * (1 - rho) * three)
        return 1 - (1 - rho) * one + spread - 4 * wu * (one - two) - 2 * wwu * two

    return expected


def _shape_of_ratio(ratio: float, b: float, expected: Callable[[float, float], float]) -> float:
    """Shape k at which E[m^2/v] is this ratio; 0 below, infinite above what any k gives."""
    if np.isnan(ratio) or ratio <= expected(1.0, 0.0) or np.isinf(b):
        return 0.0
    if ratio >= expected(b, np.inf):
        return float("inf")
    low, high = np.log(1e-4), np.log(1e6)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expected(b, float(np.exp(middle))) < ratio else (low, middle)
    return float(np.exp(low)) if low > np.log(2e-4) else 0.0


def _shape_of_slopes(derived: Floats, draws: Floats, batches: Floats, level: float, units: int) -> SnrShape:
    """The family's k nearest to A, and its limits over resampled arrays."""
    method = "moments per coordinate"
    remedy = "larger halves, or batches nearer to B_noise, would"

    def fit(row: Floats) -> tuple[float, float]:
        if not (row[0] > 0 and np.all(row[2:] > 0)):
            return float("nan"), float("nan")
        return fit_snr_shape(batches, row[2:], noise_scale=float(row[0]))

    if batches.size < 2:
        said = "A at one batch has no ratio"
        return snr_shape_estimate(np.nan, 0.0, np.inf, level, np.nan, method, said, "two or more batches would")
    value, misfit = fit(derived[0])
    fitted = np.array([fit(row)[0] for row in _derive(draws, batches)[: RESAMPLES // 4]])
    low, high = _limits(np.array([value]), fitted[:, None], level, units)[:, 0]
    said = f"A(B) over {batches.size} batches from {batches[0]:g} to {batches[-1]:g}"
    return snr_shape_estimate(value, float(low), float(high), level, misfit, method, said, remedy)


def _shape_of_means(
    b: Floats, mean: Floats, covariance: Floats, t: float, noise_scale: float | NoiseScale | None, level: float
) -> SnrShape:
    """Profile limits of k: contrasts mean_j - (A_k(b_j)/A_k(b_0)) mean_0 that their covariance allows."""
    method = "inner products"
    if noise_scale is None:
        said = "without B_noise only B_noise/(1 + 1/k) shows"
        return snr_shape_estimate(np.nan, 0.0, np.inf, level, np.nan, method, said, "B_noise from chunk norms would")

    def distance(scale: float) -> Callable[[Floats], Floats]:
        def squared(k: Floats) -> Floats:
            log_a = log_slope(b / min(scale, 1e12), k)
            ratio = np.exp(log_a[:, 1:] - log_a[:, :1])
            contrast = np.zeros((k.size, b.size - 1, b.size))
            contrast[:, :, 0] = -ratio
            contrast[:, np.arange(b.size - 1), np.arange(1, b.size)] = 1
            d = contrast @ mean
            spread = contrast @ covariance @ contrast.transpose(0, 2, 1)
            return np.asarray(np.einsum("ki,ki->k", d, np.linalg.solve(spread, d[..., None])[..., 0]))

        return squared

    accepted = []
    scale, *ends = scale_limits(noise_scale)
    if not scale > 0:
        said = "B_noise is not known"
        return snr_shape_estimate(np.nan, 0.0, np.inf, level, np.nan, method, said, "B_noise from chunk norms would")
    value, _ = least(distance(scale))
    for s in {scale, *(e for e in ends if e > 0)}:
        values = distance(s)(SHAPES)
        accepted.extend(SHAPES[values - min(values.min(), least(distance(s))[1]) <= t**2])
    step = SHAPES[1] / SHAPES[0]
    low, high = min([*accepted, value]) / step**0.5, max([*accepted, value]) * step**0.5
    low = 0.0 if low < SHAPES[0] else low
    misfit = float("nan")
    if np.all(mean > 0):
        error = log_slope(b / scale, np.array([value]))[0] - np.log(mean)
        misfit = float(np.std(error))
    said = f"A(B) at {', '.join(f'{x:g}' for x in b)}, B/B_noise up to {b[-1] / scale:.3g}"
    return snr_shape_estimate(
        value, low, high, level, misfit, method, said, "more updates, or batches nearer to B_noise, would"
    )


# -- reading arrays piece by piece -------------------------------------------------------------------------


def _pieces(chunks: Iterable[tuple[ArrayLike, ...]], arrays: int) -> Iterator[tuple[tuple[int, int], list[Floats]]]:
    """(array, piece) and float64 pieces of each array, never more than PIECE coordinates at a time."""
    for index, chunk in enumerate(chunks):
        flat = [np.asarray(a).reshape(-1) for a in chunk]
        if len(flat) != arrays or len({a.size for a in flat}) > 1:
            raise ValueError(f"chunk {index}: {arrays} arrays of one shape are needed, not {[a.shape for a in flat]}")
        size = flat[0].size
        parts = max(min(UNITS, size), -(-size // PIECE))
        edges = np.linspace(0, size, parts + 1).astype(int)
        for part in range(parts):
            cut = slice(edges[part], edges[part + 1])
            yield (index, part * UNITS // parts), [a[cut].astype(np.float64) for a in flat]


def _by_unit(sums: Floats, units: list[tuple[int, int]]) -> Floats:
    """Sums per array, or per sixteenth of each array where the arrays are few."""
    many = len({index for index, _ in units}) >= UNITS
    keys = [(index, 0 if many else part) for index, part in units]
    rows: dict[tuple[int, int], Floats] = {}
    for key, row in zip(keys, sums, strict=True):
        rows[key] = rows[key] + row if key in rows else row
    return np.array(list(rows.values()))


def _resample(table: Floats, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(len(table), np.full(len(table), 1 / len(table)), size=RESAMPLES)
    return np.asarray(counts @ table)


def _limits(value: Floats, draws: Floats, level: float, units: int) -> Floats:
    """Student limits in the logarithm from resamples, (2, quantity); open where too many resamples are no number."""
    open_ended = np.stack([np.zeros(value.size), np.full(value.size, np.inf)])
    if units < 3:
        return open_ended
    t = float(stdtrit(units - 1, (1 + level) / 2))
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(draws)
        usable = np.isfinite(logs)
        center = np.nanmean(np.where(usable, logs, np.nan), axis=0) if usable.any(axis=0).all() else np.log(value)
        error = np.sqrt(np.sum(np.where(usable, logs - center, 0.0) ** 2, axis=0) / np.maximum(usable.sum(axis=0), 1))
        slack = np.exp(t * error * np.sqrt(units / (units - 1)))
        limits = np.stack([value / slack, value * slack])
    closed = (usable.mean(axis=0) >= (1 + level) / 2) & np.isfinite(value)
    return np.where(closed, limits, open_ended)


def _moment_sums(
    g: Floats, h: Floats, s: Floats, t: Floats, n: float, m: float, batches: Floats, epsilon: float
) -> Floats:
    """Sums over coordinates of G^2, sigma^2, G^2/sigma, G^4/sigma^3 and each batch's slope."""
    variance = (s + t) / 2
    left, right = g**2 - s / n, h**2 - t / m
    cross = g * h
    slopes = [
        left @ _inverse_root(h**2, t / m, t / b, epsilon) + right @ _inverse_root(g**2, s / n, s / b, epsilon)
        for b in batches
    ]
    first = [cross.sum(), variance.sum(), np.sum(cross / np.sqrt(variance)), np.sum(left * right / variance**1.5)]
    return np.array([*first, *(0.5 * x for x in slopes)])


def _inverse_root(square: Floats, error: Floats, noise: Floats, epsilon: float) -> Floats:
    """1/(sqrt(G^2 + noise) + epsilon) from a square with expectation G^2 + error.

    X = square + noise - error is unbiased for G^2 + noise, X^(-1/2) is high by 3/8 Var X/X^2 to first order (up to
    3/8 error/noise where G^2 = noise); for a Gaussian mean Var X = 4 G^2 error + 2 error^2.
    """
    x = square + noise - error
    variance = 4 * np.maximum(square - error, 0) * error + 2 * error**2
    return np.asarray((1 - 0.375 * variance / x**2) / (np.sqrt(x) + epsilon))


def _derive(sums: Floats, batches: Floats) -> Floats:
    """Noise scale, first-order factor and slope ratios of rows of sums, NaN where a denominator is not positive."""
    signal, noise, first, second = sums[:, :4].T
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where(signal > 0, noise / signal, np.nan)
        factor = np.where(first > 0, scale * second / first, np.nan)
        slope = np.where(sums[:, 4:5] > 0, sums[:, 4:] / sums[:, 4:5], np.nan)
    return np.column_stack([scale, factor, slope])
