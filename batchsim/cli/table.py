"""Answers as tables and sentences for a terminal."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import xarray as xr
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from batchsim.cli.answer import from_measurement, from_prediction, trainer_of_prediction
from batchsim.logs import keys

WIDE = 200
"""Columns where the output is not a terminal, so that tables in a file are not wrapped."""
SHORT = {"wins": "+", "loses": "-", "undecided": "?", None: ""}
UNLIMITED, HEIGHT = 10_000, 25
"""A console takes a width only together with a height."""
CLAIMS = {
    "time_ratio": "T/T0",
    "sample_cost_ratio": "r_N",
    "throughput_ratio": "r_q",
    "step_time_law": "step time (s), affine law",
}
COLOURS = {"wins": "green", "loses": "red", "undecided": "yellow"}


def make_console() -> Console:
    """A console as wide as the terminal, or wide enough for a file."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDE, height=HEIGHT)


def short(value: float | None, digits: int = 3) -> str:
    """A number in few digits, whole where it is large, with an exponent from 1e15; a dash for what is unknown."""
    if value is None or math.isnan(value):
        return "-"
    if 10 ** (digits - 1) <= abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def span(limits: Sequence[float | None] | None, digits: int = 3) -> str:
    """An interval as text; one-sided ones with <= or >=."""
    if limits is None:
        return "-"
    low, high = limits
    if low is None and high is None:
        return "diverges"
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


def _with_estimate(row: dict[str, Any], name: str) -> tuple[str, str]:
    """Estimate and interval of a quantity; either may be empty."""
    middle, limits = row["estimates"].get(name), row[name]
    if middle is None:
        return span(limits), ""
    return short(middle), "" if limits is None or limits[0] == limits[1] else f"({span(limits)})"


def _time_with_estimate(row: dict[str, Any], name: str) -> tuple[str, str]:
    middle, limits = row["estimates"].get(name), row[name]
    if middle is None:
        return time_span(limits), ""
    return seconds(middle), "" if limits is None or limits[0] == limits[1] else f"({time_span(limits)})"


def _verdict(row: dict[str, Any]) -> tuple[str, str]:
    return row["verdict"] or "-", f"({row['p_wins']:.2f})" if row["p_wins"] is not None else ""


def _percent(level: float) -> str:
    return f"{100 * level:.6g} %"


Cell = str | tuple[str, str]


def print_rows(
    console: Console,
    title: str,
    rows: Sequence[dict[str, Cell]],
    *,
    optional: Sequence[str] = (),
    wraps: Sequence[str] = (),
    caption: str = "",
) -> None:
    """Print rows as a table that fits: intervals move below their estimates, optional columns go, words wrap.

    Numbers are never cut short, since a cut number reads as another one: `wraps` names columns of words. A table that
    still does not fit is printed as wide as its numbers need.
    """
    if not rows:
        return
    columns = list(rows[0])
    stages = [(" ", 0, False), *(("\n", n, False) for n in range(len(optional) + 1)), ("\n", len(optional), True)]
    for gap, gone, tight in stages:
        kept = [c for c in columns if c not in optional[:gone]]
        table = _table(kept, rows, wraps, gap=gap, tight=tight)
        # A console measures no more than its own width.
        if Console(width=UNLIMITED, height=HEIGHT).measure(table).maximum <= console.width:
            break
    else:
        solid = _table(kept, rows, wraps, gap=gap, tight=tight, solid=True)
        needed = Console(width=UNLIMITED, height=HEIGHT).measure(solid).minimum
        table.width = max(needed, console.width)
    console.print(Text(title, style="italic"))
    console.print(table, crop=False)
    if caption:
        console.print(Text(caption, style="dim italic" if console.is_terminal else ""))


