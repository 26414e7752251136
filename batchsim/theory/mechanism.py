r"""Mechanisms that bend the law, each from the equation that it stands for.

    noise floor   d' = -gamma (d - F): the time to a target grows with its logarithm over the floor
    few updates   momentum's mean age, in which the gradient turns, is added to the updates
    KL penalty    a share of the slope is taken, and updates are inverse to what is left

The staleness factor of the package is a power law fitted to one sweep: there is nothing to derive.

References
----------
.. [1] Zhang et al. 2019, arXiv:1907.04164 (noise floor).
"""

from __future__ import annotations

import sympy as sp

from batchsim.theory import quantities as v
from batchsim.theory.derivation import Derivation, Step, only
from batchsim.theory.rates import companions

FACTOR = sp.Symbol(r"r_N/r_N^\mathrm{law}")
"""r_N with the mechanism over r_N of the law without it."""


def noise_floor() -> Derivation:
    """Factor on r_N where a constant rate only approaches a floor."""
    distance = v.distance(v.time)
    falls = sp.Eq(sp.diff(distance, v.time), -v.speed * (distance - v.floor))
    path = sp.dsolve(falls, distance, ics={v.distance(0): v.start})
    needed = only(sp.solve(sp.Eq(path.rhs, v.target), v.time))
    ratio = sp.simplify(needed / needed.subs(v.floor, v.floor_0))
    return Derivation(
        name="noise_floor",
        title="A noise floor",
        assumptions=(
            "The distance to the optimum decays towards a floor that the batch and its rate set, at a speed that the "
            "floor does not change: what the batch does to the speed is in the law, and the factor the floor's alone.",
            "`t` runs in proportion to the updates; the target lies above both floors.",
        ),
        steps=(
            Step(says="The decay.", equation=falls),
            Step(says="Its solution.", equation=path),
            Step(says="Time to the target.", equation=sp.Eq(v.time, needed)),
        ),
        results={"factor": sp.Eq(FACTOR, ratio)},
        ships=("learning.mechanism:noise_floor_factor",),
        sources=("Zhang et al. 2019, arXiv:1907.04164, section 3",),
    )


def few_updates() -> Derivation:
    """Factor on r_N where momentum remembers longer than the run lasts."""
    memory = v.loss * companions().results["centre"].rhs
    total = v.updates + memory
    ratio = sp.factor((total / v.updates) / (total / v.updates).subs(v.updates, v.updates_0))
    return Derivation(
        name="few_updates",
        title="Few updates",
        assumptions=(
            "Momentum acts on a gradient whose mean age is that of its average; a share `a_m` of this age is lost.",
            "The loss is the same at every batch and is added to the updates of the law.",
        ),
        steps=(Step(says="Updates lost.", equation=sp.Eq(sp.Symbol("m_l"), memory)),),
        results={"factor": sp.Eq(FACTOR, ratio)},
        ships=("learning.mechanism:few_updates_factor",),
        sources=("the package's own",),
    )


def kl_penalty() -> Derivation:
    """Factor on r_N where a penalty takes a share of the slope."""
    left = v.A * (1 - v.penalty_share)
    updates = v.progress / (v.eta * left)
    ratio = sp.simplify(updates / updates.subs(v.penalty_share, v.penalty_share_0))
    return Derivation(
        name="kl_penalty",
        title="A KL penalty",
        assumptions=("At small rates an update gains `eta` times what the penalty leaves of the slope.",),
        steps=(Step(says="Updates to a progress.", equation=sp.Eq(v.updates, updates)),),
        results={"factor": sp.Eq(FACTOR, ratio)},
        ships=("learning.mechanism:kl_penalty_factor",),
        sources=("the package's own",),
    )
