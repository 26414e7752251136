r"""Whole RL steps that other frameworks print, predicted from specifications: nothing is fitted to them.

    NeMo-RL    its v0.6 performance table: GRPO of three mixtures of experts on H100 and GB200, step times and rates.
               Batch, parallelism and mean length are the table's, the rest its public recipes'
               (`data/measured/rl_step_settings.csv`, a source per row). Megatron with its distributed optimizer, bf16
               gradients, sequences packed to the maximum length.
    verl       its fully asynchronous tables: Qwen2.5-Math-7B and Qwen3-30B-A3B on H20, by ratios (`rl_ratios`).
    RLinf      its table of 1.5B on 8 H100, RLinf's own row and verl's.

What none of them prints is assumed, for all alike: prompts of 130 tokens, lognormal lengths of spread .7 cut at the
maximum, 1,024 sequences at a time in each engine, 50 GB/s of network per GPU.

A step of NeMo-RL: old and reference log-probabilities, the updates, weights to the engine at the rate of
`pipeline.frameworks`; synchronous rows do all of it in turn on the same GPUs, the others on the recipe's split. What
steps take beyond their stages is one factor, for each model the geometric mean over the rows of the others; "stages
alone" leaves it out.

Inversions within a model are pairs of rows whose rates per GPU the prediction orders the other way round.

References
----------
.. [1] NVIDIA-NeMo/RL commit 7ea279ab, docs/about/performance-summary.md, and examples/configs/recipes at the commits
   that the settings name; verl-project/verl commit 1dda039b, docs/advance/fully_async.md and
   verl/experimental/fully_async_policy/shell; RLinf/RLinf (Apache-2.0 all).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau

from batchsim.calibrate.specified import lognormal
from batchsim.errors import InputError
from batchsim.specs.architecture import Architecture
from batchsim.specs.counts import weight_bytes
from batchsim.specs.gpu import GPU
from batchsim.specs.gpus import find_gpu
from batchsim.specs.huggingface import quantised
from batchsim.specs.lengths import Lengths
from batchsim.specs.models import find_model
from batchsim.system.memory import cache_room
from batchsim.system.pipeline.frameworks import (
    FRAMEWORK_FACTOR,
    FRAMEWORK_FACTOR_SPREAD,
    FRAMEWORK_SPREAD,
    framework_sync_seconds,
)
from batchsim.system.pipeline.specified import Generation, compose, generation_table
from batchsim.system.roofline import deploy
from batchsim.system.roofline.efficiency import model_error
from batchsim.system.training import make_trainer, train_time, training_error
from batchsim.validate.data import data_folder
from batchsim.validate.training import errors

Array = NDArray[np.float64]
TABLE = "published/nemo_rl_v0.6_performance.csv"
SETTINGS = "data/measured/rl_step_settings.csv"
SAMPLE = "data/measured/rl_step_sample.csv"
PROMPT, SPREAD, SEQUENCES, NETWORK = 130.0, 0.7, 1024, 50e9
DRAWS, SEED = 2000, 0
NAMES = {"DeepSeek V3": "DeepSeek-V3", "Qwen3-235B": "Qwen3-235B-A22B", "Qwen3-30B3A": "Qwen3-30B-A3B"}
GOALS = {"median_ape": 0.25, "kendall_tau": 0.8, "ratio": 0.25}
MAIN = "steps from specifications"
CLOSE = 1.1
"""Rates within this factor count as alike when an inversion is explained."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A printed step and what specifications say.

    Parameters
    ----------
    model, policy, gpu : str
    gpus : int [GPU]
    predicted, measured : float [s]
    stages : float [s]
        What is predicted without the framework's factor.
    low, high : float [s]
        80 % interval from the errors of both stages' models and of the factor.
    tokens : float [tokens]
        Of the step.
    measured_rate : float [tokens/s/GPU]
    gen_time, train_time, sync_time : float [s]
    limit : str
        What binds the predicted step.
    samples : ndarray [s]
        Draws of the stages.
    """

    model: str
    policy: str
    gpu: str
    gpus: int
    predicted: float
    stages: float
    measured: float
    low: float
    high: float
    tokens: float
    measured_rate: float
    gen_time: float
    train_time: float
    sync_time: float
    limit: str
    samples: Array

    @property
    def rate(self) -> float:
        """Predicted tokens/s/GPU."""
        return self.tokens / self.predicted / self.gpus

    @property
    def name(self) -> str:
        """The row in words."""
        return f"{self.model}, {self.policy}, {self.gpus} x {self.gpu}"

    def as_row(self) -> dict[str, Any]:
        """In the form of every validation's rows, with the stages [s]."""
        return {
            "claim": f"NeMo-RL step: {self.name}",
            "predicted": self.predicted,
            "interval": [self.low, self.high],
            "measured": self.measured,
            "error": self.predicted / self.measured - 1,
            "covered": bool(self.low <= self.measured <= self.high),
            "peer": None,
            "stages": self.stages,
            "gen_time": self.gen_time,
            "train_time": self.train_time,
            "sync_time": self.sync_time,
            "binding_limit": self.limit,
        }


