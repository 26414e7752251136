r"""Time of a decode or prefill step from a model, a GPU and an engine.

A step of n sequences with s prompt tokens prefilled in it reads and multiplies

    products    every weight once, for n + s rows: max-like of bytes/(share BW) and FLOPs/(share F)
    experts     those that n + s tokens touch, U = sum_i 1 - (1 - p_i)^(n+s); uniform routing: E (1 - (1 - k/E)^(n+s))
    cache       n times the context, up to a window where a layer has one; or a constant state
    links       two all-reduces per layer, each latency + bytes/(share link); all-to-alls of data-parallel attention
    overhead    latencies of all those kernels, small kernels per layer, time per sequence, time per step

    t = sum over kernels (latency + time of bytes and FLOPs) + small kernels + n t_sequence + t_step

Throughput n/t grows with n while something shared (weights, latencies) is left to share, and the shares of t say what
binds. Memory-bound turns compute-bound at the ridge, where FLOPs per byte reach F/BW: for a dense model near n =
F w/(2 BW) rows with w bytes per weight, for experts E/k times later, never for cache reads. What this leaves out:
contexts of unequal length within a kernel (a few per cent), CUDA graphs' padding unless sizes are given, host stalls.

References
----------
.. [1] Williams, Waterman, Patterson 2009, "Roofline", CACM 52(4).
.. [2] Pope et al. 2022, "Efficiently Scaling Transformer Inference", arXiv:2211.05102.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from batchsim.errors import InputError
from batchsim.system.decode_law import DecodeLaw
from batchsim.system.roofline._kernels import step_parts, touched
from batchsim.system.roofline.deployment import Deployment, Packed, deploy, expert_popularity, pack, peak
from batchsim.system.roofline.efficiency import Efficiency, Overhead, efficiency, overhead
from batchsim.variables import set_attrs

__all__ = [
    "Deployment",
    "Efficiency",
    "Overhead",
    "batch_step_time",
    "decode_law",
    "decode_time",
    "deploy",
    "efficiency",
    "overhead",
    "prefill_time",
    "ridge",
    "step_time",
    "touched_experts",
]

PARTS = ("weight_time", "expert_time", "cache_time", "compute_time", "communication_time", "launch_time")
BINDS = {
    "weight_time": "weights",
    "expert_time": "experts",
    "cache_time": "KV cache",
    "compute_time": "compute",
    "communication_time": "communication",
    "launch_time": "overhead",
}
CHUNK = 8192.0
"""Prompt tokens of a prefill step, vLLM's default token budget on large GPUs."""
BATCH_MAX, CONTEXT_MAX = 1e6, 1e9


def step_time(
    deployment: Deployment,
    *,
    batch: ArrayLike,
    context: ArrayLike,
    prompt: ArrayLike = 0.0,
    start: ArrayLike = 0.0,
    graph_sizes: Sequence[int] | None = None,
    packed: Packed | None = None,
) -> NDArray[np.float64]:
    """Seconds of a step by part, for sequences that decode and prompt tokens that are prefilled beside them.

    Parameters
    ----------
    deployment : Deployment
    batch : array_like, any shape [sequences]
        Sequences that decode, 0 for a step of prefill alone.
    context : array_like, broadcastable [tokens]
        Mean context of those sequences.
    prompt, start : array_like, broadcastable [tokens]
        Prompt tokens in this step, and tokens of the same prompt that came before.
    graph_sizes : sequence of int or None [sequences]
        Batches that CUDA graphs were captured for: a decode batch is padded up to the next one.
    packed : Packed or None
        Of this deployment, to save packing it again.

    Returns
    -------
    ndarray, broadcast shape + (6,) [s]
        Parts in the order of `PARTS`; their sum is the step's time.

    Raises
    ------
    InputError
        For a value that is negative, not finite or absurdly large.
    """
    n, c, s, c0 = np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in (batch, context, prompt, start)))
    for name, value, most in (("batch", n, BATCH_MAX), ("context", c, CONTEXT_MAX), ("prompt", s, CONTEXT_MAX)):
        if not (np.all(value >= 0) and np.all(value <= most)):
            bad = value[~((value >= 0) & (value <= most))].flat[0]
            raise InputError(f"{name} {bad:g} is outside [0, {most:g}]")
    shape = n.shape
    arrays = packed or pack(deployment)
    parts = np.empty((n.size, len(PARTS)))
    rows, padded, contexts, prompts, starts = (np.array(v).reshape(-1) for v in (n, _padded(n, graph_sizes), c, s, c0))
    step_parts(
        rows,
        padded,
        contexts,
        prompts,
        starts,
        arrays.products,
        arrays.experts,
        arrays.popularity,
        arrays.attention,
        arrays.states,
        arrays.rest,
        parts,
    )
    return parts.reshape(*shape, len(PARTS))


