r"""
5. The unit of a batch: all responses
=====================================

A batch grows by more prompts or by more responses to each prompt. At equal :math:`P G` curves and gradient norms
nearly coincide, so the number of responses is a fair unit, where responses to one prompt vary more than prompts do.

**Simulated** (top): pairs of the paper's, (128, 8) and (64, 16), (256, 8) and (128, 16), in a world chosen so that
responses dominate. Norms at equal :math:`P G` still differ, by 8 to 17 %: with group-normalised advantages they grow
with :math:`G` by :math:`1 - 1/G`, 7 % from 8 to 16, which Adam does not see, and fewer prompts leave more of their
variance. **Measured** (bottom): our small transformer at :math:`P G` = 512, where prompts vary and responses are
*not* the unit: 16 prompts of 32 responses cost more than twice as much as 128 of 4. Its curves need the raw logs;
norms and costs ship with the package.
"""

# %%
# The simulated pairs, the learning rate following :math:`P G`.
from __future__ import annotations

import house
import numpy as np

from batchsim.learning.worlds import simulate_grpo, softmax_world

PAIRS = ((128, 8), (64, 16), (256, 8), (128, 16))
RESPONSES = 400_000
GRID = np.linspace(0, RESPONSES, 41)
TINY_PAIRS = ((128, 4), (64, 8), (32, 16), (16, 32))
TINY_GRID = np.linspace(0, 40_960, 21)
BINS = 14
TARGET = "0.45"

Curves = dict[tuple[int, int], np.ndarray]


def norm_over(runs, grid: np.ndarray) -> np.ndarray:
    """Root mean square norm of repeated runs within stretches of responses, at the stretches' middles."""
    edges = np.linspace(0, grid[-1], BINS + 1)
    responses = np.concatenate([r["responses"].values for r in runs])
    squares = np.concatenate([r["grad_norm"].values ** 2 for r in runs])
    known = np.isfinite(squares) & (responses <= edges[-1])
    at = np.clip(np.digitize(responses[known], edges) - 1, 0, BINS - 1)
    return np.sqrt(np.bincount(at, squares[known], BINS) / np.maximum(np.bincount(at, minlength=BINS), 1))


def simulated() -> tuple[Curves, Curves]:
    """Mean score over `GRID` and norms by stretch, by (P, G)."""
    world = softmax_world(
        dim=512, answers=64, correct=16, prompts=1024, validation=256, start_score=0.3, label_noise=2.0, seed=7
    )
    sizes = np.array(PAIRS)
    batch = sizes.prod(axis=1)
    runs = simulate_grpo(
        world,
        prompts=sizes[:, 0],
        group_size=sizes[:, 1],
        learning_rate=0.01 * np.sqrt(batch / 1024),
        responses_max=RESPONSES,
        evaluate_every=16_384,
        seeds=2,
        seed=1,
    )
    arms = house.by_arm(runs, "prompts", "group_size")
    return {k: house.mean_curve(arms[k], GRID) for k in PAIRS}, {k: norm_over(arms[k], GRID) for k in PAIRS}


# %%
# The measured pairs.


def measured_curves() -> tuple[Curves, str]:
    """Mean score over `TINY_GRID` by (P, G), or why there is none."""
    runs, why = house.measured_runs("tiny_grpo", chunks=8)
    if runs is None:
        return {}, why
    arms = house.by_arm(runs, "prompts", "group_size", "lr_rule")
    return {k: house.mean_curve(arms[*k, "sqrt"], TINY_GRID) for k in TINY_PAIRS}, ""


def measured_costs() -> dict[tuple[int, int], tuple[float, float]]:
    """Responses to a score of 45 % relative to (128, 4), and root mean square norm, by (P, G)."""
    rows = {k: house.sweep_rows("tiny_grpo_runs.csv", lr_rule="sqrt", group_size=k[1])[k[0]] for k in TINY_PAIRS}
    cost = {k: house.responses_to_target(own, TARGET)[1] for k, own in rows.items()}
    return {k: (cost[k] / cost[TINY_PAIRS[0]], house.mean_norm(rows[k])) for k in TINY_PAIRS}


