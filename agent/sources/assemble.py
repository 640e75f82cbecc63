"""Recorded steps, with any source's timestamps, and their conversion to spans.

Neither CUDA events nor the host's clock see idle time between two kernels. So compute is the step minus its
known waits, an upper bound, and the dashboard says so.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from overlaptop.agent.sources.base import CollectiveCall, Edge, StepSpans, Wait
from overlaptop.timeline import spans
from overlaptop.timeline.collectives import sum_links_where_known
from overlaptop.wire.messages import CollectiveSpan, PhaseSpan

Timestamp: TypeAlias = Any  # ns on the host's clock, or a CUDA event until the step is read

MAX_MARKS = 4096  # Most collectives, and most waits, of a step; a step with more has no lanes


@dataclass(slots=True)
class RecordedCollective:
    """A collective. `end` is set later, perhaps on another thread."""

    call: CollectiveCall
    begin: Timestamp
    end: Timestamp = None  # None until it is known
    stream_key: object = None
    """Calls with one key run one after another in the order of issue; None: no known order."""
    on_compute: bool = False
    """True if it ran on the compute stream itself, which did nothing else meanwhile."""
    lost: bool = False  # True if its end could not be seen; `end` is then meaningless


@dataclass(slots=True)
class RecordedStep:
    """One step. Its lists only grow, so hooks on several threads need no lock."""

    step: int
    detailed: bool  # True if its collectives and waits are recorded
    begin: Timestamp
    begin_host_ns: int = 0  # Unix time in ns at which the host set `begin`
    end: Timestamp = None  # None until it is known
    edges: list[tuple[Edge, Timestamp]] = field(default_factory=list)
    collectives: list[RecordedCollective] = field(default_factory=list)
    waits: list[tuple[Timestamp, Timestamp, Wait]] = field(default_factory=list)
    collective_count: int | None = 0  # None if collectives are not counted
    invalid: bool = False
    """True if a part could not be measured. The lane totals would be wrong, so they are left out."""

    @property
    def complete(self) -> bool:
        return self.end is not None and all(each.end is not None for each in self.collectives)

    def converted(self, to: Callable[[Timestamp], int]) -> "RecordedStep":
        """Return the complete step with its timestamps in ns."""
        return replace(
            self,
            begin=to(self.begin),
            end=to(self.end),
            edges=[(edge, to(at)) for edge, at in self.edges],
            collectives=[
                replace(each, begin=to(each.begin), end=to(each.end))
                for each in self.collectives
                if each.end is not None
            ],
            waits=[(to(begin), to(end), wait) for begin, end, wait in self.waits],
        )


class Assembler:
    """Turns recorded steps, in order, into StepSpans; carries running collectives into the next step."""

    def __init__(self) -> None:
        self._carried: list[CollectiveSpan] = []
        self._last_end_ns: dict[object, int] = {}

    def assemble(self, recorded: RecordedStep) -> StepSpans:
        """Return the spans of one complete step with timestamps in ns, clipped to it."""
        begin_ns, end_ns = recorded.begin, recorded.end
        phases = phases_of(begin_ns, end_ns, recorded.edges)
        if not recorded.detailed or recorded.invalid or any(each.lost for each in recorded.collectives):
            # Collectives of an earlier step cannot be followed through an unmeasured one.
            self._carried.clear()
            self._last_end_ns.clear()
            return StepSpans(recorded.step, begin_ns, end_ns, phases, recorded.collective_count)
        # Another thread's hook may still append a collective that has not ended.
        ended = [each for each in recorded.collectives if each.end is not None]
        timed = [self._timed(each) for each in ended]
        running = [*self._carried, *timed]
        self._carried = [each for each in running if each.end_ns > end_ns]

        def lane(pairs: Iterable[tuple[int, int]]) -> spans.Spans:
            some = list(pairs)
            return spans.clip(spans.from_pairs(some), begin_ns, end_ns) if some else spans.empty()

        comm = lane((each.start_ns, each.end_ns) for each in running)
        pure, mixed = (
            lane((begin, end) for begin, end, wait in recorded.waits if wait is kind)
            for kind in (Wait.PURE, Wait.MIXED)
        )
        on_compute = lane(
            (times.start_ns, times.end_ns)
            for times, each in zip(timed, ended, strict=True)
            if each.on_compute
        )
        stall = spans.union(spans.intersection(spans.union(pure, mixed), comm), on_compute)
        return StepSpans(
            recorded.step,
            begin_ns,
            end_ns,
            phases,
            recorded.collective_count,
            detailed=True,
            compute=spans.difference(lane([(begin_ns, end_ns)]), spans.union(pure, stall)),
            comm=comm,
            stall=stall,
            collectives=tuple(timed),
            link=sum_links_where_known(each.call.link for each in ended),
        )

    def _timed(self, recorded: RecordedCollective) -> CollectiveSpan:
        """Return a collective's own time: a queued one starts when the one before it ends."""
        start_ns, end_ns, key = recorded.begin, recorded.end, recorded.stream_key
        if key is not None:
            start_ns = max(start_ns, self._last_end_ns.get(key, start_ns))
            self._last_end_ns[key] = end_ns
        return recorded.call.span(start_ns, max(start_ns, end_ns))


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
