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

from batchsim.errors import InputError


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
