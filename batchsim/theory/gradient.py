r"""Moments of a batch's gradient: what averaging leaves, what prompts and responses add, and what norms reveal.

Responses are drawn independently, so that a mean of n of them keeps its expectation and loses all but 1/n of its
variance. Everything here is counting pairs of responses by what they share, and solving for what norms hide:

    E|g_B|^2 = |G|^2 + tr(Sigma)/B                                   pairs: the same response or another one
    tr Cov   = V_prompt/P + V_resp/(P G)                             pairs: the same prompt too

from which the unbiased pair of McCandlish, the nested analysis of variance, and B_noise in responses follow. Adam's two
averages and GRPO's group baseline are sums of the same kind.

References
----------
.. [1] McCandlish et al. 2018, arXiv:1812.06162, appendix A.1.
.. [2] Searle, Casella, McCulloch 1992, "Variance Components", chapter 3.
"""

from __future__ import annotations

import sympy as sp

from batchsim.theory import quantities as v
from batchsim.theory.derivation import Derivation, Step, endless_sum, only


def batch_gradient() -> Derivation:
    """Square norm of a batch's gradient, and the two moments from norms at two batches."""
    second = v.G_i**2 + v.sigma**2
    pairs = v.n * second + v.n * (v.n - 1) * v.G_i**2
    mean_square = sp.expand(sp.simplify(pairs / v.n**2))
    norm = v.G_square + v.trace / v.B
    noise = only(sp.solve(sp.Eq(norm, 2 * v.G_square), v.B))
    two = sp.solve(
        [
            sp.Eq(v.s_chunk, norm.subs(v.B, v.B_small)),
            sp.Eq(v.s_batch, norm),
        ],
        [v.G_square, v.trace],
        dict=True,
    )
    pair = only(two)
    factored = sp.simplify(norm.subs(v.trace, v.B_noise * v.G_square))
    return Derivation(
        name="batch_gradient",
        title="The norm of a batch's gradient, and the unbiased pair",
        assumptions=(
            "Responses (for GRPO: prompt groups) are drawn independently; one has the gradient `G` in expectation and "
            "the variance `sigma^2` in a coordinate.",
            "A chunk and the whole batch are averages of such draws at the same parameters.",
        ),
        steps=(
            Step(
                says="Of the `n^2` products in the square of a mean of `n` responses, `n` are squares and `n (n - 1)` "
                "are products of independent gradients.",
                equation=sp.Eq(sp.Symbol(r"\langle g_n^2\rangle"), mean_square),
                counts=True,
            ),
            Step(
                says="Summed over coordinates.", equation=sp.Eq(sp.Symbol(r"\langle \lvert g_B\rvert^2\rangle"), norm)
            ),
            Step(
                says="The batch at which noise and signal are equal is the noise scale.",
                equation=sp.Eq(v.B_noise, noise),
            ),
            Step(
                says="In its terms; a gradient of another unit changes neither side's ratio.",
                equation=sp.Eq(sp.Symbol(r"\langle \lvert g_B\rvert^2\rangle"), factored),
            ),
        ),
        results={
            "square_norm": sp.Eq(v.s_batch, norm),
            "noise_scale": sp.Eq(v.B_noise, noise),
            "signal": sp.Eq(v.G_square, sp.simplify(pair[v.G_square])),
            "trace": sp.Eq(v.trace, sp.simplify(pair[v.trace])),
        },
        ships=("learning.noise_scale:from_chunk_norms", "learning.noise_scale:from_logged_norms"),
        sources=("McCandlish et al. 2018, arXiv:1812.06162, appendix A.1",),
    )


