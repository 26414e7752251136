r"""r_N, r_q, T/T_0 and verdicts of arms, with the spread over runs and the width of evaluation intervals.

N* of each run is uniform in its interval; arm means scatter with the relative spread over runs, pooled over
arms (or the arm's own where larger), with Student's distribution of the pooled degrees of freedom.
P(r_q > r_N) is a count over such draws. A left-censored run lowers its arm's N* to 0, a right-censored one
raises it to infinity: ratios are then bounds, and a verdict follows only where a bound alone decides.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from batchsim.criterion import LOSES_AT, WINS_AT, verdict
from batchsim.learning.curve import Crossing
from batchsim.measure.runs import Run, rule
from batchsim.variables import set_attrs

DRAWS = 4000
BOUNDS = ("low", "estimate", "high")
PHASES = (
    "generation_seconds",
    "training_seconds",
    "logprob_seconds",
    "reward_seconds",
    "sync_seconds",
)
Floats = NDArray[np.float64]


def _relative_error(values: list[Floats]) -> tuple[Floats, float]:
    """Standard error of each arm's mean log, and the pooled degrees of freedom behind it.

    The spread over runs is the pooled one, or the arm's own where that is larger.
    """
    finite = [np.log(v[np.isfinite(v) & (v > 0)]) for v in values]
    dof = float(sum(max(v.size - 1, 0) for v in finite))
    size = np.array([max(v.size, 1) for v in finite])
    if dof == 0:
        return np.full(len(values), np.nan), 0.0
    own = np.array([v.var(ddof=1) if v.size > 1 else 0.0 for v in finite])
    pooled = float(sum(v.var(ddof=1) * (v.size - 1) for v in finite if v.size > 1)) / dof
    return np.sqrt(np.maximum(own, pooled) / size), dof


def _scatter(error: Floats, dof: float, rng: np.random.Generator) -> Floats:
    """Student draws of an arm's mean around its value, as factors, (arm, draw); 1 without repeats."""
    if dof == 0:
        return np.ones((error.size, DRAWS))
    return np.exp(error[:, None] * rng.standard_t(dof, size=(error.size, DRAWS)))


def _cost_draws(arms: list[list[Run]], rng: np.random.Generator) -> tuple[Floats, Floats, Floats, Floats]:
    """Draws of the bounds of each arm's N*, (arm, draw) twice, its midpoint, and its relative error.

    Both bounds are the same draw where every run is interval-censored; a left-censored run lowers the
    lower one to 0 and a right-censored run raises the upper one to infinity.
    """
    middle = [np.array([_middle(r.crossing) for r in arm]) for arm in arms]
    error, dof = _relative_error(middle)
    low, high = np.empty((len(arms), DRAWS)), np.empty((len(arms), DRAWS))
    for i, arm in enumerate(arms):
        bounds = [_run_draws(r.crossing, rng) for r in arm]
        if len({(r.crossing.low, r.crossing.high) for r in arm if r.crossing}) == 1:
            # Runs that share one interval say where in it they lie once, not once each.
            bounds = bounds[:1]
        with np.errstate(divide="ignore"):
            low[i], high[i] = (np.exp(np.mean(np.log([b[j] for b in bounds]), axis=0)) for j in (0, 1))
    factor = _scatter(error, dof, rng)
    centre = np.array([np.exp(np.mean(np.log(m))) for m in middle])
    return low * factor, high * factor, centre, error


def _middle(found: Crossing | None) -> float:
    return (found.low + found.high) / 2 if found is not None and found.censoring == "interval" else np.nan


def _run_draws(found: Crossing | None, rng: np.random.Generator) -> tuple[Floats, Floats]:
    if found is None:
        return np.full(DRAWS, np.nan), np.full(DRAWS, np.nan)
    if found.censoring == "interval":
        draw = found.low + (found.high - found.low) * (1 - rng.uniform(size=DRAWS))
        return draw, draw
    return np.full(DRAWS, found.low), np.full(DRAWS, found.high)


