r"""
11. Eighteen runs of a 397B model: measured against predicted
=============================================================

Beyond the paper: GRPO of a 397B model by MLPerf Training, six runs at each of :math:`B` = 256, 512 and 1,024. The
runs at 256 and 512 are the pilots; what they say of 1,024 is held against what was measured there.

**Measured**: seconds of a steady rollout step, run by run; the table ships with the package. **Predicted** (left):
the affine step-time law fitted to the pilots' twelve runs, with its 80 % interval. **Predicted** (right): every
system row of ``batchsim validate mlperf``, which needs the raw logs, as predicted over measured; the peer is a
straight line through the pilots in logarithms. Learning is not in it: every run passes its target at its first
evaluation, so :math:`r_N` has no bounds, and six rows of one machine are three readings of one number.
"""

# %%
# Step times of single runs, and the law from the pilots alone.
from __future__ import annotations

import house
import numpy as np

from batchsim.system.step_time import StepTimeFit, fit_step_time
from batchsim.validate.mlperf import validate_mlperf

PILOTS, ASKED = (256, 512), 1024
SOURCE = "MLPerf Training (mlcommons/training @ aa344c7f, qwen35_397b_grpo)"


def step_times() -> dict[int, list[float]]:
    """Mean seconds of a steady rollout step of each run, by batch."""
    found: dict[int, list[float]] = {}
    for row in house.shipped("mlperf_grpo_runs.csv"):
        found.setdefault(int(row["train_batch"]), []).append(float(row["step_seconds"]))
    return dict(sorted(found.items()))


def law() -> StepTimeFit:
    """The affine law of the pilots' runs, one mean per run."""
    rows = [(b, f"{b}/{i}", s) for b, runs in step_times().items() if b in PILOTS for i, s in enumerate(runs)]
    batch, run, seconds = zip(*rows, strict=True)
    return fit_step_time(batch, run, seconds)


# %%
# Rows of the whole forecast, as ratios.


def forecast() -> tuple[list[dict], str]:
    """Scored rows of the forecast at B = 1,024, or why there are none."""
    folder = house.data_folder()
    if folder is None or not (folder / "mlperf_grpo").is_dir():
        return [], house.measured_runs("mlperf_grpo")[1]
    return [row for row in validate_mlperf(folder)["rows"] if row["measured"] is not None], ""


def words(claim: str) -> str:
    """A claim in two short lines."""
    name = claim.split(" at B")[0].split(" (")[0]
    name = {"time to the first evaluation": "time to first evaluation", "q": "$q$", "r_q": "$r_q$"}.get(name, name)
    return f"{name},\nend to end" if "cold start" in claim or "evaluation" in claim else f"{name},\nsteady steps"


# %%
# Dots are runs, open ones the pilots'.


def draw_steps(ax) -> None:
    """Step time over the batch."""
    runs, fit = step_times(), law()
    grid = np.geomspace(PILOTS[0], ASKED, 60)
    middle, low, high = fit.predict(grid)
    beyond = grid >= PILOTS[1]
    ax.fill_between(grid[beyond], low[beyond], high[beyond], color=house.SYSTEM, alpha=0.2, lw=0)
    ax.plot(grid, middle, color=house.SYSTEM)
    first, second = (float(np.mean(runs[b])) for b in PILOTS)
    line = first * (grid / PILOTS[0]) ** (np.log(second / first) / np.log(2))
    ax.plot(grid, line, "--", color=house.FAINT)
    for batch, seconds in runs.items():
        spread = batch * np.exp(np.linspace(-0.035, 0.035, len(seconds)))
        face = "white" if batch in PILOTS else house.MEASURED
        ax.plot(spread, seconds, "o", color=house.MEASURED, mfc=face, ms=4.5, zorder=4)
    said, measured = float(middle[-1]), float(np.mean(runs[ASKED]))
    house.batch_axis(ax, list(runs), "kept responses per update $B$", room=1.15)
    ax.set_ylim(0, 1250)
    ax.set_ylabel("time of a rollout step (s)")
    ax.set_title("Step time")
    house.end_labels(ax, [(said, "affine law", house.SYSTEM), (float(line[-1]), "power law", house.REFERENCE)])
    ax.text(
        0.04,
        0.97,
        f"at B = {ASKED:,}: predicted {said:,.0f} s,\nmeasured {measured:,.0f} s ({100 * (said / measured - 1):+.0f} "
        "%)\n"
        "open: pilots; filled: held out",
        transform=ax.transAxes,
        va="top",
        fontsize=7.5,
        color="#444444",
    )


def draw_rows(ax, rows: list[dict]) -> None:
    """Predicted over measured of every row, the peer beside it."""
    y = np.arange(len(rows))[::-1]
    for at, row in zip(y, rows, strict=True):
        low, high = (v / row["measured"] for v in row["interval"])
        ax.plot([low, high], [at, at], color=house.SYSTEM, lw=3, alpha=0.35, solid_capstyle="butt")
        ax.plot(row["predicted"] / row["measured"], at, "o", color=house.SYSTEM, ms=5)
        ax.plot(row["peer"] / row["measured"], at, "x", color=house.REFERENCE, ms=5, mew=1.4)
    ax.axvline(1.0, color=house.MEASURED, lw=0.8)
    ax.set_yticks(y, [words(row["claim"]) for row in rows], fontsize=7.2)
    ax.set_ylim(-0.6, len(rows) - 0.1)
    house.ratio_axis(ax, (0.8, 0.9, 1, 1.1, 1.25), "predicted / measured", axis="x")
    ax.annotate("batchsim", (0.02, 0.99), xycoords="axes fraction", va="top", color=house.SYSTEM, fontsize=7.5)
    ax.annotate(
        "x  power law",
        (0.98, 0.99),
        xycoords="axes fraction",
        va="top",
        ha="right",
        color=house.REFERENCE,
        fontsize=7.5,
    )
    ax.set_title(f"The forecast at B = {ASKED:,}")


def figure():
    """Draw it."""
    fig, (left, right) = house.panels(1, 2, height=3.6)
    draw_steps(left)
    rows, why = forecast()
    if rows:
        draw_rows(right, rows)
    else:
        house.absent(right, f"The forecast at B = {ASKED:,}", why)
    house.note(
        fig,
        f"Measured: {SOURCE}, 18 runs; each dot is a run's mean steady step.",
        "Predicted from the twelve runs at B = 256 and 512: affine step-time law, 80 % interval (left); the whole "
        "forecast, "
        "80 % intervals (right). r_N is not bounded by these runs, so no verdict is drawn.",
    )
    return fig


if __name__ == "__main__":
    house.show(figure())
