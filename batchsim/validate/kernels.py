r"""The kernel laws against tables they were not fitted to.

    experts     one layer's experts on RTX PRO 6000 against activated experts and tokens, every number of experts left
                out in turn. The law is t = latency + |reads, FLOPs/(share F)|_p with reads = (weights + activations)/
                (share BW); weights that fit into the L2 cache are read at the rate that decode attention reaches from
                it in another table of that GPU, since the benchmark repeats one layer. The peer is a straight line in
                experts and tokens, fitted to the same rows. This is the overall figure.
    generic     every table by the mean of the other GPUs' efficiencies: what "datasheet alone" costs per kernel
    layers      attention and head of RTX PRO 6000, measured layer by layer, by efficiencies from other sources

References
----------
.. [1] LLMServingSim (MIT), commit 5daddb2: layer tables; aiconfigurator (Apache-2.0), commit 095f58a: kernel tables.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchsim.specs.gpu import GPU
from batchsim.specs.gpus import find_gpu
from batchsim.system.fit_kernels import (
    ATTENTION,
    CHOSEN,
    EXPERTS,
    GEMM,
    HEAD_DIM,
    HIDDEN,
    INTERMEDIATE,
    L2_BYTES,
    NUMBER,
    SHORTEST,
    Table,
    both,
    cold,
    fit_gpus,
    fit_log,
    read_table,
    select,
)
from batchsim.system.roofline.deployment import expert_popularity
from batchsim.system.roofline.efficiency import EXPERT_OVERLAP, PRODUCT_OVERLAP, Efficiency, efficiency, shipped
from batchsim.system.serving import SAME_CHIP
from batchsim.validate.data import data_folder

Array = NDArray[np.float64]
LAYER_EXPERTS = "decode/layer_rtxpro6000_qwen3-30b-a3b_moe.csv"
LAYER_ATTENTION = "decode/layer_rtxpro6000_qwen3-30b-a3b_decode_attn.csv"
LAYER_HEAD = "decode/layer_rtxpro6000_qwen3-30b-a3b_per_sequence.csv"
LAYER_GPU = "RTX-PRO-6000-Server"
VOCAB, KV_HEADS = 151_936, 4
TABLES_SKEW = 0.75
"""Popularity exponent of the skewed expert tables: fits per GPU give .60 to .82 (1.16 on A100)."""


def validate_kernels(
    data: Path | None = None, *, progress: Callable[[str], object] = lambda stage: None
) -> dict[str, Any]:
    """Score the kernel laws on measured kernels.

    Parameters
    ----------
    data : Path or None
        Folder of measured data, with `decode/` in it; else BATCHSIM_DATA or the folder beside a checkout. Without
        any, only the residuals of the shipped fits are told.
    progress : callable
        Takes the name of each stage as it begins.

    Returns
    -------
    dict
        `name`, `overall`, `slices`, `rows`, `skipped`. Errors are fractions.

    Raises
    ------
    InputError
        If a named folder lacks a table.
    """
    folder = data_folder(data)
    fits = _shipped_fits()
    if folder is None:
        skipped = [f"{claim}: its tables do not ship; give --data" for claim in ("experts", "generic", "layers")]
        return {"name": "kernels", "overall": {}, "slices": fits, "rows": [], "skipped": skipped}
    progress("experts left out by number")
    rows = _left_out_experts(folder)
    slices = [_figures("experts", "all", rows)]
    beyond = [row for row in rows if 2 * row["experts"] * 3 * HIDDEN * INTERMEDIATE > L2_BYTES[LAYER_GPU]]
    slices.append(_figures("experts", "weights beyond L2", beyond))
    for number in sorted({row["experts"] for row in rows}):
        slices.append(_figures("experts", f"{number:g} experts", [r for r in rows if r["experts"] == number]))
    progress("generic efficiencies")
    slices += _generic(folder)
    progress("layers")
    slices += _layers(folder)
    overall = {k: v for k, v in slices[0].items() if k not in ("claim", "of")} | _line_in_sample(folder)
    return {
        "name": "kernels",
        "overall": overall | {"peer": "straight line in experts and tokens"},
        "slices": slices + fits,
        "rows": [{k: v for k, v in row.items() if k != "experts"} for row in rows],
        "skipped": [],
    }


def _shipped_fits() -> list[dict[str, Any]]:
    """Residuals of the fits that ship, on their own rows."""
    return [
        {
            "claim": "shipped fit, own rows",
            "of": f"{gpu} {kernel}",
            "n": found["rows"],
            "mape": found["mean_abs_log_error"],
            "max_ape": found["max_abs_log_error"],
        }
        for gpu, row in shipped()["gpu"].items()
        for kernel, found in row["residuals"].items()
    ]


def _figures(claim: str, of: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    error = np.array([row["error"] for row in rows])
    peer = np.array([row["peer"] / row["measured"] - 1 for row in rows])
    return {
        "claim": claim,
        "of": of,
        "n": int(error.size),
        "median_ape": float(np.median(np.abs(error))),
        "mape": float(np.mean(np.abs(error))),
        "max_ape": float(np.max(np.abs(error))),
        "bias": float(np.mean(error)),
        "peer_median_ape": float(np.median(np.abs(peer))),
        "peer_mape": float(np.mean(np.abs(peer))),
        "peer_max_ape": float(np.max(np.abs(peer))),
    }


def cached_bandwidth(folder: Path, gpu: GPU) -> float:
    """Rate [B/s] of decode attention over caches that fit into L2, from the kernel table."""
    table = read_table(folder / ATTENTION)
    rows = select(table, np.array([find_gpu(str(s)).name == gpu.name for s in table["system"]]))
    cache = _cache_bytes(rows)
    keep = cache <= L2_BYTES[gpu.name]
    cache, batch, t = cache[keep], rows["batch_size"][keep], rows["latency"][keep] * 1e-3

    def model(p: Array) -> Array:
        return np.asarray(p[0] + p[1] * batch + cache / (p[2] * 1e12))

    p = fit_log(model, t, [1e-5, 5e-8, 2.0], shares=[], floor=[SHORTEST, 1e-9])
    return float(p[2]) * 1e12


def _cache_bytes(rows: Table) -> Array:
    return np.asarray(4 * HEAD_DIM * rows["num_key_value_heads"] * rows["kv_len"] * rows["batch_size"])


def _left_out_experts(folder: Path) -> list[dict[str, Any]]:
    table, gpu = read_table(folder / LAYER_EXPERTS), find_gpu(LAYER_GPU)
    tokens, experts, t = table["tokens"], table["activated_experts"], table["time_us"] * 1e-6
    cached = cached_bandwidth(folder, gpu)
    found = []
    for number in np.unique(experts):
        train, test = experts != number, experts == number
        law = _expert_law(gpu, cached)
        p = fit_log(
            partial(law, tokens=tokens[train], experts=experts[train]),
            t[train],
            [3e-5, 0.8, 0.5, 2.0],
            shares=[1, 2],
            floor=[SHORTEST],
        )
        line = _straight_line(tokens[train], experts[train], t[train])
        predicted = law(p, tokens[test], experts[test])
        for n, e, value, own in zip(tokens[test], experts[test], t[test], predicted, strict=True):
            found.append(
                {
                    "claim": f"{e:g} experts touched by {n:g} tokens, fitted without {e:g}",
                    "predicted": float(own),
                    "interval": None,
                    "measured": float(value),
                    "error": float(own / value - 1),
                    "covered": None,
                    "peer": float(line @ np.array([1.0, n, e])),
                    "experts": float(e),
                }
            )
    return found


def _expert_law(gpu: GPU, cached: float) -> Callable[..., Array]:
    """Time of one layer's experts: latency, share of bandwidth, share of peak, overlap exponent."""
    bandwidth, flops = float(gpu.memory_bandwidth or 0), float(gpu.peak_flops or 0)
    weights = 3 * HIDDEN * INTERMEDIATE

    def law(p: Array, tokens: Array, experts: Array) -> Array:
        size = 2.0 * weights * experts
        # Rows in and out of the two products, at 16 bits.
        moved = 2.0 * CHOSEN * tokens * (2 * HIDDEN + 3 * INTERMEDIATE)
        rate = np.where(size <= L2_BYTES[gpu.name], cached, p[1] * bandwidth)
        work = 2 * CHOSEN * weights * tokens / (p[2] * flops)
        return np.asarray(p[0] + both((size + moved) / rate, work, float(p[3])))

    return law


