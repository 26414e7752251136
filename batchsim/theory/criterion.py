r"""The criterion from its two rates: what is learned per response, and responses per second.

    dJ/dt = (dJ/dN)(dN/dt),      dN/dt = q      =>      T = N*/q,      T < T_0  <=>  r_q > r_N

Both recipes must reach the same score: the curve J(N) then only says how many responses that takes, N*, and cancels.
What is left is how soon they come. Where throughput changes along the way (responses that grow), the time is

    T = int_0^N* dN/q(N),

whose mean over progress the package takes by quadrature. T_0 - T has the sign of r_q - r_N whatever the scale of either
side, so that the comparison needs no unit and no absolute time.

References
----------
.. [1] Li et al. 2026, arXiv:2608.29296, the section that states the criterion.
"""

from __future__ import annotations

import sympy as sp

from batchsim.theory import quantities as v
from batchsim.theory.derivation import Derivation, Step, only


def criterion() -> Derivation:
    """Time to target, its ratio, and r_q > r_N."""
    n_of_t = v.N_of_t(v.time)
    chain = sp.Eq(sp.Derivative(v.J_of_N(n_of_t), v.time), sp.diff(v.J_of_N(n_of_t), v.time))
    rate = sp.Eq(sp.diff(n_of_t, v.time), v.q)
    path = sp.dsolve(rate, n_of_t, ics={v.N_of_t(0): 0})
    total = only(sp.solve(sp.Eq(path.rhs.subs(v.time, v.T), v.N_target), v.T))
    reference = total.subs({v.N_target: v.N_reference, v.q: v.q_reference})
    candidate = total.subs({v.N_target: v.r_N * v.N_reference, v.q: v.r_q * v.q_reference})
    ratio = sp.simplify(candidate / reference)
    gained = sp.factor(reference - candidate)
    saved = sp.simplify((v.value * gained / reference).subs(v.r_N, v.time_ratio * v.r_q))
    return Derivation(
        name="criterion",
        title="The criterion",
        assumptions=(
            "The score is a smooth function of the kept responses that were trained on, `J(N)`.",
            "Responses are kept at a constant rate, `dN/dt = q`, over the way to the target; where it changes, `q` is "
            "its mean over the time.",
            "Both recipes are judged at the same score, reached after `N*` responses.",
        ),
        steps=(
            Step(says="The score rises in time by the chain rule.", equation=chain),
            Step(says="The responses used by a time, from `N(0) = 0`.", equation=path),
            Step(says="The time at which `N*` of them are used.", equation=sp.Eq(v.T, total)),
            Step(
                says="What a recipe of `N* = r_N N*_0` and `q = r_q q_0` gains over the reference. All factors but "
                "`r_q - r_N` are positive, so that it is faster exactly when `r_q > r_N`.",
                equation=sp.Eq(reference - candidate, gained, evaluate=False),
            ),
        ),
        results={
            "time": sp.Eq(v.T, total),
            "ratio": sp.Eq(v.time_ratio, ratio),
            "saving": sp.Eq(v.saved, saved),
        },
        ships=("criterion:time_to_target", "criterion:time_ratio", "criterion:is_faster", "criterion:saving"),
        sources=("Li et al. 2026, arXiv:2608.29296, the section that states the criterion",),
    )


def changing_throughput() -> Derivation:
    """Time to target where steps grow linearly with the responses used."""
    used = sp.Dummy("N", positive=True)
    slowed = v.q / (1 + v.growth * used / v.N_target)
    total = sp.simplify(sp.integrate(1 / slowed, (used, 0, v.N_target)))
    return Derivation(
        name="changing_throughput",
        title="Time to target where responses grow",
        assumptions=(
            "`dN/dt = q(N)`, so that `T` is the integral of `1/q` over the responses used.",
            "The time of a step grows linearly to `1 + g` times its first value at the target.",
        ),
        steps=(
            Step(
                says="The integral that separating the variables leaves.",
                equation=sp.Eq(v.T, sp.Integral(1 / slowed, (used, 0, v.N_target))),
            ),
        ),
        results={"time": sp.Eq(v.T, total)},
        ships=("system.pipeline:mean_curve",),
        sources=("the package's own; the criterion with `q(N)` in the place of `q`",),
    )
