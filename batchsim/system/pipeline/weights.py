r"""New weights to the engine, as frameworks do it: far below the link.

    t = bytes/(rate n)          bytes of one bf16 copy, n GPUs that train

A refit gathers every parameter from its shards, renames and often re-packs it, and loads it into the engine: work of
the training GPUs, not of the link (`training.sync` has the link's own time, a hundredth of it). Twelve published times
of two frameworks, 8 to 64 GPUs and 8 to 235 billion parameters, give a rate of .24 GB/s per training GPU, each of them
within a factor of 4 (`data/measured/weight_sync.csv`; a test compares).

References
----------
.. [1] NVIDIA-NeMo/RL issue 959 (refit); verl, docs/advance/fully_async.md (checkpoint-engine ablation).
"""

from __future__ import annotations

from batchsim.errors import InputError

FRAMEWORK_RATE = 0.24e9
"""B/s of weights per GPU that trains: geometric mean of the twelve times."""
FRAMEWORK_SPREAD = 1.93
"""Geometric standard deviation of a single framework and model about it."""


def framework_sync_seconds(weight_bytes: float, *, training_gpus: int) -> float:
    """Time for a framework to bring new weights to the engine.

    Parameters
    ----------
    weight_bytes : float [B]
        Of one copy.
    training_gpus : int

    Returns
    -------
    float [s]

    Raises
    ------
    InputError
        For bytes or GPUs out of bounds.
    """
    if not 0 <= weight_bytes <= 1e15 or training_gpus < 1:
        raise InputError(f"{weight_bytes:g} B of weights on {training_gpus} GPUs that train is out of bounds")
    return weight_bytes / (FRAMEWORK_RATE * training_gpus)
