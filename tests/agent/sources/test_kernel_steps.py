"""From CUPTI's records to steps: on recorded bursts, and on bursts made by hand."""

from __future__ import annotations

import dataclasses
import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.agent.sources.base import Edge
from overlaptop.agent.sources.cupti.layouts import MEMSET
from overlaptop.agent.sources.kernel_names import KernelNames
from overlaptop.agent.sources.kernel_steps import MARK_WORDS, read_steps
from overlaptop.timeline import spans
from overlaptop.timeline.breakdown import break_down
from overlaptop.timeline.lanes import LaneRules, parse_rule

from .recordings import (
    ALL_GATHER,
    ALL_REDUCE,
    ELEMENTWISE,
    GEMM,
    GENERIC,
    RECORDED,
    Trace,
    names,
    recording,
)
from .recordings import replay as replaying

EDGES = (Edge.BACKWARD_BEGIN, Edge.BACKWARD_END, Edge.OPTIMIZER_BEGIN, Edge.OPTIMIZER_END)


def read(trace: Trace, rules: LaneRules | None = None, clock_offset_ns: int = 0):
    rules = rules or LaneRules()
    return read_steps(trace.activities, trace.marks, names(rules), rules, clock_offset_ns)


def reread(burst, activities, marks=None, rules=None):
    rules = rules or LaneRules()
    marks = burst.marks if marks is None else marks
    return read_steps(activities, marks, burst.names(rules), rules, burst.clock_offset_ns)


def plain(steps):
    """Steps as values that can be compared."""
    lanes = ("compute", "comm", "copy", "stall")
    return [
        (
            {
                field.name: getattr(step, field.name)
                for field in dataclasses.fields(step)
                if field.name not in lanes
            },
            [spans.flatten(getattr(step, lane)) for lane in lanes],
        )
        for step in steps
    ]


def flat(*lanes):
    return [spans.flatten(lane) for lane in lanes]


# Recorded bursts.


@pytest.mark.parametrize(
    ("name", "numbers", "nccl_kernels"),
    [("ddp", [5], {"AllReduce": 50}), ("fsdp2", [36, 37, 38, 39], {"AllGather": 24, "ReduceScatter": 12})],
)
def test_a_recorded_burst_has_its_steps_and_each_its_collectives(name, numbers, nccl_kernels):
    steps = recording(name).steps()
    assert [step.step for step in steps] == numbers
    for step in steps:
        kinds = [kernel.collective for interval in step.intervals for kernel in interval.kernels]
        assert {kind: kinds.count(kind) for kind in set(kinds)} == nccl_kernels
        assert not any(kernel.replayed for interval in step.intervals for kernel in interval.kernels)


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_steps_follow_each_other_without_a_gap_and_their_parts_sum_to_them(name):
    steps = recording(name).steps()
    for step, following in itertools.pairwise(steps):
        assert step.end_ns == following.start_ns
    for step in steps:
        parts = break_down(step.start_ns, step.end_ns, step.compute, step.comm, step.copy)
        whole = parts.hidden_ns + parts.exposed_ns + parts.compute_only_ns + parts.copy_only_ns
        assert whole + parts.idle_ns == step.end_ns - step.start_ns
        assert min(parts.hidden_ns, parts.compute_only_ns, parts.idle_ns, parts.exposed_ns) > 0
        exposed = spans.difference(step.comm, step.compute)
        assert spans.length_ns(spans.difference(step.stall, exposed)) == 0


@pytest.mark.parametrize("name", RECORDED)
def test_spans_are_clipped_to_their_step(name):
    for step in recording(name).steps():
        for lane in (step.compute, step.comm, step.copy, step.stall):
            inside = spans.clip(lane, step.start_ns, step.end_ns)
            assert np.array_equal(inside, lane)


@pytest.mark.parametrize("name", RECORDED)
def test_the_phases_of_a_recorded_step_come_in_their_order_within_it(name):
    for step in recording(name).steps():
        assert tuple(edge for edge, _ in step.edges) == EDGES
        at_ns = [step.start_ns, *(ns for _, ns in step.edges), step.end_ns]
        assert at_ns == sorted(at_ns)


@pytest.mark.parametrize("name", RECORDED)
def test_a_stretch_lies_between_two_neighbouring_marks(name):
    burst = recording(name)
    bounds = [
        (interval.from_unix_ns, interval.to_unix_ns)
        for step in burst.steps()
        for interval in step.intervals
    ]
    unix_ns = [mark.unix_ns for mark in burst.marks]
    assert bounds == list(itertools.pairwise(unix_ns))


