"""Lengths of prompts and responses, as far as memory needs them."""

from __future__ import annotations

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from batchsim.specs.quantity import Tokens


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Lengths:
    """Mean lengths.

    Parameters
    ----------
    prompt_mean, response_mean : float or None [tokens]
    """

    prompt_mean: Tokens | None = None
    response_mean: Tokens | None = None

    @property
    def context_in_flight(self) -> float | None:
        """Mean context of a response in flight: its prompt and half of its response [tokens]."""
        if self.response_mean is None:
            return None
        return (self.prompt_mean or 0.0) + self.response_mean / 2
