"""A(B) and k from moments per coordinate, from Adam's state, and from inner products."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import naive
import numpy as np
import pytest
from numpy.typing import NDArray

from batchsim.learning.noise_scale import (
    fit_snr_shape,
    from_adam_state,
    from_chunk_norms,
    from_coordinate_moments,
    from_inner_products,
)
from batchsim.learning.noise_scale.coordinates import _state_ratio
from batchsim.learning.progress import usable_slope

Floats = NDArray[np.float64]
BATCHES = np.array([64.0, 256.0, 1024.0, 4096.0])


def coordinates(rng: np.random.Generator, *, shape: float, noise_scale: float, size: int) -> tuple[Floats, Floats]:
    """Expected gradients and standard deviations whose signal-to-noise is Gamma distributed."""
    y = rng.gamma(shape, 1 / shape, size) / noise_scale
    deviation = np.exp(0.5 * rng.standard_normal(size))
    return np.sqrt(y) * deviation * rng.choice([-1.0, 1.0], size), deviation


def halves(
    rng: np.random.Generator, signal: Floats, deviation: Floats, *, responses: int, layers: int = 20
) -> Iterator[tuple[Floats, Floats, Floats, Floats]]:
    """What two independent halves of so many responses measure, layer by layer."""
    means = [signal + deviation * rng.standard_normal(signal.size) / math.sqrt(responses) for _ in range(2)]
    variances = [deviation**2 * rng.chisquare(responses - 1, signal.size) / (responses - 1) for _ in range(2)]
    yield from zip(*(np.array_split(x, layers) for x in (*means, *variances)), strict=True)


class TestMoments:
    @pytest.mark.parametrize("shape", [0.5, 2.0])
    def test_recovers_noise_scale_slope_and_shape(self, shape: float) -> None:
        rng = np.random.default_rng(1)
        rows = []
        for _ in range(16):
            signal, deviation = coordinates(rng, shape=shape, noise_scale=1500, size=20_000)
            estimate = from_coordinate_moments(
                halves(rng, signal, deviation, responses=16_384), responses=(16_384, 16_384), train_batch=BATCHES
            )
            slope = np.array([np.sum(signal**2 / np.sqrt(signal**2 + deviation**2 / b)) for b in BATCHES])
            exact = np.sum(deviation**2) / np.sum(signal**2)
            rows.append(
                [
                    estimate.noise_scale / exact,
                    estimate.first_order_factor,
                    *(estimate.usable_slope / (slope / slope[0])),
                    estimate.shape.snr_shape,
                    estimate.noise_scale_low <= 1500 <= estimate.noise_scale_high,
                    estimate.shape.low <= shape <= estimate.shape.high,
                ]
            )
        mean = np.mean(rows, axis=0)
        assert mean[0] == pytest.approx(1, abs=0.005)
        assert mean[1] == pytest.approx(1 + 1 / shape, rel=0.03)
        # The largest batch is a quarter of a half: the correction leaves less than 1 %.
        assert mean[2:6] == pytest.approx(np.ones(4), abs=0.01)
        assert mean[6] == pytest.approx(shape, rel=0.1)
        assert mean[7] >= 0.8

    def test_one_half_for_everything_is_biased(self) -> None:
        """What the halves avoid: squares of one mean are high by its own variance, and A follows its noise."""
        rng = np.random.default_rng(2)
        n = 4096
        signal, deviation = coordinates(rng, shape=0.5, noise_scale=20_000, size=20_000)
        (g, h, s, t) = (np.concatenate(x) for x in zip(*halves(rng, signal, deviation, responses=n), strict=True))
        exact = np.sum(deviation**2) / np.sum(signal**2)
        ours = from_coordinate_moments([(g, h, s, t)], responses=(n, n), train_batch=[64.0, 512.0])
        assert ours.noise_scale == pytest.approx(exact, rel=0.05)
        assert np.sum(s) / np.sum(g**2) < 0.25 * exact
        naive_slope = [np.sum(g**2 / np.sqrt(g**2 + s * (1 / b - 1 / n))) for b in (64, 1024)]
        true_slope = [np.sum(signal**2 / np.sqrt(signal**2 + deviation**2 / b)) for b in (64, 1024)]
        assert naive_slope[1] / naive_slope[0] < 0.9 * true_slope[1] / true_slope[0]

    def test_slope_against_the_definition_coordinate_by_coordinate(self) -> None:
        rng = np.random.default_rng(3)
        signal, deviation = coordinates(rng, shape=1.0, noise_scale=500, size=300)
        exact = (signal, signal, deviation**2, deviation**2)
        estimate = from_coordinate_moments([exact], responses=(1e12, 1e12), train_batch=BATCHES)
        twin = np.array([naive.adam_slope(signal.tolist(), deviation.tolist(), b) for b in BATCHES])
        np.testing.assert_allclose(estimate.usable_slope, twin / twin[0], rtol=1e-6)
        assert estimate.noise_scale == pytest.approx(np.sum(deviation**2) / np.sum(signal**2), rel=1e-9)

    def test_pieces_do_not_matter(self) -> None:
        rng = np.random.default_rng(4)
        signal, deviation = coordinates(rng, shape=0.5, noise_scale=1500, size=9_000)
        layers = list(halves(rng, signal, deviation, responses=16_384, layers=30))
        whole = [tuple(np.concatenate(x).reshape(90, 100) for x in zip(*layers, strict=True))]
        options = {"responses": (16_384.0, 16_384.0), "train_batch": BATCHES}
        one, other = (
            from_coordinate_moments(iter(layers), **options),  # type: ignore[arg-type]
            from_coordinate_moments(whole, **options),  # type: ignore[arg-type]
        )
        assert one.noise_scale == pytest.approx(other.noise_scale, rel=1e-12)
        np.testing.assert_allclose(one.usable_slope, other.usable_slope, rtol=1e-12)
        assert one.coordinates == other.coordinates == 9_000

    def test_units_of_the_gradient_cancel_and_epsilon_has_them(self) -> None:
        rng = np.random.default_rng(5)
        signal, deviation = coordinates(rng, shape=0.5, noise_scale=1500, size=4_000)
        layers = list(halves(rng, signal, deviation, responses=16_384))
        small = [(g * 1e-6, h * 1e-6, s * 1e-12, t * 1e-12) for g, h, s, t in layers]
        options = {"responses": (16_384.0, 16_384.0), "train_batch": BATCHES}
        one = from_coordinate_moments(layers, epsilon=0.01, **options)  # type: ignore[arg-type]
        other = from_coordinate_moments(small, epsilon=0.01e-6, **options)  # type: ignore[arg-type]
        none = from_coordinate_moments(layers, **options)  # type: ignore[arg-type]
        np.testing.assert_allclose(one.usable_slope, other.usable_slope, rtol=1e-9)
        # Epsilon weighs more where the denominator is smaller: at larger batches.
        assert one.usable_slope[-1] < none.usable_slope[-1]

    def test_no_signal_is_not_identified(self) -> None:
        rng = np.random.default_rng(6)
        n = 4096
        nothing = np.zeros(2_000)
        for seed in range(20):
            layers = list(halves(np.random.default_rng(seed), nothing, nothing + 1, responses=n))
            estimate = from_coordinate_moments(layers, responses=(n, n), train_batch=[64.0, 256.0])
            assert math.isinf(estimate.noise_scale_high) or estimate.noise_scale > 5 * n
        signal, deviation = coordinates(rng, shape=1, noise_scale=500, size=100)
        with pytest.raises(ValueError, match="a quarter of a half"):
            from_coordinate_moments(halves(rng, signal, deviation, responses=n), responses=(n, n), train_batch=2048)
        with pytest.raises(ValueError, match="no coordinate"):
            from_coordinate_moments([(nothing,) * 4], responses=(n, n), train_batch=64)
        with pytest.raises(ValueError, match="one shape"):
            from_coordinate_moments([(nothing, nothing, nothing, nothing[1:])], responses=(n, n), train_batch=64)


class TestMeasuredTransformer:
    @pytest.mark.parametrize(("policy", "shape", "within"), [(0, 0.56, 0.013), (1, 0.78, 0.022)])
    def test_the_family_reproduces_the_measured_slope(
        self, shared: Path, policy: int, shape: float, within: float
    ) -> None:
        """k from the first-order factor alone gives A(B)/A(64) to 1.3 and 2.2 % up to 4096 responses."""
        given = json.loads((shared / "tiny_grpo" / "moments.json").read_text(encoding="utf-8"))[policy]
        table = {float(b): a for b, a in given["usable_slope_relative_to_64"].items()}
        batches, measured = np.array(list(table)), np.array(list(table.values()))
        assert 1 / (given["first_order_factor"] - 1) == pytest.approx(shape, abs=0.006)

        def error(k: float) -> Floats:
            slope = usable_slope(batches, noise_scale=given["noise_scale_responses"], snr_shape=k)
            return np.asarray(np.abs(slope / slope[0] / measured - 1))

        near = batches <= 4096
        assert error(shape)[near].max() < within
        assert error(shape).max() < 0.045
        assert error(math.inf)[near].max() > 0.13
        best, misfit = fit_snr_shape(batches[near], measured[near], noise_scale=given["noise_scale_responses"])
        assert shape < best < shape * 1.2
        assert misfit < 0.005


class TestFit:
    @pytest.mark.parametrize("shape", [0.1, 0.5, 3.0, 40.0])
    def test_finds_the_shape_that_made_the_slope(self, shape: float) -> None:
        b = np.geomspace(10, 1e4, 7)
        slope = 7 * usable_slope(b, noise_scale=1000, snr_shape=shape)
        found, misfit = fit_snr_shape(b, slope, noise_scale=1000)
        assert found == pytest.approx(shape, rel=0.01)
        assert misfit < 1e-4

    def test_alike_is_infinite(self) -> None:
        b = np.geomspace(10, 1e4, 7)
        found, misfit = fit_snr_shape(b, usable_slope(b, noise_scale=1000), noise_scale=1000)
        assert found > 300
        assert misfit < 1e-3


def adam_state(
    rng: np.random.Generator,
    *,
    shape: float,
    relative_batch: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    step: int,
    size: int = 10_000,
) -> list[tuple[Floats, Floats]]:
    """Adam's m and v after so many updates at a frozen policy, in 20 layers."""
    signal, deviation = coordinates(rng, shape=shape, noise_scale=1 / relative_batch, size=size)
    m, v = np.zeros(size), np.zeros(size)
    for _ in range(step):
        g = signal + deviation * rng.standard_normal(size)
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
    return list(zip(np.array_split(m, 20), np.array_split(v, 20), strict=True))


