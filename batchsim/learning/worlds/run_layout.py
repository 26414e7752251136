r"""Simulated runs as logs: times by a law, the variables and attributes of a log, and what must hold before.

A rollout step takes t = tau_0 + tau_1 x responses GENERATED, so that groups thrown away cost time; with a share s of
responses kept, q = B/(tau_0 + tau_1 B/s). Evaluations begin when the rollout step before them ends, and take a fixed
time that `elapsed` does not hold and `evaluation_wall` does.

Attributes are those of a log: the recipe, `lr_rule`, `target` where there is one, `chunks` where there are chunk norms,
and `status`, which says how the run ended. What does not exist is absent, and what is not finite is NaN, as in a log.

Rows are bounded over all runs together, since a DataTree holds them all.

References
----------
.. [1] Li et al. 2026, arXiv:2608.29296 (time of a rollout step against its responses).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from batchsim.errors import InputError
from batchsim.learning.curve.crossings import interpolated_crossing
from batchsim.learning.lr_rule import EXPONENTS, LRRule, learning_rate_ratio, rule_name
from batchsim.learning.worlds.softmax import Floats
from batchsim.variables import set_attrs

if TYPE_CHECKING:
    import xarray as xr

METRIC = "val/score"
"""Name of the exact score; a sampled one is `val/mean@k`."""
RECIPE = ("prompts", "group_size", "updates_per_rollout", "epochs", "learning_rate")
ROWS_MAX = 10**7
"""Rollout steps of all runs together: some 2 GB."""
RUNS_MAX = 2000


@dataclass(frozen=True)
class Law:
    """Time: tau_0 [s], tau_1 [s/generated response], an evaluation [s]."""

    intercept: float
    slope: float
    evaluation: float

    def __post_init__(self) -> None:
        said = {
            "step_time_intercept": self.intercept,
            "step_time_slope": self.slope,
            "evaluation_seconds": self.evaluation,
        }
        for name, value in said.items():
            if not 0 <= value < np.inf:
                raise InputError(f"{name} is {value:g}; it must be finite and not negative", remedy="give seconds")
        if not self.intercept + self.slope > 0:
            raise InputError("step_time_intercept and step_time_slope are both 0", remedy="a step must take time")


def layout_of(
    name: str,
    law: Law,
    *,
    steps: Floats,
    generated: Floats,
    columns: Mapping[str, Floats],
    used: Floats,
    scores: Mapping[str, Floats],
    attrs: Mapping[str, Any],
    notes: Mapping[str, str],
) -> xr.Dataset:
    """Dataset of a run in the layout of logs.

    Parameters
    ----------
    name : str
    law : Law
    steps, generated : ndarray (row,) [1], [responses]
        Rollout steps and generated responses behind each row.
    columns : mapping of str to ndarray (row,)
        `responses`, `responses_generated`, `updates` and what else a log may hold over rollout steps.
    used : ndarray (evaluation,) [responses]
        Kept responses when each evaluation began.
    scores : mapping of str to ndarray (evaluation,) [1]
        By metric.
    attrs : mapping
        The recipe and what else is stated.
    notes : mapping of str to str
        Added to the provenance.

    Returns
    -------
    xarray.Dataset
    """
    import xarray as xr

    seconds = law.intercept * steps + law.slope * generated
    elapsed = np.cumsum(seconds)
    rows = np.searchsorted(columns["responses"], used, side="right")
    began = np.concatenate([[0.0], elapsed])[rows]
    if not steps.size:
        # As in a log: what was never written is no column.
        columns = {name: columns[name] for name in ("responses", "responses_generated", "updates")}
    ds = xr.Dataset(
        {
            **{name: ("rollout_step", _finite(values)) for name, values in columns.items()},
            "learning_rate": ("rollout_step", np.full(steps.size, attrs["learning_rate"])),
            "step_seconds": ("rollout_step", seconds),
            "elapsed": ("rollout_step", elapsed),
            # The law of time has no cold start.
            "steady": ("rollout_step", np.ones(steps.size, dtype=bool)),
            "score": (("metric", "evaluation"), _finite(np.array(list(scores.values())))),
            "evaluation_responses": ("evaluation", used.copy()),
            "evaluation_elapsed": ("evaluation", began),
            "evaluation_wall": ("evaluation", began + law.evaluation * np.arange(used.size)),
            "evaluation_seconds": ("evaluation", np.full(used.size, law.evaluation)),
        },
        coords={
            "rollout_step": np.cumsum(steps).astype(np.int64),
            "evaluation": np.arange(used.size),
            "metric": np.array(list(scores), dtype=np.str_),
        },
    )
    set_attrs(ds)
    time = f"simulated, {law.intercept:g} s + {law.slope:g} s x generated responses"
    ds.attrs = {
        "framework": "simulation",
        "path": name,
        "model": "",
        **attrs,
        "provenance": {
            **dict.fromkeys((*RECIPE, *columns, "score"), "simulated"),
            "step_seconds": time,
            "elapsed": "running sum of step_seconds [s]",
            **notes,
        },
        "warnings": [],
    }
    return ds


def recipe_of(
    *, prompts: float, group_size: float, train_batch: float, updates: int, epochs: int, rate: float, rule: str
) -> dict[str, Any]:
    """Attributes of a run's recipe, as plain numbers."""
    return {
        "prompts": int(prompts),
        "group_size": int(group_size),
        "rollout_batch": int(prompts) * int(group_size),
        "train_batch": int(train_batch),
        "updates_per_rollout": int(updates),
        "epochs": int(epochs),
        "learning_rate": float(rate),
        "lr_rule": rule,
    }