def validate_rl_steps(
    data: Path | None = None, *, progress: Callable[[str], object] = lambda stage: None
) -> dict[str, Any]:
    """Score step times from specifications on tables of other frameworks.

    Parameters
    ----------
    data : Path or None
        Folder of measured data, with `published/` in it; else BATCHSIM_DATA, the folder beside a checkout, or every
        third row of NeMo-RL's table, which ships.
    progress : callable
        Takes the name of each stage as it begins.

    Returns
    -------
    dict
        `name`, `overall` (n, median_ape, mape, max_ape, bias, covered, kendall_tau of rates per GPU, and ratios: per
        kind its n, how many are within a quarter, median_ape, max_ape), `slices`, `rows`, `inversions` (pairs with a
        reason), `notes` and `skipped`.

    Raises
    ------
    InputError
        If a named folder has no table of NeMo-RL.
    """
    folder = data_folder(data)
    skipped: list[str] = []
    ratios: list[dict[str, Any]] = []
    notes: list[str] = []
    progress("NeMo-RL")
    if folder is None:
        table = _shipped(SAMPLE)
        skipped.append(f"NeMo-RL: the {len(table)} rows that ship are every third of its table; give --data for all")
        skipped.append("verl, RLinf: their tables do not ship; give --data")
    else:
        table = _table(folder, TABLE)
    steps, more = nemo_steps(table)
    skipped += more
    if folder is not None:
        steps = without_own_model(steps)
    else:
        skipped.append("the factor of frameworks without the model: needs all rows; the shipped one saw these")
    if folder is not None:
        from batchsim.validate.rl_ratios import read_ratios

        progress("verl and RLinf")
        ratios, notes, more = read_ratios(folder)
        skipped += more
    return _answer(steps, ratios, notes, skipped)


def _shipped(name: str) -> list[dict[str, str]]:
    text = files("batchsim").joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _table(folder: Path, name: str) -> list[dict[str, str]]:
    path = folder / name
    if not path.is_file():
        raise InputError("no table of RL steps", where=str(path), remedy="give the folder that holds published/")
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def nemo_steps(table: Sequence[Mapping[str, str]]) -> tuple[list[Step], list[str]]:
    """Predicted steps of rows of NeMo-RL's table.

    Parameters
    ----------
    table : sequence of mapping
        Its rows.

    Returns
    -------
    steps : list of Step
    skipped : list of str
        Rows without a setting, with the reason.
    """
    settings = {_key(row): row for row in _shipped(SETTINGS)}
    steps, skipped = [], []
    for row in table:
        how = settings.get(_key(row))
        if how is None:
            skipped.append(
                f"NeMo-RL {row['model']}, {row['section']}, {row['policy']}: several turns with tools, whose number, "
                "times and appended tokens are not printed"
                if row["section"].endswith("SWE") or row["algorithm"] == "SWE"
                else f"NeMo-RL {row['model']}, {row['policy']}: no recipe is known"
            )
            continue
        steps.append(_nemo_step(row, how))
    return steps, skipped


