"""Relays that behave, and some that do not.

Run by path: the first word says how it behaves, what the connection appends to it is not looked at.
"""

import os
import shlex
import signal
import sys
import time
from pathlib import Path

from msgspec.structs import replace

from overlaptop.remote.targets import Target
from overlaptop.wire.codec import WireError, encode, frame
from overlaptop.wire.joining import MAGIC, RelayJobs, RemoteJob
from overlaptop.wire.protocol import PROTOCOL_VERSION
from overlaptop.wire.schema import Message

STARTED_NS = 1_700_000_000_000_000_000
JOB = RemoteJob(
    PROTOCOL_VERSION, "job-1", "train.py", "/w", "far", 2, 10, 20, 30, 40,
    STARTED_NS, "dash-30.sock", (7, 8),
)  # fmt: skip
JOBS = RelayJobs(PROTOCOL_VERSION, "1.2.3", "far-host", False, (JOB,), "")
BANNER = b"Welcome to far-host\r\n\x1b[31mno smoking\x1b[0m\n" * 20


def write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def send(*messages: Message) -> None:
    write(b"".join(frame(encode(message)) for message in messages))


def note(text: str) -> None:
    write(f"\nOVERLAPTOP-NOTE {text}\n".encode())


def serve(jobs: RelayJobs = JOBS) -> None:
    """Lists its jobs whenever the client says something: tests move the clock on, and do not wait."""
    while os.read(0, 1 << 16):
        send(jobs)


def plain(jobs: RelayJobs = JOBS) -> None:
    write(MAGIC)
    send(jobs)
    serve(jobs)


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
    """Something it started holds its pipes open."""
    if (child := os.fork()) == 0:
        time.sleep(600)
    write(OPENING)
    sys.stderr.write(f"it started {child}\nOSError: the disk \x1b[2J is full\n")
    sys.stderr.flush()
    os._exit(3)


def chatty() -> None:
    while True:
        write(b"y\n" * 1000)


def rubbish() -> None:
    write(OPENING + frame(b"\x93\x01\x02\x03") + frame(b"") + frame(b"\xff" * 40))
    serve()


OPENING = MAGIC + frame(encode(JOBS))
FAKE_RELAYS = Path(__file__)
BEHAVIOURS = {
    "root": lambda: plain(replace(JOBS, jobs=(replace(JOB, is_root=True),))),
    "older": lambda: plain(replace(JOBS, protocol=PROTOCOL_VERSION - 1)),
    "mute": lambda: silent_after(b""),
    "frozen": lambda: silent_after(OPENING),
    **{each.__name__: each for each in (plain, banner, waiting, failing, stubborn, dies, chatty, rubbish)},
}


def fake_relay(behaviour: str) -> Target:
    return Target.via(shlex.join([sys.executable, str(FAKE_RELAYS), behaviour]))


if __name__ == "__main__":
    try:
        BEHAVIOURS[sys.argv[1]]()
    except (BrokenPipeError, WireError):
        sys.exit(9)
