r"""How far kernels stay below a datasheet: latency + bytes/bandwidth, per GPU; and what an engine adds, per engine.

A kernel that reads b bytes and multiplies for f FLOPs takes

    t = latency + ((b/(share BW))^p + (f/(share F))^p)^(1/p)

p = 4 for matrix products, whose reads and products overlap almost fully (fits on tables give 4.2 to 4.9), and
p = 2 for fused experts, which overlap less. Both are at least the larger term, so a share <= 1 is never faster than the
datasheet. An affine law in bytes keeps a rollout's closed form exact.

Latencies and shares are fitted on measured kernels (`python -m batchsim.system.fit_kernels`) and ship in
`data/efficiency.toml` with their residuals. A GPU without tables gets the geometric mean of those that have them,
which `Efficiency.source` says. Engine overheads are fitted end to end, on serving rows: time per small kernel
(norms, rotations, routing), per sequence, per step, per quantised product; how skewed routing is; how much slower
prefill is than kernels say.

References
----------
.. [1] Williams, Waterman, Patterson 2009, "Roofline: an insightful visual performance model", CACM 52(4).
.. [2] Kernel and serving tables: aiconfigurator (Apache-2.0), commit 095f58a; InferSim, commit f2293da.
"""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

import numpy as np

from batchsim.errors import InputError, nearest
from batchsim.specs.gpus import find_gpu

PRODUCT_OVERLAP, EXPERT_OVERLAP = 4.0, 2.0
"""Exponents p of the two laws above."""
SWITCHED_LINK = 1e11
"""Links above this [B/s] are NVLink or Infinity Fabric, below it PCIe: they get generic all-reduces of their own."""
RANKS = (2, 4, 8)
"""Group sizes with measured all-reduces."""


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """Latencies and shares of the datasheet that kernels of one GPU reach.

    Parameters
    ----------
    gpu : str
    source : str
        'kernel tables', or 'generic' with the GPUs averaged.
    gemm_latency, attention_latency, expert_latency, expert_fp8_latency : float [s]
    attention_sequence_time : float [s/sequence]
        Of a decode-attention kernel.
    gemm_bandwidth_share, attention_bandwidth_share, expert_bandwidth_share, expert_fp8_bandwidth_share : float [1]
    gemm_compute_share, gemm_fp8_compute_share, expert_compute_share, expert_fp8_compute_share : float [1]
    attention_fp8_share : float [1]
        Rate of reading an fp8 cache over that of a bf16 one.
    all_reduce_latency : tuple of float, (3,) [s]
        Among 2, 4 and 8 GPUs, captured in a CUDA graph.
    all_reduce_link_share : tuple of float, (3,) [1]
        Of the link, at 2 (n-1)/n times the message.
    """

    gpu: str
    source: str
    gemm_latency: float
    gemm_bandwidth_share: float
    gemm_compute_share: float
    gemm_fp8_compute_share: float
    attention_latency: float
    attention_sequence_time: float
    attention_bandwidth_share: float
    attention_fp8_share: float
    expert_latency: float
    expert_fp8_latency: float
    expert_bandwidth_share: float
    expert_fp8_bandwidth_share: float
    expert_compute_share: float
    expert_fp8_compute_share: float
    all_reduce_latency: tuple[float, float, float]
    all_reduce_link_share: tuple[float, float, float]

    def all_reduce(self, ranks: int) -> tuple[float, float]:
        """Latency [s] and share of the link [1] among `ranks` GPUs, interpolated in log2, beyond 8 as at 8."""
        at = np.log2(ranks)
        known = np.log2(RANKS)
        return float(np.interp(at, known, self.all_reduce_latency)), float(
            np.interp(at, known, self.all_reduce_link_share)
        )


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """What an engine adds to its kernels.

    Parameters
    ----------
    engine : str
    kernel_time : float [s]
        Per small kernel of a layer: norms, rotation, cache write, activation, routing.
    sequence_time : float [s/sequence]
        Sampling, detokenisation and scheduling.
    step_time : float [s]
    quantisation_time : float [s]
        Per product whose input is quantised on the way.
    routing_skew : float [1]
        Exponent of the popularity of experts, rank^-skew; 0 is uniform.
    prefill_factor : float [1]
        Time of prefill in a mixed step over what kernels say.
    rows : int
        Serving rows behind it; 0 if it is borrowed.
    source : str
    """

    engine: str
    kernel_time: float
    sequence_time: float
    step_time: float
    quantisation_time: float
    routing_skew: float
    prefill_factor: float
    rows: int = 0
    source: str = ""


