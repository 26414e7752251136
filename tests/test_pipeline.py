from __future__ import annotations

import math
from typing import Any, ClassVar

import naive
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchsim.errors import InputError
from batchsim.system.pipeline import capped_throughput, critical_gen_batch, gen_time, rollout_step_time, throughput

intercept = st.floats(0.1, 500)
slope = st.floats(1e-3, 5)
batch = st.floats(8, 1e5)


class TestGeneration:
    @given(concurrency=st.integers(1, 64), waves=st.integers(1, 12), d0=intercept, d1=slope)
    def test_capped_concurrency_is_a_plateau(self, concurrency: int, waves: int, d0: float, d1: float) -> None:
        # Exact where the responses fill their waves: B/q_gen_max is then the time of all waves.
        responses = concurrency * waves
        plateau = capped_throughput(concurrency, gen_time_intercept=d0, gen_time_slope=d1)
        simulated = naive.generation_in_waves(responses, concurrency, d0, d1)
        law = gen_time(responses, gen_time_intercept=d0, gen_time_slope=d1, gen_throughput_max=plateau)
        assert float(law) == pytest.approx(simulated, rel=1e-9)
        assert float(responses / plateau) == pytest.approx(simulated, rel=1e-9)

    @given(concurrency=st.integers(2, 64), responses=st.integers(1, 400), d0=intercept, d1=slope)
    def test_a_last_wave_that_is_not_full_costs_at_most_its_intercept(
        self, concurrency: int, responses: int, d0: float, d1: float
    ) -> None:
        plateau = capped_throughput(concurrency, gen_time_intercept=d0, gen_time_slope=d1)
        simulated = naive.generation_in_waves(responses, concurrency, d0, d1)
        law = float(gen_time(responses, gen_time_intercept=d0, gen_time_slope=d1, gen_throughput_max=plateau))
        assert law <= simulated * (1 + 1e-9)
        assert simulated - law <= d0 * (1 + 1e-9)

    @given(d0=intercept, d1=slope, cap=st.floats(0.05, 100))
    def test_critical_batch_reaches_nine_tenths_of_the_plateau(self, d0: float, d1: float, cap: float) -> None:
        for limit in (math.inf, cap):
            law = {"gen_time_intercept": d0, "gen_time_slope": d1, "gen_throughput_max": limit}
            b = float(critical_gen_batch(**law))
            plateau = min(1 / d1, limit)
            assert b / float(gen_time(b, **law)) == pytest.approx(0.9 * plateau, rel=1e-9)

    def test_critical_batch_of_the_affine_law_is_nine_intercepts(self) -> None:
        assert float(critical_gen_batch(gen_time_intercept=20.0, gen_time_slope=0.1)) == pytest.approx(9 * 20 / 0.1)

    def test_a_law_without_slope_or_cap_has_no_plateau(self) -> None:
        # A stated time that does not grow with the batch (gen_time_slope = 0 in a plan).
        assert float(critical_gen_batch(gen_time_intercept=20.0, gen_time_slope=0.0)) == math.inf


class TestPublishedNumbers:
    """Li et al. 2026, figure 7."""

    def test_ppo_collection_is_affine_through_its_two_ends(self) -> None:
        d1 = (68 - 39) / (1024 - 256)
        law = {"gen_time_intercept": 39 - 256 * d1, "gen_time_slope": d1}
        gain = throughput(1024, **law) / throughput(256, **law)
        assert round(float(gain), 2) == 2.29

    def test_affine_law_misses_the_grpo_gain_and_a_cap_explains_it(self) -> None:
        # 1.31 times at twice the batch means d0/(d1 B0) = .9; at four times the affine law gives 1.55, not 1.36.
        share = (2 / 1.31 - 2) / (1 - 2 / 1.31)
        law = {"gen_time_intercept": share, "gen_time_slope": 1.0}
        doubled, fourfold = (float(throughput(x, **law) / throughput(1.0, **law)) for x in (2.0, 4.0))
        assert doubled == pytest.approx(1.31)
        assert round(fourfold, 2) == 1.55
        cap = 1.36 * float(throughput(1.0, **law))
        capped = [float(throughput(x, gen_throughput_max=cap, **law) / throughput(1.0, **law)) for x in (2.0, 4.0)]
        assert capped == pytest.approx([1.31, 1.36])


class TestComposition:
    stages: ClassVar[dict[str, Any]] = {
        "gen_time_intercept": 20.0,
        "gen_time_slope": 0.05,
        "train_time_intercept": 10.0,
        "train_time_per_response": 0.02,
        "overhead_time": 5.0,
    }

    def test_synchronous_stages_add_and_asynchronous_ones_hide(self) -> None:
        # R = 1000: generation 70 s, training 30 s, overhead 5 s.
        assert float(rollout_step_time(1000, mode="sync", **self.stages)) == pytest.approx(105)
        assert float(rollout_step_time(1000, mode="async", **self.stages)) == pytest.approx(75)

    @given(r=batch, d0=intercept, d1=slope, c=st.floats(0, 100), gamma=st.floats(0, 1), o=st.floats(0, 50))
    def test_asynchronous_lies_between_half_and_all_of_synchronous(
        self, r: float, d0: float, d1: float, c: float, gamma: float, o: float
    ) -> None:
        law: dict[str, Any] = {
            "gen_time_intercept": d0,
            "gen_time_slope": d1,
            "train_time_intercept": c,
            "train_time_per_response": gamma,
            "overhead_time": o,
        }
        serial, parallel = (float(rollout_step_time(r, mode=m, **law)) for m in ("sync", "async"))
        assert serial / 2 * (1 - 1e-12) <= parallel <= serial

    @given(r=batch, kept=st.floats(0.05, 1), ratio=st.floats(1, 4))
    def test_filtering_and_overlaunching_are_the_same_generated_responses(
        self, r: float, kept: float, ratio: float
    ) -> None:
        law: dict[str, Any] = {"gen_time_intercept": 20.0, "gen_time_slope": 0.05}
        both = float(rollout_step_time(r, kept_share=kept, gen_ratio=ratio, **law))
        assert both == pytest.approx(20 + 0.05 * r * ratio / kept, rel=1e-12)
        # P14: the conversion commutes, filtered generation of r kept is plain generation of r/kept.
        assert both == pytest.approx(float(rollout_step_time(r / kept, gen_ratio=ratio, **law)), rel=1e-12)

    @given(r=batch, x=st.floats(1.01, 64), cap=st.floats(0.1, 1e3), mode=st.sampled_from(["sync", "async"]))
    def test_throughput_rises_with_the_batch_and_stays_under_every_plateau(
        self, r: float, x: float, cap: float, mode: str
    ) -> None:
        small, large = (float(throughput(b, gen_throughput_max=cap, mode=mode, **self.stages)) for b in (r, r * x))
        assert small <= large * (1 + 1e-12)
        assert large <= min(cap, 1 / 0.05) * (1 + 1e-12)

    def test_draws_broadcast_against_batches(self) -> None:
        r, d0 = np.array([128.0, 1024.0]), np.array([10.0, 30.0, 50.0])[:, None]
        q = throughput(r, gen_time_intercept=d0, gen_time_slope=0.05)
        assert q.shape == (3, 2)
        assert q[2, 0] == pytest.approx(128 / (50 + 6.4))

    def test_an_unknown_mode_names_the_known_ones(self) -> None:
        with pytest.raises(InputError, match=r"'overlapped'.*sync, partial, async"):
            throughput(128, gen_time_intercept=1.0, gen_time_slope=1.0, mode="overlapped")
