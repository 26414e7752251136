"""The decode roofline: a slow twin, physics over the whole catalogue, hand-computed numbers, bad input."""

from __future__ import annotations

import dataclasses
import itertools
import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from naive_roofline import step_seconds
from scipy.special import ndtri

from batchsim.errors import InputError
from batchsim.specs.architecture import Architecture
from batchsim.specs.counts import flops_per_token, kv_bytes_per_token, state_bytes, weight_bytes
from batchsim.specs.gpu import GPU
from batchsim.specs.gpus import catalogue, find_gpu
from batchsim.specs.huggingface import quantised
from batchsim.specs.models import entries, find_model
from batchsim.system.memory import cache_room
from batchsim.system.roofline import (
    PARTS,
    Deployment,
    batch_step_time,
    decode_law,
    decode_time,
    deploy,
    efficiency,
    overhead,
    prefill_time,
    ridge,
    step_time,
    touched_experts,
)
from batchsim.system.roofline.deployment import expert_popularity
from batchsim.system.roofline.efficiency import FITTED, Efficiency, model_error, shipped
from batchsim.variables import VARIABLES

MODELS = list(entries())
GPUS = list(catalogue())
SMALL = ("Qwen3-8B", "Qwen3-30B-A3B", "DeepSeek-V3", "gpt-oss-120b", "Nemotron-H-56B-Base-8K", "Qwen3.5-35B-A3B")


@cache
def architecture(name: str) -> Architecture:
    return find_model(name)


@cache
def deployed(model: str, gpu: str, tp: int = 1, ep: int = 1, engine: str = "vllm", bits: float = 16) -> Deployment:
    return deploy(
        architecture(model),
        find_gpu(gpu),
        tensor_parallel=tp,
        expert_parallel=ep,
        engine=engine,
        cache_bits=bits,
        network_bandwidth=50e9,
    )


def total(d: Deployment, **at: Any) -> np.ndarray:
    return np.asarray(step_time(d, **at).sum(axis=-1))


class TestTwin:
    """The kernel against plain loops that share nothing with it."""

    @settings(max_examples=60)
    @given(
        model=st.sampled_from(SMALL),
        gpu=st.sampled_from(("H100-SXM", "A100-80-SXM", "B200-SXM", "MI300X", "L4")),
        tp=st.sampled_from((1, 2, 4, 16)),
        ep=st.sampled_from((1, 2, 8, 32)),
        batch=st.integers(0, 300),
        context=st.floats(0, 30_000),
        prompt=st.integers(0, 300),
        start=st.integers(0, 3000),
        bits=st.sampled_from((8.0, 16.0)),
        fused=st.booleans(),
    )
    def test_equals_the_twin(
        self,
        model: str,
        gpu: str,
        tp: int,
        ep: int,
        batch: int,
        context: float,
        prompt: int,
        start: int,
        bits: float,
        fused: bool,
    ) -> None:
        a = architecture(model)
        if a.experts is None:
            ep = 1
        assume(all(layer.heads % tp == 0 for layer in a.attention))
        assume(all(layer.latent or tp % layer.kv_heads == 0 or layer.kv_heads % tp == 0 for layer in a.attention))
        d = dataclasses.replace(deployed(model, gpu, tp, ep, bits=bits), fused_all_reduce=fused)
        popularity, extreme = [], 0.0
        if a.experts:
            popularity = list(expert_popularity(a.experts.experts, a.experts.per_token, d.engine.routing_skew))
            extreme = float(ndtri((ep - 0.375) / (ep + 0.25))) if ep > 1 else 0.0
        expected = step_seconds(d, batch, context, prompt, start, popularity, extreme)
        found = total(d, batch=batch, context=context, prompt=prompt, start=start)
        assert float(found) == pytest.approx(expected, rel=1e-9)

    def test_shapes_broadcast(self) -> None:
        d = deployed("Qwen3-8B", "H100-SXM")
        parts = step_time(d, batch=np.arange(1, 5)[:, None], context=[10.0, 1000.0, 4000.0])
        assert parts.shape == (4, 3, len(PARTS))
        single = step_time(d, batch=3, context=1000.0)
        np.testing.assert_allclose(parts[2, 1], single, rtol=1e-15)


