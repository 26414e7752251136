"""Options that several verbs share, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batchsim.errors import InputError

if TYPE_CHECKING:
    import xarray as xr

Logs = Annotated[
    list[str] | None,
    typer.Argument(help="Log files, folders, globs, or - for standard input (MLPerf, verl, TRL, CSV; .gz too)."),
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
Column = Annotated[
    list[str] | None,
    typer.Option("--column", help="CSV column that holds a quantity, as train_reward=my_reward; repeatable."),
]

EXAMPLES = "data/examples"


def example_path(name: str) -> Path:
    """Path of an example that ships with the package.

    Raises
    ------
    InputError
        For a name that is not an example.
    """
    from importlib.resources import files

    from batchsim.errors import nearest

    folder = Path(str(files("batchsim").joinpath(EXAMPLES)))
    known = {p.stem if p.suffix == ".toml" else p.name: p for p in sorted(folder.iterdir()) if p.suffix != ".md"}
    if name not in known:
        raise InputError(f"no example '{name}'", remedy=nearest(name, known))
    return known[name]


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


def load_runs(paths: list[str], given: dict[str, Any]) -> xr.DataTree:
    """Runs of log paths, with what the command line supplies."""
    from batchsim.logs import read_logs

    return read_logs(paths, **{k: v for k, v in given.items() if v is not None})
