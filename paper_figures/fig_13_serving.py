r"""
13. Decode times: predicted, measured, and a peer
=================================================

Beyond the paper: the system side rests on the time of a decode step. Time per output token of a server is predicted
for GPUs whose serving rows no constant has seen, and held against benchmarks and against a table-driven peer on the
same rows.

**Measured**: vLLM serving on H100, H200 and B200 (InferenceX, redistributed by aiconfigurator). **Predicted**: the
held-out-GPU split of ``batchsim validate serving``, the GPU's kernel tables used and none of its serving rows;
aiconfigurator 0.12.0 is the peer. Where the folder of measured data is absent, the sixteenth of the rows that ships
is drawn; the figure says how many rows it shows.
"""

# %%
# Rows of the held-out-GPU split.
from __future__ import annotations

import house
import numpy as np

from batchsim import InputError
from batchsim.validate.serving import HELD_OUT, validate_serving

SYSTEMS = ("H100-SXM", "H200-SXM", "B200-SXM")
LIMITS = (0.5, 3.2)


def rows() -> tuple[list[dict], str, str]:
    """Scored rows of vLLM, the peer's name, and why there are none."""
    folder = house.data_folder()
    try:
        found = validate_serving(folder)
    except InputError as error:
        return [], "", f"left out: {error}"
    own = [r for r in found["rows"] if r["claim"].startswith(f"{HELD_OUT}: vllm")]
    return own, found["overall"]["peer"], ""


def errors(found: list[dict], name: str, system: str = "") -> np.ndarray:
    """Absolute relative errors of `predicted` or `peer`, on the rows that both predict."""
    own = [r for r in found if r["peer"] is not None and system in r["claim"]]
    return np.abs([r[name] / r["measured"] - 1 for r in own])


# %%
# Every row, and the median by GPU.


def draw_rows(ax, found: list[dict], peer: str) -> None:
    """Predicted over measured against the measured time."""
    measured = np.array([r["measured"] for r in found])
    beyond = 0
    for name, shade, mark in (("peer", house.REFERENCE, "x"), ("predicted", house.SYSTEM, "o")):
        ratio = np.array([np.nan if r[name] is None else r[name] / r["measured"] for r in found])
        beyond += int(np.sum((ratio > LIMITS[1]) | (ratio < LIMITS[0]))) if name == "peer" else 0
        ax.plot(1e3 * measured, ratio, mark, color=shade, ms=2.6, mew=0.7, alpha=0.6)
    ax.axhline(1.0, color=house.MEASURED, lw=0.8)
    ax.set_xscale("log")
    ax.set_xticks([5, 10, 20, 50, 100], ["5", "10", "20", "50", "100"])
    ax.xaxis.set_minor_locator(house.plt.NullLocator())
    house.ratio_axis(ax, (0.5, 0.67, 0.8, 1, 1.25, 1.5, 2, 3), "predicted / measured")
    ax.set_ylim(*LIMITS)
    ax.set_xlabel("measured time per output token (ms)")
    ax.annotate("batchsim", (0.98, 0.8), xycoords="axes fraction", ha="right", color=house.SYSTEM)
    ax.annotate(
        peer + (f" ({beyond} beyond)" if beyond else ""),
        (0.98, 0.72),
        xycoords="axes fraction",
        ha="right",
        color=house.REFERENCE,
    )
    ax.set_title(f"{len(found)} serving rows, GPU held out")


def draw_medians(ax, found: list[dict]) -> None:
    """Median error by GPU, the mean as a tick."""
    y = np.arange(len(SYSTEMS) + 1)[::-1]
    for at, system in zip(y, ("", *SYSTEMS), strict=True):
        for name, shade, shift in (("predicted", house.SYSTEM, 0.18), ("peer", "#AAAAAA", -0.18)):
            error = 100 * errors(found, name, system)
            if not error.size:
                continue
            ax.barh(at + shift, np.median(error), 0.32, color=shade)
            mean = f"; mean {error.mean():.0f} %"
            ax.annotate(
                f"{np.median(error):.1f} %{mean}",
                (np.median(error), at + shift),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
            )
    ax.set_yticks(y, ["all", *(s.split("-")[0] for s in SYSTEMS)])
    ax.set_xlim(0, 20)
    ax.set_xlabel("median absolute error (%)")
    ax.set_title("Error by GPU")


def figure():
    """Draw it."""
    fig, (left, right) = house.panels(1, 2, height=3.6, width_ratios=(1.5, 1))
    found, peer, why = rows()
    if found:
        draw_rows(left, found, peer)
        draw_medians(right, found)
        extent = f"{len(found)} rows, {len(errors(found, 'peer'))} of them predicted by the peer; errors are of those."
    else:
        house.absent(left, "Serving rows", why)
        house.absent(right, "Error by GPU", why)
        extent = ""
    house.note(
        fig,
        f"Measured: vLLM serving of three models (InferenceX, redistributed by aiconfigurator @ 095f58a). {extent}",
        "Predicted from model, GPU, engine, lengths and the GPU's kernel tables; its serving rows were left out of "
        "every fit.",
    )
    return fig


if __name__ == "__main__":
    house.show(figure())
