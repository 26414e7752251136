from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from batchsim.errors import InputError
from batchsim.learning.lr_rule import EXPONENTS, RULES, learning_rate_ratio, rule_name
from batchsim.learning.sample_cost import cost_at_rate

ratio = st.floats(1 / 64, 256)
fraction = st.floats(0.01, 1.9)
slope = st.floats(0.2, 1.0)


def rate(x: float, rule: str, c0: float = 0.0, rk: float = 1.0, hr: float = 1.0, ceiling: float = np.inf) -> float:
    return float(learning_rate_ratio(x, lr_rule=rule, lr_fraction=c0, slope_ratio=rk, cost_ratio=hr, ceiling=ceiling))


class TestPowers:
    @pytest.mark.parametrize(("rule", "expected"), [("fixed", 1.0), ("sqrt", 4.0), ("linear", 16.0)])
    def test_sixteen_times_the_batch(self, rule: str, expected: float) -> None:
        assert rate(16.0, rule) == expected

    @given(x=ratio, y=ratio, rule=st.sampled_from(sorted(EXPONENTS)))
    def test_two_changes_of_batch_compose(self, x: float, y: float, rule: str) -> None:
        assert rate(x * y, rule) == pytest.approx(rate(x, rule) * rate(y, rule), rel=1e-12)


class TestTuned:
    @given(x=ratio, c0=fraction, rk=slope, hr=st.floats(0.2, 5))
    def test_no_other_rate_costs_less(self, x: float, c0: float, rk: float, hr: float) -> None:
        def cost(s: float) -> float:
            return float(cost_at_rate(x, learning_rate_ratio=s, lr_fraction=c0, slope_ratio=rk, cost_ratio=hr))

        best = rate(x, "tuned", c0, rk, hr)
        assert all(cost(best) <= cost(best * wrong) for wrong in (0.5, 0.9, 0.999, 1.001, 1.1, 1.9))

    def test_is_unbounded_where_the_optimum_is_not_known(self) -> None:
        assert rate(4.0, "tuned", 0.0) == math.inf
        assert rate(4.0, "tuned", 0.0, ceiling=3.0) == 3.0


class TestInvariant:
    @given(x=ratio, c0=st.one_of(st.just(0.0), st.floats(1e-6, 1.9)), rk=slope, hr=st.floats(0.2, 5))
    def test_costs_exactly_the_same_where_any_rate_does(self, x: float, c0: float, rk: float, hr: float) -> None:
        room = x * rk**2 * hr * c0 * (2 - c0)
        assume(abs(room - 1) > 1e-9)
        s = rate(x, "invariant", c0, rk, hr)
        r_n = float(cost_at_rate(x, learning_rate_ratio=s, lr_fraction=c0, slope_ratio=rk, cost_ratio=hr))
        if room <= 1:
            assert r_n == pytest.approx(1, rel=1e-6)
        else:
            assert r_n > 1
            assert s == rate(x, "tuned", c0, rk, hr)

    @given(x=ratio, c0=fraction, rk=slope)
    def test_is_the_smaller_of_the_two_rates(self, x: float, c0: float, rk: float) -> None:
        assert rate(x, "invariant", c0, rk) <= rate(x, "tuned", c0, rk) * (1 + 1e-9)

    @given(x=ratio, rk=slope)
    def test_far_below_the_optimum_is_x_rk(self, x: float, rk: float) -> None:
        assert rate(x, "invariant", 0.0, rk) == pytest.approx(x * rk, rel=1e-14)


class TestCeiling:
    @given(x=ratio, rule=st.sampled_from(RULES), c0=fraction, rk=slope, ceiling=st.floats(0.1, 10))
    def test_is_the_smaller_of_rule_and_ceiling(
        self, x: float, rule: str, c0: float, rk: float, ceiling: float
    ) -> None:
        assert rate(x, rule, c0, rk, ceiling=ceiling) == min(rate(x, rule, c0, rk), ceiling)


class TestUserRule:
    def test_a_function_of_the_batch_ratio(self) -> None:
        s = learning_rate_ratio([1.0, 4.0], lr_rule=lambda x: x**0.25)
        assert s == pytest.approx([1.0, math.sqrt(2)])
        assert rule_name(lambda x: x) == "user"

    @pytest.mark.parametrize("bad", [0.0, -1.0, math.nan])
    def test_a_rate_that_is_not_positive_is_refused(self, bad: float) -> None:
        with pytest.raises(InputError, match=f"returned {bad}"):
            learning_rate_ratio([1.0, 2.0], lr_rule=lambda x: np.where(x > 1, bad, 1.0))

    def test_an_unknown_name_gets_its_neighbour(self) -> None:
        with pytest.raises(InputError, match="'squareroot'"):
            rule_name("squareroot")
        with pytest.raises(InputError, match=r"'liner'.*did you mean 'linear'"):
            learning_rate_ratio(2.0, lr_rule="liner")
