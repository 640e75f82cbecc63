"""Facts from the timeline of one step of one rank: phases, compute, pauses."""

from overlaptop.timeline.spans import Spans, difference, from_pairs, unflatten, union
from overlaptop.wire.messages import PhaseSpan, StepDetail

LONG_PAUSE_NS = 1_000_000
"""Shortest long pause. A launch takes about 10 µs, Python between two launches about 100 µs."""


def phases_of(detail: StepDetail, name: str) -> list[PhaseSpan]:
    """Return the phases of this name in order; several if gradients accumulate."""
    return [phase for phase in detail.phases if phase.name == name]


def computing(detail: StepDetail) -> Spans:
    """Return the spans of compute, kernels that also communicate included: ns from the step's start."""
    return union(unflatten(detail.compute_spans_ns), unflatten(detail.fused_spans_ns))


def pauses(detail: StepDetail) -> Spans:
    """Return the spans of LONG_PAUSE_NS or more without work: (n, 2), ns from the step's start."""
    busy = union(computing(detail), *map(unflatten, (detail.comm_spans_ns, detail.copy_spans_ns)))
    idle = difference(from_pairs([(0, detail.step_ns)]), busy)
    found: Spans = idle[idle[:, 1] - idle[:, 0] >= LONG_PAUSE_NS]
    return found
