r"""The simulated rollout against measured runs: two traces, and batches sent at once.

    trace       vLLM runs of 300 requests with logged arrivals and lengths: the last finish, every request's latency,
                the running batch second by second; and the drain after the last admission alone (`drain`)
    makespan    `vllm bench serve`, most with all prompts at once: the time until the last one ends

Both are predicted blind: the model's config, the GPU's tables and the engine's constants, nothing from the run but its
requests and its command line. Of memory, too, only what a datasheet says; a second slice gives the simulator the
capacity that a trace logs, since a wrong one decides everything where the cache is full. The drain is scored twice:
blind, and with all step times multiplied by one factor from ticks before it, so that no scored tick is used.

Of a batch only mean lengths are known. Those drawn from chats (short prompts and answers) are spread lognormally with
`CHAT_SPREAD`, all others are of one length. Command lines with options that the model does not hold (speculation,
offloading, data or pipeline parallelism, other dtypes) are skipped and counted. Runs whose concurrency the client
capped are launched as their peak allows. The goal, from specifications and under vLLM, is a median |log ratio| of at
most log `FACTOR_GOAL`; it is scored over all rows and without those that `_left_out` names, which are no batches that
were sent at once, or no measurements of what their row states.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchsim.errors import InputError
from batchsim.specs.gpus import find_gpu
from batchsim.specs.lengths import Lengths
from batchsim.specs.models import find_model
from batchsim.system.memory import cache_room
from batchsim.system.rollout import draw, rollout
from batchsim.system.roofline import decode_law, deploy
from batchsim.validate import drain as drains
from batchsim.validate.data import data_folder

Array = NDArray[np.float64]
MAKESPANS = "decode/batch_makespans.csv"
CHAT_SPREAD = 1.0
"""Log deviation of chat prompts and answers, an assumption: the tables state only totals."""
CHAT_LIMIT = 1024
BIG_GPU = ("H100", "H200", "B200", "B300")
"""vLLM serves 1,024 sequences with a budget of 8,192 tokens there, 256 with 2,048 on others (its own defaults)."""
FACTOR_GOAL = 1.35
"""Of issue and design: median factor between prediction and measurement under vLLM."""
FLIGHT_SHARE = 0.2
"""Prompts sent at once are on average in flight for half of the makespan where the engine takes them in turn, for all
of it where it takes them together; less than a fifth is no batch sent at once."""
PEAK_BELOW = "its client capped concurrency: a peak below the number of prompts"
FEW_IN_FLIGHT = "its client capped concurrency: on average less than a fifth of the prompts in flight"
PEAK_BELOW_MEAN = "its stated peak of concurrency is below the mean that its latencies give"
COPY = "its figures are those of another GPU's row to the last digit, a copy in the source"
OUTSIDE = (
    "speculative",
    "offload",
    "lmcache",
    "data-parallel",
    "dp-size",
    "dp_size",
    "enable-dp",
    "pipeline",
    "-pp",
    "kv-cache-dtype",
    "quantization",
    "enforce-eager",
    "language-",
    "deep",
    "a2a",
)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A logged run and how it was served."""

    name: str
    model: str
    gpu: str
    expert_parallel: int
    replicas: int
    max_num_seqs: int


TRACES = (
    Trace(
        name="rtxpro6000_qwen3-30b-a3b",
        model="Qwen/Qwen3-30B-A3B-Instruct-2507",
        gpu="RTX PRO 6000",
        expert_parallel=2,
        replicas=2,
        max_num_seqs=128,
    ),
    Trace(
        name="rtx4090_llama-3.1-8b",
        model="meta-llama/Llama-3.1-8B",
        gpu="RTX-4090",
        expert_parallel=1,
        replicas=1,
        max_num_seqs=256,
    ),
)
"""The first ran on two GPUs, data-parallel attention over shared experts; its running batch never passes 256."""


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        raise InputError("no such table", where=str(path), remedy="give --data")
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# -- traces -------------------------------------------------------------------------------------------


