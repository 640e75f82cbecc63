"""What is wrong with a job is decided once: who is silent, what ended it, which rank a hang waits for."""

import re

import pytest
from msgspec.structs import replace

from overlaptop.fleet.hang_cause import Blame, hang_of
from overlaptop.fleet.snapshot import HubState
from overlaptop.fleet.trouble import HUNG_AFTER_S, NOTICED_NS, Kind, Trouble, trouble_of
from overlaptop.report.troubles import color, in_brief, in_full, wordings
from overlaptop.wire.messages import GroupCalls, IssuedCall, RankEnd, RankStalled

from .builders import T0, S, info, status, step, welcome
from .hub import PlayedJob

MIB = 1 << 20


class JobInTrouble(PlayedJob):
    """Ranks that have made a step."""

    def __init__(self, ranks=2):
        super().__init__(ranks)
        self.make(0)

    def make(self, number, but=(), **changes):
        """All ranks but these make a step."""
        ranks = [rank for rank in range(len(self.ranks)) if rank not in but]
        self.send(*(replace(step(rank, number), **changes) for rank in ranks))

    @property
    def ranks(self):
        return self.fleet.snapshot().ranks

    @property
    def trouble(self):
        return trouble_of(self.fleet.snapshot())

    @property
    def words(self):
        return None if self.trouble is None else (self.trouble.kind, self.trouble.ranks)


@pytest.fixture
def job():
    return JobInTrouble()


def test_silent_rank_is_named_and_not_those_that_wait_for_it(job):
    job.clock.pass_s(5.1)
    job.send(status(silent=(1,)))
    assert (job.words, job.trouble.since_ns) == ((Kind.SILENT, (1,)), T0)
    assert [(view.stale, view.silent) for view in job.ranks] == [(True, False), (True, True)]
    job.fleet.set_hub_state(HubState.STALE)  # the connection, and not the rank
    assert job.trouble is None
    assert not any(view.silent for view in job.ranks)
    job.fleet.set_hub_state(HubState.LIVE)
    job.send(status())
    job.make(1)
    assert job.trouble is None


@pytest.mark.parametrize(
    ("silent", "who"),
    [(range(8, 16), "all ranks of gpu-1"), (range(16), "ranks 0-15"), (range(2, 20, 2), "9 ranks")],
)
def test_a_silent_host_is_named(silent, who):
    job = JobInTrouble(32)
    job.send(*(info(rank, host=f"gpu-{rank // 8}", world_size=32) for rank in range(32)))
    job.clock.pass_s(60)
    job.make(1, but=silent, start_ns=job.clock())
    job.send(status(silent=tuple(silent)))
    trouble = job.trouble
    assert in_brief(trouble, trouble.since_ns) == f"{who} silent for 0 s"


def died(rank, exit_code=None, *, after_ns=0):
    return RankEnd(rank, T0 + after_ns, False, exit_code=exit_code)


def told(rank, failure="", exit_code=None, *, after_ns=0):
    """The agent reports the end of its rank."""
    return RankEnd(rank, T0 + after_ns, True, failure, exit_code)


