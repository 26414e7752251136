"""Validations of the system wing as tables: a row per slice, the sentences that decide."""

from __future__ import annotations

from typing import Any

from batchsim.cli.table import Cell, make_console, print_notes, print_rows, say

RESTS = {"the same, the priors' weight chosen without it": "weight_chosen", "a row left out": "left_out_row"}
"""Further figures beside the overall one."""


def print_slices(result: dict[str, Any]) -> None:
    """Print the overall figure, slices by claim, and what was skipped.

    Parameters
    ----------
    result : dict
        Of a validation of the system wing: serving, kernels, trace, makespan, training.
    """
    console = make_console()
    overall = result["overall"]
    if overall:
        say(console, overall_sentence(result["name"], overall))
    for name, key in RESTS.items():
        if overall.get(key):
            say(console, overall_sentence(name, overall[key]))
    groups: dict[str, list[dict[str, Any]]] = {}
    for part in result["slices"]:
        groups.setdefault(_group(part), []).append(part)
    for title, parts in groups.items():
        rows = [_cells(part) for part in parts]
        known = [name for name in rows[0] if any(row[name] != "-" for row in rows)]
        print_rows(
            console,
            title,
            [{name: row[name] for name in known} for row in rows],
            optional=("bias", "in 80 %"),
            wraps=("of",),
        )
    if result["name"] == "rl-steps":
        _print_order(result)
    print_notes(console, [*result.get("notes", []), *(f"skipped: {reason}" for reason in result["skipped"])])


def _print_order(result: dict[str, Any]) -> None:
    """Kendall's tau, ratios within their goal, and inversions with their reasons."""
    console = make_console()
    tau = result["overall"]["kendall_tau"]
    say(console, f"order of rates per GPU: Kendall's tau {tau:.2f} over {result['overall']['n']} rows")
    for part in result["overall"]["ratios"]:
        largest = _percent(part["max_ape"])
        say(
            console,
            f"{part['split']}: {part['within']} of {part['n']} ratios within 25 %, "
            f"median {_percent(part['median_ape'])}, largest {largest}",
        )
    rows: list[dict[str, Cell]] = [
        {
            "faster": pair["faster"],
            "slower": pair["slower"],
            "measured": f"{pair['measured']:.2f}",
            "predicted": f"{pair['predicted']:.2f}",
            "reason": pair["reason"],
        }
        for pair in result["inversions"]
    ]
    if rows:
        print_rows(console, "inversions within a model: rates per GPU, ratio of the faster to the slower", rows)


def overall_sentence(name: str, overall: dict[str, Any]) -> str:
    """What a validation found, in a sentence."""
    what = {
        "serving": "time per output token on a GPU whose serving rows no constant saw",
        "kernels": "one layer's experts, their number left out",
        "training": "time of an update of a model whose rows no constant saw",
        "rl-steps": "whole step from specifications",
    }.get(name, name)
    said = f"{what}: median error {_percent(overall['median_ape'])}, mean {_percent(overall['mape'])}"
    if "max_ape" in overall:
        said += f", largest {_percent(overall['max_ape'])}"
    said += f" over {overall['n']} rows"
    if overall.get("peer_mape") is None:
        return said
    theirs = f"{_percent(overall['peer_median_ape'])} and {_percent(overall['peer_mape'])}"
    return f"{said}; {overall['peer']} on the same rows {theirs}"


def _group(part: dict[str, Any]) -> str:
    if "split" in part:
        return f"{part['engine']}: {part['split']}"
    titles = {
        "experts": "experts of one layer on RTX PRO 6000, their number left out",
        "generic": "kernel tables by the mean efficiencies of other GPUs",
        "layers": "layers on RTX PRO 6000 by efficiencies from other sources",
        "shipped fit, own rows": "shipped fits on their own rows, |log error|",
    }
    return titles.get(str(part["claim"]), str(part["claim"]))


def _cells(part: dict[str, Any]) -> dict[str, Cell]:
    return {
        "of": part["of"],
        "n": str(part["n"]),
        "median": _percent(part.get("median_ape")),
        "mean": _percent(part.get("mape")),
        "max": _percent(part.get("max_ape")),
        "bias": _signed(part.get("bias")),
        "factor": _plain(part.get("factor")),
        "ratio": _plain(part.get("ratio")),
        "running": _percent(part.get("running_error")),
        "tokens/s": _percent(part.get("token_error")),
        "length": _signed(part.get("length_error")),
        "step times": _plain(part.get("step_factor")),
        "in 80 %": _percent(part.get("covered")),
        "peer: n": str(part.get("n_with_peer") or "-"),
        "own": _both(part, "with_peer_"),
        "peer": _both(part, "peer_"),
    }


def _both(part: dict[str, Any], prefix: str) -> str:
    median, mean = part.get(f"{prefix}median_ape"), part.get(f"{prefix}mape")
    return "-" if median is None else f"{_percent(median)} / {_percent(mean)}"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.1f} %"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
