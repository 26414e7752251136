"""The figures' scripts: what they draw, that they draw it twice alike, and what they do without raw logs."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parent.parent / "paper_figures"
CHEAP = ("fig_01_routes", "fig_07_collection", "fig_08_critical", "fig_09_coupled")
NEEDS_LOGS = ("fig_11_mlperf", "fig_12_tiny")
"""Figures that raw logs add to, and that are cheap without."""
PURE = {"fig_01_routes", "fig_02_loop"}
"""Figures one of whose panels is a drawing."""


def script(name: str) -> Any:
    """A script or helper of the folder as a module."""
    return importlib.import_module(name)


@pytest.fixture(autouse=True)
def drawing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folder on the path, figures closed and settings put back."""
    from matplotlib import pyplot

    monkeypatch.syspath_prepend(str(FOLDER))
    with matplotlib.rc_context():
        pyplot.switch_backend("Agg")
        yield
        pyplot.close("all")


@pytest.fixture
def no_logs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A plain clone: no folder of measured data anywhere."""
    monkeypatch.delenv("BATCHSIM_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(script("house"), "data_folder", lambda: None)


def words(fig: Any) -> str:
    """All text of a figure."""
    fig.draw_without_rendering()
    return "\n".join(t.get_text() for t in fig.findobj(matplotlib.text.Text))


# -- the command --------------------------------------------------------------------------------------


def test_every_script_is_listed() -> None:
    make = script("make")
    assert [make.number(name) for name in make.SCRIPTS] == list(range(1, 16))
    assert set(make.chosen([])) == {path.stem for path in FOLDER.glob("fig_*.py")}
    assert all(make.title(name) in make.parser().format_help() for name in make.SCRIPTS)


@pytest.mark.parametrize("asked", ["10", "time_to_target", "fig_10_time_to_target", "fig_10_time_to_target.py"])
def test_a_figure_is_chosen_by_number_and_name(asked: str) -> None:
    assert script("make").chosen([asked, "10"]) == ["fig_10_time_to_target"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["16"], "no figure '16'.*choose a number or a name of: 1 routes,.*15 target"),
        (["route"], "no figure 'route'; did you mean 'routes'"),
        (["1", "--data", "nowhere"], "--data nowhere is not a folder"),
    ],
)
def test_bad_input_is_refused_with_a_remedy(
    arguments: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script("make").main([*arguments, "--out", str(tmp_path / "out")]) == 2
    assert re.search(named, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_a_file_is_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "taken").write_text("")
    assert script("make").main(["1", "--out", str(tmp_path / "taken")]) == 2
    assert "cannot be made a folder" in capsys.readouterr().err


def test_two_runs_give_the_same_bytes(tmp_path: Path) -> None:
    make = script("make")
    for name in ("first", "second"):
        make.make(["fig_07_collection"], tmp_path / name)
    files = sorted((tmp_path / "first").iterdir())
    assert [f.name for f in files] == ["fig_07_collection.pdf", "fig_07_collection.png"]
    for file in files:
        assert file.read_bytes() == (tmp_path / "second" / file.name).read_bytes()


def test_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house = script("house")
    fig, _ = house.panels()

    def fails(path: Path, **given: Any) -> None:
        Path(path).write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(fig, "savefig", fails)
    with pytest.raises(OSError, match="disk full"):
        house.save(fig, tmp_path / "fig")
    assert not list(tmp_path.iterdir())


# -- what every figure has ----------------------------------------------------------------------------


@pytest.mark.usefixtures("no_logs")
@pytest.mark.parametrize("name", [*CHEAP, *NEEDS_LOGS, "fig_02_loop", "fig_10_time_to_target"])
def test_axes_are_named_and_the_foot_says_what_is_what(name: str) -> None:
    fig = script(name).figure()
    foot = fig.get_supxlabel()
    assert re.search(r"Predicted|Simulated|Published|Measured|Fitted", foot)
    for ax in fig.axes:
        if ax.axison:
            assert ax.get_xlabel(), ax.get_title()
            assert ax.get_ylabel() or len(ax.get_yticklabels()) or ax.get_shared_y_axes().get_siblings(ax)
    assert any("(" in ax.get_xlabel() + ax.get_ylabel() or "relative" in words(fig) for ax in fig.axes)


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("fig_*.py")))
def test_a_script_is_a_gallery_page(name: str) -> None:
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    page = re.match(r'r"""\n(\d+)\. (.+)\n(=+)\n', text)
    assert page is not None
    assert page[1] == str(int(name.split("_")[1]))
    assert len(page[3]) == len(page[1]) + 2 + len(page[2])
    assert text.count("\n# %%\n") >= 2
    assert re.search(r"\*\*(Measured|Predicted|Simulated|Published)\*\*", text)
    assert not re.search(r"(from batchsim[\w.]* import |\.)_[a-z]", text), "public names only"


def test_a_page_runs_without_a_file_of_its_own() -> None:
    from matplotlib import pyplot

    source = (FOLDER / "fig_07_collection.py").read_text(encoding="utf-8")
    exec(compile(source, "<gallery>", "exec"), {"__name__": "__main__"})
    assert len(pyplot.get_fignums()) == 1


# -- what is drawn ------------------------------------------------------------------------------------


