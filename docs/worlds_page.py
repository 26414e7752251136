"""Writes docs/worlds_results.md: `python docs/worlds_page.py` from the figures in docs/worlds_results.json, and
`python docs/worlds_page.py --simulate` after simulating them anew (some 30 minutes on two cores).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
RESULTS, PAGE, TEXT = FOLDER / "worlds_results.json", FOLDER / "worlds_results.md", FOLDER / "worlds_results.txt"
CLAIMS = ("findings", "forecast", "breaking", "staleness")


def simulate() -> dict[str, Any]:
    """All validations on worlds, as `batchsim validate` runs them, without their single rows."""
    from batchsim.validate import worlds

    results = {
        "findings": worlds.validate_findings(),
        "forecast": worlds.validate_forecast(),
        "breaking": worlds.validate_breaking(),
        "staleness": worlds.validate_staleness(),
    }
    kept = {name: {k: v for k, v in result.items() if k != "rows"} for name, result in results.items()}
    kept["findings"]["pairs"] = [
        {k: row[k] for k in ("world", "claim", "predicted", "measured")}
        for row in results["findings"]["rows"]
        if row["predicted"] is not None
    ]
    return kept


def tables(results: dict[str, Any]) -> dict[str, str]:
    """Every table of the page by its name."""
    forecast = results["forecast"]
    return {
        "findings": _findings(results["findings"]),
        "pairs": _pairs(results["findings"]["pairs"]),
        "forecast": _forecast([{"slice": "all"} | forecast["overall"], *forecast["slices"]]),
        "excluded": "\n".join(f"- {reason}: {count}" for reason, count in forecast["excluded"].items()),
        "breaking": _breaking(results["breaking"]),
        "staleness": _staleness(results["staleness"]),
    }


def _table(heading: list[str], rows: list[list[str]]) -> str:
    ruler = ["---"] + ["---:"] * (len(heading) - 1)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [heading, ruler, *rows])


def _short(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _findings(result: dict[str, Any]) -> str:
    rows = []
    for part in result["slices"]:
        low, high = part["interval"] or (None, None)
        asked = "" if low is None else f">= {low:g}" if high is None else f"{low:g} .. {high:g}"
        span = f"{_short(part['lowest'])} .. {_short(part['highest'])}"
        met = f"{part['met']} of {part['n']}" if part["tested"] else ""
        rows.append([part["slice"], _short(part["median"]), span, asked, met])
    return _table(["simulated", "median", "range over worlds", "asked", "worlds"], rows)


def _pairs(pairs: list[dict[str, Any]]) -> str:
    rows = []
    for claim in dict.fromkeys(p["claim"] for p in pairs):
        own = [p for p in pairs if p["claim"] == claim]
        cells = [" .. ".join(f"{f(p[key] for p in own):.2f}" for f in (min, max)) for key in ("measured", "predicted")]
        rows.append([claim.partition(": ")[2], *cells])
    return _table(["", "simulated", "from moments at the start"], rows)


def _forecast(parts: list[dict[str, Any]]) -> str:
    names = list(parts[0]["forms"])
    rows = []
    for part in parts:
        cells = [part["slice"], f"{part['n']} (+ {part['excluded']})"]
        for name in names:
            form = part["forms"][name]
            if form["median_abs_log_error"] is None:
                cells.append("-")
                continue
            both = f"{100 * form['median_abs_log_error']:.0f} / {100 * form['p90_abs_log_error']:.0f}"
            cells.append(both + (f" ({form['silent']} silent)" if form["silent"] else ""))
        cells.append("-" if part["covered"] is None else f"{100 * part['covered']:.0f}")
        rows.append(cells)
    return _table(["row, c_0", "forecasts (+ left out)", *names, "covered"], rows)


def _breaking(result: dict[str, Any]) -> str:
    def two(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}"

    rows = [
        [
            part["slice"],
            *(
                f"{two(m)} ({two(said)}; {two(own)})"
                for m, said, own in zip(part["measured"], part["predicted"], part["own_path"], strict=True)
            ),
            "" if part["survives"] else "breaks",
        ]
        for part in result["slices"]
    ]
    return _table(["attempt", *(f"{f:g} x" for f in result["overall"]["factors"]), ""], rows)


def _staleness(result: dict[str, Any]) -> str:
    lags = result["overall"]["lags"]
    rows = []
    for part in result["slices"]:
        cells = ["-" if v is None else f"{v:.2f}" for v in part["ratio"][1:]]
        rows.append([part["way"], f"{part['learning_rate']:g}", f"{part['fresh_updates']:.0f}", *cells])
    published = [result["overall"]["by_lag"][str(lag)]["published"] for lag in lags]
    rows.append(
        ["published, OLMo2-1B", "1e-06", "200 to 975", *(f"{low:.1f} .. {high:.1f}" for low, high in published)]
    )
    return _table(["way", "rate", "updates when fresh", *(f"lag {lag}" for lag in lags)], rows)


def page(results: dict[str, Any], text: str) -> str:
    """The page: the text with each `{{name}}` replaced by its table."""
    for name, table in tables(results).items():
        text = text.replace(f"{{{{{name}}}}}", table)
    return text


def main() -> None:
    """Write the page, simulating first if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulate", action="store_true", help="simulate all worlds anew")
    if parser.parse_args().simulate:
        RESULTS.write_text(json.dumps(simulate(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(page(results, TEXT.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
