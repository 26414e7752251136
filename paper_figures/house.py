"""What the figures share: colours with fixed roles, batch axes, direct labels, where data lie, and saving.

Colours are those of Okabe and Ito, one role each:

    LEARNING   blue         the learning side, r_N, and the sqrt rule
    SYSTEM     vermillion   the system side, generation and r_q
    WHOLE      green        both sides joined: time to target
    FIXED      orange       a fixed learning rate
    OTHER      purple       a second model, as the critic
    REFERENCE  grey         the reference, ideals and targets
    MEASURED   black        what was measured or published: always markers, never a line through them alone

Every figure says at its foot what is simulated, what is predicted from which inputs, and what was measured.
"""

from __future__ import annotations

import csv
import math
import os
import textwrap
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib import colormaps

from batchsim import plot
from batchsim.learning.worlds import SoftmaxWorld, softmax_world
from batchsim.validate.data import VARIABLE
from batchsim.validate.measured import runs_of

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
STYLE = HERE / "paper.mplstyle"
LEARNING, SYSTEM, WHOLE, FIXED, OTHER = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7"
REFERENCE, MEASURED, FAINT = "#777777", "#111111", "#BBBBBB"
PAPER = "Li et al. 2026, arXiv:2608.29296"
NOTE_WIDTH = 150
"""Characters of the small type that fit across a figure of 7.2 in."""
PNG_METADATA = {"Software": None}
PDF_METADATA = {"CreationDate": None, "Creator": None, "Producer": None}
"""Without dates and versions, so that drawing again changes nothing."""


def panels(rows: int = 1, columns: int = 1, *, height: float = 3.3, **given: Any) -> tuple[Figure, Any]:
    """A figure of the house style and its axes.

    Parameters
    ----------
    rows, columns : int
    height : float [in]
        The width is that of a page, 7.2 in.
    **given
        Of `matplotlib.pyplot.subplots`.
    """
    plt.style.use(STYLE)
    return plt.subplots(rows, columns, figsize=(7.2, height), layout="constrained", **given)


def note(fig: Figure, *lines: str) -> None:
    """The small lines at the foot: what is simulated, predicted from which inputs, measured or published."""
    width = round(NOTE_WIDTH * fig.get_figwidth() / 7.2)
    # A number and its per cent stay on one line.
    lines = tuple(line.replace(" %", "\N{NO-BREAK SPACE}%") for line in lines)
    text = "\n".join(part for line in lines for part in textwrap.wrap(line, width, subsequent_indent="   "))
    fig.supxlabel(text, x=0.008, ha="left", fontsize=6.4, color="#444444", linespacing=1.25)


def percent(share: float) -> str:
    """A share in per cent, as it is written here: 28 %."""
    return f"{100 * share:.0f} %"


def short(number: float) -> str:
    """A batch as people write it: 64, 128, 1,024."""
    return f"{number:,.0f}" if number >= 1 else f"{number:g}"


def batch_axis(ax: Axes, batches: Iterable[float], label: str, *, room: float = 1.25) -> None:
    """A log-2 axis with the batches themselves as ticks.

    Parameters
    ----------
    batches : iterable of float
        Ticks.
    label : str
        With its unit.
    room : float [1]
        Margin beyond the outermost ticks, as a factor.
    """
    ticks = [float(b) for b in batches]
    plot.batch_axis(ax, ticks)
    ax.set_xticks(ticks, [short(b) for b in ticks])
    ax.set_xlim(min(ticks) / room, max(ticks) * room)
    ax.set_xlabel(label)


def ratio_axis(ax: Axes, ticks: Sequence[float], label: str, *, axis: str = "y") -> None:
    """A log axis of a ratio, with plain numbers as ticks."""
    getattr(ax, f"set_{axis}scale")("log", base=2)
    getattr(ax, f"set_{axis}ticks")(list(ticks), [f"{t:g}" for t in ticks])
    getattr(ax, f"{axis}axis").set_minor_locator(plt.NullLocator())
    getattr(ax, f"set_{axis}label")(label)