def _table(
    columns: Sequence[str],
    rows: Sequence[dict[str, Cell]],
    wraps: Sequence[str],
    *,
    gap: str,
    tight: bool = False,
    solid: bool = False,
) -> Table:
    """The table; `tight` breaks headers and narrows gaps, `solid` joins the words that must not part."""
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0) if tight else (0, 1))
    shown: list[list[Text]] = []
    for name in columns:
        found = [row[name] for row in rows]
        cells = [cell if isinstance(cell, str) else gap.join(filter(None, cell)) for cell in found]
        longest = max(len(part) for part in (*name.split(), *(line for cell in cells for line in cell.split("\n"))))
        header = textwrap.fill(name, longest) if tight else name
        if solid and name not in wraps:
            header, *cells = (text.replace(" ", "_") for text in (header, *cells))
        table.add_column(header, justify="right", no_wrap=name not in wraps)
        shown.append([Text(text, style=_style(cell), justify="right") for text, cell in zip(cells, found, strict=True)])
    for line in zip(*shown, strict=True):
        table.add_row(*line)
    return table


def _style(cell: Cell) -> str:
    return COLOURS.get(cell if isinstance(cell, str) else cell[0], "")


def say(console: Console, sentence: str | Text) -> None:
    """Print a sentence, never cut: a terminal parts it between words, a file holds it in one line."""
    console.print(sentence, soft_wrap=not console.is_terminal)


def print_notes(console: Console, warnings: Sequence[str]) -> None:
    """Print sentences as a list, by `say`."""
    for sentence in warnings:
        say(console, Text(f"- {sentence}", style="dim" if console.is_terminal else ""))


def print_measurement(measured: xr.DataTree, by_target: xr.Dataset | None = None) -> None:
    """Print the arms of a measurement, its alignment and noise scales, and what it cannot say."""
    answer = from_measurement(measured, by_target)
    console = make_console()
    scored = answer["metric"] and answer["target"] is not None
    goal = f"{answer['metric']} >= {answer['target']:g}" if scored else "no target"
    rows = [_arm_cells(row) for row in answer["batches"]]
    title = f"measured: {goal}; ratios to B = {answer['reference_batch']}, central {_percent(answer['level'])}"
    print_rows(console, title, rows, optional=("runs", "P x G", "T", "rate", "N*"))
    _print_system(console, answer)
    _print_alignment(console, answer)
    _print_targets(console, answer)
    messages = [estimate["message"] for estimate in answer["noise_scales"]]
    for estimate in answer["noise_scales"]:
        exponent = f"; |g| ~ B^{estimate['exponent']:.2f}" if estimate["exponent"] is not None else ""
        say(console, f"{estimate['message']}{exponent}")
    runs = [f"{r['run']}: {w}" for r in answer["runs"] for w in r["warnings"]]
    print_notes(console, [w for w in answer["warnings"] if w not in messages] + runs[:20])
    if len(runs) > 20:
        say(console, f"- and {len(runs) - 20} more notes on single runs; --json lists all")


def _arm_cells(row: dict[str, Any]) -> dict[str, Cell]:
    se, prompts, group = row["throughput_ratio_se"], row["prompts"], row["group_size"]
    return {
        "B": short(row["train_batch"]),
        "P x G": f"{short(prompts)} x {short(group)}" if prompts and group else "-",
        "rate": short(row["learning_rate"]),
        "rule": row["lr_rule"] or "-",
        "runs": str(row["runs"]),
        "N*": _with_estimate(row, "responses_to_target"),
        "T": _time_with_estimate(row, "time_to_target"),
        "r_N": _with_estimate(row, "sample_cost_ratio"),
        "r_q": (short(row["throughput_ratio"]), f"± {se:.2g}" if se else ""),
        "T/T0": _with_estimate(row, "time_ratio"),
        "verdict (P)": _verdict(row),
    }


