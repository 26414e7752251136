"""The event-driven rollout equals its step-by-step twin on random workloads with every option at once.

Times of the law are whole numbers, so that both add them without rounding: equality is exact, ties between replicas
included, and any difference in an order of events shows. One property repeats it with arbitrary times at 1e-9.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from naive_rollout import Twin
from numpy.typing import NDArray

from batchsim.errors import InputError
from batchsim.system.decode_law import DecodeLaw
from batchsim.system.rollout import DISPATCHES, REFILLS, Simulation, modes
from batchsim.system.rollout import _kernels as k
from batchsim.system.rollout.checks import check_engine, check_workload

SLOW = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


class Case(NamedTuple):
    sim: Simulation
    twin: Twin
    options: dict[str, Any]
    groups: int


@st.composite
def cases(draw: st.DrawFn, whole: bool = True) -> Case:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    group_size = draw(st.sampled_from([1, 2, 3, 4]))
    groups = draw(st.integers(1, 16))
    turns = draw(st.sampled_from([1, 1, 2, 3]))
    count = groups * group_size
    prompts = rng.integers(1, 40, groups).repeat(group_size)
    responses = rng.integers(1, 40, (count, turns))
    last = rng.integers(1, turns + 1, count)
    responses[np.arange(turns) >= last[:, None]] = 0
    extra = rng.integers(0, 10, (count, turns - 1))
    seconds = rng.integers(0, 400, (count, turns - 1)) * float(draw(st.sampled_from([0, 1, 10])))
    kept = rng.random(groups) < 0.75
    arrivals = np.cumsum(rng.integers(0, 60, groups)) * float(draw(st.sampled_from([0, 0, 1, 10])))
    size = prompts + responses.sum(axis=1) + extra.sum(axis=1)
    block, fixed = draw(st.sampled_from([1, 2, 4, 8])), draw(st.integers(0, 2))
    least = int((-(-(size - 1) // block)).max()) + fixed
    room = draw(st.one_of(st.none(), st.floats(1.0, 4.0)))
    most = draw(st.integers(1, 9))
    options: dict[str, Any] = {
        "max_num_seqs": most,
        "max_num_batched_tokens": most + draw(st.sampled_from([0, 1, 5, 50])),
        "kv_blocks": None if room is None else int(least * room),
        "block_size": block,
        "fixed_blocks": fixed,
        "watermark_blocks": draw(st.sampled_from([0, 0, 1])),
        "share_prefix": draw(st.booleans()),
        "keep_kv": draw(st.booleans()),
        "replicas": draw(st.sampled_from([1, 1, 2, 3])),
        "dispatch": draw(st.sampled_from(DISPATCHES)),
        "graph_sizes": draw(st.sampled_from([(), (1, 2, 4, 8, 16)])),
    }
    law = make_law(rng, whole, window=draw(st.sampled_from([0, 5, 30])))
    work = check_workload(
        prompt_tokens=prompts,
        response_tokens=responses if turns > 1 else responses[:, 0],
        group_size=group_size,
        kept=kept,
        environment_tokens=extra if turns > 1 else 0,
        environment_seconds=seconds if turns > 1 else 0.0,
        arrival_seconds=arrivals if arrivals.any() else None,
        share_prefix=options["share_prefix"],
    )
    sim = Simulation(law=law, work=work, engine=check_engine(law, work, **options))
    twin = Twin(
        law=law,
        prompts=prompts.tolist(),
        responses=responses.tolist(),
        extra=extra.tolist(),
        seconds=seconds.tolist(),
        kept=kept.tolist(),
        arrivals=arrivals.tolist(),
        group_size=group_size,
        **options,
    )
    return Case(sim, twin, options, groups)


def make_law(rng: np.random.Generator, whole: bool, window: int) -> DecodeLaw:
    rise = rng.integers(1, 9, 40).astype(np.float64) if whole else rng.uniform(1e-4, 1e-2, 40)
    times = rng.integers(0, 3, 4).astype(np.float64) if whole else rng.uniform(0, 1e-4, 4)
    return DecodeLaw(
        step_time=np.append(0.0, np.cumsum(rise)),
        context_time=float(times[0]),
        window_time=float(times[1]),
        window=window,
        prefill_time=float(times[2]),
        prefill_context_time=float(times[3]),
    )


def of_twin(case: Case, name: str, missing: float = np.nan) -> NDArray[np.float64]:
    values = [getattr(response, name) for response in case.twin.all]
    return np.array([missing if v is None else v for v in values], dtype=np.float64)


def assert_same(case: Case, *, counts: bool) -> None:
    sim, twin = case.sim, case.twin
    np.testing.assert_array_equal(sim.finish, of_twin(case, "finish"))
    np.testing.assert_array_equal(sim.start, of_twin(case, "start", -1.0))
    np.testing.assert_array_equal(sim.versions[:, 0], of_twin(case, "start_version"))
    np.testing.assert_array_equal(sim.versions[:, 1], of_twin(case, "finish_version"))
    np.testing.assert_array_equal(sim.seq[:, k.PREEMPTED], of_twin(case, "preempted"))
    np.testing.assert_array_equal(sim.launched_at[: twin.launched], twin.launched_at)
    np.testing.assert_array_equal(
        sim.shown[: sim.totals[k.SHOWN_ROWS]], np.array(twin.shown, dtype=np.float64).reshape(-1, 3)
    )
    if counts:
        assert sim.totals[k.PREFILLED] == twin.prefilled
        assert sim.totals[k.RECOMPUTED] == twin.recomputed
        assert sim.totals[k.PREEMPTIONS] == twin.preemptions
        assert sim.totals[k.EVICTIONS] == twin.evictions
        assert sim.totals[k.STEPS] == twin.steps
        np.testing.assert_array_equal(modes.generated(sim), of_twin(case, "generated"))
        if sim.engine.kv_blocks is not None:
            free = [case.twin.free(replica) for replica in case.twin.replicas]
            np.testing.assert_array_equal(sim.rep[:, k.FREE], free)


@SLOW
@given(case=cases())
def test_a_whole_rollout_equals_the_twin(case: Case) -> None:
    assert case.sim.run() == k.AT_REST
    assert case.twin.run() == "rest"
    assert_same(case, counts=True)


@SLOW
@given(case=cases(whole=False), close=st.just(1e-9))
def test_arbitrary_times_agree_to_rounding(case: Case, close: float) -> None:
    # Where the order of two events hangs on the last digit, neither order is wrong: one replica, no environment.
    assume(case.options["replicas"] == 1 and case.sim.work.turns is None)
    case.sim.run()
    case.twin.run()
    np.testing.assert_allclose(case.sim.finish, of_twin(case, "finish"), rtol=close)
    np.testing.assert_allclose(case.sim.start, of_twin(case, "start"), rtol=close, atol=1e-15)
    assert case.sim.totals[k.PREEMPTIONS] == case.twin.preemptions


@SLOW
@given(case=cases(), refill=st.sampled_from(REFILLS), data=st.data())
def test_a_step_with_filtering_equals_the_twin(case: Case, refill: str, data: st.DataObject) -> None:
    prompts = data.draw(st.integers(1, case.groups))
    launch = data.draw(st.one_of(st.none(), st.integers(1, case.groups)))
    try:
        time = modes.collect(case.sim, prompts=prompts, launch=launch, refill=refill, surplus="cut")
    except InputError as error:
        assert "kept" in str(error)  # noqa: PT017
        assume(False)
    assert time == case.twin.collect(prompts=prompts, launch=launch, refill=refill)
    assert_same(case, counts=True)


@SLOW
@given(case=cases(), data=st.data())
def test_a_pipeline_equals_the_twin(case: Case, data: st.DataObject) -> None:
    prompts = data.draw(st.integers(1, max(1, case.groups // 3)))
    course: dict[str, Any] = {
        "updates": data.draw(st.integers(1, 4)),
        "prompts": prompts,
        "ahead": data.draw(st.integers(prompts, 3 * prompts)),
        "in_flight_max": data.draw(st.one_of(st.none(), st.integers(1, 2 * prompts))),
        "launch_ahead": data.draw(st.one_of(st.none(), st.integers(0, 2))),
        "colocated": data.draw(st.booleans()),
        "update_seconds": float(data.draw(st.sampled_from([0, 40, 1500]))),
        "sync_seconds": float(data.draw(st.integers(0, 50))),
        "recompute": data.draw(st.booleans()),
    }
    try:
        done = modes.pipeline(case.sim, **course)
    except InputError as error:
        assert "groups" in str(error)  # noqa: PT017
        assume(False)
    twin = np.array(case.twin.pipeline(**course))
    np.testing.assert_array_equal(np.stack([done.ready, done.taken, done.resumed], axis=1), twin)
    order = case.twin.in_order_of_completion()[: course["updates"] * prompts]
    np.testing.assert_array_equal(done.used_by[order], np.repeat(np.arange(course["updates"]), prompts))
    # Where replicas stand in the middle of a span, only their past is comparable.
    assert_same(case, counts=course["colocated"])


REST: dict[str, Any] = {
    "fixed_blocks": 0,
    "watermark_blocks": 0,
    "share_prefix": True,
    "keep_kv": False,
    "replicas": 1,
    "dispatch": "static",
    "graph_sizes": None,
}


def test_a_sequence_that_comes_back_at_its_old_phase_fills_its_window_once() -> None:
    """Three steps away and three tokens longer: its old entry in the heap of windows fits again."""
    law = DecodeLaw(step_time=np.array([0.0, 1.0, 1.0]), context_time=0.0, window_time=2.0**-10, window=40)
    responses, extra, seconds = [[100, 0], [4, 50]], [[0], [3]], [[0.0], [2.5]]
    options: dict[str, Any] = {"max_num_seqs": 2, "max_num_batched_tokens": 64, "kv_blocks": None, "block_size": 16}
    work = check_workload(
        prompt_tokens=[1, 3], response_tokens=responses, environment_tokens=extra, environment_seconds=seconds
    )
    sim = Simulation(law=law, work=work, engine=check_engine(law, work, **options, **REST))
    twin = Twin(law=law, prompts=[1, 3], responses=responses, extra=extra, seconds=seconds, **options)
    sim.run()
    twin.run()
    assert sim.finish.tolist() == [r.finish for r in twin.all]


@pytest.mark.parametrize("window", [0, 7])
def test_long_spans_end_at_the_right_step(window: int) -> None:
    """Few sequences, long responses: overflow, saturation and chunks all fall inside of long spans."""
    law = DecodeLaw(
        step_time=np.array([0.0, 3, 5, 8, 9]),
        context_time=1.0,
        window_time=2.0,
        window=window,
        prefill_time=1.0,
        prefill_context_time=1.0,
    )
    prompts, responses = [400, 3, 90, 700], [[500], [900], [333], [60]]
    options: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 5, "kv_blocks": 260, "block_size": 8}
    work = check_workload(prompt_tokens=prompts, response_tokens=[r[0] for r in responses])
    sim = Simulation(law=law, work=work, engine=check_engine(law, work, **options, **(REST | {"fixed_blocks": 1})))
    twin = Twin(law=law, prompts=prompts, responses=responses, fixed_blocks=1, **options)
    sim.run()
    twin.run()
    assert sim.finish.tolist() == [r.finish for r in twin.all]
    assert sim.totals[k.PREEMPTIONS] == twin.preemptions > 0
