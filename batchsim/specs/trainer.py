"""The trainer of a plan: how the model is divided over the GPUs that train it, and what a step computes."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from batchsim.specs.quantity import Count, Share


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class TrainerSpec:
    """How a rollout step is trained, where its time is modelled from specifications.

    Parameters
    ----------
    tensor_parallel, pipeline_parallel, context_parallel, expert_parallel : int [GPU]
    micro_batch_tokens : int or None [tokens]
        Room of a micro-batch on a data-parallel rank; the longest sequence, at least 16,384, if neither is given.
    micro_batch_sequences : int or None [sequences]
        In the place of tokens.
    packing : float in (0, 1] [1]
        Share of a micro-batch's tokens that are not padding.
    recompute : {'none', 'selective', 'full'}
    sharding : {'full', 'optimizer', 'none'}
        Over data-parallel ranks: of all states (FSDP), of the optimizer's (ZeRO-1), of nothing.
    offload : bool
        Kept activations go to the host's memory.
    lora_rank : int or None [1]
    old_logprobs, reference : bool
        Forward passes for old log-probabilities, and for those of a reference policy.
    critic : bool
        A critic of the policy's size: a pass for values and an update beside each of the policy's.
    """

    tensor_parallel: Count = 1
    pipeline_parallel: Count = 1
    context_parallel: Count = 1
    expert_parallel: Count = 1
    micro_batch_tokens: Count | None = None
    micro_batch_sequences: Count | None = None
    packing: Share = 1.0
    recompute: Literal["none", "selective", "full"] = "full"
    sharding: Literal["full", "optimizer", "none"] = "full"
    offload: bool = False
    lora_rank: Count | None = None
    old_logprobs: bool = True
    reference: bool = False
    critic: bool = False
