from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from batchsim.errors import InputError
from batchsim.plan import plan_from_dict
from batchsim.specs.lengths import Lengths
from batchsim.system.rollout import (
    Lognormal,
    draw,
    draw_kept,
    fit_lognormal,
    kept_share,
    lognormal_of_mean,
    response_law,
    truncated_mean,
)
from batchsim.system.rollout.lengths import draw_responses, steady_context


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


class TestLognormal:
    @given(
        mean=st.floats(10, 1e5), spread=st.floats(0, 2.5), room=st.one_of(st.just(math.inf), st.floats(1.01, 1000.0))
    )
    def test_the_mean_is_that_of_cut_lengths(self, mean: float, spread: float, room: float) -> None:
        fit = lognormal_of_mean(mean, spread, max_tokens=mean * room)
        assert truncated_mean(fit, mean * room) == pytest.approx(mean, rel=1e-9)

    def test_the_closed_form_is_the_integral(self) -> None:
        fit, limit = Lognormal(log_mean=7.0, log_deviation=0.9), 2500.0
        z = (np.arange(2_000_000) + 0.5) / 2_000_000
        from scipy.special import ndtri

        exact = np.minimum(np.exp(7.0 + 0.9 * ndtri(z)), limit).mean()
        assert truncated_mean(fit, limit) == pytest.approx(exact, rel=1e-5)

    def test_percentiles_of_a_lognormal_are_met(self) -> None:
        fit = fit_lognormal({50: 1000, 90: 1000 * math.exp(1.2815515655 * 0.8)}, mean=1000 * math.exp(0.32))
        assert fit.log_mean == pytest.approx(math.log(1000))
        assert fit.log_deviation == pytest.approx(0.8)
        assert fit.log_error < 1e-6

    def test_what_is_not_lognormal_is_said_so(self) -> None:
        assert fit_lognormal({50: 1000, 90: 1100, 99: 60_000}).log_error > 0.3

    def test_percentiles_at_the_limit_say_only_that_many_are_cut(self) -> None:
        with_cut = fit_lognormal({50: 2000, 90: 8192, 99: 8192}, mean=3000, max_tokens=8192)
        assert with_cut == fit_lognormal({50: 2000}, mean=3000, max_tokens=8192)

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda: fit_lognormal({50: 100}), "two of"),
            (lambda: fit_lognormal({50: 100, 90: 90}), "do not rise"),
            (lambda: fit_lognormal({0: 100, 90: 900}), "do not rise"),
            (lambda: fit_lognormal({50: 512, 90: 512}, max_tokens=512), "max_tokens"),
            (lambda: lognormal_of_mean(512, 0.5, max_tokens=512), "cannot be reached"),
        ],
    )
    def test_refusals(self, call: Any, message: str) -> None:
        with pytest.raises(InputError, match=message):
            call()


class TestDraw:
    LENGTHS = Lengths(prompt_mean=300, response_mean=1500, response_spread=0.9, max_tokens=6000)

    def test_mean_and_truncation_are_those_asked_for(self) -> None:
        drawn = draw(self.LENGTHS, groups=40_000, group_size=4, rng=rng())
        assert drawn.response_tokens.mean() == pytest.approx(1500, rel=0.01)
        law = response_law(self.LENGTHS)
        from scipy.special import ndtr

        cut = float(ndtr((law.log_mean - math.log(6000)) / law.log_deviation))
        assert drawn.truncated.mean() == pytest.approx(cut, rel=0.05)
        assert (drawn.response_tokens[drawn.truncated] == 6000).all()
        assert drawn.response_tokens.min() >= 1
        assert (drawn.prompt_tokens == 300).all()

    def test_a_larger_draw_begins_with_a_smaller_one(self) -> None:
        small = draw(self.LENGTHS, groups=50, group_size=4, rng=rng(3))
        large = draw(self.LENGTHS, groups=80, group_size=4, rng=rng(3))
        np.testing.assert_array_equal(large.response_tokens[:200], small.response_tokens)

    def test_siblings_resemble_each_other_as_much_as_asked(self) -> None:
        apart = Lengths(prompt_mean=10, response_mean=1500, response_spread=0.9, group_share=0.4)
        logs = np.log(draw(apart, groups=20_000, group_size=2, rng=rng()).response_tokens.reshape(-1, 2))
        assert np.corrcoef(logs.T)[0, 1] == pytest.approx(0.4, abs=0.02)
        assert logs.std() == pytest.approx(0.9, rel=0.02)

    def test_fixed_and_empirical(self) -> None:
        fixed = draw(Lengths(response_mean=70, distribution="fixed"), groups=3, group_size=1, rng=rng())
        assert fixed.response_tokens.tolist() == [70, 70, 70]
        seen = Lengths(response_sample=(5, 9, 100), distribution="empirical", max_tokens=50)
        drawn = draw(seen, groups=3000, group_size=1, rng=rng())
        assert set(drawn.response_tokens) == {5, 9, 50}
        assert drawn.truncated.mean() == pytest.approx(1 / 3, abs=0.03)

    def test_turns_share_the_tokens(self) -> None:
        tools = Lengths(
            prompt_mean=100,
            response_mean=900,
            turns=3,
            environment_seconds=2.0,
            environment_spread=0.5,
            environment_tokens=40,
        )
        drawn = draw(tools, groups=4000, group_size=1, rng=rng())
        whole = draw(Lengths(prompt_mean=100, response_mean=900), groups=4000, group_size=1, rng=rng())
        np.testing.assert_array_equal(drawn.response_tokens.sum(axis=1), whole.response_tokens)
        assert (drawn.response_tokens > 0).sum(axis=1).mean() == pytest.approx(3, abs=0.1)
        assert drawn.environment_seconds.mean() == pytest.approx(2.0, rel=0.03)
        assert (drawn.environment_tokens == 40).all()

    def test_without_lengths_it_asks_for_them(self) -> None:
        with pytest.raises(InputError, match="response_mean"):
            draw(Lengths(), groups=2, group_size=1, rng=rng())


