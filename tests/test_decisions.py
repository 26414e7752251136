"""Decisions over random worlds: what the worlds are, the arithmetic of regret, and a fixed subset of twenty."""

from __future__ import annotations

import importlib.util
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchsim.cli import main
from batchsim.learning.curve import score_at
from batchsim.validate import decisions
from batchsim.validate.decisions import CI_WORLDS, coordinate_case, histogram, ranges, score, validate_decisions
from batchsim.validate.decisions.choices import (
    Case,
    _regret,
    _star_of,
    habit_choices,
    judge,
    until_reached,
    without_learning,
)
from batchsim.validate.decisions.clusters import Cluster, draw_cluster, pilot_steps
from batchsim.validate.decisions.coordinates import (
    World,
    draw_world,
    pilot,
    rate_ratio,
    responses_to_target,
    slope_and_curvature,
    updates_along,
)
from batchsim.validate.decisions.policies import policy_case

WORLDS = [draw_world(number) for number in range(60)]


# -- worlds -------------------------------------------------------------------------------------------


def test_worlds_are_drawn_from_their_ranges_and_again_the_same() -> None:
    for world in WORLDS:
        again = draw_world(world.number)
        assert np.array_equal(world.signal, again.signal)
        assert world.cluster == again.cluster
        assert ranges.NOISE_SCALE[0] <= world.noise_scale <= ranges.NOISE_SCALE[1]
        assert world.snr_shape >= ranges.SNR_SHAPE[0]
        assert world.lr_fraction <= ranges.LR_FRACTION[1]
        assert ranges.UPDATES[0] <= world.updates <= ranges.UPDATES[1]
        assert world.reference in [p * ranges.GROUP_SIZE for p in ranges.PROMPTS]
        assert (world.stated_ceiling is None) or math.isfinite(world.ceiling)
    assert draw_world(0, stream=1).noise_scale != WORLDS[0].noise_scale
    shares = [math.isfinite(w.ceiling) for w in WORLDS], [w.momentum_loss > 0 for w in WORLDS]
    assert all(0.1 < np.mean(share) < 0.8 for share in shares)
    assert {w.family for w in WORLDS} == {"drift", *ranges.FAMILIES}
    assert {w.rule for w in WORLDS} == set(ranges.RULES)


def test_moments_have_the_noise_scale_and_the_shape_that_are_named() -> None:
    for world in WORLDS:
        assert world.variance.sum() == pytest.approx(1)
        assert world.variance.sum() / world.signal.sum() == pytest.approx(world.noise_scale)
    drift = next(w for w in WORLDS if w.family == "drift")
    assert np.ptp(drift.signal / drift.variance) < 1e-12
    sparse = next(w for w in WORLDS if w.family == "sparse" and w.snr_shape < 1)
    ratio = sparse.signal / sparse.variance
    assert np.mean(ratio**2) / np.mean(ratio) ** 2 == pytest.approx(1 + 1 / sparse.snr_shape, rel=0.1)


def plain(**changes: Any) -> World:
    """A drift world without mechanisms, far below the best rate."""
    drift = next(w for w in WORLDS if w.family == "drift")
    bare: dict[str, Any] = {
        "decay": np.zeros(drift.signal.size), "lr_fraction": 1e-13, "noise_curvature": 0.0, "ceiling": math.inf,
        "stated_ceiling": None, "momentum_loss": 0.0, "stale": (0.0, 1.0, 0.0), "rule": "sqrt",
    }  # fmt: skip
    return replace(drift, **(bare | changes))


@pytest.mark.parametrize("factor", [0.25, 2, 16])
def test_truth_is_the_known_law_only_where_nothing_else_is_switched_on(factor: float) -> None:
    world = plain()
    b0 = world.reference
    b = int(factor * b0)
    ratio = responses_to_target(world, b) / responses_to_target(world, b0)
    # r_N = f(b_0)/f(b) of the drift family, McCandlish's square root.
    assert ratio == pytest.approx(math.sqrt((1 + b / world.noise_scale) / (1 + b0 / world.noise_scale)), rel=1e-9)
    fixed = responses_to_target(plain(rule="fixed"), b) / responses_to_target(plain(rule="fixed"), b0)
    assert fixed == pytest.approx(ratio * math.sqrt(factor), rel=1e-9)


