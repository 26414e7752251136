"""The derivations against the package: what is shipped, what no table of numbers can show, and that they derive."""

from __future__ import annotations

import ast
import importlib
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import sympy as sp
from closed_forms import FORMS
from test_reference import FILES, stored

from batchsim import theory
from batchsim.learning import lr_rule, sample_cost
from batchsim.learning.noise_scale import group_signal
from batchsim.specs.gpus import find_gpu
from batchsim.specs.lengths import Lengths
from batchsim.specs.models import find_model
from batchsim.system import pipeline
from batchsim.system.rollout.lengths import steady_context
from batchsim.system.roofline import deploy, ridge
from batchsim.theory import DERIVATIONS, QUANTITIES, Derivation, derive
from batchsim.time_to_target import optimal_train_batch
from batchsim.variables import VARIABLES

FOLDER = Path(theory.__file__).parent
ROOT = FOLDER.parents[1]
HERE = Path(__file__)
# Results that are compared with the package by a test of their own, below.
JUDGED_BELOW = {
    "optimal_batch/curvature": "test_the_optimum_is_a_minimum",
    "regimes/exponent": "test_exponents_are_the_slopes_of_the_package",
    "regimes/balance": "test_exponents_are_the_slopes_of_the_package",
    "regimes/doubling_until": "test_doubling_pays_up_to_the_same_batch_in_both_orders",
    "regimes/corner": "test_a_cap_moves_the_best_batch_to_its_corner",
    "invariant_rate/room": "test_a_rate_that_costs_nothing_exists_exactly_where_the_root_is_real",
    "roofline_ridge/dense": "test_the_ridge_of_a_model_is_the_derived_one",
    "roofline_ridge/experts": "test_the_ridge_of_a_model_is_the_derived_one",
    "roofline_ridge/later": "test_the_ridge_of_a_model_is_the_derived_one",
    "kv_capacity/context_unequal": "test_long_responses_are_in_flight_for_longer",
}
INTEGRALS = {"signal_function", "definition"}


def every() -> list[Derivation]:
    return [derive(name) for name in DERIVATIONS]


class TestThatTheyDerive:
    @pytest.mark.parametrize("name", DERIVATIONS)
    def test_no_result_is_its_own_premise(self, name: str) -> None:
        derivation = derive(name)
        assert derivation.name == name
        assert derivation.assumptions
        assert derivation.steps
        assert derivation.sources
        for result, equation in derivation.results.items():
            assert isinstance(equation, sp.Equality), result
            assert not equation.lhs.free_symbols & equation.rhs.free_symbols, f"{result} has its left side on the right"

    def test_nothing_but_sympy_goes_in(self) -> None:
        """A derivation that called the package would be compared with itself."""
        allowed = {"sympy", "mpmath", "collections", "dataclasses", "functools", "typing", "__future__"}
        for path in FOLDER.glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = (
                    [a.name for a in node.names]
                    if isinstance(node, ast.Import)
                    else [node.module or ""]
                    if isinstance(node, ast.ImportFrom)
                    else []
                )
                for name in names:
                    if name.split(".")[0] == "batchsim":
                        assert name.startswith("batchsim.theory") or name == "batchsim.variables", (path.name, name)
                    else:
                        assert name.split(".")[0] in allowed, (path.name, name)

    def test_quantities_have_the_units_of_the_vocabulary(self) -> None:
        # These are in the gradient's unit, which a log does not know and a derivation does.
        ours = {"signal_square", "noise_trace", "prompt_variance", "response_variance", "usable_slope", "sq_norm_chunk"}
        ours |= {"sq_norm_batch", "learning_rate", "progress", "score", "time", "updates", "sample_cost_ratio"}
        for quantity in QUANTITIES.values():
            if quantity.name in VARIABLES and quantity.name not in ours:
                assert quantity.unit == VARIABLES[quantity.name].unit, quantity.name
        symbols = [q.symbol for q in QUANTITIES.values()]
        assert len(set(symbols)) == len(symbols)

    def test_every_result_is_compared_with_the_package(self) -> None:
        results = {f"{d.name}/{r}" for d in every() for r in d.results}
        assert results == set(FORMS) | set(JUDGED_BELOW)
        assert not set(FORMS) & set(JUDGED_BELOW)
        text = HERE.read_text(encoding="utf-8")
        assert all(f"def {name}(" in text for name in JUDGED_BELOW.values())

    @pytest.mark.parametrize("name", DERIVATIONS)
    def test_what_ships_it_exists(self, name: str) -> None:
        for entry in derive(name).ships:
            module, _, function = entry.partition(":")
            assert getattr(importlib.import_module(f"batchsim.{module}"), function), entry

    def test_values_that_are_missing_or_unknown_are_named(self) -> None:
        with pytest.raises(ValueError, match="criterion/time needs a value of throughput"):
            derive("criterion").evaluate("time", responses_to_target=1.0)
        with pytest.raises(ValueError, match="criterion/time does not depend on lr_fraction"):
            derive("criterion").evaluate("time", responses_to_target=1.0, throughput=1.0, lr_fraction=0.3)
        with pytest.raises(KeyError):
            derive("criterion").evaluate("time", throughputs=1.0, responses_to_target=1.0)
        with pytest.raises(KeyError):
            derive("no such")


