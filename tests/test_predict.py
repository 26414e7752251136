"""The chain: predictions from pilots and plans, against measurements that it must not read and worlds of known law."""

from __future__ import annotations

import builtins
import csv
import io
import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_measure import Invented, invented, sweep, write_runs

from batchsim.calibrate import Calibration
from batchsim.cli import main
from batchsim.cli.answer import from_measurement, from_prediction
from batchsim.criterion import verdict
from batchsim.errors import InputError
from batchsim.logs import read_logs
from batchsim.measure import measure
from batchsim.plan import Plan, plan_from_dict, read_plan
from batchsim.predict import choose_pilots, compare, matching_arms, predict
from batchsim.predict.candidates import candidate_batches
from batchsim.recommend import recommend
from batchsim.specs.recipe import Recipe
from batchsim.time_to_target import effective_range, star
from batchsim.variables import VARIABLES

EXAMPLE = Path(sys.modules["batchsim"].__path__[0]) / "data" / "examples" / "li2026-grpo.toml"
PER_DRAW = ("sample_cost_ratio", "throughput_ratio", "time_ratio")


def plan_of(text: str) -> Plan:
    import tomllib

    return plan_from_dict(tomllib.loads(text), source="plan.toml")


BARE = """
[recipe]
prompts = 32
group_size = 8
learning_rate = 1e-6
lr_rule = "sqrt"
"""
STAGES = """
[engine]
gen_time_intercept = 100
gen_time_slope = 0.2
"""


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    printed = capsys.readouterr()
    assert printed.err == ""
    return int(stop.value.code or 0), printed.out


def quantiles(ds: xr.Dataset, name: str, batch: float) -> tuple[float, float, float]:
    tail = (1 - ds.attrs["level"]) / 2
    values = ds[name].sel(train_batch=batch).values
    low, middle, high = np.quantile(values, [tail, 0.5, 1 - tail], method="nearest")
    return float(low), float(middle), float(high)


@pytest.fixture(scope="module")
def example() -> xr.Dataset:
    return predict(read_plan(EXAMPLE))


@pytest.fixture(scope="module")
def mlperf_runs(shared: Path) -> xr.DataTree:
    return read_logs(shared / "mlperf_grpo")


@pytest.fixture(scope="module")
def mlperf(mlperf_runs: xr.DataTree) -> xr.Dataset:
    return predict(mlperf_runs, pilot_batches=(256, 512))


@pytest.fixture(scope="module")
def tiny_runs(shared: Path) -> xr.DataTree:
    return read_logs(shared / "tiny_grpo", chunks=8)


@pytest.fixture(scope="module")
def tiny(tiny_runs: xr.DataTree) -> xr.Dataset:
    return predict(tiny_runs, target=0.45, pilot_batches=(64, 128))


# -- MLPerf: two pilots and a held-out batch --------------------------------------------------------


def test_mlperf_step_time_of_the_held_out_batch(mlperf: xr.Dataset) -> None:
    low, middle, high = mlperf["step_time_law"].sel(train_batch=1024).values
    assert middle == pytest.approx(968.7, rel=0.05)
    assert low <= 968.7 <= high
    assert (high - low) / middle < 0.5
    (row,) = (r for r in compare(mlperf) if r["claim"] == "step_time_law" and r["train_batch"] == 1024)
    assert row["measured"] == pytest.approx(968.7, abs=0.1)
    assert row["covered"]
    assert row["held_out"]


def test_mlperf_says_at_least_wherever_the_noise_scale_is_open(mlperf: xr.Dataset) -> None:
    assert mlperf.attrs["at_least"]
    answer = from_prediction(mlperf)
    assert answer["at_least"]
    assert answer["critical_train_batch"][1] is None
    assert answer["critical_train_batch"][0] > 0
    text = "\n".join(answer["warnings"])
    assert "no agreed upper limit (at least" in text
    assert "r_N of larger batches is an upper bound" in text
    assert "at least what is printed" in text
    # A larger noise scale lowers r_N of every larger batch, to the floor and no further.
    larger = mlperf["train_batch"].values > 256
    assert (mlperf["sample_cost_ratio_floor"].values <= mlperf["sample_cost_ratio"].values)[:, larger].all()
    for row in answer["batches"]:
        if row["train_batch"] > 256:
            assert row["sample_cost_ratio"][0] <= quantiles(mlperf, "sample_cost_ratio", row["train_batch"])[0]


def test_mlperf_verdicts_hold_for_any_larger_noise_scale(mlperf: xr.Dataset) -> None:
    reference = mlperf["train_batch"].values == 256
    for name in ("sample_cost_ratio", "sample_cost_ratio_floor"):
        p = (mlperf["throughput_ratio"].values > mlperf[name].values).mean(axis=0)
        for p_wins, said, is_reference in zip(p, mlperf["verdict"].values, reference, strict=True):
            if not is_reference and said != "undecided":
                assert verdict(float(p_wins)) == said


def test_mlperf_absolute_times_do_not_exist(mlperf: xr.Dataset) -> None:
    assert np.isnan(mlperf["time_to_target"].values).all()
    assert np.isnan(mlperf["responses_to_target"].values).all()
    assert np.isfinite(mlperf["throughput"].values).all()
    assert "neither N* nor T of the reference is known" in "\n".join(mlperf.attrs["warnings"])


def test_the_answer_names_the_target_that_was_used(mlperf: xr.Dataset) -> None:
    # The logs state it themselves: eval_accuracy >= .69.
    answer = from_prediction(mlperf)
    assert answer["target"] == 0.69
    assert answer["metric"] == "eval_accuracy"


