"""Batch schedules: integrals along them, the fastest one, its gain."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchsim.errors import InputError
from batchsim.learning.curve import (
    Curve,
    Steps,
    adaptive_batch,
    adaptive_saving,
    along_schedule,
    best_schedule,
    local_cost,
    noise_scale_along,
    steps_in_responses,
)
from batchsim.time_to_target import optimal_train_batch
from batchsim.variables import VARIABLES

CURVE = Curve(family="exponential", start=0.3, asymptote=0.7, scale=6e4)
growing = partial(noise_scale_along, curve=CURVE, noise_scale=2000.0, measured_at=1e4)
MLPERF: dict[str, Any] = {"update_time_intercept": 247.0, "update_time_slope": 0.71}
WIDE = (1e-2, 1e7)


class TestAlong:
    def test_a_constant_batch_and_noise(self) -> None:
        # tuned from the optimum: r = (B + n)/(B0 + n)
        ds = along_schedule(1024.0, progress=[0, 1e5], reference_batch=512.0, noise_scale=3750.0, lr_rule="tuned",
                            lr_fraction=1.0, **MLPERF)  # fmt: skip
        used = 1e5 * (1024 + 3750) / (512 + 3750)
        assert ds["responses"].values == pytest.approx([0, used])
        assert ds["updates"].values == pytest.approx([0, used / 1024])
        assert ds["elapsed"].values == pytest.approx([0, used / 1024 * (247 + 0.71 * 1024)])
        for name in ds.variables:
            assert ds[name].attrs["units"] == VARIABLES[str(name)].unit

    @pytest.mark.parametrize("rule", ["sqrt", "fixed"])
    def test_against_a_walk_of_updates(self, rule: str) -> None:
        steps = Steps(starts=(0.0, 5e4, 1.2e5), batches=(64.0, 256.0, 1024.0))

        def cost(u: float, b: float) -> float:
            found = local_cost([u], train_batch=b, reference_batch=256.0, noise_scale=growing, lr_rule=rule)
            return float(found[0])

        updates, responses = naive.walk_updates(2e5, lambda u: float(steps(np.array(u))), cost)
        ds = along_schedule(steps, progress=[2e5], reference_batch=256.0, noise_scale=growing, lr_rule=rule, **MLPERF)
        # The walk keeps its batch for the update that passes a boundary.
        assert ds["responses"].values == pytest.approx([responses], rel=3e-3)
        assert ds["updates"].values == pytest.approx([updates], rel=3e-3)

    @given(
        cuts=st.lists(st.floats(1e3, 2.9e5), min_size=1, max_size=4, unique=True),
        batches=st.lists(st.sampled_from([64.0, 128.0, 512.0, 4096.0]), min_size=5, max_size=5),
    )
    @settings(max_examples=25)
    def test_steps_add_up(self, cuts: list[float], batches: list[float]) -> None:
        starts = (0.0, *sorted(cuts))
        steps = Steps(starts=starts, batches=tuple(batches[: len(starts)]))
        ends = np.array([*starts[1:], 3e5])
        setting: dict[str, Any] = {"reference_batch": 256.0, "noise_scale": growing, **MLPERF}
        whole = along_schedule(steps, progress=ends, **setting)["responses"].values
        parts = 0.0
        for i, batch in enumerate(steps.batches):
            part = along_schedule(batch, progress=[starts[i], ends[i]], **setting)["responses"].values
            parts += part[1] - part[0]
        assert whole[-1] == pytest.approx(parts, rel=1e-9)

    def test_steps_in_the_responses_used(self) -> None:
        setting: dict[str, Any] = {"reference_batch": 256.0, "noise_scale": growing}
        steps = steps_in_responses([0, 1e5, 3e5], [256.0, 1024.0, 8192.0], **setting)
        assert steps.starts[1] == pytest.approx(1e5)  # the reference batch is not warped
        used = along_schedule(steps, progress=steps.starts, **setting, **MLPERF)["responses"].values
        assert used == pytest.approx([0, 1e5, 3e5])

    def test_a_stage_after_a_diverging_one_is_never_reached(self) -> None:
        steps = steps_in_responses(
            [0, 1e5, 2e5], [256.0, 65536.0, 256.0], reference_batch=256.0, noise_scale=100.0, lr_fraction=0.5
        )
        assert steps.batches == (256.0, 65536.0)

    def test_steps_are_checked(self) -> None:
        with pytest.raises(InputError, match="2 starts for 1"):
            Steps(starts=(0.0, 1.0), batches=(64.0,))
        with pytest.raises(InputError, match="do not increase"):
            Steps(starts=(0.0, 2.0, 1.0), batches=(64.0, 64.0, 64.0))
        with pytest.raises(InputError, match="batch 0"):
            Steps(starts=(0.0,), batches=(0.0,))


class TestBest:
    def test_closed_form_for_tuned_drift(self) -> None:
        ds = best_schedule(progress_to_target=2e5, reference_batch=512.0, noise_scale=growing, lr_rule="tuned",
                           lr_fraction=1.0, batch_range=WIDE, **MLPERF)  # fmt: skip
        u = ds["progress"].values
        wanted = optimal_train_batch(noise_scale=growing(u), **MLPERF)
        assert ds["train_batch"].values == pytest.approx(wanted, rel=1e-5)
        assert adaptive_batch(growing(u), exchange_rate=247 / 0.71) == pytest.approx(wanted)
        # dS_min = du/(B0 + n): T = int (sqrt tau0 + sqrt(tau1 n))^2 dS_min; constant: the same with <n>.
        v = (np.arange(200_000) + 0.5) / 200_000 * 2e5
        n, weight = growing(v), 1 / (512 + growing(v))
        step = 2e5 / v.size
        time = ((math.sqrt(247) + np.sqrt(0.71 * n)) ** 2 * weight).sum() * step
        mean = (n * weight).sum() / weight.sum()
        constant = (math.sqrt(247) + math.sqrt(0.71 * mean)) ** 2 * weight.sum() * step
        assert float(ds["time_to_target"]) == pytest.approx(time, rel=1e-7)
        assert float(ds["constant_batch"]) == pytest.approx(math.sqrt(247 / 0.71 * mean), rel=1e-4)
        assert float(ds["schedule_gain"]) == pytest.approx(constant / time, rel=1e-7)
        assert not ds.attrs["at_bound"]

    def test_closed_form_for_sqrt_drift(self) -> None:
        # Notes 5.4: B = (a + sqrt(a^2 + 8 a n))/2; a = 348, n = 3750 give 1799.
        ds = best_schedule(
            progress_to_target=2e5, reference_batch=512.0, noise_scale=growing, batch_range=WIDE, **MLPERF
        )
        n, a = growing(ds["progress"].values), 247 / 0.71
        assert ds["train_batch"].values == pytest.approx((a + np.sqrt(a**2 + 8 * a * n)) / 2, rel=1e-5)
        one = best_schedule(
            progress_to_target=1.0, reference_batch=512.0, noise_scale=3750.0, batch_range=WIDE, **MLPERF
        )
        assert float(one["constant_batch"]) == pytest.approx(1799, rel=1e-3)

    @given(
        noise=st.floats(1, 1e6),
        growth=st.floats(-3, 8),
        ratio=st.floats(0.1, 1e5),
        rule=st.sampled_from(["sqrt", "fixed", "linear", "tuned", "invariant"]),
        fraction=st.sampled_from([0.05, 0.5, 1.0]),
        shape=st.sampled_from([math.inf, 1.0]),
    )
    @settings(max_examples=25)
    def test_gain_is_at_least_one(
        self, noise: float, growth: float, ratio: float, rule: str, fraction: float, shape: float
    ) -> None:
        setting: dict[str, Any] = {
            "progress_to_target": 1e5,
            "reference_batch": 256.0,
            "update_time_intercept": ratio,
            "update_time_slope": 1.0,
            "lr_rule": rule,
            "lr_fraction": fraction,
            "snr_shape": shape,
        }
        moving = best_schedule(noise_scale=lambda u: noise * np.exp(growth * u / 1e5), **setting)
        assert float(moving["schedule_gain"]) >= 1
        still = best_schedule(noise_scale=noise, **setting)
        assert float(still["schedule_gain"]) == pytest.approx(1, abs=1e-9)
        assert np.ptp(np.log(still["train_batch"].values)) < 1e-5

    def test_a_plateau_keeps_the_batch_below_it(self) -> None:
        """Where the affine law gives way to the plateau, a larger batch has nothing left to gain."""
        setting: dict[str, Any] = {"progress_to_target": 1e5, "reference_batch": 256.0, "noise_scale": 1e5, **MLPERF}
        free = float(best_schedule(**setting)["constant_batch"])
        # 247/B + .71 meets 1 at B = 852.
        held = best_schedule(throughput_max=1.0, **setting)
        assert free > 2000
        assert float(held["constant_batch"]) == pytest.approx(247 / (1 - 0.71), rel=1e-6)

    @given(
        batch=st.floats(32, 1e5),
        cut=st.floats(1e4, 1.9e5),
        other=st.floats(32, 1e5),
        most=st.sampled_from([math.inf, 1.2, 0.5]),
    )
    @settings(max_examples=25)
    def test_no_schedule_is_faster(self, batch: float, cut: float, other: float, most: float) -> None:
        setting: dict[str, Any] = {
            "reference_batch": 256.0,
            "noise_scale": growing,
            "lr_fraction": 0.3,
            "lr_rule": "sqrt",
            "throughput_max": most,
            **MLPERF,
        }
        best = best_schedule(progress_to_target=2e5, batch_range=(16, 2e5), **setting)
        steps = Steps(starts=(0.0, cut), batches=(batch, other))
        rival = along_schedule(steps, progress=[2e5], **setting)
        assert float(best["time_to_target"]) <= float(rival["elapsed"][0]) * (1 + 1e-9)

    def test_it_is_what_its_own_schedule_needs(self) -> None:
        setting: dict[str, Any] = {"reference_batch": 512.0, "noise_scale": growing, **MLPERF}
        ds = best_schedule(progress_to_target=2e5, **setting)
        a = 247 / 0.71
        rerun = along_schedule(
            lambda u: (a + np.sqrt(a**2 + 8 * a * growing(u))) / 2,
            progress=[2e5],
            **setting,
        )
        for run, total in (
            ("updates", "updates_to_target"),
            ("responses", "responses_to_target"),
            ("elapsed", "time_to_target"),
        ):
            assert float(rerun[run][0]) == pytest.approx(float(ds[total]), rel=1e-6)
        assert ds["learning_rate_ratio"].values == pytest.approx(np.sqrt(ds["train_batch"].values / 512))
        for name in ds.variables:
            assert ds[name].attrs["units"] == VARIABLES[str(name)].unit

    def test_candidates(self) -> None:
        sizes = [256.0 * 2**k for k in range(7)]
        setting: dict[str, Any] = {
            "progress_to_target": 2e5,
            "reference_batch": 512.0,
            "noise_scale": growing,
            **MLPERF,
        }
        ds = best_schedule(candidates=sizes, **setting)
        free = best_schedule(batch_range=(256, 16384), **setting)
        assert set(ds["train_batch"].values) <= set(sizes)
        assert float(ds["constant_batch"]) in sizes
        assert float(ds["time_to_target"]) >= float(free["time_to_target"]) * (1 - 1e-9)
        assert (np.diff(ds["train_batch"].values) >= 0).all()
        assert float(ds["schedule_gain"]) >= 1

    def test_a_range_that_cuts_is_said(self) -> None:
        ds = best_schedule(
            progress_to_target=2e5, reference_batch=512.0, noise_scale=growing, batch_range=(64, 600), **MLPERF
        )
        assert ds.attrs["at_bound"]
        assert ds["train_batch"].values.max() == pytest.approx(600)

    def test_errors(self) -> None:
        setting: dict[str, Any] = {"reference_batch": 512.0, "noise_scale": 100.0, **MLPERF}
        with pytest.raises(InputError, match="progress_to_target is inf"):
            best_schedule(progress_to_target=math.inf, **setting)
        with pytest.raises(InputError, match="no range"):
            best_schedule(progress_to_target=1e5, batch_range=(100, 10), **setting)
        with pytest.raises(InputError, match="no range"):
            best_schedule(progress_to_target=1e5, candidates=[], **setting)
        with pytest.raises(InputError, match="diverges"):
            best_schedule(progress_to_target=1e5, lr_fraction=1.9, lr_rule="linear", batch_range=(1e5, 1e6), **setting)


class TestAdaptive:
    """McCandlish's frontier of updates against responses."""

    @given(noise=st.lists(st.floats(1, 1e6), min_size=1, max_size=20), rate=st.floats(0.1, 1e5))
    def test_frontier(self, noise: list[float], rate: float) -> None:
        n = np.array(noise)
        b = adaptive_batch(n, exchange_rate=rate)
        # progress in updates of infinite batch, one per entry
        updates, responses = (1 + n / b).mean(), (b + n).mean()
        product = (updates - 1) * (responses / n.mean() - 1)
        assert product == pytest.approx(float(adaptive_saving(n)), rel=1e-9)
        assert product <= 1 + 1e-12
        constant = 300.0
        assert (n.mean() / constant) * (constant / n.mean()) == pytest.approx(1)

    def test_a_constant_noise_scale_saves_nothing(self) -> None:
        assert adaptive_saving([500.0, 500.0, 500.0]) == pytest.approx(1)
        assert adaptive_saving([[100.0, 900.0], [400.0, 400.0]]) == pytest.approx([0.8, 1])
        assert adaptive_saving([100.0, 900.0], weight=[1.0, 0.0]) == pytest.approx(1)

    def test_an_exchange_rate_is_a_step_time(self) -> None:
        ds = best_schedule(
            progress_to_target=2e5,
            reference_batch=512.0,
            noise_scale=growing,
            lr_rule="tuned",
            lr_fraction=1.0,
            batch_range=WIDE,
            update_time_intercept=100.0,
            update_time_slope=1.0,
        )
        assert ds["train_batch"].values == pytest.approx(
            adaptive_batch(ds["noise_scale"].values, exchange_rate=100.0), rel=1e-5
        )
        paid = float(ds["responses_to_target"]) + 100 * float(ds["updates_to_target"])
        assert float(ds["time_to_target"]) == pytest.approx(paid)

    def test_noise_of_the_size_measured_in_grpo_gains_a_few_percent(self) -> None:
        # OLMo2 GRPO: 5.6k in the first updates, about 20k later (notes, 5.5): little to gain from a schedule.
        ds = best_schedule(
            progress_to_target=1e6,
            reference_batch=2048.0,
            lr_rule="tuned",
            lr_fraction=1.0,
            noise_scale=lambda u: 5600 + (20000 - 5600) * -np.expm1(-u / 1e5),
            batch_range=WIDE,
            **MLPERF,
        )
        assert 1 < float(ds["schedule_gain"]) < 1.02
