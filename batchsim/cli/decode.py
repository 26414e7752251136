"""`batchsim decode`: time of a decode step over batches, what binds, and what the KV cache holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batchsim.cli import options as opt
from batchsim.errors import InputError

if TYPE_CHECKING:
    import xarray as xr

    from batchsim.cli.table import Cell
    from batchsim.specs.architecture import Architecture
    from batchsim.system.memory import CacheRoom
    from batchsim.system.roofline import Deployment

BATCHES = "1,2,4,8,16,32,64,128,256,512"
POINTS = 200
"""Batches of the plot."""
CACHE_BITS = {"bf16": 16.0, "fp8": 8.0}


def decode(
    model: Annotated[str, typer.Option(help="Model of `batchsim models`, or a config.json.", metavar="NAME|FILE")],
    gpu: Annotated[str, typer.Option(help="GPU of `batchsim gpus`.", metavar="NAME")],
    tp: Annotated[int, typer.Option(help="GPUs that share each layer (tensor parallelism).", min=1)] = 1,
    ep: Annotated[
        int, typer.Option(help="GPUs that share the experts; above --tp, attention is replicated.", min=1)
    ] = 1,
    batch: Annotated[str, typer.Option(help="Sequences that decode at the same time.", metavar="N,N,...")] = BATCHES,
    context: Annotated[float, typer.Option(help="Mean context of a sequence in flight, in tokens.")] = 4096,
    engine: Annotated[str, typer.Option(help="vllm, sglang or trtllm.")] = "vllm",
    precision: Annotated[
        str | None, typer.Option(help="Weights as served: bf16, fp8, nvfp4, mxfp4 [default: the checkpoint's].")
    ] = None,
    cache: Annotated[str, typer.Option(help="KV cache: bf16 or fp8.")] = "bf16",
    memory_share: Annotated[
        float, typer.Option(help="Share of GPU memory for the engine (gpu_memory_utilization).")
    ] = 0.9,
    plot: Annotated[Path | None, typer.Option(help="Write the plot of a step's parts (png, pdf, svg).")] = None,
    json: opt.Json = False,
) -> None:
    """Predict the time of a decode step from a model, a GPU and an engine.

    Each step reads weights once and the cache of every sequence; a larger batch shares the first and not the second.
    The table says which of the two, or what else, a step mostly waits for, and which batches the KV cache holds.
    """
    from batchsim.cli import answer

    opt.check_plot(plot)
    asked = _ask(
        model,
        gpu,
        tp=tp,
        ep=ep,
        engine=engine,
        precision=precision,
        cache=cache,
        memory_share=memory_share,
        context=context,
    )
    batches = opt.numbers(batch, "--batch")
    ds = _decoded(asked, batches, context)
    if plot is not None:
        import numpy as np

        from batchsim.plot import plot_decode

        between = np.unique(np.geomspace(min(batches), max(batches), POINTS).round()).tolist()
        curve = _decoded(asked, between, context)
        opt.save_plot(plot, lambda ax: plot_decode(curve, ax=ax))
    if json:
        answer.write(as_answer(asked, ds))
    else:
        print_decode(asked, ds)


@dataclass(frozen=True)
class _Asked:
    """What the options describe."""

    deployment: Deployment
    room: CacheRoom
    context: float


def _ask(
    model: str,
    gpu: str,
    *,
    tp: int,
    ep: int,
    engine: str,
    precision: str | None,
    cache: str,
    memory_share: float,
    context: float,
) -> _Asked:
    from batchsim.errors import nearest
    from batchsim.specs.gpus import find_gpu
    from batchsim.specs.huggingface import quantised
    from batchsim.specs.models import find_model
    from batchsim.system.memory import cache_room
    from batchsim.system.roofline import deploy

    if cache not in CACHE_BITS:
        raise InputError(f"--cache {cache} is not known", remedy=nearest(cache, CACHE_BITS))
    if not 0 < memory_share <= 1:
        raise InputError(f"--memory-share {memory_share:g} is outside (0, 1]", remedy="vLLM's default is 0.9")
    architecture = find_model(model)
    if precision is not None:
        architecture = quantised(architecture, precision)
    check_context(architecture, context)
    card = find_gpu(gpu)
    deployment = deploy(
        architecture, card, tensor_parallel=tp, expert_parallel=ep, engine=engine, cache_bits=CACHE_BITS[cache]
    )
    room = cache_room(
        architecture,
        memory=float(card.usable_memory or 0),
        tensor_parallel=tp,
        expert_parallel=ep,
        memory_share=memory_share,
        cache_bits=CACHE_BITS[cache],
    )
    return _Asked(deployment, room, context)


def check_context(architecture: Architecture, context: float) -> None:
    """Refuse a context that is no length, or that the model does not take.

    Raises
    ------
    InputError
        With the model's limit.
    """
    if not 1 <= context <= architecture.context_max:
        raise InputError(
            f"--context {context:g} is outside [1, {architecture.context_max}] of {architecture.name}",
            remedy="give the mean context in flight: the prompt and half of the response",
        )


def _decoded(asked: _Asked, batches: list[float], context: float) -> xr.Dataset:
    from batchsim.system.roofline import decode_time

    whole = [b for b in batches if b >= 1 and b.is_integer()]
    if len(whole) < len(batches):
        bad = next(b for b in batches if b not in whole)
        raise InputError(f"--batch {bad:g} is not a whole number of sequences", remedy="as --batch 1,8,64")
    ds = decode_time(asked.deployment, batch=sorted(set(whole)), context=context)
    ds.attrs["concurrency_max"] = float(asked.room.concurrency_max(context))
    return ds


def as_answer(asked: _Asked, ds: xr.Dataset) -> dict[str, Any]:
    """The JSON answer: SI units, a row per batch."""
    from batchsim.cli.answer import number
    from batchsim.system.roofline import PARTS, ridge
    from batchsim.system.roofline.efficiency import model_error
    from batchsim.variables import SCHEMA

    d = asked.deployment
    low, high = model_error(d.engine.engine, tables=d.efficiency.source == "kernel tables")
    limit = ds.attrs["concurrency_max"]
    turning = ridge(d)
    rows = []
    for i, n in enumerate(ds["concurrency"].values):
        t = float(ds["decode_step_time"].values[i])
        rows.append(
            {
                "batch": number(n),
                "step_time": t,
                "step_time_interval": [low * t, high * t],
                "tokens_per_second": float(n / t),
                "tokens_per_second_per_gpu": float(n / t / d.tensor_parallel),
                "fits": bool(n <= limit),
                "binding_limit": str(ds["binding_limit"].values[i]) if n <= limit else "KV memory",
                "parts": {name: float(ds[name].values[i]) for name in PARTS},
            }
        )
    return {
        "schema": SCHEMA,
        "verb": "decode",
        "model": d.architecture.name,
        "precision": d.architecture.precision,
        "gpu": d.gpu.name,
        "tensor_parallel": d.tensor_parallel,
        "expert_parallel": d.expert_parallel,
        "engine": d.engine.engine,
        "context": number(asked.context),
        "efficiency": d.efficiency.source,
        "level": 0.8,
        "concurrency_max": number(limit),
        "weight_bytes_per_gpu": asked.room.weight_bytes,
        "cache_bytes_per_gpu": asked.room.free_bytes,
        "ridge_batch": {
            str(p): number(v) for p, v in zip(turning["part"].values, turning["ridge_batch"].values, strict=True)
        },
        "batches": rows,
        "warnings": notes(asked, ds),
    }


def notes(asked: _Asked, ds: xr.Dataset) -> list[str]:
    """Sentences below the table: what fits, where compute takes over, how sure this is."""
    import math

    from batchsim.system.roofline import ridge
    from batchsim.system.roofline.efficiency import model_error

    d, room, limit = asked.deployment, asked.room, ds.attrs["concurrency_max"]
    said = [
        f"{room.weight_bytes / 1e9:.4g} GB of weights and {room.reserve / 1e9:.3g} GB for the engine leave "
        f"{room.free_bytes / 1e9:.4g} GB per GPU for the cache: {limit:,.0f} sequences of {asked.context:,.0f} tokens"
    ]
    most = float(ds["concurrency"].values.max())
    if limit < most:
        said.append(f"to hold {most:,.0f}: {', or '.join(room.remedies(asked.context, most))}")
    if d.groups > 1:
        said.append(
            f"the batch is that of one of {d.groups} groups of {d.tensor_parallel} GPUs, which share the experts"
        )
    dense, experts = (float(v) for v in ridge(d)["ridge_batch"].values)
    turn = f"products turn from memory-bound to compute-bound near {dense:,.0f} rows per step"
    said.append(turn if math.isnan(experts) else f"{turn}, experts near {experts:,.0f}")
    tables = d.efficiency.source == "kernel tables"
    low, high = model_error(d.engine.engine, tables=tables)
    said.append(
        f"{d.gpu.name}: {'measured kernels' if tables else d.efficiency.source}; on GPUs left out of the fit, 80 % of "
        f"measured steps lay within {low:.2f} to {high:.2f} of the predicted (`batchsim validate serving`)"
    )
    return said


def print_decode(asked: _Asked, ds: xr.Dataset) -> None:
    """Print the table of `as_answer` and its notes."""
    from batchsim.cli.table import make_console, print_notes, print_rows

    console = make_console()
    answer = as_answer(asked, ds)
    title = f"{asked.deployment.name}; context {asked.context:,.0f} tokens"
    print_rows(console, title, [_cells(row) for row in answer["batches"]], optional=("communication", "per sequence"))
    print_notes(console, answer["warnings"])


def _cells(row: dict[str, Any]) -> dict[str, Cell]:
    low, high = row["step_time_interval"]
    parts, total = row["parts"], row["step_time"]
    shares = {
        "weights": parts["weight_time"] + parts["expert_time"],
        "cache": parts["cache_time"],
        "compute": parts["compute_time"],
        "communication": parts["communication_time"],
        "overhead": parts["launch_time"],
    }
    return {
        "batch": f"{row['batch']:,}",
        "step (ms)": (f"{1e3 * total:.3g}", f"({1e3 * low:.3g} - {1e3 * high:.3g})"),
        "tokens/s": f"{row['tokens_per_second']:,.0f}",
        "per sequence": f"{1 / total:,.1f}",
        **{name: f"{100 * value / total:.0f} %" for name, value in shares.items()},
        "waits for": row["binding_limit"],
    }
