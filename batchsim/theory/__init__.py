r"""The closed forms of the package, derived in SymPy from what they assume.

    T = N*/q                          from dJ/dt and a constant rate                      criterion
    E|g_B|^2, tr Cov                  from independent responses and prompts              gradient
    McCandlish's trade-off, A(B)      from a quadratic loss and normal gradients          progress
    learning-rate rules               from constant progress per response                 rates
    the best batch, the regimes       from a sample cost and an affine time               optimum
    ridge, experts, KV cache, age     from bytes, FLOPs, independent routing, Little's law  system
    floor, momentum, penalty          from the equation that each stands for              mechanism

Each is a function that starts from assumptions and lets SymPy solve, integrate, expand or take limits; it returns a
`Derivation` with its steps, its results, who ships them and who stated them first. No module of the package imports
this one: the tests evaluate the results at 30 digits and compare the NumPy functions with them, so that a wrong sign
must be made twice, in two languages, to go unseen. `docs/derivations.md` is written from here.

What is fitted and not derived has no place here: priors, the staleness factor, efficiencies of kernels.

Needs SymPy and mpmath (extra `theory`, part of `test`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from batchsim.theory.criterion import changing_throughput, criterion
from batchsim.theory.derivation import Derivation as Derivation
from batchsim.theory.derivation import Step as Step
from batchsim.theory.gradient import adam_state, batch_gradient, group_baseline, mean_norm, nested_noise
from batchsim.theory.mechanism import few_updates, kl_penalty, noise_floor
from batchsim.theory.optimum import optimal_batch, regimes
from batchsim.theory.progress import adam_coordinates, adam_drift, mccandlish, penalty, sample_cost
from batchsim.theory.quantities import QUANTITIES as QUANTITIES
from batchsim.theory.quantities import Quantity as Quantity
from batchsim.theory.rates import companions, invariant_rate, rate_rules, trust_region
from batchsim.theory.system import decode_steps, generation, kv_capacity, roofline_ridge, staleness, touched_experts

DERIVATIONS: dict[str, Callable[[], Derivation]] = {
    function.__name__: function
    for function in (
        criterion,
        changing_throughput,
        batch_gradient,
        nested_noise,
        mean_norm,
        mccandlish,
        adam_drift,
        adam_coordinates,
        adam_state,
        group_baseline,
        sample_cost,
        penalty,
        rate_rules,
        invariant_rate,
        trust_region,
        companions,
        optimal_batch,
        regimes,
        roofline_ridge,
        touched_experts,
        kv_capacity,
        decode_steps,
        generation,
        staleness,
        noise_floor,
        few_updates,
        kl_penalty,
    )
}
"""Every derivation by name, in the order of the documents."""


@cache
def derive(name: str) -> Derivation:
    r"""Derive a closed form.

    Parameters
    ----------
    name : str
        A key of `DERIVATIONS`.

    Returns
    -------
    Derivation

    Raises
    ------
    KeyError
        For a name that does not exist.

    Examples
    --------
    >>> derive("staleness").results["in_flight"].rhs
    \ell_f/B
    >>> derive("optimal_batch").results["factor_of_two"].rhs
    9/8
    >>> str(derive("touched_experts").evaluate("touched", experts=8, per_token=2, tokens=3, digits=15))
    '4.625'
    """
    return DERIVATIONS[name]()
