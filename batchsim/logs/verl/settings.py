"""verl's configuration: Hydra overrides on a command line, the printed dictionary, or a file.

`data.train_batch_size` and `ppo_mini_batch_size` count PROMPTS. The optimizer sees mini-batches:

    prompts             = train_batch_size
                          (fully asynchronous: trigger_parameter_sync_step x require_batches
                          x ppo_mini_batch_size, with train_batch_size 0)
    updates_per_rollout = prompts x ppo_epochs / ppo_mini_batch_size

A value that the log leaves as a shell variable or an interpolation is as good as absent. A
configuration file only adds to what the log states; where they differ, one of them is of another run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from batchsim.errors import InputError
from batchsim.logs.config import Config
from batchsim.logs.recipe import COUNTS
from batchsim.logs.record import number, whole_or_none

_ACTOR = "actor_rollout_ref.actor."
_ROLLOUT = "actor_rollout_ref.rollout."
KEYS = {
    "data.train_batch_size": "prompts",
    _ROLLOUT + "n": "group_size",
    _ACTOR + "ppo_mini_batch_size": "mini_batch",
    _ACTOR + "ppo_epochs": "epochs",
    _ACTOR + "optim.lr": "learning_rate",
    "actor_rollout_ref.model.path": "model",
    "trainer.n_gpus_per_node": "gpus_per_node",
    "trainer.nnodes": "nodes",
    "data.seed": "seed",
    "data.gen_batch_size": "gen_prompts",
    _ROLLOUT + "max_num_seqs": "max_num_seqs",
    _ROLLOUT + "gpu_memory_utilization": "memory_share",
    _ROLLOUT + "tensor_model_parallel_size": "tensor_parallel",
    _ROLLOUT + "mode": "rollout_mode",
    _ACTOR + "grad_clip": "grad_clip",
    _ACTOR + "optim.clip_grad": "grad_clip",
    _ACTOR + "clip_ratio": "clip_ratio",
    _ACTOR + "clip_ratio_low": "clip_ratio_low",
    _ACTOR + "clip_ratio_high": "clip_ratio_high",
    "trainer.v1.trainer_mode": "trainer_mode",
    "trainer.v1.separate_async.parameter_sync_step": "parameter_sync_steps",
    "trainer.v1.sampler.max_off_policy_threshold": "staleness_limit",
    "trainer.v1.sampler.max_off_policy_strategy": "staleness_strategy",
    "async_training.staleness_threshold": "staleness_threshold",
    "async_training.trigger_parameter_sync_step": "parameter_sync_steps",
    "async_training.require_batches": "require_batches",
    "async_training.partial_rollout": "partial_rollout",
}
_NUMERIC_FACTS = (
    "seed",
    "max_num_seqs",
    "memory_share",
    "tensor_parallel",
    "grad_clip",
    "clip_ratio",
    "clip_ratio_low",
    "clip_ratio_high",
    "parameter_sync_steps",
    "staleness_limit",
    "staleness_threshold",
)
_TEXT_FACTS = ("rollout_mode", "trainer_mode", "staleness_strategy", "partial_rollout")
# What stands in a block of a log that has an option.
_SECTIONS = ("data.", "actor_rollout_ref.", "trainer.", "async_training.")
OPTION_NEEDLES = {section.encode(): re.compile(rb"[\w.]*=") for section in _SECTIONS}
DICT_START = "{'actor_rollout_ref': "
_OPTION = re.compile(rf"(?<![\w.])({'|'.join(map(re.escape, KEYS))})=['\"]?([^\s'\"\\]+)")
_DICT_TOKEN = re.compile(r"'([\w/-]+)': (\{|'[^']*'|[^\s,{}\[\]]+)?|(\})")
_RAY = re.compile(r"^\((?P<process>\w+ pid=[^)]*)\) ?")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Recipe values and other attributes that a configuration states, and its names for them."""

    stated: dict[str, float]
    facts: dict[str, object]
    names: dict[str, str]
    gen_prompts: float = math.nan
    notes: list[str] = field(default_factory=list)


def options(line: str) -> dict[str, str]:
    """Wanted Hydra overrides on a line, by key."""
    return dict(_OPTION.findall(line)) if any(section in line for section in _SECTIONS) else {}


