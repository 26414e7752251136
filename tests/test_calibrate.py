from __future__ import annotations

import csv
import math
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from batchsim.calibrate import LAW_ERROR, PRIOR_DRAWS, Calibration, calibrate, law_error
from batchsim.calibrate.learning import (
    DRIFT_PROBABILITY,
    LR_FRACTION_PRIOR,
    NOISE_SCALE_PRIOR,
    SNR_SHAPE_PRIOR,
    draw_learning,
)
from batchsim.errors import InputError
from batchsim.learning.noise_scale import from_chunk_norms
from batchsim.learning.sample_cost import sample_cost_ratio
from batchsim.plan import Learning, Plan, plan_from_dict
from batchsim.predict import predict
from batchsim.specs.recipe import Recipe

Floats = NDArray[np.float64]
RECIPE = {"prompts": 64, "group_size": 8, "learning_rate": 1e-6}
B0 = 512
TARGET = 0.5


def a_run(
    *,
    train_batch: float,
    responses_to_target: float,
    learning_rate: float = 1e-6,
    group_size: int | None = 8,
    rollout_batch: float | None = None,
    step_seconds: tuple[float, float] = (100.0, 0.4),
    seed: int = 0,
) -> xr.Dataset:
    """A run as a reader returns it, evaluated 1 % before and 1 % after it reaches the target."""
    rollout = rollout_batch or train_batch
    steps = np.arange(1, 13)
    seconds = (step_seconds[0] + step_seconds[1] * rollout) * (
        1 + 0.02 * np.random.default_rng(seed).standard_normal(steps.size)
    )
    at = responses_to_target * np.array([0.5, 0.99, 1.01, 1.5])
    responses = steps * rollout
    elapsed = at / rollout * seconds.mean()
    data = {
        "step_seconds": ("rollout_step", seconds),
        "elapsed": ("rollout_step", np.cumsum(seconds)),
        "responses": ("rollout_step", responses.astype(np.float64)),
        "steady": ("rollout_step", steps > 2),
        "score": (("metric", "evaluation"), TARGET * at[None, :] / responses_to_target),
        "evaluation_responses": ("evaluation", at),
        "evaluation_elapsed": ("evaluation", elapsed),
        "evaluation_wall": ("evaluation", elapsed),
        "evaluation_seconds": ("evaluation", np.full(4, np.nan)),
    }
    ds = xr.Dataset(data, coords={"metric": ["accuracy"], "rollout_step": steps})
    ds.attrs = {
        "train_batch": train_batch,
        "rollout_batch": rollout,
        "learning_rate": learning_rate,
        "path": f"B{train_batch:g}_seed{seed}",
    }
    if group_size is not None:
        ds.attrs |= {"group_size": group_size, "prompts": rollout / group_size}
    return ds


def tree(runs: list[xr.Dataset]) -> xr.DataTree:
    return xr.DataTree.from_dict({f"run{i}": ds for i, ds in enumerate(runs)})


def sweep(
    *, noise_scale: float, snr_shape: float, lr_fraction: float, spread: float = 0.03, seeds: int = 3, seed: int = 0
) -> xr.DataTree:
    """Arms that obey the law: four batches under the sqrt and fixed rule, and rate probes at the reference."""
    arms = [(B0, s) for s in (0.5, 1.0, 2.0)]
    arms += [(B0 * x, s) for x in (2, 4, 8) for s in (1.0, math.sqrt(x))]
    rng = np.random.default_rng(seed)
    runs: list[xr.Dataset] = []
    for batch, rate in arms:
        cost = sample_cost_ratio(
            batch,
            reference_batch=B0,
            noise_scale=noise_scale,
            snr_shape=snr_shape,
            lr_fraction=lr_fraction,
            lr_rule=lambda x, rate=rate: np.full_like(x, rate),  # type: ignore[misc]
        )
        runs += [
            a_run(
                train_batch=batch,
                learning_rate=1e-6 * rate,
                responses_to_target=120e3 * float(cost) * math.exp(spread * rng.standard_normal()),
                seed=len(runs) + i,
            )
            for i in range(seeds)
        ]
    return tree(runs)


