r"""The system side from specifications alone: model, GPU, engine and lengths in a plan, no log.

The stage times are curves over the rollout batch: generation simulated over the roofline's decode law, training
modelled from FLOPs and bytes. What they are wrong by is what the validations found on data that no constant saw:

    t_gen  = f_g (R/R_m)^e t_gen(R)        log f_g normal with the quantiles of `validate serving`, e ~ N(0, slope error)
    t_train = f_t t_train(R)               log f_t normal with the quantiles of `validate training`

so that throughput ratios carry the error of the curves' shape (e) and of the balance between the stages (f_g/f_t),
and absolute times both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from batchsim.errors import InputError
from batchsim.plan import Plan
from batchsim.specs.gpu import GPU
from batchsim.specs.gpus import find_gpu
from batchsim.specs.huggingface import quantised
from batchsim.specs.models import find_model
from batchsim.specs.recipe import Recipe
from batchsim.system.memory import cache_room
from batchsim.system.pipeline.specified import Generation, generation_table
from batchsim.system.roofline.deployment import deploy
from batchsim.system.roofline.efficiency import model_error, slope_error

Array = NDArray[np.float64]
SPECIFIED = "specifications"
"""Source of stage times that nothing measured."""
DOUBLINGS = range(-3, 8)
Z80 = 1.2816
"""Standard deviations between the median of a normal and its 90 % quantile."""


@dataclass(frozen=True, kw_only=True)
class Specified:
    """A plan's system, ready to be simulated.

    Parameters
    ----------
    generation : Generation
    gpu : GPU
    generation_gpus, training_gpus : int
        The same GPUs where all do both.
    recipe : Recipe
    mode : str
    plan : Plan
    """

    generation: Generation
    gpu: GPU
    generation_gpus: int
    training_gpus: int
    recipe: Recipe
    mode: str
    plan: Plan


def specified(plan: Plan, recipe: Recipe) -> Specified:
    """A plan's system, checked.

    Parameters
    ----------
    plan : Plan
        That lacks nothing (`Plan.lacking`).
    recipe : Recipe

    Returns
    -------
    Specified

    Raises
    ------
    InputError
        For names that no catalogue holds, parallelism that does not divide, or weights that do not fit.
    """
    engine, gpu = plan.engine, _gpu(plan)
    architecture = find_model(plan.model.name)
    if plan.model.precision is not None:
        architecture = quantised(architecture, plan.model.precision)
    deployment = deploy(
        architecture,
        gpu,
        tensor_parallel=engine.tensor_parallel,
        expert_parallel=engine.expert_parallel,
        engine=engine.name,
        cache_bits=engine.cache_bits,
        network_bandwidth=engine.network_bandwidth,
    )
    room = None
    if gpu.usable_memory is not None:
        room = cache_room(
            architecture,
            memory=gpu.usable_memory,
            tensor_parallel=engine.tensor_parallel,
            expert_parallel=engine.expert_parallel,
            memory_share=engine.memory_share,
            cache_bits=engine.cache_bits,
        )
    generation = Generation(
        deployment=deployment,
        room=room,
        lengths=plan.lengths,
        group_size=recipe.group_size,
        max_num_seqs=engine.max_num_seqs or 256,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        gen_ratio=recipe.gen_ratio,
        kept_share=engine.kept_share,
        max_staleness=engine.max_staleness,
    )
    generating, training = _gpus(plan)
    return Specified(
        generation=generation,
        gpu=gpu,
        generation_gpus=generating,
        training_gpus=training,
        recipe=recipe,
        mode=engine.mode,
        plan=plan,
    )


def _gpu(plan: Plan) -> GPU:
    """The catalogue's GPU, with whatever the plan states in the place of its numbers."""
    own = plan.gpu
    if not own.name:
        return own
    found = find_gpu(own.name)
    fields = (
        "memory",
        "driver_memory",
        "memory_bandwidth",
        "peak_flops",
        "fp8_flops",
        "fp4_flops",
        "link_bandwidth",
        "node_size",
        "host_bandwidth",
    )
    values = {f: getattr(own, f) if getattr(own, f) is not None else getattr(found, f) for f in fields}
    if own.memory is not None and own.driver_memory is None:
        values["driver_memory"] = None
    return GPU(name=found.name, **values)


def _gpus(plan: Plan) -> tuple[int, int]:
    """GPUs that generate and GPUs that train."""
    count, generating = plan.gpu.count, plan.gpu.generation_count
    if count is None or generating is None or generating == count:
        every = count or generating or 0
        if plan.engine.mode != "async":
            return every, every
        half = max(every // 2, plan.engine.tensor_parallel)
        generating, count = half // plan.engine.tensor_parallel * plan.engine.tensor_parallel, every
    if generating >= count:
        raise InputError(
            f"[gpu] generation_count {generating} of {count} leaves no GPU that trains",
            remedy="lower generation_count, or use mode 'sync', where all GPUs do both",
        )
    return generating, count - generating


def specified_stages(
    system: Specified, *, draws: int, rng: np.random.Generator, seed: int, warnings: list[str]
) -> dict[str, Any]:
    """Arguments of `pipeline.throughput`, with draws of what specifications are wrong by.

    Parameters
    ----------
    system : Specified
    draws : int
    rng : numpy.random.Generator
    seed : int
        Of the lengths.
    warnings : list of str
        Takes what the forecast rests on.

    Returns
    -------
    dict
        gen_curve, gen_factor, gen_tilt, train_curve, train_factor, overhead_time, mode and gen_limits (a name per
        point of the curve, for the binding limit).
    """
    table = stage_table(system, seed=seed)
    batches = table["rollout_batch"].values.astype(np.float64)
    engine = system.generation.deployment.engine.engine if system.generation.deployment else "vllm"
    tables = system.generation.deployment is not None and (
        system.generation.deployment.efficiency.source == "kernel tables"
    )
    stages: dict[str, Any] = {
        "gen_curve": (batches, table["gen_time"].values),
        "gen_factor": lognormal(model_error(engine, tables=tables), draws, rng),
        "gen_tilt": slope_error(engine) * rng.standard_normal(draws),
        "overhead_time": float(system.plan.engine.overhead_time),
        "mode": system.mode,
        "gen_limits": tuple(table["gen_limit"].values.tolist()),
    }
    warnings.append(
        f"generation is simulated from specifications ({table.attrs['law']}, {table.attrs['replicas']} replicas, "
        f"{system.generation.max_num_seqs} sequences each); "
        "its error is that of `batchsim validate serving` on GPUs left out"
    )
    return stages | _training(system, batches)


def lognormal(quantiles: tuple[float, float], draws: int, rng: np.random.Generator) -> Array:
    """Draws of a factor whose logarithm is normal with these 10 % and 90 % quantiles."""
    low, high = (math.log(q) for q in quantiles)
    return np.asarray(np.exp((low + high) / 2 + (high - low) / (2 * Z80) * rng.standard_normal(draws)))


def grid(recipe: Recipe) -> list[int]:
    """Rollout batches of the curves: the recipe's times powers of two, in whole groups, two or more."""
    prompts = sorted({max(1, round(recipe.prompts * 2.0**k)) for k in DOUBLINGS})
    return [p * recipe.group_size for p in prompts]


def stage_table(
    system: Specified, *, seed: int = 0, batches: Sequence[int] | None = None, draws: int = 3
) -> xr.Dataset:
    """Generation over rollout batches, simulated."""
    return generation_table(
        system.generation,
        rollout_batch=list(batches) if batches is not None else grid(system.recipe),
        gpus=system.generation_gpus,
        mode=system.mode,
        draws=draws,
        seed=seed,
    )