def test_mlperf_table_says_at_least(capsys: pytest.CaptureFixture[str], shared: Path) -> None:
    status, out = run(capsys, "predict", str(shared / "mlperf_grpo"), "--pilot", "256,512")
    assert status == 0
    assert re.search(r"Effective range: B = 1024 to at least \d+; star", out)
    assert re.search(r"Critical training batch \(N\* up 10 %\): >= \d+", out)
    assert "held out" in out


# -- tiny_grpo: two pilots and five held-out batches ------------------------------------------------


def test_tiny_prediction_stands_beside_every_held_out_batch(tiny: xr.Dataset) -> None:
    rows = compare(tiny)
    assert tiny.attrs["calibrated_on"] == [64, 128]
    claims = {"time_ratio", "sample_cost_ratio", "throughput_ratio", "step_time_law"}
    for b in (128, 256, 512, 1024, 2048, 4096):
        assert {r["claim"] for r in rows if r["train_batch"] == b} == claims
    assert {r["train_batch"] for r in rows if not r["held_out"]} == {128}
    for r in rows:
        assert r["error"] == pytest.approx(r["predicted"] / r["measured"] - 1)
        low, high = r["interval"]
        assert r["covered"] == (low <= r["measured"] <= high)
        assert low <= r["predicted"] <= high


def test_tiny_measurements_beside_it_are_those_of_measure(tiny: xr.Dataset, tiny_runs: xr.DataTree) -> None:
    arms = measure(tiny_runs, target=0.45)["arms"].to_dataset()
    matching = matching_arms(tiny)
    assert matching is not None
    assert set(matching["lr_rule"].values.tolist()) == {"reference", "sqrt"}
    assert set(matching["group_size"].values.tolist()) == {8}
    measured = {r["train_batch"]: r["measured"] for r in compare(tiny) if r["claim"] == "sample_cost_ratio"}
    for i in range(arms.sizes["arm"]):
        arm = arms.isel(arm=i)
        if str(arm["lr_rule"].values) == "sqrt" and float(arm["group_size"]) == 8:
            assert measured[float(arm["train_batch"])] == float(arm["sample_cost_ratio"].sel(bound="estimate"))


def test_measured_pilots_are_reproduced(tiny_runs: xr.DataTree) -> None:
    """A forecast of a batch that was measured under the rule is that measurement, within its own error."""
    ds = predict(tiny_runs, target=0.45)
    rows = [r for r in compare(ds) if r["claim"] == "sample_cost_ratio"]
    assert len(rows) == 6
    for r in rows:
        # The law bends towards its own value by no more than the arm's error allows.
        assert r["predicted"] == pytest.approx(r["measured"], rel=0.06)
        assert r["covered"]


@pytest.mark.parametrize("miss", [0.85, 1.3])
def test_forecasts_go_on_from_what_was_measured(tmp_path: Path, miss: float) -> None:
    """N* of every arm but the reference off the law by a factor: forecasts pass through it and keep it beyond."""
    truth = world(noise=2000.0)
    bent = [
        replace(r, responses_to_target=r.responses_to_target * miss, steps=math.ceil(r.steps * max(miss, 1)))
        if r.prompts > 32
        else r
        for r in truth
    ]
    plain, moved = (
        predict(read_logs(write_runs(tmp_path / name, *runs), chunks=8), target=0.5, pilot_batches=(256, 512))
        for name, runs in (("plain", truth), ("moved", bent))
    )
    for b in (512, 1024, 2048):
        ratio = quantiles(moved, "sample_cost_ratio", b)[1] / quantiles(plain, "sample_cost_ratio", b)[1]
        assert ratio == pytest.approx(miss, rel=0.08), b
    measured = {r["train_batch"]: r["measured"] for r in compare(moved) if r["claim"] == "sample_cost_ratio"}
    assert quantiles(moved, "sample_cost_ratio", 512)[1] == pytest.approx(measured[512], rel=0.02)


