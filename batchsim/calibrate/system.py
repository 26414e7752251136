r"""The system side of a calibration: stages of the rollout step, with draws, from logs, pilots or the plan.

In this order: the plan's own stage law; the affine law of steady step times that logs hold, with its covariance and
its unknown plateau; step times or throughput ratios of pilots that the plan states; a prior share of shared time.
Memory facts in the plan cap the concurrency.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import xarray as xr

from batchsim.errors import InputError
from batchsim.plan import Plan
from batchsim.specs.counts import kv_bytes_per_token, weight_bytes
from batchsim.specs.gpus import find_gpu
from batchsim.specs.models import find_model
from batchsim.specs.recipe import Recipe
from batchsim.system.memory import concurrency_max
from batchsim.system.pipeline import capped_throughput
from batchsim.system.rollout.lengths import steady_context
from batchsim.system.step_time import StepTimeFit, draw_law, fit_means, fit_step_time

RELATIVE_REFERENCE_ERROR = 1e-3
"""Relative error of the reference's own time where only ratios to it are stated: ratios carry the error."""
MEASURED = "measured"
"""Source of a law that steady step times of logs gave."""
PRIOR = "prior"
STATED_DOF = 30.0
"""Degrees of freedom of errors that a plan states: near normal."""


def system_stages(
    nodes: dict[str, xr.Dataset],
    plan: Plan,
    recipe: Recipe,
    *,
    draws: int,
    rng: np.random.Generator,
    seed: int,
    sources: dict[str, str],
    warnings: list[str],
) -> tuple[StepTimeFit | None, dict[str, Any], bool]:
    """The fitted law, the arguments of `pipeline.throughput`, and whether they are in seconds."""
    engine = plan.engine
    if engine.gen_time_slope is not None:
        sources["step_time"] = "given"
        stages = {
            "gen_time_intercept": engine.gen_time_intercept,
            "gen_time_slope": engine.gen_time_slope,
            "gen_throughput_max": engine.gen_throughput_max or np.inf,
            "gen_ratio": recipe.gen_ratio,
            "kept_share": engine.kept_share,
            "train_time_intercept": engine.train_time_intercept,
            "train_time_per_response": engine.train_time_per_response,
            "overhead_time": engine.overhead_time,
            "mode": engine.mode,
        }
        return None, stages, True
    fit, absolute, source = _fit_system(nodes, plan, recipe)
    if source == PRIOR and plan.is_specified():
        from batchsim.calibrate.specified import SPECIFIED, specified, specified_stages

        sources["step_time"] = SPECIFIED
        return None, specified_stages(specified(plan, recipe), draws=draws, rng=rng, seed=seed, warnings=warnings), True
    if engine.observed and source == MEASURED:
        warnings.append("[[engine.observed]] is not used: the logs hold step times")
    if not fit.success:
        warnings.append(f"step time: {fit.message}; until then r_q rests on a prior share of shared time")
    else:
        warnings.append(
            f"nothing measured beyond a rollout batch of {fit.rollout_batch[-1]:g} responses shows a plateau of the "
            f"throughput; r_q above it spans every plateau up to the affine law's; a few steps at "
            f"{4 * fit.rollout_batch[-1]:g} would tell"
        )
    if fit.success and (fit.update_time_intercept < 0 or fit.update_time_slope <= 0):
        shown = ", ".join(f"{t:.4g} at {r:g}" for r, t in zip(fit.rollout_batch, fit.step_time, strict=True))
        warnings.append(
            f"step times ({shown} responses) are no affine law with a shared and a per-response part: they rise faster "
            "than in proportion, or fall; the forecast takes the nearest such law, so its r_q is not the measured one, "
            "and a larger batch may be slower than it says; compare `batchsim measure`"
        )
    sources["step_time"] = source if fit.success else f"{source}, shared part prior"
    tau0, tau1, q_max = draw_law(fit, draws=draws, rng=rng)
    return fit, {"gen_time_intercept": tau0, "gen_time_slope": tau1, "gen_throughput_max": q_max}, absolute