def validate_trace(
    data: Path | None = None, *, progress: Callable[[str], object] = lambda stage: None
) -> dict[str, Any]:
    """Replay logged runs.

    Parameters
    ----------
    data : Path or None
        Folder of measured data, with `decode/` in it.
    progress : callable
        Takes the name of each stage as it begins.

    Returns
    -------
    dict
        `name`, `overall`, `slices`, `rows`, `notes`, `skipped`; a row per run and quantity.

    Raises
    ------
    InputError
        If a named folder lacks a table.
    """
    folder = data_folder(data)
    if folder is None:
        return _nothing("trace")
    rows: list[dict[str, Any]] = []
    slices: list[dict[str, Any]] = []
    notes, skipped = [], []
    for trace in TRACES:
        requests, ticks = _logged(folder, trace)
        for logged in (False, True):
            progress(f"{trace.name}, {'cache as logged' if logged else 'blind'}")
            found = _replay(trace, requests, ticks, logged=logged)
            if found is None:
                continue
            rows += found["rows"]
            slices.append(found["slice"])
        progress(f"{trace.name}, drain")
        drain = drains.read_drain(requests, ticks)
        if drain is None:
            skipped.append(f"drain of {trace.name}: its log ends before the last admission")
            continue
        for part in _drained(trace, drain):
            rows.append(_row(part["row"], part["predicted"], part["measured"]))
            slices.append({name: value for name, value in part.items() if name not in ("row", "predicted", "measured")})
            notes.append(_verdict(part))
    # Slices of one claim stand together in the printed tables.
    slices.sort(key=lambda part: part["claim"] == DRAIN)
    blind = [row for row in rows if row["claim"].startswith("blind") and "makespan" in row["claim"]]
    return {
        "name": "trace",
        "overall": _figures(blind),
        "slices": slices,
        "rows": rows,
        "notes": notes,
        "skipped": skipped,
    }


DRAIN = "the drain after the last admission: sum |predicted - measured| over sum measured, and its length"


def _logged(folder: Path, trace: Trace) -> tuple[dict[str, Array], dict[str, Array]]:
    """Columns of the requests, in the order of their arrival, and of the ticks."""
    requests = sorted(_rows(folder / f"decode/trace_{trace.name}_requests.csv"), key=lambda r: float(r["queued_s"]))
    ticks = _rows(folder / f"decode/trace_{trace.name}_timeseries.csv")
    return (
        {name: np.array([float(r[name]) for r in requests]) for name in requests[0] if name != "request_id"},
        {name: np.array([float(r[name]) for r in ticks]) for name in ticks[0]},
    )


def _drained(trace: Trace, drain: drains.Drain) -> list[dict[str, Any]]:
    """Scores of a drain: blind, and with the factor of earlier ticks where there is one."""
    deployment = deploy(find_model(trace.model), find_gpu(trace.gpu), expert_parallel=trace.expert_parallel)
    law = decode_law(deployment, concurrency=trace.max_num_seqs)
    factor = drains.step_factor(drain, law, replicas=trace.replicas)
    found = []
    for kind, times in (("blind", 1.0), ("calibrated on earlier ticks", factor)):
        if times is None:
            continue
        scored = drains.mean_score(drain, law, replicas=trace.replicas, factor=times)
        found.append(
            {
                "claim": DRAIN,
                "of": f"{trace.name}, {kind}",
                "row": f"{kind}: {trace.name}, drain (s)",
                "predicted": drain.length * (1 + scored["length_error"]),
                "measured": drain.length,
                "step_factor": times,
                "calibration_ticks": 0 if kind == "blind" else int(drain.earlier_batch.size),
                "estimate_ratio": drain.estimate_ratio,
            }
            | scored
        )
    return found


def _verdict(part: dict[str, Any]) -> str:
    names = drains.missed(part)
    errors, length = 100 * drains.ERROR_GOAL, 100 * drains.LENGTH_GOAL
    least, most = (100 * v for v in part["length_error_range"])
    spread = f"; length {least:+.1f} to {most:+.1f} % by the requests' places" if most > least else ""
    said = f"misses {' and '.join(names)}" if names else "all goals met"
    return f"{part['of']}: {said} (running batch, tokens/s within {errors:.0f} %, length {length:.0f} %){spread}"


