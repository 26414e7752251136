r"""Fit what kernels reach of a datasheet, and what engines add: `python -m batchsim.system.fit_kernels --data FOLDER`.

Per GPU, on tables of measured kernels (log errors, soft-L1 loss, shares at most 1):

    gemm        t = latency + |reads/(share BW), FLOPs/(share F)|_4                bf16
                fp8: its tables were run without CUDA graphs, so t = max(launch, ...), and only the share of the peak
                is kept
    attention   t = latency + n t_sequence + cache bytes/(share BW)
                rows that fit twice into the L2 cache but are not latency-bound are left out: the benchmark reads them
                from L2, a model with many layers cannot
    experts     t = latency + |touched bytes/(share BW), FLOPs/(share F)|_2
                touched: k n for the balanced tables, a power law of popularity for the others, whose exponent is
                fitted and reported
    all-reduce  t = latency + 2 (n-1)/n bytes/(share link)                         rows captured in a CUDA graph

Per engine, on serving rows (`system.serving`): `Overhead`, all rows together and once more without each GPU, so that a
validation can score a GPU by constants that never saw it.

References
----------
.. [1] aiconfigurator (Apache-2.0), commit 095f58a: kernel tables; InferSim (Apache-2.0), commit f2293da: H20, H800.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from batchsim.errors import InputError
from batchsim.specs.gpu import GPU
from batchsim.specs.gpus import find_gpu
from batchsim.system.roofline.deployment import expert_popularity
from batchsim.system.roofline.efficiency import EXPERT_OVERLAP, PRODUCT_OVERLAP, RANKS

Array = NDArray[np.float64]
Table = dict[str, NDArray[Any]]

L2_BYTES = {
    "A100-80-SXM": 40e6,
    "H100-SXM": 50e6,
    "H200-SXM": 50e6,
    "H20-96": 60e6,
    "H800-SXM": 50e6,
    "B200-SXM": 126e6,
    "GB200": 126e6,
    "L40S": 96e6,
    "RTX-PRO-6000-Server": 128e6,
}
"""Bytes of L2 cache: NVIDIA's architecture papers of Ampere, Hopper, Ada and Blackwell."""
LATENCY_BOUND = 4e6
"""Cache reads below this [B] are bound by latency on every GPU of the tables."""
HOPPER = ("H100-SXM", "H200-SXM", "H20-96", "H800-SXM")
"""GPUs whose decode attention over an fp8 cache is that of the H20 table; elsewhere no table says it is slower."""
GEMM, ATTENTION = "decode/kernel_gemm.csv", "decode/kernel_decode_attention_bf16.csv"
EXPERTS, REDUCE = "decode/kernel_moe_qwen3_30b_a3b.csv", "decode/kernel_allreduce.csv"
ATTENTION_H20, GROUPED_H20 = "decode/kernel_attention_h20_h800.csv", "decode/kernel_grouped_gemm_h20_h800.csv"
SHORTEST, PER_SEQUENCE = 1.9e-6, 1e-9
"""Least latency [s] of a kernel, that of the norms in the layer tables, and a floor of times per sequence: rows that
the L2 cache speeds up would otherwise push a latency to zero."""
HEAD_DIM = 128
HIDDEN, INTERMEDIATE, NUMBER, CHOSEN = 2048, 768, 128, 8
"""Of the expert tables: Qwen3-30B-A3B."""


def read_table(path: Path) -> Table:
    """Columns of a CSV, numbers where every cell is one.

    Raises
    ------
    InputError
        If the file is absent or empty.
    """
    if not path.is_file():
        raise InputError(f"no kernel table {path.name}", where=str(path.parent), remedy="give --data")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise InputError("the table holds no rows", where=str(path))
    columns: Table = {}
    for name in rows[0]:
        cells = [row[name] for row in rows]
        try:
            columns[name] = np.array([float(v) for v in cells])
        except ValueError:
            columns[name] = np.array(cells)
    return columns


def select(table: Table, keep: NDArray[np.bool_]) -> Table:
    """Rows of a table."""
    return {name: column[keep] for name, column in table.items()}


def both(read: Array, work: Array, overlap: float) -> Array:
    """The p-norm of reading and multiplying [s]."""
    return np.asarray((read**overlap + work**overlap) ** (1 / overlap))