def _fit_system(nodes: dict[str, xr.Dataset], plan: Plan, recipe: Recipe) -> tuple[StepTimeFit, bool, str]:
    timed = {k: ds for k, ds in nodes.items() if "step_seconds" in ds and ds["steady"].values.any()}
    if timed:
        steady = {k: ds["step_seconds"].values[ds["steady"].values] for k, ds in timed.items()}
        batch = [np.full(v.size, timed[k].attrs["rollout_batch"], dtype=np.float64) for k, v in steady.items()]
        label = [np.full(v.size, i) for i, v in enumerate(steady.values())]
        fit = fit_step_time(np.concatenate(batch), np.concatenate(label), np.concatenate(list(steady.values())))
        if fit.rollout_batch:
            return fit, True, MEASURED
    observed = sorted(plan.engine.observed, key=lambda o: o.prompts)
    in_seconds = bool(observed) and all(o.step_seconds is not None for o in observed)
    r0 = float(recipe.rollout_batch)
    rows: dict[float, tuple[float, float]] = {} if in_seconds else {r0: (r0, RELATIVE_REFERENCE_ERROR * r0)}
    for o in observed:
        r = float(o.prompts * recipe.group_size)
        own = r == r0 and not in_seconds
        if own and o.throughput_ratio not in (1, None):
            raise InputError(
                f"[[engine.observed]] states a throughput ratio of {o.throughput_ratio:g} for {o.prompts} prompts, and "
                "the reference's own is 1",
                where=plan.source or "plan",
                remedy="drop the entry, or name the prompts of the other pilot",
            )
        if r in rows and not own:
            raise InputError(
                f"[[engine.observed]] states {o.prompts} prompts twice",
                where=plan.source or "plan",
                remedy="state every batch once, with the mean of what was measured",
            )
        # Relative times have the reference at one response per unit of time.
        value = o.step_seconds if in_seconds else r / o.throughput_ratio if o.throughput_ratio else None
        if value is None:
            raise InputError(
                "[[engine.observed]] mixes step_seconds and throughput_ratio",
                where=plan.source or "plan",
                remedy="state every pilot in one of the two",
            )
        rows[r] = (value, o.relative_error * value)
    batches = sorted(rows)
    fit = fit_means(batches, [rows[b][0] for b in batches], [rows[b][1] for b in batches], dof=STATED_DOF)
    return fit, in_seconds, "given by the plan" if observed else PRIOR


def memory_limit(plan: Plan, recipe: Recipe, warnings: list[str]) -> tuple[float, str]:
    """Rollout batch at which concurrency is capped, and by what; infinite where nothing says.

    Memory, weights and cache that the plan does not state are those of the catalogues, if they hold the names.
    """
    gpus = plan.gpu.generation_count or plan.gpu.count
    if gpus is None:
        _memory(plan, warnings)  # an unknown name is said, though nothing rests on it
        return math.inf, ""
    engine = plan.engine
    memory, (weights, per_token) = _memory(plan, warnings), _model_bytes(plan, warnings)
    concurrency, limit = concurrency_max(
        gpus=gpus,
        tensor_parallel=engine.tensor_parallel,
        max_num_seqs=engine.max_num_seqs or math.inf,
        memory=memory,
        memory_share=engine.memory_share,
        weight_bytes=weights,
        kv_bytes_per_token=per_token,
        context_length=steady_context(plan.lengths),
    )
    return concurrency * engine.kept_share / recipe.gen_ratio, limit


def _memory(plan: Plan, warnings: list[str]) -> float | None:
    """Memory of one GPU [B]: the plan's, or the catalogue's."""
    if plan.gpu.usable_memory is not None or not plan.gpu.name:
        return plan.gpu.usable_memory
    try:
        found = find_gpu(plan.gpu.name)
    except InputError as error:
        warnings.append(f"[gpu] {error}")
        return None
    return found.usable_memory


def _model_bytes(plan: Plan, warnings: list[str]) -> tuple[float | None, float | None]:
    """Bytes of the weights [B] and of a token in the cache of a replica [B/token]: the plan's, or the catalogue's."""
    own = plan.model.weight_bytes, plan.model.kv_bytes_per_token
    if None not in own or not plan.model.name:
        return own
    try:
        model = find_model(plan.model.name)
    except InputError as error:
        warnings.append(f"[model] {error}")
        return own
    # Heads that several GPUs hold, and a latent that all of them do, are stored more than once.
    ranks = plan.engine.tensor_parallel
    cached = ranks * kv_bytes_per_token(model, 16, ranks)
    return own[0] or weight_bytes(model), own[1] or cached or None


def cap_stages(stages: dict[str, Any], limit: tuple[float, str], fit: StepTimeFit | None) -> dict[str, Any]:
    """Stages whose generation plateau respects the concurrency limit."""
    capacity = limit[0]
    # A simulated curve holds the limit already.
    if math.isinf(capacity) or "gen_curve" in stages:
        return stages
    intercept, slope = stages["gen_time_intercept"], stages["gen_time_slope"]
    # The fitted law counts kept responses; a stated law counts generated ones.
    unit = 1.0 if fit is not None else float(stages["gen_ratio"] / stages["kept_share"])
    plateau = capped_throughput(capacity * unit, gen_time_intercept=intercept, gen_time_slope=slope)
    if fit is not None:
        # What was measured is possible, whatever the estimate of memory says.
        largest = fit.rollout_batch[-1]
        plateau = np.maximum(plateau, largest / (intercept + slope * largest))
    return {**stages, "gen_throughput_max": np.minimum(stages["gen_throughput_max"], plateau)}
