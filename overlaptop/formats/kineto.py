"""Reads one rank's torch.profiler trace into arrays: GPU activities, their launches, and step annotations.

Times become Unix time in whole ns, as everywhere else.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
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
    BrokenTextError,
    Distributed,
    Event,
    Scalar,
    Text,
    Trace,
    decode,
    decode_threads,
    mended,
)
from overlaptop.formats.files import NoTraceOfARankError, TraceError
from overlaptop.text import duration, plural
from overlaptop.timeline import coherence
from overlaptop.timeline.coherence import NOT_LAUNCHED_NS
from overlaptop.timeline.lanes import Kind, Lane, LaneRules, describe_look_alikes
from overlaptop.timeline.nesting import innermost
from overlaptop.timeline.spans import Spans, empty, from_bounds, union

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
    # Meta's MTIA, whose events have no other category, and Habana's HPU
    "mtia_ccp_events": "kernel",
    "hpu_op": "kernel",
}
LAUNCH_CATEGORIES = frozenset(
    (
        *("Runtime", "cuda_runtime", "cuda_driver", "xpu_runtime", "xpu_driver"),
        *("mtia_runtime", "privateuse1_runtime", "privateuse1_driver"),
    )
)
_BLOCKS = re.compile(r"(?:cuda|cu|hip)(?:\w*Synchronize|Memcpy(?!\w*Async)\w*)")
"""Calls that make the CPU wait for its GPU."""
_LAUNCHES = re.compile(r"(?:cuda|cu|hip)(?:\w*Launch\w*|Mem\w+Async)")
LONG_LAUNCH = 10.0
"""A launch this many times as long as the median one was waiting for a free queue slot."""
_OF_A_DEVICE = re.compile(r"(?:mtia|hpu|xpu|npu|privateuse1|glow)_\w+")
"""Categories of devices that are neither a CPU nor a known GPU."""
ANNOTATION_CATEGORIES = frozenset(("user_annotation", "gpu_user_annotation"))
PEER_COPY = "Memcpy PtoP"
"""torch.profiler's name of copies from one GPU to another."""
LANES = tuple(Lane)
"""`Activities.lane` holds indices into this."""

_STEP_NAME = re.compile(r"ProfilerStep#(\d{1,15})", re.ASCII)
MAX_STEP_MARKS = 20_000
MAX_WORLD = 1_000_000
"""Maximum plausible number of ranks."""
STEPS_TOUCH_NS = 100_000
"""A step's annotation may begin this long before the previous one ends, at most a quarter of that step."""
MAX_NS = 1 << 62
"""Upper bound of all times, required by overlaptop.timeline.spans."""

_FAR_AWAY = "a time in it lies centuries away"


@dataclass(frozen=True, slots=True)
class Activities:
    """n activities of a GPU, or of a job on CPUs, sorted by start."""

    start_ns: Times
    end_ns: Times
    launched_ns: Times
    """When the CPU launched each, on the GPU's clock. NOT_LAUNCHED_NS if the launch is not in the trace."""
    lane: NDArray[np.int8]
    is_kernel: NDArray[np.bool_]
    queue: NDArray[np.int64]
    """A number for each stream of each device, or for each thread."""
    device: NDArray[np.int64]
    """A number for each GPU; 0 for CPUs."""
    names: list[str]
    args: list[Args]

    def chosen(self, keep: NDArray[np.bool_]) -> Activities:
        """Return the activities selected by a mask of shape (n,)."""
        at = np.flatnonzero(keep).tolist()
        return Activities(
            self.start_ns[keep],
            self.end_ns[keep],
            self.launched_ns[keep],
            self.lane[keep],
            self.is_kernel[keep],
            self.queue[keep],
            self.device[keep],
            [self.names[each] for each in at],
            [self.args[each] for each in at],
        )

    def spans(self, lane: Lane) -> Spans:
        """Return all activities of one lane, in canonical form."""
        of_lane = self.lane == LANES.index(lane)
        return from_bounds(self.start_ns[of_lane], self.end_ns[of_lane])


