"""Writes docs/figures/stages.svg: which stage binds at each batch, in the paper's setting and from specifications."""

from __future__ import annotations

from pathlib import Path

from batchsim.calibrate.specified import composed_stages
from batchsim.plan import read_plan
from batchsim.plot import plot_stages
from batchsim.specs.recipe import Recipe
from batchsim.validate.collection import fit_grpo, paper_stages

HERE = Path(__file__).parent


def main() -> None:
    """Draw both settings side by side."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    # Stable names within the file, so that drawing again changes nothing.
    pyplot.rcParams["svg.hashsalt"] = "batchsim"
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    plot_stages(paper_stages(fit_grpo()), ax=left)
    left.set_ylabel("time per kept response, in collections of 128 prompts")
    plan = read_plan(HERE / "pipeline_plan.toml")
    plot_stages(composed_stages(plan, plan.recipe or Recipe(prompts=1)), ax=right)
    figure.savefig(HERE / "figures" / "stages.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
