"""Slow twin of the rollout: one token per sequence and step, one step after another, blocks counted anew each time.

It follows the definition in the text of `batchsim.system.rollout` and shares no code with the kernel. Numbers may be
floats or Fractions; with law times that are whole multiples of a power of two both are exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class Response:
    name: int
    group: int
    prompt: int
    turns: list[int]
    extra: list[int]
    seconds: list[float]
    turn: int = 0
    tokens: int = 0
    generated: int = 0
    computed: int = 0
    decodes: bool = False
    peak: int = 0
    preempted: int = 0
    start: float | None = None
    finish: float | None = None
    start_version: int = -1
    finish_version: int = -1
    replica: int = -1


@dataclass(eq=False)
class Replica:
    running: list[Response] = field(default_factory=list)
    waiting: list[Response] = field(default_factory=list)
    held: list[Response] = field(default_factory=list)
    clock: float = 0.0
    step_end: float | None = None
    asleep: bool = True
    stopped: bool = False
    signal: str = ""
    pause: float = 0.0
    recompute: bool = False
    version: int = 0
    next_version: int = 0


class Twin:
    """A rollout in progress; `options` are those of `rollout`."""

    def __init__(
        self,
        *,
        law: Any,
        prompts: Sequence[int],
        responses: Sequence[Sequence[int]],
        extra: Sequence[Sequence[int]] | None = None,
        seconds: Sequence[Sequence[float]] | None = None,
        kept: Sequence[bool] | None = None,
        arrivals: Sequence[float] | None = None,
        group_size: int = 1,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        kv_blocks: int | None = None,
        block_size: int = 16,
        fixed_blocks: int = 0,
        watermark_blocks: int = 0,
        share_prefix: bool = True,
        keep_kv: bool = False,
        replicas: int = 1,
        dispatch: str = "static",
        graph_sizes: Sequence[int] = (),
    ) -> None:
        self.law, self.graph_sizes = law, sorted(graph_sizes)
        self.group_size, self.max_num_seqs, self.budget = group_size, max_num_seqs, max_num_batched_tokens
        self.kv_blocks, self.block, self.fixed, self.watermark = kv_blocks, block_size, fixed_blocks, watermark_blocks
        self.share, self.keep_kv, self.dispatch = share_prefix, keep_kv, dispatch
        self.all = [
            Response(
                i,
                i // group_size,
                prompts[i],
                [t for t in turns if t > 0],
                list(extra[i]) if extra else [],
                list(seconds[i]) if seconds else [],
            )
            for i, turns in enumerate(responses)
        ]
        for response in self.all:
            response.tokens = response.prompt
        self.groups = len(self.all) // group_size
        self.kept = list(kept) if kept is not None else [True] * self.groups
        self.arrivals = list(arrivals) if arrivals is not None else [0.0] * self.groups
        self.noticed: set[int] = set()
        self.replicas = [Replica() for _ in range(replicas)]
        self.returns: list[tuple[float, int]] = []
        self.now = 0.0
        self.launched = 0
        self.launched_at: list[float] = []
        self.done_at: dict[int, float] = {}
        self.launch_max: float = math.inf
        self.in_flight_max: float = math.inf
        self.replace = False
        self.target: float = math.inf
        self.look = True
        self.prefilled = self.recomputed = self.evictions = self.preemptions = self.steps = 0
        self.shown: list[tuple[float, int, int]] = []

    # -- blocks ---------------------------------------------------------------------------------------

    def prefix(self, response: Response) -> int:
        """Blocks of a prompt that siblings can share."""
        return (response.prompt - 1) // self.block if self.share and self.group_size > 1 else 0

    def residents(self, replica: Replica) -> list[Response]:
        return [*replica.running, *replica.held]

    def used(self, replica: Replica) -> int:
        total = 0
        by_group: dict[int, list[Response]] = {}
        for response in self.residents(replica):
            by_group.setdefault(response.group, []).append(response)
        for members in by_group.values():
            total += sum(-(-m.computed // self.block) + self.fixed for m in members)
            total -= (len(members) - 1) * self.prefix(members[0])
        return total

    def free(self, replica: Replica) -> float:
        return math.inf if self.kv_blocks is None else self.kv_blocks - self.used(replica)

    def evict(self, replica: Replica, fits: Any, but: Response | None = None) -> None:
        for response in list(replica.held):
            if fits():
                return
            if response is not but:
                replica.held.remove(response)
                self.lose(response)
                self.evictions += 1

    def lose(self, response: Response) -> None:
        response.peak = max(response.peak, response.computed)
        response.computed = 0
        response.decodes = False

    # -- one step -------------------------------------------------------------------------------------

    def begin(self, replica: Replica, index: int) -> None:
        """Schedule a step as vLLM does: running first, in order of admission; then waiting."""
        scheduled: dict[int, int] = {}
        budget, preempted = self.budget, False
        # `computed` includes what the step will compute, so that blocks are taken when they are scheduled.
        at = 0
        while at < len(replica.running):
            response = replica.running[at]
            tokens = min(response.tokens - response.computed, budget)
            dropped = False
            while True:
                response.computed += tokens
                if self.free(replica) >= 0:
                    break
                response.computed -= tokens

                def fits(r: Response = response, t: int = tokens) -> bool:
                    r.computed += t
                    enough = self.free(replica) >= 0
                    r.computed -= t
                    return enough

                self.evict(replica, fits)
                if fits():
                    continue
                victim = replica.running.pop()
                self.lose(victim)
                victim.preempted += 1
                self.preemptions += 1
                replica.waiting.insert(0, victim)
                preempted = True
                if victim is response:
                    dropped = True
                    break
            if dropped:
                break
            scheduled[response.name] = tokens
            budget -= tokens
            at += 1
        while not preempted and replica.waiting and budget > 0 and len(replica.running) < self.max_num_seqs:
            if not self.admit(replica, scheduled, budget):
                break
            budget -= scheduled[replica.running[-1].name]
        self.start_step(replica, index, scheduled)

    def admit(self, replica: Replica, scheduled: dict[int, int], budget: int) -> bool:
        response = replica.waiting[0]
        held = response in replica.held
        spare = self.watermark if replica.running else 0

        def attempt() -> bool:
            before = response.computed
            if not held:
                sibling = any(r.group == response.group for r in self.residents(replica))
                response.computed = self.prefix(response) * self.block if sibling else 0
                replica.running.append(response)
            tokens = min(response.tokens - response.computed, budget)
            response.computed += tokens
            fits = self.free(replica) >= spare
            scheduled[response.name] = tokens
            if not fits:
                response.computed = before
                if not held:
                    replica.running.pop()
            return fits

        def fits_after() -> bool:
            if attempt():
                response.computed = 0 if not held else response.computed - scheduled[response.name]
                if not held:
                    replica.running.pop()
                return True
            return False

        self.evict(replica, fits_after, but=response)
        if not attempt():
            del scheduled[response.name]
            return False
        replica.waiting.pop(0)
        if held:
            replica.held.remove(response)
            replica.running.append(response)
        if response.start is None:
            response.start, response.start_version = replica.clock, replica.version
        return True

    def start_step(self, replica: Replica, index: int, scheduled: dict[int, int]) -> None:
        running = len(replica.running)
        if not self.shown_before(index, running):
            self.shown.append((replica.clock, index, running))
        if not running:
            replica.asleep = True
            return
        decoding = [r for r in replica.running if r.decodes]
        seconds = self.step_seconds(len(decoding))
        for response in decoding:
            seconds += self.law.context_time * response.tokens
            if self.law.window > 0:
                seconds += self.law.window_time * min(response.tokens, self.law.window)
        for response in replica.running:
            if response in decoding:
                continue
            tokens = scheduled[response.name]
            first = response.computed - tokens
            seconds += self.law.prefill_time * tokens
            seconds += self.law.prefill_context_time * sum(first + j + 1 for j in range(tokens))
            self.prefilled += tokens
            self.recomputed += sum(1 for j in range(tokens) if first + j < response.peak)
        replica.step_end = replica.clock + seconds
        self.steps += 1

    def step_seconds(self, decoding: int) -> float:
        if decoding > 0:
            decoding = next((s for s in self.graph_sizes if s >= decoding), decoding)
        else:
            decoding = next((s for s in self.graph_sizes if s >= 1), 1)
        return float(self.law.step_time[decoding])

    def shown_before(self, index: int, running: int) -> bool:
        last = [n for _, i, n in self.shown if i == index]
        return (last[-1] if last else 0) == running

    def end(self, replica: Replica, index: int) -> None:
        assert replica.step_end is not None
        replica.clock, replica.step_end = replica.step_end, None
        ended = []
        for response in replica.running:
            if response.computed < response.tokens:
                continue
            response.decodes = True
            response.tokens += 1
            response.generated += 1
            if response.generated == sum(response.turns[: response.turn + 1]):
                ended.append(response)
        for response in sorted(ended, key=lambda r: r.name):
            replica.running.remove(response)
            response.decodes = False
            if response.turn + 1 < len(response.turns):
                self.pause_turn(replica, response)
            else:
                self.complete(replica, response)

    def pause_turn(self, replica: Replica, response: Response) -> None:
        response.tokens += response.extra[response.turn]
        back = replica.clock + response.seconds[response.turn]
        response.turn += 1
        if self.keep_kv:
            replica.held.append(response)
        else:
            self.lose(response)
        self.returns.append((back, response.name))

    def complete(self, replica: Replica, response: Response) -> None:
        response.finish, response.finish_version = replica.clock, replica.version
        group = response.group
        if all(r.finish is not None for r in self.all[group * self.group_size : (group + 1) * self.group_size]):
            self.done_at[group] = replica.clock
            self.look = True

    # -- several replicas and the controller --------------------------------------------------------

    def count(self, kept: bool) -> int:
        return sum(1 for g in self.done_at if self.kept[g] == kept)

    def launch(self) -> None:
        while self.launched < self.groups:
            counted = self.launched - (self.count(False) if self.replace else 0)
            if counted >= self.launch_max or self.launched - len(self.done_at) >= self.in_flight_max:
                return
            group = self.launched
            if self.arrivals[group] > self.now:
                return
            members = self.all[group * self.group_size : (group + 1) * self.group_size]
            index = self.choose(group)
            for response in members:
                response.replica = index
                self.replicas[index].waiting.append(response)
            self.launched_at.append(self.now)
            self.launched += 1
            self.wake(self.replicas[index], self.now)

    def choose(self, group: int) -> int:
        if self.dispatch == "static":
            return group % len(self.replicas)

        def load(index: int) -> int:
            mine = [r for r in self.all if r.replica == index and r.finish is None]
            return len(mine) if self.dispatch == "least_loaded" else sum(map(self.full_size, mine))

        return min(range(len(self.replicas)), key=load)

    def full_size(self, response: Response) -> int:
        return response.prompt + sum(response.turns) + sum(response.extra[: len(response.turns) - 1])

    def wake(self, replica: Replica, time: float) -> None:
        if replica.asleep:
            replica.asleep = False
            replica.clock = max(replica.clock, time)

    def run(self, until: float = math.inf) -> str:
        while True:
            if all(r.stopped for r in self.replicas):
                return "stopped"
            ends = [r.step_end for r in self.replicas if r.step_end is not None]
            begins = [r.clock for r in self.replicas if r.step_end is None and not r.asleep and not r.stopped]
            end, begin = min(ends, default=math.inf), min(begins, default=math.inf)
            back = min(self.returns, default=(math.inf, -1))
            if self.look and end > self.now and back[0] >= self.now:
                if self.count(True) >= self.target:
                    return "target"
                self.look = False
                self.launch()
                continue
            fresh = self.launched < self.groups and self.launched not in self.noticed
            coming = self.arrivals[self.launched] if fresh else math.inf
            if math.isinf(min(end, begin, back[0], coming)):
                return "rest"
            if end <= min(begin, back[0], coming):
                if end > until:
                    return "limit"
                self.now = end
                for index, replica in enumerate(self.replicas):
                    if replica.step_end == end:
                        self.end(replica, index)
            elif coming <= min(begin, back[0]):
                if coming >= until:
                    return "limit"
                self.now, self.look = max(self.now, coming), True
                self.noticed.add(self.launched)
            elif back[0] <= begin:
                if back[0] >= until:
                    return "limit"
                self.now = max(self.now, back[0])
                self.returns.remove(back)
                response = self.all[back[1]]
                replica = self.replicas[response.replica]
                replica.waiting.append(response)
                if not replica.stopped:
                    self.wake(replica, back[0])
            else:
                if begin >= until:
                    return "limit"
                self.now = begin
                index = next(
                    i
                    for i, r in enumerate(self.replicas)
                    if r.step_end is None and not r.asleep and not r.stopped and r.clock == begin
                )
                self.begin_or_interrupt(self.replicas[index], index)

    def begin_or_interrupt(self, replica: Replica, index: int) -> None:
        if replica.signal:
            if replica.recompute:
                for response in reversed(replica.running):
                    self.lose(response)
                    replica.waiting.insert(0, response)
                replica.running = []
                for response in replica.held:
                    self.lose(response)
                    self.evictions += 1
                replica.held = []
            kind, replica.signal = replica.signal, ""
            replica.version = replica.next_version
            if kind == "stop":
                replica.stopped = True
            replica.clock += replica.pause
            if kind == "stop" or replica.pause > 0:
                if not self.shown_before(index, 0):
                    self.shown.append((replica.clock - replica.pause, index, 0))
                return
        self.begin(replica, index)

    def signal(self, time: float, kind: str, *, version: int, pause: float = 0.0, recompute: bool) -> None:
        for replica in self.replicas:
            replica.signal, replica.pause, replica.recompute, replica.next_version = kind, pause, recompute, version
            self.wake(replica, time)

    # -- controllers ----------------------------------------------------------------------------------

    def in_order_of_completion(self) -> list[int]:
        return sorted((g for g in self.done_at if self.kept[g]), key=lambda g: (self.done_at[g], g))

    def collect(self, *, prompts: int | None, launch: int | None, refill: str) -> float:
        """One rollout step; leaves every replica at the boundary where it stopped."""
        first = self.groups if launch is None else launch
        self.launch_max, self.replace = first, refill == "continuous"
        wanted = math.inf if prompts is None else prompts
        if refill != "rounds":
            self.target = wanted
        while self.run() == "rest" and self.count(True) < wanted < math.inf:
            assert refill == "rounds", "too few groups"
            self.launch_max += first
            self.look = True
        time, self.launch_max = self.now, 0
        self.halt(version=0, recompute=False)
        return time

    def halt(self, *, version: int, recompute: bool) -> None:
        """Let every replica finish its step and stop there."""
        self.target = math.inf
        self.signal(self.now, "stop", version=version, recompute=recompute)
        while self.run() != "stopped":
            pass

    def pipeline(
        self,
        *,
        updates: int,
        prompts: int,
        ahead: int,
        in_flight_max: int | None,
        launch_ahead: int | None,
        colocated: bool,
        update_seconds: float,
        sync_seconds: float,
        recompute: bool,
    ) -> list[tuple[float, float, float]]:
        """Times (ready, taken, resumed) of every update."""
        self.replace = True
        self.in_flight_max = math.inf if in_flight_max is None else in_flight_max
        begun = version = 0
        arrival = math.inf
        times = []

        def gate() -> float:
            stale = math.inf if launch_ahead is None else (version + 1 + launch_ahead) * prompts
            return min(begun * prompts + ahead, stale)

        self.launch_max = gate()
        for update in range(updates):
            self.target = (update + 1) * prompts
            ready = taken = None
            while taken is None:
                why = self.run(arrival)
                if why == "target":
                    ready = self.now
                    self.target = math.inf
                    if arrival == math.inf:
                        taken = ready
                else:
                    assert arrival < math.inf, "stuck"
                    version += 1
                    self.signal(arrival, "weights", version=version, pause=sync_seconds, recompute=recompute)
                    self.now, self.look, self.launch_max = max(self.now, arrival), True, gate()
                    if ready is not None:
                        taken = arrival
                    arrival = math.inf
            begun = update + 1
            if colocated:
                version += 1
                self.halt(version=version, recompute=recompute)
                resumed = max(r.clock for r in self.replicas) + update_seconds
                for replica in self.replicas:
                    replica.stopped, replica.clock = False, resumed
                self.now, self.look, self.launch_max = max(self.now, resumed), True, gate()
            else:
                arrival = resumed = taken + update_seconds
                self.now, self.look, self.launch_max = max(self.now, taken), True, gate()
            assert ready is not None
            times.append((ready, taken, resumed))
        return times
