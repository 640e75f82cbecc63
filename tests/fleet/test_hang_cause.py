"""Which rank a hanging job waits for, by the collectives that each has issued."""

import re

import pytest

from overlaptop.fleet.hang_cause import Blame, hang_of
from overlaptop.fleet.trouble import Kind, Trouble, trouble_of
from overlaptop.report import troubles
from overlaptop.wire.messages import GroupCalls, IssuedCall, RankStalled

from .builders import T0, status, step
from .hub import PlayedJob

MIB = 1 << 20


def group(first, *calls, name="0", members=(0, 1, 2), at=0, state="issued", over=0):
    """A group's calls, numbered from `first`: ``op`` or ``(op, bytes)``. Those up to `over` have ended."""
    made = [(each, MIB) if isinstance(each, str) else each for each in calls]
    return GroupCalls(
        name,
        members,
        tuple(
            IssuedCall(op, size, number, T0 + at + number - first, "ended" if number <= over else state)
            for number, (op, size) in enumerate(made, first)
        ),
    )


def judged(*groups, silent=(), ended=(), stacks=None):
    """Each rank's groups, None for one that says nothing."""
    stalled = {
        rank: RankStalled(rank, True, tuple(each), (stacks or {}).get(rank, ()))
        for rank, each in enumerate(groups)
        if each is not None
    }
    found = hang_of(stalled, frozenset(silent), frozenset(ended))
    return found, (found.blame, found.ranks, found.waiting)


ONE = [group(7, "allreduce_")]
NOT_1 = (Blame.NOT_ENTERED, (1,), (0, 2))


def of_pair(first, name, at=0):
    return group(first, "all_reduce", name=name, members=(0, 1), state="started", at=at)


def in_states(*states):
    return [[group(7, "all_reduce", state=state)] for state in states]


@pytest.mark.parametrize(
    ("groups", "options", "said"),
    [
        ((ONE, None, ONE), {"silent": (1,)}, NOT_1),
        ((ONE, ONE, ONE), {"silent": (1,)}, NOT_1),
        ((ONE, [], ONE), {}, NOT_1),
        ((ONE, [group(7, "broadcast_")], ONE), {}, (Blame.DIFFERS, (1,), (0, 2))),
        ((ONE, None, ONE), {"ended": (1,)}, (Blame.NO_COLLECTIVE, (0, 2), ())),
        (in_states("started", "started", "started"), {}, (Blame.CANNOT_LEAVE, (0, 1, 2), ())),
        (in_states("started", "issued", "started"), {}, (Blame.DELAYED, (1,), (0, 2))),
        (in_states("ended", "ended", "ended"), {}, (Blame.NO_COLLECTIVE, (0, 1, 2), ())),
        (  # a circle of two groups: the earlier one
            ([of_pair(3, "a", at=5), of_pair(8, "b")], [of_pair(2, "a"), of_pair(9, "b", at=9)]),
            {},
            (Blame.NOT_ENTERED, (1,), (0,)),
        ),
    ],
)
def test_rank_to_blame_follows_from_calls_and_states(groups, options, said):
    assert judged(*groups, **options)[1] == said


@pytest.mark.parametrize(
    ("waiting", "other", "options", "blame", "op"),
    [
        (  # the first one that is missing, and not their newest
            group(7, "allreduce_", "broadcast_", "allreduce_", "allreduce_"),
            [group(6, "allreduce_", "allreduce_")],
            {"stacks": {1: ("train.py:88 load", "x")}},
            Blame.NOT_ENTERED,
            "broadcast_",
        ),
        (
            group(10, "all_reduce", "barrier", "send", over=10),
            None,
            {"ended": (1,)},
            Blame.ENDED,
            "barrier",
        ),
        (
            group(5, "all_reduce", "all_reduce", "broadcast", "barrier", over=6, state="started"),
            None,
            {"silent": (1,)},
            Blame.NOT_ENTERED,
            "broadcast",
        ),
    ],
    ids=["far ahead", "ended well", "silent"],
)
def test_collective_that_the_others_wait_in_is_named(waiting, other, options, blame, op):
    found, said = judged([waiting], other, [waiting], **options)
    assert (said, found.op) == ((blame, (1,), (0, 2)), op)
    assert found.at == ("train.py:88 load" if "stacks" in options else "")


