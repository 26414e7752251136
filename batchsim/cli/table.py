"""Answers as tables and sentences for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import xarray as xr
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from batchsim.cli.answer import from_measurement, from_prediction

WIDE = 200
"""Columns where the output is not a terminal, so that tables in a file are not wrapped."""
COMFORTABLE = 150
CLAIMS = {
    "time_ratio": "T/T0",
    "sample_cost_ratio": "r_N",
    "throughput_ratio": "r_q",
    "step_time_law": "step time (s), affine law",
}
COLOURS = {"wins": "green", "loses": "red", "undecided": "yellow"}


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDE)


def short(value: float | None, digits: int = 3) -> str:
    """A number in few digits, whole where it is large; a dash for what is unknown."""
    if value is None or math.isnan(value):
        return "-"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def span(limits: Sequence[float | None] | None, digits: int = 3) -> str:
    """An interval as text; one-sided ones with <= or >=."""
    if limits is None:
        return "-"
    low, high = limits
    if high is None:
        return "any" if not low else f">= {short(low, digits)}"
    if low is None or low == 0:
        return f"<= {short(high, digits)}"
    return short(low, digits) if low == high else f"{short(low, digits)} - {short(high, digits)}"


def seconds(value: float | None) -> str:
    """A time in the unit that suits it."""
    if value is None:
        return "-"
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if value >= 2 * size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} s"


def time_span(limits: Sequence[float | None] | None) -> str:
    """An interval of times."""
    if limits is None:
        return "-"
    low, high = limits
    if high is None:
        return "any" if not low else f">= {seconds(low)}"
    return f"<= {seconds(high)}" if not low else f"{seconds(low)} - {seconds(high)}"


def _with_estimate(row: dict[str, Any], name: str, gap: str) -> str:
    middle = row["estimates"].get(name)
    limits = row[name]
    if middle is None:
        return span(limits)
    if limits is None or limits[0] == limits[1]:
        return short(middle)
    return f"{short(middle)}{gap}({span(limits)})"


def _verdict(row: dict[str, Any], gap: str) -> Text:
    word = row["verdict"] or "-"
    p = f"{gap}({row['p_wins']:.2f})" if row["p_wins"] is not None else ""
    return Text(word + p, style=COLOURS.get(word, ""))


def _gap(console: Console) -> str:
    """Between an estimate and its interval: a new line where the terminal is narrow."""
    return " " if console.width >= COMFORTABLE else "\n"


def _table(title: str, columns: Sequence[str], caption: str = "") -> Table:
    table = Table(title=title, caption=caption or None, title_justify="left", caption_justify="left", box=box.SIMPLE)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _notes(console: Console, warnings: Sequence[str]) -> None:
    for sentence in warnings:
        console.print(Text(f"- {sentence}", style="dim" if console.is_terminal else ""), soft_wrap=True)


def print_measurement(measured: xr.DataTree) -> None:
    """Print the arms of a measurement, its noise scales and what it cannot say."""
    answer = from_measurement(measured)
    console = _console()
    goal = (
        f"{answer['metric']} >= {answer['target']:g}"
        if answer["metric"] and answer["target"] is not None
        else "no target"
    )
    level, gap = f"{100 * answer['level']:.0f} %", _gap(console)
    columns = ["B", "P x G", "rate", "rule", "runs", "N*", "T", "r_N", "r_q", "T/T0", "verdict (P)"]
    table = _table(f"measured: {goal}; ratios to B = {answer['reference_batch']}, central {level}", columns)
    for row in answer["batches"]:
        se = row["throughput_ratio_se"]
        table.add_row(
            short(row["train_batch"]),
            f"{short(row['prompts'])} x {short(row['group_size'])}",
            short(row["learning_rate"]),
            row["lr_rule"] or "-",
            str(row["runs"]),
            span(row["responses_to_target"]),
            time_span(row["time_to_target"]),
            _with_estimate(row, "sample_cost_ratio", gap),
            short(row["throughput_ratio"]) + (f" ± {se:.2g}" if se else ""),
            _with_estimate(row, "time_ratio", gap),
            _verdict(row, gap),
        )
    console.print(table)
    _print_system(console, answer)
    for estimate in answer["noise_scales"]:
        exponent = f"; |g| ~ B^{estimate['exponent']:.2f}" if estimate["exponent"] is not None else ""
        console.print(f"{estimate['message']}{exponent}", soft_wrap=True)
    runs = [f"{r['run']}: {w}" for r in answer["runs"] for w in r["warnings"]]
    _notes(console, answer["warnings"] + runs[:20])
    if len(runs) > 20:
        console.print(f"- and {len(runs) - 20} more notes on single runs; --json lists all", soft_wrap=True)


def _print_system(console: Console, answer: dict[str, Any]) -> None:
    if all(row["throughput"] is None for row in answer["batches"]):
        return
    phases = [k for k in answer["batches"][0] if k.endswith("_seconds")]
    shown = [p for p in phases if any(row.get(p) is not None for row in answer["batches"])]
    first = any(run["censoring"] == "left" for run in answer["runs"])
    columns = ["B", "q", "q with evaluation", *(p.removesuffix("_seconds") for p in shown), "kept share"]
    table = _table(
        "steady rollout steps (responses/s, s)",
        columns + (["first evaluation", "ratio"] if first else []),
        "first evaluation: time to its start, not to the target" if first else "",
    )
    for row in answer["batches"]:
        cells = [short(row["train_batch"]), short(row["throughput"]), short(row["throughput_with_evaluation"])]
        cells += [short(row.get(p), 4) for p in shown] + [short(row["kept_share"])]
        if first:
            cells += [seconds(row["first_evaluation_time"]), short(row["first_evaluation_time_ratio"])]
        table.add_row(*cells)
    console.print(table)


def print_prediction(ds: xr.Dataset, compared: Sequence[dict[str, Any]] = ()) -> None:
    """Print candidates, the recommendation, what it rests on, and measurements beside it."""
    answer = from_prediction(ds, compared)
    console = _console()
    level, gap = f"{100 * answer['level']:.0f} %", _gap(console)
    known = any(row["time_to_target"] is not None for row in answer["batches"])
    hours, cost = "gpu_hours" in ds and known, "cost" in ds and known
    columns = ["B", "prompts", "rate", "r_N", "r_q", "T/T0"]
    columns += ["T"] * known + ["GPU-hours"] * hours + ["USD"] * cost
    table = _table(
        f"predicted: rule '{answer['lr_rule']}', ratios to B = {answer['reference_batch']}; median (central {level})",
        [*columns, "verdict (P)", "waits for"],
    )
    for row in answer["batches"]:
        mark = " *" if row["train_batch"] == answer["star"] else ""
        cells = [short(row["train_batch"]) + mark, short(row["prompts"]), short(row["learning_rate"])]
        cells += [_with_estimate(row, name, gap) for name in ("sample_cost_ratio", "throughput_ratio", "time_ratio")]
        cells += [seconds(row["estimates"]["time_to_target"])] * known
        cells += [short(row["estimates"].get("gpu_hours"))] * hours + [short(row["estimates"].get("cost"))] * cost
        table.add_row(*cells, _verdict(row, gap), row["binding_limit"] or "-")
    console.print(table)
    for sentence in _sentences(answer):
        console.print(sentence, soft_wrap=True)
    _print_comparison(console, answer["compared"])
    _notes(console, answer["warnings"])


def _print_comparison(console: Console, compared: Sequence[dict[str, Any]]) -> None:
    if not compared:
        return
    table = _table(
        "predicted beside measured", ["B", "quantity", "predicted", "interval", "measured", "error", "covered", ""]
    )
    for row in compared:
        table.add_row(
            short(row["train_batch"]),
            CLAIMS[row["claim"]],
            short(row["predicted"]),
            span(row["interval"]),
            short(row["measured"]) + (f" ({span(row['measured_interval'])})" if row["measured_interval"] else ""),
            f"{100 * row['error']:+.0f} %",
            "yes" if row["covered"] else "no",
            "held out" if row["held_out"] else "fitted",
        )
    console.print(table)


def _sentences(answer: dict[str, Any]) -> list[str]:
    """What to do, and why."""
    at_least = " at least" if answer["at_least"] else ""
    chosen, star = answer["effective_range"], answer["star"]
    if chosen is None:
        said = ["No batch is within 5 % of the best with probability 1/2: nothing can be recommended yet."]
    elif chosen[0] == chosen[1]:
        said = [f"Effective range: B = {chosen[0]}{' at least' if at_least else ''}; star B = {star}."]
    else:
        said = [
            f"Effective range: B = {chosen[0]} to{at_least} {chosen[1]}; "
            f"star (smallest whose median is within 5 %) B = {star}."
        ]
    row = next((r for r in answer["batches"] if r["train_batch"] == star), None)
    if row is not None and row["train_batch"] != answer["reference_batch"]:
        middle = row["estimates"]
        said.append(
            f"At B = {star} a response teaches {1 / middle['sample_cost_ratio']:.2f} of what it does at the reference, "
            f"and {middle['throughput_ratio']:.2f} times as many come per second: T/T0 = {middle['time_ratio']:.2f}"
            + (f", learning rate {row['learning_rate']:.3g}." if row["learning_rate"] else ".")
        )
    critical = span(answer["critical_train_batch"])
    said.append(
        f"Critical training batch (N* up 10 %): {critical}; critical generation batch (90 % of the plateau): "
        f"{span(answer['critical_gen_batch'])}."
    )
    parameters = answer["parameters"]
    said.append(
        "Rests on: "
        + "; ".join(f"{name} {span(p['interval'])} ({p['source']})" for name, p in parameters.items())
        + "."
    )
    next_run = answer["next_run"]
    if next_run is not None:
        said.append(
            f"Next run worth measuring: B = {next_run['train_batch']:g}; it is expected to shorten the chosen run by "
            f"{100 * next_run['gain']:.1f} % of T0."
        )
    else:
        said.append("No further pilot is expected to shorten the run by half a percent of T0.")
    return said
