"""Writes the tables of docs/pipeline.md: `python docs/pipeline_tables.py --data FOLDER` (seconds)."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from batchsim.validate.rl_steps import validate_rl_steps

PAGE = Path(__file__).with_name("pipeline.md")


def tables(result: dict[str, Any]) -> dict[str, list[str]]:
    """Rows of every table by its marker.

    Parameters
    ----------
    result : dict
        Of `validate_rl_steps`.

    Returns
    -------
    dict
        Marker to lines.
    """
    return {"steps": _steps(result), "ratios": _ratios(result), "elsewhere": _elsewhere(result)}


def _steps(result: dict[str, Any]) -> list[str]:
    rows = ["| rows | n | error | largest | bias | in 80 % |", "|---|---:|---|---:|---:|---:|"]
    for part in (p for p in result["slices"] if p["engine"] == "NeMo-RL"):
        both = f"{100 * part['median_ape']:.1f} / {100 * part['mape']:.1f} %"
        covered = "" if part["covered"] is None else f"{100 * part['covered']:.0f} %"
        cells = [
            part["of"],
            str(part["n"]),
            both,
            f"{100 * part['max_ape']:.0f} %",
            f"{100 * part['bias']:+.0f} %",
            covered,
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _ratios(result: dict[str, Any]) -> list[str]:
    rows = ["| ratio | within 25 % | median error | largest |", "|---|---:|---:|---:|"]
    for part in result["overall"]["ratios"]:
        share = f"{part['within']} of {part['n']}"
        rows.append(f"| {part['split']} | {share} | {100 * part['median_ape']:.0f} % | {100 * part['max_ape']:.0f} % |")
    return rows


def _elsewhere(result: dict[str, Any]) -> list[str]:
    rows = ["| | predicted (s) | measured (s) | error |", "|---|---:|---:|---:|"]
    for row in (r for r in result["rows"] if "1.5B" in r["claim"]):
        name = row["claim"].partition(": ")[2]
        rows.append(f"| {name} | {row['predicted']:.0f} | {row['measured']:.0f} | {100 * row['error']:+.0f} % |")
    return rows


def written(text: str, result: dict[str, Any]) -> str:
    """The page with its tables replaced.

    Parameters
    ----------
    text : str
        Of the page.
    result : dict
        Of `validate_rl_steps`.

    Returns
    -------
    str
    """
    for marker, rows in tables(result).items():
        lines = "\n".join(rows)
        block = f"<!-- {marker} -->\n{lines}\n<!-- end -->"
        text = re.sub(rf"<!-- {marker} -->\n.*?<!-- end -->", block, text, flags=re.S)
    return text


def main() -> None:
    """Rewrite the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of measured data")
    result = validate_rl_steps(parser.parse_args().data)
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), result), encoding="utf-8")


if __name__ == "__main__":
    main()
