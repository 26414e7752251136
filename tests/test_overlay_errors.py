"""Short pilots' curves claim no more than they know."""

from __future__ import annotations

import math

import numpy as np
import pytest

from batchsim.calibrate.overlay import START_UPDATES, fit_overlay
from batchsim.learning.curve import Curve
from batchsim.learning.curve.simulate import METRIC, simulate_runs

CURVE = Curve(family="exponential", start=0.2, asymptote=0.7, scale=60_000)


def overlay(seed: int, *, score_error: float, train_batch: int = 512, responses: float = 12_000) -> tuple[float, float]:
    """Contrast of log f between four times the batch and the batch, of which nothing is true, and its error."""
    batches = (train_batch, 4 * train_batch)
    runs = simulate_runs(
        CURVE, costs=dict.fromkeys(batches, 1.0), responses_max=responses, evaluation_spacing=responses / 8,
        update_time_intercept=60, update_time_slope=0.1, seed=seed, score_error=score_error, group_size=8,
        learning_rates=dict.fromkeys(batches, 1e-06),
    )  # fmt: skip
    nodes = {name: node.to_dataset() for name, node in runs.children.items()}
    fit = fit_overlay(nodes, list(nodes), METRIC)
    if not fit.success:
        return math.nan, math.nan
    one, other = (fit.params[name] for name in nodes)
    return other - one, fit.contrast_error


def test_errors_of_short_noisy_pilots_cover_what_they_miss_by() -> None:
    # Eight evaluations per run, whose error is a tenth of the whole rise that they show.
    found = np.array([overlay(seed, score_error=0.008, train_batch=64) for seed in range(24)])
    found = found[np.isfinite(found[:, 0])]
    assert len(found) >= 6
    z = found[:, 0] / found[:, 1]
    assert np.mean(np.abs(z) < 1.28) >= 0.6
    assert np.sqrt(np.mean(z**2)) < 1.7


@pytest.mark.parametrize("train_batch", [32, 64])
def test_what_the_start_may_cost_is_part_of_the_error(train_batch: int) -> None:
    # Without noise only the start is left: three updates over those of the stretch, of both runs.
    _, error = overlay(0, score_error=1e-6, train_batch=train_batch, responses=12_288)
    updates = np.array([12_288 / train_batch, 12_288 / (4 * train_batch)])
    assert error == pytest.approx(math.hypot(*(START_UPDATES / updates)), rel=0.1)


def test_few_updates_of_a_large_batch_say_nothing() -> None:
    assert math.isnan(overlay(0, score_error=1e-6, train_batch=512, responses=12_288)[0])
