r"""Clusters: the mean time of a rollout step against its batch, drawn at random.

    t(R) = t_gen(R) + t_train(R),        t_gen(R) = d_0 + d_1 R + d_2 log(1 + R/B_0)   for R <= C,
                                         t_gen(R) = (R/C) t_gen(C)                     beyond,
    t_train(R) = c + gamma R

C is the largest number of concurrent responses: beyond it, generation takes waves and its throughput stays. The
logarithm is the drain of the longest response, which grows with the batch. The forecast fits an affine law with an
unknown plateau, so that it knows neither the logarithm nor where the waves begin, unless the plan states C; then it
caps the whole step's throughput instead of generation's.

References
----------
.. [1] Li et al. 2026, arXiv:2608.29296 (t_gen = d_0 + d_1 B_gen, t_train = gamma B_train, and its plateau).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchsim.validate.decisions import ranges

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Step times of one cluster.

    Parameters
    ----------
    reference : int [responses]
        B_0, rollout batch of the reference.
    gen_intercept, gen_slope, gen_tail : float [s], [s/response], [s]
        d_0, d_1, d_2.
    train_intercept, train_slope : float [s], [s/response]
    concurrency : int [responses]
        C.
    stated : bool
        Whether the plan states C.
    largest : int [responses]
        Largest batch that fits memory.
    machine_spread, step_spread : float [1]
        Standard deviations of log step time over runs and over steps of a run.
    """

    reference: int
    gen_intercept: float
    gen_slope: float
    gen_tail: float
    train_intercept: float
    train_slope: float
    concurrency: int
    stated: bool
    largest: int
    machine_spread: float
    step_spread: float

    def step_seconds(self, rollout_batch: ArrayLike) -> Floats:
        """Mean time of a rollout step [s], of any shape [responses]."""
        r = np.asarray(rollout_batch, dtype=np.float64)
        wave = np.minimum(r, self.concurrency)
        generated = self.gen_intercept + self.gen_slope * wave + self.gen_tail * np.log1p(wave / self.reference)
        return np.asarray(generated * r / wave + self.train_intercept + self.train_slope * r)

    def throughput(self, rollout_batch: ArrayLike) -> Floats:
        """Responses per second, of any shape [responses]."""
        return np.asarray(np.asarray(rollout_batch, dtype=np.float64) / self.step_seconds(rollout_batch))

    def candidates(self) -> tuple[int, ...]:
        """Batches that a user chooses from: the reference times 2^k up to the memory limit [responses]."""
        batch = self.reference >> ranges.BELOW
        found = []
        while batch <= self.largest:
            found.append(batch)
            batch *= 2
        return tuple(found)


def draw_cluster(rng: np.random.Generator, reference: int) -> Cluster:
    """Draw a cluster around a reference batch.

    Parameters
    ----------
    rng : numpy.random.Generator
    reference : int [responses]

    Returns
    -------
    Cluster
    """
    step = float(np.exp(rng.uniform(*np.log(ranges.STEP_SECONDS))))
    generation = step * rng.uniform(*ranges.GENERATION_SHARE)
    tail = generation * rng.uniform(*ranges.TAIL)
    shared = rng.uniform(*ranges.SHARED_GENERATION)
    trained = rng.uniform(*ranges.SHARED_TRAINING)
    rest = generation - tail * np.log(2.0)
    concurrency = reference * 2.0 ** rng.uniform(*ranges.CONCURRENCY_DOUBLINGS)
    doublings = int(rng.integers(ranges.MEMORY_DOUBLINGS[0], ranges.MEMORY_DOUBLINGS[1] + 1))
    return Cluster(
        reference=reference,
        gen_intercept=float(shared * rest),
        gen_slope=float((1 - shared) * rest / reference),
        gen_tail=float(tail),
        train_intercept=float(trained * (step - generation)),
        train_slope=float((1 - trained) * (step - generation) / reference),
        # Whole sequences on every GPU.
        concurrency=ranges.GPUS * max(1, round(concurrency / ranges.GPUS)),
        stated=bool(rng.uniform() < ranges.CONCURRENCY_STATED),
        largest=reference << doublings,
        machine_spread=float(rng.uniform(*ranges.MACHINE_SPREAD)),
        step_spread=float(rng.uniform(*ranges.STEP_SPREAD)),
    )


def pilot_steps(cluster: Cluster, responses: float) -> tuple[int, int]:
    """Rollout steps of the two pilots, given N* of the reference [responses]."""
    first, second = (float(cluster.step_seconds(cluster.reference << k)) for k in (0, ranges.PILOT_DOUBLINGS))
    total = ranges.PILOT_SHARE * responses / float(cluster.throughput(cluster.reference))
    steps = max(ranges.PILOT_UPDATES_MIN, int(total / 2 / second))
    return max(1, int((total - steps * second) / first)), steps
