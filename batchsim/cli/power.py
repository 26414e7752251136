"""`batchsim power`: seeds per arm that tell two batches apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from batchsim.cli import options as opt

if TYPE_CHECKING:
    from batchsim.cli.table import Cell

RATIOS = "1.05,1.1,1.15,1.25,1.5,2"
SPREADS = "0.03,0.05,0.1,0.15"


def power(
    ratio: Annotated[str, typer.Option(help="r_N to be told from 1, as 1.05,1.15.")] = RATIOS,
    spread: Annotated[
        str, typer.Option(help="Standard deviation of log N* between seeds, as 0.05,0.1; `measure` shows it.")
    ] = SPREADS,
    wanted: Annotated[float, typer.Option("--power", help="Probability of telling them apart.")] = 0.8,
    level: opt.Level = 0.8,
    evaluation_spacing: Annotated[
        float, typer.Option(help="Responses between evaluations over N*: sparse ones count as spread.")
    ] = 0.0,
    json: opt.Json = False,
) -> None:
    """State how many seeds per arm show that a batch needs r_N times the responses.

    Shown means that the central interval of r_N does not hold 1. Student's test takes the spread from the runs
    themselves; the normal one knows it, as from an earlier sweep.
    """
    from batchsim.cli import answer
    from batchsim.recommend import seeds_needed
    from batchsim.variables import SCHEMA

    rows: list[dict[str, Any]] = []
    for r in opt.numbers(ratio, "--ratio"):
        for s in opt.numbers(spread, "--spread"):
            rows.append(
                {"ratio": r, "spread": s}
                | {
                    f"seeds_{kind}": seeds_needed(
                        ratio=r, spread=s, power=wanted, level=level, kind=kind, evaluation_spacing=evaluation_spacing
                    )
                    for kind in ("student", "normal")
                }
            )
    if json:
        answer.write(
            {
                "schema": SCHEMA,
                "verb": "power",
                "power": wanted,
                "level": level,
                "evaluation_spacing": evaluation_spacing,
                "rows": rows,
                "warnings": [],
            }
        )
    else:
        _print(rows, wanted, level)


def _print(rows: list[dict[str, Any]], wanted: float, level: float) -> None:
    from batchsim.cli.table import make_console, print_rows, say
    from batchsim.recommend.power import SEEDS_MAX

    console = make_console()
    spreads = list(dict.fromkeys(row["spread"] for row in rows))
    table: list[dict[str, Cell]] = []
    for ratio in dict.fromkeys(row["ratio"] for row in rows):
        cells: dict[str, Cell] = {"r_N": f"{ratio:g}"}
        for s in spreads:
            row = next(r for r in rows if (r["ratio"], r["spread"]) == (ratio, s))
            cells[f"spread {s:g}"] = (_count(row["seeds_student"]), f"({_count(row['seeds_normal'])})")
        table.append(cells)
    title = (
        f"seeds per arm whose {100 * level:g} % interval of r_N excludes 1 with probability {wanted:g}: "
        "spread from the runs themselves (known beforehand)"
    )
    print_rows(console, title, table)
    if any(row["seeds_student"] is None for row in rows):
        say(console, f"-: more than {SEEDS_MAX:,} seeds, or r_N = 1, which no number of seeds shows.")
    say(
        console,
        "spread: standard deviation of log N* between seeds; 2-5 % in pretraining, 5-25 % in reinforcement learning.",
    )


def _count(seeds: int | None) -> str:
    return "-" if seeds is None else f"{seeds:,}"
