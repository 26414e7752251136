r"""The decode roofline against measured serving: time per output token on GPUs and models that no constant saw.

Four splits of the same cleaned rows (`system.serving.clean`), each scored by constants fitted on other rows:

    held-out GPU                its kernel tables are used, none of its serving rows: the overall figure
    datasheet alone             neither; efficiencies are the mean of other GPUs' tables, the same chip in another
                                package left out
    datasheet, no sibling       as before, without every GPU of its generation
    held-out model              every GPU's tables, no row of the model

The peer, a table-driven estimator with ten GPUs' kernels, is compared on the rows it predicts, joined on the measured
value too. SGLang and TensorRT-LLM have constants of their own and are reported apart. Intervals are the 10 % and 90 %
quantiles of measured over predicted when the fitted rows are split once more in the same way: a GPU or a model of them
left out in turn. With two or three groups that is a rough estimate, and coverage says so.

Two decode points of another source (H20, SGLang) are predicted by constants that saw no H20; their peer is that
source's own tool.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchsim.errors import InputError
from batchsim.specs.gpus import find_gpu
from batchsim.specs.huggingface import quantised
from batchsim.specs.models import find_model
from batchsim.system.roofline import step_time
from batchsim.system.roofline.deployment import deploy
from batchsim.system.roofline.efficiency import Overhead, overhead
from batchsim.system.serving import SAME_CHIP, SIBLINGS, Predictor, fit_overhead, kernels_of
from batchsim.system.serving_rows import ENGINES, PEER_NAME, ServingRow, clean, read_rows, read_sample
from batchsim.validate.data import data_folder

Array = NDArray[np.float64]
LEVEL = (0.1, 0.9)
HELD_OUT, DATASHEET = "held-out GPU", "datasheet alone"
NO_SIBLING, MODEL = "datasheet, no sibling", "held-out model"
ELSEWHERE = "other sources"
DECODE_POINTS = "decode/e2e_h20_h800.csv"
POINTS: dict[str, dict[str, int]] = {
    "Qwen3-30B-A3B": {"batch": 100, "expert_parallel": 4},
    "Qwen3-8B": {"batch": 64, "expert_parallel": 1},
}
"""Set-ups that the table of decode points states in words: SGLang on H20, 4,096 tokens in and 2,048 out."""


@dataclass(frozen=True)
class Scored:
    """Rows of a split with what constants fitted elsewhere predict."""

    split: str
    rows: list[ServingRow]
    predicted: Array
    low: Array
    high: Array

    @property
    def measured(self) -> Array:
        """Times per output token [s]."""
        return np.array([row.measured for row in self.rows])

    @property
    def peer(self) -> Array:
        """The peer's predictions [s], NaN where it has none."""
        return np.array([np.nan if row.peer is None else row.peer for row in self.rows])


def validate_serving(
    data: Path | None = None, *, progress: Callable[[str], object] = lambda stage: None
) -> dict[str, Any]:
    """Score the decode roofline on serving rows.

    Parameters
    ----------
    data : Path or None
        Folder of measured data, with `decode/` in it; else BATCHSIM_DATA, the folder beside a checkout, or the
        sixteenth of the rows that ships, scored by shipped constants that left each GPU out.
    progress : callable
        Takes the name of each stage as it begins.

    Returns
    -------
    dict
        `name`, `overall`, `slices`, `rows`, `skipped` as in the JSON of every validation. Errors are fractions;
        `overall` is the held-out GPU split on rows that the peer predicts.

    Raises
    ------
    InputError
        If a named folder has no serving table.
    """
    folder = data_folder(data)
    if folder is None:
        return _from_sample()
    counts, splits = {}, []
    for engine in ENGINES:
        progress(f"{engine}: reading rows")
        raw = read_rows(folder, engine)
        rows = clean(raw)
        counts[engine] = {"clear": len(raw), "clean": len(rows)}
        splits += _splits(engine, rows, progress)
    points, skipped = decode_points(folder)
    answer = _answer(splits, counts=counts, skipped=skipped)
    answer["rows"] += points
    answer["slices"] += [_point_slice(row) for row in points]
    return answer


def _splits(engine: str, rows: list[ServingRow], progress: Callable[[str], object]) -> list[Scored]:
    ways = (HELD_OUT, DATASHEET, NO_SIBLING, MODEL) if engine == "vllm" else (HELD_OUT,)
    found = []
    for way in ways:
        field = "model" if way == MODEL else "gpu"
        for value in sorted({getattr(row, field) for row in rows}):
            progress(f"{engine}: {way} {value}")
            train = [row for row in rows if getattr(row, field) != value]
            test = [row for row in rows if getattr(row, field) == value]
            if train:
                found.append(score(way, train, test, engine=engine))
    return found


