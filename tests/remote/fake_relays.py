"""Relays that behave, and some that do not.

Run by path: the first word says how it behaves, what the connection appends to it is not looked at.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

from msgspec.structs import replace

from overlaptop.wire.codec import FrameReader, WireError, decode, encode, frame
from overlaptop.wire.commands import Command
from overlaptop.wire.messages import (
    GroupCalls,
    HubStatus,
    IssuedCall,
    Join,
    Notice,
    RankInfo,
    StackSamples,
    Standstill,
    Welcome,
)
from overlaptop.wire.outcome import CommandProgress
from overlaptop.wire.protocol import PROTOCOL_VERSION
from overlaptop.wire.relaying import (
    MAGIC,
    RelayHello,
    RelayJobs,
    RelayLimit,
    RelayPing,
    RelayPong,
    RelaySelect,
    RelayStatus,
    RemoteJob,
)
from overlaptop.wire.schema import Message

AHEAD_NS = 5_000_000_000
"""By which the clock of "ahead" is ahead."""
STARTED_NS = 1_700_000_000_000_000_000
JOB = RemoteJob(
    PROTOCOL_VERSION, "job-1", "train.py", "/w", "far", 2, 10, 20, 30, 40,
    STARTED_NS, "dash-30.sock", (7, 8),
)  # fmt: skip
HELLO = RelayHello(PROTOCOL_VERSION, "1.2.3", "far-host", 4242, 1, False)
DEADLY = 666
"""With this limit the hub ends."""
BANNER = b"Welcome to far-host\r\n\x1b[31mno smoking\x1b[0m\n" * 20


def write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def send(*messages: Message) -> None:
    write(b"".join(frame(encode(message)) for message in messages))


def note(text: str) -> None:
    write(f"\nOVERLAPTOP-NOTE {text}\n".encode())


def received() -> Iterator[Message]:
    """What the client sends, until it closes the connection."""
    reader = FrameReader()
    while data := os.read(0, 1 << 16):
        yield from map(decode, reader.feed(data))


def serve(ahead_ns: int = 0) -> None:
    """A relay with one job, whose hub answers everything that it is sent."""
    joined = False
    for message in received():
        now_ns = time.time_ns() + ahead_ns
        match message:
            case RelayPing():
                send(RelayPong(message.number, now_ns, now_ns, dropped=3))
            case RelaySelect(job=""):
                send(RelayStatus("", False))
            case RelaySelect():
                joined = False
                # Of the job before, on its way while another was selected.
                send(Notice(0, 1, "info", "of another job"), RelayStatus(message.job, True))
            case Join():
                if not joined:
                    send(Welcome(PROTOCOL_VERSION, JOB.job, "far", "train.py", 2, STARTED_NS + ahead_ns))
                    issued = IssuedCall("allreduce_", 8, 1, STARTED_NS + ahead_ns)
                    send(Standstill(0, True, (GroupCalls("0", (0, 1), (issued,)),)))
                    send(StackSamples(0, STARTED_NS + ahead_ns, STARTED_NS + ahead_ns, 0, ()))
                joined = True
                ranks = ",".join(map(str, message.detail_ranks))
                send(Notice(0, now_ns, "info", f"joined {ranks}"), HubStatus(now_ns, 2, 0, False))
            case Command():
                send(CommandProgress.begin(message, (0,)).outcome())
            case RelayLimit() if message.bytes_per_s == DEADLY:
                send(RelayStatus(JOB.job, False, True))
            case RelayLimit():
                send(RelayJobs((JOB,), f"limit {message.bytes_per_s}"))


def begin(hello: RelayHello = HELLO) -> None:
    write(MAGIC)
    send(hello, RelayJobs((JOB,), ""))


def plain(*, hello: RelayHello = HELLO, ahead_ns: int = 0) -> None:
    begin(hello)
    serve(ahead_ns)


def banner() -> None:
    write(BANNER)
    note("here")
    write(BANNER)
    plain()


def waiting() -> None:
    """The start script's part, for two rounds: exactly one line read for each note."""
    note("here")
    for _ in range(2):
        note("wait no job in /tmp/x")
        if os.read(0, 1 << 10) != b"\n":
            note("fail not one line came")
            sys.exit(1)
    note("start python")
    plain()


def failing() -> None:
    note("here")
    note("fail /tmp/x belongs to uid 7, not to you")
    sys.exit(1)


def stubborn() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    silent_after(OPENING)


def silent_after(data: bytes) -> None:
    write(data)
    time.sleep(600)


def dies() -> None:
    begin()
    sys.stderr.write("first line\nTraceback\nOSError: the disk \x1b[2J is full\n")
    sys.exit(3)


def leaving() -> None:
    """Something it started holds its pipes open; that ends when its pipe does."""
    if (child := os.fork()) == 0:
        time.sleep(600)
    begin()
    sys.stderr.write(f"it started {child}\n")
    sys.exit(3)


def flood() -> None:
    """Writes as much as is taken, and still answers."""
    begin()
    info = RankInfo("job-1", 0, 0, 2, "far", 1, "t", "cpu", "gloo", "host", "", True, 1, "2")
    block = b"".join(frame(encode(replace(info, rank=rank))) for rank in range(1000))
    threading.Thread(target=lambda: [write(block) for _ in range(10_000)], daemon=True).start()
    for _ in received():
        pass


def chatty() -> None:
    while True:
        write(b"y\n" * 1000)


def deaf() -> None:
    begin()
    while True:
        send(RelayJobs((), ""))
        time.sleep(0.01)


def rubbish() -> None:
    begin()
    write(frame(b"\x93\x01\x02\x03") + frame(b"") + frame(b"\xff" * 40))
    serve()


OPENING = MAGIC + frame(encode(HELLO))
BEHAVIOURS = {
    "plain": plain,
    "ahead": lambda: plain(ahead_ns=AHEAD_NS),
    "older": lambda: plain(hello=replace(HELLO, protocol=PROTOCOL_VERSION - 1)),
    "newer": lambda: plain(hello=replace(HELLO, protocol=PROTOCOL_VERSION + 1)),
    "mute": lambda: silent_after(b""),
    "frozen": lambda: silent_after(OPENING),
    "huge": lambda: silent_after(OPENING + b"\xff\xff\xff\xff"),
    "unknown": lambda: silent_after(MAGIC + frame(b"\x91\xcc\xc8")),
    "rude": lambda: silent_after(MAGIC + frame(encode(RelayJobs((), "")))),
    **{
        each.__name__: each
        for each in (banner, waiting, failing, stubborn, dies, leaving, flood, chatty, deaf, rubbish)
    },
}

if __name__ == "__main__":
    try:
        BEHAVIOURS[sys.argv[1]]()
    except (BrokenPipeError, WireError):
        sys.exit(9)