def test_a_policy_that_learns_is_reproduced_and_covered(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The world of docs/evidence.md, whose law nobody wrote down: pilots at 64 and 256, held out at 1,024."""
    file = str(tmp_path / "runs.nc")
    assert run(capsys, *f"simulate grpo --prompts 8,32,128 --seeds 3 --out {file}".split())[0] == 0
    _, out = run(capsys, "predict", file, "--pilot", "64,256", "--json")
    fitted, held_out = (r for r in json.loads(out)["compared"] if r["claim"] == "sample_cost_ratio")
    assert (fitted["train_batch"], held_out["train_batch"]) == (256, 1024)
    assert not fitted["held_out"]
    assert fitted["predicted"] == pytest.approx(fitted["measured"], rel=0.01)
    assert fitted["covered"]
    assert held_out["held_out"]
    assert held_out["covered"]
    assert abs(held_out["error"]) < 0.2


def test_tiny_accuracy_of_today(tiny: xr.Dataset) -> None:
    held_out = [r for r in compare(tiny) if r["held_out"] and r["claim"] == "sample_cost_ratio"]
    assert sum(r["covered"] for r in held_out) >= 4
    assert all(abs(r["error"]) < 0.25 for r in held_out)
    assert tiny.attrs["star"] in (128, 256)


def test_measurements_are_relative_to_the_reference_of_the_prediction(tmp_path: Path) -> None:
    """A pilot at B = 512 makes 512 the reference, whatever the smallest measured batch is."""
    ds = predict(invented(tmp_path, *sweep()), target=0.5, pilot_batches=(512,), batches=(128, 256, 512))
    assert ds.attrs["reference_batch"] == 512
    truth = {"throughput_ratio": (128 / 10) / (512 / 22), "sample_cost_ratio": 1 / 1.6}
    for row in compare(ds):
        if row["train_batch"] == 128 and row["claim"] in truth:
            assert row["measured"] == pytest.approx(truth[row["claim"]], rel=0.1)
    arms = matching_arms(ds)
    if arms is not None and 512 in arms["train_batch"].values:
        at = arms.isel(arm=int(np.flatnonzero(arms["train_batch"].values == 512)[0]))
        assert float(at["time_ratio"].sel(bound="estimate")) == pytest.approx(1)


def test_runs_at_another_rate_are_no_measurement_of_this_recipe(tmp_path: Path) -> None:
    """The plan predicts for five times the rate of the runs: their N* is another recipe's."""
    plan = plan_of(BARE.replace("prompts = 32", "prompts = 16").replace("1e-6", "5e-6"))
    ds = predict(invented(tmp_path, *sweep()), plan=plan, target=0.5)
    assert ds["learning_rate"].sel(train_batch=256) == pytest.approx(5e-6 * math.sqrt(2))
    assert not {r["claim"] for r in compare(ds)} & {"sample_cost_ratio", "time_ratio"}


def test_pilots_of_unknown_group_size_count(shared: Path) -> None:
    """PPO has no groups: N* of its pilots still anchors the absolute answers and informs r_N."""
    ds = predict(read_logs(shared / "tiny_ppo"), target=0.45, pilot_batches=(64, 128, 256))
    low, _, high = quantiles(ds, "responses_to_target", 64)
    assert low < 20_480 < high
    assert np.isfinite(ds["time_to_target"].sel(train_batch=64).values).all()
    assert ds.attrs["sources"]["snr_shape"] == "prior and pilots"


def test_held_out_batches_never_touch_the_draws(tiny: xr.Dataset, tiny_runs: xr.DataTree) -> None:
    pilots = {n: d.to_dataset() for n, d in tiny_runs.children.items() if d.attrs["train_batch"] in (64, 128)}
    alone = xr.DataTree.from_dict(pilots)
    alone.attrs = dict(tiny_runs.attrs)
    xr.testing.assert_identical(predict(alone, target=0.45, pilot_batches=(64, 128)).drop_attrs(), tiny.drop_attrs())
    xr.testing.assert_identical(predict(alone, target=0.45).drop_attrs(), tiny.drop_attrs())


def test_spoiling_held_out_runs_changes_nothing(tmp_path: Path) -> None:
    good = sweep()
    spoilt = [replace(r, responses_to_target=9e5, step_seconds=900.0) if r.prompts == 64 else r for r in good]
    one, other = (
        predict(invented(tmp_path / name, *runs), target=0.5, pilot_batches=(128, 256))
        for name, runs in (("good", good), ("spoilt", spoilt))
    )
    xr.testing.assert_identical(one.drop_attrs(), other.drop_attrs())
    assert one.attrs["star"] == other.attrs["star"]
    assert one.attrs["effective_range"] == other.attrs["effective_range"]


def test_a_pilot_that_was_not_measured_is_refused(mlperf_runs: xr.DataTree) -> None:
    with pytest.raises(InputError, match="no run has train batch 300; measured: 256, 512, 1024"):
        predict(mlperf_runs, pilot_batches=(256, 300))


# -- the paper's example ----------------------------------------------------------------------------


def test_example_holds_no_pilot_beyond_256_prompts() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    observed = re.split(r"\[\[\w+\.observed\]\]", text)[1:]
    assert len(observed) == 3
    for part in observed:
        section = part.split("\n[")[0]
        assert [int(n) for n in re.findall(r"^prompts\s*=\s*(\d+)", section, re.M)] == [256]
    plan = read_plan(EXAMPLE)
    assert plan.recipe is not None
    assert plan.recipe.prompts == 128
    assert {o.prompts for o in plan.learning.observed} == {o.prompts for o in plan.engine.observed} == {256}
    assert plan.logs.paths == ()


def test_example_never_reads_the_measured_rows(example: xr.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def refuse(*arguments: Any, **_: Any) -> Iterator[Any]:
        raise AssertionError(f"a table was read: {arguments}")

    true_open, true_io_open = builtins.open, io.open

    def spy(file: Any, *arguments: Any, **keywords: Any) -> Any:
        opened.append(str(file))
        return true_open(file, *arguments, **keywords)

    def spy_io(file: Any, *arguments: Any, **keywords: Any) -> Any:
        opened.append(str(file))
        return true_io_open(file, *arguments, **keywords)

    monkeypatch.setattr(csv, "reader", refuse)
    monkeypatch.setattr(csv, "DictReader", refuse)
    monkeypatch.setattr(builtins, "open", spy)
    monkeypatch.setattr(io, "open", spy_io)
    ds = predict(read_plan(EXAMPLE))
    assert any(name.endswith("li2026-grpo.toml") for name in opened)
    assert not [name for name in opened if name.endswith(".csv")]
    xr.testing.assert_identical(ds, example)


def test_what_stands_beside_the_example_does_not_move_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out = run(capsys, "predict", "--example", "li2026-grpo", "--json")
    shown = json.loads(out)
    monkeypatch.setattr(sys.modules["batchsim.cli.predict"], "_published", lambda *_: {})
    _, out = run(capsys, "predict", "--example", "li2026-grpo", "--json")
    other = json.loads(out)
    assert len(shown.pop("compared")) == 10
    assert other.pop("compared") == []
    assert shown == other


PUBLISHED = {4096: 0.74, 8192: 0.71, 16384: 1.23, 32768: 1.18}


def test_example_beside_the_published_times(capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(capsys, "predict", "--example", "li2026-grpo", "--json")
    assert status == 0
    rows = {r["train_batch"]: r for r in json.loads(out)["compared"] if r["claim"] == "time_ratio"}
    assert {b: r["measured"] for b, r in rows.items()} == PUBLISHED
    assert all(r["held_out"] for r in rows.values())
    # What is true today: the plateau of the paper's runs at P = 1024 is missed (from .735, and .71 was measured; before
    # arms shared the law's error it was .708, the interval's very edge), the others are inside 80 %.
    assert {b: r["covered"] for b, r in rows.items()} == {4096: True, 8192: False, 16384: True, 32768: True}
    for b, r in rows.items():
        low, high = r["interval"]
        assert r["covered"] == (low <= PUBLISHED[b] <= high)


def test_example_recommends_within_the_paper(example: xr.Dataset) -> None:
    # Figure 10: P = 256 to 1024 (B = 2048 to 8192) are faster than P = 128, P >= 2048 slower.
    assert example.attrs["reference_batch"] == 1024
    assert 2048 <= example.attrs["star"] <= 8192
    low, high = example.attrs["effective_range"]
    assert 1024 < low <= high <= 8192
    p_wins = example["p_wins"].values[1:]
    assert (np.diff(p_wins) < 0).all()
    assert p_wins[0] > 0.8
    assert p_wins[-1] < 0.2
    assert example["learning_rate"].values == pytest.approx(1e-6 * np.sqrt(np.array([1, 2, 4, 8, 16, 32])))
    reference = example["time_to_target"].sel(train_batch=1024).values
    assert reference == pytest.approx(np.full(reference.size, 11.9 * 3600))


# -- identities that hold in every draw -------------------------------------------------------------


@pytest.mark.parametrize("which", ["example", "mlperf", "tiny"])
def test_identities_hold_draw_by_draw(which: str, request: pytest.FixtureRequest) -> None:
    ds: xr.Dataset = request.getfixturevalue(which)
    r_n, r_q, ratio = (ds[name].values for name in PER_DRAW)
    away = ds["train_batch"].values != ds.attrs["reference_batch"]
    assert ((r_q > r_n) == (ratio < 1))[:, away].all()
    assert ratio[np.isfinite(ratio)] == pytest.approx((r_n / r_q)[np.isfinite(ratio)])
    for name in PER_DRAW:
        at_reference = ds[name].sel(train_batch=ds.attrs["reference_batch"]).values
        assert at_reference == pytest.approx(np.ones(at_reference.size), rel=1e-12)
    p = (r_q > r_n).mean(axis=0)
    assert ds["p_wins"].values[away] == pytest.approx(p[away])
    assert np.isnan(ds["p_wins"].values[~away]).all()
    if np.isfinite(ds["time_to_target"].values).any():
        t = ds["time_to_target"]
        relative = (t / t.sel(train_batch=ds.attrs["reference_batch"])).values
        good = np.isfinite(t.values)
        assert relative[good] == pytest.approx(ratio[good])


@pytest.mark.parametrize("which", ["example", "mlperf", "tiny"])
def test_throughput_grows_and_stays_below_the_affine_law(which: str, request: pytest.FixtureRequest) -> None:
    ds: xr.Dataset = request.getfixturevalue(which)
    r_q = ds["throughput_ratio"].values
    assert (np.diff(r_q, axis=1) > -1e-12).all()
    growth = ds["train_batch"].values / ds.attrs["reference_batch"]
    assert (r_q[:, growth > 1] < growth[growth > 1]).all()


@pytest.mark.parametrize("which", ["example", "mlperf", "tiny"])
def test_star_and_range_are_candidates_by_their_definitions(which: str, request: pytest.FixtureRequest) -> None:
    ds: xr.Dataset = request.getfixturevalue(which)
    batches, ratio = ds["train_batch"].values, ds["time_ratio"].values
    low, high = ds.attrs["effective_range"]
    assert {low, high, ds.attrs["star"]} <= set(batches.tolist())
    near = np.mean(ratio <= 1.05 * ratio.min(axis=1, keepdims=True), axis=0) >= 0.5
    inside = (batches >= low) & (batches <= high)
    assert near[inside].all()
    beyond = [i for i in (np.flatnonzero(inside)[0] - 1, np.flatnonzero(inside)[-1] + 1) if 0 <= i < batches.size]
    assert not near[beyond].any()
    median = np.median(ratio, axis=0)
    assert ds.attrs["star"] == batches[np.flatnonzero(inside & (median <= 1.05 * median.min()))[0]]


@pytest.mark.parametrize("which", ["example", "mlperf", "tiny"])
def test_every_variable_carries_the_vocabulary(which: str, request: pytest.FixtureRequest) -> None:
    ds: xr.Dataset = request.getfixturevalue(which)
    for name in ds.variables:
        known = VARIABLES[str(name)]
        assert ds[name].attrs == {"symbol": known.symbol, "units": known.unit, "long_name": known.long_name}


@settings(max_examples=60)
@given(seed=st.integers(0, 2**31), batches=st.integers(1, 9), spread=st.floats(0.01, 2))
def test_range_is_contiguous_and_holds_the_most_probable_batch(seed: int, batches: int, spread: float) -> None:
    ratio = np.exp(spread * np.random.default_rng(seed).standard_normal((50, batches)))
    chosen, best = effective_range(ratio), star(ratio)
    assert (chosen is None) == (best is None)
    near = (ratio <= 1.05 * ratio.min(axis=1, keepdims=True)).mean(axis=0)
    assert (chosen is None) == (near.max() < 0.5)
    if chosen is not None:
        assert (near[chosen[0] : chosen[1] + 1] >= 0.5).all()
        assert chosen[0] <= int(np.argmax(near)) <= chosen[1]
    answer = recommend(ratio)
    assert (answer.effective_range, answer.star) == (chosen, best)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), shared=st.floats(0, 2), own=st.floats(0.01, 0.8))
def test_a_measurement_is_worth_no_more_than_knowing_everything(seed: int, shared: float, own: float) -> None:
    """min E - E min, the expected value of perfect information, bounds what one more run can bring."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 9))
    tilt = shared * rng.standard_normal((400, 1)) * np.linspace(-1, 1, n)
    ratio = np.exp(tilt + own * rng.standard_normal((400, n)))
    proposed = recommend(ratio).next_run
    capped = np.minimum(ratio, 20.0)
    if proposed is not None:
        assert 0 < proposed.gain <= capped.mean(axis=0).min() - capped.min(axis=1).mean() + 1e-9


def test_next_run_from_one_pilot_is_worth_no_more_than_knowing_everything(tmp_path: Path) -> None:
    ds = predict(invented(tmp_path, *sweep()), target=0.5, pilot_batches=(512,))
    ratio = np.minimum(ds["time_ratio"].values, 20.0)
    proposed = ds.attrs["next_run"]
    assert proposed is None or proposed["gain"] <= ratio.mean(axis=0).min() - ratio.min(axis=1).mean()


def test_next_run_is_not_one_that_was_measured(tiny_runs: xr.DataTree, example: xr.Dataset) -> None:
    everything = predict(tiny_runs, target=0.45)
    proposed = everything.attrs["next_run"]
    assert proposed is None or proposed["train_batch"] not in (64, 128, 256, 512, 1024, 2048, 4096)
    assert example.attrs["next_run"]["train_batch"] in example["train_batch"].values
    assert 0 < example.attrs["next_run"]["gain"] < 1


def test_next_run_may_be_one_that_was_held_out(tmp_path: Path) -> None:
    runs = invented(tmp_path, *sweep())
    held_out = predict(runs, target=0.5, pilot_batches=(128, 256), batches=(128, 256, 512))
    pilots = choose_pilots(runs, (128, 256))
    assert pilots is not None
    alone = predict(pilots, target=0.5, batches=(128, 256, 512))
    assert held_out.attrs["next_run"] == alone.attrs["next_run"]
    assert held_out.attrs["next_run"]["train_batch"] == 512


# -- absolute answers -------------------------------------------------------------------------------


def test_absolute_answers_are_null_without_a_target_and_present_with_it(tmp_path: Path) -> None:
    tree = invented(tmp_path, *sweep())
    without, present = predict(tree), predict(tree, target=0.5)
    for name in ("responses_to_target", "time_to_target"):
        assert np.isnan(without[name].values).all()
        assert np.isfinite(present[name].sel(train_batch=128).values).all()
        assert all(row[name] is None for row in from_prediction(without)["batches"])
        assert all(row[name] is not None for row in from_prediction(present)["batches"])
    assert np.isfinite(without["throughput_ratio"].values).all()
    low, _, high = quantiles(present, "responses_to_target", 128)
    assert low < 4000 < high
    low, _, high = quantiles(present, "time_to_target", 128)
    assert low < 4000 / 12.8 < high


def test_given_responses_to_target_need_a_speed_for_a_time() -> None:
    known = predict(plan_of(BARE + STAGES + "[target]\nresponses_to_target = 40000\n"))
    reference = known.sel(train_batch=256)
    assert (reference["responses_to_target"] == 40000).all()
    # 40,000 responses in steps of 256 that take 100 + .2 * 256 seconds.
    assert reference["time_to_target"].values == pytest.approx(np.full(2000, 40000 / 256 * (100 + 0.2 * 256)))
    unknown = predict(plan_of(BARE + "[target]\nresponses_to_target = 40000\n"))
    assert np.isnan(unknown["time_to_target"].values).all()
    assert "seconds are not" in "\n".join(unknown.attrs["warnings"])


def test_given_time_to_target_scales_every_batch() -> None:
    ds = predict(plan_of(BARE + '[target]\ntime_to_target = "10 h"\n'))
    good = np.isfinite(ds["time_ratio"].values)
    assert ds["time_to_target"].values[good] == pytest.approx(36000 * ds["time_ratio"].values[good])
    assert np.isnan(ds["responses_to_target"].values).all()


def test_gpu_hours_and_cost() -> None:
    plan = read_plan(EXAMPLE)
    ds = predict(plan, gpus=64, price=2.5)
    good = np.isfinite(ds["time_to_target"].values)
    hours = ds["gpu_hours"].values
    assert hours[good] == pytest.approx(ds["time_to_target"].values[good] * 64 / 3600)
    assert ds["cost"].values[good] == pytest.approx(2.5 * hours[good])
    assert hours[:, 0] == pytest.approx(np.full(2000, 11.9 * 64))
    assert "gpu_hours" not in predict(plan)
    assert "cost" not in predict(plan, gpus=64)
    row = from_prediction(ds)["batches"][0]
    assert row["gpu_hours"] == pytest.approx([11.9 * 64] * 2)
    assert row["cost"] == pytest.approx([11.9 * 64 * 2.5] * 2)
    from_plan = predict(plan_of(BARE + '[target]\ntime_to_target = "1 h"\n[gpu]\ncount = 8\nprice = 3\n'))
    assert from_plan["cost"].sel(train_batch=256).values == pytest.approx(np.full(2000, 24.0))


def test_a_free_gpu_costs_nothing_even_where_training_diverges() -> None:
    ds = predict(plan_of(BARE + '[target]\ntime_to_target = "1 h"\n'), lr_rule="linear", gpus=1, price=0.0)
    assert np.isposinf(ds["time_ratio"].values).any()
    assert (ds["cost"].values[np.isfinite(ds["time_ratio"].values)] == 0).all()


# -- draws, seeds, candidates, rules ----------------------------------------------------------------


def test_the_seed_settles_every_draw() -> None:
    plan = read_plan(EXAMPLE)
    one, again, other = (predict(plan, seed=s, draws=200) for s in (5, 5, 6))
    xr.testing.assert_identical(one, again)
    assert not one["time_ratio"].equals(other["time_ratio"])
    assert one.sizes["draw"] == 200


@pytest.mark.parametrize("draws", [-5, 0, 1, 9, 10**6])
def test_draws_outside_their_bounds_are_refused(draws: int) -> None:
    with pytest.raises(InputError, match=f"draws is {draws}, outside"):
        predict(read_plan(EXAMPLE), draws=draws)


def test_default_candidates_are_octaves_of_whole_prompts() -> None:
    ds = predict(plan_of(BARE), draws=50)
    assert ds["train_batch"].values.tolist() == [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]
    assert ds["prompts"].values.tolist() == [8, 16, 32, 64, 128, 256, 512, 1024, 2048]
    odd = predict(plan_of(BARE.replace("prompts = 32", "prompts = 6")), draws=50)
    assert odd["prompts"].values.tolist() == [3, 6, 12, 24, 48, 96, 192, 384]
    several = predict(plan_of(BARE + "updates_per_rollout = 4\n"), draws=50)
    assert several.attrs["reference_batch"] == 64
    assert (several["rollout_batch"] == 4 * several["train_batch"]).all()
    assert (several["prompts"] % 1 == 0).all()


def test_default_candidates_are_whole_responses() -> None:
    # 16 prompts in 64 updates are 2 responses each; at 4 prompts an update would take half of one.
    recipe = Recipe(prompts=16, group_size=8, updates_per_rollout=64)
    assert candidate_batches(recipe, ()).tolist() == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]
    assert candidate_batches(Recipe(prompts=3, updates_per_rollout=3, epochs=2), ()).tolist()[:2] == [2.0, 4.0]


def test_candidates_that_are_stated_are_kept_and_sorted() -> None:
    ds = predict(plan_of(BARE), batches=(1024, 256, 264, 1024), draws=50)
    assert ds["train_batch"].values.tolist() == [256, 264, 1024]
    planned = predict(plan_of(BARE + "batches = [512, 256]\n"), draws=50)
    assert planned["train_batch"].values.tolist() == [256, 512]


@pytest.mark.parametrize(
    ("batch", "closest"), [(100, 96), (3, 8), (0, 8), (-5, 8), (1023, 1024), (math.inf, 8), (math.nan, 8)]
)
def test_candidates_that_are_not_whole_prompts_name_the_nearest(batch: float, closest: int) -> None:
    with pytest.raises(InputError, match=rf"the (nearest|smallest) is {closest}\b"):
        predict(plan_of(BARE), batches=(256, batch))


def test_too_many_candidates_are_refused() -> None:
    with pytest.raises(InputError, match="65 candidate batches, and 64 are the most"):
        predict(plan_of(BARE), batches=[8 * i for i in range(1, 66)])


def test_the_rule_sets_the_rates() -> None:
    x = np.array([0.25, 1, 4])
    for rule, exponent in {"fixed": 0.0, "sqrt": 0.5, "linear": 1.0}.items():
        ds = predict(plan_of(BARE), lr_rule=rule, batches=(64, 256, 1024), draws=50)
        assert ds["learning_rate"].values == pytest.approx(1e-6 * x**exponent)
        assert ds.attrs["lr_rule"] == rule
    capped = predict(plan_of(BARE + "max_learning_rate = 1.5e-6\n"), batches=(64, 256, 1024), draws=50)
    assert capped["learning_rate"].values == pytest.approx([0.5e-6, 1e-6, 1.5e-6])
    mine = predict(plan_of(BARE), lr_rule=lambda b, _b0=256: (b / 256) ** 0 * 1.0, batches=(256, 1024), draws=50)
    assert mine["learning_rate"].values == pytest.approx([1e-6, 1e-6])
    with pytest.raises(InputError, match="unknown learning-rate rule"):
        predict(plan_of(BARE), lr_rule="nonsense")


def test_tuned_rates_cost_no_more_than_any_rule() -> None:
    plan = plan_of(BARE + "[learning]\nnoise_scale = 2000\nsnr_shape = 'drift'\nlr_fraction = 0.3\n")
    costs = {r: predict(plan, lr_rule=r, draws=50)["sample_cost_ratio"] for r in ("tuned", "sqrt", "fixed", "linear")}
    away = costs["tuned"]["train_batch"].values >= 256
    for rule in ("sqrt", "fixed", "linear"):
        # The law's error at a batch is one draw for every rule.
        assert (costs["tuned"].values <= costs[rule].values * (1 + 1e-9))[:, away].all()


@pytest.mark.parametrize("level", [0.0, 1.0, 2.0, math.nan])
def test_a_level_outside_its_bounds_is_refused(level: float) -> None:
    with pytest.raises(InputError, match=r"outside \(0, 1\)"):
        predict(plan_of(BARE), level=level)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(levels=st.tuples(st.floats(0.05, 0.99), st.floats(0.05, 0.99)))
def test_a_higher_level_never_narrows_an_interval(example: xr.Dataset, levels: tuple[float, float]) -> None:
    narrow, wide = (from_prediction(example.assign_attrs(level=level)) for level in sorted(levels))
    for one, other in zip(narrow["batches"], wide["batches"], strict=True):
        for name in PER_DRAW:
            assert other[name][0] <= one[name][0]
            assert other[name][1] is None or other[name][1] >= one[name][1]


# -- nothing to recommend ---------------------------------------------------------------------------

DIVERGING = (
    BARE.replace('"sqrt"', '"linear"')
    + "batches = [16384, 32768]\n[learning]\nnoise_scale = 1e6\nsnr_shape = 'drift'\n"
    + "lr_fraction = 0.9\npenalty_shape = -1\n"
)


def test_no_star_where_every_candidate_diverges(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    ds = predict(plan_of(DIVERGING))
    assert np.isposinf(ds["time_ratio"].values).all()
    assert ds.attrs["star"] is None
    assert ds.attrs["effective_range"] is None
    assert set(ds["verdict"].values.tolist()) == {"loses"}
    path = tmp_path / "plan.toml"
    path.write_text(DIVERGING, encoding="utf-8")
    status, out = run(capsys, "predict", str(path), "--json")
    assert status == 1
    answer = json.loads(out)
    assert answer["star"] is None
    assert answer["effective_range"] is None
    assert answer["batches"][0]["time_ratio"] in (None, [None, None])
    status, out = run(capsys, "predict", str(path))
    assert status == 1
    assert "nothing can be recommended" in out


def test_no_star_where_no_batch_is_probably_near_the_best(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = sys.modules["batchsim.recommend.next_run"]
    monkeypatch.setattr(module, "effective_range", lambda _: None)
    monkeypatch.setattr(module, "star", lambda _: None)
    status, out = run(capsys, "predict", "--example", "li2026-grpo")
    assert status == 1
    assert "nothing can be recommended" in out
    assert "T/T0" in out


# -- JSON -------------------------------------------------------------------------------------------

TOP = {
    "schema",
    "target",
    "metric",
    "level",
    "reference_batch",
    "batches",
    "effective_range",
    "star",
    "critical_train_batch",
    "critical_gen_batch",
    "warnings",
}
PER_BATCH = {
    "train_batch",
    "rollout_batch",
    "prompts",
    "group_size",
    "learning_rate",
    "lr_rule",
    "responses_to_target",
    "time_to_target",
    "time_ratio",
    "sample_cost_ratio",
    "throughput",
    "throughput_ratio",
    "throughput_ratio_se",
    "p_wins",
    "verdict",
    "binding_limit",
}
PER_RUN = {
    "path",
    "framework",
    "train_batch",
    "responses_to_target",
    "censoring",
    "throughput",
    "throughput_with_evaluation",
    "time_to_target",
    "time_with_evaluation",
    "warnings",
}
INTERVALS = ("responses_to_target", "time_to_target", "time_ratio", "sample_cost_ratio")


def check_schema(answer: dict[str, Any]) -> None:
    assert answer["schema"] == 1
    assert answer.keys() >= TOP
    for row in answer["batches"]:
        assert row.keys() >= PER_BATCH
        for name in INTERVALS:
            value = row[name]
            assert value is None or (isinstance(value, list) and len(value) == 2)
            if value is not None and None not in value:
                assert value[0] <= value[1]
    assert all(isinstance(w, str) for w in answer["warnings"])
    text = json.dumps(answer, allow_nan=False)
    assert json.loads(text) == answer


@pytest.mark.parametrize("which", ["example", "mlperf", "tiny"])
def test_json_of_a_prediction(which: str, request: pytest.FixtureRequest) -> None:
    ds: xr.Dataset = request.getfixturevalue(which)
    check_schema(from_prediction(ds, compare(ds)))


def test_json_of_a_measurement(mlperf_runs: xr.DataTree, tiny_runs: xr.DataTree) -> None:
    for tree, target in ((mlperf_runs, None), (tiny_runs, 0.45), (tiny_runs, 0.99), (tiny_runs, None)):
        answer = from_measurement(measure(tree, target=target))
        check_schema(answer)
        assert len(answer["runs"]) == len(tree.children)
        for run in answer["runs"]:
            assert run.keys() >= PER_RUN
            assert run["censoring"] in ("left", "interval", "right", None)
            if run["censoring"] == "left":
                assert run["responses_to_target"][0] == 0
            if run["censoring"] == "right":
                assert run["responses_to_target"][1] is None


def test_json_numbers_are_the_quantiles_of_the_draws(example: xr.Dataset) -> None:
    for row in from_prediction(example)["batches"]:
        for name in PER_DRAW:
            low, middle, high = quantiles(example, name, row["train_batch"])
            assert row[name] == pytest.approx([low, high])
            assert row["estimates"][name] == pytest.approx(middle)


# -- worlds whose law is known ----------------------------------------------------------------------

WORLDS = {
    "noise 500": {"noise": 500.0},
    "noise 2000": {"noise": 2000.0},
    "noise 20000": {"noise": 20000.0},
    "slow start": {"noise": 2000.0, "tau0": 400.0},
    "no start": {"noise": 2000.0, "tau0": 10.0},
}
BATCHES = (256, 512, 1024, 2048, 4096)
N0, FRACTION = 40_000.0, 0.1


def true_cost(batch: float, noise: float) -> float:
    """r_N from 256 under the sqrt rule, drift family: slopes and rates written out once more."""
    slope = [1 / math.sqrt(1 + noise / b) for b in (256, batch)]
    x = batch / 256
    s, rk = math.sqrt(x), slope[0] / slope[1]
    return x * (rk / s) * (2 - FRACTION) / (2 - FRACTION * s * rk)


def world(*, noise: float, tau0: float = 100.0, tau1: float = 0.2) -> list[Invented]:
    """Two nearly equal runs at each batch of a world that follows the law exactly."""
    return [
        Invented(
            run=f"b{b}_s{j}",
            prompts=b // 8,
            responses_to_target=N0 * true_cost(b, noise) * math.exp(0.01 * (2 * j - 1)),
            step_seconds=(tau0 + tau1 * b) * math.exp(0.01 * (2 * j - 1)),
            learning_rate=1e-6 * math.sqrt(b / 256),
            steps=math.ceil(1.1 * N0 * true_cost(b, noise) / b) + 2,
            sq_norms=(1 + noise / (b / 8), 1 + noise / b),
        )
        for b in BATCHES
        for j in (0, 1)
    ]


@pytest.fixture(scope="module", params=WORLDS)
def known(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, float], xr.DataTree]:
    truth = {"tau0": 100.0, "tau1": 0.2, **WORLDS[request.param]}
    folder = tmp_path_factory.mktemp("world") / "runs"
    return truth, read_logs(write_runs(folder, *world(**truth)), chunks=8)


def test_known_worlds_are_covered_from_two_pilots(known: tuple[dict[str, float], xr.DataTree]) -> None:
    truth, tree = known
    ds = predict(tree, target=0.5, pilot_batches=(256, 512), level=0.9)
    for b in (1024, 2048, 4096):
        r_n = true_cost(b, truth["noise"])
        seconds = truth["tau0"] + truth["tau1"] * b
        r_q = b / 256 * (truth["tau0"] + truth["tau1"] * 256) / seconds
        for name, value in {"sample_cost_ratio": r_n, "throughput_ratio": r_q, "time_ratio": r_n / r_q}.items():
            low, _, high = quantiles(ds, name, b)
            assert low <= value <= high, (name, b)
        # The affine law itself is identified; only a plateau beyond the pilots is not.
        assert ds["step_time_law"].sel(train_batch=b, bound="estimate") == pytest.approx(seconds, rel=2e-3)


def test_known_worlds_are_recovered_closely_where_the_plan_states_the_family(
    known: tuple[dict[str, float], xr.DataTree],
) -> None:
    truth, tree = known
    plan = plan_from_dict(
        {
            "recipe": {"prompts": 32, "group_size": 8, "learning_rate": 1e-6, "lr_rule": "sqrt"},
            "learning": {"snr_shape": "drift", "lr_fraction": FRACTION},
            "engine": {"gen_time_intercept": truth["tau0"], "gen_time_slope": truth["tau1"]},
        }
    )
    ds = predict(tree, plan=plan, target=0.5, pilot_batches=(256, 512), batches=BATCHES)
    noise = float(np.median(ds["noise_scale"]))
    assert noise == pytest.approx(truth["noise"], rel=0.1 if truth["noise"] < 10_000 else 0.4)
    for b in BATCHES[1:]:
        seconds = truth["tau0"] + truth["tau1"] * b
        r_q = b / 256 * (truth["tau0"] + truth["tau1"] * 256) / seconds
        assert ds["throughput_ratio"].sel(train_batch=b).values == pytest.approx(np.full(2000, r_q))
        assert quantiles(ds, "time_ratio", b)[1] == pytest.approx(true_cost(b, truth["noise"]) / r_q, rel=0.06)


def test_norms_without_any_scatter_are_no_obstacle(tmp_path: Path) -> None:
    runs = [replace(r, norm_scatter=0.0) for r in world(noise=2000.0)]
    tree = read_logs(write_runs(tmp_path / "exact", *runs), chunks=8)
    ds = predict(tree, target=0.5, pilot_batches=(256, 512), draws=200)
    assert np.median(ds["noise_scale"]) == pytest.approx(2000, rel=0.1)


def test_what_no_pilot_identifies_is_said_to_be_a_prior() -> None:
    ds = predict(plan_of(BARE))
    assert {ds.attrs["sources"][n] for n in ("noise_scale", "snr_shape", "lr_fraction")} == {"prior"}
    text = "\n".join(ds.attrs["warnings"])
    assert "nothing measured bears on the noise scale" in text
    assert "cannot separate shared from per-response time" in text
    stated = predict(plan_of(BARE + "[learning]\nnoise_scale = 2000\nsnr_shape = 1\nlr_fraction = 0.2\n"))
    assert {stated.attrs["sources"][n] for n in ("noise_scale", "snr_shape", "lr_fraction")} == {"given"}
    assert (stated["noise_scale"] == 2000).all()
    assert (stated["snr_shape"] == 1).all()


def test_nothing_at_all_is_an_error() -> None:
    with pytest.raises(InputError, match="nothing to predict from"):
        predict(Plan())


def test_calibration_is_a_frozen_record() -> None:
    assert Calibration.__dataclass_params__.frozen  # type: ignore[attr-defined]


# -- mechanisms that a plan switches on -------------------------------------------------------------


def test_a_trust_region_is_a_ceiling_on_the_rate() -> None:
    rate = "[learning]\nlr_fraction = 0.01\n"
    ceiling = "kl_per_update = 1e-4\nkl_max = 4e-4\n"
    free, capped = (predict(plan_of(BARE + rate + text), draws=100) for text in ("", ceiling))
    x = free["train_batch"].values / free.attrs["reference_batch"]
    s = capped["learning_rate_ratio"].values[0]
    np.testing.assert_allclose(s, np.minimum(np.sqrt(x), 2.0))
    larger = x > 4
    assert (capped["sample_cost_ratio"].values[:, larger] > free["sample_cost_ratio"].values[:, larger]).all()


def test_few_updates_cost_what_momentum_remembers() -> None:
    known = "[target]\nresponses_to_target = 40_000\n"
    texts = [BARE + known + f"[learning]\nfew_updates = {on}\n" for on in ("false", "true")]
    law, charged = (predict(plan_of(text), draws=100) for text in texts)
    x = law["train_batch"].values
    memory = 0.35 * 9
    before = law["sample_cost_ratio"].values
    s0, s = 40_000 / law.attrs["reference_batch"], 40_000 * before / x
    np.testing.assert_allclose(charged["sample_cost_ratio"].values, before * (1 + memory / s) / (1 + memory / s0))
    unknown = predict(plan_of(BARE + "[learning]\nfew_updates = true\n"), draws=100)
    assert any("few_updates needs N*" in w for w in unknown.attrs["warnings"])
