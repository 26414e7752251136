"""Alignment at equal responses, crossings of every kind, evaluation grids and targets."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from test_measure import Invented, arms_of, invented, said, sweep, write_runs

from batchsim.errors import InputError
from batchsim.learning.curve import crossing
from batchsim.measure import measure, measure_targets
from batchsim.measure.runs import coarsen, evaluation_spacing
from batchsim.plot import plot_sample_cost
from batchsim.variables import VARIABLES

# -- crossings --------------------------------------------------------------------------------------


def naive_bounds(scores: list[float], target: float, kind: str, error: float) -> tuple[int | None, int | None]:
    """Evaluations before the first possible pass and at the first certain one, by a search over all of them."""

    def first(passed: list[bool]) -> int | None:
        for i in range(len(passed)):
            if passed[i] and (kind == "first" or all(passed[i:])):
                return i
        return None

    possible, certain = (first([s + sign * error >= target for s in scores]) for sign in (1, -1))
    low = (len(scores) if possible is None else possible) - 1
    return (low if low >= 0 else None), certain


@given(
    scores=st.lists(st.sampled_from([0.1, 0.3, 0.45, 0.5, 0.55, 0.8]), min_size=1, max_size=9),
    kind=st.sampled_from(["first", "sustained"]),
    error=st.sampled_from([0.0, 0.05, 0.2]),
)
def test_crossing_is_its_naive_twin(scores: list[float], kind: str, error: float) -> None:
    n = np.arange(len(scores)) * 100.0
    found = crossing(n, scores, target=0.5, kind=kind, score_error=error)
    assert found is not None
    low, high = naive_bounds(scores, 0.5, kind, error)
    assert (found.index_low, found.index_high) == (low, high)
    assert found.low == (0 if low is None else n[low])
    assert found.high == (math.inf if high is None else n[high])


@given(scores=st.lists(st.floats(0, 1), min_size=1, max_size=12), error=st.floats(0, 0.3))
def test_an_error_only_widens_and_a_sustained_pass_is_never_earlier(scores: list[float], error: float) -> None:
    n = np.arange(len(scores)) * 10.0
    exact = crossing(n, scores, target=0.5)
    loose = crossing(n, scores, target=0.5, score_error=error)
    lasting = crossing(n, scores, target=0.5, kind="sustained")
    assert exact is not None
    assert loose is not None
    assert lasting is not None
    assert loose.low <= exact.low
    assert loose.high >= exact.high
    assert lasting.high >= exact.high


def test_crossing_refuses_what_it_does_not_know() -> None:
    with pytest.raises(InputError, match="unknown kind of crossing 'last'"):
        crossing([0.0], [1.0], target=0.5, kind="last")
    with pytest.raises(InputError, match=r"score_error is -0\.1"):
        crossing([0.0], [1.0], target=0.5, score_error=-0.1)


# -- errors of scores -------------------------------------------------------------------------------


def test_a_binomial_error_comes_from_the_size_of_the_evaluation(shared: Path) -> None:
    from batchsim.logs import read_logs

    runs = read_logs(sorted((shared / "mlperf_grpo").glob("gbs256*")))
    exact = measure(runs)["runs"].to_dataset()
    assert exact["censoring"].values.tolist() == ["left"] * 6
    # 256 samples at .71 have an error of .028: no score of .703 to .754 is above .69 for sure but the largest.
    noisy = measure(runs, score_error="binomial")["runs"].to_dataset()
    scores = [float(node.to_dataset()["score"].values[0, 0]) for node in runs.children.values()]
    for score, high in zip(scores, noisy["responses_to_target"].sel(bound="high").values, strict=True):
        # Sure at the level of the measurement: 1.28 standard errors for a central 80 %.
        assert np.isfinite(high) == (score - 1.2816 * math.sqrt(score * (1 - score) / 256) >= 0.69)


def test_a_binomial_error_needs_a_size_and_a_share(tmp_path: Path) -> None:
    tree = invented(tmp_path, *sweep())
    with pytest.raises(InputError, match="does not state how many samples"):
        measure(tree, target=0.5, score_error="binomial")
    with pytest.raises(InputError, match="neither a number nor 'binomial'"):
        measure(tree, target=0.5, score_error="poisson")


# -- grids ------------------------------------------------------------------------------------------


def test_grids_that_differ_are_said_and_can_be_made_common(tmp_path: Path) -> None:
    fine = Invented(run="fine", prompts=16, responses_to_target=2000)
    coarse = Invented(run="coarse", prompts=64, responses_to_target=2000, learning_rate=2e-6, steps=10)
    tree = invented(tmp_path, fine, coarse)
    assert "evaluations are 128 to 512 responses apart" in said(measure(tree, target=0.5))
    common = measure(tree, target=0.5, common_grid=True)
    assert "responses apart" not in said(common)
    bounds = common["runs"].to_dataset()["responses_to_target"].sel(bound=["low", "high"]).values
    assert bounds.tolist() == [[1536, 2048], [1536, 2048]]


@given(spacing=st.floats(100, 3000))
def test_a_coarser_grid_holds_the_first_evaluation_of_every_cell(spacing: float) -> None:
    n = np.arange(0, 6000, 128.0)
    ds = xr.Dataset({"evaluation_responses": ("evaluation", n)})
    kept = coarsen(ds, spacing)["evaluation_responses"].values
    naive = [float(n[0])]
    for value in n[1:]:
        if math.floor(value / spacing * (1 + 1e-9)) > math.floor(naive[-1] / spacing * (1 + 1e-9)):
            naive.append(float(value))
    assert kept.tolist() == naive
    assert np.isnan(evaluation_spacing(ds.isel(evaluation=[0])))


# -- alignment --------------------------------------------------------------------------------------


def repeated(run: Invented, *, shifts: tuple[float, ...]) -> list[Invented]:
    """Repeats of a run whose N* scatters by given factors."""
    return [
        replace(run, run=f"{run.run}_{i}", responses_to_target=float(run.responses_to_target * s))
        for i, s in enumerate(shifts)
    ]


SMALL = Invented(run="small", prompts=16, responses_to_target=4000)


def alignment(tree: xr.DataTree, **options: float) -> xr.Dataset:
    return arms_of(measure(tree, target=0.5, **options))  # type: ignore[arg-type]


def test_curves_that_agree_are_inside_and_curves_apart_outside(tmp_path: Path) -> None:
    quiet = (1.0, 1.002, 0.998)
    same = replace(SMALL, run="same", prompts=32, learning_rate=2**0.5 * 1e-6, steps=20)
    apart = replace(SMALL, run="apart", prompts=64, learning_rate=2e-6, responses_to_target=5000, steps=10)
    runs = [r for run in (SMALL, same, apart) for r in repeated(run, shifts=quiet)]
    measured = measure(invented(tmp_path, *runs), target=0.5)
    arms = arms_of(measured)
    assert arms["alignment"].values.tolist() == ["", "inside", "outside"]
    assert measured.attrs["aligned_up_to"] == {"sqrt": {"inside": 256.0, "not_outside": 256.0}}
    # The lines .2 + .3 n/4000 and .2 + .3 n/5000 are farthest apart at the last shared evaluation.
    assert arms["alignment_at"].values[2] == 5120
    assert arms["alignment_gap"].sel(bound="estimate").values[2] == pytest.approx(
        0.3 * 5120 * (1 / 5000 - 1 / 4000), rel=0.01
    )
    low, _, high = arms["alignment_gap"].values[1]
    assert low < 0 < high


def test_without_repeats_nothing_is_sure_unless_an_error_is_stated(tmp_path: Path) -> None:
    other = replace(SMALL, run="other", prompts=32, learning_rate=2**0.5 * 1e-6, responses_to_target=5000, steps=20)
    tree = invented(tmp_path, SMALL, other)
    assert alignment(tree)["alignment"].values.tolist() == ["", "undecided"]
    assert alignment(tree, score_error=1e-4)["alignment"].values.tolist() == ["", "outside"]
    assert alignment(tree, score_error=1e-4, band=0.5)["alignment"].values.tolist() == ["", "inside"]


def test_limits_are_simultaneous(tmp_path: Path) -> None:
    """Curves of one distribution leave a band of width zero at level .9 in about a tenth of the cases, not in half."""
    rng = np.random.default_rng(5)
    outside = 0
    for trial in range(60):
        folder = tmp_path / str(trial)
        folder.mkdir()
        runs = [
            *repeated(SMALL, shifts=tuple(np.exp(0.05 * rng.standard_normal(3)))),
            *repeated(
                replace(SMALL, run="other", prompts=32, learning_rate=2**0.5 * 1e-6, steps=20),
                shifts=tuple(np.exp(0.05 * rng.standard_normal(3))),
            ),
        ]
        arms = arms_of(measure(invented(folder, *runs), target=0.5, level=0.9, band=1e-12))
        outside += arms["alignment"].values[1] == "outside"
    assert outside <= 12


def test_runs_without_a_shared_stretch_are_not_compared(shared: Path) -> None:
    """MLPerf's runs have one evaluation each."""
    from batchsim.logs import read_logs

    measured = measure(read_logs(shared / "mlperf_grpo"))
    assert arms_of(measured)["alignment"].values.tolist() == ["", "", ""]
    assert measured.attrs["aligned_up_to"] == {}


