"""`batchsim simulate grpo`, `ppo` and the runs of `quadratic`: tables, keys, files, refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from test_docs import keys

from batchsim.cli import main
from batchsim.cli.options import example_path
from batchsim.learning.worlds import (
    Optimizer,
    Trainer,
    mean_responses,
    power_law,
    scaling_curve,
    simulate_grpo,
    softmax_world,
    train,
    true_noise,
    true_value_noise,
)
from batchsim.logs import load_runs, read_logs, save_runs

SMALL = (
    "--dim", "16", "--train-prompts", "64", "--validation-prompts", "64", "--responses-max", "30000",
    "--target", "0.5", "--evaluate-every", "256", "--rate", "0.01", "--seeds", "2",
)  # fmt: skip
GRPO = ("grpo", "--prompts", "4,16", *SMALL)
PPO = ("ppo", "--prompts", "32,128", *SMALL)
BOWL = ("quadratic", "--dim", "10", "--batches", "4,64", "--target", "0.05", "--seeds", "3")
EACH = pytest.mark.parametrize("verb", [GRPO, PPO, BOWL], ids=["grpo", "ppo", "quadratic"])


def run(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0, verb: str = "simulate") -> str:
    with pytest.raises(SystemExit) as stopped:
        main([verb, *arguments])
    captured = capsys.readouterr()
    assert stopped.value.code == status, captured.err
    return captured.err if status else captured.out


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, verb: str = "simulate") -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    text = run(capsys, *arguments, "--json", verb=verb)
    found: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return found


def test_grpo_says_what_the_package_finds(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *GRPO)
    world = softmax_world(dim=16, prompts=64, validation=64)
    runs = train(
        world, Trainer(), prompts=[4, 16], learning_rate=[0.01, 0.02], group_size=8, responses_max=30_000, target=0.5,
        evaluate_every=256, seeds=2,
    )  # fmt: skip
    mean, error = mean_responses(runs, 0.5)
    rows = found["batches"]
    assert [row["responses_to_target"] for row in rows] == mean.tolist()
    assert [row["responses_to_target_se"] for row in rows] == pytest.approx(error.tolist())
    assert rows[1]["sample_cost_ratio"] == mean[1] / mean[0]
    assert [row["updates_to_target"] for row in rows] == pytest.approx((mean / [32, 128]).tolist())
    assert rows[0]["noise_scale"] == true_noise(world, [0.0] * 16, group_size=8).noise_scale
    assert [row["learning_rate"] for row in rows] == [0.01, 0.02]
    assert [row["outcomes"] for row in rows] == [[{"outcome": "reached", "runs": 2}]] * 2
    times = [row["time_to_target"] for row in rows]
    fastest = rows[times.index(min(times))]
    assert found["soonest"] == {name: fastest[name] for name in found["soonest"]}


def test_ppo_knows_its_own_noise(capsys: pytest.CaptureFixture[str]) -> None:
    world = softmax_world(dim=16, prompts=64, validation=64)
    actor, _ = true_value_noise(world, [0.0] * 16, world.value_start)
    assert answer(capsys, *PPO)["batches"][0]["noise_scale"] == pytest.approx(actor.noise_scale)
    several = answer(capsys, *PPO, "--group-size", "4")["batches"][0]
    assert several["noise_scale"] is None
    assert several["train_batch"] == 128


def test_the_quadratics_runs_stand_beside_its_curve(capsys: pytest.CaptureFixture[str]) -> None:
    world = power_law(10)
    ds = scaling_curve(world, Optimizer(), train_batch=[4, 64], target=0.05 * world.start_loss)
    found = answer(capsys, *BOWL)
    assert [row["learning_rate"] for row in found["batches"]] == ds["learning_rate"].values.tolist()
    rows = found["simulated"]["batches"]
    assert [row["learning_rate"] for row in rows] == ds["learning_rate"].values.tolist()
    assert rows[0]["noise_scale"] == pytest.approx(world.noise_scale())
    ratio = [row["updates_to_target"] for row in rows] / ds["updates_to_target"].values
    assert ((ratio > 0.5) & (ratio < 1.5)).all()
    without = answer(capsys, *BOWL[:-2])
    assert without == {name: value for name, value in found.items() if name != "simulated"}


@EACH
def test_a_table_and_a_closing_sentence(capsys: pytest.CaptureFixture[str], verb: tuple[str, ...]) -> None:
    out = run(capsys, *verb)
    for column in ("P", "G", "B", "rate", "updates", "N*", "r_N", "|g|", "noise scale", "from norms", "outcome"):
        assert re.search(rf"(^| ){re.escape(column)} ", out, re.M), column
    assert "reached" in out
    assert re.search(r"^Soonest at 0\.9?5: B = \d+, after ", out, re.M)


@EACH
@pytest.mark.parametrize("ending", [(), ("--responses-max", "2000")])
def test_no_number_is_cut_in_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    verb: tuple[str, ...],
    ending: tuple[str, ...],
) -> None:
    from rich.console import Console

    from batchsim.cli import table

    monkeypatch.setattr(table, "make_console", lambda: Console(width=80, height=table.HEIGHT))
    out = run(capsys, *verb, *ending)
    assert "from norms" in out
    assert "…" not in out


@EACH
def test_every_key_is_documented(capsys: pytest.CaptureFixture[str], verb: tuple[str, ...]) -> None:
    text = (Path(__file__).resolve().parents[1] / "docs" / "answers.md").read_text(encoding="utf-8")
    heading = "## simulate quadratic" if verb is BOWL else "## simulate grpo, simulate ppo"
    section = text.split(heading)[1].split("\n## ")[0]
    if verb is BOWL:
        section += text.split("## simulate grpo, simulate ppo")[1].split("\n## ")[0]
    known = set(re.findall(r"\w+", section))
    assert sorted(set(keys(answer(capsys, *verb))) - known) == []


@EACH
def test_runs_go_to_a_file_that_the_other_verbs_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, verb: tuple[str, ...]
) -> None:
    path = tmp_path / "runs.nc"
    said = run(capsys, *verb, "--out", str(path))
    assert f"Runs: {path}; next: batchsim measure {path}" in said
    assert [p.name for p in tmp_path.iterdir()] == ["runs.nc"]
    again = answer(capsys, *verb)
    rows = again["simulated"]["batches"] if verb is BOWL else again["batches"]
    measured = answer(capsys, str(path), verb="measure")
    assert measured["framework"] == "simulation"
    for row, arm in zip(rows, measured["batches"], strict=True):
        low, high = arm["responses_to_target"]
        assert 0.9 * low < row["responses_to_target"] < 1.1 * high
        assert arm["throughput"] == pytest.approx(row["throughput"], rel=0.02)
    forecast = answer(capsys, str(path), "--draws", "50", verb="predict")
    assert forecast["star"] is not None
    explained = run(capsys, str(path), verb="explain")
    assert "not stated" not in explained
    assert "simulated, 10 s + 0.05 s x generated responses" in explained


def test_saved_runs_are_those_of_the_package(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run(capsys, *GRPO, "--out", str(tmp_path / "a.nc"))
    world = softmax_world(dim=16, prompts=64, validation=64)
    tree = simulate_grpo(
        world, prompts=[4, 16], learning_rate=0.01, lr_rule="sqrt", responses_max=30_000, target=0.5,
        evaluate_every=256, seeds=2,
    )  # fmt: skip
    assert load_runs(tmp_path / "a.nc").identical(tree)


def test_several_files_are_read_together(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    one, two = str(tmp_path / "one.nc"), str(tmp_path / "two.nc")
    run(capsys, *GRPO, "--out", one, "--seeds", "1")
    run(capsys, *GRPO, "--out", two, "--seeds", "1", "--seed", "5")
    found = answer(capsys, one, two, verb="measure")
    assert len(found["runs"]) == 4
    assert not any("same numbers" in warning for warning in found["warnings"])
    assert len(answer(capsys, one, one, verb="measure")["runs"]) == 2


def test_saved_runs_take_nothing_that_a_log_may_lack(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, log = tmp_path / "runs.nc", tmp_path / "run.log"
    run(capsys, *GRPO, "--out", str(path))
    log.write_text("step:1\n")
    assert "--prompts supply what a log lacks" in run(capsys, str(path), "--prompts", "4", status=2, verb="measure")
    assert "read them apart" in run(capsys, str(path), str(log), status=2, verb="measure")
    example = tmp_path / "example.nc"
    save_runs(read_logs(example_path("verl-sweep")), example)
    assert len(answer(capsys, str(example), "--target", "0.55", verb="measure")["runs"]) > 1
    assert "runs of simulation" in run(capsys, str(path), str(example), status=2, verb="measure")
    save_runs(xr.DataTree(), tmp_path / "empty.nc")
    assert "the file holds no runs" in run(capsys, str(tmp_path / "empty.nc"), status=2, verb="explain")
    assert "no such file" in run(capsys, str(tmp_path / "none.nc"), status=2, verb="measure")
    path.write_bytes(path.read_bytes()[:2000])
    assert "not runs that save_runs wrote" in run(capsys, str(path), status=2, verb="measure")


def test_a_noisy_score_is_written_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "runs.nc"
    assert "--metric val/score" in run(capsys, *GRPO, "--mean-at", "32,4", "--seeds", "1", "--out", str(path))
    assert answer(capsys, str(path), "--metric", "val/mean@4", verb="measure")["metric"] == "val/mean@4"


def test_the_same_numbers_whatever_the_threads(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for threads in (1, 3):
        monkeypatch.setattr("batchsim.learning.worlds.policy_gradient._threads", lambda n=threads: n)
        found.append(run(capsys, *PPO, "--json"))
    assert found[0] == found[1] != run(capsys, *PPO, "--json", "--seed", "1")


@pytest.mark.parametrize(
    ("options", "outcome"),
    [
        (("--target", "0.99"), "too many responses"),
        (("--optimizer", "sgd", "--rate", "1e308", "--lr-rule", "fixed", "--target", "0.99"), "diverges"),
        (("--start-score", "0.9999999999", "--target", "0", "--group-size", "2"), "no signal"),
    ],
)
def test_how_runs_end_is_said(capsys: pytest.CaptureFixture[str], options: tuple[str, ...], outcome: str) -> None:
    found = answer(capsys, *GRPO, *options)
    row = found["batches"][0]
    assert row["outcomes"] == [{"outcome": outcome, "runs": 2}]
    assert [row[name] for name in ("responses_to_target", "sample_cost_ratio", "time_to_target")] == [None] * 3
    assert (row["responses_at_least"] or 0) >= (30_000 if outcome == "too many responses" else 0)
    assert found["soonest"] is None
    out = run(capsys, *GRPO, *options)
    assert outcome in out
    assert ("> 30," in out) == (outcome == "too many responses")
    assert ("No target, so no N*" in out) == (outcome == "no signal")
    assert ("No batch brings all its runs to 0.99" in out) == (outcome != "no signal")
    assert ("lower --rate" in out) == (outcome == "diverges")


def test_a_run_of_one_has_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    row = answer(capsys, *GRPO, "--seeds", "1")["batches"][1]
    assert row["responses_to_target"] > 0
    assert row["responses_to_target_se"] is None
    assert row["sample_cost_ratio_se"] is None


def test_arms_of_one_batch_are_told_apart_in_what_is_concluded(capsys: pytest.CaptureFixture[str]) -> None:
    same = ("--prompts", "16,4,64", "--group-size", "4,16,4", "--lr-rule", "fixed", "--response-seconds", "0")
    rows = answer(capsys, *GRPO, *same)["batches"]
    assert [row["train_batch"] for row in rows] == [64, 64, 256]
    slower = (*same[:3], "4,16,4", "--rate", "0.001,0.03,0.001", "--response-seconds", "0")
    out = run(capsys, *GRPO, *slower)
    found = answer(capsys, *GRPO, *slower)
    first, second = found["batches"][:2]
    assert found["soonest"]["time_to_target"] == second["time_to_target"]
    assert "Soonest at 0.5: B = 64 (4 x 16 at rate 0.03), after" in out
    assert first["responses_to_target"] is None or "times the responses of B = 64 (16 x 4 at rate 0.001)" in out


def test_arms_of_two_critics_are_two(capsys: pytest.CaptureFixture[str]) -> None:
    rows = answer(capsys, *PPO, "--prompts", "32", "--critic-rate", "0.01,0.0001")["batches"]
    assert [row["runs"] for row in rows] == [2, 2]
    apart = [
        answer(capsys, *PPO, "--prompts", "32", "--critic-rate", rate)["batches"][0] for rate in ("0.01", "0.0001")
    ]
    assert [row["critic_learning_rate"] for row in rows] == [0.01, 0.0001]
    assert rows[0]["score"] == apart[0]["score"] != apart[1]["score"]
    out = run(capsys, *PPO, "--prompts", "32", "--critic-rate", "0.01,0.0001")
    assert "critic's" in out
    assert re.search(r"Soonest at 0.5: B = 32 \(32 x 1 at rate 0.01(, critic's 0.0001)?\)", out)


def test_options_reach_the_world_and_the_trainer(capsys: pytest.CaptureFixture[str]) -> None:
    plain = run(capsys, *PPO, "--json")
    changes = (
        ("--answers", "4"), ("--correct", "2"), ("--signal", "2"), ("--scale-spread", "1"), ("--rotated",),
        ("--overlap", "0.5"), ("--difficulty", "2"), ("--label-noise", "1"), ("--start-score", "0.1"),
        ("--bound", "1"), ("--world-seed", "1"), ("--no-normalise",), ("--optimizer", "sgd"), ("--beta1", "0.5"),
        ("--beta2", "0.9"), ("--updates-per-rollout", "4"), ("--staleness", "4"), ("--kl", "0.1"),
        ("--grad-clip", "1e-3"), ("--critic-rate", "1"), ("--lr-rule", "linear"), ("--step-seconds", "1"),
    )  # fmt: skip
    asked = json.loads(plain)
    for change in changes:
        found = json.loads(run(capsys, *PPO, *change, "--json"))
        assert found["batches"] != asked["batches"], change
    clipped = ("--updates-per-rollout", "8", "--epochs", "4", "--rate", "0.1", "--clip")
    assert run(capsys, *PPO, *clipped, "0.01", "--json") != run(capsys, *PPO, *clipped, "10", "--json")
    stale = (*PPO, "--staleness", "8", "--json", "--lag")
    assert run(capsys, *stale, "uniform") != run(capsys, *stale, "constant")
    for change in (("--advantage", "mean"), ("--zero-variance", "drop")):
        assert answer(capsys, *GRPO, *change)["batches"] != answer(capsys, *GRPO)["batches"]


@EACH
def test_the_plot(capsys: pytest.CaptureFixture[str], tmp_path: Path, verb: tuple[str, ...]) -> None:
    run(capsys, *verb, "--plot", str(tmp_path / "runs.png"))
    assert (tmp_path / "runs.png").stat().st_size > 5000


def test_the_plotted_data() -> None:
    from matplotlib.figure import Figure

    from batchsim.cli.simulated_runs import draw_runs

    world = softmax_world(dim=16, prompts=64, validation=64)
    tree = simulate_grpo(world, prompts=[4, 16], learning_rate=0.01, responses_max=3000, seeds=2)
    ax = Figure().subplots()
    draw_runs(tree, 0.5, ax)
    lines = ax.get_lines()
    assert len(lines) == 4 + 1
    ds = tree["b32_s1"].to_dataset()
    assert np.asarray(lines[0].get_ydata()).tolist() == ds["score"].values[0, 1:].tolist()
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["B = 32", "B = 128", "target"]


@pytest.mark.parametrize("verb", ["grpo", "ppo", "quadratic"])
def test_help_teaches(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    out = run(capsys, verb, "--help")
    for option in ("--seeds", "--out FILE.nc", "--json", "--plot", "--rate", "--lr-rule"):
        assert option in out
    assert verb == "quadratic" or f"Try: batchsim simulate {verb}" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--prompts", "0"), "prompts is 0, not a whole number from 1 to"),
        (("--prompts", "-4"), "prompts is -4"),
        (("--prompts", ""), "--prompts is empty"),
        (("--prompts", "many"), "--prompts many is not a list of numbers"),
        (("--prompts", "1e30"), "prompts is 1e+30, not a whole number from 1 to 1,048,576"),
        (("--prompts", "4,nan"), "prompts is nan"),
        (("--group-size", "1"), "group_size is 1, and GRPO compares the responses of a group; give 2 or more"),
        (("--group-size", "9999"), "group_size is 9999"),
        (("--group-size", "8,8,8"), "arms do not match"),
        (("--rate", "0"), "learning_rate is 0; it must be positive and finite; give a number above 0"),
        (("--rate", "inf"), "learning_rate is inf"),
        (("--rate", "fast"), "--rate fast is not a list of numbers"),
        (("--rate", "0.1,0.2", "--lr-rule", "sqrt"), "needs one at the smallest batch"),
        (("--lr-rule", "tuned"), "choose fixed, sqrt, linear"),
        (("--lr-rule", "sqroot"), "did you mean 'sqrt'?"),
        (("--responses-max", "0"), "responses_max is 0"),
        (("--responses-max", "-1"), "responses_max is -1"),
        (("--responses-max", "1e18"), "lower responses_max"),
        (("--responses-max", "lots"), "--responses-max"),
        (("--target", "2"), "--target 2 is outside 0 to 1"),
        (("--target", "nan"), "--target nan is outside 0 to 1"),
        (("--evaluate-every", "0"), "evaluate_every is 0"),
        (("--mean-at", "9"), "--mean-at 9 is not N,K"),
        (("--mean-at", "65,4"), "from 1 to 64 validation prompts"),
        (("--seeds", "0"), "seeds is 0, and it must be at least 1"),
        (("--seeds", "1000000"), "2,000,000 runs, more than 2,000"),
        (("--seed", "-1"), "seed is -1, and it must be at least 0"),
        (("--world-seed", "-1"), "--world-seed is -1, and it must be at least 0"),
        (("--train-prompts", "0"), "--train-prompts is 0, and it must be at least 1"),
        (("--validation-prompts", "-5"), "--validation-prompts is -5, and it must be at least 1"),
        (("--updates-per-rollout", "8"), "4 prompts do not divide into 8 mini-batches; choose prompts as a multiple"),
        (("--updates-per-rollout", "3", "--epochs", "2"), "not a whole number per epoch"),
        (("--advantage", "grp"), "did you mean 'group'?"),
        (("--zero-variance", "refil"), "did you mean 'refill'?"),
        (("--optimizer", "adan"), "did you mean 'adam'?"),
        (("--lag", "unifrom"), "did you mean 'uniform'?"),
        (("--beta1", "1"), "beta1 is 1, outside [0, 1)"),
        (("--clip", "-0.2"), "clip is -0.2, and it must be positive"),
        (("--kl", "-1"), "kl is -1"),
        (("--staleness", "9999"), "staleness is 9999"),
        (("--dim", "0"), "dim is 0, and it must be at least 1"),
        (("--dim", "1000000000000"), "more than 2.1 GB"),
        (("--answers", "1"), "correct is 1 of 1 answers; leave at least one wrong answer"),
        (("--correct", "0"), "correct is 0, and it must be at least 1"),
        (("--updates-per-rollout", "0"), "updates_per_rollout is 0"),
        (("--seed", "one"), "--seed"),
        (("--correct", "8"), "correct is 8 of 8 answers"),
        (("--signal", "17"), "signal is 17, outside 1 to 16"),
        (("--overlap", "1"), "must lie in [0, 1)"),
        (("--start-score", "0"), "must lie in [0, 1) and start_score 0 in (0, 1)"),
        (("--scale-spread", "-1"), "scale_spread is -1, outside 0 to 20"),
        (("--bound", "0"), "bound is 0"),
        (("--step-seconds", "-1"), "step_time_intercept is -1"),
        (("--step-seconds", "0", "--response-seconds", "0"), "a step must take time"),
        (("--plot", "q.bmp"), "no plot format '.bmp'"),
    ],
)
def test_bad_input_of_a_policy(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    out = tmp_path / "runs.nc"
    assert said in run(capsys, *GRPO, *arguments, "--out", str(out), status=2)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--seeds", "0"), "--seeds is 0, and it must be at least 1"),
        (("--rate", "0.1"), "say how long with --responses-max"),
        (("--rate", "0", "--responses-max", "100"), "learning_rate is 0"),
        (("--rate", "0.1,0.2,0.3", "--responses-max", "100"), "arms do not match"),
        (("--batches", "0.5"), "train_batch is 0.5, not a whole number from 1"),
        (("--responses-max", "-1"), "responses_max is -1"),
        (("--evaluate-every", "0"), "evaluate_every is 0"),
        (("--lr-rule", "sqrt"), "needs one at the smallest batch"),
        (("--step-seconds", "nan"), "step_time_intercept is nan"),
        (("--responses-max", "1e12"), "more than 10,000,000"),
        (("--updates-max", "1"), "no batch has a rate that reaches the target; give --rate and --responses-max"),
    ],
)
def test_bad_input_of_the_quadratics_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    assert said in run(capsys, *BOWL, *arguments, "--out", str(tmp_path / "runs.nc"), status=2)
    assert not list(tmp_path.iterdir())


def test_options_of_runs_without_runs_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    message = run(capsys, *BOWL[:-2], "--rate", "0.1", status=2)
    assert "--rate say how runs are made, and none are asked for; add --seeds 4, or --out" in message
    assert "--step-seconds say how runs are made" in run(capsys, *BOWL[:-2], "--step-seconds", "5", status=2)


def test_batches_out_of_reach_are_left_out_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *BOWL, "--updates-max", "20")["simulated"]
    assert [row["train_batch"] for row in found["batches"]] == [64]
    assert found["warnings"] == ["B = 4: no rate reaches the target, and none was run"]


@EACH
def test_a_file_in_the_way_is_refused_before_any_work(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, verb: tuple[str, ...]
) -> None:
    held = tmp_path / "held.nc"
    held.write_text("precious")
    for name, said in {
        str(held): "--out exists, and runs replace no file; choose another name",
        str(tmp_path / "runs.csv"): "--out: no data format '.csv'; let the name end in .nc",
        str(tmp_path / "runs"): "let the name end in .nc",
        str(tmp_path / "none" / "runs.nc"): "there is no folder",
    }.items():
        assert said in run(capsys, *verb, "--out", name, status=2)
    (tmp_path / "folder.nc").mkdir()
    assert "--out is a folder" in run(capsys, *verb, "--out", str(tmp_path / "folder.nc"), status=2)
    assert "there is no folder" in run(capsys, *verb, "--plot", str(tmp_path / "none" / "a.png"), status=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder.nc", "held.nc"]
    assert held.read_text() == "precious"


def test_a_folder_that_cannot_be_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert "cannot be written; choose another folder" in run(
        capsys, *GRPO, "--out", str(tmp_path / "runs.nc"), status=2
    )


def test_a_failed_write_leaves_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(tree: Any, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("batchsim.logs.store._save_netcdf", fail)
    assert "No space left on device" in run(capsys, *GRPO, "--out", str(tmp_path / "runs.nc"), status=2)
    assert not list(tmp_path.iterdir())


# -- docs/worlds.md -----------------------------------------------------------------------------------------------

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "worlds.md").read_text(encoding="utf-8")


def numbers(text: str) -> list[float]:
    """Numbers outside of parentheses."""
    return [float(n.replace(",", "")) for n in re.findall(r"(?<![\w.])\d[\d,]*\.?\d*", re.sub(r"\(.*?\)", "", text))]


def test_the_commands_of_the_page_run_and_print_what_it_shows(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```\n(\$ batchsim .*?)\n```$", PAGE, re.M | re.S)
    assert len(blocks) == 2
    for block in blocks:
        for part in block.split("$ batchsim ")[1:]:
            command, _, shown = part.partition("\n")
            verb, *arguments = command.split()
            out = run(capsys, *arguments, verb=verb)
            printed = [line.strip() for line in out.splitlines() if line.strip()]
            for line in filter(None, map(str.strip, shown.splitlines())):
                if line[0].isalpha() and not line.startswith("Soonest"):
                    assert line in [re.sub(r" +", " ", p) for p in printed] or line in printed
                elif line[0] != "─":
                    # Another processor sums in another order, and a sampled answer may differ.
                    same = [p for p in printed if numbers(p)[:1] == numbers(line)[:1]]
                    assert any(
                        len(numbers(p)) == len(numbers(line)) and np.allclose(numbers(p), numbers(line), rtol=0.05)
                        for p in same
                    ), line
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bowl.nc", "ppo.png", "runs.nc"]


def test_the_python_of_the_page_runs() -> None:
    from batchsim.learning.worlds import simulate_grpo, softmax_world
    from batchsim.measure import measure

    (code,) = re.findall(r"^```python\n(.*?)\n```$", PAGE, re.M | re.S)
    names: dict[str, Any] = {"simulate_grpo": simulate_grpo, "softmax_world": softmax_world, "measure": measure}
    exec(code, names)
    assert names["measured"].attrs["target"] == 0.55
