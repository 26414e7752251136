"""Answers as JSON: schema 1, the same keys for every verb.

Intervals are [low, high]; a censored lower limit is 0 and null means unbounded or unknown, never NaN or
Infinity. The point estimates behind intervals stand under `estimates`.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from batchsim.logs import keys
from batchsim.variables import SCHEMA

if TYPE_CHECKING:
    from batchsim.recommend import Experiment, Knee


def write(answer: dict[str, Any]) -> None:
    """Print an answer as one JSON object."""
    # Whole before any of it is written: an object that cannot be printed leaves nothing behind.
    text = json.dumps(answer, indent=1, allow_nan=False, ensure_ascii=False)
    sys.stdout.write(f"{text}\n")


def number(value: Any) -> float | int | None:
    """A finite number, whole ones as int; None for NaN and infinities."""
    x = float(value)
    if not math.isfinite(x):
        return None
    return int(x) if x.is_integer() and abs(x) < 2**53 else x


def interval(low: Any, high: Any) -> list[float | int | None] | None:
    """[low, high], or None where both are unknown."""
    return None if math.isnan(float(low)) and math.isnan(float(high)) else [number(low), number(high)]


def from_measurement(
    measured: xr.DataTree, by_target: xr.Dataset | None = None, knee: Knee | None = None
) -> dict[str, Any]:
    """Answer of `measure`.

    Parameters
    ----------
    measured : xarray.DataTree
        From `measure.measure`.
    by_target : xarray.Dataset or None
        From `measure.measure_targets`.
    knee : Knee or None
        From `recommend.knee_of_runs`.

    Returns
    -------
    dict
        Plain values, ready for `json.dumps(..., allow_nan=False)`.
    """
    arms, runs = measured["arms"].to_dataset(), measured["runs"].to_dataset()
    attrs = measured.attrs
    answer = {
        "schema": SCHEMA,
        "verb": "measure",
        "framework": attrs["framework"],
        "target": attrs["target"],
        "metric": attrs["metric"],
        "metrics": attrs["metrics"],
        "level": attrs["level"],
        "reference_batch": number(attrs["reference_batch"]),
        "batches": [_arm(arms.isel(arm=i)) for i in range(arms.sizes["arm"])],
        "effective_range": None,
        "star": None,
        "critical_train_batch": None,
        "critical_gen_batch": None,
        "band": number(attrs["band"]),
        "aligned_up_to": attrs["aligned_up_to"],
        "noise_scales": attrs["noise_scales"],
        "runs": [_run(runs, i) for i in range(runs.sizes["run"])],
        "warnings": attrs["warnings"],
    }
    if by_target is not None:
        answer["targets"] = [
            {
                "target": float(t),
                "batches": [_arm(by_target.sel(target=t).isel(arm=i)) for i in range(by_target.sizes["arm"])],
            }
            for t in by_target["target"].values
        ]
    if knee is not None:
        answer["knee"] = from_knee(knee)
    return answer


def from_knee(knee: Knee) -> dict[str, Any]:
    """Explanations of a departure and experiments that tell them apart, as plain values."""
    experiments = [_experiment(e) for e in knee.experiments]
    return {
        "train_batch": number(knee.train_batch),
        "is_shown": knee.is_shown,
        "explanations": [
            {
                "name": e.name,
                "probability": e.probability,
                "sample_cost_ratio": [number(v) for v in e.sample_cost_ratio],
                "sentence": e.sentence,
            }
            for e in knee.explanations
        ],
        "experiments": experiments,
        "cheapest": None if knee.cheapest is None else _experiment(knee.cheapest),
        "sentences": list(knee.sentences),
    }


def _experiment(experiment: Experiment) -> dict[str, Any]:
    return {
        "name": experiment.name,
        "cost": experiment.cost,
        "information": experiment.information,
        "outcomes": experiment.outcomes,
    }


BOUNDED = ("responses_to_target", "time_to_target", "time_with_evaluation", "time_ratio", "sample_cost_ratio")
PLAIN = (
    "train_batch",
    "rollout_batch",
    "prompts",
    "group_size",
    "learning_rate",
    "throughput",
    "throughput_with_evaluation",
    "throughput_ratio",
    "throughput_ratio_se",
    "sample_cost_ratio_se",
    "p_wins",
    "step_seconds",
    "kept_share",
    "generation_seconds",
    "training_seconds",
    "logprob_seconds",
    "reward_seconds",
    "sync_seconds",
    "first_evaluation_responses",
    "first_evaluation_time",
    "first_evaluation_time_ratio",
)


def _arm(arm: xr.Dataset) -> dict[str, Any]:
    row: dict[str, Any] = {name: number(arm[name]) for name in PLAIN if name in arm}
    row |= {name: interval(arm[name].values[0], arm[name].values[2]) for name in BOUNDED}
    row |= {
        "lr_rule": str(arm["lr_rule"].values) or None,
        "verdict": str(arm["verdict"].values) or None,
        "binding_limit": None,
        "alignment": {
            "outcome": str(arm["alignment"].values) or None,
            "gap": number(arm["alignment_gap"].values[1]),
            "interval": interval(arm["alignment_gap"].values[0], arm["alignment_gap"].values[2]),
            "responses": number(arm["alignment_at"]),
        },
        "runs": int(arm["runs"]),
        "estimates": {name: number(arm[name].values[1]) for name in BOUNDED},
    }
    return row


def _run(runs: xr.Dataset, i: int) -> dict[str, Any]:
    run = runs.isel(run=i)
    row: dict[str, Any] = {
        "run": str(run["run"].values),
        "path": runs.attrs["path"][i],
        "framework": runs.attrs["framework"][i],
        "train_batch": number(run["train_batch"]),
        "learning_rate": number(run["learning_rate"]),
        "censoring": str(run["censoring"].values) or None,
        "throughput": number(run["throughput"]),
        "throughput_with_evaluation": number(run["throughput_with_evaluation"]),
        "warnings": runs.attrs["warnings"][i],
    }
    bounds = ("responses_to_target", "time_to_target", "time_with_evaluation")
    return row | {name: interval(run[name].values[0], run[name].values[2]) for name in bounds}


def from_prediction(
    ds: xr.Dataset, compared: Sequence[dict[str, Any]] = (), *, trainer: str | None = None, epochs: int = 1
) -> dict[str, Any]:
    """Answer of `predict`.

    Parameters
    ----------
    ds : xarray.Dataset
        From `predict.predict`.
    compared : sequence of dict
        From `predict.compare`.
    trainer : str or None
        Framework whose keys `settings` uses; the one that the measured logs name if None.
    epochs : int [1]
        Passes over the data of one rollout step, which the batches alone do not tell.

    Returns
    -------
    dict
        Plain values, ready for `json.dumps(..., allow_nan=False)`.
    """
    attrs = ds.attrs
    measured = from_measurement(attrs["measured"]) if attrs["measured"] is not None else None
    chosen = attrs["effective_range"]
    return {
        "schema": SCHEMA,
        "verb": "predict",
        "target": attrs["target"],
        "metric": attrs["metric"],
        "level": attrs["level"],
        "reference_batch": number(attrs["reference_batch"]),
        "lr_rule": attrs["lr_rule"],
        "batches": [_candidate(ds, i) for i in range(ds.sizes["train_batch"])],
        "effective_range": None if chosen is None else [number(b) for b in chosen],
        "star": None if attrs["star"] is None else number(attrs["star"]),
        "at_least": attrs["at_least"],
        "critical_train_batch": _draw_interval(ds, "critical_train_batch", open_above=attrs["at_least"]),
        "critical_gen_batch": _draw_interval(ds, "critical_gen_batch"),
        "critical_gen_limit": attrs["critical_gen_limit"],
        "ridge_batch": attrs["ridge_batch"],
        "next_run": attrs["next_run"],
        "decision": _decision(ds),
        "what_if": attrs["what_if"],
        "regimes": attrs["regimes"],
        "plateau": attrs["plateau"],
        "decoupled": attrs["decoupled"],
        "growth": attrs["growth"],
        "settings": _settings(ds, trainer_of_prediction(ds, trainer), epochs),
        "parameters": {
            name: {"interval": _draw_interval(ds, name), "source": attrs["sources"][name]}
            for name in ("noise_scale", "snr_shape", "lr_fraction", "penalty_shape", "curvature_ratio")
        },
        "noise_scales": attrs["noise_scale_records"],
        "measured": measured["batches"] if measured is not None else [],
        "compared": [
            row
            | {"train_batch": number(row["train_batch"])}
            | {name: interval(*row[name]) for name in ("interval", "measured_interval")}
            for row in compared
        ],
        "seed": attrs["seed"],
        "warnings": attrs["warnings"],
    }


TARGET_KEYS = ("target", "batches", "effective_range", "star", "at_least", "critical_train_batch", "critical_gen_batch")
"""What an answer of several targets repeats for each of them."""


def from_target(ds: xr.Dataset) -> dict[str, Any]:
    """What a forecast of one target among several says.

    Parameters
    ----------
    ds : xarray.Dataset
        From `predict.predict`.

    Returns
    -------
    dict
    """
    whole = from_prediction(ds)
    return {key: whole[key] for key in (*TARGET_KEYS, "warnings")}


def _decision(ds: xr.Dataset) -> dict[str, Any]:
    """The batch to run, and why."""
    from batchsim.recommend import decide

    found = decide(ds)
    return {
        "train_batch": number(found.train_batch),
        "is_star": found.is_star,
        "p_near_best": found.p_near_best,
        "expected_regret": found.expected_regret,
        "is_known": found.is_known,
        "sentences": list(found.sentences),
    }


def trainer_of_prediction(ds: xr.Dataset, trainer: str | None) -> str:
    """The framework that is named, else that of the measured logs; '' without any."""
    if trainer is not None:
        return trainer
    measured = ds.attrs["measured"]
    return "" if measured is None else str(measured.attrs["framework"])


def _settings(ds: xr.Dataset, trainer: str, epochs: int) -> dict[str, list[str]]:
    """Lines that run the star and the next run worth measuring; empty where there is none."""
    next_run = ds.attrs["next_run"]
    wanted = {"star": ds.attrs["star"], "next_run": None if next_run is None else next_run["train_batch"]}
    return {which: [] if b is None else _setting(ds, float(b), trainer, epochs) for which, b in wanted.items()}


def _setting(ds: xr.Dataset, batch: float, trainer: str, epochs: int) -> list[str]:
    row = ds.sel(train_batch=batch)
    rollout, prompts = float(row["rollout_batch"]), float(row["prompts"])
    updates = rollout * epochs / batch
    # A reference of another number of epochs, or a candidate between two whole batches, has no settings.
    if not all(value.is_integer() for value in (batch, prompts, updates)):
        return []
    candidate = keys.Candidate(
        train_batch=int(batch),
        prompts=int(prompts),
        group_size=int(ds.attrs["group_size"]),
        updates_per_rollout=int(updates),
        epochs=epochs,
        learning_rate=number(row["learning_rate"]),
    )
    return keys.lines(trainer, candidate)


def quantiles(values: Any, level: float) -> tuple[float, float, float]:
    """Lower limit, median and upper limit of draws; order statistics, so that infinity may be one."""
    tail = (1 - level) / 2
    low, middle, high = np.quantile(values, [tail, 0.5, 1 - tail], method="nearest")
    return float(low), float(middle), float(high)


def _draw_interval(ds: xr.Dataset, name: str, *, open_above: bool = False) -> list[float | int | None] | None:
    low, _, high = quantiles(ds[name].values, ds.attrs["level"])
    return interval(low, math.inf if open_above else high)


DRAWN = (
    "responses_to_target",
    "time_to_target",
    "time_ratio",
    "sample_cost_ratio",
    "throughput",
    "throughput_ratio",
    "step_time",
    "gpu_hours",
    "cost",
)


def _candidate(ds: xr.Dataset, i: int) -> dict[str, Any]:
    row, level = ds.isel(train_batch=i), ds.attrs["level"]
    limits = {name: quantiles(row[name].values, level) for name in DRAWN if name in row}
    answer: dict[str, Any] = {
        "train_batch": number(row["train_batch"]),
        "rollout_batch": number(row["rollout_batch"]),
        "prompts": number(row["prompts"]),
        "group_size": ds.attrs["group_size"],
        "learning_rate": number(row["learning_rate"]),
        "lr_rule": ds.attrs["lr_rule"],
    }
    if "step_time_law" in row:
        low, middle, high = (float(v) for v in row["step_time_law"].values)
        limits["step_time_law"] = (low, middle, high)
    answer |= {name: interval(low, high) for name, (low, _, high) in limits.items()}
    if ds.attrs["at_least"]:
        # Without an upper limit of the noise scale r_N may be as low as an infinite one makes it.
        floor = quantiles(row["sample_cost_ratio_floor"].values, level)[0]
        answer["sample_cost_ratio"] = interval(floor, limits["sample_cost_ratio"][2])
    answer |= {
        "throughput_ratio_se": number(np.std(row["throughput_ratio"].values)),
        "p_wins": number(row["p_wins"]),
        "p_diverges": float(np.mean(np.isinf(row["sample_cost_ratio"].values))),
        "verdict": str(row["verdict"].values) or None,
        "binding_limit": str(row["binding_limit"].values) or None,
        "estimates": {name: number(middle) for name, (_, middle, _) in limits.items()},
    }
    return answer
