"""Bad logs and bad options: what is refused, and that the message says value, place and remedy."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchsim.errors import InputError
from batchsim.logs import read_logs

LINE = "step:{0} - actor/grad_norm:0.3 - timing_s/step:10.0\n"
GIVEN: dict[str, Any] = {"prompts": 4, "group_size": 2, "updates_per_rollout": 1}


def write(folder: Path, text: str, name: str = "run.log") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def steps(*numbers: int) -> str:
    return "".join(LINE.format(n) for n in numbers)


def refused(*parts: str, paths: object, **options: object) -> None:
    with pytest.raises(InputError) as caught:
        read_logs(paths, **options)  # type: ignore[arg-type]
    for part in parts:
        assert part in str(caught.value)
    assert caught.value.remedy


def test_paths(tmp_path: Path) -> None:
    path = write(tmp_path, steps(1, 2))
    refused("no such file", "did you mean 'run.log'", paths=tmp_path / "run.lgo")
    refused("no file matches", paths=str(tmp_path / "*.out"))
    refused("no log was given", paths=[])
    (tmp_path / "empty").mkdir()
    refused("no files", paths=tmp_path / "empty")
    refused("does not exist either", paths=tmp_path / "nowhere" / "run.log")
    refused("no such file", paths="a\0b")
    path.chmod(0)
    try:
        path.read_bytes()
    except PermissionError:
        refused("cannot be read", paths=path)
    finally:
        path.chmod(0o600)


def test_contents(tmp_path: Path) -> None:
    refused("empty", "a.log", paths=write(tmp_path, "", "a.log"))
    refused("empty", paths=write(tmp_path, " \n\n", "a.log"))
    refused("not a log that batchsim knows", "hello", "trainer_state.json", paths=write(tmp_path, "hello\n"))
    binary = tmp_path / "weights.bin"
    binary.write_bytes(bytes(range(256)) * 40)
    refused("binary", paths=binary)
    broken = tmp_path / "broken.gz"
    broken.write_bytes(b"\x1f\x8b not gzip at all")
    refused("gzip", paths=broken)
    refused("JSON", "ends early", ":2", paths=write(tmp_path, '{"log_history": [\n{"step": 1', "s.json"))
    refused("log_history is not a list", paths=write(tmp_path, '{"log_history": 3}', "s.json"))


def test_a_folder_passes_over_what_is_no_log(tmp_path: Path) -> None:
    write(tmp_path, "", "empty.log")
    (tmp_path / "weights.bin").write_bytes(bytes(range(256)) * 40)
    refused("no log among the files", paths=tmp_path)
    write(tmp_path, steps(1, 2))
    tree = read_logs(tmp_path, **GIVEN)
    assert list(tree.children) == ["run"]
    assert len(tree.attrs["warnings"]) == 2


@pytest.mark.parametrize("export", ["wandb_history_export", "wandb_panel_export", "wandb_runs_table_export"])
def test_tables_of_another_shape_are_not_guessed_at(shared: Path, export: str) -> None:
    refused("not a log that batchsim knows", paths=shared / "logs_real" / f"{export}.csv", **GIVEN)


def test_the_unended_line_is_not_used(tmp_path: Path) -> None:
    ds = read_logs(write(tmp_path, steps(1, 2) + "step:3 - actor/grad_norm:0.2"), **GIVEN)["run"].to_dataset()
    assert ds["rollout_step"].to_numpy().tolist() == [1, 2]
    assert any("line 3 has no end" in text for text in ds.attrs["warnings"])


def test_a_cut_gzip_gives_what_it_held(tmp_path: Path) -> None:
    path = tmp_path / "run.log.gz"
    rng = np.random.default_rng(0)
    text = "".join(f"step:{n} - actor/grad_norm:{rng.random():.12f}\n" for n in range(1, 2000))
    path.write_bytes(gzip.compress(text.encode())[:-4000])
    ds = read_logs(path, **GIVEN)["run"].to_dataset()
    assert 500 < ds.sizes["rollout_step"] < 1999
    assert any("gzip" in text for text in ds.attrs["warnings"])


def test_frameworks_and_models_are_not_mixed(shared: Path, tmp_path: Path) -> None:
    verl = write(tmp_path, steps(1, 2))
    mlperf = shared / "mlperf_grpo" / "gbs256_seed1.out"
    refused("several frameworks", "verl", "mlperf", str(mlperf), paths=[verl, mlperf], **GIVEN)
    one = write(tmp_path, "actor_rollout_ref.model.path=/m/One-1B\n" + steps(1), "one.log")
    two = write(tmp_path, "actor_rollout_ref.model.path=/m/Two-1B\n" + steps(1), "two.log")
    refused("several models", "One-1B", "Two-1B", paths=[one, two], **GIVEN)


@pytest.mark.parametrize("name", ["prompts", "group_size", "updates_per_rollout", "epochs"])
@pytest.mark.parametrize("value", [0, -4, 2.5, float("nan")])
def test_option_counts(tmp_path: Path, name: str, value: float) -> None:
    flag = "--" + name.replace("_", "-")
    refused(flag, f"{value:g}", "whole number", paths=write(tmp_path, steps(1)), **(GIVEN | {name: value}))


@pytest.mark.parametrize("name", ["step_seconds", "learning_rate"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_option_numbers(tmp_path: Path, name: str, value: float) -> None:
    refused("must be positive", paths=write(tmp_path, steps(1)), **(GIVEN | {name: value}))


def test_a_contradiction_names_both_values(shared: Path) -> None:
    path = shared / "mlperf_grpo" / "gbs256_seed1.out"
    refused("--prompts 32", "num_prompts_per_step 16", str(path), paths=path, prompts=32)
    refused("--learning-rate 1e-05", "opt_base_learning_rate", paths=path, learning_rate=1e-5)
    refused("updates_per_rollout is 2", "256 x 1/256", paths=path, updates_per_rollout=2)
    assert len(read_logs(path, prompts=16, group_size=16).children) == 1


def test_batches_that_do_not_divide_show_their_arithmetic(tmp_path: Path) -> None:
    path = write(tmp_path, steps(1))
    refused("train_batch", "8 x 1/3 = 2.66667", paths=path, **GIVEN | {"updates_per_rollout": 3})
    head = "data.train_batch_size={} actor_rollout_ref.actor.ppo_mini_batch_size={}"
    head += " actor_rollout_ref.rollout.n=4\n"
    refused("actor.ppo_mini_batch_size = 10 x 1/4 = 2.5", paths=write(tmp_path, head.format(10, 4) + steps(1)))
    refused("data.train_batch_size is 0", paths=write(tmp_path, head.format(0, 4) + steps(1)))
    text = "rollout_step,responses,grad_norm,rollout_batch,group_size\n1,20,0.1,20,8\n"
    refused("prompts = rollout_batch / group_size = 20/8", paths=write(tmp_path, text, "t.csv"))
    text = "rollout_step,grad_norm,prompts,group_size,rollout_batch\n1,0.1,4,4,20\n"
    refused("rollout_batch is 20", "4 x 4", paths=write(tmp_path, text, "t.csv"))


HEAD = "run,rollout_step,responses,grad_norm,prompts,group_size\n"


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        ("a,1,8,0.1,4,2\na,2,16,zero,4,2\n", (":3", "grad_norm is 'zero'")),
        ("a,1,8,0.1,4,2\na,2,16,0.1,4\n", (":3", "5 cells", "header 6")),
        ("a,1,8,0.1,4,2\na,2,16,0.1,8,2\n", (":2", "prompts is both 4.0 and 8.0")),
        ("a,1.5,8,0.1,4,2\n", (":2", "rollout_step is 1.5")),
        (",1,8,0.1,4,2\n", (":2", "not named")),
        ("a,1,8,0.1,4,2\na,2,7,0.1,4,2\n", ("responses fall from 8", "cumulative")),
        ("a,1,8,0.1,-4,2\n", ("prompts is -4",)),
    ],
)
def test_table_rows(tmp_path: Path, rows: str, parts: tuple[str, ...]) -> None:
    refused("t.csv", *parts, paths=write(tmp_path, HEAD + rows, "t.csv"))


def test_tables_that_cannot_be_joined(tmp_path: Path) -> None:
    configuration = write(tmp_path, "run,train_batch\na,8\n", "runs.csv")
    refused("no rollout steps", paths=configuration)
    write(tmp_path, "run,rollout_step,responses,grad_norm\na,1,8,0.1\nb,1,8,0.1\n", "steps.csv")
    write(tmp_path, "responses,score\n8,0.5\n", "evals.csv")
    refused("no run column", "evals.csv", paths=tmp_path)
    write(tmp_path, "run,rollout_step,responses,grad_norm\na,1,8,0.1\n", "evals.csv")
    refused("run a also stands in", paths=tmp_path)
    write(tmp_path, "run,responses,score\na,-1,0.5\n", "evals.csv")
    refused("responses is -1", ":2", paths=tmp_path)


def test_column_names(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + "a,1,8,0.1,4,2\n", "t.csv")
    refused("not a column", "did you mean 'grad_norm'", paths=path, columns={"grad_nrm": "x"})
    refused("no table has the column 'grdnorm'", paths=path, columns={"grad_norm": "grdnorm"})
    refused("not a table", paths=write(tmp_path, steps(1)), columns={"grad_norm": "g"}, **GIVEN)
    twice = write(tmp_path, "step,grad_norm,actor_grad_norm\n1,2,3\n", "t.csv")
    refused("two columns mean grad_norm", paths=twice)


def test_a_header_alone_is_no_run(tmp_path: Path) -> None:
    refused("no rollout steps", paths=write(tmp_path, HEAD, "t.csv"))


def test_norms_that_are_not_finite_are_kept_as_nan_and_counted(tmp_path: Path) -> None:
    text = steps(1, 2) + LINE.format(3).replace("0.3", "nan") + LINE.format(4).replace("0.3", "inf")
    ds = read_logs(write(tmp_path, text), **GIVEN)["run"].to_dataset()
    np.testing.assert_array_equal(ds["grad_norm"], [0.3, 0.3, np.nan, np.nan])
    assert any("grad_norm is missing or not finite in 2 of 4" in text for text in ds.attrs["warnings"])


def test_duplicated_steps_keep_the_last(tmp_path: Path) -> None:
    text = HEAD + "a,1,8,0.1,4,2\na,2,16,0.2,4,2\na,2,16,0.3,4,2\n"
    ds = read_logs(write(tmp_path, text, "t.csv"))["a"].to_dataset()
    assert ds["grad_norm"].to_numpy().tolist() == [0.1, 0.3]
    assert any("repeated" in text for text in ds.attrs["warnings"])
