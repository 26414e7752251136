r"""Progress per update: McCandlish's trade-off, what Adam can use of a batch, and the sample cost that follows.

An update raises the score by eta A(B) - eta^2 h/2: a slope it can use, less the curvature that it meets. For SGD the
slope is |G|^2 and noise enters the curvature; Adam divides each coordinate by its own root mean square, so that noise
enters the slope,

    A = sum_i G_i^2/sqrt(G_i^2 + sigma_i^2/B).

Both become McCandlish's hyperbola at the best rate. Away from it the number of updates is that of equal progress, and a
step may lose its progress more softly than a quadratic does: g' = -kappa g^(1+p).

References
----------
.. [1] McCandlish et al. 2018, arXiv:1812.06162, equations 2.6-2.11.
.. [2] Kingma and Ba 2015, arXiv:1412.6980, algorithm 1 (the division).
"""

from __future__ import annotations

import sympy as sp

from batchsim.theory import quantities as v
from batchsim.theory.derivation import Derivation, Step, normal_mean, only


def _over_coordinates(moment: sp.Expr) -> sp.Expr:
    """Sum of a coordinate's moment over all of them: G^2, sigma^2, h G^2 and h sigma^2 become their named sums."""
    names = {v.h * v.sigma**2: v.HSigma, v.h * v.G_i**2: v.GHG, v.sigma**2: v.trace, v.G_i**2: v.G_square}
    total = sp.expand(moment)
    for part, name in names.items():
        total = sp.expand(total.subs(part, name))
    return total


def mccandlish() -> Derivation:
    """The trade-off between updates and responses, and r_N."""
    gain = v.eta_sgd * v.G_i * v.g - v.eta_sgd**2 * v.h * v.g**2 / 2
    coordinate = normal_mean(gain, v.g, mean=v.G_i, variance=v.sigma**2 / v.B)
    expanded = sp.expand(coordinate)
    step = _over_coordinates(coordinate)
    best = only(sp.solve(sp.diff(step, v.eta_sgd), v.eta_sgd))
    gained = sp.factor(step.subs(v.eta_sgd, best))
    most = sp.limit(gained, v.B, sp.oo)
    half = only(sp.solve(sp.Eq(gained, most / 2), v.B))
    relative = sp.simplify((gained / most).subs(v.HSigma, v.B_noise * v.GHG))
    updates = sp.simplify(v.S_min / relative)
    responses = sp.expand(v.B * updates)
    fewest = sp.limit(responses, v.B, 0)
    trade = sp.simplify((updates / v.S_min - 1) * (responses / fewest - 1))
    ratio = sp.factor(responses / responses.subs(v.B, v.B_0))
    return Derivation(
        name="mccandlish",
        title="McCandlish's trade-off",
        assumptions=(
            "The loss is quadratic; in its eigenbasis a coordinate has slope `G` and curvature `h`.",
            "The batch's gradient `g` is normal with mean `G` and variance `sigma^2/B` (only two moments enter), and "
            "the update is `eta g`.",
            "`G`, `h` and `sigma` are those of the whole stretch to the target, and the rate is the best one.",
        ),
        steps=(
            Step(
                says="Expected gain of a coordinate, `eta G g - eta^2 h g^2/2` integrated over the normal density.",
                equation=sp.Eq(sp.Symbol(r"\langle D_i\rangle"), expanded),
            ),
            Step(says="Over coordinates.", equation=sp.Eq(sp.Symbol("D"), step)),
            Step(says="The rate of the largest gain.", equation=sp.Eq(v.eta_sgd, best)),
            Step(says="The gain at it.", equation=sp.Eq(sp.Symbol(r"D_\mathrm{best}"), gained)),
            Step(
                says="Its limit for large batches, half of which is reached at the noise scale weighted by curvature.",
                equation=sp.Eq(v.B_noise, half),
            ),
            Step(
                says="Updates to a given progress, and responses `E = B S`; the fewest responses are those of small "
                "batches.",
                equation=sp.Eq(v.E_min, fewest),
            ),
        ),
        results={
            "relative_gain": sp.Eq(sp.Symbol(r"D_\mathrm{best}/D_\mathrm{max}"), relative),
            "updates": sp.Eq(v.updates, updates),
            "responses": sp.Eq(sp.Symbol("E"), responses),
            "trade_off": sp.Eq(sp.Symbol(r"(S/S_\mathrm{min} - 1)(E/E_\mathrm{min} - 1)"), trade),
            "ratio": sp.Eq(v.r_N, ratio),
        },
        ships=("learning.sample_cost:sample_cost_ratio", "learning.progress:step_cost"),
        sources=("McCandlish et al. 2018, arXiv:1812.06162, equations 2.6-2.11",),
    )


