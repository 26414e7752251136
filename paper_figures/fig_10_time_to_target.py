r"""
10. Time to target
==================

The paper's central figure: time to a common validation target over the number of prompts per update, relative to
:math:`P = 128`. Black are the published times of the sqrt rule, blue the forecast for that rule with its central 80 %
interval, orange the forecast for a fixed learning rate.

**Published**: 1, 0.74, 0.71, 1.23 and 1.18 at :math:`P` = 128, 512, 1,024, 2,048 and 4,096. **Predicted** from what
two pilots at :math:`P \le 256` showed: updates at twice the batch under both rules (figure 6) and generation
throughput at twice the batch (figure 7); nothing that was measured beyond :math:`P = 256` is in it.

The forecast's medians are too slow at every batch, by how much stands at the foot, and its interval is a factor of
two to six wide. The fixed-rate pilot asks for a small noise scale, and the published :math:`r_N = 1` at :math:`P =
1{,}024` for a large one: no smooth law of this family gives both. ``batchsim validate li2026`` prints the comparison.
"""

# %%
# The published points and the plan ship with the package.
from __future__ import annotations

from importlib.resources import files

import house
import numpy as np

from batchsim import predict, read_plan

GROUP = 8
PROMPTS = (128, 256, 512, 1024, 2048, 4096)


def published() -> dict[int, float]:
    """Measured T/T0 under the sqrt rule by prompts per update."""
    return {int(row["prompts"]): float(row["time_ratio"]) for row in house.shipped("li2026_grpo.csv")}


# %%
# One forecast per learning-rate rule. An interval is that of the draws, not of a fit to the points.


def forecast(rule: str):
    """Prediction over the paper's batches under a learning-rate rule."""
    plan = read_plan(str(files("batchsim").joinpath("data/examples/li2026-grpo.toml")))
    return predict(plan, lr_rule=rule, batches=[GROUP * p for p in PROMPTS])


def errors(ds) -> dict[int, float]:
    """Predicted median over published T/T0, minus 1, by prompts beyond the pilots."""
    middle = dict(zip(PROMPTS, quantiles(ds)[1], strict=True))
    return {p: middle[p] / t - 1 for p, t in published().items() if p > 256}


def quantiles(ds) -> np.ndarray:
    """Lower limit, median and upper limit of T/T0, (3, batch)."""
    tail = (1 - ds.attrs["level"]) / 2
    return np.quantile(ds["time_ratio"].values, [tail, 0.5, 1 - tail], axis=0, method="nearest")


# %%
# The best published batch and the predicted star are marked, so that the miss is in view.


def figure():
    """Draw it."""
    fig, ax = house.panels(height=4.0)
    points = published()
    off: list[float] = []
    prompts = np.array(PROMPTS, dtype=float)
    for rule, shade, label in (
        ("fixed", house.FIXED, "fixed rate,\npredicted"),
        ("sqrt", house.LEARNING, "sqrt rule,\npredicted"),
    ):
        ds = forecast(rule)
        low, middle, high = quantiles(ds)
        ax.fill_between(prompts, low, high, color=shade, alpha=0.15 if rule == "sqrt" else 0.10, lw=0)
        ax.plot(prompts, middle, "-o", color=shade, zorder=3)
        ax.annotate(
            label,
            (prompts[-1] * 1.06, middle[-1]),
            color=shade,
            va="center",
            ha="left",
            fontsize=8,
            annotation_clip=False,
        )
        if rule == "sqrt":
            off = sorted(errors(ds).values())
        if rule == "sqrt" and ds.attrs["star"] is not None:
            at = prompts.tolist().index(ds.attrs["star"] / GROUP)
            ax.plot(prompts[at], middle[at], "*", color=shade, ms=14, mec="white", mew=0.8, zorder=4)
            ax.annotate(
                "predicted star",
                (prompts[at], middle[at]),
                xytext=(0, -15),
                textcoords="offset points",
                ha="center",
                color=shade,
                fontsize=7.5,
            )
    p, t = np.array(sorted(points.items())).T
    best = int(np.argmin(t))
    ax.plot(np.delete(p, best), np.delete(t, best), "s", color=house.MEASURED, ms=5.5, zorder=5)
    for x, y in zip(p, t, strict=True):
        ax.annotate(f"{y:g}", (x, y), xytext=(6, -9), textcoords="offset points", fontsize=8, color=house.MEASURED)
    ax.plot(p[best], t[best], "*", color=house.MEASURED, ms=14, mec="white", mew=0.8, zorder=6)
    ax.annotate(
        "published best",
        (p[best], t[best]),
        xytext=(0, -22),
        textcoords="offset points",
        ha="center",
        fontsize=7.5,
        color=house.MEASURED,
    )
    ax.axhline(1.0, color=house.REFERENCE, lw=0.8, ls=":")
    house.ratio_axis(ax, (0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8), "time to target relative to $P$ = 128, $T/T_0$")
    house.batch_axis(ax, PROMPTS, "prompts per update $P$ (groups of $G$ = 8 responses)", room=1.15)
    ax.set_ylim(0.45, 10)
    ax.set_title("Time to target: published, and predicted from two pilots at P = 128 and 256")
    house.note(
        fig,
        f"Published (black): {house.PAPER}, figure 10, sqrt rule; values of its fixed-rate control are not printed.",
        "Predicted (blue, orange): median and central 80 % interval, from updates at P = 256 under both rules (figure "
        "6) "
        f"and generation throughput at P = 256 (figure 7). Its medians are {100 * off[0]:.0f} to "
        f"{house.percent(off[-1])} too slow.",
    )
    return fig


if __name__ == "__main__":
    house.show(figure())
