"""The dashboards' side of the hub:
two ZeroMQ ROUTERs, one of them read-only, and a queue for each dashboard.

History and live messages use one connection, so none is lost or duplicated between them. Each dashboard
grants how many bytes may be in flight to it. If more arrive, its queue is thinned, for that dashboard
alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import zmq
from msgspec.structs import replace

from overlaptop.hub.reader_queue import KEPT, Frame, ReaderQueue
from overlaptop.wire.codec import WireError, decode, encode
from overlaptop.wire.commands import Command
from overlaptop.wire.messages import Grant, HubStatus, Join, Ping, Pong, TurnedAway, Welcome
from overlaptop.wire.protocol import LEASE_S, PROTOCOL_VERSION
from overlaptop.wire.schema import Message

MAX_DASHBOARDS = 64
_FULL = encode(TurnedAway(f"{MAX_DASHBOARDS} dashboards watch this job: close one of them"))
_MAX_WINDOW_BYTES = 4 << 20
_SEND_HIGH_WATER = 16
"""Batches that ZeroMQ holds for a dashboard, beyond our queue."""
_MAX_RECEIVED_AT_ONCE = 256
_MAX_RECEIVED_BYTES = 1 << 16
_LINGER_MS = 200

_Address = tuple[int, bytes]
"""The ROUTER's index, and the identity on it."""


class DashboardClient:
    """One dashboard and its queue."""

    def __init__(self, bad_frames: int, same_protocol: bool) -> None:
        self.lease_until_s = 0.0
        self.detail_ranks: frozenset[int] = frozenset()
        self.bursts = 0
        self.same_protocol = same_protocol
        self.queue = ReaderQueue()
        self.status: bytes | None = None
        self.bad_frames_before = bad_frames
        self._batch: list[bytes] = []

    def batch(self) -> list[bytes]:
        """Return the frames to send next. The same until :meth:`sent`. Empty if there are none."""
        if not self._batch:
            self._batch = self.queue.take()
            if not self.queue.history and self.status is not None:
                # Sent regardless of grants: a dashboard that lags should know that, and by how much.
                self._batch.append(self.status)
                self.queue.count_sent(len(self.status))
                self.status = None
        return self._batch

    def sent(self) -> None:
        """Mark the batch as sent."""
        self._batch = []