def plain_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, ... within limits."""
    steps = [
        m * 10.0**e for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1) for m in (1, 2, 5)
    ]
    return [s for s in steps if low <= s <= high]


def thousands(ax: Axes, label: str = "cumulative kept responses (thousands)") -> None:
    """An axis of responses, in thousands."""
    ax.xaxis.set_major_formatter(lambda value, _: f"{value / 1e3:,.0f}")
    ax.set_xlabel(label)


def ramp(count: int) -> list[Any]:
    """Colours of ordered batches, light for the smallest and dark for the largest."""
    return list(colormaps["viridis"](np.linspace(0.82, 0.0, count)))


def end_labels(ax: Axes, labels: Sequence[tuple[float, str, Any]], *, gap: float = 0.065, size: float = 7.5) -> None:
    """Names at the right edge of the axes, at the height of their curves and never on top of one another.

    Parameters
    ----------
    labels : sequence of (y, text, colour)
        y in data coordinates; call after the limits are settled.
    gap : float [1]
        Least distance, as a share of the axes' height.
    """
    to_axes = ax.transAxes.inverted()
    x = ax.get_xlim()[1]
    wanted = [(float(to_axes.transform(ax.transData.transform((x, y)))[1]), text, shade) for y, text, shade in labels]
    wanted.sort(key=lambda item: item[0])
    for (_, text, shade), y in zip(wanted, _apart([w[0] for w in wanted], gap), strict=True):
        ax.annotate(text, (1.015, y), xycoords="axes fraction", ha="left", va="center", color=shade, fontsize=size)


def _apart(heights: Sequence[float], gap: float) -> list[float]:
    """Heights in increasing order, moved as little as leaves `gap` between neighbours (pooled means)."""
    groups: list[list[float]] = []
    for i, height in enumerate(heights):
        groups.append([height - i * gap, 1.0])
        while len(groups) > 1 and groups[-2][0] > groups[-1][0]:
            mean, count = groups.pop()
            groups[-1] = [
                (groups[-1][0] * groups[-1][1] + mean * count) / (groups[-1][1] + count),
                groups[-1][1] + count,
            ]
    pooled = [mean for mean, count in groups for _ in range(int(count))]
    return [mean + i * gap for i, mean in enumerate(pooled)]


def absent(ax: Axes, title: str, reason: str) -> None:
    """An empty panel that says why it is empty."""
    ax.set_axis_off()
    ax.set_title(title)
    ax.text(
        0.5,
        0.5,
        "\n".join(textwrap.wrap(reason, 30)),
        ha="center",
        va="center",
        color=REFERENCE,
        fontsize=8,
        transform=ax.transAxes,
    )


def shipped(name: str) -> list[dict[str, str]]:
    """Rows of a small table of facts that ships with the package."""
    with files("batchsim").joinpath(f"data/measured/{name}").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def fact(quantity: str, setting: str) -> float:
    """One published number of the source paper.

    Raises
    ------
    LookupError
        If the table has no such row.
    """
    for row in shipped("li2026_facts.csv"):
        if (row["quantity"], row["setting"]) == (quantity, setting):
            return float(row["value"])
    raise LookupError(f"li2026_facts.csv has no row '{quantity}', '{setting}'")


def data_folder() -> Path | None:
    """Folder of measured data: BATCHSIM_DATA, or the one beside the checkout; None in a plain clone."""
    named = os.environ.get(VARIABLE)
    folder = Path(named) if named else HERE.parent.parent / "shared" / "data"
    return folder if folder.is_dir() else None


def measured_runs(name: str, **given: Any) -> tuple[xr.DataTree | None, str]:
    """Runs of a folder of measured data, or None and why there are none."""
    folder = data_folder()
    if folder is None or not (folder / name).is_dir():
        return None, f"left out: the raw logs of {name} are not here (they do not ship; set {VARIABLE} to their folder)"
    runs, skipped = runs_of(folder, name, **given)
    return runs, "; ".join(skipped)


@lru_cache(maxsize=1)
def policy_world() -> SoftmaxWorld:
    """The world of figures 3, 4 and 6: a softmax policy over 1,536 shared features, validated on prompts of its own.

    Its noise scale (25,000 responses at the start, G = 8) lies far above the paper's smallest batch, as the paper's
    must, since its smallest batches align.
    """
    return softmax_world(
        dim=1536, prompts=8192, validation=512, answers=2, label_noise=1.0, difficulty=0.5, start_score=0.55, seed=5
    )


WORLD = "softmax policy over 1,536 shared features, 8,192 prompts of 2 answers, validated on 512 others"
"""`policy_world` in words."""
TINY = "small transformer on one CPU core, measured for this project"
SHIPPED = "tables that ship with the package"


def sweep_rows(table: str, **wanted: Any) -> dict[int, list[dict[str, str]]]:
    """Runs of a shipped table by prompts, those whose columns are as wanted."""
    found: dict[int, list[dict[str, str]]] = {}
    for row in shipped(table):
        if all(row[name] == str(value) for name, value in wanted.items()):
            found.setdefault(int(row["prompts"]), []).append(row)
    return dict(sorted(found.items()))


def responses_to_target(rows: Sequence[dict[str, str]], target: str) -> tuple[float, float, float]:
    """N* of repeated runs [responses]: mean of the lower ends, middles and upper ends of their evaluation intervals."""
    low, high = (np.mean([float(r[f"responses_to_target_{target}_{end}"]) for r in rows]) for end in ("low", "high"))
    return float(low), float((low + high) / 2), float(high)


def mean_norm(rows: Sequence[dict[str, str]], name: str = "grad_norm") -> float:
    """Root mean square over runs of their root mean square gradient norms."""
    return float(np.sqrt(np.mean([float(r[name]) ** 2 for r in rows])))


def aligned_up_to(scores: dict[int, Any], band: float = 0.01) -> int:
    """Largest batch up to which no curve leaves the band around the smallest batch's, once that has begun to learn."""
    first = next(iter(scores.values()))
    last = next(iter(scores))
    for batch, score in scores.items():
        known = np.isfinite(score) & np.isfinite(first)
        if np.abs(score[known] - first[known]).max() > band:
            break
        last = batch
    return last


