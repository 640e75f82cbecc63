"""Steps of a running job, split: once all ranks' timelines are there, and only as far as clocks allow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlaptop.fleet.job_state import JobState
from overlaptop.fleet.past import in_step, over_window
from overlaptop.fleet.snapshot import HubState, NodeView, Window
from overlaptop.fleet.totals import with_means
from overlaptop.fleet.wait_breakdown import NOT_YET
from overlaptop.wire.messages import CollectiveSpan, GroupMembers

from .builders import MS, T0, Clock, S, feed, info, laid_out, status, step, welcome

STEP_MS = 80


def step_with_waits(rank, number, starts_ms, *, at_ns=T0, ends_ms=(30, 50)):
    """One rank's totals and timeline of a step with two all-reduces, no compute beside them."""
    calls = [
        CollectiveSpan("allreduce_", 4096, "0 default_pg", True, start * MS, end * MS, nth)
        for nth, (start, end) in enumerate(zip(starts_ms, ends_ms, strict=True), 1 + 2 * number)
    ]
    return laid_out(rank, number, at_ns + number * STEP_MS * MS, STEP_MS * MS, calls=calls)


def fleet_of(*messages, ranks=2):
    fleet = JobState(Clock())
    for message in (welcome(world_size=ranks), status(), *map(info, range(ranks)), *messages):
        fleet.apply(message)
    return fleet


def late(number, rank=1, **changes):
    """A step in which this one of two ranks comes 15 ms late to the first collective."""
    return [
        message
        for each in (0, 1)
        for message in step_with_waits(each, number, (25 if each == rank else 10, 40), **changes)
    ]


def test_a_step_is_split_once_with_its_parts_and_who_was_late():
    fleet = fleet_of(*late(0))
    snapshot = fleet.snapshot()
    assert (snapshot.fresh_waits, snapshot.not_attributed) == ((snapshot.waits,), "")
    first, second = (view.waits for view in snapshot.ranks)
    assert (first.wait_ns, first.transfer_ns, first.exposed_wait_ns) == (15 * MS, 15 * MS, 15 * MS)
    assert (second.wait_ns, second.transfer_ns) == (0, 15 * MS)
    assert fleet.snapshot().fresh_waits == ()


def test_waits_of_rows_add_up_to_what_is_exposed():
    fleet = fleet_of(*late(0), *late(1))
    for rank in (0, 1):
        fleet.apply(step_with_waits(rank, 2, (10, 40))[0])
    means = with_means(fleet.snapshot())
    for view in means.ranks:
        assert abs(view.row_waits.exposed_ns - view.row.exposed_ns) <= 3
    alone = with_means(over_window(means, Window.STEP))
    assert all(view.row is view.measured and view.row_waits is view.waits for view in alone.ranks)


@given(
    st.lists(st.tuples(st.integers(20, 79), st.integers(20, 79)), min_size=2, max_size=4),
    st.integers(1, 20),
    st.booleans(),
)
def test_what_a_collective_does_in_the_next_step_is_split_there(starts_ms, over_ms, looks_each_step):
    """All-reduces that begin in one step and end in the next one."""
    fleet, fresh = fleet_of(), []
    for number, starts in enumerate(starts_ms):
        for rank, start in enumerate(starts):
            totals, timeline = step_with_waits(rank, number, (start,), ends_ms=(STEP_MS + over_ms,))
            tail = over_ms if number else 0
            comm = STEP_MS - start + tail
            fleet.apply(replace(totals, comm_ns=comm * MS, exposed_ns=comm * MS))
            fleet.apply(
                replace(timeline, comm_spans_ns=(0, tail * MS, start * MS, (STEP_MS + over_ms) * MS))
            )
        if looks_each_step:
            fresh += fleet.snapshot().fresh_waits
    fresh += fleet.snapshot().fresh_waits
    assert fresh[-1].times == in_step(fleet.snapshot(), len(fresh) - 1).waits.times
    for number, (waits, starts) in enumerate(zip(fresh, starts_ms, strict=True)):
        assert len(waits.collectives) == 1
        for rank, start in enumerate(starts):
            own = waits.times[rank]
            assert own.wait_ns == (max(starts) - start) * MS
            assert own.transfer_ns == (STEP_MS - max(starts) + (over_ms if number else 0)) * MS
            assert own.not_attributed_ns == own.exposed_not_attributed_ns == 0