class TestTouchedExperts:
    @given(
        experts=st.integers(1, 512),
        share=st.floats(0.01, 1),
        tokens=st.lists(st.floats(1, 1e5), min_size=2, max_size=6),
        skew=st.floats(0, 1.5),
    )
    def test_between_k_and_all_and_rising(self, experts: int, share: float, tokens: list[float], skew: float) -> None:
        k = max(1, round(share * experts))
        found = touched_experts(np.sort(tokens), experts=experts, per_token=k, skew=skew)
        assert np.all(found >= k * (1 - 1e-9))
        assert np.all(found <= experts * (1 + 1e-12))
        assert np.all(np.diff(found) >= -1e-9 * experts)
        assert float(touched_experts(1, experts=experts, per_token=k, skew=skew)) == pytest.approx(k, rel=1e-9)

    @given(n=st.integers(1, 4000), experts=st.integers(2, 300), k=st.integers(1, 8))
    def test_uniform_routing_has_the_closed_form(self, n: int, experts: int, k: int) -> None:
        k = min(k, experts)
        expected = experts * (1 - (1 - k / experts) ** n)
        assert float(touched_experts(n, experts=experts, per_token=k)) == pytest.approx(expected, rel=1e-9)

    def test_a_draw_of_routing_agrees(self) -> None:
        """Monte Carlo: independent tokens that choose experts with these probabilities."""
        rng = np.random.default_rng(0)
        popularity = expert_popularity(64, 4, 0.8)
        drawn = (rng.random((4000, 20, 64)) < popularity).any(axis=1).sum(axis=1)
        expected = float(touched_experts(20, experts=64, per_token=4, skew=0.8))
        assert abs(drawn.mean() - expected) < 4 * drawn.std() / math.sqrt(drawn.size)

    @given(experts=st.integers(1, 512), share=st.floats(0.01, 1), skew=st.floats(0, 2))
    def test_popularity_sums_to_k(self, experts: int, share: float, skew: float) -> None:
        k = max(1, round(share * experts))
        popularity = expert_popularity(experts, k, skew)
        assert popularity.sum() == pytest.approx(k, rel=1e-9)
        assert popularity.max() <= 1 + 1e-9
        assert np.all(np.diff(popularity) <= 1e-12)

    def test_the_slowest_rank_reads_more_than_the_mean(self) -> None:
        """A simulation of experts placed at random over ranks gives the same mean maximum within 6 %."""
        a = architecture("Qwen3-30B-A3B")
        assert a.experts is not None
        rng = np.random.default_rng(1)
        popularity = expert_popularity(128, 8, 0.8)
        slowest = []
        for _ in range(1500):
            seen = np.any(rng.random((32, 128)) < popularity, axis=0)
            slowest.append(max(seen[part].sum() for part in np.split(rng.permutation(128), 8)))
        one, eight = deployed("Qwen3-30B-A3B", "H100-SXM"), deployed("Qwen3-30B-A3B", "H100-SXM", 8, 8)
        engines = [dataclasses.replace(d.engine, routing_skew=0.8) for d in (one, eight)]
        full, split = (
            step_time(dataclasses.replace(d, engine=e), batch=32, context=0.0)[1]
            for d, e in zip((one, eight), engines, strict=True)
        )
        reads = split / full * float(touched_experts(32, experts=128, per_token=8, skew=0.8))
        assert reads == pytest.approx(np.mean(slowest), rel=0.06)


class TestNodes:
    def test_a_replica_over_nodes_pays_for_the_network(self) -> None:
        within, over = (step_time(deployed("DeepSeek-V3", "H100-SXM", tp), batch=64, context=0.0)[4] for tp in (8, 16))
        joins = 61 * 2 + 1
        assert over - within == pytest.approx(joins * (2 * 10e-6 + 64 * 2 * 7168 / 8 / (0.8 * 50e9)), rel=1e-6)

    def test_needs_the_network(self) -> None:
        a, gpu = architecture("DeepSeek-V3"), find_gpu("H100")
        with pytest.raises(InputError, match=r"tensor_parallel 16 exceeds the 8 GPUs.*network_bandwidth"):
            deploy(a, gpu, tensor_parallel=16)
        with pytest.raises(InputError, match=r"tensor_parallel 12 is no whole number of nodes of 8"):
            deploy(a, gpu, tensor_parallel=12, network_bandwidth=50e9)


