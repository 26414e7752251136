r"""Which responses a batch counts, and what a log calls a gradient norm.

    kept = kept_share x generated,   responses = G x groups,   rollout batch = mini-batch x M/E

A noise scale counts as its batch does: in generated responses it is the kept one over the kept share.

A logged norm may be

* that of one update: what the estimators take;
* the MEAN over the M updates of a rollout step (verl): (mean |g|)^2 = E|g|^2/(1 + cv^2), low by 4 % at a
  coefficient of variation of .2 and by 20 % at .5, and by another factor where M differs;
* that of the LAST update of the rollout step: one of M, the one with the stalest data;
* taken AFTER CLIPPING: min(|g|, clip), a lower bound wherever it equals the clip value.

`read_norms` turns each into norms whose square is E|g_B|^2 at the batch of ONE update, or refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchsim.learning.noise_scale.estimate import LEVEL, ROUNDING, NoiseScale, not_identified
from batchsim.learning.noise_scale.norms import from_logged_norms

KINDS = ("update", "mean", "last")
CLIPPED_LIMIT = 0.25
"""Largest share of clipped norms at which the median of resampled blocks still lies below the clip value."""
NEAR_CLIP = 3.0
"""Standard deviations below the clip value within which one of several averaged norms may have been clipped."""


def groups_to_responses(groups: ArrayLike, *, group_size: ArrayLike) -> NDArray[np.float64]:
    """G responses to a prompt group: a batch or a noise scale [groups] in [responses]."""
    return np.asarray(np.asarray(groups, dtype=np.float64) * np.asarray(group_size, dtype=np.float64))


def responses_to_groups(responses: ArrayLike, *, group_size: ArrayLike) -> NDArray[np.float64]:
    """Inverse of `groups_to_responses`."""
    return np.asarray(np.asarray(responses, dtype=np.float64) / np.asarray(group_size, dtype=np.float64))


def generated_to_kept(generated: ArrayLike, *, kept_share: ArrayLike) -> NDArray[np.float64]:
    """A batch or a noise scale in generated responses, in kept ones.

    Parameters
    ----------
    generated : array_like, any shape [responses]
    kept_share : array_like, broadcastable [1]
        Kept over generated responses, above 0 and at most 1. It drifts with accuracy: use that of the
        same window.

    Returns
    -------
    ndarray [responses]
    """
    return np.asarray(np.asarray(generated, dtype=np.float64) * _share(kept_share))


def kept_to_generated(kept: ArrayLike, *, kept_share: ArrayLike) -> NDArray[np.float64]:
    """Inverse of `generated_to_kept`."""
    return np.asarray(np.asarray(kept, dtype=np.float64) / _share(kept_share))


def _share(kept_share: ArrayLike) -> NDArray[np.float64]:
    share = np.asarray(kept_share, dtype=np.float64)
    if np.any(~((share > 0) & (share <= 1))):
        raise ValueError(f"kept_share {share} must be above 0 and at most 1: kept responses over generated ones")
    return share


def mini_batch(
    rollout_batch: ArrayLike, *, updates_per_rollout: ArrayLike, epochs: ArrayLike = 1
) -> NDArray[np.float64]:
    """Responses per update of a rollout batch: train_batch = rollout_batch E/M.

    Parameters
    ----------
    rollout_batch : array_like, any shape [responses]
    updates_per_rollout : array_like, broadcastable [1]
        M over all passes.
    epochs : array_like, broadcastable [1]
        E passes.

    Returns
    -------
    ndarray [responses]
    """
    b, m, e = (np.asarray(x, dtype=np.float64) for x in (rollout_batch, updates_per_rollout, epochs))
    return np.asarray(b * e / m)


def rollout_batch(
    train_batch: ArrayLike, *, updates_per_rollout: ArrayLike, epochs: ArrayLike = 1
) -> NDArray[np.float64]:
    """Inverse of `mini_batch`."""
    b, m, e = (np.asarray(x, dtype=np.float64) for x in (train_batch, updates_per_rollout, epochs))
    return np.asarray(b * m / e)


def mean_norm_bias(variation: ArrayLike) -> NDArray[np.float64]:
    """(mean |g|)^2 over E|g|^2 = 1/(1 + cv^2) [1], for the norm's coefficient of variation cv [1]."""
    return np.asarray(1 / (1 + np.asarray(variation, dtype=np.float64) ** 2))


@dataclass(frozen=True, kw_only=True)
class LoggedNorms:
    """Norms of one run as the estimators take them.

    Parameters
    ----------
    norms : ndarray, (rollout_step,)
        Their squares estimate E|g_B|^2; NaN where the log has none. Empty if refused.
    kind : {'update', 'mean', 'last'}
    clipped_share : float [1]
        Share of norms that are at the clip value, or may hold one that is.
    variation : float [1]
        Coefficient of variation of one update's norm that a mean was corrected with; NaN otherwise.
    identified : bool
    message : str
        What was read, or why it was refused and what to log.
    """

    norms: NDArray[np.float64]
    kind: str
    clipped_share: float
    variation: float
    identified: bool
    message: str


