"""`batchsim models`: the catalogue of models, and any model by its config.json."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from batchsim.cli import options as opt

if TYPE_CHECKING:
    from rich.console import Console

    from batchsim.cli.table import Cell
    from batchsim.specs.architecture import Architecture
    from batchsim.specs.models import Entry

CONTEXTS = (0, 1024, 8192, 32768, 131_072)
"""Contexts [tokens] at which the FLOPs of one token are stated, up to what the model allows."""


def models(
    name: Annotated[
        str | None, typer.Argument(help="A model of the catalogue, or the path of a config.json or its folder.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="Weights as served: bf16, fp8, nvfp4, mxfp4 [default: the checkpoint's].")
    ] = None,
    json: opt.Json = False,
) -> None:
    """List the models that are known, or show what one stores, reads and computes.

    Totals leave out layers that predict further tokens and vision towers; active parameters are those that
    one token reads, head included and embedding not. Caches are 16 bits per element.
    """
    from batchsim.cli import answer
    from batchsim.specs.huggingface import quantised
    from batchsim.specs.models import entries, find_entry, find_model
    from batchsim.variables import SCHEMA

    chosen = [find_model(name)] if name is not None else [e.architecture for e in entries().values()]
    if precision is not None:
        chosen = [quantised(a, precision) for a in chosen]
    if json:
        rows = [as_answer(a, find_entry(a.name), detail=name is not None) for a in chosen]
        answer.write({"schema": SCHEMA, "verb": "models", "models": rows})
    elif name is not None:
        print_model(chosen[0], find_entry(chosen[0].name))
    else:
        print_models(chosen)


def as_answer(a: Architecture, entry: Entry | None, *, detail: bool) -> dict[str, Any]:
    """One model of the JSON answer: parameters as counts, bytes and FLOPs in SI units."""
    from dataclasses import asdict

    from batchsim.cli.answer import number
    from batchsim.specs import counts

    row: dict[str, Any] = {
        "name": a.name,
        "family": a.family,
        "precision": a.precision,
        "layers": a.layers,
        "context_max": a.context_max,
        "total_parameters": counts.total_parameters(a),
        "active_parameters": counts.active_parameters(a),
        "embedding_parameters": counts.embedding_parameters(a),
        "weight_bytes": number(counts.weight_bytes(a)),
        "kv_bytes_per_token": number(counts.kv_bytes_per_token(a)),
        "window_bytes_per_sequence": number(counts.window_bytes_per_sequence(a)),
        "state_bytes": number(counts.state_bytes(a)),
        "published_total_parameters": number(entry.total.value) if entry and entry.total else None,
        "published_active_parameters": number(entry.active.value) if entry and entry.active else None,
        "source": a.source or None,
    }
    if detail:
        row["flops_per_token"] = [[n, number(counts.flops_per_token(a, n))] for n in _contexts(a)]
        row["matrices"] = [asdict(m) for m in a.matrices]
        row["experts"] = None if a.experts is None else asdict(a.experts)
        row["attention"] = [asdict(kind) for kind in a.attention]
        row["states"] = [asdict(state) for state in a.states]
    return row


def print_models(chosen: list[Architecture]) -> None:
    """Print the catalogue."""
    from batchsim.cli.table import make_console, print_notes, print_rows

    console = make_console()
    title = f"{len(chosen)} models; parameters of the decoder, cache of 16 bits per element"
    print_rows(console, title, [cells(a) for a in chosen], optional=("layers", "precision", "attention"))
    print_notes(console, ["any other model: batchsim models PATH/config.json"])


def cells(a: Architecture) -> dict[str, Cell]:
    """Row of the table."""
    from batchsim.specs import counts

    return {
        "model": a.name,
        "total": _count(counts.total_parameters(a)),
        "active": _count(counts.active_parameters(a)),
        "layers": str(a.layers),
        "attention": _kinds(a),
        "KV kB/token": f"{counts.kv_bytes_per_token(a) / 1e3:.4g}",
        "window MB": _megabytes(counts.window_bytes_per_sequence(a)),
        "state MB": _megabytes(counts.state_bytes(a)),
        "weights GB": f"{counts.weight_bytes(a) / 1e9:.4g}",
        "precision": a.precision,
    }


def print_model(a: Architecture, entry: Entry | None) -> None:
    """Print one model: its matrices, caches, states and what they add up to."""
    from batchsim.cli.table import make_console, print_notes, print_rows

    console = make_console()
    print_rows(console, f"{a.name} ({a.family}, {a.precision})", [_summary(a)])
    print_rows(console, "matrices", _matrix_rows(a))
    _print_caches(console, a)
    said = [f"context up to {a.context_max:,} tokens; vocabulary {a.vocab:,}; hidden size {a.hidden:,}"]
    if a.tied:
        said.append("the head is the embedding, and stored once")
    print_notes(console, [*said, *_published(a, entry), *([f"source: {a.source}"] if a.source else [])])


def _summary(a: Architecture) -> dict[str, Cell]:
    row = cells(a)
    del row["model"], row["precision"]
    return row


def _matrix_rows(a: Architecture) -> list[dict[str, Cell]]:
    held = [(m.name, m.count, m) for m in a.matrices]
    if a.experts is not None:
        e = a.experts
        held += [(f"expert {m.name} ({e.per_token} of {e.experts})", e.layers * e.experts, m) for m in e.matrices]
    return [
        {
            "matrix": label,
            "held": f"{count:,}",
            "inputs x outputs": f"{m.inputs:,} x {m.outputs:,}",
            "parameters": _count(count * m.inputs * m.outputs),
            "bits": f"{m.bits:.5g}",
            "multiplied in": "-" if m.reading == "lookup" else m.arithmetic,
            "split by": m.sharding,
        }
        for label, count, m in held
    ]


def _print_caches(console: Console, a: Architecture) -> None:
    from batchsim.cli.table import print_rows
    from batchsim.specs import counts

    kept: list[dict[str, Cell]] = [
        {
            "layers": f"{kind.count} {kind.name}",
            "heads": f"{kind.heads} : {kind.kv_heads}",
            "bytes/token": f"{2 * kind.count * (kind.cache_elements + kind.index_elements):,}",
            "reads": "all" if kind.window is None else f"<= {kind.window:,} tokens",
            "keeps": f"<= {kind.window:,} tokens" if kind.window is not None and kind.keeps_window else "all",
        }
        for kind in a.attention
    ]
    print_rows(console, "cache per token of context, 16 bits", kept)
    states: list[dict[str, Cell]] = [
        {"layers": f"{s.count} {s.name}", "MB per sequence": _megabytes(s.count * s.bytes)} for s in a.states
    ]
    print_rows(console, "constant state", states)
    flops: dict[str, Cell] = {f"{n:,}": f"{counts.flops_per_token(a, n) / 1e9:.4g}" for n in _contexts(a)}
    print_rows(console, "GFLOP per token, by tokens of context", [flops])


def _published(a: Architecture, entry: Entry | None) -> list[str]:
    """Sentences on the vendor's counts beside our own."""
    if entry is None:
        return ["not in the catalogue: no published count to compare with"]
    said = []
    if entry.total is not None and entry.total_difference is not None:
        said.append(f"published total {entry.total.text}: ours differs by {100 * entry.total_difference:+.2f} %")
    if entry.active is not None and entry.active_difference is not None:
        includes = {"head": "head", "embedding": "head and embedding", "neither": "neither head nor embedding"}
        said.append(
            f"published active {entry.active.text}, with {includes[entry.active_includes]}: "
            f"ours so counted {_count(entry.active_as_published)}, {100 * entry.active_difference:+.2f} %"
        )
    return [*said, *([entry.note] if entry.note else [])]


def _contexts(a: Architecture) -> list[int]:
    return [n for n in CONTEXTS if n <= a.context_max]


def _kinds(a: Architecture) -> str:
    """Kinds of layers, as '48 full' or '36 gated delta net + 12 full'."""
    kept = [(s.count, s.name) for s in a.states] + [(kind.count, kind.name) for kind in a.attention]
    return " + ".join(f"{count} {name}" for count, name in kept) or "none"


def _count(parameters: float) -> str:
    """Parameters in the unit that suits them."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if parameters >= size:
            return f"{parameters / size:.4g}{unit}"
    return f"{parameters:.0f}"


def _megabytes(value: float) -> str:
    return f"{value / 1e6:.4g}" if value else "-"
