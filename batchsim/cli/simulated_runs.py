"""Simulated runs as an answer, a table, a plot and a file: what `simulate grpo`, `ppo` and `quadratic` share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from rich.console import Console

    from batchsim.cli.table import Cell

LEVEL = 0.8
CENSORED = "too many responses"


def save(tree: xr.DataTree, path: Path) -> None:
    """Write runs whole or not at all."""
    from batchsim.cli.files import replace_file
    from batchsim.logs import save_runs

    with replace_file(path) as temporary:
        save_runs(tree, temporary)


def rows_of(
    tree: xr.DataTree, target: float | None, noise_scale: Callable[[xr.Dataset], float | None]
) -> list[dict[str, Any]]:
    """What each arm's runs show, in the order of the arms.

    Parameters
    ----------
    tree : xarray.DataTree
        Of `batchsim.learning.worlds.simulate_*`.
    target : float or None [1]
    noise_scale : callable
        From a run to the true noise scale before training [responses], None where it is not known.

    Returns
    -------
    list of dict
        Plain values; None for what is not known, or never reached.
    """
    arms: dict[tuple[Any, ...], dict[str, xr.Dataset]] = {}
    for name, node in tree.children.items():
        ds = node.to_dataset()
        key = *(ds.attrs[n] for n in ("prompts", "group_size", "train_batch", "learning_rate")), _critic_rate(ds)
        arms.setdefault(key, {})[str(name)] = ds
    rows = [_row(runs, target, noise_scale) for runs in arms.values()]
    known = [row for row in rows if row["responses_to_target"]]
    smallest = min((row["train_batch"] for row in rows), default=0)
    reference = next((row for row in known if row["train_batch"] == smallest), None)
    for row in rows:
        _set_cost(row, reference)
    return rows


def _critic_rate(ds: xr.Dataset) -> float | None:
    """Learning rate of the critic, which is no attribute of a log [1]; None without a critic."""
    rate = ds.attrs["provenance"].get("critic_learning_rate")
    return None if rate is None else float(rate)


def _row(
    runs: Mapping[str, xr.Dataset], target: float | None, noise_scale: Callable[[xr.Dataset], float | None]
) -> dict[str, Any]:
    import numpy as np

    from batchsim.cli.answer import number
    from batchsim.learning.worlds import responses_to_target
    from batchsim.learning.worlds.run_layout import METRIC
    from batchsim.measure import measure_noise_scale, noise_scale_record

    one = next(iter(runs.values()))
    ends = [str(ds.attrs["status"]) for ds in runs.values()]
    kept = np.array([float(ds["responses"].values[-1]) if ds.sizes["rollout_step"] else 0.0 for ds in runs.values()])
    spent = np.array([float(ds["elapsed"].values[-1]) if ds.sizes["rollout_step"] else 0.0 for ds in runs.values()])
    # Norms of a run that ran away are those of its flight.
    held = {name: ds for name, ds in runs.items() if "grad_norm" in ds and ds.attrs["status"] != "diverges"}
    norms = np.concatenate([ds["grad_norm"].values for ds in held.values()] or [np.zeros(0)])
    norms = norms[np.isfinite(norms)]
    n = np.full(len(runs), np.nan)
    if target is not None:
        n = np.array([responses_to_target(ds, target) for ds in runs.values()])
    reached = np.isfinite(n).all()
    least = None
    if target is not None and not reached and all(end in ("reached", CENSORED) for end in ends):
        least = number(np.minimum(n, kept).mean())
    estimates = [e for e in measure_noise_scale(held, level=LEVEL) if e.method == "chunk norms"]
    score = [float(ds["score"].sel(metric=METRIC).values[-1]) for ds in runs.values()]
    return {
        **{name: one.attrs[name] for name in ("prompts", "group_size", "rollout_batch", "train_batch")},
        "learning_rate": one.attrs["learning_rate"],
        "critic_learning_rate": _critic_rate(one),
        "lr_rule": one.attrs["lr_rule"],
        "runs": len(runs),
        "outcomes": [{"outcome": end, "runs": ends.count(end)} for end in dict.fromkeys(ends)],
        "score": number(np.mean(score)),
        "updates_to_target": _mean_along(runs, n, "updates") if reached else None,
        "responses_to_target": number(n.mean()) if reached else None,
        "responses_to_target_se": number(n.std(ddof=1) / np.sqrt(n.size)) if reached and n.size > 1 else None,
        "responses_at_least": least,
        "time_to_target": _mean_along(runs, n, "elapsed") if reached else None,
        "throughput": number(kept.sum() / spent.sum()) if spent.sum() > 0 else None,
        "grad_norm": number(np.sqrt(np.mean(norms**2))) if norms.size else None,
        "noise_scale": noise_scale(one),
        "noise_scale_measured": noise_scale_record(estimates[0]) if estimates else None,
    }


def _mean_along(runs: Mapping[str, xr.Dataset], n: Any, name: str) -> float | int | None:
    """Mean over runs of a cumulative quantity at N*."""
    import numpy as np

    from batchsim.cli.answer import number

    at = [
        np.interp(used, [0.0, *ds["responses"].values], [0.0, *ds[name].values])
        for used, ds in zip(n, runs.values(), strict=True)
    ]
    return number(np.mean(at))


def _set_cost(row: dict[str, Any], reference: dict[str, Any] | None) -> None:
    """r_N against the smallest batch, with the standard error of a ratio of independent means."""
    row["sample_cost_ratio"] = row["sample_cost_ratio_se"] = None
    if reference is None or not row["responses_to_target"]:
        return
    ratio = row["responses_to_target"] / reference["responses_to_target"]
    row["sample_cost_ratio"] = ratio
    errors = [r["responses_to_target_se"] for r in (row, reference)]
    if row is reference:
        row["sample_cost_ratio_se"] = 0
    elif None not in errors:
        relative = [e / r["responses_to_target"] for e, r in zip(errors, (row, reference), strict=True)]
        row["sample_cost_ratio_se"] = ratio * (relative[0] ** 2 + relative[1] ** 2) ** 0.5


def soonest(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Arm whose runs reach the target in the least time, None where no arm does."""
    timed = [row for row in rows if row["time_to_target"] is not None]
    if not timed:
        return None
    first = min(timed, key=lambda row: row["time_to_target"])
    return {name: first[name] for name in ("prompts", "group_size", "train_batch", "time_to_target")}