def test_routes_are_the_laws() -> None:
    from batchsim.criterion import time_ratio

    found = script("fig_01_routes").routes()
    assert found["time"] == pytest.approx(time_ratio(sample_cost_ratio=found["cost"], throughput_ratio=found["gain"]))
    assert found["time"][2] < found["time"][1] < found["time"][0] == 1 < found["time"][3]


def test_norms_of_pure_noise_have_slope_minus_one_half() -> None:
    house = script("house")
    _, ax = house.panels()
    line = house.half_slope(ax, [64, 128, 4096], (64, 2.0))
    assert np.diff(np.log(line)) / np.diff(np.log([64, 128, 4096])) == pytest.approx(-0.5)


def test_the_small_transformer_pays_what_measure_says() -> None:
    found = {b: round(r[1], 1) for b, r in script("fig_08_critical").measured("0.45").items()}
    assert found == {64: 1.0, 128: 1.1, 256: 1.1, 512: 1.2, 1024: 1.4, 2048: 1.8, 4096: 2.6}


def test_collection_gains_are_the_published_ones() -> None:
    module = script("fig_07_collection")
    gains = module.gains()
    assert round(gains["PPO"][1024], 2) == 2.29
    assert (gains["GRPO"][256], gains["GRPO"][512]) == (1.31, 1.36)
    assert float(module.law(np.array([4.0]), factor=2, gain=1.31)[0]) == pytest.approx(1.55, abs=0.005)
    assert float(module.law(np.array([4.0]), factor=2, gain=1.31, plateau=1.36)[0]) == pytest.approx(1.36)
    fig = module.figure()
    heights = [bar.get_height() for bar in fig.axes[1].patches]
    assert heights == pytest.approx([1, 2, 4, 1, 2 / 1.31, 4 / 1.36])


def test_updates_at_twice_the_batch() -> None:
    module = script("fig_06_learning_rate")
    assert module.published() == {"sqrt": (0.5, 0.67), "fixed": (0.75, 0.83)}
    measured = module.measured()
    assert measured["sqrt"][1] < 0.6 < measured["fixed"][0]


def test_the_star_is_the_predicted_one() -> None:
    module = script("fig_09_coupled")
    for setting, order in zip(module.SETTINGS, (1, -1), strict=True):
        time = setting.ratios(module.BATCHES)[2]
        near = module.BATCHES[time <= 1.05 * time.min()]
        assert setting.star() == near[0] == setting.effective()[0]
        gen, train = setting.critical()
        assert np.sign(train - gen) == order
    fig = module.figure()
    for ax, setting in zip(fig.axes, module.SETTINGS, strict=True):
        stars = [line for line in ax.get_lines() if line.get_marker() == "*"]
        assert [float(line.get_xdata()[0]) for line in stars] == [setting.star()]


def test_time_to_target_shows_the_published_points_and_the_miss() -> None:
    module = script("fig_10_time_to_target")
    points = {128: 1.0, 512: 0.74, 1024: 0.71, 2048: 1.23, 4096: 1.18}
    assert module.published() == points
    fig = module.figure()
    drawn = {
        (float(x), float(y))
        for line in fig.axes[0].get_lines()
        if line.get_color() == script("house").MEASURED
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    }
    assert drawn == {(float(p), t) for p, t in points.items()}
    forecast = module.forecast("sqrt")
    low, middle, high = module.quantiles(forecast)
    assert (low <= middle).all()
    assert (middle <= high).all()
    assert f"{100 * max(module.errors(forecast).values()):.0f}\N{NO-BREAK SPACE}% too slow" in fig.get_supxlabel()


def test_step_times_of_the_large_model() -> None:
    module = script("fig_11_mlperf")
    runs = module.step_times()
    assert {b: len(s) for b, s in runs.items()} == {256: 6, 512: 6, 1024: 6}
    assert float(module.law().predict([1024])[0, 0]) == pytest.approx(1005, abs=1)
    assert float(np.mean(runs[1024])) == pytest.approx(969, abs=1)


def test_regrets_are_read_from_scores() -> None:
    scores = {f"{s}_regret": v for s, v in (("median", 0.1), ("mean", 0.2), ("p95", 0.3))}
    overall = scores | {f"prior_only_{k}": v for k, v in scores.items()} | {"habits": {"keep": scores}, "n": 3}
    found = script("fig_14_regret").regrets(overall)
    assert set(found) == {"forecast from two pilots", "forecast, prior only", "habit: keep"}
    assert set(found.values()) == {(0.1, 0.2, 0.3)}


# -- a plain clone ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_logs")
@pytest.mark.parametrize("name", NEEDS_LOGS)
def test_a_panel_without_logs_says_why(name: str) -> None:
    said = " ".join(words(script(name).figure()).split())
    assert "BATCHSIM_DATA" in said


@pytest.mark.usefixtures("no_logs")
@pytest.mark.parametrize("name", ["fig_03_grpo", "fig_04_ppo", "fig_05_groups", "fig_06_learning_rate"])
def test_measured_curves_without_logs_are_left_out(name: str) -> None:
    curves, why = script(name).measured_curves()
    assert not curves
    assert "BATCHSIM_DATA" in why


@pytest.mark.usefixtures("no_logs")
def test_serving_rows_that_ship_stand_in() -> None:
    rows, peer, why = script("fig_13_serving").rows()
    assert rows
    assert not why
    assert peer.startswith("aiconfigurator")
    assert "serving rows, GPU held out" in words(script("fig_13_serving").figure())
