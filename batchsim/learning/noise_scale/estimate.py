"""A noise scale as an estimate: both moments, Fieller limits, and what would tell more where it is not identified."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

LEVEL = 0.95
BLOCK = 10
"""Consecutive updates that are treated as one observation: they share their parameters."""
RESAMPLES = 400
ROUNDING = 1e-3
"""Relative error of a logged norm of three digits: identical repeats claim no more certainty than this."""


@dataclass(frozen=True, kw_only=True)
class NoiseScale:
    """An estimate of the gradient noise scale.

    Parameters
    ----------
    noise_scale : float [responses]
        tr(Sigma)/|G|^2; NaN where the estimated signal is not positive.
    low, high : float [responses]
        Fieller limits; high is infinite where the norms give no upper limit.
    level : float [1]
        Coverage of the limits.
    signal_square, noise_trace : float
        Estimates of |G|^2 and tr(Sigma), in units of the logged norm squared (times responses).
    covariance : ndarray, (2, 2)
        Of (signal_square, noise_trace).
    dof : float
        Degrees of freedom behind the covariance.
    exponent : float [1]
        d log|g| / d log B over batches (NaN with one batch): -1/2 is all noise, 0 all signal.
    identified : bool
        Both limits are finite and positive.
    method, window : str
    message : str
        What the norms say in one sentence, and what would identify more.
    """

    noise_scale: float
    low: float
    high: float
    level: float
    signal_square: float
    noise_trace: float
    covariance: NDArray[np.float64]
    dof: float
    exponent: float
    identified: bool
    method: str
    window: str
    message: str

    def log_likelihood(self, noise_scale: ArrayLike) -> NDArray[np.float64]:
        """Profile log-likelihood of a noise scale, up to a constant.

        Parameters
        ----------
        noise_scale : array_like, any shape [responses]

        Returns
        -------
        ndarray [1]
            -(dof + 1)/2 log(1 + t^2/dof), with t the studentised tr(Sigma)/B_noise - |G|^2.
        """
        z = 1 / np.asarray(noise_scale, dtype=np.float64)
        (va, c), (_, vm) = self.covariance
        t2 = (self.signal_square - z * self.noise_trace) ** 2 / (va - 2 * z * c + z**2 * vm)
        return np.asarray(-(self.dof + 1) / 2 * np.log1p(t2 / self.dof))


def fieller(numerator: float, denominator: float, covariance: ArrayLike, *, t: float) -> tuple[float, float]:
    """Fieller limits of a ratio of two estimates.

    Parameters
    ----------
    numerator, denominator : float
    covariance : array_like, (2, 2)
        Of (numerator, denominator).
    t : float [1]
        Student quantile of the wanted coverage.

    Returns
    -------
    low, high : float
        (-inf, inf) where the denominator does not differ from zero: the set is then unbounded.
    """
    (vn, c), (_, vd) = np.asarray(covariance, dtype=np.float64)
    a = denominator**2 - t**2 * vd
    b = numerator * denominator - t**2 * c
    if a <= 0:
        return -np.inf, np.inf
    half = np.sqrt(max(b**2 - a * (numerator**2 - t**2 * vn), 0.0))
    return (b - half) / a, (b + half) / a


def combine(estimates: list[NoiseScale], weights: ArrayLike | None = None) -> NoiseScale:
    """Pool estimates of the same two moments from several runs.

    Parameters
    ----------
    estimates : list of NoiseScale
        Estimates without a covariance are left out.
    weights : array_like, (estimate,) or None
        The responses behind each, say; blocks (dof + 1) if None. Not the estimated precisions: a low
        |G|^2 comes with a low variance, and such weights would favour it.

    Returns
    -------
    NoiseScale
        Moments are averaged with these weights before the ratio is taken.
    """
    given = np.array([e.dof + 1 for e in estimates]) if weights is None else np.asarray(weights, dtype=np.float64)
    usable = [e for e in estimates if e.dof > 0]
    if not usable:
        return estimates[0]
    if len(usable) == 1:
        return usable[0]
    weight = given[[e.dof > 0 for e in estimates]]
    weight = weight / weight.sum()
    covariance = sum(w**2 * e.covariance for w, e in zip(weight, usable, strict=True))
    return from_moments(
        signal=float(sum(w * e.signal_square for w, e in zip(weight, usable, strict=True))),
        noise=float(sum(w * e.noise_trace for w, e in zip(weight, usable, strict=True))),
        covariance=np.asarray(covariance),
        dof=float(sum(e.dof for e in usable)),
        exponent=float("nan"),
        level=usable[0].level,
        method=usable[0].method,
        window=usable[0].window,
        largest_batch=float("nan"),
    )


def rescale(estimate: NoiseScale, *, factor: float, unit: str) -> NoiseScale:
    """Write a noise scale in another unit of batch.

    Parameters
    ----------
    estimate : NoiseScale
    factor : float
        New units per old one: 1/G [groups/response], or 1/kept_share [generated/kept].
    unit : str
        The new unit's plural, for the message.

    Returns
    -------
    NoiseScale
        tr(Sigma), B_noise and its limits times factor; |G|^2 as it was.

    Raises
    ------
    ValueError
        For a factor that is not positive.
    """
    if not (factor > 0 and np.isfinite(factor)):
        raise ValueError(f"factor {factor} between units must be positive and finite")
    scale = np.array([1.0, factor])
    low, high, value = estimate.low * factor, estimate.high * factor, estimate.noise_scale * factor
    message = estimate.message
    if estimate.dof > 0:
        message = _message(value, low, high, estimate.identified, np.nan, estimate.method, estimate.window, unit)
    return replace(
        estimate,
        noise_scale=value,
        low=low,
        high=high,
        noise_trace=estimate.noise_trace * factor,
        covariance=estimate.covariance * np.outer(scale, scale),
        message=message,
    )


def block_length(updates: int, block: int = BLOCK) -> int:
    """Updates per block: ten, or fewer where that leaves fewer than eight blocks."""
    return min(block, max(1, updates // 8))


def block_covariance(values: NDArray[np.float64], *, size: int, weight: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Covariance of weighted means over updates, from the scatter of the means of blocks of updates.

    With block weights w and block means x, n/(n - 1) sum_i w_i^2 (x_i - x)(x_i - x)' / (sum_i w_i)^2, which for
    equal weights is the sample covariance of block means over their number. Updates after the last whole block
    are left out.

    Parameters
    ----------
    values : ndarray, (quantity, update)
    size : int
        Updates per block.
    weight : ndarray, (update,)

    Returns
    -------
    ndarray, (quantity, quantity)
    """
    blocks = values.shape[1] // size
    w = weight[: blocks * size].reshape(blocks, size)
    parts = values[:, : blocks * size].reshape(len(values), blocks, size)
    return scatter(np.sum(parts * w, axis=2), np.sum(w, axis=1))


