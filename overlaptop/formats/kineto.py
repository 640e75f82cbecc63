"""Reads one rank's torch.profiler trace into arrays: GPU activities, their launches, and step annotations.

Times become Unix time in whole ns, as everywhere else.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
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
    mended,
)
from overlaptop.formats.files import NoTraceOfARankError, TraceError
from overlaptop.formats.step_marks import MAX_STEP_MARKS, STEP_NAME, Annotation, annotations_of
from overlaptop.formats.trace_clock import FAR_AWAY, MAX_NS, Times, TraceClock
from overlaptop.text import duration, plural
from overlaptop.timeline import coherence
from overlaptop.timeline.coherence import NOT_LAUNCHED_NS
from overlaptop.timeline.lanes import Kind, Lane, LaneRules, describe_look_alikes
from overlaptop.timeline.spans import Spans, empty, from_bounds, innermost, union

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

MAX_WORLD = 1_000_000
"""Maximum plausible number of ranks."""


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

    def chosen(self, keep: NDArray[np.bool_]) -> "Activities":
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


def load(path: Path, text: Text, rules: LaneRules) -> tuple[RankTrace, ...]:
    """Parse one trace's text and return each of its GPUs, the one that computes most first.

    Raises:
        TraceError: not a torch.profiler trace, without GPU activity although there were GPUs, or with only
            impossible times.
    """
    trace = _decoded(path, text)
    gpu, launches, marks = _sort_out(trace.events)
    on_host = not gpu and host.is_of_cpus(trace)
    if on_host and (unread := _unread(trace)):
        raise TraceError(path, f"its device events ({', '.join(unread)}) are not read")
    if len(marks) > MAX_STEP_MARKS:
        raise TraceError(path, f"more than {MAX_STEP_MARKS:,} ProfilerStep annotations: trace fewer steps")
    clock = TraceClock(path, trace)
    rank = _rank(path, trace)
    if on_host:
        activities = _host_activities(trace, clock, rules)
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
        raise TraceError(path, FAR_AWAY)
    remarks = (*coherence.describe(+found), *_look_alikes(activities, rules))
    if skew_ns:
        remarks += (f"the CPU's clock is {duration(skew_ns)} ahead of the GPU's: steps and launches moved",)
    possible_marks = clock.possible(marks, (int(activities.start_ns[0]), int(activities.end_ns.max())))
    if impossible := len(marks) - len(possible_marks):
        remarks += (f"{plural(impossible, 'ProfilerStep annotation')} left out: its time is impossible",)
    traces = []
    for device in _busiest_first(activities):
        annotations, said = annotations_of(_of_process(possible_marks, processes[device]), clock, skew_ns)
        of_device = activities.chosen(activities.device == device) if len(processes) > 1 else activities
        own = _of_process(launches, processes[device])
        blocked = _blocked(clock.possible(own), clock, skew_ns)
        traces.append(
            RankTrace(path, rank, trace, of_device, annotations, (*remarks, *said), on_host, blocked)
        )
    return tuple(traces)


def _decoded(path: Path, text: Text) -> Trace:
    """Return the trace, from a repaired text if necessary."""
    try:
        return decode(path, text)
    except BrokenTextError as fault:
        try:
            return decode(path, mended(text))
        except TraceError:
            raise fault from None


Processes: TypeAlias = dict[int, Scalar]
"""By device, the process that launched on it. None: any process."""


def _busiest_first(activities: Activities) -> list[int]:
    computing = activities.lane == LANES.index(Lane.COMPUTE)
    busy_ns = np.where(computing, activities.end_ns - activities.start_ns, 0)
    of_device = np.bincount(activities.device, weights=busy_ns)
    present = np.unique(activities.device)
    return [int(present[at]) for at in np.argsort(-of_device[present], kind="stable")]


def _of_process(marks: Sequence[Event], process: Scalar) -> Sequence[Event]:
    own = [event for event in marks if event.pid == process]
    return own if process is not None and own else marks


def _gpu_activities(
    gpu: Sequence[Event], launches: Sequence[Event], clock: TraceClock, rules: LaneRules
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


def _host_activities(trace: Trace, clock: TraceClock, rules: LaneRules) -> Activities:
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
    for queue, events in enumerate(host.threads_at_work(trace.events), 1):
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
        elif category in ANNOTATION_CATEGORIES and event.name and STEP_NAME.fullmatch(event.name):
            marks.append(event)
    return gpu, launches, marks


def _unread(trace: Trace) -> list[str]:
    """Return the categories of device events that this module does not read."""
    categories = {event.cat for event in trace.events if event.dur is not None and event.cat is not None}
    return sorted(each for each in categories - LAUNCH_CATEGORIES if _OF_A_DEVICE.fullmatch(each))


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
    clock: TraceClock,
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


def _blocked(calls: Sequence[Event], clock: TraceClock, skew_ns: int) -> Spans:
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
