r"""Measured serving rows: reading, settings of their servers, and the rule that cleans them.

The rule was fixed before any fit, and its counts are tests: attention_dp_size = 1, concurrency = batch_size,
moe_tp_size moe_ep_size = tp_size <= 8, duplicates once (`read_rows`); then rows faster than the datasheet's bandwidth
allows; then rows below 98 % of the running maximum over concurrency within a series, that is the same model, GPU,
precision, lengths and parallelism (`clean`).

How the servers were run decides a good part of a step: an fp8 or a bf16 cache, a fused all-reduce, the share of
memory, lengths drawn uniformly from .8 to 1 of the nominal. These are looked up in the benchmark's public scripts
(`data/measured/serving_settings.csv`, each row with its script and commit), never fitted.

References
----------
.. [1] InferenceX (SemiAnalysis) measurements as redistributed by aiconfigurator (Apache-2.0), commit 095f58a.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from batchsim.errors import InputError
from batchsim.specs.architecture import Architecture
from batchsim.specs.gpus import find_gpu
from batchsim.specs.huggingface import quantised
from batchsim.specs.models import find_model
from batchsim.system.memory import CacheRoom, cache_room

SERVING = "decode/serving_ttft_tpot.csv"
PEER = "decode/serving_peer_predictions_aiconfigurator_0.12.0.csv"
PEER_NAME = "aiconfigurator 0.12.0"
ENGINES = ("vllm", "sglang", "trtllm")
MONOTONE = 0.98
"""A row below this share of the running maximum over concurrency is taken for mislabelled."""
PEER_DIGITS = 2e-3
"""Largest difference [ms] between a row and the measured value beside the peer's prediction, which has three digits."""


@dataclass(frozen=True, kw_only=True)
class ServingRow:
    """One measured row.

    Parameters
    ----------
    engine, model, system, gpu, precision : str
        `system` as the table names the GPU, `gpu` as the catalogue does.
    prompt_tokens, output_tokens : float [tokens]
        Nominal.
    concurrency : float [sequences]
    tensor_parallel, expert_parallel : int [GPU]
    measured : float [s]
        Mean time per output token.
    peer : float or None [s]
        What the peer predicts for the same row.
    """

    engine: str
    model: str
    system: str
    gpu: str
    precision: str
    prompt_tokens: float
    output_tokens: float
    concurrency: float
    tensor_parallel: int
    expert_parallel: int
    measured: float
    peer: float | None

    @property
    def series(self) -> tuple[Any, ...]:
        """What rows of one curve over concurrency share."""
        return (
            self.model,
            self.gpu,
            self.precision,
            self.prompt_tokens,
            self.output_tokens,
            self.tensor_parallel,
            self.expert_parallel,
        )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a row's server was run; `source` names the script, or says that nothing is known."""

    cache_bits: float = 16.0
    memory_share: float = 0.9
    fused_all_reduce: bool = False
    length_share: float = 0.9
    source: str = "not known: bf16 cache, memory share .9, no fused all-reduce, lengths uniform in .8 to 1"


@lru_cache(maxsize=1)
def _settings() -> dict[tuple[str, str, str], Settings]:
    text = files("batchsim").joinpath("data/measured/serving_settings.csv").read_text(encoding="utf-8")
    return {
        (row["system"], row["model"], row["precision"]): Settings(
            cache_bits=float(row["cache_bits"]),
            memory_share=float(row["memory_share"]),
            fused_all_reduce=row["fused_all_reduce"] == "1",
            length_share=float(row["length_share"]),
            source=row["source"],
        )
        for row in csv.DictReader(text.splitlines())
    }


def settings(row: ServingRow) -> Settings:
    """Server settings of a row, looked up, never fitted."""
    known = _settings().get((row.system, row.model, row.precision)) if row.engine == "vllm" else None
    return known or Settings()


