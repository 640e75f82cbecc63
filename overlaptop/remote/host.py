"""One host's jobs, and the connection to the hub of one of them, over the connection to that host."""

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from selectors import EVENT_READ
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from overlaptop.jobs.clock import ClockOffset
from overlaptop.jobs.credit import DEFAULT_BYTES_PER_S, Credit
from overlaptop.jobs.record import JobRecord
from overlaptop.remote.connection import Connection, ConnectionState
from overlaptop.text import printable
from overlaptop.wire.codec import encode
from overlaptop.wire.commands import Command
from overlaptop.wire.devices import DeviceSample
from overlaptop.wire.joining import GatheredHub
from overlaptop.wire.messages import (
    Found,
    GroupCalls,
    HubStatus,
    Notice,
    RankEnd,
    RankStalled,
    StackSamples,
    StepDetail,
    StepTotals,
    Welcome,
)
from overlaptop.wire.schema import Message

if TYPE_CHECKING:
    from overlaptop.jobs.hub_socket import HubConnection, HubReader, HubSocket

_MAX_WAITING = 1 << 14  # Messages from a hub kept until `poll`. The oldest are dropped.
_REJOIN_S = 0.5  # Minimum time between two connections to a hub that closes them, or does not exist
MAX_SAMPLE_CHARS = 1 << 12
"""Maximum text in one sample of a GPU. A hundred samples of each rank are kept, each with its own texts."""


class RemoteReader:
    """A HubConnection to another host, with Unix times of this machine's clock."""

    def __init__(self, to_local_ns: Callable[[int], int], monotonic_s: Callable[[], float]) -> None:
        """``to_local_ns``: converts a Unix time of the hub's host."""
        self._to_local_ns, self._monotonic_s = to_local_ns, monotonic_s
        self.reader: HubReader | None = None  # Set while there is a connection
        self._ranks: frozenset[int] = frozenset()
        self._bursts = 0
        self._untaken: deque[Message] = deque(maxlen=_MAX_WAITING)
        self._received_at_s: float | None = None
        self._dropped = 0

    @property
    def alive(self) -> bool:
        raise NotImplementedError

    @property
    def last_received_s(self) -> float | None:
        return None if self._received_at_s is None else self._monotonic_s() - self._received_at_s

    @property
    def dropped(self) -> int:
        return self._dropped + (0 if self.reader is None else self.reader.dropped)

    def poll(self) -> list[Message]:
        self.receive()
        messages, self._untaken = list(self._untaken), deque(maxlen=_MAX_WAITING)
        return messages

    def watch(self, ranks: Collection[int], bursts: int = 0) -> None:
        self._ranks, self._bursts = frozenset(ranks), bursts
        if self.reader is not None:
            self.reader.watch(ranks, bursts)

    def send(self, message: Command | Found) -> bool:
        encode(message)  # an invalid command is an error, with or without a connection
        return self.reader is not None and self.alive and self.reader.send(message)

    def close(self) -> None:
        self._untaken.clear()
        self.disconnect()

    def receive(self) -> None:
        if self.reader is not None:
            for message in self.reader.poll():
                self._received_at_s = self._monotonic_s()
                if self._is_wanted(message):
                    self._untaken.append(_shifted(message, self._to_local_ns))

    def disconnect(self) -> None:
        if self.reader is not None:
            self._dropped += self.reader.dropped
            self.reader.close()
            self.reader = None

    def _is_wanted(self, message: Message) -> bool:
        """Whether to keep a message. No real hub sends the others, and they could fill memory."""
        match message:
            case StepDetail():
                return message.rank in self._ranks
            case DeviceSample():
                reasons = (*(message.throttle_reasons or ()), *(each.reason for each in message.unknown))
                names = sum(len(each.name) for each in message.unknown)
                return names + sum(map(len, reasons)) <= MAX_SAMPLE_CHARS
            case _:
                return True


