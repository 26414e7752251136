r"""A calibration as one JSON file, and back: everything that a forecast needs, nothing that it would read again.

    {"kind": "batchsim calibration", "schema": 1, "version": ..., "plan": {...}, "recipe": {...}, "draws": {...}, ...}

Draws are kept, not a normal approximation: noise scales are skewed and open above. Numbers that JSON lacks are
objects, {"float": "inf"}; arrays are {"shape": [...], "values": [...]}. The plan is stored in SI units and read back
through `plan.plan_from_dict`, so that its bounds hold for a file that was edited, and a calibration that was read
forecasts, number by number, what the one that was written does.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from batchsim.calibrate import Calibration
from batchsim.calibrate.discrepancy import Seen
from batchsim.calibrate.lag import Lag
from batchsim.errors import InputError
from batchsim.learning.curve import Curve
from batchsim.learning.noise_scale import NoiseScale
from batchsim.plan import Plan, plan_from_dict
from batchsim.specs.recipe import Recipe
from batchsim.system.step_time import StepTimeFit

KIND = "batchsim calibration"
SCHEMA = 1
DERIVED = ("responses", "overlay", "laws")
"""Fits behind a calibration, which no forecast needs: the file holds their summary."""


def to_dict(calibration: Calibration) -> dict[str, Any]:
    """The content of a fit file.

    Parameters
    ----------
    calibration : Calibration

    Returns
    -------
    dict
        Plain values, ready for `json.dumps(..., allow_nan=False)`.

    Raises
    ------
    InputError
        For a learning-rate rule that is a function, which a file cannot hold.
    """
    from batchsim import __version__

    if calibration.lr_rule == "user":
        raise InputError(
            "the learning-rate rule is a function, and a file cannot hold one", remedy="calibrate with a named rule"
        )
    content: dict[str, Any] = {"kind": KIND, "schema": SCHEMA, "version": __version__}
    for field in dataclasses.fields(calibration):
        if field.name not in DERIVED:
            value = getattr(calibration, field.name)
            content[field.name] = _plan_dict(value) if field.name == "plan" else _encode(value)
    content["summary"] = calibration.summary()
    return content


def from_dict(content: Any, *, source: str = "") -> Calibration:
    """A calibration from the content of a fit file.

    Parameters
    ----------
    content : object
        What the file holds.
    source : str
        File name for error texts.

    Returns
    -------
    Calibration

    Raises
    ------
    InputError
        For what is not a calibration, a newer schema, or content that is missing or does not fit together.
    """
    if not isinstance(content, dict) or content.get("kind") != KIND:
        what = (
            f"an answer of `batchsim {content['verb']}`"
            if isinstance(content, dict) and "verb" in content
            else "not one"
        )
        raise InputError(
            f"a calibration says kind '{KIND}', and this is {what}",
            where=source,
            remedy="write one with `batchsim calibrate ... -o fit.json`",
        )
    schema = content.get("schema")
    if not isinstance(schema, int) or schema < 1:
        raise InputError(f"schema is {schema!r}, not a positive whole number", where=source)
    if schema > SCHEMA:
        raise InputError(
            f"written by a newer batchsim ({content.get('version', 'unknown')}, schema {schema}); this one reads up to "
            f"{SCHEMA}",
            where=source,
            remedy="update batchsim, or calibrate again with this one",
        )
    names = [f.name for f in dataclasses.fields(Calibration) if f.name not in DERIVED]
    missing = [n for n in names if n not in content]
    if missing:
        raise InputError(
            f"the file lacks {', '.join(missing)}", where=source, remedy="calibrate again; files are not to be edited"
        )
    try:
        values = {n: _decode(content[n]) for n in names if n != "plan"}
        values["recipe"] = Recipe(**values["recipe"])
        values["seen"] = tuple(Seen(**o) for o in values["seen"])
        values["noise_scales"] = [NoiseScale(**o) for o in values["noise_scales"]]
        values["step_time"] = None if values["step_time"] is None else StepTimeFit(**values["step_time"])
        values["lag"] = None if values["lag"] is None else Lag(**values["lag"])
        if values["reference_curve"] is not None:
            values["reference_curve"] = Curve(**values["reference_curve"])
        values["warnings"] = list(values["warnings"])
        plan = dict(content["plan"])
        calibration = Calibration(plan=plan_from_dict(plan.pop("sections"), source=plan.pop("source")), **values)
    except InputError as error:
        raise InputError(error.message, remedy=error.remedy, where=source) from error
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise InputError(
            f"the file does not hold a calibration: {error}", where=source, remedy="calibrate again"
        ) from error
    _check(calibration, source)
    return calibration


def _check(c: Calibration, source: str) -> None:
    """Refuse draws of different lengths, or that no calibration could hold."""
    n = c.noise_scale.size if isinstance(c.noise_scale, np.ndarray) else 0
    shapes = {
        name: np.shape(getattr(c, name)) for name in ("snr_shape", "lr_fraction", "penalty_shape", "curvature_ratio")
    }
    wrong = [name for name, shape in shapes.items() if shape != (n,)]
    if n < 1 or wrong or np.shape(c.log_seen) != (n, len(c.seen)):
        raise InputError(
            f"draws of different lengths: noise_scale has {n}, {', '.join(wrong) or 'log_seen'} another number",
            where=source,
            remedy="calibrate again",
        )
    if c.lag is not None and (c.lag.exponent.shape, c.lag.cost.shape) != ((n,), (n,)):
        raise InputError(
            f"draws of different lengths: noise_scale has {n}, lag another number",
            where=source,
            remedy="calibrate again",
        )
    if not (np.isfinite(c.noise_scale) & (c.noise_scale > 0)).all():
        raise InputError("a noise scale in the file is not positive and finite", where=source, remedy="calibrate again")


def save_fit(calibration: Calibration, path: Path) -> None:
    """Write a calibration; see `to_dict`.

    Parameters
    ----------
    calibration : Calibration
    path : Path
    """
    path.write_text(json.dumps(to_dict(calibration), allow_nan=False) + "\n", encoding="utf-8")


def load_fit(path: str | Path) -> Calibration:
    """Read a calibration that `save_fit` wrote.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    Calibration

    Raises
    ------
    InputError
        For a file that is missing or not JSON, and as `from_dict`.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(
            f"cannot read the fit: {reason}",
            where=str(path),
            remedy="write one with `batchsim calibrate ... -o fit.json`",
        ) from error
    try:
        content = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(
            f"not JSON: {error}", where=str(path), remedy="write one with `batchsim calibrate ... -o fit.json`"
        ) from error
    return from_dict(content, source=str(path))


