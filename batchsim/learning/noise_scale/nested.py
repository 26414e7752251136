r"""What prompts and what responses contribute to the noise: nested analysis of variance from norms alone.

With x_ij the gradient of response j of prompt i, xbar_i the mean of its group and xbar that of the batch,

    W = sum_ij |x_ij - xbar_i|^2 / (P (G - 1))     E W = V_resp
    M = G sum_i |xbar_i - xbar|^2 / (P - 1)        E M = G V_prompt + V_resp
    |G|^2 = |xbar|^2 - sum_i |xbar_i - xbar|^2 / (P (P - 1)),

and sums of squares about a mean are differences of sums of squares, so the mean squared norms of single
responses (or of micro-batches within a group), of groups, and of the batch are all it takes. Per update
the batch has tr Cov = V_prompt/P + V_resp/(P G) = M/(P G), and B_noise = M/|G|^2 responses = M/(G |G|^2) groups.

GRPO subtracts the group's mean reward, so the responses of a group are not independent and W is not the
variance between responses drawn alone. M, which only needs groups to be independent, holds all the same:
the noise scale rests on M, and V_resp and V_prompt describe. They do predict: at fixed P G the noise scale in
responses is linear in the group size, (G V_prompt + V_resp)/|G|^2, as far as |G|^2 stays (`group_signal`).

References
----------
.. [1] Searle, Casella, McCulloch 1992, "Variance Components", ch. 3 (balanced one-way analysis of variance).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, stdtrit

from batchsim.learning.noise_scale.estimate import (
    BLOCK,
    LEVEL,
    ROUNDING,
    NoiseScale,
    block_covariance,
    block_length,
    from_moments,
    not_identified,
    rescale,
)

METHOD = "nested norms"


@dataclass(frozen=True, kw_only=True)
class NestedNoise:
    """Noise between prompts and within their groups.

    Parameters
    ----------
    prompts : float [prompts]
        P per update (mean over updates, weighted as they are).
    group_size : int [responses/prompt]
        G.
    signal_square : float
        |G|^2, in units of the logged norm squared.
    group_trace : float [responses]
        M: G times the trace of the covariance of a group's mean gradient.
    response_trace : float [responses]
        W: V_resp. NaN where no norms within groups were given.
    covariance : ndarray, (3, 3)
        Of (signal_square, group_trace, response_trace), from blocks of updates.
    dof : float
    level : float [1]
    window : str
    reason : str
        Why nothing is identified; empty otherwise.
    """

    prompts: float
    group_size: int
    signal_square: float
    group_trace: float
    response_trace: float
    covariance: NDArray[np.float64]
    dof: float
    level: float
    window: str
    reason: str = ""

    @property
    def responses(self) -> NoiseScale:
        """B_noise = M/|G|^2 in responses, at the measured group size."""
        return self._scale(np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), self.group_size)

    @property
    def groups(self) -> NoiseScale:
        """B_noise/G: in prompt groups, the independent units."""
        return rescale(self.responses, factor=1 / self.group_size, unit="groups")

    @property
    def response_variance(self) -> float:
        """V_resp = W [responses]; under GRPO's baseline a description, not the variance of a lone response."""
        return self.response_trace

    @property
    def prompt_variance(self) -> float:
        """V_prompt = (M - W)/G [prompts], unbiased and so possibly negative."""
        return (self.group_trace - self.response_trace) / self.group_size

    @property
    def prompt_variance_limits(self) -> tuple[float, float]:
        """Student limits of V_prompt."""
        if self.dof <= 0:
            return -np.inf, np.inf
        c = self.covariance
        error = np.sqrt(c[1, 1] - 2 * c[1, 2] + c[2, 2]) / self.group_size
        t = float(stdtrit(self.dof, (1 + self.level) / 2))
        return self.prompt_variance - t * error, self.prompt_variance + t * error

    @property
    def prompt_share(self) -> float:
        """Share of tr Cov that more responses per prompt would not lower, G V_prompt/M [1]."""
        return 1 - self.response_trace / self.group_trace

    def at_group_size(self, group_size: float, *, signal_ratio: float = 1.0) -> NoiseScale:
        """Noise scale in responses that another group size would have.

        B_noise(G') = (G' V_prompt + V_resp)/(signal_ratio |G|^2), where G' V_prompt + V_resp =
        (G'/G) M + (1 - G'/G) W is linear in what was measured, so that its limits are Fieller's too.

        Parameters
        ----------
        group_size : float [responses/prompt]
            G'.
        signal_ratio : float [1]
            |E g|^2 at G' over that at G. It is not 1 where the baseline is estimated from the group or
            groups of equal rewards are dropped; `group_signal` gives it for binary rewards.

        Returns
        -------
        NoiseScale
            Not identified without norms within groups, unless group_size is the measured one. The limits
            hold the errors of the moments, not that of the formula.
        """
        if not (group_size > 0 and signal_ratio > 0):
            raise ValueError(f"group_size {group_size} and signal_ratio {signal_ratio} must be positive")
        x = group_size / self.group_size
        if x == 1:
            return self._scale(np.array([[signal_ratio, 0.0, 0.0], [0.0, 1.0, 0.0]]), group_size)
        return self._scale(np.array([[signal_ratio, 0.0, 0.0], [0.0, x, 1 - x]]), group_size)

    def square_norm(self, *, prompts: ArrayLike, group_size: ArrayLike) -> NDArray[np.float64]:
        """Expected squared norm of a batch of other prompts and group size: |G|^2 + V_prompt/P + V_resp/(P G).

        Parameters
        ----------
        prompts : array_like, any shape [prompts]
        group_size : array_like, broadcastable [responses/prompt]

        Returns
        -------
        ndarray
        """
        p, g = np.asarray(prompts, dtype=np.float64), np.asarray(group_size, dtype=np.float64)
        return np.asarray(self.signal_square + self.prompt_variance / p + self.response_variance / (p * g))

    def mixed_trace(self) -> float:
        """What chunks that mix responses of all groups would take for tr(Sigma) [responses].

        A random cut of the batch sees the spread of single responses about the batch mean,
        (P (G - 1) W + (P - 1) M)/(P G - 1), which lies below M wherever prompts differ.
        """
        p, g = self.prompts, self.group_size
        return float((p * (g - 1) * self.response_trace + (p - 1) * self.group_trace) / (p * g - 1))

    def _scale(self, matrix: NDArray[np.float64], group_size: float) -> NoiseScale:
        used = np.any(matrix != 0, axis=0)
        moments = np.array([self.signal_square, self.group_trace, self.response_trace])
        window = f"{self.window} at group size {group_size:g}"
        if self.dof <= 0 or not np.isfinite(moments[used]).all():
            reason = self.reason or (
                "another group size needs norms of single responses, or of micro-batches within a group, beside those "
                "of groups"
            )
            return not_identified(reason, method=METHOD, window=window, level=self.level)
        part = matrix[:, used]
        signal, noise = part @ moments[used]
        return from_moments(
            signal=float(signal),
            noise=float(noise),
            covariance=part @ self.covariance[np.ix_(used, used)] @ part.T,
            dof=self.dof,
            exponent=float("nan"),
            level=self.level,
            method=METHOD,
            window=window,
            largest_batch=self.prompts * self.group_size,
        )


