"""A relay's client as a test plays it, and a relay on a thread with pipes of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time

from overlaptop.relay.relay import Relay
from overlaptop.remote.frames import RelayStream
from overlaptop.wire.codec import decode, encode, frame
from overlaptop.wire.messages import Join
from overlaptop.wire.protocol import PROTOCOL_VERSION
from overlaptop.wire.relaying import RelayJobs, RelayPing, RelayPong, RelaySelect, RelayStatus
from overlaptop.wire.schema import Message
from tests.hubs import Receiver
from tests.processes import PATIENCE_S

_PING_S = 0.2


class RelayClient(Receiver):
    """Speaks over two descriptors, which it closes."""

    def __init__(self, reads: int, writes: int) -> None:
        super().__init__()
        self.reads, self.writes = reads, writes
        os.set_blocking(reads, False)
        os.set_blocking(writes, False)
        self.over = False
        """The relay has closed its end."""
        self.pings = True
        self._stream = RelayStream()
        self._ping_due_s = 0.0
        self._number = 0

    @property
    def received_bytes(self) -> int:
        """Behind MAGIC."""
        return self._stream.frame_bytes

    def send(self, *messages: Message) -> None:
        self.write(b"".join(frame(encode(message)) for message in messages))

    def write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self.writes, data) :]
            except BlockingIOError:
                time.sleep(0.005)

    def poll(self, *, most_bytes: int = 1 << 20) -> None:
        """Take what has come, and ping now and then."""
        if self.pings and time.monotonic() > self._ping_due_s:
            self._ping_due_s = time.monotonic() + _PING_S
            self._number += 1
            with contextlib.suppress(BrokenPipeError):
                self.send(RelayPing(self._number, self.received_bytes))
        try:
            data = os.read(self.reads, most_bytes)
        except BlockingIOError:
            return
        self.over = not data
        self.messages += map(decode, self._stream.feed(data))

    def select(self, job: str, *detail_ranks: int) -> None:
        """Select a job that the host has, and forget what came before the answer."""
        self.receive(RelayJobs, lambda jobs: any(each.job == job for each in jobs.jobs))
        self.messages.clear()
        self.send(RelaySelect(job), Join(PROTOCOL_VERSION, detail_ranks))
        answer = self.receive(RelayStatus, lambda status: status.job == job)
        del self.messages[: self.messages.index(answer)]

    def settle(self) -> None:
        """Waits until the relay has taken all that was sent."""
        self._ping_due_s = 0.0
        self.poll()
        number = self._number
        self.receive(RelayPong, lambda pong: pong.number >= number)

    def until_over(self) -> None:
        self.pings = False
        self.until(lambda: self.over)

    def close(self) -> None:
        for descriptor in {self.reads, self.writes} - {-1}:
            os.close(descriptor)
        self.reads = self.writes = -1

    def close_input(self) -> None:
        """Close the relay's standard input."""
        os.close(self.writes)
        self.writes = self.reads


class RelayThread:
    """A relay of this process, and its client."""

    def __init__(self, **options: object) -> None:
        reads, client_writes = os.pipe()
        client_reads, writes = os.pipe()
        self.relay = Relay(reads, writes, version="1.0", **options)
        self.client = RelayClient(client_reads, client_writes)
        self.why: str | None = None
        """Why it ended."""
        self._descriptors = (reads, writes)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.why = self.relay.run()
        for descriptor in self._descriptors:
            os.close(descriptor)

    def close(self) -> None:
        self.relay.stop()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self.client.close()


class RelayProcess:
    """``overlaptop relay --stdio``, as a client starts it."""

    def __init__(self, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "overlaptop", "relay", "--stdio", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        # Copies: Popen closes its own.
        self.client = RelayClient(os.dup(self.process.stdout.fileno()), os.dup(self.process.stdin.fileno()))
        self.process.stdin.close()
        self.process.stdout.close()

    def close(self) -> None:
        self.client.close()
        self.process.wait(PATIENCE_S)
        assert self.process.stderr is not None
        self.process.stderr.close()
