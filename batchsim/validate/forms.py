r"""Forms of the sample cost, fitted to sweeps and asked for a batch that they have not seen.

A sweep holds N* at several batches whose learning rates follow one rule. Every form says log N* up to a level:

    hyperbola    log(1 + B/B_noise)                         whatever the rule: McCandlish's form, used as it stands
    power        p log B                                    whatever the rule
    drift        log r_N, k -> infinity, c_0 = 0            sqrt(x) f_0/f (fixed), f_0/f (sqrt), (f_0/f)^2 (tuned)
    k=1/2        the same at k = 1/2
    coordinate   the same, k fitted
    unified      drift with c_0 fitted (fixed, sqrt, linear); with tuned rates c_0 is only a factor of the level

so that drift, unified and hyperbola are one curve where rates are tuned. The level is profiled out, the rest is
found by a scan of the whole box and least squares from its best cells, on log N* weighted by known errors. What a
sweep leaves open (k or c_0 of two points) is decided by a pull toward k = 1 and c_0 = 0 that is too weak to matter
elsewhere.

References
----------
.. [1] McCandlish et al. 2018, arXiv:1812.06162, eq. 2.11.
.. [2] Akaike 1974, IEEE Trans. Autom. Control 19:716 (AIC).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchsim.learning.lr_rule import EXPONENTS
from batchsim.learning.progress import usable_slope
from batchsim.learning.sample_cost import cost_at_rate

Floats = NDArray[np.float64]

FLOOR = 0.05
"""Error of log N* that every point has besides its known one: how far forms miss well-measured sweeps."""
PULL = 1e-4
"""Weight of the pull that decides what a sweep leaves open, in standard deviations."""
IMPOSSIBLE = 1e3
"""Standardised residual where a form says that training diverges."""
BELOW, ABOVE = 1e-2, 1e3
"""B_noise lies between these multiples of the smallest and the largest fitted batch."""
STARTS = 3


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """N* over batches whose learning rates follow one rule.

    Parameters
    ----------
    group, name : str
        Sweeps of one group (the targets of one experiment) count as one set; the name tells them apart.
    rule : str
        'fixed', 'sqrt', 'linear' or 'tuned'.
    train_batch : ndarray, (point,) [responses]
        Increasing, unless `rate` is given.
    responses : ndarray, (point,) [responses]
        N*: samples of whatever kind the data set counts.
    error : ndarray, (point,) [1]
        Known standard error of log N*: repeats and the grid of evaluations; 0 where nothing is known.
    rate : ndarray, (point,) or None [1]
        eta/eta_0 where it does not follow from the rule.
    """

    group: str
    name: str
    rule: str
    train_batch: Floats
    responses: Floats
    error: Floats
    rate: Floats | None = None

    def select(self, keep: NDArray[np.bool_]) -> Sweep:
        """The sweep without the points that are not kept."""
        return replace(
            self,
            train_batch=self.train_batch[keep],
            responses=self.responses[keep],
            error=self.error[keep],
            rate=None if self.rate is None else self.rate[keep],
        )


@dataclass(frozen=True, kw_only=True)
class Form:
    """A curve of log N* up to its level.

    Parameters
    ----------
    name : str
    parameters : tuple of str
        Of 'log_noise_scale', 'exponent', 'log_snr_shape' and 'lr_fraction', the level not counted.
    log_cost : callable
        (train_batch, rate, reference_batch, rule, parameters) to log N* up to a constant; parameters broadcast.
    """

    name: str
    parameters: tuple[str, ...]
    log_cost: Callable[[Floats, Floats | None, float, str, dict[str, Floats]], Floats]

    def free(self, rule: str) -> tuple[str, ...]:
        """Parameters that curves under a rule can tell: c_0 is part of the level where rates are tuned."""
        return tuple(p for p in self.parameters if not (p == "lr_fraction" and rule == "tuned"))


def _hyperbola(batch: Floats, _rate: Floats | None, _reference: float, _rule: str, given: dict[str, Floats]) -> Floats:
    return np.asarray(np.log1p(batch / np.exp(given["log_noise_scale"])))


def _power(batch: Floats, _rate: Floats | None, _reference: float, _rule: str, given: dict[str, Floats]) -> Floats:
    return np.asarray(given["exponent"] * np.log(batch))


def _law(shape: float) -> Callable[[Floats, Floats | None, float, str, dict[str, Floats]], Floats]:
    def log_cost(batch: Floats, rate: Floats | None, reference: float, rule: str, given: dict[str, Floats]) -> Floats:
        k = np.exp(given["log_snr_shape"]) if "log_snr_shape" in given else shape
        slope = {"noise_scale": np.exp(given["log_noise_scale"]), "snr_shape": k}
        rk = usable_slope(reference, **slope) / usable_slope(batch, **slope)  # type: ignore[arg-type]
        x = batch / reference
        # The optimum at every batch is s = 1/rk from an optimal reference, where r_N = x rk^2.
        c0 = np.ones(()) if rule == "tuned" else given.get("lr_fraction", np.zeros(()))
        s = 1 / rk if rule == "tuned" else x ** EXPONENTS[rule] if rate is None else rate
        return np.asarray(np.log(cost_at_rate(x, learning_rate_ratio=s, lr_fraction=c0, slope_ratio=rk)))

    return log_cost


FORMS = {
    form.name: form
    for form in (
        Form(name="hyperbola", parameters=("log_noise_scale",), log_cost=_hyperbola),
        Form(name="power", parameters=("exponent",), log_cost=_power),
        Form(name="drift", parameters=("log_noise_scale",), log_cost=_law(math.inf)),
        Form(name="k=1/2", parameters=("log_noise_scale",), log_cost=_law(0.5)),
        Form(name="coordinate", parameters=("log_noise_scale", "log_snr_shape"), log_cost=_law(math.nan)),
        Form(name="unified", parameters=("log_noise_scale", "lr_fraction"), log_cost=_law(math.inf)),
    )
}


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A form fitted to a sweep.

    Parameters
    ----------
    form : Form
    rule : str
    reference_batch : float [responses]
        Where rates are anchored.
    level : float
    values : dict of str to float
        Fitted parameters, on the scale on which they are named.
    chi_square : float [1]
        Sum of squared standardised residuals.
    log_rms : float [1]
        Root mean square of the plain residuals of log N*.
    """

    form: Form
    rule: str
    reference_batch: float
    level: float
    values: dict[str, float]
    chi_square: float
    log_rms: float

    @property
    def aic(self) -> float:
        """Akaike's criterion with known errors (the floor among them), the level counted."""
        return self.chi_square + 2 * (1 + len(self.values))

    def predict(self, train_batch: ArrayLike, rate: ArrayLike | None = None) -> Floats:
        """N* at batches, and at rates where they do not follow from the rule.

        Parameters
        ----------
        train_batch : array_like, any shape [responses]
        rate : array_like, broadcastable, or None [1]
            eta/eta_0.

        Returns
        -------
        ndarray [responses]
            Infinite where training diverges.
        """
        batch = np.asarray(train_batch, dtype=np.float64)
        s = None if rate is None else np.asarray(rate, dtype=np.float64)
        given = {name: np.asarray(value) for name, value in self.values.items()}
        return np.asarray(np.exp(self.level + self.form.log_cost(batch, s, self.reference_batch, self.rule, given)))


