"""Which rank a hanging job waits for, by the collectives that each has issued."""

from __future__ import annotations

import pytest

from overlaptop.fleet.hang import Blame, hang_of
from overlaptop.fleet.trouble import Kind, trouble_of
from overlaptop.report import troubles
from overlaptop.wire.messages import GroupCalls, IssuedCall, Standstill

from .builders import T0, status, step
from .hub import PlayedJob

MIB = 1 << 20


def group(first, *calls, name="0", members=(0, 1, 2), at=0, state="issued"):
    """The calls of one group, numbered from `first`: ``op`` or ``(op, bytes)``."""
    made = [(each, MIB) if isinstance(each, str) else each for each in calls]
    return GroupCalls(
        name,
        members,
        tuple(
            IssuedCall(op, size, first + index, T0 + at + index, state)
            for index, (op, size) in enumerate(made)
        ),
    )


def judged(*groups, silent=(), stacks=None):
    """Each rank's groups, None for one that says nothing."""
    standing = {
        rank: Standstill(rank, True, tuple(each), (stacks or {}).get(rank, ()))
        for rank, each in enumerate(groups)
        if each is not None
    }
    found = hang_of(standing, frozenset(silent))
    return found, (found.blame, found.ranks, found.waiting)


def test_the_rank_whose_number_is_lower_has_not_entered_and_its_line_is_told():
    ahead = [group(7, "allreduce_", "broadcast_")]
    found, said = judged(ahead, [group(7, "allreduce_")], ahead, stacks={1: ("train.py:88 load", "x")})
    assert said == (Blame.NOT_ENTERED, (1,), (0, 2))
    assert (found.op, found.bytes, found.at) == ("broadcast_", MIB, "train.py:88 load")


def test_of_ranks_far_ahead_the_first_collective_that_is_missing_counts():
    ahead = [group(7, "allreduce_", ("broadcast_", 5), "allreduce_", "allreduce_")]
    found, said = judged(ahead, [group(6, "allreduce_", "allreduce_")], ahead)
    assert said == (Blame.NOT_ENTERED, (1,), (0, 2))
    assert (found.op, found.bytes) == ("broadcast_", 5)


def test_a_silent_rank_has_not_entered_whatever_it_said_before():
    calls = [group(7, "allreduce_")]
    assert judged(calls, None, calls, silent=(1,))[1] == (Blame.NOT_ENTERED, (1,), (0, 2))
    assert judged(calls, calls, calls, silent=(1,))[1] == (Blame.NOT_ENTERED, (1,), (0, 2))


def test_a_rank_that_issued_nothing_in_a_group_has_not_entered():
    assert judged([group(1, "barrier")], [], [group(1, "barrier")])[1] == (Blame.NOT_ENTERED, (1,), (0, 2))


@pytest.mark.parametrize("instead", ["broadcast_", ("allreduce_", 4)])
def test_another_operation_or_size_is_told_even_where_it_has_gone_on(instead):
    own = [group(7, "allreduce_", "allreduce_")]
    found, said = judged(own, [group(7, "allreduce_", instead, "allreduce_")], own)
    assert said == (Blame.DIFFERS, (1,), (0, 2))
    assert found.other == (instead if isinstance(instead, str) else "allreduce_")


def test_sizes_that_may_differ_do_not_count():
    uneven = [[group(7, ("alltoall_base_", size))] for size in (1, 2, 3)]
    assert judged(*uneven)[1] == (Blame.NO_COLLECTIVE, (0, 1, 2), ())


@pytest.mark.parametrize(
    ("states", "said"),
    [
        (("started",) * 3, (Blame.CANNOT_LEAVE, (0, 1, 2), ())),
        (("started", "issued", "started"), (Blame.DELAYED, (1,), (0, 2))),
        (("ended",) * 3, (Blame.NO_COLLECTIVE, (0, 1, 2), ())),
    ],
)
def test_where_the_device_tells_how_far_a_collective_is_that_is_used(states, said):
    assert judged(*[[group(7, "all_reduce", state=state)] for state in states])[1] == said


def test_the_group_that_was_stuck_first_is_named():
    late = {"name": "1", "members": (0, 1), "at": 10}
    found, said = judged(
        [group(7, "allreduce_"), group(3, "barrier", **late)],
        [group(7, "allreduce_"), group(2, "barrier", **late)],
        [group(6, "allreduce_")],
    )
    assert said == (Blame.NOT_ENTERED, (2,), (0, 1))
    assert found.group == "0"


def test_ranks_that_wait_for_nobody_are_at_a_line_of_the_script_and_not_hung():
    job = PlayedJob()
    calls = (group(7, "allreduce_", members=(0, 1)),)
    job.send(step(0, 0), step(1, 0))
    job.send(*(Standstill(rank, True, calls, ("train.py:90 evaluate",)) for rank in (0, 1)))
    job.clock.pass_s(23)
    found = trouble_of(job.fleet.snapshot())
    assert found.kind is Kind.NO_STEP
    assert troubles.in_full(found).endswith("; the script stands at train.py:90 evaluate")


def test_a_job_hangs_until_its_agents_say_that_it_goes_on():
    job = PlayedJob()
    job.send(step(0, 0), step(1, 0))
    calls = (group(7, "allreduce_", members=(0, 1)),)
    job.send(Standstill(0, True, calls))
    assert trouble_of(job.fleet.snapshot()) is None  # a step has just ended
    job.clock.pass_s(23)
    job.send(status(silent=(1,)))
    found = trouble_of(job.fleet.snapshot())
    assert (found.kind, found.ranks) == (Kind.HUNG, (1,))
    assert troubles.in_brief(found, job.clock.at_ns) == "HUNG for 23 s"
    told = troubles.in_full(found)
    assert told.startswith("HUNG since ")
    assert told.endswith(": allreduce 1.00 MiB, rank 0 waits, rank 1 has not entered")
    job.send(status(), Standstill(0, False), step(0, 1), step(1, 1))
    assert trouble_of(job.fleet.snapshot()) is None
    assert [view.standstill for view in job.fleet.snapshot().ranks] == [None, None]
