"""A curve at any batch by warping the reference, and the sample cost as a function of the target."""

from __future__ import annotations

import csv
import math
from functools import partial
from pathlib import Path
from typing import Any

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchsim.errors import InputError
from batchsim.learning.curve import (
    FAMILIES,
    Curve,
    at_rate,
    local_cost,
    lr_fraction_along,
    noise_scale_along,
    noise_scale_from_signal,
    progress_at,
    relative_progress,
    responses_at,
    responses_used,
    sample_cost_to_target,
    score_at,
    signal_along,
    slope_at,
    warped_score,
)
from batchsim.learning.curve.quadrature import cumulative
from batchsim.learning.progress import usable_slope
from batchsim.learning.sample_cost import sample_cost_ratio

SATURATING = Curve(family="exponential", start=0.3, asymptote=0.7, scale=6e4)
SIGMOID = Curve(family="sigmoid", start=0.3, asymptote=0.7, scale=6e4, exponent=1.4)
POWER = Curve(family="power", start=0.3, asymptote=0.7, scale=2e4, exponent=0.6)
growing = partial(noise_scale_along, curve=SATURATING, noise_scale=2000.0, measured_at=1e4)


class TestQuadrature:
    @given(power=st.floats(-0.3, 8), ends=st.lists(st.floats(1, 1e6), min_size=1, max_size=6))
    def test_powers(self, power: float, ends: list[float]) -> None:
        # The panel next to 0 holds 2^-64 of the whole.
        found = cumulative(lambda u: u**power, ends)
        assert found == pytest.approx(np.array(ends) ** (power + 1) / (power + 1), rel=1e-8)

    @given(rate=st.floats(0.1, 200), ends=st.lists(st.floats(0, 1), min_size=1, max_size=6))
    def test_exponentials(self, rate: float, ends: list[float]) -> None:
        ends = [*ends, 1.0]
        found = cumulative(lambda u: np.exp(-rate * u), ends)
        assert found == pytest.approx(-np.expm1(-rate * np.array(ends)) / rate, rel=1e-9, abs=1e-15)

    def test_jumps_leading_axes_and_infinities(self) -> None:
        def integrand(u: np.ndarray) -> np.ndarray:
            return np.array([[1.0], [3.0]]) * np.where(u < 0.3, 1.0, 2.0)

        found = cumulative(integrand, [[0.3, 1.0], [0.0, math.inf]], breaks=[0.3])
        assert found.shape == (2, 2, 2)
        assert found[:, 0] == pytest.approx(np.array([[0.3, 1.7], [0.9, 5.1]]))
        assert found[:, 1].tolist() == [[0, math.inf], [0, math.inf]]
        wall = cumulative(lambda u: np.where(u < 0.5, 1.0, np.inf), [0.25, 1.0], breaks=[0.5])
        assert wall.tolist() == [pytest.approx(0.25), math.inf]
        assert np.isnan(cumulative(np.ones_like, [math.nan, 1.0])[0])


