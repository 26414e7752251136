"""Writes the tables of docs/training.md: `python docs/training_tables.py --data FOLDER` (half a minute)."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from batchsim.system.training.efficiency import shipped
from batchsim.validate.training import CHOSEN, MODEL, ROW, validate_training

PAGE = Path(__file__).with_name("training.md")
SHORT = {CHOSEN: "left-out model, weight chosen"}
SPLITS = (MODEL, f"{MODEL} by GPU", f"{MODEL} by variant", CHOSEN, ROW)
NEVER_FITTED = ("training", "logprobs", "synchronisation", "peak memory")


BRIEF = (CHOSEN, ROW, "logprobs")
"""Splits whose parts only the program prints."""
HIDDEN = {
    ("synchronisation", "all"),
    ("peak memory", "Qwen/Qwen3-0.6B"),
    ("peak memory", "Qwen/Qwen3-4B-Instruct-2507"),
}


def tables(result: dict[str, Any]) -> dict[str, list[str]]:
    """Rows of every table by its marker.

    Parameters
    ----------
    result : dict
        Of `validate_training`.

    Returns
    -------
    dict
        Marker to lines.
    """
    return {"updates": _updates(result), "elsewhere": _elsewhere(result), "constants": _constants()}


def _shown(split: str, of: str) -> bool:
    return (split not in BRIEF or of == "all") and (split, of) not in HIDDEN


def _updates(result: dict[str, Any]) -> list[str]:
    rows = []
    for part in (p for split in SPLITS for p in result["slices"] if p["split"] == split and _shown(split, p["of"])):
        split = SHORT.get(part["split"], part["split"].partition(" by ")[0])
        both = f"{100 * part['median_ape']:.1f} / {100 * part['mape']:.1f} %"
        rest = [f"{100 * part[name]:.0f} %" for name in ("max_ape", "covered", "peer_median_ape")]
        cells = [split, part["of"].rpartition("/")[2], str(part["n"]), both, rest[0], f"{100 * part['bias']:+.0f} %"]
        rows.append(f"| {' | '.join([*cells, *rest[1:]])} |")
    return rows


def _elsewhere(result: dict[str, Any]) -> list[str]:
    return [
        f"| {part['split']} | {part['of'].rpartition('/')[2]} | {part['n']} | {100 * part['median_ape']:.0f} % | "
        f"{100 * part['bias']:+.0f} % |"
        for split in NEVER_FITTED
        for part in result["slices"]
        if part["split"] == split and _shown(split, part["of"])
    ]


def _constants() -> list[str]:
    found = shipped()
    cells = [
        f"| {name.replace('.', ', ').replace('_', ' ')} | {value:.3g} | {found['log_se'][name]:.2f} "
        for name, value in found["constants"].items()
    ]
    return [f"{left}{right}|" for left, right in zip(cells[::2], cells[1::2], strict=True)]


def filled(page: str, rows: dict[str, list[str]]) -> str:
    """The page with its tables written anew: two lines of heading stay, the rest up to the end mark is replaced."""
    for marker, lines in rows.items():
        block = "\n".join(lines)
        page = re.sub(
            rf"(<!-- {marker} -->\n[^\n]*\n[^\n]*\n).*?(<!-- end -->)", rf"\g<1>{block}\n\g<2>", page, flags=re.DOTALL
        )
    return page


def main() -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=None, help="folder of measured data")
    given = parser.parse_args()
    rows = tables(validate_training(given.data))
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