def test_each_mechanism_does_what_it_says() -> None:
    world = plain()
    b0 = world.reference
    b = 16 * b0
    base = responses_to_target(world, b)
    assert rate_ratio(plain(ceiling=2.0), b) == 2.0
    assert responses_to_target(plain(ceiling=2.0), b) == pytest.approx(2 * base)
    momentum = plain(momentum_loss=0.5)
    lost = 0.5 * 9
    assert responses_to_target(momentum, b0) == pytest.approx(b0 * world.updates)
    assert responses_to_target(momentum, b) == pytest.approx(base * (1 - lost / world.updates) + lost * b)
    stale = plain(stale=(0.3, 1.0, 2.0 * b0))
    assert responses_to_target(stale, b0) == pytest.approx(b0 * world.updates)
    assert responses_to_target(stale, b) == pytest.approx(base * (1 + 0.3 * 2 / 16) / (1 + 0.3 * 2))
    # Noise that grows along the run favours the larger batch, all else equal.
    assert responses_to_target(plain(decay=np.full(world.signal.size, 1.5)), b) < base


def test_a_step_beyond_twice_the_best_rate_never_arrives() -> None:
    world = plain(lr_fraction=0.6, penalty="quadratic", noise_curvature=0.0)
    small = replace(world, signal=world.signal * world.noise_scale / 300)
    assert math.isinf(responses_to_target(small, 4096 * world.reference))
    assert math.isfinite(responses_to_target(replace(small, penalty="exponential"), 4096 * world.reference))


def test_every_reference_arrives_in_the_updates_that_were_drawn() -> None:
    for world in WORLDS:
        along = updates_along(world, world.reference)
        assert along[-1] == pytest.approx(world.updates)
        assert (np.diff(along) > 0).all()
        learned = world.reference * (world.updates - world.lost_updates)
        assert float(score_at(world.curve, learned)) == pytest.approx(world.target)


def test_slope_saturates_and_curvature_falls_with_the_batch() -> None:
    for world in WORLDS[:10]:
        v = np.array([0.0, 1.0])
        slopes, bends = zip(*(slope_and_curvature(world, b, v) for b in (64, 1024, 1e9)), strict=True)
        assert (np.diff(slopes, axis=0) > 0).all()
        assert (np.diff(bends, axis=0) <= 1e-12).all()


# -- logs ---------------------------------------------------------------------------------------------


def test_chunk_norms_have_the_moments_of_their_law() -> None:
    world = replace(plain(), cluster=replace(WORLDS[0].cluster, reference=512), noise_scale=2000.0)
    signal = world.signal * (1 / 2000.0) / world.signal.sum()
    world = replace(world, signal=signal)
    ds = pilot(world, 512, responses=512 * 400.0, rng=np.random.default_rng(0))
    # E|g_B|^2 = |G|^2 + tr(Sigma)/B, with bursts of mean exp(.02).
    burst = math.exp(ranges.BURSTS**2 / 2)
    for name, size in (("sq_norm_chunk", 512 / ranges.CHUNKS), ("sq_norm_batch", 512)):
        assert float(ds[name].mean()) == pytest.approx(1 / 2000 + burst / size, rel=0.03)


@pytest.mark.parametrize("number", range(6))
def test_pilots_stay_within_a_fifth_and_short_of_the_target(number: int) -> None:
    case = coordinate_case(number)
    assert case.pilot_seconds <= 0.2 * case.seconds[case.reference]
    assert len(case.runs.children) == 2
    for node in case.runs.children.values():
        assert float(node["score"].max()) < case.target
    assert np.isfinite(case.seconds[case.reference])


