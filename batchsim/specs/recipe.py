r"""The training recipe: prompts, group size, updates per rollout step, learning rate and its rule.

    rollout_batch = P G                 kept responses per rollout step
    train_batch   = P G E / M           kept responses per optimizer update

with M updates and E passes over the data of one rollout step. Both are whole numbers or the recipe is
refused: a batch that does not divide is padded or dropped by a trainer, silently.
"""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from batchsim.errors import InputError
from batchsim.specs.quantity import Count, LearningRate, Ratio


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Recipe:
    """A GRPO or PPO recipe at the reference batch.

    Parameters
    ----------
    prompts : int [prompts]
        P, prompt groups kept per rollout step.
    group_size : int [responses/prompt]
        G; 1 for PPO.
    updates_per_rollout, epochs : int [1]
        M and E.
    gen_ratio : float [1]
        Responses launched or in flight per kept response of a rollout step.
    learning_rate : float or None [1]
    lr_rule : str
        How the learning rate follows the batch.
    max_learning_rate : float or None [1]
        Largest rate that training survives.
    optimizer : {'adam', 'sgd'}
    batches : tuple of int [responses]
        Candidate train batches; empty means the reference times 2^k, k = -2 ... 6.

    Raises
    ------
    InputError
        If P G E / M is not a whole number, or the ceiling lies below the learning rate.
    """

    prompts: Count
    group_size: Count = 1
    updates_per_rollout: Count = 1
    epochs: Count = 1
    gen_ratio: Ratio = 1.0
    learning_rate: LearningRate | None = None
    lr_rule: Literal["fixed", "sqrt", "linear", "tuned", "invariant"] = "sqrt"
    max_learning_rate: LearningRate | None = None
    optimizer: Literal["adam", "sgd"] = "adam"
    batches: tuple[Count, ...] = ()

    def __post_init__(self) -> None:
        passes = self.rollout_batch * self.epochs
        if passes % self.updates_per_rollout:
            raise InputError(
                f"{self.prompts} prompts x {self.group_size} responses x {self.epochs} epochs do not divide "
                f"into {self.updates_per_rollout} updates per rollout step",
                remedy="choose prompts so that the train batch is a whole number of responses",
            )
        if self.max_learning_rate is not None and self.learning_rate is None:
            raise InputError("max_learning_rate needs a learning_rate to compare with")
        if self.max_learning_rate and self.learning_rate and self.max_learning_rate < self.learning_rate:
            raise InputError(
                f"max_learning_rate {self.max_learning_rate:g} lies below learning_rate {self.learning_rate:g}",
                remedy="raise it, or lower the reference rate",
            )

    @property
    def rollout_batch(self) -> int:
        """Kept responses per rollout step, P G [responses]."""
        return self.prompts * self.group_size

    @property
    def train_batch(self) -> int:
        """Kept responses per optimizer update, P G E / M [responses]."""
        return self.rollout_batch * self.epochs // self.updates_per_rollout
