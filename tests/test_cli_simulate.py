from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure

from batchsim.cli import main
from batchsim.cli.simulate import stated_law
from batchsim.errors import InputError
from batchsim.plot import plot_rollout
from batchsim.system.decode_law import DecodeLaw
from batchsim.system.rollout import pipelined_rollout, rollout

SMALL = ("--law", "0.01,2e-5,3e-9,1e-5", "--prompts", "8", "--group-size", "4", "--response-tokens", "200")


def run(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["simulate", "rollout", *arguments])
    captured = capsys.readouterr()
    assert stopped.value.code == status, captured.err
    return captured.err if status else captured.out


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(capsys, *arguments, "--json"))
    return found


class TestRollout:
    def test_a_stated_law_by_hand(self, capsys: pytest.CaptureFixture[str]) -> None:
        """One response of one length: the command equals the formula."""
        found = answer(
            capsys,
            *("--law", "0.01,0,1e-6,1e-4", "--prompts", "1", "--group-size", "1", "--spread", "0"),
            *("--response-tokens", "5", "--prompt-tokens", "100", "--seeds", "1"),
        )
        expected = 5 * 0.01 + 100 * 1e-4 + 1e-6 * (101 + 102 + 103 + 104)
        assert found["summary"]["gen_time"]["mean"] == pytest.approx(expected, rel=1e-12)
        assert found["summary"]["gen_time"]["standard_error"] is None
        assert found["summary"]["responses_kept"]["mean"] == 1

    def test_a_table_with_its_notes(self, capsys: pytest.CaptureFixture[str]) -> None:
        out = run(capsys, *SMALL)
        assert "time to collect the responses of a rollout step" in out
        assert "at most 32 sequences ran at once; max_num_seqs allows 256" in out

    def test_filtering_launches_more(self, capsys: pytest.CaptureFixture[str]) -> None:
        found = answer(capsys, *SMALL, "--pass-rate", "0.3", "--seeds", "4")
        assert found["summary"]["responses_kept"]["mean"] == 32
        assert found["summary"]["responses_launched"]["mean"] > 36
        assert found["summary"]["wasted_tokens"]["mean"] > 0

    @pytest.mark.parametrize("mode", ["partial", "async"])
    def test_pipelines(self, capsys: pytest.CaptureFixture[str], mode: str) -> None:
        found = answer(
            capsys,
            *SMALL,
            "--mode",
            mode,
            "--gen-ratio",
            "2",
            "--updates",
            "12",
            "--seeds",
            "2",
            "--update-seconds",
            "1",
        )
        assert 0.3 < found["summary"]["staleness_mean"]["mean"] < 2
        assert found["summary"]["kept_throughput"]["mean"] > 0
        assert "means over updates 4 to 12" in found["warnings"]

    def test_turns_wait_for_their_environment(self, capsys: pytest.CaptureFixture[str]) -> None:
        one = answer(capsys, *SMALL)["summary"]["gen_time"]["mean"]
        tools = ("--turns", "3", "--environment-seconds", "10", "--environment-tokens", "40")
        several = answer(capsys, *SMALL, *tools)
        assert several["summary"]["gen_time"]["mean"] > one + 20
        again = answer(capsys, *SMALL, *tools, "--give-back-kv")
        assert again["summary"]["recomputed_tokens"]["mean"] > several["summary"]["recomputed_tokens"]["mean"] == 0

    def test_the_launch_limit_bounds_the_age(self, capsys: pytest.CaptureFixture[str]) -> None:
        fresh = answer(capsys, *SMALL, "--mode", "async", "--in-flight", "16", "--launch-ahead", "0", "--seeds", "1")
        assert fresh["summary"]["staleness_max"]["mean"] == 0

    def test_the_cache_binds_and_is_said_to(self, capsys: pytest.CaptureFixture[str]) -> None:
        found = answer(capsys, *SMALL, "--kv-tokens", "4000", "--prompt-tokens", "50", "--max-tokens", "400")
        assert found["kv_tokens"] == 4000
        assert found["summary"]["preemptions_total"]["mean"] > 1
        assert any("the cache is full" in said for said in found["warnings"])

    def test_batches_and_the_tangent(self, capsys: pytest.CaptureFixture[str]) -> None:
        found = answer(capsys, *SMALL, "--batches", "16,32,64")
        times = [row["gen_time"] for row in found["batches"]]
        assert times == sorted(times)
        at = found["tangent"]
        assert at["gen_batch"] == 32
        assert at["gen_time_intercept"] + at["gen_time_slope"] * 32 == pytest.approx(times[1])
        assert at["gen_throughput_max"] > 64 / times[2]
        assert "s x B_gen, at most" in run(capsys, *SMALL, "--batches", "16,32")

    def test_the_same_seed_is_the_same_answer(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert answer(capsys, *SMALL, "--seed", "3") == answer(capsys, *SMALL, "--seed", "3")
        assert answer(capsys, *SMALL, "--seed", "3") != answer(capsys, *SMALL, "--seed", "4")

    def test_a_model_and_a_gpu(self, capsys: pytest.CaptureFixture[str]) -> None:
        found = answer(
            capsys, "--model", "Qwen3-8B", "--gpu", "H100", "--prompts", "8", "--response-tokens", "100", "--seeds", "1"
        )
        assert "H100" in found["law"]
        assert found["kv_tokens"] > 100_000

    def test_files(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        picture, data = tmp_path / "r.svg", tmp_path / "r.nc"
        run(capsys, *SMALL, "--plot", str(picture), "--out", str(data))
        assert picture.read_text(encoding="utf-8").count("svg")
        with xr.open_dataset(data, engine="h5netcdf") as ds:
            assert ds["finish_time"].size == 32
            assert ds["finish_time"].attrs["units"] == "s"

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((), "give --model and --gpu, or --law"),
            (("--law", "0.01"), "is not t0,t1,kappa"),
            (("--law", "0,1,1"), "is not t0,t1,kappa"),
            (("--law", "a,b,c"), "is not a list of numbers"),
            (("--law", "0.01,0,0", "--model", "Qwen3-8B"), "one or the other"),
            ((*SMALL, "--spread", "9"), "--spread 9"),
            ((*SMALL, "--mode", "asink"), "did you mean 'async'"),
            ((*SMALL, "--kv-tokens", "64"), "a replica holds 4"),
            ((*SMALL, "--group-size", "1", "--pass-rate", "0.5"), "would be kept"),
            ((*SMALL, "--batches", "7"), "no whole number of groups of 4"),
            ((*SMALL, "--out", "r.csv"), "no data format '.csv'"),
            ((*SMALL, "--plot", "r.bmp"), "no plot format '.bmp'"),
            (("--model", "Qwen3-8B", "--gpu", "H100", "--cache", "fp7"), "did you mean 'fp8'"),
        ],
    )
    def test_bad_input(self, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str) -> None:
        said = run(capsys, *arguments, status=2)
        assert message in said
        assert said.count("\n") == 1