def _key(row: Mapping[str, str]) -> tuple[str, str, str, str]:
    return row["section"], row["model"], row["policy"], row["n_gpus"]


def _numbers(text: str) -> list[int]:
    """Parallel sizes of a bracketed list; 'n/a' counts as 1."""
    return [int(x) if x.strip().isdigit() else 1 for x in text.strip("[]").split(",")]


def _nemo_step(row: Mapping[str, str], how: Mapping[str, str]) -> Step:
    gpu = find_gpu("GB200" if "GB200" in row["section"] else "H100")
    stored = find_model(NAMES[row["model"]])
    served = quantised(stored, how["precision"])
    trained = stored if how["precision"] == "fp8" else served
    gpus, generating = int(row["n_gpus"]), int(how["generation_gpus"])
    together = generating == gpus
    training = gpus if together else gpus - generating
    tensor, context, expert, pipeline = _numbers(row["train_TP_CP_EP_PP_VPP"])[:4]
    responses, length = int(how["prompts"]) * int(how["group_size"]), float(row["avg_seq_len"])
    longest = int(row["max_seq_len"])
    generation = generation_of(
        served,
        gpu,
        tensor=_numbers(row["gen_TP_PP"])[0],
        mean=length - PROMPT,
        longest=longest - int(PROMPT),
        group=int(how["group_size"]),
        memory_share=float(how["memory_share"]),
        staleness=1 if together else int(row["policy"].split("-")[0]),
    )
    trainer = make_trainer(
        trained,
        gpu,
        gpus=training,
        micro_batch_tokens=longest,
        tensor_parallel=tensor,
        context_parallel=context,
        expert_parallel=min(expert, training),
        pipeline_parallel=pipeline,
        # use_distributed_optimizer, use_custom_fsdp false, grad_reduce_in_fp32 false in the base recipe.
        sharding="optimizer",
        weight_bytes=2.0,
        gradient_bytes=2.0,
        optimizer_bytes=12.0,
        recompute=how["recompute"],
        network_bandwidth=NETWORK,
    )
    trained_seconds = train_time(
        trainer,
        rollout_batch=[responses],
        length=length,
        updates_per_rollout=responses // int(row["train_gbs_responses"]),
        reference=True,
    )
    mode = "sync" if together else "async"
    ds = composed(
        generation,
        responses=responses,
        generating=generating,
        mode=mode,
        train_seconds=float(trained_seconds["train_time"].values[0]),
        sync_seconds=framework_sync_seconds(weight_bytes(served), training_gpus=training),
    )
    return Step(
        model=row["model"],
        policy=f"{row['policy']}{', fp8' if how['precision'] == 'fp8' else ''}",
        gpu=gpu.name,
        gpus=gpus,
        measured=float(row["step_time_s"]),
        tokens=responses * length,
        measured_rate=float(row["tokens_per_s_per_gpu"]),
        **ds,
    )


def without_own_model(steps: Sequence[Step]) -> list[Step]:
    """Steps with the factor that the other models' rows give.

    Parameters
    ----------
    steps : sequence of Step

    Returns
    -------
    list of Step
    """
    found = []
    for step in steps:
        factor, spread = factor_of([s for s in steps if s.model != step.model])
        predicted, low, high = _spread_of(step.samples, factor, spread)
        found.append(replace(step, predicted=predicted, low=low, high=high))
    return found


def factor_of(steps: Sequence[Step]) -> tuple[float, float]:
    """Geometric mean of measured over predicted stages, and its geometric standard deviation.

    Parameters
    ----------
    steps : sequence of Step

    Returns
    -------
    factor, spread : float [1]
    """
    logs = np.log([s.measured / s.stages for s in steps])
    return float(np.exp(logs.mean())), float(np.exp(logs.std(ddof=1)))