@dataclass(frozen=True, slots=True)
class Annotation:
    """A ProfilerStep#N interval on the script's thread, or on the GPU if the CPU's is missing."""

    number: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class RankTrace:
    """The data of one file."""

    path: Path
    rank: int | None
    """None if the trace does not say."""
    trace: Trace
    activities: Activities
    annotations: tuple[Annotation, ...]
    """By number."""
    remarks: tuple[str, ...] = ()
    """Contradictions that were left out or corrected, as text with their number."""
    on_host: bool = False
    """The trace has no GPU activity: it shows only CPUs, and compute is an upper bound."""
    blocked: Spans = field(default_factory=empty)
    """When the GPU blocked the CPU, on the GPU's clock."""

    @property
    def gpu(self) -> int | None:
        """The GPU's number. None if the trace does not say, or on CPUs."""
        numbers = (args.device for args in self.activities.args)
        return next((number for number in numbers if isinstance(number, int)), None)


def load(path: Path, text: Text, rules: LaneRules) -> RankTrace:
    """Parse one trace's text. If it holds several GPUs, return the one that computes most.

    Raises: as `load_each`.
    """
    return load_each(path, text, rules)[0]


def load_each(path: Path, text: Text, rules: LaneRules) -> tuple[RankTrace, ...]:
    """Parse one trace's text and return each of its GPUs, the one that computes most first.

    Raises:
        TraceError: not a torch.profiler trace, without GPU activity although there were GPUs, or with only
            impossible times.
    """
    trace, text = _decoded(path, text)
    gpu, launches, marks = _sort_out(trace.events)
    on_host = not gpu and host.is_of_cpus(trace)
    if on_host and (unread := _unread(trace)):
        raise TraceError(path, f"its device events ({', '.join(unread)}) are not read")
    if len(marks) > MAX_STEP_MARKS:
        raise TraceError(path, f"more than {MAX_STEP_MARKS:,} ProfilerStep annotations: trace fewer steps")
    clock = _Clock(path, trace)
    rank = _rank(path, trace)
    if on_host:
        activities = _host_activities(trace, decode_threads(path, text), clock, rules)
        processes: Processes = {0: None}
        found: Counter[str] = Counter()
        skew_ns = 0
    else:
        # If none is possible, the first error among them names the reason.
        possible = clock.possible(gpu) or gpu
        activities, processes, found, skew_ns = _gpu_activities(
            possible, clock.possible(launches), clock, rules
        )
        found[coherence.ENDS_FIRST] += len(gpu) - len(possible)
    if not activities.names:
        what, activity = ("operator", "CPU") if on_host else ("GPU activity", "CUDA")
        kind = NoTraceOfARankError if rank is None else TraceError
        raise kind(path, f"no {what} in it: trace with ProfilerActivity.{activity}")
    if activities.end_ns.max() >= MAX_NS:
        raise TraceError(path, _FAR_AWAY)
    remarks = (*coherence.describe(+found), *_look_alikes(activities, rules))
    if skew_ns:
        remarks += (f"the CPU's clock is {duration(skew_ns)} ahead of the GPU's: steps and launches moved",)
    possible_marks = clock.possible(marks, near=activities)
    if impossible := len(marks) - len(possible_marks):
        remarks += (f"{plural(impossible, 'ProfilerStep annotation')} left out: its time is impossible",)
    traces = []
    for device in _busiest_first(activities):
        annotations, said = _annotations(_of_process(possible_marks, processes[device]), clock, skew_ns)
        of_device = activities.chosen(activities.device == device) if len(processes) > 1 else activities
        own = _of_process(launches, processes[device])
        blocked = _blocked(clock.possible(own), clock, skew_ns)
        traces.append(
            RankTrace(path, rank, trace, of_device, annotations, (*remarks, *said), on_host, blocked)
        )
    return tuple(traces)


def _decoded(path: Path, text: Text) -> tuple[Trace, Text]:
    """Return the trace and its text, repaired if necessary."""
    try:
        return decode(path, text), text
    except BrokenTextError as fault:
        sound = mended(text)
        try:
            return decode(path, sound), sound
        except TraceError:
            raise fault from None


Processes: TypeAlias = dict[int, Scalar]
"""By device, the process that launched on it. None: any process."""


def _busiest_first(activities: Activities) -> list[int]:
    """Return the devices, sorted by compute time."""
    computing = activities.lane == LANES.index(Lane.COMPUTE)
    busy_ns = np.where(computing, activities.end_ns - activities.start_ns, 0)
    of_device = np.bincount(activities.device, weights=busy_ns)
    present = np.unique(activities.device)
    return [int(present[at]) for at in np.argsort(-of_device[present], kind="stable")]


