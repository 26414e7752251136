from __future__ import annotations

import functools
import math

import naive
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from batchsim.errors import InputError
from batchsim.learning.lr_rule import RULES
from batchsim.learning.progress import signal_function, step_cost, usable_slope
from batchsim.learning.sample_cost import cost_at_rate, critical_train_batch, rates_at, sample_cost_ratio

factor = st.floats(1.0, 128.0)
any_factor = st.floats(1 / 64, 128.0)
noise = st.floats(0.05, 1000.0)
shape = st.one_of(st.just(math.inf), st.floats(0.2, 50.0))
fraction = st.one_of(st.just(0.0), st.floats(1e-6, 1.2))
positive_fraction = st.floats(0.01, 1.2)


def r_n(
    x: float,
    n: float,
    *,
    k: float = math.inf,
    c0: float = 0.0,
    rule: str = "sqrt",
    ceiling: float = math.inf,
    h: float = 1.0,
    optimizer: str = "adam",
) -> float:
    """r_N at x = B/B_0 with n = B_noise/B_0, the notation of the theory notes."""
    return float(
        sample_cost_ratio(
            x,
            reference_batch=1.0,
            noise_scale=n,
            snr_shape=k,
            lr_fraction=c0,
            lr_rule=rule,
            ceiling=ceiling,
            curvature_ratio=h,
            optimizer=optimizer,
        )
    )


class TestTheLawItself:
    @pytest.mark.parametrize("rule", ["fixed", "sqrt", "linear", "tuned"])
    @pytest.mark.parametrize("h", [1.0, 0.3, 4.0])
    @pytest.mark.parametrize(("n", "k", "c0"), [(8.0, math.inf, 0.3), (2.0, 0.5, 0.8), (30.0, 2.0, 0.05)])
    def test_is_the_cost_of_unit_progress(self, rule: str, h: float, n: float, k: float, c0: float) -> None:
        @functools.cache
        def slope(b: float) -> float:
            return math.sqrt(b / n) * naive.signal_function(b / n, k)

        def curvature(b: float) -> float:
            return naive.normalised_step_cost(b, n, h)

        for x in (0.25, 2.0, 8.0):
            rates: dict[str, float | str] = {"fixed": 1.0, "sqrt": math.sqrt(x), "linear": x, "tuned": "tuned"}
            expected = naive.sample_cost(x, 1.0, rates[rule], slope=slope, curvature=curvature, lr_fraction=c0)
            assert r_n(x, n, k=k, c0=c0, rule=rule, h=h) == pytest.approx(expected, rel=1e-6)

    @pytest.mark.parametrize(("n", "k", "c0"), [(8.0, math.inf, 0.3), (3.0, 0.5, 0.1)])
    def test_invariant_rate_is_the_first_that_costs_nothing(self, n: float, k: float, c0: float) -> None:
        for x in (0.5, 2.0, 6.0):
            rk = math.sqrt(1 / x) * naive.signal_function(1 / n, k) / naive.signal_function(x / n, k)
            room = x * rk**2 * c0 * (2 - c0)
            walked = naive.smallest_rate_of_equal_cost(
                lambda s, x=x, rk=rk: x * (rk / s) * (2 - c0) / (2 - c0 * s * rk) if c0 * s * rk < 2 else math.inf  # type: ignore[misc]
            )
            assert (walked is not None) == (room <= 1)
            rates = rates_at(x, reference_batch=1.0, noise_scale=n, snr_shape=k, lr_fraction=c0, lr_rule="invariant")
            if walked is not None:
                assert float(rates) == pytest.approx(walked, rel=1e-8)

    def test_diverges_exactly_where_a_step_undoes_its_progress(self) -> None:
        at = {"lr_fraction": 0.5, "slope_ratio": 0.5, "cost_ratio": 2.0}
        assert float(cost_at_rate(4.0, learning_rate_ratio=4.0, **at)) == math.inf
        assert math.isfinite(float(cost_at_rate(4.0, learning_rate_ratio=math.nextafter(4.0, 0), **at)))

    @given(x=factor, n=noise, k=shape, c0=positive_fraction)
    def test_an_infinite_cost_is_an_overshoot_and_nothing_else(self, x: float, n: float, k: float, c0: float) -> None:
        # Under the linear rule; c0 s rk against 2, away from rounding.
        rk = float(usable_slope(1.0, noise_scale=n, snr_shape=k) / usable_slope(x, noise_scale=n, snr_shape=k))
        assume(abs(c0 * x * rk - 2) > 1e-9)
        assert math.isinf(r_n(x, n, k=k, c0=c0, rule="linear")) == (c0 * x * rk > 2)


