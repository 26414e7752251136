"""The GPUs of a plan: how many, their memory and their price."""

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
        Of one GPU.
    memory_bandwidth : float or None [B/s]
    peak_flops : float or None [FLOP/s]
        Dense.
    price : float or None [USD/(GPU*h)]
    """

    name: str = ""
    count: Count | None = None
    generation_count: Count | None = None
    memory: Bytes | None = None
    memory_bandwidth: BytesPerSecond | None = None
    peak_flops: FlopPerSecond | None = None
    price: Price | None = None
