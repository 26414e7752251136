r"""The gradient noise scale B_noise = tr(Sigma)/|G|^2 from gradient norms, with honest limits.

Averaging B independent responses gives

    E|g_B|^2 = |G|^2 + tr(Sigma)/B = |G|^2 (1 + B_noise/B).

Two estimators, both linear in squared norms, so that |G|^2 and tr(Sigma) are unbiased:

* logged norms of runs at several batches: a line of |g_B|^2 on 1/B (`from_logged_norms`);
* chunks of b responses and the whole batch within each update (`from_chunk_norms`):
  |G|^2 = (B|g_B|^2 - b|g_b|^2)/(B - b),  tr(Sigma) = (|g_b|^2 - |g_B|^2)/(1/b - 1/B),
  each averaged over updates *before* dividing.

The ratio is not: its denominator may vanish. Its limits are Fieller's, taken on z = |G|^2/tr(Sigma)
= 1/B_noise, and where z = 0 lies inside them B_noise has no upper limit. That is the answer "not
identified", and it names the batch that would identify it: the largest batch must come within a few
times of B_noise, since below it the signal hides under the noise.

Runs at different batches are at different points of training after the same number of updates, and
the gradient changes along the way. So norms of several batches are read twice, over the whole runs and
over the stretch of responses that all runs share; where the two disagree both are reported.

References
----------
.. [1] McCandlish et al. 2018, arXiv:1812.06162, appendix A.1 (the unbiased pair).
.. [2] Fieller 1954, "Some problems in interval estimation", JRSS B 16:175 (limits of a ratio).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


def from_logged_norms(
    train_batch: ArrayLike,
    grad_norms: Sequence[ArrayLike],
    *,
    level: float = LEVEL,
    window: str = "whole runs",
) -> NoiseScale:
    """Noise scale from the gradient norms of runs at two or more batches.

    Per batch, the location of |g_B|^2 is the squared median norm over the updates of all its runs,
    which no spike moves; it lies below the mean by a factor that is the same at every batch when
    the scatter is multiplicative, and cancels from tr(Sigma)/|G|^2. Its variance comes from
    resampling whole runs, or blocks of ten updates where a batch has a single run. Weighted least
    squares on 1/B follows.

    Parameters
    ----------
    train_batch : array_like, (run,) [responses]
        Batch of the logged gradient: the mini-batch where a rollout step has several updates.
    grad_norms : sequence of array_like, (run,) of (update,)
        Norms before clipping; values that are not finite are left out.
    level : float [1]
        Coverage of the limits.
    window : str
        Which updates the norms come from, for the message.

    Returns
    -------
    NoiseScale
        Not identified for one batch, for too few updates, or where z = 0 is inside the limits.
    """
    norms: dict[float, list[NDArray[np.float64]]] = {}
    for b, g in zip(np.asarray(train_batch, dtype=np.float64), grad_norms, strict=True):
        finite = np.asarray(g, dtype=np.float64)
        finite = finite[np.isfinite(finite) & (finite > 0)]
        if finite.size:
            norms.setdefault(float(b), []).append(finite)
    clusters = {b: _clusters(runs) for b, runs in sorted(norms.items())}
    batches = np.array(list(clusters))
    if batches.size < 2 or min(len(c) for c in clusters.values()) < 2:
        need = "a run at another batch" if batches.size < 2 else "a longer or a second run at each batch"
        return _unidentified(
            f"norms of {sum(len(r) for r in norms.values())} run(s) cannot separate signal from noise; {need} would",
            method="logged norms",
            window=window,
            level=level,
        )
    square = np.array([np.median(np.concatenate(c)) ** 2 for c in clusters.values()])
    size = np.array([len(c) for c in clusters.values()])
    own = np.array([_median_variance(c) for c in clusters.values()]) / square**2 * size
    # The relative spread over runs is the pooled one, or the batch's own where that is larger: a
    # spread seen in two or three runs alone would be too small as often as not.
    pooled = float(np.sum(own * (size - 1)) / np.sum(size - 1))
    variance = square**2 * (np.maximum(own, pooled) / size + ROUNDING**2)
    design = np.stack([np.ones_like(batches), 1 / batches], axis=1)
    gram = design.T @ (design / variance[:, None])
    signal, noise = np.linalg.solve(gram, design.T @ (square / variance))
    return _estimate(
        signal=float(signal),
        noise=float(noise),
        covariance=np.linalg.inv(gram),
        dof=float(sum(len(c) - 1 for c in clusters.values())),
        exponent=float(np.polyfit(np.log(batches), 0.5 * np.log(square), 1)[0]),
        level=level,
        method="logged norms",
        window=window,
        largest_batch=float(batches[-1]),
    )


def _clusters(runs: list[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
    if len(runs) > 1:
        return runs
    blocks = max(1, runs[0].size // BLOCK)
    return list(np.array_split(runs[0], blocks))


def _median_variance(clusters: list[NDArray[np.float64]]) -> float:
    """Bootstrap variance of the squared median over clusters, with the n/(n - 1) correction."""
    rng = np.random.default_rng(0)
    n = len(clusters)
    picks = rng.integers(n, size=(RESAMPLES, n))
    squares = [np.median(np.concatenate([clusters[i] for i in pick])) ** 2 for pick in picks]
    return float(np.var(squares)) * n / (n - 1)


def from_chunk_norms(
    train_batch: float,
    chunks: int,
    sq_norm_chunk: ArrayLike,
    sq_norm_batch: ArrayLike,
    *,
    level: float = LEVEL,
    block: int = BLOCK,
    window: str = "whole runs",
) -> NoiseScale:
    """Noise scale from the norms of equal chunks and of the whole batch, update by update.

    Parameters
    ----------
    train_batch : float [responses]
        B.
    chunks : int
        The batch is cut into this many chunks of b = B/chunks responses.
    sq_norm_chunk, sq_norm_batch : array_like, (update,)
        Mean of |g_b|^2 over the chunks, and |g_B|^2. Blocks of consecutive updates share their
        parameters, so the covariance is that of block means.
    level : float [1]
    block : int
        Updates per block.
    window : str

    Returns
    -------
    NoiseScale
        Not identified with fewer than three blocks or fewer than two chunks.
    """
    small, large = np.asarray(sq_norm_chunk, dtype=np.float64), np.asarray(sq_norm_batch, dtype=np.float64)
    good = np.isfinite(small) & np.isfinite(large)
    small, large = small[good], large[good]
    size = min(block, max(1, small.size // 8))
    blocks = small.size // size if small.size else 0
    if chunks < 2 or blocks < 3:
        return _unidentified(
            f"{small.size} update(s) in {chunks} chunk(s) are too few; log the norms of at least 2 chunks "
            "over 3 or more updates",
            method="chunk norms",
            window=window,
            level=level,
        )
    b = train_batch / chunks
    signal = (train_batch * large - b * small) / (train_batch - b)
    noise = (small - large) / (1 / b - 1 / train_batch)
    pairs = np.stack([signal, noise])
    means = pairs[:, : blocks * size].reshape(2, blocks, size).mean(axis=2)
    return _estimate(
        signal=float(signal.mean()),
        noise=float(noise.mean()),
        covariance=np.cov(means) / blocks + np.diag([(ROUNDING * signal.mean()) ** 2, (ROUNDING * noise.mean()) ** 2]),
        dof=float(blocks - 1),
        exponent=float("nan"),
        level=level,
        method="chunk norms",
        window=window,
        largest_batch=train_batch,
    )


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
    return _estimate(
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


def _estimate(
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
) -> NoiseScale:
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
        message=_message(value, low, high, identified, largest_batch, method, window),
    )


def _message(value: float, low: float, high: float, identified: bool, largest: float, method: str, window: str) -> str:
    start = f"noise scale from {method} over {window}"
    if identified:
        return f"{start}: {_shown(value)} responses, limits {_shown(low)} to {_shown(high)}"
    bound = f"at least {_shown(low)} responses" if low > 0 else "no limit on either side"
    remedy = "norms at a batch within a few times of it would give an upper limit"
    if np.isfinite(largest):
        remedy = f"norms at {4 * largest:.0f} responses or more, or of chunks within an update, would give one"
    return f"{start}: {bound}, no upper limit (not identified); {remedy}"


def _shown(count: float) -> str:
    """A number of responses as people write it, to three digits."""
    return f"{float(f'{count:.3g}'):,.0f}" if count >= 100 else f"{count:.3g}"


def _unidentified(reason: str, *, method: str, window: str, level: float) -> NoiseScale:
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
