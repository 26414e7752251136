r"""plan.toml, the one input: what is known before a sweep.

A plan has up to nine sections, all optional but [recipe] (which logs can supply):

    [target]    the validation target, and N* or T of the reference where they are known
    [recipe]    prompts, group size, learning rate and its rule: the reference, B_0
    [learning]  what is known of the noise scale, its shape and the learning rate; pilots' sample costs
    [model] [gpu] [engine] [trainer] [lengths]
                the system: memory, price, stage times, pilots' throughput, or what stages are simulated from
    [logs]      measured runs, relative to the plan's own folder

Quantities may be text with units ("80 GB", "3.35 TB/s", "11.9 h"). A key that is not known is refused
with its nearest neighbour; one that no computation uses yet is reported, never silently believed.
"""

from __future__ import annotations

import dataclasses
import itertools
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from batchsim.errors import InputError, nearest
from batchsim.specs.engine import Engine, ObservedThroughput
from batchsim.specs.gpu import GPU
from batchsim.specs.lengths import Lengths
from batchsim.specs.model import Model
from batchsim.specs.quantity import (
    Count,
    Fraction,
    PenaltyShape,
    PositiveSeconds,
    Ratio,
    Responses,
    Score,
    Shape,
    Share,
)
from batchsim.specs.recipe import Recipe
from batchsim.specs.trainer import TrainerSpec

_CONFIG = ConfigDict(extra="forbid")

WITH_SPECIFICATIONS = {
    ("gpu", "memory_bandwidth"),
    ("gpu", "peak_flops"),
    ("gpu", "fp8_flops"),
    ("gpu", "fp4_flops"),
    ("gpu", "link_bandwidth"),
    ("gpu", "node_size"),
    ("gpu", "host_bandwidth"),
    ("model", "precision"),
    ("engine", "name"),
    ("engine", "expert_parallel"),
    ("engine", "cache_bits"),
    ("engine", "network_bandwidth"),
    ("engine", "max_num_batched_tokens"),
    ("engine", "max_staleness"),
    *(("trainer", f.name) for f in dataclasses.fields(TrainerSpec)),
    *(
        ("lengths", f.name)
        for f in dataclasses.fields(Lengths)
        if f.name not in ("prompt_mean", "response_mean", "response_sample", "distribution")
    ),
}
"""Keys of a system that is simulated from specifications, which means nothing without that."""
WITH_STAGES = {
    ("engine", name)
    for name in (
        "mode",
        "gen_throughput_max",
        "train_time_intercept",
        "train_time_per_response",
        "overhead_time",
        "kept_share",
    )
}
"""Keys of the stage laws, which mean nothing without one."""
OTHER_MEMBER = ("float_type", "int_type", "tuple_type", "literal_error", "none_required")
"""Complaints of a union's members that a value was not meant for."""
TRAINING = ("train_time_intercept", "train_time_per_response")
"""Keys of the training law, which also takes the place of the modelled one."""
WITH_GPUS = {
    ("engine", "max_num_seqs"),
    ("engine", "tensor_parallel"),
    ("engine", "memory_share"),
    ("gpu", "memory"),
    ("gpu", "driver_memory"),
    ("gpu", "price"),
    ("model", "weight_bytes"),
    ("model", "kv_bytes_per_token"),
    ("lengths", "prompt_mean"),
    ("lengths", "response_mean"),
}
"""Keys that need the number of GPUs."""


@dataclass(frozen=True, kw_only=True, config=_CONFIG)
class Target:
    """The validation target.

    Parameters
    ----------
    metric : str
        Score as the log names it.
    score : float or None [1]
    responses_to_target : float or None [responses]
        N* of the reference recipe, if it is known.
    time_to_target : float or None [s]
        T of the reference recipe, if it is known.
    """

    metric: str = ""
    score: Score | None = None
    responses_to_target: Responses | None = None
    time_to_target: PositiveSeconds | None = None


