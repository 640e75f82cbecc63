"""When a relay ends, and what it lists. What it carries is proved by tests/remote/test_host.py."""

import os
import socket
import threading
from contextlib import contextmanager, suppress

import msgpack
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overlaptop.relay import relay as relay_module
from overlaptop.relay.relay import Relay
from overlaptop.remote.attempt import RelayStream
from overlaptop.wire.codec import decode, encode, frame
from overlaptop.wire.joining import RelayBytes, RelayClosed, RelayJobs, RelayOpen
from overlaptop.wire.protocol import PROTOCOL_VERSION
from tests.hubs import KEY, Receiver, hubs, private_sockets
from tests.wire.examples import messages, plain

__all__ = ["hubs", "private_sockets"]  # fixtures


class Client(Receiver):
    """The client of a relay, which runs on a thread of this process."""

    def __init__(self):
        super().__init__()
        reads, self.writes = os.pipe()
        self.reads, writes = os.pipe()
        os.set_blocking(self.reads, False)
        self._relay = reads, writes
        self.why = None
        self._stream = RelayStream()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        self.why = Relay(*self._relay, version="1.0").run()

    def send(self, message):
        os.write(self.writes, frame(encode(message)))

    def poll(self):
        with suppress(BlockingIOError):
            self.messages += map(decode, self._stream.feed(os.read(self.reads, 1 << 20)))

    def end(self):
        """Hang up. Returns what is left of the relay's words."""
        os.close(self.writes)
        self._thread.join(60)
        assert not self._thread.is_alive()
        for descriptor in self._relay:
            os.close(descriptor)
        with os.fdopen(self.reads, "rb") as file:
            return file.read()


@contextmanager
def connected():
    client = Client()
    try:
        yield client
    finally:
        client.end()


def test_jobs_are_listed_and_a_closed_connection_explained(hubs):
    with connected() as client:
        first = client.receive(RelayJobs)
        assert client.messages == [RelayJobs(PROTOCOL_VERSION, "1.0", socket.gethostname(), False, (), "")]
        assert first.jobs == ()
        record = hubs.start()
        (job,) = client.receive(RelayJobs, lambda listed: listed.jobs).jobs
        assert (job.job, job.hub_pid, job.cwd) == (KEY, record.hub_pid, "/some/where")
        client.send(RelayOpen(1, KEY))
        client.receive(RelayBytes, lambda data: data.connection == 1)
        client.send(RelayBytes(1, b"\0" * 100))  # nothing of ZeroMQ's
        assert client.receive(RelayClosed) == RelayClosed(1, alive=True, gone=False)
        client.send(RelayOpen(2, "job-7"))
        closed = client.receive(RelayClosed, lambda closed: closed.connection == 2)
        assert closed == RelayClosed(2, alive=False, gone=True)
    assert client.why == "the client closed the connection"


def test_without_a_word_from_the_client_it_ends(socket_dir, monkeypatch):
    monkeypatch.setattr(relay_module, "SILENCE_S", 0.5)
    with connected() as client:
        client.until(lambda: client.why)
    assert client.why == "nothing came from the client for 0 s"


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=200)
    | st.lists(messages, max_size=6).map(lambda said: b"".join(frame(encode(each)) for each in said))
    | st.lists(plain, max_size=6).map(lambda said: b"".join(frame(msgpack.packb(each)) for each in said))
)
def test_whatever_comes_in_it_ends_with_its_input_and_a_reason(socket_dir, data):
    client = Client()
    os.write(client.writes, data[: 1 << 15])
    assert client.end().startswith(b"\n\x00OVERLAPTOP RELAY 2\n")
    assert client.why.startswith(("the client closed the connection", "the client's message is not"))
