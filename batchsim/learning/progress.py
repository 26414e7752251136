r"""Progress per optimizer update as a function of the batch: the slope an optimizer can use.

A small update u changes the expected score by eta A(B) - eta^2 h/2, where A is the slope along the
update and h the curvature it meets. For Adam, which divides each coordinate by its own root mean
square,

    A(B) = sum_i G_i^2 / sqrt(G_i^2 + sigma_i^2/B)

with G the expected gradient and sigma_i^2 the variance of one response's gradient. Let the
signal-to-noise ratios G_i^2/sigma_i^2 be Gamma(k, mean 1/B_noise) over coordinates, independent of
sigma_i, and b = B/B_noise with B_noise = tr(Sigma)/|G|^2. Then, relative to B -> infinity,

    A(B) = sqrt(b) f_k(b) / const,   f_k(b) = E[y (1 + b y)^(-1/2)],   y ~ Gamma(k, mean 1)   (coordinate)
    A(B) = (1 + 1/b)^(-1/2)                                            for k -> infinity      (drift)

A coordinate whose signal exceeds its noise gains nothing from a larger batch, so with spread
(finite k) the slope saturates earlier than the norms say: f_k = 1 - (1 + 1/k) b/2 + ... At b << 1
only B_noise/(1 + 1/k) can be read from learning curves. k = 1/2 is exact for a gradient in a
generic basis. The integral form used here,

    f_k(b) = (2/sqrt(pi)) int_0^inf exp(-s^2) (1 + b s^2/k)^(-(k+1)) ds,

follows from (1 + b y)^(-1/2) = (2/sqrt(pi)) int_0^inf exp(-s^2 (1 + b y)) ds and the Gamma
Laplace transform; it stays accurate where library forms of Tricomi's U overflow.

A step undoes part of its own progress. With c = eta over the rate that maximises progress (A/h for the
quadratic penalty), progress per update is eta A(B) g_p(c),

    g_p(c) = (1 + p c/(1 - p))^(-1/p),     p = -1: 1 - c/2,   p -> 0: exp(-c),   p > 0: softer tails,

a one-parameter family whose progress eta g_p is largest at c = 1 for every p < 1. p = -1 is the quadratic model:
beyond c = 2 nothing is learned. A small transformer trained by GRPO asks for p of about .2 (`docs/evidence.md`).

SGD uses the gradient itself: its slope does not depend on the batch and its step cost does
(`step_cost`). McCandlish's hyperbola is the tuned limit of both.

References
----------
.. [1] McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", arXiv:1812.06162, eq. 2.6-2.11.
.. [2] Malladi et al. 2022, "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms", arXiv:2205.10287.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchsim.errors import InputError

OPTIMIZERS = ("adam", "sgd")
QUADRATIC = -1.0
"""Penalty shape of the quadratic model."""

# Nodes s = exp(u - exp(-u)): both tails of the integrand then fall double-exponentially, and the plain
# trapezoid in u with 147 nodes errs by less than 1e-14 of f for b <= 1e4. Beyond, the integrand lies at s of about
# 1/sqrt(b (1 + 1/k)): nodes in units of that reach far enough up for b/k <= 1e15, and err by as little.
_STEP, _WIDE_STEP = 1 / 24, 1 / 12
_U = np.arange(-3.9, 2.2 + _STEP / 2, _STEP)
_NODES = np.exp(_U - np.exp(-_U))
_WEIGHTS = 2 / np.sqrt(np.pi) * _STEP * _NODES * (1 + np.exp(-_U)) * np.exp(-(_NODES**2))
_WIDE_U = np.arange(-3.9, 20.0 + _WIDE_STEP / 2, _WIDE_STEP)
_WIDE_NODES = np.exp(_WIDE_U - np.exp(-_WIDE_U))
_WIDE_WEIGHTS = 2 / np.sqrt(np.pi) * _WIDE_STEP * _WIDE_NODES * (1 + np.exp(-_WIDE_U))
_LARGE = 1e4


def signal_function(relative_batch: ArrayLike, *, snr_shape: ArrayLike = np.inf) -> NDArray[np.float64]:
    """Usable share of the signal at a batch, f_k(b) = E[y (1 + b y)^(-1/2)], y ~ Gamma(k, mean 1).

    Parameters
    ----------
    relative_batch : array_like, any shape [1]
        b = B/B_noise >= 0.
    snr_shape : array_like, broadcastable [1]
        k > 0; infinite gives the drift family, (1 + b)^(-1/2).

    Returns
    -------
    ndarray [1]
        Between 0 and 1; f_k(0) = 1.

    Examples
    --------
    >>> signal_function([0.0, 1.0], snr_shape=np.inf).round(4)
    array([1.    , 0.7071])
    >>> signal_function([0.0, 1.0], snr_shape=0.5).round(4)
    array([1.    , 0.5649])
    """
    b, k = np.broadcast_arrays(np.asarray(relative_batch, dtype=np.float64), np.asarray(snr_shape, dtype=np.float64))
    drift = np.isinf(k)
    result: NDArray[np.float64] = np.asarray(1 / np.sqrt(1 + b))
    if not drift.all():
        result = np.array(result)
        large = b > _LARGE
        near, far = ~drift & ~large, ~drift & large
        bs, ks = b[near][:, None], k[near][:, None]
        result[near] = np.exp(-(ks + 1) * np.log1p(bs * _NODES**2 / ks)) @ _WEIGHTS
        bs, ks = b[far][:, None], k[far][:, None]
        scale = 1 / np.sqrt(1 + bs * (1 + 1 / ks))
        s = scale * _WIDE_NODES
        result[far] = scale[:, 0] * (np.exp(-(s**2) - (ks + 1) * np.log1p(bs * s**2 / ks)) @ _WIDE_WEIGHTS)
    return result


def usable_slope(
    train_batch: ArrayLike,
    *,
    noise_scale: ArrayLike,
    snr_shape: ArrayLike = np.inf,
    optimizer: str = "adam",
) -> NDArray[np.float64]:
    """Slope A(B) that the optimizer can use, up to a factor that does not depend on the batch.

    Parameters
    ----------
    train_batch : array_like, any shape [responses]
        B > 0.
    noise_scale : array_like, broadcastable [responses]
        B_noise > 0; for SGD the one weighted by the curvature, tr(H Sigma)/G'HG.
    snr_shape : array_like, broadcastable [1]
        k; infinite gives the drift family. Ignored by SGD.
    optimizer : {'adam', 'sgd'}

    Returns
    -------
    ndarray [1]
        sqrt(b) f_k(b) for Adam, 1 for SGD.
    """
    b = np.asarray(train_batch, dtype=np.float64) / np.asarray(noise_scale, dtype=np.float64)
    if optimizer == "sgd":
        return np.ones_like(b)
    return np.asarray(np.sqrt(b) * signal_function(b, snr_shape=snr_shape))


def step_cost(
    train_batch: ArrayLike,
    *,
    noise_scale: ArrayLike,
    curvature_ratio: ArrayLike = 1.0,
    optimizer: str = "adam",
) -> NDArray[np.float64]:
    """Curvature h(B) that an update meets, relative to its large-batch limit.

    Parameters
    ----------
    train_batch : array_like, any shape [responses]
        B > 0.
    noise_scale : array_like, broadcastable [responses]
    curvature_ratio : array_like, broadcastable [1]
        h_ratio = curvature along the signal over curvature along the noise, G'HG/|G|^2 over
        tr(H Sigma)/tr(Sigma); 1 where the Hessian is diagonal for Adam or isotropic.
    optimizer : {'adam', 'sgd'}

    Returns
    -------
    ndarray [1]
        Adam's update has a fixed norm: (b + 1/h_ratio)/(b + 1). SGD's norm grows with the noise:
        1 + 1/b.
    """
    b = np.asarray(train_batch, dtype=np.float64) / np.asarray(noise_scale, dtype=np.float64)
    if optimizer == "sgd":
        return np.asarray(1 + 1 / b)
    return np.asarray((b + 1 / np.asarray(curvature_ratio)) / (b + 1))


def log_progress_factor(relative_rate: ArrayLike, *, penalty_shape: ArrayLike = QUADRATIC) -> NDArray[np.float64]:
    """Logarithm of the share of its linear progress that a step keeps, log g_p(c).

    Parameters
    ----------
    relative_rate : array_like, any shape [1]
        c = eta over the locally optimal rate, c >= 0.
    penalty_shape : array_like, broadcastable [1]
        p in [-1, 1): -1 the quadratic penalty, 0 an exponential one, above 0 softer tails.

    Returns
    -------
    ndarray [1]
        -log(1 + p c/(1 - p))/p; -c at p = 0; minus infinity where the step undoes all its progress.

    Examples
    --------
    >>> np.exp(log_progress_factor([0.0, 1.0, 2.0], penalty_shape=-1.0)).round(4)
    array([1. , 0.5, 0. ])
    >>> np.exp(log_progress_factor([0.0, 1.0, 2.0], penalty_shape=0.0)).round(4)
    array([1.    , 0.3679, 0.1353])
    """
    c, p = np.asarray(relative_rate, dtype=np.float64), np.asarray(penalty_shape, dtype=np.float64)
    small = np.abs(p) < 1e-12
    safe = np.where(small, 1.0, p)
    growth = np.maximum(safe * c / np.where(small, 1.0, 1 - p), -1.0)
    with np.errstate(divide="ignore"):
        return np.where(small, -c, -np.log1p(growth) / safe)


def slope_from_moments(
    train_batch: ArrayLike,
    *,
    gradient: ArrayLike,
    variance: ArrayLike,
    other_half: ArrayLike | None = None,
    epsilon: float = 0.0,
    layer: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Slope A(B) = sum_i G_i^2/(sqrt(G_i^2 + sigma_i^2/B) + eps) from moments of every coordinate.

    Parameters
    ----------
    train_batch : array_like, (batch,) [responses]
    gradient : array_like, (coordinate,)
        Estimates of the expected gradient G_i.
    variance : array_like, (coordinate,)
        Variance sigma_i^2 of one response's gradient.
    other_half : array_like, (coordinate,), or None
        An independent estimate of G_i. G_i^2 in the numerator is then the product of the two, so that noise of
        an estimate does not count as signal; without it the estimate must be exact.
    epsilon : float
        Adam's epsilon, in units of the gradient.
    layer : array_like of int, (coordinate,), or None
        Layer of each coordinate, from 0: one slope per layer, whose sum is the whole.

    Returns
    -------
    ndarray, (batch,) or (batch, layer)

    Raises
    ------
    InputError
        For arrays of different length, or a negative variance.
    """
    g = np.asarray(gradient, dtype=np.float64)
    v = np.asarray(variance, dtype=np.float64)
    other = g if other_half is None else np.asarray(other_half, dtype=np.float64)
    if not g.shape == v.shape == other.shape or g.ndim != 1:
        raise InputError(f"moments have shapes {g.shape}, {v.shape} and {other.shape}, not one value per coordinate")
    if (v < 0).any():
        raise InputError(f"a variance is {v.min():g}, and it must not be negative")
    signal = g * other
    scale = np.maximum(signal, 0.0)
    batches = np.atleast_1d(np.asarray(train_batch, dtype=np.float64))
    index = np.zeros(g.size, dtype=np.intp) if layer is None else np.asarray(layer, dtype=np.intp)
    rows = []
    for b in batches:
        size = np.sqrt(scale + v / b) + epsilon
        moving = size > 0
        rows.append(np.bincount(index[moving], weights=signal[moving] / size[moving], minlength=int(index.max()) + 1))
    slopes: NDArray[np.float64] = np.array(rows, dtype=np.float64)
    return slopes[:, 0] if layer is None else slopes