@lru_cache(maxsize=64)
def served_architecture(model: str, precision: str) -> Architecture:
    """A model at a row's precision: its own checkpoint where that has it, else re-quantised."""
    architecture = find_model(model)
    own = architecture.precision
    if precision in ("", own) or (precision == "fp4" and own.endswith("fp4")):
        return architecture
    return quantised(architecture, {"fp4": "nvfp4"}.get(precision, precision))


def row_room(row: ServingRow) -> CacheRoom:
    """Cache room of a row's server."""
    how = settings(row)
    return cache_room(
        served_architecture(row.model, row.precision),
        memory=float(find_gpu(row.gpu).usable_memory or 0),
        tensor_parallel=row.tensor_parallel,
        expert_parallel=row.expert_parallel,
        memory_share=how.memory_share,
        cache_bits=how.cache_bits,
    )


def read_rows(folder: Path, engine: str) -> list[ServingRow]:
    """Rows of an engine that the first part of the rule keeps, duplicates once, with the peer's prediction.

    Parameters
    ----------
    folder : Path
        Of measured data, with `decode/` in it.
    engine : {'vllm', 'sglang', 'trtllm'}

    Returns
    -------
    list of ServingRow

    Raises
    ------
    InputError
        If the table is absent.
    """
    path = folder / SERVING
    if not path.is_file():
        raise InputError("no serving table", where=str(path), remedy="give --data")
    peers = _peers(folder, engine)
    kept: dict[tuple[Any, ...], ServingRow] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for cells in csv.DictReader(file):
            if cells["backend"] != engine or not _is_clear(cells):
                continue
            row = _row(cells, peers)
            kept.setdefault((*row.series, row.concurrency, row.measured), row)
    return list(kept.values())


def _is_clear(cells: dict[str, str]) -> bool:
    """The rule of the table's provenance: parallelism that the columns state without contradiction."""
    try:
        tp, ep, moe = (int(float(cells[k])) for k in ("tp_size", "moe_ep_size", "moe_tp_size"))
        alone = float(cells["attention_dp_size"]) == 1
    except ValueError:
        return False
    return alone and float(cells["concurrency"]) == float(cells["batch_size"]) and moe * ep == tp and tp <= 8


def _row(cells: dict[str, str], peers: dict[tuple[Any, ...], list[tuple[float, float]]]) -> ServingRow:
    tpot = float(cells["tpot_ms"])
    key = _peer_key(cells, "model", "concurrency")
    near = [peer for measured, peer in peers.get(key, ()) if abs(measured - tpot) < PEER_DIGITS]
    return ServingRow(
        engine=cells["backend"],
        model=cells["model"],
        system=cells["system"],
        gpu=find_gpu(cells["system"]).name,
        precision=cells["precision"],
        prompt_tokens=float(cells["isl"]),
        output_tokens=float(cells["osl"]),
        concurrency=float(cells["concurrency"]),
        tensor_parallel=int(cells["tp_size"]),
        expert_parallel=int(cells["moe_ep_size"]),
        measured=tpot * 1e-3,
        peer=float(np.median(near)) * 1e-3 if near else None,
    )


def _peer_key(cells: dict[str, str], model: str, concurrency: str) -> tuple[Any, ...]:
    return (
        cells[model],
        cells["system"],
        *(float(cells[name]) for name in ("isl", "osl", concurrency, "tp_size")),
    )


def _peers(folder: Path, engine: str) -> dict[tuple[Any, ...], list[tuple[float, float]]]:
    found: dict[tuple[Any, ...], list[tuple[float, float]]] = defaultdict(list)
    path = folder / PEER
    if path.is_file():
        with path.open(encoding="utf-8", newline="") as file:
            for cells in csv.DictReader(file):
                if cells["backend"] == engine:
                    pair = (float(cells["silicon_tpot_ms"]), float(cells["aic_tpot"]))
                    found[_peer_key(cells, "model_path", "conc")].append(pair)
    return found


