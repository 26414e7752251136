"""Speed, recorded by `pytest tests/benchmarks --benchmark-only`, each beside a baseline of the same run.

Processes are compared with a bare interpreter, functions with a naive twin or with the least that any
solution must do. Nothing here asserts a time: the targets (import 50 ms, help .3 s, measure 2.5 s) stand in
`extra_info`, and a reader compares.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from batchsim.learning.progress import signal_function
from batchsim.logs import read_logs
from batchsim.plan import read_plan
from batchsim.predict import predict

EXAMPLE = Path(str(files("batchsim").joinpath("data/examples/li2026-grpo.toml")))


def process(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)


def median_seconds(function: Callable[[], object], rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        function()
        taken.append(time.perf_counter() - start)
    return float(np.median(taken))


def record(
    benchmark: BenchmarkFixture,
    function: Callable[[], object],
    *,
    baseline: Callable[[], object],
    named: str,
    rounds: int,
    target: float | None = None,
) -> None:
    """Benchmark `function` and note how it compares with `baseline`, which is timed right before it."""
    function()
    base = median_seconds(baseline, rounds)
    benchmark.pedantic(function, rounds=rounds)  # type: ignore[no-untyped-call]
    assert benchmark.stats is not None
    median = float(benchmark.stats.stats.median)
    benchmark.extra_info.update(
        baseline=named, baseline_seconds=base, ratio=median / base, excess_seconds=median - base
    )
    if target is not None:
        benchmark.extra_info["target_seconds"] = target


def bare() -> None:
    process("-c", "pass")


def test_import(benchmark: BenchmarkFixture) -> None:
    record(
        benchmark,
        lambda: process("-c", "import batchsim"),
        baseline=bare,
        named="python -c pass",
        rounds=9,
        target=0.05,
    )


def test_help(benchmark: BenchmarkFixture) -> None:
    record(
        benchmark,
        lambda: process("-m", "batchsim", "--help"),
        baseline=bare,
        named="python -c pass",
        rounds=7,
        target=0.3,
    )


def test_measure_mlperf(benchmark: BenchmarkFixture, shared: Path) -> None:
    paths = [str(p) for p in sorted((shared / "mlperf_grpo").glob("*.out"))]
    record(
        benchmark,
        lambda: process("-m", "batchsim", "measure", *paths, "--json"),
        baseline=lambda: process("-c", "import numpy, xarray, scipy.special"),
        named="python -c 'import numpy, xarray, scipy.special'",
        rounds=5,
        target=2.5,
    )


def test_signal_function(benchmark: BenchmarkFixture) -> None:
    rng = np.random.default_rng(0)
    b, k = np.exp(rng.normal(size=(20_000, 9))), np.exp(rng.uniform(-1, 2, size=(20_000, 1)))
    s = np.linspace(1e-3, 6, 400)

    def naive() -> float:
        """The same integral for 200 pairs, one by one with a plain sum; scaled up by 900."""
        total = 0.0
        for bi, ki in zip(b[:200, 0], k[:200, 0], strict=True):
            total += float(np.sum(np.exp(-(s**2)) * (1 + bi * s**2 / ki) ** -(ki + 1)))
        return total

    record(
        benchmark,
        lambda: signal_function(b, snr_shape=k),
        baseline=naive,
        named="200 of the 180,000 pairs, one by one",
        rounds=5,
    )
    benchmark.extra_info["ratio_per_pair"] = benchmark.extra_info["ratio"] / (b.size / 200)


def test_predict_sixteen_batches(benchmark: BenchmarkFixture) -> None:
    """2,000 draws x 16 batches: promised within 2 s after import."""
    plan = read_plan(EXAMPLE)
    batches = [512 * (1 + k) for k in range(16)]
    rng = np.random.default_rng(0)

    def least() -> None:
        """Drawing 20,000 priors and resampling 2,000 of them by weight."""
        x = rng.standard_normal((3, 20_000))
        weight = np.exp(-((x.sum(axis=0) - 1) ** 2))
        x[:, rng.choice(20_000, size=2000, p=weight / weight.sum())]

    record(
        benchmark,
        lambda: predict(plan, batches=batches),
        baseline=least,
        named="prior draws and resampling alone",
        rounds=5,
    )


def test_read_tiny_grpo(benchmark: BenchmarkFixture, shared: Path) -> None:
    folder = shared / "tiny_grpo"
    tables = sorted(folder.glob("*.csv"))

    def split() -> int:
        """Reading the bytes and splitting them at commas, without looking at a number."""
        return sum(len(line.split(",")) for path in tables for line in path.read_text().splitlines())

    record(benchmark, lambda: read_logs(tables, chunks=8), baseline=split, named="splitting lines at commas", rounds=5)


@pytest.mark.parametrize("pilots", [(64, 128)])
def test_predict_tiny_grpo(benchmark: BenchmarkFixture, shared: Path, pilots: tuple[int, int]) -> None:
    runs = read_logs(shared / "tiny_grpo", chunks=8)
    record(
        benchmark,
        lambda: predict(runs, target=0.45, pilot_batches=pilots),
        baseline=lambda: predict(read_plan(EXAMPLE)),
        named="predict of the example",
        rounds=3,
    )
