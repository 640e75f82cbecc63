"""The connection to the hub is bounded, never blocks, and counts what it drops."""

import contextlib
import os
import socket

import pytest

from overlaptop.agent.placement import RankPlacement
from overlaptop.agent.reporting import sender as sending
from overlaptop.agent.reporting.sender import Sender
from overlaptop.jobs.folder import job_dir
from overlaptop.jobs.sockets import ranks_socket
from overlaptop.wire import codec
from overlaptop.wire.messages import Notice, RankInfo, StepTotals

INFO = RankInfo("job-1", 0, 0, 1, "h", os.getpid(), "s.py", "cpu", "gloo", "host", "", False, 1, "2")


@pytest.fixture
def sender(sockets):
    made = Sender(RankPlacement("job-1", 0, 0, 1, "h", starts_hub=False), "s.py")
    made.introduce(INFO)
    yield made
    made.disconnect()  # else its socket is closed whenever it is collected, in the middle of another test


@pytest.fixture
def hub(sockets):
    job_dir("job-1", create=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.bind(str(ranks_socket("job-1")))
        line.listen()
        yield line


def test_hub_is_told_where_to_record(sockets, monkeypatch):
    started = []
    monkeypatch.setattr(sending, "start_detached", lambda argv, _: started.append(argv))
    for recording in ((), ("--record=/runs", "--keep=2h")):
        sender = Sender(RankPlacement("job-1", 0, 0, 1, "h", starts_hub=True), "s.py", recording)
        sender.introduce(INFO)
        sender.pump()
    assert started[1] == [*started[0], "--record=/runs", "--keep=2h"]


class Reader:
    """What stands where a hub would, connected."""

    def __init__(self, hub, sender):
        sender._retry_at = 0.0
        sender.pump()
        self.line, _ = hub.accept()
        self.line.setblocking(False)
        self._sender, self._frames, self.messages = sender, codec.FrameReader(), []

    def drain(self):
        """Read all; returns the messages."""
        drained = False
        while not drained:
            self._sender.pump()
            drained = self._sender.drained
            with contextlib.suppress(BlockingIOError):
                while data := self.line.recv(1 << 20):
                    self.messages += map(codec.decode, self._frames.feed(data))
        return self.messages

    def close(self):
        """As a hub that ends; the sender notices."""
        self.line.close()
        self._sender.pump()


def notice(number):
    return Notice(0, number, "info", "x" * 1000)


def test_newest_messages_are_kept_without_a_hub(sender, request):
    for number in range(5000):
        sender.put(notice(number))
        sender.pump()
    assert 0 < sender.dropped < 5000
    reader = Reader(request.getfixturevalue("hub"), sender)
    assert reader.drain() == [INFO, *map(notice, range(sender.dropped, 5000))]
    reader.close()


def test_a_frame_cut_off_by_a_lost_line_does_not_spoil_the_next(sender, hub):
    first = Reader(hub, sender)
    for number in range(600):
        sender.put(notice(number))
    sender.pump()
    assert not sender.drained
    first.close()
    second = Reader(hub, sender)
    info, *notices = second.drain()
    assert info == INFO
    assert 0 < len(notices) < 600
    assert notices == [notice(number) for number in range(600 - len(notices), 600)]
    second.close()


def test_step_that_cannot_be_encoded_is_counted(sender, hub):
    steps = [StepTotals(0, 1, 1, step_ns, *[None] * 13, 0) for step_ns in (0, -5, 1 << 62, 1_000)]
    for step in steps:
        sender.put(step)
    assert sender.dropped == 3
    reader = Reader(hub, sender)
    assert reader.drain() == [INFO, steps[-1]]
    reader.close()
