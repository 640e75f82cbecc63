"""The hub tells of ranks from which nothing comes, and refuses a second process of the same rank."""

import os
import selectors
import socket
import subprocess

import pytest

from overlaptop.agent.placement import RankPlacement
from overlaptop.agent.reporting import sender as rank_side
from overlaptop.agent.reporting.sender import Sender
from overlaptop.hub import ranks as hub_side
from overlaptop.hub.executions import CommandExecutions
from overlaptop.hub.ranks import RankServer
from overlaptop.jobs.folder import job_dir
from overlaptop.jobs.sockets import ranks_socket
from overlaptop.wire.messages import Notice
from tests.fleet.builders import info, step

LONG_S = 60.0
NO_PID = 1 << 30  # Of no process of this machine


class Node:
    """The ranks' side of a hub, and what it delivers."""

    def __init__(self):
        job_dir("job-1", create=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(ranks_socket("job-1")))
        listener.listen()
        listener.setblocking(False)
        self.received: list[object] = []
        self.now_s = 0.0
        self._selector = selectors.DefaultSelector()
        self.server = RankServer(
            "job-1", listener, self._selector, CommandExecutions(lambda _: None),
            deliver=lambda message, _payload: self.received.append(message), clock_s=lambda: self.now_s,
        )  # fmt: skip

    def work(self):
        while ready := self._selector.select(0):
            for key, events in ready:
                key.data(events)


@pytest.fixture
def node(socket_dir):
    made = Node()
    yield made
    made.server.close()


@pytest.fixture
def rank(node, monkeypatch):
    """Makes ranks as the agent does, on the clock of the node."""
    monkeypatch.setattr(rank_side, "monotonic", lambda: node.now_s)
    made = []

    def make(number, pid=None, script="train.py"):
        sender = Sender(RankPlacement("job-1", number, number, 2, "h", starts_hub=False), script)
        sender.introduce(info(number, pid=pid or os.getpid(), script=script))
        sender.pump()
        made.append(sender)
        return sender

    yield make
    for sender in made:
        sender.disconnect()


@pytest.fixture
def ranks(node, rank):
    made = [rank(0), rank(1)]
    node.work()
    return made


@pytest.fixture
def second(ranks, rank):
    """Another process that says it is rank 0."""
    return rank(0, pid=NO_PID, script="other.py")


def test_stopped_rank_is_silent_and_waiting_rank_is_not(node, ranks):
    assert node.server.silent == ()
    node.now_s = LONG_S
    waits, _stopped = ranks
    waits.pump()
    node.work()
    assert node.server.silent == (1,)


def test_ranks_are_limited(node, ranks, rank, monkeypatch):
    monkeypatch.setattr(hub_side, "MAX_RANKS", 2)
    again, _ = [rank(number) for number in (1, 2)]  # one that comes back, and one too many
    node.work()
    assert (node.server.numbers, node.server.bad_frames) == ((0, 1), 1)
    again.put(step(1, 7))
    again.pump()
    node.work()
    assert step(1, 7) in node.received


def try_for(node, sender, seconds):
    for _ in range(seconds):
        node.now_s += 1
        sender.pump()
        node.work()
        sender.pump()


def test_second_process_of_a_rank_is_refused_by_name(node, second, caplog):
    second.put(step(0, 7))
    try_for(node, second, 60)
    assert node.server.pids == (os.getpid(), os.getpid())
    assert step(0, 7) not in node.received
    (words,) = [message.text for message in node.received if isinstance(message, Notice)]
    first = f"rank 0 is already reported by pid {os.getpid()} (train.py)"
    assert words.startswith(f"{first}; pid {NO_PID} (other.py) is not shown: ")
    assert caplog.messages == [f"overlaptop: no dashboard can see this rank: {first}"]
    assert node.server.bad_frames == 0


def test_restarted_rank_is_accepted_once_the_old_has_gone(node, ranks, second):
    node.work()
    ranks[0].disconnect()
    try_for(node, second, 2)
    second.put(step(0, 7))
    try_for(node, second, 1)
    assert node.server.pids == (NO_PID, os.getpid())
    assert step(0, 7) in node.received


def test_rank_whose_process_has_ended_is_replaced_at_once(node, rank):
    """A child that it forked may hold its connection open."""
    with subprocess.Popen(["sleep", "600"]) as process:
        rank(0, pid=process.pid)
        node.work()
        process.kill()
    rank(0, pid=NO_PID)
    node.work()
    assert node.server.pids == (NO_PID,)
