"""Carries a connection of this process, by a relay, to a hub on another host."""

import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from selectors import EVENT_READ, BaseSelector

from overlaptop.wire.joining import RelayBytes, RelayClosed, RelayOpen
from overlaptop.wire.schema import Message

_CHUNK_BYTES = 1 << 13


class Tunnel:
    """One connection at a time. No method waits."""

    def __init__(self, send: Callable[[Message], bool], selector: BaseSelector, data: object) -> None:
        """``send``: to the relay; False if it accepts nothing now. ``selector``: watches with ``data``."""
        self.closed: RelayClosed | None = None  # Why the connection ended, until the next one carries data
        self._send = send
        self._selector, self._data = selector, data
        self._socket: socket.socket | None = None
        self.wanted = RelayOpen(0, "")
        """The wanted connection. Without a job, there is none, or it has ended."""
        self._incoming = bytearray()
        self._outgoing = b""

    def open(self, job: str, path: Path) -> None:
        """Connect the socket at this path to this job's hub, in place of any other connection. OSError."""
        self.leave()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(str(path))
        connection.setblocking(False)
        self._socket = connection
        self._selector.register(connection, EVENT_READ, self._data)
        self.wanted = RelayOpen(self.wanted.connection + 1, job)
        self._send(self.wanted)

    def pump(self) -> None:
        self._pass_in()
        while self._socket is not None:
            if not self._outgoing:
                try:
                    self._outgoing = self._socket.recv(_CHUNK_BYTES)
                except BlockingIOError:
                    return
                except OSError:
                    self._outgoing = b""
                if not self._outgoing:  # ZeroMQ has given the connection up, because it was silent for long
                    self._end(RelayClosed(self.wanted.connection, alive=True, gone=False))
                    return
            if not self._send(RelayBytes(self.wanted.connection, self._outgoing)):
                return
            self._outgoing = b""

    def receive(self, message: RelayBytes | RelayClosed) -> None:
        if message.connection != self.wanted.connection or not self.wanted.job:
            return
        if isinstance(message, RelayBytes):
            self.closed = None
            self._incoming += message.data
            self._pass_in()
        else:
            self._pass_in()
            self._end(message)

    def leave(self) -> None:
        """Close the connection without a replacement."""
        if self._socket is not None:
            self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None
        self.wanted = RelayOpen(self.wanted.connection, "")
        self._incoming.clear()
        self._outgoing = b""

    def _pass_in(self) -> None:
        with suppress(OSError):  # full or closed, which a later read shows
            while self._incoming and self._socket is not None:
                del self._incoming[: self._socket.send(self._incoming)]

    def _end(self, closed: RelayClosed) -> None:
        self.leave()
        self.closed = closed
