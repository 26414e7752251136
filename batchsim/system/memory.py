r"""How many responses can decode at the same time: the KV cache and the engine's own cap.

A replica of `tensor_parallel` GPUs gives a share of its memory to the engine; what the weights
leave holds the KV cache, and every response in flight needs the cache of its prompt and of what it has
generated so far:

    C = replicas min(max_num_seqs, (share M TP - W)/(kappa L))

with M the memory of a GPU [B], W the bytes of the weights, kappa the KV bytes per token, L the mean
context of a response in flight [tokens]: its prompt and half of its response.

References
----------
.. [1] Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with
   PagedAttention", arXiv:2309.06180.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchsim.errors import InputError
from batchsim.specs.architecture import Architecture, Matrix
from batchsim.specs.counts import kv_bytes_per_token, state_bytes, window_bytes_per_sequence

CONTEXT_MAX = 1e9


def concurrency_max(
    *,
    gpus: float,
    tensor_parallel: float,
    max_num_seqs: float = math.inf,
    memory: float | None = None,
    memory_share: float = 0.9,
    weight_bytes: float | None = None,
    kv_bytes_per_token: float | None = None,
    context_length: float | None = None,
) -> tuple[float, str]:
    """Responses that can decode at the same time, and what limits them.

    Parameters
    ----------
    gpus, tensor_parallel : float [GPU]
        GPUs that generate, and GPUs of one replica.
    max_num_seqs : float [responses]
        The engine's cap per replica.
    memory : float or None [B]
        Memory of one GPU. Without it, or without any of the next four, only `max_num_seqs` binds.
    memory_share : float in (0, 1] [1]
        Share of the memory that the engine uses.
    weight_bytes : float or None [B]
        Bytes of one copy of the weights.
    kv_bytes_per_token : float or None [B/token]
    context_length : float or None [tokens]
        Mean context of a response in flight.

    Returns
    -------
    concurrency_max : float [responses]
    limit : {'max_num_seqs', 'KV memory', ''}

    Raises
    ------
    InputError
        If the weights do not fit, or no replica does.
    """
    replicas = math.floor(gpus / tensor_parallel)
    if replicas < 1:
        raise InputError(
            f"{gpus:g} GPUs hold no replica of {tensor_parallel:g} GPUs",
            remedy="lower tensor_parallel or raise the number of GPUs",
        )
    if memory is None or weight_bytes is None or kv_bytes_per_token is None or context_length is None:
        return replicas * max_num_seqs, "max_num_seqs" if math.isfinite(max_num_seqs) else ""
    free = memory_share * memory * tensor_parallel - weight_bytes
    if free <= 0:
        raise InputError(
            f"weights of {weight_bytes / 1e9:.4g} GB do not fit in {memory_share:g} of "
            f"{tensor_parallel:g} x {memory / 1e9:.4g} GB",
            remedy="raise tensor_parallel or memory_share, or use smaller weights",
        )
    held = math.floor(free / (kv_bytes_per_token * context_length))
    if held < 1:
        raise InputError(
            f"{free / 1e9:.4g} GB of KV cache hold no response of {context_length:g} tokens",
            remedy="raise tensor_parallel, or lower the response length",
        )
    return replicas * min(max_num_seqs, held), "KV memory" if held < max_num_seqs else "max_num_seqs"


CONTEXT_BYTES = 1e9
"""Of the driver's context, captured graphs and communication buffers on one GPU; vLLM logs .3 to .6 GB of graphs."""
LARGE_GPU = 70 * 2.0**30
"""vLLM's own threshold: from here on its default budget of a step is 8,192 tokens, below it 2,048."""


def engine_reserve(architecture: Architecture, *, memory: float, tensor_parallel: int = 1) -> float:
    """Bytes per GPU that an engine keeps beside weights and cache.

    Parameters
    ----------
    architecture : Architecture
    memory : float [B]
        Of one GPU, which sets the default token budget.
    tensor_parallel : int [GPU]

    Returns
    -------
    float [B]
        A fixed part, and the activations of a step's token budget: ten hidden vectors and the widest product's output
        twice, at 16 bits. 1.4 GB of Llama-3.1-8B on 24 GB, 2.6 GB on 80 GB; aiconfigurator takes 3.5 GB, inference-sim
        5.5 to 8 GiB for every model.
    """
    budget = 8192 if memory >= LARGE_GPU else 2048
    widest = max((m.outputs for m in architecture.matrices if m.reading == "token"), default=architecture.hidden)
    return CONTEXT_BYTES + 2.0 * budget * (10 * architecture.hidden + 2 * widest / tensor_parallel)


