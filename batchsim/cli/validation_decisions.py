"""`batchsim validate decisions` as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchsim.cli.table import Cell

ORACLES = {
    "exact_r_q": "the star, were r_q known",
    "exact_r_N": "the star, were r_N known",
    "next_run": "after the next run",
    "both_runs": "after it and a run of the reference",
}
"""What a better forecast could win, as printed."""


def print_decisions(result: dict[str, Any]) -> None:
    """Print what the choices cost, where they go wrong, and where the best batches lie.

    Parameters
    ----------
    result : dict
        Of `validate.decisions.validate_decisions`.
    """
    from batchsim.cli.table import make_console, print_notes, print_rows, say

    console = make_console()
    overall, goals = result["overall"], result["goals"]
    rows: list[dict[str, Cell]] = [
        _choice("the star of `predict`", overall, "mean_regret", "median_regret", "p95_regret"),
        _choice("least expected regret instead", overall, *(f"{s}_fastest_regret" for s in ("mean", "median", "p95"))),
        *(
            _choice(name, overall, *(f"{s}_{key}_regret" for s in ("mean", "median", "p95")))
            for key, name in ORACLES.items()
        ),
        _choice("prior only", overall, *(f"prior_only_{s}_regret" for s in ("mean", "median", "p95"))),
    ]
    rows += [
        _choice(f"habit: {name}", habit, "mean_regret", "median_regret", "p95_regret")
        for name, habit in overall["habits"].items()
    ]
    print_rows(console, f"T(chosen)/T(best) - 1 over {overall['n']} worlds joined to clusters", rows)
    for sentence in sentences(result):
        say(console, sentence)
    parts: list[dict[str, Cell]] = [
        {
            "worlds": part["slice"],
            "n": str(part["n"]),
            "mean": _percent(part["mean_regret"]),
            "95th": _percent(part["p95_regret"]),
            "prior only": _percent(part["prior_only_mean_regret"]),
            "r_N in 80 %": _percent(part["coverage_r_N"], 0),
            "T in 80 %": _percent(part["coverage_T"], 0),
            "|log error| of r_N": f"{part['median_abs_log_error_r_N']:.3f}",
        }
        for part in result["slices"]
        if part["n"]
    ]
    print_rows(console, "by kind of world: regret of the star", parts)
    counts = result["histogram"]
    places = sorted({int(k) for count in counts.values() for k in count})
    lines: list[dict[str, Cell]] = [
        {"": name, **{f"{2.0**k:g} x": str(counts[key].get(str(k), 0)) for k in places}}
        for name, key in (("best", "best"), ("chosen", "star"))
    ]
    print_rows(console, "worlds by batch, over the reference", lines)
    low, high = (_percent(share, 0) for share in goals["coverage"])
    aims = (
        f"goals: best habit's median at least {_percent(goals['best_habit_median'], 0)}, mean at most "
        f"{goals['mean_over_prior']:g} of the prior's, 95th percentile at most {_percent(goals['p95'], 0)}, coverage "
        f"{low} to {high}"
    )
    print_notes(console, [aims, *(f"skipped: {reason}" for reason in result["skipped"])])


def sentences(result: dict[str, Any]) -> list[str]:
    """What was asked and whether it holds, in sentences."""
    overall, goals = result["overall"], result["goals"]
    share = overall["regret_over_prior"]
    best = overall["habits"][overall["best_habit"]]["median_regret"]
    low, high = goals["coverage"]
    held = {name: low <= overall[f"coverage_{name}"] <= high for name in ("r_N", "T")}
    inside = {name: _percent(overall[f"coverage_{name}"], 0) for name in held}
    return [
        f"Mean regret {'' if share is None else f'{share:.2f} of '}the prior-only choice's "
        f"({_met(share is not None and share <= goals['mean_over_prior'])}); 95th percentile "
        f"{_percent(overall['p95_regret'])} ({_met(overall['p95_regret'] <= goals['p95'])}); 80 % intervals hold "
        f"{inside['r_N']} of r_N ({_met(held['r_N'])}) and {inside['T']} of T ({_met(held['T'])}); the best habit "
        f"({overall['best_habit']}) has a median regret of {_percent(best)} "
        f"({_met(best >= goals['best_habit_median'])}).",
        f"No star in {overall['without_star']} worlds, where the reference is kept (prior only: "
        f"{overall['prior_without_star']}); the range holds the best batch in "
        f"{_percent(overall['best_in_range'], 0)}; pilots take at most {_percent(overall['largest_pilot_share'])} of "
        f"the reference's time, and {overall['pilots_that_reach']} reach the target.",
    ]


def _choice(name: str, scores: dict[str, Any], *keys: str) -> dict[str, Cell]:
    mean, median, tail = (_percent(scores[key]) for key in keys)
    return {"choice": name, "mean": mean, "median": median, "95th percentile": tail}


def _met(is_met: bool) -> str:
    return "met" if is_met else "missed"


def _percent(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{100 * value:.{digits}f} %"
