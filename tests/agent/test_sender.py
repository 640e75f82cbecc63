"""The line to the hub is bounded, never blocks, and counts what it drops."""

from __future__ import annotations

import gc
import os
import socket
import time
from pathlib import Path

import pytest

from overlaptop.agent import reporter
from overlaptop.agent.sender import MAX_QUEUED_BYTES, Sender
from overlaptop.agent.sources.base import CollectiveCall, Edge, Wait
from overlaptop.agent.sources.host import HostSource
from overlaptop.wire import codec, endpoints
from overlaptop.wire.messages import Message, Notice, RankInfo

INFO = RankInfo("job-1", 0, 0, 1, "h", os.getpid(), "s.py", "cpu", "gloo", "host", "", False, 1, "2")


@pytest.fixture
def sender(sockets: Path) -> Sender:
    made = Sender("job-1", "s.py", 1, starts_hub=False)
    made.introduce(INFO)
    return made


def listener() -> socket.socket:
    endpoints.job_dir("job-1", create=True)
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.bind(str(endpoints.ranks_socket("job-1")))
    line.listen()
    return line


class Reader:
    """The hub's end of one connection."""

    def __init__(self, hub: socket.socket) -> None:
        self._line, _ = hub.accept()
        self._line.setblocking(False)
        self._frames = codec.FrameReader()
        self.messages: list[Message] = []

    def read(self) -> None:
        try:
            while data := self._line.recv(1 << 20):
                self.messages += [codec.decode(payload) for payload in self._frames.feed(data)]
        except BlockingIOError:
            pass

    def close(self) -> None:
        self._line.close()

    @property
    def numbers(self) -> list[int]:
        return [message.at_ns for message in self.messages if isinstance(message, Notice)]


def drain(sender: Sender, reader: Reader) -> None:
    while not sender.drained:
        sender.pump()
        reader.read()
    reader.read()


def notice(number: int) -> Notice:
    return Notice(0, number, "info", "x" * 1000)


def test_without_a_hub_the_newest_messages_are_kept_and_the_rest_counted(sender: Sender) -> None:
    for number in range(5000):
        sender.put(notice(number))
        sender.pump()
    assert 0 < sender.dropped < 5000

    with listener() as hub:
        sender._retry_at = 0.0
        sender.pump()
        reader = Reader(hub)
        drain(sender, reader)
        reader.close()
    assert reader.messages[0] == INFO
    assert reader.numbers == list(range(sender.dropped, 5000))


def test_a_hub_that_reads_nothing_costs_bounded_memory_and_no_time(sender: Sender) -> None:
    with listener() as hub:
        sender.pump()
        reader = Reader(hub)
        began_s = time.process_time()
        for number in range(20_000):
            sender.put(notice(number))
            sender.pump()
        assert sender.dropped > 20_000 - 2 * MAX_QUEUED_BYTES / 1000
        assert sender._queued_bytes <= MAX_QUEUED_BYTES
        assert time.process_time() - began_s < 20  # not quadratic: it takes well under a second
        reader.close()


def test_a_frame_cut_off_by_a_lost_line_does_not_spoil_the_next(sender: Sender) -> None:
    with listener() as hub:
        sender.pump()
        first = Reader(hub)
        for number in range(600):
            sender.put(notice(number))
        sender.pump()
        assert not sender.drained
        first.close()
        sender.pump()
        sender._retry_at = 0.0
        sender.pump()
        second = Reader(hub)
        drain(sender, second)
        second.close()
    assert second.messages[0] == INFO
    assert second.numbers == list(range(second.numbers[0], 600))


def test_memory_stays_flat_over_a_hundred_thousand_steps(sender: Sender) -> None:
    """Steps of a real source, reported and sent to a hub that reads for a while and then stops."""

    class Work:
        def get_future(self):
            return self

        def add_done_callback(self, callback) -> None:
            callback(self)

    call = CollectiveCall("allreduce_", 1 << 20, "0 default_pg", True, "gloo", "cpu", -1, None)
    source = HostSource(phases_only=False, every=1, reason="")

    def run(steps: int) -> None:
        for number in range(steps):
            source.boundary()
            source.edge(Edge.BACKWARD_BEGIN)
            source.issued(source.issue(lambda: call), Work())
            source.wait_end(source.wait_begin(), Wait.PURE)
            source.edge(Edge.BACKWARD_END)
            if number % 10 == 0:
                for measured in source.take():
                    sender.put(reporter.totals(measured, 0, sender.dropped))
                sender.pump()

    run(20_000)  # fills every bounded queue
    before_bytes = resident_bytes()
    run(100_000)
    assert sender.dropped > 10_000
    # One kept message a step would be 30 MB.
    assert resident_bytes() - before_bytes < 4 << 20


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
