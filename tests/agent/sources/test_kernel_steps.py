"""From CUPTI's records to steps: on recorded bursts, and on bursts made by hand."""

import dataclasses
import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.agent.reporting import reporter
from overlaptop.agent.sources import kernel_steps
from overlaptop.agent.sources.base import Edge
from overlaptop.agent.sources.kernel_names import KernelNames
from overlaptop.agent.sources.kernel_steps import (
    CLOCK_SLACK_NS,
    MARK_WORDS,
    OTHER_GPU,
    OUT_OF_ORDER,
    fault_in,
    read_steps,
)
from overlaptop.timeline import coherence, spans
from overlaptop.timeline.lanes import LaneRules, parse_rule
from overlaptop.timeline.overlap import break_down

from .recordings import ALL_REDUCE, ELEMENTWISE, FUSED, GEMM, SPIN, Trace, names, recording

LANES = ("compute", "comm", "copy", "fused", "stall")


def read(trace: Trace, found: Counter[str] | None = None):
    return read_steps(trace.activities, trace.marks, names(), LaneRules(), 0, found)


def plain(steps):
    """The same with lanes as tuples: arrays have no equality."""
    return [
        dataclasses.replace(step, **{lane: spans.flatten(getattr(step, lane)) for lane in LANES})
        for step in steps
    ]


def flat(step, *lanes):
    return [spans.flatten(getattr(step, lane)) for lane in lanes]


def kernels_of(step):
    return [kernel for interval in step.intervals for kernel in interval.kernels]


# Recorded bursts.


@pytest.mark.parametrize(
    ("name", "numbers", "nccl_kernels"),
    [("ddp", [5], {"AllReduce": 50}), ("fsdp2", [36, 37, 38, 39], {"AllGather": 24, "ReduceScatter": 12})],
)
def test_recorded_burst_is_read_into_steps(name, numbers, nccl_kernels):
    steps = recording(name).steps()
    assert [step.step for step in steps] == numbers
    for step, following in itertools.pairwise(steps):
        assert step.end_ns == following.start_ns
    for step in steps:
        assert Counter(kernel.collective for kernel in kernels_of(step)) == nccl_kernels
        parts = break_down(step.start_ns, step.end_ns, step.compute, step.comm, step.copy)
        whole = parts.hidden_ns + parts.exposed_ns + parts.compute_only_ns + parts.copy_only_ns
        assert whole + parts.idle_ns == step.end_ns - step.start_ns
        assert min(parts.hidden_ns, parts.compute_only_ns, parts.idle_ns, parts.exposed_ns) > 0
        assert len(spans.difference(step.stall, spans.difference(step.comm, step.compute))) == 0
        assert [phase.name for phase in step.phases] == ["forward", "backward", "optimizer"]
        bounds_ns = [ns for phase in step.phases for ns in (phase.start_ns, phase.end_ns)]
        assert [step.start_ns, *bounds_ns, step.end_ns] == sorted([step.start_ns, *bounds_ns, step.end_ns])


US = 1_000


@pytest.mark.parametrize(
    ("gaps_us", "lead_us", "waits"),
    [
        ([40] * 500, 0, True),
        ([40] * 500, 6_000, False),  # the host is far ahead
        ([1] * 500, 0, False),  # the GPU's own gaps
        ([5_000, *[0] * 500], 0, False),  # it waits for data
    ],
)
def test_step_waits_for_launches_if_the_gpu_idles_often(gaps_us, lead_us, waits):
    trace, at_us = Trace(), 0
    trace.mark(0, at_us * US, host_ns=-lead_us * US)
    for gap_us in gaps_us:
        trace.kernel(GEMM, (at_us + gap_us) * US, (at_us + gap_us + 10) * US)
        at_us += gap_us + 10
    trace.mark(1, at_us * US, host_ns=(at_us - lead_us) * US)
    assert read(trace)[0].waits_for_launches == waits


EVENT, STREAM_WAITS, STREAM, CONTEXT = 1, 2, 3, 4  # CUpti_ActivitySynchronizationType
TO_HOST, FROM_DEVICE, PAGEABLE, PINNED = 2, 3 << 8, 1 << 16, 2 << 16
"""The parts of a copy's value: its kind, and the memories at its ends."""


@pytest.mark.parametrize(
    ("lead_ns", "synchronisations", "host_ns"),
    [
        (50, [], 100),
        (50, [(120, 150, STREAM), (140, 160, CONTEXT)], 60),  # of two threads
        (50, [(150, 170, STREAM_WAITS)], 100),
        (50, [(50, 130, EVENT), (190, 260, EVENT)], 60),
        (250, [], None),  # it is steps ahead, and no faster than the GPU
        (250, [(110, 150, STREAM)], 60),
    ],
)
def test_what_a_host_needs_for_a_step_is_without_its_synchronisations(lead_ns, synchronisations, host_ns):
    trace = Trace()
    trace.mark(4, 100 + lead_ns, host_ns=100)
    for each in synchronisations:
        trace.synchronisation(*each)
    trace.mark(5, 200 + lead_ns, host_ns=200)
    assert read(trace)[0].host_ns == host_ns


