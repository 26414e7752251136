"""Slow twin of the decode roofline: plain loops over matrices, heads and experts, sharing no code with it."""

from __future__ import annotations

import math

from batchsim.system.roofline import Deployment


def overlapped(read: float, work: float, p: float) -> float:
    total: float = (read**p + work**p) ** (1 / p)
    return total if read and work else read + work


def touched_on_ranks(popularity: list[float], tokens: float, ranks: int, extreme: float) -> float:
    """Experts that the slowest rank reads, by the moments of its count."""
    chances = [1 - float((1 - p) ** tokens) for p in popularity]
    total, n = sum(chances), len(chances)
    if ranks == 1:
        return total
    mean = total / n
    draws = sum(u * (1 - u) for u in chances) / ranks
    spread = sum((u - mean) ** 2 for u in chances) / n
    place = (n / ranks) * spread * (1 - 1 / ranks)
    return min(total / ranks + extreme * math.sqrt(draws + place), n / ranks, total)


def pairs(start: float, prompt: float, window: float) -> float:
    """Pairs of a prompt token and a token that it attends to, token by token."""
    return sum(min(start + j, window) for j in range(1, int(prompt) + 1))


def step_seconds(
    d: Deployment, batch: int, context: float, prompt: int, start: int, popularity: list[float], extreme: float
) -> float:
    """Time of a step, term by term from the theory."""
    a, e, gpu, t = d.architecture, d.efficiency, d.gpu, d.tensor_parallel
    assert gpu.memory_bandwidth is not None
    assert gpu.peak_flops is not None
    tokens, bw = batch + prompt, gpu.memory_bandwidth
    total = 0.0
    for m in a.matrices:
        if m.reading == "lookup":
            continue
        rows = tokens if m.reading == "token" else batch + min(prompt, 1)
        n, k = float(m.outputs), float(m.inputs)
        if m.sharding == "column":
            n /= t
        if m.sharding == "row":
            k /= t
        flops, share, extra = gpu.peak_flops, e.gemm_compute_share, 0.0
        if m.arithmetic == "fp8" and gpu.fp8_flops:
            flops, share = gpu.fp8_flops, e.gemm_fp8_compute_share
        if m.arithmetic == "fp4" and gpu.fp4_flops:
            flops, share = gpu.fp4_flops, e.gemm_fp8_compute_share
        if flops != gpu.peak_flops and m.bits < 16:
            extra = d.engine.quantisation_time
        read = (n * k * m.bits / 8 + 2 * rows * (n + k)) / (e.gemm_bandwidth_share * bw)
        work = 2 * rows * n * k / (share * flops)
        total += m.count * (overlapped(read, work, 4) + e.gemm_latency + extra)
    if a.experts:
        x = a.experts
        kind = x.matrices[0].arithmetic
        flops, compute, read_share, latency = (
            gpu.peak_flops,
            e.expert_compute_share,
            e.expert_bandwidth_share,
            e.expert_latency,
        )
        if kind == "fp8" and gpu.fp8_flops:
            flops, compute = gpu.fp8_flops, e.expert_fp8_compute_share
            read_share, latency = e.expert_fp8_bandwidth_share, e.expert_fp8_latency
        if kind == "fp4" and gpu.fp4_flops:
            flops, compute = gpu.fp4_flops, e.expert_fp8_compute_share
        ranks = d.expert_parallel
        slices = max(t // ranks, 1)
        seen = tokens * max(ranks // t, 1)
        read = touched_on_ranks(popularity, seen, ranks, extreme) * x.expert_bytes / slices / (read_share * bw)
        work = 2 * seen * x.per_token * x.expert_parameters / (slices * ranks) / (compute * flops)
        total += x.layers * (overlapped(read, work, 2) + latency)
    for layer in a.attention:
        heads = 1 if layer.latent else -(-layer.kv_heads // t)
        rate = e.attention_bandwidth_share * bw * (e.attention_fp8_share if d.cache_bits <= 8 else 1)
        width = d.cache_bits / 8
        flops = e.gemm_compute_share * gpu.peak_flops
        window = math.inf if layer.window is None else layer.window
        read = max(layer.cache_elements / layer.kv_heads * heads * width / rate, layer.context_flops / t / flops)
        scan = max(layer.index_elements * width / rate, layer.index_flops / flops)
        own = sum(read * min(context, window) + scan * context for _ in range(batch))
        ahead = (layer.prefill_flops or layer.context_flops) / t / (0.5 * gpu.peak_flops)
        total += layer.count * (
            e.attention_latency + e.attention_sequence_time * batch + own + ahead * pairs(start, prompt, window)
        )
    for s in a.states:
        total += s.count * (
            e.attention_latency
            + batch * 2 * s.bytes / t / (0.8 * bw)
            + prompt * s.flops / t / (e.gemm_compute_share * gpu.peak_flops)
        )
    return total + rest_seconds(d, batch, tokens)


def rest_seconds(d: Deployment, batch: int, tokens: int) -> float:
    """Links, small kernels and the engine."""
    a, t, total = d.architecture, d.tensor_parallel, 0.0
    bw = float(d.gpu.memory_bandwidth or 0)
    link = float(d.gpu.link_bandwidth or d.gpu.host_bandwidth or math.inf)
    if t > 1:
        node = d.gpu.node_size or 8
        local = min(t, node)
        latency, share = d.efficiency.all_reduce(local)
        nodes = t // local
        joins = sum(m.count for m in a.matrices if m.sharding == "row" and "shared" not in m.name)
        joins += a.experts.layers if a.experts else 0
        size = 2 * a.hidden * tokens
        total += joins * (latency + 2 * (local - 1) / local * size / (share * link))
        if nodes > 1:
            assert d.network_bandwidth is not None
            hops = 2 * math.ceil(math.log2(nodes))
            part = size / local
            total += joins * (hops * 10e-6 + 2 * (nodes - 1) / nodes * part / (0.8 * d.network_bandwidth))
    groups = max(d.expert_parallel // t, 1)
    if a.experts and groups > 1:
        node = d.gpu.node_size or 8
        latency, share = d.efficiency.all_reduce(min(d.expert_parallel, node))
        sent = min(a.experts.per_token, groups) * 2 * a.hidden * tokens
        away = max(0.0, 1 - node / d.expert_parallel)
        near = max(0.0, 1 - 1 / groups - away)
        seconds = latency + sent * near / (share * link)
        if away:
            seconds += 10e-6 + sent * away / (0.8 * (d.network_bandwidth or link))
        total += 2 * a.experts.layers * seconds
    small = 5 * a.layers + (2 * a.experts.layers if a.experts else 0)
    small -= 2 * a.layers if d.fused_all_reduce and t > 1 else 0
    total += small * d.engine.kernel_time + batch * d.engine.sequence_time + d.engine.step_time
    return total + 12 * a.layers * 2 * a.hidden * tokens / (0.8 * bw)
