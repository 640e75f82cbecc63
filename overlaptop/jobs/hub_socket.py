"""A dashboard's connection to a hub: a ZeroMQ DEALER on a unix socket, here or at a relay's tunnel."""

import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import zmq
from zmq.utils.monitor import parse_monitor_message

from overlaptop.jobs.credit import Credit
from overlaptop.jobs.folder import JobFolderError
from overlaptop.jobs.record import JobRecord
from overlaptop.jobs.sockets import check_listener
from overlaptop.wire.codec import MAX_BATCH_BYTES, FrameReader, WireError, decode, encode, kind
from overlaptop.wire.commands import Command
from overlaptop.wire.joining import GatheredHub, GatheredHubs, Join, Ping, Pong, TurnedAway
from overlaptop.wire.messages import Found, Welcome
from overlaptop.wire.protocol import JOIN_S, PROTOCOL_VERSION
from overlaptop.wire.schema import Message

FIRST_PINGS = 3
"""Sent one after the other before Join, because later replies queue behind the history. The first one
measures nothing: it waits until ZeroMQ has connected."""
_PINGS_S = 3.0  # A hub that answers no ping is joined after this time
_POLL_BUDGET_S = 0.05  # A long history is read in several polls, so that the screen can draw in between
_READERS_S = 0.1
"""Interval at which all gathered readers send due frames. One with new messages does so at once."""
_MAX_UNSENT = 8
_SEND_HIGH_WATER = 256
_LOOK_FOR_HUB_S = 0.5
_DESCRIPTORS = 16
"""More than a HubSocket opens: libzmq ends the process if it has opened some and then gets no more."""


class HubConnection(Protocol):
    """Messages from one job's hub. Not thread-safe.

    Welcome is the first message, or TurnedAway if the hub has enough dashboards. Welcome comes again after
    a lost connection, or if the hub forgot a suspended dashboard. The history then comes again, too: skip
    known steps and notices.
    """

    @property
    def alive(self) -> bool:
        """False once the hub's process has ended. poll() may still return its last messages."""

    @property
    def last_received_s(self) -> float | None:
        """Seconds since the hub last sent something, as it does each second. None before the first."""

    @property
    def dropped(self) -> int:
        """Frames from the hub that were not messages."""

    def poll(self) -> list[Message]:
        """Return the messages since the last call, oldest first. Never waits."""

    def watch(self, ranks: Collection[int], bursts: int = 0) -> None:
        """Request StepDetail of these ranks only, and a burst whenever ``bursts`` grows."""

    def send(self, message: Command | Found) -> bool:
        """Send the hub a command, whose outcome comes back as CommandOutcome, or a finding.

        False if it is dropped: no hub has answered yet, or it reads nothing. WireError if not allowed.
        """

    def close(self) -> None:
        """Close the connection. Afterwards, only close may be called."""


