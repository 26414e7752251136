"""What the validations of whole forecasts share: rows, scores, and what each further pilot buys.

A forecast is made by `predict.predict` from some pilots, as a user makes it, and held against batches that it did not
see. A row is one quantity at one batch. Its error is log(predicted/measured) in the scores, so that a factor of two
counts alike in both directions, and predicted/measured - 1 in the row. "Covered" asks whether the interval holds the
measured estimate; `measured_interval` is the measurement's own error, which coverage does not forgive.

A rung is one forecast on the ladder from nothing measured to every batch measured: the same quantity at the same batch
with one pilot more. What a pilot buys is how much nearer and how much narrower the next rung is: `width` is the ratio
of the interval's ends. A forecast says what it rests on (`sources`), and how much of that is prior is part of a rung.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from batchsim.errors import InputError
from batchsim.logs import read_logs
from batchsim.validate.data import data_folder

QUANTITIES = {"sample_cost_ratio": "r_N", "throughput_ratio": "r_q", "time_ratio": "T/T0"}
"""Ratios that every forecast has, and how they are printed."""
Progress = Callable[[str], object]
Interval = tuple[float, float]


def silent(stage: str) -> None:
    """No progress."""


def runs_of(data: Path | None, name: str, **given: Any) -> tuple[xr.DataTree | None, list[str]]:
    """Runs of a folder of measured data, or why there are none.

    Parameters
    ----------
    data : Path or None
        Folder of measured data; else BATCHSIM_DATA or the folder beside a checkout.
    name : str
        Of the folder in it.
    **given
        Of `logs.read_logs`.

    Returns
    -------
    runs : xarray.DataTree or None
    skipped : list of str

    Raises
    ------
    InputError
        For a named folder that does not exist.
    """
    folder = data_folder(data)
    if folder is None:
        return None, [f"{name}: no folder of measured data; give --data"]
    if not (folder / name).is_dir():
        return None, [f"{name}: {folder / name} is absent; give --data"]
    return read_logs(folder / name, **given), []


def quantiles(draws: ArrayLike, level: float) -> tuple[float, float, float]:
    """Median and central interval of draws, as `predict` prints them.

    Parameters
    ----------
    draws : array_like, (draw,)
    level : float [1]

    Returns
    -------
    low, median, high : float
    """
    tail = (1 - level) / 2
    low, middle, high = np.quantile(np.asarray(draws), [tail, 0.5, 1 - tail], method="nearest")
    return float(low), float(middle), float(high)


def finite(value: float | None) -> float | None:
    """The value, None where it is unknown or without limit."""
    return None if value is None or not math.isfinite(value) else float(value)


def make_row(
    claim: str,
    *,
    predicted: float,
    interval: Interval | None,
    measured: float | None,
    measured_interval: Sequence[float | None] | None = None,
    peer: float | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A row of a validation.

    Parameters
    ----------
    claim : str
    predicted : float
    interval : (float, float) or None
        None where nothing says how far off it may be.
    measured : float or None
        None where measurements only bound it: then neither error nor coverage exists.
    measured_interval : sequence of float or None
        Its own limits.
    peer : float or None
        What a plainer rule says.
    **more
        Further keys.

    Returns
    -------
    dict
    """
    measured = finite(measured)
    known = measured is not None and math.isfinite(predicted)
    return {
        "claim": claim,
        "predicted": finite(predicted),
        "interval": None if interval is None else [finite(v) for v in interval],
        "measured": measured,
        "error": predicted / measured - 1 if known and measured is not None else None,
        "covered": None if measured is None or interval is None else bool(interval[0] <= measured <= interval[1]),
        "peer": finite(peer),
        "measured_interval": None if measured_interval is None else [finite(v) for v in measured_interval],
    } | more