def test_the_band_is_one_point_of_the_score(tmp_path: Path) -> None:
    assert measure(invented(tmp_path, SMALL), target=0.5).attrs["band"] == 0.01
    percent = [replace(SMALL, start=20.0)]
    folder = tmp_path / "percent"
    folder.mkdir()
    assert measure(invented(folder, *percent), target=0.5).attrs["band"] == 1.0


# -- targets ----------------------------------------------------------------------------------------


def test_targets_are_measurements_side_by_side(tmp_path: Path) -> None:
    tree = invented(tmp_path, *sweep())
    ds = measure_targets(tree, [0.5, 0.4])
    assert ds["target"].values.tolist() == [0.4, 0.5]
    for target in (0.4, 0.5):
        one = arms_of(measure(tree, target=target))
        xr.testing.assert_equal(
            ds.sel(target=target)["sample_cost_ratio"].drop_vars("target"), one["sample_cost_ratio"]
        )
    for name in ds.variables:
        assert ds[name].attrs["units"] == VARIABLES[str(name)].unit
    with pytest.raises(InputError, match="no targets given"):
        measure_targets(tree, [])


def test_the_plot_shows_the_ratios(tmp_path: Path) -> None:
    ds = measure_targets(invented(tmp_path, *sweep()), [0.4, 0.45, 0.5])
    axes = plot_sample_cost(ds)
    drawn = {line.get_label(): line.get_ydata() for line in axes.lines}
    for i, batch in enumerate(ds["train_batch"].values[0]):
        label = next(name for name in drawn if str(name).startswith(f"B = {batch:g},"))
        expected = ds["sample_cost_ratio"].sel(bound="estimate").values[:, i]
        np.testing.assert_array_equal(np.asarray(drawn[label]), expected)


