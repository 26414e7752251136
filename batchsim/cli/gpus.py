"""`batchsim gpus`: the catalogue of GPUs, with sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from batchsim.cli import options as opt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from batchsim.cli.table import Cell
    from batchsim.specs.gpu import GPU
    from batchsim.specs.gpus import Entry

NUMBERS = (
    "memory",
    "driver_memory",
    "memory_bandwidth",
    "peak_flops",
    "fp8_flops",
    "fp4_flops",
    "link_bandwidth",
    "node_size",
    "host_bandwidth",
    "ridge",
)


def gpus(
    name: Annotated[str | None, typer.Argument(help="One GPU, as a catalogue, a driver or a person writes it.")] = None,
    json: opt.Json = False,
) -> None:
    """List the GPUs whose datasheets are known, or show one with its source.

    FLOP/s are dense, links count one direction, bytes are decimal. The ridge is bf16 FLOP/s over memory
    bandwidth: the FLOP per byte above which a kernel waits for the tensor cores.
    """
    from batchsim.cli import answer
    from batchsim.specs.gpus import entries, find_entry
    from batchsim.variables import SCHEMA

    chosen = list(entries().values()) if name is None else [find_entry(name)]
    others = [] if name is None else chosen[0].candidates(name)
    if json:
        rows = [as_answer(entry) for entry in chosen]
        answer.write({"schema": SCHEMA, "verb": "gpus", "gpus": rows, "candidates": others})
    else:
        print_gpus(chosen, name=name, others=others)


def as_answer(entry: Entry) -> dict[str, Any]:
    """Row of the JSON answer: SI units, null for what a GPU lacks."""
    from batchsim.cli.answer import number

    values = {key: getattr(entry.gpu, key) for key in NUMBERS}
    return {
        "name": entry.gpu.name,
        **{key: None if value is None else number(value) for key, value in values.items()},
        "aliases": list(entry.aliases),
        "default_for": list(entry.default_for),
        "source": entry.source,
        "note": entry.note or None,
    }


def cells(gpu: GPU) -> dict[str, Cell]:
    """Row of the table, as docs/hardware.md has it too."""
    return {
        "GPU": gpu.name,
        "GB": _in(gpu.memory, 1e9),
        "TB/s": _in(gpu.memory_bandwidth, 1e12),
        "bf16": _in(gpu.peak_flops, 1e12),
        "fp8": _in(gpu.fp8_flops, 1e12),
        "fp4": _in(gpu.fp4_flops, 1e12),
        "link GB/s": _in(gpu.link_bandwidth, 1e9),
        "node": "-" if gpu.node_size is None else str(gpu.node_size),
        "ridge": "-" if gpu.ridge is None else f"{gpu.ridge:.0f}",
    }


def _in(value: float | None, unit: float) -> str:
    return "-" if value is None else f"{value / unit:.6g}"


def print_gpus(chosen: Sequence[Entry], *, name: str | None = None, others: Sequence[str] = ()) -> None:
    """Print the table, and for a single GPU its other names, source and note."""
    from batchsim.cli.table import make_console, print_notes, print_rows

    console = make_console()
    title = "dense TFLOP/s; links one way; ridge in FLOP/B"
    print_rows(console, title, [cells(entry.gpu) for entry in chosen], optional=("node", "link GB/s", "ridge"))
    if name is None:
        return
    entry = chosen[0]
    said = []
    if others:
        said.append(f"'{name}' is taken for {entry.gpu.name}; it could also be {', '.join(others)}")
    if entry.gpu.host_bandwidth is not None:
        said.append(f"to the host: {_in(entry.gpu.host_bandwidth, 1e9)} GB/s one way")
    if entry.aliases or entry.default_for:
        said.append(f"also: {', '.join((*entry.aliases, *entry.default_for))}")
    said.append(f"source: {entry.source}")
    if entry.note:
        said.append(entry.note)
    print_notes(console, said)
