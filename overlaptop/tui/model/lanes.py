"""The step that timelines show: the lanes of each rank, on one axis of all ranks."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from overlaptop.tui.draw.bars import Piece
from overlaptop.tui.model import parts
from overlaptop.tui.model.viewport import WHOLE_STEP, Viewport
from overlaptop.wire.messages import CollectiveSpan, StepDetail

if TYPE_CHECKING:
    from overlaptop.fleet.waits import StepWaits
    from overlaptop.timeline.arrivals import Collective
    from overlaptop.timeline.spans import Spans

# numpy takes 100 ms to import: not before the first paint, which does not need it.


class CollectiveKey(NamedTuple):
    """Identifies a collective within a step, also in later steps of a regular job."""

    op: str
    group: str = ""
    bytes: int | None = None
    at: int = 0  # Its index among equal collectives of the step, by start


@dataclass(frozen=True, slots=True)
class Lanes:
    """One detailed step to draw at any zoom. Pieces in ns from the step's start."""

    detail: StepDetail
    label: str  # Of the compute lane: ``phases`` if no more is known of it
    compute: tuple[Piece, ...]  # Compute, kernels that also communicate, and stalls in the gaps
    comm: tuple[Piece, ...]
    """Hidden and exposed communication, each with its wait, and kernels that also compute."""
    copy: tuple[Piece, ...]
    hidden_ns: tuple[int, ...]  # For each collective in order: its time beside compute
    keys: tuple[CollectiveKey, ...]
    matched: "tuple[Collective | None, ...]"
    """For each collective in order: the matched collective of all ranks of its group; None if not known."""

    def place(self, index: int) -> tuple[float, float]:
        """Return a collective's start and end as fractions of the step."""
        each, step_ns = self.detail.collectives[index], max(1, self.detail.step_ns)
        return each.start_ns / step_ns, each.end_ns / step_ns

    def hidden_share(self, index: int) -> float | None:
        """Return the share of a collective beside compute; None for one without length."""
        each = self.detail.collectives[index]
        length_ns = each.end_ns - each.start_ns
        return self.hidden_ns[index] / length_ns if length_ns > 0 else None


class TimelineStep:
    """One step of the ranks whose timelines are here. Times are in ns on its axis, from the first rank's
    start to the last rank's end.
    """

    def __init__(
        self,
        rank: int,
        details: Mapping[int, StepDetail],
        waits: "StepWaits | None" = None,
        compute: parts.StepPart = parts.COMPUTE,
    ) -> None:
        """``rank``: the selected one; ``details``: the step by rank; ``compute``: as in `lanes_of`."""
        self.rank, self.details, self.waits, self.compute = rank, details, waits, compute
        self.begins_ns = min(each.start_ns for each in details.values())
        ends_ns = max(each.start_ns + each.step_ns for each in details.values())
        self.length_ns = max(1, ends_ns - self.begins_ns)
        self._parts: dict[int, tuple[Piece, ...]] = {}

    @property
    def collectives(self) -> "Sequence[Collective]":
        """Return the step's collectives that were matched across ranks."""
        return self.waits.collectives if self.waits is not None else ()

    @cached_property
    def lanes(self) -> Lanes:
        """The lanes of the selected rank."""
        return lanes_of(self.details[self.rank], self.collectives, self.compute)

    def parts(self, rank: int) -> tuple[Piece, ...]:
        """Return the parts of a rank's step at their times, in ns from its start. They cover it once."""
        if rank not in self._parts:
            self._parts[rank] = _parts(self.details[rank], self.collectives, self.compute)
        return self._parts[rank]

    def offset_ns(self, rank: int) -> int:
        return self.details[rank].start_ns - self.begins_ns

    def bounds_ns(self, viewport: Viewport, rank: int | None = None) -> tuple[float, float]:
        """Return the part of the axis to show: all of it, or the viewport of the selected rank's step.

        ``rank``: in ns from the start of this rank's step; None: from the axis's start.
        """
        start_ns, end_ns = 0.0, float(self.length_ns)
        if viewport != WHOLE_STEP:
            bounds_ns = viewport.bounds_ns(self.details[self.rank].step_ns)
            start_ns, end_ns = (at_ns + self.offset_ns(self.rank) for at_ns in bounds_ns)
        from_ns = self.offset_ns(rank) if rank is not None else 0
        return start_ns - from_ns, end_ns - from_ns


