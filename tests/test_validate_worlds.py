"""Validations on simulated worlds: their ranges, their arithmetic, and what must emerge in a small world."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from batchsim.cli import main
from batchsim.learning.progress import slope_from_moments
from batchsim.learning.sample_cost import sample_cost_ratio
from batchsim.learning.worlds import SoftmaxWorld, Trainer, mean_responses, softmax_world, train, true_noise
from batchsim.validate.worlds import breaking, findings, forecast, ranges, staleness

# -- ranges -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ranges.ROWS)
def test_worlds_are_drawn_from_their_ranges_and_again_the_same(row: str) -> None:
    for number in range(40):
        drawn = ranges.draw(row, number)
        world = drawn.world
        assert drawn == ranges.draw(row, number)
        assert ranges.DIM[0] <= world["dim"] <= ranges.DIM[1]
        assert world["answers"] in ranges.ANSWERS
        assert drawn.group_size in ranges.GROUP
        chance = world["correct"] / world["answers"]
        assert ranges.START_ABOVE_CHANCE[0] <= world["start_score"] - chance <= ranges.START_ABOVE_CHANCE[1]
        assert ranges.GAIN[0] <= drawn.target - world["start_score"] <= ranges.GAIN[1]
        assert ("signal" in world) == (row in ("sparse", "rotated"))
        assert ("scale_spread" in world) == (row in ("heterogeneous", "rotated"))
        assert world["rotated"] == (row == "rotated")
        assert 4 <= world.get("signal", 4) <= world["dim"] / 8 + 1


def test_worlds_of_different_numbers_differ() -> None:
    assert len({ranges.draw("sparse", n).world["seed"] for n in range(50)}) == 50


# -- arithmetic of a forecast -------------------------------------------------------------------------


def _truth(ratio: list[float], responses: float = 64_000.0) -> forecast.Truth:
    padded = np.array(ratio + [np.inf] * (forecast.FACTORS.size - len(ratio)))
    return forecast.Truth(
        learning_rate=0.01, responses=responses, ratio=padded, error=np.zeros(padded.size), first_ratio=padded
    )


def test_the_factor_asked_is_the_largest_within_limits() -> None:
    assert forecast.asked_factor(_truth([1, 1.1, 1.3, 1.7, 2.4]), 32) == 3
    assert forecast.asked_factor(_truth([1, 1.1, 1.19]), 32) is None
    # 3,200 responses are 100 updates of 32: 17 are left at 8 times the batch, 9 at 16 times.
    assert forecast.asked_factor(_truth([1, 1.2, 1.3, 1.4, 1.5, 1.6], responses=3_200), 32) == 3
    assert forecast.asked_factor(_truth([1, 1.25, 1.5], responses=320), 32) is None


def test_step_cost_is_that_of_the_law() -> None:
    law = sample_cost_ratio(
        4000, reference_batch=500, noise_scale=900, snr_shape=0.5, lr_fraction=0.3, penalty_shape=forecast.PENALTY
    )
    free = sample_cost_ratio(4000, reference_batch=500, noise_scale=900, snr_shape=0.5)
    assert forecast.with_step_cost(float(free), 8.0, 0.3) == pytest.approx(float(law), rel=1e-12)
    assert forecast.with_step_cost(1.7, 8.0, 0.0) == pytest.approx(1.7)


def test_moments_of_pilots_approach_the_exact_slope_at_a_frozen_policy() -> None:
    world = softmax_world(dim=64, prompts=256, validation=0, signal=6, seed=3)
    pilots = train(
        world, Trainer(), prompts=[4, 8], learning_rate=1e-9, responses_max=60_000, halves_until=60_000, record=True
    )
    exact = true_noise(world, np.zeros(64), group_size=8)
    batch = 32.0 * np.array([1.0, 4.0, 16.0, 64.0])
    slope = slope_from_moments(batch, gradient=exact.gradient, variance=exact.variance)
    for factor, wanted in zip((4.0, 16.0, 64.0), slope[1:] / slope[0], strict=True):
        said = forecast.forecasts(pilots, factor, 0.0, 1.0)
        assert said["moments"] == pytest.approx(math.sqrt(factor) / wanted, rel=0.04)
        assert said["moments and N*_0"] == said["moments"]
        assert said["moments and c_0"] == pytest.approx(said["moments"])
        drift = math.sqrt((1 + 32 * factor / exact.noise_scale) / (1 + 32 / exact.noise_scale))
        assert said["norms: drift"] == pytest.approx(drift, rel=0.06)


def test_a_growing_noise_scale_lowers_the_forecast() -> None:
    world = softmax_world(dim=64, prompts=256, validation=0, seed=3)
    pilots = train(
        world, Trainer(), prompts=[4, 8], learning_rate=1e-9, responses_max=40_000, halves_until=40_000, record=True
    )
    said = [forecast.forecasts(pilots, 16.0, 0.0, growth)["moments and N*_0"] for growth in (1.0, 1.5, 3.0)]
    assert said[0] > said[1] > said[2] > 1


def test_growth_of_noise_is_the_ratio_of_slopes() -> None:
    world = softmax_world(dim=32, prompts=128, validation=0, seed=1)
    (pilot,) = train(world, Trainer(), prompts=4, learning_rate=0.01, responses_max=6_000, evaluate_every=6_000)
    used, score = pilot.evaluations["responses"], pilot.evaluations["score"]
    target = float(score[0] + 3 * (score[-1] - score[0]))
    truth = _truth([1.0], responses=6 * float(used[-1]))
    assert forecast.growth_of_noise(pilot, truth, target) == pytest.approx(2.0)
    steep = _truth([1.0], responses=float(used[-1]))
    assert forecast.growth_of_noise(pilot, steep, target) == 1.0


def test_a_pilot_too_short_for_moments_says_nothing() -> None:
    world = softmax_world(dim=16, prompts=64, validation=0, seed=1)
    pilots = train(world, Trainer(), prompts=[4, 8], learning_rate=0.01, responses_max=64, halves_until=64, record=True)
    said = forecast.forecasts(pilots, 8.0, 0.1, 1.0)
    assert math.isnan(said["moments"])
    assert math.isnan(said["moments and c_0"])
    assert said["hyperbola"] >= 1


def test_scores_of_forms_leave_silence_out_and_count_it() -> None:
    rows: list[dict[str, Any]] = [
        {
            "measured": 1.5,
            "covered": True,
            "measured_log_error": 0.01,
            "forms": dict.fromkeys(forecast.FORMS, value),
        }
        for value in (1.5, 1.5 * math.exp(0.1), 1.5 * math.exp(-0.3), None)
    ]
    one = forecast.score(rows)["forms"]["moments"]
    assert one["silent"] == 1
    assert one["median_abs_log_error"] == pytest.approx(0.1)
    assert one["median_log_error"] == pytest.approx(0.0)
    assert forecast.score([])["forms"]["moments"]["median_abs_log_error"] is None


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "DIM", (48, 64))
    monkeypatch.setattr(ranges, "PROMPTS", 128)
    monkeypatch.setattr(ranges, "LR_FRACTIONS", (0.02,))
    monkeypatch.setattr(forecast, "LR_FRACTIONS", (0.02,))
    monkeypatch.setattr(forecast, "FACTORS", 2.0 ** np.arange(5))
    monkeypatch.setattr(forecast, "RATES", 0.06 * 2.0 ** np.arange(7))
    monkeypatch.setattr(forecast, "SCAN_SEEDS", 2)


def test_forecasts_of_small_worlds_count_what_is_left_out(small_ranges: None) -> None:
    seen: list[tuple[int, int]] = []
    result = forecast.validate_forecast(worlds=1, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(i, 4) for i in range(1, 5)]
    assert result["overall"]["n"] + result["overall"]["excluded"] == 4
    assert sum(result["excluded"].values()) == result["overall"]["excluded"]
    assert [s["slice"] for s in result["slices"]] == [f"{row}, c_0 = 0.02" for row in ranges.ROWS]
    for row in result["rows"]:
        assert 0.9 * forecast.WANTED[0] <= row["measured"] <= 1.1 * forecast.WANTED[1]
        assert row["interval"][0] <= row["predicted"] <= row["interval"][1]
        assert row["covered"] == (row["interval"][0] <= row["measured"] <= row["interval"][1])
    json.dumps(result, allow_nan=False)


# -- what emerges -------------------------------------------------------------------------------------


def test_curves_depart_before_norms_flatten() -> None:
    """The sqrt rule aligns curves over 16 times the batch while norms fall as the square root, and not beyond."""
    world, target = findings.draw_grpo(0)
    prompts = 4 * 2 ** np.arange(0, 9, 2)
    runs = train(
        world, Trainer(), prompts=prompts, learning_rate=0.008 * np.sqrt(prompts / 4), responses_max=1e6, seed=1,
        evaluate_every=np.maximum(2048, prompts * 8), target=target, record=True,
    )  # fmt: skip
    needed, _ = mean_responses(runs, target)
    norm = np.array([np.sqrt(np.mean(run.record["sq_norm_batch"])) for run in runs])
    slope = np.diff(np.log(norm)) / np.diff(np.log(prompts))
    assert needed[2] / needed[0] < findings.ALIGNED
    assert needed[-1] / needed[0] > 1.5
    assert abs(slope[0] + 0.5) < 0.05
    assert slope[-1] > -0.35


def test_a_critic_that_lags_has_a_flat_norm() -> None:
    world = softmax_world(dim=64, prompts=256, validation=0, seed=2)
    batch = 64 * 4 ** np.arange(3)
    slopes = []
    for share in (1.0, 0.03):
        runs = train(
            world, Trainer(algorithm="ppo"), prompts=batch, learning_rate=0.002 * np.sqrt(batch / 64),
            critic_learning_rate=share * 0.002 * np.sqrt(batch / 64), responses_max=200_000, target=0.45, record=True,
        )  # fmt: skip
        norm = [np.sqrt(np.mean(run.record["critic_sq_norm_batch"])) for run in runs]
        slopes.append(np.polyfit(np.log(batch), np.log(norm), 1)[0])
    assert slopes[0] < -0.3
    assert slopes[1] > -0.15


def test_crossing_of_a_level_is_on_a_straight_line() -> None:
    values = np.array([1.0, 1.05, 1.15])
    assert findings._crossing([10, 20, 40], values, 1.10) == pytest.approx(20 * math.sqrt(2))
    assert math.isnan(findings._crossing([10, 20, 40], values, 2.0))
    assert math.isnan(findings._crossing([10, 20, 40], values, 0.5))


def test_moments_of_groups_predict_what_pairs_cost() -> None:
    """At equal P G, more prompts with fewer responses each need fewer responses, as the moments of groups say."""
    world = softmax_world(dim=64, prompts=256, validation=0, seed=5)
    pairs = ((64, 4), (16, 16))
    runs = findings._trade(world, pairs, "group")
    needed = mean_responses(runs, 0.45)[0]
    said = findings._predicted_trade(world, pairs)
    assert needed[1] / needed[0] > 1.2
    assert said[1] == pytest.approx(needed[1] / needed[0], rel=0.1)


def test_findings_of_one_small_world(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(number: int) -> list[dict[str, Any]]:
        return [findings._row(number, "a", 1.0, (0.5, None)), findings._row(number, "b", math.nan, (0.0, 1.0)),
                findings._row(number, "c", 2.0)]  # fmt: skip

    for name in ("grpo_rows", "pair_rows", "ppo_rows"):
        monkeypatch.setattr(findings, name, rows)
    result = findings.validate_findings(worlds=2)
    assert result["overall"] == {"findings": 2, "met": 1, "worlds": 2}
    json.dumps(result, allow_nan=False)


def test_every_finding_of_a_small_world_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    small = softmax_world(dim=256, prompts=256, validation=0, label_noise=0.4, start_score=0.28, seed=1)
    monkeypatch.setattr(findings, "draw_grpo", lambda number: (small, 0.4))
    monkeypatch.setattr(findings, "PROMPTS", 4 * 4 ** np.arange(7))
    monkeypatch.setattr(findings, "SEEDS", 1)
    monkeypatch.setattr(findings, "PPO_BATCHES", 64 * 4 ** np.arange(3))
    monkeypatch.setattr(findings, "CRITIC_RATES", (1.0, 0.03))
    monkeypatch.setattr(findings, "softmax_world", lambda **asked: softmax_world(**(asked | {"dim": 64})))
    found = {row["claim"]: row for row in findings.grpo_rows(0) + findings.ppo_rows(0)}
    assert [claim for claim, row in found.items() if row["measured"] is None] == []
    ratio = found["norms' batch over curves' batch"]["measured"]
    names = ("batch where norms are half noise", "batch where curves depart (r_N = 1.10)")
    halves, curves = (found[name]["measured"] for name in names)
    assert ratio == pytest.approx(halves / curves)
    assert ratio > 1
    slopes = [
        found[f"PPO, critic at {share} of the actor's rate: slope of the critic's norm"] for share in ("1", "0.03")
    ]
    assert slopes[0]["measured"] < slopes[1]["measured"] - 0.1
    scales = [
        found[f"PPO, critic at 0.03 of the actor's rate: noise scale of the {who}"] for who in ("actor", "critic")
    ]
    assert scales[0]["measured"] > 1.2 * scales[1]["measured"]


# -- what breaks --------------------------------------------------------------------------------------


@pytest.fixture
def small_breaking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breaking, "DIM", 64)
    monkeypatch.setattr(breaking, "PROMPTS", 256)
    monkeypatch.setattr(breaking, "FACTORS", np.array([1.0, 4.0]))
    monkeypatch.setattr(breaking, "RATE", 0.01)


def _case(attempt: str, setting: str) -> breaking.Case:
    return next(c for c in breaking.cases(0) if c.attempt == attempt and c.setting == setting)


@pytest.mark.parametrize(("attempt", "setting"), [("basis", "rotated"), ("epsilon", "1 rms"), ("layers", "16 and 1")])
def test_exact_moments_say_what_a_batch_costs(small_breaking: None, attempt: str, setting: str) -> None:
    measured, said, own = breaking.measure_case(_case(attempt, setting), breaking.START + breaking.GAIN)
    assert said[1] == pytest.approx(measured[1], rel=0.06)
    assert own[1] == pytest.approx(measured[1], rel=0.06)


def test_a_rotation_changes_the_cost_and_not_the_norms(small_breaking: None) -> None:
    ratios, scales = [], []
    for setting in ("the teacher's", "rotated"):
        case = _case("basis", setting)
        ratios.append(breaking.measure_case(case, breaking.START + breaking.GAIN)[0][1])
        scales.append(true_noise(case.world, np.zeros(64), group_size=8).noise_scale)
    assert scales[0] == pytest.approx(scales[1], rel=1e-4)
    assert ratios[0] > 1.1 * ratios[1]


def test_a_case_is_judged_only_where_r_n_is_small(small_breaking: None, monkeypatch: pytest.MonkeyPatch) -> None:
    case = _case("rate", "0.005")

    monkeypatch.setattr(breaking, "cases", lambda number: iter([case]))
    for measured, survives, n in ((1.25, True, 1), (1.6, False, 1), (np.inf, True, 0)):
        found = np.array([1.0, measured]), np.array([1.0, 1.3]), np.array([1.0, np.nan])
        monkeypatch.setattr(breaking, "measure_case", lambda case, target, found=found: found)
        (part,) = breaking.validate_breaking(worlds=1)["slices"]
        assert (part["survives"], part["n"]) == (survives, n)


def test_staleness_costs_nothing_while_the_policy_hardly_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staleness, "RATES", (0.003,))
    monkeypatch.setattr(staleness, "LAGS", (0, 3))
    monkeypatch.setattr(staleness, "SEEDS", 1)
    monkeypatch.setattr(staleness, "GAIN", 0.05)
    result = staleness.validate_staleness(worlds=1)
    for part in result["slices"]:
        assert part["ratio"][1] == pytest.approx(1.0, abs=0.05)
    assert result["overall"]["by_lag"]["3"]["published"] == pytest.approx([1.44, 1800 / 975])
    json.dumps(result, allow_nan=False)


# -- the command --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["samples", "--worlds", "3"], "--worlds is for simulated worlds"),
        (["findings", "--data", "."], "reads no data"),
        (["findings", "--plot", "a.png"], "has no plot"),
        (["forecast", "--plot", "a.xyz"], "a.xyz"),
        (["forecasts"], "forecast"),
    ],
)
def test_careless_commands(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["validate", *arguments])
    assert error.value.code == 2
    assert said in capsys.readouterr().err


def test_the_command_prints_and_draws_a_forecast(
    small_ranges: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "forecast.png"
    monkeypatch.setattr(forecast, "UPDATES_MIN", 1)
    with pytest.raises(SystemExit) as error:
        main(["validate", "forecast", "--worlds", "1", "--plot", str(plot)])
    assert not error.value.code
    assert plot.stat().st_size > 1000
    assert "exact and c_0" in capsys.readouterr().out


def _overflow(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, results: dict[str, Any]
) -> list[str]:
    """Lines of the validations' tables that a terminal of 80 columns would cut."""
    from rich.console import Console

    from batchsim.cli import table, validation_worlds

    monkeypatch.setattr(validation_worlds, "make_console", lambda: Console(width=80, height=table.HEIGHT))
    for name, result in results.items():
        filled = [{"slice": "-"} | part for part in result["slices"]]
        validation_worlds.print_worlds(result | {"name": name, "slices": filled, "rows": [], "skipped": []})
    return [line for line in capsys.readouterr().out.splitlines() if "…" in line]


