"""What a plan's system would do otherwise: twice the GPUs, another division of them; where decode turns compute-bound.

Throughput is that of the forecast's median: every stage at the middle of its model's error, half of what a framework
adds growing with the stages and half the same for every step. A change keeps that fixed part, since nothing measured
says what more GPUs make of it. Generation is simulated anew for each of them, over the same lengths.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from batchsim.calibrate.specified import Specified, generation_error, synchronisation, system_at, training_seconds
from batchsim.errors import InputError
from batchsim.system.pipeline.frameworks import FRAMEWORK_FACTOR
from batchsim.system.pipeline.specified import best_split, compose, generation_table
from batchsim.system.roofline import ridge
from batchsim.system.training import training_error

Array = NDArray[np.float64]
SPLITS = 16
"""Divisions of the GPUs that are tried."""


def ridge_batches(system: Specified) -> dict[str, float | None]:
    """Sequences of a replica at which its products turn compute-bound, of dense layers and of experts.

    Parameters
    ----------
    system : Specified

    Returns
    -------
    dict
        `dense` and `experts` [sequences], None where there is no such part.
    """
    if system.generation.deployment is None:
        return {"dense": None, "experts": None}
    found = ridge(system.generation.deployment)
    pairs = zip(found["part"].values, found["ridge_batch"].values, strict=True)
    return {str(part): float(n) if np.isfinite(n) else None for part, n in pairs}


def what_if(system: Specified, rollout_batch: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """What other GPUs and another division of them would change at one batch, at the middle of the model's errors.

    Where responses grow, halfway to the target.

    Parameters
    ----------
    system : Specified
    rollout_batch : int [responses]
    seed : int
        Of the lengths, common to all.

    Returns
    -------
    list of dict
        `change` in words, `mode`, `generation_gpus`, `training_gpus`, `throughput` [responses/s] and its
        `throughput_ratio` to the plan's own, first of all the plan itself. A change that does not fit is left out.
    """
    system = system_at(system, 0.5)
    modelled, source = training_seconds(system)
    # At the middle of `framework_extra`, half of what a framework adds is fixed.
    half = (FRAMEWORK_FACTOR - 1) / 2
    # Times in units of the generation's own middle error, which leaves what is simulated as it is.
    unit = (1 + half) * math.sqrt(math.prod(generation_error(system)))
    factor = (1 + half) * math.sqrt(math.prod(training_error())) if source else 1.0
    fixed = 0.0

    def overhead(training: int) -> float:
        copied = FRAMEWORK_FACTOR * synchronisation(system, training)
        return fixed + (system.plan.engine.overhead_time + copied) / unit

    def seconds(batches: Array, gpus: int) -> Array:
        return modelled(batches, gpus) * factor / unit

    def stages(batch: int, generating: int, training: int) -> tuple[xr.Dataset, Array]:
        table = generation_table(
            system.generation, rollout_batch=[batch], gpus=generating, mode=system.mode, draws=2, seed=seed
        )
        return table, seconds(np.array([float(batch)]), training)

    def middle(generating: int, training: int) -> float:
        table, trained = stages(rollout_batch, generating, training)
        ds = compose(table, train_time=trained, overhead_time=overhead(training))
        return float(ds["throughput"].values[0])

    try:
        table, trained = stages(int(system.recipe.rollout_batch), system.generation_gpus, system.training_gpus)
        alone = compose(table, train_time=trained if source else 0.0)["step_time"].values[0]
        fixed = float(alone) * half / (1 + half)
        own = middle(system.generation_gpus, system.training_gpus)
    except InputError:
        # A batch too small for the GPUs that train.
        return []
    rows = [("the plan", system.mode, system.generation_gpus, system.training_gpus, own)]
    twice = 2 * system.generation_gpus, 2 * system.training_gpus
    with suppress(InputError):
        rows.append(("twice the GPUs", system.mode, *twice, middle(*twice)))
    apart = system.mode == "async"
    every = system.generation_gpus + (system.training_gpus if system.is_split else 0)
    try:
        split = best_split(
            system.generation,
            gpus=every,
            rollout_batch=rollout_batch,
            train_time=seconds,
            overhead_time=overhead,
            train_step=_rank(system),
            most=SPLITS,
            seed=seed,
        )
        best = split.sel(split=split.attrs["best"])
        name = "the best split" if apart else "asynchronous generation on the best split"
        rows.append((name, "async", split.attrs["best"], int(best["training_gpus"]), float(best["throughput"])))
    except InputError:
        pass
    return [
        {
            "change": change,
            "mode": mode,
            "generation_gpus": int(generating),
            "training_gpus": int(training),
            "throughput": q / unit,
            "throughput_ratio": q / own,
        }
        for change, mode, generating, training, q in rows
    ]


def _rank(system: Specified) -> int:
    t = system.plan.trainer
    return t.tensor_parallel * t.pipeline_parallel * t.context_parallel
