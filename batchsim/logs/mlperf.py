"""MLPerf's `:::MLLOG` lines: one JSON event per line, written by the MLPerf GRPO benchmark.

An event has `time_ms` (wall clock), `key`, `value` and `metadata`. Configuration events come first
and are named in full (`global_batch_size` is kept responses per optimizer update); `run_start` sets
the clock to zero; every step then writes two `tracked_stats` events, one of learning and one of
seconds, whose metadata hold the step and `samples_count`, the responses used so far.

Facts that matter:

- About 2 % of the counted responses are invalid and masked. `responses` stays what the log counts;
  `kept_share` = global_valid_seqs / global_batch_size stands beside it.
- Generation is asynchronous: `exposed_generation_time` is only the wait that training could not hide.
- `train_step_time` is the training loop's own clock. It leaves out the start of the run, so elapsed
  time is taken from `time_ms` instead, less the evaluations that came before.
- The last step before an evaluation writes no stats; the evaluation's own samples_count covers it.
- An evaluation begins at `eval_start` and its score follows as `eval_accuracy`; one without a score
  is still running and not reported.

Reference: MLPerf logging, https://github.com/mlcommons/logging.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from batchsim.logs.reader import Reader
from batchsim.logs.recipe import Rules
from batchsim.logs.record import Evaluations, Run
from batchsim.logs.rows import Steps, number, whole_or_none
from batchsim.logs.source import Source
from batchsim.logs.timeline import Array

MARKER = ":::MLLOG"
METRIC = "eval_accuracy"
STATED = {
    "global_batch_size": "train_batch",
    "num_prompts_per_step": "prompts",
    "num_generations_per_prompt": "group_size",
    "opt_base_learning_rate": "learning_rate",
}
FACTS = {
    "generation_tensor_parallelism": "tensor_parallel",
    "max_sequence_length": "max_sequence_length",
    "opt_gradient_clip_norm": "grad_clip",
}
STATS = {
    "reward": ("train_reward", "tracked_stats reward, mean of the step"),
    "grad_norm": ("grad_norm", "tracked_stats grad_norm, before clipping"),
    "global_valid_seqs": ("kept_share", "tracked_stats global_valid_seqs / global_batch_size"),
    "train_step_time": ("step_seconds", "tracked_stats train_step_time [s], the training loop's own clock"),
    "policy_training_time": ("training_seconds", "tracked_stats policy_training_time [s]"),
    "exposed_generation_time": (
        "generation_seconds",
        "tracked_stats exposed_generation_time [s], exposed part only (asynchronous)",
    ),
    "weight_sync_time": ("sync_seconds", "tracked_stats weight_sync_time [s]"),
}


@dataclass
class _Evaluation:
    responses: float
    start: float
    stop: float = math.nan
    score: float = math.nan


@dataclass
class _Segment:
    """Events between one run_start and the next."""

    config: dict[str, object] = field(default_factory=dict)
    start: float = math.nan
    steps: Steps = field(default_factory=Steps)
    evaluations: list[_Evaluation] = field(default_factory=list)
    status: str | None = None


def holds_event(block: bytes) -> bool:
    """Whether a line of a block carries the marker."""
    return MARKER.encode() in block


def read(source: Source) -> list[Run]:
    """Every run in one MLPerf log."""
    segments = [_Segment()]
    unreadable: list[int] = []
    for count, line in enumerate(source.lines, start=1):
        _, marker, text = line.partition(MARKER)
        if not marker:
            continue
        event = _event(text)
        if event is None:
            unreadable.append(count)
            continue
        segments[-1] = _segment_for(event, segments)
        _add(event, segments[-1], where=f"line {count}")
    warnings = source.tail_warnings()
    if unreadable:
        warnings.append(f"{len(unreadable)} {MARKER} lines could not be read, the first is line {unreadable[0]}")
    begun = [segment for segment in segments if math.isfinite(segment.start)] or segments[:1]
    if len(begun) > 1:
        warnings.append(f"the file holds {len(begun)} runs")
    return [_run(source, segment, warnings) for segment in begun]


def _event(text: str) -> dict[str, Any] | None:
    try:
        event, _ = json.JSONDecoder().raw_decode(text.strip())
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("key"), str):
        return None
    if not math.isfinite(number(event.get("time_ms"))):
        return None
    return {**event, "metadata": event["metadata"] if isinstance(event.get("metadata"), dict) else {}}


def _segment_for(event: dict[str, Any], segments: list[_Segment]) -> _Segment:
    """The segment that an event belongs to: the current one, or a new one that is appended."""
    current = segments[-1]
    again = event["key"] == "run_start" and math.isfinite(current.start)
    if again or (current.status is not None and event["key"] != "run_stop"):
        # A later run in the same file states its configuration again only where it differs.
        current = _Segment(config=dict(current.config))
        segments.append(current)
    return current


def _add(event: dict[str, Any], segment: _Segment, *, where: str) -> None:
    key, value, metadata = event["key"], event.get("value"), event["metadata"]
    time = number(event["time_ms"]) / 1000
    if key == "run_start":
        segment.start = time
    elif key == "run_stop":
        segment.status = str(metadata.get("status", "stopped"))
    elif key == "tracked_stats" and isinstance(value, dict):
        _add_stats(value, metadata, time, segment, where)
    elif key == "eval_start":
        segment.evaluations.append(_Evaluation(number(metadata.get("samples_count")), time))
    elif key == "eval_stop" and (open_one := _evaluation_of(segment, metadata)):
        open_one.stop = time
    elif key == METRIC and (open_one := _evaluation_of(segment, metadata)):
        open_one.score = number(value)
    elif not metadata.get("samples_count"):
        segment.config[key] = value


def _evaluation_of(segment: _Segment, metadata: dict[str, Any]) -> _Evaluation | None:
    """The evaluation that is running; None where the event states another place."""
    if not segment.evaluations:
        return None
    latest, stated = segment.evaluations[-1], number(metadata.get("samples_count"))
    return latest if math.isnan(stated) or stated == latest.responses else None


def _add_stats(value: dict[str, Any], metadata: dict[str, Any], time: float, segment: _Segment, where: str) -> None:
    stats = {name: number(value[name]) for name in STATS if name in value}
    step = whole_or_none(metadata.get("step"))
    if not stats or step is None:
        return
    segment.steps.add(step, stats, where=where)
    row = segment.steps.rows[step]
    # The first of a step's events is nearest to its end, and later ones cannot change it.
    row.setdefault("time", time)
    row.setdefault("responses", number(metadata.get("samples_count")))


def _run(source: Source, segment: _Segment, warnings: list[str]) -> Run:
    steps, config = segment.steps, segment.config
    evaluations = [e for e in segment.evaluations if math.isfinite(e.score) and 0 <= e.responses < math.inf]
    notes = [*warnings, *steps.warnings]
    if len(evaluations) < len(segment.evaluations):
        notes.append(f"{len(segment.evaluations) - len(evaluations)} evaluations have no score and were left out")
    columns = {name: steps.column(key) for key, (name, _) in STATS.items()}
    columns["responses"] = steps.column("responses")
    batch = number(config.get("global_batch_size"))
    columns["kept_share"] = columns["kept_share"] / (batch if batch > 0 else math.nan)
    columns["elapsed"] = _without_evaluations(steps.column("time"), segment)
    facts: dict[str, object] = {
        "model": str(config.get("submission_benchmark", "")),
        "optimizer": config.get("opt_name"),
        "seed": config.get("seed"),
        "target_metric": METRIC,
        "status": segment.status or "running",
    }
    for name, key in (("target", "target_accuracy"), ("eval_samples", "eval_samples")):
        if math.isfinite(number(config.get(key))):
            facts[name] = number(config[key]) if name == "target" else int(number(config[key]))
    told = {name: key for key, name in FACTS.items() if math.isfinite(number(config.get(key)))}
    facts |= {name: config[key] for name, key in told.items()}
    return Run(
        name=source.name,
        framework="mlperf",
        path=source.path,
        step=steps.step,
        columns=columns,
        evaluations=_evaluations(evaluations, segment),
        stated={name: number(config[key]) for key, name in STATED.items() if config.get(key) is not None},
        facts=facts,
        provenance={
            **{name: key for key, name in STATED.items()},
            **dict(STATS.values()),
            **told,
            "responses": "samples_count [responses], counted; see kept_share",
            "elapsed": "time_ms of the step's first stats - run_start - earlier evaluations [s]",
            "score": METRIC,
            "evaluation_responses": "samples_count at eval_start [responses]",
            "evaluation_elapsed": "time_ms of eval_start - run_start - earlier evaluations [s]",
            "evaluation_wall": "time_ms of eval_start - run_start [s]",
            "evaluation_seconds": "time_ms of eval_stop - eval_start [s]",
        },
        warnings=notes,
        rules=Rules(one_epoch=True),
    )


def _without_evaluations(time: Array, segment: _Segment) -> Array:
    """Seconds since run_start at `time`, less the evaluations that had ended by then."""
    elapsed = time - segment.start
    for evaluation in segment.evaluations:
        if math.isfinite(evaluation.stop):
            elapsed = elapsed - np.where(time >= evaluation.stop, evaluation.stop - evaluation.start, 0.0)
    return elapsed


def _evaluations(evaluations: list[_Evaluation], segment: _Segment) -> Evaluations:
    start = np.array([e.start for e in evaluations], dtype=float)
    return Evaluations(
        responses=np.array([e.responses for e in evaluations], dtype=float),
        seconds=np.array([e.stop - e.start for e in evaluations], dtype=float),
        elapsed=_without_evaluations(start, segment),
        wall=start - segment.start,
        scores={METRIC: np.array([e.score for e in evaluations], dtype=float)},
    )


READER = Reader(
    name="mlperf",
    logs="MLPerf :::MLLOG lines",
    read=lambda sources: [run for source in sources for run in read(source)],
    holds=holds_event,
    configured=False,
)