def fit_log(
    model: Callable[[Array], Array], measured: Array, start: list[float], *, shares: list[int], floor: list[float]
) -> Array:
    """Positive parameters of least soft-L1 log error: those of `shares` at most 1, the first ones above a floor."""
    low, high = np.full(len(start), -np.inf), np.full(len(start), np.inf)
    low[: len(floor)] = np.log(floor)
    high[shares] = 0.0

    def error(z: Array) -> Array:
        return np.asarray(np.log(model(np.exp(z)) / measured))

    found = least_squares(
        error,
        np.clip(np.log(start), low + 1e-3, high - 1e-3),
        bounds=(low, high),
        loss="soft_l1",
        f_scale=0.1,
    )
    return np.asarray(np.exp(found.x))


def residual(predicted: Array, measured: Array) -> dict[str, Any]:
    """How far a fit is from its rows."""
    error = np.abs(np.log(predicted / measured))
    return {"rows": int(error.size), "mean_abs_log_error": float(error.mean()), "max_abs_log_error": float(error.max())}


def fit_gemm(table: Table, gpu: GPU) -> tuple[dict[str, float], dict[str, Any]]:
    """Products in bf16: latency and shares; share of the fp8 peak where there are fp8 rows."""
    bandwidth, flops = float(gpu.memory_bandwidth or 0), float(gpu.peak_flops or 0)

    def parts(rows: Table, width: float, rate: float) -> tuple[Array, Array, Array]:
        m, n, k = rows["m"], rows["n"], rows["k"]
        reads = width * n * k + 2 * m * (n + k)
        return reads / bandwidth, 2 * m * n * k / rate, rows["latency"] * 1e-3

    reads, work, t = parts(select(table, table["gemm_dtype"] == "bfloat16"), 2, flops)

    def model(p: Array) -> Array:
        return np.asarray(p[0] + both(reads / p[1], work / p[2], PRODUCT_OVERLAP))

    p = fit_log(model, t, [4e-6, 0.8, 0.8], shares=[1, 2], floor=[SHORTEST])
    values = {"gemm_latency": p[0], "gemm_bandwidth_share": p[1], "gemm_compute_share": p[2]}
    kept = {"gemm": residual(model(p), t)}
    fp8 = table["gemm_dtype"] == "fp8_block"
    if fp8.any() and gpu.fp8_flops:
        reads8, work8, t8 = parts(select(table, fp8), 1, gpu.fp8_flops)

        def launched(q: Array) -> Array:
            return np.asarray(np.maximum(q[0], both(reads8 / p[1], work8 / q[1], PRODUCT_OVERLAP)))

        q = fit_log(launched, t8, [7e-5, 0.7], shares=[1], floor=[SHORTEST])
        values["gemm_fp8_compute_share"] = q[1]
        kept["gemm_fp8"] = residual(launched(q), t8)
    return values, kept


def cold(cache: Array, gpu: str) -> NDArray[np.bool_]:
    """Rows whose cache is bound by latency or exceeds L2 twice."""
    return np.asarray((cache < LATENCY_BOUND) | (cache > 2 * L2_BYTES[gpu]))


def fit_attention(cache: Array, batch: Array, t: Array, gpu: GPU) -> tuple[dict[str, float], dict[str, Any]]:
    """Decode attention over a bf16 cache of `cache` bytes."""
    keep = cold(cache, gpu.name)
    cache, batch, t = cache[keep], batch[keep], t[keep]
    bandwidth = float(gpu.memory_bandwidth or 0)

    def model(p: Array) -> Array:
        return np.asarray(p[0] + p[1] * batch + cache / (p[2] * bandwidth))

    p = fit_log(model, t, [1e-5, 5e-8, 0.8], shares=[2], floor=[SHORTEST, PER_SEQUENCE])
    values = {"attention_latency": p[0], "attention_sequence_time": p[1], "attention_bandwidth_share": p[2]}
    return values, {"attention": residual(model(p), t)}