def generation_of(
    served: Architecture,
    gpu: GPU,
    *,
    tensor: int,
    mean: float,
    longest: int,
    group: int,
    memory_share: float,
    staleness: int = 1,
    spread: float = SPREAD,
) -> Generation:
    """Generation of a row, with what is assumed for all alike.

    Parameters
    ----------
    served : Architecture
    gpu : GPU
    tensor : int [GPU]
    mean : float [tokens]
        Of responses as cut.
    longest : int [tokens]
        Of a response.
    group : int
    memory_share : float [1]
    staleness : int [1]
    spread : float [1]

    Returns
    -------
    Generation
    """
    return Generation(
        deployment=deploy(served, gpu, tensor_parallel=tensor, network_bandwidth=NETWORK),
        room=cache_room(served, memory=gpu.usable_memory or 0.0, tensor_parallel=tensor, memory_share=memory_share),
        lengths=Lengths(prompt_mean=PROMPT, response_mean=mean, response_spread=spread, max_tokens=longest),
        group_size=group,
        max_num_seqs=SEQUENCES,
        max_staleness=staleness,
    )


def composed(
    generation: Generation,
    *,
    responses: int,
    generating: int,
    mode: str,
    train_seconds: float,
    sync_seconds: float,
) -> dict[str, Any]:
    """A step composed of its stages, times the framework's factor, with an 80 % interval from their errors.

    Parameters
    ----------
    generation : Generation
    responses : int
        Of the step.
    generating : int [GPU]
        That generate.
    mode : {'sync', 'async'}
    train_seconds, sync_seconds : float [s]

    Returns
    -------
    dict
        predicted, low, high, stages, gen_time, train_time, sync_time [s], limit, and samples of the stages.
    """
    table = generation_table(generation, rollout_batch=[responses], gpus=generating, mode=mode, draws=2, seed=SEED)
    ds = compose(table, train_time=train_seconds, overhead_time=sync_seconds)
    gen = float(ds["gen_time"].values[0])
    samples = _samples(generation, gen, train_seconds, sync_seconds, mode)
    predicted, low, high = _spread_of(samples, FRAMEWORK_FACTOR, FRAMEWORK_FACTOR_SPREAD)
    return {
        "predicted": predicted,
        "stages": float(ds["step_time"].values[0]),
        "low": low,
        "high": high,
        "gen_time": gen,
        "train_time": train_seconds,
        "sync_time": sync_seconds,
        "limit": str(ds["binding_limit"].values[0]),
        "samples": samples,
    }


def _samples(g: Generation, gen: float, train: float, sync: float, mode: str) -> Array:
    """Draws of a step's stages [s], the first of them without errors."""
    rng = np.random.default_rng(SEED)
    tables = g.deployment is not None and g.deployment.efficiency.source == "kernel tables"
    generated = gen * lognormal(model_error("vllm", tables=tables), DRAWS, rng)
    trained = train * lognormal(training_error(), DRAWS, rng)
    copied = sync * np.exp(math.log(FRAMEWORK_SPREAD) * rng.standard_normal(DRAWS))
    stages = np.maximum(generated, trained) if mode == "async" else generated + trained
    exact = max(gen, train) if mode == "async" else gen + train
    return np.concatenate([[exact + sync], stages + copied])


def _spread_of(samples: Array, factor: float, spread: float) -> tuple[float, float, float]:
    """Prediction and 80 % interval of a step whose stages take so long, times a factor of some spread."""
    z = np.random.default_rng(SEED + 1).standard_normal(samples.size - 1)
    low, high = np.quantile(samples[1:] * factor * np.exp(math.log(spread) * z), (0.1, 0.9))
    return float(samples[0] * factor), float(low), float(high)


