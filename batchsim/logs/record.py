"""One run between a framework's reader and the Dataset that the rest of batchsim sees.

A reader fills a `Run` with arrays as the log states them: step numbers, columns under canonical
names, evaluations, the recipe values and facts that the log states, and for every column where it
came from. It derives nothing. `to_dataset` is the only place that does:

    responses at the end of a step = (step - base) x responses per row
    elapsed, wall, steady            see timeline.py
    train_batch                      see recipe.py

Evaluations sit on an axis of their own, at the number of responses that had been used when they
began, because they are sparser than steps and one may precede the first.

A number that is not finite in the log becomes NaN here, and a negative duration too; both are counted
in a warning. The training reward is a column of the steps and never a score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from batchsim.errors import InputError
from batchsim.logs.clock import Clocked
from batchsim.logs.recipe import Overrides, Recipe, Rules, resolve
from batchsim.logs.timeline import Array, elapsed_at, elapsed_seconds, steady_steps, wall_seconds
from batchsim.variables import set_attrs

if TYPE_CHECKING:
    import xarray as xr

OVERLAP = 0.01
MAX_SCORES = 2_000
"""Validation scores of one run."""
# Stages that follow each other; environment_seconds lies within the generation.
PHASES = ("generation_seconds", "training_seconds", "logprob_seconds", "reward_seconds", "sync_seconds")
NORMS = (
    "grad_norm",
    "critic_grad_norm",
    "sq_norm_chunk",
    "sq_norm_batch",
    "critic_sq_norm_chunk",
    "critic_sq_norm_batch",
)
COLUMNS = (
    "responses",
    "responses_generated",
    "elapsed",
    "step_seconds",
    *PHASES,
    "environment_seconds",
    "other_seconds",
    "checkpoint_seconds",
    *NORMS,
    "learning_rate",
    "train_reward",
    "response_length",
    "response_length_max",
    "truncated_share",
    "staleness_mean",
    "staleness_max",
    "kept_share",
)


@dataclass(frozen=True, kw_only=True)
class Evaluations:
    """Evaluations of a run, each array of shape (evaluations,).

    Their place is a step number [1] or a number of responses [responses]; elapsed and wall-clock
    time [s] are derived where the log does not state them.
    """

    step: Array | None = None
    responses: Array | None = None
    seconds: Array | None = None
    elapsed: Array | None = None
    wall: Array | None = None
    scores: Mapping[str, Array] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of evaluations."""
        place = self.responses if self.responses is not None else self.step
        return 0 if place is None else len(place)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run as its log states it.

    Attributes
    ----------
    step : array, shape (rows,)
        Step numbers, increasing.
    columns : mapping of arrays, shape (rows,)
        By canonical name (`COLUMNS`); NaN where a row lacks the value.
    stated, facts : mapping
        Recipe values, and other attributes of the Dataset, that the log states.
    provenance : mapping
        Canonical name -> "source name [unit], scope".
    inferred_rollout_batch : float or None
        Responses per rollout step [responses] as the rows suggest.
    base, stride : int
        Number of the step before the first; steps per row.
    from_zero : bool
        Whether counting from 0 is the framework's own rule.
    row_is_update : bool
        Whether the log counts optimizer updates rather than rollout steps.
    batch_hint : str
        What this framework's log is known to lack about the batch.
    norm_reduction : str
        How a row's gradient norms come from those of its updates, where the framework says.
    rules : Rules
        What the framework says about its recipe.
    clock : callable or None
        Updates per rollout step -> times of the rows from a clock, where nothing else times them.
    clock_source : str
        What that clock is.
    """

    name: str
    framework: str
    path: str
    step: Array
    columns: Mapping[str, Array]
    evaluations: Evaluations
    stated: Mapping[str, float]
    facts: Mapping[str, object]
    provenance: Mapping[str, str]
    warnings: Sequence[str] = ()
    inferred_rollout_batch: float | None = None
    base: int = 0
    from_zero: bool = False
    stride: int = 1
    row_is_update: bool = False
    batch_hint: str = ""
    norm_reduction: str = ""
    rules: Rules = field(default_factory=Rules)
    clock: Callable[[int], Clocked] | None = None
    clock_source: str = ""


def to_dataset(run: Run, given: Overrides, *, allow_unknown_batch: bool = False) -> xr.Dataset:
    """The Dataset of one run.

    Parameters
    ----------
    run : Run
        As a reader filled it.
    given : Overrides
        What the user supplies.
    allow_unknown_batch : bool
        Whether a batch that cannot be known leaves responses and updates unknown (NaN) and the
        attribute ``open_batch`` says why, instead of an error.

    Returns
    -------
    xarray.Dataset
        Dimensions ``rollout_step``, ``evaluation`` and ``metric``; see `read_logs`.

    Raises
    ------
    InputError
        For a run without rows and evaluations, a recipe that cannot be settled, and responses that
        fall.
    """
    import xarray as xr

    if not len(run.step) and not run.evaluations.count:
        raise InputError(
            "the log holds no training step and no evaluation",
            remedy="wait until the run has logged a step, or check that the console log was kept",
            where=run.path,
        )
    _check_scores(run)
    notes = list(run.warnings)
    provenance = dict(run.provenance)
    recipe = resolve(
        run.stated,
        given,
        inferred=_inferred(run, given),
        names=provenance,
        hint=run.batch_hint,
        where=run.path,
        notes=notes,
        rules=run.rules,
        allow_unknown=allow_unknown_batch,
    )
    if run.base < 0 and not run.from_zero:
        notes.append("step 0 holds training: steps are taken to count from 0")
    # Absurd numbers from damaged lines end as NaN or infinity, without a warning on the terminal.
    with np.errstate(all="ignore"):
        columns = _cleaned({**run.columns} | _clocked(run, recipe, provenance, notes), notes)
        if run.row_is_update:
            _over_rollouts(run, columns, provenance, recipe.updates, notes)
        _set_step_seconds(run, columns, provenance, given, notes, recipe)
        _set_responses(run, columns, provenance, recipe)
        _set_elapsed(run, columns, provenance, notes)
        if run.row_is_update:
            _per_rollout(columns, provenance, recipe.updates)
        _set_other(columns, provenance, notes)
        _set_norm_batch(run, columns, provenance, recipe)
        rate = _learning_rate(recipe, columns, notes)
        scores, evaluations = _evaluations(run, columns, provenance, recipe, given)
        steady = steady_steps(columns.get("step_seconds"), len(run.step))
    # Sums and products of absurd numbers overflow.
    columns, evaluations = ({name: _finite(values) for name, values in held.items()} for held in (columns, evaluations))
    ds = xr.Dataset(
        {
            **{name: ("rollout_step", columns[name]) for name in COLUMNS if name in columns},
            "updates": ("rollout_step", _updates(run, provenance, recipe)),
            "steady": ("rollout_step", steady),
            "score": (("metric", "evaluation"), scores),
            **{name: ("evaluation", values) for name, values in evaluations.items()},
        },
        coords={
            "rollout_step": run.step.astype(np.int64),
            "evaluation": np.arange(run.evaluations.count),
            "metric": np.array(list(run.evaluations.scores), dtype=np.str_),
        },
    )
    set_attrs(ds)
    ds.attrs = _attributes(run, recipe, rate, provenance, notes)
    _set_chunks(ds, given)
    return ds


def _inferred(run: Run, given: Overrides) -> float | None:
    """Responses per rollout step that the rows suggest; rows of updates each count a part of them."""
    if run.inferred_rollout_batch is None or not run.row_is_update:
        return run.inferred_rollout_batch
    return run.inferred_rollout_batch * (given.updates_per_rollout or run.stated.get("updates_per_rollout", 1.0))


def _clocked(run: Run, recipe: Recipe, provenance: dict[str, str], notes: list[str]) -> dict[str, Array]:
    """Times of a run that only a clock times."""
    if run.clock is None:
        return {}
    clocked = run.clock(recipe.updates)
    notes.extend(clocked.notes)
    provenance["step_seconds"] = f"{run.clock_source} [s], per optimizer step, mean over the row's steps"
    provenance["checkpoint_seconds"] = f"{run.clock_source} [s], what exceeds the usual step"
    return {"step_seconds": clocked.step_seconds, "checkpoint_seconds": clocked.checkpoint_seconds}


def _check_scores(run: Run) -> None:
    if len(run.evaluations.scores) > MAX_SCORES:
        raise InputError(
            f"the log holds {len(run.evaluations.scores)} validation scores, more than {MAX_SCORES}",
            remedy="keep those of the validation sets that matter",
            where=run.path,
        )


def _finite(values: Array) -> Array:
    return np.where(np.isinf(values), np.nan, values)


def _cleaned(columns: Mapping[str, Array], notes: list[str]) -> dict[str, Array]:
    """Columns that hold a value, with NaN for what cannot be one."""
    cleaned: dict[str, Array] = {}
    for name, values in columns.items():
        bad = np.isinf(values)
        if name in NORMS:
            bad |= np.isnan(values)
            if bad.any() and not bad.all():
                notes.append(f"{name} is missing or not finite in {int(bad.sum())} of {len(values)} steps")
        if name.endswith("_seconds"):
            negative = values < 0
            bad |= negative
            if negative.any():
                notes.append(f"{name} is negative in {int(negative.sum())} steps; NaN there")
        cleaned[name] = np.where(bad, np.nan, values)
    return {name: values for name, values in cleaned.items() if np.isfinite(values).any()}


def _set_step_seconds(
    run: Run,
    columns: dict[str, Array],
    provenance: dict[str, str],
    given: Overrides,
    notes: list[str],
    recipe: Recipe,
) -> None:
    if "step_seconds" not in columns and {"generation_seconds", "training_seconds"} <= columns.keys():
        parts = [name for name in (*PHASES, "other_seconds") if name in columns]
        columns["step_seconds"] = np.sum([columns[name] for name in parts], axis=0)
        provenance["step_seconds"] = f"sum of {', '.join(parts)} [s]"
    if given.step_seconds is None:
        return
    if "step_seconds" in columns or "elapsed" in columns:
        notes.append(f"step_seconds {given.step_seconds:g} was not used: the log has its own timing")
    elif len(run.step):
        # The option is the time of a rollout step; a row of updates holds its part until `_per_rollout`.
        parts_of = recipe.updates if run.row_is_update else 1
        columns["step_seconds"] = np.full(len(run.step), given.step_seconds / parts_of)
        share = f" / {parts_of} updates" if parts_of > 1 else ""
        provenance["step_seconds"] = f"option step_seconds{share} [s], the same for every step"


def _responses(run: Run, step: Array, recipe: Recipe) -> Array:
    per_row = recipe.responses / (recipe.updates if run.row_is_update else 1)
    result: Array = (step - run.base) * per_row
    return result


def _at_steps(run: Run, step: Array, responses: Array, recipe: Recipe) -> Array:
    """Responses at the end of given steps: the log's own count where it has the step."""
    computed = _responses(run, step, recipe)
    if not len(run.step):
        return computed
    row = np.minimum(np.searchsorted(run.step, step), len(run.step) - 1)
    return np.where(run.step[row] == step, responses[row], computed)