def nested_noise() -> Derivation:
    """Variance of a batch of prompt groups, its parts from norms, and P G as the unit."""
    cells = v.P * v.G_size
    same, prompt = v.V_prompt + v.V_response, v.V_prompt
    pairs = cells * same + cells * (v.G_size - 1) * prompt
    covariance = sp.expand(sp.simplify(pairs / cells**2))
    batch = v.G_square + covariance
    group = batch.subs(v.P, 1)
    response = group.subs(v.G_size, 1)
    equations = [sp.Eq(v.s_response, response), sp.Eq(v.s_group, group), sp.Eq(v.s_batch, batch)]
    found = only(sp.solve(equations, [v.G_square, v.V_prompt, v.V_response], dict=True))
    between = sp.factor(sp.simplify(v.G_size * found[v.V_prompt] + found[v.V_response]))
    noise = only(sp.solve(sp.Eq(covariance.subs(v.P, v.B / v.G_size), v.G_square), v.B))
    # A random cut of the batch into chunks sees single responses about the batch mean.
    mixed = sp.simplify((response - batch) * cells / (cells - 1))
    return Derivation(
        name="nested_noise",
        title="Prompts, responses, and P G as the unit",
        assumptions=(
            "A response's gradient is the expectation, plus a part of its prompt with trace of covariance `V_prompt`, "
            "plus a part of its own with `V_resp`; prompts are independent, and so are responses to one prompt.",
            "A batch is `P` prompts with `G_s` responses each.",
        ),
        steps=(
            Step(
                says="Of the `(P G)^2` pairs of responses, `P G` are one response twice and `P G (G - 1)` share their "
                "prompt alone; all others are independent.",
                equation=sp.Eq(sp.Symbol(r"\mathrm{tr\,Cov}"), covariance),
                counts=True,
            ),
            Step(
                says="The batch at which this equals the signal, at a fixed group size: the noise scale in responses. "
                "Where `G_s V_prompt` is small beside `V_resp` it hardly depends on the group size, and `P G` alone "
                "counts; elsewhere the group size counts too.",
                equation=sp.Eq(v.B_noise, noise),
                counts=True,
            ),
            Step(
                says="How it grows with the group size at a fixed batch.",
                equation=sp.Eq(sp.Derivative(v.B_noise, v.G_size), sp.diff(noise, v.G_size)),
                counts=True,
            ),
            Step(
                says="Expected squares of the norms of a response, of a group and of the batch, solved for the "
                "prompts' part.",
                equation=sp.Eq(v.V_prompt, sp.factor(sp.simplify(found[v.V_prompt]))),
                counts=True,
            ),
            Step(
                says="`M_s` is the trace of covariance per response that whole groups as chunks show, whose ratio to "
                "the signal is `B_noise`; below it stands in terms of the norms.",
                equation=sp.Eq(sp.Symbol("M_s"), v.G_size * v.V_prompt + v.V_response),
                counts=True,
            ),
            Step(
                says="`M_x` is the one that chunks cut at random from the batch show: a response about the batch's "
                "mean, `P G/(P G - 1)` times the difference of their square norms.",
                equation=sp.Eq(sp.Symbol("M_x"), mixed),
                counts=True,
            ),
        ),
        results={
            "square_norm": sp.Eq(v.s_batch, batch),
            "noise_scale": sp.Eq(v.B_noise, noise),
            "signal": sp.Eq(v.G_square, sp.factor(sp.simplify(found[v.G_square]))),
            "response_variance": sp.Eq(v.V_response, sp.factor(sp.simplify(found[v.V_response]))),
            "prompt_variance": sp.Eq(v.V_prompt, sp.factor(sp.simplify(found[v.V_prompt]))),
            "group_trace": sp.Eq(sp.Symbol("M_s"), between),
            "mixed_trace": sp.Eq(sp.Symbol("M_x"), mixed),
        },
        ships=("learning.noise_scale:from_nested_norms", "learning.noise_scale:NestedNoise"),
        sources=("Searle, Casella, McCulloch 1992, chapter 3", "Li et al. 2026, arXiv:2608.29296, figure 5"),
        counts=frozenset(
            (
                "square_norm",
                "noise_scale",
                "signal",
                "response_variance",
                "prompt_variance",
                "group_trace",
                "mixed_trace",
            )
        ),
    )


