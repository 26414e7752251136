"""N* of runs as an interval-censored normal, and learning curves of pilots that never reach the target."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import norm

from batchsim.calibrate import calibrate
from batchsim.calibrate.overlay import fit_overlay
from batchsim.calibrate.responses import RUN_SPREAD, SPREAD_FACTOR, _derivatives, _penalised, fit_responses
from batchsim.errors import InputError
from batchsim.learning.curve import Curve, score_at
from batchsim.learning.sample_cost import sample_cost_ratio
from batchsim.plan import Plan, plan_from_dict
from batchsim.predict import predict

Floats = NDArray[np.float64]


class TestResponses:
    def test_numbers_give_means_and_the_pooled_spread(self) -> None:
        rng = np.random.default_rng(0)
        y = np.concatenate([11 + 0.1 * rng.standard_normal(12), 11.5 + 0.1 * rng.standard_normal(12)])
        fit = fit_responses(np.exp(y), np.exp(y), ["a"] * 12 + ["b"] * 12)
        assert fit is not None
        assert fit.success
        pooled = math.sqrt((y[:12].var(ddof=1) + y[12:].var(ddof=1)) / 2)
        # The prior counts for less than one of the 22 degrees of freedom.
        assert fit.run_spread == pytest.approx(pooled, rel=0.02)
        assert list(fit.params.values())[:2] == pytest.approx([y[:12].mean(), y[12:].mean()], abs=1e-4)
        assert fit.stderr["log_responses[a]"] == pytest.approx(fit.run_spread / math.sqrt(12), rel=1e-3)
        # The density of numbers, not the mass of their tiny intervals.
        means = np.repeat([y[:12].mean(), y[12:].mean()], 12)
        assert fit.log_likelihood == pytest.approx(np.sum(norm.logpdf(y, means, fit.run_spread)), abs=1e-3)
        assert fit.aic == pytest.approx(6 - 2 * fit.log_likelihood)

    def test_censored_runs_stand_beside_intervals(self) -> None:
        """The maximum by another optimizer over the likelihood written out once more."""
        low = np.array([0.0, 8e3, 9e3, 12e3, 20e3, 24e3])
        high = np.array([9e3, 10e3, 11e3, np.inf, 25e3, np.inf])
        arm = ["a"] * 4 + ["b"] * 2
        fit = fit_responses(low, high, arm)
        assert fit is not None

        def cost(theta: Floats) -> float:
            s = math.exp(theta[2])
            mu = np.repeat(theta[:2], [4, 2])
            with np.errstate(divide="ignore"):
                mass = norm.cdf((np.log(high) - mu) / s) - norm.cdf((np.log(low) - mu) / s)
            narrowest = np.array([4 * math.log(11 / 9) ** 2, 2 * math.log(25 / 24) ** 2]) / 12
            prior = ((theta[2] - math.log(RUN_SPREAD)) / math.log(SPREAD_FACTOR)) ** 2 / 2
            return float(-np.log(np.maximum(mass, 1e-300)).sum() - np.log(s**2 + narrowest).sum() / 2 + prior)

        found = minimize(cost, [9.2, 10.1, -2.0], method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-10})
        values = [*list(fit.params.values())[:2], math.log(fit.run_spread)]
        assert values == pytest.approx(found.x, abs=1e-4)

    def test_limits_are_those_of_the_profile(self) -> None:
        rng = np.random.default_rng(1)
        y = 11 + 0.1 * rng.standard_normal(40)
        fit = fit_responses(np.exp(y), np.exp(y), ["a"] * 40)
        assert fit is not None
        low, high = fit.intervals(level=0.8)["log_responses[a]"]
        half = 1.2816 * fit.stderr["log_responses[a]"]
        assert (low, high) == pytest.approx((y.mean() - half, y.mean() + half), abs=0.15 * half)
        low, high = fit.intervals(level=0.8)["run_spread"]
        assert low < fit.run_spread < high
        assert high - fit.run_spread > fit.run_spread - low

    def test_one_interval_for_all_says_where_in_it_once(self) -> None:
        shared = fit_responses([5120] * 3, [10240] * 3, ["a"] * 3)
        assert shared is not None
        low, high = shared.intervals(level=0.8)["log_responses[a]"]
        assert low < math.log(5800)
        assert high > math.log(9000)

    def test_without_repeats_the_spread_is_its_prior_and_that_is_said(self) -> None:
        fit = fit_responses([5120, 20480], [5200, 20600], ["a", "b"])
        assert fit is not None
        assert fit.run_spread == pytest.approx(RUN_SPREAD, rel=0.02)
        assert "a second seed at one batch would tell" in fit.message

    def test_arms_with_limits_on_one_side_have_no_mean(self) -> None:
        assert fit_responses([0, 100], [50, np.inf], ["a", "b"]) is None
        fit = fit_responses([0, 100, 100], [50, np.inf, 104], ["a", "b", "b"])
        assert fit is not None
        assert fit.one_sided == ("a",)
        assert "limits on one side only" in fit.message

    def test_reversed_limits_are_refused(self) -> None:
        with pytest.raises(InputError, match="between 200 and 100"):
            fit_responses([200], [100], ["a"])

    @settings(max_examples=30)
    @given(st.floats(10, 13), st.floats(-4, 0), st.floats(0.001, 1))
    def test_derivatives(self, mu: float, log_s: float, width: float) -> None:
        low = np.array([11.0, -np.inf, 11.6])
        high = np.array([11 + width, 11.4, np.inf])
        arm, theta, step = np.zeros(3, dtype=np.int64), np.array([mu, log_s]), 1e-6
        if not _penalised(theta, low, high, arm) > -1e4:
            return
        score, hessian = _derivatives(theta, low, high, arm)
        for i, unit in enumerate(np.eye(2)):
            up, down = theta + step * unit, theta - step * unit
            slope = (_penalised(up, low, high, arm) - _penalised(down, low, high, arm)) / (2 * step)
            assert score[i] == pytest.approx(slope, rel=1e-3, abs=1e-3)
            bend = (_derivatives(up, low, high, arm)[0] - _derivatives(down, low, high, arm)[0]) / (2 * step)
            assert hessian[i] == pytest.approx(bend, rel=1e-3, abs=1e-2)

    def test_coverage_of_the_mean_on_a_coarse_grid(self) -> None:
        """Eighty-percent profile intervals over 60 sweeps whose grid is twice the spread."""
        rng, hits = np.random.default_rng(3), 0
        for _ in range(60):
            offset = rng.uniform(0, 0.2)
            y = 11 + 0.1 * rng.standard_normal(6)
            cell = np.floor((y - offset) / 0.2)
            fit = fit_responses(np.exp(cell * 0.2 + offset), np.exp((cell + 1) * 0.2 + offset), ["a"] * 6)
            assert fit is not None
            low, high = fit.intervals(level=0.8)["log_responses[a]"]
            hits += low <= 11 <= high
        assert 0.7 <= hits / 60 <= 0.95


CURVE = Curve(family="sigmoid", start=0.2, asymptote=0.8, scale=60e3, exponent=1.2)


def pilot(
    batch: int, *, factor: float, end: float, seed: int = 0, noise: float = 0.004, rate: float = 1e-6
) -> xr.Dataset:
    """A run along the common curve at its own pace, evaluated sixteen times up to some responses."""
    rng = np.random.default_rng([seed, batch])
    steps = np.arange(1, 17)
    at = np.linspace(0, end, 17)
    score = score_at(CURVE, at / factor) + noise * rng.standard_normal(17)
    seconds = 50 + 0.1 * batch
    data = {
        "step_seconds": ("rollout_step", seconds * (1 + 0.01 * rng.standard_normal(16))),
        "elapsed": ("rollout_step", seconds * steps.astype(np.float64)),
        "responses": ("rollout_step", batch * steps.astype(np.float64)),
        "steady": ("rollout_step", steps > 2),
        "score": (("metric", "evaluation"), score[None, :]),
        "evaluation_responses": ("evaluation", at),
        "evaluation_elapsed": ("evaluation", at / batch * seconds),
        "evaluation_wall": ("evaluation", at / batch * seconds),
        "evaluation_seconds": ("evaluation", np.full(17, np.nan)),
    }
    ds = xr.Dataset(data, coords={"metric": ["accuracy"], "rollout_step": steps})
    ds.attrs = {
        "train_batch": batch,
        "rollout_batch": batch,
        "learning_rate": rate,
        "group_size": 8,
        "path": f"{batch}",
    }
    return ds


def runs_of(*runs: xr.Dataset) -> xr.DataTree:
    return xr.DataTree.from_dict({f"b{r.attrs['train_batch']}_{i}": r for i, r in enumerate(runs)})


class TestOverlay:
    def nodes(
        self, *, factor: float, noise: float = 0.004, end: float = 40e3
    ) -> tuple[dict[str, xr.Dataset], list[str]]:
        runs = [pilot(64, factor=1, end=end, seed=s, noise=noise) for s in (0, 1)]
        runs += [pilot(256, factor=factor, end=end, seed=s, noise=noise) for s in (0, 1)]
        names = [f"r{i}" for i in range(4)]
        return dict(zip(names, runs, strict=True)), ["a", "a", "b", "b"]

    @pytest.mark.parametrize("factor", [0.7, 1.0, 1.6])
    def test_factors_of_overlaid_curves_come_back(self, factor: float) -> None:
        nodes, arms = self.nodes(factor=factor)
        fit = fit_overlay(nodes, arms, "accuracy")
        assert fit.success
        log_f = list(fit.params.values())
        assert sum(log_f) == pytest.approx(0, abs=1e-6)
        found = np.mean(log_f[2:]) - np.mean(log_f[:2])
        assert abs(found - math.log(factor)) < 3 * fit.contrast_error + 0.01
        assert fit.contrast_error < 0.06

    def test_errors_cover(self) -> None:
        hits = []
        for seed in range(25):
            nodes = {
                f"r{i}": pilot(b, factor=f, end=40e3, seed=100 + seed, noise=0.01)
                for i, (b, f) in enumerate(((64, 1.0), (256, 1.3)))
            }
            fit = fit_overlay(nodes, ["a", "b"], "accuracy")
            miss = fit.params["r1"] - fit.params["r0"] - math.log(1.3)
            hits.append(abs(miss) < 1.2816 * fit.contrast_error)
        assert 0.6 <= np.mean(hits) <= 0.98

    def test_scores_that_have_not_moved_are_no_evidence_and_that_is_said(self) -> None:
        nodes, arms = self.nodes(factor=1.3, noise=0.02, end=1.5e3)
        fit = fit_overlay(nodes, arms, "accuracy")
        assert not fit.success
        assert "until their scores have moved further" in fit.message

    def test_too_few_evaluations_are_named(self) -> None:
        nodes, arms = self.nodes(factor=1.3)
        few = {name: ds.isel(evaluation=slice(0, 2)) for name, ds in nodes.items()}
        fit = fit_overlay(few, arms, "accuracy")
        assert not fit.success
        assert "evaluate more often" in fit.message
        assert "evaluate more often" in fit.summary()


class TestPilotsThatNeverReachTheTarget:
    def test_inform_r_n_through_their_curves(self) -> None:
        runs = runs_of(*(pilot(b, factor=f, end=40e3, seed=s) for b, f in ((64, 1.0), (256, 1.6)) for s in (0, 1)))
        plan = plan_from_dict({"recipe": {"prompts": 8, "group_size": 8, "learning_rate": 1e-6, "lr_rule": "fixed"}})
        prior = predict(plan, batches=(64, 256, 1024), draws=500)
        for target in (0.75, None):
            ds = predict(runs, plan=plan, target=target, batches=(64, 256, 1024), draws=500)
            low, middle, high = np.quantile(ds["sample_cost_ratio"].sel(train_batch=256), [0.1, 0.5, 0.9])
            assert low < 1.6 < high
            assert middle == pytest.approx(1.6, rel=0.1)
            before = np.quantile(prior["sample_cost_ratio"].sel(train_batch=256), [0.1, 0.9])
            assert math.log(high / low) < math.log(before[1] / before[0])
            # The curves' common level is no N*.
            assert np.isnan(ds["responses_to_target"]).all()
            assert any("learning curves at equal responses" in w for w in ds.attrs["warnings"])

    def test_flat_curves_leave_the_prior_and_say_so(self) -> None:
        runs = runs_of(*(pilot(b, factor=1.5, end=1e3, noise=0.02, seed=s) for b in (64, 256) for s in (0, 1)))
        c = calibrate(runs, Plan(), target=0.75, draws=50)
        assert c.seen == ()
        assert any("r_N from learning curves at equal responses: " in w for w in c.warnings)


def test_an_arm_that_never_reaches_the_target_bounds_its_cost_from_below() -> None:
    """Runs at 256 end at 1.5 times the reference's N* without reaching it; a third arm has N* on both sides."""
    at = 30e3
    target = float(score_at(CURVE, at))
    plan = plan_from_dict({"recipe": {"prompts": 8, "group_size": 8, "learning_rate": 1e-6, "lr_rule": "sqrt"}})
    arms = [(64, 1.0, 60e3, 1e-6), (128, 1.05, 60e3, 1.41e-6), (256, 1.8, 45e3, 2e-6)]
    runs = runs_of(*(pilot(b, factor=f, end=e, rate=r, noise=0, seed=s) for b, f, e, r in arms for s in (0, 1)))
    c = calibrate(runs, plan, target=target, draws=2000)
    ds = predict(runs, plan=plan, target=target, batches=(64, 128, 256), draws=2000)
    limits = [o for o in c.seen if o.train_batch == 256]
    assert len(limits) == 2
    assert all(math.isinf(o.high) and o.low == pytest.approx(math.log(45e3)) for o in limits)
    low = np.quantile(ds["sample_cost_ratio"].sel(train_batch=256), 0.1)
    without = runs_of(*(pilot(b, factor=f, end=e, rate=r, noise=0, seed=s) for b, f, e, r in arms[:2] for s in (0, 1)))
    ignored = predict(without, plan=plan, target=target, batches=(64, 128, 256), draws=2000)
    assert low > 1.35
    assert np.quantile(ignored["sample_cost_ratio"].sel(train_batch=256), 0.9) < 1.5


