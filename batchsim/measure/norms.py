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


def until_target(nodes: dict[str, xr.Dataset], runs: xr.Dataset) -> tuple[dict[str, xr.Dataset], bool]:
    """Runs cut where they reached the target: the noise scale that N* depends on is the one up to there.

    Parameters
    ----------
    nodes : dict of str to xarray.Dataset
        Runs as `read_logs` returns them.
    runs : xarray.Dataset
        Of `measure`, with responses_to_target over (run, bound).

    Returns
    -------
    nodes, cut : dict of str to xarray.Dataset, bool
        Whether any step was left out.
    """
    end = dict(zip(runs["run"].values.tolist(), runs["responses_to_target"].sel(bound="high").values, strict=True))
    kept = {
        name: ds.isel(rollout_step=np.flatnonzero(~(ds["responses"].values > end[name]))) if end[name] > 0 else ds
        for name, ds in nodes.items()
    }
    return kept, any(kept[name].sizes["rollout_step"] < ds.sizes["rollout_step"] for name, ds in nodes.items())


def measure_noise_scale(nodes: dict[str, xr.Dataset], *, level: float, window: str = "whole runs") -> list[NoiseScale]:
    """Noise-scale estimates that the logs' norms allow, one per method and window.

    Parameters
    ----------
    nodes : dict of str to xarray.Dataset
        Runs as `read_logs` returns them.
    level : float [1]
        Coverage of the limits.
    window : str
        What the runs span, for the message.

    Returns
    -------
    list of NoiseScale
        From chunk norms where they are logged; from logged norms over the runs and, with two or more
        batches, over the responses that all of them share. Empty without any norm.
    """
    estimates = []
    chunked = [ds for ds in nodes.values() if "sq_norm_chunk" in ds and "chunks" in ds.attrs]
    if chunked:
        responses = [float(ds["responses"].values[-1]) for ds in chunked]
        estimates.append(combine([_chunk_estimate(ds, level, window) for ds in chunked], responses))
    normed = {name: ds for name, ds in nodes.items() if "grad_norm" in ds}
    normed = {name: ds for name, ds in normed.items() if ds.sizes["rollout_step"]}
    if normed:
        batches = [ds.attrs["train_batch"] for ds in normed.values()]
        whole = [ds["grad_norm"].values[2:] for ds in normed.values()]
        estimates.append(from_logged_norms(batches, whole, level=level, window=window))
        if len(set(batches)) > 1:
            # The first update of the largest batch spans the start of training, which smaller
            # batches have left behind several updates later.
            start = 1.5 * max(batches)
            # A run reaches as far as its last evaluation, also where its last step logs no norm.
            stop = min(
                max(float(ds["responses"].values.max()), *ds["evaluation_responses"].values.tolist(), 0.0)
                for ds in normed.values()
            )
            shared = [_between(ds, start, stop) for ds in normed.values()]
            common = f"responses {start:.0f} to {stop:.0f} of every run"
            estimates.append(from_logged_norms(batches, shared, level=level, window=common))
    return estimates


def _chunk_estimate(ds: xr.Dataset, level: float, window: str) -> NoiseScale:
    return from_chunk_norms(
        ds.attrs["train_batch"],
        int(ds.attrs["chunks"]),
        ds["sq_norm_chunk"].values,
        ds["sq_norm_batch"].values,
        level=level,
        window=window,
    )


def _between(ds: xr.Dataset, start: float, stop: float) -> Floats:
    inside = (ds["responses"].values >= start) & (ds["responses"].values <= stop)
    return np.asarray(ds["grad_norm"].values[inside], dtype=np.float64)


def noise_scales_to_target(
    nodes: dict[str, xr.Dataset], runs: xr.Dataset, group_size: int | None, *, level: float
) -> list[NoiseScale]:
    """Noise-scale estimates of the runs of one group size, up to where they reached the target.

    Parameters
    ----------
    nodes : dict of str to xarray.Dataset
    runs : xarray.Dataset
        Of `measure`.
    group_size : int or None [responses/prompt]
    level : float [1]

    Returns
    -------
    list of NoiseScale
    """
    kept, cut = until_target(same_group(nodes, group_size), runs)
    return measure_noise_scale(kept, level=level, window="runs up to the target" if cut else "whole runs")