class TestPhysics:
    """Properties of every model on every GPU."""

    @settings(max_examples=120)
    @given(
        model=st.sampled_from(MODELS), gpu=st.sampled_from(GPUS), batch=st.integers(1, 4096), context=st.floats(1, 1e5)
    )
    def test_never_faster_than_the_datasheet(self, model: str, gpu: str, batch: int, context: float) -> None:
        a, d = architecture(model), deployed(model, gpu)
        card = find_gpu(gpu)
        assert card.memory_bandwidth is not None
        embedding = sum(m.bytes for m in a.matrices if m.reading == "lookup" and not a.tied)
        read = weight_bytes(a) - 2 * a.vectors - embedding
        if a.experts:
            x = a.experts
            unread = x.experts - float(touched_experts(batch, experts=x.experts, per_token=x.per_token, skew=1.5))
            read -= x.layers * unread * x.expert_bytes
            skewed = dataclasses.replace(d.engine, routing_skew=1.5)
            d = dataclasses.replace(d, engine=skewed)
        cache_bytes = sum(
            p.count * 2 * (p.cache_elements * min(context, p.window or math.inf) + p.index_elements * context)
            for p in a.attention
        )
        least = (read + batch * (cache_bytes + state_bytes(a))) / card.memory_bandwidth
        peaks = [f for f in (card.peak_flops, card.fp8_flops, card.fp4_flops) if f]
        least = max(least, batch * flops_per_token(a, context) / max(peaks))
        assert float(total(d, batch=batch, context=context)) >= least

    @settings(max_examples=100)
    @given(
        model=st.sampled_from(MODELS),
        gpu=st.sampled_from(GPUS),
        tp=st.sampled_from((1, 2, 4, 8)),
        context=st.floats(0, 1e5),
        engine=st.sampled_from(("vllm", "sglang", "trtllm")),
    )
    def test_time_rises_and_throughput_does_not_fall_with_the_batch(
        self, model: str, gpu: str, tp: int, context: float, engine: str
    ) -> None:
        try:
            d = deployed(model, gpu, tp, engine=engine)
        except InputError:
            return
        n = np.unique(np.geomspace(1, 8192, 60).round())
        t = total(d, batch=n, context=context)
        assert np.all(np.diff(t) >= -1e-12 * t[1:])
        assert np.all(np.diff(n / t) >= -1e-9 * (n / t)[1:])

    @settings(max_examples=100)
    @given(model=st.sampled_from(MODELS), gpu=st.sampled_from(GPUS), batch=st.integers(1, 1000))
    def test_time_rises_with_the_context(self, model: str, gpu: str, batch: int) -> None:
        context = np.geomspace(1, 1e6, 50)
        t = total(deployed(model, gpu), batch=batch, context=context)
        assert np.all(np.diff(t) >= -1e-12 * t[1:])

    @given(model=st.sampled_from(SMALL), sizes=st.lists(st.integers(1, 512), min_size=1, max_size=8, unique=True))
    def test_padding_rounds_up_and_throughput_rises_over_captured_sizes(self, model: str, sizes: list[int]) -> None:
        d = deployed(model, "H100-SXM")
        n = np.arange(1, 600)
        padded = step_time(d, batch=n, context=0.0, graph_sizes=sizes).sum(axis=-1)
        assert np.all(padded >= total(d, batch=n, context=0.0) * (1 - 1e-12))
        assert np.all(np.diff(padded) >= -1e-12 * padded[1:])
        known = np.sort(sizes)
        t = step_time(d, batch=known, context=0.0, graph_sizes=sizes).sum(axis=-1)
        np.testing.assert_allclose(t, total(d, batch=known, context=0.0), rtol=1e-14)
        assert np.all(np.diff(known / t) > -1e-12)

    @settings(max_examples=60)
    @given(model=st.sampled_from(MODELS), gpu=st.sampled_from(GPUS))
    def test_the_kv_limit_falls_with_context_and_rises_with_memory(self, model: str, gpu: str) -> None:
        a, memory = architecture(model), float(find_gpu(gpu).usable_memory or 0)
        rooms = []
        for share in (0.5, 0.7, 0.9, 1.0):
            try:
                rooms.append(cache_room(a, memory=memory, tensor_parallel=1, memory_share=share))
            except InputError:
                continue
        context = np.geomspace(1, 1e6, 40)
        limits = [room.concurrency_max(context) for room in rooms]
        for limit in limits:
            assert np.all(np.diff(limit) <= 0)
        for low, high in itertools.pairwise(limits):
            assert np.all(high >= low)

    def test_critical_batches_are_ordered_as_bytes_say(self) -> None:
        """The batch whose cache takes as long to read as the weights: dense, experts, latent, hybrid."""
        names = ("Llama-3.1-8B", "Llama-3.1-70B", "DeepSeek-V3", "Qwen3-235B-A22B", "Qwen3.5-397B-A17B")
        batch, context = np.arange(1.0, 3000.0), 8192.0
        found, bytes_say = [], []
        for name in names:
            parts = step_time(deployed(name, "H200-SXM", 8), batch=batch, context=context)
            found.append(float(batch[np.argmax(parts[:, 2] >= parts[:, 0] + parts[:, 1])]))
            room = cache_room(architecture(name), memory=1e12, tensor_parallel=8)
            bytes_say.append(room.weight_bytes / float(room.sequence_bytes(context)))
        # Rates differ between caches, weights and experts, by what kernels reach; bytes that differ by more decide.
        np.testing.assert_allclose(found, bytes_say, rtol=0.35)
        for i, j in itertools.combinations(range(len(names)), 2):
            if bytes_say[j] > 1.35 * bytes_say[i]:
                assert found[j] > found[i], (names[i], names[j])


