"""Mechanisms that bend the law, Adam's companions, and slopes from moments."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from batchsim.errors import InputError
from batchsim.learning import mechanism
from batchsim.learning.companions import adam_companions, advise
from batchsim.learning.lr_rule import learning_rate_ratio
from batchsim.learning.progress import (
    log_progress_factor,
    signal_function,
    slope_from_moments,
    step_cost,
    usable_slope,
)
from batchsim.learning.sample_cost import cost_at_rate, rates_at, sample_cost_ratio

shapes = st.floats(-1, 0.8)

# -- the penalty's shape ----------------------------------------------------------------------------


@given(c=st.floats(0, 1.99))
def test_shape_minus_one_is_the_quadratic_penalty(c: float) -> None:
    assert float(np.exp(log_progress_factor(c))) == pytest.approx(1 - c / 2, abs=1e-12)


@given(p=shapes)
def test_progress_is_largest_at_the_optimal_rate(p: float) -> None:
    c = np.linspace(1e-3, 3, 3000)
    progress = c * np.exp(log_progress_factor(c, penalty_shape=p))
    assert c[np.argmax(progress)] == pytest.approx(1, abs=2e-3)


@given(c=st.floats(0, 1.5))
def test_shape_zero_is_the_limit_of_small_shapes(c: float) -> None:
    exact = float(log_progress_factor(c, penalty_shape=0.0))
    assert exact == -c
    for p in (1e-9, -1e-9):
        assert float(log_progress_factor(c, penalty_shape=p)) == pytest.approx(exact, abs=1e-8)


@given(p=shapes, x=st.floats(1, 64), n=st.floats(50, 1e5), c0=st.floats(0.01, 0.9))
def test_tuned_cost_depends_on_the_shape_only_by_its_reference(p: float, x: float, n: float, c0: float) -> None:
    ratio = sample_cost_ratio(
        100 * x, reference_batch=100, noise_scale=n, lr_fraction=c0, lr_rule="tuned", penalty_shape=p
    )
    gain = c0 * np.exp(log_progress_factor(c0, penalty_shape=p) - log_progress_factor(1.0, penalty_shape=p))
    assert float(ratio) == pytest.approx((100 * x + n) / (100 + n) * float(gain), rel=1e-9)


@given(p=shapes, x=st.floats(0.01, 64), n=st.floats(50, 1e5), exponent=st.floats(-300, -0.05), h=st.floats(0.2, 5))
def test_the_invariant_rate_has_twelve_digits_at_any_fraction(
    p: float, x: float, n: float, exponent: float, h: float
) -> None:
    law: dict[str, Any] = {"reference_batch": 100, "noise_scale": n, "penalty_shape": p, "curvature_ratio": h}
    law |= {"lr_fraction": 10**exponent, "lr_rule": "invariant"}
    c = 10**exponent * float(rates_at(100 * x, **law)) * slope_and_cost(x, n, h)
    assume(c < 0.9)  # at c = 1 two rates meet, and none has its digits
    assert float(sample_cost_ratio(100 * x, **law)) == pytest.approx(1, rel=1e-12)


def slope_and_cost(x: float, n: float, h: float) -> float:
    """rk hr of the drift form at x times a batch of 100."""
    rk = usable_slope(100, noise_scale=n) / usable_slope(100 * x, noise_scale=n)
    hr = step_cost(100 * x, noise_scale=n, curvature_ratio=h) / step_cost(100, noise_scale=n, curvature_ratio=h)
    return float(rk * hr)


def test_the_rate_that_is_told_is_the_one_whose_cost_is_told() -> None:
    """Under a soft penalty too, one shape per draw."""
    law: dict[str, Any] = {"reference_batch": 100, "noise_scale": 2000, "lr_fraction": 0.3}
    law["penalty_shape"] = [-1.0, -0.4, 0.0, 0.2, 0.8]
    rates = rates_at(400, lr_rule="invariant", **law)
    assert len(set(rates.tolist())) == 5
    told = sample_cost_ratio(400, lr_rule="invariant", **law)
    assert sample_cost_ratio(400, lr_rule=lambda x: rates, **law) == pytest.approx(told, rel=1e-12)


@given(p=shapes, x=st.floats(0.1, 64), n=st.floats(50, 1e5), c0=st.floats(0.0, 0.95), h=st.floats(0.2, 5))
def test_the_invariant_rate_costs_nothing_where_one_exists(p: float, x: float, n: float, c0: float, h: float) -> None:
    law: dict[str, Any] = {"reference_batch": 100, "noise_scale": n, "penalty_shape": p, "curvature_ratio": h}
    cost = float(sample_cost_ratio(100 * x, lr_fraction=c0, lr_rule="invariant", **law))
    best = float(sample_cost_ratio(100 * x, lr_fraction=c0, lr_rule="tuned", **law)) if c0 > 1e-6 else 0.0
    assert cost == pytest.approx(max(1.0, best), rel=1e-6)


def test_a_soft_penalty_never_diverges_and_a_quadratic_one_does() -> None:
    ratio = {"learning_rate_ratio": 50.0, "lr_fraction": 0.5, "slope_ratio": 1.0}
    assert math.isinf(float(cost_at_rate(1.0, **ratio)))
    assert math.isfinite(float(cost_at_rate(1.0, **ratio, penalty_shape=0.2)))


def test_a_shape_outside_its_range_is_refused() -> None:
    for p in (-1.1, 1.0, math.nan):
        with pytest.raises(InputError, match="penalty_shape is"):
            sample_cost_ratio(2, reference_batch=1, noise_scale=1, penalty_shape=p)


def test_the_rate_probes_of_the_small_transformer_fit_a_soft_penalty_and_no_quadratic_one() -> None:
    """Responses to .45 at the reference batch and 2, 4, 8 times its rate: .77, .80, 1.34 (docs/evidence.md)."""
    measured = np.log([0.77, 0.80, 1.34])

    def misfit(c0: float, p: float) -> float:
        cost = cost_at_rate(1.0, learning_rate_ratio=[2, 4, 8], lr_fraction=c0, slope_ratio=1.0, penalty_shape=p)
        return float(np.sqrt(np.mean((np.log(cost) - measured) ** 2)))

    grid = np.linspace(0.02, 0.9, 200)
    with np.errstate(divide="ignore"):
        soft = min(misfit(c0, p) for c0 in grid for p in np.linspace(-0.5, 0.5, 41))
        quadratic = min(misfit(c0, -1.0) for c0 in grid)
    assert soft < 0.06
    assert quadratic > 0.25


# -- slopes from moments ----------------------------------------------------------------------------


def test_slope_of_equal_coordinates_is_the_drift_law() -> None:
    noise = 500.0
    b = np.array([10.0, 100.0, 1000.0])
    slope = slope_from_moments(b, gradient=np.full(50, 0.2), variance=np.full(50, 0.04 * noise))
    expected = 1 / np.sqrt(1 + noise / b)
    np.testing.assert_allclose(slope / slope[0], expected / expected[0], rtol=1e-12)


def test_slope_of_gamma_coordinates_is_the_coordinate_law() -> None:
    rng = np.random.default_rng(0)
    k, noise = 0.7, 800.0
    snr = rng.gamma(k, 1 / k, size=400_000) / noise
    b = np.array([20.0, 200.0, 2000.0])
    slope = slope_from_moments(b, gradient=np.sqrt(snr), variance=np.ones_like(snr))
    law = np.sqrt(b / noise) * signal_function(b / noise, snr_shape=k)
    np.testing.assert_allclose(slope / slope[0], law / law[0], rtol=0.01)


def test_layers_add_up_and_epsilon_only_lowers() -> None:
    rng = np.random.default_rng(1)
    g, v, layer = rng.standard_normal(60), rng.uniform(1, 2, 60), np.repeat([0, 1, 2], 20)
    whole = slope_from_moments([50, 500], gradient=g, variance=v)
    parts = slope_from_moments([50, 500], gradient=g, variance=v, layer=layer)
    assert parts.shape == (2, 3)
    np.testing.assert_allclose(parts.sum(axis=1), whole)
    assert (slope_from_moments([50, 500], gradient=g, variance=v, epsilon=0.1) < whole).all()


def test_noise_of_an_estimate_is_no_signal() -> None:
    """Pure noise: one estimate claims a slope, two independent ones do not."""
    rng = np.random.default_rng(2)
    one, two = rng.standard_normal((2, 20_000)) * 0.01
    v = np.ones(20_000)
    claimed = slope_from_moments(100, gradient=one, variance=v)[0]
    honest = slope_from_moments(100, gradient=one, variance=v, other_half=two)[0]
    assert abs(honest) < 0.05 * claimed


def test_moments_that_do_not_match_are_refused() -> None:
    with pytest.raises(InputError, match="not one value per coordinate"):
        slope_from_moments(10, gradient=[1.0, 2.0], variance=[1.0])
    with pytest.raises(InputError, match="must not be negative"):
        slope_from_moments(10, gradient=[1.0], variance=[-1.0])


# -- mechanisms -------------------------------------------------------------------------------------


def test_the_trust_region_stops_the_sqrt_rule_where_kl_grows_as_the_rate_squared() -> None:
    ceiling = float(mechanism.trust_region_ceiling(kl_max=4e-3, kl_reference=1e-3))
    assert ceiling == 2
    s = learning_rate_ratio([1, 4, 16], lr_rule="sqrt", ceiling=ceiling)
    assert s.tolist() == [1, 2, 2]


@given(s=st.floats(1, 1e5), s0=st.floats(1, 1e5))
def test_few_updates_cost_more_the_fewer_they_are(s: float, s0: float) -> None:
    factor = float(mechanism.few_updates_factor(s, reference_updates=s0))
    assert (factor >= 1) == (s <= s0) or factor == pytest.approx(1)
    assert float(mechanism.few_updates_factor(s, reference_updates=s0, beta1=0.0)) == 1


def test_few_updates_are_added_updates() -> None:
    """19 updates by the law and 3.15 of memory make 22.15, against 542 and the same memory."""
    factor = float(mechanism.few_updates_factor(19.0, reference_updates=542.0))
    assert factor == pytest.approx((19 + 3.15) / 19 / ((542 + 3.15) / 542))


def test_epsilon_takes_most_from_large_batches() -> None:
    b = np.array([0.01, 1.0, 100.0])
    kept = mechanism.epsilon_slope(b, epsilon=0.5) / mechanism.epsilon_slope(b, epsilon=0.0)
    assert (np.diff(kept) < 0).all()
    np.testing.assert_allclose(mechanism.epsilon_slope(b, epsilon=0.0), 1 / np.sqrt(1 + 1 / b))


def test_the_noise_floor_is_the_time_of_an_exponential_approach() -> None:
    """Brute force: d' = -(d - F) stepped until the target."""

    def steps(floor: float) -> float:
        d, t, dt = 1.0, 0.0, 1e-4
        while d > 0.3:
            d -= dt * (d - floor)
            t += dt
        return t

    factor = float(mechanism.noise_floor_factor(start=1.0, target=0.3, floor=0.2, reference_floor=0.05))
    assert factor == pytest.approx(steps(0.2) / steps(0.05), rel=1e-3)
    assert math.isinf(float(mechanism.noise_floor_factor(start=1.0, target=0.3, floor=0.3)))