def test_prior_only_logs_hold_step_times_and_nothing_of_learning() -> None:
    for node in without_learning(coordinate_case(0).runs).children.values():
        ds = node.to_dataset()
        assert "step_seconds" in ds
        assert ds.sizes["evaluation"] == 0
        assert not {"grad_norm", "sq_norm_batch", "sq_norm_chunk"} & set(ds.data_vars)
        assert "chunks" not in ds.attrs


# -- clusters -----------------------------------------------------------------------------------------


def cluster(**changes: Any) -> Cluster:
    given: dict[str, Any] = {
        "reference": 256, "gen_intercept": 60.0, "gen_slope": 0.1, "gen_tail": 0.0, "train_intercept": 5.0,
        "train_slope": 0.05, "concurrency": 1024, "stated": False, "largest": 4096, "machine_spread": 0.0,
        "step_spread": 0.0,
    }  # fmt: skip
    return Cluster(**(given | changes))


def test_capped_concurrency_keeps_the_throughput_of_generation() -> None:
    one = cluster(train_intercept=0.0, train_slope=0.0)
    assert one.step_seconds(512) == pytest.approx(60 + 51.2)
    assert one.throughput([1024, 2048, 4096]).tolist() == pytest.approx([1024 / 162.4] * 3)
    assert cluster().candidates() == (64, 128, 256, 512, 1024, 2048, 4096)


def test_clusters_grow_in_time_and_throughput() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        one = draw_cluster(rng, 512)
        batches = one.candidates()
        assert (np.diff(one.step_seconds(batches)) > 0).all()
        assert (np.diff(one.throughput(batches)) > -1e-9).all()
        assert ranges.STEP_SECONDS[0] <= one.step_seconds(512) * 1.001
        assert one.step_seconds(512) <= ranges.STEP_SECONDS[1] * 1.001


def test_pilots_share_their_time() -> None:
    one = cluster()
    first, second = pilot_steps(one, 256 * 1000.0)
    seconds = first * one.step_seconds(256) + second * one.step_seconds(1024)
    assert 0.17 < float(seconds / (1000 * one.step_seconds(256))) <= ranges.PILOT_SHARE
    assert pilot_steps(one, 256 * 60.0)[1] == ranges.PILOT_UPDATES_MIN


def test_habits() -> None:
    # Throughput grows by 1.63, 1.48 and then not any more.
    one = cluster(gen_slope=0.02, train_intercept=0.0, train_slope=0.0)
    assert habit_choices(one, one.candidates()) == (2, 6, 4)


# -- arithmetic of decisions --------------------------------------------------------------------------


def case_with(responses: list[float]) -> Case:
    case = coordinate_case(3)
    shown = np.array(responses + [math.inf] * (len(case.batches) - len(responses)))
    return replace(case, responses=shown)


def test_regret_is_time_over_the_best_less_one() -> None:
    case = case_with([1e6] * 5)
    row = judge(case, draws=200, level=0.8, seed=0)
    chosen = case.batches.index(row["predicted"])
    spent = case.seconds[chosen] if np.isfinite(case.seconds[chosen]) else 1.5 * case.seconds[case.reference]
    assert row["regret"] == pytest.approx(spent / np.min(case.seconds) - 1)
    assert row["habits"]["keep"] == pytest.approx(case.seconds[case.reference] / np.min(case.seconds) - 1)
    # The largest batch never arrives: half of the reference's time is lost, and the reference is run.
    assert row["habits"]["largest"] == pytest.approx(1.5 * case.seconds[case.reference] / np.min(case.seconds) - 1)
    assert row["measured"] == case.batches[int(np.argmin(case.seconds))]
    json.dumps(row, allow_nan=False)


