r"""Time per output token of a served model, and what measured serving rows say about an engine.

A client keeps n requests in flight, each of i prompt and o output tokens. In the steady state every decode step of n
sequences is crossed by the prefills of the others, (n - 1)/o of them per step:

    TPOT = t(n, c) + f (n - 1)/o [t(n + i prompt tokens, c) - t(n, c)],    c = i + o/2

f is the engine's prefill factor. Where the cache holds fewer than n sequences of mean context, n is what it holds and
the rest waits, which time to first token sees and TPOT does not. What TPOT leaves out: bursts at the start, unequal
lengths, host stalls.

Measured rows are cleaned by a rule that was fixed before any fit (`clean`), and every count of it is a test:
attention_dp_size = 1, concurrency = batch_size, moe_tp_size moe_ep_size = tp_size <= 8, duplicates once; then rows
faster than the datasheet's bandwidth allows; then rows below 98 % of the running maximum over concurrency within a
series (model, GPU, precision, lengths, parallelism).

Six constants of an engine (`Overhead`) are fitted to log errors with a soft-L1 loss and a weak log-normal prior, on
rows of which a validation leaves a GPU or a model out. The form of the model was chosen with all rows in sight.

References
----------
.. [1] InferenceX (SemiAnalysis) measurements as redistributed by aiconfigurator (Apache-2.0), commit 095f58a.
.. [2] Server settings of those runs: `data/measured/serving_settings.csv`, each row with its script.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import least_squares

from batchsim.errors import InputError
from batchsim.specs.architecture import Architecture
from batchsim.specs.gpus import find_gpu
from batchsim.specs.huggingface import quantised
from batchsim.specs.models import find_model
from batchsim.system.memory import CacheRoom, cache_room
from batchsim.system.roofline import step_time
from batchsim.system.roofline.deployment import Deployment, deploy, pack, with_engine
from batchsim.system.roofline.efficiency import FITTED, SWITCHED_LINK, Efficiency, Overhead, efficiency

Array = NDArray[np.float64]

SERVING = "decode/serving_ttft_tpot.csv"
PEER = "decode/serving_peer_predictions_aiconfigurator_0.12.0.csv"
PEER_NAME = "aiconfigurator 0.12.0"
ENGINES = ("vllm", "sglang", "trtllm")
MONOTONE = 0.98
"""A row below this share of the running maximum over concurrency is taken for mislabelled."""
PEER_DIGITS = 2e-3
"""Largest difference [ms] between a row and the measured value beside the peer's prediction, which has three digits."""

START = {
    "kernel_time": 3e-6,
    "sequence_time": 10e-6,
    "step_time": 5e-4,
    "quantisation_time": 2e-6,
    "routing_skew": 0.7,
    "prefill_factor": 1.0,
}
"""Medians of the log-normal priors: small kernels of the layer tables take 2 to 3 us; bf16 expert tables have exponents
of .68 to .83; the rest is a guess of magnitude."""
PRIOR_WEIGHT = 0.05
"""Residual per unit of log distance from the median, so that a factor e costs as much as one row 5 % off."""
SKEW_MAX = 1.5


def time_per_output_token(
    deployment: Deployment,
    *,
    concurrency: ArrayLike,
    prompt_tokens: float,
    output_tokens: float,
    room: CacheRoom | None = None,
    packed: Any = None,
) -> Array:
    """Mean time per output token with some requests in flight.

    Parameters
    ----------
    deployment : Deployment
    concurrency : array_like, any shape [sequences]
    prompt_tokens, output_tokens : float [tokens]
        Means.
    room : CacheRoom or None
        Caps the sequences that decode at the same time.
    packed : Packed or None
        Of this deployment.

    Returns
    -------
    ndarray [s]
    """
    n = np.asarray(concurrency, dtype=np.float64)
    context = prompt_tokens + output_tokens / 2
    if room is not None:
        n = np.minimum(n, np.maximum(room.free_bytes / room.sequence_bytes(context), 1.0))
    prompt = np.array([0.0, prompt_tokens])
    t = step_time(deployment, batch=n[..., None], context=context, prompt=prompt, packed=packed).sum(axis=-1)
    crossed = deployment.engine.prefill_factor * (n - 1) / output_tokens
    return np.asarray(t[..., 0] + crossed * (t[..., 1] - t[..., 0]))


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


