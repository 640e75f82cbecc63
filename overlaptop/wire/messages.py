"""The messages that travel rank -> hub -> dashboard, and the few that travel back.

Those about ranks, steps and hubs are here; the others are in commands.py, knobs.py, devices.py and
relaying.py. Each is declared once, see schema.py. Each quantity's name carries its unit. ``None`` means
"not known" (a step measured without its collectives, say), never zero.
"""

from __future__ import annotations

import signal
from typing import Annotated

from msgspec import Meta

from overlaptop.wire.bounds import (
    Change,
    Count,
    DurationNs,
    ExitCode,
    OffsetNs,
    Rank,
    Ranks,
    Spans,
    StepNs,
    Text,
    UnixNs,
    one_of,
)
from overlaptop.wire.devices import DeviceFacts, MachineFacts, NumaFacts
from overlaptop.wire.knobs import GradientFacts, KnobFacts
from overlaptop.wire.schema import Message, Part

MAX_PHASES = 1024
MAX_COLLECTIVES = 4096
MAX_LAST_CALLS = 8
MAX_LAST_GROUPS = 16
MAX_STACK = 8
MAX_STACK_LINES = 8
CALL_STATES = ("issued", "started", "ended")

SOURCES = ("kernels", "events", "host", "none")
"""Where a rank's spans come from; ``none`` until torch is loaded, or when the agent disabled itself."""

AGENT_DISABLED = "the agent disabled itself"
"""The source_reason of a rank whose agent had a fault of its own and measures no more."""
NOT_SHOWN = "is not shown"
"""In the notice of a process that the hub refused as a second one of the same rank."""
RESTARTED = "torchrun restarted the job"
"""In the hub's notice of it."""
LEFT_OUT = "are left out"
"""In the source_reason of a rank some of whose steps its source cannot measure in detail."""

ENVIRONMENT = (
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "NCCL_BLOCKING_WAIT",
    "NCCL_IB_DISABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
    "TORCH_NCCL_BLOCKING_WAIT",
    "TORCH_NCCL_ENABLE_TIMING",
)
"""The environment variables that findings ask for."""

PHASES = ("forward", "backward", "optimizer")
NOTICE_LEVELS = ("info", "warning", "error")


class RankInfo(Message, frozen=True, tag=1):
    """Who a rank is and how it is measured. Sent on connecting and again whenever a field changes."""

    job: Text
    """Key of the job: the name of its folder in the socket directory."""
    rank: Rank
    local_rank: Rank
    world_size: Rank
    host: Text
    pid: Count
    script: Text
    """The script as it was named on the command line."""
    device: Text
    """``NVIDIA H200``, ``cpu``; empty while unknown."""
    backend: Text
    """``nccl 2.28.9``, ``gloo``; empty before the process group exists."""
    source: Annotated[str, one_of(SOURCES)]
    source_reason: Text
    """Why this source, in words for the screen; empty when there is nothing to explain."""
    compute_exact: bool
    """False where compute is the step less its stalls, an upper bound (events, host): gaps between
    kernels are not seen, so idle time hides in compute."""
    detail_every: Count
    """Collectives are measured in every n-th step; 1: in all; 0: never (phases only)."""
    torch_version: Text
    control_allowed: bool = False
    """Whether this rank obeys commands; else it refuses each, with the option that allows them."""
    local_world_size: Rank | None = None
    """Ranks of the job on this rank's node; None: not known."""

    @property
    def agent_disabled(self) -> bool:
        """Whether its agent has given up: the rank goes on unmeasured."""
        return self.source == "none" and self.source_reason == AGENT_DISABLED

    @property
    def left_out(self) -> str:
        """Which of its steps its source cannot measure in detail, and why; empty: none that are known."""
        return self.source_reason if LEFT_OUT in self.source_reason else ""


