"""Writes tables of docs/validation.md on whole forecasts: `python docs/measured_tables.py --data FOLDER`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from batchsim.cli.validation_measured import sentence, signed
from batchsim.validate.measured import QUANTITIES

PAGE = Path(__file__).with_name("validation.md")
Results = dict[str, dict[str, Any]]


def results(data: Path | None) -> Results:
    """Every validation that the tables show, by name.

    Parameters
    ----------
    data : Path or None
        Folder of measured data.

    Returns
    -------
    dict
    """
    from batchsim.validate.li2026 import validate_li2026
    from batchsim.validate.mlperf import validate_mlperf
    from batchsim.validate.samples import validate_samples
    from batchsim.validate.steps import validate_steps
    from batchsim.validate.tiny import validate_tiny

    return {
        "samples": validate_samples(data),
        "mlperf": validate_mlperf(data),
        "li2026": validate_li2026(data),
        "tiny": validate_tiny(data),
        "steps": validate_steps(data),
    }


def tables(found: Results) -> dict[str, list[str]]:
    """Rows of every table by its marker.

    Parameters
    ----------
    found : dict
        Of `results`.

    Returns
    -------
    dict
        Marker to lines.
    """
    return {
        "defaults": _defaults(found["samples"]["overall"]),
        "mlperf": [sentence(found["mlperf"]), "", *_rows(found["mlperf"]["rows"])],
        "li2026": [sentence(found["li2026"]), "", *_rows(found["li2026"]["rows"]), "", *_explained(found)],
        "priors": _priors(found["li2026"]["recommendations"]),
        "updates": _updates(found["li2026"]["readings"]),
        "tiny": [sentence(found["tiny"]), "", *_scores(found["tiny"]["slices"])],
        "stars": _stars(found["tiny"]["stars"]),
        "pilots": _pilots([found[name] for name in ("mlperf", "li2026", "tiny")]),
        "phases": [
            sentence(found["steps"]),
            "",
            *_scores([{"slice": "**all**"} | found["steps"]["overall"], *found["steps"]["slices"]]),
        ],
    }


def _explained(found: Results) -> list[str]:
    return [f"- {row['claim']}: {row['explanation']}." for row in found["li2026"]["rows"] if row["explanation"]]


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _head(*names: str) -> list[str]:
    return [_line(*names), f"|{'---|' * len(names)}"]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _span(limits: list[float | None] | None) -> str:
    if limits is None:
        return ""
    low, high = limits
    if low == high:
        return _number(low)
    return f"{_number(low)} - {_number(high)}" if high is not None else "any" if not low else f">= {_number(low)}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def _defaults(overall: dict[str, Any]) -> list[str]:
    goals = overall["goals"]
    values = (
        ("points", str(overall["n"]), ""),
        ("median absolute log error", f"{overall['median_abs_error']:.3f}", "below the hyperbola's"),
        ("the hyperbola's on the same points", f"{overall['hyperbola_median_abs_error']:.3f}", ""),
        ("forms chosen without the set", f"{overall['unseen_median_abs_error']:.3f}", ""),
        ("bias", f"{overall['bias']:+.3f}", ""),
        ("covered by 80 % intervals", _share(overall["coverage_80"]), f"at least {_share(goals['coverage_80'])}"),
        ("median half-width", _share(overall["half_width_80"]), f"at most {_share(goals['half_width_80'])}"),
    )
    return [*_head("default form per rule", "measured", "goal"), *(_line(*row) for row in values)]


def _rows(rows: list[dict[str, Any]]) -> list[str]:
    found = _head("held out", "predicted", "measured", "error", "covered", "peer")
    for row in rows:
        interval = f" ({_span(row['interval'])})" if row["interval"] else ""
        measured = _number(row["measured"]) if row["measured"] is not None else _span(row.get("allowed"))
        own = row["measured_interval"]
        if own is not None and None not in own:
            measured += f" ({_span(own)})"
        error = "-" if row["error"] is None else f"{100 * row['error']:+.0f} %"
        covered = {True: "yes", False: "no", None: "-"}[row["covered"]]
        cells = [row["claim"], f"{_number(row['predicted'])}{interval}", measured, error, covered]
        found.append(_line(*cells, _number(row["peer"])))
    return found


def _priors(recommendations: list[dict[str, Any]]) -> list[str]:
    found = _head(
        "prior of `B_noise`", "median after the pilots", "star, P", "range, P", "next run, P", "P(T < T0) at 512, 1,024"
    )
    for r in recommendations:
        chance = ", ".join(f"{p:.2f}" for p in r["plateau_probability"].values())
        following = "-" if r["next_run"] is None else str(r["next_run"])
        star = "-" if r["star"] is None else str(r["star"])
        found.append(
            _line(
                r["prior"], f"{r['noise_scale'][1]:,.0f}", star, _span(r["effective_range"]) or "-", following, chance
            )
        )
    return found


def _updates(readings: list[dict[str, Any]]) -> list[str]:
    found = _head("P", "`N*_0`", "printed", "whole updates", "allows", "predicted", "meet")
    for r in readings:
        fewest, most = r["updates"]
        updates = "none fits" if not r["consistent"] else str(most) if fewest == most else f"{fewest} - {most}"
        found.append(
            _line(
                f"{r['prompts']:,}",
                f"{r['responses_to_target']:,}",
                f"{r['printed']:g}",
                updates,
                f"{r['allowed'][0]:.2f} - {r['allowed'][1]:.2f}",
                f"{_number(r['predicted'])} ({_span(r['interval'])})",
                "yes" if r["meets"] else "no",
            )
        )
    return found


def _scores(parts: list[dict[str, Any]]) -> list[str]:
    found = _head("rows", "n", "median abs. log error", "bias", "in the interval", "half-width", "peer's error")
    for part in parts:
        found.append(
            _line(
                part["slice"],
                str(part["n"]),
                f"{part['median_abs_error']:.3f}",
                signed(part["bias"]),
                _share(part["coverage"]),
                _share(part["half_width"]),
                "-" if part["peer_median_abs_error"] is None else f"{part['peer_median_abs_error']:.3f}",
            )
        )
    return found


def _stars(stars: list[dict[str, Any]]) -> list[str]:
    found = _head(
        "rule", "target", "star", "range", "next run", "measured star", "within 5 % of the least time", "regret"
    )
    for s in stars:
        cells = (
            s["rule"],
            f"{s['target']:g}",
            _number(s["star"]),
            _span(s["effective_range"]) or "-",
            _number(s["next_run"]),
        )
        found.append(_line(*cells, _number(s["measured_star"]), _span(s["measured_range"]), _share(s["regret"])))
    return found


def _pilots(validations: list[dict[str, Any]]) -> list[str]:
    names = [f"{shown}, {what}" for shown in QUANTITIES.values() for what in ("80 % interval", "ends apart by")]
    found = _head("workload, asked", "pilots", *(n.replace("80 % ", "") for n in names), "unmeasured")
    for validation in validations:
        rungs = validation["pilots"]
        for pilots in dict.fromkeys(r["pilots"] for r in rungs):
            own = {r["quantity"]: r for r in rungs if r["pilots"] == pilots}
            cells = [f"{rungs[0]['workload']}, B = {rungs[0]['train_batch']:,.0f}", pilots]
            for quantity in QUANTITIES:
                row = own[quantity]
                mark = " (no)" if row["covered"] is False else ""
                width = "-" if row["width"] is None else f"{row['width']:.2f}"
                cells += [f"{_number(row['predicted'])} ({_span(row['interval'])}){mark}", width]
            found.append(_line(*cells, f"{len(own['time_ratio']['prior'])} of 6"))
        known = {r["quantity"]: r["measured"] for r in rungs if r["measured"] is not None}
        cells = [f"{rungs[0]['workload']}, B = {rungs[0]['train_batch']:,.0f}", "**measured**"]
        for quantity in QUANTITIES:
            cells += [_number(known.get(quantity)), ""]
        found.append(_line(*cells, ""))
    return found


def written(text: str, found: Results) -> str:
    """The page with its tables replaced.

    Parameters
    ----------
    text : str
        Of the page.
    found : dict
        Of `results`.

    Returns
    -------
    str
    """
    for marker, rows in tables(found).items():
        lines = "\n".join(rows)
        block = f"<!-- {marker} -->\n{lines}\n<!-- end -->"
        text, count = re.subn(
            rf"<!-- {marker} -->\n.*?<!-- end -->", lambda _, block=block: block, text, flags=re.DOTALL
        )
        if count != 1:
            raise SystemExit(f"the page holds the marker {marker} {count} times")
    return text


def main() -> None:
    """Rewrite the tables in place."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of measured data")
    given = parser.parse_args()
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), results(given.data)), encoding="utf-8")


if __name__ == "__main__":
    main()
