"""Reading logs: exact facts of real files, quirks, tables, and properties of every reader."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from batchsim.errors import InputError
from batchsim.logs import read_logs
from batchsim.logs.timeline import elapsed_seconds, steady_steps, wall_seconds
from batchsim.variables import VARIABLES

VERL = """\
++ python3 -m verl.trainer.main_ppo data.train_batch_size=8 actor_rollout_ref.rollout.n=4 \
actor_rollout_ref.actor.ppo_mini_batch_size=4 actor_rollout_ref.actor.ppo_epochs=1 \
actor_rollout_ref.actor.optim.lr=2e-6 actor_rollout_ref.model.path=/models/Tiny-1B/ \
trainer.n_gpus_per_node=8 trainer.nnodes=2
step:0 - val-core/gsm8k/reward/mean@1:0.25
step:1 - actor/grad_norm:0.5 - actor/lr:2e-06 - timing_s/gen:6.0 - timing_s/update_actor:4.0\
 - timing_s/step:10.0
step:2 - actor/grad_norm:0.4 - actor/lr:2e-06 - timing_s/gen:6.0 - timing_s/update_actor:4.0\
 - timing_s/testing:3.0 - timing_s/save_checkpoint:7.0 - timing_s/step:20.0\
 - val-core/gsm8k/reward/mean@1:0.5 - val-aux/x/score/std@4:9.0
step:3 - actor/grad_norm:0.3 - actor/lr:2e-06 - timing_s/gen:7.0 - timing_s/update_actor:4.0\
 - timing_s/step:11.0
step:4 - actor/grad_norm:0.2 - actor/lr:2e-06 - timing_s/gen:6.0 - timing_s/update_actor:4.0\
 - timing_s/testing:3.0 - timing_s/step:13.0 - val-core/gsm8k/reward/mean@1:0.75