class HubReader(ABC):
    """The reading end of a HubConnection: joins the hub, grants credit, and checks messages."""

    def __init__(self, credit: Credit, on_pong: Callable[[Pong, int], None] | None) -> None:
        """``on_pong``: called with each answer to a ping and its Unix time of arrival. None: no pings."""
        self.dropped = 0
        self.received_at_s: float | None = None
        """Monotonic time when the hub last sent something. None before that."""
        self._credit = credit
        self._on_pong = on_pong
        self._began_s = time.monotonic()
        self._pongs = 0
        self._ping_due_s = 0.0
        self._ranks: tuple[int, ...] = ()
        self._bursts = 0
        self._unsent: deque[bytes] = deque()
        self._join_due_s = 0.0

    @abstractmethod
    def poll(self) -> list[Message]: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _put(self, payload: bytes) -> None:
        """Send a frame. Raises zmq.Again."""

    @abstractmethod
    def is_trusted(self) -> bool:
        """Whether the connected hub belongs to this user."""

    def watch(self, ranks: Collection[int], bursts: int = 0) -> None:
        wanted = tuple(sorted(set(ranks)))
        if (wanted, bursts) != (self._ranks, self._bursts):
            self._ranks, self._bursts = wanted, bursts
            self._join_due_s = 0.0

    def send(self, message: Command | Found) -> bool:
        payload = encode(message)
        if self.received_at_s is None or not self.is_trusted() or len(self._unsent) >= _MAX_UNSENT:
            return False
        self._unsent.append(payload)
        self.send_due(time.monotonic())
        return True

    def take(self, parts: Sequence[bytes], back_ns: int) -> list[Message]:
        """Return the messages in a batch that arrived at this Unix time."""
        messages: list[Message] = []
        for part in parts:
            of = kind(part)
            if of is not Pong:
                if of is Welcome:
                    self._credit.restart()
                self._credit.receive(len(part))
                self.received_at_s = time.monotonic()
            try:
                message = decode(part)
            except WireError:
                self.dropped += 1
                continue
            if isinstance(message, Pong):
                self._take_pong(message, back_ns)
            else:
                messages.append(message)
        return messages

    def _take_pong(self, pong: Pong, back_ns: int) -> None:
        if self._on_pong is None:
            return
        self._pongs += 1
        if self._pongs < FIRST_PINGS:
            self._ping_due_s = 0.0
        if self._pongs > 1:
            self._on_pong(pong, back_ns)

    def send_due(self, now_s: float) -> None:
        """Send due frames until the connection is full."""
        try:
            if self._on_pong is not None and now_s >= self._ping_due_s:
                self._put(encode(Ping(time.time_ns())))
                self._ping_due_s = now_s + JOIN_S
            if self._on_pong is not None and self._pongs < FIRST_PINGS and now_s - self._began_s < _PINGS_S:
                return
            grant = self._credit.due()
            # Join comes before a command: a hub that has forgotten this dashboard ignores commands from it.
            if self._unsent or now_s >= self._join_due_s or grant is not None:
                grant = grant or self._credit.grant()
                self._put(encode(Join(PROTOCOL_VERSION, self._ranks, self._bursts, *grant)))
                self._join_due_s = now_s + JOIN_S
                self._credit.sent(grant)
            while self._unsent:
                self._put(self._unsent[0])
                self._unsent.popleft()
        except zmq.Again:
            return  # not connected yet, or the hub has stopped reading: try again at the next poll


class HubSocket(HubReader):
    """Joins the hub that listens on a path, and carries the readers of the hubs gathered there."""

    def __init__(
        self,
        path: Path,
        *,
        credit: Credit | None = None,
        on_pong: Callable[[Pong, int], None] | None = None,
    ) -> None:
        """``on_pong``: as in HubReader. Raises OSError if too few descriptors are free."""
        _check_descriptors()
        super().__init__(credit or Credit(time.monotonic), on_pong)
        self.hubs: Mapping[bytes, GatheredHub] = {}  # Other nodes' hubs that `join` can reach, by node
        self._readers: dict[bytes, GatheredReader] = {}
        self._readers_due_s = 0.0
        self._context = zmq.Context()
        # Grants are the limit, not RCVHWM: at its own, libzmq answers no heartbeats, so that the connection
        # ends, and aborts the process once somebody reads again (_input_stopped). Not IMMEDIATE: it loses a
        # hub's last messages if the disconnect arrives together with them.
        limits = {"SNDHWM": _SEND_HIGH_WATER, "RCVHWM": 0, "MAXMSGSIZE": MAX_BATCH_BYTES}
        self._dealer = make_socket(
            self._context, zmq.DEALER, **limits, RECONNECT_IVL=100, RECONNECT_IVL_MAX=2000
        )
        self._checked = True  # Whether the newest connection, if any, is to a hub of this user
        self._refusal: TurnedAway | None = None  # TurnedAway with the reason, if another user listens there
        self._connections = self._dealer.get_monitor_socket(zmq.EVENT_CONNECTED)
        self._dealer.connect(f"ipc://{path}")

    @property
    def descriptor(self) -> int:
        """Readable when there may be something to poll. It only signals changes, so also poll regularly."""
        return int(self._dealer.getsockopt(zmq.FD))

    def poll(self) -> list[Message]:
        """As in HubConnection, for at most about 50 ms. The rest waits for the next call."""
        messages: list[Message] = []
        now_s = time.monotonic()
        self._send_all_due(now_s)
        heard: list[GatheredReader] = []
        while time.monotonic() - now_s < _POLL_BUDGET_S:
            try:
                parts = self._dealer.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            back_ns = time.time_ns()
            if not self.is_trusted():
                break
            if parts[0]:
                messages += self.take(parts, back_ns)
            elif len(parts) == 3 and (reader := self._readers.get(parts[1])) is not None:
                reader.receive(parts[2], back_ns)
                heard.append(reader)
        for message in messages:
            if isinstance(message, GatheredHubs):
                self.hubs = {hub.node: hub for hub in message.hubs}
        self._send_all_due(time.monotonic(), heard)
        if self._refusal is not None and now_s >= self._join_due_s:
            self._join_due_s = now_s + JOIN_S
            messages.append(self._refusal)
        return [each for each in messages if not isinstance(each, GatheredHubs)]

    def join(self, node: bytes, credit: Credit) -> "GatheredReader":
        self._readers[node] = GatheredReader(self, node, credit)
        return self._readers[node]

    def leave(self, node: bytes) -> None:
        """Discard the reader of this node's hub, which forgets it a moment later."""
        self._readers.pop(node, None)

    def carry(self, node: bytes, payload: bytes) -> None:
        """Send a frame to another node's hub. Raises zmq.Again."""
        self._dealer.send_multipart([b"", node, payload], zmq.NOBLOCK)

    def close(self) -> None:
        if not self._dealer.closed:
            self._dealer.disable_monitor()
        self._connections.close(linger=0)  # otherwise the context would wait for it
        self._dealer.close(linger=0)
        self._context.term()

    def is_trusted(self) -> bool:
        """Whether the connected hub belongs to this user.

        ZeroMQ reconnects by itself, possibly to another socket, and reports that before it delivers data
        from there. So a check after a receive is valid for the received data.
        """
        while self._refusal is None:
            try:
                event = parse_monitor_message(self._connections.recv_multipart(zmq.NOBLOCK))
                check_listener(event["value"])
                self._checked = True
            except zmq.Again:
                break
            except OSError:
                self._checked = False  # closed since, so nothing is trusted until the next connection
            except JobFolderError as error:
                self._refusal = TurnedAway(str(error))
        return self._checked and self._refusal is None

    def _put(self, payload: bytes) -> None:
        self._dealer.send(payload, zmq.NOBLOCK)

    def _send_all_due(self, now_s: float, heard: "Sequence[GatheredReader]" = ()) -> None:
        """Send due frames here, to the hubs just heard, and now and then to all others."""
        if not self.is_trusted():
            return
        if now_s >= self._readers_due_s:
            self._readers_due_s = now_s + _READERS_S
            heard = tuple(self._readers.values())
        for each in (self, *heard):
            each.send_due(now_s)


