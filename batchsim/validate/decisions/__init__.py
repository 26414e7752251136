r"""Decisions: is the batch that `predict` recommends from two short pilots the one that is soonest, over random worlds?

At least 200 worlds are drawn from `ranges`, each a learning side joined to a cluster. Two kinds, reported together and
apart:

    coordinates   A(B) from random coordinates, noise that grows along the run, ceilings, few updates, staleness, curves
                  of three families, noisy logs (`coordinates`); no member of the fitted law
    policies      softmax policies trained by GRPO, drawn as in `validate.worlds.ranges` (`policies`)

Both pilots together take at most a fifth of the reference run's time and end before the target. The logs go through the
public `predict`; the yardsticks are the same without norms and scores (prior only) and three habits (`choices`). 80 %
intervals of r_N and T, the reference left out, are held against the truth.

References
----------
.. [1] Li et al. 2026, arXiv:2608.29296 (the criterion that joins the two sides).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from batchsim.calibrate.learning import NOISE_SCALE_PRIOR, SNR_SHAPE_PRIOR
from batchsim.validate.decisions import ranges
from batchsim.validate.decisions.choices import HABITS, Case, judge, until_reached
from batchsim.validate.decisions.clusters import pilot_steps
from batchsim.validate.decisions.coordinates import LEARNING_RATE, World, draw_world, pilot, responses_to_target

if TYPE_CHECKING:
    import xarray as xr

CI_WORLDS = 20
DRAWS = 2000
LEVEL = 0.8
SLICES: dict[str, Callable[[dict[str, Any]], bool]] = {
    "coordinates": lambda r: r["kind"] == "coordinates",
    "policies": lambda r: r["kind"] == "policies",
    "sqrt rule": lambda r: r["rule"] == "sqrt",
    "fixed rate": lambda r: r["rule"] == "fixed",
    "ceiling, stated": lambda r: bool(r["ceiling"] and r["ceiling_stated"]),
    "ceiling, not stated": lambda r: bool(r["ceiling"] and not r["ceiling_stated"]),
    "few updates": lambda r: bool(r["few_updates"]),
    "staleness, logged": lambda r: bool(r["stale"] and r["lag_logged"]),
    "staleness, not logged": lambda r: bool(r["stale"] and not r["lag_logged"]),
    "no mechanism": lambda r: not (r["ceiling"] or r["few_updates"] or r["stale"] or r["kind"] == "policies"),
    "noise scale above the prior": lambda r: (r["noise_scale"] or 0.0) > NOISE_SCALE_PRIOR[1],
    "shape below the prior": lambda r: (r["snr_shape"] or math.inf) < SNR_SHAPE_PRIOR[0],
    "concurrency stated": lambda r: bool(r["concurrency_stated"]),
    "concurrency not stated": lambda r: not r["concurrency_stated"],
}


def validate_decisions(
    *,
    worlds: int = ranges.WORLDS,
    first: int = 0,
    stream: int = ranges.STREAM,
    policies: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> dict[str, Any]:
    """Choices and intervals over random worlds.

    Parameters
    ----------
    worlds : int
        Of coordinates.
    first : int
        Number of the first world.
    stream : int
        Another one draws other worlds from the same ranges.
    policies : int or None
        Worlds in which a policy learns; in the proportion of `ranges` if None.
    progress : callable or None
        Called with worlds done and worlds in all.

    Returns
    -------
    dict
        Plain values: name, overall, slices, rows, histogram (of the best batch, in doublings of the reference), goals,
        skipped.
    """
    from batchsim.validate.decisions.policies import policy_case

    many = policies_beside(worlds) if policies is None else policies
    rows: list[dict[str, Any]] = []
    skipped: list[str] = []
    for i in range(worlds):
        rows.append(judge(coordinate_case(first + i, stream=stream), draws=DRAWS, level=LEVEL, seed=first + i))
        if progress is not None:
            progress(i + 1, worlds + many)
    for i in range(many):
        case = policy_case(first + i, stream=stream)
        if isinstance(case, str):
            skipped.append(case)
        else:
            rows.append(judge(case, draws=DRAWS, level=LEVEL, seed=first + i))
        if progress is not None:
            progress(worlds + i + 1, worlds + many)
    slices = [{"slice": name} | score([r for r in rows if holds(r)]) for name, holds in SLICES.items()]
    return {
        "name": "decisions",
        "overall": score(rows),
        "slices": slices,
        "rows": rows,
        "histogram": histogram(rows),
        "goals": {
            "best_habit_median": ranges.HABIT_GOAL,
            "mean_over_prior": ranges.MEAN_GOAL,
            "p95": ranges.P95_GOAL,
            "coverage": list(ranges.COVERAGE_GOAL),
        },
        "skipped": skipped,
    }


def policies_beside(worlds: int) -> int:
    """Worlds in which a policy learns, beside so many of coordinates."""
    return round(worlds * ranges.POLICIES / ranges.WORLDS)


def coordinate_case(number: int, *, stream: int = ranges.STREAM) -> Case:
    """World of random coordinates with its two pilots.

    Parameters
    ----------
    number : int
    stream : int

    Returns
    -------
    Case
    """
    import xarray as xr

    world = draw_world(number, stream=stream)
    cluster = world.cluster
    batches = cluster.candidates()
    responses = np.array([responses_to_target(world, b) for b in batches])
    pilots = (world.reference, world.reference << ranges.PILOT_DOUBLINGS)
    nodes = {}
    for i, (batch, steps) in enumerate(
        zip(pilots, pilot_steps(cluster, responses[batches.index(pilots[0])]), strict=True)
    ):
        rng = np.random.default_rng(np.random.SeedSequence(stream, spawn_key=(1, number, i)))
        nodes[f"b{batch}"] = pilot(world, batch, responses=float(steps * batch), rng=rng)
    runs = xr.DataTree.from_dict(nodes)
    runs.attrs = {"framework": "simulation", "warnings": []}
    return Case(
        label=_label(world),
        cluster=cluster,
        batches=batches,
        responses=responses,
        runs=runs,
        pilot_seconds=sum(float(ds["elapsed"].values[-1]) for ds in nodes.values()),
        target=world.target,
        rule=world.rule,
        stated_ceiling=world.stated_ceiling,
        learning_rate=LEARNING_RATE,
        group_size=ranges.GROUP_SIZE,
        run=partial(_run, world, stream),
    )


def _run(world: World, stream: int, train_batch: int) -> xr.Dataset:
    """A run to the target, or for `ranges.DIVERGED` of the reference's time where it never arrives."""
    cluster = world.cluster
    needed = responses_to_target(world, train_batch)
    if not np.isfinite(needed):
        seconds = responses_to_target(world, world.reference) / float(cluster.throughput(world.reference))
        needed = ranges.DIVERGED * seconds * float(cluster.throughput(train_batch))
    # A stream for each batch: runs that shared theirs would share the spread that their ratio is to have.
    rng = np.random.default_rng(np.random.SeedSequence(stream, spawn_key=(3, world.number, train_batch)))
    spacing = world.reference * world.updates / ranges.EVALUATIONS
    # As long as a run of this world's spread takes, and one evaluation more.
    most = needed * np.exp(3 * world.spread) + max(spacing, 2.0 * train_batch)
    ds = pilot(world, train_batch, responses=most, rng=rng)
    return until_reached(ds, world.target)


