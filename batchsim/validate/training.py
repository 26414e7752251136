r"""The training law against measured updates: times of models and of rows that no constant saw.

    left-out model    constants fitted without every row of the model: the overall figure
    weight chosen     the same with the priors' weight, too, chosen without the model: the one whose constants predict
                      the fitted models best when each of those is left out. The shipped weight was seen beside all rows
    left-out row      constants fitted without the row alone
    elsewhere         nothing fitted: training and log-probability phases that other frameworks print, predicted from
                      specifications and their public configurations, losses included
    memory            peak memory of the same rows, from specifications alone
    written           copies of a model that the benchmark's clock saw: the rate is the median of these very rows

The peer is one model FLOPs utilisation for all rows, the geometric mean over the fitted ones: what a calculation with
"40 % MFU" does, with the best number for these rows. Intervals of the first split are the 10 % and 90 % quantiles of
measured over predicted when the fitted rows are split once more by model; of the second when every fifth of them is
left out in turn.

The form of the law was chosen with all rows in sight; its constants never see the rows that they are scored on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchsim.errors import InputError
from batchsim.system.fit_training import PRIOR_WEIGHT, QUANTILES, UpdatePredictor, fit_constants
from batchsim.system.training.efficiency import shipped
from batchsim.system.training.trainer import training_memory
from batchsim.system.training.update import update_seconds
from batchsim.system.training.work import training_flops
from batchsim.system.training_rows import (
    TrainingRow,
    measured_rows,
    read_training,
    read_training_sample,
    row_trainer,
    start_trainer,
)
from batchsim.validate.data import data_folder
from batchsim.validate.training_elsewhere import Phase, read_phases, read_synchronisations

Array = NDArray[np.float64]
MODEL, ROW, CHOSEN = "left-out model", "left-out row", "left-out model, weight chosen without it"
WEIGHTS = (0.03, 0.05, 0.1, 0.2, 0.3)
"""Of the priors, to choose from."""
BENCHMARK = "prime-rl"
PEER_NAME = "one MFU for all rows"
FOLDS = 5
"""Parts that the fitted rows are split into for the interval of a left-out row."""


@dataclass(frozen=True)
class Scored:
    """Rows of a split with what constants fitted elsewhere predict."""

    split: str
    rows: list[TrainingRow]
    predicted: Array
    low: Array
    high: Array
    peer: Array

    @property
    def measured(self) -> Array:
        """Times of updates [s]."""
        return np.array([row.measured for row in self.rows])


def validate_training(
    data: Path | None = None, *, progress: Callable[[str], object] = lambda stage: None
) -> dict[str, Any]:
    """Score the training law on measured updates.

    Parameters
    ----------
    data : Path or None
        Folder of measured data, with `published/` in it; else BATCHSIM_DATA, the folder beside a checkout, or the
        fourth of the rows that ships, scored by shipped constants that left each model out.
    progress : callable
        Takes the name of each stage as it begins.

    Returns
    -------
    dict
        `name`, `overall`, `slices`, `rows`, `skipped` as in the JSON of every validation. Errors are fractions;
        `overall` is the split by models, with the split by rows under 'left_out_row'.

    Raises
    ------
    InputError
        If a named folder has no training table.
    """
    folder = data_folder(data)
    if folder is None:
        return _from_sample()
    every = read_training(folder)
    rows = measured_rows(every)
    models, chosen = [], []
    for model in sorted({row.model for row in rows}):
        progress(f"{MODEL} {model}")
        train, test = [r for r in rows if r.model != model], [r for r in rows if r.model == model]
        models.append(score(MODEL, train, test))
        chosen.append(score(CHOSEN, train, test, prior_weight=chosen_weight(train)))
    singles = []
    for i, row in enumerate(rows):
        progress(f"{ROW} {i + 1} of {len(rows)}")
        singles.append(score(ROW, rows[:i] + rows[i + 1 :], [row]))
    phases, skipped = read_phases(folder)
    copies, more = read_synchronisations(folder, every)
    skipped += more + [f"{row.name}: the run failed" for row in every if not row.measured]
    return _answer(models, chosen, singles, rows, phases + copies, skipped=skipped, counts=[len(every), len(rows)])


def chosen_weight(train: Sequence[TrainingRow]) -> float:
    """Weight of the priors [1] with the least mean log error on models of the fitted rows, each left out in turn."""
    groups = [row.model for row in train]
    return min(WEIGHTS, key=lambda w: float(np.mean(np.abs(np.log(_left_out(train, groups, w))))))


def score(
    split: str, train: Sequence[TrainingRow], test: Sequence[TrainingRow], *, prior_weight: float = PRIOR_WEIGHT
) -> Scored:
    """Fit constants to some rows and predict others.

    Parameters
    ----------
    split : str
        Its name.
    train, test : sequence of TrainingRow
        Disjoint.
    prior_weight : float [1]

    Returns
    -------
    Scored

    Raises
    ------
    InputError
        If a row is in both.
    """
    if {id(row) for row in train} & {id(row) for row in test} or set(train) & set(test):
        raise InputError("a row is in both the fitted and the scored part")
    constants, _ = fit_constants(UpdatePredictor(train), prior_weight=prior_weight)
    predicted = UpdatePredictor(test)(constants)
    groups = [i % FOLDS if split == ROW else row.model for i, row in enumerate(train)]
    ratios = _left_out(train, groups, prior_weight)
    low, high = np.quantile(ratios, QUANTILES) if ratios.size else (np.nan, np.nan)
    return Scored(split, list(test), predicted, low * predicted, high * predicted, _flat(train, test))


def _left_out(train: Sequence[TrainingRow], groups: Sequence[Any], prior_weight: float) -> Array:
    """Measured over predicted within the fitted rows, each group of them left out in turn."""
    ratios = []
    for group in dict.fromkeys(groups):
        others = [r for r, g in zip(train, groups, strict=True) if g != group]
        if others:
            left = UpdatePredictor([r for r, g in zip(train, groups, strict=True) if g == group])
            constants, _ = fit_constants(UpdatePredictor(others), prior_weight=prior_weight)
            ratios.append(left.measured / left(constants))
    return np.concatenate(ratios) if ratios else np.empty(0)


def ideal_seconds(row: TrainingRow) -> float:
    """Model FLOPs of a row over the peak of its GPUs [s], as MFU counts them."""
    t = start_trainer(row)
    per_token = float(training_flops(t.architecture, length=row.length, lora_rank=row.lora_rank, loss="plain"))
    return per_token * row.responses * row.length / (row.gpus * t.peak)


def _flat(train: Sequence[TrainingRow], test: Sequence[TrainingRow]) -> Array:
    """What one MFU predicts, the geometric mean over the fitted rows."""
    share = np.exp(np.mean([np.log(ideal_seconds(row) / row.measured) for row in train]))
    return np.array([ideal_seconds(row) / share for row in test])


def _from_sample() -> dict[str, Any]:
    rows = read_training_sample()
    low, high = shipped()["fit"]["held_out_model"]
    models = []
    for model in sorted({row.model for row in rows}):
        test = [row for row in rows if row.model == model]
        predicted = np.array(
            [float(update_seconds(row_trainer(r, without=model), responses=r.responses, length=r.length)) for r in test]
        )
        models.append(Scored(MODEL, test, predicted, low * predicted, high * predicted, np.full(len(test), np.nan)))
    skipped = [
        f"{ROW}: needs all rows to fit again; give --data",
        "elsewhere, synchronisation: their tables do not ship; give --data",
        f"the peer: needs the rows that were fitted; the {len(rows)} rows that ship are every fourth",
    ]
    return _answer(models, [], [], rows, [], skipped=skipped, counts=[len(rows), len(rows)])


def errors(predicted: Array, measured: Array, low: Array, high: Array, peer: Array) -> dict[str, Any]:
    """Error figures of some rows.

    Returns
    -------
    dict
        n, median_ape, mape, max_ape, bias, covered; n_with_peer, and medians and means with the peer. Fractions; null
        where nothing is to be said.
    """
    error, both, known = predicted / measured - 1, np.isfinite(peer), np.isfinite(low)
    theirs, ours = np.abs(peer[both] / measured[both] - 1), np.abs(error[both])
    inside = (measured >= low) & (measured <= high)
    answer: dict[str, Any] = {
        "n": int(error.size),
        "median_ape": float(np.median(np.abs(error))),
        "mape": float(np.mean(np.abs(error))),
        "max_ape": float(np.max(np.abs(error))),
        "bias": float(np.mean(error)),
        "covered": float(np.mean(inside[known])) if known.any() else None,
        "n_with_peer": int(both.sum()),
    }
    for key, values in (("with_peer_", ours), ("peer_", theirs)):
        answer[f"{key}median_ape"] = float(np.median(values)) if values.size else None
        answer[f"{key}mape"] = float(np.mean(values)) if values.size else None
    return answer


def _joined(parts: Iterable[Scored], keep: Callable[[TrainingRow], bool] = lambda row: True) -> dict[str, Any] | None:
    arrays: list[list[float]] = []
    for part in parts:
        columns = zip(part.rows, part.predicted, part.measured, part.low, part.high, part.peer, strict=True)
        arrays += [[float(v) for v in values] for row, *values in columns if keep(row)]
    return errors(*np.array(arrays).T) if arrays else None


GROUPS: dict[str, Callable[[TrainingRow], str]] = {
    "": lambda row: row.model,
    " by GPU": lambda row: row.gpu,
    " by variant": lambda row: row.variant,
    " by length": lambda row: f"{row.length} tokens",
    " by attention": lambda row: row.attention,
}


def _answer(
    models: list[Scored],
    chosen: list[Scored],
    singles: list[Scored],
    rows: list[TrainingRow],
    elsewhere: list[Phase],
    *,
    skipped: list[str],
    counts: list[int],
) -> dict[str, Any]:
    main, free, alone = _joined(models), _joined(chosen), _joined(singles)
    assert main is not None
    slices = []
    for split, parts in ((MODEL, models), (CHOSEN, chosen), (ROW, singles)):
        for tail, key in GROUPS.items() if split != CHOSEN else [("", GROUPS[""])]:
            names = ["all"] * (not tail) + sorted({key(row) for row in rows})
            for name in names:
                found = _joined(parts, lambda row, n=name, k=key: n == "all" or k(row) == n)  # type: ignore[misc]
                if found:
                    slices.append({"split": f"{split}{tail}", "engine": BENCHMARK, "of": name} | found)
    slices += _phase_slices(elsewhere) + _memory_slices(rows)
    return {
        "name": "training",
        "overall": main
        | {
            "weight_chosen": free and free | {"peer": PEER_NAME},
            "left_out_row": alone and alone | {"peer": PEER_NAME},
            "counts": {"table": counts[0], "measured": counts[1]},
            "peer": PEER_NAME,
        },
        "slices": slices,
        "rows": [r for part in models + chosen + singles for r in _rows(part)] + [p.as_row() for p in elsewhere],
        "skipped": skipped,
    }


def _phase_slices(phases: Sequence[Phase]) -> list[dict[str, Any]]:
    found = []
    for split in dict.fromkeys(p.split for p in phases):
        own = [p for p in phases if p.split == split]
        for name in ("all", *dict.fromkeys(p.of for p in own)):
            some = [p for p in own if name in ("all", p.of)]
            none = np.full(len(some), np.nan)
            predicted, measured = np.array([p.predicted for p in some]), np.array([p.measured for p in some])
            found.append(
                {"split": split, "engine": own[0].engine, "of": name} | errors(predicted, measured, none, none, none)
            )
    return found


def _memory_slices(rows: Sequence[TrainingRow]) -> list[dict[str, Any]]:
    """Peak memory from specifications: never fitted."""
    found = []
    predicted = np.array([sum(training_memory(start_trainer(row)).values()) for row in rows])
    measured = np.array([row.peak_memory for row in rows])
    for name in ("all", *sorted({row.model for row in rows})):
        keep = np.array([name in ("all", row.model) for row in rows])
        none = np.full(int(keep.sum()), np.nan)
        own = errors(predicted[keep], measured[keep], none, none, none)
        found.append({"split": "peak memory", "engine": BENCHMARK, "of": name} | own)
    return found


def _rows(scored: Scored) -> list[dict[str, Any]]:
    found = []
    for i, row in enumerate(scored.rows):
        limits = [float(scored.low[i]), float(scored.high[i])] if np.isfinite(scored.low[i]) else None
        found.append(
            {
                "claim": f"{scored.split}: {row.name}",
                "predicted": float(scored.predicted[i]),
                "interval": limits,
                "measured": row.measured,
                "error": float(scored.predicted[i] / row.measured - 1),
                "covered": None if limits is None else bool(limits[0] <= row.measured <= limits[1]),
                "peer": float(scored.peer[i]) if np.isfinite(scored.peer[i]) else None,
            }
        )
    return found