def fit_experts(table: Table, gpu: GPU) -> tuple[dict[str, float], dict[str, Any]]:
    """Fused experts in bf16 and fp8: latency, shares, and the popularity exponent of the skewed tables."""
    values: dict[str, float] = {}
    kept: dict[str, Any] = {}
    bandwidth = float(gpu.memory_bandwidth or 0)
    for dtype, width, tag, flops in (
        ("bfloat16", 2.0, "expert", gpu.peak_flops),
        ("fp8_block", 1.0, "expert_fp8", gpu.fp8_flops),
    ):
        rows = select(table, (table["moe_dtype"] == dtype) & (table["moe_ep_size"] == 1) & (table["moe_tp_size"] <= 2))
        if not rows["latency"].size or not flops:
            continue
        n, tp, t = rows["num_tokens"], rows["moe_tp_size"], rows["latency"] * 1e-3
        weights = 3 * HIDDEN * INTERMEDIATE
        work = 2 * n * CHOSEN * weights / tp / flops
        balanced = rows["distribution"] == "balanced"

        def model(
            p: Array,
            n: Array = n,
            tp: Array = tp,
            balanced: NDArray[Any] = balanced,
            work: Array = work,
            size: float = width * weights,
        ) -> Array:
            popularity = expert_popularity(NUMBER, CHOSEN, min(float(p[3]), 3.0))
            skewed = (1 - (1 - np.minimum(popularity, 1 - 1e-12)) ** n[:, None]).sum(axis=1)
            touched = np.where(balanced, np.minimum(NUMBER, CHOSEN * n), skewed)
            return np.asarray(p[0] + both(touched * size / tp / (p[1] * bandwidth), work / p[2], EXPERT_OVERLAP))

        p = fit_log(model, t, [2e-5, 0.7, 0.3, 0.8], shares=[1, 2], floor=[SHORTEST])
        values |= {
            f"{tag}_latency": p[0],
            f"{tag}_bandwidth_share": p[1],
            f"{tag}_compute_share": p[2],
        }
        kept[tag] = residual(model(p), t) | {"skew": float(p[3])}
    return values, kept


def fit_reduce(table: Table, gpu: GPU) -> tuple[dict[str, Any], dict[str, Any]]:
    """All-reduces under CUDA graphs among 2, 4 and 8 GPUs, messages up to 32 MiB."""
    link = float(gpu.link_bandwidth or 0)
    latencies, shares, predicted, measured = [], [], [], []
    for ranks in RANKS:
        rows = select(table, (table["num_gpus"] == ranks) & (table["message_size"] <= 2**24))
        sent, t = 2 * (ranks - 1) / ranks * 2 * rows["message_size"] / link, rows["latency"] * 1e-3

        def model(p: Array, sent: Array = sent) -> Array:
            return np.asarray(p[0] + sent / p[1])

        p = fit_log(model, t, [5e-6, 0.5], shares=[1], floor=[SHORTEST])
        latencies.append(float(p[0]))
        shares.append(float(p[1]))
        predicted.append(model(p))
        measured.append(t)
    return (
        {"all_reduce_latency": latencies, "all_reduce_link_share": shares},
        {"all_reduce": residual(np.concatenate(predicted), np.concatenate(measured))},
    )


def fit_hopper_fp8(folder: Path) -> float:
    """Rate of reading an fp8 cache over that of a bf16 one, on H20 beyond its L2 cache."""
    table = read_table(folder / ATTENTION_H20)
    pair = select(table, (table["gpu"] == "H20") & (table["num_heads"] == 32) & (table["num_kv_heads"] == 8))
    slopes = {}
    for width, kind in ((2, "bf16"), (1, "fp8")):
        rows = select(pair, pair["kv_dtype"] == kind)
        size = 2 * width * rows["num_kv_heads"] * rows["head_dim"] * rows["kv_len"] * rows["batch_size"]
        large = size > 2 * L2_BYTES["H20-96"]
        slopes[kind] = float(np.median(size[large] / rows["latency_us"][large]))
    return slopes["fp8"] / slopes["bf16"]


def fit_gpus(folder: Path) -> dict[str, dict[str, Any]]:
    """Efficiencies of every GPU with tables, and their residuals.

    Parameters
    ----------
    folder : Path
        Of measured data, with `decode/` in it.

    Returns
    -------
    dict
        By GPU: fields of `Efficiency` that its tables give, and 'residuals' by kernel.
    """
    gemm, attention = read_table(folder / GEMM), read_table(folder / ATTENTION)
    experts, reduce = read_table(folder / EXPERTS), read_table(folder / REDUCE)
    fp8 = fit_hopper_fp8(folder)
    found: dict[str, dict[str, Any]] = {}
    for system in sorted(set(attention["system"])):
        gpu = find_gpu(str(system))
        values: dict[str, Any] = {}
        kept: dict[str, Any] = {}
        jobs: list[tuple[Table, Callable[[Table, GPU], Any], str]] = [
            (gemm, fit_gemm, ""),
            (attention, _fit_vllm_attention, "vllm"),
            (experts, fit_experts, "vllm"),
            (reduce, fit_reduce, "graph"),
        ]
        for table, fit, only in jobs:
            rows = select(table, table["system"] == system)
            if only == "vllm":
                rows = select(rows, np.char.startswith(rows["fw"].astype(str), "vllm"))
            if only == "graph":
                rows = select(rows, rows["backend"] == "vllm_graph")
            if rows["latency"].size:
                own, errors = fit(rows, gpu)
                values, kept = values | own, kept | errors
        values["attention_fp8_share"] = fp8 if gpu.name in HOPPER else 1.0
        found[gpu.name] = values | {"residuals": kept}
    return found | fit_h20(folder, fp8)


