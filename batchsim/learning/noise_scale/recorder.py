r"""A recorder of the gradient noise scale for the user's own training loop: plain floats in, plain JSON out.

At each update it takes the squared norm of the mean gradient of every micro-batch (or their sum) and of the
whole batch. With n_j responses in micro-batch j of K, B = sum n_j and Q = sum n_j |g_j|^2/B,

    E Q = |G|^2 + K tr(Sigma)/B,    E|g_B|^2 = |G|^2 + tr(Sigma)/B,
    tr(Sigma) = (Q - |g_B|^2) B/(K - 1),    |G|^2 = |g_B|^2 - tr(Sigma)/B,

unbiased for micro-batches of any sizes as long as they are independent: made of whole prompt groups. Sums of
both, weighted by responses, and a bounded list of block sums are all it keeps: when the list is full, neighbours
merge. Its estimate is then `from_chunk_norms` with blocks of that length.

Importing this module loads NumPy and scipy.special, no torch, xarray or pandas.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from batchsim.learning.noise_scale.estimate import (
    BLOCK,
    LEVEL,
    ROUNDING,
    NoiseScale,
    from_moments,
    not_identified,
    scatter,
)

SCHEMA = 1
MAX_BLOCKS = 128
"""Block sums kept; when there are more, neighbours are added in pairs."""
CONVEXITY = 0.05
"""Relative excess of |g_B|^2 over the mean of |g_j|^2 that rounding may cause; more is a mistake of scale."""
METHOD = "recorded norms"

Block = tuple[int, float, float, float]
"""Updates, responses, and sums over them of responses times (|G|^2, tr(Sigma)) estimates."""


class Recorder:
    """Running estimate of the gradient noise scale, resumable and mergeable.

    Parameters
    ----------
    group_size : int or None [responses/prompt]
        G. Micro-batches must then hold whole groups; None trusts the caller, or means responses that are
        independent one by one (PPO with a critic, SFT).

    Examples
    --------
    >>> recorder = Recorder(group_size=8)
    >>> for update in range(24):
    ...     _ = recorder.update([5.0, 4.0, 6.0, 5.0], 2.0 + update % 3 * 0.1, responses_per_micro_batch=32)
    >>> recorder.updates, round(recorder.estimate().noise_scale)
    (24, 109)
    >>> Recorder.from_json(recorder.to_json()) == recorder
    True
    """

    def __init__(self, *, group_size: int | None = None) -> None:
        if group_size is not None and group_size < 1:
            raise ValueError(f"group_size {group_size} must be at least 1")
        self.group_size = group_size
        self.skipped = 0
        """Updates left out because a norm was not finite, or there was one micro-batch only."""
        self.inconsistent = 0
        """Updates left out because the batch's norm exceeds what its micro-batches allow."""
        self.largest_batch = 0.0
        self._length = 1
        self._blocks: list[Block] = []
        self._open: Block = (0, 0.0, 0.0, 0.0)
        self._total: Block = (0, 0.0, 0.0, 0.0)

    @property
    def updates(self) -> int:
        """Updates that count."""
        return self._total[0]

    @property
    def responses(self) -> float:
        """Responses behind them."""
        return self._total[1]

    @property
    def moments(self) -> tuple[float, float]:
        """Estimates of |G|^2 and tr(Sigma) [responses], averages over responses; NaN before the first update."""
        _, weight, signal, noise = self._total
        return (signal / weight, noise / weight) if weight else (math.nan, math.nan)

    @property
    def block(self) -> int:
        """Updates per block of the estimate: as near to ten as whole kept blocks come, fewer in short runs."""
        return self._length * self._factor()

    def update(
        self,
        micro_square_norms: float | Iterable[float],
        batch_square_norm: float,
        *,
        responses_per_micro_batch: float | Iterable[float],
        micro_batches: int | None = None,
    ) -> bool:
        """Record one optimizer update.

        Parameters
        ----------
        micro_square_norms : float, or iterable of float, (micro_batch,)
            |g_j|^2 of the MEAN gradient over each micro-batch's responses, or their sum, with micro_batches.
            Where the loss was divided by K before backward, multiply by K^2.
        batch_square_norm : float
            |g_B|^2 of the mean gradient over the batch, before clipping.
        responses_per_micro_batch : float, or iterable of float, (micro_batch,) [responses]
            n_j; one number if they are equal, as they must be where the sum is given.
        micro_batches : int or None
            K, with a sum.

        Returns
        -------
        bool
            Whether the update counts; otherwise it is counted in `skipped` or `inconsistent`.

        Raises
        ------
        ValueError
            For arguments that cannot be right at any update: counts that disagree, sizes that are not positive or do
            not hold whole groups, negative squares.
        """
        if np.ndim(micro_square_norms) == 0:  # type: ignore[arg-type]
            if micro_batches is None:
                raise ValueError("a sum of micro-batch square norms needs micro_batches, their number")
            if np.ndim(responses_per_micro_batch) > 0:  # type: ignore[arg-type]
                raise ValueError("micro-batches of unequal sizes need each one's square norm, not the sum")
            squares = [float(micro_square_norms) / micro_batches] * micro_batches  # type: ignore[arg-type]
        else:
            squares = [float(x) for x in micro_square_norms]  # type: ignore[union-attr]
            if micro_batches not in (None, len(squares)):
                raise ValueError(f"{len(squares)} micro-batch square norms, but micro_batches = {micro_batches}")
        if np.ndim(responses_per_micro_batch) == 0:  # type: ignore[arg-type]
            sizes = [float(responses_per_micro_batch)] * len(squares)  # type: ignore[arg-type]
        else:
            sizes = [float(n) for n in responses_per_micro_batch]  # type: ignore[union-attr]
        large = float(batch_square_norm)
        self._check(squares, large, sizes)
        k, b = len(squares), math.fsum(sizes)
        if k < 2 or not math.isfinite(large) or not all(map(math.isfinite, squares)):
            self.skipped += 1
            return False
        small = math.fsum(n * s for n, s in zip(sizes, squares, strict=True)) / b
        if large > small * (1 + CONVEXITY):
            self.inconsistent += 1
            return False
        noise = (small - large) * b / (k - 1)
        signal = large - noise / b
        if not (math.isfinite(signal * b) and math.isfinite(noise * b)):
            self.skipped += 1
            return False
        self.largest_batch = max(self.largest_batch, b)
        one: Block = (1, b, b * signal, b * noise)
        self._total = _add(self._total, one)
        self._open = _add(self._open, one)
        self._close()
        return True

    def estimate(self, *, level: float = LEVEL, window: str = "recorded updates") -> NoiseScale:
        """Noise scale with Fieller limits.

        Parameters
        ----------
        level : float [1]
            Coverage of the limits.
        window : str
            For the message.

        Returns
        -------
        NoiseScale
            Not identified with fewer than three blocks of updates, or where most updates were inconsistent.
        """
        if self.inconsistent > self.updates:
            return not_identified(
                f"the batch's square norm exceeds the mean of its micro-batches' in {self.inconsistent} of "
                f"{self.inconsistent + self.updates} updates, which no mean of gradients does; take both on the scale "
                "of a mean over responses (undo a loss divided by the number of micro-batches)",
                method=METHOD,
                window=window,
                level=level,
            )
        factor = self._factor()
        whole = len(self._blocks) // factor
        if whole < 3:
            return not_identified(
                f"{self.updates} update(s) with 2 or more micro-batches are too few ({self.skipped} skipped); record 3 "
                "or more",
                method=METHOD,
                window=window,
                level=level,
            )
        rows = np.array([block[1:] for block in self._blocks[: whole * factor]]).reshape(whole, factor, 3).sum(axis=1)
        signal, noise = self.moments
        return from_moments(
            signal=signal,
            noise=noise,
            covariance=scatter(rows[:, 1:].T, rows[:, 0])
            + np.diag([(ROUNDING * signal) ** 2, (ROUNDING * noise) ** 2]),
            dof=float(whole - 1),
            exponent=float("nan"),
            level=level,
            method=METHOD,
            window=window,
            largest_batch=self.largest_batch,
        )

    def to_json(self) -> str:
        """State as JSON; `from_json` restores it exactly."""
        return json.dumps(
            {
                "schema": SCHEMA,
                "group_size": self.group_size,
                "skipped": self.skipped,
                "inconsistent": self.inconsistent,
                "largest_batch": self.largest_batch,
                "length": self._length,
                "total": self._total,
                "open": self._open,
                "blocks": self._blocks,
            },
            allow_nan=False,
        )

    @classmethod
    def from_json(cls, text: str) -> Recorder:
        """Recorder in the state that `to_json` wrote.

        Raises
        ------
        ValueError
            For text of another schema, or that is no such state.
        """
        state: Any = json.loads(text)
        if not isinstance(state, dict) or state.get("schema") != SCHEMA:
            found = state.get("schema") if isinstance(state, dict) else type(state).__name__
            raise ValueError(f"a recorder's state has schema {SCHEMA}, not {found}")
        try:
            recorder = cls(group_size=state["group_size"])
            recorder.skipped, recorder.inconsistent = int(state["skipped"]), int(state["inconsistent"])
            recorder.largest_batch, recorder._length = float(state["largest_batch"]), int(state["length"])
            recorder._total, recorder._open = _block(state["total"]), _block(state["open"])
            recorder._blocks = [_block(row) for row in state["blocks"]]
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a recorder's state: {error!r}") from error
        return recorder

    def __add__(self, other: Recorder) -> Recorder:
        """Both streams as one: parts of a run, or several runs.

        Raises
        ------
        ValueError
            For recorders of different group sizes.
        """
        if not isinstance(other, Recorder):
            return NotImplemented
        if self.group_size != other.group_size:
            raise ValueError(
                f"group_size {self.group_size} and {other.group_size} are different experiments; keep them apart"
            )
        parts = [Recorder.from_json(self.to_json()), Recorder.from_json(other.to_json())]
        while parts[0]._length != parts[1]._length:
            min(parts, key=lambda part: part._length)._halve()
        first, second = parts
        first.skipped += second.skipped
        first.inconsistent += second.inconsistent
        first.largest_batch = max(first.largest_batch, second.largest_batch)
        first._total = _add(first._total, second._total)
        first._blocks += second._blocks
        first._open = _add(first._open, second._open)
        first._close()
        return first

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recorder) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Recorder({self.updates} updates, {self.responses:g} responses, {self.skipped} skipped)"

    def _check(self, squares: list[float], large: float, sizes: list[float]) -> None:
        if len(sizes) != len(squares):
            raise ValueError(f"{len(squares)} micro-batch square norms, but {len(sizes)} sizes")
        if not all(n > 0 and math.isfinite(n) for n in sizes):
            raise ValueError(f"responses_per_micro_batch {sizes} must be positive")
        if large < 0 or any(s < 0 for s in squares):
            raise ValueError(f"square norms {squares}, {large} must not be negative")
        if self.group_size is not None and any(n % self.group_size for n in sizes):
            odd = next(n for n in sizes if n % self.group_size)
            raise ValueError(
                f"a micro-batch of {odd:g} responses does not hold whole groups of {self.group_size}, and parts of a "
                "group are not independent; take the norm over the micro-batches of whole groups together"
            )

    def _factor(self) -> int:
        """Kept blocks that the estimate takes as one."""
        wanted = min(-(-BLOCK // self._length), max(1, (self.updates // 8) // self._length))
        return max(1, wanted)

    def _close(self) -> None:
        if self._open[0] >= self._length:
            self._blocks.append(self._open)
            self._open = (0, 0.0, 0.0, 0.0)
        while len(self._blocks) > MAX_BLOCKS:
            self._halve()

    def _halve(self) -> None:
        """Double the length of blocks; an odd last one goes back to the open one."""
        pairs = zip(self._blocks[::2], self._blocks[1::2], strict=False)
        if len(self._blocks) % 2:
            self._open = _add(self._blocks[-1], self._open)
        self._blocks = [_add(a, b) for a, b in pairs]
        self._length *= 2


def _add(a: Block, b: Block) -> Block:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]


def _block(row: list[float]) -> Block:
    updates, weight, signal, noise = row
    return int(updates), float(weight), float(signal), float(noise)
