r"""
4. PPO: the critic's norm is flat
=================================

PPO with one response per prompt aligns over a range of batches as GRPO does. The actor's gradient norm falls and
flattens at the largest batch; the critic's stays flat and noisy, so actor and critic have critical batches of their
own.

**Simulated** (top): the policy of figure 3 trained by PPO at :math:`P` = 256 to 4,096, with a critic at 2 % of the
actor's learning rate. That rate is a choice: a critic at the actor's own rate follows the policy closely, its
gradient is then nearly all noise and its norm falls as steeply as the actor's (``batchsim validate findings``).
**Measured** (bottom): our sweep of a small transformer, :math:`P` = 64 to 4,096, two runs per batch.
"""

# %%
# The simulated sweep.
from __future__ import annotations

import house
import numpy as np

from batchsim.learning.worlds import simulate_ppo

PROMPTS = tuple(256 * 2**k for k in range(5))
RESPONSES = 400_000
GRID = np.linspace(0, RESPONSES, 41)
TINY_GRID = np.linspace(0, 36_864, 25)
RATE, CRITIC_SHARE = 0.003, 0.02


def simulated() -> tuple[dict[int, np.ndarray], dict[str, dict[int, float]]]:
    """Mean score over `GRID`, and norms of actor and critic, by prompts per update."""
    runs = simulate_ppo(
        house.policy_world(),
        prompts=PROMPTS,
        learning_rate=RATE,
        critic_learning_rate=CRITIC_SHARE * RATE,
        lr_rule="sqrt",
        responses_max=RESPONSES,
        evaluate_every=np.maximum(8192, PROMPTS),
        seeds=2,
        seed=1,
    )
    arms = house.by_arm(runs, "prompts")
    norms = {name: {p: house.rms_norm(a, name) for p, a in arms.items()} for name in ("grad_norm", "critic_grad_norm")}
    return {p: house.mean_curve(a, GRID) for p, a in arms.items()}, norms


# %%
# The measured sweep.


def measured_curves() -> tuple[dict[int, np.ndarray], str]:
    """Mean score over `TINY_GRID` by prompts per update, or why there is none."""
    runs, why = house.measured_runs("tiny_ppo", chunks=8)
    if runs is None:
        return {}, why
    return {p: house.mean_curve(a, TINY_GRID) for p, a in house.by_arm(runs, "train_batch").items()}, ""


def measured_norms() -> dict[str, dict[int, float]]:
    """Norms of actor and critic by prompts per update, from the shipped table."""
    rows = house.sweep_rows("tiny_ppo_runs.csv")
    return {
        name: {p: house.mean_norm(own, name) for p, own in rows.items()} for name in ("grad_norm", "critic_grad_norm")
    }


# %%
# Norms relative to the smallest batch, so that both networks share an axis.


def draw_norms(ax, found: dict[str, dict[int, float]]) -> None:
    """Actor and critic over the batch."""
    ends = []
    for name, label, shade in (("grad_norm", "actor", house.LEARNING), ("critic_grad_norm", "critic", house.OTHER)):
        p, norm = np.array(list(found[name].items())).T
        ax.plot(p, norm / norm[0], "-o", color=shade)
        ends.append((norm[-1] / norm[0], label, shade))
    line = house.half_slope(ax, p, (p[0], 1.0))
    house.ratio_axis(ax, (0.125, 0.25, 0.5, 1), f"norm relative to $P$ = {p[0]:g}")
    ax.set_ylim(line[-1] / 1.5, 1.6)
    house.batch_axis(ax, p, "prompts per update $P$ ($G$ = 1)")
    ax.tick_params("x", labelsize=7)
    house.end_labels(ax, ends)


def figure():
    """Draw it."""
    fig, axes = house.panels(2, 2, height=5.6, width_ratios=(1.35, 1))
    scores, norms = simulated()
    house.draw_curves(axes[0, 0], GRID, scores)
    axes[0, 0].set_title("Simulated policy, P = 256 to 4,096")
    axes[0, 1].set_title("Gradient norms")
    draw_norms(axes[0, 1], norms)
    tiny, why = measured_curves()
    if tiny:
        house.draw_curves(axes[1, 0], TINY_GRID, tiny)
        axes[1, 0].set_title("Measured: small transformer, P = 64 to 4,096")
    else:
        house.absent(axes[1, 0], "Measured: small transformer, P = 64 to 4,096", why)
    draw_norms(axes[1, 1], measured_norms())
    aligned = f"simulated curves stay within one point up to P = {house.short(house.aligned_up_to(scores))}"
    house.note(
        fig,
        f"Simulated (top): {house.WORLD}; PPO, sqrt rule, critic at {house.percent(CRITIC_SHARE)} of the actor's rate "
        "(a choice), "
        f"2 runs per batch; {aligned}.",
        f"Measured (bottom): {house.TINY}, PPO, sqrt rule, 2 runs per batch; norms up to a score of 45 %. "
        "The paper's own curves are not public.",
    )
    return fig


if __name__ == "__main__":
    house.show(figure())