def score(rows: Sequence[Mapping[str, Any]], *, level: float) -> dict[str, Any]:
    """Scores of rows.

    Parameters
    ----------
    rows : sequence of mapping
        Those that measurements only bound count for nothing.
    level : float [1]
        Of their intervals.

    Returns
    -------
    dict
        n; median_abs_error and bias of log(predicted/measured), the peer's median_abs_error on the rows that have one
        (peer_n, peer_median_abs_error); coverage; half_width, the median of half the interval over the prediction;
        level. Unknown where there is no row.
    """
    known = [row for row in rows if row["error"] is not None]
    logs = np.array([math.log1p(row["error"]) for row in known])
    theirs = [abs(math.log(row["peer"] / row["measured"])) for row in known if row["peer"]]
    bounded = [row for row in known if row["interval"] is not None]
    widths = [
        (row["interval"][1] - row["interval"][0]) / (2 * row["predicted"])
        for row in bounded
        if None not in row["interval"]
    ]
    return {
        "n": len(known),
        "median_abs_error": float(np.median(np.abs(logs))) if known else None,
        "bias": float(np.median(logs)) if known else None,
        "peer_n": len(theirs),
        "peer_median_abs_error": float(np.median(theirs)) if theirs else None,
        "coverage": float(np.mean([row["covered"] for row in bounded])) if bounded else None,
        "half_width": float(np.median(widths)) if widths else None,
        "level": level,
    }


def rungs(
    pilots: str,
    ds: xr.Dataset,
    *,
    workload: str,
    train_batch: float,
    measured: Mapping[str, float | None],
    held_out: bool = True,
) -> list[dict[str, Any]]:
    """One forecast's ratios at one batch, as rungs of a ladder.

    Parameters
    ----------
    pilots : str
        What was measured, in words.
    ds : xarray.Dataset
        Of `predict.predict`.
    workload : str
    train_batch : float [responses]
    measured : mapping of str to float or None
        Quantity to its measured value.
    held_out : bool
        The batch was not among the pilots.

    Returns
    -------
    list of dict
        Rows with pilots, workload, quantity, train_batch, width [1] (upper over lower end, None without limit),
        held_out and `prior`: parameters that rest on nothing but priors or specifications.
    """
    own = ds.sel(train_batch=train_batch)
    level = float(ds.attrs["level"])
    found = []
    for name, shown in QUANTITIES.items():
        low, middle, high = quantiles(own[name].values, level)
        row = make_row(
            f"{workload}, {shown} at B = {train_batch:g} from {pilots}",
            predicted=middle,
            interval=(low, high),
            measured=measured.get(name),
        )
        width = high / low if low > 0 and math.isfinite(high) else None
        found.append(
            row
            | {
                "workload": workload,
                "pilots": pilots,
                "quantity": name,
                "train_batch": train_batch,
                "width": width,
                "held_out": held_out,
                "prior": unmeasured(ds),
            }
        )
    return found


def unmeasured(ds: xr.Dataset) -> list[str]:
    """Parameters of a forecast that no measurement bears on, as it says itself.

    Parameters
    ----------
    ds : xarray.Dataset
        Of `predict.predict`.

    Returns
    -------
    list of str
    """
    measured_words = ("pilots", "measured", "given")
    return [
        name for name, source in ds.attrs["sources"].items() if not any(word in str(source) for word in measured_words)
    ]


def power_law(train_batch: float, *, first: tuple[float, float], second: tuple[float, float]) -> float:
    """The peer of whole forecasts: a straight line through two pilots, in the logarithms of both.

    Parameters
    ----------
    train_batch : float
        Where the line is asked.
    first, second : (float, float)
        Batch and value, all positive.

    Returns
    -------
    float

    Raises
    ------
    InputError
        If both pilots have one batch.
    """
    (a, u), (b, v) = first, second
    if a == b:
        raise InputError(f"both pilots have the batch {a:g}, and a line needs two", remedy="name two batches")
    return float(v * (train_batch / b) ** (math.log(v / u) / math.log(b / a)))