class LocalHubConnection(HubSocket):
    """A connection to a hub on this machine."""

    def __init__(self, record: JobRecord) -> None:
        super().__init__(record.dashboard_path)
        self._record = record
        self._alive = True
        self._look_due_s = 0.0

    @property
    def alive(self) -> bool:
        """As in HubConnection. Checks the process at most twice a second."""
        now_s = time.monotonic()
        if self._alive and now_s >= self._look_due_s:
            self._look_due_s = now_s + _LOOK_FOR_HUB_S
            self._alive = self._record.hub_alive
        return self._alive

    @property
    def last_received_s(self) -> float | None:
        return None if self.received_at_s is None else time.monotonic() - self.received_at_s


class GatheredReader(HubReader):
    """Joins another node's hub over the connection to the root's."""

    def __init__(self, root: HubSocket, node: bytes, credit: Credit) -> None:
        """``node``: its id in the root's GatheredHubs."""
        super().__init__(credit, None)
        self._root, self._node = root, node
        self._messages: list[Message] = []

    def poll(self) -> list[Message]:
        messages, self._messages = self._messages, []
        return messages

    def receive(self, batch: bytes, back_ns: int) -> None:
        """Keep the messages of a batch for `poll`."""
        try:
            self._messages += self.take(FrameReader().feed(batch), back_ns)
        except WireError:
            self.dropped += 1

    def close(self) -> None:
        self._root.leave(self._node)

    def is_trusted(self) -> bool:
        """As in HubReader: the root vouches for the other hubs."""
        return self._root.is_trusted()

    def _put(self, payload: bytes) -> None:
        self._root.carry(self._node, payload)


def make_socket(
    context: "zmq.Context[zmq.Socket[bytes]]", kind: int, **options: int | bytes
) -> "zmq.Socket[bytes]":
    """Return a ZeroMQ socket with these options, and those of all connections between hubs and readers."""
    made = context.socket(kind)
    for name, value in ({"LINGER": 0, "HEARTBEAT_IVL": 2000, "HEARTBEAT_TIMEOUT": 9000} | options).items():
        made.setsockopt(getattr(zmq, name), value)
    return made


def _check_descriptors() -> None:
    """Raise OSError unless this process can open _DESCRIPTORS more."""
    with ExitStack() as opened:
        for _ in range(_DESCRIPTORS):
            opened.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
