"""From paths to a tree of runs: recognise, read, settle, and check across runs.

Each framework's module says whether a file is its own (`recognises`) and turns it into `Run`s; MLPerf's
marker and a trainer state are unmistakable and are tried first, a verl step line last.

One call reads runs of one experiment: two frameworks or two models in one call are refused, because
every comparison that follows would be between them and not between batch sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from batchsim.errors import InputError, nearest
from batchsim.logs import mlperf, tables, trl, verl
from batchsim.logs.recipe import Overrides
from batchsim.logs.record import Run, to_dataset
from batchsim.logs.source import Source, open_sources

if TYPE_CHECKING:
    import xarray as xr

KNOWN_LOGS = (
    "batchsim reads MLPerf :::MLLOG lines, verl console logs, TRL trainer_state.json, "
    "and CSV tables with canonical column names"
)


def read_logs(
    paths: str | Path | Iterable[str | Path],
    *,
    prompts: int | None = None,
    group_size: int | None = None,
    updates_per_rollout: int | None = None,
    epochs: int | None = None,
    step_seconds: float | None = None,
    learning_rate: float | None = None,
    chunks: int | None = None,
    columns: Mapping[str, str] | None = None,
) -> xr.DataTree:
    """Read training logs into one node per run.

    Parameters
    ----------
    paths : str, pathlib.Path or iterable of them
        Files, folders, globs, or ``-`` for standard input; gzip is recognised.
    prompts : int, optional
        Prompt groups per rollout step [prompts]. This and the next keywords supply what a log lacks.
    group_size : int, optional
        Responses per prompt [responses/prompt].
    updates_per_rollout, epochs : int, optional
        Optimizer updates and passes per rollout step [1].
    step_seconds : float, optional
        Time of every rollout step [s], for runs whose log has no timing.
    learning_rate : float, optional
        Configured learning rate [1].
    chunks : int, optional
        Equal chunks of the batch behind ``sq_norm_chunk`` [1].
    columns : mapping, optional
        Canonical name -> column name, for CSV tables.

    Returns
    -------
    xarray.DataTree
        A child per run. Over ``rollout_step``: ``responses``, ``steady`` and what the log holds of
        times [s], gradient norms, learning rate and training reward. Over ``evaluation`` (and
        ``metric``): ``score``, ``evaluation_responses``, ``evaluation_elapsed``,
        ``evaluation_wall`` and ``evaluation_seconds`` [s]. Attributes: the recipe (``train_batch``,
        ``rollout_batch``, ...), ``framework``, ``path``, ``model``, ``provenance`` and ``warnings``;
        an attribute that is not known is absent.

    Raises
    ------
    InputError
        For a path that cannot be read or is no log, a recipe that cannot be settled or contradicts
        an argument, and frameworks or models that are mixed.
    """
    import xarray as xr

    given = Overrides(
        prompts=prompts,
        group_size=group_size,
        updates_per_rollout=updates_per_rollout,
        epochs=epochs,
        step_seconds=step_seconds,
        learning_rate=learning_rate,
        chunks=chunks,
    )
    sources, warnings = open_sources(paths)
    framework, sources = _recognised(sources, columns, warnings)
    runs = _read(framework, sources, columns, warnings)
    datasets = [to_dataset(run, given) for run in runs]
    _check_models(datasets)
    names = _unique([run.name for run in runs])
    tree = xr.DataTree.from_dict(dict(zip(names, datasets, strict=True)))
    tree.attrs = {"framework": framework, "warnings": warnings}
    return tree


def _recognised(
    sources: list[Source], columns: Mapping[str, str] | None, warnings: list[str]
) -> tuple[str, list[Source]]:
    """The one framework of all sources, and the sources that are logs."""
    if columns:
        _check_columns(columns)
    found: dict[str, list[Source]] = {}
    for source in sources:
        framework = _framework(source, columns)
        if framework is not None:
            found.setdefault(framework, []).append(source)
        elif source.explicit:
            first = next((line.strip() for line in [*source.lines, source.tail] if line.strip()), "")
            raise InputError(
                f"not a log that batchsim knows (it begins {first[:60]!r})",
                remedy=KNOWN_LOGS,
                where=source.path,
            )
        else:
            warnings.append(f"passed over {source.path}: not a log that batchsim knows")
    if not found:
        raise InputError("there is no log among the files", remedy=KNOWN_LOGS, where=_folders(sources))
    if len(found) > 1:
        one, other = (f"{logs[0].path} is {name}" for name, logs in list(found.items())[:2])
        raise InputError(f"logs of several frameworks in one call: {one}, {other}", remedy="read them apart")
    framework, logs = next(iter(found.items()))
    if columns and framework != "tables":
        raise InputError(f"columns were named but {logs[0].path} is {framework}, not a table", remedy="drop columns")
    return framework, logs


def _folders(sources: list[Source]) -> str:
    return ", ".join(dict.fromkeys(source.folder for source in sources))


def _check_columns(columns: Mapping[str, str]) -> None:
    for name in columns:
        if name not in tables.KNOWN and name != "score":
            raise InputError(
                f"'{name}' is not a column that batchsim knows",
                remedy=nearest(name, [*tables.KNOWN, "score"]),
            )


def _framework(source: Source, columns: Mapping[str, str] | None) -> str | None:
    if mlperf.recognises(source):
        return "mlperf"
    if trl.recognises(source):
        return "trl"
    if tables.recognises(source, columns):
        return "tables"
    return "verl" if verl.recognises(source) else None


def _read(framework: str, sources: list[Source], columns: Mapping[str, str] | None, warnings: list[str]) -> list[Run]:
    if framework == "tables":
        runs, more = tables.read(sources, columns)
        warnings += more
        return runs
    reader = {"mlperf": mlperf.read, "trl": trl.read, "verl": verl.read}[framework]
    return [run for source in sources for run in reader(source)]


def _check_models(datasets: list[xr.Dataset]) -> None:
    named: dict[str, str] = {}
    for ds in datasets:
        if ds.attrs["model"]:
            named.setdefault(ds.attrs["model"], ds.attrs["path"])
    if len(named) > 1:
        one, other = (f"{path} trains {model}" for model, path in list(named.items())[:2])
        raise InputError(f"logs of several models in one call: {one}, {other}", remedy="read them apart")


def _unique(names: list[str]) -> list[str]:
    """Node names: no slash, none twice."""
    taken: dict[str, None] = {}
    for name in names:
        base = name.replace("/", "_").strip()
        if not base.strip("."):
            base = "run"
        unique, count = base, 1
        while unique in taken:
            count += 1
            unique = f"{base}-{count}"
        taken[unique] = None
    return list(taken)