@dataclass(frozen=True, kw_only=True, config=_CONFIG)
class ObservedSampleCost:
    """One pilot's updates to the target relative to the reference, as an interval.

    Parameters
    ----------
    prompts : int [prompts]
        At the recipe's group size.
    lr_rule : str
        Rule of its learning rate, from the reference.
    updates_ratio : tuple of float [1]
        Lower and upper limit of S*/S*_0.
    relative_error : float [1]
        Run-to-run standard deviation of log N* of a single run.
    """

    prompts: Count
    lr_rule: Literal["fixed", "sqrt", "linear"]
    updates_ratio: tuple[Ratio, Ratio]
    relative_error: Annotated[float, Ge(0.001), Le(2)] = 0.1

    def __post_init__(self) -> None:
        if self.updates_ratio[0] > self.updates_ratio[1]:
            low, high = sorted(self.updates_ratio)
            raise InputError(
                f"updates_ratio {list(self.updates_ratio)} runs from high to low",
                remedy=f"write [{low:g}, {high:g}], and both the same for a number",
            )


@dataclass(frozen=True, kw_only=True, config=_CONFIG)
class Learning:
    """What is known of the learning side.

    Parameters
    ----------
    noise_scale : float, tuple of float or None [responses]
        A value, or the central 80 % interval of a log-normal.
    snr_shape : float, 'drift' or None [1]
        k of the coordinate family, or the drift family; None leaves it to the prior.
    lr_fraction : float, tuple of float or None [1]
        Reference learning rate over the optimal one: a value, or limits of a uniform.
    curvature_ratio : float, tuple of float or None [1]
        h_ratio: a value, or limits of a log-uniform.
    penalty_shape : float, tuple of float or None [1]
        p: -1 is the quadratic penalty; a value, or limits of a uniform.
    kl_per_update, kl_max : float or None [1]
        Trust region: KL of the reference's update, and the largest that training survives. Together they
        put a ceiling on the rate.
    few_updates : bool
        Charge momentum's memory where few updates reach the target (`learning.mechanism`).
    beta1 : float [1]
    observed : tuple of ObservedSampleCost
    """

    noise_scale: Responses | tuple[Responses, Responses] | None = None
    snr_shape: Shape | Literal["drift"] | None = None
    lr_fraction: Fraction | tuple[Fraction, Fraction] | None = None
    curvature_ratio: Ratio | tuple[Ratio, Ratio] | None = None
    penalty_shape: PenaltyShape | tuple[PenaltyShape, PenaltyShape] | None = None
    kl_per_update: Ratio | None = None
    kl_max: Ratio | None = None
    few_updates: bool = False
    beta1: Share = 0.9
    observed: tuple[ObservedSampleCost, ...] = ()

    def __post_init__(self) -> None:
        if (self.kl_per_update is None) != (self.kl_max is None):
            raise InputError("kl_per_update and kl_max make a trust region together; give both or neither")
        if self.kl_per_update is not None and self.kl_max is not None and self.kl_max < self.kl_per_update:
            raise InputError(
                f"kl_max {self.kl_max:g} lies below kl_per_update {self.kl_per_update:g}: the reference itself would "
                "be outside the trust region",
                remedy="raise kl_max, or state kl_per_update at a rate that training survives",
            )
        if self.beta1 >= 1:
            raise InputError(f"beta1 is {self.beta1:g}, outside (0, 1)")
        for name in ("noise_scale", "lr_fraction", "curvature_ratio", "penalty_shape"):
            value = getattr(self, name)
            if isinstance(value, tuple) and not value[0] < value[1]:
                low, high = sorted(value)
                raise InputError(
                    f"{name} {list(value)} is not an interval from low to high",
                    remedy=f"write [{low:g}, {high:g}]" if low < high else f"a known value is one number: {low:g}",
                )
        for one, other in itertools.combinations(self.observed, 2):
            (low, high), (least, most) = one.updates_ratio, other.updates_ratio
            if (one.prompts, one.lr_rule) == (other.prompts, other.lr_rule) and (high < least or most < low):
                raise InputError(
                    f"observed states {one.prompts} prompts under '{one.lr_rule}' twice, and {list(one.updates_ratio)} "
                    f"and {list(other.updates_ratio)} have nothing in common",
                    remedy="keep the one that is right, or give one interval that holds both",
                )


@dataclass(frozen=True, kw_only=True, config=_CONFIG)
class Logs:
    """Measured runs.

    Parameters
    ----------
    paths : tuple of str
        Files, folders or globs, relative to the plan's folder.
    pilot_batches : tuple of int [responses]
        Train batches to calibrate on; empty means all. The others are drawn beside the prediction.
    columns : dict of str to str
        Quantity to the column that holds it, for tables with names of their own.
    config : str
        Configuration file of the runs, relative to the plan's folder.
    """

    paths: tuple[str, ...] = ()
    pilot_batches: tuple[Count, ...] = ()
    columns: dict[str, str] = field(default_factory=dict)
    config: str = ""


