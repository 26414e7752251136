"""Print the coverages and the bias that evidence.md states: `python docs/interval_coverage.py` (some minutes)."""

from __future__ import annotations

import numpy as np

from batchsim.learning.noise_scale import from_chunk_norms, from_logged_norms
from batchsim.system.step_time import draw_law, fit_step_time


def chunk_norms(noise_scale: float, chunks: int, updates: int, *, sets: int = 1000) -> float:
    """Share of data sets whose 95 % limits hold the noise scale: Gaussian gradients of 400 equal coordinates."""
    rng = np.random.default_rng(1)
    dimension, batch = 400, 512
    signal = np.full(dimension, dimension**-0.5)
    spread = np.sqrt(noise_scale / dimension)
    held = 0
    for _ in range(sets):
        size = (updates, chunks, dimension)
        parts = signal + spread * np.sqrt(chunks / batch) * rng.standard_normal(size)
        small = (parts**2).sum(axis=2).mean(axis=1)
        large = (parts.mean(axis=1) ** 2).sum(axis=1)
        found = from_chunk_norms(batch, chunks, small, large, level=0.95)
        held += found.low <= noise_scale <= found.high
    return held / sets


def logged_norms(runs: int, *, sets: int = 200) -> float:
    """Share of data sets whose 95 % limits hold a noise scale of 1,500: 5 % spread over runs, 30 % over updates."""
    rng = np.random.default_rng(2)
    held = 0
    for _ in range(sets):
        batches = [b for b in (256, 512, 1024) for _ in range(runs)]
        norms = [
            np.sqrt(1 + 1500 / b) * np.exp(0.05 * rng.standard_normal() + 0.3 * rng.standard_normal(40))
            for b in batches
        ]
        found = from_logged_norms(batches, norms, level=0.95)
        held += found.low <= 1500 <= found.high
    return held / sets


def step_law(
    rng: np.random.Generator, runs: int, batches: tuple[int, ...], spread: float
) -> tuple[list[float], list[int], list[float]]:
    """Steady steps of runs that follow 100 s + .5 s/response: batch, run and time of each."""
    r, label, seconds = [], [], []
    for i, b in enumerate(b for b in batches for _ in range(runs)):
        mean = (100 + 0.5 * b) * (1 + spread * rng.standard_normal())
        r += [float(b)] * 20
        label += [i] * 20
        seconds += (mean * (1 + 0.1 * rng.standard_normal(20))).tolist()
    return r, label, seconds


def step_time(runs: int, spread: float, *, sets: int = 1500) -> float:
    """Share of data sets whose 80 % limits of the affine law hold the step time at four times the largest batch."""
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(sets):
        _, low, high = fit_step_time(*step_law(rng, runs, (256, 512), spread)).predict(2048, level=0.8)[:, 0]
        held += low <= 100 + 0.5 * 2048 <= high
    return held / sets


def plateau_bias() -> tuple[float, float]:
    """Median time per response over the true one at eight times the pilots' batch, without a plateau."""
    rng = np.random.default_rng(4)
    ratios, covered = [], []
    for _ in range(200):
        fit = fit_step_time(*step_law(rng, 3, (256, 512), 0.03))
        tau0, tau1, q_max = draw_law(fit, draws=2000, rng=rng)
        batch = 8 * 512
        drawn = np.maximum(tau0 + tau1 * batch, batch / q_max) / (100 + 0.5 * batch)
        ratios.append(np.median(drawn))
        covered.append(np.quantile(drawn, 0.05) <= 1 <= np.quantile(drawn, 0.95))
    return float(np.median(ratios)), float(np.mean(covered))


def main() -> None:
    """Print every figure."""
    for noise, chunks, updates in ((300, 8, 20), (1000, 4, 40), (1000, 8, 80), (5000, 8, 80)):
        share = chunk_norms(noise, chunks, updates)
        print(f"chunk norms, noise scale {noise}, {chunks} chunks, {updates} updates: {100 * share:.1f} % (nominal 95)")
    for runs in (2, 3, 6):
        print(f"logged norms, {runs} runs per batch: {100 * logged_norms(runs):.1f} % (nominal 95)")
    for runs, spread in ((6, 0.03), (3, 0.03), (2, 0.03), (1, 0.08), (1, 0.02)):
        share = step_time(runs, spread)
        print(f"step time, {runs} runs per batch, spread {100 * spread:.0f} %: {100 * share:.0f} % (nominal 80)")
    ratio, covered = plateau_bias()
    print(f"plateau prior, affine world, 8 x the pilots: median time {ratio:.2f} x, 90 % intervals hold {covered:.2f}")


if __name__ == "__main__":
    main()
