"""The messages between a dashboard and ``overlaptop relay --stdio`` on another host.

The client is the dashboard; one command's standard input and output join it to the relay. The relay
writes MAGIC first, then frames (see codec.frame), of which the first is RelayHello. Besides what is here
the client sends Join and Command: the relay checks them and passes them to the hub of the selected
job. The hub's messages come back unchanged.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from overlaptop.wire.bounds import MAX_RANKS, Count, Int64, Rank, Text, UnixNs
from overlaptop.wire.protocol import JOB_KEY
from overlaptop.wire.schema import Message, Part

MAGIC = b"\n\x00OVERLAPTOP RELAY 1\n"
"""What the relay writes first: whatever a login shell prints before it is passed over."""

MAX_JOBS = 64
MAX_BYTES_PER_S = 1 << 40

JobKey = Annotated[str, Meta(pattern=JOB_KEY)]
JobKeyOrNone = Annotated[str, Meta(pattern=rf"{JOB_KEY}|\A\Z")]


class RelayHello(Message, frozen=True, tag=32):
    """Relay -> client, before anything else: who it is."""

    protocol: Count
    version: Text
    host: Text
    pid: Count
    at_ns: UnixNs
    readonly: bool
    """The relay passes no Command on."""


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


class RelayJobs(Message, frozen=True, tag=33):
    """Relay -> client, on change and every two seconds: this user's jobs on the host, newest first."""

    jobs: Annotated[tuple[RemoteJob, ...], Meta(max_length=MAX_JOBS)]
    note: Text
    """Why the list may be wrong, in words for the screen; empty: it is not."""


class RelaySelect(Message, frozen=True, tag=34):
    """Client -> relay: join the hub of this job, in place of the one before.

    The answer is a RelayStatus of that job. That hub's messages follow it; those before it are of
    the job before.
    """

    job: JobKeyOrNone
    """Its key; empty: join none."""


class RelayStatus(Message, frozen=True, tag=35):
    """Relay -> client, on every change: how the selected job is."""

    job: Text
    alive: bool
    gone: bool = False
    """None of its processes is left that could start a hub again."""


class RelayPing(Message, frozen=True, tag=36):
    """Client -> relay, once a second: are you there?"""

    number: Count
    received_bytes: Count = 0
    """All that has come over the connection behind MAGIC. By this the relay knows how much of what it wrote
    is still in flight, and keeps that to what the connection carries in little more than a second.
    """


class RelayPong(Message, frozen=True, tag=37):
    """Relay -> client, in answer. Times are Unix ns of the relay's host's clock."""

    number: Count
    received_ns: UnixNs
    sent_ns: UnixNs
    dropped: Count = 0
    """Frames of the hub that the relay has not passed on since it began: the connection is too slow, or
    limited."""
    every: Count = 1
    """It passes on the steps whose number is a multiple of this, and those measured alike."""


class RelayLimit(Message, frozen=True, tag=38):
    """Client -> relay: how much the user wants the connection to carry at most. 0: as much as it can."""

    bytes_per_s: Annotated[int, Meta(ge=0, le=MAX_BYTES_PER_S)]
