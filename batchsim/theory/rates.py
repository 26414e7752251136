r"""Learning-rate rules as solutions of "progress per response is constant", and what limits them.

    eta A(B)/B = eta_0 A(B_0)/B_0

Where noise dominates, Adam's slope grows as sqrt(B) and SGD's does not: the square-root and the linear rule. Where
signal dominates, Adam's slope is constant too. Away from small rates the condition is quadratic in the rate, and has a
solution or none. A trust region bounds the rate whatever the batch, and Adam's averages should keep running over the
same responses.

References
----------
.. [1] Malladi et al. 2022, arXiv:2205.10287 (the rules for Adam).
.. [2] Goyal et al. 2017, arXiv:1706.02677 (the linear rule).
.. [3] Hilton, Cobbe & Schulman 2022, arXiv:2110.00641 (centres of mass).
"""

from __future__ import annotations

import sympy as sp

from batchsim.theory import quantities as v
from batchsim.theory.derivation import Derivation, Step, endless_sum, normal_mean, only
from batchsim.theory.progress import adam_drift, sample_cost


def rate_rules() -> Derivation:
    """Rates that keep progress per response at small rates, and r_N of each rule."""
    condition = sp.Eq(v.s * v.eta * v.A / v.B, v.eta * v.A_0 / v.B_0)
    keeps = only(sp.solve(condition, v.s))

    def under(slope: sp.Expr) -> sp.Expr:
        ratio = slope.subs(v.B, v.B_0) / slope
        return sp.simplify(keeps.subs({v.A: v.A_0 / ratio}).subs(v.B, v.x * v.B_0))

    slope = adam_drift().results["usable_slope"].rhs
    noisy = sp.limit(slope / sp.sqrt(v.b), v.b, 0) * sp.sqrt(v.B)
    clear = sp.limit(slope, v.b, sp.oo)
    drift = slope.subs(v.b, v.B / v.B_noise)
    rules = {"sqrt": under(noisy), "linear": under(clear), "invariant": under(drift)}
    ratio = sp.simplify((drift.subs(v.B, v.B_0) / drift).subs(v.B, v.x * v.B_0))
    slow = sample_cost().results["slow"].rhs
    costs = {
        name: sp.simplify(slow.subs({v.s: rate, v.rk: ratio}))
        for name, rate in {"fixed": sp.Integer(1), "sqrt": rules["sqrt"], "linear": rules["linear"]}.items()
    }
    return Derivation(
        name="rate_rules",
        title="Learning-rate rules",
        assumptions=(
            "Rates are far below the best one (`c_0` to 0): an update gains `eta A(B)`.",
            "A rule keeps progress per response: `eta A(B)/B` is the same at every batch.",
            "The slope is Adam's drift form, or constant, as SGD's is.",
        ),
        steps=(
            Step(says="The condition, with `s` the ratio of the rates.", equation=condition),
            Step(says="Its solution.", equation=sp.Eq(v.s, keeps)),
            Step(
                says="Where noise dominates (`b` to 0, the slope grows as the root).",
                equation=sp.Eq(v.s, rules["sqrt"]),
            ),
            Step(says="Where signal dominates, and for SGD.", equation=sp.Eq(v.s, rules["linear"])),
            Step(says="In between, for the drift form.", equation=sp.Eq(v.s, rules["invariant"])),
            Step(
                says="A fixed rate without signal's end in sight: the cost grows as the root of the batch.",
                equation=sp.Eq(sp.Symbol(r"r_N^\mathrm{fixed}"), sp.limit(costs["fixed"], v.B_noise, sp.oo)),
            ),
        ),
        results={
            "sqrt": sp.Eq(v.s, rules["sqrt"]),
            "linear": sp.Eq(v.s, rules["linear"]),
            "invariant": sp.Eq(v.s, rules["invariant"]),
            "cost_fixed": sp.Eq(v.r_N, costs["fixed"]),
            "cost_sqrt": sp.Eq(v.r_N, costs["sqrt"]),
            "cost_linear": sp.Eq(v.r_N, costs["linear"]),
        },
        ships=("learning.lr_rule:learning_rate_ratio", "learning.sample_cost:sample_cost_ratio"),
        sources=(
            "Malladi et al. 2022, arXiv:2205.10287 (square root); Goyal et al. 2017, arXiv:1706.02677 (linear); the "
            "rest is the package's own",
        ),
    )


