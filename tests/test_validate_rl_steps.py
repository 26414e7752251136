"""Whole RL steps of other frameworks: what is scored, by which factor, and that the page shows it."""

from __future__ import annotations

import csv
import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchsim.cli import main
from batchsim.errors import InputError
from batchsim.system.pipeline.frameworks import FRAMEWORK_FACTOR, FRAMEWORK_FACTOR_SPREAD
from batchsim.validate.rl_ratios import nearest_root
from batchsim.validate.rl_steps import (
    SETTINGS,
    Step,
    factor_of,
    find_inversions,
    nemo_steps,
    validate_rl_steps,
    without_own_model,
)

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def result(shared: Path) -> dict[str, Any]:
    return validate_rl_steps(shared)


@pytest.fixture(scope="module")
def steps(shared: Path) -> list[Step]:
    with (shared / "published" / "nemo_rl_v0.6_performance.csv").open(encoding="utf-8", newline="") as file:
        return nemo_steps(list(csv.DictReader(file)))[0]


def step(**changes: Any) -> Step:
    values: dict[str, Any] = {
        "model": "m",
        "policy": "On policy",
        "gpu": "H100-SXM",
        "gpus": 8,
        "predicted": 10.0,
        "stages": 10.0,
        "measured": 10.0,
        "low": 5.0,
        "high": 20.0,
        "tokens": 8000.0,
        "measured_rate": 100.0,
        "gen_time": 6.0,
        "train_time": 3.0,
        "sync_time": 1.0,
        "limit": "tail",
        "samples": np.full(101, 10.0),
    }
    return Step(**(values | changes))


class TestMeasured:
    def test_the_figures_of_the_documentation(self, result: dict[str, Any]) -> None:
        overall = result["overall"]
        assert overall["n"] == 18
        # The goal of .25 is missed; .8 of the order is met.
        assert overall["median_ape"] == pytest.approx(0.252, abs=0.01)
        assert overall["kendall_tau"] >= 0.8
        assert 0.6 <= overall["covered"] <= 1
        by_kind = {r["split"]: r for r in overall["ratios"]}
        assert by_kind["twice the GPUs, first 100 steps"]["within"] == 4
        assert by_kind["sync to async, training as printed"]["within"] == 4
        assert by_kind["sync to async, printed step"]["within"] == 0

    def test_the_page_shows_what_is_printed(self, result: dict[str, Any]) -> None:
        spec = importlib.util.spec_from_file_location("pipeline_tables", ROOT / "docs" / "pipeline_tables.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        page = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
        assert module.written(page, result) == page

    def test_the_shipped_factor_is_that_of_all_rows(self, steps: list[Step]) -> None:
        factor, spread = factor_of(steps)
        assert factor == pytest.approx(FRAMEWORK_FACTOR, rel=0.01)
        assert spread == pytest.approx(FRAMEWORK_FACTOR_SPREAD, rel=0.01)

    def test_no_model_sees_its_own_rows(self, steps: list[Step]) -> None:
        scored = without_own_model(steps)
        changed = [replace(s, measured=10 * s.measured) if s.model == "DeepSeek V3" else s for s in steps]
        again = without_own_model(changed)
        for a, b in zip(scored, again, strict=True):
            assert (a.predicted == b.predicted) == (a.model == "DeepSeek V3")

    def test_every_row_has_a_setting_or_a_reason(self, result: dict[str, Any]) -> None:
        assert sum("NeMo-RL" in s for s in result["skipped"]) == 1
        assert any("several turns" in s for s in result["skipped"])
        assert len(result["rows"]) == 18 + 20 + 4

    def test_settings_name_their_sources(self) -> None:
        with (ROOT / "batchsim" / SETTINGS).open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == 18
        assert all("NVIDIA-NeMo/RL" in r["source"] and ".yaml" in r["source"] for r in rows)


class TestInversions:
    def test_none_where_the_order_is_kept(self) -> None:
        slow = step(gpus=16, measured_rate=80.0)
        assert find_inversions([step(), slow]) == []

    def test_reasons(self) -> None:
        fast_async = step(policy="1-step Off", measured_rate=50.0, predicted=5.0)
        (found,) = find_inversions([step(), fast_async])
        assert "asynchronous is slower" in found["reason"]
        larger = step(gpus=16, measured=12.0, measured_rate=40.0, predicted=2.0)
        (found,) = find_inversions([step(), larger])
        assert "more GPUs take longer" in found["reason"]
        tie = step(gpus=4, measured_rate=99.0, predicted=19.0)
        (found,) = find_inversions([step(), tie])
        assert "within 10 %" in found["reason"]
        other = step(gpu="GB200", measured_rate=50.0, predicted=5.0)
        (found,) = find_inversions([step(), other])
        assert "GB200 is predicted too fast" in found["reason"]

    def test_models_are_not_compared_with_one_another(self) -> None:
        assert find_inversions([step(), step(model="n", measured_rate=50.0, predicted=1.0)]) == []


class TestRoots:
    def test_inside_and_at_the_ends(self) -> None:
        assert nearest_root(lambda x: x**2, 9.0, 0.0, 10.0) == pytest.approx(3, rel=2e-3)
        assert nearest_root(lambda x: x**2, 900.0, 0.0, 10.0) == 10
        assert nearest_root(lambda x: x**2 + 5, 1.0, 0.0, 10.0) == 0


class TestWithoutData:
    def test_the_sample(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("BATCHSIM_DATA", raising=False)
        result = validate_rl_steps()
        assert result["overall"]["n"] == 6
        assert result["overall"]["ratios"] == []
        assert any("every third" in s for s in result["skipped"])
        assert any("the shipped one saw these" in s for s in result["skipped"])

    def test_a_folder_without_the_table(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no table of RL steps"):
            validate_rl_steps(tmp_path)

    def test_the_command(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("BATCHSIM_DATA", raising=False)
        with pytest.raises(SystemExit) as stopped:
            main(["validate", "rl-steps", "--plot", "steps.svg"])
        assert not stopped.value.code
        out = capsys.readouterr().out
        assert "Kendall's tau" in out
        assert "whole step from specifications" in out
        assert (tmp_path / "steps.svg").is_file()