@pytest.mark.parametrize(("waiting", "known"), [(800, True), (1000, False)])
def test_a_full_queue_may_have_blocked_the_host(waiting, known):
    trace = Trace()
    trace.mark(0, 1, host_ns=0)
    for at in range(1200):
        trace.kernel(GEMM, 10 * at, 10 * at + 9)
    trace.mark(1, 12_000, host_ns=10 * (1200 - waiting))
    assert (read(trace)[0].host_ns is not None) == known


@pytest.mark.parametrize(("memory", "known"), [(PINNED, True), (PAGEABLE, False)])
def test_a_copy_to_pageable_memory_may_have_blocked_the_host(memory, known):
    trace = Trace()
    trace.mark(0, 0)
    trace.memcpy(10, 20, value=TO_HOST | FROM_DEVICE | memory)
    trace.mark(1, 30)
    assert (read(trace)[0].host_ns is not None) == known


def test_neither_order_nor_launch_numbers_change_a_step():
    burst = recording("fsdp2")
    activities = np.random.default_rng(0).permutation(burst.activities())
    numbers = activities["correlation"].astype(np.int64)
    activities["correlation"] = (numbers - numbers.min() - 100) % 2**32  # they wrap
    rules = LaneRules()
    read_anew = read_steps(activities, burst.marks, burst.names(rules), rules, burst.clock_offset_ns)
    assert plain(read_anew) == plain(burst.steps())


def test_the_users_rules_move_kernels_to_another_lane():
    burst = recording("ddp")
    [before] = burst.steps()
    [after] = burst.steps(LaneRules([parse_rule("compute=ncclDevKernel_AllReduce")]))
    assert spans.length_ns(before.comm) > spans.length_ns(after.comm) == 0
    assert np.array_equal(after.compute, spans.union(before.compute, before.comm))
    assert after.intervals == before.intervals  # NCCL's they remain, and are joined to their launches


# Bursts made by hand.


def in_one_step(*launches):
    """The step of [0, 100) in which these are launched."""
    trace = Trace()
    trace.mark(0, 0)
    for launch in launches:
        launch(trace)
    trace.mark(0, 90, Edge.BACKWARD_BEGIN)
    trace.mark(1, 100)
    [step] = read(trace)
    return step


def test_mark_belongs_to_no_lane():
    step = in_one_step(
        lambda trace: trace.memset(10, 12),
        lambda trace: trace.memset(14, 16, size=MARK_WORDS * 4, value=0),  # torch.zeros(3)
        lambda trace: trace.memcpy(20, 25, stream=9),
        lambda trace: trace.peer_copy(30, 36),
        lambda trace: trace.kernel(0, 40, 50),  # without a name
    )
    assert flat(step, "compute", "comm", "copy") == [(40, 50), (30, 36), (10, 12, 14, 16, 20, 25)]


def test_fused_kernel_has_a_lane_of_its_own():
    step = in_one_step(
        lambda trace: trace.kernel(GEMM, 10, 20),
        lambda trace: trace.kernel(FUSED, 20, 40),
        lambda trace: trace.kernel(ALL_REDUCE, 35, 60, stream=13),
        lambda trace: trace.kernel(SPIN, 60, 70),
    )
    assert flat(step, "compute", "comm", "fused", "stall") == [(10, 20), (40, 60), (20, 40), (40, 60)]
    totals = reporter.totals(step, 0, 0)
    assert (totals.fused_ns, totals.exposed_ns, totals.compute_only_ns) == (20, 20, 10)
    assert totals.idle_ns == totals.step_ns - 50
    assert reporter.detail(step, 0).fused_spans_ns == tuple(at - step.start_ns for at in (20, 40))


@pytest.mark.parametrize(
    ("device", "from_device", "to_device", "counts"), [(0, 0, 1, True), (1, 1, 0, True), (1, 1, 2, False)]
)
def test_peer_copy_counts_on_both_gpus(device, from_device, to_device, counts):
    devices = {"device": device, "from_device": from_device, "to_device": to_device}
    step = in_one_step(lambda trace: trace.peer_copy(30, 36, **devices))
    assert flat(step, "comm") == [(30, 36) if counts else ()]


launches = st.lists(
    st.tuples(
        st.sampled_from([GEMM, ALL_REDUCE, ELEMENTWISE, "copy"]),
        st.integers(0, 400),
        st.integers(0, 150),
        st.sampled_from([7, 13]),
    ),
    max_size=25,
    unique=True,
)