def adam_drift() -> Derivation:
    """Slope and step cost of Adam where all coordinates are alike, with limits, series and epsilon."""
    square = normal_mean(v.g**2, v.g, mean=v.G_i, variance=v.sigma**2 / v.B)
    slope = normal_mean(v.g * v.G_i, v.g, mean=v.G_i, variance=v.sigma**2 / v.B) / sp.sqrt(square)
    alike = sp.simplify(slope.subs(v.sigma, v.G_i * sp.sqrt(v.B_noise)).subs(v.B, v.b * v.B_noise))
    most = sp.limit(alike, v.b, sp.oo)
    relative = sp.simplify(alike / most)
    signal = sp.simplify(relative / sp.sqrt(v.b))
    with_epsilon = sp.simplify(
        (v.G_i**2 / (sp.sqrt(square) + v.eps * v.G_i))
        .subs(v.sigma, v.G_i * sp.sqrt(v.B_noise))
        .subs(v.B, v.b * v.B_noise)
        / v.G_i
    )
    # E[g'Hg] over E|g|^2, both as sums over coordinates: a batch normalised by its root mean square norm.
    bent = normal_mean(v.h * v.g**2, v.g, mean=v.G_i, variance=v.sigma**2 / v.B)
    curvature = _over_coordinates(bent) / _over_coordinates(square)
    ratio = (v.GHG / v.G_square) / (v.HSigma / v.trace)
    at_signal = sp.limit(curvature, v.B, sp.oo)
    along = only(sp.solve(sp.Eq(v.h_ratio, ratio), v.HSigma))
    cost = sp.factor(sp.simplify((curvature / at_signal).subs(v.HSigma, along).subs(v.trace, v.B * v.G_square / v.b)))
    return Derivation(
        name="adam_drift",
        title="Adam's slope: the drift form",
        assumptions=(
            "A coordinate's update is its gradient over its own root mean square, `u = g/sqrt(<g^2>)`: `beta_2` near "
            "1, epsilon negligible but where it is named, and a small rate.",
            "The batch's gradient is normal with mean `G` and variance `sigma^2/B`.",
            "For the slope all coordinates have the same signal-to-noise, so that `sigma^2 = B_noise G^2`; "
            "`b = B/B_noise`.",
            "For the curvature, `h`, they need not, and the whole batch is normalised by the root mean square of its "
            "norm, `g/sqrt(<|g|^2>)`, on a quadratic loss in its eigenbasis. Where all are alike, `h_ratio` is 1 and "
            "`h` constant.",
        ),
        steps=(
            Step(says="Mean square of the gradient.", equation=sp.Eq(sp.Symbol(r"\langle g^2\rangle"), square)),
            Step(says="Slope along the expected update, `<u> G`.", equation=sp.Eq(v.A, slope)),
            Step(
                says="In terms of `b`, relative to its limit for large batches.",
                equation=sp.Eq(sp.Symbol(r"A/A_\infty"), relative),
            ),
            Step(
                says="Small batches: the root of the batch, less a share `b/2`.",
                equation=sp.Eq(sp.Symbol(r"A/A_\infty"), sp.series(relative, v.b, 0, 3)),
            ),
            Step(
                says="Large batches, in `z = 1/b`.",
                equation=sp.Eq(
                    sp.Symbol(r"A/A_\infty"), sp.series(sp.simplify(relative.subs(v.b, 1 / v.z)), v.z, 0, 3)
                ),
            ),
            Step(
                says="Curvature that an update of fixed norm meets, the mean of `g'Hg` over that of `|g|^2`.",
                equation=sp.Eq(v.h, curvature),
            ),
            Step(
                says="Over its limit for large batches; `h_ratio` is the curvature along the signal over that along "
                "the noise.",
                equation=sp.Eq(sp.Symbol(r"h/h_\infty"), cost),
            ),
        ),
        results={
            "usable_slope": sp.Eq(sp.Symbol(r"A/A_\infty"), relative),
            "signal_function": sp.Eq(sp.Symbol("f"), signal),
            "epsilon_slope": sp.Eq(sp.Symbol(r"A_\epsilon/A_\infty"), with_epsilon),
            "step_cost": sp.Eq(sp.Symbol(r"h/h_\infty"), cost),
        },
        ships=(
            "learning.progress:usable_slope",
            "learning.progress:signal_function",
            "learning.progress:step_cost",
            "learning.progress:slope_from_moments",
            "learning.mechanism:epsilon_slope",
        ),
        sources=("the package's own; `<g^2>` from McCandlish et al. 2018, arXiv:1812.06162, appendix A.1",),
    )