def _of_process(marks: Sequence[Event], process: Scalar) -> Sequence[Event]:
    own = [event for event in marks if event.pid == process]
    return own if process is not None and own else marks


def _gpu_activities(
    gpu: Sequence[Event], launches: Sequence[Event], clock: _Clock, rules: LaneRules
) -> tuple[Activities, Processes, Counter[str], int]:
    """Return the consistent activities, the number of others by kind, and the CPU clock's lead in ns."""
    start_ns = clock.times_ns(gpu)
    end_ns = start_ns + clock.durations_ns(gpu)
    order = np.argsort(start_ns, kind="stable")
    gpu = [gpu[at] for at in order.tolist()]
    start_ns, end_ns = start_ns[order], end_ns[order]
    device = _numbered((event.pid, (event.args or NO_ARGS).device) for event in gpu)
    queue = _numbered((event.pid, *_stream(event.args or NO_ARGS)) for event in gpu)
    launched_ns, processes = _launched_ns(gpu, start_ns, device, launches, clock)
    lane = _lanes(gpu, rules)
    checked = coherence.check(
        start_ns,
        end_ns,
        queue,
        identity=_numbered((event.name, (event.args or NO_ARGS).correlation) for event in gpu),
        launched_ns=launched_ns,
        concurrent=np.array([_may_run_beside(event.args or NO_ARGS) for event in gpu], dtype=np.bool_),
        communicates=lane == LANES.index(Lane.COMM),
    )
    skew_ns = coherence.clock_skew_ns(start_ns, launched_ns)
    if skew_ns:
        launched_ns = np.where(launched_ns == NOT_LAUNCHED_NS, launched_ns, launched_ns - skew_ns)
    activities = Activities(
        start_ns=start_ns,
        end_ns=checked.end_ns,
        launched_ns=launched_ns,
        lane=lane,
        is_kernel=np.array([_kind(event) == "kernel" for event in gpu], dtype=np.bool_),
        queue=queue,
        device=device,
        names=[event.name or "" for event in gpu],
        args=[event.args or NO_ARGS for event in gpu],
    )
    kept = activities if checked.keep.all() else activities.chosen(checked.keep)
    return kept, processes, checked.found, skew_ns


def _host_activities(
    trace: Trace, threads: Sequence[Scalar], clock: _Clock, rules: LaneRules
) -> Activities:
    """Return gloo's collectives, as kernels on their own stream, and the activities of each thread."""
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
        device=np.zeros(len(rows), dtype=np.int64),
        names=[row[4] for row in rows],
        args=[NO_ARGS] * len(rows),
    )


def _sort_out(events: Sequence[Event]) -> tuple[list[Event], list[Event], list[Event]]:
    """Return the GPU activities, their launches, and the step annotations."""
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


def _unread(trace: Trace) -> list[str]:
    """Return the categories of device events that this module does not read."""
    categories = {event.cat for event in trace.events if event.dur is not None and event.cat is not None}
    return sorted(each for each in categories - LAUNCH_CATEGORIES if _OF_A_DEVICE.fullmatch(each))


class _Clock:
    """Converts microseconds to Unix ns without loss. torch 2.4 and later count from a base time near the
    trace; as Unix time, a float64 would be exact only to a quarter of a microsecond.
    """

    def __init__(self, path: Path, trace: Trace) -> None:
        self._path = path
        self._base_ns = trace.base_ns or 0
        if abs(self._base_ns) >= MAX_NS:
            raise TraceError(path, _FAR_AWAY)

    def possible(self, events: Sequence[Event], near: Activities | None = None) -> Sequence[Event]:
        """Return the events that begin before they end, lie in this century, and within an hour of GPU
        activity.
        """
        limit_us = (MAX_NS - abs(self._base_ns)) / 1e3
        first_us, last_us = -limit_us, limit_us
        if near is not None:
            first_us = (int(near.start_ns.min()) - coherence.FAR_NS - self._base_ns) / 1e3
            last_us = (int(near.end_ns.max()) + coherence.FAR_NS - self._base_ns) / 1e3

        def is_possible(event: Event) -> bool:
            ts, dur = event.ts, event.dur
            assert ts is not None
            assert dur is not None
            in_reach = abs(ts) < limit_us and dur < limit_us - abs(ts)
            return dur >= 0 and in_reach and first_us <= ts <= last_us

        return [event for event in events if is_possible(event)]

    def times_ns(self, events: Sequence[Event]) -> Times:
        return self._base_ns + _whole_ns(self._checked([event.ts for event in events], abs(self._base_ns)))

    def durations_ns(self, events: Sequence[Event]) -> Times:
        us = self._checked([event.dur for event in events])
        if us.size and us.min() < 0:
            event = events[int(us.argmin())]
            raise TraceError(
                self._path, f"an event ends before it starts: {(event.name or '')[:60]!r} at {event.ts} µs"
            )
        return _whole_ns(us)

    def _checked(self, values_us: list[int | float | None], base_ns: int = 0) -> NDArray[np.float64]:
        try:
            us = np.array(values_us, dtype=np.float64)
        except OverflowError:
            us = np.full(1, np.inf)
        if us.size and not np.abs(us).max() < (MAX_NS - base_ns) / 1e3:
            raise TraceError(self._path, _FAR_AWAY)
        return us


