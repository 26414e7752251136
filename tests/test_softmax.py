"""The softmax world as drawn, and its exact moments against all outcomes of a group and against draws."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from naive_policy import Floats, advantages, log_policy

from batchsim.errors import InputError
from batchsim.learning.worlds import SoftmaxWorld, TrueNoise, softmax_world, true_noise, true_value_noise

ADVANTAGES = ("group", "mean", "leave_one_out")
POINTS = np.random.default_rng(8).standard_normal((2, 5)) * 1.5


@cache
def tiny(correct: int = 1, bound: float = np.inf, answers: int = 4) -> SoftmaxWorld:
    return softmax_world(
        dim=5, prompts=9, validation=7, answers=answers, correct=correct, value_dim=2, bound=bound, label_noise=0.3,
        seed=4,
    )  # fmt: skip


def weighted(chance: Floats, gradients: Floats, prompt: Floats, group: int) -> TrueNoise:
    """Moments of (outcome, D) gradients that come with these chances."""
    chance = chance / chance.sum()
    mean = chance @ gradients
    between = 0.0
    for p in np.unique(prompt):
        own = prompt == p
        between += chance[own].sum() * np.sum((chance[own] @ gradients[own] / chance[own].sum() - mean) ** 2)
    variance = chance @ (gradients - mean) ** 2
    return TrueNoise(
        gradient=mean, variance=group * variance, prompt_variance=between,
        response_variance=group * (variance.sum() - between), kept_share=np.nan, score=np.nan,
    )  # fmt: skip


def agree(exact: TrueNoise, listed: TrueNoise, rtol: float = 1e-12) -> None:
    scale = np.sqrt(listed.variance.sum())
    np.testing.assert_allclose(exact.gradient, listed.gradient, rtol=rtol, atol=rtol * scale)
    np.testing.assert_allclose(exact.variance, listed.variance, rtol=rtol, atol=rtol * scale**2)
    total = listed.variance.sum()
    assert exact.prompt_variance == pytest.approx(listed.prompt_variance, rel=rtol, abs=rtol * total)
    assert exact.response_variance == pytest.approx(listed.response_variance, rel=rtol, abs=rtol * total)
    assert exact.noise_scale == pytest.approx(listed.noise_scale, rel=10 * rtol)


class TestGroups:
    @pytest.mark.parametrize(("answers", "group", "correct", "bound"), [
        (3, 2, 1, np.inf), (3, 4, 2, np.inf), (4, 3, 1, 0.8), (4, 3, 2, np.inf), (4, 3, 3, 1.5),
    ])  # fmt: skip
    @pytest.mark.parametrize("advantage", ADVANTAGES)
    @pytest.mark.parametrize("zero_variance", ["refill", "drop", "keep"])
    def test_moments_are_those_of_all_outcomes(
        self, answers: int, group: int, correct: int, bound: float, advantage: str, zero_variance: str
    ) -> None:
        world = tiny(correct, bound, answers)
        for theta in POINTS:
            rows = []
            share, score = 0.0, 0.0
            for p in range(9):
                log_p, by_theta = log_policy(world.features[p], world.offset[p], theta, bound)
                score += np.exp(log_p[:correct]).sum() / 9
                for outcome in product(range(answers), repeat=group):
                    chance = float(np.exp(log_p[list(outcome)].sum()))
                    rewards = np.array([float(a < correct) for a in outcome])
                    mixed = rewards.min() < rewards.max()
                    share += chance / 9 * mixed
                    if mixed:
                        gradient = advantages(rewards, advantage) @ by_theta[list(outcome)] / group
                        rows.append((chance, gradient, p))
                    elif zero_variance == "keep":
                        rows.append((chance, 0 * theta, p))
            chances, gradients, prompts = (np.array(column) for column in zip(*rows, strict=True))
            listed = weighted(chances, gradients, prompts, group)
            exact = true_noise(world, theta, group_size=group, advantage=advantage, zero_variance=zero_variance)
            agree(exact, listed)
            assert exact.kept_share == pytest.approx(share, rel=1e-12)
            assert exact.score == pytest.approx(score, rel=1e-12)

    @pytest.mark.parametrize(("correct", "bound"), [(1, np.inf), (3, 0.8)])
    @pytest.mark.parametrize("advantage", ADVANTAGES)
    @pytest.mark.parametrize("zero_variance", ["refill", "keep"])
    def test_moments_are_those_of_draws(self, correct: int, bound: float, advantage: str, zero_variance: str) -> None:
        """Groups of 8 as drawn, one response at a time, in NumPy."""
        rng = np.random.default_rng(2)
        world, theta, n, group = tiny(correct, bound), POINTS[1], 60_000, 8
        z = world.features.astype(np.float64) @ theta
        shift = z if np.isinf(bound) else bound * np.tanh(z / bound)
        p = np.exp(world.offset + shift)
        p /= p.sum(axis=1, keepdims=True)
        prompt = rng.integers(9, size=n)
        answer = (rng.random((n, group, 1)) > np.cumsum(p[prompt], axis=1)[:, None, :-1]).sum(axis=2)
        rewards = (answer < correct).astype(np.float64)
        spread = rewards.std(axis=1, ddof=1)
        if zero_variance == "refill":
            prompt, answer, rewards, spread = (v[spread > 0] for v in (prompt, answer, rewards, spread))
        a = rewards - rewards.mean(axis=1, keepdims=True)
        if advantage == "group":
            a = a / np.where(spread > 0, spread, 1)[:, None]
        elif advantage == "leave_one_out":
            a = a * group / (group - 1)
        slope = 1 if np.isinf(bound) else 1 - np.tanh(z / bound)[..., None] ** 2
        phi = world.features * slope
        gradients = np.einsum("ng,ngd->nd", a, phi[prompt[:, None], answer]) / group
        exact = true_noise(world, theta, group_size=group, advantage=advantage, zero_variance=zero_variance)
        error = gradients.std(axis=0) / np.sqrt(len(prompt))
        assert (np.abs(gradients.mean(axis=0) - exact.gradient) < 4.5 * error).all()
        square = group * (gradients - exact.gradient) ** 2
        error = square.std(axis=0) / np.sqrt(len(prompt))
        assert (np.abs(square.mean(axis=0) - exact.variance) < 4.5 * error).all()
        assert (error < 0.02 * exact.variance).all()

    @pytest.mark.parametrize("zero_variance", ["refill", "keep"])
    def test_variance_is_of_prompts_and_of_responses(self, zero_variance: str) -> None:
        world = softmax_world(dim=20, prompts=100, validation=2, seed=2)
        noise = true_noise(world, np.zeros(20), group_size=6, zero_variance=zero_variance)
        nested = 6 * noise.prompt_variance + noise.response_variance
        assert noise.variance.sum() == pytest.approx(nested, rel=1e-12)

    def test_certain_prompts_leave_no_trace(self) -> None:
        world = tiny()
        offset = world.offset.copy()
        offset[:3, 0] = 800.0
        offset[3:5, 0] = -800.0
        mixed = replace(
            world, features=world.features[5:], offset=world.offset[5:], value_features=world.value_features[5:]
        )  # fmt: skip
        some, none = (true_noise(w, POINTS[0], group_size=4) for w in (replace(world, offset=offset), mixed))
        np.testing.assert_allclose(some.variance, none.variance, rtol=1e-12)
        np.testing.assert_allclose(some.gradient, none.gradient, rtol=1e-12)
        assert some.kept_share == pytest.approx(none.kept_share * 4 / 9)

    def test_nothing_but_certain_prompts(self) -> None:
        world = replace(tiny(), offset=np.tile([0.0, 900.0, 0.0, 0.0], (9, 1)))
        with pytest.raises(InputError, match="no group has variance"):
            true_noise(world, np.zeros(5), group_size=4)
        noise = true_noise(world, np.zeros(5), group_size=4, zero_variance="keep")
        assert (noise.gradient == 0).all()
        assert (noise.variance.sum(), noise.noise_scale) == (0.0, np.inf)

    def test_nearly_certain_prompts_keep_their_digits(self) -> None:
        """Of two responses one is correct with chance 2 p (1 - p), here with 1 - p = 3 exp(-40)."""
        world = replace(tiny(), offset=np.tile([40.0, 0.0, 0.0, 0.0], (9, 1)))
        noise = true_noise(world, np.zeros(5), group_size=2)
        assert noise.kept_share == pytest.approx(6 * np.exp(-40), rel=1e-9)


class TestValue:
    @pytest.mark.parametrize(("correct", "bound"), [(1, np.inf), (2, 0.8)])
    @pytest.mark.parametrize("normalise", [True, False])
    def test_moments_are_those_of_all_answers(self, correct: int, bound: float, normalise: bool) -> None:
        world, omega = tiny(correct, bound), np.array([0.3, -1.0, 0.5, 2.0])
        value = world.value_features.astype(np.float64) @ omega
        for theta in POINTS:
            chance, actor, critic, prompt, centre = [], [], [], [], 0.0
            for p in range(9):
                log_p, by_theta = log_policy(world.features[p], world.offset[p], theta, bound)
                for a in range(4):
                    error = float(a < correct) - value[p]
                    chance.append(np.exp(log_p[a]))
                    centre += chance[-1] * error / 9
                    actor.append((error, by_theta[a]))
                    critic.append(error * world.value_features[p].astype(np.float64))
                    prompt.append(p)
            scores = np.array([(error - normalise * centre) * score for error, score in actor])
            exact = true_value_noise(world, theta, omega, normalise=normalise)
            agree(exact[0], weighted(np.array(chance), scores, np.array(prompt), 1))
            agree(exact[1], weighted(np.array(chance), np.array(critic), np.array(prompt), 1))

    def test_moments_are_those_of_draws(self) -> None:
        rng = np.random.default_rng(5)
        world, theta, n = tiny(2), POINTS[0], 200_000
        omega = np.array([0.3, -1.0, 0.5, 2.0])
        phi, psi = world.features.astype(np.float64), world.value_features.astype(np.float64)
        p = np.exp(world.offset + phi @ theta)
        p /= p.sum(axis=1, keepdims=True)
        prompt = rng.integers(9, size=n)
        answer = (rng.random((n, 1)) > np.cumsum(p[prompt], axis=1)[:, :-1]).sum(axis=1)
        error = (answer < 2) - psi[prompt] @ omega
        score = phi[prompt, answer] - np.einsum("pa,pad->pd", p, phi)[prompt]
        drawn = (error - error.mean())[:, None] * score, error[:, None] * psi[prompt]
        for gradients, exact in zip(drawn, true_value_noise(world, theta, omega), strict=True):
            deviation = gradients.std(axis=0) / np.sqrt(n)
            assert (np.abs(gradients.mean(axis=0) - exact.gradient) < 4.5 * deviation).all()
            square = (gradients - gradients.mean(axis=0)) ** 2
            deviation = square.std(axis=0) / np.sqrt(n)
            assert (np.abs(square.mean(axis=0) - exact.variance) < 4.5 * deviation + 1e-12).all()


class TestDrawnWorlds:
    @pytest.mark.parametrize(("spread", "signal"), [(0.0, None), (1.0, None), (1.0, 5)])
    def test_features_have_norm_one_and_teacher_scores_variance_one(self, spread: float, signal: int | None) -> None:
        asked: dict[str, Any] = {"dim": 50, "validation": 1, "scale_spread": spread, "signal": signal, "seed": 3}
        world, noisy = softmax_world(**asked, prompts=2000), softmax_world(**asked, prompts=2000, label_noise=1.0)
        square = np.sum(world.features.astype(np.float64) ** 2, axis=2)
        assert square.mean() == pytest.approx(1.0, abs=5 * square.std() / np.sqrt(square.size))
        score = np.asarray(world.features @ teacher(50, spread, signal, seed=3))
        assert (np.diff(score, axis=1) < 1e-5).all()
        assert score.var() == pytest.approx(1.0, abs=5 * np.sqrt(2 / score.size))
        # The best of 8 standard normal numbers is 1.42360 on average; noise as large as the score leaves 1/sqrt(2).
        assert score[:, 0].mean() == pytest.approx(1.42360, abs=0.07)
        best = np.asarray(noisy.features @ teacher(50, spread, signal, seed=3))[:, 0]
        assert best.mean() == pytest.approx(1.42360 / np.sqrt(2), abs=0.1)

    @pytest.mark.parametrize(("start", "correct", "difficulty"), [(0.28, 1, 0.5), (0.6, 3, 2.0), (0.01, 1, 0.0)])
    def test_the_start_is_as_asked(self, start: float, correct: int, difficulty: float) -> None:
        world = softmax_world(
            dim=4, prompts=300, validation=100, correct=correct, start_score=start, difficulty=difficulty, seed=6
        )  # fmt: skip
        success = true_noise(world, np.zeros(4), group_size=2).score
        assert 0.75 * success + 0.25 * world.score(np.zeros(4)) == pytest.approx(start, rel=1e-9)
        e = np.exp(world.offset)
        own = e[:, :correct].sum(axis=1) / e.sum(axis=1)
        np.testing.assert_allclose(world.value_features @ world.value_start, own, rtol=1e-6)
        assert (own.std() > 0) == (difficulty > 0)

    @pytest.mark.parametrize("overlap", [0.0, 0.3, 0.9])
    def test_overlap_is_a_share_of_the_variance(self, overlap: float) -> None:
        """Of one topic, the mean over prompts is what they have in common; summing over answers undoes their order."""
        world = softmax_world(dim=1000, prompts=400, validation=1, answers=2, overlap=overlap, topics=1, seed=2)
        summed = world.features.astype(np.float64).sum(axis=1)
        assert (summed**2).sum(axis=1).mean() == pytest.approx(2, rel=0.1)
        within = summed.var(axis=0, ddof=1).sum() / 2
        assert within == pytest.approx(1 - overlap, rel=0.02)

    def test_topics_are_apart(self) -> None:
        world = softmax_world(dim=1000, prompts=60, validation=1, answers=2, overlap=0.8, topics=2, seed=2)
        summed = world.features.astype(np.float64).sum(axis=1)
        like = summed @ summed.T / 2
        off = like[~np.eye(60, dtype=bool)]
        assert ((np.abs(off) < 0.25) | (np.abs(off - 0.8) < 0.25)).all()
        assert 0.3 < (off > 0.4).mean() < 0.7

    def test_only_the_signal_has_a_gradient(self) -> None:
        world = softmax_world(dim=32, prompts=8000, validation=1, signal=4, seed=1)
        noise = true_noise(world, np.zeros(32), group_size=8)
        direction = teacher(32, 0.0, 4, seed=1)
        assert np.count_nonzero(direction) == 4
        # What sampling of the prompts leaves on the others.
        assert np.sum(noise.gradient[direction == 0] ** 2) < 1.5 * noise.prompt_variance / 8000
        aligned = noise.gradient @ direction / np.linalg.norm(direction)
        assert aligned**2 > 0.99 * np.sum(noise.gradient**2)

    def test_a_rotated_world_has_the_same_policies(self) -> None:
        asked: dict[str, Any] = {
            "dim": 8, "prompts": 40, "validation": 30, "scale_spread": 1.0, "difficulty": 1.0, "label_noise": 0.2,
            "seed": 9,
        }  # fmt: skip
        world, turned = softmax_world(**asked), softmax_world(**asked, rotated=True)
        for name in ("offset", "validation_offset", "value_features", "value_start"):
            np.testing.assert_array_equal(getattr(world, name), getattr(turned, name))
        flat, other = (w.features.reshape(-1, 8).astype(np.float64) for w in (world, turned))
        rotation = np.linalg.lstsq(flat, other, rcond=None)[0]
        np.testing.assert_allclose(rotation @ rotation.T, np.eye(8), atol=1e-5)
        assert np.abs(rotation).max() < 0.95
        theta = np.linspace(-2, 3, 8)
        assert turned.score(rotation.T @ theta) == pytest.approx(world.score(theta), abs=1e-6)
        one, two = (
            true_noise(w, t, group_size=4) for w, t in ((world, theta), (turned, rotation.T @ theta))
        )  # fmt: skip
        assert two.noise_scale == pytest.approx(one.noise_scale, rel=1e-5)
        np.testing.assert_allclose(two.gradient, rotation.T @ one.gradient, atol=1e-5)

    def test_seeds(self) -> None:
        one, two, other = (softmax_world(dim=4, prompts=5, validation=3, seed=s) for s in (1, 1, 2))
        np.testing.assert_array_equal(one.features, two.features)
        assert (one.features != other.features).all()

    def test_arrays_are_kept_apart_and_not_writable(self) -> None:
        world = tiny()
        given = world.features.copy()
        copy = replace(world, features=given)
        given[:] = 0
        np.testing.assert_array_equal(copy.features, world.features)
        with pytest.raises(ValueError, match="read-only"):
            copy.features[0] = 0


def teacher(dim: int, spread: float, signal: int | None, *, seed: int) -> Floats:
    """theta*, from the first numbers drawn."""
    rng = np.random.default_rng(seed)
    scale = np.exp(spread * rng.standard_normal(dim))
    direction = rng.standard_normal(dim)
    direction[rng.permutation(dim)[dim if signal is None else signal :]] = 0
    return np.asarray(direction * np.sqrt(np.sum(scale**2)) / np.linalg.norm(direction * scale))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "dim": ({"dim": 0}, "dim is 0"),
    "prompts": ({"prompts": 0}, "prompts is 0"),
    "validation": ({"validation": -1}, "validation is -1"),
    "topics": ({"topics": 0}, "topics is 0"),
    "value_dim": ({"value_dim": -1}, "value_dim is -1, and it must be at least 0"),
    "correct": ({"answers": 4, "correct": 4}, "correct is 4 of 4 answers"),
    "signal": ({"dim": 4, "signal": 5}, "signal is 5, outside 1 to 4"),
    "bytes": ({"prompts": 10**7}, "GB, more than"),
    "overlap": ({"overlap": 1.0}, "overlap 1 must"),
    "start_score": ({"start_score": 0.0}, "start_score 0 in"),
    "scale_spread": ({"scale_spread": 30.0}, "scale_spread is 30"),
    "difficulty": ({"difficulty": float("nan")}, "difficulty is nan"),
    "label_noise": ({"label_noise": -1.0}, "label_noise is -1"),
    "bound": ({"prompts": 2, "validation": 2, "bound": 0.0}, "bound is 0"),
}
ARRAYS: dict[str, tuple[dict[str, Any], str]] = {
    "dimensions": ({"features": np.ones((2, 3))}, r"features has shape \(2, 3\), not 3"),
    "empty": ({"features": np.ones((9, 4, 0))}, "not 3 dimensions of at least 1"),
    "offset": ({"offset": np.zeros((9, 3))}, "offset has shape"),
    "validation": ({"validation": np.ones((7, 4, 6))}, "validation has shape"),
    "validation_offset": ({"validation_offset": np.ones((6, 4))}, "validation_offset has shape"),
    "value_features": ({"value_features": np.ones((9, 3))}, "value_features has shape"),
    "not finite": ({"offset": np.full((9, 4), np.nan)}, "offset is not finite"),
    "no correct": ({"correct": 0}, "correct is 0 of 4"),
    "all correct": ({"correct": 4}, "correct is 4 of 4"),
    "bound": ({"bound": float("nan")}, "bound is nan"),
}


class TestRefusals:
    @pytest.mark.parametrize("name", REFUSED)
    def test_softmax_world(self, name: str) -> None:
        given, said = REFUSED[name]
        with pytest.raises(InputError, match=said):
            softmax_world(**given)

    @pytest.mark.parametrize("name", ARRAYS)
    def test_arrays(self, name: str) -> None:
        given, said = ARRAYS[name]
        with pytest.raises(InputError, match=said):
            replace(tiny(), **given)

    def test_moments(self) -> None:
        world, theta = tiny(), np.zeros(5)
        for given, said in (
            ({"advantage": "max"}, "advantage 'max'"),
            ({"zero_variance": "skip"}, "zero_variance 'skip'"),
            ({"group_size": 1}, "group_size is 1"),
            ({"theta": np.zeros(3)}, "theta has shape"),
            ({"theta": np.full(5, np.nan)}, "theta is not finite"),
        ):
            asked: dict[str, Any] = {"theta": theta, "group_size": 4} | given
            with pytest.raises(InputError, match=said):
                true_noise(world, **asked)
        for omega in (np.zeros(3), np.full(4, np.inf)):
            with pytest.raises(InputError, match="omega must be finite"):
                true_value_noise(world, theta, omega)
        with pytest.raises(InputError, match="theta has shape"):
            world.score(np.zeros(6))