def _padded(batch: NDArray[np.float64], sizes: Sequence[int] | None) -> NDArray[np.float64]:
    """Batches rounded up to a captured size; beyond the largest, as they are."""
    if not sizes:
        return batch
    known = np.sort(np.asarray(sizes, dtype=np.float64))
    at = np.searchsorted(known, batch)
    return np.where((batch > 0) & (at < known.size), known[np.minimum(at, known.size - 1)], batch)


def decode_time(
    deployment: Deployment, *, batch: ArrayLike, context: ArrayLike, graph_sizes: Sequence[int] | None = None
) -> xr.Dataset:
    """Decode steps over batches: time, its parts, tokens/s and what binds.

    Parameters
    ----------
    deployment : Deployment
    batch : array_like, (batch,) [sequences]
    context : array_like, () or (batch,) [tokens]
        Mean context.
    graph_sizes : sequence of int or None [sequences]

    Returns
    -------
    xarray.Dataset
        Over `concurrency`: `decode_step_time` [s], its parts [s], `decode_throughput` [tokens/s], `binding_limit`.

    Raises
    ------
    InputError
        For a batch below 1, or a value that `step_time` refuses.
    """
    n = np.atleast_1d(np.asarray(batch, dtype=np.float64))
    if np.any(n < 1):
        raise InputError(f"batch {n.min():g} is below 1 sequence")
    parts = step_time(deployment, batch=n, context=context, graph_sizes=graph_sizes)
    total = parts.sum(axis=-1)
    ds = xr.Dataset(
        {
            "decode_step_time": ("concurrency", total),
            "decode_throughput": ("concurrency", n / total),
            "binding_limit": ("concurrency", np.array([BINDS[PARTS[i]] for i in parts.argmax(axis=-1)])),
            **{name: ("concurrency", parts[:, i]) for i, name in enumerate(PARTS)},
        },
        coords={"concurrency": n, "context_length": ("concurrency", np.broadcast_to(context, n.shape).astype(float))},
    )
    ds.attrs = {"deployment": deployment.name, "efficiency": deployment.efficiency.source}
    return set_attrs(ds)


def batch_step_time(deployment: Deployment, contexts: ArrayLike) -> float:
    """Decode step of sequences whose contexts differ.

    Parameters
    ----------
    deployment : Deployment
    contexts : array_like, (sequence,) [tokens]
        Of every sequence in the batch.

    Returns
    -------
    float [s]
        As `step_time` for contexts of one length; a window cuts each of them, not their mean.

    Raises
    ------
    InputError
        For an empty batch or a context out of bounds.
    """
    c = np.atleast_1d(np.asarray(contexts, dtype=np.float64))
    if not c.size:
        raise InputError("a batch of no sequences has no step")
    if not (np.all(c >= 0) and np.all(c <= CONTEXT_MAX)):
        raise InputError(f"a context is outside [0, {CONTEXT_MAX:g}] tokens")
    arrays = pack(deployment)
    shared = float(step_time(deployment, batch=c.size, context=0.0, packed=arrays).sum())
    count, own, window, index = (arrays.attention[:, i, None] for i in (0, 3, 4, 5))
    return shared + float(np.sum(count * (own * np.minimum(c, window) + index * c)))


def prefill_time(deployment: Deployment, *, prompt: ArrayLike, start: ArrayLike = 0.0) -> NDArray[np.float64]:
    """Seconds to prefill prompt tokens in one step of their own.

    Parameters
    ----------
    deployment : Deployment
    prompt : array_like, any shape [tokens]
    start : array_like, broadcastable [tokens]
        Tokens of the same prompt that are already in the cache.

    Returns
    -------
    ndarray [s]
        Without the engine's prefill factor, which belongs to mixed steps.
    """
    return np.asarray(step_time(deployment, batch=0.0, context=0.0, prompt=prompt, start=start).sum(axis=-1))


