"""Dimensional analysis of the closed forms.

The functions take plain arrays, so units cannot ride along. Instead pint reads the dimension of every
argument and result from the vocabulary, all base units are rescaled at once, and a result that is
dimensionally right must scale with the powers of its own dimension. In the derivations units do ride along: both
sides of every equation are walked, sum by sum.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pint
import pytest
import sympy as sp
from closed_forms import FORMS
from hypothesis import given
from hypothesis import strategies as st

from batchsim import criterion
from batchsim.learning.sample_cost import critical_train_batch, sample_cost_ratio
from batchsim.plan import plan_from_dict
from batchsim.predict import predict
from batchsim.specs.gpus import find_gpu
from batchsim.specs.models import find_model
from batchsim.system import pipeline, step_time
from batchsim.system.roofline import deploy, ridge
from batchsim.system.roofline import step_time as step_seconds
from batchsim.theory import DERIVATIONS, QUANTITIES, derive
from batchsim.time_to_target import optimal_train_batch, plateau_factor
from batchsim.variables import VARIABLES

REGISTRY: pint.UnitRegistry[Any] = pint.UnitRegistry()
for definition in (
    "response = [response] = _ = responses",
    "prompt = [prompt] = _ = prompts",
    "sequence = [sequence] = _ = sequences",
    "FLOP = [work]",
    "GPU = [gpu]",
    "USD = [money]",
):
    REGISTRY.define(definition)

# Arguments whose name in a signature is not their name in the vocabulary.
ALIASES = {"seconds": "time_to_target", "reference_batch": "train_batch"}

CASES: list[tuple[Callable[..., Any], dict[str, float], str]] = [
    (criterion.time_to_target, {"responses_to_target": 120e3, "throughput": 3.1}, "time_to_target"),
    (criterion.time_ratio, {"sample_cost_ratio": 1.2, "throughput_ratio": 1.5}, "time_ratio"),
    (criterion.gpu_hours, {"seconds": 42840.0, "gpus": 64.0}, "gpu_hours"),
    (criterion.cost, {"gpu_hours": 761.0, "price": 3.0}, "cost"),
    (
        optimal_train_batch,
        {"noise_scale": 3750.0, "update_time_intercept": 247.0, "update_time_slope": 0.71},
        "train_batch",
    ),
    (
        plateau_factor,
        {"noise_scale": 3750.0, "update_time_intercept": 247.0, "update_time_slope": 0.71},
        "time_ratio",
    ),
    (
        sample_cost_ratio,
        {"train_batch": 2048.0, "reference_batch": 512.0, "noise_scale": 3000.0, "lr_fraction": 0.3, "snr_shape": 0.7},
        "sample_cost_ratio",
    ),
    (critical_train_batch, {"reference_batch": 512.0, "noise_scale": 3000.0, "snr_shape": 0.7}, "critical_train_batch"),
    (
        step_time.step_time,
        {"rollout_batch": 512.0, "update_time_intercept": 247.0, "update_time_slope": 0.71},
        "step_time",
    ),
    (
        pipeline.gen_time,
        {"gen_batch": 900.0, "gen_time_intercept": 216.0, "gen_time_slope": 0.4, "gen_throughput_max": 1.2},
        "gen_time",
    ),
    (
        pipeline.capped_throughput,
        {"concurrency_max": 512.0, "gen_time_intercept": 216.0, "gen_time_slope": 0.4},
        "gen_throughput_max",
    ),
    (
        pipeline.throughput,
        {
            "rollout_batch": 1024.0,
            "gen_time_intercept": 216.0,
            "gen_time_slope": 0.4,
            "gen_throughput_max": 1.1,
            "gen_ratio": 2.0,
            "kept_share": 0.8,
            "train_time_intercept": 10.6,
            "train_time_per_response": 0.23,
            "overhead_time": 3.0,
        },
        "throughput",
    ),
    (
        pipeline.critical_gen_batch,
        {"gen_time_intercept": 216.0, "gen_time_slope": 0.4, "gen_throughput_max": 2.0},
        "critical_gen_batch",
    ),
]


def factor(name: str, scales: dict[str, float]) -> float:
    """What a number in the unit of a quantity is multiplied by when the base units shrink by `scales`."""
    unit = VARIABLES[ALIASES.get(name, name)].unit
    powers = REGISTRY.parse_units("" if unit == "1" else unit).dimensionality
    return float(math.prod(scales[dimension] ** float(str(power)) for dimension, power in powers.items()))


@pytest.mark.parametrize(("function", "arguments", "result"), CASES, ids=lambda v: getattr(v, "__name__", None))
@given(seconds=st.floats(0.01, 100), responses=st.floats(0.01, 100), gpus=st.floats(0.1, 10), money=st.floats(0.1, 10))
def test_results_scale_with_their_dimension(
    function: Callable[..., Any],
    arguments: dict[str, float],
    result: str,
    seconds: float,
    responses: float,
    gpus: float,
    money: float,
) -> None:
    scales = {"[time]": seconds, "[response]": responses, "[gpu]": gpus, "[money]": money}
    scaled = {name: value * factor(name, scales) for name, value in arguments.items()}

    def call(given_arguments: dict[str, float]) -> float:
        keywords = dict(given_arguments)
        positional = [
            keywords.pop(n) for n in ("train_batch", "rollout_batch", "gen_batch", "concurrency_max") if n in keywords
        ][:1]
        return float(function(*positional, **keywords))

    before, after = call(arguments), call(scaled)
    assert after == pytest.approx(before * factor(result, scales), rel=1e-11)


def test_the_units_of_the_vocabulary_close() -> None:
    """N*/q is a time, t/R a slope, price times GPU-hours money: the vocabulary agrees with the formulas."""

    def unit(name: str) -> pint.Unit:
        text = VARIABLES[name].unit
        return REGISTRY.parse_units("" if text == "1" else text)

    def same(a: pint.Unit, b: pint.Unit) -> bool:
        return bool((1 * a).to_root_units().units == (1 * b).to_root_units().units)

    assert same(unit("responses_to_target") / unit("throughput"), unit("time_to_target"))
    assert same(unit("price") * unit("gpu_hours"), unit("cost"))
    assert same(unit("update_time_slope") * unit("rollout_batch"), unit("step_time"))
    assert same(unit("rollout_batch") / unit("gen_throughput_max"), unit("gen_time"))
    assert same(unit("prompts") * unit("group_size"), unit("rollout_batch"))
    assert same(unit("noise_trace") / unit("signal_square"), unit("noise_scale"))


# -- the derivations ----------------------------------------------------------------------------------

# A registry without pint's own units, in which a byte would be a number and B a bel.
OWN: pint.UnitRegistry[Any] = pint.UnitRegistry(None)
for definition in (
    "second = [time] = s",
    "response = [response] = _ = responses",
    "prompt = [prompt] = _ = prompts",
    "token = [token] = _ = tokens",
    "score = [score]",
    "parameter = [parameter]",
    "byte = [byte] = B",
    "FLOP = [work]",
    "USD = [money]",
):
    OWN.define(definition)
COUNTS = ("[response]", "[prompt]")
Dimension = dict[str, Fraction]
"""Powers of the base dimensions; None stands for a zero, which has any."""


def of_unit(unit: str) -> Dimension:
    powers = OWN.parse_units("" if unit == "1" else unit).dimensionality
    return {name: Fraction(str(power)) for name, power in powers.items()}


OF_SYMBOL = {q.symbol: of_unit(q.unit) for q in QUANTITIES.values()}


class Walk:
    """Dimension of an expression; sums and comparisons of unlike things are an error."""

    def __init__(self, known: Mapping[Any, Dimension], *, counts: bool) -> None:
        self.known = {s: self.stripped(d) if counts else d for s, d in known.items()}

    @staticmethod
    def stripped(dimension: Dimension) -> Dimension:
        return {name: power for name, power in dimension.items() if name not in COUNTS}

    def same(self, parts: list[Dimension | None], where: Any) -> Dimension | None:
        found = [p for p in parts if p is not None]
        if any(p != found[0] for p in found):
            raise ValueError(f"{where} puts {found} together")
        return found[0] if found else None

    def number(self, part: Any) -> None:
        if self.of(part) not in ({}, None):
            raise ValueError(f"{part} must be a number and has {self.of(part)}")

    def times(self, a: Dimension, b: Dimension, power: Fraction = Fraction(1)) -> Dimension:
        total = {name: a.get(name, Fraction(0)) + power * b.get(name, Fraction(0)) for name in {*a, *b}}
        return {name: value for name, value in total.items() if value}

    def bound(self, variable: Any, limits: tuple[Any, ...]) -> None:
        if variable not in self.known:
            self.known[variable] = next((d for d in map(self.of, limits) if d), {})

    def of(self, e: Any) -> Dimension | None:
        if e.is_zero and e.is_number:
            return None
        if e.is_number or e.is_infinite:
            return {}
        if e in self.known:
            return self.known[e]
        if isinstance(e, sp.core.function.AppliedUndef):
            return self.known[e.func]
        if isinstance(e, sp.Add):
            return self.same([self.of(a) for a in e.args], e)
        if isinstance(e, sp.Mul):
            total: Dimension = {}
            for a in e.args:
                total = self.times(total, self.of(a) or {})
            return total
        if isinstance(e, sp.Pow) and e.exp.is_number:
            return self.times({}, self.of(e.base) or {}, Fraction(str(sp.Rational(e.exp))))
        if isinstance(e, sp.Pow | sp.exp | sp.log | sp.gamma):
            for a in e.args:
                self.number(a)
            return {}
        if isinstance(e, sp.Derivative):
            total = self.of(e.expr) or {}
            for variable, order in e.variable_count:
                total = self.times(total, self.of(variable) or {}, Fraction(-int(order)))
            return total
        if isinstance(e, sp.Integral):
            for variable, *limits in e.limits:
                self.bound(variable, tuple(limits))
            total = self.of(e.function) or {}
            for variable, *_ in e.limits:
                total = self.times(total, self.known[variable])
            return total
        if isinstance(e, sp.Order):
            return self.of(e.expr)
        if isinstance(e, sp.Tuple):
            return self.same([self.of(a) for a in e.args], e)
        raise ValueError(f"no dimension of {e!r}, a {type(e).__name__}")

    def check(self, equation: Any) -> Dimension | None:
        """Dimension of the right side; a left side that is a name for it has no dimension of its own."""
        if not isinstance(equation, sp.core.relational.Relational):
            return self.of(equation)
        right = self.of(equation.rhs)
        named = all(s in self.known for s in equation.lhs.free_symbols)
        return self.same([self.of(equation.lhs), right], equation) if named else right


def walk_all(name: str) -> dict[str, Dimension | None]:
    derivation = derive(name)
    for step in derivation.steps:
        Walk(OF_SYMBOL, counts=step.counts).check(step.equation)
    return {
        result: Walk(OF_SYMBOL, counts=result in derivation.counts).check(equation)
        for result, equation in derivation.results.items()
    }


@pytest.mark.parametrize("name", DERIVATIONS)
def test_both_sides_of_every_derived_equation_agree(name: str) -> None:
    assert walk_all(name)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda s: sp.Eq(s["time_to_target"], s["responses_to_target"] * s["throughput"]), "puts .* together"),
        (lambda s: s["train_batch"] + s["noise_scale"] / s["throughput"], "puts .* together"),
        (lambda s: sp.exp(-s["train_batch"]), "must be a number"),
        (lambda s: s["train_batch"] ** s["snr_shape"], "must be a number"),
        (lambda s: s["noise_trace"] + s["signal_square"], "puts .* together"),
        (lambda s: sp.Symbol("unheard of") + s["train_batch"], "no dimension of"),
    ],
)
def test_an_equation_of_unlike_sides_is_noticed(wrong: Callable[[Mapping[str, Any]], Any], said: str) -> None:
    symbols = {q.name: q.symbol for q in QUANTITIES.values()}
    with pytest.raises(ValueError, match=said):
        Walk(OF_SYMBOL, counts=False).check(wrong(symbols))


# What a form holds fixed by itself, or takes in whole numbers only.
WHOLE = {
    "nested_noise": {"[response]", "[prompt]"},
    "batch_gradient/square_norm": {"[response]"},
    "kv_capacity/concurrency": {"[token]", "[byte]", "[response]"},
    "decode_steps": {"[token]"},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("power", [1, -2])
def test_every_shipped_form_scales_with_its_dimension(form: str, power: int) -> None:
    """Argument by argument in the unit of its quantity; the result in the dimension of the derived equation."""
    name, _, result = form.partition("/")
    fixed = WHOLE.get(name, set()) | WHOLE.get(form, set())
    bases = ("[time]", "[response]", "[prompt]", "[token]", "[score]", "[parameter]", "[byte]", "[money]")
    scales = {base: 1.0 if base in fixed else 2.0 ** (power * (i + 1)) for i, base in enumerate(bases)}

    def scale(dimension: Dimension | None) -> float:
        return float(math.prod(scales[base] ** float(p) for base, p in (dimension or {}).items()))

    points = list(FORMS[form].points())
    point = points[len(points) // 2]
    scaled = {
        n: v * scale(of_unit(QUANTITIES[n].unit)) if scale(of_unit(QUANTITIES[n].unit)) != 1 else v
        for n, v in point.items()
    }
    before, after = (float(FORMS[form].shipped(**p)) for p in (point, scaled))
    assert after == pytest.approx(before * scale(walk_all(name)[result]), rel=1e-11)


# -- the roofline, which is no single formula ---------------------------------------------------------


def in_time_unit(value: Any, unit: float) -> Any:
    """A specification whose seconds count `unit` times as much: rates fall, latencies rise."""
    change: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        held = getattr(value, field.name)
        if field.name.endswith(("_bandwidth", "_flops")) and held is not None:
            change[field.name] = held / unit
        elif field.name.endswith(("_latency", "_time")):
            change[field.name] = tuple(v * unit for v in held) if isinstance(held, tuple) else held * unit
    return dataclasses.replace(value, **change)


@pytest.mark.parametrize("model", ["Qwen3-8B", "Qwen3-30B-A3B", "DeepSeek-V3"])
@pytest.mark.parametrize("unit", [0.125, 4.0])
def test_a_decode_step_scales_with_the_unit_of_time(model: str, unit: float) -> None:
    one = deploy(find_model(model), find_gpu("H200"), tensor_parallel=8)
    other = dataclasses.replace(
        one,
        gpu=in_time_unit(one.gpu, unit),
        engine=in_time_unit(one.engine, unit),
        efficiency=in_time_unit(one.efficiency, unit),
    )
    for batch, context, prompt in ((64.0, 3000.0, 0.0), (8.0, 100.0, 900.0)):
        before, after = (step_seconds(d, batch=batch, context=context, prompt=prompt) for d in (one, other))
        assert after == pytest.approx(before * unit, rel=1e-12)
    assert float(ridge(other)["ridge_batch"][0]) == pytest.approx(float(ridge(one)["ridge_batch"][0]), rel=1e-12)


# -- the whole chain ----------------------------------------------------------------------------------


class TestWholeChain:
    base: dict[str, Any] = {  # noqa: RUF012
        "recipe": {"prompts": 64, "group_size": 8, "learning_rate": 1e-6, "max_learning_rate": 4e-6},
        "learning": {"noise_scale": [1500.0, 6000.0], "snr_shape": 0.7, "lr_fraction": [0.1, 0.4]},
        "engine": {"gen_time_intercept": 100.0, "gen_time_slope": 0.3, "gen_throughput_max": 2.5},
        "target": {"responses_to_target": 2e5},
    }

    def run(self, **change: dict[str, Any]) -> Any:
        return predict(plan_from_dict({k: v | change.get(k, {}) for k, v in self.base.items()}), draws=50)

    def test_the_unit_of_the_learning_rate_does_not_matter(self) -> None:
        one, other = self.run(), self.run(recipe={"learning_rate": 1e-3, "max_learning_rate": 4e-3})
        assert np.allclose(other["time_ratio"], one["time_ratio"], rtol=1e-9)
        assert np.allclose(other["learning_rate"], one["learning_rate"] * 1e3, rtol=1e-9)

    def test_the_unit_of_time_scales_times_alone(self) -> None:
        engine = {"gen_time_intercept": 6000.0, "gen_time_slope": 18.0, "gen_throughput_max": 2.5 / 60}
        one, other = self.run(), self.run(engine=engine)
        assert np.allclose(other["time_ratio"], one["time_ratio"], rtol=1e-9)
        assert np.allclose(other["time_to_target"], one["time_to_target"] * 60, rtol=1e-9)
        assert np.allclose(other["responses_to_target"], one["responses_to_target"], rtol=1e-9)

    def test_the_unit_of_responses_scales_batches_alone(self) -> None:
        # Four times as many responses per prompt, all per-response numbers to match.
        other = self.run(
            recipe={"group_size": 32},
            learning={"noise_scale": [6000.0, 24_000.0]},
            engine={"gen_time_slope": 0.3 / 4, "gen_throughput_max": 10.0},
            target={"responses_to_target": 8e5},
        )
        one = self.run()
        assert (other["train_batch"].values == one["train_batch"].values * 4).all()
        assert np.allclose(other["time_ratio"].values, one["time_ratio"].values, rtol=1e-9)
        assert np.allclose(other["time_to_target"].values, one["time_to_target"].values, rtol=1e-9)
        for name in ("critical_train_batch", "critical_gen_batch"):
            assert np.allclose(other[name].values, one[name].values * 4, rtol=1e-6)
