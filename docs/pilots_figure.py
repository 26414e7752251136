"""Writes docs/figures/pilots.svg: what each further pilot buys, on three measured workloads (`--data FOLDER`)."""

from __future__ import annotations

import argparse
from pathlib import Path

from batchsim.plot import plot_pilots
from batchsim.validate.li2026 import validate_li2026
from batchsim.validate.mlperf import validate_mlperf
from batchsim.validate.tiny import validate_tiny

HERE = Path(__file__).parent


def main() -> None:
    """Draw one panel per workload."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of measured data")
    data = parser.parse_args().data
    # Stable names within the file, so that drawing again changes nothing.
    pyplot.rcParams["svg.hashsalt"] = "batchsim"
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 4.2), layout="constrained")
    for ax, found in zip(axes, (validate_mlperf(data), validate_li2026(data), validate_tiny(data)), strict=True):
        plot_pilots(found, ax=ax)
    figure.savefig(HERE / "figures" / "pilots.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
