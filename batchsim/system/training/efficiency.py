r"""What trainers reach of a datasheet: shares of peaks, passes over memory, times per layer and per update.

Every constant is one of four kinds, so that a fit on one GPU says something about another:

    share     of the peak that products, attention or experts reach, of the host's link that offloading reaches
    passes    times that a forward pass reads or writes a tensor in memory outside of products (norms, residuals,
              adapters, routed rows, logits), each tensor counted once at its own bytes
    time      per layer and micro-batch, per expert of a layer where experts run one after the other, per update
    link      a constant that is not fitted: share of the datasheet that NCCL reaches (all-reduce tables)

A share of products depends on the generation of the GPU, that of attention on the algorithm too: FlashAttention-2
was written for Ampere and reaches an eighth of Blackwell's peak, FlashAttention-3 needs Hopper. What was not measured
gets the geometric mean of what was, and `TrainingEfficiency.source` says so.

All are fitted at once to measured updates (`python -m batchsim.system.fit_training`) with soft-L1 log errors and weak
log-normal priors, and ship in `data/training.toml` with standard errors, residuals, and once more without each model.

References
----------
.. [1] prime-rl (Apache-2.0), commit 559b447: trainer benchmarks; Shah et al. 2024, arXiv:2407.08608 (attention).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

import numpy as np

from batchsim.errors import InputError, nearest
from batchsim.specs.gpu import GPU

GENERATIONS: Mapping[str, tuple[str, ...]] = {
    "ampere": ("A100", "A800", "A30", "A40", "A10", "RTX-A6000", "RTX-3090"),
    "hopper": ("H100", "H200", "H800", "H20", "GH200"),
    "blackwell": ("B200", "B300", "GB200", "GB300"),
}
"""Beginnings of names in the catalogue; any other GPU is of no measured generation."""
LINK_SHARE = 0.5
"""Of the link that collectives reach; all-reduce tables of eight GPUs have .47 (A100) to .6 (H200)."""
START: dict[str, float] = {
    "product_share.ampere": 0.6,
    "product_share.hopper": 0.6,
    "product_share.blackwell": 0.6,
    "attention_share.flash_attention_2.ampere": 0.5,
    "attention_share.flash_attention_2.hopper": 0.35,
    "attention_share.flash_attention_3.hopper": 0.55,
    "attention_share.flash_attention_2.blackwell": 0.2,
    "expert_share": 0.4,
    "host_share": 0.8,
    "element_passes": 12.0,
    "expert_passes": 3.0,
    "adapter_passes": 3.0,
    "logit_passes_rl": 5.0,
    "logit_passes_plain": 3.0,
    "layer_time": 5e-4,
    "expert_time": 5e-4,
    "update_time": 0.05,
    "rl_time": 0.1,
}
"""Medians of the priors. Shares of products and attention: published kernel benchmarks [1]. Passes are counted on a
layer's formulas: a dozen reads and writes of the hidden vector by norms and residuals, an adapter's input, output and
sum, rows gathered to experts and scattered back, fp32 logits written, scaled, reduced and normalised. Times: kernels of
a forward and backward pass at 10 us each. The rest is a guess of magnitude."""


@dataclass(frozen=True, kw_only=True)
class TrainingEfficiency:
    """Constants of a trainer on one GPU with one attention algorithm.

    Parameters
    ----------
    product_share, attention_share, expert_share, host_share : float in (0, 1] [1]
    element_passes, expert_passes, adapter_passes, logit_passes_rl, logit_passes_plain : float [1]
        Per forward pass.
    layer_time : float [s]
        Per layer and micro-batch.
    expert_time : float [s]
        Per expert, layer and micro-batch where experts run one after the other.
    update_time, rl_time : float [s]
        Per update; more of it if the loss is that of reinforcement learning.
    link_share : float [1]
    rows : int
        Measured updates behind it.
    source : str
        What was measured and what borrowed.
    """

    product_share: float
    attention_share: float
    expert_share: float
    host_share: float
    element_passes: float
    expert_passes: float
    adapter_passes: float
    logit_passes_rl: float
    logit_passes_plain: float
    layer_time: float
    expert_time: float
    update_time: float
    rl_time: float
    link_share: float = LINK_SHARE
    rows: int = 0
    source: str = ""


def generation(gpu: GPU | str) -> str:
    """Generation of a GPU by its name in the catalogue: 'ampere', 'hopper', 'blackwell', or '' if not measured."""
    name = gpu if isinstance(gpu, str) else gpu.name
    return next((g for g, names in GENERATIONS.items() if name.startswith(names)), "")


def training_efficiency(
    gpu: GPU, *, attention: str | None = None, without: str | None = None, constants: Mapping[str, float] | None = None
) -> TrainingEfficiency:
    """Constants of a GPU, as shipped or as given.

    Parameters
    ----------
    gpu : GPU
    attention : str or None
        'flash_attention_2', 'flash_attention_3' or any other; the fastest that was measured on the GPU's generation
        if not given.
    without : str or None
        Model whose rows were left out of the fit.
    constants : mapping or None
        Of a fit, by the names of `START`; the shipped ones if not given.

    Returns
    -------
    TrainingEfficiency

    Raises
    ------
    InputError
        For a model that no fit leaves out.
    """
    rows = 0
    if constants is None:
        table = shipped()
        constants, rows = table["constants"], int(table["fit"]["rows"])
        if without is not None:
            if without not in table["without"]:
                known = nearest(without, table["without"])
                raise InputError(f"no fit of training leaves out the model '{without}'", remedy=known)
            constants, rows = table["without"][without], int(table["without"][without]["rows"])
    own = generation(gpu)
    product, product_source = _share(constants, "product_share", own)
    chosen, algorithm = _attention(constants, own, attention)
    plain = {name: float(constants[name]) for name in START if "." not in name}
    source = f"products {product_source}, attention {algorithm}"
    return TrainingEfficiency(product_share=product, attention_share=chosen, rows=rows, source=source, **plain)


def _share(constants: Mapping[str, float], kind: str, own: str) -> tuple[float, str]:
    """Share of a generation, or the geometric mean of all."""
    name = f"{kind}.{own}"
    if name in constants:
        return float(constants[name]), f"measured on {own}"
    known = [float(v) for k, v in constants.items() if k.startswith(f"{kind}.")]
    return float(np.exp(np.mean(np.log(known)))), "generic"


def _attention(constants: Mapping[str, float], own: str, algorithm: str | None) -> tuple[float, str]:
    here = {}
    for name, value in constants.items():
        kind, _, rest = name.partition(".")
        known, _, where = rest.rpartition(".")
        if kind == "attention_share" and own and where == own:
            here[known] = float(value)
    if algorithm is None and here:
        algorithm = max(here, key=lambda k: here[k])
    if algorithm in here:
        return here[algorithm], f"{algorithm} measured on {own}"
    share, _ = _share(constants, "attention_share", "")
    return share, "generic"


def training_error() -> tuple[float, float]:
    """How far measured updates lie from predicted ones of models that no constant saw.

    Returns
    -------
    low, high : float [1]
        10 % and 90 % quantiles of measured over predicted.
    """
    low, high = shipped()["fit"]["held_out_model"]
    return float(low), float(high)


@lru_cache(maxsize=1)
def shipped() -> dict[str, Any]:
    """Content of `data/training.toml`: constants, standard errors, residuals, fits without each model."""
    return tomllib.loads(files("batchsim").joinpath("data/training.toml").read_text(encoding="utf-8"))
