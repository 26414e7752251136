"""Writes the table of docs/decisions.md: `batchsim validate decisions --json | python docs/decisions_table.py`."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from batchsim.cli.validation_decisions import ORACLES, sentences
from batchsim.validate.decisions import CI_WORLDS

PAGE = Path(__file__).with_name("decisions.md")
STORED = Path(__file__).with_name("decisions_results.json")
"""Scores, and the rows of the worlds that are always run."""
MARK = "decisions"


def stored(result: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a result: everything but the rows beyond the first worlds.

    Parameters
    ----------
    result : dict
        Of `validate.decisions.validate_decisions`, as JSON.

    Returns
    -------
    dict
    """
    names = ("kind", "world", "measured", "predicted", "peer", "next_run", "regret", "prior_only_regret")
    first = [{n: row[n] for n in names} for row in result["rows"][:CI_WORLDS]]
    kept = {n: result[n] for n in ("name", "overall", "slices", "histogram", "goals", "skipped")}
    found: dict[str, Any] = _rounded(kept | {"rows": first})
    return found


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return [_rounded(v) for v in value] if isinstance(value, list) else value


def table(result: dict[str, Any]) -> list[str]:
    """Lines of the page between its markers.

    Parameters
    ----------
    result : dict
        Of `stored`.

    Returns
    -------
    list of str
    """
    overall = result["overall"]
    lines = [*sentences(result), ""]
    lines += ["| choice | mean regret | median | 95th percentile |", "|---|---|---|---|"]
    choices = {"": "the star of `predict`", "fastest_": "least expected regret instead", **_oracles()}
    choices["prior_only_"] = "prior only"
    for key, name in choices.items():
        cells = [_percent(overall[_name(s, key)]) for s in ("mean", "median", "p95")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    for name, habit in overall["habits"].items():
        cells = [_percent(habit[f"{s}_regret"]) for s in ("mean", "median", "p95")]
        lines.append(f"| habit: {name} | {' | '.join(cells)} |")
    lines += [
        "",
        "| worlds | n | mean regret | 95th | prior only | `r_N` in 80 % | `T` in 80 % | median error of `r_N` |",
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    for part in result["slices"]:
        if not part["n"]:
            continue
        cells = [_percent(part[n]) for n in ("mean_regret", "p95_regret", "prior_only_mean_regret")]
        cells += [_percent(part[n], 0) for n in ("coverage_r_N", "coverage_T")]
        cells.append(f"{100 * part['median_log_error_r_N']:+.0f} %".replace("-0 %", "+0 %"))
        lines.append(f"| {part['slice']} | {part['n']} | {' | '.join(cells)} |")
    count = result["histogram"]
    places = sorted({int(k) for held in count.values() for k in held})
    lines += [
        "",
        f"| worlds by batch | {' | '.join(f'{2.0**k:g} x' for k in places)} |",
        f"|---|{'---|' * len(places)}",
    ]
    for name, key in (("best", "best"), ("chosen", "star")):
        lines.append(f"| {name} | {' | '.join(str(count[key].get(str(k), 0)) for k in places)} |")
    return lines


def _oracles() -> dict[str, str]:
    return {f"{key}_": name for key, name in ORACLES.items()}


def _name(statistic: str, key: str) -> str:
    return f"prior_only_{statistic}_regret" if key == "prior_only_" else f"{statistic}_{key}regret"


def _percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f} %"


def written(text: str, result: dict[str, Any]) -> str:
    """The page with its table replaced.

    Parameters
    ----------
    text : str
    result : dict

    Returns
    -------
    str
    """
    block = "\n".join([f"<!-- {MARK} -->", *table(result), "<!-- end -->"])
    text, count = re.subn(rf"<!-- {MARK} -->\n.*?<!-- end -->", lambda _: block, text, flags=re.DOTALL)
    if count != 1:
        raise SystemExit(f"the page holds the marker {MARK} {count} times")
    return text


def main() -> None:
    """Store a result and rewrite the page."""
    kept = stored(json.load(sys.stdin))
    STORED.write_text(json.dumps(kept, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), kept), encoding="utf-8")


if __name__ == "__main__":
    main()
