"""One step of all ranks on one axis, and what lies at a place of it. No drawing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from overlaptop.tui.draw.bars import Piece
from overlaptop.tui.timeline.lanes import Lanes, lanes_of
from overlaptop.tui.timeline.parts import COMPUTE, COPY, IDLE
from overlaptop.wire.messages import StepDetail

if TYPE_CHECKING:
    from overlaptop.timeline.arrivals import Collective


@dataclass(frozen=True, slots=True)
class AlignedStep:
    """A step on each rank whose timeline is here. The axis begins where the first rank's step does, and
    ends with the last one's.
    """

    begins_ns: int
    """Unix time."""
    length_ns: int
    lanes: Mapping[int, Lanes]
    """By rank; each in ns from its own step's start."""
    parts: Mapping[int, tuple[Piece, ...]]
    """By rank, on the axis: the parts of its step that the bars have, each where it was."""

    def offset_ns(self, rank: int) -> int:
        """Where on the axis the rank's step begins."""
        return self.lanes[rank].detail.start_ns - self.begins_ns


class Cursor(NamedTuple):
    """A place of the axis, in ns, and the cell in which it is drawn."""

    at_ns: int
    left_ns: float
    right_ns: float
    call: int | None = None
    """Index of the chosen collective in the rank's step."""


class Under(NamedTuple):
    """What lies in a stretch of the axis, in one lane of a rank; bounds in ns on the axis."""

    lane: str
    start_ns: int
    end_ns: int
    call: int | None = None
    """Of a collective, its index in its rank's step."""


def aligned(details: Mapping[int, StepDetail], collectives: Sequence[Collective]) -> AlignedStep:
    """``details``: by rank, one or more; ``collectives``: those of the step, matched across ranks."""
    begins_ns = min(detail.start_ns for detail in details.values())
    ends_ns = max(detail.start_ns + detail.step_ns for detail in details.values())
    lanes = {rank: lanes_of(details[rank], collectives) for rank in sorted(details)}
    parts = {rank: _parts(each, each.detail.start_ns - begins_ns) for rank, each in lanes.items()}
    return AlignedStep(begins_ns, max(1, ends_ns - begins_ns), lanes, parts)


def under(step: AlignedStep, rank: int, cursor: Cursor) -> list[Under]:
    """What a rank did in the cursor's cell: its phase, its collectives, and of each other lane one span.
    First, or that one, is what is chosen, what lies under the cursor itself, what takes most of the cell.
    """
    lanes, offset_ns = step.lanes[rank], step.offset_ns(rank)

    def met(found: Iterable[Under]) -> list[Under]:
        left_ns, right_ns = cursor.left_ns, cursor.right_ns
        in_it = [each for each in found if each.end_ns > left_ns and each.start_ns < right_ns]

        def weight(each: Under) -> tuple[bool, bool, float]:
            overlap_ns = min(each.end_ns, right_ns) - max(each.start_ns, left_ns)
            chosen = each.call is not None and each.call == cursor.call
            return chosen, each.start_ns <= cursor.at_ns < each.end_ns, overlap_ns

        return sorted(in_it, key=weight, reverse=True)

    def shifted(pieces: Iterable[Piece]) -> Iterator[Under]:
        for start_ns, end_ns, key in pieces:
            yield Under(key, int(start_ns) + offset_ns, int(end_ns) + offset_ns)

    phases = (Piece(each.start_ns, each.end_ns, each.name) for each in lanes.detail.phases)
    calls = [Under("comm", *span_of(step, rank, at), at) for at in range(len(lanes.detail.collectives))]
    idle = (Under(key, int(start), int(end)) for start, end, key in step.parts[rank] if key == IDLE.key)
    return [
        *met(shifted(phases))[:1],
        *(met(calls) or met(shifted(lanes.comm))[:1]),
        *(each for lane in (shifted(lanes.compute), shifted(lanes.copy), idle) for each in met(lane)[:1]),
    ]


def neighbour(step: AlignedStep, rank: int, at_ns: int, direction: int) -> int | None:
    """Index of the first collective of a rank that begins after a place of the axis, or of the last one
    that begins before it; None: there is none.
    """
    starts = [(span_of(step, rank, at)[0], at) for at in range(len(step.lanes[rank].detail.collectives))]
    if direction > 0:
        return min((each for each in starts if each[0] > at_ns), default=(0, None))[1]
    return max((each for each in starts if each[0] < at_ns), default=(0, None))[1]


def span_of(step: AlignedStep, rank: int, index: int) -> tuple[int, int]:
    """From when to when a collective of a rank was, on the axis."""
    each, offset_ns = step.lanes[rank].detail.collectives[index], step.offset_ns(rank)
    return each.start_ns + offset_ns, each.end_ns + offset_ns


def _parts(lanes: Lanes, offset_ns: int) -> tuple[Piece, ...]:
    """Compute only, hidden, exposed, waiting, fused, copy only, idle: together the step, each once."""
    # numpy takes 100 ms to import, which the first paint would pay: nothing to draw needs it before.
    from overlaptop.timeline.spans import difference, from_pairs, union

    compute, comm, copy = (
        from_pairs([(int(each.start), int(each.end)) for each in pieces])
        for pieces in (
            (each for each in lanes.compute if each.key == COMPUTE.key),
            lanes.comm,
            lanes.copy,
        )
    )
    busy = union(compute, comm)
    found = list(lanes.comm)
    for part, spans in (
        (COMPUTE, difference(compute, comm)),
        (COPY, difference(copy, busy)),
        (IDLE, difference(from_pairs([(0, lanes.detail.step_ns)]), union(busy, copy))),
    ):
        found += [Piece(start, end, part.key) for start, end in spans.tolist()]
    return tuple(sorted(Piece(start + offset_ns, end + offset_ns, key) for start, end, key in found))
