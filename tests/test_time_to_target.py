from __future__ import annotations

import itertools
import math
from typing import Any

import naive
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batchsim.errors import InputError
from batchsim.learning.sample_cost import sample_cost_ratio
from batchsim.time_to_target import (
    effective_range,
    optimal_train_batch,
    p_near_best,
    plateau_factor,
    star,
    worst_penalty,
)

positive = st.floats(0.01, 1e4)
times = st.one_of(st.floats(0.2, 5.0), st.just(math.inf))
tables = st.integers(1, 6).flatmap(lambda n: st.lists(st.lists(times, min_size=n, max_size=n), min_size=1, max_size=12))


def tuned_time(batch: float, noise_scale: float, tau0: float, tau1: float) -> float:
    """T up to a factor: tuned sample cost from the package times the affine step time per response."""
    cost = sample_cost_ratio(batch, reference_batch=1.0, noise_scale=noise_scale, lr_fraction=1.0, lr_rule="tuned")
    return float(cost) * (tau0 / batch + tau1)


class TestOptimum:
    @given(noise_scale=positive, tau0=positive, tau1=positive, off=st.floats(1.02, 50))
    def test_time_falls_to_it_and_rises_from_it(self, noise_scale: float, tau0: float, tau1: float, off: float) -> None:
        # P7.
        best = float(optimal_train_batch(noise_scale=noise_scale, update_time_intercept=tau0, update_time_slope=tau1))
        law = (noise_scale, tau0, tau1)
        for step in (off, 1 / off):
            path = [tuned_time(best * step**i, *law) for i in range(3)]
            assert path[0] < path[1] < path[2]

    @given(noise_scale=positive, tau0=positive, tau1=positive, k=st.floats(0.05, 20))
    def test_penalty_is_bounded(self, noise_scale: float, tau0: float, tau1: float, k: float) -> None:
        # P8, with equality where noise scale and amortisation batch coincide and nowhere else.
        best = float(optimal_train_batch(noise_scale=noise_scale, update_time_intercept=tau0, update_time_slope=tau1))
        law = (noise_scale, tau0, tau1)
        found = tuned_time(k * best, *law) / tuned_time(best, *law)
        assert found <= float(worst_penalty(k)) * (1 + 1e-9)
        if abs(math.log(noise_scale * tau1 / tau0)) > 0.1 and abs(math.log(k)) > 0.1:
            assert found < float(worst_penalty(k)) * (1 - 1e-7)
        even = (tau0 / tau1, tau0, tau1)
        assert tuned_time(k * even[0], *even) / tuned_time(even[0], *even) == pytest.approx(
            float(worst_penalty(k)), rel=1e-9
        )

    @given(noise_scale=positive, tau0=positive, tau1=positive, tolerance=st.floats(1e-6, 10))
    def test_plateau_ends_where_time_leaves_the_tolerance(
        self, noise_scale: float, tau0: float, tau1: float, tolerance: float
    ) -> None:
        system: dict[str, Any] = {
            "noise_scale": noise_scale,
            "update_time_intercept": tau0,
            "update_time_slope": tau1,
        }
        best, k = float(optimal_train_batch(**system)), float(plateau_factor(tolerance=tolerance, **system))
        law = (noise_scale, tau0, tau1)
        for edge in (k, 1 / k):
            assert tuned_time(edge * best, *law) / tuned_time(best, *law) - 1 == pytest.approx(tolerance, rel=1e-6)

    def test_a_plateau_is_narrowest_where_noise_scale_and_amortisation_batch_coincide(self) -> None:
        factors = plateau_factor(noise_scale=[1, 10, 100, 1e3, 1e4], update_time_intercept=100, update_time_slope=1)
        assert np.argmin(factors) == 2
        # k + 1/k - 2 = .2 there.
        assert factors[2] + 1 / factors[2] == pytest.approx(2.2, rel=1e-12)

    def test_careless_input(self) -> None:
        law: dict[str, Any] = {"noise_scale": 1.0, "update_time_intercept": 1.0, "update_time_slope": 1.0}
        with pytest.raises(InputError, match=r"rule 'sqr'.*did you mean 'sqrt'"):
            optimal_train_batch(lr_rule="sqr", **law)
        with pytest.raises(InputError, match=r"tolerance is -0.1"):
            plateau_factor(tolerance=[0.1, -0.1], **law)

    def test_published_numbers(self) -> None:
        assert worst_penalty([2.0, 0.5, 4.0]).tolist() == [1.125, 1.125, 1.5625]
        # MLPerf GRPO in the notes, section 5.4: a = 348, B_noise = 3750.
        a, noise_scale = 348.0, 3750.0
        tuned = optimal_train_batch(noise_scale=noise_scale, update_time_intercept=a, update_time_slope=1.0)
        assert round(float(tuned)) == 1142
        # Under the sqrt rule far below the optimal rate the optimum is (a + sqrt(a^2 + 8 a B_noise))/2 = 1799.
        root = optimal_train_batch(
            noise_scale=noise_scale, update_time_intercept=a, update_time_slope=1.0, lr_rule="sqrt"
        )
        assert round(float(root)) == 1799
        batches = np.arange(200.0, 8000.0)
        total = sample_cost_ratio(batches, reference_batch=256, noise_scale=noise_scale) * (a / batches + 1)
        assert batches[np.argmin(total)] == 1799


