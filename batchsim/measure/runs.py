"""One run at one target: its crossing, its throughput and its times; and runs gathered into arms.

Runs that share batch, group size and learning rate form an arm. The reference is the arm with the smallest
batch unless a recipe is asked for. The rule of an arm's learning rate is read off the rates themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from batchsim.errors import InputError, nearest
from batchsim.learning.curve import Crossing, crossing
from batchsim.learning.lr_rule import EXPONENTS

if TYPE_CHECKING:
    from batchsim.specs.recipe import Recipe

RULE_TOLERANCE = 0.02
"""Relative distance within which a learning rate is said to follow a rule."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What counts as reaching the target.

    Parameters
    ----------
    metric : str or None
    target : float or None [1]
    kind : {'first', 'sustained', 'smoothed'}
        See `learning.curve.crossing`.
    score_error : float, 'binomial' or None [1]
        Standard error of a score; 'binomial' takes sqrt(p (1 - p)/n) from the evaluation's size.
    z : float [1]
        Standard errors by which a score must lie above the target to have passed for sure.
    """

    metric: str | None
    target: float | None
    kind: str = "first"
    score_error: float | str | None = None
    z: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run, read off its log at one target."""

    name: str
    ds: xr.Dataset
    train_batch: float
    rollout_batch: float
    learning_rate: float
    crossing: Crossing | None
    throughput: float
    throughput_wall: float
    time: tuple[float, float]
    time_wall: tuple[float, float]
    first_evaluation: tuple[float, float]


def choose(
    nodes: dict[str, xr.Dataset],
    metrics: list[str],
    metric: str | None,
    target: float | None,
    warnings: list[str],
) -> tuple[str | None, float | None]:
    """Metric and target, from the user or from the logs; a choice that is open becomes a warning.

    Raises
    ------
    InputError
        For a metric that no log holds, a target without a choice among several, or one that is not finite; for a
        target above 1 where all scores are shares within [0, 1].
    """
    if metric is not None and metric not in metrics:
        known = nearest(metric, metrics) if metrics else "the logs hold no validation score"
        raise InputError(f"no log holds the score '{metric}'", remedy=known)
    stated = {ds.attrs["target"] for ds in nodes.values() if "target" in ds.attrs}
    if target is None and len(stated) == 1:
        target = float(stated.pop())
    elif target is None and len(stated) > 1:
        warnings.append(f"the logs state different targets {sorted(stated)}; choose one with --target")
    if metric is None and len(metrics) > 1:
        listed = ", ".join(metrics)
        if target is not None:
            raise InputError(f"the logs hold {len(metrics)} scores: {listed}", remedy="choose one with --metric")
        warnings.append(f"the logs hold {len(metrics)} scores ({listed}); choose one with --metric and --target")
    elif metric is None and metrics:
        metric = metrics[0]
    if target is not None and not np.isfinite(target):
        raise InputError(f"target is {target}, not a finite score")
    if target is not None and metric is not None and target > 1:
        _refuse_percent(nodes, metric, target)
    return metric, target


def _refuse_percent(nodes: dict[str, xr.Dataset], metric: str, target: float) -> None:
    """Refuse a target above 1 where all scores are shares."""
    scores = [ds["score"].sel(metric=metric).values for ds in nodes.values() if metric in ds["metric"].values]
    seen = np.concatenate(scores) if scores else np.empty(0)
    seen = seen[np.isfinite(seen)]
    if seen.size and seen.min() >= 0 and 0 < seen.max() <= 1:
        raise InputError(
            f"target {target:g} lies above 1, and every score of '{metric}' is within {seen.min():.4g} to "
            f"{seen.max():.4g}",
            remedy=f"the scores are shares: {target:g} % is {target / 100:g}"
            if target <= 100
            else "choose one below 1",
        )