class TestNumbers:
    def test_a_dense_step_by_hand(self) -> None:
        """Llama-3.1-8B in bf16 on one H100: 15.0 GB of weights without the embedding at .86 of 3.35 TB/s is 5.2 ms."""
        parts = step_time(deployed("Llama-3.1-8B", "H100-SXM"), batch=1, context=0.0)
        head_and_layers = 8.03e9 - 128256 * 4096
        expected = 2 * head_and_layers / (shipped()["gpu"]["H100-SXM"]["gemm_bandwidth_share"] * 3.35e12)
        assert parts[0] == pytest.approx(expected, rel=0.01)

    def test_the_cache_by_hand(self) -> None:
        """Qwen3-30B-A3B: 98,304 bytes per token; 64 sequences of 4,096 tokens are 25.8 GB."""
        d = deployed("Qwen3-30B-A3B", "H100-SXM")
        parts = step_time(d, batch=64, context=4096.0)
        expected = 64 * 4096 * 98304 / (d.efficiency.attention_bandwidth_share * 3.35e12)
        assert parts[2] == pytest.approx(expected, rel=1e-9)

    def test_tensor_parallelism_does_not_split_a_latent(self) -> None:
        one, eight = (step_time(deployed("DeepSeek-V3", "H200-SXM", tp), batch=64, context=4096.0) for tp in (1, 8))
        # On one GPU 128 heads make the latent compute-bound, so the parts are compared at the bytes' rate.
        d = deployed("DeepSeek-V3", "H200-SXM", 8)
        bytes_time = 64 * 4096 * 70272 / (d.efficiency.attention_bandwidth_share * 4.8e12)
        assert eight[2] == pytest.approx(bytes_time, rel=1e-9)
        assert one[2] >= eight[2]

    def test_published_layer_of_experts(self) -> None:
        """Table A1 of the notes: H100 reads a Qwen3-30B-A3B layer for 64 tokens in 404 us."""
        d = deployed("Qwen3-30B-A3B", "H100-SXM")
        engine = dataclasses.replace(d.engine, routing_skew=0.75)
        parts = step_time(dataclasses.replace(d, engine=engine), batch=64, context=0.0)
        layer = parts[1] / 48 + d.efficiency.expert_latency
        assert layer == pytest.approx(404e-6, rel=0.1)

    def test_the_dense_ridge(self) -> None:
        """F w/(2 BW) rows at two bytes per weight, shifted by the shares that kernels reach."""
        d = deployed("Llama-3.1-8B", "H100-SXM")
        found = float(ridge(d)["ridge_batch"].sel(part="dense"))
        e = d.efficiency
        assert found == pytest.approx(989.5e12 * e.gemm_compute_share / (3.35e12 * e.gemm_bandwidth_share), rel=1e-9)
        assert float(ridge(d)["ridge_intensity"]) == pytest.approx(989.5e12 / 3.35e12)
        assert math.isnan(float(ridge(d)["ridge_batch"].sel(part="experts")))

    def test_experts_turn_later_by_e_over_k(self) -> None:
        d = deployed("Qwen3-30B-A3B", "H100-SXM")
        dense, experts = ridge(d)["ridge_batch"].values
        e = d.efficiency
        shares = (e.expert_compute_share / e.gemm_compute_share) * (e.gemm_bandwidth_share / e.expert_bandwidth_share)
        assert experts / dense == pytest.approx(128 / 8 * shares, rel=1e-9)


