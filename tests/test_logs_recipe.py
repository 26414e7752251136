"""What settles a batch, what it does to times, and what is said where nothing settles it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from batchsim.cli import main
from batchsim.errors import InputError
from batchsim.logs import read_logs
from batchsim.logs.clock import from_clock
from batchsim.logs.rows import Steps
from batchsim.logs.verl.settings import options

ACTOR = "actor_rollout_ref.actor."


def only(tree: xr.DataTree) -> xr.Dataset:
    (node,) = tree.children.values()
    return node.to_dataset()


def write(folder: Path, text: str, name: str = "run.log") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def said(ds: xr.Dataset) -> str:
    return "\n".join(ds.attrs["warnings"])


def head(prompts: int = 64, mini: int | None = 64, **more: Any) -> str:
    """verl's overrides on a command line."""
    stated: dict[str, object] = {"data.train_batch_size": prompts, "actor_rollout_ref.rollout.n": 8}
    stated |= {} if mini is None else {ACTOR + "ppo_mini_batch_size": mini}
    return " ".join(f"{key}={value}" for key, value in (stated | more).items()) + "\n"


def steps(*numbers: int, extra: str = "") -> str:
    return "".join(f"step:{n} - actor/grad_norm:0.{n} - timing_s/step:100.0{extra}\n" for n in numbers)


def state(folder: Path, seconds: list[float], *, stride: int = 1, per_device: int = 4, first: int = 1) -> Path:
    """TRL's trainer_state.json with a row every `stride` updates, each with the mean of its step times."""
    rows = [
        {"step": at, "reward": 0.1, "grad_norm": 0.3, "step_time": float(np.mean(seconds[at - stride : at]))}
        for at in range(max(stride, first), len(seconds) + 1, stride)
    ]
    text = {"global_step": len(seconds), "logging_steps": stride, "train_batch_size": per_device, "log_history": rows}
    return write(folder, json.dumps(text), "trainer_state.json")


# -- several updates per rollout ----------------------------------------------------------------------

SPIKY = [100.0, 10.0, 10.0, 10.0]
FOUR: dict[str, Any] = {"prompts": 4, "group_size": 4, "updates_per_rollout": 4}


@pytest.mark.parametrize("stride", [1, 2, 4, 8, 3, 5])
def test_times_are_averaged_over_whole_rollouts_also_where_options_tell_their_updates(
    tmp_path: Path, stride: int
) -> None:
    ds = only(read_logs(state(tmp_path, SPIKY * 30, stride=stride), **FOUR))
    known = np.isfinite(ds.step_seconds.values)
    np.testing.assert_allclose(ds.step_seconds.values[known], 130)
    assert known.sum() >= len(known) - 1
    assert ds.steady.values[2:][known[2:]].all()
    whole = np.flatnonzero((ds.rollout_step.values % 4 == 0) & known)
    np.testing.assert_allclose(ds.elapsed.values[whole], ds.rollout_step.values[whole] / 4 * 130)
    assert ds.responses.values[whole[-1]] == ds.rollout_step.values[whole[-1]] * 4
    if stride == 1:
        assert "averaged over the 4 updates of each rollout" in said(ds)


