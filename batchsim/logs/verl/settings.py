"""verl's configuration: Hydra overrides on a command line, the printed dictionary, or a file.

`data.train_batch_size` and `ppo_mini_batch_size` count PROMPTS. The optimizer sees mini-batches:

    prompts             = train_batch_size
                          (fully asynchronous: trigger_parameter_sync_step x require_batches
                          x ppo_mini_batch_size, with train_batch_size 0)
    updates_per_rollout = prompts x ppo_epochs / ppo_mini_batch_size      (settled in `recipe`)

verl has no default for the mini-batch that a reader could assume: its 256 prompts exceed many batches.
Where no mini-batch is stated, updates_per_rollout must be given.

A value that the log leaves as a shell variable or an interpolation is as good as absent. A
configuration file only adds to what the log states; where they differ, one of them is of another run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from batchsim.logs.config import Config
from batchsim.logs.recipe import COUNTS, Rules
from batchsim.logs.rows import whole_or_none
from batchsim.logs.stated import merged, model_name, same_value

_ACTOR = "actor_rollout_ref.actor."
_ROLLOUT = "actor_rollout_ref.rollout."
MINI_BATCH = _ACTOR + "ppo_mini_batch_size"
KEYS = {
    "data.train_batch_size": "prompts",
    _ROLLOUT + "n": "group_size",
    MINI_BATCH: "mini_batch",
    "critic.ppo_mini_batch_size": "critic_mini_batch",
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
    "data.max_response_length": "max_response_length",
    "data.max_prompt_length": "max_prompt_length",
    "data.train_files": "train_files",
    "data.val_files": "val_files",
    _ROLLOUT + "temperature": "temperature",
    _ROLLOUT + "data_parallel_size": "data_parallel",
    _ROLLOUT + "over_sample_rate": "over_sample_rate",
    _ACTOR + "kl_loss_coef": "kl_loss_coef",
    "algorithm.kl_ctrl.kl_coef": "kl_coef",
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
    "max_response_length",
    "max_prompt_length",
    "temperature",
    "data_parallel",
    "over_sample_rate",
    "kl_loss_coef",
    "kl_coef",
)
_TEXT_FACTS = ("rollout_mode", "trainer_mode", "staleness_strategy", "partial_rollout", "train_files", "val_files")
RECIPE_KEYS = ("data.train_batch_size", _ROLLOUT + "n", MINI_BATCH, _ACTOR + "ppo_epochs", _ACTOR + "optim.lr")
"""Keys that must not change while rows of a run survive."""
# What stands in a block of a log that has an option.
_SECTIONS = ("data.", "actor_rollout_ref.", "trainer.", "async_training.", "critic.", "algorithm.")
OPTION_NEEDLES = {section.encode(): re.compile(rb"[\w.]*=") for section in _SECTIONS}
DICT_START = "{'actor_rollout_ref': "
_OPTION = re.compile(
    rf"(?<![\w.])({'|'.join(re.escape(key) for key in KEYS if not key.endswith('_files'))})=['\"]?([^\s'\"\\]+)"
)
# Data files are one name or a list, quoted for a shell in some way; the list stays one text.
_FILES = re.compile(r"(?<![\w.])(data\.(?:train|val)_files)=(?:['\"\\]*\[([^\]]*)\]|['\"]?([^\s'\"\\\[\]]+))")
_FILE = re.compile(r"[^\s,'\"\\\[\]]+")
_LISTS = ("train_files", "val_files")
_COMMENT = re.compile(rf"^(?:\([^)]*\) ?)?\s*#|\s#\s*(?=\+{{0,2}}(?:{'|'.join(map(re.escape, _SECTIONS))}))")
_DICT_TOKEN = re.compile(r"'([\w/-]+)': (\{|'[^']*'|[^\s,{}\[\]]+)?|(\})")
_LIST_START = re.compile(rf"'({'|'.join(_LISTS)})': \[")
_RAY = re.compile(r"^\((?P<process>\w+ pid=[^)]*)\) ?")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Recipe values and other attributes that a configuration states, and its names for them."""

    stated: dict[str, float]
    facts: dict[str, object]
    names: dict[str, str]
    gen_prompts: float = math.nan
    notes: list[str] = field(default_factory=list)


