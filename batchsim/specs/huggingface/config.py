r"""A configuration as checked keys: every size has bounds, and a key that decides a shape is never guessed.

A config.json is written by the class that saved it, so keys that equal the class default may be absent.
Where that default is documented the family's builder states it; any other absent key is an error that
names the key. Composite models (vision, audio) nest the decoder under `text_config`; what the nested part
does not say is taken from the outer one, which is where `tie_word_embeddings` and `quantization_config`
often stand.

References
----------
.. [1] Hugging Face, transformers: PretrainedConfig and the configuration class of each family.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchsim.errors import InputError

NESTED = ("text_config", "llm_config", "language_config")
"""Keys under which composite models keep their decoder."""
LARGEST = {"num_hidden_layers": 10_000, "max_position_embeddings": 10**9, "sliding_window": 10**9, "vocab_size": 10**8}
LARGEST_SIZE = 10**7
"""Ten times any published width; a larger one is a slip, and its products would overflow a float's 53 bits."""


@dataclass(frozen=True)
class Config:
    """Keys of the decoder, read with checks.

    Parameters
    ----------
    values : mapping
        Keys of `text_config` over those of the whole.
    family : str
        `model_type` of the decoder.
    where : str
        File or name that errors mention.
    """

    values: Mapping[str, Any]
    family: str
    where: str = ""

    def fail(self, message: str, remedy: str) -> InputError:
        """Error that mentions the file."""
        return InputError(message, remedy=remedy, where=self.where)

    def has(self, key: str) -> bool:
        """Whether a key is given and not null."""
        return self.values.get(key) is not None

    def size(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number of a shape.

        Parameters
        ----------
        key : str
        default : int or None
            Documented default of the family's class; required without one.
        least : int

        Raises
        ------
        InputError
            If it is absent without a default, not a whole number, or out of bounds.
        """
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise self.fail(
                    f"'{key}' is absent, and {self.family} has no shape without it",
                    f"add {key} to the configuration, as its model card states it",
                )
            return default
        most = LARGEST.get(key, LARGEST_SIZE)
        whole = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value) and value.is_integer())
        if isinstance(value, bool) or not whole or not least <= value <= most:
            raise self.fail(
                f"{key} = {_shown(value)} is not a whole number from {least} to {most:,}",
                "correct it, or take config.json from the model card again",
            )
        return int(value)

    def sizes(self, key: str, length: int) -> tuple[int, ...]:
        """One whole number per layer."""
        items = self.items(key, length)
        if not all(isinstance(i, int) and 0 <= i <= LARGEST_SIZE for i in items):
            raise self.fail(f"{key} holds something other than whole numbers", "give one number per layer")
        return tuple(int(i) for i in items)

    def indices(self, key: str, layers: int) -> tuple[int, ...]:
        """Layers that a list names."""
        value = self.values.get(key)
        if not isinstance(value, list) or not all(type(i) is int and 0 <= i < layers for i in value):
            raise self.fail(f"{key} = {_shown(value)} is not a list of layers", f"as [0, 1], below {layers}")
        return tuple(sorted(set(value)))

    def items(self, key: str, length: int) -> Sequence[Any]:
        """A list with one item per layer.

        Raises
        ------
        InputError
            If it is no list or has another length.
        """
        value = self.values.get(key)
        if not isinstance(value, list | tuple):
            raise self.fail(f"{key} = {_shown(value)} is not a list", f"give {length} items, one per layer")
        if len(value) != length:
            raise self.fail(f"{key} has {len(value)} items for {length} layers", "give one item per layer")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A boolean; `default` is the one of the family's class.

        Raises
        ------
        InputError
            If it is something else.
        """
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fail(f"{key} = {_shown(value)} is neither true nor false", "write true or false")
        return value

    def kinds(self, layers: int, known: Sequence[str], default: Sequence[str]) -> tuple[str, ...]:
        """Kind of every layer, from `layer_types` or the family's default pattern.

        Raises
        ------
        InputError
            For a kind that is not known, since its cache and shapes are not either.
        """
        given = self.items("layer_types", layers) if self.has("layer_types") else default
        for kind in given:
            if kind not in known:
                raise self.fail(
                    f"{self.family} has no layer type {_shown(kind)}", f"layer_types may hold {', '.join(known)}"
                )
        return tuple(given)

    def refuse(self, key: str, because: str) -> None:
        """Refuse a non-zero key whose effect is not modelled.

        Raises
        ------
        InputError
            If the key is set.
        """
        if self.values.get(key):
            raise self.fail(
                f"{key} = {_shown(self.values[key])} is not modelled: {because}", "choose another model of the family"
            )

    def divides(self, part: int, whole: int, names: str) -> None:
        """Check that `part` divides `whole`.

        Raises
        ------
        InputError
            Otherwise.
        """
        if whole % part:
            names = names.format(part=part, whole=whole)
            raise self.fail(f"{names}: {whole} is no multiple of {part}", "correct the two")


def load(path: str | Path) -> dict[str, Any]:
    """Object of a config.json, or of the one inside a folder.

    Parameters
    ----------
    path : str or Path

    Raises
    ------
    InputError
        If it cannot be read, is not JSON, or is not an object.
    """
    file = Path(path)
    remedy = "give the config.json that lies beside a checkpoint, or its folder"
    try:
        file = file / "config.json" if file.is_dir() else file
        value = json.loads(file.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", where=str(file), remedy=remedy) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"not a JSON file: {error}", where=str(file), remedy=remedy) from error
    if not isinstance(value, dict):
        raise InputError(f"a JSON {type(value).__name__}, not an object", where=str(file), remedy=remedy)
    return value


def flatten(config: Mapping[str, Any], where: str) -> Config:
    """Decoder of a configuration: the nested one where there is one.

    Raises
    ------
    InputError
        If no `model_type` says what the model is.
    """
    nested: Mapping[str, Any] = next((config[k] for k in NESTED if isinstance(config.get(k), Mapping)), {})
    # Null in the nested part says no more than absence; the outer part may know.
    values = {**config, **{k: v for k, v in nested.items() if v is not None}}
    family = nested.get("model_type", config.get("model_type"))
    if not isinstance(family, str) or not family:
        raise InputError(
            "no 'model_type' says what this model is",
            where=where,
            remedy="give the config.json of the model itself, not of its tokenizer, adapter or quantisation",
        )
    return Config(values, family, where)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
