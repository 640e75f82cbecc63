"""Which rank a hanging job waits for, by the collectives that each has issued."""

import re

import pytest
from msgspec.structs import replace

from overlaptop.fleet.hang_cause import Blame, hang_of
from overlaptop.fleet.trouble import Kind, Trouble, trouble_of
from overlaptop.report import troubles
from overlaptop.wire.messages import GroupCalls, IssuedCall, RankEnd, RankStalled

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


def judged(*groups, silent=(), ended=(), stacks=None):
    """Each rank's groups, None for one that says nothing."""
    standing = {
        rank: RankStalled(rank, True, tuple(each), (stacks or {}).get(rank, ()))
        for rank, each in enumerate(groups)
        if each is not None
    }
    found = hang_of(standing, frozenset(silent), frozenset(ended))
    return found, (found.blame, found.ranks, found.waiting)


def test_rank_with_a_lower_number_has_not_entered_and_has_a_line():
    ahead = [group(7, "allreduce_", "broadcast_")]
    found, said = judged(ahead, [group(7, "allreduce_")], ahead, stacks={1: ("train.py:88 load", "x")})
    assert said == (Blame.NOT_ENTERED, (1,), (0, 2))
    assert (found.op, found.bytes, found.at) == ("broadcast_", MIB, "train.py:88 load")


def test_of_ranks_far_ahead_the_first_missing_collective_counts():
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
def test_another_operation_or_size_is_told(instead):
    own = [group(7, "allreduce_", "allreduce_")]
    found, said = judged(own, [group(7, "allreduce_", instead, "allreduce_")], own)
    assert said == (Blame.DIFFERS, (1,), (0, 2))
    assert found.other == (instead if isinstance(instead, str) else "allreduce_")


@pytest.mark.parametrize(
    "op",
    [
        "_all_gather_base",
        "all_gather_into_tensor_coalesced",
        "_reduce_scatter_base",
        "reduce",
        "_broadcast_oop",
    ],
)
def test_sizes_that_must_be_the_same_count_by_nccls_names_too(op):
    calls = [[group(7, (op, size), state="started")] for size in (4, 4, 8)]
    assert judged(*calls)[1] == (Blame.DIFFERS, (2,), (0, 1))


@pytest.mark.parametrize("op", ["alltoall_base_", "all_gather", "allgather_", "reduce_scatter", "gather_"])
def test_sizes_that_may_differ_do_not_count(op):
    uneven = [[group(7, (op, size))] for size in (1, 2, 3)]
    assert judged(*uneven)[1] == (Blame.NO_COLLECTIVE, (0, 1, 2), ())


@pytest.mark.parametrize(
    ("states", "said"),
    [
        (("started",) * 3, (Blame.CANNOT_LEAVE, (0, 1, 2), ())),
        (("started", "issued", "started"), (Blame.DELAYED, (1,), (0, 2))),
        (("ended",) * 3, (Blame.NO_COLLECTIVE, (0, 1, 2), ())),
    ],
)
def test_what_the_device_tells_of_a_collective_is_used(states, said):
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


@pytest.mark.parametrize("ahead", [0, 20])
def test_a_rank_that_waits_in_another_group_is_not_blamed(ahead):
    def tensor(number, state, at=100):
        return group(number, "all_reduce", name="tp", members=(0, 1), at=at, state=state)

    def data(members, number, state, at=10):
        return group(number, "all_reduce", name="dp", members=members, at=at, state=state)

    others = group(7, "all_reduce", name="tp", members=(2, 3), at=100 - ahead, state="ended")
    found, said = judged(
        [tensor(7, "started"), data((0, 2), 3, "ended")],
        [tensor(6, "ended", at=50), data((1, 3), 3, "ended")],
        [others, data((0, 2), 4, "started", at=110 - ahead)],
        [others, data((1, 3), 4, "started", at=111 - ahead)],
        stacks={rank: (f"train.py:{rank} wait",) for rank in range(4)},
    )
    assert (said[:2], found.at) == ((Blame.NOT_ENTERED, (1,)), "train.py:1 wait")


def test_circle_of_two_groups_is_told_from_the_earlier_one():
    pair = {"members": (0, 1), "state": "started"}
    found, said = judged(
        [group(3, "all_reduce", name="a", at=5, **pair), group(8, "all_reduce", name="b", **pair)],
        [group(2, "all_reduce", name="a", **pair), group(9, "all_reduce", name="b", at=9, **pair)],
    )
    assert (found.group, said) == ("a", (Blame.NOT_ENTERED, (1,), (0,)))


@pytest.mark.parametrize("states", [("started", "started"), ("started", "issued"), ("issued", "started")])
def test_rank_of_which_nothing_is_known_may_not_have_entered(states):
    calls = [[group(7, "all_reduce", state=state)] for state in states]
    found, said = judged(*calls, None)
    assert said == (Blame.UNKNOWN, (2,), (0, 1))
    whole = Trouble(Kind.HUNG, found.ranks, T0, hang=found)
    assert troubles.in_full(whole).endswith(
        ": rank 2 may not have entered all_reduce 1.00 MiB; ranks 0-1 wait"
    )