class TestLaw:
    @settings(max_examples=40)
    @given(
        model=st.sampled_from(SMALL),
        gpu=st.sampled_from(("H100-SXM", "B200-SXM", "L40S")),
        batch=st.integers(1, 64),
        context=st.floats(1, 60_000),
    )
    def test_equals_the_step(self, model: str, gpu: str, batch: int, context: float) -> None:
        d = deployed(model, gpu)
        law = decode_law(d, concurrency=64)
        t = law.step_time[batch] + batch * (
            law.context_time * context + law.window_time * (min(context, law.window) if law.window else 0.0)
        )
        assert t == pytest.approx(float(total(d, batch=batch, context=context)), rel=1e-12)

    @settings(max_examples=40)
    @given(model=st.sampled_from(SMALL), contexts=st.lists(st.floats(0, 50_000), min_size=1, max_size=40))
    def test_contexts_of_different_lengths(self, model: str, contexts: list[float]) -> None:
        d = deployed(model, "H100-SXM")
        law = decode_law(d, concurrency=40)
        window = np.minimum(contexts, law.window) if law.window else np.zeros(len(contexts))
        expected = law.step_time[len(contexts)] + law.context_time * np.sum(contexts) + law.window_time * np.sum(window)
        assert batch_step_time(d, contexts) == pytest.approx(float(expected), rel=1e-12)
        same = [contexts[0]] * len(contexts)
        at_once = float(total(d, batch=len(contexts), context=contexts[0]))
        assert batch_step_time(d, same) == pytest.approx(at_once, rel=1e-12)

    def test_prefill_slope_is_near_the_prefill_itself(self) -> None:
        d = deployed("Llama-3.1-8B", "H100-SXM")
        law = decode_law(d, concurrency=64)
        alone = float(prefill_time(d, prompt=8192.0))
        linear = 8192 * law.prefill_time + 8192 * 8193 / 2 * law.prefill_context_time
        # Beside a decode batch the weights are streamed anyway; the engine's factor is .93.
        assert linear == pytest.approx(alone, rel=0.15)

    def test_the_table_starts_at_nothing_and_rises(self) -> None:
        law = decode_law(deployed("gpt-oss-120b", "H100-SXM"), concurrency=300)
        assert law.step_time[0] == 0
        assert np.all(np.diff(law.step_time) >= 0)
        assert law.window == 128
        assert "gpt-oss-120b" in law.name
        assert "vllm" in law.name


