"""Published sweeps and our own, read in place: N* over the batch, with the errors that are known.

Which rows of a table are used, and why the others are not, is decided here and said in `Loaded.notes`.

References
----------
.. [1] RachitBansal/verl @ a42b8d75, experiments/critical_batch_size (GRPO on OLMo2-1B, fixed rate), Apache-2.0.
.. [2] "IsoCompute", arXiv:2603.12151, figure 4 (traced), CC BY 4.0.
.. [3] hlzhang109/critical-batch-size @ c5b509d8, plots (pretraining, tuned), MIT; Zhang et al. 2024, arXiv:2410.21676.
.. [4] mlcommons/logging @ 7bbf7926, mlperf_logging/rcp_checker (reference convergence points, tuned), Apache-2.0.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

import numpy as np

from batchsim.learning.curve import crossing
from batchsim.validate.forms import Sweep

Row = dict[str, str]

OLMO2 = "published/grpo_olmo2_1b_gsm8k_steps_to_target.csv"
ISOCOMPUTE = "published/isocompute_lr_scaling_digitised.csv"
ZHANG = "published/zhang2024_cbs_steps_to_target.csv"
RCP = "published/mlperf_rcp_samples_to_converge.csv"

OLMO2_GRID = 25
"""Rollout steps between evaluations."""
ISOCOMPUTE_TARGETS = (0.46, 0.48, 0.50, 0.52, 0.54, 0.56, 0.58)
ISOCOMPUTE_REFERENCE = 1e-6
TINY_TARGETS = (0.38, 0.45, 0.52)
ONE_RUN = 0.1
"""Spread of N* of a single reinforcement-learning run, where no repeat shows it."""
CENSORED = {"qwen35_397b_grpo": "all 18 runs stop at their first evaluation, so every N* is an upper bound"}


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """Sweeps of one data set.

    Parameters
    ----------
    sweeps : list of Sweep
    skipped : list of str
        What was left out, and why.
    """

    sweeps: list[Sweep] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def read_rows(path: Path) -> list[Row]:
    """Rows of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _sweep(
    group: str, name: str, rule: str, points: Iterable[tuple[float, float, float]], rate: list[float] | None = None
) -> Sweep:
    batch, responses, error = np.array(list(points), dtype=np.float64).reshape(-1, 3).T
    return Sweep(
        group=group,
        name=name,
        rule=rule,
        train_batch=batch,
        responses=responses,
        error=error,
        rate=None if rate is None else np.array(rate),
    )


def _grid_error(low: float, high: float) -> float:
    """Standard deviation of log N* if N* is uniform between two evaluations."""
    return math.log(high / low) / math.sqrt(12)


def olmo2(folder: Path) -> Loaded:
    """GRPO at a fixed rate: one update per rollout batch, N* in the middle of its evaluation interval."""
    loaded = Loaded()
    targets: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    early: dict[str, int] = defaultdict(int)
    for row in read_rows(folder / OLMO2):
        if float(row["optimizer_updates_per_rollout_batch"]) != 1:
            continue
        batch, steps = float(row["batch_responses"]), float(row["steps_to_target_rounded25"])
        target = row["target_gsm8k_acc"]
        if steps <= OLMO2_GRID:
            early[target] += 1
            continue
        error = math.hypot(_grid_error(steps - OLMO2_GRID, steps), ONE_RUN)
        targets[target].append((batch, batch * (steps - OLMO2_GRID / 2), error))
    for target in sorted({*targets, *early}):
        points = sorted(targets[target])
        if len(points) < 3:
            loaded.skipped.append(
                f"olmo2_grpo at {target}: {early[target]} of {early[target] + len(points)} points pass at the first "
                "evaluation (upper bounds)"
            )
            continue
        loaded.sweeps.append(_sweep("olmo2_grpo", target, "fixed", points))
    loaded.skipped.append("olmo2_grpo: rows with several updates per rollout batch (staleness is another question)")
    return loaded


def zhang2024(folder: Path) -> Loaded:
    """Pretraining with tuned rates: steps as measured, not as edited by hand before the authors' fit."""
    return zhang2024_column(folder, "steps_to_target_wandb")


def zhang2024_column(folder: Path, column: str) -> Loaded:
    """As `zhang2024`, from a column of the table."""
    models: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for row in read_rows(folder / ZHANG):
        batch = float(row["batch_size_sequences_512tok"])
        models[row["model"]].append((batch, batch * float(row[column]), 0.0))
    return Loaded(
        sweeps=[_sweep(f"zhang2024 {model}", "", "tuned", sorted(points)) for model, points in models.items()]
    )