def without(way: str, gpu: str) -> tuple[str, ...]:
    """GPUs whose kernel tables a split must not use when it scores one."""
    if way == DATASHEET:
        return SAME_CHIP.get(gpu, (gpu,))
    return SIBLINGS.get(gpu, (gpu,)) if way == NO_SIBLING else ()


def score(way: str, train: Sequence[ServingRow], test: Sequence[ServingRow], *, engine: str) -> Scored:
    """Fit constants to some rows and predict others.

    Parameters
    ----------
    way : str
        Name of the split.
    train, test : sequence of ServingRow
        Disjoint.
    engine : str

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
    constants = fit_overhead(Predictor(train), engine=engine)
    return _score(way, list(test), constants, _limits(way, train, engine=engine))


def _limits(way: str, train: Sequence[ServingRow], *, engine: str) -> tuple[float, float]:
    """Quantiles of measured over predicted within the fitted rows, each group left out in turn; NaN with one group."""
    field = "model" if way == MODEL else "gpu"
    ratios = []
    for value in sorted({getattr(row, field) for row in train}):
        others = [row for row in train if getattr(row, field) != value]
        left = [row for row in train if getattr(row, field) == value]
        if others:
            found = _score(way, left, fit_overhead(Predictor(others), engine=engine), (np.nan, np.nan))
            ratios.append(found.measured / found.predicted)
    if not ratios:
        return np.nan, np.nan
    low, high = np.quantile(np.concatenate(ratios), LEVEL)
    return float(low), float(high)


def _score(way: str, test: list[ServingRow], constants: Overhead, limits: tuple[float, float]) -> Scored:
    predicted = np.empty(len(test))
    for gpu in sorted({row.gpu for row in test}):
        at = np.array([i for i, row in enumerate(test) if row.gpu == gpu])
        predicted[at] = Predictor([test[i] for i in at], kernels_of(None, without(way, gpu)))(constants)
    return Scored(way, test, predicted, limits[0] * predicted, limits[1] * predicted)


def decode_points(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Decode throughput on H20 from another source, by constants that saw no H20.

    Parameters
    ----------
    folder : Path

    Returns
    -------
    rows, skipped : list of dict, list of str
        Times per token of one GPU [s]; the peer is InferSim's own figure.
    """
    path = folder / DECODE_POINTS
    if not path.is_file():
        return [], [f"{ELSEWHERE}: {DECODE_POINTS} is absent"]
    rows, skipped = [], []
    with path.open(encoding="utf-8", newline="") as file:
        for cells in csv.DictReader(file):
            how = POINTS.get(cells["model"])
            if how is None:
                skipped.append(f"{ELSEWHERE}: {cells['model']} on {cells['gpu']} overlaps two batches, not modelled")
                continue
            deployment = deploy(
                quantised(find_model(cells["model"]), cells["precision"]),
                find_gpu(cells["gpu"]),
                expert_parallel=how["expert_parallel"],
                engine="sglang",
            )
            predicted = float(step_time(deployment, batch=how["batch"], context=5120.0).sum()) / how["batch"]
            measured = 1 / float(cells["decode_tgs_measured"])
            rows.append(
                {
                    "claim": f"{ELSEWHERE}: {cells['model']} {cells['precision']} on {cells['gpu']}, {cells['setup']}",
                    "predicted": predicted,
                    "interval": None,
                    "measured": measured,
                    "error": predicted / measured - 1,
                    "covered": None,
                    "peer": 1 / float(cells["decode_tgs_infersim_readme"]),
                }
            )
    return rows, skipped


def _point_slice(row: dict[str, Any]) -> dict[str, Any]:
    error, peer = abs(row["error"]), abs(row["peer"] / row["measured"] - 1)
    return {
        "split": ELSEWHERE,
        "engine": "sglang",
        "of": row["claim"].removeprefix(f"{ELSEWHERE}: ").split(",")[0],
        "n": 1,
        "median_ape": error,
        "mape": error,
        "bias": row["error"],
        "covered": None,
        "n_with_peer": 1,
        "with_peer_median_ape": error,
        "with_peer_mape": error,
        "peer_median_ape": peer,
        "peer_mape": peer,
    }


def _from_sample() -> dict[str, Any]:
    rows = read_sample()
    splits = []
    for way in (HELD_OUT, DATASHEET, NO_SIBLING):
        for gpu in sorted({row.gpu for row in rows}):
            test = [row for row in rows if row.gpu == gpu]
            splits.append(_score(way, test, overhead("vllm", without=gpu), (np.nan, np.nan)))
    skipped = [
        f"{MODEL}: needs all rows to fit again; give --data",
        "sglang, trtllm: their rows do not ship; give --data",
        f"intervals: need the rows that were fitted; the {len(rows)} rows that ship are every sixteenth",
    ]
    return _answer(splits, counts={"vllm": {"shipped": len(rows)}}, skipped=skipped)


