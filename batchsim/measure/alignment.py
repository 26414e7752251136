r"""The paper's first stage: do the curves of different batches align at equal cumulative responses?

For an arm against the reference, scores are read by linear interpolation at the evaluations of the coarser
arm within the stretch that both cover, and averaged over runs. The gap at each point scatters with the
spread over runs at that point, or the one pooled over points where that is larger, or with the stated error of a
score where that is larger still. G points are judged with simultaneous limits (Sidak: each point at
level^(1/G)), so that looking at many points finds no departure by chance:

    inside    every |gap| is within the band, limits included
    outside   some |gap| is beyond the band, limits included
    undecided otherwise

Two batches answer "up to which": the largest before the first that is not inside (shown to align), and the largest
before the first that is outside (not shown to depart).

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


def aligned_up_to(arms: xr.Dataset) -> dict[str, dict[str, float | None]]:
    """Batches up to which curves are shown to align, and not shown to depart, per learning-rate rule.

    Parameters
    ----------
    arms : xarray.Dataset
        With train_batch, lr_rule, group_size and alignment over arm; attribute `reference`.

    Returns
    -------
    dict of str to dict
        Per rule under which a batch was compared: `inside` [responses], the largest before the first that is not
        inside the band, and `not_outside` [responses], the largest before the first outside; None where the
        first one already fails, and both None where nothing was decided.
    """
    reference = arms.isel(arm=arms.attrs["reference"])
    group = float(reference["group_size"])
    found: dict[str, dict[str, float | None]] = {}
    for rule in dict.fromkeys(arms["lr_rule"].values.tolist()):
        same = (arms["lr_rule"].values == rule) & (arms["alignment"].values != "")
        if np.isfinite(group):
            same &= arms["group_size"].values == group
        if rule in ("reference", "probe") or not same.any():
            continue
        order = np.argsort(arms["train_batch"].values[same])
        batches, outcome = arms["train_batch"].values[same][order], arms["alignment"].values[same][order]
        decided = bool((outcome != "undecided").any())
        found[str(rule)] = {
            "inside": _last_before(batches, outcome != "inside"),
            "not_outside": _last_before(batches, outcome == "outside") if decided else None,
        }
    return found


def _last_before(batches: Floats, stops: NDArray[np.bool_]) -> float | None:
    """Largest batch before the first stop."""
    kept = batches[: int(np.argmax(stops))] if stops.any() else batches
    return float(kept[-1]) if kept.size else None


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
    half = _half_width(scores, [arm, reference], goal, level=level)
    # The point that says most: the farthest beyond its own limits.
    beyond = np.abs(gap) - half
    at = int(np.argmax(beyond)) if np.isfinite(half).all() else int(np.argmax(np.abs(gap)))
    outcome = "undecided"
    if (np.abs(gap) + half <= band).all():
        outcome = "inside"
    elif (beyond > band).any():
        outcome = "outside"
    return (float(gap[at] - half[at]), float(gap[at]), float(gap[at] + half[at])), float(grid[at]), outcome


def _curve(run: Run, goal: Goal) -> tuple[Floats, Floats]:
    if goal.metric not in run.ds["metric"].values:
        return np.empty(0), np.empty(0)
    score = run.ds["score"].sel(metric=goal.metric).values
    seen = np.isfinite(score)
    return run.ds["evaluation_responses"].values[seen], score[seen]


def _half_width(scores: list[Floats], runs: list[list[Run]], goal: Goal, *, level: float) -> Floats:
    """Half widths of simultaneous limits, (point,); infinite where neither repeats nor a stated error give one."""
    points = scores[0].shape[1]
    each = level ** (1 / points)
    share = sum(1 / len(s) for s in scores)
    half = np.zeros(points)
    dof = sum(len(s) - 1 for s in scores)
    if dof:
        squares = np.sum([((s - s.mean(axis=0)) ** 2).sum(axis=0) for s in scores], axis=0)
        variance = np.maximum(squares / dof, squares.sum() / (dof * points))
        half = float(stdtrit(dof, (1 + each) / 2)) * np.sqrt(variance * share)
    if goal.score_error is not None:
        errors = [score_error(r.ds, _curve(r, goal)[1], goal.score_error) for arm in runs for r in arm]
        stated = float(np.mean(np.concatenate(errors) ** 2))
        half = np.maximum(half, float(ndtri((1 + each) / 2)) * np.sqrt(stated * share))
    return half if dof or goal.score_error is not None else np.full(points, np.inf)
