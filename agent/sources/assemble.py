"""From a step's resolved marks to its spans: the one place that says what compute and stall are.

Neither CUDA events nor the host's clock see when the device stands still between two kernels. So compute
is the step less what is known to be waiting, an upper bound, and the dashboard says so.
"""

from __future__ import annotations

from collections.abc import Iterable

from overlaptop.agent.sources.base import CollectiveTimes, Edge, PhaseTimes, StepSpans, Wait
from overlaptop.agent.sources.draft import ResolvedStep
from overlaptop.timeline import spans


class Assembler:
    """Turns resolved steps, in order, into StepSpans; carries what outlives a step into the next."""

    def __init__(self) -> None:
        self._carried: list[CollectiveTimes] = []
        self._last_end_ns: dict[object, int] = {}

    def assemble(self, resolved: ResolvedStep) -> StepSpans:
        """The spans of one step, clipped to it."""
        begin_ns, end_ns = resolved.begin_ns, resolved.end_ns
        phases = phases_of(begin_ns, end_ns, resolved.edges)
        if not resolved.detailed:
            # What ran over from an earlier step cannot be followed through an unmeasured one.
            self._carried.clear()
            self._last_end_ns.clear()
            empty = spans.empty()
            return StepSpans(
                resolved.step,
                begin_ns,
                end_ns,
                phases,
                detailed=False,
                compute=empty,
                comm=empty,
                copy=empty,
                stall=empty,
                collectives=(),
                collective_count=resolved.collective_count,
            )
        timed = self._timed(resolved)
        running = [*self._carried, *timed]
        self._carried = [each for each in running if each.end_ns > end_ns]

        comm = _clipped(((each.start_ns, each.end_ns) for each in running), begin_ns, end_ns)
        pure = _clipped(_waits(resolved, Wait.PURE), begin_ns, end_ns)
        mixed = _clipped(_waits(resolved, Wait.MIXED), begin_ns, end_ns)
        on_compute = _clipped(
            (
                (times.start_ns, times.end_ns)
                for each, times in zip(resolved.collectives, timed, strict=True)
                if each.on_compute
            ),
            begin_ns,
            end_ns,
        )
        stall = spans.union(spans.intersection(spans.union(pure, mixed), comm), on_compute)
        standing = spans.union(pure, stall)
        step = spans.from_pairs([(begin_ns, end_ns)])
        return StepSpans(
            resolved.step,
            begin_ns,
            end_ns,
            phases,
            detailed=True,
            compute=spans.difference(step, standing),
            comm=comm,
            copy=spans.empty(),
            stall=stall,
            collectives=tuple(timed),
            collective_count=resolved.collective_count,
        )

    def _timed(self, resolved: ResolvedStep) -> list[CollectiveTimes]:
        """Each collective's own time: one that had to queue starts when the one before it ends."""
        timed = []
        for each in resolved.collectives:
            start_ns = each.begin_ns
            key = each.stream_key
            if key is not None:
                start_ns = max(start_ns, self._last_end_ns.get(key, start_ns))
                self._last_end_ns[key] = each.end_ns
            timed.append(CollectiveTimes(each.call, start_ns, max(start_ns, each.end_ns)))
        return timed


def _waits(resolved: ResolvedStep, kind: Wait) -> Iterable[tuple[int, int]]:
    return ((begin, end) for begin, end, wait in resolved.waits if wait is kind)


def _clipped(pairs: Iterable[tuple[int, int]], begin_ns: int, end_ns: int) -> spans.Spans:
    some = list(pairs)
    return spans.clip(spans.from_pairs(some), begin_ns, end_ns) if some else spans.empty()


def phases_of(begin_ns: int, end_ns: int, edges: Iterable[tuple[Edge, int]]) -> tuple[PhaseTimes, ...]:
    """The phases of a step from its edges.

    Forward is what leads up to a backward: from the step's start, or from the backward before it.
    """
    phases = []
    forward_from = latest_ns = begin_ns
    opened: dict[Edge, int] = {}
    for edge, at_ns in edges:
        latest_ns = at_ns = min(max(at_ns, latest_ns), end_ns)  # no phase ends before it begins
        if edge is Edge.BACKWARD_BEGIN:
            phases.append(PhaseTimes("forward", forward_from, at_ns))
            opened[edge] = at_ns
        elif edge is Edge.BACKWARD_END:
            start_ns = opened.pop(Edge.BACKWARD_BEGIN, None)
            if start_ns is not None:
                phases.append(PhaseTimes("backward", start_ns, at_ns))
            forward_from = at_ns
        elif edge is Edge.OPTIMIZER_BEGIN:
            opened[edge] = at_ns
        else:
            start_ns = opened.pop(Edge.OPTIMIZER_BEGIN, None)
            if start_ns is not None:
                phases.append(PhaseTimes("optimizer", start_ns, at_ns))
            forward_from = at_ns
    if Edge.OPTIMIZER_BEGIN in opened:
        phases.append(PhaseTimes("optimizer", opened[Edge.OPTIMIZER_BEGIN], end_ns))
    return tuple(phases)
