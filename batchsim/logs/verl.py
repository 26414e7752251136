"""verl's console lines: ``step:12 - actor/grad_norm:0.31 - timing_s/step:252.4 - ...``.

One line per rollout step, behind an optional Ray prefix and colour codes; progress bars and other
processes' text may stand before it or be glued to its end. Values are found, not split: a value
counts only if nothing but a separator follows, so a torn tail drops out by itself.

Facts that matter:

- The number of responses is not logged. The configuration (the command line or the printed
  dictionary, both read) states it; else total tokens / mean length gives the rollout batch.
- `data.train_batch_size` and `ppo_mini_batch_size` count PROMPTS. The optimizer sees mini-batches:
  updates_per_rollout = train_batch_size x ppo_epochs / ppo_mini_batch_size.
- `timing_s/step` includes testing and save_checkpoint in some versions. It is compared with the sum of
  the phases to see which, and both are taken out.
- `actor/grad_norm` is before clipping and the mean over the mini-batches of the step.
- Old versions print three decimals, so that a learning rate of 1e-6 reads 0.000: zeros are unknown.
- ``step:0`` with validation keys only is the evaluation before training. In 2024 the first training
  step was number 0, since then it is 1.
- A step number that comes again is a restart from a checkpoint: the last one counts. A restart from
  the first step is a new run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from batchsim.logs.recipe import COUNTS
from batchsim.logs.record import Evaluations, Run, Steps, number, whole_or_none
from batchsim.logs.source import Source
from batchsim.logs.timeline import Array

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\[\d+(?:;\d+)*m")
_RAY = re.compile(r"^\((?P<process>\w+ pid=[^)]*)\) ?")
_STEP = re.compile(r"(?:^|[\s)])step:(\d{1,9}) - ")
_NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf)"
_VALUE = re.compile(rf"(?:^| - )([^\s:]+):(?:np\.\w+\(({_NUMBER})\)|({_NUMBER}))(?![\w.])")
_SCALED = re.compile(r"(.+)\((\d[\d.e+-]*)\)$")
_RENAMED = {
    "Tokens/Sec/GPU": "perf/throughput",
    "time_per_step": "perf/time_per_step",
    "total_num_tokens": "perf/total_num_tokens",
}
_SCORE_PREFIXES = ("val-core/", "val/", "test_score/")
_SIDE_SCORES = "val-aux/"
_BOOKKEEPING = ("training/", "timing_s/testing")

_KEYS = {
    "data.train_batch_size": "prompts",
    "actor_rollout_ref.rollout.n": "group_size",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "mini_batch",
    "actor_rollout_ref.actor.ppo_epochs": "epochs",
    "actor_rollout_ref.actor.optim.lr": "learning_rate",
    "actor_rollout_ref.model.path": "model",
    "trainer.n_gpus_per_node": "gpus_per_node",
    "trainer.nnodes": "nodes",
    "data.seed": "seed",
}
_OPTION = re.compile(rf"(?<![\w.])({'|'.join(map(re.escape, _KEYS))})=['\"]?([^\s'\"\\]+)")
_DICT_START = "{'actor_rollout_ref': "
_DICT_TOKEN = re.compile(r"'([\w/-]+)': (\{|'[^']*'|[^\s,{}\[\]]+)?|(\})")

_SUMS = {
    "generation_seconds": ("gen",),
    "training_seconds": ("update_actor", "update_critic"),
    "logprob_seconds": ("old_log_prob", "ref", "values"),
    "reward_seconds": ("reward", "adv"),
    "sync_seconds": ("update_weights",),
    "checkpoint_seconds": ("save_checkpoint",),
}
_OUTSIDE = ("start_profile", "stop_profile", "dump_rollout_generations", "testing")
_PHASES = (*(phase for phases in _SUMS.values() for phase in phases), *_OUTSIDE)
_PLAIN = {
    "grad_norm": ("actor/grad_norm",),
    "critic_grad_norm": ("critic/grad_norm",),
    "learning_rate": ("actor/lr",),
    "train_reward": ("critic/rewards/mean", "critic/score/mean"),
    "response_length": ("response_length/mean",),
}
_EVALUATED = {"score": "val-core/*, val/*, test_score/*", "evaluation_seconds": "timing_s/testing [s]"}
_SCOPE = {
    "grad_norm": ", before clipping, mean over the mini-batches of the step",
    "critic_grad_norm": ", before clipping, mean over the mini-batches of the step",
    "train_reward": ", mean of the step",
    "response_length": " [tokens]",
}


@dataclass
class _Segment:
    """One run within a file."""

    config: dict[str, str] = field(default_factory=dict)
    steps: Steps = field(default_factory=Steps)
    scores: dict[int, dict[str, float]] = field(default_factory=dict)
    initial: dict[str, float] = field(default_factory=dict)


def recognises(source: Source) -> bool:
    """Whether a line carries a step with at least one value."""
    lines = (line for line in (*source.lines, source.tail) if "step:" in line)
    return any(values for line in lines for _, values in _line_steps(_COLOUR.sub("", line)))


def read(source: Source) -> list[Run]:
    """Every run in one verl console log."""
    segments = [_Segment()]
    printed = _PrintedConfig()
    pending: dict[str, str] = {}
    for count, raw in enumerate(source.lines, start=1):
        if "=" not in raw and "'" not in raw and "step:" not in raw:
            continue
        line = _COLOUR.sub("", raw)
        if "step:" in line:
            for step, values in _line_steps(line):
                _add(step, values, segments, pending, where=f"line {count}")
        if "=" in line:
            pending.update(_OPTION.findall(line))
        if "'" in line:
            pending.update(printed.read(line))
    warnings = source.tail_warnings()
    if len(segments) > 1:
        warnings.append(f"the file holds {len(segments)} runs: training starts again at its first step")
    return [_run(source, segment, warnings) for segment in segments]


def _line_steps(line: str) -> list[tuple[int, dict[str, float]]]:
    """Steps and values of a line; normally none or one."""
    found = list(_STEP.finditer(line))
    ends = [*(match.start() for match in found), len(line)][1:]
    pairs = [(int(m[1]), _values(line[m.end() : end])) for m, end in zip(found, ends, strict=False)]
    return [(step, values) for step, values in pairs if values]


def _values(text: str) -> dict[str, float]:
    values = {}
    for key, wrapped, plain in _VALUE.findall(text):
        value = number(wrapped or plain)
        if scaled := _SCALED.match(key):
            # 2024: "actor/lr(1e-4):0.010" is 0.010 x 1e-4.
            key, value = scaled[1], value * number(scaled[2])
        if key.startswith("timing/"):
            key = "timing_s/" + key.removeprefix("timing/")
        values[_RENAMED.get(key, key)] = value
    return values


def _is_score(key: str) -> bool:
    return key.startswith((*_SCORE_PREFIXES, _SIDE_SCORES))


def _segment_of(step: int, train: Mapping[str, float], segments: list[_Segment], pending: dict[str, str]) -> _Segment:
    """The run that a line belongs to: the current one, or a new one if training starts again."""
    current = segments[-1]
    rows = current.steps.rows
    if len(rows) > 1:
        first = next(iter(rows))
        again = step <= min(1, first) and bool(rows[first].keys() & train.keys()) if train else step == 0
        if again:
            current = _Segment(config=dict(current.config))
            segments.append(current)
    # Configuration comes before the steps it governs, also of a second run in the same file.
    current.config.update(pending)
    pending.clear()
    return current


def _add(
    step: int, values: Mapping[str, float], segments: list[_Segment], pending: dict[str, str], *, where: str
) -> None:
    scores = {key: value for key, value in values.items() if _is_score(key)}
    train = {key: value for key, value in values.items() if key not in scores}
    validation_only = all(key.startswith(_BOOKKEEPING) for key in train)
    segment = _segment_of(step, {} if validation_only else train, segments, pending)
    steps = segment.steps
    if validation_only and step == 0 and not steps.rows:
        segment.initial = scores
        return
    if not validation_only:
        for dropped in steps.add(step, train, where=where):
            if segment.scores.pop(dropped, None):
                steps.warnings.append(f"{where}: the evaluation at the dropped step {dropped} went with it")
    elif step in steps.rows:
        steps.rows[step].update(train)
    if scores:
        segment.scores.setdefault(step, {}).update(scores)


class _PrintedConfig:
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
        if body.startswith(_DICT_START):
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
            if path in _KEYS and value and value != "None":
                found[path] = value.strip("'")
        return found


def _run(source: Source, segment: _Segment, warnings: list[str]) -> Run:
    steps = segment.steps
    base = -1 if 0 in steps.rows else 0
    scores = dict(segment.scores)
    if segment.initial:
        scores = {base: segment.initial, **scores}
    columns, provenance = _columns(steps)
    notes = [*warnings, *steps.warnings]
    rounded = columns["learning_rate"] == 0
    if rounded.any():
        columns["learning_rate"] = np.where(rounded, np.nan, columns["learning_rate"])
        notes.append(f"actor/lr is printed as 0 in {int(rounded.sum())} steps (rounded away); unknown there")
    stated, facts, names = _settings(segment.config, notes)
    return Run(
        name=source.name,
        framework="verl",
        path=source.path,
        step=steps.step,
        columns=columns,
        evaluations=_evaluations(scores, steps, notes),
        stated=stated,
        facts=facts,
        provenance=provenance | names | (_EVALUATED if scores else {}),
        warnings=notes,
        inferred_rollout_batch=_batch_from_tokens(steps),
        base=base,
        batch_hint=", and neither a command line nor a printed configuration is in the log",
    )


def _columns(steps: Steps) -> tuple[dict[str, Array], dict[str, str]]:
    """Canonical columns and where each comes from."""
    columns, provenance = {}, {}
    for name, keys in _PLAIN.items():
        values = [steps.column(key) for key in keys]
        columns[name] = _first(values)
        provenance[name] = " or ".join(keys) + _SCOPE.get(name, "")
    for name, phases in _SUMS.items():
        columns[name] = _sum([steps.column(f"timing_s/{phase}") for phase in phases])
        provenance[name] = " + ".join(f"timing_s/{phase}" for phase in phases) + " [s]"
    columns["step_seconds"] = _core_seconds(steps)
    provenance["step_seconds"] = "timing_s/step [s], less testing and save_checkpoint where it includes them"
    held = {name for name, values in columns.items() if np.isfinite(values).any()}
    return columns, {name: text for name, text in provenance.items() if name in held}


def _first(values: list[Array]) -> Array:
    """The first of several columns that holds a value, row by row."""
    result = values[0]
    for other in values[1:]:
        result = np.where(np.isnan(result), other, result)
    return result


def _sum(values: list[Array]) -> Array:
    """Sum of the phases that a row has; NaN where it has none."""
    stacked = np.array(values)
    return np.where(np.isnan(stacked).all(axis=0), np.nan, np.nansum(stacked, axis=0))


def _core_seconds(steps: Steps) -> Array:
    """Step time without evaluation and checkpoint, whichever of them the version's timer includes."""
    step = _first([steps.column("timing_s/step"), steps.column("perf/time_per_step")])
    phases = np.nan_to_num(_sum([steps.column(f"timing_s/{phase}") for phase in _PHASES]))
    testing, saving = (np.nan_to_num(steps.column(f"timing_s/{name}")) for name in ("testing", "save_checkpoint"))
    includes_both = step >= 0.99 * phases
    includes_saving = step >= 0.99 * (phases - testing)
    return np.where(includes_both, step - testing - saving, np.where(includes_saving, step - saving, step))


