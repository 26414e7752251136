r"""
14. What a recommendation costs, against habits
===============================================

Beyond the paper: over random worlds, each a learning side joined to a cluster, two short pilots go through
:func:`batchsim.predict` and the recommended batch is run. Its regret is how much longer that takes than the best
batch. Beside it stand the same recommendation once the next run it names has been made, alone and beside a run of the
reference, the forecast without learning data (prior only), and three habits: keep the batch, the largest that fits,
double until throughput stops growing.

**Simulated**, all of it: worlds whose truth is known and whose laws are not the fitted one. The scores are those of
``batchsim validate decisions`` as the documentation stores them; where it holds none, the first few worlds of the
same stream are judged anew, which shows the spread and not the score. The figure says which.
"""

# %%
# Scores and the histogram, stored or made anew.
from __future__ import annotations

import json

import house
import numpy as np

from batchsim.validate.decisions import validate_decisions

STORED = house.HERE.parent / "docs" / "decisions_results.json"
WORLDS = 6
CHOICES = {
    "forecast from two pilots": "{}_regret",
    "after the next run it names": "{}_next_run_regret",
    "after that and the reference": "{}_both_runs_regret",
    "forecast, prior only": "prior_only_{}_regret",
}
SCORES = ("median", "mean", "p95")
FLOOR = 0.01
"""Regrets below 1 % are drawn at 1 %."""
TICKS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10)


def result() -> tuple[dict, bool]:
    """Result of the validation, and whether it is the stored one of all worlds."""
    if STORED.is_file():
        return json.loads(STORED.read_text(encoding="utf-8")), True
    return validate_decisions(worlds=WORLDS), False


def regrets(overall: dict) -> dict[str, tuple[float, float, float]]:
    """Median, mean and 95th percentile of T(chosen)/T(best) - 1 of every way to choose, by its name."""
    found = {}
    for name, key in CHOICES.items():
        if key.format("mean") in overall:
            found[name] = tuple(float(overall[key.format(score)]) for score in SCORES)
    for habit, scores in overall["habits"].items():
        found[f"habit: {habit}"] = tuple(float(scores[f"{score}_regret"]) for score in SCORES)
    return found


# %%
# The line is the median, the diamond the mean, the bar ends at the 95th percentile.


def draw_regrets(ax, found: dict[str, tuple[float, float, float]], goal: float) -> None:
    """Regret of each choice over worlds."""
    names = list(found)[::-1]
    for y, name in enumerate(names):
        middle, mean, high = (max(v, FLOOR) for v in found[name])
        shade = house.WHOLE if name in list(CHOICES)[:3] else house.REFERENCE
        ax.plot([FLOOR, high], [y, y], color=shade, lw=7, alpha=0.25, solid_capstyle="butt")
        ax.plot([middle, middle], [y - 0.3, y + 0.3], color=shade, lw=2.4)
        ax.plot(mean, y, "D", color="white", mec=shade, mew=1.4, ms=5.5, zorder=4)
        for x, value in zip((1.02, 1.25, 1.44), found[name], strict=True):
            ax.annotate(
                house.percent(value), (x, y), xycoords=("axes fraction", "data"), va="center", fontsize=7.5, color=shade
            )
    for x, head in zip((1.02, 1.25, 1.44), ("median", "mean", "95 %"), strict=True):
        ax.annotate(head, (x, 1.0), xycoords="axes fraction", va="bottom", fontsize=7.5, color="#444444")
    ax.plot([goal, goal], [len(names) - 1.4, len(names) - 0.55], ":", color=house.MEASURED, lw=1.2)
    ax.annotate(
        "goal of the 95th percentile",
        (goal, len(names) - 0.5),
        ha="left",
        va="bottom",
        fontsize=6.8,
        color=house.MEASURED,
    )
    ax.set_yticks(range(len(names)), [n.replace("double until ", "double until\n") for n in names])
    ax.set_ylim(-0.6, len(names) - 0.1)
    ax.set_xscale("log")
    ax.set_xticks(TICKS, [r"$\leq$1", *(f"{100 * t:g}" for t in TICKS[1:])])
    ax.xaxis.set_minor_locator(house.plt.NullLocator())
    ax.set_xlim(FLOOR, 1.1 * max(TICKS[-1], *(v[2] for v in found.values())))
    ax.set_xlabel("regret: time beyond the best batch's (%)")
    ax.set_title("Regret of the chosen batch")


def draw_choices(ax, histogram: dict[str, dict[str, int]]) -> None:
    """How often each batch is the best, and how often it is recommended."""
    counts = {name: {int(k): v for k, v in own.items()} for name, own in histogram.items()}
    every = sorted({d for own in counts.values() for d in own})
    doublings = np.arange(every[0], every[-1] + 1)
    for name, shade, shift in (("best", house.FAINT, -0.2), ("star", house.WHOLE, 0.2)):
        ax.bar(doublings + shift, [counts[name].get(d, 0) for d in doublings], 0.38, color=shade)
    ax.set_xticks(doublings, [f"{2.0**d:g}" if d >= 0 else f"1/{2**-d}" for d in doublings.tolist()])
    ax.tick_params("x", labelsize=7)
    ax.set_ylim(0, 1.3 * max(v for own in counts.values() for v in own.values()))
    ax.yaxis.set_major_locator(house.plt.MaxNLocator(integer=True))
    ax.set_xlabel("batch / reference")
    ax.set_ylabel("worlds")
    ax.annotate("best", (0.97, 0.97), xycoords="axes fraction", va="top", ha="right", color=house.REFERENCE)
    ax.annotate("chosen", (0.97, 0.88), xycoords="axes fraction", va="top", ha="right", color=house.WHOLE)
    ax.set_title("Best and chosen")


def figure():
    """Draw it."""
    found, whole = result()
    fig, (left, right) = house.panels(1, 2, height=3.4, width_ratios=(1.35, 1))
    draw_regrets(left, regrets(found["overall"]), goal=found["goals"]["p95"])
    draw_choices(right, found["histogram"])
    n = found["overall"]["n"]
    extent = (
        f"all {n} worlds of `batchsim validate decisions`"
        if whole
        else f"the first {n} worlds of the stream of `batchsim validate decisions`, too few for a score"
    )
    house.note(
        fig,
        f"Simulated: {extent}. Lines are medians, diamonds means, bars end at the 95th percentile.",
        "Predicted: from two pilots that together take at most a fifth of the reference run.",
    )
    return fig


if __name__ == "__main__":
    house.show(figure())
