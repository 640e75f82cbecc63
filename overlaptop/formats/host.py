"""The lanes of a CPU job's trace without GPU activity: operators compute, gloo communicates.

A collective is a range on one of gloo's own threads (``gloo:all_reduce``), from when that thread starts it
until it is done. A thread of the job computes while its innermost event is an operator. It waits for gloo
in Python: between operators, in hooks (in autograd's engine, or in a range of FSDP's), or in an
autograd.Function. All of these may contain operators and be contained in them. Handing a collective over is
no waiting and counts as compute, as in the host source of a live job. An operator may also wait for a core
or a lock, which no trace shows. So compute is an upper bound.
"""

import re
from collections.abc import Iterator, Sequence

from overlaptop.formats.chrome import MAX_NAME, Distributed, Event, Scalar, Trace
from overlaptop.timeline.lanes import Lane, LaneRules

BACKENDS = ("gloo", "cpu:gloo")
_COLLECTIVE = "gloo:"
_CATEGORIES = frozenset(("cpu_op", "user_annotation"))
_ISSUES = ("c10d::", "_c10d_functional::")
"""Operators that hand over a collective, or wait for one."""
_COMPUTES = re.compile(
    r"(?!autograd::engine::|\w*c10d_functional::wait_tensor|c10d::monitored_barrier_)\w+::"
    r"|\w+Backward\d+$"  # from torch itself: those from Python have no number
    r"|## Call CompiledFxGraph|\w*cpp_fused_"
)
"""Names of operators that do not stand for Python code."""


def is_of_cpus(trace: Trace) -> bool:
    """Whether there was no GPU to trace, or none of its activities communicates."""
    return trace.devices == [] or (trace.distributed or Distributed()).backend in BACKENDS


def is_collective(event: Event) -> bool:
    return (event.name or "").startswith(_COLLECTIVE)


def threads_at_work(events: Sequence[Event]) -> Iterator[list[Event]]:
    """Yield the operators and ranges of each of the job's own threads."""
    of_gloo, own = set(), set()
    by_thread: dict[Scalar, list[Event]] = {}
    for event in events:
        if event.cat not in _CATEGORIES or event.ts is None or event.dur is None:
            continue
        if is_collective(event):
            of_gloo.add(event.tid)
            continue
        if (event.name or "").startswith(_ISSUES):
            own.add(event.tid)
        by_thread.setdefault(event.tid, []).append(event)
    # gloo's own threads communicate even while they add or copy.
    return (found for thread, found in by_thread.items() if thread in own or thread not in of_gloo)


def lane(event: Event, rules: LaneRules) -> Lane | None:
    """Return the lane of a thread in this event. None if it is not known."""
    name = (event.name or "")[:MAX_NAME]
    if event.cat != "cpu_op" or not _COMPUTES.match(name):
        return None
    return rules.lane(name, "cpu_op")
