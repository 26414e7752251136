r"""
7. Responses against collection time
====================================

More responses per update do not take proportionally longer to collect. Blue bars are the responses of an update, red
bars the time to collect them, both relative to the smallest batch; what stands above is their ratio, the gain in
generation throughput.

**Published**: PPO collects 4 times the responses in 68 instead of 39 s, 2.29 times the throughput; GRPO gains 1.31
times at :math:`P = 256` and 1.36 times at 512. **Fitted**, on the right: the affine law :math:`t = d_0 + d_1 B`
through two points of each, and for GRPO the same law with a plateau. Each has as many parameters as there are
numbers, so it tests nothing; it shows that the affine law through GRPO's first gain promises 1.55 at 4 times the
batch, and a plateau 1.36.
"""

# %%
# Gains from the published seconds and ratios.
from __future__ import annotations

import house
import numpy as np

from batchsim.system.pipeline import gen_time

PPO, GRPO = "PPO", "GRPO"


def gains() -> dict[str, dict[int, float]]:
    """Generation throughput relative to the smallest batch, by prompts per update."""
    seconds = {
        int(row["prompts"]): float(row["gen_time"]) for row in house.shipped("li2026_ppo.csv") if row["gen_time"]
    }
    ppo = {p: p / 256 * seconds[256] / t for p, t in seconds.items()}
    grpo = {p: house.fact("generation_throughput_ratio", f"GRPO P 128->{p}") for p in (256, 512)}
    return {PPO: ppo, GRPO: {128: 1.0} | grpo}


# %%
# The local law through the first gain: with :math:`t(1) = 1` its slope is :math:`d_1 = 2/r - 1` for a gain
# :math:`r` at twice the batch, or in general :math:`(x/r - 1)/(x - 1)`.


def law(x: np.ndarray, *, factor: float, gain: float, plateau: float = np.inf) -> np.ndarray:
    """Gain at x times the batch if `factor` times the batch gains `gain`, and nothing passes the plateau."""
    slope = (factor / gain - 1) / (factor - 1)
    return x / gen_time(x, gen_time_intercept=1 - slope, gen_time_slope=slope, gen_throughput_max=plateau)


# %%
# Bars as in the paper, and the gains over the batch.


def bars(ax, prompts: list[int], gain: list[float], title: str, unit: str) -> None:
    """Responses and their collection time, relative to the smallest batch."""
    x = np.arange(len(prompts))
    responses = np.array(prompts) / prompts[0]
    seconds = responses / np.array(gain)
    ax.bar(x - 0.2, responses, 0.36, color=house.LEARNING)
    ax.bar(x + 0.2, seconds, 0.36, color=house.SYSTEM)
    for i, (r, t, g) in enumerate(zip(responses, seconds, gain, strict=True)):
        ax.annotate(
            f"{r:g}",
            (i - 0.2, r),
            xytext=(0, 2),
            textcoords="offset points",
            ha="center",
            fontsize=7.5,
            color=house.LEARNING,
        )
        ax.annotate(
            f"{t:.2f}" if t != 1 else "1",
            (i + 0.2, t),
            xytext=(0, 2),
            textcoords="offset points",
            ha="center",
            fontsize=7.5,
            color=house.SYSTEM,
        )
        if g != 1:
            ax.annotate(
                rf"{g:.2f}$\times$",
                (i, r),
                xytext=(0, 13),
                textcoords="offset points",
                ha="center",
                fontsize=9,
                weight="bold",
                color=house.MEASURED,
            )
    ax.set_xticks(x, [house.short(p) for p in prompts])
    ax.set_ylim(0, 5.2)
    ax.set_xlabel(unit)
    ax.set_title(title)


def figure():
    """Draw it."""
    fig, axes = house.panels(1, 3, height=3.3, width_ratios=(2.3, 3.2, 3.4))
    found = gains()
    for ax, name, unit in (
        (axes[0], PPO, "prompts per update\n($G$ = 1)"),
        (axes[1], GRPO, "prompts per update\n($G$ = 8)"),
    ):
        bars(ax, list(found[name]), list(found[name].values()), name, unit)
    axes[0].set_ylabel("relative to the smallest batch")
    axes[1].annotate("responses", (0.03, 0.95), xycoords="axes fraction", color=house.LEARNING, va="top")
    axes[1].annotate("collection time", (0.03, 0.87), xycoords="axes fraction", color=house.SYSTEM, va="top")
    ax = axes[2]
    x = np.geomspace(1, 8, 200)
    ends = []
    for name, factor, plateau, shade in (
        (PPO, 4, np.inf, house.OTHER),
        (GRPO, 2, np.inf, house.FAINT),
        (GRPO, 2, 1.36, house.SYSTEM),
    ):
        batches = sorted(found[name])
        gain = law(x, factor=factor, gain=found[name][factor * batches[0]], plateau=plateau)
        ax.plot(x, gain, color=shade, ls="--" if shade == house.FAINT else "-")
        text = f"{name}, affine" if np.isinf(plateau) else f"{name}, plateau"
        ends.append((gain[-1], text, house.REFERENCE if shade == house.FAINT else shade))
    for name, mark in ((PPO, "s"), (GRPO, "o")):
        p = np.array(list(found[name]), dtype=float)
        ax.plot(p / p.min(), list(found[name].values()), mark, color=house.MEASURED, ms=5, zorder=5)
    house.batch_axis(ax, (1, 2, 4, 8), "responses per update\nrelative to the smallest", room=1.12)
    ax.set_ylim(0.9, 3.0)
    ax.set_ylabel("generation throughput gain")
    ax.set_title("The gain over the batch")
    house.end_labels(ax, ends)
    house.note(
        fig,
        f"Published (bars, black points): {house.PAPER}, figure 7; GRPO's times are its responses over the printed "
        "gains.",
        "Fitted (lines): PPO, t = d0 + d1 B through both points; GRPO, the same through 128 and 256 (dashed), and "
        "with a "
        "plateau at 1.36. As many parameters as numbers: nothing is tested here.",
    )
    return fig


if __name__ == "__main__":
    house.show(figure())