def _replay(trace: Trace, column: dict[str, Array], ticks: dict[str, Array], *, logged: bool) -> dict[str, Any] | None:
    architecture, gpu = find_model(trace.model), find_gpu(trace.gpu)
    deployment = deploy(architecture, gpu, expert_parallel=trace.expert_parallel)
    room = cache_room(
        architecture, memory=float(gpu.usable_memory or 0), tensor_parallel=1, expert_parallel=trace.expert_parallel
    )
    blocks, fixed = room.blocks(16)
    if logged:
        capacity = _logged_capacity(column, ticks)
        if capacity is None:
            return None
        blocks = int(capacity // 16)
    ds = rollout(
        law=decode_law(deployment, concurrency=trace.max_num_seqs),
        prompt_tokens=column["input_toks"],
        response_tokens=column["output_toks"],
        max_num_seqs=trace.max_num_seqs,
        kv_blocks=blocks,
        fixed_blocks=fixed,
        max_num_batched_tokens=8192 if trace.replicas > 1 else 2048,
        replicas=trace.replicas,
        dispatch="least_loaded",
        arrival_seconds=column["queued_s"],
    )
    at, running = ticks["t"], ticks["running"]
    simulated = ds["running"].values[np.searchsorted(ds["time"].values, at, side="right") - 1]
    latency = ds["finish_time"].values - column["queued_s"]
    measured = column["last_token_s"] - column["queued_s"]
    kind = "cache as logged" if logged else "blind"
    rows = [
        _row(f"{kind}: {trace.name}, makespan (s)", float(ds["gen_time"]), float(column["last_token_s"].max())),
        _row(f"{kind}: {trace.name}, mean latency (s)", float(latency.mean()), float(measured.mean())),
    ]
    ratio = latency / measured
    part = {
        "claim": f"latency of requests, {kind} ({16 * blocks:,} tokens of cache)",
        "of": trace.name,
        "n": int(ratio.size),
        "median_ape": float(np.median(np.abs(ratio - 1))),
        "mape": float(np.mean(np.abs(ratio - 1))),
        "max_ape": float(np.max(np.abs(ratio - 1))),
        "bias": float(np.mean(ratio - 1)),
        "running_error": float(np.mean(np.abs(simulated - running)) / running.mean()),
        "preemptions": int(ds["preemptions_total"]),
    }
    return {"rows": rows, "slice": part}


def _logged_capacity(column: dict[str, Array], ticks: dict[str, Array]) -> float | None:
    """Tokens of cache: those of the running requests over the share that is logged as used; None where it is not."""
    found = []
    for t, share in zip(ticks["t"], ticks["kv_cache_pct"] / 100, strict=True):
        if share < 0.3:
            continue
        first, last = column["first_token_s"], column["last_token_s"]
        active = (column["scheduled_s"] <= t) & (t < last)
        done = np.clip((t - first) / np.maximum(last - first, 1e-9), 0, 1)
        found.append(float(np.sum((column["input_toks"] + column["output_toks"] * done)[active])) / share)
    return float(np.median(found)) if found else None


# -- makespans ----------------------------------------------------------------------------------------


def validate_makespan(
    data: Path | None = None, *, seed: int = 0, progress: Callable[[str], object] = lambda stage: None
) -> dict[str, Any]:
    """Score the simulated makespan of batches that were sent at once.

    Parameters
    ----------
    data : Path or None
        Folder of measured data, with `decode/` in it.
    seed : int
        Of the lengths drawn for chats.
    progress : callable
        Takes the name of each stage as it begins.

    Returns
    -------
    dict
        `name`, `overall`, `slices`, `rows`, `notes`, `skipped`. `overall` is of the rows that are not `left_out`;
        figures have `factor`, exp of the median |log ratio|, and `ratio`, the median of predicted over measured.

    Raises
    ------
    InputError
        If a named folder lacks the table.
    """
    folder = data_folder(data)
    if folder is None:
        return _nothing("makespan")
    rows: list[dict[str, Any]] = []
    skipped: Counter[str] = Counter()
    seen: dict[tuple[str, ...], str] = {}
    for raw in _rows(folder / MAKESPANS):
        progress(raw["file"])
        reason = _left_out(raw, seen)
        try:
            rows.append(_makespan(raw, seed) | {"left_out": reason})
        except InputError as error:
            skipped[error.message if len(error.message) < 90 else f"{error.message[:87]}..."] += 1
    kept = [row for row in rows if row["left_out"] is None]
    return {
        "name": "makespan",
        "overall": _figures(kept),
        "slices": _makespan_slices(rows, kept),
        "rows": [{name: value for name, value in row.items() if name not in KEYS} for row in rows],
        "notes": _makespan_notes(rows, kept),
        "skipped": [f"{count} rows: {reason}" for reason, count in skipped.most_common()],
    }


KEYS = ("engine", "workload", "on", "gpu")


def _left_out(raw: dict[str, str], seen: dict[tuple[str, ...], str]) -> str | None:
    """Why a row is no measurement of a batch sent at once on its GPU, or None; `seen` gains its figures.

    Decided from the source's own columns, never from a prediction.
    """
    n, duration = int(raw["n_ok"]), float(raw["duration_s"])
    figures = tuple(value for name, value in raw.items() if name not in ("file", "hardware", "section"))
    if seen.setdefault(figures, raw["hardware"]) != raw["hardware"]:
        return COPY
    peak = float(raw["peak_conc"]) if raw["peak_conc"] else None
    mean = None
    if raw.get("mean_ttft_ms") and raw.get("mean_tpot_ms"):
        seconds = (float(raw["mean_ttft_ms"]) + float(raw["mean_tpot_ms"]) * (int(raw["out_tok"]) / n - 1)) / 1e3
        mean = n * seconds / duration
    if peak is not None and peak < n:
        return PEAK_BELOW_MEAN if mean is not None and mean > peak else PEAK_BELOW
    return FEW_IN_FLIGHT if mean is not None and mean < FLIGHT_SHARE * n else None


def _makespan_slices(rows: list[dict[str, Any]], kept: list[dict[str, Any]]) -> list[dict[str, Any]]:
    every = [row | {"engine": f"{row['engine']}, all rows"} for row in rows]
    vllm = [row for row in kept if row["engine"] == "vllm"]
    parts = (
        ("engine", "by engine", [*every, *(row | {"engine": f"{row['engine']}, after exclusions"} for row in kept)]),
        ("left_out", "left out, all engines: why", [row for row in rows if row["left_out"] is not None]),
        ("gpu", "vllm after exclusions: by GPU", vllm),
        ("workload", "vllm after exclusions: by workload", vllm),
        ("on", "vllm after exclusions: by model and GPU", vllm),
    )
    found = []
    for key, title, some in parts:
        for value in sorted({row[key] for row in some}):
            found.append({"claim": title, "of": value} | _figures([row for row in some if row[key] == value]))
    return found


def _makespan_notes(rows: list[dict[str, Any]], kept: list[dict[str, Any]]) -> list[str]:
    """What the goal says of vLLM, with and without the rows left out."""
    every, some = ([row for row in part if row["engine"] == "vllm"] for part in (rows, kept))
    if not some:
        return []
    factor = _figures(some)["factor"]
    said = (
        f"vllm, from specifications: median factor {factor:.2f} over {len(some)} rows, {_figures(every)['factor']:.2f} "
        f"over all {len(every)}; the goal is {FACTOR_GOAL}, {'met' if factor <= FACTOR_GOAL else 'missed'}"
    )
    reasons = Counter(row["left_out"] for row in every if row["left_out"] is not None)
    return [
        said,
        *(
            f"left out, {count} row{'s' if count != 1 else ''} of vllm: {reason}"
            for reason, count in reasons.most_common()
        ),
    ]


def _makespan(raw: dict[str, str], seed: int) -> dict[str, Any]:
    command, n = raw["serving_cmd"], int(raw["n_ok"])
    for word in OUTSIDE:
        if word in re.sub(r"deepseek|deep-?ai", "", command.lower()):
            raise InputError(f"its command line has '{word}'")
    engine, model = _engine(command), _model(command)
    gpu = find_gpu(next((name for name in ("H200", "H100", "A100") if name in raw["hardware"]), raw["hardware"]))
    tensor, expert = _number(command, r"(?:tp|tp[-_]size|tensor-parallel-size)"), 1
    if "expert-parallel" in command or "ep-size" in command or "ep_size" in command:
        expert = tensor
    architecture = find_model(model)
    share = _share(command)
    deployment = deploy(architecture, gpu, tensor_parallel=tensor, expert_parallel=expert, engine=engine)
    room = cache_room(
        architecture,
        memory=float(gpu.usable_memory or 0),
        tensor_parallel=tensor,
        expert_parallel=expert,
        memory_share=share,
    )
    big = engine != "vllm" or gpu.name.startswith(BIG_GPU)
    most = min(_number(command, "max-num-seqs", default=1024 if big else 256), n)
    budget = _number(command, "max-num-batched-tokens", default=8192 if big else 2048)
    peak = float(raw["peak_conc"]) if raw["peak_conc"] else float(n)
    prompt, response = int(raw["in_tok"]) / n, max(1.0, int(raw["out_tok"]) / n)
    chat = prompt < 500 and response > 150 and n >= 500
    lengths = Lengths(
        prompt_mean=max(prompt, 1.0),
        response_mean=response,
        response_spread=CHAT_SPREAD,
        prompt_spread=CHAT_SPREAD if chat else 0.0,
        distribution="lognormal" if chat else "fixed",
        max_tokens=CHAT_LIMIT if chat else None,
    )
    drawn = draw(lengths, groups=n, group_size=1, rng=np.random.default_rng(seed))
    blocks, fixed = room.blocks(16)
    if room.token_bytes == 0:
        most, blocks, fixed = min(most, blocks), 0, 0
    most = int(max(1, min(most, peak)))
    ds = rollout(
        law=decode_law(deployment, concurrency=most),
        prompt_tokens=drawn.prompt_tokens,
        response_tokens=drawn.response_tokens,
        max_num_seqs=most,
        kv_blocks=blocks or None,
        fixed_blocks=fixed,
        max_num_batched_tokens=max(budget, most),
    )
    workload = "chat" if chat else f"{prompt:,.0f} in, {response:,.0f} out"
    if not chat:
        workload = f"{_round(prompt)} in, {_round(response)} out"
    where = f"{architecture.name} on {tensor} x {gpu.name}"
    row = _row(f"{engine} {where}: {n} x ({workload})", float(ds["gen_time"]), float(raw["duration_s"]))
    return row | {"engine": engine, "workload": workload, "on": where, "gpu": gpu.name}


def _round(value: float) -> str:
    return f"{float(f'{value:.1g}'):,.0f}"


def _engine(command: str) -> str:
    for word, engine in (("vllm serve", "vllm"), ("sglang", "sglang"), ("trtllm-serve", "trtllm")):
        if word in command:
            return engine
    raise InputError("its command line starts no known engine")


def _model(command: str) -> str:
    named = re.search(r"--model(?:-path)?[ =]+(\S+)", command) or re.search(
        r"(?:vllm serve|trtllm-serve) +(\S+)", command
    )
    if named is None:
        raise InputError("its command line names no model")
    return named[1].removeprefix("/workspace/")


def _number(command: str, option: str, default: int = 1) -> int:
    found = re.search(rf"(?:^|\s)--?{option}[ =]+(\d+)", command)
    return int(found[1]) if found else default


def _share(command: str) -> float:
    found = re.search(r"(?:gpu-memory-utilization|mem-fraction-static)[ =]+(0?\.\d+)", command)
    return float(found[1]) if found else 0.9


# -- both ---------------------------------------------------------------------------------------------


def _row(claim: str, predicted: float, measured: float) -> dict[str, Any]:
    return {
        "claim": claim,
        "predicted": predicted,
        "interval": None,
        "measured": measured,
        "error": predicted / measured - 1,
        "covered": None,
        "peer": None,
    }


def _figures(rows: list[dict[str, Any]]) -> dict[str, Any]:
    if not rows:
        return {}
    error = np.array([row["error"] for row in rows])
    log = np.log1p(error)
    return {
        "n": int(error.size),
        "median_ape": float(np.median(np.abs(error))),
        "mape": float(np.mean(np.abs(error))),
        "max_ape": float(np.max(np.abs(error))),
        "bias": float(np.mean(error)),
        "factor": float(np.exp(np.median(np.abs(log)))),
        "ratio": float(np.exp(np.median(log))),
        "peer": None,
    }


def _nothing(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "overall": {},
        "slices": [],
        "rows": [],
        "notes": [],
        "skipped": [f"{name}: its tables do not ship; give --data"],
    }