def draw_curves(ax: Axes, grid: Any, scores: dict[int, Any], *, band: float = 0.01) -> None:
    """Score over responses, one shade per batch, with a band around the smallest batch's curve for the eye."""
    first = next(iter(scores.values()))
    ax.fill_between(grid, 100 * (first - band), 100 * (first + band), color="#000000", alpha=0.09, lw=0)
    ends = []
    for (batch, score), shade in zip(scores.items(), ramp(len(scores)), strict=True):
        ax.plot(grid, 100 * score, color=shade, lw=1.3)
        known = np.flatnonzero(np.isfinite(score))
        ends.append((100 * score[known[-1]], short(batch) if ends else f"P = {short(batch)}", shade))
    ax.set_xlim(0, grid[-1])
    ax.set_ylabel("validation score (%)")
    thousands(ax)
    end_labels(ax, ends, gap=0.075)


def curve(run: xr.DataTree, metric: str = "") -> tuple[Any, Any]:
    """Kept responses and scores of a run's evaluations."""
    score = run["score"].sel(metric=metric).values if metric else run["score"].values[0]
    known = np.isfinite(score)
    return run["evaluation_responses"].values[known], score[known]


def mean_curve(runs: Sequence[xr.DataTree], grid: Any) -> Any:
    """Mean score of repeated runs at the same responses, NaN beyond the shortest."""
    found = []
    for run in runs:
        responses, score = curve(run)
        found.append(np.interp(grid, responses, score, right=np.nan))
    return np.mean(found, axis=0)


def by_arm(runs: xr.DataTree, *names: str) -> dict[Any, list[xr.DataTree]]:
    """Runs grouped by attributes, in increasing order of these."""
    found: dict[Any, list[xr.DataTree]] = {}
    for run in runs.children.values():
        found.setdefault(
            tuple(run.attrs[name] for name in names) if len(names) > 1 else run.attrs[names[0]], []
        ).append(run)
    return dict(sorted(found.items()))


def rms_norm(runs: Sequence[xr.DataTree], name: str = "grad_norm", *, until: float = np.inf) -> float:
    """Root mean square gradient norm of an arm, over all updates up to so many responses."""
    squares = [run[name].values[run["responses"].values <= until] ** 2 for run in runs]
    return float(np.sqrt(np.concatenate(squares).mean()))


def half_slope(ax: Axes, batches: Any, anchor: tuple[float, float], *, label: str = r"slope $-1/2$") -> Any:
    """The line that norms of pure noise follow, through a point; drawn and returned."""
    x = np.asarray(batches, dtype=np.float64)
    y = anchor[1] * (x / anchor[0]) ** -0.5
    ax.plot(x, y, "--", color=REFERENCE, lw=1.0, zorder=1)
    ax.annotate(
        label,
        (x[-1], y[-1]),
        xytext=(-2, -3),
        textcoords="offset points",
        ha="right",
        va="top",
        color=REFERENCE,
        fontsize=7.5,
    )
    return y


def save(fig: Figure, stem: Path) -> list[Path]:
    """Write PNG and PDF, each whole or not at all.

    Parameters
    ----------
    stem : Path
        Folder and name without suffix.

    Returns
    -------
    list of Path
    """
    written = []
    for suffix, metadata in ((".png", PNG_METADATA), (".pdf", PDF_METADATA)):
        final = stem.with_suffix(suffix)
        part = stem.with_name(f".{stem.name}.{os.getpid()}{suffix}")
        try:
            fig.savefig(part, metadata=metadata)
            part.replace(final)
        finally:
            part.unlink(missing_ok=True)
        written.append(final)
    return written


def show(fig: Figure) -> Figure:
    """Show a figure where there is a screen; the gallery and `make.py` take it as it is."""
    if plt.get_backend().lower() not in ("agg", "pdf", "svg", "ps", "cairo"):
        plt.show()
    return fig
