"""OpenRLHF, slime, NeMo-RL, SkyRL, AReaL, ROLL, prime-rl, Tinker, EasyR1 and RLinf: recipe, times, scores, quirks.

The lines are ours, in the exact shapes that the sources of docs/logs.md print, with numbers that can be added up by
hand. tests/test_logs_fuzz.py damages them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from log_texts import FORMATS, merged

from batchsim.errors import InputError
from batchsim.logs import read_logs
from batchsim.logs.account import arithmetic, held, missing
from batchsim.logs.integrity import phases


def write(folder: Path, text: str, name: str = "run.log") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def only(tree: xr.DataTree) -> xr.Dataset:
    (node,) = tree.children.values()
    return node.to_dataset()


def recipe(ds: xr.Dataset) -> tuple[Any, ...]:
    names = ("prompts", "group_size", "rollout_batch", "train_batch", "updates_per_rollout", "epochs", "learning_rate")
    return tuple(ds.attrs.get(name) for name in names)


def warned(ds: xr.Dataset, text: str) -> bool:
    return any(text in warning for warning in ds.attrs["warnings"])


def lacks(ds: xr.Dataset) -> dict[str, str]:
    return {entry.quantity: entry.remedy for entry in missing(ds)}


# -- the recipe, from a command line or a configuration -----------------------------------------------

COMMANDS = {
    "openrlhf": (
        "--rollout.batch_size 128 --rollout.n_samples_per_prompt 8 --train.batch_size 256 --train.max_epochs 2 "
        "--actor.adam.lr 5e-7",
        (128, 8, 1024, 256, 8, 2, 5e-7),
    ),
    "slime": (
        "--rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 128 --lr 1e-6",
        (32, 8, 256, 128, 2, 1, 1e-6),
    ),
    "nemo_rl": (
        "grpo.num_prompts_per_step=32 grpo.num_generations_per_prompt=16 policy.train_global_batch_size=256 "
        "policy.optimizer.kwargs.lr=5e-6",
        (32, 16, 512, 256, 2, 1, 5e-6),
    ),
    "skyrl": (
        "trainer.train_batch_size=128 generator.n_samples_per_prompt=5 trainer.policy_mini_batch_size=64 "
        "trainer.update_epochs_per_batch=2 trainer.policy.optimizer_config.lr=1.0e-6",
        (128, 5, 640, 320, 4, 2, 1e-6),
    ),
    "areal": (
        "train_dataset.batch_size=64 gconfig.n_samples=8 actor.ppo_n_minibatches=4 actor.optimizer.lr=2e-6",
        (64, 8, 512, 128, 4, 1, 2e-6),
    ),
    "prime_rl": (
        "--orchestrator.batch-size 512 --orchestrator.group-size 16 --trainer.optim.lr 1e-6",
        (32, 16, 512, 512, 1, 1, 1e-6),
    ),
    "tinker": (
        "groups_per_batch=128 group_size=16 num_substeps=2 learning_rate=4e-5",
        (128, 16, 2048, 1024, 2, 1, 4e-5),
    ),
    "easyr1": (
        "data.rollout_batch_size=384 worker.rollout.n=8 worker.actor.global_batch_size=128 worker.actor.ppo_epochs=1 "
        "worker.actor.optim.lr=1e-6",
        (384, 8, 3072, 1024, 3, 1, 1e-6),
    ),
    "rlinf": (
        "data.rollout_batch_size=128 algorithm.group_size=8 algorithm.n_minibatches=4 actor.optim.lr=2e-6",
        (128, 8, 1024, 256, 4, 1, 2e-6),
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_recipe_is_read_from_the_command_line(tmp_path: Path, name: str) -> None:
    command, expected = COMMANDS[name]
    ds = only(read_logs(write(tmp_path, f"+ python3 train.py {command}\n" + FORMATS[name](range(1, 5), 1))))
    assert recipe(ds) == expected
    prompts, group, total, batch, updates, epochs, _ = expected
    said = arithmetic(ds, {})
    assert f"rollout_batch = P x G = {prompts} x {group} = {total} responses per rollout step" in said
    assert said[-1].endswith(f"= {total} x {epochs} / {updates} = {batch} responses per update (B)")
    # Every number of the arithmetic has a source.
    assert not warned(ds, "updates_per_rollout is not stated")
    assert not warned(ds, "epochs is not stated")


@pytest.mark.parametrize("name", COMMANDS)
def test_what_stands_behind_a_hash_or_is_still_a_variable_does_not_count(tmp_path: Path, name: str) -> None:
    command, _ = COMMANDS[name]
    open_values = " ".join(f"{part.split('=')[0]}=$N" if "=" in part else part for part in command.split())
    text = f"# python3 train.py {command}\n+ python3 train.py {open_values if '=' in command else ''}\n"
    ds = only(read_logs(write(tmp_path, text + FORMATS[name](range(1, 5), 1)), allow_unknown_batch=True))
    assert recipe(ds)[1] is None
    assert "open_batch" in ds.attrs or name == "slime"


BESIDE = {
    "nemo_rl": (
        "config.yaml",
        "grpo:\n  num_prompts_per_step: 32\n  num_generations_per_prompt: 16\n"
        "policy:\n  train_global_batch_size: 256\n",
    ),
    "skyrl": (
        "config.yaml",
        "trainer:\n  train_batch_size: 32\n  policy_mini_batch_size: 16\n"
        "  update_epochs_per_batch: 1\ngenerator:\n  n_samples_per_prompt: 16\n",
    ),
    "areal": (
        "config.yaml",
        "train_dataset:\n  batch_size: 32\ngconfig:\n  n_samples: 16\nactor:\n  ppo_n_minibatches: 2\n",
    ),
    "prime_rl": ("orch.toml", "batch_size = 512\ngroup_size = 16\n"),
    "tinker": (
        "config.json",
        json.dumps(
            {"model_name": "m", "num_substeps": 2, "dataset_builder": {"group_size": 16, "groups_per_batch": 32}}
        ),
    ),
    "easyr1": (
        "experiment_config.json",
        json.dumps(
            {
                "data": {"rollout_batch_size": 32},
                "worker": {"rollout": {"n": 16}, "actor": {"global_batch_size": 16, "ppo_epochs": 1}},
            }
        ),
    ),
    "rlinf": ("config.yaml", "data:\n  rollout_batch_size: 32\nalgorithm:\n  group_size: 16\n  n_minibatches: 2\n"),
}


@pytest.mark.parametrize("name", BESIDE)
def test_the_configuration_beside_the_log(tmp_path: Path, name: str) -> None:
    file, text = BESIDE[name]
    config = write(tmp_path, text, file)
    path = write(tmp_path, FORMATS[name](range(1, 5), 1))
    tree = read_logs(path)
    ds = only(tree)
    updates = 1 if name == "prime_rl" else 2
    assert recipe(ds)[:5] == (32, 16, 512, 512 // updates, updates)
    assert any(f"{config} was read as the configuration" in text for text in tree.attrs["warnings"])
    assert any(str(config) in line for line in arithmetic(ds, {}))
    # Named, it says the same; a log that contradicts it is refused.
    elsewhere = write(tmp_path / "other", path.read_text())
    assert recipe(only(read_logs(elsewhere, config=config))) == recipe(ds)
    command, _ = COMMANDS[name]
    key = command.split("--")[-2].split()[0] if name == "prime_rl" else command.split("=")[0]
    stated = f"--{key} 7" if name == "prime_rl" else f"{key}=7"
    with pytest.raises(InputError, match=rf"{key} is 7 in the log but .*in .*{file}"):
        read_logs(write(tmp_path / "third", f"{stated}\n{path.read_text()}"), config=config)


def test_a_recipe_that_changes_under_steps_that_stay_is_refused(tmp_path: Path) -> None:
    one, other = (f"--rollout-batch-size {n} --n-samples-per-prompt 8 --global-batch-size 64\n" for n in (16, 32))
    text = one + FORMATS["slime"](range(5), 1) + other + FORMATS["slime"](range(5, 9), 1)
    with pytest.raises(InputError, match="rollout-batch-size changes from 16 to 32, and the steps from 0 to 4"):
        read_logs(write(tmp_path, text))
    again = one + FORMATS["slime"](range(5), 1) + other + FORMATS["slime"](range(9), 1)
    tree = read_logs(write(tmp_path, again))
    assert [node.attrs["rollout_batch"] for node in tree.children.values()] == [128, 256]


# -- OpenRLHF -----------------------------------------------------------------------------------------


def openrlhf(step: int, **more: object) -> str:
    values = {"actor_grad_norm": 0.5, "reward": 0.3, "response_length": 800.0, "actor_lr": 5e-7}
    values |= {"timing/generation": 60.0, "timing/make_experience": 12.0, "timing/ppo_train": 55.0}
    values |= {"timing/broadcast": 3.0, "timing/step_total": 130.0}
    return f"INFO ✨ Global step {step}: {values | more}\n"


GIVEN: dict[str, Any] = {"prompts": 4, "group_size": 4, "updates_per_rollout": 1, "epochs": 1}


def test_openrlhf(tmp_path: Path) -> None:
    text = openrlhf(1, dynamic_filtering_pass_rate=62.5) + openrlhf(2, dynamic_filtering_pass_rate=100.0)
    text += "INFO ✨ Evaluation completed in 00:03:12, global_step 2, eval_metrics: {'eval_a_pass1': 0.4}\n"
    text += openrlhf(3, critic_grad_norm=2.0)
    ds = only(read_logs(write(tmp_path, text), **GIVEN))
    assert ds["step_seconds"].values.tolist() == [130, 130, 130]
    # A percentage of the groups.
    np.testing.assert_array_equal(ds["kept_share"], [0.625, 1, np.nan])
    assert ds["evaluation_responses"].values.tolist() == [32]
    assert ds["evaluation_seconds"].values.tolist() == [192]
    assert {p.phase: p.mean for p in phases(ds)} == {
        "generation": 60,
        "training": 55,
        "logprob": 12,
        "sync": 3,
        "other": 0,
        "step": 130,
    }
    assert ds.attrs["grad_norm_reduction"] == "last"
    assert "of mini-batches of 16 responses; last update of each row" in ds.attrs["provenance"]["grad_norm"]
    assert "verl" not in ds.attrs["provenance"]["critic_grad_norm"]


def test_openrlhf_evaluations_beside_the_training(tmp_path: Path) -> None:
    text = "INFO Eval at step 0: {'eval_a_pass1': 0.1, 'eval_num_samples': 30.0}\n"
    text += "".join(openrlhf(step).replace("✨ ", "") for step in (1, 2))
    text += "INFO Eval at step 2: {'eval_a_pass1': 0.2, 'eval_num_samples': 30.0}\n"
    ds = only(read_logs(write(tmp_path, text), **GIVEN))
    assert ds["evaluation_responses"].values.tolist() == [0, 32]
    assert ds.attrs["eval_samples"] == 30


def test_text_of_the_model_is_no_metric(tmp_path: Path) -> None:
    """A sample in the dictionary may hold anything, metrics too."""
    bait = ["a 'reward': 9.9, b", {"reward": 8.8}, ("'actor_grad_norm': 7.7}",), 'it\'s "odd"']
    ds = only(read_logs(write(tmp_path, openrlhf(1, samples=bait) + openrlhf(2, samples=bait)), **GIVEN))
    assert ds["train_reward"].values.tolist() == [0.3, 0.3]
    assert ds["grad_norm"].values.tolist() == [0.5, 0.5]


def test_numbers_of_numpy_strings_and_what_is_no_number(tmp_path: Path) -> None:
    text = openrlhf(1).replace("0.5,", "np.float64(0.5),").replace("0.3,", "'0.3',").replace("800.0,", "tensor(800.),")
    ds = only(read_logs(write(tmp_path, text + openrlhf(2).replace("0.5,", "nan,")), **GIVEN))
    np.testing.assert_array_equal(ds["grad_norm"], [0.5, np.nan])
    assert ds["train_reward"].values[0] == 0.3
    np.testing.assert_array_equal(ds["response_length"], [np.nan, 800])


# -- slime --------------------------------------------------------------------------------------------


def slime(rollout: int, updates: int = 2, norm: float = 0.4) -> str:
    lines = [f"perf {rollout}: {{'rollout/response_len/mean': 800.0, 'perf/rollout_time': 60.0}}"]
    for at in range(updates):
        values = {"train/grad_norm": norm + 0.2 * at, "train/global_batch_size": 128, "train/lr-pg_0": 1e-6}
        lines.append(f"step {rollout * updates + at}: {values}")
    times = {"perf/train_wait_time": 63.0, "perf/train_time": 70.0, "perf/actor_train_time": 55.0}
    lines.append(f"perf {rollout}: {times | {'perf/log_probs_time': 9.0, 'perf/step_time': 133.0}}")
    return "".join(f"[2026-08-01 10:01:41] train_metric_utils.py:401 - {line}\n" for line in lines)


def test_slime_has_two_axes(tmp_path: Path) -> None:
    ds = only(read_logs(write(tmp_path, "".join(map(slime, range(4))))))
    # The log alone: 2 updates of 128 responses per rollout.
    assert recipe(ds)[2:5] == (256, 128, 2)
    assert ds["rollout_step"].values.tolist() == [0, 1, 2, 3]
    assert ds["responses"].values.tolist() == [256, 512, 768, 1024]
    assert ds["updates"].values.tolist() == [2, 4, 6, 8]
    np.testing.assert_allclose(ds["grad_norm"], 0.5)
    assert "mean over the updates of the step" in ds.attrs["provenance"]["grad_norm"]
    assert ds["step_seconds"].values.tolist() == [133] * 4
    assert not warned(ds, "counts from 0")


def test_slime_updates_that_belong_to_no_rollout_are_not_used(tmp_path: Path) -> None:
    lines = "".join(map(slime, range(4))).splitlines(keepends=True)
    ds = only(read_logs(write(tmp_path, "".join(lines[:5] + lines[6:]))))
    # Rollout 1 lost its first update: the second is not its mean.
    np.testing.assert_array_equal(np.isfinite(ds["grad_norm"]), [True, False, True, True])
    assert warned(ds, "1 step lines belong to no rollout")


def test_slime_evaluates_before_the_training_and_after_rollouts(tmp_path: Path) -> None:
    evaluation = "[2026-08-01 10:00:00] rollout_metrics.py:1 - eval {0}: {{'eval/aime': {1}, 'eval/aime/x': 9.0}}\n"
    text = evaluation.format(0, 0.1) + slime(0) + evaluation.format(0, 0.2) + slime(1) + evaluation.format(1, 0.3)
    ds = only(read_logs(write(tmp_path, text)))
    assert ds["evaluation_responses"].values.tolist() == [0, 256, 512]
    assert ds["score"].values.tolist() == [[0.1, 0.2, 0.3]]
    assert lacks(ds)["evaluation_seconds"] == "wall-clock T is unknown: slime does not log it"


def test_slime_two_runs_in_one_file(tmp_path: Path) -> None:
    evaluation = "[2026-08-01 10:00:00] rollout_metrics.py:1 - eval 0: {'eval/aime': 0.1}\n"
    one = evaluation + "".join(map(slime, range(3)))
    tree = read_logs(write(tmp_path, one + one))
    assert len(tree.children) == 2
    for ds in (node.to_dataset() for node in tree.children.values()):
        assert ds["evaluation_responses"].values.tolist() == [0]
        assert ds["rollout_step"].values.tolist() == [0, 1, 2]


# -- NeMo-RL ------------------------------------------------------------------------------------------

DOCUMENTED = """\
📊 Training Results:
  • Loss: 0.0000
  • Generation KL Error: 0.0010
  • Avg Reward: 0.0000
  • Mean Generation Length: 201.2197

