"""One rank's torch.profiler trace as arrays: what its GPU did, who launched it, and where steps begin.

Times become Unix time in whole ns, as everywhere else: the trace's own microseconds with three decimals are
taken to the nanosecond.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from operator import itemgetter
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from overlaptop.formats import host
from overlaptop.formats.chrome import (
    MAX_NAME,
    NO_ARGS,
    Args,
    Distributed,
    Event,
    ExactEvent,
    Scalar,
    Text,
    Trace,
    decode,
    decode_exact_times,
    decode_threads,
    needs_exact_times,
)
from overlaptop.formats.files import TraceError
from overlaptop.timeline.lanes import Kind, Lane, LaneRules
from overlaptop.timeline.nesting import innermost
from overlaptop.timeline.spans import Spans, from_bounds

Times: TypeAlias = NDArray[np.int64]
"""Shape (n,), Unix time in ns."""

KIND_OF_CATEGORY: dict[str, Kind] = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "gpu_memset": "memset",
    # torch 1.8 to 1.10
    "Kernel": "kernel",
    "Memcpy": "memcpy",
    "Memset": "memset",
}
LAUNCH_CATEGORIES = frozenset(("cuda_runtime", "cuda_driver", "Runtime"))
ANNOTATION_CATEGORIES = frozenset(("user_annotation", "gpu_user_annotation"))
PEER_COPY = "Memcpy PtoP"
"""How torch.profiler names copies from one GPU to another."""
NOT_LAUNCHED_NS = np.iinfo(np.int64).min
"""Stands for the launch of what was launched before the trace began."""
LANES = tuple(Lane)
"""`Activities.lane` holds indices into it."""

_STEP_NAME = re.compile(r"ProfilerStep#(\d{1,15})", re.ASCII)
MAX_STEP_MARKS = 20_000
MAX_WORLD = 1_000_000
"""Ranks that a job may have to be believed."""
MAX_NS = 1 << 62
"""Times lie below it, as overlaptop.timeline.spans wants."""

_FAR_AWAY = "a time in it lies centuries away"


@dataclass(frozen=True, slots=True)
class Activities:
    """What the GPU did, or a job on CPUs, n activities by their start."""

    start_ns: Times
    end_ns: Times
    launched_ns: Times
    """When the CPU launched each; NOT_LAUNCHED_NS where the trace does not hold its launch."""
    lane: NDArray[np.int8]
    is_kernel: NDArray[np.bool_]
    queue: NDArray[np.int64]
    """One number for each stream of each device, or for each thread."""
    names: list[str]
    args: list[Args]

    def spans(self, lane: Lane) -> Spans:
        """All activities of one lane, in canonical form."""
        of_lane = self.lane == LANES.index(lane)
        return from_bounds(self.start_ns[of_lane], self.end_ns[of_lane])


@dataclass(frozen=True, slots=True)
class Annotation:
    """A ProfilerStep#N as the script's thread (or, without it, the GPU) went through it."""

    number: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class RankTrace:
    """All that is taken from one file."""

    path: Path
    rank: int | None
    """None where the trace does not have it."""
    trace: Trace
    activities: Activities
    annotations: tuple[Annotation, ...]
    """By number."""
    on_host: bool = False
    """There is no GPU activity in it: what it shows is what CPUs did, and compute an upper bound."""


def load(path: Path, text: Text, rules: LaneRules) -> RankTrace:
    """Take one trace's text apart.

    Raises:
        TraceError: not a torch.profiler trace, without GPU activity where there were GPUs, or with
            impossible times.
    """
    trace = decode(path, text)
    gpu, launches, marks = _sort_out(trace.events)
    on_host = not gpu and host.is_of_cpus(trace)
    if len(marks) > MAX_STEP_MARKS:
        raise TraceError(path, f"more than {MAX_STEP_MARKS:,} ProfilerStep annotations: trace fewer steps")
    clock = _Clock(path, trace, text)
    if on_host:
        activities = _host_activities(trace, decode_threads(path, text), clock, rules)
    else:
        activities = _gpu_activities(gpu, launches if marks else [], clock, rules)
    if not activities.names:
        what, activity = ("operator", "CPU") if on_host else ("GPU activity", "CUDA")
        raise TraceError(path, f"no {what} in it: trace with ProfilerActivity.{activity}")
    if activities.end_ns.max() >= MAX_NS:
        raise TraceError(path, _FAR_AWAY)
    return RankTrace(path, _rank(path, trace), trace, activities, _annotations(marks, clock), on_host)


