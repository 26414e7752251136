from __future__ import annotations

import math

import naive
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchsim.errors import InputError
from batchsim.learning.curve import (
    CENSORING,
    KINDS,
    crossing,
    first_crossing_probability,
    interpolated_crossing,
    rising_curve,
)

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


class TestInterpolated:
    def test_on_a_straight_line_between_its_evaluations(self) -> None:
        used, score = [100, 200, 300, 400], [0.1, np.nan, 0.5, 0.4]
        for target, wanted in ((0.2, 150.0), (0.5, 300.0), (0.05, 100.0), (0.6, np.inf)):
            assert interpolated_crossing(used, score, target=target) == pytest.approx(wanted)
        assert np.isnan(interpolated_crossing([100], [np.nan], target=0.1))


class TestSmoothed:
    @given(
        score=st.lists(st.floats(-1, 1), min_size=1, max_size=9),
        weight=st.lists(st.floats(0.1, 10), min_size=9, max_size=9),
    )
    def test_pooling_is_the_max_of_min_means(self, score: list[float], weight: list[float]) -> None:
        weight = weight[: len(score)]
        assert rising_curve(score, weight=weight) == pytest.approx(naive.rising_curve(score, weight), abs=1e-12)

    @given(score=st.lists(st.floats(-1, 1), min_size=1, max_size=30))
    def test_rises_keeps_the_mean_and_is_its_own_fit(self, score: list[float]) -> None:
        curve = rising_curve(score)
        assert (np.diff(curve) >= 0).all()
        assert curve.mean() == pytest.approx(np.mean(score), abs=1e-12)
        assert rising_curve(curve) == pytest.approx(curve)
        assert min(score) - 1e-12 <= curve[0]
        assert curve[-1] <= max(score) + 1e-12

    def test_against_scipy(self) -> None:
        from scipy.optimize import isotonic_regression

        rng = np.random.default_rng(0)
        score, weight = np.cumsum(rng.normal(0.02, 0.2, 300)), rng.uniform(0.5, 2, 300)
        assert rising_curve(score, weight=weight) == pytest.approx(isotonic_regression(score, weights=weight).x)

    @given(rates=st.lists(st.floats(0.001, 0.1), min_size=1, max_size=30), target=st.floats(0.01, 1.0))
    def test_on_a_rising_run_all_kinds_agree(self, rates: list[float], target: float) -> None:
        score, responses = np.cumsum(rates), np.arange(1, len(rates) + 1) * 128.0
        assert len({crossing(responses, score, target=target, kind=kind) for kind in KINDS}) == 1

    @given(score=scores, target=st.floats(-1, 1), error=st.sampled_from([0.0, 0.1]))
    def test_bounds_are_evaluations_between_first_and_sustained(
        self, score: list[float], target: float, error: float
    ) -> None:
        responses = [100.0 * (i + 1) for i in range(len(score))]
        smooth, first, last = (
            crossing(responses, score, target=target, kind=kind, score_error=error)
            for kind in ("smoothed", "first", "sustained")
        )
        if smooth is None:
            return
        assert first is not None
        assert last is not None
        assert smooth.low in (0.0, *responses)
        assert smooth.high in (math.inf, *responses)
        # Pooled means cannot pass before the first score does, nor fail where every later score passes.
        if error == 0:
            assert first.high <= smooth.high <= last.high

    def test_one_lucky_score_is_not_a_crossing(self) -> None:
        n, j = [1.0, 2, 3, 4, 5, 6], [0.1, 0.55, 0.2, 0.4, 0.52, 0.6]
        found = {kind: crossing(n, j, target=0.5, kind=kind) for kind in KINDS}
        assert [f.high for f in found.values() if f is not None] == [2.0, 5.0, 5.0]

    def test_weights_follow_the_errors(self) -> None:
        error = np.array([0.01, 0.1, 0.1])
        precise = crossing([1, 2, 3], [0.51, 0.45, 0.47], target=0.5, kind="smoothed", score_error=error)
        equal = crossing([1, 2, 3], [0.51, 0.45, 0.47], target=0.5, kind="smoothed")
        assert precise is not None
        assert equal is not None
        assert precise.index_low is None  # .508 +- .01 may have passed
        assert equal.censoring == "right"


class TestFirstCrossing:
    @given(score=st.lists(st.floats(-2, 2), min_size=1, max_size=8), error=st.floats(0.1, 3))
    def test_against_all_patterns(self, score: list[float], error: float) -> None:
        p = first_crossing_probability(score, target=0.3, score_error=error)
        assert p == pytest.approx(naive.first_crossings(score, 0.3, error), abs=1e-12)
        assert 0 <= p.sum() <= 1 + 1e-12

    @pytest.mark.parametrize(
        ("spacing", "mean", "low_sd", "high_sd"),
        [(4e3, 0.93, 0.07, 0.09), (8e3, 0.98, 0.08, 0.10), (16e3, 1.05, 0.10, 0.12), (32e3, 1.15, 0.13, 0.15)],
    )
    def test_published_bias(self, spacing: float, mean: float, low_sd: float, high_sd: float) -> None:
        # ../shared/notes/learning_theory.md, 2.5; its curve is not given, any scale of 60k to 150k responses agrees.
        n = np.arange(0, 100 * 32e3, spacing)
        true = -0.62 * 8 * (np.exp((120e3 - n) / 80e3) - 1)  # points above the target; slope .62 per 10k at 120k
        p = first_crossing_probability(true, target=0.0, score_error=1.0)
        average = (p * n).sum() / 120e3
        assert p.sum() == pytest.approx(1)
        assert average == pytest.approx(mean, abs=0.012)
        assert low_sd < math.sqrt((p * n**2).sum() / 120e3**2 - average**2) < high_sd

    def test_needs_an_error(self) -> None:
        with pytest.raises(InputError, match="positive error"):
            first_crossing_probability([0.1], target=0.5, score_error=0.0)
