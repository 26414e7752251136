r"""FLOPs and bytes of training one token, and the seconds that a micro-batch of them takes.

With P parameters in matrices that a token reads (k of E experts), c a layer's FLOPs per token of context and a the
mean number of tokens that a token attends to (s/2 for causal sequences of s tokens, less under a window):

    forward     2 P + sum c a
    backward    twice that; for a frozen matrix (LoRA) only its input's gradient, 2 P
    recompute   the forward again: 'full' all of it, 'selective' the attention alone, 'none' nothing
    update      6 P + 3 sum c a  [FLOP/token], times 4/3 under full recomputation

Sequences of unequal length attend to more: sum s^2/(2 sum s) = s (1 + cv^2)/2 with cv their coefficient of variation.
A micro-batch on one GPU takes

    t = max(FLOPs/(share F) + passes bytes/BW + layers t_layer + offload/(share host), gathered bytes/(share link))
        + exchanges of tensor and expert parallelism

Gathering of sharded weights overlaps with compute. Products of hardware FLOPs over shares up to 1 are at least the
FLOPs over the peak. What flash attention computes again in its own backward pass is inside its share.

References
----------
.. [1] Kaplan et al. 2020, arXiv:2001.08361 (6 N); Narayanan et al. 2021, arXiv:2104.04473, eq. 3 (with attention).
.. [2] Korthikanti et al. 2022, arXiv:2205.05198 (selective recomputation, sequence parallelism).
.. [3] Hu et al. 2021, arXiv:2106.09685 (LoRA).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchsim.errors import InputError, nearest
from batchsim.specs.architecture import Architecture

Array = NDArray[np.float64]
RECOMPUTE = ("none", "selective", "full")
ROW_BYTES = 2.0
"""Of an element of activations and of weights as multiplied."""
LOGIT_BYTES = 4.0
LENGTH_MAX = 1e8


@dataclass(frozen=True, kw_only=True)
class Units:
    """How often a forward pass's work is done: forward 1, recomputation 0 or 1, backward 1 or 2.

    Parameters
    ----------
    product, attention, head : float [1]
        In FLOPs of a forward pass.
    element, logits : float [1]
        In passes over memory.
    """

    product: float
    attention: float
    head: float
    element: float
    logits: float


def pass_units(*, recompute: str = "full", lora: bool = False, forward_only: bool = False, loss: str = "rl") -> Units:
    """Units of an update or of a forward pass.

    Parameters
    ----------
    recompute : {'none', 'selective', 'full'}
    lora : bool
        Matrices are frozen: backward computes the gradient of their input alone.
    forward_only : bool
        Log-probabilities or values.
    loss : {'rl', 'plain', 'value'}
        That of reinforcement learning is computed in chunks of tokens, whose logits are computed again backward;
        a value has no logits.

    Returns
    -------
    Units

    Raises
    ------
    InputError
        For an unknown recomputation.
    """
    if recompute not in RECOMPUTE:
        raise InputError(f"unknown recomputation '{recompute}'", remedy=nearest(recompute, RECOMPUTE))
    has_logits = 0.0 if loss == "value" else 1.0
    if forward_only:
        return Units(product=1.0, attention=1.0, head=has_logits, element=1.0, logits=has_logits)
    again = 1.0 if recompute == "full" else 0.0
    backward = 1.0 if lora else 2.0
    chunked = 1.0 if loss == "rl" else 0.0
    return Units(
        product=1.0 + again + backward,
        attention=3.0 + (0.0 if recompute == "none" else 1.0),
        head=has_logits * (1.0 + chunked + backward),
        element=3.0 + again,
        logits=has_logits * (3.0 + chunked),
    )


def mean_attended(length: ArrayLike, *, window: float | None = None, cv: ArrayLike = 0.0) -> Array:
    """Tokens that a token of a causal sequence attends to, on average.

    Parameters
    ----------
    length : array_like, any shape [tokens]
        Mean length of a sequence, prompt included.
    window : float or None [tokens]
        Most that a layer reads.
    cv : array_like, broadcastable [1]
        Coefficient of variation of the lengths; under a window sequences are taken as long as the mean token's.

    Returns
    -------
    ndarray [tokens]
        s (1 + cv^2)/2, or w - w^2/(2 s) beyond a window w.
    """
    own = np.asarray(length, dtype=np.float64) * (1 + np.asarray(cv, dtype=np.float64) ** 2)
    if window is None:
        return np.asarray(own / 2)
    return np.asarray(np.where(own <= window, own / 2, window - window**2 / (2 * np.maximum(own, window))))


def body_parameters(architecture: Architecture) -> float:
    """Parameters [1] of matrices that every token reads, head, routed experts and embedding left out."""
    return float(sum(m.parameters for m in architecture.matrices if m.reading == "token"))


def routed_parameters(architecture: Architecture) -> float:
    """Parameters [1] of the experts that a token is routed to."""
    e = architecture.experts
    return float(e.layers * e.per_token * e.expert_parameters) if e else 0.0


def head_parameters(architecture: Architecture) -> float:
    """Parameters [1] of the head."""
    return float(sum(m.parameters for m in architecture.matrices if m.reading == "sequence"))


def adapter_parameters(architecture: Architecture, rank: int) -> float:
    """Parameters [1] of adapters of a rank on every matrix of the layers, routed experts included: r (in + out)."""
    e = architecture.experts
    own = sum(m.count * (m.inputs + m.outputs) for m in architecture.matrices if m.reading == "token")
    routed = e.layers * e.experts * sum(m.inputs + m.outputs for m in e.matrices) if e else 0
    return float(rank * (own + routed))


def attention_flops(architecture: Architecture, length: ArrayLike, cv: ArrayLike = 0.0) -> Array:
    """FLOPs of attention and recurrences per token and forward pass [FLOP/token], shape of `length`."""
    total = np.zeros(np.broadcast_shapes(np.shape(length), np.shape(cv)))
    for a in architecture.attention:
        per = a.context_flops if a.prefill_flops is None else a.prefill_flops
        total = total + a.count * per * mean_attended(length, window=a.window, cv=cv)
        total = total + a.count * a.index_flops * mean_attended(length, cv=cv)
    return np.asarray(total + sum(s.count * s.flops for s in architecture.states))


def training_flops(
    architecture: Architecture,
    *,
    length: ArrayLike,
    length_cv: ArrayLike = 0.0,
    recompute: str = "none",
    lora_rank: int | None = None,
    forward_only: bool = False,
    loss: str = "plain",
) -> Array:
    """FLOPs to train on one token.

    Parameters
    ----------
    architecture : Architecture
    length : array_like, any shape [tokens]
        Mean length of a sequence, prompt included.
    length_cv : array_like, broadcastable [1]
    recompute : {'none', 'selective', 'full'}
        'none' gives the model's FLOPs, of which MFU is the share.
    lora_rank : int or None [1]
    forward_only : bool
    loss : {'rl', 'plain', 'value'}

    Returns
    -------
    ndarray [FLOP/token]

    Raises
    ------
    InputError
        For a length that is not positive and finite, or an unknown recomputation.

    Notes
    -----
    6 P + 3 sum c a for an update of all parameters, 2 P + sum c a forward; see the module.

    Examples
    --------
    >>> from batchsim.specs.models import find_model
    >>> f"{float(training_flops(find_model('Llama-3.1-8B'), length=4096)):.4g}"
    '4.825e+10'
    """
    s = np.asarray(length, dtype=np.float64)
    if not (np.all(s > 0) and np.all(s <= LENGTH_MAX)):
        raise InputError(f"length {s[~((s > 0) & (s <= LENGTH_MAX))].flat[0]:g} is outside (0, {LENGTH_MAX:g}] tokens")
    u = pass_units(recompute=recompute, lora=lora_rank is not None, forward_only=forward_only, loss=loss)
    weights = u.product * (body_parameters(architecture) + routed_parameters(architecture))
    weights += u.head * head_parameters(architecture)
    adapters = 0.0
    if lora_rank is not None:
        adapters = u.element * _adapters_read(architecture, lora_rank)
    return np.asarray(2 * (weights + adapters) + u.attention * attention_flops(architecture, s, length_cv))


def _adapters_read(architecture: Architecture, rank: int) -> float:
    """Adapter parameters that a token reads."""
    return rank * matrix_width(architecture)


def matrix_width(architecture: Architecture) -> float:
    """Inputs and outputs of the matrices that a token passes: elements that adapters read and write."""
    e = architecture.experts
    own = sum(m.count * (m.inputs + m.outputs) for m in architecture.matrices if m.reading == "token")
    routed = e.layers * e.per_token * sum(m.inputs + m.outputs for m in e.matrices) if e else 0
    return float(own + routed)


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one GPU does in a micro-batch: seconds at the datasheet's rates, and counts.

    Parameters
    ----------
    products, attention, experts : array_like [s]
        FLOPs over the peak.
    element, routed, adapter, logits_rl, logits_plain : array_like [s]
        Bytes of one pass, times the passes' units, over the memory bandwidth.
    host : array_like [s]
        Offloaded bytes, out and back, over the host's link.
    gathered, exchanged : array_like [s]
        Bytes over the link between GPUs: what overlaps with compute, and what does not.
    layers, loops : array_like [1]
        Layers, and experts of layers that run one after the other.
    """

    products: Any
    attention: Any
    experts: Any
    element: Any
    routed: Any
    adapter: Any
    logits_rl: Any
    logits_plain: Any
    host: Any
    gathered: Any
    exchanged: Any
    layers: Any
    loops: Any


