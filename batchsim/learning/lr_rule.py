r"""How the learning rate follows the batch.

Every sample cost belongs to a learning-rate rule, written here as s = eta/eta_0 against x = B/B_0:

    fixed      s = 1
    sqrt       s = x^(1/2)            Adam in the noise-dominated regime (the paper's rule)
    linear     s = x                  SGD in the noise-dominated regime
    tuned      s = 1/(c_0 rk hr)      the locally optimal rate at every batch
    invariant  the smaller rate at which r_N = 1; where none exists, the tuned one

with c_0 = eta_0 over the locally optimal rate at the reference batch, rk = A(B_0)/A(B) and
hr = h(B)/h(B_0) from `progress`. With c = c_0 s rk hr and the progress factor g of `progress`, r_N =
x (rk/s) g(c_0)/g(c), so the invariant rate solves c g(c) = x rk^2 hr c_0 g(c_0) on c <= 1, where the left side
rises. It exists if and only if the right side does not exceed g(1); for the quadratic penalty this reads
x rk^2 hr c_0 (2 - c_0) <= 1. As c_0 -> 0 it tends to x rk: the square root below the noise scale, linear above.

A ceiling s <= max_learning_rate/eta_0 applies to every rule: it is the trust region that a large
rate leaves, and in practice it binds before the noise scale does.

References
----------
.. [1] Li et al. 2026, arXiv:2608.29296, section on retuning the learning rate (sqrt rule).
.. [2] Malladi et al. 2022, arXiv:2205.10287 (sqrt rule for Adam).
.. [3] Goyal et al. 2017, arXiv:1706.02677 (linear rule for SGD).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchsim.errors import InputError, nearest
from batchsim.learning.progress import QUADRATIC, log_progress_factor

BISECTIONS = 60
RULES = ("fixed", "sqrt", "linear", "tuned", "invariant")
EXPONENTS = {"fixed": 0.0, "sqrt": 0.5, "linear": 1.0}

LRRule = str | Callable[[NDArray[np.float64]], ArrayLike]
"""A name in `RULES`, or a function from x = B/B_0 to s = eta/eta_0."""


def rule_name(lr_rule: LRRule) -> str:
    """Name of a learning-rate rule, 'user' for a callable.

    Raises
    ------
    InputError
        For a name that is not in `RULES`.
    """
    if callable(lr_rule):
        return "user"
    if lr_rule not in RULES:
        raise InputError(f"unknown learning-rate rule '{lr_rule}'", remedy=nearest(lr_rule, RULES))
    return lr_rule


def learning_rate_ratio(
    batch_ratio: ArrayLike,
    *,
    lr_rule: LRRule,
    lr_fraction: ArrayLike = 0.0,
    slope_ratio: ArrayLike = 1.0,
    cost_ratio: ArrayLike = 1.0,
    penalty_shape: ArrayLike = QUADRATIC,
    ceiling: ArrayLike = np.inf,
) -> NDArray[np.float64]:
    """Learning rate relative to the reference, s = eta/eta_0.

    Parameters
    ----------
    batch_ratio : array_like, any shape [1]
        x = B/B_0 > 0.
    lr_rule : str or callable
        A name in `RULES`, or a function from x to s.
    lr_fraction : array_like, broadcastable [1]
        c_0 in [0, 2); used by 'tuned' and 'invariant'.
    slope_ratio, cost_ratio : array_like, broadcastable [1]
        rk = A(B_0)/A(B) and hr = h(B)/h(B_0).
    penalty_shape : array_like, broadcastable [1]
        See `progress.log_progress_factor`; used by 'invariant'.
    ceiling : array_like, broadcastable [1]
        Largest s that training survives.

    Returns
    -------
    ndarray [1]
        Infinite for 'tuned' where c_0 = 0 and no ceiling is given: the optimum is not known then.

    Raises
    ------
    InputError
        For an unknown rule, or a callable that returns a rate that is not positive.
    """
    x, c0, rk, hr = np.broadcast_arrays(
        *(np.asarray(v, dtype=np.float64) for v in (batch_ratio, lr_fraction, slope_ratio, cost_ratio))
    )
    name = rule_name(lr_rule)
    if callable(lr_rule):
        s = np.asarray(lr_rule(x), dtype=np.float64)
        if not (s > 0).all():
            raise InputError(
                f"the learning-rate rule returned {s.min()}, and a rate must be positive",
                remedy="return eta/eta_0 > 0 for every B/B_0",
            )
    elif name in EXPONENTS:
        s = x ** EXPONENTS[name]
    elif name == "tuned":
        s = _tuned(c0, rk, hr)
    else:
        s = _invariant(*np.broadcast_arrays(x, c0, rk, hr, np.asarray(penalty_shape, dtype=np.float64)))
    return np.asarray(np.minimum(s, np.asarray(ceiling, dtype=np.float64)))


def _tuned(c0: NDArray[np.float64], rk: NDArray[np.float64], hr: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore", over="ignore"):  # c0 = 0 has no best rate: infinity
        return np.asarray(1 / (c0 * rk * hr))


def _invariant(
    x: NDArray[np.float64],
    c0: NDArray[np.float64],
    rk: NDArray[np.float64],
    hr: NDArray[np.float64],
    shape: NDArray[np.float64],
) -> NDArray[np.float64]:
    start = np.exp(log_progress_factor(c0, penalty_shape=shape))
    most = np.exp(log_progress_factor(1.0, penalty_shape=shape))
    wanted = x * rk**2 * hr * c0 * start
    attainable = wanted <= most
    if (shape == QUADRATIC).all():
        # The smaller root of c - c^2/2 = wanted, written so that c_0 = 0 needs no special case.
        root = x * rk * (2 - c0) / (1 + np.sqrt(np.maximum(1 - 2 * wanted, 0)))
        return np.where(attainable, root, _tuned(c0, rk, hr))
    # c = wanted u with 1 <= u <= 1/g(1): sought in u, the rate x rk g(c_0) u keeps its digits down to c_0 = 0.
    reach = np.minimum(wanted, most)
    low, high = np.ones_like(wanted), 1 / most
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        below = middle * np.exp(log_progress_factor(reach * middle, penalty_shape=shape)) < 1
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.where(attainable, x * rk * start * high, _tuned(c0, rk, hr))