class TestPublishedNumbers:
    """Tables of the theory notes: section 1.3 (drift) and section A (k = 1/2)."""

    X = (2, 4, 8, 16, 32)

    @pytest.mark.parametrize(
        ("n", "c0", "row"),
        [
            (2, 0, (1.15, 1.41, 1.83, 2.45, 3.37)),
            (8, 0, (1.05, 1.15, 1.33, 1.63, 2.11)),
            (8, 0.33, (1.07, 1.19, 1.43, 1.87, 2.70)),
            (8, 1, (1.11, 1.37, 2.00, 4.45, math.inf)),
            (30, 0, (1.02, 1.05, 1.11, 1.22, 1.41)),
            (30, 0.33, (1.02, 1.06, 1.13, 1.27, 1.54)),
            (30, 1, (1.03, 1.10, 1.24, 1.56, 2.41)),
            (100, 0, (1.01, 1.02, 1.03, 1.07, 1.14)),
        ],
    )
    def test_sqrt_rule(self, n: float, c0: float, row: tuple[float, ...]) -> None:
        assert [r_n(x, n, c0=c0) for x in self.X] == pytest.approx(list(row), abs=0.0101)

    @pytest.mark.parametrize(
        ("n", "c0", "at_2", "at_8"),
        [
            (2, 0, 0.816, 0.645),
            (8, 0, 0.745, 0.471),
            (8, 0.33, 0.710, 0.427),
            (8, 1, 0.594, 0.308),
            (30, 0, 0.718, 0.391),
            (30, 0.33, 0.681, 0.349),
            (30, 1, 0.561, 0.243),
            (100, 0, 0.711, 0.366),
        ],
    )
    def test_fixed_rate_updates(self, n: float, c0: float, at_2: float, at_8: float) -> None:
        updates = [r_n(x, n, c0=c0, rule="fixed") / x for x in (2, 8)]
        assert updates == pytest.approx([at_2, at_8], abs=0.00101)

    @pytest.mark.parametrize(
        ("n", "row"),
        [
            (2, (1.33, 2.00, 3.33, 6.00, 11.3)),
            (8, (1.11, 1.33, 1.78, 2.67, 4.44)),
            (30, (1.03, 1.10, 1.23, 1.48, 2.00)),
            (100, (1.01, 1.03, 1.07, 1.15, 1.31)),
        ],
    )
    def test_tuned(self, n: float, row: tuple[float, ...]) -> None:
        assert [r_n(x, n, c0=1.0, rule="tuned") for x in self.X] == pytest.approx(list(row), rel=0.006)

    @pytest.mark.parametrize(
        ("b0", "row"),
        [
            (0.0226, (1.03, 1.08, 1.17, 1.32, 1.56, 1.93, 2.47)),
            (0.0832, (1.08, 1.21, 1.42, 1.74, 2.22)),
            (0.145, (1.11, 1.30, 1.58, 2.00, 2.62, 3.52, 4.82)),
        ],
    )
    def test_half_a_degree_of_freedom(self, b0: float, row: tuple[float, ...]) -> None:
        computed = [r_n(2.0 ** (i + 1), 1 / b0, k=0.5) for i in range(len(row))]
        # b0 itself is rounded to three digits.
        assert computed == pytest.approx(list(row), rel=0.007)

    def test_half_a_degree_of_freedom_at_a_fixed_rate(self) -> None:
        computed = [r_n(x, 1 / 0.145, k=0.5, rule="fixed") for x in (2, 4, 8, 16)]
        assert computed == pytest.approx([1.57, 2.60, 4.47, 8.00], rel=0.004)

    def test_drift_column_of_the_same_world(self) -> None:
        computed = [r_n(x, 1 / 0.145) for x in (2, 4, 8, 16, 32, 64, 128)]
        assert computed == pytest.approx([1.06, 1.17, 1.37, 1.70, 2.22, 3.00, 4.13], abs=0.0101)

    def test_what_the_papers_fixed_rate_pilot_means_under_drift(self) -> None:
        # Li et al.: updates ratio .75-.83 at twice the batch, B_0 = 1024: 1.7k to 7.2k responses.
        for updates, n in ((0.75, 7.0), (0.83, 1.65)):
            assert r_n(2, n, rule="fixed") / 2 == pytest.approx(updates, abs=0.002)

    def test_pretraining_with_tuned_rates(self) -> None:
        # Zhang 2024, 85M: r_N over B = 64 ... 16384 relative to 256, hyperbola b = 2235.
        measured = np.array([0.87, 0.87, 1, 1.05, 1.16, 1.51, 2.17, 3.85, 7.71])
        law = sample_cost_ratio(
            2.0 ** np.arange(6, 15), reference_batch=256, noise_scale=2235, lr_fraction=1.0, lr_rule="tuned"
        )
        # The scatter about the curve; the reference's own scatter shifts all ratios alike.
        assert np.std(np.log(law / measured)) < 0.07