SAME = ("_all_gather_base", "all_gather_into_tensor_coalesced", "_reduce_scatter_base", "reduce")
UNEVEN = ("alltoall_base_", "all_gather", "reduce_scatter", "gather_")


@pytest.mark.parametrize("op", SAME + UNEVEN)
def test_sizes_count_where_they_must_be_the_same(op):
    calls = [[group(7, (op, size), state="started")] for size in (4, 4, 8)]
    assert judged(*calls)[0].blame is (Blame.DIFFERS if op in SAME else Blame.CANNOT_LEAVE)


def test_the_group_that_was_stuck_first_is_named():
    late = {"name": "1", "members": (0, 1), "at": 10}
    first, second = group(3, "barrier", **late), group(2, "barrier", **late)
    found, said = judged([*ONE, first], [*ONE, second], [group(6, "allreduce_")])
    assert (said, found.group) == ((Blame.NOT_ENTERED, (2,), (0, 1)), "0")


@pytest.mark.parametrize("ahead", [0, 20])
def test_a_rank_that_waits_in_another_group_is_not_blamed(ahead):
    def tensor(number, state, at=100, members=(0, 1)):
        return group(number, "all_reduce", name="tp", members=members, at=at, state=state)

    def data(members, number, state, at=10):
        return group(number, "all_reduce", name="dp", members=members, at=at, state=state)

    others = tensor(7, "ended", 100 - ahead, (2, 3))
    found, said = judged(
        [tensor(7, "started"), data((0, 2), 3, "ended")],
        [tensor(6, "ended", at=50), data((1, 3), 3, "ended")],
        [others, data((0, 2), 4, "started", at=110 - ahead)],
        [others, data((1, 3), 4, "started", at=111 - ahead)],
        stacks={rank: (f"train.py:{rank} wait",) for rank in range(4)},
    )
    assert (said[:2], found.at) == ((Blame.NOT_ENTERED, (1,)), "train.py:1 wait")


@pytest.mark.parametrize("states", [("started", "started"), ("started", "issued")])
def test_rank_of_which_nothing_is_known_may_not_have_entered(states):
    found, said = judged(*in_states(*states), None)
    assert said == (Blame.UNKNOWN, (2,), (0, 1))
    words = troubles.in_full(Trouble(Kind.HUNG, found.ranks, T0, hang=found))
    assert words.endswith(": rank 2 may not have entered all_reduce 1.00 MiB; ranks 0-1 wait")


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("aaba", "; rank 2 at b; ranks 0-1, 3 at a"),
        ("abcde", "; rank 0 at a; rank 1 at b; rank 2 at c; 2 other lines"),
    ],
)
def test_ranks_are_told_by_line_the_fewest_first(lines, told):
    job = PlayedJob(len(lines))
    for rank, line in enumerate(lines):
        job.send(step(rank, 0), RankStalled(rank, True, (), (line,)))
    job.clock.pass_s(23)
    assert re.sub(r".* since [\d:]+", "", troubles.in_full(trouble_of(job.fleet.snapshot()))) == told


def test_a_job_hangs_until_its_agents_say_that_it_goes_on():
    job = PlayedJob()
    job.send(step(0, 0), step(1, 0), RankStalled(0, True, (group(7, "allreduce_", members=(0, 1)),)))
    assert trouble_of(job.fleet.snapshot()) is None  # a step has just ended
    job.clock.pass_s(23)
    job.send(status(silent=(1,)))
    found = trouble_of(job.fleet.snapshot())
    assert (found.kind, found.ranks) == (Kind.HUNG, (1,))
    assert troubles.in_brief(found, job.clock.at_ns) == "HUNG for 23 s"
    why = "rank 1 has not entered allreduce 1.00 MiB: stopped, or its interpreter hangs"
    full, *shorter = troubles.wordings(found)
    assert re.sub(r"[\d:]{8}", "TIME", full) == f"HUNG since TIME: {why}; rank 0 waits"
    assert shorter[:2] == [f"HUNG: {why}; rank 0 waits", f"HUNG: {why}"]
    job.send(status(), RankStalled(0, False), step(0, 1), step(1, 1))
    assert trouble_of(job.fleet.snapshot()) is None
    assert [view.stalled for view in job.fleet.snapshot().ranks] == [None, None]