def fastest(row: ServingRow) -> float:
    """Least time of a decode step that the datasheet's bandwidth allows [s].

    Weights once, experts as uniform routing touches them, and the cache of as many sequences as fit.
    """
    how = settings(row)
    architecture, room = served_architecture(row.model, row.precision), row_room(row)
    context = how.length_share * (row.prompt_tokens + row.output_tokens / 2)
    held = min(row.concurrency * float(room.sequence_bytes(context)), room.free_bytes)
    weights = room.weight_bytes
    experts = architecture.experts
    if experts is not None:
        untouched = (1 - experts.per_token / experts.experts) ** row.concurrency
        routed = experts.layers * experts.experts * experts.expert_bytes / row.tensor_parallel
        weights -= routed * untouched
    lookup = sum(m.bytes for m in architecture.matrices if m.reading == "lookup") / row.tensor_parallel
    return (weights - (0.0 if architecture.tied else lookup) + held) / float(
        find_gpu(row.gpu).memory_bandwidth or np.inf
    )


def clean(rows: Iterable[ServingRow]) -> list[ServingRow]:
    """Rows that the rest of the rule keeps: possible by bandwidth, then not far below smaller concurrencies.

    Parameters
    ----------
    rows : iterable of ServingRow

    Returns
    -------
    list of ServingRow
        By series and concurrency.
    """
    by_series: dict[tuple[Any, ...], list[ServingRow]] = defaultdict(list)
    for row in rows:
        if row.measured > fastest(row):
            by_series[row.series].append(row)
    kept = []
    for series in sorted(by_series, key=str):
        highest = 0.0
        for row in sorted(by_series[series], key=lambda r: (r.concurrency, r.measured)):
            if row.measured >= MONOTONE * highest:
                kept.append(row)
            highest = max(highest, row.measured)
    return kept


SAMPLE = "data/measured/serving_sample.csv"
SAMPLE_STEP = 16
"""Every how manieth cleaned row of vLLM ships, by series and concurrency."""
SAMPLE_COLUMNS = (
    "engine,model,system,precision,prompt_tokens,output_tokens,concurrency,tensor_parallel,expert_parallel,measured_ms,"
    "peer_ms,source"
)


def write_sample(path: Path, folder: Path) -> None:
    """Write the rows that ship, from the whole table.

    Parameters
    ----------
    path : Path
    folder : Path
        Of measured data.
    """
    rows = clean(read_rows(folder, "vllm"))[::SAMPLE_STEP]
    source = "InferenceX run redistributed by aiconfigurator @ 095f58a (silicon_sample.csv)"
    lines = [SAMPLE_COLUMNS]
    for r in rows:
        peer = "" if r.peer is None else f"{1e3 * r.peer:.6g}"
        cells = [r.engine, r.model, r.system, r.precision, f"{r.prompt_tokens:g}", f"{r.output_tokens:g}"]
        cells += [f"{r.concurrency:g}", str(r.tensor_parallel), str(r.expert_parallel), f"{1e3 * r.measured:.6g}"]
        lines.append(",".join([*cells, peer, source]))
    part = path.with_suffix(".part")
    part.write_text("\n".join(lines) + "\n", encoding="utf-8")
    part.replace(path)


def read_sample() -> list[ServingRow]:
    """The cleaned vLLM rows that ship: every sixteenth."""
    text = files("batchsim").joinpath(SAMPLE).read_text(encoding="utf-8")
    return [
        ServingRow(
            engine=c["engine"],
            model=c["model"],
            system=c["system"],
            gpu=find_gpu(c["system"]).name,
            precision=c["precision"],
            prompt_tokens=float(c["prompt_tokens"]),
            output_tokens=float(c["output_tokens"]),
            concurrency=float(c["concurrency"]),
            tensor_parallel=int(c["tensor_parallel"]),
            expert_parallel=int(c["expert_parallel"]),
            measured=float(c["measured_ms"]) * 1e-3,
            peer=float(c["peer_ms"]) * 1e-3 if c["peer_ms"] else None,
        )
        for c in csv.DictReader(text.splitlines())
    ]
