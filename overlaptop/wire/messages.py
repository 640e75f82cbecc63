"""Messages about ranks, their steps, and hubs. ``None`` means "not known" (for example, a step measured
without its collectives), never zero.
"""

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
from overlaptop.wire.protocol import RULE
from overlaptop.wire.schema import Message, Part

MAX_PHASES = 1024
MAX_COLLECTIVES = 4096
MAX_LAST_CALLS = 8
MAX_LAST_GROUPS = 16
MAX_STACK = 8
MAX_STACK_LINES = 8
CALL_STATES = ("issued", "started", "ended")

SOURCES = ("kernels", "events", "host", "none")
"""Sources of a rank's spans. ``none`` until torch is loaded, or if the agent disabled itself."""

AGENT_DISABLED = "the agent disabled itself"  # source_reason of a rank whose agent failed
LEFT_OUT = "are left out"  # In the source_reason of a rank whose source cannot measure some steps in detail
NOT_SHOWN = "is not shown"  # In the hub's notice about a second process of the same rank, which it refused
RESTARTED = "torchrun restarted the job"  # Begins the hub's notice of a restart
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
"""Environment variables that findings need."""

PHASES = ("forward", "backward", "optimizer")
NOTICE_LEVELS = ("info", "warning", "error")


class RankInfo(Message, frozen=True, tag=1):
    """A rank's identity and measurement method. Sent on connecting, and again on each change."""

    job: Text  # Key of the job: the name of its folder in the socket directory
    rank: Rank
    local_rank: Rank
    world_size: Rank
    host: Text
    pid: Count
    script: Text
    device: Text  # ``NVIDIA H200``, ``cpu``. Empty while unknown.
    backend: Text  # ``nccl 2.28.9``, ``gloo``. Empty before the process group exists.
    source: Annotated[str, one_of(SOURCES)]
    source_reason: Text  # Why this source is used. Empty if there is nothing to explain.
    compute_exact: bool
    """False if compute is the step minus its stalls, an upper bound that includes idle time."""
    detail_every: Count
    """Of how many steps one has its collectives measured, on average. 1: all have. 0: none has."""
    torch_version: Text
    control_allowed: bool = False
    local_world_size: Rank | None = None

    @property
    def agent_disabled(self) -> bool:
        return self.source == "none" and self.source_reason == AGENT_DISABLED

    @property
    def left_out(self) -> str:
        """Steps that its source cannot measure in detail, and why. Usually empty."""
        return self.source_reason if LEFT_OUT in self.source_reason else ""


class StepTotals(Message, frozen=True, tag=2):
    """One rank's finished step. Lane totals are None if the step was measured without them.

    ``hidden + exposed + compute_only + copy_only + idle + fused == step`` to the nanosecond.
    """

    rank: Rank
    step: Count  # Counted from 0 at the first step boundary that the agent saw
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
    """The compute stream (host source: the training thread) was stopped at a wait for communication."""
    forward_ns: DurationNs | None
    backward_ns: DurationNs | None
    optimizer_ns: DurationNs | None
    collectives: Count | None  # Including point-to-point operations
    comm_bytes: Count | None  # Tensor bytes of those collectives, the larger of input and output
    dropped: Count
    """Since the start: messages that did not fit, and spans or steps that could not be measured."""
    launch_lead_ns: OffsetNs | None = None
    """GPU time of the step's end minus the host time at which the CPU had enqueued it."""
    comm_kernels_ns: DurationNs | None = None
    """Summed durations of NCCL kernels. None unless they have been joined to their collectives."""
    matched_ns: DurationNs | None = None
    """Part of `comm_kernels_ns` in kernels whose collective's name and bytes are known."""
    captured: bool = False
    """A command made torch.profiler run in this step, or its trace was written. Lane totals are None."""
    link_tx_bytes: Count | None = None
    """Bytes that this step's collectives make this rank send within its node, for a ring. None if the bytes
    of one are not known (gather, scatter), or how its group is spread over nodes."""
    link_rx_bytes: Count | None = None
    transitional: bool = False
    """A change of a setting was under way: the times belong to neither value. Lane totals are None."""
    cpu_ns: DurationNs | None = None
    """CPU time of the training thread, on the host's clock like the next two times."""
    loading_ns: DurationNs | None = None  # Time of that thread in a DataLoader's ``next``
    full_collections: Count | None = None  # Garbage collections of the oldest generation
    delayed_ns: DurationNs | None = None  # How long the training thread was ready to run and had no CPU
    fused_ns: DurationNs | None = None  # Time in kernels that both compute and communicate
    host_ns: DurationNs | None = None
    """CPU time, without synchronisations and launches that waited for a queue slot. None: not known."""
    trial: bool = False
    """A command's trial was running: only the length is valid. While the value is being switched, the step
    is also `transitional`."""
    least_lead_ns: OffsetNs | None = None
    """Smallest launch lead in the step: about 0 where the CPU waits for the GPU once a step."""
    nic_tx_bytes: Count | None = None  # To other nodes: the mean of this node's ranks
    nic_rx_bytes: Count | None = None

    @property
    def changes_setting(self) -> bool:
        return self.transitional and not self.trial

    @property
    def disturbed(self) -> bool:
        """Whether a command changed the step's own pace. Figures leave such steps out."""
        return self.captured or self.transitional or self.trial

    @property
    def overlap(self) -> float | None:
        """``hidden / comm``, in [0, 1]. None without communication, or if not measured."""
        return self.hidden_ns / self.comm_ns if self.hidden_ns is not None and self.comm_ns else None

    @property
    def measured(self) -> bool:
        return self.comm_ns is not None

    def inconsistency(self) -> str:
        alone = self.compute_only_ns, self.copy_only_ns, self.idle_ns, self.fused_ns
        if sum(part or 0 for part in (self.hidden_ns, self.exposed_ns, *alone)) > self.step_ns:
            return f"its parts are longer than the {self.step_ns} ns of the step"
        if any((lane or 0) > self.step_ns for lane in (self.compute_ns, self.comm_ns, self.stall_ns)):
            return f"a lane is longer than the {self.step_ns} ns of the step"
        if self.hidden_ns is not None and self.comm_ns is not None and self.hidden_ns > self.comm_ns:
            return "more communication is hidden than there is"
        return ""