def _set_responses(run: Run, columns: dict[str, Array], provenance: dict[str, str], recipe: Recipe) -> None:
    computed = _responses(run, run.step, recipe)
    stated = columns.get("responses")
    if stated is None:
        unit = "optimizer updates x train_batch / epochs" if run.row_is_update else "rollout steps x rollout_batch"
        provenance["responses"] = f"{unit} [responses]"
        columns["responses"] = computed
        return
    columns["responses"] = responses = np.where(np.isnan(stated), computed, stated)
    falls = np.flatnonzero(np.diff(responses) < 0)
    if len(falls):
        at = int(falls[0])
        raise InputError(
            f"responses fall from {responses[at]:g} at step {run.step[at]:g} "
            f"to {responses[at + 1]:g} at step {run.step[at + 1]:g}; they must be cumulative",
            remedy="give the responses used since the run started, not those of one step",
            where=run.path,
        )


def _set_elapsed(run: Run, columns: dict[str, Array], provenance: dict[str, str], notes: list[str]) -> None:
    if "elapsed" in columns or "step_seconds" not in columns:
        return
    columns["elapsed"], bridged = elapsed_seconds(run.step, columns["step_seconds"], base=run.base, stride=run.stride)
    notes.extend(bridged)
    provenance["elapsed"] = "running sum of step_seconds [s]"