def plan(**sections: dict[str, Any]) -> Plan:
    return plan_from_dict({"recipe": RECIPE} | sections)


def departure(c: Calibration) -> Floats:
    """B_noise/(1 + 1/k), all that curves say near b = 0."""
    return c.noise_scale / (1 + 1 / c.snr_shape)


class TestGiven:
    def test_values_are_kept_exactly(self) -> None:
        for runs in (None, sweep(noise_scale=2000, snr_shape=math.inf, lr_fraction=0.2)):
            learning = {
                "noise_scale": 3000,
                "snr_shape": 2.5,
                "lr_fraction": 0.3,
                "curvature_ratio": 1.7,
                "penalty_shape": 0.1,
            }
            c = calibrate(runs, plan(learning=learning), target=TARGET, draws=50)
            assert set(c.noise_scale) == {3000.0}
            assert set(c.snr_shape) == {2.5}
            assert set(c.lr_fraction) == {0.3}
            assert set(c.penalty_shape) == {0.1}
            assert c.curvature_ratio == pytest.approx(1.7)
            assert {c.sources[n] for n in learning} == {"given"}

    def test_drift_by_name(self) -> None:
        assert np.isinf(calibrate(None, plan(learning={"snr_shape": "drift"}), draws=50).snr_shape).all()

    def test_intervals_are_the_central_eighty_percent(self) -> None:
        c = calibrate(
            None, plan(learning={"noise_scale": [1000, 6000], "lr_fraction": [0.1, 0.3]}), draws=PRIOR_DRAWS, seed=1
        )
        low, middle, high = np.quantile(c.noise_scale, [0.1, 0.5, 0.9])
        assert (low, middle, high) == pytest.approx((1000, math.sqrt(6e6), 6000), rel=0.04)
        assert c.lr_fraction.min() >= 0.1
        assert c.lr_fraction.max() <= 0.3
        assert c.sources["noise_scale"] == "given interval"

    def test_stage_laws(self) -> None:
        engine = {"gen_time_intercept": 216.0, "gen_time_slope": 0.4, "gen_throughput_max": 2.0, "mode": "async"}
        c = calibrate(None, plan(engine=engine), draws=50)
        assert {k: c.stages[k] for k in engine} == engine
        assert c.absolute
        assert c.sources["step_time"] == "given"
        assert c.step_time is None

    def test_target_of_the_reference(self) -> None:
        c = calibrate(None, plan(target={"responses_to_target": 120_000, "time_to_target": "11.9 h"}), draws=50)
        assert c.responses_to_target is not None
        assert c.time_to_target is not None
        assert set(c.responses_to_target) == {120_000.0}
        assert set(c.time_to_target) == {42_840.0}

    def test_memory_caps_a_stated_law(self) -> None:
        # One response takes 1 GB of the 56 GB that weights leave; its plateau is C/(d0 + d1 C).
        system: dict[str, dict[str, Any]] = {
            "engine": {"gen_time_intercept": 100.0, "gen_time_slope": 0.5},
            "gpu": {"count": 1, "memory": "80 GB"},
            "model": {"weight_bytes": "16 GB", "kv_bytes_per_token": "1 MB"},
            "lengths": {"response_mean": 2000, "distribution": "fixed"},
        }
        c = calibrate(None, plan(**system), draws=50)
        assert c.memory_limit == (56, "KV memory")
        assert float(c.stages["gen_throughput_max"]) == pytest.approx(56 / (100 + 0.5 * 56))

    def test_an_unknown_gpu_is_said_though_nothing_rests_on_it(self) -> None:
        c = calibrate(None, plan(gpu={"name": "H1000"}), draws=50)
        assert any("H1000" in w and "H100" in w for w in c.warnings)
        assert c.memory_limit[1] == ""

    def test_memory_holds_fewer_responses_of_unequal_length(self) -> None:
        """Long responses are in flight for longer: <L^2>/<L>^2 is exp(.49) times at a spread of .7."""
        system: dict[str, dict[str, Any]] = {
            "engine": {"gen_time_intercept": 100.0, "gen_time_slope": 0.5},
            "gpu": {"count": 1, "memory": "80 GB"},
            "model": {"weight_bytes": "16 GB", "kv_bytes_per_token": "1 MB"},
            "lengths": {"response_mean": 2000, "response_spread": 0.7},
        }
        c = calibrate(None, plan(**system), draws=50)
        assert c.memory_limit == (math.floor(56 / math.exp(0.49)), "KV memory")

    def test_observed_throughput_ratios_come_back(self) -> None:
        c = calibrate(None, plan(engine={"observed": [{"prompts": 128, "throughput_ratio": 1.31}]}), draws=4000)
        tau0, tau1 = c.stages["gen_time_intercept"], c.stages["gen_time_slope"]
        ratio = 2 * (tau0 + B0 * tau1) / (tau0 + 2 * B0 * tau1)
        assert np.median(ratio) == pytest.approx(1.31, rel=0.005)
        assert np.std(np.log(ratio)) == pytest.approx(0.02, rel=0.1)
        assert not c.absolute

    def test_step_times_of_logs_replace_stated_ones_and_that_is_said(self) -> None:
        stated = plan(engine={"observed": [{"prompts": 128, "throughput_ratio": 1.9}]})
        runs = sweep(noise_scale=2000, snr_shape=math.inf, lr_fraction=0.2)
        with_logs, alone = calibrate(runs, stated, target=TARGET, draws=50), calibrate(None, stated, draws=50)
        assert with_logs.sources["step_time"] == "measured"
        said = "[[engine.observed]] is not used: the logs hold step times"
        assert said in with_logs.warnings
        assert said not in alone.warnings


