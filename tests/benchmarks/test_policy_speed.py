"""Speed of training on a softmax world, each beside a baseline of the same run; goals stand in `extra_info`.

Run with OPENBLAS_NUM_THREADS=1, so that NumPy has one thread as a run of the kernel has. Compiled beforehand; the best
of several repetitions counts, since others may use the machine meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture

from batchsim.learning.worlds import SoftmaxWorld, Trained, Trainer, softmax_world, train

GROUP, RATE = 8, 1e-3


def best(function: Callable[[], object], rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        function()
        taken.append(time.perf_counter() - start)
    return min(taken)


def kernel(world: SoftmaxWorld, prompts: int, updates: int, **more: Any) -> tuple[Trained, ...]:
    """Updates alone: evaluations at the start and at the end, nothing recorded."""
    responses = prompts * GROUP * updates
    asked = {"learning_rate": RATE, "evaluate_every": responses, "threads": 1} | more
    return train(world, Trainer(), prompts=prompts, responses_max=responses, **asked)


class Vectorised:
    """GRPO with refill and Adam in NumPy: no loop but over updates and refills, products in single precision."""

    def __init__(self, world: SoftmaxWorld, prompts: int) -> None:
        self.world, self.prompts, self.rng = world, prompts, np.random.default_rng(0)
        self.theta, self.first, self.second = (np.zeros(world.dim) for _ in range(3))
        self.updates = 0
        # Groups that suffice nearly always, as about a quarter has no variance.
        self.ask = prompts + max(4, prompts // 2)

    def add(self, gradient: NDArray[np.float32], need: int) -> int:
        """Add up to so many groups with variance, and return how many were found."""
        w, n = self.world, self.ask
        answers, dim = w.features.shape[1:]
        chosen = self.rng.integers(len(w.features), size=n)
        features = w.features[chosen].reshape(-1, dim)
        logits = w.offset[chosen] + (features @ self.theta.astype(np.float32)).reshape(n, answers)
        cumulative = np.cumsum(np.exp(logits - logits.max(axis=1, keepdims=True)), axis=1)
        u = self.rng.random((n, GROUP)) * cumulative[:, -1:]
        answer = (u[:, :, None] >= cumulative[:, None, :-1]).sum(axis=2)
        rewards = answer < w.correct
        m = rewards.sum(axis=1)
        kept = np.flatnonzero((m > 0) & (m < GROUP))[:need]
        m = m[kept, None]
        advantage = (rewards[kept] - m / GROUP) / np.sqrt(m * (GROUP - m) / (GROUP * (GROUP - 1)))
        flat = kept[:, None] * answers + answer[kept]
        weight = np.bincount(flat.ravel(), weights=advantage.ravel(), minlength=n * answers)
        gradient += (weight / (GROUP * self.prompts)).astype(np.float32) @ features
        return kept.size

    def update(self) -> None:
        gradient, got = np.zeros(self.world.dim, dtype=np.float32), 0
        while got < self.prompts:
            got += self.add(gradient, self.prompts - got)
        self.updates += 1
        self.first += 0.1 * (gradient - self.first)
        self.second += 0.001 * (gradient * gradient - self.second)
        root = np.sqrt(self.second / (1 - 0.999**self.updates)) + 1e-8
        self.theta += RATE / (1 - 0.9**self.updates) * self.first / root

    def run(self, updates: int) -> None:
        for _ in range(updates):
            self.update()


@pytest.mark.parametrize(("prompts", "goal"), [(8, 10.0), (64, 4.0)])
def test_update_against_numpy(benchmark: BenchmarkFixture, prompts: int, goal: float) -> None:
    """One thread, A = 8, G = 8, D = 128."""
    world = softmax_world()
    updates = 64_000 // prompts
    (run,) = kernel(world, prompts, updates)
    vectorised = Vectorised(world, prompts)
    vectorised.run(updates)
    # Both are the same training.
    assert world.score(run.theta) > world.score(np.zeros(world.dim)) + 0.03
    assert abs(world.score(run.theta) - world.score(vectorised.theta)) < 0.02
    numpy = best(lambda: vectorised.run(updates // 10), 20) / (updates // 10)
    benchmark.pedantic(lambda: kernel(world, prompts, updates), rounds=20)  # type: ignore[no-untyped-call]
    own = best(lambda: kernel(world, prompts, updates), 20) / updates
    benchmark.extra_info |= {
        "goal_ratio": goal,
        "numpy_over_own": numpy / own,
        "seconds_per_update": own,
        "seconds_per_group": own / prompts,
        "numpy_seconds_per_update": numpy,
    }


@pytest.mark.parametrize("prompts", [8, 64, 1024])
def test_update_against_a_product(benchmark: BenchmarkFixture, prompts: int) -> None:
    """A whole update, refills included, over BLAS's product of (P A, D) by (D,) in one place of memory: 4."""
    world = softmax_world(validation=8)
    updates = 64_000 // prompts
    kernel(world, prompts, updates)
    benchmark.pedantic(lambda: kernel(world, prompts, updates), rounds=20)  # type: ignore[no-untyped-call]
    own = best(lambda: kernel(world, prompts, updates), 20) / updates
    rng = np.random.default_rng(0)
    found: dict[str, float] = {}
    for name, kind in (("float64", np.float64), ("float32", np.float32)):
        matrix, vector = rng.standard_normal((prompts * 8, 128)).astype(kind), rng.standard_normal(128).astype(kind)
        out = np.zeros(prompts * 8, dtype=kind)

        def products(a: Any = matrix, b: Any = vector, c: Any = out) -> None:
            for _ in range(updates):
                np.dot(a, b, out=c)

        found[f"own_over_{name}"] = own / (best(products, 20) / updates)
    benchmark.extra_info |= {"goal_ratio": 4.0, "seconds_per_update": own} | found


def test_two_threads(benchmark: BenchmarkFixture) -> None:
    """Eight runs of equal length."""
    world = softmax_world()
    kernel(world, 64, 10)

    def runs(threads: int) -> Callable[[], object]:
        return lambda: kernel(world, 64, 2000, seeds=8, threads=threads)

    benchmark.pedantic(runs(2), rounds=5)  # type: ignore[no-untyped-call]
    one, two = best(runs(1), 5), best(runs(2), 5)
    benchmark.extra_info |= {"goal_ratio": 1.7, "one_over_two": one / two, "seconds": (one, two)}


def test_two_hundred_worlds(benchmark: BenchmarkFixture) -> None:
    """200 worlds, 8 batches from P = 8 to 1024, 4 seeds, .28 to .5, on two threads: 10 minutes. 4 worlds, times 50."""
    batches = 8 * 2 ** np.arange(8)

    def worlds() -> list[str]:
        outcomes = []
        for seed in range(4):
            runs = train(
                softmax_world(seed=seed), Trainer(), prompts=batches, learning_rate=3e-3 * np.sqrt(batches / 8),
                responses_max=1e7, evaluate_every=np.maximum(2000, 8 * batches), target=0.5, seeds=4, threads=2,
            )  # fmt: skip
            outcomes += [run.outcome for run in runs]
        return outcomes

    outcomes = benchmark.pedantic(worlds, rounds=3)  # type: ignore[no-untyped-call]
    assert benchmark.stats is not None
    assert outcomes == ["reached"] * 128
    seconds = float(benchmark.stats.stats.min)
    benchmark.extra_info |= {"goal_seconds": 600, "sampled_worlds": 4, "scaled_seconds": 50 * seconds}