class TestProperties:
    @given(n=noise, k=shape, c0=fraction, rule=st.sampled_from(sorted(set(RULES) - {"tuned"})), h=st.floats(0.2, 5))
    def test_reference_costs_one(self, n: float, k: float, c0: float, rule: str, h: float) -> None:
        assert r_n(1.0, n, k=k, c0=c0, rule=rule, h=h) == pytest.approx(1, rel=1e-7)

    @given(n=noise, k=shape, c0=positive_fraction)
    def test_tuning_the_reference_saves_its_distance_from_the_optimum(self, n: float, k: float, c0: float) -> None:
        assert r_n(1.0, n, k=k, c0=c0, rule="tuned") == pytest.approx(c0 * (2 - c0), rel=1e-9)

    @given(x=any_factor, n=noise, k=shape, c0=positive_fraction)
    def test_tuned_is_the_square_of_the_signal_ratio(self, x: float, n: float, k: float, c0: float) -> None:
        # P15; for drift the square is the hyperbola kappa of the notes.
        kappa = (float(signal_function(1 / n, snr_shape=k)) / float(signal_function(x / n, snr_shape=k))) ** 2
        assert r_n(x, n, k=k, c0=c0, rule="tuned") == pytest.approx(kappa * c0 * (2 - c0), rel=1e-9)
        if math.isinf(k):
            assert kappa == pytest.approx((x + n) / (1 + n), rel=1e-9)

    @given(x=any_factor, y=st.floats(1.01, 4), n=noise, k=shape, c0=positive_fraction)
    def test_tuned_needs_more_responses_and_fewer_updates(
        self, x: float, y: float, n: float, k: float, c0: float
    ) -> None:
        # P2.
        small, large = (r_n(v, n, k=k, c0=c0, rule="tuned") for v in (x, x * y))
        assert large > small
        assert large / (x * y) < small / x

    @given(s_min=st.floats(1, 1e5), e_min=st.floats(1, 1e7), x=st.floats(0.01, 100))
    def test_tuned_drift_is_mccandlishs_hyperbola(self, s_min: float, e_min: float, x: float) -> None:
        # P9: (S/S_min - 1)(E/E_min - 1) = 1 with B_noise = E_min/S_min, read off r_N alone.
        b_noise = e_min / s_min
        tiny = b_noise * 1e-9
        e = e_min * float(
            sample_cost_ratio(x * b_noise, reference_batch=tiny, noise_scale=b_noise, lr_fraction=1.0, lr_rule="tuned")
        )
        s = e / (x * b_noise)
        assert (s / s_min - 1) * (e / e_min - 1) == pytest.approx(1, rel=1e-5)

    @given(x=factor, n=noise, k=shape)
    def test_order_of_the_rules_far_below_the_optimum(self, x: float, n: float, k: float) -> None:
        # P3, P4, P5.
        fixed, root, linear = (r_n(x, n, k=k, rule=rule) for rule in ("fixed", "sqrt", "linear"))
        slack = 1 + 1e-8
        assert linear <= root * slack <= fixed * slack**2
        assert root * slack >= 1
        assert root <= math.sqrt(x) * slack
        assert math.sqrt(x) <= fixed * slack
        assert fixed <= x * slack

    @given(x=factor, n=noise, k=shape)
    def test_invariant_costs_nothing_far_below_the_optimum(self, x: float, n: float, k: float) -> None:
        # P6.
        assert r_n(x, n, k=k, rule="invariant") == pytest.approx(1, rel=1e-12)

    @given(x=factor, n=noise, k=shape, c0=positive_fraction)
    def test_invariance_is_attainable_iff_the_signal_allows_it(self, x: float, n: float, k: float, c0: float) -> None:
        ratio = float(signal_function(1 / n, snr_shape=k)) / float(signal_function(x / n, snr_shape=k))
        room = ratio**2 * c0 * (2 - c0)
        assume(abs(room - 1) > 1e-6)
        cost = r_n(x, n, k=k, c0=c0, rule="invariant")
        if room < 1:
            assert cost == pytest.approx(1, rel=1e-7)
        else:
            assert cost == pytest.approx(room, rel=1e-9)

    @given(x=factor, n=noise, k=shape, c0=st.floats(0, 0.9), y=st.floats(1.01, 4))
    def test_sqrt_rule_only_ever_loses_with_the_batch(self, x: float, n: float, k: float, c0: float, y: float) -> None:
        small, large = r_n(x, n, k=k, c0=c0), r_n(x * y, n, k=k, c0=c0)
        assert large >= small * (1 - 1e-9)

    @given(x=factor, n=noise, k=shape, c0=positive_fraction, rule=st.sampled_from(RULES), ceiling=st.floats(1, 20))
    def test_a_ceiling_never_helps_below_the_optimum(
        self, x: float, n: float, k: float, c0: float, rule: str, ceiling: float
    ) -> None:
        # Above it, a ceiling pulls an overshooting rate back: then the tuned cost is the floor.
        law = {"reference_batch": 1.0, "noise_scale": n, "snr_shape": k, "lr_fraction": c0}
        free = float(rates_at(x, lr_rule=rule, **law))  # type: ignore[arg-type]
        best = float(rates_at(x, lr_rule="tuned", **law))  # type: ignore[arg-type]
        capped = r_n(x, n, k=k, c0=c0, rule=rule, ceiling=ceiling)
        if free <= best:
            assert capped >= r_n(x, n, k=k, c0=c0, rule=rule) * (1 - 1e-9)
        assert capped >= r_n(x, n, k=k, c0=c0, rule="tuned") * (1 - 1e-9)

    @given(
        x=any_factor, n=noise, k=shape, c0=st.floats(0.01, 0.9), rule=st.sampled_from(RULES), unit=st.floats(1e-3, 1e3)
    )
    def test_the_unit_of_batches_does_not_matter(
        self, x: float, n: float, k: float, c0: float, rule: str, unit: float
    ) -> None:
        scaled = sample_cost_ratio(
            x * unit, reference_batch=unit, noise_scale=n * unit, snr_shape=k, lr_fraction=c0, lr_rule=rule
        )
        expected = r_n(x, n, k=k, c0=c0, rule=rule)
        assume(not math.isinf(expected) and expected < 1e3)
        assert float(scaled) == pytest.approx(expected, rel=1e-6)

    @given(x=any_factor, y=any_factor, n=noise, k=shape)
    def test_ratios_chain_over_references(self, x: float, y: float, n: float, k: float) -> None:
        # N*(B_2)/N*(B_0) = N*(B_2)/N*(B_1) N*(B_1)/N*(B_0), far below the optimal rate.
        direct = r_n(x * y, n, k=k)
        assert r_n(x, n, k=k) * r_n(y, n / x, k=k) == pytest.approx(direct, rel=1e-8)

    @pytest.mark.parametrize("optimizer", ["adam", "sgd"])
    def test_equal_curvatures_are_the_default(self, optimizer: str) -> None:
        for x in (0.5, 3.0):
            law = {"reference_batch": 1.0, "noise_scale": 5.0, "lr_fraction": 0.4, "optimizer": optimizer}
            given_one = sample_cost_ratio(x, curvature_ratio=1.0, **law)  # type: ignore[arg-type]
            assert float(given_one) == float(sample_cost_ratio(x, **law))  # type: ignore[arg-type]

    @given(
        x=any_factor,
        n=noise,
        c0=st.one_of(st.just(0.0), st.floats(1e-6, 0.9)),
        rule=st.sampled_from(["fixed", "sqrt", "invariant"]),
    )
    def test_drift_is_the_limit_of_no_spread(self, x: float, n: float, c0: float, rule: str) -> None:
        drift = r_n(x, n, c0=c0, rule=rule)
        assume(math.isfinite(drift) and drift < 100)
        assert r_n(x, n, k=1e8, c0=c0, rule=rule) == pytest.approx(drift, rel=1e-4)