"""


def runs_of(tree: xr.DataTree) -> dict[str, xr.Dataset]:
    return {name: node.to_dataset() for name, node in tree.children.items()}


def only(tree: xr.DataTree) -> xr.Dataset:
    (ds,) = runs_of(tree).values()
    return ds


def write(folder: Path, text: str, name: str = "run.log") -> Path:
    path = folder / name
    path.write_text(text)
    return path


# -- MLPerf -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mlperf(shared: Path) -> dict[int, list[xr.Dataset]]:
    by_batch: dict[int, list[xr.Dataset]] = {}
    for ds in runs_of(read_logs(shared / "mlperf_grpo")).values():
        by_batch.setdefault(ds.attrs["train_batch"], []).append(ds)
    return by_batch


def test_mlperf_has_six_runs_of_three_batches(mlperf: dict[int, list[xr.Dataset]]) -> None:
    assert {batch: len(runs) for batch, runs in mlperf.items()} == {256: 6, 512: 6, 1024: 6}


@pytest.mark.parametrize(
    ("batch", "responses", "wall", "steady"),
    [(256, 4608, 8589, 425.9), (512, 5120, 7312, 618.8), (1024, 7168, 7852, 968.7)],
)
def test_mlperf_published_facts(
    mlperf: dict[int, list[xr.Dataset]], batch: int, responses: int, wall: float, steady: float
) -> None:
    runs = mlperf[batch]
    assert all(ds.evaluation_responses.values.tolist() == [responses] for ds in runs)
    assert np.mean([ds.evaluation_wall.item() for ds in runs]) == pytest.approx(wall, abs=0.5)
    seconds = np.concatenate([ds.step_seconds.values[ds.steady.values] for ds in runs])
    assert seconds.mean() == pytest.approx(steady, abs=0.05)
    share = np.concatenate([ds.kept_share.values for ds in runs])
    assert share.mean() == pytest.approx(0.980, abs=0.001)


def test_mlperf_attributes_and_counts(mlperf: dict[int, list[xr.Dataset]]) -> None:
    ds = mlperf[1024][0]
    expected: dict[str, object] = {
        "prompts": 64,
        "group_size": 16,
        "rollout_batch": 1024,
        "updates_per_rollout": 1,
        "epochs": 1,
    }
    expected |= {"learning_rate": 2e-6, "target": 0.69, "status": "success", "eval_samples": 256}
    expected |= {"model": "qwen35_397b_grpo", "optimizer": "adamw", "target_metric": "eval_accuracy"}
    assert ds.attrs.items() >= expected.items()
    assert ds.responses.values.tolist() == [1024, 2048, 3072, 4096, 5120, 6144]
    assert ds.steady.values.tolist() == [False, False, True, True, True, True]
    assert "exposed" in ds.attrs["provenance"]["generation_seconds"]
    assert (np.diff(ds.elapsed) > 0).all()
    assert ds.evaluation_elapsed.item() == ds.evaluation_wall.item() > ds.elapsed.values[-1]
    assert ds.attrs["warnings"] == []


def test_mlperf_evaluations_in_between_do_not_count_as_elapsed(tmp_path: Path) -> None:
    def event(seconds: int, key: str, value: object = None, **metadata: int) -> str:
        return ":::MLLOG " + json.dumps({"time_ms": seconds * 1000, "key": key, "value": value, "metadata": metadata})

    lines = [event(0, "global_batch_size", 8), event(0, "num_prompts_per_step", 4)]
    lines += [event(0, "num_generations_per_prompt", 2), event(10, "run_start")]
    lines += [event(20, "tracked_stats", {"grad_norm": 1.0}, step=1, samples_count=8)]
    lines += [event(20, "eval_start", samples_count=8), event(25, "eval_accuracy", 0.5, samples_count=8)]
    lines += [
        event(25, "eval_stop"),
        event(35, "tracked_stats", {"grad_norm": 0.9}, step=2, samples_count=16),
    ]
    lines += [event(35, "eval_start", samples_count=16), ":::MLLOG {torn"]
    ds = only(read_logs(write(tmp_path, "\n".join(lines) + "\n")))
    assert ds.elapsed.values.tolist() == [10, 20]
    assert ds.evaluation_elapsed.values.tolist() == [10]
    assert ds.evaluation_seconds.values.tolist() == [5]
    assert ds.attrs["status"] == "running"
    assert any("no score" in text for text in ds.attrs["warnings"])
    assert any("could not be read" in text for text in ds.attrs["warnings"])


def test_mlperf_several_runs_in_one_file(shared: Path, tmp_path: Path) -> None:
    folder = shared / "mlperf_grpo"
    both = (folder / "gbs256_seed1.out").read_text() + (folder / "gbs512_seed1.out").read_text()
    runs = runs_of(read_logs(write(tmp_path, both, "both.out")))
    assert [ds.attrs["train_batch"] for ds in runs.values()] == [256, 512]
    assert list(runs) == ["both", "both-2"]
    alone = only(read_logs(folder / "gbs512_seed1.out"))
    xr.testing.assert_equal(runs["both-2"], alone)


# -- verl ---------------------------------------------------------------------------------------------


def test_verl_plain_lines(tmp_path: Path) -> None:
    ds = only(read_logs(write(tmp_path, VERL)))
    expected: dict[str, object] = {
        "prompts": 8,
        "group_size": 4,
        "rollout_batch": 32,
        "train_batch": 16,
        "updates_per_rollout": 2,
    }
    expected |= {"epochs": 1, "learning_rate": 2e-6, "gpus": 16, "model": "Tiny-1B", "framework": "verl"}
    assert ds.attrs.items() >= expected.items()
    assert ds.rollout_step.values.tolist() == [1, 2, 3, 4]
    assert ds.responses.values.tolist() == [32, 64, 96, 128]
    # Step 2 includes testing and checkpoint, step 4 (10 < 6 + 4 + 3) does not include testing.
    assert ds.step_seconds.values.tolist() == [10, 10, 11, 10]
    assert ds.elapsed.values.tolist() == [10, 20, 31, 41]
    assert ds.metric.values.tolist() == ["val-core/gsm8k/reward/mean@1"]
    assert ds.score.values.tolist() == [[0.25, 0.5, 0.75]]
    assert ds.evaluation_responses.values.tolist() == [0, 64, 128]
    assert ds.evaluation_elapsed.values.tolist() == [0, 20, 41]
    assert ds.evaluation_wall.values.tolist() == [0, 20, 41 + 3 + 7]
    np.testing.assert_array_equal(ds.evaluation_seconds, [np.nan, 3, 3])


@pytest.mark.parametrize(("name", "rows", "last", "metrics"), [("fsdp", 34, 210, 2), ("megatron", 41, 105, 1)])
def test_verl_real_excerpts(shared: Path, name: str, rows: int, last: int, metrics: int) -> None:
    ds = only(read_logs(shared / "logs_real" / f"verl_2025-06_qwen2-7b_{name}_excerpt.log"))
    assert (ds.attrs["prompts"], ds.attrs["group_size"]) == (1024, 5)
    assert (ds.attrs["rollout_batch"], ds.attrs["train_batch"]) == (1024 * 5, 256 * 5)
    assert (ds.attrs["learning_rate"], ds.attrs["gpus"], ds.attrs["model"]) == (1e-6, 8, "Qwen2-7B-Instruct")
    assert (ds.sizes["rollout_step"], ds.rollout_step.values[-1], ds.sizes["metric"]) == (rows, last, metrics)
    assert ds.responses.values[-1] == last * 5120
    assert "learning_rate" not in ds
    assert any("rounded away" in text for text in ds.attrs["warnings"])
    # The middle of the log was cut out.
    assert any("elapsed time is unknown" in text for text in ds.attrs["warnings"])
    assert np.isnan(ds.elapsed.values[-1])


def test_verl_two_runs_of_one_model_on_two_machines(shared: Path) -> None:
    tree = read_logs(str(shared / "logs_real" / "verl_2025*"))
    assert len(tree.children) == 2


def test_verl_rollout_batch_from_tokens(shared: Path, tmp_path: Path) -> None:
    log = (shared / "logs_real" / "verl_2025-06_qwen2-7b_fsdp_excerpt.log").read_text().splitlines(keepends=True)
    path = write(tmp_path, "".join(line for line in log if "step:" in line))
    with pytest.raises(InputError, match=r"actor\.ppo_mini_batch_size is not stated; give --updates-per-rollout"):
        read_logs(path)
    ds = only(read_logs(path, updates_per_rollout=1))
    assert ds.attrs["rollout_batch"] == 5120
    assert any("inferred" in text for text in ds.attrs["warnings"])
    assert "epochs is not stated; 1 is assumed" in ds.attrs["warnings"]
    path = tmp_path / "run.log"
    ds = only(read_logs(path, group_size=5, updates_per_rollout=4, learning_rate=1e-6))
    assert (ds.attrs["prompts"], ds.attrs["train_batch"], ds.attrs["learning_rate"]) == (1024, 1280, 1e-6)


def test_verl_printed_configuration_alone(shared: Path, tmp_path: Path) -> None:
    log = (shared / "logs_real" / "verl_2025-06_qwen2-7b_megatron_excerpt.log").read_text().splitlines(keepends=True)
    ds = only(read_logs(write(tmp_path, "".join(line for line in log if "main_ppo" not in line))))
    assert (ds.attrs["prompts"], ds.attrs["group_size"], ds.attrs["train_batch"]) == (1024, 5, 1280)
    assert (ds.attrs["learning_rate"], ds.attrs["gpus"]) == (1e-6, 8)


def test_verl_quirks(shared: Path) -> None:
    path = shared / "logs_synthetic" / "verl_quirks.log"
    ds = only(read_logs(path, prompts=1024, group_size=5, updates_per_rollout=1))
    assert ds.rollout_step.values.tolist() == [1, 2, 3, 4, 5, 6]
    np.testing.assert_array_equal(ds.grad_norm, [0.322, 0.298, np.nan, 0.281, 0.279, 0.277])
    np.testing.assert_array_equal(ds.step_seconds, [252.485, 248, 248, 251, 250.1, np.nan])
    np.testing.assert_array_equal(ds.generation_seconds, [74.891, 71, np.nan, np.nan, 70.1, np.nan])
    np.testing.assert_array_equal(ds.learning_rate, [np.nan, 1e-6, np.nan, np.nan, np.nan, np.nan])
    assert ds.steady.values.tolist() == [False, False, True, True, True, False]
    assert ds.score.values.tolist() == [[0.221]]
    text = " ".join(ds.attrs["warnings"])
    for part in (
        "step 4 follows step 4, a restart",
        "evaluation at the dropped step 4",
        "missing or not finite in 1",
    ):
        assert part in text
    with pytest.raises(InputError, match="give --prompts and --group-size"):
        read_logs(path)


def test_verl_testing_outside_and_saving_inside_the_timer(tmp_path: Path) -> None:
    line = "step:1 - timing_s/gen:60.0 - timing_s/update_actor:40.0 - timing_s/testing:30.0"
    line += " - timing_s/save_checkpoint:20.0 - timing_s/step:{}\n"
    for logged in (150.0, 120.0, 100.0):
        ds = only(read_logs(write(tmp_path, line.format(logged)), prompts=2, group_size=2, updates_per_rollout=1))
        assert ds.step_seconds.item() == 100


def test_verl_zero_based_steps_and_scaled_names(tmp_path: Path) -> None:
    text = "step:0 - val/test_score/math:0.1\n"
    text += "".join(
        f"step:{k} - timing/gen:5.0 - timing/step:9.0 - actor/lr(1e-4):0.010 - critic/kl:-0.000\n" for k in range(3)
    )
    ds = only(read_logs(write(tmp_path, text), prompts=2, group_size=2, updates_per_rollout=1))
    assert ds.responses.values.tolist() == [4, 8, 12]
    assert ds.evaluation_responses.values.tolist() == [0]
    assert ds.generation_seconds.values.tolist() == [5, 5, 5]
    np.testing.assert_allclose(ds.learning_rate, 1e-6)


def test_verl_restart_drops_the_abandoned_branch(tmp_path: Path) -> None:
    steps = [1, 2, 3, 4, 5, 3]
    text = "".join(f"step:{k} - actor/grad_norm:{n}.0 - timing_s/step:10.0\n" for n, k in enumerate(steps))
    ds = only(read_logs(write(tmp_path, text), prompts=2, group_size=2, updates_per_rollout=1))
    assert ds.rollout_step.values.tolist() == [1, 2, 3]
    assert ds.grad_norm.values.tolist() == [0, 1, 5]
    assert any("3 earlier rows from step 3 on were dropped" in text for text in ds.attrs["warnings"])


def test_verl_second_run_in_one_file_has_its_own_configuration(tmp_path: Path) -> None:
    second = VERL.replace("data.train_batch_size=8", "data.train_batch_size=16")
    runs = runs_of(read_logs(write(tmp_path, VERL + second)))
    assert [ds.attrs["rollout_batch"] for ds in runs.values()] == [32, 64]
    assert [ds.sizes["evaluation"] for ds in runs.values()] == [3, 3]


def test_verl_side_scores_only_where_nothing_else(tmp_path: Path) -> None:
    text = VERL.replace("val-core/gsm8k/reward/mean@1", "val-aux/gsm8k/reward/mean@1")
    ds = only(read_logs(write(tmp_path, text)))
    assert "val-aux/gsm8k/reward/mean@1" in ds.metric.values
    assert any("val-aux" in text for text in ds.attrs["warnings"])


# -- TRL ----------------------------------------------------------------------------------------------


def test_trl_real_files_have_no_evaluation_and_no_time(shared: Path) -> None:
    runs = runs_of(read_logs(str(shared / "logs_real" / "trl_*trainer_state.json"), prompts=6, group_size=8))
    assert len(runs) == 5
    for ds in runs.values():
        assert ds.sizes["evaluation"] == ds.sizes["metric"] == 0
        assert not {"step_seconds", "elapsed"} & set(ds.variables)
        assert {"grad_norm", "learning_rate", "train_reward", "response_length"} <= set(ds.variables)
        assert ds.attrs["train_batch"] == 48
    ds = runs["trl_unsloth_gemma3_g4_trainer_state"]
    assert ds.rollout_step.values.tolist() == list(range(10, 251, 10))
    assert ds.responses.values[-1] == 250 * 48
    assert ds.train_reward.values[-1] == 1.5109375


def state(rows: list[dict[str, object]], **more: object) -> str:
    return json.dumps({"log_history": rows, "logging_steps": 10, "train_batch_size": 2} | more)


def test_trl_times_scores_and_strings(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"step": 10, "reward": "0.5", "grad_norm": "0.3", "step_time": "2.0", "learning_rate": "1e-05"},
        {"step": 20, "reward": 0.6, "grad_norm": float("nan"), "step_time": 3.0, "learning_rate": 5e-6},
        {"step": 20, "eval_reward": 0.7, "eval_runtime": 22.0, "eval_loss": 1.0, "eval_kl": 0.1},
        {"step": 20, "train_runtime": 6521, "train_loss": 0.02},
    ]
    ds = only(read_logs(write(tmp_path, state(rows), "trainer_state.json"), prompts=4, group_size=4))
    assert ds.elapsed.values.tolist() == [20, 50]
    assert ds.metric.values.tolist() == ["eval_reward"]
    assert ds.score.values.tolist() == [[0.7]]
    assert ds.evaluation_responses.values.tolist() == [320]
    assert ds.evaluation_elapsed.values.tolist() == ds.evaluation_wall.values.tolist() == [50]
    assert ds.evaluation_seconds.values.tolist() == [22]
    assert ds.attrs["learning_rate"] == 1e-5
    assert any("grad_norm is missing or not finite in 1" in text for text in ds.attrs["warnings"])


def test_trl_names_a_run_by_its_folder_and_counts_updates(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, state([{"step": 10, "grad_norm": 1.0}]), "trainer_state.json")
    tree = read_logs(str(tmp_path / "*" / "trainer_state.json"), prompts=4, group_size=4, updates_per_rollout=2)
    assert list(tree.children) == ["one", "two"]
    ds = runs_of(tree)["one"]
    assert (ds.attrs["train_batch"], ds.responses.item()) == (8, 80)


def test_trl_without_a_batch_says_which_options_settle_it(shared: Path) -> None:
    with pytest.raises(InputError, match=r"per device.*--prompts and --group-size"):
        read_logs(shared / "logs_real" / "trl_r1distill1.5b_a2_trainer_state.json")
    with pytest.raises(InputError, match="give --group-size"):
        read_logs(shared / "logs_real" / "trl_r1distill1.5b_a2_trainer_state.json", prompts=4)


# -- tables -------------------------------------------------------------------------------------------


def test_tiny_grpo(shared: Path) -> None:
    tree = read_logs(shared / "tiny_grpo")
    runs = runs_of(tree)
    assert len(runs) == 45
    assert sum(ds.sizes["rollout_step"] for ds in runs.values()) == 16475
    assert sum(ds.sizes["evaluation"] for ds in runs.values()) == 1909
    ds = runs["fixed_P16_s1"]
    expected: dict[str, object] = {
        "prompts": 16,
        "group_size": 8,
        "train_batch": 128,
        "learning_rate": 1e-4,
        "lr_rule": "fixed",
    }
    assert ds.attrs.items() >= (expected | {"seed": 1, "updates_per_rollout": 1}).items()
    assert "chunks" not in ds.attrs
    assert ds.responses.values[:2].tolist() == [128, 256]
    assert ds.responses_generated.values[:2].tolist() == [224, 448]
    assert ds.step_seconds.values[0] == pytest.approx(0.02266 + 0.02778)
    assert ds.sq_norm_chunk.values[0] == 18.345
    assert ds.score.values[0, :2].tolist() == [0.27785, 0.28089]
    assert ds.evaluation_responses.values[:2].tolist() == [0, 2048]
    assert ds.evaluation_elapsed.values[1] == pytest.approx(ds.elapsed.values[15])
    assert any("final_score" in text for text in tree.attrs["warnings"])


def test_tiny_ppo_given_as_files(shared: Path) -> None:
    files = sorted((shared / "tiny_ppo").glob("*.csv"))
    runs = runs_of(read_logs(files))
    assert len(runs) == 14
    ds = runs["ppo_B1024_s1"]
    assert (ds.attrs["train_batch"], ds.attrs["rollout_batch"]) == (1024, 1024)
    assert "prompts" not in ds.attrs
    assert {"grad_norm", "critic_grad_norm", "sq_norm_batch", "critic_sq_norm_chunk"} <= set(ds.variables)
    assert ds.attrs["warnings"] == []


TABLE = """\
run,rollout_step,responses,step_seconds,grad_norm,score,score/hard,evaluation_seconds,prompts,group_size,chunks
a,0,0,,,0.1,0.0,5,4,2,8
a,1,8,2.0,1.0,,,,4,2,8
a,2,16,2.0,0.9,0.2,,6,4,2,8
a,3,24,2.0,0.8,,,,4,2,8
b,1,16,3.0,0.5,,,,8,2,8
b,2,32,3.0,0.4,0.3,0.1,6,8,2,8
"""


def test_single_table_with_two_runs(tmp_path: Path) -> None:
    runs = runs_of(read_logs(write(tmp_path, TABLE, "sweep.csv")))
    assert list(runs) == ["a", "b"]
    a, b = runs["a"], runs["b"]
    assert (a.attrs["train_batch"], b.attrs["train_batch"], a.attrs["chunks"]) == (8, 16, 8)
    assert a.rollout_step.values.tolist() == [1, 2, 3]
    assert a.metric.values.tolist() == ["score", "score/hard"]
    assert a.evaluation_responses.values.tolist() == [0, 16]
    assert a.evaluation_wall.values.tolist() == [0, 4 + 5]
    np.testing.assert_array_equal(a.score, [[0.1, 0.2], [0.0, np.nan]])


def test_single_table_without_run_and_responses(tmp_path: Path) -> None:
    text = "step,step_time,acc,lr\n1,2.0,,1e-6\n2,2.0,0.5,2e-6\n"
    options: dict[str, Any] = {"prompts": 4, "group_size": 2}
    ds = only(read_logs(write(tmp_path, text, "mine.csv"), columns={"score": "acc"}, **options))
    assert ds.responses.values.tolist() == [8, 16]
    assert ds.evaluation_responses.values.tolist() == [16]
    assert ds.score.values.tolist() == [[0.5]]
    assert ds.learning_rate.values.tolist() == [1e-6, 2e-6]


def test_tables_join_a_single_run_without_a_run_column(tmp_path: Path) -> None:
    write(tmp_path, "rollout_step,responses,grad_norm\n1,8,1.0\n2,16,0.9\n", "steps.csv")
    write(tmp_path, "responses,score\n0,0.1\n16,0.4\n", "scores.csv")
    ds = only(read_logs(tmp_path))
    assert ds.score.values.tolist() == [[0.1, 0.4]]
    assert ds.attrs["train_batch"] == 8
    assert any("inferred" in text for text in ds.attrs["warnings"])


def test_table_derives_updates_per_rollout_from_its_rows(tmp_path: Path) -> None:
    text = "rollout_step,responses,grad_norm,train_batch\n1,32,1.0,8\n2,64,0.9,8\n"
    ds = only(read_logs(write(tmp_path, text, "t.csv")))
    assert (ds.attrs["updates_per_rollout"], ds.attrs["rollout_batch"]) == (4, 32)


def test_unknown_columns_are_named_with_their_neighbour(tmp_path: Path) -> None:
    tree = read_logs(write(tmp_path, TABLE.replace("chunks", "chunkz"), "t.csv"))
    assert any("chunkz (did you mean 'chunks'?)" in text for text in tree.attrs["warnings"])


# -- sources ------------------------------------------------------------------------------------------


def test_gzip_folder_glob_stdin_and_duplicates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = write(tmp_path, VERL)
    expected = only(read_logs(plain))
    packed = tmp_path / "packed.log.gz"
    packed.write_bytes(gzip.compress(VERL.encode()))
    xr.testing.assert_equal(only(read_logs(packed)), expected)
    write(tmp_path, "# notes\n", "notes.md")
    tree = read_logs(tmp_path)
    assert list(tree.children) == ["packed", "run"]
    assert any("notes.md" in text for text in tree.attrs["warnings"])
    tree = read_logs([plain, str(tmp_path / "r*.log")])
    assert len(tree.children) == 1
    assert any("twice" in text for text in tree.attrs["warnings"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(VERL.encode())))
    tree = read_logs("-")
    assert list(tree.children) == ["stdin"]
    xr.testing.assert_equal(only(tree), expected)


def test_same_file_name_in_two_folders_gives_two_nodes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, VERL)
    assert list(read_logs([tmp_path / "one", tmp_path / "two"]).children) == ["run", "run-2"]


def test_windows_line_ends_colours_and_byte_order_marks(tmp_path: Path) -> None:
    expected = only(read_logs(write(tmp_path, VERL)))
    coloured = VERL.replace("\nstep:", "\n\x1b[2m\x1b[36m(TaskRunner pid=7)\x1b[0m step:").replace("\n", "\r\n")
    for encoding in ("utf-8-sig", "utf-16"):
        (tmp_path / "other.log").write_bytes(coloured.encode(encoding))
        xr.testing.assert_equal(only(read_logs(tmp_path / "other.log")), expected)


# -- what no log states -------------------------------------------------------------------------------


def test_step_seconds_option_only_where_there_is_no_timing(tmp_path: Path) -> None:
    timed = only(read_logs(write(tmp_path, VERL), step_seconds=7.0))
    assert timed.step_seconds.values.tolist() == [10, 10, 11, 10]
    assert any("was not used" in text for text in timed.attrs["warnings"])
    text = "".join(line for line in VERL.splitlines(keepends=True))
    for phase in ("gen", "update_actor", "step", "testing", "save_checkpoint"):
        text = text.replace(f"timing_s/{phase}:", f"other/{phase}:")
    untimed = only(read_logs(write(tmp_path, text), step_seconds=7.0))
    assert untimed.elapsed.values.tolist() == [7, 14, 21, 28]
    assert untimed.attrs["provenance"]["step_seconds"].startswith("option")


def test_attributes_of_every_variable_come_from_the_vocabulary(shared: Path) -> None:
    trees = [read_logs(shared / "tiny_ppo"), read_logs(shared / "mlperf_grpo" / "gbs256_seed1.out")]
    for ds in (ds for tree in trees for ds in runs_of(tree).values()):
        for name, variable in ds.variables.items():
            known = VARIABLES[str(name)]
            assert variable.attrs == {
                "symbol": known.symbol,
                "units": known.unit,
                "long_name": known.long_name,
            }


def test_every_variable_says_where_it_comes_from(shared: Path) -> None:
    derived = {"rollout_step", "steady", "metric", "evaluation"}
    for path in ("tiny_grpo", "mlperf_grpo", "logs_real/verl_2025-06_qwen2-7b_fsdp_excerpt.log"):
        ds = next(iter(runs_of(read_logs(shared / path)).values()))
        held = {str(name) for name in set(ds.variables) - derived if np.isfinite(ds[name]).any()}
        assert held <= ds.attrs["provenance"].keys()


# -- the timeline -------------------------------------------------------------------------------------


def test_steady_steps() -> None:
    seconds = np.array([90.0, 10, 11, 9, np.nan, 10, 60, 10])
    assert steady_steps(seconds, 8).tolist() == [False, False, True, True, False, True, False, True]
    assert steady_steps(None, 4).tolist() == [False, False, True, True]
    assert steady_steps(np.zeros(0), 0).tolist() == []


def test_elapsed_bridges_short_gaps_only() -> None:
    step, seconds = np.array([1.0, 2, 4, 5, 40, 41]), np.array([10.0, 10, 10, np.nan, 10, 10])
    elapsed, notes = elapsed_seconds(step, seconds, base=0, stride=1)
    np.testing.assert_array_equal(elapsed, [10, 20, 40, 50, np.nan, np.nan])
    assert len(notes) == 3


def test_wall_is_unknown_behind_an_untimed_evaluation() -> None:
    elapsed, none = np.array([0.0, 10, 20]), np.zeros(3)
    initial = np.array([True, False, False])
    wall = wall_seconds(elapsed, np.array([np.nan, 5, 5]), none, initial=initial)
    assert wall.tolist() == [0, 10, 25]
    wall = wall_seconds(elapsed, np.array([np.nan, np.nan, 5]), none, initial=initial)
    np.testing.assert_array_equal(wall, [0, 10, np.nan])


def prefix_cases(shared: Path) -> dict[str, tuple[Path, dict[str, Any]]]:
    return {
        "mlperf": (shared / "mlperf_grpo" / "gbs256_seed2.out", {}),
        "verl": (
            shared / "logs_real" / "verl_logicrl_wandb_output_excerpt.log",
            {"prompts": 8, "group_size": 8, "updates_per_rollout": 1},
        ),
    }


@pytest.mark.parametrize("framework", ["mlperf", "verl", "tables"])
def test_a_prefix_of_a_log_gives_a_prefix_of_its_values(shared: Path, tmp_path: Path, framework: str) -> None:
    path, options = write(tmp_path, TABLE, "whole.csv"), dict[str, Any]()
    if framework != "tables":
        path, options = prefix_cases(shared)[framework]
    whole = runs_of(read_logs(path, **options))
    lines = path.read_text().splitlines(keepends=True)
    part = tmp_path / f"{path.stem}{path.suffix}"
    compared = 0
    for count in range(1, len(lines)):
        part.write_text("".join(lines[:count]))
        try:
            runs = runs_of(read_logs(part, **options))
        except InputError:
            continue
        for got, want in zip(runs.values(), whole.values(), strict=False):
            sizes = {"rollout_step": got.sizes["rollout_step"], "evaluation": got.sizes["evaluation"]}
            for name in set(map(str, got.data_vars)) - {"steady", "score"}:
                expected = want[name].isel({d: slice(n) for d, n in sizes.items() if d in want[name].dims})
                # A step's second line may still be missing from the prefix.
                known = np.isfinite(got[name].values)
                np.testing.assert_array_equal(got[name].values[known], expected.values[known])
                compared += 1
    assert compared > 20


# -- damage -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def damaged_samples(shared: Path) -> dict[str, bytes]:
    names = ["logs_synthetic/verl_quirks.log", "mlperf_grpo/gbs1024_seed1.out"]
    names += ["logs_real/trl_r1distill1.5b_a2_trainer_state.json", "tiny_grpo/evals.csv"]
    samples = {Path(name).name: (shared / name).read_bytes()[-20_000:] for name in names}
    return samples | {"run.log": VERL.encode(), "sweep.csv": TABLE.encode()}


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_damage_raises_anything_but_an_input_error(
    damaged_samples: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(damaged_samples)))
    raw = damaged_samples[name]
    start = data.draw(st.integers(0, len(raw)))
    stop = data.draw(st.integers(start, min(len(raw), start + 200)))
    junk = st.binary(max_size=20) | st.sampled_from(
        [
            b"1e999",
            b"-5",
            b"0",
            b"nan",
            b"9" * 400,
            b"step:1 - ",
            b"\n",
            b'"',
            b"{",
            b",",
            b"null",
            b"true",
            b"step:0 - a:1\n",
        ]
    )
    spliced = raw[:start] + data.draw(junk) + raw[stop:]
    if data.draw(st.booleans()):
        spliced = spliced[: data.draw(st.integers(0, len(spliced)))]
    folder = tmp_path_factory.mktemp("damage")
    (folder / name).write_bytes(spliced)
    options: dict[str, Any] = data.draw(st.sampled_from([{}, {"prompts": 4, "group_size": 2}]))
    try:
        tree = read_logs(folder / name, **options)
    except InputError:
        return
    finally:
        shutil.rmtree(folder)
    assert all(ds.attrs["train_batch"] >= 1 for ds in runs_of(tree).values())
