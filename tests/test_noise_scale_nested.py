"""Nested prompts and responses, and the units and meanings of logged norms."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from pathlib import Path

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from batchsim.learning.noise_scale import (
    NestedNoise,
    combine,
    from_chunk_norms,
    from_described_norms,
    from_logged_norms,
    from_nested_norms,
    generated_to_kept,
    group_signal,
    groups_to_responses,
    kept_to_generated,
    mean_norm_bias,
    mini_batch,
    read_norms,
    rescale,
    responses_to_groups,
    rollout_batch,
)

Floats = NDArray[np.float64]


def gradients(
    rng: np.random.Generator,
    *,
    prompts: int = 16,
    group: int = 8,
    between: float = 0.5,
    within: float = 8.0,
    signal: float = 0.09,
    updates: int = 40,
    size: int = 32,
) -> Floats:
    """Gaussian gradients, (update, prompt, response, coordinate), with these variances and |G|^2."""
    of_prompt = rng.standard_normal((updates, prompts, 1, size)) * math.sqrt(between / size)
    of_response = rng.standard_normal((updates, prompts, group, size)) * math.sqrt(within / size)
    return np.asarray(math.sqrt(signal / size) + of_prompt + of_response)


def norms(x: Floats, *, micro: int = 1) -> tuple[Floats, Floats, Floats]:
    """Mean squared norms of micro-batches within groups, of groups, and of the batch, per update."""
    t, p, g, d = x.shape
    small = x.reshape(t, p, g // micro, micro, d).mean(axis=3)
    group = x.mean(axis=2)
    return (
        np.mean(np.sum(small**2, axis=-1), axis=(1, 2)),
        np.mean(np.sum(group**2, axis=-1), axis=1),
        np.sum(group.mean(axis=1) ** 2, axis=-1),
    )


def nested(x: Floats, **options: float) -> NestedNoise:
    return from_nested_norms(x.shape[1], x.shape[2], *norms(x), **options)  # type: ignore[arg-type]


class TestNested:
    def test_against_sums_over_the_gradients_themselves(self) -> None:
        x = gradients(np.random.default_rng(1), prompts=5, group=4, updates=9, size=6)
        estimate = nested(x)
        twins = np.mean([naive.nested_variances(update.tolist()) for update in x], axis=0)
        assert (estimate.signal_square, estimate.group_trace, estimate.response_trace) == pytest.approx(twins, rel=1e-9)
        assert estimate.prompt_variance == pytest.approx((twins[1] - twins[2]) / 4, rel=1e-9)
        assert estimate.responses.noise_scale == pytest.approx(twins[1] / twins[0], rel=1e-9)

    @pytest.mark.parametrize(
        ("prompts", "group", "between", "signal", "updates"),
        [(16, 8, 0.5, 0.09, 40), (16, 8, 2.0, 0.3, 80), (8, 4, 0.0, 0.3, 40)],
    )
    def test_unbiased_and_covered(self, prompts: int, group: int, between: float, signal: float, updates: int) -> None:
        """Nominal 95 %; 93.5 to 96 % measured over 400 sets, for the noise scale, its forecast at 2 G and V_prompt."""
        rng = np.random.default_rng(2)
        sets = [
            nested(gradients(rng, prompts=prompts, group=group, between=between, signal=signal, updates=updates))
            for _ in range(250)
        ]
        for values, truth in (
            ([e.signal_square for e in sets], signal),
            ([e.prompt_variance for e in sets], between),
            ([e.response_variance for e in sets], 8.0),
        ):
            assert abs(np.mean(values) - truth) < 4 * np.std(values, ddof=1) / math.sqrt(len(values))
        here = (group * between + 8) / signal
        there = (2 * group * between + 8) / signal
        low, high = np.transpose([e.prompt_variance_limits for e in sets])
        covered = {
            "here": [e.responses.low <= here <= e.responses.high for e in sets],
            "at twice the group": [
                e.at_group_size(2 * group).low <= there <= e.at_group_size(2 * group).high for e in sets
            ],
            "prompt variance": (low <= between) & (between <= high),
        }
        for name, hits in covered.items():
            assert 0.92 <= np.mean(hits) <= 0.985, name

    def test_treating_responses_as_independent_understates_the_noise(self) -> None:
        """What it avoids: chunks that mix groups see the spread of responses, not that of groups."""
        rng = np.random.default_rng(3)
        x = gradients(rng, between=4.0, signal=1.0, updates=400)
        estimate = nested(x)
        t, p, g, d = x.shape
        mixed = rng.permuted(x.reshape(t, p * g, d), axis=1).reshape(t, 4, p * g // 4, d).mean(axis=2)
        naive_trace = from_chunk_norms(
            p * g, 4, np.mean(np.sum(mixed**2, axis=2), axis=1), np.sum(mixed.mean(axis=1) ** 2, axis=1)
        ).noise_trace
        assert estimate.group_trace == pytest.approx(40, rel=0.03)
        assert naive_trace < 0.35 * estimate.group_trace
        assert naive_trace == pytest.approx(estimate.mixed_trace(), rel=0.05)

    def test_the_baseline_couples_responses_and_only_the_group_level_holds(self) -> None:
        """GRPO's centred advantages: W is no variance of lone responses, M is G times that of group means."""
        rng = np.random.default_rng(4)
        t, p, g, d = 60, 16, 4, 24
        # What a prompt's scores share is weighted by advantages that sum to zero.
        score = rng.standard_normal((t, p, g, d)) + 2 * rng.standard_normal((t, p, 1, d))
        reward = (rng.random((t, p, g)) < 0.5) + score[..., 0] * 0.5
        x = (reward - reward.mean(axis=2, keepdims=True))[..., None] * score
        estimate = nested(x)
        truth = g * np.trace(np.cov(x.mean(axis=2).reshape(-1, d).T))
        assert estimate.group_trace == pytest.approx(truth, rel=0.02)
        alone = np.trace(np.cov(x.reshape(-1, d).T))
        assert alone > 2 * estimate.group_trace
        assert estimate.response_variance > alone
        assert estimate.prompt_variance < 0

    @given(gain=st.floats(1e-3, 1e3))
    @settings(max_examples=20)
    def test_scale_and_units(self, gain: float) -> None:
        x = gradients(np.random.default_rng(5), signal=1.0)
        one, other = nested(x), nested(x * gain)
        for a, b in ((one.responses, other.responses), (one.groups, other.groups)):
            assert (b.noise_scale, b.low, b.high) == pytest.approx((a.noise_scale, a.low, a.high), rel=1e-6)
        assert one.groups.noise_scale * 8 == pytest.approx(one.responses.noise_scale, rel=1e-12)
        assert (one.groups.low * 8, one.groups.high * 8) == pytest.approx((one.responses.low, one.responses.high))
        assert "groups" in one.groups.message
        # Groups of G responses as chunks are the same measurement.
        _, group, batch = norms(x)
        chunks = from_chunk_norms(128, 16, group, batch)
        assert one.responses.noise_scale == pytest.approx(chunks.noise_scale, rel=1e-12)
        assert (one.responses.low, one.responses.high) == pytest.approx((chunks.low, chunks.high), rel=1e-9)

    def test_micro_batches_within_a_group_give_the_same_response_variance(self) -> None:
        x = gradients(np.random.default_rng(6), between=1.0, updates=400)
        alone, pairs = nested(x), from_nested_norms(16, 8, *norms(x, micro=2), responses_per_micro_batch=2)
        assert pairs.response_variance == pytest.approx(8, rel=0.02)
        assert pairs.group_trace == alone.group_trace
        with pytest.raises(ValueError, match="do not cut a group of 8"):
            from_nested_norms(16, 8, *norms(x, micro=8), responses_per_micro_batch=8)

    def test_forecast_of_the_group_size(self) -> None:
        x = gradients(np.random.default_rng(7), between=1.0, signal=1.0, updates=400)
        estimate = nested(x)
        assert estimate.at_group_size(8).noise_scale == estimate.responses.noise_scale
        for group in (2, 4, 16, 64):
            assert estimate.at_group_size(group).noise_scale == pytest.approx((group + 8), rel=0.1)
        # Twice the signal at equal noise halves it.
        assert estimate.at_group_size(16, signal_ratio=2).noise_scale == pytest.approx(
            estimate.at_group_size(16).noise_scale / 2
        )
        other = gradients(np.random.default_rng(8), prompts=32, group=4, between=1.0, signal=1.0, updates=400)
        assert float(estimate.square_norm(prompts=32, group_size=4)) == pytest.approx(norms(other)[2].mean(), rel=0.05)
        with pytest.raises(ValueError, match="must be positive"):
            estimate.at_group_size(0)

    def test_without_norms_within_groups_only_the_measured_size_is_known(self) -> None:
        _, group, batch = norms(gradients(np.random.default_rng(9), signal=1.0))
        estimate = from_nested_norms(16, 8, None, group, batch)
        assert estimate.responses.identified
        other = estimate.at_group_size(16)
        assert not other.identified
        assert "norms of single responses" in other.message
        assert math.isnan(estimate.prompt_variance)

    def test_too_little_says_what_to_log(self) -> None:
        estimate = from_nested_norms(16, 8, [9.0, 9.0], [1.0, 1.1], [0.2, 0.1])
        assert not estimate.responses.identified
        assert "3 or more updates" in estimate.responses.message
        assert "not identified" in estimate.at_group_size(4).message
        with pytest.raises(ValueError, match="at least 2"):
            from_nested_norms(1, 8, [9.0] * 9, [1.0] * 9, [0.2] * 9)

    def test_varying_prompts_weigh_as_they_are(self) -> None:
        rng = np.random.default_rng(10)
        few = norms(gradients(rng, prompts=8, between=1.0, signal=1.0, updates=200))
        many = norms(gradients(rng, prompts=32, between=1.0, signal=1.0, updates=200))
        joined = [np.concatenate(pair) for pair in zip(few, many, strict=True)]
        estimate = from_nested_norms([8] * 200 + [32] * 200, 8, *joined)
        assert estimate.responses.noise_scale == pytest.approx(16, rel=0.08)
        parts = [from_nested_norms(p, 8, *n).group_trace for p, n in ((8, few), (32, many))]
        assert estimate.group_trace == pytest.approx(0.2 * parts[0] + 0.8 * parts[1])


