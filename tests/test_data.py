"""The measured tables that ship: sources on every row, and every number recomputed from ../shared/data."""

from __future__ import annotations

import csv
import gzip
import json
import math
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path

import make_verl_sweep
import pytest

MEASURED = Path(__file__).parents[1] / "batchsim" / "data" / "measured"
SHARED = Path(__file__).parents[2] / "shared" / "data"
TARGETS = (0.38, 0.45, 0.52)
NORM_TARGET = 0.45  # norms and noise scales use the updates up to the crossing of this target
MLPERF_SOURCE = (
    "mlcommons/training @ aa344c7f llm_post_training/rcp_logs (18 runs of qwen35_397b_grpo; here {name}), Apache-2.0"
)

Row = dict[str, str]


def read(path: Path) -> list[Row]:
    """Rows of a CSV, without comment lines in front of the header."""
    with path.open(newline="") as stream:
        return list(csv.DictReader(line for line in stream if not line.startswith("#")))


def text(value: object) -> str:
    """A value as the tables print it: six significant digits, nothing for an unknown."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def mean(values: Iterable[float]) -> float:
    values = list(values)
    return math.fsum(values) / len(values)


# -- the 18 MLPerf runs ---------------------------------------------------------------------------


def mlperf_row(path: Path) -> dict[str, object]:
    """Summary of one run from its `:::MLLOG` lines."""
    config: dict[str, float] = {}
    when: dict[str, int] = {}
    end: dict[str, int] = {}
    steps: dict[int, dict[str, float]] = {}
    score = math.nan
    for line in path.read_text().splitlines():
        if not line.startswith(":::MLLOG"):
            continue
        record = json.loads(line.removeprefix(":::MLLOG"))
        key, value, meta = record["key"], record["value"], record["metadata"]
        when.setdefault(key, record["time_ms"])
        if key == "tracked_stats" and "validation_time" not in value:
            steps.setdefault(meta["step"], {"samples": meta["samples_count"]}).update(value)
        elif key == "eval_accuracy":
            score = value
        elif key == "eval_start":
            end = {"responses": meta["samples_count"], "updates": meta["step"]}
        elif not isinstance(value, dict):
            config.setdefault(key, value)
    steady = [values for step, values in steps.items() if step >= 3]
    batch = int(config["global_batch_size"])
    return {
        "run": path.stem,
        "train_batch": batch,
        "prompts": int(config["num_prompts_per_step"]),
        "group_size": int(config["num_generations_per_prompt"]),
        "learning_rate": config["opt_base_learning_rate"],
        "seed": int(path.stem.rpartition("seed")[2]),
        "updates": end["updates"],
        "evaluation_responses": end["responses"],
        "evaluation_wall": (when["eval_start"] - when["run_start"]) / 1000.0,
        "evaluation_seconds": (when["eval_stop"] - when["eval_start"]) / 1000.0,
        "score": score,
        "target": config["target_accuracy"],
        "step_seconds": mean(values["train_step_time"] for values in steady),
        "training_seconds": mean(values["policy_training_time"] for values in steady),
        "exposed_generation_seconds": mean(values["exposed_generation_time"] for values in steady),
        "grad_norm": statistics.median(values["grad_norm"] for values in steady),
        "grad_norm_1500_4608": statistics.median(
            values["grad_norm"] for values in steps.values() if 1500 <= values["samples"] <= 4608
        ),
        "kept_share": mean(values["global_valid_seqs"] / batch for values in steps.values()),
        "source": MLPERF_SOURCE.format(name=path.name),
    }


def mlperf_rows() -> list[dict[str, object]]:
    rows = [mlperf_row(path) for path in (SHARED / "mlperf_grpo").glob("*.out")]
    return sorted(rows, key=lambda row: (row["train_batch"], row["seed"]))


# -- the sweeps of a small transformer ------------------------------------------------------------


def crossing(evaluations: list[tuple[int, float]], target: float) -> tuple[int, int | None]:
    """Responses of the last evaluation before, and of the first at or above, the target."""
    low = 0
    for responses, score in evaluations:
        if score >= target:
            return low, responses
        low = responses
    return low, None


def noise(prefix: str, batch: int, chunk: list[float], whole: list[float]) -> dict[str, object]:
    """Rms norm and noise scale from pairs of the batch and its eighths, averaged before dividing."""
    small, large, size = mean(chunk), mean(whole), batch / 8
    signal = (batch * large - size * small) / (batch - size)
    trace = (small - large) / (1.0 / size - 1.0 / batch)
    return {
        f"{prefix}grad_norm": math.sqrt(large),
        f"{prefix}sq_norm_chunk": small,
        f"{prefix}signal_square": signal,
        f"{prefix}noise_trace": trace,
        f"{prefix}noise_scale": trace / signal if signal > 0 else None,
    }


def tiny_rows(kind: str) -> list[dict[str, object]]:
    """Per-run summary of tiny_grpo or tiny_ppo."""
    folder = SHARED / kind
    grpo = kind == "tiny_grpo"
    count = "responses_kept" if grpo else "responses"
    runs, updates, evaluations = (read(folder / f"{name}.csv") for name in ("runs", "updates", "evals"))
    rows = []
    for run in runs:
        name, batch = run["run"], int(run["train_batch"])
        scores = [(int(e[count]), float(e["score"])) for e in evaluations if e["run"] == name]
        mine = [u for u in updates if u["run"] == name]
        responses = int(mine[-1][count])
        end = crossing(scores, NORM_TARGET)[1] or responses
        window = [u for u in mine if int(u[count]) <= end]
        seconds = math.fsum(float(u["gen_seconds"]) + float(u["train_seconds"]) for u in mine)
        row: dict[str, object] = {
            "run": name,
            "prompts": int(run["prompts"]) if grpo else batch,
            "group_size": int(run["group_size"]) if grpo else 1,
            "train_batch": batch,
            "learning_rate": run["learning_rate"],
        }
        if not grpo:
            row["critic_learning_rate"] = run["critic_learning_rate"]
        row |= {"lr_rule": run["lr_rule"], "seed": int(run["seed"]), "updates": len(mine), "responses": responses}
        for target in TARGETS:
            low, high = crossing(scores, target)
            row[f"responses_to_target_{target}_low"] = low
            row[f"responses_to_target_{target}_high"] = high
        row["throughput"] = responses / seconds
        if grpo:
            row["kept_share"] = responses / int(mine[-1]["responses_generated"])
        for prefix, column in (("", ""),) if grpo else (("", "actor_"), ("critic_", "critic_")):
            row |= noise(
                prefix,
                batch,
                [float(u[f"{column}sq_norm_chunk_mean"]) for u in window],
                [float(u[f"{column}sq_norm_batch"]) for u in window],
            )
        row["source"] = f"measured for batchsim: {kind}/train.py"
        rows.append(row)
    return sorted(rows, key=lambda r: (str(r["lr_rule"]) != "sqrt", r["train_batch"], r["run"]))


TABLES: dict[str, tuple[str, Callable[[], list[dict[str, object]]]]] = {
    "mlperf_grpo_runs.csv": ("mlperf_grpo", mlperf_rows),
    "tiny_grpo_runs.csv": ("tiny_grpo", lambda: tiny_rows("tiny_grpo")),
    "tiny_ppo_runs.csv": ("tiny_ppo", lambda: tiny_rows("tiny_ppo")),
}


def published(name: str) -> list[Row]:
    path = SHARED / "published" / name
    if not path.exists():
        pytest.skip(f"{path} is absent: the project ships only the table derived from it")
    return read(path)


# -- tests ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(MEASURED.glob("*.csv")), ids=lambda path: path.name)
def test_every_row_has_a_source(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert not lines[0].startswith("#")
    with path.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert rows
    for row in rows:
        assert None not in row, f"too many cells in {row}"
        assert None not in row.values(), f"too few cells in {row}"
        assert row["source"].strip()


@pytest.mark.parametrize("name", TABLES)
def test_summary_recomputed_from_the_runs(name: str) -> None:
    folder, rows = TABLES[name]
    if not (SHARED / folder).is_dir():
        pytest.skip(f"{SHARED / folder} is absent: the project ships only the summary of these runs")
    assert read(MEASURED / name) == [{key: text(value) for key, value in row.items()} for row in rows()]


def test_mlperf_summary_gives_the_known_batch_means() -> None:
    rows = read(MEASURED / "mlperf_grpo_runs.csv")
    assert len(rows) == 18
    wall, throughput, step, norm = {}, {}, {}, {}
    for batch in (256, 512, 1024):
        mine = [row for row in rows if row["train_batch"] == str(batch)]
        assert [row["seed"] for row in mine] == list("123456")
        assert all(float(row["score"]) >= float(row["target"]) for row in mine)
        wall[batch] = mean(float(row["evaluation_wall"]) for row in mine)
        throughput[batch] = mean(float(row["evaluation_responses"]) / float(row["evaluation_wall"]) for row in mine)
        step[batch] = mean(float(row["step_seconds"]) for row in mine)
        norm[batch] = mean(float(row["grad_norm"]) for row in mine)
    assert {row["evaluation_responses"] for row in rows} == {"4608", "5120", "7168"}
    assert [round(wall[b]) for b in wall] == [8589, 7312, 7852]
    assert [round(throughput[b] / throughput[256], 3) for b in throughput] == [1.0, 1.305, 1.702]
    assert norm[256] > norm[512] > norm[1024]


def test_li2026_grpo_retyped_from_the_published_table() -> None:
    theirs = published("li2026_grpo_time_to_target.csv")
    ours = read(MEASURED / "li2026_grpo.csv")
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert (a["prompts"], a["group_size"], a["lr_rule"]) == (b["prompts"], b["group_size"], b["learning_rate_rule"])
        for ratio, column in (
            ("time_ratio", "time_to_target_ratio"),
            ("sample_cost_ratio", "sample_cost_ratio"),
            ("throughput_ratio", "throughput_ratio"),
        ):
            assert (a[ratio] == "") == (b[column] == "")
            assert a[ratio] == "" or float(a[ratio]) == float(b[column])
        hours = b["time_to_target_hours"]
        assert a["time_to_target"] == (text(round(float(hours) * 3600)) if hours else "")


def test_li2026_grpo_is_consistent_with_the_criterion() -> None:
    for row in read(MEASURED / "li2026_grpo.csv"):
        if row["throughput_ratio"]:
            predicted = float(row["sample_cost_ratio"]) / float(row["throughput_ratio"])
            assert float(row["time_ratio"]) == pytest.approx(predicted, abs=0.006)


def test_li2026_facts_and_ppo_hold_every_published_number_once() -> None:
    theirs = published("li2026_other_numbers.csv")
    facts = {(r["figure"], r["quantity"], r["setting"]): r for r in read(MEASURED / "li2026_facts.csv")}
    ppo = {r["train_batch"]: r for r in read(MEASURED / "li2026_ppo.csv")}
    figures = {"text": "text", "example": "example"} | {f"fig{n}": f"Figure {n}" for n in range(1, 11)}
    for row in theirs:
        key = (figures[row["figure"]], row["quantity"], row["setting"])
        if row["quantity"] == "collection_time":
            assert key not in facts
            assert float(ppo[row["setting"].removeprefix("PPO B=")]["gen_time"]) == float(row["value"])
        elif row["figure"] == "fig4":
            assert key not in facts
            assert ppo[row["value"]]["aligned"] == ("0" if row["quantity"] == "departing_batch" else "1")
        elif row["quantity"] == "departing_prompts":
            assert facts[(key[0], key[1], f"{row['setting']}, {row['value']}")]["value"] == row["value"]
        else:
            ours = facts[key]
            scale = 0.01 if row["unit"] == "percent" else 1.0
            assert float(ours["value"]) == pytest.approx(float(row["value"]) * scale, rel=1e-12)


def test_verl_sweep_is_what_its_generator_writes() -> None:
    folder = make_verl_sweep.FOLDER
    assert sum(path.stat().st_size for path in folder.iterdir()) < 250_000
    # the text is compared: another zlib may compress the same text to other bytes
    shipped = {path.name.removesuffix(".gz"): gzip.decompress(path.read_bytes()).decode() for path in folder.iterdir()}
    assert shipped == make_verl_sweep.sweep()
    for log in shipped.values():
        assert log.startswith("# SYNTHETIC: made by batchsim")
        assert log.splitlines()[1].startswith("python3 -m verl.trainer.main_ppo data.train_batch_size=")


def test_verl_sweep_law() -> None:
    assert make_verl_sweep.score(0, 128) == pytest.approx(0.30)
    assert make_verl_sweep.score(46080, 128) == pytest.approx(make_verl_sweep.TARGET)
    assert make_verl_sweep.sample_cost_ratio(512) == pytest.approx(1.1117, abs=1e-4)
    assert make_verl_sweep.step_seconds(128) == pytest.approx(75.36)
    parts = [sum(p) for p in zip(*make_verl_sweep.PHASES.values(), strict=True)]
    assert parts == pytest.approx([59.0, 0.119])