def _print_alignment(console: Console, answer: dict[str, Any]) -> None:
    compared = [row for row in answer["batches"] if row["alignment"]["outcome"] is not None]
    if not compared:
        return
    rows: list[dict[str, Cell]] = [
        {
            "B": short(row["train_batch"]),
            "P x G": f"{short(row['prompts'])} x {short(row['group_size'])}" if row["prompts"] else "-",
            "rule": row["lr_rule"] or "-",
            "largest gap": (f"{row['alignment']['gap']:+.3g}", _signed_span(row["alignment"]["interval"])),
            "at N": short(row["alignment"]["responses"]),
            "in the band": row["alignment"]["outcome"],
        }
        for row in compared
    ]
    title = f"scores at equal responses against B = {answer['reference_batch']}, band ± {answer['band']:g}"
    print_rows(console, title, rows, optional=("P x G", "at N"))
    for rule, up_to in answer["aligned_up_to"].items():
        inside, kept = up_to["inside"], up_to["not_outside"]
        shown = f"shown to align up to B = {short(inside)}" if inside is not None else "no batch is shown to align"
        spared = f"not shown to depart up to B = {short(kept)}" if kept is not None else "none is spared a departure"
        if inside is None and kept is None and all(r["alignment"]["outcome"] != "outside" for r in compared):
            spared = "none is shown to depart: more runs per arm would decide"
        say(console, f"Under the rule '{rule}': {shown}; {spared}.")


def _signed_span(limits: Sequence[float | None] | None) -> str:
    if limits is None or None in limits:
        return "(no repeats)"
    low, high = limits
    return f"({low:+.2g} to {high:+.2g})"


def _print_targets(console: Console, answer: dict[str, Any]) -> None:
    by_target = answer.get("targets", [])
    if not by_target:
        return
    rows: list[dict[str, Cell]] = []
    for i, arm in enumerate(by_target[0]["batches"]):
        group = short(arm["group_size"])
        cells: dict[str, Cell] = {"B": short(arm["train_batch"]), "G": group, "rule": arm["lr_rule"] or "-"}
        for entry in by_target:
            arm_then = entry["batches"][i]
            middle, limits = _with_estimate(arm_then, "sample_cost_ratio")
            cells[f"{entry['target']:g}"] = f"{middle} {SHORT[arm_then['verdict']]}".strip(), limits
        rows.append(cells)
    print_rows(
        console, "r_N by target", rows, optional=("G",), caption="+ wins, - loses, ? undecided against the reference"
    )


def _print_system(console: Console, answer: dict[str, Any]) -> None:
    batches = answer["batches"]
    if all(row["throughput"] is None for row in batches):
        return
    phases = [k for k in batches[0] if k.endswith("_seconds") and any(row.get(k) is not None for row in batches)]
    first = any(run["censoring"] == "left" for run in answer["runs"])
    rows: list[dict[str, Cell]] = []
    for row in batches:
        cells: dict[str, Cell] = {
            "B": short(row["train_batch"]),
            "q": short(row["throughput"]),
            "q with evaluation": short(row["throughput_with_evaluation"]),
        }
        cells |= {name.removesuffix("_seconds"): short(row.get(name), 4) for name in phases}
        cells["kept share"] = short(row["kept_share"])
        if first:
            cells["first evaluation"] = seconds(row["first_evaluation_time"])
            cells["ratio"] = short(row["first_evaluation_time_ratio"])
        rows.append(cells)
    print_rows(
        console,
        "steady rollout steps (responses/s, s)",
        rows,
        optional=("kept share", "reward", "sync", "logprob", "q with evaluation"),
        caption="first evaluation: time to its start, not to the target" if first else "",
    )


def print_prediction(
    ds: xr.Dataset, compared: Sequence[dict[str, Any]] = (), *, trainer: str | None = None, epochs: int = 1
) -> None:
    """Print candidates, the recommendation, what it rests on, measurements beside it, and lines to paste."""
    answer = from_prediction(ds, compared, trainer=trainer, epochs=epochs)
    console = make_console()
    title = (
        f"predicted: rule '{answer['lr_rule']}', ratios to B = {answer['reference_batch']}; "
        f"median (central {_percent(answer['level'])})"
    )
    rows = [_candidate_cells(row, answer, ds) for row in answer["batches"]]
    print_rows(console, title, rows, optional=("waits for", "prompts", "T", "GPU-hours", "rate", "USD"))
    for sentence in _sentences(answer):
        say(console, sentence)
    _print_comparison(console, answer["compared"])
    print_notes(console, answer["warnings"])
    _print_settings(console, answer, trainer_of_prediction(ds, trainer))