@dataclass(frozen=True, kw_only=True, config=_CONFIG)
class Plan:
    """Everything that is known before a sweep, see the module's text.

    Parameters
    ----------
    recipe : Recipe or None
        None only where logs supply it.
    target, learning, model, gpu, engine, trainer, lengths, logs
        Sections of plan.toml.
    source : str
        File the plan was read from.
    """

    recipe: Recipe | None = None
    target: Target = field(default_factory=Target)
    learning: Learning = field(default_factory=Learning)
    model: Model = field(default_factory=Model)
    gpu: GPU = field(default_factory=GPU)
    engine: Engine = field(default_factory=Engine)
    trainer: TrainerSpec = field(default_factory=TrainerSpec)
    lengths: Lengths = field(default_factory=Lengths)
    logs: Logs = field(default_factory=Logs)
    source: str = ""

    def __post_init__(self) -> None:
        for seen in self.learning.observed if self.recipe is not None else ():
            low, high = seen.updates_ratio
            if self.recipe is not None and seen.prompts == self.recipe.prompts and not low <= 1 <= high:
                raise InputError(
                    f"[[learning.observed]] states {list(seen.updates_ratio)} for {seen.prompts} prompts, and the "
                    "reference's own ratio is 1",
                    where=self.source or "plan",
                    remedy="drop the entry, or name the prompts of the other pilot",
                )
        needed = self.target.responses_to_target
        if self.recipe is not None and needed is not None and needed < self.recipe.train_batch:
            raise InputError(
                f"[target] responses_to_target {needed:g} is less than one update of {self.recipe.train_batch} "
                "responses",
                where=self.source or "plan",
                remedy="N* counts responses, updates times the train batch; or leave it out",
            )

    def warnings(self, *, with_logs: bool = False) -> list[str]:
        """Keys that were given and that no computation uses, given what else is present.

        Parameters
        ----------
        with_logs : bool
            Measured runs are read beside the plan.
        """
        said = []
        specified = self.is_specified(with_logs=with_logs)
        if not specified:
            why = f"needs {' and '.join(lacking)}" if (lacking := self.lacking()) else "is for plans without step times"
            said += [f"[{section}] {key} {why}, and is not used" for section, key in self._given(WITH_SPECIFICATIONS)]
        else:
            said += self._idle_with_specifications()
        if self.engine.gen_time_slope is None:
            needs = "needs the stage law gen_time_intercept and gen_time_slope, and is not used"
            simulated = {("engine", name) for name in ("mode", "overhead_time", "kept_share", *TRAINING)}
            unused = WITH_STAGES - simulated if specified else WITH_STAGES
            said += [f"[{section}] {key} {needs}" for section, key in self._given(unused)]
        elif self.engine.observed or with_logs:
            said.append("[engine] gen_time_slope states the stage law: step times of pilots and logs are not used")
        if self.gpu.count is None and self.gpu.generation_count is None:
            said += [f"[{section}] {key} needs [gpu] count, and is not used" for section, key in self._given(WITH_GPUS)]
        return said

    def _idle_with_specifications(self) -> list[str]:
        """Keys that another key of a simulated system leaves without use."""
        said = []
        if self.engine.train_time_intercept or self.engine.train_time_per_response:
            trainer = [("trainer", f.name) for f in dataclasses.fields(TrainerSpec)]
            why = "is not used: [engine] train_time_* states the time of training"
            said += [f"[{section}] {key} {why}" for section, key in self._given(trainer)]
        if self.engine.mode != "async":
            said += [
                f"[{s}] {k} needs mode 'async', and is not used" for s, k in self._given([("engine", "max_staleness")])
            ]
        elif self.recipe is not None and self.recipe.gen_ratio != 1:
            said.append(
                "[recipe] gen_ratio is not used in mode 'async': [engine] max_staleness states what is in flight"
            )
        return said

    def lacking(self) -> list[str]:
        """Keys without which the system cannot be simulated from specifications; empty if it can."""
        wanted = {
            "[model] name": bool(self.model.name),
            "[gpu] name": bool(self.gpu.name) or None not in (self.gpu.memory_bandwidth, self.gpu.peak_flops),
            "[gpu] count": self.gpu.count is not None or self.gpu.generation_count is not None,
            "[lengths] response_mean": self.lengths.context_in_flight is not None,
        }
        return [key for key, known in wanted.items() if not known]

    def is_specified(self, *, with_logs: bool = False) -> bool:
        """Whether stage times are simulated from specifications: nothing measured or stated, and nothing lacking."""
        stated = self.engine.gen_time_slope is not None or bool(self.engine.observed) or with_logs
        return not stated and not self.lacking()

    def _given(self, keys: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Those of some keys whose value is not the default."""
        bare = Plan()
        return [
            (section, key)
            for section, key in sorted(keys)
            if getattr(getattr(self, section), key) != getattr(getattr(bare, section), key)
        ]


def read_plan(path: str | Path) -> Plan:
    """Read plan.toml.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    Plan

    Raises
    ------
    InputError
        For a file that is missing or not TOML, an unknown key, or a value outside its bounds.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(
            f"cannot read the plan: {reason}", where=str(path), remedy="`batchsim init` writes an example"
        ) from error
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"not TOML: {error}", where=str(path)) from error
    return plan_from_dict(content, source=str(path))


