"""`batchsim simulate quadratic`: what a batch costs in the noisy quadratic model, with the rate tuned at each.

The curve is that of expected losses; with --seeds or --out the same arms are also run, noise and all.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batchsim.cli import options as opt
from batchsim.cli.files import check_netcdf
from batchsim.errors import InputError

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from rich.console import Console

    from batchsim.cli.table import Cell
    from batchsim.learning.worlds import Optimizer, Quadratic

COLUMNS = (
    "learning_rate",
    "updates_to_target",
    "responses_to_target",
    "responses_to_target_se",
    "sample_cost_ratio",
    "loss_floor",
)
RUNS = 4
"""Seeds where --out asks for runs and --seeds does not say how many."""
LENGTH = 4.0
"""Responses of a run over those after which the expected loss is at the target."""
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
    seeds: Annotated[
        int | None, typer.Option(help="Also simulate so many noisy runs of every batch [4 with --out].")
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            help="Learning rate of the runs at the smallest batch (see --lr-rule), or one per batch [the tuned ones].",
            metavar="RATE[,RATE,...]",
        ),
    ] = None,
    lr_rule: Annotated[
        str | None, typer.Option(help="How one --rate follows B: fixed, sqrt or linear [fixed].")
    ] = None,
    responses_max: Annotated[
        float | None,
        typer.Option(help="Responses after which a run ends [4 times those that the expected loss takes]."),
    ] = None,
    evaluate_every: Annotated[
        float | None, typer.Option(help="Responses between evaluations of a run [every update].")
    ] = None,
    step_seconds: Annotated[
        float | None, typer.Option(help="Seconds of an update of a run, whatever its size [default: 10].")
    ] = None,
    response_seconds: Annotated[float | None, typer.Option(help="And per response [default: 0.05].")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the runs; batchsim measure and predict read them.", metavar="FILE.nc"),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write the plot of updates over batch (png, pdf, svg).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the runs and of Adam's simulation.", min=0)] = 0,
    json: opt.Json = False,
) -> None:
    """Show what a batch costs in the noisy quadratic model, with the learning rate tuned at each batch.

    Expected losses are exact for sgd and momentum, and simulated for adam (some 10 s). With --seeds or --out every
    batch also gets noisy runs, at its tuned rate unless --rate says another: their score is the share of the start's
    loss that is gone, and a run ends where that is 1 - TARGET.
    """
    from batchsim.cli import simulated_runs as shown

    opt.check_plot(plot)
    check_netcdf(out, new=True)
    sizes = opt.numbers(batches, "--batches")
    rates = None if rate is None else opt.numbers(rate, "--rate")
    wanted = RUNS if seeds is None and out is not None else seeds
    _check_runs(
        wanted,
        {
            "--rate": rate,
            "--lr-rule": lr_rule,
            "--responses-max": responses_max,
            "--evaluate-every": evaluate_every,
            "--step-seconds": step_seconds,
            "--response-seconds": response_seconds,
        },
    )
    from batchsim.cli import answer
    from batchsim.cli.simulate import bar
    from batchsim.learning.worlds import Optimizer, power_law, scaling_curve
    from batchsim.learning.worlds.simulated import STEP_TIME_INTERCEPT, STEP_TIME_SLOPE

    intercept = STEP_TIME_INTERCEPT if step_seconds is None else step_seconds
    slope = STEP_TIME_SLOPE if response_seconds is None else response_seconds

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
    runs = None
    if wanted is not None:
        runs = _simulate(
            world,
            how,
            ds,
            rates=rates,
            lr_rule=lr_rule,
            responses_max=responses_max,
            evaluate_every=evaluate_every,
            step_time_intercept=intercept,
            step_time_slope=slope,
            target=1 - target,
            seeds=wanted,
            seed=seed,
        )
    rows = [] if runs is None else shown.rows_of(runs, 1 - target, lambda run: answer.number(world.noise_scale()))
    if runs is not None and out is not None:
        shown.save(runs, out)
    if plot is not None:
        opt.save_plot(plot, lambda ax: draw(ds, ax, rows))
    world_as_asked = {"dim": dim, "spectrum": spectrum, "noise": noise, "start_loss": world.start_loss}
    how_as_asked = {"beta1": how.beta, "average": average, "precondition": precondition, "seed": seed}
    result = as_answer(ds, world_as_asked, how_as_asked)
    if runs is not None:
        result["simulated"] = {
            "target": 1 - target,
            "seeds": wanted,
            "step_time_intercept": intercept,
            "step_time_slope": slope,
            "batches": rows,
            "soonest": shown.soonest(rows),
            "out": None if out is None else str(out),
            "warnings": list(runs.attrs["warnings"]),
        }
    if json:
        answer.write(result)
    else:
        print_curve(result)


def _check_runs(wanted: int | None, options: dict[str, Any]) -> None:
    """Refuse options of runs where none are asked for, and rates of runs without a length."""
    if wanted is not None and wanted < 1:
        raise InputError(f"--seeds is {wanted}, and it must be at least 1", remedy="as --seeds 4")
    given = [name for name, value in options.items() if value is not None]
    if given and wanted is None:
        raise InputError(
            f"{', '.join(given)} say how runs are made, and none are asked for", remedy="add --seeds 4, or --out"
        )
    if options["--rate"] is not None and options["--responses-max"] is None:
        raise InputError(
            "--rate takes other rates than those whose length is known", remedy="say how long with --responses-max"
        )


def _simulate(
    world: Quadratic,
    how: Optimizer,
    ds: xr.Dataset,
    *,
    rates: list[float] | None,
    responses_max: float | None,
    evaluate_every: float | None,
    **options: Any,
) -> xr.DataTree:
    """Noisy runs of the arms of a curve: at its rates unless others are given."""
    import numpy as np

    from batchsim.cli.simulate import bar
    from batchsim.learning.worlds import simulate_quadratic

    batch, tuned = ds["train_batch"].values, ds["learning_rate"].values
    expected = ds["responses_to_target"].values
    left_out: list[str] = []
    if rates is None:
        known = np.isfinite(tuned) if responses_max is not None else np.isfinite(tuned) & np.isfinite(expected)
        if not known.any():
            raise InputError("no batch has a rate that reaches the target", remedy="give --rate and --responses-max")
        left_out = [f"{b:g}" for b in batch[~known]]
        batch, expected, used = batch[known], expected[known], tuned[known]
    else:
        used = np.array(rates)
    length = LENGTH * expected if responses_max is None else np.full(batch.size, responses_max)
    with bar(batch.size * options["seeds"], "runs") as advance:
        tree = simulate_quadratic(
            world,
            how,
            train_batch=batch,
            # One tuned rate is that of its batch.
            learning_rate=used,
            responses_max=length,
            evaluate_every=batch if evaluate_every is None else evaluate_every,
            progress=lambda done, total: advance(),
            **options,
        )
    if left_out:
        tree.attrs["warnings"] += [f"B = {', '.join(left_out)}: no rate reaches the target, and none was run"]
    return tree


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
    from batchsim.cli.table import make_console, print_notes, print_rows, say, short

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
    print_rows(console, title, rows, optional=("floor / target",), wraps=("regime",))
    knee = result["critical_train_batch"]
    scales = f"{short(result['noise_scale'])}, by curvature {short(result['curvature_noise_scale'])}"
    say(console, f"Critical training batch (N* up 10 %): {short(knee)}; noise scale at the start: {scales} responses.")
    print_notes(console, result["warnings"])
    if "simulated" in result:
        _print_runs(console, result["simulated"])


def _print_runs(console: Console, said: dict[str, Any]) -> None:
    from batchsim.cli.simulated_runs import print_runs
    from batchsim.cli.table import print_notes

    title = (
        f"noisy runs to a score of {said['target']:g}, {said['seeds']} per batch; an update takes "
        f"{said['step_time_intercept']:g} s + {said['step_time_slope']:g} s per response"
    )
    print_runs(console, title, said["batches"], target=said["target"])
    if said["out"] is not None:
        console.print(f"Runs: {said['out']}; next: batchsim measure {said['out']}", soft_wrap=True)
    print_notes(console, said["warnings"])


def draw(ds: xr.Dataset, ax: Axes, rows: Sequence[dict[str, Any]] = ()) -> None:
    """Draw updates to the target over the batch, with perfect scaling and simulated runs beside them."""
    import numpy as np

    from batchsim.plot import MEASURED, PREDICTED

    batch, updates = ds["train_batch"].values, ds["updates_to_target"].values
    reached = np.isfinite(updates)
    ax.set(xscale="log", yscale="log", xlabel="train batch B (responses)", ylabel="updates to the target")
    if batch.max() < 100 * batch.min():
        # Over less than two decades the minor ticks are labelled too, and overlap.
        ax.set_xticks(batch, [f"{b:,.0f}" if b >= 10 else f"{b:g}" for b in batch])
        ax.set_xticks([], minor=True)
    if not reached.any():
        ax.set_title("no batch reaches the target", loc="left", fontsize="medium")
        return
    ax.plot(batch[reached], updates[reached], "o-", color=PREDICTED, ms=4, label=f"{ds.attrs['optimizer']}, rate tuned")
    first = int(np.flatnonzero(reached)[0])
    ideal = updates[first] * batch[first] / batch[reached]
    shown = ideal > 0.3 * updates[reached].min()
    ax.plot(batch[reached][shown], ideal[shown], "--", color="0.5", lw=1, label="perfect scaling")
    run = [(row["train_batch"], row["updates_to_target"]) for row in rows if row["updates_to_target"]]
    if run:
        ax.plot(*zip(*run, strict=True), "x", color=MEASURED, ms=6, label="noisy runs")
    knee = ds.attrs["critical_train_batch"]
    if np.isfinite(knee):
        ax.axvline(knee, color=MEASURED, lw=1, label="responses up 10 %")
    ax.legend(frameon=False)
