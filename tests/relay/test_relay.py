"""A relay against real hubs: which jobs it lists, whose bytes it carries, and when it ends.

What travels inside is proved where a whole client is at the other end: tests/remote/test_host.py.
"""

import os
import signal
import socket

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from overlaptop.jobs.record import JobRecord, read_job
from overlaptop.relay import relay as relay_module
from overlaptop.relay.relay import Relay
from overlaptop.wire.codec import encode, frame
from overlaptop.wire.joining import RelayBytes, RelayClosed, RelayJobs
from overlaptop.wire.protocol import PROTOCOL_VERSION
from tests.hubs import KEY, hubs, made_and_closed, make_rank, private_sockets
from tests.relay.client import RelayThread
from tests.wire.examples import messages, plain

__all__ = ["hubs", "make_rank", "private_sockets"]  # fixtures

GREETING = b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f"
"""How ZeroMQ begins a connection, on either side."""


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


def test_one_connection_at_a_time_is_carried_to_the_wanted_hub(hubs, make_relay):
    for key in (KEY, "job-2"):
        hubs.start(key=key)
    client = make_relay().client
    for connection, key in enumerate((KEY, "job-2", KEY), 1):
        client.open(connection, key)
        client.send(client.wanted)
        client.send(*(RelayBytes(connection, part) for part in (GREETING[:5], GREETING[5:])))
        client.until(lambda number=connection: client.bytes_of(number).startswith(GREETING))
    assert client.of(RelayClosed) == []


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
