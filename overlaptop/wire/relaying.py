"""Messages between this machine and ``overlaptop relay --stdio`` on another host.

The standard input and output of one command connect the two. The relay writes MAGIC, then frames
(codec.frame) with these messages. RelayBytes carry the bytes of a connection to a hub's socket, as ZeroMQ
sends them. Neither end interprets them.
"""

from typing import Annotated

from msgspec import Meta

from overlaptop.wire.bounds import MAX_RANKS, Count, Int64, Rank, Text, UnixNs
from overlaptop.wire.protocol import JOB_KEY
from overlaptop.wire.schema import Message, Part

MAGIC = b"\n\x00OVERLAPTOP RELAY 2\n"
"""First output of the relay. Everything that a login shell prints before it is skipped."""

MAX_JOBS = 16
"""This many jobs, with the pids of all their ranks, fit into one frame."""
MAX_CHUNK_BYTES = 1 << 16

JobKey = Annotated[str, Meta(pattern=JOB_KEY)]
JobKeyOrNone = Annotated[str, Meta(pattern=rf"{JOB_KEY}|\A\Z")]


class RemoteJob(Part, frozen=True):
    """A JobRecord of the relay's host, without the fields that only matter there."""

    protocol: Count
    job: JobKey
    script: Text
    cwd: Text
    host: Text
    world_size: Rank
    starter_pid: Count
    starter_start_ticks: Count | None
    hub_pid: Count
    hub_start_ticks: Count
    started_ns: UnixNs
    dashboard_socket: Text
    rank_pids: Annotated[tuple[Int64, ...], Meta(max_length=MAX_RANKS)]
    ended: bool = False
    is_root: bool = False


class RelayJobs(Message, frozen=True, tag=48):
    """Relay -> client, first of all, on change and every two seconds: the relay's identity and its jobs."""

    protocol: Count
    version: Text
    host: Text
    readonly: bool
    """Hubs accept no commands through this relay."""
    jobs: Annotated[tuple[RemoteJob, ...], Meta(max_length=MAX_JOBS)]
    """This user's, newest first."""
    note: Text
    """Why the list may be wrong, as text for the screen. Empty if it is right."""


class RelayOpen(Message, frozen=True, tag=49):
    """Client -> relay, once a second and on change: the only connection that should be open."""

    connection: Count
    job: JobKeyOrNone
    """Job whose hub to connect to. Empty to close the connection."""


class RelayBytes(Message, frozen=True, tag=50):
    """Either way: the next bytes of this connection."""

    connection: Count
    data: Annotated[bytes, Meta(max_length=MAX_CHUNK_BYTES)]


class RelayClosed(Message, frozen=True, tag=51):
    """Relay -> client: the hub has closed this connection, or there is no hub to connect to."""

    connection: Count
    alive: bool
    """The hub's process runs."""
    gone: bool
    """No process of the job is left that could start a new hub."""