def print_runs(console: Console, title: str, rows: Sequence[dict[str, Any]], *, target: float | None) -> None:
    """Print a table of `rows_of`, and what it comes to."""
    from batchsim.cli.table import print_rows, say, seconds, short, span

    cells: list[dict[str, Cell]] = []
    critics = any(row["critic_learning_rate"] not in (None, row["learning_rate"]) for row in rows)
    for row in rows:
        measured = row["noise_scale_measured"]
        limits = None if measured is None else span([measured["low"], measured["high"]])
        cells.append(
            {
                "P": f"{row['prompts']:,}",
                "G": f"{row['group_size']:,}",
                "B": f"{row['train_batch']:,}",
                "rate": f"{row['learning_rate']:.3g}",
                **({"critic's": f"{row['critic_learning_rate']:.3g}"} if critics else {}),
                "updates": short(row["updates_to_target"]),
                "N*": _with_error(row["responses_to_target"], row["responses_to_target_se"], row["responses_at_least"]),
                "r_N": _with_error(row["sample_cost_ratio"], row["sample_cost_ratio_se"]),
                "T": seconds(row["time_to_target"]),
                "score": short(row["score"]),
                "|g|": "-" if row["grad_norm"] is None else f"{row['grad_norm']:.3g}",
                "noise scale": short(row["noise_scale"]),
                "from norms": ("-", "")
                if measured is None
                else (short(measured["noise_scale"]), "" if limits is None else f"({limits})"),
                "outcome": _outcome(row),
            }
        )
    caption = (
        "N*, r_N: mean over runs (+- standard error), > where runs end first; |g|: root mean square over the run; "
        "noise scale: true, before training; from norms: over the run"
    )
    optional = ("score", "|g|", "updates", "G", "noise scale", "rate", "P", "from norms")
    print_rows(console, title, cells, optional=optional, wraps=("outcome",), caption=caption)
    say(console, conclusion(rows, target))