def scatter(sums: NDArray[np.float64], weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """Covariance of a weighted mean from weighted sums over blocks, (quantity, block), and weights, (block,)."""
    blocks = weight.size
    center = sums.sum(axis=1) / weight.sum()
    off = sums - center[:, None] * weight
    return np.asarray(off @ off.T * blocks / (blocks - 1) / weight.sum() ** 2)


def from_moments(
    *,
    signal: float,
    noise: float,
    covariance: NDArray[np.float64],
    dof: float,
    exponent: float,
    level: float,
    method: str,
    window: str,
    largest_batch: float,
    unit: str = "responses",
) -> NoiseScale:
    """Noise scale with Fieller limits from estimates of its two moments.

    Parameters
    ----------
    signal, noise : float
        |G|^2 and tr(Sigma).
    covariance : ndarray, (2, 2)
        Of (signal, noise).
    dof : float
        Degrees of freedom behind the covariance.
    exponent : float [1]
        Of the norm over batches, NaN if there is none.
    level : float [1]
    method, window, unit : str
        For the message.
    largest_batch : float [responses]
        Behind the estimate, so that the message can name a larger one; NaN if there is no single one.

    Returns
    -------
    NoiseScale
    """
    t = float(stdtrit(dof, (1 + level) / 2))
    z_low, z_high = fieller(signal, noise, covariance, t=t)
    # Norms that do not fall with the batch show no noise, and norms that fall faster than 1/sqrt(B) no
    # signal: neither bounds the noise scale on that side.
    low = 1 / z_high if 0 < z_high < np.inf and noise > 0 else 0.0
    high = 1 / z_low if z_low > 0 and noise > 0 else float("inf")
    value = noise / signal if signal > 0 and noise > 0 else float("nan")
    identified = bool(np.isfinite(high) and low > 0)
    return NoiseScale(
        noise_scale=value,
        low=low,
        high=high,
        level=level,
        signal_square=signal,
        noise_trace=noise,
        covariance=covariance,
        dof=dof,
        exponent=exponent,
        identified=identified,
        method=method,
        window=window,
        message=_message(value, low, high, identified, largest_batch, method, window, unit),
    )


def _message(
    value: float,
    low: float,
    high: float,
    identified: bool,
    largest: float,
    method: str,
    window: str,
    unit: str = "responses",
) -> str:
    start = f"noise scale from {method} over {window}"
    if identified:
        return f"{start}: {_shown(value)} {unit}, limits {_shown(low)} to {_shown(high)}"
    bound = f"at least {_shown(low)} {unit}" if low > 0 else "no limit on either side"
    remedy = "norms at a batch within a few times of it would give an upper limit"
    if np.isfinite(largest):
        remedy = f"norms at {4 * largest:.0f} {unit} or more, or of chunks within an update, would give one"
    return f"{start}: {bound}, no upper limit (not identified); {remedy}"


def _shown(count: float) -> str:
    """A number of responses as people write it, to three digits."""
    return f"{float(f'{count:.3g}'):,.0f}" if count >= 100 else f"{count:.3g}"


def not_identified(reason: str, *, method: str, window: str, level: float) -> NoiseScale:
    """Answer of an estimator that cannot tell; reason says why and which measurement would."""
    return NoiseScale(
        noise_scale=float("nan"),
        low=0.0,
        high=float("inf"),
        level=level,
        signal_square=float("nan"),
        noise_trace=float("nan"),
        covariance=np.full((2, 2), np.nan),
        dof=0.0,
        exponent=float("nan"),
        identified=False,
        method=method,
        window=window,
        message=f"noise scale from {method} over {window}: not identified; {reason}",
    )