class StepTotals(Message, frozen=True, tag=2):
    """One rank's finished step. Times in ns; the lane totals are None in a step measured without them.

    ``hidden + exposed + compute_only + copy_only + idle + fused == step`` to the nanosecond.
    """

    rank: Rank
    step: Count
    """Counted from 0 at the first step boundary that the agent saw."""
    start_ns: UnixNs
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
    None where they are not named, where the bytes of one are not known (gather, scatter), and where the
    group of one reaches other nodes, or may."""
    link_rx_bytes: Count | None = None
    """The same, received."""
    transitional: bool = False
    """A setting was changed in it, as a command asked, or had not come into force yet: its times belong to
    neither value. Its lane totals are None."""
    cpu_ns: DurationNs | None = None
    """CPU time of the training thread; this and the next two by the host's clock."""
    loading_ns: DurationNs | None = None
    """What that thread spent in a DataLoader's ``next``."""
    full_collections: Count | None = None
    """Python's garbage collections of the oldest generation."""
    delayed_ns: DurationNs | None = None
    """How long the training thread was ready to run and had no CPU, by the kernel's count."""
    fused_ns: DurationNs | None = None
    """Kernels that compute and communicate in one. None also from agents that know of none: they count as
    compute there."""
    host_ns: DurationNs | None = None
    """What the CPU needed for the step, less how long its GPU blocked it: in synchronisations, and in
    launches that waited for room. In traces only."""
    trial: bool = False
    """A command's trial was under way: only its length says anything, of the tried value or with the delay;
    where a value is being switched it is `transitional`, too. Its lane totals are None."""

    @property
    def changes_setting(self) -> bool:
        """Whether a setting was changed in it for good."""
        return self.transitional and not self.trial

    @property
    def disturbed(self) -> bool:
        """Whether a command kept the step from the job's own pace: figures leave it out."""
        return self.captured or self.transitional or self.trial

    @property
    def overlap(self) -> float | None:
        """``hidden / comm``, in [0, 1]; None without communication or where it was not measured."""
        return self.hidden_ns / self.comm_ns if self.hidden_ns is not None and self.comm_ns else None

    @property
    def measured(self) -> bool:
        """Whether this step carries the lane totals."""
        return self.comm_ns is not None

    def inconsistency(self) -> str:
        """As Part says: a part that is longer than the whole."""
        parts = (
            self.hidden_ns, self.exposed_ns, self.compute_only_ns, self.copy_only_ns, self.idle_ns,
            self.fused_ns,
        )  # fmt: skip
        if sum(part or 0 for part in parts) > self.step_ns:
            return f"its parts are longer than the {self.step_ns} ns of the step"
        if any((lane or 0) > self.step_ns for lane in (self.compute_ns, self.comm_ns, self.stall_ns)):
            return f"a lane is longer than the {self.step_ns} ns of the step"
        if self.hidden_ns is not None and self.comm_ns is not None and self.hidden_ns > self.comm_ns:
            return "more communication is hidden than there is"
        return ""


class PhaseSpan(Part, frozen=True):
    """One phase of a step, ns from the step's start. A phase occurs more than once when gradients
    accumulate.
    """

    name: Annotated[str, one_of(PHASES)]
    start_ns: OffsetNs
    end_ns: OffsetNs


class CollectiveSpan(Part, frozen=True):
    """One collective or point-to-point operation, ns from the step's start."""

    op: Text
    """c10d's name: ``allreduce_``, ``_allgather_base_``, ``send``; the kernel's where its collective is
    not known."""
    bytes: Count | None
    group: Text
    """The process group's name, with its description where it has one; empty: not known."""
    is_async: bool
    start_ns: OffsetNs
    end_ns: OffsetNs
    sequence: Count | None = None
    """Its number in the order of its group, the same on all of the group's ranks. None for point-to-point
    operations and where it is not known."""
    sends_to: Rank | None = None
    """Of a send its target, as a rank of the job, also of several in one launch; None: not known, several
    targets, or no send."""
    receives_from: Rank | None = None
    """Of a receive its source, likewise. A launch that sends and receives has both."""


class GroupMembers(Part, frozen=True):
    """The ranks of a process group."""

    group: Text
    """As CollectiveSpan has it: groups of other ranks may have the same."""
    members: Ranks