⏱️  Timing:
  • Total step time: 35.70s
  • policy_training: 10.97s (30.7%)
  • checkpointing: 6.49s (18.2%)
  • generation: 4.95s (13.9%)
  • policy_and_reference_logprobs: 3.14s (8.8%)
  • prepare_for_generation/total: 2.20s (6.2%)
  • logprob_inference_prep: 0.85s (2.4%)
  • training_prep: 0.75s (2.1%)
  • prepare_for_generation/transfer_and_update_weights: 0.60s (1.7%)
  • data_processing: 0.09s (0.2%)
  • reward_calculation: 0.01s (0.0%)

🔍 Performance Metrics:
  • Mean Total Tokens per Sample: 204.01
  • Throughputs (per GPU):
    - E2E (Samples/sec/gpu): 3.59
  • Throughputs (per Group):
    - E2E (Samples/sec): 28.68
"""
"""The block of 16 prompts x 64 responses that NeMo-RL's own documentation shows, with 8 GPUs."""


def test_nemo_rl_as_its_documentation_shows_it(tmp_path: Path) -> None:
    text = f"{'=' * 25} Step 1/100 {'=' * 25}\n\n{DOCUMENTED}"
    ds = only(read_logs(write(tmp_path, text), prompts=16, group_size=64, updates_per_rollout=1))
    # 28.68 samples/s x 35.70 s = 1023.9: the batch of 1024, as far as it is printed.
    assert ds.attrs["inferred_rollout_batch"] == 1024
    assert not warned(ds, "point to")
    assert ds["step_seconds"].values == pytest.approx([35.70 - 6.49])
    assert ds["checkpoint_seconds"].values == [6.49]
    found = {name: float(ds[f"{name}_seconds"].values[0]) for name in ("generation", "training", "logprob", "sync")}
    assert found == {"generation": 4.95, "training": 10.97, "logprob": 3.14, "sync": 2.20}
    assert lacks(ds)["grad_norm"].endswith("or their merged JSON (tests/json_dump_tb_logs.py)")


