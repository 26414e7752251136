from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchsim.errors import InputError
from batchsim.specs.gpus import find_gpu
from batchsim.specs.models import find_model
from batchsim.system.decode_law import DecodeLaw
from batchsim.system.roofline import decode_law, deploy
from batchsim.validate import drain, rollouts


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
        # The last first token comes with the last tick, so that no drain is logged.
        assert [said.split(":")[0] for said in found["skipped"]] == [f"drain of {t.name}" for t in rollouts.TRACES]

    def test_the_logged_capacity(self) -> None:
        """Two requests of 100 + 60 and 200 + 0 tokens in flight at second 3, 72 % of the cache in use."""
        column = {
            "input_toks": np.array([100.0, 200.0, 900.0]),
            "output_toks": np.array([100.0, 50.0, 9.0]),
            "scheduled_s": np.array([0.0, 2.0, 5.0]),
            "first_token_s": np.array([0.0, 3.0, 6.0]),
            "last_token_s": np.array([5.0, 9.0, 7.0]),
        }
        ticks = {"t": np.array([3.0, 8.0]), "kv_cache_pct": np.array([72.0, 1.0])}
        assert rollouts._logged_capacity(column, ticks) == pytest.approx(360 / 0.72)
        assert rollouts._logged_capacity(column, {name: v[1:] for name, v in ticks.items()}) is None

    def test_a_folder_without_tables_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no such table"):
            rollouts.validate_trace(tmp_path)


LAW = DecodeLaw(step_time=np.array([0.0, *(0.02 + 0.001 * n for n in range(1, 9))]), context_time=1e-6)


def logged_steps() -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, np.ndarray[Any, Any]]]:
    """A run of eight requests counted step by step under `LAW`, one admitted every fifth step, and its ticks."""
    prompt, output = np.array([50, 80, 20, 60, 90, 40, 70, 30]), np.array([200, 150, 400, 300, 260, 500, 350, 420])
    made, first, last = np.zeros(8, dtype=int), np.zeros(8), np.zeros(8)
    scheduled, now, step, events = np.zeros(8), 0.0, 0, []
    while (made < output).any():
        admitted = [5 * i <= step for i in range(8)]
        for i in np.flatnonzero(admitted):
            scheduled[i] = now if 5 * i == step else scheduled[i]
        on = np.array(admitted) & (made < output)
        now += float(LAW.step_time[on.sum()] + LAW.context_time * np.sum((prompt + made)[on & (made > 0)]))
        first[on & (made == 0)] = now
        made[on] += 1
        last[on & (made == output)] = now
        events.append((now, int(on.sum())))
        step += 1
    at = np.arange(1.0, np.ceil(now) + 1)
    times, counts = np.array(events).T
    until = np.array([counts[times <= t].sum() for t in at])
    running = np.array([np.sum((scheduled <= t) & (t < last)) for t in at], dtype=float)
    prompts = np.array([np.sum(prompt[(t - 1 < first) & (first <= t)]) for t in at], dtype=float)
    requests = {
        "input_toks": prompt.astype(float),
        "output_toks": output.astype(float),
        "queued_s": scheduled,
        "scheduled_s": scheduled,
        "first_token_s": first,
        "last_token_s": last,
    }
    ticks = {
        "t": at,
        "prompt_throughput": prompts,
        "gen_throughput": np.diff(until, prepend=0.0),
        "running": running,
        "waiting": np.zeros(at.size),
    }
    return requests, ticks


