"""The noise scale that logged norms allow, per method and window."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from batchsim.learning.noise_scale import NoiseScale, combine, from_chunk_norms, from_logged_norms

Floats = NDArray[np.float64]


def noise_scale_record(estimate: NoiseScale) -> dict[str, Any]:
    """A noise scale as plain numbers, None for what is unbounded or unknown."""
    record = asdict(estimate)
    record.pop("covariance")
    return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in record.items()}


def same_group(nodes: dict[str, xr.Dataset], group_size: int | None) -> dict[str, xr.Dataset]:
    """Runs with a group size, or with none stated.

    A prompt group is GRPO's independent unit, so runs with another group size are another experiment.

    Parameters
    ----------
    nodes : dict of str to xarray.Dataset
        Runs as `read_logs` returns them.
    group_size : int or None [responses/prompt]
        All runs if None.

    Returns
    -------
    dict of str to xarray.Dataset
    """
    if group_size is None:
        return nodes
    return {name: ds for name, ds in nodes.items() if ds.attrs.get("group_size", group_size) == group_size}


def measure_noise_scale(nodes: dict[str, xr.Dataset], *, level: float) -> list[NoiseScale]:
    """Noise-scale estimates that the logs' norms allow, one per method and window.

    Parameters
    ----------
    nodes : dict of str to xarray.Dataset
        Runs as `read_logs` returns them.
    level : float [1]
        Coverage of the limits.

    Returns
    -------
    list of NoiseScale
        From chunk norms where they are logged; from logged norms over whole runs and, with two or more
        batches, over the responses that all runs share. Empty without any norm.
    """
    estimates = []
    chunked = [ds for ds in nodes.values() if "sq_norm_chunk" in ds and "chunks" in ds.attrs]
    if chunked:
        responses = [float(ds["responses"].values[-1]) for ds in chunked]
        estimates.append(combine([_chunk_estimate(ds, level) for ds in chunked], responses))
    normed = {name: ds for name, ds in nodes.items() if "grad_norm" in ds}
    if normed:
        batches = [ds.attrs["train_batch"] for ds in normed.values()]
        whole = [ds["grad_norm"].values[2:] for ds in normed.values()]
        estimates.append(from_logged_norms(batches, whole, level=level))
        if len(set(batches)) > 1:
            # The first update of the largest batch spans the start of training, which smaller
            # batches have left behind several updates later.
            start = 1.5 * max(batches)
            stop = min(float(ds["responses"].max()) for ds in normed.values())
            shared = [_between(ds, start, stop) for ds in normed.values()]
            window = f"responses {start:.0f} to {stop:.0f} of every run"
            estimates.append(from_logged_norms(batches, shared, level=level, window=window))
    return estimates


def _chunk_estimate(ds: xr.Dataset, level: float) -> NoiseScale:
    return from_chunk_norms(
        ds.attrs["train_batch"],
        int(ds.attrs["chunks"]),
        ds["sq_norm_chunk"].values,
        ds["sq_norm_batch"].values,
        level=level,
    )


def _between(ds: xr.Dataset, start: float, stop: float) -> Floats:
    inside = (ds["responses"].values >= start) & (ds["responses"].values <= stop)
    return np.asarray(ds["grad_norm"].values[inside], dtype=np.float64)