@pytest.mark.parametrize("name", FILES)
def test_stored_reference_values_are_those_of_the_derivations(name: str) -> None:
    rows = stored(name)
    slow = [row for row in rows if row[0] in INTEGRALS and name == "adam_coordinates"]
    for result, arguments, exact in [row for row in rows if row not in slow] + slow[::9]:
        found = derive(name).evaluate(result, digits=40, **arguments)
        # SymPy's own quadrature of an endless integral is the weaker side where the integrand is narrow.
        close = mpmath.mpf(10) ** (-28 if (result, arguments, exact) not in slow else -6)
        with mpmath.workdps(40):
            assert mpmath.almosteq(found, mpmath.mpf(exact), rel_eps=close), (result, arguments)


def test_only_the_tests_need_sympy() -> None:
    script = (
        "import sys, batchsim, batchsim.predict, batchsim.measure, batchsim.validate, batchsim.cli.predict\n"
        "batchsim.predict, batchsim.measure, batchsim.plot_time_to_target, dir(batchsim)\n"
        "heavy = ('sympy', 'mpmath', 'hypothesis', 'batchsim.theory', 'batchsim.testing')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


# -- results that no table of numbers shows ---------------------------------------------------------


def test_faster_exactly_where_the_throughput_gains_more() -> None:
    gained = derive("criterion").steps[-1].equation.rhs
    r_n, r_q = QUANTITIES["sample_cost_ratio"].symbol, QUANTITIES["throughput_ratio"].symbol
    assert sp.simplify(gained / (r_q - r_n)).is_positive


def test_the_score_rises_by_the_chain_rule() -> None:
    chain = derive("criterion").steps[0].equation
    t = QUANTITIES["time"].symbol
    used = QUANTITIES["responses_used"].symbol(t)
    curve = sp.Lambda(sp.Symbol("z"), 1 - sp.exp(-sp.Symbol("z") / 3))
    filled = chain.subs(QUANTITIES["score"].symbol, curve).subs(used, 5 * t).doit()
    assert filled == True or sp.simplify(filled.lhs - filled.rhs) == 0  # noqa: E712


def test_the_optimum_is_a_minimum() -> None:
    second = derive("optimal_batch").results["curvature"].rhs
    assert second.is_positive
    point: dict[str, Any] = {
        "reference_batch": 64.0,
        "noise_scale": 3750.0,
        "update_time_intercept": 247.0,
        "update_time_slope": 0.71,
    }
    best = float(
        derive("optimal_batch").evaluate("tuned", **{k: v for k, v in point.items() if k != "reference_batch"})
    )

    def total(batch: float) -> float:
        cost = sample_cost.sample_cost_ratio(
            batch, reference_batch=64.0, noise_scale=3750.0, lr_fraction=1.0, lr_rule="tuned"
        )
        return float(cost) * (247.0 / batch + 0.71)

    step = best * 1e-3
    numeric = (total(best + step) - 2 * total(best) + total(best - step)) / step**2
    assert float(derive("optimal_batch").evaluate("curvature", **point)) == pytest.approx(numeric, rel=1e-4)


@pytest.mark.parametrize("rule", ["sqrt", "fixed"])
@pytest.mark.parametrize(("noise", "a"), [(3750.0, 348.0), (200.0, 5000.0), (1e5, 3.0)])
def test_optima_of_the_rules_are_those_of_the_package_searched_for(rule: str, noise: float, a: float) -> None:
    best = float(optimal_train_batch(noise_scale=noise, update_time_intercept=a, update_time_slope=1.0, lr_rule=rule))

    def total(batch: float) -> float:
        return float(sample_cost.sample_cost_ratio(batch, reference_batch=64.0, noise_scale=noise, lr_rule=rule)) * (
            a / batch + 1
        )

    assert total(best) < total(best * 1.001)
    assert total(best) < total(best / 1.001)


def test_slopes_of_log_time_change_sign_once_or_never() -> None:
    """A quadratic with a positive leading and a negative constant coefficient has one positive root, at a minimum."""
    batch = QUANTITIES["train_batch"].symbol
    steps = [s.equation for s in derive("optimal_batch").steps]
    slopes = [e.rhs for e in steps if isinstance(e, sp.Equality) and e.lhs.has(sp.Symbol(r"\log T"))]
    signs = []
    for slope in slopes:
        top, bottom = sp.fraction(slope)
        assert bottom.is_positive
        coefficients = sp.Poly(top, batch).all_coeffs()
        signs.append((len(coefficients), bool(coefficients[0].is_positive), bool(coefficients[-1].is_negative)))
    assert signs == [(3, True, True), (3, True, True), (2, False, True)]


@pytest.mark.parametrize("rule", ["linear", "invariant"])
def test_where_there_is_no_optimum_time_only_falls(rule: str) -> None:
    assert math.isinf(
        float(optimal_train_batch(noise_scale=900, update_time_intercept=9, update_time_slope=1, lr_rule=rule))
    )
    batches = np.geomspace(1, 1e7, 60)
    cost = sample_cost.sample_cost_ratio(batches, reference_batch=64.0, noise_scale=900.0, lr_rule=rule)
    assert (np.diff(cost * (9.0 / batches + 1.0)) < 0).all()


@pytest.mark.parametrize(("noise", "a"), [(20_000.0, 50.0), (50.0, 20_000.0)])
def test_exponents_are_the_slopes_of_the_package(noise: float, a: float) -> None:
    """Both orders: throughput saturating long before sample efficiency, and after."""

    def log_time(batch: float) -> float:
        cost = sample_cost.sample_cost_ratio(
            batch, reference_batch=64.0, noise_scale=noise, lr_fraction=1.0, lr_rule="tuned"
        )
        return math.log(float(cost) / float(pipeline.throughput(batch, gen_time_intercept=a, gen_time_slope=1.0)))

    slopes = {}
    for batch in (1.0, 1000.0, 1e6):
        numeric = (log_time(batch * 1.001) - log_time(batch / 1.001)) / (2 * math.log(1.001))
        stated = derive("regimes").evaluate("exponent", train_batch=batch, noise_scale=noise, amortisation_batch=a)
        assert numeric == pytest.approx(float(stated), abs=1e-5)
        slopes[batch] = numeric
    assert slopes[1.0] < -0.95
    assert abs(slopes[1000.0]) < 0.1
    assert slopes[1e6] > 0.95

    # In the middle: nothing changes in the first order, and both sides grow as the batch in the other.
    costs = sample_cost.sample_cost_ratio(
        [900.0, 1100.0], reference_batch=64.0, noise_scale=noise, lr_fraction=1.0, lr_rule="tuned"
    )
    grows = float(np.log(costs[1] / costs[0]) / np.log(1100 / 900))
    assert grows < 0.1 if noise > a else grows > 0.9
    balance = float(derive("regimes").evaluate("balance", noise_scale=noise, amortisation_batch=a))
    assert (balance < 0.5) == (a < noise)
    pair = sample_cost.sample_cost_ratio(
        [999.9, 1000.1], reference_batch=64.0, noise_scale=noise, lr_fraction=1.0, lr_rule="tuned"
    )
    assert math.sqrt(noise * a) == 1000.0
    assert float(np.log(pair[1] / pair[0]) / np.log(1000.1 / 999.9)) == pytest.approx(balance, rel=1e-3)


def test_the_two_orders_have_the_exponents_of_the_regimes() -> None:
    steps = [s.equation for s in derive("regimes").steps]
    pairs = [tuple(e.rhs) for e in steps if isinstance(e, sp.Equality) and isinstance(e.rhs, sp.Tuple)]
    assert pairs == [(0, 0), (1, 1)]


@pytest.mark.parametrize(("noise", "a"), [(20_000.0, 50.0), (50.0, 20_000.0), (300.0, 300.0)])
def test_doubling_pays_up_to_the_same_batch_in_both_orders(noise: float, a: float) -> None:
    until = float(derive("regimes").evaluate("doubling_until", noise_scale=noise, amortisation_batch=a))
    for batch, pays in ((until * 0.99, True), (until * 1.01, False)):
        cost = sample_cost.sample_cost_ratio(
            2 * batch, reference_batch=batch, noise_scale=noise, lr_fraction=1.0, lr_rule="tuned"
        )
        speed = pipeline.throughput([batch, 2 * batch], gen_time_intercept=a, gen_time_slope=1.0)
        assert (speed[1] / speed[0] > float(cost)) == pays


def test_a_cap_moves_the_best_batch_to_its_corner() -> None:
    law = {"gen_time_intercept": 247.0, "gen_time_slope": 0.71}
    batches = np.geomspace(20, 40_000, 20_000)
    for q_max, noise in ((0.6, 3750.0), (1.2, 3750.0)):
        corner = float(
            derive("regimes").evaluate(
                "corner", update_time_intercept=247.0, update_time_slope=0.71, throughput_max=q_max
            )
        )
        free = float(optimal_train_batch(noise_scale=noise, update_time_intercept=247.0, update_time_slope=0.71))
        cost = sample_cost.sample_cost_ratio(
            batches, reference_batch=64.0, noise_scale=noise, lr_fraction=1.0, lr_rule="tuned"
        )
        time = cost / pipeline.throughput(batches, gen_throughput_max=q_max, **law)
        assert batches[np.argmin(time)] == pytest.approx(min(corner, free), rel=1e-3)
    assert corner > free


@pytest.mark.parametrize("hr", [0.4, 1.0])
def test_a_rate_that_costs_nothing_exists_exactly_where_the_root_is_real(hr: float) -> None:
    for c0 in (0.1, 0.5, 0.9):
        for rk in (0.3, 0.6, 0.95):
            for x in (1.5, 4.0, 20.0):
                law: dict[str, Any] = {"lr_fraction": c0, "slope_ratio": rk, "cost_ratio": hr}
                room = float(derive("invariant_rate").evaluate("room", batch_ratio=x, **law))
                s = float(lr_rule.learning_rate_ratio(x, lr_rule="invariant", **law))
                cost = float(sample_cost.cost_at_rate(x, learning_rate_ratio=s, **law))
                if room <= 1:
                    assert cost == pytest.approx(1, rel=1e-9)
                else:
                    assert cost == pytest.approx(room, rel=1e-9)
                    assert cost > 1


def test_the_ridge_of_a_model_is_the_derived_one() -> None:
    """At the rates that kernels reach; two bytes per weight."""
    d = deploy(find_model("Qwen3-30B-A3B"), find_gpu("H100-SXM"))
    dense, experts = (float(v) for v in ridge(d)["ridge_batch"].values)
    e, gpu = d.efficiency, d.gpu
    assert gpu.peak_flops is not None
    assert gpu.memory_bandwidth is not None
    assert d.architecture.experts is not None
    rates: list[dict[str, Any]] = [
        {
            "bytes_per_weight": 2,
            "flop": 1,
            "peak_flops": gpu.peak_flops * compute,
            "memory_bandwidth": gpu.memory_bandwidth * bandwidth,
        }
        for compute, bandwidth in (
            (e.gemm_compute_share, e.gemm_bandwidth_share),
            (e.expert_compute_share, e.expert_bandwidth_share),
        )
    ]
    routing: dict[str, Any] = {"experts": d.architecture.experts.experts, "per_token": d.architecture.experts.per_token}
    form = derive("roofline_ridge").evaluate
    assert dense == pytest.approx(float(form("dense", **rates[0])), rel=1e-9)
    assert experts == pytest.approx(float(form("experts", **rates[1], **routing)), rel=1e-9)
    assert float(form("later", **routing)) == 16


def test_long_responses_are_in_flight_for_longer() -> None:
    """Slots refilled at once, counted step by step; what memory holds is asked for that context."""
    rng = np.random.default_rng(0)
    lengths = np.exp(0.7 * rng.standard_normal(60_000)).clip(0.02, 50) * 400
    lengths = np.ceil(lengths)
    prompt = 100
    steps = np.sum(lengths)
    tokens = np.sum(prompt * lengths + lengths * (lengths + 1) / 2)
    stated = derive("kv_capacity").evaluate(
        "context_unequal",
        prompt_tokens=prompt,
        mean_response=float(lengths.mean()),
        square_response=float(np.mean(lengths**2)),
    )
    # A token more or less at the end of a step is half a token on average.
    assert tokens / steps == pytest.approx(float(stated) + 0.5, rel=1e-9)
    sample = Lengths(prompt_mean=prompt, response_sample=tuple(lengths.astype(int).tolist()), distribution="empirical")
    assert steady_context(sample) == pytest.approx(float(stated), rel=1e-12)
    equal = derive("kv_capacity").evaluate("context_equal", prompt_tokens=prompt, response_tokens=float(lengths.mean()))
    assert float(stated) > 1.3 * float(equal)


@pytest.mark.parametrize("normalised", [True, False])
def test_group_signal_is_the_mean_of_the_derived_factor(normalised: bool) -> None:
    name = "normalised" if normalised else "plain"
    group, p = 8, mpmath.mpf("0.3")
    with mpmath.workdps(30):
        weights = [mpmath.binomial(group, k) * p**k * (1 - p) ** (group - k) for k in range(1, group)]
        factors = [derive("group_baseline").evaluate(name, right=k, group_count=group) for k in range(1, group)]
        mean = mpmath.fdot(weights, factors) / mpmath.fsum(weights)
    assert float(group_signal(group, pass_rate=0.3, normalised=normalised)) == pytest.approx(float(mean), rel=1e-12)


def test_adam_that_sees_its_signal_gains_nothing_from_the_batch() -> None:
    """The step of the drift form that says so: its series for large batches starts at 1 and has no root."""
    large = derive("adam_drift").steps[4].equation.rhs
    z = next(iter(large.free_symbols))
    assert large.removeO().subs(z, 0) == 1
    assert large.removeO().coeff(z, 1) == sp.Rational(-1, 2)


# -- the page ---------------------------------------------------------------------------------------


def test_docs_page_is_what_the_derivations_say() -> None:
    spec = importlib.util.spec_from_file_location("derivations_page", ROOT / "docs" / "derivations_page.py")
    assert spec is not None
    assert spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    written = (ROOT / "docs" / "derivations.md").read_text(encoding="utf-8")
    by = re.search(r"SymPy (\d+\.\d+)", written)
    assert by is not None
    if by[1] == ".".join(sp.__version__.split(".")[:2]):
        assert page.page() == written
    else:  # another SymPy may write an equal equation in another order
        headings = [line for line in page.page().splitlines() if line.startswith(("#", "- ", "Assumed"))]
        assert headings == [line for line in written.splitlines() if line.startswith(("#", "- ", "Assumed"))]
