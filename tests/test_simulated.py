"""Worlds as logs: what measure, calibrate and predict read off them is what was put in, or what is known exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import naive_simulated as naive
import numpy as np
import pytest
import xarray as xr

from batchsim.calibrate import calibrate
from batchsim.errors import InputError
from batchsim.learning.worlds import (
    Optimizer,
    Quadratic,
    SoftmaxWorld,
    Trainer,
    expected_loss,
    mean_responses,
    power_law,
    responses_to_target,
    simulate_grpo,
    simulate_ppo,
    simulate_quadratic,
    softmax_world,
    train,
    true_noise,
    true_value_noise,
)
from batchsim.learning.worlds.run_layout import METRIC
from batchsim.logs import load_runs, save_runs
from batchsim.measure import measure
from batchsim.plan import Plan
from batchsim.predict import predict
from batchsim.specs.recipe import Recipe
from batchsim.variables import VARIABLES

WORLD = softmax_world(dim=16, prompts=64, validation=64, seed=1)
BOWL = power_law(12)
GRPO: dict[str, Any] = {
    "prompts": [4, 16, 64], "learning_rate": 0.01, "lr_rule": "sqrt", "responses_max": 40_000, "target": 0.55,
    "evaluate_every": 512, "seeds": 3,
}  # fmt: skip
PPO: dict[str, Any] = {
    "prompts": [32, 128], "learning_rate": 0.01, "lr_rule": "sqrt", "responses_max": 60_000, "target": 0.55,
    "evaluate_every": 256, "seeds": 3,
}  # fmt: skip
QUADRATIC: dict[str, Any] = {
    "train_batch": [4, 16, 64], "learning_rate": 0.03, "lr_rule": "linear", "responses_max": 40_000, "target": 0.95,
    "evaluate_every": 64, "seeds": 3,
}  # fmt: skip


def simulate(kind: str, **options: Any) -> xr.DataTree:
    if kind == "grpo":
        return simulate_grpo(WORLD, **(GRPO | options))
    if kind == "ppo":
        return simulate_ppo(WORLD, **(PPO | options))
    return simulate_quadratic(BOWL, **(QUADRATIC | options))


@pytest.fixture(scope="module")
def trees() -> dict[str, xr.DataTree]:
    return {kind: simulate(kind) for kind in KINDS}


KINDS = ("grpo", "ppo", "quadratic")
kinds = pytest.mark.parametrize("kind", KINDS)


def datasets(tree: xr.DataTree) -> dict[str, xr.Dataset]:
    return {str(name): node.to_dataset() for name, node in tree.children.items()}


def runs_of(tree: xr.DataTree, **options: Any) -> xr.Dataset:
    return measure(tree, **options)["runs"].to_dataset()


# -- as logs --------------------------------------------------------------------------------------------


@kinds
def test_every_variable_is_one_of_a_log_with_its_unit(trees: dict[str, xr.DataTree], kind: str) -> None:
    wanted = {
        "responses", "responses_generated", "grad_norm", "sq_norm_chunk", "sq_norm_batch", "learning_rate", "updates",
        "step_seconds", "elapsed", "steady", "score", "evaluation_responses", "evaluation_elapsed", "evaluation_wall",
        "evaluation_seconds",
    }  # fmt: skip
    policy = {"train_reward", "staleness_mean", "kept_share"}
    critic = {"critic_grad_norm", "critic_sq_norm_chunk", "critic_sq_norm_batch"}
    wanted |= {"grpo": policy, "ppo": policy | critic, "quadratic": set[str]()}[kind]
    for ds in datasets(trees[kind]).values():
        assert set(ds.data_vars) == wanted
        for name, variable in ds.variables.items():
            known = VARIABLES[str(name)]
            assert variable.attrs == {"symbol": known.symbol, "units": known.unit, "long_name": known.long_name}
        assert all(np.isfinite(ds[name].values).all() for name in wanted)


@kinds
def test_steps_add_up(trees: dict[str, xr.DataTree], kind: str) -> None:
    for name, ds in datasets(trees[kind]).items():
        attrs = ds.attrs
        steps = np.arange(1, ds.sizes["rollout_step"] + 1)
        assert ds["responses"].values.tolist() == (steps * attrs["rollout_batch"]).tolist()
        assert ds["updates"].values.tolist() == steps.tolist()
        assert ds["rollout_step"].values.tolist() == steps.tolist()
        generated = np.diff(ds["responses_generated"].values, prepend=0)
        assert (generated >= attrs["rollout_batch"]).all()
        assert ds["step_seconds"].values == pytest.approx(10 + 0.05 * generated)
        assert ds["elapsed"].values == pytest.approx(10 * steps + 0.05 * ds["responses_generated"].values)
        at = ds["evaluation_responses"].values
        assert at[0] == 0
        assert at[-1] == ds["responses"].values[-1]
        assert (np.diff(at) > 0).all()
        known = np.concatenate([[0], ds["elapsed"].values])[(at / attrs["rollout_batch"]).astype(int)]
        assert ds["evaluation_elapsed"].values.tolist() == known.tolist()
        assert attrs["path"] == name
        assert attrs["status"] == "reached"


@kinds
def test_measure_agrees_with_what_the_runs_know(trees: dict[str, xr.DataTree], kind: str) -> None:
    measured = measure(trees[kind])
    arms, runs = measured["arms"].to_dataset(), measured["runs"].to_dataset()
    target = measured.attrs["target"]
    exact = {name: responses_to_target(ds, target) for name, ds in datasets(trees[kind]).items()}
    for name, bounds in zip(runs["run"].values, runs["responses_to_target"], strict=True):
        low, high = bounds.sel(bound=["low", "high"]).values
        assert low < exact[str(name)] <= high
    mean = np.exp(np.log(np.array(list(exact.values())).reshape(-1, 3)).mean(axis=1))
    ratio = arms["sample_cost_ratio"].sel(bound="estimate").values
    grid = (GRPO | {"ppo": PPO, "quadratic": QUADRATIC}.get(kind, GRPO))["evaluate_every"]
    assert ratio == pytest.approx(mean / mean[0], rel=float(2 * grid / mean.min()))
    assert arms["lr_rule"].values.tolist()[1:] == ["linear" if kind == "quadratic" else "sqrt"] * (ratio.size - 1)
    assert not [w for w in measured.attrs["warnings"] if "more than the batch changed" in w]


def test_n_star_of_the_tree_is_that_of_the_trainer(trees: dict[str, xr.DataTree]) -> None:
    options = {name: value for name, value in GRPO.items() if name not in ("learning_rate", "lr_rule")}
    runs = train(WORLD, Trainer(), learning_rate=0.01 * np.sqrt([1, 4, 16]), group_size=8, **options)
    exact, _ = mean_responses(runs, 0.55)
    found = [responses_to_target(ds, 0.55) for ds in datasets(trees["grpo"]).values()]
    assert np.array(found).reshape(3, 3).mean(axis=1).tolist() == exact.tolist()


@kinds
def test_q_follows_the_law_of_time(trees: dict[str, xr.DataTree], kind: str) -> None:
    arms = measure(trees[kind])["arms"].to_dataset()
    kept = np.ones(arms.sizes["arm"]) if kind == "quadratic" else arms["kept_share"].values
    batch = arms["train_batch"].values
    assert arms["throughput"].values == pytest.approx(batch / (10 + 0.05 * batch / kept), rel=0.01)


@kinds
def test_calibrate_and_predict_take_them_as_logs(trees: dict[str, xr.DataTree], kind: str) -> None:
    first = next(iter(datasets(trees[kind]).values())).attrs
    recipe = Recipe(**{name: first[name] for name in ("prompts", "group_size", "learning_rate")})
    calibrated = calibrate(trees[kind], Plan(recipe=recipe), draws=50)
    assert calibrated.noise_scale.shape == (50,)
    forecast = predict(trees[kind], draws=50)
    assert np.isfinite(forecast["time_ratio"].median("draw").values).all()
    assert forecast.attrs["star"] is not None


@kinds
def test_runs_come_back_from_a_file(kind: str, tmp_path: Path) -> None:
    tree = simulate(kind, seeds=1)
    for ending in ("nc", "json"):
        save_runs(tree, tmp_path / f"runs.{ending}")
        back = load_runs(tmp_path / f"runs.{ending}")
        assert back.attrs == tree.attrs
        for name, ds in datasets(tree).items():
            xr.testing.assert_identical(back[name].to_dataset(), ds)


@kinds
def test_the_number_of_threads_changes_no_bit(kind: str) -> None:
    one, two, three = (simulate(kind, threads=n, seeds=2, responses_max=6000) for n in (1, 2, 3))
    assert one.identical(two)
    assert one.identical(three)
    assert not one.identical(simulate(kind, threads=2, seeds=2, responses_max=6000, seed=1))


def test_a_noisy_score_stands_beside_the_exact_one() -> None:
    tree = simulate("grpo", prompts=[16], mean_at=(32, 4), seeds=1)
    ds = tree["b128_s1"].to_dataset()
    assert ds["metric"].values.tolist() == [METRIC, "val/mean@4"]
    assert ds.attrs["eval_samples"] == 128
    exact, noisy = ds["score"].values
    assert (noisy * 128 == np.round(noisy * 128)).all()
    # On other prompts, with an error of its own: some .04 of each.
    assert 0 < np.abs(noisy - exact).mean() < 0.15
    with pytest.raises(InputError, match="choose one with --metric"):
        measure(tree)
    assert runs_of(tree, metric=METRIC)["censoring"].values.tolist() == ["interval"]


def test_arms_of_one_batch_are_told_apart() -> None:
    tree = simulate("grpo", prompts=[16, 32], group_size=[8, 4], lr_rule="fixed", seeds=1, target=None)
    assert list(tree.children) == ["b128_1_s1", "b128_2_s1"]
    assert len(measure(tree)["arms"]["arm"]) == 2


def test_arms_may_differ_in_staleness_alone() -> None:
    tree = simulate("grpo", prompts=16, staleness=[0, 3], seeds=1, target=None, responses_max=4000)
    fresh, stale = datasets(tree).values()
    assert (fresh["staleness_mean"].values == 0).all()
    assert stale["staleness_mean"].values[:5].tolist() == [0, 1, 2, 3, 3]
    assert any("staleness is 0" in w for w in measure(tree).attrs["warnings"])


def test_progress_counts_every_run() -> None:
    for kind in KINDS:
        seen: list[tuple[int, int]] = []
        simulate(kind, responses_max=2000, seeds=2, progress=lambda done, total, to=seen: to.append((done, total)))
        assert seen == [(n, len(seen)) for n in range(1, len(seen) + 1)]
        assert len(seen) in (4, 6)


# -- batches and rates ------------------------------------------------------------------------------------


def test_several_updates_per_rollout_are_batches_of_their_own() -> None:
    trainer = Trainer(updates_per_rollout=4, epochs=2, clip=0.2)
    tree = simulate("grpo", prompts=[8, 32], trainer=trainer, seeds=1, target=None, responses_max=4000)
    small, large = datasets(tree).values()
    assert (small.attrs["rollout_batch"], small.attrs["train_batch"]) == (64, 32)
    assert small.attrs["chunks"] == 4
    assert (large.attrs["train_batch"], large.attrs["chunks"]) == (128, 8)
    assert large.attrs["learning_rate"] == pytest.approx(0.02)
    assert np.diff(small["updates"].values).tolist() == [4] * (small.sizes["rollout_step"] - 1)
    assert measure(tree)["arms"].to_dataset()["train_batch"].values.tolist() == [32, 128]


@pytest.mark.parametrize(
    ("rule", "rates"),
    [
        (None, [0.01, 0.01, 0.01]),
        ("fixed", [0.01, 0.01, 0.01]),
        ("sqrt", [0.02, 0.04, 0.01]),
        ("linear", [0.04, 0.16, 0.01]),
        (lambda x: 1 + x, [0.05, 0.17, 0.02]),
    ],
)
@kinds
def test_rates_follow_the_rule_from_the_smallest_batch(kind: str, rule: Any, rates: list[float]) -> None:
    name = "train_batch" if kind == "quadratic" else "prompts"
    tree = simulate(kind, **{name: [64, 256, 16]}, lr_rule=rule, learning_rate=0.01, responses_max=600, seeds=1)
    found = [ds.attrs["learning_rate"] for ds in datasets(tree).values()]
    assert found == pytest.approx(rates)
    assert all((ds["learning_rate"].values == ds.attrs["learning_rate"]).all() for ds in datasets(tree).values())


def test_the_critic_has_a_rate_of_its_own() -> None:
    one = simulate("ppo", responses_max=2000, seeds=1, critic_learning_rate=0.05)
    assert one["b128_s1"].attrs["provenance"]["critic_learning_rate"] == "0.1"
    assert not one.identical(simulate("ppo", responses_max=2000, seeds=1))
    listed = simulate("ppo", responses_max=2000, seeds=1, critic_learning_rate=[0.05, 0.1])
    assert listed.identical(one)


# -- noise ------------------------------------------------------------------------------------------------


def noise_scale(tree: xr.DataTree, method: str = "chunk norms") -> dict[str, Any]:
    found = [e for e in measure(tree, level=0.99).attrs["noise_scales"] if e["method"] == method]
    return dict(found[0])


STILL: dict[str, Any] = {"learning_rate": 1e-12, "lr_rule": None, "target": None, "seeds": 2}


@pytest.mark.parametrize(
    ("prompts", "trainer"),
    [
        (64, Trainer()),
        (12, Trainer()),
        (3, Trainer(advantage="mean")),
        (64, Trainer(updates_per_rollout=4, advantage="leave_one_out")),
        (22, Trainer(zero_variance="keep")),
        (32, Trainer(optimizer="sgd", updates_per_rollout=4, epochs=2)),
    ],
)
def test_grpos_chunk_norms_cover_the_true_noise_scale(prompts: int, trainer: Trainer) -> None:
    tree = simulate("grpo", **STILL, prompts=prompts, trainer=trainer, responses_max=300_000)
    truth = true_noise(
        WORLD, np.zeros(16), group_size=8, advantage=trainer.advantage, zero_variance=trainer.zero_variance
    ).noise_scale
    found = noise_scale(tree)
    assert found["low"] < truth < found["high"] < 1.5 * found["low"]


@pytest.mark.parametrize("normalise", [False, True])
def test_ppos_chunk_norms_cover_the_true_noise_scale(normalise: bool) -> None:
    trainer = Trainer(algorithm="ppo", normalise=normalise)
    tree = simulate("ppo", **STILL, prompts=256, responses_max=600_000, trainer=trainer)
    actor, critic = true_value_noise(WORLD, np.zeros(16), WORLD.value_start, normalise=normalise)
    found = noise_scale(tree)
    # Mean and spread of a batch's advantages bind its chunks to each other, by some 1/B.
    slack = 1.01 if normalise else 1.0
    assert found["low"] / slack < actor.noise_scale < found["high"] * slack
    assert found["high"] < 1.1 * found["low"]
    # The critic starts at the true mean: its gradient is all noise, of a trace that is known.
    ds = datasets(tree)["b256_s1"]
    apart = ds["critic_sq_norm_chunk"].values - ds["critic_sq_norm_batch"].values
    spread = apart.std() / np.sqrt(apart.size)
    assert apart.mean() == pytest.approx(critic.variance.sum() * (8 - 1) / 256, abs=4 * spread)


@pytest.mark.parametrize("batch", [2, 3, 4, 5, 8, 12, 64])
def test_the_quadratics_chunk_norms_are_exact_in_distribution(batch: int) -> None:
    world = Quadratic(np.array([1.0, 0.5, 0.1]), noise=np.array([2.0, 0.5, 0.0]), start=np.array([1.0, -1.0, 2.0]))
    tree = simulate_quadratic(world, train_batch=batch, learning_rate=1e-12, responses_max=20_000 * batch)
    (ds,) = datasets(tree).values()
    n = ds.attrs["chunks"]
    assert n == min(batch, 8)
    g, c = world.curvature * world.start, world.noise / batch
    whole, apart = ds["sq_norm_batch"].values, ds["sq_norm_chunk"].values - ds["sq_norm_batch"].values
    root = np.sqrt(whole.size)

    def near(found: Any, mean: float, variance: float) -> None:
        assert found == pytest.approx(mean, abs=4.5 * np.sqrt(variance) / root)

    near(whole.mean(), float(g @ g + c.sum()), float(np.sum(2 * c**2 + 4 * c * g**2)))
    near(apart.mean(), float((n - 1) * c.sum()), float(2 * (n - 1) * np.sum(c**2)))
    assert apart.var() == pytest.approx(2 * (n - 1) * np.sum(c**2), rel=0.25)
    assert abs(np.corrcoef(whole, apart)[0, 1]) < 4.5 / root


def test_the_quadratics_noise_scale_is_read_from_both_kinds_of_norms() -> None:
    world = Quadratic(np.arange(1, 9) / 8, noise=np.full(8, 3.0), start=np.ones(8))
    tree = simulate_quadratic(world, train_batch=[1, 8, 64], learning_rate=1e-12, responses_max=16_000)
    assert "sq_norm_chunk" not in tree["b1_s1"]
    assert "chunks" not in tree["b1_s1"].attrs
    found = noise_scale(tree)
    assert found["low"] < world.noise_scale() < found["high"]
    # The median of a norm lies below its mean by more where noise of few coordinates prevails.
    assert noise_scale(tree, "logged norms")["noise_scale"] == pytest.approx(world.noise_scale(), rel=0.15)


# -- the noisy quadratic ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how",
    [
        Optimizer(),
        Optimizer(kind="momentum", beta1=0.8),
        Optimizer(kind="momentum", dampened=True, iterate_average=0.7),
        Optimizer(preconditioner=0.5),
        Optimizer(kind="adam"),
        Optimizer(kind="adam", beta1=0.5, beta2=0.9, iterate_average=0.5),
    ],
)
@pytest.mark.parametrize(("batch", "random_start"), [(1, True), (6, False), (16, True)])
def test_the_kernel_is_its_slow_twin(how: Optimizer, batch: int, random_start: bool) -> None:
    world = power_law(5, random_start=random_start, noise=0.3)
    tree = simulate_quadratic(
        world, how, train_batch=batch, learning_rate=0.05, responses_max=60 * batch, evaluate_every=2.5 * batch,
        target=0.9, seed=7,
    )  # fmt: skip
    (ds,) = datasets(tree).values()
    state = np.random.SeedSequence(7, spawn_key=(0, 0)).generate_state(1, np.uint64)
    twin = naive.run(
        curvature=world.curvature.tolist(), noise=world.noise.tolist(), start=world.start.tolist(),
        random_start=random_start, start_loss=world.start_loss, kind=how.kind, rate=0.05, beta1=how.beta1,
        beta2=how.beta2, epsilon=how.epsilon, gain=how.gain, rho=how.iterate_average,
        preconditioner=how.preconditioner, batch=batch, chunks=min(batch, 8), every=2.5 * batch, updates_max=60,
        target=0.9, state=int(state[0]),
    )  # fmt: skip
    assert ds.attrs["status"] == twin.outcome
    assert ds["grad_norm"].values ** 2 == pytest.approx(np.array(twin.whole), rel=1e-9)
    if batch > 1:
        assert ds["sq_norm_chunk"].values == pytest.approx(np.array(twin.chunk), rel=1e-9)
    assert (ds["evaluation_responses"].values / batch).tolist() == [n for n, _ in twin.evaluations]
    assert ds["score"].values[0] == pytest.approx(np.array([score for _, score in twin.evaluations]), rel=1e-9)


@pytest.mark.parametrize(
    "how",
    [
        Optimizer(),
        Optimizer(kind="momentum", beta1=0.8, iterate_average=0.9),
        Optimizer(kind="adam", replicas=2000),
    ],
)
def test_the_mean_of_runs_is_the_expected_loss(how: Optimizer) -> None:
    rate = 0.02 if how.kind == "adam" else 0.1
    world = power_law(12, random_start=False, noise=0.3)
    tree = simulate_quadratic(
        world, how, train_batch=4, learning_rate=rate, responses_max=400, evaluate_every=4, seeds=250
    )
    scores = np.array([ds["score"].values[0] for ds in datasets(tree).values()])
    at = np.array([30, 60, 100])
    # Far enough from the start that no score is cut at 0.
    assert (scores[:, at] > 0).all()
    loss = expected_loss(world, how, train_batch=4, learning_rate=rate, updates=at) / world.start_loss
    error = scores[:, at].std(axis=0) / np.sqrt(250)
    assert (np.abs(1 - scores[:, at].mean(axis=0) - loss) < 4 * error).all()


# -- how runs end --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [1e308, 1e20])
@kinds
def test_a_run_that_diverges_says_so_and_holds_no_nan(kind: str, rate: float, tmp_path: Path) -> None:
    sgd: dict[str, Any] = {}
    if kind != "quadratic":
        sgd = {"trainer": Trainer(algorithm=kind, optimizer="sgd"), "target": 0.999}
    tree = simulate(kind, learning_rate=rate, lr_rule=None, seeds=1, responses_max=4000, **sgd)
    if kind == "quadratic" or rate > 1e155:
        assert {ds.attrs["status"] for ds in datasets(tree).values()} == {"diverges"}
        assert "runs diverge" in tree.attrs["warnings"][-1]
    for ds in datasets(tree).values():
        for name in ds.data_vars:
            assert np.isfinite(ds[name].values).all(), name
        assert (ds["score"].values >= 0).all()
    assert set(runs_of(tree)["censoring"].values.tolist()) == {"right"}
    save_runs(tree, tmp_path / "runs.nc")
    assert load_runs(tmp_path / "runs.nc")["b4_s1" if kind == "quadratic" else "b32_s1"].attrs["status"]


def test_a_slowly_diverging_run_is_named_too() -> None:
    tree = simulate("quadratic", learning_rate=2.1, lr_rule=None, responses_max=40_000, seeds=1)
    assert {ds.attrs["status"] for ds in datasets(tree).values()} == {"diverges"}


@pytest.mark.parametrize("zero_variance", ["refill", "drop"])
def test_a_certain_policy_has_no_signal(zero_variance: str, tmp_path: Path) -> None:
    certain = softmax_world(dim=8, prompts=4, validation=4, start_score=1 - 1e-9, difficulty=0)
    tree = simulate_grpo(
        certain,
        prompts=2,
        learning_rate=0.1,
        group_size=2,
        responses_max=400,
        trainer=Trainer(zero_variance=zero_variance),
    )
    (ds,) = datasets(tree).values()
    assert ds.attrs["status"] == "no signal"
    assert ds.sizes["rollout_step"] == 0
    assert "grad_norm" not in ds
    assert "no group with a signal" in tree.attrs["warnings"][-1]
    assert measure(tree).attrs["noise_scales"] == []
    save_runs(tree, tmp_path / "runs.nc")
    xr.testing.assert_identical(load_runs(tmp_path / "runs.nc")["b4_s1"].to_dataset(), ds)


@kinds
def test_a_target_never_reached_is_right_censored(kind: str) -> None:
    tree = simulate(kind, target=0.9999, responses_max=3000)
    assert {ds.attrs["status"] for ds in datasets(tree).values()} == {"too many responses"}
    assert all(ds["responses"].values[-1] >= 3000 for ds in datasets(tree).values())
    assert all(responses_to_target(ds, 0.9999) == np.inf for ds in datasets(tree).values())
    runs = measure(tree)["runs"].to_dataset()
    assert set(runs["censoring"].values.tolist()) == {"right"}
    assert (runs["responses_to_target"].sel(bound="low").values >= 3000).all()


@kinds
def test_a_target_that_the_start_meets_costs_nothing(kind: str) -> None:
    world = Quadratic(np.ones(3), noise=np.ones(3), start=np.ones(3))
    if kind == "quadratic":
        tree = simulate_quadratic(world, train_batch=4, learning_rate=0.1, responses_max=400, target=1e-300)
    else:
        tree = simulate(kind, prompts=[16], target=0.01, seeds=1)
    (ds,) = datasets(tree).values()
    if kind != "quadratic":
        assert ds.sizes["rollout_step"] == 0
        assert responses_to_target(ds, 0.01) == 0
        assert any("pass the target before training" in w for w in measure(tree).attrs["warnings"])
    assert ds.attrs["status"] == "reached"


def test_runs_that_start_at_the_target_are_named() -> None:
    tree = simulate_quadratic(
        power_law(1), train_batch=8, learning_rate=0.1, responses_max=800, target=0.9, evaluate_every=8, seeds=20
    )
    early = [name for name, ds in datasets(tree).items() if not ds.sizes["rollout_step"]]
    assert 0 < len(early) < 20
    assert tree.attrs["warnings"] == [
        f"{len(early)} of 20 runs meet the target before training: {', '.join(early[:3])}"
    ]


def test_without_a_target_runs_go_to_their_end() -> None:
    for kind in KINDS:
        tree = simulate(kind, target=None, responses_max=3000)
        assert all("target" not in ds.attrs for ds in datasets(tree).values())
        assert {ds.attrs["status"] for ds in datasets(tree).values()} == {"too many responses"}
        assert measure(tree).attrs["target"] is None


def test_groups_that_are_dropped_cost_time_and_no_chunk_norms_are_claimed() -> None:
    world = softmax_world(dim=16, prompts=64, validation=64, start_score=0.02, seed=1)
    tree = simulate_grpo(
        world, prompts=2, group_size=4, learning_rate=0.01, responses_max=800, trainer=Trainer(zero_variance="drop")
    )
    (ds,) = datasets(tree).values()
    generated = ds["responses_generated"].values
    assert not {"sq_norm_chunk", "sq_norm_batch"} & set(ds.data_vars)
    assert "chunks" not in ds.attrs
    assert ds["rollout_step"].values.tolist() == (generated / 8).tolist()
    # Steps that kept nothing have no row, and their time.
    assert ds["rollout_step"].values[-1] > ds.sizes["rollout_step"]
    assert ds["elapsed"].values == pytest.approx(10 * generated / 8 + 0.05 * generated)
    kept = np.diff(ds["responses"].values, prepend=0)
    assert set(kept.tolist()) == {4, 8}
    assert ds["kept_share"].values == pytest.approx(kept / np.diff(generated, prepend=0))
    assert "groups without variance are dropped" in tree.attrs["warnings"][0]


def test_evaluations_take_time_beside_the_steps() -> None:
    tree = simulate("quadratic", evaluation_seconds=7.0, seeds=1)
    arms = measure(tree)["arms"].to_dataset()
    assert (arms["throughput_with_evaluation"].values < arms["throughput"].values).all()
    ds = tree["b4_s1"].to_dataset()
    wall = ds["evaluation_wall"].values - ds["evaluation_elapsed"].values
    assert wall.tolist() == [7.0 * i for i in range(wall.size)]


# -- refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("grpo", {"prompts": 0}, "prompts is 0, not a whole number from 1 to 1,048,576"),
        ("grpo", {"prompts": 2.5}, "prompts is 2.5, not a whole number"),
        ("grpo", {"prompts": []}, "prompts has shape"),
        ("grpo", {"prompts": "many"}, "prompts is 'many', no list of numbers"),
        ("grpo", {"prompts": [[1, 2]]}, "prompts has shape"),
        ("grpo", {"prompts": np.nan}, "prompts is nan"),
        ("grpo", {"group_size": 1}, "group_size is 1, and GRPO compares"),
        ("grpo", {"group_size": 5000}, "group_size is 5000"),
        ("grpo", {"group_size": [8, 8]}, "arms do not match: 3 of prompts, 2 of group_size"),
        ("grpo", {"learning_rate": 0}, "learning_rate is 0; it must be positive and finite"),
        ("grpo", {"learning_rate": -1.0}, "learning_rate is -1"),
        ("grpo", {"learning_rate": np.inf}, "learning_rate is inf"),
        ("grpo", {"learning_rate": [0.1, 0.2, 0.3]}, "needs one at the smallest batch"),
        ("grpo", {"learning_rate": [0.1, 0.2], "lr_rule": None}, "arms do not match"),
        ("grpo", {"learning_rate": 1e308, "lr_rule": "linear"}, "grows beyond floating point"),
        ("grpo", {"lr_rule": "tuned"}, "needs to know the noise scale"),
        ("grpo", {"lr_rule": "sqr"}, "did you mean 'sqrt'?"),
        ("grpo", {"responses_max": 0}, "responses_max is 0; it must be positive"),
        ("grpo", {"responses_max": 1e15}, "rollout steps in 9 runs, more than 10,000,000; lower responses_max"),
        ("grpo", {"evaluate_every": 0}, "evaluate_every is 0; it must be positive"),
        ("grpo", {"target": np.nan}, "target is nan"),
        ("grpo", {"seeds": 0}, "seeds is 0, and it must be at least 1"),
        ("grpo", {"seeds": 10_000}, "30,000 runs, more than 2,000"),
        ("grpo", {"seed": -1}, "seed is -1"),
        ("grpo", {"threads": 0}, "threads is 0"),
        ("grpo", {"step_time_slope": -1.0}, "step_time_slope is -1"),
        ("grpo", {"step_time_intercept": 0.0, "step_time_slope": 0.0}, "a step must take time"),
        ("grpo", {"evaluation_seconds": np.nan}, "evaluation_seconds is nan"),
        ("grpo", {"mean_at": (65, 4)}, "mean_at is"),
        ("grpo", {"staleness": -1}, "staleness is -1"),
        ("grpo", {"trainer": Trainer(algorithm="ppo")}, "call simulate_ppo"),
        ("grpo", {"trainer": Trainer(updates_per_rollout=8)}, "4 prompts do not divide into 8 mini-batches"),
        ("ppo", {"trainer": Trainer()}, "call simulate_grpo"),
        ("ppo", {"critic_learning_rate": -1.0}, "critic_learning_rate is -1"),
        ("quadratic", {"train_batch": 0}, "train_batch is 0, not a whole number"),
        ("quadratic", {"train_batch": 1.5}, "train_batch is 1.5"),
        ("quadratic", {"train_batch": 2**41}, "train_batch is 2.19902e+12"),
        ("quadratic", {"learning_rate": 0}, "learning_rate is 0"),
        ("quadratic", {"target": 1.0}, "target is 1, outside (0, 1)"),
        ("quadratic", {"target": np.nan}, "target is nan"),
        ("quadratic", {"responses_max": 1e12}, "more than 10,000,000"),
        ("quadratic", {"responses_max": "x"}, "responses_max is 'x'"),
        ("quadratic", {"evaluate_every": -1}, "evaluate_every is -1"),
    ],
)
def test_what_cannot_be_is_refused_with_its_bound(kind: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        simulate(kind, **options)
    assert said in str(refused.value)


def test_a_world_is_not_changed_by_its_runs() -> None:
    before = WORLD.features.copy(), WORLD.value_start.copy()
    simulate("ppo", responses_max=1000)
    assert isinstance(WORLD, SoftmaxWorld)
    assert np.array_equal(before[0], WORLD.features)
    assert np.array_equal(before[1], WORLD.value_start)
