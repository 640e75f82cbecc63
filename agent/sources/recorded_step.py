"""A step as it is recorded, in whatever a source uses as a timestamp, and the same step in Unix ns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from overlaptop.agent.sources.base import CollectiveCall, Edge, Wait

Timestamp = TypeVar("Timestamp")
"""ns by the host's clock, or a CUDA event."""
Other = TypeVar("Other")

MAX_MARKS = 4096
"""Collectives, and waits, that one step may hold; what comes after is counted as lost."""


@dataclass(slots=True)
class RecordedCollective(Generic[Timestamp]):
    """A collective. `end` arrives later, perhaps from another thread."""

    call: CollectiveCall
    begin: Timestamp
    end: Timestamp | None = None
    stream_key: object = None
    """Calls of one key run one after the other in the order of their issue; None: no such promise."""
    on_compute: bool = False
    """It ran on the compute stream itself, which did nothing else meanwhile."""
    lost: bool = False
    """Its end could not be seen, so `end` means nothing."""


@dataclass(slots=True)
class RecordedStep(Generic[Timestamp]):
    """One step. Lists are only appended to, so hooks on several threads need no lock."""

    step: int
    detailed: bool
    """Its collectives and waits are recorded."""
    begin: Timestamp
    begin_host_ns: int = 0
    """Unix time at which the host set `begin`."""
    end: Timestamp | None = None
    edges: list[tuple[Edge, Timestamp]] = field(default_factory=list)
    collectives: list[RecordedCollective[Timestamp]] = field(default_factory=list)
    waits: list[tuple[Timestamp, Timestamp, Wait]] = field(default_factory=list)
    collective_count: int | None = 0
    """None where collectives are not looked at."""
    cost_ns: int = 0
    """What recording it took on the job's own threads."""
    invalid: bool = False
    """Something in it could not be measured: its lane totals would be wrong, so there are none."""

    @property
    def complete(self) -> bool:
        """Whether the step and everything issued in it has its end."""
        return self.end is not None and all(each.end is not None for each in self.collectives)

    @property
    def measured(self) -> bool:
        """Whether its lane totals are known."""
        return self.detailed and not self.invalid and not any(each.lost for each in self.collectives)

    def converted(self, to: Callable[[Timestamp], Other]) -> RecordedStep[Other]:
        """The same, complete step with other timestamps."""
        assert self.end is not None
        return RecordedStep(
            self.step,
            self.detailed,
            to(self.begin),
            self.begin_host_ns,
            to(self.end),
            [(edge, to(at)) for edge, at in self.edges],
            [
                RecordedCollective(
                    each.call, to(each.begin), to(each.end), each.stream_key, each.on_compute, each.lost
                )
                for each in self.collectives
                if each.end is not None
            ],
            [(to(begin), to(end), wait) for begin, end, wait in self.waits],
            self.collective_count,
            self.cost_ns,
            self.invalid,
        )
