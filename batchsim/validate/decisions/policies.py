r"""Decisions in worlds where a policy learns: softmax policies trained by GRPO, joined to random clusters.

Worlds are those of `validate.worlds.ranges`, with numbers that no other validation draws. The reference has eight
prompts, and its rate is set, in two looks, to reach the target in about a drawn number of updates; what share of the
best rate that is, nobody asks. N* of every candidate is the mean over seeds of the first crossing on exact evaluations;
a batch that has not arrived after `PATIENCE` times the smallest one's responses counts as one that never does. Here
nothing is assumed about A(B), curves, momentum or noise: all of it is what Adam does on sampled groups. Only time is a
law. The pilots are two further runs of `simulate_grpo`, with its chunk norms.

The softmax worlds' noise scales are a few hundred to a few thousand responses, and their runs are short: what they add
to the coordinate worlds is learning, not reach.

References
----------
.. [1] Li et al. 2026, arXiv:2608.29296 (GRPO under the sqrt rule).
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from batchsim.learning.worlds import SoftmaxWorld, Trainer, mean_responses, simulate_grpo, train
from batchsim.learning.worlds.softmax import Floats
from batchsim.validate.decisions import ranges
from batchsim.validate.decisions.choices import Case, until_reached
from batchsim.validate.decisions.clusters import Cluster, draw_cluster, pilot_steps
from batchsim.validate.worlds.ranges import ROWS, Drawn, draw

if TYPE_CHECKING:
    import xarray as xr

FIRST = 2000
"""Number of the first world: no other validation draws so far."""
PROMPTS = 8
"""Of the reference: as many groups as an update has chunks."""
UPDATES = (80.0, 320.0)
"""Of the reference to the target, log-uniform; met within some ten percent."""
FIRST_RATE = 0.01
SEEDS = 4
PATIENCE = 4.0
EVALUATIONS = 120
"""Up to N* of the smallest batch."""


def policy_case(number: int, *, stream: int = ranges.STREAM) -> Case | str:
    """World in which a policy learns, with its two pilots.

    Parameters
    ----------
    number : int
        Rows of `worlds.ranges.ROWS` take turns.
    stream : int

    Returns
    -------
    Case or str
        The reason where the world cannot be asked.
    """
    row = ROWS[number % len(ROWS)]
    drawn = draw(row, FIRST + number // len(ROWS) + 1000 * abs(stream - ranges.STREAM))
    rng = np.random.default_rng(np.random.SeedSequence(stream, spawn_key=(2, number)))
    world = drawn.build()
    name = f"policies world {number} ({row})"
    reference = PROMPTS * drawn.group_size
    cluster = draw_cluster(rng, reference)
    rule = str(rng.choice(list(ranges.RULES), p=list(ranges.RULES.values())))
    power = 0.5 if rule == "sqrt" else 0.0
    batches = cluster.candidates()
    rate = _rate(world, drawn, reference, float(np.exp(rng.uniform(*np.log(UPDATES)))))
    if math.isnan(rate):
        return f"{name}: the reference does not reach the target"
    rates = rate * (np.array(batches) / reference) ** power
    responses = _responses(world, drawn, batches, rates)
    at = responses[batches.index(reference)]
    if not np.isfinite(at):
        return f"{name}: the reference does not reach the target"
    steps = pilot_steps(cluster, float(at))
    if steps[0] < ranges.PILOT_UPDATES_MIN:
        return f"{name}: the reference takes too few updates for two pilots of a fifth"
    by_batch = dict(zip(batches, rates.tolist(), strict=True))
    pilots = (reference, reference << ranges.PILOT_DOUBLINGS)
    spent = np.array(pilots, dtype=np.float64) * steps
    runs = _runs(
        world, drawn, cluster, {b: by_batch[b] for b in pilots}, spent=spent, every=spent / 2, seed=4, rng=rng
    )  # fmt: skip
    return Case(
        label={
            "kind": "policies", "world": number, "rule": rule, "noise_scale": None, "snr_shape": None, "family": row,
            "lr_fraction": None, "penalty": None, "updates": float(at / reference), "ceiling": None,
            "ceiling_stated": False, "few_updates": False, "stale": False, "lag_logged": False,
            "concurrency_stated": cluster.stated,
        },
        cluster=cluster,
        batches=batches,
        responses=responses,
        runs=runs,
        pilot_seconds=sum(float(node.to_dataset()["elapsed"].values[-1]) for node in runs.children.values()),
        target=drawn.target,
        rule=rule,
        stated_ceiling=None,
        learning_rate=float(rate),
        group_size=drawn.group_size,
        run=partial(_to_target, world, drawn, cluster, by_batch, float(at), (stream, number)),
    )  # fmt: skip


def _rate(world: SoftmaxWorld, drawn: Drawn, reference: int, updates: float) -> float:
    """Rate at which the reference takes about so many updates; NaN where it does not arrive."""
    rate = FIRST_RATE
    for _ in range(2):
        look = train(
            world, Trainer(), prompts=PROMPTS, group_size=drawn.group_size, learning_rate=rate, seed=1,
            responses_max=20_000.0 * reference, evaluate_every=2.0 * reference, target=drawn.target,
        )  # fmt: skip
        needed, _ = mean_responses(look, drawn.target)
        if not np.isfinite(needed[0]):
            return math.nan
        # Far below the best rate, updates to the target go as its inverse.
        rate *= float(needed[0]) / (reference * updates)
    return rate


def _responses(world: SoftmaxWorld, drawn: Drawn, batches: tuple[int, ...], rates: Floats) -> Floats:
    """N* of every candidate [responses]; infinite beyond `PATIENCE` times the smallest batch's."""
    group = drawn.group_size
    first = train(
        world, Trainer(), prompts=batches[0] // group, group_size=group, learning_rate=rates[0], seed=2,
        responses_max=20_000.0 * batches[0], evaluate_every=20.0 * batches[0], target=drawn.target,
    )  # fmt: skip
    guess, _ = mean_responses(first, drawn.target)
    if not np.isfinite(guess[0]):
        return np.full(len(batches), np.inf)
    runs = train(
        world, Trainer(), prompts=np.array(batches) // group, group_size=group, learning_rate=rates, seeds=SEEDS,
        seed=3, responses_max=PATIENCE * guess[0], evaluate_every=guess[0] / EVALUATIONS, target=drawn.target,
    )  # fmt: skip
    needed, _ = mean_responses(runs, drawn.target)
    return np.asarray(needed)


