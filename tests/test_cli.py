"""The command line: what it prints, its exit status, and what a careless user gets back."""

from __future__ import annotations

import gzip
import importlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from test_measure import Invented, sweep, write_runs

import batchsim
from batchsim.cli import main

EXAMPLE = ("--example", "li2026-grpo")
PLAN = "[recipe]\nprompts = 32\ngroup_size = 8\nlearning_rate = 1e-6\n"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8


class Outcome(NamedTuple):
    status: int
    out: str
    err: str


Cli = Callable[..., Outcome]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run `batchsim` in this process; no call may print a traceback unless it asks for one."""

    def run(*arguments: str | Path) -> Outcome:
        with pytest.raises(SystemExit) as stop:
            main([str(a) for a in arguments])
        printed = capsys.readouterr()
        status = stop.value.code
        assert isinstance(status, int)
        if "--debug" not in arguments:
            assert "Traceback" not in printed.out + printed.err
            assert "Warning" not in printed.err
        if status in (2, 70):
            assert printed.out == ""
            assert printed.err.strip()
        return Outcome(status, printed.out, printed.err)

    return run


@pytest.fixture
def refused(cli: Cli) -> Callable[..., str]:
    """Run a call that must be refused as bad input, in one line; returns that line."""

    def run(*arguments: str | Path) -> str:
        outcome = cli(*arguments)
        assert outcome.status == 2, outcome
        assert outcome.err.startswith("batchsim: ")
        assert outcome.err.count("\n") == 1
        return outcome.err

    return run


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs in an empty folder of its own."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of nine small runs: three arms, three seeds, target .5."""
    return write_runs(tmp_path_factory.mktemp("logs") / "runs", *sweep())


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "some.toml"
    path.write_text(PLAN, encoding="utf-8")
    return path


MLLOG_HEAD = '{"namespace": "", "time_ms": 0, "event_type": "POINT_IN_TIME", "key": "%s", "value": %s, "metadata": {}}'


# -- help and version -------------------------------------------------------------------------------

SUPPLIED = "--prompts --group-size --updates-per-rollout --epochs --step-seconds --learning-rate --chunks --column"
SHARED = f"--target --metric --example --level --seed --json {SUPPLIED}"
OPTIONS = {
    "init": ["--force"],
    "measure": SHARED.split(),
    "predict": f"{SHARED} --plan --pilot --batches --lr-rule --gpus --price --draws --plot".split(),
}


@pytest.mark.parametrize("verb", OPTIONS)
def test_help_of_every_verb_names_its_options(cli: Cli, verb: str) -> None:
    status, out, err = cli(verb, "--help")
    assert (status, err) == (0, "")
    for option in OPTIONS[verb]:
        assert re.search(rf"{option}\b", out), option
    assert out.startswith(f"Usage: batchsim {verb}")


def test_help_lists_every_verb_and_says_where_to_start(cli: Cli) -> None:
    status, out, _ = cli("--help")
    assert status == 0
    for verb in OPTIONS:
        assert re.search(rf"^  {verb}\b", out, re.M)
    assert "batchsim predict --example li2026-grpo" in out
    assert "r_q exceeds" in " ".join(out.split())


def test_version(cli: Cli) -> None:
    assert cli("--version") == (0, f"batchsim {batchsim.__version__}\n", "")


def test_no_arguments_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([])
    printed = capsys.readouterr()
    assert stop.value.code in (0, 2)
    assert "Usage: batchsim" in printed.out + printed.err
    assert "predict" in printed.out + printed.err


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ("foo", ("'foo'", "batchsim --help")),
        ("measure --frobnicate", ("--frobnicate", "batchsim measure --help")),
        ("predict --draws", ("--draws", "batchsim predict --help")),
        ("predict --price -1", ("--price -1: ", "greater than or equal to 0", "batchsim predict --help")),
        ("predict --gpus=0", ("--gpus 0: ", "greater than or equal to 1")),
        ("predict --draws abc", ("--draws abc: ",)),
        ("validate", ("CLAIM", "batchsim validate --help")),
        ("simulate nope", ("'nope'", "batchsim simulate --help")),
        ("measure --score-error -1", ("--score-error -1 ", "0 or more", "0.01")),
    ],
)
def test_usage_errors(refused: Callable[..., str], logs: Path, arguments: str, parts: tuple[str, ...]) -> None:
    supplied = [logs, "--target", "0.5"] if "score-error" in arguments else []
    said = refused(*arguments.split(), *supplied)
    for part in parts:
        assert part in said


def test_an_interrupt_is_no_answer(cli: Cli, logs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(_: object, path: Path) -> None:
        path.write_text("{")
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib.import_module("batchsim.calibrate.store"), "save_fit", interrupted)
    assert cli("calibrate", logs, "--target", "0.5", "-o", tmp_path / "fit.json").status == 130
    assert not list(tmp_path.glob("*fit*")) + list(tmp_path.glob(".*fit*"))


