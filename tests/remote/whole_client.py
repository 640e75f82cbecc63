"""The whole client, from a relay's and a hub's bytes to text on a terminal, without process or clock.

ZeroMQ between the two is left out: what it delivers of a hub are its frames.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar
from unittest import mock

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from overlaptop.commands import once
from overlaptop.fleet.job_session import JobSession
from overlaptop.fleet.records import device_record, step_record
from overlaptop.fleet.snapshot import Snapshot
from overlaptop.jobs import hub_socket
from overlaptop.jobs.hub_reader import FIRST_PINGS, HubReader
from overlaptop.remote import connection as connection_module
from overlaptop.remote.host import RemoteHost
from overlaptop.remote.targets import Target
from overlaptop.report import hosts as nodes
from overlaptop.tui.draw.layout import line_width
from overlaptop.tui.widgets import host_lines
from overlaptop.wire.codec import encode, frame
from overlaptop.wire.joining import MAGIC, GatheredHub, Pong
from overlaptop.wire.messages import Welcome
from overlaptop.wire.protocol import PROTOCOL_VERSION
from overlaptop.wire.schema import Message
from tests.remote import fake_relays
from tests.remote.fake_relays import JOBS
from tests.remote.fake_relays import STARTED_NS as START_NS

RECORD = replace(fake_relays.JOB, world_size=4)
JOB = RECORD.job


def framed(*messages: Message) -> bytes:
    """The messages as they travel to and from a relay."""
    return b"".join(frame(encode(message)) for message in messages)


OPENING = MAGIC + framed(replace(JOBS, jobs=(RECORD, replace(RECORD, job="job-2"))))
"""What an honest relay sends first."""
WELCOME = Welcome(PROTOCOL_VERSION, JOB, "far", "train.py", 4, START_NS)


class FakeProcess:
    """A process that writes what a test puts into it."""

    interactive = False
    errors = ""
    pid = out_fd = -1

    def __init__(self, *_: object, **__: object) -> None:
        self.coming = bytearray()
        self.ended = False

    def read(self, most_bytes: int) -> bytes | None:
        data = bytes(self.coming[:most_bytes])
        del self.coming[:most_bytes]
        return None if self.ended and not data else data

    def read_errors(self) -> bytes | None:
        return b""

    def write(self, data: bytes) -> bool:
        return True

    def flush(self) -> None: ...

    def close_input(self) -> None:
        self.ended = True

    def kill(self) -> None:
        self.ended = True

    def reap(self) -> int | None:
        return 1 if self.ended else None


class FakeHubSocket:
    """A hub's frames, as a test puts them there."""

    made: ClassVar[list["FakeHubSocket"]] = []

    def __init__(self, _path: Path) -> None:
        self.descriptor = -1
        self.readers: dict[bytes, HubReader] = {}
        self.hubs: dict[bytes, GatheredHub] = {}
        self.coming = [encode(Pong(START_NS, START_NS, START_NS))] * FIRST_PINGS
        self.made.append(self)

    def receive(self) -> None:
        batch, self.coming = self.coming, []
        self.readers[b""].receive(batch, START_NS)
        self.readers[b""].send_due()

    def put(self, _node: bytes, _payload: bytes) -> bool:
        return True

    def is_trusted(self) -> bool:
        return True

    def close(self) -> None:
        for reader in tuple(self.readers.values()):
            reader.disconnect()


class WholeClient:
    """A session of one host, whose relay sends what it is made to."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        FakeHubSocket.made.clear()
        self.host = RemoteHost(Target.via("true"), (), mock.Mock(), monotonic_s=lambda: self.now_s)
        self.session = JobSession(
            hosts=[self.host], clock_ns=self._clock_ns, monotonic_s=lambda: self.now_s
        )
        self.session.select(JOB)
        self.session.watch({0, 1})
        self.snapshot: Snapshot = self.session.tick()

    def receive(self, data: bytes, *, passed_s: float = 0.02) -> Snapshot:
        """Let these bytes come from the relay, and so much time pass."""
        self.now_s += passed_s
        for process in self.host.processes:
            process.coming += data  # type: ignore[attr-defined] # a FakeProcess
        self.snapshot = self.session.tick()
        return self.snapshot

    def hear(self, *said: Message | bytes, passed_s: float = 0.02) -> Snapshot:
        """Let these frames come from the hub, if it is joined, and so much time pass."""
        for socket in FakeHubSocket.made[-1:]:
            socket.coming += [each if isinstance(each, bytes) else encode(each) for each in said]
        return self.receive(b"", passed_s=passed_s)

    def begin(self) -> None:
        """Let relay and hub begin as honest ones."""
        self.receive(OPENING)
        self.receive(b"", passed_s=0.6)  # the next look at its jobs
        self.hear(WELCOME)

    def words(self) -> str:
        """All that the commands without a screen would print now, and the lines about the host."""
        snapshot = self.snapshot
        told = [json.dumps([snapshot.hub_note, self.host.reason])]
        if snapshot.job is not None:
            job, views = snapshot.job.job, {view.rank: view for view in snapshot.ranks}
            told += [once.render(snapshot), once.render(snapshot, ascii_only=True)]
            records = [step_record(job, views[step.rank].info, step) for step in snapshot.fresh]
            records += [device_record(job, views[each.rank], each) for each in snapshot.fresh_samples]
            told += [json.dumps(to_builtins(record), allow_nan=False) for record in records]
        for group in nodes.groups(snapshot.ranks, snapshot.nodes, empty=True):
            line = host_lines.heading(group, snapshot.at_ns, 80)
            assert line_width(line) <= 80
            told.append("".join(run.text for run in line))
        told.append(nodes.live_words(snapshot))
        return "\n".join(told)

    def _clock_ns(self) -> int:
        return START_NS + round((self.now_s - 1000.0) * 1e9)


@pytest.fixture(scope="module")
def no_processes() -> Iterator[None]:
    """Clients start no process and no ZeroMQ."""
    with (
        mock.patch.object(connection_module, "ChildProcess", FakeProcess),
        mock.patch.object(hub_socket, "HubSocket", FakeHubSocket),
    ):
        yield
