r"""What frameworks take beyond the work of their stages: weights that travel far below the link, and steps that last.

    sync     t = bytes/(rate n)          bytes of one bf16 copy, n GPUs that train
    step     t = f (stages + sync)       f: what no stage accounts for

A refit gathers every parameter from its shards, renames and often re-packs it, and loads it into the engine: work of
the training GPUs, not of the link (`training.sync` has the link's own time, a hundredth of it). Twelve published times
of two frameworks, 8 to 64 GPUs and 8 to 235 billion parameters, give a rate of .24 GB/s per training GPU, each of them
within a factor of 4 (`data/measured/weight_sync.csv`; a test compares).

A printed step of NeMo-RL takes 1.5 times what its stages are predicted to take, every one of 18 longer than predicted:
sleep and wake of the engine, data between processes, rewards, losses of what the stage models leave out. How much of it
is which, the tables do not say, nor how much of it every step costs alike whatever its batch: that share is drawn
between none and all (`framework_extra`), which is in the interval of every r_q. `batchsim validate rl-steps` scores the
factor on models that it did not see, and a test compares.

References
----------
.. [1] NVIDIA-NeMo/RL issue 959 (refit); verl, docs/advance/fully_async.md (checkpoint-engine ablation).
.. [2] NVIDIA-NeMo/RL, performance summary of v0.6: step times of 18 rows.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from batchsim.errors import InputError

FRAMEWORK_RATE = 0.24e9
"""B/s of weights per GPU that trains: geometric mean of the twelve times."""
FRAMEWORK_SPREAD = 1.99
"""Geometric standard deviation of a single framework and model about it."""

FRAMEWORK_FACTOR = 1.51
"""Measured over predicted steps [1]: geometric mean of 18."""
FRAMEWORK_FACTOR_SPREAD = 1.32
"""Geometric standard deviation of one of them."""


def framework_factor(draws: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draws of what a framework's step takes over its stages.

    Parameters
    ----------
    draws : int
    rng : numpy.random.Generator

    Returns
    -------
    ndarray, (draws,) [1]
    """
    spread = math.log(FRAMEWORK_FACTOR_SPREAD) * rng.standard_normal(draws)
    return np.asarray(FRAMEWORK_FACTOR * np.exp(spread))


def framework_extra(draws: int, rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Draws of the factor, divided into what grows with the stages and what every step costs alike.

    Parameters
    ----------
    draws : int
    rng : numpy.random.Generator

    Returns
    -------
    proportional, fixed : ndarray, (draws,) [1]
        Of the stages of each batch, and of those of the reference; their sum is the factor at the reference.
    """
    factor = framework_factor(draws, rng)
    fixed = rng.random(draws) * np.maximum(factor - 1, 0.0)
    return factor - fixed, fixed


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
