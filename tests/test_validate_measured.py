"""Whole forecasts and phase laws against measured runs: what is scored, what a row has seen, what the page shows."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import json
import math
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from batchsim.cli import main
from batchsim.cli.validate import FORECASTS, defaults_said
from batchsim.cli.validation_measured import print_measured, sentence
from batchsim.errors import InputError
from batchsim.plot import plot_pilots, plot_predicted_measured
from batchsim.validate import li2026, mlperf, steps, tiny
from batchsim.validate.measured import QUANTITIES, make_row, power_law, runs_of, score
from batchsim.validate.samples import DEFAULTS, PEER, default_score, validate_samples

matplotlib.use("agg")

ROOT = Path(__file__).resolve().parents[1]
VALIDATIONS: dict[str, Callable[..., dict[str, Any]]] = {
    "mlperf": mlperf.validate_mlperf,
    "li2026": li2026.validate_li2026,
    "tiny": tiny.validate_tiny,
    "steps": steps.validate_steps,
}


def _tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("measured_tables", ROOT / "docs" / "measured_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def found(shared: Path) -> dict[str, dict[str, Any]]:
    for needed in ("published", "tiny_grpo", "tiny_ppo", "mlperf_grpo"):
        if not (shared / needed).is_dir():
            pytest.skip(f"{shared / needed} is absent")
    every: dict[str, dict[str, Any]] = _tables().results(shared)
    return every


class TestEveryRow:
    @pytest.mark.parametrize("name", FORECASTS)
    def test_says_what_the_scheme_asks(self, found: dict[str, dict[str, Any]], name: str) -> None:
        result = found[name]
        json.dumps(result, allow_nan=False)
        assert {"name", "overall", "slices", "rows", "skipped"} <= set(result)
        assert len({row["claim"] for row in result["rows"]}) == len(result["rows"])
        for row in [*result["rows"], *result.get("pilots", [])]:
            assert {"claim", "predicted", "interval", "measured", "error", "covered", "peer"} <= set(row)
            if row["measured"] is None:
                assert row["error"] is None
                assert row["covered"] is None
                continue
            assert row["error"] == pytest.approx(row["predicted"] / row["measured"] - 1)
            if row["interval"] is not None:
                low, high = row["interval"]
                assert low <= row["predicted"] <= high
                assert row["covered"] == (low <= row["measured"] <= high)

    @pytest.mark.parametrize("name", FORECASTS)
    def test_scores_are_those_of_the_rows(self, found: dict[str, dict[str, Any]], name: str) -> None:
        overall, rows = found[name]["overall"], found[name]["rows"]
        if name == "tiny":
            rows = [r for r in rows if r["quantity"] == "time_ratio"]
        if name == "steps":
            rows = [r for r in rows if r["table"] != "join" and not r["of"].endswith(steps.APART)]
        logs = [math.log(r["predicted"] / r["measured"]) for r in rows if r["measured"] is not None]
        assert overall["n"] == len(logs)
        assert overall["median_abs_error"] == pytest.approx(float(np.median(np.abs(logs))))
        assert overall["bias"] == pytest.approx(float(np.median(logs)))

    def test_every_ratio_of_a_forecast_is_positive(self, found: dict[str, dict[str, Any]]) -> None:
        for name in ("mlperf", "li2026", "tiny"):
            for row in found[name]["pilots"]:
                assert row["predicted"] > 0
                assert row["width"] >= 1
                assert row["width"] == pytest.approx(row["interval"][1] / row["interval"][0])


class TestParts:
    def test_a_row_that_is_only_bounded_scores_nothing(self) -> None:
        bounded = make_row("T", predicted=0.7, interval=(0.5, 0.9), measured=None)
        row = make_row("q", predicted=2.0, interval=(1.0, 3.0), measured=1.0, peer=0.5)
        scored = score([bounded, row], level=0.8)
        assert scored["n"] == scored["peer_n"] == 1
        assert scored["median_abs_error"] == pytest.approx(math.log(2))
        assert scored["peer_median_abs_error"] == pytest.approx(math.log(2))
        assert scored["half_width"] == 0.5
        assert scored["coverage"] == 1
        assert set(score([], level=0.8).values()) == {0, 0.8, None}

    def test_unknown_and_unlimited_values_are_null(self) -> None:
        row = make_row("x", predicted=math.inf, interval=(0.0, math.inf), measured=math.nan)
        assert (row["predicted"], row["interval"], row["measured"], row["error"]) == (None, [0.0, None], None, None)

    @given(a=st.floats(1, 1e4), u=st.floats(0.1, 1e3), p=st.floats(-2, 2), b=st.floats(1, 1e5))
    def test_a_power_law_is_continued_exactly(self, a: float, u: float, p: float, b: float) -> None:
        said = power_law(b, first=(a, u), second=(2 * a, u * 2**p))
        assert said == pytest.approx(u * (b / a) ** p, rel=1e-9)

    def test_a_line_needs_two_batches(self) -> None:
        with pytest.raises(InputError, match="both pilots have the batch 64"):
            power_law(128, first=(64, 1), second=(64, 2))


class TestMlperf:
    def test_nothing_of_the_asked_batch_is_seen(
        self, found: dict[str, dict[str, Any]], shared: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def changed(data: Path | None, name: str, **given: Any) -> tuple[xr.DataTree | None, list[str]]:
            runs, skipped = runs_of(data, name, **given)
            assert runs is not None
            nodes = {}
            for key, node in runs.children.items():
                ds = node.to_dataset()
                if ds.attrs["train_batch"] == mlperf.ASKED:
                    ds = ds.assign(step_seconds=7 * ds["step_seconds"], grad_norm=0.1 * ds["grad_norm"])
                nodes[key] = ds
            tree = xr.DataTree.from_dict(nodes)
            tree.attrs = dict(runs.attrs)
            return tree, skipped

        monkeypatch.setattr(mlperf, "runs_of", changed)
        again = mlperf.validate_mlperf(shared)
        for before, after in zip(found["mlperf"]["rows"], again["rows"], strict=True):
            assert (before["predicted"], before["interval"], before["peer"]) == (
                after["predicted"],
                after["interval"],
                after["peer"],
            )
        assert again["rows"][0]["measured"] == pytest.approx(7 * found["mlperf"]["rows"][0]["measured"])

    def test_the_runs_allow_any_time_to_target(self, found: dict[str, dict[str, Any]]) -> None:
        row = found["mlperf"]["rows"][-1]
        assert row["claim"].startswith("T/T0")
        assert row["allowed"] == [0.0, None]
        assert row["measured"] is None
        assert row["least_if_cost_rises"] == pytest.approx(1 / 1.702, abs=1e-3)

    def test_measured_values_are_those_of_the_evidence(self, found: dict[str, dict[str, Any]]) -> None:
        rows = {r["claim"].split(" at ")[0] + r["of"]: r for r in found["mlperf"]["rows"]}
        assert rows["step time (s)steady steps"]["measured"] == pytest.approx(968.7, abs=0.1)
        assert rows["r_qsteady steps"]["measured"] == pytest.approx(1.76, abs=0.005)
        assert rows["r_qend to end"]["measured"] == pytest.approx(1.702, abs=1e-3)
        assert rows["time to the first evaluationend to end"]["measured"] == pytest.approx(0.914, abs=1e-3)
        for row in found["mlperf"]["rows"]:
            if row["measured_interval"] is not None:
                assert row["measured_interval"][0] < row["measured"] < row["measured_interval"][1]


class TestLi2026:
    @given(n=st.integers(2, 500), s=st.integers(1, 400), x=st.sampled_from([2.0, 8.0, 16.0, 32.0]))
    def test_whole_updates_hold_the_truth(self, n: int, s: int, x: float) -> None:
        printed = round(s * x / n, 1)
        fewest, most, low, high = li2026.whole_updates(printed, factor=x, reference_updates=n)
        assert fewest <= s <= most
        # Both runs reached the target somewhere within their last update.
        for own in (s - 0.999, s):
            for reference in (n - 0.999, n):
                assert low <= own * x / reference <= high * (1 + 1e-9)

    def test_by_hand(self) -> None:
        assert li2026.whole_updates(1.6, factor=32, reference_updates=100) == pytest.approx((5, 5, 1.28, 160 / 99))

    def test_every_miss_is_explained_and_no_hit(self, found: dict[str, dict[str, Any]]) -> None:
        for row in found["li2026"]["rows"]:
            assert (row["explanation"] is None) == row["covered"]
            if row["explanation"] is not None:
                assert not row["explanation"].startswith("not explained")

    def test_the_printed_values_are_the_shipped_ones(self, shared: Path, tmp_path: Path) -> None:
        assert li2026._printed(shared)[0] == li2026._printed(tmp_path)[0]
        assert li2026._printed(shared)[1] == []
        assert "absent" in li2026._printed(tmp_path)[1][0]

    def test_the_prior_is_halved_and_doubled(self, found: dict[str, dict[str, Any]]) -> None:
        own, *moved = found["li2026"]["recommendations"]
        assert own["prior"] == li2026.OWN
        medians = [r["noise_scale"][1] for r in moved]
        assert len(medians) == 3
        assert medians == sorted(medians)
        assert medians[1] == pytest.approx(own["noise_scale"][1], rel=0.1)
        chances = [r["plateau_probability"]["512"] for r in moved]
        assert chances == sorted(chances)
        for r in found["li2026"]["recommendations"]:
            assert r["inside_plateau"] == (r["star"] is not None and 512 <= r["star"] <= 1024)

    def test_readings_narrow_with_the_number_of_updates(self, found: dict[str, dict[str, Any]]) -> None:
        wide = {
            r["responses_to_target"]: r["allowed"][1] - r["allowed"][0]
            for r in found["li2026"]["readings"]
            if r["prompts"] == 4096
        }
        assert list(wide.values()) == sorted(wide.values(), reverse=True)


class TestTiny:
    def test_stars_are_held_against_the_measured_sweep(self, found: dict[str, dict[str, Any]]) -> None:
        assert [(s["rule"], s["target"]) for s in found["tiny"]["stars"]] == [
            (rule, target) for rule in ("sqrt", "fixed") for target in (0.38, 0.45, 0.52)
        ]
        for s in found["tiny"]["stars"]:
            assert s["star"] in tiny.SWEEPS[s["rule"]]
            assert s["measured_star"] == s["measured_range"][0]
            assert s["regret"] >= 0
            if s["star"] == s["measured_star"]:
                assert s["regret"] <= tiny.WITHIN - 1

    def test_only_larger_batches_than_the_pilots_are_scored(self, found: dict[str, dict[str, Any]]) -> None:
        held = {(r["rule"], r["train_batch"]) for r in found["tiny"]["rows"]}
        assert held == {(rule, b) for rule, batches in tiny.SWEEPS.items() for b in batches[2:]}
        assert len(found["tiny"]["rows"]) == 3 * 3 * len(held)


class TestPilots:
    @pytest.mark.parametrize("name", ["li2026", "tiny"])
    def test_each_pilot_narrows_the_time(self, found: dict[str, dict[str, Any]], name: str) -> None:
        width = [r["width"] for r in found[name]["pilots"] if r["quantity"] == "time_ratio"]
        assert len(width) >= 3
        assert all(later < earlier for earlier, later in pairwise(width))

    def test_each_measured_batch_narrows_it_on_the_large_model(self, found: dict[str, dict[str, Any]]) -> None:
        rungs = [r for r in found["mlperf"]["pilots"] if r["quantity"] == "time_ratio"]
        width = [r["width"] for r in rungs if r["pilots"] != mlperf.SPECIFIED]
        assert width == sorted(width, reverse=True)

    @pytest.mark.parametrize("name", ["mlperf", "li2026", "tiny"])
    def test_a_forecast_says_what_it_rests_on(self, found: dict[str, dict[str, Any]], name: str) -> None:
        unmeasured = [len(r["prior"]) for r in found[name]["pilots"] if r["quantity"] == "time_ratio"]
        assert unmeasured[0] == 6
        assert unmeasured == sorted(unmeasured, reverse=True)

    def test_a_batch_among_the_pilots_is_no_forecast(self, found: dict[str, dict[str, Any]]) -> None:
        for name in ("mlperf", "tiny"):
            rungs = [r for r in found[name]["pilots"] if r["quantity"] == "time_ratio"]
            assert [r["held_out"] for r in rungs] == [True] * (len(rungs) - 1) + [False]

    def test_the_plot_holds_every_rung(self, found: dict[str, dict[str, Any]]) -> None:
        for name, quantity in (("mlperf", "throughput_ratio"), ("li2026", "time_ratio"), ("tiny", "time_ratio")):
            rungs = [r for r in found[name]["pilots"] if r["quantity"] == quantity]
            drawn = [np.asarray(line.get_ydata(), dtype=np.float64).tolist() for line in plot_pilots(found[name]).lines]
            assert drawn[0 : 2 * len(rungs) : 2] == [r["interval"] for r in rungs]
            assert drawn[1 : 2 * len(rungs) : 2] == [[r["predicted"]] for r in rungs]
            assert drawn[-1] == [rungs[0]["measured"]] * 2

    def test_a_quantity_that_no_rung_has(self, found: dict[str, dict[str, Any]]) -> None:
        with pytest.raises(InputError, match="known: time_ratio"):
            plot_pilots(found["tiny"], quantity="throughput")


def _made(row: str, effects: tuple[str, ...], seconds: float, work: float = 1.0) -> steps.Timed:
    return steps.Timed(table="T", part="P", row=row, effects=effects, work=work, seconds=seconds)


class TestSteps:
    ROWS = tuple(
        _made(f"{model} {backend} {who}", (model, backend, f"{model} {backend}"), 10.0 * f * g * h, 10.0)
        for model, f in (("a", 1.0), ("b", 3.0))
        for backend, g in (("x", 1.0), ("y", 0.5))
        for who, h in (("one", 1.0), ("two", 1.02))
    )

    def test_the_goal_is_met_and_missed_without_reruns(self, found: dict[str, dict[str, Any]]) -> None:
        overall = found["steps"]["overall"]
        assert overall["median_abs_error"] <= math.log1p(overall["goal"])
        assert overall["settings_left_out"]["median_abs_error"] > math.log1p(overall["goal"])

    @pytest.mark.parametrize("by", ["row", "setting"])
    def test_what_is_left_out_is_not_seen(self, by: str) -> None:
        before = steps.left_out(self.ROWS, by=by)
        for i, row in enumerate(self.ROWS):
            unseen = [r.row == row.row if by == "row" else r.setting == row.setting for r in self.ROWS]
            moved = [
                dataclasses.replace(r, seconds=9 * r.seconds) if hide else r
                for r, hide in zip(self.ROWS, unseen, strict=True)
            ]
            after = steps.left_out(moved, by=by)[i]
            assert (after["predicted"], after["interval"]) == (before[i]["predicted"], before[i]["interval"])

    def test_a_rerun_decides_where_effects_are_strong(self) -> None:
        for row in steps.left_out(self.ROWS, by="row"):
            assert row["predicted"] == pytest.approx(row["measured"], rel=0.05)
            assert abs(math.log(row["peer"] / row["measured"])) > 0.1

    def test_one_other_row_gives_its_own_factor(self) -> None:
        one, asked = _made("1", ("m",), 30.0, 10.0), _made("2", ("n",), 1.0, 4.0)
        assert steps.predict_row([one], asked) == pytest.approx((0.0, 12.0, math.inf, 12.0))
        assert steps.left_out([one], by="row") == []
        with pytest.raises(InputError, match="no other row"):
            steps.predict_row([], asked)

    @given(unit=st.floats(1e-3, 1e3), work=st.floats(1e-3, 1e3))
    def test_units_change_nothing(self, unit: float, work: float) -> None:
        scaled = [dataclasses.replace(r, seconds=unit * r.seconds, work=work * r.work) for r in self.ROWS]
        plain, other = (np.array(steps.predict_row(rows[1:], rows[0])) for rows in (self.ROWS, scaled))
        assert other == pytest.approx(unit * plain, rel=1e-9)

    def test_a_step_printed_twice_joins_once(self, found: dict[str, dict[str, Any]]) -> None:
        joins = [r for r in found["steps"]["rows"] if r["table"] == "join"]
        assert len({(r["measured"], r["peer"]) for r in joins}) == len(joins)
        assert sum("356" in f"{r['measured']:.1f}" for r in joins) == 1

    def test_a_step_is_the_sum_of_its_predicted_phases(self, found: dict[str, dict[str, Any]]) -> None:
        rows = [r for r in found["steps"]["rows"] if not r["of"].endswith(steps.APART)]
        whole = [r for r in rows if r["of"] == "NeMo-RL 959, step"]
        assert len(whole) == 8
        for step in whole:
            phases = [r["predicted"] for r in rows if r["table"] == step["table"] and r["row"] == step["row"]]
            beyond = step["predicted"] / (sum(phases) - step["predicted"])
            assert 1.0 < beyond < 1.1

    def test_the_plot_leaves_joins_out(self, found: dict[str, dict[str, Any]]) -> None:
        ax = plot_predicted_measured(found["steps"])
        assert {np.size(line.get_xdata()) for line in ax.lines[:2]} == {found["steps"]["overall"]["n"]}


class TestSamples:
    def test_overall_is_that_of_the_default_forms(self, found: dict[str, dict[str, Any]]) -> None:
        result = found["samples"]
        own = [r for r in result["rows"] if DEFAULTS.get(r["rule"]) == r["form"]]
        overall = result["overall"]
        assert overall["n"] == overall["points"] == len(own)
        logs = np.log([r["predicted"] / r["measured"] for r in own])
        theirs = np.log([r["peer"] / r["measured"] for r in own])
        assert overall["median_abs_error"] == pytest.approx(float(np.median(np.abs(logs))))
        assert overall["hyperbola_median_abs_error"] == pytest.approx(float(np.median(np.abs(theirs))))
        assert overall["bias"] == pytest.approx(float(np.median(logs)))
        assert overall["coverage_80"] == pytest.approx(float(np.mean([r["covered"] for r in own])))

    def test_the_goals_of_the_default_forms_are_met(self, found: dict[str, dict[str, Any]]) -> None:
        overall = found["samples"]["overall"]
        assert overall["coverage_80"] >= overall["goals"]["coverage_80"] == 0.75
        assert overall["half_width_80"] <= overall["goals"]["half_width_80"] == 0.25
        assert overall["median_abs_error"] < overall["hyperbola_median_abs_error"]

    def test_a_form_is_also_chosen_without_its_set(self, tmp_path: Path) -> None:
        result = validate_samples(tmp_path)
        rows = [r for r in result["rows"] if r["rule"] == "fixed"]
        # One set under the rule: nothing is left to choose by, and the peer stands in.
        scored = default_score(rows)
        theirs = [abs(math.log(r["predicted"] / r["measured"])) for r in rows if r["form"] == PEER]
        assert scored["unseen_median_abs_error"] == pytest.approx(float(np.median(theirs)))
        assert default_score([]) == {}
        assert defaults_said({}) == []


class TestWithoutData:
    @pytest.mark.parametrize("name", ["mlperf", "tiny", "steps"])
    def test_what_is_absent_is_skipped_with_the_reason(self, name: str, tmp_path: Path) -> None:
        result = VALIDATIONS[name](tmp_path)
        assert (result["rows"], result["slices"], result["overall"]) == ([], [], {})
        assert any("absent" in said for said in result["skipped"])

    def test_the_papers_numbers_ship(self, tmp_path: Path) -> None:
        assert VALIDATIONS["li2026"](tmp_path)["overall"]["n"] == 10

    @pytest.mark.parametrize("name", FORECASTS)
    def test_a_folder_that_does_not_exist(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no such folder"):
            VALIDATIONS[name](tmp_path / "nowhere")

    def test_tables_that_are_there_are_used_without_the_others(self, shared: Path, tmp_path: Path) -> None:
        (tmp_path / "published").mkdir()
        text = (shared / steps.RLINF).read_text(encoding="utf-8")
        (tmp_path / steps.RLINF).write_text(text, encoding="utf-8")
        result = steps.validate_steps(tmp_path)
        assert {r["table"] for r in result["rows"]} == {"RLinf 1.5B", "join"}
        assert sum("absent" in said for said in result["skipped"]) == 4
        assert len(list(csv.DictReader(text.splitlines()))) == 8


class TestCommand:
    def run(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(["validate", *arguments])
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    @pytest.mark.parametrize("name", ["mlperf", "tiny", "steps"])
    def test_json_without_data(self, name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        status, out, _ = self.run(capsys, name, "--data", str(tmp_path), "--json")
        assert status == 0
        assert json.loads(out)["name"] == name

    def test_tables_and_plot_of_what_ships(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        picture = tmp_path / "pilots.svg"
        status, out, _ = self.run(capsys, "li2026", "--data", str(tmp_path / "data"), "--plot", str(picture))
        assert status == 0
        assert "recommended beside the measured plateau, P = 512 to 1,024" in out
        assert "what a pilot buys" in out
        assert picture.stat().st_size > 1000

    def test_nothing_to_plot(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        status, _, err = self.run(capsys, "tiny", "--data", str(tmp_path), "--plot", str(tmp_path / "a.svg"))
        assert status == 2
        assert "nothing to plot" in err

    @pytest.mark.parametrize("name", FORECASTS)
    def test_everything_is_printed(
        self, name: str, found: dict[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]
    ) -> None:
        print_measured(found[name])
        out = capsys.readouterr().out
        assert sentence(found[name]) in out
        for said in found[name]["skipped"]:
            assert f"skipped: {said}" in out
        for row in found[name]["rows"]:
            if row.get("explanation"):
                assert row["explanation"] in out
        for shown in QUANTITIES.values() if "pilots" in found[name] else ():
            assert shown in out


class TestPage:
    def test_the_tables_are_the_programs(self, found: dict[str, dict[str, Any]]) -> None:
        page = (ROOT / "docs" / "validation.md").read_text(encoding="utf-8")
        # `python docs/measured_tables.py --data FOLDER` rewrites what moved.
        assert _tables().written(page, found) == page

    def test_every_key_is_documented(self, found: dict[str, dict[str, Any]]) -> None:
        words = set(re.findall(r"\w+", (ROOT / "docs" / "validation.md").read_text(encoding="utf-8")))

        def keys(value: Any) -> set[str]:
            if isinstance(value, dict):
                return set(value) | set().union(*(keys(v) for v in value.values()))
            return set().union(*(keys(v) for v in value)) if isinstance(value, list) else set()

        named = {k for name in FORECASTS for k in keys(found[name]) if re.fullmatch(r"[a-z_]+", k)}
        assert sorted(named - words) == []

    def test_what_the_page_says_in_words_holds(self, found: dict[str, dict[str, Any]]) -> None:
        paper = found["li2026"]
        times = [r for r in paper["rows"] if r["quantity"] == "time_ratio"]
        assert all(r["covered"] and r["error"] > 0 for r in times)
        assert paper["overall"]["peer_median_abs_error"] < paper["overall"]["median_abs_error"]
        assert all(r["star"] < 512 and r["next_run"] == 512 for r in paper["recommendations"])
        stars = found["tiny"]["stars"]
        assert all(s["star"] <= s["measured_star"] for s in stars)
        learning = [r for r in found["tiny"]["rows"] if r["quantity"] == "sample_cost_ratio"]
        assert all(r["covered"] for r in learning)
        specified, one, two = (
            next(r for r in found["mlperf"]["pilots"] if r["pilots"] == name and r["quantity"] == "throughput_ratio")
            for name in (mlperf.SPECIFIED, "256", "256, 512")
        )
        assert not specified["covered"]
        assert one["covered"]
        assert two["covered"]
        assert specified["width"] < one["width"] > two["width"]
        apart = found["steps"]["overall"]["settings_left_out"]
        assert apart["peer_median_abs_error"] < apart["median_abs_error"]

    def test_the_figure_is_there(self) -> None:
        assert (ROOT / "docs" / "figures" / "pilots.svg").stat().st_size > 10_000
