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
from operator import itemgetter

import numpy as np

from overlaptop.formats.activities import LANES, Activities, TraceClock
from overlaptop.formats.chrome import MAX_NAME, NO_ARGS, Distributed, Event, Scalar, Trace
from overlaptop.timeline.coherence import NOT_LAUNCHED_NS
from overlaptop.timeline.lanes import Lane, LaneRules
from overlaptop.timeline.spans import innermost

BACKENDS = ("gloo", "cpu:gloo")
_COLLECTIVE = "gloo:"
_CATEGORIES = frozenset(("cpu_op", "user_annotation"))
_ISSUES = ("c10d::", "_c10d_functional::")  # Operators that hand over a collective, or wait for one
_COMPUTES = re.compile(
    r"(?!autograd::engine::|\w*c10d_functional::wait_tensor|c10d::monitored_barrier_)\w+::"
    r"|\w+Backward\d+$"  # from torch itself: those from Python have no number
    r"|## Call CompiledFxGraph|\w*cpp_fused_"
)
"""Names of operators that do not stand for Python code."""


def is_of_cpus(trace: Trace) -> bool:
    """Whether there was no GPU to trace, or none of its activities communicates."""
    return trace.devices == [] or (trace.distributed or Distributed()).backend in BACKENDS


def activities_of(trace: Trace, clock: TraceClock, rules: LaneRules) -> Activities:
    """Return gloo's collectives, as kernels on their own stream, and the activities of each thread."""
    timed = [event for event in trace.events if event.ts is not None and event.dur is not None]
    collectives = [event for event in timed if _is_collective(event)]
    bounds_ns = (each.tolist() for each in clock.bounds_ns(collectives))
    comm = LANES.index(Lane.COMM)
    rows = [
        (start_ns, end_ns, comm, 0, event.name or "")
        for start_ns, end_ns, event in zip(*bounds_ns, collectives, strict=True)
    ]
    for queue, events in enumerate(_threads_at_work(timed), 1):
        lanes = [_lane(event, rules) for event in events]
        for start_ns, end_ns, at in innermost(*clock.bounds_ns(events)).tolist():
            if (lane := lanes[at]) is not None:
                rows.append((start_ns, end_ns, LANES.index(lane), queue, events[at].name or ""))
    rows.sort(key=itemgetter(0))
    numbers = np.array([row[:4] for row in rows], dtype=np.int64).reshape(-1, 4)
    return Activities(
        start_ns=numbers[:, 0],
        end_ns=numbers[:, 1],
        launched_ns=np.full(len(rows), NOT_LAUNCHED_NS),
        lane=numbers[:, 2].astype(np.int8),
        is_kernel=numbers[:, 3] == 0,
        queue=numbers[:, 3],
        device=np.zeros(len(rows), dtype=np.int64),
        names=[row[4] for row in rows],
        args=[NO_ARGS] * len(rows),
    )


def _is_collective(event: Event) -> bool:
    return (event.name or "").startswith(_COLLECTIVE)


def _threads_at_work(events: Sequence[Event]) -> Iterator[list[Event]]:
    of_gloo, own = set(), set()
    by_thread: dict[Scalar, list[Event]] = {}
    for event in events:
        if event.cat not in _CATEGORIES:
            continue
        if _is_collective(event):
            of_gloo.add(event.tid)
            continue
        if (event.name or "").startswith(_ISSUES):
            own.add(event.tid)
        by_thread.setdefault(event.tid, []).append(event)
    # gloo's own threads communicate even while they add or copy.
    return (found for thread, found in by_thread.items() if thread in own or thread not in of_gloo)


def _lane(event: Event, rules: LaneRules) -> Lane | None:
    """Return the lane of a thread in this event. None if it is not known."""
    name = (event.name or "")[:MAX_NAME]
    if event.cat != "cpu_op" or not _COMPUTES.match(name):
        return None
    return rules.lane(name, "cpu_op")