def lanes_of(
    detail: StepDetail,
    collectives: "Sequence[Collective]" = (),
    compute: parts.StepPart = parts.COMPUTE,
) -> Lanes:
    """Return the lanes of a step. ``collectives``: those of this step that were matched across ranks;
    ``compute``: PHASES if no more is known of it.
    """
    from overlaptop.timeline.spans import lengths_within

    sets = sets_of(detail, collectives)
    starts_ns = [each.start_ns for each in detail.collectives]
    ends_ns = [each.end_ns for each in detail.collectives]
    return Lanes(
        detail=detail,
        label=compute.key,
        compute=pieces({**sets, compute.key: sets[parts.COMPUTE.key]}, compute, parts.FUSED, parts.STALL),
        comm=pieces(sets, *parts.COMM_LANE),
        copy=pieces(sets, parts.COPY),
        hidden_ns=tuple(lengths_within(sets[parts.COMPUTE.key], starts_ns, ends_ns).tolist()),
        keys=keys_of(detail.collectives),
        matched=_matched(detail, collectives),
    )


def sets_of(detail: StepDetail, collectives: "Sequence[Collective]") -> "dict[str, Spans]":
    """Return the spans of each part of a step by its key, in ns from its start: hidden and exposed
    communication, each with its wait; all compute; stalls in compute's gaps.
    """
    from overlaptop.timeline.arrivals import waiting
    from overlaptop.timeline.spans import difference, intersection, unflatten, union

    compute, fused = compute_of(detail), unflatten(detail.fused_spans_ns)
    comm = difference(unflatten(detail.comm_spans_ns), fused)
    start_ns = detail.start_ns
    waits = waiting(detail.rank, comm + start_ns, collectives, start_ns, start_ns + detail.step_ns)
    wait = waits.wait - start_ns
    hidden, exposed = intersection(comm, compute), difference(comm, compute)
    return {
        parts.COMPUTE.key: compute,
        parts.FUSED.key: fused,
        parts.STALL.key: difference(unflatten(detail.stall_spans_ns), union(compute, fused)),
        parts.HIDDEN.key: difference(hidden, wait),
        parts.HIDDEN_WAITING.key: intersection(hidden, wait),
        parts.EXPOSED.key: difference(exposed, wait),
        parts.WAITING.key: intersection(exposed, wait),
        parts.COPY.key: unflatten(detail.copy_spans_ns),
    }


def pieces(sets: "Mapping[str, Spans]", *of: parts.StepPart) -> tuple[Piece, ...]:
    """Return some of these disjoint sets as one lane."""
    import numpy as np

    together = np.concatenate([sets[part.key] for part in of])
    order = np.argsort(together[:, 0], kind="stable")
    starts, ends = together[order].T.tolist()
    keys = [part.key for part in of for _ in sets[part.key]]
    return tuple(map(Piece, starts, ends, [keys[at] for at in order.tolist()]))


def compute_of(detail: StepDetail) -> "Spans":
    """Return compute without kernels that also communicate, in ns from the step's start."""
    from overlaptop.timeline.spans import difference, unflatten

    # Sent lanes have small gaps closed, so they may overlap.
    return difference(unflatten(detail.compute_spans_ns), unflatten(detail.fused_spans_ns))


def keys_of(collectives: "Iterable[CollectiveSpan | Collective]") -> tuple[CollectiveKey, ...]:
    """Return the keys of one step's collectives, by start."""
    seen: Counter[CollectiveKey] = Counter()
    found = []
    for each in collectives:
        alike = CollectiveKey(each.op, each.group, each.bytes)
        found.append(alike._replace(at=seen[alike]))
        seen[alike] += 1
    return tuple(found)


def _matched(detail: StepDetail, collectives: "Sequence[Collective]") -> "tuple[Collective | None, ...]":
    """Match collectives by the start and end of this rank's part."""
    known = {each.spans[detail.rank]: each for each in collectives if detail.rank in each.spans}
    at_ns = detail.start_ns
    return tuple(known.get((at_ns + each.start_ns, at_ns + each.end_ns)) for each in detail.collectives)


def _parts(
    detail: StepDetail, collectives: "Sequence[Collective]", compute: parts.StepPart
) -> tuple[Piece, ...]:
    from overlaptop.timeline.spans import difference, from_pairs, union

    sets = sets_of(detail, collectives)
    with_comm = union(*(sets[part.key] for part in parts.COMM_LANE))
    busy = union(sets[parts.COMPUTE.key], with_comm)
    idle = difference(from_pairs([(0, detail.step_ns)]), union(busy, sets[parts.COPY.key]))
    sets[parts.IDLE.key], sets[compute.key] = idle, difference(sets[parts.COMPUTE.key], with_comm)
    sets[parts.COPY.key] = difference(sets[parts.COPY.key], busy)
    return pieces(sets, *parts.COMM_LANE, compute, parts.COPY, parts.IDLE)
