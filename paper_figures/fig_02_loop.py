r"""
2. The loop of sampling and training
====================================

Reinforcement learning of language models closes a loop: the policy samples responses, one token at a time, and the
same responses train it, all token positions at once. Both halves run on GPUs and share the batch, and the batch does
not do the same to them. Right: time per response of either half over the batch.

**Predicted** from specifications alone (model, GPUs and lengths at the foot), by
:func:`batchsim.calibrate.specified.composed_stages`; the drawing on the left is a sketch. Neither is a measurement,
and ``batchsim validate rl-steps`` says how far such predictions are from published steps.
"""

# %%
# The paper's model on 32 GPUs, as a plan.
from __future__ import annotations

import house
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from batchsim.calibrate.specified import composed_stages
from batchsim.plan import plan_from_dict

PLAN = {
    "recipe": {"prompts": 128, "group_size": 8, "batches": [int(64 * 2**k) for k in range(10)]},
    "model": {"name": "Qwen3-30B-A3B"},
    "gpu": {"name": "H100", "count": 32},
    "engine": {"tensor_parallel": 2},
    "lengths": {"prompt_mean": 200, "response_mean": 4000, "max_tokens": 16384},
}


def stages():
    """Stages of a rollout step over the batch, without the models' errors."""
    plan = plan_from_dict(PLAN)
    return composed_stages(plan, plan.recipe)


# %%
# The drawing.


def loop(ax) -> None:
    """Sampling and training, and what they hand to each other."""
    ax.set(xlim=(0, 10), ylim=(0, 8.6))
    ax.set_axis_off()
    ax.set_title("One policy, two workloads")
    for x, shade, head, text in (
        (0.2, house.SYSTEM, "Sampling", "one token at a time\nreads weights and KV cache\nbound by memory bandwidth"),
        (5.6, house.LEARNING, "Training", "all tokens at once\nforward, backward, update\nbound by compute"),
    ):
        ax.add_patch(
            FancyBboxPatch(
                (x, 2.55), 4.2, 3.3, boxstyle="round,pad=0.02,rounding_size=0.25", fc="white", ec=shade, lw=1.6
            )
        )
        ax.text(x + 2.1, 5.25, head, ha="center", va="center", color=shade, fontsize=11, weight="bold")
        ax.text(x + 2.1, 3.7, text, ha="center", va="center", fontsize=6.6, linespacing=1.5)
    for (start, end), shade, bend in (
        (((2.4, 5.95), (7.6, 5.95)), house.SYSTEM, -0.35),
        (((7.6, 2.45), (2.4, 2.45)), house.LEARNING, -0.35),
    ):
        ax.add_patch(
            FancyArrowPatch(
                start, end, connectionstyle=f"arc3,rad={bend}", arrowstyle="-|>", mutation_scale=13, lw=1.6, color=shade
            )
        )
    ax.text(
        5,
        7.25,
        "responses and rewards\ngeneration batch, $B_{gen}$",
        ha="center",
        va="bottom",
        fontsize=7.8,
        color=house.SYSTEM,
    )
    ax.text(
        5, 1.15, "new weights\nafter a training batch, $B$", ha="center", va="top", fontsize=7.8, color=house.LEARNING
    )


def figure():
    """Draw it."""
    fig, (left, right) = house.panels(1, 2, height=3.4, width_ratios=(1.25, 1))
    loop(left)
    ds = stages()
    batch = ds["rollout_batch"].values.astype(float)
    ends = []
    for name, label, shade in (("gen_time", "sampling", house.SYSTEM), ("train_time", "training", house.LEARNING)):
        each = 1e3 * ds[name].values / batch
        right.plot(batch, each, "-o", color=shade, ms=3.5)
        ends.append((each[-1], label, shade))
    house.ratio_axis(right, (32, 64, 128, 256, 512), "time per response (ms)")
    house.batch_axis(right, batch[::3], "responses per rollout step", room=1.2)
    right.set_xlim(batch[0] / 1.2, batch[-1] * 1.2)
    right.set_title("What the batch does to each")
    house.end_labels(right, ends)
    recipe, gpu, lengths = PLAN["model"]["name"], PLAN["gpu"], PLAN["lengths"]
    house.note(
        fig,
        f"Predicted (right) from specifications: {recipe}, {gpu['count']} {gpu['name']}, synchronous, responses of "
        f"{lengths['response_mean']:,} tokens in the mean (lognormal), at most {lengths['max_tokens']:,}. Left: a "
        "sketch.",
    )
    return fig


if __name__ == "__main__":
    house.show(figure())
