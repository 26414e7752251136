r"""State of one simulation: arrays for the kernel, and what a controller may do with them.

A controller (`modes`) sets how many groups may be launched, runs to a target or a time, and signals new weights.
Everything that the kernel changes lives in the arrays of a `Simulation`; nothing is drawn here. Per response the
kernel holds 80 bytes, per group 36, and a row of 24 bytes wherever the number of running sequences changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchsim.system.decode_law import DecodeLaw
from batchsim.system.rollout import _kernels as k
from batchsim.system.rollout.checks import Workload

DISPATCHES = ("static", "least_loaded", "length_aware")
NO_LIMIT = 1 << 62


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Settings of every replica, checked by `checks.check_engine`.

    Parameters
    ----------
    max_num_seqs, max_num_batched_tokens : int [responses], [tokens]
    kv_blocks : int or None [blocks]
        Unlimited if None.
    block_size : int [tokens]
    fixed_blocks, watermark_blocks : int [blocks]
    share_prefix, keep_kv : bool
    replicas : int
    dispatch : str
    graph_sizes : tuple of int [responses]
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    kv_blocks: int | None
    block_size: int
    fixed_blocks: int
    watermark_blocks: int
    share_prefix: bool
    keep_kv: bool
    replicas: int
    dispatch: str
    graph_sizes: tuple[int, ...] = ()


def padded_table(law: DecodeLaw, engine: Engine) -> NDArray[np.float64]:
    """Step times up to max_num_seqs, at the batch that a CUDA graph rounds up to [s]."""
    table = np.asarray(law.step_time, dtype=np.float64)
    n = np.arange(engine.max_num_seqs + 1)
    if engine.graph_sizes:
        sizes = np.array(sorted(engine.graph_sizes))
        at = np.searchsorted(sizes, n)
        n = np.where((at < sizes.size) & (n > 0), sizes[np.minimum(at, sizes.size - 1)], n)
    return np.ascontiguousarray(table[n])


@dataclass(kw_only=True)
class Simulation:
    """A rollout in progress.

    Parameters
    ----------
    law : DecodeLaw
    work : Workload
    engine : Engine
    """

    law: DecodeLaw
    work: Workload
    engine: Engine
    seq: NDArray[np.int64] = field(init=False)
    grp: NDArray[np.int32] = field(init=False)
    rep: NDArray[np.int64] = field(init=False)
    times: NDArray[np.float64] = field(init=False)
    settings: NDArray[np.int64] = field(init=False)
    totals: NDArray[np.int64] = field(init=False)
    start: NDArray[np.float64] = field(init=False)
    finish: NDArray[np.float64] = field(init=False)
    versions: NDArray[np.int32] = field(init=False)
    launched_at: NDArray[np.float64] = field(init=False)
    done_at: NDArray[np.float64] = field(init=False)
    shown: NDArray[np.float64] = field(init=False)
    turn: NDArray[np.int64] = field(init=False)
    state: NDArray[np.float64] = field(init=False)
    _fixed: tuple[Any, ...] = field(init=False)

    def __post_init__(self) -> None:
        work, engine, law = self.work, self.engine, self.law
        count, groups, replicas = work.prompt.size, work.keep.size, engine.replicas
        self._sequences(count)
        self.grp = np.zeros((groups, 5), dtype=np.int32)
        self.grp[:, k.REMAINING] = work.group_size
        self.grp[:, k.KEEP] = work.keep
        if engine.share_prefix and work.group_size > 1:
            self.grp[:, k.SHARED] = (work.prompt[:: work.group_size] - 1) // engine.block_size
        blocks = engine.kv_blocks if engine.kv_blocks is not None else -1
        self.rep = np.zeros((replicas, k.REPLICA_COLUMNS), dtype=np.int64)
        for column in (k.PARTIAL, k.TAIL, k.FIRST, k.LAST, k.HELD_FIRST, k.HELD_LAST):
            self.rep[:, column] = -1
        self.rep[:, k.FREE] = blocks
        self.rep[:, k.PHASE] = k.IDLE
        self.times = np.zeros((replicas, k.REPLICA_FLOATS))
        self.start, self.finish = np.full(count, -1.0), np.full(count, np.nan)
        self.versions = np.full((count, 2), -1, dtype=np.int32)
        self.launched_at, self.done_at = np.full(groups, np.nan), np.full(groups, np.nan)
        self.totals, self.state = np.zeros(k.TOTALS, dtype=np.int64), np.zeros(1)
        self.totals[k.DIRTY] = 1
        self.shown = np.empty((1024, 3))
        self.settings = self._settings(blocks)
        running = min(engine.max_num_seqs, count)
        windowed = law.window > 0 and law.window_time > 0
        turns = work.turns
        several = turns is not None
        none = np.zeros((1, 1))
        self._fixed = (
            np.empty((replicas, 2 * running + 64), dtype=np.int64),
            np.empty((replicas, 2 * running + 64 if windowed else 1), dtype=np.int64),
            np.zeros((replicas, engine.block_size if blocks >= 0 else 1), dtype=np.int64),
            np.array([law.context_time, law.window_time, law.prefill_time, law.prefill_context_time]),
            padded_table(law, engine),
            work.size,
            np.empty(count if several else 1),
            np.empty(count if several else 1, dtype=np.int64),
            turns.tokens if turns is not None else np.ones((1, 1), dtype=np.int64),
            turns.extra if turns is not None else np.zeros((1, 1), dtype=np.int64),
            turns.seconds if turns is not None else none,
        )
        self.turn = np.full((count if several else 1, 4), -1, dtype=np.int64)
        self.turn[:, [k.TURN, k.HELD]] = 0

    def _sequences(self, count: int) -> None:
        self.seq = np.zeros((count, 8), dtype=np.int64)
        self.seq[:, k.TOKENS] = self.work.prompt
        self.seq[:, k.LEFT] = self.work.response if self.work.turns is None else self.work.turns.tokens[:, 0]
        self.seq[:, k.END] = k.WAITING

    def _settings(self, blocks: int) -> NDArray[np.int64]:
        engine, settings = self.engine, np.zeros(k.SETTINGS, dtype=np.int64)
        windowed = self.law.window > 0 and self.law.window_time > 0
        for column, value in {
            k.MAX_SEQS: engine.max_num_seqs,
            k.BUDGET: engine.max_num_batched_tokens,
            k.BLOCKS: blocks,
            k.BLOCK: engine.block_size,
            k.FIXED: engine.fixed_blocks,
            k.WATERMARK: engine.watermark_blocks,
            k.GROUP: self.work.group_size,
            k.WINDOW: self.law.window if windowed else 0,
            k.IN_FLIGHT_MAX: NO_LIMIT,
            k.LAUNCH_MAX: NO_LIMIT,
            k.DISPATCH: DISPATCHES.index(engine.dispatch),
            k.TURNS: int(self.work.turns is not None),
            k.KEEP_KV: int(engine.keep_kv),
            k.TARGET: NO_LIMIT,
        }.items():
            settings[column] = value
        return settings

    @property
    def now(self) -> float:
        """Time of the last event [s]."""
        return float(self.state[0])

    def run(self, until: float = math.inf) -> int:
        """Run to the target of kept groups, to a time, or to rest; the reason, as `_kernels` numbers them."""
        ends, fills, phases, law, table, size, return_at, return_who, tokens, extra, seconds = self._fixed
        while True:
            reason = k.run(
                self.seq, self.turn, self.grp, self.rep, self.times, ends, fills, phases, law, table, self.settings,
                self.totals, self.start, self.finish, self.versions, self.launched_at, self.done_at,
                self.work.arrivals, size, return_at,
                return_who, tokens, extra, seconds, self.shown, self.state, until,
            )  # fmt: skip
            if reason != k.OUT_OF_ROWS:
                return int(reason)
            more = np.empty((2 * self.shown.shape[0] + 2 * self.engine.replicas, 3))
            more[: self.shown.shape[0]] = self.shown
            self.shown = more

    def launch_at(self, time: float) -> None:
        """Let the launch limits be looked at anew at a time that no event has passed."""
        self.state[0] = max(self.now, time)
        self.totals[k.DIRTY] = 1

    def weights(self, time: float, *, version: int, pause: float, recompute: bool) -> None:
        """New weights at the first boundary of every replica from `time` on, for a pause there [s]."""
        self._signal(time, 1, pause, version, recompute)

    def stop(self, *, version: int, recompute: bool) -> None:
        """Stop every replica at its first boundary from now on."""
        self._signal(self.now, 2, 0.0, version, recompute)
        while self.run() != k.ALL_STOPPED:
            pass

    def resume(self, time: float) -> None:
        """Let stopped replicas begin their next step at a time."""
        self.times[:, k.CLOCK] = time
        self.rep[:, k.PHASE] = k.BOUNDARY

    def _signal(self, time: float, kind: int, pause: float, version: int, recompute: bool) -> None:
        self.settings[k.RECOMPUTE] = int(recompute)
        k.signal(
            self.seq, self.rep, self.times, self._fixed[3], self._fixed[4], self.settings, time, kind, pause, version
        )

    @property
    def left(self) -> NDArray[np.int64]:
        """Tokens that every response has still to generate in its present turn, once replicas stand at a boundary."""
        seq = self.seq
        step = self.rep[self.grp[:, k.REPLICA], k.STEP].repeat(self.work.group_size)
        return np.where(seq[:, k.END] >= 0, seq[:, k.END] - step, seq[:, k.LEFT])
