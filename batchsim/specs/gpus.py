r"""The catalogue of GPUs: datasheet facts, each row with its source and what other sources say.

Rows are data, in `data/gpus.toml`, with the conventions of `specs.gpu`: dense FLOP/s, one direction of a link,
decimal bytes. A cited sheet prints the numbers, or twice or eight times them where it counts sparsity, both
directions or a whole system; the note of a row names every other value in circulation and why it was not taken.

Names are compared without case and separators, and without the maker's words in front, so that "h100_sxm",
"H100 SXM" and "NVIDIA H100 80GB HBM3", as a driver reports it, are one GPU. A name that fits several rows is
not refused: "A100" is the SXM module with 80 GB, since that is where RL is run, and `Entry.candidates` lists
what else it could have been. The rule is: the SXM module before the card; of two memories the usual one.

These are peaks. What a kernel reaches is less, a property of the kernel, and belongs to the roofline, not here.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from batchsim.errors import InputError, nearest
from batchsim.specs.gpu import GPU

_MAKERS = ("nvidia", "amd", "instinct", "radeon", "geforce", "tesla")
_ABOUT = ("aliases", "default_for", "source", "note")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One row of the catalogue.

    Parameters
    ----------
    gpu : GPU
        Count and price are not given.
    aliases : tuple of str
        Other names of this row alone.
    default_for : tuple of str
        Names that also fit other rows, and mean this one.
    source : str
        Title and address of the sheet.
    note : str
        What other sources say, and why this value was taken; empty if they agree.
    """

    gpu: GPU
    aliases: tuple[str, ...]
    default_for: tuple[str, ...]
    source: str
    note: str

    def candidates(self, name: str) -> list[str]:
        """Rows besides this one that an ambiguous name could have meant; empty for a name that is clear."""
        if normalize_name(name) not in {normalize_name(n) for n in self.default_for}:
            return []
        said = _parts(name)
        return [n for n in entries() if said <= _parts(n) and n != self.gpu.name]


def normalize_name(name: str) -> str:
    """Form in which names are compared: no case, separators or maker's words in front.

    Parameters
    ----------
    name : str

    Returns
    -------
    str

    Examples
    --------
    >>> normalize_name("NVIDIA A100-SXM4-80GB"), normalize_name("a100_sxm4 80gb")
    ('a100sxm480gb', 'a100sxm480gb')
    """
    return "".join(_words(name))


def _words(name: str) -> list[str]:
    words = [word for word in re.split(r"[\s_-]+", name.casefold()) if word]
    while len(words) > 1 and words[0] in _MAKERS:
        words.pop(0)
    return words


def _parts(name: str) -> set[str]:
    """Words of a name, with the generation of a socket and the unit of a memory left out."""
    return {re.sub(r"^(sxm)\d$|^(\d+)gb$", r"\1\2", word) for word in _words(name)}


def entries() -> Mapping[str, Entry]:
    """Rows of the catalogue by name, in the order of the file."""
    return _read()


def catalogue() -> dict[str, GPU]:
    """GPUs of the catalogue by name, in the order of the file.

    Returns
    -------
    dict of str to GPU
        SI units: B, B/s, FLOP/s.
    """
    return {name: entry.gpu for name, entry in entries().items()}


def find_gpu(name: str) -> GPU:
    """GPU of a name.

    Parameters
    ----------
    name : str
        As in the catalogue, an alias of it, or as a driver reports it.

    Returns
    -------
    GPU
        SI units; `name` is that of the catalogue, so that it shows what an ambiguous name was taken for.

    Raises
    ------
    InputError
        For a name that is not in the catalogue, with the nearest that is.

    Examples
    --------
    >>> gpu = find_gpu("h100_sxm")
    >>> gpu.name, gpu.memory, gpu.memory_bandwidth
    ('H100-SXM', 80000000000.0, 3350000000000.0)
    """
    return find_entry(name).gpu


def find_entry(name: str) -> Entry:
    """Row of a name, with its source and note.

    Parameters
    ----------
    name : str
        As for `find_gpu`.

    Returns
    -------
    Entry

    Raises
    ------
    InputError
        As `find_gpu` does.
    """
    found = _names().get(normalize_name(name))
    if found is not None:
        return entries()[found]
    written = re.sub(r"[\s_]+", "-", name.strip()).upper()
    known = [n for row, entry in entries().items() for n in (row, *entry.default_for)]
    raise InputError(
        f"no GPU '{name}' in the catalogue",
        remedy=f"{nearest(written, known)}; or give memory, memory_bandwidth and peak_flops of the datasheet in "
        "[gpu]; `batchsim gpus` lists what is known",
    )


@lru_cache(maxsize=1)
def _read() -> Mapping[str, Entry]:
    text = files("batchsim").joinpath("data/gpus.toml").read_text(encoding="utf-8")
    return MappingProxyType({row["name"]: _entry(row) for row in tomllib.loads(text)["gpu"]})


def _entry(row: dict[str, Any]) -> Entry:
    about = {name: row.get(name, ()) for name in _ABOUT}
    return Entry(
        gpu=GPU(**{name: value for name, value in row.items() if name not in _ABOUT}),
        aliases=tuple(about["aliases"]),
        default_for=tuple(about["default_for"]),
        source=row["source"],
        note=row.get("note", ""),
    )


@lru_cache(maxsize=1)
def _names() -> dict[str, str]:
    """Row of every normalized name."""
    return {
        normalize_name(n): name for name, entry in entries().items() for n in (name, *entry.aliases, *entry.default_for)
    }
