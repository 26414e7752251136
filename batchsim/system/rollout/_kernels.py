r"""Event-driven kernel of the rollout: see the package's text for what a step is.

Time runs per replica in spans of m equal steps. With n sequences decoding, of summed context c, and a chunk of s
prompt tokens per step at position k, a span takes

    T(m) = m t_max(n,1) + kappa (m c + n m (m-1)/2) + omega (window part) + pi S + chi (S k + S (S+1)/2),   S = m s

A span ends where the next thing happens: a sequence ends (a heap of end steps), its context reaches the window (a
second heap), a chunked prompt is done, the free blocks would run out (counts of sequences by phase modulo the block
size), or something outside the replica arrives (the span is cut by bisection in T). `plan` decides what one step
schedules and how often it repeats, `commit` applies it, `run` keeps the replicas in the order of time:

    at one time: spans end, groups complete; groups arrive and are launched; sequences return from their
    environment; steps begin

An end step and a sequence share one integer, so that ties end in the order of sequences. Entries of preempted
sequences stay in the heap until they surface (a sequence that is admitted again ends later, never at the old step).
Where nothing waits, a sorted array takes the heap's place, which is one as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit

# A sequence, one cache line. BASE is its context minus the step while it decodes, the tokens computed otherwise.
TOKENS, LEFT, BASE, END, PREV, NEXT, PREEMPTED, PEAK = range(8)
WAITING, PREFILLING, PAUSED, DONE = -1, -2, -3, -4
# A sequence of several turns.
TURN, HELD, HELD_PREV, HELD_NEXT = range(4)
# A group.
REMAINING, REFERENCES, REPLICA, KEEP, SHARED = range(5)
# A replica: integers.
STEP, DECODING, RUNNING, PARTIAL, CONTEXT, FREE, TAIL, FIRST, LAST, HEAP, LOW, PUSHED, SORTED = range(13)
SPAN, JOINING, CHUNK, PHASE, LOAD, LOAD_TOKENS, GROWING, GROWING_SUM, FULL, WINDOW_HEAP = range(13, 23)
SHOWN, SIGNAL, HELD_FIRST, HELD_LAST, VERSION, NEXT_VERSION = range(23, 29)
REPLICA_COLUMNS = 29
BOUNDARY, PLANNED, IDLE, STOPPED = range(4)
# A replica: floats.
CLOCK, PENDING, PREFILL, PAIRS, PAUSE = range(5)
REPLICA_FLOATS = 5
# Settings.
MAX_SEQS, BUDGET, BLOCKS, BLOCK, FIXED, WATERMARK, GROUP, WINDOW, IN_FLIGHT_MAX, LAUNCH_MAX = range(10)
REPLACE, DISPATCH, TURNS, KEEP_KV, RECOMPUTE, TARGET = range(10, 16)
SETTINGS = 16
# Times of the law.
KAPPA, OMEGA, PI, CHI = range(4)
# Totals.
LAUNCHED, DROPPED, KEPT, COMPLETE, RETURNS, SHOWN_ROWS, PREFILLED, RECOMPUTED, PREEMPTIONS = range(9)
EVICTIONS, DIRTY, STEPS, NOTICED = range(9, 13)
TOTALS = 13
# Why `run` stopped.
AT_TARGET, AT_LIMIT, AT_REST, OUT_OF_ROWS, ALL_STOPPED = range(5)

BITS = 27
MASK = (1 << BITS) - 1

F = TypeVar("F", bound=Callable[..., Any])


def _compiled(*, inline: bool = False, counted: bool = False) -> Callable[[F], F]:
    """Compile without counting references to arrays, which would take two thirds of the run time.

    Nothing here makes an array, and the caller holds them all; only the library's sort needs the counts. What lies on
    the way of every response is inlined: handing on some twenty arrays takes half of the rest.
    """
    options: dict[str, Any] = {"cache": True, "error_model": "numpy", "_nrt": counted}
    return cast("Callable[[F], F]", njit(inline="always" if inline else "never", **options))


@_compiled(counted=True)
def _sort(keys: Any, r: int, size: int) -> None:
    keys[r, :size].sort()


@_compiled(inline=True)
def _push(heap: Any, r: int, size: int, key: int) -> None:
    i = size
    while i > 0:
        up = (i - 1) >> 1
        if heap[r, up] <= key:
            break
        heap[r, i] = heap[r, up]
        i = up
    heap[r, i] = key


@_compiled(inline=True)
def _pop(heap: Any, r: int, size: int) -> None:
    """Remove the least of `size` keys: the gap sinks to the bottom, where the last key fills it and rises."""
    last, i = size - 1, 0
    key = heap[r, last]
    while 2 * i + 2 < last:
        down = 2 * i + 1
        down += heap[r, down + 1] < heap[r, down]
        heap[r, i] = heap[r, down]
        i = down
    if 2 * i + 1 < last:
        heap[r, i] = heap[r, 2 * i + 1]
        i = 2 * i + 1
    _push(heap, r, i, key)


@_compiled()
def _push_return(at: Any, who: Any, size: int, time: float, i: int) -> None:
    j = size
    while j > 0:
        up = (j - 1) >> 1
        if at[up] < time or (at[up] == time and who[up] < i):
            break
        at[j], who[j] = at[up], who[up]
        j = up
    at[j], who[j] = time, i


@_compiled()
def _pop_return(at: Any, who: Any, size: int) -> None:
    last = size - 1
    time, i = at[last], who[last]
    j = 0
    while True:
        down = 2 * j + 1
        if down >= last:
            break
        right = down + 1
        if right < last and (at[right] < at[down] or (at[right] == at[down] and who[right] < who[down])):
            down = right
        if at[down] > time or (at[down] == time and who[down] >= i):
            break
        at[j], who[j] = at[down], who[down]
        j = down
    at[j], who[j] = time, i


@_compiled(inline=True)
def _add_end(seq: Any, rep: Any, ends: Any, r: int, i: int) -> None:
    low, size = rep[r, LOW], rep[r, HEAP]
    if rep[r, SORTED]:
        for j in range(low, size):
            ends[r, j - low] = ends[r, j]
        size -= low
        rep[r, LOW] = rep[r, SORTED] = rep[r, PUSHED] = 0
    if size == ends.shape[1]:
        kept = 0
        for j in range(size):
            if seq[ends[r, j] & MASK, END] == ends[r, j] >> BITS:
                ends[r, kept] = ends[r, j]
                kept += 1
        size = kept
        _sort(ends, r, size)
    _push(ends, r, size, (seq[i, END] << BITS) | i)
    rep[r, HEAP] = size + 1
    rep[r, PUSHED] += 1


@_compiled(inline=True)
def _drop_end(rep: Any, ends: Any, r: int) -> None:
    if rep[r, SORTED]:
        rep[r, LOW] += 1
    else:
        _pop(ends, r, rep[r, HEAP])
        rep[r, HEAP] -= 1
    if rep[r, LOW] == rep[r, HEAP]:
        rep[r, LOW] = rep[r, HEAP] = 0


@_compiled(inline=True)
def _next_end(seq: Any, rep: Any, ends: Any, r: int) -> int:
    """Key of the next sequence to end, -1 if none decodes; entries of preempted ones are dropped."""
    while rep[r, LOW] < rep[r, HEAP]:
        key = ends[r, rep[r, LOW]]
        if seq[key & MASK, END] == key >> BITS:
            return int(key)
        _drop_end(rep, ends, r)
    return -1


@_compiled()
def _sort_ends(rep: Any, ends: Any, r: int) -> None:
    """Sort the heap once as many were pushed since the last time as it holds."""
    size = rep[r, HEAP] - rep[r, LOW]
    if not rep[r, SORTED] and size > 32 and rep[r, PUSHED] >= size:
        _sort(ends, r, size)
        rep[r, SORTED] = 1


@_compiled(inline=True)
def _join(seq: Any, rep: Any, phases: Any, fills: Any, settings: Any, r: int, i: int) -> None:
    """Count a sequence, whose context at the next step is BASE + step, among those that decode."""
    base, step = seq[i, BASE], rep[r, STEP]
    rep[r, DECODING] += 1
    rep[r, CONTEXT] += base + step
    if settings[BLOCKS] >= 0:
        phases[r, (1 - base) % settings[BLOCK]] += 1
    window = settings[WINDOW]
    if window == 0:
        return
    if base + step >= window:
        rep[r, FULL] += 1
        return
    rep[r, GROWING] += 1
    rep[r, GROWING_SUM] += base + step
    size = rep[r, WINDOW_HEAP]
    if size == fills.shape[1]:
        kept = 0
        for j in range(size):
            k = fills[r, j] & MASK
            if seq[k, END] >= 0 and window - seq[k, BASE] == fills[r, j] >> BITS:
                fills[r, kept] = fills[r, j]
                kept += 1
        size = kept
        _sort(fills, r, size)
    _push(fills, r, size, ((window - base) << BITS) | i)
    rep[r, WINDOW_HEAP] = size + 1


@_compiled(inline=True)
def _leave(seq: Any, rep: Any, phases: Any, settings: Any, r: int, i: int) -> None:
    base, step = seq[i, BASE], rep[r, STEP]
    rep[r, DECODING] -= 1
    rep[r, CONTEXT] -= base + step
    if settings[BLOCKS] >= 0:
        phases[r, (1 - base) % settings[BLOCK]] -= 1
    if settings[WINDOW] > 0:
        if base + step >= settings[WINDOW]:
            rep[r, FULL] -= 1
        else:
            rep[r, GROWING] -= 1
            rep[r, GROWING_SUM] -= base + step


@_compiled()
def _fill_windows(seq: Any, rep: Any, fills: Any, settings: Any, r: int) -> None:
    """Sequences whose context has reached the window stop growing."""
    last = -1
    while rep[r, WINDOW_HEAP] > 0 and fills[r, 0] >> BITS <= rep[r, STEP]:
        key = fills[r, 0]
        _pop(fills, r, rep[r, WINDOW_HEAP])
        rep[r, WINDOW_HEAP] -= 1
        i = key & MASK
        # A sequence that left and came back at the same phase stands twice in the heap.
        if key != last and seq[i, END] >= 0 and settings[WINDOW] - seq[i, BASE] == key >> BITS:
            rep[r, GROWING] -= 1
            rep[r, GROWING_SUM] -= settings[WINDOW]
            rep[r, FULL] += 1
        last = key


@_compiled(inline=True)
def _unlink(seq: Any, rep: Any, r: int, i: int) -> None:
    before, after = seq[i, PREV], seq[i, NEXT]
    if before >= 0:
        seq[before, NEXT] = after
    if after >= 0:
        seq[after, PREV] = before
    else:
        rep[r, TAIL] = before
    rep[r, RUNNING] -= 1


@_compiled()
def _wait_first(seq: Any, rep: Any, r: int, i: int) -> None:
    seq[i, END] = WAITING
    seq[i, NEXT] = rep[r, FIRST]
    rep[r, FIRST] = i
    if rep[r, LAST] < 0:
        rep[r, LAST] = i


@_compiled()
def _wait_last(seq: Any, rep: Any, r: int, i: int) -> None:
    seq[i, END] = WAITING
    seq[i, NEXT] = -1
    if rep[r, LAST] < 0:
        rep[r, FIRST] = i
    else:
        seq[rep[r, LAST], NEXT] = i
    rep[r, LAST] = i


# -- blocks -------------------------------------------------------------------------------------------


@_compiled(inline=True)
def _release(grp: Any, rep: Any, settings: Any, r: int, g: int, computed: int) -> None:
    """Free the blocks of a sequence of which `computed` tokens are in the cache."""
    if settings[BLOCKS] < 0:
        grp[g, REFERENCES] -= 1
        return
    block = settings[BLOCK]
    rep[r, FREE] += (computed + block - 1) // block - grp[g, SHARED] + settings[FIXED]
    grp[g, REFERENCES] -= 1
    if grp[g, REFERENCES] == 0:
        rep[r, FREE] += grp[g, SHARED]


@_compiled()
def _let_go(turn: Any, rep: Any, r: int, i: int) -> None:
    """Take a sequence off the list of those that hold their cache while they do not run."""
    before, after = turn[i, HELD_PREV], turn[i, HELD_NEXT]
    if before >= 0:
        turn[before, HELD_NEXT] = after
    else:
        rep[r, HELD_FIRST] = after
    if after >= 0:
        turn[after, HELD_PREV] = before
    else:
        rep[r, HELD_LAST] = before
    turn[i, HELD] = 0


@_compiled()
def _evict(seq: Any, turn: Any, grp: Any, rep: Any, settings: Any, totals: Any, r: int, needed: int, but: int) -> None:
    """Drop held caches, the oldest first, until `needed` blocks are free or none is left."""
    i = rep[r, HELD_FIRST]
    while i >= 0 and rep[r, FREE] < needed:
        after = turn[i, HELD_NEXT]
        if i != but:
            _let_go(turn, rep, r, i)
            _release(grp, rep, settings, r, i // settings[GROUP], seq[i, BASE])
            seq[i, PEAK] = max(seq[i, PEAK], seq[i, BASE])
            seq[i, BASE] = 0
            totals[EVICTIONS] += 1
        i = after


@_compiled()
def _stop_running(seq: Any, grp: Any, rep: Any, phases: Any, settings: Any, r: int) -> int:
    """Send the last running sequence back to the front of the waiting ones, without its cache."""
    i = rep[r, TAIL]
    if i == rep[r, PARTIAL]:
        computed = seq[i, BASE]
        rep[r, PARTIAL] = -1
    else:
        context = seq[i, BASE] + rep[r, STEP]
        _leave(seq, rep, phases, settings, r, i)
        computed = context - 1
        seq[i, TOKENS] = context
        seq[i, LEFT] = seq[i, END] - rep[r, STEP]
    _release(grp, rep, settings, r, i // settings[GROUP], computed)
    seq[i, PEAK] = max(seq[i, PEAK], computed)
    seq[i, BASE] = 0
    _unlink(seq, rep, r, i)
    _wait_first(seq, rep, r, i)
    return int(i)


@_compiled()
def _growth(rep: Any, phases: Any, settings: Any, r: int, steps: int) -> int:
    """Blocks that the decoding sequences take in the next steps."""
    block = settings[BLOCK]
    taken = (steps // block) * rep[r, DECODING]
    first = rep[r, STEP] % block
    for j in range(steps % block):
        at = first + j
        taken += phases[r, at - block if at >= block else at]
    return int(taken)


@_compiled()
def _steps_that_fit(rep: Any, phases: Any, settings: Any, r: int, steps: int, free: int, k: int, chunk: int) -> int:
    """Most steps, at least one and at most `steps`, whose blocks `free` holds (those of the first are known to)."""
    block, n = settings[BLOCK], rep[r, DECODING]
    if n * ((steps + block - 1) // block) + (steps * chunk + block - 1) // block + 1 <= free:
        return steps
    if chunk == 0:
        fit = (free // n) * block
        if fit >= steps:
            return steps
        free -= (fit // block) * n
        first = rep[r, STEP] % block
        for j in range(block):
            at = first + j
            free -= phases[r, at - block if at >= block else at]
            if free < 0:
                break
            fit += 1
        return int(max(1, min(steps, fit)))
    low, high = 1, steps
    while low < high:
        middle = (low + high + 1) // 2
        more = (k + middle * chunk + block - 1) // block - (k + block - 1) // block
        if _growth(rep, phases, settings, r, middle) + more <= free:
            low = middle
        else:
            high = middle - 1
    return low


# -- time ---------------------------------------------------------------------------------------------


@_compiled(inline=True)
def _duration(seq: Any, rep: Any, times: Any, law: Any, table: Any, settings: Any, r: int, m: int) -> float:
    """T(m) of the planned span."""
    n = rep[r, DECODING]
    steps = float(m)
    half = steps * (steps - 1.0) / 2.0
    total = steps * table[max(n, 1)] + law[KAPPA] * (steps * rep[r, CONTEXT] + n * half)
    if settings[WINDOW] > 0:
        within = steps * (rep[r, GROWING_SUM] + rep[r, FULL] * float(settings[WINDOW])) + rep[r, GROWING] * half
        total += law[OMEGA] * within
    tokens, pairs = times[r, PREFILL], times[r, PAIRS]
    if m > 1 and rep[r, CHUNK] > 0:
        tokens = steps * rep[r, CHUNK]
        pairs = tokens * seq[rep[r, PARTIAL], BASE] + tokens * (tokens + 1.0) / 2.0
    if tokens > 0.0:
        total += law[PI] * tokens + law[CHI] * pairs
    return float(total)


@_compiled()
def _cut(seq: Any, rep: Any, times: Any, law: Any, table: Any, settings: Any, r: int, time: float) -> None:
    """End the planned span at its first boundary at or after `time`."""
    if rep[r, PHASE] != PLANNED or rep[r, SPAN] == 1:
        return
    low, high = 1, rep[r, SPAN]
    while low < high:
        middle = (low + high) // 2
        if times[r, CLOCK] + _duration(seq, rep, times, law, table, settings, r, middle) >= time:
            high = middle
        else:
            low = middle + 1
    if low < rep[r, SPAN]:
        rep[r, SPAN] = low
        times[r, PENDING] = times[r, CLOCK] + _duration(seq, rep, times, law, table, settings, r, low)


# -- one replica --------------------------------------------------------------------------------------


@_compiled(inline=True)
def _prefill(seq: Any, rep: Any, times: Any, totals: Any, r: int, i: int, k: int, tokens: int) -> None:
    times[r, PREFILL] += tokens
    times[r, PAIRS] += float(tokens) * k + tokens * (tokens + 1.0) / 2.0
    totals[PREFILLED] += tokens
    again = min(k + tokens, seq[i, PEAK]) - k
    if again > 0:
        totals[RECOMPUTED] += again


@_compiled(inline=True)
def _admit(
    seq: Any, turn: Any, grp: Any, rep: Any, times: Any, settings: Any, totals: Any, start: Any, versions: Any,
    r: int, budget: int,
) -> None:  # fmt: skip
    """Start waiting sequences, first come first served, while slots, tokens and blocks last."""
    block, blocks = settings[BLOCK], settings[BLOCKS]
    while rep[r, FIRST] >= 0 and budget > 0 and rep[r, RUNNING] < settings[MAX_SEQS]:
        i = rep[r, FIRST]
        g = i // settings[GROUP]
        held = settings[TURNS] > 0 and turn[i, HELD] > 0
        k = seq[i, BASE] if held else grp[g, SHARED] * block if grp[g, REFERENCES] > 0 else 0
        tokens = min(seq[i, TOKENS] - k, budget)
        if blocks >= 0:
            # A cache that starts at a shared prefix has whole blocks before it.
            need = (k + tokens + block - 1) // block - (k + block - 1) // block
            if not held:
                need += settings[FIXED]
            spare = settings[WATERMARK] if rep[r, RUNNING] > 0 else 0
            if need + spare > rep[r, FREE] and settings[TURNS] > 0:
                _evict(seq, turn, grp, rep, settings, totals, r, need + spare, i)
                if not held and grp[g, REFERENCES] == 0 and k > 0:
                    # The eviction took the shared prefix with it.
                    continue
            if need + spare > rep[r, FREE]:
                break
            rep[r, FREE] -= need
        if held:
            _let_go(turn, rep, r, i)
        else:
            grp[g, REFERENCES] += 1
        rep[r, FIRST] = seq[i, NEXT]
        if rep[r, FIRST] < 0:
            rep[r, LAST] = -1
        before = rep[r, TAIL]
        seq[i, PREV], seq[i, NEXT] = before, -1
        if before >= 0:
            seq[before, NEXT] = i
        rep[r, TAIL] = i
        rep[r, RUNNING] += 1
        seq[i, END] = PREFILLING
        if start[i] < 0:
            start[i] = times[r, CLOCK]
            versions[i, 0] = rep[r, VERSION]
        _prefill(seq, rep, times, totals, r, i, k, tokens)
        budget -= tokens
        if k + tokens == seq[i, TOKENS]:
            rep[r, JOINING] += 1
        else:
            seq[i, BASE] = k
            rep[r, PARTIAL], rep[r, CHUNK] = i, tokens


@_compiled()
def _make_room(seq: Any, turn: Any, grp: Any, rep: Any, phases: Any, settings: Any, totals: Any, r: int) -> int:
    """Take the blocks of the next step, preempting the last admitted until they fit; the number preempted."""
    block, preempted = settings[BLOCK], 0
    while True:
        need = _growth(rep, phases, settings, r, 1)
        part = rep[r, PARTIAL]
        if part >= 0:
            k = seq[part, BASE]
            chunk = min(seq[part, TOKENS] - k, settings[BUDGET] - rep[r, DECODING])
            need += (k + chunk + block - 1) // block - (k + block - 1) // block
        if need > rep[r, FREE] and settings[TURNS] > 0:
            _evict(seq, turn, grp, rep, settings, totals, r, need, -1)
        if need <= rep[r, FREE]:
            rep[r, FREE] -= need
            return preempted
        i = _stop_running(seq, grp, rep, phases, settings, r)
        seq[i, PREEMPTED] += 1
        totals[PREEMPTIONS] += 1
        preempted += 1


@_compiled(inline=True)
def _plan(
    seq: Any, turn: Any, grp: Any, rep: Any, times: Any, ends: Any, fills: Any, phases: Any,
    law: Any, table: Any, settings: Any, totals: Any, start: Any, versions: Any, r: int,
) -> None:  # fmt: skip
    """Schedule the next step of a replica and find how often it repeats."""
    times[r, PREFILL] = times[r, PAIRS] = 0.0
    rep[r, JOINING] = rep[r, CHUNK] = 0
    preempted = _make_room(seq, turn, grp, rep, phases, settings, totals, r) if settings[BLOCKS] >= 0 else 0
    budget = settings[BUDGET] - rep[r, DECODING]
    part, going_on = rep[r, PARTIAL], False
    if part >= 0:
        k = seq[part, BASE]
        left = seq[part, TOKENS] - k
        chunk = min(left, budget)
        _prefill(seq, rep, times, totals, r, part, k, chunk)
        budget -= chunk
        if chunk == left:
            rep[r, PARTIAL] = -1
            rep[r, JOINING] = 1
        else:
            rep[r, CHUNK] = chunk
            going_on = True
    if preempted == 0 and budget > 0 and rep[r, FIRST] >= 0:
        _admit(seq, turn, grp, rep, times, settings, totals, start, versions, r, budget)
    if rep[r, RUNNING] == 0:
        rep[r, PHASE] = IDLE
        return
    rep[r, PHASE] = PLANNED
    m = 1
    if rep[r, JOINING] == 0 and preempted == 0 and (going_on or rep[r, PARTIAL] < 0):
        m = 1 << 40
        if rep[r, DECODING] > 0:
            if rep[r, FIRST] < 0:
                _sort_ends(rep, ends, r)
            m = (_next_end(seq, rep, ends, r) >> BITS) - rep[r, STEP]
        if going_on:
            m = min(m, (seq[part, TOKENS] - seq[part, BASE] - 1) // rep[r, CHUNK])
        if settings[WINDOW] > 0 and rep[r, WINDOW_HEAP] > 0:
            m = min(m, (fills[r, 0] >> BITS) - rep[r, STEP])
        if settings[BLOCKS] >= 0 and m > 1:
            # The blocks of the first step are taken already.
            chunk, free = 0, rep[r, FREE] + _growth(rep, phases, settings, r, 1)
            k = 0
            if going_on:
                chunk, k = rep[r, CHUNK], seq[part, BASE]
                free += (k + chunk + settings[BLOCK] - 1) // settings[BLOCK] - (k + settings[BLOCK] - 1) // settings[
                    BLOCK
                ]
            m = _steps_that_fit(rep, phases, settings, r, m, free, k, chunk)
    rep[r, SPAN] = m
    times[r, PENDING] = times[r, CLOCK] + _duration(seq, rep, times, law, table, settings, r, m)


@_compiled(inline=True)
def _commit(
    seq: Any, turn: Any, grp: Any, rep: Any, times: Any, ends: Any, fills: Any, phases: Any, settings: Any,
    totals: Any, finish: Any, versions: Any, done_at: Any, return_at: Any, return_who: Any, turn_tokens: Any,
    turn_extra: Any, turn_seconds: Any, r: int,
) -> None:  # fmt: skip
    """Apply the planned span: tokens are computed, prompts join, sequences end."""
    m, n, block = rep[r, SPAN], rep[r, DECODING], settings[BLOCK]
    part = rep[r, PARTIAL]
    if settings[BLOCKS] >= 0 and m > 1:
        rep[r, FREE] -= _growth(rep, phases, settings, r, m) - _growth(rep, phases, settings, r, 1)
    if part >= 0:
        k, chunk = seq[part, BASE], rep[r, CHUNK]
        if m > 1:
            if settings[BLOCKS] >= 0:
                rep[r, FREE] -= (k + m * chunk + block - 1) // block - (k + chunk + block - 1) // block
            more = (m - 1) * chunk
            totals[PREFILLED] += more
            again = min(k + m * chunk, seq[part, PEAK]) - (k + chunk)
            if again > 0:
                totals[RECOMPUTED] += again
        seq[part, BASE] = k + m * chunk
    rep[r, STEP] += m
    totals[STEPS] += m
    rep[r, CONTEXT] += m * n
    step, clock = rep[r, STEP], times[r, PENDING]
    times[r, CLOCK] = clock
    if settings[WINDOW] > 0:
        rep[r, GROWING_SUM] += m * rep[r, GROWING]
        _fill_windows(seq, rep, fills, settings, r)
    i = rep[r, TAIL]
    if part >= 0:
        i = seq[part, PREV]
    for _ in range(rep[r, JOINING]):
        seq[i, LEFT] -= 1
        seq[i, BASE] = seq[i, TOKENS] + 1 - step
        seq[i, END] = step + seq[i, LEFT]
        _join(seq, rep, phases, fills, settings, r, i)
        _add_end(seq, rep, ends, r, i)
        i = seq[i, PREV]
    while True:
        key = _next_end(seq, rep, ends, r)
        if key < 0 or key >> BITS > step:
            break
        _drop_end(rep, ends, r)
        i = key & MASK
        context = seq[i, BASE] + step
        _leave(seq, rep, phases, settings, r, i)
        _unlink(seq, rep, r, i)
        g = i // settings[GROUP]
        if settings[TURNS] > 0 and turn[i, TURN] + 1 < turn_tokens.shape[1] and turn_tokens[i, turn[i, TURN] + 1] > 0:
            now = turn[i, TURN]
            seq[i, END] = PAUSED
            seq[i, LEFT] = turn_tokens[i, now + 1]
            seq[i, TOKENS] = context + turn_extra[i, now]
            turn[i, TURN] = now + 1
            if settings[KEEP_KV]:
                seq[i, BASE] = context - 1
                turn[i, HELD] = 1
                turn[i, HELD_PREV], turn[i, HELD_NEXT] = rep[r, HELD_LAST], -1
                if rep[r, HELD_LAST] >= 0:
                    turn[rep[r, HELD_LAST], HELD_NEXT] = i
                else:
                    rep[r, HELD_FIRST] = i
                rep[r, HELD_LAST] = i
            else:
                _release(grp, rep, settings, r, g, context - 1)
                seq[i, PEAK] = max(seq[i, PEAK], context - 1)
                seq[i, BASE] = 0
            _push_return(return_at, return_who, totals[RETURNS], clock + turn_seconds[i, now], i)
            totals[RETURNS] += 1
            continue
        _release(grp, rep, settings, r, g, context - 1)
        seq[i, END] = DONE
        seq[i, LEFT] = 0
        finish[i] = clock
        versions[i, 1] = rep[r, VERSION]
        rep[r, LOAD] -= 1
        rep[r, LOAD_TOKENS] -= context
        grp[g, REMAINING] -= 1
        if grp[g, REMAINING] == 0:
            done_at[g] = clock
            totals[COMPLETE] += 1
            totals[KEPT if grp[g, KEEP] else DROPPED] += 1
            totals[DIRTY] = 1
    rep[r, PHASE] = BOUNDARY


@_compiled()
def _interrupt(
    seq: Any, turn: Any, grp: Any, rep: Any, times: Any, phases: Any, settings: Any, totals: Any, r: int
) -> None:
    """Weights arrive, or the replica is to stop: in-flight caches go (or stay) and the clock waits."""
    if settings[RECOMPUTE]:
        while rep[r, TAIL] >= 0:
            _stop_running(seq, grp, rep, phases, settings, r)
        rep[r, LOW] = rep[r, HEAP] = rep[r, SORTED] = rep[r, WINDOW_HEAP] = 0
        if settings[TURNS] > 0 and rep[r, HELD_FIRST] >= 0:
            _evict(seq, turn, grp, rep, settings, totals, r, 1 << 60, -1)
    if rep[r, SIGNAL] == 2:
        rep[r, PHASE] = STOPPED
    else:
        times[r, CLOCK] += times[r, PAUSE]
    rep[r, SIGNAL] = 0
    rep[r, VERSION] = rep[r, NEXT_VERSION]


@_compiled()
def _show(rep: Any, times: Any, totals: Any, shown: Any, r: int, at: float, running: int) -> None:
    """Note the number of running sequences where it changes."""
    if running != rep[r, SHOWN]:
        row = totals[SHOWN_ROWS]
        shown[row, 0], shown[row, 1], shown[row, 2] = at, r, running
        totals[SHOWN_ROWS] = row + 1
        rep[r, SHOWN] = running


@_compiled()
def _launch(
    seq: Any, grp: Any, rep: Any, times: Any, law: Any, table: Any, settings: Any, totals: Any, launched_at: Any,
    arrivals: Any, size: Any, now: float,
) -> None:  # fmt: skip
    """Launch groups while the limits allow, each on the replica that the dispatch chooses."""
    groups, members = grp.shape[0], settings[GROUP]
    while totals[LAUNCHED] < groups:
        g = totals[LAUNCHED]
        counted = g - totals[DROPPED] if settings[REPLACE] else g
        if counted >= settings[LAUNCH_MAX] or g - totals[COMPLETE] >= settings[IN_FLIGHT_MAX]:
            break
        if arrivals.size > 0 and arrivals[g] > now:
            break
        r = g % rep.shape[0]
        if settings[DISPATCH] > 0:
            column, r = (LOAD if settings[DISPATCH] == 1 else LOAD_TOKENS), 0
            for other in range(1, rep.shape[0]):
                if rep[other, column] < rep[r, column]:
                    r = other
        grp[g, REPLICA] = r
        launched_at[g] = now
        for i in range(g * members, (g + 1) * members):
            _wait_last(seq, rep, r, i)
            rep[r, LOAD_TOKENS] += size[i]
        rep[r, LOAD] += members
        totals[LAUNCHED] = g + 1
        _wake(seq, rep, times, law, table, settings, r, now)


@_compiled()
def _wake(seq: Any, rep: Any, times: Any, law: Any, table: Any, settings: Any, r: int, now: float) -> None:
    """Let a replica see what has arrived: at its first boundary from now on."""
    if rep[r, PHASE] == IDLE:
        times[r, CLOCK] = max(times[r, CLOCK], now)
        rep[r, PHASE] = BOUNDARY
    else:
        _cut(seq, rep, times, law, table, settings, r, now)


@_compiled()
def run(
    seq: Any, turn: Any, grp: Any, rep: Any, times: Any, ends: Any, fills: Any, phases: Any, law: Any, table: Any,
    settings: Any, totals: Any, start: Any, finish: Any, versions: Any, launched_at: Any, done_at: Any, arrivals: Any,
    size: Any, return_at: Any, return_who: Any, turn_tokens: Any, turn_extra: Any, turn_seconds: Any, shown: Any,
    state: Any, limit: float,
) -> int:  # fmt: skip
    """Run until the target of kept groups, the time limit, or rest; arrays are changed in place, the reason returned.

    `state[0]` is the time of the last event.
    """
    replicas = rep.shape[0]
    while True:
        if totals[SHOWN_ROWS] + 2 > shown.shape[0]:
            return OUT_OF_ROWS
        ending, beginning, stopped = -1, -1, 0
        for r in range(replicas):
            phase = rep[r, PHASE]
            if phase == PLANNED:
                if ending < 0 or times[r, PENDING] < times[ending, PENDING]:
                    ending = r
            elif phase == BOUNDARY:
                if beginning < 0 or times[r, CLOCK] < times[beginning, CLOCK]:
                    beginning = r
            elif phase == STOPPED:
                stopped += 1
        if stopped == replicas:
            return ALL_STOPPED
        end_at = times[ending, PENDING] if ending >= 0 else np.inf
        begin_at = times[beginning, CLOCK] if beginning >= 0 else np.inf
        return_time = return_at[0] if totals[RETURNS] > 0 else np.inf
        arrival_time = np.inf
        # An arrival is an event once: afterwards the group waits for the limits.
        if arrivals.size > 0 and totals[NOTICED] <= totals[LAUNCHED] < grp.shape[0]:
            arrival_time = arrivals[totals[LAUNCHED]]
        if totals[DIRTY] and end_at > state[0] and return_time >= state[0]:
            if totals[KEPT] >= settings[TARGET]:
                return AT_TARGET
            totals[DIRTY] = 0
            _launch(seq, grp, rep, times, law, table, settings, totals, launched_at, arrivals, size, state[0])
            continue
        if end_at <= begin_at and end_at <= return_time and end_at <= arrival_time:
            if ending < 0:
                return AT_REST
            if end_at > limit:
                return AT_LIMIT
            state[0] = end_at
            _commit(
                seq, turn, grp, rep, times, ends, fills, phases, settings, totals, finish, versions, done_at,
                return_at,
                return_who, turn_tokens, turn_extra, turn_seconds, ending,
            )  # fmt: skip
        elif arrival_time <= begin_at and arrival_time <= return_time:
            if arrival_time >= limit:
                return AT_LIMIT
            state[0] = max(state[0], arrival_time)
            totals[NOTICED] = totals[LAUNCHED] + 1
            totals[DIRTY] = 1
        elif return_time <= begin_at:
            if return_time >= limit:
                return AT_LIMIT
            i = return_who[0]
            _pop_return(return_at, return_who, totals[RETURNS])
            totals[RETURNS] -= 1
            r = grp[i // settings[GROUP], REPLICA]
            _wait_last(seq, rep, r, i)
            if rep[r, PHASE] != STOPPED:
                _wake(seq, rep, times, law, table, settings, r, return_time)
            state[0] = max(state[0], return_time)
        else:
            if begin_at >= limit:
                return AT_LIMIT
            r = beginning
            state[0] = begin_at
            if rep[r, SIGNAL] > 0:
                _interrupt(seq, turn, grp, rep, times, phases, settings, totals, r)
                if rep[r, PHASE] == STOPPED or times[r, CLOCK] > begin_at:
                    _show(rep, times, totals, shown, r, begin_at, 0)
                    continue
            _plan(
                seq, turn, grp, rep, times, ends, fills, phases, law, table, settings, totals, start, versions, r
            )  # fmt: skip
            _show(rep, times, totals, shown, r, times[r, CLOCK], rep[r, RUNNING])


@_compiled()
def signal(
    seq: Any, rep: Any, times: Any, law: Any, table: Any, settings: Any, now: float, kind: int, pause: float,
    version: int,
) -> None:  # fmt: skip
    """Tell every replica to take new weights (1) or to stop (2) at its first boundary from now on."""
    for r in range(rep.shape[0]):
        rep[r, SIGNAL] = kind
        rep[r, NEXT_VERSION] = version
        times[r, PAUSE] = pause
        _wake(seq, rep, times, law, table, settings, r, now)