def placement(row: ServingRow, engine: Overhead, kernels: Efficiency) -> tuple[Deployment, CacheRoom]:
    """Deployment and cache room of a row's server."""
    how = settings(row)
    architecture = served_architecture(row.model, row.precision)
    gpu = find_gpu(row.gpu)
    deployment = deploy(
        architecture,
        gpu,
        tensor_parallel=row.tensor_parallel,
        expert_parallel=row.expert_parallel,
        engine=engine,
        cache_bits=how.cache_bits,
        fused_all_reduce=how.fused_all_reduce,
        kernels=kernels,
    )
    room = cache_room(
        architecture,
        memory=float(gpu.usable_memory or 0),
        tensor_parallel=row.tensor_parallel,
        expert_parallel=row.expert_parallel,
        memory_share=how.memory_share,
        cache_bits=how.cache_bits,
    )
    return deployment, room


class Predictor:
    """Times per output token of rows, with the parts that no engine constant changes done once.

    Parameters
    ----------
    rows : sequence of ServingRow
    kernels : callable
        Efficiency of a GPU by its name; the shipped ones if not given.
    """

    def __init__(self, rows: Sequence[ServingRow], kernels: Callable[[str], Efficiency] | None = None) -> None:
        self.rows = list(rows)
        self.measured = np.array([row.measured for row in rows])
        kernels = kernels or kernels_of(None)
        start = Overhead(engine=rows[0].engine if rows else "", **START)
        found: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for i, row in enumerate(self.rows):
            found[row.series].append(i)
        self.series = [
            (np.array(at), *placement(self.rows[at[0]], start, kernels(self.rows[at[0]].gpu)))
            for at in found.values()
        ]

    def __call__(self, engine: Overhead) -> Array:
        """Predicted times [s], in the order of the rows."""
        predicted = np.empty(len(self.rows))
        for at, deployment, room in self.series:
            row = self.rows[at[0]]
            share = settings(row).length_share
            own = with_engine(deployment, engine)
            predicted[at] = time_per_output_token(
                own,
                concurrency=[self.rows[i].concurrency for i in at],
                prompt_tokens=share * row.prompt_tokens,
                output_tokens=share * row.output_tokens,
                room=room,
                packed=pack(own),
            )
        return predicted


def fit_overhead(predictor: Predictor, *, engine: str) -> Overhead:
    """Constants of an engine from serving rows.

    Parameters
    ----------
    predictor : Predictor
        Of the rows to fit.
    engine : str

    Returns
    -------
    Overhead

    Raises
    ------
    InputError
        If there is no row.
    """
    if not predictor.rows:
        raise InputError(f"no serving row of {engine} to fit")
    prior = np.log([START[name] for name in FITTED])

    def built(z: Array) -> Overhead:
        values = dict(zip(FITTED, np.exp(z).tolist(), strict=True))
        values["routing_skew"] = min(values["routing_skew"], SKEW_MAX)
        return Overhead(engine=engine, rows=len(predictor.rows), **values)

    def errors(z: Array) -> Array:
        return np.concatenate([np.log(predictor(built(z)) / predictor.measured), PRIOR_WEIGHT * (z - prior)])

    found = least_squares(errors, prior, loss="soft_l1", f_scale=0.1)
    return replace(built(found.x), source=f"{len(predictor.rows)} serving rows")


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
    architecture = served_architecture(row.model, row.precision)
    gpu = find_gpu(row.gpu)
    room = cache_room(
        architecture,
        memory=float(gpu.usable_memory or 0),
        tensor_parallel=row.tensor_parallel,
        expert_parallel=row.expert_parallel,
        memory_share=how.memory_share,
        cache_bits=how.cache_bits,
    )
    context = how.length_share * (row.prompt_tokens + row.output_tokens / 2)
    held = float(min(row.concurrency * room.sequence_bytes(context), room.free_bytes))
    weights = room.weight_bytes
    experts = architecture.experts
    if experts is not None:
        untouched = (1 - experts.per_token / experts.experts) ** row.concurrency
        routed = experts.layers * experts.experts * experts.expert_bytes / row.tensor_parallel
        weights -= routed * untouched
    lookup = sum(m.bytes for m in architecture.matrices if m.reading == "lookup") / row.tensor_parallel
    return (weights - (0.0 if architecture.tied else lookup) + held) / float(gpu.memory_bandwidth or np.inf)


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


