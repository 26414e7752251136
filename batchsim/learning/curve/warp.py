r"""A learning curve at any batch and learning rate: the reference curve on a stretched axis.

What the optimizer has achieved is its progress u, counted in responses that the reference recipe would have needed.
The score is a function of u alone, J = J_ref(u); a recipe with batch B and its learning rate advances by

    du/dS = B_0 S_0/S = B/r(u; B) per update,      dN/du = r(u; B),      N_B(u) = int_0^u r(v; B) dv

where r(u; B) is the law of `sample_cost` with the noise scale that the gradient has at u. Hence

    J_B(N) = J_ref(N_B^-1(N)),       r_N(J*) = N_B(u*)/u*,   J_ref(u*) = J*

and a constant r only stretches the axis: J_B(N) = J_ref(N/r). Warps compose: N_21 = N_2 o N_1.

The gradient shrinks along a run. At the reference the curve's own slope says how, dJ/du ~ A g_p(c) with
c = c_0/a where the usable slope has fallen to a = A(u)/A(u_0) (`signal_along`). With a constant trace the noise
scale follows from A ~ f_k(B_0/n)/n (`noise_scale_along`); n = n_0/a while noise dominates. Two effects oppose:

    noise grows     r_N under sqrt or tuned rates falls with the target: a batch may lose early and win late
    c grows         the fixed rate nears its floor (the asymptote, c = 2): a batch with less noise goes further, while
                    rules that raise the rate lose: r_N under sqrt rises with the target

Both are assumptions about the state of the policy, not about the path: no mechanism remembers how u was reached.
A constant trace is one that fails: in the small transformer of `data/tiny_grpo` |G|^2 and the trace both double on the
way up and the noise scale stays within a third. Where norms are logged, give `noise_scale` as a function of progress
fitted to them.

References
----------
.. [1] McCandlish et al. 2018, arXiv:1812.06162, eq. 2.7 and appendix D (dS along a run).
.. [2] Khatri et al. 2025, arXiv:2510.13786 (a larger batch is slower early and ends higher).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from batchsim.errors import InputError
from batchsim.learning.curve.families import Curve, Floats, responses_at, score_at, slope_at
from batchsim.learning.curve.quadrature import cumulative, panels
from batchsim.learning.lr_rule import LRRule
from batchsim.learning.progress import signal_function
from batchsim.learning.sample_cost import cost_at_rate, sample_cost_ratio

Along = ArrayLike | Callable[[Floats], ArrayLike]
"""A number (or one per batch), or a function of progress [responses]."""
LARGEST_RATIO = 1e8
"""Largest ratio between the noise scale and the reference batch, either way."""
LARGEST_FRACTION = 2 * (1 - 1e-9)


def at_rate(ratio: float) -> LRRule:
    """Learning-rate rule of a probe: s = eta/eta_0 whatever the batch.

    Parameters
    ----------
    ratio : float [1]

    Returns
    -------
    callable
    """
    return lambda x: np.full_like(x, ratio)


def along(value: Along, progress: Floats) -> Floats:
    """A number or a function of progress, at given progress.

    Parameters
    ----------
    value : float, array_like (...,) or callable
    progress : ndarray, (progress,) [responses]

    Returns
    -------
    ndarray, (..., progress) or (..., 1)
    """
    if callable(value):
        return np.asarray(value(progress), dtype=np.float64)
    return np.asarray(value, dtype=np.float64)[..., None]


def local_cost(
    progress: ArrayLike,
    *,
    train_batch: Along,
    reference_batch: float,
    noise_scale: Along,
    lr_fraction: Along = 0.0,
    **law: Any,
) -> Floats:
    """Responses spent per response of the reference recipe at given progress, r(u; B).

    Parameters
    ----------
    progress : array_like, (progress,) [responses]
        u, in responses of the reference recipe.
    train_batch : array_like (...,) or callable [responses]
        B, or a function of progress.
    reference_batch : float [responses]
        B_0.
    noise_scale : array_like (...,) or callable [responses]
        B_noise; held within 1e-8 and 1e8 of the reference batch.
    lr_fraction : array_like (...,) or callable [1]
        c_0 of the reference recipe; held below 2.
    **law
        Of `sample_cost.sample_cost_ratio`: snr_shape, lr_rule, ceiling, ...; numbers, or arrays that broadcast
        with (..., progress).

    Returns
    -------
    ndarray, (..., progress) [1]
        Infinite where the rate makes training diverge.
    """
    u = np.asarray(progress, dtype=np.float64)
    n = np.clip(along(noise_scale, u), reference_batch / LARGEST_RATIO, reference_batch * LARGEST_RATIO)
    c = np.minimum(along(lr_fraction, u), LARGEST_FRACTION)
    cost = sample_cost_ratio(
        along(train_batch, u), reference_batch=reference_batch, noise_scale=n, lr_fraction=c, **law
    )
    return np.asarray(np.broadcast_to(cost, np.broadcast_shapes(cost.shape, u.shape)))


def relative_progress(train_batch: ArrayLike, *, reference_batch: ArrayLike, **law: Any) -> Floats:
    """Progress of one update relative to one of the reference recipe, S_0/S.

    Parameters
    ----------
    train_batch, reference_batch : array_like, broadcastable [responses]
    **law
        Of `sample_cost.sample_cost_ratio`, with noise_scale.

    Returns
    -------
    ndarray [1]
        (B/B_0)/r_N; 0 where training diverges.
    """
    x = np.asarray(train_batch, dtype=np.float64) / np.asarray(reference_batch, dtype=np.float64)
    return np.asarray(x / sample_cost_ratio(train_batch, reference_batch=reference_batch, **law))


def responses_used(progress: ArrayLike, *, cost: Along, breaks: ArrayLike = ()) -> Floats:
    """Responses that a recipe needs to reach given progress, N_B(u) = int_0^u r dv.

    Parameters
    ----------
    progress : array_like, any shape [responses]
    cost : array_like (...,) or callable [1]
        r: constant, or a function from (node,) to (..., node), as `local_cost`.
    breaks : array_like, (break,) [responses]
        Where the cost jumps.

    Returns
    -------
    ndarray, (..., *shape of progress) [responses]
    """
    u = np.asarray(progress, dtype=np.float64)
    if not callable(cost):
        r = np.asarray(cost, dtype=np.float64)
        return np.asarray(r.reshape(r.shape + (1,) * u.ndim) * u)
    return cumulative(lambda v: np.asarray(cost(v), dtype=np.float64), u, breaks)


def progress_at(responses: ArrayLike, *, cost: Along, breaks: ArrayLike = ()) -> Floats:
    """Progress that a recipe has made with given responses, the inverse of `responses_used`.

    Parameters
    ----------
    responses : array_like, any shape [responses]
        N >= 0, finite.
    cost : float or callable [1]
        r of one recipe: constant, or a function from (node,) to (node,).
    breaks : array_like, (break,) [responses]
        Progress at which the cost jumps.

    Returns
    -------
    ndarray [responses]
        Where the cost turns infinite, progress stops.
    """
    n = np.asarray(responses, dtype=np.float64)
    if not callable(cost):
        return np.asarray(n / np.asarray(cost, dtype=np.float64))

    def used(u: Floats) -> Floats:
        return responses_used(u, cost=cost, breaks=breaks)

    top = float(n.max()) if n.size else 0.0
    reach = top
    for _ in range(200):
        if not used(np.array(reach)) < top:
            break
        reach *= 2
    edges = panels(np.array([reach]), breaks)
    at = np.searchsorted(used(edges), n, side="left")
    low, high = edges[np.maximum(at - 1, 0)], edges[np.minimum(at, edges.size - 1)]
    u = (low + high) / 2
    for _ in range(80):
        excess = used(u) - n
        low, high = np.where(excess <= 0, u, low), np.where(excess >= 0, u, high)
        with np.errstate(invalid="ignore", divide="ignore"):
            step = u - excess / np.asarray(cost(u.ravel()), dtype=np.float64).reshape(u.shape)
        moved = np.where((step >= low) & (step <= high), step, (low + high) / 2)
        done = np.abs(moved - u) <= 4 * np.finfo(float).eps * u
        u = moved
        if done.all():
            break
    return np.asarray(u)


def warped_score(responses: ArrayLike, *, curve: Curve, cost: Along, breaks: ArrayLike = ()) -> Floats:
    """Score of a recipe after given responses, J_B(N) = J_ref(N_B^-1(N)).

    Parameters
    ----------
    responses : array_like, any shape [responses]
    curve : Curve
        Of the reference recipe, over responses.
    cost, breaks
        See `progress_at`.

    Returns
    -------
    ndarray [1]
    """
    return score_at(curve, progress_at(responses, cost=cost, breaks=breaks))


def sample_cost_to_target(target: ArrayLike, *, curve: Curve, cost: Along, breaks: ArrayLike = ()) -> Floats:
    """Sample cost of a recipe as a function of the target, r_N(J*) = N_B(u*)/u*.

    Parameters
    ----------
    target : array_like, any shape [1]
        J*.
    curve : Curve
        Of the reference recipe, over responses.
    cost, breaks
        See `responses_used`.

    Returns
    -------
    ndarray, (..., *shape of target) [1]
        NaN for a target at or below the start or that the reference never reaches.
    """
    u = responses_at(curve, target)
    u = np.where((u > 0) & np.isfinite(u), u, np.nan)
    return np.asarray(responses_used(u, cost=cost, breaks=breaks) / u)


def signal_along(
    progress: ArrayLike, *, curve: Curve, measured_at: float, lr_fraction: ArrayLike = 0.0, **penalty: Any
) -> Floats:
    """Usable slope A relative to where it was measured, from the slope of the reference curve.

    Parameters
    ----------
    progress : array_like, any shape [responses]
    curve : Curve
    measured_at : float [responses]
        Progress u_0 at which a = 1 and the reference rate is c_0 times the optimal one.
    lr_fraction : array_like, broadcastable [1]
        c_0. With 0 the asymptote is where the gradient vanishes; else it is the floor of the rate, where
        a = c_0/2 for the quadratic penalty.
    **penalty
        penalty_shape, of `sample_cost.cost_at_rate`.

    Returns
    -------
    ndarray [1]
        a solving a g(c_0/a)/g(c_0) = J'(u)/J'(u_0); a = J'(u)/J'(u_0) at c_0 = 0.

    Raises
    ------
    InputError
        Where the curve is flat, or infinitely steep, at `measured_at`.
    """
    here = float(slope_at(curve, measured_at))
    if not 0 < abs(here) < np.inf:
        raise InputError(
            f"the curve's slope at {measured_at:g} responses is {here:g}, and the signal is relative to it",
            remedy="give the responses around which the noise scale was measured",
        )
    ratio, c0 = np.broadcast_arrays(slope_at(curve, progress) / here, np.asarray(lr_fraction, dtype=np.float64))
    if not (c0 > 0).any():
        return np.asarray(ratio)
    # cost_at_rate at x = s = 1 is g(c_0)/(a g(c_0/a)); it falls as a rises from the floor on.
    low, high = np.full(ratio.shape, -60.0), np.full(ratio.shape, 60.0)
    for _ in range(70):
        middle = (low + high) / 2
        cost = cost_at_rate(1.0, learning_rate_ratio=1.0, lr_fraction=c0, slope_ratio=np.exp(-middle), **penalty)
        with np.errstate(invalid="ignore"):
            weak = np.isinf(cost) | (cost * ratio > 1)
        low, high = np.where(weak, middle, low), np.where(weak, high, middle)
    return np.where(c0 > 0, np.exp((low + high) / 2), ratio)


def noise_scale_along(
    progress: ArrayLike,
    *,
    curve: Curve,
    noise_scale: ArrayLike,
    measured_at: float,
    reference_batch: float | None = None,
    lr_fraction: ArrayLike = 0.0,
    snr_shape: ArrayLike = np.inf,
    optimizer: str = "adam",
    **penalty: Any,
) -> Floats:
    """Noise scale along the reference curve, with a constant trace and |G|^2 from the curve's slope.

    Parameters
    ----------
    progress : array_like, any shape [responses]
    curve : Curve
    noise_scale : array_like, broadcastable [responses]
        B_noise where it was measured.
    measured_at, lr_fraction, **penalty
        See `signal_along`.
    reference_batch : float or None [responses]
        B_0. With it, Adam's saturation is undone: n solves f_k(B_0/n)/n = a f_k(B_0/n_0)/n_0. None is its limit
        of dominating noise, and SGD's form.
    snr_shape : array_like, broadcastable [1]
    optimizer : {'adam', 'sgd'}

    Returns
    -------
    ndarray [responses]
        B_noise(u_0) |G(u_0)|^2/|G(u)|^2 = B_noise(u_0)/a without a reference batch; infinite where the curve is flat.
    """
    a = signal_along(progress, curve=curve, measured_at=measured_at, lr_fraction=lr_fraction, **penalty)
    return noise_scale_from_signal(
        a,
        noise_scale=noise_scale,
        reference_batch=None if optimizer == "sgd" else reference_batch,
        snr_shape=snr_shape,
    )


def noise_scale_from_signal(
    signal: ArrayLike, *, noise_scale: ArrayLike, reference_batch: float | None = None, snr_shape: ArrayLike = np.inf
) -> Floats:
    """Noise scale at which the usable slope has fallen to a given share, with a constant trace.

    Parameters
    ----------
    signal : array_like, any shape [1]
        a = A/A_0 at the reference batch; without a reference batch |G|^2/|G_0|^2.
    noise_scale : array_like, broadcastable [responses]
        n_0, where a = 1.
    reference_batch : float or None [responses]
    snr_shape : array_like, broadcastable [1]

    Returns
    -------
    ndarray [responses]
        n_0/a, or n of f_k(B_0/n)/n = a f_k(B_0/n_0)/n_0; for drift 2 n/B_0 = -1 + sqrt(1 + 4 m (m + 1)/a^2),
        m = n_0/B_0.
    """
    a, n0, k = np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in (signal, noise_scale, snr_shape)))
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        if reference_batch is None:
            return np.asarray(n0 / a)
        m = n0 / reference_batch
        w = 4 * m * (m + 1) / a**2
        result = np.where(np.isfinite(w), w / 2 / (1 + np.sqrt(1 + w)), np.sqrt(m * (m + 1)) / a)
    if not np.isinf(k).all():
        wanted = np.log(a, where=a > 0, out=np.full(a.shape, -np.inf)) + np.log(signal_function(1 / m, snr_shape=k) / m)
        low, high = np.full(a.shape, -40.0), np.full(a.shape, 60.0)
        for _ in range(60):
            middle = (low + high) / 2
            above = np.log(signal_function(np.exp(-middle), snr_shape=k)) - middle > wanted
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        spread = np.where(a > 0, np.exp((low + high) / 2), np.inf)
        result = np.where(np.isinf(k), result, spread)
    return np.asarray(result * reference_batch)


def lr_fraction_along(
    progress: ArrayLike, *, curve: Curve, measured_at: float, lr_fraction: ArrayLike, **penalty: Any
) -> Floats:
    """Reference rate over the optimal one along the curve, c = c_0/a: it grows as the slope falls.

    Parameters
    ----------
    progress, curve, measured_at, lr_fraction, **penalty
        See `signal_along`.

    Returns
    -------
    ndarray [1]
        For the quadratic penalty c_0/(g (1 - c_0/2) + c_0/2), g = J'(u)/J'(u_0): 2 where the curve is flat.
    """
    c0 = np.asarray(lr_fraction, dtype=np.float64)
    a = signal_along(progress, curve=curve, measured_at=measured_at, lr_fraction=c0, **penalty)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(c0 > 0, c0 / a, 0.0)