# %%
# Blue is a group of 8, orange of 16; solid 1,024 responses per update, dashed 2,048.


def draw_simulated(curves, norms, scores: Curves, norm: Curves) -> None:
    """Scores and norms of the paper's pairs."""
    middles = (np.arange(BINS) + 0.5) * GRID[-1] / BINS
    ends, tips = [], []
    for (p, g), score in scores.items():
        shade, style = (house.LEARNING if g == 8 else house.FIXED), ("-" if p * g == 1024 else "--")
        curves.plot(GRID, 100 * score, style, color=shade, lw=1.4)
        norms.plot(middles, norm[p, g], style, color=shade, lw=1.4)
        ends.append((100 * score[-1], f"({p}, {g})", shade))
        tips.append((norm[p, g][-1], f"({p}, {g})", shade))
    norms.set_ylim(0.8 * min(t[0] for t in tips), 1.12 * max(t[0] for t in tips))
    for ax, found, label in ((curves, ends, "validation score (%)"), (norms, tips, "root mean square norm")):
        ax.set_xlim(0, GRID[-1])
        ax.set_ylabel(label)
        house.thousands(ax)
        house.end_labels(ax, found, gap=0.085)


def draw_costs(ax) -> None:
    """Cost and norm of the measured pairs."""
    found = measured_costs()
    x = np.arange(len(found))
    cost, norm = np.array(list(found.values())).T
    ax.bar(x, cost, 0.5, color=house.ramp(x.size))
    for i, (c, n) in enumerate(zip(cost, norm, strict=True)):
        ax.annotate(f"{c:.2f}", (i, c), xytext=(0, 2), textcoords="offset points", ha="center", fontsize=8)
        ax.annotate(f"norm\n{n:.2f}", (i, 0.08), ha="center", fontsize=7, color="white" if i else "black")
    ax.set_xticks(x, [f"({p}, {g})" for p, g in found])
    ax.set_xlabel("($P$, $G$), 512 responses per update")
    ax.set_ylabel("responses to target, relative")
    ax.set_ylim(0, 1.1 * cost.max())


def figure():
    """Draw it."""
    fig, axes = house.panels(2, 2, height=5.4, width_ratios=(1.2, 1))
    draw_simulated(axes[0, 0], axes[0, 1], *simulated())
    axes[0, 0].set_title("Simulated: equal $P\\,G$")
    axes[0, 1].set_title("Actor gradient norm")
    tiny, why = measured_curves()
    title = "Measured: small transformer, $P\\,G$ = 512"
    if tiny:
        ends = []
        for (key, score), shade in zip(tiny.items(), house.ramp(len(tiny)), strict=True):
            axes[1, 0].plot(TINY_GRID, 100 * score, color=shade, lw=1.4)
            ends.append((100 * score[np.isfinite(score)][-1], f"({key[0]}, {key[1]})", shade))
        axes[1, 0].set(xlim=(0, TINY_GRID[-1]), ylabel="validation score (%)", title=title)
        house.thousands(axes[1, 0])
        house.end_labels(axes[1, 0], ends, gap=0.085)
    else:
        house.absent(axes[1, 0], title, why)
    draw_costs(axes[1, 1])
    axes[1, 1].set_title("Measured cost at a score of 45 %")
    house.note(
        fig,
        "Simulated (top): softmax policy over 512 shared features, 1,024 prompts of 64 answers, 16 of them correct; "
        "GRPO, "
        "learning rate following the square root of P G, 2 runs each. Solid: P G = 1,024, dashed: 2,048.",
        f"Measured (bottom): {house.TINY}, GRPO, one learning rate, 3 runs each; norms up to a score of 45 %. The "
        "paper's "
        "own curves are not public.",
    )
    return fig


if __name__ == "__main__":
    house.show(figure())
