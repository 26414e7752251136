r"""Hugging Face config.json as an `Architecture`.

    config.json -> decoder's keys -> family by `model_type` -> blocks -> matrices, caches, states
                                     quantization_config    -> width of every matrix

Every key that changes a shape is read. One that is absent is an error, unless the class of that family
documents a default; a family that is not known is refused by name, since a neighbour's shapes would be a
guess. Layers that only predict further tokens (MTP) and vision and audio towers are left out: published
totals that include them are larger, which the catalogue says where it is so.

Unquantised weights count 16 bits whatever the file's dtype says: engines load float32 checkpoints as bf16.

References
----------
.. [1] Hugging Face, transformers, src/transformers/models (configuration and modelling code of each family).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchsim.errors import InputError, nearest
from batchsim.specs.architecture import Architecture
from batchsim.specs.huggingface.config import Config, flatten, load
from batchsim.specs.huggingface.families import FAMILIES
from batchsim.specs.huggingface.quantisation import Precision, quantised, read_scheme

__all__ = ["FAMILIES", "Precision", "quantised", "read_architecture"]

OUTER = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
}
"""Composite families whose nested configuration may lack a `model_type`."""


def read_architecture(config: Mapping[str, Any] | str | Path, *, name: str = "", source: str = "") -> Architecture:
    """Architecture of a configuration, without multi-token prediction and without vision or audio towers.

    Parameters
    ----------
    config : mapping, str or Path
        The object, or a path of a config.json or of a folder that holds one.
    name : str
        Of the model; the folder's or file's by default.
    source : str

    Returns
    -------
    Architecture

    Raises
    ------
    InputError
        If it cannot be read, its family or quantisation is not known, a key that decides a shape is absent or
        impossible.
    """
    if isinstance(config, Mapping):
        values, where = config, name
    else:
        file = Path(config)
        values, where = load(file), str(file)
        name = name or _name_of(file)
        source = source or str(file)
    c = flatten(values, where)
    family = OUTER.get(c.family, c.family)
    if family not in FAMILIES:
        known = sorted(set(FAMILIES) | set(OUTER))
        raise InputError(
            f"no architecture '{c.family}' is known",
            where=where,
            remedy=f"{nearest(c.family, known)} Otherwise add a builder (docs/models.md), or give [model] weight_bytes "
            "and kv_bytes_per_token instead",
        )
    c = Config(c.values, family, c.where)
    builder, scheme = FAMILIES[family](c), read_scheme(c)
    return builder.finish(name=name, family=family, precision=scheme.precision, source=source, widths=scheme.widths)


def _name_of(file: Path) -> str:
    """A folder's name, or a file's where it says more than 'config'."""
    file = file.resolve()
    return file.parent.name if file.stem == "config" else file.stem.replace("--", "/", 1) if file.suffix else file.name
