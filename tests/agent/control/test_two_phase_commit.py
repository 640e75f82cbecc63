"""All ranks act at the same step or none does, whoever is slow, refuses or leaves. Ranks are threads here,
each with a connection to a TCPStore of its own and a loop that stands for its training.
"""

from __future__ import annotations

import random
import re
import threading
import time
from datetime import timedelta

import pytest
import torch.distributed as dist

from overlaptop.agent.control.two_phase_commit import (
    ANY_POSITION,
    Decision,
    Position,
    StepProgress,
    TwoPhaseCommit,
)

RANKS = 4
QUICK = {"timeout_s": 0.4, "period_s": 0.005, "notice_s": 0.3}
"""A notice that threads keep on a busy machine."""


class Rank:
    """A rank that trains at its own pace and does what it agreed on, if anything."""

    def __init__(self, rank, store, world_size=RANKS, step=0, step_s=0.001, said_ns=None, **options):
        self.step = step
        self.armed = None
        self.acted = []
        self.unknown = False
        self.decision = None
        self.step_s = step_s
        self.rank = rank
        self.said_ns = said_ns or round(step_s * 1e9)
        self.commit = TwoPhaseCommit(
            store,
            rank,
            world_size,
            lambda: StepProgress(self.step, self.said_ns),
            self.arm,
            **{**QUICK, **options},
        )
        self.stop = threading.Event()
        self.training = threading.Thread(target=self.train)
        self.agreeing = threading.Thread(target=self.agree)

    def arm(self, step):
        self.armed = step

    def train(self):
        while not self.stop.wait(self.step_s):
            self.step += 1
            if self.armed is not None and self.step >= self.armed:
                decision = self.commit.resolve(limit_s=5.0)
                self.armed = None
                if decision is None:
                    self.unknown = True
                elif decision.step is not None:
                    self.acted.append(self.step)

    def agree(self):
        self.decision = self.commit.run()

    def start(self):
        self.training.start()
        self.agreeing.start()

    def finish(self):
        self.agreeing.join()
        give_up_s = time.monotonic() + 20
        while self.decision.step is not None and not self.acted and time.monotonic() < give_up_s:
            time.sleep(0.001)
        self.stop.set()
        self.training.join()


@pytest.fixture(scope="module")
def server():
    return dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)


@pytest.fixture(scope="module")
def connections(server):
    """One for each rank, as clones of the job's store are."""
    own = [server.clone() for _ in range(RANKS)]
    for each in own:
        each.set_timeout(timedelta(seconds=5))
    return own


@pytest.fixture
def stores(connections, request):
    return [dist.PrefixStore(f"overlaptop/{request.node.name}", each) for each in connections]


def all_ranks(stores, of_rank=lambda rank: {}):
    """Ranks that have time to answer; ``of_rank``: more options of each."""
    return [Rank(rank, stores[rank], **{"timeout_s": 10.0, **of_rank(rank)}) for rank in range(RANKS)]


def decide(ranks):
    """As `run`, where none trains on."""
    for rank in ranks:
        rank.agreeing.start()
    for rank in ranks:
        rank.agreeing.join()
    return {rank.decision for rank in ranks}


def run(ranks):
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.finish()
    return {rank.decision for rank in ranks}


def test_ten_times_four_ranks_at_random_steps_all_act_at_the_same_one_or_none(connections):
    rng = random.Random(7)
    agreed = 0
    for number in range(10):
        stores = [dist.PrefixStore(f"overlaptop/{number}", each) for each in connections]
        ranks = all_ranks(
            stores, lambda rank: {"step": rng.randrange(30), "step_s": rng.uniform(0.0005, 0.003)}
        )
        (decision,) = run(ranks)
        expected = [] if decision.step is None else [decision.step]
        assert [rank.acted for rank in ranks] == [expected] * RANKS
        if decision.step is None:  # their threads were held up for as long as the plan lies ahead
            assert "past step" in decision.reason
        else:
            agreed += 1
    assert agreed


