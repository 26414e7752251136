"""TRL's console, its progress bar as a clock, and what its arguments say about the batch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from batchsim.errors import InputError
from batchsim.logs import read_logs
from batchsim.logs.clock import from_clock
from batchsim.logs.trl_arguments import Settled, arguments_in
from batchsim.variables import VARIABLES

GIVEN: dict[str, Any] = {"prompts": 8, "group_size": 6}
NEW = frozenset({"completions/mean_length"})


def only(tree: xr.DataTree) -> xr.Dataset:
    (node,) = tree.children.values()
    return node.to_dataset()


def write(folder: Path, text: str, name: str = "console.log") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def bar(step: int, seconds: int, total: int = 20) -> str:
    minutes, second = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    clock = f"{hours}:{minutes:02}:{second:02}" if hours else f"{minutes:02}:{second:02}"
    return f"\r {100 * step // total}%|##  | {step}/{total} [{clock}<1:00:00, 10.00s/it]"


def row(reward: float, **more: object) -> str:
    values = {"loss": 0.0, "reward": reward, "completions/mean_length": 100.0, **more, "epoch": 0.01}
    return f"\r      \r{values!r}\n"


# -- the console --------------------------------------------------------------------------------------


def test_real_console(shared: Path) -> None:
    ds = only(read_logs(shared / "logs_real" / "trl_r1distill1.5b_a3_console.log", **GIVEN))
    assert ds.attrs["framework"] == "trl"
    assert ds.rollout_step.values.tolist() == list(range(5, 51, 5))
    # The bar shows 23:33 at step 5 and 4:03:29 at step 50.
    assert ds.step_seconds.values[0] == (23 * 60 + 33) / 5
    assert ds.elapsed.values[-1] == pytest.approx(4 * 3600 + 3 * 60 + 29, abs=1e-6)
    assert ds.train_reward.values[[0, -1]].tolist() == [1.2562500208616256, 1.1833333551883698]
    assert ds.grad_norm.values[[0, -1]].tolist() == [0.003667790675535798, 0.005146803334355354]
    assert ds.responses.values[-1] == 50 * 48
    assert ds.attrs["learning_rate"] == 1e-6
    assert ds.attrs["unused"]["rewards/r1_correctness"] == 10


def test_console_and_trainer_state_of_one_run_agree(shared: Path) -> None:
    folder = shared / "logs_real"
    printed = only(read_logs(folder / "trl_r1distill1.5b_a3_console.log", **GIVEN))
    saved = only(read_logs(folder / "trl_r1distill1.5b_a3_trainer_state.json", **GIVEN))
    for name in set(saved.data_vars) & set(printed.data_vars):
        xr.testing.assert_equal(saved[name], printed[name])


def test_synthetic_console_with_string_values(shared: Path) -> None:
    ds = only(read_logs(shared / "logs_synthetic" / "trl_console_string_values.log", **GIVEN))
    assert ds.rollout_step.values.tolist() == [1, 2]
    assert ds.train_reward.values.tolist() == [0.125, -3.3125]
    np.testing.assert_array_equal(ds.grad_norm, [0.224, np.nan])
    np.testing.assert_array_equal(ds.response_length, [256, np.nan])
    assert ds.score.values.tolist() == [[0.31]]
    assert ds.metric.values.tolist() == ["eval_reward"]
    assert ds.evaluation_seconds.values.tolist() == [22.1]
    assert any("no progress bar" in text and "logging_steps" in text for text in ds.attrs["warnings"])


def test_logging_steps_places_rows_without_a_bar(tmp_path: Path) -> None:
    text = "--logging_steps 10 --learning_rate 2e-6\n" + row(0.1) + row(0.2)
    ds = only(read_logs(write(tmp_path, text), **GIVEN))
    assert ds.rollout_step.values.tolist() == [10, 20]
    assert ds.attrs["learning_rate"] == 2e-6


def test_evaluations_are_taken_out_of_the_bar_and_keep_their_step(tmp_path: Path) -> None:
    text = bar(0, 0) + "".join(bar(n, 10 * n) for n in (1, 2)) + row(0.1)
    text += "\r 50%|#  | 1/2 [00:01<00:01, 1.0it/s]\r{'eval_reward': 0.7, 'eval_runtime': 30.0, 'epoch': 0.01}\n"
    text += "".join(bar(n, 10 * n + 30) for n in (3, 4)) + row(0.2)
    ds = only(read_logs(write(tmp_path, text), **GIVEN))
    assert ds.rollout_step.values.tolist() == [2, 4]
    assert ds.step_seconds.values.tolist() == [10, 10]
    assert ds.elapsed.values.tolist() == [20, 40]
    assert ds.evaluation_responses.values.tolist() == [96]
    assert ds.evaluation_wall.values.tolist() == [20]
    assert "checkpoint_seconds" not in ds


def test_a_jump_of_the_bar_is_a_checkpoint_and_stays_in_wall_time(tmp_path: Path) -> None:
    clock = [0, 10, 20, 30, 130, 140, 150]
    text = "".join(bar(n, seconds) + (row(0.1) if n and n % 2 == 0 else "") for n, seconds in enumerate(clock))
    text += "{'eval_reward': 0.7, 'eval_runtime': 30.0, 'epoch': 0.01}\n"
    ds = only(read_logs(write(tmp_path, text), **GIVEN))
    assert ds.step_seconds.values.tolist() == [10, 10, 10]
    np.testing.assert_array_equal(ds.checkpoint_seconds, [np.nan, 90, np.nan])
    assert ds.elapsed.values[-1] == 60
    assert ds.evaluation_wall.values.tolist() == [150]
    assert any("90 s of excess" in text for text in ds.attrs["warnings"])


def test_a_resumed_bar_does_not_time_the_steps_it_skips(tmp_path: Path) -> None:
    text = bar(0, 0) + "".join(bar(n, 10 * (n - 9)) for n in range(10, 15)) + row(0.1)
    ds = only(read_logs(write(tmp_path, text), **GIVEN))
    assert ds.rollout_step.values.tolist() == [14]
    assert ds.step_seconds.values.tolist() == [10]


def test_step_time_counts_before_the_bar(tmp_path: Path) -> None:
    text = bar(0, 0) + bar(1, 100) + row(0.1, step_time=7.5)
    ds = only(read_logs(write(tmp_path, text), **GIVEN))
    assert ds.step_seconds.values.tolist() == [7.5]


def test_other_printed_dictionaries_are_not_rows(tmp_path: Path) -> None:
    config = "{'loss': 1.0, 'epoch': 3, 'reward': {'name': 'x'}}\n{'reward': 1.0}\n"
    ds = only(read_logs(write(tmp_path, config + row(0.25)), **GIVEN))
    assert ds.train_reward.values.tolist() == [0.25]
    sft = "{'loss': 1.0, 'grad_norm': 0.2, 'learning_rate': 1e-05, 'epoch': 0.1}\n"
    with pytest.raises(InputError, match="not a log that batchsim knows"):
        read_logs(write(tmp_path, sft), **GIVEN)


def test_long_columns(tmp_path: Path) -> None:
    more = {"completions/max_length": 400.0, "completions/clipped_ratio": 0.25, "clip_ratio/region_mean": 0.1}
    ds = only(read_logs(write(tmp_path, row(0.25, **more)), **GIVEN))
    assert ds.response_length_max.item() == 400
    assert ds.truncated_share.item() == 0.25
    for name, variable in ds.variables.items():
        known = VARIABLES[str(name)]
        assert variable.attrs == {"symbol": known.symbol, "units": known.unit, "long_name": known.long_name}
    derived = {"rollout_step", "steady", "metric", "evaluation"}
    held = {str(name) for name in set(ds.variables) - derived if ds[name].size and np.isfinite(ds[name]).any()}
    assert held <= ds.attrs["provenance"].keys()


def test_console_and_state_in_one_folder_are_one_run(shared: Path, tmp_path: Path) -> None:
    names = ("trl_r1distill1.5b_a3_console.log", "trl_r1distill1.5b_a3_trainer_state.json")
    for name in (*names, "trl_r1distill1.5b_a2_trainer_state.json"):
        (tmp_path / name).write_bytes((shared / "logs_real" / name).read_bytes())
    runs = read_logs(tmp_path, **GIVEN).children
    assert list(runs) == ["trl_r1distill1.5b_a2_trainer_state", "trl_r1distill1.5b_a3_trainer_state"]
    ds = runs["trl_r1distill1.5b_a3_trainer_state"].to_dataset()
    assert ds.elapsed.values[-1] == pytest.approx(4 * 3600 + 3 * 60 + 29, abs=1e-6)
    assert any("shows the same run" in text for text in ds.attrs["warnings"])


def test_a_named_configuration(tmp_path: Path) -> None:
    path = write(tmp_path, "--num_generations 16\n" + bar(1, 10) + row(0.5))
    config = write(tmp_path, json.dumps({"training": ARGUMENTS}), "mine.json")
    assert only(read_logs(path, config=config)).attrs["train_batch"] == 64
    write(tmp_path, json.dumps(ARGUMENTS | {"num_generations": 8}), "mine.json")
    with pytest.raises(InputError, match=r"num_generations is 16 in the log but 8 in .*mine\.json"):
        read_logs(path, config=config)


# -- arguments ----------------------------------------------------------------------------------------


ARGUMENTS = {
    "per_device_train_batch_size": "4",
    "gradient_accumulation_steps": "2",
    "num_processes": "8",
    "num_generations": "16",
}


@pytest.mark.parametrize(
    "line",
    [
        "accelerate launch --num_processes 8 grpo.py --per_device_train_batch_size 4 --num_generations=16",
        "per-device-train-batch-size: 4, num_processes: 8, num-generations: 16",
        '"per_device_train_batch_size": 4, "num_processes": 8, "num_generations": 16,',
        "GRPOConfig(num_generations=16, num_processes=8, per_device_train_batch_size=4)",
    ],
)
def test_argument_spellings(line: str) -> None:
    found = arguments_in(line)
    assert found == {"per_device_train_batch_size": "4", "num_processes": "8", "num_generations": "16"}


def test_announcements() -> None:
    lines = [
        "  Instantaneous batch size per device = 4",
        "  Total train batch size (w. parallel, distributed & accumulation) = 1,024",
        "  Gradient Accumulation steps = 2",
        "   \\\\   /|    Num examples = 7,473 | Num Epochs = 1 | Total steps = 250",
        r"O^O/ \_/ \    Batch size per device = 4 | Gradient accumulation steps = 2",
        "        /    Data Parallel GPUs = 1 | Total batch size (4 x 2 x 1) = 8",
        "trl==0.14.0",
    ]
    assert arguments_in(lines[1]) == {"total": "1024"}
    assert arguments_in(lines[0]) | arguments_in(lines[2]) == {
        "per_device_train_batch_size": "4",
        "gradient_accumulation_steps": "2",
    }
    assert arguments_in(lines[3]) == {}
    assert arguments_in(lines[4]) | arguments_in(lines[5]) == {
        "per_device_train_batch_size": "4",
        "gradient_accumulation_steps": "2",
        "devices": "1",
        "total": "8",
    }
    assert arguments_in(lines[6]) == {"trl_version": "0.14"}
    assert arguments_in("  gradient_accumulation_steps .. 8, steps_per_generation=None") == {}
    assert arguments_in("vLLM(model='x', seed=0, world_size=1)") == {}


def test_completions_per_device_become_a_recipe(tmp_path: Path) -> None:
    text = " ".join(f"--{name} {value}" for name, value in ARGUMENTS.items()) + "\n" + bar(1, 10) + row(0.5)
    ds = only(read_logs(write(tmp_path, text)))
    recipe = {name: ds.attrs[name] for name in ("prompts", "group_size", "train_batch", "rollout_batch")}
    assert recipe == {"prompts": 4, "group_size": 16, "train_batch": 64, "rollout_batch": 64}
    assert "4 x 8 x 2" in ds.attrs["provenance"]["train_batch"]


def test_several_updates_per_generation(tmp_path: Path) -> None:
    more = "--steps_per_generation 8 --num_iterations 2\n"
    text = " ".join(f"--{name} {value}" for name, value in ARGUMENTS.items()) + " " + more
    # 8 x 2 / 2 = 8 updates per rollout of 256 responses: one step generates, seven do not.
    text += "".join(bar(n, 10 * n) + row(0.5, step_time=80.0 if n % 8 == 1 else 10.0) for n in range(1, 21))
    ds = only(read_logs(write(tmp_path, text)))
    assert (ds.attrs["rollout_batch"], ds.attrs["train_batch"]) == (256, 64)
    assert (ds.attrs["updates_per_rollout"], ds.attrs["epochs"]) == (8, 2)
    assert ds.responses.values[[7, 15]].tolist() == [256, 512]
    # step_seconds is the time of a rollout step: 80 + 7 x 10 s.
    assert ds.step_seconds.values[:16].tolist() == [150] * 16
    assert np.isnan(ds.step_seconds.values[16:]).all()
    assert ds.elapsed.values[[7, 15]].tolist() == [150, 300]


def test_arguments_beside_the_log(tmp_path: Path) -> None:
    path = write(tmp_path, bar(1, 10) + row(0.5))
    write(tmp_path, "\n".join(f"{name}: {value}" for name, value in ARGUMENTS.items()), "grpo_config.yaml")
    ds = only(read_logs(path))
    assert ds.attrs["train_batch"] == 64
    assert any("grpo_config.yaml" in text for text in ds.attrs["warnings"])
    write(tmp_path, json.dumps(ARGUMENTS), "training_args.json")
    with pytest.raises(InputError, match="the batch is unknown"):
        read_logs(path)


@pytest.mark.parametrize(
    ("more", "metrics", "batch"),
    [
        ({}, NEW, 64),
        ({}, frozenset({"clip_ratio"}), 64),
        ({"trl_version": "0.15"}, frozenset(), 64),
        ({"trl_version": "0.14"}, NEW, 64 * 16),
        ({"num_generations": "5"}, frozenset(), 64 * 5),
        ({"steps_per_generation": "4"}, frozenset(), 64),
    ],
)
def test_prompts_or_completions_per_device(more: dict[str, str], metrics: frozenset[str], batch: int) -> None:
    settled = Settled(ARGUMENTS | more, metrics)
    assert settled.stated["train_batch"] == batch
    assert not settled.hint


def test_an_ambiguous_batch_is_an_error_that_says_what_settles_it(tmp_path: Path) -> None:
    old = "{'reward': 0.5, 'completion_length': 100.0, 'epoch': 0.1}\n"
    head = " ".join(f"--{name} {value}" for name, value in ARGUMENTS.items()) + "\n"
    with pytest.raises(InputError, match=r"prompts up to TRL 0\.14 and completions since 0\.15.*give --prompts"):
        read_logs(write(tmp_path, head + bar(1, 10) + old))
    ds = only(read_logs(write(tmp_path, head + bar(1, 10) + old), prompts=64))
    assert ds.attrs["train_batch"] == 64 * 16
    few = head.replace("--num_processes 8", "")
    with pytest.raises(InputError, match="but not the number of processes; give --prompts"):
        read_logs(write(tmp_path, few + bar(1, 10) + row(0.5)))
    with pytest.raises(InputError, match="no arguments of TRL; give --prompts and --group-size"):
        read_logs(write(tmp_path, bar(1, 10) + row(0.5)))


# -- the clock ----------------------------------------------------------------------------------------


def clocked(rows: list[int], seen: Iterable[tuple[int, float]], **paused: float) -> tuple[list[float], list[float]]:
    pauses = {int(name[1:]): seconds for name, seconds in paused.items()}
    result = from_clock(np.array(rows, dtype=float), seen, paused=pauses, source="the bar")
    return result.step_seconds.tolist(), np.nan_to_num(result.checkpoint_seconds).tolist()


def test_clock() -> None:
    assert clocked([2, 4], [(0, 0), (2, 20), (4, 42)]) == ([10, 11], [0, 0])
    assert clocked([1, 2], [(0, 0), (1, 10), (2, 50)], s1=30.0) == ([10, 10], [0, 0])
    # A restart: the clock falls, the bar jumps, and step 3 comes again.
    seen = [(0, 0), (1, 10), (2, 20), (3, 33), (0, 0), (3, 1), (4, 11), (5, 21)]
    assert clocked([1, 2, 3, 4, 5], seen)[0] == [10, 10, 13, 10, 10]
    assert np.isnan(clocked([1, 2], [])[0]).all()
    assert clocked([5, 10], [(5, 800.0), (10, 850.0)])[0] == [10, 10]


# -- damage -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def samples(shared: Path) -> list[bytes]:
    console = (shared / "logs_real" / "trl_r1distill1.5b_a3_console.log").read_bytes()
    strings = (shared / "logs_synthetic" / "trl_console_string_values.log").read_bytes()
    made = " ".join(f"--{name} {value}" for name, value in ARGUMENTS.items()) + "\n"
    made += "".join(bar(n, 10 * n) + row(0.5, step_time=10.0) for n in range(1, 6))
    return [console[-6_000:], strings, made.encode()]


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_damage_raises_only_input_errors(
    samples: list[bytes], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    raw = data.draw(st.sampled_from(samples))
    stop = data.draw(st.integers(0, len(raw)))
    junk = data.draw(st.sampled_from([b"", b"\n", b"9" * 400, b"-1", b"{", b"'", b"nan", b"\r", b"0"]))
    path = tmp_path_factory.mktemp("damage") / "console.log"
    path.write_bytes(raw[:stop] + junk + (raw[stop + 3 :] if data.draw(st.booleans()) else b""))
    try:
        ds = only(read_logs(path, **data.draw(st.sampled_from([{}, GIVEN]))))
    except InputError:
        return
    assert (np.diff(ds.rollout_step) > 0).all()
