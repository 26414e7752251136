"""Weights & Biases exports, long tables, and which file is recognised as what."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from batchsim.errors import InputError
from batchsim.logs import read_logs
from batchsim.variables import VARIABLES

Rows = Sequence[Sequence[Any]]
GIVEN: dict[str, Any] = {"prompts": 4, "group_size": 2, "updates_per_rollout": 1}


def runs_of(tree: xr.DataTree) -> dict[str, xr.Dataset]:
    return {name: node.to_dataset() for name, node in tree.children.items()}


def only(tree: xr.DataTree) -> xr.Dataset:
    (ds,) = runs_of(tree).values()
    return ds


def write(folder: Path, rows: Rows, name: str = "export.csv") -> Path:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows(rows)
    path = folder / name
    path.write_text(text.getvalue())
    return path


def panel(
    metric: str, runs: Sequence[str], values: Mapping[int, Sequence[object]], *, axis: str = "Step"
) -> list[list[Any]]:
    bounds = ("", "__MIN", "__MAX")
    head: list[Any] = [axis, *(f"{run} - {metric}{bound}" for run in runs for bound in bounds)]
    return [head, *([step, *(v for value in row for v in (value, value, value))] for step, row in values.items())]


# -- the exports that ship ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("wandb_panel_export", ("panel export", "8 runs with train/loss", "gradient norm", "step time")),
        ("wandb_history_export", ("history export", "1 runs", "collection/ghas/reward", "validation scores")),
        ("wandb_runs_table_export", ("table of runs", "4 runs", "Loss/surrogate", "the batch")),
    ],
)
def test_exports_of_other_training_say_what_they_hold_and_lack(shared: Path, name: str, parts: tuple[str, ...]) -> None:
    path = shared / "logs_real" / f"{name}.csv"
    for options in ({}, GIVEN):
        with pytest.raises(InputError, match="can be read, but") as caught:
            read_logs(path, **options)
        for part in parts:
            assert part in str(caught.value)
        assert "--column" in caught.value.remedy


def test_a_folder_passes_over_exports_of_other_training(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "loss.csv").write_bytes((shared / "logs_real" / "wandb_panel_export.csv").read_bytes())
    write(tmp_path, panel("actor/grad_norm", ["a"], {1: [0.5], 2: [0.4]}))
    tree = read_logs(tmp_path, **GIVEN)
    assert list(tree.children) == ["a"]
    assert any("loss.csv" in text for text in tree.attrs["warnings"])


def test_columns_make_a_table_of_an_export(shared: Path) -> None:
    folder = shared / "logs_real"
    named = {"train_reward": "collection/reward/reward_mean", "grad_norm": "train/ghas/grad_norm_loss_objective"}
    ds = only(read_logs(folder / "wandb_history_export.csv", columns=named, **GIVEN))
    assert ds.attrs["framework"] == "tables"
    # The last line, step 39, has no end and its last number might be half of one.
    assert ds.rollout_step.values.tolist() == list(range(39))
    named = {"train_reward": "gpt2 - train/loss"}
    ds = only(read_logs(folder / "wandb_panel_export.csv", columns=named, **GIVEN))
    assert ds.sizes["rollout_step"] == 386
    assert ds.train_reward.values[0] == 10.95404052734375


# -- panels -------------------------------------------------------------------------------------------


def test_panels_of_the_same_runs_are_joined(tmp_path: Path) -> None:
    names = ["grpo - B 64", "grpo - B 128 [x.y]"]
    write(tmp_path, panel("actor/grad_norm", names, {1: [0.5, 0.4], 2: [0.3, ""], 3: [0.2, 0.1]}), "norm.csv")
    write(tmp_path, panel("timing_s/step", names, {1: [10, 20], 2: [11, 21], 3: [12, 22]}), "time.csv")
    scores = panel("val-core/openai/gsm8k/reward/mean@1", names, {0: [0.2, 0.2], 3: [0.5, 0.6]})
    write(tmp_path, scores, "score.csv")
    runs = runs_of(read_logs(tmp_path, **GIVEN))
    assert list(runs) == names
    ds = runs[names[0]]
    assert ds.attrs["framework"] == "wandb"
    assert ds.attrs["logged_by"] == "verl"
    assert ds.grad_norm.values.tolist() == [0.5, 0.3, 0.2]
    assert ds.elapsed.values.tolist() == [10, 21, 33]
    assert ds.metric.values.tolist() == ["val-core/openai/gsm8k/reward/mean@1"]
    assert ds.score.values.tolist() == [[0.2, 0.5]]
    assert ds.evaluation_responses.values.tolist() == [0, 24]
    np.testing.assert_array_equal(runs[names[1]].grad_norm, [0.4, np.nan, 0.1])


def test_a_runs_table_beside_a_panel_states_the_batch(tmp_path: Path) -> None:
    write(tmp_path, panel("actor/grad_norm", ["a", "b"], {1: [0.5, 0.4], 2: [0.3, 0.2]}), "norm.csv")
    head = ["Name", "State", "Runtime", "data.train_batch_size", "actor_rollout_ref.rollout.n"]
    head += ["actor_rollout_ref.actor.ppo_mini_batch_size", "actor_rollout_ref.actor.optim.lr"]
    table: list[list[Any]] = [head, ["a", "finished", 100, 8, 4, 8, 1e-6], ["b", "running", 90, 16, 4, 8, 2e-6]]
    write(tmp_path, [*table, ["c", "crashed", 9, 16, 4, 8, 2e-6]], "runs.csv")
    runs = runs_of(read_logs(tmp_path))
    assert [(ds.attrs["train_batch"], ds.attrs["learning_rate"]) for ds in runs.values()] == [(32, 1e-6), (32, 2e-6)]
    assert runs["b"].attrs["updates_per_rollout"] == 2
    with pytest.raises(InputError, match="does not hold verl's configuration; give --prompts"):
        read_logs(tmp_path / "norm.csv")


def test_a_runs_table_alone_gives_last_values(tmp_path: Path) -> None:
    head = ["Name", "State", "Runtime", "num_generations", "train/global_step", "train/reward", "eval/reward"]
    path = write(tmp_path, [head, ["a", "finished", 100, 8, 300, 0.5, 0.6], ["b", "failed", 1, 8, "", "", ""]])
    ds = only(read_logs(path, prompts=4))
    assert ds.rollout_step.values.tolist() == [300]
    assert ds.score.values.tolist() == [[0.6]]
    assert ds.attrs["train_batch"] == 32
    assert any("last values only" in text for text in ds.attrs["warnings"])


def test_sampled_panels_say_so_and_keep_their_time(tmp_path: Path) -> None:
    rows = panel("timing_s/step", ["a"], {n: [10.0] for n in (1, 8, 15, 23)})
    rows[2][3] = 11.0
    ds = only(read_logs(write(tmp_path, rows), **GIVEN))
    assert ds.elapsed.values.tolist() == [10, 80, 150, 230]
    assert any("steps are 7 to 8 apart" in text for text in ds.attrs["warnings"])
    assert any("1 points are means over several steps" in text for text in ds.attrs["warnings"])


def test_trl_panels_need_the_optimizer_step(tmp_path: Path) -> None:
    values = {10: [0.5], 20: [0.6]}
    with pytest.raises(InputError, match=r"log calls.*x axis to train/global_step"):
        read_logs(write(tmp_path, panel("train/reward", ["a"], values)), **GIVEN)
    ds = only(read_logs(write(tmp_path, panel("train/reward", ["a"], values, axis="train/global_step")), **GIVEN))
    assert ds.rollout_step.values.tolist() == [10, 20]
    assert ds.responses.values.tolist() == [80, 160]
    write(tmp_path, panel("eval/reward", ["a"], {1: [0.5]}), "eval.csv")
    with pytest.raises(InputError, match="with the same x axis"):
        read_logs(tmp_path, **GIVEN)


# -- histories ----------------------------------------------------------------------------------------


HISTORY: Rows = [
    ["eval/reward", "_timestamp", "train/global_step", "train/reward", "_runtime", "train/grad_norm", "_step"],
    ["", 1000, 10, 0.1, 300, 0.5, 0],
    ["", 1100, 20, 0.2, 400, "NaN", 1],
    [0.7, 1130, 20, "", 430, "", 2],
    ["", 1230, 30, 0.3, 530, 0.4, 3],
]


def test_history_of_trl_is_timed_by_the_process(tmp_path: Path) -> None:
    ds = only(read_logs(write(tmp_path, HISTORY, "run-7.csv"), **GIVEN))
    assert (ds.attrs["framework"], ds.attrs["logged_by"]) == ("wandb", "trl")
    assert ds.rollout_step.values.tolist() == [10, 20, 30]
    np.testing.assert_array_equal(ds.grad_norm, [0.5, np.nan, 0.4])
    # 300 s at step 10, 400 s at step 20, 530 s at step 30 with an evaluation of unknown length.
    assert ds.step_seconds.values[1:].tolist() == [10, 13]
    assert ds.step_seconds.values[0] == 11.5
    assert ds.score.values.tolist() == [[0.7]]
    assert ds.evaluation_responses.values.tolist() == [160]
    assert any("_runtime" in text for text in ds.attrs["warnings"])
    with pytest.raises(InputError, match="does not hold TRL's arguments"):
        read_logs(tmp_path / "run-7.csv")


def test_history_of_verl_in_any_order(tmp_path: Path) -> None:
    head = ["timing_s/step", "_step", "critic/score/mean", "_runtime", "actor/grad_norm", "timing_s/save_checkpoint"]
    rows: Rows = [head, [10, 1, 0.1, 50, 0.5, ""], [30, 2, 0.2, 90, 0.4, 20]]
    ds = only(read_logs(write(tmp_path, rows), **GIVEN))
    assert ds.step_seconds.values.tolist() == [10, 10]
    assert ds.checkpoint_seconds.values[1] == 20
    assert ds.train_reward.values.tolist() == [0.1, 0.2]
    for name, variable in ds.variables.items():
        known = VARIABLES[str(name)]
        assert variable.attrs == {"symbol": known.symbol, "units": known.unit, "long_name": known.long_name}


# -- long tables --------------------------------------------------------------------------------------


def long(rows: Rows, head: str = "run_name,metric,step,value") -> Rows:
    return [head.split(","), *rows]


def test_long_table_is_the_wide_one(tmp_path: Path) -> None:
    values: dict[str, list[float]] = {
        "grad_norm": [0.5, 0.4, 0.3],
        "step_seconds": [10, 11, 12],
        "reward": [0.1, 0.2, 0.3],
    }
    rows: list[list[Any]] = [
        ["a", name, n, value] for name, column in values.items() for n, value in enumerate(column, start=1)
    ]
    rows += [["a", "score", 0, 0.2], ["a", "score", 3, 0.6], ["a", "prompts", 1, 4], ["a", "group_size", 1, 2]]
    ds = only(read_logs(write(tmp_path, long([*rows, ["a", "grad_nrm", 1, 7]]))))
    assert ds.rollout_step.values.tolist() == [1, 2, 3]
    assert ds.grad_norm.values.tolist() == [0.5, 0.4, 0.3]
    assert ds.train_reward.values.tolist() == [0.1, 0.2, 0.3]
    assert ds.elapsed.values.tolist() == [10, 21, 33]
    assert ds.score.values.tolist() == [[0.2, 0.6]]
    assert ds.attrs["train_batch"] == 8
    assert ds.attrs["provenance"]["train_reward"] == "reward"


def test_several_rows_of_one_step_are_its_optimizer_steps(tmp_path: Path) -> None:
    rows: list[list[Any]] = [["a", "grad_norm", n, value] for n in (1, 2, 3) for value in (0.4, 0.6)]
    rows += [["a", "step_seconds", n, seconds] for n in (1, 2, 3) for seconds in (10, 12)]
    rows += [["a", "train_reward", n, 0.5] for n in (1, 2, 3)]
    tree = read_logs(write(tmp_path, long(rows)), prompts=4, group_size=2)
    ds = only(tree)
    assert ds.grad_norm.values.tolist() == [0.5] * 3
    assert ds.step_seconds.values.tolist() == [22] * 3
    assert (ds.attrs["updates_per_rollout"], ds.attrs["train_batch"]) == (2, 4)
    assert any("2 values of grad_norm at every step" in text for text in tree.attrs["warnings"])


def test_long_table_with_names_of_a_framework_or_of_its_own(tmp_path: Path) -> None:
    rows: list[list[Any]] = [["a", "actor/grad_norm", n, 0.5] for n in (1, 2)] + [
        ["a", "timing_s/step", n, 9] for n in (1, 2)
    ]
    ds = only(read_logs(write(tmp_path, long([*rows, ["a", "val-core/x/acc/mean@1", 2, 0.5]])), **GIVEN))
    assert (ds.attrs["framework"], ds.attrs["logged_by"]) == ("tables", "verl")
    assert ds.step_seconds.values.tolist() == [9, 9]
    own = [["a", "my_norm", n, 0.5] for n in (1, 2)]
    ds = only(read_logs(write(tmp_path, long(own)), columns={"grad_norm": "my_norm"}, **GIVEN))
    assert ds.grad_norm.values.tolist() == [0.5, 0.5]
    renamed = long(own, "experiment,name,iteration,number")
    columns = {"run": "experiment", "metric": "name", "rollout_step": "iteration", "value": "number"}
    ds = only(read_logs(write(tmp_path, renamed), columns=columns | {"grad_norm": "my_norm"}, **GIVEN))
    assert ds.grad_norm.values.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([["a", "grad_norm", 1, "x"]], "value is 'x', not a number"),
        ([["a", "grad_norm", 1.5, 1]], "rollout_step is 1.5"),
        ([["a", "grad_norm", "", 1]], "rollout_step is nan"),
        ([["a", "actor/grad_norm", "", 1]], "not a whole number"),
        ([["", "grad_norm", 1, 1]], "run is not named"),
        ([["a", "grad_norm", 1, 1], ["a", "actor_grad_norm", 1, 1]], "both mean grad_norm"),
    ],
)
def test_bad_long_tables(tmp_path: Path, rows: Rows, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_logs(write(tmp_path, long(rows)), **GIVEN)


# -- detection ----------------------------------------------------------------------------------------


READ = {
    "logs_real/trl_r1distill1.5b_a2_trainer_state.json": "trl",
    "logs_real/trl_r1distill1.5b_a3_console.log": "trl",
    "logs_real/trl_r1distill1.5b_a3_trainer_state.json": "trl",
    "logs_real/trl_r1distill1.5b_rs2_trainer_state.json": "trl",
    "logs_real/trl_unsloth_gemma3_g4_trainer_state.json": "trl",
    "logs_real/trl_unsloth_llama8b_g6_trainer_state.json": "trl",
    "logs_real/verl_2025-06_qwen2-7b_fsdp_excerpt.log": "verl",
    "logs_real/verl_2025-06_qwen2-7b_megatron_excerpt.log": "verl",
    "logs_real/verl_logicrl_wandb_output_excerpt.log": "verl",
    "logs_synthetic/trl_console_string_values.log": "trl",
    "logs_synthetic/verl_file_logger.jsonl": "verl",
    "logs_synthetic/verl_quirks.log": "verl",
}
OTHERS = {
    "areal.log": "areal",
    "easyr1_experiment_log.jsonl": "easyr1",
    "nemo_rl.log": "nemo_rl",
    "openrlhf.log": "openrlhf",
    "prime_rl_metrics.jsonl": "prime_rl",
    "roll.log": "roll",
    "slime.log": "slime",
    "tinker_metrics.jsonl": "tinker",
}


@pytest.mark.parametrize(("name", "framework"), READ.items())
def test_detected(shared: Path, name: str, framework: str) -> None:
    # The real states of TRL are of 6 completions per device.
    options = {} if "2025-06" in name else GIVEN | ({"prompts": 24} if framework == "trl" else {})
    tree = read_logs(shared / name, **options)
    assert tree.attrs["framework"] == framework


@pytest.mark.parametrize(("name", "framework"), OTHERS.items())
def test_the_other_frameworks_are_detected(shared: Path, name: str, framework: str) -> None:
    options = {} if framework == "slime" else GIVEN
    tree = read_logs(shared / "logs_synthetic" / name, **options)
    assert tree.attrs["framework"] == framework


def test_every_file_is_either_read_or_refused(shared: Path) -> None:
    exports = {f"logs_real/wandb_{shape}_export.csv" for shape in ("history", "panel", "runs_table")}
    held = {f"{f}/{p.name}" for f in ("logs_real", "logs_synthetic") for p in (shared / f).iterdir()}
    assert held == READ.keys() | {f"logs_synthetic/{name}" for name in OTHERS} | exports


# -- damage -------------------------------------------------------------------------------------------


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_damage_raises_only_input_errors(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("damage")
    made: dict[str, Rows] = {
        "history": HISTORY,
        "panel": panel("actor/grad_norm", ["a", "b - c"], {1: [0.5, 0.4], 2: [0.3, 0.2]}),
        "runs": [["Name", "State", "Runtime", "_step", "actor/grad_norm"], ["a", "finished", 9, 3, 0.5]],
        "long": long([["a", name, n, 0.5] for name in ("grad_norm", "score") for n in (1, 2)]),
    }
    raw = write(folder, made[data.draw(st.sampled_from(sorted(made)))]).read_bytes()
    stop = data.draw(st.integers(0, len(raw)))
    junk = data.draw(st.sampled_from([b"", b"\n", b'"', b",", b"1e999", b"-1", b"nan", b" - ", b"9" * 300]))
    (folder / "export.csv").write_bytes(
        raw[:stop] + junk + (raw[data.draw(st.integers(stop, len(raw))) :] if data.draw(st.booleans()) else b"")
    )
    try:
        runs = runs_of(read_logs(folder / "export.csv", **data.draw(st.sampled_from([{}, GIVEN]))))
    except InputError:
        return
    for ds in runs.values():
        assert (np.diff(ds.rollout_step) > 0).all()


def test_the_evaluation_before_training_has_only_wandbs_own_step(tmp_path: Path) -> None:
    names = ["_step", "_runtime", "training/global_step", "actor/grad_norm", "timing_s/step", "val-core/g/acc/mean@1"]
    rows: list[list[Any]] = [names, [0, 5, "", "", "", 0.2]]
    rows += [[n, 100 * n + 10, n, 0.3, 100, 0.2 + 0.1 * n] for n in (1, 2, 3)]
    ds = only(read_logs(write(tmp_path, rows), **GIVEN))
    assert ds.evaluation_responses.values.tolist() == [0, 8, 16, 24]
    assert ds.score.values[0, 0] == 0.2
    assert not any("have no training/global_step" in text for text in ds.attrs["warnings"])


def test_rows_of_trl_without_their_step_are_not_placed_by_calls(tmp_path: Path) -> None:
    rows: list[list[Any]] = [["_step", "_runtime", "train/global_step", "train/reward", "train/loss"]]
    rows += [[7, 5, "", 0.2, 0.1], [8, 9, 1, 0.3, 0.1]]
    ds = only(read_logs(write(tmp_path, rows), **GIVEN))
    assert ds.rollout_step.values.tolist() == [1]
    assert any("1 rows have no train/global_step" in text for text in ds.attrs["warnings"])


def test_the_count_of_tokens_is_kept_with_verls_metrics(tmp_path: Path) -> None:
    names = [
        "_step",
        "_runtime",
        "actor/grad_norm",
        "perf/total_num_tokens",
        "prompt_length/mean",
        "response_length/mean",
    ]
    rows: list[list[Any]] = [names, *([n, 10 * n, 0.3, 4800, 100, 500] for n in (1, 2, 3))]
    ds = only(read_logs(write(tmp_path, rows), **GIVEN))
    assert ds.attrs["inferred_rollout_batch"] == 8
    other = only(read_logs(write(tmp_path, rows), prompts=8, group_size=2, updates_per_rollout=1))
    assert any("point to 8 responses per rollout step, not to 16" in text for text in other.attrs["warnings"])