class TestPrior:
    prior = calibrate(None, plan(), draws=PRIOR_DRAWS, seed=2)

    def test_noise_scale_is_log_uniform(self) -> None:
        low, high = NOISE_SCALE_PRIOR
        assert (low, high) == (200.0, 50_000.0)
        place = np.log(self.prior.noise_scale / low) / math.log(high / low)
        assert place.min() >= -1e-12
        assert place.max() <= 1 + 1e-12
        assert np.quantile(place, [0.1, 0.5, 0.9]) == pytest.approx([0.1, 0.5, 0.9], abs=0.015)

    @pytest.mark.parametrize("truth", [20.0, 400_000.0])
    def test_norms_may_say_what_no_published_recipe_does(self, truth: float) -> None:
        rng = np.random.default_rng(0)
        chunk, batch = ((1 + truth / n) * (1 + 0.02 * rng.standard_normal(80)) for n in (1000, 8000))
        assert not NOISE_SCALE_PRIOR[0] < truth < NOISE_SCALE_PRIOR[1]
        norms = from_chunk_norms(8000, 8, chunk, batch)
        drawn = draw_learning(
            Learning(), Recipe(prompts=1000, group_size=8), [norms], (), draws=4000, rng=rng, warnings=[]
        )
        low, mid, high = np.quantile(drawn.parameters["noise_scale"], [0.05, 0.5, 0.95])
        assert low < truth < high
        assert mid == pytest.approx(truth, rel=0.4)

    def test_shape_is_drift_or_log_uniform(self) -> None:
        assert (SNR_SHAPE_PRIOR, DRIFT_PROBABILITY) == ((0.5, 4.0), 0.5)
        drift = np.isinf(self.prior.snr_shape)
        assert drift.mean() == pytest.approx(0.5, abs=0.015)
        place = np.log(self.prior.snr_shape[~drift] / 0.5) / math.log(8)
        assert np.quantile(place, [0.1, 0.5, 0.9]) == pytest.approx([0.1, 0.5, 0.9], abs=0.02)

    def test_lr_fraction_is_uniform(self) -> None:
        assert LR_FRACTION_PRIOR == (0.01, 0.5)
        expected = 0.01 + 0.49 * np.array([0.1, 0.5, 0.9])
        assert np.quantile(self.prior.lr_fraction, [0.1, 0.5, 0.9]) == pytest.approx(expected, abs=0.01)

    def test_parameters_are_independent(self) -> None:
        columns = [np.log(self.prior.noise_scale), np.isinf(self.prior.snr_shape), self.prior.lr_fraction]
        assert np.corrcoef(columns) == pytest.approx(np.eye(3), abs=0.03)

    def test_says_that_it_is_one_and_what_would_tell(self) -> None:
        assert self.prior.sources["noise_scale"] == self.prior.sources["lr_fraction"] == "prior"
        said = " ".join(self.prior.warnings)
        assert "norms of two chunks of each batch over some tens of updates at 512 responses would tell" in said
        assert "a run at twice the rate and the same batch would narrow it" in said
        assert "r_q rests on a prior share" in said
        assert "prior" in self.prior.summary()

    def test_without_runs_and_recipe_there_is_nothing(self) -> None:
        with pytest.raises(InputError, match=r"nothing to predict from.*give \[recipe\]"):
            calibrate(None, Plan())

    @pytest.mark.parametrize("draws", [0, 9, PRIOR_DRAWS + 1])
    def test_number_of_draws_is_bounded(self, draws: int) -> None:
        with pytest.raises(InputError, match=f"draws is {draws}, outside 10 to {PRIOR_DRAWS}"):
            calibrate(None, plan(), draws=draws)


