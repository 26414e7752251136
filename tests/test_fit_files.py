"""Calibrations as results and as files: laws compared, `calibrate -o`, `predict --fit`, what is refused."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from numpy.typing import NDArray
from test_calibrate import B0, TARGET, a_run, plan, sweep, tree

from batchsim.calibrate import Calibration, calibrate
from batchsim.calibrate.discrepancy import Seen
from batchsim.calibrate.laws import compare_laws, table
from batchsim.calibrate.store import from_dict, load_fit, save_fit, to_dict
from batchsim.cli import main
from batchsim.errors import InputError
from batchsim.examples import example_path
from batchsim.learning.sample_cost import sample_cost_ratio
from batchsim.logs import read_logs
from batchsim.plan import Plan, plan_from_dict, read_plan
from batchsim.predict import predict

DOCS = Path(__file__).resolve().parents[1] / "docs"


def arms(cost: Any, batches: tuple[float, ...] = (64, 128, 256, 512, 1024), error: float = 0.02) -> list[Seen]:
    return [
        Seen(train_batch=b, learning_rate_ratio=1, low=11 + math.log(cost(b)), high=11 + math.log(cost(b)), error=error)
        for b in batches
    ]


class TestLaws:
    @pytest.mark.parametrize(
        ("name", "cost"),
        [
            ("constant", lambda b: 1.0),
            ("power", lambda b: (b / 64) ** 0.3),
            ("hyperbola", lambda b: (b + 300) / 364),
            ("drift", lambda b: float(sample_cost_ratio(b, reference_batch=64, noise_scale=500, lr_fraction=0.3))),
        ],
    )
    def test_the_law_that_made_the_arms_fits_and_extrapolates(self, name: str, cost: Any) -> None:
        fits = {f.name: f for f in compare_laws(arms(cost), reference_batch=64, lr_rule="sqrt")}
        own = fits[name]
        assert own.success
        assert own.chisqr < 0.05
        assert own.aic == pytest.approx(own.chisqr + 2 * (len(own.params) + 1))
        assert abs(own.largest_out_error) < 0.02
        assert own.aic <= min(f.aic for f in fits.values()) + 2.01

    def test_parameters_come_back_with_errors(self) -> None:
        fits = {f.name: f for f in compare_laws(arms(lambda b: (b + 300) / 364), reference_batch=64, lr_rule="tuned")}
        assert fits["hyperbola"].params["noise_scale"] == pytest.approx(300, rel=0.01)
        assert 0 < fits["hyperbola"].stderr["noise_scale"] < 60

    def test_lowest_aic_first_and_a_table(self) -> None:
        fits = compare_laws(arms(lambda b: (b + 300) / 364), reference_batch=64, lr_rule="tuned")
        assert [f.aic for f in fits] == sorted(f.aic for f in fits)
        text = table(fits)
        assert len(text.splitlines()) == 6
        assert re.search(r"hyperbola .*noise_scale 300 \+-", text)
        assert "nothing to compare" in table([])

    def test_too_few_arms_are_said(self) -> None:
        two = {f.name: f for f in compare_laws(arms(lambda b: 1.0, (64, 128)), reference_batch=64, lr_rule="sqrt")}
        assert not two["drift"].success
        assert "one more batch would tell" in two["drift"].message
        assert math.isnan(two["power"].largest_out_error)
        assert compare_laws(arms(lambda b: 1.0, (64,)), reference_batch=64, lr_rule="sqrt") == []

    def test_arms_off_the_rule_are_left_out(self) -> None:
        odd = Seen(train_batch=128, learning_rate_ratio=4, low=13, high=13, error=0.02, off_rule=1.5)
        fits = compare_laws([*arms(lambda b: 1.0), odd], reference_batch=64, lr_rule="sqrt")
        assert fits[0].arms == 5
        assert fits[0].name == "constant"


@pytest.fixture(scope="module")
def fitted() -> Calibration:
    runs = sweep(noise_scale=2000, snr_shape=math.inf, lr_fraction=0.2)
    return calibrate(runs, plan(target={"score": TARGET}, gpu={"count": 8, "price": 2.0}), draws=200)


class TestResults:
    def test_carry_what_a_fit_owes(self, fitted: Calibration) -> None:
        assert fitted.success
        names = {"noise_scale", "snr_shape", "lr_fraction", "penalty_shape", "curvature_ratio", "responses_to_target"}
        assert names < fitted.draws.keys()
        limits = fitted.intervals(level=0.8)
        for name, value in fitted.params.items():
            assert limits[name][0] <= value <= limits[name][1]
            assert fitted.stderr[name] >= 0
        assert fitted.params["responses_to_target"] == pytest.approx(120e3, rel=0.05)
        assert fitted.responses is not None
        assert fitted.responses.run_spread == pytest.approx(0.03, rel=0.3)
        assert fitted.aic is not None
        assert {f.name for f in fitted.laws} == {"constant", "power", "hyperbola", "drift", "coordinate"}
        text = fitted.summary()
        assert all(word in text for word in ("noise_scale", "run_spread", "largest left out", "step time: measured"))

    def test_say_what_no_pilot_identifies_and_the_run_that_would(self) -> None:
        c = calibrate(None, plan(), draws=500)
        assert set(c.unmoved) == {"noise_scale", "snr_shape", "lr_fraction", "penalty_shape", "curvature_ratio"}
        assert "no pilot narrows the learning side" in c.message
        assert "twice the learning rate would tell" in c.message
        assert f"two chunks of each batch over some tens of updates at {B0}" in c.message
        assert c.aic is None
        given = calibrate(None, plan(learning={"lr_fraction": 0.2}), draws=500)
        assert "lr_fraction" not in given.unmoved

    def test_norms_narrow_the_noise_scale_beyond_its_prior(self) -> None:
        c = calibrate(read_logs(example_path("verl-sweep")), Plan(), target=0.55, draws=200)
        assert "noise_scale" not in c.unmoved
        assert c.message.startswith("pilots narrow noise_scale")


class TestFiles:
    def test_a_forecast_from_a_file_is_the_forecast(self, fitted: Calibration, tmp_path: Path) -> None:
        runs = sweep(noise_scale=2000, snr_shape=math.inf, lr_fraction=0.2)
        known = plan(target={"score": TARGET}, gpu={"count": 8, "price": 2.0})
        save_fit(fitted, tmp_path / "fit.json")
        read = load_fit(tmp_path / "fit.json")
        direct, again = predict(runs, plan=known, draws=200), predict(read)
        xr.testing.assert_equal(direct, again)
        for name in ("star", "effective_range", "gpus", "price", "target", "metric", "lr_rule", "calibrated_on"):
            assert direct.attrs[name] == again.attrs[name]
        # What stands beside it was measured, and a file holds no runs.
        assert again.attrs["measured"] is None

    def test_another_rule_is_as_unsure_of_its_arms_as_a_calibration_for_it(self) -> None:
        runs = read_logs(example_path("verl-sweep"))
        c = calibrate(runs, Plan(), target=0.55, draws=2000)

        def width(ds: xr.Dataset) -> NDArray[np.float64]:
            log_cost = np.log(ds["sample_cost_ratio"].sel(train_batch=[256, 512]).values)
            low, high = np.quantile(log_cost, [0.1, 0.9], axis=0)
            return np.asarray(high - low)

        later, direct = predict(c, lr_rule="fixed"), predict(runs, target=0.55, lr_rule="fixed")
        assert width(later) == pytest.approx(width(direct), rel=0.1)
        assert any("held its arms against the rule 'sqrt'" in w for w in later.attrs["warnings"])
        assert not any("held its arms" in w for ds in (direct, predict(c)) for w in ds.attrs["warnings"])

    @pytest.mark.parametrize("which", ["li2026", "specified", "prior"])
    def test_plans_come_back_too(self, which: str, tmp_path: Path) -> None:
        import batchsim

        paths = {
            "li2026": Path(batchsim.__path__[0]) / "data" / "examples" / "li2026-grpo.toml",
            "specified": DOCS / "pipeline_plan.toml",
        }
        known = read_plan(paths[which]) if which in paths else plan()
        c = calibrate(None, known, draws=60)
        save_fit(c, tmp_path / "fit.json")
        read = load_fit(tmp_path / "fit.json")
        xr.testing.assert_equal(predict(known, draws=60), predict(read))
        assert predict(read).attrs["what_if"] == predict(known, draws=60).attrs["what_if"]

    def test_hold_plain_json(self, fitted: Calibration) -> None:
        content = to_dict(fitted)
        assert json.loads(json.dumps(content, allow_nan=False)) == content
        assert (content["kind"], content["schema"]) == ("batchsim calibration", 1)

    def test_newer_foreign_and_broken_files_are_refused_with_the_reason(
        self, fitted: Calibration, tmp_path: Path
    ) -> None:
        good = to_dict(fitted)
        short = {"shape": [3], "values": [1.0, 2.0, 3.0]}
        for content, said in (
            ({**good, "schema": 2, "version": "9.9"}, r"newer batchsim \(9.9, schema 2\).*update batchsim"),
            ({**good, "schema": "1"}, "schema is '1'"),
            ({"schema": 1, "verb": "predict"}, "an answer of `batchsim predict`.*calibrate"),
            ([1, 2], "says kind 'batchsim calibration'"),
            ({k: v for k, v in good.items() if k != "seen"}, "lacks seen"),
            ({**good, "noise_scale": short}, "draws of different lengths"),
            ({**good, "noise_scale": 3}, "draws of different lengths"),
            ({**good, "recipe": {**good["recipe"], "prompts": -1}}, "does not hold a calibration|prompts"),
            ({**good, "plan": {"source": "", "sections": {"target": {"scor": 1}}}}, "unknown key 'scor'"),
            ({**good, "plan": 3}, "does not hold a calibration"),
        ):
            with pytest.raises(InputError, match=said):
                from_dict(content, source="fit.json")
        (tmp_path / "fit.json").write_text("{", encoding="utf-8")
        with pytest.raises(InputError, match="not JSON"):
            load_fit(tmp_path / "fit.json")
        with pytest.raises(InputError, match=r"cannot read the fit.*calibrate"):
            load_fit(tmp_path / "absent.json")

    def test_a_rule_that_is_a_function_cannot_be_written(self) -> None:
        c = calibrate(None, plan(), lr_rule=lambda x: x**0.4, draws=20)
        with pytest.raises(InputError, match="a file cannot hold one"):
            to_dict(c)

    def test_what_a_calibration_settles_is_refused_beside_it(self, fitted: Calibration) -> None:
        for options, said in (
            ({"target": 0.9}, "target 0.9 and a calibration for target 0.5"),
            ({"metric": "other"}, "metric other"),
            ({"plan": Plan()}, "a plan beside a calibration"),
            ({"pilot_batches": (512,)}, "pilots beside a calibration"),
        ):
            with pytest.raises(InputError, match=said):
                predict(fitted, **options)
        assert predict(fitted, target=TARGET).attrs["target"] == TARGET


class TestBadInput:
    def test_pilots_of_different_recipes_are_listed_and_refused(self) -> None:
        one, other = a_run(train_batch=B0, responses_to_target=1e5), a_run(train_batch=1024, responses_to_target=1.1e5)
        one.attrs["kl_coefficient"], other.attrs["kl_coefficient"] = 0.0, 0.01
        other.attrs["model"] = "base"
        said = r"different recipes: kl_coefficient is 0.0 \(run0\), 0.01 \(run1\); model is base .*--allow-mixed"
        for call in (calibrate, lambda t, p, **k: predict(t, plan=p, **k)):
            with pytest.raises(InputError, match=said):
                call(tree([one, other]), Plan(), target=TARGET, draws=20)
        c = calibrate(tree([one, other]), Plan(), target=TARGET, draws=20, allow_mixed=True)
        assert any("more than the batch changed" in w for w in c.warnings)

    def test_a_target_above_everything_seen_is_said(self) -> None:
        runs = tree([a_run(train_batch=b, responses_to_target=1e5) for b in (512, 1024)])
        c = calibrate(runs, Plan(), target=0.9, draws=20)
        assert any("0.9 lies above everything seen (best 0.75)" in w for w in c.warnings)
        assert c.responses_to_target is None

    def test_a_target_in_percent_is_refused_where_scores_are_shares(self) -> None:
        runs = tree([a_run(train_batch=512, responses_to_target=1e5)])
        with pytest.raises(InputError, match=r"target 50 lies above 1.*50 % is 0.5"):
            calibrate(runs, Plan(), target=50.0, draws=20)

    @pytest.mark.parametrize("name", ["noise_scale", "lr_fraction", "curvature_ratio", "penalty_shape"])
    def test_reversed_prior_bounds_are_refused(self, name: str) -> None:
        with pytest.raises(InputError, match=f"{name} .* is not an interval from low to high"):
            plan_from_dict({"learning": {name: [0.4, 0.2]}})

    def test_contradictory_ratios_are_refused(self) -> None:
        seen = {"prompts": 128, "lr_rule": "sqrt"}
        with pytest.raises(InputError, match=r"128 prompts under 'sqrt'.*\[0.5, 0.6\] and \[0.7, 0.8\]"):
            plan_from_dict({"learning": {"observed": [seen | {"updates_ratio": r} for r in ([0.5, 0.6], [0.7, 0.8])]}})
        plan_from_dict({"learning": {"observed": [seen | {"updates_ratio": r} for r in ([0.5, 0.7], [0.6, 0.8])]}})
        own = {"prompts": 64, "lr_rule": "sqrt", "updates_ratio": [0.5, 0.6]}
        with pytest.raises(InputError, match="the reference's own ratio is 1"):
            plan(learning={"observed": [own]})


class TestCommand:
    def run(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(list(arguments))
        printed = capsys.readouterr()
        return int(stop.value.code or 0), printed.out, printed.err

    def test_calibrate_and_predict_from_the_file(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        file = str(tmp_path / "fit.json")
        start = ("--example", "verl-sweep", "--target", "0.55", "--draws", "100")
        status, out, _ = self.run(capsys, "calibrate", *start, "-o", file)
        assert status == 0
        assert "largest left out" in out
        assert f"next: batchsim predict --fit {file}" in out
        _, direct, _ = self.run(capsys, "predict", *start, "--json")
        status, out, _ = self.run(capsys, "predict", "--fit", file, "--json")
        assert status == 0
        from_file, from_logs = json.loads(out), json.loads(direct)
        for name in ("batches", "star", "effective_range", "next_run", "critical_train_batch", "parameters"):
            if name != "next_run":
                assert from_file[name] == from_logs[name]
        status, out, _ = self.run(capsys, "predict", "--fit", file, "--batches", "128,256", "--gpus", "8")
        assert status in (0, 1)
        status, _, err = self.run(capsys, "predict", "--fit", file, "--pilot", "128", "--prompts", "3")
        assert status == 2
        assert "--pilot 128, --prompts beside --fit" in err

    def test_json_of_calibrate_is_plain_and_documented(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        status, out, _ = self.run(
            capsys, "calibrate", "--example", "verl-sweep", "--target", "0.55", "--draws", "100", "--json"
        )
        assert status == 0
        answer = json.loads(out)
        assert answer["schema"] == 1
        low, high = answer["parameters"]["noise_scale"]["interval"]
        assert low < answer["parameters"]["noise_scale"]["estimate"] < high
        assert answer["parameters"]["snr_shape"]["interval"][1] is None

    def test_a_fit_is_a_json_file(self, capsys: pytest.CaptureFixture[str]) -> None:
        status, _, err = self.run(capsys, "calibrate", "--example", "li2026-grpo", "-o", "fit.toml")
        assert status == 2
        assert "-o fit.json" in err
        status, _, err = self.run(capsys, "calibrate")
        assert status == 2
        assert "nothing to calibrate from" in err


def test_draws_of_a_file_are_those_of_the_calibration(fitted: Calibration) -> None:
    read = from_dict(json.loads(json.dumps(to_dict(fitted))))
    for name, values in fitted.draws.items():
        np.testing.assert_array_equal(values, read.draws[name])
    assert read.summary().splitlines()[:9] == fitted.summary().splitlines()[:9]