def find_inversions(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """Pairs of rows of one model whose rates per GPU are predicted in the other order, with the reason.

    Parameters
    ----------
    steps : sequence of Step

    Returns
    -------
    list of dict
        `faster`, `slower` as measured, `measured` and `predicted` ratios of their rates [1], `reason`.
    """
    found = []
    for model in dict.fromkeys(s.model for s in steps):
        for a, b in combinations([s for s in steps if s.model == model], 2):
            one, two = (a, b) if a.measured_rate >= b.measured_rate else (b, a)
            if one.rate >= two.rate:
                continue
            found.append(
                {
                    "faster": one.name,
                    "slower": two.name,
                    "measured": one.measured_rate / two.measured_rate,
                    "predicted": one.rate / two.rate,
                    "reason": _reason(one, two),
                }
            )
    return found


def _reason(fast: Step, slow: Step) -> str:
    if fast.gpu == slow.gpu and fast.gpus == slow.gpus and fast.policy == "On policy":
        return "in the measurements: asynchronous is slower than synchronous on as many GPUs"
    if fast.gpu == slow.gpu and fast.policy == slow.policy and fast.measured < slow.measured and fast.gpus < slow.gpus:
        return "in the measurements: more GPUs take longer per step"
    if max(fast.measured_rate / slow.measured_rate, slow.rate / fast.rate) < CLOSE:
        return f"measured and predicted rates are within {100 * (CLOSE - 1):.0f} % of one another"
    if fast.gpu != slow.gpu:
        return f"the prediction: {slow.gpu} is predicted too fast against {fast.gpu}"
    return "the prediction"


def _answer(steps: list[Step], ratios: list[dict[str, Any]], notes: list[str], skipped: list[str]) -> dict[str, Any]:
    slices = [{"split": MAIN, "engine": "NeMo-RL", "of": "all"} | _errors(steps)]
    slices.append({"split": MAIN, "engine": "NeMo-RL", "of": "stages alone"} | _stage_errors(steps))
    for key in ("model", "gpu", "policy"):
        for name in dict.fromkeys(str(getattr(s, key)) for s in steps):
            some = [s for s in steps if str(getattr(s, key)) == name]
            slices.append({"split": f"steps by {key}", "engine": "NeMo-RL", "of": name} | _errors(some))
    for split in dict.fromkeys(str(r["split"]) for r in ratios):
        own = [r for r in ratios if r["split"] == split]
        slices.append({"split": split, "engine": own[0]["engine"], "of": "all"} | _plain(own))
    tau = float(kendalltau([s.measured_rate for s in steps], [s.rate for s in steps]).statistic)
    overall = slices[0] | {"kendall_tau": tau, "goals": GOALS, "ratios": _within(ratios)}
    return {
        "name": "rl-steps",
        "overall": overall,
        "slices": slices,
        "rows": [s.as_row() for s in steps]
        + [{k: v for k, v in r.items() if k not in ("split", "engine", "ratio")} for r in ratios],
        "inversions": find_inversions(steps),
        "notes": notes,
        "skipped": skipped,
    }


def _within(ratios: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of every kind of ratios: how many are within the goal."""
    found = []
    for split in dict.fromkeys(str(r["split"]) for r in ratios if r["ratio"]):
        error = np.abs([float(r["error"]) for r in ratios if r["split"] == split])
        found.append(
            {
                "split": split,
                "n": int(error.size),
                "within": int(np.sum(error <= GOALS["ratio"])),
                "median_ape": float(np.median(error)),
                "max_ape": float(np.max(error)),
            }
        )
    return found


def _errors(steps: Sequence[Step]) -> dict[str, Any]:
    columns = np.array([[s.predicted, s.measured, s.low, s.high, math.nan] for s in steps])
    return errors(*columns.T)


def _stage_errors(steps: Sequence[Step]) -> dict[str, Any]:
    none = np.full(len(steps), math.nan)
    return errors(np.array([s.stages for s in steps]), np.array([s.measured for s in steps]), none, none, none)


def _plain(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    none = np.full(len(rows), math.nan)
    return errors(
        np.array([float(r["predicted"]) for r in rows]),
        np.array([float(r["measured"]) for r in rows]),
        none,
        none,
        none,
    )
