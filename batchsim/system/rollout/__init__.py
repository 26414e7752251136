r"""The generation phase of RL, simulated event by event and exactly.

A replica works in steps, and a step is what vLLM's scheduler makes it. At its beginning,

    1. running sequences in the order of their admission get one token each, or the next chunk of their prompt, and
       the blocks of block_size tokens these need. If a block is wanting, caches held by sequences that wait for their
       environment are dropped, the oldest first; then the running sequence admitted LAST is preempted: its blocks are
       freed and it goes to the front of the waiting queue, to compute prompt and generated tokens anew;
    2. unless one was preempted, waiting sequences are admitted first come first served while fewer than max_num_seqs
       run, the budget max_num_batched_tokens lasts (a prompt is cut to what is left of it), and the blocks of what is
       computed in this step are free, but for a watermark.

At its end every sequence whose known tokens are all computed samples one more. So the first token appears at the end of
the step that completes the prompt, a decode step reads its own token too (a context of all known tokens), and the last
token of a response is never computed. Its time is that of the `DecodeLaw`. Siblings of a group share the whole blocks
of their prompt, but for its last token, as long as one of them has a cache.

Between two events the batch is constant and contexts grow by one, so that m steps have a closed form (`_kernels`): the
cost is O((responses + preemptions) log concurrency), and the result is that of counting every token.

Left out: blocks that nobody references stay findable in vLLM until they are overwritten, so that a preempted sequence
may find part of its own; lookahead slots, speculative tokens, encoder inputs, priorities, and the host's time between
steps unless the law holds it. A held cache is dropped whole here and by block there.

References
----------
.. [1] Kwon et al. 2023, arXiv:2309.06180 (paged cache, preemption by recomputation).
.. [2] vLLM, vllm/v1/core/sched/scheduler.py and kv_cache_manager.py, commit 00024d3 (order of scheduling).
.. [3] Yu et al. 2025, "DAPO", arXiv:2503.14476 (dynamic sampling: filtering and refill).
.. [4] Fu et al. 2025, "AReaL", arXiv:2505.24298 (interruptible generation, bounded staleness).
.. [5] Li et al. 2026, arXiv:2608.29296 (asynchronous partial rollouts, B_gen = 2 P G).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from batchsim.errors import InputError, nearest
from batchsim.system.decode_law import DecodeLaw
from batchsim.system.rollout.checks import RESPONSES_MAX, Workload, check_engine, check_workload
from batchsim.system.rollout.engine import DISPATCHES, Engine, Simulation
from batchsim.system.rollout.law import generation_curve, generation_law
from batchsim.system.rollout.lengths import (
    Drawn,
    Lognormal,
    draw,
    draw_kept,
    fit_lognormal,
    kept_share,
    lognormal_of_mean,
    response_law,
    truncated_mean,
)
from batchsim.system.rollout.modes import OUTCOMES, REFILLS, collect, pipeline
from batchsim.system.rollout.result import pipeline_dataset, step_dataset

__all__ = [
    "DISPATCHES",
    "OUTCOMES",
    "REFILLS",
    "RESPONSES_MAX",
    "Drawn",
    "Engine",
    "Lognormal",
    "Simulation",
    "Workload",
    "draw",
    "draw_kept",
    "fit_lognormal",
    "generation_curve",
    "generation_law",
    "kept_share",
    "lognormal_of_mean",
    "pipelined_rollout",
    "response_law",
    "rollout",
    "truncated_mean",
]

MODES = ("sync", "partial", "async")


def rollout(
    *,
    law: DecodeLaw,
    prompt_tokens: ArrayLike,
    response_tokens: ArrayLike,
    group_size: int = 1,
    max_num_seqs: int = 256,
    kv_blocks: int | None = None,
    block_size: int = 16,
    fixed_blocks: int = 0,
    watermark_blocks: int = 0,
    share_prefix: bool = True,
    max_num_batched_tokens: int = 8192,
    replicas: int = 1,
    dispatch: str = "static",
    graph_sizes: Sequence[int] | None = None,
    environment_tokens: ArrayLike = 0,
    environment_seconds: ArrayLike = 0.0,
    keep_kv: bool = True,
    arrival_seconds: ArrayLike | None = None,
    kept: ArrayLike | None = None,
    prompts: int | None = None,
    launch: int | None = None,
    refill: str = "none",
    surplus: str = "cut",
    truncated: ArrayLike | None = None,
) -> xr.Dataset:
    """One rollout step: responses generated until P groups are kept.

    Parameters
    ----------
    law : DecodeLaw
        Times of a replica's steps.
    prompt_tokens : array_like, () or (response,) [tokens]
    response_tokens : array_like, (response,) or (response, turn) [tokens]
        In the order of launch; groups are consecutive. Several turns per row, padded with zeros.
    group_size : int
        G.
    max_num_seqs : int [responses]
        Most sequences that run on a replica.
    kv_blocks : int or None [blocks]
        Cache of a replica; unlimited if None.
    block_size : int [tokens]
    fixed_blocks : int [blocks]
        That every running sequence holds besides (windows, states).
    watermark_blocks : int [blocks]
        Left free by an admission while others run.
    share_prefix : bool
        Whether siblings share the cache of their prompt.
    max_num_batched_tokens : int [tokens]
        Budget of a step, at least max_num_seqs.
    replicas : int
    dispatch : {'static', 'least_loaded', 'length_aware'}
        Groups go to replicas in turn, to the fewest unfinished responses, or to the fewest tokens of unfinished
        responses (all tokens, known beforehand), at the time of their launch.
    graph_sizes : sequence of int or None [responses]
        Batches that a step is padded to; larger ones are not padded.
    environment_tokens, environment_seconds : array_like, broadcastable to (response, turn - 1) [tokens], [s]
        What the environment appends and takes after every turn but the last.
    keep_kv : bool
        Whether a sequence keeps its cache during these seconds, while there is room, or gives it back.
    arrival_seconds : array_like, (group,) or None [s]
        When a group may be launched at the earliest, not decreasing; all at 0 if None.
    kept : array_like of bool, (group,) or None
        Whether the rewards of a group differ; all if None.
    prompts : int or None [prompts]
        P, the groups to keep; if None, all groups end.
    launch : int or None [prompts]
        Groups launched at first, and in every round; all if None.
    refill : {'none', 'rounds', 'continuous'}
        If groups are dropped: nothing; another round once all have ended; or another group for each.
    surplus : {'cut', 'carry'}
        What becomes of the rest once P groups are kept: it counts as wasted or not.
    truncated : array_like of bool, (response,) or None
        Responses that a limit has cut, only to be counted.

    Returns
    -------
    xarray.Dataset
        Per response: start_time, finish_time (NaN where it was not reached), generated_tokens, preemptions, replica
        and outcome, a position in `attrs["outcomes"]`. Over time: running. Scalars: gen_time, tail_share,
        token_throughput, kept_throughput, and counts of responses and tokens.

    Raises
    ------
    InputError
        For lengths, settings or laws that cannot be simulated, and if too few groups are kept.

    Examples
    --------
    >>> law = DecodeLaw(step_time=np.array([0.0, 0.010, 0.011]), context_time=0.0)
    >>> ds = rollout(law=law, prompt_tokens=100, response_tokens=[3, 5], max_num_seqs=2)
    >>> [round(float(t), 3) for t in ds["finish_time"]]
    [0.032, 0.052]
    """
    work = check_workload(
        prompt_tokens=prompt_tokens,
        response_tokens=response_tokens,
        group_size=group_size,
        kept=kept,
        environment_tokens=environment_tokens,
        environment_seconds=environment_seconds,
        arrival_seconds=arrival_seconds,
        share_prefix=share_prefix,
    )
    engine = check_engine(
        law,
        work,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_blocks=kv_blocks,
        block_size=block_size,
        fixed_blocks=fixed_blocks,
        watermark_blocks=watermark_blocks,
        share_prefix=share_prefix,
        keep_kv=keep_kv,
        replicas=replicas,
        dispatch=dispatch,
        graph_sizes=graph_sizes,
    )
    cut = _flags(truncated, work)
    sim = Simulation(law=law, work=work, engine=engine)
    gen_time = collect(sim, prompts=prompts, launch=launch, refill=refill, surplus=surplus)
    return step_dataset(sim, gen_time=gen_time, prompts=prompts, surplus=surplus, truncated=cut)


def pipelined_rollout(
    *,
    law: DecodeLaw,
    prompt_tokens: ArrayLike,
    response_tokens: ArrayLike,
    prompts: int,
    updates: int,
    group_size: int = 1,
    mode: str = "partial",
    gen_ratio: float = 2.0,
    in_flight: int | None = None,
    queue_groups: int | None = None,
    launch_ahead: int | None = None,
    colocated: bool | None = None,
    update_seconds: float = 0.0,
    sync_seconds: float = 0.0,
    recompute: bool = True,
    warm_up: int = 0,
    max_num_seqs: int = 256,
    kv_blocks: int | None = None,
    block_size: int = 16,
    fixed_blocks: int = 0,
    watermark_blocks: int = 0,
    share_prefix: bool = True,
    max_num_batched_tokens: int = 8192,
    replicas: int = 1,
    dispatch: str = "static",
    graph_sizes: Sequence[int] | None = None,
    environment_tokens: ArrayLike = 0,
    environment_seconds: ArrayLike = 0.0,
    keep_kv: bool = True,
    kept: ArrayLike | None = None,
) -> xr.Dataset:
    """Generation around a sequence of updates, each of the first P complete groups whose rewards differ.

    Parameters
    ----------
    law, prompt_tokens, response_tokens, group_size
        See `rollout`. Enough groups for all updates and what is in flight after them.
    prompts : int [prompts]
        P.
    updates : int
    mode : {'sync', 'partial', 'async'}
        `modes` says what distinguishes them.
    gen_ratio : float [1]
        B_gen/(P G) of partial rollouts, at least 1.
    in_flight : int or None [prompts]
        Most groups in flight; P if None in the asynchronous mode, else unlimited.
    queue_groups : int or None [prompts]
        Most complete groups that wait for the trainer in the asynchronous mode; P if None.
    launch_ahead : int or None [1]
        Versions whose groups may be launched before these weights have arrived (AReaL's bound on staleness). It bounds
        the mean age at use; an update takes what is complete first, and a long response may be older.
    colocated : bool or None
        Whether generation stops during an update; only in the asynchronous mode it does not, if None.
    update_seconds, sync_seconds : float [s]
        From the beginning of an update to its weights, and the pause of a replica that takes them over.
    recompute : bool
        Whether in-flight caches are computed anew under new weights, or kept stale.
    warm_up : int
        Updates left out of `kept_throughput`.
    max_num_seqs, kv_blocks, block_size, fixed_blocks, watermark_blocks, share_prefix, max_num_batched_tokens, replicas,
    dispatch, graph_sizes, environment_tokens, environment_seconds, keep_kv, kept
        See `rollout`.

    Returns
    -------
    xarray.Dataset
        Per response: start_time, finish_time, used_by (0, 1, ...; -1: none), staleness (updates between the weights
        that began it and those it trains; -1: not used), versions_spanned. Per update: ready_time, taken_time,
        resumed_time, step_time, response_length, staleness_mean, staleness_max. Scalars as in `rollout`.

    Raises
    ------
    InputError
        As `rollout`, and if the groups run out or the limits let none start.
    """
    course = _course(
        mode, prompts, gen_ratio=gen_ratio, in_flight=in_flight, queue_groups=queue_groups, colocated=colocated
    )
    _check_times(updates, prompts, warm_up, update_seconds=update_seconds, sync_seconds=sync_seconds)
    if launch_ahead is not None and launch_ahead < 0:
        raise InputError(f"launch_ahead is {launch_ahead}, and it must not be negative")
    work = check_workload(
        prompt_tokens=prompt_tokens,
        response_tokens=response_tokens,
        group_size=group_size,
        kept=kept,
        environment_tokens=environment_tokens,
        environment_seconds=environment_seconds,
        share_prefix=share_prefix,
    )
    engine = check_engine(
        law,
        work,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_blocks=kv_blocks,
        block_size=block_size,
        fixed_blocks=fixed_blocks,
        watermark_blocks=watermark_blocks,
        share_prefix=share_prefix,
        keep_kv=keep_kv,
        replicas=replicas,
        dispatch=dispatch,
        graph_sizes=graph_sizes,
    )
    sim = Simulation(law=law, work=work, engine=engine)
    ahead, most, together = course
    done = pipeline(
        sim,
        updates=updates,
        prompts=prompts,
        ahead=ahead,
        in_flight_max=most,
        launch_ahead=launch_ahead,
        colocated=together,
        update_seconds=update_seconds,
        sync_seconds=sync_seconds,
        recompute=recompute,
    )
    return pipeline_dataset(sim, done, prompts=prompts, mode=mode, warm_up=warm_up)


def _course(
    mode: str,
    prompts: int,
    *,
    gen_ratio: float,
    in_flight: int | None,
    queue_groups: int | None,
    colocated: bool | None,
) -> tuple[int, int | None, bool]:
    """Groups launched ahead of use, groups in flight at most, and whether an update stops generation."""
    if mode not in MODES:
        raise InputError(f"unknown mode '{mode}'", remedy=nearest(mode, MODES))
    for name, value, least in (("in_flight", in_flight, 1), ("queue_groups", queue_groups, 0)):
        if value is not None and value < least:
            raise InputError(f"{name} is {value}, and it must be at least {least}")
    if not 1 <= gen_ratio <= 1e6:
        raise InputError(f"gen_ratio is {gen_ratio:g}, and it must be at least 1", remedy="2 in the paper")
    if mode == "async":
        most = prompts if in_flight is None else in_flight
        return most + (prompts if queue_groups is None else queue_groups), most, bool(colocated)
    ahead = prompts if mode == "sync" else round(gen_ratio * prompts)
    return ahead, in_flight, colocated is not False


def _check_times(updates: int, prompts: int, warm_up: int, **seconds: float) -> None:
    if updates < 1 or prompts < 1:
        raise InputError(f"{updates} updates of {prompts} prompts; both must be at least 1")
    if not 0 <= warm_up < updates:
        raise InputError(f"warm_up is {warm_up}, and there are {updates} updates", remedy="leave some after it")
    for name, value in seconds.items():
        if not (np.isfinite(value) and value >= 0):
            raise InputError(f"{name} is {value:g}, and it must be finite and not negative")


def _flags(truncated: ArrayLike | None, work: Workload) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]] | None:
    if truncated is None:
        return None
    flags = np.asarray(truncated, dtype=np.bool_)
    if flags.shape != work.prompt.shape:
        raise InputError(f"truncated has shape {flags.shape}, and there are {work.prompt.size} responses")
    return flags
