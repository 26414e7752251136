r"""Ratios between steps of verl's fully asynchronous tables, and RLinf's steps, from specifications.

A table that prints no lengths cannot be predicted outright: how long responses are decides every stage. Two numbers per
model are therefore taken from the stages of the table's first, synchronous row: the mean length from its training and
log-probabilities, the spread from its generation. That row's stages then score nothing. What is predicted and scored
are ratios of whole steps: sync to async on as many GPUs, and twice the GPUs in either mode. They are measured twice
over, by the printed mean step and by the wall clock of the first 100 steps.

    7B     512 prompts x 16, 16 updates of 32 prompts, 28 k tokens at most, FSDP2 with sequences over 4 GPUs, TP 4
    30B    512 prompts x 16, 4 updates of 128 prompts, 8 k tokens at most, a reference policy, Megatron, TP 4

Asynchronous rows take the engine's log-probabilities for the old ones. `same_work` shows what no prediction with equal
lengths can meet: GPU-seconds of the updates that the rows print, which are equal for equal work. "Training as printed"
therefore joins the printed stages alone, with generation simulated where a row prints its wait in its place: a check of
how modes join stages, not of a prediction from specifications.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from scipy.optimize import brentq

from batchsim.specs.counts import weight_bytes
from batchsim.specs.gpus import find_gpu
from batchsim.specs.models import find_model
from batchsim.system.pipeline.frameworks import framework_sync_seconds
from batchsim.system.pipeline.specified import Generation, compose, generation_table
from batchsim.system.training import make_trainer, train_time
from batchsim.validate import rl_steps

VERL = "published/verl_fully_async_tables_long.csv"
RLINF = "published/rlinf_vs_verl_1.5b_8xh100.csv"
MEANS, SPREADS = (50.0, 7500.0), (0.1, 2.5)
"""Where the mean [tokens] and the spread of responses are looked for."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Rows of one model in verl's tables.

    Parameters
    ----------
    table, model : str
    rows : tuple of (str, int, int)
        Row names with GPUs that generate and that train; equal and in sum 'all' where both are all of them.
    updates : int
    longest : int [tokens]
        Of a response.
    reference : bool
    memory_share : float [1]
    tensor, sequence_parallel, expert_parallel : int [GPU]
    """

    table: str
    model: str
    rows: tuple[tuple[str, int, int], ...]
    updates: int
    longest: int
    reference: bool
    memory_share: float = 0.8
    tensor: int = 4
    sequence_parallel: int = 4
    expert_parallel: int = 1
    responses: int = 512 * 16
    group: int = 16


SETTINGS = (
    Setting(
        table="Asynchronous Training on 7B Model",
        model="Qwen2.5-Math-7B",
        rows=(
            ("colocate sync | 32", 32, 32),
            ("fully_async_policy | 16:16", 16, 16),
            ("colocate sync | 64", 64, 64),
            ("fully_async_policy | 32:32", 32, 32),
            ("colocate sync | 128", 128, 128),
            ("fully_async_policy | 64:64", 64, 64),
        ),
        updates=16,
        longest=28 * 1024,
        reference=False,
    ),
    Setting(
        table="30B Model Mode Experiment",
        model="Qwen3-30B-A3B",
        rows=(("Colocate Sync | 128", 128, 128), ("Fully Async Policy | 96:32", 96, 32)),
        updates=4,
        longest=8 * 1024,
        reference=True,
        expert_parallel=8,
    ),
)


def read_ratios(folder: Path) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    """Predicted and measured ratios and steps of verl's and RLinf's tables.

    Parameters
    ----------
    folder : Path
        Of measured data.

    Returns
    -------
    rows : list of dict
        In the form of every validation's rows, with `split`, `engine` and `ratio`, whether it is one.
    notes, skipped : list of str
    """
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    skipped: list[str] = []
    if (folder / VERL).is_file():
        printed = _verl_steps(_read(folder / VERL))
        for setting in SETTINGS:
            rows += _ratios(setting, printed, notes)
        skipped.append("verl, other tables: ablations of one setting, or settings without their scripts")
    else:
        skipped.append(f"{VERL}: absent")
    if (folder / RLINF).is_file():
        rows += _rlinf(_read(folder / RLINF))
    else:
        skipped.append(f"{RLINF}: absent")
    return rows, notes, skipped


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _verl_steps(table: Sequence[Mapping[str, str]]) -> dict[tuple[str, str], dict[str, float]]:
    """Printed stage times and the wall clock of 100 steps [s] by table and row."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for line in table:
        column, text = line["column"].lower().replace(" ", "_"), line["value_raw"]
        own = found.setdefault((line["table"], line["row_key"]), {})
        if column in ("step", "gen", "old_log_prob", "ref", "update_actor") and text:
            own[column] = float(text)
        elif column == "total_time_100_step" and line["value_seconds_if_duration"]:
            own["first_100"] = float(line["value_seconds_if_duration"])
    return found


