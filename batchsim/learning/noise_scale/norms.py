"""Noise scale from gradient norms alone: runs at several batches, or chunks of the batch within each update."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchsim.learning.noise_scale.estimate import (
    BLOCK,
    LEVEL,
    RESAMPLES,
    ROUNDING,
    NoiseScale,
    from_moments,
    not_identified,
)


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
        return not_identified(
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
    return from_moments(
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
        return not_identified(
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
    return from_moments(
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
