"""`batchsim simulate quadratic`: its table, its keys, its refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from test_docs import keys

from batchsim.cli import main
from batchsim.learning.worlds import Optimizer, power_law, scaling_curve

SMALL = ("--dim", "10", "--batches", "1,16,256,4096,65536")


def run(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["simulate", "quadratic", *arguments])
    captured = capsys.readouterr()
    assert stopped.value.code == status, captured.err
    return captured.err if status else captured.out


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(capsys, *arguments, "--json"))
    return found


def test_it_is_the_curve_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *SMALL, "--spectrum", "0.5", "--noise", "3", "--target", "0.05", "--precondition", "0.5")
    world = power_law(10, exponent=0.5, noise=3)
    ds = scaling_curve(
        world, Optimizer(preconditioner=0.5), train_batch=[1, 16, 256, 4096, 65536], target=0.05 * world.start_loss
    )
    for name in ("learning_rate", "updates_to_target", "responses_to_target", "sample_cost_ratio", "loss_floor"):
        assert [row[name] for row in found["batches"]] == ds[name].values.tolist()
    assert found["critical_train_batch"] == ds.attrs["critical_train_batch"]
    assert found["noise_scale"] == pytest.approx(world.noise_scale())


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_a_table_with_its_regimes(capsys: pytest.CaptureFixture[str], optimizer: str) -> None:
    out = run(capsys, *SMALL, "--optimizer", optimizer)
    assert f"{optimizer} on 10 coordinates" in out
    assert "perfect scaling" in out
    assert "max data parallelism" in out
    assert "Critical training batch" in out


def test_every_key_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).resolve().parents[1] / "docs" / "answers.md").read_text(encoding="utf-8")
    section = text.split("## simulate quadratic")[1].split("\n## ")[0]
    assert sorted(set(keys(answer(capsys, *SMALL))) - set(re.findall(r"\w+", section))) == []


def test_what_is_not_reached_is_null_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    asked = (*SMALL, "--updates-max", "100")
    first = answer(capsys, *asked)["batches"][0]
    assert first["training_outcome"] == "too many updates"
    assert [first[n] for n in ("learning_rate", "updates_to_target", "sample_cost_ratio", "regime")] == [None] * 4
    out = run(capsys, *asked)
    assert "too many updates" in out
    assert "no rate reaches the target within 100 updates" in out


def test_adam_repeats_itself_and_listens_to_its_seed(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--dim", "10", "--batches", "64", "--optimizer", "adam")
    one, again, other = (run(capsys, *asked, "--seed", seed, "--json") for seed in ("0", "0", "1"))
    assert one == again != other


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_plot(capsys: pytest.CaptureFixture[str], tmp_path: Path, ending: str) -> None:
    run(capsys, *SMALL, "--plot", str(tmp_path / f"q.{ending}"))
    assert (tmp_path / f"q.{ending}").stat().st_size > 1000


def test_the_plot_of_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run(capsys, *SMALL, "--updates-max", "1", "--target", "1e-4", "--plot", str(tmp_path / "q.png"))
    assert (tmp_path / "q.png").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--dim", "0"), "dim is 0, outside 1 to 100,000"),
        (("--target", "2"), "--target 2 is outside (0, 1)"),
        (("--batches", "4,2"), "ascending order"),
        (("--batches", "0"), "train_batch is"),
        (("--batches", "many"), "--batches many is not a list of numbers"),
        (("--optimizer", "adan"), "did you mean 'adam'?"),
        (("--noise", "-1"), "--noise -1 is no variance"),
        (("--noise", "nan"), "--noise nan is no variance"),
        (("--spectrum", "9"), "condition number"),
        (("--precondition", "3"), "outside [0, 1]"),
        (("--average", "1"), "iterate_average is 1, outside [0, 1)"),
        (("--plot", "q.bmp"), "no plot format '.bmp'"),
    ],
)
def test_bad_input(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str) -> None:
    assert said in run(capsys, *arguments, status=2)
