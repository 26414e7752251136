"""The noisy quadratic: recursions against simulation, targets against a walk, and what batches do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numba
import numpy as np
import pytest
import xarray as xr
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from naive_quadratic import adam_losses, first_update, follow

from batchsim.errors import InputError
from batchsim.learning.worlds import (
    Optimizer,
    Quadratic,
    expected_loss,
    loss_floor,
    moments,
    power_law,
    regimes,
    scaling_curve,
    stable_rate,
    tuned_rate,
    updates_to_target,
)
from batchsim.learning.worlds.quadratic import adam_seed
from batchsim.learning.worlds.scaling import critical_batch, log_slope
from batchsim.variables import VARIABLES

SGD = Optimizer()
SMALL = Quadratic(
    curvature=np.array([1.0, 0.4, 0.05]), noise=np.array([2.0, 0.3, 0.1]), start=np.array([1.0, -2.0, 3.0])
)
BATCHES = 4.0 ** np.arange(12)
LINEAR = {
    "sgd": SGD,
    "momentum": Optimizer(kind="momentum", beta1=0.8),
    "dampened": Optimizer(kind="momentum", beta1=0.9, dampened=True),
    "averaged": Optimizer(iterate_average=0.9),
    "averaged momentum": Optimizer(kind="momentum", beta1=0.7, iterate_average=0.8),
    "preconditioned": Optimizer(kind="momentum", beta1=0.5, preconditioner=0.5),
}


@st.composite
def worlds(draw: st.DrawFn) -> Quadratic:
    dim = draw(st.integers(1, 30))
    exponent = draw(st.floats(0.0, 2.0))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    h = np.arange(1, dim + 1, dtype=np.float64) ** -exponent
    noise = h * 10.0 ** draw(st.floats(-2, 2)) * np.exp(draw(st.floats(0, 1)) * rng.standard_normal(dim))
    return Quadratic(curvature=h, noise=np.asarray(noise, dtype=np.float64), start=np.ones(dim))


@st.composite
def optimizers(draw: st.DrawFn) -> Optimizer:
    return Optimizer(
        kind=draw(st.sampled_from(["sgd", "momentum"])),
        beta1=draw(st.floats(0.0, 0.97)),
        dampened=draw(st.booleans()),
        iterate_average=draw(st.sampled_from([0.0, 0.5, 0.98])),
        preconditioner=draw(st.sampled_from([0.0, 0.5, 1.0])),
    )


class TestRecursions:
    @pytest.mark.parametrize("name", LINEAR)
    @pytest.mark.parametrize("random_start", [False, True])
    def test_moments_are_those_of_a_simulation(self, name: str, random_start: bool) -> None:
        optimizer, world, replicas = LINEAR[name], replace(SMALL, random_start=random_start), 20_000
        rate = 0.4 * stable_rate(world, optimizer)
        # x, v and a after 7 updates, on the way, and after 60, near rest.
        exact = moments(world, optimizer, train_batch=8, learning_rate=rate, updates=[7, 60])
        for k, updates in enumerate((7, 60)):
            drawn = follow(
                curvature=world.curvature, noise=world.noise, start=world.start, batch=8, rate=rate,
                beta=optimizer.beta, gain=optimizer.gain, average=optimizer.iterate_average,
                power=optimizer.preconditioner, updates=updates, replicas=replicas,
                rng=np.random.default_rng(updates), random_start=random_start,
            )  # fmt: skip
            for i in range(3):
                error = drawn[i].std(axis=0) / np.sqrt(replicas)
                assert (np.abs(drawn[i].mean(axis=0) - exact.mean[k, i]) < 4.5 * error + 1e-12).all()
                for j in range(3):
                    product = (drawn[i] - drawn[i].mean(axis=0)) * (drawn[j] - drawn[j].mean(axis=0))
                    error = product.std(axis=0) / np.sqrt(replicas)
                    assert (np.abs(product.mean(axis=0) - exact.covariance[k, i, j]) < 4.5 * error + 1e-12).all()
            loss = 0.5 * drawn[2] ** 2 @ world.curvature
            assert abs(loss.mean() - exact.loss[k]) < 4.5 * loss.std() / np.sqrt(replicas)

    @given(worlds(), optimizers(), st.floats(-6, -0.01), st.floats(-1, 4))
    @settings(max_examples=60)
    def test_powers_are_the_recursion(
        self, world: Quadratic, optimizer: Optimizer, log_rate: float, log_batch: float
    ) -> None:
        rate, batch = stable_rate(world, optimizer) * np.exp(log_rate), 10**log_batch
        updates = [0, 1, 2, 3, 17, 64, 255, 1000]
        walked = moments(world, optimizer, train_batch=batch, learning_rate=rate, updates=updates).loss
        jumped = expected_loss(world, optimizer, train_batch=batch, learning_rate=rate, updates=updates)
        # What rounding leaves is relative to what was subtracted, the floor.
        floor = loss_floor(world, optimizer, train_batch=batch, learning_rate=rate)
        assert np.abs(jumped - walked).max() <= 1e-9 * (world.start_loss + floor)

    def test_the_floor_of_sgd_by_its_formula(self) -> None:
        rate, batch = 1.3, 5.0
        by_hand = 0.5 * np.sum(rate * SMALL.noise / batch / (2 - rate * SMALL.curvature))
        assert loss_floor(SMALL, SGD, train_batch=batch, learning_rate=rate) == pytest.approx(by_hand, rel=1e-12)
        late = expected_loss(SMALL, SGD, train_batch=batch, learning_rate=rate, updates=[100_000])
        assert late[0] == pytest.approx(by_hand, rel=1e-9)

    def test_the_floor_of_momentum_by_its_formula(self) -> None:
        rate, batch, beta = 0.7, 5.0, 0.8
        by_hand = 0.5 * np.sum(
            rate * SMALL.noise / batch * (1 + beta) / ((1 - beta) * (2 * (1 + beta) - rate * SMALL.curvature))
        )
        momentum = LINEAR["momentum"]
        assert loss_floor(SMALL, momentum, train_batch=batch, learning_rate=rate) == pytest.approx(by_hand, rel=1e-12)
        late = moments(SMALL, momentum, train_batch=batch, learning_rate=rate, updates=[5000]).loss
        assert late[0] == pytest.approx(by_hand, rel=1e-9)

    @given(worlds(), optimizers(), st.floats(-4, -0.01))
    @settings(max_examples=30)
    def test_the_floor_is_where_the_recursion_rests(
        self, world: Quadratic, optimizer: Optimizer, log_rate: float
    ) -> None:
        rate = stable_rate(world, optimizer) * np.exp(log_rate)
        late = expected_loss(world, optimizer, train_batch=3.0, learning_rate=rate, updates=[10**8])
        floor = loss_floor(world, optimizer, train_batch=3.0, learning_rate=rate)
        assert late[0] == pytest.approx(floor, rel=1e-9)

    def test_a_dampened_velocity_is_a_smaller_rate(self) -> None:
        plain, dampened = Optimizer(kind="momentum"), Optimizer(kind="momentum", dampened=True)
        updates = [1, 10, 100]
        one = expected_loss(SMALL, plain, train_batch=4, learning_rate=0.03, updates=updates)
        other = expected_loss(SMALL, dampened, train_batch=4, learning_rate=0.3, updates=updates)
        assert one == pytest.approx(other, rel=1e-12)

    def test_averaging_the_iterates_lowers_the_floor(self) -> None:
        floors = [
            loss_floor(SMALL, Optimizer(iterate_average=rho), train_batch=8, learning_rate=0.5)
            for rho in (0.0, 0.5, 0.9, 0.99, 0.999)
        ]
        assert (np.diff(floors) < 0).all()
        assert floors[-1] < 0.01 * floors[0]

    def test_a_random_start_costs_the_same(self) -> None:
        known, drawn = power_law(10, random_start=False), power_law(10)
        for optimizer in LINEAR.values():
            kwargs: dict[str, Any] = {"train_batch": 4, "learning_rate": 0.2, "updates": [3, 30]}
            assert moments(known, optimizer, **kwargs).loss == pytest.approx(
                moments(drawn, optimizer, **kwargs).loss, rel=1e-12
            )


class TestTargets:
    @given(worlds(), optimizers(), st.floats(-5, -0.001), st.floats(-1, 4), st.floats(0.01, 0.9))
    @settings(max_examples=80)
    def test_the_first_crossing_is_that_of_a_walk(
        self, world: Quadratic, optimizer: Optimizer, log_rate: float, log_batch: float, share: float
    ) -> None:
        rate, batch, most = stable_rate(world, optimizer) * np.exp(log_rate), 10**log_batch, 2000
        target = share * world.start_loss
        ds = updates_to_target(world, optimizer, train_batch=batch, learning_rate=rate, target=target, updates_max=most)
        found, outcome = ds["updates_to_target"].item(), ds["training_outcome"].item()
        if loss_floor(world, optimizer, train_batch=batch, learning_rate=rate) >= target:
            assert (found, outcome) == (np.inf, "below the floor")
            return
        losses = expected_loss(world, optimizer, train_batch=batch, learning_rate=rate, updates=np.arange(most + 50))
        walked = first_update(lambda n: float(losses[n]), target, most)
        # Straight lines through losses that nearly touch the target are badly conditioned.
        assume(np.abs(losses / target - 1).min() > 1e-9)
        assert found == pytest.approx(walked, rel=1e-4)
        assert outcome == ("reached" if np.isfinite(walked) else "too many updates")

    @pytest.mark.parametrize("share", [0.1, 1e-3, 3e-5, 1e-5, 3e-6, 1e-6])
    def test_a_dip_of_one_update_is_not_missed(self, share: float) -> None:
        """One coordinate that oscillates with a period of 6 updates, long after the first 64."""
        world = Quadratic(curvature=np.ones(1), noise=np.zeros(1), start=np.ones(1))
        optimizer, target = Optimizer(kind="momentum", beta1=0.99), share * world.start_loss
        ds = updates_to_target(world, optimizer, train_batch=1, learning_rate=1.03, target=target)
        losses = expected_loss(world, optimizer, train_batch=1, learning_rate=1.03, updates=np.arange(2000))
        assert ds["updates_to_target"].item() == pytest.approx(
            first_update(lambda n: float(losses[n]), target, 1999), rel=1e-9
        )

    def test_far_away_and_by_hand(self) -> None:
        """One coordinate, no noise: (1 - eta h)^2n = target/start, a million updates away."""
        world = Quadratic(curvature=np.ones(1), noise=np.zeros(1), start=np.ones(1))
        ds = updates_to_target(world, SGD, train_batch=1, learning_rate=1e-6, target=0.5 * np.exp(-4.0))
        assert ds["updates_to_target"].item() == pytest.approx(-2 / np.log1p(-1e-6), rel=1e-9)

    def test_every_way_not_to_arrive_has_its_name(self) -> None:
        world = power_law(10)
        ds = updates_to_target(
            world, SGD, train_batch=[1, 64], learning_rate=[1e-9, 0.01, 1.9, 2.0, 50.0],
            target=0.1 * world.start_loss, updates_max=5000,
        )  # fmt: skip
        row = ["too many updates", "reached", "below the floor", "diverges", "diverges"]
        assert ds["training_outcome"].values.tolist() == [row, row]
        missing = ds["training_outcome"].values != "reached"
        assert np.isinf(ds["updates_to_target"].values[missing]).all()
        assert np.isinf(ds["responses_to_target"].values[missing]).all()
        assert np.isfinite(ds["updates_to_target"].values[~missing]).all()
        assert np.isinf(ds["loss_floor"].values[:, 3:]).all()

    def test_an_unstable_rate_grows_to_infinity(self) -> None:
        losses = expected_loss(SMALL, SGD, train_batch=8, learning_rate=2.5, updates=[1, 100, 10_000])
        assert losses[0] < losses[1]
        assert losses[2] == np.inf

    def test_responses_are_batch_times_updates(self) -> None:
        world = power_law(10)
        ds = updates_to_target(world, SGD, train_batch=[64, 256], learning_rate=[0.1, 0.2], target=0.3)
        expected = ds["updates_to_target"] * ds["train_batch"]
        assert np.allclose(ds["responses_to_target"].values, expected.values, rtol=1e-14)

    @given(worlds(), optimizers(), st.floats(-4, -0.01), st.floats(-1, 3))
    @settings(max_examples=30)
    def test_a_larger_batch_never_loses_more(
        self, world: Quadratic, optimizer: Optimizer, log_rate: float, log_batch: float
    ) -> None:
        rate = stable_rate(world, optimizer) * np.exp(log_rate)
        updates = [1, 5, 50, 500]
        losses = np.array(
            [
                expected_loss(world, optimizer, train_batch=b, learning_rate=rate, updates=updates)
                for b in 10**log_batch * 2.0 ** np.arange(6)
            ]
        )
        assert (np.diff(losses, axis=0) <= 1e-9 * losses[:-1]).all()

    @given(worlds(), optimizers(), st.floats(-4, -0.05), st.floats(0.1, 10), st.floats(0.1, 10), st.floats(0.1, 10))
    @settings(max_examples=30)
    def test_units_do_not_matter(
        self, world: Quadratic, optimizer: Optimizer, log_rate: float, loss: float, length: float, count: float
    ) -> None:
        """Units of loss, of x and of responses: the same updates."""
        rate, target = stable_rate(world, optimizer) * np.exp(log_rate), 0.2 * world.start_loss
        other = Quadratic(
            curvature=world.curvature * loss / length**2,
            noise=world.noise * count * (loss / length) ** 2,
            start=world.start * length,
        )
        # A preconditioner h^-p takes on the unit of h.
        unit = (length**2 / loss) ** (1 - optimizer.preconditioner)
        a = updates_to_target(world, optimizer, train_batch=32, learning_rate=rate, target=target)
        b = updates_to_target(other, optimizer, train_batch=32 * count, learning_rate=rate * unit, target=target * loss)
        assert a["training_outcome"].item() == b["training_outcome"].item()
        assert b["updates_to_target"].item() == pytest.approx(a["updates_to_target"].item(), rel=1e-5)


class TestTuning:
    def test_gradient_descent_has_its_textbook_rate(self) -> None:
        """Without noise: the rate at which both coordinates lose equally, at last 2/(h_min + h_max).

        After n updates (eta - 1)/(1 - eta/10) = (1/10)^(1/(2 n - 1)) where both start with the same loss.
        """
        h = np.array([1.0, 0.1])
        world = Quadratic(curvature=h, noise=np.zeros(2), start=1 / np.sqrt(h))
        found = tuned_rate(world, SGD, train_batch=1, target=1e-20)
        assert found.updates == pytest.approx(np.log(1e-20) / 2 / np.log(0.9 / 1.1), rel=0.01)
        ratio = 0.1 ** (1 / (2 * found.updates - 1))
        assert found.learning_rate == pytest.approx((1 + ratio) / (1 + ratio / 10), rel=1e-3)
        assert found.learning_rate == pytest.approx(2 / 1.1, rel=0.01)

    @pytest.mark.parametrize("name", LINEAR)
    @pytest.mark.parametrize("batch", [1.0, 64.0, 4096.0])
    def test_no_rate_of_a_dense_grid_is_better(self, name: str, batch: float) -> None:
        world, optimizer = power_law(20), LINEAR[name]
        target = 0.05 * world.start_loss
        best = tuned_rate(world, optimizer, train_batch=batch, target=target)
        rates = stable_rate(world, optimizer) * np.geomspace(1e-5, 1, 4000, endpoint=False)
        ds = updates_to_target(world, optimizer, train_batch=batch, learning_rate=rates, target=target)
        assert best.outcome == "reached"
        assert best.updates <= float(ds["updates_to_target"].min()) * (1 + 1e-6)
        assert best.updates == pytest.approx(float(ds["updates_to_target"].min()), rel=0.01)

    @given(worlds(), optimizers(), st.floats(0.003, 0.5))
    @settings(max_examples=15)
    def test_tuned_updates_never_rise_with_the_batch(
        self, world: Quadratic, optimizer: Optimizer, share: float
    ) -> None:
        ds = scaling_curve(world, optimizer, train_batch=BATCHES[:8], target=share * world.start_loss)
        updates = ds["updates_to_target"].values
        assert (ds["training_outcome"] == "reached").all()
        assert (updates[1:] <= updates[:-1] * (1 + 1e-9)).all()

    @given(worlds(), st.floats(0.003, 0.5))
    @settings(max_examples=12)
    def test_tuned_responses_hardly_fall(self, world: Quadratic, share: float) -> None:
        """Two updates of B are worth one of 2 B but for terms in the size of a step, so of order 1/updates."""
        ds = scaling_curve(world, SGD, train_batch=2.0 ** np.arange(-2, 12), target=share * world.start_loss)
        responses, updates = ds["responses_to_target"].values, ds["updates_to_target"].values
        assert (responses[1:] >= responses[:-1] * (1 - 1 / updates[1:] - 1e-6)).all()

    def test_with_a_handful_of_updates_they_can_fall(self) -> None:
        """A constant rate wastes small batches: one update of 2 B, but more than two of B.

        After one update at eta = 1 only noise is left, c/(2 B); two at any eta leave more than that, by
        (1 - eta)^4 + (c/B) eta^2 (1 + (1 - eta)^2).
        """
        world, c, batch = Quadratic(curvature=np.ones(1), noise=np.array([0.01]), start=np.ones(1)), 0.01, 1.0
        target = 0.5 * 0.006
        eta = np.linspace(0.001, 1.999, 100_000)
        two = 0.5 * ((1 - eta) ** 4 + c / batch * eta**2 * (1 + (1 - eta) ** 2))
        assert two.min() > target
        ds = scaling_curve(world, SGD, train_batch=[batch, 2 * batch], target=target)
        small, large = ds["updates_to_target"].values
        assert large < 1 < 2 < small
        assert ds["sample_cost_ratio"].values[1] < 1

    def test_units_do_not_change_the_curve(self) -> None:
        world = power_law(20)
        other = Quadratic(curvature=3 * world.curvature, noise=9 * 7 * world.noise, start=world.start)
        a = scaling_curve(world, SGD, train_batch=BATCHES[:6], target=0.1)
        b = scaling_curve(other, SGD, train_batch=7 * BATCHES[:6], target=0.3)
        assert b["updates_to_target"].values == pytest.approx(a["updates_to_target"].values, rel=1e-6)
        assert b["learning_rate"].values == pytest.approx(a["learning_rate"].values / 3, rel=1e-3)

    def test_too_few_updates_is_a_label(self) -> None:
        world = power_law(20)
        ds = scaling_curve(world, SGD, train_batch=[1, 4, 4096], target=0.01 * world.start_loss, updates_max=300)
        assert ds["training_outcome"].values.tolist() == ["too many updates", "too many updates", "reached"]
        assert np.isinf(ds["responses_to_target"].values[:2]).all()
        assert np.isnan(ds["learning_rate"].values[:2]).all()
        assert ds["sample_cost_ratio"].values[2] == 1
        assert ds.attrs["warnings"] == ["B = 1, 4: no rate reaches the target within 300 updates"]

    def test_nothing_reached_is_no_error(self) -> None:
        world = power_law(20)
        ds = scaling_curve(world, SGD, train_batch=[1, 2], target=1e-6, updates_max=3)
        assert np.isnan(ds["sample_cost_ratio"].values).all()
        assert ds["regime"].values.tolist() == ["", ""]
        assert np.isnan(ds.attrs["critical_train_batch"])

    def test_the_edge_of_stability_is_said(self) -> None:
        """A steep coordinate that starts at rest allows any stable rate, and the flat one wants the largest."""
        world = Quadratic(curvature=np.array([1.0, 0.01]), noise=np.zeros(2), start=np.array([1e-9, 1.0]))
        ds = scaling_curve(world, SGD, train_batch=[1], target=0.5 * world.start_loss)
        assert ds.attrs["warnings"] == ["B = 1: the best rate lies at the edge of stability"]


@pytest.fixture(scope="module")
def curves() -> dict[str, xr.Dataset]:
    world = power_law(100)
    asked = {
        "sgd": SGD,
        "momentum": Optimizer(kind="momentum"),
        "preconditioned": Optimizer(preconditioner=0.5),
        "averaged": Optimizer(iterate_average=0.9),
    }
    return {
        name: scaling_curve(world, optimizer, train_batch=BATCHES, target=0.01 * world.start_loss)
        for name, optimizer in asked.items()
    }


class TestRegimes:
    @pytest.mark.parametrize("name", ["sgd", "momentum", "preconditioned"])
    def test_there_are_three_in_their_order(self, curves: dict[str, xr.Dataset], name: str) -> None:
        seen = curves[name]["regime"].values.tolist()
        assert list(dict.fromkeys(seen)) == ["perfect scaling", "diminishing returns", "max data parallelism"]

    @pytest.mark.parametrize("name", ["sgd", "momentum", "preconditioned"])
    def test_slopes_are_minus_one_and_zero(self, curves: dict[str, xr.Dataset], name: str) -> None:
        slope = log_slope(BATCHES, curves[name]["updates_to_target"].values)
        assert slope[0] == pytest.approx(-1, abs=0.01)
        assert slope[-1] == pytest.approx(0, abs=0.001)
        assert (slope < 1e-9).all()

    @pytest.mark.parametrize("name", ["momentum", "preconditioned"])
    def test_the_knee_moves_right(self, curves: dict[str, xr.Dataset], name: str) -> None:
        assert curves[name].attrs["critical_train_batch"] > 2 * curves["sgd"].attrs["critical_train_batch"]

    def test_momentum_helps_large_batches_alone(self, curves: dict[str, xr.Dataset]) -> None:
        ratio = (curves["momentum"]["updates_to_target"] / curves["sgd"]["updates_to_target"]).values
        assert ratio[0] == pytest.approx(1, abs=0.01)
        assert ratio[-1] < 0.75

    def test_averaging_helps_small_batches(self, curves: dict[str, xr.Dataset]) -> None:
        ratio = (curves["averaged"]["updates_to_target"] / curves["sgd"]["updates_to_target"]).values
        assert ratio.min() < 0.9
        assert ratio[:3].max() < 1
        assert ratio[-1] == pytest.approx(1, abs=0.2)

    def test_the_rate_grows_with_small_batches_and_stops(self, curves: dict[str, xr.Dataset]) -> None:
        rate = curves["sgd"]["learning_rate"].values
        assert rate[1] / rate[0] == pytest.approx(4, rel=0.02)
        assert rate[-1] / rate[-2] == pytest.approx(1, rel=0.001)
        assert rate[-1] < stable_rate(power_law(100), SGD)

    def test_labels_and_knee_by_hand(self) -> None:
        b = np.array([1.0, 2, 4, 8])
        assert regimes(b, [8.0, 4, 4, 4]).tolist() == [
            "perfect scaling", "diminishing returns", "max data parallelism", "max data parallelism",
        ]  # fmt: skip
        assert regimes(b, [np.inf, 4, np.inf, 4]).tolist() == [""] * 4
        assert critical_batch(b, [100, 100, 121, 300]) == pytest.approx(2 * 2**0.5)
        assert critical_batch(b, [np.inf, 100, 121, 300]) == pytest.approx(2 * 2**0.5)
        assert np.isnan(critical_batch(b, [100, 100, 105, 109]))
        # Where responses fall first, from the least.
        assert critical_batch(b, [150, 100, 100, 121]) == pytest.approx(4 * 2**0.5)

    def test_attributes_are_those_of_the_vocabulary(self, curves: dict[str, xr.Dataset]) -> None:
        ds = curves["sgd"]
        for name in ds.variables:
            assert ds[name].attrs["units"] == VARIABLES[str(name)].unit
        assert ds.attrs["noise_scale"] == power_law(100).noise_scale()


class TestNoiseScale:
    def test_by_drawing_gradients(self) -> None:
        at, replicas = np.array([0.5, 1.0, -1.0]), 200_000
        rng = np.random.default_rng(1)
        true = SMALL.curvature * at
        g = true + np.sqrt(SMALL.noise) * rng.standard_normal((replicas, 3))
        trace, square = g.var(axis=0).sum(), (g.mean(axis=0) ** 2).sum()
        assert SMALL.noise_scale(at) == pytest.approx(trace / square, rel=0.02)
        weighted = (SMALL.curvature * g.var(axis=0)).sum() / (SMALL.curvature * g.mean(axis=0) ** 2).sum()
        assert SMALL.curvature_noise_scale(at) == pytest.approx(weighted, rel=0.02)

    def test_one_update_is_mccandlish(self) -> None:
        """The rate that gains most in one update is 1/(1 + B_noise/B) of that without noise."""
        batch, rates = 3.0, np.linspace(0.01, 1.9, 4000)
        losses = np.array(
            [expected_loss(SMALL, SGD, train_batch=batch, learning_rate=r, updates=[1])[0] for r in rates]
        )
        g = SMALL.curvature * SMALL.start
        alone = (g @ g) / np.sum(SMALL.curvature * g**2)
        best = alone / (1 + SMALL.curvature_noise_scale() / batch)
        assert rates[losses.argmin()] == pytest.approx(best, abs=1e-3)

    def test_it_is_infinite_at_the_optimum_and_equal_where_curvatures_are(self) -> None:
        assert SMALL.noise_scale(np.zeros(3)) == np.inf
        flat = power_law(7, exponent=0, noise=3.0)
        assert flat.noise_scale() == pytest.approx(3)
        assert flat.curvature_noise_scale() == pytest.approx(3)


class TestAdam:
    @pytest.mark.parametrize("random_start", [False, True])
    def test_it_is_adam_number_by_number(self, random_start: bool) -> None:
        optimizer = Optimizer(kind="adam", replicas=3, iterate_average=0.5, beta2=0.99, epsilon=1e-3)
        world = replace(SMALL, random_start=random_start)
        found = expected_loss(world, optimizer, train_batch=4, learning_rate=0.05, updates=np.arange(61), seed=5)
        naive = adam_losses(
            curvature=world.curvature, noise=world.noise, start=world.start, batch=4, rate=0.05,
            seed=int(adam_seed(5, 0)), replicas=3, updates=60, average=0.5, beta2=0.99, epsilon=1e-3,
            random_start=random_start,
        )  # fmt: skip
        assert found[0] == world.start_loss
        assert found[1:] == pytest.approx(naive, rel=1e-9)

    def test_its_target_is_that_of_its_losses(self) -> None:
        world, optimizer = power_law(20), Optimizer(kind="adam")
        target = 0.2 * world.start_loss
        ds = updates_to_target(world, optimizer, train_batch=64, learning_rate=0.05, target=target, seed=3)
        losses = expected_loss(world, optimizer, train_batch=64, learning_rate=0.05, updates=np.arange(500), seed=3)
        assert ds["updates_to_target"].item() == first_update(lambda n: float(losses[n]), target, 499)
        assert np.isnan(ds["loss_floor"].item())

    def test_a_rate_too_large_stays_on_its_floor(self) -> None:
        world, optimizer = power_law(20), Optimizer(kind="adam")
        ds = updates_to_target(
            world, optimizer, train_batch=1, learning_rate=[1e-7, 2.0], target=0.02 * world.start_loss
        )
        assert ds["training_outcome"].values.tolist() == [["too many updates", "below the floor"]]

    def test_threads_do_not_matter(self) -> None:
        world = power_law(10)
        curve = []
        most = numba.get_num_threads()
        try:
            for threads in sorted({1, most}):
                numba.set_num_threads(threads)
                curve.append(
                    [
                        scaling_curve(world, o, train_batch=[4, 64, 1024], target=0.1 * world.start_loss, seed=2)
                        for o in (Optimizer(kind="adam"), Optimizer(kind="momentum"))
                    ]
                )
        finally:
            numba.set_num_threads(most)
        for other in curve[1:]:
            assert all(a.identical(b) for a, b in zip(curve[0], other, strict=True))

    def test_a_curve_with_its_errors(self) -> None:
        world = power_law(20)
        asked: dict[str, Any] = {"train_batch": 4.0 ** np.arange(8), "target": 0.05 * world.start_loss}
        ds, again = (scaling_curve(world, Optimizer(kind="adam", replicas=64), **asked, seed=n) for n in (0, 1))
        assert ds["regime"].values[0] == "perfect scaling"
        assert ds["regime"].values[-1] == "max data parallelism"
        relative = (ds["responses_to_target_se"] / ds["responses_to_target"]).values
        assert ((relative > 0) & (relative < 0.1)).all()
        # Another seed finds about the same: five standard errors, and 5 % for the rate that it chose.
        distance = np.abs(np.log((again["responses_to_target"] / ds["responses_to_target"]).values))
        assert (distance < 5 * np.sqrt(2) * relative + 0.05).all()

    def test_too_few_updates_is_a_label(self) -> None:
        world = power_law(5)
        ds = scaling_curve(world, Optimizer(kind="adam"), train_batch=[0.01], target=1e-4, updates_max=20)
        assert ds["training_outcome"].values.tolist() == ["too many updates"]


class TestBadInput:
    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"curvature": np.array([1.0, 0.0, 1.0])}, "curvature is 0, and it must be positive; leave flat"),
            ({"curvature": np.zeros((2, 2))}, r"curvature has shape \(2, 2\)"),
            ({"curvature": np.array([])}, "1 to 100,000 coordinates"),
            ({"noise": np.array([1.0, -1.0, 1.0])}, "noise is -1, and a variance must not be negative"),
            ({"noise": np.ones(2)}, r"noise has shape \(2,\), curvature \(3,\)"),
            ({"start": np.zeros(3)}, "nothing to learn"),
            ({"start": np.array([np.nan, 1, 1])}, "start is not finite"),
        ],
    )
    def test_worlds(self, change: dict[str, Any], said: str) -> None:
        with pytest.raises(InputError, match=said):
            replace(SMALL, **change)

    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            ({"kind": "adm"}, "'adm' is not known; did you mean 'adam'"),
            ({"beta1": 1.0}, r"beta1 is 1, outside \[0, 1\)"),
            ({"iterate_average": -0.1}, "iterate_average is -0.1"),
            ({"preconditioner": 1.5}, r"outside \[0, 1\]"),
            ({"kind": "adam", "preconditioner": 0.5}, "adam takes no preconditioner"),
            ({"epsilon": -1.0}, "epsilon is -1"),
            ({"replicas": 0}, "replicas is 0, outside 1 to 10,000"),
        ],
    )
    def test_optimizers(self, settings: dict[str, Any], said: str) -> None:
        with pytest.raises(InputError, match=said):
            Optimizer(**settings)

    def test_spectra(self) -> None:
        with pytest.raises(InputError, match="dim is 0, outside 1 to 100,000"):
            power_law(0)
        with pytest.raises(InputError, match="condition number"):
            power_law(1000, exponent=5)

    def test_targets_and_batches(self) -> None:
        world = power_law(10)
        for target in (0.0, world.start_loss, np.nan):
            with pytest.raises(InputError, match="the loss at the start; choose"):
                updates_to_target(world, SGD, train_batch=1, learning_rate=0.1, target=target)
        with pytest.raises(InputError, match="train_batch is 0"):
            tuned_rate(world, SGD, train_batch=0, target=0.1)
        with pytest.raises(InputError, match="learning_rate is"):
            updates_to_target(world, SGD, train_batch=1, learning_rate=[0.1, -1], target=0.1)
        with pytest.raises(InputError, match="ascending"):
            scaling_curve(world, SGD, train_batch=[4, 2], target=0.1)
        with pytest.raises(InputError, match="positive"):
            scaling_curve(world, SGD, train_batch=[-4, 2], target=0.1)
        with pytest.raises(InputError, match="batches, outside 1 to 1000"):
            scaling_curve(world, SGD, train_batch=[], target=0.1)
        with pytest.raises(InputError, match="updates_max is 0, outside 1 to 1,000,000,000"):
            updates_to_target(world, SGD, train_batch=1, learning_rate=0.1, target=0.1, updates_max=0)

    def test_updates(self) -> None:
        world = power_law(3)
        given_: dict[str, Any] = {"train_batch": 1, "learning_rate": 0.1}
        with pytest.raises(InputError, match="whole numbers"):
            expected_loss(world, SGD, updates=[1.5], **given_)
        with pytest.raises(InputError, match="outside 0 to 1,000,000,000"):
            expected_loss(world, SGD, updates=[10**10], **given_)
        with pytest.raises(InputError, match="ascending"):
            moments(world, SGD, updates=[3, 1], **given_)
        with pytest.raises(InputError, match="adam do not close"):
            moments(world, Optimizer(kind="adam"), updates=[1], **given_)
        with pytest.raises(InputError, match="the point has shape"):
            world.noise_scale(np.ones(2))