class TestWarp:
    @given(
        family=st.sampled_from(sorted(FAMILIES)),
        cost=st.floats(0.01, 100),
        responses=st.lists(st.floats(0, 1e6), min_size=1, max_size=9),
    )
    def test_a_constant_cost_scales_the_axis_exactly(self, family: str, cost: float, responses: list[float]) -> None:
        curve = Curve(family=family, start=0.3, asymptote=0.7, scale=6e4, exponent=1.4)
        n = np.array(responses)
        assert (warped_score(n, curve=curve, cost=cost) == score_at(curve, n / cost)).all()
        assert (responses_used(n, cost=cost) == cost * n).all()
        through = warped_score(n, curve=curve, cost=lambda u: np.full_like(u, cost))
        assert through == pytest.approx(score_at(curve, n / cost), rel=1e-9)

    @given(first=st.floats(0.1, 10), second=st.floats(0.1, 10), n=st.floats(0, 1e6))
    def test_warps_compose(self, first: float, second: float, n: float) -> None:
        twice = progress_at(progress_at(n, cost=second), cost=first)
        assert twice == pytest.approx(progress_at(n, cost=first * second))

    def test_varying_warps_compose(self) -> None:
        def first(u: np.ndarray) -> np.ndarray:
            return np.asarray(1 + u / 1e5)

        def second(n: np.ndarray) -> np.ndarray:
            return np.asarray(2 - np.exp(-n / 5e4))

        def both(u: np.ndarray) -> np.ndarray:
            return np.asarray(first(u) * second(responses_used(u, cost=first)))

        n = np.linspace(0, 4e5, 7)
        assert progress_at(progress_at(n, cost=second), cost=first) == pytest.approx(progress_at(n, cost=both))

    @given(u=st.lists(st.floats(0, 5e5), min_size=1, max_size=8), batch=st.sampled_from([32.0, 256.0, 4096.0]))
    @settings(max_examples=30)
    def test_progress_is_the_inverse_of_responses(self, u: list[float], batch: float) -> None:
        cost = partial(local_cost, train_batch=batch, reference_batch=256.0, noise_scale=growing)
        assert progress_at(responses_used(u, cost=cost), cost=cost) == pytest.approx(u, rel=1e-10, abs=1e-9)

    @given(rate=st.floats(0.05, 10), u=st.floats(1, 1e6))
    def test_closed_form(self, rate: float, u: float) -> None:
        # r = 1 + rate u/1e5: N = u + rate u^2/2e5.
        def cost(v: np.ndarray) -> np.ndarray:
            return np.asarray(1 + rate * v / 1e5)

        used = u + rate * u**2 / 2e5
        assert responses_used(u, cost=cost) == pytest.approx(used, rel=1e-12)
        assert progress_at(used, cost=cost) == pytest.approx(u, rel=1e-12)

    def test_progress_stops_where_training_diverges(self) -> None:
        def cost(u: np.ndarray) -> np.ndarray:
            return np.where(u < 1000, 1.0, np.inf)

        assert progress_at([500.0, 5000.0], cost=cost, breaks=[1000.0]) == pytest.approx([500, 1000])
        assert responses_used([500.0, 5000.0], cost=cost, breaks=[1000.0]).tolist() == [pytest.approx(500), math.inf]

    @pytest.mark.parametrize("rule", ["sqrt", "fixed", "linear"])
    @pytest.mark.parametrize("batch", [64.0, 2048.0])
    def test_against_a_walk_of_updates(self, rule: str, batch: float) -> None:
        cost = partial(local_cost, reference_batch=256.0, noise_scale=growing, lr_rule=rule, lr_fraction=0.2)

        def one(u: float, b: float) -> float:
            return float(cost(np.array([u]), train_batch=b)[0])

        _, used = naive.walk_updates(2e5, lambda u: batch, one)
        assert responses_used(2e5, cost=partial(cost, train_batch=batch)) == pytest.approx(used, rel=1e-4)

    def test_relative_progress(self) -> None:
        law: dict[str, Any] = {"noise_scale": 3000.0, "lr_rule": "fixed", "lr_fraction": 0.3}
        r = sample_cost_ratio(1024, reference_batch=256, **law)
        assert relative_progress(1024, reference_batch=256, **law) == pytest.approx(float(4 / r))
        assert relative_progress(256, reference_batch=256, **law) == pytest.approx(1.0)
        assert relative_progress(4096, reference_batch=256, noise_scale=10.0, lr_fraction=1.5, lr_rule="linear") == 0

    def test_a_probe_at_the_reference_batch(self) -> None:
        # (1/s)(2 - c0)/(2 - c0 s): twice the rate at c0 = .4 needs .5 * 1.6/1.2.
        cost = local_cost([1e4], train_batch=256.0, reference_batch=256.0, noise_scale=growing,
                          lr_fraction=0.4, lr_rule=at_rate(2.0))  # fmt: skip
        assert cost == pytest.approx(0.5 * 1.6 / 1.2)

    @given(u=st.floats(0, 1e6))
    def test_the_reference_is_not_warped(self, u: float) -> None:
        fraction = partial(lr_fraction_along, curve=SATURATING, measured_at=1e4, lr_fraction=0.4)
        cost = local_cost([u], train_batch=256.0, reference_batch=256.0, noise_scale=growing, lr_fraction=fraction)
        assert cost == pytest.approx(1.0)


