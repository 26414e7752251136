r"""The machine: when products turn compute-bound, what routing touches, what fits, and how old responses are.

A product reads its weights once and multiplies them with every row, so that both times are equal at a number of rows
that the GPU and the bytes per weight decide; of experts all are read and k of E are multiplied. Memory holds as many
responses as their mean context allows; by Little's law what is in flight over what is used per update is the age of a
response.

    n = F w/(2 BW),     E (1 - (1 - k/E)^n),     C = D (mu M TP - W)/(kappa L),     lag = in_flight/B

References
----------
.. [1] Williams, Waterman, Patterson 2009, "Roofline", CACM 52(4).
.. [2] Little 1961, "A proof for the queuing formula L = lambda W", Operations Research 9:383.
.. [3] Li et al. 2026, arXiv:2608.29296, local model of the generation time.
"""

from __future__ import annotations

import sympy as sp

from batchsim.theory import quantities as v
from batchsim.theory.derivation import Derivation, Step, only


def roofline_ridge() -> Derivation:
    """Rows at which a dense product, and experts, turn from memory-bound to compute-bound."""
    reading = v.w_bytes * v.width / v.BW
    multiplying = 2 * v.FLOP * v.rows * v.width / v.F
    dense = only(sp.solve(sp.Eq(reading, multiplying), v.rows))
    experts = only(sp.solve(sp.Eq(v.E_experts * reading, multiplying * v.k_experts), v.rows))
    intensity = sp.simplify((multiplying * v.F) / (reading * v.BW))
    return Derivation(
        name="roofline_ridge",
        title="The ridge, dense and with experts",
        assumptions=(
            "A product with `m_w` weights of `w` bytes reads them once in a step, whatever the rows, and spends 2 "
            "FLOP per weight and row; activations are few beside the weights.",
            "Reading and multiplying overlap: the slower one decides.",
            "A layer of experts reads all `E` of them, and a row is multiplied by `k_E`.",
        ),
        steps=(
            Step(says="Time to read.", equation=sp.Eq(sp.Symbol(r"t_\mathrm{read}"), reading)),
            Step(says="Time to multiply.", equation=sp.Eq(sp.Symbol(r"t_\mathrm{mult}"), multiplying)),
            Step(
                says="FLOP per byte: it grows with the rows alone, and reaches `F/BW` at the ridge.",
                equation=sp.Eq(sp.Symbol("I"), intensity),
            ),
        ),
        results={
            "dense": sp.Eq(v.rows, dense),
            "experts": sp.Eq(v.rows, experts),
            "later": sp.Eq(sp.Symbol(r"n_E/n"), sp.simplify(experts / dense)),
        },
        ships=("system.roofline:ridge",),
        sources=("Williams, Waterman, Patterson 2009, CACM 52(4), for the roofline",),
    )


def touched_experts() -> Derivation:
    """Experts that a batch of tokens touches."""
    seen = v.U_of_n
    adds = sp.Eq(seen(v.tokens + 1), seen(v.tokens) + (v.E_experts - seen(v.tokens)) * v.k_experts / v.E_experts)
    found = sp.powsimp(sp.simplify(sp.rsolve(adds, seen(v.tokens), {seen(0): 0})), force=True)
    few = sp.simplify(found.subs(v.tokens, 1))
    return Derivation(
        name="touched_experts",
        title="Experts that a batch touches",
        assumptions=(
            "A token goes to `k_E` of `E` experts, each as likely as another, independently of the tokens before it. "
            "`U` is the expected number of experts touched.",
        ),
        steps=(
            Step(says="The next token touches its share of those not yet touched.", equation=adds),
            Step(says="One token touches", equation=sp.Eq(seen(1), few)),
        ),
        results={"touched": sp.Eq(sp.Symbol("U"), found)},
        ships=("system.roofline:touched_experts",),
        sources=("the package's own",),
    )


def kv_capacity() -> Derivation:
    """Responses whose caches fit, and the mean context of one in flight."""
    used = v.weight_bytes + v.C / v.replicas * v.kv_bytes * v.context
    fits = only(sp.solve(sp.Eq(used, v.memory_share * v.memory * v.tp), v.C))
    # A response of length L_r is in flight for L_r steps and has written l tokens after l of them.
    area = sp.integrate(v.prompt_tokens + v.written, (v.written, 0, v.response_tokens))
    equal = sp.expand(sp.simplify(area / v.response_tokens))
    powers = sp.Poly(area, v.response_tokens)
    averages = {0: sp.Integer(1), 1: v.mean_response, 2: v.square_response}
    mean = sum(coefficient * averages[power] for (power,), coefficient in powers.terms())
    unequal = sp.expand(sp.simplify(mean / v.mean_response))
    return Derivation(
        name="kv_capacity",
        title="What memory holds",
        assumptions=(
            "A replica of `TP` GPUs gives the share `mu` of its memory to weights and cache; a response in flight "
            "holds `kappa_KV` bytes per token of context.",
            "Responses decode at a common speed, one token per step, and slots are refilled at once.",
        ),
        steps=(
            Step(
                says="Token-steps of a response, from its prompt to its end.",
                equation=sp.Eq(sp.Symbol("A_r"), sp.expand(area)),
            ),
            Step(
                says="Over its steps in flight, where all responses have one length: the prompt and half of the "
                "response.",
                equation=sp.Eq(v.context, equal),
            ),
            Step(
                says="Where lengths differ, long responses are in flight for longer. Averages are over responses.",
                equation=sp.Eq(v.context, unequal),
            ),
        ),
        results={
            "concurrency": sp.Eq(v.C, fits),
            "context_equal": sp.Eq(v.context, equal),
            "context_unequal": sp.Eq(v.context, unequal),
        },
        ships=("system.memory:concurrency_max", "specs.lengths:Lengths", "system.rollout.lengths:steady_context"),
        sources=("Kwon et al. 2023, arXiv:2309.06180, for the paged cache",),
    )