def _is_together(row: str) -> bool:
    return row.lower().startswith("colocate")


def _generation(setting: Setting, mean: float, spread: float) -> Generation:
    return rl_steps.generation_of(
        find_model(setting.model),
        find_gpu("H20"),
        tensor=setting.tensor,
        mean=mean,
        spread=spread,
        longest=setting.longest,
        group=setting.group,
        memory_share=setting.memory_share,
    )


def _train_seconds(setting: Setting, mean: float, gpus: int, together: bool) -> float:
    trainer = make_trainer(
        find_model(setting.model),
        find_gpu("H20"),
        gpus=gpus,
        # Dynamic batches of two maximal sequences per GPU, a sequence spread over sequence_parallel of them.
        micro_batch_tokens=2 * (setting.longest + 2048) * setting.sequence_parallel,
        padded=False,
        context_parallel=setting.sequence_parallel,
        expert_parallel=setting.expert_parallel,
        recompute="full",
        network_bandwidth=rl_steps.NETWORK,
    )
    ds = train_time(
        trainer,
        rollout_batch=[setting.responses],
        length=rl_steps.PROMPT + mean,
        updates_per_rollout=setting.updates,
        old_logprobs=together,
        reference=setting.reference,
    )
    return float(ds["train_time"].values[0])


def calibrated_lengths(setting: Setting, printed: Mapping[str, float]) -> tuple[float, float, float]:
    """Mean and spread of responses with which the first row's stages take as long as printed, or the nearest.

    Parameters
    ----------
    setting : Setting
    printed : mapping
        `gen`, `update_actor`, `old_log_prob` and perhaps `ref` [s].

    Returns
    -------
    mean : float [tokens]
    spread : float [1]
        Within `SPREADS`.
    gen_time : float [s]
        Of both.
    """
    gpus = setting.rows[0][1]
    trained = printed["update_actor"] + printed["old_log_prob"] + printed.get("ref", 0.0)
    mean = nearest_root(lambda m: _train_seconds(setting, m, gpus, True), trained, *MEANS)

    def generated(spread: float) -> float:
        table = generation_table(
            _generation(setting, mean, spread),
            rollout_batch=[setting.responses],
            gpus=gpus,
            draws=2,
            seed=rl_steps.SEED,
        )
        return float(table["gen_time"].values[0])

    spread = nearest_root(generated, printed["gen"], *SPREADS)
    return mean, spread, generated(spread)


def nearest_root(function: Callable[[float], float], value: float, low: float, high: float) -> float:
    """Where an increasing function reaches a value, or the end of the interval that is nearer to it."""
    if function(low) >= value:
        return low
    if function(high) <= value:
        return high
    return float(brentq(lambda x: function(x) - value, low, high, rtol=1e-3))


def _ratios(
    setting: Setting, printed: Mapping[tuple[str, str], Mapping[str, float]], notes: list[str]
) -> list[dict[str, Any]]:
    own = {row: printed[setting.table, row] for row, *_ in setting.rows}
    names = list(own)
    wanted = own[names[0]]["gen"]
    mean, spread, found = calibrated_lengths(setting, own[names[0]])
    said = f"verl {setting.model}: mean {mean:,.0f} tokens, spread {spread:.2g} from the stages of '{names[0]}'"
    if abs(found / wanted - 1) > 0.02:
        said += f", whose generation is predicted at {found:.0f} s at most, {wanted:.0f} measured"
    notes.append(said)
    notes.append(same_work(setting, own))
    predicted = {row: _verl_step(setting, mean, spread, row, gen, train) for row, gen, train in setting.rows}
    pairs = [("sync to async", a, b) for a, b in pairwise(names) if _is_together(a) and not _is_together(b)]
    pairs += [("twice the GPUs", a, b) for a, b in zip(names, names[2:], strict=False)]
    rows = [
        _row(
            "sync to async, training as printed",
            "verl",
            f"{setting.model}: {b} over {a}",
            _joined_seconds(setting, mean, spread, b, own[b]) / _joined_seconds(setting, mean, spread, a, own[a]),
            own[b]["step"] / own[a]["step"],
            ratio=True,
        )
        for kind, a, b in pairs
        if kind == "sync to async"
    ]
    return rows + [
        _row(
            f"{kind}, {how}",
            "verl",
            f"{setting.model}: {b} over {a}",
            predicted[b] / predicted[a],
            own[b][column] / own[a][column],
            ratio=True,
        )
        for how, column in (("printed step", "step"), ("first 100 steps", "first_100"))
        for kind, a, b in pairs
    ]