def goal(target: float | None) -> dict[str, Any]:
    """Attributes of a run that was to reach a target."""
    return {} if target is None else {"target": float(target), "target_metric": METRIC}


def _finite(values: Floats) -> Floats:
    """A number that outgrew floating point is unknown, as in a log."""
    return np.where(np.isfinite(values), values, np.nan)


def responses_to_target(ds: xr.Dataset, target: float, *, metric: str = METRIC) -> float:
    """Kept responses at which a run's score first reaches a target, by a straight line between evaluations.

    Parameters
    ----------
    ds : xarray.Dataset
        A run in the layout of logs.
    target : float [1]
    metric : str

    Returns
    -------
    float [responses]
        Infinite where no evaluation reaches it; NaN without an evaluation.
    """
    used, score = ds["evaluation_responses"].values, ds["score"].sel(metric=metric).values
    return interpolated_crossing(used, score, target=target)


def run_names(batch: Floats, seeds: int) -> dict[tuple[int, int], str]:
    """Node names of arm and run: by batch, and by arm where two share it."""
    labels = [f"b{b:.0f}" for b in batch.tolist()]
    labels = [label if labels.count(label) == 1 else f"{label}_{i + 1}" for i, label in enumerate(labels)]
    return {(i, number): f"{label}_s{number + 1}" for i, label in enumerate(labels) for number in range(seeds)}


def tree_of(nodes: Mapping[str, xr.Dataset], world: str, seed: int, warnings: list[str]) -> xr.DataTree:
    """The runs as one tree, with a sentence on those that could not go on."""
    import xarray as xr

    tree = xr.DataTree.from_dict(dict(nodes))
    ends = [(name, str(ds.attrs["status"])) for name, ds in nodes.items()]
    for status, what in {"diverges": "diverge", "no signal": "find no group with a signal any more"}.items():
        found = [name for name, how in ends if how == status]
        if found:
            more = f" and {len(found) - 3} more" if len(found) > 3 else ""
            warnings.append(f"{len(found)} of {len(ends)} runs {what}: {', '.join(found[:3])}{more}")
    early = [name for name, ds in nodes.items() if ds.attrs["status"] == "reached" and not ds.sizes["rollout_step"]]
    if early:
        warnings.append(f"{len(early)} of {len(ends)} runs meet the target before training: {', '.join(early[:3])}")
    tree.attrs = {"framework": "simulation", "world": world, "seed": seed, "warnings": warnings}
    return tree


def numba_threads() -> int:
    """Runs at a time if nobody says."""
    import numba

    return int(numba.get_num_threads())


