"""The messages between a dashboard and ``overlaptop relay --stdio`` on another host.

The client is the dashboard; one command's standard input and output join it to the relay. The relay
writes MAGIC first, then frames (see codec.frame), of which the first is RelayHello. Besides what is here
the client sends Join and Command: the relay checks them and passes them to the hub of the selected
job. The hub's messages come back unchanged.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from overlaptop.wire.bounds import MAX_RANKS, MAX_TEXT_CHARS, Count, Int64, Rank, Text, UnixNs, one_of
from overlaptop.wire.protocol import JOB_KEY
from overlaptop.wire.schema import Message, Part

MAGIC = b"\n\x00OVERLAPTOP RELAY 1\n"
"""What the relay writes first: whatever a login shell prints before it is passed over."""

MAX_JOBS = 64
MAX_LAUNCH_WORDS = 64
MAX_NPROC = 256
MAX_OUTPUT_LINES = 200
MAX_OUTPUT_CHARS = 800
MAX_BYTES_PER_S = 1 << 40

LAUNCH_PHASES = ("nothing", "ending", "running", "over")
"""How far a launch request is: nothing was started, the job before is being ended, it runs, it ended or
could not be started."""

JobKey = Annotated[str, Meta(pattern=JOB_KEY)]
JobKeyOrNone = Annotated[str, Meta(pattern=rf"{JOB_KEY}|\A\Z")]
Owner = Annotated[str, Meta(pattern=r"\A([0-9a-f]{16})?\Z")]
Word = Annotated[str, Meta(max_length=MAX_TEXT_CHARS, pattern=r"\A[^\0]*\Z")]
OutputLine = Annotated[str, Meta(max_length=MAX_OUTPUT_CHARS)]


class RelayHello(Message, frozen=True, tag=32):
    """Relay -> client, before anything else: who it is."""

    protocol: Count
    version: Text
    host: Text
    pid: Count
    gpus: Count | None
    """GPUs that the host has; None: not known."""
    at_ns: UnixNs
    readonly: bool
    """The relay passes no Command on, and starts nothing."""


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


class RelayLaunch(Message, frozen=True, tag=39):
    """Client -> relay: start this bundled workload there, in place of the one before."""

    number: Count
    words: Annotated[tuple[Word, ...], Meta(max_length=MAX_LAUNCH_WORDS)]
    """The workload's name and its options, as on a command line; empty: end the one that runs."""
    nproc: Annotated[int, Meta(ge=1, le=MAX_NPROC)] | None
    """Processes; None: as many as suit the machine."""
    owner: Owner = ""
    """The client's key, 16 hexadecimal digits: by it the relay of a later connection becomes the owner of
    what was started. Empty: nobody does."""
    again: bool = False
    """It was sent over an earlier connection. The job is taken over; where there is none any more, none is
    started."""


class RelayLaunchStatus(Message, frozen=True, tag=40):
    """Relay -> client, on every change: what became of the newest launch request."""

    number: Count
    phase: Annotated[str, one_of(LAUNCH_PHASES)]
    failed: bool
    """``over``: not of its own will, and not of ours."""
    how: Text
    """``over``: how it ended, or why it was not started."""
    command_line: Text
    output: Annotated[tuple[OutputLine, ...], Meta(max_length=MAX_OUTPUT_LINES)]
    """The last lines that the job wrote; of a failed one those that say why."""
    ending: Text = ""
    """The job that still has to end first, as it was requested."""
    job: Text = ""
    """Key of the job, once it can be found."""

    @property
    def ended(self) -> bool:
        """Whether this is the end of the request."""
        return self.phase in ("nothing", "over")