def read_norms(
    norms: ArrayLike,
    *,
    kind: str = "update",
    updates_per_rollout: int = 1,
    variation: float | None = None,
    clip: float | None = None,
    pre_clip: bool | None = None,
    clipped_limit: float = CLIPPED_LIMIT,
) -> LoggedNorms:
    """Norms as logged, turned into those of single updates or refused.

    Parameters
    ----------
    norms : array_like, (rollout_step,)
        As logged.
    kind : {'update', 'mean', 'last'}
        Of one update, the mean over a rollout step's updates, or its last update.
    updates_per_rollout : int [1]
        M.
    variation : float [1] or None
        Coefficient of variation of one update's norm within a rollout step, for kind 'mean'. If None it is
        taken from successive means, cv^2 = M Var(mean)/mean^2, as if the updates of a rollout step were
        independent; what they share makes it too large.
    clip : float or None
        Gradient clip of the run; None if it has none.
    pre_clip : bool or None
        Whether the log holds norms before clipping. None: judged by whether any exceeds the clip value.
    clipped_limit : float [1]
        Share of clipped norms above which they are refused. Up to it the median that
        `from_logged_norms` uses is below the clip value and unchanged. Means of squares are not: chunk
        norms need norms before clipping.

    Returns
    -------
    LoggedNorms

    Raises
    ------
    ValueError
        For an unknown kind, or a clip value or M that is not positive.
    """
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r} is none of {', '.join(KINDS)}")
    if updates_per_rollout < 1 or (clip is not None and not clip > 0):
        raise ValueError(f"updates_per_rollout {updates_per_rollout} and clip {clip} must be positive")
    values = np.array(norms, dtype=np.float64)
    finite = values[np.isfinite(values) & (values > 0)]
    several = kind == "mean" and updates_per_rollout > 1
    cv = float("nan")
    if several:
        cv = _variation(finite, updates_per_rollout) if variation is None else float(variation)
    share = 0.0
    if clip is not None and finite.size:
        above = bool(np.any(finite > clip * (1 + ROUNDING)))
        if pre_clip is False and above:
            return _refused(
                f"norms up to {finite.max():.3g} exceed the clip value {clip:g}: these are norms before clipping, "
                "or the clip value is another",
                kind,
                float("nan"),
            )
        if not (above if pre_clip is None else pre_clip):
            # The mean of M norms of which one may be clipped tells by how near it comes; below clip/M none was.
            edge = clip * (1 - ROUNDING)
            if several:
                edge = max(clip / updates_per_rollout, clip / (1 + NEAR_CLIP * (0.0 if np.isnan(cv) else cv)))
            share = float(np.mean(finite >= min(edge, clip * (1 - ROUNDING))))
    if share > clipped_limit:
        return _refused(
            f"{100 * share:.0f} % of the norms are at the clip value {clip:g}{' or too near it' if several else ''}: "
            "lower bounds, not norms; not identified. Log the norm before clipping",
            kind,
            share,
        )
    if several and np.isnan(cv):
        return _refused(
            f"{finite.size} mean norm(s) do not show how much one update's norm varies; log the norm of each update, "
            "or the mean of squares",
            kind,
            share,
        )
    said = {
        "update": "norms of single updates",
        "mean": "mean norms of rollout steps",
        "last": f"norms of the last of {updates_per_rollout} updates per rollout step",
    }[kind]
    if several:
        values = values * np.sqrt(1 + cv**2)
        said += f", raised by {100 * (np.sqrt(1 + cv**2) - 1):.2g} % to root mean squares (cv {cv:.2g})"
    if share:
        said += f"; {100 * share:.0f} % at the clip value, which the median does not feel"
    return LoggedNorms(norms=values, kind=kind, clipped_share=share, variation=cv, identified=True, message=said)


def from_described_norms(
    train_batch: ArrayLike, runs: Sequence[LoggedNorms], *, level: float = LEVEL, window: str = "whole runs"
) -> NoiseScale:
    """`from_logged_norms` of runs whose norms were read by `read_norms`.

    Parameters
    ----------
    train_batch : array_like, (run,) [responses]
        Responses per UPDATE, also where the log has one norm per rollout step (`mini_batch`).
    runs : sequence of LoggedNorms, (run,)
    level : float [1]
    window : str

    Returns
    -------
    NoiseScale
        Not identified if any run was refused: a batch left out or censored would bend the line on 1/B.
    """
    for run in runs:
        if not run.identified:
            return not_identified(run.message, method="logged norms", window=window, level=level)
    return from_logged_norms(train_batch, [run.norms for run in runs], level=level, window=window)


def _variation(means: NDArray[np.float64], updates: int) -> float:
    """Of one norm, from half the mean square of successive differences of means: a trend does not enter."""
    if means.size < 3:
        return float("nan")
    return float(np.sqrt(updates * np.mean(np.diff(means) ** 2) / 2) / means.mean())


def _refused(message: str, kind: str, share: float) -> LoggedNorms:
    return LoggedNorms(
        norms=np.array([]), kind=kind, clipped_share=share, variation=float("nan"), identified=False, message=message
    )
