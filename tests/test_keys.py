"""Lines to paste: the exact text for each framework, and that it reads back as the same recipe."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from batchsim.cli import main
from batchsim.cli.answer import from_prediction
from batchsim.errors import InputError
from batchsim.logs import read_logs
from batchsim.logs.keys import NO_RATE, Candidate, lines, rate_text, title, trainer_of
from batchsim.logs.verl.settings import options, settings
from batchsim.plan import read_plan
from batchsim.predict import predict

PAPER = Candidate(train_batch=4096, prompts=512, group_size=8, learning_rate=2e-6)
SPLIT = Candidate(
    train_batch=1280, prompts=1024, group_size=5, updates_per_rollout=8, epochs=2, learning_rate=2e-6 * 2**0.5
)


@pytest.mark.parametrize(
    ("framework", "candidate", "expected"),
    [
        (
            "verl",
            PAPER,
            [
                "data.train_batch_size=512 actor_rollout_ref.rollout.n=8 "
                "actor_rollout_ref.actor.ppo_mini_batch_size=512 actor_rollout_ref.actor.optim.lr=2e-6"
            ],
        ),
        (
            "verl",
            SPLIT,
            [
                "data.train_batch_size=1024 actor_rollout_ref.rollout.n=5 "
                "actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_epochs=2 "
                "actor_rollout_ref.actor.optim.lr=2.83e-6"
            ],
        ),
        (
            "verl_async",
            PAPER,
            [
                "actor_rollout_ref.rollout.n=8 actor_rollout_ref.actor.ppo_mini_batch_size=512 "
                "actor_rollout_ref.actor.optim.lr=2e-6",
                "# trigger_parameter_sync_step and require_batches stay as they were; data.train_batch_size stays 0",
            ],
        ),
        (
            "trl",
            PAPER,
            [
                "generation_batch_size=4096 num_generations=8 learning_rate=2e-6",
                "per_device_train_batch_size=8 gradient_accumulation_steps=512",
                "# the second line is for 1 device; the number of devices is not known here. What counts is the "
                "product per_device_train_batch_size x gradient_accumulation_steps x devices = 4096 completions",
            ],
        ),
        (
            "trl",
            SPLIT,
            [
                "generation_batch_size=5120 num_generations=5 num_iterations=2 learning_rate=2.83e-6",
                "per_device_train_batch_size=5 gradient_accumulation_steps=256",
                "# the second line is for 1 device; the number of devices is not known here. What counts is the "
                "product per_device_train_batch_size x gradient_accumulation_steps x devices = 1280 completions",
            ],
        ),
        (
            "mlperf",
            PAPER,
            [
                "grpo.num_prompts_per_step=512 grpo.num_generations_per_prompt=8 policy.train_global_batch_size=4096 "
                "policy.optimizer.kwargs.lr=2e-6"
            ],
        ),
        (
            "nemo_rl",
            SPLIT,
            [
                "grpo.num_prompts_per_step=1024 grpo.num_generations_per_prompt=5 "
                "policy.train_global_batch_size=1280 policy.optimizer.kwargs.lr=2.83e-6",
                "# 2 epochs per rollout step: NeMo-RL has no key for them",
            ],
        ),
        (
            "openrlhf",
            SPLIT,
            [
                "--rollout.batch_size 1024 --rollout.n_samples_per_prompt 5 --train.batch_size 1280 "
                "--train.max_epochs 2 --actor.adam.lr 2.83e-6"
            ],
        ),
        (
            "slime",
            PAPER,
            ["--rollout-batch-size 512 --n-samples-per-prompt 8 --global-batch-size 4096 --lr 2e-6"],
        ),
        (
            "skyrl",
            SPLIT,
            [
                "trainer.train_batch_size=1024 generator.n_samples_per_prompt=5 trainer.policy_mini_batch_size=256 "
                "trainer.update_epochs_per_batch=2 trainer.policy.optimizer_config.lr=2.83e-6"
            ],
        ),
        (
            "areal",
            PAPER,
            [
                "train_dataset.batch_size=512 gconfig.n_samples=8 actor.ppo_n_minibatches=1 actor.optimizer.lr=2e-6",
            ],
        ),
        (
            "easyr1",
            PAPER,
            [
                "data.rollout_batch_size=512 worker.rollout.n=8 worker.actor.global_batch_size=512 "
                "worker.actor.optim.lr=2e-6"
            ],
        ),
        (
            "tinker",
            SPLIT,
            [
                "groups_per_batch=1024 group_size=5 num_substeps=8 learning_rate=2.83e-6",
                "# 2 epochs per rollout step: the Tinker cookbook has no key for them",
            ],
        ),
        (
            "prime_rl",
            PAPER,
            ["--orchestrator.group-size 8 --orchestrator.batch-size 4096 --trainer.optim.lr 2e-6"],
        ),
        (
            "rlinf",
            PAPER,
            ["data.rollout_batch_size=512 algorithm.group_size=8 algorithm.n_minibatches=1 actor.optim.lr=2e-6"],
        ),
        (
            "roll",
            PAPER,
            [
                "rollout_batch_size=512 num_return_sequences_in_group=8 actor_train.training_args.learning_rate=2e-6",
                "# the updates per step follow from per_device_train_batch_size x gradient_accumulation_steps x data "
                "parallel size: let it be 4096 responses",
            ],
        ),
        ("", PAPER, ["[recipe]", "prompts = 512", "group_size = 8", "learning_rate = 2e-6"]),
        (
            "tables",
            SPLIT,
            [
                "[recipe]",
                "prompts = 1024",
                "group_size = 5",
                "updates_per_rollout = 8",
                "epochs = 2",
                "learning_rate = 2.83e-6",
            ],
        ),
    ],
)
def test_exact_lines(framework: str, candidate: Candidate, expected: list[str]) -> None:
    assert lines(framework, candidate) == expected


@pytest.mark.parametrize("framework", ["verl", "trl", "mlperf", "openrlhf", "slime", "wandb", ""])
@pytest.mark.parametrize("rate", [None, float("nan")])
def test_an_unknown_rate_is_a_remark_and_no_key(framework: str, rate: float | None) -> None:
    found = lines(framework, Candidate(train_batch=8, prompts=2, group_size=4, learning_rate=rate))
    assert found[-1] == NO_RATE
    assert not any("lr" in line or "learning_rate" in line for line in found[:-1])


def test_a_mini_batch_that_splits_a_group_has_no_verl_key() -> None:
    (found,) = lines("verl", Candidate(train_batch=4, prompts=2, group_size=8, updates_per_rollout=4))
    assert found.startswith("# actor_rollout_ref.actor.ppo_mini_batch_size counts prompts, and 4 responses are 0.5 ")


def test_trl_batch_of_broken_groups_still_multiplies() -> None:
    found = lines("trl", Candidate(train_batch=6, prompts=3, group_size=4, updates_per_rollout=2))
    assert found[1] == "per_device_train_batch_size=2 gradient_accumulation_steps=3"


@pytest.mark.parametrize(
    ("rate", "text"),
    [(1e-6, "1e-6"), (2.828e-6, "2.83e-6"), (1.25e-10, "1.25e-10"), (0.001, "0.001"), (0.5, "0.5"), (1e5, "1e5")],
)
def test_rates_as_people_write_them(rate: float, text: str) -> None:
    assert rate_text(rate) == text
    assert float(text) == pytest.approx(rate, rel=5e-3)


def test_a_candidate_that_does_not_multiply_is_refused() -> None:
    with pytest.raises(InputError, match="train_batch 100 is not prompts x group_size"):
        Candidate(train_batch=100, prompts=2, group_size=8)


recipes = st.builds(
    lambda mini, group, per_epoch, epochs, rate: Candidate(
        train_batch=mini * group,
        prompts=mini * per_epoch,
        group_size=group,
        updates_per_rollout=per_epoch * epochs,
        epochs=epochs,
        learning_rate=rate,
    ),
    st.integers(1, 500),
    st.integers(1, 16),
    st.integers(1, 8),
    st.integers(1, 4),
    st.floats(1e-8, 1e-2),
)


@given(candidate=recipes)
def test_verl_lines_read_back_as_the_recipe(candidate: Candidate) -> None:
    (line,) = lines("verl", candidate)
    stated = settings(options(line), None, where="here").stated
    assert stated.pop("learning_rate") == pytest.approx(candidate.learning_rate, rel=5e-3)
    assert stated.pop("epochs", 1) == candidate.epochs
    assert stated == {
        "prompts": candidate.prompts,
        "group_size": candidate.group_size,
        # ppo_epochs is not printed where it is 1, which is what the reader assumes.
        "mini_prompts": candidate.prompts * candidate.epochs / candidate.updates_per_rollout,
    }


@given(candidate=recipes)
def test_plan_lines_are_a_plan(candidate: Candidate, tmp_path_factory: pytest.TempPathFactory) -> None:
    text = "\n".join(lines("", candidate))
    assert tomllib.loads(text)["recipe"]["prompts"] == candidate.prompts
    path = tmp_path_factory.mktemp("plan") / "plan.toml"
    path.write_text(text)
    recipe = read_plan(path).recipe
    assert recipe is not None
    assert (recipe.train_batch, recipe.rollout_batch) == (candidate.train_batch, candidate.rollout_batch)


@given(candidate=recipes)
def test_products_of_every_framework(candidate: Candidate) -> None:
    trl = dict(pair.split("=") for line in lines("trl", candidate)[:2] for pair in line.split())
    assert int(trl["per_device_train_batch_size"]) * int(trl["gradient_accumulation_steps"]) == candidate.train_batch
    assert int(trl["generation_batch_size"]) == candidate.rollout_batch
    nemo = dict(pair.split("=") for pair in lines("mlperf", candidate)[0].split())
    assert int(nemo["policy.train_global_batch_size"]) == candidate.train_batch


# -- which trainer ------------------------------------------------------------------------------------


def tree(framework: str, *attrs: dict[str, Any]) -> xr.DataTree:
    runs = xr.DataTree.from_dict({f"run{i}": xr.Dataset(attrs=given) for i, given in enumerate(attrs)})
    runs.attrs["framework"] = framework
    return runs


def test_the_trainer_behind_a_tracker() -> None:
    assert trainer_of(None) == ""
    assert trainer_of(tree("verl", {}, {})) == "verl"
    assert trainer_of(tree("wandb", {"logged_by": "trl"})) == "trl"
    assert trainer_of(tree("wandb", {"logged_by": "trl"}, {"logged_by": "verl"})) == ""
    cycle = {"provenance": {"prompts": "trigger_parameter_sync_step x require_batches x ppo_mini_batch_size"}}
    assert trainer_of(tree("verl", cycle)) == "verl_async"
    assert title("") == title("tables") == ""
    assert title("mlperf") == "NeMo-RL (MLPerf)"


# -- in a prediction ----------------------------------------------------------------------------------


def test_settings_of_a_prediction_from_mlperf(shared: Path) -> None:
    runs = read_logs(shared / "mlperf_grpo")
    ds = predict(runs, draws=200)
    answer = from_prediction(ds)
    star = next(row for row in answer["batches"] if row["train_batch"] == answer["star"])
    (line,) = answer["settings"]["star"]
    assert line == (
        f"grpo.num_prompts_per_step={star['prompts']} grpo.num_generations_per_prompt=16 "
        f"policy.train_global_batch_size={star['train_batch']} "
        f"policy.optimizer.kwargs.lr={rate_text(star['learning_rate'])}"
    )
    if answer["next_run"] is None:
        assert answer["settings"]["next_run"] == []
    else:
        (line,) = answer["settings"]["next_run"]
        assert f"policy.train_global_batch_size={answer['next_run']['train_batch']:.0f} " in line
    assert from_prediction(ds, trainer="")["settings"]["star"][0] == "[recipe]"


def test_settings_keep_updates_and_epochs_per_rollout(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        "[recipe]\nprompts = 64\ngroup_size = 8\nupdates_per_rollout = 4\nepochs = 2\nlearning_rate = 1e-6\n"
    )
    ds = predict(read_plan(path), draws=200, batches=[512, 1024])
    found = from_prediction(ds.assign_attrs(star=1024.0, next_run=None), epochs=2)["settings"]
    assert found == {
        "star": [
            "[recipe]",
            "prompts = 256",
            "group_size = 8",
            "updates_per_rollout = 4",
            "epochs = 2",
            f"learning_rate = {rate_text(float(ds['learning_rate'].sel(train_batch=1024)))}",
        ],
        "next_run": [],
    }


def test_no_star_has_no_settings(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("[recipe]\nprompts = 64\ngroup_size = 8\n")
    ds = predict(read_plan(path), draws=200)
    answer = from_prediction(ds.assign_attrs(star=None, next_run=None))
    assert answer["settings"] == {"star": [], "next_run": []}


def test_predict_ends_with_lines_in_the_users_keys(capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*arguments: str) -> str:
        with pytest.raises(SystemExit) as stop:
            main(["predict", *arguments, "--draws", "200"])
        assert stop.value.code == 0
        return capsys.readouterr().out

    sweep = ("--example", "verl-sweep", "--target", "0.55", "--pilot", "128,256")
    answer = json.loads(printed(*sweep, "--json"))
    (star,) = answer["settings"]["star"]
    prompts = answer["star"] // 8
    assert star.startswith(
        f"data.train_batch_size={prompts} actor_rollout_ref.rollout.n=8 "
        f"actor_rollout_ref.actor.ppo_mini_batch_size={prompts} actor_rollout_ref.actor.optim.lr="
    )
    expected = [f"To run the star with verl: {star}"]
    if answer["next_run"] is not None:
        (following,) = answer["settings"]["next_run"]
        expected.append(f"To measure B = {answer['next_run']['train_batch']:g} with verl: {following}")
    assert printed(*sweep).splitlines()[-len(expected) :] == expected
    out = printed("--example", "li2026-grpo")
    assert "\nTo run the star, as a plan:\n[recipe]\nprompts = " in out