class PhaseSpan(Part, frozen=True):
    """One phase of a step, in ns from its start. With gradient accumulation, it occurs several times."""

    name: Annotated[str, one_of(PHASES)]
    start_ns: OffsetNs
    end_ns: OffsetNs


class CollectiveSpan(Part, frozen=True):
    """One collective or point-to-point operation, ns from the step's start."""

    op: Text
    """c10d's name: ``allreduce_``, ``_allgather_base_``, ``send``. If not known, the kernel's name."""
    bytes: Count | None
    group: Text  # The process group's name, with its description if it has one. Empty if not known.
    is_async: bool
    start_ns: OffsetNs
    end_ns: OffsetNs
    sequence: Count | None = None
    """Its number in the order of its group, equal on all ranks of the group. None for point-to-point."""
    sends_to: Rank | None = None
    """Target of a send, as a rank of the job. None for several targets, and if it is no send."""
    receives_from: Rank | None = None  # Source of a receive. A launch that sends and receives has both.


class GroupMembers(Part, frozen=True):
    """The ranks of a process group."""

    group: Text  # As in CollectiveSpan. Groups of other ranks may have the same title.
    members: Ranks


class StepDetail(Message, frozen=True, tag=3):
    """The timeline of a step. Sent only while a dashboard watches this rank.

    Spans are in ns from the step's start, sorted, disjoint, and coalesced to a bounded number.
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
    """Kernels that both compute and communicate. The other lanes are empty there."""
    groups: Annotated[tuple[GroupMembers, ...], Meta(max_length=MAX_LAST_GROUPS)] = ()
    """Groups of its collectives whose members this rank knows, if they are not too many."""

    def inconsistency(self) -> str:
        lanes = self.compute_spans_ns, self.comm_spans_ns, self.copy_spans_ns, self.fused_spans_ns
        odd = any(len(lane) % 2 for lane in (*lanes, self.stall_spans_ns))
        return "expected pairs of start and end, not an odd number of numbers" if odd else ""


class OwnCost(Message, frozen=True, tag=41):
    """How much measuring lengthens a rank's steps, estimated from measured and unmeasured ones. Sent on
    change. Errors are half of a 95 % interval.
    """

    rank: Rank
    change: Change  # Change of the mean step over the last minute
    error: Change
    measured_change: Change | None  # Change of a measured step
    measured_error: Change | None
    watched: bool  # True if measured under the larger budget, because somebody watches this rank


class EnvironmentVariable(Part, frozen=True):
    """A variable that a rank was started with, or set itself."""

    name: Annotated[str, one_of(ENVIRONMENT)]
    value: Text


class EnvironmentFacts(Message, frozen=True, tag=43):
    """The variables of `ENVIRONMENT` that are set in a rank's process, and its threads. Sent once."""

    rank: Rank
    variables: Annotated[tuple[EnvironmentVariable, ...], Meta(max_length=len(ENVIRONMENT))]
    threads: Count | None = None  # Threads that one of torch's operations uses on the CPU

    def value(self, name: str) -> str:
        """Return the value of one of `ENVIRONMENT`. Empty if it is not set."""
        return next((each.value for each in self.variables if each.name == name), "")