_TIMES = ("step_seconds", *PHASES, "environment_seconds", "other_seconds")


def _over_rollouts(
    run: Run, columns: dict[str, Array], provenance: dict[str, str], updates: int, notes: list[str]
) -> None:
    """Average times over whole rollouts: only one of a rollout's updates generates.

    A part from one row that ends a rollout to the next such row has the mean of its rows, each weighted
    by the steps that it stands for. Before the first, behind the last and across a gap times are unknown.
    """
    held = [name for name in _TIMES if name in columns]
    if updates < 2 or not held or not len(run.step):
        return
    done = run.step - run.base
    stands_for = np.diff(done, prepend=0.0)
    ends = np.flatnonzero(done % updates == 0)
    if not len(ends):
        notes.append(
            f"no row ends a rollout of {updates} updates: times are those of single updates, of which one generates"
        )
        return
    starts = np.concatenate([[0], ends[:-1] + 1])
    size = ends - starts + 1
    whole = np.maximum.reduceat(stands_for[: ends[-1] + 1], starts) <= max(run.stride, 1)
    for name in held:
        values = columns[name][: ends[-1] + 1]
        total = np.add.reduceat(values * stands_for[: ends[-1] + 1], starts)
        mean = np.where(whole, total / np.add.reduceat(stands_for[: ends[-1] + 1], starts), np.nan)
        columns[name] = np.concatenate([np.repeat(mean, size), np.full(len(run.step) - ends[-1] - 1, np.nan)])
        provenance[name] = f"{provenance.get(name, name)}, mean over the {updates} updates of a rollout"
    notes.append(f"times are averaged over the {updates} updates of each rollout: only one of them generates")
    for name in [name for name in held if not np.isfinite(columns[name]).any()]:
        del columns[name]


