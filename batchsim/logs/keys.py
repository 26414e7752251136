"""A candidate batch in the user's own keys: lines to paste into the trainer that wrote the logs.

Frameworks count a batch in four units, so the same recipe (P prompts, G responses per prompt, M updates
and E passes per rollout step, B = P G E / M responses per update) has four spellings:

    verl, SkyRL, EasyR1   mini-batch in PROMPTS      B / G = P E / M
    NeMo-RL, OpenRLHF,    mini-batch in RESPONSES    B
    slime, prime-rl
    AReaL, Tinker, RLinf  UPDATES per rollout step   M
    TRL                   COMPLETIONS per device     B / (devices x gradient_accumulation_steps)

The number of devices is no argument of TRL, so its lines give the product and one worked example.
What has no key of its own (epochs in NeMo-RL and slime, a rate that is not known) becomes a line that
starts with ``#``, which a shell and TOML both pass over. A log that names no trainer, and no log at all,
give the ``[recipe]`` of a plan.toml.

Reference: the frameworks' sources; names as of verl 0.10, TRL 1.10 and OpenRLHF 0.11.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from batchsim.errors import InputError

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One recipe to run.

    Parameters
    ----------
    train_batch : int [responses]
        Kept responses per optimizer update.
    prompts : int [prompts]
        Prompt groups per rollout step.
    group_size : int [responses/prompt]
    updates_per_rollout, epochs : int [1]
    learning_rate : float or None [1]

    Raises
    ------
    InputError
        If train_batch is not prompts x group_size x epochs / updates_per_rollout.
    """

    train_batch: int
    prompts: int
    group_size: int
    updates_per_rollout: int = 1
    epochs: int = 1
    learning_rate: float | None = None

    def __post_init__(self) -> None:
        passes = self.rollout_batch * self.epochs
        if not self.train_batch * self.updates_per_rollout == passes > 0:
            raise InputError(
                f"train_batch {self.train_batch} is not prompts x group_size x epochs / updates_per_rollout = "
                f"{self.prompts} x {self.group_size} x {self.epochs} / {self.updates_per_rollout}",
                remedy="choose prompts so that the train batch is a whole number of responses",
            )

    @property
    def rollout_batch(self) -> int:
        """Kept responses per rollout step, P G [responses]."""
        return self.prompts * self.group_size


@dataclass(frozen=True, kw_only=True)
class Keys:
    """A framework's names for a recipe.

    Attributes
    ----------
    title : str
        Of the framework, for sentences.
    prompts, group_size, mini_batch, learning_rate, epochs : str
        Its keys, '' where it has none.
    counts : {'responses', 'prompts', 'updates'}
        What the key of the mini-batch counts.
    option : str
        How it takes a key on a command line.
    remark : str
        A line to add; ``{train_batch}`` stands for that number.
    """

    title: str
    prompts: str
    group_size: str
    mini_batch: str
    learning_rate: str
    epochs: str = ""
    counts: Literal["responses", "prompts", "updates"] = "responses"
    option: str = "{key}={value}"
    remark: str = ""


_ACTOR = "actor_rollout_ref.actor."
_KEYS = {
    "verl": Keys(
        title="verl",
        prompts="data.train_batch_size",
        group_size="actor_rollout_ref.rollout.n",
        mini_batch=_ACTOR + "ppo_mini_batch_size",
        learning_rate=_ACTOR + "optim.lr",
        epochs=_ACTOR + "ppo_epochs",
        counts="prompts",
    ),
    "mlperf": Keys(
        title="NeMo-RL (MLPerf)",
        prompts="grpo.num_prompts_per_step",
        group_size="grpo.num_generations_per_prompt",
        mini_batch="policy.train_global_batch_size",
        learning_rate="policy.optimizer.kwargs.lr",
    ),
}
_KEYS["verl_async"] = replace(
    _KEYS["verl"],
    title="verl (fully asynchronous)",
    prompts="",
    remark="# trigger_parameter_sync_step and require_batches stay as they were; data.train_batch_size stays 0",
)
_TRL = "TRL"
NO_RATE = "# the learning rate is not known: keep the rate of the reference"


def title(framework: str) -> str:
    """Name of a framework for a sentence; '' where `lines` are those of a plan."""
    keys = _keys(framework)
    return _TRL if framework == "trl" else "" if keys is None else keys.title


def trainer_of(runs: xr.DataTree | None) -> str:
    """The framework that trained the runs, whichever tracker kept their metrics; '' without runs.

    Parameters
    ----------
    runs : xarray.DataTree or None
        From `read_logs`.
    """
    if runs is None:
        return ""
    trainers = {_trainer(node.attrs, str(runs.attrs.get("framework", ""))) for node in runs.children.values()}
    return trainers.pop() if len(trainers) == 1 else ""


