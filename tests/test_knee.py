"""Why N* departs: every explanation is found where it made the arms, and the experiment that tells is the right one."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from batchsim.cli import main
from batchsim.errors import InputError
from batchsim.learning.curve import Curve
from batchsim.learning.curve.simulate import simulate_runs
from batchsim.learning.sample_cost import sample_cost_ratio
from batchsim.measure import measure
from batchsim.recommend import Knee, explain_knee
from batchsim.recommend.knee import knee_of_runs

BATCH = np.array([256.0, 512.0, 1024.0, 2048.0, 4096.0])
X = BATCH / BATCH[0]
N0 = 120_000.0
Floats = NDArray[np.float64]
NAMES = {"censoring", "noise scale", "learning-rate ceiling", "few updates", "noise floor"}


def arms(needed: Floats, *, grid: float = 0.02, spread: float = 0.03, seed: int = 0, **options: object) -> Knee:
    """N* within a grid of evaluations, without scatter between runs."""
    return explain_knee(
        train_batch=BATCH, responses_low=needed * (1 - grid), responses_high=needed * (1 + grid), spread=spread,
        seed=seed, **options,  # type: ignore[arg-type]
    )  # fmt: skip


def probability(knee: Knee) -> dict[str, float]:
    return {e.name: e.probability for e in knee.explanations}


def floor_cost(floor: float, distance: float) -> Floats:
    kept = floor * np.sqrt(X)
    return np.asarray(np.log((distance - kept) / (1 - kept)) / np.log((distance - floor) / (1 - floor)))


MADE = {
    "learning-rate ceiling": N0 * np.sqrt(X) / np.minimum(np.sqrt(X), 2.0),
    "few updates": BATCH * ((N0 / 256 - 15) / X + 15),
    "noise scale": N0 * sample_cost_ratio(BATCH, reference_batch=256, noise_scale=1500, lr_fraction=0.1),
    "noise floor": N0 * floor_cost(0.16, 5.0),
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", MADE)
def test_what_made_the_arms_is_not_excluded_and_censoring_is(name: str, seed: int) -> None:
    knee = arms(MADE[name], seed=seed)
    found = probability(knee)
    assert set(found) == NAMES
    assert sum(found.values()) == pytest.approx(1)
    assert knee.is_shown
    assert found["censoring"] < 0.02
    # Curves that look alike stay open: the explanation itself must be one of them.
    assert found[name] > 0.15


def test_a_ceiling_is_told_from_all_others() -> None:
    assert probability(arms(MADE["learning-rate ceiling"]))["learning-rate ceiling"] > 0.95


def test_a_noise_scale_from_norms_settles_more() -> None:
    unknown = probability(arms(MADE["noise scale"]))["noise scale"]
    assert probability(arms(MADE["noise scale"], noise_scale=(1200.0, 1900.0)))["noise scale"] > unknown


def test_aligned_arms_show_no_departure() -> None:
    knee = arms(np.full(5, N0), spread=0.05)
    assert not knee.is_shown
    assert knee.explanations[0].name == "censoring"
    assert knee.sentences[0].startswith("No departure is shown")


def test_a_coarse_grid_hides_a_departure_that_a_fine_one_shows() -> None:
    needed = N0 * np.array([1.0, 1.0, 1.02, 1.1, 1.2])
    coarse = explain_knee(
        train_batch=BATCH, responses_low=np.zeros(5) + 81_920, responses_high=np.zeros(5) + 163_840, spread=0.05
    )
    assert arms(needed).is_shown
    assert not coarse.is_shown


def test_a_right_censored_arm_is_a_bound_and_no_point() -> None:
    needed = N0 * np.array([1.0, 1.0, 1.04, 1.15, 1.0])
    low, high = needed * 0.98, needed * 1.02
    low[4], high[4] = 1.5 * N0, math.inf
    knee = explain_knee(train_batch=BATCH, responses_low=low, responses_high=high, spread=0.03)
    assert knee.is_shown
    assert knee.train_batch == 4096
    # A bound below N*_0 says nothing: as without the arm.
    low[4] = 0.5 * N0
    bound = explain_knee(train_batch=BATCH, responses_low=low, responses_high=high, spread=0.03)
    assert bound.train_batch == 2048
    assert probability(bound)["censoring"] > probability(knee)["censoring"]


def test_momentum_and_noise_scale_are_told_apart_by_momentum_or_an_earlier_target() -> None:
    knee = arms(MADE["few updates"], noise_scale=(3_000.0, 9_000.0))
    best = max(knee.experiments, key=lambda e: e.information)
    assert knee.cheapest is not None
    assert "beta_1" in best.name or "half of the way" in best.name
    assert knee.cheapest.cost <= best.cost
    assert knee.cheapest.information >= 0.5 * best.information
    # Which way the outcome goes: momentum hurts more on half the way and less with a smaller beta_1.
    earlier = next(e for e in knee.experiments if "half of the way" in e.name)
    assert earlier.outcomes["few updates"] > earlier.outcomes["noise scale"] > earlier.outcomes["noise floor"]
    momentum = next(e for e in knee.experiments if "beta_1" in e.name)
    assert momentum.outcomes["few updates"] < 0.95
    assert momentum.outcomes["noise scale"] == pytest.approx(1)


def test_half_the_rate_costs_nothing_above_a_ceiling() -> None:
    knee = arms(MADE["learning-rate ceiling"])
    half = next(e for e in knee.experiments if "half the rate" in e.name)
    assert half.outcomes["learning-rate ceiling"] == pytest.approx(1, abs=0.1)
    assert half.outcomes["censoring"] == pytest.approx(2)


def test_information_is_bounded_by_what_is_open() -> None:
    for made in MADE.values():
        knee = arms(made)
        entropy = -sum(e.probability * math.log2(e.probability) for e in knee.explanations if e.probability > 0)
        for e in knee.experiments:
            # Two hundred outcomes estimate a mean.
            assert 0 <= e.information <= entropy + 0.15


@settings(max_examples=20)
@given(
    extra=st.lists(st.floats(-0.1, 1.5), min_size=1, max_size=5), grid=st.floats(0.001, 0.5),
    spread=st.floats(0.01, 0.5), censored=st.booleans(),
)  # fmt: skip
def test_every_sweep_gets_an_answer(extra: list[float], grid: float, spread: float, censored: bool) -> None:
    batch = 128.0 * 2.0 ** np.arange(len(extra) + 1)
    needed = N0 * np.exp([0.0, *extra])
    high = needed * (1 + grid)
    high[-1] = math.inf if censored else high[-1]
    knee = explain_knee(train_batch=batch, responses_low=needed * (1 - grid), responses_high=high, spread=spread)
    assert sum(e.probability for e in knee.explanations) == pytest.approx(1)
    assert knee.train_batch in batch[1:]
    assert all(math.isfinite(e.information) and e.cost > 0 for e in knee.experiments)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"train_batch": [256.0], "responses_low": [1.0], "responses_high": [2.0]}, "1 arm cannot depart"),
        ({"responses_low": [3.0, 1.0]}, "lies between 3 and 2"),
        ({"responses_high": [math.inf, 2.0]}, "reference never reaches"),
        ({"learning_rate_ratio": [1.0, 0.0]}, "not positive"),
        ({"learning_rate_ratio": [1.0]}, "2 batches, 1 rates"),
        ({"spread": 0.0}, "spread is 0"),
        ({"train_batch": [256.0, -1.0]}, "train_batch is -1"),
    ],
)
def test_what_cannot_be_weighed_is_refused(changes: dict[str, object], text: str) -> None:
    arguments = {"train_batch": [256.0, 512.0], "responses_low": [1.0, 1.0], "responses_high": [2.0, 2.0]}
    with pytest.raises(InputError, match=text):
        explain_knee(**(arguments | changes))  # type: ignore[arg-type]


def runs_with(costs: dict[int, float]) -> Knee:
    curve = Curve(family="exponential", start=0.2, asymptote=0.8, scale=40_000)
    runs = simulate_runs(
        curve, costs=costs, responses_max=90_000, evaluation_spacing=2048, update_time_intercept=60,
        update_time_slope=0.1, runs=3, score_error=0.003, spread=0.03, group_size=8,
        learning_rates={b: 1e-6 * math.sqrt(b / 256) for b in costs},
    )  # fmt: skip
    return knee_of_runs(measure(runs, target=0.6))


def test_measured_runs_go_through() -> None:
    assert not runs_with({256: 1.0, 512: 1.0, 1024: 1.0}).is_shown
    knee = runs_with({256: 1.0, 512: 1.1, 1024: 1.6})
    assert knee.is_shown
    assert knee.train_batch == 1024


def test_command_prints_and_writes_it(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["measure", "--example", "verl-sweep", "--target", "0.55", "--knee"]
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--json"])
    assert stop.value.code == 0
    knee = json.loads(capsys.readouterr().out)["knee"]
    assert {e["name"] for e in knee["explanations"]} == NAMES
    assert knee["cheapest"] in knee["experiments"]
    with pytest.raises(SystemExit):
        main(arguments)
    assert "why N* departs" in capsys.readouterr().out


def test_command_refuses_a_departure_without_a_target(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["measure", "--example", "verl-sweep", "--knee"])
    assert stop.value.code == 2
    assert "target" in capsys.readouterr().err