def test_a_stated_law_rejects_infinities() -> None:
    with pytest.raises(InputError):
        stated_law("inf,0,0", 3)
    law = stated_law("1,2,3", 3)
    assert law.step_time.tolist() == [0, 3, 5, 7]
    assert (law.context_time, law.prefill_time) == (3, 0)


def test_help_loads_no_array_library() -> None:
    script = (
        "from batchsim.cli import main\n"
        "try:\n    main(['simulate', 'rollout', '--help'])\nexcept SystemExit:\n    pass\n"
        "import sys; print([m for m in ('numpy', 'numba', 'scipy', 'xarray', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


class TestPlot:
    LAW = DecodeLaw(step_time=np.array([0.0, 1.0, 1.0, 1.0]), context_time=0.0, name="a law")

    def test_concurrency_and_the_tail(self) -> None:
        ds = rollout(law=self.LAW, prompt_tokens=1, response_tokens=[3, 4, 10], max_num_seqs=3)
        ax = plot_rollout(ds, ax=Figure().subplots())
        (curve,) = ax.get_lines()
        assert np.asarray(curve.get_xdata()).tolist() == [0, 3, 4, 10]
        assert np.asarray(curve.get_ydata()).tolist() == [3, 2, 1, 1]
        # Below half of 3 from second 4 on.
        (shade,) = ax.patches
        assert shade.get_extents().transformed(ax.transData.inverted()).x0 == pytest.approx(4)
        assert ax.get_xlabel().endswith("(s)")
        assert ax.get_title() == "a law"
        assert [t.get_text() for t in ax.get_legend().get_texts()] == ["running sequences", "tail, 60 %"]  # type: ignore[union-attr]

    def test_updates_are_marked(self) -> None:
        ds = pipelined_rollout(
            law=self.LAW, prompt_tokens=1, response_tokens=np.arange(1, 13), prompts=2, updates=3, max_num_seqs=3
        )
        ax = plot_rollout(ds)
        marks = [line.get_xdata()[0] for line in ax.get_lines()[1:]]  # type: ignore[index]
        np.testing.assert_array_equal(marks, ds["taken_time"])
