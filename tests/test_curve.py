from __future__ import annotations

import math

import naive
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchsim.learning.curve import CENSORING, crossing

scores = st.lists(st.one_of(st.floats(-1, 1), st.just(math.nan)), min_size=1, max_size=20)


class TestCrossing:
    @given(score=scores, target=st.floats(-1, 1), start=st.integers(0, 100))
    def test_against_a_walk(self, score: list[float], target: float, start: int) -> None:
        responses = [float(start + 64 * i) for i in range(len(score))]
        found, walked = crossing(responses, score, target=target), naive.crossing(responses, score, target)
        if walked is None:
            assert found is None
            return
        assert found is not None
        assert (found.low, found.high, found.censoring) == walked
        assert found.censoring in CENSORING

    @given(score=scores, target=st.floats(-1, 1))
    def test_indices_name_the_evaluations_of_the_bounds(self, score: list[float], target: float) -> None:
        responses = [100.0 * (i + 1) for i in range(len(score))]
        found = crossing(responses, score, target=target)
        if found is None:
            return
        assert (found.index_high is None) == (found.censoring == "right")
        assert (found.index_low is None) == (found.censoring == "left")
        if found.index_high is not None:
            assert responses[found.index_high] == found.high
            assert score[found.index_high] >= target
        if found.index_low is not None:
            assert responses[found.index_low] == found.low
            assert score[found.index_low] < target

    @given(
        rates=st.lists(st.floats(0.001, 0.1), min_size=3, max_size=30),
        keep=st.lists(st.booleans(), min_size=30, max_size=30),
        target=st.floats(0.01, 1.0),
    )
    def test_a_finer_grid_never_widens_the_interval(self, rates: list[float], keep: list[bool], target: float) -> None:
        # P13, on a rising curve: evaluations that are added can only cut the interval.
        score = np.cumsum(rates)
        responses = np.arange(1, score.size + 1) * 128.0
        chosen = np.array(keep[: score.size])
        if not chosen.any():
            return
        fine = crossing(responses, score, target=target)
        coarse = crossing(responses[chosen], score[chosen], target=target)
        assert fine is not None
        assert coarse is not None
        assert coarse.low <= fine.low
        assert fine.high <= coarse.high

    @given(score=scores, target=st.floats(-1, 1), unit=st.floats(0.01, 1000))
    def test_the_unit_of_responses_scales_the_interval(self, score: list[float], target: float, unit: float) -> None:
        responses = np.arange(1, len(score) + 1) * 64.0
        one, other = (crossing(responses * u, score, target=target) for u in (1.0, unit))
        if one is None or other is None:
            assert one is other
            return
        assert other.low == pytest.approx(one.low * unit)
        assert other.high == pytest.approx(one.high * unit)

    def test_best_score_and_its_place(self) -> None:
        found = crossing([10, 20, 30, 40], [0.1, 0.4, math.nan, 0.3], target=0.9)
        assert found is not None
        assert (found.best_score, found.best_at) == (0.4, 20.0)
        assert (found.low, found.high, found.censoring) == (40.0, math.inf, "right")

    def test_a_score_at_the_target_counts(self) -> None:
        found = crossing([10, 20], [0.1, 0.5], target=0.5)
        assert found is not None
        assert found.high == 20.0

    def test_first_evaluation_at_the_target_bounds_from_above_only(self) -> None:
        # MLPerf's 18 GRPO runs: each stops at its first evaluation.
        found = crossing([4608], [0.7], target=0.6)
        assert found is not None
        assert (found.low, found.high, found.censoring) == (0.0, 4608.0, "left")

    @pytest.mark.parametrize("score", [[], [math.nan, math.nan]])
    def test_no_finite_score_no_answer(self, score: list[float]) -> None:
        assert crossing([64.0 * (i + 1) for i in range(len(score))], score, target=0.5) is None
