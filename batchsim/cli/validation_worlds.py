"""Validations against worlds that learn, as tables."""

from __future__ import annotations

from typing import Any

from batchsim.cli.table import Cell, make_console, print_notes, print_rows, say, short


def print_worlds(result: dict[str, Any]) -> None:
    """Print one of the validations of `validate.worlds`.

    Parameters
    ----------
    result : dict
        Of `validate_findings`, `validate_forecast`, `validate_breaking` or `validate_staleness`.
    """
    {"findings": _findings, "forecast": _forecast, "breaking": _breaking, "staleness": _staleness}[result["name"]](
        result
    )
    print_notes(make_console(), [f"skipped: {reason}" for reason in result["skipped"]])


def _findings(result: dict[str, Any]) -> None:
    console = make_console()
    overall = result["overall"]
    worlds = "the one world" if overall["worlds"] == 1 else f"all {overall['worlds']} worlds"
    say(console, f"{overall['met']} of {overall['findings']} findings hold in {worlds}.")
    rows: list[dict[str, Cell]] = [
        {
            "simulated": part["slice"],
            "median": short(part["median"]),
            "range": f"{short(part['lowest'])} .. {short(part['highest'])}",
            "asked": "-" if part["interval"] is None else _asked(part["interval"]),
            "worlds": f"{part['met']} of {part['n']}" if part["tested"] else "-",
        }
        for part in result["slices"]
    ]
    print_rows(console, "the paper's findings in worlds that were not told them", rows, wraps=("simulated",))
    said: list[dict[str, Cell]] = [
        {
            "world": str(r["world"]),
            "pairs": r["claim"],
            "predicted": short(r["predicted"]),
            "simulated": short(r["measured"]),
        }
        for r in result["rows"]
        if r["predicted"] is not None
    ]
    if said:
        print_rows(console, "responses at equal P G, from moments of groups at the start", said, wraps=("pairs",))


def _asked(limits: list[float | None]) -> str:
    low, high = limits
    if high is None:
        return f">= {low:g}"
    return f"{low:g} .. {high:g}"


def _forecast(result: dict[str, Any]) -> None:
    console = make_console()
    overall, goals = result["overall"], result["goals"]
    say(
        console,
        f"{overall['worlds']} worlds at three rates: {_count(overall['n'], 'forecast')}, "
        f"{overall['excluded']} left out. "
        f"Goals: median {100 * goals['median']:g} %, 90th percentile {100 * goals['p90']:g} %.",
    )
    for part in [{"slice": "all"} | overall, *result["slices"]]:
        if not part["n"]:
            continue
        title = (
            f"{part['slice']} ({_count(part['n'], 'forecast')}, {part['excluded']} left out): "
            f"|log(predicted/simulated)| of r_N; "
            f"error of the simulated one {_percent(part['median_measured_log_error'])}; "
            f"{100 * part['covered']:.0f} % in the intervals of 'moments' (80 %)"
        )
        rows: list[dict[str, Cell]] = [
            {
                "form": name,
                "median": _percent(one["median_abs_log_error"]),
                "90th percentile": _percent(one["p90_abs_log_error"]),
                "bias": _percent(one["median_log_error"], signed=True),
                "silent": str(one["silent"]),
            }
            for name, one in part["forms"].items()
        ]
        print_rows(console, title, rows, optional=("silent",))
    print_notes(console, [f"left out: {reason} ({count})" for reason, count in result["excluded"].items()])


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _percent(value: float | None, *, signed: bool = False) -> str:
    return "-" if value is None else f"{100 * value:+.1f} %" if signed else f"{100 * value:.1f} %"


def _breaking(result: dict[str, Any]) -> None:
    console = make_console()
    overall = result["overall"]
    say(
        console,
        f"The law survives {overall['survived']} of {overall['attempts']} attempts to break it "
        f"({_count(overall['worlds'], 'draw')} each; within {100 * overall['tolerance']:g} % where r_N is at most 4).",
    )
    names = [f"{factor:g} x" for factor in overall["factors"]]
    rows: list[dict[str, Cell]] = []
    for part in result["slices"]:
        cells: dict[str, Cell] = {"attempt": part["slice"]}
        for name, measured, said, own in zip(names, part["measured"], part["predicted"], part["own_path"], strict=True):
            cells[name] = _two(measured), f"({_two(said)}; {_two(own)})"
        rows.append(
            cells
            | {"largest error": _percent(part["largest_log_error"]), "": "survives" if part["survives"] else "breaks"}
        )
    title = "r_N simulated (the law along the reference run; along each batch's own run)"
    print_rows(console, title, rows, optional=("largest error",), wraps=("attempt",))


def _two(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _staleness(result: dict[str, Any]) -> None:
    console = make_console()
    overall = result["overall"]
    rows: list[dict[str, Cell]] = []
    for part in result["slices"]:
        cells: dict[str, Cell] = {
            "way": part["way"],
            "rate": f"{part['learning_rate']:g}",
            "updates when fresh": f"{part['fresh_updates']:.0f}",
        }
        for lag, value in zip(overall["lags"], part["ratio"][1:], strict=True):
            cells[f"lag {lag}"] = _two(value)
        rows.append(cells)
    published: dict[str, Cell] = {"way": "published (OLMo2-1B)", "rate": "1e-06", "updates when fresh": "200 to 975"}
    for lag in overall["lags"]:
        low, high = overall["by_lag"][str(lag)]["published"]
        published[f"lag {lag}"] = f"{low:.2f}", f".. {high:.2f}"
    title = "responses to the target relative to fresh ones, simulated"
    print_rows(console, title, [*rows, published], wraps=("way", "updates when fresh"))
