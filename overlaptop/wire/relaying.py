"""The messages between a dashboard and ``overlaptop relay --stdio`` on another host.

The *near end* is the dashboard, the *far end* the relay; between them is one command's standard input and
output. The far end speaks first: MAGIC, then frames (see codec.frame), of which the first is RelayHello.
Besides what is here the near end says Join, Command and Search: the far end checks them and gives them to
the hub that was selected. What that hub says comes back as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from overlaptop.wire.bounds import Count, UnixNs
from overlaptop.wire.endpoints import JobRecord

MAGIC = b"\n\x00OVERLAPTOP RELAY 1\n"
"""What the far end writes first: whatever a login shell prints before it is passed over."""

MAX_JOBS = 64
MAX_RANK_PIDS = 4096
"""Of one job."""
MAX_LAUNCH_WORDS = 64
MAX_NPROC = 256
MAX_OUTPUT_LINES = 200
MAX_OUTPUT_CHARS = 800
"""Of a line."""
MAX_HZ = 1000.0
MAX_BYTES_PER_S = 1 << 40

LAUNCH_PHASES = ("nothing", "ending", "running", "over")
"""How far an order is: nothing was started, the job before is being ended, it runs, it ended or could not
be started."""

_KEY = re.compile(r"[a-z0-9-]{1,40}")
_OWNER = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class RelayHello:
    """Far -> near, before anything else: who speaks."""

    protocol: Count
    """PROTOCOL_VERSION of the far end."""
    version: str
    """Of overlaptop there."""
    host: str
    pid: Count
    gpus: Count | None
    """GPUs that the host has; None: not known."""
    at_ns: UnixNs
    """Unix time there."""
    readonly: bool
    """The far end passes no Command on, no Search, and starts nothing."""


@dataclass(frozen=True, slots=True)
class RemoteJob:
    """A JobRecord of the far host, without what is of use only there."""

    protocol: Count
    job: str
    script: str
    cwd: str
    host: str
    world_size: int
    starter_pid: Count
    starter_start_ticks: Count | None
    hub_pid: Count
    hub_start_ticks: Count
    started_ns: UnixNs
    """Unix time of the far host's clock."""
    dashboard_socket: str
    rank_pids: tuple[int, ...]
    ended: bool = False

    @classmethod
    def of(cls, record: JobRecord) -> RemoteJob:
        """What the near end is to know of a job; the pids of the first MAX_RANK_PIDS ranks."""
        values = {field.name: getattr(record, field.name) for field in fields(cls)}
        return cls(**{**values, "rank_pids": record.rank_pids[:MAX_RANK_PIDS]})

    @property
    def record(self) -> JobRecord:
        """The same as a JobRecord. Its processes and its socket are the far host's: neither is to be looked
        for here.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return JobRecord(**values, python="")


@dataclass(frozen=True, slots=True)
class RelayJobs:
    """Far -> near, on every change and every two seconds: this user's jobs on the host, newest first."""

    jobs: tuple[RemoteJob, ...]
    note: str
    """Why the list may be wrong, in words for the screen; empty: it is not."""


@dataclass(frozen=True, slots=True)
class RelaySelect:
    """Near -> far: join the hub of this job, in place of the one before.

    The answer is a RelayLink of that job. What the hub says follows it; whatever came before it was said by
    the one before.
    """

    job: str
    """Its key; empty: join none."""


@dataclass(frozen=True, slots=True)
class RelayLink:
    """Far -> near, on every change: how the selected job is."""

    job: str
    alive: bool
    """Its hub's process lives."""
    gone: bool = False
    """None of its processes is left that could start a hub again."""


@dataclass(frozen=True, slots=True)
class RelayPing:
    """Near -> far, once a second: are you there?"""

    number: Count
    received_bytes: Count = 0
    """All that has come over the line behind MAGIC. By this the far end knows how much of what it wrote is
    still under way; it keeps that to what the line carries in little more than a second.
    """


@dataclass(frozen=True, slots=True)
class RelayPong:
    """Far -> near, in answer. Times are Unix ns of the far host's clock."""

    number: Count
    received_ns: UnixNs
    sent_ns: UnixNs
    dropped: Count = 0
    """Frames of the hub that the far end has not passed on since it began, since the line is too narrow or
    was told to carry less."""
    every: Count = 1
    """It passes on the steps whose number is a multiple of this, and those measured alike."""


@dataclass(frozen=True, slots=True)
class RelayLimit:
    """Near -> far: how much the user wants the line to carry at most. 0: as much as it can."""

    bytes_per_s: int
    hz: float
    """Steps of a rank a second, and samples of its GPU."""


@dataclass(frozen=True, slots=True)
class RelayLaunch:
    """Near -> far: start this bundled workload there, in place of the one before."""

    number: Count
    """Counts the orders of a near end."""
    words: tuple[str, ...]
    """The workload's name and its options, as on a command line; empty: end the one that runs."""
    nproc: int | None
    """Processes; None: as many as suit the machine."""
    owner: str = ""
    """Names the near end, by 16 hexadecimal digits, to the relay of a later line. Empty: what was started
    stays with this line."""
    again: bool = False
    """It was ordered over an earlier line: whoever keeps it is to say how it goes. One that nobody keeps is
    not begun anew."""


@dataclass(frozen=True, slots=True)
class RelayLaunchStatus:
    """Far -> near, on every change: what became of the newest order."""

    number: Count
    """Of the order."""
    phase: str
    """One of LAUNCH_PHASES."""
    failed: bool
    """``over``: not of its own will, and not of ours."""
    how: str
    """``over``: how it ended, or why it was not started."""
    command_line: str
    output: tuple[str, ...]
    """The last lines that the job wrote; of a failed one those that say why."""
    ending: str = ""
    """The job that still has to end first, as it was ordered."""
    job: str = ""
    """Key of the job, once it can be found."""

    @property
    def ended(self) -> bool:
        """Whether this is the last word on the order."""
        return self.phase in ("nothing", "over")


RelayMessage = (
    RelayHello
    | RelayJobs
    | RelaySelect
    | RelayLink
    | RelayPing
    | RelayPong
    | RelayLimit
    | RelayLaunch
    | RelayLaunchStatus
)


def job_fault(job: RemoteJob) -> str:
    """What is wrong with a job of another host, in a line; empty: nothing."""
    return "" if _KEY.fullmatch(job.job) else f"{job.job[:60]!r} cannot be a job's key"


def select_fault(select: RelaySelect) -> str:
    """What is wrong with the choice of a job, in a line; empty: nothing."""
    wrong = select.job and not _KEY.fullmatch(select.job)
    return f"{select.job[:60]!r} cannot be a job's key" if wrong else ""


def limit_fault(limit: RelayLimit) -> str:
    """What is wrong with a limit, in a line; empty: nothing."""
    if not 0 <= limit.bytes_per_s <= MAX_BYTES_PER_S:
        return f"bytes_per_s must be from 0 to {MAX_BYTES_PER_S}, not {limit.bytes_per_s}"
    return ""


def launch_fault(order: RelayLaunch) -> str:
    """What is wrong with an order, in a line; empty: nothing. What its words mean is not looked at."""
    if order.nproc is not None and not 1 <= order.nproc <= MAX_NPROC:
        return f"nproc must be from 1 to {MAX_NPROC}, not {order.nproc}"
    if order.owner and not _OWNER.fullmatch(order.owner):
        return f"{order.owner[:60]!r} cannot name an owner"
    if any("\0" in word for word in order.words):
        return "a word of a command line cannot have a NUL character in it"
    return ""