def test_groups_of_one_name_on_other_ranks_are_matched_apart():
    """As torch names those of a mesh: ranks 0 and 1, and 2 and 3."""
    fleet = fleet_of(ranks=4)
    for rank, start_ms in enumerate([10, 12, 30, 33]):
        totals, timeline = step_with_waits(rank, 0, (start_ms,), ends_ms=(50,))
        members = GroupMembers("0 default_pg", ((0, 1), (2, 3))[rank // 2])
        feed(fleet, totals)
        fleet.apply(replace(timeline, groups=(members,)))
    [waits] = fleet.snapshot().fresh_waits
    assert [each.ranks for each in waits.collectives] == [(0, 1), (2, 3)]
    assert {each.group for each in waits.collectives} == {"0 default_pg"}
    assert [waits.times[rank].wait_ns for rank in range(4)] == [2 * MS, 0, 3 * MS, 0]


def test_what_is_missing_is_said_until_it_is_there():
    fleet = fleet_of(*late(0)[:2])
    assert fleet.snapshot().not_attributed == "no timeline of rank 1 is here"
    assert feed(fleet, *late(1)[2:]).not_attributed == NOT_YET
    assert [view.waits for view in fleet.snapshot().ranks] == [None, None]
    assert feed(fleet, *late(1)[:2]).waits.step == 1


def test_a_window_holds_what_was_long_ago_until_the_job_changes():
    fleet = fleet_of(*late(0))
    both = [step(rank, 900, start_ns=T0 + 90 * S) for rank in (0, 1)]
    assert feed(fleet, *both).wait_window.steps == 1
    for number in range(901, 920):
        both = (step(rank, number, compute=60 if number < 910 else 90) for rank in (0, 1))
        snapshot = feed(fleet, *(replace(each, start_ns=T0 + 91 * S + number) for each in both))
    assert (snapshot.first_step, snapshot.wait_window, snapshot.not_attributed) == (910, None, NOT_YET)


def test_step_in_which_the_job_hung_is_in_no_window():
    fleet = fleet_of()
    for number in range(3):
        feed(fleet, *late(number))
    hung = late(3, rank=0, ends_ms=(60_000, 60_010))
    feed(fleet, *(replace(message, step_ns=61 * S) for message in hung))
    snapshot = feed(fleet, *late(4, at_ns=T0 + 61 * S))
    assert snapshot.waits.step == 4
    assert (snapshot.wait_window.steps, snapshot.wait_window.exposed_wait_ns) == (2, 15 * MS)
    assert (snapshot.totals.step_ns, snapshot.totals.paused_steps) == (STEP_MS * MS, 1)


def test_after_a_change_no_timeline_is_split_again():
    fleet = fleet_of()
    split = [each.step for number in range(10, 13) for each in feed(fleet, *late(number)).fresh_waits]
    for rank in (0, 1):
        fleet.apply(step(rank, 13, transitional=True, comm_ns=None))
    for _ in range(2):
        split += [each.step for each in fleet.snapshot().fresh_waits]
    snapshot = feed(fleet, *late(14), *late(16))
    split += [each.step for each in snapshot.fresh_waits]
    assert split == [10, 11, 12, 14, 16]
    assert [each.step for each in snapshot.step_waits] == [14, 16]
    assert [each.step for each in snapshot.transfers] == [14]  # 16 came too soon


@pytest.mark.parametrize(
    ("residuals_ns", "wait_ns"),
    [((MS, 2 * MS), 15 * MS), ((10 * MS, 6 * MS), None), ((MS, None), None), ((10 * MS, MS, 6 * MS), None)],
)
def test_hosts_are_split_as_far_as_their_clocks_are_known(residuals_ns, wait_ns):
    fleet, nodes = JobState(Clock()), []
    for rank, residual_ns in enumerate(residuals_ns):
        name = f"host-{rank}"
        messages = step_with_waits(rank, 0, (25 if rank == 1 else 10, 40))
        for message in (welcome(world_size=len(residuals_ns)), status(), info(rank), *messages):
            fleet.apply(message, name)
        nodes.append(NodeView(name, HubState.LIVE, T0, "", offset_ns=0, residual_ns=residual_ns))
    merged = fleet.snapshot(nodes)
    assert merged.waits.collectives[0].wait_ns(0) == wait_ns
    if wait_ns is None:
        assert (merged.wait_window, merged.not_attributed) == (None, "the clocks are too uncertain")
        assert merged.ranks[0].waits.not_attributed_ns == merged.ranks[0].measured.comm_ns


@pytest.mark.parametrize(
    ("source", "late_ms", "is_named"), [("host", 5, False), ("host", 15, True), ("kernels", 5, True)]
)
def test_nobody_is_late_for_what_a_busy_machine_does(source, late_ms, is_named):
    fleet = JobState(Clock())
    for message in (welcome(), *(replace(info(rank), source=source) for rank in (0, 1))):
        fleet.apply(message)
    for number in range(24):
        feed(fleet, *step_with_waits(0, number, (10, 40)), *step_with_waits(1, number, (10 + late_ms, 40)))
    assert bool(fleet.snapshot().wait_window.late) is is_named