def test_nemo_rl_validation_has_its_own_number(tmp_path: Path) -> None:
    text = "▶ Starting validation at step 0...\n📊 Validation Results:\n    • Accuracy: 0.1000\n" + FORMATS["nemo_rl"](
        [1, 2], 1
    )
    ds = only(read_logs(write(tmp_path, text), **GIVEN))
    assert ds["evaluation_responses"].values.tolist() == [0, 16, 32]
    assert ds["score"].values.tolist() == [[0.1, 1.0105, 1.0205]]
    np.testing.assert_array_equal(ds["evaluation_seconds"], [np.nan, 0.5, 0.5])
    # Validation lies in the step's time.
    np.testing.assert_allclose(ds["step_seconds"], [101.1 - 0.5, 102.1 - 0.5])


def test_nemo_rl_a_share_that_contradicts_its_seconds_gives_the_block_away(tmp_path: Path) -> None:
    text = FORMATS["nemo_rl"](range(1, 5), 1)
    ds = only(read_logs(write(tmp_path, text.replace("policy_training: 12.10s", "policy_training: 13.10s")), **GIVEN))
    assert ds["rollout_step"].values.tolist() == [1, 3, 4]
    assert warned(ds, "1 blocks are incomplete")


def test_nemo_rl_merged_event_files(tmp_path: Path) -> None:
    ds = only(read_logs(write(tmp_path, merged(range(1, 5), 1), "metrics.json"), **GIVEN))
    assert ds.attrs["framework"] == "nemo_rl"
    assert ds["grad_norm"].values.tolist() == [1.0101, 1.0201, 1.0301, 1.0401]
    assert ds["evaluation_responses"].values.tolist() == [16, 32, 48, 64]
    damaged = write(tmp_path, merged(range(1, 5), 1)[:-20], "damaged.json")
    with pytest.raises(InputError, match=r"the JSON is damaged .*; merge the event files again"):
        read_logs(damaged, **GIVEN)
    other = write(tmp_path, json.dumps({"other/metric": {"1": 2.0}}), "other.json")
    with pytest.raises(InputError, match="none of NeMo-RL's metrics"):
        read_logs(other, **GIVEN)


