"""`batchsim measure`: what happened, no model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from batchsim.cli import options as opt
from batchsim.errors import InputError


def measure(
    logs: opt.Logs = None,
    target: opt.Target = None,
    metric: opt.Metric = None,
    example: opt.Example = None,
    level: opt.Level = 0.8,
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
    crossing: Annotated[
        str, typer.Option(help="first, sustained (no later score falls back) or smoothed (isotonic).")
    ] = "first",
    score_error: Annotated[
        str | None, typer.Option(help="Standard error of a score, or 'binomial' from the evaluation's size.")
    ] = None,
    common_grid: Annotated[bool, typer.Option("--common-grid", help="Read every run on the coarsest grid.")] = False,
    band: Annotated[
        float | None, typer.Option(help="Alignment band, in units of the score [default: one point].")
    ] = None,
    targets: Annotated[str | None, typer.Option(help="r_N as a function of the target, as 0.4,0.5,0.6.")] = None,
    knee: Annotated[
        bool, typer.Option("--knee", help="Weigh why N* departs, and name the cheapest experiment that would tell.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="With --targets: write the plot of r_N (png, pdf, svg).")] = None,
    json: opt.Json = False,
) -> None:
    """State N*, q, T, r_N, r_q and the verdict of measured runs.

    Runs that share batch, group size and learning rate are one arm; ratios are against the smallest
    batch. N* is an interval, since evaluations are sparse. --knee alone models something.
    """
    from batchsim.cli import answer, table
    from batchsim.measure import measure as measure_runs
    from batchsim.measure import measure_targets

    opt.check_plot(plot)
    if plot is not None and targets is None:
        raise InputError("--plot draws r_N over targets, and there are none", remedy="give --targets, as 0.4,0.5,0.6")
    paths = list(logs or [])
    if example is not None:
        paths.append(str(opt.example_path(example)))
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
    plans = [p for p in paths if p.endswith(".toml")]
    if plans:
        from batchsim.plan import read_plan

        known = read_plan(plans[0])
        named, given = opt.logs_of_plan(known, given)
        paths = [p for p in paths if not p.endswith(".toml")] + named
        target = known.target.score if target is None else target
        metric = (known.target.metric or None) if metric is None else metric
        if not paths:
            raise InputError(
                f"{plans[0]} names no logs, and measure reads logs",
                remedy=f"batchsim predict {plans[0]}, or [logs] paths",
            )
    if not paths:
        raise InputError(
            "no logs given", remedy="name files or folders, or try: batchsim measure --example verl-sweep --target 0.55"
        )
    runs = opt.load_runs(paths, given)
    options: dict[str, Any] = {
        "metric": metric,
        "kind": crossing,
        "score_error": _score_error(score_error),
        "common_grid": common_grid,
        "band": band,
        "level": level,
        "seed": seed,
    }
    wanted = opt.numbers(targets, "--targets")
    measured = measure_runs(runs, target=target if target is not None or not wanted else wanted[-1], **options)
    by_target = measure_targets(runs, wanted, **options) if wanted else None
    if by_target is not None and plot is not None:
        from batchsim.plot import plot_sample_cost

        opt.save_plot(plot, lambda ax: plot_sample_cost(by_target, ax=ax))
    weighed = None
    if knee:
        from batchsim.recommend import knee_of_runs

        weighed = knee_of_runs(measured, seed=seed)
    if json:
        answer.write(answer.from_measurement(measured, by_target, weighed))
    else:
        table.print_measurement(measured, by_target)
        if weighed is not None:
            table.print_knee(answer.from_knee(weighed))


def _score_error(text: str | None) -> float | str | None:
    if text is None or text == "binomial":
        return text
    remedy = "as --score-error 0.01, one point of a score that is a share"
    try:
        value = float(text)
    except ValueError as error:
        raise InputError(f"--score-error {text} is neither a number nor 'binomial'", remedy=remedy) from error
    if not 0 <= value < math.inf:
        raise InputError(f"--score-error {text} is not a standard error, 0 or more and finite", remedy=remedy)
    return value
