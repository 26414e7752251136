r"""Time per output token of a served model, and what measured serving rows say about an engine.

A client keeps n requests in flight, each of i prompt and o output tokens. In the steady state every decode step of n
sequences is crossed by the prefills of the others, (n - 1)/o of them per step:

    TPOT = t(n, c) + f (n - 1)/o [t(n + i prompt tokens, c) - t(n, c)],    c = i + o/2

f is the engine's prefill factor. Where the cache holds fewer than n sequences of mean context, n is what it holds and
the rest waits, which time to first token sees and TPOT does not. What TPOT leaves out: bursts at the start, unequal
lengths, host stalls.

Six constants of an engine (`Overhead`) are fitted to log errors with a soft-L1 loss and a weak log-normal prior, on
rows of which a validation leaves a GPU or a model out. The form of the model was chosen with all rows in sight.

References
----------
.. [1] Kwon et al. 2023, arXiv:2309.06180 (continuous batching over a paged cache).
.. [2] Agrawal et al. 2024, arXiv:2403.02310 (chunked prefill beside decodes).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import least_squares

from batchsim.errors import InputError
from batchsim.specs.gpus import find_gpu
from batchsim.system.memory import CacheRoom
from batchsim.system.roofline import step_time
from batchsim.system.roofline.deployment import Deployment, deploy, pack, with_engine
from batchsim.system.roofline.efficiency import FITTED, SWITCHED_LINK, Efficiency, Overhead, efficiency
from batchsim.system.serving_rows import (
    ENGINES,
    ServingRow,
    clean,
    read_rows,
    row_room,
    served_architecture,
    settings,
)

Array = NDArray[np.float64]

START: dict[str, Any] = {
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


def placement(row: ServingRow, engine: Overhead, kernels: Efficiency) -> tuple[Deployment, CacheRoom]:
    """Deployment and cache room of a row's server."""
    how = settings(row)
    deployment = deploy(
        served_architecture(row.model, row.precision),
        find_gpu(row.gpu),
        tensor_parallel=row.tensor_parallel,
        expert_parallel=row.expert_parallel,
        engine=engine,
        cache_bits=how.cache_bits,
        fused_all_reduce=how.fused_all_reduce,
        kernels=kernels,
    )
    return deployment, row_room(row)


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
            (np.array(at), *placement(self.rows[at[0]], start, kernels(self.rows[at[0]].gpu))) for at in found.values()
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
    prior = np.log([float(START[name]) for name in FITTED])

    def built(z: Array) -> Overhead:
        values: dict[str, Any] = dict(zip(FITTED, np.exp(z).tolist(), strict=True))
        values["routing_skew"] = min(values["routing_skew"], SKEW_MAX)
        return Overhead(engine=engine, rows=len(predictor.rows), source=f"{len(predictor.rows)} serving rows", **values)

    def errors(z: Array) -> Array:
        return np.concatenate([np.log(predictor(built(z)) / predictor.measured), PRIOR_WEIGHT * (z - prior)])

    found = least_squares(errors, prior, loss="soft_l1", f_scale=0.1)
    return built(found.x)


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
        of measured over predicted on the GPU left out, with its kernel tables and with generic efficiencies, and the
        root mean square slope of that ratio's logarithm over the logarithm of the concurrency.
    """
    found: dict[str, dict[str, Any]] = {}
    for engine in ENGINES:
        rows = clean(read_rows(folder, engine))
        names = sorted({row.gpu for row in rows})
        every = fit_overhead(Predictor(rows, kernels_of(gpus)), engine=engine)
        report(f"{engine}: {len(rows)} rows {_toml(every)}")
        without: dict[str, Any] = {}
        ratios: dict[bool, list[Array]] = {True: [], False: []}
        slopes: list[float] = []
        for gpu in names:
            train, test = [r for r in rows if r.gpu != gpu], [r for r in rows if r.gpu == gpu]
            left = fit_overhead(Predictor(train, kernels_of(gpus)), engine=engine)
            without[gpu] = _toml(left)
            report(f"{engine} without {gpu}: {len(train)} rows {_toml(left)}")
            for tables in (True, False):
                predictor = Predictor(test, kernels_of(gpus, () if tables else SAME_CHIP.get(gpu, (gpu,))))
                ratios[tables].append(predictor.measured / predictor(left))
                if tables:
                    slopes += _slopes(predictor, ratios[tables][-1])
        found[engine] = _toml(every) | {
            "source": f"{len(rows)} serving rows on {', '.join(names)}",
            "held_out_with_tables": _quantiles(ratios[True]),
            "held_out_generic": _quantiles(ratios[False]),
            "held_out_slope": float(np.sqrt(np.mean(np.square(slopes)))),
            "without": without,
        }
    return found


SAME_CHIP = {
    "B200-SXM": ("B200-SXM", "GB200"),
    "GB200": ("B200-SXM", "GB200"),
}
"""GPUs whose tables a validation from the datasheet alone leaves out with each: the chip in another package."""
_HOPPER = ("H100-SXM", "H200-SXM", "H800-SXM", "H20-96")
SIBLINGS = SAME_CHIP | dict.fromkeys(_HOPPER, _HOPPER)
"""The same with every GPU of the generation."""


def kernels_of(tables: dict[str, dict[str, Any]] | None, without: tuple[str, ...] = ()) -> Callable[[str], Efficiency]:
    """Efficiency by GPU name, from some tables only."""

    def found(name: str) -> Efficiency:
        link = find_gpu(name).link_bandwidth or 0.0
        return efficiency(name, without=without, switched=link > SWITCHED_LINK, tables=tables)

    return found


def _slopes(predictor: Predictor, ratio: Array) -> list[float]:
    """Slope of log(measured/predicted) over log(concurrency) in every series of three rows or more."""
    found = []
    for at, _, _ in predictor.series:
        n = np.log([predictor.rows[i].concurrency for i in at])
        if np.unique(n).size >= 3:
            found.append(float(np.polyfit(n, np.log(ratio[at]), 1)[0]))
    return found


def _quantiles(ratios: list[Array]) -> list[float]:
    return [float(q) for q in np.quantile(np.concatenate(ratios), [0.1, 0.9])]


def _toml(engine: Overhead) -> dict[str, Any]:
    return {"rows": engine.rows} | {name: float(f"{getattr(engine, name):.4g}") for name in FITTED}