def _gpu_activities(
    gpu: Sequence[Event], launches: Sequence[Event], clock: _Clock, rules: LaneRules
) -> Activities:
    start_ns = clock.times_ns(gpu)
    end_ns = start_ns + clock.durations_ns(gpu)
    order = np.argsort(start_ns, kind="stable")
    gpu = [gpu[at] for at in order.tolist()]
    return Activities(
        start_ns=start_ns[order],
        end_ns=end_ns[order],
        launched_ns=_launched_ns(gpu, launches, clock),
        lane=_lanes(gpu, rules),
        is_kernel=np.array([_kind(event) == "kernel" for event in gpu], dtype=np.bool_),
        queue=_queues(gpu),
        names=[event.name or "" for event in gpu],
        args=[event.args or NO_ARGS for event in gpu],
    )


def _host_activities(
    trace: Trace, threads: Sequence[Scalar], clock: _Clock, rules: LaneRules
) -> Activities:
    """Collectives of gloo, as kernels of a stream of their own, and what each thread did besides."""
    collectives = [
        event
        for event in trace.events
        if host.is_collective(event) and event.ts is not None and event.dur is not None
    ]
    start_ns = clock.times_ns(collectives)
    end_ns = start_ns + clock.durations_ns(collectives)
    comm = LANES.index(Lane.COMM)
    rows = [
        (start, end, comm, 0, event.name or "")
        for start, end, event in zip(start_ns.tolist(), end_ns.tolist(), collectives, strict=True)
    ]
    for queue, events in enumerate(host.threads_at_work(trace.events, threads), 1):
        start_ns = clock.times_ns(events)
        lanes = [host.lane(event, rules) for event in events]
        for start, end, at in innermost(start_ns, start_ns + clock.durations_ns(events)).tolist():
            if (lane := lanes[at]) is not None:
                rows.append((start, end, LANES.index(lane), queue, events[at].name or ""))
    rows.sort(key=itemgetter(0))
    numbers = np.array([row[:4] for row in rows], dtype=np.int64).reshape(-1, 4)
    return Activities(
        start_ns=numbers[:, 0],
        end_ns=numbers[:, 1],
        launched_ns=np.full(len(rows), NOT_LAUNCHED_NS),
        lane=numbers[:, 2].astype(np.int8),
        is_kernel=numbers[:, 3] == 0,
        queue=numbers[:, 3],
        names=[row[4] for row in rows],
        args=[NO_ARGS] * len(rows),
    )


def _sort_out(events: Sequence[Event]) -> tuple[list[Event], list[Event], list[Event]]:
    """What ran on the GPU, what launched it, and the marks of steps."""
    gpu, launches, marks = [], [], []
    for event in events:
        category = event.cat
        if category is None or event.ts is None or event.dur is None:
            continue
        if category in KIND_OF_CATEGORY:
            gpu.append(event)
        elif category in LAUNCH_CATEGORIES:
            launches.append(event)
        elif category in ANNOTATION_CATEGORIES and event.name and _STEP_NAME.fullmatch(event.name):
            marks.append(event)
    return gpu, launches, marks