def adam_coordinates() -> Derivation:
    """Slope of Adam where signal-to-noise is Gamma-distributed over coordinates."""
    density = v.k**v.k * v.y ** (v.k - 1) * sp.exp(-v.k * v.y) / sp.gamma(v.k)
    slope = v.G_i**2 / sp.sqrt(v.G_i**2 + v.sigma**2 / v.B)
    one = sp.simplify(slope.subs(v.G_i, v.sigma * sp.sqrt(v.y / v.B_noise)).subs(v.B, v.b * v.B_noise))
    share = sp.simplify(one * sp.sqrt(v.B_noise) / (v.sigma * sp.sqrt(v.b)))
    definition = sp.Integral(share * density, (v.y, 0, sp.oo))

    root = 2 / sp.sqrt(sp.pi) * sp.Integral(sp.exp(-(v.s_node**2) * (1 + v.u)), (v.s_node, 0, sp.oo))
    laplace = sp.simplify(sp.integrate(v.y * density * sp.exp(-v.u * v.y), (v.y, 0, sp.oo), conds="none"))
    integrand = sp.exp(-(v.s_node**2)) * laplace.subs(v.u, v.b * v.s_node**2)
    form = 2 / sp.sqrt(sp.pi) * sp.Integral(integrand, (v.s_node, 0, sp.oo))

    def moment(order: sp.Expr) -> sp.Expr:
        return sp.gammasimp(sp.integrate(v.y**order * density, (v.y, 0, sp.oo), conds="none"))

    terms = sp.series(1 / sp.sqrt(1 + v.u), v.u, 0, 3).removeO()
    small = sum(sp.factor(sp.simplify(moment(sp.Integer(i + 1)))) * terms.coeff(v.u, i) * v.b**i for i in range(3))
    large = sp.simplify(moment(sp.Rational(1, 2)))
    alike = sp.limit(laplace.subs(v.u, v.b * v.s_node**2), v.k, sp.oo)
    drift = sp.simplify(2 / sp.sqrt(sp.pi) * sp.integrate(sp.exp(-(v.s_node**2)) * alike, (v.s_node, 0, sp.oo)))
    first = sp.simplify(-2 * small.coeff(v.b, 1)) if small.is_Add else sp.nan
    return Derivation(
        name="adam_coordinates",
        title="Adam's slope: the coordinate form",
        assumptions=(
            "As for the drift form, but the signal-to-noise of a coordinate is `G^2/sigma^2 = y/B_noise` with `y` "
            "Gamma-distributed over coordinates, shape `k` and mean 1.",
            "`y` and `sigma` are independent, so that `B_noise` is still `tr(Sigma)/|G|^2`.",
        ),
        steps=(
            Step(
                says="Slope of one coordinate, over `sigma sqrt(b/B_noise)`.",
                equation=sp.Eq(sp.Symbol(r"A_i\,/\,\sigma\sqrt{b/B_\mathrm{noise}}"), share),
            ),
            Step(says="Its mean over coordinates defines `f_k`.", equation=sp.Eq(sp.Symbol("f_k"), definition)),
            Step(
                says="The inverse root as an integral, in which `y` stands in an exponent.",
                equation=sp.Eq(root.doit(), root, evaluate=False),
            ),
            Step(
                says="The mean of `y exp(-u y)` over the Gamma density.",
                equation=sp.Eq(sp.Integral(v.y * density * sp.exp(-v.u * v.y), (v.y, 0, sp.oo)), laplace),
            ),
            Step(says="Both together, with `u = b zeta^2`.", equation=sp.Eq(sp.Symbol("f_k"), form)),
            Step(
                says="Small batches, from the moments of `y`: departure comes `1 + 1/k` times earlier than for the "
                "drift form.",
                equation=sp.Eq(sp.Symbol("f_k"), small + sp.O(v.b**3)),
            ),
            Step(
                says="Large batches: `sqrt(b) f_k` tends to the mean of `sqrt(y)`.",
                equation=sp.Eq(sp.Symbol(r"\lim \sqrt{b} f_k"), large),
            ),
            Step(
                says="Without spread, `k` to infinity, it is the drift form.",
                equation=sp.Eq(sp.Symbol(r"f_\infty"), drift),
            ),
        ),
        results={
            "definition": sp.Eq(sp.Symbol("f_k"), definition),
            "signal_function": sp.Eq(sp.Symbol("f_k"), form),
            "small": sp.Eq(sp.Symbol(r"f_k^{b\to0}"), small),
            "large": sp.Eq(sp.Symbol(r"\lim \sqrt{b} f_k"), large),
            "drift": sp.Eq(sp.Symbol(r"f_\infty"), drift),
            "first_order_factor": sp.Eq(sp.Symbol(r"\lim 2(1 - f_k)/b"), first),
        },
        ships=("learning.progress:signal_function", "learning.progress:usable_slope"),
        sources=("the package's own",),
    )


