r"""A rollout step from specifications: simulated generation, modelled training, and how the mode joins them.

Generation is simulated exactly (`system.rollout`) over the law that the roofline gives for one replica; training and
the synchronisation of weights are functions of the rollout batch R and of the GPUs that do them. The mode decides:

    sync       t = t_gen + t_train + o           every GPU does both (o: sleep, wake, reload), or a split that waits
    partial    t = t_gen' + t_train + o          2 P G in flight, the first P complete groups are taken: no drain
    async      t = max(t_gen', t_train) + o      both run side by side on a split; a queue hides their jitter

t_gen' is the time between updates in a steady state in which responses go on under new weights, so its tail is hidden
by the next step's responses. Kept responses alone count: B_gen = gen_ratio R/kept_share are generated.

What binds a step: the trainer where it takes longer; else of generation the tail (the drain takes more than half of the
time: after the last waiting response was admitted, or with none waiting below half of the concurrency), the engine's
max_num_seqs or the KV memory (sequences wait), or what a decode step at the mean batch waits for: bandwidth, compute,
communication, overhead.

Far beyond what runs at the same time a step is in its steady state, and time grows in proportion to what is added.

References
----------
.. [1] Li et al. 2026, arXiv:2608.29296, figure 7 (collection time against responses, partial rollouts).
.. [2] Fu et al. 2025, "AReaL", arXiv:2505.24298; NeMo-RL, asynchronous GRPO (one step off policy).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from batchsim.errors import InputError, nearest
from batchsim.specs.lengths import Lengths
from batchsim.system.decode_law import DecodeLaw
from batchsim.system.memory import CacheRoom
from batchsim.system.rollout import Drawn, draw, pipelined_rollout, rollout
from batchsim.system.roofline import BINDS, PARTS, decode_law, step_time
from batchsim.system.roofline.deployment import Deployment
from batchsim.variables import set_attrs

Array = NDArray[np.float64]
TrainTime = Callable[[Array, int], Array]
"""Seconds of log-probabilities and updates of R kept responses on some GPUs."""

STEP_MODES = ("sync", "partial", "async")
SIMULATED_MAX = 65_536
"""Responses of the largest simulation, unless more run at the same time."""
WELL_DRAWN, MORE_DRAWS = 16_384, 16
"""Responses of a synchronous step from which on the least number of draws is enough, and the most times that number."""
TURNOVERS = 3
"""Times that what is in flight is replaced before a steady state is measured, and while it is."""
BLOCK = 16
SENT_BACK = 0.05
"""Preemptions per response from which on, in a steady state, the cache is what generation waits for."""
TAIL = 0.5
"""Share of the drain from which the tail is what a step waits for."""
WAITS = 0.02
"""Share of the time after which a response that is then admitted has waited."""
LIMITS = {"weights": "bandwidth", "experts": "bandwidth", "KV cache": "bandwidth"}


@dataclass(frozen=True, kw_only=True)
class Generation:
    """How responses are generated.

    Parameters
    ----------
    deployment : Deployment
        One replica.
    room : CacheRoom or None
        Unlimited cache if None.
    lengths : Lengths
    group_size : int
    max_num_seqs : int [sequences]
        Per replica.
    max_num_batched_tokens : int [tokens]
    gen_ratio : float [1]
        Responses launched or in flight per kept one, before filtering.
    kept_share : float in (0, 1] [1]
        Of groups whose rewards differ.
    max_staleness : int [1]
        Versions that asynchronous generation may run ahead: as many steps' groups are in flight.
    law : DecodeLaw or None
        In the place of the roofline's.
    """

    deployment: Deployment | None
    room: CacheRoom | None
    lengths: Lengths
    group_size: int = 1
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    gen_ratio: float = 1.0
    kept_share: float = 1.0
    max_staleness: int = 1
    law: DecodeLaw | None = None

    @property
    def gpus_per_replica(self) -> int:
        """GPUs that one replica needs."""
        return 1 if self.deployment is None else self.deployment.tensor_parallel

    @property
    def gpus_least(self) -> int:
        """Fewest GPUs that generate: those of a replica, or those that share the experts."""
        experts = 1 if self.deployment is None else self.deployment.expert_parallel
        return max(self.gpus_per_replica, experts)

    def decode_law(self) -> DecodeLaw:
        """The stated law, or the roofline's up to `max_num_seqs`."""
        if self.law is not None:
            return self.law
        if self.deployment is None:
            raise InputError("generation has neither a deployment nor a law of its decode step")
        return decode_law(self.deployment, concurrency=self.max_num_seqs)

    def replicas(self, gpus: int) -> int:
        """Replicas on some GPUs.

        Raises
        ------
        InputError
            If they hold none, or fewer than share the experts.
        """
        if self.gpus_per_replica <= gpus < self.gpus_least:
            raise InputError(
                f"experts over {self.gpus_least} GPUs, and {gpus} generate",
                remedy="lower expert_parallel or raise the GPUs that generate",
            )
        found = gpus // self.gpus_per_replica
        if found < 1:
            raise InputError(
                f"{gpus} GPUs hold no replica of {self.gpus_per_replica}",
                remedy="lower tensor_parallel or raise the GPUs that generate",
            )
        return found


