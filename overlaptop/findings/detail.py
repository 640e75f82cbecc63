"""What the timeline of one step of one rank says: its phases, when it computed, when nothing ran."""

from __future__ import annotations

from overlaptop.timeline.spans import Spans, difference, from_pairs, unflatten, union
from overlaptop.wire.messages import PhaseSpan, StepDetail

LONG_PAUSE_NS = 1_000_000
"""A launch takes some 10 µs, and Python between two of them some 100 µs: a longer pause is something
else."""


def phases_of(detail: StepDetail, name: str) -> list[PhaseSpan]:
    """Those of this name, in their order: several where gradients accumulate."""
    return [phase for phase in detail.phases if phase.name == name]


def computing(detail: StepDetail) -> Spans:
    """In which kernels computed, those that also communicate included: ns from the step's start."""
    return union(unflatten(detail.compute_spans_ns), unflatten(detail.fused_spans_ns))


def pauses(detail: StepDetail) -> Spans:
    """In which nothing ran for LONG_PAUSE_NS or more: (n, 2), ns from the step's start."""
    busy = union(computing(detail), *map(unflatten, (detail.comm_spans_ns, detail.copy_spans_ns)))
    idle = difference(from_pairs([(0, detail.step_ns)]), busy)
    found: Spans = idle[idle[:, 1] - idle[:, 0] >= LONG_PAUSE_NS]
    return found
