"""The public checks and strategies: what they accept, what they explain, and careless input."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import assume, given
from hypothesis import strategies as st

from batchsim import testing
from batchsim.errors import InputError
from batchsim.learning.curve.families import Curve, responses_at, score_at
from batchsim.learning.sample_cost import sample_cost_ratio
from batchsim.learning.worlds.quadratic import Optimizer, Quadratic, expected_loss
from batchsim.specs.recipe import Recipe
from batchsim.system.memory import concurrency_max
from batchsim.system.step_time import step_time
from batchsim.testing import (
    check_criterion,
    check_invariance,
    check_sublinear,
    check_unimodal,
    curves,
    learning_laws,
    noise_scales,
    recipes,
    specifications,
    step_laws,
    worlds,
)

DOCS = Path(__file__).resolve().parents[1] / "docs"
positive = st.floats(1e-6, 1e6)
sizes = st.lists(st.floats(1, 1e6), min_size=3, max_size=8, unique=True)


class TestStrategies:
    @given(recipe=recipes())
    def test_recipes_have_whole_batches(self, recipe: Recipe) -> None:
        batch = recipe.prompts * recipe.group_size * recipe.epochs / recipe.updates_per_rollout
        assert batch == int(batch) >= 1
        assert recipe.max_learning_rate is None or recipe.max_learning_rate >= (recipe.learning_rate or 0)

    @given(recipe=recipes(prompts_max=3, group_size_max=2, updates_max=1))
    def test_recipes_keep_their_limits(self, recipe: Recipe) -> None:
        assert recipe.prompts <= 3
        assert recipe.group_size <= 2
        assert recipe.updates_per_rollout <= 3

    @given(found=specifications())
    def test_specifications_fit(self, found: testing.Specification) -> None:
        gpu, model = found.gpu, found.model
        assert gpu.memory is not None
        assert gpu.count is not None
        context = (found.lengths.prompt_mean or 0) + (found.lengths.response_mean or 0)
        most, _ = concurrency_max(
            gpus=gpu.count,
            tensor_parallel=found.tensor_parallel,
            memory=gpu.memory,
            memory_share=testing.MEMORY_SHARE,
            weight_bytes=model.weight_bytes,
            kv_bytes_per_token=(model.kv_bytes_per_token or 0) * (1 - 1e-12),
            context_length=context,
        )
        assert most >= 1
        assert 40 < (gpu.ridge or 0) < 700

    @given(law=step_laws(), batch=st.floats(1, 1e6))
    def test_step_laws_are_arguments_of_step_time(self, law: dict[str, float], batch: float) -> None:
        assert 0 < float(step_time(batch, **law)) < math.inf

    @given(law=learning_laws(), batch=st.floats(1, 1e5))
    def test_learning_laws_are_arguments_of_sample_cost(self, law: dict[str, Any], batch: float) -> None:
        assert float(sample_cost_ratio(batch, reference_batch=64, lr_rule="tuned", **law)) > 0

    @given(scale=noise_scales())
    def test_noise_scales_span_what_was_measured(self, scale: float) -> None:
        assert 10 <= scale <= 1e5

    @given(curve=curves(), share=st.floats(0.01, 0.9))
    def test_curves_rise_to_what_they_promise(self, curve: Curve, share: float) -> None:
        assert 0 <= curve.start < curve.asymptote < 1
        score = curve.start + share * (curve.asymptote - curve.start)
        assert float(score_at(curve, responses_at(curve, score))) == pytest.approx(score, rel=1e-9)

    @given(curve=curves(families=("power",)))
    def test_families_can_be_chosen(self, curve: Curve) -> None:
        assert curve.family == "power"

    @given(world=worlds(dim_max=4))
    def test_worlds_learn(self, world: Quadratic) -> None:
        assert 1 <= world.curvature.size <= 4
        slow = {"learning_rate": 0.01, "train_batch": 1e12}
        losses = expected_loss(world, Optimizer(), updates=[0, 10], **slow)  # type: ignore[arg-type]
        assert float(losses[1]) < float(losses[0])


class TestCriterion:
    @given(n=positive, q=positive, n0=positive, q0=positive)
    def test_what_is_taken_over_one_stretch_passes(self, n: float, q: float, n0: float, q0: float) -> None:
        check_criterion(n / n0, q / q0, n / q, reference_time=n0 / q0)

    @given(n=positive, q=positive, off=st.floats(1.02, 10), up=st.booleans())
    def test_anything_else_does_not(self, n: float, q: float, off: float, up: bool) -> None:
        wrong = off if up else 1 / off
        with pytest.raises(AssertionError, match="T = N"):
            check_criterion(n, q, n / q * wrong, tolerance=0.01)
        check_criterion(n, q, n / q * wrong, tolerance=off)

    def test_a_swapped_verdict_is_said(self) -> None:
        with pytest.raises(AssertionError, match=r"batch 2: r_N = 1.6 and r_q = 1.3 .*r_q < r_N says slower .* faster"):
            check_criterion([1, 1, 1.6], [1, 1.41, 1.3], [1, 1 / 1.41, 0.95])
        with pytest.raises(AssertionError, match="r_q > r_N says faster than the reference, the time says slower"):
            check_criterion(1.1, 1.3, 1.05)
        with pytest.raises(AssertionError) as same_side:
            check_criterion(1.1, 1.3, 0.9)
        assert "says" not in str(same_side.value)

    def test_one_factor_for_all_is_a_reference_or_a_unit(self) -> None:
        with pytest.raises(AssertionError, match="All batches are off by this factor: reference_time is missing"):
            check_criterion([1, 1, 1.6], [1, 1.41, 1.30], [42840, 30312, 52690], tolerance=0.01)
        with pytest.raises(AssertionError, match="in another unit"):
            check_criterion([1, 1, 1.6], [1, 1.41, 1.30], [11.9, 8.42, 14.6], reference_time=42840, tolerance=0.01)
        with pytest.raises(AssertionError) as one:
            check_criterion([1, 1, 1.6], [1, 1.41, 1.30], [1, 0.71, 0.95], tolerance=0.01)
        assert "All batches" not in str(one.value)

    def test_swapped_ratios_are_noticed(self) -> None:
        with pytest.raises(AssertionError):
            check_criterion(1.41, 1.0, 0.71, tolerance=0.01)


class TestInvariance:
    @given(curve=curves(), batches=st.lists(st.integers(1, 4096), min_size=2, max_size=4, unique=True))
    def test_one_curve_read_at_any_evaluations_passes(self, curve: Curve, batches: list[int]) -> None:
        fine = np.linspace(curve.scale, 3 * curve.scale, 400)
        read = {b: (fine[i::2], score_at(curve, fine[i::2])) for i, b in enumerate(batches[:2])}
        check_invariance(read, 1e-3)

    @given(curve=curves(), cost=st.floats(1.2, 3))
    def test_a_sample_cost_is_seen_and_stated(self, curve: Curve, cost: float) -> None:
        n = np.linspace(0.2 * curve.scale, 3 * curve.scale, 500)
        slow = score_at(curve, n / cost)
        gap = float(np.max(np.abs(score_at(curve, n) - slow)))
        assume(gap > 0.005)
        with pytest.raises(AssertionError, match="the score of 512") as found:
            check_invariance({256: (n, score_at(curve, n)), 512: (n, slow)}, 0.9 * gap)
        check_invariance({256: (n, score_at(curve, n)), 512: (n, slow)}, 1.1 * gap)
        stated = re.search(r"needs (\d+\.\d+) times", str(found.value))
        if stated:
            assert float(stated[1]) == pytest.approx(cost, abs=0.02 * cost)

    def test_the_reference_may_be_named_and_xarray_given(self) -> None:
        n = xr.DataArray([1.0, 2.0, 3.0], dims="evaluation")
        read = {"small": (n, n * 0.1), "large": (n, n * 0.1 + 0.02)}
        check_invariance(read, 0.021, reference="large")
        with pytest.raises(AssertionError, match=r"of small is .* and that of large"):
            check_invariance(read, 0.01, reference="large")

    @pytest.mark.parametrize(
        ("read", "said"),
        [
            ({1: ([1, 2], [0, 1])}, "two or more"),
            ([([1, 2], [0, 1])] * 2, "two or more"),
            ({}, "two or more"),
            ({1: ([1, 2], [0, 1]), 2: ([3, 4], [0, 1])}, "share no stretch"),
            ({1: ([1, 2], [0, 1]), 2: ([2, 1], [0, 1])}, "do not rise"),
            ({1: ([1, 2], [0, 1]), 2: ([1, 1], [0, 1])}, "do not rise"),
            ({1: ([1, 2], [0, 1]), 2: ([-1, 1], [0, 1])}, "do not rise from 0"),
            ({1: ([1, 2], [0, 1]), 2: ([1, 2], [0, math.nan])}, r"score of 2\[1\] is nan"),
            ({1: ([1, 2], [0, 1]), 2: ([1, 2], [0])}, "lengths differ"),
            ({1: ([1, 2], [0, 1]), 2: ([], [])}, "empty"),
            ({1: ([1, 2], [0, 1]), 2: "ab"}, "not a pair"),
            ({1: ([1, 2], [0, 1]), 2: 3.0}, "not a pair"),
            ({1: ([1, 2], [0, 1]), 2: {1.0, 2.0}}, "not a pair"),
            ({1: ([1, 2], [0, 1]), 2: xr.Dataset({"n": 1, "score": 2})}, "not a pair"),
            ({1: ([1, 2], [0, 1]), 2: (["1", "2"], [0, 1])}, "not numbers"),
        ],
    )
    def test_careless_input(self, read: Any, said: str) -> None:
        with pytest.raises(InputError, match=said):
            check_invariance(read, 0.01)

    def test_the_one_that_learns_less_is_named(self) -> None:
        n = [1.0, 2.0, 3.0]
        small, large = (n, [0.1, 0.2, 0.3]), (n, [0.1, 0.15, 0.2])
        for read in ({256: small, 2048: large}, {2048: large, 256: small}):
            with pytest.raises(AssertionError, match="teach the same: 2048 is beyond the critical training batch"):
                check_invariance(read, 0.01)
        with pytest.raises(
            AssertionError, match="256 is the smaller batch, which no critical training batch sets back"
        ):
            check_invariance({256: large, 2048: small}, 0.01)

    def test_an_unknown_reference_lists_the_known(self) -> None:
        with pytest.raises(InputError, match=r"reference 3 has no curve; known: 1, 2"):
            check_invariance({1: ([1, 2], [0, 1]), 2: ([1, 2], [0, 1])}, 0.01, reference=3)


class TestSublinear:
    @given(law=step_laws(), batches=sizes)
    def test_affine_times_pass(self, law: dict[str, float], batches: list[float]) -> None:
        check_sublinear(batches, step_time(batches, **law))

    @given(batches=sizes, power=st.floats(1.05, 2))
    def test_superlinear_times_do_not(self, batches: list[float], power: float) -> None:
        assume(max(batches) > 1.2 * min(batches))
        with pytest.raises(AssertionError, match="throughput falls"):
            check_sublinear(batches, np.array(batches) ** power, tolerance=1e-6)

    def test_the_largest_fall_counts_also_over_several_batches(self) -> None:
        # Each step down is within 5 %, the whole is not.
        times = np.array([1.0, 2 / 0.96, 4 / 0.92, 8 / 0.89])
        with pytest.raises(AssertionError, match=r"8 times the batch \(1 to 8\).*11 % less"):
            check_sublinear([1, 2, 4, 8], times, tolerance=0.05)
        check_sublinear([1, 2, 4, 8], times, tolerance=0.13)


class TestUnimodal:
    @given(law=step_laws(), noise=noise_scales(), batches=sizes)
    def test_tuned_time_passes(self, law: dict[str, Any], noise: float, batches: list[float]) -> None:
        b = np.array(batches)
        check_unimodal(b, (1 + b / noise) * step_time(b, **law) / b)

    @given(fall=st.floats(1.001, 3), bump=st.floats(0.02, 3), ends=st.floats(1.0, 2))
    def test_a_bump_does_not(self, fall: float, bump: float, ends: float) -> None:
        times = [fall, 1.0, 1 + bump, 1.0, ends]
        with pytest.raises(AssertionError, match=r"rises from 1 \(batch 2\) to .* \(4\) and falls to 1 \(8\)"):
            check_unimodal([1, 2, 4, 8, 16], times, tolerance=0.01)
        check_unimodal([1, 2, 4, 8, 16], times, tolerance=bump + 1e-9)

    def test_divergence_is_an_end_and_not_a_bump(self) -> None:
        check_unimodal([1, 2, 4], [2.0, 1.0, math.inf])
        check_unimodal([1, 2, 4], [math.inf, math.inf, math.inf])
        with pytest.raises(AssertionError, match="to inf"):
            check_unimodal([1, 2, 4], [2.0, math.inf, 1.0])

    def test_order_does_not_matter_and_monotone_times_pass(self) -> None:
        check_unimodal([4, 1, 2], [0.2, 0.9, 0.5])
        check_unimodal([1, 2, 4], [1.0, 1.0, 1.0])


@given(n=positive, q=positive)
def test_numbers_in_single_precision_are_not_refused_for_their_rounding(n: float, q: float) -> None:
    single = [np.array([1.0, v], dtype=np.float32) for v in (n, q, np.float32(n) / np.float32(q))]
    check_criterion(*single)
    batches = np.array([1, 3, 7, 10], dtype=np.float32)
    check_sublinear(batches, batches * np.float32(q))
    with pytest.raises(AssertionError):
        check_criterion(single[0], single[1], single[2] * np.float32(1.00001))


@pytest.mark.parametrize("tolerance", [0.01, 0.03, 0.05, 0.07, 0.1, 0.3])
def test_numbers_at_the_tolerance_itself_are_within_it(tolerance: float) -> None:
    """Both ways: what the message calls 5 % passes at 5 %, and what it calls more does not."""
    for off in (1 + tolerance, 1 - tolerance):
        check_criterion([1.0, 1.6], [1.0, 1.3], [1.0, 1.6 / 1.3 * off], tolerance=tolerance)
    check_sublinear([256, 512], [10, 20 / (1 - tolerance)], tolerance=tolerance)
    check_unimodal([1, 2, 4], [1.0, 1 + tolerance, 1.0], tolerance=tolerance)
    check_invariance({1: ([1, 2], [0.2, 0.3]), 2: ([1, 2], [0.2, 0.3 + tolerance])}, tolerance)
    more = tolerance * 1.001
    for off in (1 + more, 1 - more):
        with pytest.raises(AssertionError):
            check_criterion([1.0, 1.6], [1.0, 1.3], [1.0, 1.6 / 1.3 * off], tolerance=tolerance)
    with pytest.raises(AssertionError):
        check_sublinear([256, 512], [10, 20 / (1 - more)], tolerance=tolerance)
    with pytest.raises(AssertionError):
        check_unimodal([1, 2, 4], [1.0, 1 + more, 1.0], tolerance=tolerance)
    with pytest.raises(AssertionError):
        check_invariance({1: ([1, 2], [0.2, 0.3]), 2: ([1, 2], [0.2, 0.3 + more])}, tolerance)


def criterion(values: Any) -> None:
    check_criterion(values, [1.0, 1.0, 1.0], [1.0, 1.0, 1.0])


def sublinear(values: Any) -> None:
    check_sublinear([1.0, 2.0, 4.0], values)


def unimodal(values: Any) -> None:
    check_unimodal([1.0, 2.0, 4.0], values)


@pytest.mark.parametrize("check", [criterion, sublinear, unimodal])
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1.0, math.nan, 1.0], r"\[1\] is nan, and it must be positive"),
        ([1.0, 0.0, 1.0], r"\[1\] is 0"),
        ([1.0, 1.0, -2.0], r"\[2\] is -2"),
        ([1.0, 1.0], "lengths differ"),
        ([], "empty"),
        ("1,2,3", "'1,2,3', not numbers"),
        (["1", "2", "3"], "not numbers"),
        ([True, True, True], "not numbers"),
        ([1.0, None, 2.0], "not numbers"),
        (None, "not numbers"),
        ({1: 2}, "not numbers"),
        ([1 + 2j, 1.0, 1.0], "not numbers"),
        ([[1.0, 1.0, 1.0]], "shape"),
        ([[1.0], [1.0, 2.0]], "ragged"),
        ((v for v in (1.0, 2.0)), "not numbers"),
        ({1.0, 2.0, 3.0}, "not numbers"),
        (np.ma.masked_array([1.0, 2.0, 3.0], mask=[False, True, False]), r"\[1\] is nan"),
        (np.array([1, 2, 3], dtype="timedelta64[s]"), "not numbers"),
    ],
)
def test_careless_numbers_are_no_failed_claim(check: Callable[[Any], None], values: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        check(values)


@pytest.mark.parametrize("check", [criterion, sublinear])
def test_infinite_times_have_no_ratio(check: Callable[[Any], None]) -> None:
    with pytest.raises(InputError, match="is inf, and it must be positive and finite"):
        check([1.0, math.inf, 1.0])


@pytest.mark.parametrize("tolerance", [-0.1, math.nan, math.inf, "1 %", None, [0.1, 0.2]])
def test_a_tolerance_is_one_number(tolerance: Any) -> None:
    calls: list[Callable[[], None]] = [
        lambda: check_criterion(1.0, 1.0, 1.0, tolerance=tolerance),
        lambda: check_sublinear([1, 2], [1, 2], tolerance=tolerance),
        lambda: check_unimodal([1, 2, 3], [1, 2, 3], tolerance=tolerance),
        lambda: check_invariance({1: ([1, 2], [0, 1]), 2: ([1, 2], [0, 1])}, tolerance),
    ]
    for call in calls:
        with pytest.raises(InputError, match="tolerance"):
            call()


def test_numbers_of_any_size_are_compared_and_not_overflown() -> None:
    check_criterion([1e308, 1e-308], [1e-10, 1e-10], [1e308, 1e-308], reference_time=1e-10)
    with pytest.raises(AssertionError, match="give T/T_0 = inf, but T/T_0 = 1e-308"):
        check_criterion(1e308, 1e-10, 1e-308)
    check_sublinear([1e-300, 1e300], [1e-10, 1e300])
    with pytest.raises(AssertionError, match="throughput falls from inf"):
        check_sublinear([1e200, 1e300], [1e-200, 1e300])
    with pytest.raises(AssertionError, match="bump"):
        check_unimodal([1, 2, 3], [1e-300, 1e300, 1e-300])


def test_too_few_or_repeated_batches() -> None:
    with pytest.raises(InputError, match="1 batch"):
        check_sublinear([1], [1])
    with pytest.raises(InputError, match="2 batch"):
        check_unimodal([1, 2], [1, 2])
    with pytest.raises(InputError, match="batch 256 is given twice; average repeats"):
        check_sublinear([256, 512, 256], [1, 2, 1])
    with pytest.raises(InputError, match="reference_time has shape"):
        check_criterion(1.0, 1.0, 1.0, reference_time=[1.0, 2.0])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="reference_time is 0"):
        check_criterion(1.0, 1.0, 1.0, reference_time=0.0)


def test_the_docs_example_runs(tmp_path: Path) -> None:
    page = (DOCS / "testing.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n# test_sweep.py\n(.*?)```", page, re.S)
    (tmp_path / "test_sweep.py").write_text(code, encoding="utf-8")
    data = (DOCS / "testing_sweep.csv").read_text(encoding="utf-8")
    (tmp_path / "testing_sweep.csv").write_text(data, encoding="utf-8")
    shown = re.findall(r"^([\d.]+,[\d.]+,[\d.]+,[\d.]+),", page, re.M)
    assert [line.rpartition(',"')[0] for line in data.splitlines()[1:]] == shown
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_sweep.py"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


def test_every_check_and_strategy_is_documented() -> None:
    page = (DOCS / "testing.md").read_text(encoding="utf-8")
    own = [n for n, f in vars(testing).items() if callable(f) and getattr(f, "__module__", "") == testing.__name__]
    public = [n for n in own if not n.startswith("_") and n != "Specification"]
    assert len(public) == 11
    assert [n for n in public if n not in page] == []
