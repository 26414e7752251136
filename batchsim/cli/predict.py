"""`batchsim predict`: time to target over candidate batches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batchsim.cli import options as opt
from batchsim.errors import InputError

if TYPE_CHECKING:
    import xarray as xr

    from batchsim.calibrate import Calibration
    from batchsim.plan import Plan
    from batchsim.predict import Measured

NOTHING_TO_RECOMMEND = 1


def predict(
    logs: Annotated[
        list[str] | None, typer.Argument(help="A plan.toml, or log files, folders, globs, or - for standard input.")
    ] = None,
    example: opt.Example = None,
    plan: Annotated[Path | None, typer.Option(help="What else is known, beside logs.")] = None,
    target: Annotated[
        str | None,
        typer.Option(help="Validation score to reach, or several, as 0.4,0.5 [default: what the logs state]."),
    ] = None,
    metric: opt.Metric = None,
    pilot: Annotated[
        str | None, typer.Option(help="Calibrate on these train batches only, as 256,512; the others are held out.")
    ] = None,
    batches: Annotated[str | None, typer.Option(help="Candidate train batches, as 256,512,1024.")] = None,
    fit: Annotated[
        Path | None, typer.Option(help="Forecast from a calibration that `batchsim calibrate -o` wrote.")
    ] = None,
    lr_rule: Annotated[str | None, typer.Option(help="fixed, sqrt, linear, tuned or invariant.")] = None,
    allow_mixed: opt.AllowMixed = False,
    schedule: Annotated[
        bool, typer.Option("--schedule", help="Also ask what a batch that grows along the run would gain.")
    ] = False,
    gpus: Annotated[float | None, typer.Option(help="GPUs, for GPU-hours.", min=1)] = None,
    price: Annotated[float | None, typer.Option(help="USD per GPU and hour, for the cost.", min=0)] = None,
    level: opt.Level = 0.8,
    draws: Annotated[int, typer.Option(help="Posterior draws.")] = 2000,
    seed: opt.Seed = 0,
    prompts: opt.Prompts = None,
    group_size: opt.GroupSize = None,
    updates_per_rollout: opt.UpdatesPerRollout = None,
    epochs: opt.Epochs = None,
    step_seconds: opt.StepSeconds = None,
    learning_rate: opt.LearningRate = None,
    chunks: opt.Chunks = None,
    config: opt.Config = None,
    column: opt.Column = None,
    plot: Annotated[Path | None, typer.Option(help="Write the plot to this file (png, pdf, svg).")] = None,
    stages: Annotated[
        Path | None,
        typer.Option(help="Write the plot of what each stage takes and which binds, of a plan without logs."),
    ] = None,
    json: opt.Json = False,
) -> None:
    """Forecast T/T0, r_N and r_q over candidate batches, and recommend a range, a star and the next run.

    From logs, from a plan.toml, or from both. Whatever no pilot identifies is drawn from a documented
    prior, and said to be. Exit status 1 means that no batch can be recommended.
    """
    from batchsim.cli import answer, table
    from batchsim.predict import compare, predict_targets
    from batchsim.predict import predict as predict_batches

    given = {
        "prompts": prompts,
        "group_size": group_size,
        "updates_per_rollout": updates_per_rollout,
        "epochs": epochs,
        "step_seconds": step_seconds,
        "learning_rate": learning_rate,
        "chunks": chunks,
        "config": config,
        "columns": opt.column_map(column),
    }
    opt.check_plot(plot)
    opt.check_plot(stages, "--stages")
    if fit is not None:
        calibration = _fitted(fit, list(logs or []), example, plan, pilot, given)
        known, runs = calibration.plan, None
    else:
        calibration = None
        known, runs = inputs(list(logs or []), example, plan, given)
    pilots, candidates = opt.numbers(pilot, "--pilot"), opt.numbers(batches, "--batches")
    targets = opt.numbers(target, "--target")
    with opt.stages("predict"):
        options: dict[str, Any] = {
            "runs": runs,
            "metric": metric,
            "pilot_batches": pilots,
            "batches": candidates,
            "lr_rule": lr_rule,
            "allow_mixed": allow_mixed,
            "schedule": schedule,
            "gpus": gpus,
            "price": price,
            "level": level,
            "draws": draws,
            "seed": seed,
        }
        source = known if calibration is None else calibration
        forecasts = predict_targets(source, targets, **options) if targets else [predict_batches(source, **options)]
    # The last target is shown in full, the others beside it.
    ds = forecasts[-1]
    published = _published(example, ds.attrs["lr_rule"])
    compared = compare(ds, published)
    if plot is not None:
        _save_plot(ds, published, plot)
    if stages is not None:
        _save_stages(known, seed, stages)
    trained = _trained(known, runs, calibration)
    if json:
        said = answer.from_prediction(ds, compared, **trained)
        if len(forecasts) > 1:
            said["targets"] = [answer.from_target(f) for f in forecasts]
        answer.write(said)
    else:
        table.print_prediction(ds, compared, **trained)
        if len(forecasts) > 1:
            table.print_targets_of_prediction(forecasts)
        for written in (plot, stages):
            if written is not None:
                typer.echo(f"plot written to {written}")
    if ds.attrs["star"] is None:
        raise typer.Exit(NOTHING_TO_RECOMMEND)


def _save_stages(plan: Plan, seed: int, path: Path) -> None:
    from batchsim import plot
    from batchsim.calibrate.specified import composed_stages

    if plan.recipe is None:
        raise InputError("--stages draws a plan's own system, and no recipe is given", remedy="add a [recipe]")
    ds = composed_stages(plan, plan.recipe, seed=seed)
    opt.save_plot(path, lambda ax: plot.plot_stages(ds, ax=ax))


def _fitted(
    path: Path, logs: list[str], example: str | None, plan: Path | None, pilot: str | None, given: dict[str, Any]
) -> Calibration:
    """A calibration from its file; what it holds already is refused beside it."""
    from batchsim.calibrate.store import load_fit

    beside = [str(p) for p in logs] + [f"--example {example}"] * (example is not None)
    beside += [f"--plan {plan}"] * (plan is not None) + [f"--pilot {pilot}"] * (pilot is not None)
    beside += [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]
    if beside:
        raise InputError(
            f"{', '.join(beside)} beside --fit, which holds its plan and pilots",
            remedy="leave them out, or calibrate again with them",
        )
    return load_fit(path)


def _trained(plan: Plan, runs: xr.DataTree | None, calibration: Calibration | None) -> dict[str, Any]:
    """What trained the runs, and how many passes it makes: both for lines to paste."""
    from batchsim.logs.keys import trainer_of

    stated = {int(node.attrs["epochs"]) for node in runs.children.values()} if runs is not None else set()
    if plan.recipe is not None:
        stated = {plan.recipe.epochs}
    elif calibration is not None:
        stated = {calibration.recipe.epochs}
    return {"trainer": trainer_of(runs), "epochs": stated.pop() if len(stated) == 1 else 1}


def inputs(
    paths: list[str], example: str | None, plan: Path | None, given: dict[str, Any], *, verb: str = "predict"
) -> tuple[Plan, xr.DataTree | None]:
    """The plan and the runs that arguments, example and the plan's own [logs] name."""
    from batchsim.plan import Plan, read_plan

    if example is not None:
        paths.append(str(opt.example_path(example)))
    plans = [p for p in paths if p.endswith(".toml")] + ([str(plan)] if plan is not None else [])
    if len(plans) > 1:
        raise InputError(f"{len(plans)} plans given", remedy="one plan per prediction")
    known = read_plan(plans[0]) if plans else Plan()
    sources = [p for p in paths if not p.endswith(".toml")]
    for path in sources:
        if _is_calibration(path):
            raise InputError(
                f"{path} is a calibration, not a log", remedy=f"batchsim predict --fit {path}, without logs and plan"
            )
    named, completed = opt.logs_of_plan(known, given)
    sources += named
    if not plans and not sources:
        raise InputError(
            f"nothing to {verb} from",
            remedy=f"name logs or a plan.toml, or try: batchsim {verb} --example li2026-grpo",
        )
    unused = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]
    if unused and not sources:
        raise InputError(
            f"{', '.join(unused)} supply what a log lacks, and no log is given", remedy="put them in [recipe]"
        )
    return known, opt.load_runs(sources, completed) if sources else None