def _label(world: World) -> dict[str, Any]:
    return {
        "kind": "coordinates",
        "world": world.number,
        "rule": world.rule,
        "noise_scale": world.noise_scale,
        "snr_shape": world.snr_shape if np.isfinite(world.snr_shape) else None,
        "family": world.family,
        "lr_fraction": world.lr_fraction,
        "penalty": world.penalty,
        "updates": world.updates,
        "ceiling": world.ceiling if np.isfinite(world.ceiling) else None,
        "ceiling_stated": world.stated_ceiling is not None,
        "few_updates": world.momentum_loss > 0,
        "stale": world.stale[0] > 0,
        "lag_logged": world.lag_logged,
        "concurrency_stated": world.cluster.stated,
    }


def score(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Regrets and coverage over rows; None where there are no rows.

    Parameters
    ----------
    rows : sequence of dict
        Of `choices.judge`.

    Returns
    -------
    dict
        Plain values; regrets are fractions of the best batch's time.
    """
    if not rows:
        return {"n": 0}

    def over(name: str) -> dict[str, float]:
        values = np.array([r[name] for r in rows])
        return {
            f"mean_{name}": float(values.mean()),
            f"median_{name}": float(np.median(values)),
            f"p95_{name}": float(np.quantile(values, 0.95)),
        }

    habits = {}
    for name in HABITS:
        values = np.array([r["habits"][name] for r in rows])
        habits[name] = {
            "mean_regret": float(values.mean()),
            "median_regret": float(np.median(values)),
            "p95_regret": float(np.quantile(values, 0.95)),
        }
    named = {"r_N": "covered_r_N", "T": "covered_T", "r_q": "covered_r_q"}
    coverage = {f"coverage_{k}": float(np.mean([c for r in rows for c in r[key]])) for k, key in named.items()}
    prior = over("prior_only_regret")
    errors = np.array([v for r in rows for v in r["log_error_r_N"] if v is not None])
    return {
        "n": len(rows),
        **over("regret"),
        "prior_only_mean_regret": prior["mean_prior_only_regret"],
        "prior_only_median_regret": prior["median_prior_only_regret"],
        "prior_only_p95_regret": prior["p95_prior_only_regret"],
        "regret_over_prior": float(np.mean([r["regret"] for r in rows])) / prior["mean_prior_only_regret"]
        if prior["mean_prior_only_regret"] > 0
        else None,
        **coverage,
        **over("fastest_regret"),
        **over("exact_r_q_regret"),
        **over("exact_r_N_regret"),
        **over("next_run_regret"),
        **over("both_runs_regret"),
        "next_runs_named": int(sum(r["next_run"] is not None for r in rows)),
        "prior_only_fastest_mean_regret": float(np.mean([r["prior_only_fastest_regret"] for r in rows])),
        "habits": habits,
        "best_habit": min(HABITS, key=lambda name: habits[name]["median_regret"]),
        "without_star": int(sum(r["is_null"] for r in rows)),
        "prior_without_star": int(sum(r["prior_is_null"] for r in rows)),
        "best_in_range": float(np.mean([bool(r["covered"]) for r in rows])),
        "largest_pilot_share": float(max(r["pilot_share"] for r in rows)),
        "pilots_that_reach": int(sum(r["pilots_reach"] for r in rows)),
        "median_log_error_r_N": float(np.median(errors)) if errors.size else None,
        "median_abs_log_error_r_N": float(np.median(np.abs(errors))) if errors.size else None,
    }


def histogram(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """How often each batch is the best, in doublings of the reference, and how often each is chosen."""
    found = {}
    for name in ("best_doublings", "star_doublings"):
        count = Counter(r[name] for r in rows)
        found[name.removesuffix("_doublings")] = {str(k): count[k] for k in sorted(count)}
    return found
