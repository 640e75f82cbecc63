"""A relay against real hubs: which jobs it lists, whose bytes it carries, and when it ends.

What travels inside is proved where a whole client is at the other end: tests/remote/test_host.py.
"""

import contextlib
import os
import signal
import socket
import threading
import time

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from overlaptop.jobs.record import JobRecord, read_job
from overlaptop.relay import relay as relay_module
from overlaptop.relay.relay import Relay
from overlaptop.remote.attempt import RelayStream
from overlaptop.wire.codec import decode, encode, frame
from overlaptop.wire.joining import RelayBytes, RelayClosed, RelayJobs, RelayOpen
from overlaptop.wire.protocol import PROTOCOL_VERSION
from overlaptop.wire.schema import Message
from tests.hubs import KEY, Receiver, hubs, made_and_closed, make_rank, private_sockets
from tests.processes import PATIENCE_S
from tests.wire.examples import messages, plain


class RelayClient(Receiver):
    def __init__(self, reads: int, writes: int) -> None:
        super().__init__()
        self.reads, self.writes = reads, writes
        os.set_blocking(reads, False)
        self.over = False
        self.wanted: RelayOpen | None = RelayOpen(0, "")
        """Said every fifth of a second. None: it is silent."""
        self._said_s = 0.0
        self._stream = RelayStream()

    def send(self, *messages: Message) -> None:
        self.write(b"".join(frame(encode(message)) for message in messages))

    def write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self.writes, data) :]

    def poll(self) -> None:
        if self.wanted is not None and time.monotonic() - self._said_s > 0.2:
            self._said_s = time.monotonic()
            with contextlib.suppress(BrokenPipeError):
                self.send(self.wanted)
        try:
            data = os.read(self.reads, 1 << 20)
        except BlockingIOError:
            return
        self.over = not data
        self.messages += map(decode, self._stream.feed(data))

    def open(self, connection: int, job: str) -> None:
        self.receive(RelayJobs)
        self.wanted, self._said_s = RelayOpen(connection, job), 0.0

    def bytes_of(self, connection: int) -> bytes:
        return b"".join(each.data for each in self.of(RelayBytes) if each.connection == connection)

    def until_over(self) -> None:
        self.wanted = None
        self.until(lambda: self.over)

    def close(self) -> None:
        os.close(self.reads)
        os.close(self.writes)


class RelayThread:
    """A relay of this process, and its client."""

    def __init__(self, **options: object) -> None:
        reads, client_writes = os.pipe()
        client_reads, writes = os.pipe()
        self.relay = Relay(reads, writes, version="1.0", **options)
        self.client = RelayClient(client_reads, client_writes)
        self.why: str | None = None
        self._descriptors = (reads, writes)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.why = self.relay.run()
        for descriptor in self._descriptors:
            os.close(descriptor)

    def close(self) -> None:
        self.client.close()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


__all__ = ["hubs", "make_rank", "private_sockets"]  # fixtures


@pytest.fixture
def make_relay(hubs):
    yield from made_and_closed(RelayThread)


def test_jobs_are_listed_first_and_on_each_change(hubs, make_relay):
    client = make_relay().client
    first = client.receive(RelayJobs)
    assert client.messages[0] is first
    assert (first.protocol, first.version, first.host, first.readonly) == (
        PROTOCOL_VERSION, "1.0", socket.gethostname(), False,
    )  # fmt: skip
    assert first.jobs == ()
    record = hubs.start()
    (job,) = client.receive(RelayJobs, lambda jobs: jobs.jobs).jobs
    assert JobRecord.of_remote(job) == replace(read_job(KEY), python="", import_path=())
    assert record.hub_pid == job.hub_pid


def test_client_is_told_why_a_hub_s_connection_closed(hubs, make_rank, make_relay):
    client = make_relay().client
    client.open(1, "job-7")
    assert client.receive(RelayClosed) == RelayClosed(1, alive=False, gone=True)
    record = hubs.start()
    client.open(2, KEY)
    client.until(lambda: client.bytes_of(2))
    client.send(RelayBytes(2, b"\0" * 100))  # nothing of ZeroMQ's
    assert client.receive(RelayClosed, lambda closed: closed.connection == 2).alive
    client.open(3, KEY)
    client.until(lambda: client.bytes_of(3) and client.of(RelayJobs)[-1].jobs)
    os.kill(record.hub_pid, signal.SIGKILL)
    closed = client.receive(RelayClosed, lambda closed: closed.connection == 3)
    # Its starter, this process, is there and could start another.
    assert not closed.gone
    client.until(lambda: not client.of(RelayJobs)[-1].jobs)
    client.open(4, KEY)
    assert client.receive(RelayClosed, lambda each: each.connection == 4) == RelayClosed(4, False, False)


def test_without_a_word_from_the_client_it_ends(make_relay, monkeypatch):
    monkeypatch.setattr(relay_module, "SILENCE_S", 0.5)
    relay = make_relay()
    relay.client.until_over()
    assert relay.why == "nothing came from the client for 0 s"


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=200)
    | st.lists(messages, max_size=6).map(lambda said: b"".join(frame(encode(each)) for each in said))
    | st.lists(plain, max_size=6).map(lambda said: b"".join(frame(msgpack.packb(each)) for each in said))
)
def test_whatever_comes_in_it_ends_with_its_input_and_a_reason(socket_dir, data):
    reads, client_writes = os.pipe()
    client_reads, writes = os.pipe()
    os.write(client_writes, data[: 1 << 15])
    os.close(client_writes)
    try:
        why = Relay(reads, writes, version="1.0").run()
    finally:
        os.close(writes)
        os.close(reads)
    with os.fdopen(client_reads, "rb") as file:
        assert file.read().startswith(b"\n\x00OVERLAPTOP RELAY 2\n")
    assert why.startswith(("the client closed the connection", "the client's message is not"))
