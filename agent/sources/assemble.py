"""From a recorded step to its spans: the one place that defines compute and stall.

Neither CUDA events nor the host's clock see when the device stands still between two kernels. So compute
is the step less what is known to be waiting, an upper bound, and the dashboard says so.
"""

from __future__ import annotations

from collections.abc import Iterable

from overlaptop.agent.sources.base import CollectiveTimes, Edge, PhaseTimes, StepSpans, Wait
from overlaptop.agent.sources.recorded_step import RecordedStep
from overlaptop.timeline import spans


class Assembler:
    """Turns recorded steps, in order, into StepSpans; carries what outlives a step into the next."""

    def __init__(self) -> None:
        self._carried: list[CollectiveTimes] = []
        self._last_end_ns: dict[object, int] = {}

    def assemble(self, recorded: RecordedStep[int]) -> StepSpans:
        """The spans of one complete step, clipped to it."""
        begin_ns, end_ns = recorded.begin, recorded.end
        assert end_ns is not None
        phases = phases_of(begin_ns, end_ns, recorded.edges)
        if not recorded.measured:
            # What ran over from an earlier step cannot be followed through an unmeasured one.
            self._carried.clear()
            self._last_end_ns.clear()
            return StepSpans(recorded.step, begin_ns, end_ns, phases, recorded.collective_count)
        timed, on_compute = self._timed(recorded)
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
        stall = spans.union(spans.intersection(spans.union(pure, mixed), comm), lane(on_compute))
        step = spans.from_pairs([(begin_ns, end_ns)])
        return StepSpans(
            recorded.step,
            begin_ns,
            end_ns,
            phases,
            recorded.collective_count,
            detailed=True,
            compute=spans.difference(step, spans.union(pure, stall)),
            comm=comm,
            stall=stall,
            collectives=tuple(timed),
        )

    def _timed(self, recorded: RecordedStep[int]) -> tuple[list[CollectiveTimes], list[tuple[int, int]]]:
        """Each collective's own time, and the times of those on the compute stream.

        One that had to queue starts when the one before it ends.
        """
        timed, on_compute = [], []
        for each in recorded.collectives:
            start_ns, key = each.begin, each.stream_key
            if each.end is None:
                continue
            if key is not None:
                start_ns = max(start_ns, self._last_end_ns.get(key, start_ns))
                self._last_end_ns[key] = each.end
            end_ns = max(start_ns, each.end)
            timed.append(CollectiveTimes(each.call, start_ns, end_ns))
            if each.on_compute:
                on_compute.append((start_ns, end_ns))
        return timed, on_compute


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
