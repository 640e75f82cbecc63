"""The protocol of all sources of spans, and what a measured step is made of."""

from __future__ import annotations

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
"""Finished steps that the agent's thread has not looked at; past that a step is not kept, and counted where
it would be sent."""


class Edge(StrEnum):
    """A point of a step on the training thread, between its phases."""

    BACKWARD_BEGIN = "backward_begin"
    BACKWARD_END = "backward_end"
    OPTIMIZER_BEGIN = "optimizer_begin"
    OPTIMIZER_END = "optimizer_end"


class Wait(StrEnum):
    """What a bracketed wait may hold."""

    PURE = "pure"
    """Nothing but waiting."""
    MIXED = "mixed"
    """Waiting and work: DDP's end of backward also copies buckets back to gradients. Only what lies
    beside communication counts as stall."""


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """A collective as it was issued."""

    op: str
    bytes: int | None
    """None for a kernel of which only its own name is known."""
    group: str
    is_async: bool
    """It ran beside the compute stream, or may have."""
    backend: str
    """``nccl``, ``gloo``; what runs it on this device."""
    device_type: str
    device_index: int
    peer: int | None = None
    """The other rank of a point-to-point operation, as its group numbers it."""
    coalesced: bool = False
    """Several launched as one. NCCL's Work for such has no future, and asking for it ends the process."""
    link: LinkBytes | None = None
    """What this rank sends and receives in it over the links of its node; None where that is not known."""
    sequence: int | None = None
    """Its number in the order of its group, the same on all of the group's ranks. None for point-to-point
    operations and where it is not known."""
    sends_to: int | None = None
    """Of a send its target, as a rank of the job; None: not known, several, or no send."""
    receives_from: int | None = None
    """Of a receive its source, likewise. Several in one launch may have both."""
    issued_ns: int = 0
    """When it was issued, on the system's clock. This and the next two are the flight recorder's."""
    kernels: tuple[str, ...] = ()
    """What its kernels may be, in NCCL's words."""
    several: bool = False
    """Several operations in one launch: any number of kernels from one up."""

    def span(self, start_ns: int, end_ns: int) -> CollectiveSpan:
        """The collective as it ran, Unix ns on the rank's timeline."""
        return CollectiveSpan(
            self.op, self.bytes, self.group, self.is_async, start_ns, end_ns,
            self.sequence, self.sends_to, self.receives_from,
        )  # fmt: skip


def only(ranks: Iterable[int | None]) -> int | None:
    """The one rank that all of these are, None left out; None: there is none, or there are several."""
    known = {rank for rank in ranks if rank is not None}
    return known.pop() if len(known) == 1 else None


@dataclass(frozen=True, slots=True)
class StepSpans:
    """One measured step; all times Unix ns on the rank's timeline, spans clipped to the step."""

    step: int
    start_ns: int
    end_ns: int
    phases: tuple[PhaseSpan, ...]
    collective_count: int | None
    """None where collectives are not looked at."""
    detailed: bool = False
    """False: only steps and phases were measured; the spans below are then empty and mean nothing."""
    compute: Spans = field(default_factory=empty)
    comm: Spans = field(default_factory=empty)
    copy: Spans = field(default_factory=empty)
    fused: Spans = field(default_factory=empty)
    """Kernels that compute and communicate in one; the other lanes hold nothing of what ran beside them."""
    stall: Spans = field(default_factory=empty)
    collectives: tuple[CollectiveSpan, ...] = ()
    link: LinkBytes | None = None
    """What this rank sends and receives in them over the links of its node; None: not known."""
    named: bool = True
    """False where the collectives of this step were not looked up, as they are in others."""
    launch_lead_ns: int | None = None
    """When the GPU came to the step's end, less when the host had issued it."""
    comm_kernels_ns: int | None = None
    """Summed durations of NCCL's kernels, where they were joined to the collectives that launched them."""
    matched_ns: int | None = None
    """Of these, the kernels whose collective is known."""


class Source(Protocol):
    """Turns the hooks' calls into spans.

    The hooks call everything but `take` and `stop` on the job's threads, so each call must return at once
    and never wait for the device. `take` and `stop` run on the agent's own thread.
    """

    name: str
    """One of wire.messages.SOURCES."""
    reason: str
    """Why this source, or what it leaves out, in words for the screen."""
    compute_exact: bool
    """False where compute is an upper bound: the step less what is known to be waiting."""
    remarks: deque[str]
    """What a reader of the figures should know, each once; whoever tells it takes it out."""
    schedule: Schedule
    """Which steps are measured in detail, and what that costs."""
    gave_up: str
    """Why this source can measure no more, and another has to take over; empty while it can."""

    @property
    def detail_every(self) -> int:
        """Collectives are measured in every n-th step; 0: never."""

    @property
    def lost(self) -> int:
        """Steps and collectives that could not be measured, since the start."""

    def start(self) -> None:
        """Begin; raises RuntimeError with the reason when the source cannot work here."""

    def stop(self) -> None:
        """End, because the agent disables itself or the job ends: release what is held.

        What has been measured can still be taken.
        """

    @property
    def outstanding(self) -> int:
        """Callbacks into Python that other threads still have to make; Python must not end before."""

    def boundary(self, step: int) -> None:
        """`step` begins here, and the one before it ends. Never inside the capture of a CUDA graph."""

    def edge(self, edge: Edge) -> None:
        """A phase begins or ends here."""

    def settings_changed(self, step: int) -> None:
        """What steps issue may differ from `step` on, which begins. On a thread of the job's."""

    def take(self) -> list[StepSpans]:
        """Steps finished since the last call, in order."""
