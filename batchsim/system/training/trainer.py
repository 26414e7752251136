r"""A trainer: a model on GPUs, how it is divided, what it keeps in memory.

GPUs = data x tensor x pipeline x context parallel. A data-parallel rank is tensor x pipeline x context GPUs that work
on the same micro-batch. Experts may be spread over `expert_parallel` GPUs of different data-parallel ranks. Memory:

    states       (weights + gradients + optimizer) bytes per trained parameter, weights alone of a frozen one, over
                 all GPUs ('full' sharding, FSDP), the optimizer's alone ('optimizer', ZeRO-1), or none of them
    gathered     two layers of weights as multiplied, and the gradient of one, under full sharding
    activations  of a layer, 2 h bytes per token kept with full recomputation, the inputs and outputs of its matrices
                 without (2 bytes each: 32 h where [1] counts 34 h), of as many micro-batches as a pipeline has stages;
                 of the layer at work those and their gradients, or logits at 16 bytes each unless they are chunked

References
----------
.. [1] Korthikanti et al. 2022, arXiv:2205.05198, eq. 2 without attention scores, which flash attention never stores.
.. [2] Rajbhandari et al. 2019, arXiv:1910.02054 (ZeRO).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from batchsim.errors import InputError, nearest
from batchsim.specs.architecture import Architecture
from batchsim.specs.counts import total_parameters
from batchsim.specs.gpu import GPU
from batchsim.system.training.efficiency import TrainingEfficiency, training_efficiency
from batchsim.system.training.work import (
    LOGIT_BYTES,
    RECOMPUTE,
    ROW_BYTES,
    Units,
    Work,
    adapter_parameters,
    attention_flops,
    body_parameters,
    head_parameters,
    matrix_width,
    routed_parameters,
)

SHARDINGS = ("full", "optimizer", "none")
LOSSES = ("rl", "plain", "value")
PRECISIONS = ("bf16", "fp8")
PLAIN_LOGIT_BYTES = 16.0
"""Bytes per logit of a loss that is not chunked: bf16 and fp32 logits, their softmax, both gradients."""
COUNT_MAX = 10**6


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """A model on GPUs that train it; made by `make_trainer`, which checks it.

    Parameters
    ----------
    architecture : Architecture
    gpu : GPU
    gpus : int [GPU]
        All that train.
    micro_batch_tokens : int or None [tokens]
        Room of a micro-batch on a data-parallel rank.
    micro_batch_sequences : int or None [sequences]
        Or its number of sequences.
    packing : float in (0, 1] [1]
        Share of a micro-batch's tokens that are not padding.
    padded : bool
        The last micro-batch is filled up with padding; else it is shorter.
    tensor_parallel, pipeline_parallel, context_parallel, expert_parallel : int [GPU]
    sharding : {'full', 'optimizer', 'none'}
        What is spread over data-parallel ranks.
    recompute : {'none', 'selective', 'full'}
    offload : bool
        Kept activations go to the host's memory and back.
    lora_rank : int or None [1]
        Of adapters on every matrix of the layers; None trains all parameters.
    loss : {'rl', 'plain', 'value'}
        'value' is a critic: a scalar head.
    grouped_experts : bool
        Experts in one grouped kernel; else one after the other.
    precision : {'bf16', 'fp8'}
        Of products. No measured row is in fp8: its peak is taken at the share of bf16.
    weight_bytes, gradient_bytes, optimizer_bytes : float [B]
        Per parameter kept; the last two of trained ones alone.
    network_bandwidth : float or None [B/s]
        Per GPU between nodes, one direction; needed beyond one node.
    efficiency : TrainingEfficiency
    """

    architecture: Architecture
    gpu: GPU
    gpus: int
    micro_batch_tokens: int | None
    micro_batch_sequences: int | None
    packing: float
    padded: bool
    tensor_parallel: int
    pipeline_parallel: int
    context_parallel: int
    expert_parallel: int
    sharding: str
    recompute: str
    offload: bool
    lora_rank: int | None
    loss: str
    grouped_experts: bool
    precision: str
    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    network_bandwidth: float | None
    efficiency: TrainingEfficiency

    @property
    def rank_gpus(self) -> int:
        """GPUs of a data-parallel rank."""
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel

    @property
    def data_parallel(self) -> int:
        """Data-parallel ranks."""
        return self.gpus // self.rank_gpus

    @property
    def peak(self) -> float:
        """FLOP/s of one GPU in the precision of products."""
        flops = self.gpu.fp8_flops if self.precision == "fp8" else self.gpu.peak_flops
        return float(flops or 0.0)

    @property
    def link(self) -> float:
        """B/s per GPU among all that train: within the node, or of the network beyond it."""
        if self.gpus <= (self.gpu.node_size or 8):
            return float(self.gpu.link_bandwidth or self.gpu.host_bandwidth or math.inf)
        return float(self.network_bandwidth or 0.0)

    @property
    def trained_parameters(self) -> float:
        """Parameters [1] that the optimizer changes."""
        if self.lora_rank is not None:
            return adapter_parameters(self.architecture, self.lora_rank)
        return float(total_parameters(self.architecture))

    @property
    def kept_parameters(self) -> float:
        """Parameters [1] that are stored, adapters included."""
        extra = 0.0 if self.lora_rank is None else self.trained_parameters
        return total_parameters(self.architecture) + extra

    def with_gpus(self, gpus: int) -> Trainer:
        """The same trainer on another number of GPUs, checked.

        Parameters
        ----------
        gpus : int [GPU]

        Returns
        -------
        Trainer

        Raises
        ------
        InputError
            As `make_trainer` does.
        """
        return check_trainer(replace(self, gpus=gpus))


def make_trainer(
    architecture: Architecture,
    gpu: GPU,
    *,
    gpus: int,
    micro_batch_tokens: int | None = None,
    micro_batch_sequences: int | None = None,
    attention: str | None = None,
    efficiency: TrainingEfficiency | None = None,
    **how: Any,
) -> Trainer:
    """A model on GPUs that train it, checked.

    Parameters
    ----------
    architecture : Architecture
    gpu : GPU
    gpus : int [GPU]
    micro_batch_tokens : int or None [tokens]
    micro_batch_sequences : int or None [sequences]
        Exactly one of the two.
    attention : str or None
        As 'flash_attention_3'; the fastest measured on the GPU's generation if not given.
    efficiency : TrainingEfficiency or None
        The shipped one if not given.
    **how
        Other fields of `Trainer`; by default one GPU per rank, full sharding and recomputation, all parameters
        trained in bf16 with fp32 weights, gradients and Adam moments, no padding.

    Returns
    -------
    Trainer

    Raises
    ------
    InputError
        For an unknown name, a number out of bounds, parallelism that does not divide the GPUs, the model or the node,
        a missing bandwidth, or a model that does not fit into memory.
    """
    defaults: dict[str, Any] = {
        "packing": 1.0,
        "padded": True,
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
        "context_parallel": 1,
        "expert_parallel": 1,
        "sharding": "full",
        "recompute": "full",
        "offload": False,
        "lora_rank": None,
        "loss": "rl",
        "grouped_experts": True,
        "precision": "bf16",
        "weight_bytes": 4.0,
        "gradient_bytes": 4.0,
        "optimizer_bytes": 8.0,
        "network_bandwidth": None,
    }
    for name in how:
        if name not in defaults:
            raise InputError(f"no setting '{name}' of a trainer", remedy=nearest(name, defaults))
    return check_trainer(
        Trainer(
            architecture=architecture,
            gpu=gpu,
            gpus=gpus,
            micro_batch_tokens=micro_batch_tokens,
            micro_batch_sequences=micro_batch_sequences,
            efficiency=efficiency or training_efficiency(gpu, attention=attention),
            **{**defaults, **how},
        )
    )


def check_trainer(t: Trainer) -> Trainer:
    """The trainer itself, or an error that says what is wrong with it.

    Parameters
    ----------
    t : Trainer

    Returns
    -------
    Trainer

    Raises
    ------
    InputError
        See `make_trainer`.
    """
    _check_numbers(t)
    _check_parallel(t)
    _check_gpu(t)
    _check_memory(t)
    return t


def _check_numbers(t: Trainer) -> None:
    named: tuple[tuple[str, str, tuple[str, ...]], ...] = (
        ("sharding", t.sharding, SHARDINGS),
        ("recompute", t.recompute, RECOMPUTE),
        ("loss", t.loss, LOSSES),
        ("precision", t.precision, PRECISIONS),
    )
    for name, value, known in named:
        if value not in known:
            raise InputError(f"unknown {name} '{value}'", remedy=nearest(str(value), known))
    if (t.micro_batch_tokens is None) == (t.micro_batch_sequences is None):
        raise InputError("a trainer needs exactly one of micro_batch_tokens and micro_batch_sequences")
    counts = ["gpus", "tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel"]
    counts += [n for n in ("micro_batch_tokens", "micro_batch_sequences", "lora_rank") if getattr(t, n) is not None]
    for name in counts:
        value = getattr(t, name)
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value <= 10**8:
            raise InputError(f"{name} {value} is not a whole number of at least 1")
    for name in ("weight_bytes", "gradient_bytes", "optimizer_bytes"):
        if not 0 <= getattr(t, name) <= 32:
            raise InputError(f"{name} {getattr(t, name):g} is outside [0, 32] bytes per parameter")
    if not 0 < t.packing <= 1:
        raise InputError(f"packing {t.packing:g} is outside (0, 1]", remedy="give the share of tokens that are real")


def _check_gpu(t: Trainer) -> None:
    needed = ["memory_bandwidth", "fp8_flops" if t.precision == "fp8" else "peak_flops"]
    missing = [name for name in needed if getattr(t.gpu, name) is None]
    if missing:
        raise InputError(
            f"GPU '{t.gpu.name}' has no {' and no '.join(missing)}",
            remedy="name one of `batchsim gpus`, or give the datasheet's numbers",
        )
    if t.offload and t.gpu.host_bandwidth is None:
        raise InputError(f"offloading needs host_bandwidth, which '{t.gpu.name}' does not state")
    if not t.link > 0:
        raise InputError(
            f"{t.gpus} GPUs exceed a node of {t.gpu.node_size or 8}",
            remedy="give network_bandwidth, per GPU and one direction (400 Gb/s is 50e9 B/s)",
        )


def _check_parallel(t: Trainer) -> None:
    if t.gpus % t.rank_gpus:
        raise InputError(
            f"{t.tensor_parallel} x {t.pipeline_parallel} x {t.context_parallel} (tensor x pipeline x context) does "
            f"not divide {t.gpus} GPUs",
            remedy=f"use {max(t.gpus // t.rank_gpus, 1) * t.rank_gpus} GPUs or less parallelism",
        )
    node, a = t.gpu.node_size or 8, t.architecture
    if t.tensor_parallel > node:
        raise InputError(f"tensor_parallel {t.tensor_parallel} exceeds the {node} GPUs of a node", remedy=f"use {node}")
    heads = [x.heads for x in a.attention if x.heads % t.tensor_parallel]
    if heads:
        raise InputError(f"tensor_parallel {t.tensor_parallel} does not divide the {heads[0]} heads of {a.name}")
    if t.pipeline_parallel > a.layers:
        raise InputError(f"pipeline_parallel {t.pipeline_parallel} exceeds the {a.layers} layers of {a.name}")
    if t.expert_parallel > 1 and (a.experts is None or a.experts.experts % t.expert_parallel):
        number = a.experts.experts if a.experts else 0
        raise InputError(f"expert_parallel {t.expert_parallel} does not divide the {number} experts of {a.name}")
    if t.gpus % t.expert_parallel:
        raise InputError(f"expert_parallel {t.expert_parallel} does not divide {t.gpus} GPUs")


def _check_memory(t: Trainer) -> None:
    room = t.gpu.usable_memory
    if room is None:
        return
    m = training_memory(t)
    total = sum(m.values())
    if total <= room:
        return
    shown = ", ".join(f"{name} {value / 1e9:.3g} GB" for name, value in m.items() if value > 0)
    raise InputError(
        f"training {t.architecture.name} needs {total / 1e9:.4g} GB on each of {t.gpus} GPUs ({shown}), "
        f"{(total - room) / 1e9:.3g} GB more than the {room / 1e9:.4g} GB of {t.gpu.name or 'the GPU'}",
        remedy=f"{' or '.join(_memory_remedies(t, room)) or 'use more GPUs'}",
    )


def _memory_remedies(t: Trainer, room: float) -> list[str]:
    """Single changes that make it fit."""
    tries: list[tuple[str, dict[str, Any]]] = [("use sharding = 'full'", {"sharding": "full"})]
    tries += [(f"use {k * t.gpus} GPUs", {"gpus": k * t.gpus}) for k in (2, 4, 8, 16)]
    tries += [("recompute activations in full", {"recompute": "full"}), ("offload activations", {"offload": True})]
    if t.micro_batch_tokens:
        halves = [t.micro_batch_tokens // 2**k for k in (1, 2, 3, 4) if t.micro_batch_tokens >= 2**k]
        tries += [(f"lower micro_batch_tokens to {n}", {"micro_batch_tokens": n}) for n in halves]
    if t.lora_rank is None:
        tries.append(("train adapters of rank 16", {"lora_rank": 16}))
    said: dict[str, str] = {}
    for text, change in tries:
        key = next(iter(change))
        fits = sum(training_memory(replace(t, **change)).values()) <= room
        if fits and key not in said and change[key] != getattr(t, key):
            said[key] = text
    return list(said.values())


def training_memory(t: Trainer, *, length: float = 4096.0) -> dict[str, float]:
    """Bytes on each GPU while training.

    Parameters
    ----------
    t : Trainer
    length : float [tokens]
        Of a sequence, where micro-batches are counted in sequences.

    Returns
    -------
    dict of str to float [B]
        'states', 'gathered', 'kept activations', and 'at work': a layer or the logits, whichever is larger.
    """
    a = t.architecture
    tokens = float(t.micro_batch_tokens or (t.micro_batch_sequences or 1) * length)
    tokens /= t.tensor_parallel * t.context_parallel
    kept, trained = t.kept_parameters, t.trained_parameters
    own = rank_share(t)
    spread = 1 / t.gpus if t.sharding == "full" else own
    moments = 1 / t.gpus if t.sharding != "none" else own
    states = (t.weight_bytes * kept + t.gradient_bytes * trained) * spread + t.optimizer_bytes * trained * moments
    gathered = 0.0
    if t.sharding == "full" and t.gpus > 1:
        layer = _layer_parameters(t) / t.tensor_parallel
        gathered = 2 * ROW_BYTES * layer + (t.gradient_bytes * layer if t.lora_rank is None else 0.0)
    # A stage holds layers/pp of as many micro-batches as there are stages: all layers of one.
    depth = a.layers
    stored = ROW_BYTES * matrix_width(a) * tokens
    held = (0.0 if t.offload else ROW_BYTES * a.hidden * tokens * depth) if t.recompute == "full" else stored
    layer = (2 if t.recompute == "full" else 1) * stored / depth
    logits = PLAIN_LOGIT_BYTES * a.vocab * tokens if t.loss == "plain" else 0.0
    return {"states": states, "gathered": gathered, "kept activations": held, "at work": max(layer, logits)}


def rank_share(t: Trainer) -> float:
    """Share of the parameters on one GPU where data-parallel ranks hold copies [1].

    Tensor and pipeline parallelism divide all of them, expert parallelism the routed experts beyond that.
    """
    a, e = t.architecture, t.architecture.experts
    every = float(total_parameters(a))
    routed = float(e.layers * e.experts * e.expert_parameters) if e else 0.0
    rest = (every - routed) / t.tensor_parallel
    return (rest + routed / max(t.tensor_parallel, t.expert_parallel)) / t.pipeline_parallel / every


def _layer_parameters(t: Trainer) -> float:
    """Mean parameters of a layer that one GPU gathers."""
    a = t.architecture
    e = a.experts
    routed = e.layers * e.experts * e.expert_parameters / t.expert_parallel if e else 0.0
    return (body_parameters(a) + routed) / a.layers


def micro_batch_work(
    t: Trainer, units: Units, *, tokens: Any, length: Any, length_cv: Any = 0.0, forward_only: bool = False
) -> Work:
    """What one GPU does in a micro-batch.

    Parameters
    ----------
    t : Trainer
    units : Units
    tokens : array_like, any shape [tokens]
        Of the micro-batch on a data-parallel rank, padding included.
    length, length_cv : array_like, broadcastable [tokens], [1]
    forward_only : bool

    Returns
    -------
    Work
    """
    a = t.architecture
    n = np.asarray(tokens, dtype=np.float64)
    split = t.rank_gpus
    flop, byte = n / split / t.peak, n / split / float(t.gpu.memory_bandwidth or 0.0)
    width = matrix_width(a) if t.lora_rank is not None else 0.0
    e = a.experts
    routed_width = e.layers * e.per_token * sum(m.inputs + m.outputs for m in e.matrices) if e else 0
    logits = units.logits * LOGIT_BYTES * a.vocab * byte
    # Forward, recomputation, and both gradients of an adapter.
    adapters = 2 * units.element * (t.lora_rank or 0) * width
    # A critic's head is one row.
    weights = 2 * (units.product * body_parameters(a) + units.head * head_parameters(a)) + adapters
    loops = e.layers * e.experts / t.expert_parallel / t.pipeline_parallel if e and not t.grouped_experts else 0.0
    copies = 0.0 if not t.offload or forward_only else 2 * ROW_BYTES * a.layers * a.hidden
    return Work(
        products=flop * weights,
        attention=flop * units.attention * attention_flops(a, length, length_cv),
        experts=flop * 2 * units.product * routed_parameters(a),
        element=byte * units.element * ROW_BYTES * a.layers * a.hidden,
        routed=byte * units.element * ROW_BYTES * routed_width,
        adapter=byte * units.element * ROW_BYTES * width,
        logits_rl=logits if t.loss == "rl" else 0.0,
        logits_plain=logits if t.loss == "plain" else 0.0,
        host=copies * n / split / float(t.gpu.host_bandwidth or math.inf),
        gathered=_gathered_bytes(t, forward_only) / t.link,
        exchanged=_exchanged_seconds(t, n, units),
        layers=a.layers / t.pipeline_parallel,
        loops=loops,
    )


def _gathered_bytes(t: Trainer, forward_only: bool) -> float:
    """Bytes per GPU and micro-batch of sharded weights, forward and backward, and of gradients scattered again."""
    if t.sharding != "full" or t.data_parallel * t.context_parallel == 1:
        return 0.0
    ranks = t.data_parallel * t.context_parallel
    share = (ranks - 1) / ranks / (t.tensor_parallel * t.pipeline_parallel)
    held = _layer_parameters(t) * t.architecture.layers
    passes = 1.0 if forward_only else 2.0
    gradients = 0.0 if forward_only else t.gradient_bytes * (t.trained_parameters if t.lora_rank else held)
    return share * (passes * ROW_BYTES * held + gradients)


def _exchanged_seconds(t: Trainer, tokens: Any, units: Units) -> Any:
    """Seconds at the link's datasheet of all-reduces of tensor parallelism and all-to-alls of experts.

    Two all-reduces per layer and pass over it, each 2 (n-1)/n of the rows, within a node; dispatch and combine of k
    rows per token and pass for experts on other GPUs.
    """
    a = t.architecture
    rows = tokens / t.context_parallel * ROW_BYTES * a.hidden / t.pipeline_parallel
    near = float(t.gpu.link_bandwidth or t.gpu.host_bandwidth or math.inf)
    seconds = 2 * a.layers * units.element * rows * 2 * (1 - 1 / t.tensor_parallel) / near
    if a.experts is not None and t.expert_parallel > 1:
        inside = t.expert_parallel <= (t.gpu.node_size or 8)
        away = 1 - 1 / t.expert_parallel
        sent = 2 * a.experts.layers * units.element * a.experts.per_token * rows / t.tensor_parallel * away
        seconds = seconds + sent / (near if inside else t.link)
    return seconds
