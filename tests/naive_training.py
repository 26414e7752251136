"""Slow twin of the training law: plain loops over matrices, layers, sequences and tokens, sharing no code with it."""

from __future__ import annotations

import math

from batchsim.system.training import Trainer


def attended(length: int, window: int | None) -> int:
    """Pairs of a token and a token before it or itself, half a pair of itself, token by token."""
    return sum(2 * min(j, window or length) - (1 if j <= (window or length) else 0) for j in range(1, length + 1))


def sequence_flops(t: Trainer, length: int, products: float, attention: float, head: float) -> tuple[float, ...]:
    """Products, attention and experts of one sequence, each matrix on its own."""
    a = t.architecture
    own = heads = adapters = 0.0
    for m in a.matrices:
        for _ in range(m.count):
            if m.reading == "token":
                own += 2 * m.inputs * m.outputs * length * products
                if t.lora_rank:
                    adapters += 2 * t.lora_rank * (m.inputs + m.outputs) * length
            elif m.reading == "sequence":
                heads += 2 * m.inputs * m.outputs * length * head
    routed = 0.0
    if a.experts is not None:
        for _ in range(a.experts.layers):
            for m in a.experts.matrices:
                routed += 2 * a.experts.per_token * m.inputs * m.outputs * length * products
                if t.lora_rank:
                    adapters += 2 * t.lora_rank * a.experts.per_token * (m.inputs + m.outputs) * length
            routed += 2 * a.experts.per_token * a.experts.vectors * length * products
    scores = 0.0
    for x in a.attention:
        per = x.context_flops if x.prefill_flops is None else x.prefill_flops
        scores += (
            attention * x.count * (per * attended(length, x.window) / 2 + x.index_flops * attended(length, None) / 2)
        )
    for s in a.states:
        scores += attention * s.count * s.flops * length
    return own + heads, adapters, scores, routed


def update(t: Trainer, lengths: list[int]) -> float:
    """Seconds of an update of equal sequences, one data-parallel rank's micro-batches one after the other."""
    a, e, gpu = t.architecture, t.efficiency, t.gpu
    assert t.micro_batch_sequences is not None
    assert gpu.memory_bandwidth is not None
    assert gpu.peak_flops is not None
    again = 1 if t.recompute == "full" else 0
    backward = 1 if t.lora_rank else 2
    attention = 3 + (0 if t.recompute == "none" else 1)
    chunked = 1 if t.loss == "rl" else 0
    split = t.tensor_parallel * t.pipeline_parallel * t.context_parallel
    own = lengths[: len(lengths) * split // t.gpus]
    total, last = 0.0, 0.0
    while own:
        batch, own = own[: t.micro_batch_sequences], own[t.micro_batch_sequences :]
        # The last micro-batch is filled up.
        batch = batch + [batch[0]] * (t.micro_batch_sequences - len(batch))
        busy = 0.0
        for length in batch:
            parts = sequence_flops(t, length, 1 + again + backward, attention, 1 + chunked + backward)
            weights = parts[0] + parts[1] * (3 + again)
            busy += weights / split / gpu.peak_flops / e.product_share
            busy += parts[2] / split / gpu.peak_flops / e.attention_share
            busy += parts[3] / split / gpu.peak_flops / e.expert_share
            busy += memory_seconds(t, length, 3 + again, 3 + chunked) / split
        busy += e.layer_time * a.layers / t.pipeline_parallel
        if a.experts is not None and not t.grouped_experts:
            for _ in range(a.experts.layers * a.experts.experts):
                busy += e.expert_time / t.pipeline_parallel
        last = busy + max(gathered(t) / e.link_share - busy, 0.0)
        total += last
    total += (t.pipeline_parallel - 1) * last
    trained = sum(r * c for r, c in adapters_of(t)) if t.lora_rank else parameters(t)
    states = (2 * (t.weight_bytes + t.optimizer_bytes) + t.gradient_bytes) * trained / t.gpus
    return total + states / gpu.memory_bandwidth + e.update_time + (e.rl_time if chunked else 0.0)


def memory_seconds(t: Trainer, length: int, passes: float, logits: float) -> float:
    a, e = t.architecture, t.efficiency
    assert t.gpu.memory_bandwidth is not None
    moved = 0.0
    for _ in range(a.layers):
        moved += e.element_passes * passes * 2 * a.hidden * length
    moved += logits * 4 * a.vocab * length * (e.logit_passes_rl if t.loss == "rl" else e.logit_passes_plain)
    width = sum(m.count * (m.inputs + m.outputs) for m in a.matrices if m.reading == "token")
    routed = 0
    if a.experts is not None:
        routed = a.experts.layers * a.experts.per_token * sum(m.inputs + m.outputs for m in a.experts.matrices)
        moved += e.expert_passes * passes * 2 * routed * length
    if t.lora_rank:
        moved += e.adapter_passes * passes * 2 * (width + routed) * length
    seconds = moved / t.gpu.memory_bandwidth
    if t.offload:
        assert t.gpu.host_bandwidth is not None
        seconds += 2 * 2 * a.layers * a.hidden * length / (e.host_share * t.gpu.host_bandwidth)
    return seconds


def adapters_of(t: Trainer) -> list[tuple[int, int]]:
    """Rank and width of every adapter."""
    a, found = t.architecture, []
    for m in a.matrices:
        if m.reading == "token":
            found += [(t.lora_rank or 0, m.inputs + m.outputs)] * m.count
    if a.experts is not None:
        for m in a.experts.matrices:
            found += [(t.lora_rank or 0, m.inputs + m.outputs)] * (a.experts.layers * a.experts.experts)
    return found


def parameters(t: Trainer) -> float:
    a = t.architecture
    total = a.vectors
    for m in a.matrices:
        if not (a.tied and m.reading == "sequence"):
            total += m.count * m.inputs * m.outputs
    if a.experts is not None:
        one = sum(m.inputs * m.outputs for m in a.experts.matrices) + a.experts.vectors
        total += a.experts.layers * a.experts.experts * one
    return float(total)


def gathered(t: Trainer) -> float:
    """Seconds at the link's datasheet of two gathers in bf16 and one scatter of gradients, full sharding."""
    a = t.architecture
    ranks = t.gpus // (t.tensor_parallel * t.pipeline_parallel)
    if ranks == 1:
        return 0.0
    held = sum(m.count * m.inputs * m.outputs for m in a.matrices if m.reading == "token")
    if a.experts is not None:
        one = sum(m.inputs * m.outputs for m in a.experts.matrices) + a.experts.vectors
        held += a.experts.layers * a.experts.experts * one
    gradients = sum(r * c for r, c in adapters_of(t)) if t.lora_rank else held
    assert t.gpu.link_bandwidth is not None
    assert math.isfinite(t.gpu.link_bandwidth)
    sent = (2 * 2 * held + t.gradient_bytes * gradients) * (ranks - 1) / ranks
    return sent / (t.tensor_parallel * t.pipeline_parallel) / t.gpu.link_bandwidth
