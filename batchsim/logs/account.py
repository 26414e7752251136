"""What a log holds and how its names become ours: the account of one run that `explain` prints.

    rollout_batch = P x G                   kept responses per rollout step
    train_batch   = rollout_batch x E / M   kept responses per optimizer update

Every number of the arithmetic stands with the name that stated it; one that no log stated is marked as
an option, as derived or as assumed. Where the batch stays unknown, the arithmetic ends with what is known
of it and with what settles the rest. Everything comes from the run's attributes (`provenance`, the recipe
and the warnings), so nothing here knows a file format.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from batchsim.logs.registry import dialect_of

if TYPE_CHECKING:
    import xarray as xr

RECIPE = (
    "prompts",
    "group_size",
    "rollout_batch",
    "train_batch",
    "updates_per_rollout",
    "epochs",
    "learning_rate",
)
_UNITS = {
    "prompts": "prompts (P)",
    "group_size": "responses per prompt (G)",
    "updates_per_rollout": "updates per rollout step (M)",
    "epochs": "(E)",
    "rollout_batch": "responses per rollout step",
    "train_batch": "responses per update",
    "learning_rate": "(learning rate)",
}
_PLACES = ("evaluation_responses", "evaluation_elapsed", "evaluation_wall", "evaluation_seconds", "score")
_MINI_BATCH = re.compile(r"/ [\w.]*(?:mini|global)_batch_size$")
_LARGEST_RATE = "is the largest logged value"


@dataclass(frozen=True, kw_only=True)
class Held:
    """A quantity that the log holds, and "source name [unit], scope"."""

    quantity: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A quantity that `measure` or `predict` would use, and what supplies it."""

    quantity: str
    remedy: str


def trainer(ds: xr.Dataset) -> str:
    """The framework that trained the run, whichever tracker kept its metrics."""
    return str(ds.attrs.get("logged_by") or ds.attrs.get("framework", ""))


# -- the arithmetic -----------------------------------------------------------------------------------


def arithmetic(ds: xr.Dataset, given: Mapping[str, Any]) -> list[str]:
    """From the framework's names to ours, one line per number.

    Parameters
    ----------
    ds : xarray.Dataset
        One run from `read_logs`.
    given : mapping
        Options that were passed to `read_logs`; None where one was not.

    Returns
    -------
    list of str
        Sources first, then rollout_batch and train_batch, or what settles them.
    """
    attrs, stated = ds.attrs, ds.attrs.get("provenance", {})
    said = [line for name in ("prompts", "group_size") if (line := _source_line(name, attrs, given))]
    said.append(_epochs_line(attrs, given))
    if "updates_per_rollout" in attrs:
        said.append(_updates_line(attrs, given))
    for name in ("rollout_batch", "train_batch"):
        if name in stated and name in attrs:
            said.append(_equation(stated[name], attrs[name], _UNITS[name]))
    if line := _source_line("learning_rate", attrs, given):
        said.append(line)
    if "rollout_batch" in attrs:
        said.append(_rollout_line(attrs, stated))
    said.append(_train_line(attrs) if "train_batch" in attrs else f"open: {attrs['open_batch']}")
    return said


def _equation(source: str, value: float, unit: str) -> str:
    if value == 1:
        unit = re.sub(r"^(\w+)s\b", r"\1", unit)
    return f"{source} = {value:g} {unit}" if isinstance(value, float) else f"{source} = {value} {unit}"


def _source_line(name: str, attrs: Mapping[str, Any], given: Mapping[str, Any]) -> str | None:
    """A number with its source: the log, an option, or derived from the others."""
    if name not in attrs:
        return None
    stated = attrs.get("provenance", {})
    if name == "learning_rate" and any(_LARGEST_RATE in warning for warning in attrs.get("warnings", [])):
        return _equation("largest logged learning_rate", attrs[name], _UNITS[name])
    # A column of rates has this name too, beside the configured one.
    if name in stated and not (name == "learning_rate" and given.get(name) is not None):
        return _equation(stated[name].split(", ")[0], attrs[name], _UNITS[name])
    if given.get(name) is not None:
        return _equation("option --" + name.replace("_", "-"), attrs[name], _UNITS[name])
    other = {"prompts": "group_size", "group_size": "prompts"}.get(name)
    if other is not None and (other in stated or given.get(other) is not None):
        numbers = f"{attrs['rollout_batch']} / {attrs[other]}"
        return _equation(f"{name} = rollout_batch / {other} = {numbers}", attrs[name], _UNITS[name])
    # Tables name their configuration as we do.
    return _equation(name, attrs[name], _UNITS[name])


