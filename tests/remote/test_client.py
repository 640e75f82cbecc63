"""Whatever a relay and a hub send: the whole client shows what it knows of it, in bounds, and goes on.

From bytes through connection and session to the text of the commands without a screen, without process or
clock. ZeroMQ between the two is left out: what it delivers of a hub are its frames.
"""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar
from unittest import mock

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import to_builtins
from msgspec.structs import replace

from overlaptop.commands import once
from overlaptop.fleet.job_session import JobSession
from overlaptop.fleet.job_state import MAX_NOTICES
from overlaptop.fleet.rank_state import RECENT_DETAILS
from overlaptop.fleet.records import device_record, step_record
from overlaptop.fleet.snapshot import HubState, Snapshot
from overlaptop.fleet.window import HISTORY_STEPS
from overlaptop.jobs import hub_socket
from overlaptop.jobs.hub_reader import FIRST_PINGS, HubReader
from overlaptop.remote import connection as connection_module
from overlaptop.remote.host import MAX_SAMPLE_CHARS, RemoteHost
from overlaptop.remote.targets import Target
from overlaptop.report import hosts as nodes
from overlaptop.tui.draw.layout import line_width
from overlaptop.tui.widgets import host_lines
from overlaptop.wire.codec import WireError, decode, encode, frame
from overlaptop.wire.commands import CommandOutcome
from overlaptop.wire.devices import Unknown
from overlaptop.wire.joining import MAGIC, GatheredHub, Pong
from overlaptop.wire.messages import (
    GroupCalls,
    IssuedCall,
    Notice,
    RankInfo,
    RankStalled,
    StackSamples,
    Welcome,
)
from overlaptop.wire.protocol import PROTOCOL_VERSION
from overlaptop.wire.schema import Message
from tests.fleet.builders import info
from tests.remote import fake_relays
from tests.remote.fake_relays import JOBS, STARTED_NS
from tests.wire.examples import DETAIL, MESSAGES, SAMPLE, messages, plain

RECORD = replace(fake_relays.JOB, world_size=4)
JOB = RECORD.job


def framed(*messages: Message) -> bytes:
    """The messages as they travel to and from a relay."""
    return b"".join(frame(encode(message)) for message in messages)


OPENING = MAGIC + framed(replace(JOBS, jobs=(RECORD, replace(RECORD, job="job-2"))))
"""What an honest relay sends first."""
WELCOME = Welcome(PROTOCOL_VERSION, JOB, "far", "train.py", 4, STARTED_NS)


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

    def __init__(self, path: Path, *, bind: bool) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(path))
        self.listener.listen()
        self.descriptor = -1
        self.readers: dict[bytes, HubReader] = {}
        self.hubs: dict[bytes, GatheredHub] = {}
        self.coming = [encode(Pong(STARTED_NS, STARTED_NS, STARTED_NS))] * FIRST_PINGS
        self.made.append(self)

    def receive(self) -> None:
        batch, self.coming = self.coming, []
        self.readers[b""].receive(batch, STARTED_NS)
        self.readers[b""].send_due()

    def put(self, _node: bytes, _payload: bytes) -> bool:
        return True

    def close(self) -> None:
        self.listener.close()
        for reader in tuple(self.readers.values()):
            reader.disconnect()


_open_clients: list["WholeClient"] = []


