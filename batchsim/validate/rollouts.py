r"""The simulated rollout against measured runs: two traces, and batches sent at once.

    trace       vLLM runs of 300 requests with logged arrivals and lengths: the last finish, every request's latency,
                the running batch second by second
    makespan    `vllm bench serve`, most with all prompts at once: the time until the last one ends

Both are predicted blind: the model's config, the GPU's tables and the engine's constants, nothing from the run but its
requests and its command line. Of memory, too, only what a datasheet says; a second slice gives the simulator the
capacity that a trace logs, since a wrong one decides everything where the cache is full.

Of a batch only mean lengths are known. Those drawn from chats (short prompts and answers) are spread lognormally with
`CHAT_SPREAD`, all others are of one length. Command lines with options that the model does not hold (speculation,
offloading, data or pipeline parallelism, other dtypes) are skipped and counted. Runs whose concurrency the client
capped are launched as their peak allows.
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
from batchsim.validate.data import data_folder

Array = NDArray[np.float64]
MAKESPANS = "decode/batch_makespans.csv"
CHAT_SPREAD = 1.0
"""Log deviation of chat prompts and answers, an assumption: the tables state only totals."""
CHAT_LIMIT = 1024
BIG_GPU = ("H100", "H200", "B200", "B300")
"""vLLM serves 1,024 sequences with a budget of 8,192 tokens there, 256 with 2,048 on others (its own defaults)."""
OUTSIDE = (
    "speculative",
    "offload",
    "lmcache",
    "data-parallel",
    "dp-size",
    "dp_size",
    "enable-dp",
    "pipeline",
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
        `name`, `overall`, `slices`, `rows`, `skipped`; a row per run and quantity.

    Raises
    ------
    InputError
        If a named folder lacks a table.
    """
    folder = data_folder(data)
    if folder is None:
        return _nothing("trace")
    rows: list[dict[str, Any]] = []
    slices = []
    for trace in TRACES:
        for logged in (False, True):
            progress(f"{trace.name}, {'cache as logged' if logged else 'blind'}")
            found = _replay(folder, trace, logged=logged)
            if found is None:
                continue
            rows += found["rows"]
            slices.append(found["slice"])
    blind = [row for row in rows if row["claim"].startswith("blind") and "makespan" in row["claim"]]
    return {"name": "trace", "overall": _figures(blind), "slices": slices, "rows": rows, "skipped": []}


def _replay(folder: Path, trace: Trace, *, logged: bool) -> dict[str, Any] | None:
    requests = sorted(_rows(folder / f"decode/trace_{trace.name}_requests.csv"), key=lambda r: float(r["queued_s"]))
    ticks = _rows(folder / f"decode/trace_{trace.name}_timeseries.csv")
    column = {name: np.array([float(r[name]) for r in requests]) for name in requests[0] if name != "request_id"}
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
    at = np.array([float(r["t"]) for r in ticks])
    running = np.array([float(r["running"]) for r in ticks])
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


def _logged_capacity(column: dict[str, Array], ticks: list[dict[str, str]]) -> float | None:
    """Tokens of cache: those of the running requests over the share that is logged as used; None where it is not."""
    found = []
    for tick in ticks:
        share, t = float(tick["kv_cache_pct"]) / 100, float(tick["t"])
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
        `name`, `overall`, `slices`, `rows`, `skipped`.

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
    for raw in _rows(folder / MAKESPANS):
        progress(raw["file"])
        try:
            rows.append(_makespan(raw, seed))
        except InputError as error:
            skipped[error.message if len(error.message) < 90 else f"{error.message[:87]}..."] += 1
    return {
        "name": "makespan",
        "overall": _figures(rows),
        "slices": _makespan_slices(rows),
        "rows": [{name: value for name, value in row.items() if name not in KEYS} for row in rows],
        "skipped": [f"{count} rows: {reason}" for reason, count in skipped.most_common()],
    }


KEYS = ("engine", "workload", "on")


def _makespan_slices(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for key, title in (("engine", "by engine"), ("workload", "vllm: by workload"), ("on", "vllm: by model and GPU")):
        some = rows if key == "engine" else [row for row in rows if row["engine"] == "vllm"]
        for value in sorted({row[key] for row in some}):
            found.append({"claim": title, "of": value} | _figures([row for row in some if row[key] == value]))
    return found


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
    return row | {"engine": engine, "workload": workload, "on": where}


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
    return {
        "n": int(error.size),
        "median_ape": float(np.median(np.abs(error))),
        "mape": float(np.mean(np.abs(error))),
        "max_ape": float(np.max(np.abs(error))),
        "bias": float(np.mean(error)),
        "peer": None,
    }


def _nothing(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "overall": {},
        "slices": [],
        "rows": [],
        "skipped": [f"{name}: its tables do not ship; give --data"],
    }
