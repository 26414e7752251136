r"""Numbers with units as people write them, and the bounded types that specs are made of.

"80 GB", "3.35 TB/s", "11.9 h" become SI floats (bytes, B/s, s). Decimal prefixes are powers of ten and
binary ones (GiB) powers of two: a GB taken for a GiB is 7 % off. Every number of a spec has both bounds,
so a value in GB where bytes are meant is refused instead of believed, and Hypothesis can build specs.

References
----------
.. [1] IEC 80000-13 (binary prefixes).
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le
from pydantic import BeforeValidator, Field

_PREFIX = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_TIME = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "day": 86400.0, "days": 86400.0, "d": 86400.0}
_BYTES = {f"{p}B": v for p, v in (_PREFIX | _BINARY).items()}
_FLOP = {f"{p}FLOP/s": v for p, v in _PREFIX.items()} | {f"{p}FLOPS": v for p, v in _PREFIX.items()}

UNITS: dict[str, dict[str, float]] = {
    "s": _TIME,
    "B": _BYTES,
    "B/s": {f"{unit}/s": factor for unit, factor in _BYTES.items()},
    "FLOP/s": _FLOP,
    "s/response": _TIME | {f"{unit}/response": factor for unit, factor in _TIME.items()},
    "responses/s": {"responses/s": 1.0, "responses/min": 1 / 60, "responses/h": 1 / 3600},
    "B/token": _BYTES | {f"{unit}/token": factor for unit, factor in _BYTES.items()},
    "USD/(GPU*h)": {"USD": 1.0, "$": 1.0, "USD/h": 1.0, "USD/GPU/h": 1.0, "$/h": 1.0},
}

_NUMBER = re.compile(r"\s*([-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(.*?)\s*")


def parse_quantity(text: str, unit: str) -> float:
    """SI value of a number with an optional unit.

    Parameters
    ----------
    text : str
        As "80 GB" or "11.9 h"; a bare number is in `unit`.
    unit : str
        Dimension to convert to, a key of `UNITS`.

    Returns
    -------
    float [unit]

    Raises
    ------
    ValueError
        If there is no number, or its unit is not one of this dimension.

    Examples
    --------
    >>> parse_quantity("80 GB", "B"), parse_quantity("3.35 TB/s", "B/s"), parse_quantity("11.9 h", "s")
    (80000000000.0, 3350000000000.0, 42840.0)
    """
    match = _NUMBER.fullmatch(text)
    if not match:
        raise ValueError(f"'{text}' is not a number with a unit of {unit}, as '{_example(unit)}'")
    number, written = float(match[1].replace("_", "")), match[2]
    if not written:
        return number
    if written not in UNITS[unit]:
        raise ValueError(f"'{written}' in '{text}' is not a unit of {unit}; use {', '.join(UNITS[unit])}")
    return number * UNITS[unit][written]


def _example(unit: str) -> str:
    return f"1.5 {next(iter(UNITS[unit]))}"


def _reader(unit: str) -> BeforeValidator:
    def read(value: Any) -> Any:
        return parse_quantity(value, unit) if isinstance(value, str) else _number(value)

    return BeforeValidator(read)


def _number(value: Any) -> Any:
    # Python's true is the number 1; in a plan it is a slip.
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is not a number")
    return value


def _whole(value: Any) -> Any:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError(f"{value} is not a whole number")
    return value


Count = Annotated[int, Ge(1), Le(10**9), BeforeValidator(_whole)]
Seconds = Annotated[float, Ge(0), Le(1e10), Field(allow_inf_nan=False), _reader("s")]
PositiveSeconds = Annotated[float, Gt(0), Le(1e10), Field(allow_inf_nan=False), _reader("s")]
SecondsPerResponse = Annotated[float, Ge(0), Le(1e7), Field(allow_inf_nan=False), _reader("s/response")]
Responses = Annotated[float, Gt(0), Le(1e12), Field(allow_inf_nan=False), BeforeValidator(_number)]
ResponsesPerSecond = Annotated[float, Gt(0), Le(1e9), Field(allow_inf_nan=False), _reader("responses/s")]
Bytes = Annotated[float, Ge(1e6), Le(1e15), Field(allow_inf_nan=False), _reader("B")]
BytesPerToken = Annotated[float, Ge(1), Le(1e9), Field(allow_inf_nan=False), _reader("B/token")]
BytesPerSecond = Annotated[float, Ge(1e9), Le(1e15), Field(allow_inf_nan=False), _reader("B/s")]
CacheBits = Annotated[float, Ge(2), Le(32), Field(allow_inf_nan=False), BeforeValidator(_number)]
FlopPerSecond = Annotated[float, Ge(1e11), Le(1e18), Field(allow_inf_nan=False), _reader("FLOP/s")]
Tokens = Annotated[float, Gt(0), Le(1e8), Field(allow_inf_nan=False), BeforeValidator(_number)]
Price = Annotated[float, Ge(0), Le(1e4), Field(allow_inf_nan=False), _reader("USD/(GPU*h)")]
LearningRate = Annotated[float, Gt(0), Le(10), Field(allow_inf_nan=False), BeforeValidator(_number)]
Score = Annotated[float, Field(allow_inf_nan=False), BeforeValidator(_number)]
Ratio = Annotated[float, Gt(0), Le(1e6), Field(allow_inf_nan=False), BeforeValidator(_number)]
Share = Annotated[float, Gt(0), Le(1), Field(allow_inf_nan=False), BeforeValidator(_number)]
Fraction = Annotated[float, Ge(0), Le(1.99), Field(allow_inf_nan=False), BeforeValidator(_number)]
PenaltyShape = Annotated[float, Ge(-1), Le(0.9), Field(allow_inf_nan=False), BeforeValidator(_number)]
Shape = Annotated[float, Ge(0.05), Le(math.inf), BeforeValidator(_number)]
