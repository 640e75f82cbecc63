"""The rank's connection to its node's hub: a unix socket of the standard library, never blocking.

libzmq stays out of the training process: its I/O thread calls abort() on ordinary faults such as running
out of descriptors. Everything here runs on the agent's thread. Messages that do not fit are dropped and
counted.
"""

import contextlib
import errno
import os
import socket
from collections import deque
from collections.abc import Sequence
from time import monotonic, sleep

from overlaptop.agent.clock import now_ns
from overlaptop.agent.isolation.detached_process import start_detached
from overlaptop.agent.isolation.fault_barrier import warn
from overlaptop.agent.placement import RankPlacement, working_directory
from overlaptop.jobs.folder import JobFolderError, check_writable
from overlaptop.jobs.hub_command import hub_command
from overlaptop.jobs.sockets import check_listener, ranks_socket, stream_socket
from overlaptop.wire import codec
from overlaptop.wire.commands import Command
from overlaptop.wire.joining import Gathered, TurnedAway, Watch
from overlaptop.wire.messages import Notice, RankInfo
from overlaptop.wire.schema import Message

MAX_QUEUED_BYTES = 1 << 20
FLUSH_POLL_S = 0.005
RECEIVE_BYTES = 1 << 16
HEARTBEAT_S = 1.0
"""After this time without a message the rank sends its RankInfo again: the hub takes a silent rank for a
stopped one."""
FIRST_RETRY_S = 0.2
FIRST_HUB_RETRY_S = 1.0
LAST_RETRY_S = 30.0
MAX_COMMANDS = 8