def _with_error(value: float | None, error: float | None, least: float | None = None) -> tuple[str, str]:
    from batchsim.cli.table import short

    if value is None:
        return ("-" if least is None else f"> {short(least)}"), ""
    return short(value), f"(+- {short(error, 2)})" if error else ""


def _outcome(row: dict[str, Any]) -> str:
    if len(row["outcomes"]) == 1:
        return str(row["outcomes"][0]["outcome"])
    return ", ".join(f"{end['runs']} {end['outcome']}" for end in row["outcomes"])


def conclusion(rows: Sequence[dict[str, Any]], target: float | None) -> str:
    """One sentence on what the runs say."""
    from batchsim.cli.table import seconds, short

    best = max((row for row in rows if row["score"] is not None), key=lambda row: row["score"], default=None)
    if target is None:
        shown = "" if best is None else f"; the best score is {short(best['score'])}, at B = {best['train_batch']:,}"
        return f"No target, so no N* and no r_N: give --target{shown}."
    timed = [row for row in rows if row["time_to_target"] is not None]
    if not timed:
        shown = "" if best is None else f" (best {short(best['score'])})"
        ends = {end["outcome"] for row in rows for end in row["outcomes"]} - {"reached"}
        remedy = "lower --rate" if ends == {"diverges"} else "raise --responses-max, or lower --target"
        return f"No batch brings all its runs to {target:g}{shown}: {remedy}."
    first = min(timed, key=lambda row: row["time_to_target"])
    said = f"Soonest at {target:g}: {_name(first, rows)}, after {seconds(first['time_to_target'])}"
    reference = next((row for row in rows if row["sample_cost_ratio"] == 1), first)
    if first["sample_cost_ratio"] is not None and first is not reference:
        said += f" and {short(first['sample_cost_ratio'])} times the responses of {_name(reference, rows)}"
    return f"{said}."


def _name(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """An arm by its batch, and by what makes it up where others share it."""
    name = f"B = {row['train_batch']:,}"
    if sum(other["train_batch"] == row["train_batch"] for other in rows) == 1:
        return name
    critic = row["critic_learning_rate"]
    more = "" if critic in (None, row["learning_rate"]) else f", critic's {critic:.3g}"
    return f"{name} ({row['prompts']:,} x {row['group_size']:,} at rate {row['learning_rate']:.3g}{more})"


def draw_runs(tree: xr.DataTree, target: float | None, ax: Axes) -> None:
    """Draw the score of every run over its responses, one colour per batch."""
    import matplotlib as mpl

    from batchsim.learning.worlds.run_layout import METRIC

    batches = sorted({int(node.attrs["train_batch"]) for node in tree.children.values()})
    colours = mpl.colormaps["viridis"]
    ax.set(xlabel="responses kept", ylabel="validation score", xscale="log")
    for i, batch in enumerate(batches):
        label: str | None = f"B = {batch:,}"
        for node in tree.children.values():
            ds = node.to_dataset()
            if int(ds.attrs["train_batch"]) != batch:
                continue
            used, score = ds["evaluation_responses"].values, ds["score"].sel(metric=METRIC).values
            ax.plot(used[used > 0], score[used > 0], lw=1, color=colours(i / max(len(batches), 1)), label=label)
            label = None
    if target is not None:
        ax.axhline(target, color="0.5", lw=1, ls="--", label="target")
    ax.legend(frameon=False, fontsize="small")