def _whole_ns(us: NDArray[np.float64]) -> Times:
    # us * 1000 would round twice. The whole part is exact, and so is the remainder.
    whole = np.floor(us)
    decimals_ns = np.rint((us - whole) * 1000).astype(np.int64)
    return whole.astype(np.int64) * 1000 + decimals_ns


def _kind(event: Event) -> Kind:
    kind = KIND_OF_CATEGORY[event.cat or ""]
    if kind == "memcpy" and (event.name or "").startswith(PEER_COPY):
        return "peer_memcpy"
    return kind


def _look_alikes(activities: Activities, rules: LaneRules) -> list[str]:
    computing = activities.is_kernel & (activities.lane == LANES.index(Lane.COMPUTE))
    names = {activities.names[at][:MAX_NAME] for at in np.flatnonzero(computing).tolist()}
    parts = {part for name in names if (part := rules.look_alike(name))}
    return [describe_look_alikes(parts)] if parts else []


def _lanes(gpu: Sequence[Event], rules: LaneRules) -> NDArray[np.int8]:
    lanes = [rules.lane((event.name or "")[:MAX_NAME], _kind(event)) for event in gpu]
    return np.array([LANES.index(lane) for lane in lanes], dtype=np.int8)


def _stream(args: Args) -> tuple[Scalar, Scalar]:
    """Return a key that identifies a stream of a device."""
    return args.device, args.stream if args.stream is not None else args.sycl_queue


def _may_run_beside(args: Args) -> bool:
    """Whether it may overlap others of its queue: in a CUDA graph, or without a known stream."""
    return bool(args.graph) or _stream(args)[1] is None


def _numbered(keys: Iterable[object]) -> NDArray[np.int64]:
    """Return a number for each key: 0 for the first, 1 for the next different one, and so on."""
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _launched_ns(
    gpu: Sequence[Event],
    start_ns: Times,
    device: NDArray[np.int64],
    launches: Sequence[Event],
    clock: _Clock,
) -> tuple[Times, Processes]:
    """Return when each activity was launched, and which process launched on each device.

    In a merged trace, launch numbers of several processes may clash. A device belongs to the process whose
    launches precede most of its records. Numbers shared by several launches are ignored, and so is 0, which
    means none.
    """
    launched_ns = np.full(len(gpu), NOT_LAUNCHED_NS)
    processes: Processes = dict.fromkeys(np.unique(device).tolist())
    of_process: dict[Scalar, dict[Scalar, int]] = {}
    times_ns = clock.times_ns(launches).tolist() if launches else []
    for event, at_ns in zip(launches, times_ns, strict=True):
        if number := (event.args or NO_ARGS).correlation:
            own_ns = of_process.setdefault(event.pid, {})
            again = abs(own_ns.get(number, at_ns) - at_ns) > coherence.EARLY_NS
            own_ns[number] = NOT_LAUNCHED_NS if again else at_ns
    numbers = [(event.args or NO_ARGS).correlation for event in gpu]
    for each in processes:
        own = np.flatnonzero(device == each)
        best = 0, 0.0
        for process, at_ns in of_process.items():
            found_ns = np.array([at_ns.get(numbers[at], NOT_LAUNCHED_NS) for at in own.tolist()])
            lead_ns = (start_ns[own] - found_ns)[found_ns != NOT_LAUNCHED_NS]
            fits = lead_ns[lead_ns >= 0] if len(of_process) > 1 else lead_ns
            if len(fits) and (len(fits), -float(np.median(fits))) > best:
                best, launched_ns[own] = (len(fits), -float(np.median(fits))), found_ns
                processes[each] = process if len(of_process) > 1 else None
    return launched_ns, processes


