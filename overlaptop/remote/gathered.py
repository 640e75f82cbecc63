"""Another node of a job, whose hub is reached through the hub of the first one (``--gather``)."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from overlaptop.jobs.clock import ClockOffset, bounded_ns
from overlaptop.jobs.credit import Credit
from overlaptop.jobs.record import JobRecord
from overlaptop.remote.host import RemoteHost, RemoteReader
from overlaptop.text import printable
from overlaptop.wire.gathering import GatheredHub, HubClock

if TYPE_CHECKING:
    from overlaptop.jobs.hub_connection import HubConnection
    from overlaptop.jobs.hub_socket import HubSocket


class GatheredClock:
    """As a ClockOffset: this machine has measured the root's clock, and the root's network the node's."""

    def __init__(self, root: ClockOffset, node: HubClock) -> None:
        self._root = root
        self.node = node

    @property
    def offset_ns(self) -> int | None:
        root_ns = self._root.offset_ns
        return None if root_ns is None else root_ns + self.node.offset_ns

    @property
    def residual_ns(self) -> int | None:
        root_ns = self._root.residual_ns
        return None if root_ns is None else root_ns + self.node.residual_ns

    def to_local_ns(self, remote_ns: int) -> int:
        return bounded_ns(remote_ns - self.node.offset_ns - (self._root.offset_ns or 0))


class GatheredHost:
    """One host for JobSession. Its connection is the root's."""

    connecting, known = False, True
    detail = ""
    bytes_per_s: float | None = None

    def __init__(self, root: RemoteHost, hub: GatheredHub, name: str) -> None:
        """``hub``: one of the root's. ``name``: unique among the job's hosts."""
        self.root, self.node, self.name = root, hub.node, name
        self._own_name = printable(hub.host)
        self.clock = GatheredClock(root.clock, hub.clock)
        self.since_s = root.monotonic_s()
        """Monotonic time since which it is ready, or is not."""
        self._was_ready = True
        self._hub: GatheredHubConnection | None = None

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
            self.clock.node = hub.clock
        if self.ready != self._was_ready:
            self._was_ready, self.since_s = self.ready, self.root.monotonic_s()

    def list_jobs(self) -> Sequence[JobRecord]:
        """Return the root's jobs as jobs of this host: the session chooses among them."""
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
        """Do nothing: the connection is the root's."""


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
        """As in HubConnection. 0 while the root lists the hub, which it greets regularly: messages to a
        reader of many hubs may be seconds behind.
        """
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
