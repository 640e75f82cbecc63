"""Jobs of other hosts: the hosts of a command line, and the session that watches them."""

import sys
import time
from dataclasses import dataclass

from overlaptop.commands.output import CommandError, print_message
from overlaptop.fleet.cluster_session import HostsSession
from overlaptop.fleet.job_session import JobSelector, Tap
from overlaptop.fleet.session import Session
from overlaptop.fleet.snapshot import Snapshot
from overlaptop.jobs.credit import DEFAULT_BYTES_PER_S
from overlaptop.remote.connection import ConnectionState
from overlaptop.remote.pool import ConnectionPool
from overlaptop.remote.targets import Target


@dataclass(frozen=True, slots=True)
class Hosts:
    """The hosts of a command line, and how to reach them."""

    targets: tuple[Target, ...]
    """At least one host."""
    python: str = ""
    """The interpreter there; empty: the job's."""
    remote_dir: str = ""
    """The folder of the jobs' sockets there; empty: the default."""
    bytes_per_s: int = 0
    """Limit of each connection's data rate; 0: no limit."""


def report_connections(snapshot: Snapshot, lost: set[str]) -> None:
    """Print on stderr which hosts are lost or back since the last snapshot. `lost`: those lost then."""
    for node in snapshot.nodes:
        if node.lost and node.name not in lost:
            lost.add(node.name)
            print_message(f"{node.name}: lost" + (f": {node.note}" if node.note else ""))
        elif not node.lost and node.name in lost:
            lost.discard(node.name)
            print_message(f"{node.name}: back")


def pause(session: Session, seconds: float) -> None:
    if isinstance(session, HostsSession):
        session.pause(seconds)
    else:
        time.sleep(seconds)


def host_of(session: Session, rank: int) -> str:
    """Return the rank's host as the user named it; empty: this machine."""
    if not isinstance(session, HostsSession):
        return ""
    return next((view.node for view in session.tick().ranks if view.rank == rank), "")


def connect(
    hosts: Hosts, selector: JobSelector | None = None, *, readonly: bool = False, tap: Tap | None = None
) -> HostsSession:
    """Reach the hosts; ssh asks on the terminal. CommandError if none can be reached yet."""
    try:
        pool = ConnectionPool(
            hosts.targets,
            python=hosts.python,
            remote_dir=hosts.remote_dir,
            readonly=readonly,
            report=print_message,
        )
    except ValueError as fault:
        raise CommandError(str(fault), 2) from fault
    pool.connect(interactive=sys.stdin.isatty())
    if not any(host.state is ConnectionState.UP for host in pool.hosts):
        pool.close()
        count = len(hosts.targets)
        raise CommandError(
            "the host cannot be reached" if count == 1 else f"none of {count} hosts can be reached"
        )
    for host in pool.hosts:
        host.limit_bytes_per_s = hosts.bytes_per_s or DEFAULT_BYTES_PER_S
    return HostsSession(pool, selector, readonly=readonly, tap=tap)