def _runs(
    world: SoftmaxWorld,
    drawn: Drawn,
    cluster: Cluster,
    rates: dict[int, float],
    *,
    spent: Floats,
    every: Floats,
    seed: int,
    rng: np.random.Generator,
) -> xr.DataTree:
    """Runs of one seed each, one per batch and its rate, with step times of the cluster."""
    import xarray as xr

    batches = np.array(list(rates))
    tree = simulate_grpo(
        world,
        prompts=batches // drawn.group_size,
        group_size=drawn.group_size,
        learning_rate=np.array(list(rates.values())),
        responses_max=spent,
        evaluate_every=every,
        seed=seed,
    )
    nodes = {}
    for (name, node), batch in zip(tree.children.items(), batches, strict=True):
        ds = node.to_dataset()
        machine = math.exp(cluster.machine_spread * rng.standard_normal())
        noise = cluster.step_spread * rng.standard_normal(ds.sizes["rollout_step"])
        seconds = float(cluster.step_seconds(batch)) * machine * np.exp(noise - cluster.step_spread**2 / 2)
        ds["step_seconds"] = ("rollout_step", seconds)
        ds["elapsed"] = ("rollout_step", np.cumsum(seconds))
        rows = np.searchsorted(ds["responses"].values, ds["evaluation_responses"].values, side="right")
        began = np.concatenate([[0.0], np.cumsum(seconds)])[rows]
        ds["evaluation_elapsed"] = ds["evaluation_wall"] = ("evaluation", began)
        nodes[name] = ds
    runs = xr.DataTree.from_dict(nodes)
    runs.attrs = dict(tree.attrs)
    return runs


def _to_target(
    world: SoftmaxWorld,
    drawn: Drawn,
    cluster: Cluster,
    rates: dict[int, float],
    needed: float,
    case: tuple[int, int],
    train_batch: int,
) -> xr.Dataset:
    """One further run, to the target or for `PATIENCE` times what the reference needs [responses]."""
    stream, number = case
    rng = np.random.default_rng(np.random.SeedSequence(stream, spawn_key=(3, number, train_batch)))
    runs = _runs(
        world,
        drawn,
        cluster,
        {train_batch: rates[train_batch]},
        spent=np.array([PATIENCE * needed]),
        every=np.array([needed / ranges.EVALUATIONS]),
        seed=int(rng.integers(2**32)),
        rng=rng,
    )
    (node,) = runs.children.values()
    return until_reached(node.to_dataset(), drawn.target)
