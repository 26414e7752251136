"""Plots of results: each takes a Dataset and draws, computing nothing but quantiles.

Of a forecast: T/T_0 over the train batch with its interval, the effective range, the star, and measured batches beside
it where there are any (the paper's figure 10), and r_N. Of the system: a decode step by its parts, a rollout over time,
the stages of a step over the batch. Of a validation: predicted over measured.

References
----------
.. [1] Li et al. 2026, arXiv:2608.29296, figures 9 and 10.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from batchsim.errors import InputError
from batchsim.predict import matching_arms

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PREDICTED = "#1f5fa8"
MEASURED = "#d1661f"
RATIOS = (0.125, 0.25, 0.5, 0.67, 0.8, 1.0, 1.25, 1.5, 2.0, 4.0, 8.0)
"""Ticks of predicted over measured."""
PILOT_TICKS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0)
"""Ticks of a ratio whose interval narrows."""


def _axes(ax: Axes | None) -> Axes:
    """The given axes, or those of a new figure."""
    if ax is not None:
        return ax
    from matplotlib.figure import Figure

    return Figure(figsize=(6.4, 4.2), layout="constrained").subplots()


def batch_axis(ax: Axes, batches: ArrayLike) -> None:
    """Give the x axis a log-2 scale with the batches themselves as ticks.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
    batches : array_like, (batch,) [responses]
    """
    ticks = np.asarray(batches, dtype=np.float64)
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks, [f"{b:g}" for b in ticks])
    ax.minorticks_off()


def plot_time_to_target(
    ds: xr.Dataset, measured: Sequence[tuple[float, float, float, float]] | None = None, ax: Axes | None = None
) -> Axes:
    """Draw T/T_0 over the train batch.

    Parameters
    ----------
    ds : xarray.Dataset
        From `predict.predict`.
    measured : sequence of (train_batch, low, estimate, high) or None [responses], [1]
        Measured T/T_0; low or high may be NaN. The prediction's own measured arms if None.
    ax : matplotlib.axes.Axes or None
        A new figure's if None.

    Returns
    -------
    matplotlib.axes.Axes
    """
    ax = _axes(ax)
    batches = ds["train_batch"].values
    tail = (1 - ds.attrs["level"]) / 2
    low, middle, high = np.quantile(ds["time_ratio"].values, [tail, 0.5, 1 - tail], axis=0, method="nearest")
    points = list(measured if measured is not None else _measured(ds))
    shown = [3 * float(np.min(middle)), *(p[2] for p in points)]
    top = 1.15 * max([1.6, *(v for v in shown if np.isfinite(v))])
    # A diverging batch has no finite ratio: its band runs off the axis.
    ax.fill_between(
        batches,
        low,
        np.minimum(high, 10 * top),
        color=PREDICTED,
        alpha=0.18,
        lw=0,
        label=f"predicted, central {100 * ds.attrs['level']:.0f} %",
    )
    ax.plot(batches, np.minimum(middle, 10 * top), "o-", color=PREDICTED, ms=4, label="predicted, median")
    _mark_choice(ax, ds, batches, middle)
    fitted = set(ds.attrs["calibrated_on"])
    _draw_measured(ax, [p for p in points if p[0] in fitted], "measured, calibrated on", filled=False)
    _draw_measured(ax, [p for p in points if p[0] not in fitted], "measured, held out", filled=True)
    ax.axhline(1.0, color="0.6", lw=0.8, ls=":")
    batch_axis(ax, batches)
    ax.set_ylim(0, top)
    ax.set_xlabel(f"train batch B (responses per update); rule '{ds.attrs['lr_rule']}'")
    ax.set_ylabel(f"time to target relative to B = {ds.attrs['reference_batch']:g}")
    ax.legend(frameon=False, fontsize=8)
    return ax


def _draw_measured(ax: Axes, points: list[tuple[float, float, float, float]], label: str, *, filled: bool) -> None:
    if not points:
        return
    b, lower, estimate, upper = np.array(points, dtype=np.float64).T
    error = np.nan_to_num(np.abs(np.stack([estimate - lower, upper - estimate])), posinf=0.0)
    face = MEASURED if filled else "white"
    ax.errorbar(b, estimate, yerr=error, fmt="s", color=MEASURED, mfc=face, ms=5, capsize=3, label=label)


def plot_sample_cost(ds: xr.Dataset, ax: Axes | None = None) -> Axes:
    """Draw r_N over the target, a line per arm of the reference's group size; filled where the arm wins.

    Parameters
    ----------
    ds : xarray.Dataset
        From `measure.measure_targets`.
    ax : matplotlib.axes.Axes or None
        A new figure's if None.

    Returns
    -------
    matplotlib.axes.Axes
    """
    ax = _axes(ax)
    from matplotlib import colormaps

    targets, reference = ds["target"].values, ds.attrs["reference"]
    group = ds["group_size"].values[0] if ds["group_size"].ndim > 1 else ds["group_size"].values
    batch = ds["train_batch"].values[0] if ds["train_batch"].ndim > 1 else ds["train_batch"].values
    rule = ds["lr_rule"].values[0] if ds["lr_rule"].ndim > 1 else ds["lr_rule"].values
    same = np.isnan(group) | (group == group[reference])
    shown = [i for i in np.flatnonzero(same) if rule[i] != "probe"]
    shades = colormaps["viridis"](np.linspace(0, 0.85, max(len(shown), 2)))
    for shade, i in zip(shades, shown, strict=False):
        low, middle, high = ds["sample_cost_ratio"].values[:, i, :].T
        style = "--" if rule[i] == "fixed" else "-"
        ax.plot(targets, middle, style, marker="o", ms=4, color=shade, label=f"B = {batch[i]:g}, {rule[i]}")
        ax.fill_between(targets, low, np.where(np.isfinite(high), high, middle), color=shade, alpha=0.12, lw=0)
        undecided = ds["verdict"].values[:, i] != "wins"
        ax.plot(targets[undecided], middle[undecided], "o", ms=4, color=shade, mfc="white")
    ax.axhline(1.0, color="0.6", lw=0.8, ls=":")
    ax.set_xlabel(f"target ({ds.attrs['metric']})")
    ax.set_ylabel(f"responses to target relative to B = {batch[reference]:g}")
    ax.legend(frameon=False, fontsize=7, ncols=2)
    return ax


def plot_validation(result: dict[str, Any], ax: Axes | None = None) -> Axes:
    """Draw the error of every form at the largest batch of every set, left out.

    Parameters
    ----------
    result : dict
        From `validate.samples.validate_samples`.
    ax : matplotlib.axes.Axes or None
        A new figure's if None.

    Returns
    -------
    matplotlib.axes.Axes
    """
    ax = _axes(ax)
    from matplotlib import colormaps

    rules = ("fixed", "sqrt", "tuned")
    sets = sorted((s for s in result["sets"] if s["rule"] in rules), key=lambda s: rules.index(s["rule"]))
    forms = list(result["overall"]["forms"])
    for i, form in enumerate(forms):
        offset = 0.6 * (i / max(len(forms) - 1, 1) - 0.5)
        known = [(y + offset, s["log_error"][form]) for y, s in enumerate(sets) if s["log_error"][form] is not None]
        height, error = np.array(known, dtype=np.float64).reshape(-1, 2).T
        ax.plot(error, height, "o", ms=3, color=colormaps["tab10"](i), label=form)
    ax.axvline(0.0, color="0.6", lw=0.8, ls=":")
    ax.set_yticks(range(len(sets)), [f"{s['set']} ({s['rule']})" for s in sets], fontsize=6)
    ax.set_ylim(len(sets) - 0.5, -0.5)
    ax.set_xlabel("log(predicted/measured) of N* at the largest batch, left out")
    ax.legend(frameon=False, fontsize=7)
    return ax


def plot_predicted_measured(result: dict[str, Any], ax: Axes | None = None) -> Axes:
    """Draw predicted over measured against measured, one mark per scored row.

    Parameters
    ----------
    result : dict
        From a validation of the system wing; of several splits the first.
    ax : matplotlib.axes.Axes or None
        A new figure's if None.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    InputError
        If no row was scored.
    """
    if not result["rows"]:
        raise InputError("no row was scored, so there is nothing to plot", remedy="give --data")
    ax = _axes(ax)
    rows, split = result["rows"], ""
    if result["name"] in ("serving", "training", "rl-steps"):
        split = rows[0]["claim"].split(":")[0]
        rows = [r for r in rows if r["claim"].startswith(f"{split}:")]
    if result["name"] == "steps":
        rows = [r for r in rows if r["table"] != "join" and "settings left out" not in r["of"]]
    measured = np.array([r["measured"] for r in rows])
    scale, unit = (1.0, "s") if result["name"] in ("rl-steps", "steps") else (1e3, "ms")
    shown: list[float] = []
    for name, mark, shade in (("peer", "x", "0.6"), ("predicted", "o", PREDICTED)):
        value = np.array([np.nan if r[name] is None else r[name] for r in rows])
        if not np.isfinite(value).any():
            continue
        shown += list((value / measured)[np.isfinite(value)])
        label = result["overall"]["peer"] if name == "peer" else "batchsim"
        ax.plot(scale * measured, value / measured, mark, ms=3, color=shade, label=label, alpha=0.7, mew=0.8, lw=0)
    ax.axhline(1.0, color="0.3", lw=0.8)
    ax.set_xscale("log")
    ax.set_yscale("log", base=2)
    ax.set_yticks(RATIOS, [f"{ratio:g}" for ratio in RATIOS])
    ax.minorticks_off()
    furthest = max(1.2, float(np.exp(np.max(np.abs(np.log(shown))))))
    ax.set_ylim(0.95 / furthest, 1.05 * furthest)
    ax.set_xlabel("measured time per output token (ms)" if result["name"] == "serving" else f"measured time ({unit})")
    ax.set_ylabel("predicted / measured")
    ax.set_title(split, fontsize=9)
    ax.legend(frameon=False, fontsize=7)
    return ax


def plot_forecast(result: dict[str, Any], ax: Axes | None = None) -> Axes:
    """Draw forecasts of r_N from pilots over simulated r_N, moments per coordinate beside norms alone.

    Parameters
    ----------
    result : dict
        Of `validate.worlds.validate_forecast`.
    ax : matplotlib.axes.Axes or None
        A new figure's if None.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    InputError
        If every world was left out.
    """
    if not result["rows"]:
        raise InputError("every world was left out, so there is nothing to plot", remedy="simulate more --worlds")
    ax = _axes(ax)
    simulated = np.array([r["measured"] for r in result["rows"]])
    for form, mark, shade in (("norms: drift", "x", "0.6"), ("moments", "o", PREDICTED)):
        said = np.array([np.nan if r["forms"][form] is None else r["forms"][form] for r in result["rows"]])
        ax.plot(simulated, said / simulated, mark, ms=3.5, color=shade, label=form, alpha=0.7, mew=0.8, lw=0)
    ax.axhline(1.0, color="0.3", lw=0.8)
    ax.set_yscale("log", base=2)
    ax.set_yticks([0.5, 0.7, 1, 1.4, 2], ["0.5", "0.7", "1", "1.4", "2"])
    ax.minorticks_off()
    ax.set_xlabel("simulated $r_N$ at the largest factor asked")
    ax.set_ylabel("predicted / simulated")
    ax.legend(frameon=False, fontsize=7)
    return ax


def plot_pilots(result: dict[str, Any], ax: Axes | None = None, *, quantity: str = "") -> Axes:
    """Draw what each further pilot buys: one quantity's median and interval at one batch, and what was measured.

    Parameters
    ----------
    result : dict
        Of `validate.mlperf.validate_mlperf`, `validate.li2026.validate_li2026` or `validate.tiny.validate_tiny`.
    ax : matplotlib.axes.Axes or None
        A new figure's if None.
    quantity : str
        'time_ratio', 'sample_cost_ratio' or 'throughput_ratio'; the first of them that was measured if empty.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    InputError
        Without data, or for a quantity that no rung has.
    """
    rungs = result["pilots"]
    if not rungs:
        raise InputError("no pilot was read, so there is nothing to plot", remedy="give --data")
    order = ("time_ratio", "sample_cost_ratio", "throughput_ratio")
    known = [name for name in order if any(r["quantity"] == name and r["measured"] is not None for r in rungs)]
    quantity = quantity or (known[0] if known else order[0])
    if quantity not in order:
        raise InputError(f"no rung has the quantity '{quantity}'", remedy=f"known: {', '.join(order)}")
    ax = _axes(ax)
    own = [r for r in rungs if r["quantity"] == quantity]
    at = np.arange(len(own))
    for i, rung in enumerate(own):
        # A batch that is among the pilots is no longer a forecast.
        mark = "o" if rung["held_out"] else "s"
        ax.plot([i, i], rung["interval"], color=PREDICTED, lw=2.5, alpha=0.35, solid_capstyle="butt")
        ax.plot([i], [rung["predicted"]], mark, color=PREDICTED, ms=4)
    measured = next((r["measured"] for r in own if r["measured"] is not None), None)
    if measured is not None:
        ax.axhline(measured, color="0.2", lw=0.8, ls="--", label="measured")
        ax.legend(frameon=False, fontsize=7)
    ax.set_yscale("log", base=2)
    ax.set_yticks(PILOT_TICKS, [f"{tick:g}" for tick in PILOT_TICKS])
    ax.minorticks_off()
    ends = [v for r in own for v in r["interval"] if v]
    ends += [] if measured is None else [measured]
    ax.set_ylim(0.93 * min(ends), 1.07 * max(ends))
    ax.set_xlim(-0.5, len(own) - 0.5)
    ax.set_xticks(at, [r["pilots"].replace(", ", "\n") for r in own], fontsize=7)
    ax.set_xlabel("known before", fontsize=8)
    shown = {"time_ratio": "$T/T_0$", "sample_cost_ratio": "$r_N$", "throughput_ratio": "$r_q$"}[quantity]
    ax.set_ylabel(f"{shown} at B = {own[0]['train_batch']:,.0f}")
    ax.set_title(f"{own[0]['workload']}, {100 * result['overall']['level']:g} % intervals", fontsize=9)
    return ax


def plot_decode(ds: xr.Dataset, ax: Axes | None = None) -> Axes:
    """Draw the parts of a decode step over the batch, stacked, with the limit of the KV cache.

    Parameters
    ----------
    ds : xarray.Dataset
        From `system.roofline.decode_time`; `attrs["concurrency_max"]` marks what fits, if it is there.
    ax : matplotlib.axes.Axes or None
        A new figure's if None.

    Returns
    -------
    matplotlib.axes.Axes
    """
    from matplotlib import colormaps

    from batchsim.system.roofline import BINDS, PARTS

    ax = _axes(ax)
    n = ds["concurrency"].values
    shades = colormaps["cividis"](np.linspace(0.05, 0.95, len(PARTS)))
    ax.stackplot(
        n, *(1e3 * ds[name].values for name in PARTS), labels=[BINDS[name] for name in PARTS], colors=shades, lw=0
    )
    limit = ds.attrs.get("concurrency_max")
    if limit is not None and n[0] <= limit < n[-1]:
        ax.axvline(limit, color="0.2", lw=1, ls="--")
        ax.annotate(
            f"KV cache holds {limit:g}",
            (limit, 0.97),
            xycoords=("data", "axes fraction"),
            rotation=90,
            va="top",
            ha="right",
            fontsize=7,
        )
    if n.size > 1:
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter("{x:g}")
        ax.set_xlim(n[0], n[-1])
    ax.set_xlabel("sequences that decode at the same time")
    ax.set_ylabel("time of a decode step (ms)")
    ax.set_title(ds.attrs["deployment"], fontsize=8)
    ax.legend(frameon=False, fontsize=7, loc="upper left", reverse=True)
    return ax


def _mark_choice(ax: Axes, ds: xr.Dataset, batches: Any, middle: Any) -> None:
    chosen, star = ds.attrs["effective_range"], ds.attrs["star"]
    if chosen is not None:
        name = "effective range" + (" (at least)" if ds.attrs["at_least"] else "")
        # Half an octave's margin keeps a range of one batch visible.
        ax.axvspan(chosen[0] / 2**0.25, chosen[1] * 2**0.25, color="0.5", alpha=0.12, lw=0, label=name)
    if star is not None:
        at = int(np.flatnonzero(batches == star)[0])
        ax.plot(star, middle[at], "*", color=PREDICTED, ms=15, mec="white", label=f"star, B = {star:g}")


def _measured(ds: xr.Dataset) -> list[tuple[float, float, float, float]]:
    arms = matching_arms(ds)
    if arms is None:
        return []
    rows = [
        (float(b), *map(float, t)) for b, t in zip(arms["train_batch"].values, arms["time_ratio"].values, strict=True)
    ]
    return [(b, low, middle, high) for b, low, middle, high in rows if np.isfinite(middle)]


def plot_rollout(ds: xr.Dataset, ax: Axes | None = None) -> Axes:
    """Draw the running sequences of a rollout over time, its tail shaded, updates as lines.

    Parameters
    ----------
    ds : xarray.Dataset
        From `system.rollout.rollout` or `pipelined_rollout`.
    ax : matplotlib.axes.Axes or None
        A new figure's if None.

    Returns
    -------
    matplotlib.axes.Axes
    """
    ax = _axes(ax)
    time, running = ds["time"].values, ds["running"].values
    ax.fill_between(time, running, step="post", color=PREDICTED, alpha=0.18, lw=0)
    ax.step(time, running, where="post", color=PREDICTED, lw=1.2, label="running sequences")
    end = float(time[-1])
    if "tail_share" in ds:
        share = float(ds["tail_share"])
        if share > 0:
            ax.axvspan(end * (1 - share), end, color=MEASURED, alpha=0.15, lw=0, label=f"tail, {100 * share:.0f} %")
    else:
        for i, taken in enumerate(ds["taken_time"].values):
            ax.axvline(taken, color="0.5", lw=0.6, ls=":", label="update" if i == 0 else None)
    ax.set_xlim(0, end)
    ax.set_ylim(0, 1.08 * max(int(running.max()), 1))
    ax.set_xlabel("time since the rollout began (s)")
    ax.set_ylabel("running sequences, all replicas")
    ax.set_title(ds.attrs["law"], fontsize=8)
    ax.legend(frameon=False, fontsize=8, loc="upper right")
    return ax


def plot_stages(ds: xr.Dataset, ax: Axes | None = None) -> Axes:
    """Draw time per kept response of generation, training and the whole step over the batch, and what binds where.

    Parameters
    ----------
    ds : xarray.Dataset
        From `system.pipeline.specified.compose`.
    ax : matplotlib.axes.Axes or None
        A new figure's if None.

    Returns
    -------
    matplotlib.axes.Axes
    """
    ax = _axes(ax)
    batch = ds["rollout_batch"].values.astype(np.float64)
    for name, shade, width, style in (
        ("gen_time", PREDICTED, 1.3, "-"),
        ("train_time", MEASURED, 1.3, "-"),
        ("step_time", "0.1", 2.0, "--"),
    ):
        label = {"gen_time": "generation", "train_time": "training", "step_time": "whole step"}[name]
        ax.plot(batch, ds[name].values / batch, style, color=shade, lw=width, label=label)
    limits = [str(v) for v in ds["binding_limit"].values]
    starts = [i for i, name in enumerate(limits) if i == 0 or name != limits[i - 1]]
    edges = [batch[0], *(math.sqrt(batch[i - 1] * batch[i]) for i in starts[1:]), batch[-1]]
    for k, i in enumerate(starts):
        ax.axvspan(edges[k], edges[k + 1], color="0.5", alpha=0.14 if k % 2 else 0.04, lw=0)
        middle = math.sqrt(edges[k] * edges[k + 1])
        ax.annotate(
            limits[i],
            (middle, 0.02),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="bottom",
            fontsize=7,
            rotation=90,
        )
    if batch.size > 1:
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter("{x:g}")
        ax.set_xlim(batch[0], batch[-1])
    ax.set_yscale("log")
    # Room for the names of the limits below the lines.
    ax.set_ylim(bottom=ax.get_ylim()[0] / 2.5)
    ax.set_xlabel("kept responses per rollout step")
    ax.set_ylabel("time per kept response (s)")
    ax.set_title(f"{ds.attrs['law']}, {ds.attrs['mode']}: what a step waits for", fontsize=8)
    ax.legend(frameon=False, fontsize=8)
    return ax