def test_no_number_is_cut_in_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, page: ModuleType
) -> None:
    results = json.loads(page.RESULTS.read_text(encoding="utf-8"))
    assert _overflow(capsys, monkeypatch, {name: results[name] for name in page.CLAIMS}) == []


# -- the page -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page() -> ModuleType:
    script = Path(__file__).resolve().parents[1] / "docs" / "worlds_page.py"
    spec = importlib.util.spec_from_file_location("worlds_page", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_stored_results(page: ModuleType) -> None:
    results = json.loads(page.RESULTS.read_text(encoding="utf-8"))
    assert page.page(results, page.TEXT.read_text(encoding="utf-8")) == page.PAGE.read_text(encoding="utf-8")
    assert "{{" not in page.PAGE.read_text(encoding="utf-8")


def test_stored_results_are_those_of_the_present_ranges(page: ModuleType) -> None:
    results = json.loads(page.RESULTS.read_text(encoding="utf-8"))
    assert set(results) == set(page.CLAIMS)
    named = [s["slice"] for s in results["forecast"]["slices"]]
    assert named == [f"{row}, c_0 = {c:g}" for row in ranges.ROWS for c in ranges.LR_FRACTIONS]
    assert results["forecast"]["overall"]["worlds"] == forecast.WORLDS * len(ranges.ROWS)
    assert list(results["forecast"]["overall"]["forms"]) == list(forecast.FORMS)
    assert results["breaking"]["overall"]["factors"] == breaking.FACTORS[1:].tolist()
    assert results["findings"]["overall"]["worlds"] == findings.WORLDS
    assert results["staleness"]["overall"]["lags"] == list(staleness.LAGS[1:])
    for part in results["findings"]["slices"]:
        assert part["n"] == findings.WORLDS


def test_a_stored_result_is_found_again(page: ModuleType) -> None:
    """One cell of the page, simulated anew; another processor may round a step differently."""
    results = json.loads(page.RESULTS.read_text(encoding="utf-8"))
    again = [findings._predicted_trade(findings_world(n), findings.TRADES)[1:] for n in range(findings.WORLDS)]
    stored = [pair["predicted"] for pair in results["findings"]["pairs"]]
    np.testing.assert_allclose(np.concatenate(again), stored, rtol=1e-4)


def findings_world(number: int) -> SoftmaxWorld:
    rng = np.random.default_rng(np.random.SeedSequence(findings.STREAM, spawn_key=(1, number)))
    seed = int(rng.integers(2**31, size=2)[1])
    return softmax_world(dim=256, answers=8, prompts=1024, validation=0, start_score=0.28, seed=seed)
