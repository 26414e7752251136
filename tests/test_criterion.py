from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchsim.criterion import cost, gpu_hours, is_faster, saving, time_ratio, time_to_target, verdict

positive = st.floats(1e-6, 1e6)
triples = st.tuples(positive, positive, positive)


class TestPublishedNumbers:
    """Li et al. 2026: the worked examples of the introduction and of the criterion's section."""

    def test_worked_example(self) -> None:
        assert float(time_ratio(sample_cost_ratio=1.2, throughput_ratio=1.5)) == pytest.approx(0.8, abs=1e-15)
        assert round(float(time_ratio(sample_cost_ratio=1.2, throughput_ratio=1.1)), 2) == 1.09

    def test_budget_of_ten_thousand_gpus_for_thirty_days(self) -> None:
        hours = gpu_hours(seconds=30 * 86400, gpus=10_000)
        price = cost(gpu_hours=hours, price=3.0)
        assert float(hours) == 7_200_000
        assert float(price) == 21_600_000
        assert float(saving(hours, time_ratio=0.9)) == pytest.approx(720_000, abs=1e-6)
        assert float(saving(price, time_ratio=0.9)) == pytest.approx(2_160_000, abs=1e-6)

    def test_ppo_collection_throughput(self) -> None:
        # B 256 -> 1024 responses collected in 39 s -> 68 s.
        before, after = 256 / 39, 1024 / 68
        assert round(after / before, 2) == 2.29
        assert bool(is_faster(sample_cost_ratio=2.28, throughput_ratio=after / before))
        assert not bool(is_faster(sample_cost_ratio=2.30, throughput_ratio=after / before))


class TestCriterion:
    @given(n=positive, n0=positive, q=positive, q0=positive)
    def test_larger_throughput_gain_than_sample_cost_means_sooner(
        self, n: float, n0: float, q: float, q0: float
    ) -> None:
        # P1, judged in exact arithmetic away from the tie that rounding cannot resolve.
        exact = Fraction(n) * Fraction(q0) / (Fraction(q) * Fraction(n0))
        sooner = bool(is_faster(sample_cost_ratio=n / n0, throughput_ratio=q / q0))
        t = float(time_to_target(responses_to_target=n, throughput=q))
        t0 = float(time_to_target(responses_to_target=n0, throughput=q0))
        if abs(exact - 1) > 1e-12:
            assert sooner == (exact < 1) == (t < t0)
        assert float(time_ratio(sample_cost_ratio=n / n0, throughput_ratio=q / q0)) == pytest.approx(t / t0, rel=1e-12)

    @given(n=triples, q=triples)
    def test_of_two_recipes_one_is_faster_and_of_three_the_order_is_one(
        self, n: tuple[float, float, float], q: tuple[float, float, float]
    ) -> None:
        # Antisymmetry and transitivity, each recipe in turn being the reference; exact times decide near a tie.
        exact = [Fraction(a) / Fraction(b) for a, b in zip(n, q, strict=True)]

        def beats(i: int, j: int) -> bool:
            return bool(is_faster(sample_cost_ratio=n[i] / n[j], throughput_ratio=q[i] / q[j]))

        for i, j, k in itertools.permutations(range(3)):
            apart = abs(exact[i] / exact[j] - 1) > 1e-12
            assert not (apart and beats(i, j) and beats(j, i))
            if apart:
                assert beats(i, j) or beats(j, i)
            if beats(i, j) and beats(j, k) and abs(exact[i] / exact[k] - 1) > 1e-12:
                assert beats(i, k)
        assert not any(beats(i, i) for i in range(3))

    @given(n=positive, n0=positive, q=positive, q0=positive, responses=st.floats(1e-3, 1e3), time=st.floats(1e-3, 1e3))
    def test_units_of_responses_and_time_decide_nothing(
        self, n: float, n0: float, q: float, q0: float, responses: float, time: float
    ) -> None:
        per_time = responses / time
        one = time_ratio(sample_cost_ratio=n / n0, throughput_ratio=q / q0)
        other = time_ratio(
            sample_cost_ratio=(n * responses) / (n0 * responses), throughput_ratio=(q * per_time) / (q0 * per_time)
        )
        assert float(other) == pytest.approx(float(one), rel=1e-13)
        scaled = time_to_target(responses_to_target=n * responses, throughput=q * per_time)
        assert float(scaled) == pytest.approx(
            float(time_to_target(responses_to_target=n, throughput=q)) * time, rel=1e-13
        )
        if abs(float(one) - 1) > 1e-12:
            assert bool(
                is_faster(
                    sample_cost_ratio=(n * responses) / (n0 * responses),
                    throughput_ratio=(q * per_time) / (q0 * per_time),
                )
            ) == (float(one) < 1)

    def test_a_tie_is_not_faster(self) -> None:
        assert not bool(is_faster(sample_cost_ratio=1.5, throughput_ratio=1.5))

    @given(r_n=positive, r_q=positive, value=positive)
    def test_saving_and_spending_add_up(self, r_n: float, r_q: float, value: float) -> None:
        ratio = time_ratio(sample_cost_ratio=r_n, throughput_ratio=r_q)
        spent = value * ratio
        assert float(saving(value, time_ratio=ratio) + spent) == pytest.approx(value, rel=1e-9, abs=1e-9 * float(spent))

    def test_draws_and_batches_broadcast(self) -> None:
        r_n = np.array([[1.0, 1.2, 2.0], [1.0, 1.1, 1.5]])
        r_q = np.array([1.0, 1.5, 1.6])
        expected = [[False, True, False], [False, True, True]]
        assert is_faster(sample_cost_ratio=r_n, throughput_ratio=r_q).tolist() == expected
        ratio = time_ratio(sample_cost_ratio=r_n, throughput_ratio=r_q)
        assert ratio.shape == (2, 3)
        assert ratio[1, 2] == 1.5 / 1.6


class TestVerdict:
    @pytest.mark.parametrize(
        ("p", "said"),
        [(1.0, "wins"), (0.9, "wins"), (0.899, "undecided"), (0.101, "undecided"), (0.1, "loses"), (0.0, "loses")],
    )
    def test_thresholds(self, p: float, said: str) -> None:
        assert verdict(p) == said

    @pytest.mark.parametrize("p", [None, math.nan])
    def test_nothing_known_gives_no_verdict(self, p: float | None) -> None:
        assert verdict(p) is None

    @given(st.floats(0, 1))
    def test_swapping_the_two_recipes_swaps_the_verdict(self, p: float) -> None:
        mirror = {"wins": "loses", "loses": "wins", "undecided": "undecided"}
        # 1 - p rounds; stay off the two thresholds.
        if min(abs(p - 0.1), abs(p - 0.9)) > 1e-12:
            said = verdict(p)
            assert said is not None
            assert verdict(1 - p) == mirror[said]
