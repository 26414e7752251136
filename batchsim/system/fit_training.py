r"""Fit what trainers reach of a datasheet: `python -m batchsim.system.fit_training --data FOLDER`.

All constants of `training.efficiency.START` at once, on measured updates: soft-L1 loss of log errors at a scale of .1,
and a log-normal prior on each, of which a factor e from the median costs as much as one row 10 % off. Shares stay at
most 1. A constant's standard error (of its log) is read from the curvature at the optimum, scaled by the rows' residual
variance, priors included: where it is near that of the prior alone, the rows say nothing about it.

The fit is repeated without each model, so that a validation can score a model by constants that never saw it, and the
spread of measured over predicted on the model left out is the interval of any prediction.

References
----------
.. [1] prime-rl (Apache-2.0), commit 559b447: trainer benchmarks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from batchsim.errors import InputError
from batchsim.system.training.efficiency import LINK_SHARE, START, generation
from batchsim.system.training.trainer import micro_batch_work
from batchsim.system.training.update import gradient_time, optimizer_time
from batchsim.system.training.work import Work, micro_batch_parts, pass_units, stack_work
from batchsim.system.training_rows import (
    TrainingRow,
    measured_rows,
    read_training,
    start_trainer,
    write_training_sample,
)

Array = NDArray[np.float64]
PRIOR_WEIGHT = 0.1
LOSS_SCALE = 0.1
NAMES = tuple(START)
SHARES = tuple(name for name in NAMES if "share" in name)
PLAIN = tuple(name for name in NAMES if "." not in name)
QUANTILES = (0.1, 0.9)


class UpdatePredictor:
    """Times of measured updates by any constants, with the work of each row counted once.

    Parameters
    ----------
    rows : sequence of TrainingRow
    """

    def __init__(self, rows: Sequence[TrainingRow]) -> None:
        counted = [_counted(row) for row in rows]
        self.rows = list(rows)
        self.measured = np.array([row.measured for row in rows])
        self.work = stack_work([work for work, _ in counted])
        self.number = np.array([row.micro_batches for row in rows], dtype=np.float64)
        self.once = np.array([once for _, once in counted])
        self.rl = np.array([row.loss == "rl" for row in rows], dtype=np.float64)
        self.product = [_at(f"product_share.{generation(row.gpu)}") for row in rows]
        self.attention = [_at(f"attention_share.{row.attention}.{generation(row.gpu)}") for row in rows]

    def __call__(self, constants: Mapping[str, float]) -> Array:
        """Predicted times [s], in the order of the rows."""
        values = np.array([constants[name] for name in NAMES])
        rates = SimpleNamespace(
            **{name: constants[name] for name in PLAIN},
            product_share=values[self.product],
            attention_share=values[self.attention],
            link_share=LINK_SHARE,
        )
        one = micro_batch_parts(self.work, rates).sum(axis=-1)
        fixed = constants["update_time"] + self.rl * constants["rl_time"]
        return np.asarray(self.number * one + self.once + fixed)


@lru_cache(maxsize=1024)
def _counted(row: TrainingRow) -> tuple[Work, float]:
    """Work of a row's micro-batch, and seconds of what happens once per update and no constant changes."""
    t = start_trainer(row)
    units = pass_units(recompute=t.recompute, lora=t.lora_rank is not None, loss=t.loss)
    work = micro_batch_work(t, units, tokens=row.length, length=row.length)
    return work, gradient_time(t) + optimizer_time(t)


def _at(name: str) -> int:
    if name not in NAMES:
        raise InputError(f"no constant '{name}' to fit", remedy=f"known: {', '.join(NAMES)}")
    return NAMES.index(name)


def fit_constants(
    predictor: UpdatePredictor, *, prior_weight: float = PRIOR_WEIGHT
) -> tuple[dict[str, float], dict[str, float]]:
    """Constants from measured updates, and standard errors of their logs.

    Parameters
    ----------
    predictor : UpdatePredictor
        Of the rows to fit.
    prior_weight : float [1]
        Residual per unit of log distance from a prior's median.

    Returns
    -------
    constants, errors : dict by the names of `START`

    Raises
    ------
    InputError
        If there is no row.
    """
    if not predictor.rows:
        raise InputError("no training row to fit")
    prior = np.log([START[name] for name in NAMES])
    high = np.array([0.0 if name in SHARES else np.inf for name in NAMES])

    def misses(z: Array) -> Array:
        constants = dict(zip(NAMES, np.exp(z).tolist(), strict=True))
        return np.concatenate([np.log(predictor(constants) / predictor.measured), prior_weight * (z - prior)])

    found = least_squares(
        misses, prior, bounds=(np.full(len(NAMES), -np.inf), high), loss="soft_l1", f_scale=LOSS_SCALE
    )
    jacobian = np.asarray(found.jac)
    curvature = jacobian.T @ jacobian
    scale = float(np.mean(misses(found.x)[: len(predictor.rows)] ** 2))
    errors = np.sqrt(scale * np.diag(np.linalg.inv(curvature)))
    return dict(zip(NAMES, np.exp(found.x).tolist(), strict=True)), dict(zip(NAMES, errors.tolist(), strict=True))