def _blocked(calls: Sequence[Event], clock: _Clock, skew_ns: int) -> Spans:
    """Return when calls waited for the GPU, or launches for a queue slot, shifted by `skew_ns`."""
    waits = [event for event in calls if _BLOCKS.fullmatch(event.name or "")]
    launches = [event for event in calls if _LAUNCHES.fullmatch(event.name or "")]
    lengths_us = [float(event.dur or 0) for event in launches]
    long_us = LONG_LAUNCH * float(np.median(lengths_us)) if lengths_us else 0.0
    waits += [event for event, us in zip(launches, lengths_us, strict=True) if us > long_us]
    if not waits:
        return empty()
    start_ns = clock.times_ns(waits) - skew_ns
    return union(from_bounds(start_ns, start_ns + clock.durations_ns(waits)))


def _annotations(
    marks: Sequence[Event], clock: _Clock, skew_ns: int = 0
) -> tuple[tuple[Annotation, ...], tuple[str, ...]]:
    """Return each step once, by number, from the CPU if possible, else from the GPU. Also return remarks on
    the annotations left out. CPU times are shifted by `skew_ns` to the GPU's clock.

    Of several annotations of one step, the longest counts. A step within another is part of it, but one
    around several steps is ignored. A step that overlaps the next one ends where that begins.
    """
    by_number: dict[int, list[Event]] = {}
    for event in marks:
        match = _STEP_NAME.fullmatch(event.name or "")
        assert match is not None
        by_number.setdefault(int(match[1]), []).append(event)
    chosen: list[tuple[int, Event]] = []
    again = 0
    for number, events in sorted(by_number.items()):
        on_cpu = [event for event in events if event.cat == "user_annotation"] or events
        again += len(on_cpu) - 1
        chosen.append((number, max(on_cpu, key=lambda event: event.dur or 0)))
    events = [event for _, event in chosen]
    of_cpu = np.array([event.cat == "user_annotation" for event in events], dtype=np.bool_)
    starts_ns = clock.times_ns(events) - np.where(of_cpu, skew_ns, 0)
    ends_ns = starts_ns + clock.durations_ns(events)
    found = list(map(Annotation, [number for number, _ in chosen], starts_ns.tolist(), ends_ns.tolist()))
    found.sort(key=lambda each: (each.start_ns, -each.end_ns))
    narrow = [each for at, each in enumerate(found) if not _is_around(each, found[at + 1 : at + 3])]
    apart: list[Annotation] = []
    nested = cut = 0
    for each in narrow:
        if apart and each.end_ns <= apart[-1].end_ns:
            nested += 1
            continue
        if apart and each.start_ns < apart[-1].end_ns - _touching_ns(apart[-1]):
            apart[-1] = replace(apart[-1], end_ns=each.start_ns)
            cut += 1
        apart.append(each)
    said = []
    if again:
        said.append(f"{plural(again, 'ProfilerStep annotation')} left out: of a step that is there twice")
    if nested:
        said.append(f"{plural(nested, 'ProfilerStep annotation')} left out: within another step")
    if wide := len(found) - len(narrow):
        said.append(f"{plural(wide, 'ProfilerStep annotation')} left out: around several steps")
    if cut:
        said.append(f"{plural(cut, 'ProfilerStep annotation')} cut: where the next step begins")
    return tuple(sorted(apart, key=lambda each: each.number)), tuple(said)


def _is_around(step: Annotation, following: Sequence[Annotation]) -> bool:
    """Whether the next two steps follow one after the other within this one, and so are steps."""
    if len(following) < 2:
        return False
    first, second = following
    return second.start_ns >= first.end_ns - _touching_ns(first) and second.end_ns <= step.end_ns


def _touching_ns(step: Annotation) -> int:
    """Return how long before this step's end the next one may begin."""
    return min(STEPS_TOUCH_NS, (step.end_ns - step.start_ns) // 4)


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
