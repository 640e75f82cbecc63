"""Which collective launched which kernel: right where it is told, and told wherever the order can tell."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.agent.sources.base import CollectiveCall
from overlaptop.agent.sources.collective_join import CollectiveLaunch, join, match
from overlaptop.agent.sources.flight_recorder import launches_of
from overlaptop.agent.sources.kernel_steps import LaunchInterval, NcclKernel, TracedStep
from overlaptop.timeline import spans

from .recordings import RECORDED, recording

KINDS = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "SendRecv")


def call(number, kind="AllReduce", *, coalesced=False):
    return CollectiveCall(
        kind, number, "0", is_async=True, backend="nccl", device_type="cuda", device_index=-1, peer=None,
        coalesced=coalesced,
    )  # fmt: skip


def launch(number, *kinds, several=False, unix_ns=None):
    """A launch whose bytes are its number, so that it can be told from the others."""
    kinds = kinds or ("AllReduce",)
    return CollectiveLaunch(
        call(number, "+".join(kinds), coalesced=several),
        number if unix_ns is None else unix_ns,
        kinds,
        several,
    )


def kernel(at_ns, collective="AllReduce", *, replayed=False):
    return NcclKernel(
        f"ncclDevKernel_{collective}", collective, at_ns, at_ns + 10, beside_compute=True, replayed=replayed
    )


def step_of(*intervals):
    end_ns = 10_000
    return TracedStep(
        step=0, start_ns=0, end_ns=end_ns, edges=(), compute=spans.empty(), comm=spans.empty(),
        copy=spans.empty(), stall=spans.empty(), launch_lead_ns=0, intervals=intervals, device=3,
    )  # fmt: skip


def bytes_by_kernel(joined):
    return [(each.call.bytes, each.start_ns) for each in joined.collectives]


# Recorded bursts.


@pytest.mark.parametrize("name", RECORDED)
def test_every_nccl_kernel_of_the_recorded_bursts_has_its_collective(name):
    burst = recording(name)
    launches = burst.launches()
    for step in burst.steps():
        joined = join(step, launches)
        assert joined.matched_ns == joined.kernels_ns > 0
        assert joined.count == len(joined.collectives)
        begins_ns = [each.start_ns for each in joined.collectives]
        assert begins_ns == sorted(begins_ns)


@pytest.mark.parametrize("name", RECORDED)
def test_names_and_bytes_are_those_that_the_flight_recorder_logged_in_that_step(name):
    burst = recording(name)
    bounds = [mark for mark in burst.marks if mark.edge is None]
    for step, begin, end in zip(burst.steps(), bounds, bounds[1:], strict=False):
        logged = [
            entry for entry in burst.entries if begin.unix_ns <= entry["time_created_ns"] < end.unix_ns
        ]
        # bfloat16 throughout; the larger side is the whole of a sharded tensor.
        expected = [
            (entry["profiling_name"].removeprefix("nccl:"),
             2 * max(entry["input_sizes"][0][0], entry["output_sizes"][0][0]))
            for entry in logged
        ]  # fmt: skip
        found = [(each.call.op, each.call.bytes) for each in join(step, burst.launches()).collectives]
        assert sorted(found) == sorted(expected)
        assert {each.call.group for each in join(step, burst.launches()).collectives} == {"0 default_pg"}


def test_each_kernel_of_fsdp2_is_of_its_collectives_kind():
    burst = recording("fsdp2")
    kind_of = {"_all_gather_base": "AllGather", "_reduce_scatter_base": "ReduceScatter"}
    for step in burst.steps():
        began = {
            (kernel.start_ns, kernel.end_ns): kernel.collective
            for interval in step.intervals
            for kernel in interval.kernels
        }
        for each in join(step, burst.launches()).collectives:
            assert began[each.start_ns, each.end_ns] == kind_of[each.call.op]


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("missing", [0, 1, 17, -1])
def test_one_entry_missing_leaves_its_whole_stretch_unmatched_and_no_other(name, missing):
    burst = recording(name)
    for step in burst.steps():
        bounds = step.intervals[0].from_unix_ns, step.intervals[-1].to_unix_ns
        of_step = [e for e in burst.entries if bounds[0] <= e["time_created_ns"] < bounds[1]]
        gone = of_step[missing]
        launches = launches_of([entry for entry in burst.entries if entry is not gone], burst.groups)
        joined = join(step, launches)
        [torn] = [s for s in step.intervals if s.from_unix_ns <= gone["time_created_ns"] < s.to_unix_ns]
        lost_ns = sum(each.end_ns - each.start_ns for each in torn.kernels)
        assert joined.kernels_ns - joined.matched_ns == lost_ns > 0
        unknown = [each for each in joined.collectives if each.call.bytes is None]
        assert {(each.start_ns, each.end_ns) for each in unknown} == {
            (each.start_ns, each.end_ns) for each in torn.kernels
        }


# By hand.


def test_as_many_kernels_as_launches_belong_together_one_by_one():
    kernels = [kernel(10), kernel(30, "AllGather"), kernel(50)]
    launches = [launch(1), launch(2, "AllGather"), launch(3)]
    assert match(kernels, launches) == [
        (launches[0], [kernels[0]]),
        (launches[1], [kernels[1]]),
        (launches[2], [kernels[2]]),
    ]


def test_nothing_issued_and_nothing_seen_is_a_match_of_nothing():
    assert match([], []) == []


@pytest.mark.parametrize(("kernels", "launches"), [(2, 3), (3, 2), (0, 1), (1, 0)])
def test_a_kernel_or_a_launch_too_few_is_never_shifted(kernels, launches):
    assert match([kernel(at) for at in range(kernels)], [launch(at) for at in range(launches)]) is None


def test_a_kernel_of_another_kind_than_its_launch_unmatches_all():
    kernels = [kernel(10), kernel(30), kernel(50)]
    assert match(kernels, [launch(1), launch(2, "Broadcast"), launch(3)]) is None


def test_kernels_that_serve_any_collective_suit_any_launch():
    kernels = [kernel(10, "Generic"), kernel(30, "Generic")]
    launches = [launch(1), launch(2, "SendRecv")]
    assert match(kernels, launches) == [(launches[0], [kernels[0]]), (launches[1], [kernels[1]])]


@pytest.mark.parametrize("share", [1, 2, 5])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_launch_of_several_has_what_the_others_leave_over(share, at):
    launches = [launch(1), launch(2)]
    launches.insert(at, launch(3, "SendRecv", several=True))
    own = [kernel(100 + nth, "SendRecv") for nth in range(share)]
    kernels = [kernel(10), kernel(20)]
    kernels[at:at] = own
    matched = match(kernels, launches)
    assert matched is not None
    assert matched[at] == (launches[at], own)
    assert [len(some) for each, some in matched if not each.several] == [1, 1]


def test_a_kernel_that_serves_any_collective_is_not_counted_among_the_kernels_of_several():
    launches = [launch(1), launch(2, "SendRecv", several=True)]
    kernels = [kernel(10), kernel(20, "SendRecv"), kernel(30, "Generic")]
    assert match(kernels, launches) is None


def test_bytes_that_are_not_known_do_not_count_as_matched():
    unknown = dataclasses.replace(launch(1, unix_ns=5), call=dataclasses.replace(call(1), bytes=None))
    joined = join(step_of(LaunchInterval(0, 100, (kernel(10),))), [unknown])
    assert [(each.call.op, each.call.bytes) for each in joined.collectives] == [("AllReduce", None)]
    assert (joined.kernels_ns, joined.matched_ns) == (10, 0)


def test_two_launches_of_several_are_matched_only_where_each_is_one_kernel():
    launches = [launch(1, "SendRecv", several=True), launch(2, "SendRecv", several=True)]
    assert match([kernel(at, "SendRecv") for at in range(3)], launches) is None
    kernels = [kernel(at, "SendRecv") for at in range(2)]
    assert match(kernels, launches) == [(launches[0], [kernels[0]]), (launches[1], [kernels[1]])]


def test_a_launch_of_several_lasts_from_its_first_kernel_to_its_last():
    step = step_of(LaunchInterval(0, 100, (kernel(40, "SendRecv"), kernel(20, "SendRecv"), kernel(70))))
    joined = join(step, [launch(1, "SendRecv", several=True, unix_ns=5), launch(2, unix_ns=6)])
    assert [(each.call.bytes, each.start_ns, each.end_ns) for each in joined.collectives] == [
        (1, 20, 50),
        (2, 70, 80),
    ]
    assert (joined.count, joined.kernels_ns, joined.matched_ns) == (2, 30, 30)


def test_launches_belong_to_the_stretch_in_which_they_were_issued():
    step = step_of(
        LaunchInterval(0, 100, (kernel(10),)), LaunchInterval(100, 200, (kernel(30), kernel(50)))
    )
    launches = [launch(9, unix_ns=-1), launch(1, unix_ns=0), launch(2, unix_ns=100), launch(3, unix_ns=199),
                launch(8, unix_ns=200)]  # fmt: skip
    assert bytes_by_kernel(join(step, launches)) == [(1, 10), (2, 30), (3, 50)]


def test_a_stretch_that_cannot_be_told_does_not_spoil_its_neighbours():
    step = step_of(
        LaunchInterval(0, 100, (kernel(10), kernel(20))), LaunchInterval(100, 200, (kernel(30),))
    )
    joined = join(step, [launch(1, unix_ns=50), launch(2, unix_ns=150)])
    assert bytes_by_kernel(joined) == [(None, 10), (None, 20), (2, 30)]
    assert (joined.kernels_ns, joined.matched_ns) == (30, 10)


def test_an_unmatched_kernel_is_called_by_its_own_name():
    [unknown] = join(step_of(LaunchInterval(0, 100, (kernel(10),))), []).collectives
    assert (unknown.call.op, unknown.call.bytes, unknown.call.group) == (
        "ncclDevKernel_AllReduce",
        None,
        "",
    )
    assert (unknown.call.device_index, unknown.start_ns, unknown.end_ns) == (3, 10, 20)


def test_kernels_that_a_graph_replayed_are_logged_by_nobody_and_leave_the_others_to_their_launches():
    step = step_of(
        LaunchInterval(0, 100, (kernel(10, replayed=True), kernel(30), kernel(50, replayed=True)))
    )
    joined = join(step, [launch(1, unix_ns=50)])
    assert bytes_by_kernel(joined) == [(None, 10), (1, 30), (None, 50)]
    assert (joined.kernels_ns, joined.matched_ns) == (30, 10)


def test_a_step_without_collectives_has_none():
    joined = join(step_of(LaunchInterval(0, 100, ())), [])
    assert (joined.collectives, joined.count, joined.kernels_ns, joined.matched_ns) == ((), 0, 0, 0)


# Against the truth.


def issue(chance, count, several_at=()):
    """`count` launches, each with the kernels that it truly became, in the order of launch."""
    truth = []
    for number in range(count):
        kind = chance.choice(KINDS)
        several = number in several_at
        share = chance.randrange(1, 5) if several else 1
        kernels = [
            kernel(1_000 * number + nth, chance.choice([kind] * 3 + ["Generic"] * (share == 1)))
            for nth in range(share)
        ]
        truth.append((launch(number, kind, several=several), kernels))
    return truth


def right(truth, matched):
    """Whether each kernel that was matched belongs to the launch that it was matched to."""
    launch_of = {each.start_ns: launched.call.bytes for launched, kernels in truth for each in kernels}
    return all(
        launch_of[each.start_ns] == launched.call.bytes for launched, some in matched for each in some
    )


seeds = st.integers(0, 2**32)


@given(seeds, st.integers(0, 12), st.booleans())
def test_a_complete_log_with_one_launch_of_several_at_most_is_matched_whole(seed, count, with_several):
    chance = random.Random(seed)
    several_at = (chance.randrange(count),) if with_several and count else ()
    truth = issue(chance, count, several_at)
    kernels = [each for _, some in truth for each in some]
    assert match(kernels, [each for each, _ in truth]) == truth


@given(seeds, st.integers(0, 12))
def test_with_a_complete_log_whatever_is_matched_is_right_however_many_are_of_several(seed, count):
    chance = random.Random(seed)
    truth = issue(chance, count, {at for at in range(count) if chance.random() < 0.4})
    matched = match([each for _, some in truth for each in some], [each for each, _ in truth])
    assert matched is None or right(truth, matched)


@given(seeds, st.integers(1, 12), st.booleans())
def test_launches_or_kernels_that_are_missing_never_lead_to_a_wrong_match(seed, count, launches_go):
    chance = random.Random(seed)
    truth = issue(chance, count)
    launches = [each for each, _ in truth]
    kernels = [each for _, some in truth for each in some]
    gone = launches if launches_go else kernels
    for _ in range(chance.randrange(1, len(gone) + 1)):
        gone.pop(chance.randrange(len(gone)))
    matched = match(kernels, launches)
    assert matched is None or right(truth, matched)


@given(seeds)
def test_steps_are_joined_right_or_not_at_all(seed):
    """Several intervals, some of them torn: what is matched is right, what is not is called unmatched."""
    chance = random.Random(seed)
    intervals, launches, truth, torn = [], [], {}, set()
    for number in range(chance.randrange(1, 5)):
        issued = issue(chance, chance.randrange(6))
        kernels = []
        for nth, (issued_launch, some) in enumerate(issued):
            moved = [kernel(each.start_ns + 100_000 * number, each.collective) for each in some]
            known = dataclasses.replace(
                issued_launch,
                unix_ns=1_000 * number + nth,
                call=call(100 * number + nth, issued_launch.call.op),
            )
            truth |= {k.start_ns: known.call.bytes for k in moved}
            kernels += moved
            launches.append(known)
        intervals.append(LaunchInterval(1_000 * number, 1_000 * (number + 1), tuple(kernels)))
    if launches and chance.random() < 0.7:
        torn = {launches.pop(chance.randrange(len(launches))).unix_ns // 1_000}
    joined = join(step_of(*intervals), launches)
    for each in joined.collectives:
        if each.start_ns // 100_000 in torn:
            assert each.call.bytes is None
        else:
            assert each.call.bytes == truth[each.start_ns]
    assert joined.kernels_ns == 10 * len(truth)
    assert joined.matched_ns == 10 * sum(each.call.bytes is not None for each in joined.collectives)