def from_nested_norms(
    prompts: ArrayLike,
    group_size: int,
    sq_norm_response: ArrayLike | None,
    sq_norm_group: ArrayLike,
    sq_norm_batch: ArrayLike,
    *,
    responses_per_micro_batch: int = 1,
    level: float = LEVEL,
    block: int = BLOCK,
    window: str = "whole runs",
) -> NestedNoise:
    """Prompt and response variance, |G|^2 and the noise scale from squared norms at three levels.

    Every gradient is the MEAN over its responses of their gradients, all on one scale: |x_ij|^2 for a
    response, |xbar_i|^2 for its group, |xbar|^2 for the batch.

    Parameters
    ----------
    prompts : array_like, () or (update,) [prompts]
        P, two or more.
    group_size : int [responses/prompt]
        G.
    sq_norm_response : array_like, (update,), or None
        Mean over all responses of |x_ij|^2, or over micro-batches of `responses_per_micro_batch`
        responses of ONE group each. None if unknown: M and |G|^2 need it not.
    sq_norm_group : array_like, (update,)
        Mean over groups of |xbar_i|^2.
    sq_norm_batch : array_like, (update,)
        |xbar|^2.
    responses_per_micro_batch : int [responses]
        Divides G, and is less than it.
    level : float [1]
    block : int
        Consecutive updates that count as one observation.
    window : str

    Returns
    -------
    NestedNoise
        Updates with a norm that is not finite are left out; averages over updates are weighted by P. Not
        identified with fewer than three blocks of updates.

    Raises
    ------
    ValueError
        For one prompt, or micro-batches that do not cut a group into two or more equal parts.
    """
    if sq_norm_response is not None and (
        responses_per_micro_batch >= group_size or group_size % responses_per_micro_batch
    ):
        raise ValueError(
            f"micro-batches of {responses_per_micro_batch} responses do not cut a group of {group_size} into two or "
            "more equal parts; micro-batches of whole groups belong in from_chunk_norms"
        )
    group, batch = np.asarray(sq_norm_group, dtype=np.float64), np.asarray(sq_norm_batch, dtype=np.float64)
    inner = np.full(group.shape, np.nan) if sq_norm_response is None else np.asarray(sq_norm_response, dtype=np.float64)
    p = np.broadcast_to(np.asarray(prompts, dtype=np.float64), group.shape)
    if np.any(p < 2):
        raise ValueError(f"prompts {p.min():g}: the spread between prompts needs at least 2 of them per update")
    good = np.isfinite(group) & np.isfinite(batch) & (np.isfinite(inner) | (sq_norm_response is None))
    p, inner, group, batch = p[good], inner[good], group[good], batch[good]
    size = block_length(p.size, block)
    if p.size // size < 3:
        return NestedNoise(
            prompts=float(p.mean()) if p.size else float("nan"),
            group_size=group_size,
            signal_square=float("nan"),
            group_trace=float("nan"),
            response_trace=float("nan"),
            covariance=np.full((3, 3), np.nan),
            dof=0.0,
            level=level,
            window=window,
            reason=f"{p.size} update(s) are too few; log the norms of groups and batch over 3 or more updates",
        )
    parts = group_size / responses_per_micro_batch
    signal = (p * batch - group) / (p - 1)
    between = group_size * p * (group - batch) / (p - 1)
    within = group_size * (inner - group) / (parts - 1)
    values = np.stack([signal, between, within])
    mean = values @ p / p.sum()
    covariance = block_covariance(values, size=size, weight=p) + np.diag((ROUNDING * mean) ** 2)
    return NestedNoise(
        prompts=float(p @ p / p.sum()),
        group_size=group_size,
        signal_square=float(mean[0]),
        group_trace=float(mean[1]),
        response_trace=float(mean[2]),
        covariance=covariance,
        dof=float(p.size // size - 1),
        level=level,
        window=window,
    )


def group_signal(
    group_size: int, *, pass_rate: ArrayLike, normalised: bool = True, filtered: bool = True
) -> NDArray[np.float64]:
    r"""Share of a prompt's signal that survives a baseline taken from its own group, for binary rewards.

    With K ~ Binomial(G, p) right answers and d the mean score of right answers minus that of wrong ones, the
    group's gradient is E[.|K] = d sqrt(K (G - K))/G when advantages are divided by their standard
    deviation, and d K (G - K)/G^2 when they are not. This returns E of the factor over K, given
    0 < K < G if groups of equal rewards are dropped and refilled.

    Parameters
    ----------
    group_size : int [responses/prompt]
        G, two or more.
    pass_rate : array_like, any shape [1]
        p, between 0 and 1.
    normalised : bool
        Advantages are divided by the group's standard deviation (GRPO), or not (Dr. GRPO).
    filtered : bool
        Groups of equal rewards are dropped and replaced (DAPO's dynamic sampling).

    Returns
    -------
    ndarray [1]
        The squared ratio at two group sizes is `signal_ratio` of a single prompt; over prompts, square the mean
        weighted as the batch weights them. At p = 1/2 without filter and with normalisation: .40 at G = 4,
        .46 at 8, .5 in the limit.
    """
    if group_size < 2:
        raise ValueError(f"group_size {group_size}: a baseline from the group needs at least 2 responses")
    p = np.asarray(pass_rate, dtype=np.float64)[..., None]
    k = np.arange(1, group_size)
    choose = gammaln(group_size + 1) - gammaln(k + 1) - gammaln(group_size - k + 1)
    with np.errstate(divide="ignore"):
        weight = np.exp(choose + k * np.log(p) + (group_size - k) * np.log1p(-p))
    share = k * (group_size - k) / group_size**2
    factor = np.sqrt(share) if normalised else share
    total = np.sum(weight * factor, axis=-1)
    if not filtered:
        return np.asarray(total)
    with np.errstate(invalid="ignore"):
        return np.asarray(total / np.sum(weight, axis=-1))