def measure_arms(
    arms: list[list[Run]], reference: int, *, level: float, rng: np.random.Generator, warnings: list[str]
) -> xr.Dataset:
    """Ratios and verdicts of every arm against one of them.

    Parameters
    ----------
    arms : list of list of Run
    reference : int
    level : float [1]
    rng : numpy.random.Generator
    warnings : list of str
        Receives a sentence if no arm has repeats.

    Returns
    -------
    xarray.Dataset
        Over (arm, bound).
    """
    is_reference = np.arange(len(arms)) == reference
    q = [np.array([r.throughput for r in arm]) for arm in arms]
    q_mean = np.array([v[np.isfinite(v)].mean() if np.isfinite(v).any() else np.nan for v in q])
    untimed = [r.name for arm in arms for r in arm if not np.isfinite(r.throughput)]
    if untimed and np.isfinite(q_mean).any():
        warnings.append(
            f"no timing for {', '.join(untimed[:3])}{' ...' if len(untimed) > 3 else ''}: q is of the other runs"
        )
    q_error, q_dof = _relative_error(q)
    n_low, n_high, centre, n_error = _cost_draws(arms, rng)
    rq_draws = q_mean[:, None] * _scatter(q_error, q_dof, rng)
    rq_draws = rq_draws / rq_draws[reference]
    with np.errstate(divide="ignore", invalid="ignore"):
        cost_low, cost_high = n_low / n_high[reference], n_high / n_low[reference]
    cost_low[reference] = cost_high[reference] = np.where(np.isnan(n_low[reference]), np.nan, 1.0)
    r_q, r_n = q_mean / q_mean[reference], centre / centre[reference]
    cost = _quantiles(cost_low, r_n, cost_high, level)
    time = _quantiles(cost_low / rq_draws, r_n / r_q, cost_high / rq_draws, level)
    p_wins = np.where(is_reference, np.nan, _p_wins(cost_low, cost_high, rq_draws))
    verdicts = [verdict(p) or "" for p in p_wins]
    if len(arms) > 1 and (q_dof == 0 or not np.isfinite(n_error).any()):
        # A verdict from one run per arm would know the grid of evaluations and nothing of luck.
        p_wins = np.full(len(arms), np.nan)
        known = np.isfinite(r_n) & np.isfinite(r_q) & ~is_reference
        verdicts = ["undecided" if k else "" for k in known]
    if len(arms) > 1 and max(len(arm) for arm in arms) == 1:
        warnings.append("one run per arm: the spread over runs is unknown, and no interval contains it")

    def ratio_error(error: Floats) -> Floats:
        return np.where(is_reference, 0.0, np.sqrt(error**2 + error[reference] ** 2))

    first = np.array([np.mean([r.first_evaluation for r in arm], axis=0) for arm in arms])
    bounded = ("arm", "bound")
    data = {
        **{name: ("arm", np.array(column)) for name, column in _arm_columns(arms, reference).items()},
        "responses_to_target": (
            bounded,
            np.array([_mean_bounds(arm, lambda r: _limits_of(r.crossing)) for arm in arms]),
        ),
        "responses_to_target_se": ("arm", centre * n_error),
        "time_to_target": (bounded, np.array([_mean_bounds(arm, lambda r: r.time) for arm in arms])),
        "time_with_evaluation": (bounded, np.array([_mean_bounds(arm, lambda r: r.time_wall) for arm in arms])),
        "sample_cost_ratio": (bounded, cost),
        "sample_cost_ratio_se": ("arm", r_n * ratio_error(n_error)),
        "time_ratio": (bounded, time),
        "throughput": ("arm", q_mean),
        "throughput_with_evaluation": ("arm", np.array([np.mean([r.throughput_wall for r in arm]) for arm in arms])),
        "throughput_ratio": ("arm", r_q),
        "throughput_ratio_se": ("arm", r_q * ratio_error(q_error)),
        "p_wins": ("arm", p_wins),
        "verdict": ("arm", np.array(verdicts)),
        "first_evaluation_responses": ("arm", first[:, 0]),
        "first_evaluation_time": ("arm", first[:, 1]),
        "first_evaluation_time_ratio": ("arm", first[:, 1] / first[reference, 1]),
    }
    return set_attrs(xr.Dataset(data, coords={"arm": np.arange(len(arms)), "bound": list(BOUNDS)}))


