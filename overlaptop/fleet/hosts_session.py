"""HostsSession: the job on other hosts, with the connections to them."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence

from overlaptop.fleet.cluster_session import ClusterSession
from overlaptop.fleet.job_session import JobSelector
from overlaptop.remote.host import RemoteHost
from overlaptop.remote.pool import ConnectionPool
from overlaptop.wire.endpoints import JobRecord

JOBS_S = 5.0
"""For hosts that were reached to send their jobs."""


class HostsSession(ClusterSession):
    """The job on these hosts, with the connections to them."""

    def __init__(
        self,
        pool: ConnectionPool,
        hosts: Sequence[RemoteHost],
        selector: JobSelector | None = None,
        *,
        readonly: bool = False,
    ) -> None:
        """``hosts``: those of the pool. ``selector``, ``readonly``: as ClusterSession has them."""
        super().__init__(hosts, selector, readonly=readonly, poll=pool.poll)
        self._pool = pool
        self.hosts = tuple(hosts)

    def fileno(self) -> int:
        """Readable whenever `receive` has something to do."""
        return self._pool.fileno()

    def receive(self) -> None:
        """Read what has arrived."""
        self._pool.receive()

    def retry(self) -> None:
        """Reconnect those that are down at once."""
        for connection in self._pool.connections:
            connection.retry()

    def pause(self, seconds: float) -> None:
        """Wait, and read at once what arrives meanwhile, for the sake of the hosts' clocks."""
        deadline_s = time.monotonic() + seconds
        while (left_s := deadline_s - time.monotonic()) > 0:
            if select.select([self.fileno()], [], [], left_s)[0]:
                self.receive()

    def find_jobs(self) -> Sequence[JobRecord]:
        """The jobs of all hosts, once each of those that were reached has sent its own."""
        deadline_s = time.monotonic() + JOBS_S
        while True:
            self.tick()
            if all(host.known or not host.up for host in self.hosts) or time.monotonic() > deadline_s:
                break
            self.pause(0.02)
        self._look_at_s = 0.0
        self.tick()
        return self.jobs

    def close(self) -> None:
        """Close all connections at once."""
        self._pool.close()
        super().close()
