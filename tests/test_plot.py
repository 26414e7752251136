"""Plots, tested on the plotted data."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from test_measure import invented, sweep

from batchsim.plan import plan_from_dict
from batchsim.plot import batch_axis, plot_time_to_target
from batchsim.predict import matching_arms, predict

RECIPE = {"prompts": 32, "group_size": 8, "learning_rate": 1e-6, "lr_rule": "sqrt"}
LEARNING = {"noise_scale": [500, 4000]}


@pytest.fixture(scope="module")
def ds() -> xr.Dataset:
    return predict(plan_from_dict({"recipe": RECIPE, "learning": LEARNING}), level=0.7)


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> xr.Dataset:
    tree = invented(tmp_path_factory.mktemp("runs"), *sweep())
    return predict(tree, target=0.5, pilot_batches=(128, 256))


def fresh() -> Axes:
    return Figure().subplots()


def quantiles(ds: xr.Dataset) -> np.ndarray[Any, np.dtype[np.float64]]:
    tail = (1 - ds.attrs["level"]) / 2
    return np.asarray(np.quantile(ds["time_ratio"].values, [tail, 0.5, 1 - tail], axis=0, method="nearest"))


def line(ax: Axes, label: str) -> Line2D:
    (found,) = (one for one in ax.get_lines() if str(one.get_label()).startswith(label))
    return found


def points(ax: Axes) -> set[tuple[float, float]]:
    """Every point of every line, to nine digits."""
    drawn = (np.column_stack([np.asarray(one.get_xdata()), np.asarray(one.get_ydata())]) for one in ax.get_lines())
    return {(float(f"{x:.9g}"), float(f"{y:.9g}")) for part in drawn for x, y in part}


def rounded(x: float, y: float) -> tuple[float, float]:
    return float(f"{x:.9g}"), float(f"{y:.9g}")


def test_median_and_band_are_the_quantiles_of_the_draws(ds: xr.Dataset) -> None:
    ax = plot_time_to_target(ds, ax=fresh())
    low, middle, high = quantiles(ds)
    median = line(ax, "predicted, median")
    assert np.asarray(median.get_xdata()) == pytest.approx(ds["train_batch"].values)
    ceiling = 1.001 * ax.get_ylim()[1]
    drawn = np.asarray(median.get_ydata())
    shown = middle < ceiling
    assert shown.sum() >= 5
    assert drawn[shown] == pytest.approx(middle[shown])
    (band,) = (c for c in ax.collections if isinstance(c, PolyCollection))
    assert "70 %" in str(band.get_label())
    corners = np.concatenate([path.vertices for path in band.get_paths()])
    for b, lo, hi in zip(ds["train_batch"].values, low, high, strict=True):
        at = np.asarray(corners)[np.isclose(corners[:, 0], b)][:, 1]
        assert at.min() == pytest.approx(lo)
        if hi < ceiling:
            assert at.max() == pytest.approx(hi)
        else:
            assert at.max() >= ceiling


def test_star_stands_at_the_star(ds: xr.Dataset) -> None:
    ax = plot_time_to_target(ds, ax=fresh())
    (star,) = (one for one in ax.get_lines() if one.get_marker() == "*")
    at = int(np.flatnonzero(ds["train_batch"].values == ds.attrs["star"])[0])
    assert float(np.asarray(star.get_xdata())[0]) == ds.attrs["star"]
    assert float(np.asarray(star.get_ydata())[0]) == pytest.approx(quantiles(ds)[1, at])
    assert f"{ds.attrs['star']:g}" in str(star.get_label())


def test_effective_range_is_shaded_over_its_batches_only(ds: xr.Dataset) -> None:
    ax = plot_time_to_target(ds, ax=fresh())
    (span,) = (p for p in ax.patches if "effective range" in str(p.get_label()))
    box = span.get_path().get_extents(span.get_patch_transform())
    low, high = ds.attrs["effective_range"]
    inside = (ds["train_batch"].values >= low) & (ds["train_batch"].values <= high)
    covered = (ds["train_batch"].values > box.x0) & (ds["train_batch"].values < box.x1)
    assert (covered == inside).all()


def test_measured_arms_are_drawn_where_they_were_measured(beside: xr.Dataset) -> None:
    ax = plot_time_to_target(beside, ax=fresh())
    arms = matching_arms(beside)
    assert arms is not None
    measured = arms["time_ratio"].sel(bound="estimate").values
    assert np.isfinite(measured).sum() == 3
    drawn = points(ax)
    for b, t in zip(arms["train_batch"].values, measured, strict=True):
        assert rounded(float(b), float(t)) in drawn
    labels = " ".join(str(handle.get_text()) for handle in (ax.get_legend() or ax.legend()).get_texts())
    assert "measured" in labels


def test_points_from_elsewhere_are_drawn_as_given(ds: xr.Dataset) -> None:
    given = [(512.0, 0.7, 0.8, 0.95), (1024.0, math.nan, 0.77, math.nan)]
    ax = plot_time_to_target(ds, measured=given, ax=fresh())
    drawn = points(ax)
    for b, _, estimate, _ in given:
        assert rounded(b, estimate) in drawn
    # The error bar of the first reaches from .7 to .95.
    bars = [s for c in ax.collections if hasattr(c, "get_segments") for s in c.get_segments()]
    ends = [(s[0, 0], sorted(s[:, 1])) for s in bars if len(s) == 2]
    assert any(x == 512 and y == pytest.approx([0.7, 0.95]) for x, y in ends)
    assert not points(plot_time_to_target(ds, measured=[], ax=fresh())) & {rounded(512, 0.8), rounded(1024, 0.77)}


def test_axes_given_are_the_axes_returned(ds: xr.Dataset) -> None:
    ax = fresh()
    assert plot_time_to_target(ds, ax=ax) is ax
    other = plot_time_to_target(ds)
    assert isinstance(other, Axes)
    assert other is not ax


def test_labels_name_the_rule_the_reference_and_the_units(ds: xr.Dataset) -> None:
    ax = plot_time_to_target(ds, ax=fresh())
    assert "sqrt" in ax.get_xlabel()
    assert "responses" in ax.get_xlabel()
    assert "256" in ax.get_ylabel()
    assert ax.get_xscale() == "log"
    assert [t.get_text() for t in ax.get_xticklabels()] == [f"{b:g}" for b in ds["train_batch"].values]


def test_a_diverging_prediction_is_drawn_without_infinities() -> None:
    plan = plan_from_dict(
        {
            "recipe": RECIPE | {"lr_rule": "linear", "batches": [256, 16384, 32768]},
            "learning": {
                "noise_scale": 1e6,
                "snr_shape": "drift",
                "lr_fraction": 0.9,
                "penalty_shape": -1,
                "curvature_ratio": 1,
            },
        }
    )
    ds = predict(plan)
    assert np.isposinf(ds["time_ratio"].values[:, 1:]).all()
    ax = plot_time_to_target(ds, ax=fresh())
    assert np.isfinite(ax.get_ylim()).all()
    assert ax.get_ylim()[1] < 10


def test_a_prediction_in_which_everything_diverges_can_be_drawn(tmp_path: Path) -> None:
    plan = plan_from_dict(
        {
            "recipe": RECIPE | {"lr_rule": "linear", "batches": [16384, 32768]},
            "learning": {
                "noise_scale": 1e6,
                "snr_shape": "drift",
                "lr_fraction": 0.9,
                "penalty_shape": -1,
                "curvature_ratio": 1,
            },
        }
    )
    ax = plot_time_to_target(predict(plan), ax=fresh())
    assert np.isfinite(ax.get_ylim()).all()
    assert not [one for one in ax.get_lines() if one.get_marker() == "*"]


def test_the_plot_can_be_saved_without_pyplot(tmp_path: Path) -> None:
    """pyplot keeps figures alive and picks a display; neither belongs into a library."""
    script = (
        "import sys; from batchsim import predict, plot_time_to_target; from batchsim.plan import plan_from_dict\n"
        f"ds = predict(plan_from_dict({{'recipe': {RECIPE!r}}}), draws=50)\n"
        f"plot_time_to_target(ds).figure.savefig({str(tmp_path / 'p.png')!r})\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_axis_of_batches() -> None:
    ax = fresh()
    batch_axis(ax, [128, 256, 16384])
    assert ax.get_xscale() == "log"
    assert [t.get_text() for t in ax.get_xticklabels()] == ["128", "256", "16384"]
    assert ax.xaxis.get_ticklocs(minor=True).size == 0