def _batch_from_tokens(steps: Steps) -> float | None:
    """Responses per rollout step from total tokens and mean lengths; None where they are not logged."""
    length = steps.column("prompt_length/mean") + steps.column("response_length/mean")
    tokens = steps.column("perf/total_num_tokens")
    usable = np.isfinite(tokens) & np.isfinite(length) & (length > 0) & (tokens > 0)
    return float(np.median(tokens[usable] / length[usable])) if usable.any() else None


def _settings(
    config: Mapping[str, str], notes: list[str]
) -> tuple[dict[str, float], dict[str, object], dict[str, str]]:
    """Stated recipe values, other facts, and the log's names for them."""
    values = {_KEYS[key]: number(value) for key, value in config.items()}
    # A shell variable that the log shows unexpanded is as good as absent.
    values = {name: value for name, value in values.items() if np.isfinite(value)}
    stated = {name: value for name, value in values.items() if name in (*COUNTS, "learning_rate")}
    names = {name: key for key, name in _KEYS.items() if name in stated}
    if values.get("mini_batch", 0) > 0 and "prompts" in values:
        stated["updates_per_rollout"] = values["prompts"] * values.get("epochs", 1) / values["mini_batch"]
        names["updates_per_rollout"] = "data.train_batch_size x ppo_epochs / ppo_mini_batch_size"
        if "epochs" not in values:
            notes.append("ppo_epochs is not stated; 1 is assumed")
    facts: dict[str, object] = {
        "model": _model_name(config.get("actor_rollout_ref.model.path", "")),
        "gpus": whole_or_none(values.get("gpus_per_node", 0) * values.get("nodes", 0)) or None,
        "seed": whole_or_none(values.get("seed")),
    }
    return stated, facts, names


def _model_name(path: str) -> str:
    """Model behind a Hugging Face cache path or a folder; runs on two machines share only this."""
    cached = re.search(r"models--([^/]+)", path)
    return (cached[1].split("--")[-1] if cached else path.rstrip("/").rsplit("/", 1)[-1]).strip()


def _evaluations(scores: Mapping[int, Mapping[str, float]], steps: Steps, notes: list[str]) -> Evaluations:
    names = dict.fromkeys(key for row in scores.values() for key in row if not key.endswith("/std"))
    main = [name for name in names if name.startswith(_SCORE_PREFIXES)]
    if names and not main:
        notes.append("only val-aux/ scores are logged; they are used")
    order = sorted(scores)
    nan = float("nan")
    testing = [steps.rows.get(step, {}).get("timing_s/testing", nan) for step in order]
    return Evaluations(
        step=np.array(order, dtype=float),
        seconds=np.array(testing, dtype=float),
        scores={name: np.array([scores[step].get(name, nan) for step in order], dtype=float) for name in main or names},
    )
