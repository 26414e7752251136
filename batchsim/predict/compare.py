"""Predictions beside measurements that the model did not read, or that it was fitted to."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.special import ndtri

from batchsim.measure import RULE_TOLERANCE

COMPARED = {
    "time_ratio": "time_ratio",
    "sample_cost_ratio": "sample_cost_ratio",
    "throughput_ratio": "throughput_ratio",
    "step_time_law": "step_seconds",
}
"""Predicted quantities and the measured ones they are compared with."""

Triple = tuple[float, float, float]
Measured = dict[float, dict[str, Triple]]


def matching_arms(ds: xr.Dataset) -> xr.Dataset | None:
    """Measured arms that the prediction speaks of: its reference, group size and learning rates.

    Parameters
    ----------
    ds : xarray.Dataset
        From `predict`.

    Returns
    -------
    xarray.Dataset or None
        Of `measure`, dims (arm, bound); None without runs, or if none of them ran the reference.
    """
    if ds.attrs["measured"] is None:
        return None
    arms: xr.Dataset = ds.attrs["measured"]["arms"].to_dataset()
    if not arms.attrs["is_asked"]:
        return None
    rates = dict(zip(ds["train_batch"].values.tolist(), ds["learning_rate"].values.tolist(), strict=True))
    predicted = np.array([rates.get(float(b), np.nan) for b in arms["train_batch"].values])
    apart = np.abs(arms["learning_rate"].values / predicted - 1) > RULE_TOLERANCE
    group = arms["group_size"].values
    other_group = np.isfinite(group) & (group != ds.attrs["group_size"])
    # An unknown rate on either side is no reason to leave a measurement out.
    return arms.isel(arm=np.flatnonzero(~apart & ~other_group))


def _measured_rows(ds: xr.Dataset) -> Measured:
    arms = matching_arms(ds)
    if arms is None:
        return {}
    rows: Measured = {}
    for i, b in enumerate(arms["train_batch"].values):
        arm = arms.isel(arm=i)
        seconds = float(arm["step_seconds"])
        # The forecast speaks of steady steps, so it is compared with the ratio of their means; where no step is
        # timed, with the ratio over the whole stretch.
        reference = arms.isel(arm=int(np.flatnonzero(arms["train_batch"].values == ds.attrs["reference_batch"])[0]))
        q = float(arm["rollout_batch"] / reference["rollout_batch"]) * float(reference["step_seconds"]) / seconds
        q = q if math.isfinite(q) else float(arm["throughput_ratio"])
        half = float(ndtri((1 + ds.attrs["level"]) / 2) * arm["throughput_ratio_se"])
        rows[float(b)] = {name: _triple(arm[name].values) for name in ("time_ratio", "sample_cost_ratio")} | {
            "throughput_ratio": (q - half, q, q + half),
            "step_seconds": (math.nan, seconds, math.nan),
        }
    return rows


def _triple(values: NDArray[np.float64]) -> Triple:
    low, middle, high = (float(v) for v in values)
    return low, middle, high


def compare(ds: xr.Dataset, rows: Measured | None = None) -> list[dict[str, Any]]:
    """Predictions beside measurements.

    Parameters
    ----------
    ds : xarray.Dataset
        From `predict`.
    rows : dict or None
        Train batch to quantity to (low, estimate, high), from elsewhere, limits NaN where unknown; the
        prediction's own runs (`matching_arms`) if None.

    Returns
    -------
    list of dict
        Keys claim, train_batch, predicted, interval, measured, measured_interval, error
        (predicted/measured - 1), covered (the interval holds the measured estimate) and held_out (the batch
        was kept from the calibration).
    """
    rows = _measured_rows(ds) if rows is None else rows
    reference = ds.attrs["reference_batch"]
    compared = []
    for b, values in sorted(rows.items()):
        if b in ds["train_batch"].values and b != reference:
            row = ds.sel(train_batch=b)
            compared += [
                _comparison(row, name, values[source], ds.attrs)
                for name, source in COMPARED.items()
                if source in values
            ]
    return [c for c in compared if c is not None]


def _comparison(row: xr.Dataset, name: str, measured: Triple, attrs: dict[str, Any]) -> dict[str, Any] | None:
    """One quantity at one batch; None where either side is unknown."""
    drawn = row[name].values
    if name != "step_time_law":
        tail = (1 - attrs["level"]) / 2
        drawn = np.quantile(drawn, [tail, 0.5, 1 - tail], method="nearest")
    low, predicted, high = _triple(drawn)
    if not (math.isfinite(predicted) and math.isfinite(measured[1])):
        return None
    b = float(row["train_batch"])
    return {
        "claim": name,
        "train_batch": b,
        "predicted": predicted,
        "interval": [low, high],
        "measured": measured[1],
        "measured_interval": [measured[0], measured[2]],
        "error": predicted / measured[1] - 1,
        "covered": low <= measured[1] <= high,
        "held_out": b not in attrs["calibrated_on"],
    }