def _print_settings(console: Console, answer: dict[str, Any], trainer: str) -> None:
    """Lines to paste for the star and for the next run; one line stands behind its sentence, several below it."""
    name = keys.title(trainer)
    behind, next_run = f" with {name}:" if name else ", as a plan:", answer["next_run"]
    sentences = {"star": f"To run the star{behind}"}
    if next_run is not None:
        sentences["next_run"] = f"To measure B = {next_run['train_batch']:g}{behind}"
    for which, sentence in sentences.items():
        lines = answer["settings"][which]
        if lines:
            text = [f"{sentence} {lines[0]}"] if len(lines) == 1 else [sentence, *lines]
            console.print(Text("\n".join(text)), soft_wrap=True)


def _candidate_cells(row: dict[str, Any], answer: dict[str, Any], ds: xr.Dataset) -> dict[str, Cell]:
    cells: dict[str, Cell] = {
        "B": short(row["train_batch"]) + (" *" if row["train_batch"] == answer["star"] else ""),
        "prompts": short(row["prompts"]),
        "rate": short(row["learning_rate"]),
        "r_N": _with_estimate(row, "sample_cost_ratio"),
        "r_q": _with_estimate(row, "throughput_ratio"),
        "T/T0": _with_estimate(row, "time_ratio"),
    }
    if any(r["time_to_target"] is not None for r in answer["batches"]):
        cells["T"] = _time_with_estimate(row, "time_to_target")
        if "gpu_hours" in ds:
            cells["GPU-hours"] = short(row["estimates"]["gpu_hours"])
        if "cost" in ds:
            cells["USD"] = short(row["estimates"]["cost"])
    return cells | {"verdict (P)": _verdict(row), "waits for": row["binding_limit"] or "-"}


def _print_comparison(console: Console, compared: Sequence[dict[str, Any]]) -> None:
    rows: list[dict[str, Cell]] = [
        {
            "B": short(row["train_batch"]),
            "quantity": CLAIMS[row["claim"]],
            "predicted": (short(row["predicted"]), f"({span(row['interval'])})"),
            "measured": (
                short(row["measured"]),
                f"({span(row['measured_interval'])})" if row["measured_interval"] else "",
            ),
            "error": f"{100 * row['error']:+.0f} %",
            "covered": "yes" if row["covered"] else "no",
            "runs": "held out" if row["held_out"] else "fitted",
        }
        for row in compared
    ]
    print_rows(console, "predicted beside measured", rows, optional=("covered", "error"))


def print_knee(knee: dict[str, Any]) -> None:
    """Print what a departure of N* may be, and the experiments that would tell."""
    console = make_console()
    explained: list[dict[str, Cell]] = [
        {"explanation": e["name"], "probability": f"{e['probability']:.2f}", "what it would mean": e["sentence"]}
        for e in knee["explanations"]
    ]
    print_rows(console, f"why N* departs at B = {knee['train_batch']:,}", explained, wraps=("what it would mean",))
    tried: list[dict[str, Cell]] = [
        {"experiment": e["name"], "runs of the reference": f"{e['cost']:.2f}", "bits": f"{e['information']:.2f}"}
        for e in knee["experiments"]
    ]
    print_rows(console, "what would tell, by bits per cost", tried, wraps=("experiment",))
    for sentence in knee["sentences"]:
        say(console, sentence)


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
    if chosen is not None and not chosen[0] <= star <= chosen[1]:
        said.append("The star lies outside the range: near-best on the median, less often so draw by draw.")
    row = next((r for r in answer["batches"] if r["train_batch"] == star), None)
    # The last sentence of the decision is on the next run, and stands at the end.
    first, *others, following = answer["decision"]["sentences"]
    if row is not None and row["learning_rate"] and row["train_batch"] != answer["reference_batch"]:
        first = f"{first[:-1]}; learning rate {row['learning_rate']:.3g}."
    said += [first, *others]
    critical = span(answer["critical_train_batch"])
    said.append(
        f"Critical training batch (N* up 10 %): {critical}; critical generation batch (90 % of the plateau): "
        f"{span(answer['critical_gen_batch'])}"
        + (f", set by: {answer['critical_gen_limit']}." if answer["critical_gen_limit"] else ".")
    )
    if answer["ridge_batch"] is not None:
        turning = [f"{n:,.0f} ({part})" for part, n in answer["ridge_batch"].items() if n is not None]
        if turning:
            said.append(
                f"A replica's decode turns compute-bound at {' and '.join(turning)} sequences that run at once."
            )
    parameters = answer["parameters"]
    said.append(
        "Rests on: "
        + "; ".join(f"{name} {span(p['interval'])} ({p['source']})" for name, p in parameters.items())
        + "."
    )
    said += _alternative_sentences(answer)
    said += _what_if_sentences(answer["what_if"])
    return [*said, following]


