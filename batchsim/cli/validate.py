"""`batchsim validate`: how wrong the package is, on measurements that its claims did not see."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batchsim.cli import options as opt
from batchsim.errors import InputError, nearest

if TYPE_CHECKING:
    from rich.console import Console

    from batchsim.cli.table import Cell

CLAIMS = {
    "samples": "the learning law against published runs",
    "serving": "time per output token against measured serving, by GPUs and models left out",
    "kernels": "kernel laws against tables they were not fitted to",
    "trace": "the simulated rollout against logged runs, request by request",
    "makespan": "the simulated rollout against batches sent at once",
    "training": "training step times, by models and rows left out",
    "rl-steps": "whole RL steps of other frameworks, from specifications",
    "mlperf": "q and T/T0 of 18 GRPO runs at the largest batch, from the two others",
    "li2026": "the paper's GRPO sweep from its pilots, by prior",
    "tiny": "a measured sweep of a small transformer, from its two smallest batches",
    "steps": "phases and steps of published step-time tables, each row left out",
    "decisions": "the batch that predict recommends from two pilots, over random worlds and clusters",
    "findings": "the paper's findings in simulated worlds",
    "forecast": "r_N from two short pilots, over random simulated worlds",
    "breaking": "attempts to falsify the learning law in simulated worlds",
    "staleness": "what lag costs in simulated worlds, beside published rows",
}
FORECASTS = ("mlperf", "li2026", "tiny", "steps")
"""Claims on whole forecasts and on phase laws, against measured runs and tables."""
WORLDS = {"decisions": 220, "findings": 6, "forecast": 15, "breaking": 3, "staleness": 3}
"""Claims on simulated worlds, which need no data, and how many worlds each takes."""


def validate(
    claim: Annotated[
        str, typer.Argument(help="; ".join(f"{name}: {what}" for name, what in CLAIMS.items()) + ".", metavar="CLAIM")
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder of measured data [default: $BATCHSIM_DATA, else ../shared/data where it exists].",
            metavar="FOLDER",
        ),
    ] = None,
    worlds: Annotated[
        int | None,
        typer.Option(
            help="Simulated worlds: "
            + ", ".join(f"{name} {count}" for name, count in WORLDS.items())
            + " by default (of each kind).",
            min=1,
            max=1000,
        ),
    ] = None,
    seed: opt.Seed = 0,
    plot: Annotated[Path | None, typer.Option(help="Write the plot of errors per set (png, pdf, svg).")] = None,
    json: opt.Json = False,
) -> None:
    """State how far a claim of the package is from measurements, losses included.

    Data sets that the folder lacks are skipped with the reason.
    """
    if claim not in CLAIMS:
        raise InputError(f"no validation of '{claim}'", remedy=nearest(claim, CLAIMS))
    from batchsim.cli import answer
    from batchsim.variables import SCHEMA

    opt.check_plot(plot)
    if worlds is not None and claim not in WORLDS:
        raise InputError(
            f"--worlds is for simulated worlds, and '{claim}' is held against measurements",
            remedy=f"worlds are simulated by {', '.join(WORLDS)}",
        )
    if plot is not None and claim in WORLDS and claim != "forecast":
        raise InputError(f"'{claim}' has no plot", remedy="of the simulated claims forecast has one")
    if data is not None and claim in WORLDS:
        raise InputError(f"'{claim}' simulates its worlds and reads no data", remedy="drop --data")
    result = _simulated(claim, worlds) if claim in WORLDS else _validated(claim, data, seed)
    if plot is not None:
        from batchsim import plot as draw

        pictures = {"samples": draw.plot_validation, "forecast": draw.plot_forecast}
        pictures |= dict.fromkeys(("mlperf", "li2026", "tiny"), draw.plot_pilots)
        opt.save_plot(plot, lambda ax: pictures.get(claim, draw.plot_predicted_measured)(result, ax=ax))
    if json:
        answer.write({"schema": SCHEMA, "verb": "validate", **result})
    elif claim == "samples":
        print_samples(result)
    elif claim == "decisions":
        from batchsim.cli.validation_decisions import print_decisions

        print_decisions(result)
    elif claim in WORLDS:
        from batchsim.cli.validation_worlds import print_worlds

        print_worlds(result)
    elif claim in FORECASTS:
        from batchsim.cli.validation_measured import print_measured

        print_measured(result)
    else:
        from batchsim.cli.validation_tables import print_slices

        print_slices(result)


def _simulated(claim: str, worlds: int | None) -> dict[str, Any]:
    """Validate on simulated worlds, with a bar."""
    from batchsim.cli.simulate import bar
    from batchsim.validate import worlds as validations

    if claim == "decisions":
        from batchsim.validate import decisions

        count = WORLDS[claim] if worlds is None else worlds
        with bar(count + decisions.policies_beside(count), "validate decisions") as advance:
            return decisions.validate_decisions(worlds=count, progress=lambda done, total: advance())
    run = {
        "findings": validations.validate_findings,
        "forecast": validations.validate_forecast,
        "breaking": validations.validate_breaking,
        "staleness": validations.validate_staleness,
    }[claim]
    parts = {"findings": 3, "forecast": 4, "breaking": 15, "staleness": 4}[claim]
    count = WORLDS[claim] if worlds is None else worlds
    with bar(parts * count, f"validate {claim}") as advance:
        return run(worlds=count, progress=lambda done, total: advance())


def _validated(claim: str, data: Path | None, seed: int) -> dict[str, Any]:
    if claim == "samples":
        from batchsim.validate.samples import validate_samples

        return validate_samples(data, seed=seed)
    with opt.stages(f"validate {claim}") as stage:
        if claim == "serving":
            from batchsim.validate.serving import validate_serving

            return validate_serving(data, progress=stage)
        if claim == "training":
            from batchsim.validate.training import validate_training

            return validate_training(data, progress=stage)
        if claim == "rl-steps":
            from batchsim.validate.rl_steps import validate_rl_steps

            return validate_rl_steps(data, progress=stage)
        if claim in ("mlperf", "li2026", "tiny"):
            from batchsim.validate import li2026, mlperf, tiny

            forecasts = {
                "mlperf": mlperf.validate_mlperf,
                "li2026": li2026.validate_li2026,
                "tiny": tiny.validate_tiny,
            }
            return forecasts[claim](data, seed=seed, progress=stage)
        if claim == "steps":
            from batchsim.validate.steps import validate_steps

            return validate_steps(data, progress=stage)
        if claim in ("trace", "makespan"):
            from batchsim.validate import rollouts

            if claim == "trace":
                return rollouts.validate_trace(data, progress=stage)
            return rollouts.validate_makespan(data, seed=seed, progress=stage)
        from batchsim.validate.kernels import validate_kernels

        return validate_kernels(data, progress=stage)


def print_samples(result: dict[str, Any]) -> None:
    """Print scores, sets and the small transformer of `validate.samples.validate_samples`."""
    from batchsim.cli.table import make_console, print_notes, print_rows, say

    console = make_console()
    level = f"{100 * result['overall']['level']:.0f} %"
    parts = [{"slice": "all sets"} | result["overall"], *result["slices"]]
    for part in parts:
        count = f"{part['sets']} set{'s' if part['sets'] != 1 else ''}, {part['points']} points"
        title = f"{part['slice']} ({count}): |log(predicted/measured)| of N* at the largest batch"
        print_rows(console, title, [_score_cells(name, score, level) for name, score in part["forms"].items()])
    forms = list(result["overall"]["forms"])
    print_rows(
        console,
        "log(predicted/measured) at the largest batch, left out (median over targets)",
        [
            {"set": s["set"], "rule": s["rule"], "targets": str(s["targets"])} | _signed(s["log_error"], forms)
            for s in result["sets"]
        ],
        optional=("targets",),
    )
    print_rows(
        console,
        "log-rms in sample, largest batch included",
        [{"set": s["set"], "rule": s["rule"]} | _plain(s["log_rms"], forms) for s in result["sets"]],
    )
    if result["small_transformer"] is not None:
        _print_small_transformer(console, result["small_transformer"])
    for sentence in [*defaults_said(result["overall"]), *verdicts(result)]:
        say(console, sentence)
    print_notes(console, [f"skipped: {reason}" for reason in result["skipped"]])


def verdicts(result: dict[str, Any]) -> list[str]:
    """Sentences on who wins, the hyperbola's wins among them."""
    from batchsim.validate.samples import decide

    said = [
        f"Under the rule '{rule}' the form to fit is '{form}', by the least median error."
        for rule, form in decide(result).items()
    ]
    overall = result["overall"]
    error = {name: score["median_abs_log_error"] for name, score in overall["forms"].items()}
    known = {name: value for name, value in error.items() if value is not None}
    best = min(known, key=lambda name: known[name])
    said.append(
        f"Over all {overall['sets']} sets no form predicts the largest batch better than the plain hyperbola "
        f"({known[best]:.3f})."
        if best == overall["peer"]
        else f"Over all {overall['sets']} sets '{best}' is best ({known[best]:.3f})."
    )
    return said


