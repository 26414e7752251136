r"""Time to target over the batch: its optimum under each rule, how flat it is, and the regimes.

    T ~ r_N(B) (tau_0/B + tau_1)

With tuned rates r_N is McCandlish's hyperbola and the optimum is the geometric mean of the noise scale and of
a = tau_0/tau_1; under the square-root and the fixed rule it solves a quadratic; where a rule makes r_N fall or stay, T
falls with the batch and only a ceiling, memory or a plateau ends it. In logarithms the slope of T is the exponent of
r_N less that of r_q, whose order of departure distinguishes the paper's regimes.

References
----------
.. [1] Li et al. 2026, arXiv:2608.29296, section on the two critical batches, figures 8 and 9.
.. [2] McCandlish et al. 2018, arXiv:1812.06162, equation 2.11 (the hyperbola).
"""

from __future__ import annotations

from functools import cache

import sympy as sp

from batchsim.theory import quantities as v
from batchsim.theory.derivation import Derivation, Step, only
from batchsim.theory.progress import mccandlish
from batchsim.theory.rates import rate_rules


def _per_response() -> sp.Expr:
    return (v.tau_0 + v.tau_1 * v.B) / v.B


@cache
def _cost(rule: str) -> sp.Expr:
    if rule == "tuned":
        return mccandlish().results["ratio"].rhs
    if rule == "invariant":
        return sp.Integer(1)
    return rate_rules().results[f"cost_{rule}"].rhs.subs(v.x, v.B / v.B_0)


def _stationary(rule: str) -> list[sp.Expr]:
    # The logarithm has the same stationary points and rational slopes.
    slope = sp.together(sp.diff(sp.expand_log(sp.log(_cost(rule)) + sp.log(_per_response()), force=True), v.B))
    return list(sp.solve(sp.numer(sp.simplify(slope)), v.B))


def _log_slope(rule: str) -> sp.Expr:
    slope = sp.together(sp.simplify(sp.diff(sp.log(_cost(rule) * _per_response()), v.B)))
    return sp.expand(sp.numer(slope)) / sp.factor(sp.denom(slope))


def _positive(solutions: list[sp.Expr]) -> sp.Expr:
    at = {v.tau_0: 200, v.tau_1: sp.Rational(1, 2), v.B_noise: 3000}
    return only([s for s in solutions if s.subs(at).is_positive])


