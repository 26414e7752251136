r"""What a derivation is: assumptions, steps that SymPy took, and the equations they end in.

A derivation starts from what is assumed (a quadratic loss, responses drawn independently, an affine time) and lets
SymPy integrate, solve, expand or take a limit; a step's equation is what came out. Nothing is typed in and then
compared with itself: the test of a derivation evaluates its results at 30 digits and compares them with the NumPy
functions that `ships` names, which share no code with it.

    assumptions -> Step, Step, ... -> results = {name: equation}

`evaluate` takes the arguments by the code names that the NumPy function has, `markdown` writes the page
`docs/derivations.md`, and every equation's dimension is checked against the vocabulary (`tests/test_dimensions.py`).

References
----------
.. [1] Meurer et al. 2017, "SymPy: symbolic computing in Python", PeerJ Computer Science 3:e103.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import mpmath
import sympy as sp

from batchsim.theory.quantities import QUANTITIES

DIGITS = 30
"""Decimal digits of `evaluate`."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step: what is done, and what came out.

    Parameters
    ----------
    says : str
        A sentence.
    equation : sympy.Basic
        An equation, a relation or an expression.
    counts : bool
        Responses and prompts are pure numbers here (a sum over i = 1 ... n), so units do not balance.
    """

    says: str
    equation: Any
    counts: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Derivation:
    """A closed form with the way to it.

    Parameters
    ----------
    name, title : str
    assumptions : tuple of str
        What the steps start from.
    steps : tuple of Step
    results : mapping of str to sympy.Eq
        Equations that the package ships or its documents state.
    ships : tuple of str
        Functions, as module:name below `batchsim`, that compute the results.
    sources : tuple of str
        Where the assumptions or the result were stated first.
    counts : frozenset of str
        Results in which responses and prompts are pure numbers.
    """

    name: str
    title: str
    assumptions: tuple[str, ...]
    steps: tuple[Step, ...]
    results: Mapping[str, Any]
    ships: tuple[str, ...]
    sources: tuple[str, ...]
    counts: frozenset[str] = frozenset()

    def evaluate(self, result: str, *, digits: int = DIGITS, **values: Any) -> Any:
        """Right-hand side of a result at numbers.

        Parameters
        ----------
        result : str
            A key of `results`.
        digits : int
            Decimal digits to calculate with.
        **values : float
            By code name (`quantities.QUANTITIES`), all symbols of the right-hand side; floats are taken as exact.

        Returns
        -------
        mpmath.mpf

        Raises
        ------
        KeyError
            For a result or a quantity that does not exist.
        ValueError
            For a symbol without a value, or a value of one that is not there.
        """
        function, symbols = _compiled(self.results[result].rhs)
        given = {QUANTITIES[name].symbol: v for name, v in values.items()}
        missing, idle = set(symbols) - set(given), set(given) - set(symbols)
        if missing:
            raise ValueError(f"{self.name}/{result} needs a value of {', '.join(sorted(map(_name, missing)))}")
        if idle:
            raise ValueError(f"{self.name}/{result} does not depend on {', '.join(sorted(map(_name, idle)))}")
        with mpmath.workdps(digits):
            return mpmath.mpf(function(*(mpmath.mpf(given[v]) for v in symbols)))

    def markdown(self) -> str:
        """The derivation as a section of the documents, with its equations in LaTeX.

        Returns
        -------
        str
        """
        lines = [f"## {self.title}", "", "Assumed:", *(f"- {a}" for a in self.assumptions), ""]
        for i, step in enumerate(self.steps, 1):
            lines += [f"{i}. {step.says}", "", "```math", latex(step.equation), "```", ""]
        lines += ["Results:", ""]
        for result, equation in self.results.items():
            lines += [f"- `{result}`", "", "```math", latex(equation), "```", ""]
        code = ", ".join(f"`{s.replace(':', '.')}`" for s in self.ships)
        lines += [f"Ships as {code}. Source: {'; '.join(self.sources)}." if code else f"Source: {self.sources[0]}."]
        return "\n".join(lines)


def _name(symbol: Any) -> str:
    return next((q.name for q in QUANTITIES.values() if q.symbol == symbol), str(symbol))


def latex(expression: Any) -> str:
    """LaTeX of an expression whose symbols are named in LaTeX already.

    Parameters
    ----------
    expression : sympy.Basic

    Returns
    -------
    str
    """
    return str(sp.latex(expression, symbol_names={s: s.name for s in expression.atoms(sp.Symbol)}))


@cache
def _compiled(expression: Any) -> tuple[Any, tuple[Any, ...]]:
    symbols = tuple(sorted(expression.free_symbols, key=str))
    # A bound variable keeps its name in the code that SymPy prints, and LaTeX is no name.
    named = expression.replace(lambda part: isinstance(part, sp.Integral), lambda part: part.as_dummy())
    return sp.lambdify(symbols, named, "mpmath", dummify=True), symbols


def normal_mean(expression: Any, variable: Any, *, mean: Any, variance: Any) -> Any:
    """Expectation of a polynomial over a normal variable, by integrating its density.

    Parameters
    ----------
    expression : sympy.Expr
    variable : sympy.Symbol
    mean, variance : sympy.Expr
        A positive variance.

    Returns
    -------
    sympy.Expr
    """
    # SymPy integrates over a standard variable quickly and over a shifted one slowly.
    z = sp.Dummy("z", real=True)
    shifted = sp.expand(expression.subs(variable, mean + sp.sqrt(variance) * z))
    density = sp.exp(-(z**2) / 2) / sp.sqrt(2 * sp.pi)
    return sp.simplify(sp.integrate(sp.expand(shifted * density), (z, -sp.oo, sp.oo)))


def only(solutions: Any) -> Any:
    """The one solution of a list.

    Raises
    ------
    ValueError
        If SymPy found none or several.
    """
    if len(solutions) != 1:
        raise ValueError(f"{len(solutions)} solutions where one was expected: {solutions}")
    return solutions[0]


def endless_sum(term: Any, index: Any, ratio: Any) -> Any:
    """Sum of a term over index = 0, 1, ... without end, for a ratio between 0 and 1.

    Parameters
    ----------
    term : sympy.Expr
    index, ratio : sympy.Symbol

    Returns
    -------
    sympy.Expr
    """
    # Written as 1/(1 + z) with z > 0, SymPy knows the ratio to be below 1.
    z = sp.Dummy("z", positive=True)
    total = sp.summation(sp.simplify(term.subs(ratio, 1 / (1 + z))), (index, 0, sp.oo))
    return sp.factor(sp.simplify(sp.simplify(total).subs(z, 1 / ratio - 1)))
