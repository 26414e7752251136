r"""One world's choices and what they cost: the forecast's, the prior's and three habits'.

Both forecasts read the same two logs through `predict`; the prior-only one is denied norms and scores, so that it knows
the cluster as well and the learning side by priors alone. Regret is T(chosen)/T(best) - 1 over the candidates, with T
the mean time to the target, which the world knows. A run that diverges or never arrives is given up after half of the
reference's time, and the reference is run; where a forecast has no star, the reference is kept.

Further choices say what a better forecast could win: the star of the same draws with r_q, or with r_N, exactly
known, and the batch that the decision names (the star, or without one the least expected regret) once the next run has
been run to the target: alone, and beside a run of the reference to the target.

Habits know nothing of the learning side: keep the batch; the largest that fits memory; double until throughput grows
by less than a tenth (from true throughputs, which a few steps of each would show).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from batchsim.plan import Learning, Plan
from batchsim.specs.engine import Engine
from batchsim.specs.gpu import GPU
from batchsim.specs.recipe import Recipe
from batchsim.validate.decisions import ranges
from batchsim.validate.decisions.clusters import Cluster

if TYPE_CHECKING:
    import xarray as xr

Floats = NDArray[np.float64]
HABITS = ("keep", "largest", "double until throughput stops")
NORMS = ("grad_norm", "sq_norm_batch", "sq_norm_chunk")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A world, its candidates' truth, and what a user holds: two logs and a plan.

    Parameters
    ----------
    label : dict
        What the world is, as plain values.
    cluster : Cluster
    batches : tuple of int [responses]
        Candidates.
    responses : ndarray, (train_batch,) [responses]
        N*, infinite where a batch never arrives.
    runs : xarray.DataTree
        The pilots.
    pilot_seconds : float [s]
        Of both.
    target : float [1]
    rule : str
    stated_ceiling : float or None [1]
    learning_rate : float [1]
    group_size : int [responses/prompt]
    run : callable
        A further run at one of the candidates, in responses per update, until it reaches the target or is given up.
    """

    label: dict[str, Any]
    cluster: Cluster
    batches: tuple[int, ...]
    responses: Floats
    runs: xr.DataTree
    pilot_seconds: float
    target: float
    rule: str
    stated_ceiling: float | None
    learning_rate: float
    group_size: int
    run: Callable[[int], xr.Dataset]

    @property
    def seconds(self) -> Floats:
        """T of the candidates [s]."""
        return np.asarray(self.responses / self.cluster.throughput(self.batches))

    @property
    def reference(self) -> int:
        """Index of the reference among the candidates."""
        return self.batches.index(self.cluster.reference)

    def plan(self) -> Plan:
        """What the user states: the recipe, a ceiling and concurrency where they are known."""
        knows = self.stated_ceiling is not None
        return Plan(
            recipe=Recipe(
                prompts=self.cluster.reference // self.group_size,
                group_size=self.group_size,
                learning_rate=self.learning_rate,
                lr_rule=self.rule,  # type: ignore[arg-type]
                batches=self.batches,
            ),
            learning=Learning(kl_per_update=1e-3, kl_max=1e-3 * (self.stated_ceiling or 1.0) ** 2)
            if knows
            else Learning(),
            gpu=GPU(count=ranges.GPUS) if self.cluster.stated else GPU(),
            engine=Engine(max_num_seqs=self.cluster.concurrency // ranges.GPUS) if self.cluster.stated else Engine(),
        )


def until_reached(ds: xr.Dataset, target: float) -> xr.Dataset:
    """A run's log up to its first evaluation at or above the target; all of it where there is none.

    Parameters
    ----------
    ds : xarray.Dataset
    target : float [1]

    Returns
    -------
    xarray.Dataset
    """
    reached = np.flatnonzero(ds["score"].values[0] >= target)
    if not reached.size:
        return ds
    at = int(reached[0])
    steps = ds["responses"].values <= ds["evaluation_responses"].values[at] * (1 + 1e-12)
    return ds.isel(evaluation=slice(0, at + 1), rollout_step=np.flatnonzero(steps))


def without_learning(runs: xr.DataTree) -> xr.DataTree:
    """The same logs without norms and scores: step times are left."""
    import xarray as xr

    nodes = {}
    for name, node in runs.children.items():
        ds = node.to_dataset()
        ds = ds.drop_vars([v for v in NORMS if v in ds]).isel(evaluation=slice(0, 0))
        ds.attrs = {k: v for k, v in ds.attrs.items() if k != "chunks"}
        nodes[name] = ds
    tree = xr.DataTree.from_dict(nodes)
    tree.attrs = dict(runs.attrs)
    return tree


def judge(case: Case, *, draws: int, level: float, seed: int) -> dict[str, Any]:
    """Row of a case: choices, regrets and coverage.

    Parameters
    ----------
    case : Case
    draws : int
    level : float [1]
        Of intervals.
    seed : int

    Returns
    -------
    dict
        Plain values.
    """
    from batchsim.predict import predict

    options = {"plan": case.plan(), "target": case.target, "draws": draws, "level": level, "seed": seed}
    ds = predict(case.runs, **options)  # type: ignore[arg-type]
    prior = predict(without_learning(case.runs), **options)  # type: ignore[arg-type]
    star, prior_star = _chosen(ds, case), _chosen(prior, case)
    fastest, prior_fastest = _fastest(ds), _fastest(prior)
    habits = dict(zip(HABITS, habit_choices(case.cluster, case.batches), strict=True))
    best = int(np.argmin(case.seconds))
    tail = (1 - level) / 2
    ratio = {
        "sample_cost_ratio": case.responses / case.responses[case.reference],
        "time_ratio": case.seconds / case.seconds[case.reference],
        "throughput_ratio": case.cluster.throughput(case.batches) / case.cluster.throughput(case.cluster.reference),
    }
    covered = {}
    for name, true in ratio.items():
        low, high = np.quantile(ds[name].values, [tail, 1 - tail], axis=0, method="nearest")
        inside = (low <= true) & (true <= high)
        covered[name] = [bool(v) for i, v in enumerate(inside) if i != case.reference]
    mid = np.median(ds["sample_cost_ratio"].values, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        off = np.log(mid / ratio["sample_cost_ratio"])
    said = np.median(ds["time_ratio"].values, axis=0)
    return {
        **case.label,
        "claim": f"the batch to run, {case.label['kind']} world {case.label['world']}",
        "predicted": case.batches[star],
        "interval": _limits(ds.attrs["effective_range"]),
        "measured": case.batches[best],
        "error": _regret(case, star),
        "covered": _holds(ds.attrs["effective_range"], case.batches[best]),
        "peer": case.batches[prior_star],
        "reference": case.cluster.reference,
        "best_doublings": best - case.reference,
        "star_doublings": star - case.reference,
        "is_null": ds.attrs["star"] is None,
        "prior_is_null": prior.attrs["star"] is None,
        "regret": _regret(case, star),
        "prior_only_regret": _regret(case, prior_star),
        "fastest_regret": _regret(case, fastest),
        "prior_only_fastest_regret": _regret(case, prior_fastest),
        "exact_r_q_regret": _regret(case, _star_of(ds["sample_cost_ratio"].values / ratio["throughput_ratio"], case)),
        "exact_r_N_regret": _regret(case, _star_of(ratio["sample_cost_ratio"] / ds["throughput_ratio"].values, case)),
        "next_run_regret": _regret(case, _after_next_run(ds, case, options, with_reference=False)),
        "both_runs_regret": _regret(case, _after_next_run(ds, case, options, with_reference=True)),
        "next_run": None if ds.attrs["next_run"] is None else int(ds.attrs["next_run"]["train_batch"]),
        "habits": {name: _regret(case, index) for name, index in habits.items()},
        "covered_r_N": covered["sample_cost_ratio"],
        "covered_T": covered["time_ratio"],
        "covered_r_q": covered["throughput_ratio"],
        "log_error_r_N": [_finite(v) for i, v in enumerate(off) if i != case.reference],
        "time_ratio": [_finite(v) for v in ratio["time_ratio"]],
        "predicted_time_ratio": [_finite(v) for v in said],
        "noise_scale_predicted": float(np.median(ds["noise_scale"].values)),
        "pilot_share": case.pilot_seconds / float(case.seconds[case.reference]),
        "pilots_reach": any(
            bool((node.to_dataset()["score"].values >= case.target).any()) for node in case.runs.children.values()
        ),
    }  # fmt: skip


def _star_of(time_ratio: Floats, case: Case) -> int:
    """Index of the star of draws over (draw, train_batch), the reference's without one."""
    from batchsim.time_to_target import star

    found = star(time_ratio)
    return case.reference if found is None else found


def _after_next_run(ds: xr.Dataset, case: Case, options: dict[str, Any], *, with_reference: bool) -> int:
    """Index that the decision names once the next run is measured, and the reference run to the target if asked."""
    import xarray as xr

    from batchsim.predict import predict
    from batchsim.recommend.decision import decide

    named = ds.attrs["next_run"]
    if named is not None:
        nodes = {name: node.to_dataset() for name, node in case.runs.children.items()}
        if with_reference:
            nodes = {n: v for n, v in nodes.items() if v.attrs["train_batch"] != case.cluster.reference}
            nodes["whole_reference"] = case.run(case.cluster.reference)
        nodes["next_run"] = case.run(int(named["train_batch"]))
        runs = xr.DataTree.from_dict(nodes)
        runs.attrs = dict(case.runs.attrs)
        ds = predict(runs, **options)
    return case.batches.index(int(decide(ds).train_batch))


def _chosen(ds: xr.Dataset, case: Case) -> int:
    """Index of the star, the reference's without one."""
    star = ds.attrs["star"]
    return case.reference if star is None else int(np.flatnonzero(ds["train_batch"].values == star)[0])


def _fastest(ds: xr.Dataset) -> int:
    """Index of the batch with the least expected regret."""
    from batchsim.recommend import expected_regret

    return int(np.argmin(expected_regret(ds["time_ratio"].values)))


def habit_choices(cluster: Cluster, batches: tuple[int, ...]) -> tuple[int, int, int]:
    """Indices that the three habits choose, in the order of `HABITS`."""
    reference = batches.index(cluster.reference)
    at = reference
    q = cluster.throughput(batches)
    while at + 1 < len(batches) and q[at + 1] >= ranges.STILL_GROWS * q[at]:
        at += 1
    return reference, len(batches) - 1, at


def _regret(case: Case, index: int) -> float:
    seconds = case.seconds
    spent = float(seconds[index])
    if not math.isfinite(spent):
        spent = (1 + ranges.DIVERGED) * float(seconds[case.reference])
    return spent / float(seconds.min()) - 1


def _limits(limits: tuple[float, float] | None) -> list[float] | None:
    return None if limits is None else [float(b) for b in limits]


def _holds(limits: tuple[float, float] | None, batch: int) -> bool | None:
    return None if limits is None else bool(limits[0] <= batch <= limits[1])


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