class IssuedCall(Part, frozen=True):
    """A collective that a rank has issued."""

    op: Text
    bytes: Count | None
    sequence: Count
    at_ns: UnixNs
    state: Annotated[str, one_of(CALL_STATES)] = "issued"
    """``started``, ``ended``: on the device. ``issued``: nothing more is known."""


class GroupCalls(Part, frozen=True):
    """The last collectives that a rank has issued in one group, oldest first."""

    group: Text
    members: Ranks
    calls: Annotated[tuple[IssuedCall, ...], Meta(max_length=MAX_LAST_CALLS)]


class RankStalled(Message, frozen=True, tag=42):
    """Where a rank is stuck, or is before its first step. Sent after a while, and on each change."""

    rank: Rank
    hung: bool
    """False if steps go on. With a stack, the rank has made no step yet; without, nothing else is set."""
    groups: Annotated[tuple[GroupCalls, ...], Meta(max_length=MAX_LAST_GROUPS)] = ()
    stack: Annotated[tuple[Text, ...], Meta(max_length=MAX_STACK)] = ()
    """Of the training thread, innermost first, with calls of torch.distributed: ``train.py:88 load``."""
    since_ns: UnixNs | None = None  # Unix time when the script began, if the rank has made no step yet


class StackLine(Part, frozen=True):
    """A line of the script."""

    line: Text  # ``train.py:57 in collate``
    samples: Count
    asleep: Count = 0
    """Those with the thread asleep in the script's own code or in Python's library, not in torch's."""

    def inconsistency(self) -> str:
        wrong = self.asleep > self.samples
        return f"it sleeps in more than its {self.samples} samples" if wrong else ""


class StackSamples(Message, frozen=True, tag=44):
    """Lines of a rank's training thread, sampled about ten times a second. Sent each second."""

    rank: Rank
    from_ns: UnixNs
    to_ns: UnixNs
    samples: Count  # Including those at none of the lines
    lines: Annotated[tuple[StackLine, ...], Meta(max_length=MAX_STACK_LINES)]
    """Innermost frames outside torch and Python's library, most frequent first."""

    def inconsistency(self) -> str:
        if self.to_ns < self.from_ns:
            return "it ends before it begins"
        if sum(each.samples for each in self.lines) > self.samples:
            return f"its lines have more than its {self.samples} samples"
        return next(filter(None, (each.inconsistency() for each in self.lines)), "")


Facts = (
    MachineFacts
    | DeviceFacts
    | NumaFacts
    | KnobFacts
    | GradientFacts
    | OwnCost
    | RankStalled
    | EnvironmentFacts
    | StackSamples
)
"""Messages that a rank sends about itself on each change. Only the newest of each kind counts."""


class Notice(Message, frozen=True, tag=4):
    """An event to read once: a fault of the agent, a change of source, a pause."""

    rank: Rank
    at_ns: UnixNs
    level: Annotated[str, one_of(NOTICE_LEVELS)]
    text: Text


class RankEnd(Message, frozen=True, tag=5):
    """A rank has ended. Sent by the agent at exit, or by the hub once the connection broke, and again with
    the exit code once the process is over.
    """

    rank: Rank
    at_ns: UnixNs
    clean: bool  # True if the agent itself reported it
    failure: Text = ""
    """The exception or exit status: ``ValueError: ...``. Empty if the rank ended well, or if not known."""
    exit_code: ExitCode | None = None

    @property
    def interrupted(self) -> bool:
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


class Found(Message, frozen=True, tag=56):
    """Dashboard -> hub: it shows a finding that warns. The hub keeps its job's last minutes in a file."""

    rule: Annotated[str, Meta(pattern=RULE)]


class Welcome(Message, frozen=True, tag=8):
    """Hub -> dashboard, first of all: the job. Its history follows as ordinary messages."""

    protocol: Count
    job: Text
    host: Text
    script: Text
    world_size: Rank
    started_ns: UnixNs  # Unix time when the hub first saw the job


class HubStatus(Message, frozen=True, tag=9):
    """Hub -> dashboard, once a second: the hub's own state. The first one follows the history."""

    at_ns: UnixNs
    ranks_connected: Count
    dropped: Count  # Messages for this dashboard that did not fit, and bad frames, since it joined
    job_ended: bool
    silent_ranks: Ranks = ()
    """Connected ranks that have sent nothing for a while, though an agent does each second."""
