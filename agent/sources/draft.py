"""A step while it is being recorded, in whatever a source uses to mark a moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from overlaptop.agent.sources.base import CollectiveCall, Edge, Wait

Mark = TypeVar("Mark")
"""A moment: ns by the host's clock, or a CUDA event."""

MAX_MARKS = 4096
"""Collectives, and waits, that one step may hold; what comes after is counted as lost."""


@dataclass(slots=True)
class CollectiveInProgress(Generic[Mark]):
    """A collective under way. `end` arrives later, perhaps from another thread."""

    call: CollectiveCall
    begin: Mark
    end: Mark | None = None
    stream_key: object = None
    """Calls of one key run one after the other in the order of their issue; None: no such promise."""
    on_compute: bool = False
    """It ran on the compute stream itself, which did nothing else meanwhile."""
    lost: bool = False
    """Its end could not be seen, so `end` means nothing."""


@dataclass(slots=True)
class StepInProgress(Generic[Mark]):
    """All marks of one step. Lists are only appended to, so hooks on several threads need no lock."""

    step: int
    detailed: bool
    begin: Mark
    begin_host_ns: int = 0
    """Unix time at which the host set `begin`."""
    end: Mark | None = None
    edges: list[tuple[Edge, Mark]] = field(default_factory=list)
    collectives: list[CollectiveInProgress[Mark]] = field(default_factory=list)
    waits: list[tuple[Mark, Mark, Wait]] = field(default_factory=list)
    collective_count: int | None = 0
    """None where collectives are not looked at."""
    cost_ns: int = 0
    """What recording it took on the job's own threads."""
    spoiled: bool = False
    """Something in it could not be measured: its lane totals would be wrong, so there are none."""

    def complete(self) -> bool:
        """Whether the step and everything issued in it has an end mark."""
        return self.end is not None and all(each.end is not None for each in self.collectives)


@dataclass(frozen=True, slots=True)
class ResolvedCollective:
    """A collective in Unix ns."""

    call: CollectiveCall
    begin_ns: int
    end_ns: int
    stream_key: object
    on_compute: bool


@dataclass(frozen=True, slots=True)
class ResolvedStep:
    """A step in Unix ns: what a draft becomes once all its marks can be read."""

    step: int
    detailed: bool
    begin_ns: int
    end_ns: int
    edges: tuple[tuple[Edge, int], ...]
    collectives: tuple[ResolvedCollective, ...]
    waits: tuple[tuple[int, int, Wait], ...]
    collective_count: int | None


def resolve(draft: StepInProgress[Mark], to_ns: Callable[[Mark], int]) -> ResolvedStep:
    """Read every mark of a complete draft with `to_ns`."""
    assert draft.end is not None
    return ResolvedStep(
        step=draft.step,
        detailed=draft.detailed and not draft.spoiled and not any(each.lost for each in draft.collectives),
        begin_ns=to_ns(draft.begin),
        end_ns=to_ns(draft.end),
        edges=tuple((edge, to_ns(mark)) for edge, mark in draft.edges),
        collectives=tuple(
            ResolvedCollective(
                each.call, to_ns(each.begin), to_ns(each.end), each.stream_key, each.on_compute
            )
            for each in draft.collectives
            if each.end is not None
        ),
        waits=tuple((to_ns(begin), to_ns(end), wait) for begin, end, wait in draft.waits),
        collective_count=draft.collective_count,
    )
