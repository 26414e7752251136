r"""
3. GRPO: curves align over a range, then fall behind
====================================================

With a learning rate that grows with the square root of the batch, learning curves over *responses* align over a range
of prompts per update (from 64 to 1,024 in the paper) and then fall behind; gradient norms fall as :math:`P^{-1/2}`
and flatten. The grey band is one percentage point around the smallest batch's curve, for the eye.

The paper's own curves are not public. **Simulated** (top): a softmax policy trained by GRPO at :math:`P` = 64 to
4,096, :math:`G = 8`, by :func:`batchsim.learning.worlds.simulate_grpo`; it was told nothing of the law. It is one
world, chosen so that its smallest batches align as the paper's do; ``batchsim validate findings`` scores worlds drawn
at random. **Measured** (bottom): our sweep of a small transformer, :math:`P` = 8 to 512, three runs per batch. Its
curves need the raw logs, its norms ship with the package. In both, curves depart well before norms have flattened.
"""

# %%
# The simulated sweep: one learning rate at the smallest batch, the sqrt rule for the others.
from __future__ import annotations

import house
import numpy as np

from batchsim.learning.worlds import simulate_grpo

PROMPTS = tuple(64 * 2**k for k in range(7))
RESPONSES = 800_000
GRID = np.linspace(0, RESPONSES, 41)
TINY_GRID = np.linspace(0, 61_440, 31)


def simulated() -> tuple[dict[int, np.ndarray], dict[int, float]]:
    """Mean score over `GRID` and root mean square norm, by prompts per update."""
    runs = simulate_grpo(
        house.policy_world(),
        prompts=PROMPTS,
        learning_rate=0.006,
        lr_rule="sqrt",
        responses_max=RESPONSES,
        evaluate_every=np.maximum(16_384, 8 * np.array(PROMPTS)),
        seeds=2,
        seed=1,
    )
    arms = house.by_arm(runs, "prompts")
    return {p: house.mean_curve(a, GRID) for p, a in arms.items()}, {p: house.rms_norm(a) for p, a in arms.items()}


# %%
# The measured sweep: curves from raw logs, if they are here, and norms up to a score of 45 % from the shipped table.


def measured_curves() -> tuple[dict[int, np.ndarray], str]:
    """Mean score over `TINY_GRID` by prompts per update, or why there is none."""
    runs, why = house.measured_runs("tiny_grpo", chunks=8)
    if runs is None:
        return {}, why
    arms = house.by_arm(runs, "prompts", "group_size", "lr_rule")
    return {p: house.mean_curve(a, TINY_GRID) for (p, g, rule), a in arms.items() if (g, rule) == (8, "sqrt")}, ""


def measured_norms() -> dict[int, float]:
    """Root mean square gradient norm by prompts per update, sqrt rule, G = 8."""
    rows = house.sweep_rows("tiny_grpo_runs.csv", lr_rule="sqrt", group_size=8)
    return {p: house.mean_norm(own) for p, own in rows.items()}


# %%
# Curves on the left, norms on the right with the slope that averaging pure noise would give.


def norms(ax, found: dict[int, float], label: str) -> np.ndarray:
    """Norms over the batch, the slope -1/2 through the smallest."""
    p, norm = np.array(list(found.items())).T
    line = house.half_slope(ax, p, (p[0], norm[0]))
    ax.plot(p, norm, color=house.FAINT, lw=1.0, zorder=2)
    ax.scatter(p, norm, c=house.ramp(p.size), s=26, zorder=3)
    house.ratio_axis(ax, house.plain_ticks(line[-1] / 1.5, norm[0] * 1.3), label)
    ax.set_ylim(line[-1] / 1.5, norm[0] * 1.3)
    house.batch_axis(ax, p, "prompts per update $P$")
    ax.tick_params("x", labelsize=7)
    return line


def figure():
    """Draw it."""
    fig, axes = house.panels(2, 2, height=5.6, width_ratios=(1.35, 1))
    scores, norm = simulated()
    house.draw_curves(axes[0, 0], GRID, scores)
    axes[0, 0].set_title("Simulated policy, P = 64 to 4,096")
    axes[0, 1].set_title("Actor gradient norm")
    norms(axes[0, 1], norm, "root mean square norm")
    tiny, why = measured_curves()
    if tiny:
        house.draw_curves(axes[1, 0], TINY_GRID, tiny)
        axes[1, 0].set_title("Measured: small transformer, P = 8 to 512")
    else:
        house.absent(axes[1, 0], "Measured: small transformer, P = 8 to 512", why)
    norms(axes[1, 1], measured_norms(), "root mean square norm")
    aligned = f"simulated curves stay within one point up to P = {house.short(house.aligned_up_to(scores))}"
    house.note(
        fig,
        f"Simulated (top): {house.WORLD}; GRPO, G = 8, sqrt rule, 2 runs per batch; {aligned}.",
        f"Measured (bottom): {house.TINY}, GRPO, G = 8, sqrt rule, 3 runs per batch; norms up to a score of 45 %. "
        "The paper's own curves are not public.",
    )
    return fig


if __name__ == "__main__":
    house.show(figure())
