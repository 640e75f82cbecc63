"""Whatever a far end says: no error, no end of memory, and one line on why it is given up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from overlaptop.fleet.fleet import Fleet
from overlaptop.remote.attempt import MAX_INBOX_BYTES, ConnectionAttempt
from overlaptop.remote.child import ChildProcess
from overlaptop.remote.clock import ClockOffset
from overlaptop.remote.connection import Connection
from overlaptop.remote.link import RemoteHost, RemoteLink
from overlaptop.remote.targets import Target
from overlaptop.wire.bounds import MAX_DURATION_NS, MAX_INT64
from overlaptop.wire.codec import decode, encode, frame
from overlaptop.wire.messages import (
    PROTOCOL_VERSION,
    HubStatus,
    Message,
    Notice,
    RankEnd,
    RankInfo,
    StepDetail,
    StepTotals,
    Welcome,
)
from overlaptop.wire.relaying import MAGIC, RelayJobs, RelayLink, RelayPing, RelayPong
from tests.remote.far_ends import HELLO, JOB

COUNT = st.integers(0, MAX_INT64) | st.sampled_from([0, 1, MAX_INT64])
STEP_NS = st.integers(1, MAX_DURATION_NS) | st.sampled_from([1, MAX_DURATION_NS])
RANK = st.integers(0, 3)

MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.just(HELLO),
    st.builds(RelayPong, st.integers(0, 12), COUNT, COUNT, COUNT, COUNT),
    st.builds(RelayLink, st.sampled_from(["job-1", "job-2", ""]), st.booleans(), st.booleans()),
    st.builds(lambda note: RelayJobs((JOB,), note), st.text(max_size=20)),
    st.builds(Notice, RANK, COUNT, st.just("info"), st.text(max_size=20)),
    st.builds(RankEnd, RANK, COUNT, st.booleans()),
    st.builds(HubStatus, COUNT, COUNT, COUNT, st.booleans()),
    st.builds(lambda start_ns: Welcome(PROTOCOL_VERSION, "job-1", "h", "t.py", 4, start_ns), COUNT),
    st.builds(lambda *known: StepTotals(*known, *[None] * 13, 0), RANK, COUNT, COUNT, STEP_NS),
    st.builds(StepDetail, RANK, COUNT, COUNT, STEP_NS, *[st.just(())] * 6),
    st.builds(
        lambda rank: RankInfo("job-1", rank, 0, 4, "h", 1, "t", "cpu", "gloo", "host", "", True, 1, "2"),
        RANK,
    ),
)


class Script:
    """In place of a process: what it writes, and what it was told."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data, self._size = data, size
        self.errors = ""
        self.interactive = self.ended = False
        self.told: list[bytes] = []

    def read(self, most_bytes: int) -> bytes | None:
        size = min(self._size, most_bytes)
        taken, self._data = self._data[:size], self._data[size:]
        return taken or None

    def read_errors(self) -> bytes:
        return b""

    def write(self, data: bytes) -> bool:
        self.told.append(data)
        return True

    def flush(self) -> bool:
        return True


def call_of(data: bytes, size: int) -> ConnectionAttempt:
    return ConnectionAttempt(
        Target.parse("far"), cast(ChildProcess, Script(data, size)), ClockOffset(), 0.0
    )


@given(
    st.lists(
        st.builds(lambda message: frame(encode(message)), MESSAGES) | st.binary(max_size=30), max_size=40
    ),
    st.booleans(),
    st.integers(1, 500),
)
def test_whatever_a_far_end_says_it_is_heard_or_given_up(
    pieces: list[bytes], greets: bool, size: int
) -> None:
    said = MAGIC + (frame(encode(HELLO)) if greets else b"") + b"".join(pieces)
    call = call_of(said, size)
    for turn in range(len(said) // size + 2):
        call.receive(float(turn), lambda now_ns=turn * 1_000_000_000: now_ns)
        if (failure := call.why_over(float(turn))) is not None:
            assert failure.reason
            assert failure.reason.isprintable()
            break
        call.speak(float(turn), turn * 1_000_000_000)
        call.take()
    assert call.dropped_there >= 0
    assert call.every >= 1


def test_what_nobody_takes_is_not_read_on() -> None:
    notice = frame(encode(Notice(0, 1, "info", "x" * 4000)))
    call = call_of(MAGIC + frame(encode(HELLO)) + notice * 1000, 1 << 20)
    turns = 0
    while call.receive(0.0):
        turns += 1
    assert not call.readable
    held = call.take()
    assert MAX_INBOX_BYTES <= len(held) * len(notice) <= MAX_INBOX_BYTES + (1 << 18)
    assert call.readable
    assert call.receive(0.0)


def test_a_ping_tells_how_much_has_been_received() -> None:
    hello = frame(encode(HELLO))
    call = call_of(b"banner\n" + MAGIC + hello, 1000)
    call.receive(0.0)
    call.speak(0.0, 0)
    told = cast(Script, call.carrier).told
    assert [decode(data[4:]) for data in told] == [RelayPing(1, len(hello))]


class Late(Script):
    """In place of a process whose words come while this one stands still, just before it reads them."""

    now_ns = 1_000

    def answer(self, data: bytes) -> None:
        self._data += data

    def read(self, most_bytes: int) -> bytes | None:
        self.now_ns += 50_000
        return super().read(most_bytes) or b""


def test_an_answer_has_come_when_it_was_read_and_no_earlier() -> None:
    clock = ClockOffset()
    script = Late(MAGIC + frame(encode(HELLO)), 1000)
    call = ConnectionAttempt(Target.parse("far"), cast(ChildProcess, script), clock, 0.0)
    call.receive(0.0, lambda: script.now_ns)
    sent_ns = script.now_ns
    call.speak(0.0, sent_ns)
    # There it is the same time as here, and the way back is long.
    script.answer(frame(encode(RelayPong(1, sent_ns + 10_000, sent_ns + 10_000))))
    call.receive(0.0, lambda: script.now_ns)
    assert clock.offset_ns is not None
    assert clock.residual_ns == 25_000
    assert abs(clock.offset_ns) <= clock.residual_ns


class StandIn:
    """In place of a line that is up: it has heard these messages."""

    relays, ready, dropped = 1, True, 0

    def __init__(self, messages: Sequence[Message], offset_ns: int) -> None:
        self._messages = list(messages)
        self.clock = ClockOffset()
        self.clock.add(0, offset_ns, offset_ns, 0)

    def monotonic_s(self) -> float:
        return 0.0

    def poll(self) -> list[Message]:
        taken, self._messages = self._messages, []
        return taken

    def say(self, message: Message) -> bool:
        encode(message)
        return True


@settings(max_examples=60)
@given(st.lists(MESSAGES, max_size=30), COUNT)
def test_whatever_is_heard_of_a_job_can_be_shown(messages: list[Message], offset_ns: int) -> None:
    line = StandIn([], offset_ns)
    host = RemoteHost(cast(Connection, line))
    link = host.open_link(JOB.record)
    assert isinstance(link, RemoteLink)
    line._messages = [RelayLink("job-1", True), *messages]
    fleet = Fleet(lambda: 0)
    for message in link.poll():
        encode(message)  # each number is still within its bounds
        fleet.apply(message)
    fleet.snapshot()
    host.list_jobs()
