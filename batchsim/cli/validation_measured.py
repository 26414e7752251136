"""Validations of whole forecasts and of phase laws against measured runs, as tables."""

from __future__ import annotations

from typing import Any

from batchsim.cli.table import Cell, make_console, print_notes, print_rows, say, short, span
from batchsim.validate.measured import QUANTITIES

WHAT = {
    "mlperf": "B = 1,024 from B = 256 and 512",
    "li2026": "P = 512 to 4,096 from P <= 256",
    "tiny": "T/T0 from the two smallest batches",
    "steps": "phases and steps of rows left out",
}


def print_measured(result: dict[str, Any]) -> None:
    """Print one of the validations mlperf, li2026, tiny and steps.

    Parameters
    ----------
    result : dict
        Of `validate_mlperf`, `validate_li2026`, `validate_tiny` or `validate_steps`.
    """
    console = make_console()
    if result["overall"]:
        say(console, sentence(result))
    # A row that counts alone says less than the row itself.
    parts = [part for part in result["slices"] if part["n"] > 1]
    print_rows(console, "scores", [_score_cells(part) for part in parts], optional=("peer",))
    if result["name"] != "steps":
        print_rows(console, "predicted beside measured, held out", [_row_cells(row) for row in result["rows"]])
    if result["name"] == "steps":
        rows = [row for row in result["rows"] if "settings left out" not in row["of"] and row["table"] != "join"]
        print_rows(console, "rows left out", [_row_cells(row) for row in rows])
    _print_stars(result)
    _print_recommendations(result)
    _print_pilots(result)
    said = [f"{row['claim']}: {row['explanation']}" for row in result["rows"] if row.get("explanation")]
    print_notes(console, said + [f"skipped: {reason}" for reason in result["skipped"]])


def sentence(result: dict[str, Any]) -> str:
    """What a validation found, in a sentence.

    Parameters
    ----------
    result : dict
        With an overall figure.

    Returns
    -------
    str
    """
    overall = result["overall"]
    goal = f" (goal: at most {overall['goal']:g})" if "goal" in overall else ""
    said = (
        f"{WHAT[result['name']]}: median |log error| {overall['median_abs_error']:.3f}{goal}, bias "
        f"{signed(overall['bias'])} over {overall['n']} rows"
    )
    if overall["peer_median_abs_error"] is not None:
        said += f"; {overall['peer']}: {overall['peer_median_abs_error']:.3f}"
    if overall["coverage"] is not None:
        said += f"; {100 * overall['level']:.0f} % intervals hold {100 * overall['coverage']:.0f} %"
    if "settings_left_out" in overall:
        apart = overall["settings_left_out"]
        said += f"; where reruns of a setting are left out with it {apart['median_abs_error']:.3f} over {apart['n']}"
    if "stars" in overall:
        said += (
            f"; {overall['stars_equal']} of {overall['stars']} stars as measured, {overall['stars_within']} within 5 % "
            f"of the least time, median regret {_percent(overall['median_regret'])}"
        )
    return f"{said}."


def signed(value: float) -> str:
    """A bias with its sign, which rounding to zero takes away.

    Parameters
    ----------
    value : float [1]

    Returns
    -------
    str
    """
    return "0" if abs(value) < 5e-4 else f"{value:+.3f}"


def _score_cells(part: dict[str, Any]) -> dict[str, Cell]:
    return {
        "of": part["slice"],
        "n": str(part["n"]),
        "median |log error|": short(part["median_abs_error"]),
        "bias": "-" if part["bias"] is None else signed(part["bias"]),
        "covered": _percent(part["coverage"]),
        "half-width": _percent(part["half_width"]),
        "peer": short(part["peer_median_abs_error"]),
    }


def _row_cells(row: dict[str, Any]) -> dict[str, Cell]:
    measured: Cell = short(row["measured"])
    if row["measured"] is None and "allowed" in row:
        measured = span(row["allowed"])
    elif row["measured_interval"] is not None and None not in row["measured_interval"]:
        measured = (short(row["measured"]), f"({span(row['measured_interval'])})")
    return {
        "of": row["claim"],
        "predicted": (short(row["predicted"]), "" if row["interval"] is None else f"({span(row['interval'])})"),
        "measured": measured,
        "error": "-" if row["error"] is None else f"{100 * row['error']:+.0f} %",
        "covered": {True: "yes", False: "no", None: "-"}[row["covered"]],
        "peer": short(row["peer"]),
    }


def _print_stars(result: dict[str, Any]) -> None:
    rows: list[dict[str, Cell]] = [
        {
            "rule": s["rule"],
            "target": f"{s['target']:g}",
            "star": short(s["star"]),
            "range": span(s["effective_range"]),
            "measured star": short(s["measured_star"]),
            "within 5 %": span(s["measured_range"]),
            "regret": _percent(s["regret"]),
        }
        for s in result.get("stars", [])
    ]
    print_rows(make_console(), "the recommendation beside the measured sweep", rows)


def _print_recommendations(result: dict[str, Any]) -> None:
    if not result.get("recommendations"):
        return
    rows: list[dict[str, Cell]] = [
        {
            "prior of B_noise": r["prior"],
            "B_noise, with pilots": (
                short(r["noise_scale"][1]),
                f"({span([r['noise_scale'][0], r['noise_scale'][2]])})",
            ),
            "star, P": short(r["star"]),
            "range, P": span(r["effective_range"]),
            "next run, P": short(r["next_run"]),
            "P(T < T0) at 512, 1024": ", ".join(f"{p:.2f}" for p in r["plateau_probability"].values()),
        }
        for r in result["recommendations"]
    ]
    low, high = result["overall"]["plateau"]
    print_rows(make_console(), f"recommended beside the measured plateau, P = {low} to {high:,}", rows)
    read: list[dict[str, Cell]] = [
        {
            "P": f"{r['prompts']:,}",
            "N*_0": f"{r['responses_to_target']:,}",
            "printed r_N": f"{r['printed']:g}",
            "whole updates": span(r["updates"]) if r["consistent"] else "none fits",
            "allows": f"{r['allowed'][0]:.2f} .. {r['allowed'][1]:.2f}",
            "predicted": (short(r["predicted"]), f"({span(r['interval'])})"),
            "meet": "yes" if r["meets"] else "no",
        }
        for r in result["readings"]
    ]
    print_rows(make_console(), "printed r_N, read as whole updates", read)


def _print_pilots(result: dict[str, Any]) -> None:
    rungs = result.get("pilots", [])
    if not rungs:
        return
    rows: list[dict[str, Cell]] = []
    for name in dict.fromkeys(r["pilots"] for r in rungs):
        own = {r["quantity"]: r for r in rungs if r["pilots"] == name}
        cells: dict[str, Cell] = {"measured": name}
        for quantity, shown in QUANTITIES.items():
            row = own[quantity]
            cells[shown] = (short(row["predicted"]), f"({span(row['interval'])})")
            cells[f"x wide, {shown}"] = "-" if row["width"] is None else f"{row['width']:.2f}"
        cells["rests on a prior or model"] = str(len(own["time_ratio"]["prior"]))
        rows.append(cells)
    known = {r["quantity"]: r["measured"] for r in rungs if r["measured"] is not None}
    caption = ", ".join(f"{QUANTITIES[q]} {short(v)}" for q, v in known.items())
    title = f"what a pilot buys: {rungs[0]['workload']}, B = {rungs[0]['train_batch']:g} (measured: {caption})"
    print_rows(make_console(), title, rows)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"
