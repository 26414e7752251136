"""Seeds per arm: against simulation, known tables, monotony and refusals."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtri, stdtrit

from batchsim.cli import main
from batchsim.errors import InputError
from batchsim.recommend import power_of_seeds, seeds_needed
from batchsim.recommend.power import SEEDS_MAX


@pytest.mark.parametrize(
    ("seeds", "ratio", "spread", "level"),
    [(2, 1.15, 0.1, 0.8), (3, 1.15, 0.1, 0.8), (5, 1.1, 0.1, 0.9), (4, 0.85, 0.12, 0.95), (2, 1.5, 0.1, 0.95)],
)
def test_power_is_that_of_simulated_comparisons(seeds: int, ratio: float, spread: float, level: float) -> None:
    rng = np.random.default_rng(0)
    trials = 40_000
    arms = np.log([1.0, ratio])[:, None, None] + spread * rng.standard_normal((2, trials, seeds))
    gap = arms[1].mean(axis=1) - arms[0].mean(axis=1)
    own = np.sqrt(arms.var(axis=2, ddof=1).sum(axis=0) / seeds)
    shown = {
        "student": np.abs(gap) > stdtrit(2 * seeds - 2, (1 + level) / 2) * own,
        "normal": np.abs(gap) > ndtri((1 + level) / 2) * spread * math.sqrt(2 / seeds),
    }
    for kind, rejected in shown.items():
        said = power_of_seeds(seeds, ratio=ratio, spread=spread, level=level, kind=kind)
        assert float(said) == pytest.approx(rejected.mean(), abs=4 * 0.5 / math.sqrt(trials))


def test_grid_of_evaluations_counts_as_spread() -> None:
    rng = np.random.default_rng(1)
    trials, seeds, spacing = 40_000, 4, 0.3
    arms = np.log([1.0, 1.2])[:, None, None] + 0.05 * rng.standard_normal((2, trials, seeds))
    arms += spacing * (rng.uniform(size=arms.shape) - 0.5)
    gap = arms[1].mean(axis=1) - arms[0].mean(axis=1)
    error = math.hypot(0.05, spacing / math.sqrt(12)) * math.sqrt(2 / seeds)
    said = float(power_of_seeds(seeds, ratio=1.2, spread=0.05, kind="normal", evaluation_spacing=spacing))
    assert said == pytest.approx((np.abs(gap) > ndtri(0.9) * error).mean(), abs=0.02)


def test_textbook_sample_size() -> None:
    # Cohen's d = .5, two-sided 5 %, power .8: 64 per group, 63 with a known spread.
    ratio = math.exp(0.5)
    assert seeds_needed(ratio=ratio, spread=1.0, level=0.95) == 64
    assert seeds_needed(ratio=ratio, spread=1.0, level=0.95, kind="normal") == 63


@given(
    ratio=st.floats(0.3, 3), spread=st.floats(0.01, 0.5), kind=st.sampled_from(["student", "normal"]),
    level=st.floats(0.5, 0.99), power=st.floats(0.5, 0.99),
)  # fmt: skip
def test_needed_seeds_are_the_least_that_do(ratio: float, spread: float, kind: str, level: float, power: float) -> None:
    found = seeds_needed(ratio=ratio, spread=spread, kind=kind, level=level, power=power)
    if found is None:
        assert abs(math.log(ratio)) < 0.1 * spread
        return
    options = {"ratio": ratio, "spread": spread, "kind": kind, "level": level}
    assert power_of_seeds(found, **options) >= power  # type: ignore[arg-type]
    if found > 1:
        assert power_of_seeds(found - 1, **options) < power  # type: ignore[arg-type]


@given(seeds=st.integers(1, 60), ratio=st.floats(0.05, 20), spread=st.floats(0.01, 1), level=st.floats(0.5, 0.99))
def test_power_is_a_probability_and_the_same_for_a_ratio_and_its_inverse(
    seeds: int, ratio: float, spread: float, level: float
) -> None:
    for kind in ("student", "normal"):
        one = power_of_seeds(seeds, ratio=ratio, spread=spread, level=level, kind=kind)
        other = power_of_seeds(seeds, ratio=1 / ratio, spread=spread, level=level, kind=kind)
        assert 0 <= one <= 1
        assert one == pytest.approx(other, abs=1e-6)


def test_without_a_difference_power_is_the_error_rate() -> None:
    assert float(power_of_seeds(5, ratio=1.0, spread=0.1, level=0.8)) == pytest.approx(0.2)
    assert seeds_needed(ratio=1.0, spread=0.1) is None
    # The most that is counted is no power of two.
    most = seeds_needed(ratio=math.exp(0.00097), spread=0.1, kind="normal")
    assert most is not None
    assert 90_000 < most <= SEEDS_MAX
    assert seeds_needed(ratio=math.exp(0.0009), spread=0.1, kind="normal") is None


@pytest.mark.parametrize(
    ("given_", "text"),
    [
        ({"ratio": 0.0}, "ratio is 0"), ({"spread": 0.0}, "spread is 0"), ({"spread": 4.0}, "spread is 4"),
        ({"level": 1.0}, "level is 1"), ({"kind": "welch"}, "welch"), ({"power": 1.0}, "power is 1"),
        ({"evaluation_spacing": 2.0}, "evaluation_spacing is 2"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused(given_: dict[str, float], text: str) -> None:
    with pytest.raises(InputError, match=text):
        seeds_needed(**({"ratio": 1.1, "spread": 0.1} | given_))  # type: ignore[arg-type]


def test_command_prints_seeds_per_arm(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["power", "--ratio", "1.05,1.15", "--spread", "0.05,0.1", "--json"])
    assert stop.value.code == 0
    answer = json.loads(capsys.readouterr().out)
    assert [(r["ratio"], r["spread"]) for r in answer["rows"]] == [(1.05, 0.05), (1.05, 0.1), (1.15, 0.05), (1.15, 0.1)]
    for row in answer["rows"]:
        for kind in ("student", "normal"):
            assert row[f"seeds_{kind}"] == seeds_needed(ratio=row["ratio"], spread=row["spread"], kind=kind)
    with pytest.raises(SystemExit):
        main(["power", "--ratio", "1.15", "--spread", "0.05"])
    assert "seeds per arm" in capsys.readouterr().out


def test_command_refuses_a_ratio_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["power", "--ratio", "-1", "--spread", "0.05"])
    assert stop.value.code == 2
    assert "ratio is -1" in capsys.readouterr().err


def test_a_dash_is_explained_and_lists_have_examples_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["power", "--ratio", "1,1.2", "--spread", "0.05"])
    assert "r_N = 1, which no number of seeds shows" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        main(["power", "--spread", "5%"])
    assert stop.value.code == 2
    assert "as --spread 0.05,0.1" in capsys.readouterr().err