class PrintedConfig:
    """The configuration dictionary that verl pretty-prints over some 250 lines.

    Other processes write between its lines, so lines of another Ray process are skipped, and the
    nesting is read off the columns at which the keys stand rather than by counting braces.
    """

    def __init__(self) -> None:
        self.process: str | None = None
        self.open: list[tuple[int, str]] = []

    def read(self, line: str) -> dict[str, str]:
        """Wanted keys on this line, by their dotted path."""
        prefix = _RAY.match(line)
        process = prefix["process"] if prefix else ""
        body = line[prefix.end() :] if prefix else line
        if body.startswith(DICT_START):
            self.process, self.open = process, []
        if self.process is None or process != self.process:
            return {}
        found = {}
        for token in _DICT_TOKEN.finditer(body):
            key, value, closing = token.groups()
            if closing:
                # Within a line columns only grow, so a dictionary that ends there must be closed.
                self.open = self.open[:-1]
                continue
            while self.open and self.open[-1][0] >= token.start():
                self.open.pop()
            if value == "{":
                self.open.append((token.start(), key))
                continue
            path = ".".join([*(name for _, name in self.open), key])
            if path in KEYS and value and value != "None":
                found[path] = value.strip("'")
        return found

    def close(self) -> None:
        """Read no more of the dictionary."""
        self.process, self.open = None, []


def settings(logged: Mapping[str, str], config: Config | None, *, where: str) -> Settings:
    """What the log and a configuration file state together.

    Parameters
    ----------
    logged : mapping
        Dotted key -> value, as the log shows them.
    config : Config or None
        A configuration file.
    where : str
        The log, for messages.

    Raises
    ------
    InputError
        Where log and file contradict each other.
    """
    known = {key: value for key, value in logged.items() if not _is_open(value)}
    filed = {key: value for key in KEYS if config and (value := config.get(key)) and not _is_open(value)}
    for key in filter(known.__contains__, filed):
        assert config is not None
        if not _same(key, known[key], filed[key]):
            raise InputError(
                f"{key} is {known[key]} in the log but {filed[key]} in {config.path}",
                remedy="give the configuration of this run, or none",
                where=where,
            )
    values: dict[str, float] = {}
    texts: dict[str, str] = {}
    names: dict[str, str] = {}
    for key, name in KEYS.items():
        if (key in known or key in filed) and name not in texts:
            texts[name] = text = known.get(key, filed.get(key, ""))
            names[name] = key if key in known or config is None else f"{key} in {config.path}"
            if math.isfinite(parsed := number(text)):
                values[name] = parsed
    return _settled(values, texts, names)


def _is_open(value: str) -> bool:
    """Whether a value is a variable or an interpolation that was not filled in."""
    return value.startswith("$") or value in ("", "None", "null", "???")


def _same(key: str, logged: str, filed: str) -> bool:
    if KEYS[key] == "model":
        return _model_name(logged) == _model_name(filed)
    one, other = number(logged), number(filed)
    if math.isfinite(one) and math.isfinite(other):
        return math.isclose(one, other, rel_tol=1e-6)
    return logged.lower() == filed.lower()


def _settled(values: dict[str, float], texts: Mapping[str, str], names: dict[str, str]) -> Settings:
    notes = []
    stated = {name: value for name, value in values.items() if name in (*COUNTS, "learning_rate")}
    mini = values.get("mini_batch", 0)
    cycle = values.get("parameter_sync_steps", 0) * values.get("require_batches", 0) * mini
    if stated.get("prompts") == 0 and cycle > 0:
        stated["prompts"] = cycle
        names["prompts"] = "trigger_parameter_sync_step x require_batches x ppo_mini_batch_size"
        notes.append("a row is one parameter synchronisation (fully asynchronous training)")
    if mini > 0 and "prompts" in stated:
        stated["updates_per_rollout"] = stated["prompts"] * values.get("epochs", 1) / mini
        names["updates_per_rollout"] = "data.train_batch_size x ppo_epochs / ppo_mini_batch_size"
        if "epochs" not in values:
            notes.append("ppo_epochs is not stated; 1 is assumed")
    facts: dict[str, object] = {
        "model": _model_name(texts.get("model", "")),
        "gpus": whole_or_none(values.get("gpus_per_node", 0) * values.get("nodes", 0)) or None,
        **{name: _tidy(values[name]) for name in _NUMERIC_FACTS if name in values},
        **{name: texts[name] for name in _TEXT_FACTS if name in texts},
    }
    if "gpus_per_node" in names and "nodes" in names:
        names["gpus"] = f"{names['gpus_per_node']} x {names['nodes']}"
    told = {name for name, value in facts.items() if value is not None and value != ""} | stated.keys()
    return Settings(
        stated=stated,
        facts=facts,
        names={name: text for name, text in names.items() if name in told},
        gen_prompts=values.get("gen_prompts", math.nan),
        notes=notes,
    )


def _tidy(value: float) -> int | float:
    return int(value) if value == int(value) else value


def _model_name(path: str) -> str:
    """Model behind a Hugging Face cache path or a folder; runs on two machines share only this."""
    cached = re.search(r"models--([^/]+)", path)
    return (cached[1].split("--")[-1] if cached else path.rstrip("/").rsplit("/", 1)[-1]).strip()
