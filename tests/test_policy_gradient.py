"""Training on a softmax world: the kernel against a twin with a gradient per response, and what runs must do."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from naive_policy import Learned, Response, Twin, log_policy, objective, response_gradient, splitmix64

from batchsim.errors import InputError
from batchsim.learning.worlds import (
    SoftmaxWorld,
    Trained,
    Trainer,
    TrueNoise,
    mean_responses,
    softmax_world,
    train,
    true_noise,
    true_value_noise,
)
from batchsim.learning.worlds.policy_gradient import COLUMNS, EVALUATION
from batchsim.learning.worlds.softmax import Floats


@cache
def tiny(correct: int = 1, bound: float = np.inf) -> SoftmaxWorld:
    return softmax_world(
        dim=5, prompts=12, validation=7, answers=4, correct=correct, value_dim=2, bound=bound, label_noise=0.3, seed=4
    )


def twin(world: SoftmaxWorld, trainer: Trainer, *, seed: int, arm: int = 0, number: int = 0, **given: Any) -> Learned:
    state = np.random.SeedSequence(seed, spawn_key=(arm, number)).generate_state(1, np.uint64)
    return Twin(
        world, trainer, prompts=given["prompts"], group_size=given["group_size"], rate=given["learning_rate"],
        critic_rate=given.get("critic_learning_rate", given["learning_rate"]), staleness=given.get("staleness", 0),
        responses_max=given["responses_max"], every=given["evaluate_every"], target=given.get("target", math.inf),
        mean_at=given.get("mean_at", (0, 0)), halves_until=given.get("halves_until", 0.0),
        stream=splitmix64(int(state[0])), theta=np.asarray(given.get("theta", np.zeros(world.dim))),
    ).run()  # fmt: skip


def same(run: Trained, expected: Learned, rtol: float = 1e-9) -> None:
    assert (run.outcome, run.updates, run.rollout_steps) == (
        expected.outcome,
        expected.updates,
        expected.rollout_steps,
    )
    np.testing.assert_allclose(run.theta, expected.theta, rtol=rtol, atol=1e-12)
    np.testing.assert_allclose(run.omega, expected.omega, rtol=rtol, atol=1e-12)
    for columns, names, rows in (
        (run.record, COLUMNS, expected.record),
        (run.evaluations, EVALUATION, expected.evaluations),
    ):
        for name in names:
            np.testing.assert_allclose(columns[name], [row[name] for row in rows], rtol=rtol, atol=1e-13, err_msg=name)
    assert (run.halves is None) == (expected.half_mean.size == 0)
    if run.halves is not None:
        assert run.halves.responses == expected.half_responses
        np.testing.assert_allclose(run.halves.mean, expected.half_mean, rtol=rtol, atol=1e-12)
        np.testing.assert_allclose(run.halves.variance, expected.half_variance, rtol=rtol, atol=1e-12)


@st.composite
def settings_of_a_run(draw: st.DrawFn) -> tuple[SoftmaxWorld, Trainer, dict[str, Any]]:
    ppo = draw(st.booleans())
    world = tiny(correct=draw(st.sampled_from([1, 2])), bound=draw(st.sampled_from([np.inf, np.inf, 0.8])))
    passes, epochs = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2]))
    importance = draw(st.sampled_from([True, True, False]))
    trainer = Trainer(
        algorithm="ppo" if ppo else "grpo",
        advantage="group" if ppo else draw(st.sampled_from(["group", "mean", "leave_one_out"])),
        zero_variance="refill" if ppo else draw(st.sampled_from(["refill", "drop", "keep"])),
        normalise=not ppo or draw(st.booleans()),
        optimizer=draw(st.sampled_from(["adam", "sgd"])),
        beta1=draw(st.sampled_from([0.0, 0.9])),
        beta2=draw(st.sampled_from([0.6, 0.99])),
        epsilon=draw(st.sampled_from([1e-8, 1e-3])),
        grad_clip=draw(st.sampled_from([np.inf, 0.1])),
        updates_per_rollout=passes * epochs,
        epochs=epochs,
        clip=draw(st.sampled_from([np.inf, 0.02, 0.2])) if importance else np.inf,
        importance=importance,
        lag=draw(st.sampled_from(["constant", "uniform"])),
        kl=draw(st.sampled_from([0.0, 0.1])),
    )
    # Advantages that are all equal would be normalised to rounding errors.
    prompts = passes * draw(st.sampled_from([2, 5, 8, 13] if passes == 1 else [1, 2, 9]))
    prompts, group = (
        (max(prompts, 4), draw(st.sampled_from([1, 3]))) if ppo else (prompts, draw(st.sampled_from([2, 4])))
    )
    asked = {
        "prompts": prompts,
        "group_size": group,
        "learning_rate": draw(st.sampled_from([0.03, 0.3])),
        **({"critic_learning_rate": draw(st.sampled_from([0.01, 0.2]))} if ppo else {}),
        "staleness": draw(st.sampled_from([0, 0, 1, 3])),
        "responses_max": 9.5 * prompts * group,
        "evaluate_every": 2.5 * prompts * group,
        "mean_at": draw(st.sampled_from([(0, 0), (3, 2)])),
        "halves_until": draw(st.sampled_from([0.0, 5.0 * prompts * group])),
        "theta": draw(st.sampled_from([np.zeros(5), np.array([1.0, -2.0, 0.5, 0.0, 3.0])])),
    }
    return world, trainer, asked


class TestTwin:
    @given(settings_of_a_run(), st.integers(0, 2**31))
    @settings(max_examples=120)
    def test_the_kernel_is_the_twin(self, drawn: tuple[SoftmaxWorld, Trainer, dict[str, Any]], seed: int) -> None:
        world, trainer, asked = drawn
        expected = twin(world, trainer, seed=seed, **asked)
        # Ratios that nothing clips can grow until rounding decides.
        assume(np.abs(expected.theta).max() < 30)
        (run,) = train(world, trainer, seed=seed, record=True, threads=1, **asked)
        same(run, expected)

    def test_fewer_groups_than_mini_batches(self) -> None:
        trainer = Trainer(zero_variance="drop", updates_per_rollout=8, epochs=2, clip=0.2)
        asked: dict[str, Any] = {
            "prompts": 4,
            "group_size": 2,
            "learning_rate": 0.1,
            "responses_max": 100.0,
            "evaluate_every": 30.0,
        }
        (run,) = train(tiny(), trainer, seed=1, record=True, **asked)
        assert run.record["kept"].min() < 8
        same(run, twin(tiny(), trainer, seed=1, **asked))

    @pytest.mark.parametrize("bound", [np.inf, 0.8])
    @pytest.mark.parametrize("advantage", [1.3, -0.7])
    def test_the_gradients_of_the_twin_are_derivatives(self, bound: float, advantage: float) -> None:
        rng = np.random.default_rng(3)
        world, trainer = tiny(bound=bound), Trainer(clip=0.2, kl=0.3)
        for ratio, clips in ((0.7, advantage < 0), (0.95, False), (1.1, False), (1.4, advantage > 0)):
            for answer in range(4):
                theta = rng.standard_normal(5)
                log_p, _ = log_policy(world.features[2], world.offset[2], theta, bound)
                response = Response(2, answer, 1.0, float(log_p[answer]) - math.log(ratio), advantage)
                gradient, clipped = response_gradient(world, trainer, response, theta)
                assert clipped == clips
                for i, e in enumerate(np.eye(5) * 1e-5):
                    sides = [objective(world, trainer, [response], theta + sign * e) for sign in (1, -1)]
                    assert gradient[i] == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=1e-6, abs=1e-9)


FROZEN: dict[str, tuple[int, int, Trainer, dict[str, Any]]] = {
    "refill": (16, 4, Trainer(), {}),
    "unequal chunks": (13, 4, Trainer(advantage="leave_one_out", zero_variance="keep"), {}),
    "drop": (24, 4, Trainer(advantage="mean", zero_variance="drop"), {}),
    "mini-batches": (20, 3, Trainer(updates_per_rollout=4, epochs=2, clip=0.2), {"staleness": 2}),
    "ppo": (16, 1, Trainer(algorithm="ppo", normalise=False), {}),
}
POINT = np.array([1.0, -0.6, 0.5, 0.0, 0.8])


class TestFrozen:
    """At a rate of 1e-30 the policy stays where it is, and a run's averages are the exact moments."""

    @pytest.mark.parametrize("name", FROZEN)
    @pytest.mark.parametrize(("correct", "bound"), [(1, np.inf), (2, 0.8)])
    def test_moments_of_a_run_are_the_exact_ones(self, name: str, correct: int, bound: float) -> None:
        prompts, group, trainer, more = FROZEN[name]
        world, rollouts = tiny(correct, bound), 20_000
        (run,) = train(
            world, trainer, prompts=prompts, group_size=group, learning_rate=1e-30, theta=POINT, seed=7, record=True,
            responses_max=prompts * group * rollouts, halves_until=1e9, evaluate_every=1e9, **more,
        )  # fmt: skip
        if trainer.algorithm == "ppo":
            truth, critic = true_value_noise(world, POINT, world.value_start, normalise=False)
        else:
            truth = true_noise(
                world, POINT, group_size=group, advantage=trainer.advantage, zero_variance=trainer.zero_variance
            )
        assert run.halves is not None
        for half in range(2):
            error = np.sqrt(truth.variance / run.halves.responses[half])
            assert (np.abs(run.halves.mean[half] - truth.gradient) < 4.5 * error).all()
            np.testing.assert_allclose(run.halves.variance[half], truth.variance, rtol=0.05)
        passes = trainer.updates_per_rollout // trainer.epochs
        self.norms(run, truth, run.record["kept"] / passes, group, "")
        if trainer.algorithm == "ppo":
            self.norms(run, critic, run.record["kept"], group, "critic_")

    @staticmethod
    def norms(run: Trained, truth: TrueNoise, batch: Floats, group: int, prefix: str) -> None:
        """E|g_B|^2 = |G|^2 + tr(Sigma)/B of a batch and, B/chunks for B, of its chunks."""
        signal, trace = float(truth.gradient @ truth.gradient), float(truth.variance.sum())
        for name, chunks in (("batch", 1), ("chunk", np.minimum(8, batch / group))):
            excess = run.record[f"{prefix}sq_norm_{name}"] - signal - trace * chunks / batch
            assert abs(excess.mean()) < 4.5 * excess.std() / np.sqrt(excess.size)
            assert excess.std() / np.sqrt(excess.size) < 0.03 * (trace * chunks / batch).mean()

    def test_normalised_advantages_have_the_same_noise_scale(self) -> None:
        world = tiny(2)
        (run,) = train(
            world, Trainer(algorithm="ppo"), prompts=1024, learning_rate=1e-30, responses_max=1024 * 400, theta=POINT,
            halves_until=1e9, evaluate_every=1e9,
        )  # fmt: skip
        truth, _ = true_value_noise(world, POINT, world.value_start)
        assert run.halves is not None
        variance, mean = run.halves.variance.mean(axis=0), run.halves.mean.mean(axis=0)
        signal = mean @ mean - variance.sum() / sum(run.halves.responses)
        assert variance.sum() / signal == pytest.approx(truth.noise_scale, rel=0.03)
        np.testing.assert_allclose(variance / variance.sum(), truth.variance / truth.variance.sum(), rtol=0.1)

    def test_mean_at_k_is_unbiased(self) -> None:
        world = tiny()
        (run,) = train(
            world, Trainer(), prompts=2, group_size=2, learning_rate=1e-30, responses_max=4 * 4000, evaluate_every=4,
            mean_at=(len(world.validation), 3), theta=POINT,
        )  # fmt: skip
        error = run.evaluations["sampled_score"] - world.score(POINT)
        assert abs(error.mean()) < 4.5 * error.std() / np.sqrt(error.size)
        np.testing.assert_allclose(run.evaluations["score"], world.score(POINT), rtol=1e-12)

    def test_ages(self) -> None:
        asked: dict[str, Any] = {"prompts": 64, "learning_rate": 1e-30, "responses_max": 64 * 8 * 50, "record": True}
        (constant,) = train(tiny(), Trainer(), staleness=3, **asked)
        assert constant.record["staleness_mean"].tolist() == [0, 1, 2] + [3] * 47
        (uniform,) = train(tiny(), Trainer(lag="uniform"), staleness=3, **asked)
        assert uniform.record["staleness_mean"][3:].mean() == pytest.approx(1.5, abs=0.1)