@pytest.mark.parametrize("name", RECORDED)
def test_launch_lead_is_when_the_gpu_came_to_the_end_less_when_the_host_issued_it(name):
    burst = recording(name)
    activities = burst.activities()
    value_at = {
        int(row["value"]): int(row["start_ns"]) + burst.clock_offset_ns
        for row in activities[(activities["kind"] == MEMSET) & (activities["bytes"] == MARK_WORDS * 4)]
    }
    begins = {mark.step: mark for mark in burst.marks if mark.edge is None}
    for step in burst.steps():
        begin, end = begins[step.step], begins[step.step + 1]
        assert (step.start_ns, step.end_ns) == (value_at[begin.value], value_at[end.value])
        assert step.launch_lead_ns == step.end_ns - end.host_ns > 0


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_order_in_which_records_come_does_not_matter(name, seed):
    burst = recording(name)
    activities = burst.activities()
    shuffled = np.random.default_rng(seed).permutation(activities)
    assert plain(reread(burst, shuffled)) == plain(burst.steps())


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("wraps_after", [0, 1, 100, 700, 2_000])
def test_launch_numbers_that_wrap_around_change_nothing(name, wraps_after):
    burst = recording(name)
    activities = burst.activities()
    numbers = activities["correlation"].astype(np.int64)
    activities["correlation"] = (numbers - numbers.min() - wraps_after) % 2**32
    assert int(activities["correlation"].max()) > 2**31 or wraps_after == 0
    assert plain(reread(burst, activities)) == plain(burst.steps())


@pytest.mark.parametrize("name", RECORDED)
def test_kernels_of_another_gpu_do_not_count(name):
    burst = recording(name)
    own = burst.activities()
    others = own[~((own["kind"] == MEMSET) & (own["bytes"] == MARK_WORDS * 4))].copy()
    for field in ("device", "from_device", "to_device"):
        others[field] = 1
    others["start_ns"] += 3_000
    others["end_ns"] += 9_000
    assert plain(reread(burst, np.concatenate([others, own]))) == plain(burst.steps())


def without_mark(activities, mark):
    return activities[~((activities["kind"] == MEMSET) & (activities["value"] == mark.value))]


@pytest.mark.parametrize(("missing", "left"), [(36, [37, 38, 39]), (38, [36, 39]), (40, [36, 37, 38])])
def test_a_step_with_a_bound_that_was_not_recorded_is_left_out(missing, left):
    burst = recording("fsdp2")
    [bound] = [mark for mark in burst.marks if mark.edge is None and mark.step == missing]
    steps = reread(burst, without_mark(burst.activities(), bound))
    assert [step.step for step in steps] == left
    whole = {step.step: step for step in burst.steps()}
    assert plain(steps) == plain([whole[number] for number in left])


def test_an_edge_that_was_not_recorded_joins_its_two_stretches():
    burst = recording("ddp")
    [edge] = [mark for mark in burst.marks if mark.edge is Edge.BACKWARD_END]
    [step] = reread(burst, without_mark(burst.activities(), edge))
    [whole] = burst.steps()
    assert [each for each, _ in step.edges] == [each for each in EDGES if each is not Edge.BACKWARD_END]
    assert len(step.intervals) == len(whole.intervals) - 1
    assert sum((interval.kernels for interval in step.intervals), ()) == sum(
        (interval.kernels for interval in whole.intervals), ()
    )


def test_no_marks_and_no_records_make_no_steps():
    burst = recording("ddp")
    assert reread(burst, burst.activities(), marks=[]) == []
    assert reread(burst, burst.activities()[:0]) == []


def test_the_users_rules_move_kernels_to_another_lane():
    burst = recording("ddp")
    [before] = burst.steps()
    rules = LaneRules([parse_rule("compute=ncclDevKernel_AllReduce")])
    [after] = reread(burst, burst.activities(), rules=rules)
    assert spans.length_ns(before.comm) > 0
    assert spans.length_ns(after.comm) == 0
    assert np.array_equal(after.compute, spans.union(before.compute, before.comm))
    assert after.intervals == before.intervals  # NCCL's they remain, and are joined to their launches


# Bursts made by hand.