class TestRecovery:
    @pytest.mark.parametrize(
        ("noise_scale", "snr_shape", "lr_fraction"), [(2000.0, math.inf, 0.2), (6000.0, 0.7, 0.1), (700.0, 2.0, 0.35)]
    )
    def test_of_the_law_that_made_the_arms(self, noise_scale: float, snr_shape: float, lr_fraction: float) -> None:
        runs = sweep(noise_scale=noise_scale, snr_shape=snr_shape, lr_fraction=lr_fraction)
        c = calibrate(runs, plan(), target=TARGET, draws=4000)
        truth = noise_scale / (1 + 1 / snr_shape)
        for values, true in ((departure(c), truth), (c.noise_scale, noise_scale), (c.lr_fraction, lr_fraction)):
            low, high = np.quantile(values, [0.02, 0.98])
            assert low <= true <= high
        prior = TestPrior.prior
        # The law's own error is granted to rates as well as to batches, so probes narrow c_0 only a little. Arms share
        # it, so several of them say less of the noise scale than as many independent ones would.
        columns = (
            (np.log(departure(c)), np.log(departure(prior)), 0.7),
            (c.lr_fraction, prior.lr_fraction, 0.8),
        )
        for values, wide, part in columns:
            assert np.ptp(np.quantile(values, [0.1, 0.9])) < part * np.ptp(np.quantile(wide, [0.1, 0.9]))
        assert c.sources["noise_scale"] == "prior and pilots"
        assert not any("misses the measured arms" in w or "effective prior draws" in w for w in c.warnings)

    def test_intervals_cover_over_repeated_sweeps(self) -> None:
        # Eighty-percent intervals, wide on purpose: the law's own error is granted to every arm.
        hits = []
        for seed in range(8):
            runs = sweep(noise_scale=2000, snr_shape=1.0, lr_fraction=0.2, seed=seed, seeds=2)
            c = calibrate(runs, plan(), target=TARGET, draws=1000, seed=seed)
            for values, true in ((departure(c), 1000.0), (c.lr_fraction, 0.2)):
                low, high = np.quantile(values, [0.1, 0.9])
                hits.append(low <= true <= high)
        assert np.mean(hits) >= 0.7

    def test_of_the_references_responses_to_target(self) -> None:
        c = calibrate(sweep(noise_scale=2000, snr_shape=math.inf, lr_fraction=0.2), plan(), target=TARGET, draws=4000)
        assert c.responses_to_target is not None
        low, middle, high = np.quantile(c.responses_to_target, [0.1, 0.5, 0.9])
        assert low <= 120e3 <= high
        assert middle == pytest.approx(120e3, rel=0.05)
        assert high / low < 1.15

    def test_of_the_step_time(self) -> None:
        c = calibrate(sweep(noise_scale=2000, snr_shape=math.inf, lr_fraction=0.2), plan(), target=TARGET, draws=2000)
        assert c.absolute
        assert np.median(c.stages["gen_time_intercept"]) == pytest.approx(100, rel=0.2)
        assert np.median(c.stages["gen_time_slope"]) == pytest.approx(0.4, rel=0.05)
        assert c.sources["step_time"] == "measured"

    def test_arms_that_no_law_explains_widen_their_errors(self) -> None:
        # Responses that fall as the batch grows at twice the sqrt rule and rise again: nothing of the kind.
        runs = [
            a_run(train_batch=B0 * x, learning_rate=1e-6 * s, responses_to_target=n, seed=i)
            for i, (x, s, n) in enumerate(
                [
                    (1, 1.0, 120e3),
                    (1, 2.0, 60e3),
                    (1, 0.5, 80e3),
                    (2, 1.0, 50e3),
                    (4, 1.0, 400e3),
                    (8, 2.8, 60e3),
                    (8, 1, 50e3),
                ]
                * 2
            )
        ]
        c = calibrate(tree(runs), plan(), target=TARGET, draws=200)
        assert any("the law misses the measured arms by" in w for w in c.warnings)

    def test_same_seed_same_draws(self) -> None:
        runs = sweep(noise_scale=2000, snr_shape=1.0, lr_fraction=0.2)
        one, same, other = (calibrate(runs, plan(), target=TARGET, draws=100, seed=s) for s in (3, 3, 4))
        assert (one.noise_scale == same.noise_scale).all()
        assert (one.noise_scale != other.noise_scale).any()