def defaults_said(overall: dict[str, Any]) -> list[str]:
    """The default forms' score and its goals, in a sentence."""
    if "n" not in overall:
        return []
    goals = overall["goals"]
    return [
        f"Default form per rule over {overall['n']} points: median |log error| {overall['median_abs_error']:.3f}, the "
        f"hyperbola's on the same points {overall['hyperbola_median_abs_error']:.3f} (goal: below it); bias "
        f"{overall['bias']:+.3f}; 80 % intervals hold {100 * overall['coverage_80']:.0f} % (goal: at least "
        f"{100 * goals['coverage_80']:.0f} %) with a median half-width of {100 * overall['half_width_80']:.0f} % "
        f"(goal: at most {100 * goals['half_width_80']:.0f} %). Forms chosen without the set that they predict: "
        f"{overall['unseen_median_abs_error']:.3f}."
    ]


def _score_cells(name: str, score: dict[str, Any], level: str) -> dict[str, Cell]:
    from batchsim.cli.table import short, span

    return {
        "form": name,
        "median": (short(score["median_abs_log_error"]), f"({span(score['interval'])})"),
        "signed": _log(score["median_log_error"]),
        "against the hyperbola": f"{score['wins']} won, {score['losses']} lost, {score['ties']} tied",
        "p": short(score["p"]),
        "log-rms": f"{score['median_log_rms']:.3f}",
        "AIC beyond": _log(score["aic_beyond_peer"], ".1f"),
        f"in {level}": f"{100 * score['covered']:.0f} %",
    }


