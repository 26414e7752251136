r"""
12. A small transformer: measured against predicted
===================================================

Beyond the paper: our GRPO sweep of a small transformer over a 64-fold range of batches, forecast from its smallest
two batches and from its smallest three.

**Measured**: :math:`r_N`, :math:`r_q` and :math:`T/T_0` at a score of 45 %, three runs per batch; an interval is that
of evaluations and of the spread between runs. **Predicted** from the pilots' logs alone, learning-rate probes and
fixed-rate runs at the pilots' batches included: medians and central 80 % intervals of :func:`batchsim.predict`. This
needs the raw logs; without them :math:`r_N` alone is drawn, from the shipped table, with the law of the pilots'
gradient norms.

:math:`r_N` is predicted high at every held-out batch. From two pilots :math:`r_q` is a quarter low up to 2,048:
seconds are those of one shared CPU core, and pilots scatter by a third between seeds. The fall of :math:`r_q` at
4,096 is outside an affine law with a plateau.
"""

# %%
# Two forecasts of the same sweep.
from __future__ import annotations

import house
import numpy as np

from batchsim import predict, sample_cost_ratio
from batchsim.predict import compare

TARGET = 0.45
BATCHES = tuple(64.0 * 2**k for k in range(7))
PILOTS = {"from 2 pilots": BATCHES[:2], "from 3 pilots": BATCHES[:3]}
SHADES = {"from 2 pilots": house.OTHER, "from 3 pilots": house.LEARNING}
RATIOS = {
    "sample_cost_ratio": ("Sample cost", "$r_N$", (1, 1.5, 2, 3, 4)),
    "throughput_ratio": ("Throughput", "$r_q$", (1, 1.25, 1.5, 2, 2.5)),
    "time_ratio": ("Time to target", "$T/T_0$", (0.5, 0.7, 1, 1.5, 2, 3)),
}


def forecasts() -> tuple[dict, str]:
    """A prediction per set of pilots, or why there is none."""
    runs, why = house.measured_runs("tiny_grpo", chunks=8)
    if runs is None:
        return {}, why
    return {
        name: predict(runs, target=TARGET, pilot_batches=pilots, batches=BATCHES, lr_rule="sqrt")
        for name, pilots in PILOTS.items()
    }, ""


def measured(ds, ratio: str) -> np.ndarray:
    """Batch, lower limit, estimate and upper limit of a measured ratio, (4, arm); r_q is that of steady steps."""
    rows = [c for c in compare(ds) if c["claim"] == ratio]
    found = [(c["train_batch"], c["measured_interval"][0], c["measured"], c["measured_interval"][1]) for c in rows]
    return np.array([(BATCHES[0], 1.0, 1.0, 1.0), *sorted(found)], dtype=float).T


# %%
# Measured points over both forecasts.


def draw(ax, found: dict, ratio: str) -> None:
    """One ratio over the batch."""
    title, symbol, ticks = RATIOS[ratio]
    ends = []
    for name, ds in found.items():
        tail = (1 - ds.attrs["level"]) / 2
        low, middle, high = np.quantile(ds[ratio].values, [tail, 0.5, 1 - tail], axis=0, method="nearest")
        ax.fill_between(BATCHES, low, high, color=SHADES[name], alpha=0.16, lw=0)
        ax.plot(BATCHES, middle, color=SHADES[name], lw=1.5)
        ends.append((float(middle[-1]), name.replace("from ", ""), SHADES[name]))
    batch, low, estimate, high = measured(next(iter(found.values())), ratio)
    error = np.nan_to_num(np.abs(np.stack([estimate - low, high - estimate])), posinf=0.0)
    ax.errorbar(batch, estimate, error, fmt="s", color=house.MEASURED, ms=4, lw=0.8, zorder=4)
    ax.axhline(1.0, color=house.REFERENCE, lw=0.8, ls=":")
    house.batch_axis(ax, BATCHES, "responses per update $B$", room=1.2)
    ax.set_xticks(BATCHES[::2], [house.short(b) for b in BATCHES[::2]])
    house.ratio_axis(ax, ticks, f"{symbol} relative to $B$ = 64")
    ax.set_title(title)
    house.end_labels(ax, ends, size=7)


def draw_shipped(ax) -> None:
    """r_N from the shipped table, and the law of the pilots' norms."""
    rows = house.sweep_rows("tiny_grpo_runs.csv", lr_rule="sqrt", group_size=8)
    needed = np.array([house.responses_to_target(own, f"{TARGET:g}") for own in rows.values()])
    low, estimate, high = needed.T / needed[0, 1]
    pilots = [r for p, own in rows.items() if 8 * p in PILOTS["from 3 pilots"] for r in own]
    scale = sum(float(r["noise_trace"]) for r in pilots) / sum(float(r["signal_square"]) for r in pilots)
    cost = [sample_cost_ratio(BATCHES, reference_batch=64, noise_scale=scale, snr_shape=k) for k in (np.inf, 0.5)]
    ax.fill_between(BATCHES, *cost, color=house.LEARNING, alpha=0.16, lw=0)
    ax.errorbar(BATCHES, estimate, [estimate - low, high - estimate], fmt="s", color=house.MEASURED, ms=4, lw=0.8)
    house.batch_axis(ax, BATCHES, "responses per update $B$", room=1.2)
    ax.set_xticks(BATCHES[::2], [house.short(b) for b in BATCHES[::2]])
    house.ratio_axis(ax, RATIOS["sample_cost_ratio"][2], "$r_N$ relative to $B$ = 64")
    ax.set_title("Sample cost")


def figure():
    """Draw it."""
    fig, axes = house.panels(1, 3, height=3.3)
    found, why = forecasts()
    if found:
        for ax, ratio in zip(axes, RATIOS, strict=True):
            draw(ax, found, ratio)
        predicted = (
            "Predicted (bands: central 80 %) from the runs at B = 64 and 128, or 64, 128 and 256, and their norms."
        )
    else:
        draw_shipped(axes[0])
        for ax, ratio in zip(axes[1:], list(RATIOS)[1:], strict=True):
            house.absent(ax, RATIOS[ratio][0], why)
        predicted = (
            "Predicted (band): the law from the pilots' gradient norms alone, k = 1/2 to drift, at a small rate."
        )
    house.note(
        fig,
        f"Measured (black): {house.TINY}, GRPO, G = 8, sqrt rule, 3 runs per batch, to a score of "
        f"{house.percent(TARGET)}.",
        predicted,
    )
    return fig


if __name__ == "__main__":
    house.show(figure())