def _epochs_line(attrs: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    if "epochs" in attrs.get("provenance", {}) or given.get("epochs") is not None:
        return str(_source_line("epochs", attrs, given))
    return _equation("epochs", attrs["epochs"], _UNITS["epochs"]) + ", not stated"


def _updates_line(attrs: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    updates, epochs, unit = attrs["updates_per_rollout"], attrs["epochs"], _UNITS["updates_per_rollout"]
    stated = attrs.get("provenance", {})
    source = stated.get("updates_per_rollout", "")
    if "train_batch" not in attrs:
        return str(_source_line("updates_per_rollout", attrs, given))
    if _MINI_BATCH.search(source) and "prompts" in attrs:
        mini = attrs["prompts"] * epochs // updates
        return _equation(f"{source} = {attrs['prompts']} x {epochs} / {mini}", updates, unit)
    if source or given.get("updates_per_rollout") is not None:
        return str(_source_line("updates_per_rollout", attrs, given))
    if any("updates_per_rollout is not stated" in warning for warning in attrs.get("warnings", [])):
        return _equation("updates_per_rollout", updates, unit) + ", not stated"
    numbers = f"{attrs['rollout_batch']} x {epochs} / {attrs['train_batch']}"
    return _equation(f"updates_per_rollout = rollout_batch x E / train_batch = {numbers}", updates, unit)


def _rollout_line(attrs: Mapping[str, Any], stated: Mapping[str, str]) -> str:
    total, unit = attrs["rollout_batch"], _UNITS["rollout_batch"]
    if "prompts" in attrs and "group_size" in attrs:
        return _equation(f"rollout_batch = P x G = {attrs['prompts']} x {attrs['group_size']}", total, unit)
    if "train_batch" in stated:
        numbers = f"{attrs['train_batch']} x {attrs['updates_per_rollout']} / {attrs['epochs']}"
        return _equation(f"rollout_batch = train_batch x M / E = {numbers}", total, unit)
    return _equation("rollout_batch", total, unit)


def _train_line(attrs: Mapping[str, Any]) -> str:
    numbers = f"{attrs['rollout_batch']} x {attrs['epochs']} / {attrs['updates_per_rollout']}"
    return _equation(
        f"train_batch = rollout_batch x E / M = {numbers}", attrs["train_batch"], _UNITS["train_batch"] + " (B)"
    )


# -- what is held -------------------------------------------------------------------------------------


def held(ds: xr.Dataset) -> list[Held]:
    """Quantities with at least one value, and facts of the configuration, with their sources.

    Parameters
    ----------
    ds : xarray.Dataset
        One run from `read_logs`.
    """
    stated = ds.attrs.get("provenance", {})
    found = []
    for name in map(str, ds.data_vars):
        if name not in stated or (name in _PLACES and not ds.sizes["evaluation"]):
            continue
        known = np.isfinite(ds[name].values)
        if not known.any():
            continue
        partly = f"; in {int(known.sum())} of {known.size}" if not known.all() else ""
        found.append(Held(quantity=name, source=stated[name] + partly))
    facts = [name for name in stated if name in ds.attrs and name not in (*RECIPE, "open_batch") and name not in ds]
    return found + [Held(quantity=name, source=f"{stated[name]} = {ds.attrs[name]}") for name in facts]


# -- what is missing ----------------------------------------------------------------------------------

_REMEDIES: dict[str, dict[str, str]] = {
    "score": {
        "verl": "N*, T and r_N need one: set trainer.test_freq and data.val_files",
        "trl": "N*, T and r_N need one: set eval_strategy=steps, eval_steps and an eval_dataset",
        "mlperf": "N*, T and r_N need one: keep the eval_start and eval_accuracy events",
        "": "N*, T and r_N need one: a column score, or --column score=NAME",
    },
    "evaluations": {
        "verl": "N* needs one before and one after the target: lower trainer.test_freq, set trainer.val_before_train",
        "trl": "N* needs one before and one after the target: lower eval_steps, set eval_on_start",
        "": "N* needs one before and one after the target: evaluate more often",
    },
    "step_seconds": {
        "verl": "q, T and r_q need it: keep timing_s/step, or give --step-seconds",
        "trl": "q, T and r_q need it: a TRL that logs step_time, the console with its progress bar beside the "
        "trainer_state.json, or --step-seconds",
        "": "q, T and r_q need it: a column step_seconds, or --step-seconds",
    },
    "phases": {
        "trl": "what the step waits for stays unknown: TRL sends its phases to a tracker only (profiling/Time taken)",
        "": "what the step waits for stays unknown: generation_seconds and training_seconds, or --column",
    },
    "elapsed": {"": "known up to a gap only: give the log with all its steps"},
    "grad_norm": {
        "verl": "the noise scale is a prior without it: keep actor/grad_norm",
        "trl": "the noise scale is a prior without it: a transformers that logs grad_norm",
        "": "the noise scale is a prior without it: a column grad_norm, or --column grad_norm=NAME",
    },
    "chunks": {"": "chunk norms give the noise scale from one run once their number per batch is known: --chunks"},
    "learning_rate": {"": "the rule between runs stays unknown: --learning-rate"},
    "prompts": {"": "candidates are whole numbers of prompts: --prompts"},
    "group_size": {"": "a candidate's prompts are unknown without it: --group-size"},
    "evaluation_seconds": {
        "verl": "wall-clock T is unknown: keep timing_s/testing",
        "trl": "wall-clock T is unknown: keep eval_runtime",
        "": "wall-clock T is unknown: a column evaluation_seconds",
    },
    "eval_samples": {
        "verl": "the evaluation's own noise is unknown: keep the console's 'dataset len:' lines (which tell one "
        "data set's size only), or give measure --score-error",
        "": "the evaluation's own noise is unknown: a column eval_samples, or measure --score-error",
    },
    "response_length": {"": "a trend of the lengths, which bends the step time, stays unseen"},
}


# Why a quantity is needed; how a framework supplies it follows from its dialect.
_WHY = {
    "score": "N*, T and r_N need one",
    "evaluations": "N* needs one before and one after the target",
    "step_seconds": "q, T and r_q need it",
    "phases": "what the step waits for stays unknown",
    "grad_norm": "the noise scale is a prior without it",
    "evaluation_seconds": "wall-clock T is unknown",
    "eval_samples": "the evaluation's own noise is unknown",
}
_OR_OPTION = {"step_seconds": ", or give --step-seconds", "eval_samples": ", or give measure --score-error"}
_STAGES = ("generation_seconds", "training_seconds")


def missing(ds: xr.Dataset) -> list[Missing]:
    """What `measure` and `predict` would use and the log lacks, with the option or setting that supplies it.

    Parameters
    ----------
    ds : xarray.Dataset
        One run from `read_logs`.
    """
    framework = trainer(ds)
    return [Missing(quantity=name, remedy=_remedy(framework, name)) for name in _REMEDIES if _lacks(ds, name)]


def _remedy(framework: str, name: str) -> str:
    """What supplies a quantity: the framework's own setting, the metrics that hold it, or an option."""
    remedies = _REMEDIES[name]
    dialect = dialect_of(framework)
    if dialect is None or framework in remedies or name not in _WHY:
        return remedies.get(framework, remedies[""])
    column = dialect.columns.get(name)
    if name in dialect.advice:
        how = dialect.advice[name]
    elif name == "phases":
        keys = [dialect.columns[part].keys[0] for part in _STAGES if part in dialect.columns]
        how = f"keep {' and '.join(keys)}" if len(keys) == len(_STAGES) else f"{dialect.title} does not log them"
    elif name in ("evaluation_seconds", "eval_samples"):
        keys = list(dialect.evaluation if name == "evaluation_seconds" else dialect.samples)
        how = f"keep {' or '.join(keys)}" if keys else f"{dialect.title} does not log it"
    else:
        how = f"{dialect.title} does not log it" if column is None else f"keep {' or '.join(column.keys)}"
    return f"{_WHY[name]}: {how}{_OR_OPTION.get(name, '')}"


def _lacks(ds: xr.Dataset, name: str) -> bool:
    evaluations = ds.sizes["evaluation"]
    scored = ds.sizes["metric"] > 0 and evaluations > 0
    if name in ("prompts", "group_size", "learning_rate"):
        return name not in ds.attrs
    if name == "score":
        return not scored
    if name == "evaluations":
        return scored and evaluations < 2
    if name == "eval_samples":
        return scored and name not in ds.attrs
    if name == "evaluation_seconds":
        # Unknown numbers of responses are later than the start too.
        later = ds["evaluation_responses"].values != 0
        return scored and not np.isfinite(ds[name].values[later]).all()
    if name == "step_seconds":
        return name not in ds and "elapsed" not in ds
    if name == "elapsed":
        return name in ds and not np.isfinite(ds[name].values).all()
    if name == "phases":
        return not {"generation_seconds", "training_seconds"} <= set(map(str, ds.data_vars))
    if name == "grad_norm":
        return name not in ds and "sq_norm_batch" not in ds
    if name == "chunks":
        return "sq_norm_chunk" in ds and name not in ds.attrs
    return name not in ds
