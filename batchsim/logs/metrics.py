"""Metrics that a tracker kept: rows of (name, value) at steps, under the names of whoever logged them.

Weights & Biases and TensorBoard store what a framework sends them. The names tell which framework
it was, and its own reader then makes the run, so that scopes and units are decided once:

- verl's names are those of its console: ``actor/grad_norm``, ``timing_s/step``, ``val-core/...``.
- The Hugging Face trainer renames TRL's on the way: ``train/reward``, and ``eval/reward`` for
  ``eval_reward``.
- A framework with a `Dialect` is known by metrics that only it logs.

Where the framework logged no step time, the tracker's clock gives it (`clock`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from batchsim.logs import trl, verl
from batchsim.logs.clock import from_clock
from batchsim.logs.dialect import Dialect, run_of_rows
from batchsim.logs.record import Run
from batchsim.logs.source import Source
from batchsim.logs.verl.settings import KEYS

_VERL = frozenset(
    (
        "actor/grad_norm",
        "critic/rewards/mean",
        "critic/score/mean",
        "response_length/mean",
        "timing_s/step",
        "perf/time_per_step",
    )
)
_VERL_SCORES = "val-core/"
_TRL = frozenset(("reward", "completion_length", "completions/mean_length"))
KNOWN_METRICS = (
    "verl's (actor/grad_norm, timing_s/step, val-core/...), TRL's (train/reward, eval/reward, ...) or those of another "
    "framework that batchsim reads"
)


@dataclass
class Logged:
    """What a tracker holds of one run."""

    rows: dict[int, dict[str, float]] = field(default_factory=dict)
    clock: list[tuple[int, float]] = field(default_factory=list)
    clock_source: str = ""
    arguments: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def names(self) -> dict[str, None]:
        """Every metric's name, in the order of its first row."""
        return dict.fromkeys(name for row in self.rows.values() for name in row)


def framework_of(names: Iterable[str]) -> str | None:
    """The framework whose names these are, None where nobody knows them."""
    from batchsim.logs.registry import spoken

    held = set(names)
    # Names that one framework alone has come before those that several share.
    if (dialect := spoken(held)) is not None:
        return dialect.name
    if held & _VERL or any(name.startswith(_VERL_SCORES) for name in held):
        return "verl"
    sent = {name.removeprefix("train/") for name in held if name.startswith("train/")}
    return "trl" if sent & _TRL or "eval/reward" in held else None


def dialect_named(framework: str | None) -> Dialect | None:
    """Names of a framework's metrics, where they are a dialect's."""
    from batchsim.logs.registry import dialect_of

    return dialect_of(framework or "")


def run_of(source: Source, logged: Logged, *, framework: str, name: str) -> Run:
    """The run behind a tracker's rows.

    Parameters
    ----------
    source : Source
        File, for messages.
    logged : Logged
        Rows whose names `framework_of` recognises.
    framework : str
        The tracker, which becomes the run's framework; who logged is kept as ``logged_by``.
    name : str
        The run's name.
    """
    logger = framework_of(logged.names)
    ordered = dict(sorted(logged.rows.items()))
    dialect = dialect_named(logger)
    if dialect is not None:
        run = run_of_rows(dialect, source, ordered.items(), logged.arguments, logged.warnings)
    else:
        run = _verl_run(source, logged, ordered) if logger == "verl" else _trl_run(source, logged, ordered)
    facts = {**run.facts, "logged_by": logger}
    return replace(run, name=name, framework=framework, facts=facts)


def _verl_run(source: Source, logged: Logged, rows: Mapping[int, Mapping[str, float]]) -> Run:
    config = {key: value for key, value in logged.arguments.items() if key in KEYS}
    run = verl.run_of_rows(source, rows.items(), config, logged.warnings)
    hint = f"{source.path} does not hold verl's configuration"
    run = replace(run, batch_hint=f", and {hint}")
    if np.isfinite(run.columns.get("step_seconds", np.zeros(0))).any() or not logged.clock:
        return run
    clocked = from_clock(run.step, logged.clock, paused={}, source=logged.clock_source)
    times = {"step_seconds": clocked.step_seconds, "checkpoint_seconds": clocked.checkpoint_seconds}
    sources = dict.fromkeys(times, f"{logged.clock_source} [s]")
    return replace(
        run,
        columns={**run.columns, **times},
        provenance={**run.provenance, **sources},
        warnings=[*run.warnings, *clocked.notes],
    )


def _trl_run(source: Source, logged: Logged, rows: Mapping[int, Mapping[str, float]]) -> Run:
    history = trl.History(clock=logged.clock, clock_source=logged.clock_source, warnings=logged.warnings)
    for step, row in rows.items():
        history.add(step, {_console_name(name): value for name, value in row.items()}, where=f"step {step}")
    hint = f", and {source.path} does not hold TRL's arguments"
    arguments = trl.with_config(source, logged.arguments, logged.warnings)
    return trl.run_of(history, arguments, source, hint=hint)


def _console_name(name: str) -> str:
    """TRL's own name for what the Hugging Face trainer sent to a tracker."""
    if name.startswith("eval/"):
        return "eval_" + name.removeprefix("eval/")
    return name.removeprefix("train/")
