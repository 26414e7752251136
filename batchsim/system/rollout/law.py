r"""From exact rollouts to the local law of generation.

    t_gen = max(d_0 + d_1 B_gen, B_gen/q_gen_max)

d_1 is the slope between two batches on either side of one, t_gen averaged over draws of lengths; the draws are common
to all batches (a larger batch holds the responses of a smaller one), so that their noise largely cancels. A batch is a
whole number of groups, and a slope per response is that of the largest response too: the expected maximum grows with
the logarithm of the batch, and the tail is part of the tangent.

q_gen_max is the throughput at the cap: with max_num_seqs or the cache full all the time, a batch many times the
concurrency takes time in proportion to itself. It is the inverse slope between two such batches, which leaves out the
drain at the end that both have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from batchsim.errors import InputError
from batchsim.specs.lengths import Lengths
from batchsim.system.decode_law import DecodeLaw
from batchsim.system.rollout import _kernels as k
from batchsim.system.rollout.checks import check_engine, check_workload
from batchsim.system.rollout.engine import Simulation
from batchsim.system.rollout.lengths import draw
from batchsim.variables import set_attrs

DEFAULTS: dict[str, Any] = {
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
    "kv_blocks": None,
    "block_size": 16,
    "fixed_blocks": 0,
    "watermark_blocks": 0,
    "share_prefix": True,
    "replicas": 1,
    "dispatch": "static",
    "graph_sizes": None,
}


def generation_curve(
    batches: Sequence[int],
    *,
    law: DecodeLaw,
    lengths: Lengths,
    group_size: int = 1,
    draws: int = 8,
    seed: int = 0,
    progress: Callable[[int, int], object] = lambda done, total: None,
    **engine: Any,
) -> xr.Dataset:
    """Time to generate batches of several sizes, B_gen -> t_gen.

    Parameters
    ----------
    batches : sequence of int, (gen_batch,) [responses]
        Whole numbers of groups.
    law : DecodeLaw
    lengths : Lengths
    group_size : int
    draws : int
        Of the lengths, common to all batches.
    seed : int
    progress : callable
        Takes the rollouts done and those to do.
    **engine
        Settings of `rollout`: max_num_seqs, kv_blocks, block_size, replicas, ...

    Returns
    -------
    xarray.Dataset
        gen_time (mean over draws), gen_time_se (its standard error, of what is common to all batches too) and
        gen_throughput over gen_batch.

    Raises
    ------
    InputError
        As `rollout`, and for batches that are no whole number of groups.
    """
    sizes = [int(b) for b in batches]
    for size in sizes:
        if size < group_size or size % group_size:
            raise InputError(
                f"a batch of {size} responses is no whole number of groups of {group_size}",
                remedy=f"a multiple of {group_size}",
            )
    times = np.stack(
        [_times(sizes, law, lengths, group_size, seed, i, engine, progress, draws) for i in range(_at_least_one(draws))]
    )
    mean = times.mean(axis=0)
    error = times.std(axis=0, ddof=1) / np.sqrt(draws) if draws > 1 else np.full(len(sizes), np.nan)
    ds = xr.Dataset(
        {
            "gen_time": ("gen_batch", mean),
            "gen_time_se": ("gen_batch", error),
            "gen_throughput": ("gen_batch", np.array(sizes) / mean),
        },
        coords={"gen_batch": sizes},
        attrs={"law": law.name, "draws": draws, "seed": seed},
    )
    return set_attrs(ds)


def generation_law(
    gen_batch: int,
    *,
    law: DecodeLaw,
    lengths: Lengths,
    group_size: int = 1,
    draws: int = 16,
    seed: int = 0,
    width: float = 0.25,
    progress: Callable[[int, int], object] = lambda done, total: None,
    **engine: Any,
) -> xr.Dataset:
    """Tangent of the generation time at a batch, and the plateau of generation.

    Parameters
    ----------
    gen_batch : int [responses]
        B_gen, a whole number of groups.
    law, lengths, group_size, draws, seed, progress, **engine
        See `generation_curve`.
    width : float in (0, 1) [1]
        The slope is taken between B (1 - width) and B (1 + width).

    Returns
    -------
    xarray.Dataset
        gen_time_intercept d_0 [s], gen_time_slope d_1 [s/response], gen_throughput_max [responses/s] and gen_time [s].
        A tangent of a concave curve has d_0 > 0; beyond the cap d_0 holds the drain and 1/d_1 nears the plateau.

    Raises
    ------
    InputError
        As `generation_curve`, and for a width outside its bounds.
    """
    if not 0 < width < 1:
        raise InputError(f"width is {width:g}, and it must lie between 0 and 1")
    groups = gen_batch // group_size
    if groups < 2 or gen_batch % group_size:
        raise InputError(
            f"a tangent at {gen_batch} responses needs two groups of {group_size} or more, whole ones",
            remedy="raise gen_batch",
        )
    reach = max(1, round(width * groups))
    low, high = max(1, groups - reach), groups + reach
    settings = DEFAULTS | engine
    cap = _concurrency(settings, lengths)
    full = -(-8 * cap // group_size)
    sizes = [group_size * n for n in (low, groups, high, full, 2 * full)]
    curve = generation_curve(
        sizes,
        law=law,
        lengths=lengths,
        group_size=group_size,
        draws=draws,
        seed=seed,
        progress=progress,
        **engine,
    )
    t, b = curve["gen_time"].values, np.array(sizes, dtype=np.float64)
    slope = (t[2] - t[0]) / (b[2] - b[0])
    ds = xr.Dataset(
        {
            "gen_time_intercept": t[1] - slope * b[1],
            "gen_time_slope": slope,
            "gen_throughput_max": (b[4] - b[3]) / (t[4] - t[3]),
            "gen_time": t[1],
        },
        coords={"gen_batch": gen_batch},
        attrs=curve.attrs | {"width": width, "plateau_batches": (sizes[3], sizes[4])},
    )
    return set_attrs(ds)


def _concurrency(settings: dict[str, Any], lengths: Lengths) -> int:
    """Sequences that can run at the same time, about."""
    cap = settings["max_num_seqs"]
    context = lengths.context_in_flight
    if settings["kv_blocks"] is not None and context is not None:
        per_sequence = context / settings["block_size"] + 0.5 + settings["fixed_blocks"]
        cap = min(cap, max(1, int(settings["kv_blocks"] / per_sequence)))
    return int(cap * settings["replicas"])


def _times(
    sizes: list[int],
    law: DecodeLaw,
    lengths: Lengths,
    group_size: int,
    seed: int,
    number: int,
    engine: dict[str, Any],
    progress: Callable[[int, int], object],
    draws: int,
) -> NDArray[np.float64]:
    """Times of all batches with one draw of lengths; larger batches begin with the responses of smaller ones."""
    rng = np.random.default_rng(np.random.SeedSequence([seed, number]))
    drawn = draw(lengths, groups=max(sizes) // group_size, group_size=group_size, rng=rng)
    unknown = set(engine) - set(DEFAULTS)
    if unknown:
        raise InputError(f"no setting '{min(unknown)}'", remedy=f"known: {', '.join(DEFAULTS)}")
    settings = DEFAULTS | {"keep_kv": lengths.keep_kv} | engine
    times = np.empty(len(sizes))
    for i, size in enumerate(sizes):
        work = check_workload(
            prompt_tokens=drawn.prompt_tokens[:size],
            response_tokens=drawn.response_tokens[:size],
            group_size=group_size,
            environment_tokens=drawn.environment_tokens[:size],
            environment_seconds=drawn.environment_seconds[:size],
            share_prefix=settings["share_prefix"],
        )
        sim = Simulation(law=law, work=work, engine=check_engine(law, work, **settings))
        assert sim.run() == k.AT_REST
        times[i] = sim.now
        progress(number * len(sizes) + i + 1, draws * len(sizes))
    return times


def _at_least_one(draws: int) -> int:
    if draws < 1:
        raise InputError(f"{draws} draws; at least 1 is needed")
    return draws