class TestDrain:
    def test_the_state_is_that_of_the_steps(self) -> None:
        requests, ticks = logged_steps()
        found = drain.read_drain(requests, ticks)
        assert found is not None
        # Eight are admitted within 36 steps of at most 28 ms.
        assert found.start == 1.0
        # What they really have at this time: one token per step since their own first.
        order = np.argsort(requests["first_token_s"])
        assert np.all(np.diff(requests["output_toks"][order] - found.remaining[order]) <= 0)
        total = ticks["gen_throughput"][ticks["t"] > found.start].sum()
        assert found.remaining.sum() == pytest.approx(total, abs=4)
        np.testing.assert_array_equal(found.context + found.remaining, requests["input_toks"] + requests["output_toks"])

    def test_the_same_law_gives_the_same_drain(self) -> None:
        requests, ticks = logged_steps()
        found = drain.read_drain(requests, ticks)
        assert found is not None
        score = drain.score(found, drain.simulate(found, LAW, replicas=1))
        assert score["running_error"] < 0.03
        assert score["token_error"] < 0.03
        assert abs(score["length_error"]) < 0.01
        assert drain.missed(drain.mean_score(found, LAW, replicas=1)) == []
        # Twice as slow a law takes twice as long; the log is then scored against requests that still run.
        slow = drain.mean_score(found, LAW, replicas=1, factor=2.0)
        assert slow["length_error"] == pytest.approx(1.0, abs=0.02)
        assert drain.missed(slow) == ["running batch", "tokens/s", "length"]

    def test_the_factor_of_earlier_ticks(self) -> None:
        """Nothing after the start counts, and a law of half the times gives a factor of two."""
        requests, ticks = logged_steps()
        # A tick of decoding alone in the middle of the run, before one more request that is admitted late.
        late = {name: np.append(v, {"input_toks": 10, "output_toks": 5}.get(name, 9.2)) for name, v in requests.items()}
        late["first_token_s"][-1], late["last_token_s"][-1] = 9.25, 20.0
        found = drain.read_drain(late, ticks)
        assert found is not None
        assert found.start == 10.0
        assert drain.step_factor(found, LAW, replicas=1) == pytest.approx(1.0, abs=0.05)
        half = replace(LAW, step_time=LAW.step_time / 2, context_time=LAW.context_time / 2)
        assert drain.step_factor(found, half, replicas=1) == pytest.approx(2.0, abs=0.1)
        # Replicas that share the requests run smaller batches.
        assert drain.step_factor(found, LAW, replicas=2) > 1.05  # type: ignore[operator]

    def test_no_tick_before_the_start_no_factor(self) -> None:
        requests, ticks = logged_steps()
        found = drain.read_drain(requests, ticks)
        assert found is not None
        assert drain.step_factor(found, LAW, replicas=1) is None

    def test_preempted_requests_get_no_tokens(self) -> None:
        """Two requests; the one admitted last is out during the second second, as both counts say."""
        requests = {
            "input_toks": np.array([10.0, 10.0]),
            "output_toks": np.array([400.0, 400.0]),
            "queued_s": np.zeros(2),
            "scheduled_s": np.array([0.0, 0.01]),
            "first_token_s": np.array([1e-9, 0.01]),
            "last_token_s": np.array([4.0, 5.0]),
        }
        ticks = {
            "t": np.arange(1.0, 6.0),
            "prompt_throughput": np.zeros(5),
            "gen_throughput": np.array([200.0, 100.0, 200.0, 200.0, 100.0]),
            "running": np.array([2.0, 1.0, 2.0, 1.0, 0.0]),
            "waiting": np.array([0.0, 1.0, 0.0, 0.0, 0.0]),
        }
        found = drain.read_drain(requests, ticks)
        assert found is not None
        assert found.start == 3.0
        np.testing.assert_allclose(found.remaining, [100, 200], atol=2)

    def test_a_log_that_ends_early_has_none(self) -> None:
        requests, ticks = logged_steps()
        assert drain.read_drain(requests, {name: v[:1] for name, v in ticks.items()}) is None
        always = ticks | {"waiting": np.ones(ticks["t"].size)}
        assert drain.read_drain(requests, always) is None

    def test_tokens_are_conserved(self) -> None:
        """Over two replicas, and at any time at most what remains."""
        requests, ticks = logged_steps()
        found = drain.read_drain(requests, ticks)
        assert found is not None
        course = drain.simulate(found, LAW, replicas=2)
        at = np.linspace(0, course.finish.max(), 50)
        tokens = course.tokens(at)
        assert tokens[0] == 0
        assert np.all(np.diff(tokens) >= 0)
        assert tokens[-1] == found.remaining.sum()
        assert course.running(at)[-1] == 0


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
        assert {part["of"] for part in found["slices"] if part["claim"] == "by engine"} == {
            f"{engine}, {which}" for engine in ("vllm", "sglang") for which in ("all rows", "after exclusions")
        }

    def test_rows_left_out(self) -> None:
        """Decided from the source's columns; each reason by numbers that ask for it."""
        plain = {
            "file": "a100",
            "hardware": "A100",
            "section": "s",
            "serving_cmd": "vllm serve m",
            "n_ok": "100",
            "duration_s": "10",
            "in_tok": "20000",
            "out_tok": "20000",
            "peak_conc": "100",
            "mean_ttft_ms": "2000",
            "mean_tpot_ms": "20",
        }
        seen: dict[tuple[str, ...], str] = {}
        assert rollouts._left_out(plain, seen) is None
        # Repeated under another heading it is the same measurement; on another GPU it cannot be one.
        assert rollouts._left_out(plain | {"section": "t"}, seen) is None
        assert rollouts._left_out(plain | {"hardware": "H100"}, seen) == rollouts.COPY
        # 100 x 1 s of latency in 10 s: 10 in flight on average.
        brief = {"mean_ttft_ms": "204", "mean_tpot_ms": "4"}
        assert rollouts._left_out(plain | brief | {"peak_conc": "12"}, {}) == rollouts.PEAK_BELOW
        assert rollouts._left_out(plain | brief | {"peak_conc": ""}, {}) == rollouts.FEW_IN_FLIGHT
        assert rollouts._left_out(plain | {"peak_conc": "12"}, {}) == rollouts.PEAK_BELOW_MEAN
        # Latencies are not in every source.
        assert rollouts._left_out(plain | {"mean_ttft_ms": "", "peak_conc": ""}, {}) is None

    def test_both_figures_and_the_goal(self, folder: Path) -> None:
        commands = ["vllm serve Qwen/Qwen3-8B", "vllm serve Qwen/Qwen3-8B --max-num-seqs 64"]
        path = self.write(folder, *commands) / rollouts.MAKESPANS
        text = path.read_text()
        path.write_text(text + text.splitlines()[1].replace("H100", "A100") + "\n")
        found = rollouts.validate_makespan(folder)
        assert found["overall"]["n"] == 2
        assert [row["left_out"] for row in found["rows"]] == [None, None, rollouts.COPY]
        counts = {part["of"]: part["n"] for part in found["slices"]}
        assert counts["vllm, all rows"] == 3
        assert counts["vllm, after exclusions"] == 2
        assert counts[rollouts.COPY] == 1
        assert "the goal is 1.35" in found["notes"][0]
        assert found["notes"][1] == f"left out, 1 row of vllm: {rollouts.COPY}"
        ratio = np.log1p([row["error"] for row in found["rows"][:2]])
        assert found["overall"]["factor"] == pytest.approx(np.exp(np.median(np.abs(ratio))))

    def test_without_data_it_says_so(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("BATCHSIM_DATA", raising=False)
        for check in (rollouts.validate_trace, rollouts.validate_makespan):
            found = check()
            assert found["rows"] == []
            assert "give --data" in found["skipped"][0]

    def test_measured_batches(self, shared: Path) -> None:
        """Most rows of plain servers are understood; vLLM misses its goal, most under H100 and H200."""
        found = rollouts.validate_makespan(shared)
        assert sum(int(said.split()[0]) for said in found["skipped"]) + len(found["rows"]) == 340
        part = {(one["claim"], one["of"]): one for one in found["slices"]}
        every, kept = (part["by engine", f"vllm, {which}"] for which in ("all rows", "after exclusions"))
        assert (every["n"], kept["n"]) == (101, 86)
        assert 1.52 < every["factor"] < 1.62
        assert 1.38 < kept["factor"] < 1.48
        by = "vllm after exclusions: by"
        assert (
            part[f"{by} GPU", "A100-80-SXM"]["factor"] < rollouts.FACTOR_GOAL < part[f"{by} GPU", "H100-SXM"]["factor"]
        )
        assert part[f"{by} workload", "chat"]["factor"] < rollouts.FACTOR_GOAL
        assert "missed" in found["notes"][0]

    @pytest.mark.parametrize(
        ("command", "gpu", "budget", "ratio"),
        [
            # Dense, the cache holds about 13 sequences: most steps only decode.
            ("vllm serve Qwen/Qwen3-32B", "A100", 0, 0.98),
            ("vllm serve Qwen/Qwen3-32B", "H100", 0, 1.58),
            # Experts: most steps have a full budget of prompt tokens.
            ("vllm serve openai/gpt-oss-20b", "A100", 2048, 1.03),
            ("vllm serve openai/gpt-oss-20b", "H100", 8192, 1.49),
        ],
    )
    def test_slow_steps_on_these_h100(self, shared: Path, command: str, gpu: str, budget: int, ratio: float) -> None:
        """The steps themselves are slower on this source's H100, not what lies around them; on its A100 they are not.

        500 prompts of 2,000 tokens: median time between two tokens over the law's step.
        """
        row = next(
            r
            for r in rollouts._rows(shared / rollouts.MAKESPANS)
            if r["serving_cmd"].strip() == command
            and gpu in r["hardware"]
            and r["n_ok"] == "500"
            and int(r["in_tok"]) < 1.1e6
        )
        prompt, response = int(row["in_tok"]) / 500, int(row["out_tok"]) / 500
        running = round(500 * response * float(row["mean_tpot_ms"]) / 1e3 / float(row["duration_s"]))
        law = decode_law(deploy(find_model(command.split()[-1]), find_gpu(gpu)), concurrency=512)
        context = prompt + response / 2
        attended = law.context_time * context + law.window_time * min(context, law.window)
        step = law.step_time[running] + running * attended
        if budget:
            step += (budget - running) * (law.prefill_time + law.prefill_context_time * prompt / 2)
        assert float(row["median_itl_ms"]) / 1e3 / step == pytest.approx(ratio, rel=0.05)


class TestMeasuredTraces:
    def test_latencies(self, shared: Path) -> None:
        traced = rollouts.validate_trace(shared)
        blind = [s for s in traced["slices"] if "latency" in s["claim"] and "blind" in s["claim"]]
        assert max(s["median_ape"] for s in blind) < 0.25

    def test_drains(self, shared: Path) -> None:
        """Blind, one goal of three is met on one trace and none on the other; with one factor from before, all."""
        found = {s["of"]: s for s in rollouts.validate_trace(shared)["slices"] if s["claim"] == rollouts.DRAIN}
        names = [trace.name for trace in rollouts.TRACES]
        assert drain.missed(found[f"{names[0]}, blind"]) == ["tokens/s", "length"]
        assert drain.missed(found[f"{names[1]}, blind"]) == ["running batch", "tokens/s", "length"]
        for name in names:
            calibrated = found[f"{name}, calibrated on earlier ticks"]
            assert drain.missed(calibrated) == []
            assert calibrated["calibration_ticks"] == (2 if name == names[0] else 96)
            # The outputs of finished requests come out as they were.
            assert calibrated["estimate_ratio"] == pytest.approx(1.0, abs=0.01)
        assert found[f"{names[0]}, blind"]["running_error"] == pytest.approx(0.071, abs=0.01)
        assert found[f"{names[0]}, blind"]["token_error"] == pytest.approx(0.110, abs=0.01)
        assert found[f"{names[0]}, blind"]["length_error"] == pytest.approx(-0.096, abs=0.02)

    def test_the_law_is_too_fast_where_few_run(self, shared: Path) -> None:
        """Measured over predicted time of a step of the experts' trace, by running batch: a few per cent until 60."""
        trace = rollouts.TRACES[0]
        found = drain.read_drain(*rollouts._logged(shared, trace))
        assert found is not None
        law = decode_law(deploy(find_model(trace.model), find_gpu(trace.gpu), expert_parallel=2), concurrency=128)
        batch = (np.append(found.running[0] + 8, found.running[:-1]) + found.running) / 2
        own = np.maximum(batch / trace.replicas, 1)
        predicted = np.interp(own, np.arange(129), law.step_time) + law.context_time * own * 1500
        steps = found.tokens / np.maximum(batch, 0.5)
        ratio = [
            chosen.sum() / np.sum((steps * predicted)[chosen])
            for chosen in (found.running >= 60, (found.running < 60) & (found.running >= 20), found.running < 20)
        ]
        assert ratio == pytest.approx([1.045, 1.13, 1.5], abs=0.04)
