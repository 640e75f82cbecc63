"""The relay: passes what a hub of this host sends to a client, a dashboard on another host, and back.

What comes in is checked as if the client had checked nothing. What goes out is bounded (send_queue.py,
rate_limit.py). Nothing waits but the selector.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from selectors import EVENT_READ, EVENT_WRITE, PollSelector
from typing import TYPE_CHECKING

from overlaptop.jobs.folder import JobFolderError
from overlaptop.jobs.record import JobRecord, list_jobs
from overlaptop.relay.rate_limit import RateLimit
from overlaptop.relay.send_queue import SendQueue
from overlaptop.wire import commands
from overlaptop.wire.codec import FrameReader, WireError, decode, encode, frame
from overlaptop.wire.commands import Command
from overlaptop.wire.messages import Join, Notice
from overlaptop.wire.protocol import LEASE_S, PROTOCOL_VERSION
from overlaptop.wire.relaying import (
    MAGIC,
    MAX_JOBS,
    RelayHello,
    RelayJobs,
    RelayLimit,
    RelayPing,
    RelayPong,
    RelaySelect,
    RelayStatus,
)
from overlaptop.wire.schema import Message

if TYPE_CHECKING:
    from overlaptop.jobs.hub_connection import LocalHubConnection

SILENCE_S = 15.0
"""Without a message from the client for so long, the relay ends: the connection is frozen."""
STUCK_S = 30.0
"""So it does where nothing could be written for so long."""
_TICK_S = 0.25
_FLUSH_S = 0.05
"""What comes within so long is written together."""
_LIST_S = 0.5
_REPEAT_JOBS_S = 2.0
_READ_BYTES = 1 << 16
_WRITE_BYTES = 1 << 16
_POLL_BYTES = 1 << 18
_MAX_BAD_FRAMES = 16
_READONLY = "this relay is read-only"


class _ConnectionClosedError(Exception):
    """The relay has no client any more, and this is why."""


class Relay:
    """Serves one connection; ``run`` it once. It reads and writes two descriptors, and closes neither."""

    def __init__(
        self,
        reads: int,
        writes: int,
        *,
        version: str,
        readonly: bool = False,
        silence_s: float = SILENCE_S,
        list_jobs: Callable[[], Sequence[JobRecord]] = list_jobs,
    ) -> None:
        self._reads, self._writes = reads, writes
        self._readonly = readonly
        self._silence_s = silence_s
        self._list_jobs = list_jobs
        self._host = socket.gethostname()
        self._stopped = False
        now_s = time.monotonic()
        self._rate_limit = RateLimit(time.monotonic)
        self._queue = SendQueue(time.monotonic)
        hello = RelayHello(PROTOCOL_VERSION, version, self._host, os.getpid(), time.time_ns(), readonly)
        self._unsent = MAGIC + frame(encode(hello))
        self._wrote_s = self._received_s = self._before_s = now_s
        self._stopped_s = float("-inf")
        """When this process last found that it had been stopped: what it reads then may be old."""
        self._write_due_s = self._tick_due_s = self._list_due_s = self._repeat_due_s = now_s
        self._reader = FrameReader()
        self._bad_frames = 0
        self._ping: tuple[int, int] | None = None
        """Number of the newest one that was not answered, and when it came."""
        self._records: tuple[JobRecord, ...] = ()
        self._jobs = RelayJobs((), "")
        self._record: JobRecord | None = None
        """Of the job that was selected, once there is one."""
        self._selected = ""
        self._hub: LocalHubConnection | None = None
        self._sent_status: RelayStatus | None = None
        self._detail_ranks: tuple[int, ...] = ()
        self._bursts = 0
        self._selector = PollSelector()
        self._waits_to_write = False

    def stop(self) -> None:
        """Have ``run`` return soon. To be called from a signal's handler, too."""
        self._stopped = True

    def run(self) -> str:
        """Relay until the connection ends; returns why it did, in words."""
        for descriptor in (self._reads, self._writes):
            os.set_blocking(descriptor, False)
        self._selector.register(self._reads, EVENT_READ)
        try:
            self._write(time.monotonic())
            while not self._stopped:
                self._round()
            return "it was asked to end"
        except _ConnectionClosedError as end:
            return str(end)
        finally:
            self._leave_hub()
            self._selector.close()

    def _round(self) -> None:
        ready = {key.fd for key, _ in self._selector.select(self._wait_s())}
        now_s = time.monotonic()
        if now_s - self._before_s > _TICK_S + 2.0:
            # This process was stopped: the silence was its own.
            self._stopped_s = now_s
            self._received_s += now_s - self._before_s
            self._wrote_s += now_s - self._before_s
        self._before_s = now_s
        if self._reads in ready:
            self._read()
        if self._writes in ready:
            self._write_due_s = now_s
        if now_s >= self._tick_due_s:
            self._tick_due_s = now_s + _TICK_S
            self._tick(now_s)
        self._take_from_hub()
        self._write(now_s)

    def _wait_s(self) -> float:
        now_s = time.monotonic()
        wait_s = self._tick_due_s - now_s
        # Asked in any case: it is what quiets ZeroMQ's descriptor.
        if self._hub is not None and self._hub.has_input and not self._queue.is_full:
            return 0.0
        if (self._queue or self._unsent or self._ping is not None) and not self._waits_to_write:
            wait_s = min(wait_s, self._write_due_s - now_s)
        return max(wait_s, 0.0)

    def _tick(self, now_s: float) -> None:
        if now_s - self._received_s > self._silence_s:
            raise _ConnectionClosedError(f"nothing came from the client for {self._silence_s:.0f} s")
        if self._unsent and now_s - self._wrote_s > STUCK_S:
            raise _ConnectionClosedError(f"the client has read nothing for {STUCK_S:.0f} s")
        if now_s >= self._list_due_s:
            self._list_due_s = now_s + _LIST_S
            self._list(now_s)
        if self._hub is not None:
            # Nobody looks at a timeline while the client is silent.
            silent = now_s - self._received_s > LEASE_S
            self._hub.watch(() if silent else self._detail_ranks, self._bursts)
        self._update_status()
        self._queue.set_bandwidth(self._rate_limit.bytes_per_s)
        self._queue.tick()

    # From the client

    def _read(self) -> None:
        try:
            data = os.read(self._reads, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise _ConnectionClosedError(f"standard input failed: {error.strerror}") from None
        if not data:
            raise _ConnectionClosedError("the client closed the connection")
        received_ns = time.time_ns()
        try:
            payloads = self._reader.feed(data)
        except WireError as error:
            raise _ConnectionClosedError(f"what came from the client is no frame: {error}") from None
        for payload in payloads:
            try:
                message = decode(payload)
            except WireError as error:
                self._bad_frames += 1
                if self._bad_frames > _MAX_BAD_FRAMES:
                    raise _ConnectionClosedError(f"too much came that is no message: {error}") from None
                self._refuse(str(error))
                continue
            self._received_s = time.monotonic()
            self._handle(message, received_ns)

    def _handle(self, message: Message, received_ns: int) -> None:
        match message:
            case RelayPing():
                self._ping = (message.number, received_ns)
                self._rate_limit.acknowledge(message.received_bytes)
            case RelaySelect():
                self._select(message.job)
            case RelayLimit():
                self._rate_limit.limit(message.bytes_per_s)
            case Join(protocol=theirs):
                if theirs == PROTOCOL_VERSION:
                    self._detail_ranks, self._bursts = message.detail_ranks, message.bursts
                    if self._hub is not None:
                        self._hub.watch(self._detail_ranks, self._bursts)
            case Command():
                self._pass_on(message)
            case _:
                self._refuse(f"a {type(message).__name__} is not for a relay")

    def _pass_on(self, command: Command) -> None:
        what = commands.in_words(command)
        if self._readonly:
            self._refuse(f"{what}: {_READONLY}")
        elif time.monotonic() - self._stopped_s < 1.0:
            self._refuse(f"{what} may have waited for long: not passed on")
        elif self._hub is None or not self._hub.alive:
            self._refuse(f"{what}: there is no job")
        elif not self._hub.send(command):
            self._refuse(f"{what}: the job's hub has sent nothing yet")

    def _refuse(self, why: str) -> None:
        if not self._queue.is_full:
            text = f"relay on {self._host}: {why}"
            self._queue.put(encode(Notice(0, time.time_ns(), "warning", text)))

    # Jobs

    def _list(self, now_s: float) -> None:
        note = ""
        try:
            self._records = tuple(self._list_jobs())
        except (JobFolderError, OSError) as error:
            note = str(error)
        jobs = RelayJobs(tuple(record.remote for record in self._records[:MAX_JOBS]), note)
        if jobs != self._jobs or now_s >= self._repeat_due_s:
            self._jobs, self._repeat_due_s = jobs, now_s + _REPEAT_JOBS_S
            self._queue.put_newest(RelayJobs, _encode_jobs(jobs))
        if self._record is None and self._selected:
            self._join()
        for record in self._records:
            if self._record is not None and record.hub_pid == self._record.hub_pid:
                self._record = record  # it may know of more ranks by now

    def _select(self, job: str) -> None:
        self._leave_hub()
        self._queue.clear()
        self._selected, self._sent_status = job, None
        if job:
            with suppress(JobFolderError, OSError):
                # As of now: the client may know of a hub that took this one's place since the last look.
                self._records = tuple(self._list_jobs())
            self._join()
            self._update_status()

    def _join(self) -> None:
        self._record = next((record for record in self._records if record.job == self._selected), None)
        if self._record is None:
            return
        self._send_status(RelayStatus(self._selected, alive=True))
        try:
            # 40 ms, and only where there is a job
            from overlaptop.jobs.hub_connection import LocalHubConnection

            self._hub = LocalHubConnection(self._record)
        except (JobFolderError, OSError, ImportError) as error:
            self._refuse(str(error))
            return
        self._hub.watch(self._detail_ranks, self._bursts)
        self._selector.register(self._hub.descriptor, EVENT_READ)

    def _leave_hub(self) -> None:
        if self._hub is not None:
            self._selector.unregister(self._hub.descriptor)
            self._hub.close()
        self._hub = self._record = None

    def _update_status(self) -> None:
        alive = self._hub is not None and self._hub.alive
        gone = not alive and (self._record is None or self._record.gone)
        if self._selected:
            self._send_status(RelayStatus(self._selected, alive, gone))

    def _send_status(self, status: RelayStatus) -> None:
        if status != self._sent_status:
            self._sent_status = status
            self._queue.put(encode(status))

    def _take_from_hub(self) -> None:
        if self._hub is not None:
            # Polled for nothing where there is no room: the hub forgets clients that are silent.
            for payload in self._hub.poll_raw(0 if self._queue.is_full else _POLL_BYTES):
                self._queue.put(payload)

    # To the client

    def _write(self, now_s: float) -> None:
        if now_s < self._write_due_s and self._ping is None:
            return
        self._write_due_s = now_s + _FLUSH_S
        while self._unsent or self._fill():
            try:
                sent = os.write(self._writes, self._unsent)
            except BlockingIOError:
                self._wait_to_write(True)
                return
            except OSError as error:
                raise _ConnectionClosedError(f"standard output failed: {error.strerror}") from None
            self._rate_limit.sent(sent)
            self._wrote_s = now_s
            self._unsent = self._unsent[sent:]
        self._wait_to_write(False)

    def _fill(self) -> bool:
        """Take the next frames to be written, as many as may be; returns whether there are any."""
        self._wrote_s = self._before_s  # nothing waits: the connection is not stuck
        payloads: list[bytes] = []
        if self._ping is not None:
            (number, received_ns), self._ping = self._ping, None
            dropped, every = self._queue.dropped, self._queue.every
            payloads.append(encode(RelayPong(number, received_ns, time.time_ns(), dropped, every)))
        if (room_bytes := self._rate_limit.room_bytes()) > 0:
            payloads += self._queue.take(min(room_bytes, _WRITE_BYTES))
        self._unsent = b"".join(map(frame, payloads))
        return bool(payloads)

    def _wait_to_write(self, wanted: bool) -> None:
        if wanted is not self._waits_to_write:
            self._waits_to_write = wanted
            if wanted:
                self._selector.register(self._writes, EVENT_WRITE)
            else:
                self._selector.unregister(self._writes)


def _encode_jobs(jobs: RelayJobs) -> bytes:
    """The list, without the oldest jobs where it would be longer than a frame may be."""
    while True:
        try:
            return encode(jobs)
        except WireError:
            jobs = RelayJobs(jobs.jobs[:-1], jobs.note or "this host has more jobs than can be listed")