class TestAdamState:
    @pytest.mark.parametrize(
        ("shape", "b", "beta2", "step"), [(0.5, 0.3, 0.999, 300), (0.5, 0.3, 0.95, 200), (2.0, 0.5, 0.99, 300)]
    )
    def test_recovers_the_shape(self, shape: float, b: float, beta2: float, step: int) -> None:
        rng = np.random.default_rng(7)
        sets = [
            from_adam_state(
                adam_state(rng, shape=shape, relative_batch=b, beta2=beta2, step=step),
                train_batch=1000 * b,
                noise_scale=1000.0,
                beta2=beta2,
                step=step,
            )
            for _ in range(16)
        ]
        assert np.mean([e.snr_shape for e in sets]) == pytest.approx(shape, rel=0.08)
        assert np.mean([e.low <= shape <= e.high for e in sets]) >= 0.75
        assert all(e.identified for e in sets)

    def test_the_plain_formula_is_biased_where_v_is_noisy(self) -> None:
        # At beta2 = .95 the 3 % that v's noise takes from m^2/v are a fifth of k.
        step = 200
        layers = adam_state(np.random.default_rng(8), shape=0.5, relative_batch=0.3, beta2=0.95, step=step, size=40_000)
        ratio = np.mean(np.concatenate([m**2 / v for m, v in layers]))
        rho = 0.1 / 1.9
        grid = np.geomspace(0.1, 2, 60)
        share = np.array([naive.share_of_signal(0.3, float(k)) for k in grid])
        plain = float(np.interp((ratio - rho) / (1 - rho), share, grid))
        ours = from_adam_state(layers, train_batch=300, noise_scale=1000.0, beta2=0.95, step=step)
        assert plain < 0.45
        assert ours.snr_shape == pytest.approx(0.5, rel=0.08)

    @pytest.mark.parametrize(("b", "k"), [(0.01, 0.5), (0.3, 0.5), (1.0, 3.0), (30.0, 0.2)])
    def test_expectation_against_quadrature(self, b: float, k: float) -> None:
        # With v an average over very many updates, rho + (1 - rho) E[b y/(1 + b y)].
        ours = _state_ratio(0.9, 1 - 1e-9, None)(b, k)
        rho = 0.1 / 1.9
        assert ours == pytest.approx(rho + (1 - rho) * naive.share_of_signal(b, k), rel=1e-6)

    def test_the_start_is_corrected(self) -> None:
        # After two updates of pure signal, m and v are far below their limits and m^2/v is 1 once corrected.
        g = np.full(64, 0.3)
        m, v = (0.1 * 0.9 + 0.1) * g, (0.001 * 0.999 + 0.001) * g**2
        estimate = from_adam_state([(m, v)], train_batch=1000, noise_scale=1.0, step=2)
        assert "mean(m^2/v) = 1 " in estimate.message

    def test_a_small_batch_says_what_would_tell(self) -> None:
        layers = adam_state(np.random.default_rng(9), shape=0.5, relative_batch=1e-3, step=100)
        estimate = from_adam_state(layers, train_batch=1, noise_scale=1000.0, step=100)
        assert not estimate.identified
        assert "nearer to B_noise" in estimate.message

    def test_an_uncertain_noise_scale_widens_the_limits(self) -> None:
        rng = np.random.default_rng(10)
        layers = adam_state(rng, shape=0.5, relative_batch=0.3, step=300)
        gradient = 0.1 + rng.standard_normal((80, 8, 100)) * math.sqrt(1000 / 100 / 8)
        measured = from_chunk_norms(
            8 * 8, 8, np.mean(np.sum(gradient**2, axis=2), axis=1), np.sum(gradient.mean(axis=1) ** 2, axis=1)
        )
        known = from_adam_state(
            layers, train_batch=0.3 * measured.noise_scale, noise_scale=measured.noise_scale, step=300
        )
        unsure = from_adam_state(layers, train_batch=0.3 * measured.noise_scale, noise_scale=measured, step=300)
        assert unsure.snr_shape == known.snr_shape
        assert unsure.low < known.low < known.high < unsure.high

    @pytest.mark.parametrize("options", [{"beta1": 1.0}, {"beta2": -0.1}, {"step": 1}])
    def test_what_cannot_be(self, options: dict[str, float]) -> None:
        with pytest.raises(ValueError, match="must be in"):
            from_adam_state([([1.0], [1.0])], train_batch=1, noise_scale=1.0, **options)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="no coordinate"):
            from_adam_state([([0.0], [0.0])], train_batch=1, noise_scale=1.0)


