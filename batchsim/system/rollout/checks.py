"""What a rollout is asked to do, checked before anything runs.

A workload is plain arrays: one prompt and one response length per response, in the order of groups, and per group
whether its rewards differ (it is kept) or are all equal (it is dropped). A response of several turns states the
tokens of each turn, the tokens that its environment appends, and the seconds that the environment takes.

Refused, with the value, the bound and the remedy: lengths that are not positive whole numbers, a response whose
cache no replica could ever hold alone (it would be preempted for ever), a token budget that starves running
sequences, and sizes that no memory holds.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchsim.errors import InputError, nearest
from batchsim.system.decode_law import DecodeLaw

if TYPE_CHECKING:
    from batchsim.system.rollout.engine import Engine

RESPONSES_MAX = 10**8
"""Sequences share an integer with their end step, 27 bits of it."""
TOKENS_MAX = 10**8


@dataclass(frozen=True, kw_only=True)
class Turns:
    """Turns of every response: (response, turn) arrays, rows padded with zeros.

    Parameters
    ----------
    tokens : ndarray of int, (response, turn) [tokens]
        Generated per turn; a row ends at its first zero.
    extra : ndarray of int, (response, turn - 1) [tokens]
        Appended by the environment after each turn but the last.
    seconds : ndarray, (response, turn - 1) [s]
        Taken by the environment after each turn but the last.
    """

    tokens: NDArray[np.int64]
    extra: NDArray[np.int64]
    seconds: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Lengths and outcomes of all responses.

    Parameters
    ----------
    prompt, response, size : ndarray of int, (response,) [tokens]
        Prompt, generated tokens, and all tokens at the end.
    group_size : int
    keep : ndarray of bool, (group,)
    turns : Turns or None
    arrivals : ndarray, (group,) or (0,) [s]
        When groups may be launched at the earliest; empty if at once.
    """

    prompt: NDArray[np.int64]
    response: NDArray[np.int64]
    size: NDArray[np.int64]
    group_size: int
    keep: NDArray[np.bool_]
    turns: Turns | None = None
    arrivals: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))