class TestRange:
    @given(tables)
    def test_probability_against_loops(self, table: list[list[float]]) -> None:
        assert p_near_best(table).tolist() == pytest.approx(naive.p_near_best(table), abs=1e-12)

    @given(tables)
    def test_range_against_loops(self, table: list[list[float]]) -> None:
        assert effective_range(table) == naive.effective_range(p_near_best(table).tolist())

    @given(tables, st.floats(0.01, 100))
    def test_the_reference_does_not_matter(self, table: list[list[float]], unit: float) -> None:
        scaled = (np.array(table) * 2.0 ** round(math.log2(unit))).tolist()
        assert effective_range(scaled) == effective_range(table)
        assert star(scaled) == star(table)

    @given(tables, st.lists(st.floats(1.0, 2.0), min_size=2, max_size=4))
    def test_a_smaller_tolerance_never_widens_it(self, table: list[list[float]], tolerances: list[float]) -> None:
        ranges = [effective_range(table, near_best=near) for near in sorted({*tolerances, 1.05})]
        for small, large in itertools.pairwise(ranges):
            if small is not None:
                assert large is not None
                assert large[0] <= small[0] <= small[1] <= large[1]

    def test_what_all_batches_share_favours_none(self) -> None:
        # One factor per draw, however large, leaves certainty about the best batch.
        draws = np.exp(np.linspace(-2, 2, 50))[:, None] * np.array([1.2, 1.0, 1.03, 1.5])
        assert p_near_best(draws).tolist() == [0, 1, 1, 0]
        assert effective_range(draws) == (1, 2)
        assert star(draws) == 1

    def test_no_batch_reaches_one_half(self) -> None:
        table = np.where(np.eye(3) > 0, 1.0, 2.0)
        assert effective_range(table) is None
        assert star(table) is None

    def test_training_that_always_diverges_is_never_near_the_best(self) -> None:
        assert p_near_best([[math.inf, math.inf]]).tolist() == [0, 0]
        assert effective_range([[math.inf, math.inf]]) is None

    def test_range_stops_at_a_gap(self) -> None:
        table = np.array([[1.0, 1.2, 1.0, 1.01, 1.2], [1.2, 1.2, 1.0, 1.01, 1.2]])
        assert effective_range(table) == (2, 3)


class TestStar:
    def test_is_the_smallest_batch_on_the_plateau(self) -> None:
        assert star([[1.0, 0.70, 0.68, 0.67, 0.9]]) == 1

    @given(tables)
    def test_is_on_the_plateau_of_the_range_and_nothing_smaller_is(self, table: list[list[float]]) -> None:
        chosen, found = star(table), effective_range(table)
        assert (chosen is None) == (found is None)
        if chosen is None or found is None:
            return
        assert found[0] <= chosen <= found[1]
        columns = [sorted(draw[i] for draw in table) for i in range(len(table[0]))]
        middle = len(table) // 2
        medians = [c[middle] if len(c) % 2 else (c[middle - 1] + c[middle]) / 2 for c in columns]
        near = [i for i in range(found[0], found[1] + 1) if medians[i] <= 1.05 * min(medians) < math.inf]
        least = min(range(found[0], found[1] + 1), key=medians.__getitem__)
        assert chosen == (near[0] if near else least)

    def test_lies_in_the_range_where_medians_and_probabilities_disagree(self) -> None:
        # The first batch is best in three draws of five and its median is that of the longest of them.
        table = [[10.0, 10.6], [20.0, 21.2], [30.0, 31.8], [99.0, 1.06], [99.0, 1.06]]
        assert effective_range(table) == (0, 0)
        assert star(table) == 0

    @example([[math.inf, 1.0], [math.inf, math.inf]])
    @given(tables)
    def test_never_diverges_in_every_draw(self, table: list[list[float]]) -> None:
        chosen = star(table)
        if chosen is not None:
            assert any(math.isfinite(draw[chosen]) for draw in table)
