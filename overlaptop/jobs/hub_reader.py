"""What a dashboard says to a hub and hears from it, over any connection. Imports no ZeroMQ."""

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from overlaptop.jobs.credit import Credit
from overlaptop.wire.codec import WireError, decode, encode, kind
from overlaptop.wire.commands import Command
from overlaptop.wire.joining import GatheredHub, GatheredHubs, Join, Ping, Pong
from overlaptop.wire.messages import Found, Welcome
from overlaptop.wire.protocol import JOIN_S, PROTOCOL_VERSION
from overlaptop.wire.schema import Message

FIRST_PINGS = 3
"""Sent one after the other before Join, because later replies queue behind the history. The first one
measures nothing: it waits until ZeroMQ has connected."""
_PINGS_S = 3.0  # A hub that answers no ping is joined after this time
_MAX_UNSENT = 8
_MAX_WAITING = 1 << 14  # Messages kept until `poll`. The oldest are dropped.


class HubConnection(Protocol):
    """Messages from one job's hub. Not thread-safe.

    Welcome is the first message, or TurnedAway if the hub has enough dashboards. Welcome comes again after
    a lost connection, or if the hub forgot a suspended dashboard. The history then comes again, too: skip
    known steps and notices.
    """

    dropped: int  # Frames from the hub that were not messages

    @property
    def alive(self) -> bool:
        """False once the hub's process has ended. poll() may still return its last messages."""

    @property
    def last_received_s(self) -> float | None:
        """Seconds since the hub last sent something, as it does each second. None before the first."""

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


class Carrier(Protocol):
    """A connection over which hubs are read: to one of them, and through it to those gathered there."""

    readers: dict[bytes, "HubReader"]  # By node. Empty: the hub at the other end.
    hubs: dict[bytes, GatheredHub]  # Other nodes' hubs that can be reached, by node

    def put(self, node: bytes, payload: bytes) -> bool:
        """Send a frame. False if that is not possible now."""


class HubReader:
    """Joins one hub, grants credit and checks messages, over one connection after the other."""

    def __init__(
        self,
        limit_bytes_per_s: int | None = None,
        on_pong: Callable[[Pong, int], None] | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``limit_bytes_per_s``: as in Credit. ``on_pong``: called with each answer to a ping and its Unix
        time of arrival. None: no pings.
        """
        self.dropped = 0
        self.carrier: Carrier | None = None  # None while there is no connection
        self._node = b""
        self._limit_bytes_per_s = limit_bytes_per_s
        self._on_pong = on_pong
        self._monotonic_s = monotonic_s
        self._ranks: tuple[int, ...] = ()
        self._bursts = 0
        self._waiting: deque[Message] = deque(maxlen=_MAX_WAITING)
        self._unsent: deque[bytes] = deque()
        self._received_at_s: float | None = None
        self._begin()

    def _begin(self) -> None:
        self._credit = Credit(self._monotonic_s, self._limit_bytes_per_s)
        self._is_answered = False
        self._began_s = self._monotonic_s()
        self._pongs = 0
        self._ping_due_s = self._join_due_s = 0.0

    def connect(self, carrier: Carrier, node: bytes = b"") -> None:
        """Join the hub of this node over a new connection."""
        self.disconnect()
        self.carrier, self._node = carrier, node
        carrier.readers[node] = self
        self._begin()

    def disconnect(self) -> None:
        """Leave the connection. The hub forgets this reader a moment later."""
        if self.carrier is not None:
            self.carrier.readers.pop(self._node, None)
        self.carrier = None
        self._unsent.clear()

    @property
    def last_received_s(self) -> float | None:
        return None if self._received_at_s is None else self._monotonic_s() - self._received_at_s

    def poll(self) -> list[Message]:
        messages = list(self._waiting)
        self._waiting.clear()
        return messages

    def watch(self, ranks: Collection[int], bursts: int = 0) -> None:
        wanted = tuple(sorted(set(ranks)))
        if (wanted, bursts) != (self._ranks, self._bursts):
            self._ranks, self._bursts = wanted, bursts
            self._join_due_s = 0.0

    def send(self, message: Command | Found) -> bool:
        payload = encode(message)
        if self.carrier is None or not self._is_answered or len(self._unsent) >= _MAX_UNSENT:
            return False
        self._unsent.append(payload)
        self.send_due()
        return True

    def receive(self, batch: Sequence[bytes], back_ns: int) -> None:
        """Process a batch that arrived at this Unix time."""
        for payload in batch:
            of = kind(payload)
            if of is not Pong:
                if of is Welcome:
                    self._credit.restart()
                self._credit.receive(len(payload))
                self._is_answered, self._received_at_s = True, self._monotonic_s()
            try:
                message = decode(payload)
            except WireError:
                self.dropped += 1
                continue
            match message:
                case Pong():
                    self._receive_pong(message, back_ns)
                case GatheredHubs():
                    if self.carrier is not None and not self._node:
                        self.carrier.hubs = {hub.node: hub for hub in message.hubs}
                case _:
                    self.keep(message)

    def keep(self, message: Message) -> None:
        """Keep a message for `poll`."""
        self._waiting.append(message)

    def send_due(self) -> None:
        """Send due frames until the connection is full."""
        carrier, now_s = self.carrier, self._monotonic_s()
        if carrier is None:
            return
        if self._on_pong is not None:
            if now_s >= self._ping_due_s and carrier.put(self._node, encode(Ping(time.time_ns()))):
                self._ping_due_s = now_s + JOIN_S
            if self._pongs < FIRST_PINGS and now_s - self._began_s < _PINGS_S:
                return
        grant = self._credit.due()
        # Join comes before a command: a hub that has forgotten this dashboard ignores commands from it.
        if self._unsent or now_s >= self._join_due_s or grant is not None:
            grant = grant or self._credit.grant()
            if not carrier.put(
                self._node, encode(Join(PROTOCOL_VERSION, self._ranks, self._bursts, *grant))
            ):
                return
            self._join_due_s = now_s + JOIN_S
            self._credit.sent(grant)
        while self._unsent and carrier.put(self._node, self._unsent[0]):
            self._unsent.popleft()

    def _receive_pong(self, pong: Pong, back_ns: int) -> None:
        if self._on_pong is None:
            return
        self._pongs += 1
        if self._pongs < FIRST_PINGS:
            self._ping_due_s = 0.0
        if self._pongs > 1:
            self._on_pong(pong, back_ns)
