"""One connection attempt: what it reads and sends, and when."""

from __future__ import annotations

from typing import Any

from overlaptop.remote.attempt import ConnectionAttempt
from overlaptop.remote.clock import ClockOffset
from overlaptop.remote.targets import Target
from overlaptop.wire.codec import decode
from overlaptop.wire.relaying import MAGIC, RelayPing, RelayPong
from tests.remote.fake_relays import HELLO
from tests.remote.whole_client import FakeProcess, framed


def attempt_of(process: Any, data: bytes, clock: ClockOffset | None = None) -> ConnectionAttempt:
    process.coming += data
    return ConnectionAttempt(Target.parse("far"), process, clock or ClockOffset(), 0.0)


def test_a_ping_tells_how_much_has_been_received() -> None:
    process = FakeProcess()
    attempt = attempt_of(process, b"banner\n" + MAGIC + framed(HELLO))
    attempt.receive(0.0)
    attempt.send_due(0.0, 0)
    assert decode(bytes(process.sent[4:])) == RelayPing(1, len(framed(HELLO)))


class SlowlyRead(FakeProcess):
    """Time passes while it is read, as in a client that stood still just before."""

    now_ns = 1_000

    def read(self, most_bytes: int) -> bytes | None:
        self.now_ns += 50_000
        return super().read(most_bytes)


def test_an_answer_has_come_when_it_was_read_and_no_earlier() -> None:
    clock, process = ClockOffset(), SlowlyRead()
    attempt = attempt_of(process, MAGIC + framed(HELLO), clock)
    attempt.receive(0.0, lambda: process.now_ns)
    sent_ns = process.now_ns
    attempt.send_due(0.0, sent_ns)
    # There it is the same time as here, and the way back is long.
    process.coming += framed(RelayPong(1, sent_ns + 10_000, sent_ns + 10_000))
    attempt.receive(0.0, lambda: process.now_ns)
    assert clock.offset_ns is not None
    assert clock.residual_ns == 25_000
    assert abs(clock.offset_ns) <= clock.residual_ns