def _straight_line(tokens: Array, experts: Array, t: Array) -> Array:
    """Least squares in relative errors."""
    design = np.stack([np.ones_like(tokens), tokens, experts], axis=1) / t[:, None]
    return np.asarray(np.linalg.lstsq(design, np.ones_like(t), rcond=None)[0])


def _line_in_sample(folder: Path) -> dict[str, float]:
    """Errors of the straight line on the very rows that it was fitted to."""
    table = read_table(folder / LAYER_EXPERTS)
    tokens, experts, t = table["tokens"], table["activated_experts"], table["time_us"] * 1e-6
    design = np.stack([np.ones_like(tokens), tokens, experts])
    error = np.abs(_straight_line(tokens, experts, t) @ design / t - 1)
    return {"peer_in_sample_mape": float(error.mean()), "peer_in_sample_max_ape": float(error.max())}


def _generic(folder: Path) -> list[dict[str, Any]]:
    """Tables of every GPU by efficiencies of the others, the same chip left out."""
    tables = {name: read_table(folder / name) for name in (GEMM, ATTENTION, EXPERTS)}
    fits = fit_gpus(folder)
    found = []
    for system in sorted(set(tables[ATTENTION]["system"])):
        gpu = find_gpu(str(system))
        kernels = efficiency(gpu.name, without=SAME_CHIP.get(gpu.name, (gpu.name,)), tables=fits)
        for name, predict in ((GEMM, _predict_gemm), (ATTENTION, _predict_attention), (EXPERTS, _predict_experts)):
            rows = select(tables[name], tables[name]["system"] == system)
            rows = select(rows, np.char.startswith(rows["fw"].astype(str), "vllm"))
            if not rows["latency"].size:
                continue
            predicted, measured = predict(rows, gpu, kernels)
            error = predicted / measured - 1
            found.append(_plain("generic", f"{gpu.name} {_short(name)}", error))
    return found