def test_rank_known_to_be_late_is_told_before_an_unknown_one():
    other = group(7, "all_reduce", members=(0, 2), state="started")
    pair = {"name": "1", "members": (0, 1), "at": 9}
    found, said = judged([other, group(3, "barrier", **pair)], [group(2, "barrier", **pair)], None)
    assert said == (Blame.NOT_ENTERED, (1,), (0,))
    assert found.group == "1"


@pytest.mark.parametrize("state", ["started", "issued"])
def test_a_rank_that_has_ended_well_is_awaited_in_vain(state):
    def calls(rank):
        over = group(10, "all_reduce", state="ended")
        waiting = group(11, "all_reduce", "barrier", state=state)
        return [replace(over, calls=(*over.calls, *waiting.calls))]

    found, said = judged(calls(0), None, calls(2), ended=(1,))
    assert (found.op, said) == ("all_reduce", (Blame.ENDED, (1,), (0, 2)))


def test_a_job_hangs_for_a_rank_that_has_ended_and_says_so():
    job = PlayedJob()
    job.send(step(0, 0), step(1, 0), RankEnd(1, T0, clean=True))
    job.send(RankStalled(0, True, (group(7, "all_reduce", members=(0, 1), state="started"),)))
    job.clock.pass_s(23)
    assert troubles.in_full(trouble_of(job.fleet.snapshot())).endswith(
        ": rank 1 has ended before all_reduce 1.00 MiB; rank 0 waits"
    )


def test_ended_rank_may_have_entered_all_where_no_device_tells():
    calls = [group(7, "allreduce_")]
    assert judged(calls, None, calls, ended=(1,))[1] == (Blame.NO_COLLECTIVE, (0, 2), ())


def test_of_a_silent_rank_the_first_collective_not_over_counts():
    def calls(over):
        begun = [group(each, "all_reduce", state="ended") for each in range(5, over + 1)]
        next_ones = group(over + 1, "broadcast", "barrier", state="started")
        return [replace(next_ones, calls=sum((each.calls for each in begun), ()) + next_ones.calls)]

    found, said = judged(calls(6), None, calls(6), silent=(1,))
    assert (found.op, said) == ("broadcast", (Blame.NOT_ENTERED, (1,), (0, 2)))


def test_ranks_that_wait_for_nobody_are_at_a_line_and_not_hung():
    job = PlayedJob()
    calls = (group(7, "allreduce_", members=(0, 1)),)
    job.send(step(0, 0), step(1, 0))
    job.send(*(RankStalled(rank, True, calls, ("train.py:90 evaluate",)) for rank in (0, 1)))
    job.clock.pass_s(23)
    found = trouble_of(job.fleet.snapshot())
    assert found.kind is Kind.NO_STEP
    assert troubles.in_full(found).endswith("; the script is at train.py:90 evaluate")


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("aaba", "; rank 2 at b; ranks 0-1, 3 at a"),
        ("abcc", "; rank 0 at a; rank 1 at b; ranks 2-3 at c"),
        ("abcde", "; rank 0 at a; rank 1 at b; rank 2 at c; 2 other lines"),
    ],
)
def test_ranks_are_told_by_line_the_fewest_first(lines, told):
    job = PlayedJob(len(lines))
    job.send(*(step(rank, 0) for rank in range(len(lines))))
    job.send(*(RankStalled(rank, True, (), (line,)) for rank, line in enumerate(lines)))
    job.clock.pass_s(23)
    assert re.sub(r".* since [\d:]+", "", troubles.in_full(trouble_of(job.fleet.snapshot()))) == told


def test_a_job_hangs_until_its_agents_say_that_it_goes_on():
    job = PlayedJob()
    job.send(step(0, 0), step(1, 0))
    calls = (group(7, "allreduce_", members=(0, 1)),)
    job.send(RankStalled(0, True, calls))
    assert trouble_of(job.fleet.snapshot()) is None  # a step has just ended
    job.clock.pass_s(23)
    job.send(status(silent=(1,)))
    found = trouble_of(job.fleet.snapshot())
    assert (found.kind, found.ranks) == (Kind.HUNG, (1,))
    assert troubles.in_brief(found, job.clock.at_ns) == "HUNG for 23 s"
    said = "rank 1 has not entered allreduce 1.00 MiB"
    why = "stopped, or its interpreter hangs"
    full, *shorter = troubles.wordings(found)
    assert re.sub(r"[\d:]{8}", "TIME", full) == f"HUNG since TIME: {said}: {why}; rank 0 waits"
    assert shorter == [f"HUNG: {said}: {why}; rank 0 waits", f"HUNG: {said}: {why}", f"HUNG: {said}"]
    job.send(status(), RankStalled(0, False), step(0, 1), step(1, 1))
    assert trouble_of(job.fleet.snapshot()) is None
    assert [view.stalled for view in job.fleet.snapshot().ranks] == [None, None]