class TestLimits:
    """P17: an endless noise scale gives every rule a finite limit."""

    @pytest.mark.parametrize("k", [0.5, 3.0, math.inf])
    @given(x=any_factor)
    def test_of_endless_noise(self, k: float, x: float) -> None:
        limits = {"sqrt": 1.0, "fixed": math.sqrt(x), "linear": 1 / math.sqrt(x), "invariant": 1.0}
        for rule, limit in limits.items():
            assert r_n(x, 1e12, k=k, rule=rule) == pytest.approx(limit, rel=1e-6)
        assert r_n(x, 1e12, k=k, c0=0.3, rule="tuned") == pytest.approx(0.3 * 1.7, rel=1e-6)

    @given(x=factor)
    def test_of_no_noise(self, x: float) -> None:
        assert r_n(x, 1e-9, rule="fixed") == pytest.approx(x, rel=1e-6)
        assert r_n(x, 1e-9, rule="sqrt") == pytest.approx(math.sqrt(x), rel=1e-6)

    def test_infinite_noise_scale_is_the_limit_or_refused(self) -> None:
        """No upper limit of the noise scale must never read as divergence."""
        try:
            cost = sample_cost_ratio(2000, reference_batch=1000, noise_scale=math.inf)
        except InputError:
            return
        assert float(cost) == pytest.approx(1)


