from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from batchsim.errors import InputError
from batchsim.specs.lengths import Lengths
from batchsim.system.decode_law import DecodeLaw
from batchsim.system.rollout import (
    OUTCOMES,
    draw,
    generation_curve,
    generation_law,
    pipelined_rollout,
    rollout,
)
from batchsim.system.rollout.result import tail_share
from batchsim.variables import VARIABLES

LAW = DecodeLaw(
    step_time=np.append(0.0, 0.008 + 1e-5 * np.arange(4096)),
    context_time=2e-8,
    prefill_time=1e-5,
    prefill_context_time=1e-10,
)
KEPT, DROPPED, SURPLUS, CUT, CARRIED, NOT_LAUNCHED = range(len(OUTCOMES))


def lengths(count: int, seed: int = 0, mean: float = 600.0) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    rng = np.random.default_rng(seed)
    return np.clip(np.ceil(rng.lognormal(np.log(mean) - 0.32, 0.8, count)), 1, 8000).astype(np.int64)


class TestByHand:
    def test_one_response(self) -> None:
        """The prompt's step samples the first token; the decode steps read 101 to 104 tokens."""
        law = DecodeLaw(
            step_time=np.array([0.0, 0.01]), context_time=1e-5, prefill_time=1e-4, prefill_context_time=1e-6
        )
        ds = rollout(law=law, prompt_tokens=100, response_tokens=[5], max_num_seqs=1)
        prefill = 0.01 + 100 * 1e-4 + 100 * 101 / 2 * 1e-6
        decode = 4 * 0.01 + (101 + 102 + 103 + 104) * 1e-5
        assert float(ds["gen_time"]) == pytest.approx(prefill + decode, rel=1e-13)
        assert float(ds["token_throughput"]) == pytest.approx(5 / (prefill + decode), rel=1e-13)

    def test_equal_lengths_take_waves(self) -> None:
        """At capped concurrency t_gen = waves x (time of one), which is q_gen_max = C/(d_0 + d_1 C)."""
        one = float(rollout(law=LAW, prompt_tokens=10, response_tokens=np.full(64, 300), max_num_seqs=64)["gen_time"])
        four = rollout(law=LAW, prompt_tokens=10, response_tokens=np.full(256, 300), max_num_seqs=64)
        assert float(four["gen_time"]) == pytest.approx(4 * one, rel=1e-12)

    def test_a_window_bounds_what_is_read(self) -> None:
        window = DecodeLaw(step_time=np.array([0.0, 0.01]), context_time=0.0, window_time=1e-4, window=50)
        ds = rollout(law=window, prompt_tokens=48, response_tokens=[6], max_num_seqs=1)
        assert float(ds["gen_time"]) == pytest.approx(6 * 0.01 + (49 + 50 + 50 + 50 + 50) * 1e-4, rel=1e-13)

    def test_the_last_admitted_is_preempted_and_recomputes(self) -> None:
        """Two sequences of 4 + 8 tokens in 5 blocks of 4: each needs 3, the second loses its 2 blocks at 8 tokens."""
        law = DecodeLaw(step_time=np.array([0.0, 1.0, 1.0]), context_time=0.0, prefill_time=0.25)
        ds = rollout(
            law=law,
            prompt_tokens=4,
            response_tokens=[8, 8],
            max_num_seqs=2,
            kv_blocks=5,
            block_size=4,
            max_num_batched_tokens=64,
        )
        assert ds["preemptions"].values.tolist() == [0, 1]
        # Prompts: 1 + 8/4 = 3 s. Four steps together until both have 8 tokens cached. Both want a third block at the
        # fifth; one is free, the second sequence goes. The first has 3 tokens to sample, alone.
        assert float(ds["finish_time"][0]) == 3 + 4 + 3
        # Then 9 known tokens are prefilled, and 2 of the 8 are left after the one that this samples.
        assert float(ds["finish_time"][1]) == 10 + (1 + 9 * 0.25) + 2
        assert float(ds["recomputed_tokens"]) == 8

    def test_siblings_share_whole_blocks_of_their_prompt(self) -> None:
        law = DecodeLaw(step_time=np.array([0.0, 1.0, 1.0, 1.0]), context_time=0.0, prefill_time=1.0)
        common: dict[str, Any] = {
            "law": law,
            "prompt_tokens": 33,
            "response_tokens": [2, 2, 2],
            "group_size": 3,
            "max_num_seqs": 3,
            "block_size": 16,
        }
        shared = rollout(**common)
        apart = rollout(**common, share_prefix=False)
        assert float(shared["prefilled_tokens"]) == 33 + 2 * 1
        assert float(apart["prefilled_tokens"]) == 3 * 33
        # 2 shared blocks and 1 each; without sharing 3 each.
        assert float(rollout(**common, kv_blocks=5)["preemptions_total"]) == 0
        assert float(rollout(**common, kv_blocks=5)["running"].max()) == 3
        assert float(rollout(**common, kv_blocks=5, share_prefix=False)["running"].max()) == 1

    def test_a_turn_waits_for_its_environment(self) -> None:
        law = DecodeLaw(step_time=np.array([0.0, 1.0]), context_time=0.0, prefill_time=0.5)
        turns: dict[str, Any] = {
            "law": law,
            "prompt_tokens": 10,
            "response_tokens": [[3, 2]],
            "environment_tokens": 5,
            "environment_seconds": 20.0,
            "max_num_seqs": 1,
        }
        # Prompt 1 + 5, two decodes, 20 s, then one sampled token and 5 appended ones are new.
        assert float(rollout(**turns)["gen_time"]) == (1 + 5) + 2 + 20 + (1 + 6 * 0.5) + 1
        # Given back, all 18 tokens are computed.
        assert float(rollout(**turns, keep_kv=False)["gen_time"]) == (1 + 5) + 2 + 20 + (1 + 18 * 0.5) + 1

    def test_steps_are_padded_to_the_captured_batch(self) -> None:
        law = DecodeLaw(step_time=np.array([0.0, 1.0, 2.0, 3.0, 4.0]), context_time=0.0)
        lone = rollout(law=law, prompt_tokens=1, response_tokens=[2, 2, 2], max_num_seqs=3)
        padded = rollout(law=law, prompt_tokens=1, response_tokens=[2, 2, 2], max_num_seqs=3, graph_sizes=[1, 2, 4])
        assert (float(lone["gen_time"]), float(padded["gen_time"])) == (1 + 3, 1 + 4)

    def test_a_response_begins_at_the_first_boundary_after_its_arrival(self) -> None:
        law = DecodeLaw(step_time=np.array([0.0, 1.0, 1.0]), context_time=0.0)
        ds = rollout(law=law, prompt_tokens=1, response_tokens=[6, 2], max_num_seqs=2, arrival_seconds=[2.5, 4.25])
        assert ds["start_time"].values.tolist() == [2.5, 4.5]
        assert ds["finish_time"].values.tolist() == [8.5, 6.5]

    def test_a_long_prompt_slows_those_that_decode(self) -> None:
        """Budget 5, one decoding: the 40 tokens of the second prompt take ten steps of 4."""
        law = DecodeLaw(step_time=np.array([0.0, 1.0, 1.0]), context_time=0.0, prefill_time=0.5)
        ds = rollout(
            law=law,
            prompt_tokens=[5, 40],
            response_tokens=[30, 1],
            max_num_seqs=2,
            max_num_batched_tokens=5,
        )
        assert float(ds["finish_time"][1]) == (1 + 5 * 0.5) + 10 * (1 + 4 * 0.5)


