"""The connection to the hub is bounded, never blocks, and counts what it drops."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from overlaptop.agent.placement import RankPlacement
from overlaptop.agent.reporting import sender as sending
from overlaptop.agent.reporting.sender import Sender
from overlaptop.jobs.folder import job_dir
from overlaptop.jobs.sockets import ranks_socket
from overlaptop.wire import codec
from overlaptop.wire.knobs import Knob, KnobFacts
from overlaptop.wire.messages import Notice, RankInfo, StepTotals
from overlaptop.wire.schema import Message

INFO = RankInfo("job-1", 0, 0, 1, "h", os.getpid(), "s.py", "cpu", "gloo", "host", "", False, 1, "2")


@pytest.fixture
def sender(sockets: Path) -> Iterator[Sender]:
    made = Sender(RankPlacement("job-1", 0, 0, 1, "h", starts_hub=False), "s.py")
    made.introduce(INFO)
    yield made
    made.disconnect()  # else its socket is closed whenever it is collected, in the middle of another test


@pytest.fixture
def hub(sockets: Path) -> Iterator[socket.socket]:
    job_dir("job-1", create=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.bind(str(ranks_socket("job-1")))
        line.listen()
        yield line


def test_hub_is_told_where_to_record(sockets, monkeypatch):
    started = []
    monkeypatch.setattr(sending, "start_detached", lambda argv, _: started.append(argv) or os.getpid())
    for recording in ((), ("--record=/runs", "--keep=2h")):
        sender = Sender(RankPlacement("job-1", 0, 0, 1, "h", starts_hub=True), "s.py", recording)
        sender.introduce(INFO)
        sender.pump()
    assert started[1] == [*started[0], "--record=/runs", "--keep=2h"]


class Reader:
    def __init__(self, hub: socket.socket, sender: Sender) -> None:
        sender._retry_at = 0.0
        sender.pump()
        self.line, _ = hub.accept()
        self.line.setblocking(False)
        self._sender = sender
        self._frames = codec.FrameReader()
        self.messages: list[Message] = []

    def read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := self.line.recv(1 << 20):
                self.messages += [codec.decode(payload) for payload in self._frames.feed(data)]

    def drain(self) -> None:
        while not self._sender.drained:
            self._sender.pump()
            self.read()
        self.read()

    def close(self) -> None:
        """As a hub that ends; the sender notices."""
        self.line.close()
        self._sender.pump()

    @property
    def numbers(self) -> list[int]:
        return [message.at_ns for message in self.messages if isinstance(message, Notice)]


def notice(number: int) -> Notice:
    return Notice(0, number, "info", "x" * 1000)


def test_newest_messages_are_kept_without_a_hub(
    sender: Sender, sockets: Path, request: pytest.FixtureRequest
) -> None:
    for number in range(5000):
        sender.put(notice(number))
        sender.pump()
    assert 0 < sender.dropped < 5000
    reader = Reader(request.getfixturevalue("hub"), sender)
    reader.drain()
    assert reader.messages[0] == INFO
    assert reader.numbers == list(range(sender.dropped, 5000))
    reader.close()


def test_the_socket_takes_no_standard_descriptor(sender: Sender, hub: socket.socket) -> None:
    saved = os.dup(0)
    os.close(0)
    try:
        sender.pump()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(0)
    finally:
        os.dup2(saved, 0)
        os.close(saved)
    assert sender.drained


def test_a_frame_cut_off_by_a_lost_line_does_not_spoil_the_next(sender: Sender, hub: socket.socket) -> None:
    first = Reader(hub, sender)
    for number in range(600):
        sender.put(notice(number))
    sender.pump()
    assert not sender.drained
    first.close()
    second = Reader(hub, sender)
    second.drain()
    assert second.messages[0] == INFO
    assert second.numbers == list(range(second.numbers[0], 600))
    second.close()


def test_newest_state_is_sent_again_to_each_new_hub(sender: Sender, hub: socket.socket) -> None:
    def depth(value: int) -> KnobFacts:
        return KnobFacts(0, (Knob("depth", value, str(value), "1", 0, 4),))

    def states(reader: Reader) -> list[Message]:
        return [message for message in reader.messages if isinstance(message, KnobFacts)]

    sender.put_state(depth(1))  # before there is a connection
    first = Reader(hub, sender)
    first.drain()
    for value in (1, 2, 2):
        sender.put_state(depth(value))
    sender.put(notice(7))
    first.drain()
    assert states(first) == [depth(1), depth(2)]
    first.close()
    second = Reader(hub, sender)
    second.drain()
    assert (states(second), second.numbers) == ([depth(2)], [])
    second.close()


def test_step_that_cannot_be_encoded_is_counted(sender: Sender, hub: socket.socket) -> None:
    for step_ns in (0, -5, 1 << 62, 1_000):
        sender.put(StepTotals(0, 1, 1, step_ns, *[None] * 13, 0))
    assert sender.dropped == 3
    reader = Reader(hub, sender)
    reader.drain()
    assert [each.step_ns for each in reader.messages if isinstance(each, StepTotals)] == [1_000]
    reader.close()