@pytest.mark.parametrize("call", ["measure --target", "measure --targets", "predict --target", "calibrate --target"])
def test_a_target_in_percent_of_scores_that_are_shares(refused: Callable[..., str], call: str) -> None:
    said = refused(*call.split(), "55", "--example", "verl-sweep")
    assert "the scores are shares: 55 % is 0.55" in said


@pytest.mark.parametrize("verb", ["measure", "predict"])
def test_a_verb_without_input_says_how_to_start(refused: Callable[..., str], verb: str) -> None:
    assert f"try: batchsim {verb} --example" in refused(verb)


# -- answers ----------------------------------------------------------------------------------------


def test_measure_prints_a_table(cli: Cli, logs: Path) -> None:
    status, out, err = cli("measure", logs, "--target", "0.5")
    assert (status, err) == (0, "")
    assert "score >= 0.5" in out
    for word in ("r_N", "r_q", "T/T0", "verdict", "wins", "16 x 8", "sqrt"):
        assert word in out


def test_measure_json_is_all_of_stdout(cli: Cli, logs: Path) -> None:
    status, out, err = cli("measure", logs, "--target", "0.5", "--json")
    assert (status, err) == (0, "")
    answer = json.loads(out)
    assert answer["schema"] == 1
    assert [row["train_batch"] for row in answer["batches"]] == [128, 256, 512]
    assert len(answer["runs"]) == 9
    assert "NaN" not in out
    assert "Infinity" not in out


def test_predict_json_is_all_of_stdout(cli: Cli, tmp_path: Path) -> None:
    for arguments in ([], ["--plot", str(tmp_path / "p.png")]):
        status, out, err = cli("predict", *EXAMPLE, "--json", *arguments)
        assert (status, err) == (0, "")
        assert json.loads(out)["star"] == 2048
    assert (tmp_path / "p.png").exists()