def plan_from_dict(content: Mapping[str, Any], *, source: str = "") -> Plan:
    """Build a plan from the content of plan.toml.

    Parameters
    ----------
    content : mapping
        Section name to its keys.
    source : str
        File name for error texts, and the folder that log paths start from.

    Returns
    -------
    Plan

    Raises
    ------
    InputError
        For an unknown key or a value outside its bounds.
    """
    _check_keys(content, _SECTIONS, where=source or "plan")
    built: dict[str, Any] = {}
    for name, value in content.items():
        kind = _SECTIONS[name]
        where = f"{source or 'plan'} [{name}]"
        if not isinstance(value, Mapping):
            raise InputError(f"'{name}' is a section, not a value", where=source, remedy=f"write [{name}]")
        _check_keys(value, _fields(kind), where=where)
        observed = value.get("observed", [])
        for entry in observed if isinstance(observed, list) else []:
            if isinstance(entry, Mapping) and name in _OBSERVED:
                _check_keys(entry, _fields(_OBSERVED[name]), where=f"{where} observed")
        try:
            built[name] = TypeAdapter(kind).validate_python(dict(value))
        except ValidationError as error:
            raise _input_error(error, value, where) from error
        except InputError as error:
            raise InputError(error.message, remedy=error.remedy, where=where) from error
    return Plan(**built, source=source)


def _input_error(error: ValidationError, section: Mapping[str, Any], where: str) -> InputError:
    found = error.errors()
    # Of a union (a number or an interval) every member complains; a value outside its bound says more than a type.
    first = next((e for e in found if e["type"] not in OTHER_MEMBER), found[0])
    key = ".".join(
        str(part) for part in first["loc"] if not str(part).startswith(("function-", "constrained-", "tuple["))
    )
    message = first["msg"].removeprefix("Value error, ")
    shown = repr(_written(section, first))
    value = f" = {shown if len(shown) < 80 else shown[:77] + '...'}" if first["type"] != "missing" else ""
    remedy = "an interval is written [low, high]" if first["type"] == "tuple_type" else ""
    return InputError(f"{key}{value}: {message[0].lower() + message[1:]}", where=where, remedy=remedy)


def _written(section: Mapping[str, Any], error: Any) -> Any:
    """The value as the plan has it, before units were converted."""
    value: Any = section
    for part in error["loc"]:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            # Steps that pydantic adds for the members of a union.
            continue
    return error["input"] if value is section else value


def _fields(kind: type) -> list[str]:
    return [f.name for f in dataclasses.fields(kind)]


def _check_keys(given: Mapping[str, Any], known: Any, *, where: str) -> None:
    for key in given:
        if key not in known:
            raise InputError(f"unknown key '{key}'", remedy=nearest(key, known), where=where)


_SECTIONS: dict[str, type] = {
    "target": Target,
    "recipe": Recipe,
    "learning": Learning,
    "model": Model,
    "gpu": GPU,
    "engine": Engine,
    "trainer": TrainerSpec,
    "lengths": Lengths,
    "logs": Logs,
}
_OBSERVED: dict[str, type] = {"engine": ObservedThroughput, "learning": ObservedSampleCost}
