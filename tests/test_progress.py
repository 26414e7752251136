from __future__ import annotations

import math

import mpmath
import naive
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import gammaincinv

from batchsim.learning.progress import signal_function, step_cost, usable_slope

shapes = st.floats(0.1, 300.0)
relative = st.floats(1e-6, 1e4)


class TestSignalFunction:
    @pytest.mark.parametrize("k", [0.1, 0.5, 0.56, 1.0, 2.0, 7.5, 40.0])
    @pytest.mark.parametrize("b", [1e-4, 0.03, 0.5, 1.0, 8.0, 200.0])
    def test_is_the_expectation_it_claims_to_be(self, k: float, b: float) -> None:
        assert float(signal_function(b, snr_shape=k)) == pytest.approx(naive.signal_function(b, k), rel=2e-9)

    @given(b=relative, k=shapes)
    def test_lies_between_zero_and_drift(self, b: float, k: float) -> None:
        # Jensen: spread over coordinates can only waste signal, y/sqrt(1 + b y) being concave.
        f = float(signal_function(b, snr_shape=k))
        assert 0 < f <= float(signal_function(b)) * (1 + 1e-9)

    @given(b=relative, k=shapes, factor=st.floats(1.05, 10))
    def test_falls_with_the_batch_and_rises_with_the_shape(self, b: float, k: float, factor: float) -> None:
        f = float(signal_function(b, snr_shape=k))
        assert float(signal_function(b * factor, snr_shape=k)) < f
        assert float(signal_function(b, snr_shape=k * factor)) >= f * (1 - 1e-9)

    @given(k=st.floats(0.2, 100.0))
    def test_departs_one_plus_one_over_k_times_earlier_than_drift(self, k: float) -> None:
        b = 1e-5
        loss = 1 - float(signal_function(b, snr_shape=k))
        assert loss == pytest.approx((1 + 1 / k) * b / 2, rel=1e-3)

    @given(b=st.floats(1e-6, 1e4))
    def test_tends_to_drift_as_the_spread_vanishes(self, b: float) -> None:
        far = float(signal_function(b, snr_shape=1e7))
        assert far == pytest.approx(float(signal_function(b, snr_shape=np.inf)), rel=1e-6)

    @given(k=st.one_of(shapes, st.just(math.inf)))
    def test_is_one_without_noise_limit(self, k: float) -> None:
        assert float(signal_function(0.0, snr_shape=k)) == pytest.approx(1, abs=1e-13)

    def test_families_mix_in_one_array(self) -> None:
        mixed = signal_function([[0.5], [2.0]], snr_shape=[0.5, np.inf, 3.0])
        assert mixed.shape == (2, 3)
        for i, b in enumerate((0.5, 2.0)):
            for j, k in enumerate((0.5, np.inf, 3.0)):
                assert mixed[i, j] == pytest.approx(float(signal_function(b, snr_shape=k)), rel=1e-14)

    @pytest.mark.parametrize("k", [0.1, 0.5, 4.0, 300.0])
    @pytest.mark.parametrize(("b", "error"), [(1e-8, 1e-14), (1.0, 1e-14), (1e4, 1e-14), (1e8, 1e-17)])
    def test_quadrature_error_is_what_the_module_states(self, b: float, error: float, k: float) -> None:
        with mpmath.workdps(60):
            shape = mpmath.mpf(k)
            exact = (shape / b) ** (shape + 1) * mpmath.hyperu(shape + 1, shape + mpmath.mpf("1.5"), shape / b)
        assert abs(float(signal_function(b, snr_shape=k)) - float(exact)) <= error


class TestUsableSlope:
    @pytest.mark.parametrize("k", [0.5, 2.0])
    def test_is_adams_sum_over_coordinates(self, k: float) -> None:
        # Coordinates at Gamma quantiles, noise deviations that have nothing to do with them.
        count, noise_scale = 4000, 750.0
        ratio = gammaincinv(k, (np.arange(count) + 0.5) / count) / k / noise_scale
        deviation = np.exp(0.3 * np.sin(np.arange(count) * 12.9898))
        signal = deviation * np.sqrt(ratio)
        for batch in (64.0, 750.0, 6000.0):
            loops = naive.adam_slope(signal, deviation, batch) / naive.adam_slope(signal, deviation, 256.0)
            slope = usable_slope([batch, 256.0], noise_scale=noise_scale, snr_shape=k)
            assert slope[0] / slope[1] == pytest.approx(loops, rel=2e-3)

    @given(
        batch=st.floats(1, 1e6),
        noise=st.floats(1, 1e6),
        k=st.one_of(shapes, st.just(math.inf)),
        unit=st.floats(0.01, 100),
    )
    def test_knows_only_the_ratio_of_batch_to_noise_scale(
        self, batch: float, noise: float, k: float, unit: float
    ) -> None:
        one = float(usable_slope(batch, noise_scale=noise, snr_shape=k))
        other = float(usable_slope(batch * unit, noise_scale=noise * unit, snr_shape=k))
        assert other == pytest.approx(one, rel=1e-9)

    @given(
        batch=st.floats(1, 1e6), noise=st.floats(10, 1e5), k=st.one_of(shapes, st.just(math.inf)), x=st.floats(1.01, 64)
    )
    def test_grows_with_the_batch_but_never_faster_than_its_root(
        self, batch: float, noise: float, k: float, x: float
    ) -> None:
        small, large = usable_slope([batch, batch * x], noise_scale=noise, snr_shape=k)
        assert 1 - 1e-9 <= large / small <= math.sqrt(x) * (1 + 1e-9)

    def test_sgd_has_a_slope_that_no_batch_changes(self) -> None:
        assert usable_slope([8.0, 8e6], noise_scale=100.0, snr_shape=0.5, optimizer="sgd").tolist() == [1.0, 1.0]


class TestStepCost:
    @given(batch=st.floats(1, 1e6), noise=st.floats(1, 1e6), ratio=st.floats(0.01, 100))
    def test_is_the_curvature_along_a_normalised_update(self, batch: float, noise: float, ratio: float) -> None:
        expected = naive.normalised_step_cost(batch, noise, ratio)
        assert float(step_cost(batch, noise_scale=noise, curvature_ratio=ratio)) == pytest.approx(expected, rel=1e-12)

    @given(batch=st.floats(1, 1e6), noise=st.floats(1, 1e6))
    def test_is_constant_where_the_hessian_knows_no_direction(self, batch: float, noise: float) -> None:
        assert float(step_cost(batch, noise_scale=noise, curvature_ratio=1.0)) == pytest.approx(1, abs=1e-12)

    def test_sgd_pays_for_the_noise_of_its_step(self) -> None:
        assert step_cost([100.0, 400.0], noise_scale=100.0, optimizer="sgd").tolist() == [2.0, 1.25]
