r"""The system side from specifications alone: model, GPU, engine and lengths in a plan, no log.

The stage times are curves over the rollout batch: generation simulated over the roofline's decode law, training
modelled from FLOPs and bytes. What they are wrong by is what the validations found on data that no constant saw:

    t_gen   = f_p f_g (R/R_m)^e t_gen(R)   log f_g normal with the quantiles of `validate serving`, e with its slopes
    t_train = f_p f_t t_train(R)           log f_t normal with the quantiles of `validate training`
    o       = (f_p + f_o) sync + f_o t(R_0)

f = f_p + f_o is what a framework's step takes over its stages (`validate rl-steps`), divided between what grows with a
step and what every step costs alike. Throughput ratios so carry the error of the curves' shape (e), of the balance
between the stages (f_g/f_t) and of that division, and absolute times all of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from batchsim.errors import InputError
from batchsim.plan import Plan
from batchsim.specs.counts import weight_bytes
from batchsim.specs.gpu import GPU
from batchsim.specs.gpus import find_gpu
from batchsim.specs.huggingface import quantised
from batchsim.specs.models import find_model
from batchsim.specs.recipe import Recipe
from batchsim.system.memory import cache_room
from batchsim.system.pipeline import PROGRESS, rollout_step_time
from batchsim.system.pipeline.frameworks import (
    FRAMEWORK_FACTOR,
    FRAMEWORK_SPREAD,
    framework_extra,
    framework_sync_seconds,
)
from batchsim.system.pipeline.specified import Generation, TrainTime, compose, generation_table
from batchsim.system.rollout import draw
from batchsim.system.roofline.deployment import deploy
from batchsim.system.roofline.efficiency import model_error, slope_error
from batchsim.system.training import Trainer, make_trainer, train_time_of, training_error
from batchsim.system.training.work import adapter_parameters

Array = NDArray[np.float64]
SPECIFIED = "specifications"
"""Source of stage times that nothing measured."""
DOUBLINGS = range(-3, 8)
NETWORK = 50e9
"""Between nodes [B/s] per GPU and direction where the plan does not say: 400 Gb/s, as in NVIDIA's DGX H100 and B200."""
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

    @property
    def is_split(self) -> bool:
        """Whether generation and training have GPUs of their own."""
        count, generating = self.plan.gpu.count, self.plan.gpu.generation_count
        return self.mode == "async" or (count is not None and generating is not None and generating < count)


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
        gen_curve, gen_factor, gen_tilt, train_curve, train_factor, overhead_time, mode, gen_ratio, kept_share (both
        within the curve) and gen_limits (a name per point of the curve, for the binding limit).
    """
    grows = system.plan.lengths.response_growth != 1
    systems = [system_at(system, p) for p in PROGRESS] if grows else [system]
    tables = [stage_table(s, seed=seed) for s in systems]
    table = tables[len(tables) // 2]
    batches = table["rollout_batch"].values.astype(np.float64)
    generated = np.array([t["gen_time"].values for t in tables])
    proportional, fixed = framework_extra(draws, rng)
    # A tilt of one standard error per e-fold of the batch is what its draws leave open, at most.
    tilt = math.hypot(slope_error(_engine(system)), max(t.attrs["log_error"] for t in tables))
    stages: dict[str, Any] = {
        "gen_curve": (batches, generated if grows else generated[0]),
        "gen_factor": lognormal(generation_error(system), draws, rng),
        "gen_tilt": tilt * rng.standard_normal(draws),
        "mode": system.mode,
        "gen_limits": tuple(table["gen_limit"].values.tolist()),
        # Within the curve; here for what counts generated responses.
        "gen_ratio": 1.0 if system.mode == "async" else max(system.recipe.gen_ratio, 1.0),
        "kept_share": system.plan.engine.kept_share,
    }
    warnings.append(
        f"generation is simulated from specifications ({table.attrs['law']}, {table.attrs['replicas']} replicas, "
        f"{system.generation.max_num_seqs} sequences each); "
        "its error is that of `batchsim validate serving` on GPUs left out"
    )
    warnings.append(
        f"a framework's step is taken to last {FRAMEWORK_FACTOR} times its modelled stages, as in published runs "
        "(`batchsim validate rl-steps`); how much of that every step costs alike is not known: between none and all; "
        "what specifications leave out (tools and their environments, several turns, waits between them) is in no "
        "interval of r_q, and some timed steps of the recipe would tell"
    )
    if system.generation.room is None:
        warnings.append(
            "[gpu] memory is neither stated nor known: the KV cache is taken to have room for every sequence, and the "
            "trainer to fit"
        )
    _, source = training_seconds(system)
    if source:
        warnings.append(
            f"training is modelled from specifications ({source}); `batchsim validate training` has its error"
        )
        stages["train_factor"] = lognormal(training_error(), draws, rng)
    trainable = trainable_batches(systems[-1], batches)
    if trainable.size < batches.size:
        warnings.append(
            f"below {trainable[0]:.0f} responses per rollout step some of the {system.training_gpus} GPUs that train "
            "get none, or no whole micro-batch: training times of such batches are extrapolated"
        )
    trained = np.array([training_seconds(s)[0](trainable, system.training_gpus) for s in systems])
    stages["train_curve"] = (trainable, trained if grows else trained[0])
    _add_framework(stages, system, proportional, fixed, modelled=bool(source), rng=rng)
    if grows:
        warnings.append(
            f"the mean response is taken to go to {system.plan.lengths.response_growth:g} times its start, linearly in "
            "the samples to the target; times of steps and throughput are means over that"
        )
    return stages


def _add_framework(
    stages: dict[str, Any],
    system: Specified,
    proportional: Array,
    fixed: Array,
    *,
    modelled: bool,
    rng: np.random.Generator,
) -> None:
    """What a framework takes beyond modelled stages; a stated training law and a stated overhead hold as they are."""
    reference = float(system.recipe.rollout_batch)
    names = ["gen_curve", "gen_factor", "gen_tilt"] + ["train_curve", "train_factor", "mode"] * modelled
    alone = rollout_step_time(reference, **{name: stages[name] for name in names})
    if modelled:
        stages["train_factor"] = proportional * stages["train_factor"]
    stages["gen_factor"] = proportional * stages["gen_factor"]
    spread = np.exp(math.log(FRAMEWORK_SPREAD) * rng.standard_normal(fixed.size))
    copied = synchronisation(system, system.training_gpus) * spread
    stages["overhead_time"] = system.plan.engine.overhead_time + (proportional + fixed) * copied + fixed * alone


def _engine(system: Specified) -> str:
    deployment = system.generation.deployment
    return "vllm" if deployment is None else deployment.engine.engine


def generation_error(system: Specified) -> tuple[float, float]:
    """10 % and 90 % quantiles of measured over predicted generation."""
    deployment = system.generation.deployment
    fitted = deployment is not None and deployment.efficiency.source == "kernel tables"
    return model_error(_engine(system), tables=fitted)


def system_at(system: Specified, progress: float) -> Specified:
    """A system with its responses as they are at a share of the way to the target [1]."""
    lengths = system.plan.lengths.at(progress)
    return replace(
        system, plan=replace(system.plan, lengths=lengths), generation=replace(system.generation, lengths=lengths)
    )


def trainable_batches(system: Specified, batches: Array) -> Array:
    """Those of some increasing rollout batches that give every data-parallel rank work.

    Parameters
    ----------
    system : Specified
    batches : ndarray [responses]

    Returns
    -------
    ndarray [responses]
        The recipe's own batch and a larger one among them.

    Raises
    ------
    InputError
        As `training_seconds`, and if the recipe's own batch is not trainable.
    """
    seconds, _ = training_seconds(system)
    seconds(np.array([float(system.recipe.rollout_batch)]), system.training_gpus)
    for i, batch in enumerate(batches):
        try:
            seconds(np.array([batch]), system.training_gpus)
        except InputError:
            continue
        return batches[i:]
    return batches


def training_seconds(system: Specified) -> tuple[TrainTime, str]:
    """Seconds of training as a function of rollout batches and GPUs, and what its constants rest on.

    Parameters
    ----------
    system : Specified

    Returns
    -------
    seconds : callable
        Of an array of rollout batches [responses] and the GPUs that train.
    source : str
        Empty where the plan states the law, which then holds for any number of GPUs as it stands.

    Raises
    ------
    InputError
        For a trainer that does not fit the GPUs or their memory.
    """
    plan, recipe = system.plan, system.recipe
    engine = plan.engine
    if engine.train_time_per_response or engine.train_time_intercept:

        def stated(batches: Array, gpus: int) -> Array:
            return np.asarray(engine.train_time_intercept + engine.train_time_per_response * batches)

        return stated, ""
    trainer = _trainer(system, "rl")
    mean, spread = sequence_length(plan, seed=0)
    passes = train_time_of(
        trainer,
        length=mean,
        length_cv=spread,
        updates_per_rollout=recipe.updates_per_rollout,
        epochs=recipe.epochs,
        old_logprobs=plan.trainer.old_logprobs,
        reference=plan.trainer.reference,
        critic=_trainer(system, "value") if plan.trainer.critic else None,
    )

    return passes, trainer.efficiency.source


def _trainer(system: Specified, loss: str) -> Trainer:
    spec, lengths = system.plan.trainer, system.plan.lengths
    tokens, sequences = spec.micro_batch_tokens, spec.micro_batch_sequences
    if tokens is None and sequences is None:
        mean, _ = sequence_length(system.plan, seed=0)
        appended = (lengths.turns - 1) * lengths.environment_tokens
        longest = (lengths.prompt_mean or 0.0) + (lengths.max_tokens + appended if lengths.max_tokens else 4 * mean)
        tokens = max(16_384, math.ceil(longest))
    architecture = find_model(system.plan.model.name)
    return make_trainer(
        architecture,
        system.gpu,
        gpus=system.training_gpus,
        micro_batch_tokens=tokens,
        micro_batch_sequences=sequences,
        packing=spec.packing,
        tensor_parallel=spec.tensor_parallel,
        pipeline_parallel=spec.pipeline_parallel,
        context_parallel=spec.context_parallel,
        expert_parallel=spec.expert_parallel,
        sharding=spec.sharding,
        recompute=spec.recompute,
        offload=spec.offload,
        lora_rank=spec.lora_rank,
        loss=loss,
        network_bandwidth=system.plan.engine.network_bandwidth or NETWORK,
    )


def sequence_length(plan: Plan, *, seed: int) -> tuple[float, float]:
    """Mean length of a whole sequence [tokens] and its coefficient of variation [1], from a draw of the lengths."""
    drawn = draw(plan.lengths, groups=4096, group_size=1, rng=np.random.default_rng(seed))
    turns = drawn.response_tokens.reshape(len(drawn.prompt_tokens), -1)
    # The environment appends before every turn but the first; rows are padded to the most turns of any.
    appended = np.where(turns[:, 1:] > 0, drawn.environment_tokens, 0).sum(axis=1)
    total = drawn.prompt_tokens + turns.sum(axis=1) + appended
    return float(total.mean()), float(total.std() / total.mean())


def synchronisation(system: Specified, training_gpus: int) -> float:
    """Seconds for new weights to reach the engine, as frameworks do it; adapters alone where those are trained.

    None where the plan states the training law: `overhead_time` is then what the plan says of it.
    """
    served, engine = system.generation.deployment, system.plan.engine
    if served is None or engine.train_time_per_response or engine.train_time_intercept:
        return 0.0
    size = weight_bytes(served.architecture)
    if system.plan.trainer.lora_rank is not None:
        size = 2.0 * adapter_parameters(served.architecture, system.plan.trainer.lora_rank)
    return framework_sync_seconds(size, training_gpus=training_gpus)


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


def composed_stages(plan: Plan, recipe: Recipe, *, seed: int = 0) -> xr.Dataset:
    """Stages of a rollout step over batches as a plan specifies them, and what binds, without the models' errors.

    Parameters
    ----------
    plan : Plan
        That lacks nothing.
    recipe : Recipe
    seed : int
        Of the lengths.

    Returns
    -------
    xarray.Dataset
        As `pipeline.specified.compose`; where responses grow, halfway to the target.

    Raises
    ------
    InputError
        If the plan lacks something, or as `specified` does.
    """
    if lacking := plan.lacking():
        raise InputError(f"stages from specifications need {' and '.join(lacking)}", remedy="state it in the plan")
    system = system_at(specified(plan, recipe), 0.5)
    batches = trainable_batches(system, np.array(grid(recipe), dtype=np.float64))
    table = stage_table(system, seed=seed, batches=batches.astype(int).tolist())
    seconds, _ = training_seconds(system)
    trained = seconds(batches, system.training_gpus)
    overhead = plan.engine.overhead_time + synchronisation(system, system.training_gpus)
    return compose(table, train_time=trained, overhead_time=overhead, split=system.is_split)