# -- SkyRL, AReaL -------------------------------------------------------------------------------------


def test_skyrl_rounds_rates_and_saves_within_the_step(tmp_path: Path) -> None:
    def block(step: int, **more: float) -> str:
        values = {"generate/avg_num_tokens": 800.0, "policy/grad_norm": 0.5, "policy/policy_lr": 1e-6}
        values |= {"timing/generate": 60.0, "timing/step": 100.0, "timing/train_critic_and_policy": 30.0, **more}
        pairs = [f"'{name}': '{value:.4f}'" for name, value in sorted(values.items())]
        return f"(entry pid=7) INFO - Step {step}: \n(entry pid=7) {{" + ",\n(entry pid=7)  ".join(pairs) + "}\n"

    saving = block(3, **{"timing/save_checkpoints": 40.0, "timing/step": 140.0})
    ds = only(read_logs(write(tmp_path, block(1) + block(2) + saving + block(4)), **GIVEN))
    assert ds["step_seconds"].values.tolist() == [100] * 4
    assert ds["checkpoint_seconds"].values[2] == 40
    assert "learning_rate" not in ds
    assert warned(ds, "policy/policy_lr is printed as 0 in 4 steps")
    # Lines of another process between those of the dictionary are none of its.
    between = block(5).replace(
        "(entry pid=7)  'policy", "(other pid=8)  'policy/grad_norm': '9.9',\n(entry pid=7)  'policy", 1
    )
    ds = only(read_logs(write(tmp_path, block(4) + between + block(6)), **GIVEN))
    assert ds["grad_norm"].values.tolist() == [0.5] * 3


