"""Shape k of signal-to-noise over coordinates: an estimate of it, and the k whose A(B) comes nearest to a given one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchsim.learning.noise_scale.estimate import NoiseScale
from batchsim.learning.progress import signal_function

Floats = NDArray[np.float64]

SHAPES = np.append(np.geomspace(0.02, 500, 161), np.inf)
"""Values of k that fits and limits search."""


@dataclass(frozen=True, kw_only=True)
class SnrShape:
    """An estimate of the shape k of signal-to-noise over coordinates.

    Parameters
    ----------
    snr_shape : float [1]
        k; infinite where all coordinates look alike, NaN where nothing can be said.
    low, high : float [1]
        Limits; 0 and infinity where there is none.
    level : float [1]
    identified : bool
        Both limits are finite and positive.
    misfit : float [1]
        Rms difference of log A between the best shape and what was measured; NaN if no A was.
    method : str
    message : str
    """

    snr_shape: float
    low: float
    high: float
    level: float
    identified: bool
    misfit: float
    method: str
    message: str


def fit_snr_shape(train_batch: ArrayLike, usable_slope: ArrayLike, *, noise_scale: float) -> tuple[float, float]:
    """Shape k whose A(B) comes nearest to a measured one, in the rms of its logarithm.

    Parameters
    ----------
    train_batch : array_like, (batch,) [responses]
        Two or more.
    usable_slope : array_like, (batch,)
        A(B) > 0 in any unit.
    noise_scale : float [responses]
        B_noise; without it only B_noise/(1 + 1/k) could be told at small batches.

    Returns
    -------
    snr_shape, misfit : float [1]
        k and the rms.
    """
    a = np.log(np.asarray(usable_slope, dtype=np.float64))
    b = np.asarray(train_batch, dtype=np.float64)

    def misfit(k: Floats) -> Floats:
        error = log_slope(b / noise_scale, k) - a
        error -= error.mean(axis=-1, keepdims=True)
        return np.asarray(np.sqrt(np.mean(error**2, axis=-1)))

    return least(misfit)


def log_slope(relative_batch: Floats, shapes: Floats) -> Floats:
    """Log A(B) of each shape, (shape, batch)."""
    b = relative_batch[None, :]
    return np.asarray(0.5 * np.log(b) + np.log(signal_function(b, snr_shape=shapes[:, None])))


def least(loss: Callable[[Floats], Floats]) -> tuple[float, float]:
    """Minimum of a function of k: the grid, then finer grids between its neighbours."""
    shapes = SHAPES
    for _ in range(4):
        values = loss(shapes)
        i = int(np.argmin(values))
        if np.isinf(shapes[i]):
            break
        low, high = shapes[max(i - 1, 0)], shapes[min(i + 1, shapes.size - 1)]
        best = shapes[i], values[i]
        shapes = np.geomspace(low, high if np.isfinite(high) else 4 * shapes[i], 21)
    else:
        return float(best[0]), float(best[1])
    return float(shapes[i]), float(values[i])


def scale_limits(noise_scale: float | NoiseScale) -> tuple[float, float, float]:
    """Noise scale and its limits; a plain number is its own limits."""
    if isinstance(noise_scale, NoiseScale):
        return noise_scale.noise_scale, noise_scale.low, noise_scale.high
    return float(noise_scale), float(noise_scale), float(noise_scale)


def snr_shape_estimate(
    value: float, low: float, high: float, level: float, misfit: float, method: str, said: str, remedy: str
) -> SnrShape:
    """An estimate with its message: what was read (said), and what would tell more (remedy)."""
    identified = bool(low > 0 and np.isfinite(high))
    start = f"snr_shape from {method} ({said})"
    if identified:
        message = f"{start}: {value:.3g}, limits {low:.3g} to {high:.3g}"
    elif low > 0:
        message = f"{start}: at least {low:.3g}, no upper limit (not identified); {remedy} give one"
    elif np.isfinite(high):
        message = f"{start}: at most {high:.3g}, no lower limit (not identified); {remedy} give one"
    else:
        message = f"{start}: not identified; {remedy} tell"
    return SnrShape(
        snr_shape=value,
        low=low,
        high=high,
        level=level,
        identified=identified,
        misfit=misfit,
        method=method,
        message=message,
    )