@given(seconds=st.lists(st.floats(1, 100), min_size=8, max_size=40), updates=st.integers(2, 5))
def test_rollouts_keep_their_sum(tmp_path_factory: pytest.TempPathFactory, seconds: list[float], updates: int) -> None:
    path = state(tmp_path_factory.mktemp("state"), seconds, per_device=1)
    ds = only(read_logs(path, prompts=updates, group_size=1, updates_per_rollout=updates))
    for rollout in range(len(seconds) // updates):
        rows = slice(rollout * updates, (rollout + 1) * updates)
        np.testing.assert_allclose(ds.step_seconds.values[rows], sum(seconds[rows]))
    assert np.isnan(ds.step_seconds.values[len(seconds) // updates * updates :]).all()


def test_a_rollout_with_a_gap_or_a_missing_start_has_no_time(tmp_path: Path) -> None:
    path = state(tmp_path, SPIKY * 5)
    saved = json.loads(path.read_text())
    saved["log_history"] = [row for row in saved["log_history"] if row["step"] not in (5, 1)]
    path.write_text(json.dumps(saved))
    ds = only(read_logs(path, **FOUR))
    assert np.isnan(ds.step_seconds.values[:6]).all()
    assert ds.step_seconds.values[6:].tolist() == [130] * 12


def test_a_log_that_ends_no_rollout_says_so(tmp_path: Path) -> None:
    ds = only(read_logs(state(tmp_path, SPIKY[:3]), **FOUR))
    assert "no row ends a rollout of 4 updates" in said(ds)


def test_a_clock_takes_no_generation_for_a_checkpoint(tmp_path: Path) -> None:
    clock = np.concatenate([[0], np.cumsum(SPIKY * 4)])
    seen = list(enumerate(clock.tolist()))
    rows = np.arange(1.0, 17)
    whole = from_clock(rows, seen, paused={}, source="the bar", updates=4)
    assert whole.step_seconds.tolist() == [32.5] * 16
    assert np.isnan(whole.checkpoint_seconds).all()
    bar = "".join(
        f"\r {n}%|# | {n}/16 [{int(s) // 60:02}:{int(s) % 60:02}<1:00:00, 10.00s/it]"
        + ("" if not n else f"\r{{'reward': 0.1, 'completions/mean_length': 9.0, 'epoch': {n / 16}}}\n")
        for n, s in seen
    )
    ds = only(read_logs(write(tmp_path, bar), **FOUR))
    assert ds.step_seconds.values.tolist() == [130] * 16
    assert ds.elapsed.values[-1] == clock[-1]


def test_the_option_step_seconds_is_the_time_of_a_rollout_step(tmp_path: Path) -> None:
    path = state(tmp_path, SPIKY * 4)
    saved = json.loads(path.read_text())
    for row in saved["log_history"]:
        del row["step_time"]
    path.write_text(json.dumps(saved))
    ds = only(read_logs(path, step_seconds=130.0, **FOUR))
    assert ds.step_seconds.values.tolist() == [130] * 16
    assert ds.elapsed.values[-1] == 4 * 130


# -- tables of updates --------------------------------------------------------------------------------


def table(axis: str, updates: int) -> str:
    rows = "".join(f"{n},10,0.3,{0.1 * n},64,8,{updates}\n" for n in range(1, 9))
    return f"{axis},step_seconds,grad_norm,score,prompts,group_size,updates_per_rollout\n" + rows


def test_the_column_update_counts_optimizer_updates(tmp_path: Path) -> None:
    ds = only(read_logs(write(tmp_path, table("update", 4), "t.csv")))
    assert ds.responses.values.tolist() == [128 * n for n in range(1, 9)]
    assert ds["updates"].values.tolist() == list(range(1, 9))
    assert ds.evaluation_responses.values.tolist() == ds.responses.values.tolist()
    assert ds.step_seconds.values.tolist() == [40] * 8
    assert ds.elapsed.values[-1] == 80
    rolled = only(read_logs(write(tmp_path, table("rollout_step", 4), "t.csv")))
    assert rolled.responses.values[-1] == 8 * 512
    assert rolled["updates"].values[-1] == 32


def test_with_one_update_per_rollout_both_columns_say_the_same(tmp_path: Path) -> None:
    update, step = (only(read_logs(write(tmp_path, table(axis, 1), "t.csv"))) for axis in ("update", "rollout_step"))
    xr.testing.assert_equal(update, step)
    assert {k: v for k, v in update.attrs.items() if k != "provenance"} == {
        k: v for k, v in step.attrs.items() if k != "provenance"
    }


def test_responses_of_update_rows_point_to_the_rollout_that_they_are_part_of(tmp_path: Path) -> None:
    text = "update,responses,grad_norm,prompts,group_size,updates_per_rollout\n"
    text += "".join(f"{n},{128 * n},0.3,64,8,4\n" for n in range(1, 9))
    ds = only(read_logs(write(tmp_path, text, "t.csv")))
    assert (ds.attrs["rollout_batch"], ds.attrs["train_batch"]) == (512, 128)
    assert "point to" not in said(ds)


def test_two_axes_cannot_be_compared(tmp_path: Path) -> None:
    write(tmp_path, "run,update,grad_norm\na,1,0.3\na,2,0.3\n", "steps.csv")
    write(tmp_path, "run,rollout_step,score\na,2,0.3\n", "evals.csv")
    write(tmp_path, "run,prompts,group_size\na,4,2\n", "runs.csv")
    with pytest.raises(InputError, match="placed by update in one table and by rollout_step in the other"):
        read_logs(tmp_path)


# -- verl's mini-batch --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["run.log", "run.jsonl"])
def test_verl_without_a_mini_batch_is_refused_with_what_settles_it(tmp_path: Path, name: str) -> None:
    text = head(mini=None) + steps(1, 2)
    given: dict[str, Any] = {}
    if name.endswith("jsonl"):
        text = "".join(json.dumps({"step": n, "data": {"actor/grad_norm": 0.3}}) + "\n" for n in (1, 2))
        given = {"prompts": 64, "group_size": 8}
    path = write(tmp_path, text, name)
    with pytest.raises(InputError) as caught:
        read_logs(path, **given)
    for part in (ACTOR + "ppo_mini_batch_size is not stated", "--updates-per-rollout"):
        assert part in str(caught.value)
    assert only(read_logs(path, updates_per_rollout=4, **given)).attrs["train_batch"] == 128


def test_the_mini_batch_settles_the_updates_of_prompts_and_epochs_from_options(tmp_path: Path) -> None:
    text = f"{ACTOR}ppo_mini_batch_size=16\n" + steps(1, 2)
    path = write(tmp_path, text)
    ds = only(read_logs(path, prompts=64, group_size=8, epochs=2))
    assert (ds.attrs["updates_per_rollout"], ds.attrs["train_batch"]) == (8, 128)
    with pytest.raises(InputError, match="updates_per_rollout is 4 but prompts x epochs"):
        read_logs(path, prompts=64, group_size=8, epochs=2, updates_per_rollout=4)
    with pytest.raises(InputError, match="--prompts and --group-size"):
        read_logs(path)


def test_other_formats_keep_their_default_and_say_so(tmp_path: Path) -> None:
    text = "rollout_step,grad_norm,prompts,group_size\n1,0.3,4,2\n"
    ds = only(read_logs(write(tmp_path, text, "t.csv")))
    assert ds.attrs["updates_per_rollout"] == 1
    assert "updates_per_rollout is not stated; 1 is assumed" in said(ds)
    assert "updates_per_rollout is not stated" in said(only(read_logs(state(tmp_path, SPIKY), prompts=4, group_size=4)))


# -- a restart with another recipe --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "old", "new"),
    [
        ("data.train_batch_size", "64", "128"),
        ("actor_rollout_ref.rollout.n", "8", "16"),
        (ACTOR + "ppo_mini_batch_size", "64", "32"),
        (ACTOR + "optim.lr", "1e-6", "2e-6"),
        (ACTOR + "ppo_epochs", "1", "2"),
    ],
)
def test_a_restart_with_another_recipe_is_refused(tmp_path: Path, key: str, old: str, new: str) -> None:
    recipe: dict[str, Any] = {ACTOR + "optim.lr": "1e-6", ACTOR + "ppo_epochs": 1}
    before = head(**recipe)
    after = before.replace(f"{key}={old}", f"{key}={new}")
    path = write(tmp_path, before + steps(1, 2, 3, 4, 5) + after + steps(4, 5, 6))
    with pytest.raises(InputError) as caught:
        read_logs(path)
    for part in (f"{key} changes from {old} to {new}", f"{path}:7", "steps from 1 to 5", "split the log"):
        assert part in str(caught.value)


def test_a_restart_with_the_same_recipe_or_from_the_start_is_none(tmp_path: Path) -> None:
    rate: dict[str, Any] = {ACTOR + "optim.lr": "1e-6"}
    same = head(**rate) + steps(1, 2, 3) + head(**rate).replace("1e-6", "0.000001") + steps(3, 4)
    assert only(read_logs(write(tmp_path, same))).sizes["rollout_step"] == 4
    again = head(**rate) + steps(1, 2, 3) + head(prompts=128, **rate) + steps(1, 2)
    first, second = read_logs(write(tmp_path, again)).children.values()
    assert (first.attrs["rollout_batch"], second.attrs["rollout_batch"]) == (512, 1024)
    # Nothing of the first configuration's survives.
    resumed = head(**rate) + steps(5, 6) + head(prompts=128, **rate) + steps(5, 6)
    assert only(read_logs(write(tmp_path, resumed))).attrs["rollout_batch"] == 1024


# -- explain without a batch --------------------------------------------------------------------------


def explained(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["explain", *map(str, arguments)])
    assert stop.value.code == 0
    return capsys.readouterr().out


def test_explain_answers_where_the_batch_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = steps(*range(1, 9), extra=" - timing_s/gen:60.0 - timing_s/update_actor:40.0 - val-core/x/acc/mean@1:0.5")
    path = write(tmp_path, text)
    with pytest.raises(InputError, match="the batch is unknown"):
        read_logs(path)
    (run,) = json.loads(explained(capsys, path, "--json"))["runs"]
    recipe = dict.fromkeys(("prompts", "group_size", "rollout_batch", "train_batch", "updates_per_rollout"))
    assert run["recipe"] == recipe | {"epochs": 1, "learning_rate": None}
    assert {phase["phase"]: phase["mean"] for phase in run["phases"]} == {
        "generation": 60,
        "training": 40,
        "other": 0,
        "step": 100,
    }
    assert run["arithmetic"][-1].startswith("open: the batch is unknown: train_batch = prompts x group_size")
    assert "give --prompts and --group-size" in run["arithmetic"][-1]
    assert {"prompts", "group_size"} <= {entry["quantity"] for entry in run["missing"]}
    assert "score" in {entry["quantity"] for entry in run["held"]}
    out = explained(capsys, path)
    assert "open: the batch is unknown" in out
    assert "generation    60.0 %" in out


def test_explain_shows_what_is_known_of_an_open_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, head(mini=None) + steps(1, 2, 3))
    (run,) = json.loads(explained(capsys, path, "--json"))["runs"]
    assert (run["recipe"]["rollout_batch"], run["recipe"]["train_batch"]) == (512, None)
    assert "rollout_batch = P x G = 64 x 8 = 512 responses per rollout step" in run["arithmetic"]
    assert "ppo_mini_batch_size is not stated; give --updates-per-rollout" in run["arithmetic"][-1]
    # A contradiction is no open question.
    with pytest.raises(SystemExit) as stop:
        main(["explain", str(path), "--prompts", "3"])
    assert stop.value.code == 2


def test_explain_of_trl_without_a_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = explained(capsys, state(tmp_path, SPIKY * 4))
    assert "open: the batch is unknown" in out
    assert "per device" in out


# -- every inference is said --------------------------------------------------------------------------


def test_epochs_and_zero_based_steps_are_said(tmp_path: Path) -> None:
    ds = only(read_logs(write(tmp_path, head() + steps(0, 1, 2))))
    assert "epochs is not stated; 1 is assumed" in said(ds)
    assert "steps are taken to count from 0" in said(ds)
    assert ds.responses.values.tolist() == [512, 1024, 1536]
    ds = only(read_logs(write(tmp_path, head(**{ACTOR + "ppo_epochs": 1}) + steps(1, 2))))
    assert ds.attrs["warnings"] == []
    text = "rollout_step,grad_norm,prompts,group_size,updates_per_rollout\n0,0.3,4,2,2\n1,0.3,4,2,2\n"
    ds = only(read_logs(write(tmp_path, text, "t.csv")))
    assert "epochs is not stated" in said(ds)
    assert "steps are taken to count from 0" in said(ds)


def test_the_critics_norm_is_of_its_own_batch(tmp_path: Path) -> None:
    rows = steps(1, 2, extra=" - critic/grad_norm:2.0")
    ds = only(read_logs(write(tmp_path, head(**{"critic.ppo_mini_batch_size": 16}) + rows)))
    assert "mini-batches of 512 responses" in ds.attrs["provenance"]["grad_norm"]
    assert "mini-batches of 128 responses (critic.ppo_mini_batch_size 16)" in ds.attrs["provenance"]["critic_grad_norm"]
    ds = only(read_logs(write(tmp_path, head() + rows)))
    assert "critic.ppo_mini_batch_size, which is not known" in ds.attrs["provenance"]["critic_grad_norm"]


def test_the_batch_per_device_divides_the_train_batch(tmp_path: Path) -> None:
    path = state(tmp_path, SPIKY * 3, per_device=6)
    with pytest.raises(InputError, match="train_batch 16 is no multiple of per_device_train_batch_size 6"):
        read_logs(path, prompts=4, group_size=4)
    assert only(read_logs(path, prompts=6, group_size=4)).attrs["train_batch"] == 24


# -- configuration that runs are compared by ----------------------------------------------------------


def test_facts_of_verl(tmp_path: Path) -> None:
    more: dict[str, Any] = {
        "data.max_response_length": 2048,
        "data.max_prompt_length": 512,
        "data.train_files": "\"['/a/x.parquet', '/a/y.parquet']\"",
        "data.val_files": "/a/z.parquet",
        "actor_rollout_ref.rollout.temperature": 0.7,
        "actor_rollout_ref.rollout.data_parallel_size": 2,
        "actor_rollout_ref.rollout.over_sample_rate": 0.1,
        ACTOR + "kl_loss_coef": 0.001,
        "algorithm.kl_ctrl.kl_coef": 0.002,
        ACTOR + "clip_ratio_low": 0.2,
        ACTOR + "clip_ratio_high": 0.28,
        "trainer.v1.trainer_mode": "sync",
    }
    ds = only(read_logs(write(tmp_path, head(**more) + steps(1))))
    expected: dict[str, object] = {"max_response_length": 2048, "max_prompt_length": 512, "temperature": 0.7}
    expected |= {"train_files": "/a/x.parquet, /a/y.parquet", "val_files": "/a/z.parquet", "kl_loss_coef": 0.001}
    expected |= {"kl_coef": 0.002, "clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "trainer_mode": "sync"}
    expected |= {"data_parallel": 2, "over_sample_rate": 0.1}
    assert ds.attrs.items() >= expected.items()
    assert ds.attrs["provenance"].keys() >= expected.keys()


def test_data_files_are_one_text_in_every_spelling(shared: Path, tmp_path: Path) -> None:
    ds = only(read_logs(shared / "logs_real" / "verl_2025-06_qwen2-7b_fsdp_excerpt.log"))
    assert ds.attrs["train_files"] == "/data/data/gsm8k/train.parquet, /data/data/math/train.parquet"
    printed = "{'actor_rollout_ref': {'actor': {'ppo_mini_batch_size': 4}, 'rollout': {'n': 2}},\n"
    printed += (
        " 'data': {'train_batch_size': 4,\n          'train_files': ['/a/x',\n                          '/a/y'],\n"
    )
    printed += "          'val_files': '/a/z'}}\n"
    ds = only(read_logs(write(tmp_path, printed + steps(1))))
    assert (ds.attrs["train_files"], ds.attrs["val_files"]) == ("/a/x, /a/y", "/a/z")
    config = write(tmp_path, json.dumps({"data": {"train_files": ["/a/x", "/a/y"]}}), "c.json")
    ds = only(read_logs(write(tmp_path, head() + steps(1)), config=config))
    assert ds.attrs["train_files"] == "/a/x, /a/y"


def test_facts_of_trl(tmp_path: Path) -> None:
    arguments = {
        "max_completion_length": 1024,
        "beta": 0.0,
        "temperature": 0.9,
        "epsilon": 0.2,
        "epsilon_high": 0.28,
        "max_grad_norm": 0.1,
        "vllm_max_model_length": 4096,
        "vllm_gpu_memory_utilization": 0.3,
        "vllm_tensor_parallel_size": 2,
        "num_generations": 4,
    }
    write(tmp_path, json.dumps(arguments), "training_args.json")
    ds = only(read_logs(state(tmp_path, SPIKY), prompts=4))
    expected = {"max_response_length": 1024, "kl_coef": 0, "temperature": 0.9, "clip_ratio": 0.2, "grad_clip": 0.1}
    expected |= {"clip_ratio_high": 0.28, "max_model_length": 4096, "memory_share": 0.3, "tensor_parallel": 2}
    assert ds.attrs.items() >= expected.items()
    assert ds.attrs["provenance"]["memory_share"] == "vllm_gpu_memory_utilization"


def test_facts_that_anyone_prints_are_not_trls(tmp_path: Path) -> None:
    row = "{'reward': 0.5, 'completions/mean_length': 9.0, 'epoch': 0.1}\n"
    given: dict[str, Any] = {"prompts": 4, "group_size": 4}
    assert "temperature" not in only(read_logs(write(tmp_path, '  "temperature": 0.6,\n' + row), **given)).attrs
    beside = "--temperature 0.6 --learning_rate 1e-6\n"
    assert only(read_logs(write(tmp_path, beside + row), **given)).attrs["temperature"] == 0.6


def test_facts_of_mlperf(shared: Path) -> None:
    ds = only(read_logs(shared / "mlperf_grpo" / "gbs256_seed1.out"))
    assert (ds.attrs["tensor_parallel"], ds.attrs["max_sequence_length"]) == (8, 65536)
    assert ds.attrs["grad_clip"] > 0
    assert ds.attrs["provenance"]["tensor_parallel"] == "generation_tensor_parallelism"


# -- what does not count ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "# data.train_batch_size=999",
        "    #data.train_batch_size=999 \\",
        "(TaskRunner pid=1) # data.train_batch_size=999",
        "    trainer.nnodes=1 # data.train_batch_size=999",
        "    trainer.nnodes=1 #data.train_batch_size=999",
    ],
)
def test_commented_options_do_not_count(tmp_path: Path, line: str) -> None:
    assert "data.train_batch_size" not in options(line)
    assert only(read_logs(write(tmp_path, head() + line + "\n" + steps(1)))).attrs["prompts"] == 64