def fit_all(rows: Sequence[TrainingRow], *, report: Callable[[str], object] = lambda line: None) -> dict[str, Any]:
    """Content of `data/training.toml`.

    Parameters
    ----------
    rows : sequence of TrainingRow
        Measured.
    report : callable
        Takes a line of progress.

    Returns
    -------
    dict
        'fit' (rows, residuals, prior_error, quantiles of measured over predicted on models left out), 'constants',
        'log_se', 'without' by model.
    """
    predictor = UpdatePredictor(rows)
    constants, errors = fit_constants(predictor)
    miss = np.abs(np.log(predictor(constants) / predictor.measured))
    report(f"{len(rows)} rows: |log error| median {np.median(miss):.3f}, mean {miss.mean():.3f}, max {miss.max():.2f}")
    for name in NAMES:
        report(f"{name:48s} {constants[name]:10.4g}  log s.e. {errors[name]:.2f}")
    without: dict[str, dict[str, Any]] = {}
    ratios = []
    for model in sorted({row.model for row in rows}):
        train, test = [r for r in rows if r.model != model], [r for r in rows if r.model == model]
        own, _ = fit_constants(UpdatePredictor(train))
        left = UpdatePredictor(test)
        ratios.append(left.measured / left(own))
        without[model] = {"rows": len(train)} | own
        report(f"without {model}: {len(train)} rows, median |error| {np.median(np.abs(1 / ratios[-1] - 1)):.3f}")
    fit = {
        "rows": len(rows),
        "source": "prime-rl @ 559b447: trainer benchmarks",
        "median_abs_log_error": float(np.median(miss)),
        "mean_abs_log_error": float(miss.mean()),
        "max_abs_log_error": float(miss.max()),
        "prior_log_se": float(np.sqrt(np.mean(miss**2))) / PRIOR_WEIGHT,
        "held_out_model": [float(q) for q in np.quantile(np.concatenate(ratios), QUANTILES)],
    }
    return {"fit": fit, "constants": constants, "log_se": errors, "without": without}


def write_training(path: Path, table: Mapping[str, Any]) -> None:
    """Write fits as TOML, four digits each, whole or not at all.

    Parameters
    ----------
    path : Path
    table : mapping
        Of `fit_all`.
    """
    lines = [
        "# Written by `python -m batchsim.system.fit_training`; see batchsim/system/fit_training.py.",
        "# Names are those of batchsim.system.training.efficiency.START; times in seconds, shares of the datasheet.",
    ]
    parts: list[tuple[str, Mapping[str, Any]]] = [(name, table[name]) for name in ("fit", "constants", "log_se")]
    parts += [(f'without."{model}"', row) for model, row in table["without"].items()]
    for name, row in parts:
        lines += ["", f"[{name}]", *(f'"{k}" = {_shown(v)}' for k, v in row.items())]
    part = path.with_suffix(path.suffix + ".part")
    part.write_text("\n".join(lines) + "\n", encoding="utf-8")
    part.replace(path)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list):
        return "[" + ", ".join(_shown(v) for v in value) + "]"
    return str(value) if isinstance(value, int) else repr(float(f"{value:.4g}"))


def main(arguments: list[str] | None = None) -> int:
    """Fit, print constants and residuals, write `data/training.toml` and the sample of rows."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m batchsim.system.fit_training", description=__doc__.split("\n")[0])
    default = Path(__file__).resolve().parents[1] / "data" / "training.toml"
    parser.add_argument("--data", type=Path, required=True, help="folder of measured data, with published/ in it")
    parser.add_argument("--output", type=Path, default=default, help="file to write [default: the package's own]")
    given = parser.parse_args(arguments)
    try:
        rows = read_training(given.data)
        table = fit_all(measured_rows(rows), report=lambda line: sys.stdout.write(line + "\n"))
        write_training(given.output, table)
        write_training_sample(given.output.parent / "measured" / "training_sample.csv", rows)
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
