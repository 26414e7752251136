"""The script that prints the theory notes' numbers: its lines, its world, and the sections without training."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "docs" / "theory_numbers.py"


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("theory_numbers", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize(
    ("ours", "notes", "verdict"),
    [
        ([1.154, 2.449], "1.15 2.45", "same"),
        ([1.162], "1.15", "same but for the last digit"),
        ([1.2], "1.0", "DIFFERS by up to +20.0 %"),
        ([0.9, 3.3], "1.0 3.0", "DIFFERS by up to"),
        ([19349.0], "19.3k", "same"),
        ([1200.0], "1.0k..1.4k", "same"),
        ([800.0], "1.0k..1.4k", "DIFFERS by up to -20.0 %"),
        ([math.inf], "inf", "same"),
        ([2.0], "inf", "DIFFERS"),
        ([math.nan], "1.0", "DIFFERS"),
        ([1.0], "", "not in the notes"),
        ([1.0, 2.0], "1.0", "the notes state 1 of 2 numbers"),
    ],
)
def test_verdicts(script: ModuleType, ours: list[float], notes: str, verdict: str) -> None:
    assert script.line("", ours, notes).verdict.startswith(verdict)


def test_what_is_drawn_has_a_tolerance(script: ModuleType) -> None:
    assert script.line("", 1.03, "1.000", within=0.05).verdict.startswith("same within 5 %")
    assert script.line("", 1.07, "1.000", within=0.05).verdict.startswith("DIFFERS")


def differing(lines: list[object]) -> list[str]:
    return [line.label for line in lines if line.verdict.startswith("DIFFERS")]  # type: ignore[attr-defined]


@pytest.mark.parametrize("section", ["section_a", "section_1_2", "section_1_3"])
def test_analytic_sections_agree_with_the_notes(script: ModuleType, section: str) -> None:
    assert differing(getattr(script, section)()) == []


def test_pitfalls_differ_in_the_one_number_whose_setting_is_unknown(script: ModuleType) -> None:
    assert differing(script.section_2()) == ["2.1 mean of per-update ratios, K = 2, 4000 coordinates"]


def test_the_transformer_agrees_but_for_intervals_and_the_window_of_the_noise_scale(
    script: ModuleType, shared: Path
) -> None:
    for lines in (script.section_b(shared), script.section_c(shared)):
        ours = ("by `batchsim.measure`", "B_noise", "that of P = 16..256")
        assert [label for label in differing(lines) if not any(word in label for word in ours)] == []


def test_a_section_without_its_data_says_so(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.main(["--data", str(tmp_path)])
    out = capsys.readouterr().out
    assert out.count("left out: ") == 2
    assert f"{tmp_path / 'tiny_ppo'} is absent" in out
    assert "THE SETTING IS OURS" not in out
    assert "n = 8, c0 = 1, sqrt rule, r_N at 2 to 32 times" in out


def test_the_worlds_seeds_are_counted(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        script.main(["--seeds", "0"])
    assert "--seeds is 0, and it must be positive" in capsys.readouterr().err


def brute_gradient(script: ModuleType, rng: np.random.Generator, w: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Gradient of one kept group of eight from features of full dimension, response by response."""
    while True:
        phi = rng.standard_normal((script.ANSWERS, w.size))
        share = np.exp(phi @ theta)
        share /= share.sum()
        answer = rng.choice(script.ANSWERS, size=script.GROUP, p=share)
        reward = (answer == (phi @ w).argmax()).astype(float)
        if 0 < reward.mean() < 1:
            advantage = (reward - reward.mean()) / reward.std()
            return np.asarray(advantage @ (phi[answer] - share @ phi) / script.GROUP)


def test_the_worlds_gradient_has_the_moments_of_full_features(script: ModuleType) -> None:
    world = script.World(dimension=6, prompts=1, learning_rate=1e-3, seed=0)
    w = script.direction(world)
    theta = 0.7 * w + 0.5 * np.random.default_rng(3).standard_normal(6)
    rng, other = np.random.default_rng(1), np.random.default_rng(2)
    fast = np.array([script.gradient(rng, world, w, theta) for _ in range(4000)])
    slow = np.array([brute_gradient(script, other, w, theta) for _ in range(4000)])
    error = np.sqrt((fast.var(axis=0) + slow.var(axis=0)) / 4000)
    assert np.all(np.abs(fast.mean(axis=0) - slow.mean(axis=0)) < 4 * error)
    spread = [np.cov(g.T) for g in (fast, slow)]
    np.testing.assert_allclose(spread[0], spread[1], atol=0.12 * np.trace(spread[1]) / 6)


def test_a_small_world_departs_as_k_one_half_and_not_as_drift(script: ModuleType) -> None:
    base = script.World(dimension=64, prompts=8, learning_rate=1e-3, seed=0)
    found = script.sweep(base, (4, 16), 2)
    half, drift = (script.cost(found.b0, (4, 16), k) for k in (0.5, math.inf))
    np.testing.assert_allclose(found.ratio, half, rtol=0.15)
    assert np.all(np.abs(np.log(found.ratio / half)) < np.abs(np.log(found.ratio / drift)))


def test_directions(script: ModuleType) -> None:
    world = script.World(dimension=32, prompts=8, learning_rate=1e-3, seed=0)
    sparse, rotated = (script.direction(replace(world, signal=kind)) for kind in ("sparse", "rotated"))
    assert np.count_nonzero(sparse) == 8
    assert np.count_nonzero(rotated) == 32
    np.testing.assert_allclose([np.linalg.norm(sparse), np.linalg.norm(rotated)], 1)


def test_a_score_out_of_reach_is_not_reached(script: ModuleType) -> None:
    world = script.World(dimension=16, prompts=8, learning_rate=1e-3, seed=0)
    assert math.isnan(script.train(world, 0.9, limit=2000).responses)
