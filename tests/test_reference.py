"""NumPy against the stored 30-digit values, over many decades and at the edges of the formulas.

`tests/reference/make_reference.py` writes the values from the derivations; `test_theory.py` says that they are current.
"""

from __future__ import annotations

import csv
from fractions import Fraction
from pathlib import Path

import pytest
from closed_forms import FORMS

FOLDER = Path(__file__).parent / "reference"
FILES = sorted({form.partition("/")[0] for form in FORMS})


def stored(name: str) -> list[tuple[str, dict[str, float], str]]:
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return [
            (
                row["result"],
                {
                    k: float(v) if "." in v or "e" in v else int(v)
                    for k, v in (a.split("=") for a in row["arguments"].split())
                },
                row["value"],
            )
            for row in csv.DictReader(file)
        ]


def relative_error(found: float, exact: str) -> float:
    """In rational arithmetic, so that the comparison itself loses nothing."""
    wanted = Fraction(exact)
    return abs(float((Fraction(found) - wanted) / wanted)) if wanted else abs(found)


@pytest.mark.parametrize("name", FILES)
def test_numpy_has_twelve_digits(name: str) -> None:
    seen: dict[str, int] = {}
    for result, arguments, exact in stored(name):
        form = FORMS[f"{name}/{result}"]
        error = relative_error(float(form.shipped(**arguments)), exact)
        assert error <= form.rel, f"{result} at {arguments}: off by {error:.1e}, {exact}"
        seen[result] = seen.get(result, 0) + 1
    # Every point of every form is stored, and nothing else.
    assert seen == {
        form.partition("/")[2]: len(list(FORMS[form].points())) for form in FORMS if form.partition("/")[0] == name
    }
    assert all(seen.values())
