"""A connection to real processes: those that behave, and those that die, freeze, flood or send rubbish."""

import os
import re
import select
import signal
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from selectors import DefaultSelector
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.remote.attempt import FIRST_BYTES_S, MAX_PREAMBLE_BYTES, SILENT_S, RelayStream, StartNote
from overlaptop.remote.bootstrap import remote_command
from overlaptop.remote.child import end_all
from overlaptop.remote.connection import BACK_OFF_S, JITTER, REFUSED_PAUSE_S, ConnectionState
from overlaptop.remote.host import RemoteHost
from overlaptop.remote.targets import Target
from overlaptop.wire.codec import WireError, frame
from overlaptop.wire.joining import MAGIC, RelayOpen
from overlaptop.wire.protocol import PROTOCOL_VERSION as VERSION
from tests.processes import PATIENCE_S, eventually, runs
from tests.remote.fake_relays import JOBS, fake_relay


class Connections:
    """Makes connections, and sees to it that nothing of them outlives its test.

    Their monotonic clock stands still unless it is moved.
    """

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._selector = DefaultSelector()
        self._made: list[RemoteHost] = []

    def __call__(self, target: Target | str, **options: Any) -> RemoteHost:
        target = fake_relay(target) if isinstance(target, str) else target
        clock = {"monotonic_s": lambda: self.now_s}
        self._made.append(RemoteHost(target, remote_command(), self._selector, **clock, **options))
        return self._made[-1]

    def up(self, behaviour: str) -> RemoteHost:
        connection = self(behaviour)
        self.until(connection, lambda: connection.ready)
        return connection

    def until_down(self, connection: RemoteHost) -> RemoteHost:
        self.until(connection, lambda: connection.state in (ConnectionState.DOWN, ConnectionState.FAILED))
        return connection

    def lose(self, connection: RemoteHost) -> None:
        os.kill(connection.processes[0].pid, signal.SIGKILL)
        self.until_down(connection)

    def until(self, connection: RemoteHost, probe: Callable[[], Any]) -> Any:
        return eventually(lambda: connection.maintain() or probe())

    def wait(self, connection: RemoteHost, seconds: float) -> None:
        for _ in range(round(seconds * 2)):
            self.now_s += 0.5
            connection.maintain()
            time.sleep(0.002)

    def wait_for_answers(self, connection: RemoteHost, seconds: int) -> None:
        for _ in range(seconds):
            self.now_s += 1.0
            connection.maintain()
            select.select([connection.processes[0].out_fd], [], [], PATIENCE_S)
            connection.maintain()

    def close(self) -> None:
        for connection in self._made:
            connection.close()
        end_all([process for each in self._made for process in each.processes], 0.5)
        self._selector.close()


@pytest.fixture
def connections() -> Iterator[Connections]:
    made = Connections()
    yield made
    made.close()


def test_relay_behind_a_banner_lists_jobs_and_takes_messages(connections):
    connection = connections("banner")
    connection.maintain()
    assert not connection.send(RelayOpen(1, "job-1")), "there is no relay yet"
    connections.until(connection, lambda: connection.ready)
    assert (connection.state, connection.jobs) == (ConnectionState.UP, JOBS)
    assert (connection.reason, connection.detail) == ("", "")
    assert connection.send(RelayOpen(1, "job-1"))


def test_a_host_without_a_job_is_up_and_asked_again_each_second(connections):
    connection = connections("waiting")
    connections.until(connection, lambda: connection.state is ConnectionState.UP)
    assert (connection.reason, connection.ready) == ("no job in /tmp/x", False)
    since_s = connection.since_s
    connections.wait_for_answers(connection, 2)
    connections.until(connection, lambda: connection.ready)
    assert (connection.jobs, connection.reason, connection.since_s) == (JOBS, "", since_s)


def test_relay_that_dies_is_reported_and_leaves_nothing(connections):
    descriptors = Path("/proc/self/fd")
    before, connection = len([*descriptors.iterdir()]), connections.until_down(connections("dies"))
    assert connection.jobs == JOBS
    assert connection.reason == "it ended with status 3: OSError: the disk ?[2J is full"
    child = int(re.search(r"it started (\d+)", connection.detail)[1])
    connections.until(connection, lambda: not connection.processes and not runs(child))
    assert len([*descriptors.iterdir()]) <= before