RULES = Rules(mini_batch=MINI_BATCH)


def options(line: str) -> dict[str, str]:
    """Wanted Hydra overrides on a line, by key; those behind a # do not count."""
    if not any(section in line for section in _SECTIONS):
        return {}
    if comment := _COMMENT.search(line):
        line = line[: comment.start()]
    files = {key: ", ".join(_FILE.findall(listed or one)) for key, listed, one in _FILES.findall(line)}
    return dict(_OPTION.findall(line)) | {key: value for key, value in files.items() if value}


class PrintedConfig:
    """The configuration dictionary that verl pretty-prints over some 250 lines.

    Other processes write between its lines, so lines of another Ray process are skipped, and the
    nesting is read off the columns at which the keys stand rather than by counting braces.
    """

    def __init__(self) -> None:
        self.process: str | None = None
        self.open: list[tuple[int, str]] = []
        self.listed: tuple[str, list[str]] | None = None

    def read(self, line: str) -> dict[str, str]:
        """Wanted keys on this line, by their dotted path."""
        prefix = _RAY.match(line)
        process = prefix["process"] if prefix else ""
        body = line[prefix.end() :] if prefix else line
        if body.startswith(DICT_START):
            self.process, self.open = process, []
        if self.process is None or process != self.process:
            return {}
        found = self._list(body)
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

    def _list(self, body: str) -> dict[str, str]:
        """A list of data files that ends on this line; lists may go over several."""
        if start := _LIST_START.search(body):
            self.listed = f"data.{start[1]}", []
            body = body[start.end() :]
        if self.listed is None:
            return {}
        key, names = self.listed
        inside, end, _ = body.partition("]")
        names += _FILE.findall(inside)
        if not end:
            return {}
        self.listed = None
        return {key: ", ".join(names)} if names else {}

    def close(self) -> None:
        """Read no more of the dictionary."""
        self.process, self.open, self.listed = None, [], None


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
    found = merged(KEYS, logged, config, where=where, free=_LISTS)
    return _settled(found.numbers, found.texts, found.names)


def same(key: str, logged: str, filed: str) -> bool:
    """Whether two values of a key mean the same."""
    return same_value(KEYS[key], logged, filed)


def _settled(values: dict[str, float], texts: Mapping[str, str], names: dict[str, str]) -> Settings:
    notes = []
    stated = {name: value for name, value in values.items() if name in (*COUNTS, "learning_rate")}
    mini = values.get("mini_batch", 0)
    cycle = values.get("parameter_sync_steps", 0) * values.get("require_batches", 0) * mini
    if stated.get("prompts") == 0 and cycle > 0:
        stated["prompts"] = cycle
        names["prompts"] = "trigger_parameter_sync_step x require_batches x ppo_mini_batch_size"
        notes.append("a row is one parameter synchronisation (fully asynchronous training)")
    if mini > 0:
        stated["mini_prompts"] = mini
        prompts = "data.train_batch_size" if "prompts" in stated else "prompts"
        names["updates_per_rollout"] = f"{prompts} x ppo_epochs / ppo_mini_batch_size"
    if values.get("critic_mini_batch", 0) > 0:
        stated["critic_mini_prompts"] = values["critic_mini_batch"]
    facts: dict[str, object] = {
        "model": model_name(texts.get("model", "")),
        "gpus": whole_or_none(values.get("gpus_per_node", 0) * values.get("nodes", 0)) or None,
        **{name: _tidy(values[name]) for name in _NUMERIC_FACTS if name in values},
        **{name: texts[name] for name in _TEXT_FACTS if name in texts},
    }
    if "gpus_per_node" in names and "nodes" in names:
        names["gpus"] = f"{names['gpus_per_node']} x {names['nodes']}"
    told = {name for name, value in facts.items() if value is not None and value != ""} | stated.keys()
    told |= {"updates_per_rollout"} if mini > 0 else set()
    return Settings(
        stated=stated,
        facts=facts,
        names={name: text for name, text in names.items() if name in told},
        gen_prompts=values.get("gen_prompts", math.nan),
        notes=notes,
    )


def _tidy(value: float) -> int | float:
    return int(value) if value == int(value) else value
