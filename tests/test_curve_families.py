"""Reference curves and their fits: closed forms, inverses, recovery, what cannot be known, measured curves."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchsim.errors import InputError
from batchsim.learning.curve import (
    FAMILIES,
    Curve,
    fit_curve,
    fit_families,
    holdout_error,
    responses_at,
    score_at,
    slope_at,
)

curves = st.builds(
    Curve,
    family=st.sampled_from(sorted(FAMILIES)),
    start=st.floats(-0.5, 0.4),
    asymptote=st.floats(0.5, 2),
    scale=st.floats(1e2, 1e6),
    exponent=st.floats(0.2, 5),
)


class TestFamilies:
    @given(curve=curves, share=st.floats(0.001, 0.999))
    def test_inverse(self, curve: Curve, share: float) -> None:
        score = curve.start + share * (curve.asymptote - curve.start)
        assert score_at(curve, responses_at(curve, score)) == pytest.approx(score, rel=1e-9, abs=1e-9)

    @given(curve=curves, x=st.floats(1e-3, 5))
    def test_inverse_of_the_curve(self, curve: Curve, x: float) -> None:
        u = x * curve.scale
        score = float(score_at(curve, u))
        left = abs(curve.asymptote - score) / (curve.asymptote - curve.start)
        if 1e-6 < left < 1 - 1e-6:
            assert responses_at(curve, score) == pytest.approx(u, rel=1e-6)

    @given(curve=curves, x=st.lists(st.floats(0, 1e4), min_size=2, max_size=20))
    def test_rises_between_start_and_asymptote(self, curve: Curve, x: list[float]) -> None:
        score = score_at(curve, np.sort(x) * curve.scale)
        assert (np.diff(score) >= 0).all()
        assert score[0] >= curve.start - 1e-12
        assert score[-1] <= curve.asymptote + 1e-12

    @given(curve=curves, x=st.floats(0.01, 5))
    def test_slope_is_the_derivative(self, curve: Curve, x: float) -> None:
        u, h = x * curve.scale, 1e-5 * x * curve.scale
        numeric = (score_at(curve, u + h) - score_at(curve, u - h)) / (2 * h)
        assert slope_at(curve, u) == pytest.approx(float(numeric), rel=1e-5, abs=1e-9 / curve.scale)

    def test_closed_forms(self) -> None:
        n = 3e4
        sigmoid = Curve(family="sigmoid", start=0.2, asymptote=0.7, scale=1e4, exponent=1.5)
        power = Curve(family="power", start=0.2, asymptote=0.7, scale=1e4, exponent=0.5)
        exponential = Curve(family="exponential", start=0.2, asymptote=0.7, scale=1e4)
        # ScaleRL: (R - R0) = (A - R0)/(1 + (Cmid/C)^B)
        assert score_at(sigmoid, n) == pytest.approx(0.2 + 0.5 / (1 + (1e4 / n) ** 1.5))
        # J_inf - a (S + m)^-alpha with a = (A - J0) m^alpha
        assert score_at(power, n) == pytest.approx(0.7 - 0.5 * 1e4**0.5 * (n + 1e4) ** -0.5)
        assert score_at(exponential, n) == pytest.approx(0.7 - 0.5 * math.exp(-3))

    def test_limits_at_zero_and_infinity(self) -> None:
        for family in FAMILIES:
            curve = Curve(family=family, start=0.2, asymptote=0.7, scale=1e4, exponent=2.0)
            assert score_at(curve, [0, 1e300]) == pytest.approx([0.2, 0.7])
            assert responses_at(curve, [0.1, 0.2, 0.7, 0.8]).tolist() == [0, 0, math.inf, math.inf]
            assert np.isnan(responses_at(curve, math.nan))
        slopes = [
            float(slope_at(Curve(family="sigmoid", start=0, asymptote=1, scale=10, exponent=e), 0)) for e in (0.5, 1, 2)
        ]
        assert slopes == [math.inf, pytest.approx(0.1), 0]

    def test_the_power_law_tends_to_the_exponential(self) -> None:
        n = np.linspace(0, 5e4, 20)
        power = Curve(family="power", start=0.1, asymptote=0.9, scale=1e4 * 1e6, exponent=1e6)
        exponential = Curve(family="exponential", start=0.1, asymptote=0.9, scale=1e4)
        assert score_at(power, n) == pytest.approx(score_at(exponential, n), abs=1e-5)

    def test_a_loss_falls(self) -> None:
        loss = Curve(family="power", start=10, asymptote=2, scale=1e3, exponent=0.5)
        assert (np.diff(score_at(loss, np.linspace(0, 1e4, 9))) < 0).all()
        assert score_at(loss, responses_at(loss, 3.0)) == pytest.approx(3.0)
        assert responses_at(loss, [11, 2]).tolist() == [0, math.inf]

    def test_errors_name_the_value(self) -> None:
        with pytest.raises(InputError, match="sigmoid"):
            Curve(family="sigmoit", start=0, asymptote=1, scale=1)
        with pytest.raises(InputError, match="scale is -1"):
            Curve(family="power", start=0, asymptote=1, scale=-1)
        with pytest.raises(InputError, match="asymptote is inf"):
            Curve(family="power", start=0, asymptote=math.inf, scale=1)


TRUE = {
    "sigmoid": Curve(family="sigmoid", start=0.28, asymptote=0.7, scale=6e4, exponent=1.6),
    "power": Curve(family="power", start=0.28, asymptote=0.8, scale=2e4, exponent=0.8),
    "exponential": Curve(family="exponential", start=0.28, asymptote=0.65, scale=5e4),
}


class TestFit:
    @pytest.mark.parametrize("family", sorted(FAMILIES))
    def test_recovers_its_own_curve(self, family: str) -> None:
        n = np.linspace(0, 3e5, 60)
        fit = fit_curve(n, score_at(TRUE[family], n), family=family)
        for name, value in fit.params.items():
            assert value == pytest.approx(getattr(TRUE[family], name), rel=1e-4)
        assert fit.success
        assert fit.identified
        assert fit.nfree == 60 - len(fit.params)
        assert "%" in fit.summary()

    @pytest.mark.parametrize("family", sorted(FAMILIES))
    def test_best_is_the_family_of_the_data(self, family: str) -> None:
        n = np.linspace(0, 5e5, 200)
        noise = np.random.default_rng(1).normal(0, 0.003, n.size)
        assert fit_curve(n, score_at(TRUE[family], n) + noise).curve.family == family

    def test_intervals_cover(self) -> None:
        n, rng, hits = np.linspace(0, 3e5, 60), np.random.default_rng(2), 0
        true = score_at(TRUE["exponential"], n)
        for _ in range(60):
            fit = fit_curve(n, true + rng.normal(0, 0.01, n.size), family="exponential")
            hits += abs(fit.params["asymptote"] - 0.65) < 2 * fit.stderr["asymptote"]
        assert hits >= 52

    def test_stated_errors_are_taken_at_their_word(self) -> None:
        n = np.linspace(0, 3e5, 60)
        score = score_at(TRUE["exponential"], n) + np.random.default_rng(3).normal(0, 0.01, n.size)
        free = fit_curve(n, score, family="exponential")
        known, doubled = (fit_curve(n, score, score_error=e, family="exponential") for e in (0.01, 0.02))
        assert known.params["scale"] == pytest.approx(free.params["scale"], rel=1e-4)
        assert doubled.stderr["scale"] == pytest.approx(2 * known.stderr["scale"], rel=1e-4)
        assert known.redchi == pytest.approx(1, abs=0.5)
        assert free.stderr["scale"] == pytest.approx(known.stderr["scale"] * math.sqrt(known.redchi), rel=1e-3)

    def test_the_unit_of_responses_scales_the_scale(self) -> None:
        n = np.linspace(0, 3e5, 40)
        score = score_at(TRUE["sigmoid"], n) + np.random.default_rng(4).normal(0, 0.003, n.size)
        one, other = (fit_curve(n / unit, score, family="sigmoid") for unit in (1.0, 64.0))
        assert other.params["scale"] == pytest.approx(one.params["scale"] / 64, rel=1e-3)
        assert other.chisqr == pytest.approx(one.chisqr, rel=1e-6)

    def test_a_run_that_still_rises_has_no_asymptote(self) -> None:
        n = np.linspace(0, 1e4, 25)
        score = score_at(TRUE["exponential"], n) + np.random.default_rng(5).normal(0, 0.005, n.size)
        for fit in fit_families(n, score, score_error=0.005).values():
            assert not fit.identified
            assert "not identified" in fit.message
        assert fit_curve(n, 0.2 + 1e-5 * n).identified is False

    def test_a_family_needs_more_scores_than_parameters(self) -> None:
        with pytest.raises(InputError, match="4 evaluations"):
            fit_curve([0, 1, 2, 3], [0.1, 0.2, 0.25, 0.3], family="sigmoid")
        assert set(fit_families([0, 1, 2, 3], [0.1, 0.2, 0.25, 0.28])) == {"exponential"}
        with pytest.raises(InputError, match="all scores are"):
            fit_curve(np.arange(9), np.full(9, 0.3), family="power")
        with pytest.raises(InputError, match="positive errors"):
            fit_curve(np.arange(9), np.arange(9), score_error=0.0, family="power")
        with pytest.raises(InputError, match="negative"):
            fit_curve(np.arange(9) - 1.0, np.arange(9), family="power")
        with pytest.raises(InputError, match="unknown family"):
            fit_curve(np.arange(9), np.arange(9), family="powr")

    def test_missing_scores_are_left_out(self) -> None:
        n = np.linspace(0, 3e5, 30)
        score = score_at(TRUE["exponential"], n)
        gaps = np.where(np.arange(30) % 3 == 1, np.nan, score)
        assert fit_curve(n, gaps, family="exponential").ndata == 20
        assert holdout_error(n, gaps, family="exponential") < 1e-6


class TestMeasured:
    """What the families are worth on real curves."""

    def test_tiny_grpo(self, shared: Path) -> None:
        curves: dict[str, list[tuple[float, float]]] = defaultdict(list)
        with open(shared / "tiny_grpo" / "evals.csv", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                curves[row["run"]].append((float(row["responses_kept"]), float(row["score"])))
        chosen = [f"sqrt_P{p}_s1" for p in (8, 64, 256)]
        errors = {family: [] for family in (*FAMILIES, "last")}  # type: dict[str, list[float]]
        for run in chosen:
            n, score = np.array(sorted(curves[run])).T
            for family, values in errors.items():
                values.append(holdout_error(n, score, family=family))
            assert not fit_curve(n, score, family="sigmoid").identified
        median = {family: np.median(values) for family, values in errors.items()}
        assert max(median[f] for f in FAMILIES) < 0.03
        assert median["last"] > 0.04

    def test_isocompute(self, shared: Path) -> None:
        with open(shared / "published" / "isocompute_lr_scaling_digitised.csv", encoding="utf-8") as file:
            rows = [r for r in csv.DictReader(file) if r["batch"].startswith("B=1024") and r["lr"] == "2e-7"]
        step, score = np.array(
            sorted((float(r["step"]), float(r["validation_reward_smoothed_by_authors"])) for r in rows)
        ).T
        fits = fit_families(step, score)
        assert min(fits, key=lambda f: fits[f].aic) == "sigmoid"
        assert fits["power"].aic - fits["sigmoid"].aic > 50
        assert holdout_error(step, score, family="sigmoid") < 0.5 * holdout_error(step, score, family="exponential")