def _arm_columns(arms: list[list[Run]], reference: int) -> dict[str, list[Any]]:
    """What identifies an arm, and the means over its runs of what the logs state."""
    columns: dict[str, list[Any]] = {
        "train_batch": [arm[0].train_batch for arm in arms],
        "rollout_batch": [arm[0].rollout_batch for arm in arms],
        "prompts": [float(arm[0].ds.attrs.get("prompts", np.nan)) for arm in arms],
        "group_size": [float(arm[0].ds.attrs.get("group_size", np.nan)) for arm in arms],
        "learning_rate": [arm[0].learning_rate for arm in arms],
        "lr_rule": [rule(arm[0], arms[reference][0]) for arm in arms],
        "runs": [len(arm) for arm in arms],
        "step_seconds": [_step_mean(arm, "step_seconds") for arm in arms],
        "kept_share": [_step_mean(arm, "kept_share", steady=False) for arm in arms],
    }
    for name in PHASES:
        values = [_step_mean(arm, name) for arm in arms]
        if np.isfinite(values).any():
            columns[name] = values
    return columns


def _step_mean(arm: list[Run], name: str, *, steady: bool = True) -> float:
    """Mean over the (steady) rollout steps of an arm's runs."""
    values = [r.ds[name].values[r.ds["steady"].values | (not steady)] for r in arm if name in r.ds]
    pooled = np.concatenate(values) if values else np.empty(0)
    pooled = pooled[np.isfinite(pooled)]
    return float(pooled.mean()) if pooled.size else np.nan


def _limits_of(found: Crossing | None) -> tuple[float, float]:
    return (found.low, found.high) if found is not None else (np.nan, np.nan)


def _mean_bounds(arm: list[Run], bounds: Any) -> tuple[float, float, float]:
    """Mean over runs of the lower limit, the midpoint and the upper limit of an interval."""
    low, high = np.mean([bounds(r) for r in arm], axis=0)
    known = all(r.crossing is not None and r.crossing.censoring == "interval" for r in arm)
    return float(low), float((low + high) / 2) if known else np.nan, float(high)


def _quantiles(low: Floats, estimate: Floats, high: Floats, level: float) -> Floats:
    """Lower limit, estimate and upper limit per arm, (arm, bound)."""
    tail = (1 - level) / 2
    # Order statistics without interpolation: infinity minus infinity is no limit.
    below = np.quantile(low, tail, axis=1, method="lower")
    above = np.quantile(high, 1 - tail, axis=1, method="higher")
    return np.stack([below, estimate, above], axis=1)


def _p_wins(cost_low: Floats, cost_high: Floats, throughput_ratio: Floats) -> Floats:
    """P(r_q > r_N) per arm; where N* is one-sided, the bound if it decides and NaN if not."""
    at_most = np.mean(throughput_ratio > cost_low, axis=1)
    at_least = np.mean(throughput_ratio > cost_high, axis=1)
    unknown = np.isnan(cost_low).any(axis=1) | np.isnan(throughput_ratio).any(axis=1)
    two_sided = np.all(cost_low == cost_high, axis=1)
    decisive = np.where(at_most <= LOSES_AT, at_most, np.where(at_least >= WINS_AT, at_least, np.nan))
    return np.where(unknown, np.nan, np.where(two_sided, at_most, decisive))


def run_set(read: list[Run]) -> xr.Dataset:
    """Every run's interval, times and throughput over (run, bound); paths and warnings as attributes."""
    bounded = ("run", "bound")

    def triple(limits: tuple[float, float], known: bool) -> tuple[float, float, float]:
        low, high = limits
        return low, (low + high) / 2 if known else np.nan, high

    def all_of(bounds: Any) -> Floats:
        return np.array(
            [triple(bounds(r), r.crossing is not None and r.crossing.censoring == "interval") for r in read]
        )

    data = {
        "train_batch": ("run", np.array([r.train_batch for r in read])),
        "learning_rate": ("run", np.array([r.learning_rate for r in read])),
        "censoring": ("run", np.array([r.crossing.censoring if r.crossing else "" for r in read])),
        "responses_to_target": (bounded, all_of(lambda r: _limits_of(r.crossing))),
        "time_to_target": (bounded, all_of(lambda r: r.time)),
        "time_with_evaluation": (bounded, all_of(lambda r: r.time_wall)),
        "throughput": ("run", np.array([r.throughput for r in read])),
        "throughput_with_evaluation": ("run", np.array([r.throughput_wall for r in read])),
    }
    ds = set_attrs(xr.Dataset(data, coords={"run": [r.name for r in read], "bound": list(BOUNDS)}))
    ds.attrs = {
        "path": [r.ds.attrs.get("path", "") for r in read],
        "framework": [r.ds.attrs.get("framework", "") for r in read],
        "warnings": [list(r.ds.attrs.get("warnings", [])) for r in read],
    }
    return ds
