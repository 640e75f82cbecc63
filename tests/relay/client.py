"""A relay, and its client as a test plays it."""

import contextlib
import os
import threading
import time

from overlaptop.relay.relay import Relay
from overlaptop.remote.attempt import RelayStream
from overlaptop.wire.codec import decode, encode, frame
from overlaptop.wire.joining import RelayBytes, RelayJobs, RelayOpen
from overlaptop.wire.schema import Message
from tests.hubs import Receiver
from tests.processes import PATIENCE_S


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
