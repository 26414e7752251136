"""Every reader, in the order in which they are asked; a new one is one line here.

Those that know themselves by a file's first lines come first, then consoles, which are streamed until a
block holds somebody's step, then those that must look at a whole file.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module

from batchsim.logs.dialect import Dialect
from batchsim.logs.reader import Reader

MODULES = (
    "tensorboard",
    "wandb",
    "mlperf",
    "verl",
    "trl",
    "openrlhf",
    "slime",
    "nemo_rl",
    "skyrl",
    "areal",
    "roll",
    "prime_rl",
    "tinker",
    "easyr1",
    "rlinf",
)
"""Modules of `batchsim.logs`, each with a `READER`."""

READERS: tuple[Reader, ...] = tuple(import_module(f"batchsim.logs.{name}").READER for name in MODULES)


def reader_of(framework: str) -> Reader:
    """The reader of a framework, by the name that `read_logs` gives it."""
    return next(reader for reader in READERS if reader.name == framework)


@cache
def _dialects() -> dict[str, Dialect]:
    return {reader.name: reader.dialect for reader in READERS if reader.dialect is not None}


def dialect_of(framework: str) -> Dialect | None:
    """Names of a framework's metrics; None for one that has a reader of its own kind, or none."""
    return _dialects().get(framework)


def spoken(names: Iterable[str]) -> Dialect | None:
    """The dialect that has these metrics, by those that only it has."""
    held = set(names)
    for dialect in _dialects().values():
        if any(name in dialect.marks or dialect.own_name(name) in dialect.marks for name in held):
            return dialect
    return None
