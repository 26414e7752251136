"""What TRL's arguments say about the batch: completions per device, turned into our recipe.

    train_batch   = per_device_train_batch_size x processes x gradient_accumulation_steps
    rollout_batch = per_device_train_batch_size x processes x steps_per_generation
                  = generation_batch_size
    group_size    = num_generations;  epochs = num_iterations
    updates_per_rollout = steps_per_generation x num_iterations / gradient_accumulation_steps

steps_per_generation is gradient_accumulation_steps and num_iterations is 1 where nothing is said.
They are read from a command line (``--num_generations 8``), a printed GRPOConfig
(``num_generations=8``), YAML (``num_generations: 8``), JSON (``"num_generations": 8``) and the
trainer's own announcement (``Total train batch size (w. parallel, ...) = 64``).

Facts that matter:

- The number of processes is no TRL argument. The announcement gives the product; a launcher's
  ``--num_processes`` or ``--nproc_per_node`` (x ``--nnodes``) gives it too. A vLLM server's GPUs do
  not train and are not counted by any of them.
- Up to TRL 0.14 per_device_train_batch_size counted PROMPTS per device, each generated
  num_generations times; since 0.15 (huggingface/trl#2776) it counts completions. Where neither the
  version nor the names of the metrics tell, the batch is ambiguous and stays unstated.

Reference: TRL, GRPOConfig, https://huggingface.co/docs/trl/grpo_trainer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

from batchsim.logs.rows import number

_PER_DEVICE = "per_device_train_batch_size"
_ACCUMULATION = "gradient_accumulation_steps"
_ARGUMENTS = (
    _PER_DEVICE,
    _ACCUMULATION,
    "num_generations",
    "num_iterations",
    "steps_per_generation",
    "generation_batch_size",
    "learning_rate",
    "logging_steps",
    "num_processes",
    "nproc_per_node",
    "nnodes",
    "model_name_or_path",
    "trl_version",
    "max_completion_length",
    "max_prompt_length",
    "beta",
    "temperature",
    "epsilon",
    "epsilon_high",
    "max_grad_norm",
    "vllm_max_model_length",
    "vllm_gpu_memory_utilization",
    "vllm_tensor_parallel_size",
)
# Facts that runs are compared by.
_FACTS = {
    "max_completion_length": "max_response_length",
    "max_prompt_length": "max_prompt_length",
    "beta": "kl_coef",
    "temperature": "temperature",
    "epsilon": "clip_ratio",
    "epsilon_high": "clip_ratio_high",
    "max_grad_norm": "grad_clip",
    "vllm_max_model_length": "max_model_length",
    "vllm_gpu_memory_utilization": "memory_share",
    "vllm_tensor_parallel_size": "tensor_parallel",
}
# A model's generation_config and its optimizer have these too.
_ANYONES = frozenset(("beta", "temperature", "epsilon"))
_TEXTS = ("model_name_or_path", "trl_version")
_OPTION = re.compile(
    rf"(?<![\w.])({'|'.join(_ARGUMENTS).replace('_', '[_-]')})['\"]?(?:\s*[:=]\s*|\s+)['\"]?([^\s'\",;)}}]+)"
)
_ANNOUNCED = {
    "total": re.compile(r"Total (?:train )?batch size \([^)]*\) = ([\d,]+)"),
    _PER_DEVICE: re.compile(r"(?:Instantaneous batch size per device|Batch size per device) = ([\d,]+)"),
    _ACCUMULATION: re.compile(r"Gradient [Aa]ccumulation steps = ([\d,]+)"),
    "devices": re.compile(r"(?:Data Parallel GPUs|Num GPUs used) = ([\d,]+)"),
}
_VERSION = re.compile(r"\btrl(?:==|[ _]version[:=]? ?v?| v)(\d+\.\d+)")
_MARKS = (*_ARGUMENTS, *(name.replace("_", "-") for name in _ARGUMENTS), "atch size", "ccumulation", "GPUs", "trl")
_BESIDE = ("training_args", "trainer_args", "grpo_config", "config", "args", "arguments")
_LARGEST_CONFIG = 1_000_000
# Metrics that TRL 0.14 did not have yet.
_NEW_NAMES = ("completions/", "clip_ratio", "num_tokens")


def arguments_in(line: str, *, printed: bool = False) -> dict[str, str]:
    """Arguments that one line of text states, by name.

    Parameters
    ----------
    line : str
    printed : bool
        Whether the line may be anyone's: names that others print too count only beside one of TRL's own.
    """
    if line.lstrip().startswith("#") or not any(mark in line for mark in _MARKS):
        return {}
    found = {name.replace("-", "_"): value for name, value in _OPTION.findall(line)}
    for name, pattern in _ANNOUNCED.items():
        if match := pattern.search(line):
            found[name] = match[1].replace(",", "")
    if match := _VERSION.search(line):
        found["trl_version"] = match[1]
    if printed and found.keys() <= _ANYONES:
        return {}
    # DeepSpeed prints dots between a name and its value, and writes "auto" where TRL's argument counts.
    return {name: value for name, value in found.items() if name in _TEXTS or math.isfinite(number(value))}


def arguments_beside(folder: str, notes: list[str]) -> dict[str, str]:
    """Arguments from a small configuration file in the log's folder, if there is just one."""
    found = {}
    for path in sorted(Path(folder).glob("*")):
        if path.suffix not in (".json", ".yaml", ".yml") or not path.stem.endswith(_BESIDE):
            continue
        try:
            text = path.read_text(errors="replace") if path.stat().st_size <= _LARGEST_CONFIG else ""
        except OSError:
            continue
        held = {name: value for line in text.splitlines() for name, value in arguments_in(line).items()}
        if _PER_DEVICE in held or "num_generations" in held:
            found[str(path)] = held
    if len(found) > 1:
        notes.append(f"arguments stand in {' and '.join(found)}: none of them was used")
    if len(found) != 1:
        return {}
    path_used, held = next(iter(found.items()))
    notes.append(f"arguments are read from {path_used}")
    return held


