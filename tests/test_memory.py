from __future__ import annotations

import math

import naive
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from batchsim.errors import InputError
from batchsim.system.memory import concurrency_max

# An 8B model in bf16 on 80 GB: 32 layers x 8 KV heads x 128 x 2 x 2 bytes = 131,072 bytes per token.
LLAMA_8B = {
    "memory": 80e9,
    "memory_share": 0.9,
    "weight_bytes": 16.06e9,
    "kv_bytes_per_token": 131_072.0,
    "context_length": 1024.0,
}


class TestConcurrency:
    @given(
        tensor_parallel=st.integers(1, 8),
        memory=st.floats(10e9, 100e9),
        weights=st.floats(1e9, 50e9),
        context=st.floats(500, 50_000),
        cap=st.integers(1, 512),
    )
    def test_against_admitting_one_at_a_time(
        self, tensor_parallel: int, memory: float, weights: float, context: float, cap: int
    ) -> None:
        kv = 131_072.0
        free = 0.9 * memory * tensor_parallel - weights
        assume(free > 1.001 * kv * context)
        # Off whole numbers, where the sum of the walk rounds.
        assume(0.001 < free / (kv * context) % 1 < 0.999)
        admitted = naive.concurrency(0.9 * memory * tensor_parallel, weights, kv, context, cap)
        held, limit = concurrency_max(
            gpus=tensor_parallel,
            tensor_parallel=tensor_parallel,
            max_num_seqs=cap,
            memory=memory,
            weight_bytes=weights,
            kv_bytes_per_token=kv,
            context_length=context,
        )
        assert held == admitted
        assert limit == ("KV memory" if free / (kv * context) < cap else "max_num_seqs")

    def test_a_known_model(self) -> None:
        held, limit = concurrency_max(gpus=1, tensor_parallel=1, **LLAMA_8B)
        assert held == math.floor((0.9 * 80e9 - 16.06e9) / (131_072 * 1024))
        assert (held, limit) == (416, "KV memory")

    def test_replicas_add_and_left_over_gpus_idle(self) -> None:
        one, _ = concurrency_max(gpus=2, tensor_parallel=2, **LLAMA_8B)
        three, _ = concurrency_max(gpus=7, tensor_parallel=2, **LLAMA_8B)
        assert three == 3 * one

    @pytest.mark.parametrize("missing", ["memory", "weight_bytes", "kv_bytes_per_token", "context_length"])
    def test_without_all_of_memory_only_the_cap_binds(self, missing: str) -> None:
        known: dict[str, float] = {k: v for k, v in LLAMA_8B.items() if k != missing}
        assert concurrency_max(gpus=4, tensor_parallel=1, max_num_seqs=64, **known) == (256, "max_num_seqs")
        assert concurrency_max(gpus=4, tensor_parallel=1, **known) == (math.inf, "")


class TestRefusals:
    def test_no_replica(self) -> None:
        with pytest.raises(InputError, match=r"4 GPUs hold no replica of 8 GPUs; lower tensor_parallel"):
            concurrency_max(gpus=4, tensor_parallel=8)

    def test_weights_do_not_fit(self) -> None:
        with pytest.raises(
            InputError, match=r"weights of 140 GB do not fit in 0.9 of 1 x 80 GB; raise tensor_parallel"
        ):
            concurrency_max(gpus=8, tensor_parallel=1, **{**LLAMA_8B, "weight_bytes": 140e9})

    def test_not_one_response_fits(self) -> None:
        with pytest.raises(InputError, match=r"hold no response of 1e\+06 tokens; raise tensor_parallel, or lower"):
            concurrency_max(gpus=8, tensor_parallel=1, **{**LLAMA_8B, "context_length": 1e6})
