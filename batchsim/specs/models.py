r"""The catalogue of models, and any other model by its config.json.

`data/models.toml` holds, per model, the keys of its public configuration that decide shapes and the counts
that its vendor publishes. Both go through the reader of `specs.huggingface`, so the catalogue and a user's
own file cannot disagree, and every published count is a test of the reader.

A published count is text, as printed: "30.5B" is 30.5e9 to within 0.05e9, since its digits are the vendor's
rounding. Names are compared without case and without the organisation.

References
----------
.. [1] Model cards and configurations at huggingface.co, and the papers that `source` names.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from batchsim.errors import InputError
from batchsim.specs.architecture import Architecture
from batchsim.specs.counts import active_parameters, embedding_parameters, head_parameters, total_parameters
from batchsim.specs.huggingface import read_architecture

UNITS = {"M": 1e6, "B": 1e9, "T": 1e12}


@dataclass(frozen=True)
class Published:
    """A count as a vendor prints it.

    Parameters
    ----------
    text : str
        As "30.5B".
    """

    text: str

    @property
    def value(self) -> float:
        """Parameters [1]."""
        return float(self.text[:-1]) * UNITS[self.text[-1]]

    @property
    def rounding(self) -> float:
        """Half of the last printed digit's unit [1]."""
        decimals = len(self.text[:-1].partition(".")[2])
        return float(0.5 * 10.0**-decimals * UNITS[self.text[-1]])


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A row of the catalogue.

    Parameters
    ----------
    name : str
        As on Hugging Face, with the organisation.
    aliases : tuple of str
    config : mapping
        Keys that decide shapes, as in config.json.
    source : str
        Where the published counts stand.
    total, active : Published or None
    active_includes : {'head', 'embedding', 'neither'}
        What the vendor's active count holds beside the layers: the head; the embedding's table too; neither.
    note : str
        Why a published count differs from the decoder's own.
    """

    name: str
    aliases: tuple[str, ...]
    config: Mapping[str, Any]
    source: str
    total: Published | None = None
    active: Published | None = None
    active_includes: str = "head"
    note: str = ""

    @property
    def architecture(self) -> Architecture:
        """From the keys of the row."""
        return read_architecture(self.config, name=self.name, source=self.source)

    @property
    def total_difference(self) -> float | None:
        """Own total over the published one, less 1 [1]; None if none is published."""
        return None if self.total is None else total_parameters(self.architecture) / self.total.value - 1

    @property
    def active_difference(self) -> float | None:
        """Own active parameters, counted as the vendor does, over the published ones, less 1 [1]."""
        if self.active is None:
            return None
        return self.active_as_published / self.active.value - 1

    @property
    def active_as_published(self) -> int:
        """Own active parameters [1], counted as the vendor counts."""
        architecture = self.architecture
        counted = active_parameters(architecture)
        if self.active_includes == "embedding" and not architecture.tied:
            counted += embedding_parameters(architecture)
        elif self.active_includes == "neither":
            counted -= head_parameters(architecture)
        return counted


@cache
def entries() -> dict[str, Entry]:
    """Rows of the catalogue by name, in its order."""
    text = files("batchsim").joinpath("data/models.toml").read_text(encoding="utf-8")
    rows = {row["name"]: row for row in tomllib.loads(text)["model"]}
    return {name: _entry(row, rows) for name, row in rows.items()}


def _entry(row: Mapping[str, Any], rows: Mapping[str, Mapping[str, Any]]) -> Entry:
    inherited = rows[row["like"]]["config"] if "like" in row else {}
    config = {**inherited, **row.get("config", {})}
    return Entry(
        name=row["name"],
        aliases=tuple(row.get("aliases", ())),
        # TOML has no null, which for a window means none.
        config={k: None if k == "sliding_window" and v is False else v for k, v in config.items()},
        source=row["source"],
        total=_published(row.get("published_total_parameters")),
        active=_published(row.get("published_active_parameters")),
        active_includes=row.get("active_includes", "head"),
        note=row.get("note", ""),
    )


def find_entry(name: str) -> Entry | None:
    """Row of a model by name or alias, without regard to case and with or without the organisation."""
    return _index().get(name.strip().lower())


def find_model(name: str) -> Architecture:
    """Architecture of a model.

    Parameters
    ----------
    name : str
        In the catalogue, or a path of a config.json or of a folder that holds one. A path that says it is one
        (it ends in .json, or begins with '.', '~' or a slash) is not looked up.

    Returns
    -------
    Architecture

    Raises
    ------
    InputError
        If there is no such model, with the nearest names; if a file cannot be read as one.
    """
    path = Path(name).expanduser()
    says_path = name.endswith(".json") or name.startswith((".", "~", "/", "\\")) or path.is_absolute()
    entry = None if says_path else find_entry(name)
    if entry is not None:
        return entry.architecture
    if says_path or _is_file(path) or _is_file(path / "config.json"):
        return read_architecture(path)
    close = get_close_matches(name.lower(), _index(), n=9, cutoff=0.5)
    near = list(dict.fromkeys(_index()[key].name for key in close))[:3]
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise InputError(
        f"no model '{name}' is in the catalogue",
        remedy=f"{hint}'batchsim models' lists them; for any other give the path of its config.json",
    )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


@cache
def _index() -> dict[str, Entry]:
    """Rows by every spelling in lower case; a name of its own beats an alias."""
    index: dict[str, Entry] = {}
    rows = entries().values()
    for spelling, entry in [*((e.name, e) for e in rows), *((a, e) for e in rows for a in e.aliases)]:
        for key in (spelling.lower(), spelling.lower().partition("/")[2]):
            index.setdefault(key, entry)
    return index


def _published(text: str | None) -> Published | None:
    return None if text is None else Published(text)
