"""Sessions of jobs on other hosts, with the connections to these."""

import select
import socket
import time
from collections.abc import Sequence

from overlaptop.fleet.job_session import JobSelector, JobSession, LocalHost, Tap
from overlaptop.fleet.snapshot import Snapshot
from overlaptop.jobs.record import JobRecord
from overlaptop.remote.host import GatheredHost
from overlaptop.remote.pool import ConnectionPool
from overlaptop.remote.targets import LOCAL, Target
from overlaptop.text import printable
from overlaptop.wire.joining import MAX_HUBS

JOBS_S = 5.0  # How long reached hosts have to send their jobs
HERE = Target(socket.gethostname(), LOCAL)
"""This machine by a relay, which carries the connections to all nodes."""
HERE_BYTES_PER_S = 64 << 20


class HostsSession(JobSession):
    """The job on these hosts. Owns the connections to them."""

    def __init__(
        self,
        pool: ConnectionPool,
        selector: JobSelector | None = None,
        *,
        readonly: bool = False,
        tap: Tap | None = None,
    ) -> None:
        super().__init__(selector, pool.hosts, readonly=readonly, tap=tap)
        self._pool = pool
        self.hosts = pool.hosts

    def fileno(self) -> int:
        """Return a descriptor that is readable whenever `receive` has work. It is always the same."""
        return self._pool.fileno()

    def receive(self) -> None:
        """Read all messages that have arrived. Never blocks."""
        self._pool.receive()

    def retry(self) -> None:
        """Reconnect all lost hosts at once."""
        for host in self.hosts:
            host.retry()

    def pause(self, seconds: float) -> None:
        """Wait, and read messages as they arrive: clock offsets need exact arrival times."""
        deadline_s = time.monotonic() + seconds
        while (left_s := deadline_s - time.monotonic()) > 0:
            if select.select([self.fileno()], [], [], left_s)[0]:
                self.receive()

    def find_jobs(self) -> Sequence[JobRecord]:
        """Return the jobs of all hosts, after each reached host has sent its own."""
        deadline_s = time.monotonic() + JOBS_S
        while True:
            self.tick()
            if all(host.known or not host.ready for host in self.hosts) or time.monotonic() > deadline_s:
                break
            self.pause(0.02)
        self._look_at_s = 0.0
        self.tick()
        return self.jobs

    def close(self) -> None:
        self._pool.close()
        super().close()

    def _add_gathered(self) -> None:
        followed = {node.host.node for node in self._nodes if isinstance(node.host, GatheredHost)}
        for root in self.hosts:
            named = {each.own_name for each in self.hosts if each is not root and root.gathered}
            for hub in root.gathered.values():
                if hub.node in followed or hub.host in named or len(self._nodes) >= MAX_HUBS:
                    continue
                name = printable(hub.host)
                if any(node.host.name == name for node in self._nodes):
                    name = f"{name}-{hub.node.hex()[-4:]}"
                self._nodes = (*self._nodes, self._follow(GatheredHost(root, hub, name)))
                self._look_at_s = 0.0


class LocalSession(HostsSession):
    """A job on this machine. If its hub is the root of a gathered job, from then on the job on all its
    nodes, over a relay.
    """

    def __init__(self, selector: JobSelector, *, readonly: bool = False, tap: Tap | None = None) -> None:
        # Nothing is started before there is such a job.
        pool = ConnectionPool((HERE,), lambda _: None, readonly=readonly)
        for host in pool.hosts:
            host.limit_bytes_per_s = HERE_BYTES_PER_S
        super().__init__(pool, selector, readonly=readonly, tap=tap)
        self._follow_all((LocalHost(),))

    def tick(self) -> Snapshot:
        snapshot = super().tick()
        record = self._nodes[0].record
        if not self._is_local or record is None or not record.is_root:
            return snapshot
        self._nodes[0].close()
        self._follow_all(self.hosts)
        self._turn_to(record.job)
        return super().tick()