class TestEfficiency:
    def test_a_gpu_without_tables_says_so(self) -> None:
        d = deployed("Qwen3-8B", "MI300X")
        assert d.efficiency.source.startswith("generic, from A100-80-SXM")
        assert deployed("Qwen3-8B", "H100-SXM").efficiency.source == "kernel tables"

    def test_generic_is_the_geometric_mean_of_the_others(self) -> None:
        rows = shipped()["gpu"]
        own = [row["gemm_latency"] for name, row in rows.items() if name != "H100-SXM" and "gemm_latency" in row]
        found = efficiency("H100-SXM", without=("H100-SXM",)).gemm_latency
        assert found == pytest.approx(float(np.exp(np.mean(np.log(own)))), rel=1e-12)

    def test_shares_are_shares(self) -> None:
        for name in [*shipped()["gpu"], "nothing known"]:
            found = efficiency(name)
            for f in dataclasses.fields(Efficiency):
                value = getattr(found, f.name)
                if f.name.endswith("share"):
                    assert np.all(np.array(value) > 0), (name, f.name)
                    assert np.all(np.array(value) <= 1), (name, f.name)
                elif f.name not in ("gpu", "source"):
                    assert np.all(np.array(value) > 0), (name, f.name)
                    assert np.all(np.array(value) < 1e-3), (name, f.name)

    def test_all_reduce_between_measured_sizes(self) -> None:
        e = efficiency("H100-SXM")
        assert e.all_reduce(2) == (e.all_reduce_latency[0], e.all_reduce_link_share[0])
        low, high = sorted((e.all_reduce_latency[1], e.all_reduce_latency[2]))
        assert low <= e.all_reduce(6)[0] <= high

    def test_engines(self) -> None:
        assert overhead("vllm").rows > overhead("vllm", without="B200-SXM").rows
        assert all(getattr(overhead("sglang"), name) > 0 for name in FITTED)
        with pytest.raises(InputError, match=r"no overheads of engine 'vlm'.*vllm"):
            overhead("vlm")
        with pytest.raises(InputError, match=r"no fit of vllm leaves out A100"):
            overhead("vllm", without="A100-80-SXM")
        low, high = model_error("vllm", tables=True)
        assert 0.5 < low < 1 < high < 2


class TestDataset:
    def test_variables_are_of_the_vocabulary(self) -> None:
        ds = decode_time(deployed("Qwen3-8B", "H100-SXM"), batch=[1, 8, 64], context=2048.0)
        assert set(ds.variables) <= set(VARIABLES)
        assert ds["decode_step_time"].attrs["units"] == "s"
        assert ds["decode_throughput"].attrs["units"] == "tokens/s"
        parts = sum(ds[name].values for name in PARTS)
        np.testing.assert_allclose(parts, ds["decode_step_time"].values, rtol=1e-14)
        np.testing.assert_allclose(ds["decode_throughput"], ds["concurrency"] / ds["decode_step_time"])

    def test_what_binds(self) -> None:
        d = deployed("Llama-3.1-8B", "H100-SXM")
        ds = decode_time(d, batch=[1, 512], context=[100.0, 16_000.0])
        assert list(ds["binding_limit"].values) == ["weights", "KV cache"]


