"""The far end of a line: what a hub of this host says goes out, what a dashboard elsewhere wants comes in.

What comes in is checked as if the near end had checked nothing. What goes out is bounded, see outbox.py and
pacing.py. Nothing waits but the selector.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from selectors import EVENT_READ, EVENT_WRITE, PollSelector
from typing import TYPE_CHECKING, Protocol

from overlaptop.relay.rate_limit import Pace
from overlaptop.relay.send_queue import SendQueue
from overlaptop.wire import commands, endpoints
from overlaptop.wire.codec import FrameReader, WireError, decode, encode, frame
from overlaptop.wire.endpoints import EndpointError, JobRecord
from overlaptop.wire.knobs import Search
from overlaptop.wire.messages import LEASE_S, PROTOCOL_VERSION, Command, Join, Message, Notice
from overlaptop.wire.relaying import (
    MAGIC,
    MAX_JOBS,
    RelayHello,
    RelayJobs,
    RelayLaunch,
    RelayLaunchStatus,
    RelayLimit,
    RelayLink,
    RelayPing,
    RelayPong,
    RelaySelect,
    RemoteJob,
)

if TYPE_CHECKING:
    from overlaptop.wire.links import LocalLink

SILENCE_S = 15.0
"""Without a word from the near end for so long, the relay ends: the line is frozen."""
STUCK_S = 30.0
"""So it does where nothing could be written for so long."""
_TICK_S = 0.25
_FLUSH_S = 0.05
"""What comes within so long is written together."""
_LOOK_S = 0.5
_REPEAT_JOBS_S = 2.0
_OUTPUT_S = 2.0
"""Between two statuses of an order of which only the output differs."""
_READ_BYTES = 1 << 16
_WRITE_BYTES = 1 << 16
_POLL_BYTES = 1 << 18
_MAX_BAD_FRAMES = 16
_NO_ORDERS = "this relay starts nothing"
_READONLY = "this relay is read-only"


class Orders(Protocol):
    """Starts bundled workloads of this host, one at a time."""

    def take(self, order: RelayLaunch) -> None:
        """Start what was ordered, in place of the one before, or end that; returns at once."""

    def status(self, jobs: Sequence[JobRecord]) -> RelayLaunchStatus | None:
        """How the newest order goes; None: there has been none. ``jobs``: those that run on this host."""


class _LineOverError(Exception):
    """The relay has nobody to speak to any more, and this is why."""


class Relay:
    """One line's far end; ``run`` it once. It reads and writes two descriptors, and closes neither."""

    def __init__(
        self,
        reads: int,
        writes: int,
        *,
        version: str,
        gpus: int | None = None,
        readonly: bool = False,
        orders: Orders | None = None,
        wanted_elsewhere: Callable[[], bool] = lambda: False,
        silence_s: float = SILENCE_S,
        list_jobs: Callable[[], Sequence[JobRecord]] = endpoints.list_jobs,
    ) -> None:
        """``gpus``: how many this host has, None where it is not known. ``orders`` None: starts nothing.

        ``wanted_elsewhere``: whether the near end has come back over another line, for what was started.
        """
        self._reads, self._writes = reads, writes
        self._readonly = readonly
        self._orders = orders
        self._wanted_elsewhere = wanted_elsewhere
        self._silence_s = silence_s
        self._list_jobs = list_jobs
        self._host = socket.gethostname()
        self._stopped = False
        now_s = time.monotonic()
        self._pace = Pace(time.monotonic)
        self._outbox = SendQueue(time.monotonic)
        hello = RelayHello(
            PROTOCOL_VERSION, version, self._host, os.getpid(), gpus, time.time_ns(), readonly
        )
        self._unsent = MAGIC + frame(encode(hello))
        self._uncounted_bytes = len(MAGIC)
        """Of what is unsent, that of which the near end does not say that it has arrived."""
        self._wrote_s = self._heard_s = self._before_s = now_s
        self._stood_still_s = float("-inf")
        """When this process last found that it had been stopped: what it hears then may be old."""
        self._flush_due_s = self._tick_due_s = self._look_due_s = self._repeat_due_s = now_s
        self._reader = FrameReader()
        self._bad_frames = 0
        self._ping: tuple[int, int] | None = None
        """Number of the newest one that was not answered, and when it came."""
        self._records: tuple[JobRecord, ...] = ()
        self._jobs = RelayJobs((), "")
        self._record: JobRecord | None = None
        """Of the job that was selected, once there is one."""
        self._selected = ""
        self._link: LocalLink | None = None
        self._link_said: RelayLink | None = None
        self._detail_ranks: tuple[int, ...] = ()
        self._order_said: RelayLaunchStatus | None = None
        self._output_due_s = now_s
        self._selector = PollSelector()
        self._waits_to_write = False

    @property
    def queued_bytes(self) -> int:
        """What waits to be written."""
        return self._outbox.queued_bytes + len(self._unsent)

    @property
    def dropped(self) -> int:
        """Frames that were left out, see SendQueue.dropped."""
        return self._outbox.dropped

    def stop(self) -> None:
        """Have ``run`` return soon. To be called from a signal's handler, too."""
        self._stopped = True

    def run(self) -> str:
        """Relay until the line ends; returns why it did, in words."""
        for descriptor in (self._reads, self._writes):
            os.set_blocking(descriptor, False)
        self._selector.register(self._reads, EVENT_READ)
        try:
            self._flush(time.monotonic())
            while not self._stopped:
                self._round()
            return "it was told to end"
        except _LineOverError as end:
            return str(end)
        finally:
            self._hang_up()
            self._selector.close()

    def _round(self) -> None:
        ready = {key.fd for key, _ in self._selector.select(self._wait_s())}
        now_s = time.monotonic()
        if now_s - self._before_s > _TICK_S + 2.0:
            # This process was stopped: the silence was its own.
            self._stood_still_s = now_s
            self._heard_s += now_s - self._before_s
            self._wrote_s += now_s - self._before_s
        self._before_s = now_s
        if self._reads in ready:
            self._read()
        if self._writes in ready:
            self._flush_due_s = now_s
        if now_s >= self._tick_due_s:
            self._tick_due_s = now_s + _TICK_S
            self._tick(now_s)
        self._take_from_hub()
        self._flush(now_s)

    def _wait_s(self) -> float:
        now_s = time.monotonic()
        wait_s = self._tick_due_s - now_s
        # Asked in any case: it is what quiets ZeroMQ's descriptor.
        if self._link is not None and self._link.has_input and not self._outbox.is_full:
            return 0.0
        if (self._outbox or self._unsent or self._ping is not None) and not self._waits_to_write:
            wait_s = min(wait_s, self._flush_due_s - now_s)
        return max(wait_s, 0.0)

    def _tick(self, now_s: float) -> None:
        if now_s - self._heard_s > self._silence_s:
            raise _LineOverError(f"nothing came from the near end for {self._silence_s:.0f} s")
        if self._unsent and now_s - self._wrote_s > STUCK_S:
            raise _LineOverError(f"the near end has read nothing for {STUCK_S:.0f} s")
        if now_s >= self._look_due_s:
            self._look_due_s = now_s + _LOOK_S
            self._look(now_s)
        if self._link is not None:
            # Nobody looks at a timeline while nobody speaks.
            silent = now_s - self._heard_s > LEASE_S
            self._link.watch(() if silent else self._detail_ranks)
        self._see_link()
        self._see_order(now_s)
        self._outbox.set_line(self._pace.bytes_per_s)
        self._outbox.tick()

    # From the near end

    def _read(self) -> None:
        try:
            data = os.read(self._reads, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise _LineOverError(f"standard input failed: {error.strerror}") from None
        if not data:
            raise _LineOverError("the near end hung up")
        received_ns = time.time_ns()
        try:
            payloads = self._reader.feed(data)
        except WireError as error:
            raise _LineOverError(f"what came from the near end is no frame: {error}") from None
        for payload in payloads:
            try:
                message = decode(payload)
            except WireError as error:
                self._bad_frames += 1
                if self._bad_frames > _MAX_BAD_FRAMES:
                    raise _LineOverError(f"too much came that is no message: {error}") from None
                self._refuse(str(error))
                continue
            self._heard_s = time.monotonic()
            self._obey(message, received_ns)

    def _obey(self, message: Message, received_ns: int) -> None:
        match message:
            case RelayPing():
                self._ping = (message.number, received_ns)
                self._pace.arrived(message.received_bytes)
            case RelaySelect():
                self._select(message.job)
            case RelayLimit():
                self._pace.limit(message.bytes_per_s)
                self._outbox.limit(message.hz)
            case Join(protocol=theirs):
                if theirs == PROTOCOL_VERSION:
                    self._detail_ranks = message.detail_ranks
                    if self._link is not None:
                        self._link.watch(self._detail_ranks)
            case Command() | Search():
                self._pass_on(message)
            case RelayLaunch():
                self._order(message)
            case _:
                self._refuse(f"a {type(message).__name__} is not for the far end")

    def _pass_on(self, message: Command | Search) -> None:
        what = commands.in_words(message) if isinstance(message, Command) else "a search"
        if self._readonly:
            self._refuse(f"{what}: {_READONLY}")
        elif time.monotonic() - self._stood_still_s < 1.0:
            self._refuse(f"{what} may have waited for long: not passed on")
        elif self._link is None or not self._link.alive:
            self._refuse(f"{what}: there is no job")
        elif not (self._link.send(message) if isinstance(message, Command) else self._link.hold(message)):
            self._refuse(f"{what}: the job's hub has said nothing yet")

    def _order(self, order: RelayLaunch) -> None:
        why = _READONLY if self._readonly else _NO_ORDERS if self._orders is None else ""
        if self._orders is None or why:
            self._put_order_status(RelayLaunchStatus(order.number, "over", True, why, "", ()))
        else:
            self._orders.take(order)

    def _refuse(self, why: str) -> None:
        if not self._outbox.is_full:
            text = f"relay on {self._host}: {why}"
            self._outbox.put(encode(Notice(0, time.time_ns(), "warning", text)))

    # Jobs

    def _look(self, now_s: float) -> None:
        note = ""
        try:
            self._records = tuple(self._list_jobs())
        except (EndpointError, OSError) as error:
            note = str(error)
        jobs = RelayJobs(tuple(map(RemoteJob.of, self._records[:MAX_JOBS])), note)
        if jobs != self._jobs or now_s >= self._repeat_due_s:
            self._jobs, self._repeat_due_s = jobs, now_s + _REPEAT_JOBS_S
            self._outbox.put_newest(RelayJobs, _encode_jobs(jobs))
        if self._record is None and self._selected:
            self._join()
        for record in self._records:
            if self._record is not None and record.hub_pid == self._record.hub_pid:
                self._record = record  # it may know of more ranks by now

    def _select(self, job: str) -> None:
        self._hang_up()
        self._outbox.begin()
        self._selected, self._link_said = job, None
        if job:
            with suppress(EndpointError, OSError):
                # As of now: the near end may know of a hub that took this one's place since the last look.
                self._records = tuple(self._list_jobs())
            self._join()
            self._see_link()

    def _join(self) -> None:
        self._record = next((record for record in self._records if record.job == self._selected), None)
        if self._record is None:
            return
        self._say_link(RelayLink(self._selected, alive=True))
        try:
            from overlaptop.wire.links import LocalLink  # 40 ms, and only where there is a job

            self._link = LocalLink(self._record)
        except (EndpointError, OSError, ImportError) as error:
            self._refuse(str(error))
            return
        self._link.watch(self._detail_ranks)
        self._selector.register(self._link.descriptor, EVENT_READ)

    def _hang_up(self) -> None:
        if self._link is not None:
            self._selector.unregister(self._link.descriptor)
            self._link.close()
        self._link = self._record = None

    def _see_link(self) -> None:
        if not self._selected:
            return
        alive = self._link is not None and self._link.alive
        gone = not alive and (self._record is None or self._record.gone)
        self._say_link(RelayLink(self._selected, alive, gone))

    def _say_link(self, link: RelayLink) -> None:
        if link != self._link_said:
            self._link_said = link
            self._outbox.put(encode(link))

    def _take_from_hub(self) -> None:
        if self._link is not None:
            # Polled for nothing where there is no room: the hub forgets whom it does not hear.
            for payload in self._link.poll_raw(0 if self._outbox.is_full else _POLL_BYTES):
                self._outbox.put(payload)

    # Orders

    def _see_order(self, now_s: float) -> None:
        if self._wanted_elsewhere():
            raise _LineOverError("its near end has come back over another line")
        status = self._orders.status(self._records) if self._orders is not None else None
        said = self._order_said
        if status is None or status == said:
            return
        only_output = said is not None and replace(status, output=said.output) == said
        if not only_output or now_s >= self._output_due_s:
            self._put_order_status(status)
            self._output_due_s = now_s + _OUTPUT_S

    def _put_order_status(self, status: RelayLaunchStatus) -> None:
        self._order_said = status
        self._outbox.put_newest(RelayLaunchStatus, encode(status))

    # To the near end

    def _flush(self, now_s: float) -> None:
        if now_s < self._flush_due_s and self._ping is None:
            return
        self._flush_due_s = now_s + _FLUSH_S
        while self._unsent or self._fill():
            try:
                sent = os.write(self._writes, self._unsent)
            except BlockingIOError:
                self._wait_to_write(True)
                return
            except OSError as error:
                raise _LineOverError(f"standard output failed: {error.strerror}") from None
            self._pace.wrote(max(0, sent - self._uncounted_bytes))
            self._uncounted_bytes = max(0, self._uncounted_bytes - sent)
            self._wrote_s = now_s
            self._unsent = self._unsent[sent:]
        self._wait_to_write(False)

    def _fill(self) -> bool:
        """Put the next frames in line to be written, as many as may be; returns whether there are any."""
        self._wrote_s = self._before_s  # nothing waits: the line is not stuck
        payloads: list[bytes] = []
        if self._ping is not None:
            (number, received_ns), self._ping = self._ping, None
            dropped, every = self._outbox.dropped, self._outbox.every
            payloads.append(encode(RelayPong(number, received_ns, time.time_ns(), dropped, every)))
        if (room_bytes := self._pace.room_bytes()) > 0:
            payloads += self._outbox.take(min(room_bytes, _WRITE_BYTES))
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
