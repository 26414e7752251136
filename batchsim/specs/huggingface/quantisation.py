r"""Which weights a checkpoint stores narrow, and how narrow.

A block of b weights shares a scale, so a weight costs its own bits plus those of the scale over b:

    fp8, blocks of 128 x 128    8 + 32/128^2      nvfp4, blocks of 16    4 + 8/16
    fp8, per tensor or channel  8                 mxfp4, blocks of 32    4 + 8/32
    gptq, awq in groups of g    4 + (16 + 4)/g    (a scale and a packed zero point per group)

Only linear layers are stored narrow; embeddings, heads, routers and small gates stay at 16 bits, and so do
the modules that the checkpoint names (`modules_to_not_convert`, `ignore`, `ignored_layers`). A name matches
whole components of a module's path: 'gate' means `mlp.gate` and not `mlp.gate_proj`, 'model.layers.1' not
`model.layers.10`. `*` and `?` are wildcards within the whole path, and 're:' begins a regular expression.

Multiplication needs both operands narrow: weights alone (mxfp4 of gpt-oss on Hopper, gptq, awq) are widened
on the fly, and the arithmetic of a scheme that leaves activations at 16 bits is bf16. For mxfp4 it is marked
fp4, and the GPU decides whether it can.

References
----------
.. [1] DeepSeek-AI 2024, arXiv:2412.19437, sec. 3.3.2 (blocks of 128 x 128).
.. [2] Open Compute Project 2023, Microscaling Formats (MX) specification 1.0; NVIDIA 2025, NVFP4.
.. [3] Hugging Face, transformers, quantizers (meaning of the keys); vLLM, compressed-tensors schemes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import translate
from typing import Any, Literal, get_args

from batchsim.errors import InputError, nearest
from batchsim.specs.architecture import Architecture, Matrix
from batchsim.specs.huggingface.builder import PLAIN, Width, Widths
from batchsim.specs.huggingface.config import Config

Precision = Literal["bf16", "fp8", "nvfp4", "mxfp4"]
STANDARD: dict[str, Width] = {
    "bf16": PLAIN,
    "fp8": Width(8.0, "fp8"),
    "nvfp4": Width(4 + 8 / 16, "fp4"),
    "mxfp4": Width(4 + 8 / 32, "fp4"),
}
"""Widths of a stand-alone re-quantisation; fp8 with a scale per channel, which costs nothing worth counting."""
KEPT = frozenset({"embedding", "head", "router", "shared_gate", "delta_gates", "index_weights"})
"""Matrices that stay at 16 bits: small, sensitive, or read once."""
WRAPPERS = frozenset({"model", "language_model", "backbone"})
"""Path components that only say which class wraps the decoder."""
IGNORED_KEYS = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")


@dataclass(frozen=True)
class Scheme:
    """A checkpoint's quantisation.

    Parameters
    ----------
    precision : str
    widths : callable
        Width of a module by its path.
    """

    precision: str
    widths: Widths


def read_scheme(c: Config) -> Scheme:
    """Quantisation of a configuration.

    Parameters
    ----------
    c : Config

    Raises
    ------
    InputError
        For a method that is not known, by name, and for a malformed section.
    """
    section = c.values.get("quantization_config") or c.values.get("compression_config")
    if not section:
        return Scheme("bf16", lambda _: PLAIN)
    if not isinstance(section, Mapping):
        raise c.fail(f"quantization_config is a {type(section).__name__}", "it should be an object")
    method = str(section.get("quant_method", "")).lower()
    if method not in METHODS:
        raise c.fail(
            f"quantisation method '{method}' is not known",
            f"{nearest(method, METHODS)} Otherwise take the unquantised checkpoint and state a precision",
        )
    return METHODS[method](c, section)


def _uniform(section: Mapping[str, Any], precision: str, width: Width) -> Scheme:
    """One width for all linear modules but the ignored ones."""
    lists = [section[key] for key in IGNORED_KEYS if isinstance(section.get(key), list | tuple)]
    ignored = _matcher([pattern for patterns in lists for pattern in patterns])
    return Scheme(precision, lambda path: PLAIN if ignored(path) else width)


def _fp8(c: Config, section: Mapping[str, Any]) -> Scheme:
    block = section.get("weight_block_size")
    if block is None:
        return _uniform(section, "fp8", STANDARD["fp8"])
    if not (isinstance(block, list | tuple) and len(block) == 2 and all(_counts(n) for n in block)):
        raise c.fail(f"weight_block_size = {block!r} is not two sizes", "as [128, 128]")
    return _uniform(section, "fp8", Width(8 + 32 / (block[0] * block[1]), "fp8"))


def _mxfp4(c: Config, section: Mapping[str, Any]) -> Scheme:
    return _uniform(section, "mxfp4", STANDARD["mxfp4"])


def _modelopt(c: Config, section: Mapping[str, Any]) -> Scheme:
    algorithm = str(section.get("quant_algo", "")).upper()
    known = {"FP8": "fp8", "NVFP4": "nvfp4"}
    if algorithm not in known:
        raise c.fail(f"modelopt's quant_algo '{algorithm}' is not known", f"known: {', '.join(known)}")
    precision = known[algorithm]
    return _uniform(section, precision, STANDARD[precision])


def _integer(c: Config, section: Mapping[str, Any]) -> Scheme:
    """Gptq and awq: integer weights in groups, widened before the multiplication."""
    bits, group = section.get("bits", section.get("w_bit")), section.get("group_size", section.get("q_group_size"))
    if bits not in (4, 8) or not (group == -1 or _counts(group)):
        raise c.fail(f"{section['quant_method']} with bits {bits!r} in groups of {group!r} is not known", "4 or 8 bits")
    if section.get("dynamic"):
        raise c.fail("gptq with a 'dynamic' width per module is not modelled", "take a checkpoint of one width")
    return _uniform(section, f"int{bits}", Width(bits if group == -1 else bits + (16 + bits) / group, "bf16"))


def _compressed(c: Config, section: Mapping[str, Any]) -> Scheme:
    """compressed-tensors: groups of targets, each with the format of its weights and activations."""
    groups = section.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise c.fail("compressed-tensors without config_groups is not known", "take another checkpoint")
    chosen: list[tuple[Callable[[str], bool], Width]] = []
    labels = []
    for name, group in groups.items():
        if not isinstance(group, Mapping) or not isinstance(group.get("weights"), Mapping):
            raise c.fail(f"config_groups.{name} has no weights", "take another checkpoint")
        targets = group.get("targets") or ["Linear"]
        every = isinstance(targets, list | tuple) and "Linear" in targets
        matches = (lambda _: True) if every else _matcher(targets)
        label, width = _weights(c, group["weights"], group.get("input_activations"))
        chosen.append((matches, width))
        labels.append(label)
    ignored = _matcher(section.get("ignore") or [])

    def widths(path: str) -> Width:
        if ignored(path):
            return PLAIN
        return next((width for matches, width in chosen if matches(path)), PLAIN)

    return Scheme(labels[0] if len(set(labels)) == 1 else "mixed", widths)


def _weights(c: Config, weights: Mapping[str, Any], activations: object) -> tuple[str, Width]:
    """Label and width of one group of compressed-tensors."""
    bits, kind, group = weights.get("num_bits"), weights.get("type"), weights.get("group_size") or 0
    narrow = isinstance(activations, Mapping)
    if (bits, kind) == (8, "float"):
        block = weights.get("block_structure")
        scale = 32 / (block[0] * block[1]) if isinstance(block, list) and all(_counts(n) for n in block) else 0.0
        return "fp8", Width(8 + scale, "fp8" if narrow else "bf16")
    if (bits, kind) == (4, "float") and group in (16, 32):
        label = "nvfp4" if group == 16 else "mxfp4"
        return label, replace(STANDARD[label], arithmetic="fp4" if narrow else "bf16")
    if kind == "int" and bits in (4, 8) and not narrow:
        zero = 0 if weights.get("symmetric", True) else bits
        return f"int{bits}", Width(bits + ((16 + zero) / group if _counts(group) else 0.0), "bf16")
    raise c.fail(
        f"compressed-tensors with {bits!r} bits of type {kind!r} in groups of {group!r} is not known",
        "take the unquantised checkpoint and state a precision",
    )


METHODS: dict[str, Callable[[Config, Mapping[str, Any]], Scheme]] = {
    "fp8": _fp8,
    "mxfp4": _mxfp4,
    "modelopt": _modelopt,
    "gptq": _integer,
    "awq": _integer,
    "compressed-tensors": _compressed,
}


def _counts(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 10**6


def _components(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split(".") if part and part not in WRAPPERS)


def _matcher(patterns: object) -> Callable[[str], bool]:
    """Whether a module's path matches one of the names, wildcards and regular expressions of a checkpoint."""
    exact: set[tuple[str, ...]] = set()
    expressions: list[re.Pattern[str]] = []
    for pattern in patterns if isinstance(patterns, list | tuple) else []:
        text = str(pattern)
        try:
            if text.startswith("re:"):
                expressions.append(re.compile(text[3:]))
            elif "*" in text or "?" in text:
                # The names of containers (`layers.*.self_attn`) mean all that they hold.
                expressions.append(
                    re.compile(f"(?:.*\\.)?(?:{translate('.'.join(_components(text)))[:-2]})(?:\\..*)?$")
                )
            else:
                exact.add(_components(text))
        except re.error as error:
            raise InputError(f"'{text}' is no pattern of module names: {error}", remedy="correct it") from error

    def matches(path: str) -> bool:
        parts = _components(path)
        runs = (parts[i:j] for i in range(len(parts)) for j in range(i + 1, len(parts) + 1))
        if exact and any(run in exact for run in runs):
            return True
        return any(e.match(text) for e in expressions for text in (path, ".".join(parts)))

    return matches


