"""One step of all ranks on one axis, and the spans at a position. No drawing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from overlaptop.tui.draw.bars import Piece
from overlaptop.tui.model.lanes import Lanes, lanes_of, pieces, sets_of
from overlaptop.tui.model.parts import COMM_LANE, COMPUTE, COPY, IDLE, StepPart
from overlaptop.wire.messages import StepDetail

if TYPE_CHECKING:
    from overlaptop.timeline.arrivals import Collective


@dataclass(frozen=True, slots=True, eq=False)
class AlignedStep:
    """A step of several ranks. The axis goes from the first rank's start to the last rank's end."""

    begins_ns: int  # Unix time
    length_ns: int
    details: Mapping[int, StepDetail]  # By rank
    parts: Mapping[int, tuple[Piece, ...]]
    """By rank, in ns from its step's start: the parts of the step as in the bars, at their times."""
    collectives: "Sequence[Collective]"
    compute: StepPart  # PHASES if no more is known of compute
    _lanes: dict[int, Lanes] = field(default_factory=dict)

    def lanes(self, rank: int) -> Lanes:
        if rank not in self._lanes:
            self._lanes[rank] = lanes_of(self.details[rank], self.collectives, self.compute)
        return self._lanes[rank]

    def offset_ns(self, rank: int) -> int:
        return self.details[rank].start_ns - self.begins_ns

    def span(self, rank: int, call: int) -> tuple[int, int]:
        each, offset_ns = self.details[rank].collectives[call], self.offset_ns(rank)
        return each.start_ns + offset_ns, each.end_ns + offset_ns


class Cursor(NamedTuple):
    """A position on the axis in ns, and its cell."""

    at_ns: int
    left_ns: float
    right_ns: float
    call: int | None = None  # Index of the selected collective in the rank's step


class Under(NamedTuple):
    """A span in one lane of a rank; bounds in ns on the axis."""

    lane: str
    start_ns: int
    end_ns: int
    call: int | None = None  # For a collective, its index in its rank's step


def aligned(
    details: Mapping[int, StepDetail], collectives: "Sequence[Collective]", compute: StepPart = COMPUTE
) -> AlignedStep:
    """``details``: the step by rank, one or more; ``collectives``: matched across ranks; ``compute``: as in
    `lanes_of`.
    """
    begins_ns = min(detail.start_ns for detail in details.values())
    ends_ns = max(detail.start_ns + detail.step_ns for detail in details.values())
    parts = {rank: _parts(detail, collectives, compute) for rank, detail in details.items()}
    return AlignedStep(begins_ns, max(1, ends_ns - begins_ns), details, parts, collectives, compute)


def under(step: AlignedStep, rank: int, cursor: Cursor) -> list[Under]:
    """Return a rank's spans in the cursor's cell: its phase, its collectives, and one span of each other
    lane. Order: the selected one, the one below the cursor itself, the one with the largest share of the
    cell.
    """
    lanes, offset_ns = step.lanes(rank), step.offset_ns(rank)

    def weight(each: Under) -> tuple[bool, bool, float]:
        overlap_ns = min(each.end_ns, cursor.right_ns) - max(each.start_ns, cursor.left_ns)
        return each.call == cursor.call, each.start_ns <= cursor.at_ns < each.end_ns, overlap_ns

    def met(found: Iterable[Under]) -> list[Under]:
        here = [each for each in found if each.end_ns > cursor.left_ns and each.start_ns < cursor.right_ns]
        return sorted(here, key=weight, reverse=True)

    def first(pieces: Iterable[Piece]) -> list[Under]:
        return met(Under(key, int(a) + offset_ns, int(b) + offset_ns) for a, b, key in pieces)[:1]

    phases = (Piece(each.start_ns, each.end_ns, each.name) for each in lanes.detail.phases)
    calls = (Under("comm", *step.span(rank, at), at) for at in range(len(lanes.detail.collectives)))
    idle = (each for each in step.parts[rank] if each.key == IDLE.key)
    below = (each for lane in (lanes.compute, lanes.copy, idle) for each in first(lane))
    return [*first(phases), *(met(calls) or first(lanes.comm)), *below]


def neighbour(step: AlignedStep, rank: int, at_ns: int, direction: int) -> int | None:
    """Return the index of the rank's next collective after a position, or before it; None: none."""
    starts = [(step.span(rank, at)[0], at) for at in range(len(step.details[rank].collectives))]
    if direction > 0:
        return min((each for each in starts if each[0] > at_ns), default=(0, None))[1]
    return max((each for each in starts if each[0] < at_ns), default=(0, None))[1]


def _parts(detail: StepDetail, collectives: "Sequence[Collective]", compute: StepPart) -> tuple[Piece, ...]:
    """Return the parts of the step; together they cover it once."""
    # numpy takes 100 ms to import: not before the first paint, which does not need it.
    from overlaptop.timeline.spans import difference, from_pairs, union

    sets = sets_of(detail, collectives)
    with_comm = union(*(sets[part.key] for part in COMM_LANE))
    busy = union(sets[COMPUTE.key], with_comm)
    sets[IDLE.key] = difference(from_pairs([(0, detail.step_ns)]), union(busy, sets[COPY.key]))
    sets[compute.key] = difference(sets[COMPUTE.key], with_comm)
    sets[COPY.key] = difference(sets[COPY.key], busy)
    return pieces(sets, *COMM_LANE, compute, COPY, IDLE)