class TestSGD:
    @given(x=any_factor, n=noise, c0=positive_fraction)
    def test_tuned_is_the_same_hyperbola_as_adams(self, x: float, n: float, c0: float) -> None:
        hyperbola = (x + n) / (1 + n) * c0 * (2 - c0)
        assert r_n(x, n, c0=c0, rule="tuned", optimizer="sgd") == pytest.approx(hyperbola, rel=1e-9)

    @given(x=any_factor, n=noise)
    def test_small_rates_need_a_linear_rule(self, x: float, n: float) -> None:
        assert r_n(x, n, rule="linear", optimizer="sgd") == pytest.approx(1, rel=1e-12)
        assert r_n(x, n, rule="fixed", optimizer="sgd") == pytest.approx(x, rel=1e-12)

    def test_against_progress_spent(self) -> None:
        for x in (0.5, 4.0):
            expected = naive.sample_cost(
                x, 1.0, x, slope=lambda b: 1.0, curvature=lambda b: 1 + 6.0 / b, lr_fraction=0.2
            )
            assert r_n(x, 6.0, c0=0.2, rule="linear", optimizer="sgd") == pytest.approx(expected, rel=1e-6)


class TestCriticalBatch:
    def critical(self, *, reference: float = 1.0, n: float = 1000.0, **law: object) -> float:
        return float(critical_train_batch(reference_batch=reference, noise_scale=n, **law))  # type: ignore[arg-type]

    def test_closed_forms_of_drift(self) -> None:
        assert self.critical(lr_rule="sqrt") == pytest.approx(0.21 * 1000, rel=1e-6)
        assert self.critical(lr_rule="tuned", lr_fraction=1.0) == pytest.approx(0.10 * 1000, rel=1e-6)

    @pytest.mark.parametrize("k", [0.5, 2.0])
    def test_against_a_walk_along_the_batches(self, k: float) -> None:
        batch = 10.0
        while 1 / naive.signal_function(batch / 1000, k) <= 1.10:
            batch *= 1.05
        assert batch / 1.05 <= self.critical(snr_shape=k) <= batch

    @given(reference=st.floats(1, 1e4))
    def test_does_not_depend_on_the_reference_far_below_the_optimum(self, reference: float) -> None:
        assert self.critical(reference=reference) == pytest.approx(210, rel=1e-6)

    def test_invariant_holds_until_no_rate_will_do(self) -> None:
        # Then the tuned rate: 1.1 = c0 (2 - c0) (1 + b)/(1 + b0) for drift.
        c0, n, reference = 0.3, 1000.0, 100.0
        expected = n * (1.1 / (c0 * (2 - c0)) * (1 + reference / n) - 1)
        found = self.critical(reference=reference, n=n, lr_rule="invariant", lr_fraction=c0)
        assert found == pytest.approx(expected, rel=1e-6)

    def test_invariance_without_end_has_no_critical_batch(self) -> None:
        # At c0 = 0 every batch costs the same: the answer is infinite, not the edge of a search.
        assert self.critical(lr_rule="invariant") == math.inf

    def test_a_ceiling_brings_it_forward(self) -> None:
        free = self.critical(reference=100.0, n=1e5)
        capped = self.critical(reference=100.0, n=1e5, ceiling=2.0)
        # sqrt(x) = 2 at four times the reference; from there the cost grows like sqrt(x).
        assert capped < free
        assert capped == pytest.approx(100 * 4 * 1.21, rel=0.02)

    @pytest.mark.parametrize(("rule", "optimizer"), [("fixed", "adam"), ("linear", "adam"), ("sqrt", "sgd")])
    def test_no_small_batch_limit_no_critical_batch(self, rule: str, optimizer: str) -> None:
        assert math.isnan(self.critical(lr_rule=rule, optimizer=optimizer))

    def test_broadcasts_over_every_array(self) -> None:
        found = critical_train_batch(
            reference_batch=10.0,
            noise_scale=1000.0,
            lr_fraction=0.4,
            lr_rule="tuned",
            curvature_ratio=np.array([0.5, 1.0, 2.0]),
        )
        one_by_one = [
            self.critical(reference=10.0, lr_fraction=0.4, lr_rule="tuned", curvature_ratio=h) for h in (0.5, 1.0, 2.0)
        ]
        assert found == pytest.approx(one_by_one, rel=1e-9)