class TestBadInput:
    def test_parallelism_that_divides_nothing(self) -> None:
        a, gpu = architecture("Qwen3-8B"), find_gpu("H100")
        with pytest.raises(InputError, match=r"tensor_parallel 3 does not divide the 32 query heads.*1, 2, 4, 8"):
            deploy(a, gpu, tensor_parallel=3)
        with pytest.raises(InputError, match=r"tensor_parallel 16 exceeds the 8 GPUs"):
            deploy(a, gpu, tensor_parallel=16)
        with pytest.raises(InputError, match=r"expert_parallel 2: .*has no experts"):
            deploy(a, gpu, expert_parallel=2)
        with pytest.raises(InputError, match=r"expert_parallel 3 does not divide 128 experts"):
            deploy(architecture("Qwen3-30B-A3B"), gpu, expert_parallel=3)
        with pytest.raises(InputError, match=r"must be at least 1"):
            deploy(a, gpu, tensor_parallel=0)

    def test_a_gpu_without_numbers(self) -> None:
        a = architecture("Qwen3-8B")
        with pytest.raises(InputError, match=r"has no memory_bandwidth and no peak_flops"):
            deploy(a, GPU(name="mine", memory=8e10))
        with pytest.raises(InputError, match=r"needs the link between GPUs"):
            deploy(a, GPU(name="mine", memory_bandwidth=1e12, peak_flops=1e14), tensor_parallel=2)

    @pytest.mark.parametrize(
        ("at", "said"),
        [
            ({"batch": -1.0, "context": 1.0}, r"batch -1 is outside"),
            ({"batch": 1.0, "context": math.nan}, r"context nan is outside"),
            ({"batch": 1.0, "context": math.inf}, r"context inf is outside"),
            ({"batch": 1e7, "context": 1.0}, r"batch 1e\+07 is outside"),
            ({"batch": 1.0, "context": 1.0, "prompt": -5.0}, r"prompt -5 is outside"),
        ],
    )
    def test_numbers_out_of_bounds(self, at: dict[str, Any], said: str) -> None:
        with pytest.raises(InputError, match=said):
            step_time(deployed("Qwen3-8B", "H100-SXM"), **at)

    def test_others(self) -> None:
        d = deployed("Qwen3-8B", "H100-SXM")
        with pytest.raises(InputError, match=r"batch 0 is below 1"):
            decode_time(d, batch=[0, 1], context=1.0)
        with pytest.raises(InputError, match="no sequences"):
            batch_step_time(d, [])
        with pytest.raises(InputError, match="a context is outside"):
            batch_step_time(d, [1.0, math.nan])
        with pytest.raises(InputError, match=r"concurrency 0 is below 1"):
            decode_law(d, concurrency=0)
        with pytest.raises(InputError, match=r"cache_bits 64"):
            deploy(architecture("Qwen3-8B"), find_gpu("H100"), cache_bits=64)


class TestMemory:
    def test_weights_that_do_not_fit(self) -> None:
        a = architecture("DeepSeek-V3")
        with pytest.raises(InputError, match=r"GB of weights on each of 8 GPUs.*GB more than 0.9 of.*use 16 GPUs"):
            cache_room(a, memory=85.5e9, tensor_parallel=8)

    def test_a_gpu_holds_its_share(self) -> None:
        a = quantised(architecture("Llama-3.1-70B"), "fp8")
        room = cache_room(a, memory=143771 * 2**20, tensor_parallel=2)
        assert room.weight_bytes == pytest.approx(weight_bytes(a) / 2, rel=1e-3)
        assert room.token_bytes == pytest.approx(kv_bytes_per_token(a) / 2)
        assert float(room.concurrency_max(8192)) == math.floor(room.free_bytes / (8192 * 163_840))

    def test_a_window_stops_growing_and_a_state_is_constant(self) -> None:
        room = cache_room(architecture("gpt-oss-120b"), memory=8e10)
        assert room.window == 128
        slope = np.diff(room.sequence_bytes([64.0, 65.0])), np.diff(room.sequence_bytes([5000.0, 5001.0]))
        assert slope[0][0] == pytest.approx(2 * slope[1][0])
        hybrid = cache_room(architecture("Nemotron-H-56B-Base-8K"), memory=1.4e11)
        assert hybrid.state_bytes == state_bytes(architecture("Nemotron-H-56B-Base-8K"))
        assert float(hybrid.sequence_bytes(0.0)) == hybrid.state_bytes

    @given(model=st.sampled_from(SMALL), block=st.sampled_from((8, 16, 32, 64)))
    def test_blocks_never_promise_more_than_bytes(self, model: str, block: int) -> None:
        room = cache_room(architecture(model), memory=1.6e12)
        blocks, fixed = room.blocks(block)
        assert blocks * block * room.token_bytes <= room.free_bytes
        assert fixed * block * room.token_bytes >= room.window_bytes * room.window + room.state_bytes - 1e-6

    def test_remedies_name_numbers(self) -> None:
        room = cache_room(architecture("Qwen3-30B-A3B"), memory=8.5e10, tensor_parallel=2)
        limit = float(room.concurrency_max(4096))
        said = " ".join(room.remedies(4096, 2 * limit))
        assert "tokens" in said
        assert "fp8" in said
        assert "beyond 2" in said