def _is_calibration(path: str) -> bool:
    """Whether a file begins as `batchsim calibrate -o` writes it."""
    from batchsim.calibrate.store import KIND

    try:
        with Path(path).open(encoding="utf-8") as file:
            return KIND in file.read(80)
    except (OSError, UnicodeDecodeError):
        return False


def _published(example: str | None, rule: str) -> Measured | None:
    """What the paper measured under a rule, to be shown beside its example and never read by the model."""
    if example != "li2026-grpo":
        return None
    import csv
    from importlib.resources import files

    text = files("batchsim").joinpath("data/measured/li2026_grpo.csv").read_text(encoding="utf-8")
    quantities = ("time_ratio", "sample_cost_ratio", "throughput_ratio")
    nan = float("nan")
    return {
        float(row["prompts"]) * float(row["group_size"]): {k: (nan, float(row[k]), nan) for k in quantities if row[k]}
        for row in csv.DictReader(text.splitlines())
        if row["lr_rule"] == rule
    }


def _save_plot(ds: xr.Dataset, published: Measured | None, path: Path) -> None:
    from batchsim.plot import plot_time_to_target

    points = [(b, *row["time_ratio"]) for b, row in published.items()] if published is not None else None
    opt.save_plot(path, lambda ax: plot_time_to_target(ds, measured=points, ax=ax))
