from __future__ import annotations

import json
import math

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from batchsim.cli import main
from batchsim.recommend import CAP, WORTH_MEASURING, decide, expected_regret, recommend
from batchsim.recommend.next_run import KNOWN
from batchsim.time_to_target import effective_range, p_near_best, star


def draws(spread: list[float], centre: list[float], *, count: int = 4000, seed: int = 0) -> NDArray[np.float64]:
    """Log-normal time ratios, independent over batches; spread 0 is a batch that is known."""
    z = np.random.default_rng(seed).standard_normal((count, len(centre)))
    return np.asarray(np.array(centre) * np.exp(np.array(spread) * z))


class TestNextRun:
    def test_nothing_uncertain_nothing_to_measure(self) -> None:
        assert recommend(draws([0, 0, 0], [1.0, 0.8, 0.9])).next_run is None

    def test_value_of_the_one_unknown_batch(self) -> None:
        # Only batch 1 is unknown: measured, the choice is the better of it and 1, worth E[min] exactly.
        t = draws([0, 0.3], [1.0, 1.0], count=20_000)
        found = recommend(t, run_error=0.0).next_run
        assert found is not None
        assert found.index == 1
        worth = min(1.0, t[:, 1].mean()) - np.minimum(1.0, t[:, 1]).mean()
        assert found.gain == pytest.approx(worth, rel=0.05)

    def test_a_hopeless_batch_is_not_worth_a_run(self) -> None:
        # Uncertain, but never near the best.
        assert recommend(draws([0, 0.1], [1.0, 3.0])).next_run is None

    def test_of_two_equal_promises_the_cheaper_run_comes_first(self) -> None:
        # Both shift the choice by the same gain; batch 2 takes twice as long because its draws are mixed with bad ones.
        rng = np.random.default_rng(1)
        good = rng.uniform(size=8000) < 0.5
        t = np.stack([np.ones(8000), np.where(good, 0.8, 1.2), np.where(good, 0.8, 4.0)], axis=1)
        found = recommend(t).next_run
        assert found is not None
        assert found.index == 1

    def test_one_measurement_informs_batches_that_share_its_unknown(self) -> None:
        z = np.random.default_rng(2).standard_normal(4000)
        t = np.stack([np.ones(4000), np.exp(0.2 * z), np.exp(0.2 * z) * 1.001], axis=1)
        found = recommend(t, measured=np.array([True, True, False])).next_run
        assert found is not None
        assert found.index == 2

    def test_what_was_measured_is_not_proposed_again(self) -> None:
        t = draws([0, 0.3], [1.0, 1.0])
        assert recommend(t, measured=np.array([True, True])).next_run is None

    @given(
        spread=st.lists(st.floats(0, 0.8), min_size=2, max_size=6),
        seed=st.integers(0, 100),
        diverges=st.floats(0, 0.3),
    )
    def test_never_promises_more_than_perfect_knowledge(self, spread: list[float], seed: int, diverges: float) -> None:
        t = draws(spread, np.linspace(0.8, 1.3, len(spread)).tolist(), count=500, seed=seed)
        t[np.random.default_rng(seed).uniform(size=t.shape) < diverges] = math.inf
        answer = recommend(t)
        assert (answer.effective_range, answer.star) == (effective_range(t), star(t))
        if answer.next_run is not None:
            capped = np.minimum(t, CAP)
            perfect = capped.mean(axis=0).min() - capped.min(axis=1).mean()
            assert answer.next_run.gain >= WORTH_MEASURING
            # A regression of finite draws may exceed the bound by its own error.
            assert answer.next_run.gain <= perfect + 0.1 * capped.std(axis=0).max() / math.sqrt(5)

    def test_a_noisy_measurement_is_worth_less(self) -> None:
        t = draws([0, 0.3], [1.0, 1.0], count=20_000)
        exact, noisy = recommend(t, run_error=0.0).next_run, recommend(t, run_error=0.3).next_run
        assert exact is not None
        assert noisy is not None
        # The standard deviation of what is learned falls by sqrt(2), and the value of a choice between equals with it.
        assert noisy.gain == pytest.approx(exact.gain / math.sqrt(2), rel=0.1)

    def test_measuring_stops_once_the_best_is_known(self) -> None:
        # In 92 % of the draws the second batch is best by far; the rest is worth a run only to those who do not stop.
        bad = np.random.default_rng(3).uniform(size=5000) < 0.08
        t = np.stack([np.ones(5000), np.where(bad, 3.0, 0.8)], axis=1)
        found = recommend(t)
        assert found.is_known
        assert found.p_best == pytest.approx(p_near_best(t).max())
        assert found.next_run is None
        worse = np.stack([np.ones(5000), np.where(np.random.default_rng(4).uniform(size=5000) < 0.2, 3.0, 0.8)], axis=1)
        assert not recommend(worse).is_known
        assert recommend(worse).next_run is not None