class _Clock:
    """From a trace's microseconds to Unix time in ns, without losing one."""

    def __init__(self, path: Path, trace: Trace, text: Text) -> None:
        self._path, self._events, self._text = path, trace.events, text
        self._base_ns = trace.base_ns or 0
        if abs(self._base_ns) >= MAX_NS:
            raise TraceError(path, _FAR_AWAY)
        self._exact: dict[int, ExactEvent] = {}

    def times_ns(self, events: Sequence[Event]) -> Times:
        """When events begin."""
        us = self._checked([event.ts for event in events], abs(self._base_ns))
        if needs_exact_times(us):
            return self._base_ns + _exact_ns(each.ts for each in self._exactly(events))
        return self._base_ns + _whole_ns(us)

    def durations_ns(self, events: Sequence[Event]) -> Times:
        """How long they take."""
        us = self._checked([event.dur for event in events])
        if us.size and us.min() < 0:
            event = events[int(us.argmin())]
            raise TraceError(
                self._path, f"an event ends before it starts: {(event.name or '')[:60]!r} at {event.ts} µs"
            )
        if needs_exact_times(us):
            return _exact_ns(each.dur for each in self._exactly(events))
        return _whole_ns(us)

    def _checked(self, values_us: list[int | float | None], base_ns: int = 0) -> NDArray[np.float64]:
        try:
            us = np.array(values_us, dtype=np.float64)
        except OverflowError:
            us = np.full(1, np.inf)
        if us.size and not np.abs(us).max() < (MAX_NS - base_ns) / 1e3:
            raise TraceError(self._path, _FAR_AWAY)
        return us

    def _exactly(self, events: Sequence[Event]) -> list[ExactEvent]:
        if not self._exact:
            exact = decode_exact_times(self._text)
            self._exact = {id(event): exact[at] for at, event in enumerate(self._events)}
        return [self._exact[id(event)] for event in events]


def _whole_ns(us: NDArray[np.float64]) -> Times:
    # us * 1000 would round twice. The whole part is exact, and so is what remains after it.
    whole = np.floor(us)
    decimals_ns = np.rint((us - whole) * 1000).astype(np.int64)
    return whole.astype(np.int64) * 1000 + decimals_ns


def _exact_ns(us: Iterable[Decimal | None]) -> Times:
    return np.array([0 if each is None else round(each * 1000) for each in us], dtype=np.int64)


def _kind(event: Event) -> Kind:
    kind = KIND_OF_CATEGORY[event.cat or ""]
    if kind == "memcpy" and (event.name or "").startswith(PEER_COPY):
        return "peer_memcpy"
    return kind


def _lanes(gpu: Sequence[Event], rules: LaneRules) -> NDArray[np.int8]:
    lanes = [rules.lane((event.name or "")[:MAX_NAME], _kind(event)) for event in gpu]
    return np.array([LANES.index(lane) for lane in lanes], dtype=np.int8)


def _queues(gpu: Sequence[Event]) -> NDArray[np.int64]:
    numbers: dict[tuple[object, object], int] = {}
    queues = []
    for event in gpu:
        args = event.args or NO_ARGS
        queues.append(numbers.setdefault((args.device, args.stream), len(numbers)))
    return np.array(queues, dtype=np.int64)


def _launched_ns(gpu: Sequence[Event], launches: Sequence[Event], clock: _Clock) -> Times:
    by_correlation = {(event.args or NO_ARGS).correlation: event for event in launches}
    by_correlation.pop(None, None)
    found = [by_correlation.get((event.args or NO_ARGS).correlation) for event in gpu]
    launched_ns = np.full(len(gpu), NOT_LAUNCHED_NS)
    launched_ns[[launch is not None for launch in found]] = clock.times_ns(list(filter(None, found)))
    return launched_ns


def _annotations(marks: Sequence[Event], clock: _Clock) -> tuple[Annotation, ...]:
    """Each step once, from the CPU where it is there, else from the GPU, by number."""
    chosen: dict[int, Event] = {}
    for event in sorted(marks, key=lambda event: event.cat == "user_annotation"):
        match = _STEP_NAME.fullmatch(event.name or "")
        assert match is not None
        chosen[int(match[1])] = event
    numbers = sorted(chosen)
    events = [chosen[number] for number in numbers]
    starts_ns = clock.times_ns(events)
    ends_ns = starts_ns + clock.durations_ns(events)
    return tuple(map(Annotation, numbers, starts_ns.tolist(), ends_ns.tolist()))


_RANK_IN_NAME = re.compile(r"rank[-_. ]?(\d{1,6})(?!\d)", re.IGNORECASE | re.ASCII)


def _rank(path: Path, trace: Trace) -> int | None:
    distributed = trace.distributed or Distributed()
    if (distributed.world_size or 1) > MAX_WORLD:
        raise TraceError(path, "its distributedInfo names no possible world size")
    if distributed.rank is not None:
        if not 0 <= distributed.rank < MAX_WORLD:
            raise TraceError(path, "its distributedInfo names no possible rank")
        return distributed.rank
    named = _RANK_IN_NAME.findall(path.name)
    return int(named[-1]) if named else None
