"""The hub tells of ranks from which nothing comes; a rank that waits says that it is there."""

from __future__ import annotations

import os
import selectors
import socket
import time

import pytest

from overlaptop.agent.placement import RankPlacement
from overlaptop.agent.reporting import sender as rank_side
from overlaptop.agent.reporting.sender import Sender
from overlaptop.hub import ranks as hub_side
from overlaptop.hub.ranks import RankServer
from overlaptop.jobs.folder import job_dir
from overlaptop.jobs.sockets import ranks_socket
from overlaptop.wire.messages import RankInfo
from tests.fleet.builders import info

LONG_S = 60.0


class Node:
    """The ranks' side of a hub, and what it delivers."""

    def __init__(self) -> None:
        job_dir("job-1", create=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(ranks_socket("job-1")))
        listener.listen()
        listener.setblocking(False)
        self.received: list[object] = []
        self.now_s = 0.0
        self._selector = selectors.DefaultSelector()
        self.server = RankServer(
            "job-1", listener, self._selector, 8,
            deliver=lambda message, _payload: self.received.append(message), clock_s=lambda: self.now_s,
        )  # fmt: skip

    def work(self) -> None:
        while ready := self._selector.select(0):
            for key, events in ready:
                key.data(events)


@pytest.fixture
def node(socket_dir):
    made = Node()
    yield made
    made.server.close()


def rank(number: int) -> Sender:
    sender = Sender(RankPlacement("job-1", number, number, 2, "h", starts_hub=False), "s.py")
    sender.introduce(info(number, pid=os.getpid()))
    sender.pump()
    return sender


@pytest.fixture
def ranks(node):
    made = [rank(0), rank(1)]
    node.work()
    yield made
    for each in made:
        each.disconnect()


def test_a_rank_that_waits_says_that_it_is_there_and_one_that_is_stopped_does_not(node, ranks, monkeypatch):
    assert node.server.silent == ()
    now_s = time.monotonic()
    monkeypatch.setattr(rank_side, "monotonic", lambda: now_s + LONG_S)
    waits, _stopped = ranks
    waits.pump()
    node.now_s = LONG_S
    node.work()
    assert node.server.silent == (1,)


def test_what_says_no_more_than_that_is_not_passed_on(node, ranks, monkeypatch):
    told = list(node.received)
    assert [type(message) for message in told] == [RankInfo, RankInfo]
    monkeypatch.setattr(rank_side, "HEARTBEAT_S", 0.0)
    for _ in range(3):
        ranks[0].pump()
        node.work()
    assert node.received == told


def test_ranks_are_limited(node, ranks, monkeypatch):
    monkeypatch.setattr(hub_side, "MAX_RANKS", 2)
    more = [rank(number) for number in (1, 2)]  # one that comes back, and one too many
    node.work()
    assert node.server.numbers == (0, 1)
    assert node.server.bad_frames == 1
    for each in more:
        each.disconnect()
