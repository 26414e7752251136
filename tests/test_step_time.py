from __future__ import annotations

import math

import naive
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from batchsim.logs.timeline import steady_steps
from batchsim.system.step_time import (
    PLATEAU_ROOM,
    SHARE_PRIOR,
    StepTimeFit,
    draw_law,
    fit_means,
    fit_step_time,
    step_time,
)

Floats = NDArray[np.float64]
TAU0, TAU1 = 247.0, 0.71  # The MLPerf GRPO runs, theory notes section 0.


def simulate(
    rng: np.random.Generator,
    *,
    batches: tuple[int, ...] = (256, 512),
    runs: int = 6,
    steps: int = 20,
    run_spread: float = 0.02,
    step_spread: float = 0.05,
) -> tuple[Floats, Floats, Floats]:
    """Steps of several runs per batch: rollout_batch, run label, seconds."""
    batch = np.repeat([float(b) for b in batches for _ in range(runs)], steps)
    label = np.repeat(np.arange(len(batches) * runs, dtype=np.float64), steps)
    run_factor = np.exp(run_spread * rng.standard_normal(len(batches) * runs)).repeat(steps)
    noise = 1 + step_spread * rng.standard_normal(batch.size)
    return batch, label, (TAU0 + TAU1 * batch) * run_factor * noise


class TestFit:
    @given(
        tau0=st.floats(0.0, 1e3),
        tau1=st.floats(1e-3, 10),
        batches=st.lists(st.integers(8, 4096), min_size=2, max_size=6, unique=True),
    )
    def test_recovers_exact_times(self, tau0: float, tau1: float, batches: list[int]) -> None:
        r = np.repeat(np.array(batches, dtype=np.float64), 3)
        t = step_time(r, update_time_intercept=tau0, update_time_slope=tau1)
        fit = fit_step_time(r, np.zeros(r.size), t)
        assert fit.success
        assert fit.update_time_slope == pytest.approx(tau1, rel=1e-6, abs=1e-7 * float(t.max()))
        assert fit.update_time_intercept == pytest.approx(tau0, rel=1e-6, abs=1e-7 * float(t.max()))
        assert fit.rollout_batch == tuple(sorted(batches))

    def test_against_the_textbook_sums(self) -> None:
        batches, means, errors = [128.0, 256.0, 1024.0], [300.0, 480.0, 950.0], [10.0, 4.0, 30.0]
        fit = fit_means(batches, means, errors, dof=30)
        intercept, slope = naive.line(batches, means, errors)
        assert fit.update_time_intercept == pytest.approx(intercept, rel=1e-9)
        assert fit.update_time_slope == pytest.approx(slope, rel=1e-9)

    def test_reproduces_the_measured_means_of_two_batches(self) -> None:
        # Held-out check of the issue in closed form: 426 s and 619 s at B = 256 and 512 give 1005 s at 1024.
        fit = fit_means([256.0, 512.0], [426.0, 619.0], [4.0, 6.0], dof=10)
        assert fit.predict([256.0, 512.0, 1024.0])[0] == pytest.approx([426, 619, 1005])
        assert fit.predict([1024.0])[0] == pytest.approx(968.7, rel=0.05)

    def test_predicts_the_mean_and_not_the_median(self) -> None:
        # A total is a sum: steady steps that scatter to the right count with their mean.
        t = np.array([1.0, 1.0, 1.0, 5.0])
        fit = fit_step_time(np.repeat([10.0, 20.0], 4), np.zeros(8), np.r_[t, 2 * t])
        assert fit.step_time == (2.0, 4.0)

    def test_cold_steps_and_spikes_stay_out_with_the_readers_mask(self) -> None:
        rng = np.random.default_rng(1)
        batch, label, seconds = simulate(rng, runs=3, steps=30)
        dirty = seconds.copy()
        for run in np.unique(label):
            at = np.flatnonzero(label == run)
            dirty[at[0]] *= 4
            dirty[at[12]] *= 15
        steady = np.concatenate([steady_steps(dirty[label == run], 30) for run in np.unique(label)])
        masked = fit_step_time(batch[steady], label[steady], dirty[steady])
        clean = fit_step_time(batch[steady], label[steady], seconds[steady])
        raw = fit_step_time(batch, label, dirty)
        assert masked.update_time_intercept == clean.update_time_intercept
        assert masked.predict([1024.0])[0, 0] == pytest.approx(TAU0 + TAU1 * 1024, rel=0.08)
        assert raw.predict([1024.0])[0, 0] > 1.3 * masked.predict([1024.0])[0, 0]

    def test_missing_and_zero_times_are_left_out(self) -> None:
        batch, label, seconds = simulate(np.random.default_rng(2), runs=2)
        holes = (np.r_[batch, 256, 512], np.r_[label, 0, 2], np.r_[seconds, math.nan, 0.0])
        assert fit_step_time(*holes).update_time_slope == fit_step_time(batch, label, seconds).update_time_slope

    @pytest.mark.parametrize(
        ("batches", "runs", "low", "high"),
        [((256, 512), 6, 0.75, 0.86), ((256, 512), 2, 0.72, 0.86), ((256, 512, 1024), 6, 0.77, 0.90)],
    )
    def test_limits_cover_as_often_as_they_say(
        self, batches: tuple[int, ...], runs: int, low: float, high: float
    ) -> None:
        # Nominal 80 %, extrapolating to 2048; over 1500 sets 80, 79 and 83 % were measured.
        rng = np.random.default_rng(3)
        truth, covered = TAU0 + TAU1 * 2048, []
        for _ in range(500):
            _, lower, upper = fit_step_time(*simulate(rng, batches=batches, runs=runs)).predict([2048.0])[:, 0]
            covered.append(lower <= truth <= upper)
        assert low <= np.mean(covered) <= high

    def test_scatter_about_the_line_widens_it(self) -> None:
        straight = fit_means([128.0, 256.0, 512.0], [200.0, 300.0, 500.0], [2.0, 2.0, 2.0], dof=30)
        bent = fit_means([128.0, 256.0, 512.0], [200.0, 340.0, 500.0], [2.0, 2.0, 2.0], dof=30)
        assert np.diag(bent.covariance).min() > 10 * np.diag(straight.covariance).min()
        assert bent.dof == 1

    @given(seconds=st.floats(0.01, 100), responses=st.floats(0.01, 100))
    def test_units(self, seconds: float, responses: float) -> None:
        batch, label, t = simulate(np.random.default_rng(4), runs=2)
        one, other = fit_step_time(batch, label, t), fit_step_time(batch * responses, label, t * seconds)
        assert other.update_time_intercept == pytest.approx(one.update_time_intercept * seconds, rel=1e-6)
        assert other.update_time_slope == pytest.approx(one.update_time_slope * seconds / responses, rel=1e-6)
        limits = other.predict([1024.0 * responses])
        assert limits == pytest.approx(one.predict([1024.0]) * seconds, rel=1e-6)


