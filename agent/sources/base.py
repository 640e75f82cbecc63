"""The protocol of all sources of spans, and the parts of a measured step."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from overlaptop.agent.sources.schedule import Schedule
from overlaptop.timeline.collectives import LinkBytes
from overlaptop.timeline.spans import Spans, empty
from overlaptop.wire.messages import CollectiveSpan, PhaseSpan

MAX_WAITING_STEPS = 4096
"""Finished steps kept for the agent's thread. Beyond that, steps are dropped and counted."""


class Edge(StrEnum):
    """A boundary between phases on the training thread."""

    BACKWARD_BEGIN = "backward_begin"
    BACKWARD_END = "backward_end"
    OPTIMIZER_BEGIN = "optimizer_begin"
    OPTIMIZER_END = "optimizer_end"


class Wait(StrEnum):
    """Contents of a bracketed wait."""

    PURE = "pure"  # Only waiting
    MIXED = "mixed"
    """Waiting and work: DDP's end of backward also copies buckets back to gradients. Only the part that
    overlaps communication counts as stall."""


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """A collective as issued."""

    op: str
    bytes: int | None  # None if only the kernel's name is known
    group: str
    is_async: bool  # True if it ran, or may have run, beside the compute stream
    backend: str  # ``nccl``, ``gloo``: the backend for this device
    device_type: str
    device_index: int
    peer: int | None = None  # Other rank of a point-to-point operation, as its group numbers it
    coalesced: bool = False
    """Several operations in one launch. NCCL's Work then has no future: asking for it ends the process."""
    link: LinkBytes | None = None  # Bytes this rank sends and receives; None if unknown
    sequence: int | None = None
    """Number of the collective in its group, alike on all ranks of the group. None for point-to-point
    operations and if unknown."""
    sends_to: int | None = None  # A send's target as a global rank; None: unknown, several, or no send
    receives_from: int | None = None
    """A receive's source as a global rank. A launch of several operations may have both."""
    issued_ns: int = 0
    """Time of issue on the system's clock. This and the next two are from the flight recorder."""
    kernels: tuple[str, ...] = ()  # Kinds of kernels it may run, in NCCL's names
    several: bool = False  # Several operations in one launch: one or more kernels

    def span(self, start_ns: int, end_ns: int) -> CollectiveSpan:
        """Return the collective's span, in Unix ns on the rank's timeline."""
        return CollectiveSpan(
            self.op, self.bytes, self.group, self.is_async, start_ns, end_ns,
            self.sequence, self.sends_to, self.receives_from,
        )  # fmt: skip


def only(ranks: Iterable[int | None]) -> int | None:
    """Return the only rank among these, ignoring None; None if there is none or several."""
    known = {rank for rank in ranks if rank is not None}
    return known.pop() if len(known) == 1 else None


@dataclass(frozen=True, slots=True)
class StepSpans:
    """One measured step; times are Unix ns on the rank's timeline, spans are clipped to the step."""

    step: int
    start_ns: int
    end_ns: int
    phases: tuple[PhaseSpan, ...]
    collective_count: int | None  # None if collectives are not counted
    detailed: bool = False
    """False: only steps and phases were measured, and the spans below are empty and meaningless."""
    compute: Spans = field(default_factory=empty)
    comm: Spans = field(default_factory=empty)
    copy: Spans = field(default_factory=empty)
    fused: Spans = field(default_factory=empty)
    """Kernels that compute and communicate; the other lanes exclude these times."""
    stall: Spans = field(default_factory=empty)
    collectives: tuple[CollectiveSpan, ...] = ()
    link: LinkBytes | None = None  # Bytes this rank sends and receives; None if unknown
    named: bool = True  # False if this step's collectives were not looked up
    launch_lead_ns: int | None = None  # GPU time of the step's end minus the host time of its launch
    least_lead_ns: int | None = None  # Smallest lead of the host over the GPU at the marks of the step
    host_ns: int | None = None
    """Time between the launches of the step's bounds less the host's synchronisations. None: not known, or
    something else blocked the host."""
    comm_kernels_ns: int | None = None
    """Total duration of NCCL's kernels, if they were joined to collectives."""
    matched_ns: int | None = None  # Part of `comm_kernels_ns` whose collective is known


def phases_of(begin_ns: int, end_ns: int, edges: Iterable[tuple[Edge, int]]) -> tuple[PhaseSpan, ...]:
    """Return the phases of a step from its edges.

    Forward is the time before a backward, from the step's start or from the previous phase.
    """
    phases = []
    forward_from = latest_ns = begin_ns
    opened: dict[str, int] = {}
    for edge, at_ns in edges:
        latest_ns = at_ns = min(max(at_ns, latest_ns), end_ns)  # no phase ends before it begins
        if edge is Edge.BACKWARD_BEGIN:
            phases.append(PhaseSpan("forward", forward_from, at_ns))
        name, _, which = edge.partition("_")
        if which == "begin":
            opened[name] = at_ns
            continue
        if name in opened:
            phases.append(PhaseSpan(name, opened.pop(name), at_ns))
        forward_from = at_ns
    if "optimizer" in opened:
        phases.append(PhaseSpan("optimizer", opened["optimizer"], end_ns))
    return tuple(phases)


class Source(Protocol):
    """Turns the hooks' calls into spans.

    `take` and `stop` run on the agent's thread. Hooks call everything else on the job's threads, so these
    calls must return at once and never wait for the device.
    """

    name: str  # One of wire.messages.SOURCES
    reason: str  # Why this source was chosen, or what it leaves out, for the screen
    compute_exact: bool  # False if compute is an upper bound: the step minus its known waits
    remarks: deque[str]  # Warnings about the figures, each once; the reader removes them
    schedule: Schedule  # Chooses the steps measured in detail, and knows their cost
    gave_up: str  # Why this source cannot measure any longer and another must take over; empty while it can

    @property
    def detail_every(self) -> int:
        """Of how many steps one has its collectives measured, on average; 0: none has."""

    @property
    def lost(self) -> int:
        """Steps and collectives lost since the start."""

    def start(self) -> None:
        """Begin; raises RuntimeError with the reason if the source cannot work here."""

    def stop(self) -> None:
        """End and release everything: the agent disables itself, or the job ends.

        Measured steps can still be taken.
        """

    @property
    def outstanding(self) -> int:
        """Pending callbacks into Python from other threads; Python must not end before them."""

    def boundary(self, step: int) -> None:
        """End the step before ``step`` and begin ``step``. Never during the capture of a CUDA graph."""

    def edge(self, edge: Edge) -> None:
        """A phase begins or ends now."""

    def settings_changed(self, step: int) -> None:
        """From `step` on, which begins, steps may issue other work. On a job thread."""

    def take(self) -> list[StepSpans]:
        """Return the steps finished since the last call, in order."""
