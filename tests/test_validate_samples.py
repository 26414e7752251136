"""The learning law against published runs: fits, held-out points, and what the documentation claims."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchsim.cli import main
from batchsim.errors import InputError
from batchsim.learning.sample_cost import sample_cost_ratio
from batchsim.plot import plot_validation
from batchsim.validate.forms import FORMS, Sweep, fit
from batchsim.validate.published import (
    ISOCOMPUTE_TARGETS,
    TINY_TARGETS,
    crossing_point,
    isocompute,
    load,
    mlperf_rcp,
    olmo2,
    tiny,
    zhang2024,
)
from batchsim.validate.samples import (
    DEFAULTS,
    UNMEASURED,
    decide,
    default_form,
    leave_largest_out,
    sign_test,
    validate_samples,
)

DOC = (Path(__file__).resolve().parents[1] / "docs" / "validation.md").read_text(encoding="utf-8")
BATCHES = np.array([64.0, 128, 256, 512, 1024, 2048, 4096])
RULES = ("fixed", "sqrt", "tuned")
TRUTH = {"log_noise_scale": math.log(1500.0), "exponent": 0.4, "log_snr_shape": math.log(0.7), "lr_fraction": 0.2}


def made(form: str, rule: str, **values: float) -> Sweep:
    """A sweep that obeys a form exactly."""
    known = {name: np.asarray((TRUTH | values)[name]) for name in FORMS[form].free(rule)}
    log_n = 10 + FORMS[form].log_cost(BATCHES, None, float(BATCHES[0]), rule, known)
    return Sweep(
        group="made", name="", rule=rule, train_batch=BATCHES, responses=np.exp(log_n), error=np.zeros(BATCHES.size)
    )


class TestForms:
    @pytest.mark.parametrize("rule", RULES)
    @pytest.mark.parametrize("form", FORMS)
    def test_recover_what_made_the_sweep(self, form: str, rule: str) -> None:
        found = fit(FORMS[form], made(form, rule))
        assert found.log_rms < 1e-6
        for name, value in found.values.items():
            assert value == pytest.approx(TRUTH[name], abs=1e-4)
        assert found.predict(BATCHES) == pytest.approx(made(form, rule).responses, rel=1e-6)
        assert found.aic == pytest.approx(2 * (1 + len(found.values)), abs=1e-6)

    @pytest.mark.parametrize("rule", RULES)
    @pytest.mark.parametrize("form", FORMS)
    def test_exact_sweeps_are_extrapolated_exactly(self, form: str, rule: str) -> None:
        sweep = made(form, rule)
        assert leave_largest_out(FORMS[form], sweep) == pytest.approx(sweep.responses[-1], rel=1e-4)

    @pytest.mark.parametrize("rule", ["fixed", "sqrt"])
    @pytest.mark.parametrize("shape", [math.inf, 0.5])
    def test_are_the_law_of_the_package(self, rule: str, shape: float) -> None:
        form = FORMS["drift" if math.isinf(shape) else "k=1/2"]
        sweep = made(form.name, rule)
        law = sample_cost_ratio(BATCHES, reference_batch=64, noise_scale=1500, snr_shape=shape, lr_rule=rule)
        assert sweep.responses / sweep.responses[0] == pytest.approx(law, rel=1e-12)

    def test_drift_with_tuned_rates_is_the_hyperbola(self) -> None:
        one, other = (made(name, "tuned").responses for name in ("drift", "hyperbola"))
        assert one / one[0] == pytest.approx(other / other[0], rel=1e-12)

    def test_with_tuned_rates_lr_fraction_is_part_of_the_level(self) -> None:
        assert FORMS["unified"].free("tuned") == ("log_noise_scale",)

    def test_errors_weigh_the_points(self) -> None:
        sweep = made("power", "sqrt")
        off = sweep.responses.copy()
        off[3] *= 2
        plain = fit(FORMS["power"], dataclasses.replace(sweep, responses=off))
        error = np.where(np.arange(7) == 3, 100.0, 0.0)
        weighed = fit(FORMS["power"], dataclasses.replace(sweep, responses=off, error=error))
        assert abs(plain.level - 10) > 0.05
        assert weighed.level == pytest.approx(10, abs=1e-4)

    @given(
        form=st.sampled_from(sorted(FORMS)),
        rule=st.sampled_from(RULES),
        points=st.integers(2, 4),
        seed=st.integers(0, 100),
    )
    @settings(max_examples=15)
    def test_few_points_give_a_finite_and_repeatable_answer(self, form: str, rule: str, points: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        sweep = Sweep(
            group="random",
            name="",
            rule=rule,
            train_batch=BATCHES[:points],
            responses=np.exp(rng.normal(10, 1, points)),
            error=np.full(points, 0.1),
        )
        first, second = fit(FORMS[form], sweep), fit(FORMS[form], sweep)
        assert first == second
        assert np.isfinite(first.predict(BATCHES[:points])).all()


class TestLeaveOut:
    @pytest.mark.parametrize("rule", RULES)
    @pytest.mark.parametrize("form", FORMS)
    def test_never_sees_the_point(self, form: str, rule: str) -> None:
        sweep = made("coordinate", rule)
        moved = sweep.responses.copy()
        moved[-1] *= 7
        error = np.where(np.arange(7) == 6, 3.0, 0.0)
        changed = dataclasses.replace(sweep, responses=moved, error=error)
        assert leave_largest_out(FORMS[form], sweep) == leave_largest_out(FORMS[form], changed)


class TestStatistics:
    @pytest.mark.parametrize(("wins", "losses", "p"), [(0, 0, 1), (5, 5, 1), (0, 5, 0.0625), (1, 9, 22 / 1024)])
    def test_sign_test(self, wins: int, losses: int, p: float) -> None:
        assert sign_test(wins, losses) == pytest.approx(p)

    def test_crossing_lies_on_the_line_between_evaluations(self) -> None:
        assert crossing_point([(0, 0.2), (100, 0.4), (200, 0.6)], 0.5) == pytest.approx((100, 150, 200))
        assert crossing_point([(0, 0.2), (100, 0.4)], 0.5) is None
        assert crossing_point([(0, 0.6), (100, 0.7)], 0.5) is None


class TestDefaults:
    def test_every_rule_has_a_form(self) -> None:
        for rule in (*DEFAULTS, *UNMEASURED):
            assert default_form(rule) in FORMS

    def test_unknown_rule(self) -> None:
        with pytest.raises(InputError, match=r"no form is validated for the rule 'sqr'.*sqrt"):
            default_form("sqr")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return validate_samples(tmp_path_factory.mktemp("empty"))


class TestWithoutData:
    """What ships with the package is validated anyway."""

    def test_small_tables_stand_in(self, bare: dict[str, Any]) -> None:
        found = {(s["set"], s["rule"]) for s in bare["sets"]}
        assert found == {("tiny_grpo", "fixed"), ("tiny_grpo", "sqrt"), ("tiny_ppo", "sqrt")}
        assert {s["targets"] for s in bare["sets"]} == {3}
        assert bare["small_transformer"] is None
        json.dumps(bare, allow_nan=False)

    def test_is_deterministic(self, bare: dict[str, Any], tmp_path: Path) -> None:
        again = validate_samples(tmp_path)
        assert {k: v for k, v in again.items() if k != "skipped"} == {k: v for k, v in bare.items() if k != "skipped"}

    def test_absent_files_are_named(self, bare: dict[str, Any]) -> None:
        said = " ".join(bare["skipped"])
        for name in ("grpo_olmo2_1b", "isocompute", "zhang2024", "mlperf_rcp", "small transformer"):
            assert name in said
        assert said.count("absent") == 5

    def test_a_folder_that_does_not_exist(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no such folder"):
            validate_samples(tmp_path / "nowhere")


@pytest.fixture(scope="module")
def answer(shared: Path) -> dict[str, Any]:
    for needed in ("published", "tiny_grpo", "tiny_ppo"):
        if not (shared / needed).is_dir():
            pytest.skip(f"{shared / needed} is absent")
    return validate_samples(shared)


class TestPublished:
    @pytest.mark.parametrize(
        ("model", "smin", "b", "rms"),
        [
            ("85M", 1267, 2235, 0.059),
            ("151M", 1710, 3303, 0.069),
            ("302M", 2095, 5433, 0.040),
            ("604M", 2460, 7907, 0.044),
            ("1.2B", 3895, 11140, 0.038),
        ],
    )
    def test_zhang_as_in_the_notes(self, shared: Path, model: str, smin: float, b: float, rms: float) -> None:
        sweep = next(s for s in zhang2024(shared).sweeps if s.group == f"zhang2024 {model}")
        found = fit(FORMS["hyperbola"], sweep)
        noise = math.exp(found.values["log_noise_scale"])
        assert noise == pytest.approx(b, abs=0.6)
        # N = level (1 + B/b) and S = N/B, so S tends to level/b.
        assert math.exp(found.level) / noise == pytest.approx(smin, abs=0.6)
        assert found.log_rms == pytest.approx(rms, abs=6e-4)

    def test_olmo2_is_on_policy_and_censored(self, shared: Path) -> None:
        loaded = olmo2(shared)
        assert [s.name for s in loaded.sweeps] == ["0.45", "0.5", "0.55", "0.6", "0.65"]
        assert all(4096 not in s.train_batch for s in loaded.sweeps)
        assert loaded.sweeps[1].responses[0] == 256 * (325 - 12.5)
        assert any("4 of 5 points pass at the first evaluation" in s for s in loaded.skipped)

    def test_rcp_takes_the_newest_and_leaves_out_the_censored(self, shared: Path) -> None:
        loaded = mlperf_rcp(shared)
        sweeps = {s.group.removeprefix("mlperf_rcp "): s for s in loaded.sweeps}
        assert len(sweeps) == 15
        assert "qwen35_397b_grpo" not in sweeps
        assert any("qwen35_397b_grpo" in s and "upper bound" in s for s in loaded.skipped)
        bert = sweeps["bert"]
        assert bert.responses[bert.train_batch == 12288] == pytest.approx(4470336.0)
        assert sweeps["ssd"].responses.max() < 20

    def test_isocompute_ratios_as_in_the_notes(self, shared: Path) -> None:
        found = {}
        for sweep in isocompute(shared).sweeps:
            assert sweep.rate is not None
            reference = sweep.responses[0]
            large = sweep.train_batch == 8192
            fixed, sqrt = (sweep.responses[large & (sweep.rate == r)] / reference for r in (1.0, 2.83))
            found[float(sweep.name)] = (float(fixed[0]) / 8, float(sqrt[0]))
        assert tuple(found) == ISOCOMPUTE_TARGETS
        assert np.mean([math.log(f) / math.log(8) for f, _ in found.values()]) == pytest.approx(-0.5, abs=0.02)
        assert found[0.50][1] == pytest.approx(1.09, abs=0.02)
        assert found[0.58][1] == pytest.approx(1.41, abs=0.01)

    def test_tiny_grpo_as_in_the_notes(self, shared: Path) -> None:
        sweep = next(s for s in tiny(shared, "tiny_grpo").sweeps if (s.rule, s.name) == ("sqrt", "0.45"))
        assert sweep.responses[0] == pytest.approx(34.7e3, rel=2e-3)
        ratios = [1.07, 1.14, 1.18, 1.41, 1.78, 2.65]
        assert sweep.responses[1:] / sweep.responses[0] == pytest.approx(ratios, abs=0.006)

    def test_shipped_tables_agree_with_the_curves(self, shared: Path) -> None:
        for kind in ("tiny_grpo", "tiny_ppo"):
            for ours, shipped in zip(tiny(shared, kind).sweeps, tiny(None, kind).sweeps, strict=True):
                assert shipped.responses == pytest.approx(ours.responses, rel=0.08)


class TestAnswer:
    def test_every_row_is_finite(self, answer: dict[str, Any]) -> None:
        json.dumps(answer, allow_nan=False)
        for row in answer["rows"]:
            if row["predicted"] is None:
                # The unified law says that eight times the rate diverges: an outcome, not a number.
                assert (row["form"], row["rule"], row["covered"]) == ("unified", "transfer: linear from fixed", False)
                continue
            low, high = row["interval"]
            values = [row["predicted"], low, high, row["measured"], row["error"], row["peer"]]
            assert all(v is not None and math.isfinite(v) for v in values), row["claim"]
            assert low < row["predicted"] < high
            assert row["covered"] == (low <= row["measured"] <= high)
            assert row["error"] == pytest.approx(row["predicted"] / row["measured"] - 1)

    def test_every_form_speaks_of_the_same_points(self, answer: dict[str, Any]) -> None:
        points: dict[str, set[tuple[Any, ...]]] = {form: set() for form in FORMS}
        for row in answer["rows"]:
            points[row["form"]].add((row["set"], row["target"], row["rule"], row["measured"], row["peer"]))
        assert len({frozenset(p) for p in points.values()}) == 1
        assert len(answer["rows"]) == len(FORMS) * len(points["drift"])

    def test_targets_of_one_experiment_count_once(self, answer: dict[str, Any]) -> None:
        by_set = {(s["set"], s["rule"]): s["targets"] for s in answer["sets"]}
        assert by_set["tiny_grpo", "sqrt"] == len(TINY_TARGETS)
        assert by_set["isocompute", "transfer: sqrt from fixed"] == len(ISOCOMPUTE_TARGETS)
        assert answer["overall"]["sets"] == sum(rule in DEFAULTS for _, rule in by_set)

    def test_medians_lie_in_their_intervals(self, answer: dict[str, Any]) -> None:
        for part in [answer["overall"], *answer["slices"]]:
            for score in part["forms"].values():
                low, high = score["interval"]
                assert low <= score["median_abs_log_error"] <= high
                assert score["wins"] + score["losses"] + score["ties"] == part["sets"]

    def test_documented_default_is_what_the_data_decide(self, answer: dict[str, Any]) -> None:
        assert decide(answer) == DEFAULTS
        for rule, form in DEFAULTS.items():
            assert f"| {rule} | **{form}** |" in DOC

    def test_documented_scores_are_the_programs(self, answer: dict[str, Any]) -> None:
        parts = {"all": answer["overall"]} | {s["slice"]: s for s in answer["slices"]}
        section = DOC.split("## Leave the largest batch out")[1].split("\n## ")[0]
        rows = [[c.strip() for c in line.strip("|").split("|")] for line in section.splitlines() if line[:2] == "| "]
        header, body = rows[0], rows[1:]
        assert header[2:] == list(FORMS)
        for cells in body:
            shown = re.findall(r"\.\d+", " ".join(cells[2:]))
            forms = parts[cells[0]]["forms"]
            assert int(cells[1]) == parts[cells[0]]["sets"]
            assert [float(s) for s in shown] == pytest.approx(
                [forms[f]["median_abs_log_error"] for f in FORMS], abs=5.1e-4
            )
        assert len(body) == 7


class TestSmallTransformer:
    def test_documented_errors(self, answer: dict[str, Any]) -> None:
        found = answer["small_transformer"]
        section = DOC.split("## A small transformer")[1].split("\n## ")[0]
        for form, value in found["mean_error"].items():
            row = next(line for line in section.splitlines() if line.startswith(f"| {form} |"))
            assert f"| {100 * value:.1f} % |" in row
            assert "/".join(f"{100 * v:+.0f}" for v in found["largest_error"][form]) in row
            assert "/".join(f"{100 * v:+.0f}" for v in found["largest_error_without_start"][form]) in row

    def test_moments_predict_within_the_goal_and_the_forecast_misses_it(self, answer: dict[str, Any]) -> None:
        found = answer["small_transformer"]
        assert found["mean_error"]["A(B) of the moments"] < found["goal"]
        assert found["mean_error"]["drift"] < found["goal"]
        assert found["goal"] < found["mean_error"]["forecast from P <= 32"] < 0.1
        assert found["mean_error"]["hyperbola"] > 0.2

    def test_rows_as_in_the_notes(self, answer: dict[str, Any]) -> None:
        rows = [r for r in answer["small_transformer"]["sqrt"] if r["target"] == 0.38]
        assert [r["predicted"]["A(B) of the moments"] for r in rows] == pytest.approx(
            [1.04, 1.12, 1.25, 1.46, 1.78, 2.26], abs=0.006
        )
        assert [r["measured"] for r in rows] == pytest.approx([1.07, 1.06, 1.17, 1.41, 1.93, 3.02], abs=0.006)

    def test_the_start_explains_the_largest_batch(self, answer: dict[str, Any]) -> None:
        found = answer["small_transformer"]
        assert [s["lost_updates"] for s in found["start"]] == pytest.approx([1, 10 / 3])
        assert np.abs(found["largest_error"]["A(B) of the moments"]).max() > 0.2
        assert np.abs(found["largest_error_without_start"]["A(B) of the moments"]).max() < 0.05

    def test_no_single_lr_fraction_serves_all(self, answer: dict[str, Any]) -> None:
        one = {(o["rows"], o["curvature_fitted"]): o for o in answer["small_transformer"]["one_lr_fraction"]}
        assert one["all", True]["reduced_chi_square"] > 50
        assert one["sqrt and fixed", False]["reduced_chi_square"] > 20
        assert one["sqrt and fixed", True]["reduced_chi_square"] < 2.5
        probes = {
            r["rate"]: r["lr_fraction"][1] for r in answer["small_transformer"]["lr_fraction"] if r["rule"] == "probe"
        }
        assert probes[2.0] > probes[4.0] > probes[8.0]


class TestCommand:
    def run(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(["validate", *arguments])
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    def test_tables_and_plot(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        status, out, _ = self.run(
            capsys, "samples", "--data", str(tmp_path / "data"), "--plot", str(tmp_path / "errors.svg")
        )
        assert status == 0
        assert "no form predicts the largest batch better than the plain hyperbola" in out or "is best" in out
        assert "skipped: zhang2024" in out
        assert (tmp_path / "errors.svg").stat().st_size > 1000

    def test_json(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        status, out, _ = self.run(capsys, "samples", "--data", str(tmp_path), "--json")
        found = json.loads(out)
        assert status == 0
        assert {"name", "overall", "slices", "rows", "skipped"} <= set(found)
        assert {"claim", "predicted", "interval", "measured", "error", "covered", "peer"} <= set(found["rows"][0])

    def test_everything(self, answer: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
        from batchsim.cli.validate import print_samples

        print_samples(answer)
        out = capsys.readouterr().out
        assert "Over all 24 sets no form predicts the largest batch better than the plain hyperbola (0.049)." in out
        assert "Updates until the score is back at its start: 1.0 at B = 2048, 3.3 at B = 4096." in out

    def test_unknown_claim(self, capsys: pytest.CaptureFixture[str]) -> None:
        status, _, err = self.run(capsys, "sample")
        assert status == 2
        assert "samples" in err

    def test_plot_holds_every_error(self, answer: dict[str, Any]) -> None:
        ax = plot_validation(answer)
        shown = [s for s in answer["sets"] if s["rule"] in DEFAULTS]
        assert [line.get_label() for line in ax.lines[: len(FORMS)]] == list(FORMS)
        for line, form in zip(ax.lines, FORMS, strict=False):
            drawn = np.asarray(line.get_xdata(), dtype=np.float64)
            assert sorted(drawn.tolist()) == sorted(s["log_error"][form] for s in shown)


def test_every_key_is_documented(answer: dict[str, Any]) -> None:
    def keys(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            for key, inner in value.items():
                yield key
                yield from keys(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from keys(inner)

    words = set(re.findall(r"\w+", DOC))
    named = {k for k in keys(answer) if re.fullmatch(r"[a-z_]+", k)} - set(FORMS)
    assert sorted(named - words) == []


def test_load_without_a_folder_names_the_option() -> None:
    sweeps, skipped = load(None)
    assert {s.group for s in sweeps} == {"tiny_grpo", "tiny_ppo"}
    assert sum("give --data" in s for s in skipped) == 4