class TestRuns:
    def test_neither_threads_nor_other_arms_change_a_run(self) -> None:
        world, trainer = tiny(), Trainer(updates_per_rollout=2, lag="uniform", kl=0.1)
        more: dict[str, Any] = {"responses_max": 400, "staleness": 2, "record": True, "seed": 5, "halves_until": 400}

        def runs(prompts: list[int], threads: int | None, seeds: int) -> dict[tuple[int, int], Trained]:
            made = train(world, trainer, prompts=prompts, learning_rate=0.1, threads=threads, seeds=seeds, **more)
            return {(run.arm, run.seed): run for run in made}

        first = runs([8, 2, 16], 1, 3)
        assert list(first) == [(arm, seed) for arm in range(3) for seed in range(3)]
        for other in (runs([8, 2, 16], 2, 3), runs([8, 2, 16], 3, 3), runs([8, 2], None, 1)):
            for key, run in other.items():
                identical(first[key], run)
        thetas = {tuple(run.theta) for run in first.values()}
        assert len(thetas) == 9
        assert tuple(train(world, trainer, prompts=8, learning_rate=0.1, **(more | {"seed": 6}))[0].theta) not in thetas

    def test_evaluations_stand_at_the_first_steps_beyond_multiples(self) -> None:
        (run,) = train(
            tiny(), Trainer(), prompts=8, group_size=4, learning_rate=0.01, responses_max=270, evaluate_every=50
        )
        assert run.evaluations["responses"].tolist() == [0, 64, 128, 160, 224, 256, 288]
        assert run.evaluations["updates"].tolist() == [0, 2, 4, 5, 7, 8, 9]
        assert (run.outcome, run.updates, run.rollout_steps, run.record) == ("too many responses", 9, 9, {})
        assert np.isnan(run.evaluations["sampled_score"]).all()
        assert run.halves is None
        assert run.evaluations["score"][-1] == pytest.approx(tiny().score(run.theta), rel=1e-12)

    def test_a_run_ends_at_its_target(self) -> None:
        (run,) = train(
            tiny(), Trainer(), prompts=8, learning_rate=0.1, responses_max=1e5, target=0.45, evaluate_every=64
        )
        used, score = run.evaluations["responses"], run.evaluations["score"]
        assert run.outcome == "reached"
        assert score[-1] >= 0.45 > score[:-1].max()
        needed = run.responses_to_target(0.45)
        assert used[-2] < needed <= used[-1]
        assert np.interp(needed, used[-2:], score[-2:]) == pytest.approx(0.45, rel=1e-12)
        assert run.responses_to_target(score[0]) == 0
        assert run.responses_to_target(0.99) == math.inf
        assert train(tiny(), Trainer(), prompts=8, learning_rate=0.1, responses_max=1e5, target=0.1)[0].updates == 0

    def test_mean_responses(self) -> None:
        runs = train(tiny(), Trainer(), prompts=8, learning_rate=[0.1, 1e-9], responses_max=9000, target=0.45, seeds=3)
        mean, error = mean_responses(runs, 0.45)
        own = [run.responses_to_target(0.45) for run in runs[:3]]
        assert mean[0] == pytest.approx(np.mean(own))
        assert error[0] == pytest.approx(np.std(own, ddof=1) / math.sqrt(3))
        assert mean[1] == math.inf
        assert math.isnan(error[1])
        assert [run.outcome for run in runs[3:]] == ["too many responses"] * 3

    @pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
    def test_divergence(self, algorithm: str) -> None:
        trainer = Trainer(algorithm=algorithm, optimizer="sgd")
        (run,) = train(
            tiny(), trainer, prompts=8, learning_rate=1e300, responses_max=1e4, evaluate_every=1, target=0.9,
            record=True,
        )  # fmt: skip
        assert (run.outcome, run.updates, run.rollout_steps) == ("diverges", 1, 1)
        assert run.evaluations["score"].tolist() == [pytest.approx(tiny().score(np.zeros(5)))]
        assert run.responses_to_target(0.9) == math.inf
        assert run.record["responses"].size == 1

    @pytest.mark.parametrize("zero_variance", ["refill", "drop"])
    def test_a_certain_policy_gives_no_signal(self, zero_variance: str) -> None:
        trainer = Trainer(zero_variance=zero_variance, optimizer="sgd")
        asked: dict[str, Any] = {"prompts": 4, "responses_max": 1e5, "evaluate_every": 1e5, "learning_rate": 1e6}
        (run,) = train(tiny(), trainer, theta=np.full(5, 1e5), **asked)
        assert (run.outcome, run.updates, run.evaluations["responses"].tolist()) == ("no signal", 0, [0])
        assert run.rollout_steps == (1 if zero_variance == "refill" else 2000)
        # One step makes it certain; what it reached by then is known.
        (run,) = train(tiny(), trainer, **asked)
        assert (run.outcome, run.updates) == ("no signal", 1)
        reached = run.evaluations["score"][-1]
        assert reached == pytest.approx(tiny().score(run.theta))
        assert run.evaluations["responses"][-1] > 0
        (run,) = train(tiny(), trainer, target=reached, **asked)
        assert (run.outcome, run.updates) == ("reached", 1)
        (run,) = train(tiny(), replace(trainer, zero_variance="keep"), **asked)
        assert run.outcome == "too many responses"

    def test_progress_counts_runs(self) -> None:
        seen: list[tuple[int, int]] = []
        train(
            tiny(), Trainer(), prompts=[2, 4], learning_rate=0.1, responses_max=100, seeds=2, threads=2,
            progress=lambda done, total: seen.append((done, total)),
        )  # fmt: skip
        assert seen == [(n, 4) for n in range(1, 5)]

    def test_no_arms(self) -> None:
        assert train(tiny(), Trainer(), prompts=[], learning_rate=[], responses_max=10) == ()