class TestBadInput:
    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"train_batch": 0}, "train_batch is 0"),
            ({"train_batch": -4}, "train_batch is -4"),
            ({"reference_batch": 0}, "reference_batch is 0"),
            ({"noise_scale": -1.0}, "noise_scale is -1"),
            ({"noise_scale": math.nan}, "noise_scale is nan"),
            ({"snr_shape": 0.0}, "snr_shape is 0"),
            ({"curvature_ratio": 0.0}, "curvature_ratio is 0"),
            ({"lr_fraction": 2.0}, r"lr_fraction is 2.*outside \[0, 2\)"),
            ({"lr_fraction": -0.1}, r"lr_fraction is -0.1, outside \[0, 2\)"),
            ({"ceiling": 0.0}, "ceiling is 0"),
            ({"ceiling": -1.0}, "ceiling is -1"),
            ({"optimizer": "muon"}, "'muon'.*adam, sgd"),
            ({"lr_rule": "sqr"}, "'sqr'.*did you mean 'sqrt'"),
            ({"lr_rule": "tuned"}, "lr_fraction is 0.*probe"),
        ],
    )
    def test_is_refused_with_its_value(self, change: dict[str, object], said: str) -> None:
        given = {"train_batch": 2000.0, "reference_batch": 1000.0, "noise_scale": 1000.0} | change
        with pytest.raises(InputError, match=said):
            sample_cost_ratio(given.pop("train_batch"), **given)  # type: ignore[arg-type]

    def test_tuned_without_a_known_optimum_runs_at_the_ceiling(self) -> None:
        capped = r_n(4.0, 8.0, rule="tuned", ceiling=3.0)
        rk = float(usable_slope(1.0, noise_scale=8.0) / usable_slope(4.0, noise_scale=8.0))
        assert capped == pytest.approx(4 * rk / 3)

    def test_one_bad_draw_in_an_array_is_enough(self) -> None:
        with pytest.raises(InputError, match="noise_scale is -3"):
            sample_cost_ratio(2.0, reference_batch=1.0, noise_scale=np.array([5.0, -3.0]))


def test_draws_and_batches_broadcast() -> None:
    batches, draws = np.array([1.0, 2.0, 8.0]), np.array([3.0, 30.0])
    grid = sample_cost_ratio(
        batches, reference_batch=1.0, noise_scale=draws[:, None], snr_shape=np.array([[0.5], [math.inf]])
    )
    assert grid.shape == (2, 3)
    assert grid[0, 2] == pytest.approx(r_n(8.0, 3.0, k=0.5), rel=1e-12)
    assert grid[1, 1] == pytest.approx(r_n(2.0, 30.0), rel=1e-12)
    assert step_cost(batches, noise_scale=draws[:, None]).shape == (2, 3)