def _joined_seconds(setting: Setting, mean: float, spread: float, row: str, printed: Mapping[str, float]) -> float:
    """A step of printed stages, the asynchronous rows' generation simulated, since they print their wait alone."""
    trained = printed["update_actor"] + printed.get("old_log_prob", 0.0) + printed.get("ref", 0.0)
    if _is_together(row):
        return printed["gen"] + trained
    generating = next(gen for name, gen, _ in setting.rows if name == row)
    table = generation_table(
        _generation(setting, mean, spread),
        rollout_batch=[setting.responses],
        gpus=generating,
        mode="async",
        draws=2,
        seed=rl_steps.SEED,
    )
    return float(compose(table, train_time=trained)["step_time"].values[0])


def same_work(setting: Setting, printed: Mapping[str, Mapping[str, float]]) -> str:
    """GPU-seconds of the updates that the rows print, in a sentence."""
    work = {row: training * printed[row]["update_actor"] for row, _, training in setting.rows}
    said = ", ".join(f"{row} {seconds:,.0f}" for row, seconds in work.items())
    return (
        f"verl {setting.model}: GPU-seconds of the printed updates, equal for equal work, are {said}: "
        f"a factor {max(work.values()) / min(work.values()):.1f} that equal lengths cannot explain"
    )


def _verl_step(setting: Setting, mean: float, spread: float, row: str, generating: int, training: int) -> float:
    together = _is_together(row)
    ds = rl_steps.composed(
        _generation(setting, mean, spread),
        responses=setting.responses,
        generating=generating,
        mode="sync" if together else "async",
        train_seconds=_train_seconds(setting, mean, training, together),
        sync_seconds=framework_sync_seconds(weight_bytes(find_model(setting.model)), training_gpus=training),
    )
    return float(ds["predicted"])


def _rlinf(table: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Generation and whole steps on 8 GPUs: 512 responses, whose number follows from the printed rate."""
    value = {line["metric"]: line for line in table}
    architecture, gpu = find_model("DeepSeek-R1-Distill-Qwen-1.5B"), find_gpu("H100")
    rows = []
    for who, name in (("rlinf", "RLinf"), ("verl_0.5.0", "verl 0.5.0")):
        printed = {metric: float(line[who]) for metric, line in value.items()}
        mean = printed["response_length"]
        responses = round(8 * printed["gen_throughput"] * printed["generation_time"] / mean / 16) * 16
        generation = rl_steps.generation_of(
            architecture, gpu, tensor=1, mean=mean, longest=28_672, group=16, memory_share=0.8
        )
        trainer = make_trainer(architecture, gpu, gpus=8, micro_batch_tokens=32_768, padded=False, recompute="full")
        trained = train_time(trainer, rollout_batch=[responses], length=mean + rl_steps.PROMPT)
        ds = rl_steps.composed(
            generation,
            responses=responses,
            generating=8,
            mode="sync",
            train_seconds=float(trained["train_time"].values[0]),
            sync_seconds=framework_sync_seconds(weight_bytes(architecture), training_gpus=8),
        )
        split = "steps from specifications, 1.5B on 8 x H100"
        rows.append(_row(split, name, f"{name}: generation", ds["gen_time"], printed["generation_time"]))
        rows.append(_row(split, name, f"{name}: step", ds["predicted"], printed["step_time"]))
    return rows


def _row(
    split: str, engine: str, claim: str, predicted: float, measured: float, *, ratio: bool = False
) -> dict[str, Any]:
    return {
        "split": split,
        "engine": engine,
        "ratio": ratio,
        "claim": f"{split}: {claim}",
        "predicted": predicted,
        "interval": None,
        "measured": measured,
        "error": predicted / measured - 1,
        "covered": None,
        "peer": None,
    }