def generation_table(
    generation: Generation,
    *,
    rollout_batch: Sequence[int],
    gpus: int,
    mode: str = "sync",
    draws: int = 3,
    seed: int = 0,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> xr.Dataset:
    """Time to collect R kept responses, simulated, and what it waits for.

    Parameters
    ----------
    generation : Generation
    rollout_batch : sequence of int, (rollout_batch,) [responses]
        Whole numbers of groups.
    gpus : int
        That generate.
    mode : {'sync', 'partial', 'async'}
    draws : int
        Of lengths, common to all batches; smaller ones get up to `MORE_DRAWS` times as many.
    seed : int
    progress : callable
        Takes the simulations done and those to do.

    Returns
    -------
    xarray.Dataset
        Over rollout_batch: gen_time [s], drain_share [1], gen_limit. `attrs["log_error"]` is the largest standard
        error of log gen_time [1].

    Raises
    ------
    InputError
        For an unknown mode, a batch of no whole groups, or what the simulation refuses.
    """
    if mode not in STEP_MODES:
        raise InputError(f"unknown mode '{mode}'", remedy=nearest(mode, STEP_MODES))
    sizes = [_groups(int(r), generation.group_size) for r in rollout_batch]
    law, replicas = generation.decode_law(), generation.replicas(gpus)
    most = _most_prompts(generation, replicas, mode)
    run = sorted({min(p, most) for p in sizes})
    number = [_draws_of(p * generation.group_size, draws, mode) for p in run]
    found: list[list[_Collected]] = [[] for _ in run]
    for i in range(max(number)):
        left = [j for j, n in enumerate(number) if n > i]
        drawn, kept = _drawn(generation, run[left[-1]], mode, np.random.SeedSequence([seed, i]))
        for j in left:
            one = _collected(generation, law, run[j], replicas, mode, drawn, kept, named=i == 0)
            found[j].append(one)
            progress(sum(len(f) for f in found), sum(number))
    times = [np.array([one.seconds for one in own]) for own in found]
    mean, drain = (np.array([np.mean(v) for v in of]) for of in (times, [[o.drain for o in own] for own in found]))
    limits = [own[0].limit for own in found]
    errors = [np.log(t).std(ddof=1) / math.sqrt(t.size) for t in times if t.size > 1 and np.all(t > 0)]
    at = {p: j for j, p in enumerate(run)}
    # What is added to the largest simulated step takes its time without the drain, which both have.
    rate = mean[-1] * (1 - drain[-1]) / run[-1]
    seconds = [mean[at[min(p, most)]] + rate * max(p - most, 0) for p in sizes]
    ds = xr.Dataset(
        {
            "gen_time": ("rollout_batch", np.array(seconds)),
            "drain_share": ("rollout_batch", np.array([drain[at[min(p, most)]] for p in sizes])),
            "gen_limit": ("rollout_batch", np.array([limits[at[min(p, most)]] for p in sizes])),
        },
        coords={"rollout_batch": np.asarray(rollout_batch, dtype=np.int64)},
        attrs={
            "law": law.name,
            "gpus": gpus,
            "replicas": replicas,
            "mode": mode,
            "draws": draws,
            "seed": seed,
            "log_error": float(max(errors, default=0.0)),
        },
    )
    return set_attrs(ds)


def _draws_of(responses: int, draws: int, mode: str) -> int:
    """Draws of a batch: the tail of a small one varies more and costs less; a steady state averages over updates."""
    if mode != "sync":
        return draws
    return min(max(draws, math.ceil(draws * WELL_DRAWN / responses)), draws * MORE_DRAWS)


def _most_prompts(g: Generation, replicas: int, mode: str) -> int:
    """Groups of the largest simulated step: a simulation of SIMULATED_MAX responses, or twice what runs at a time."""
    steps = _launched(g, 1000, mode) / 1000
    # Of a queue that is some steps long a step is that much less.
    ahead = g.max_staleness if mode == "async" else 1
    responses = max(SIMULATED_MAX / steps, 2 * replicas * _at_a_time(g) / ahead)
    return max(2, int(responses // g.group_size))


def _at_a_time(g: Generation) -> int:
    """Sequences that run at the same time on a replica, as far as the cache has room for their mean context."""
    if g.room is None:
        return g.max_num_seqs
    return min(g.max_num_seqs, max(1, math.ceil(g.room.concurrency_max(g.lengths.context_in_flight or 1.0))))


def _groups(responses: int, group_size: int) -> int:
    if responses < group_size or responses % group_size:
        raise InputError(
            f"a rollout batch of {responses} responses is no whole number of groups of {group_size}",
            remedy=f"a multiple of {group_size}",
        )
    return responses // group_size


@dataclass(frozen=True)
class _Collected:
    seconds: float
    drain: float
    limit: str


def _launched(g: Generation, prompts: int, mode: str) -> int:
    """Groups that a simulation of P kept ones needs."""
    if mode == "sync":
        return math.ceil(prompts * max(g.gen_ratio, 1.0) / g.kept_share)
    # A third more than the mean of what filtering drops, for its chance.
    ahead = 1 + max(g.gen_ratio, g.max_staleness + 1 if mode == "async" else 1)
    return math.ceil((2 * _warm_up(g, mode) + ahead) * prompts / g.kept_share * (4 / 3 if g.kept_share < 1 else 1)) + 8


def _warm_up(g: Generation, mode: str) -> int:
    """Updates until what was launched at the same time has been replaced some times over; as many are measured."""
    return TURNOVERS * math.ceil(g.max_staleness if mode == "async" else max(g.gen_ratio, 1.0))


def _drawn(g: Generation, prompts: int, mode: str, seeds: np.random.SeedSequence) -> tuple[Drawn, NDArray[np.bool_]]:
    """Lengths of the largest batch, of which smaller ones take the first, and which groups filtering keeps."""
    lengths, filtering = (np.random.default_rng(s) for s in seeds.spawn(2))
    groups = _launched(g, prompts, mode)
    drawn = draw(g.lengths, groups=groups, group_size=g.group_size, rng=lengths)
    return drawn, filtering.random(groups) < g.kept_share


def _collected(
    g: Generation,
    law: DecodeLaw,
    prompts: int,
    replicas: int,
    mode: str,
    drawn: Drawn,
    kept: NDArray[np.bool_],
    *,
    named: bool,
) -> _Collected:
    """One simulated step, or the mean step of a steady state; its limit only where it is asked for."""
    engine = _engine(g, replicas)
    groups = _launched(g, prompts, mode)
    first = slice(groups * g.group_size)
    work: dict[str, Any] = {
        "prompt_tokens": drawn.prompt_tokens[first],
        "response_tokens": drawn.response_tokens[first],
        "environment_tokens": drawn.environment_tokens[first],
        "environment_seconds": drawn.environment_seconds[first],
        "group_size": g.group_size,
    }
    if mode == "sync":
        ds = rollout(
            law=law,
            **work,
            # All of it where only what filtering drops is launched beyond P; else as many as filtering leaves P of.
            prompts=min(groups, math.ceil(prompts / g.kept_share)) if g.gen_ratio > 1 else None,
            **engine,
        )
        drain = _drain(g, ds)
        return _Collected(float(ds["gen_time"]), drain, _limit(g, ds, replicas, drain) if named else "")
    ds = pipelined_rollout(
        law=law,
        **work,
        prompts=prompts,
        updates=2 * _warm_up(g, mode),
        mode=mode,
        gen_ratio=max(g.gen_ratio, 1.0),
        in_flight=g.max_staleness * prompts if mode == "async" else None,
        warm_up=_warm_up(g, mode),
        kept=kept[:groups] if g.kept_share < 1 else None,
        **engine,
    )
    seconds = float(np.mean(ds["step_time"].values[_warm_up(g, mode) :]))
    return _Collected(seconds, 0.0, _limit(g, ds, replicas, 0.0) if named else "")


def _engine(g: Generation, replicas: int) -> dict[str, Any]:
    blocks, fixed = (None, 0) if g.room is None else g.room.blocks(BLOCK)
    return {
        "max_num_seqs": g.max_num_seqs,
        "max_num_batched_tokens": max(g.max_num_batched_tokens, g.max_num_seqs),
        "kv_blocks": blocks,
        "fixed_blocks": fixed,
        "block_size": BLOCK,
        "replicas": replicas,
        "keep_kv": g.lengths.keep_kv,
    }


def _preempted(g: Generation, ds: xr.Dataset) -> NDArray[np.bool_]:
    """Times from which on responses wait that the cache has sent back; none where an environment holds some."""
    if ds.attrs["mode"] != "sync" or ds["preemptions_total"] == 0 or g.lengths.turns > 1:
        return np.zeros(ds["time"].size - 1, dtype=np.bool_)
    time, finish = ds["time"].values[:-1], ds["finish_time"].values
    unfinished = finish.size - np.searchsorted(np.sort(finish[np.isfinite(finish)]), time, side="right")
    return np.asarray(unfinished > ds["running"].values[:-1])


def _waited(g: Generation, ds: xr.Dataset) -> float:
    """Share of the time at which the last response was admitted, also for the second time [1]."""
    start = ds["start_time"].values
    end = float(ds["gen_time"])
    last = float(np.max(start[np.isfinite(start)], initial=0.0))
    again = ds["time"].values[1:][_preempted(g, ds)]
    return max(last, float(np.max(again, initial=0.0))) / end if end > 0 else 0.0


def _drain(g: Generation, ds: xr.Dataset) -> float:
    """Share of the time in which the batch only shrinks [1]."""
    admitted = _waited(g, ds)
    return 1 - admitted if admitted > WAITS else float(ds["tail_share"])


def _limit(g: Generation, ds: xr.Dataset, replicas: int, drain: float) -> str:
    """What generation waits for, from its running sequences over time."""
    if drain > TAIL:
        return "tail"
    time, running = ds["time"].values, ds["running"].values.astype(np.float64)
    spans = np.diff(time)
    busy = spans.sum()
    mean = float(np.sum(spans * running[:-1]) / busy) / replicas if busy > 0 else 1.0
    full = float(np.sum(spans[running[:-1] >= 0.98 * g.max_num_seqs * replicas]) / busy) if busy > 0 else 0.0
    if full > 0.5:
        return "max_num_seqs"
    if busy > 0 and np.sum(spans[_preempted(g, ds)]) / busy > 0.5:
        return "KV memory"
    # Where no share of time can be told, a cache that sends responses back all along is what they wait for.
    steady = ds.attrs["mode"] != "sync" or g.lengths.turns > 1
    if steady and int(ds["preemptions_total"]) > SENT_BACK * int(ds["responses_launched"]):
        return "KV memory"
    context = g.lengths.context_in_flight or 1.0
    if g.room is not None and mean >= 0.85 * float(g.room.concurrency_max(context)):
        return "KV memory"
    if g.deployment is None:
        return "decode step"
    parts = step_time(g.deployment, batch=max(mean, 1.0), context=context)
    name = BINDS[PARTS[int(np.argmax(parts))]]
    return LIMITS.get(name, name)


def compose(
    table: xr.Dataset, *, train_time: ArrayLike, overhead_time: ArrayLike = 0.0, split: bool = False
) -> xr.Dataset:
    """Step time, throughput, idle shares and the binding limit of every batch of a generation table.

    Parameters
    ----------
    table : xarray.Dataset
        Of `generation_table`.
    train_time : array_like, (rollout_batch,) [s]
        Log-probabilities and updates.
    overhead_time : array_like, broadcastable [s]
        What neither stage hides: synchronisation, sleep and wake.
    split : bool
        Generation and training have GPUs of their own, as the asynchronous mode always does.

    Returns
    -------
    xarray.Dataset
        The table with train_time, overhead_time, step_time [s], throughput [responses/s], gen_idle_share and
        train_idle_share [1] (of the GPUs of either side, NaN where all GPUs do both), binding_limit.
    """
    mode = table.attrs["mode"]
    gen = table["gen_time"].values
    train = np.broadcast_to(np.asarray(train_time, dtype=np.float64), gen.shape)
    other = np.broadcast_to(np.asarray(overhead_time, dtype=np.float64), gen.shape)
    beside = mode == "async"
    total = (np.maximum(gen, train) if beside else gen + train) + other
    apart = beside or split
    limit = np.where(train > gen, "trainer", table["gen_limit"].values)
    ds = table.assign(
        train_time=("rollout_batch", train),
        overhead_time=("rollout_batch", other),
        step_time=("rollout_batch", total),
        throughput=("rollout_batch", table["rollout_batch"].values / total),
        gen_idle_share=("rollout_batch", 1 - gen / total if apart else np.full(gen.shape, np.nan)),
        train_idle_share=("rollout_batch", 1 - train / total if apart else np.full(gen.shape, np.nan)),
        binding_limit=("rollout_batch", limit),
    )
    ds.attrs = dict(table.attrs)
    return set_attrs(ds)


def best_split(
    generation: Generation,
    *,
    gpus: int,
    rollout_batch: int,
    train_time: TrainTime,
    overhead_time: float | Callable[[int], float] = 0.0,
    train_step: int = 1,
    most: int = 64,
    mode: str = "async",
    draws: int = 2,
    seed: int = 0,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> xr.Dataset:
    """Throughput over the ways to divide GPUs between generation and training.

    Parameters
    ----------
    generation : Generation
    gpus : int
        In all; a split may leave some of them out.
    rollout_batch : int [responses]
    train_time : callable
        Seconds of (array of rollout batches, GPUs that train).
    overhead_time : float or callable [s]
        Or a function of the GPUs that train.
    train_step : int
        GPUs that train come in multiples of it (one data-parallel rank).
    most : int
        Divisions to try, evenly spread where there are more.
    mode : {'async', 'sync'}
        'sync' waits in turn.
    draws, seed, progress
        See `generation_table`.

    Returns
    -------
    xarray.Dataset
        Over split (GPUs that generate), without those whose trainer does not fit: training_gpus, gen_time, train_time,
        step_time, throughput, idle shares and binding_limit; `attrs["best"]` is the split of the highest throughput.

    Raises
    ------
    InputError
        If no split gives both sides a GPU, or none holds what is trained.
    """
    unit = generation.gpus_per_replica
    fits = (n for n in range(unit, gpus, unit) if n >= generation.gpus_least)
    splits = [n for n in fits if (gpus - n) // train_step * train_step >= train_step]
    if not splits:
        raise InputError(
            f"{gpus} GPUs cannot be divided into replicas of {unit} and trainers of {train_step}",
            remedy=f"use at least {generation.gpus_least + train_step}, or let all GPUs do both (mode sync)",
        )
    if len(splits) > most:
        splits = [splits[i] for i in np.unique(np.linspace(0, len(splits) - 1, most).round().astype(int))]
    rows, tried, refused = [], [], None
    for i, n in enumerate(splits):
        trainers = (gpus - n) // train_step * train_step
        try:
            seconds = train_time(np.array([float(rollout_batch)]), trainers)
        except InputError as error:
            # Few GPUs may not hold what is trained.
            refused = error
            continue
        table = generation_table(generation, rollout_batch=[rollout_batch], gpus=n, mode=mode, draws=draws, seed=seed)
        other = overhead_time(trainers) if callable(overhead_time) else overhead_time
        one = compose(table, train_time=seconds, overhead_time=other, split=True)
        rows.append(one.isel(rollout_batch=0, drop=True).assign(training_gpus=trainers))
        tried.append(n)
        progress(i + 1, len(splits))
    if not rows and refused is not None:
        raise refused
    ds = xr.concat(rows, dim="split", combine_attrs="drop").assign_coords(split=tried)
    best = int(np.argmax(ds["throughput"].values))
    ds.attrs = {"best": tried[best], "gpus": gpus, "mode": mode, "rollout_batch": rollout_batch}
    return set_attrs(ds)