def test_staleness_constants_lie_in_the_published_ranges() -> None:
    """Updates to 60 % at 1, 2, 4 and 32 updates per rollout: 625, 650, 900, 3200 (and two other targets)."""
    ages = {m: mechanism.rollout_lag(updates_per_rollout=m) for m in (1, 2, 4, 32)}
    at = {m: float(mechanism.staleness_factor(age)) for m, age in ages.items()}
    assert at[1] == 1
    assert 1.0 <= at[2] <= 1.9
    assert 1.4 <= at[4] <= 2.0
    assert 5.0 <= at[32] <= 8.0


def test_lag_of_a_rollout_step_is_that_of_its_updates_one_by_one() -> None:
    for m in (1, 2, 5):
        assert float(mechanism.rollout_lag(updates_per_rollout=m)) == np.mean(range(m))
    assert float(mechanism.rollout_lag(in_flight=1024, rollout_batch=1024)) == 1


def test_a_kl_share_that_is_the_same_cancels() -> None:
    assert float(mechanism.kl_penalty_factor(0.3, reference_share=0.3)) == 1
    assert math.isinf(float(mechanism.kl_penalty_factor(1.0)))


def test_the_slower_of_actor_and_critic_decides() -> None:
    assert float(mechanism.actor_critic_cost(1.2, 2.0)) == 2
    assert float(mechanism.actor_critic_cost(1.2, 2.0, critic_weight=0.0)) == 1.2
    assert float(mechanism.actor_critic_cost(2.0, 8.0, critic_weight=0.5)) == pytest.approx(4)