def decode_law(deployment: Deployment, *, concurrency: int, graph_sizes: Sequence[int] | None = None) -> DecodeLaw:
    """The law that a rollout simulates: t_n, and seconds per token of context and of prompt.

    Parameters
    ----------
    deployment : Deployment
    concurrency : int [sequences]
        Largest batch of the table.
    graph_sizes : sequence of int or None [sequences]

    Returns
    -------
    DecodeLaw
        Equal to `step_time` for contexts of one length, exactly.

    Raises
    ------
    InputError
        For a concurrency below 1, or layers with windows of more than one size.

    Notes
    -----
    The prefill slope is the secant over `CHUNK` prompt tokens beside a full decode batch, times the engine's prefill
    factor: weights are streamed for the decode rows anyway.
    """
    if concurrency < 1:
        raise InputError(f"concurrency {concurrency} is below 1 sequence")
    arrays = pack(deployment)
    bounded = arrays.attention[np.isfinite(arrays.attention[:, 4])]
    windows = np.unique(bounded[:, 4])
    if windows.size > 1:
        raise InputError(
            f"{deployment.architecture.name} has windows of {', '.join(f'{w:g}' for w in windows)} tokens",
            remedy="the law of a rollout holds one window; use step_time",
        )
    n = np.arange(concurrency + 1, dtype=np.float64)
    base = step_time(deployment, batch=n, context=0.0, graph_sizes=graph_sizes, packed=arrays).sum(axis=-1)
    base[0] = 0.0
    full = arrays.attention[~np.isfinite(arrays.attention[:, 4])]
    beside = step_time(deployment, batch=concurrency, context=0.0, prompt=[0.0, CHUNK], packed=arrays).sum(axis=-1)
    pairs = float(np.sum(full[:, 0] * full[:, 6]))
    attended = CHUNK * (CHUNK + 1) / 2
    factor = deployment.engine.prefill_factor
    return DecodeLaw(
        step_time=np.maximum.accumulate(base),
        context_time=float(np.sum(full[:, 0] * full[:, 3]) + np.sum(arrays.attention[:, 0] * arrays.attention[:, 5])),
        window_time=float(np.sum(bounded[:, 0] * bounded[:, 3])),
        window=int(windows[0]) if windows.size else 0,
        prefill_time=factor * float(beside[1] - beside[0] - pairs * attended) / CHUNK,
        prefill_context_time=factor * pairs,
        name=deployment.name,
    )


def touched_experts(tokens: ArrayLike, *, experts: int, per_token: int, skew: float = 0.0) -> NDArray[np.float64]:
    """Experts that a batch of tokens touches, in expectation.

    Parameters
    ----------
    tokens : array_like, any shape [tokens]
        At least 1.
    experts, per_token : int
        E and k.
    skew : float [1]
        Popularity proportional to rank^-skew; 0 gives E (1 - (1 - k/E)^tokens).

    Returns
    -------
    ndarray [1]
        In [k, E].
    """
    n = np.asarray(tokens, dtype=np.float64)
    popularity = expert_popularity(experts, per_token, skew)
    flat = [touched(float(v), popularity, 1.0, 0.0)[0] for v in n.reshape(-1)]
    return np.array(flat).reshape(n.shape)


def ridge(deployment: Deployment) -> xr.Dataset:
    """Batches at which products turn from memory-bound to compute-bound.

    Parameters
    ----------
    deployment : Deployment

    Returns
    -------
    xarray.Dataset
        Over `part` ('dense', 'experts'): `ridge_batch` [sequences], where reading the weights takes as long as
        multiplying with them at the rates that kernels reach, NaN where there is no such part; `ridge_intensity`
        [FLOP/B] of the GPU, peak over bandwidth.

    Notes
    -----
    For products: n = (bytes/rate) / (seconds per row), summed over the products of a layer; for experts with all E
    touched, E/k times later at equal widths. Cache reads do not turn: their FLOPs grow with their bytes.
    """
    arrays = pack(deployment)
    layer = arrays.products[arrays.products[:, 6] == 0.0]
    dense = float(np.sum(layer[:, 0] * layer[:, 2] / layer[:, 3]) / np.sum(layer[:, 0] * layer[:, 4]))
    routed = np.nan
    if arrays.experts.size and deployment.architecture.experts is not None:
        _, per_expert, per_token, _, ranks, _, groups = arrays.experts
        routed = float(deployment.architecture.experts.experts / ranks * per_expert / (per_token * groups))
    ds = xr.Dataset(
        {
            "ridge_batch": ("part", [dense, routed]),
            "ridge_intensity": peak(deployment, "bf16")[0] / float(deployment.gpu.memory_bandwidth or np.nan),
        },
        coords={"part": ["dense", "experts"]},
    )
    return set_attrs(ds)