def _log(value: float | None, form: str = ".3f") -> str:
    return "-" if value is None else "0" if abs(value) < 5e-4 else f"{value:+{form}}"


def _signed(values: dict[str, float | None], forms: list[str]) -> dict[str, Cell]:
    return {name: _log(values[name]) for name in forms}


def _plain(values: dict[str, float], forms: list[str]) -> dict[str, Cell]:
    return {name: f"{values[name]:.3f}" for name in forms}


def _print_small_transformer(console: Console, found: dict[str, Any]) -> None:
    from batchsim.cli.table import print_rows, say, short

    rows: list[dict[str, Cell]] = []
    for row in found["sqrt"]:
        cells: dict[str, Cell] = {
            "target": f"{row['target']:g}",
            "x": short(row["factor"]),
            "updates": short(row["updates"]),
            "r_N": f"{row['measured']:.2f}",
            "start left out": f"{row['without_start']:.2f}",
        }
        rows.append(cells | {name: f"{value:.2f}" for name, value in row["predicted"].items()})
    scales = ", ".join(f"{value:,.0f} at {target}" for target, value in found["noise_scale"].items())
    title = (
        f"tiny_grpo, sqrt rule, r_N: B_noise {scales} (chunk norms, P <= 32); moments: "
        f"{found['moments']['noise_scale']:,.0f}, k = {found['moments']['snr_shape']:.2f}"
    )
    print_rows(console, title, rows)
    errors: list[dict[str, Cell]] = [
        {
            "form": name,
            "mean": f"{100 * value:.1f} %",
            "64 times": _percents(found["largest_error"][name]),
            "mean, start left out": f"{100 * found['mean_error_without_start'][name]:.1f} %",
            "64 times, start left out": _percents(found["largest_error_without_start"][name]),
        }
        for name, value in found["mean_error"].items()
    ]
    print_rows(console, "mean |error| at 2 to 32 times the batch, and errors at 64 times per target", errors)
    lost = ", ".join(f"{s['lost_updates']:.1f} at B = {s['train_batch']:g}" for s in found["start"])
    say(console, f"Updates until the score is back at its start: {lost}.")
    print_rows(
        console,
        "lr_fraction that a row asks for, given A(B) of the moments (one standard error either way)",
        [
            {
                "rule": row["rule"],
                "target": f"{row['target']:g}",
                "x": short(row["factor"]),
                "rate": short(row["rate"]),
                "r_N": f"{row['measured']:.2f}",
                "lr_fraction": (
                    _fraction(row["lr_fraction"][1]),
                    f"({_fraction(row['lr_fraction'][0])} .. {_fraction(row['lr_fraction'][2])})",
                ),
            }
            for row in found["lr_fraction"]
        ],
    )
    single: list[dict[str, Cell]] = [
        {
            "rows": f"{one['rows']} ({one['count']})",
            "lr_fraction": f"{one['lr_fraction']:.2f}",
            "curvature ratio": f"{one['curvature_ratio']:.2g}" + (" fitted" if one["curvature_fitted"] else ""),
            "log-rms": f"{one['log_rms']:.3f}",
            "chi2/dof": f"{one['reduced_chi_square']:.1f}",
        }
        for one in found["one_lr_fraction"]
    ]
    print_rows(console, "one lr_fraction for several rows", single)


def _fraction(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _percents(errors: list[float]) -> str:
    return " ".join(f"{100 * value:+.0f} %" for value in errors)