FITTED = ("kernel_time", "sequence_time", "step_time", "quantisation_time", "routing_skew", "prefill_factor")
"""Fields of `Overhead` that serving rows give."""


def efficiency(
    gpu: str,
    *,
    without: tuple[str, ...] = (),
    switched: bool = True,
    tables: dict[str, dict[str, Any]] | None = None,
) -> Efficiency:
    """Efficiencies of a GPU: its own tables', or generic ones.

    Parameters
    ----------
    gpu : str
        Name in the catalogue, or any other.
    without : tuple of str
        GPUs whose tables must not be used, as a validation needs.
    switched : bool
        The GPU's link is a switched one, which decides the all-reduce where the GPU has no table of it.
    tables : dict or None
        Fits by GPU, as `fit_kernels.fit_gpus` returns them; the shipped ones if not given.

    Returns
    -------
    Efficiency
    """
    rows = shipped()["gpu"] if tables is None else tables
    known = {name: row for name, row in rows.items() if name not in without}
    own = known.get(gpu, {})
    source = "kernel tables" if own else f"generic, from {', '.join(sorted(known))}"
    return Efficiency(gpu=gpu, source=source, **_complete(own, known, switched))


def overhead(engine: str, *, without: str | None = None) -> Overhead:
    """Overheads of an engine, as shipped.

    Parameters
    ----------
    engine : str
        'vllm', 'sglang' or 'trtllm'.
    without : str or None
        A GPU whose serving rows were left out of the fit.

    Returns
    -------
    Overhead

    Raises
    ------
    InputError
        For an engine without a fit, or a GPU that no fit leaves out.
    """
    engines = shipped()["engine"]
    if engine not in engines:
        raise InputError(f"no overheads of engine '{engine}'", remedy=nearest(engine, engines))
    row = engines[engine]
    if without is not None:
        if without not in row["without"]:
            raise InputError(f"no fit of {engine} leaves out {without}", remedy=nearest(without, row["without"]))
        row = row["without"][without]
    return Overhead(
        engine=engine,
        **{name: float(row[name]) for name in FITTED},
        rows=int(row["rows"]),
        source=engines[engine]["source"],
    )


def model_error(engine: str, *, tables: bool) -> tuple[float, float]:
    """How far measured steps lie from predicted ones on GPUs whose serving rows no constant saw.

    Parameters
    ----------
    engine : str
    tables : bool
        The GPU has kernel tables; without, its efficiencies are generic.

    Returns
    -------
    low, high : float [1]
        10 % and 90 % quantiles of measured over predicted.

    Raises
    ------
    InputError
        For an engine without a fit.
    """
    overhead(engine)
    low, high = shipped()["engine"][engine]["held_out_with_tables" if tables else "held_out_generic"]
    return float(low), float(high)


def slope_error(engine: str) -> float:
    """How the error changes with the batch: standard deviation of d log(measured/predicted)/d log n, on GPUs left out.

    Parameters
    ----------
    engine : str

    Returns
    -------
    float [1]

    Raises
    ------
    InputError
        For an engine without a fit.
    """
    overhead(engine)
    return float(shipped()["engine"][engine]["held_out_slope"])


@lru_cache(maxsize=1)
def shipped() -> dict[str, Any]:
    """Content of `data/efficiency.toml`: fits and their residuals."""
    return tomllib.loads(files("batchsim").joinpath("data/efficiency.toml").read_text(encoding="utf-8"))


def _complete(own: dict[str, Any], known: dict[str, dict[str, Any]], switched: bool) -> dict[str, Any]:
    """A GPU's own numbers where its tables have them, geometric means over the others where not."""
    values: dict[str, Any] = {}
    for f in dataclasses.fields(Efficiency):
        if f.name in ("gpu", "source"):
            continue
        reduce = f.name.startswith("all_reduce")
        rows = known
        if reduce:
            rows = {name: row for name, row in known.items() if (_link(name) > SWITCHED_LINK) == switched} or known
        found = own.get(f.name)
        if found is None:
            stack = np.array([row[f.name] for row in rows.values() if f.name in row], dtype=np.float64)
            found = np.exp(np.log(stack).mean(axis=0))
        values[f.name] = tuple(float(v) for v in found) if reduce else float(found)
    return values


def _link(name: str) -> float:
    return find_gpu(name).link_bandwidth or 0.0
