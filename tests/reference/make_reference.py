"""Writes the reference values: `python tests/reference/make_reference.py` (half a minute).

Every form of `tests/closed_forms.py` is evaluated where its grid says, from the derivation in `batchsim.theory` and not
from NumPy, at 40 digits of which 30 are written. One CSV per derivation: the result, its arguments in the digits that
give the same float back, and the value. `f_k` is an integral twice: over the Laplace transform and over the Gamma
density; both routes must agree to 25 digits wherever the density's is taken.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

import mpmath
import sympy as sp

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))

from closed_forms import FORMS  # noqa: E402

from batchsim.theory import QUANTITIES, derive  # noqa: E402

DIGITS, WORKING = 30, 40
Row = tuple[str, str, str]


def node_integral(b: float, k: float) -> mpmath.mpf:
    """The Laplace form of f_k in the logarithm of its variable, whose integrand has two tails that vanish."""
    b, k = mpmath.mpf(b), mpmath.mpf(k)
    integrand = derive("adam_coordinates").results["signal_function"].rhs.args[-1].function
    zeta, b_symbol, k_symbol = (QUANTITIES[name].symbol for name in ("node", "relative_batch", "snr_shape"))
    f = sp.lambdify((zeta, b_symbol, k_symbol), integrand, "mpmath", dummify=True)
    scale = 1 / mpmath.sqrt(1 + b * (1 + 1 / k))

    def inner(v: mpmath.mpf) -> mpmath.mpf:
        s = scale * mpmath.exp(v)
        return s * f(s, b, k)

    top = mpmath.log(12 / scale)
    cuts = [c for c in (-110, -60, -30, -15, -8, -4, -2, -1, 0, 1, 2, 4, 7, 11, 15) if c < top - 0.5]
    return 2 / mpmath.sqrt(mpmath.pi) * mpmath.quad(inner, [*cuts, top])


def value(form: str, point: dict[str, float]) -> mpmath.mpf:
    """A form's value at a point, from its derivation."""
    name, _, result = form.partition("/")
    if form in ("adam_coordinates/signal_function", "adam_coordinates/definition"):
        found = node_integral(point["relative_batch"], point["snr_shape"])
        if result == "definition":
            other = derive(name).evaluate(result, digits=WORKING, **point)
            assert mpmath.almosteq(other, found, rel_eps=mpmath.mpf(10) ** -25), (point, other, found)
            return other
        return found
    return derive(name).evaluate(result, digits=WORKING, **point)


def rows(derivation: str) -> Iterator[Row]:
    """Rows of one derivation: result, arguments, value."""
    with mpmath.workdps(WORKING):
        for form in (f for f in FORMS if f.partition("/")[0] == derivation):
            for point in FORMS[form].points():
                arguments = " ".join(f"{name}={number!r}" for name, number in point.items())
                yield form.partition("/")[2], arguments, mpmath.nstr(value(form, point), DIGITS, strip_zeros=False)


def main() -> None:
    """Write all files, and remove those of derivations that are gone."""
    names = dict.fromkeys(form.partition("/")[0] for form in FORMS)
    for old in FOLDER.glob("*.csv"):
        if old.stem not in names:
            old.unlink()
    for name in names:
        with (FOLDER / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("result", "arguments", "value"))
            writer.writerows(rows(name))


if __name__ == "__main__":
    main()
