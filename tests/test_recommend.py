from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from batchsim.recommend import CAP, WORTH_MEASURING, recommend
from batchsim.time_to_target import effective_range, star


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
        found = recommend(t).next_run
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
