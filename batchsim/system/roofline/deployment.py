r"""A model on GPUs under an engine: everything that a step's time depends on, packed for the kernel.

Tensor parallelism splits every 'column' and 'row' product over t GPUs and joins them by an all-reduce after each
'row' product: two per layer. Experts are split over e ranks. While e <= t the ranks are the tensor-parallel ones and
each holds E/e experts, split further over t/e GPUs; tokens need no exchange beyond the all-reduce. With e > t,
attention is data-parallel over e/t groups whose tokens meet at the experts: two all-to-alls per expert layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtri

from batchsim.errors import InputError
from batchsim.specs.architecture import Architecture, Attention, Matrix
from batchsim.specs.gpu import GPU
from batchsim.system.roofline.efficiency import (
    EXPERT_OVERLAP,
    PRODUCT_OVERLAP,
    SWITCHED_LINK,
    Efficiency,
    Overhead,
    efficiency,
    overhead,
)

NODE = 8
"""GPUs of a node where the GPU's row does not say."""
SMALL_KERNELS = 5
"""Per layer, under a compiled graph: two norms with their residuals, rotation, cache write, activation."""
ROUTING_KERNELS = 2
"""Per expert layer: top-k and the permutation of tokens."""
FUSED_KERNELS = 2
"""Norms that a fused all-reduce absorbs, per layer."""
ACTIVATION_PASSES = 12
"""Times that a token's hidden vector is read or written per layer outside of products: norms and residuals."""
STREAM_SHARE = 0.8
"""Share of the bandwidth that element-wise kernels and states reach (aiconfigurator's constant for memory-bound
operations, systems/*.yaml)."""
NETWORK_LATENCY = 10e-6
"""Of a message between nodes [s]: aiconfigurator's constant for point-to-point messages."""
NETWORK_SHARE = 0.8
"""Share of the network's bandwidth that large messages reach (the same constant as for memory, systems/*.yaml)."""
PREFILL_ATTENTION_SHARE = 0.5
"""Share of the bf16 peak that prefill attention reaches, between 35 % (FlashAttention-2 on Hopper) and 75 %
(FlashAttention-3), Shah et al. 2024, arXiv:2407.08608, figure 5."""


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """One replica: a model on `tensor_parallel` GPUs.

    Parameters
    ----------
    architecture : Architecture
    gpu : GPU
        Memory, bandwidth and peak must be known.
    tensor_parallel, expert_parallel : int [GPU]
    engine : Overhead
    efficiency : Efficiency
    cache_bits : float [bit]
        Per element of the KV cache.
    fused_all_reduce : bool
        The all-reduce also does the norm that follows it.
    network_bandwidth : float or None [B/s]
        Between nodes, per GPU and direction; None if a replica must lie within one.
    """

    architecture: Architecture
    gpu: GPU
    tensor_parallel: int
    expert_parallel: int
    engine: Overhead
    efficiency: Efficiency
    cache_bits: float = 16.0
    fused_all_reduce: bool = False
    network_bandwidth: float | None = None

    @property
    def node(self) -> int:
        """GPUs that the fast link joins."""
        return self.gpu.node_size or NODE

    @property
    def name(self) -> str:
        """Model, GPUs and engine in words."""
        experts = f", experts over {self.expert_parallel}" if self.expert_parallel > 1 else ""
        return (
            f"{self.architecture.name} ({self.architecture.precision}) on {self.tensor_parallel} x "
            f"{self.gpu.name or 'GPU'}{experts}, {self.engine.engine}"
        )

    @property
    def groups(self) -> int:
        """Data-parallel groups of attention whose tokens meet at the experts."""
        return max(self.expert_parallel // self.tensor_parallel, 1)


def deploy(
    architecture: Architecture,
    gpu: GPU,
    *,
    tensor_parallel: int = 1,
    expert_parallel: int = 1,
    engine: str | Overhead = "vllm",
    cache_bits: float = 16.0,
    fused_all_reduce: bool = False,
    network_bandwidth: float | None = None,
    kernels: Efficiency | None = None,
) -> Deployment:
    """A model on GPUs, checked.

    Parameters
    ----------
    architecture : Architecture
    gpu : GPU
    tensor_parallel, expert_parallel : int [GPU]
    engine : str or Overhead
        'vllm', 'sglang', 'trtllm', or overheads of one's own.
    cache_bits : float [bit]
    fused_all_reduce : bool
    network_bandwidth : float or None [B/s]
        Between nodes, per GPU and direction: 50e9 for 400 Gb/s. Without it a replica must lie within a node.
    kernels : Efficiency or None
        Those of the GPU's tables, or generic ones, if not given.

    Returns
    -------
    Deployment

    Raises
    ------
    InputError
        If the GPU's bandwidth or peak is unknown, or parallelism does not divide heads, experts or the node.
    """
    _check_gpu(gpu)
    _check_parallel(architecture, gpu, tensor_parallel, expert_parallel, network_bandwidth)
    if not 2 <= cache_bits <= 32:
        raise InputError(f"cache_bits {cache_bits:g} is outside [2, 32]", remedy="16 for bf16, 8 for fp8")
    link = gpu.link_bandwidth or gpu.host_bandwidth or 0.0
    return Deployment(
        architecture=architecture,
        gpu=gpu,
        tensor_parallel=tensor_parallel,
        expert_parallel=expert_parallel,
        engine=overhead(engine) if isinstance(engine, str) else engine,
        efficiency=kernels or efficiency(gpu.name, switched=link > SWITCHED_LINK),
        cache_bits=cache_bits,
        fused_all_reduce=fused_all_reduce,
        network_bandwidth=network_bandwidth,
    )


def _check_gpu(gpu: GPU) -> None:
    missing = [name for name in ("memory_bandwidth", "peak_flops") if getattr(gpu, name) is None]
    if missing:
        raise InputError(
            f"GPU '{gpu.name}' has no {' and no '.join(missing)}",
            remedy="name one of `batchsim gpus`, or give the datasheet's numbers",
        )


def _check_parallel(architecture: Architecture, gpu: GPU, tensor: int, expert: int, network: float | None) -> None:
    if tensor < 1 or expert < 1:
        raise InputError(f"tensor_parallel {tensor} and expert_parallel {expert} must be at least 1")
    if tensor > 1 and not (gpu.link_bandwidth or gpu.host_bandwidth):
        raise InputError(
            f"tensor_parallel {tensor} needs the link between GPUs, which '{gpu.name}' does not state",
            remedy="give link_bandwidth",
        )
    node = gpu.node_size or NODE
    most = node
    if tensor > node:
        if network is None:
            raise InputError(
                f"tensor_parallel {tensor} exceeds the {node} GPUs that {gpu.name or 'the GPU'}'s link joins",
                remedy=f"use at most {node} and more replicas, or give network_bandwidth",
            )
        if tensor % node:
            raise InputError(f"tensor_parallel {tensor} is no whole number of nodes of {node} GPUs")
        most = tensor
    for a in architecture.attention:
        if a.heads % tensor:
            raise InputError(
                f"tensor_parallel {tensor} does not divide the {a.heads} query heads of {architecture.name}",
                remedy=f"use one of {_divisors(a.heads, most)}",
            )
        if not a.latent and a.kv_heads % tensor and tensor % a.kv_heads:
            raise InputError(
                f"tensor_parallel {tensor} neither divides nor is divided by the {a.kv_heads} KV heads of "
                f"{architecture.name}",
                remedy=f"use one of {_divisors(a.kv_heads, most)}",
            )
    experts = architecture.experts
    if expert > 1 and experts is None:
        raise InputError(f"expert_parallel {expert}: {architecture.name} has no experts", remedy="leave it at 1")
    if experts is not None and experts.experts % expert:
        raise InputError(
            f"expert_parallel {expert} does not divide {experts.experts} experts of {architecture.name}",
            remedy=f"use one of {_divisors(experts.experts, 1024)}",
        )
    if max(expert, tensor) % min(expert, tensor):
        raise InputError(
            f"expert_parallel {expert} and tensor_parallel {tensor} do not divide each other",
            remedy="make one a multiple of the other",
        )


def _divisors(number: int, most: int) -> str:
    return ", ".join(str(d) for d in range(1, min(number, most) + 1) if number % d == 0)


def expert_popularity(experts: int, per_token: int, skew: float) -> NDArray[np.float64]:
    """Probability that a token is routed to each expert, proportional to rank^-skew and at most 1.

    Parameters
    ----------
    experts, per_token : int
        E and k.
    skew : float [1]
        0 is uniform.

    Returns
    -------
    ndarray, (E,) [1]
        Sums to k.
    """
    weight = np.arange(1, experts + 1, dtype=np.float64) ** -skew
    if skew == 0 or per_token >= experts:
        return np.full(experts, min(per_token / experts, 1.0))

    def excess(scale: float) -> float:
        return float(np.minimum(1.0, np.exp(scale) * weight).sum()) - per_token

    scale = brentq(excess, np.log(per_token / weight.sum()) - 1e-9, np.log(1 / weight[-1]))
    popularity = np.minimum(1.0, np.exp(scale) * weight)
    return np.asarray(popularity * (per_token / popularity.sum()))


@dataclass(frozen=True, kw_only=True)
class Packed:
    """Arrays of `_kernels.step_parts`; see `pack`."""

    products: NDArray[np.float64]
    experts: NDArray[np.float64]
    popularity: NDArray[np.float64]
    attention: NDArray[np.float64]
    states: NDArray[np.float64]
    rest: NDArray[np.float64]


def pack(deployment: Deployment) -> Packed:
    """Arrays for the kernel, in seconds per unit.

    Parameters
    ----------
    deployment : Deployment

    Returns
    -------
    Packed
        products: count, inputs + outputs, bytes, B/s, s per row, latency, sampled rows only.
        experts: layers, s per touched expert, s per token, latency, ranks, normal extreme, groups.
        attention: count, latency, s per sequence, s per token in the window, window, s per token, s per pair.
        states: count, latency, s per sequence, s per prompt token.
        rest: all-reduces, latency, s per token; all-to-alls, latency, s per token; small kernels, s per sequence,
        s per step, s per token; overlap exponents of products and of experts.
    """
    architecture = deployment.architecture
    return Packed(
        products=np.array(
            [_product(deployment, m) for m in architecture.matrices if m.reading != "lookup"], dtype=np.float64
        ),
        experts=_experts(deployment),
        popularity=_popularity(deployment),
        attention=np.array([_attention(deployment, a) for a in architecture.attention], dtype=np.float64).reshape(
            -1, 7
        ),
        states=_states(deployment),
        rest=_rest(deployment),
    )


def peak(deployment: Deployment, arithmetic: str) -> tuple[float, str]:
    """FLOP/s of an arithmetic on this GPU, and the one it falls back to where the tensor cores lack it."""
    gpu = deployment.gpu
    if arithmetic == "fp4" and gpu.fp4_flops:
        return gpu.fp4_flops, "fp4"
    if arithmetic == "fp8" and gpu.fp8_flops:
        return gpu.fp8_flops, "fp8"
    return float(gpu.peak_flops or 0.0), "bf16"


def _bandwidth(deployment: Deployment) -> float:
    return float(deployment.gpu.memory_bandwidth or 0.0)


def _split(deployment: Deployment, m: Matrix) -> int:
    return 1 if m.sharding == "replicated" else deployment.tensor_parallel


def _quantised(m: Matrix) -> bool:
    # 16-bit weights need no quantised input; below that the engine quantises a product's input unless it dequantises
    # the weights on the way (mxfp4 on a GPU without fp4).
    return m.bits < 16 and m.arithmetic != "bf16"


def _product(deployment: Deployment, m: Matrix) -> tuple[float, ...]:
    e, split = deployment.efficiency, _split(deployment, m)
    flops, arithmetic = peak(deployment, m.arithmetic)
    share = e.gemm_compute_share if arithmetic == "bf16" else e.gemm_fp8_compute_share
    quantising = deployment.engine.quantisation_time if _quantised(m) and arithmetic != "bf16" else 0.0
    inputs = m.inputs / (split if m.sharding == "row" else 1)
    outputs = m.outputs / (split if m.sharding == "column" else 1)
    return (
        m.count,
        inputs + outputs,
        inputs * outputs * m.bits / 8,
        e.gemm_bandwidth_share * _bandwidth(deployment),
        2 * inputs * outputs / (share * flops),
        e.gemm_latency + quantising,
        1.0 if m.reading == "sequence" else 0.0,
    )


def _experts(deployment: Deployment) -> NDArray[np.float64]:
    experts = deployment.architecture.experts
    if experts is None:
        return np.empty(0)
    e, wide = deployment.efficiency, experts.matrices[0]
    flops, arithmetic = peak(deployment, wide.arithmetic)
    # Tables of fp8 experts exist; 4-bit ones are read at the rate of bf16 and, where the GPU multiplies them, with
    # fp8's share of the peak.
    fp8 = arithmetic == "fp8"
    read = e.expert_fp8_bandwidth_share if fp8 else e.expert_bandwidth_share
    compute = e.expert_compute_share if arithmetic == "bf16" else e.expert_fp8_compute_share
    latency = e.expert_fp8_latency if fp8 else e.expert_latency
    ranks = deployment.expert_parallel
    slices = max(deployment.tensor_parallel // ranks, 1)
    return np.array(
        [
            experts.layers,
            experts.expert_bytes / slices / (read * _bandwidth(deployment)),
            2 * experts.per_token * experts.expert_parameters / (slices * ranks) / (compute * flops),
            latency,
            ranks,
            # Blom's expected maximum of `ranks` standard normals.
            float(ndtri((ranks - 0.375) / (ranks + 0.25))) if ranks > 1 else 0.0,
            deployment.groups,
        ],
        dtype=np.float64,
    )


def _popularity(deployment: Deployment) -> NDArray[np.float64]:
    experts = deployment.architecture.experts
    if experts is None:
        return np.empty(0)
    return expert_popularity(experts.experts, experts.per_token, deployment.engine.routing_skew)


def _attention(deployment: Deployment, a: Attention) -> tuple[float, ...]:
    e, t = deployment.efficiency, deployment.tensor_parallel
    heads = 1 if a.latent else math.ceil(a.kv_heads / t)
    elements = a.cache_elements * heads / a.kv_heads
    fp8 = e.attention_fp8_share if deployment.cache_bits <= 8 else 1.0
    rate = e.attention_bandwidth_share * fp8 * _bandwidth(deployment)
    flops = e.gemm_compute_share * peak(deployment, "bf16")[0]
    size = deployment.cache_bits / 8

    def per_token(kept: float, work: float) -> float:
        # Reads and products of decode attention overlap; both are linear in the context: the larger one holds.
        return max(kept * size / rate, work / flops)

    window = float(a.window) if a.window is not None else np.inf
    own = per_token(elements, a.context_flops / t)
    index = per_token(float(a.index_elements), a.index_flops) if a.index_elements or a.index_flops else 0.0
    pair = ((a.prefill_flops or a.context_flops) / t) / (PREFILL_ATTENTION_SHARE * peak(deployment, "bf16")[0])
    return a.count, e.attention_latency, e.attention_sequence_time, own, window, index, pair


def _states(deployment: Deployment) -> NDArray[np.float64]:
    e, t = deployment.efficiency, deployment.tensor_parallel
    rate = STREAM_SHARE * _bandwidth(deployment)
    work = e.gemm_compute_share * peak(deployment, "bf16")[0]
    rows = [
        # A state is read and written at every step.
        (s.count, e.attention_latency, 2 * s.bytes / t / rate, s.flops / t / work)
        for s in deployment.architecture.states
    ]
    return np.array(rows, dtype=np.float64).reshape(-1, 4)


def joins(architecture: Architecture) -> int:
    """All-reduces of a step under tensor parallelism: after every row-split product and every expert layer."""
    rows = sum(m.count for m in architecture.matrices if m.sharding == "row" and "shared" not in m.name)
    return rows + (architecture.experts.layers if architecture.experts else 0)


def _rest(deployment: Deployment) -> NDArray[np.float64]:
    architecture, engine, t = deployment.architecture, deployment.engine, deployment.tensor_parallel
    link = deployment.gpu.link_bandwidth or deployment.gpu.host_bandwidth or np.inf
    hidden = 2.0 * architecture.hidden
    reduces, reduce_latency, reduce_token = 0.0, 0.0, 0.0
    if t > 1:
        local, nodes = min(t, deployment.node), t // min(t, deployment.node)
        latency, share = deployment.efficiency.all_reduce(local)
        reduces, reduce_latency = joins(architecture), latency + _between(nodes)
        reduce_token = 2 * (local - 1) / local * hidden / (share * link)
        if nodes > 1 and deployment.network_bandwidth:
            # After the reduction within a node each GPU carries its part of the vector to the other nodes.
            network = NETWORK_SHARE * deployment.network_bandwidth
            reduce_token += 2 * (nodes - 1) / nodes * hidden / local / network
    exchanges, exchange_latency, exchange_token = 0.0, 0.0, 0.0
    experts, groups = architecture.experts, deployment.groups
    if experts is not None and groups > 1:
        ranks = deployment.expert_parallel
        latency, share = deployment.efficiency.all_reduce(min(ranks, deployment.node))
        outside = max(0.0, 1 - deployment.node / ranks)
        exchanges, exchange_latency = 2.0 * experts.layers, latency + (NETWORK_LATENCY if outside else 0.0)
        sent = min(experts.per_token, groups) * hidden
        exchange_token = sent * max(1 - 1 / groups - outside, 0.0) / (share * link)
        if outside:
            exchange_token += sent * outside / (NETWORK_SHARE * (deployment.network_bandwidth or link))
    small = SMALL_KERNELS * architecture.layers + (ROUTING_KERNELS * experts.layers if experts else 0)
    if deployment.fused_all_reduce and t > 1:
        small -= FUSED_KERNELS * architecture.layers
    passes = ACTIVATION_PASSES * architecture.layers * hidden / (STREAM_SHARE * _bandwidth(deployment))
    return np.array(
        [
            reduces,
            reduce_latency,
            reduce_token,
            exchanges,
            exchange_latency,
            exchange_token,
            small * engine.kernel_time,
            engine.sequence_time,
            engine.step_time,
            passes,
            PRODUCT_OVERLAP,
            EXPERT_OVERLAP,
        ],
        dtype=np.float64,
    )


def _between(nodes: int) -> float:
    """Latency of a tree over nodes and back [s]."""
    return 2 * math.ceil(math.log2(nodes)) * NETWORK_LATENCY if nodes > 1 else 0.0


def with_engine(deployment: Deployment, engine: Overhead) -> Deployment:
    """The same deployment under other overheads."""
    return replace(deployment, engine=engine)
