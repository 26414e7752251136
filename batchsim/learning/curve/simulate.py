r"""Simulated runs that look like logs: evaluation noise, evaluation grid and spread between runs.

A run of the recipe with sample cost r follows the warped reference curve (`warp`) with its own pace,

    J_i = J_ref(N_B^-1(N_i e^z)) + error_i e_i,     z ~ N(0, spread^2) per run,   e_i ~ N(0, 1) per evaluation

at the evaluations N_i = 0, d, 2 d, ... that its rollout steps allow: an evaluation follows a whole step, so a
spacing below the rollout batch becomes the rollout batch. N* of the run is N*_B e^-z, so `spread` is the standard
deviation of log N* between runs, and what a reader of the log finds is blurred by grid and error on top.

The Datasets have the variables, dimensions and attributes that `batchsim.logs` gives a real log, with which
`measure` and everything after it can be put to the test: the truth is known here
(`true_responses_to_target` needs a target). On a saturating curve with N* = 120k responses, a slope of .62 points per
10k and an error of 1 point, the first crossing averages .93, .98, 1.05 and 1.14 of N* on grids of 4k, 8k, 16k and 32k.

References
----------
.. [1] Li et al. 2026, arXiv:2608.29296 (curves compared at equal responses).
.. [2] MLCommons Training, reference convergence points (spread of N* between seeds: 2-5 % in pretraining, 5-25 % else).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from batchsim.errors import InputError
from batchsim.learning.curve.families import Curve, Floats, score_at
from batchsim.learning.curve.warp import Along, progress_at, responses_used
from batchsim.variables import set_attrs

if TYPE_CHECKING:
    import xarray as xr

METRIC = "val/score"
COLD_STEPS = 2


def simulate_run(
    curve: Curve | Callable[[Floats], ArrayLike],
    *,
    train_batch: int,
    rng: np.random.Generator,
    cost: Along = 1.0,
    responses_max: float,
    evaluation_spacing: float,
    score_error: float = 0.0,
    spread: float = 0.0,
    step_seconds: float = 1.0,
    step_seconds_spread: float = 0.0,
    evaluation_seconds: float = 0.0,
    group_size: int = 1,
    learning_rate: float | None = None,
    path: str = "simulated",
) -> xr.Dataset:
    """One simulated run, in the layout of a log.

    Parameters
    ----------
    curve : Curve or callable
        Score of the reference recipe as a function of its responses.
    train_batch : int [responses]
        B = rollout_batch, a multiple of the group size.
    rng : numpy.random.Generator
    cost : float or callable [1]
        r_N, or the local cost as a function of progress (`warp.local_cost`).
    responses_max : float [responses]
        The run ends with the first rollout step that has used as many.
    evaluation_spacing : float [responses]
        Rounded to whole rollout steps, at least one; the first evaluation precedes training.
    score_error : float [1]
        Standard deviation of an evaluation.
    spread : float [1]
        Standard deviation of log N* between runs.
    step_seconds : float [s]
        Mean time of a rollout step, without evaluation.
    step_seconds_spread : float [1]
        Standard deviation of its logarithm.
    evaluation_seconds : float [s]
    group_size : int [responses/prompt]
    learning_rate : float or None [1]
    path : str
        Name that warnings use.

    Returns
    -------
    xarray.Dataset
        Dimensions rollout_step, evaluation and metric, as `batchsim.read_logs`; attribute log_pace is the run's z.

    Raises
    ------
    InputError
        For a batch that is not a positive multiple of the group size, or a negative error, spread or time.
    """
    import xarray as xr

    _check(train_batch, group_size, responses_max=responses_max, evaluation_spacing=evaluation_spacing,
           score_error=score_error, spread=spread, step_seconds_spread=step_seconds_spread,
           evaluation_seconds=evaluation_seconds)  # fmt: skip
    steps = max(int(np.ceil(responses_max / train_batch - 1e-9)), 1)
    every = max(round(evaluation_spacing / train_batch), 1)
    step = np.arange(1, steps + 1)
    pace = spread * rng.standard_normal()
    seconds = step_seconds * np.exp(step_seconds_spread * rng.standard_normal(steps))
    elapsed = np.cumsum(seconds)
    at = np.arange(0, steps + 1, every)
    used = at.astype(np.float64) * train_batch
    progress = progress_at(used * np.exp(pace), cost=cost)
    true = score_at(curve, progress) if isinstance(curve, Curve) else np.asarray(curve(progress), dtype=np.float64)
    began = np.concatenate([[0.0], elapsed])[at]
    ds = xr.Dataset(
        {
            "responses": ("rollout_step", step.astype(np.float64) * train_batch),
            "step_seconds": ("rollout_step", seconds),
            "elapsed": ("rollout_step", elapsed),
            **({} if learning_rate is None else {"learning_rate": ("rollout_step", np.full(steps, learning_rate))}),
            "updates": ("rollout_step", step.astype(np.float64)),
            "steady": ("rollout_step", step > COLD_STEPS),
            "score": (("metric", "evaluation"), (true + score_error * rng.standard_normal(at.size))[None, :]),
            "evaluation_responses": ("evaluation", used),
            "evaluation_elapsed": ("evaluation", began),
            "evaluation_wall": ("evaluation", began + evaluation_seconds * np.arange(at.size)),
            "evaluation_seconds": ("evaluation", np.full(at.size, float(evaluation_seconds))),
        },
        coords={"rollout_step": step, "evaluation": np.arange(at.size), "metric": np.array([METRIC])},
    )
    set_attrs(ds)
    ds.attrs = {
        "framework": "simulation",
        "path": path,
        "model": "",
        "prompts": train_batch // group_size,
        "group_size": group_size,
        "rollout_batch": train_batch,
        "train_batch": train_batch,
        "updates_per_rollout": 1,
        "epochs": 1,
        **({} if learning_rate is None else {"learning_rate": learning_rate}),
        "log_pace": pace,
        "provenance": dict.fromkeys(("responses", "step_seconds", "score"), "simulated"),
        "warnings": [],
    }
    return ds


def simulate_runs(
    curve: Curve | Callable[[Floats], ArrayLike],
    *,
    costs: Mapping[int, Along],
    responses_max: float,
    evaluation_spacing: float | Mapping[int, float],
    update_time_intercept: float,
    update_time_slope: float,
    runs: int = 1,
    seed: int = 0,
    score_error: float = 0.0,
    spread: float = 0.0,
    step_seconds_spread: float = 0.0,
    evaluation_seconds: float = 0.0,
    group_size: int = 1,
    learning_rates: Mapping[int, float] | None = None,
) -> xr.DataTree:
    """A sweep of simulated runs over batches, as `measure` takes it.

    Parameters
    ----------
    curve : Curve or callable
        Of the reference recipe.
    costs : mapping of int to float or callable
        Batch [responses] -> r_N [1] or local cost (`warp.local_cost`).
    responses_max : float [responses]
        Of the reference recipe's progress: every batch runs until it has spent r_N times as many.
    evaluation_spacing : float, or mapping of int to float [responses]
        One for all batches, or one for each.
    update_time_intercept, update_time_slope : float [s], [s/response]
        A rollout step takes tau_0 + tau_1 B.
    runs : int
        Of every batch.
    seed : int
        Runs have independent streams spawned from it.
    score_error, spread, step_seconds_spread, evaluation_seconds, group_size
        See `simulate_run`.
    learning_rates : mapping of int to float, or None
        Batch -> learning rate.

    Returns
    -------
    xarray.DataTree
        A child per run, b<batch>_s<run>; root attributes framework and warnings.
    """
    import xarray as xr

    streams = iter(np.random.SeedSequence(seed).spawn(len(costs) * runs))
    nodes = {}
    for batch, cost in costs.items():
        spacing = evaluation_spacing[batch] if isinstance(evaluation_spacing, Mapping) else evaluation_spacing
        for i in range(runs):
            name = f"b{batch}_s{i + 1}"
            nodes[name] = simulate_run(
                curve,
                train_batch=batch,
                rng=np.random.default_rng(next(streams)),
                cost=cost,
                responses_max=float(responses_used(responses_max, cost=cost)),
                evaluation_spacing=spacing,
                score_error=score_error,
                spread=spread,
                step_seconds=update_time_intercept + update_time_slope * batch,
                step_seconds_spread=step_seconds_spread,
                evaluation_seconds=evaluation_seconds,
                group_size=group_size,
                learning_rate=None if learning_rates is None else learning_rates[batch],
                path=name,
            )
    tree = xr.DataTree.from_dict(nodes)
    tree.attrs = {"framework": "simulation", "warnings": []}
    return tree


def _check(train_batch: int, group_size: int, **sizes: float) -> None:
    if train_batch < 1 or group_size < 1 or train_batch % group_size:
        raise InputError(
            f"train_batch {train_batch} is no positive multiple of the group size {group_size}",
            remedy="a rollout step keeps whole groups",
        )
    for name, value in sizes.items():
        if not 0 <= value < np.inf:
            raise InputError(f"{name} is {value:g}; it must not be negative and must be finite")