def quantised(architecture: Architecture, precision: str) -> Architecture:
    """The checkpoint that a serving team makes of a model.

    The linear matrices of attention, MLP, experts and recurrences get the new width. Embedding, head, router,
    gates of one or few outputs, and all vectors stay at 16 bits; of gpt-oss in mxfp4 and nvfp4 the attention
    too, as its vendor ships it.

    Parameters
    ----------
    architecture : Architecture
    precision : {'bf16', 'fp8', 'nvfp4', 'mxfp4'}
        fp8 with a scale per tensor or channel: 8 bits.

    Raises
    ------
    InputError
        For another precision.
    """
    if precision not in get_args(Precision):
        known = ", ".join(get_args(Precision))
        raise InputError(f"precision '{precision}' is not known", remedy=f"one of {known}")
    width = STANDARD[precision]
    experts_only = architecture.family == "gpt_oss" and width.arithmetic == "fp4"

    def narrowed(m: Matrix, keep: bool) -> Matrix:
        chosen = PLAIN if keep or m.name in KEPT else width
        return replace(m, bits=chosen.bits, arithmetic=chosen.arithmetic)

    experts = architecture.experts
    if experts is not None:
        experts = replace(experts, matrices=tuple(narrowed(m, False) for m in experts.matrices))
    return replace(
        architecture,
        precision=precision,
        matrices=tuple(narrowed(m, experts_only) for m in architecture.matrices),
        experts=experts,
    )