class StepDetail(Message, frozen=True, tag=3):
    """What a step's timeline is drawn from; sent only while a dashboard watches this rank.

    The spans are flat: ``(start, end, start, end, ...)`` in ns from the step's start, sorted, disjoint,
    and coalesced to a bounded number.
    """

    rank: Rank
    step: Count
    start_ns: UnixNs
    step_ns: StepNs
    phases: Annotated[tuple[PhaseSpan, ...], Meta(max_length=MAX_PHASES)]
    compute_spans_ns: Spans
    comm_spans_ns: Spans
    copy_spans_ns: Spans
    stall_spans_ns: Spans
    collectives: Annotated[tuple[CollectiveSpan, ...], Meta(max_length=MAX_COLLECTIVES)]
    fused_spans_ns: Spans = ()
    """Kernels that compute and communicate; the other lanes hold nothing of what ran beside them."""
    groups: Annotated[tuple[GroupMembers, ...], Meta(max_length=MAX_LAST_GROUPS)] = ()
    """Of its collectives' groups those of which this rank knows the members, if they are not many."""

    def inconsistency(self) -> str:
        """As Part says: a span without its end."""
        lanes = (
            self.compute_spans_ns, self.comm_spans_ns, self.copy_spans_ns, self.stall_spans_ns,
            self.fused_spans_ns,
        )  # fmt: skip
        odd = any(len(lane) % 2 for lane in lanes)
        return "expected pairs of start and end, not an odd number of numbers" if odd else ""


class OwnCost(Message, frozen=True, tag=41):
    """How much longer measuring makes a rank's steps, by this job's own measured and unmeasured steps.

    By the clock that the step totals are of, the GPU's or the host's; errors are half of a 95 % interval.
    Sent whenever more is known.
    """

    rank: Rank
    change: Change
    """Of the mean step of the last minute."""
    error: Change
    measured_change: Change | None
    """Of a measured step; None: not known."""
    measured_error: Change | None
    watched: bool
    """True if somebody watches this rank, so that the larger budget applies."""


class EnvironmentVariable(Part, frozen=True):
    """One that a rank was started with, or set itself."""

    name: Annotated[str, one_of(ENVIRONMENT)]
    value: Text


class EnvironmentFacts(Message, frozen=True, tag=43):
    """Which of `ENVIRONMENT` are set in a rank's process, no others, and its threads. Sent once."""

    rank: Rank
    variables: Annotated[tuple[EnvironmentVariable, ...], Meta(max_length=len(ENVIRONMENT))]
    threads: Count | None = None
    """Threads that one of torch's operations uses on the CPU."""

    def value(self, name: str) -> str:
        """Of one of `ENVIRONMENT`; empty where it is not set."""
        return next((each.value for each in self.variables if each.name == name), "")


class IssuedCall(Part, frozen=True):
    """A collective that a rank has issued."""

    op: Text
    bytes: Count | None
    sequence: Count
    """As CollectiveSpan's."""
    at_ns: UnixNs
    """When it was issued."""
    state: Annotated[str, one_of(CALL_STATES)] = "issued"
    """``started``, ``ended``: on the device; ``issued``: no more is known."""


class GroupCalls(Part, frozen=True):
    """The last collectives that a rank has issued in one group, oldest first."""

    group: Text
    members: Ranks
    calls: Annotated[tuple[IssuedCall, ...], Meta(max_length=MAX_LAST_CALLS)]


class Standstill(Message, frozen=True, tag=42):
    """In what a rank stands, once it has come no further for a while, or has made no step yet; sent again
    when that changes.
    """

    rank: Rank
    hung: bool
    """False: it goes on. With a stack it has made no step yet; without, the rest is empty."""
    groups: Annotated[tuple[GroupCalls, ...], Meta(max_length=MAX_LAST_GROUPS)] = ()
    stack: Annotated[tuple[Text, ...], Meta(max_length=MAX_STACK)] = ()
    """Where the training thread's Python stands, ``train.py:88 load_batch``, innermost first. Of the
    innermost line the function of torch.distributed that it calls, if it does."""
    since_ns: UnixNs | None = None
    """When the script began, of a rank that has made no step yet."""


class StackLine(Part, frozen=True):
    """A line of the script."""

    line: Text
    """``train.py:57 in collate``."""
    samples: Count
    """Those that found the training thread at it."""
    standing: Count = 0
    """Of them, those that found it asleep there: in the script's own code, or in Python's library, not in
    torch's."""

    def inconsistency(self) -> str:
        """As Part says: a part that is larger than the whole."""
        if self.standing > self.samples:
            return f"it stands still in more than its {self.samples} samples"
        return ""


