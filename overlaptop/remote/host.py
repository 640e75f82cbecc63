"""One host's jobs, and the connection to the hub of one of them, over the connection to that host."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from selectors import EVENT_READ
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from overlaptop.jobs.clock import ClockOffset
from overlaptop.jobs.credit import DEFAULT_BYTES_PER_S
from overlaptop.jobs.hub_reader import HubReader
from overlaptop.jobs.record import JobRecord
from overlaptop.remote.connection import Connection, ConnectionState
from overlaptop.text import printable
from overlaptop.wire.commands import Command
from overlaptop.wire.devices import DeviceSample
from overlaptop.wire.joining import GatheredHub
from overlaptop.wire.messages import (
    Found,
    HubStatus,
    IssuedCall,
    Notice,
    RankEnd,
    RankStalled,
    StackSamples,
    StepDetail,
    StepTotals,
    Welcome,
)
from overlaptop.wire.schema import Message, Part

if TYPE_CHECKING:
    from overlaptop.jobs.hub_reader import HubConnection
    from overlaptop.jobs.hub_socket import HubSocket

_REJOIN_S = 0.5  # Minimum time between two connections to a hub that closes them, or does not exist
MAX_SAMPLE_CHARS = 1 << 12
"""Maximum text in one sample of a GPU. A hundred samples of each rank are kept, each with its own texts."""
_UNIX_TIMES: Mapping[type[Part], tuple[str, ...]] = {
    StepTotals: ("start_ns",),
    StepDetail: ("start_ns",),
    DeviceSample: ("at_ns",),
    HubStatus: ("at_ns",),
    Notice: ("at_ns",),
    RankEnd: ("at_ns",),
    Command: ("at_ns",),
    IssuedCall: ("at_ns",),
    RankStalled: ("since_ns",),
    StackSamples: ("from_ns", "to_ns"),
    Welcome: ("started_ns",),
}


class RemoteHub(HubReader):
    """A HubConnection that outlives the connections to its host, with Unix times of this machine's clock.

    Without a connection, the hub counts as alive, and outgoing messages are lost. Each new one joins the
    hub again.
    """

    def __init__(self, host: "RemoteHost | GatheredHost", record: JobRecord) -> None:
        root, is_root = host.root, host.root is host
        super().__init__(root.limit_bytes_per_s, host.clock.add if is_root else None, root.monotonic_s)
        self._host = host
        self.record = record

    @property
    def alive(self) -> bool:
        return self._host.is_hub_alive(self.record)

    @property
    def last_received_s(self) -> float | None:
        """0 while the root lists the hub: messages to a reader of many hubs may be late."""
        is_listed = self._host.root is not self._host and self._host.ready
        return 0.0 if is_listed and self._received_at_s is not None else super().last_received_s

    def poll(self) -> list[Message]:
        self._host.receive()
        return super().poll()

    def send(self, message: Command | Found) -> bool:
        return self.alive and super().send(message)

    def close(self) -> None:
        self._host.release(self)
        self.disconnect()

    def keep(self, message: Message) -> None:
        """Keep a message unless no real hub sends it: it could fill memory."""
        match message:
            case StepDetail() if message.rank not in self._ranks:
                return
            case DeviceSample():
                reasons = (*(message.throttle_reasons or ()), *(each.reason for each in message.unknown))
                names = sum(len(each.name) for each in message.unknown)
                if names + sum(map(len, reasons)) > MAX_SAMPLE_CHARS:
                    return
        super().keep(_shifted(message, self._host.clock.to_local_ns))


class RemoteHost(Connection):
    """One host for JobSession: its jobs, and the hub of one job at a time, over one connection."""

    limit_bytes_per_s = DEFAULT_BYTES_PER_S

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.clock = ClockOffset()  # Measured over the connection to a hub there
        self.root = self  # The host whose connection carries that to the hub
        self.hub_socket: HubSocket | None = None
        self._descriptor = -1
        self._joined_s = float("-inf")
        self._hub: RemoteHub | None = None

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
        is_joined = self.hub_socket is not None and self.tunnel.wanted.job
        if self._hub is not None and self.ready and not is_joined:
            now_s = self.monotonic_s()
            if now_s - self._joined_s > _REJOIN_S:
                self._joined_s = now_s
                with suppress(OSError):  # no folder or descriptor for a socket: retried later
                    self._join(self._hub)
        if self.hub_socket is not None:
            self.hub_socket.receive()

    def list_jobs(self) -> Sequence[JobRecord]:
        """Return the host's last list of jobs, newest first, even while there is no connection."""
        return [
            replace(JobRecord.of_remote(job), started_ns=self.clock.to_local_ns(job.started_ns))
            for job in (() if self.jobs is None else self.jobs.jobs)
        ]

    def open_hub(self, record: JobRecord) -> "HubConnection":
        if self._hub is not None:
            self._hub.close()
        self._hub = RemoteHub(self, record)
        self.receive()
        return self._hub

    def is_hub_alive(self, _record: JobRecord) -> bool:
        """Whether the joined hub is alive, by the relay's last report."""
        closed = self.tunnel.closed
        return closed is None or closed.alive

    def is_gone(self, record: JobRecord) -> bool:
        """Whether no process of the job is left. False while there is no connection."""
        closed = self.tunnel.closed
        wanted = self._hub is not None and self._hub.record.job == record.job
        return wanted and closed is not None and closed.gone

    def release(self, hub: RemoteHub) -> None:
        if self._hub is hub:
            self._hub = None
            self.relay_lost()

    def relay_lost(self) -> None:
        super().relay_lost()
        self._close_socket()

    def _join(self, hub: RemoteHub) -> None:
        # Importing zmq takes 40 ms, so it waits until there is a hub to connect to.
        from overlaptop.jobs.hub_socket import HubSocket

        self._close_socket()
        with tempfile.TemporaryDirectory(prefix="overlaptop-") as folder:
            path = Path(folder) / "hub.sock"
            self.hub_socket = HubSocket(path, bind=True)
            self._descriptor = self.hub_socket.descriptor
            self.selector.register(self._descriptor, EVENT_READ, self)
            self.tunnel.open(hub.record.job, path)
        hub.connect(self.hub_socket)

    def _close_socket(self) -> None:
        if self.hub_socket is not None:
            self.selector.unregister(self._descriptor)
            self.hub_socket.close()
            self.hub_socket = None


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
        self._hub: RemoteHub | None = None
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

    def receive(self) -> None:
        """Follow the root to another connection, which receives for all hubs."""
        if self._hub is not None and self._hub.carrier is None and self.root.hub_socket is not None:
            self._hub.connect(self.root.hub_socket, self.node)

    def list_jobs(self) -> Sequence[JobRecord]:
        """Return the root's jobs as jobs of this host."""
        return [replace(each, host=self._own_name, rank_pids=()) for each in self.root.list_jobs()]

    def open_hub(self, record: JobRecord) -> "HubConnection":
        if self._hub is not None:
            self._hub.close()
        self._hub = RemoteHub(self, record)
        self.receive()
        return self._hub

    def is_hub_alive(self, record: JobRecord) -> bool:
        """Whether the job may be alive: then the hub counts as alive, too."""
        return not self.is_gone(record)

    def is_gone(self, record: JobRecord) -> bool:
        """Whether the root's processes are gone, without which no job goes on."""
        return self.root.is_gone(record)

    def release(self, hub: RemoteHub) -> None:
        if self._hub is hub:
            self._hub = None

    def close(self) -> None:
        """Leave the connection, which is the root's."""


def _shifted(part: Any, to_local_ns: Callable[[int], int]) -> Any:
    """Return the message, or a part of one, with its Unix times on this machine's clock."""
    times_ns = ((name, getattr(part, name)) for name in _UNIX_TIMES.get(type(part), ()))
    changed: dict[str, Any] = {name: to_local_ns(at_ns) for name, at_ns in times_ns if at_ns is not None}
    if isinstance(part, RankStalled):
        calls = (tuple(_shifted(call, to_local_ns) for call in group.calls) for group in part.groups)
        groups = zip(part.groups, calls, strict=True)
        changed["groups"] = tuple(replace(group, calls=shifted) for group, shifted in groups)
    return replace(part, **changed) if changed else part