def table(step: int, *, part: tuple[int, int] = (1, 1), norm: float = 0.5, head: bool = True) -> str:
    cells = [
        ("ppo_actor/update/grad_norm", norm),
        ("ppo_actor/seq_len/avg", 900.0),
        ("ppo_actor/prompt_len/avg", 100.0),
    ]
    cells += [("timeperf/rollout", 60.0), ("timeperf/train_step", 50.0), ("timeperf/compute_advantage", 2.0)]
    cells += [("timeperf/save", 30.0), ("ppo_actor/n_seqs", 512.0)]
    width = max(len(name) for name, _ in cells)
    shown = [f" {name:<{width}} │ {value:.4e} " for name, value in cells]
    bar = f"{'═' * (width + 2)}┼{'═' * 12}"
    rows = "\n".join(f"│{shown[at]}│{shown[at + 1]}│" for at in range(0, len(cells), 2))
    top, end = (f"{a}{bar.replace('┼', b)}{b}{bar.replace('┼', b)}{c}" for a, b, c in ("╒╤╕", "╘╧╛"))
    first = f"StatsLogger INFO: Epoch 1/1 Step {step}/9 Train step {step}/9 done.\n" if head else ""
    return f"{first}StatsLogger INFO: Stats ({part[0]}/{part[1]}):\nStatsLogger INFO: \n{top}\n{rows}\n{end}\n"


