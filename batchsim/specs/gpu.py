r"""The GPUs of a plan: how many, what one of them can do, and their price.

A decode step streams weights and KV cache at `memory_bandwidth`, multiplies at the dense rate of the precision
it computes in, and joins shards over `link_bandwidth`. Three conventions keep datasheets comparable:

- FLOP/s are DENSE. Sheets of NVIDIA print twice as much, "with sparsity", for all but the oldest parts.
- Links are UNIDIRECTIONAL and per GPU. "NVLink 900 GB/s" counts both directions, and is 450 GB/s here.
- Bytes are decimal and as printed. Of an "80 GB" GPU the driver shows 80 GiB, 7 % more, part of which it keeps.

The ridge, peak_flops / memory_bandwidth [FLOP/B], is the arithmetic intensity above which a kernel waits for the
tensor cores and no longer for the memory. `specs.gpus` holds the catalogue.

References
----------
.. [1] S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for multicore
   architectures", Communications of the ACM 52(4), 2009.
"""

from __future__ import annotations

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from batchsim.specs.quantity import Bytes, BytesPerSecond, Count, FlopPerSecond, Price


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class GPU:
    """Identical GPUs.

    Parameters
    ----------
    name : str
    count : int or None [GPU]
        All GPUs of the run, for GPU-hours.
    generation_count : int or None [GPU]
        Those that generate; all of them if not given.
    memory : float or None [B]
        Of one GPU, as the datasheet prints it.
    driver_memory : float or None [B]
        As the driver reports it: usually more, since a sheet's GB are nearer to GiB.
    memory_bandwidth : float or None [B/s]
    peak_flops : float or None [FLOP/s]
        Dense, in bf16 with fp32 accumulation.
    fp8_flops, fp4_flops : float or None [FLOP/s]
        Dense; None where the hardware has no such tensor cores, or its sheet says nothing of them.
    link_bandwidth : float or None [B/s]
        To its peers within the node, one direction, all links of one GPU together.
    node_size : int or None [GPU]
        Joined by that link; None where it is the server's choice, as for cards on PCIe.
    host_bandwidth : float or None [B/s]
        To the host's memory, one direction.
    price : float or None [USD/(GPU*h)]
    """

    name: str = ""
    count: Count | None = None
    generation_count: Count | None = None
    memory: Bytes | None = None
    driver_memory: Bytes | None = None
    memory_bandwidth: BytesPerSecond | None = None
    peak_flops: FlopPerSecond | None = None
    fp8_flops: FlopPerSecond | None = None
    fp4_flops: FlopPerSecond | None = None
    link_bandwidth: BytesPerSecond | None = None
    node_size: Count | None = None
    host_bandwidth: BytesPerSecond | None = None
    price: Price | None = None

    @property
    def usable_memory(self) -> float | None:
        """Memory that an engine can share out [B]: the driver's figure, or the datasheet's where none is known."""
        return self.driver_memory or self.memory

    @property
    def ridge(self) -> float | None:
        """Arithmetic intensity where bf16 compute takes as long as memory [FLOP/B]; None if either is not given."""
        if self.peak_flops is None or self.memory_bandwidth is None:
            return None
        return self.peak_flops / self.memory_bandwidth