def print_targets_of_prediction(forecasts: Sequence[xr.Dataset]) -> None:
    """Star, range and r_N of it for each of several targets."""
    from batchsim.cli.answer import from_target

    rows: list[dict[str, Cell]] = []
    for ds in forecasts:
        said = from_target(ds)
        at = next((r for r in said["batches"] if r["train_batch"] == said["star"]), None)
        chosen = said["effective_range"]
        rows.append(
            {
                "target": f"{said['target']:g}",
                "star": "-" if said["star"] is None else short(said["star"]),
                "range": "-" if chosen is None else span(chosen),
                "r_N at it": ("-", "") if at is None else _with_estimate(at, "sample_cost_ratio"),
                "T/T0": ("-", "") if at is None else _with_estimate(at, "time_ratio"),
                "T": ("-", "") if at is None else _time_with_estimate(at, "time_to_target"),
                "N* up 10 % at": span(said["critical_train_batch"]),
            }
        )
    print_rows(make_console(), "by target", rows)


def _alternative_sentences(answer: dict[str, Any]) -> list[str]:
    """Regimes, the plateau's width, and what lies beyond one constant batch; a line each where there is something."""
    said = []
    rows, order = answer["regimes"]["rows"], answer["regimes"]["order"]
    if rows:
        between = f"B = {short(rows[1]['from'])} to {short(rows[1]['to'])}: {rows[1]['regime']}"
        p = answer["regimes"]["p_generation_first"]
        said.append(
            f"Regimes: below B = {short(rows[0]['to'])} faster for little; {between}; above, samples for no speed "
            f"({order}: generation reaches its plateau before N* departs with probability {p:.2f})."
        )
    wide = answer["plateau"]
    if wide is not None:
        low, high = wide["train_batch"]
        octaves = f"{wide['octaves']:.1f} octaves{' at least' if wide['at_edge'] else ''}"
        said.append(f"T is within 5 % of its least from B = {short(low)} to {short(high)}, {octaves}.")
    best = min(answer["decoupled"], key=lambda r: r["time_ratio"], default=None)
    if best is not None and best["time_ratio"] < 1:
        said.append(
            f"Updates of B = {answer['reference_batch']} with the concurrency of {short(best['train_batch'])} (lag "
            f"{best['lag']:.1f} updates, staleness x {best['staleness_factor']:.2f}): "
            f"T/T0 = {best['time_ratio']:.2f} at best."
        )
    growth = answer["growth"]
    if growth is not None:
        constant = f"B = {short(growth['constant_batch'])} throughout"
        saved = 100 * (1 - 1 / growth["gain"])
        if len(growth["steps"]) == 1 or saved < 0.05:
            said.append(f"No schedule of these batches is faster than {constant}, by the fitted law.")
        else:
            steps = ", ".join(f"{short(s['train_batch'])} from {100 * s['progress']:.0f} %" for s in growth["steps"])
            said.append(f"A batch that changes (B = {steps} of the way) saves {saved:.1f} % of the time of {constant}.")
    return said


def _what_if_sentences(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What twice the GPUs and another split would change, at the batch that was chosen."""
    if not rows:
        return []
    parts = [
        f"{row['change']} ({row['generation_gpus']} generate, {row['training_gpus']} train): "
        f"{row['throughput_ratio']:.2f} times the throughput"
        for row in rows[1:]
    ]
    own = f"At the chosen batch the plan collects {rows[0]['throughput']:.3g} kept responses per second"
    return [f"{own}; {'; '.join(parts)}." if parts else f"{own}."]
