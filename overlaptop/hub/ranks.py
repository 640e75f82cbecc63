"""The ranks' side of the hub: a listening unix socket and a connection for each rank.

No call here waits: a rank that stops reading, or sends half a frame, does not delay others.
"""

import os
import select
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from selectors import EVENT_READ, EVENT_WRITE, BaseSelector
from typing import Self

from msgspec.structs import replace

from overlaptop.hub.executions import CommandExecutions
from overlaptop.hub.history import FromRank
from overlaptop.jobs.processes import exit_code
from overlaptop.wire.bounds import MAX_RANKS
from overlaptop.wire.codec import FrameReader, WireError, decode, encode, frame
from overlaptop.wire.commands import CommandReport
from overlaptop.wire.joining import TurnedAway, Watch
from overlaptop.wire.messages import NOT_SHOWN, HubStatus, Notice, RankEnd, RankInfo

_RECEIVE_BYTES = 1 << 16
_MAX_BAD_FRAMES = 8
_SILENT_AFTER_S = 4.0
"""An agent sends something each second. A connection that is silent for longer is reported."""
_INTRODUCTION_S = 10.0
_REFUSED_FOR_S = 3.0
"""Time before a refusal is reported: a process may have the wrong rank until it has a process group."""
_CREDENTIALS = (socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
_MAX_UNSENT_BYTES = 1 << 16  # To a rank that does not read. Its connection is closed then.


class RankConnection:
    """One connection. Its first frame is the rank's RankInfo."""

    def __init__(self, sock: socket.socket, opened_s: float) -> None:
        self.sock = sock
        self.opened_s = self.received_s = opened_s
        self.reader = FrameReader()
        self.info: RankInfo | None = None
        self.bad_frames = 0
        self.watch: Watch | None = None  # The last one sent
        self.unsent = bytearray()
        self.pidfd: int | None = None
        """Of its process. It cannot be opened any more once the parent has waited."""
        self.peer_pid: int = struct.unpack_from("i", sock.getsockopt(*_CREDENTIALS))[0]

    def close(self) -> None:
        self.sock.close()
        if self.pidfd is not None:
            os.close(self.pidfd)

    @property
    def is_gone(self) -> bool:
        """Whether its process has ended or disconnected, even if data is left to read."""
        poll = select.poll()
        poll.register(self.sock, select.POLLRDHUP)
        if self.pidfd is not None:
            poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def same_process(self, info: RankInfo, other: Self) -> bool:
        """Whether ``other``, which sent ``info``, is of the same process. Pids repeat among containers."""
        return self.info is not None and self.info.pid == info.pid and self.peer_pid == other.peer_pid


class RankServer:
    """All ranks of the job on this node. Their reports go to ``commands``, all other messages with their
    bytes to ``deliver``.
    """

    def __init__(
        self,
        job: str,
        listener: socket.socket,
        selector: BaseSelector,
        commands: CommandExecutions,
        deliver: Callable[[FromRank, bytes], None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bad_frames = 0
        self._job = job
        self._listener = listener
        self._selector = selector
        self._commands = commands
        self._on_message = deliver
        self._clock_s = clock_s
        self.seen: set[int] = set()  # Ranks that were ever connected
        self._connections: set[RankConnection] = set()
        self._by_rank: dict[int, RankConnection] = {}
        self._refused: dict[tuple[int, int], float] = {}
        """Time of the first refusal, by rank and pid of the process. inf once it is reported."""
        self.exiting: dict[int, int] = {}  # Pidfds of processes whose connection has ended, by pid
        self._watched: frozenset[int] = frozenset()
        self._bursts = 0
        selector.register(listener, EVENT_READ, self._on_listener)

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(sorted(self._by_rank))

    @property
    def pids(self) -> tuple[int, ...]:
        infos = (self._by_rank[rank].info for rank in self.numbers)
        return tuple(info.pid for info in infos if info is not None)

    @property
    def ended(self) -> bool:
        return bool(self.seen) and not self._by_rank

    @property
    def silent(self) -> tuple[int, ...]:
        """Connected ranks that have sent nothing for a while."""
        since_s = self._clock_s() - _SILENT_AFTER_S
        return tuple(rank for rank in self.numbers if self._by_rank[rank].received_s < since_s)

    def status(self) -> HubStatus:
        """Return the hub's status, with ``dropped`` counting only bad frames from ranks."""
        return HubStatus(time.time_ns(), len(self._by_rank), self.bad_frames, self.ended, self.silent)

    def watch(self, ranks: frozenset[int], bursts: int = 0) -> None:
        """Request details of these ranks, and a burst whenever ``bursts`` grows."""
        changed = self._watched ^ ranks | (ranks if bursts != self._bursts else frozenset())
        self._watched, self._bursts = ranks, bursts
        for rank in changed & self._by_rank.keys():
            self._send_watch(rank, self._by_rank[rank])

    def command(self, payload: bytes) -> None:
        for connection in list(self._by_rank.values()):
            self._send(connection, payload)

    def tick(self) -> None:
        """Close connections without a RankInfo, and accept again after a pause. Called once a second."""
        now_s = self._clock_s()
        for connection in list(self._connections):
            if connection.info is None and now_s - connection.opened_s > _INTRODUCTION_S:
                self._close(connection)
        if self._listener not in self._selector.get_map():
            self._selector.register(self._listener, EVENT_READ, self._on_listener)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self._listener.close()

    def _on_listener(self, _events: int) -> None:
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:
            # No descriptors or memory left. The listener stays readable, so an immediate retry would only
            # waste the job's CPU time: accept again at the next tick.
            self._selector.unregister(self._listener)
            return
        sock.setblocking(False)
        connection = RankConnection(sock, self._clock_s())
        self._connections.add(connection)
        self._listen(connection, EVENT_READ)

    def _listen(self, connection: RankConnection, events: int) -> None:
        def on_event(ready: int) -> None:
            # An earlier event of the same round may have closed it.
            if ready & EVENT_WRITE and connection in self._connections:
                self._send(connection)
            if ready & EVENT_READ and connection in self._connections:
                self._receive(connection)

        if connection.sock in self._selector.get_map():
            self._selector.modify(connection.sock, events, on_event)
        else:
            self._selector.register(connection.sock, events, on_event)

    def _receive(self, connection: RankConnection) -> None:
        try:
            data = connection.sock.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(connection)
            return
        connection.received_s = self._clock_s()
        try:
            payloads = connection.reader.feed(data)
        except WireError:
            self.bad_frames += 1
            self._close(connection)
            return
        for payload in payloads:
            self._take(connection, payload)
            if connection not in self._connections:
                return

    def _take(self, connection: RankConnection, payload: bytes) -> None:
        try:
            message = decode(payload)
            if not isinstance(message, FromRank):
                raise WireError(f"a rank does not send {type(message).__name__}")
            if connection.info is None:
                if not self._introduce(connection, message):
                    return
            elif message.rank != connection.info.rank:
                raise WireError(f"rank {connection.info.rank} sent a message of rank {message.rank}")
            elif message == connection.info:
                return  # a heartbeat
            elif isinstance(message, RankInfo):
                connection.info = message
        except WireError:
            self.bad_frames += 1
            connection.bad_frames += 1
            if connection.info is None or connection.bad_frames > _MAX_BAD_FRAMES:
                self._close(connection)
            return
        if isinstance(message, RankEnd) and connection.info is not None:
            self._end(connection, connection.info, message, payload)
        else:
            self._deliver(message, payload)

    def _deliver(self, message: FromRank, payload: bytes) -> None:
        self._commands.receive(message, self._clock_s())
        # Dashboards receive the outcome of all ranks' reports instead of the reports.
        if not isinstance(message, CommandReport):
            self._on_message(message, payload)

    def _introduce(self, connection: RankConnection, message: FromRank) -> bool:
        """Accept the connection as the rank's. False if it is refused: another process is that rank."""
        if not isinstance(message, RankInfo):
            raise WireError(f"{type(message).__name__} came before RankInfo")
        if message.job != self._job:
            raise WireError(f"this is the hub of job {self._job}")
        if message.rank not in self.seen and len(self.seen) >= MAX_RANKS:
            raise WireError("too many ranks")
        if (older := self._by_rank.get(message.rank)) is not None:
            if not (older.same_process(message, connection) or older.is_gone):
                self._refuse(connection, message, older)
                return False
            self._forget(older)
        connection.info = message
        if connection.peer_pid:  # otherwise the process is in another container
            with suppress(OSError, ValueError):
                connection.pidfd = os.pidfd_open(message.pid)
        self._by_rank[message.rank] = connection
        self.seen.add(message.rank)
        self._send_watch(message.rank, connection)
        return True

    def _refuse(self, connection: RankConnection, info: RankInfo, older: RankConnection) -> None:
        """Close the connection of a second process with this rank. It retries until the first has gone."""
        assert older.info is not None
        first = f"rank {info.rank} is already reported by pid {older.info.pid} ({older.info.script})"
        now_s = self._clock_s()
        since_s = self._refused.setdefault((info.rank, info.pid), now_s)
        if now_s - since_s >= _REFUSED_FOR_S:
            with suppress(OSError):
                connection.sock.send(frame(encode(TurnedAway(first))))
            self._refused[info.rank, info.pid] = float("inf")
            words = (
                f"{first}; pid {info.pid} ({info.script}) {NOT_SHOWN}: it says it is the same rank of the "
                "same job. Give unrelated jobs a MASTER_PORT of their own, and each process its RANK"
            )
            notice = Notice(info.rank, time.time_ns(), "warning", words)
            self._deliver(notice, encode(notice))
        while len(self._refused) > MAX_RANKS:
            del self._refused[next(iter(self._refused))]
        self._forget(connection)

    def _send_watch(self, rank: int, connection: RankConnection) -> None:
        watch = Watch(rank in self._watched, self._bursts)
        if watch != connection.watch:
            connection.watch = watch
            self._send(connection, encode(watch))

    def _send(self, connection: RankConnection, payload: bytes | None = None) -> None:
        """Send a payload after those left, or what the socket takes of it now."""
        unsent = connection.unsent
        if payload is not None:
            unsent += frame(payload)
        try:
            while unsent:
                del unsent[: connection.sock.send(unsent)]
        except BlockingIOError:
            if len(unsent) > _MAX_UNSENT_BYTES:
                self._close(connection)
                return
        except OSError:
            return  # `_receive` sees a broken connection as ended, and closes it
        self._listen(connection, EVENT_READ | EVENT_WRITE if unsent else EVENT_READ)

    def _close(self, connection: RankConnection) -> None:
        """Close a connection that broke or misbehaved, and send a RankEnd in the rank's name."""
        if (info := connection.info) is None:
            self._forget(connection)
        else:
            end = RankEnd(info.rank, time.time_ns(), clean=False)
            self._end(connection, info, end, encode(end))

    def _end(self, connection: RankConnection, info: RankInfo, end: RankEnd, payload: bytes) -> None:
        pidfd, connection.pidfd = connection.pidfd, None
        self._forget(connection)
        self._deliver(end, payload)
        self._await_exit(end, info.pid, pidfd)

    def _await_exit(self, end: RankEnd, pid: int, descriptor: int | None) -> None:
        """Send `end` again with the exit code once the process is over: anybody can read a zombie's."""
        if descriptor is None:
            return
        if pid in self.exiting:
            os.close(descriptor)
            return
        self.exiting[pid] = descriptor

        def on_exit(_events: int) -> None:
            code = exit_code(pid)
            self._selector.unregister(descriptor)
            os.close(self.exiting.pop(pid))
            if code is not None and end.rank not in self._by_rank:
                told = replace(end, exit_code=code)
                self._deliver(told, encode(told))

        self._selector.register(descriptor, EVENT_READ, on_exit)

    def _forget(self, connection: RankConnection) -> None:
        self._connections.discard(connection)
        self._selector.unregister(connection.sock)
        connection.close()
        if connection.info and self._by_rank.get(connection.info.rank) is connection:
            del self._by_rank[connection.info.rank]
