"""The relay: lists this host's jobs to a remote client, and carries a connection to one of their hubs.

It carries the protocol of hubs and dashboards. The hub checks the data it receives.
"""

import os
import select
import socket
import time
from collections.abc import Sequence
from contextlib import suppress

from overlaptop.jobs.folder import JobFolderError
from overlaptop.jobs.record import JobRecord, list_jobs, read_job
from overlaptop.jobs.sockets import connected, view_socket
from overlaptop.wire.codec import FrameReader, WireError, decode, encode, frame
from overlaptop.wire.joining import (
    MAGIC,
    MAX_CHUNK_BYTES,
    MAX_JOBS,
    RelayBytes,
    RelayClosed,
    RelayJobs,
    RelayOpen,
)
from overlaptop.wire.protocol import PROTOCOL_VERSION
from overlaptop.wire.schema import Message

SILENCE_S = 15.0
"""If the client sends no message for this long, the connection is frozen, and the relay ends."""
_LIST_S = 0.5
_REPEAT_JOBS_S = 2.0
_HUB_PATIENCE_S = 1.0  # How long a hub may refuse data before its connection is closed
_READ_BYTES = 1 << 16


class _ClientGoneError(Exception):
    """The relay has no client any more. The text is the reason."""


class Relay:
    """Serves one client. Call ``run`` once. It reads and writes two descriptors, and closes neither."""

    def __init__(self, reads: int, writes: int, *, version: str, readonly: bool = False) -> None:
        """``readonly``: use the hubs' sockets that accept no commands."""
        self._reads, self._writes = reads, writes
        self._version, self._readonly = version, readonly
        self._reader = FrameReader()
        self._unsent = bytearray(MAGIC)
        self._hub: socket.socket | None = None
        self._wanted = RelayOpen(0, "")
        self._record: JobRecord | None = None
        self._jobs: RelayJobs | None = None
        self._received_s = self._list_due_s = self._repeat_due_s = time.monotonic()

    def run(self) -> str:
        """Relay until the client has gone. Returns the reason as text."""
        for descriptor in (self._reads, self._writes):
            os.set_blocking(descriptor, False)
        try:
            while True:
                self._round()
        except _ClientGoneError as end:
            return str(end)
        finally:
            self._leave_hub()

    def _round(self) -> None:
        now_s = time.monotonic()
        if now_s - self._received_s > SILENCE_S:
            raise _ClientGoneError(f"nothing came from the client for {SILENCE_S:.0f} s")
        if now_s >= self._list_due_s and not self._unsent:
            self._list_due_s = now_s + _LIST_S
            self._list(now_s)
        readable: list[int | socket.socket] = [self._reads]
        if self._hub is not None and not self._unsent:
            readable.append(self._hub)  # otherwise the hub is not read either, and thins its queue
        writable = [self._writes] if self._unsent else []
        can_read, can_write, _ = select.select(readable, writable, [], _LIST_S)
        if can_write:
            self._write()
        if self._hub in can_read:
            self._read_hub()
        if self._reads in can_read:
            self._read()

    def _read(self) -> None:
        try:
            data = os.read(self._reads, _READ_BYTES)
        except OSError as error:
            raise _ClientGoneError(f"standard input failed: {error.strerror}") from None
        if not data:
            raise _ClientGoneError("the client closed the connection")
        self._received_s = time.monotonic()
        try:
            for payload in self._reader.feed(data):
                self._handle(decode(payload))
        except WireError as error:
            raise _ClientGoneError(f"the client's message is not understood: {error}") from None

    def _handle(self, message: Message) -> None:
        match message:
            case RelayOpen():
                if message != self._wanted:
                    self._leave_hub()
                    self._wanted = message
                    if message.job:
                        self._open()
            case RelayBytes():
                if message.connection == self._wanted.connection and self._hub is not None:
                    try:
                        self._hub.sendall(message.data)
                    except OSError:
                        self._close()
            case _:
                raise WireError(f"a {type(message).__name__} is not for a relay")

    def _send(self, message: Message) -> None:
        self._unsent += frame(encode(message))
        self._write()

    def _write(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: os.write(self._writes, self._unsent)]
        except BlockingIOError:
            return
        except OSError as error:
            raise _ClientGoneError(f"standard output failed: {error.strerror}") from None

    def _list(self, now_s: float) -> None:
        records: Sequence[JobRecord] = ()
        note = ""
        try:
            records = list_jobs()
        except (JobFolderError, OSError) as error:
            note = str(error)
        if len(records) > MAX_JOBS:
            note = f"{len(records)} jobs run on this host: the newest {MAX_JOBS} are listed"
        listed = tuple(record.remote for record in records[:MAX_JOBS])
        jobs = RelayJobs(
            PROTOCOL_VERSION, self._version, socket.gethostname(), self._readonly, listed, note
        )
        if jobs != self._jobs or now_s >= self._repeat_due_s:
            self._jobs, self._repeat_due_s = jobs, now_s + _REPEAT_JOBS_S
            self._send(jobs)

    def _open(self) -> None:
        record = self._look()
        if record is not None and record.hub_alive:
            path = view_socket(record.job, record.hub_pid) if self._readonly else record.dashboard_path
            with suppress(JobFolderError, OSError):  # the hub is ending, or its folder has gone
                self._hub = connected(path)
                self._hub.settimeout(_HUB_PATIENCE_S)
                return
        self._close()

    def _look(self) -> JobRecord | None:
        """Return the record of the wanted job, or its last one."""
        record = read_job(self._wanted.job)
        if record is not None or self._record is None or self._record.job != self._wanted.job:
            self._record = record
        return self._record

    def _read_hub(self) -> None:
        data = b""
        if self._hub is not None:
            with suppress(OSError):
                data = self._hub.recv(MAX_CHUNK_BYTES)
        if data:
            self._send(RelayBytes(self._wanted.connection, data))
        else:
            self._close()

    def _close(self) -> None:
        """Report the end of the connection, and the state of the hub."""
        self._leave_hub()
        record = self._look()
        alive = record is not None and record.hub_alive
        gone = not alive and (record is None or record.gone)
        self._send(RelayClosed(self._wanted.connection, alive, gone))

    def _leave_hub(self) -> None:
        if self._hub is not None:
            self._hub.close()
        self._hub = None
