r"""Lengths of prompts and responses: means for memory, and a distribution for the rollout.

Every length is one of responses as they are cut: at `max_tokens` a response ends, and is counted as truncated. A
response of several turns generates, waits for its environment, which appends tokens, and goes on; in between its KV
cache is kept until something else needs the room, or given back at once.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Literal

from annotated_types import Ge, Le
from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from batchsim.errors import InputError
from batchsim.specs.quantity import Count, Seconds, Tokens, _number

Spread = Annotated[float, Ge(0), Le(5), Field(allow_inf_nan=False), BeforeValidator(_number)]
Turns = Annotated[float, Ge(1), Le(1e4), Field(allow_inf_nan=False), BeforeValidator(_number)]
Appended = Annotated[float, Ge(0), Le(1e7), Field(allow_inf_nan=False), BeforeValidator(_number)]
Growth = Annotated[float, Ge(0.01), Le(100), Field(allow_inf_nan=False), BeforeValidator(_number)]
Between = Annotated[float, Ge(0), Le(1), Field(allow_inf_nan=False), BeforeValidator(_number)]


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Lengths:
    """Lengths of prompts and responses.

    Parameters
    ----------
    prompt_mean, response_mean : float or None [tokens]
    prompt_spread, response_spread : float [1]
        Standard deviations of the logarithm; of responses before they are cut.
    distribution : {'lognormal', 'fixed', 'empirical'}
        Of responses.
    response_p50, response_p90, response_p99 : float or None [tokens]
        Percentiles in the place of `response_spread`.
    response_sample : tuple of int [tokens]
        Lengths that were seen, for 'empirical'.
    group_share : float [1]
        Share of the log variance that lies between prompts.
    max_tokens : int or None [tokens]
        Where a response is cut.
    turns : float [1]
        Mean number of turns.
    environment_seconds, environment_spread : float [s], [1]
        Mean time of the environment between two turns, and the standard deviation of its logarithm.
    environment_tokens : float [tokens]
        Appended between two turns.
    response_growth : float [1]
        Mean response at the target over that at the start, which the other keys state; linear in the samples between.
    keep_kv : bool
        Whether a waiting response keeps its cache while there is room.
    """

    prompt_mean: Tokens | None = None
    response_mean: Tokens | None = None
    prompt_spread: Spread = 0.0
    response_spread: Spread = 0.7
    distribution: Literal["lognormal", "fixed", "empirical"] = "lognormal"
    response_p50: Tokens | None = None
    response_p90: Tokens | None = None
    response_p99: Tokens | None = None
    response_sample: tuple[Count, ...] = ()
    group_share: Between = 0.0
    max_tokens: Count | None = None
    turns: Turns = 1.0
    environment_seconds: Seconds = 0.0
    environment_spread: Spread = 0.0
    environment_tokens: Appended = 0.0
    response_growth: Growth = 1.0
    keep_kv: bool = True

    def __post_init__(self) -> None:
        if (self.distribution == "empirical") != bool(self.response_sample):
            raise InputError(
                f"distribution '{self.distribution}' with {len(self.response_sample)} lengths in response_sample",
                remedy="distribution = 'empirical' and response_sample belong together",
            )
        stated = [p for p in (self.response_p50, self.response_p90, self.response_p99) if p is not None]
        if stated != sorted(stated):
            raise InputError(f"percentiles {', '.join(f'{p:g}' for p in stated)} do not rise")
        if self.max_tokens is not None and self.response_mean is not None and self.response_mean > self.max_tokens:
            raise InputError(
                f"response_mean {self.response_mean:g} lies above max_tokens {self.max_tokens}",
                remedy="raise max_tokens, or state the mean of the responses as cut",
            )
        end = (self.response_mean or 0.0) * self.response_growth
        if self.max_tokens is not None and end > self.max_tokens:
            raise InputError(
                f"response_growth {self.response_growth:g} takes the mean response from {self.response_mean:g} to "
                f"{end:g}, above max_tokens {self.max_tokens}",
                remedy=f"lower it below {self.max_tokens / (self.response_mean or 1):.3g}, or raise max_tokens",
            )

    def at(self, progress: float) -> Lengths:
        """Lengths at a share of the way to the target.

        Parameters
        ----------
        progress : float in [0, 1] [1]

        Returns
        -------
        Lengths
            Without growth of their own; percentiles and samples as far as max_tokens.
        """
        factor = 1 + (self.response_growth - 1) * progress
        limit = self.max_tokens or math.inf

        def grown(value: float | None) -> float | None:
            return None if value is None else min(value * factor, limit)

        return replace(
            self,
            response_growth=1.0,
            response_mean=grown(self.response_mean),
            response_p50=grown(self.response_p50),
            response_p90=grown(self.response_p90),
            response_p99=grown(self.response_p99),
            response_sample=tuple(max(1, round(min(n * factor, limit))) for n in self.response_sample),
        )

    @property
    def context_in_flight(self) -> float | None:
        """Mean context of a response in flight [tokens]: its prompt and half of its response, as for equal lengths.

        Where lengths spread and slots are refilled at once it is larger (`system.rollout.lengths.steady_context`).
        """
        mean = self.response_mean
        if mean is None and self.response_sample:
            mean = math.fsum(self.response_sample) / len(self.response_sample)
        if mean is None:
            return None
        return (self.prompt_mean or 0.0) + mean / 2
