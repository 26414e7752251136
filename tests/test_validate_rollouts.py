from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from batchsim.errors import InputError
from batchsim.validate import rollouts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Invented measurements: one trace that the simulator itself made would be circular, so only forms are checked."""
    (tmp_path / "decode").mkdir()
    for trace in rollouts.TRACES:
        with (tmp_path / f"decode/trace_{trace.name}_requests.csv").open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow(
                ["request_id", "input_toks", "output_toks", "queued_s", "scheduled_s", "first_token_s", "last_token_s"]
            )
            out.writerows([f"r{i}", 100, 50, 0.1 * i, 0.1 * i, 0.1 * i + 0.1, 0.1 * i + 1.1] for i in range(20))
        with (tmp_path / f"decode/trace_{trace.name}_timeseries.csv").open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow(["t", "prompt_throughput", "gen_throughput", "running", "waiting", "kv_cache_pct"])
            out.writerows([t, 0, 0, 10, 0, 50] for t in (1.0, 1.5, 2.0))
    return tmp_path


class TestTrace:
    def test_rows_and_slices(self, folder: Path) -> None:
        found = rollouts.validate_trace(folder)
        assert found["name"] == "trace"
        # Blind and with the logged cache, makespan and latency, two runs.
        assert len(found["rows"]) == 8
        assert len(found["slices"]) == 4
        for row in found["rows"]:
            assert row["error"] == pytest.approx(row["predicted"] / row["measured"] - 1)
        assert found["overall"]["n"] == 2

    def test_the_logged_capacity(self) -> None:
        """Two requests of 100 + 60 and 200 + 0 tokens in flight at second 3, 72 % of the cache in use."""
        column = {
            "input_toks": np.array([100.0, 200.0, 900.0]),
            "output_toks": np.array([100.0, 50.0, 9.0]),
            "scheduled_s": np.array([0.0, 2.0, 5.0]),
            "first_token_s": np.array([0.0, 3.0, 6.0]),
            "last_token_s": np.array([5.0, 9.0, 7.0]),
        }
        ticks = [{"t": "3", "kv_cache_pct": "72"}, {"t": "8", "kv_cache_pct": "1"}]
        assert rollouts._logged_capacity(column, ticks) == pytest.approx(360 / 0.72)
        assert rollouts._logged_capacity(column, ticks[1:]) is None

    def test_a_folder_without_tables_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no such table"):
            rollouts.validate_trace(tmp_path)


class TestMakespan:
    def write(self, folder: Path, *commands: str) -> Path:
        names = ["file", "hardware", "section", "serving_cmd", "n_ok", "duration_s", "in_tok", "out_tok", "peak_conc"]
        with (folder / rollouts.MAKESPANS).open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow(names)
            for command in commands:
                out.writerow(
                    ["f", "A single NVIDIA H100 SXM GPU.", "s", command, 600, 20.0, 120_000, 120_000, "600.00"]
                )
        return folder

    def test_commands_are_read(self, folder: Path) -> None:
        found = rollouts.validate_makespan(
            self.write(
                folder,
                "vllm serve Qwen/Qwen3-32B-FP8 --max-num-seqs 64",
                "vllm serve Qwen/Qwen3-8B",
                "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp-size 2",
                "vllm serve Qwen/Qwen3-8B --speculative-config x",
                "vllm serve someone/unknown-model",
                "mindie serve",
            )
        )
        assert [row["claim"].split(":")[0] for row in found["rows"]] == [
            "vllm Qwen/Qwen3-32B-FP8 on 1 x H100-SXM",
            "vllm Qwen/Qwen3-8B on 1 x H100-SXM",
            "sglang Qwen/Qwen3-8B on 2 x H100-SXM",
        ]
        assert len(found["skipped"]) == 3
        assert any("speculative" in said for said in found["skipped"])
        # A larger model with fewer sequences takes longer; two GPUs are faster than one.
        times = [row["predicted"] for row in found["rows"]]
        assert times[0] > times[1] > times[2]
        assert {part["of"] for part in found["slices"] if part["claim"] == "by engine"} == {"vllm", "sglang"}

    def test_without_data_it_says_so(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("BATCHSIM_DATA", raising=False)
        for check in (rollouts.validate_trace, rollouts.validate_makespan):
            found = check()
            assert found["rows"] == []
            assert "give --data" in found["skipped"][0]

    def test_measured_batches(self, shared: Path) -> None:
        """Most rows of plain servers are understood; errors are finite."""
        found = rollouts.validate_makespan(shared)
        assert found["overall"]["n"] >= 100
        assert found["overall"]["median_ape"] < 0.5
        assert sum(int(said.split()[0]) for said in found["skipped"]) + found["overall"]["n"] == 340
        traced = rollouts.validate_trace(shared)
        blind = [s for s in traced["slices"] if "blind" in s["claim"]]
        assert min(s["median_ape"] for s in blind) < 0.25