PARTS = ("compute_time", "element_time", "launch_time", "offload_time", "gather_wait", "exchange_time")


def stack_work(works: Sequence[Work]) -> Work:
    """One `Work` with an entry per given one."""
    return Work(**{f.name: np.array([float(getattr(w, f.name)) for w in works]) for f in fields(Work)})


def micro_batch_parts(work: Work, rates: Any) -> Array:
    """Seconds of a micro-batch by part.

    Parameters
    ----------
    work : Work
    rates : TrainingEfficiency or the like
        Its shares, passes and times; scalars or arrays.

    Returns
    -------
    ndarray, shape of the work + (6,) [s]
        Products, attention and experts; passes over memory; launches; offloading; what gathering of weights takes
        longer than all of these; exchanges.
    """
    compute = work.products / rates.product_share + work.attention / rates.attention_share
    compute = compute + work.experts / rates.expert_share
    element = rates.element_passes * work.element + rates.expert_passes * work.routed
    element = element + rates.adapter_passes * work.adapter
    element = element + rates.logit_passes_rl * work.logits_rl + rates.logit_passes_plain * work.logits_plain
    launch = rates.layer_time * work.layers + rates.expert_time * work.loops
    offload = work.host / rates.host_share
    busy = compute + element + launch + offload
    wait = np.maximum(work.gathered / rates.link_share - busy, 0.0)
    parts = (compute, element, launch, offload, wait, work.exchanged / rates.link_share)
    return np.stack(np.broadcast_arrays(*(np.asarray(p, dtype=np.float64) for p in parts)), axis=-1)