def read_run(name: str, ds: xr.Dataset, goal: Goal, warnings: list[str]) -> Run:
    """Read a run's crossing, throughput and times off its Dataset.

    Parameters
    ----------
    name : str
    ds : xarray.Dataset
        As `read_logs` returns it.
    goal : Goal
    warnings : list of str
        Receives a sentence if the target is never reached.

    Returns
    -------
    Run
    """
    found, target = None, goal.target
    if goal.metric is not None and target is not None and goal.metric in ds["metric"].values:
        score = ds["score"].sel(metric=goal.metric).values
        error = goal.z * score_error(ds, score, goal.score_error)
        found = crossing(ds["evaluation_responses"].values, score, target=target, kind=goal.kind, score_error=error)
    if found is not None and found.censoring == "right":
        where = f"{ds.attrs.get('path', '')} ({name})" if ds.attrs.get("path") else name
        best = f"(best {found.best_score:.4g} at {found.best_at:.0f} responses)"
        if target is not None and found.best_score >= target:
            how = "falls back below it" if goal.kind == "sustained" else "is not sure of it"
            warnings.append(f"{where}: touches {target:g} and {how} {best}; N* has a lower bound only")
        else:
            warnings.append(
                f"{where}: never reaches {target:g} {best}; pass a target <= {found.best_score:.4g} or a longer log"
            )
    elapsed, wall = ds["evaluation_elapsed"].values, ds["evaluation_wall"].values
    time = _bracket(elapsed, elapsed, found)
    # That the target is reached is known when the evaluation ends; its own duration may be unknown.
    time_wall = _bracket(wall, wall + np.nan_to_num(ds["evaluation_seconds"].values), found)
    end = _last_time(ds)
    if found is not None and found.index_high is not None and found.high > 0:
        n, t, t_wall = found.high, time[1], time_wall[1]
    else:
        n, t, t_wall = float(ds["responses"].values[-1]) if ds.sizes["rollout_step"] else np.nan, *end
    if np.isnan(t) and "step_seconds" in ds:
        # A log that starts late or has gaps: no elapsed time, but every step it holds is timed.
        seconds = ds["step_seconds"].values[np.isfinite(ds["step_seconds"].values)]
        n, t = float(ds.attrs["rollout_batch"]) * seconds.size, float(seconds.sum())
    trained = np.flatnonzero(ds["evaluation_responses"].values > 0)
    first = int(trained[0]) if trained.size else None
    attrs = ds.attrs
    return Run(
        name=name,
        ds=ds,
        train_batch=float(attrs["train_batch"]),
        rollout_batch=float(attrs.get("rollout_batch", attrs["train_batch"])),
        learning_rate=float(attrs.get("learning_rate", np.nan)),
        crossing=found,
        throughput=n / t if t > 0 else np.nan,
        throughput_wall=n / t_wall if t_wall > 0 else np.nan,
        time=time,
        time_wall=time_wall,
        first_evaluation=(
            (float(ds["evaluation_responses"].values[first]), float(elapsed[first]))
            if first is not None
            else (np.nan, np.nan)
        ),
    )


def score_error(ds: xr.Dataset, score: Floats, given: float | str | None) -> Floats:
    """Standard error of each score of a run.

    Parameters
    ----------
    ds : xarray.Dataset
    score : ndarray, (evaluation,) [1]
    given : float, 'binomial' or None [1]

    Returns
    -------
    ndarray, (evaluation,) [1]

    Raises
    ------
    InputError
        For 'binomial' where the log does not state the evaluation's size, or a score outside [0, 1].
    """
    if given is None:
        return np.zeros_like(score)
    if not isinstance(given, str):
        return np.full_like(score, given)
    size = ds.attrs.get("eval_samples")
    where = str(ds.attrs.get("path", ""))
    if given != "binomial":
        raise InputError(f"score error '{given}' is neither a number nor 'binomial'")
    if not size:
        raise InputError(
            "the log does not state how many samples an evaluation has",
            where=where,
            remedy="give the standard error of a score as a number",
        )
    p = np.nan_to_num(score)
    if (p < 0).any() or (p > 1).any():
        raise InputError(
            "a binomial error needs scores between 0 and 1",
            where=where,
            remedy="give the standard error of a score as a number",
        )
    return np.asarray(np.sqrt(p * (1 - p) / size))


def evaluation_spacing(ds: xr.Dataset, metric: str | None = None) -> float:
    """Median distance between the evaluations of a run [responses], of one score if named; NaN with fewer than two."""
    at = ds["evaluation_responses"].values
    if metric is not None and metric in ds["metric"].values:
        at = at[np.isfinite(ds["score"].sel(metric=metric).values)]
    gaps = np.diff(at)
    return float(np.median(gaps)) if gaps.size else np.nan


def coarsen(ds: xr.Dataset, spacing: float) -> xr.Dataset:
    """The run as if it had been evaluated on a coarser grid.

    Parameters
    ----------
    ds : xarray.Dataset
    spacing : float [responses]

    Returns
    -------
    xarray.Dataset
        With the first evaluation at or after each multiple of the spacing.
    """
    n = ds["evaluation_responses"].values
    # Evaluations may be sums of the numbers that the spacing is made of.
    cell = np.floor(n / spacing * (1 + 1e-9))
    _, first = np.unique(cell, return_index=True)
    return ds.isel(evaluation=np.sort(first))


def _bracket(start: Floats, end: Floats, found: Crossing | None) -> tuple[float, float]:
    if found is None:
        return np.nan, np.nan
    low = float(start[found.index_low]) if found.index_low is not None else 0.0
    high = float(end[found.index_high]) if found.index_high is not None else np.inf
    return low, high