def test_areal_adds_up_its_stages(tmp_path: Path) -> None:
    ds = only(read_logs(write(tmp_path, "".join(map(table, range(1, 4)))), **GIVEN | {"prompts": 128}))
    assert ds["step_seconds"].values.tolist() == [112] * 3
    assert ds["checkpoint_seconds"].values.tolist() == [30] * 3
    assert ds["response_length"].values.tolist() == [800] * 3
    assert ds.attrs["inferred_rollout_batch"] == 512
    assert ds.attrs["provenance"]["generation_seconds"] == "timeperf/rollout [s], that the trainer was blocked"


def test_areal_tables_of_one_step_are_averaged_and_must_all_be_there(tmp_path: Path) -> None:
    two = table(1, part=(1, 2), norm=0.4) + table(1, part=(2, 2), norm=0.6, head=False)
    half = table(2, part=(1, 2))
    ds = only(read_logs(write(tmp_path, two + half + table(3)), **GIVEN))
    assert ds["rollout_step"].values.tolist() == [1, 3]
    assert ds["grad_norm"].values.tolist() == [0.5, 0.5]
    assert warned(ds, "1 blocks are incomplete, or the log has a gap behind them, and were not used")


# -- ROLL, prime-rl -----------------------------------------------------------------------------------


def roll(step: int, total: float, file: str = "rlvr_pipeline.py", **more: Any) -> str:
    values = {"time/step_total": total, "time/step_generate": 60.0, "time/step_train": 50.0, "system/global_step": step}
    values |= {"system/batch_size": 64, "actor/backward_steps": 4, "token/total_response_length/clip": 16, **more}
    return f"[2026-08-01 10:01:41] [{file} (832)] [INFO] {json.dumps(values)}\n"


def test_roll_logs_the_time_of_the_step_before(tmp_path: Path) -> None:
    text = "".join(roll(step, total) for step, total in enumerate((0.0, 120.0, 121.0, 122.0)))
    ds = only(read_logs(write(tmp_path, text), prompts=8, group_size=8))
    np.testing.assert_array_equal(ds["step_seconds"], [120, 121, 122, np.nan])
    # Four updates in every row, and 64 responses.
    assert recipe(ds)[:5] == (8, 8, 64, 16, 4)
    assert ds["truncated_share"].values.tolist() == [0.25] * 4
    assert warned(ds, "is that of the step before and was moved there")
    # A process that resumes at step 2 has timed no step: step 1 keeps no time.
    resumed = roll(0, 0.0) + roll(1, 120.0) + roll(2, 0.0) + roll(3, 122.0)
    ds = only(read_logs(write(tmp_path, resumed), prompts=8, group_size=8))
    np.testing.assert_array_equal(ds["step_seconds"], [120, np.nan, 122, np.nan])


def test_roll_the_agentic_pipeline_logs_its_own(tmp_path: Path) -> None:
    text = "".join(roll(step, 120.0 + step, "agentic_pipeline.py") for step in range(3))
    ds = only(read_logs(write(tmp_path, text), prompts=8, group_size=8))
    assert ds["step_seconds"].values.tolist() == [120, 121, 122]


def test_roll_validates_before_it_trains_within_the_step(tmp_path: Path) -> None:
    scores: dict[str, Any] = {"val_correct/all/mean": 0.3, "time/val_step": 20.0}
    text = roll(0, 0.0, **scores) + roll(1, 140.0) + roll(2, 120.0, **scores) + roll(3, 140.0)
    ds = only(read_logs(write(tmp_path, text), prompts=8, group_size=8))
    assert ds["evaluation_responses"].values.tolist() == [0, 128]
    assert ds["evaluation_seconds"].values.tolist() == [20, 20]
    np.testing.assert_array_equal(ds["step_seconds"], [120, 120, 120, np.nan])


def test_roll_without_a_step_counts_samples(tmp_path: Path) -> None:
    lines = [json.dumps({"time/step_generate": 1.0, "system/batch_size": 64, "system/samples": 64 * n}) for n in (1, 2)]
    bare = json.dumps({"time/step_generate": 5.0})
    ds = only(read_logs(write(tmp_path, "\n".join([*lines, bare, ""])), **GIVEN | {"prompts": 16}))
    assert ds["rollout_step"].values.tolist() == [0, 1]
    assert ds["generation_seconds"].values.tolist() == [1, 1]


