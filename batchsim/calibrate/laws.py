r"""Competing laws of the sample cost on the same arms: AIC, and the error at the largest batch when it is left out.

Every law says log N_i = log N_0 + log r(B_i; parameters) and is fitted by least squares to the arms whose N* is a
number and whose learning rate follows the forecast's rule, with their own errors and without an error of the law:

    constant     r = 1
    power        r = (B/B_0)^p
    hyperbola    r = (1 + B/B_noise)/(1 + B_0/B_noise), tuned rates (McCandlish et al. 2018)
    drift        the package's law, k -> infinity, with B_noise and c_0
    coordinate   the package's law at k = 1/2, with B_noise and c_0

    AIC = sum ((log N_i - fit_i)/error_i)^2 + 2 (parameters + 1)      up to a constant that all share

AIC counts only what was measured; a forecast is about what was not, so the law is also fitted without the largest
batch and asked for it. Neither chooses what `predict` uses, which averages over shapes and adds the law's own error:
a law that loses on both says that its forecast leans on that error.

References
----------
.. [1] Akaike 1974, IEEE Trans. Automatic Control 19:716.
.. [2] McCandlish et al. 2018, arXiv:1812.06162, eq. 2.11.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchsim.calibrate.discrepancy import LEAST_ERROR, Seen
from batchsim.learning.lr_rule import LRRule
from batchsim.learning.sample_cost import sample_cost_ratio

Floats = NDArray[np.float64]

NOISE_RANGE = (1e-2, 1e4)
"""Noise scales that are tried, in units of the reference batch."""
FRACTION_RANGE = (1e-3, 1.5)
POWER_RANGE = (-1.0, 2.0)
STARTS = 5


@dataclass(frozen=True, kw_only=True)
class LawFit:
    """One law fitted to the arms.

    Parameters
    ----------
    name : str
    params, stderr : dict of str to float
        Without log N_0; errors are NaN where the arms leave none.
    chisqr, aic : float
    arms : int
    largest_out_error : float [1]
        Predicted over measured N* of the largest batch, less 1, from a fit without it; NaN with too few arms.
    success : bool
        More arms than parameters, and converged.
    message : str
    """

    name: str
    params: dict[str, float]
    stderr: dict[str, float]
    chisqr: float
    aic: float
    arms: int
    largest_out_error: float
    success: bool
    message: str


@dataclass(frozen=True, kw_only=True)
class _Law:
    """Parameters with ranges, searched as logarithms where so marked, and log r_N."""

    bounds: dict[str, tuple[float, float]]
    logarithmic: bool
    log_cost: Callable[[Floats, dict[str, float]], Floats]


def _laws(reference: float, rule: LRRule, ceiling: float, optimizer: str) -> dict[str, _Law]:
    def package(shape: float) -> Callable[[Floats, dict[str, float]], Floats]:
        def log_cost(batch: Floats, p: dict[str, float]) -> Floats:
            cost = sample_cost_ratio(
                batch,
                reference_batch=reference,
                snr_shape=shape,
                lr_rule=rule,
                ceiling=ceiling,
                optimizer=optimizer,
                **p,
            )
            # Where training diverges the miss is large and finite, so that the search can leave.
            return np.minimum(np.log(cost), 50.0)

        return log_cost

    noise = (NOISE_RANGE[0] * reference, NOISE_RANGE[1] * reference)
    own: dict[str, Any] = {"bounds": {"noise_scale": noise, "lr_fraction": FRACTION_RANGE}, "logarithmic": True}
    return {
        "constant": _Law(bounds={}, logarithmic=False, log_cost=lambda b, p: np.zeros_like(b)),
        "power": _Law(
            bounds={"exponent": POWER_RANGE},
            logarithmic=False,
            log_cost=lambda b, p: p["exponent"] * np.log(b / reference),
        ),
        "hyperbola": _Law(
            bounds={"noise_scale": noise},
            logarithmic=True,
            log_cost=lambda b, p: np.log((b + p["noise_scale"]) / (reference + p["noise_scale"])),
        ),
        "drift": _Law(**own, log_cost=package(math.inf)),
        "coordinate": _Law(**own, log_cost=package(0.5)),
    }


def compare_laws(
    seen: Sequence[Seen], *, reference_batch: float, lr_rule: LRRule, ceiling: float = math.inf, optimizer: str = "adam"
) -> list[LawFit]:
    """Fit every law to the arms.

    Parameters
    ----------
    seen : sequence of Seen
        Numbers of one level that follow the rule are used.
    reference_batch : float [responses]
    lr_rule : str or callable
    ceiling : float [1]
    optimizer : {'adam', 'sgd'}

    Returns
    -------
    list of LawFit
        Lowest AIC first; empty with fewer than two batches.
    """
    arms = [o for o in seen if o.is_number and o.level == "target" and o.off_rule == 0]
    arms = arms or [o for o in seen if o.is_number and o.level == "curve" and o.off_rule == 0]
    if len({o.train_batch for o in arms}) < 2:
        return []
    laws = _laws(reference_batch, lr_rule, ceiling, optimizer)
    return sorted((_fit(name, law, arms) for name, law in laws.items()), key=lambda f: f.aic)


def _fit(name: str, law: _Law, arms: list[Seen]) -> LawFit:
    batch, log_n, error = _columns(arms)
    theta, chisqr, jacobian, converged = _least_squares(law, batch, log_n, error)
    params = _parameters(law, theta)
    spare = len(arms) - len(params) - 1
    stderr = dict.fromkeys(params, math.nan)
    if spare >= 0 and params:
        covariance = np.linalg.pinv(jacobian.T @ jacobian)
        scale = [v if law.logarithmic else 1.0 for v in params.values()]
        stderr = {n: float(math.sqrt(covariance[i, i]) * scale[i]) for i, n in enumerate(params)}
    largest = float(batch.max())
    kept = [o for o in arms if o.train_batch < largest]
    out = math.nan
    if len(kept) > len(params) and len({o.train_batch for o in kept}) > bool(params):
        early = _columns(kept)
        found = _least_squares(law, *early)[0]
        level = _level(early[1] - _cost(law, early[0], found), early[2])
        said = float(level + _cost(law, np.array([largest]), found)[0])
        out = math.expm1(said - float(np.mean(log_n[batch == largest])))
    message = "" if converged else "the search did not converge"
    if spare < 0:
        message = f"{len(arms)} arms and {len(params) + 1} parameters: one more batch would tell"
    elif spare == 0 and params:
        message = "as many arms as parameters: it passes through all of them, whatever the law"
    return LawFit(
        name=name,
        params=params,
        stderr=stderr,
        chisqr=chisqr,
        aic=chisqr + 2 * (len(params) + 1),
        arms=len(arms),
        largest_out_error=out,
        success=converged and spare > 0,
        message=message,
    )


def _columns(arms: list[Seen]) -> tuple[Floats, Floats, Floats]:
    return (
        np.array([o.train_batch for o in arms]),
        np.array([o.low for o in arms]),
        np.array([max(o.error, LEAST_ERROR) for o in arms]),
    )


def _parameters(law: _Law, theta: Floats) -> dict[str, float]:
    values = np.exp(theta) if law.logarithmic else theta
    return dict(zip(law.bounds, np.atleast_1d(values).tolist(), strict=True))


def _cost(law: _Law, batch: Floats, theta: Floats) -> Floats:
    return law.log_cost(batch, _parameters(law, theta))


def _level(rest: Floats, error: Floats) -> float:
    return float(np.average(rest, weights=1 / error**2))


def _least_squares(law: _Law, batch: Floats, log_n: Floats, error: Floats) -> tuple[Floats, float, Floats, bool]:
    """Parameters, chi square, Jacobian and convergence from a grid of starts, log N_0 solved for."""
    from scipy.optimize import least_squares

    def residual(theta: Floats) -> Floats:
        rest = log_n - _cost(law, batch, theta)
        return np.asarray((rest - _level(rest, error)) / error)

    if not law.bounds:
        empty = np.empty(0)
        return empty, float(np.sum(residual(empty) ** 2)), np.empty((batch.size, 0)), True
    limits = np.array(list(law.bounds.values()))
    limits = np.log(limits) if law.logarithmic else limits
    grids = [np.linspace(low, high, STARTS + 2)[1:-1] for low, high in limits]
    begin = min((np.array(p) for p in itertools.product(*grids)), key=lambda p: float(np.sum(residual(p) ** 2)))
    found = least_squares(residual, begin, bounds=(limits[:, 0], limits[:, 1]))
    return np.asarray(found.x), float(2 * found.cost), np.asarray(found.jac, dtype=np.float64), bool(found.success)


def table(fits: Sequence[LawFit]) -> str:
    """The comparison as text, lowest AIC first."""
    if not fits:
        return "laws: fewer than two batches with N* as a number, nothing to compare"
    lines = [f"{'law':<12} {'AIC':>8} {'largest left out':>17}  parameters"]
    for f in fits:
        out = "-" if math.isnan(f.largest_out_error) else f"{100 * f.largest_out_error:+.1f} %"
        shown = ", ".join(
            f"{n} {v:.4g}" + ("" if math.isnan(f.stderr[n]) else f" +- {f.stderr[n]:.2g}") for n, v in f.params.items()
        )
        lines.append(f"{f.name:<12} {f.aic:>8.1f} {out:>17}  {shown}{'; ' if shown and f.message else ''}{f.message}")
    return "\n".join(lines)
