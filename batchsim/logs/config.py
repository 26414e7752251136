"""A configuration file beside a log, as dotted keys and their values.

- YAML (Hydra's `config.yaml`), JSON and TOML: nested mappings become dotted keys; keys may be dotted already.
- Hydra's `overrides.yaml`: a list of ``key=value``, with or without a leading ``+``.

YAML is read by the safe loader of PyYAML (extra `yaml`). Its version 1.1 takes ``1e-6`` for text, and
Hydra leaves ``${...}`` where it means another key, so values stay text here and readers convert them.

`config_beside` finds the file that a framework leaves in its log's folder, such as Hydra's `config.yaml`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from batchsim.errors import InputError

MAX_BYTES = 2**24
MAX_KEYS = 100_000
_DEEPEST = 32
_NEEDS_YAML = "install PyYAML (in the clone: pip install '.[yaml]'), or give the configuration as JSON"


@dataclass(frozen=True, kw_only=True)
class Config:
    """A configuration file: dotted key -> value as text."""

    path: str
    values: Mapping[str, str]

    def get(self, key: str) -> str | None:
        """Value of a dotted key, None where the file lacks it."""
        return self.values.get(key)


def load_config(path: str | Path) -> Config:
    """Read a configuration file.

    Parameters
    ----------
    path : str or pathlib.Path
        A YAML, JSON or TOML file.

    Raises
    ------
    InputError
        For a file that cannot be read, holds no mapping, or is YAML where PyYAML is not installed.
    """
    where = str(path)
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot be read ({reason})", remedy="check the path", where=where) from error
    if len(raw) > MAX_BYTES:
        raise InputError(
            f"larger than {MAX_BYTES // 2**20} MiB", remedy="give the run's configuration alone", where=where
        )
    text = raw.decode("utf-8-sig", errors="replace")
    read = {".json": _json, ".toml": _toml}.get(Path(where).suffix, _yaml)
    loaded = read(text, where)
    pairs = _overrides(loaded) if isinstance(loaded, list) else _flat(loaded, "", _DEEPEST)
    # A few YAML aliases can stand for billions of entries.
    values = dict(islice(pairs, MAX_KEYS + 1))
    if len(values) > MAX_KEYS:
        raise InputError(f"holds more than {MAX_KEYS} keys", remedy="give the run's configuration alone", where=where)
    if not values:
        raise InputError(
            "holds no configuration", remedy="give a mapping of keys to values, or Hydra's overrides", where=where
        )
    return Config(path=where, values=values)


def config_beside(folder: str | Path, section: str, names: Sequence[str]) -> Path | None:
    """The configuration that a framework left in a log's folder.

    Parameters
    ----------
    folder : str or pathlib.Path
        Folder of the log.
    section : str
        Key by which the framework's configuration is known.
    names : sequence of str
        What it is called.
    """
    for name in names:
        path = Path(folder) / name
        try:
            if path.is_file() and section in path.read_text(errors="replace")[:MAX_BYTES]:
                return path
        except OSError:
            continue
    return None


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON ({error})", remedy="copy the file again", where=where) from error


def _toml(text: str, where: str) -> Any:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not TOML ({error})", remedy="copy the file again", where=where) from error


def _yaml(text: str, where: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise InputError("YAML cannot be read without PyYAML", remedy=_NEEDS_YAML, where=where) from error
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"not YAML ({reason})", remedy="give the file as Hydra wrote it", where=where) from error


def _flat(value: object, path: str, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and depth:
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key), depth - 1)
    elif path and isinstance(value, str | int | float):
        yield path, str(value)
    elif path and isinstance(value, list) and value and all(isinstance(entry, str) for entry in value):
        yield path, ", ".join(value)


def _overrides(entries: list[Any]) -> Iterator[tuple[str, str]]:
    for entry in entries:
        key, sign, value = str(entry).partition("=")
        if sign:
            yield key.lstrip("+~"), value.strip("'\"")
