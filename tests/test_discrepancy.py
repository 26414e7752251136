"""The law's own error: a Brownian motion that measured arms share, and forecasts that pass through them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import multivariate_normal, norm

from batchsim.calibrate.discrepancy import LEVEL_SPREAD, Seen, bend, condition, gaps, law_covariance, wiener
from batchsim.calibrate.learning import LAW_ERROR
from batchsim.calibrate.observations import RateLine, rate_ceiling
from batchsim.plan import Learning, plan_from_dict
from batchsim.specs.recipe import Recipe

Floats = NDArray[np.float64]
B0 = 64.0


def number(batch: float, value: float, *, error: float = 0.02, off: float = 0.0, level: str = "target") -> Seen:
    return Seen(
        train_batch=batch, learning_rate_ratio=1.0, low=value, high=value, error=error, off_rule=off, level=level
    )


def conditioned(seen: tuple[Seen, ...], law: Floats, seed: int = 0):  # type: ignore[no-untyped-def]
    return condition(seen, law, reference_batch=B0, law_spread=LAW_ERROR, rng=np.random.default_rng(seed))


def forecast(batches: list[float], seen: tuple[Seen, ...], misses: Floats, seed: int = 0) -> Floats:
    normal = np.random.default_rng(seed).standard_normal((misses.shape[0], gaps(seen)))
    return bend(np.array(batches), seen=seen, misses=misses, reference_batch=B0, law_spread=LAW_ERROR, normal=normal)


@given(st.lists(st.floats(-8, 8), min_size=1, max_size=8, unique=True))
def test_the_kernel_is_the_covariance_of_steps_from_the_reference(places: list[float]) -> None:
    u = np.array(sorted(places))
    expected = np.zeros((u.size, u.size))
    for side in (1.0, -1.0):
        at = np.flatnonzero(side * u > 0)
        at = at[np.argsort(np.abs(u[at]))]
        steps = np.diff(np.abs(u[at]), prepend=0.0)
        sums = np.tril(np.ones((at.size, at.size)))
        expected[np.ix_(at, at)] = sums @ np.diag(steps) @ sums.T
    assert wiener(u, u) == pytest.approx(expected, abs=1e-12)


def test_numbers_weigh_as_the_joint_gaussian_with_a_flat_level() -> None:
    """Restricted likelihood of the contrasts, written out for three arms and a stated ratio."""
    seen = (
        number(64, 12.0),
        number(256, 12.3, error=0.05),
        number(128, 12.1, off=1.0),
        number(128, 0.2, error=0.14, level="ratio"),
    )
    law = np.random.default_rng(1).normal(0.1, 0.2, size=(4, 50))
    found = conditioned(seen, law)
    values = np.array([o.low for o in seen])
    contrasts = np.array([[-1.0, 1, 0, 0], [-1, 0, 1, 0], [0, 0, 0, 1]])
    covariance = law_covariance(seen, B0, LAW_ERROR)
    exact = [
        multivariate_normal(mean=np.zeros(3), cov=contrasts @ covariance @ contrasts.T).logpdf(
            contrasts @ (values - law[:, i])
        )
        for i in range(50)
    ]
    assert np.ptp(found.log_weight - exact) < 4e-3
    # The level: generalised least squares, by solving the normal equations once more.
    one = np.array([1.0, 1, 1, 0])
    inverse = np.linalg.inv(covariance)
    expected = one @ inverse @ (values[:, None] - law) / (one @ inverse @ one)
    assert found.log_level is not None
    assert np.abs(found.log_level - expected).max() < 5 / math.sqrt(one @ inverse @ one)
    assert np.diag(covariance).max() < LEVEL_SPREAD**2 / 1000


def test_a_number_is_the_limit_of_an_interval() -> None:
    law = np.linspace(-0.3, 0.5, 40)[None, :]
    exact = conditioned((number(128, 0.2, level="ratio"),), law).log_weight
    for half in (1e-3, 1e-9):
        near = Seen(train_batch=128, learning_rate_ratio=1, low=0.2 - half, high=0.2 + half, error=0.02, level="ratio")
        assert np.ptp(conditioned((near,), law).log_weight - exact) < 0.02


def test_limits_weigh_by_their_joint_probability() -> None:
    """Two one-sided ratios, whose probability the bivariate normal gives; draws average to it."""
    one = Seen(train_batch=128, learning_rate_ratio=1, low=0.1, high=math.inf, error=0.05, level="ratio")
    other = Seen(train_batch=512, learning_rate_ratio=1, low=-math.inf, high=0.05, error=0.05, level="ratio")
    law = np.zeros((2, 100_000))
    found = conditioned((one, other), law)
    covariance = law_covariance((one, other), B0, LAW_ERROR)
    flipped = covariance * np.array([[1, -1], [-1, 1]])
    exact = multivariate_normal(mean=np.zeros(2), cov=flipped).cdf(np.array([-0.1, 0.05]))
    assert np.exp(found.log_weight).mean() == pytest.approx(exact, rel=0.01)
    assert (found.log_ratio[:, 0] >= 0.1).all()
    assert (found.log_ratio[:, 1] <= 0.05).all()
    assert found.log_level is None


def test_a_run_that_ends_first_bounds_the_level_from_below() -> None:
    # Of N* nothing but "more than e^12": the level's prior is cut there.
    (only,) = (Seen(train_batch=64, learning_rate_ratio=1, low=12.0, high=math.inf, error=0.1),)
    found = conditioned((only,), np.zeros((1, 20_000)))
    assert found.log_level is not None
    assert (found.log_ratio[:, 0] + found.log_level >= 12 - 1e-9).all()
    assert np.quantile(found.log_level, 0.01) > 11.7


def test_draws_that_make_a_measured_run_diverge_are_excluded() -> None:
    law = np.array([[0.0, 0.0], [0.1, np.inf]])
    found = conditioned((number(64, 12.0), number(128, 12.1)), law)
    assert np.isfinite(found.log_weight[0])
    assert found.log_weight[1] == -np.inf
    assert np.isfinite(found.log_ratio).all()


def test_forecasts_pass_through_measured_arms_and_go_on_from_the_last() -> None:
    seen = (number(64, 0.0, error=1e-4), number(256, 0.0, error=1e-4))
    misses = np.tile([0.0, 0.15], (40_000, 1))
    path = forecast([32, 64, 128, 256, 512, 1024, 4096], seen, misses)
    assert (path[:, 1] == 0).all()
    assert np.abs(path[:, 3] - 0.15).max() < 1e-3
    # The bridge is half way in the middle; beyond the last arm the law's ratio holds.
    assert path.mean(axis=0) == pytest.approx([0, 0, 0.075, 0.15, 0.15, 0.15, 0.15], abs=0.004)
    octaves = np.array([1, 0, 0.5, 0, 1, 2, 4])
    assert path.std(axis=0) == pytest.approx(LAW_ERROR * np.sqrt(octaves), rel=0.02, abs=2e-4)


def test_a_noisy_arm_is_believed_as_far_as_its_error_allows() -> None:
    seen = (number(256, 0.0, error=0.17),)
    path = forecast([256], seen, np.full((40_000, 1), 0.2))
    prior, own = 2 * LAW_ERROR**2, 0.17**2
    assert path.mean() == pytest.approx(0.2 * prior / (prior + own), abs=0.003)
    assert path.std() == pytest.approx(math.sqrt(prior * own / (prior + own)), rel=0.02)


def test_an_arm_off_the_rule_says_less_than_one_on_it() -> None:
    on, off = ((number(256, 0.0, error=1e-4, off=d),) for d in (0.0, 2.0))
    misses = np.full((100, 1), 0.2)
    assert forecast([256], on, misses).mean() == pytest.approx(0.2, abs=1e-3)
    assert forecast([256], off, misses).mean() == pytest.approx(0.1, abs=0.03)


def test_without_arms_the_error_is_that_of_extrapolation_alone() -> None:
    path = forecast([16, 64, 256], (), np.empty((40_000, 0)))
    assert path.mean(axis=0) == pytest.approx(0, abs=0.005)
    assert path.std(axis=0) == pytest.approx([LAW_ERROR * math.sqrt(2), 0, LAW_ERROR * math.sqrt(2)], rel=0.02)
    assert abs(np.corrcoef(path[:, 0], path[:, 2])[0, 1]) < 0.02


@pytest.mark.parametrize(
    ("rule", "rate", "octaves"), [("sqrt", 2.0, 0.0), ("fixed", 1.0, 0.0), ("fixed", 2.0, 1.0), ("tuned", 1.0, -1.0)]
)
def test_rates_are_told_off_the_rule_that_forecasts_follow(rule: str, rate: float, octaves: float) -> None:
    line = RateLine(recipe=Recipe(prompts=8, group_size=8, learning_rate=1e-6), lr_rule=rule, ceiling=math.inf)
    assert line.off(256, rate) == pytest.approx(octaves)
    assert line.off(256, rate * 1.01) == pytest.approx(octaves, abs=0.02)


def test_a_ceiling_bends_the_line() -> None:
    recipe = Recipe(prompts=8, group_size=8, learning_rate=1e-6, max_learning_rate=1.5e-6)
    assert rate_ceiling(recipe, Learning()) == pytest.approx(1.5)
    region = plan_from_dict({"learning": {"kl_per_update": 1e-4, "kl_max": 1.44e-4}}).learning
    assert rate_ceiling(recipe, region) == pytest.approx(1.2)
    line = RateLine(recipe=recipe, lr_rule="sqrt", ceiling=1.5)
    assert line.off(1024, 1.5) == 0
    assert line.off(1024, 3.0) == pytest.approx(1.0)


@given(low=st.floats(-40, 40), width=st.floats(1e-6, 10))
def test_draws_within_limits_stay_there_in_both_tails(low: float, width: float) -> None:
    seen = Seen(train_batch=64, learning_rate_ratio=1, low=low, high=low + width, error=1.0, level="ratio")
    found = conditioned((seen,), np.zeros((1, 200)))
    assert (found.log_ratio >= low).all()
    assert (found.log_ratio <= low + width).all()
    if abs(low) < 5 and width > 0.01:
        mass = norm.cdf(low + width) - norm.cdf(low)
        assert found.log_weight == pytest.approx(np.full(200, math.log(mass)), abs=1e-6)
