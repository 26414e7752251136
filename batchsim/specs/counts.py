r"""What an architecture costs: parameters, bytes and FLOPs, each from its four lists.

    total      = sum count inputs outputs  (a tied head once)  + layers E expert + vectors
    active     = the same with k instead of E experts, without the embedding's rows
    KV bytes   = sum over growing caches of count elements bits/8, per token of context
    FLOPs      = 2 active matrices + sum count context_flops min(context, window) + recurrences

Publishers' "active" counts differ: gpt-oss and this package count the head and not the embedding; Qwen's
"non-embedding" counts neither; DeepSeek's count both. A factor of 2 FLOPs per parameter is one multiplication
and one addition.

References
----------
.. [1] Kaplan et al. 2020, arXiv:2001.08361, table 1 (2 FLOPs per parameter and token forward).
.. [2] OpenAI 2025, gpt-oss model card, arXiv:2508.10925, table 1 (active: head counted, embedding not).
"""

from __future__ import annotations

from batchsim.specs.architecture import Architecture, Attention

VECTOR_BYTES = 2
"""Norms and biases stay at 16 bits in every checkpoint."""


def total_parameters(architecture: Architecture) -> int:
    """Parameters [1] of the decoder, a tied head once; neither MTP layers nor vision towers."""
    experts = architecture.experts
    routed = experts.layers * experts.experts * experts.expert_parameters if experts else 0
    return _stored_parameters(architecture) + routed + architecture.vectors


def active_parameters(architecture: Architecture) -> int:
    """Parameters [1] that one decoded token reads: head included, embedding's table not [2]."""
    experts = architecture.experts
    routed = experts.layers * experts.per_token * experts.expert_parameters if experts else 0
    read = sum(m.parameters for m in architecture.matrices if m.reading != "lookup")
    return read + routed + architecture.vectors


def embedding_parameters(architecture: Architecture) -> int:
    """Parameters [1] of the embedding's table, which some publishers add to the active ones."""
    return sum(m.parameters for m in architecture.matrices if m.reading == "lookup")


def head_parameters(architecture: Architecture) -> int:
    """Parameters [1] of the head, which some publishers leave out of the active ones."""
    return sum(m.parameters for m in architecture.matrices if m.reading == "sequence")


def weight_bytes(architecture: Architecture) -> float:
    """Bytes [B] of one copy of the weights, scales of quantisation included, a tied head once."""
    experts = architecture.experts
    routed = experts.layers * experts.experts * experts.expert_bytes if experts else 0.0
    stored = sum(m.bytes for m in architecture.matrices if not _is_tied_head(architecture, m.reading))
    return stored + routed + VECTOR_BYTES * architecture.vectors


def kv_bytes_per_token(architecture: Architecture, cache_bits: float = 16, tensor_parallel: int = 1) -> float:
    """Bytes that one more token of context adds to the cache of each GPU.

    Parameters
    ----------
    architecture : Architecture
    cache_bits : float [bit]
        Per element, the indexer's keys included.
    tensor_parallel : int [GPU]
        Heads are split, never finer than one head per GPU; a latent and an indexer's keys are not.

    Returns
    -------
    float [B/token]
        Of layers whose cache grows: sliding and chunked ones are in `window_bytes_per_sequence`.
    """
    return sum(_bytes_per_token(a, cache_bits, tensor_parallel) for a in architecture.attention if not _is_bounded(a))


def window_bytes_per_sequence(
    architecture: Architecture, context: float | None = None, cache_bits: float = 16, tensor_parallel: int = 1
) -> float:
    """Bytes that the bounded caches of a sequence take on each GPU.

    Parameters
    ----------
    architecture : Architecture
    context : float or None [tokens]
        Tokens so far; windows are full if None.
    cache_bits : float [bit]
    tensor_parallel : int [GPU]

    Returns
    -------
    float [B]
    """
    total = 0.0
    for a in architecture.attention:
        if _is_bounded(a) and a.window is not None:
            kept = a.window if context is None else min(context, a.window)
            total += kept * _bytes_per_token(a, cache_bits, tensor_parallel)
    return total


def state_bytes(architecture: Architecture) -> float:
    """Bytes [B] of constant state per sequence, of all layers and before tensor parallelism."""
    return sum(s.count * s.bytes for s in architecture.states)


def flops_per_token(architecture: Architecture, context: float) -> float:
    """FLOPs to decode one token.

    Parameters
    ----------
    architecture : Architecture
    context : float [tokens]
        Already in the cache.

    Returns
    -------
    float [FLOP/token]
    """
    experts = architecture.experts
    flops = 2.0 * sum(m.parameters for m in architecture.matrices if m.reading != "lookup")
    if experts:
        flops += 2.0 * experts.layers * experts.per_token * sum(m.parameters for m in experts.matrices)
    for a in architecture.attention:
        read = context if a.window is None else min(context, a.window)
        flops += a.count * (a.context_flops * read + a.index_flops * context)
    return flops + sum(s.count * s.flops for s in architecture.states)


def _is_tied_head(architecture: Architecture, reading: str) -> bool:
    return architecture.tied and reading == "sequence"


def _stored_parameters(architecture: Architecture) -> int:
    return sum(m.parameters for m in architecture.matrices if not _is_tied_head(architecture, m.reading))


def _is_bounded(attention: Attention) -> bool:
    return attention.window is not None and attention.keeps_window


def _bytes_per_token(a: Attention, cache_bits: float, tensor_parallel: int) -> float:
    """Bytes per token and GPU of all layers of one kind."""
    heads_per_gpu = 1 if a.latent else -(-a.kv_heads // tensor_parallel)
    elements = a.cache_elements * heads_per_gpu / a.kv_heads + a.index_elements
    return a.count * elements * cache_bits / 8