def _plan_dict(plan: Plan) -> dict[str, Any]:
    """Sections that say something, in SI units, as `plan_from_dict` reads them."""
    sections: dict[str, Any] = {}
    for field in dataclasses.fields(plan):
        section = getattr(plan, field.name)
        if field.name == "source" or section is None:
            continue
        kept = {k: v for k, v in dataclasses.asdict(section).items() if v is not None and v not in ((), {}, "")}
        # What a plan's logs were is no part of its fit.
        if kept and field.name != "logs":
            sections[field.name] = json.loads(json.dumps(kept, allow_nan=False))
    return {"source": plan.source, "sections": sections}


def _encode(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        return {"shape": list(value.shape), "values": [_encode(v) for v in value.ravel().tolist()]}
    if isinstance(value, dict):
        return {str(k): _encode(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(v) for v in value]
    if isinstance(value, np.generic):
        return _encode(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


def _decode(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"float"}:
            return float(value["float"])
        if value.keys() == {"shape", "values"}:
            flat = [_decode(v) for v in value["values"]]
            return np.array(flat, dtype=np.float64).reshape([int(n) for n in value["shape"]])
        return {k: _decode(v) for k, v in value.items()}
    if isinstance(value, list):
        return tuple(_decode(v) for v in value)
    return value