class RemoteHubConnection(RemoteReader):
    """A HubConnection that outlives the connection to its host.

    Without that, the hub counts as alive, and outgoing messages are lost. Each new one joins the hub again.
    """

    reader: "HubSocket | None"

    def __init__(self, host: "RemoteHost", job: str) -> None:
        super().__init__(host.clock.to_local_ns, host.monotonic_s)
        self._host = host
        self.job = job
        self._descriptor = -1
        self._joined_s = float("-inf")

    @property
    def alive(self) -> bool:
        """Whether the hub is alive, by the relay's last report."""
        closed = self._host.tunnel.closed
        return closed is None or closed.alive

    def close(self) -> None:
        super().close()
        self._host.release(self)

    def receive(self) -> None:
        super().receive()
        is_disconnected = self.reader is None or not self._host.tunnel.wanted.job
        if is_disconnected and self._host.ready and self._host.monotonic_s() - self._joined_s > _REJOIN_S:
            with suppress(OSError):  # no folder or descriptor for a socket: retried later
                self._connect()

    def disconnect(self) -> None:
        if self.reader is not None:
            self._host.selector.unregister(self._descriptor)
            super().disconnect()
            self._host.tunnel.leave()

    def _connect(self) -> None:
        # Importing zmq takes 40 ms, so it waits until there is a hub to connect to.
        from overlaptop.jobs.hub_socket import HubSocket

        self.disconnect()
        self._joined_s = self._host.monotonic_s()
        credit = Credit(time.monotonic, self._host.limit_bytes_per_s)
        path = self._host.tunnel.open(self.job)
        self.reader = HubSocket(path, credit=credit, on_pong=self._host.clock.add)
        self.reader.watch(self._ranks, self._bursts)
        self._descriptor = self.reader.descriptor
        self._host.selector.register(self._descriptor, EVENT_READ, self._host)


class RemoteHost(Connection):
    """One host for JobSession: its jobs, and the hub of one job at a time, over one connection."""

    limit_bytes_per_s = DEFAULT_BYTES_PER_S

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.clock = ClockOffset()  # Measured over the connection to a hub there
        self._hub: RemoteHubConnection | None = None

    @property
    def hub_socket(self) -> "HubSocket | None":
        return None if self._hub is None else self._hub.reader

    @property
    def gathered(self) -> Mapping[bytes, GatheredHub]:
        """Other nodes' hubs that can be reached over this connection (``--gather``), by node."""
        return {} if self.hub_socket is None else self.hub_socket.hubs

    @property
    def own_name(self) -> str:
        """As it calls itself. Empty until it is reached."""
        return "" if self.jobs is None else self.jobs.host

    @property
    def name(self) -> str:
        return self.target.name

    @property
    def known(self) -> bool:
        return self.jobs is not None

    @property
    def connecting(self) -> bool:
        return not self.known and self.state is not ConnectionState.FAILED

    @property
    def readonly(self) -> bool:
        return self.jobs is not None and self.jobs.readonly

    @property
    def note(self) -> str:
        """Why there is no relay, or why its list of jobs may be wrong, as one line. Usually empty."""
        return self.jobs.note if self.ready and self.jobs is not None else self.reason

    def receive(self) -> None:
        super().receive()
        if self._hub is not None:
            self._hub.receive()

    def list_jobs(self) -> Sequence[JobRecord]:
        """Return the host's last list of jobs, newest first, even while there is no connection."""
        return [
            replace(JobRecord.of_remote(job), started_ns=self.clock.to_local_ns(job.started_ns))
            for job in (() if self.jobs is None else self.jobs.jobs)
        ]

    def open_hub(self, record: JobRecord) -> "HubConnection":
        if self._hub is not None:
            self._hub.close()
        self._hub = RemoteHubConnection(self, record.job)
        self._hub.receive()
        return self._hub

    def is_gone(self, record: JobRecord) -> bool:
        """Whether no process of the job is left. False while there is no connection."""
        closed = self.tunnel.closed
        wanted = self._hub is not None and self._hub.job == record.job
        return wanted and closed is not None and closed.gone

    def release(self, hub: RemoteHubConnection) -> None:
        if self._hub is hub:
            self._hub = None
            self.tunnel.closed = None

    def relay_lost(self) -> None:
        super().relay_lost()
        if self._hub is not None:
            self._hub.disconnect()