def _last_time(ds: xr.Dataset) -> tuple[float, float]:
    if "elapsed" not in ds or not ds.sizes["rollout_step"]:
        return np.nan, np.nan
    last = float(ds["elapsed"].values[-1])
    # An evaluation before the first step is no part of the training time; another one without a duration is unknown.
    evaluations = ds["evaluation_seconds"].values[ds["evaluation_responses"].values > 0]
    saving = np.nansum(ds["checkpoint_seconds"].values) if "checkpoint_seconds" in ds else 0.0
    return last, last + float(evaluations.sum() + saving)


SAME_BY_DESIGN = {
    *("train_batch", "rollout_batch", "prompts", "group_size", "learning_rate", "lr_rule", "grad_clip", "chunks"),
    *("seed", "run", "path", "framework", "logged_by", "provenance", "warnings", "unused", "status", "log_pace"),
    *("target", "target_metric", "eval_samples", "eval_samples_total", "inferred_rollout_batch"),
}
"""Attributes that tell arms apart already, follow the batch by rule (a gradient clip), or say nothing of the recipe."""


def other_changes(read: list[Run]) -> list[str]:
    """Sentences on settings, besides the batch and its learning rate, that differ between runs."""
    said = []
    names = sorted({name for r in read for name in r.ds.attrs} - SAME_BY_DESIGN)
    for name in names:
        values = {str(r.ds.attrs.get(name, "not stated")): r.name for r in read}
        if len(values) > 1:
            shown = ", ".join(f"{value} ({run})" for value, run in sorted(values.items())[:3])
            said.append(f"more than the batch changed between the runs: {name} is {shown}")
    groups = {r.ds.attrs["group_size"] for r in read if "group_size" in r.ds.attrs}
    if len(groups) > 1:
        said.append(
            f"more than the batch changed between the runs: group_size is {', '.join(map(str, sorted(groups)))}"
        )
    return said


def copies(nodes: dict[str, xr.Dataset]) -> list[str]:
    """Sentences on runs that repeat another one number by number."""
    said, seen = [], dict[str, xr.Dataset]()
    for name, ds in nodes.items():
        same = next((other for other, kept in seen.items() if ds.sizes == kept.sizes and ds.equals(kept)), None)
        if same is None:
            seen[name] = ds
        else:
            said.append(
                f"{name} holds the same numbers as {same}: a copy is no second seed, and intervals are too narrow"
            )
    return said


def gather_arms(read: list[Run]) -> list[list[Run]]:
    """Runs by batch, group size and learning rate (to three digits), in increasing order."""
    arms: dict[tuple[Any, ...], list[Run]] = {}
    for run in read:
        attrs = run.ds.attrs
        rate = None if np.isnan(run.learning_rate) else float(f"{run.learning_rate:.3g}")
        key = (run.train_batch, attrs.get("group_size", 0), run.rollout_batch, rate if rate is not None else 0.0)
        arms.setdefault(key, []).append(run)
    return [arms[key] for key in sorted(arms)]


def smallest_arm(arms: list[list[Run]], warnings: list[str]) -> int:
    """Index of the arm with the smallest batch; among several, of the one with the most runs."""
    smallest = min(arm[0].train_batch for arm in arms)
    tied = [i for i, arm in enumerate(arms) if arm[0].train_batch == smallest]
    best = max(tied, key=lambda i: len(arms[i]))
    if len(tied) > 1:
        warnings.append(
            f"{len(tied)} arms share the smallest batch {smallest:g}; the one with the most runs "
            f"(learning rate {arms[best][0].learning_rate:g}) is the reference"
        )
    return best


def find_arm(arms: list[list[Run]], recipe: Recipe) -> int | None:
    """Arm that ran a recipe, None if none did."""
    for i, arm in enumerate(arms):
        run, group = arm[0], arm[0].ds.attrs.get("group_size", recipe.group_size)
        rate = 1.0 if recipe.learning_rate is None else run.learning_rate / recipe.learning_rate
        same_rate = np.isnan(rate) or abs(rate - 1) < RULE_TOLERANCE
        if run.train_batch == recipe.train_batch and group == recipe.group_size and same_rate:
            return i
    return None


def rule(run: Run, reference: Run) -> str:
    """Rule that the learning rate follows from the reference, '' if a rate is unknown."""
    x = run.train_batch / reference.train_batch
    s = run.learning_rate / reference.learning_rate
    if np.isnan(s):
        return str(run.ds.attrs.get("lr_rule", ""))
    if x == 1:
        return "reference" if abs(s - 1) < RULE_TOLERANCE else "probe"
    for name, exponent in EXPONENTS.items():
        if abs(s / x**exponent - 1) < RULE_TOLERANCE:
            return name
    return "user"
