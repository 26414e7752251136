"""Speed of reading logs beside the least that any reader must do: go through the file's lines.

The log is a real one, its step lines renumbered and its other lines repeated until steps are a tenth
of the bytes. The targets (100 MB/s on one core, a 1 GB log within 300 MB of memory) stand in `extra_info`;
memory, for a log of any size, is measured by running this file: `python tests/benchmarks/test_logs_speed.py 1e9`.
"""

from __future__ import annotations

import re
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from batchsim.logs import read_logs

LOGS = ("verl_2025-06_qwen2-7b_fsdp_excerpt.log", "verl_2025-06_qwen2-7b_megatron_excerpt.log")
STEP_SHARE = 0.1


def build(path: Path, shared: Path, size: int) -> int:
    """Write a log of about `size` bytes and return the number of its steps."""
    texts = [(shared / "logs_real" / name).read_bytes().splitlines(keepends=True) for name in LOGS]
    first = next(place for place, line in enumerate(texts[0]) if b" step:0 - " in line)
    steps = [line for text in texts for line in text if b" step:" in line and b" step:0 - " not in line]
    others = [line for text in texts for line in text if b"step:" not in line and b"'" not in line]
    each = sum(map(len, steps)) / len(steps) * (1 - STEP_SHARE) / STEP_SHARE
    between = round(each / (sum(map(len, others)) / len(others)))
    noise, templates, step = cycle(others), cycle(steps), 0
    with path.open("wb") as file:
        file.writelines(texts[0][:first])
        while file.tell() < size:
            step += 1
            file.writelines(islice(noise, between))
            file.write(re.sub(rb"step:\d+ ", b"step:%d " % step, next(templates), count=1))
    return step


def build_openrlhf(path: Path, size: int) -> int:
    """Write an OpenRLHF console of about `size` bytes, steps a tenth of them, and return their number."""
    names = ["actor_grad_norm", "actor_lr", "reward", "response_length", "total_length", "kl", "policy_loss", "return"]
    names += [f"timing/{phase}" for phase in ("generation", "make_experience", "ppo_train", "broadcast", "step_total")]
    names += [f"rollout/metric_{number}" for number in range(20)]
    row = ", ".join(f"'{name}': 0.{number:02d}23456789012345" for number, name in enumerate(names))
    noise = (
        b"(RolloutActor pid=7) INFO 08-01 10:01:41 engine.py:310] generation throughput: 2011.3 tokens/s, 256 reqs\n"
    )
    between = round(len(row) * (1 - STEP_SHARE) / STEP_SHARE / len(noise))
    step = 0
    with path.open("wb") as file:
        while file.tell() < size:
            step += 1
            file.write(noise * between)
            file.write(f"2026-08-01 10:01:41 INFO ✨ Global step {step}: {{{row}}}\n".encode())
    return step


def lines_of(path: Path) -> None:
    with path.open("rb") as file:
        for _ in file:
            pass


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def test_verl_console(benchmark: BenchmarkFixture, shared: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    steps = build(path, shared, 20_000_000)
    (node,) = read_logs(path).children.values()
    assert node.sizes["rollout_step"] == steps
    bare = statistics.median(seconds(lambda: lines_of(path)) for _ in range(5))
    benchmark.pedantic(read_logs, args=(path,), rounds=5)  # type: ignore[no-untyped-call]
    assert benchmark.stats is not None
    median = float(benchmark.stats.stats.median)
    benchmark.extra_info.update(
        baseline="for line in open(path, 'rb')",
        baseline_seconds=bare,
        ratio=median / bare,
        megabytes_per_second=path.stat().st_size / median / 1e6,
        target_megabytes_per_second=100,
    )


def test_openrlhf_console(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    steps = build_openrlhf(path, 20_000_000)
    given: dict[str, Any] = {"prompts": 8, "group_size": 8, "updates_per_rollout": 1}
    (node,) = read_logs(path, **given).children.values()
    assert node.sizes["rollout_step"] == steps
    bare = statistics.median(seconds(lambda: lines_of(path)) for _ in range(5))
    benchmark.pedantic(read_logs, args=(path,), kwargs=given, rounds=5)  # type: ignore[no-untyped-call]
    assert benchmark.stats is not None
    median = float(benchmark.stats.stats.median)
    benchmark.extra_info.update(
        baseline="for line in open(path, 'rb')",
        baseline_seconds=bare,
        ratio=median / bare,
        megabytes_per_second=path.stat().st_size / median / 1e6,
        target_megabytes_per_second=100,
    )


def main(size: int) -> None:
    shared = Path(__file__).resolve().parents[3] / "shared" / "data"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.log"
        read_logs(shared / "logs_real" / LOGS[0])  # imports xarray
        steps = build(path, shared, size)
        bare, taken = seconds(lambda: lines_of(path)), seconds(lambda: read_logs(path))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        size = path.stat().st_size
    print(
        f"{size / 1e6:.0f} MB, {steps} steps: {size / taken / 1e6:.0f} MB/s, {taken / bare:.1f} x a bare loop", end=""
    )
    print(f", peak {peak:.0f} MiB")


if __name__ == "__main__":
    main(int(float(sys.argv[1])))
else:
    pytest.importorskip("pytest_benchmark")