class TestNoiseGrowth:
    @given(u=st.floats(0, 3e5))
    def test_noise_grows_as_the_slope_falls(self, u: float) -> None:
        assert growing(u) == pytest.approx(2000 * math.exp((u - 1e4) / 6e4))
        for curve in (POWER, SIGMOID):
            n = noise_scale_along(u, curve=curve, noise_scale=2000.0, measured_at=1e4)
            with np.errstate(divide="ignore"):
                assert n == pytest.approx(2000 * slope_at(curve, 1e4) / slope_at(curve, u))

    @given(
        signal=st.floats(1e-4, 1e4),
        ratio=st.floats(1e-3, 1e3),
        k=st.sampled_from([0.3, 0.5, 1.0, 3.0, math.inf]),
    )
    def test_saturation_is_undone(self, signal: float, ratio: float, k: float) -> None:
        # A = |G| sqrt(b) f_k(b) with |G|^2 = trace/n.
        def slope(n: float) -> float:
            return float(usable_slope(64.0, noise_scale=n, snr_shape=k)) / math.sqrt(n)

        n0 = 64 * ratio
        n = float(noise_scale_from_signal(signal, noise_scale=n0, reference_batch=64.0, snr_shape=k))
        assert slope(n) / slope(n0) == pytest.approx(signal, rel=1e-6)

    def test_dominating_noise_is_the_limit_of_small_batches(self) -> None:
        a = np.array([0.01, 0.5, 1.0, 3.0])
        for k in (0.5, math.inf):
            fine = noise_scale_from_signal(a, noise_scale=1000.0, reference_batch=1e-3, snr_shape=k)
            assert fine == pytest.approx(noise_scale_from_signal(a, noise_scale=1000.0), rel=1e-4)
        assert np.isinf(noise_scale_from_signal(0.0, noise_scale=1000.0, reference_batch=64.0, snr_shape=0.5))
        assert np.isinf(noise_scale_from_signal(0.0, noise_scale=1000.0))

    @given(c0=st.floats(0.01, 1.9), u=st.floats(0, 5e5))
    def test_fraction_closed_form(self, c0: float, u: float) -> None:
        g = math.exp(-(u - 1e4) / 6e4)
        a = signal_along(u, curve=SATURATING, measured_at=1e4, lr_fraction=c0)
        assert a == pytest.approx(g * (1 - c0 / 2) + c0 / 2, rel=1e-9)
        c = lr_fraction_along(u, curve=SATURATING, measured_at=1e4, lr_fraction=c0)
        assert c == pytest.approx(c0 / (g * (1 - c0 / 2) + c0 / 2), rel=1e-9)
        assert c <= 2 * (1 + 1e-9)

    def test_at_the_ends_of_the_curve(self) -> None:
        # Flat: the floor of the rate, c = 2. Infinitely steep: no noise and a rate far below the optimum.
        assert signal_along(1e9, curve=SATURATING, measured_at=1e4, lr_fraction=0.4) == pytest.approx(0.2)
        assert lr_fraction_along(1e9, curve=SATURATING, measured_at=1e4, lr_fraction=0.4) == pytest.approx(2)
        steep = Curve(family="sigmoid", start=0.3, asymptote=0.7, scale=6e4, exponent=0.5)
        assert lr_fraction_along(0.0, curve=steep, measured_at=1e4, lr_fraction=0.4) < 1e-20
        assert noise_scale_along(0.0, curve=steep, noise_scale=2e3, measured_at=1e4, reference_batch=64.0) == 0

    def test_fraction_stays_zero(self) -> None:
        assert (lr_fraction_along([0, 1e5], curve=SATURATING, measured_at=1e4, lr_fraction=0.0) == 0).all()

    def test_sgd_needs_no_batch(self) -> None:
        n = noise_scale_along(
            5e4, curve=SATURATING, noise_scale=100.0, measured_at=1e4, reference_batch=512.0, optimizer="sgd"
        )
        assert n == pytest.approx(100 * math.exp(4 / 6))

    def test_a_flat_place_cannot_be_the_reference(self) -> None:
        with pytest.raises(InputError, match="slope at 0"):
            noise_scale_along(1e4, curve=SIGMOID, noise_scale=2000.0, measured_at=0.0)


class TestMeasured:
    def test_a_constant_trace_is_an_assumption_that_can_fail(self, shared: Path) -> None:
        # tiny_grpo, chunk pairs: from the start to score .55 |G|^2 AND the trace double, and their ratio stays.
        with open(shared / "tiny_grpo" / "updates.csv", encoding="utf-8") as file:
            rows = [r for r in csv.DictReader(file) if r["run"].startswith("sqrt_P64_")]
        n, chunk, whole = (
            np.array([float(r[name]) for r in rows])
            for name in ("responses_kept", "sq_norm_chunk_mean", "sq_norm_batch")
        )
        batch = 512.0
        trace = (chunk - whole) / (8 / batch - 1 / batch)
        signal = whole - trace / batch
        early, late = n <= 1e4, (n > 4e4) & (n <= 6e4)
        assert trace[late].mean() / trace[early].mean() > 1.7
        assert signal[late].mean() / signal[early].mean() > 1.5
        scales = [trace[part].mean() / signal[part].mean() for part in (early, late)]
        assert 0.6 < scales[1] / scales[0] < 1.4