def mlperf_rcp(folder: Path) -> Loaded:
    """Reference convergence points with tuned rates: the newest ruleset of every batch, the mean over seeds."""
    loaded = Loaded()
    newest: dict[str, dict[float, tuple[tuple[int, ...], Row]]] = defaultdict(dict)
    for row in read_rows(folder / RCP):
        ruleset = tuple(int(part) for part in row["first_ruleset"].rsplit("_", 1)[1].split("."))
        # Before round 2.0 'ssd' was another network on another data set, at ten times the epochs.
        if row["benchmark"] == "ssd" and ruleset < (2,):
            continue
        known, batch = newest[row["benchmark"]], float(row["batch_size"])
        if batch not in known or ruleset >= known[batch][0]:
            known[batch] = (ruleset, row)
    for workload, known in sorted(newest.items()):
        points = [
            (b, float(r["mean"]), float(r["std_ddof1"]) / float(r["mean"]) / math.sqrt(float(r["n_seeds"])))
            for b, (_, r) in sorted(known.items())
        ]
        if workload in CENSORED:
            loaded.skipped.append(f"mlperf_rcp {workload}: {CENSORED[workload]}")
        elif len(points) < 3:
            loaded.skipped.append(f"mlperf_rcp {workload}: {len(points)} batches; leaving one out needs three")
        else:
            loaded.sweeps.append(_sweep(f"mlperf_rcp {workload}", "", "tuned", points))
    loaded.skipped.append("mlperf_rcp ssd before ruleset 2.0: another network on another data set")
    return loaded


Curve = list[tuple[float, float]]


def crossing_point(curve: Curve, target: float) -> tuple[float, float, float] | None:
    """Where a curve first reaches a target: limits, and the point on the straight line between them.

    Parameters
    ----------
    curve : list of (float, float)
        Position and score, positions increasing.
    target : float [1]

    Returns
    -------
    tuple of float or None
        (low, point, high); None if the target is never reached or is reached from the start.
    """
    position, score = np.array(curve, dtype=np.float64).T
    found = crossing(position, score, target=target)
    if found is None or found.index_low is None or found.index_high is None:
        return None
    i, j = found.index_low, found.index_high
    share = (target - score[i]) / (score[j] - score[i])
    return found.low, float(found.low + share * (found.high - found.low)), found.high


def isocompute(folder: Path) -> Loaded:
    """GRPO at two batches and three rules: arms at the reference rate first, then the larger batch per rule.

    Each sweep, one per target, holds B = 1024 at 1e-6, its probes at half and twice that rate, and B = 8192 under
    the fixed, the sqrt and, where the target is reached, the linear rule, in this order. Its rule is 'transfer'.
    """
    loaded = Loaded()
    curves: dict[tuple[float, float], Curve] = defaultdict(list)
    for row in read_rows(folder / ISOCOMPUTE):
        batch = float(row["batch"].split()[0].removeprefix("B="))
        curves[batch, float(row["lr"])].append(
            (float(row["step"]), float(row["validation_reward_smoothed_by_authors"]))
        )
    arms = [(1024.0, 1.0), (1024.0, 0.5), (1024.0, 2.0), (8192.0, 1.0), (8192.0, 2.83), (8192.0, 8.0)]
    for target in ISOCOMPUTE_TARGETS:
        points, rates = [], []
        for batch, rate in arms:
            found = crossing_point(sorted(curves[batch, _nearest(rate, batch, curves)]), target)
            if found is not None:
                points.append((batch, found[1] * batch, ONE_RUN))
                rates.append(rate)
            else:
                loaded.skipped.append(
                    f"isocompute at {target:g}: B = {batch:g} at {rate:g} times the rate never gets there"
                )
        loaded.sweeps.append(_sweep("isocompute", f"{target:.2f}", "transfer", points, rates))
    loaded.skipped.append(
        "isocompute in the leave-largest-out table: two batches leave no shape to fit; its rules are predicted from "
        "each other instead, and its batch grew by the group size (128 x 8 to 128 x 64)"
    )
    return loaded


def _nearest(rate: float, batch: float, curves: dict[tuple[float, float], Curve]) -> float:
    wanted = rate * ISOCOMPUTE_REFERENCE
    return min((r for b, r in curves if b == batch), key=lambda r: abs(math.log(r / wanted)))