class WholeClient:
    """A session of one host, whose relay sends what it is made to."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        FakeHubSocket.made.clear()
        while _open_clients:
            _open_clients.pop().session.close()
        _open_clients.append(self)
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
        for carrier in FakeHubSocket.made[-1:]:
            carrier.coming += [each if isinstance(each, bytes) else encode(each) for each in said]
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
            told.append(once.render(snapshot))
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
        return STARTED_NS + round((self.now_s - 1000.0) * 1e9)


@pytest.fixture(scope="module", autouse=True)
def no_processes() -> Iterator[None]:
    """Clients start no process and no ZeroMQ."""
    with (
        mock.patch.object(connection_module, "ChildProcess", FakeProcess),
        mock.patch.object(hub_socket, "HubSocket", FakeHubSocket),
    ):
        yield


COMMAND_ID = "20260101-000000-abcdef"
INFO = RankInfo(JOB, 0, 0, 4, "far", 7, "t.py", "cuda:0", "nccl", "kernels", "", True, 1, "2.13")
few_ranks = st.integers(0, 3)
passed_s = st.sampled_from((0.0, 0.02, 0.6, 3.0, 20.0))
# Ranks that are met again, of the job that was asked for: else nothing comes of most messages.
likely = st.sampled_from(list(MESSAGES)).flatmap(MESSAGES.__getitem__)


changes = st.tuples(st.integers(0, 24), plain)  # A field, and any value for it


@st.composite
def of_this_job(draw):
    message = draw(likely)
    changed = {"rank": draw(few_ranks)} if hasattr(message, "rank") else {}
    if isinstance(getattr(message, "job", None), str):
        changed["job"] = JOB
    if isinstance(message, CommandOutcome):
        changed["command"] = COMMAND_ID
    return replace(message, **changed)


def begun():
    client = WholeClient()
    client.begin()
    assert client.snapshot.hub_state is HubState.LIVE
    return client


def has_kept_its_head(client):
    page = client.words()
    assert all(line.isprintable() for line in page.split("\n"))
    assert client.host.reason.isprintable()
    snapshot = client.snapshot
    assert len(snapshot.notices) <= MAX_NOTICES
    for view in snapshot.ranks:
        assert len(view.history) <= HISTORY_STEPS
        assert len(view.details) <= RECENT_DETAILS


@settings(max_examples=25)
@given(st.lists(st.tuples(messages, passed_s), max_size=12))
def test_any_messages_of_a_relay_in_any_order(said):
    client = begun()
    for message, seconds in said:
        client.receive(framed(message), passed_s=seconds)
    has_kept_its_head(client)


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(of_this_job() | messages, passed_s, st.none() | st.tuples(st.integers(0, 24), plain))
    )
)
def test_any_messages_of_a_hub_are_taken_or_counted(said):
    client = begun()
    bad = 0
    for message, seconds, change in said:
        payload = encode(message)
        if change is not None:
            row = msgpack.unpackb(payload)
            row[min(change[0], len(row) - 1)] = change[1]
            payload = msgpack.packb(row)
        try:
            decode(payload)
        except WireError:
            bad += 1
        client.hear(payload, passed_s=seconds)
    has_kept_its_head(client)
    carrier, *others = FakeHubSocket.made
    if carrier.readers and not others:  # else the connection was lost, for it was silent
        assert carrier.readers[b""].dropped >= bad


# What could fill the memory


def test_timelines_that_nobody_asked_for_are_not_kept():
    client = begun()
    client.session.watch({0})
    client.hear(INFO, replace(INFO, rank=1))
    client.hear(*(replace(DETAIL, rank=rank) for rank in (0, 1, 2)))
    client.hear(*(replace(DETAIL, rank=rank, step=2) for rank in (0, 1, 2)))
    kept = {view.rank: [detail.step for detail in view.details] for view in client.snapshot.ranks}
    assert kept == {0: [DETAIL.step, 2], 1: [], 2: [], 3: []}


def test_sample_with_too_many_words_is_skipped():
    client = begun()
    client.hear(INFO)
    long = replace(SAMPLE, unknown=(Unknown("x" * 100, "y" * MAX_SAMPLE_CHARS),))
    client.hear(replace(SAMPLE, at_ns=1), replace(long, at_ns=2), replace(SAMPLE, at_ns=3))
    first, *others = client.snapshot.ranks[0].samples
    assert [sample.at_ns - first.at_ns for sample in others] == [2]


def test_times_of_the_other_clock_become_times_of_this_one():
    client = begun()
    ahead_ns = 5_000_000_000
    at_ns = STARTED_NS + ahead_ns
    client.host.clock.add(Pong(STARTED_NS, at_ns, at_ns), STARTED_NS)
    issued = IssuedCall("allreduce_", 8, 1, at_ns)
    snapshot = client.hear(
        Welcome(PROTOCOL_VERSION, JOB, "far", "train.py", 2, at_ns),
        info(0, exact=False, job=JOB),
        Notice(0, at_ns, "warning", "a word"),
        RankStalled(0, True, (GroupCalls("0", (0, 1), (issued,)),)),
        StackSamples(0, at_ns, at_ns, 0, ()),
    )
    assert snapshot.job is not None
    assert (snapshot.job.started_ns, snapshot.notices[-1].at_ns) == (STARTED_NS, STARTED_NS)
    view = snapshot.ranks[0]
    assert view.stalled is not None
    assert view.stalled.groups[0].calls[0].at_ns == STARTED_NS
    assert [(stacks.from_ns, stacks.to_ns) for stacks in view.stacks] == [(STARTED_NS, STARTED_NS)]
    assert client.host.list_jobs()[0].started_ns == STARTED_NS - ahead_ns