def _trainer(attrs: Mapping[Any, Any], framework: str) -> str:
    trainer = str(attrs.get("logged_by") or framework)
    # verl's fully asynchronous mode has no batch of prompts: readers compose it from the synchronisation.
    cycle = str(attrs.get("provenance", {}).get("prompts", "")).startswith("trigger_parameter_sync_step")
    return "verl_async" if trainer == "verl" and cycle else trainer


def lines(framework: str, candidate: Candidate) -> list[str]:
    """Lines to paste for a candidate.

    Parameters
    ----------
    framework : str
        As `read_logs` names it, or "openrlhf", "slime", "nemo_rl"; anything else gives lines of a plan.
    candidate : Candidate

    Returns
    -------
    list of str
        The last ones may be remarks, which start with ``#``.
    """
    if framework == "trl":
        return _trl(candidate)
    keys = _keys(framework)
    return _plan(candidate) if keys is None else _options(keys, candidate)


def rate_text(rate: float) -> str:
    """A learning rate as people write it, 2e-6 [1]."""
    return re.sub(r"e([+-])0*", lambda found: "e" + found[1].strip("+"), f"{rate:.3g}")


def _keys(framework: str) -> Keys | None:
    """Names of a framework, from here or from its reader; None where nobody knows them."""
    from batchsim.logs.registry import dialect_of

    dialect = dialect_of(framework)
    return _KEYS.get(framework) or (dialect.paste if dialect is not None else None)


def _known_rate(candidate: Candidate) -> float | None:
    rate = candidate.learning_rate
    return rate if rate is not None and math.isfinite(rate) and rate > 0 else None


def _options(keys: Keys, candidate: Candidate) -> list[str]:
    mini, remarks = candidate.train_batch, []
    if keys.remark:
        remarks.append(keys.remark.format(train_batch=candidate.train_batch))
    if keys.counts == "updates":
        mini = candidate.updates_per_rollout
    if keys.counts == "prompts":
        mini, rest = divmod(candidate.train_batch, candidate.group_size)
        if rest:
            return [
                f"# {keys.mini_batch} counts prompts, and {candidate.train_batch} responses are "
                f"{candidate.train_batch / candidate.group_size:.4g} prompts of {candidate.group_size}: "
                "choose prompts or updates per rollout so that they are whole"
            ]
    named = ((keys.prompts, candidate.prompts), (keys.group_size, candidate.group_size), (keys.mini_batch, mini))
    pairs = [(key, str(value)) for key, value in named if key]
    if candidate.epochs != 1 and keys.epochs:
        pairs.append((keys.epochs, str(candidate.epochs)))
    elif candidate.epochs != 1:
        remarks.append(f"# {candidate.epochs} epochs per rollout step: {keys.title} has no key for them")
    rate = _known_rate(candidate)
    if rate is None:
        remarks.append(NO_RATE)
    else:
        pairs.append((keys.learning_rate, rate_text(rate)))
    return [" ".join(keys.option.format(key=key, value=value) for key, value in pairs), *remarks]


def _trl(candidate: Candidate) -> list[str]:
    rate = _known_rate(candidate)
    pairs = [
        ("generation_batch_size", str(candidate.rollout_batch)),
        ("num_generations", str(candidate.group_size)),
        *([("num_iterations", str(candidate.epochs))] if candidate.epochs != 1 else []),
        *([("learning_rate", rate_text(rate))] if rate is not None else []),
    ]
    # One group per device and forward pass, where the batch is made of whole groups.
    per_device = math.gcd(candidate.train_batch, candidate.group_size)
    accumulation = candidate.train_batch // per_device
    return [
        " ".join(f"{key}={value}" for key, value in pairs),
        f"per_device_train_batch_size={per_device} gradient_accumulation_steps={accumulation}",
        f"# the second line is for 1 device; the number of devices is not known here. What counts is the product "
        f"per_device_train_batch_size x gradient_accumulation_steps x devices = {candidate.train_batch} completions",
        *([NO_RATE] if rate is None else []),
    ]


def _plan(candidate: Candidate) -> list[str]:
    rate = _known_rate(candidate)
    return [
        "[recipe]",
        f"prompts = {candidate.prompts}",
        f"group_size = {candidate.group_size}",
        *([f"updates_per_rollout = {candidate.updates_per_rollout}"] if candidate.updates_per_rollout != 1 else []),
        *([f"epochs = {candidate.epochs}"] if candidate.epochs != 1 else []),
        *([f"learning_rate = {rate_text(rate)}"] if rate is not None else [NO_RATE]),
    ]