class DashboardServer:
    """All dashboards that watch this job.

    ``path``: socket for dashboards that may send commands. ``view_path``: socket for the others. ``replay``
    returns the history for a new one, ``detail`` the newest StepDetail of a rank, and ``status`` the hub's
    status, with ``dropped`` counting only bad frames from ranks. ``take`` receives the commands of joined
    dashboards.
    """

    def __init__(
        self,
        path: Path,
        view_path: Path,
        welcome: Welcome,
        replay: Callable[[], list[Frame]],
        detail: Callable[[int], Frame | None],
        status: Callable[[], HubStatus],
        take: Callable[[Command], None],
    ) -> None:
        self.watched: frozenset[int] = frozenset()
        """Ranks whose detail at least one dashboard requests."""
        self.bursts = 0
        """Bursts that dashboards have requested from those ranks."""
        self._welcome = encode(welcome)
        self._replay = replay
        self._detail = detail
        self._status = status
        self._take = take
        self._bad_frames = 0
        self._dashboards: dict[_Address, DashboardClient] = {}
        self._context = zmq.Context()
        self._routers = (self._bind(path), self._bind(view_path))

    def _bind(self, path: Path) -> zmq.Socket[bytes]:
        router = self._context.socket(zmq.ROUTER)
        for option, value in (
            (zmq.ROUTER_MANDATORY, 1),  # report full or departed dashboards as errors, not silently
            (zmq.SNDHWM, _SEND_HIGH_WATER),
            (zmq.RCVHWM, _SEND_HIGH_WATER),
            (zmq.MAXMSGSIZE, _MAX_RECEIVED_BYTES),
            (zmq.HEARTBEAT_IVL, 2000),
            (zmq.HEARTBEAT_TIMEOUT, 6000),
            (zmq.LINGER, 0),
        ):
            router.setsockopt(option, value)
        router.bind(f"ipc://{path}")
        return router

    @property
    def descriptors(self) -> list[int]:
        """Readable when there may be something to receive.
        Check :attr:`has_input` before waiting for them.
        """
        return [int(router.getsockopt(zmq.FD)) for router in self._routers]

    @property
    def has_input(self) -> bool:
        """Whether a dashboard has sent something. ZeroMQ's descriptors only signal changes, so check this
        before each wait.
        """
        # Check both: the check itself resets a descriptor.
        events = [int(router.getsockopt(zmq.EVENTS)) for router in self._routers]
        return any(each & zmq.POLLIN for each in events)

    def receive(self, now_s: float) -> None:
        """Process the dashboards' messages."""
        for place, router in enumerate(self._routers):
            for _ in range(_MAX_RECEIVED_AT_ONCE):
                try:
                    identity, *parts = router.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                received_ns = time.time_ns()
                try:
                    message = decode(parts[0]) if len(parts) == 1 else None
                except WireError:
                    message = None
                if isinstance(message, Ping):
                    pong = Pong(message.sent_ns, received_ns, time.time_ns())
                    self._send_now((place, identity), encode(pong))
                elif not self._handle((place, identity), message, now_s):
                    self._bad_frames += 1
        self._update_watched()

    def _handle(self, address: _Address, message: Message | None, now_s: float) -> bool:
        """Process a message. Returns whether this sender may send it."""
        sender = self._dashboards.get(address)
        match message:
            case Join():
                self._renew(address, message, now_s)
            case Grant() if sender is not None:
                window_bytes = min(message.window_bytes, _MAX_WINDOW_BYTES)
                sender.queue.grant(message.received_bytes, window_bytes)
            case Command() if sender is not None and sender.same_protocol and address[0] == 0:
                self._take(message)
            case _:
                return False
        return True

    def publish(self, frame: Frame) -> None:
        """Queue a frame for every dashboard."""
        for dashboard in self._dashboards.values():
            if dashboard.same_protocol:
                dashboard.queue.put(frame)

    def publish_detail(self, rank: int, frame: Frame) -> None:
        """Queue a StepDetail for the dashboards that show this rank."""
        for dashboard in self._dashboards.values():
            if rank in dashboard.detail_ranks:
                dashboard.queue.put(frame)

    def publish_status(self) -> None:
        """Queue the hub's status for each dashboard, replacing an unsent one. Called once a second."""
        for dashboard in self._dashboards.values():
            dashboard.queue.tick()
            self._set_status(dashboard)

    def flush(self) -> bool:
        """Send all that can be sent without waiting.
        Returns whether ZeroMQ's queue is full for any dashboard.
        """
        full = False
        for (place, identity), dashboard in list(self._dashboards.items()):
            try:
                while batch := dashboard.batch():
                    self._routers[place].send_multipart([identity, *batch], zmq.NOBLOCK)
                    dashboard.sent()
            except zmq.Again:
                full = True
            except zmq.ZMQError:
                # EHOSTUNREACH: the dashboard has gone. If it comes back, it counts as a new one.
                del self._dashboards[place, identity]
                self._update_watched()
        return full

    def expire(self, now_s: float) -> None:
        """Forget the dashboards that have been silent for LEASE_S."""
        for address, dashboard in list(self._dashboards.items()):
            if now_s > dashboard.lease_until_s:
                del self._dashboards[address]
        self._update_watched()

    def finish(self) -> None:
        """Send all dashboards the end of the job, regardless of grants."""
        for dashboard in self._dashboards.values():
            dashboard.queue.finish()
            self._set_status(dashboard)
        self.flush()

    def close(self) -> None:
        """Give sent data a moment to arrive, then close."""
        for router in self._routers:
            router.close(linger=_LINGER_MS)
        self._context.term()

    def _send_now(self, address: _Address, payload: bytes) -> None:
        with suppress(zmq.ZMQError):  # the dashboard will ask again
            self._routers[address[0]].send_multipart([address[1], payload], zmq.NOBLOCK)

    def _renew(self, address: _Address, join: Join, now_s: float) -> None:
        dashboard = self._dashboards.get(address)
        if dashboard is None:
            if len(self._dashboards) >= MAX_DASHBOARDS:
                self._send_now(address, _FULL)
                return
            if join.protocol != PROTOCOL_VERSION:
                # Sent even without a grant, so that it knows why it receives nothing else.
                self._send_now(address, self._welcome)
            dashboard = self._dashboards[address] = DashboardClient(
                self._status().dropped + self._bad_frames, join.protocol == PROTOCOL_VERSION
            )
            if dashboard.same_protocol:
                dashboard.queue.begin([Frame(self._welcome, KEPT), *self._replay()])
            self._set_status(dashboard)  # at once: it also marks the end of the history
        dashboard.lease_until_s = now_s + LEASE_S
        if dashboard.same_protocol:
            wanted = frozenset(join.detail_ranks)
            for rank in sorted(wanted - dashboard.detail_ranks):
                if (frame := self._detail(rank)) is not None:
                    dashboard.queue.put(frame)
            dashboard.detail_ranks = wanted
            self.bursts += join.bursts > dashboard.bursts
            dashboard.bursts = join.bursts

    def _set_status(self, dashboard: DashboardClient) -> None:
        if dashboard.same_protocol:
            status = self._status()
            bad_frames = status.dropped + self._bad_frames - dashboard.bad_frames_before
            dashboard.status = encode(replace(status, dropped=dashboard.queue.dropped + bad_frames))

    def _update_watched(self) -> None:
        ranks = (dashboard.detail_ranks for dashboard in self._dashboards.values())
        self.watched = frozenset().union(*ranks)
