"""The dashboards' side of the hub: two ZeroMQ ROUTERs, one of them read-only, and a queue for each reader.

With ``--gather``, the root also carries frames between its dashboards and other hubs, and another hub has
dashboards over its connection to the root. History and live messages use one connection, so none is lost or
duplicated between them. Each dashboard grants how many bytes may be in flight to it. If more arrive, its
queue is thinned, for that dashboard alone.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import zmq
from msgspec.structs import replace

from overlaptop.hub.executions import CommandExecutions
from overlaptop.hub.gathering import GatherRoot, RootLink
from overlaptop.hub.history import JobHistory
from overlaptop.hub.log import log_line
from overlaptop.hub.ranks import RankServer
from overlaptop.hub.reader_queue import KEPT, Frame, ReaderQueue
from overlaptop.jobs.hub_socket import make_socket
from overlaptop.wire import codec
from overlaptop.wire.codec import WireError, decode, encode
from overlaptop.wire.commands import Command, describe
from overlaptop.wire.joining import READER_MAY_COMMAND, Join, Ping, Pong, TurnedAway
from overlaptop.wire.messages import Found, Welcome
from overlaptop.wire.protocol import PROTOCOL_VERSION, READER_TIMEOUT_S
from overlaptop.wire.schema import Message

MAX_DASHBOARDS = 64
_FULL = encode(TurnedAway(f"{MAX_DASHBOARDS} dashboards watch this job: close one of them"))
_MAX_WINDOW_BYTES = 4 << 20
_NEAR_WINDOW_BYTES = 1 << 20  # No reader on another host grants this much
_FAR_HISTORY_BYTES = 256 << 10  # Maximum history for a reader on another host
_LIMITS = {"SNDHWM": 0, "RCVHWM": 16, "MAXMSGSIZE": 1 << 16}
"""Grants bound the bytes that ZeroMQ holds for a dashboard."""
_MAX_RECEIVED_AT_ONCE = 256
_LINGER_MS = 200
_LATE_S = 2.0  # A longer pause between two calls of `receive` means that this process was stopped
_STALE_S = 1.0  # Commands received for this long after such a pause may be old, so they are dropped

_OVER_ROOT = 2  # Index of the connection to the root, after the two ROUTERs
_OVER_ROOT_S = 0.8
"""Interval between batches over the root, which handles those of all hubs, once the history is sent. All
hubs send at the same moments, so the root and its readers wake less often, and ranks are equally recent."""
_OVER_ROOT_HISTORY_BYTES = 4 << 20
"""History of all nodes together over the root: a second's work for a dashboard."""

_Address = tuple[int, bytes]  # The socket's index, and the identity on it


class DashboardClient(ReaderQueue):
    """One dashboard and its queue."""

    def __init__(self, bad_frames: int) -> None:
        super().__init__()
        self.expires_s = 0.0
        self.detail_ranks: frozenset[int] = frozenset()
        self.bursts = 0
        self.bad_frames_before = bad_frames


