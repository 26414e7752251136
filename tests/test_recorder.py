"""The recorder for the user's own loop, and the arithmetic of the snippets that docs/recorder.md prints."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from batchsim.learning.noise_scale import Recorder, from_chunk_norms
from batchsim.learning.noise_scale.recorder import MAX_BLOCKS

Floats = NDArray[np.float64]
PAGE = (Path(__file__).resolve().parents[1] / "docs" / "recorder.md").read_text(encoding="utf-8")


def squares(
    rng: np.random.Generator, *, sizes: list[int], noise_scale: float, updates: int, dimensions: int = 48
) -> tuple[Floats, Floats]:
    """|g_j|^2, (update, micro_batch), and |g_B|^2 of Gaussian gradients with |G| = 1."""
    n = np.array(sizes, dtype=float)
    spread = rng.standard_normal((updates, n.size, dimensions)) * np.sqrt(noise_scale / dimensions / n)[:, None]
    g = 1 / math.sqrt(dimensions) + spread
    return np.sum(g**2, axis=2), np.sum((np.sum(g * n[:, None], axis=1) / n.sum()) ** 2, axis=1)


def recorded(small: Floats, large: Floats, size: float = 32, recorder: Recorder | None = None) -> Recorder:
    recorder = recorder or Recorder()
    for micro, batch in zip(small, large, strict=True):
        recorder.update(micro, batch, responses_per_micro_batch=size)
    return recorder


class TestEstimate:
    @pytest.mark.parametrize("updates", [3, 24, 97, 128, 200, 256])
    def test_equals_the_offline_estimator(self, updates: int) -> None:
        small, large = squares(np.random.default_rng(1), sizes=[32] * 4, noise_scale=500, updates=updates)
        ours, offline = recorded(small, large).estimate(), from_chunk_norms(128, 4, small.mean(axis=1), large)
        for name in ("noise_scale", "low", "high", "signal_square", "noise_trace", "dof"):
            assert getattr(ours, name) == pytest.approx(getattr(offline, name), rel=1e-9, nan_ok=True), name
        np.testing.assert_allclose(ours.covariance, offline.covariance, rtol=1e-7)
        assert ours.identified == offline.identified

    @pytest.mark.parametrize("updates", [300, 1000, 5000])
    def test_merged_blocks_are_longer_blocks_offline(self, updates: int) -> None:
        small, large = squares(np.random.default_rng(2), sizes=[32] * 4, noise_scale=500, updates=updates, dimensions=8)
        recorder = recorded(small, large)
        offline = from_chunk_norms(128, 4, small.mean(axis=1), large, block=recorder.block)
        assert recorder.block >= 10
        assert recorder.estimate().low == pytest.approx(offline.low, rel=1e-9)
        assert recorder.estimate().high == pytest.approx(offline.high, rel=1e-9)
        assert len(json.loads(recorder.to_json())["blocks"]) <= MAX_BLOCKS
        assert len(recorder.to_json()) < 16_000

    def test_unequal_micro_batches_against_two_equations(self) -> None:
        sizes = [8, 24, 40]
        small, large = squares(np.random.default_rng(3), sizes=sizes, noise_scale=300, updates=40)
        recorder = Recorder(group_size=8)
        for micro, batch in zip(small, large, strict=True):
            recorder.update(micro, batch, responses_per_micro_batch=sizes)
        twins = [naive.micro_batch_pair(m.tolist(), sizes, float(b)) for m, b in zip(small, large, strict=True)]
        assert recorder.moments == pytest.approx(np.mean(twins, axis=0), rel=1e-9)

    def test_varying_batches_are_unbiased_and_covered(self) -> None:
        """Nominal 95 %; a batch that grows fourfold midway, with micro-batches of two sizes."""
        rng = np.random.default_rng(4)
        sets = []
        for _ in range(250):
            recorder = Recorder()
            for sizes, updates in (([32, 96], 30), ([32, 96] * 4, 30)):
                small, large = squares(rng, sizes=sizes, noise_scale=400, updates=updates)
                for micro, batch in zip(small, large, strict=True):
                    recorder.update(micro, batch, responses_per_micro_batch=sizes)
            sets.append(recorder.estimate())
        for values, truth in (([e.signal_square for e in sets], 1.0), ([e.noise_trace for e in sets], 400.0)):
            assert abs(np.mean(values) - truth) < 4 * np.std(values, ddof=1) / math.sqrt(len(values))
        assert 0.92 <= np.mean([e.low <= 400 <= e.high for e in sets]) <= 0.985

    def test_averages_of_ratios_are_biased_where_the_recorder_is_not(self) -> None:
        small, large = squares(
            np.random.default_rng(5), sizes=[250, 250], noise_scale=1000, updates=6000, dimensions=400
        )
        recorder = recorded(small, large, size=250)
        single = [recorded(m[None], b[None], size=250).moments for m, b in zip(small[:2000], large[:2000], strict=True)]
        assert recorder.estimate().noise_scale == pytest.approx(1000, rel=0.03)
        assert np.mean([noise / signal for signal, noise in single]) > 1040

    @settings(max_examples=20)
    @given(gain=st.floats(1e-6, 1e6), group=st.integers(1, 64))
    def test_scale_and_groups(self, gain: float, group: int) -> None:
        # P10, P11: the gradient's unit cancels; counted in groups, the answer is in groups.
        small, large = squares(np.random.default_rng(6), sizes=[64] * 4, noise_scale=500, updates=24)
        one, other = recorded(small, large, 64), recorded(small * gain, large * gain, 64 / group)
        assert other.estimate().noise_scale * group == pytest.approx(one.estimate().noise_scale, rel=1e-6)
        assert other.estimate().high * group == pytest.approx(one.estimate().high, rel=1e-6)

    def test_the_sum_is_as_good_as_each(self) -> None:
        small, large = squares(np.random.default_rng(7), sizes=[32] * 4, noise_scale=500, updates=20)
        summed = Recorder()
        for micro, batch in zip(small, large, strict=True):
            summed.update(float(micro.sum()), float(batch), responses_per_micro_batch=32, micro_batches=4)
        assert summed.moments == pytest.approx(recorded(small, large).moments, rel=1e-12)

    def test_level(self) -> None:
        recorder = recorded(*squares(np.random.default_rng(8), sizes=[32] * 4, noise_scale=300, updates=60))
        narrow, wide = recorder.estimate(level=0.8), recorder.estimate(level=0.95)
        assert wide.low < narrow.low < narrow.high < wide.high


class TestState:
    @settings(max_examples=25)
    @given(updates=st.integers(0, 700), seed=st.integers(0, 99))
    def test_round_trip_is_exact_and_resumable(self, updates: int, seed: int) -> None:
        small, large = squares(
            np.random.default_rng(seed), sizes=[32] * 3, noise_scale=500, updates=updates + 5, dimensions=3
        )
        straight = recorded(small, large)
        resumed = Recorder.from_json(recorded(small[:updates], large[:updates]).to_json())
        recorded(small[updates:], large[updates:], recorder=resumed)
        assert resumed == straight
        assert Recorder.from_json(straight.to_json()).to_json() == straight.to_json()

    @settings(max_examples=40)
    @given(updates=st.integers(2, 900), share=st.floats(0, 1), again=st.floats(0, 1))
    def test_splitting_anywhere_and_merging_gives_the_same_moments(
        self, updates: int, share: float, again: float
    ) -> None:
        small, large = squares(np.random.default_rng(9), sizes=[32] * 3, noise_scale=500, updates=updates, dimensions=3)
        first, second = sorted((int(share * updates), int(again * updates)))
        cuts = [slice(0, first), slice(first, second), slice(second, updates)]
        parts = [recorded(small[cut], large[cut]) for cut in cuts]
        whole = recorded(small, large)
        for merged in ((parts[0] + parts[1]) + parts[2], parts[0] + (parts[1] + parts[2])):
            assert merged.updates == whole.updates
            assert merged.responses == whole.responses
            assert merged.moments == pytest.approx(whole.moments, rel=1e-9, abs=1e-12)
            kept = json.loads(merged.to_json())
            assert len(kept["blocks"]) <= MAX_BLOCKS
            # No update is lost between blocks, and none counts twice.
            assert sum(block[0] for block in [*kept["blocks"], kept["open"]]) == whole.updates

    def test_merging_leaves_the_parts_alone_and_coverage_as_it_was(self) -> None:
        rng = np.random.default_rng(10)
        hits = []
        for _ in range(200):
            parts = [recorded(*squares(rng, sizes=[64] * 8, noise_scale=1000, updates=n), size=64) for n in (37, 60)]
            before = [part.to_json() for part in parts]
            merged = (parts[0] + parts[1]).estimate()
            assert [part.to_json() for part in parts] == before
            hits.append(merged.low <= 1000 <= merged.high)
        assert 0.915 <= np.mean(hits) <= 0.99

    @pytest.mark.parametrize("text", ["[]", "{}", '{"schema": 2}', '{"schema": 1, "group_size": null}'])
    def test_other_text_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="recorder's state"):
            Recorder.from_json(text)

    def test_state_is_plain_json_without_nan(self) -> None:
        recorder = recorded(*squares(np.random.default_rng(11), sizes=[32] * 4, noise_scale=500, updates=20))
        recorder.update([math.nan, 1.0], 1.0, responses_per_micro_batch=32)
        assert "NaN" not in recorder.to_json()
        assert json.loads(recorder.to_json())["skipped"] == 1


class TestBadUpdates:
    @pytest.mark.parametrize(
        ("micro", "batch"),
        [([math.nan, 1.0], 1.0), ([1.0, math.inf], 1.0), ([1.0, 1.0], math.nan), ([1.0], 1.0), ([1e308, 1e308], 1.0)],
    )
    def test_are_skipped_and_counted(self, micro: list[float], batch: float) -> None:
        small, large = squares(np.random.default_rng(12), sizes=[32] * 4, noise_scale=500, updates=20)
        clean, recorder = recorded(small, large), recorded(small[:10], large[:10])
        assert not recorder.update(micro, batch, responses_per_micro_batch=32)
        recorded(small[10:], large[10:], recorder=recorder)
        assert recorder.skipped == 1
        assert recorder.moments == clean.moments

    def test_a_loss_divided_by_the_number_of_micro_batches_is_found_out(self) -> None:
        # |g_B|^2 <= mean |g_j|^2 for any gradients: a scale left in the micro-batches breaks it at low noise.
        small, large = squares(np.random.default_rng(13), sizes=[64] * 4, noise_scale=100, updates=30)
        recorder = recorded(small / 16, large, 64)
        assert recorder.inconsistent == 30
        message = recorder.estimate().message
        assert "not identified" in message
        assert "divided by the number of micro-batches" in message

    def test_consistent_updates_never_trip_it(self) -> None:
        small, large = squares(np.random.default_rng(14), sizes=[64] * 2, noise_scale=0.01, updates=500)
        assert recorded(small, large, 64).inconsistent == 0

    def test_too_little_says_so(self) -> None:
        recorder = Recorder()
        assert math.isnan(recorder.moments[0])
        assert "too few" in recorder.estimate().message
        recorder.update([1.0], 1.0, responses_per_micro_batch=8)
        assert "1 skipped" in recorder.estimate().message

    def test_what_cannot_be_right_is_an_error(self) -> None:
        recorder = Recorder(group_size=8)
        with pytest.raises(ValueError, match="whole groups of 8"):
            recorder.update([1.0, 1.0], 0.5, responses_per_micro_batch=4)
        with pytest.raises(ValueError, match="needs micro_batches"):
            recorder.update(2.0, 0.5, responses_per_micro_batch=8)
        with pytest.raises(ValueError, match="not the sum"):
            recorder.update(2.0, 0.5, responses_per_micro_batch=[8, 16], micro_batches=2)
        with pytest.raises(ValueError, match="2 micro-batch square norms"):
            recorder.update([1.0, 1.0], 0.5, responses_per_micro_batch=[8, 8, 8])
        with pytest.raises(ValueError, match="micro_batches = 3"):
            recorder.update([1.0, 1.0], 0.5, responses_per_micro_batch=8, micro_batches=3)
        with pytest.raises(ValueError, match="negative"):
            recorder.update([-1.0, 1.0], 0.5, responses_per_micro_batch=8)
        with pytest.raises(ValueError, match="positive"):
            recorder.update([1.0, 1.0], 0.5, responses_per_micro_batch=0)
        with pytest.raises(ValueError, match="different experiments"):
            recorder + Recorder(group_size=4)
        with pytest.raises(ValueError, match="at least 1"):
            Recorder(group_size=0)
        assert recorder.updates == recorder.skipped == 0


def test_importing_loads_no_tables_and_no_torch() -> None:
    script = "import sys; import batchsim.learning.noise_scale; print(*sys.modules)"
    modules = set(
        subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    )
    assert "batchsim.learning.noise_scale.recorder" in modules
    assert not modules & {"torch", "xarray", "pandas", "scipy.stats", "scipy.optimize", "numba", "matplotlib"}


class Model:
    """A linear model with analytic gradients that accumulate as PyTorch's do, NumPy in its place."""

    def __init__(self, rng: np.random.Generator, responses: int, size: int = 20) -> None:
        self.per_response = 0.3 + rng.standard_normal((responses, size)) * 4
        self.grad = np.zeros(size)

    def backward(self, rows: slice, scale: float) -> Floats:
        """Gradient of scale * (mean over rows), added to grad; what a tensor hook sees is returned."""
        seen: Floats = self.per_response[rows].mean(axis=0) * scale
        self.grad = self.grad + seen
        return seen


