"""`batchsim simulate quadratic`: what a batch costs in the noisy quadratic model, with the rate tuned at each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batchsim.cli import options as opt
from batchsim.errors import InputError

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

    from batchsim.cli.table import Cell

COLUMNS = (
    "learning_rate",
    "updates_to_target",
    "responses_to_target",
    "responses_to_target_se",
    "sample_cost_ratio",
    "loss_floor",
)
BATCHES = "1,4,16,64,256,1024,4096,16384,65536,262144,1048576,4194304"


def quadratic(
    dim: Annotated[int, typer.Option(help="Coordinates.")] = 100,
    spectrum: Annotated[float, typer.Option(help="Curvature falls as i^-SPECTRUM over coordinates; 0: all equal.")] = 1,
    noise: Annotated[float, typer.Option(help="Gradient variance of one response over curvature.")] = 1,
    optimizer: Annotated[str, typer.Option(help="sgd, momentum or adam.")] = "sgd",
    beta1: Annotated[float, typer.Option(help="Decay of the velocity (momentum, adam).")] = 0.9,
    average: Annotated[float, typer.Option(help="Decay of the running average of the iterates; 0: none.")] = 0,
    precondition: Annotated[float, typer.Option(help="Power p of a preconditioner h^-p (sgd, momentum).")] = 0,
    batches: Annotated[str, typer.Option(help="Responses per update, ascending.", metavar="B,B,...")] = BATCHES,
    target: Annotated[float, typer.Option(help="Loss to reach, as a share of the loss at the start.")] = 0.01,
    updates_max: Annotated[
        int | None, typer.Option(help="Updates after which a rate is given up [default: 1e9, adam 20000].")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write the plot of updates over batch (png, pdf, svg).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of Adam's simulation.", min=0)] = 0,
    json: opt.Json = False,
) -> None:
    """Show what a batch costs in the noisy quadratic model, with the learning rate tuned at each batch.

    Expected losses are exact for sgd and momentum, and simulated for adam (some 10 s).
    """
    opt.check_plot(plot)
    sizes = opt.numbers(batches, "--batches")
    from batchsim.cli import answer
    from batchsim.cli.simulate import bar
    from batchsim.learning.worlds import Optimizer, power_law, scaling_curve

    if not 0 < target < 1:
        raise InputError(f"--target {target:g} is outside (0, 1)", remedy="give a share of the loss at the start")
    if not 0 <= noise < float("inf"):
        raise InputError(f"--noise {noise:g} is no variance", remedy="give a finite number that is not negative")
    world = power_law(dim, exponent=spectrum, noise=noise)
    how = Optimizer(kind=optimizer, beta1=beta1, iterate_average=average, preconditioner=precondition)
    with bar(len(sizes), "batches") as advance:
        ds = scaling_curve(
            world,
            how,
            train_batch=sizes,
            target=target * world.start_loss,
            updates_max=updates_max,
            seed=seed,
            progress=lambda done, total: advance(),
        )
    if plot is not None:
        opt.save_plot(plot, lambda ax: draw(ds, ax))
    world_as_asked = {"dim": dim, "spectrum": spectrum, "noise": noise, "start_loss": world.start_loss}
    how_as_asked = {"beta1": how.beta, "average": average, "precondition": precondition, "seed": seed}
    result = as_answer(ds, world_as_asked, how_as_asked)
    if json:
        answer.write(result)
    else:
        print_curve(result)


def as_answer(ds: xr.Dataset, world: dict[str, Any], how: dict[str, Any]) -> dict[str, Any]:
    """The JSON answer; what is not reached is null, with its reason in `training_outcome`."""
    from batchsim.cli.answer import number
    from batchsim.variables import SCHEMA

    rows = []
    for i, batch in enumerate(ds["train_batch"].values.tolist()):
        row: dict[str, Any] = {"train_batch": number(batch)} | {name: number(ds[name].values[i]) for name in COLUMNS}
        rows.append(row | {name: str(ds[name].values[i]) or None for name in ("regime", "training_outcome")})
    names = ("target", "noise_scale", "curvature_noise_scale", "critical_train_batch")
    return {
        "schema": SCHEMA,
        "verb": "simulate quadratic",
        "optimizer": ds.attrs["optimizer"],
        **how,
        **{name: number(value) for name, value in world.items()},
        **{name: number(ds.attrs[name]) for name in names},
        "batches": rows,
        "warnings": ds.attrs["warnings"],
    }


def print_curve(result: dict[str, Any]) -> None:
    """Print the table of `as_answer`."""
    from batchsim.cli.table import make_console, print_notes, print_rows, short

    console = make_console()
    rows: list[dict[str, Cell]] = []
    for row in result["batches"]:
        error = row["responses_to_target_se"]
        responses = row["responses_to_target"]
        rows.append(
            {
                "B": f"{row['train_batch']:,}",
                "rate": short(row["learning_rate"]),
                "updates": short(row["updates_to_target"]),
                "responses": (short(responses), f"(+- {short(error, 2)})" if responses and error else ""),
                "r_N": short(row["sample_cost_ratio"]),
                "floor / target": short(None if row["loss_floor"] is None else row["loss_floor"] / result["target"]),
                "regime": row["regime"] or ("-" if row["training_outcome"] == "reached" else row["training_outcome"]),
            }
        )
    title = (
        f"{result['optimizer']} on {result['dim']:,} coordinates: updates and responses until the loss is "
        f"{short(result['target'])} of {short(result['start_loss'])}, rate tuned"
    )
    print_rows(console, title, rows)
    knee = result["critical_train_batch"]
    scales = f"{short(result['noise_scale'])}, by curvature {short(result['curvature_noise_scale'])}"
    console.print(
        f"Critical training batch (N* up 10 %): {short(knee)}; noise scale at the start: {scales} responses.",
        soft_wrap=True,
    )
    print_notes(console, result["warnings"])


def draw(ds: xr.Dataset, ax: Axes) -> None:
    """Draw updates to the target over the batch, with perfect scaling beside them."""
    import numpy as np

    from batchsim.plot import MEASURED, PREDICTED

    batch, updates = ds["train_batch"].values, ds["updates_to_target"].values
    reached = np.isfinite(updates)
    ax.set(xscale="log", yscale="log", xlabel="train batch B (responses)", ylabel="updates to the target")
    if not reached.any():
        ax.set_title("no batch reaches the target", loc="left", fontsize="medium")
        return
    ax.plot(batch[reached], updates[reached], "o-", color=PREDICTED, ms=4, label=f"{ds.attrs['optimizer']}, rate tuned")
    first = int(np.flatnonzero(reached)[0])
    ideal = updates[first] * batch[first] / batch[reached]
    shown = ideal > 0.3 * updates[reached].min()
    ax.plot(batch[reached][shown], ideal[shown], "--", color="0.5", lw=1, label="perfect scaling")
    knee = ds.attrs["critical_train_batch"]
    if np.isfinite(knee):
        ax.axvline(knee, color=MEASURED, lw=1, label="responses up 10 %")
    ax.legend(frameon=False)