def test_r_n_of_a_law_comes_back_from_a_coarse_grid() -> None:
    """N* only known within a third: wide intervals enter as such, and the truth is covered."""
    truth = {b: float(sample_cost_ratio(b, reference_batch=64, noise_scale=300)) for b in (64, 128, 256)}
    runs = []
    for b, cost in truth.items():
        for s in range(2):
            ds = pilot(b, factor=cost, end=64e3, noise=0, seed=s, rate=1e-6 * math.sqrt(b / 64))
            runs.append(ds.isel(evaluation=[0, 4, 6, 8, 11, 16]))
    c = calibrate(runs_of(*runs), Plan(), target=float(score_at(CURVE, 21e3)), draws=1000)
    assert not any(o.is_number for o in c.seen)
    ds = predict(runs_of(*runs), target=float(score_at(CURVE, 21e3)), batches=(64, 128, 256), draws=1000)
    for b in (128, 256):
        low, high = np.quantile(ds["sample_cost_ratio"].sel(train_batch=b), [0.1, 0.9])
        assert low < truth[b] < high
    assert np.median(ds["responses_to_target"].sel(train_batch=64)) == pytest.approx(21e3, rel=0.2)


def test_statsmodels_loads_only_where_a_fit_needs_it() -> None:
    code = (
        "import sys; from batchsim.plan import plan_from_dict; from batchsim.predict import predict;"
        "predict(plan_from_dict({'recipe': {'prompts': 8}}), draws=20); import batchsim.measure;"
        "print('statsmodels' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "False"