def sample_cost() -> Derivation:
    """Updates to a given progress at any rate: the law of sample cost for the quadratic penalty."""
    gain = v.eta * v.A - v.eta**2 * v.h / 2
    best = only(sp.solve(sp.diff(gain, v.eta), v.eta))
    at_0 = {v.A: v.A_0, v.h: v.h_0}
    eta_0 = v.c_0 * best.subs(at_0)
    reference = gain.subs(at_0, simultaneous=True).subs(v.eta, eta_0)
    candidate = gain.subs(v.eta, v.s * eta_0)
    names = {v.A: v.A_0 / v.rk, v.h: v.hr * v.h_0}
    updates = sp.factor(sp.simplify((reference / candidate).subs(names)))
    cost = v.x * updates
    tuned_rate = only(sp.solve(sp.diff(candidate.subs(names), v.s), v.s))
    tuned = sp.factor(sp.simplify(cost.subs(v.s, tuned_rate)))
    slope = adam_drift().results["usable_slope"].rhs
    drift = slope.subs(v.b, v.B_0 / v.B_noise) / slope.subs(v.b, v.B / v.B_noise)
    hyperbola = sp.factor(sp.simplify(tuned.subs({v.rk: drift, v.hr: 1, v.x: v.B / v.B_0})))
    return Derivation(
        name="sample_cost",
        title="The law of sample cost",
        assumptions=(
            "An update at rate `eta` gains `eta A - eta^2 h/2`, `A` and `h` of its batch and the same all along the "
            "way.",
            "The reference's rate is `c_0` times its best one; the candidate's is `s` times the reference's.",
            "`r_k = A_0/A`, `h_r = h/h_0`, `x = B/B_0`; both recipes reach the same score.",
        ),
        steps=(
            Step(says="The best rate.", equation=sp.Eq(v.eta, best)),
            Step(says="Updates are inverse to the gain per update.", equation=sp.Eq(sp.Symbol("S/S_0"), updates)),
            Step(says="The rate ratio of the largest gain.", equation=sp.Eq(v.s, tuned_rate)),
            Step(
                says="Both batches tuned, with the drift form's slope: the hyperbola again, times the reference's "
                "distance from its own optimum.",
                equation=sp.Eq(v.r_N, hyperbola),
            ),
        ),
        results={
            "ratio": sp.Eq(v.r_N, cost),
            "tuned_rate": sp.Eq(v.s, tuned_rate),
            "tuned": sp.Eq(v.r_N, tuned),
            "tuned_drift": sp.Eq(v.r_N, hyperbola),
            "slow": sp.Eq(v.r_N, sp.limit(cost, v.c_0, 0)),
        },
        ships=("learning.sample_cost:cost_at_rate", "learning.sample_cost:sample_cost_ratio"),
        sources=("the package's own; at the best rate McCandlish et al. 2018, arXiv:1812.06162, equation 2.11",),
    )


