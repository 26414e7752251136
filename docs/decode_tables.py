"""Writes the tables of docs/decode.md: `python docs/decode_tables.py --data FOLDER` (one minute)."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

from batchsim.validate.kernels import validate_kernels
from batchsim.validate.serving import validate_serving

PAGE = Path(__file__).with_name("decode.md")


def tables(serving: dict[str, Any], kernels: dict[str, Any]) -> dict[str, list[str]]:
    """Rows of every table by its marker.

    Parameters
    ----------
    serving, kernels : dict
        Answers of the two validations.

    Returns
    -------
    dict
        Marker to lines.
    """
    return {"serving": _serving(serving), "experts": _experts(kernels), "generic": _generic(kernels)}


def _serving(result: dict[str, Any]) -> list[str]:
    rows = []
    for part in result["slices"]:
        if part["split"].endswith("x model") and part["engine"] != "vllm":
            continue
        split = part["split"] if part["engine"] == "vllm" else f"{part['split']}, {part['engine']}"
        covered = "-" if part["covered"] is None else f"{100 * part['covered']:.0f} %"
        both = [_pair(part, prefix) for prefix in ("", "with_peer_", "peer_")]
        rows.append(f"| {split} | {part['of']} | {part['n']} | {both[0]} | {covered} | {both[1]} | {both[2]} |")
    return rows


def _pair(part: dict[str, Any], prefix: str) -> str:
    median, mean = part[f"{prefix}median_ape"], part[f"{prefix}mape"]
    return "-" if median is None else f"{100 * median:.1f} / {100 * mean:.1f} %"


def _experts(result: dict[str, Any]) -> list[str]:
    return [
        f"| {part['of']} | {part['n']} | {100 * part['mape']:.1f} % | {100 * part['max_ape']:.1f} % | "
        f"{100 * part['peer_mape']:.1f} % | {100 * part['peer_max_ape']:.1f} % |"
        for part in result["slices"]
        if part["claim"] == "experts"
    ]


def _generic(result: dict[str, Any]) -> list[str]:
    rows = []
    for kernel in ("gemm", "attention", "experts"):
        medians = [
            part["median_ape"]
            for part in result["slices"]
            if part["claim"] == "generic" and part["of"].endswith(f" {kernel}")
        ]
        rows.append(f"| {kernel} | {len(medians)} | {100 * np.median(medians):.1f} % | {100 * max(medians):.1f} % |")
    return rows


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
    rows = tables(validate_serving(given.data), validate_kernels(given.data))
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
