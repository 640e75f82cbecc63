"""LocalSession: a job on this machine, or on all its nodes if this is the first one of a gathered job."""

import socket
from collections.abc import Collection

from overlaptop.fleet.cluster_session import HostsSession
from overlaptop.fleet.job_session import JobSelector, JobSession, Tap
from overlaptop.fleet.snapshot import Snapshot
from overlaptop.jobs.record import JobRecord
from overlaptop.remote.pool import ConnectionPool
from overlaptop.remote.targets import LOCAL, Target
from overlaptop.wire.commands import Command
from overlaptop.wire.messages import Found

HERE = Target(socket.gethostname(), LOCAL)
"""This machine by a relay, which carries the connections to all nodes."""
HERE_BYTES_PER_S = 64 << 20


class LocalSession:
    """A JobSession, until its hub is the root of a gathered job; from then on a HostsSession."""

    def __init__(self, selector: JobSelector, *, readonly: bool = False, tap: Tap | None = None) -> None:
        """As in JobSession. Nothing is started before there is such a job."""
        pool = ConnectionPool((HERE,), lambda _: None, readonly=readonly)
        for host in pool.hosts:
            host.limit_bytes_per_s = HERE_BYTES_PER_S
        self._local = JobSession(selector, readonly=readonly, tap=tap)
        self._nodes = HostsSession(pool, selector, readonly=readonly, tap=tap)
        self._now: JobSession | HostsSession = self._local
        self._watched: tuple[Collection[int], int] = ((), 0)

    @property
    def jobs(self) -> tuple[JobRecord, ...]:
        return self._now.jobs

    @property
    def job_key(self) -> str | None:
        return self._now.job_key

    def tick(self) -> Snapshot:
        snapshot = self._now.tick()
        record = self._local.record if self._now is self._local else None
        if record is None or not record.is_root:
            return snapshot
        self._local.close()
        self._now = self._nodes
        self._now.select(record.job)
        self._now.watch(*self._watched)
        return self._now.tick()

    def watch(self, ranks: Collection[int], bursts: int = 0) -> None:
        self._watched = (ranks, bursts)
        self._now.watch(ranks, bursts)

    def send(self, message: Command | Found) -> str:
        return self._now.send(message)

    def select(self, key: str) -> None:
        self._now.select(key)

    def fileno(self) -> int:
        return self._nodes.fileno()

    def receive(self) -> None:
        self._nodes.receive()

    def retry(self) -> None:
        self._nodes.retry()

    def close(self) -> None:
        self._local.close()
        self._nodes.close()
