"""A dashboard's connection to a hub: one protocol whatever carries it."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Collection, Iterator
from typing import Protocol

import zmq
from zmq.utils.monitor import parse_monitor_message

from overlaptop.jobs.folder import JobFolderError
from overlaptop.jobs.record import JobRecord
from overlaptop.jobs.sockets import check_listener
from overlaptop.wire.codec import MAX_FRAME_BYTES, WireError, decode, encode
from overlaptop.wire.commands import Command
from overlaptop.wire.messages import Join, TurnedAway
from overlaptop.wire.protocol import JOIN_S, PROTOCOL_VERSION
from overlaptop.wire.schema import Message

_POLL_BUDGET_S = 0.05
"""A long history is taken in several polls, so that the screen draws in between."""
_LOOK_FOR_HUB_S = 0.5
_MAX_UNSENT_JOINS = 4
_MAX_UNSENT = 8
_HIGH_WATER = 16
"""Batches of the hub; it drops and counts what does not fit."""


class HubConnection(Protocol):
    """Messages from one job's hub. Not for use from several threads at once.

    Welcome is the first message, or TurnedAway for as long as there is no room. Welcome comes again where
    the connection was lost, or the hub forgot a dashboard that was suspended. Then the history comes again
    too: pass over steps and notices that are known already.
    """

    @property
    def alive(self) -> bool:
        """False once the hub's process has ended; poll() may still have its last messages."""

    @property
    def last_received_s(self) -> float | None:
        """Seconds since the hub last sent something, as a live hub does each second; None before that."""

    @property
    def dropped(self) -> int:
        """Frames from the hub that were not messages."""

    def poll(self) -> list[Message]:
        """What has come since the last call, oldest first. Never waits."""

    def watch(self, ranks: Collection[int], bursts: int = 0) -> None:
        """Asks for StepDetail of these ranks and of no others from now on, and for a burst whenever
        ``bursts`` grows.
        """

    def send(self, command: Command) -> bool:
        """Gives the hub a command for all ranks; False: no hub has answered yet.

        What becomes of it comes back as CommandOutcome. Raises WireError for one that is not allowed.
        """

    def close(self) -> None:
        """Closes the connection. Nothing may be called after it but close."""


