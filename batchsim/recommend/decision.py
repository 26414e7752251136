r"""The batch to run, and the sentences that justify it.

The batch to run is the star, the smallest of the effective range whose median time is within 5 % of the least. Where no
batch is within 5 % of the best with probability 1/2 there is no star, and whoever must run now takes the least expected
regret, E[T/T_best] - 1, of which sentences then say how large it is.

Sentences answer, in this order: what is gained and from which side of r_q > r_N, how sure that is, why not the next
smaller and the next larger batch, and what would make the answer surer. Each states numbers of the forecast; none adds
a claim of its own.

References
----------
.. [1] Li et al. 2026, arXiv:2608.29296 (the star: smallest batch on the near-optimal plateau).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from batchsim.recommend.next_run import KNOWN, expected_regret
from batchsim.time_to_target import p_near_best

if TYPE_CHECKING:
    import xarray as xr

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The batch to run.

    Parameters
    ----------
    train_batch : float [responses]
    is_star : bool
        False where there is no star, and the least expected regret decides.
    p_near_best : float [1]
        Probability that it is within 5 % of the best candidate.
    expected_regret : float [1]
        E[T/T_best] - 1.
    is_known : bool
        Some batch is within 5 % of the best with probability .9: no further run is needed to choose.
    sentences : tuple of str
    """

    train_batch: float
    is_star: bool
    p_near_best: float
    expected_regret: float
    is_known: bool
    sentences: tuple[str, ...]


def decide(ds: xr.Dataset) -> Decision:
    """The batch to run, from a forecast.

    Parameters
    ----------
    ds : xarray.Dataset
        From `predict.predict`: time_ratio, sample_cost_ratio, throughput_ratio over (draw, train_batch), and attributes
        reference_batch, star, next_run, lr_rule.

    Returns
    -------
    Decision

    Examples
    --------
    >>> import xarray as xr
    >>> one = np.ones((10, 1))
    >>> names = ("time_ratio", "sample_cost_ratio", "throughput_ratio")
    >>> ds = xr.Dataset(
    ...     {name: (("draw", "train_batch"), one * [1.0, ratio]) for name, ratio in zip(names, (0.5, 1.2, 2.4))},
    ...     coords={"train_batch": [256.0, 512.0]},
    ...     attrs={"reference_batch": 256.0, "star": 512.0, "next_run": None, "lr_rule": "sqrt"},
    ... )
    >>> decide(ds).sentences[0]
    'Run B = 512: T/T0 = 0.50, since r_q = 2.40 exceeds r_N = 1.20 under the rule sqrt.'
    """
    batches = ds["train_batch"].values
    tau = np.asarray(ds["time_ratio"].values, dtype=np.float64)
    regret, near = expected_regret(tau), p_near_best(tau)
    star = ds.attrs["star"]
    at = int(np.argmin(regret)) if star is None else int(np.flatnonzero(batches == star)[0])
    if near.max() == 0:
        # Regret is over the best candidate, and here there is none.
        said = ["Training diverges at every candidate, in every draw: ask for a lower learning rate or other batches."]
    else:
        said = [_gain(ds, at), _sureness(batches, near, regret, at, star is not None), *_neighbours(ds, at)]
    said.append(_next(ds, near, batches))
    return Decision(
        train_batch=float(batches[at]),
        is_star=star is not None,
        p_near_best=float(near[at]),
        expected_regret=float(regret[at]),
        is_known=bool(near.max() >= KNOWN),
        sentences=tuple(said),
    )


def _medians(ds: xr.Dataset, at: int) -> tuple[float, float, float]:
    """Medians of T/T_0, r_N and r_q at a candidate."""
    names = ("time_ratio", "sample_cost_ratio", "throughput_ratio")
    # An order statistic, so that infinity may be one.
    t, n, q = (float(np.quantile(ds[name].values[:, at], 0.5, method="nearest")) for name in names)
    return t, n, q


def _gain(ds: xr.Dataset, at: int) -> str:
    batch, reference = float(ds["train_batch"].values[at]), float(ds.attrs["reference_batch"])
    if batch == reference:
        return f"Keep B = {batch:g}, the reference."
    t, n, q = _medians(ds, at)
    how = "exceeds" if q > n else "stays below"
    rule = ds.attrs["lr_rule"]
    return f"Run B = {batch:g}: T/T0 = {t:.2f}, since r_q = {q:.2f} {how} r_N = {n:.2f} under the rule {rule}."


def _sureness(batches: Floats, near: Floats, regret: Floats, at: int, is_star: bool) -> str:
    sure = (
        f"it is within 5 % of the best with probability {near[at]:.2f}, and is expected to cost "
        f"{100 * regret[at]:.1f} % more"
    )
    if is_star:
        other = int(np.argmin(regret))
        cheaper = "" if other == at else f" (B = {batches[other]:g}: {100 * regret[other]:.1f} %)"
        return f"Of the candidates {sure} than the best of them{cheaper}."
    return (
        f"No batch is within 5 % of the best with probability 1/2; of all, this one loses least: {sure} than the best."
    )


def _neighbours(ds: xr.Dataset, at: int) -> list[str]:
    """Why not half and why not twice: which side of the criterion each loses on."""
    batches = ds["train_batch"].values
    t, n, q = _medians(ds, at)
    said = []
    for other in (at - 1, at + 1):
        if not 0 <= other < batches.size:
            continue
        t_other, n_other, q_other = _medians(ds, other)
        if not np.isfinite(t_other):
            said.append(f"B = {batches[other]:g} diverges in the median draw.")
            continue
        change, cost, speed = t_other / t - 1, n_other / n, q_other / q
        verb = f"takes {100 * change:.0f} % longer" if change >= 0 else f"saves {-100 * change:.0f} %"
        said.append(
            f"B = {batches[other]:g} {verb}: {speed:.2f} times the throughput for {cost:.2f} times the responses."
        )
    return said


def _next(ds: xr.Dataset, near: Floats, batches: Floats) -> str:
    best = int(np.argmax(near))
    if near[best] >= KNOWN:
        return f"The best is known: B = {batches[best]:g} is within 5 % of it with probability {near[best]:.2f}."
    proposed = ds.attrs["next_run"]
    if proposed is None:
        return (
            "The best is not known to 5 %, and no further run is expected to shorten the chosen one by half a percent."
        )
    absolute = [ds[name].values for name in ("responses_to_target", "time_to_target") if name in ds]
    lacks = bool(absolute) and all(np.isnan(values).all() for values in absolute)
    beside = ", read beside a run of the reference that reaches the target," if lacks else ""
    return (
        f"Next run worth measuring: B = {proposed['train_batch']:g}; it{beside} is expected to shorten the chosen run "
        f"by {100 * proposed['gain']:.1f} % of T0."
    )