def test_whoever_reaches_the_step_before_the_decision_settles_it_for_all():
    # Ranks that are a hundred times quicker than they say come to the planned step in the middle of the
    # commit: some are committed in time, some abort, but never one without the others.
    rng = random.Random(3)
    outcomes = set()
    for _ in range(150):
        store = dist.HashStore()
        quick_s = rng.choice((0.0002, 0.001, 0.004))
        ranks = [
            Rank(rank, store, world_size=3, step_s=quick_s * rng.uniform(0.5, 1.5), said_ns=10_000_000,
                 period_s=0.002, notice_s=0.0)
            for rank in range(3)
        ]  # fmt: skip
        (decision,) = run(ranks)
        expected = [] if decision.step is None else [decision.step]
        assert [rank.acted for rank in ranks] == [expected] * 3
        outcomes.add(decision.step is not None)
    assert outcomes == {True, False}


def test_a_rank_that_refuses_keeps_all_from_acting_and_its_reason_reaches_all(stores):
    ranks = all_ranks(stores)
    ranks[2].agree = lambda: setattr(
        ranks[2], "decision", ranks[2].commit.refuse("refuses: its profiler is running")
    )
    ranks[2].agreeing = threading.Thread(target=ranks[2].agree)
    began_s = time.monotonic()
    assert run(ranks) == {Decision(None, "rank 2 refuses: its profiler is running")}
    assert time.monotonic() - began_s < 10.0  # nobody waited for its patience to end
    assert not any(rank.acted for rank in ranks)


def test_ranks_that_never_answer_are_named(stores):
    ranks = [Rank(rank, stores[rank]) for rank in (0, 1)]
    assert run(ranks) == {Decision(None, "rank 2 does not answer, nor do 1 more")}
    assert not any(rank.acted for rank in ranks)


def test_without_rank_0_nobody_acts(stores):
    ranks = [Rank(rank, stores[rank]) for rank in (1, 2, 3)]
    assert run(ranks) == {Decision(None, "rank 0 makes no plan")}


def test_a_rank_that_dies_once_it_was_ready_keeps_all_from_acting(stores):
    stores[3].set("ready/3", "5 1000000")
    ranks = [Rank(rank, stores[rank]) for rank in (0, 1, 2)]
    (decision,) = run(ranks)
    # Which of them depends on how far the others' training goes on without it.
    assert decision.step is None
    assert re.match(
        r"rank 3 (was not ready for step|does not answer)|rank \d was past step", decision.reason
    )
    assert not any(rank.acted for rank in ranks)


def test_a_rank_0_that_dies_with_its_plan_keeps_all_from_acting(stores):
    stores[0].set("plan", "100000 0")
    ranks = [Rank(rank, stores[rank]) for rank in (1, 2, 3)]
    assert run(ranks) == {Decision(None, "rank 0 decides nothing")}


def test_a_rank_that_comes_late_obeys_what_was_decided_without_it(stores):
    run([Rank(rank, stores[rank]) for rank in (0, 1, 2)])
    late = Rank(3, stores[3])
    assert run([late]) == {Decision(None, "rank 3 does not answer")}


def test_a_plan_that_lies_behind_is_not_armed_for(stores):
    stores[0].set("plan", "10 0")
    late = Rank(1, stores[1], step=10)
    (decision,) = run([late])
    assert "rank 1 was past step 10 already" in decision.reason
    assert not late.acted


