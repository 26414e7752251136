r"""Phase laws fitted to published step-time tables, asked for the rows that were left out.

Someone who has a few rows of a framework's step times wants another row. Three laws answer, each fitted anew without
the row that it is asked for:

    phase   t = w exp(kappa + effects)     w is the phase's work as the package's stage models see it, from what the row
            states of model, GPUs and lengths; kappa and the effects of model, backend (or mode, or policy) and of the
            two together come from the other rows
    step    t = (1 + o) (t_gen + t_train + ...)     its phases as just predicted, none of them seen; o from other rows
    join    the same from the row's own printed phases: how phases make a step, and nothing else. An asynchronous row
            prints the wait for generation that is left, so that its phases add up as well

Effects have a common normal prior. How wide it is against the scatter, one number of `RATIOS`, is chosen among the
other rows by leaving each of them out in turn, and their misses there give the 80 % interval: the asked row has no part
in either. The peer is kappa alone, the mean factor of the other rows.

    NeMo-RL 959     8 rows: generation, training, log-probabilities, refit and step. Every setting was printed twice, so
                    a left-out row's rerun stays in; "settings left out" takes both away
    NeMo-RL v0.6    18 whole steps, w the stages of `rl_steps` without their factor
    verl 7B         three sizes of a cluster, synchronous and not. The table prints no lengths: w is 1/GPUs
    RLinf           its own row and verl's: one row left gives the other

The overall figure pools phases and steps of all four; joins, which see their row's phases, stand apart.

References
----------
.. [1] NVIDIA-NeMo/RL issue 959 and its performance summary of v0.6; verl-project/verl @ 1dda039b,
   docs/advance/fully_async.md; RLinf; NovaSky-AI/SkyRL @ a9564572 (Apache-2.0 all).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from batchsim.errors import InputError
from batchsim.specs.counts import weight_bytes
from batchsim.specs.gpus import find_gpu
from batchsim.specs.models import find_model
from batchsim.system.pipeline.frameworks import framework_sync_seconds
from batchsim.system.pipeline.specified import generation_table
from batchsim.system.training import make_trainer
from batchsim.system.training.update import forward_seconds, update_seconds
from batchsim.validate import rl_steps
from batchsim.validate.data import data_folder
from batchsim.validate.measured import Progress, make_row, score, silent
from batchsim.validate.training_elsewhere import nemo_trainer

NEMO = "published/nemo_rl_issue959_step_phases.csv"
VERL = "published/verl_fully_async_tables_long.csv"
RLINF = "published/rlinf_vs_verl_1.5b_8xh100.csv"
SKYRL = "published/skyrl_docs_tables.csv"
LEVEL = 0.8
RATIOS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Variance of a row's scatter over that of an effect, to choose from."""
GOAL = 0.15
"""Largest median error of left-out rows."""
RESPONSES, UPDATES, PROMPT, LONGEST, GROUP = 2048, 4, 150.0, 4096, 32
"""NeMo-RL 959: 64 prompts x 32 responses, four updates, from the project's configurations of that time."""
PHASES = {"generation": "generation_s", "training": "policy_train_s", "logprobs": "logprob_s", "refit": "refit_s"}
SEVEN = {
    "colocate sync | 32": ("sync", 32),
    "fully_async_policy | 16:16": ("async", 16),
    "colocate sync | 64": ("sync", 64),
    "fully_async_policy | 32:32": ("async", 32),
    "colocate sync | 128": ("sync", 128),
    "fully_async_policy | 64:64": ("async", 64),
}
"""Rows of verl's 7B table: mode, and the GPUs that train."""
SEVEN_TABLE = "Asynchronous Training on 7B Model"
VERL_PARTS = {"generation": "gen", "logprobs": "old_log_prob", "training": "update_actor"}
SKIPPED = [
    "prime-rl: one phase, whose law `batchsim validate training` scores with each row left out",
    "SkyRL, training and forward times: models differ and the lengths of their responses are not printed",
    "verl 30B, 16 GPUs, and the other settings with one row of a kind: nothing is left when it is left out",
    "verl, asynchronous rows: they print the wait for generation that training leaves, no generation time",
    "verl_v1_trainer_modes: hours of whole trainings, no phases",
]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A printed time.

    Parameters
    ----------
    table, part : str
        Rows of one table and part share their law.
    row : str
        The table's row.
    effects : tuple of str
        What the row has that others may share; of these the last is its whole setting.
    work : float
        Proportional to the time that the row's specifications ask for.
    seconds : float [s]
    """

    table: str
    part: str
    row: str
    effects: tuple[str, ...]
    work: float
    seconds: float

    @property
    def setting(self) -> str:
        """All that a rerun would share."""
        return self.effects[-1]


@dataclass(frozen=True, kw_only=True)
class Joined:
    """A printed step and the sum of its printed phases [s]."""

    row: str
    phases: float
    seconds: float


def validate_steps(data: Path | None = None, *, progress: Progress = silent) -> dict[str, Any]:
    """Score phase laws on rows of published step-time tables that they did not see.

    Parameters
    ----------
    data : Path or None
        Folder of measured data, with `published/` in it; else BATCHSIM_DATA or the folder beside a checkout.
    progress : callable
        Takes the name of each stage as it begins.

    Returns
    -------
    dict
        name, overall (see `measured.score`, with goal, and settings_left_out: the same where reruns of NeMo-RL 959 are
        left out with their rows), slices by table and part, rows [s], skipped.

    Raises
    ------
    InputError
        For a named folder that does not exist.
    """
    folder = data_folder(data)
    skipped = list(SKIPPED)
    if folder is None:
        return _empty(["no folder of measured data; give --data"])
    absent = [name for name in (NEMO, rl_steps.TABLE, VERL, RLINF, SKYRL) if not (folder / name).is_file()]
    skipped += [f"{name} is absent; give --data" for name in absent]
    have = {name: folder / name for name in (NEMO, rl_steps.TABLE, VERL, RLINF, SKYRL) if name not in absent}
    if not have:
        return _empty(skipped)
    progress("stages from specifications")
    timed: list[Timed] = []
    joined: list[Joined] = []
    if NEMO in have:
        found, sums = _nemo(_table(have[NEMO]))
        timed, joined = timed + found, joined + sums
    if rl_steps.TABLE in have:
        steps, more = rl_steps.nemo_steps(_table(have[rl_steps.TABLE]))
        timed += [_whole(step) for step in steps]
        skipped += more
    if VERL in have:
        found, sums = _verl(_table(have[VERL]))
        timed, joined = timed + found, joined + sums
    if RLINF in have:
        found, sums = _rlinf(_table(have[RLINF]))
        timed, joined = timed + found, joined + sums
    if SKYRL in have:
        joined += _skyrl(_table(have[SKYRL]))
    progress("rows left out")
    rows = left_out(timed, by="row")
    rows += _steps_of(rows, timed, joined)
    apart = [
        r | {"of": f"{r['of']}{APART}", "claim": f"{r['claim']}{APART}"}
        for r in left_out(timed, by="setting")
        if r["of"] in REPEATED
    ]
    repeated = [r for r in rows if r["table"] == "NeMo-RL 959"]
    joins = _join_rows(joined)
    parts = {name: [r for r in rows + apart + joins if r["of"] == name] for name in _names(rows + apart + joins)}
    return {
        "name": "steps",
        "overall": score(rows, level=LEVEL)
        | {
            "peer": "the mean factor of the other rows",
            "goal": GOAL,
            "settings_left_out": score([r for r in rows if r not in repeated] + apart, level=LEVEL),
        },
        "slices": [{"slice": name} | score(part, level=LEVEL) for name, part in parts.items()],
        "rows": rows + apart + joins,
        "skipped": skipped,
    }


def _empty(skipped: list[str]) -> dict[str, Any]:
    return {"name": "steps", "overall": {}, "slices": [], "rows": [], "skipped": skipped}


def _names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(str(r["of"]) for r in rows))


APART = ", settings left out"
REPEATED = tuple(f"NeMo-RL 959, {part}" for part in PHASES)
"""Parts whose settings were printed twice."""


# -- the law ------------------------------------------------------------------------------------------


def predict_row(others: Sequence[Timed], asked: Timed, *, by: str = "row") -> tuple[float, float, float, float]:
    """A row's time from other rows of its table and part.

    Parameters
    ----------
    others : sequence of Timed
        At least one.
    asked : Timed
        Its seconds are not read.
    by : {'row', 'setting'}
        What is left out when the effects' width is chosen and their misses are seen: as the asked row itself was.

    Returns
    -------
    low, predicted, high, peer : float [s]
        80 % interval; infinite where fewer than three rows leave no scatter to see. The peer is the mean factor.

    Raises
    ------
    InputError
        Without another row.
    """
    if not others:
        raise InputError(f"no other row of {asked.table}, {asked.part}", remedy="a law needs a row that it may see")
    y = np.log([r.seconds / r.work for r in others])
    alike = np.array([[_shared(a, b) for b in others] for a in others])
    peer = asked.work * math.exp(float(y.mean()))
    unit = [r.row if by == "row" else r.setting for r in others]
    misses = {ratio: _misses(y, alike, ratio, unit) for ratio in RATIOS}
    # One or two rows leave nothing to choose by: effects then count as much as scatter.
    best = min(RATIOS, key=lambda r: float(np.sum(misses[r] ** 2))) if len(set(unit)) > 2 else 1.0
    weight = _weights(alike, np.array([_shared(asked, r) for r in others]), best)
    said = asked.work * math.exp(float(weight @ y))
    if len(set(unit)) < 3:
        return 0.0, said, math.inf, peer
    half = float(stdtrit(len(set(unit)) - 1, (1 + LEVEL) / 2)) * math.sqrt(float(np.mean(misses[best] ** 2)))
    return said * math.exp(-half), said, said * math.exp(half), peer


def _shared(a: Timed, b: Timed) -> float:
    """Covariance of two rows' effects, in units of one effect's variance."""
    return float(sum(x == y for x, y in zip(a.effects, b.effects, strict=True)))


def _weights(alike: Array, asked: Array, ratio: float) -> Array:
    """Weights of other rows in the best linear unbiased prediction, their mean unknown; they sum to 1."""
    n = len(asked)
    system = np.ones((n + 1, n + 1))
    system[:n, :n], system[n, n] = alike + ratio * np.eye(n), 0.0
    return np.asarray(np.linalg.solve(system, np.append(asked, 1.0))[:n])


def _misses(y: Array, alike: Array, ratio: float, unit: Sequence[str]) -> Array:
    """Predicted minus measured logarithm of every row from those of other units."""
    found = np.zeros(len(y))
    for i, own in enumerate(unit):
        rest = np.array([other != own for other in unit])
        if rest.any():
            found[i] = _weights(alike[np.ix_(rest, rest)], alike[rest, i], ratio) @ y[rest] - y[i]
    return found


def left_out(timed: Sequence[Timed], *, by: str) -> list[dict[str, Any]]:
    """Every time predicted from the other rows of its table and part.

    Parameters
    ----------
    timed : sequence of Timed
    by : {'row', 'setting'}
        What is left out: the row, or all that share its setting.

    Returns
    -------
    list of dict
        Rows of a validation, with `of` and `row`. Where nothing else is left there is none.
    """
    rows = []
    for asked in timed:
        others = [
            r
            for r in timed
            if (r.table, r.part) == (asked.table, asked.part)
            and (r.row != asked.row if by == "row" else r.setting != asked.setting)
        ]
        if not others:
            continue
        low, said, high, peer = predict_row(others, asked, by=by)
        rows.append(
            make_row(
                f"{asked.table}, {asked.part} (s): {asked.row}",
                predicted=said,
                interval=(low, high) if math.isfinite(high) else None,
                measured=asked.seconds,
                peer=peer,
                of=f"{asked.table}, {asked.part}",
                row=asked.row,
                table=asked.table,
            )
        )
    return rows


def _steps_of(rows: Sequence[Mapping[str, Any]], timed: Sequence[Timed], joined: Sequence[Joined]) -> list[Any]:
    """Steps joined from the predicted phases of rows that were left out."""
    found = []
    for step in joined:
        table, _, name = step.row.partition(": ")
        parts = [r for r in rows if r["table"] == table and r["row"] == name]
        if len(parts) < len([t for t in timed if t.table == table and t.row == name]) or not parts:
            continue
        if table == "verl 7B" and len(parts) < len(VERL_PARTS):
            continue
        rest = _overhead([j for j in joined if j.row != step.row])
        limits = [r["interval"] for r in parts]
        said = (1 + rest) * sum(r["predicted"] for r in parts)
        # Misses of phases of one row are taken as independent.
        half = math.inf
        if None not in limits:
            half = (1 + rest) * math.sqrt(sum(((v[1] - v[0]) / 2) ** 2 for v in limits))
        found.append(
            make_row(
                f"{table}, step (s): {name}",
                predicted=said,
                interval=(max(said - half, 0.0), said + half) if math.isfinite(half) else None,
                measured=step.seconds,
                peer=(1 + rest) * sum(r["peer"] for r in parts),
                of=f"{table}, step",
                row=name,
                table=table,
            )
        )
    return found


def _overhead(joined: Sequence[Joined]) -> float:
    """What steps take beyond their phases [1], median."""
    return float(np.median([j.seconds / j.phases for j in joined])) - 1


def _join_rows(joined: Sequence[Joined]) -> list[dict[str, Any]]:
    """Steps from their own printed phases, what is beyond them from other rows."""
    found = []
    for step in joined:
        others = [j.seconds / j.phases for j in joined if j.row != step.row]
        if not others:
            continue
        low, middle, high = np.quantile(others, [(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2])
        found.append(
            make_row(
                f"join (s): {step.row}",
                predicted=float(middle) * step.phases,
                interval=(float(low) * step.phases, float(high) * step.phases),
                measured=step.seconds,
                peer=step.phases,
                of="steps from their own printed phases",
                row=step.row,
                table="join",
            )
        )
    return found


# -- tables -------------------------------------------------------------------------------------------


def _table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _nemo(rows: Sequence[Mapping[str, str]]) -> tuple[list[Timed], list[Joined]]:
    timed, joined = [], []
    for row in rows:
        name = f"{row['model'].removesuffix('-Instruct')} {row['backend']}, {row['who']}"
        setting = f"{row['model']} {row['backend']}"
        work = _nemo_work(row)
        timed += [
            Timed(
                table="NeMo-RL 959",
                part=part,
                row=name,
                effects=(row["model"], row["backend"], setting),
                work=work[part],
                seconds=float(row[column]),
            )
            for part, column in PHASES.items()
        ]
        phases = sum(float(row[column]) for column in PHASES.values())
        joined.append(Joined(row=f"NeMo-RL 959: {name}", phases=phases, seconds=float(row["step_s"])))
    return timed, joined


def _nemo_work(row: Mapping[str, str]) -> dict[str, float]:
    """Stage times from specifications [s]; a division of the GPUs that is not stated is taken as plain sharding."""
    model, gpu = find_model(row["model"].removesuffix("-Instruct")), find_gpu("H100")
    gpus, mean = int(row["nodes"]) * int(row["gpus_per_node"]), float(row["avg_gen_tokens"])
    generation = rl_steps.generation_of(
        model,
        gpu,
        tensor=4 if "70B" in row["model"] else 1,
        mean=mean,
        longest=LONGEST - round(PROMPT),
        group=GROUP,
        memory_share=0.6,
    )
    table = generation_table(generation, rollout_batch=[RESPONSES], gpus=gpus, mode="sync", draws=2, seed=rl_steps.SEED)
    trainer = nemo_trainer(model.name, row["backend"], gpus) or make_trainer(
        model, gpu, gpus=gpus, network_bandwidth=rl_steps.NETWORK, micro_batch_tokens=LONGEST
    )
    update = UPDATES * float(update_seconds(trainer, responses=RESPONSES / UPDATES, length=PROMPT + mean))
    return {
        "generation": float(table["gen_time"].values[0]),
        "training": update,
        "logprobs": 2 * float(forward_seconds(trainer, responses=RESPONSES, length=PROMPT + mean)),
        "refit": framework_sync_seconds(weight_bytes(model), training_gpus=gpus),
    }


def _whole(step: rl_steps.Step) -> Timed:
    """A step of NeMo-RL's performance table."""
    together = "sync" if step.policy.startswith("On policy") else "async"
    return Timed(
        table="NeMo-RL v0.6",
        part="step",
        row=step.name,
        effects=(step.model, together, step.gpu, f"{step.model} {together} {step.gpu}"),
        work=step.stages,
        seconds=step.measured,
    )