def invariant_rate() -> Derivation:
    """The rate of equal sample cost at any distance from the best one, and when there is one."""
    cost = sample_cost().results["ratio"].rhs
    roots = sp.solve(sp.Eq(cost, 1), v.s)
    slow = v.rk * v.x
    smaller = only([r for r in roots if sp.simplify(sp.limit(r, v.c_0, 0) - slow) == 0])
    inside = only([power.base for power in smaller.atoms(sp.Pow) if power.exp == sp.Rational(1, 2)])
    room = sp.factor(1 - inside)
    return Derivation(
        name="invariant_rate",
        title="The rate that costs nothing",
        assumptions=(
            "The law of sample cost, with its quadratic penalty.",
            "`r_N = 1` is asked of the rate ratio `s`.",
        ),
        steps=(
            Step(says="The condition.", equation=sp.Eq(cost, 1)),
            Step(
                says="The solution that stays finite as `c_0` goes to 0, where it is `x r_k`; the other overshoots.",
                equation=sp.Eq(v.s, smaller),
            ),
            Step(
                says="It is real as long as the radicand is not negative.",
                equation=sp.Le(room, 1),
            ),
        ),
        results={
            "rate": sp.Eq(v.s, smaller),
            "room": sp.Eq(sp.Symbol(r"\mathrm{room}"), room),
        },
        ships=("learning.lr_rule:learning_rate_ratio",),
        sources=("the package's own",),
    )


def trust_region() -> Derivation:
    """Largest rate ratio whose update stays within a divergence."""
    log_ratio = sp.expand(((v.g - v.shift) ** 2 - v.g**2) / (2 * v.spread**2))
    divergence = normal_mean(log_ratio, v.g, mean=sp.Integer(0), variance=v.spread**2)
    grown = divergence.subs(v.shift, v.eta)
    bound = only(sp.solve(sp.Eq(grown.subs(v.eta, v.s * v.eta) / grown, v.kl_max / v.kl_reference), v.s))
    return Derivation(
        name="trust_region",
        title="A ceiling from the trust region",
        assumptions=(
            "Along an update the policy's distribution moves as a normal one of width `v` whose mean shifts by "
            "`delta`.",
            "The shift is the rate, whatever the batch: Adam's updates have a fixed norm.",
        ),
        steps=(
            Step(
                says="Mean of the log ratio of the densities over the old one.",
                equation=sp.Eq(sp.Symbol(r"\mathrm{KL}"), divergence),
            ),
        ),
        results={"ceiling": sp.Eq(v.s, bound)},
        ships=("learning.mechanism:trust_region_ceiling",),
        sources=("the package's own",),
    )


def companions() -> Derivation:
    """Adam's averages at another batch."""
    weight = (1 - v.beta) * v.beta**v.j
    centre = endless_sum(v.j * weight, v.j, v.beta)
    there = centre.subs(v.beta, v.beta_0)
    mass = only(sp.solve(sp.Eq(centre * v.x, there), v.beta))
    z = sp.Dummy("z", positive=True)
    per_response = sp.exp(-v.decay * v.B_0)
    # A decay per response lambda makes 1 - beta = 1 - exp(-lambda B), which is lambda B to first order.
    first = sp.series(1 - per_response.subs(v.decay, z / v.B_0).subs(z, v.x * z), z, 0, 2).removeO()
    base = sp.series(1 - per_response.subs(v.decay, z / v.B_0), z, 0, 2).removeO()
    beta = 1 - sp.simplify(first / base) * (1 - v.beta_0)
    return Derivation(
        name="companions",
        title="Adam's averages at another batch",
        assumptions=(
            "An average with decay `beta` weighs the gradient of `j` updates ago with `(1 - beta) beta^j`.",
            "It should run over the same responses when a batch is `x` times larger and updates `x` times rarer.",
        ),
        steps=(
            Step(
                says="Mean age of what is averaged, in updates.", equation=sp.Eq(sp.Symbol(r"\langle j\rangle"), centre)
            ),
            Step(says="The decay that divides this age by `x`.", equation=sp.Eq(v.beta, mass)),
            Step(
                says="A constant decay per response instead, to first order in `1 - beta`.",
                equation=sp.Eq(v.beta, beta),
            ),
        ),
        results={
            "centre": sp.Eq(sp.Symbol(r"\langle j\rangle"), centre),
            "proximal_beta": sp.Eq(v.beta, mass),
            "beta": sp.Eq(v.beta, beta),
        },
        ships=("learning.companions:adam_companions",),
        sources=("Malladi et al. 2022, arXiv:2205.10287; Hilton, Cobbe & Schulman 2022, arXiv:2110.00641",),
    )