def test_what_ran_in_a_step_is_told_by_the_gpus_clock_and_what_was_issued_by_the_order_of_launch():
    trace = Trace()
    trace.mark(3, 100)
    trace.kernel(GEMM, 110, 150)
    trace.kernel(ALL_REDUCE, 195, 230, stream=13)  # issued in step 3, begun in it, ended in step 4
    trace.mark(4, 200)
    trace.kernel(GEMM, 202, 260)
    trace.mark(5, 300)
    first, second = read(trace)
    assert flat(first.compute, first.comm) == [(110, 150), (195, 200)]
    assert flat(second.compute, second.comm) == [(202, 260), (200, 230)]
    assert [len(interval.kernels) for interval in (*first.intervals, *second.intervals)] == [1, 0]
    [kernel] = first.intervals[0].kernels
    assert (kernel.start_ns, kernel.end_ns) == (195, 230)


def test_a_mark_belongs_to_no_lane_but_the_jobs_own_memsets_and_copies_do():
    trace = Trace()
    trace.mark(0, 0)
    trace.memset(10, 12)
    trace.memcpy(20, 25, stream=9)
    trace.peer_copy(30, 36)
    trace.mark(0, 50, Edge.BACKWARD_BEGIN)
    trace.mark(1, 100)
    [step] = read(trace)
    assert flat(step.compute, step.comm, step.copy) == [(), (30, 36), (10, 12, 20, 25)]


@pytest.mark.parametrize(
    ("device", "from_device", "to_device", "counts"),
    [(0, 0, 1, True), (1, 1, 0, True), (1, 0, 1, True), (1, 1, 2, False)],
)
def test_a_peer_copy_counts_on_both_of_its_gpus_whoever_issued_it(device, from_device, to_device, counts):
    trace = Trace()
    trace.mark(0, 0)
    trace.peer_copy(30, 36, device=device, from_device=from_device, to_device=to_device)
    trace.mark(1, 100)
    [step] = read(trace)
    assert flat(step.comm) == [(30, 36) if counts else ()]


def test_a_memset_of_the_jobs_own_that_is_as_long_as_a_mark_is_a_copy():
    trace = Trace()
    trace.mark(0, 0)
    trace.memset(10, 12, size=MARK_WORDS * 4, value=0)  # torch.zeros(3)
    trace.mark(1, 100)
    [step] = read(trace)
    assert flat(step.copy) == [(10, 12)]


def test_kernels_of_several_streams_share_a_lane_and_those_beside_the_marks_say_so():
    trace = Trace()
    trace.mark(0, 0)
    trace.kernel(GEMM, 10, 30, stream=7)
    trace.kernel(ELEMENTWISE, 20, 40, stream=9)
    trace.kernel(ALL_REDUCE, 50, 60, stream=7)
    trace.kernel(ALL_GATHER, 55, 70, stream=13)
    trace.mark(1, 100)
    [step] = read(trace)
    assert flat(step.compute, step.comm) == [(10, 40), (50, 70)]
    assert [(kernel.collective, kernel.beside_compute) for kernel in step.intervals[0].kernels] == [
        ("AllReduce", False),
        ("AllGather", True),
    ]
    assert step.intervals[0].kernels[0].name == "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def test_kernels_that_a_graph_launched_say_so():
    trace = Trace()
    trace.mark(0, 0)
    trace.kernel(ALL_REDUCE, 10, 20, graph=4)
    trace.kernel(GENERIC, 30, 40)
    trace.mark(1, 100)
    [step] = read(trace)
    assert [(kernel.collective, kernel.replayed) for kernel in step.intervals[0].kernels] == [
        ("AllReduce", True),
        ("Generic", False),
    ]


def test_the_clock_is_moved_for_spans_bounds_edges_and_kernels_alike():
    trace = Trace()
    trace.mark(0, 0, host_ns=400)
    trace.kernel(ALL_REDUCE, 10, 20)
    trace.mark(0, 30, Edge.BACKWARD_BEGIN)
    trace.mark(1, 100, host_ns=480)
    [step] = read(trace, clock_offset_ns=500)
    assert (step.start_ns, step.end_ns, step.launch_lead_ns) == (500, 600, 120)
    assert step.edges == ((Edge.BACKWARD_BEGIN, 530),)
    assert flat(step.comm) == [(510, 520)]
    assert step.intervals[0].kernels[0].start_ns == 510


def test_a_kernel_without_a_name_computes():
    trace = Trace()
    trace.mark(0, 0)
    trace.kernel(0, 10, 20)
    trace.mark(1, 100)
    [step] = read(trace)
    assert flat(step.compute) == [(10, 20)]