def tiny_curves(folder: Path, kind: str) -> dict[str, Curve]:
    """Score over responses of every run of our own sweeps, 'tiny_grpo' or 'tiny_ppo'."""
    counted = "responses_kept" if kind == "tiny_grpo" else "responses"
    curves: dict[str, Curve] = defaultdict(list)
    for row in read_rows(folder / kind / "evals.csv"):
        curves[row["run"]].append((float(row[counted]), float(row["score"])))
    return curves


def tiny_runs(folder: Path | None, kind: str) -> list[Row]:
    """Runs with a column per target: N* on the line between evaluations, or the interval's middle as shipped.

    The exact expected score has no evaluation noise, so the line between two evaluations says more than their middle.
    """
    if folder is None or not (folder / kind / "evals.csv").is_file():
        rows = read_rows(Path(str(files("batchsim").joinpath(f"data/measured/{kind}_runs.csv"))))
        for row in rows:
            for target in TINY_TARGETS:
                low, high = (row[f"responses_to_target_{target}_{side}"] for side in ("low", "high"))
                row[f"{target}"] = str((float(low) + float(high)) / 2) if low and high else ""
        return rows
    curves = tiny_curves(folder, kind)
    rows = read_rows(folder / kind / "runs.csv")
    for row in rows:
        for target in TINY_TARGETS:
            found = crossing_point(curves[row["run"]], target)
            row[f"{target}"] = "" if found is None else repr(found[1])
    return rows


def tiny_arm(rows: list[Row], target: float) -> tuple[float, float, int] | None:
    """Mean N* of an arm's runs at a target, the spread of log N* over runs, and how many there are."""
    values = np.array([float(row[f"{target}"]) for row in rows if row[f"{target}"]])
    if not values.size:
        return None
    spread = float(np.std(np.log(values), ddof=1)) if values.size > 1 else math.nan
    return float(values.mean()), spread, values.size


def tiny(folder: Path | None, kind: str) -> Loaded:
    """Our own sweeps of a small transformer: a set per rule, three targets each, means over seeds.

    The error of an arm is the spread pooled over the arms of its rule and target over the root of its runs.
    """
    loaded = Loaded()
    rows = [row for row in tiny_runs(folder, kind) if not row["run"].startswith("pg_")]
    batches: dict[tuple[str, float], list[Row]] = defaultdict(list)
    for row in rows:
        batches[row["lr_rule"], float(row["train_batch"])].append(row)
    smallest = min(b for rule, b in batches if rule == "sqrt")
    for rule in sorted({rule for rule, _ in batches} - {"probe"}):
        arms = {b: r for (own, b), r in batches.items() if own == rule or (own == "sqrt" and b == smallest)}
        for target in TINY_TARGETS:
            found = {b: tiny_arm(r, target) for b, r in sorted(arms.items())}
            known = {b: arm for b, arm in found.items() if arm is not None}
            spreads = [arm[1] for arm in known.values() if math.isfinite(arm[1])]
            pooled = math.sqrt(float(np.mean(np.square(spreads)))) if spreads else ONE_RUN
            points = [(b, mean, pooled / math.sqrt(runs)) for b, (mean, _, runs) in known.items()]
            loaded.sweeps.append(_sweep(kind, f"{target:.2f}", rule, points))
    return loaded


def load(folder: Path | None) -> tuple[list[Sweep], list[str]]:
    """Every sweep that a folder holds, and what was left out.

    Parameters
    ----------
    folder : Path or None
        Laid out as `shared/data`; the package's own small tables stand in for what it lacks.

    Returns
    -------
    sweeps : list of Sweep
    skipped : list of str
    """
    loaded = []
    for path, reader in ((OLMO2, olmo2), (ISOCOMPUTE, isocompute), (ZHANG, zhang2024), (RCP, mlperf_rcp)):
        if folder is not None and (folder / path).is_file():
            loaded.append(reader(folder))
        else:
            place = "no folder of data" if folder is None else f"{folder / path} is absent"
            loaded.append(Loaded(skipped=[f"{Path(path).stem}: {place}; give --data"]))
    loaded += [tiny(folder, "tiny_grpo"), tiny(folder, "tiny_ppo")]
    return [s for one in loaded for s in one.sweeps], [s for one in loaded for s in one.skipped]