def row(regret: float, **changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "regret": regret, "prior_only_regret": 2 * regret, "fastest_regret": 0.0, "prior_only_fastest_regret": 0.1,
        "exact_r_q_regret": 0.0, "exact_r_N_regret": regret / 2, "next_run_regret": regret, "both_runs_regret": 0.1,
        "next_run": 512,
        "habits": {"keep": 0.2, "largest": 0.5, "double until throughput stops": 0.1}, "covered_r_N": [True, False],
        "covered_T": [True, True], "covered_r_q": [True, True], "is_null": False, "prior_is_null": True,
        "covered": True, "pilot_share": 0.18, "pilots_reach": False, "log_error_r_N": [0.1, None],
        "best_doublings": 1, "star_doublings": 0,
    }  # fmt: skip
    return given | changes


def test_scores() -> None:
    found = score([row(0.0), row(0.1), row(0.2, is_null=True)])
    assert found["mean_regret"] == pytest.approx(0.1)
    assert found["prior_only_mean_regret"] == pytest.approx(0.2)
    assert found["regret_over_prior"] == pytest.approx(0.5)
    assert (found["coverage_r_N"], found["coverage_T"]) == (0.5, 1.0)
    assert found["p95_regret"] == pytest.approx(0.19)
    assert found["mean_exact_r_N_regret"] == pytest.approx(0.05)
    assert found["next_runs_named"] == 3
    assert found["best_habit"] == "double until throughput stops"
    assert (found["without_star"], found["prior_without_star"]) == (1, 3)
    assert score([]) == {"n": 0}
    assert histogram([row(0.0), row(0.1, best_doublings=-1)]) == {"best": {"-1": 1, "1": 1}, "star": {"0": 2}}


# -- what a better forecast could win -----------------------------------------------------------------


def test_known_sides_are_those_of_the_truth() -> None:
    case = coordinate_case(3)
    found = judge(case, draws=200, level=0.8, seed=0)
    # With both sides known the star is within 5 % of the best; with one, it may be anywhere.
    exact = (
        case.responses
        / case.responses[case.reference]
        / (case.cluster.throughput(case.batches) / case.cluster.throughput(case.cluster.reference))
    )
    assert _regret(case, _star_of(exact[None, :], case)) <= 0.05
    for name in ("exact_r_q_regret", "exact_r_N_regret", "next_run_regret", "both_runs_regret"):
        assert 0 <= found[name] < 20


def test_a_further_run_ends_with_the_target() -> None:
    case = coordinate_case(5)
    for batch in (case.batches[1], case.batches[-2]):
        ds = case.run(batch)
        score = ds["score"].values[0]
        assert score[-1] >= case.target
        assert (score[:-1] < case.target).all()
        assert ds["responses"].values[-1] == ds["evaluation_responses"].values[-1]
        # One seed with a spread, evaluated on a grid.
        at = case.batches.index(batch)
        assert math.log(ds["responses"].values[-1] / case.responses[at]) == pytest.approx(0, abs=0.6)
    whole = case.run(case.batches[1])
    assert until_reached(whole, math.inf).sizes == whole.sizes


def test_further_runs_of_two_batches_share_no_chance() -> None:
    case = coordinate_case(5)
    machine = []
    for batch in (case.cluster.reference, 4 * case.cluster.reference):
        ds = case.run(batch)
        seconds = ds["step_seconds"].values / case.cluster.step_seconds(batch)
        machine.append(np.log(seconds[:20]))
    # Scatter of steps about their own mean would be equal to the last digit, were the draws the same.
    apart = [m - m.mean() for m in machine]
    assert abs(np.corrcoef(apart)[0, 1]) < 0.8
    assert case.run(case.cluster.reference).identical(case.run(case.cluster.reference))