class TestTargets:
    TARGETS = np.array([0.35, 0.45, 0.55, 0.65, 0.69])

    def cost_of(self, rule: str, batch: float, **law: Any) -> np.ndarray:
        cost = partial(local_cost, train_batch=batch, reference_batch=64.0, lr_rule=rule, **law)
        return np.asarray(sample_cost_to_target(self.TARGETS, curve=SATURATING, cost=cost))

    def test_constant_noise_gives_one_number(self) -> None:
        found = self.cost_of("sqrt", 1024.0, noise_scale=2000.0)
        assert found == pytest.approx(float(sample_cost_ratio(1024, reference_batch=64, noise_scale=2000.0)))

    def test_closed_form_for_tuned_rates(self) -> None:
        # r = (B + n)/(B0 + n) with n = n0 e^(u/L): N = u + (B - B0)[u/B0 - (L/B0) log((B0 + n)/(B0 + n0))].
        length, n0, b, b0 = 6e4, 2000.0, 1024.0, 64.0
        noise = partial(noise_scale_along, curve=SATURATING, noise_scale=n0, measured_at=0.0)
        found = self.cost_of("tuned", b, noise_scale=noise, lr_fraction=1.0)
        u = responses_at(SATURATING, self.TARGETS)
        n = n0 * np.exp(u / length)
        exact = u + (b - b0) / b0 * (u - length * np.log((b0 + n) / (b0 + n0)))
        assert found == pytest.approx(exact / u, rel=1e-10)

    def test_a_batch_that_loses_early_wins_late(self) -> None:
        # Notes 2.18 and 5.9. Noise grows, so under the sqrt rule r_N falls with the target: with r_q = 1.65 a batch of
        # 4096 loses at .45 and wins at .65.
        found = self.cost_of("sqrt", 4096.0, noise_scale=growing)
        assert (np.diff(found) < 0).all()
        assert found[1] > 1.65 > found[3]
        assert ((found >= 1) & (found <= math.sqrt(64))).all()

    def test_under_a_fixed_rate_the_larger_batch_goes_further(self) -> None:
        # ScaleRL: slower early, higher asymptote. The reference nears the floor of its rate (c -> 2), and r_N itself
        # passes 1.
        law: dict[str, Any] = {"curve": SATURATING, "measured_at": 1e4, "lr_fraction": 0.4}
        noise = partial(noise_scale_along, noise_scale=200.0, reference_batch=64.0, **law)
        fraction = partial(lr_fraction_along, **law)
        cost = partial(
            local_cost,
            train_batch=256.0,
            reference_batch=64.0,
            noise_scale=noise,
            lr_fraction=fraction,
            lr_rule="fixed",
        )
        found = sample_cost_to_target([0.35, 0.5, 0.65, 0.699], curve=SATURATING, cost=cost)
        assert (np.diff(found) < 0).all()
        assert found[0] > 2
        assert found[-1] < 1
        # Under the sqrt rule the larger rate overshoots late, and r_N rises (IsoCompute: 1.09 at .50, 1.41 at .58).
        raised = sample_cost_to_target([0.6, 0.69], curve=SATURATING, cost=partial(cost, lr_rule="sqrt"))
        assert raised[1] > raised[0] * 1.1

    def test_shapes_and_targets_out_of_reach(self) -> None:
        cost = partial(
            local_cost, train_batch=np.array([64.0, 256.0, 1024.0]), reference_batch=64.0, noise_scale=growing
        )
        found = sample_cost_to_target([0.2, 0.5, 0.7, 0.9], curve=SATURATING, cost=cost)
        assert found.shape == (3, 4)
        assert np.isnan(found[:, [0, 2, 3]]).all()
        assert found[0, 1] == pytest.approx(1)
        assert found[2, 1] > found[1, 1] > 1

    def test_steep_and_flat_starts(self) -> None:
        for exponent in (0.6, 2.5):
            curve = Curve(family="sigmoid", start=0.3, asymptote=0.7, scale=6e4, exponent=exponent)
            noise = partial(noise_scale_along, curve=curve, noise_scale=2000.0, measured_at=3e4, reference_batch=64.0)
            cost = partial(local_cost, train_batch=1024.0, reference_batch=64.0, noise_scale=noise)
            found = sample_cost_to_target(self.TARGETS, curve=curve, cost=cost)
            assert ((found > 1) & (found < 4)).all()
