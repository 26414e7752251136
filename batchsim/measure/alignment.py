r"""The paper's first stage: do the curves of different batches align at equal cumulative responses?

For an arm against the reference, scores are read by linear interpolation at the evaluations of the coarser
arm within the stretch that both cover, and averaged over runs. The gap at each point scatters with the
spread over runs, pooled over points and both arms, or with the stated error of a score where no repeat
shows it. The largest gap of G points is judged with simultaneous limits (Sidak: each point at
level^(1/G)), so that looking at many points finds no departure by chance:

    inside    every |gap| is within the band, limits included
    outside   some |gap| is beyond the band, limits included
    undecided otherwise

Batches are aligned up to the largest one before the first that is outside.

References
----------
.. [1] Li et al. 2026, arXiv:2608.29296, figures 3 and 4 (grey band of one percentage point).
"""

from __future__ import annotations

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from batchsim.measure.ratios import BOUNDS
from batchsim.measure.runs import Goal, Run, score_error
from batchsim.variables import set_attrs

BAND = 0.01
"""Half width of the band, as a share of the score's unit: one point where scores lie between 0 and 1."""
Floats = NDArray[np.float64]


def measure_alignment(arms: list[list[Run]], reference: int, goal: Goal, *, level: float, band: float) -> xr.Dataset:
    """Largest gap between each arm's curve and the reference's at equal responses.

    Parameters
    ----------
    arms : list of list of Run
    reference : int
    goal : Goal
        Its metric is compared; its score error stands in where no arm has repeats.
    level : float [1]
        Simultaneous coverage of the limits.
    band : float [1]
        Half width of the band, in units of the score.

    Returns
    -------
    xarray.Dataset
        Over (arm, bound): alignment_gap; over arm: alignment_at [responses] and alignment ('inside',
        'outside', 'undecided', or '' where the curves share no stretch). NaN for the reference.
    """
    rows = [
        ((np.nan, np.nan, np.nan), np.nan, "")
        if i == reference
        else _gap(arm, arms[reference], goal, level=level, band=band)
        for i, arm in enumerate(arms)
    ]
    data = {
        "alignment_gap": (("arm", "bound"), np.array([r[0] for r in rows])),
        "alignment_at": ("arm", np.array([r[1] for r in rows])),
        "alignment": ("arm", np.array([r[2] for r in rows])),
    }
    return set_attrs(xr.Dataset(data, coords={"arm": np.arange(len(arms)), "bound": list(BOUNDS)}))


def aligned_up_to(arms: xr.Dataset) -> dict[str, float]:
    """Largest batch up to which no curve leaves the band, per learning-rate rule.

    Parameters
    ----------
    arms : xarray.Dataset
        With train_batch, lr_rule, group_size and alignment over arm; attribute `reference`.

    Returns
    -------
    dict of str to float [responses]
        Rules under which at least one batch was compared; the reference batch where the first is outside.
    """
    reference = arms.isel(arm=arms.attrs["reference"])
    group = float(reference["group_size"])
    found: dict[str, float] = {}
    rules = [r for r in dict.fromkeys(arms["lr_rule"].values.tolist()) if r not in ("reference", "probe")]
    for rule in rules:
        same = (arms["lr_rule"].values == rule) & (arms["alignment"].values != "")
        if np.isfinite(group):
            same &= arms["group_size"].values == group
        batches, outcome = arms["train_batch"].values[same], arms["alignment"].values[same]
        order = np.argsort(batches)
        left = np.flatnonzero(outcome[order] == "outside")
        kept = batches[order][: left[0]] if left.size else batches[order]
        if batches.size:
            found[str(rule)] = float(kept[-1]) if kept.size else float(reference["train_batch"])
    return found


def _gap(
    arm: list[Run], reference: list[Run], goal: Goal, *, level: float, band: float
) -> tuple[tuple[float, float, float], float, str]:
    nothing = ((np.nan, np.nan, np.nan), np.nan, "")
    curves = [[_curve(r, goal) for r in runs] for runs in (arm, reference)]
    if goal.metric is None or any(n.size < 2 for runs in curves for n, _ in runs):
        return nothing
    start = max(n[0] for runs in curves for n, _ in runs)
    stop = min(n[-1] for runs in curves for n, _ in runs)
    coarse = max((runs[0][0] for runs in curves), key=lambda n: float(np.median(np.diff(n))))
    grid = coarse[(coarse >= start) & (coarse <= stop)]
    # Before training every curve is the same.
    grid = grid[grid > 0]
    if not grid.size:
        return nothing
    scores = [np.stack([np.interp(grid, n, j) for n, j in runs]) for runs in curves]
    gap = scores[0].mean(axis=0) - scores[1].mean(axis=0)
    half = _half_width(scores, [arm, reference], goal, level=level, points=grid.size)
    at = int(np.argmax(np.abs(gap)))
    largest = float(np.abs(gap[at]))
    outcome = "undecided"
    if largest + half <= band:
        outcome = "inside"
    elif largest - half > band:
        outcome = "outside"
    return (float(gap[at] - half), float(gap[at]), float(gap[at] + half)), float(grid[at]), outcome


def _curve(run: Run, goal: Goal) -> tuple[Floats, Floats]:
    if goal.metric not in run.ds["metric"].values:
        return np.empty(0), np.empty(0)
    score = run.ds["score"].sel(metric=goal.metric).values
    seen = np.isfinite(score)
    return run.ds["evaluation_responses"].values[seen], score[seen]


def _half_width(scores: list[Floats], runs: list[list[Run]], goal: Goal, *, level: float, points: int) -> float:
    """Half width of simultaneous limits; infinite where neither repeats nor a stated error give one."""
    each = level ** (1 / points)
    dof = sum(len(s) - 1 for s in scores)
    if dof:
        squares = sum(float(((s - s.mean(axis=0)) ** 2).sum()) for s in scores)
        variance = squares / (dof * points)
        quantile = float(stdtrit(dof, (1 + each) / 2))
    elif goal.score_error is not None:
        errors = [score_error(r.ds, _curve(r, goal)[1], goal.score_error) for arm in runs for r in arm]
        variance = float(np.mean(np.concatenate(errors) ** 2))
        quantile = float(ndtri((1 + each) / 2))
    else:
        return np.inf
    return quantile * float(np.sqrt(variance * sum(1 / len(s) for s in scores)))