class StackSamples(Message, frozen=True, tag=44):
    """At which lines a rank's training thread was, about ten times in a second. Sent each second."""

    rank: Rank
    from_ns: UnixNs
    to_ns: UnixNs
    samples: Count
    """All, also those in none of the lines."""
    lines: Annotated[tuple[StackLine, ...], Meta(max_length=MAX_STACK_LINES)]
    """Innermost frames outside torch and Python's library, most frequent first."""

    def inconsistency(self) -> str:
        """As Part says: an end before its start, a part that is larger than the whole."""
        if self.to_ns < self.from_ns:
            return "it ends before it begins"
        if sum(each.samples for each in self.lines) > self.samples:
            return f"its lines have more than its {self.samples} samples"
        return ""


Facts = (
    MachineFacts
    | DeviceFacts
    | NumaFacts
    | KnobFacts
    | GradientFacts
    | OwnCost
    | Standstill
    | EnvironmentFacts
    | StackSamples
)
"""What a rank sends of itself whenever it changes: of each kind only the newest counts."""


class Notice(Message, frozen=True, tag=4):
    """Something a person should read once: a fault of the agent, a source that changed, a pause."""

    rank: Rank
    at_ns: UnixNs
    level: Annotated[str, one_of(NOTICE_LEVELS)]
    text: Text


class RankEnd(Message, frozen=True, tag=5):
    """A rank has ended: from the agent at exit, else from the hub when the connection broke. It comes again
    from the hub, with the exit code, once the process is over.
    """

    rank: Rank
    at_ns: UnixNs
    clean: bool
    """True when the agent itself reported it."""
    failure: Text = ""
    """The exception or exit status that ended it, in words: ``ValueError: ...``. Empty: it ended well, or
    nobody knows."""
    exit_code: ExitCode | None = None
    """None: not known."""

    @property
    def interrupted(self) -> bool:
        """Whether somebody ended it by Ctrl-C."""
        by_signal = self.exit_code in (-signal.SIGINT, 128 + signal.SIGINT)
        return by_signal or self.failure.startswith("KeyboardInterrupt")

    @property
    def failed(self) -> bool:
        """Whether the rank ended neither well nor by Ctrl-C."""
        if self.interrupted:
            return False
        if self.exit_code is not None:
            return self.exit_code != 0
        return bool(self.failure) or not self.clean


class Watch(Message, frozen=True, tag=6):
    """Hub -> rank: which detail is wanted. Sent on connecting and on every change."""

    detail: bool
    """Somebody looks at this rank's timeline: send StepDetail."""
    bursts: Count = 0
    """Bursts that dashboards have asked for; measure one whenever it grows."""


class Join(Message, frozen=True, tag=7):
    """Dashboard -> hub, once a second: I am here, and these are the ranks whose timeline I show.

    The hub forgets a dashboard that has been silent for LEASE_S.
    """

    protocol: Count
    detail_ranks: Ranks
    bursts: Count = 0
    """Bursts that this dashboard has asked those ranks for so far."""


class Grant(Message, frozen=True, tag=47):
    """Dashboard -> hub, as bytes arrive: how many more the hub may send."""

    received_bytes: Count
    """Of frames, since the last Welcome and with it."""
    window_bytes: Count
    """Those that may be on the way besides. The last frame may exceed it."""


class Ping(Message, frozen=True, tag=45):
    """Dashboard -> hub, before the first Join and once a second, to compare their clocks."""

    sent_ns: UnixNs


class Pong(Message, frozen=True, tag=46):
    """Hub -> dashboard, at once: the Ping's time, and two Unix times of the hub's clock."""

    sent_ns: UnixNs
    received_ns: UnixNs
    answered_ns: UnixNs


class Welcome(Message, frozen=True, tag=8):
    """Hub -> dashboard, before anything else: the job, then its history follows as ordinary messages."""

    protocol: Count
    job: Text
    host: Text
    script: Text
    world_size: Rank
    started_ns: UnixNs
    """Unix time at which the hub saw the job first."""


class TurnedAway(Message, frozen=True, tag=19):
    """Hub -> dashboard, in answer to each Join, where it cannot be let in."""

    reason: Text


class HubStatus(Message, frozen=True, tag=9):
    """Hub -> dashboard, once a second: its own health. The first one follows the history."""

    at_ns: UnixNs
    ranks_connected: Count
    dropped: Count
    """Messages for this dashboard that did not fit, and bad frames, since the dashboard joined."""
    job_ended: bool
    """Every rank has gone; the hub is about to end."""
    silent_ranks: Ranks = ()
    """Those that are connected and from which nothing has come for a while: an agent sends something each
    second, whatever its rank does."""
