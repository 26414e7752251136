r"""Lengths of responses as they are drawn: lognormal, fixed, or resampled from what was seen.

Lengths of reasoning responses are close to lognormal up to a limit of tokens, where they are cut. With log mean m and
log standard deviation s, the mean of what is seen is that of min(X, M):

    E min(X, M) = exp(m + s^2/2) Phi((ln M - m - s^2)/s) + M Phi((m - ln M)/s)

and m follows from a stated mean, which is one of cut lengths. With percentiles instead of s, both are fitted by least
squares in the logarithm, and the largest error says how far from lognormal the numbers are. Responses to one prompt
resemble each other: a share of the log variance lies between prompts. Long responses are in flight for longer, so that
the mean context in flight asks for the second moment too:

    E min(X, M)^2 = exp(2m + 2 s^2) Phi((ln M - m - 2 s^2)/s) + M^2 Phi((m - ln M)/s)

Rewards: the pass rate p of a prompt is Beta distributed with mean a/(a+b) and concentration a+b. A group is dropped
if its G rewards are all equal, which has the probability

    E[p^G + (1 - p)^G] = B(a + G, b)/B(a, b) + B(a, b + G)/B(a, b)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchsim.errors import InputError, nearest
from batchsim.specs.lengths import Lengths

Ints = NDArray[np.int64]
DISTRIBUTIONS = ("lognormal", "fixed", "empirical")


@dataclass(frozen=True, kw_only=True)
class Lognormal:
    """Lengths before they are cut.

    Parameters
    ----------
    log_mean, log_deviation : float [1]
    log_error : float [1]
        Largest |log(fitted/stated)| over what it was fitted to.
    """

    log_mean: float
    log_deviation: float
    log_error: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Arrays for `rollout`.

    Parameters
    ----------
    prompt_tokens : ndarray of int, (response,) [tokens]
    response_tokens : ndarray of int, (response,) or (response, turn) [tokens]
    truncated : ndarray of bool, (response,)
        Responses that the limit has cut.
    environment_tokens, environment_seconds : ndarray, (response, turn - 1) [tokens], [s]
    """

    prompt_tokens: Ints
    response_tokens: Ints
    truncated: NDArray[np.bool_]
    environment_tokens: Ints
    environment_seconds: NDArray[np.float64]


def truncated_mean(fit: Lognormal, max_tokens: float) -> float:
    """Mean of lengths cut at a limit, E min(X, M) [tokens]."""
    from scipy.special import ndtr

    m, s = fit.log_mean, fit.log_deviation
    if s == 0:
        return min(math.exp(m), max_tokens)
    whole = math.exp(m + s * s / 2)
    if math.isinf(max_tokens):
        return whole
    high = math.log(max_tokens)
    return float(whole * ndtr((high - m - s * s) / s) + max_tokens * ndtr((m - high) / s))


def lognormal_of_mean(mean: float, spread: float, *, max_tokens: float = math.inf) -> Lognormal:
    """Lognormal of which the cut lengths have a mean.

    Parameters
    ----------
    mean : float [tokens]
        Of lengths cut at `max_tokens`.
    spread : float [1]
        Standard deviation of the logarithm before they are cut.
    max_tokens : float [tokens]

    Returns
    -------
    Lognormal

    Raises
    ------
    InputError
        If the limit is not above the mean.
    """
    if mean >= max_tokens:
        raise InputError(
            f"a mean of {mean:g} tokens cannot be reached below a limit of {max_tokens:g}",
            remedy="raise max_tokens, or state the mean of the responses as cut",
        )
    from scipy.optimize import brentq

    def excess(log_mean: float) -> float:
        return truncated_mean(Lognormal(log_mean=log_mean, log_deviation=spread), max_tokens) - mean

    low = math.log(mean) - spread**2 / 2
    high = low
    while excess(high) < 0:
        high += max(spread, 0.1)
    root = low if high == low else float(brentq(excess, low, high, xtol=1e-12))
    return Lognormal(log_mean=root, log_deviation=spread)


