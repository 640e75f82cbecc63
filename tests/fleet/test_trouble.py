"""What is wrong with a job is decided once: who is silent, what ended it."""

import re

import pytest
from msgspec.structs import replace

from overlaptop.fleet.snapshot import HubState, RankView
from overlaptop.fleet.trouble import HUNG_AFTER_S, NOTICED_NS, Kind, first_failure, trouble_of
from overlaptop.report.hosts import ranks_and_hosts
from overlaptop.report.troubles import color, ended_well, endings, in_brief, in_full, wordings
from overlaptop.wire.messages import GroupCalls, IssuedCall, RankEnd, RankStalled

from .builders import T0, S, info, status, step, welcome
from .hub import PlayedJob


class JobInTrouble(PlayedJob):
    """Two ranks that have made a step."""

    def __init__(self):
        super().__init__()
        self.send(*self.step(0))

    def step(self, number):
        return [step(rank, number) for rank in (0, 1)]

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
    assert job.words == (Kind.SILENT, (1,))
    assert job.trouble.since_ns == T0
    views = job.fleet.snapshot().ranks
    assert [(view.stale, view.silent) for view in views] == [(True, False), (True, True)]
    job.send(status(), *job.step(1))  # steps end again
    assert job.trouble is None


@pytest.mark.parametrize("hub_state", [HubState.STALE, HubState.LOST, HubState.WAITING])
def test_a_connection_that_stands_still_is_no_silent_rank(job, hub_state):
    job.send(status(silent=(1,)))
    job.clock.pass_s(70)
    job.fleet.set_hub_state(hub_state)
    assert job.trouble is None
    assert not any(view.silent for view in job.fleet.snapshot().ranks)


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
        ([died(1)], f"rank 1 {WITHOUT_A_WORD}"),
        ([told(1, exit_code=-6)], "rank 1 killed by SIGABRT"),
        ([told(1, "boom", after_ns=S), told(0, "lost", after_ns=2 * S)], f"rank 1 failed: boom{ONE_MORE}"),
        ([told(1, exit_code=0)], None),
        ([died(1), told(0, after_ns=S)], f"rank 1 {WITHOUT_A_WORD}"),
        # A launcher ends the others by SIGTERM, also if the first one failed by itself.
        ([died(0, -15), died(1, -9, after_ns=S // 50)], KILLED + ONE_MORE),
        # If all died alike, the first is not blamed alone; some may have been ended by their launcher.
        ([died(0), died(1, after_ns=-S)], f"all ranks {WITHOUT_A_WORD}; rank 1 first"),
        ([died(1), died(0, -15, after_ns=1)], f"all ranks {WITHOUT_A_WORD}; rank 1 first"),
        ([died(1), died(0, -9, after_ns=1)], f"rank 1 {WITHOUT_A_WORD}{ONE_MORE}"),
        # A death is noticed a moment late, and comes before what it led to.
        ([told(0, "lost"), died(1, after_ns=NOTICED_NS // 2)], f"rank 1 {WITHOUT_A_WORD}{ONE_MORE}"),
        ([told(0, "lost"), died(1, after_ns=2 * NOTICED_NS)], f"rank 0 failed: lost{ONE_MORE}"),
    ],
)
def test_first_end_and_its_cause_are_named(job, ends, words):
    job.send(*ends)
    assert (job.trouble and in_full(job.trouble)) == words


def test_rank_that_its_launcher_ended_is_told_from_the_first(job):
    job.send(died(0, -15), died(1, -9, after_ns=S // 50))
    first = first_failure(job.fleet.snapshot().ranks)
    said = [endings(view, first) for view in job.fleet.snapshot().ranks]
    assert said == [
        ["killed by SIGTERM after rank 1", "SIGTERM after rank 1", "SIGTERM"],
        ["killed by SIGKILL", "SIGKILL", "SIGKILL"],
    ]


@pytest.mark.parametrize(
    "end", [{"failure": "KeyboardInterrupt", "exit_code": 1}, {"exit_code": -2}, {"exit_code": 130}]
)
def test_ctrl_c_is_no_failure(job, end):
    job.send(RankEnd(0, T0, clean=True, **end), RankEnd(1, T0 + 1, clean=False, exit_code=-15))
    assert job.trouble is None
    job.send(RankEnd(1, T0 + 1, clean=True, failure="ValueError: x", exit_code=1))
    assert job.words == (Kind.FAILED, (1,))


def test_interrupted_hang_is_told_from_a_good_end(job):
    def ranks():
        return job.fleet.snapshot().ranks

    job.send(*(RankEnd(rank, T0, clean=True, exit_code=0) for rank in (0, 1)))
    assert ended_well(ranks()) == "every rank ended well"
    job.send(*(RankEnd(rank, T0, True, "KeyboardInterrupt", -2) for rank in (0, 1)))
    assert ended_well(ranks()) == "interrupted (SIGINT)"
    assert endings(ranks()[0], None)[0] == "interrupted (SIGINT)"
    waits = GroupCalls("0", (0, 1), (IssuedCall("allreduce", 4, 7, T0),))
    job.send(RankStalled(0, True, (waits,)), RankStalled(1, True))
    assert "(SIGINT) while no step ended: rank 1 has not entered" in ended_well(ranks())


def keep_waiting(job, number):
    """Rank 0 saves a checkpoint, and rank 1 waits for it in a barrier."""
    calls = GroupCalls("0", (0, 1), (IssuedCall("barrier", None, number, T0),))
    before = GroupCalls("0", (0, 1), (IssuedCall("barrier", None, number - 1, T0),))
    job.send(RankStalled(0, True, (before,), ("src/train.py:7 save", "src/train.py:50 <module>")))
    job.send(RankStalled(1, True, (calls,)))


def test_rank_that_saves_a_checkpoint_is_waited_for_as_long_as_before(job):
    paused = JobInTrouble()
    paused.send(*(replace(each, step_ns=20 * S) for each in paused.step(1)), *paused.step(2))
    keep_waiting(paused, 2)
    for seconds, kind in ((39, Kind.WAITING), (3, Kind.HUNG)):
        paused.clock.pass_s(seconds)
        assert paused.words == (kind, (0,))
    keep_waiting(job, 2)
    job.clock.pass_s(22)
    found = job.trouble
    assert (found.kind, found.ranks, color(found)) == (Kind.WAITING, (0,), "warning")
    assert in_brief(found, job.clock.at_ns) == "waiting for rank 0: 22 s"
    full, *_, short = wordings(found)
    assert re.sub(r"[\d:]{8}", "TIME", full) == (
        "waiting for rank 0 in save (train.py:7) since TIME; rank 1 waits in barrier"
    )
    assert short == "waiting for rank 0"
    job.clock.pass_s(HUNG_AFTER_S)
    assert (job.words, color(job.trouble)) == ((Kind.HUNG, (0,)), "error")


PREPARES, JOINS = "src/train.py:30 prepare", "src/train.py:12 init_process_group"


def at(rank, line, *, hung=True):
    return RankStalled(rank, hung, (), (line, "src/train.py:50 <module>"), since_ns=T0)


def words_before_first_step(*messages, seconds=180.0, ranks=2):
    """What is said after so long of two ranks that have come, in a job of so many."""
    job = PlayedJob()
    job.send(welcome(world_size=ranks), status(), *messages)
    job.clock.pass_s(seconds)
    found = trouble_of(job.fleet.snapshot())
    return None if found is None else (in_brief(found, job.clock.at_ns), in_full(found), color(found))


NO_STEP_YET = [info(rank, source="none", source_reason="no step seen yet") for rank in (0, 1)]
JOINING = "ranks 0-1 are in init_process_group (train.py:12)"
PREPARING = "ranks 0-1 are in prepare (train.py:30)"


@pytest.mark.parametrize(
    ("messages", "ranks", "said"),
    [
        (
            [at(0, PREPARES), at(1, PREPARES)],
            2,
            f"starting for 3 m 00 s: {PREPARING}",
        ),
        (
            [at(0, PREPARES), at(1, JOINS)],
            2,
            "starting for 3 m 00 s: rank 0 is in prepare (train.py:30); rank 1 is in init_process_group "
            "(train.py:12)",
        ),
        ([at(0, "train.py:3 <module>")], 2, "starting for 3 m 00 s: rank 0 is at train.py:3"),
        ([at(0, JOINS), at(1, JOINS)], 4, f"2 of 4 ranks here after 3 m 00 s; {JOINING}"),
        (
            [*NO_STEP_YET, at(0, PREPARES, hung=False), at(1, PREPARES, hung=False)],
            2,
            f"no step for 3 m 00 s: {PREPARING}; the script goes on, no step seen yet",
        ),
    ],
)
def test_job_without_a_first_step_says_where_its_ranks_are(messages, ranks, said):
    brief, full, shade = words_before_first_step(*messages, ranks=ranks)
    assert (full, shade) == (said, "warning")
    assert "for 3 m 00 s" in brief


def test_start_of_a_job_is_no_trouble():
    assert words_before_first_step(seconds=19.0) is None
    assert words_before_first_step(RankEnd(0, T0, True), RankEnd(1, T0, True)) is None
    disabled = (info(rank, source="none", source_reason="the agent disabled itself") for rank in (0, 1))
    assert words_before_first_step(*disabled) is None


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (range(8, 16), "ranks 8-15, all of gpu-1"),
        ([*range(8), *range(16, 24)], "ranks 0-7, 16-23, all of 2 hosts"),
        (range(8, 17), "ranks 8-16"),
        (range(32), "ranks 0-31"),
    ],
)
def test_ranks_that_fill_hosts_are_named_with_them(ranks, words):
    views = [RankView(rank, info(rank, host=f"gpu-{rank // 8}")) for rank in range(32)]
    assert ranks_and_hosts(ranks, views) == words


@pytest.mark.parametrize(
    ("silent", "who"),
    [
        (range(8, 16), "all ranks of gpu-1"),
        (range(16), "ranks 0-15"),
        (range(2, 20, 2), "9 ranks"),
    ],
)
def test_a_silent_host_is_named(silent, who):
    job = PlayedJob(32)
    job.send(*(info(rank, host=f"gpu-{rank // 8}", world_size=32) for rank in range(32)))
    job.send(*(step(rank, 0) for rank in range(32)))
    job.clock.pass_s(60)
    job.send(*(step(rank, 1, start_ns=job.clock()) for rank in range(32) if rank not in silent))
    job.send(status(silent=tuple(silent)))
    trouble = trouble_of(job.fleet.snapshot())
    assert in_brief(trouble, trouble.since_ns) == f"{who} silent for 0 s"