def _short(name: str) -> str:
    return {GEMM: "gemm", ATTENTION: "attention", EXPERTS: "experts"}[name]


def _plain(claim: str, of: str, error: Array) -> dict[str, Any]:
    return {
        "claim": claim,
        "of": of,
        "n": int(error.size),
        "median_ape": float(np.median(np.abs(error))),
        "mape": float(np.mean(np.abs(error))),
        "max_ape": float(np.max(np.abs(error))),
        "bias": float(np.mean(error)),
    }


def _predict_gemm(rows: Table, gpu: GPU, e: Efficiency) -> tuple[Array, Array]:
    rows = select(rows, rows["gemm_dtype"] == "bfloat16")
    m, n, k = rows["m"], rows["n"], rows["k"]
    reads = 2 * (n * k + m * (n + k)) / (e.gemm_bandwidth_share * float(gpu.memory_bandwidth or 0))
    work = 2 * m * n * k / (e.gemm_compute_share * float(gpu.peak_flops or 0))
    return e.gemm_latency + both(reads, work, PRODUCT_OVERLAP), rows["latency"] * 1e-3


def _predict_attention(rows: Table, gpu: GPU, e: Efficiency) -> tuple[Array, Array]:
    rows = select(rows, cold(_cache_bytes(rows), gpu.name))
    rate = e.attention_bandwidth_share * float(gpu.memory_bandwidth or 0)
    t = e.attention_latency + e.attention_sequence_time * rows["batch_size"] + _cache_bytes(rows) / rate
    return t, rows["latency"] * 1e-3


def _predict_experts(rows: Table, gpu: GPU, e: Efficiency) -> tuple[Array, Array]:
    rows = select(rows, (rows["moe_dtype"] == "bfloat16") & (rows["moe_ep_size"] == 1))
    n, split = rows["num_tokens"], rows["moe_tp_size"]
    popularity = expert_popularity(NUMBER, CHOSEN, TABLES_SKEW)
    skewed = (1 - (1 - np.minimum(popularity, 1 - 1e-12)) ** n[:, None]).sum(axis=1)
    touched = np.where(rows["distribution"] == "balanced", np.minimum(NUMBER, CHOSEN * n), skewed)
    weights = 3 * HIDDEN * INTERMEDIATE / split
    reads = touched * 2 * weights / (e.expert_bandwidth_share * float(gpu.memory_bandwidth or 0))
    work = 2 * n * CHOSEN * weights / (e.expert_compute_share * float(gpu.peak_flops or 0))
    return e.expert_latency + both(reads, work, EXPERT_OVERLAP), rows["latency"] * 1e-3


def _layers(folder: Path) -> list[dict[str, Any]]:
    """Attention and head of RTX PRO 6000 by efficiencies that its layer tables did not give."""
    gpu = find_gpu(LAYER_GPU)
    e = efficiency(gpu.name, switched=False, tables=fit_gpus(folder))
    bandwidth = float(gpu.memory_bandwidth or 0)
    table = read_table(folder / LAYER_ATTENTION)
    cache = 4.0 * HEAD_DIM * KV_HEADS * table["kv_decode"] * table["n_decode"]
    t = e.attention_latency + e.attention_sequence_time * table["n_decode"]
    t = t + cache / (e.attention_bandwidth_share * bandwidth)
    measured = table["time_us"] * 1e-6
    keep = cold(cache, gpu.name)
    found = [_plain("layers", "attention, RTX PRO 6000, beyond L2", (t / measured - 1)[keep])]
    head = read_table(folder / LAYER_HEAD)
    head = select(head, head["layer"] == "lm_head")
    rows = head["sequences"]
    reads = 2 * (HIDDEN * VOCAB + rows * (HIDDEN + VOCAB)) / (e.gemm_bandwidth_share * bandwidth)
    work = 2 * rows * HIDDEN * VOCAB / (e.gemm_compute_share * float(gpu.peak_flops or 0))
    t = e.gemm_latency + both(reads, work, PRODUCT_OVERLAP)
    found.append(_plain("layers", "head, RTX PRO 6000", t / (head["time_us"] * 1e-6) - 1))
    return found