class LocalHubConnection:
    """A connection to a hub on this machine."""

    def __init__(self, record: JobRecord) -> None:
        path = record.dashboard_path
        self._record = record
        self._ranks: tuple[int, ...] = ()
        self._bursts = 0
        self._unsent: deque[bytes] = deque(maxlen=_MAX_UNSENT)
        self._join_due_s = 0.0
        self._received_at_s: float | None = None
        self._dropped = 0
        self._alive = True
        self._look_due_s = 0.0
        self._context = zmq.Context()
        self._dealer = self._context.socket(zmq.DEALER)
        for option, value in (
            (zmq.LINGER, 0),
            # Not IMMEDIATE: it loses a hub's last messages when its end arrives together with them.
            (zmq.SNDHWM, _MAX_UNSENT_JOINS),
            (zmq.RCVHWM, _HIGH_WATER),
            (zmq.MAXMSGSIZE, MAX_FRAME_BYTES),
            (zmq.HEARTBEAT_IVL, 2000),
            (zmq.HEARTBEAT_TIMEOUT, 6000),
            (zmq.RECONNECT_IVL, 100),
            (zmq.RECONNECT_IVL_MAX, 2000),
        ):
            self._dealer.setsockopt(option, value)
        self._checked = True
        """The newest connection, if any, is to a hub of this user."""
        self._refusal = b""
        """Another user listens there: a TurnedAway with that reason."""
        self._connections = self._dealer.get_monitor_socket(zmq.EVENT_CONNECTED)
        self._dealer.connect(f"ipc://{path}")

    @property
    def alive(self) -> bool:
        """As HubConnection says. Looks at the process at most twice a second."""
        now_s = time.monotonic()
        if self._alive and now_s >= self._look_due_s:
            self._look_due_s = now_s + _LOOK_FOR_HUB_S
            self._alive = self._record.hub_alive
        return self._alive

    @property
    def last_received_s(self) -> float | None:
        """As HubConnection says."""
        return None if self._received_at_s is None else time.monotonic() - self._received_at_s

    @property
    def dropped(self) -> int:
        """As HubConnection says."""
        return self._dropped

    def poll(self) -> list[Message]:
        """As HubConnection says; takes at most about 50 ms of work, the rest waits for the next call."""
        messages: list[Message] = []
        for part in self._receive(math.inf):
            try:
                messages.append(decode(part))
            except WireError:
                self._dropped += 1
        return messages

    def poll_raw(self, most_bytes: int) -> list[bytes]:
        """As poll, for a relay: its frames as they came, unchecked.

        Takes no more once it has ``most_bytes``: what is left waits in the hub.
        """
        return list(self._receive(most_bytes))

    @property
    def descriptor(self) -> int:
        """Readable when there may be something to poll; ask :attr:`has_input` before waiting on it."""
        return int(self._dealer.getsockopt(zmq.FD))

    @property
    def has_input(self) -> bool:
        """Whether something has come that was not polled yet.

        ZeroMQ's descriptor only signals changes: it may be silent while there is.
        """
        return bool(int(self._dealer.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def _receive(self, most_bytes: float) -> Iterator[bytes]:
        """The frames that have come; their decoding counts as work of the poll."""
        now_s = time.monotonic()
        if self._is_trusted() and (now_s >= self._join_due_s or self._unsent):
            self._send_queued(now_s)
        while most_bytes > 0 and time.monotonic() - now_s < _POLL_BUDGET_S:
            try:
                parts = self._dealer.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            if not self._is_trusted():
                break
            self._received_at_s = time.monotonic()
            most_bytes -= sum(map(len, parts))
            yield from parts
        if self._refusal and now_s >= self._join_due_s:
            self._join_due_s = now_s + JOIN_S
            yield self._refusal

    def _is_trusted(self) -> bool:
        """Whether it is a hub of this user that we are connected to.

        ZeroMQ reports a connection before it takes anything from it: asked after that was received, this
        holds for what was received. It connects again by itself, and the socket may be another one then.
        """
        while not self._refusal:
            try:
                event = parse_monitor_message(self._connections.recv_multipart(zmq.NOBLOCK))
                check_listener(event["value"])
                self._checked = True
            except zmq.Again:
                break
            except OSError:
                self._checked = False  # closed since: nothing is believed until there is another
            except JobFolderError as error:
                self._refusal = encode(TurnedAway(str(error)))
        return self._checked and not self._refusal

    def watch(self, ranks: Collection[int], bursts: int = 0) -> None:
        """As HubConnection says."""
        wanted = tuple(sorted(set(ranks)))
        if (wanted, bursts) != (self._ranks, self._bursts):
            self._ranks, self._bursts = wanted, bursts
            self._join_due_s = 0.0

    def send(self, command: Command) -> bool:
        """As HubConnection says."""
        payload = encode(command)
        if self._received_at_s is None or not self._is_trusted():
            return False
        self._unsent.append(payload)
        self._send_queued(time.monotonic())
        return True

    def close(self) -> None:
        """As HubConnection says."""
        if not self._dealer.closed:
            self._dealer.disable_monitor()
        self._connections.close(linger=0)  # else the context would wait for it
        self._dealer.close(linger=0)
        self._context.term()

    def _send_queued(self, now_s: float) -> None:
        try:
            # Also before a command: a hub that has forgotten this dashboard takes none from it.
            self._dealer.send(encode(Join(PROTOCOL_VERSION, self._ranks, self._bursts)), zmq.NOBLOCK)
            self._join_due_s = now_s + JOIN_S
            while self._unsent:
                self._dealer.send(self._unsent[0], zmq.NOBLOCK)
                self._unsent.popleft()
        except zmq.Again:
            return  # not connected yet, or the hub has stopped reading: asked again at the next poll
