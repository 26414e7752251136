"""A rollout step from specifications: composition, limits, splits, and what the simulation says by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchsim.errors import InputError
from batchsim.specs.gpus import find_gpu
from batchsim.specs.lengths import Lengths
from batchsim.specs.models import find_model
from batchsim.system.decode_law import DecodeLaw
from batchsim.system.memory import cache_room
from batchsim.system.pipeline import critical_on_curve, curve_middle, on_curve, rollout_step_time, throughput
from batchsim.system.pipeline.specified import (
    STEP_MODES,
    Generation,
    best_split,
    compose,
    generation_table,
)
from batchsim.system.roofline import deploy
from batchsim.variables import VARIABLES

LAW = DecodeLaw(
    step_time=np.concatenate([[0.0], 0.01 + 1e-4 * np.arange(1, 65)]),
    context_time=2e-8,
    prefill_time=1e-6,
    name="by hand",
)


def generation(**changes: object) -> Generation:
    values: dict[str, object] = {
        "deployment": None,
        "room": None,
        "lengths": Lengths(prompt_mean=100, response_mean=200, response_spread=0.6),
        "group_size": 4,
        "max_num_seqs": 64,
        "law": LAW,
    }
    return Generation(**(values | changes))  # type: ignore[arg-type]


def train(rollout_batch: np.ndarray, gpus: int) -> np.ndarray:
    return np.asarray(0.5 + 0.02 * rollout_batch / gpus)


class TestCurve:
    @given(
        st.lists(st.tuples(st.floats(1, 1e5), st.floats(0.1, 1e4)), min_size=2, max_size=6, unique_by=lambda p: p[0])
    )
    def test_passes_through_its_points(self, points: list[tuple[float, float]]) -> None:
        x, y = (np.array(v) for v in zip(*sorted(points), strict=True))
        if np.any(np.diff(np.log(x)) < 1e-6):
            return
        np.testing.assert_allclose(on_curve(x, (x, y)), y, rtol=1e-9)
        middle = on_curve(np.sqrt(x[:-1] * x[1:]), (x, y))
        np.testing.assert_allclose(middle, np.sqrt(y[:-1] * y[1:]), rtol=1e-9)

    def test_goes_on_beyond_its_ends(self) -> None:
        curve = (np.array([10.0, 20.0]), np.array([1.0, 2.0]))
        np.testing.assert_allclose(on_curve([5.0, 40.0], curve), [0.5, 4.0])
        assert curve_middle(curve) == pytest.approx(math.sqrt(200))

    def test_an_affine_law_and_its_curve_agree(self) -> None:
        r = np.geomspace(10, 1000, 400)
        curve = (r, 5 + 0.1 * r)
        expected = throughput(r, gen_time_intercept=5.0, gen_time_slope=0.1)
        np.testing.assert_allclose(throughput(r, gen_curve=curve), expected, rtol=1e-12)

    def test_factors_and_tilt(self) -> None:
        curve = (np.array([10.0, 1000.0]), np.array([1.0, 10.0]))
        t = rollout_step_time(
            [10.0, 100.0, 1000.0],
            gen_curve=curve,
            gen_factor=np.array([[2.0], [1.0]]),
            gen_tilt=np.array([[0.0], [0.1]]),
            train_curve=curve,
            train_factor=3.0,
        )
        np.testing.assert_allclose(t[0], [5.0, 5 * math.sqrt(10), 50.0])
        np.testing.assert_allclose(t[1, 1], 4 * math.sqrt(10))
        assert t[1, 2] / t[1, 0] == pytest.approx((10 * 10**0.1 + 30) / (10**-0.1 + 3))


class TestGeneration:
    def test_a_fixed_length_by_hand(self) -> None:
        """One replica, 64 sequences of equal length: every wave takes the same time."""
        g = generation(lengths=Lengths(prompt_mean=1, response_mean=50, distribution="fixed"), max_num_seqs=16)
        law = DecodeLaw(step_time=np.r_[0.0, np.full(16, 0.1)], context_time=0.0)
        g = Generation(**{**{f: getattr(g, f) for f in g.__dataclass_fields__}, "law": law})
        ds = generation_table(g, rollout_batch=[16, 64], gpus=1)
        assert float(ds["gen_time"][0]) == pytest.approx(50 * 0.1)
        assert float(ds["gen_time"][1]) == pytest.approx(4 * 50 * 0.1)
        assert list(ds["gen_limit"].values) == ["max_num_seqs", "max_num_seqs"]

    @pytest.mark.parametrize("mode", STEP_MODES)
    def test_throughput_rises_with_the_batch_and_with_gpus(self, mode: str) -> None:
        g = generation(gen_ratio=2.0 if mode == "partial" else 1.0)
        one, two = (generation_table(g, rollout_batch=[16, 64, 256, 1024], gpus=n, mode=mode) for n in (1, 2))
        rate = one["rollout_batch"].values / one["gen_time"].values
        assert np.all(np.diff(rate) > -0.05 * rate[1:])
        assert np.all(two["gen_time"].values <= one["gen_time"].values * 1.02)

    def test_partial_rollouts_hide_the_tail(self) -> None:
        g = generation()
        whole = generation_table(g, rollout_batch=[64], gpus=1)
        partial = generation_table(generation(gen_ratio=2.0), rollout_batch=[64], gpus=1, mode="partial")
        assert whole["drain_share"].item() > 0.3
        assert partial["gen_time"].item() < whole["gen_time"].item()

    def test_filtering_costs_its_share(self) -> None:
        """Half of the groups dropped: a step generates what one of twice as many responses does."""
        full = generation_table(generation(), rollout_batch=[256, 1024], gpus=1)
        half = generation_table(generation(kept_share=0.5), rollout_batch=[128, 512], gpus=1)
        np.testing.assert_array_equal(full["gen_time"], half["gen_time"])
        partial = [
            generation_table(generation(kept_share=s, gen_ratio=2.0), rollout_batch=[512], gpus=1, mode="partial")
            for s in (1.0, 0.5)
        ]
        assert partial[1]["gen_time"].item() / partial[0]["gen_time"].item() == pytest.approx(2, rel=0.1)

    def test_a_surplus_is_one_of_kept_groups(self) -> None:
        """The first P groups that are kept, not the first P: half dropped is a step of twice as many."""
        full = generation_table(generation(gen_ratio=1.5), rollout_batch=[256, 1024], gpus=1)
        half = generation_table(generation(gen_ratio=1.5, kept_share=0.5), rollout_batch=[128, 512], gpus=1)
        np.testing.assert_array_equal(full["gen_time"], half["gen_time"])

    def test_fewer_launched_than_kept_is_as_many(self) -> None:
        one, less = (generation_table(generation(gen_ratio=r), rollout_batch=[64], gpus=1) for r in (1.0, 0.5))
        assert one["gen_time"].item() == less["gen_time"].item()

    def test_beyond_the_simulated_size_time_grows_in_proportion(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from batchsim.system.pipeline import specified

        g = generation()
        exact = generation_table(g, rollout_batch=[4096], gpus=1, draws=1)
        monkeypatch.setattr(specified, "SIMULATED_MAX", 1024)
        short = generation_table(g, rollout_batch=[4096], gpus=1, draws=1)
        assert float(short["gen_time"][0]) == pytest.approx(float(exact["gen_time"][0]), rel=0.05)

    def test_limits_are_named(self) -> None:
        a, gpu = find_model("Qwen3-8B"), find_gpu("H100")
        d = deploy(a, gpu)
        room = cache_room(a, memory=float(gpu.usable_memory or 0))
        lengths = Lengths(prompt_mean=200, response_mean=6000, response_spread=0.3)
        g = Generation(deployment=d, room=room, lengths=lengths, group_size=8, max_num_seqs=1024)
        few, many = generation_table(g, rollout_batch=[8, 2048], gpus=1, draws=1)["gen_limit"].values
        assert few in ("bandwidth", "overhead")
        assert many == "KV memory"
        # All are admitted at once, and sent back as their contexts grow: no tail, and every response adds its time.
        crowded = Generation(
            deployment=d,
            room=room,
            lengths=Lengths(prompt_mean=200, response_mean=6000),
            group_size=8,
            max_num_seqs=1024,
        )
        ds = generation_table(crowded, rollout_batch=[1024], gpus=1, draws=1)
        assert ds["gen_limit"].values.tolist() == ["KV memory"]
        assert np.all(ds["drain_share"].values < 0.5)
        queued = replace(crowded, max_staleness=2)
        for mode in ("partial", "async"):
            ds = generation_table(queued, rollout_batch=[1024], gpus=1, draws=1, mode=mode)
            assert ds["gen_limit"].values.tolist() == ["KV memory"]
        tail = Generation(
            deployment=d, room=room, lengths=Lengths(response_mean=500, response_spread=1.5), group_size=8
        )
        assert generation_table(tail, rollout_batch=[64], gpus=1, draws=1)["gen_limit"].values[0] == "tail"

    def test_bad_input(self) -> None:
        with pytest.raises(InputError, match=r"unknown mode 'asink'.*async"):
            generation_table(generation(), rollout_batch=[16], gpus=1, mode="asink")
        with pytest.raises(InputError, match=r"18 responses is no whole number of groups of 4"):
            generation_table(generation(), rollout_batch=[18], gpus=1)
        with pytest.raises(InputError, match="neither a deployment nor a law"):
            generation_table(generation(law=None), rollout_batch=[16], gpus=1)
        d = deploy(find_model("Qwen3-8B"), find_gpu("H100"), tensor_parallel=4)
        with pytest.raises(InputError, match="2 GPUs hold no replica of 4"):
            generation_table(generation(deployment=d), rollout_batch=[16], gpus=2)


class TestComposition:
    @settings(max_examples=60)
    @given(
        gen=st.lists(st.floats(0.1, 1e4), min_size=1, max_size=5),
        seconds=st.just(0.0) | st.floats(1e-3, 1e4),
        other=st.floats(0, 1e3),
        mode=st.sampled_from(STEP_MODES),
    )
    def test_no_mode_beats_its_stages(self, gen: list[float], seconds: float, other: float, mode: str) -> None:
        import xarray as xr

        table = xr.Dataset(
            {
                "gen_time": ("rollout_batch", gen),
                "gen_limit": ("rollout_batch", ["tail"] * len(gen)),
                "drain_share": ("rollout_batch", [0.5] * len(gen)),
            },
            coords={"rollout_batch": np.arange(1, len(gen) + 1) * 8},
            attrs={"mode": mode},
        )
        ds = compose(table, train_time=seconds, overhead_time=other)
        q, r = ds["throughput"].values, ds["rollout_batch"].values
        with np.errstate(divide="ignore"):
            slower = np.minimum(r / np.array(gen), r / seconds) if seconds else r / np.array(gen)
        assert np.all(q <= slower * (1 + 1e-12))
        serial = np.array(gen) + seconds + other
        assert np.all(ds["step_time"].values <= serial * (1 + 1e-12))
        if mode == "async":
            np.testing.assert_allclose(ds["step_time"], np.maximum(gen, seconds) + other)
            idle = ds[["gen_idle_share", "train_idle_share"]].to_array().values
            assert np.all((idle >= -1e-12) & (idle <= 1))
            assert np.all(idle.min(axis=0) <= other / ds["step_time"].values + 1e-12)
        assert set(ds["binding_limit"].values) <= {"tail", "trainer"}
        assert set(ds.variables) <= set(VARIABLES)

    def test_critical_batch(self) -> None:
        r = [16, 32, 64, 128, 256, 512, 1024, 2048]
        table = generation_table(generation(), rollout_batch=r, gpus=1)
        found = critical_on_curve(r, table["gen_time"])
        rate = np.array(r) / table["gen_time"].values
        assert r[0] < found < r[-1]
        assert np.interp(np.log(found), np.log(r), rate) == pytest.approx(0.9 * rate.max(), rel=0.03)
        assert math.isnan(critical_on_curve([16], [1.0]))


class TestSplit:
    def test_the_best_split_balances_the_stages(self) -> None:
        ds = best_split(generation(), gpus=8, rollout_batch=256, train_time=train)
        best = ds.sel(split=ds.attrs["best"])
        assert float(best["throughput"]) == float(ds["throughput"].max())
        gap = np.abs(ds["gen_time"].values - ds["train_time"].values)
        assert ds.attrs["best"] in ds["split"].values[np.argsort(gap)[:2]]
        assert np.all(ds["split"].values + ds["training_gpus"].values <= 8)

    @settings(max_examples=15, deadline=None)
    @given(gpus=st.integers(2, 12), per_gpu=st.floats(1e-3, 1.0), mode=st.sampled_from(("async", "sync")))
    def test_a_gpu_more_never_lowers_the_best_throughput(self, gpus: int, per_gpu: float, mode: str) -> None:
        def seconds(r: np.ndarray, n: int) -> np.ndarray:
            return np.asarray(0.1 + per_gpu * r / n)

        few, more = (
            best_split(generation(), gpus=n, rollout_batch=64, train_time=seconds, mode=mode, draws=1)
            for n in (gpus, gpus + 1)
        )
        assert float(more["throughput"].max()) >= float(few["throughput"].max()) * (1 - 1e-9)

    def test_experts_need_their_gpus(self) -> None:
        d = deploy(find_model("Qwen3-30B-A3B"), find_gpu("H200"), expert_parallel=4)
        g = generation(deployment=d)
        with pytest.raises(InputError, match=r"experts over 4 GPUs, and 2 generate"):
            generation_table(g, rollout_batch=[16], gpus=2)
        assert best_split(g, gpus=6, rollout_batch=64, train_time=train)["split"].values.tolist() == [4, 5]

    def test_too_few_gpus(self) -> None:
        with pytest.raises(InputError, match=r"1 GPUs cannot be divided into replicas of 1 and trainers of 1"):
            best_split(generation(), gpus=1, rollout_batch=64, train_time=train)
