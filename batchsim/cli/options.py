"""Options that several verbs share, declared once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batchsim.errors import InputError
from batchsim.examples import example_path as example_path

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

    from batchsim.plan import Plan

Logs = Annotated[
    list[str] | None,
    typer.Argument(
        help="Log files, folders, globs, or - for standard input (MLPerf, verl, TRL, W&B, TensorBoard, CSV; .gz too), "
        "or runs saved as .nc."
    ),
]
Example = Annotated[str | None, typer.Option("--example", help="Use data that ships with the package.", metavar="NAME")]
Target = Annotated[float | None, typer.Option(help="Validation score to reach [default: what the logs state].")]
Metric = Annotated[str | None, typer.Option(help="Validation score to use, as the log names it.")]
Level = Annotated[float, typer.Option(help="Central probability of intervals.")]
Seed = Annotated[int, typer.Option(help="Seed of the simulation behind intervals.", min=0)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Prompts = Annotated[int | None, typer.Option(help="Prompts per rollout step, where the log lacks it.")]
GroupSize = Annotated[int | None, typer.Option(help="Responses per prompt, where the log lacks it.")]
UpdatesPerRollout = Annotated[
    int | None, typer.Option(help="Optimizer updates per rollout step, where the log lacks it.")
]
Epochs = Annotated[int | None, typer.Option(help="Passes over a rollout's data, where the log lacks it.")]
StepSeconds = Annotated[float | None, typer.Option(help="Seconds per rollout step, where the log has no timing.")]
LearningRate = Annotated[float | None, typer.Option(help="Learning rate, where the log lacks it.")]
Chunks = Annotated[
    int | None, typer.Option(help="Equal chunks of a batch behind a chunk-norm column, where the log lacks it.")
]
Config = Annotated[
    Path | None, typer.Option(help="Configuration file of the run (YAML or JSON), where the log lacks it.")
]
Column = Annotated[
    list[str] | None,
    typer.Option("--column", help="CSV column that holds a quantity, as train_reward=my_reward; repeatable."),
]

AllowMixed = Annotated[
    bool, typer.Option("--allow-mixed", help="Take pilots whose recipes differ beyond batch and rate as one.")
]


def column_map(pairs: list[str] | None) -> dict[str, str] | None:
    """Mapping from quantity to CSV column.

    Raises
    ------
    InputError
        For an entry without '='.
    """
    if not pairs:
        return None
    for pair in pairs:
        if "=" not in pair:
            raise InputError(f"--column {pair} is not QUANTITY=COLUMN", remedy="as --column train_reward=my_reward")
    return dict(pair.split("=", 1) for pair in pairs)


LISTED = {
    "--target": "0.4,0.5",
    "--targets": "0.4,0.5",
    "--ratio": "1.05,1.15",
    "--spread": "0.05,0.1",
    "--rate": "1e-6,2e-6",
}
"""What a list of an option looks like, where it is not one of batches."""


def numbers(text: str | None, option: str) -> list[float]:
    """Numbers of a comma-separated option; empty if it was not given.

    Raises
    ------
    InputError
        For what is not a number, and for an empty list.
    """
    if text is None:
        return []
    example = LISTED.get(option, "256,512")
    try:
        found = [float(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise InputError(f"{option} {text} is not a list of numbers", remedy=f"as {option} {example}") from error
    if not found:
        raise InputError(f"{option} is empty", remedy=f"as {option} {example}")
    return found


SAVED = ".nc"
"""Ending of runs that were saved."""
PLOT_FORMATS = (".png", ".pdf", ".svg")


def check_plot(path: Path | None, option: str = "--plot") -> None:
    """Refuse a plot that could not be written before any work is done.

    Raises
    ------
    InputError
        For an ending that is not a format, or a folder that cannot be written.
    """
    from batchsim.cli.files import check_out

    if path is None:
        return
    if path.suffix.lower() not in PLOT_FORMATS:
        raise InputError(f"no plot format '{path.suffix}'", where=str(path), remedy=f"use {', '.join(PLOT_FORMATS)}")
    check_out(path, option)


def save_plot(path: Path, draw: Callable[[Axes], object]) -> None:
    """Draw into a new figure and write it whole or not at all."""
    from matplotlib.figure import Figure

    from batchsim.cli.files import replace_file

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    draw(figure.subplots())
    with replace_file(path) as temporary:
        figure.savefig(temporary, dpi=150)


def logs_of_plan(plan: Plan, given: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Log paths that a plan names, and what the command line supplies completed by its [logs]."""
    folder = Path(plan.source).parent
    paths = [p if p == "-" else str(folder / p) for p in plan.logs.paths]
    if plan.logs.columns and given["columns"] is None:
        given = {**given, "columns": plan.logs.columns}
    if plan.logs.config and given["config"] is None:
        given = {**given, "config": folder / plan.logs.config}
    return paths, given


def load_runs(paths: list[str], given: dict[str, Any]) -> xr.DataTree:
    """Runs of log paths, with what the command line supplies, or runs that were saved as NetCDF.

    Raises
    ------
    InputError
        As `read_logs` and `logs.load_runs`; also for saved runs beside logs, or with what a log may lack.
    """
    from batchsim.logs import read_logs

    known = {k: v for k, v in given.items() if v is not None}
    saved = [path for path in paths if Path(path).suffix == SAVED]
    if not saved:
        return read_logs(paths, **known)
    if len(saved) < len(paths):
        other = next(path for path in paths if path not in saved)
        raise InputError(f"{saved[0]} holds saved runs, and {other} is no {SAVED} file", remedy="read them apart")
    supplied = [f"--{name.replace('_', '-')}" for name in known if name != "allow_unknown_batch"]
    if supplied:
        raise InputError(
            f"{', '.join(supplied)} supply what a log lacks, and {saved[0]} holds runs that are settled",
            remedy="leave them out",
        )
    return _saved_runs(saved)


def _saved_runs(paths: list[str]) -> xr.DataTree:
    """Saved runs of one framework, those of several files side by side."""
    import xarray as xr

    from batchsim import logs

    trees = {path: logs.load_runs(path) for path in dict.fromkeys(paths)}
    frameworks = {str(tree.attrs.get("framework", "")): path for path, tree in trees.items()}
    if len(frameworks) > 1:
        (one, first), (other, second) = list(frameworks.items())[:2]
        raise InputError(f"{first} holds runs of {one}, {second} of {other}", remedy="read them apart")
    nodes: dict[str, xr.Dataset] = {}
    warnings: list[str] = []
    for path, tree in trees.items():
        for name, node in tree.children.items():
            unique = name if name not in nodes else f"{Path(path).stem}-{name}"
            while unique in nodes:
                unique += "'"
            nodes[unique] = node.to_dataset()
        warnings += tree.attrs.get("warnings", [])
    if not nodes:
        raise InputError("the file holds no runs", where=paths[0], remedy="save runs, or name logs")
    joined = xr.DataTree.from_dict(nodes)
    joined.attrs = {**next(iter(trees.values())).attrs, "warnings": list(dict.fromkeys(warnings))}
    return joined


@contextmanager
def stages(title: str) -> Iterator[Callable[[str], object]]:
    """A line on standard error that names the stage of long work, where a person watches; silent elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda stage: None
        return
    with console.status(title) as status:
        yield lambda stage: status.update(f"{title}: {stage}")
