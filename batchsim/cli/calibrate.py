"""`batchsim calibrate`: parameters of both sides from pilots and priors, printed and written to a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batchsim.cli import options as opt
from batchsim.errors import InputError

if TYPE_CHECKING:
    from batchsim.calibrate import Calibration


def calibrate(
    logs: Annotated[
        list[str] | None, typer.Argument(help="A plan.toml, or log files, folders, globs, or - for standard input.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the calibration, for predict --fit (.json).")
    ] = None,
    example: opt.Example = None,
    plan: Annotated[Path | None, typer.Option(help="What else is known, beside logs.")] = None,
    target: opt.Target = None,
    metric: opt.Metric = None,
    pilot: Annotated[
        str | None, typer.Option(help="Calibrate on these train batches only, as 256,512; the others are left out.")
    ] = None,
    lr_rule: Annotated[
        str | None, typer.Option(help="Rule that forecasts will follow: fixed, sqrt, linear, tuned or invariant.")
    ] = None,
    allow_mixed: opt.AllowMixed = False,
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
    json: opt.Json = False,
) -> None:
    """State what pilots and priors say of the noise scale, the learning rate and the step time.

    From logs, from a plan.toml, or from both; any mix will do, and what it cannot identify is named with
    the run that would. `batchsim predict --fit` forecasts from the file.
    """
    from batchsim.calibrate import calibrate as calibrate_runs
    from batchsim.cli import answer
    from batchsim.cli.files import check_out
    from batchsim.cli.predict import inputs
    from batchsim.predict import choose_pilots

    if output is not None and output.suffix.lower() != ".json":
        raise InputError(f"a calibration is a .json file, and {output} is not", remedy=f"-o {output.stem}.json")
    check_out(output, "-o")
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
    known, runs = inputs(list(logs or []), example, plan, given, verb="calibrate")
    pilots = choose_pilots(runs, opt.numbers(pilot, "--pilot") or known.logs.pilot_batches)
    with opt.stages("calibrate"):
        found = calibrate_runs(
            pilots,
            known,
            target=target,
            metric=metric,
            lr_rule=lr_rule,
            allow_mixed=allow_mixed,
            with_curve=True,
            draws=draws,
            level=level,
            seed=seed,
        )
    if output is not None:
        _save(found, output)
    if json:
        answer.write(from_calibration(found, level=level, seed=seed, output=output))
        return
    typer.echo(found.summary())
    for warning in found.warnings:
        typer.echo(f"- {warning}")
    if output is not None:
        typer.echo(f"calibration written to {output}; next: batchsim predict --fit {output}")


def _save(calibration: Calibration, path: Path) -> None:
    from batchsim.calibrate.store import save_fit
    from batchsim.cli.files import replace_file

    with replace_file(path) as temporary:
        save_fit(calibration, Path(temporary))


def from_calibration(calibration: Calibration, *, level: float, seed: int, output: Path | None) -> dict[str, Any]:
    """Answer of `calibrate`.

    Parameters
    ----------
    calibration : Calibration
    level : float in (0, 1) [1]
    seed : int
    output : Path or None
        File that it was written to.

    Returns
    -------
    dict
        Plain values, ready for `json.dumps(..., allow_nan=False)`.
    """
    from batchsim.cli.answer import interval, number
    from batchsim.measure import noise_scale_record
    from batchsim.variables import SCHEMA

    limits, error = calibration.intervals(level=level), calibration.stderr
    responses, overlay = calibration.responses, calibration.overlay
    profiles = {} if responses is None else responses.intervals(level=level)
    return {
        "schema": SCHEMA,
        "verb": "calibrate",
        "target": calibration.target,
        "metric": calibration.metric,
        "level": level,
        "reference_batch": number(calibration.recipe.train_batch),
        "lr_rule": calibration.lr_rule,
        "calibrated_on": [number(b) for b in calibration.calibrated_on],
        "parameters": {
            name: {
                "estimate": number(value),
                "stderr": number(error[name]),
                "interval": interval(*limits[name]),
                "source": calibration.sources.get(name, calibration.sources.get("step_time")),
            }
            for name, value in calibration.params.items()
        },
        "law_spread": calibration.law_spread,
        "responses": None
        if responses is None
        else {
            "arms": [
                {
                    "name": name,
                    "estimate": number(value),
                    "stderr": number(responses.stderr[name]),
                    "interval": interval(*profiles[name]),
                }
                for name, value in responses.params.items()
            ],
            "runs": responses.runs,
            "log_likelihood": number(responses.log_likelihood),
            "aic": number(responses.aic),
            "success": responses.success,
            "message": responses.message,
        },
        "curves": None
        if overlay is None
        else {
            "family": None if overlay.curve is None else overlay.curve.family,
            "score": number(overlay.score),
            "log_pace": [
                {"run": name, "estimate": number(v), "stderr": number(overlay.stderr[name])}
                for name, v in overlay.params.items()
            ],
            "contrast_error": number(overlay.contrast_error),
            "aic": number(overlay.aic),
            "success": overlay.success,
            "message": overlay.message,
        },
        "laws": [
            {
                "name": f.name,
                "params": {n: number(v) for n, v in f.params.items()},
                "stderr": {n: number(v) for n, v in f.stderr.items()},
                "aic": number(f.aic),
                "chisqr": number(f.chisqr),
                "arms": f.arms,
                "largest_out_error": number(f.largest_out_error),
                "success": f.success,
                "message": f.message,
            }
            for f in calibration.laws
        ],
        "noise_scales": [noise_scale_record(e) for e in calibration.noise_scales],
        "aic": None if calibration.aic is None else number(calibration.aic),
        "effective_draws": number(calibration.effective_draws),
        "success": calibration.success,
        "message": calibration.message,
        "file": None if output is None else str(output),
        "seed": seed,
        "warnings": calibration.warnings,
    }