def test_prime_rl_joins_its_lines_and_adds_the_broadcast_where_it_is_outside(tmp_path: Path) -> None:
    def rows(step: int, whole: float) -> str:
        times = {"time/step": whole, "time/wait_for_batch": 12.0, "time/forward_backward": 47.0}
        lines = [{"optim/grad_norm": 0.1}, times | {"time/broadcast_weights": 3.0}, {"off_policy/max": 2.0}]
        return "".join(json.dumps({"step": step, "time": 1.0, **line}) + "\n" for line in lines)

    outside = "".join(rows(step, 59.5) for step in range(1, 4))
    ds = only(read_logs(write(tmp_path, outside), prompts=4, group_size=4))
    np.testing.assert_allclose(ds["step_seconds"], 62.5)
    assert warned(ds, "time/broadcast_weights was added")
    assert ds["staleness_max"].values.tolist() == [2, 2, 2]
    inside = "".join(rows(step, 62.5) for step in range(1, 4))
    ds = only(read_logs(write(tmp_path, inside), prompts=4, group_size=4))
    np.testing.assert_allclose(ds["step_seconds"], 62.5)
    assert recipe(ds)[2:6] == (16, 16, 1, 1)
    with pytest.raises(InputError, match=r"--updates-per-rollout 2 contradicts the log: prime-rl's rule 1"):
        read_logs(write(tmp_path, inside), prompts=4, group_size=4, updates_per_rollout=2)


def test_micro_batches_of_prime_rl_are_not_the_batch(tmp_path: Path) -> None:
    text = "10:00:00 INFO Starting forward and backward pass (batch_size=4)\n" + FORMATS["prime_rl_console"]([1, 2], 1)
    ds = only(read_logs(write(tmp_path, text), prompts=8, group_size=4))
    assert ds.attrs["rollout_batch"] == 32


def test_steps_of_prime_rl_count_from_0_or_from_1(tmp_path: Path) -> None:
    for first in (0, 1):
        path = write(tmp_path, FORMATS["prime_rl"](range(first, 4), 1))
        ds = only(read_logs(path, prompts=4, group_size=4))
        assert ds["responses"].values.tolist() == [16 * n for n in range(1, 5 - first)]
        assert warned(ds, "steps are taken to count from 0") == (first == 0)


def test_prime_rl_consoles(tmp_path: Path) -> None:
    new = (
        "10:01:41 SUCCESS Step 2 |  64.2s | Loss 0.0123 | Grad. Norm 0.1100 | LR 1.00e-06 | Throughput 15231 tokens/s\n"
    )
    orchestrator = "Step 2 | 15m 56s | Reward 0.6250 | Trainable 64/64 (100.0%) | Max Off-Policy 3 | Truncation 0.0%\n"
    ds = only(
        read_logs(write(tmp_path, FORMATS["prime_rl_console"]([1], 1) + new + orchestrator), prompts=4, group_size=4)
    )
    assert ds["step_seconds"].values.tolist() == [1.0100, 64.2]
    assert ds["grad_norm"].values.tolist() == [1.0103, 0.11]
    np.testing.assert_array_equal(ds["staleness_max"], [np.nan, 3])
    np.testing.assert_array_equal(ds["train_reward"], [np.nan, 0.625])


# -- Tinker, EasyR1, RLinf ----------------------------------------------------------------------------


def test_tinker_evaluates_before_it_trains_and_counts_its_responses(tmp_path: Path) -> None:
    def row(step: int, episodes: int, **more: float) -> str:
        values = {"progress/done_frac": 0.1, "env/all/total_episodes": episodes, "time/total": 100.0, **more}
        return json.dumps({"step": step, **values}) + "\n"

    scores = {"test/env/all/correct": 0.5, "time/run_evaluations_parallel": 20.0, "time/total": 120.0}
    text = row(0, 32, **scores) + row(1, 24, **{"sampling_client/step_min": 0.0}) + row(2, 32, **scores)
    ds = only(read_logs(write(tmp_path, text), prompts=8, group_size=4, updates_per_rollout=1))
    # Groups of equal rewards were removed in iteration 1.
    assert ds["responses"].values.tolist() == [32, 56, 88]
    assert ds["evaluation_responses"].values.tolist() == [0, 56]
    assert ds["step_seconds"].values.tolist() == [100, 100, 100]
    np.testing.assert_array_equal(ds["staleness_max"], [np.nan, 1, np.nan])
    assert "the cookbook logs no norm" in lacks(ds)["grad_norm"]


def test_easyr1_names_are_verls(tmp_path: Path) -> None:
    first = json.dumps({"step": 0, "val": {"reward_score": 0.1, "accuracy_reward": 0.2}}) + "\n"
    counted = {"perf": {"total_num_tokens": 9600}, "prompt_length": {"mean": 100}, "response_length": {"mean": 500}}
    rows = "".join(
        json.dumps({"step": s, "actor": {"grad_norm": 0.3}, "timing_s": {"step": 9.0}, **counted}) + "\n"
        for s in (1, 2, 3)
    )
    ds = only(read_logs(write(tmp_path, first + rows), **GIVEN))
    assert ds["evaluation_responses"].values.tolist() == [0]
    assert ds.attrs["inferred_rollout_batch"] == 16
    assert list(ds["metric"].values) == ["val/reward_score", "val/accuracy_reward"]