def check_counts(seeds: int, seed: int, threads: int | None) -> None:
    """Refuse a seed below 0, and less than one run or thread."""
    for name, value, least in (("seeds", seeds, 1), ("seed", seed, 0), ("threads", threads, 1)):
        if value is not None and value < least:
            raise InputError(f"{name} is {value}, and it must be at least {least}", remedy=f"as {name}={max(least, 1)}")


def _numbers(name: str, given: ArrayLike) -> Floats:
    try:
        values = np.atleast_1d(np.asarray(given, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} is {given!r}, no list of numbers", remedy=f"give one {name}, or a list") from error
    if values.ndim != 1 or not values.size:
        raise InputError(f"{name} has shape {np.shape(given)}", remedy=f"give one {name}, or a list of them")
    return values


def whole(name: str, given: ArrayLike, most: int) -> Floats:
    """Whole numbers (arm,) from 1 to a bound."""
    values = _numbers(name, given)
    bad = ~((values >= 1) & (values <= most) & (values == np.floor(values)))
    if bad.any():
        raise InputError(f"{name} is {values[bad][0]:g}, not a whole number from 1 to {most:,}", remedy="as 64")
    return values


def check_positive(name: str, values: Floats) -> None:
    """Refuse what is not positive and finite."""
    bad = ~((values > 0) & (values < np.inf))
    if bad.any():
        raise InputError(
            f"{name} is {values[bad][0]:g}; it must be positive and finite", remedy="give a number above 0"
        )


def broadcast(**given: ArrayLike) -> dict[str, Floats]:
    """Arrays over arms of one length."""
    arrays = {name: _numbers(name, values) for name, values in given.items()}
    try:
        together = np.broadcast_arrays(*arrays.values())
    except ValueError as error:
        sizes = ", ".join(f"{values.size} of {name}" for name, values in arrays.items() if values.size > 1)
        raise InputError(
            f"arms do not match: {sizes}", remedy="give one value for all arms, or one for each"
        ) from error
    return dict(zip(arrays, together, strict=True))


def check_rows(steps: Floats, seeds: int) -> None:
    """Refuse more runs or more recorded steps than fit."""
    if steps.size * seeds > RUNS_MAX:
        raise InputError(
            f"{steps.size} arms of {seeds:,} seeds are {steps.size * seeds:,} runs, more than {RUNS_MAX:,}",
            remedy="choose fewer seeds or batches",
        )
    total = float(steps.sum()) * seeds
    if total > ROWS_MAX:
        raise InputError(
            f"{total:,.0f} rollout steps in {steps.size * seeds:,} runs, more than {ROWS_MAX:,}",
            remedy="lower responses_max, or choose larger batches or fewer seeds",
        )


def rates_of(name: str, given: ArrayLike, batch: Floats, lr_rule: LRRule | None) -> tuple[Floats, str]:
    """Learning rate of every batch and the name of its rule.

    Parameters
    ----------
    name : str
    given : array_like, scalar or (arm,) [1]
    batch : ndarray (arm,) [responses]
    lr_rule : str, callable or None
        None is 'fixed' for one rate.

    Returns
    -------
    rates, rule : ndarray (arm,) [1], str

    Raises
    ------
    InputError
        For a rate that is not positive and finite, several with a rule, or a rule that needs the noise scale.
    """
    values = _numbers(name, given)
    check_positive(name, values)
    if values.size > 1:
        if lr_rule is not None:
            raise InputError(
                f"{values.size} values of {name}, and the rule '{rule_name(lr_rule)}' needs one at the smallest batch",
                remedy="give one, or leave the rule out",
            )
        return values, "user"
    rule = "fixed" if lr_rule is None else lr_rule
    if not callable(rule) and rule_name(rule) not in EXPONENTS:
        raise InputError(
            f"the rule '{rule}' needs to know the noise scale, and these runs are to show it",
            remedy=f"choose {', '.join(EXPONENTS)}, or give one rate per batch",
        )
    with np.errstate(over="ignore"):
        rates = values[0] * learning_rate_ratio(batch / batch.min(), lr_rule=rule)
    if not np.isfinite(rates).all():
        raise InputError(
            f"{name} {values[0]:g} grows beyond floating point under the rule '{rule_name(rule)}'",
            remedy="give a smaller one",
        )
    return rates, rule_name(rule)
