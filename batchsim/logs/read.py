"""From paths to a tree of runs: recognise, read, settle, and check across runs.

Each framework's module says whether a file is its own and turns it into `Run`s; `registry` lists them. What
shows in the first lines is tried first: tables, exports, JSON. A console log shows itself only at its first
step, which may come after megabytes of start-up: it is streamed until a block holds somebody's step. Only
what is left may be TRL's console, which is read whole.

A configuration file is one that the user names, or one that the framework left beside its log. The latter
is used only if the folder holds one such log: it cannot belong to several.

One call reads runs of one experiment: two frameworks or two models in one call are refused, because
every comparison that follows would be between them and not between batch sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from batchsim.errors import InputError, nearest
from batchsim.logs import tables
from batchsim.logs.config import config_beside, load_config
from batchsim.logs.recipe import Overrides
from batchsim.logs.record import Run, to_dataset
from batchsim.logs.registry import READERS, reader_of
from batchsim.logs.source import Source, open_sources

if TYPE_CHECKING:
    import xarray as xr

MAX_RUNS = 2_000
"""Runs of one call."""
KNOWN_LOGS = (
    f"batchsim reads {', '.join(reader.logs for reader in READERS)}, and CSV tables with canonical column names"
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
    config: str | Path | None = None,
    allow_unknown_batch: bool = False,
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
    config : str or pathlib.Path, optional
        The framework's configuration (YAML, JSON or TOML, such as Hydra's ``config.yaml`` or
        ``overrides.yaml``) or TRL's arguments, for what the log does not state; without it, one that lies
        beside the log is used.
    allow_unknown_batch : bool
        For `batchsim explain`: a batch that cannot be known is not refused; responses are NaN then, and the
        attribute ``open_batch`` says what settles it.

    Returns
    -------
    xarray.DataTree
        A child per run. Over ``rollout_step``: ``responses``, ``updates``, ``steady`` and what the log
        holds of times [s], gradient norms, learning rate, lengths [tokens] and training reward. Over
        ``evaluation`` (and ``metric``): ``score``, ``evaluation_responses``, ``evaluation_elapsed``,
        ``evaluation_wall`` and ``evaluation_seconds`` [s]. Attributes: the recipe (``train_batch``,
        ``rollout_batch``, ...), ``framework``, ``path``, ``model``, ``provenance`` and ``warnings``;
        an attribute that is not known is absent.

    Raises
    ------
    InputError
        For a path that cannot be read or is no log, a recipe that cannot be settled or contradicts
        an argument or the configuration file, and frameworks or models that are mixed.
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
    _set_config(framework, sources, config, warnings)
    runs = _read(framework, sources, columns, warnings)
    if len(runs) > MAX_RUNS:
        raise InputError(
            f"{sources[0].path} and the others named with it hold {len(runs)} runs, more than {MAX_RUNS}",
            remedy="name fewer logs, or split a log whose training starts again and again",
        )
    datasets = [to_dataset(run, given, allow_unknown_batch=allow_unknown_batch) for run in runs]
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
        try:
            found.setdefault(_framework(source, columns), []).append(source)
        except InputError as error:
            if source.explicit:
                raise
            warnings.append(f"passed over {source.path}: {error.message}")
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


def _framework(source: Source, columns: Mapping[str, str] | None) -> str:
    """Name of the reader that a source is for."""
    if not source.binary and tables.recognises(source, columns):
        return "tables"
    for reader in READERS:
        if reader.begins is not None and reader.begins(source):
            return reader.name
    if source.binary:
        remedy = "give the console log, a trainer_state.json or a CSV (gzip is fine)"
        raise InputError("the file is binary, not a text log", remedy=remedy, where=source.path)
    if console := _console(source):
        return console
    for reader in READERS:
        if reader.whole is not None and reader.whole(source):
            return reader.name
    raise InputError(_unknown(source), remedy=KNOWN_LOGS, where=source.path)


def _unknown(source: Source) -> str:
    """What a log that nothing reads begins with."""
    if not source.explicit:
        return "not a log that batchsim knows"
    first = next((line.strip() for line in source.head.splitlines() if line.strip()), "")
    return f"not a log that batchsim knows (it begins {first[:60]!r})"


def _console(source: Source) -> str | None:
    streamed = [(reader.name, reader.holds) for reader in READERS if reader.holds is not None]
    for _, block in source.blocks():
        for name, holds in streamed:
            if holds(block):
                return name
    # A log that is cut within its first step is known by it, though the line is not used.
    rest = source.tail.encode() + b"\n"
    return next((name for name, holds in streamed if holds(rest)), None)


def _set_config(framework: str, sources: list[Source], config: str | Path | None, warnings: list[str]) -> None:
    """Give each source the configuration file that belongs to it."""
    reader = None if framework == "tables" else reader_of(framework)
    if config is not None:
        if reader is None or not reader.configured:
            raise InputError(
                f"a configuration file was named but {sources[0].path} is {framework}",
                remedy="drop --config and give --prompts and --group-size where the log lacks them",
                where=str(config),
            )
        loaded = load_config(config)
        for source in sources:
            source.config = loaded
        return
    folders = [source.folder for source in sources]
    for source in sources if reader is not None and reader.section else []:
        assert reader is not None
        if source.path == "-" or not (beside := config_beside(source.folder, reader.section, reader.beside)):
            continue
        if folders.count(source.folder) > 1:
            note = f"{beside} was not used: it cannot belong to all logs beside it; name it as the configuration of one"
            warnings.extend([note] if note not in warnings else [])
            continue
        try:
            source.config = load_config(beside)
            warnings.append(f"{beside} was read as the configuration of {source.path}")
        except InputError as error:
            warnings.append(f"{beside} was not used: {error.message}; {error.remedy}")


def _read(framework: str, sources: list[Source], columns: Mapping[str, str] | None, warnings: list[str]) -> list[Run]:
    if framework == "tables":
        runs, more = tables.read(sources, columns)
        warnings += more
        return runs
    return reader_of(framework).read(sources)


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