def identical(run: Trained, other: Trained) -> None:
    assert (run.outcome, run.updates, run.rollout_steps) == (other.outcome, other.updates, other.rollout_steps)
    np.testing.assert_array_equal(run.theta, other.theta)
    for one, two in ((run.record, other.record), (run.evaluations, other.evaluations)):
        for name in one:
            np.testing.assert_array_equal(one[name], two[name], err_msg=name)
    assert (run.halves is None) == (other.halves is None)
    if run.halves is not None and other.halves is not None:
        np.testing.assert_array_equal(run.halves.mean, other.halves.mean)
        np.testing.assert_array_equal(run.halves.variance, other.halves.variance)


class TestLearning:
    def test_adam_knows_no_scale(self) -> None:
        thetas = [
            train(
                tiny(), Trainer(advantage=advantage, epsilon=0.0, updates_per_rollout=2, clip=0.1), prompts=8,
                group_size=4, learning_rate=0.05, responses_max=3000, seed=2,
            )[0].theta
            for advantage in ("mean", "leave_one_out")
        ]  # fmt: skip
        np.testing.assert_allclose(thetas[0], thetas[1], rtol=1e-6)

    def test_the_first_step_of_adam_is_the_rate(self) -> None:
        (run,) = train(tiny(), Trainer(epsilon=0.0), prompts=8, learning_rate=0.03, responses_max=64)
        np.testing.assert_allclose(np.abs(run.theta), 0.03, rtol=1e-12)

    def test_a_clipped_gradient_has_its_norm(self) -> None:
        (run,) = train(
            tiny(), Trainer(optimizer="sgd", grad_clip=0.01), prompts=8, learning_rate=2.0, responses_max=64,
            record=True,
        )  # fmt: skip
        assert np.linalg.norm(run.theta) == pytest.approx(0.02, rel=1e-12)
        assert run.record["grad_norm"][0] > 0.01

    @pytest.mark.parametrize(("kl", "bound"), [(0.0, np.inf), (0.1, np.inf), (0.0, 2.0)])
    def test_one_rate_is_best(self, kl: float, bound: float) -> None:
        world = softmax_world(dim=128, prompts=512, validation=128, label_noise=0.5, bound=bound, seed=1)
        rates = 0.016 * 4.0 ** np.arange(5)
        runs = train(
            world, Trainer(kl=kl), prompts=8, learning_rate=rates, responses_max=40_000, evaluate_every=64,
            target=0.5, seeds=6,
        )  # fmt: skip
        mean, _ = mean_responses(runs, 0.5)
        best = int(mean.argmin())
        assert 0 < best < 4
        assert min(mean[0], mean[-1]) > 1.3 * mean[best]

    def test_small_rates_need_their_inverse(self) -> None:
        world = softmax_world(dim=64, prompts=512, validation=128, label_noise=0.5, seed=1)
        rates = np.array([0.004, 0.008, 0.016])
        runs = train(
            world, Trainer(), prompts=8, learning_rate=rates, responses_max=80_000, evaluate_every=256, target=0.5,
            seeds=4,
        )  # fmt: skip
        mean, _ = mean_responses(runs, 0.5)
        np.testing.assert_allclose(mean * rates / (mean * rates).mean(), 1.0, atol=0.07)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no prompts": ({"prompts": 0}, "prompts is 0, not a whole number"),
    "half a prompt": ({"prompts": 2.5}, "prompts is 2.5"),
    "NaN prompts": ({"prompts": math.nan}, "prompts is nan"),
    "one response": ({"group_size": 1}, "GRPO compares"),
    "group": ({"group_size": 5000}, "group_size is 5000"),
    "age": ({"staleness": -1}, "staleness is -1"),
    "rate": ({"learning_rate": 0.0}, "learning_rate is 0; it must be finite and positive"),
    "critic's rate": ({"critic_learning_rate": math.inf, "trainer": Trainer(algorithm="ppo")}, "critic_learning_rate"),
    "critic": ({"critic_learning_rate": 0.1}, "critic_learning_rate is 0.1, and GRPO has no critic"),
    "end": ({"responses_max": math.nan}, "responses_max is nan"),
    "evaluations": ({"evaluate_every": -1.0}, "evaluate_every is -1"),
    "halves": ({"halves_until": -1.0}, "halves_until is -1; it must be finite and not negative"),
    "shapes": ({"prompts": [1, 2], "learning_rate": [0.1, 0.2, 0.3]}, r"arms do not match: prompts \(2,\)"),
    "target": ({"target": math.nan}, "target is nan"),
    "seeds": ({"seeds": 0}, "seeds is 0"),
    "seed": ({"seed": -1}, "seed is -1"),
    "threads": ({"threads": 0}, "threads is 0"),
    "mean@k": ({"mean_at": (8, 2)}, "mean_at is"),
    "steps": ({"responses_max": 1e12}, "rollout steps of 32"),
    "record": ({"responses_max": 1e9, "record": True}, "does not fit"),
    "theta": ({"theta": np.zeros(4)}, "theta has shape"),
    "theta inf": ({"theta": np.full(5, np.inf)}, "theta is not finite"),
}  # fmt: skip
TRAINERS: dict[str, tuple[dict[str, Any], str]] = {
    "algorithm": ({"algorithm": "ppp"}, "algorithm 'ppp' is not known"),
    "advantage": ({"advantage": "median"}, "advantage 'median'"),
    "zero_variance": ({"zero_variance": "dorp"}, "did you mean|drop"),
    "optimizer": ({"optimizer": "adamw"}, "optimizer 'adamw'"),
    "lag": ({"lag": "none"}, "lag 'none'"),
    "beta1": ({"beta1": 1.0}, "beta1 is 1"),
    "beta2": ({"beta2": -0.1}, "beta2 is -0.1"),
    "epsilon": ({"epsilon": -1e-8}, "epsilon is -1e-08"),
    "kl": ({"kl": math.nan}, "kl is nan"),
    "grad_clip": ({"grad_clip": 0.0}, "grad_clip is 0"),
    "clip": ({"clip": math.nan}, "clip is nan"),
    "epochs": ({"updates_per_rollout": 3, "epochs": 2}, "3 over 2 epochs"),
    "PPO's groups": ({"algorithm": "ppo", "zero_variance": "drop"}, "zero_variance 'drop' are GRPO's"),
    "PPO's advantage": ({"algorithm": "ppo", "advantage": "mean"}, "advantage 'mean' and"),
    "GRPO's normalisation": ({"normalise": False}, "normalise is PPO's"),
    "no ratio": ({"importance": False, "clip": 0.2}, "clip is 0.2, and without importance"),
    "no epochs": ({"epochs": 0}, "1 over 0 epochs"),
}


class TestRefusals:
    @pytest.mark.parametrize("name", REFUSED)
    def test_train(self, name: str) -> None:
        given, said = REFUSED[name]
        asked: dict[str, Any] = {"prompts": 8, "group_size": 4, "learning_rate": 0.1, "responses_max": 100}
        with pytest.raises(InputError, match=said):
            train(tiny(), **({"trainer": Trainer()} | asked | given))

    def test_mini_batches_divide_prompts(self) -> None:
        with pytest.raises(InputError, match="6 prompts do not divide into 4 mini-batches"):
            train(tiny(), Trainer(updates_per_rollout=8, epochs=2), prompts=6, learning_rate=0.1, responses_max=100)

    @pytest.mark.parametrize("name", TRAINERS)
    def test_trainer(self, name: str) -> None:
        given, said = TRAINERS[name]
        with pytest.raises(InputError, match=said):
            Trainer(**given)