def _per_rollout(columns: dict[str, Array], provenance: dict[str, str], updates: int) -> None:
    """Times of a rollout step from those of its updates."""
    for name in _TIMES:
        if name in columns and updates > 1:
            columns[name] = columns[name] * updates
            provenance[name] = f"{provenance[name]}, x {updates} updates per rollout step"


def _set_other(columns: dict[str, Array], provenance: dict[str, str], notes: list[str]) -> None:
    """What of a step no phase accounts for, in rows that state all the phases that the log has."""
    stated = provenance.get("step_seconds", "")
    if "other_seconds" in columns or not {"step_seconds", "generation_seconds", "training_seconds"} <= columns.keys():
        return
    if stated.startswith("sum of "):
        return
    parts = [name for name in PHASES if name in columns]
    rest = columns["step_seconds"] - np.sum([columns[name] for name in parts], axis=0)
    # Rounded phases may exceed the step a little; by more they overlap, and nothing can be said.
    overlap = rest < -OVERLAP * columns["step_seconds"]
    if overlap.any():
        notes.append(f"phases add up to more than step_seconds in {int(overlap.sum())} steps; other_seconds is NaN")
    rest = np.where(overlap, np.nan, np.maximum(rest, 0.0))
    if np.isfinite(rest).any():
        columns["other_seconds"] = rest
        provenance["other_seconds"] = f"step_seconds - ({' + '.join(parts)}) [s]"


def _set_norm_batch(run: Run, columns: Mapping[str, Array], provenance: dict[str, str], recipe: Recipe) -> None:
    """Say which batch the gradient norms belong to: the noise in them is that batch's."""
    if not run.norm_reduction:
        return
    own = run.stated.get("critic_mini_prompts")
    for name in ("grad_norm", "critic_grad_norm"):
        if name not in columns or name not in provenance:
            continue
        batch = "an unknown number of" if recipe.train_batch is None else f"{recipe.train_batch}"
        scope = f"of mini-batches of {batch} responses"
        if name == "critic_grad_norm" and own is not None and recipe.group_size is not None:
            scope = f"of mini-batches of {own * recipe.group_size:g} responses (critic.ppo_mini_batch_size {own:g})"
        elif name == "critic_grad_norm" and run.rules.mini_batch.endswith("ppo_mini_batch_size"):
            scope += " if critic.ppo_mini_batch_size, which is not known, is the actor's (verl's default)"
        updates = "" if recipe.updates_per_rollout is None else f" (updates_per_rollout {recipe.updates_per_rollout})"
        provenance[name] += f", {scope}; {run.norm_reduction}{updates if name == 'grad_norm' else ''}"