def inner_products(
    rng: np.random.Generator, *, shape: float, noise_scale: float, batch: float, updates: int, size: int = 500
) -> tuple[Floats, Floats, float]:
    """<u_b, g'> at B/4, B/2 and B, the exact slopes, and the exact noise scale."""
    signal, deviation = coordinates(rng, shape=shape, noise_scale=noise_scale, size=size)
    quarters = signal + deviation * rng.standard_normal((updates, 4, size)) / math.sqrt(batch / 4)
    other = signal + deviation * rng.standard_normal((updates, size)) / math.sqrt(batch)
    inner = []
    for g in (quarters[:, 0], quarters[:, :2].mean(axis=1), quarters.mean(axis=1)):
        inner.append(np.sum(g / np.sqrt(np.mean(g**2, axis=0)) * other, axis=1))
    slopes = [np.sum(signal**2 / np.sqrt(signal**2 + deviation**2 / b)) for b in (batch / 4, batch / 2, batch)]
    return np.stack(inner, axis=1), np.array(slopes), float(np.sum(deviation**2) / np.sum(signal**2))


class TestInnerProducts:
    @pytest.mark.parametrize(
        ("shape", "noise_scale", "batch", "updates"),
        [(0.5, 1000, 1000, 300), (0.5, 1000, 256, 200), (2.0, 500, 1000, 300)],
    )
    def test_ratios_and_shape_are_covered(self, shape: float, noise_scale: float, batch: float, updates: int) -> None:
        """Nominal 95 %; over 150 sets 95 to 99 % for the ratio, 93 to 95 % for k."""
        rng = np.random.default_rng(11)
        ratio, covered, shapes = [], [], []
        for _ in range(60):
            inner, slopes, exact = inner_products(
                rng, shape=shape, noise_scale=noise_scale, batch=batch, updates=updates
            )
            estimate = from_inner_products([batch / 4, batch / 2, batch], inner, noise_scale=exact)
            ratio.append(estimate.low[2] <= slopes[2] / slopes[0] <= estimate.high[2])
            covered.append(estimate.shape.low <= shape <= estimate.shape.high)
            shapes.append(estimate.shape.snr_shape)
        assert np.mean(ratio) >= 0.9
        assert np.mean(covered) >= 0.85
        assert np.median(shapes) == pytest.approx(shape, rel=0.12)

    def test_the_same_second_moment_for_all_batches_shows_nothing(self) -> None:
        """What the documentation warns of: normalised by B's mean square, <u_b, g'> is one number at every b."""
        rng = np.random.default_rng(12)
        signal, deviation = coordinates(rng, shape=0.5, noise_scale=1000, size=500)
        quarters = signal + deviation * rng.standard_normal((400, 4, 500)) / math.sqrt(250)
        other = signal + deviation * rng.standard_normal((400, 500)) / math.sqrt(1000)
        scale = np.sqrt(np.mean(quarters.mean(axis=1) ** 2, axis=0))
        inner = np.stack([np.sum(g / scale * other, axis=1) for g in (quarters[:, 0], quarters.mean(axis=1))], axis=1)
        assert from_inner_products([250, 1000], inner).usable_slope[1] == pytest.approx(1, abs=0.05)

    def test_without_a_noise_scale_there_are_ratios_only(self) -> None:
        inner, slopes, _ = inner_products(
            np.random.default_rng(13), shape=0.5, noise_scale=1000, batch=1000, updates=300
        )
        estimate = from_inner_products([250, 500, 1000], inner)
        assert estimate.identified
        assert estimate.usable_slope == pytest.approx(slopes / slopes[0], rel=0.05)
        assert not estimate.shape.identified
        assert "B_noise from chunk norms" in estimate.shape.message

    def test_too_few_or_no_signal(self) -> None:
        short = from_inner_products([1, 2, 4], np.ones((4, 3)))
        assert not short.identified
        assert "updates or more" in short.message
        noise = np.random.default_rng(14).standard_normal((200, 3))
        lost = from_inner_products([1, 2, 4], noise, noise_scale=10.0)
        assert not lost.identified
        assert "does not differ from zero" in lost.message
        assert not lost.shape.identified