class Sender:
    """Queues messages for the hub, keeps the connection, and starts a hub if there is none."""

    def __init__(self, place: RankPlacement, script: str, recording: Sequence[str] = ()) -> None:
        """``recording``: the hub's options for its recording of the job; empty: there is none."""
        self.place = place
        self.dropped = 0  # Messages dropped since the start: they did not fit, or could not be encoded
        self.wanted = Watch(detail=False)  # Requests of the dashboards: this rank's timeline, a burst
        self.commands: deque[Command] = deque(maxlen=MAX_COMMANDS)
        self.gathered: Gathered | None = None  # The hub's last answer to Gather
        self.connections = 0
        self._states: dict[type, tuple[Message, bytes]] = {}
        """By message type: the newest state and its frame; the frame is empty if encoding failed."""
        self._refused: set[type] = set()
        self._script, self._recording = script, recording
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._partial = b""
        self._wrote_s = 0.0
        self._info: RankInfo | None = None
        self._info_due = False
        self._socket: socket.socket | None = None
        self._identity = (0, 0)
        """Device and inode of the socket, to detect that the job has reused its descriptor."""
        self._reader = codec.FrameReader()
        self._retry_s = FIRST_RETRY_S
        self._retry_at = 0.0
        self._hub_retry_s = FIRST_HUB_RETRY_S
        self._hub_retry_at = 0.0
        self._warned = False

    def introduce(self, info: RankInfo) -> None:
        """Set the RankInfo. It is sent first on each connection, and again when it changes."""
        if info != self._info:
            self._info, self._info_due = info, True

    def put(self, message: Message) -> None:
        """Queue a message; a full queue drops its oldest. One that cannot be encoded (no length, or
        months) is dropped and counted.
        """
        try:
            self._enqueue(codec.frame(codec.encode(message)))
        except codec.WireError:
            self.dropped += 1

    def put_state(self, message: Message) -> None:
        """Queue a message if it differs from the last of its type, and again on each new connection, which
        may lead to a new hub. If it cannot be encoded, a notice says so, once for its type.
        """
        kind = type(message)
        last, _ = self._states.get(kind, (None, b""))
        if last is message or last == message:
            return
        try:
            frame = codec.frame(codec.encode(message))
        except codec.WireError as fault:  # a machine may exceed a message's limits
            frame = b""
            if kind not in self._refused:
                self._refused.add(kind)
                text = f"no {kind.__name__}: {fault}"[:400]
                warn(text)
                self.put(Notice(self.place.rank, now_ns(), "warning", text))
        self._states[kind] = message, frame
        if frame:
            self._enqueue(frame)

    def _enqueue(self, frame: bytes) -> None:
        self._queue.append(frame)
        self._queued_bytes += len(frame)
        while self._queued_bytes > MAX_QUEUED_BYTES:
            self._queued_bytes -= len(self._queue.popleft())
            self.dropped += 1

    def pump(self) -> None:
        """Connect, write and read without blocking. Call it several times a second."""
        if self._info is None:
            return
        if self._socket is None and monotonic() >= self._retry_at:
            self._connect()
        if self._socket is not None:
            if monotonic() - self._wrote_s > HEARTBEAT_S:
                self._info_due = True
            try:
                self._write()
                self._read()
            except (OSError, codec.WireError):
                self.disconnect()

    def flush(self, longest_s: float) -> None:
        """Pump until everything is written, the connection is lost, or ``longest_s`` has passed."""
        until_s = monotonic() + longest_s
        self.pump()
        while self._socket is not None and not self.drained and monotonic() < until_s:
            sleep(FLUSH_POLL_S)  # wait for the hub to read
            self.pump()

    @property
    def drained(self) -> bool:
        return not self._queue and not self._partial and not self._info_due

    def disconnect(self) -> None:
        """Close the connection; a half-written frame is lost."""
        if self._socket is not None:
            try:
                self._check_still_ours(self._socket)
                self._socket.close()
            except ConnectionResetError:
                self._socket.detach()  # the job closed our descriptor and may have reused its number
        self._socket = None
        self._partial = b""
        self.wanted = Watch(detail=False, bursts=self.wanted.bursts)

    def _connect(self) -> None:
        self._retry_at = monotonic() + self._retry_s
        self._retry_s = min(LAST_RETRY_S, self._retry_s * 1.5)
        try:
            connection = self._open_connection()
            if connection is None:
                return
        except JobFolderError as fault:  # lasts until somebody repairs the socket directory
            self._retry_at = monotonic() + LAST_RETRY_S
            self._warn_once(str(fault))
            return
        except OSError as fault:  # out of descriptors, a stopped hub's backlog is full, ...
            if fault.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS):
                self._warn_once(os.strerror(fault.errno))
            return
        self._socket = connection
        stat = os.fstat(connection.fileno())
        self._identity = (stat.st_dev, stat.st_ino)
        self._reader = codec.FrameReader()
        self._info_due = True
        self.connections += 1
        for _, frame in self._states.values():
            if frame and frame not in self._queue:
                self._enqueue(frame)
        self._hub_retry_s = FIRST_HUB_RETRY_S

    def _open_connection(self) -> socket.socket | None:
        path = ranks_socket(self.place.job)
        connection = stream_socket()
        try:
            connection.setblocking(False)
            connection.connect(str(path))
            check_listener(connection.fileno())
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            self._start_hub()
            return None
        except BaseException:
            connection.close()
            raise
        return connection

    def _warn_once(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            warn(f"no dashboard can see this rank: {why}")

    def _start_hub(self) -> None:
        """Start a hub, less often if hubs keep ending. If two start, the lock keeps one."""
        if not self.place.starts_hub or monotonic() < self._hub_retry_at:
            return
        self._hub_retry_at = monotonic() + self._hub_retry_s
        self._hub_retry_s = min(LAST_RETRY_S, self._hub_retry_s * 2)
        check_writable(self.place.job)  # nobody would see the error of a hub that ends at once
        argv, environment = hub_command(
            self.place.job, self._script, self.place.world_size, os.getpid(), str(working_directory())
        )
        try:
            start_detached([*argv, *self._recording], environment)
        except OSError as fault:
            raise JobFolderError(f"no hub can be started: {fault.strerror}") from None
        # A new hub is ready within a second: retry often until then.
        self._retry_s = FIRST_RETRY_S

    def _check_still_ours(self, connection: socket.socket) -> None:
        """Raise ConnectionResetError if the descriptor is no longer our socket: a job may close all
        descriptors from 3 up.
        """
        with contextlib.suppress(OSError):
            stat = os.fstat(connection.fileno())
            if (stat.st_dev, stat.st_ino) == self._identity:
                return
        raise ConnectionResetError

    def _write(self) -> None:
        assert self._socket is not None
        if self._info_due and self._info is not None and not self._partial:
            self._partial = codec.frame(codec.encode(self._info))
            self._info_due = False
        while self._partial or self._queue:
            if not self._partial:
                self._partial = self._queue.popleft()
                self._queued_bytes -= len(self._partial)
            self._check_still_ours(self._socket)
            try:
                sent = self._socket.send(self._partial, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            self._wrote_s = monotonic()
            self._partial = self._partial[sent:]

    def _read(self) -> None:
        assert self._socket is not None
        with contextlib.suppress(BlockingIOError):
            while True:
                self._check_still_ours(self._socket)
                data = self._socket.recv(RECEIVE_BYTES)
                if not data:
                    raise ConnectionResetError
                for payload in self._reader.feed(data):
                    message = codec.decode(payload)
                    if isinstance(message, Watch):  # the first one shows that the hub accepted us
                        self.wanted = message
                        self._retry_s = FIRST_RETRY_S
                    elif isinstance(message, TurnedAway):
                        self._warn_once(message.reason)
                    elif isinstance(message, Gathered):
                        self.gathered = message
                    elif isinstance(message, Command):
                        self.commands.append(message)
