"""Integrals along a run, accurate for integrands that change over many decades.

A local cost along the reference curve may vary like a power near the start and like an exponential near
the asymptote. Panels are therefore graded by factors of two towards 0 and are at most 1/64 of the whole,
and each carries an eight-point Gauss-Legendre rule, exact for polynomials of degree 15. On panels whose
ends differ by a factor of two a power u^p errs by less than 1e-13 relative; a jump must be one of the `breaks`.

All nodes are evaluated in one call of the integrand, whose leading axes (batches, draws) pass through.
The rule has positive weights: an integrand that is nowhere larger gives an integral that is not larger,
which is what makes the gain of an optimal schedule at least 1 in floating point too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
PANELS = 64
HALVINGS = 64
ORDER = 8


@cache
def _rule() -> tuple[Floats, Floats]:
    return np.polynomial.legendre.leggauss(ORDER)


def panels(points: Floats, breaks: ArrayLike = ()) -> Floats:
    """Edges of the panels up to the largest point, from 0.

    Parameters
    ----------
    points : ndarray, any shape
        Finite, not negative; every point becomes an edge.
    breaks : array_like, (break,)
        Where the integrand jumps.

    Returns
    -------
    ndarray, (edge,)
    """
    top = float(points.max()) if points.size else 0.0
    cuts = np.asarray(breaks, dtype=np.float64).ravel()
    graded = top * 2.0 ** -np.arange(HALVINGS)
    return np.unique(
        np.concatenate(
            [[0.0], graded, np.linspace(0, top, PANELS + 1), points.ravel(), cuts[(cuts > 0) & (cuts < top)]]
        )
    )


def nodes_of(edges: Floats) -> tuple[Floats, Floats]:
    """Nodes and weights of the panels, each (panel * 8,)."""
    half = np.diff(edges)[:, None] / 2
    middle = (edges[1:] + edges[:-1])[:, None] / 2
    x, w = _rule()
    return (middle + half * x).ravel(), (half * w).ravel()


def cumulative(integrand: Callable[[Floats], Floats], points: ArrayLike, breaks: ArrayLike = ()) -> Floats:
    """Integral from 0 to each point.

    Parameters
    ----------
    integrand : callable
        From (node,) to (..., node); not negative, may be infinite.
    points : array_like, any shape
        Upper ends, not negative; an infinite one gives an infinite integral, NaN stays NaN.
    breaks : array_like, (break,)
        Where the integrand jumps.

    Returns
    -------
    ndarray, (..., *shape of points)
    """
    p = np.asarray(points, dtype=np.float64)
    finite = np.isfinite(p)
    edges = panels(p[finite], breaks)
    nodes, weights = nodes_of(edges)
    values = np.asarray(integrand(nodes), dtype=np.float64)
    values = np.broadcast_to(values, (*values.shape[:-1], nodes.size)) if values.ndim else np.full(nodes.size, values)
    each = (values * weights).reshape(*values.shape[:-1], -1, ORDER).sum(-1)
    total = np.concatenate([np.zeros((*each.shape[:-1], 1)), np.cumsum(each, axis=-1)], axis=-1)
    at = np.searchsorted(edges, np.where(finite, p, 0.0))
    return np.asarray(np.where(finite, total[..., at], np.where(np.isnan(p), np.nan, np.inf)))