class TestUnidentified:
    def test_one_batch_names_a_second(self) -> None:
        fit = fit_step_time([256.0] * 5, np.zeros(5), [400.0, 410.0, 390.0, 405.0, 395.0])
        assert not fit.success
        assert math.isnan(fit.update_time_slope)
        assert fit.step_time == (400.0,)
        assert "a few steps at 512 would" in fit.message
        assert np.isnan(fit.predict([512.0])).all()

    def test_no_time_at_all(self) -> None:
        fit = fit_step_time([256.0, 256.0], np.zeros(2), [math.nan, math.nan])
        assert not fit.success
        assert fit.rollout_batch == ()
        assert "a log with step times would fit the law" in fit.message


class TestDraws:
    def check(self, fit: StepTimeFit, tau0: Floats, tau1: Floats, q_max: Floats) -> None:
        """What every draw of the law promises."""
        largest = fit.rollout_batch[-1]
        measured = largest / (tau0 + tau1 * largest)
        slack = 1 + 1e-12
        assert (tau0 >= 0).all()
        assert (tau1 > 0).all()
        assert (q_max * slack >= measured).all()
        assert (q_max <= slack / tau1).all()
        assert (q_max <= slack * PLATEAU_ROOM * measured).all()

    @given(
        first=st.floats(1, 1e4),
        second=st.floats(1, 1e4),
        error=st.floats(1e-3, 0.5),
        dof=st.integers(1, 30),
        seed=st.integers(0, 10),
    )
    def test_are_laws_of_a_step_time(self, first: float, second: float, error: float, dof: int, seed: int) -> None:
        # Also for times that fall with the batch, which no admissible law fits.
        fit = fit_means([256.0, 512.0], [first, second], [error * first, error * second], dof=dof)
        drawn = draw_law(fit, draws=64, rng=np.random.default_rng(seed))
        assert all(v.shape == (64,) for v in drawn)
        self.check(fit, *drawn)

    def test_scatter_as_the_covariance_says(self) -> None:
        fit = fit_means([256.0, 512.0], [426.0, 619.0], [4.0, 6.0], dof=200)
        tau0, tau1, q_max = draw_law(fit, draws=20_000, rng=np.random.default_rng(5))
        assert tau0.mean() == pytest.approx(fit.update_time_intercept, rel=0.01)
        assert tau1.mean() == pytest.approx(fit.update_time_slope, rel=0.01)
        assert np.cov(tau0, tau1) == pytest.approx(fit.covariance, rel=0.06)
        # The drawn law meets the measured times; the plateau is log-uniform between its two ends.
        assert np.std(tau0 + 256 * tau1) == pytest.approx(4.0, rel=0.05)
        measured = 512 / (tau0 + 512 * tau1)
        place = np.log(q_max / measured) / np.log(1 / (tau1 * measured))
        assert np.quantile(place, [0.1, 0.5, 0.9]) == pytest.approx([0.1, 0.5, 0.9], abs=0.02)

    def test_one_batch_leaves_the_shared_part_to_its_prior(self) -> None:
        fit = fit_step_time([256.0] * 6, np.zeros(6), [400.0, 401.0, 399.0, 400.0, 402.0, 398.0])
        tau0, tau1, q_max = draw_law(fit, draws=20_000, rng=np.random.default_rng(6))
        self.check(fit, tau0, tau1, q_max)
        total = tau0 + 256 * tau1
        share = tau0 / total
        low, high = SHARE_PRIOR
        assert low <= share.min()
        assert share.max() <= high
        expected = low + (high - low) * np.array([0.1, 0.5, 0.9])
        assert np.quantile(share, [0.1, 0.5, 0.9]) == pytest.approx(expected, abs=0.01)
        assert np.median(total) == pytest.approx(400, rel=0.01)

    def test_same_seed_same_draws(self) -> None:
        fit = fit_means([256.0, 512.0], [426.0, 619.0], [4.0, 6.0], dof=10)
        one, other = (draw_law(fit, draws=50, rng=np.random.default_rng(7)) for _ in range(2))
        assert all((a == b).all() for a, b in zip(one, other, strict=True))
