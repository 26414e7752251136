"""`batchsim explain`: how a log's names become ours, where the time goes, and whether it adds up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from batchsim.cli import options as opt
from batchsim.errors import InputError

if TYPE_CHECKING:
    import xarray as xr
    from rich.console import Console

    from batchsim.cli.table import Cell


def explain(
    logs: opt.Logs = None,
    example: opt.Example = None,
    prompts: opt.Prompts = None,
    group_size: opt.GroupSize = None,
    updates_per_rollout: opt.UpdatesPerRollout = None,
    epochs: opt.Epochs = None,
    step_seconds: opt.StepSeconds = None,
    learning_rate: opt.LearningRate = None,
    chunks: opt.Chunks = None,
    config: opt.Config = None,
    column: opt.Column = None,
    json: opt.Json = False,
) -> None:
    """Show how each log is understood: batch arithmetic, phases of a step, what is missing, integrity.

    Nothing is modelled. A batch that no log states is not refused here: what is open, and what settles it,
    stands in the arithmetic. Phases are shares of the steady rollout step; a trend is stated only where it
    exceeds two standard errors.
    """
    from batchsim.cli import answer

    paths = list(logs or [])
    if example is not None:
        paths.append(str(opt.example_path(example)))
    plans = [p for p in paths if p.endswith(".toml")]
    if plans:
        raise InputError(f"{plans[0]} is a plan, and explain reads logs", remedy=f"batchsim predict {plans[0]}")
    if not paths:
        raise InputError("no logs given", remedy="name files or folders, or try: batchsim explain --example verl-sweep")
    given = {
        "prompts": prompts,
        "group_size": group_size,
        "updates_per_rollout": updates_per_rollout,
        "epochs": epochs,
        "step_seconds": step_seconds,
        "learning_rate": learning_rate,
        "chunks": chunks,
        "config": config,
        "columns": opt.column_map(column),
    }
    explained = from_runs(opt.load_runs(paths, given | {"allow_unknown_batch": True}), given)
    if json:
        answer.write(explained)
    else:
        print_explanation(explained)


# -- as JSON ------------------------------------------------------------------------------------------


def from_runs(runs: xr.DataTree, given: dict[str, Any]) -> dict[str, Any]:
    """Answer of `explain`.

    Parameters
    ----------
    runs : xarray.DataTree
        From `read_logs`.
    given : dict
        Options that were passed to `read_logs`.

    Returns
    -------
    dict
        Plain values, ready for `json.dumps(..., allow_nan=False)`.
    """
    from batchsim.variables import SCHEMA

    return {
        "schema": SCHEMA,
        "verb": "explain",
        "runs": [_run(name, node.to_dataset(), given) for name, node in runs.children.items()],
        "warnings": list(runs.attrs.get("warnings", [])),
    }


def _run(name: str, ds: xr.Dataset, given: dict[str, Any]) -> dict[str, Any]:
    from batchsim.logs.account import RECIPE, arithmetic, held, missing
    from batchsim.logs.integrity import checks, phases

    return {
        "run": name,
        "path": ds.attrs["path"],
        "framework": ds.attrs["framework"],
        "recipe": {key: _plain(ds.attrs.get(key)) for key in RECIPE},
        "arithmetic": arithmetic(ds, given),
        "phases": [_record(phase) for phase in phases(ds)],
        "held": [_record(entry) for entry in held(ds)],
        "missing": [_record(entry) for entry in missing(ds)],
        "checks": [_record(check) for check in checks(ds)],
        "unused": sorted(ds.attrs.get("unused", {})),
        "warnings": list(ds.attrs["warnings"]),
    }


def _record(entry: Any) -> dict[str, Any]:
    return {key: _plain(value) for key, value in asdict(entry).items()}


def _plain(value: Any) -> Any:
    from batchsim.cli.answer import number

    return value if value is None or isinstance(value, str) else number(value)


# -- as text ------------------------------------------------------------------------------------------


def print_explanation(explained: dict[str, Any]) -> None:
    """Print the runs one after the other; what repeats from the run before is said in one line."""
    from batchsim.cli.table import make_console, print_notes

    console = make_console()
    before: dict[str, Any] = {}
    for run in explained["runs"]:
        _print_run(console, run, before)
        before = run
    print_notes(console, explained["warnings"])


def _print_run(console: Console, run: dict[str, Any], before: dict[str, Any]) -> None:
    from batchsim.cli.table import print_notes, print_rows

    _line(console, f"{run['run']}: {run['framework']}, {run['path']}")
    for line in run["arithmetic"]:
        _line(console, f"  {line}")
    print_rows(console, "steady rollout step (s)", _phase_rows(run["phases"]), optional=("variation",))
    if not run["phases"]:
        _line(console, "\n  no steady step has a time\n")
    for key, label, text in (("held", "held", "source"), ("missing", "missing", "remedy")):
        same = bool(run[key]) and run[key] == before.get(key)
        _line(console, f"{label}: as in {before['run']}" if same else f"{label}:{'' if run[key] else ' nothing'}")
        for entry in [] if same else run[key]:
            _line(console, f"  {entry['quantity']}: {entry[text]}")
    if run["unused"]:
        _line(console, f"not used: {len(run['unused'])} more names of the log (--json lists them)")
    print_rows(console, "checks", _check_rows(run["checks"]))
    warned = [f"{check['name']}: {check['message']}" for check in run["checks"] if check["outcome"] == "warning"]
    print_notes(console, warned + run["warnings"])
    _line(console, "")


def _line(console: Console, text: str) -> None:
    from rich.text import Text

    console.print(Text(text), soft_wrap=True)


def _phase_rows(phases: Sequence[dict[str, Any]]) -> list[dict[str, Cell]]:
    from batchsim.cli.table import short

    return [
        {
            "phase": phase["phase"],
            "share": f"{100 * phase['share']:.1f} %",
            "mean": short(phase["mean"], 4),
            "variation": "-" if phase["cv"] is None else f"{100 * phase['cv']:.0f} %",
            "per 100 steps": _trend(phase),
        }
        for phase in phases
    ]


def _trend(phase: dict[str, Any]) -> Cell:
    """Trend with its standard error, 'none' within two of them."""
    from batchsim.cli.table import short

    trend, error = phase["trend"], phase["trend_se"]
    if trend is None or error is None:
        return "-"
    uncertain = f"± {short(error, 2)}"
    return ("none", f"({uncertain})") if abs(trend) <= 2 * error else (f"{trend:+.3g}", uncertain)


def _check_rows(checks: Sequence[dict[str, Any]]) -> list[dict[str, Cell]]:
    from batchsim.cli.table import short

    return [
        {
            "check": check["name"],
            "outcome": check["outcome"],
            "value": short(check["value"]),
            "bound": short(check["bound"]),
        }
        for check in checks
    ]
