r"""
9. Coupled batch scaling
========================

Generation and training batch grow together. On the left generation reaches its plateau before sample efficiency
falls, and three regimes follow: throughput rises at the same learning; nothing changes; sample cost takes over. The
star is the smallest batch of the near-optimal plateau. On the right the order is reversed: sample efficiency falls
first, and a larger batch still finishes sooner as long as its throughput gain exceeds the extra sample cost.

**Predicted**, all of it, from inputs that are stated at the foot; the paper's figure 9 is a sketch. The learning side
is :func:`batchsim.learning.sample_cost.sample_cost_ratio` under the sqrt rule, the system side
:func:`batchsim.system.pipeline.throughput`, both critical batches and the star are the package's own definitions.
"""

# %%
# Two systems and two noise scales.
from __future__ import annotations

from dataclasses import dataclass

import house
import numpy as np

from batchsim.criterion import time_ratio
from batchsim.learning.sample_cost import critical_train_batch, sample_cost_ratio
from batchsim.system.pipeline import critical_gen_batch, throughput
from batchsim.time_to_target import effective_range, star

REFERENCE = 128.0
BATCHES = REFERENCE * 2.0 ** np.arange(10)
GEN_RATIO = 2.0


@dataclass(frozen=True)
class Setting:
    """One coupling: d0 [s], d1 [s/response], plateau [generated responses/s] and noise scale [responses]."""

    title: str
    intercept: float
    slope: float
    plateau: float
    noise_scale: float

    def ratios(self, batches: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """r_N, r_q and T/T0 at each batch."""
        cost = sample_cost_ratio(batches, reference_batch=REFERENCE, noise_scale=self.noise_scale)
        q, q0 = (
            throughput(
                b,
                gen_ratio=GEN_RATIO,
                gen_time_intercept=self.intercept,
                gen_time_slope=self.slope,
                gen_throughput_max=self.plateau,
            )
            for b in (batches, REFERENCE)
        )
        return cost, q / q0, time_ratio(sample_cost_ratio=cost, throughput_ratio=q / q0)

    def critical(self) -> tuple[float, float]:
        """Critical generation and critical training batch, both in kept responses."""
        gen = critical_gen_batch(
            gen_time_intercept=self.intercept, gen_time_slope=self.slope, gen_throughput_max=self.plateau
        )
        return float(gen) / GEN_RATIO, float(
            critical_train_batch(reference_batch=REFERENCE, noise_scale=self.noise_scale)
        )

    def star(self) -> float:
        """The smallest batch of the effective range whose time is within 5 % of the least."""
        at = star(self.ratios(BATCHES)[2][None, :])
        assert at is not None
        return float(BATCHES[at])

    def effective(self) -> tuple[float, float]:
        """The near-optimal batches."""
        found = effective_range(self.ratios(BATCHES)[2][None, :])
        assert found is not None
        return float(BATCHES[found[0]]), float(BATCHES[found[1]])


SETTINGS = (
    Setting("Generation saturates first", intercept=60.0, slope=0.02, plateau=16.0, noise_scale=60_000.0),
    Setting("Sample efficiency falls first", intercept=60.0, slope=0.04, plateau=np.inf, noise_scale=2_500.0),
)

# %%
# Regimes are bounded by the two critical batches.


def regimes(setting: Setting) -> list[tuple[float, float, str]]:
    """(from, to, name) of the three regimes."""
    gen, train = setting.critical()
    low, high = BATCHES[0] / 1.25, BATCHES[-1] * 1.25
    if gen <= train:
        names = ("learning kept,\n$r_q$ rises", "learning kept,\n$r_q$ flat", "sample cost\ndominates")
    else:
        names = ("learning kept,\n$r_q$ rises", "gain against\nsample cost", "sample cost\ndominates")
    first, second = sorted((gen, train))
    return [(low, first, names[0]), (first, second, names[1]), (second, high, names[2])]


def figure():
    """Draw it."""
    fig, axes = house.panels(1, 2, height=3.9, sharey=True)
    grid = np.geomspace(BATCHES[0], BATCHES[-1], 400)
    for ax, setting in zip(axes, SETTINGS, strict=True):
        cost, gain, time = setting.ratios(grid)
        for i, (low, high, name) in enumerate(regimes(setting)):
            ax.axvspan(low, high, color="#000000", alpha=(0.02, 0.07, 0.12)[i], lw=0)
            ax.text(np.sqrt(low * high), 10.4, name, ha="center", va="top", fontsize=7, color="#444444")
        ax.plot(grid, cost, color=house.LEARNING)
        ax.plot(grid, gain, color=house.SYSTEM)
        ax.plot(grid, time, color=house.WHOLE, lw=2.6)
        ax.axhline(1.0, color=house.REFERENCE, lw=0.8, ls=":")
        best = setting.star()
        at = float(setting.ratios(np.array([best]))[2][0])
        ax.plot(best, at, "*", color=house.WHOLE, ms=15, mec="white", mew=0.8, zorder=6)
        ax.annotate(
            f"star, B = {house.short(best)}",
            (best, at),
            xytext=(0, -9),
            textcoords="offset points",
            ha="left" if ax is axes[0] else "center",  # clear of the critical batch beside it
            va="top",
            fontsize=7.5,
            color=house.WHOLE,
        )
        low, high = setting.effective()
        ax.plot([low, high], [0.125, 0.125], color=house.WHOLE, lw=4, solid_capstyle="butt", alpha=0.5)
        ax.annotate(
            "effective range",
            (np.sqrt(low * high), 0.13),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=7,
            color=house.WHOLE,
        )
        gen, train = setting.critical()
        for edge, name, shade in (
            (gen, "critical\ngeneration batch", house.SYSTEM),
            (train, "critical\ntraining batch", house.LEARNING),
        ):
            ax.axvline(edge, color=shade, lw=0.9, ls="--")
            ax.annotate(
                name,
                (edge, 1.015),
                xycoords=("data", "axes fraction"),
                ha="center",
                va="bottom",
                fontsize=6.8,
                linespacing=0.95,
                color=shade,
            )
        house.batch_axis(ax, BATCHES[::2], "kept responses per update $B$", room=1.25)
        ax.set_xlim(BATCHES[0] / 1.25, BATCHES[-1] * 1.25)
        ax.set_title(setting.title, pad=26)
    house.ratio_axis(axes[0], (0.125, 0.25, 0.5, 1, 2, 4, 8), f"relative to B = {REFERENCE:g}")
    axes[0].set_ylim(0.11, 11)
    cost, gain, time = SETTINGS[1].ratios(grid)
    house.end_labels(
        axes[1],
        [
            (cost[-1], "sample cost\n$r_N$", house.LEARNING),
            (gain[-1], "throughput\n$r_q$", house.SYSTEM),
            (time[-1], "time\n$T/T_0 = r_N/r_q$", house.WHOLE),
        ],
        gap=0.1,
    )
    said = "; ".join(
        f"{side}, noise scale {s.noise_scale:,.0f} responses, 2 B responses generated in {s.intercept:g} s + "
        f"{s.slope:g} s each" + (f", at most {s.plateau:g} per second" if np.isfinite(s.plateau) else "")
        for side, s in zip(("left", "right"), SETTINGS, strict=True)
    )
    house.note(fig, f"Predicted from chosen inputs, no measurement: sqrt rule far below the best rate; {said}.")
    return fig


if __name__ == "__main__":
    house.show(figure())