class TestExpectedRegret:
    def test_of_two_draws(self) -> None:
        t = np.array([[1.0, 2.0], [1.0, 0.5]])
        assert expected_regret(t).tolist() == [0.5, 0.5]

    def test_a_batch_that_diverges_costs_the_cap(self) -> None:
        assert expected_regret(np.array([[1.0, math.inf]])).tolist() == [0.0, CAP - 1]

    @given(spread=st.lists(st.floats(0, 0.8), min_size=2, max_size=6), seed=st.integers(0, 50))
    def test_not_negative_and_zero_only_for_a_batch_that_always_wins(self, spread: list[float], seed: int) -> None:
        t = draws(spread, [1.0] * len(spread), count=200, seed=seed)
        found = expected_regret(t)
        assert (found >= 0).all()
        assert ((found == 0) == (t == t.min(axis=1, keepdims=True)).all(axis=0)).all()


def forecast(time: NDArray[np.float64], cost: list[float], star_at: float | None) -> xr.Dataset:
    """A forecast over 256, 512, 1024 with the given draws of T/T_0."""
    r_n = np.ones_like(time) * cost
    r_q = np.where(np.isfinite(time), r_n / np.where(np.isfinite(time), time, 1.0), 2.0)
    names = ("draw", "train_batch")
    return xr.Dataset(
        {"time_ratio": (names, time), "sample_cost_ratio": (names, r_n), "throughput_ratio": (names, r_q)},
        coords={"train_batch": [256.0, 512.0, 1024.0]},
        attrs={"reference_batch": 256.0, "star": star_at, "next_run": None, "lr_rule": "sqrt"},
    )


class TestDecision:
    def test_the_star_is_run_and_justified_by_the_criterion(self) -> None:
        found = decide(forecast(draws([0, 0, 0], [1.0, 0.6, 0.9]), [1.0, 1.2, 2.0], 512.0))
        assert (found.train_batch, found.is_star, found.is_known) == (512.0, True, True)
        assert found.expected_regret == 0
        assert (
            found.sentences[0] == "Run B = 512: T/T0 = 0.60, since r_q = 2.00 exceeds r_N = 1.20 under the rule sqrt."
        )
        assert "B = 256 takes 67 % longer: 0.50 times the throughput for 0.83 times the responses." in found.sentences
        assert found.sentences[-1].startswith("The best is known: B = 512")

    def test_without_a_star_the_least_expected_regret_decides(self) -> None:
        t = draws([0, 0.6, 0.6], [1.0, 0.85, 0.95])
        found = decide(forecast(t, [1.0, 1.2, 2.0], None))
        assert not found.is_star
        assert found.train_batch == [256.0, 512.0, 1024.0][int(np.argmin(expected_regret(t)))]
        assert "probability 1/2" in found.sentences[1]
        assert not found.is_known
        assert found.p_near_best < KNOWN

    def test_the_reference_is_kept_where_it_is_best(self) -> None:
        found = decide(forecast(draws([0, 0, 0], [1.0, 1.2, 2.0]), [1.0, 1.2, 2.0], 256.0))
        assert found.sentences[0] == "Keep B = 256, the reference."

    def test_a_neighbour_that_diverges_is_said_to(self) -> None:
        t = np.array([[1.0, 0.7, math.inf]] * 20)
        found = decide(forecast(t, [1.0, 1.2, math.inf], 512.0))
        assert "B = 1024 diverges in the median draw." in found.sentences

    def test_where_all_diverge_nothing_is_said_to_be_best(self) -> None:
        found = decide(forecast(np.full((20, 3), math.inf), [math.inf] * 3, None))
        assert found.sentences[0].startswith("Training diverges at every candidate")
        assert not any("the best" in said for said in found.sentences[:-1])

    def test_no_difference_is_no_saving(self) -> None:
        found = decide(forecast(np.ones((20, 3)), [1.0, 1.0, 1.0], 256.0))
        assert "B = 512 takes 0 % longer: 1.00 times the throughput for 1.00 times the responses." in found.sentences

    def test_the_command_states_it(self, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ["predict", "--example", "verl-sweep", "--target", "0.55", "--draws", "200"]
        with pytest.raises(SystemExit):
            main([*arguments, "--json"])
        answer = json.loads(capsys.readouterr().out)
        decision = answer["decision"]
        assert decision["train_batch"] == answer["star"]
        assert decision["is_star"]
        with pytest.raises(SystemExit):
            main(arguments)
        printed = " ".join(capsys.readouterr().out.split())
        assert decision["sentences"][0][:-1] in printed
        assert decision["sentences"][1] in printed
