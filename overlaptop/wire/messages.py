"""The messages that travel rank -> hub -> dashboard, and the few that travel back.

Every message is a frozen dataclass of plain values: codec.py turns it into msgpack and checks it on
the way in. Each quantity's name carries its unit. ``None`` means "not known" (a step measured without
its collectives, say), never zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from overlaptop.wire.bounds import Count, DurationNs, OffsetNs, StepNs, UnixNs
from overlaptop.wire.devices import DeviceFacts, DeviceSample, MachineFacts, NumaFacts
from overlaptop.wire.knobs import GradientFacts, KnobFacts, Search
from overlaptop.wire.lease import LEASE_S as LEASE_S
from overlaptop.wire.relaying import RelayMessage

PROTOCOL_VERSION = 5
"""Raised by one when an older peer could no longer understand what is sent."""

SOURCES = ("kernels", "events", "host", "none")
"""Where a rank's spans come from; ``none`` until torch is loaded, or when the agent disabled itself."""

AGENT_DISABLED = "the agent disabled itself"
"""The source_reason of a rank whose agent had a fault of its own and measures no more."""

PHASES = ("forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True)
class RankInfo:
    """Who a rank is and how it is measured. Sent on connecting and again whenever a field changes."""

    job: str
    """Key of the job: the name of its folder in the socket directory."""
    rank: int
    local_rank: int
    world_size: int
    host: str
    pid: Count
    script: str
    """The script as it was named on the command line."""
    device: str
    """``NVIDIA H200``, ``cpu``; empty while unknown."""
    backend: str
    """``nccl 2.28.9``, ``gloo``; empty before the process group exists."""
    source: str
    """One of SOURCES."""
    source_reason: str
    """Why this source, in words for the screen; empty when there is nothing to explain."""
    compute_exact: bool
    """False where compute is the step less its stalls, an upper bound (events, host): gaps between
    kernels are not seen, so idle time hides in compute."""
    detail_every: Count
    """Collectives are measured in every n-th step; 1: in all; 0: never (phases only)."""
    torch_version: str
    control_allowed: bool = False
    """Whether this rank obeys commands; else it refuses each, and says how to allow them."""

    @property
    def agent_disabled(self) -> bool:
        """Whether its agent has given up: the rank goes on, and no step of it will be heard of."""
        return self.source == "none" and self.source_reason == AGENT_DISABLED


@dataclass(frozen=True, slots=True)
class StepTotals:
    """One rank's finished step. Times in ns; the lane totals are None in a step measured without them.

    ``hidden + exposed + compute_only + copy_only + idle == step`` to the nanosecond.
    """

    rank: int
    step: Count
    """Counted from 0 at the first step boundary that the agent saw."""
    start_ns: UnixNs
    """Unix time."""
    step_ns: StepNs
    compute_ns: DurationNs | None
    comm_ns: DurationNs | None
    hidden_ns: DurationNs | None
    exposed_ns: DurationNs | None
    compute_only_ns: DurationNs | None
    copy_only_ns: DurationNs | None
    idle_ns: DurationNs | None
    stall_ns: DurationNs | None
    """Time in which the compute stream (host source: the training thread) stood at a wait for
    communication."""
    forward_ns: DurationNs | None
    backward_ns: DurationNs | None
    optimizer_ns: DurationNs | None
    collectives: Count | None
    """Collectives issued in this step; point-to-point operations count."""
    comm_bytes: Count | None
    """Bytes of the tensors handed to those collectives (the larger of input and output)."""
    dropped: Count
    """Since the start: messages that did not fit and spans or steps that could not be measured."""
    launch_lead_ns: OffsetNs | None = None
    """GPU time of the step's end minus the host time at which the CPU had enqueued it; None where it is
    not measured."""
    comm_kernels_ns: DurationNs | None = None
    """Summed durations of this step's NCCL kernels (kernels source), in the steps whose kernels have been
    joined to the collectives that launched them; else None."""
    matched_ns: DurationNs | None = None
    """Of `comm_kernels_ns`, what belongs to kernels whose collective is known by name and bytes."""
    captured: bool = False
    """torch.profiler ran in it, or its trace was written meanwhile, as a command asked: its times are not
    the job's own. Its lane totals are None."""
    link_tx_bytes: Count | None = None
    """Bytes that this step's collectives make this rank send to ranks of its own node, by a ring's count;
    None where they are not named, where the bytes of one cannot be told (gather, scatter), and where the
    group of one reaches other nodes, or may."""
    link_rx_bytes: Count | None = None
    """The same, received."""
    transitional: bool = False
    """A setting was changed in it, as a command asked, or had not come into force yet: its times belong to
    neither value. Its lane totals are None."""

    @property
    def disturbed(self) -> bool:
        """Whether a command kept the step from the job's own pace: figures leave it out."""
        return self.captured or self.transitional

    @property
    def overlap(self) -> float | None:
        """``hidden / comm``, in [0, 1]; None without communication or where it was not measured."""
        if not self.comm_ns or self.hidden_ns is None:
            return None
        return self.hidden_ns / self.comm_ns

    @property
    def measured(self) -> bool:
        """Whether this step carries the lane totals."""
        return self.comm_ns is not None


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """One phase of a step, ns from the step's start. A phase occurs more than once when gradients
    accumulate.
    """

    name: str
    """One of PHASES."""
    start_ns: OffsetNs
    end_ns: OffsetNs


@dataclass(frozen=True, slots=True)
class CollectiveSpan:
    """One collective or point-to-point operation, ns from the step's start."""

    op: str
    """c10d's name: ``allreduce_``, ``_allgather_base_``, ``send``; the kernel's where nothing told which
    collective it belongs to."""
    bytes: Count | None
    """None where nothing told."""
    group: str
    """The process group's name, with its description where it has one; empty where nothing told."""
    is_async: bool
    start_ns: OffsetNs
    end_ns: OffsetNs


@dataclass(frozen=True, slots=True)
class StepDetail:
    """What a step's timeline is drawn from; sent only while a dashboard watches this rank.

    The spans are flat: ``(start, end, start, end, ...)`` in ns from the step's start, sorted, disjoint,
    and coalesced to a bounded number.
    """

    rank: int
    step: Count
    start_ns: UnixNs
    step_ns: StepNs
    phases: tuple[PhaseSpan, ...]
    compute_spans_ns: tuple[int, ...]
    comm_spans_ns: tuple[int, ...]
    copy_spans_ns: tuple[int, ...]
    stall_spans_ns: tuple[int, ...]
    collectives: tuple[CollectiveSpan, ...]


@dataclass(frozen=True, slots=True)
class Notice:
    """Something a person should read once: a fault of the agent, a source that changed, a pause."""

    rank: int
    at_ns: UnixNs
    """Unix time."""
    level: str
    """``info``, ``warning`` or ``error``."""
    text: str


@dataclass(frozen=True, slots=True)
class RankEnd:
    """The last word of a rank: from the agent at exit, else from the hub when the connection broke."""

    rank: int
    at_ns: UnixNs
    clean: bool
    """True when the agent said goodbye itself."""
    failure: str = ""
    """The exception or exit status that ended it, in words: ``ValueError: ...``. Empty: it ended well, or
    nobody knows."""

    @property
    def failed(self) -> bool:
        """Whether the rank did not end of its own free will and well."""
        return bool(self.failure) or not self.clean


@dataclass(frozen=True, slots=True)
class Watch:
    """Hub -> rank: which detail is wanted. Sent on connecting and on every change."""

    detail: bool
    """Somebody looks at this rank's timeline: send StepDetail."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a command; commands.py says what it may be."""

    name: str
    value: int


@dataclass(frozen=True, slots=True)
class Command:
    """Dashboard -> hub -> every rank of the node and every dashboard: all ranks are to do this from one
    step on, or none.
    """

    id: str
    """Made by the dashboard, the same for all ranks of a job wherever they run; never used again."""
    name: str
    """One of commands.COMMANDS."""
    arguments: tuple[Argument, ...]
    by: str
    """Who asks, as they say themselves: ``user@host, pid 123``."""
    at_ns: UnixNs
    """Unix time at which the hub took it (until then: at which it was made)."""
    knob: str = ""
    """What ``set`` and ``restore`` are about: the name of a Knob; else empty."""
    search: str = ""
    """Id of the search for the best value that it belongs to; empty: a person asked for this one."""


SENT = "sent"
ACCEPTED = "accepted"
UNKNOWN = "unknown"
UNDER_WAY = (ACCEPTED, UNKNOWN, "agreed", "recording", "writing", "changing")
WRITTEN = "written"
CHANGED = "changed"
FAILED = "failed"
ENDED_WELL = (WRITTEN, CHANGED)
ENDED_BADLY = ("refused", "busy", FAILED)
REPORT_STATES = (*UNDER_WAY, *ENDED_WELL, *ENDED_BADLY)
"""What a rank says of a command, in this order. A capture is ``recording``, ``writing`` and ``written``; a
setting is ``changing`` and ``changed``. ``unknown``: the rank cannot learn whether all have agreed; if it
ever does, it says what came of it."""

OUTCOME_STATES = (SENT, *REPORT_STATES)
"""``sent``: nothing was reported yet."""
ENDED, SILENT, UNREACHABLE = "ended", "silent", "unreachable"
LOST = ("", ENDED, SILENT, UNREACHABLE)
"""Why a rank's final report is not awaited any more; empty: it is, or it has come."""


@dataclass(frozen=True, slots=True)
class CommandReport:
    """Rank -> hub: how far a command is on this rank, or why it does not carry it out."""

    rank: int
    command: str
    """The command's id."""
    name: str
    at_ns: UnixNs
    """Unix time."""
    state: str
    """One of REPORT_STATES."""
    step: Count | None
    """The step from which on all ranks act, once that is agreed."""
    text: str
    """``written``: the file. ``changed``: from what to what. Where it ended badly, or is unknown: why."""
    was: str = ""
    """``changed``: the value before, as Knob.value_text has it."""
    becomes: str = ""
    """``changed``: the value since."""


@dataclass(frozen=True, slots=True)
class RankOutcome:
    """One rank's part of a CommandOutcome."""

    rank: int
    reported: str
    """The rank's newest CommandReport.state; ``sent``: none came."""
    state: str
    """The same; of a lost rank ``failed`` or ``unknown``."""
    text: str
    """As CommandReport.text; of a lost rank: why."""
    lost: str = ""
    """One of LOST."""


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """Hub -> every dashboard, whenever it changes: what has become of a command on the hub's ranks.

    Made by outcome.py alone.
    """

    command: str
    """The command's id."""
    state: str
    """What the slowest rank has reached; ``failed`` as soon as one failed. Else ``unknown`` where a lost
    rank may have made a change: it may still turn out to be made, or not."""
    reason: str
    """Why it failed or is unknown, with the number of the rank; else empty."""
    step: Count | None
    """The step from which on all ranks act."""
    done: bool
    """No rank's report is awaited any more."""
    ranks: tuple[RankOutcome, ...]
    """By rank: every one that was expected to report, or did."""
    was: str = ""
    """As CommandReport has it, once a rank has reported it."""
    becomes: str = ""


@dataclass(frozen=True, slots=True)
class Join:
    """Dashboard -> hub, once a second: I am here, and these are the ranks whose timeline I show.

    The hub forgets a dashboard that has been silent for LEASE_S.
    """

    protocol: Count
    detail_ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Welcome:
    """Hub -> dashboard, before anything else: the job, then its history follows as ordinary messages."""

    protocol: Count
    job: str
    host: str
    script: str
    world_size: int
    started_ns: UnixNs
    """Unix time at which the hub saw the job first."""


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """Hub -> dashboard, in answer to each Join, where it cannot be let in."""

    reason: str
    """In words for the screen."""


@dataclass(frozen=True, slots=True)
class HubStatus:
    """Hub -> dashboard, once a second: its own health. The first comes when the history has been told."""

    at_ns: UnixNs
    ranks_connected: Count
    dropped: Count
    """Messages for this dashboard that did not fit, and bad frames, since the dashboard joined."""
    job_ended: bool
    """Every rank has gone; the hub is about to end."""
    silent_ranks: tuple[int, ...] = ()
    """Those that are connected and from which nothing has come for a while: an agent says something each
    second, whatever its rank does."""


Message = (
    RankInfo
    | StepTotals
    | StepDetail
    | Notice
    | RankEnd
    | Watch
    | Join
    | Welcome
    | HubStatus
    | Command
    | CommandReport
    | CommandOutcome
    | MachineFacts
    | DeviceFacts
    | NumaFacts
    | DeviceSample
    | KnobFacts
    | GradientFacts
    | Search
    | TurnedAway
    | RelayMessage
)


def step_fault(step: StepTotals) -> str:
    """What is wrong with a step whose times are each right by themselves, in a line; empty: nothing."""
    parts = (step.hidden_ns, step.exposed_ns, step.compute_only_ns, step.copy_only_ns, step.idle_ns)
    if sum(part or 0 for part in parts) > step.step_ns:
        return f"its parts are longer than the {step.step_ns} ns of the step"
    if any((lane or 0) > step.step_ns for lane in (step.compute_ns, step.comm_ns, step.stall_ns)):
        return f"a lane is longer than the {step.step_ns} ns of the step"
    if step.hidden_ns is not None and step.comm_ns is not None and step.hidden_ns > step.comm_ns:
        return "more communication is hidden than there is"
    return ""
