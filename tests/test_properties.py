"""Properties that hold for any recipe, machine or world, and the list of all of them with the test of each.

`PROPERTIES` is also the table of docs/testing.md. Those that belong in a module's own test file are only named here;
below are those of the whole prediction, of roofline, memory and rollout, and of worlds without noise.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from batchsim import testing
from batchsim.learning.curve import Curve, score_at, simulate_run
from batchsim.learning.worlds.quadratic import Optimizer, Quadratic, expected_loss
from batchsim.plan import plan_from_dict
from batchsim.predict import predict
from batchsim.specs.gpu import GPU
from batchsim.specs.gpus import find_gpu
from batchsim.specs.models import find_model
from batchsim.system.decode_law import DecodeLaw
from batchsim.system.memory import concurrency_max
from batchsim.system.pipeline import gen_time, throughput
from batchsim.system.rollout import rollout
from batchsim.system.roofline import deploy, step_time, touched_experts

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"

PROPERTIES: dict[str, tuple[str, str]] = {
    "P1": (
        "`r_q > r_N` exactly where `T < T_0`, for all positive inputs",
        "test_criterion.py::test_larger_throughput_gain_than_sample_cost_means_sooner",
    ),
    "P1, order": (
        "of two recipes one is faster, and faster than the faster is faster",
        "test_criterion.py::test_of_two_recipes_one_is_faster_and_of_three_the_order_is_one",
    ),
    "P1, units": (
        "units of responses and time decide nothing",
        "test_criterion.py::test_units_of_responses_and_time_decide_nothing",
    ),
    "P2": (
        "tuned rates: `r_N` rises with the batch and updates fall",
        "test_sample_cost.py::test_tuned_needs_more_responses_and_fewer_updates",
    ),
    "P2, reference": (
        "a reference costs 1 under every rule",
        "test_sample_cost.py::test_reference_costs_one",
    ),
    "P3, P4, P5": (
        "small rates: `1 <= sqrt <= sqrt(x)`, `sqrt(x) <= fixed <= x`, fixed above sqrt above linear",
        "test_sample_cost.py::test_order_of_the_rules_far_below_the_optimum",
    ),
    "P6": (
        "the invariant rule gives `r_N = 1` at small rates",
        "test_sample_cost.py::test_invariant_costs_nothing_far_below_the_optimum",
    ),
    "P7": (
        "`T(B)` falls to `sqrt(tau_0 B_noise/tau_1)` and rises from it",
        "test_time_to_target.py::test_time_falls_to_it_and_rises_from_it",
    ),
    "P8": (
        "a batch wrong by `k` costs at most `(2 + k + 1/k)/4`, with equality at `a = B_noise` alone",
        "test_time_to_target.py::test_penalty_is_bounded",
    ),
    "P8, plateau": (
        "`T` leaves a tolerance exactly at the plateau's edges",
        "test_time_to_target.py::test_plateau_ends_where_time_leaves_the_tolerance",
    ),
    "P9": (
        "`(S/S_min - 1)(E/E_min - 1) = 1` on the hyperbola",
        "test_sample_cost.py::test_tuned_drift_is_mccandlishs_hyperbola",
    ),
    "P10": (
        "the pair of moments is unbiased for Gaussian gradients",
        "test_noise_scale.py::test_both_moments_are_unbiased",
    ),
    "P10, units": (
        "the gradient's unit cancels, the batch's is that of `B_noise`",
        "test_noise_scale.py::test_units_of_gradient_and_batch",
    ),
    "P11": (
        "`B_noise` in groups times `G` is `B_noise` in responses",
        "test_noise_scale_nested.py::test_scale_and_units",
    ),
    "P12": (
        "the likelihood of an interval becomes that of a point as the interval closes",
        "test_calibrate.py::test_a_point_is_the_limit_of_narrow_intervals",
    ),
    "P13": (
        "a finer evaluation grid never widens the interval of `N*`",
        "test_curve.py::test_a_finer_grid_never_widens_the_interval",
    ),
    "P14": (
        "kept and generated, groups and responses: conversions undo each other and commute",
        "test_noise_scale_nested.py::test_conversions_undo_and_commute",
    ),
    "P15": (
        "both batches tuned: the square of the signal ratio, times `c_0 (2 - c_0)`",
        "test_sample_cost.py::test_tuned_is_the_square_of_the_signal_ratio",
    ),
    "P16": (
        "without noise, or with a batch without end, a world is gradient descent",
        "test_properties.py::test_a_world_without_noise_is_gradient_descent",
    ),
    "P16, curve": (
        "a simulated run without errors is its curve",
        "test_properties.py::test_a_run_without_errors_is_its_curve",
    ),
    "P17": (
        "every rule has a finite limit as the noise scale grows without end",
        "test_sample_cost.py::test_of_endless_noise",
    ),
    "prediction": (
        "the star lies in the range, the range is contiguous, and `T/T_0 = r_N/r_q` in every draw",
        "test_properties.py::test_a_forecast_keeps_its_promises",
    ),
    "prediction, tolerance": (
        "a smaller tolerance never widens the range",
        "test_time_to_target.py::test_a_smaller_tolerance_never_widens_it",
    ),
    "prediction, speed": (
        "a machine faster by one factor changes no ratio and no recommendation",
        "test_properties.py::test_a_machine_faster_in_everything_changes_no_ratio",
    ),
    "stages": (
        "throughput of a capped pipeline never falls with the batch",
        "test_properties.py::test_a_capped_pipeline_is_sublinear",
    ),
    "roofline": (
        "a GPU with more of anything is never slower; `x` times the bandwidth at most `x` times as fast",
        "test_properties.py::test_a_better_gpu_is_never_slower_and_not_faster_than_it_is_better",
    ),
    "roofline, sharing": (
        "two batches decode together in no more time than one after the other",
        "test_properties.py::test_decoding_together_never_costs_more_than_in_turn",
    ),
    "roofline, experts": (
        "each further token touches fewer new experts",
        "test_properties.py::test_every_further_token_touches_fewer_new_experts",
    ),
    "roofline, datasheet": (
        "no step is faster than the datasheet allows",
        "test_roofline.py::test_never_faster_than_the_datasheet",
    ),
    "memory": (
        "what is admitted fits and one more does not; more memory never holds fewer, longer contexts never more",
        "test_properties.py::test_memory_holds_what_fits_and_no_more",
    ),
    "rollout": (
        "without limits a rollout is the sum of its steps over survivors",
        "test_properties.py::test_a_rollout_without_limits_is_the_sum_over_survivors",
    ),
    "rollout, bounds": (
        "no sooner than its longest response alone, no later than all in turn; time's unit scales all times",
        "test_properties.py::test_a_rollout_lies_between_its_longest_response_and_all_in_turn",
    ),
    "rollout, tokens": (
        "no response is lost and tokens add up, whatever is preempted",
        "test_rollout.py::test_no_response_is_lost_and_tokens_add_up",
    ),
}


def table() -> list[str]:
    """Rows of the table in docs/testing.md."""
    return [f"| {name} | {says} | `{test}` |" for name, (says, test) in PROPERTIES.items()]


def test_every_property_has_its_test_and_its_row() -> None:
    numbers = {n for name in PROPERTIES for part in name.split(", ") for n in [part] if n.startswith("P")}
    assert numbers >= {f"P{i}" for i in range(1, 18)}
    for says, test in PROPERTIES.values():
        file, _, function = test.partition("::")
        text = (HERE / file).read_text(encoding="utf-8")
        assert f"def {function}(" in text, f"{says}: no {test}"
    page = (DOCS / "testing.md").read_text(encoding="utf-8")
    start = page.index("| | property | test |")
    assert page[start:].splitlines()[2 : 2 + len(PROPERTIES)] == table()


# -- the prediction ---------------------------------------------------------------------------------


@st.composite
def plans(draw: st.DrawFn) -> dict[str, Any]:
    recipe = draw(testing.recipes(prompts_max=512, group_size_max=16, updates_max=1))
    low, wide = draw(testing.noise_scales()), draw(st.floats(1, 10))
    slow = draw(st.floats(0.01, 0.4))
    law = draw(testing.step_laws())
    return {
        "recipe": {"prompts": recipe.prompts, "group_size": recipe.group_size, "learning_rate": 1e-6},
        "learning": {"noise_scale": [low, low * wide * 1.01], "lr_fraction": [slow, 2 * slow]},
        "engine": {
            "gen_time_intercept": law["update_time_intercept"],
            "gen_time_slope": law["update_time_slope"],
            "gen_throughput_max": draw(st.floats(0.2, 0.95)) / law["update_time_slope"],
        },
    }


@settings(max_examples=60)
@given(plan=plans())
def test_a_forecast_keeps_its_promises(plan: dict[str, Any]) -> None:
    ds = predict(plan_from_dict(plan), draws=60)
    batches = ds["train_batch"].values.tolist()
    assert batches == sorted(batches)
    found, star = ds.attrs["effective_range"], ds.attrs["star"]
    assert (found is None) == (star is None)
    if found is not None:
        assert found[0] <= star <= found[1]
        assert {star, *found} <= set(batches)
    r_n, r_q, ratio = (ds[name].values for name in ("sample_cost_ratio", "throughput_ratio", "time_ratio"))
    finite = np.isfinite(r_n)
    for i in range(len(batches)):
        rows = finite[:, i]
        if rows.any():
            testing.check_criterion(r_n[rows, i], np.broadcast_to(r_q, r_n.shape)[rows, i], ratio[rows, i])
    reference = batches.index(ds.attrs["reference_batch"])
    np.testing.assert_allclose(ratio[:, reference], 1, rtol=1e-12)
    assert ((ds["p_wins"] >= 0) & (ds["p_wins"] <= 1) | ds["p_wins"].isnull()).all()


@settings(max_examples=30)
@given(plan=plans(), factor=st.sampled_from([0.25, 4.0, 64.0]))
def test_a_machine_faster_in_everything_changes_no_ratio(plan: dict[str, Any], factor: float) -> None:
    engine = plan["engine"]
    faster = {
        "gen_time_intercept": engine["gen_time_intercept"] / factor,
        "gen_time_slope": engine["gen_time_slope"] / factor,
        "gen_throughput_max": engine["gen_throughput_max"] * factor,
    }
    one, other = (predict(plan_from_dict({**plan, "engine": e}), draws=40) for e in (engine, faster))
    np.testing.assert_allclose(other["time_ratio"], one["time_ratio"], rtol=1e-9)
    np.testing.assert_allclose(other["throughput"], one["throughput"] * factor, rtol=1e-9)
    assert other.attrs["star"] == one.attrs["star"]


# -- the system side --------------------------------------------------------------------------------


@given(
    law=testing.step_laws(),
    cap=st.floats(0.05, 0.99),
    batches=st.lists(st.floats(1, 1e6), min_size=2, max_size=8, unique=True),
    mode=st.sampled_from(["sync", "async"]),
    train=st.floats(0, 10),
)
def test_a_capped_pipeline_is_sublinear(
    law: dict[str, float], cap: float, batches: list[float], mode: str, train: float
) -> None:
    stages = {
        "gen_time_intercept": law["update_time_intercept"],
        "gen_time_slope": law["update_time_slope"],
        "gen_throughput_max": cap / law["update_time_slope"],
    }
    testing.check_sublinear(batches, gen_time(batches, **stages))
    q = throughput(batches, train_time_per_response=train, overhead_time=3.0, mode=mode, **stages)
    testing.check_sublinear(batches, np.array(batches) / q)


MODELS = ("Qwen3-8B", "Qwen3-30B-A3B")
H100 = find_gpu("H100-SXM")


def seconds(model: str, gpu: GPU, batch: float, context: float) -> float:
    return float(step_time(deploy(find_model(model), gpu), batch=batch, context=context).sum())


@settings(max_examples=40)
@given(
    model=st.sampled_from(MODELS),
    batch=st.integers(1, 512),
    context=st.floats(1, 30_000),
    bandwidth=st.floats(1, 8),
    flops=st.floats(1, 8),
)
def test_a_better_gpu_is_never_slower_and_not_faster_than_it_is_better(
    model: str, batch: int, context: float, bandwidth: float, flops: float
) -> None:
    assert H100.memory_bandwidth is not None
    assert H100.peak_flops is not None
    # The efficiency's tables belong to a GPU's name.
    better = replace(H100, memory_bandwidth=H100.memory_bandwidth * bandwidth, peak_flops=H100.peak_flops * flops)
    before, after = (seconds(model, gpu, batch, context) for gpu in (H100, better))
    assert after <= before * (1 + 1e-12)
    assert after >= before / max(bandwidth, flops) * (1 - 1e-12)


@settings(max_examples=40)
@given(model=st.sampled_from(MODELS), one=st.integers(1, 300), other=st.integers(1, 300), context=st.floats(1, 30_000))
def test_decoding_together_never_costs_more_than_in_turn(model: str, one: int, other: int, context: float) -> None:
    together = seconds(model, H100, one + other, context)
    assert together <= seconds(model, H100, one, context) + seconds(model, H100, other, context)
    assert together >= max(seconds(model, H100, n, context) for n in (one, other))


@given(tokens=st.integers(1, 3000), experts=st.integers(2, 300), per_token=st.integers(1, 8), skew=st.floats(0, 1.5))
def test_every_further_token_touches_fewer_new_experts(tokens: int, experts: int, per_token: int, skew: float) -> None:
    assume(per_token <= experts)
    touched = touched_experts([tokens, tokens + 1, tokens + 2], experts=experts, per_token=per_token, skew=skew)
    first, second = np.diff(touched)
    assert -1e-9 <= second <= first + 1e-9


@given(found=testing.specifications(), more=st.floats(1.01, 4))
def test_memory_holds_what_fits_and_no_more(found: testing.Specification, more: float) -> None:
    gpu, model = found.gpu, found.model
    assert gpu.memory is not None
    assert gpu.count is not None
    assert model.weight_bytes is not None
    assert model.kv_bytes_per_token is not None
    context = (found.lengths.prompt_mean or 0) + (found.lengths.response_mean or 0)

    def held(**change: float) -> float:
        law: dict[str, Any] = {
            "gpus": found.tensor_parallel,
            "tensor_parallel": found.tensor_parallel,
            "memory": gpu.memory,
            "memory_share": testing.MEMORY_SHARE,
            "weight_bytes": model.weight_bytes,
            "kv_bytes_per_token": (model.kv_bytes_per_token or 0) * 0.999,
            "context_length": context,
        }
        return concurrency_max(**law | change)[0]

    room = testing.MEMORY_SHARE * gpu.memory * found.tensor_parallel - model.weight_bytes
    each = model.kv_bytes_per_token * 0.999 * context
    n = held()
    assert n >= 1
    assert n * each <= room * (1 + 1e-12)
    assert (n + 1) * each > room * (1 - 1e-12)
    assert held(memory=gpu.memory * more) >= n
    assert held(gpus=found.tensor_parallel * 3) == 3 * n
    shorter = held(context_length=context / more)
    assert shorter >= n
    assert held(max_num_seqs=1) == 1


responses = st.lists(st.integers(1, 60), min_size=1, max_size=24)
tables = st.lists(st.floats(0, 0.005), min_size=24, max_size=24)


def table_law(steps: list[float], context_time: float) -> DecodeLaw:
    """A step table that never falls, and in which n sequences never take more than n times one."""
    return DecodeLaw(step_time=np.concatenate([[0.0], 0.005 + np.cumsum(steps)]), context_time=context_time)


@settings(max_examples=60)
@given(lengths=responses, steps=tables, prompt=st.integers(1, 50), context_time=st.floats(0, 1e-5))
def test_a_rollout_without_limits_is_the_sum_over_survivors(
    lengths: list[int], steps: list[float], prompt: int, context_time: float
) -> None:
    law = table_law(steps, context_time)
    done = rollout(
        law=law, prompt_tokens=prompt, response_tokens=lengths, max_num_seqs=24, max_num_batched_tokens=10**6
    )
    # The first token comes with the prompt; in step j all responses of more than j tokens read prompt + j.
    total = law.step_time[1]
    for j in range(1, max(lengths)):
        n = sum(length > j for length in lengths)
        total += law.step_time[n] + context_time * n * (prompt + j)
    assert float(done["gen_time"]) == pytest.approx(float(total), rel=1e-9)


@settings(max_examples=60)
@given(lengths=responses, steps=tables, cap=st.integers(1, 24), unit=st.sampled_from([0.125, 8.0]))
def test_a_rollout_lies_between_its_longest_response_and_all_in_turn(
    lengths: list[int], steps: list[float], cap: int, unit: float
) -> None:
    law = table_law(steps, 1e-6)

    def spent(tokens: list[int], at: DecodeLaw, seqs: int) -> float:
        ds = rollout(law=at, prompt_tokens=8, response_tokens=tokens, max_num_seqs=seqs, max_num_batched_tokens=10**6)
        return float(ds["gen_time"])

    whole = spent(lengths, law, cap)
    assert whole >= spent([max(lengths)], law, 1) * (1 - 1e-12)
    assert whole <= sum(spent([n], law, 1) for n in lengths) * (1 + 1e-12)
    slower = DecodeLaw(step_time=law.step_time * unit, context_time=law.context_time * unit)
    assert spent(lengths, slower, cap) == pytest.approx(whole * unit, rel=1e-12)
    assert spent([*lengths, 1], law, cap) >= whole * (1 - 1e-12)


# -- worlds without noise ---------------------------------------------------------------------------


@settings(max_examples=40)
@given(world=testing.worlds(dim_max=8), rate=st.floats(0.01, 0.9), updates=st.integers(1, 60))
def test_a_world_without_noise_is_gradient_descent(world: Quadratic, rate: float, updates: int) -> None:
    quiet = Quadratic(curvature=world.curvature, noise=np.zeros(world.curvature.size), start=world.start)
    x = np.array(world.start)
    for _ in range(updates):
        x = x - rate * world.curvature * x
    exact = 0.5 * float(np.sum(world.curvature * x**2))
    law: dict[str, Any] = {"learning_rate": rate, "updates": [updates]}
    silent = float(expected_loss(quiet, Optimizer(), train_batch=1.0, **law)[0])
    assert silent == pytest.approx(exact, rel=1e-9, abs=1e-300)
    # A batch without end averages its noise away.
    endless = Quadratic(curvature=world.curvature, noise=world.noise, start=world.start)
    averaged = float(expected_loss(endless, Optimizer(), train_batch=1e300, **law)[0])
    assert averaged == pytest.approx(exact, rel=1e-9, abs=1e-290)


@settings(max_examples=40)
@given(curve=testing.curves(), batch=st.integers(1, 64), cost=st.floats(0.5, 4))
def test_a_run_without_errors_is_its_curve(curve: Curve, batch: int, cost: float) -> None:
    run = simulate_run(
        curve,
        train_batch=batch * max(1, round(curve.scale / 2000)),
        rng=np.random.default_rng(0),
        cost=cost,
        responses_max=3 * curve.scale,
        evaluation_spacing=curve.scale / 4,
    )
    n = run["evaluation_responses"].values
    np.testing.assert_allclose(run["score"].values[0], score_at(curve, n / cost), rtol=1e-9)
    assert n[-1] >= 2 * curve.scale
