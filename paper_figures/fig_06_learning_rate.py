r"""
6. A fixed learning rate breaks the invariance
==============================================

Twice the batch with the learning rate left where it was follows the reference's curve too low; with the square-root
rule it follows it. Right: optimizer updates at twice the batch over those of the reference, whose ideal is 0.5.

**Simulated** (left): the policy of figure 3 at :math:`P` = 128, and at 256 with both rates. **Published** (right):
0.50 to 0.67 with the rule and 0.75 to 0.83 without. **Measured** (right): our small transformer from the shipped
table, :math:`P` = 8 against 16, and its curves (middle) from the raw logs. Ranges are over targets; of the published
ones the paper gives the resolution of checkpoints as the reason.
"""

# %%
# Simulated runs: reference, twice the batch with the rule, twice the batch without.
from __future__ import annotations

import house
import numpy as np

from batchsim.learning.worlds import simulate_grpo

PROMPTS = np.array([128, 256, 256])
RATE = 0.006 * np.sqrt(2)
RATES = RATE * np.array([1, np.sqrt(2), 1])
ARMS = ("reference, $P$", "2 $P$, sqrt rule", "2 $P$, fixed rate")
SHADES = (house.REFERENCE, house.LEARNING, house.FIXED)
RESPONSES = 600_000
GRID = np.linspace(0, RESPONSES, 31)
TARGETS = np.array([0.57, 0.58, 0.59, 0.60, 0.61])
TINY_GRID = np.linspace(0, 61_440, 31)
TINY_TARGETS = ("0.38", "0.45", "0.52")
IDEAL = 0.5

Range = tuple[float, float]


def simulated() -> tuple[list[np.ndarray], dict[str, Range]]:
    """Mean scores of the three arms over `GRID`, and the range over targets of updates over the reference's."""
    runs = simulate_grpo(
        house.policy_world(),
        prompts=PROMPTS,
        learning_rate=RATES,
        responses_max=RESPONSES,
        evaluate_every=8192,
        seeds=4,
        seed=1,
    )
    arms = list(house.by_arm(runs, "prompts", "learning_rate").values())
    reference, fixed, scaled = arms
    cost = [np.mean([[crossing(r, t) for t in TARGETS] for r in arm], axis=0) for arm in (reference, scaled, fixed)]
    share = {name: cost[i] / cost[0] * PROMPTS[0] / PROMPTS[i] for i, name in ((1, "sqrt"), (2, "fixed"))}
    scores = [house.mean_curve(arm, GRID) for arm in (reference, scaled, fixed)]
    return scores, {name: (float(s.min()), float(s.max())) for name, s in share.items()}


def crossing(run, target: float) -> float:
    """Responses at which a run first reaches a target, on the line between evaluations."""
    responses, score = house.curve(run)
    at = int(np.argmax(score >= target))
    part = (target - score[at - 1]) / (score[at] - score[at - 1])
    return float(responses[at - 1] + part * (responses[at] - responses[at - 1]))


# %%
# Published ranges, and the measured ones of the small transformer.


def published() -> dict[str, Range]:
    """Updates at P = 256 over the reference's."""
    rules = {"sqrt": "P=256 sqrt rule", "fixed": "P=256 fixed lr"}
    return {
        rule: (house.fact("updates_ratio_low", setting), house.fact("updates_ratio_high", setting))
        for rule, setting in rules.items()
    }


def measured() -> dict[str, Range]:
    """Updates at P = 16 over those at P = 8, range over three targets; from the shipped table."""
    base = house.sweep_rows("tiny_grpo_runs.csv", lr_rule="sqrt", group_size=8)[8]
    found = {}
    for rule in ("sqrt", "fixed"):
        own = house.sweep_rows("tiny_grpo_runs.csv", lr_rule=rule, group_size=8)[16]
        share = [
            0.5 * house.responses_to_target(own, t)[1] / house.responses_to_target(base, t)[1] for t in TINY_TARGETS
        ]
        found[rule] = (min(share), max(share))
    return found


def measured_curves() -> tuple[list[np.ndarray], str]:
    """Mean scores of the small transformer's three arms over `TINY_GRID`, or why there is none."""
    runs, why = house.measured_runs("tiny_grpo", chunks=8)
    if runs is None:
        return [], why
    arms = house.by_arm(runs, "prompts", "group_size", "lr_rule")
    return [house.mean_curve(arms[k], TINY_GRID) for k in ((8, 8, "sqrt"), (16, 8, "sqrt"), (16, 8, "fixed"))], ""


# %%
# Ranges side by side, each in words.


def draw_ranges(ax, groups: dict[str, dict[str, Range]]) -> None:
    """Normalised updates by source and rule."""
    for i, ranges in enumerate(groups.values()):
        for rule, shade, shift in (("sqrt", house.LEARNING, -0.17), ("fixed", house.FIXED, 0.17)):
            low, high = ranges[rule]
            middle, half = (low + high) / 2, max((high - low) / 2, 0.004)
            ax.bar(i + shift, 2 * half, 0.24, bottom=middle - half, color=shade)
            said = f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f}\nto {high:.2f}"
            ax.annotate(
                said, (i + shift, high), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=7, color=shade
            )
    ax.axhline(IDEAL, color=house.REFERENCE, lw=1, ls="--")
    ax.annotate("ideal 0.5", (-0.45, IDEAL - 0.008), va="top", fontsize=7.5, color=house.REFERENCE)
    ax.set_xticks(range(len(groups)), list(groups), fontsize=7.5)
    ax.set(xlim=(-0.5, len(groups) - 0.5), ylim=(0.4, 1.0))
    ax.set_ylabel("updates, relative to the reference")
    ax.set_title("Updates at twice the batch")


def draw_arms(ax, grid: np.ndarray, scores: list[np.ndarray]) -> None:
    """Three learning curves with their names."""
    for score, shade, name, height in zip(scores, SHADES, ARMS, (0.2, 0.12, 0.04), strict=True):
        ax.plot(grid, 100 * score, color=shade, lw=1.6)
        ax.annotate(name, (0.97, height), xycoords="axes fraction", ha="right", color=shade, fontsize=7.5)
    ax.set_xlim(0, grid[-1])
    ax.set_ylabel("validation score (%)")
    house.thousands(ax, "kept responses (thousands)")


def figure():
    """Draw it."""
    fig, axes = house.panels(1, 3, height=3.5, width_ratios=(1, 1, 1.1))
    scores, ranges = simulated()
    draw_arms(axes[0], GRID, scores)
    axes[0].set_title("Simulated, $P$ = 128")
    tiny, why = measured_curves()
    if tiny:
        draw_arms(axes[1], TINY_GRID, tiny)
        axes[1].set_title("Measured, $P$ = 8")
    else:
        house.absent(axes[1], "Measured, $P$ = 8", why)
    draw_ranges(
        axes[2], {"published\n(the paper)": published(), "simulated": ranges, "measured\n(small transf.)": measured()}
    )
    house.note(
        fig,
        f"Published: {house.PAPER}, figure 6. Simulated: {house.WORLD}; GRPO, G = 8, 4 runs per arm, targets 57 to 61 "
        "%.",
        f"Measured: {house.TINY}, GRPO, G = 8, 3 runs per arm, targets 38, 45 and 52 %. Bars are ranges over targets.",
    )
    return fig


if __name__ == "__main__":
    house.show(figure())