def test_a_hash_in_a_name_is_no_comment() -> None:
    assert options("trainer.experiment_name='run #3' data.train_batch_size=9") == {"data.train_batch_size": "9"}


# -- quadratic parts ----------------------------------------------------------------------------------


def test_lines_written_twice_are_one_warning(tmp_path: Path) -> None:
    lines = steps(*range(1, 2001), extra=" - val-core/x/acc/mean@1:0.5").splitlines(keepends=True)
    text = head(**{ACTOR + "ppo_epochs": 1}) + "".join(line * 2 for line in lines)
    ds = only(read_logs(write(tmp_path, text)))
    assert ds.sizes["rollout_step"] == ds.sizes["evaluation"] == 2000
    assert ds.attrs["warnings"] == ["2000 lines repeat the line before them and were used once"]


def test_restarts_are_told_five_times_and_then_counted() -> None:
    rows = Steps()
    for step in range(1, 21):
        rows.add(step, {"a": 1.0}, where=f"line {step}")
        rows.add(step, {"a": 2.0}, where=f"line {step}")
    assert len(rows.warnings) == 6
    assert rows.warnings[-1] == "15 more restarts or duplicates of that kind"


def test_rows_and_restarts_take_linear_time() -> None:
    rows = Steps()
    start = time.perf_counter()
    for step in range(40_000):
        rows.add(step, {"a": 1.0}, where="")
        rows.add(step, {"a": 2.0}, where="")
    # It took 20 s when every restart went through all rows.
    assert time.perf_counter() - start < 2


@given(data=st.data())
def test_wall_time_holds_the_checkpoints_before(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    saving = data.draw(st.lists(st.integers(0, 50), min_size=3, max_size=12))
    text = "rollout_step,step_seconds,checkpoint_seconds,evaluation_seconds,score,prompts,group_size\n"
    text += "".join(f"{n},10,{saved or ''},2,0.5,4,2\n" for n, saved in enumerate(saving, start=1))
    ds = only(read_logs(write(tmp_path_factory.mktemp("wall"), text, "t.csv")))
    naive = [10 * (n + 1) + 2 * n + sum(saving[:n]) for n in range(len(saving))]
    assert ds.evaluation_wall.values.tolist() == naive
