r"""Weight synchronisation: the bytes of the served weights over the link that carries them.

    broadcast    latency + bytes/(share link)            NCCL, pipelined: however many GPUs receive
    network      the same over the network of the trainer's GPUs that send, `senders` of them in parallel
    colocated    each engine GPU's shard is gathered within the node and copied once in memory
    host         through pinned memory and back, once out and once in
    file         written and read again: 1.6 GB/s is what trainers that save a full model reached (`validate training`)

LoRA sends its adapters alone. Names, layouts and quantisation cost time besides, per tensor, which `latency` times
`tensors` holds: with a few hundred tensors at 10 us it is small, with conversion on the host it is not.

References
----------
.. [1] prime-rl (Apache-2.0), commit 559b447; verl (Apache-2.0), commit 1dda039: checkpoint-engine table.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchsim.errors import InputError, nearest
from batchsim.specs.gpu import GPU
from batchsim.system.training.efficiency import LINK_SHARE

ROUTES = ("broadcast", "network", "colocated", "host", "file")
FILE_BANDWIDTH = 1.6e9
"""B/s of writing a full model: median of the benchmark's full updates, whose throughput counts it."""
TENSOR_LATENCY = 2e-5
HOST_SHARE = 0.8


def sync_seconds(
    weight_bytes: ArrayLike,
    gpu: GPU,
    *,
    route: str = "broadcast",
    tensor_parallel: int = 1,
    senders: int = 1,
    network_bandwidth: float | None = None,
    file_bandwidth: float = FILE_BANDWIDTH,
    tensors: int = 400,
) -> NDArray[np.float64]:
    """Time for new weights to reach the engine.

    Parameters
    ----------
    weight_bytes : array_like, any shape [B]
        Of one copy as served, or of adapters alone.
    gpu : GPU
    route : {'broadcast', 'network', 'colocated', 'host', 'file'}
    tensor_parallel : int [GPU]
        Of a replica: each of its GPUs takes its share.
    senders : int [GPU]
        Trainer GPUs that send at the same time across the network.
    network_bandwidth : float or None [B/s]
        Per GPU, one direction.
    file_bandwidth : float [B/s]
    tensors : int
        Of the model, each with a latency.

    Returns
    -------
    ndarray [s]

    Raises
    ------
    InputError
        For an unknown route, a bandwidth that is missing, or a number out of bounds.
    """
    size = np.asarray(weight_bytes, dtype=np.float64)
    if not np.all((size >= 0) & (size <= 1e15)):
        raise InputError(f"weight_bytes {size.reshape(-1)[0]:g} is outside [0, 1e15] B")
    if route not in ROUTES:
        raise InputError(f"unknown route '{route}'", remedy=nearest(route, ROUTES))
    for name, value in (("tensor_parallel", tensor_parallel), ("senders", senders), ("tensors", tensors)):
        if value < 1:
            raise InputError(f"{name} {value} is below 1")
    fixed = TENSOR_LATENCY * tensors
    if route == "file":
        return fixed + 2 * size / _known("file_bandwidth", file_bandwidth)
    if route == "network":
        return fixed + size / (LINK_SHARE * senders * _known("network_bandwidth", network_bandwidth))
    if route == "host":
        return fixed + 2 * size / tensor_parallel / (HOST_SHARE * _known("host_bandwidth", gpu.host_bandwidth))
    link = LINK_SHARE * _known("link_bandwidth", gpu.link_bandwidth)
    if route == "broadcast":
        return fixed + size / link
    copied = 2 * size / tensor_parallel / _known("memory_bandwidth", gpu.memory_bandwidth)
    return fixed + size / tensor_parallel / link + copied


def _known(name: str, value: float | None) -> float:
    if value is None or not 0 < value <= 1e15:
        raise InputError(
            f"this route needs {name}" + ("" if value is None else f", not {value:g}"), remedy=f"give {name} in B/s"
        )
    return float(value)
