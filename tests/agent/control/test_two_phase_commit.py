"""All ranks act at the same step or none does, whoever is slow, refuses or leaves. Ranks are threads here,
each with a connection to a TCPStore of its own and a loop that stands for its training.
"""

import random
import re
import threading

import pytest
import torch.distributed as dist

from overlaptop.agent.control.two_phase_commit import (
    Decision,
    Position,
    StepProgress,
    TwoPhaseCommit,
)
from tests.processes import eventually

RANKS = 4
QUICK = {"timeout_s": 0.4, "period_s": 0.005, "notice_s": 0.3, "resolve_limit_s": 5.0}
"""A notice that threads keep on a busy machine."""


class Rank:
    def __init__(self, rank, store, world_size=RANKS, step=0, step_s=0.001, said_ns=None, **options):
        self.step, self.step_s = step, step_s
        self.armed, self.acted, self.decision = None, [], None
        said_ns = said_ns or round(step_s * 1e9)

        def pace():
            return StepProgress(self.step, said_ns)

        options = QUICK | options
        self.commit = TwoPhaseCommit(store, rank, world_size, pace, self.arm, **options)
        self.agree = self.commit.run
        self.stop = threading.Event()
        self.training = threading.Thread(target=self.train)
        self.agreeing = threading.Thread(target=lambda: setattr(self, "decision", self.agree()))

    def arm(self, step):
        self.armed = step

    def train(self):
        while not self.stop.wait(self.step_s):
            self.step += 1
            if self.armed is not None and self.step >= self.armed:
                decision = self.commit.resolve()
                self.armed = None
                if decision is not None and decision.step is not None:
                    self.acted.append(self.step)

    def finish(self):
        self.agreeing.join()
        eventually(lambda: self.decision.step is None or self.acted)
        self.stop.set()
        self.training.join()


@pytest.fixture(scope="module")
def server():
    return dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)


@pytest.fixture
def stores(server, request):
    return [dist.PrefixStore(f"overlaptop/{request.node.name}", server.clone()) for _ in range(RANKS)]


def all_ranks(stores, of_rank=lambda rank: {}):
    """Ranks that have time to answer; ``of_rank``: more options of each."""
    return [Rank(rank, stores[rank], **{"timeout_s": 10.0, **of_rank(rank)}) for rank in range(len(stores))]


def run(ranks, meanwhile=lambda: None):
    for rank in ranks:
        rank.training.start()
        rank.agreeing.start()
    meanwhile()
    for rank in ranks:
        rank.finish()
    (decision,) = {rank.decision for rank in ranks}
    expected = [] if decision.step is None else [decision.step]
    assert [rank.acted for rank in ranks] == [expected] * len(ranks)
    return decision


def test_first_rank_at_the_planned_step_settles_it_for_all():
    # Ranks that are a hundred times quicker than they say come to the planned step in the middle of the
    # commit: some are committed in time, some abort, but never one without the others.
    rng = random.Random(3)
    outcomes = set()
    for tried in range(3000):
        if tried >= 30 and len(outcomes) == 2:
            break
        store = dist.HashStore()
        quick_s = rng.choice((0.0002, 0.001, 0.004))
        ranks = [
            Rank(rank, store, world_size=3, step_s=quick_s * rng.uniform(0.5, 1.5), said_ns=10_000_000,
                 period_s=0.002, notice_s=0.0)
            for rank in range(3)
        ]  # fmt: skip
        outcomes.add(run(ranks).step is not None)
    assert outcomes == {True, False}


def test_refusal_of_one_rank_reaches_all(stores):
    ranks = all_ranks(stores, lambda rank: {"timeout_s": 1e6})  # nobody waits for its patience to end
    ranks[2].agree = lambda: ranks[2].commit.refuse("refuses: its profiler is running")
    assert run(ranks) == Decision(None, "rank 2 refuses: its profiler is running")


READY = "5 1000000"


@pytest.mark.parametrize(
    ("there", "posted", "reason"),
    [
        (0, {"ready/1": READY}, "rank 2 does not answer, nor do 1 more"),
        (1, {}, "rank 0 makes no plan"),
        (1, {"plan": "100000 0"}, "rank 0 decides nothing"),
        # Which of them depends on how far its training goes on meanwhile.
        (
            0,
            {f"ready/{rank}": READY for rank in (1, 2, 3)} | {f"armed/{rank}": "\n" for rank in (1, 2)},
            r"rank 3 (was not ready for step|does not answer).*|rank 0 was past step.*",
        ),
    ],
    ids=["two never answer", "no rank 0", "rank 0 dies with its plan", "a rank dies once it was ready"],
)
def test_missing_rank_is_named_and_no_rank_acts(stores, there, posted, reason):
    for key, value in posted.items():
        stores[0].set(key, value)
    decision = run([Rank(there, stores[there])])
    assert decision.step is None
    assert re.fullmatch(reason, decision.reason)


def test_agreement_of_ranks_at_different_steps_is_final(stores, server):
    before = server.num_keys()
    ranks = all_ranks(
        stores, lambda rank: {"step": 7 * rank, "step_s": 0.001 + 0.0002 * rank, "notice_s": 1.0}
    )
    decision = run(ranks)
    ranks[1].commit.abandon("the job ended first")
    assert decision.step is not None
    assert ranks[1].commit.resolve() == decision
    assert ranks[2].commit.refuse("too late") == decision
    ranks[0].commit.clean_up()
    assert stores[0].check(["plan", "decision"])
    assert server.num_keys() == before + 2


def unknown(step):
    raise LookupError(f"does not know where it stood in step {step}")


@pytest.mark.parametrize(
    ("position", "reason"),
    [
        # A batch behind the others since some join(), rank 2 calls another step the same.
        (
            lambda step: Position("all", f"after 9 of {step}"),
            r"rank 2 began step (\d+) after 9 of \1, but rank 0 after 10 of \1",
        ),
        (unknown, r"rank 2 does not know where it stood in step \d+"),
    ],
)
def test_ranks_at_different_positions_do_not_act(stores, position, reason):
    def of_rank(rank):
        return {"position": position if rank == 2 else lambda step: Position("all", f"after 10 of {step}")}

    assert re.fullmatch(reason, run(all_ranks(stores, of_rank)).reason)


class Failing:
    """A connection to the store that breaks once its rank has written one of these keys."""

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


@pytest.mark.parametrize(
    ("breaks_at", "refused", "limit_s"),
    [("ready", 9, 10.0), ("armed", 2, 10.0), ("armed", 9, 0.1)],
    ids=["before the vote", "for a moment", "for good"],
)
def test_rank_that_voted_reconnects_to_a_lost_store(stores, breaks_at, refused, limit_s):
    stores[0].set("plan", "1000 0")
    tries = []

    def reconnect():
        stores[0].set("decision", "commit")
        tries.append(1)
        if len(tries) <= refused:
            raise RuntimeError("Connection refused")
        return stores[1]

    lost = Failing(stores[1], breaks_at)
    commit = Rank(1, lost, world_size=2, reconnect=reconnect, resolve_limit_s=limit_s).commit
    if refused == 2:
        assert commit.run() == commit.resolve() == Decision(1000)
        assert len(tries) == 3
        return
    with pytest.raises(RuntimeError, match="Connection reset"):
        commit.run()
    assert bool(tries) == (breaks_at == "armed")
    failed = "rank 1: the job's store failed: Connection reset by peer"
    assert commit.resolve() == Decision(None, failed)