def test_more_than_the_batch_changed_is_said(tmp_path: Path) -> None:
    other_group = replace(SMALL, run="other", prompts=16, group_size=16, learning_rate=2**0.5 * 1e-6, steps=20)
    assert "group_size is 8, 16" in said(measure(invented(tmp_path, SMALL, other_group), target=0.5))


# -- the command line -------------------------------------------------------------------------------


@pytest.fixture
def run_cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    from batchsim.cli import main

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stopped:
            main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return int(stopped.value.code or 0), out, err

    return run


def test_measure_prints_targets_and_alignment(run_cli: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    path = write_runs(tmp_path, *sweep())
    plot = tmp_path / "r_n.png"
    status, out, _ = run_cli("measure", path, "--targets", "0.4,0.5", "--plot", plot)
    assert status == 0
    assert "r_N by target" in out
    assert "scores at equal responses" in out
    assert plot.stat().st_size > 1000
    status, out, _ = run_cli("measure", path, "--targets", "0.4,0.5", "--json")
    answer = json.loads(out)
    assert [entry["target"] for entry in answer["targets"]] == [0.4, 0.5]
    assert answer["target"] == 0.5
    assert {row["alignment"]["outcome"] for row in answer["batches"]} <= {None, "inside", "outside", "undecided"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--plot", "x.png"], "give --targets"),
        (["--targets", "a"], "is not a list of numbers"),
        (["--crossing", "last"], "unknown kind of crossing 'last'"),
        (["--score-error", "much"], "neither a number nor 'binomial'"),
        (["--score-error", "-1"], "--score-error -1 is not a standard error, 0 or more"),
        (["--targets", "0.4", "--plot", "x.gif"], "no plot format '.gif'"),
    ],
)
def test_measure_refuses(
    run_cli: Callable[..., tuple[int, str, str]], tmp_path: Path, options: list[str], message: str
) -> None:
    status, out, err = run_cli("measure", write_runs(tmp_path, *sweep()), "--target", "0.5", *options)
    assert status == 2
    assert message in err
    assert out == ""
