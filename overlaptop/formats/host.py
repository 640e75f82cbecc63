"""The lanes of a trace without GPU activity, of a job on CPUs: operators compute, gloo communicates.

A collective is a range on one of gloo's own threads (``gloo:all_reduce``), from when that thread takes
it up until it is done. A thread of the job computes while the innermost thing that it is in is an operator.
It waits for gloo in Python: between operators, in hooks (in autograd's engine, or in a range of FSDP's), in
an autograd.Function, and all of these hold operators and are held by some. What hands a collective over
does not wait, and counts as compute, as in the host source of a live job; an operator may also wait for a
core or a lock, which no trace shows. So compute is an upper bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from overlaptop.formats.chrome import MAX_NAME, Distributed, Event, Scalar, Trace
from overlaptop.timeline.lanes import Lane, LaneRules

BACKENDS = ("gloo", "cpu:gloo")
_COLLECTIVE = "gloo:"
_CATEGORIES = frozenset(("cpu_op", "user_annotation"))
_ISSUES = ("c10d::", "_c10d_functional::")
"""Operators that hand a collective over, or wait for one."""
_COMPUTES = re.compile(
    r"(?!autograd::engine::|\w*c10d_functional::wait_tensor|c10d::monitored_barrier_)\w+::"
    r"|\w+Backward\d+$"  # of torch itself: those of Python have no number
    r"|## Call CompiledFxGraph|\w*cpp_fused_"
)
"""Names of operators that do not stand for Python."""


def is_of_cpus(trace: Trace) -> bool:
    """Whether there was no GPU to trace, or nothing on it that communicates."""
    return trace.devices == [] or (trace.distributed or Distributed()).backend in BACKENDS


def is_collective(event: Event) -> bool:
    """Whether gloo runs here."""
    return (event.name or "").startswith(_COLLECTIVE)


def threads_at_work(events: Sequence[Event], threads: Sequence[Scalar]) -> Iterator[list[Event]]:
    """Operators and ranges, by each of the job's own threads; `threads` holds one for each event."""
    of_gloo, own = set(), set()
    by_thread: dict[Scalar, list[Event]] = {}
    for event, thread in zip(events, threads, strict=True):
        if event.cat not in _CATEGORIES or event.ts is None or event.dur is None:
            continue
        if is_collective(event):
            of_gloo.add(thread)
            continue
        if (event.name or "").startswith(_ISSUES):
            own.add(thread)
        by_thread.setdefault(thread, []).append(event)
    # Where gloo's thread adds up or copies, it communicates.
    return (found for thread, found in by_thread.items() if thread in own or thread not in of_gloo)


def lane(event: Event, rules: LaneRules) -> Lane | None:
    """What a thread does in this event; None: nothing that is known."""
    name = (event.name or "")[:MAX_NAME]
    if event.cat != "cpu_op" or not _COMPUTES.match(name):
        return None
    return rules.lane(name, "cpu_op")