def test_age_is_logged_in_half_of_the_asynchronous_worlds() -> None:
    stale = [w for w in WORLDS if w.stale[0] > 0]
    logged = [w for w in stale if w.lag_logged]
    assert 0 < len(logged) < len(stale)
    for world in (logged[0], next(w for w in stale if not w.lag_logged)):
        ds = pilot(world, 4 * world.reference, responses=40.0 * world.reference, rng=np.random.default_rng(0))
        assert ("staleness_mean" in ds) == world.lag_logged
        if world.lag_logged:
            assert ds["staleness_mean"].values == pytest.approx(world.stale[2] / (4 * world.reference))


# -- the twenty worlds that are always run -------------------------------------------------------------


@pytest.fixture(scope="module")
def twenty() -> dict[str, Any]:
    return validate_decisions(worlds=CI_WORLDS, policies=0)


def test_twenty_worlds(twenty: dict[str, Any]) -> None:
    overall = twenty["overall"]
    assert overall["n"] == CI_WORLDS
    # Half of the prior's regret, with room for twenty worlds; the whole benchmark is `validate decisions`.
    assert overall["mean_regret"] <= 0.75 * overall["prior_only_mean_regret"]
    assert overall["mean_regret"] < min(h["mean_regret"] for h in overall["habits"].values())
    assert 0.6 <= overall["coverage_r_N"] <= 0.97
    assert 0.6 <= overall["coverage_T"] <= 0.97
    assert overall["largest_pilot_share"] <= 0.2
    assert overall["pilots_that_reach"] == 0
    assert len(twenty["histogram"]["best"]) >= 4
    json.dumps(twenty, allow_nan=False)


def test_page_shows_the_stored_result_and_these_worlds_are_in_it(twenty: dict[str, Any]) -> None:
    docs = Path(__file__).resolve().parents[1] / "docs"
    spec = importlib.util.spec_from_file_location("decisions_table", docs / "decisions_table.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    kept = json.loads((docs / "decisions_results.json").read_text(encoding="utf-8"))
    text = (docs / "decisions.md").read_text(encoding="utf-8")
    assert script.written(text, kept) == text, "batchsim validate decisions --json | python docs/decisions_table.py"
    assert kept["overall"]["n"] >= 200
    again = script.stored(json.loads(json.dumps(twenty)))["rows"]
    # Another processor's rounding may move one choice that is a tie.
    assert sum(a == b for a, b in zip(again, kept["rows"], strict=True)) >= CI_WORLDS - 1


def test_worlds_do_not_depend_on_what_else_is_run(twenty: dict[str, Any]) -> None:
    (alone,) = validate_decisions(worlds=1, first=7, policies=0)["rows"]
    assert alone == twenty["rows"][7]


def test_policies_learn_and_their_pilots_are_logs() -> None:
    case = policy_case(2)
    assert isinstance(case, Case)
    assert case.pilot_seconds <= 0.2 * case.seconds[case.reference]
    assert {"sq_norm_chunk", "step_seconds", "score"} <= set(next(iter(case.runs.children.values())).data_vars)
    found = judge(case, draws=200, level=0.8, seed=0)
    assert found["regret"] >= 0
    assert policy_case(2).label == case.label  # type: ignore[union-attr]


def test_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, twenty: dict[str, Any]) -> None:
    seen: dict[str, Any] = {}

    def stub(**options: Any) -> dict[str, Any]:
        seen.update(options)
        return twenty

    monkeypatch.setattr(decisions, "validate_decisions", stub)
    with pytest.raises(SystemExit) as stop:
        main(["validate", "decisions", "--worlds", "20", "--json"])
    assert stop.value.code == 0
    assert json.loads(capsys.readouterr().out)["overall"]["n"] == CI_WORLDS
    assert seen["worlds"] == 20
    with pytest.raises(SystemExit):
        main(["validate", "decisions", "--worlds", "20"])
    printed = " ".join(capsys.readouterr().out.split())
    for part in ("prior only", "habit: keep", "95th percentile", "over the reference", "No star in"):
        assert part in printed
    with pytest.raises(SystemExit) as stop:
        main(["validate", "decisions", "--data", "."])
    assert stop.value.code == 2