class TestGroupSignal:
    @pytest.mark.parametrize("normalised", [True, False])
    @pytest.mark.parametrize("filtered", [True, False])
    def test_against_every_sequence_of_answers(self, normalised: bool, filtered: bool) -> None:
        for group, p in ((2, 0.5), (4, 0.3), (8, 0.05), (9, 0.9)):
            twin = naive.group_signal(group, p, normalised, filtered)
            ours = group_signal(group, pass_rate=p, normalised=normalised, filtered=filtered)
            assert float(ours) == pytest.approx(twin, rel=1e-9)

    def test_small_groups_lose_signal_unless_filtered(self) -> None:
        assert group_signal(4, pass_rate=0.5, filtered=False) == pytest.approx(0.404, abs=1e-3)
        assert group_signal(2000, pass_rate=0.3) == pytest.approx(math.sqrt(0.21), rel=1e-3)
        loss = group_signal(4, pass_rate=0.1, filtered=False) / group_signal(64, pass_rate=0.1, filtered=False)
        assert loss < 0.6
        assert group_signal(4, pass_rate=0.1) > group_signal(64, pass_rate=0.1)
        with pytest.raises(ValueError, match="at least 2"):
            group_signal(1, pass_rate=0.5)


def test_group_sizes_of_a_real_transformer(shared: Path) -> None:
    """At P G = 512 the noise trace grows linearly with G from 8 on, and what is left at G = 4 is the filter's."""
    table: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with (shared / "tiny_grpo" / "updates.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if int(row["update"]) <= 20:
                table[row["run"]].append((float(row["sq_norm_chunk_mean"]), float(row["sq_norm_batch"])))
    trace, scale = {}, {}
    for group, stem in ((4, "pg_P128_G4"), (8, "sqrt_P64"), (16, "pg_P32_G16"), (32, "pg_P16_G32")):
        runs = [np.array(table[f"{stem}_s{seed}"]).T for seed in (1, 2, 3)]
        estimate = combine([from_chunk_norms(512, 8, *run) for run in runs])
        trace[group], scale[group] = estimate.noise_trace, estimate.noise_scale
    of_prompts = (trace[16] - trace[8]) / 8
    of_responses = trace[8] - 8 * of_prompts
    assert trace[32] == pytest.approx(32 * of_prompts + of_responses, rel=0.05)
    assert trace[4] == pytest.approx(4 * of_prompts + of_responses, rel=0.25)
    assert 0.55 < 8 * of_prompts / trace[8] < 0.75
    assert scale[4] < scale[8] < scale[16] < scale[32]


class TestUnits:
    @given(count=st.floats(1, 1e6), share=st.floats(0.01, 1), group=st.integers(1, 64))
    def test_conversions_undo_and_commute(self, count: float, share: float, group: int) -> None:
        # P14.
        assert float(kept_to_generated(generated_to_kept(count, kept_share=share), kept_share=share)) == pytest.approx(
            count
        )
        assert float(groups_to_responses(responses_to_groups(count, group_size=group), group_size=group)) == (
            pytest.approx(count)
        )
        one = generated_to_kept(groups_to_responses(count, group_size=group), kept_share=share)
        other = groups_to_responses(generated_to_kept(count, kept_share=share), group_size=group)
        assert float(one) == pytest.approx(float(other))
        assert float(
            rollout_batch(mini_batch(count, updates_per_rollout=8, epochs=2), updates_per_rollout=8, epochs=2)
        ) == pytest.approx(count)

    def test_numbers(self) -> None:
        # The notes' toy: 394 kept are 604 generated at 65 %.
        assert float(kept_to_generated(394, kept_share=0.652)) == pytest.approx(604, rel=0.002)
        assert float(mini_batch(1024, updates_per_rollout=4)) == 256
        assert float(mini_batch(1024, updates_per_rollout=8, epochs=2)) == 256

    @pytest.mark.parametrize("share", [0.0, -0.1, 1.2, math.nan])
    def test_a_share_is_a_share(self, share: float) -> None:
        with pytest.raises(ValueError, match="kept_share"):
            generated_to_kept(10, kept_share=share)

    def test_a_noise_scale_in_generated_responses(self) -> None:
        x = gradients(np.random.default_rng(11), signal=1.0)
        kept = nested(x).responses
        generated = rescale(kept, factor=1 / 0.65, unit="generated responses")
        assert generated.noise_scale == pytest.approx(kept.noise_scale / 0.65)
        assert (generated.low, generated.high) == pytest.approx((kept.low / 0.65, kept.high / 0.65))
        grid = kept.noise_scale * np.array([0.7, 1.0, 1.4])
        assert generated.log_likelihood(grid / 0.65) == pytest.approx(kept.log_likelihood(grid), abs=1e-9)
        assert "generated responses" in generated.message
        with pytest.raises(ValueError, match="factor"):
            rescale(kept, factor=0, unit="x")


class TestLoggedNorms:
    def test_the_square_of_a_mean_norm_is_low(self) -> None:
        assert float(mean_norm_bias(0.2)) == pytest.approx(0.962, abs=0.001)
        assert float(mean_norm_bias(0.5)) == pytest.approx(0.8, abs=0.001)
        rng = np.random.default_rng(12)
        norm = rng.lognormal(0, 0.47, size=(4000, 4))
        means = norm.mean(axis=1)
        truth = np.mean(norm**2)
        assert np.mean(means) ** 2 < 0.82 * truth
        known = read_norms(means, kind="mean", updates_per_rollout=4, variation=norm.std() / norm.mean())
        found = read_norms(means, kind="mean", updates_per_rollout=4)
        for read in (known, found):
            assert np.mean(read.norms) ** 2 == pytest.approx(truth, rel=0.03)
        assert found.variation == pytest.approx(norm.std() / norm.mean(), rel=0.05)
        assert "root mean squares" in found.message

    def test_a_mean_of_one_or_a_last_norm_stays(self) -> None:
        norm = np.array([1.0, 1.2, math.nan, 0.9])
        for read in (read_norms(norm, kind="mean"), read_norms(norm, kind="last", updates_per_rollout=4)):
            np.testing.assert_array_equal(read.norms, norm)
        assert "last of 4" in read_norms(norm, kind="last", updates_per_rollout=4).message

    def test_too_few_means_to_see_the_spread(self) -> None:
        read = read_norms([1.0, 1.1], kind="mean", updates_per_rollout=4)
        assert not read.identified
        assert "log the norm of each update" in read.message

    def test_clipped_norms_are_bounds(self) -> None:
        rng = np.random.default_rng(13)
        norm = rng.lognormal(0, 0.2, size=400)
        rare, often = np.minimum(norm, 1.2), np.minimum(norm, 1.0)
        read = read_norms(rare, clip=1.2)
        assert read.identified
        assert 0.1 < read.clipped_share < 0.25
        assert np.median(read.norms) == np.median(norm)
        refused = read_norms(often, clip=1.0)
        assert not refused.identified
        assert refused.norms.size == 0
        assert "Log the norm before clipping" in refused.message
        # The same values above the clip were logged before clipping.
        assert read_norms(norm, clip=1.0).clipped_share == 0
        assert read_norms(often, clip=1.0, pre_clip=True).identified
        assert "exceed the clip value" in read_norms(norm, clip=1.0, pre_clip=False).message

    def test_a_mean_near_the_clip_may_hide_clipped_norms(self) -> None:
        rng = np.random.default_rng(14)
        norm = np.minimum(rng.lognormal(0, 0.3, size=(200, 4)), 1.3)
        assert not read_norms(norm.mean(axis=1), kind="mean", updates_per_rollout=4, clip=1.3).identified
        assert read_norms(norm.mean(axis=1), kind="mean", updates_per_rollout=4, clip=10).identified

    def test_clipping_that_is_not_read_as_such_hides_the_noise(self) -> None:
        rng = np.random.default_rng(15)
        batches = [64.0] * 3 + [512.0] * 3
        runs = [np.sqrt(1 + 500 / b) * rng.lognormal(0, 0.1, size=80) for b in batches]
        clipped = [np.minimum(run, 1.5) for run in runs]
        assert from_logged_norms(batches, runs).noise_scale == pytest.approx(500, rel=0.1)
        assert from_logged_norms(batches, clipped).noise_scale < 100
        refused = from_described_norms(batches, [read_norms(run, clip=1.5) for run in clipped])
        assert not refused.identified
        assert "before clipping" in refused.message
        fine = from_described_norms(batches, [read_norms(run, clip=1.5) for run in runs[:0] + runs])
        assert fine.noise_scale == pytest.approx(500, rel=0.1)

    @pytest.mark.parametrize(
        ("options", "message"),
        [({"kind": "sum"}, "none of"), ({"clip": 0.0}, "positive"), ({"updates_per_rollout": 0}, "positive")],
    )
    def test_what_cannot_be(self, options: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            read_norms([1.0, 2.0], **options)  # type: ignore[arg-type]
