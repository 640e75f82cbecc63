"""A dashboard's connection to a hub: a ZeroMQ DEALER on a unix socket, the hub's or a relay's tunnel's."""

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import zmq

from overlaptop.jobs.hub_reader import HubReader
from overlaptop.jobs.record import JobRecord
from overlaptop.jobs.sockets import connected
from overlaptop.wire.codec import MAX_BATCH_BYTES, FrameReader, WireError
from overlaptop.wire.joining import GatheredHub
from overlaptop.wire.schema import Message

_POLL_BUDGET_S = 0.05  # A long history is read in several polls, so that the screen can draw in between
_READERS_S = 0.1
"""Interval at which all readers send due frames. One with new messages does so at once."""
_SEND_HIGH_WATER = 256
_LOOK_FOR_HUB_S = 0.5


class HubSocket:
    """The connection to the hub that listens on a path. A Carrier for that hub's reader, and for those of
    the hubs gathered there.
    """

    def __init__(self, path: Path, *, bind: bool = False) -> None:
        """``bind``: the hub's end of the connection comes to the path, by a tunnel."""
        self.readers: dict[bytes, HubReader] = {}
        self.hubs: dict[bytes, GatheredHub] = {}
        self._all_due_s = 0.0
        self._context = zmq.Context()
        # Grants are the limit, not RCVHWM: at its own, libzmq answers no heartbeats, so that the connection
        # ends, and aborts the process once somebody reads again (_input_stopped). Not IMMEDIATE: it loses a
        # hub's last messages if the disconnect arrives together with them.
        limits = {"SNDHWM": _SEND_HIGH_WATER, "RCVHWM": 0, "MAXMSGSIZE": MAX_BATCH_BYTES}
        self._dealer = make_socket(
            self._context, zmq.DEALER, **limits, RECONNECT_IVL=100, RECONNECT_IVL_MAX=2000
        )
        (self._dealer.bind if bind else self._dealer.connect)(f"ipc://{path}")

    @property
    def descriptor(self) -> int:
        """Readable when there may be something to receive. It only signals changes: receive regularly."""
        return int(self._dealer.getsockopt(zmq.FD))

    def receive(self) -> None:
        """Give the readers new messages, for at most about 50 ms, and send due frames."""
        began_s = time.monotonic()
        self._send_due((b"",))
        heard = {b""}
        while time.monotonic() - began_s < _POLL_BUDGET_S:
            try:
                node, *batch = parts = self._dealer.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            back_ns = time.time_ns()
            if node:
                node, batch = b"", parts
            elif len(batch) == 2:
                node = batch.pop(0)
            if (reader := self.readers.get(node)) is None:
                continue
            try:
                reader.receive(FrameReader().feed(batch[0]) if node else batch, back_ns)
            except WireError:
                reader.dropped += 1
            heard.add(node)
        self._send_due(heard)

    def put(self, node: bytes, payload: bytes) -> bool:
        parts = [b"", node, payload] if node else [payload]
        try:
            self._dealer.send_multipart(parts, zmq.NOBLOCK)
        except zmq.Again:  # not connected yet, or the hub has stopped reading
            return False
        return True

    def close(self) -> None:
        for reader in tuple(self.readers.values()):
            reader.disconnect()
        self._dealer.close(linger=0)
        self._context.term()

    def _send_due(self, heard: Iterable[bytes]) -> None:
        """Send due frames to the hub here and those just heard, and now and then to all."""
        now_s = time.monotonic()
        if now_s >= self._all_due_s:
            self._all_due_s = now_s + _READERS_S
            heard = self.readers
        for node in heard:
            if (reader := self.readers.get(node)) is not None:
                reader.send_due()


class LocalHubConnection(HubReader):
    """A connection to a hub on this machine."""

    def __init__(self, record: JobRecord) -> None:
        """Raises JobFolderError if the hub is another user's."""
        super().__init__()
        with suppress(OSError):  # ZeroMQ tries again by itself
            connected(record.dashboard_path).close()
        self._record = record
        self._alive = True
        self._look_due_s = 0.0
        self._socket = HubSocket(record.dashboard_path)
        self.connect(self._socket)

    @property
    def alive(self) -> bool:
        """As in HubConnection. Checks the process at most twice a second."""
        now_s = time.monotonic()
        if self._alive and now_s >= self._look_due_s:
            self._look_due_s = now_s + _LOOK_FOR_HUB_S
            self._alive = self._record.hub_alive
        return self._alive

    def poll(self) -> list[Message]:
        self._socket.receive()
        return super().poll()

    def close(self) -> None:
        self._socket.close()


def make_socket(
    context: "zmq.Context[zmq.Socket[bytes]]", kind: int, **options: int | bytes
) -> "zmq.Socket[bytes]":
    """Return a ZeroMQ socket with these options, and those of all connections between hubs and readers."""
    made = context.socket(kind)
    for name, value in ({"LINGER": 0, "HEARTBEAT_IVL": 2000, "HEARTBEAT_TIMEOUT": 9000} | options).items():
        made.setsockopt(getattr(zmq, name), value)
    return made
