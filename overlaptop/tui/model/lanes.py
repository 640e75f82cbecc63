"""A step's detail as pieces of its timeline's lanes."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from overlaptop.tui.draw.bars import Piece
from overlaptop.tui.model import parts
from overlaptop.wire.messages import CollectiveSpan, StepDetail

if TYPE_CHECKING:
    from overlaptop.timeline.arrivals import Collective
    from overlaptop.timeline.spans import Spans


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


def lanes_of(
    detail: StepDetail,
    collectives: "Sequence[Collective]" = (),
    compute: parts.StepPart = parts.COMPUTE,
) -> Lanes:
    """Return the lanes of a step. ``collectives``: those of this step that were matched across ranks;
    ``compute``: PHASES if no more is known of it.
    """
    # numpy takes 100 ms to import: not before the first paint, which does not need it.
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