def mean_norm() -> Derivation:
    """What the square of a mean norm lacks."""
    deviation = v.variation * v.mean_norm
    square = only(sp.solve(sp.Eq(deviation**2, v.norm_square - v.mean_norm**2), v.norm_square))
    return Derivation(
        name="mean_norm",
        title="A logged mean of norms",
        assumptions=(
            "A log holds the mean `m` of norms whose standard deviation is `nu m`.",
            "The estimators need the mean of their squares.",
        ),
        steps=(Step(says="A variance is a mean square less a squared mean.", equation=sp.Eq(v.norm_square, square)),),
        results={"bias": sp.Eq(sp.Symbol(r"\mathrm{bias}"), sp.simplify(v.mean_norm**2 / square))},
        ships=("learning.noise_scale:mean_norm_bias",),
        sources=("the package's own",),
    )


def adam_state() -> Derivation:
    """What Adam's two averages say of a coordinate's signal-to-noise."""
    weight = (1 - v.beta) * v.beta**v.j
    unit = endless_sum(weight, v.j, v.beta)
    squares = endless_sum(weight**2, v.j, v.beta)
    mean_square = v.G_i**2 + v.sigma**2 / v.B * squares
    ratio = sp.simplify((mean_square / (v.G_i**2 + v.sigma**2 / v.B)).subs(v.sigma, v.G_i * sp.sqrt(v.B / v.b)))
    return Derivation(
        name="adam_state",
        title="Adam's state",
        assumptions=(
            "The first moment averages independent gradients of one coordinate with weights `(1 - beta) beta^j`, whose "
            f"sum is {unit}; the second averages so many that it equals its expectation, `G^2 + sigma^2/B`.",
            "The parameters hardly move while the averages run. `b` is `B G^2/sigma^2` of the coordinate.",
        ),
        steps=(
            Step(
                says="Sum of the squared weights, the share of the variance that the average keeps.",
                equation=sp.Eq(sp.Symbol(r"\varrho"), squares),
            ),
            Step(
                says="Square of the first moment in expectation.",
                equation=sp.Eq(sp.Symbol(r"\langle m^2\rangle"), mean_square),
            ),
        ),
        results={"ratio": sp.Eq(sp.Symbol(r"\langle m^2/v\rangle"), sp.factor(ratio))},
        ships=("learning.noise_scale:from_adam_state",),
        sources=("Kingma and Ba 2015, arXiv:1412.6980, algorithm 1, for the weights",),
    )


def group_baseline() -> Derivation:
    """How much of a prompt's signal a group with K right answers carries."""
    accuracy = v.K_right / v.G_count
    wrong = v.G_count - v.K_right
    deviation = sp.sqrt(sp.factor(sp.simplify((v.K_right * (1 - accuracy) ** 2 + wrong * accuracy**2) / v.G_count)))
    total = (v.K_right * (1 - accuracy) * v.mu_right - wrong * accuracy * v.mu_wrong) / v.G_count
    gap = sp.Symbol("d_\\mu", real=True)
    plain = sp.factor(sp.simplify(total.subs(v.mu_right, v.mu_wrong + gap)) / gap)
    normalised = sp.sqrt(sp.factor(sp.simplify(plain**2 / deviation**2)))
    return Derivation(
        name="group_baseline",
        title="A baseline from the prompt's own group",
        assumptions=(
            "Rewards are 1 or 0; of `G_s` responses to a prompt `K` are right.",
            "Advantages are rewards less the group's mean, over its standard deviation or not; right answers have a "
            "mean score that lies `d_mu` above that of wrong ones.",
        ),
        steps=(
            Step(says="Standard deviation of the rewards.", equation=sp.Eq(sp.Symbol("s_r"), deviation), counts=True),
            Step(
                says="Mean of advantage times score over the group, in units of `d_mu`, without the division.",
                equation=sp.Eq(sp.Symbol("f_K"), plain),
                counts=True,
            ),
        ),
        results={
            "plain": sp.Eq(sp.Symbol("f_K"), plain),
            "normalised": sp.Eq(sp.Symbol(r"f_K^\mathrm{norm}"), normalised),
        },
        ships=("learning.noise_scale:group_signal",),
        sources=("Shao et al. 2024, arXiv:2402.03300, section 4.1, for the advantage",),
        counts=frozenset(("plain", "normalised")),
    )