class DashboardServer:
    """All dashboards that watch this job. Their commands go to the ranks, their findings to ``found``.

    ``path``: socket for dashboards that may send commands. ``view_path``: socket for the others.
    """

    def __init__(
        self,
        path: Path,
        view_path: Path,
        welcome: Welcome,
        history: JobHistory,
        commands: CommandExecutions,
        ranks: RankServer,
        found: Callable[[str, float], None],
    ) -> None:
        self._bursts = 0  # Bursts that dashboards have requested from the ranks that they watch
        self._welcome = encode(welcome)
        self._world_size = welcome.world_size
        self._history, self._commands, self._ranks, self._found = history, commands, ranks, found
        self._bad_frames = 0
        self._received_s, self._stale_until_s = float("inf"), 0.0
        self._dashboards: dict[_Address, DashboardClient] = {}
        self._context = zmq.Context()
        self._routers = [self._bind(path), self._bind(view_path)]
        """And the connection to the root, if any: it has the same frames."""
        self._root: GatherRoot | None = None
        self._gathered = b""  # GatheredHubs, if this is the root
        self._link: RootLink | None = None
        self._over_root_due_s = 0.0

    def _bind(self, path: Path) -> zmq.Socket[bytes]:
        # Mandatory: sending to a departed dashboard is an error.
        router = make_socket(self._context, zmq.ROUTER, ROUTER_MANDATORY=1, **_LIMITS)
        router.bind(f"ipc://{path}")
        return router

    def gather(self, place: GatherRoot | RootLink) -> None:
        """Carry frames between dashboards and other hubs as the root, or serve dashboards over the root."""
        if isinstance(place, GatherRoot):
            self._root = place
            self._publish_hubs()
        else:
            self._link = place
            self._routers.append(place.dealer)
            place.greet()

    @property
    def has_hubs(self) -> bool:
        return self._root is not None and bool(self._root.message.hubs)

    @property
    def _sockets(self) -> list[zmq.Socket[bytes]]:
        return [*self._routers, *(self._root.sockets if self._root is not None else ())]

    @property
    def descriptors(self) -> list[int]:
        """Readable when there may be something to receive. Check :attr:`has_input` before each wait."""
        return [int(each.getsockopt(zmq.FD)) for each in self._sockets]

    @property
    def has_input(self) -> bool:
        """Whether a dashboard has sent something. ZeroMQ's descriptors only signal changes."""
        # Check both: the check itself resets a descriptor.
        events = [int(each.getsockopt(zmq.EVENTS)) for each in self._sockets]
        return any(each & zmq.POLLIN for each in events)

    def receive(self, now_s: float) -> None:
        """Process the dashboards' messages. Called each second at least, unless this process is stopped."""
        if (paused_s := now_s - self._received_s) > _LATE_S:
            self._stale_until_s = now_s + _STALE_S
            for dashboard in self._dashboards.values():
                dashboard.expires_s += paused_s
        self._received_s = now_s
        for place, router in enumerate(self._routers):
            for _ in range(_MAX_RECEIVED_AT_ONCE):
                try:
                    identity, *parts = router.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                received_ns = time.time_ns()
                if self._link is not None and place == _OVER_ROOT and not identity:
                    self._link.receive(parts[0] if parts else b"", received_ns)
                    continue
                if parts and not parts[0]:
                    self._carry((place, identity), parts[1:])
                    continue
                try:
                    message = decode(parts[0]) if len(parts) == 1 else None
                except WireError:
                    message = None
                if isinstance(message, Ping):
                    pong = Pong(message.sent_ns, received_ns, time.time_ns())
                    self._send_now((place, identity), encode(pong))
                elif not self._handle((place, identity), message, now_s):
                    self._bad_frames += 1
        if self._root is not None:
            for node, reader, parts in self._root.receive(now_s):
                self._carry_back(node, reader, parts)
        self._update_watched()

    def _carry(self, address: _Address, parts: list[bytes]) -> None:
        """Pass a dashboard's frame on to another hub. From the root: forget a dashboard."""
        place, identity = address
        if place == _OVER_ROOT:
            self._dashboards.pop(address, None)
        elif self._root is not None and len(parts) == 2:
            self._root.send(parts[0], bytes([place]) + identity, parts[1])

    def _carry_back(self, node: bytes, reader: bytes, parts: list[bytes]) -> None:
        """Pass a hub's batch on to a dashboard. If that fails, the hub starts anew at its next Join."""
        if reader[0] >= _OVER_ROOT:
            return
        try:
            self._routers[reader[0]].send_multipart([reader[1:], b"", node, *parts], zmq.NOBLOCK)
        except zmq.ZMQError:
            assert self._root is not None
            self._root.send(node, reader, b"")

    def _handle(self, address: _Address, message: Message | None, now_s: float) -> bool:
        """Return whether this sender may send the message."""
        sender = self._dashboards.get(address)
        match message:
            case Join():
                self._renew(address, message, now_s)
            case Command() | Found() if sender is None or not _may_command(address):
                return False
            case Found():
                self._found(message.rule, now_s)
            case Command() if now_s < self._stale_until_s:
                log_line(f"{describe(message)} may have waited for long: not forwarded")
            case Command():
                self._commands.take(message, self._ranks.numbers, self._ranks.command, now_s)
            case _:
                return False
        return True

    def publish(self, frame: Frame) -> None:
        """Queue a frame for every dashboard."""
        for dashboard in self._dashboards.values():
            dashboard.put(frame)

    def publish_detail(self, rank: int, frame: Frame) -> None:
        """Queue a StepDetail for the dashboards that show this rank."""
        for dashboard in self._dashboards.values():
            if rank in dashboard.detail_ranks:
                dashboard.put(frame)

    def flush(self, now_s: float = float("inf")) -> None:
        """Send new outcomes, and all else that is granted. Over the root, all but history is sent only now
        and then, or at any time if ``now_s`` is missing.
        """
        for payload in self._commands.settle():
            self.publish(Frame(payload, KEPT))
        over_root = now_s >= self._over_root_due_s
        if over_root:
            self._over_root_due_s = now_s + _OVER_ROOT_S - time.time() % _OVER_ROOT_S
        for (place, identity), dashboard in list(self._dashboards.items()):
            if place == _OVER_ROOT and not (over_root or dashboard.history):
                continue
            try:
                while batch := dashboard.take():
                    self._send((place, identity), batch)
            except zmq.ZMQError:
                # EHOSTUNREACH: the dashboard has gone. If it comes back, it counts as a new one.
                del self._dashboards[place, identity]
                self._update_watched()

    def tick(self, now_s: float) -> None:
        """Forget the dashboards and hubs that have been silent for READER_TIMEOUT_S. Greet the root. Queue
        the hub's status for each dashboard, in place of an unsent one. Called once a second.
        """
        for address, dashboard in list(self._dashboards.items()):
            if now_s > dashboard.expires_s:
                del self._dashboards[address]
        if self._link is not None:
            if self._link.has_broken():
                # Batches may be lost. Each dashboard joins again within a second.
                for address in [each for each in self._dashboards if each[0] == _OVER_ROOT]:
                    del self._dashboards[address]
            self._link.greet_again(now_s)
        if self._root is not None:
            self._root.expire(now_s)
            self._publish_hubs()
        self._update_watched()
        for dashboard in self._dashboards.values():
            dashboard.tick()
            self._set_status(dashboard)

    def _publish_hubs(self) -> None:
        assert self._root is not None
        if (gathered := encode(self._root.message)) != self._gathered:
            self._gathered = gathered
            self.publish(Frame(gathered, KEPT))

    def finish(self) -> None:
        """Send all dashboards the end of the job, regardless of grants."""
        for dashboard in self._dashboards.values():
            dashboard.finish()
            self._set_status(dashboard)
        self.flush()

    def close(self) -> None:
        """Give sent data a moment to arrive, then close."""
        for router in self._routers[:_OVER_ROOT]:
            router.close(linger=_LINGER_MS)
        if self._link is not None:
            self._link.close(_LINGER_MS)
        if self._root is not None:
            self._root.close()
        self._context.term()

    def _send_now(self, address: _Address, payload: bytes) -> None:
        with suppress(zmq.ZMQError):  # the dashboard will ask again
            self._send(address, [payload])

    def _send(self, address: _Address, payloads: list[bytes]) -> None:
        place, identity = address
        parts = [b"".join(map(codec.frame, payloads))] if place == _OVER_ROOT else payloads
        self._routers[place].send_multipart([identity, *parts], zmq.NOBLOCK)

    def _renew(self, address: _Address, join: Join, now_s: float) -> None:
        if join.protocol != PROTOCOL_VERSION:
            self._send_now(address, self._welcome)  # the reason why it receives nothing else
            return
        dashboard = self._dashboards.get(address)
        if dashboard is None:
            if len(self._dashboards) >= MAX_DASHBOARDS:
                self._send_now(address, _FULL)
                return
            dashboard = DashboardClient(self._ranks.bad_frames + self._bad_frames)
            self._dashboards[address] = dashboard
            payloads = [self._welcome, *filter(None, (self._gathered,))]
            commands = [Frame(payload, KEPT) for payload in self._commands.replay()]
            history = [*(Frame(each, KEPT) for each in payloads), *self._history.replay(), *commands]
            dashboard.begin(history, self._most_history_bytes(address, join))
            self._set_status(dashboard)  # at once: it also marks the end of the history
        dashboard.expires_s = now_s + READER_TIMEOUT_S
        dashboard.grant(join.received_bytes, min(join.window_bytes, _MAX_WINDOW_BYTES))
        wanted = frozenset(join.detail_ranks)
        for rank in sorted(wanted - dashboard.detail_ranks):
            if (frame := self._history.detail(rank)) is not None:
                dashboard.put(frame)
        dashboard.detail_ranks = wanted
        self._bursts += join.bursts > dashboard.bursts
        dashboard.bursts = join.bursts

    def _most_history_bytes(self, address: _Address, join: Join) -> float:
        """Return a reader's limit. Over the root, this node has its share, as it has of the job's ranks."""
        if join.window_bytes >= _NEAR_WINDOW_BYTES:
            return float("inf")
        ranks = len(self._ranks.numbers)
        share_bytes = _OVER_ROOT_HISTORY_BYTES * ranks // max(1, ranks, self._world_size)
        return min(_FAR_HISTORY_BYTES, share_bytes) if address[0] == _OVER_ROOT else _FAR_HISTORY_BYTES

    def _set_status(self, dashboard: DashboardClient) -> None:
        status = self._ranks.status()
        bad_frames = status.dropped + self._bad_frames - dashboard.bad_frames_before
        dashboard.status = encode(replace(status, dropped=dashboard.dropped + bad_frames))

    def _update_watched(self) -> None:
        wanted = (dashboard.detail_ranks for dashboard in self._dashboards.values())
        self._ranks.watch(frozenset().union(*wanted), self._bursts)


def _may_command(address: _Address) -> bool:
    place, identity = address
    return place == 0 or (place == _OVER_ROOT and identity[:1] == READER_MAY_COMMAND)