def test_rlinf_tables(tmp_path: Path) -> None:
    ds = only(read_logs(write(tmp_path, FORMATS["rlinf"](range(1, 4), 1)), **GIVEN))
    sources = {entry.quantity: entry.source for entry in held(ds)}
    assert sources["step_seconds"].startswith("Step Time or time/step [s]")
    cut = FORMATS["rlinf"]([1, 2], 1).splitlines(keepends=True)
    ds = only(read_logs(write(tmp_path, "".join(cut[:-3])), **GIVEN))
    assert ds["rollout_step"].values.tolist() == [1]
    assert warned(ds, "1 blocks are incomplete")


# -- trackers -----------------------------------------------------------------------------------------

TRACKED = {
    "openrlhf": {
        "train/actor_grad_norm": 0.5,
        "train/reward": 0.3,
        "timing/step_total": 100.0,
        "eval/eval_a_pass1": 0.2,
    },
    "nemo_rl": {
        "train/grad_norm": 0.5,
        "train/reward": 0.3,
        "timing/train/total_step_time": 100.0,
        "validation/accuracy": 0.2,
    },
    "slime": {
        "train/grad_norm": 0.5,
        "rollout/raw_reward": 0.3,
        "perf/step_time": 100.0,
        "eval/aime": 0.2,
        "perf/rollout_time": 9.0,
    },
    "skyrl": {
        "policy/grad_norm": 0.5,
        "reward/avg_raw_reward": 0.3,
        "timing/step": 100.0,
        "eval/all/avg_score": 0.2,
        "generate/avg_num_tokens": 9.0,
    },
    "prime_rl": {
        "optim/grad_norm": 0.5,
        "reward/all/mean": 0.3,
        "time/step": 100.0,
        "eval/a/avg@1": 0.2,
        "time/wait_for_batch": 9.0,
    },
}


AXES = {"openrlhf": "train/global_step", "slime": "rollout/step"}


@pytest.mark.parametrize("name", TRACKED)
def test_an_export_of_a_tracker_is_read_as_the_framework_it_comes_from(tmp_path: Path, name: str) -> None:
    names = list(TRACKED[name])
    axis = AXES.get(name, "trainer/global_step")
    lines = [",".join(["_step", "_runtime", axis, *names])]
    # Where the tracker counts calls, its own step is another.
    calls = 7 if name in AXES else 1
    lines += [",".join(map(str, [calls * n, 100 * n, n, *TRACKED[name].values()])) for n in (1, 2, 3)]
    given = {key: value for key, value in GIVEN.items() if name != "prime_rl" or key in ("prompts", "group_size")}
    ds = only(read_logs(write(tmp_path, "\n".join(lines) + "\n", "history.csv"), **given))
    assert (ds.attrs["framework"], ds.attrs["logged_by"]) == ("wandb", name)
    for column, value in (("grad_norm", 0.5), ("train_reward", 0.3), ("step_seconds", 100.0)):
        assert ds[column].values.tolist() == [value] * 3
    assert ds["score"].values.tolist() == [[0.2] * 3]
    assert ds["rollout_step"].values.tolist() == [1, 2, 3]
    if name in AXES:
        bare = write(tmp_path, "\n".join(lines).replace(axis, "other/axis") + "\n", "bare.csv")
        with pytest.raises(InputError, match=f"_step counts W&B's log calls, not .*'s steps, and {axis} is missing"):
            read_logs(bare, **given)


def test_updates_of_slime_in_a_tracker_have_no_rollout(tmp_path: Path) -> None:
    rows = [
        "_step,_runtime,rollout/step,perf/step_time,perf/rollout_time,train/grad_norm",
        "0,1,0,100,9,",
        "1,2,1,100,9,0.5",
    ]
    rows += ["2,3,2,,,0.5", "3,4,3,,,0.5"]
    ds = only(read_logs(write(tmp_path, "\n".join(rows) + "\n", "history.csv"), **GIVEN))
    assert ds["rollout_step"].values.tolist() == [0, 1]
    assert "grad_norm" not in ds
    assert warned(ds, "numbered by update and not by rollout")


def test_an_export_with_a_header_of_more_than_64_KiB(tmp_path: Path) -> None:
    names = [f"a/metric-of-no-interest-{n}" for n in range(5_000)]
    lines = [",".join(["_step", "_runtime", *names, "actor/grad_norm"])]
    lines += [",".join(map(str, [n, 100 * n, *[1] * len(names), 0.5])) for n in (1, 2, 3)]
    ds = only(read_logs(write(tmp_path, "\n".join(lines) + "\n", "history.csv"), **GIVEN))
    assert ds["grad_norm"].values.tolist() == [0.5] * 3