def test_the_jobs_end_is_told_to_all(stores):
    ranks = [Rank(rank, stores[rank], timeout_s=10.0) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    ranks[1].commit.abandon("gave up: the job ended first")
    for rank in ranks:
        rank.finish()
    assert {rank.decision for rank in ranks} == {Decision(None, "rank 1 gave up: the job ended first")}


def test_what_has_been_decided_is_not_undone_by_a_late_change_of_mind(stores):
    ranks = all_ranks(stores)
    (decision,) = run(ranks)
    ranks[1].commit.abandon("the job ended first")
    assert ranks[1].commit.resolve() == decision
    assert ranks[2].commit.refuse("too late") == decision


def test_a_store_that_does_not_answer_means_that_this_rank_does_nothing():
    class Frozen:
        def __init__(self):
            self.thaw = threading.Event()

        def set(self, key, value):
            self.thaw.wait()

        def check(self, keys):
            return False

        def compare_set(self, key, expected, desired):
            return desired.encode()

    store = Frozen()
    commit = TwoPhaseCommit(store, 1, 2, lambda: StepProgress(0, 1), lambda step: None, **QUICK)
    thread = threading.Thread(target=commit.run)
    thread.start()
    assert commit.resolve(limit_s=0.05) is None
    store.thaw.set()
    thread.join()


def test_a_store_that_fails_is_said_and_nobody_acts():
    class Broken:
        def set(self, key, value):
            raise dist.DistNetworkError("Connection reset by peer")

    commit = TwoPhaseCommit(Broken(), 1, 2, lambda: StepProgress(0, 1), lambda step: None, **QUICK)
    with pytest.raises(dist.DistNetworkError):
        commit.run()
    assert commit.resolve() == Decision(None, "rank 1: the job's store failed: Connection reset by peer")


def test_a_rank_alone_agrees_with_itself():
    rank = Rank(0, None, world_size=1)
    (decision,) = run([rank])
    assert rank.acted == [decision.step]
    assert rank.commit.refuse("no") == Decision(None, "no")
    rank.commit.clean_up()


def test_the_plan_leaves_time_for_all_to_learn_of_it(stores):
    slow = {"step_s": 10.0, "notice_s": 1.0}
    ranks = all_ranks(stores, lambda rank: {"step": 100 * rank, "said_ns": 2_000_000 * (rank + 1), **slow})
    # The newest step, two more, and a second of the shortest steps.
    assert decide(ranks) == {Decision(300 + 2 + 500)}


def test_nothing_is_left_in_the_store_once_all_know(stores, server):
    before = server.num_keys()
    ranks = all_ranks(stores)
    run(ranks)
    cleaning = [threading.Thread(target=rank.commit.clean_up) for rank in ranks]
    for thread in cleaning:
        thread.start()
    for thread in cleaning:
        thread.join()
    assert server.num_keys() == before


def test_the_decision_stays_for_a_rank_that_has_not_read_it(stores):
    ranks = [Rank(rank, stores[rank]) for rank in (0, 1)]
    run(ranks)
    ranks[1].commit.clean_up()
    ranks[0].commit.clean_up(settle_s=0.05)
    assert not stores[0].check(["ready/0"])
    assert stores[0].check(["decision"])


def at_position(words, group="all"):
    """Where a rank says that it stood, in words about the step that it is asked about."""
    return lambda step: Position(group, words.format(step))


def test_ranks_that_do_not_count_the_same_steps_do_not_act(stores):
    # A batch behind the others since some join(), rank 2 calls another step the same.
    ranks = all_ranks(
        stores, lambda rank: {"position": at_position(f"after {9 if rank == 2 else 10} of {{}}")}
    )
    (decision,) = run(ranks)
    assert decision.step is None
    assert re.fullmatch(
        r"rank 2 began step (\d+) after 9 of \1, but rank 0 after 10 of \1", decision.reason
    )
    assert not any(rank.acted for rank in ranks)


def test_ranks_of_different_groups_may_stand_where_they_like(stores):
    ranks = all_ranks(
        stores, lambda rank: {"position": at_position(f"after {rank % 2}", group=f"{rank % 2}")}
    )
    (decision,) = run(ranks)
    assert {tuple(rank.acted) for rank in ranks} == {(decision.step,)}


def test_all_are_asked_about_a_step_that_each_has_begun(stores):
    asked = []

    def position(step):
        asked.append(step)
        return ANY_POSITION

    decide(all_ranks(stores, lambda rank: {"step": 100 + rank, "position": position}))
    assert asked == [100] * RANKS


def test_a_rank_that_does_not_know_where_it_stood_keeps_all_from_acting(stores):
    def unknown(step):
        raise LookupError(f"does not know where it stood in step {step}")

    ranks = all_ranks(stores, lambda rank: {"position": unknown} if rank == 1 else {})
    (decision,) = run(ranks)
    assert decision.reason.startswith("rank 1 does not know where it stood in step ")
    assert not any(rank.acted for rank in ranks)


def test_a_rank_that_is_given_up_just_before_its_vote_does_not_vote_any_more(stores):
    stores[0].set("plan", "1000 0")
    commit = TwoPhaseCommit(
        stores[1], 1, 2, lambda: StepProgress(5, 1_000_000), lambda step: commit.abandon("gave up"), **QUICK
    )
    assert commit.run() == Decision(None, "rank 1 gave up")
    assert not commit.voted
    assert not stores[0].check(["armed/1"])


class Failing:
    """A connection to the store that breaks, when its rank has voted or before."""

    def __init__(self, store, breaks_at):
        self.store = store
        self.breaks_at = breaks_at
        self.broken = False

    def __getattr__(self, name):
        def call(*args):
            if self.broken:
                raise RuntimeError("Connection reset by peer")
            answer = getattr(self.store, name)(*args)
            self.broken = name == "set" and args[0].startswith(self.breaks_at)
            return answer

        return call


def test_a_rank_that_loses_the_store_once_it_has_voted_learns_the_decision_anew(stores):
    lost = [*stores[:2], Failing(stores[2], "armed"), stores[3]]
    ranks = all_ranks(lost, lambda rank: {"reconnect": lambda: stores[2], "resolve_limit_s": 10.0})
    (decision,) = run(ranks)
    expected = [] if decision.step is None else [decision.step]
    assert [rank.acted for rank in ranks] == [expected] * RANKS
    if decision.step is None:  # it was the first to ask again
        assert decision.reason == "rank 2 lost the job's store for a moment: Connection reset by peer"


def test_a_rank_that_lost_the_store_obeys_what_the_others_have_decided(stores):
    stores[0].set("plan", "1000 0")
    tries = []

    def reconnect():
        stores[0].set("decision", "commit")
        tries.append(1)
        if len(tries) < 3:
            raise RuntimeError("Connection refused")
        return stores[1]

    lost = Failing(stores[1], "armed")
    commit = TwoPhaseCommit(
        lost,
        1,
        2,
        lambda: StepProgress(5, 1_000_000),
        lambda step: None,
        **QUICK,
        reconnect=reconnect,
        resolve_limit_s=10.0,
    )
    assert commit.run() == Decision(1000)
    assert commit.resolve() == Decision(1000)
    assert len(tries) == 3


@pytest.mark.parametrize(("breaks_at", "asks"), [("ready", 0), ("armed", 1)])
def test_a_store_that_stays_away_is_raised_at_once_before_the_vote_and_later_after_it(
    stores, breaks_at, asks
):
    stores[0].set("plan", "1000 0")
    tries = []

    def reconnect():
        tries.append(1)
        raise RuntimeError("Connection refused")

    lost = Failing(stores[1], breaks_at)
    commit = TwoPhaseCommit(
        lost,
        1,
        2,
        lambda: StepProgress(5, 1_000_000),
        lambda step: None,
        **QUICK,
        reconnect=reconnect,
        resolve_limit_s=0.1,
    )
    with pytest.raises(RuntimeError, match="Connection reset"):
        commit.run()
    assert (len(tries) >= 1) == asks
    assert "the job's store failed" in commit.resolve().reason


def test_a_job_that_ends_does_not_look_for_a_store_any_longer(stores):
    stores[0].set("plan", "1000 0")

    def reconnect():
        commit.abandon("the job ended first", job_ends=True)
        raise RuntimeError("Connection refused")

    lost = Failing(stores[1], "armed")
    commit = TwoPhaseCommit(
        lost,
        1,
        2,
        lambda: StepProgress(5, 1_000_000),
        lambda step: None,
        **QUICK,
        reconnect=reconnect,
        resolve_limit_s=1000.0,
    )
    with pytest.raises(RuntimeError, match="Connection reset"):
        commit.run()