def decode_steps() -> Derivation:
    """Time of m decode steps of an unchanged batch."""
    at = v.t_n + v.t_context * (v.context_sum + v.rows * v.j * v.one_token)
    total = sp.simplify(sp.summation(at, (v.j, 0, v.steps - 1)))
    return Derivation(
        name="decode_steps",
        title="Decode steps of an unchanged batch",
        assumptions=(
            "A step of `n` sequences takes `t_n` and `kappa_t` per token of their contexts.",
            "Every step adds one token, `1_t`, to each context.",
        ),
        steps=(Step(says="Step number `j`.", equation=sp.Eq(sp.Symbol("t_j"), at)),),
        results={"total": sp.Eq(v.time, total)},
        ships=("system.decode_law:DecodeLaw",),
        sources=("the package's own",),
    )


def generation() -> Derivation:
    """Plateau of capped concurrency, and the batch that reaches a share of the plateau."""
    waves = v.B_gen / v.C
    capped = waves * (v.d_0 + v.d_1 * v.C)
    plateau = sp.simplify(v.B_gen / capped)
    affine = v.d_0 + v.d_1 * v.B_gen
    free = sp.limit(v.B_gen / affine, v.B_gen, sp.oo)
    reaches = only(sp.solve(sp.Eq(v.B_gen / affine, v.share * v.q_gen), v.B_gen))
    return Derivation(
        name="generation",
        title="Generation and its plateau",
        assumptions=(
            "Generating `B_gen` responses at once takes `d_0 + d_1 B_gen`.",
            "At most `C` of them run at the same time: more are generated in waves of `C`, and a part of a wave takes "
            "that part of its time, as where slots are refilled at once.",
        ),
        steps=(
            Step(says="Time of all waves.", equation=sp.Eq(sp.Symbol(r"t_\mathrm{gen}"), capped)),
            Step(says="Throughput without a cap tends to", equation=sp.Eq(sp.Symbol(r"\lim q"), free)),
        ),
        results={
            "plateau": sp.Eq(v.q_gen, plateau),
            "critical": sp.Eq(v.B_gen, sp.simplify(reaches)),
            "critical_free": sp.Eq(v.B_gen, sp.simplify(reaches.subs(v.q_gen, free))),
        },
        ships=("system.pipeline:capped_throughput", "system.pipeline:critical_gen_batch", "system.pipeline:gen_time"),
        sources=("Li et al. 2026, arXiv:2608.29296, local model `t_gen = d_0 + d_1 B_gen`",),
    )


def staleness() -> Derivation:
    """Age of a response when it is used, from what is in flight and from updates that share a rollout."""
    waiting = sp.Eq(v.in_flight * v.horizon, v.rate * v.horizon * v.sojourn)
    stay = only(sp.solve(waiting, v.sojourn))
    per_update = stay.subs(v.rate, v.B / v.t_update) / v.t_update
    position = sp.simplify(sp.summation((v.j - 1) / v.M, (v.j, 1, v.M)))
    # M updates of rollout_batch/M responses each use up a rollout.
    lag = sp.expand(sp.simplify(position + per_update.subs(v.B, v.R / v.M)))
    return Derivation(
        name="staleness",
        title="Staleness from concurrency",
        assumptions=(
            "Over a long time as many responses are used as are launched, `B` per update of `t_u` seconds.",
            "Within a rollout step of `M` updates the `m`-th one uses responses of the same age plus `m - 1` updates.",
        ),
        steps=(
            Step(
                says="Response-seconds over a time: the number in flight times the time, and also the number that "
                "came through times the time of each.",
                equation=waiting,
            ),
            Step(says="Little's law: the time from launch to use.", equation=sp.Eq(v.sojourn, stay)),
            Step(says="In updates, with `B/t_u` responses per second.", equation=sp.Eq(sp.Symbol("L"), per_update)),
            Step(
                says="Mean position within the `M` updates of a rollout step.",
                equation=sp.Eq(sp.Symbol(r"\langle m - 1\rangle"), position),
            ),
        ),
        results={
            "in_flight": sp.Eq(sp.Symbol("L"), per_update),
            "lag": sp.Eq(sp.Symbol("L"), lag),
        },
        ships=("learning.mechanism:rollout_lag",),
        sources=("Little 1961, Operations Research 9:383",),
    )