def fit_lognormal(
    percentiles: Mapping[float, float], *, mean: float | None = None, max_tokens: float = math.inf
) -> Lognormal:
    """Lognormal nearest to percentiles and a mean, all of cut lengths.

    Parameters
    ----------
    percentiles : mapping from float in (0, 100) to float [tokens]
        As {50: 1800, 90: 5200}.
    mean : float or None [tokens]
    max_tokens : float [tokens]

    Returns
    -------
    Lognormal
        `log_error` says how well they are met.

    Raises
    ------
    InputError
        For fewer than two numbers, or percentiles that do not rise.
    """
    from scipy.optimize import least_squares
    from scipy.special import ndtri

    levels = np.array(sorted(percentiles))
    values = np.array([percentiles[p] for p in levels])
    if levels.size + (mean is not None) < 2:
        raise InputError("a lognormal needs two of: mean, percentiles", remedy="state a spread, or another percentile")
    if (levels <= 0).any() or (levels >= 100).any() or (np.diff(values) < 0).any() or (values <= 0).any():
        raise InputError(
            f"percentiles {dict(percentiles)} do not rise", remedy="as {50: 1800, 90: 5200}, positive and rising"
        )
    # A percentile at the limit only says that as many are cut.
    known = values < max_tokens
    if known.sum() + (mean is not None) < 2:
        raise InputError(
            "too many percentiles lie at max_tokens to fit a lognormal", remedy="state the mean, or a spread"
        )
    z = ndtri(levels[known] / 100)

    def errors(x: NDArray[np.float64]) -> NDArray[np.float64]:
        fit = Lognormal(log_mean=float(x[0]), log_deviation=float(np.exp(x[1])))
        off = fit.log_mean + fit.log_deviation * z - np.log(values[known])
        if mean is None:
            return np.asarray(off)
        return np.append(off, math.log(truncated_mean(fit, max_tokens) / mean))

    start = [math.log(values[known][0] if known.any() else mean or 1.0), math.log(0.7)]
    x = least_squares(errors, start, xtol=1e-12, ftol=1e-12).x
    return Lognormal(log_mean=float(x[0]), log_deviation=float(np.exp(x[1])), log_error=float(np.abs(errors(x)).max()))


def response_law(lengths: Lengths) -> Lognormal:
    """The lognormal that a plan's lengths describe.

    Raises
    ------
    InputError
        If they describe none.
    """
    limit = math.inf if lengths.max_tokens is None else float(lengths.max_tokens)
    percentiles = {50.0: lengths.response_p50, 90.0: lengths.response_p90, 99.0: lengths.response_p99}
    stated = {p: v for p, v in percentiles.items() if v is not None}
    if stated:
        return fit_lognormal(stated, mean=lengths.response_mean, max_tokens=limit)
    if lengths.response_mean is None:
        raise InputError("lengths state no response_mean", remedy="state it, or percentiles, or a sample")
    return lognormal_of_mean(lengths.response_mean, lengths.response_spread, max_tokens=limit)


def steady_context(lengths: Lengths) -> float | None:
    """Mean context of a response in flight where slots are refilled at once [tokens].

    A response of length L is in flight for L steps, in which it has written L/2 in the mean, so that long ones count
    more: prompt + <L^2>/(2 <L>), which is prompt + L/2 where all lengths are equal (`theory.system.kv_capacity`).

    Parameters
    ----------
    lengths : Lengths

    Returns
    -------
    float or None
        None where no response length is stated.

    Examples
    --------
    >>> round(steady_context(Lengths(prompt_mean=200, response_mean=2000, response_spread=0.7)))
    1832
    >>> round(steady_context(Lengths(prompt_mean=200, response_mean=2000, distribution="fixed")))
    1200
    """
    prompt = lengths.prompt_mean or 0.0
    sample = lengths.response_sample
    if sample:
        return prompt + math.fsum(n * n for n in sample) / (2 * math.fsum(sample))
    percentiles = (lengths.response_p50, lengths.response_p90, lengths.response_p99)
    if lengths.response_mean is None and all(p is None for p in percentiles):
        return None
    if lengths.distribution == "fixed" or lengths.response_mean == lengths.max_tokens:
        return lengths.context_in_flight
    from scipy.special import ndtr

    limit = math.inf if lengths.max_tokens is None else float(lengths.max_tokens)
    law = response_law(lengths)
    m, s = law.log_mean, law.log_deviation
    mean = truncated_mean(law, limit)
    if s == 0:
        return prompt + mean / 2
    square = math.exp(2 * m + 2 * s * s)
    if limit < math.inf:
        high = math.log(limit)
        square = square * ndtr((high - m - 2 * s * s) / s) + limit**2 * ndtr((m - high) / s)
    return prompt + float(square) / (2 * mean)


def draw_responses(
    lengths: Lengths, *, groups: int, group_size: int, rng: np.random.Generator
) -> tuple[Ints, NDArray[np.bool_]]:
    """Response lengths and whether the limit has cut them.

    Parameters
    ----------
    lengths : Lengths
    groups, group_size : int
    rng : numpy.random.Generator

    Returns
    -------
    tokens : ndarray of int, (response,) [tokens]
        At least 1.
    truncated : ndarray of bool, (response,)

    Raises
    ------
    InputError
        If the lengths are not stated.
    """
    # A stream each, so that a larger draw begins with the responses of a smaller one.
    prompts, responses = rng.spawn(2)
    count = groups * group_size
    limit = lengths.max_tokens or np.iinfo(np.int64).max
    if lengths.distribution == "empirical":
        sample = np.asarray(lengths.response_sample, dtype=np.int64)
        drawn = sample[responses.integers(sample.size, size=count)]
        # What the log saw cut is at its largest length; a lower limit here cuts more.
        return np.minimum(drawn, limit), drawn >= limit
    if lengths.distribution == "fixed":
        if lengths.response_mean is None:
            raise InputError("lengths state no response_mean", remedy="state it")
        value = max(1, round(lengths.response_mean))
        return np.full(count, min(value, limit), dtype=np.int64), np.full(count, value > limit)
    law = response_law(lengths)
    between = prompts.standard_normal(groups).repeat(group_size) * math.sqrt(lengths.group_share)
    z = between + responses.standard_normal(count) * math.sqrt(1 - lengths.group_share)
    exact = np.exp(np.minimum(law.log_mean + law.log_deviation * z, 40.0))
    return np.maximum(np.rint(np.minimum(exact, limit)), 1).astype(np.int64), exact >= limit