def check_workload(
    *,
    prompt_tokens: ArrayLike,
    response_tokens: ArrayLike,
    group_size: int = 1,
    kept: ArrayLike | None = None,
    environment_tokens: ArrayLike = 0,
    environment_seconds: ArrayLike = 0.0,
    arrival_seconds: ArrayLike | None = None,
    share_prefix: bool = True,
) -> Workload:
    """Arrays of a workload.

    Parameters
    ----------
    prompt_tokens : array_like, () or (response,) [tokens]
    response_tokens : array_like, (response,) or (response, turn) [tokens]
        Of a response's turns, the trailing ones may be zero.
    group_size : int
        Responses of consecutive positions form a group; its prompts are equal if they are shared.
    kept : array_like of bool, (group,) or None
        All if None.
    environment_tokens, environment_seconds : array_like, broadcastable to (response, turn - 1) [tokens], [s]
    arrival_seconds : array_like, (group,) or None [s]
        Not decreasing; all at 0 if None.
    share_prefix : bool

    Returns
    -------
    Workload

    Raises
    ------
    InputError
        For lengths that are not positive whole numbers, or shapes that do not fit.
    """
    lengths = _whole("response_tokens", response_tokens)
    if lengths.ndim not in (1, 2) or lengths.size == 0:
        raise InputError(
            f"response_tokens has shape {lengths.shape}; it needs one row per response", remedy="(response,[ turn])"
        )
    count = lengths.shape[0]
    if count > RESPONSES_MAX:
        raise InputError(f"{count:,} responses; at most {RESPONSES_MAX:,}", remedy="simulate fewer, they average out")
    group_size = _at_least("group_size", group_size, 1)
    if count % group_size:
        raise InputError(
            f"{count:,} responses are no whole number of groups of {group_size}",
            remedy="draw groups x group_size responses",
        )
    try:
        prompt = np.array(np.broadcast_to(_whole("prompt_tokens", prompt_tokens), (count,)))
    except ValueError as error:
        raise InputError(
            f"prompt_tokens has shape {np.shape(prompt_tokens)}, and there are {count} responses"
        ) from error
    _positive("prompt_tokens", prompt)
    if share_prefix and group_size > 1:
        groups = prompt.reshape(-1, group_size)
        if (groups != groups[:, :1]).any():
            raise InputError(
                "prompts within a group differ in length and cannot share their cache",
                remedy="repeat one prompt length per group, or share_prefix=False",
            )
    turns = _turns(lengths, environment_tokens, environment_seconds) if lengths.ndim == 2 else None
    response = np.ascontiguousarray(lengths if turns is None else turns.tokens.sum(axis=1))
    _positive("response_tokens", response if turns is None else turns.tokens[:, 0])
    size = prompt + response + (0 if turns is None else turns.extra.sum(axis=1))
    if size.max() > TOKENS_MAX:
        raise InputError(f"a response of {size.max():,} tokens; at most {TOKENS_MAX:,}", remedy="lengths are in tokens")
    keep = np.ones(count // group_size, dtype=np.bool_) if kept is None else np.asarray(kept, dtype=np.bool_)
    if keep.shape != (count // group_size,):
        raise InputError(f"kept has shape {keep.shape}, and there are {count // group_size} groups")
    return Workload(
        prompt=prompt,
        response=response,
        size=size,
        group_size=group_size,
        keep=keep,
        turns=turns,
        arrivals=_arrivals(arrival_seconds, keep.size),
    )


def _arrivals(seconds: ArrayLike | None, groups: int) -> NDArray[np.float64]:
    if seconds is None:
        return np.empty(0)
    times = np.array(seconds, dtype=np.float64)
    if times.shape != (groups,):
        raise InputError(f"arrival_seconds has shape {times.shape}, and there are {groups} groups")
    if not np.isfinite(times).all() or times[0] < 0 or (np.diff(times) < 0).any():
        raise InputError("arrival_seconds must be finite, not negative, and not decreasing", remedy="sort the groups")
    return times


def _turns(tokens: NDArray[np.int64], extra: ArrayLike, seconds: ArrayLike) -> Turns | None:
    if tokens.shape[1] == 1 or not tokens[:, 1:].any():
        return None if tokens.shape[1] == 1 else _turns_of(tokens, 0, 0.0)
    return _turns_of(tokens, extra, seconds)


def _turns_of(tokens: NDArray[np.int64], extra: ArrayLike, seconds: ArrayLike) -> Turns:
    gaps = (tokens.shape[0], tokens.shape[1] - 1)
    if (tokens < 0).any() or ((tokens[:, :-1] == 0) & (tokens[:, 1:] > 0)).any():
        raise InputError("turns of a response must be positive, then zero", remedy="pad rows with zeros at their end")
    try:
        more = np.array(np.broadcast_to(_whole("environment_tokens", extra), gaps))
        wait = np.array(np.broadcast_to(np.asarray(seconds, dtype=np.float64), gaps))
    except ValueError as error:
        raise InputError(
            f"environment_tokens and environment_seconds must broadcast to {gaps}", remedy="one per turn but the last"
        ) from error
    if (more < 0).any():
        raise InputError(f"environment_tokens is {more.min()}, and it must not be negative")
    if not np.isfinite(wait).all() or (wait < 0).any():
        raise InputError("environment_seconds must be finite and not negative", remedy="cap the environment's time")
    more[tokens[:, 1:] == 0] = 0
    return Turns(tokens=np.ascontiguousarray(tokens), extra=more, seconds=wait)


def check_engine(law: DecodeLaw, work: Workload, **settings: Any) -> Engine:
    """Settings of the engine, checked against the law and the workload.

    Parameters
    ----------
    law : DecodeLaw
    work : Workload
    **settings
        See `engine.Engine`.

    Returns
    -------
    Engine

    Raises
    ------
    InputError
        As the module says.
    """
    from batchsim.system.rollout.engine import DISPATCHES, Engine

    count = work.prompt.size
    settings["max_num_seqs"] = min(_at_least("max_num_seqs", settings["max_num_seqs"], 1), count)
    for name, least in (("block_size", 1), ("fixed_blocks", 0), ("watermark_blocks", 0), ("replicas", 1)):
        settings[name] = _at_least(name, settings[name], least)
    if settings["replicas"] > 4096 or settings["block_size"] > 1 << 20:
        raise InputError(
            f"{settings['replicas']} replicas of blocks of {settings['block_size']} tokens; at most 4096 and 1048576"
        )
    budget = _at_least("max_num_batched_tokens", settings["max_num_batched_tokens"], 1)
    settings["max_num_batched_tokens"] = budget
    if budget < settings["max_num_seqs"]:
        raise InputError(
            f"max_num_batched_tokens {budget} is below the {settings['max_num_seqs']} sequences that decode at once",
            remedy="raise it to max_num_seqs at least, or lower max_num_seqs",
        )
    if settings["dispatch"] not in DISPATCHES:
        raise InputError(
            f"unknown dispatch '{settings['dispatch']}'", remedy=nearest(str(settings["dispatch"]), DISPATCHES)
        )
    settings["graph_sizes"] = _graph_sizes(settings["graph_sizes"])
    engine = Engine(**settings)
    _check_law(law, engine)
    if engine.kv_blocks is not None:
        _check_fit(work, engine)
    return engine


def _check_fit(work: Workload, engine: Engine) -> None:
    blocks = _at_least("kv_blocks", engine.kv_blocks, 1)
    # The last token generated is never read back: its key and value are not computed.
    needed = -(-(work.size - 1) // engine.block_size) + engine.fixed_blocks
    worst = int(np.argmax(needed))
    if needed[worst] > blocks:
        raise InputError(
            f"response {worst} of {work.size[worst]:,} tokens needs {needed[worst]:,} blocks of "
            f"{engine.block_size} tokens, and a replica holds {blocks:,}",
            remedy="lower max tokens, or raise tensor parallelism or the memory share",
        )


def _check_law(law: DecodeLaw, engine: Engine) -> None:
    table = np.asarray(law.step_time, dtype=np.float64)
    reach = max([engine.max_num_seqs, *(s for s in engine.graph_sizes[:1])])
    for size in engine.graph_sizes:
        if size >= engine.max_num_seqs:
            reach = max(engine.max_num_seqs, size)
            break
    if table.ndim != 1 or table.size <= reach:
        raise InputError(
            f"the law states step times up to {table.size - 1} sequences, and {reach} may run",
            remedy="lower max_num_seqs, or make the law for a larger batch",
        )
    constants = (law.context_time, law.window_time, law.prefill_time, law.prefill_context_time)
    if not np.isfinite(table).all() or (table < 0).any() or not np.isfinite(constants).all() or min(constants) < 0:
        raise InputError("times of the decode law must be finite and not negative")
    if not (table[1:] > 0).all():
        raise InputError("a decode step of the law takes no time", remedy="step_time[n] > 0 for n >= 1")
    if law.window < 0:
        raise InputError(f"window is {law.window}, and it must not be negative")


def _graph_sizes(sizes: Sequence[int] | None) -> tuple[int, ...]:
    return tuple(sorted({_at_least("graph_sizes", s, 1) for s in sizes or ()}))


def _at_least(name: str, value: Any, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None and isinstance(value, float) and value.is_integer():
        number = int(value)
    if number is None or isinstance(value, bool) or number < least:
        raise InputError(f"{name} is {value}, and it must be a whole number of at least {least}")
    return number


def _whole(name: str, value: ArrayLike) -> NDArray[np.int64]:
    given = np.asarray(value)
    if given.dtype.kind in "iu":
        return given.astype(np.int64)
    numbers = given.astype(np.float64) if given.dtype.kind == "f" else None
    if numbers is None or not np.isfinite(numbers).all() or (numbers != np.floor(numbers)).any():
        raise InputError(f"{name} must be whole numbers of tokens", remedy="round them, as np.ceil(x)")
    if np.abs(numbers, out=np.empty(numbers.shape)).max(initial=0.0) > TOKENS_MAX:
        raise InputError(f"{name} reaches {numbers.max():,.0f}; at most {TOKENS_MAX:,} tokens")
    return numbers.astype(np.int64)


def _positive(name: str, value: NDArray[np.int64]) -> None:
    if value.min() < 1:
        at = int(np.argmin(value))
        raise InputError(f"{name} is {value[at]} at response {at}; it must be at least 1 token")