def _fit_vllm_attention(rows: Table, gpu: GPU) -> tuple[dict[str, float], dict[str, Any]]:
    cache = 2 * 2 * HEAD_DIM * rows["num_key_value_heads"] * rows["kv_len"] * rows["batch_size"]
    return fit_attention(cache, rows["batch_size"], rows["latency"] * 1e-3, gpu)


def fit_h20(folder: Path, fp8: float) -> dict[str, dict[str, Any]]:
    """Decode attention of H20 and H800, from InferSim's tables."""
    table = read_table(folder / ATTENTION_H20)
    found = {}
    for system in ("H20", "H800"):
        rows = select(table, (table["gpu"] == system) & (table["kv_dtype"] == "bf16") & (table["dtype"] == "bf16"))
        gpu = find_gpu(system)
        cache = 4 * rows["num_kv_heads"] * rows["head_dim"] * rows["kv_len"] * rows["batch_size"]
        # Many query heads per KV head are bound by compute on H20, which this law leaves to the products.
        keep = rows["num_heads"] / rows["num_kv_heads"] <= 8
        values, kept = fit_attention(cache[keep], rows["batch_size"][keep], rows["latency_us"][keep] * 1e-6, gpu)
        found[gpu.name] = values | {"attention_fp8_share": fp8, "residuals": kept}
    return found


def write_efficiency(path: Path, gpus: dict[str, dict[str, Any]], engines: dict[str, Any]) -> None:
    """Write fits as TOML, four digits each."""
    lines = [
        "# Written by `python -m batchsim.system.fit_kernels`; see batchsim/system/fit_kernels.py for the forms.",
        "# Latencies in seconds, shares of the datasheet's figure; residuals are those of the fit's own rows.",
    ]
    for name, row in gpus.items():
        lines += ["", f'[gpu."{name}"]', *_lines({k: v for k, v in row.items() if k != "residuals"})]
        for kernel, errors in row["residuals"].items():
            lines += [f'[gpu."{name}".residuals.{kernel}]', *_lines(errors)]
    for name, row in engines.items():
        lines += ["", f"[engine.{name}]", *_lines({k: v for k, v in row.items() if k != "without"})]
        for gpu, other in row["without"].items():
            lines += [f'[engine.{name}.without."{gpu}"]', *_lines(other)]
    _replace(path, "\n".join(lines) + "\n")


def _replace(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    part = path.with_suffix(path.suffix + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _lines(values: dict[str, Any]) -> list[str]:
    return [f"{name} = {_shown(value)}" for name, value in values.items()]


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list):
        return "[" + ", ".join(_shown(v) for v in value) + "]"
    if isinstance(value, int):
        return str(value)
    return repr(float(f"{value:.4g}"))


def main(arguments: list[str] | None = None) -> int:
    """Fit, print residuals and write `data/efficiency.toml`."""
    import argparse

    from batchsim.system.serving import fit_engines
    from batchsim.system.serving_rows import write_sample

    parser = argparse.ArgumentParser(prog="python -m batchsim.system.fit_kernels", description=__doc__.split("\n")[0])
    default = Path(__file__).resolve().parents[1] / "data" / "efficiency.toml"
    parser.add_argument("--data", type=Path, required=True, help="folder of measured data, with decode/ in it")
    parser.add_argument("--output", type=Path, default=default, help="file to write [default: the package's own]")
    given = parser.parse_args(arguments)
    try:
        gpus = fit_gpus(given.data)
        for name, row in gpus.items():
            for kernel, error in row["residuals"].items():
                sys.stdout.write(
                    f"{name:22s} {kernel:12s} {error['rows']:5d} rows  mean |log error| "
                    f"{error['mean_abs_log_error']:.3f}  max {error['max_abs_log_error']:.2f}\n"
                )
        engines = fit_engines(given.data, gpus, report=lambda line: sys.stdout.write(line + "\n"))
        write_efficiency(given.output, gpus, engines)
        write_sample(given.output.parent / "measured" / "serving_sample.csv", given.data)
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
