"""The dashboards' side of the hub: a ZeroMQ ROUTER and a bounded queue a dashboard.

History and live stream go over one connection, so nothing is missed or doubled between them, and what a
dashboard is too slow to take is dropped and counted for that dashboard alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import zmq
from msgspec.structs import replace

from overlaptop.wire.codec import WireError, decode, encode
from overlaptop.wire.commands import Command
from overlaptop.wire.messages import HubStatus, Join, TurnedAway, Welcome
from overlaptop.wire.protocol import LEASE_S, PROTOCOL_VERSION

MAX_DASHBOARDS = 64
_FULL = encode(TurnedAway(f"{MAX_DASHBOARDS} dashboards watch this job: close one of them"))
_MAX_QUEUED_FRAMES = 4096
_MAX_QUEUED_BYTES = 4 << 20
_MAX_BATCH_FRAMES = 256
_MAX_BATCH_BYTES = 1 << 17
_SEND_HIGH_WATER = 16
"""Batches that ZeroMQ holds for a dashboard besides our queue."""
_MAX_JOINS_AT_ONCE = 256
_MAX_JOIN_BYTES = 1 << 16
_LINGER_MS = 200


class DashboardClient:
    """One dashboard and what it is still to be sent."""

    def __init__(self, bad_frames: int) -> None:
        self.lease_until_s = 0.0
        self.detail_ranks: frozenset[int] = frozenset()
        self.bursts = 0
        self.same_protocol = True
        self.history: deque[bytes] = deque()
        self.status: bytes | None = None
        self.dropped = 0
        self.bad_frames_before = bad_frames
        self._live: deque[tuple[bytes, bool]] = deque()
        self._live_bytes = 0
        self._batch: list[bytes] = []

    def enqueue(self, payload: bytes, droppable: bool) -> None:
        """Queues a frame behind all others, in place of older ones where there is no room."""
        self._live.append((payload, droppable))
        self._live_bytes += len(payload)
        if len(self._live) > _MAX_QUEUED_FRAMES or self._live_bytes > _MAX_QUEUED_BYTES:
            self._drop_older_half()

    def batch(self) -> list[bytes]:
        """The frames to send next, the same until :meth:`sent`; empty when there are none."""
        if self._batch:
            return self._batch
        size = 0
        if not self.history and self.status is not None:
            # Before the queue: a dashboard that is behind should know that, and by how much.
            self._batch.append(self.status)
            self.status = None
        while (
            (self.history or self._live)
            and len(self._batch) < _MAX_BATCH_FRAMES
            and size < _MAX_BATCH_BYTES
        ):
            if self.history:
                payload = self.history.popleft()
            else:
                payload, _ = self._live.popleft()
                self._live_bytes -= len(payload)
            self._batch.append(payload)
            size += len(payload)
        return self._batch

    def sent(self) -> None:
        """The batch is on its way."""
        self._batch = []

    def _drop_older_half(self) -> None:
        # Steps and samples go first, since a rank's RankInfo and RankEnd are not sent again. Half at a
        # time, so that a full queue is not searched for every frame.
        for droppable_only in (True, False):
            kept: deque[tuple[bytes, bool]] = deque()
            frames, size = len(self._live), self._live_bytes
            for payload, droppable in self._live:
                too_much = frames > _MAX_QUEUED_FRAMES // 2 or size > _MAX_QUEUED_BYTES // 2
                if too_much and (droppable or not droppable_only):
                    frames -= 1
                    size -= len(payload)
                    self.dropped += 1
                else:
                    kept.append((payload, droppable))
            self._live, self._live_bytes = kept, size
            if frames <= _MAX_QUEUED_FRAMES // 2 and size <= _MAX_QUEUED_BYTES // 2:
                return


class DashboardServer:
    """All dashboards that watch this job.

    ``replay`` gives the history for a new one, ``detail`` the newest StepDetail of a rank, ``status`` the
    hub's status, ``dropped`` being the bad frames from ranks alone, and ``take`` gets what a dashboard asks
    for that has joined.
    """

    def __init__(
        self,
        path: Path,
        welcome: Welcome,
        replay: Callable[[], list[bytes]],
        detail: Callable[[int], bytes | None],
        status: Callable[[], HubStatus],
        take: Callable[[Command], None],
    ) -> None:
        self.watched: frozenset[int] = frozenset()
        """Ranks whose detail at least one dashboard wants."""
        self.bursts = 0
        """Bursts that dashboards have asked those ranks for."""
        self._welcome = encode(welcome)
        self._replay = replay
        self._detail = detail
        self._status = status
        self._take = take
        self._bad_joins = 0
        self._dashboards: dict[bytes, DashboardClient] = {}
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        for option, value in (
            (zmq.ROUTER_MANDATORY, 1),  # a full or departed dashboard is an error, not silence
            (zmq.SNDHWM, _SEND_HIGH_WATER),
            (zmq.RCVHWM, _SEND_HIGH_WATER),
            (zmq.MAXMSGSIZE, _MAX_JOIN_BYTES),
            (zmq.HEARTBEAT_IVL, 2000),
            (zmq.HEARTBEAT_TIMEOUT, 6000),
            (zmq.LINGER, 0),
        ):
            self._router.setsockopt(option, value)
        self._router.bind(f"ipc://{path}")

    @property
    def descriptor(self) -> int:
        """Readable when there may be something to receive; ask :attr:`has_input` before waiting on it."""
        return int(self._router.getsockopt(zmq.FD))

    @property
    def has_input(self) -> bool:
        """Whether a dashboard has sent something. ZeroMQ's descriptor only tells of changes, so this is
        to be asked each time before waiting.
        """
        return bool(int(self._router.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def receive(self, now_s: float) -> None:
        """Takes what the dashboards sent."""
        for _ in range(_MAX_JOINS_AT_ONCE):
            try:
                identity, *parts = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            try:
                message = decode(parts[0]) if len(parts) == 1 else None
            except WireError:
                message = None
            if isinstance(message, Join):
                self._renew(identity, message, now_s)
            elif (
                isinstance(message, Command)
                and (sender := self._dashboards.get(identity)) is not None
                and sender.same_protocol
            ):
                self._take(message)
            else:
                self._bad_joins += 1
        self._update_watched()

    def publish(self, payload: bytes, droppable: bool) -> None:
        """Queues a frame for every dashboard."""
        for dashboard in self._dashboards.values():
            if dashboard.same_protocol:
                dashboard.enqueue(payload, droppable)

    def publish_detail(self, rank: int, payload: bytes) -> None:
        """Queues a StepDetail for the dashboards that show this rank."""
        for dashboard in self._dashboards.values():
            if rank in dashboard.detail_ranks:
                dashboard.enqueue(payload, droppable=True)

    def publish_status(self) -> None:
        """Queues the hub's status for each dashboard, in place of an unsent one."""
        for dashboard in self._dashboards.values():
            self._set_status(dashboard)

    def flush(self) -> bool:
        """Sends what can be sent without waiting; returns whether some dashboard's queue is full."""
        full = False
        for identity, dashboard in list(self._dashboards.items()):
            try:
                while batch := dashboard.batch():
                    self._router.send_multipart([identity, *batch], zmq.NOBLOCK)
                    dashboard.sent()
            except zmq.Again:
                full = True
            except zmq.ZMQError:
                # EHOSTUNREACH: it has gone. Should it come back, it is a new one.
                del self._dashboards[identity]
                self._update_watched()
        return full

    def expire(self, now_s: float) -> None:
        """Forgets the dashboards that have been silent for LEASE_S."""
        for identity, dashboard in list(self._dashboards.items()):
            if now_s > dashboard.lease_until_s:
                del self._dashboards[identity]
        self._update_watched()

    def close(self) -> None:
        """Gives what was sent a moment to arrive, then ends."""
        self._router.close(linger=_LINGER_MS)
        self._context.term()

    def _renew(self, identity: bytes, join: Join, now_s: float) -> None:
        dashboard = self._dashboards.get(identity)
        if dashboard is None:
            if len(self._dashboards) >= MAX_DASHBOARDS:
                with suppress(zmq.ZMQError):  # it will ask again
                    self._router.send_multipart([identity, _FULL], zmq.NOBLOCK)
                return
            dashboard = self._dashboards[identity] = DashboardClient(
                self._status().dropped + self._bad_joins
            )
            dashboard.history.append(self._welcome)
            dashboard.same_protocol = join.protocol == PROTOCOL_VERSION
            if dashboard.same_protocol:
                dashboard.history.extend(self._replay())
            self._set_status(dashboard)  # at once: it also marks the end of the history
        dashboard.lease_until_s = now_s + LEASE_S
        if dashboard.same_protocol:
            wanted = frozenset(join.detail_ranks)
            for rank in sorted(wanted - dashboard.detail_ranks):
                if (payload := self._detail(rank)) is not None:
                    dashboard.enqueue(payload, droppable=True)
            dashboard.detail_ranks = wanted
            self.bursts += join.bursts > dashboard.bursts
            dashboard.bursts = join.bursts

    def _set_status(self, dashboard: DashboardClient) -> None:
        if dashboard.same_protocol:
            status = self._status()
            bad_frames = status.dropped + self._bad_joins - dashboard.bad_frames_before
            dashboard.status = encode(replace(status, dropped=dashboard.dropped + bad_frames))

    def _update_watched(self) -> None:
        ranks = (dashboard.detail_ranks for dashboard in self._dashboards.values())
        self.watched = frozenset().union(*ranks)
