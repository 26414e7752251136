"""What happened: N*, q, T, r_N, r_q and verdicts, on real runs and on runs whose N* and q are known."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchsim.criterion import verdict
from batchsim.errors import InputError
from batchsim.logs import read_logs
from batchsim.measure import measure
from batchsim.variables import VARIABLES

# -- runs whose answer is known ---------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Invented:
    """A run whose score rises along a line that meets the target .5 at exactly `responses_to_target`."""

    run: str
    prompts: int
    responses_to_target: float
    step_seconds: float | None = 10.0
    group_size: int = 8
    learning_rate: float | None = 1e-6
    steps: int = 40
    evaluate_every: int = 1
    first_evaluation: int = 0
    start: float = 0.2
    grad_norm: Sequence[float] | None = None
    sq_norms: tuple[float, float] | None = None
    norm_scatter: float = 0.05
    train_reward: float | None = None
    second_score: bool = False
    evaluated: bool = True

    @property
    def rollout_batch(self) -> int:
        return self.prompts * self.group_size

    def score(self, responses: float) -> float:
        return self.start + (0.5 - self.start) * responses / self.responses_to_target

    def rows(self) -> list[dict[str, Any]]:
        common = {
            "run": self.run,
            "prompts": self.prompts,
            "group_size": self.group_size,
            "learning_rate": self.learning_rate,
        }
        rows: list[dict[str, Any]] = []
        rng = np.random.default_rng(list(self.run.encode()))
        for step in range(self.steps + 1):
            n = step * self.rollout_batch
            row: dict[str, Any] = {**common, "rollout_step": step, "responses": n}
            if step:
                row |= {"step_seconds": self.step_seconds, "train_reward": self.train_reward}
                if self.grad_norm is not None:
                    row["grad_norm"] = self.grad_norm[step - 1]
                if self.sq_norms is not None:
                    scattered = np.array(self.sq_norms) * np.exp(self.norm_scatter * rng.standard_normal(2))
                    row["sq_norm_chunk"], row["sq_norm_batch"] = scattered.tolist()
            if self.evaluated and step >= self.first_evaluation and step % self.evaluate_every == 0:
                row["score"] = repr(self.score(n))
                if self.second_score:
                    row["score/other"] = repr(1 - self.score(n))
            elif not step:
                continue
            rows.append(row)
        return rows


def write_runs(folder: Path, *runs: Invented) -> Path:
    """One CSV table per run, as batchsim documents it."""
    folder.mkdir(exist_ok=True)
    for run in runs:
        rows = run.rows()
        names = list(dict.fromkeys(name for row in rows for name, value in row.items() if value is not None))
        with (folder / f"{run.run}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, names, extrasaction="ignore", restval="")
            writer.writeheader()
            writer.writerows(rows)
    return folder


def invented(folder: Path, *runs: Invented) -> xr.DataTree:
    return read_logs(write_runs(folder, *runs))


def arms_of(measured: xr.DataTree) -> xr.Dataset:
    return measured["arms"].to_dataset()


def runs_of(measured: xr.DataTree) -> xr.Dataset:
    return measured["runs"].to_dataset()


def said(measured: xr.DataTree) -> str:
    return "\n".join(measured.attrs["warnings"])


def estimate(arms: xr.Dataset, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.asarray(arms[name].sel(bound="estimate").values, dtype=np.float64)


def sweep(
    *,
    cost: Sequence[float] = (1.0, 1.1, 1.6),
    seconds: Sequence[float] = (10.0, 14.0, 22.0),
    scatter: float = 0.02,
    seeds: int = 3,
    **changes: Any,
) -> list[Invented]:
    """Arms at P = 16, 32, 64 with N* = 4000 `cost` and the given step times, repeats spread symmetrically in log."""
    offsets = np.linspace(-1, 1, seeds) if seeds > 1 else np.zeros(1)
    return [
        replace(
            Invented(
                run=f"p{16 * 2**i}_s{j}",
                prompts=16 * 2**i,
                responses_to_target=4000 * r * math.exp(scatter * offset),
                step_seconds=seconds[i] * math.exp(scatter * offset),
                learning_rate=1e-6 * 2 ** (i / 2),
            ),
            **changes,
        )
        for i, r in enumerate(cost)
        for j, offset in enumerate(offsets)
    ]


# -- MLPerf: 18 real runs that stop at their first evaluation ---------------------------------------


@pytest.fixture(scope="module")
def mlperf(shared: Path) -> xr.DataTree:
    return measure(read_logs(shared / "mlperf_grpo"))


def test_mlperf_upper_bounds_of_responses_to_target(mlperf: xr.DataTree) -> None:
    arms, runs = arms_of(mlperf), runs_of(mlperf)
    assert arms["train_batch"].values.tolist() == [256, 512, 1024]
    assert arms["runs"].values.tolist() == [6, 6, 6]
    assert arms["responses_to_target"].sel(bound="high").values.tolist() == [4608, 5120, 7168]
    assert arms["responses_to_target"].sel(bound="low").values.tolist() == [0, 0, 0]
    assert set(runs["censoring"].values.tolist()) == {"left"}
    bound = {256: 4608, 512: 5120, 1024: 7168}
    for b, n in zip(runs["train_batch"].values, runs["responses_to_target"].values, strict=True):
        assert n[0] == 0
        assert n[2] == bound[int(b)]


def test_mlperf_times_are_to_the_first_evaluation(mlperf: xr.DataTree) -> None:
    arms = arms_of(mlperf)
    assert arms["first_evaluation_time"].values == pytest.approx([8589, 7312, 7852], abs=1)
    assert arms["first_evaluation_time_ratio"].values == pytest.approx([1, 0.851, 0.914], abs=5e-4)
    assert arms["first_evaluation_responses"].values.tolist() == [4608, 5120, 7168]
    assert "not to the target" in arms["first_evaluation_time"].attrs["long_name"]
    assert "times are to the first scheduled evaluation" in said(mlperf)


def test_mlperf_throughput(mlperf: xr.DataTree, shared: Path) -> None:
    arms, runs = arms_of(mlperf), runs_of(mlperf)
    assert arms["throughput_ratio"].values == pytest.approx([1, 1.305, 1.702], abs=5e-4)
    assert arms["step_seconds"].values == pytest.approx([425.9, 618.8, 968.7], abs=0.1)
    assert arms["kept_share"].values == pytest.approx([0.98, 0.98, 0.98], abs=0.002)
    # The mean over runs of each run's own quotient, with the standard error of a ratio of two such means.
    by_arm = [runs["throughput"].values[runs["train_batch"].values == b] for b in (256, 512, 1024)]
    mean = np.array([q.mean() for q in by_arm])
    assert arms["throughput"].values == pytest.approx(mean)
    relative = [float(np.std(np.log(q), ddof=1) / math.sqrt(q.size)) for q in by_arm]
    for i in (1, 2):
        at_least = mean[i] / mean[0] * math.hypot(relative[i], relative[0])
        assert at_least <= arms["throughput_ratio_se"].values[i] * (1 + 1e-9)
        assert arms["throughput_ratio_se"].values[i] < 3 * at_least
    assert (arms["throughput_with_evaluation"] < arms["throughput"]).all()


def test_mlperf_has_no_verdict_and_says_why(mlperf: xr.DataTree) -> None:
    arms = arms_of(mlperf)
    assert set(arms["verdict"].values.tolist()) == {""}
    assert np.isnan(arms["p_wins"].values).all()
    assert np.isnan(estimate(arms, "sample_cost_ratio")[1:]).all()
    larger = arms["sample_cost_ratio"].isel(arm=slice(1, None))
    assert (larger.sel(bound="low").values == 0).all()
    assert np.isposinf(larger.sel(bound="high").values).all()
    assert "r_N is not bounded and no verdict follows" in said(mlperf)
    assert "upper bounds only" in said(mlperf)


def test_mlperf_recipe_follows_the_sqrt_rule(mlperf: xr.DataTree) -> None:
    arms = arms_of(mlperf)
    assert arms["lr_rule"].values.tolist() == ["reference", "sqrt", "sqrt"]
    assert arms["prompts"].values.tolist() == [16, 32, 64]
    assert mlperf.attrs["target"] == 0.69
    assert mlperf.attrs["metric"] == "eval_accuracy"


def test_mlperf_norms_disagree_between_windows(mlperf: xr.DataTree) -> None:
    whole, window = mlperf.attrs["noise_scales"]
    assert whole["window"] == "whole runs"
    assert whole["exponent"] == pytest.approx(-0.50, abs=0.005)
    assert whole["high"] is None
    assert not whole["identified"]
    assert whole["low"] > 1024
    assert "responses" in window["window"]
    assert -0.44 <= window["exponent"] <= -0.41
    assert window["identified"]
    assert 700 < window["low"] < window["noise_scale"] < window["high"] < 20_000
    assert "the noise-scale estimates disagree" in said(mlperf)
    assert f"at least {window['low']:,.0f} responses" in said(mlperf)


def test_mlperf_medians_of_the_norms_are_the_published_ones(shared: Path) -> None:
    tree = read_logs(shared / "mlperf_grpo")
    norms: dict[int, list[float]] = {}
    for node in tree.children.values():
        # The first two updates are warm-up.
        norms.setdefault(node.attrs["train_batch"], []).extend(node.to_dataset()["grad_norm"].values[2:].tolist())
    medians = [float(np.nanmedian(norms[b])) for b in (256, 512, 1024)]
    assert medians == pytest.approx([0.0753, 0.0519, 0.0376], rel=2e-3)


# -- tiny_grpo: our own measured sweep --------------------------------------------------------------

BATCHES = (64, 128, 256, 512, 1024, 2048, 4096)
GRID = 2048
NOTES = {
    0.38: (19.3e3, (1.0, 1.07, 1.06, 1.17, 1.41, 1.93, 3.02)),
    0.45: (34.7e3, (1.0, 1.07, 1.14, 1.18, 1.41, 1.78, 2.65)),
    0.52: (52.0e3, (1.0, 1.01, 1.07, 1.16, 1.34, 1.64, 2.43)),
}
"""N* at P = 8 and r_N under the sqrt rule, theory notes section B."""


@pytest.fixture(scope="module")
def tiny(shared: Path) -> xr.DataTree:
    return read_logs(shared / "tiny_grpo", chunks=8)


@pytest.fixture(scope="module")
def tiny_measured(tiny: xr.DataTree) -> xr.DataTree:
    return measure(tiny, target=0.45)


def sqrt_arms(arms: xr.Dataset) -> xr.Dataset:
    rule = np.isin(arms["lr_rule"].values, ["reference", "sqrt"])
    return arms.isel(arm=np.flatnonzero(rule & (arms["group_size"].values == 8)))


@pytest.mark.parametrize("target", NOTES)
def test_tiny_sample_costs_agree_with_the_notes_within_the_evaluation_grid(tiny: xr.DataTree, target: float) -> None:
    n0, ratios = NOTES[target]
    arms = sqrt_arms(arms_of(measure(tiny, target=target)))
    assert arms["train_batch"].values.tolist() == list(BATCHES)
    n = estimate(arms, "responses_to_target")
    assert np.abs(n - n0 * np.array(ratios)).max() <= GRID
    # r_N of two numbers that are each known to a grid cell.
    r = estimate(arms, "sample_cost_ratio")
    assert np.abs(r - np.array(ratios)).max() <= GRID / n0 * (1 + max(ratios))
    assert r == pytest.approx(n / n[0], rel=0.02)


def test_tiny_arms_are_batch_group_and_rate(tiny_measured: xr.DataTree) -> None:
    arms = arms_of(tiny_measured)
    assert int(arms["runs"].sum()) == 45
    at_512 = arms.isel(arm=np.flatnonzero(arms["train_batch"].values == 512))
    pairs = list(zip(at_512["prompts"].values, at_512["group_size"].values, strict=True))
    assert sorted(pairs) == [(16, 32), (32, 16), (64, 8), (64, 8), (128, 4)]
    # The notes: at equal P G and rate, N*(.45) = 33.8k, 40.9k, 57.5k, 83.9k for G = 4, 8, 16, 32.
    for group, expected in {4: 33.8e3, 8: 40.9e3, 16: 57.5e3, 32: 83.9e3}.items():
        chosen = (at_512["group_size"].values == group) & (at_512["lr_rule"].values == "sqrt")
        assert estimate(at_512, "responses_to_target")[chosen] == pytest.approx([expected], abs=GRID)


def test_tiny_rules_and_probes_are_told_apart(tiny_measured: xr.DataTree) -> None:
    arms = arms_of(tiny_measured)
    fixed = arms.isel(arm=np.flatnonzero(arms["lr_rule"].values == "fixed"))
    assert fixed["train_batch"].values.tolist() == [128, 256, 512]
    assert fixed["learning_rate"].values == pytest.approx([1e-4] * 3)
    # S/S_0 under the fixed rate at 2, 4, 8 times the batch, from the notes.
    updates_ratio = estimate(fixed, "sample_cost_ratio") / np.array([2, 4, 8])
    assert updates_ratio == pytest.approx([0.66, 0.46, 0.32], abs=0.04)
    probes = arms.isel(arm=np.flatnonzero(arms["lr_rule"].values == "probe"))
    assert probes["train_batch"].values.tolist() == [64, 64, 64]
    assert estimate(probes, "responses_to_target") == pytest.approx([26.4e3, 27.6e3, 46.6e3], abs=GRID)
    assert "4 arms share the smallest batch 64" in said(tiny_measured)
    assert arms["learning_rate"].values[arms.attrs["reference"]] == pytest.approx(1e-4)


def test_tiny_verdicts_per_batch_and_rule(tiny_measured: xr.DataTree) -> None:
    arms = arms_of(tiny_measured)
    of = {
        (int(b), int(g), str(r)): str(v)
        for b, g, r, v in zip(
            arms["train_batch"].values,
            arms["group_size"].values,
            arms["lr_rule"].values,
            arms["verdict"].values,
            strict=True,
        )
        if r != "probe"
    }
    assert of[64, 8, "reference"] == ""
    assert [of[b, 8, "sqrt"] for b in (256, 512, 1024)] == ["wins"] * 3
    assert of[4096, 8, "sqrt"] == "loses"
    assert of[512, 8, "fixed"] == "loses"
    assert of[512, 4, "sqrt"] == "wins"
    assert of[512, 32, "sqrt"] == "loses"
    for p, v in zip(arms["p_wins"].values, arms["verdict"].values, strict=True):
        assert (verdict(float(p)) or "") == v


def test_tiny_noise_scale_comes_from_chunks_and_from_norms(tiny_measured: xr.DataTree) -> None:
    chunked, whole, window = tiny_measured.attrs["noise_scales"]
    assert chunked["method"] == "chunk norms"
    # The notes: 1.0-1.4k for P = 16 .. 256 and .5-.8k at P = 512.
    assert 700 < chunked["low"] < chunked["high"] < 1400
    assert whole["method"] == window["method"] == "logged norms"
    assert whole["identified"]
    assert window["identified"]


# -- invented runs: N* and q are known --------------------------------------------------------------


def test_interval_holds_the_true_crossing_and_q_is_exact(tmp_path: Path) -> None:
    runs = sweep(scatter=0.0, evaluate_every=3)
    measured = runs_of(measure(invented(tmp_path, *runs), target=0.5))
    for run in runs:
        row = measured.sel(run=run.run)
        low, middle, high = row["responses_to_target"].values
        assert str(row["censoring"].values) == "interval"
        assert low < run.responses_to_target <= high
        assert high - low == 3 * run.rollout_batch
        assert middle == (low + high) / 2
        assert run.step_seconds is not None
        assert float(row["throughput"]) == pytest.approx(run.rollout_batch / run.step_seconds)
        assert row["time_to_target"].values[2] == pytest.approx(high / float(row["throughput"]))
        assert row["time_to_target"].values[0] == pytest.approx(low / float(row["throughput"]))


def test_ratios_are_the_known_ones(tmp_path: Path) -> None:
    arms = arms_of(measure(invented(tmp_path, *sweep(scatter=0.0)), target=0.5))
    cost, seconds = np.array([1.0, 1.1, 1.6]), np.array([10.0, 14.0, 22.0])
    assert arms["throughput_ratio"].values == pytest.approx(np.array([1, 2, 4]) * 10 / seconds)
    half_cell = np.array([128, 256, 512]) / 2
    assert estimate(arms, "sample_cost_ratio") == pytest.approx(cost, abs=(half_cell / 4000).sum())
    assert (arms["sample_cost_ratio"].sel(bound="low").values <= cost).all()
    assert (arms["sample_cost_ratio"].sel(bound="high").values >= cost).all()
    assert arms["lr_rule"].values.tolist() == ["reference", "sqrt", "sqrt"]


def test_left_and_right_censored_runs(tmp_path: Path) -> None:
    late = Invented(run="late", prompts=16, responses_to_target=2000, first_evaluation=30)
    short = Invented(run="short", prompts=32, responses_to_target=1e5)
    measured = measure(invented(tmp_path, late, short), target=0.5)
    runs = runs_of(measured)
    assert runs.sel(run="late")["responses_to_target"].values[[0, 2]].tolist() == [0, 30 * 128]
    assert str(runs.sel(run="late")["censoring"].values) == "left"
    low, middle, high = runs.sel(run="short")["responses_to_target"].values
    assert (low, high) == (40 * 256, np.inf)
    assert np.isnan(middle)
    assert str(runs.sel(run="short")["censoring"].values) == "right"
    best = short.score(40 * 256)
    assert f"never reaches 0.5 (best {best:.4g} at {40 * 256} responses)" in said(measured)
    assert "short.csv" in said(measured)
    # N*_0 <= 3840 and N* >= 10240: the bound alone shows that r_N is at least 2.67.
    arm = arms_of(measured).isel(arm=1)
    assert float(arm["sample_cost_ratio"].sel(bound="low")) == pytest.approx(10240 / 3840)
    assert np.isposinf(float(arm["sample_cost_ratio"].sel(bound="high")))


def test_an_arm_of_mixed_censoring_has_a_one_sided_interval(tmp_path: Path) -> None:
    base = Invented(run="a", prompts=16, responses_to_target=3000)
    runs = [
        base,
        replace(base, run="b", responses_to_target=3060),
        replace(base, run="c", prompts=32, first_evaluation=15),
        replace(base, run="d", prompts=32),
    ]
    measured = measure(invented(tmp_path, *runs), target=0.5)
    arm = arms_of(measured).isel(arm=1)
    low, middle, high = arm["responses_to_target"].values
    # One run in (2816, 3072] and one in [0, 3840]: the mean of the bounds.
    assert (low, high) == ((0 + 2816) / 2, (3840 + 3072) / 2)
    assert np.isnan(middle)
    r_low, r_middle, r_high = arm["sample_cost_ratio"].values
    assert r_low == 0
    assert np.isnan(r_middle)
    assert 1 < r_high < 1.4
    assert "bound N* from above only" in said(measured)


@pytest.mark.parametrize(
    ("cost", "first", "expected"),
    [(1.0, 20, "wins"), (2.2, 36, "")],
    ids=["the upper bound decides", "the upper bound does not decide"],
)
def test_a_one_sided_interval_has_a_verdict_only_where_its_bound_decides(
    tmp_path: Path, cost: float, first: int, expected: str
) -> None:
    small = [
        Invented(run=f"a{j}", prompts=16, responses_to_target=4000 * s, step_seconds=10 * s)
        for j, s in enumerate((1, 1.02))
    ]
    # At twice the batch and the same step time r_q = 2; N* is at most `first` steps of 256 responses.
    large = [
        replace(r, run=f"b{j}", prompts=32, responses_to_target=4000 * cost, first_evaluation=first, steps=64)
        for j, r in enumerate(small)
    ]
    repeats = [replace(r, run=f"c{j}", prompts=64, responses_to_target=5000) for j, r in enumerate(small)]
    arms = arms_of(measure(invented(tmp_path, *small, *large, *repeats), target=0.5))
    assert arms["train_batch"].values.tolist() == [128, 256, 512]
    assert float(arms["responses_to_target"].sel(bound="high")[1]) == first * 256
    assert (first * 256 / 4000 < 2) == (expected == "wins")
    assert str(arms["verdict"].values[1]) == expected


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cost=st.floats(0.5, 4),
    speed=st.floats(0.5, 4),
    every=st.integers(1, 4),
)
def test_larger_batch_is_faster_exactly_when_its_throughput_gain_exceeds_its_cost(
    tmp_path_factory: pytest.TempPathFactory, cost: float, speed: float, every: int
) -> None:
    small = Invented(run="small", prompts=8, group_size=1, responses_to_target=200, steps=30, evaluate_every=every)
    large = replace(
        small,
        run="large",
        prompts=16,
        responses_to_target=200 * cost,
        step_seconds=10.0 * 2 / speed,
        steps=56,
    )
    arms = arms_of(measure(invented(tmp_path_factory.mktemp("pair"), small, large), target=0.5))
    r_n, r_q = float(estimate(arms, "sample_cost_ratio")[1]), float(arms["throughput_ratio"][1])
    assert r_q == pytest.approx(speed)
    ratio = estimate(arms, "time_ratio")[1]
    assert ratio == pytest.approx(r_n / r_q)
    assert (r_q > r_n) == (ratio < 1)
    # And the ratio of the two measured times themselves.
    times = estimate(arms, "time_to_target")
    assert times[1] / times[0] == pytest.approx(ratio)


def test_verdicts_follow_the_known_criterion(tmp_path: Path) -> None:
    # r_q = 1.43 and 1.82 against r_N = 1.1 and 2.6.
    arms = arms_of(measure(invented(tmp_path, *sweep(cost=(1.0, 1.1, 2.6))), target=0.5))
    assert arms["verdict"].values.tolist() == ["", "wins", "loses"]
    assert arms["p_wins"].values[1] > 0.99
    assert arms["p_wins"].values[2] < 0.01


def test_one_run_per_arm_is_undecided_and_said(tmp_path: Path) -> None:
    measured = measure(invented(tmp_path, *sweep(seeds=1)), target=0.5)
    arms = arms_of(measured)
    assert arms["verdict"].values.tolist() == ["", "undecided", "undecided"]
    assert np.isnan(arms["p_wins"].values).all()
    assert "one run per arm: the spread over runs is unknown" in said(measured)
    assert np.isnan(arms["throughput_ratio_se"].values[1:]).all()
    assert np.isfinite(estimate(arms, "time_ratio")).all()


def test_a_single_batch_names_the_next_run(tmp_path: Path) -> None:
    measured = measure(invented(tmp_path, Invented(run="only", prompts=16, responses_to_target=3000)), target=0.5)
    arms = arms_of(measured)
    assert arms.sizes["arm"] == 1
    assert arms["throughput"].values == pytest.approx([12.8])
    assert arms["responses_to_target"].values[0, [0, 2]].tolist() == [2944, 3072]
    assert "one batch (128 responses)" in said(measured)
    assert "256 responses per update" in said(measured)


def test_training_reward_is_never_a_score(tmp_path: Path) -> None:
    runs = [replace(r, evaluated=False, train_reward=0.9) for r in sweep()]
    measured = measure(invented(tmp_path, *runs), target=0.5)
    arms = arms_of(measured)
    assert measured.attrs["metric"] is None
    assert measured.attrs["metrics"] == []
    assert np.isnan(arms["responses_to_target"].values).all()
    assert np.isnan(arms["sample_cost_ratio"].values).all()
    assert set(arms["verdict"].values.tolist()) == {""}
    assert np.isfinite(arms["throughput"].values).all()
    assert "training reward is not one" in said(measured)


def test_a_score_named_like_a_reward_cannot_be_chosen(tmp_path: Path) -> None:
    runs = [replace(r, evaluated=False, train_reward=0.9) for r in sweep()]
    with pytest.raises(InputError, match="no log holds the score 'train_reward'"):
        measure(invented(tmp_path, *runs), target=0.5, metric="train_reward")


def test_without_timing_q_is_unknown_and_step_seconds_supplies_it(tmp_path: Path) -> None:
    folder = write_runs(tmp_path / "untimed", *(replace(r, step_seconds=None, train_reward=0.3) for r in sweep()))
    measured = measure(read_logs(folder), target=0.5)
    arms = arms_of(measured)
    assert np.isnan(arms["throughput"].values).all()
    assert np.isnan(arms["throughput_ratio"].values[1:]).all()
    assert np.isfinite(estimate(arms, "sample_cost_ratio")).all()
    assert set(arms["verdict"].values.tolist()) == {""}
    assert "no timing in the logs" in said(measured)
    assert "--step-seconds" in said(measured)
    assert "one run per arm" not in said(measured)
    supplied = arms_of(measure(read_logs(folder, step_seconds=16.0), target=0.5))
    assert supplied["throughput"].values == pytest.approx([8, 16, 32])


def test_step_seconds_time_a_table_of_evaluations_alone(tmp_path: Path) -> None:
    folder = write_runs(tmp_path / "scores", *(replace(r, step_seconds=None) for r in sweep()))
    arms = arms_of(measure(read_logs(folder, step_seconds=16.0), target=0.5))
    assert arms["throughput"].values == pytest.approx([8, 16, 32])


def test_several_scores_must_be_chosen_from(tmp_path: Path) -> None:
    tree = invented(tmp_path, *(replace(r, second_score=True) for r in sweep()))
    with pytest.raises(InputError, match=r"2 scores: score, score/other; choose one with --metric"):
        measure(tree, target=0.5)
    without = measure(tree)
    assert without.attrs["metrics"] == ["score", "score/other"]
    assert without.attrs["metric"] is None
    assert "choose one with --metric" in said(without)
    chosen = measure(tree, target=0.5, metric="score")
    assert chosen.attrs["metric"] == "score"
    assert np.isfinite(estimate(arms_of(chosen), "responses_to_target")).all()
    # 'other' falls from .8: it is above .5 from the start.
    other = measure(tree, target=0.5, metric="score/other")
    assert set(runs_of(other)["censoring"].values.tolist()) == {"left"}
    with pytest.raises(InputError, match=r"did you mean 'score/other'"):
        measure(tree, target=0.5, metric="score/othr")


def test_target_reached_before_training(tmp_path: Path) -> None:
    runs = [replace(r, start=0.6) for r in sweep()]
    measured = measure(invented(tmp_path, *runs), target=0.5)
    assert "pass the target before training" in said(measured)
    arms = arms_of(measured)
    assert (arms["responses_to_target"].sel(bound="high").values == 0).all()
    assert set(arms["verdict"].values.tolist()) == {""}
    assert "no timing" not in said(measured)
    assert "before 0 responses" not in said(measured)
    # The logs still show how fast responses came.
    assert arms["throughput"].values == pytest.approx([12.8, 256 / 14, 512 / 22], rel=0.02)


def test_no_target_names_the_best_score(tmp_path: Path) -> None:
    runs = sweep()
    measured = measure(invented(tmp_path, *runs))
    best = max(r.score(r.steps * r.rollout_batch) for r in runs)
    assert f"the best 'score' is {best:.4g}" in said(measured)
    assert "--target" in said(measured)
    assert np.isnan(arms_of(measured)["responses_to_target"].values).all()


def test_throughput_with_evaluation_is_unknown_where_the_log_does_not_time_evaluations(tmp_path: Path) -> None:
    tree = invented(tmp_path, *sweep())
    for target in (0.5, None):
        assert np.isnan(arms_of(measure(tree, target=target))["throughput_with_evaluation"].values).all()


@pytest.mark.parametrize("target", [float("nan"), float("inf")])
def test_a_target_that_is_no_number_is_refused(tmp_path: Path, target: float) -> None:
    with pytest.raises(InputError, match="not a finite score"):
        measure(invented(tmp_path, *sweep()), target=target)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 2.0, float("nan")])
def test_a_level_outside_its_bounds_is_refused(tmp_path: Path, level: float) -> None:
    with pytest.raises(InputError, match=r"outside \(0, 1\)"):
        measure(invented(tmp_path, *sweep()), target=0.5, level=level)


def noisy_norms(prompts: int, seed: int, *, steps: int = 40) -> list[float]:
    """|g_B|^2 = 1 + 1000/B with 3 % of scatter."""
    rng = np.random.default_rng([prompts, seed])
    return [math.sqrt(1 + 1000 / (8 * prompts)) * math.exp(0.03 * z) for z in rng.standard_normal(steps)]


def normed(*, spoil: bool) -> list[Invented]:
    runs = []
    for i, run in enumerate(sweep()):
        norms = noisy_norms(run.prompts, i % 3)
        if spoil:
            norms[10], norms[20], norms[30] = math.nan, 1e6, math.inf
        runs.append(replace(run, grad_norm=norms))
    return runs


def test_nan_and_spiking_norms_change_little(tmp_path: Path) -> None:
    clean = measure(invented(tmp_path / "clean", *normed(spoil=False)), target=0.5)
    spoilt = measure(invented(tmp_path / "spoilt", *normed(spoil=True)), target=0.5)
    for one, other in zip(clean.attrs["noise_scales"], spoilt.attrs["noise_scales"], strict=True):
        assert one["identified"]
        assert one["low"] < 1000 < one["high"]
        assert other["noise_scale"] == pytest.approx(one["noise_scale"], rel=0.1)
        assert other["high"] / other["low"] < 2 * one["high"] / one["low"]
    xr.testing.assert_identical(arms_of(clean), arms_of(spoilt))


def test_no_norms_no_noise_scale(tmp_path: Path) -> None:
    assert measure(invented(tmp_path, *sweep()), target=0.5).attrs["noise_scales"] == []


def test_one_batch_of_norms_is_not_identified(tmp_path: Path) -> None:
    run = Invented(run="only", prompts=16, responses_to_target=3000, grad_norm=noisy_norms(16, 0))
    measured = measure(invented(tmp_path, run), target=0.5)
    (only,) = measured.attrs["noise_scales"]
    assert not only["identified"]
    assert only["noise_scale"] is None
    assert only["high"] is None
    assert "a run at another batch would" in said(measured)


# -- properties -------------------------------------------------------------------------------------


@pytest.mark.parametrize("node", ["arms", "runs"])
def test_every_variable_carries_the_vocabulary(tmp_path: Path, node: str) -> None:
    ds = measure(invented(tmp_path, *normed(spoil=False)), target=0.5)[node].to_dataset()
    for name in ds.variables:
        known = VARIABLES[str(name)]
        assert ds[name].attrs == {"symbol": known.symbol, "units": known.unit, "long_name": known.long_name}


def test_ratios_do_not_keep_the_units_of_what_they_divide(tiny_measured: xr.DataTree) -> None:
    arms = arms_of(tiny_measured)
    assert {arms[n].attrs["units"] for n in ("sample_cost_ratio", "throughput_ratio", "time_ratio")} == {"1"}
    assert arms["throughput"].attrs["units"] == "responses/s"


def test_the_seed_settles_every_number(tmp_path: Path) -> None:
    tree = invented(tmp_path, *sweep())
    one, again, other = (measure(tree, target=0.5, seed=s) for s in (3, 3, 4))
    xr.testing.assert_identical(arms_of(one), arms_of(again))
    assert one.attrs == again.attrs
    assert not arms_of(one)["sample_cost_ratio"].equals(arms_of(other)["sample_cost_ratio"])
    assert arms_of(one)["throughput_ratio"].equals(arms_of(other)["throughput_ratio"])


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> xr.DataTree:
    return invented(tmp_path_factory.mktemp("known"), *sweep())


@settings(max_examples=20)
@given(levels=st.tuples(st.floats(0.01, 0.99), st.floats(0.01, 0.99)))
def test_a_higher_level_never_narrows_an_interval(known: xr.DataTree, levels: tuple[float, float]) -> None:
    narrow, wide = (arms_of(measure(known, target=0.5, level=level)) for level in sorted(levels))
    for name in ("sample_cost_ratio", "time_ratio"):
        assert (wide[name].sel(bound="low") <= narrow[name].sel(bound="low")).all()
        assert (wide[name].sel(bound="high") >= narrow[name].sel(bound="high")).all()
        assert (estimate(wide, name) == estimate(narrow, name)).all()


@settings(max_examples=20)
@given(factor=st.floats(0.01, 100))
def test_the_unit_of_time_cancels_from_every_ratio(
    known: xr.DataTree, tmp_path_factory: pytest.TempPathFactory, factor: float
) -> None:
    runs = [replace(r, step_seconds=(r.step_seconds or 0) * factor) for r in sweep()]
    scaled = arms_of(measure(invented(tmp_path_factory.mktemp("scaled"), *runs), target=0.5))
    arms = arms_of(measure(known, target=0.5))
    for name in ("throughput_ratio", "throughput_ratio_se", "time_ratio", "sample_cost_ratio"):
        assert scaled[name].values == pytest.approx(arms[name].values, rel=1e-6)
    assert scaled["throughput"].values * factor == pytest.approx(arms["throughput"].values)


def test_the_order_of_files_does_not_matter(tmp_path: Path) -> None:
    folder = write_runs(tmp_path, *sweep())
    files = sorted(folder.glob("*.csv"))
    one, other = (arms_of(measure(read_logs(f), target=0.5)) for f in (files, files[::-1]))
    for name in ("throughput", "throughput_ratio", "responses_to_target"):
        assert other[name].values == pytest.approx(one[name].values)
    assert one["verdict"].equals(other["verdict"])
