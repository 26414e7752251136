r"""
15. The verdict depends on the target
=====================================

Beyond the paper: :math:`r_N`, and with it the verdict on a batch, belongs to a target. Each cell is one batch at one
target: its measured :math:`T/T_0`, and whether :math:`r_q > r_N` with probability 0.9 or more (wins), 0.1 or less
(loses), or neither.

**Measured** (left): our GRPO sweep of a small transformer, three runs per batch, from the raw logs. **Simulated**
(right): the policy of figure 3, three runs per batch, with a step that takes 10 s and 0.05 s for every generated
response. :func:`batchsim.measure.measure_targets` makes both; no model is in it.
"""

# %%
# Both sweeps, arm by arm under the sqrt rule.
from __future__ import annotations

import house
import numpy as np

from batchsim.learning.worlds import simulate_grpo
from batchsim.measure import measure_targets

TINY_TARGETS = tuple(round(0.34 + 0.03 * k, 2) for k in range(8))
WORLD_TARGETS = tuple(round(0.565 + 0.01 * k, 3) for k in range(6))
STEP = (10.0, 0.05)
PROMPTS = (64, 256, 512, 1024, 2048, 4096)
COLOURS = {"wins": "#7FB8D8", "undecided": "#E6E6E6", "loses": "#EFAF80", "": "#FFFFFF"}


def verdicts(runs, targets: tuple[float, ...]) -> tuple[list[float], np.ndarray, np.ndarray]:
    """Batches beyond the reference, and T/T0 and verdict by (batch, target)."""
    ds = measure_targets(runs, targets)
    arm = np.flatnonzero(
        (ds["lr_rule"].values[0] == "sqrt") & (ds["group_size"].values[0] == ds["group_size"].values[0, 0])
    )
    arm = arm[np.argsort(ds["train_batch"].values[0, arm], kind="stable")]
    time = ds["time_ratio"].sel(bound="estimate").values[:, arm].T
    return ds["train_batch"].values[0, arm].tolist(), time, ds["verdict"].values[:, arm].T


def simulated():
    """Runs of the policy of figure 3, with times."""
    return simulate_grpo(
        house.policy_world(),
        prompts=PROMPTS,
        learning_rate=0.006,
        lr_rule="sqrt",
        responses_max=700_000,
        target=max(WORLD_TARGETS),
        evaluate_every=np.maximum(8192, 8 * np.array(PROMPTS)),
        step_time_intercept=STEP[0],
        step_time_slope=STEP[1],
        seeds=3,
        seed=1,
    )


# %%
# One cell per batch and target.


def draw(ax, runs, targets: tuple[float, ...], title: str) -> None:
    """Verdicts as coloured cells with T/T0 in them."""
    batches, time, verdict = verdicts(runs, targets)
    for y, row in enumerate(verdict):
        for x, said in enumerate(row):
            ax.add_patch(house.plt.Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, color=COLOURS[str(said)], lw=0))
            known = np.isfinite(time[y, x])
            ax.text(x, y, f"{time[y, x]:.2f}" if known else "?", ha="center", va="center", fontsize=7)
    ax.set_xticks(range(len(targets)), [f"{100 * t:g}" for t in targets])
    ax.set_yticks(range(len(batches)), [house.short(b) for b in batches])
    ax.set(xlim=(-0.5, len(targets) - 0.5), ylim=(-0.5, len(batches) - 0.5))
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    ax.set_xlabel("validation target (%)")
    ax.set_ylabel("responses per update $B$")
    ax.set_title(title)


def figure():
    """Draw it."""
    fig, (left, right) = house.panels(1, 2, height=3.3, width_ratios=(1.25, 1))
    runs, why = house.measured_runs("tiny_grpo", chunks=8)
    title = "Measured: small transformer, $B_0$ = 64"
    if runs is None:
        house.absent(left, title, why)
    else:
        draw(left, runs, TINY_TARGETS, title)
    draw(right, simulated(), WORLD_TARGETS, "Simulated: policy, $B_0$ = 512")
    patches = [house.plt.Rectangle((0, 0), 1, 1, color=COLOURS[name]) for name in ("wins", "undecided", "loses")]
    right.legend(
        patches,
        ("wins", "undecided", "loses"),
        ncols=3,
        loc="upper right",
        bbox_to_anchor=(1.0, -0.2),
        handlelength=1.2,
    )
    house.note(
        fig,
        f"Measured (left): {house.TINY}, GRPO, G = 8, sqrt rule. Simulated (right): {house.WORLD}; sqrt rule, a step "
        f"in {STEP[0]:g} s + {STEP[1]:g} s per generated response, 3 runs per batch.",
        "Numbers are T/T0 at that target; colours say whether r_q > r_N with probability 0.9 or more (wins), 0.1 or "
        "less (loses).",
    )
    return fig


if __name__ == "__main__":
    house.show(figure())