def errors(scored: Iterable[Scored]) -> dict[str, Any]:
    """Error figures of some splits' rows: ours on all of them, ours and the peer's on those it predicts.

    Returns
    -------
    dict
        n, median_ape, mape, bias, covered; and with the peer n_with_peer, median_ape_with_peer, mape_with_peer,
        peer_median_ape, peer_mape. Fractions; null where nothing is to be said.
    """
    parts = list(scored)
    predicted, measured, peer, low, high = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("predicted", "measured", "peer", "low", "high")
    )
    error, both = predicted / measured - 1, np.isfinite(peer)
    known = np.isfinite(low)
    answer: dict[str, Any] = {
        "n": int(error.size),
        "median_ape": float(np.median(np.abs(error))),
        "mape": float(np.mean(np.abs(error))),
        "bias": float(np.mean(error)),
        "covered": float(np.mean((measured >= low) & (measured <= high))) if known.all() else None,
        "n_with_peer": int(both.sum()),
    }
    ours = np.abs(error[both])
    theirs = np.abs(peer[both] / measured[both] - 1)
    for name, values in (("", theirs), ("own_", ours)):
        key = "peer_" if not name else "with_peer_"
        answer[f"{key}median_ape"] = float(np.median(values)) if values.size else None
        answer[f"{key}mape"] = float(np.mean(values)) if values.size else None
    return answer


def _answer(splits: list[Scored], *, counts: dict[str, Any], skipped: list[str]) -> dict[str, Any]:
    main = [s for s in splits if s.split == HELD_OUT and s.rows[0].engine == "vllm"]
    every = errors(main)
    overall = {
        "n": every["n_with_peer"],
        "median_ape": every["with_peer_median_ape"],
        "mape": every["with_peer_mape"],
        "bias": float(np.mean(np.concatenate([(s.predicted / s.measured - 1)[np.isfinite(s.peer)] for s in main]))),
        "peer_median_ape": every["peer_median_ape"],
        "peer_mape": every["peer_mape"],
        "all_rows": every,
        "counts": counts,
        "peer": PEER_NAME,
    }
    return {
        "name": "serving",
        "overall": overall,
        "slices": _slices(splits),
        "rows": [row for s in splits for row in _rows(s)],
        "skipped": skipped,
    }


def _slices(splits: list[Scored]) -> list[dict[str, Any]]:
    """Whole splits, then GPU by model by precision within the held-out GPU split."""
    found = []
    for engine in ENGINES:
        for way in (HELD_OUT, DATASHEET, NO_SIBLING, MODEL):
            parts = [s for s in splits if s.split == way and s.rows[0].engine == engine]
            if not parts:
                continue
            found.append({"split": way, "engine": engine, "of": "all"} | errors(parts))
            for part in parts:
                first = part.rows[0]
                of = first.model if way == MODEL else first.gpu
                found.append({"split": way, "engine": engine, "of": of} | errors([part]))
    for part in [s for s in splits if s.split == HELD_OUT]:
        for key in sorted({(row.model, row.precision) for row in part.rows}):
            at = np.array([(row.model, row.precision) == key for row in part.rows])
            some = Scored(
                part.split,
                [row for row, keep in zip(part.rows, at, strict=True) if keep],
                part.predicted[at],
                part.low[at],
                part.high[at],
            )
            first = some.rows[0]
            of = f"{first.gpu} {first.model} {first.precision}".strip()
            found.append({"split": f"{HELD_OUT} x model", "engine": first.engine, "of": of} | errors([some]))
    return found


def _rows(scored: Scored) -> list[dict[str, Any]]:
    found = []
    for i, row in enumerate(scored.rows):
        limits = [float(scored.low[i]), float(scored.high[i])] if np.isfinite(scored.low[i]) else None
        found.append(
            {
                "claim": (
                    f"{scored.split}: {row.engine} {row.model} {row.precision} on {row.tensor_parallel} x {row.gpu}, "
                    f"EP {row.expert_parallel}, {row.prompt_tokens:g} in, {row.output_tokens:g} out, "
                    f"{row.concurrency:g} in flight"
                ),
                "predicted": float(scored.predicted[i]),
                "interval": limits,
                "measured": row.measured,
                "error": float(scored.predicted[i] / row.measured - 1),
                "covered": None if limits is None else bool(limits[0] <= row.measured <= limits[1]),
                "peer": row.peer,
            }
        )
    return found