def test_a_critic_with_a_small_noise_scale_departs_first_and_more_updates_move_it_back() -> None:
    """tiny_ppo's noise scales, 640 and 120 responses, from 64 responses on."""
    batch = np.array([64.0, 256.0, 1024.0])
    scales = {"reference_batch": 64.0, "actor_noise_scale": 640.0, "critic_noise_scale": 120.0}
    actor, critic, recipe = mechanism.actor_critic_sample_cost(batch, **scales)
    assert (critic[1:] > actor[1:]).all()
    np.testing.assert_array_equal(recipe, critic)
    np.testing.assert_allclose(actor, sample_cost_ratio(batch, reference_batch=64, noise_scale=640))
    _, split, _ = mechanism.actor_critic_sample_cost(batch, **scales, critic_updates=batch / 64)
    np.testing.assert_allclose(split, 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mechanism.trust_region_ceiling(kl_max=0, kl_reference=1), "kl_max is 0"),
        (lambda: mechanism.few_updates_factor(0, reference_updates=1), "updates is 0"),
        (lambda: mechanism.few_updates_factor(1, reference_updates=1, beta1=1.0), "beta1 is 1"),
        (lambda: mechanism.epsilon_slope(1, epsilon=-1), "epsilon is -1"),
        (lambda: mechanism.noise_floor_factor(start=1, target=2, floor=0), "nearer to the optimum"),
        (lambda: mechanism.noise_floor_factor(start=2, target=1, floor=0, reference_floor=1), "reference's floor"),
        (lambda: mechanism.staleness_factor(-1), "lag is -1"),
        (lambda: mechanism.kl_penalty_factor(2), "share of the slope"),
        (lambda: mechanism.actor_critic_cost(1, 1, critic_weight=2), "critic_weight is 2"),
    ],
)
def test_mechanisms_refuse_what_has_no_meaning(call: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()  # type: ignore[operator]


# -- companions and advice --------------------------------------------------------------------------


@given(x=st.floats(0.1, 9))
def test_companions_keep_averages_over_the_same_responses(x: float) -> None:
    there = adam_companions(x, beta1=0.9, beta2=0.999, gradient_clip=0.125, proximal_beta=0.98)
    assert (1 - there.beta1) / x == pytest.approx(0.1)
    assert (1 - there.beta2) / x == pytest.approx(0.001)
    assert there.epsilon * math.sqrt(x) == pytest.approx(1e-8)
    assert there.proximal_beta is not None
    assert there.proximal_beta / (1 - there.proximal_beta) * x == pytest.approx(49)


def test_companions_reproduce_the_mlperf_reference() -> None:
    """Clip .125 sqrt(256/B), rate 1e-6 sqrt(B/256)."""
    there = adam_companions(4, gradient_clip=0.125)
    assert there.gradient_clip == 0.0625
    assert there.learning_rate_ratio == 2
    assert not there.warnings


def test_a_beta_without_a_counterpart_is_said() -> None:
    there = adam_companions(16, beta1=0.9)
    assert there.beta1 == 0
    assert "beta1 0.9 has no counterpart" in there.warnings[0]
    with pytest.raises(InputError, match="batch_ratio is 0"):
        adam_companions(0)


@pytest.mark.parametrize(
    ("batch", "regime", "rule"),
    [(100, "noise", "sqrt"), (1000, "transition", "invariant"), (5000, "signal", "invariant")],
)
def test_advice_names_the_regime(batch: float, regime: str, rule: str) -> None:
    advice = advise(batch, noise_scale=1000)
    assert (advice.regime, advice.rule) == (regime, rule)


def test_advice_warns_of_few_updates_clips_and_ceilings() -> None:
    advice = advise(
        100, noise_scale=1000, updates_to_target=14, clipped_share=0.4, learning_rate_ratio=2.0, ceiling=2.0
    )
    text = " ".join(advice.warnings)
    assert "14 updates to the target are fewer than 20" in text
    assert "40 % of the updates are clipped" in text
    assert "at its ceiling" in text
    assert advise(100, noise_scale=1000, updates_to_target=200, clipped_share=0.0).warnings == ()
