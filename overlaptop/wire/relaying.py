"""What travels between this machine and ``overlaptop relay --stdio`` on another host.

The standard input and output of one command join the two. The relay writes MAGIC, then frames
(codec.frame) with these messages. Inside RelayBytes travel the bytes of a connection to a hub's socket,
as ZeroMQ sends them: neither end looks into them.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from overlaptop.wire.bounds import MAX_RANKS, Count, Int64, Rank, Text, UnixNs
from overlaptop.wire.protocol import JOB_KEY
from overlaptop.wire.schema import Message, Part

MAGIC = b"\n\x00OVERLAPTOP RELAY 2\n"
"""What the relay writes first: whatever a login shell prints before it is passed over."""

MAX_JOBS = 16
"""With the pids of all their ranks they fit into one frame."""
MAX_CHUNK_BYTES = 1 << 16

JobKey = Annotated[str, Meta(pattern=JOB_KEY)]
JobKeyOrNone = Annotated[str, Meta(pattern=rf"{JOB_KEY}|\A\Z")]


class RemoteJob(Part, frozen=True):
    """A JobRecord of the relay's host, without what is of use only there."""

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
    """Unix time of the relay's host's clock."""
    dashboard_socket: Text
    rank_pids: Annotated[tuple[Int64, ...], Meta(max_length=MAX_RANKS)]
    ended: bool = False


class RelayJobs(Message, frozen=True, tag=48):
    """Relay -> client, first of all, on change and every two seconds: who it is, which jobs there are."""

    protocol: Count
    version: Text
    host: Text
    readonly: bool
    """Hubs take no command over it."""
    jobs: Annotated[tuple[RemoteJob, ...], Meta(max_length=MAX_JOBS)]
    """This user's jobs on the host, newest first."""
    note: Text
    """Why the list may be wrong, in words for the screen; empty: it is not."""


class RelayOpen(Message, frozen=True, tag=49):
    """Client -> relay, once a second and on change: the connection that there should be, in place of any
    other.
    """

    connection: Count
    """Each has a number of its own."""
    job: JobKeyOrNone
    """To the hub of this job; empty: none is wanted."""


class RelayBytes(Message, frozen=True, tag=50):
    """Either way: the next bytes of this connection."""

    connection: Count
    data: Annotated[bytes, Meta(max_length=MAX_CHUNK_BYTES)]


class RelayClosed(Message, frozen=True, tag=51):
    """Relay -> client: the hub has closed this connection, or there is none to connect to."""

    connection: Count
    alive: bool
    """The hub's process runs."""
    gone: bool
    """None of the job's processes is left that could start a hub again."""