def _shifted(message: Message, to_local_ns: Callable[[int], int]) -> Message:
    """Return the message with its Unix times on this machine's clock."""
    match message:
        case StepTotals() | StepDetail():
            return replace(message, start_ns=to_local_ns(message.start_ns))
        case Notice() | RankEnd() | Command() | HubStatus() | DeviceSample():
            return replace(message, at_ns=to_local_ns(message.at_ns))
        case Welcome():
            return replace(message, started_ns=to_local_ns(message.started_ns))
        case RankStalled():
            since_ns = None if message.since_ns is None else to_local_ns(message.since_ns)
            groups = tuple(_shifted_calls(each, to_local_ns) for each in message.groups)
            return replace(message, groups=groups, since_ns=since_ns)
        case StackSamples():
            return replace(message, from_ns=to_local_ns(message.from_ns), to_ns=to_local_ns(message.to_ns))
        case _:
            return message


def _shifted_calls(group: GroupCalls, to_local_ns: Callable[[int], int]) -> GroupCalls:
    return replace(group, calls=tuple(replace(call, at_ns=to_local_ns(call.at_ns)) for call in group.calls))


class GatheredHost:
    """One host for JobSession. Its connection is the root's."""

    connecting, known = False, True
    detail = ""
    bytes_per_s: float | None = None

    def __init__(self, root: RemoteHost, hub: GatheredHub, name: str) -> None:
        """``hub``: one of the root's. ``name``: unique among the job's hosts."""
        self.root, self.node, self.name = root, hub.node, name
        self._own_name = printable(hub.host)
        self.clock, self._to_root = ClockOffset(), hub.clock
        self._hub: GatheredHubConnection | None = None
        self.maintain()

    @property
    def ready(self) -> bool:
        return self.root.ready and self.node in self.root.gathered

    @property
    def readonly(self) -> bool:
        return self.root.readonly

    @property
    def note(self) -> str:
        """Why it is not ready, as one line."""
        if self.ready:
            return ""
        return self.root.note or f"its hub is not connected to the one on {self.root.name}"

    def maintain(self) -> None:
        if (hub := self.root.gathered.get(self.node)) is not None:
            self._to_root = hub.clock
        self.clock.add_up(self.root.clock, self._to_root)

    def list_jobs(self) -> Sequence[JobRecord]:
        """Return the root's jobs as jobs of this host."""
        return [replace(each, host=self._own_name, rank_pids=()) for each in self.root.list_jobs()]

    def open_hub(self, record: JobRecord) -> "HubConnection":
        if self._hub is not None:
            self._hub.close()
        self._hub = GatheredHubConnection(self, record)
        self._hub.receive()
        return self._hub

    def is_gone(self, record: JobRecord) -> bool:
        """Whether the root's processes are gone, without which no job goes on."""
        return self.root.is_gone(record)

    def close(self) -> None:
        """Leave the connection, which is the root's."""


class GatheredHubConnection(RemoteReader):
    """A HubConnection through the root's. It outlives that."""

    def __init__(self, host: GatheredHost, record: JobRecord) -> None:
        super().__init__(host.clock.to_local_ns, host.root.monotonic_s)
        self._host, self._record = host, record
        self._socket: HubSocket | None = None

    @property
    def alive(self) -> bool:
        """Whether the job may be alive: then the hub counts as alive, too."""
        return not self._host.is_gone(self._record)

    @property
    def last_received_s(self) -> float | None:
        """0 while the root lists the hub: messages to a reader of many hubs may be late."""
        received_s = super().last_received_s
        return received_s if received_s is None or not self._host.ready else 0.0

    def receive(self) -> None:
        """Process messages. Follow the root to another connection."""
        super().receive()
        socket = self._host.root.hub_socket
        if socket is not self._socket:
            self.disconnect()
            self._socket = socket
            if socket is not None:
                credit = Credit(time.monotonic, self._host.root.limit_bytes_per_s)
                self.reader = socket.join(self._host.node, credit)
                self.reader.watch(self._ranks, self._bursts)
