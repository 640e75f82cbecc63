"""HostsSession: the job on other hosts, with the connections to them."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence

from overlaptop.fleet.cluster_session import ClusterSession
from overlaptop.fleet.job_session import JobSelector
from overlaptop.remote.link import RemoteHost
from overlaptop.remote.pool import ConnectionPool
from overlaptop.wire.endpoints import JobRecord

JOBS_S = 5.0
"""For hosts that were reached to say which jobs they have."""


class HostsSession(ClusterSession):
    """The job on these hosts, with the lines to them; for the dashboard these are its options.Lines."""

    def __init__(
        self,
        pool: ConnectionPool,
        hosts: Sequence[RemoteHost],
        selector: JobSelector | None = None,
        *,
        readonly: bool = False,
    ) -> None:
        """``hosts``: those of the pool's lines. ``selector``, ``readonly``: as ClusterSession has them."""
        super().__init__(hosts, selector, readonly=readonly, poll=pool.poll)
        self._pool = pool
        self.hosts = tuple(hosts)

    def fileno(self) -> int:
        """Can be read from whenever `receive` has something to do."""
        return self._pool.fileno()

    def receive(self) -> None:
        """Take in what has come."""
        self._pool.receive()

    def retry(self) -> None:
        """Try lines that are down at once."""
        for line in self._pool.lines:
            line.retry()

    def pause(self, seconds: float) -> None:
        """Wait. What comes meanwhile is taken in at once: the hosts' clocks are known the better for it."""
        deadline_s = time.monotonic() + seconds
        while (left_s := deadline_s - time.monotonic()) > 0:
            if select.select([self.fileno()], [], [], left_s)[0]:
                self.receive()

    def find_jobs(self) -> Sequence[JobRecord]:
        """The jobs of all hosts, once each of those that were reached has told its own."""
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
        """Give up all lines, at once; nothing is left of them."""
        self._pool.close()
        super().close()