def _updates(run: Run, provenance: dict[str, str], recipe: Recipe) -> Array:
    """Optimizer updates at the end of each row."""
    per_row = 1.0 if run.row_is_update else float(recipe.updates_per_rollout or math.nan)
    provenance["updates"] = "optimizer steps" if run.row_is_update else "rollout steps x updates_per_rollout"
    result: Array = (run.step - run.base) * per_row
    return result


def _learning_rate(recipe: Recipe, columns: Mapping[str, Array], notes: list[str]) -> float | None:
    if recipe.learning_rate is not None or "learning_rate" not in columns:
        return recipe.learning_rate
    largest = float(np.nanmax(columns["learning_rate"]))
    if largest <= 0:
        return None
    notes.append(f"learning_rate {largest:g} is the largest logged value: the log does not state the configured one")
    return largest


def _evaluations(
    run: Run, columns: Mapping[str, Array], provenance: dict[str, str], recipe: Recipe, option: Overrides
) -> tuple[Array, dict[str, Array]]:
    given = run.evaluations
    empty = np.zeros(0)
    if given.responses is not None:
        responses = given.responses
    else:
        responses = _at_steps(run, given.step, columns["responses"], recipe) if given.step is not None else empty
        provenance.setdefault("evaluation_responses", "responses at the end of the evaluated step")
    seconds = given.seconds if given.seconds is not None else np.full(given.count, np.nan)
    elapsed = given.elapsed
    if elapsed is None and option.step_seconds is not None and not len(run.step):
        elapsed = responses / recipe.responses * option.step_seconds
        provenance["evaluation_elapsed"] = "rollout steps before the evaluation x option step_seconds [s]"
    elif elapsed is None:
        elapsed = elapsed_at(responses, columns["responses"], columns.get("elapsed"))
        provenance.setdefault("evaluation_elapsed", "elapsed at evaluation_responses [s]")
    wall = given.wall
    if wall is None:
        saved = np.cumsum(np.nan_to_num(columns.get("checkpoint_seconds", np.zeros(len(run.step)))))
        earlier = np.searchsorted(columns["responses"], responses)
        before = np.concatenate([[0.0], saved])[earlier]
        wall = wall_seconds(elapsed, seconds, before, initial=responses == 0)
        provenance["evaluation_wall"] = (
            "elapsed plus earlier evaluations and checkpoints [s]; an untimed one before step 1 counts zero"
        )
    scores = np.array(list(given.scores.values()), dtype=float).reshape(len(given.scores), given.count)
    return np.where(np.isinf(scores), np.nan, scores), {
        "evaluation_responses": responses,
        "evaluation_elapsed": elapsed,
        "evaluation_wall": wall,
        "evaluation_seconds": np.where(np.isfinite(seconds) & (seconds >= 0), seconds, np.nan),
    }


def _set_chunks(ds: xr.Dataset, given: Overrides) -> None:
    if given.chunks is None or "sq_norm_chunk" not in ds:
        return
    if ds.attrs.setdefault("chunks", given.chunks) != given.chunks:
        raise InputError(
            f"--chunks {given.chunks} contradicts the log: chunks {ds.attrs['chunks']}",
            remedy="drop --chunks: it supplies what a log lacks",
            where=str(ds.attrs["path"]),
        )


def _attributes(
    run: Run, recipe: Recipe, rate: float | None, provenance: Mapping[str, str], notes: list[str]
) -> dict[str, object]:
    known: dict[str, object] = {
        "prompts": recipe.prompts,
        "group_size": recipe.group_size,
        "rollout_batch": recipe.rollout_batch,
        "train_batch": recipe.train_batch,
        "updates_per_rollout": recipe.updates_per_rollout,
        "epochs": recipe.epochs,
        "learning_rate": rate,
        "open_batch": recipe.open or None,
        **run.facts,
    }
    return {
        "framework": run.framework,
        "path": run.path,
        "model": "",
        **{name: value for name, value in known.items() if value is not None},
        "provenance": dict(provenance),
        "warnings": notes,
    }