@given(launches)
def test_every_ns_of_a_step_is_in_the_lanes_of_what_ran_in_it(issued):
    trace = Trace()
    trace.mark(0, 100)
    for what, start_ns, length_ns, stream in issued:
        if what == "copy":
            trace.memcpy(start_ns, start_ns + length_ns, stream=stream)
        else:
            trace.kernel(what, start_ns, start_ns + length_ns, stream=stream)
    trace.mark(1, 250)
    [step] = read(trace)
    for lane, kinds in (("compute", (GEMM, ELEMENTWISE)), ("comm", (ALL_REDUCE,)), ("copy", ("copy",))):
        expected = {
            ns
            for what, start_ns, length_ns, _ in issued
            if what in kinds
            for ns in range(max(100, start_ns), min(250, start_ns + length_ns))
        }
        assert {ns for start, end in getattr(step, lane).tolist() for ns in range(start, end)} == expected
    assert [(kernel.start_ns, kernel.end_ns - kernel.start_ns) for kernel in kernels_of(step)] == [
        (start_ns, length_ns) for what, start_ns, length_ns, _ in issued if what == ALL_REDUCE
    ]


# Names.


@pytest.mark.parametrize(
    ("raw", "text", "collective"),
    [
        (b"ncclDevKernel_AllReduce_LL(ncclArgs<4096ul>)", "ncclDevKernel_AllReduce_LL", "AllReduce"),
        (b"_Z27ncclDevKernel_ReduceScatter24ncclArgsE", "ncclDevKernel_ReduceScatter", "ReduceScatter"),
        (b"ncclSymkDevKernel_AllGather_LL", "ncclSymkDevKernel_AllGather_LL", "AllGather"),
        (b"ncclKernel_SendRecv_RING_SIMPLE", "ncclKernel_SendRecv_RING_SIMPLE", "SendRecv"),
        (b"triton_poi_fused_add_all_reduce_4", "triton_poi_fused_add_all_reduce_4", None),
    ],
)
def test_a_kernels_name_has_its_function_and_collective(raw, text, collective):
    [name], _ = KernelNames(LaneRules(), {8: raw}.__getitem__).look_up(np.array([8], dtype=np.uint64))
    assert (name.text, name.nccl) == (text, collective)


HOUR_NS = 3_600_000_000_000


@pytest.mark.parametrize(
    ("moved_ns", "why"),
    [(-5_000_000, coherence.BEFORE_LAUNCH), (25_000_000, OUT_OF_ORDER)],
)
def test_a_mark_at_an_impossible_time_bounds_no_step(moved_ns, why):
    trace, found = Trace(), Counter()
    for step in range(8):
        begin_ns = HOUR_NS + step * 10_000_000
        trace.mark(step, begin_ns + moved_ns * (step == 4), host_ns=begin_ns - 3_000_000)
        trace.kernel(GEMM, begin_ns + 1_000_000, begin_ns + 5_000_000)
    steps = read(trace, found)
    assert [each.step for each in steps] == [0, 1, 2, 5, 6]
    assert all(each.end_ns - each.start_ns == 10_000_000 for each in steps)
    assert found == {why: 1}


def test_kernels_of_another_gpu_are_left_out_and_counted():
    trace = Trace()
    trace.mark(0, 0)
    trace.kernel(GEMM, 1, 4_000_001)
    trace.kernel(GEMM, 2, 9_000_002, device=1)
    trace.mark(1, 10_000_000)
    found = Counter()
    [step] = read(trace, found)
    assert spans.length_ns(step.compute) == 4_000_000
    assert found == {OTHER_GPU: 1}


# The self-check.


def checked(first_correlation=1):
    """The marks of a self-check, and what comes back of it: a mark, a kernel, a mark."""
    trace = Trace(first_correlation)
    trace.mark(0, 1_000)
    trace.kernel(8, 1_010, 1_020)
    trace.mark(0, 1_030)
    return trace.marks, trace.activities


@pytest.mark.filterwarnings("error")  # the job's log is not ours to fill
@pytest.mark.parametrize("first_correlation", [1, 2**32 - 1, 2**32 - 2])
def test_a_check_that_comes_back_right_has_no_fault(first_correlation, monkeypatch):
    monkeypatch.setattr(kernel_steps, "now_ns", lambda: 5_000)
    marks, activities = checked(first_correlation)
    assert fault_in(*marks, activities, 0) == ""
    assert fault_in(*marks, activities[::-1], 0) == ""  # in whichever order
    for offset_ns in (-2 * CLOCK_SLACK_NS, 2 * CLOCK_SLACK_NS):
        assert fault_in(*marks, activities, offset_ns) == "its times are not the host's"


@pytest.mark.parametrize(
    ("row", "field", "value", "fault"),
    [
        (0, "value", 7, "the marks did not come back"),
        (0, "start_ns", 1_040, "the marks came back in the wrong order"),
        (1, "correlation", 77, "the kernel between the marks did not come back"),
        (1, "name", 0, "the kernel between the marks did not come back"),
        (1, "stream", 13, "the kernel between the marks did not come back"),
        (1, "end_ns", 1_040, "the kernel between the marks is not between them in time"),
    ],
)
def test_each_fault_of_the_check_is_found_and_named(row, field, value, fault):
    marks, activities = checked()
    activities[row][field] = value
    assert fault_in(*marks, activities, 0) == fault