@dataclass(frozen=True, kw_only=True)
class CacheRoom:
    """Memory of one GPU of a replica, as a decode batch sees it.

    Parameters
    ----------
    weight_bytes, free_bytes : float [B]
        Weights on the GPU, and what they and the engine leave to the cache.
    token_bytes : float [B/token]
        Cache that grows with the context.
    window_bytes : float [B/token]
        Cache of layers that keep only a window.
    window : float [tokens]
    state_bytes : float [B/sequence]
        Constant state.
    memory, memory_share, reserve : float [B], [1], [B]
    tensor_parallel : int [GPU]
    cache_bits : float [bit]
    """

    weight_bytes: float
    free_bytes: float
    token_bytes: float
    window_bytes: float
    window: float
    state_bytes: float
    memory: float
    memory_share: float
    reserve: float
    tensor_parallel: int
    cache_bits: float

    def sequence_bytes(self, context: ArrayLike) -> NDArray[np.float64]:
        """Bytes that a sequence of some context holds on the GPU.

        Parameters
        ----------
        context : array_like, any shape [tokens]

        Returns
        -------
        ndarray [B]
        """
        c = np.asarray(context, dtype=np.float64)
        return np.asarray(self.token_bytes * c + self.window_bytes * np.minimum(c, self.window) + self.state_bytes)

    def concurrency_max(self, context: ArrayLike) -> NDArray[np.float64]:
        """Largest number of sequences of some mean context that fit at the same time.

        Parameters
        ----------
        context : array_like, any shape [tokens]

        Returns
        -------
        ndarray [sequences]
            Whole; 0 where not even one fits.
        """
        return np.floor(self.free_bytes / self.sequence_bytes(context))

    def blocks(self, block_size: int = 16) -> tuple[int, int]:
        """Blocks of the growing cache, and blocks that every sequence holds besides.

        Parameters
        ----------
        block_size : int [tokens]

        Returns
        -------
        blocks, fixed : int
            Windows and states are counted as the blocks of equal bytes, full from the start.
        """
        fixed = self.window_bytes * min(self.window, CONTEXT_MAX) + self.state_bytes
        block = self.token_bytes * block_size
        if block == 0:
            # Nothing grows: a block is a sequence.
            return int(self.free_bytes // fixed), 1
        return int(self.free_bytes // block), math.ceil(fixed / block)

    def remedies(self, context: float, wanted: float) -> list[str]:
        """What would let more sequences fit.

        Parameters
        ----------
        context : float [tokens]
        wanted : float [sequences]

        Returns
        -------
        list of str
            Each with the number it needs.
        """
        need = wanted * float(self.sequence_bytes(context))
        said = [f"lower the mean context to {context * self.free_bytes / need:,.0f} tokens"]
        share = (need + self.weight_bytes + self.reserve) / self.memory
        if share <= 0.97:
            said.append(f"raise the memory share to {share:.2f}")
        said.append(f"raise tensor parallelism beyond {self.tensor_parallel}")
        if self.cache_bits > 8:
            said.append("keep the cache in fp8")
        return said


def cache_room(
    architecture: Architecture,
    *,
    memory: float,
    tensor_parallel: int = 1,
    expert_parallel: int = 1,
    memory_share: float = 0.9,
    cache_bits: float = 16.0,
    reserve: float | None = None,
) -> CacheRoom:
    """Memory left to the cache of a replica.

    Parameters
    ----------
    architecture : Architecture
    memory : float [B]
        Of one GPU.
    tensor_parallel, expert_parallel : int [GPU]
    memory_share : float in (0, 1] [1]
        `gpu_memory_utilization`.
    cache_bits : float [bit]
    reserve : float or None [B]
        Activations, graphs and buffers per GPU; `engine_reserve` if None.

    Returns
    -------
    CacheRoom

    Raises
    ------
    InputError
        If the weights do not fit: by how much, and how many GPUs would hold them.
    """
    weights = weight_bytes_per_gpu(architecture, tensor_parallel=tensor_parallel, expert_parallel=expert_parallel)
    if reserve is None:
        reserve = engine_reserve(architecture, memory=memory, tensor_parallel=tensor_parallel)
    free = memory_share * memory - weights - reserve
    if free <= 0:
        raise InputError(
            f"{architecture.name} ({architecture.precision}) puts {weights / 1e9:.4g} GB of weights on each of "
            f"{tensor_parallel} GPUs; with {reserve / 1e9:.3g} GB for the engine that is {-free / 1e9:.3g} GB more "
            f"than {memory_share:g} of {memory / 1e9:.4g} GB",
            remedy=_smallest_fit(architecture, memory_share * memory - reserve),
        )
    bounded = [a for a in architecture.attention if a.window is not None and a.keeps_window]
    window = float(max((a.window or 0 for a in bounded), default=0))
    return CacheRoom(
        weight_bytes=weights,
        free_bytes=free,
        token_bytes=kv_bytes_per_token(architecture, cache_bits, tensor_parallel),
        window_bytes=window_bytes_per_sequence(architecture, None, cache_bits, tensor_parallel) / window
        if window
        else 0.0,
        window=window,
        state_bytes=state_bytes(architecture) / tensor_parallel,
        memory=memory,
        memory_share=memory_share,
        reserve=reserve,
        tensor_parallel=tensor_parallel,
        cache_bits=cache_bits,
    )


def weight_bytes_per_gpu(architecture: Architecture, *, tensor_parallel: int = 1, expert_parallel: int = 1) -> float:
    """Bytes of weights on one GPU of a replica.

    Parameters
    ----------
    architecture : Architecture
    tensor_parallel, expert_parallel : int [GPU]

    Returns
    -------
    float [B]
        Replicated matrices in full; experts over whichever of the two is larger.
    """
    own = sum(m.bytes for m in architecture.matrices if m.sharding == "replicated" and not _shared(architecture, m))
    split = sum(m.bytes for m in architecture.matrices if m.sharding != "replicated" and not _shared(architecture, m))
    experts = architecture.experts
    routed = experts.layers * experts.experts * experts.expert_bytes if experts else 0.0
    return own + split / tensor_parallel + routed / max(tensor_parallel, expert_parallel) + 2.0 * architecture.vectors


def _shared(architecture: Architecture, m: Matrix) -> bool:
    # A tied head is the embedding's memory.
    return architecture.tied and m.reading == "sequence"


def _smallest_fit(architecture: Architecture, room: float) -> str:
    for ranks in (2, 4, 8, 16, 32, 64):
        if weight_bytes_per_gpu(architecture, tensor_parallel=ranks, expert_parallel=ranks) < room:
            return f"use {ranks} GPUs, or a checkpoint of fewer bits"
    return "use a checkpoint of fewer bits"