def _verl(rows: Sequence[Mapping[str, str]]) -> tuple[list[Timed], list[Joined]]:
    printed: dict[tuple[str, str], dict[str, float]] = {}
    for line in rows:
        column = line["column"].lower().replace(" ", "_")
        if column in ("step", "ref", *VERL_PARTS.values()) and line["value_raw"]:
            printed.setdefault((line["table"], line["row_key"]), {})[column] = float(line["value_raw"])
    timed = []
    for name, (mode, gpus) in SEVEN.items():
        own = printed.get((SEVEN_TABLE, name), {})
        timed += [
            Timed(
                table="verl 7B",
                part=part,
                row=name,
                effects=(mode, f"{mode} {gpus}"),
                work=1 / gpus,
                seconds=own[column],
            )
            for part, column in VERL_PARTS.items()
            if column in own and (mode == "sync" or part == "training")
        ]
    joined, seen = [], set()
    for (table, name), own in printed.items():
        if not {"step", "gen", "update_actor"} <= set(own):
            continue
        phases = sum(value for column, value in own.items() if column != "step")
        # Ablations print rows of other tables again.
        if (own["step"], phases) in seen:
            continue
        seen.add((own["step"], phases))
        short = "verl 7B" if table == SEVEN_TABLE else f"verl, {table}"
        joined.append(Joined(row=f"{short}: {name}", phases=phases, seconds=own["step"]))
    return timed, joined


