"""Jobs of other hosts: what a command line says of them, and the session that watches them."""

from __future__ import annotations

import argparse
import select
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from overlaptop.commands import CommandError, say
from overlaptop.fleet.cluster import ClusterSession
from overlaptop.fleet.session import JobSelector
from overlaptop.fleet.snapshot import Snapshot
from overlaptop.remote import targets
from overlaptop.remote.line import LineState
from overlaptop.remote.link import RemoteHost
from overlaptop.remote.pool import LinePool
from overlaptop.remote.targets import Target
from overlaptop.tui import Session
from overlaptop.wire.endpoints import JobRecord

JOBS_S = 5.0
"""For hosts that were reached to say which jobs they have."""


@dataclass(frozen=True, slots=True)
class Hosts:
    """The hosts that a command line names, and how they are to be reached."""

    targets: tuple[Target, ...]
    """One at least."""
    python: str = ""
    """The interpreter there; empty: the job's."""
    remote_dir: str = ""
    """The folder of the jobs' sockets there; empty: where it is by itself."""
    bytes_per_s: int = 0
    """What each line may carry; 0: as much as it can."""


def named(options: argparse.Namespace) -> Hosts | None:
    """Of options that parsers.add_hosts has added; None where no host is named.

    Raises CommandError with status 2 for what names no host, and for options that go with one.
    """
    try:
        found = targets.named(options.host, options.hosts, options.via)
    except (ValueError, OSError) as fault:
        why = str(fault) if isinstance(fault, ValueError) else f"--hosts {options.hosts}: {fault.strerror}"
        raise CommandError(why, 2) from fault
    if found:
        return Hosts(found, options.python, options.remote_dir, options.rate)
    for option in ("python", "remote-dir", "rate"):
        if getattr(options, option.replace("-", "_")):
            raise CommandError(f"--{option} goes with a host", 2)
    return None


class HostsSession(ClusterSession):
    """The job on these hosts, with the lines to them; for the dashboard these are its options.Lines."""

    def __init__(
        self,
        pool: LinePool,
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


class LineTeller:
    """Says on stderr which hosts are lost while a job is followed, and which are back."""

    def __init__(self) -> None:
        self._lost: set[str] = set()

    def tell(self, snapshot: Snapshot) -> None:
        """Say what has changed since the last one."""
        for node in snapshot.nodes:
            if node.lost and node.name not in self._lost:
                self._lost.add(node.name)
                say(f"{node.name}: lost" + (f": {node.note}" if node.note else ""))
            elif not node.lost and node.name in self._lost:
                self._lost.discard(node.name)
                say(f"{node.name}: back")


def pause(session: Session, seconds: float) -> None:
    """Wait between two looks at a session."""
    if isinstance(session, HostsSession):
        session.pause(seconds)
    else:
        time.sleep(seconds)


def home_of(session: Session, rank: int) -> str:
    """The host that a rank runs on, as it was named; empty: this machine."""
    if not isinstance(session, HostsSession):
        return ""
    return next((view.node for view in session.tick().ranks if view.rank == rank), "")


def connect(hosts: Hosts, selector: JobSelector | None = None, *, readonly: bool = False) -> HostsSession:
    """Reach the hosts; what becomes of each is said, and what ssh asks is asked on the terminal.

    Those that cannot be reached are tried on. CommandError where none can.
    """
    try:
        pool = LinePool(
            hosts.targets, python=hosts.python, remote_dir=hosts.remote_dir, readonly=readonly, say=say
        )
    except ValueError as fault:
        raise CommandError(str(fault), 2) from fault
    pool.connect(interactive=sys.stdin.isatty())
    if not any(line.state is LineState.UP for line in pool.lines):
        pool.close()
        count = len(hosts.targets)
        raise CommandError(
            "the host cannot be reached" if count == 1 else f"none of {count} hosts can be reached"
        )
    found = [RemoteHost(line) for line in pool.lines]
    if hosts.bytes_per_s:
        for host in found:
            host.limit(hosts.bytes_per_s, 0.0)
    return HostsSession(pool, found, selector, readonly=readonly)
