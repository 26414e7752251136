r"""The rollout engine and trainer of a plan: how stages compose and what is known of their times.

Times come in one of two forms. Either the stage laws themselves,

    t_gen = max(d_0 + d_1 B_gen, B_gen/q_gen_max),   t_train = c + gamma R,

or a few observations of a pilot (`[[engine.observed]]`): the throughput, or only its ratio to the
reference, at some batches. Without either and without logs, r_q stays a prior.
"""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from batchsim.errors import InputError
from batchsim.specs.quantity import (
    BytesPerSecond,
    CacheBits,
    Count,
    PositiveSeconds,
    Ratio,
    ResponsesPerSecond,
    Seconds,
    SecondsPerResponse,
    Share,
)


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class ObservedThroughput:
    """One pilot's throughput.

    Parameters
    ----------
    prompts : int [prompts]
        At the recipe's group size.
    step_seconds : float or None [s]
        Mean steady time of a rollout step.
    throughput_ratio : float or None [1]
        Or its throughput relative to the reference recipe.
    relative_error : float [1]
        Standard error over value.
    """

    prompts: Count
    step_seconds: PositiveSeconds | None = None
    throughput_ratio: Ratio | None = None
    relative_error: Share = 0.02

    def __post_init__(self) -> None:
        if (self.step_seconds is None) == (self.throughput_ratio is None):
            raise InputError(
                f"observed throughput at {self.prompts} prompts needs exactly one of step_seconds and throughput_ratio"
            )


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Engine:
    """Engine, trainer and their composition.

    Parameters
    ----------
    mode : {'sync', 'partial', 'async'}
        Partial rollouts go on under new weights; asynchronous generation has GPUs of its own.
    name : {'vllm', 'sglang', 'trtllm'}
    tensor_parallel, expert_parallel : int [GPU]
        GPUs per generation replica, and GPUs that share the experts.
    cache_bits : float [bit]
        Per element of the KV cache.
    network_bandwidth : float or None [B/s]
        Between nodes, per GPU, for replicas and synchronisation across nodes.
    max_num_batched_tokens : int [tokens]
        Budget of an engine step.
    max_staleness : int [1]
        Versions that asynchronous generation may run ahead.
    max_num_seqs : int or None [responses]
        Cap on concurrent responses per replica.
    memory_share : float [1]
        Share of GPU memory given to the engine.
    gen_time_intercept : float or None [s]
    gen_time_slope : float or None [s/response]
    gen_throughput_max : float or None [responses/s]
    train_time_intercept, overhead_time : float [s]
    train_time_per_response : float [s/response]
    kept_share : float [1]
        Share of the generated responses that filtering keeps.
    observed : tuple of ObservedThroughput
    """

    mode: Literal["sync", "partial", "async"] = "sync"
    name: Literal["vllm", "sglang", "trtllm"] = "vllm"
    tensor_parallel: Count = 1
    expert_parallel: Count = 1
    cache_bits: CacheBits = 16.0
    network_bandwidth: BytesPerSecond | None = None
    max_num_batched_tokens: Count = 8192
    max_staleness: Count = 1
    max_num_seqs: Count | None = None
    memory_share: Share = 0.9
    gen_time_intercept: Seconds | None = None
    gen_time_slope: SecondsPerResponse | None = None
    gen_throughput_max: ResponsesPerSecond | None = None
    train_time_intercept: Seconds = 0.0
    train_time_per_response: SecondsPerResponse = 0.0
    overhead_time: Seconds = 0.0
    kept_share: Share = 1.0
    observed: tuple[ObservedThroughput, ...] = ()

    def __post_init__(self) -> None:
        if (self.gen_time_intercept is None) != (self.gen_time_slope is None):
            raise InputError("gen_time_intercept and gen_time_slope belong together; give both or neither")
        if self.gen_time_slope == 0 and self.gen_time_intercept == 0:
            raise InputError("a generation time of 0 has no throughput", remedy="give the time of a pilot")