def draw(lengths: Lengths, *, groups: int, group_size: int, rng: np.random.Generator) -> Drawn:
    """Everything that `rollout` needs to know of the lengths.

    Parameters
    ----------
    lengths : Lengths
    groups, group_size : int
    rng : numpy.random.Generator

    Returns
    -------
    Drawn

    Raises
    ------
    InputError
        If the lengths are not stated.
    """
    if lengths.distribution not in DISTRIBUTIONS:
        raise InputError(
            f"unknown distribution '{lengths.distribution}'", remedy=nearest(lengths.distribution, DISTRIBUTIONS)
        )
    tokens, truncated = draw_responses(lengths, groups=groups, group_size=group_size, rng=rng)
    mean = lengths.prompt_mean or 1.0
    prompt = np.full(groups, float(mean))
    if lengths.prompt_spread > 0:
        prompt = mean * np.exp(
            lengths.prompt_spread * rng.spawn(1)[0].standard_normal(groups) - lengths.prompt_spread**2 / 2
        )
    prompts = np.maximum(np.rint(prompt), 1).astype(np.int64).repeat(group_size)
    none = np.zeros((tokens.size, 0))
    if lengths.turns <= 1:
        return Drawn(
            prompt_tokens=prompts,
            response_tokens=tokens,
            truncated=truncated,
            environment_tokens=none.astype(np.int64),
            environment_seconds=none,
        )
    split = _split(tokens, lengths.turns, rng)
    gaps = (tokens.size, split.shape[1] - 1)
    seconds = np.full(gaps, lengths.environment_seconds)
    if lengths.environment_spread > 0:
        s = lengths.environment_spread
        seconds = lengths.environment_seconds * np.exp(s * rng.standard_normal(gaps) - s * s / 2)
    return Drawn(
        prompt_tokens=prompts,
        response_tokens=split,
        truncated=truncated,
        environment_tokens=np.full(gaps, round(lengths.environment_tokens), dtype=np.int64),
        environment_seconds=seconds,
    )


def _split(tokens: Ints, turns: float, rng: np.random.Generator) -> Ints:
    """Cut every response into 1 + Poisson(turns - 1) turns of nearly equal length."""
    number = np.minimum(1 + rng.poisson(turns - 1, tokens.size), tokens)
    at = np.arange(number.max())
    whole, more = np.divmod(tokens, number)
    cut = whole[:, None] + (at < more[:, None])
    return np.where(at < number[:, None], cut, 0).astype(np.int64)


def draw_kept(
    *,
    groups: int,
    group_size: int,
    pass_rate: float = 0.5,
    concentration: float = 1.0,
    rng: np.random.Generator,
) -> NDArray[np.bool_]:
    """Whether the rewards of each group differ.

    Parameters
    ----------
    groups, group_size : int
    pass_rate : float in (0, 1) [1]
        Mean over prompts.
    concentration : float [1]
        a + b of the Beta distribution; small: prompts are easy or hard, large: all alike.
    rng : numpy.random.Generator

    Returns
    -------
    ndarray of bool, (group,)

    Raises
    ------
    InputError
        For a pass rate or concentration outside its bounds.
    """
    a, b = _beta(pass_rate, concentration)
    passed = rng.binomial(group_size, rng.beta(a, b, groups))
    return np.asarray((passed > 0) & (passed < group_size))


def kept_share(group_size: ArrayLike, *, pass_rate: float = 0.5, concentration: float = 1.0) -> NDArray[np.float64]:
    """Share of groups whose rewards differ, 1 - E[p^G + (1-p)^G].

    Parameters
    ----------
    group_size : array_like, any shape [responses]
    pass_rate, concentration : float
        See `draw_kept`.

    Returns
    -------
    ndarray [1]

    Raises
    ------
    InputError
        For a pass rate or concentration outside its bounds.

    Examples
    --------
    >>> kept_share([1, 2, 8], pass_rate=0.5, concentration=2.0).round(4)
    array([0.    , 0.3333, 0.7778])
    """
    from scipy.special import betaln

    a, b = _beta(pass_rate, concentration)
    g = np.asarray(group_size, dtype=np.float64)
    same = np.exp(betaln(a + g, b) - betaln(a, b)) + np.exp(betaln(a, b + g) - betaln(a, b))
    return np.asarray(np.maximum(1 - same, 0.0))


def _beta(pass_rate: float, concentration: float) -> tuple[float, float]:
    if not 0 < pass_rate < 1:
        raise InputError(f"pass_rate is {pass_rate:g}, and it must lie between 0 and 1", remedy="as 0.5")
    if not 0 < concentration < 1e6:
        raise InputError(f"concentration is {concentration:g}, and it must be positive and below 1e6")
    return pass_rate * concentration, (1 - pass_rate) * concentration
