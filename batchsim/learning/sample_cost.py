r"""Sample cost of a batch: responses to the target relative to the reference recipe, r_N.

One law. Progress per update at learning rate eta is eta A(B) g_p(c), with c = eta over the rate that maximises
it (`progress`). With x = B/B_0, s = eta/eta_0, rk = A(B_0)/A(B), hr = h(B)/h(B_0) and c_0 that of the reference,
c = c_0 s rk hr and the updates to the target change by

    S/S_0 = (rk/s) g_p(c_0)/g_p(c),         r_N = x S/S_0.

For the quadratic penalty, p = -1, this is (rk/s) (2 - c_0)/(2 - c_0 s rk hr), and c >= 2 means that a step undoes
its own progress: the outcome is "diverges", r_N infinite.

Limits, all tested: c_0 -> 0 under the sqrt rule r_N = f(b_0)/f(b), under a fixed rate
sqrt(x) f(b_0)/f(b); both batches tuned (f(b_0)/f(b))^2 whatever p, which for the drift family is McCandlish's
hyperbola (B + B_noise)/(B_0 + B_noise), and from an untuned reference that times c_0 g_p(c_0)/g_p(1).

The law assumes that B_noise, the curvature and |G| are those of the whole stretch to the target,
that the target lies before any floor, that groups are independent and that Adam's averages have
settled (some tens of updates). A rate ceiling is the one other mechanism kept here. Family (drift or
coordinate) and shape k are inputs, fitted or drawn from a prior, never assumed.

References
----------
.. [1] McCandlish et al. 2018, arXiv:1812.06162, eq. 2.11 (the hyperbola).
.. [2] Li et al. 2026, arXiv:2608.29296 (r_N and its learning-rate rule).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchsim.errors import InputError
from batchsim.learning.lr_rule import LRRule, learning_rate_ratio, rule_name
from batchsim.learning.progress import OPTIMIZERS, QUADRATIC, log_progress_factor, step_cost, usable_slope

DEPARTURE = 1.10
"""r_N relative to its small-batch limit at the critical training batch."""


def sample_cost_ratio(
    train_batch: ArrayLike,
    *,
    reference_batch: ArrayLike,
    noise_scale: ArrayLike,
    snr_shape: ArrayLike = np.inf,
    lr_fraction: ArrayLike = 0.0,
    lr_rule: LRRule = "sqrt",
    ceiling: ArrayLike = np.inf,
    curvature_ratio: ArrayLike = 1.0,
    penalty_shape: ArrayLike = QUADRATIC,
    optimizer: str = "adam",
) -> NDArray[np.float64]:
    """Responses to the target relative to the reference, r_N, under a learning-rate rule.

    Parameters
    ----------
    train_batch, reference_batch : array_like, broadcastable [responses]
        B and B_0, both positive.
    noise_scale : array_like, broadcastable [responses]
        B_noise > 0.
    snr_shape : array_like, broadcastable [1]
        k; infinite gives the drift family.
    lr_fraction : array_like, broadcastable [1]
        c_0 in [0, 2). 0 means far below the optimal rate; then 'tuned' has no finite rate and
        needs a ceiling.
    lr_rule : str or callable
        See `lr_rule.learning_rate_ratio`.
    ceiling : array_like, broadcastable [1]
        Largest eta/eta_0.
    curvature_ratio : array_like, broadcastable [1]
        h_ratio; see `progress.step_cost`.
    penalty_shape : array_like, broadcastable [1]
        p in [-1, 1); see `progress.log_progress_factor`.
    optimizer : {'adam', 'sgd'}

    Returns
    -------
    ndarray, broadcast shape [1]
        Infinite where the rate makes training diverge.

    Raises
    ------
    InputError
        For a batch, noise scale or shape that is not positive, c_0 outside [0, 2), p outside [-1, 1), an
        unknown rule or optimizer, or 'tuned' with c_0 = 0 and no ceiling.

    Examples
    --------
    Twice the batch at the noise scale, far below the optimal rate, under the sqrt rule:

    >>> round(float(sample_cost_ratio(2000, reference_batch=1000, noise_scale=1000)), 4)
    1.2247
    """
    x, c0, rk, hr = _ratios(
        train_batch, reference_batch, noise_scale, snr_shape, lr_fraction, curvature_ratio, optimizer
    )
    _check_rule(lr_rule, c0, ceiling, penalty_shape)
    s = learning_rate_ratio(
        x,
        lr_rule=lr_rule,
        lr_fraction=c0,
        slope_ratio=rk,
        cost_ratio=hr,
        penalty_shape=penalty_shape,
        ceiling=ceiling,
    )
    return cost_at_rate(
        x, learning_rate_ratio=s, lr_fraction=c0, slope_ratio=rk, cost_ratio=hr, penalty_shape=penalty_shape
    )


def cost_at_rate(
    batch_ratio: ArrayLike,
    *,
    learning_rate_ratio: ArrayLike,
    lr_fraction: ArrayLike,
    slope_ratio: ArrayLike,
    cost_ratio: ArrayLike = 1.0,
    penalty_shape: ArrayLike = QUADRATIC,
) -> NDArray[np.float64]:
    """Sample cost at a stated learning rate, r_N = x (rk/s) g_p(c_0)/g_p(c_0 s rk hr).

    Parameters
    ----------
    batch_ratio, learning_rate_ratio : array_like, broadcastable [1]
        x = B/B_0 and s = eta/eta_0.
    lr_fraction : array_like, broadcastable [1]
        c_0 in [0, 2).
    slope_ratio, cost_ratio : array_like, broadcastable [1]
        rk = A(B_0)/A(B) and hr = h(B)/h(B_0).
    penalty_shape : array_like, broadcastable [1]
        p in [-1, 1).

    Returns
    -------
    ndarray, broadcast shape [1]
        Infinite where a step undoes its own progress (p < 0 and c >= (1 - p)/|p|).
    """
    s, c0, rk = (np.asarray(v, dtype=np.float64) for v in (learning_rate_ratio, lr_fraction, slope_ratio))
    kept = log_progress_factor(c0 * s * rk * np.asarray(cost_ratio), penalty_shape=penalty_shape)
    log_cost = log_progress_factor(c0, penalty_shape=penalty_shape) - kept
    with np.errstate(over="ignore"):
        return np.asarray(np.asarray(batch_ratio) * (rk / s) * np.exp(log_cost))


def rates_at(
    train_batch: ArrayLike,
    *,
    reference_batch: ArrayLike,
    noise_scale: ArrayLike,
    snr_shape: ArrayLike = np.inf,
    lr_fraction: ArrayLike = 0.0,
    lr_rule: LRRule = "sqrt",
    ceiling: ArrayLike = np.inf,
    curvature_ratio: ArrayLike = 1.0,
    penalty_shape: ArrayLike = QUADRATIC,
    optimizer: str = "adam",
) -> NDArray[np.float64]:
    """Learning rate relative to the reference that a rule gives at each batch, s.

    Parameters are those of `sample_cost_ratio`.

    Returns
    -------
    ndarray, broadcast shape [1]
    """
    x, c0, rk, hr = _ratios(
        train_batch, reference_batch, noise_scale, snr_shape, lr_fraction, curvature_ratio, optimizer
    )
    return learning_rate_ratio(
        x,
        lr_rule=lr_rule,
        lr_fraction=c0,
        slope_ratio=rk,
        cost_ratio=hr,
        penalty_shape=penalty_shape,
        ceiling=ceiling,
    )


def critical_train_batch(
    *,
    reference_batch: float,
    noise_scale: ArrayLike,
    snr_shape: ArrayLike = np.inf,
    lr_fraction: ArrayLike = 0.0,
    lr_rule: LRRule = "sqrt",
    ceiling: ArrayLike = np.inf,
    curvature_ratio: ArrayLike = 1.0,
    penalty_shape: ArrayLike = QUADRATIC,
    optimizer: str = "adam",
) -> NDArray[np.float64]:
    """Largest batch whose N* is within 10 % of its small-batch limit under the rule.

    Parameters
    ----------
    reference_batch : float [responses]
        B_0, where the rule is anchored.
    noise_scale, snr_shape, lr_fraction, ceiling, curvature_ratio, penalty_shape : array_like, broadcastable
    lr_rule, optimizer
        See `sample_cost_ratio`.

    Returns
    -------
    ndarray, broadcast shape [responses]
        Infinite where N* never departs. NaN where no small-batch limit exists:
        under a fixed rate N* keeps falling with the batch,
        under a linear rule it keeps rising (Adam); under a callable nothing is known.
    """
    shape = np.broadcast_shapes(
        *(np.shape(v) for v in (noise_scale, snr_shape, lr_fraction, ceiling, curvature_ratio, penalty_shape))
    )
    exists = rule_name(lr_rule) in ({"linear", "tuned"} if optimizer == "sgd" else {"sqrt", "tuned", "invariant"})
    if not exists:
        return np.full(shape, np.nan)

    def cost(log_batch: NDArray[np.float64]) -> NDArray[np.float64]:
        return sample_cost_ratio(
            np.exp(log_batch),
            reference_batch=reference_batch,
            noise_scale=noise_scale,
            snr_shape=snr_shape,
            lr_fraction=lr_fraction,
            lr_rule=lr_rule,
            ceiling=ceiling,
            curvature_ratio=curvature_ratio,
            penalty_shape=penalty_shape,
            optimizer=optimizer,
        )

    low = np.broadcast_to(np.log(np.asarray(noise_scale) * 1e-8), shape).copy()
    high = np.full(shape, np.log(1e9 * reference_batch)) + np.zeros_like(low)
    limit = DEPARTURE * cost(low)
    unbounded = cost(high) <= limit
    for _ in range(48):
        middle = (low + high) / 2
        within = cost(middle) <= limit
        low = np.where(within, middle, low)
        high = np.where(within, high, middle)
    return np.where(unbounded, np.inf, np.exp(low))


def _ratios(
    train_batch: ArrayLike,
    reference_batch: ArrayLike,
    noise_scale: ArrayLike,
    snr_shape: ArrayLike,
    lr_fraction: ArrayLike,
    curvature_ratio: ArrayLike,
    optimizer: str,
) -> tuple[NDArray[np.float64], ...]:
    if optimizer not in OPTIMIZERS:
        raise InputError(
            f"optimizer '{optimizer}' has no slope and step cost here",
            remedy=f"known: {', '.join(OPTIMIZERS)}; another optimizer needs its own A(B) and h(B)",
        )
    named = {
        "train_batch": train_batch,
        "reference_batch": reference_batch,
        "noise_scale": noise_scale,
        "snr_shape": snr_shape,
        "curvature_ratio": curvature_ratio,
    }
    for name, value in named.items():
        v = np.asarray(value, dtype=np.float64)
        bad = ~(v > 0) | (np.isinf(v) & (name != "snr_shape"))
        if bad.any():
            raise InputError(f"{name} is {v[bad].flat[0]:g}; it must be positive and finite")
    c0 = np.asarray(lr_fraction, dtype=np.float64)
    if not ((c0 >= 0) & (c0 < 2)).all():
        raise InputError(
            f"lr_fraction is {c0.min() if (c0 < 0).any() else c0.max()}, outside [0, 2)",
            remedy="it is the reference learning rate over the locally optimal one; at 2 nothing is learned",
        )
    slope = {"noise_scale": noise_scale, "snr_shape": snr_shape, "optimizer": optimizer}
    bend = {"noise_scale": noise_scale, "curvature_ratio": curvature_ratio, "optimizer": optimizer}
    rk = usable_slope(reference_batch, **slope) / usable_slope(train_batch, **slope)  # type: ignore[arg-type]
    hr = step_cost(train_batch, **bend) / step_cost(reference_batch, **bend)  # type: ignore[arg-type]
    x = np.asarray(train_batch, dtype=np.float64) / np.asarray(reference_batch, dtype=np.float64)
    return x, c0, rk, hr


def _check_rule(
    lr_rule: LRRule, lr_fraction: NDArray[np.float64], ceiling: ArrayLike, penalty_shape: ArrayLike
) -> None:
    p = np.asarray(penalty_shape, dtype=np.float64)
    if not ((p >= QUADRATIC) & (p < 1)).all():
        raise InputError(f"penalty_shape is {p.min() if (p < QUADRATIC).any() else p.max()}, outside [-1, 1)")
    if not (np.asarray(ceiling) > 0).all():
        raise InputError(f"ceiling is {np.min(ceiling):g}; a learning rate relative to the reference must be positive")
    if lr_rule == "tuned" and (lr_fraction == 0).any() and np.isinf(ceiling).any():
        raise InputError(
            "the rule 'tuned' needs to know the optimal rate, and lr_fraction is 0",
            remedy="give lr_fraction > 0 (from a learning-rate probe), or a ceiling on the rate",
        )
