r"""Who launches groups, and when weights change: the controllers of a `Simulation`.

`collect` is one synchronous rollout step. `pipeline` is a sequence of updates around which generation goes on; its
modes differ in three numbers only. With L groups launched, D of them dropped, u updates begun, v versions of the
weights arrived and P groups per update, a group may be launched while

    L - D < u P + ahead      and      in flight < in_flight_max      and      L - D < (v + 1 + launch_ahead) P

    synchronous           ahead = P                                          nothing is in flight at an update
    partial rollouts      ahead = gen_ratio P                                B_gen in flight, the first P G train
    asynchronous          ahead = in_flight_max + queue                      a bounded queue of complete groups

An update takes the first P complete groups whose rewards differ. A colocated trainer stops every replica at its next
step boundary; a disaggregated one lets them run, and its weights arrive `update_seconds` later, at the first boundary
of each replica from then on. In-flight caches are recomputed under the new weights, or kept stale.

By Little's law, the kept responses that are launched and not yet used number (mean time from launch to use) x (rate);
in the steady state of partial rollouts both ends of which are counted in updates, that is ahead/P updates, so that the
mean age at use is ahead/P - 1 versions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from batchsim.errors import InputError, nearest
from batchsim.system.rollout import _kernels as k
from batchsim.system.rollout.engine import NO_LIMIT, Simulation

REFILLS = ("none", "rounds", "continuous")
OUTCOMES = ("kept", "dropped", "surplus", "cut", "carried", "not launched")
KEPT, DROPPED, SURPLUS, CUT, CARRIED, NOT_LAUNCHED = range(6)


@dataclass(frozen=True, kw_only=True)
class Updates:
    """What a pipeline did.

    Parameters
    ----------
    ready, taken, resumed : ndarray, (update,) [s]
        When enough groups were complete, when the update began, and when its weights reached the replicas.
    used_by : ndarray of int, (group,)
        Update that used a group, -1 if none did.
    """

    ready: NDArray[np.float64]
    taken: NDArray[np.float64]
    resumed: NDArray[np.float64]
    used_by: NDArray[np.int64]


def collect(sim: Simulation, *, prompts: int | None, launch: int | None, refill: str, surplus: str) -> float:
    """Run one rollout step until `prompts` groups are kept; the time it takes [s].

    Parameters
    ----------
    sim : Simulation
    prompts : int or None [prompts]
        P; if None, until all groups are done.
    launch : int or None [prompts]
        Groups launched at first, and per round; all if None.
    refill : {'none', 'rounds', 'continuous'}
        Launch no more; once all have ended, another round; or one for every group that is dropped.
    surplus : {'cut', 'carry'}

    Raises
    ------
    InputError
        For an unknown choice, or if the groups run out before P are kept.
    """
    for name, value, known in (("refill", refill, REFILLS), ("surplus", surplus, ("cut", "carry"))):
        if value not in known:
            raise InputError(f"unknown {name} '{value}'", remedy=nearest(value, known))
    groups = sim.work.keep.size
    wanted = NO_LIMIT if prompts is None else prompts
    _check_counts(prompts, launch, groups)
    sim.settings[k.LAUNCH_MAX] = groups if launch is None else launch
    sim.settings[k.REPLACE] = int(refill == "continuous")
    # A round is judged when all of it has ended.
    sim.settings[k.TARGET] = NO_LIMIT if refill == "rounds" else wanted
    while sim.run() != k.AT_TARGET:
        if sim.totals[k.KEPT] >= wanted or prompts is None:
            break
        if refill != "rounds" or sim.totals[k.LAUNCHED] == groups:
            raise InputError(
                f"{sim.totals[k.KEPT]} of the {prompts} groups wanted are kept after all {sim.totals[k.LAUNCHED]} "
                f"launched",
                remedy="draw more groups, or let refill launch more of them",
            )
        sim.settings[k.LAUNCH_MAX] += launch if launch is not None else groups
        sim.launch_at(sim.now)
    time = sim.now
    sim.settings[k.TARGET] = NO_LIMIT
    sim.settings[k.LAUNCH_MAX] = 0
    sim.stop(version=0, recompute=False)
    return time


def _check_counts(prompts: int | None, launch: int | None, groups: int) -> None:
    for name, value in (("prompts", prompts), ("launch", launch)):
        if value is not None and not 1 <= value <= groups:
            raise InputError(f"{name} is {value}, and there are {groups} groups", remedy=f"1 <= {name} <= {groups}")


def first_kept(sim: Simulation, count: int) -> NDArray[np.int64]:
    """Groups that are kept, the earliest complete first; at most `count`."""
    done = np.flatnonzero(~np.isnan(sim.done_at) & sim.work.keep)
    return np.asarray(done[np.argsort(sim.done_at[done], kind="stable")][:count])


def outcomes(sim: Simulation, *, prompts: int | None, surplus: str) -> NDArray[np.int8]:
    """What became of every response after `collect`, as positions in OUTCOMES."""
    groups = sim.work.keep.size
    by_group = np.full(groups, CUT if surplus == "cut" else CARRIED, dtype=np.int8)
    complete = ~np.isnan(sim.done_at)
    by_group[complete] = SURPLUS
    by_group[complete & ~sim.work.keep] = DROPPED
    by_group[first_kept(sim, groups if prompts is None else prompts)] = KEPT
    by_group[sim.totals[k.LAUNCHED] :] = NOT_LAUNCHED
    return by_group.repeat(sim.work.group_size)


def generated(sim: Simulation) -> NDArray[np.int64]:
    """Tokens that every response has generated, once the replicas stand at a boundary."""
    turns = sim.work.turns
    if turns is None:
        return np.asarray(sim.work.response - sim.left)
    turn = sim.turn[:, k.TURN]
    begun = np.cumsum(turns.tokens, axis=1)[np.arange(turn.size), turn]
    return np.asarray(begun - sim.left)


def pipeline(
    sim: Simulation,
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
) -> Updates:
    """Run generation around a number of updates; see the module's text.

    Raises
    ------
    InputError
        If the groups run out, or the limits let nothing more be launched.
    """
    course = _Course(sim, prompts, ahead, launch_ahead, sync_seconds, recompute)
    sim.settings[k.REPLACE] = 1
    sim.settings[k.IN_FLIGHT_MAX] = NO_LIMIT if in_flight_max is None else in_flight_max
    course.set_limits()
    ready, taken, resumed = np.empty(updates), np.empty(updates), np.full(updates, np.nan)
    for update in range(updates):
        ready[update], taken[update] = course.wait(update)
        course.begun = update + 1
        if colocated:
            sim.settings[k.TARGET] = NO_LIMIT
            course.version += 1
            sim.stop(version=course.version, recompute=recompute)
            resumed[update] = float(sim.times[:, k.CLOCK].max()) + update_seconds
            sim.resume(resumed[update])
            course.look(resumed[update])
        else:
            course.arrival = resumed[update] = taken[update] + update_seconds
            course.look(taken[update])
    used_by = np.full(sim.work.keep.size, -1, dtype=np.int64)
    used_by[first_kept(sim, updates * prompts)] = np.repeat(np.arange(updates), prompts)
    return Updates(ready=ready, taken=taken, resumed=resumed, used_by=used_by)


class _Course:
    """Where a pipeline stands: updates begun, versions arrived, and when the next weights arrive."""

    def __init__(
        self,
        sim: Simulation,
        prompts: int,
        ahead: int,
        launch_ahead: int | None,
        sync_seconds: float,
        recompute: bool,
    ) -> None:
        self.sim, self.prompts, self.ahead, self.launch_ahead = sim, prompts, ahead, launch_ahead
        self.sync_seconds, self.recompute = sync_seconds, recompute
        self.begun = self.version = 0
        self.arrival = math.inf

    def set_limits(self) -> None:
        limit = self.begun * self.prompts + self.ahead
        if self.launch_ahead is not None:
            limit = min(limit, (self.version + 1 + self.launch_ahead) * self.prompts)
        self.sim.settings[k.LAUNCH_MAX] = limit

    def look(self, time: float) -> None:
        self.set_limits()
        self.sim.launch_at(time)

    def wait(self, update: int) -> tuple[float, float]:
        """Run until an update can begin: when its groups are complete, and when the trainer is free."""
        sim, ready = self.sim, math.nan
        sim.settings[k.TARGET] = (update + 1) * self.prompts
        while True:
            reason = sim.run(self.arrival)
            if reason == k.AT_TARGET:
                ready = sim.now
                if math.isinf(self.arrival):
                    return ready, ready
                sim.settings[k.TARGET] = NO_LIMIT
            elif math.isfinite(self.arrival):
                time, self.arrival = self.arrival, math.inf
                self.version += 1
                sim.weights(time, version=self.version, pause=self.sync_seconds, recompute=self.recompute)
                self.look(time)
                if not math.isnan(ready):
                    return ready, time
            else:
                self._stuck(update)

    def _stuck(self, update: int) -> None:
        launched, groups = int(self.sim.totals[k.LAUNCHED]), self.sim.work.keep.size
        kept = int(self.sim.totals[k.KEPT])
        if launched == groups:
            raise InputError(
                f"all {groups} groups are used up, {kept} kept, before update {update + 1} has its {self.prompts}",
                remedy="draw more groups, or simulate fewer updates",
            )
        raise InputError(
            f"{launched} groups launched and {kept} kept, and the limits let no other start before update {update + 1}",
            remedy="raise gen_ratio, the queue or launch_ahead so that one update's groups fit",
        )