KILLED = "rank 1 killed by SIGKILL: by somebody, or by the kernel if memory ran out"
WITHOUT_A_WORD = "died without a word: by a signal, or os._exit"
ONE_MORE = "; 1 other rank ended badly after it"


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ([died(1, 3)], "rank 1 ended with exit status 3, without a reason: by os._exit"),
        ([told(1, exit_code=-6)], "rank 1 killed by SIGABRT"),
        ([told(1, "boom", after_ns=S), told(0, "lost", after_ns=2 * S)], f"rank 1 failed: boom{ONE_MORE}"),
        ([told(1, exit_code=0)], None),
        ([died(1), told(0, after_ns=S)], f"rank 1 {WITHOUT_A_WORD}"),
        # A launcher ends the others by SIGTERM, also if the first one failed by itself.
        ([died(0, -15), died(1, -9, after_ns=S // 50)], KILLED + ONE_MORE),
        # If all died alike, the first is not blamed alone; some may have been ended by their launcher.
        ([died(0), died(1, after_ns=-S)], f"all ranks {WITHOUT_A_WORD}; rank 1 first"),
        ([died(1), died(0, -15, after_ns=1)], f"all ranks {WITHOUT_A_WORD}; rank 1 first"),
        # A death is noticed a moment late, and comes before what it led to.
        ([told(0, "lost"), died(1, after_ns=NOTICED_NS // 2)], f"rank 1 {WITHOUT_A_WORD}{ONE_MORE}"),
        ([told(0, "lost"), died(1, after_ns=2 * NOTICED_NS)], f"rank 0 failed: lost{ONE_MORE}"),
    ],
)
def test_first_end_and_its_cause_are_named(job, ends, words):
    job.send(*ends)
    assert (job.trouble and in_full(job.trouble)) == words


@pytest.mark.parametrize(
    "end", [{"failure": "KeyboardInterrupt", "exit_code": 1}, {"exit_code": -2}, {"exit_code": 130}]
)
def test_ctrl_c_is_no_failure(job, end):
    job.send(RankEnd(0, T0, clean=True, **end), died(1, -15, after_ns=1))
    assert job.trouble is None
    job.send(told(1, "ValueError: x", 1, after_ns=1))
    assert job.words == (Kind.FAILED, (1,))


def keep_waiting(job, number):
    """Rank 0 saves a checkpoint, and rank 1 waits for it in a barrier."""
    for rank, line in ((0, "src/train.py:7 save"), (1, "")):
        calls = GroupCalls("0", (0, 1), (IssuedCall("barrier", None, number - 1 + rank, T0),))
        job.send(RankStalled(rank, True, (calls,), (line,) if line else ()))


def test_rank_that_saves_a_checkpoint_is_waited_for_as_long_as_before(job):
    paused = JobInTrouble()
    paused.make(1, step_ns=20 * S)
    paused.make(2)
    keep_waiting(paused, 2)
    for seconds, kind in ((39, Kind.WAITING), (3, Kind.HUNG)):
        paused.clock.pass_s(seconds)
        assert paused.words == (kind, (0,))
    keep_waiting(job, 2)
    job.clock.pass_s(22)
    assert (job.words, color(job.trouble)) == ((Kind.WAITING, (0,)), "warning")
    assert in_brief(job.trouble, job.clock.at_ns) == "waiting for rank 0: 22 s"
    full, *_, short = wordings(job.trouble)
    assert re.sub(r"[\d:]{8}", "TIME", full) == (
        "waiting for rank 0 in save (train.py:7) since TIME; rank 1 waits in barrier"
    )
    assert short == "waiting for rank 0"
    job.clock.pass_s(HUNG_AFTER_S)
    assert (job.words, color(job.trouble)) == ((Kind.HUNG, (0,)), "error")


PREPARES, JOINS = "src/train.py:30 prepare", "src/train.py:12 init_process_group"


def at(rank, line, *, hung=True):
    return RankStalled(rank, hung, (), (line, "src/train.py:50 <module>"), since_ns=T0)


def before_first_step(*messages, seconds=180.0, ranks=2):
    """The trouble after so long of two ranks that have come, in a job of so many; and the time."""
    job = PlayedJob()
    job.send(welcome(world_size=ranks), status(), *messages)
    job.clock.pass_s(seconds)
    return trouble_of(job.fleet.snapshot()), job.clock.at_ns


NO_STEP_YET = [info(rank, source="none", source_reason="no step seen yet") for rank in (0, 1)]
JOINING = "ranks 0-1 are in init_process_group (train.py:12)"
PREPARING = "ranks 0-1 are in prepare (train.py:30)"
APART = "rank 0 is at train.py:3; rank 1 is in init_process_group (train.py:12)"


@pytest.mark.parametrize(
    ("lines", "options", "said"),
    [
        ([PREPARES, PREPARES], {}, f"starting for 3 m 00 s: {PREPARING}"),
        (["train.py:3 <module>", JOINS], {}, f"starting for 3 m 00 s: {APART}"),
        ([JOINS, JOINS], {"ranks": 4}, f"2 of 4 ranks here after 3 m 00 s; {JOINING}"),
    ],
)
def test_job_without_a_first_step_says_where_its_ranks_are(lines, options, said):
    found, now_ns = before_first_step(*map(at, (0, 1), lines), **options)
    assert (in_full(found), color(found)) == (said, "warning")
    assert "for 3 m 00 s" in in_brief(found, now_ns)


def test_script_that_goes_on_without_a_step_says_why_none_is_seen():
    found, _ = before_first_step(*NO_STEP_YET, *(at(rank, PREPARES, hung=False) for rank in (0, 1)))
    assert in_full(found) == f"no step for 3 m 00 s: {PREPARING}; the script goes on, no step seen yet"


def test_start_of_a_job_is_no_trouble():
    disabled = [info(rank, source="none", source_reason="the agent disabled itself") for rank in (0, 1)]
    for messages, seconds in (([], 19.0), ([told(0), told(1)], 180.0), (disabled, 180.0)):
        assert before_first_step(*messages, seconds=seconds)[0] is None


# Hangs, by the collectives that each rank has issued


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


def test_collective_that_the_others_wait_in_is_named():
    """The first one that is missing, and not their newest."""
    ahead = [group(7, "allreduce_", "broadcast_", "allreduce_", "allreduce_")]
    other = [group(6, "allreduce_", "allreduce_")]
    found, said = judged(ahead, other, ahead, stacks={1: ("train.py:88 load", "x")})
    assert (said, found.op, found.at) == (NOT_1, "broadcast_", "train.py:88 load")
    waiting = [group(10, "all_reduce", "barrier", "send", over=10)]
    found, said = judged(waiting, None, waiting, ended=(1,))
    assert (said, found.op) == ((Blame.ENDED, (1,), (0, 2)), "barrier")
    waiting = [group(5, "all_reduce", "all_reduce", "broadcast", "barrier", over=6, state="started")]
    found, said = judged(waiting, None, waiting, silent=(1,))
    assert (said, found.op) == (NOT_1, "broadcast")


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
    words = in_full(Trouble(Kind.HUNG, found.ranks, T0, hang=found))
    assert words.endswith(": rank 2 may not have entered all_reduce 1.00 MiB; ranks 0-1 wait")


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("aaba", "; rank 2 at b; ranks 0-1, 3 at a"),
        ("abcde", "; rank 0 at a; rank 1 at b; rank 2 at c; 2 other lines"),
    ],
)
def test_ranks_are_told_by_line_the_fewest_first(lines, told):
    job = JobInTrouble(len(lines))
    job.send(*(RankStalled(rank, True, (), (line,)) for rank, line in enumerate(lines)))
    job.clock.pass_s(23)
    assert re.sub(r".* since [\d:]+", "", in_full(job.trouble)) == told


def test_a_job_hangs_until_its_agents_say_that_it_goes_on(job):
    job.send(RankStalled(0, True, (group(7, "allreduce_", members=(0, 1)),)))
    assert job.trouble is None  # a step has just ended
    job.clock.pass_s(23)
    job.send(status(silent=(1,)))
    found = job.trouble
    assert job.words == (Kind.HUNG, (1,))
    assert in_brief(found, job.clock.at_ns) == "HUNG for 23 s"
    why = "rank 1 has not entered allreduce 1.00 MiB: stopped, or its interpreter hangs"
    full, *shorter = wordings(found)
    assert re.sub(r"[\d:]{8}", "TIME", full) == f"HUNG since TIME: {why}; rank 0 waits"
    assert shorter[:2] == [f"HUNG: {why}; rank 0 waits", f"HUNG: {why}"]
    job.send(status(), RankStalled(0, False))
    job.make(1)
    assert job.trouble is None
    assert [view.stalled for view in job.ranks] == [None, None]