class TestKept:
    @given(group_size=st.integers(1, 12), pass_rate=st.floats(0.05, 0.95), concentration=st.floats(0.1, 50))
    def test_share_is_the_integral_over_the_beta(self, group_size: int, pass_rate: float, concentration: float) -> None:
        from scipy.stats import betabinom

        law = betabinom(group_size, pass_rate * concentration, (1 - pass_rate) * concentration)
        exact = max(1 - law.pmf(0) - law.pmf(group_size), 0.0) if group_size > 1 else 0.0
        found = float(kept_share(group_size, pass_rate=pass_rate, concentration=concentration))
        assert found == pytest.approx(exact, abs=1e-9)

    def test_drawn_groups_follow_it(self) -> None:
        kept = draw_kept(groups=100_000, group_size=8, pass_rate=0.3, concentration=1.5, rng=rng())
        share = float(kept_share(8, pass_rate=0.3, concentration=1.5))
        assert kept.mean() == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / 100_000))

    @pytest.mark.parametrize(("name", "value"), [("pass_rate", 0.0), ("pass_rate", 1.0), ("concentration", 0.0)])
    def test_refusals(self, name: str, value: float) -> None:
        with pytest.raises(InputError, match=name):
            kept_share(8, **{name: value})


class TestSteadyContext:
    @pytest.mark.parametrize(
        "lengths",
        [
            Lengths(prompt_mean=300, response_mean=2000, response_spread=0.7),
            Lengths(prompt_mean=300, response_mean=2000, response_spread=0.9, max_tokens=4096),
            Lengths(response_p50=1000, response_p90=4000, max_tokens=8192),
            Lengths(prompt_mean=10, response_sample=(10, 30, 500), distribution="empirical"),
        ],
    )
    def test_weighs_lengths_by_their_time(self, lengths: Lengths) -> None:
        drawn, _ = draw_responses(lengths, groups=200_000, group_size=1, rng=rng())
        weighed = (lengths.prompt_mean or 0) + np.mean(drawn.astype(float) ** 2) / (2 * drawn.mean())
        assert steady_context(lengths) == pytest.approx(weighed, rel=0.01)

    def test_equal_lengths_have_the_plain_mean(self) -> None:
        for spread in (Lengths(response_mean=900, response_spread=0), Lengths(response_mean=900, distribution="fixed")):
            assert steady_context(spread) == pytest.approx(450)
        assert steady_context(Lengths(response_mean=900, max_tokens=900)) == 450
        assert steady_context(Lengths()) is None


class TestSpec:
    def test_context_in_flight(self) -> None:
        assert Lengths(prompt_mean=100, response_mean=900).context_in_flight == 550
        assert Lengths(response_sample=(10, 30), distribution="empirical").context_in_flight == 10
        assert Lengths().context_in_flight is None

    @pytest.mark.parametrize(
        "given_",
        [
            {"response_sample": (1, 2)},
            {"distribution": "empirical"},
            {"response_p50": 900, "response_p90": 800},
            {"response_mean": 900, "max_tokens": 800},
        ],
    )
    def test_contradictions_are_refused(self, given_: dict[str, Any]) -> None:
        with pytest.raises(InputError):
            Lengths(**given_)

    @pytest.mark.parametrize(
        "given_",
        [
            {"response_spread": -0.1},
            {"turns": 0.5},
            {"max_tokens": 0},
            {"group_share": 1.5},
            {"environment_seconds": -1},
        ],
    )
    def test_bounds(self, given_: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            Lengths(**given_)

    def test_a_plan_states_them(self) -> None:
        plan = plan_from_dict(
            {"recipe": {"prompts": 8}, "lengths": {"response_mean": 2000, "response_spread": 0.5, "max_tokens": 8192}}
        )
        assert plan.lengths.response_spread == 0.5
