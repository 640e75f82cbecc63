"""One connection attempt: what it reads and sends, and when."""

from __future__ import annotations

from typing import cast

from overlaptop.remote.attempt import MAX_INBOX_BYTES, ConnectionAttempt
from overlaptop.remote.child import ChildProcess
from overlaptop.remote.clock import ClockOffset
from overlaptop.remote.targets import Target
from overlaptop.wire.codec import decode, encode, frame
from overlaptop.wire.messages import (
    Notice,
)
from overlaptop.wire.relaying import MAGIC, RelayPing, RelayPong
from tests.remote.fake_relays import HELLO


class Script:
    """In place of a process: what it writes, and what it was sent."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data, self._size = data, size
        self.errors = ""
        self.interactive = self.ended = False
        self.sent: list[bytes] = []

    def read(self, most_bytes: int) -> bytes | None:
        size = min(self._size, most_bytes)
        taken, self._data = self._data[:size], self._data[size:]
        return taken or None

    def read_errors(self) -> bytes:
        return b""

    def write(self, data: bytes) -> bool:
        self.sent.append(data)
        return True

    def flush(self) -> bool:
        return True


def attempt_of(data: bytes, size: int) -> ConnectionAttempt:
    return ConnectionAttempt(
        Target.parse("far"), cast(ChildProcess, Script(data, size)), ClockOffset(), 0.0
    )


def test_what_nobody_takes_is_not_read_on() -> None:
    notice = frame(encode(Notice(0, 1, "info", "x" * 4000)))
    attempt = attempt_of(MAGIC + frame(encode(HELLO)) + notice * 1000, 1 << 20)
    turns = 0
    while attempt.receive(0.0):
        turns += 1
    assert not attempt.readable
    held = attempt.take()
    assert MAX_INBOX_BYTES <= len(held) * len(notice) <= MAX_INBOX_BYTES + (1 << 18)
    assert attempt.readable
    assert attempt.receive(0.0)


def test_a_ping_tells_how_much_has_been_received() -> None:
    hello = frame(encode(HELLO))
    attempt = attempt_of(b"banner\n" + MAGIC + hello, 1000)
    attempt.receive(0.0)
    attempt.send_due(0.0, 0)
    sent = cast(Script, attempt.process).sent
    assert [decode(data[4:]) for data in sent] == [RelayPing(1, len(hello))]


class Late(Script):
    """In place of a process whose data comes while this one stands still, just before it reads them."""

    now_ns = 1_000

    def answer(self, data: bytes) -> None:
        self._data += data

    def read(self, most_bytes: int) -> bytes | None:
        self.now_ns += 50_000
        return super().read(most_bytes) or b""


def test_an_answer_has_come_when_it_was_read_and_no_earlier() -> None:
    clock = ClockOffset()
    script = Late(MAGIC + frame(encode(HELLO)), 1000)
    attempt = ConnectionAttempt(Target.parse("far"), cast(ChildProcess, script), clock, 0.0)
    attempt.receive(0.0, lambda: script.now_ns)
    sent_ns = script.now_ns
    attempt.send_due(0.0, sent_ns)
    # There it is the same time as here, and the way back is long.
    script.answer(frame(encode(RelayPong(1, sent_ns + 10_000, sent_ns + 10_000))))
    attempt.receive(0.0, lambda: script.now_ns)
    assert clock.offset_ns is not None
    assert clock.residual_ns == 25_000
    assert abs(clock.offset_ns) <= clock.residual_ns
