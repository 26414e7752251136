"""Simulated runs: they look like logs, measure reads them, and the truth comes back."""

from __future__ import annotations

import csv
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchsim.errors import InputError
from batchsim.learning.curve import (
    KINDS,
    Curve,
    crossing,
    first_crossing_probability,
    local_cost,
    noise_scale_along,
    responses_at,
    sample_cost_to_target,
    score_at,
    simulate_run,
    simulate_runs,
)
from batchsim.logs import read_logs
from batchsim.measure import measure
from batchsim.predict import predict
from batchsim.variables import VARIABLES

CURVE = Curve(family="exponential", start=0.3, asymptote=0.7, scale=6e4)
STEP: dict[str, Any] = {"update_time_intercept": 100.0, "update_time_slope": 1.0}


class TestLayout:
    def test_a_run_is_what_a_reader_makes_of_its_table(self, tmp_path: Path) -> None:
        run = simulate_run(CURVE, train_batch=64, rng=np.random.default_rng(0), responses_max=20 * 64,
                           evaluation_spacing=256, score_error=0.01, step_seconds=30.0, step_seconds_spread=0.1,
                           evaluation_seconds=12.0, group_size=8, learning_rate=1e-6)  # fmt: skip
        score = dict(zip(run["evaluation_responses"].values // 64, run["score"].values[0], strict=True))
        with open(tmp_path / "run.csv", "w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(
                ["rollout_step", "responses", "step_seconds", "evaluation_seconds", "val/score", "prompts",
                 "group_size", "updates_per_rollout", "epochs", "learning_rate"]
            )  # fmt: skip
            table.writerow([0, "", "", 12.0, repr(float(score[0])), 8, 8, 1, 1, ""])
            for step, used, seconds in zip(
                *(run[name].values for name in ("rollout_step", "responses", "step_seconds")), strict=True
            ):
                known = [12.0, repr(float(score[step]))] if step in score else ["", ""]
                table.writerow([step, used, repr(float(seconds)), *known, 8, 8, 1, 1, 1e-6])
        (read,) = (node.to_dataset() for node in read_logs(tmp_path / "run.csv").children.values())
        assert set(run.variables) == set(read.variables)
        assert dict(run.sizes) == dict(read.sizes)
        for name in read.variables:
            assert run[name].dims == read[name].dims
            assert run[name].attrs == read[name].attrs
            if name != "metric":
                assert run[name].values == pytest.approx(read[name].values), name
        assert set(run.attrs) - {"log_pace"} == set(read.attrs)
        for name in ("prompts", "group_size", "rollout_batch", "train_batch", "updates_per_rollout", "epochs"):
            assert run.attrs[name] == read.attrs[name]

    def test_chance_of_a_run_is_no_part_of_its_recipe(self) -> None:
        tree = simulate_runs(CURVE, costs={64: 1.0, 128: 1.2}, responses_max=1e5, evaluation_spacing=1e3, runs=2,
                             spread=0.1, learning_rates={64: 1e-6, 128: 1.4e-6}, **STEP)  # fmt: skip
        assert not [w for w in measure(tree, target=0.5).attrs["warnings"] if "log_pace" in w]
        assert predict(tree, target=0.5, draws=50).attrs["calibrated_on"] == [64.0, 128.0]

    def test_every_variable_is_in_the_vocabulary(self) -> None:
        tree = simulate_runs(CURVE, costs={64: 1.0}, responses_max=1e4, evaluation_spacing=1e3, **STEP)
        ds = tree["b64_s1"].to_dataset()
        for name in ds.variables:
            assert ds[name].attrs["units"] == VARIABLES[str(name)].unit
        assert tree.attrs == {"framework": "simulation", "warnings": []}

    def test_without_noise_the_score_is_the_curve(self) -> None:
        ds = simulate_run(CURVE, train_batch=64, rng=np.random.default_rng(0), cost=1.5, responses_max=2e5,
                          evaluation_spacing=1000)  # fmt: skip
        n = ds["evaluation_responses"].values
        assert np.diff(n) == pytest.approx(1024)  # whole rollout steps
        assert ds["score"].values[0] == pytest.approx(score_at(CURVE, n / 1.5))
        assert float(ds["responses"][-1]) >= 2e5 > float(ds["responses"][-2])

    def test_a_spacing_below_the_batch_is_one_step(self) -> None:
        ds = simulate_run(
            CURVE, train_batch=4096, rng=np.random.default_rng(0), responses_max=5e4, evaluation_spacing=100
        )
        assert np.diff(ds["evaluation_responses"].values).tolist() == [4096.0] * 13

    def test_seeds_repeat_and_runs_differ(self) -> None:
        make = partial(simulate_runs, CURVE, costs={64: 1.0, 128: 1.1}, responses_max=1e4, evaluation_spacing=1e3,
                       runs=2, score_error=0.01, spread=0.1, **STEP)  # fmt: skip
        one, again, other = make(seed=1), make(seed=1), make(seed=2)
        assert list(one.children) == ["b64_s1", "b64_s2", "b128_s1", "b128_s2"]
        assert (one["b64_s1"]["score"] == again["b64_s1"]["score"]).all()
        assert not (one["b64_s1"]["score"] == other["b64_s1"]["score"]).any()
        assert not (one["b64_s1"]["score"] == one["b64_s2"]["score"]).any()

    def test_errors(self) -> None:
        make = partial(simulate_run, CURVE, rng=np.random.default_rng(0), responses_max=1e4, evaluation_spacing=1e3)
        with pytest.raises(InputError, match="no positive multiple"):
            make(train_batch=60, group_size=8)
        with pytest.raises(InputError, match="score_error is -1"):
            make(train_batch=64, score_error=-1.0)


class TestMeasured:
    def test_measure_finds_the_truth(self) -> None:
        noise = partial(noise_scale_along, curve=CURVE, noise_scale=2000.0, measured_at=1e4)
        cost = partial(local_cost, reference_batch=64.0, noise_scale=noise)
        costs = {b: partial(cost, train_batch=float(b)) for b in (64, 512, 2048)}
        tree = simulate_runs(CURVE, costs=costs, responses_max=2e5, evaluation_spacing=2048, runs=4, spread=0.03,
                             score_error=0.003, group_size=8, learning_rates={b: 1e-6 * (b / 64) ** 0.5 for b in costs},
                             **STEP)  # fmt: skip
        for target, kind in ((0.45, "smoothed"), (0.6, "smoothed"), (0.6, "first")):
            arms = measure(tree, target=target, kind=kind, level=0.99)["arms"].to_dataset()
            true = [float(sample_cost_to_target(target, curve=CURVE, cost=costs[b])) for b in costs]
            found = arms["sample_cost_ratio"].values
            assert ((found[:, 0] <= true) & (true <= found[:, 2])).all(), (target, kind)
            assert arms["throughput_ratio"].values == pytest.approx(
                [(b / (100 + b)) / (64 / 164) for b in costs], rel=1e-6
            )
        assert arms["lr_rule"].values.tolist()[1:] == ["sqrt", "sqrt"]

    def test_the_spread_is_that_of_log_responses_to_target(self) -> None:
        tree = simulate_runs(
            CURVE, costs={64: 1.0}, responses_max=3e5, evaluation_spacing=64, runs=60, spread=0.1, **STEP
        )
        runs = measure(tree, target=0.55)["runs"].to_dataset()
        logs = np.log(runs["responses_to_target"].sel(bound="high").values)
        assert logs.std() == pytest.approx(0.1, rel=0.3)
        assert logs.mean() == pytest.approx(math.log(float(responses_at(CURVE, 0.55))), abs=0.04)


class TestBias:
    """Notes 2.5: true N* 120k, slope .62 points per 10k responses, error 1.0 point."""

    BIASED = Curve(family="exponential", start=0.0, asymptote=0.62 * 8 * math.exp(1.5), scale=8e4)
    TARGET = 0.62 * 8 * (math.exp(1.5) - 1)

    def means(self, spacing: int, repeats: int = 400) -> dict[str, float]:
        found: dict[str, list[float]] = {kind: [] for kind in KINDS}
        rng = np.random.default_rng(spacing)
        for _ in range(repeats):
            ds = simulate_run(
                self.BIASED,
                train_batch=spacing,
                rng=rng,
                responses_max=480e3,
                evaluation_spacing=spacing,
                score_error=1.0,
            )
            for kind, values in found.items():
                at = crossing(ds["evaluation_responses"].values, ds["score"].values[0], target=self.TARGET, kind=kind)
                assert at is not None
                values.append(at.high)
        return {kind: float(np.mean(values)) / 120e3 for kind, values in found.items()}

    @pytest.mark.parametrize(("spacing", "first"), [(4000, 0.93), (8000, 0.98), (16000, 1.05), (32000, 1.15)])
    def test_published_first_crossing(self, spacing: int, first: float) -> None:
        assert responses_at(self.BIASED, self.TARGET) == pytest.approx(120e3)
        means = self.means(spacing)
        assert means["first"] == pytest.approx(first, abs=0.02)
        n = np.arange(0, 480001, spacing)
        p = first_crossing_probability(score_at(self.BIASED, n), target=self.TARGET, score_error=1.0)
        assert means["first"] == pytest.approx((p * n).sum() / p.sum() / 120e3, abs=0.015)
        # Sustained comes late on fine grids; smoothed is off by about half a spacing, as any upper end is.
        assert means["first"] <= means["smoothed"] <= means["sustained"]
        assert means["smoothed"] == pytest.approx(1 + 0.5 * spacing / 120e3, abs=0.035)
