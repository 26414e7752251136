"""Speed and memory of the simulated rollout, beside its step-by-step twin; goals stand in `extra_info`.

Compiled beforehand. The twin counts every token, so it is timed on a small workload, as is the kernel beside it; its
ratio there is a lower bound of that at full size, since the kernel's cost does not grow with the tokens.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture

from batchsim.specs.lengths import Lengths
from batchsim.system.decode_law import DecodeLaw
from batchsim.system.rollout import Simulation, draw, rollout
from batchsim.system.rollout import _kernels as k
from batchsim.system.rollout.checks import check_engine, check_workload

sys.path.insert(0, __file__.rsplit("/benchmarks", 1)[0])
from naive_rollout import Twin

LAW = DecodeLaw(
    step_time=np.append(0.0, 0.008 + 1e-5 * np.arange(1025)), context_time=2e-8, prefill_time=1e-5, name="stated"
)
ENGINE: dict[str, Any] = {
    "max_num_batched_tokens": 8192,
    "block_size": 16,
    "fixed_blocks": 0,
    "watermark_blocks": 0,
    "share_prefix": True,
    "keep_kv": False,
    "replicas": 1,
    "dispatch": "static",
    "graph_sizes": None,
}
FIVE_PERCENT = 52_000
"""Blocks with which 5 % of the 1,024 responses below are preempted, some of them many times."""


def lengths(count: int, mean: float = 2048.0) -> NDArray[np.int64]:
    asked = Lengths(response_mean=mean, response_spread=0.8, max_tokens=16_384)
    return draw(asked, groups=count, group_size=1, rng=np.random.default_rng(0)).response_tokens


def simulation(r: NDArray[np.int64], *, most: int = 1024, blocks: int | None = None) -> Simulation:
    work = check_workload(prompt_tokens=200, response_tokens=r)
    return Simulation(law=LAW, work=work, engine=check_engine(LAW, work, max_num_seqs=most, kv_blocks=blocks, **ENGINE))


def best(function: Callable[[], object], rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        function()
        taken.append(time.perf_counter() - start)
    return min(taken)


def twin_ratio(blocks: int | None) -> float:
    """Twin's time over the kernel's on 48 responses of 60 tokens."""
    r = lengths(48, 60.0)
    room = None if blocks is None else 12 * int(-(-(r.max() + 200) // 16))
    start = time.perf_counter()
    Twin(
        law=LAW,
        prompts=[200] * r.size,
        responses=[[int(v)] for v in r],
        max_num_seqs=32,
        max_num_batched_tokens=8192,
        kv_blocks=room,
    ).run()
    twin = time.perf_counter() - start
    return twin / best(lambda: simulation(r, most=32, blocks=room).run(), 20)


@pytest.mark.parametrize(("blocks", "goal"), [(None, 0.5e-3), (FIVE_PERCENT, 5e-3)], ids=["roomy", "preempted"])
def test_1024_responses(benchmark: BenchmarkFixture, blocks: int | None, goal: float) -> None:
    """1,024 responses of 2,048 tokens, all in flight; the state is built anew for every run and counted."""
    r = lengths(1024)
    simulation(r, blocks=blocks).run()
    benchmark.pedantic(lambda: simulation(r, blocks=blocks).run(), rounds=200)  # type: ignore[no-untyped-call]
    sim = simulation(r, blocks=blocks)
    sim.run()
    whole: dict[str, Any] = {
        "law": LAW,
        "prompt_tokens": 200,
        "response_tokens": r,
        "max_num_seqs": 1024,
        "kv_blocks": blocks,
    }
    rollout(**whole)
    benchmark.extra_info |= {
        "goal_seconds": goal,
        "kernel_alone_seconds": _kernel_alone(r, blocks),
        "with_dataset_seconds": best(lambda: rollout(**whole), 50),
        "preempted_share": float((sim.seq[:, k.PREEMPTED] > 0).mean()),
        "preemptions": int(sim.totals[k.PREEMPTIONS]),
        "twin_over_own": twin_ratio(blocks),
    }


def _kernel_alone(r: NDArray[np.int64], blocks: int | None) -> float:
    taken = []
    for _ in range(50):
        sim = simulation(r, blocks=blocks)
        start = time.perf_counter()
        sim.run()
        taken.append(time.perf_counter() - start)
    return min(taken)


def test_a_million_responses(benchmark: BenchmarkFixture) -> None:
    """One million, 1,024 at a time, on one core: 0.3 s and 200 MB."""
    r = lengths(10**6)
    simulation(r[:2000]).run()
    benchmark.pedantic(lambda: simulation(r).run(), rounds=5)  # type: ignore[no-untyped-call]
    tracemalloc.start()
    ds = rollout(law=LAW, prompt_tokens=200, response_tokens=r, max_num_seqs=1024)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not ds["finish_time"].isnull().any()
    benchmark.extra_info |= {
        "goal_seconds": 0.3,
        "goal_bytes": 200e6,
        "peak_bytes_beside_the_lengths": peak,
        "with_dataset_seconds": best(
            lambda: rollout(law=LAW, prompt_tokens=200, response_tokens=r, max_num_seqs=1024), 3
        ),
    }


def test_growth(benchmark: BenchmarkFixture) -> None:
    """Exponent of the time in the number of responses, 10^4 to 10^6: within .15 of 1."""
    r = lengths(10**6)
    counts = (10**4, 10**5, 10**6)
    taken = [best(lambda n=n: simulation(r[:n]).run(), 5 if n < 10**6 else 3) for n in counts]  # type: ignore[misc]
    slope = float(np.polyfit(np.log(counts), np.log(taken), 1)[0])
    tight = [best(lambda n=n: simulation(r[:n], most=256, blocks=25_000).run(), 3) for n in counts[:2]]  # type: ignore[misc]
    benchmark.pedantic(lambda: simulation(r[: 10**4]).run(), rounds=5)  # type: ignore[no-untyped-call]
    benchmark.extra_info |= {
        "goal": "1 +- .15",
        "exponent": slope,
        "seconds": taken,
        "exponent_with_preemption_1e4_1e5": float(np.log10(tight[1] / tight[0])),
    }
    assert slope < 1.5
