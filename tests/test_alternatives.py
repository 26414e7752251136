"""Regimes, plateau, decoupled concurrency, a batch that grows, and several targets."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy.special import ndtri
from test_responses import CURVE, pilot, runs_of

from batchsim.calibrate import calibrate
from batchsim.calibrate.lag import COST_SPREAD
from batchsim.calibrate.store import from_dict, to_dict
from batchsim.cli import main
from batchsim.errors import InputError
from batchsim.learning.curve import score_at
from batchsim.learning.mechanism import STALENESS
from batchsim.plan import Plan, plan_from_dict
from batchsim.predict import predict, predict_targets
from batchsim.predict.alternatives import plateau
from batchsim.time_to_target import plateau_factor


def plan(*, noise: float = 2000.0, tau0: float = 100.0, tau1: float = 0.2, **sections: Any) -> Plan:
    """Everything stated: tuned rates, drift, an affine step time."""
    recipe = {"prompts": 32, "group_size": 8, "learning_rate": 1e-6, "lr_rule": "tuned"}
    learning = {
        "noise_scale": noise,
        "snr_shape": "drift",
        "lr_fraction": 0.3,
        "curvature_ratio": 1,
        "penalty_shape": -1,
    }
    engine = {"gen_time_intercept": tau0, "gen_time_slope": tau1}
    return plan_from_dict(
        {"recipe": recipe | sections.pop("recipe", {}), "learning": learning, "engine": engine, **sections}
    )


class TestRegimes:
    @pytest.mark.parametrize(("noise", "order"), [(200.0, "samples first"), (2e6, "generation first")])
    def test_either_order(self, noise: float, order: str) -> None:
        ds = predict(plan(noise=noise), draws=50)
        found = ds.attrs["regimes"]
        assert found["order"] == order
        assert found["p_generation_first"] == (order == "generation first")
        c_n, c_g = float(ds["critical_train_batch"][0]), float(ds["critical_gen_batch"][0])
        below, between, above = found["rows"]
        assert (below["from"], above["to"]) == (None, None)
        assert below["to"] == between["from"] == pytest.approx(min(c_n, c_g))
        assert between["to"] == above["from"] == pytest.approx(max(c_n, c_g))
        said = "speed is spent, samples are not" if c_g < c_n else "speed is bought with samples"
        assert between["regime"] == said

    def test_generated_responses_are_brought_to_train_batches(self) -> None:
        # Twice as many in flight as kept, four updates per rollout step: C_g in train batches is an eighth.
        ds = predict(plan(noise=2e6, recipe={"gen_ratio": 2.0, "updates_per_rollout": 4}), draws=50)
        c_g = float(ds["critical_gen_batch"][0])
        assert ds.attrs["regimes"]["rows"][0]["to"] == pytest.approx(c_g / 8)

    def test_without_a_critical_batch_there_are_none(self) -> None:
        ds = predict(plan(recipe={"lr_rule": "fixed"}), draws=50)
        assert ds.attrs["regimes"] == {"p_generation_first": None, "order": None, "rows": []}


class TestPlateau:
    def test_is_that_of_the_closed_form(self) -> None:
        """Tuned rates and affine time: T is within 5 % from B_opt/k to k B_opt."""
        noise, tau0, tau1 = 1500.0, 300.0, 0.2
        batches = [int(8 * round(2 ** (k / 2))) for k in range(6, 25)]
        ratio = np.array([(b + noise) * (tau0 / b + tau1) for b in batches])
        ds = xr.Dataset(
            {"time_ratio": (("draw", "train_batch"), np.tile(ratio, (4, 1)))}, coords={"train_batch": batches}
        )
        found = plateau(ds, level=0.8)
        assert found is not None
        best = math.sqrt(noise * tau0 / tau1)
        k = float(plateau_factor(noise_scale=noise, update_time_intercept=tau0, update_time_slope=tau1))
        assert found["train_batch"] == pytest.approx([best / k, best * k], rel=0.08)
        assert found["octaves"] == pytest.approx(2 * math.log2(k), abs=0.15)
        assert found["octaves_interval"] == pytest.approx([found["octaves"]] * 2)
        assert not found["at_edge"]

    def test_says_where_the_candidates_end_it(self) -> None:
        ds = predict(plan(noise=2e6), batches=(256, 512, 1024), draws=50)
        assert ds.attrs["plateau"]["at_edge"]
        assert ds.attrs["plateau"]["train_batch"][1] == pytest.approx(1024)

    def test_needs_three_candidates(self) -> None:
        assert predict(plan(), batches=(256, 512), draws=50).attrs["plateau"] is None


class TestDecoupled:
    def test_prices_staleness(self) -> None:
        ds = predict(plan(), batches=(256, 512, 1024), draws=4000)
        rows = ds.attrs["decoupled"]
        assert [r["train_batch"] for r in rows] == [512, 1024]
        a, q = STALENESS
        for row, lag in zip(rows, (1.0, 3.0), strict=True):
            assert row["lag"] == pytest.approx(lag)
            assert row["staleness_factor"] == pytest.approx(1 + a * lag**q)
            (r_q,) = np.unique(ds["throughput_ratio"].sel(train_batch=row["train_batch"]).values)
            assert row["time_ratio"] == pytest.approx((1 + a * lag**q) / r_q, rel=0.02)
            # The system is stated, so that all that is left unknown is what staleness costs.
            apart = math.exp(COST_SPREAD * ndtri(0.9))
            limits = [(1 + a * factor * lag**q) / r_q for factor in (1 / apart, apart)]
            assert row["interval"] == pytest.approx(limits, rel=0.05)

    def test_counts_from_what_is_in_flight_already(self) -> None:
        (row,) = predict(plan(recipe={"gen_ratio": 2.0}), batches=(256, 512), draws=50).attrs["decoupled"]
        a, q = STALENESS
        assert row["lag"] == 3
        assert row["staleness_factor"] == pytest.approx((1 + a * 3**q) / (1 + a))


@pytest.fixture(scope="module")
def runs() -> xr.DataTree:
    """Runs of the common curve, twice at each of two batches, whose chunks are silent on noise."""
    arms = ((64, 1.0), (256, 1.25))
    return runs_of(
        *(
            pilot(b, factor=f, end=110e3, noise=0.002, seed=s, rate=1e-6 * math.sqrt(b / 64))
            for b, f in arms
            for s in (0, 1)
        )
    )


TARGET = float(score_at(CURVE, 80e3))


class TestGrowth:
    def test_a_batch_that_grows_gains_and_grows(self, runs: xr.DataTree) -> None:
        known = plan_from_dict({"learning": {"noise_scale": 400, "lr_fraction": 0.05, "penalty_shape": -1}})
        ds = predict(runs, plan=known, target=TARGET, schedule=True, draws=200)
        found = ds.attrs["growth"]
        assert found["gain"] >= 1
        assert found["constant_batch"] in ds["train_batch"].values
        batches = [s["train_batch"] for s in found["steps"]]
        assert batches == sorted(batches)
        assert found["steps"][0]["progress"] == 0
        assert predict(runs, plan=known, target=TARGET, draws=50).attrs["growth"] is None

    def test_rates_stay_below_the_ceiling(self, runs: xr.DataTree) -> None:
        learning = {"noise_scale": 400, "lr_fraction": 0.05, "penalty_shape": -1}
        # A ceiling at the reference's own rate leaves larger batches that rate.
        trust = {"kl_per_update": 1e-3, "kl_max": 1e-3}
        found = {
            name: predict(
                runs, plan=plan_from_dict({"learning": learning | extra}), target=TARGET, schedule=True, draws=200,
                lr_rule=rule, batches=(64, 128, 256, 512),
            ).attrs["growth"]
            for name, rule, extra in (("fixed", "fixed", {}), ("capped", "sqrt", trust), ("free", "sqrt", {}))
        }  # fmt: skip
        assert found["capped"]["constant_batch"] == found["fixed"]["constant_batch"] < found["free"]["constant_batch"]
        assert found["capped"]["gain"] == pytest.approx(found["fixed"]["gain"])

    def test_survives_a_file(self, runs: xr.DataTree) -> None:
        known = plan_from_dict({"learning": {"noise_scale": 400}})
        c = calibrate(runs, known, target=TARGET, draws=50, with_curve=True)
        read = from_dict(json.loads(json.dumps(to_dict(c))))
        assert read.reference_curve == c.reference_curve is not None
        assert predict(read, schedule=True).attrs["growth"] == predict(c, schedule=True).attrs["growth"]

    def test_says_what_is_missing(self) -> None:
        ds = predict(plan(), schedule=True, draws=50)
        assert ds.attrs["growth"] is None
        assert any("a batch that grows would gain needs N*" in w for w in ds.attrs["warnings"])


class TestTargets:
    def test_each_is_its_own_forecast(self, runs: xr.DataTree) -> None:
        both = predict_targets(runs, [TARGET, 0.4], draws=50)
        assert [ds.attrs["target"] for ds in both] == [0.4, TARGET]
        for ds in both:
            xr.testing.assert_equal(ds, predict(runs, target=ds.attrs["target"], draws=50))

    def test_none_and_a_stated_n_are_refused(self, runs: xr.DataTree) -> None:
        with pytest.raises(InputError, match="no targets"):
            predict_targets(runs, [])
        stated = plan(target={"responses_to_target": 40_000})
        with pytest.raises(InputError, match="belong to one of them"):
            predict_targets(stated, [0.4, 0.5])

    def test_command(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        start = ("predict", "--example", "verl-sweep", "--target", "0.5,0.55", "--draws", "50", "--schedule")
        with pytest.raises(SystemExit):
            main([*start, "--json"])
        answer = json.loads(capsys.readouterr().out)
        assert [t["target"] for t in answer["targets"]] == [0.5, 0.55]
        assert answer["target"] == 0.55
        assert answer["targets"][1]["batches"] == answer["batches"]
        assert answer["regimes"]["order"] in ("generation first", "samples first", "undecided")
        with pytest.raises(SystemExit):
            main(list(start))
        out = capsys.readouterr().out
        assert "by target" in out
        assert "Regimes: below B = " in out
        assert "T is within 5 % of its least" in out