class TestConservation:
    @settings(max_examples=60)
    @given(
        seed=st.integers(0, 10**6),
        replicas=st.integers(1, 4),
        group_size=st.sampled_from([1, 4]),
        room=st.one_of(st.none(), st.floats(1.0, 6.0)),
        dispatch=st.sampled_from(["static", "least_loaded", "length_aware"]),
    )
    def test_no_response_is_lost_and_tokens_add_up(
        self, seed: int, replicas: int, group_size: int, room: float | None, dispatch: str
    ) -> None:
        r = lengths(64 * group_size, seed)
        blocks = None if room is None else int(room * (-(-(r.max() + 40) // 16)))
        ds = rollout(
            law=LAW,
            prompt_tokens=40,
            response_tokens=r,
            group_size=group_size,
            max_num_seqs=50,
            kv_blocks=blocks,
            replicas=replicas,
            dispatch=dispatch,
        )
        assert not ds["finish_time"].isnull().any()
        assert (ds["outcome"] == KEPT).all()
        np.testing.assert_array_equal(ds["generated_tokens"], r)
        assert float(ds["token_throughput"] * ds["gen_time"]) == pytest.approx(r.sum(), rel=1e-12)
        assert (ds["finish_time"] > ds["start_time"]).all()
        assert float(ds["gen_time"]) == float(ds["finish_time"].max())
        assert int(ds["preemptions"].sum()) == int(ds["preemptions_total"])
        assert ds["running"].values[-2] > 0
        # Prefills are prompts, once per group at least; what was lost; and the token that a preempted one just sampled.
        first = ds["prefilled_tokens"] - ds["recomputed_tokens"]
        own = 40 - (39 // 16) * 16 if group_size > 1 else 40
        assert 64 * (40 + (group_size - 1) * own) <= float(first) <= r.size * 40 + int(ds["preemptions_total"])
        assert (int(ds["preemptions_total"]) == 0) == (float(ds["recomputed_tokens"]) == 0)

    @settings(max_examples=40)
    @given(
        seed=st.integers(0, 10**6),
        refill=st.sampled_from(["rounds", "continuous"]),
        surplus=st.sampled_from(["cut", "carry"]),
    )
    def test_filtering_counts_every_response_once(self, seed: int, refill: str, surplus: str) -> None:
        rng = np.random.default_rng(seed)
        kept = rng.random(200) < 0.6
        ds = rollout(
            law=LAW,
            prompt_tokens=20,
            response_tokens=lengths(800, seed),
            group_size=4,
            max_num_seqs=64,
            kept=kept,
            prompts=40,
            launch=50,
            refill=refill,
            surplus=surplus,
        )
        number = np.bincount(ds["outcome"], minlength=6)
        assert number.sum() == 800
        assert number[KEPT] == int(ds["responses_kept"]) == 160
        assert number[SURPLUS] + number[DROPPED] + number[CUT] == int(ds["responses_wasted"])
        assert (number[CARRIED] == 0) == (surplus == "cut" or not number[CUT] + number[CARRIED])
        np.testing.assert_array_equal(np.repeat(kept, 4)[ds["outcome"] == KEPT], True)
        np.testing.assert_array_equal(np.repeat(kept, 4)[ds["outcome"] == DROPPED], False)
        made = ds["generated_tokens"].values
        complete = np.isin(ds["outcome"], (KEPT, DROPPED, SURPLUS))
        np.testing.assert_array_equal(made[complete], ds["response_tokens"].values[complete])
        assert (made <= ds["response_tokens"].values).all()
        assert (made[ds["outcome"] == NOT_LAUNCHED] == 0).all()
        carried = made[ds["outcome"] == CARRIED].sum()
        assert float(ds["wasted_tokens"]) == made.sum() - made[ds["outcome"] == KEPT].sum() - carried

    def test_rounds_are_barriers_and_continuous_refill_is_not(self) -> None:
        kept = np.random.default_rng(1).random(400) < 0.5
        common: dict[str, Any] = {
            "law": LAW,
            "prompt_tokens": 20,
            "response_tokens": lengths(1600),
            "group_size": 4,
            "max_num_seqs": 128,
            "kept": kept,
            "prompts": 64,
            "launch": 64,
        }
        rounds, steady = rollout(**common, refill="rounds"), rollout(**common, refill="continuous")
        assert float(steady["gen_time"]) < float(rounds["gen_time"])
        second = rounds["start_time"].values[64 * 4 : 128 * 4]
        assert second.min() >= np.nanmax(rounds["finish_time"].values[: 64 * 4])


class TestDispatch:
    def test_knowing_lengths_balances_replicas(self) -> None:
        r = lengths(512, seed=3, mean=2000)
        time = {
            dispatch: float(
                rollout(law=LAW, prompt_tokens=20, response_tokens=r, max_num_seqs=16, replicas=4, dispatch=dispatch)[
                    "gen_time"
                ]
            )
            for dispatch in ("static", "length_aware")
        }
        assert time["length_aware"] < time["static"]

    def test_all_that_ends_at_one_time_ends_before_a_launch(self) -> None:
        """Both replicas drop a group in second 3; only then is the emptier one known."""
        law = DecodeLaw(step_time=np.array([0.0, 1.0, 1.0, 1.0]), context_time=0.0)
        ds = rollout(
            law=law,
            prompt_tokens=1,
            response_tokens=[3, 3, 10, 5, 20],
            max_num_seqs=3,
            replicas=2,
            dispatch="least_loaded",
            kept=[False, False, True, True, True],
            prompts=3,
            launch=3,
            refill="continuous",
        )
        assert ds["start_time"].values.tolist() == [0, 0, 0, 3, 3]
        assert ds["replica"].values.tolist() == [0, 1, 0, 1, 0]

    def test_replicas_split_the_work(self) -> None:
        r = lengths(512)
        one = rollout(law=LAW, prompt_tokens=20, response_tokens=r[::2], max_num_seqs=32)
        two = rollout(law=LAW, prompt_tokens=20, response_tokens=r, max_num_seqs=32, replicas=2)
        mine = two.isel(response=two["replica"].values == 0)
        np.testing.assert_allclose(mine["finish_time"], one["finish_time"], rtol=1e-12)


class TestPipeline:
    COMMON: dict[str, Any] = {  # noqa: RUF012
        "law": LAW,
        "prompt_tokens": 40,
        "response_tokens": lengths(32 * 4 * 45, seed=5),
        "group_size": 4,
        "prompts": 32,
        "updates": 40,
        "max_num_seqs": 256,
        "update_seconds": 3.0,
        "warm_up": 10,
    }

    @pytest.mark.parametrize("gen_ratio", [1.0, 2.0, 3.0])
    def test_littles_law(self, gen_ratio: float) -> None:
        """Launched and not yet used: ahead groups; used per version: P. So age + 1 averages ahead/P."""
        ds = pipelined_rollout(**self.COMMON, mode="partial", gen_ratio=gen_ratio)
        assert float(ds["staleness_mean"][10:].mean()) == pytest.approx(gen_ratio - 1, abs=0.1)

    def test_stale_responses_are_the_long_ones(self) -> None:
        ds = pipelined_rollout(**self.COMMON, mode="partial", gen_ratio=2.0)
        used = ds["used_by"].values >= 10
        age, size = ds["staleness"].values[used], ds["response_tokens"].values[used]
        means = [size[age == a].mean() for a in (0, 1, 2)]
        assert means == sorted(means)
        assert means[0] < 0.8 * means[2]

    def test_what_finishes_first_is_short(self) -> None:
        ds = pipelined_rollout(**(self.COMMON | {"group_size": 1}), mode="partial", gen_ratio=3.0)
        length, launched = ds["response_length"].values, float(ds["response_length_launched"])
        assert length[0] < 0.75 * launched
        # In the steady state what is launched is what is used.
        assert length[15:].mean() == pytest.approx(launched, rel=0.06)

    def test_synchronous_is_a_row_of_rollouts(self) -> None:
        ds = pipelined_rollout(**self.COMMON, mode="sync")
        r = self.COMMON["response_tokens"]
        for update in (0, 7):
            part = slice(128 * update, 128 * (update + 1))
            alone = rollout(law=LAW, prompt_tokens=40, response_tokens=r[part], group_size=4, max_num_seqs=256)
            since = 0.0 if update == 0 else float(ds["resumed_time"][update - 1])
            assert float(ds["ready_time"][update]) - since == pytest.approx(float(alone["gen_time"]), rel=1e-9)
        assert (ds["staleness"].values[ds["used_by"].values >= 0] == 0).all()

    def test_every_response_is_used_once_or_not_at_all(self) -> None:
        kept = np.random.default_rng(2).random(32 * 45) < 0.8
        ds = pipelined_rollout(**(self.COMMON | {"updates": 30}), kept=kept, mode="partial", gen_ratio=2.0)
        used = ds["used_by"].values
        np.testing.assert_array_equal(np.bincount(used[used >= 0], minlength=30), np.full(30, 128))
        assert np.repeat(kept, 4)[used >= 0].all()
        # A group is used whole, after its last response, at the update that says so.
        by_group = used.reshape(-1, 4)
        assert (by_group == by_group[:, :1]).all()
        taken, finish = ds["taken_time"].values, ds["finish_time"].values
        assert (finish[used >= 0] <= taken[used[used >= 0]]).all()
        assert int(ds["responses_kept"]) == 30 * 128
        finished = ~np.isnan(finish)
        unused = finished & (used < 0)
        assert int(ds["responses_wasted"]) == (unused & ~np.repeat(kept, 4)).reshape(-1, 4).all(axis=1).sum() * 4
        # What is launched ahead of the last update, which itself launches none; dropped groups are replaced.
        launched = int(ds["responses_launched"]) - int(ds["responses_wasted"])
        assert launched == (29 + 2) * 128

    def test_partial_beats_synchronous_and_stale_caches_cost_nothing(self) -> None:
        rate = {
            name: float(pipelined_rollout(**self.COMMON, mode=mode, recompute=recompute)["kept_throughput"])
            for name, mode, recompute in (
                ("sync", "sync", True),
                ("partial", "partial", True),
                ("stale", "partial", False),
            )
        }
        assert rate["sync"] < rate["partial"] < rate["stale"]
        stale = pipelined_rollout(**self.COMMON, mode="partial", recompute=False)
        assert float(stale["recomputed_tokens"]) == 0

    @pytest.mark.parametrize("bound", [0, 1, 2])
    def test_the_mean_age_is_bounded(self, bound: int) -> None:
        ds = pipelined_rollout(**self.COMMON, mode="async", in_flight=256, launch_ahead=bound)
        assert float(ds["staleness_mean"][10:].mean()) <= bound + 0.05
        assert (float(ds["staleness_max"].max()) == 0) == (bound == 0)

    def test_a_full_queue_stops_launches(self) -> None:
        """A slow trainer: what waits and what runs never exceeds in_flight + queue."""
        ds = pipelined_rollout(
            **(self.COMMON | {"update_seconds": 500.0, "updates": 12, "warm_up": 2}),
            mode="async",
            in_flight=8,
            queue_groups=40,
        )
        steps = ds["step_time"].values[2:]
        np.testing.assert_allclose(steps, 500.0)
        launched = ds["start_time"].values.reshape(-1, 4)[:, 0]
        for u, taken in enumerate(ds["taken_time"].values[:-1]):
            assert (launched < ds["taken_time"].values[u + 1]).sum() <= 32 * (u + 1) + 48
            assert (launched < taken).sum() <= 32 * u + 48

    def test_a_disaggregated_trainer_hides_generation(self) -> None:
        slow = {"update_seconds": 12.0}
        together = pipelined_rollout(**(self.COMMON | slow), mode="partial")
        apart = pipelined_rollout(**(self.COMMON | slow), mode="partial", colocated=False)
        assert float(apart["kept_throughput"]) > float(together["kept_throughput"])


class TestLaw:
    LENGTHS = Lengths(prompt_mean=100, response_mean=800, response_spread=0.6, max_tokens=4096)

    def test_the_plateau_is_capped_concurrency(self) -> None:
        """Equal lengths: q_gen_max = C/(time of one wave), and far below the cap d_0 + d_1 B is the curve."""
        fixed = Lengths(prompt_mean=10, response_mean=300, distribution="fixed")
        found = generation_law(64, law=LAW, lengths=fixed, max_num_seqs=128, draws=1)
        wave = float(
            rollout(law=LAW, prompt_tokens=10, response_tokens=np.full(128, 300), max_num_seqs=128)["gen_time"]
        )
        assert float(found["gen_throughput_max"]) == pytest.approx(128 / wave, rel=1e-9)
        at = float(rollout(law=LAW, prompt_tokens=10, response_tokens=np.full(72, 300), max_num_seqs=128)["gen_time"])
        tangent = float(found["gen_time_intercept"] + found["gen_time_slope"] * 72)
        assert tangent == pytest.approx(at, rel=1e-3)

    def test_the_tangent_touches_and_both_bounds_hold(self) -> None:
        found = generation_law(256, law=LAW, lengths=self.LENGTHS, max_num_seqs=128, draws=6)
        curve = generation_curve([128, 256, 512, 4096], law=LAW, lengths=self.LENGTHS, max_num_seqs=128, draws=6)
        d0, d1, plateau = (float(found[n]) for n in ("gen_time_intercept", "gen_time_slope", "gen_throughput_max"))
        assert d0 + d1 * 256 == pytest.approx(float(curve["gen_time"][1]), rel=1e-12)
        assert d0 > 0
        assert (np.diff(curve["gen_throughput"].values) > 0).all()
        assert float(curve["gen_throughput"].max()) < plateau * 1.02

    def test_draws_are_common_and_seeded(self) -> None:
        common: dict[str, Any] = {"law": LAW, "lengths": self.LENGTHS, "max_num_seqs": 64, "draws": 3}
        a, b = generation_curve([64, 128], **common), generation_curve([128], **common)
        assert float(a["gen_time"][1]) == float(b["gen_time"][0])
        assert float(generation_curve([128], **common, seed=1)["gen_time"][0]) != float(b["gen_time"][0])

    def test_progress_is_told(self) -> None:
        seen: list[tuple[int, int]] = []
        generation_curve(
            [8, 16], law=LAW, lengths=self.LENGTHS, draws=2, progress=lambda done, total: seen.append((done, total))
        )
        assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


class TestTail:
    def test_half_of_the_maximum(self) -> None:
        time = np.array([0.0, 1.0, 4.0, 6.0, 9.0, 10.0])
        running = np.array([8, 3, 5, 3, 1, 1])
        assert tail_share(time, running) == pytest.approx(0.4)

    def test_spread_makes_tails(self) -> None:
        shares = []
        for spread in (0.0, 0.5, 1.0):
            drawn = draw(
                Lengths(prompt_mean=10, response_mean=500, response_spread=spread),
                groups=256,
                group_size=1,
                rng=np.random.default_rng(0),
            )
            ds = rollout(law=LAW, prompt_tokens=10, response_tokens=drawn.response_tokens, max_num_seqs=256)
            shares.append(float(ds["tail_share"]))
        assert shares == sorted(shares)
        assert shares[0] == 0.0
        assert shares[2] > 0.8


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"response_tokens": [0, 5]}, "response_tokens is 0 at response 0"),
    ({"response_tokens": [-3, 5]}, "response_tokens is -3"),
    ({"response_tokens": [float("nan"), 5]}, "whole numbers"),
    ({"response_tokens": [2.5, 5]}, "whole numbers"),
    ({"response_tokens": []}, "one row per response"),
    ({"response_tokens": [10**9, 5]}, "at most 100,000,000"),
    ({"prompt_tokens": 0}, "prompt_tokens is 0"),
    ({"prompt_tokens": [1, 2, 3]}, "prompt_tokens has shape"),
    ({"prompt_tokens": [1, 2], "group_size": 2}, "differ in length"),
    ({"group_size": 3}, "whole number of groups of 3"),
    ({"group_size": 0}, "group_size is 0"),
    ({"max_num_seqs": 0}, "max_num_seqs is 0"),
    ({"max_num_seqs": 1.5}, "max_num_seqs is 1.5"),
    ({"max_num_batched_tokens": 1}, "below the 2 sequences"),
    ({"kv_blocks": 1, "block_size": 4}, "needs 2 blocks"),
    ({"kv_blocks": 0}, "kv_blocks is 0"),
    ({"replicas": 0}, "replicas is 0"),
    ({"dispatch": "statik"}, "did you mean 'static'"),
    ({"refill": "round"}, "did you mean 'rounds'"),
    ({"surplus": "keep"}, "unknown surplus"),
    ({"prompts": 3}, "there are 2 groups"),
    ({"kept": [False, True], "prompts": 2}, "1 of the 2 groups wanted"),
    ({"kept": [True]}, "kept has shape"),
    ({"truncated": [True]}, "truncated has shape"),
    ({"arrival_seconds": [0.0]}, "arrival_seconds has shape"),
    ({"arrival_seconds": [2.0, 1.0]}, "not decreasing"),
    ({"graph_sizes": [1, 5000]}, "step times up to 4096"),
    ({"law": DecodeLaw(step_time=np.array([0.0, 1.0]), context_time=0.0)}, "step times up to 1"),
    ({"law": DecodeLaw(step_time=np.array([0.0, 0.0, 1.0]), context_time=0.0)}, "takes no time"),
    ({"law": DecodeLaw(step_time=np.ones(9), context_time=-1.0)}, "not negative"),
    ({"response_tokens": [[3, 0, 2], [1, 1, 1]]}, "then zero"),
    ({"response_tokens": [[3, 2], [1, 1]], "environment_seconds": -1.0}, "environment_seconds"),
    ({"response_tokens": [[3, 2], [1, 1]], "environment_tokens": [1, 2, 3]}, "must broadcast"),
]


@pytest.mark.parametrize(("given_", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_bad_input_is_refused(given_: dict[str, Any], message: str) -> None:
    fine: dict[str, Any] = {"law": LAW, "prompt_tokens": 5, "response_tokens": [3, 3]}
    with pytest.raises(InputError, match=message):
        rollout(**(fine | given_))


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"mode": "asink"}, "did you mean 'async'"),
        ({"gen_ratio": 0.5}, "gen_ratio is 0.5"),
        ({"updates": 0}, "0 updates"),
        ({"updates": 50}, "used up"),
        ({"warm_up": 4}, "warm_up is 4"),
        ({"update_seconds": -1.0}, "update_seconds"),
        ({"launch_ahead": -1}, "launch_ahead"),
        ({"mode": "async", "in_flight": 2, "queue_groups": 1}, "let no other start"),
    ],
)
def test_bad_pipelines_are_refused(given_: dict[str, Any], message: str) -> None:
    fine: dict[str, Any] = {
        "law": LAW,
        "prompt_tokens": 5,
        "response_tokens": lengths(40),
        "prompts": 8,
        "updates": 4,
    }
    with pytest.raises(InputError, match=message):
        pipelined_rollout(**(fine | given_))


def test_results_carry_the_vocabulary() -> None:
    step = rollout(law=LAW, prompt_tokens=5, response_tokens=[3, 3], truncated=[True, False])
    pipe = pipelined_rollout(law=LAW, prompt_tokens=5, response_tokens=lengths(40), prompts=8, updates=3)
    curve = generation_curve([8], law=LAW, lengths=TestLaw.LENGTHS, draws=1)
    for ds in (step, pipe, curve, generation_law(8, law=LAW, lengths=TestLaw.LENGTHS, draws=1)):
        assert isinstance(ds, xr.Dataset)
        for name in ds.variables:
            assert ds[name].attrs["units"] == VARIABLES[str(name)].unit
    assert float(step["truncated_share"]) == 0.5