moments_ns = st.integers(0, 400)
launches = st.lists(
    st.tuples(
        st.sampled_from([GEMM, ALL_REDUCE, ELEMENTWISE, "copy"]),
        moments_ns,
        st.integers(0, 150),
        st.booleans(),
    ),
    max_size=25,
)


@given(launches)
def test_every_ns_of_a_step_is_in_the_lanes_of_what_ran_in_it(issued):
    trace = Trace()
    trace.mark(0, 100)
    for what, start_ns, length_ns, beside in issued:
        stream = 13 if beside else 7
        if what == "copy":
            trace.memcpy(start_ns, start_ns + length_ns, stream=stream)
        else:
            trace.kernel(what, start_ns, start_ns + length_ns, stream=stream)
    trace.mark(1, 250)
    [step] = read(trace)
    for lane, kinds in (
        (step.compute, (GEMM, ELEMENTWISE)),
        (step.comm, (ALL_REDUCE,)),
        (step.copy, ("copy",)),
    ):
        expected = {
            ns
            for what, start_ns, length_ns, _ in issued
            if what in kinds
            for ns in range(max(100, start_ns), min(250, start_ns + length_ns))
        }
        assert {ns for start, end in lane.tolist() for ns in range(start, end)} == expected
    [interval] = step.intervals
    assert [(kernel.start_ns, kernel.end_ns - kernel.start_ns) for kernel in interval.kernels] == [
        (start_ns, length_ns) for what, start_ns, length_ns, _ in issued if what == ALL_REDUCE
    ]


# Names.


@pytest.mark.parametrize(
    ("raw", "text", "collective"),
    [
        (
            b"ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
            "AllReduce",
        ),
        (
            b"_Z36ncclDevKernel_ReduceScatter_Sum_f32_24ncclDevKernelArgsStorageILm4096EE",
            "ncclDevKernel_ReduceScatter_Sum_f32_",
            "ReduceScatter",
        ),
        (b"ncclDevKernel_SendRecv", "ncclDevKernel_SendRecv", "SendRecv"),
        (b"ncclDevKernel_Generic_4", "ncclDevKernel_Generic_4", "Generic"),
        (b"ncclSymkDevKernel_AllGather_LL", "ncclSymkDevKernel_AllGather_LL", "AllGather"),
        (
            b"ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t",
            "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t",
            "SendRecv",
        ),
        (b"triton_poi_fused_add_all_reduce_4", "triton_poi_fused_add_all_reduce_4", None),
        (b"caf\xff", "caf\N{REPLACEMENT CHARACTER}", None),
        (b"", "", None),
    ],
)
def test_a_kernels_name_tells_its_function_and_which_collective(raw, text, collective):
    [name], _ = KernelNames(LaneRules(), {8: raw}.__getitem__).look_up(np.array([8], dtype=np.uint64))
    assert (name.text, name.nccl) == (text, collective)


def test_each_name_is_read_once():
    read_at = []

    def read_name(address):
        read_at.append(address)
        return NAMES_AT[address]

    known = KernelNames(LaneRules(), read_name)
    for _ in range(3):
        found, which = known.look_up(np.array([16, 8, 16], dtype=np.uint64))
        assert [found[at].text for at in which] == ["b", "a", "b"]
    assert sorted(read_at) == [8, 16]


NAMES_AT = {8: b"a", 16: b"b"}


# Endurance, in short: benchmarks/replay.py is the long way.


@pytest.mark.parametrize("name", RECORDED)
def test_reading_the_same_burst_again_and_again_takes_no_more_memory(name):
    replay = replaying.Replay(recording(name))
    first = replay.once()
    for _ in range(5):
        replay.once()
    tracemalloc.start()
    try:
        replay.once()
        settled_bytes = tracemalloc.get_traced_memory()[0]
        for _ in range(100 // replay.steps):
            last = replay.once()
        grown_bytes = tracemalloc.get_traced_memory()[0] - settled_bytes
    finally:
        tracemalloc.stop()
    assert grown_bytes < 100_000
    assert [totals.step_ns for totals in last] == [totals.step_ns for totals in first]
    assert [totals.hidden_ns for totals in last] == [totals.hidden_ns for totals in first]
    assert [totals.launch_lead_ns for totals in last] == [totals.launch_lead_ns for totals in first]
    assert last[0].step > first[-1].step