class Settled:
    """Recipe values that the arguments state, where each comes from, and why the rest stays open."""

    def __init__(self, arguments: Mapping[str, str], metrics: frozenset[str]) -> None:
        self.stated: dict[str, float] = {}
        self.names: dict[str, str] = {}
        self.notes: list[str] = []
        self.hint = ""
        self.arguments = arguments
        self.held = {name: value for name in arguments if (value := number(arguments[name])) > 0}
        for name, key in (("group_size", "num_generations"), ("epochs", "num_iterations")):
            self._state(name, self.held.get(key), key)
        self._state("learning_rate", self.held.get("learning_rate"), "learning_rate")
        self._batch(metrics)
        self.names |= {name: key for key, name in _FACTS.items() if math.isfinite(number(arguments.get(key)))}

    @property
    def facts(self) -> dict[str, object]:
        """Other attributes of the run."""
        model = self.arguments.get("model_name_or_path", "").rstrip("/").rsplit("/", 1)[-1]
        values = {name: number(self.arguments.get(key)) for key, name in _FACTS.items()}
        tidy = {name: int(value) if value == int(value) else value for name, value in values.items() if value == value}
        return {"model": model, **tidy}

    @property
    def divisor(self) -> tuple[int, str]:
        """Number that divides every batch, and its name: what each device trains on at once."""
        per_device = self.held.get(_PER_DEVICE, 1.0)
        return (int(per_device), _PER_DEVICE) if per_device == int(per_device) else (1, "")

    def _state(self, name: str, value: float | None, source: str) -> None:
        if value is not None:
            self.stated[name] = value
            self.names[name] = source

    def _processes(self) -> float | None:
        for name in ("num_processes", "devices"):
            if name in self.held:
                return self.held[name]
        if "nproc_per_node" in self.held:
            return self.held["nproc_per_node"] * self.held.get("nnodes", 1)
        return None

    def _batch(self, metrics: frozenset[str]) -> None:
        held, processes = self.held, self._processes()
        per_device, accumulation = held.get(_PER_DEVICE), held.get(_ACCUMULATION)
        total = held.get("total")
        product = "Total train batch size"
        if total is None and per_device and accumulation and processes:
            total = per_device * processes * accumulation
            product = f"{_PER_DEVICE} x processes x {_ACCUMULATION} = {per_device:g} x {processes:g} x {accumulation:g}"
        if total is None:
            self.hint = _what_is_missing(per_device, accumulation)
            return
        group = held.get("num_generations")
        if not self._counts_completions(metrics, total, accumulation, group):
            return
        self._state("train_batch", total, f"{product} completions")
        self._rollout(total, accumulation)

    def _counts_completions(
        self, metrics: frozenset[str], total: float, accumulation: float | None, group: float | None
    ) -> bool:
        """Whether the batch counts completions; if not, or if it is not known, what to say."""
        version = re.match(r"(\d+)\.(\d+)", self.arguments.get("trl_version", ""))
        if version:
            old = (int(version[1]), int(version[2])) < (0, 15)
        elif any(name.startswith(_NEW_NAMES) for name in metrics) or "steps_per_generation" in self.held:
            old = False
        elif group and accumulation and (total / accumulation) % group:
            # TRL 0.15 and 0.16 refused a batch per forward pass that splits a group.
            old = True
        else:
            self.hint = (
                f", and {_PER_DEVICE} counts prompts up to TRL 0.14 and completions since 0.15: the log does not say "
                f"which version wrote it (its batch of {total:g} is one or the other)"
            )
            return False
        if old and group:
            self._state("train_batch", total * group, f"{total:g} prompts (TRL < 0.15) x num_generations {group:g}")
            self._state("rollout_batch", total * group, self.names["train_batch"])
        elif old:
            self.hint = f", and TRL < 0.15 counts prompts per device ({total:g} in all) but num_generations is unknown"
        return not old

    def _rollout(self, total: float, accumulation: float | None) -> None:
        held = self.held
        if "generation_batch_size" in held:
            self._state("rollout_batch", held["generation_batch_size"], "generation_batch_size")
        elif "steps_per_generation" in held and accumulation:
            arithmetic = f"{total:g} x steps_per_generation {held['steps_per_generation']:g} / {accumulation:g}"
            self._state("rollout_batch", total * held["steps_per_generation"] / accumulation, arithmetic)
        elif held.get("num_iterations", 1) > 1:
            self._state("rollout_batch", total, "generation_batch_size, by TRL's default the train batch")
            self.notes.append(
                "steps_per_generation is not stated; TRL's default, gradient_accumulation_steps, is assumed"
            )


def _what_is_missing(per_device: float | None, accumulation: float | None) -> str:
    known = [f"{_PER_DEVICE} {per_device:g}"] if per_device else []
    known += [f"{_ACCUMULATION} {accumulation:g}"] if accumulation else []
    if not known:
        return ""
    missing = "the number of processes" if len(known) == 2 else "the rest of the product"
    return f", of which the log states {' and '.join(known)} but not {missing}"
