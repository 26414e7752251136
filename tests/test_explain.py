"""`batchsim explain`: facts of real logs verified by hand, seeded faults, and what is printed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from batchsim.cli import main
from batchsim.cli.explain import from_runs
from batchsim.logs import read_logs
from batchsim.logs.account import arithmetic, held, missing, trainer
from batchsim.logs.integrity import CHECKS, Check, check_rounded_rates, check_tokens, checks, phases
from batchsim.logs.integrity import Phase as PhaseOf

FSDP = "logs_real/verl_2025-06_qwen2-7b_fsdp_excerpt.log"
MEGATRON = "logs_real/verl_2025-06_qwen2-7b_megatron_excerpt.log"
TRL_STATE = "logs_real/trl_r1distill1.5b_a2_trainer_state.json"
NAMES = [check.__name__.removeprefix("check_") for check in CHECKS]


def only(tree: xr.DataTree) -> xr.Dataset:
    node = next(iter(tree.children.values()))
    return node.to_dataset()


def by_name(ds: xr.Dataset) -> dict[str, Check]:
    found = checks(ds)
    assert [check.name for check in found] == NAMES
    return {check.name: check for check in found}


def warned(ds: xr.Dataset) -> set[str]:
    return {check.name for check in checks(ds) if check.outcome == "warning"}


def by_phase(ds: xr.Dataset) -> dict[str, PhaseOf]:
    return {phase.phase: phase for phase in phases(ds)}


# -- real logs, with numbers from awk over the raw text -----------------------------------------------


@pytest.fixture(scope="module")
def fsdp(shared: Path) -> xr.Dataset:
    return only(read_logs(shared / FSDP))


@pytest.fixture(scope="module")
def megatron(shared: Path) -> xr.Dataset:
    return only(read_logs(shared / MEGATRON))


VERL_ARITHMETIC = [
    "data.train_batch_size = 1024 prompts (P)",
    "actor_rollout_ref.rollout.n = 5 responses per prompt (G)",
    "actor_rollout_ref.actor.ppo_epochs = 1 (E)",
    "data.train_batch_size x ppo_epochs / ppo_mini_batch_size = 1024 x 1 / 256 = 4 updates per rollout step (M)",
    "actor_rollout_ref.actor.optim.lr = 1e-06 (learning rate)",
    "rollout_batch = P x G = 1024 x 5 = 5120 responses per rollout step",
    "train_batch = rollout_batch x E / M = 5120 x 1 / 4 = 1280 responses per update (B)",
]


@pytest.mark.parametrize("name", ["fsdp", "megatron"])
def test_arithmetic_of_verl(name: str, request: pytest.FixtureRequest) -> None:
    ds = request.getfixturevalue(name)
    assert arithmetic(ds, {}) == VERL_ARITHMETIC
    assert trainer(ds) == "verl"


def test_phases_of_verl(fsdp: xr.Dataset, megatron: xr.Dataset) -> None:
    """Means over steps 3 and later, with step less testing and save_checkpoint."""
    expected = {"generation": 82.1197, "training": 146.442, "logprob": 37.0044, "step": 267.518}
    found = by_phase(fsdp)
    assert {name: found[name].mean for name in expected} == pytest.approx(expected, rel=1e-5)
    shares = {"generation": 0.306969, "training": 0.54741, "logprob": 0.138325, "step": 1.0}
    assert {name: found[name].share for name in shares} == pytest.approx(shares, rel=1e-5)
    assert sum(p.share for p in found.values() if p.phase != "step") == pytest.approx(1, abs=1e-9)
    expected = {"generation": 46.1322, "training": 112.394, "logprob": 52.1462, "step": 212.27}
    found = by_phase(megatron)
    assert {name: found[name].mean for name in expected} == pytest.approx(expected, rel=1e-5)
    # The FSDP run's steps lengthen from about 225 s to about 370 s over 200 steps, Megatron's do not.
    assert by_phase(fsdp)["step"].has_trend
    trend = by_phase(fsdp)["step"].trend
    assert trend is not None
    assert 60 < trend < 85
    assert not found["step"].has_trend


def test_checks_of_verl(fsdp: xr.Dataset, megatron: xr.Dataset) -> None:
    assert warned(fsdp) == {"gaps", "rounded_rates", "drift"}
    assert warned(megatron) == {"gaps", "rounded_rates"}
    # The excerpts jump from step 24 to 201 and from 13 to 78.
    assert (by_name(fsdp)["gaps"].value, by_name(megatron)["gaps"].value) == (176, 64)
    assert by_name(fsdp)["rounded_rates"].value == 1
    assert by_name(fsdp)["rounded_rates"].message.startswith("the learning rate is 0 in 34 of 34 steps; 1e-06")
    # Saved at steps 80, 100 and 105 in 178.9, 184.6 and 175.3 s; the FSDP excerpt saves twice only.
    assert by_name(megatron)["checkpoint_spikes"].value == pytest.approx(184.563 / 178.913)
    assert by_name(fsdp)["checkpoint_spikes"].outcome == "not checkable"
    assert by_name(fsdp)["cold_start"].value == pytest.approx(252.485 / np.median(fsdp["step_seconds"][2:]), rel=1e-6)
    assert by_name(fsdp)["finite_norms"].value == 1


def test_what_verl_holds_and_lacks(fsdp: xr.Dataset) -> None:
    sources = {entry.quantity: entry.source for entry in held(fsdp)}
    assert sources["generation_seconds"] == "timing_s/gen [s], of the step"
    assert sources["checkpoint_seconds"].endswith("; in 2 of 34")
    assert sources["elapsed"].endswith("; in 24 of 34")
    assert sources["max_num_seqs"] == "actor_rollout_ref.rollout.max_num_seqs = 1024"
    assert "steady" not in sources
    assert [entry.quantity for entry in missing(fsdp)] == ["elapsed", "eval_samples"]


def test_mlperf(shared: Path) -> None:
    ds = only(read_logs(shared / "mlperf_grpo" / "gbs1024_seed1.out"))
    assert arithmetic(ds, {}) == [
        "num_prompts_per_step = 64 prompts (P)",
        "num_generations_per_prompt = 16 responses per prompt (G)",
        "epochs = 1 (E), not stated",
        "updates_per_rollout = rollout_batch x E / train_batch = 1024 x 1 / 1024 = 1 update per rollout step (M)",
        "global_batch_size = 1024 responses per update",
        "opt_base_learning_rate = 2e-06 (learning rate)",
        "rollout_batch = P x G = 64 x 16 = 1024 responses per rollout step",
        "train_batch = rollout_batch x E / M = 1024 x 1 / 1 = 1024 responses per update (B)",
    ]
    # Steps 3 to 6 of the log's tracked_stats.
    step = np.array([1012.105922, 868.562479, 877.343266, 1135.728971])
    waited = np.array([678.535231, 549.113837, 538.952182, 807.472260])
    trained = np.array([245.210256, 235.747774, 252.615459, 242.465300])
    synced = np.array([15.755736, 15.381606, 14.960281, 15.061978])
    found = by_phase(ds)
    assert found["generation"].mean == pytest.approx(waited.mean())
    assert found["generation"].share == pytest.approx(waited.sum() / step.sum())
    assert found["generation"].cv == pytest.approx(waited.std(ddof=1) / waited.mean(), rel=1e-5)
    assert found["step"].trend is None
    rest = (step - waited - trained - synced) / step
    check = by_name(ds)["phases"]
    assert check.value == pytest.approx(np.quantile(rest, 0.9), rel=1e-5)
    assert check.message.startswith("step - sum(phases) is 7.5 % of the step (median), beyond 2 % in 4 of 4 steady")
    assert warned(ds) == {"phases"}
    assert [entry.quantity for entry in missing(ds)] == ["evaluations", "response_length"]


def test_trl_state(shared: Path) -> None:
    given = {"prompts": 8, "group_size": 6}
    ds = only(read_logs(shared / TRL_STATE, prompts=8, group_size=6))
    assert arithmetic(ds, given) == [
        "option --prompts = 8 prompts (P)",
        "option --group-size = 6 responses per prompt (G)",
        "epochs = 1 (E), not stated",
        "updates_per_rollout = 1 update per rollout step (M), not stated",
        "largest logged learning_rate = 1e-06 (learning rate)",
        "rollout_batch = P x G = 8 x 6 = 48 responses per rollout step",
        "train_batch = rollout_batch x E / M = 48 x 1 / 1 = 48 responses per update (B)",
    ]
    assert phases(ds) == []
    assert warned(ds) == set()
    # Ten rows, every five steps.
    assert by_name(ds)["gaps"].value == 0
    assert [entry.quantity for entry in missing(ds)] == ["score", "step_seconds", "phases"]
    remedy = next(entry.remedy for entry in missing(ds) if entry.quantity == "score")
    assert "eval_strategy=steps" in remedy


def test_tiny_grpo(shared: Path) -> None:
    ds = only(read_logs(shared / "tiny_grpo"))
    said = arithmetic(ds, {})
    assert said[:2] == ["prompts = 16 prompts (P)", "group_size = 8 responses per prompt (G)"]
    assert "learning_rate = 0.0001 (learning rate)" in said
    assert said[-1] == "train_batch = rollout_batch x E / M = 128 x 1 / 1 = 128 responses per update (B)"
    # Means over updates 3 to 624 of gen_seconds and train_seconds.
    found = by_phase(ds)
    assert found["generation"].mean == pytest.approx(0.025153, rel=1e-4)
    assert found["training"].mean == pytest.approx(0.0292968, rel=1e-4)
    assert found["generation"].share == pytest.approx(0.461949, rel=1e-4)
    assert "other" not in found
    assert by_name(ds)["phases"].outcome == "not checkable"
    assert warned(ds) == set()
    assert "chunks" in [entry.quantity for entry in missing(ds)]
    assert "chunks" not in [entry.quantity for entry in missing(only(read_logs(shared / "tiny_grpo", chunks=8)))]


def test_every_real_log_is_explained(shared: Path) -> None:
    given: dict[str, Any] = {"prompts": 6, "group_size": 8, "updates_per_rollout": 1}
    paths = [*(shared / "logs_real").glob("*.json"), *(shared / "logs_real").glob("*.log")]
    for path in [*paths, shared / "mlperf_grpo", shared / "tiny_ppo"]:
        options = given if path.name.startswith(("trl", "verl_logicrl")) else {}
        check_json(from_runs(read_logs(path, **options), options))


# -- seeded faults ------------------------------------------------------------------------------------

STEPS = 60
CONFIG = (
    "python3 -m verl.trainer.main_ppo data.train_batch_size=16 actor_rollout_ref.rollout.n=8 "
    "actor_rollout_ref.actor.ppo_mini_batch_size=16 actor_rollout_ref.actor.ppo_epochs=1 "
    "actor_rollout_ref.actor.optim.lr=1e-6\n"
)
Row = dict[str, Any]


def clean_rows() -> list[Row]:
    """Sixty sound steps of 100 s, an evaluation of 20 s every tenth and a checkpoint of 30 s every twentieth."""
    rng = np.random.default_rng(1)
    rows = []
    for step in range(1, STEPS + 1):
        pace = float(rng.normal(1, 0.02))
        row: Row = {
            "step": step,
            "actor/grad_norm": round(float(rng.normal(0.3, 0.03)), 4),
            "actor/lr": 1e-6,
            "response_length/mean": 500.0,
            "prompt_length/mean": 100.0,
            "perf/total_num_tokens": 128 * 600,
            "timing_s/gen": 60 * pace,
            "timing_s/update_actor": 30 * pace,
            "timing_s/old_log_prob": 9.5 * pace,
            "timing_s/step": 100 * pace,
        }
        if step % 10 == 0:
            row |= {"timing_s/testing": 20.0, "val-core/set/acc/mean@1": 0.5}
        if step % 20 == 0:
            row["timing_s/save_checkpoint"] = 30.0
        rows.append(row)
    return rows


def written(folder: Path, rows: list[Row], config: str = CONFIG) -> Path:
    path = folder / "run.log"
    lines = []
    for row in rows:
        # As in versions whose step includes evaluation and checkpoint.
        whole = row | {"timing_s/step": row["timing_s/step"] + outside(row)} if "timing_s/step" in row else row
        lines.append(" - ".join(f"{key}:{value}" for key, value in whole.items()))
    path.write_text(config + "\n".join(lines) + "\n")
    return path


def outside(row: Row) -> float:
    return float(row.get("timing_s/testing", 0.0)) + float(row.get("timing_s/save_checkpoint", 0.0))


def scaled(row: Row, factor: float) -> None:
    for name in ("gen", "update_actor", "old_log_prob", "step"):
        row[f"timing_s/{name}"] *= factor


def overlapping(rows: list[Row]) -> list[Row]:
    for row in rows[20:]:
        row["timing_s/gen"] += 5
    return rows


def unaccounted(rows: list[Row]) -> list[Row]:
    for row in rows:
        row["timing_s/step"] += 8
    return rows


def doubled_tokens(rows: list[Row]) -> list[Row]:
    for row in rows:
        row["perf/total_num_tokens"] *= 2
    return rows


def without_steps(rows: list[Row]) -> list[Row]:
    return rows[:24] + rows[29:]


def restarted(rows: list[Row]) -> list[Row]:
    return rows[:30] + rows[24:]


def infinite_norms(rows: list[Row]) -> list[Row]:
    for row in rows[10:14]:
        row["actor/grad_norm"] = "inf"
    return rows


def three_decimals(rows: list[Row]) -> list[Row]:
    for i, row in enumerate(rows):
        row["actor/grad_norm"] = f"{0.006 + 0.001 * (i % 3):.3f}"
    return rows


def rounded_rates(rows: list[Row]) -> list[Row]:
    for row in rows:
        row["actor/lr"] = "0.000"
    return rows


def slower(rows: list[Row]) -> list[Row]:
    for row in rows:
        scaled(row, 1 + 0.8 * row["step"] / STEPS)
    return rows


def cold(rows: list[Row]) -> list[Row]:
    scaled(rows[0], 3.5)
    return rows


def stalled(rows: list[Row]) -> list[Row]:
    scaled(rows[33], 9)
    return rows


def slow_save(rows: list[Row]) -> list[Row]:
    rows[39]["timing_s/save_checkpoint"] = 22_076.0
    return rows


def slow_evaluation(rows: list[Row]) -> list[Row]:
    rows[29]["timing_s/testing"] = 700.0
    return rows


FAULTS: dict[str, tuple[Callable[[list[Row]], list[Row]], float]] = {
    "phases": (unaccounted, 8.5 / 108),
    "tokens": (doubled_tokens, 1.0),
    "gaps": (without_steps, 5),
    "restarts": (restarted, 1),
    "finite_norms": (infinite_norms, 56 / 60),
    "rounded_norms": (three_decimals, 1.0),
    "rounded_rates": (rounded_rates, 1.0),
    "drift": (slower, 0.8 * 57 / 60 / 1.42),
    "cold_start": (cold, 3.5),
    "step_spikes": (stalled, 9),
    "checkpoint_spikes": (slow_save, 22_076 / 30),
    "evaluation_spikes": (slow_evaluation, 35),
}


def test_a_sound_log_has_no_warning(tmp_path: Path) -> None:
    ds = only(read_logs(written(tmp_path, clean_rows())))
    found = by_name(ds)
    assert {name for name, check in found.items() if check.outcome == "ok"} >= NAMES_CHECKED
    assert warned(ds) == set()
    for check in found.values():
        assert (check.outcome == "not checkable") == (check.value is None)
    assert [entry.quantity for entry in missing(ds)] == ["eval_samples"]


NAMES_CHECKED = set(NAMES) - {"tokens"}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found_by_exactly_its_check(name: str, tmp_path: Path) -> None:
    fault, value = FAULTS[name]
    ds = only(read_logs(written(tmp_path, fault(clean_rows()))))
    assert warned(ds) == {name}
    assert by_name(ds)[name].value == pytest.approx(value, rel=0.06)


def test_overlapping_phases_are_said_to_overlap(tmp_path: Path) -> None:
    ds = only(read_logs(written(tmp_path, overlapping(clean_rows()))))
    assert warned(ds) == {"phases"}
    assert by_name(ds)["phases"].message.endswith("phases overlap")


def test_falling_steps_or_responses_are_found_in_the_dataset(tmp_path: Path) -> None:
    """No reader lets them through, so they are seeded behind it."""
    ds = only(read_logs(written(tmp_path, clean_rows())))
    fallen = ds.copy(deep=True)
    fallen["responses"].values[30] = 0.0
    assert warned(fallen) == {"monotone"}
    assert by_name(fallen)["monotone"].value == 1


def test_tokens_are_compared_where_the_run_keeps_their_count(tmp_path: Path) -> None:
    ds = only(read_logs(written(tmp_path, clean_rows())))
    kept = check_tokens(ds.assign_attrs(inferred_rollout_batch=128.2))
    assert kept.outcome == "ok"
    assert kept.value == pytest.approx(0.2 / 128)
    assert check_tokens(ds.assign_attrs(inferred_rollout_batch=256.0)).outcome == "warning"
    bare = CONFIG.replace("data.train_batch_size=16 actor_rollout_ref.rollout.n=8 ", "")
    ds = only(read_logs(written(tmp_path, clean_rows(), bare), updates_per_rollout=1))
    assert check_tokens(ds).outcome == "not checkable"
    assert "itself inferred" in check_tokens(ds).message


def test_rates_that_start_or_end_at_zero_are_a_schedule() -> None:
    run = steps_of([100.0] * 10)
    schedule = run.assign(learning_rate=("rollout_step", [0.0, *[1e-6] * 8, 0.0]))
    assert check_rounded_rates(schedule).outcome == "ok"
    rounded = run.assign(learning_rate=("rollout_step", [1e-3, *[0.0] * 8, 0.0]))
    assert (check_rounded_rates(rounded).outcome, check_rounded_rates(rounded).value) == ("warning", 1)
    assert check_rounded_rates(rounded).message.endswith("give --learning-rate")
    assert check_rounded_rates(run).outcome == "not checkable"


# -- phases -------------------------------------------------------------------------------------------


def steps_of(seconds: list[float], *, step: list[int] | None = None) -> xr.Dataset:
    count = len(seconds)
    return xr.Dataset(
        {
            "step_seconds": ("rollout_step", seconds),
            "responses": ("rollout_step", np.arange(1.0, count + 1)),
            "steady": ("rollout_step", np.ones(count, dtype=bool)),
        },
        coords={"rollout_step": step or list(range(1, count + 1))},
    )


@given(slope=st.floats(-1, 1), start=st.floats(100, 1000), gap=st.integers(1, 500))
def test_an_exact_trend_is_recovered_over_gaps(slope: float, start: float, gap: int) -> None:
    step = [*range(1, 11), *range(10 + gap, 20 + gap)]
    (found,) = phases(steps_of([start + slope * s / gap for s in step], step=step))
    assert found.trend == pytest.approx(100 * slope / gap, rel=1e-6, abs=1e-6)
    assert found.trend_se == pytest.approx(0, abs=1e-6)


def test_a_standard_error_covers_a_trend_that_is_none() -> None:
    """Over white noise two standard errors are exceeded in about 5 % of the runs, over correlated noise not often."""
    rng = np.random.default_rng(0)
    exceeded = np.zeros(2)
    for _ in range(400):
        white = rng.normal(size=200)
        correlated = np.zeros(200)
        for i in range(1, 200):
            correlated[i] = 0.6 * correlated[i - 1] + white[i]
        for kind, noise in enumerate((white, correlated)):
            exceeded[kind] += phases(steps_of(list(100 + noise)))[0].has_trend
    assert exceeded[0] / 400 < 0.08
    # Without the correction about a third of these would show a trend.
    assert exceeded[1] / 400 < 0.1


def test_phases_of_few_steps() -> None:
    (one,) = phases(steps_of([100.0]))
    assert (one.mean, one.cv, one.trend) == (100.0, None, None)
    (four,) = phases(steps_of([1.0, 2.0, 3.0, 4.0]))
    assert four.trend is None
    assert four.cv == pytest.approx(np.std([1, 2, 3, 4], ddof=1) / 2.5)
    assert phases(steps_of([math.nan, math.nan])) == []


# -- the command line ---------------------------------------------------------------------------------

Cli = Callable[..., str]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    def run(*arguments: str | Path) -> str:
        with pytest.raises(SystemExit) as stop:
            main(["explain", *(str(a) for a in arguments)])
        assert stop.value.code == 0
        return capsys.readouterr().out

    return run


RUN_KEYS = [
    "run",
    "path",
    "framework",
    "recipe",
    "arithmetic",
    "phases",
    "held",
    "missing",
    "checks",
    "unused",
    "warnings",
]


def refuse(constant: str) -> None:
    raise AssertionError(constant)


def check_json(answer: dict[str, Any]) -> None:
    """Against the documented keys, without NaN, and equal after a round trip."""
    text = json.dumps(answer, allow_nan=False)
    assert json.loads(text, parse_constant=refuse) == answer
    assert list(answer) == ["schema", "verb", "runs", "warnings"]
    assert (answer["schema"], answer["verb"]) == (1, "explain")
    for run in answer["runs"]:
        assert list(run) == RUN_KEYS
        assert len(run["recipe"]) == 7
        for phase in run["phases"]:
            assert list(phase) == ["phase", "share", "mean", "cv", "trend", "trend_se"]
        assert all(list(entry) == ["quantity", "source"] for entry in run["held"])
        assert all(list(entry) == ["quantity", "remedy"] for entry in run["missing"])
        assert [check["name"] for check in run["checks"]] == NAMES
        for check in run["checks"]:
            assert list(check) == ["name", "outcome", "value", "bound", "message"]
            assert check["outcome"] in ("ok", "warning", "not checkable")


def test_json(cli: Cli, tmp_path: Path) -> None:
    answer = json.loads(cli(written(tmp_path, clean_rows()), "--json"), parse_constant=refuse)
    check_json(answer)
    (run,) = answer["runs"]
    assert run["recipe"] == {
        "prompts": 16,
        "group_size": 8,
        "rollout_batch": 128,
        "train_batch": 128,
        "updates_per_rollout": 1,
        "epochs": 1,
        "learning_rate": 1e-6,
    }
    assert run["framework"] == "verl"
    assert [phase["phase"] for phase in run["phases"]] == ["generation", "training", "logprob", "other", "step"]
    assert [phase["share"] for phase in run["phases"]] == pytest.approx([0.6, 0.3, 0.095, 0.005, 1])


def test_help_names_the_options(cli: Cli) -> None:
    out = cli("--help")
    for option in ("--prompts", "--group-size", "--step-seconds", "--chunks", "--config", "--column", "--json"):
        assert option in out


@pytest.mark.parametrize("columns", [80, 120])
def test_no_number_is_cut_on_a_terminal(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", cli(written(tmp_path, slower(clean_rows()))))
    assert "…" not in plain
    tables = [line for line in plain.splitlines() if line.startswith("  ") and " %" in line and "phases" not in line]
    assert len(tables) == 5
    assert all(len(line.rstrip()) <= columns for line in tables)
    for name in NAMES:
        assert re.search(rf"^ +{name} +(ok|warning|not checkable)\b", plain, re.M)
    assert re.search(r"^ +step +100.0 % +1\d\d\.?\d* .* \+1\d\d", plain, re.M)


def test_what_repeats_is_said_once(cli: Cli) -> None:
    out = cli("--example", "verl-sweep")
    assert out.count("train_batch = rollout_batch x E / M") == 6
    assert out.count("actor_rollout_ref.rollout.n = 8 responses per prompt (G)") == 6
    assert out.count("missing: as in p16_seed1") == 1
    assert "held:" in out
    assert "held: as in" in out


def test_options_supply_what_a_log_lacks(cli: Cli, tmp_path: Path) -> None:
    rows = clean_rows()
    for row in rows:
        del row["perf/total_num_tokens"]
    path = written(tmp_path, rows, config="")
    out = cli(path, "--prompts", "16", "--group-size", "8", "--learning-rate", "1e-6", "--updates-per-rollout", "1")
    assert "  option --prompts = 16 prompts (P)\n" in out
    assert "  option --group-size = 8 responses per prompt (G)\n" in out
    assert "  option --learning-rate = 1e-06 (learning rate)\n" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [([], "no logs given"), (["some.toml"], "some.toml is a plan, and explain reads logs"), (["nowhere"], "nowhere")],
)
def test_bad_input(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["explain", *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