def test_pauses_grow_and_restart_after_a_minute_of_being_up(connections):
    def check_pause(pause_s):
        connections.until_down(connection)
        connections.now_s += 0.999 * pause_s
        connection.maintain()
        assert connection.state is ConnectionState.DOWN
        connections.now_s += pause_s * (0.001 + JITTER)

    connection = connections(Target.via("false"))
    for pause_s in (*BACK_OFF_S, BACK_OFF_S[-1]):
        check_pause(pause_s)
        connection.maintain()
        assert connection.processes
    connections.until_down(connection)
    connection.target = fake_relay("plain")
    connection.retry()
    connections.until(connection, lambda: connection.ready)
    connections.wait_for_answers(connection, 61)
    connections.lose(connection)
    check_pause(BACK_OFF_S[0])
    connections.until(connection, lambda: connection.ready)


@pytest.mark.parametrize("behaviour", ["frozen", "plain"])
def test_a_frozen_relay_or_process_is_noticed_and_ended(connections, behaviour):
    connection = connections.up(behaviour)
    pid = connection.processes[0].pid
    if behaviour == "plain":
        os.kill(pid, signal.SIGSTOP)
    connections.wait(connection, SILENT_S)
    assert connection.state is ConnectionState.UP
    connections.wait(connection, 1)
    assert connection.reason == "the connection was silent for 8 s"
    connections.until(connection, lambda: not runs(pid))


def test_host_that_never_answers_is_given_up_after_30_s(connections):
    connection = connections("mute")
    connections.until(connection, lambda: connection.logging_in)
    connections.wait(connection, FIRST_BYTES_S + 1)
    assert connection.reason == "the host does not answer: nothing came for 30 s"


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("failing", "^/tmp/x belongs to uid 7, not to you$"),
        ("older", f"protocol {VERSION - 1}, this one {VERSION}: that one is older, update it"),
        ("rubbish", "not to be understood"),
        ("chatty", "is no relay: 65536 bytes came"),
    ],
)
def test_what_cannot_be_spoken_to_is_told_in_one_line_and_ended(connections, behaviour, reason):
    connection = connections(behaviour)
    connection.maintain()
    pid = connection.processes[0].pid
    connections.until_down(connection)
    assert re.search(reason, connection.reason)
    assert connection.reason.isprintable()
    connections.until(connection, lambda: not runs(pid))


def test_missing_program_needs_a_person_unless_it_has_worked(connections):
    bad, good = Target.via("/nowhere/at-all"), fake_relay("plain")
    connection = connections.until_down(connections(bad))
    connections.wait(connection, 120)
    assert connection.state is ConnectionState.FAILED
    assert connection.reason == "there is no /nowhere/at-all on this machine"
    connection.target = good
    connection.retry()
    connections.until(connection, lambda: connection.ready)

    connection.target = bad
    connections.lose(connection)
    connections.wait(connection, 2 * BACK_OFF_S[1])
    assert connection.reason.startswith("there is no /nowhere")
    connection.target = good
    connections.wait(connection, 120)
    assert connection.state is ConnectionState.DOWN
    connections.now_s += REFUSED_PAUSE_S * (1 + JITTER)
    connections.until(connection, lambda: connection.ready)


# What no shell prints by chance, and the stream takes for its own.
BANNERS = st.binary(max_size=200).filter(
    lambda data: MAGIC not in data + MAGIC[:-1] and b"OVERLAPTOP" not in data
)
NOTE = b"\nOVERLAPTOP-NOTE wait no \xff in /tmp/x\n OVERLAPTOP-NOTE fail indented\n"


@given(BANNERS, st.lists(st.binary(max_size=60), max_size=8), st.lists(st.integers(0, 300), max_size=20))
def test_notes_and_frames_behind_any_banner_come_out_whole(banner, payloads, places):
    stream = RelayStream()
    data = banner + NOTE + MAGIC + b"".join(map(frame, payloads))
    edges = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    pieces = [data[start:end] for start, end in pairwise(edges)]
    found = [each for piece in pieces for each in stream.feed(piece)]
    assert found == [StartNote("wait", "no � in /tmp/x"), *payloads]
    assert stream.preamble.endswith(" OVERLAPTOP-NOTE fail indented\n")
    assert stream.frame_bytes == sum(len(payload) + 4 for payload in payloads)


@pytest.mark.parametrize("block", [b"y\n" * 500, b"x" * 1000, b"\n\x00OVERLAPTOP RELAY 1\n" * 50])
def test_endless_preamble_is_given_up_but_not_endless_notes(block):
    stream, fed = RelayStream(), 0
    for _ in range(5000):
        assert stream.feed(b"\nOVERLAPTOP-NOTE wait no job yet\n") == [StartNote("wait", "no job yet")]
    with pytest.raises(WireError):  # noqa: PT012 # which of them it is, is looked at below
        while fed < 4 * MAX_PREAMBLE_BYTES:
            fed += len(block)
            stream.feed(block)
    assert fed <= MAX_PREAMBLE_BYTES + 2 * len(block)