def test_predict_prints_the_recommendation(cli: Cli) -> None:
    status, out, err = cli("predict", *EXAMPLE, "--gpus", "64", "--price", "2")
    assert (status, err) == (0, "")
    for part in ("Effective range: B = 2048", "star", "GPU-hours", "USD", "predicted beside measured", "11.9 h"):
        assert part in out
    assert "nan" not in out.lower().split()
    assert "inf" not in out.lower().split()


ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_no_number_is_cut_on_a_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch, logs: Path, columns: int) -> None:
    """A terminal has 80 columns unless somebody widened it; a batch printed as '1…' is no answer."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    for arguments, batches, verdict in (
        (["predict", *EXAMPLE], ("1,024", "2,048", "4,096", "8,192", "16,384", "32,768"), "undecided"),
        (["measure", str(logs), "--target", "0.5"], ("128", "256", "512"), "wins"),
    ):
        out = ANSI.sub("", cli(*arguments).out)
        assert "…" not in out
        for word in (*batches, "r_N", "r_q", "T/T0", verdict):
            assert re.search(rf"(?<![\w,]){re.escape(word)}(?![\w,])", out), word


def test_predict_from_logs_with_pilots(cli: Cli, logs: Path) -> None:
    status, out, _ = cli("predict", logs, "--target", "0.5", "--pilot", "128,256")
    assert status == 0
    assert "held out" in out
    assert "calibrated on 128, 256" in out
    assert cli("predict", logs, "--target", "0.5", "--pilot", "256, 128,").out == out  # order says nothing


def test_the_seed_settles_the_output(cli: Cli) -> None:
    one, again, other = (cli("predict", *EXAMPLE, "--seed", s, "--json").out for s in ("1", "1", "2"))
    assert one == again
    assert one != other


def test_the_shipped_runs_can_be_measured_and_predicted(cli: Cli) -> None:
    status, out, _ = cli("measure", "--example", "verl-sweep", "--target", "0.55", "--json")
    assert status == 0
    answer = json.loads(out)
    assert answer["framework"] == "verl"
    assert [row["runs"] for row in answer["batches"]] == [2, 2, 2]
    assert cli("predict", "--example", "verl-sweep", "--target", "0.55").status == 0


# -- exit status ------------------------------------------------------------------------------------


def test_status_1_when_nothing_can_be_recommended(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "hot.toml"
    path.write_text(
        PLAN
        + "lr_rule = 'linear'\nbatches = [16384]\n"
        + "[learning]\nnoise_scale = 1e6\nsnr_shape = 'drift'\nlr_fraction = 0.9\n"
    )
    status, out, err = cli("predict", path)
    assert (status, err) == (1, "")
    assert "nothing can be recommended" in out
    status, out, _ = cli("predict", path, "--json")
    assert status == 1
    assert json.loads(out)["star"] is None


def test_status_1_still_writes_the_plot(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "hot.toml"
    path.write_text(
        PLAN
        + "lr_rule = 'linear'\nbatches = [16384]\n"
        + "[learning]\nnoise_scale = 1e6\nsnr_shape = 'drift'\nlr_fraction = 0.9\n"
    )
    assert cli("predict", path, "--plot", tmp_path / "p.png").status == 1
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def broken(*_: Any, **__: Any) -> None:
    raise RuntimeError("the roof\nhas fallen in")


def test_status_70_is_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch, logs: Path) -> None:
    import batchsim.measure  # noqa: F401

    monkeypatch.setattr(sys.modules["batchsim.measure"], "measure", broken)
    status, out, err = cli("measure", logs)
    assert (status, out) == (70, "")
    assert err == "batchsim: internal error: RuntimeError: the roof has fallen in (--debug shows where)\n"


@pytest.mark.parametrize("where", [0, 1, 2])
def test_debug_shows_a_traceback_wherever_it_stands(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, logs: Path, where: int
) -> None:
    import batchsim.measure  # noqa: F401

    monkeypatch.setattr(sys.modules["batchsim.measure"], "measure", broken)
    arguments = ["measure", str(logs)]
    arguments.insert(where, "--debug")
    status, _, err = cli(*arguments)
    assert status == 70
    assert "Traceback (most recent call last)" in err
    assert "in broken" in err


def test_debug_of_bad_input_keeps_status_and_message(cli: Cli) -> None:
    status, _, err = cli("measure", "nowhere.log", "--debug")
    assert status == 2
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("batchsim: nowhere.log: no such file or folder")


def test_an_interrupt_is_no_error(cli: Cli, monkeypatch: pytest.MonkeyPatch, logs: Path) -> None:
    import batchsim.measure

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules[batchsim.measure.__module__], "measure", interrupted)
    status, _, err = cli("measure", logs)
    assert status == 130
    assert err.strip() in ("", "batchsim: interrupted")


# -- files that are no logs -------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["measure", "predict"])
class TestFiles:
    def test_missing_with_a_near_name(self, refused: Callable[..., str], logs: Path, verb: str) -> None:
        said = refused(verb, logs / "p16_s0.cvs")
        assert "p16_s0.cvs: no such file or folder; did you mean 'p16_s0.csv'?" in said

    def test_missing_folder(self, refused: Callable[..., str], verb: str) -> None:
        assert "nowhere/run.log: no such file or folder; the folder nowhere does not exist" in refused(
            verb, "nowhere/run.log"
        )

    def test_no_name_at_all(self, refused: Callable[..., str], verb: str) -> None:
        """As `batchsim measure "$LOG"` with LOG unset: that is not the current folder."""
        Path("run.csv").write_text("rollout_step,step_seconds,prompts,group_size\n1,5,4,8\n2,5,4,8\n")
        assert "no such file" in refused(verb, "")

    def test_glob_without_a_match(self, refused: Callable[..., str], logs: Path, verb: str) -> None:
        assert "no file matches this pattern" in refused(verb, f"{logs}/*.log")

    def test_empty_folder(self, refused: Callable[..., str], tmp_path: Path, verb: str) -> None:
        (tmp_path / "bare").mkdir()
        assert "bare: the folder holds no files" in refused(verb, tmp_path / "bare")

    def test_folder_without_logs(self, refused: Callable[..., str], tmp_path: Path, verb: str) -> None:
        folder = tmp_path / "notes"
        folder.mkdir()
        (folder / "todo.txt").write_text("buy milk\n")
        (folder / "photo.png").write_bytes(PNG)
        assert "notes: there is no log among the files; batchsim reads" in refused(verb, folder)

    @pytest.mark.parametrize("content", [b"", b"\n\n  \n"], ids=["no bytes", "blank lines"])
    def test_empty(self, refused: Callable[..., str], tmp_path: Path, verb: str, content: bytes) -> None:
        (tmp_path / "run.log").write_bytes(content)
        assert "run.log: the file is empty" in refused(verb, tmp_path / "run.log")

    @pytest.mark.parametrize("content", [PNG, bytes(range(256)) * 10], ids=["a picture", "noise"])
    def test_binary(self, refused: Callable[..., str], tmp_path: Path, verb: str, content: bytes) -> None:
        (tmp_path / "run.log").write_bytes(content)
        assert "run.log: the file is binary" in refused(verb, tmp_path / "run.log")

    def test_text_that_is_no_log(self, refused: Callable[..., str], tmp_path: Path, verb: str) -> None:
        (tmp_path / "run.log").write_text("Dear diary,\ntoday I trained a model.\n")
        said = refused(verb, tmp_path / "run.log")
        assert "run.log: not a log that batchsim knows (it begins 'Dear diary,')" in said
        assert "MLPerf" in said

    def test_log_without_steps(self, refused: Callable[..., str], tmp_path: Path, verb: str) -> None:
        lines = [":::MLLOG " + MLLOG_HEAD % (k, v) for k, v in (("seed", 1), ("global_batch_size", 256))]
        (tmp_path / "run.out").write_text("\n".join(lines) + "\n")
        assert "run.out: the log holds no training step and no evaluation" in refused(verb, tmp_path / "run.out")

    def test_two_frameworks(self, refused: Callable[..., str], tmp_path: Path, logs: Path, verb: str) -> None:
        line = "step:{} - actor/lr:1e-06 - timing_s/step:10.0 - val-core/x/acc/mean@1:0.5\n"
        (tmp_path / "verl.log").write_text("".join(line.format(i) for i in range(1, 4)))
        said = refused(verb, logs, tmp_path / "verl.log")
        assert "logs of several frameworks in one call" in said
        assert "is tables" in said
        assert "is verl" in said

    def test_two_models(self, refused: Callable[..., str], tmp_path: Path, verb: str) -> None:
        head = "run,rollout_step,responses,step_seconds,prompts,group_size,model\n"
        for name in ("Qwen", "Llama"):
            rows = "".join(f"{name},{i},{i * 32},5,4,8,{name}\n" for i in range(1, 6))
            (tmp_path / f"{name}.csv").write_text(head + rows)
        said = refused(verb, tmp_path / "Qwen.csv", tmp_path / "Llama.csv")
        assert "logs of several models in one call" in said
        assert "Qwen" in said
        assert "Llama" in said

    @pytest.mark.parametrize(
        ("cell", "expected"),
        [("0", "prompts is 0"), ("-4", "prompts is -4"), ("2.5", "prompts is 2.5"), ("many", "prompts is 'many'")],
    )
    def test_impossible_batches(
        self, refused: Callable[..., str], tmp_path: Path, verb: str, cell: str, expected: str
    ) -> None:
        rows = "".join(f"{i},5,{cell},8\n" for i in range(1, 6))
        (tmp_path / "run.csv").write_text("rollout_step,step_seconds,prompts,group_size\n" + rows)
        said = refused(verb, tmp_path / "run.csv")
        assert "run.csv" in said
        assert expected in said

    def test_groups_that_do_not_divide(self, refused: Callable[..., str], tmp_path: Path, verb: str) -> None:
        rows = "".join(f"{i},5,100,8\n" for i in range(1, 6))
        (tmp_path / "run.csv").write_text("rollout_step,step_seconds,rollout_batch,group_size\n" + rows)
        assert "rollout_batch / group_size = 100/8 = 12.5; it must be a whole number" in refused(
            verb, tmp_path / "run.csv"
        )


def test_truncated_mlperf_run_is_read_as_far_as_it_goes(cli: Cli, shared: Path, tmp_path: Path) -> None:
    whole = (shared / "mlperf_grpo" / "gbs256_seed1.out").read_bytes()
    cut = tmp_path / "cut.out"
    cut.write_bytes(whole[: int(0.7 * len(whole))])
    status, out, err = cli("measure", cut, "--json")
    assert (status, err) == (0, "")
    answer = json.loads(out)
    (run,) = answer["runs"]
    assert run["throughput"] is not None
    assert run["responses_to_target"] is None
    cut.write_bytes(whole[:3000])
    status, _, err = cli("measure", cut)
    assert status == 2
    assert "cut.out: the log holds no training step" in err


def test_a_log_that_is_still_being_written(cli: Cli, logs: Path, tmp_path: Path) -> None:
    text = (logs / "p16_s0.csv").read_text()
    lines = text.splitlines(keepends=True)
    growing = tmp_path / "growing.csv"
    growing.write_text("".join(lines[:30]) + lines[30][:-6])
    status, out, _ = cli("measure", growing, "--json")
    assert status == 0
    (run,) = json.loads(out)["runs"]
    assert "line 31 has no end (cut, or still being written) and was not used" in " ".join(
        run["warnings"] + json.loads(out)["warnings"]
    )
    whole = tmp_path / "whole.csv"
    whole.write_text("".join(lines[:30]))
    other = json.loads(cli("measure", whole, "--json").out)
    assert other["batches"] == json.loads(out)["batches"]


# -- ways to name logs ------------------------------------------------------------------------------


def test_folder_glob_files_and_gzip_give_one_answer(cli: Cli, logs: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    packed.mkdir()
    for path in logs.glob("*.csv"):
        (packed / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    ways: list[list[Any]] = [[logs], [f"{logs}/p*.csv"], sorted(logs.iterdir()), [packed], [f"{packed}/*.gz"]]
    answers = [json.loads(cli("measure", *way, "--target", "0.5", "--json").out)["batches"] for way in ways]
    for answer in answers[1:]:
        assert answer == answers[0]


def test_a_file_named_twice_counts_once(cli: Cli, logs: Path) -> None:
    path = logs / "p16_s0.csv"
    answer = json.loads(cli("measure", path, path, f"{logs}/p16_s0*", "--target", "0.5", "--json").out)
    assert len(answer["runs"]) == 1
    assert any("named twice" in w for w in answer["warnings"])


def test_standard_input(cli: Cli, logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = (logs / "p16_s0.csv").read_bytes()
    for content in (raw, gzip.compress(raw)):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
        status, out, _ = cli("measure", "-", "--target", "0.5", "--json")
        assert status == 0
        assert len(json.loads(out)["runs"]) == 1
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"")))
    assert "the file is empty" in cli("measure", "-").err


def test_what_a_log_lacks_can_be_supplied(cli: Cli, tmp_path: Path) -> None:
    run = Invented(run="bare", prompts=16, responses_to_target=3000, step_seconds=None, learning_rate=None)
    rows = [row for row in run.rows() if row["rollout_step"]]
    text = "rollout_step,my_reward,score\n" + "".join(f"{r['rollout_step']},0.5,{r['score']}\n" for r in rows)
    path = tmp_path / "bare.csv"
    path.write_text(text)
    assert "give --prompts and --group-size" in cli("measure", path).err
    supplied = ("--prompts", "16", "--group-size", "8", "--step-seconds", "10", "--learning-rate", "1e-6")
    answer = json.loads(
        cli("measure", path, *supplied, "--column", "train_reward=my_reward", "--target", "0.5", "--json").out
    )
    (arm,) = answer["batches"]
    assert arm["train_batch"] == 128
    assert arm["throughput"] == pytest.approx(12.8)
    assert arm["learning_rate"] == 1e-6
    assert arm["responses_to_target"] == [2944, 3072]
    half = json.loads(cli("measure", path, *supplied, "--updates-per-rollout", "2", "--json").out)
    assert half["batches"][0]["train_batch"] == 64


def test_an_option_that_contradicts_the_log_is_refused(refused: Callable[..., str], logs: Path) -> None:
    assert "--group-size 16 contradicts the log: group_size 8" in refused(
        "measure", logs / "p16_s0.csv", "--group-size", "16"
    )


def test_real_trainer_state_is_not_an_error(cli: Cli, shared: Path) -> None:
    path = shared / "logs_real" / "trl_r1distill1.5b_a2_trainer_state.json"
    assert "give --prompts and --group-size" in cli("measure", path).err
    status, out, _ = cli("measure", path, "--prompts", "8", "--group-size", "6")
    assert status == 0
    for said in ("no validation score", "training reward is not one", "no timing", "one batch", "not identified"):
        assert said in out
    status, out, _ = cli("predict", path, "--prompts", "8", "--group-size", "6")
    assert status == 0
    assert "(prior)" in out


def test_real_verl_logs_with_two_scores(cli: Cli, shared: Path) -> None:
    path = shared / "logs_real" / "verl_2025-06_qwen2-7b_fsdp_excerpt.log"
    status, out, _ = cli("measure", path)
    assert status == 0
    assert "the logs hold 2 scores" in out
    assert "choose one with --metric" in out
    status, _, err = cli("measure", path, "--target", "0.8")
    assert status == 2
    assert "val-core/openai/gsm8k/reward/mean@1" in err
    chosen = cli("measure", path, "--target", "0.8", "--metric", "val-core/openai/gsm8k/reward/mean@1")
    assert chosen.status == 0


# -- options out of bounds --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--target", "nan"], "target is nan, not a finite score"),
        (["--target", "inf"], "target is inf, not a finite score"),
        (["--target", "high"], "--target"),
        (["--target", "0.5", "--metric", "scor"], "did you mean 'score'?"),
        (["--level", "2"], "level is 2, outside (0, 1)"),
        (["--level", "0"], "level is 0, outside (0, 1)"),
        (["--level", "80%"], "--level"),
        (["--seed", "-1"], "seed"),
        (["--seed", "1.5"], "--seed"),
        (["--step-seconds", "-1"], "step_seconds"),
        (["--step-seconds", "nan"], "step_seconds"),
        (["--prompts", "0"], "prompts"),
        (["--group-size", "-8"], "group"),
        (["--learning-rate", "0"], "learning"),
        (["--column", "train_reward"], "is not QUANTITY=COLUMN"),
        (["--column", "train_rewrd=x"], "did you mean 'train_reward'?"),
    ],
)
@pytest.mark.parametrize("verb", ["measure", "predict"])
def test_shared_options(refused: Callable[..., str], logs: Path, verb: str, options: list[str], expected: str) -> None:
    assert expected in refused(verb, logs, *options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--draws", "1"], "draws is 1, outside 10 to 40000"),
        (["--draws", "0"], "draws is 0, outside"),
        (["--draws", "1e3"], "--draws"),
        (["--batches", ""], "--batches is empty; as --batches 256,512"),
        (["--batches", ","], "--batches is empty"),
        (["--batches", "abc"], "--batches abc is not a list of numbers"),
        (["--batches", "0"], "candidate batch 0 is not a positive number of responses up to 1e+09; the smallest is 8"),
        (["--batches", "-5"], "the smallest is 8"),
        (["--batches", "1e400"], "candidate batch inf"),
        (["--batches", "100,,200"], "candidate batch 100 is not a whole number of prompts"),
        (["--batches", "nan"], "candidate batch nan"),
        (["--batches", "1e308"], "1e+308"),
        (["--gpus", "0"], "--gpus"),
        (["--gpus", "many"], "--gpus"),
        (["--gpus", "inf"], "gpus"),
        (["--price", "-1"], "--price"),
        (["--gpus", "8", "--price", "inf"], "price"),
        (["--gpus", "8", "--price", "nan"], "price"),
        (["--lr-rule", "nonsense"], "unknown learning-rate rule 'nonsense'; known: fixed"),
        (["--lr-rule", "sqr"], "sqrt"),
        (["--pilot", "1024"], "pilot"),
        (["--plan", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_options_of_predict(refused: Callable[..., str], options: list[str], expected: str) -> None:
    # A plan of the user's own, so that --plan is a second one only where it is named.
    arguments = ["predict", *options] if "--plan" in options else ["predict", *EXAMPLE, *options]
    assert expected in refused(*arguments)


@pytest.mark.parametrize("pilot", ["300", "0", "-5", "1e400", "nan"])
def test_pilots_that_were_not_measured(refused: Callable[..., str], logs: Path, pilot: str) -> None:
    said = refused("predict", logs, "--target", "0.5", "--pilot", pilot)
    assert "no run has train batch" in said
    assert "measured: 128, 256, 512 responses per update" in said


@pytest.mark.parametrize("pilot", ["", ",", "abc"])
def test_pilots_that_are_no_numbers(refused: Callable[..., str], logs: Path, pilot: str) -> None:
    assert "as --pilot 256,512" in refused("predict", logs, "--pilot", pilot)


def test_the_tuned_rule_answers_from_an_example(cli: Cli) -> None:
    status, out, _ = cli("predict", *EXAMPLE, "--lr-rule", "tuned")
    assert status in (0, 1)
    assert "rule 'tuned'" in out


def test_price_without_gpus_is_said(cli: Cli) -> None:
    status, out, err = cli("predict", *EXAMPLE, "--price", "3")
    assert status == 2 or "--gpus" in out + err


@pytest.mark.parametrize("verb", ["measure", "predict"])
def test_unknown_example(refused: Callable[..., str], verb: str) -> None:
    assert "no example 'li2026-gpro'; did you mean 'li2026-grpo'?" in refused(verb, "--example", "li2026-gpro")


def test_a_plan_given_to_measure_is_pointed_to_predict(refused: Callable[..., str], plan: Path) -> None:
    assert "predict" in refused("measure", plan)
    assert "predict" in refused("measure", *EXAMPLE)


# -- plans ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[recipe\nprompts = 1", "not TOML"),
        ("hello there", "not TOML"),
        ("[recipe]\nprompt = 32\ngroup_size = 8\n", "[recipe]: unknown key 'prompt'; did you mean 'prompts'?"),
        ("[recipe]\nprompts_per_rollout = 32\n", "unknown key 'prompts_per_rollout'; did you mean 'prompts'?"),
        (PLAN + "[learnin]\nnoise_scale = 1\n", "unknown key 'learnin'; did you mean 'learning'?"),
        (PLAN + "[[engine.observed]]\nprompt = 3\n", "unknown key 'prompt'; did you mean 'prompts'?"),
        ("recipe = 3\n", "'recipe' is a section, not a value; write [recipe]"),
        ("[recipe]\nprompts = 0\ngroup_size = 8\n", "prompts = 0"),
        ("[recipe]\nprompts = -3\ngroup_size = 8\n", "prompts = -3"),
        ("[recipe]\nprompts = 2.5\ngroup_size = 8\n", "prompts = 2.5"),
        ("[recipe]\ngroup_size = 8\n", "prompts"),
        (PLAN + "[gpu]\nmemory = '80 apples'\n", "80 apples"),
        (PLAN + "[gpu]\nmemory = 80\n", "memory"),
        (PLAN + "[learning]\nnoise_scale = [3000, 1000]\n", "noise_scale [3000.0, 1000.0] is not an interval"),
        (PLAN + "[target]\ntime_to_target = 'soon'\n", "soon"),
        ("[target]\nscore = 0.5\n", "nothing to predict from: no logs and no [recipe]"),
        ("", "nothing to predict from: no logs and no [recipe]"),
        (PLAN + "lr_rule = 'sqr'\n", "lr_rule = 'sqr'"),
        (PLAN + "[logs]\npaths = ['nowhere/*.log']\n", "no file matches this pattern"),
    ],
)
def test_plans_that_are_refused(refused: Callable[..., str], tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    said = refused("predict", path)
    assert expected in said
    assert "bad.toml" in said or "nowhere" in said


def test_a_plan_that_is_not_text(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_bytes(PNG)
    assert "bad.toml: cannot read the plan: it is not UTF-8 text" in refused("predict", tmp_path / "bad.toml")
    (tmp_path / "folder.toml").mkdir()
    assert "folder.toml" in refused("predict", tmp_path / "folder.toml")
    assert "missing.toml" in refused("predict", tmp_path / "missing.toml")


def test_two_plans(refused: Callable[..., str], plan: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(PLAN)
    for arguments in ([plan, other], [plan, "--plan", other], [*EXAMPLE, "--plan", other]):
        assert "2 plans given; one plan per prediction" in refused("predict", *arguments)


def test_logs_of_a_plan_are_relative_to_the_plan(cli: Cli, logs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "project" / "plans"
    folder.mkdir(parents=True)
    (tmp_path / "project" / "runs").symlink_to(logs, target_is_directory=True)
    path = folder / "plan.toml"
    path.write_text("[target]\nscore = 0.5\n[logs]\npaths = ['../runs/p*.csv']\npilot_batches = [128, 256]\n")
    status, out, _ = cli("predict", path, "--json")
    assert status == 0
    answer = json.loads(out)
    assert answer["target"] == 0.5
    assert {row["train_batch"] for row in answer["measured"]} == {128, 256, 512}
    assert {r["train_batch"] for r in answer["compared"] if r["held_out"]} == {512}
    direct = json.loads(cli("predict", logs, "--target", "0.5", "--pilot", "128,256", "--json").out)
    assert direct["batches"] == answer["batches"]


def test_absolute_log_paths_in_a_plan(cli: Cli, logs: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(f"[target]\nscore = 0.5\n[logs]\npaths = ['{logs}']\n")
    assert cli("predict", path).status == 0


def test_a_plan_beside_logs(cli: Cli, logs: Path, tmp_path: Path) -> None:
    path = tmp_path / "more.toml"
    path.write_text("[learning]\nnoise_scale = 2000\nsnr_shape = 'drift'\nlr_fraction = 0.1\n")
    status, out, _ = cli("predict", logs, "--plan", path, "--target", "0.5", "--json")
    assert status == 0
    assert json.loads(out)["parameters"]["noise_scale"] == {"interval": [2000, 2000], "source": "given"}


def test_pilots_of_a_plan_that_holds_them_are_said(cli: Cli, logs: Path, tmp_path: Path) -> None:
    """Held out through the plan, not through --pilot: the sentence about held-out batches is the same."""
    path = tmp_path / "plan.toml"
    path.write_text(f"[target]\nscore = 0.5\n[logs]\npaths = ['{logs}']\npilot_batches = [128, 256]\n")
    answer = json.loads(cli("predict", path, "--json").out)
    assert any("calibrated on 128, 256" in w for w in answer["warnings"])


# -- init -------------------------------------------------------------------------------------------


def test_init_writes_a_plan_that_predicts(cli: Cli, tmp_path: Path) -> None:
    status, out, _ = cli("init")
    assert status == 0
    assert Path("plan.toml").read_text().startswith("# plan.toml")
    suggested = out.strip().split("next: batchsim ")[1].split()
    assert cli(*suggested).status == 0
    assert sorted(p.name for p in Path().iterdir()) == ["plan.toml"]


def test_what_init_suggests_works_under_any_name(cli: Cli) -> None:
    status, out, err = cli("init", "myplan")
    if status == 0:
        suggested = out.strip().split("next: batchsim ")[1].split()
        assert cli(*suggested).status == 0
    else:
        assert status == 2
        assert ".toml" in err


def test_every_line_that_init_comments_out_is_accepted(cli: Cli) -> None:
    """The example must hold no key that the reader refuses."""
    from batchsim.cli.init import TEMPLATE

    lines = []
    for line in TEMPLATE.splitlines():
        found = re.match(r"# ((?:\[\[|\w+ = ).*)", line)
        lines.append(found[1] if found else line)
    text = "\n".join(lines).replace('paths = ["runs/*.log"]', "").replace("pilot_batches = [512]", "")
    assert "updates_ratio" in text
    Path("full.toml").write_text(text)
    status, _, err = cli("predict", "full.toml", "--draws", "200")
    assert status in (0, 1), err


def test_init_never_overwrites_unasked(cli: Cli, refused: Callable[..., str]) -> None:
    Path("plan.toml").write_text("mine")
    assert "plan.toml: the file exists; choose another name, or pass --force" in refused("init")
    assert Path("plan.toml").read_text() == "mine"
    assert cli("init", "--force").status == 0
    assert Path("plan.toml").read_text().startswith("# plan.toml")


def test_init_into_a_missing_folder(refused: Callable[..., str]) -> None:
    assert "nowhere/plan.toml: cannot write" in refused("init", "nowhere/plan.toml")


# -- output files -----------------------------------------------------------------------------------

MAGIC = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}


@pytest.mark.parametrize("suffix", MAGIC)
def test_plot_formats(cli: Cli, suffix: str) -> None:
    status, out, _ = cli("predict", *EXAMPLE, "--plot", f"p.{suffix}")
    assert status == 0
    assert f"plot written to p.{suffix}" in out
    assert Path(f"p.{suffix}").read_bytes().startswith(MAGIC[suffix])
    assert [p.name for p in Path().iterdir()] == [f"p.{suffix}"]


@pytest.mark.parametrize("name", ["p.gif", "p", "p.png.txt"])
def test_plot_formats_that_are_refused(refused: Callable[..., str], name: str) -> None:
    assert "use .png, .pdf, .svg" in refused("predict", *EXAMPLE, "--plot", name)
    assert list(Path().iterdir()) == []


def test_plot_into_a_missing_folder(refused: Callable[..., str]) -> None:
    assert "there is no folder nowhere" in refused("predict", *EXAMPLE, "--plot", "nowhere/p.png")
    assert "--stages: there is no folder nowhere" in refused("predict", *EXAMPLE, "--stages", "nowhere/p.png")
    assert "-o: there is no folder nowhere" in refused("calibrate", *EXAMPLE, "-o", "nowhere/fit.json")


def test_plot_onto_a_folder(refused: Callable[..., str]) -> None:
    Path("p.png").mkdir()
    assert "p.png" in refused("predict", *EXAMPLE, "--plot", "p.png")
    assert [p.name for p in Path().iterdir()] == ["p.png"]


def test_plot_replaces_an_older_one(cli: Cli) -> None:
    Path("p.png").write_text("old")
    assert cli("predict", *EXAMPLE, "--plot", "p.png").status == 0
    assert Path("p.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_that_fails_leaves_the_older_one_whole(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    def half(self: Any, path: Any, **_: Any) -> None:
        Path(path).write_bytes(b"half a fig")
        raise OSError(28, "No space left on device")

    Path("p.png").write_text("precious")
    monkeypatch.setattr(Figure, "savefig", half)
    status, _, err = cli("predict", *EXAMPLE, "--plot", "p.png")
    assert status in (2, 70)
    assert "No space left" in err
    assert Path("p.png").read_text() == "precious"
    assert [p.name for p in Path().iterdir()] == ["p.png"]


def test_an_answer_that_fails_leaves_no_plot_behind(cli: Cli) -> None:
    assert cli("predict", *EXAMPLE, "--plot", "p.png", "--batches", "100").status == 2
    assert list(Path().iterdir()) == []


# -- processes --------------------------------------------------------------------------------------


def test_module_runs_as_a_process(logs: Path) -> None:
    call = [sys.executable, "-W", "error", "-m", "batchsim", "measure", "-", "--target", "0.5", "--json"]
    with (logs / "p16_s0.csv").open("rb") as file:
        done = subprocess.run(call, stdin=file, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["batches"][0]["train_batch"] == 128


@pytest.mark.parametrize("arguments", [["runs"], ["runs", "--json"], ["runs/p16_s0.csv", "--json"]], ids=" ".join)
def test_a_reader_that_leaves_early_is_no_error(logs: Path, arguments: list[str]) -> None:
    """As `| head -1`: status 1 would say that nothing can be recommended. The last answer fits into one buffer."""
    call = [sys.executable, "-m", "batchsim", "measure", f"{logs.parent}/{arguments[0]}", *arguments[1:]]
    writer = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stderr is not None
    writer.stdout.close()
    said = writer.stderr.read()
    writer.stderr.close()
    assert writer.wait() in (0, 141)
    assert said == b""


def test_a_process_reports_its_status() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "batchsim", "measure", "nowhere.log"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("batchsim: nowhere.log: no such file or folder")
    assert done.stderr.count("\n") == 1


def test_measure_reads_the_logs_target_and_columns_of_a_plan(cli: Cli, tmp_path: Path) -> None:
    run = Invented(run="small", prompts=16, responses_to_target=3000)
    (table,) = write_runs(tmp_path / "runs", run).glob("*.csv")
    table.write_text(table.read_text().replace("score", "accuracy", 1))
    plan = tmp_path / "plan.toml"
    plan.write_text('[target]\nscore = 0.5\n[logs]\npaths = ["runs/*.csv"]\ncolumns = { score = "accuracy" }\n')
    status, out, err = cli("measure", plan, "--json")
    assert status == 0, err
    answer = json.loads(out)
    assert answer["target"] == 0.5
    low, high = answer["batches"][0]["responses_to_target"]
    assert low < 3000 <= high
    plan.write_text("[recipe]\nprompts = 16\n")
    assert "names no logs" in cli("measure", plan).err