def optimal_batch() -> Derivation:
    """Batch of the least time under each rule, second order, and what a wrong batch costs."""
    total = _cost("tuned") * _per_response()
    tuned = _positive(_stationary("tuned"))
    curvature = sp.simplify(sp.diff(total, v.B, 2).subs(v.B, tuned))
    root = _positive(_stationary("sqrt"))
    fixed = _positive(_stationary("fixed"))
    slopes = {rule: _log_slope(rule) for rule in ("sqrt", "fixed", "linear")}
    log_time = sp.Symbol(r"\log T")
    invariant = sp.simplify(sp.diff(_per_response(), v.B))

    even = v.tau_1 * v.B_noise * v.root_ratio**2
    excess = sp.simplify((total.subs(v.B, v.factor * tuned) / total.subs(v.B, tuned)).subs(v.tau_0, even))
    stationary = sp.solve(sp.numer(sp.together(sp.diff(excess, v.root_ratio))), v.root_ratio)
    worst = sp.expand(sp.simplify(excess.subs(v.root_ratio, only([r for r in stationary if r.is_positive]))))
    slack = sp.factor(sp.simplify(worst - excess))
    edges = sp.solve(sp.numer(sp.together(excess - 1 - v.tolerance)), v.factor)
    upper = sp.simplify(only([e for e in edges if e.subs({v.tolerance: sp.Rational(1, 20), v.root_ratio: 2}) > 1]))
    return Derivation(
        name="optimal_batch",
        title="The best batch, and what a wrong one costs",
        assumptions=(
            "The time of a step is affine in its batch, `tau_0 + tau_1 B`; one update per rollout step.",
            "The sample cost is that of the drift form: at the best rate of every batch, or at small rates under a "
            "rule.",
            "`B_noise` is the same along the way. `omega^2 = tau_0/(tau_1 B_noise)`.",
        ),
        steps=(
            Step(
                says="Time to target with tuned rates.",
                equation=sp.Eq(v.T / v.N_reference, total),
            ),
            Step(says="Where its slope is zero.", equation=sp.Eq(v.B, tuned)),
            Step(says="Its curvature there, all of whose factors are positive: a minimum.", equation=curvature),
            Step(
                says="Under the square-root rule the slope of `log T` is negative at small batches, positive at large "
                "ones, and its numerator, a quadratic, has one positive root: a minimum.",
                equation=sp.Eq(sp.Derivative(log_time, v.B), slopes["sqrt"]),
            ),
            Step(says="The root.", equation=sp.Eq(v.B, root)),
            Step(
                says="At a fixed rate, likewise.",
                equation=sp.Eq(sp.Derivative(log_time, v.B), slopes["fixed"]),
            ),
            Step(says="The root.", equation=sp.Eq(v.B, fixed)),
            Step(
                says="Under the linear rule the slope of `log T` is negative everywhere: there is no best batch but "
                "the largest that the rate allows.",
                equation=sp.Eq(sp.Derivative(log_time, v.B), slopes["linear"]),
            ),
            Step(
                says="The same where the rule keeps `r_N = 1`.",
                equation=sp.Eq(sp.Derivative(sp.Symbol(r"(T/N^*_0)"), v.B), invariant),
            ),
            Step(
                says="With tuned rates, a batch wrong by the factor `phi` costs",
                equation=sp.Eq(sp.Symbol(r"T/T_\mathrm{best}"), excess),
            ),
            Step(
                says="of which the largest over all machines and noise scales is at `omega = 1`",
                equation=sp.Eq(sp.Symbol(r"\max_\omega T/T_\mathrm{best}"), worst),
            ),
            Step(
                says="since the distance to it is a square.",
                equation=sp.Eq(sp.Symbol(r"\max_\omega(T/T_\mathrm{best}) - T/T_\mathrm{best}"), slack),
            ),
        ),
        results={
            "tuned": sp.Eq(v.B, tuned),
            "sqrt": sp.Eq(v.B, root),
            "fixed": sp.Eq(v.B, fixed),
            "least_time": sp.Eq(v.T / v.N_reference, sp.factor(sp.simplify(total.subs(v.B, tuned)))),
            "curvature": sp.Eq(sp.Symbol(r"(T/N^*_0)''"), curvature),
            "excess": sp.Eq(sp.Symbol(r"T/T_\mathrm{best}"), excess),
            "worst": sp.Eq(sp.Symbol(r"\max T/T_\mathrm{best}"), worst),
            "factor_of_two": sp.Eq(sp.Symbol(r"\max T/T_\mathrm{best}|_{\phi=2}"), worst.subs(v.factor, 2)),
            "plateau": sp.Eq(v.factor, upper),
        },
        ships=("time_to_target:optimal_train_batch", "time_to_target:worst_penalty", "time_to_target:plateau_factor"),
        sources=("the package's own",),
    )