def fit(form: Form, sweep: Sweep) -> Fit:
    """Fit a form to a sweep by weighted least squares on log N*.

    Parameters
    ----------
    form : Form
    sweep : Sweep

    Returns
    -------
    Fit
    """
    from scipy.optimize import least_squares

    names = form.free(sweep.rule)
    boxes = [_box(name, sweep) for name in names]
    reference = float(sweep.train_batch.min())
    log_n = np.log(sweep.responses)
    sigma = np.hypot(sweep.error, FLOOR)
    weight = sigma**-2 / np.sum(sigma**-2)
    home = np.array([box[3] for box in boxes])
    pulled = np.array([name in ("log_snr_shape", "lr_fraction") for name in names])

    def residuals(theta: Floats) -> tuple[Floats, Floats]:
        """Plain residuals (..., point) and levels (...,) at parameters (parameter, ...)."""
        given = {name: value[..., None] for name, value in zip(names, theta, strict=True)}
        shape = np.broadcast_to(
            form.log_cost(sweep.train_batch, sweep.rate, reference, sweep.rule, given), (*theta.shape[1:], log_n.size)
        )
        possible = np.isfinite(shape)
        shape = np.where(possible, shape, 0.0)
        level = np.sum(weight * (log_n - shape), axis=-1)
        plain = np.where(possible, log_n - shape - level[..., None], IMPOSSIBLE)
        return plain, level

    def standardised(theta: Floats) -> Floats:
        return np.concatenate([residuals(theta)[0] / sigma, PULL * (theta - home)[pulled]])

    grid = np.stack(np.meshgrid(*(np.linspace(b[0], b[1], int(b[2])) for b in boxes), indexing="ij"))
    flat = grid.reshape(len(names), -1)
    scan = np.sum((residuals(flat)[0] / sigma) ** 2, axis=-1)
    scan = scan + PULL**2 * np.sum(np.where(pulled[:, None], flat - home[:, None], 0.0) ** 2, axis=0)
    low, high = (np.array([box[i] for box in boxes]) for i in (0, 1))
    best: tuple[float, Floats] | None = None
    for start in np.argsort(scan, kind="stable")[:STARTS]:
        found = least_squares(
            standardised, np.clip(flat[:, start], low, high), bounds=(low, high), xtol=1e-12, ftol=1e-12, gtol=1e-12
        )
        if best is None or found.cost < best[0] * (1 - 1e-9):
            best = (float(found.cost), np.asarray(found.x))
    assert best is not None
    plain, level = residuals(best[1])
    return Fit(
        form=form,
        rule=sweep.rule,
        reference_batch=reference,
        level=float(level),
        values=dict(zip(names, best[1].tolist(), strict=True)),
        chi_square=float(np.sum((plain / sigma) ** 2)),
        log_rms=float(np.sqrt(np.mean(plain**2))),
    )


def _box(name: str, sweep: Sweep) -> tuple[float, float, float, float]:
    """Lower and upper bound, cells of the scan, and where the pull goes."""
    if name == "log_noise_scale":
        return math.log(BELOW * sweep.train_batch.min()), math.log(ABOVE * sweep.train_batch.max()), 61, 0.0
    if name == "exponent":
        return -3.0, 3.0, 13, 0.0
    if name == "log_snr_shape":
        return math.log(0.1), math.log(100.0), 11, 0.0
    return 0.0, 1.0, 11, 0.0
