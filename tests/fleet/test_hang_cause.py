"""Which rank a hanging job waits for, by the collectives that each has issued."""

import re

import pytest
from msgspec.structs import replace

from overlaptop.fleet.hang_cause import Blame, hang_of
from overlaptop.fleet.trouble import Kind, Trouble, trouble_of
from overlaptop.report import troubles
from overlaptop.wire.messages import GroupCalls, IssuedCall, RankStalled

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


def ended_before(first, *calls, over, state="started"):
    """A group whose calls up to `over` have ended."""
    made = group(first, *calls, state=state)
    return replace(
        made,
        calls=tuple(replace(each, state="ended") if each.sequence <= over else each for each in made.calls),
    )


AHEAD = [group(7, "allreduce_", ("broadcast_", 5), "allreduce_", "allreduce_")]


@pytest.mark.parametrize(
    ("groups", "options", "said", "op"),
    [
        (  # the first that is missing counts, and not their newest
            (AHEAD, [group(6, "allreduce_", "allreduce_")], AHEAD),
            {"stacks": {1: ("train.py:88 load", "x")}},
            (Blame.NOT_ENTERED, (1,), (0, 2)),
            "broadcast_",
        ),
        (  # a rank that has ended well is awaited in vain
            ([ended_before(10, "all_reduce", "barrier", "broadcast", over=10)],) * 1
            + (None,)
            + ([ended_before(10, "all_reduce", "barrier", "broadcast", over=10)],),
            {"ended": (1,)},
            (Blame.ENDED, (1,), (0, 2)),
            "barrier",
        ),
        (  # of a silent rank, the first that is not over counts
            ([ended_before(5, "all_reduce", "all_reduce", "broadcast", "barrier", over=6)],) * 1
            + (None,)
            + ([ended_before(5, "all_reduce", "all_reduce", "broadcast", "barrier", over=6)],),
            {"silent": (1,)},
            (Blame.NOT_ENTERED, (1,), (0, 2)),
            "broadcast",
        ),
    ],
)
def test_collective_that_others_wait_in_is_named(groups, options, said, op):
    found, verdict = judged(*groups, **options)
    assert (verdict, found.op) == (said, op)
    assert found.at == ("train.py:88 load" if "stacks" in options else "")


ONE = [group(7, "allreduce_")]
PAIR = {"members": (0, 1), "state": "started"}


@pytest.mark.parametrize(
    ("groups", "options", "said"),
    [
        ((ONE, None, ONE), {"silent": (1,)}, (Blame.NOT_ENTERED, (1,), (0, 2))),
        ((ONE, ONE, ONE), {"silent": (1,)}, (Blame.NOT_ENTERED, (1,), (0, 2))),
        ((ONE, [], ONE), {}, (Blame.NOT_ENTERED, (1,), (0, 2))),
        ((ONE, [group(7, "broadcast_")], ONE), {}, (Blame.DIFFERS, (1,), (0, 2))),
        ((ONE, [group(7, ("allreduce_", 4))], ONE), {}, (Blame.DIFFERS, (1,), (0, 2))),
        ((ONE, None, ONE), {"ended": (1,)}, (Blame.NO_COLLECTIVE, (0, 2), ())),
        (
            [[group(7, "all_reduce", state=state)] for state in ("started",) * 3],
            {},
            (Blame.CANNOT_LEAVE, (0, 1, 2), ()),
        ),
        (
            [[group(7, "all_reduce", state=state)] for state in ("started", "issued", "started")],
            {},
            (Blame.DELAYED, (1,), (0, 2)),
        ),
        ([[group(7, "all_reduce", state="ended")]] * 3, {}, (Blame.NO_COLLECTIVE, (0, 1, 2), ())),
        (  # a circle of two groups: the earlier one
            (
                [group(3, "all_reduce", name="a", at=5, **PAIR), group(8, "all_reduce", name="b", **PAIR)],
                [group(2, "all_reduce", name="a", **PAIR), group(9, "all_reduce", name="b", at=9, **PAIR)],
            ),
            {},
            (Blame.NOT_ENTERED, (1,), (0,)),
        ),
    ],
)
def test_rank_to_blame_follows_from_calls_and_states(groups, options, said):
    assert judged(*groups, **options)[1] == said


SAME = ("_all_gather_base", "all_gather_into_tensor_coalesced", "_reduce_scatter_base", "reduce")
UNEVEN = ("alltoall_base_", "all_gather", "reduce_scatter", "gather_")


@pytest.mark.parametrize("op", SAME + UNEVEN)
def test_sizes_count_where_they_must_be_the_same(op):
    calls = [[group(7, (op, size), state="started")] for size in (4, 4, 8)]
    blame = Blame.DIFFERS if op in SAME else Blame.CANNOT_LEAVE
    assert judged(*calls)[0].blame is blame


def test_the_group_that_was_stuck_first_is_named():
    late = {"name": "1", "members": (0, 1), "at": 10}
    first, *others = [group(7, "allreduce_")], [group(7, "allreduce_")], [group(6, "allreduce_")]
    first.append(group(3, "barrier", **late))
    others[0].append(group(2, "barrier", **late))
    found, said = judged(first, *others)
    assert (said, found.group) == ((Blame.NOT_ENTERED, (2,), (0, 1)), "0")


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


@pytest.mark.parametrize("states", [("started", "started"), ("started", "issued"), ("issued", "started")])
def test_rank_of_which_nothing_is_known_may_not_have_entered(states):
    calls = [[group(7, "all_reduce", state=state)] for state in states]
    found, said = judged(*calls, None)
    assert said == (Blame.UNKNOWN, (2,), (0, 1))
    whole = Trouble(Kind.HUNG, found.ranks, T0, hang=found)
    assert troubles.in_full(whole).endswith(
        ": rank 2 may not have entered all_reduce 1.00 MiB; ranks 0-1 wait"
    )


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
