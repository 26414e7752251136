r"""A decoder's architecture as lists of what it stores and reads: matrices, experts, caches, states.

Parameters, bytes and FLOPs all follow from four lists, so that one description answers every question:

    matrices     y = W x, held by `count` layers (or once, as the head); every token reads W
    experts      E matrices per layer of which a token reads k
    attention    layers that keep something per token of context: keys and values, or a latent (MLA)
    states       layers that keep a constant state per sequence (Mamba, linear attention)

    parameters  = sum count inputs outputs + experts + vectors (norms, biases)
    FLOPs/token = 2 (parameters of matrices read by a token) + sum count context_flops min(context, span)

Weights are counted at the width of the checkpoint, scales included: 8 + 32/128^2 bits for fp8 in blocks of
128 x 128, 4 + 8/16 for nvfp4, 4 + 8/32 for mxfp4; what a checkpoint leaves unquantised stays at 16.

Tensor parallelism splits 'column' matrices by outputs and 'row' matrices by inputs; 'replicated' ones are read in
full by every GPU. Keys and values are split by heads, never finer than one head per GPU; a latent is not split.

References
----------
.. [1] Shazeer 2019, arXiv:1911.02150 (multi-query attention); Ainslie et al. 2023, arXiv:2305.13245 (GQA).
.. [2] DeepSeek-AI 2024, arXiv:2405.04434 (MLA); DeepSeek-AI 2025, DeepSeek-V3.2 (sparse attention, indexer).
.. [3] Shoeybi et al. 2019, arXiv:1909.08053 (column- and row-parallel matrices).
.. [4] Open Compute Project 2023, Microscaling Formats (MX) specification 1.0 (block scales of mxfp4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Arithmetic = Literal["bf16", "fp8", "fp4"]
"""Width of the operands that the tensor cores multiply."""
Sharding = Literal["column", "row", "replicated"]
Reading = Literal["token", "sequence", "lookup"]
"""Who reads a matrix: every token, only tokens that are sampled (the head), or a row per token (the embedding)."""


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A projection that `count` layers hold.

    Parameters
    ----------
    name : str
        As 'qkv', 'attention_out', 'gate_up', 'down', 'router', 'head', 'embedding'.
    count : int
        Layers that hold one.
    inputs, outputs : int
        Of the whole model, before tensor parallelism.
    bits : float [bit]
        Per weight, scales included.
    arithmetic : {'bf16', 'fp8', 'fp4'}
    sharding : {'column', 'row', 'replicated'}
    reading : {'token', 'sequence', 'lookup'}
    """

    name: str
    count: int
    inputs: int
    outputs: int
    bits: float = 16.0
    arithmetic: Arithmetic = "bf16"
    sharding: Sharding = "column"
    reading: Reading = "token"

    @property
    def parameters(self) -> int:
        """Of all layers [1]."""
        return self.count * self.inputs * self.outputs

    @property
    def bytes(self) -> float:
        """Of all layers [B]."""
        return self.parameters * self.bits / 8


@dataclass(frozen=True, kw_only=True)
class Experts:
    """Routed experts of `layers` layers; shared experts are ordinary matrices.

    Parameters
    ----------
    layers : int
    experts, per_token : int
        E and k.
    matrices : tuple of Matrix
        Of one expert, with count 1.
    vectors : int
        Parameters of one expert's biases, held at 16 bits.
    """

    layers: int
    experts: int
    per_token: int
    matrices: tuple[Matrix, ...]
    vectors: int = 0

    @property
    def expert_parameters(self) -> int:
        """Of one expert [1]."""
        return sum(m.parameters for m in self.matrices) + self.vectors

    @property
    def expert_bytes(self) -> float:
        """Of one expert [B]."""
        return sum(m.bytes for m in self.matrices) + 2 * self.vectors


@dataclass(frozen=True, kw_only=True)
class Attention:
    """`count` layers that keep a cache per token of context.

    Parameters
    ----------
    name : str
        As 'full', 'sliding', 'chunked', 'latent', 'sparse latent'.
    count : int
    heads, kv_heads : int
        Query heads; heads of the cache (1 for a latent).
    cache_elements : int
        Elements kept per token and layer, over all heads.
    context_flops : float [FLOP]
        Per query token and per token of context when decoding, over all heads: 2 heads (key + value width); of a
        latent its absorbed form, which multiplies with the latent itself.
    prefill_flops : float or None [FLOP]
        The same when prefilling, where a latent is expanded to keys and values; as `context_flops` if None.
    window : int or None [tokens]
        Most tokens of context that a query reads, None for all; a sliding window also keeps no more.
    keeps_window : bool
        Tokens beyond the window are dropped (sliding), not only skipped (sparse selection keeps all).
    latent : bool
        One cache for all heads, not split by tensor parallelism.
    index_elements : int
        Elements kept per token and layer by an indexer that scores all of the context.
    index_flops : float [FLOP]
        Per query token and token of context, of the indexer.
    """

    name: str
    count: int
    heads: int
    kv_heads: int
    cache_elements: int
    context_flops: float
    prefill_flops: float | None = None
    window: int | None = None
    keeps_window: bool = True
    latent: bool = False
    index_elements: int = 0
    index_flops: float = 0.0


@dataclass(frozen=True, kw_only=True)
class State:
    """`count` layers that keep a constant state per sequence.

    Parameters
    ----------
    name : str
        As 'mamba2', 'gated delta net'.
    count : int
    bytes : float [B]
        Per sequence and layer, recurrent and convolution state together.
    flops : float [FLOP]
        Per token and layer, of the recurrence.
    """

    name: str
    count: int
    bytes: float
    flops: float


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A decoder-only language model.

    Parameters
    ----------
    name : str
    family : str
        The `model_type` of its configuration.
    precision : str
        Of the checkpoint: 'bf16', 'fp8', 'mxfp4', 'nvfp4', ...
    layers, hidden, vocab : int
    context_max : int [tokens]
    matrices : tuple of Matrix
        Embedding and head among them; tied ones share their bytes, see `tied`.
    experts : Experts or None
    attention : tuple of Attention
    states : tuple of State
    vectors : int
        Parameters of norms, biases and other vectors.
    tied : bool
        The head is the embedding: stored once, read as a head.
    source : str
    """

    name: str
    family: str
    precision: str
    layers: int
    hidden: int
    vocab: int
    context_max: int
    matrices: tuple[Matrix, ...]
    experts: Experts | None = None
    attention: tuple[Attention, ...] = ()
    states: tuple[State, ...] = ()
    vectors: int = 0
    tied: bool = False
    source: str = ""