def _rlinf(rows: Sequence[Mapping[str, str]]) -> tuple[list[Timed], list[Joined]]:
    value = {line["metric"]: line for line in rows}
    parts = {"generation": "generation_time", "logprobs": "prev_logprob_time", "training": "training_time"}
    timed, joined = [], []
    for who, name in (("rlinf", "RLinf"), ("verl_0.5.0", "verl 0.5.0")):
        own = {metric: float(line[who]) for metric, line in value.items()}
        timed += [
            Timed(
                table="RLinf 1.5B",
                part=part,
                row=name,
                effects=(name,),
                work=own["response_length"],
                seconds=own[column],
            )
            for part, column in parts.items()
        ]
        joined.append(
            Joined(
                row=f"RLinf 1.5B: {name}",
                phases=sum(own[column] for column in parts.values()),
                seconds=own["step_time"],
            )
        )
    return timed, joined


def _skyrl(rows: Sequence[Mapping[str, str]]) -> list[Joined]:
    own: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["source"].startswith("spec_decode"):
            own.setdefault(row["setup"], {})[row["metric"]] = float(row["value"])
    return [
        Joined(row=f"SkyRL: {setup}", phases=t["rollout_s"] + t["policy_train_s"], seconds=t["step_s"])
        for setup, t in own.items()
    ]