def penalty() -> Derivation:
    """Share of its progress that a step keeps, and the sample cost with it."""
    function = v.kept(v.c)
    falls = -v.kappa * function ** (1 + v.p)
    # g^-p grows linearly, from 1.
    speed = sp.simplify(sp.diff(function ** (-v.p), v.c).subs(sp.Derivative(function, v.c), falls))
    kept = (1 + sp.integrate(speed, (v.c, 0, v.c))) ** (-1 / v.p)
    peak = sp.simplify(sp.diff(sp.log(v.c * kept), v.c).subs(v.c, 1))
    strength = only(sp.solve(peak, v.kappa))
    factor = sp.simplify(kept.subs(v.kappa, strength))
    quadratic = sp.simplify(factor.subs(v.p, -1))
    soft = sp.simplify(sp.exp(sp.limit(sp.log(factor), v.p, 0)))
    cost = v.x * v.rk / v.s * factor.subs(v.c, v.c_0) / factor.subs(v.c, v.c_0 * v.s * v.rk * v.hr)
    return Derivation(
        name="penalty",
        title="Steps that lose their progress",
        assumptions=(
            "A step at `c` times the best rate keeps the share `g(c)` of its linear progress, `g(0) = 1`.",
            "The share falls as a power of itself, `g' = -kappa g^(1 + p)`, with `p < 1`; for `p < 0` it ends at 0, at "
            "`c = (1 - p)/|p|`, beyond which nothing is learned.",
            "Progress `c g(c)` is largest at `c = 1`: that is what the best rate means.",
        ),
        steps=(
            Step(says="The share's equation.", equation=sp.Eq(sp.Derivative(function, v.c), falls)),
            Step(
                says="So that `g^-p` grows at a constant speed.",
                equation=sp.Eq(sp.Derivative(function ** (-v.p), v.c), speed),
            ),
            Step(says="Its solution.", equation=sp.Eq(function, kept)),
            Step(says="The strength that puts the best rate at `c = 1`.", equation=sp.Eq(v.kappa, strength)),
            Step(says="The quadratic penalty, `p = -1`.", equation=sp.Eq(sp.Symbol("g_{-1}"), quadratic)),
            Step(says="The limit `p` to 0.", equation=sp.Eq(sp.Symbol("g_{0}"), soft)),
        ),
        results={
            "factor": sp.Eq(sp.Symbol("g_p"), factor),
            "quadratic": sp.Eq(sp.Symbol("g_{-1}"), quadratic),
            "exponential": sp.Eq(sp.Symbol("g_{0}"), soft),
            "ratio": sp.Eq(v.r_N, cost),
        },
        ships=("learning.progress:log_progress_factor", "learning.sample_cost:cost_at_rate"),
        sources=("the package's own",),
    )
