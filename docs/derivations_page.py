"""Writes docs/derivations.md from `batchsim.theory`: `python docs/derivations_page.py` (ten seconds)."""

from __future__ import annotations

import sys
from pathlib import Path

import sympy

from batchsim.theory import DERIVATIONS, QUANTITIES, derive

PAGE = Path(__file__).with_name("derivations.md")
HEAD = """# Derivations

Every closed form of the package, from its assumptions. SymPy takes each step (solves, integrates, expands, takes a
limit); the NumPy functions named below each derivation must agree with its results, evaluated at 30 digits, to 12
digits over many decades ([testing.md](testing.md)). What is fitted and not derived is in [theory.md](theory.md), and
what measurements say of the assumptions in [evidence.md](evidence.md).

This page is written by `python docs/derivations_page.py` from `batchsim.theory`, with SymPy {version}. In Python:

```python
from batchsim.theory import derive

law = derive("sample_cost")
law.results["tuned_drift"].rhs  # a SymPy expression
law.evaluate("tuned_drift", train_batch=2048, reference_batch=256, noise_scale=3750, lr_fraction=0.3)  # 30 digits
```
"""


def page() -> str:
    """The page's text.

    Returns
    -------
    str
    """
    version = ".".join(sympy.__version__.split(".")[:2])
    sections = [HEAD.format(version=version), *(derive(name).markdown() + "\n" for name in DERIVATIONS), symbols()]
    return "\n".join(sections)


def symbols() -> str:
    """Table of the symbols that occur, with code names and units.

    Returns
    -------
    str
    """
    used = set()
    for name in DERIVATIONS:
        derivation = derive(name)
        for equation in [s.equation for s in derivation.steps] + list(derivation.results.values()):
            used |= equation.free_symbols | {f.func for f in equation.atoms(sympy.core.function.AppliedUndef)}
    rows = []
    for quantity in QUANTITIES.values():
        if quantity.symbol in used:
            shown = quantity.symbol.__name__ if isinstance(quantity.symbol, type) else quantity.symbol.name
            rows.append(f"| ${shown}$ | `{quantity.name}` | {quantity.unit} |")
    return "\n".join(["## Symbols", "", "| symbol | code name | unit |", "|---|---|---|", *rows, ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE.name}: {len(DERIVATIONS)} derivations\n")
