"""Dimensional analysis of the closed forms.

The functions take plain arrays, so units cannot ride along. Instead pint reads the dimension of every
argument and result from the vocabulary, all base units are rescaled at once, and a result that is
dimensionally right must scale with the powers of its own dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pint
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchsim import criterion
from batchsim.learning.sample_cost import critical_train_batch, sample_cost_ratio
from batchsim.plan import plan_from_dict
from batchsim.predict import predict
from batchsim.system import pipeline, step_time
from batchsim.time_to_target import optimal_train_batch
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
    assert after == pytest.approx(before * factor(result, scales), rel=1e-6)


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
