r"""
8. Two critical batches
=======================

Two limits to a batch. The *critical generation batch* is where generation has 90 % of its plateau throughput: beyond
it more sequences gain little, and the KV cache may end before it. The *critical training batch* is where responses to
the target have risen by 10 %: beyond it more responses per update no longer make up for fewer updates.

The paper's figure 8 is a sketch. **Predicted** (left) is the decode throughput of the paper's model on one replica of
two H100, from specifications and kernel tables, at three mean contexts; what the KV cache cannot hold waits.
**Predicted** (right) is :math:`r_N` of our small transformer from gradient norms of its runs at :math:`P \le 32`
alone, for two shapes of the law; **measured** is :math:`r_N` of its sweep, which no number of the curves has seen.
Both tables ship with the package.
"""

# %%
# Left: decode steps of one replica over the sequences in flight, up to what the KV cache holds.
from __future__ import annotations

import house
import numpy as np

from batchsim.learning.sample_cost import critical_train_batch, sample_cost_ratio
from batchsim.specs.gpus import find_gpu
from batchsim.specs.models import find_model
from batchsim.system.memory import cache_room
from batchsim.system.pipeline import critical_on_curve
from batchsim.system.roofline import decode_time, deploy

MODEL, GPU, TENSOR = "Qwen3-30B-A3B", "H100", 2
CONTEXTS = (1024, 4096, 16_384)
LARGEST = 4096
REFERENCE = 64.0
SMALL = 32
TARGETS = ("0.38", "0.45", "0.52")
SHAPE = 0.65
"""k of the moments per coordinate, measured at two frozen policies."""


def generation(context: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Generation batch, throughput [tokens/s] and critical batch of one replica, up to what its KV cache holds."""
    model, gpu = find_model(MODEL), find_gpu(GPU)
    deployment = deploy(model, gpu, tensor_parallel=TENSOR, engine="vllm")
    room = cache_room(model, memory=float(gpu.usable_memory or 0), tensor_parallel=TENSOR)
    batch = np.unique(np.round(np.geomspace(1, room.concurrency_max(context), 120)))
    ds = decode_time(deployment, batch=batch, context=context)
    critical = critical_on_curve(batch, ds["decode_step_time"].values)
    return batch, ds["decode_throughput"].values, critical


# %%
# Right: the noise scale of the small runs' chunk norms, trace over signal, each averaged before dividing.


def noise_scale() -> float:
    """B_noise [responses] of the sqrt-rule runs at P <= 32, up to a score of 45 %."""
    rows = house.sweep_rows("tiny_grpo_runs.csv", lr_rule="sqrt", group_size=8)
    own = [row for p, found in rows.items() if p <= SMALL for row in found]
    return sum(float(r["noise_trace"]) for r in own) / sum(float(r["signal_square"]) for r in own)


def measured(target: str) -> dict[int, tuple[float, float, float]]:
    """r_N of the measured sweep with the limits of its evaluation grid, by batch."""
    rows = house.sweep_rows("tiny_grpo_runs.csv", lr_rule="sqrt", group_size=8)
    needed = {8 * p: house.responses_to_target(own, target) for p, own in rows.items()}
    base = needed[int(REFERENCE)][1]
    return {b: (low / base, middle / base, high / base) for b, (low, middle, high) in needed.items()}


# %%
# Both limits as lines where the curves pass them.


def draw_generation(ax) -> None:
    """Throughput over the sequences in flight."""
    ends, most = [], 0.0
    for context, shade in zip(CONTEXTS, ("#F2A36B", house.SYSTEM, "#7F3700"), strict=True):
        batch, rate, critical = generation(context)
        ax.plot([*batch, LARGEST], [*(rate / 1e3), rate[-1] / 1e3], color=shade)
        ax.plot(batch[-1], rate[-1] / 1e3, "|", color=shade, ms=10, mew=2)
        at = float(np.interp(critical, batch, rate)) / 1e3
        ax.plot(critical, at, "o", color="white", mec=shade, mew=1.6, ms=6, zorder=4)
        ax.plot([critical, critical], [0, at], ":", color=shade, lw=1)
        ends.append((float(rate[-1]) / 1e3, f"{context:,}\ntokens", shade))
        most = max(most, rate[-1] / 1e3)
    house.batch_axis(ax, [4**k for k in range(7)], "generation batch of one replica (responses)", room=1.0)
    ax.set_ylim(0, 1.12 * most)
    house.end_labels(ax, ends)
    ax.text(
        0.04,
        0.95,
        "circle: 90 % of the plateau\nbar: the KV cache is full,\nfurther responses wait",
        transform=ax.transAxes,
        va="top",
        fontsize=7.5,
        color="#444444",
    )
    ax.set_ylabel("generation throughput (thousand tokens/s)")
    ax.set_title("Critical generation batch")


def draw_training(ax) -> None:
    """r_N over the batch."""
    grid = REFERENCE * np.geomspace(1, 64, 100)
    scale = noise_scale()
    low, high = (
        sample_cost_ratio(grid, reference_batch=REFERENCE, noise_scale=scale, snr_shape=k) for k in (np.inf, SHAPE)
    )
    ax.fill_between(grid, low, high, color=house.LEARNING, alpha=0.2, lw=0)
    for cost, k, style in ((low, np.inf, "--"), (high, SHAPE, "-")):
        ax.plot(grid, cost, style, color=house.LEARNING)
        critical = float(critical_train_batch(reference_batch=REFERENCE, noise_scale=scale, snr_shape=k))
        at = float(np.interp(critical, grid, cost))
        ax.plot(critical, at, "o", color="white", mec=house.LEARNING, mew=1.6, ms=6, zorder=4)
        ax.plot([critical, critical], [0.8, at], ":", color=house.LEARNING, lw=1)
    for target, mark in zip(TARGETS, "os^", strict=True):
        found = measured(target)
        b = np.array(list(found))
        left, middle, right = np.array(list(found.values())).T
        ax.errorbar(
            b,
            middle,
            [middle - left, right - middle],
            fmt=mark,
            color=house.MEASURED,
            ms=3.8,
            lw=0.8,
            alpha=0.85,
            zorder=3,
        )
    house.batch_axis(ax, 64 * 2.0 ** np.arange(7), "kept responses per update $B$")
    ax.tick_params("x", labelsize=7)
    house.ratio_axis(ax, (1, 1.25, 1.5, 2, 2.5, 3), "responses to target relative to $B$ = 64, $r_N$")
    ax.set_ylim(0.93, 3.2)
    house.end_labels(ax, [(low[-1], "drift", house.LEARNING), (high[-1], f"$k$ = {SHAPE:g}", house.LEARNING)])
    ax.text(
        0.04, 0.95, "circle: 10 % above small batches", transform=ax.transAxes, va="top", fontsize=7.5, color="#444444"
    )
    ax.set_title("Critical training batch")


def figure():
    """Draw it."""
    fig, (left, right) = house.panels(1, 2, height=3.8)
    draw_generation(left)
    draw_training(right)
    house.note(
        fig,
        f"Predicted (left): {MODEL} in bf16 on {TENSOR} {GPU}, vLLM, from specifications and kernel tables, at three "
        "mean "
        "contexts in flight; the drain of the longest responses is left out.",
        f"Predicted (right, lines) from a noise scale of {noise_scale():,.0f} responses (chunk norms at P <= "
        f"{SMALL}), sqrt "
        "rule far below the best rate. Measured (black): small transformer, GRPO, 3 runs per batch, targets 38, 45, "
        "52 %.",
    )
    return fig


if __name__ == "__main__":
    house.show(figure())