class TestSnippets:
    """docs/recorder.md step by step: both ways to a micro-batch norm, the scales to undo, clipping, ranks."""

    def run(
        self, *, ranks: int = 1, scaler: float = 1.0, clip: float = math.inf
    ) -> tuple[Recorder, Recorder, Recorder]:
        rng, k, n = np.random.default_rng(15), 4, 16
        hook, difference, truth = Recorder(group_size=8), Recorder(group_size=8), Recorder(group_size=8)
        for _ in range(30):
            model = Model(rng, k * n)
            seen, differences, previous = [], [], np.zeros(20)
            for j in range(k):
                g = model.backward(slice(j * n, (j + 1) * n), scaler / k)
                # Shards of the coordinates: partial squares add up, which is what all-reduce does.
                seen.append(sum(float(np.sum(part**2)) for part in np.array_split(g, ranks)))
                differences.append(float(np.sum((model.grad - previous) ** 2)))
                previous = model.grad.copy()
            norm = float(np.linalg.norm(model.grad)) / scaler
            model.grad = model.grad / scaler * min(1.0, clip / norm)
            hook.update([s * (k / scaler) ** 2 for s in seen], norm**2, responses_per_micro_batch=n)
            difference.update([s * (k / scaler) ** 2 for s in differences], norm**2, responses_per_micro_batch=n)
            per = model.per_response.reshape(k, n, 20).mean(axis=1)
            truth.update(np.sum(per**2, axis=1), float(np.sum(per.mean(axis=0) ** 2)), responses_per_micro_batch=n)
        return hook, difference, truth

    @pytest.mark.parametrize("ranks", [1, 4])
    @pytest.mark.parametrize("scaler", [1.0, 2.0**16])
    def test_hook_and_difference_agree_with_the_definition(self, ranks: int, scaler: float) -> None:
        hook, difference, truth = self.run(ranks=ranks, scaler=scaler, clip=1.0)
        assert hook.moments == pytest.approx(truth.moments, rel=1e-9)
        assert difference.moments == pytest.approx(truth.moments, rel=1e-9)
        assert truth.inconsistent == hook.inconsistent == 0

    def test_data_parallel_ranks_are_micro_batches_of_their_own(self) -> None:
        """DDP without synchronisation between micro-batches: R ranks of K micro-batches are R K of them."""
        rng, ranks, k, n = np.random.default_rng(16), 4, 2, 8
        rows = rng.standard_normal((ranks * k, n, 20)) + 0.3
        local = [[rows[r * k + j].mean(axis=0) / k for j in range(k)] for r in range(ranks)]
        batch = np.mean([np.sum(grads, axis=0) for grads in local], axis=0)
        total = sum(float(np.sum(g**2)) * k**2 for grads in local for g in grads)
        recorder, truth = Recorder(), Recorder()
        recorder.update(total, float(np.sum(batch**2)), responses_per_micro_batch=n, micro_batches=ranks * k)
        means = rows.mean(axis=1)
        truth.update(np.sum(means**2, axis=1), float(np.sum(means.mean(axis=0) ** 2)), responses_per_micro_batch=n)
        assert recorder.moments == pytest.approx(truth.moments, rel=1e-9)

    def test_clipped_batch_norms_bias_what_the_page_says(self) -> None:
        small, large = squares(np.random.default_rng(17), sizes=[32] * 4, noise_scale=300, updates=100)
        right, clipped = recorded(small, large), recorded(small, np.minimum(large, 1.0))
        assert clipped.estimate().noise_scale > 1.5 * right.estimate().noise_scale or not clipped.estimate().identified

    @pytest.mark.parametrize(("k", "least", "most"), [(64, 0.0, 0.01), (256, 0.1, 0.5)])
    def test_low_precision_accumulators_spoil_differences(self, k: int, least: float, most: float) -> None:
        """bfloat16 keeps 8 bits: the last difference of a long accumulation is partly rounding."""
        parts = np.random.default_rng(18).standard_normal((k, 4000)) * 0.1 + 1
        total, excess = np.zeros(4000), 0.0
        for part in parts:
            before = total
            bits = np.asarray(total + part / k, dtype=np.float32).view(np.uint32)
            total = ((bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)
            excess = float(np.sum((total - before) ** 2)) / float(np.sum((part / k) ** 2)) - 1
        assert least <= abs(excess) <= most


def test_the_page_is_python_and_names_what_exists() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    assert len(blocks) >= 4
    for block in blocks:
        compile(block, "docs/recorder.md", "exec")
        for name in re.findall(r"recorder\.(\w+)", block):
            assert hasattr(Recorder, name) or name in {"json"}, name
