r"""
1. Routes to a summit
=====================

Training as a climb: the summit is a common validation target, each route a batch size, each way-post one optimizer
update. With a learning rate that follows the batch, the routes of :math:`B`, :math:`2B` and :math:`4B` are almost
equally long in responses, and the larger batch walks faster. At :math:`16B` the route has become so much longer that
the same speed loses to :math:`B`.

**Predicted** from chosen inputs, no measurement: updates, length and speed of each route are those of the package's
own laws. The length of a route is :math:`r_N`, its speed :math:`r_q`, and the time to the summit :math:`T/T_0 =
r_N/r_q`.
"""

# %%
# A noise scale of 20 :math:`B`, a learning rate that stops at twice the reference's, and a generation time that is
# three quarters shared at :math:`B` (as PPO's in figure 7) with a plateau.
from __future__ import annotations

import house
import numpy as np

from batchsim.criterion import time_ratio
from batchsim.learning.sample_cost import sample_cost_ratio
from batchsim.system.pipeline import throughput

FACTORS = np.array([1.0, 2.0, 4.0, 16.0])
NOISE_SCALE, CEILING, SHARED, PLATEAU, UPDATES = 20.0, 2.0, 0.75, 2.4, 32


def routes() -> dict[str, np.ndarray]:
    """Sample cost, throughput, time and updates of each route, B as the unit of responses and its step of time."""
    cost = sample_cost_ratio(FACTORS, reference_batch=1.0, noise_scale=NOISE_SCALE, ceiling=CEILING)
    gain = throughput(FACTORS, gen_time_intercept=SHARED, gen_time_slope=1 - SHARED, gen_throughput_max=PLATEAU)
    time = time_ratio(sample_cost_ratio=cost, throughput_ratio=gain)
    return {"cost": cost, "gain": gain, "time": time, "updates": np.round(UPDATES * cost / FACTORS)}


# %%
# A route winds the more, the more responses it takes.
NAMES = ("$B$", "2$B$", "4$B$", "16$B$")
FEET = (-0.82, -0.3, 0.22, 0.8)


def path(foot: float, cost: float, height: np.ndarray) -> np.ndarray:
    """Horizontal place at each height of a route that winds with its cost."""
    winding = 0.085 * np.sqrt(max(cost**2 - 1, 0.0)) * np.sin(7 * np.pi * height) * (1 - height)
    return foot * (1 - height) ** 1.25 + winding * np.minimum(1, 6 * height)


def mountain(ax) -> None:
    """Ridges, nearer ones darker."""
    x = np.linspace(-1.35, 1.35, 400)
    far = 0.74 * np.exp(-(((x + 0.75) / 0.5) ** 2)) + 0.62 * np.exp(-(((x - 0.85) / 0.45) ** 2))
    near = np.clip(1.0 - np.abs(x) ** 1.08 * 0.86, 0, None) - 0.012 * np.abs(np.sin(11 * x)) * np.abs(x)
    ax.fill_between(x, far - 0.1, -0.17, color="#EEF1F4", lw=0)
    ax.fill_between(x, near, -0.17, color="#DCE2E8", lw=0)
    top = np.abs(x) < 0.14
    ax.fill_between(x[top], near[top], 0.885 + 0.02 * np.sin(60 * x[top]), color="white", lw=0)


def figure():
    """Draw it."""
    fig, (left, right) = house.panels(1, 2, height=3.7, width_ratios=(2.3, 1))
    found = routes()
    shades = house.ramp(FACTORS.size)
    mountain(left)
    for i, (name, shade) in enumerate(zip(NAMES, shades, strict=True)):
        fine = np.linspace(0, 1, 600)
        left.plot(path(FEET[i], found["cost"][i], fine), fine, color=shade, lw=1.4)
        posts = np.arange(1, int(found["updates"][i])) / found["updates"][i]
        left.plot(path(FEET[i], found["cost"][i], posts), posts, "o", color=shade, ms=4, mec="white", mew=0.5, zorder=4)
        left.annotate(
            f"{name}\n{found['updates'][i]:.0f} updates",
            (FEET[i], -0.015),
            ha="center",
            va="top",
            color=shade,
            fontsize=8,
        )
    left.plot([0, 0], [1.0, 1.13], color=house.MEASURED, lw=1.2)
    left.fill([0, 0.13, 0], [1.13, 1.1, 1.065], color=house.MEASURED, lw=0)
    left.annotate("validation target", (0.15, 1.1), va="center", fontsize=8)
    left.annotate("each dot is one\noptimizer update", (-1.28, 1.1), va="center", fontsize=8, color="#444444")
    left.set(xlim=(-1.3, 1.3), ylim=(-0.17, 1.18))
    left.set_axis_off()
    left.set_title("Four routes to one summit")
    y = np.arange(FACTORS.size)[::-1]
    right.barh(y, found["time"], 0.5, color=shades)
    for row, name, t, c, g in zip(y, NAMES, found["time"], found["cost"], found["gain"], strict=True):
        right.annotate(f"{t:.2f}", (t, row), xytext=(4, 0), textcoords="offset points", va="center", weight="bold")
        right.annotate(
            f"{c:.2f} times the responses\nat {g:.2f} times the speed",
            (0.02, row - 0.28),
            va="top",
            fontsize=6.8,
            color="#444444",
        )
        right.annotate(name, (0, row), xytext=(-5, 0), textcoords="offset points", ha="right", va="center")
    right.axvline(1.0, color=house.REFERENCE, lw=0.8, ls=":")
    right.set(xlim=(0, 1.32), ylim=(-0.75, 3.5), yticks=[])
    right.spines["left"].set_visible(False)
    right.set_xlabel("time to target relative to $B$, $T/T_0$")
    right.set_title("Time to the summit")
    house.note(
        fig,
        f"Predicted from chosen inputs, no measurement: sqrt rule up to {CEILING:g} times the rate, noise scale "
        f"{NOISE_SCALE:g} B, generation in {SHARED:g} + {1 - SHARED:g} B/B0 steps of the reference, at most "
        f"{PLATEAU:g} "
        "times its throughput.",
    )
    return fig


if __name__ == "__main__":
    house.show(figure())