def regimes() -> Derivation:
    """Local exponents of r_N, r_q and T, in both orders of the two critical batches."""
    log_b = sp.Dummy("l", real=True)

    def exponent(expression: sp.Expr) -> sp.Expr:
        return sp.simplify(sp.diff(sp.log(expression.subs(v.B, sp.exp(log_b))), log_b).subs(log_b, sp.log(v.B)))

    cost = exponent(_cost("tuned"))
    speed = exponent((1 / _per_response()).subs(v.tau_0, v.a * v.tau_1))
    slope = sp.factor(sp.simplify(cost - speed))
    best = only([s for s in sp.solve(slope, v.B) if s.is_positive])
    both = sp.simplify(cost.subs(v.B, best))

    total = (_cost("tuned") * _per_response()).subs(v.tau_0, v.a * v.tau_1)
    doubling = sp.factor(sp.simplify(total - total.subs(v.B, 2 * v.B)))
    until = only([s for s in sp.solve(sp.numer(sp.together(doubling)), v.B) if s.is_positive])
    # Small and large against both scales, and between them in either order: z is far below 1.
    z = sp.Dummy("z", positive=True)
    between = {
        "throughput first": {v.a: v.B * z, v.B_noise: v.B / z},
        "samples first": {v.a: v.B / z, v.B_noise: v.B * z},
    }
    limits = {
        name: (sp.limit(cost.subs(order), z, 0), sp.limit(speed.subs(order), z, 0)) for name, order in between.items()
    }
    near = only(sp.solve(sp.Eq((v.B / (v.B + v.a)), v.share), v.B))
    departs = only(sp.solve(sp.Eq(_cost("tuned") / sp.limit(_cost("tuned"), v.B, 0), 1 + v.tolerance), v.B))
    corner = only(sp.solve(sp.Eq(v.tau_0 + v.tau_1 * v.B, v.B / v.q_max), v.B))

    def pair(name: str) -> sp.Expr:
        return sp.Eq(sp.Tuple(sp.Symbol("e_N"), sp.Symbol("e_q")), sp.Tuple(*limits[name]), evaluate=False)

    return Derivation(
        name="regimes",
        title="Three regimes, in either order",
        assumptions=(
            "Tuned rates (the hyperbola) and an affine step time with `a = tau_0/tau_1`, where half of the plateau "
            "`1/tau_1` is reached.",
            "An exponent is `e = d log/d log B`; a larger batch is faster where `e_N < e_q`.",
        ),
        steps=(
            Step(says="Exponent of the sample cost.", equation=sp.Eq(sp.Symbol("e_N"), cost)),
            Step(says="Exponent of the throughput.", equation=sp.Eq(sp.Symbol("e_q"), speed)),
            Step(
                says="Slope of the time: from -1 (below both scales, throughput rises alone) to 1 (above both, cost "
                "rises alone), zero at the best batch.",
                equation=sp.Eq(sp.Symbol("e_T"), slope),
            ),
            Step(
                says="Between the scales, `a` far below `B` far below `B_noise`: throughput has stopped and the cost "
                "has not begun. A plateau on which neither changes.",
                equation=pair("throughput first"),
            ),
            Step(
                says="Between the scales in the other order: both rise in proportion to the batch and cancel.",
                equation=pair("samples first"),
            ),
            Step(
                says="At the best batch both exponents are equal, below 1/2 in the first order and above it in the "
                "second.",
                equation=sp.Eq(sp.Symbol(r"e(B_\mathrm{best})"), both),
            ),
            Step(
                says="What doubling a batch gains: positive up to a batch that is the same in both orders, the best "
                "one over the root of 2.",
                equation=sp.Eq(v.B, until),
            ),
            Step(
                says="Throughput is at the share `theta` of its plateau at one batch, and `N*` is `1 + epsilon` times "
                "its small-batch limit at another. The condition for the first order; else it is the second.",
                equation=sp.Lt(near, departs),
            ),
            Step(
                says="A cap on throughput, from capped concurrency or the trainer, ends the affine law at a corner; "
                "the best batch is the smaller of the corner and the optimum.",
                equation=sp.Eq(v.B, corner),
            ),
        ),
        results={
            "exponent": sp.Eq(sp.Symbol("e_T"), slope),
            "best": sp.Eq(v.B, best),
            "balance": sp.Eq(sp.Symbol("e"), both),
            "doubling_until": sp.Eq(v.B, until),
            "critical_gen": sp.Eq(v.B, near),
            "critical_train": sp.Eq(v.B, departs),
            "corner": sp.Eq(v.B, corner),
        },
        ships=(
            "time_to_target:optimal_train_batch",
            "learning.sample_cost:critical_train_batch",
            "system.pipeline:critical_gen_batch",
        ),
        sources=("Li et al. 2026, arXiv:2608.29296, section on the two critical batches, figures 8 and 9",),
    )