class TestReference:
    def test_is_the_smallest_batch_without_a_recipe(self) -> None:
        c = calibrate(sweep(noise_scale=2000, snr_shape=math.inf, lr_fraction=0.2), Plan(), target=TARGET, draws=50)
        assert (c.recipe.prompts, c.recipe.group_size, c.recipe.train_batch) == (64, 8, B0)
        assert c.measured_batches == (512, 1024, 2048, 4096)

    def test_keeps_the_train_batch_of_several_epochs(self) -> None:
        # 96 responses, 2 epochs in 3 updates: 64 responses per update.
        runs = tree([a_run(train_batch=64, rollout_batch=96, responses_to_target=9600, seed=i) for i in range(2)])
        assert calibrate(runs, Plan(), target=TARGET, draws=50).recipe.train_batch == 64

    def test_keeps_updates_and_epochs_of_the_logs(self) -> None:
        runs = []
        for i, b in enumerate((256, 512)):
            run = a_run(train_batch=b, rollout_batch=2 * b, responses_to_target=1e5, seed=i)
            run.attrs |= {"updates_per_rollout": 4, "epochs": 2}
            runs.append(run)
        c = calibrate(tree(runs), Plan(), target=TARGET, draws=50)
        # 2 B a rollout step is as well one pass in two updates, and the age of responses is not that.
        assert (c.recipe.updates_per_rollout, c.recipe.epochs, c.recipe.train_batch) == (4, 2, 256)
        lags = [row["lag"] for row in predict(c, batches=(256, 512)).attrs["decoupled"]]
        assert lags == [(4 - 1) / 2 + 4]

    def test_arms_without_a_group_size_count_too(self) -> None:
        # A CSV need not state it; then nothing says that the groups differ.
        runs = tree(
            [
                a_run(train_batch=512 * x, responses_to_target=120e3 * x**0.5, group_size=None, seed=10 * x + i)
                for x in (1, 2, 4)
                for i in range(2)
            ]
        )
        c = calibrate(runs, Plan(), target=TARGET, draws=50)
        assert c.measured_batches == (512, 1024, 2048)
        assert c.responses_to_target is not None