def fit_engines(
    folder: Path, gpus: dict[str, dict[str, Any]], *, report: Callable[[str], object] = lambda line: None
) -> dict[str, dict[str, Any]]:
    """Constants of every engine with rows: from all of them, and once more without each GPU.

    Parameters
    ----------
    folder : Path
    gpus : dict
        Fits of `fit_kernels.fit_gpus`.
    report : callable
        Takes a line of progress.

    Returns
    -------
    dict
        Content of the [engine] tables of `data/efficiency.toml`: constants, constants without each GPU, and quantiles
        of measured over predicted on the GPU left out, with its kernel tables and with generic efficiencies.
    """
    found: dict[str, dict[str, Any]] = {}
    for engine in ENGINES:
        rows = clean(read_rows(folder, engine))
        names = sorted({row.gpu for row in rows})
        every = fit_overhead(Predictor(rows, kernels_of(gpus)), engine=engine)
        report(f"{engine}: {len(rows)} rows {_toml(every)}")
        without: dict[str, Any] = {}
        ratios: dict[bool, list[Array]] = {True: [], False: []}
        for gpu in names:
            train, test = [r for r in rows if r.gpu != gpu], [r for r in rows if r.gpu == gpu]
            left = fit_overhead(Predictor(train, kernels_of(gpus)), engine=engine)
            without[gpu] = _toml(left)
            report(f"{engine} without {gpu}: {len(train)} rows {_toml(left)}")
            for tables in (True, False):
                predictor = Predictor(test, kernels_of(gpus, () if tables else SAME_CHIP.get(gpu, (gpu,))))
                ratios[tables].append(predictor.measured / predictor(left))
        found[engine] = _toml(every) | {
            "source": f"{len(rows)} serving rows on {', '.join(names)}",
            "held_out_with_tables": _quantiles(ratios[True]),
            "held_out_generic": _quantiles(ratios[False]),
            "without": without,
        }
    return found


SAME_CHIP = {
    "B200-SXM": ("B200-SXM", "GB200"),
    "GB200": ("B200-SXM", "GB200"),
}
"""GPUs whose tables a validation from the datasheet alone leaves out with each: the chip in another package."""
SIBLINGS = {
    **SAME_CHIP,
    **{name: ("H100-SXM", "H200-SXM", "H800-SXM", "H20-96") for name in ("H100-SXM", "H200-SXM", "H800-SXM", "H20-96")},
}
"""The same with every GPU of the generation."""


def kernels_of(
    tables: dict[str, dict[str, Any]] | None, without: tuple[str, ...] = ()
) -> Callable[[str], Efficiency]:
    """Efficiency by GPU name, from some tables only."""

    def found(name: str) -> Efficiency:
        link = find_gpu(name).link_bandwidth or 0.0
        return efficiency(name, without=without, switched=link > SWITCHED_LINK, tables=tables)

    return found


def _quantiles(ratios: list[Array]) -> list[float]:
    return np.quantile(np.concatenate(ratios), [0.1, 0.9]).tolist()


def _toml(engine: Overhead) -> dict[str, Any]:
    return {"rows": engine.rows} | {name: float(f"{getattr(engine, name):.4g}") for name in FITTED}