class TestObservedIntervals:
    @pytest.fixture(autouse=True)
    def exact_law(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without the law's own error what is left is the error of two runs."""
        monkeypatch.setattr(sys.modules["batchsim.calibrate.learning"], "LAW_ERROR", 0.0)

    def implied(self, interval: list[float], error: float) -> Floats:
        """Updates ratio at twice the batch that the posterior implies, drift at a small fixed rate."""
        seen = {"prompts": 128, "lr_rule": "fixed", "updates_ratio": interval, "relative_error": error}
        learning = {"snr_shape": "drift", "lr_fraction": 0.0, "observed": [seen]}
        c = calibrate(None, plan(learning=learning), draws=4000)
        cost = sample_cost_ratio(2 * B0, reference_batch=B0, noise_scale=c.noise_scale, lr_rule="fixed")
        return np.asarray(cost / 2)

    def test_posterior_stays_near_the_interval(self) -> None:
        low, high = np.quantile(self.implied([0.75, 0.83], 0.005), [0.05, 0.95])
        assert 0.74 < low < 0.77
        assert 0.81 < high < 0.84

    @pytest.mark.parametrize("half_width", [1e-3, 1e-6, 1e-12, 0.0])
    def test_a_point_is_the_limit_of_narrow_intervals(self, half_width: float) -> None:
        # P12: the interval likelihood tends to the normal density of the exact value, on both sides of it.
        implied = self.implied([0.8 - half_width, 0.8 + half_width], 0.01)
        assert np.median(implied) == pytest.approx(0.8, abs=0.003)
        assert np.std(np.log(implied)) == pytest.approx(0.01 * math.sqrt(2), rel=0.15)


class TestLawError:
    @given(st.floats(512, 4096))
    def test_is_zero_within_the_measured_batches(self, batch: float) -> None:
        assert float(law_error(batch, (512.0, 1024.0, 4096.0))) == 0

    @given(octaves=st.floats(0, 10))
    def test_grows_with_the_root_of_the_octaves_on_either_side(self, octaves: float) -> None:
        expected = LAW_ERROR * math.sqrt(octaves)
        found = law_error([4096 * 2**octaves, 512 / 2**octaves], (512.0, 4096.0))
        assert found == pytest.approx([expected, expected], abs=1e-7)

    def test_is_what_reference_convergence_points_show(self, shared: Path) -> None:
        """Largest batch of 16 MLPerf workloads from the smaller ones: a median miss of 8 % per octave."""
        path = shared / "published" / "mlperf_rcp_samples_to_converge.csv"
        if not path.is_file():
            pytest.skip(f"{path} is absent")
        points: dict[str, dict[float, tuple[tuple[int, ...], float]]] = defaultdict(dict)
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                ruleset = tuple(int(part) for part in row["first_ruleset"].rsplit("_", 1)[1].split("."))
                known, batch = points[row["benchmark"]], float(row["batch_size"])
                if batch not in known or ruleset >= known[batch][0]:
                    known[batch] = (ruleset, float(row["mean"]))
        misses = []
        for known in points.values():
            if len(known) < 3:
                continue
            batches = np.array(sorted(known))
            log_n = np.log([known[b][1] for b in batches.tolist()])
            before, largest = batches[-2:].tolist()
            # log N = log a + log(1 + b B): for each b the best a is a mean, and b is scanned.
            slopes = np.exp(np.linspace(-30, 10, 8001))
            shape = np.log1p(slopes[:, None] * batches)
            residual = log_n[:-1] - shape[:, :-1]
            level = residual.mean(axis=1)
            best = np.argmin(np.sum((residual - level[:, None]) ** 2, axis=1))
            miss = level[best] + shape[best, -1] - log_n[-1]
            misses.append(abs(miss) / math.log2(largest / before))
        assert len(misses) == 16
        assert np.median(misses) == pytest.approx(0.084, abs=0.003)
        # The median of |z| is .6745 standard deviations.
        assert pytest.approx(np.median(misses), abs=0.01) == 0.6745 * LAW_ERROR
