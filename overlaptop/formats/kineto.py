"""Reads one rank's torch.profiler trace into arrays: GPU activities, their launches, and step annotations.

Times become Unix time in whole ns, as everywhere else.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from overlaptop.formats import host
from overlaptop.formats.activities import FAR_AWAY, LANES, MAX_NS, Activities, Times, TraceClock
from overlaptop.formats.chrome import (
    MAX_NAME,
    NO_ARGS,
    Args,
    Distributed,
    Event,
    Scalar,
    Text,
    Trace,
    decode,
)
from overlaptop.formats.files import NoTraceOfARankError, TraceError
from overlaptop.formats.steps import STEP_NAME, Annotation, annotations_of
from overlaptop.text import duration, plural
from overlaptop.timeline import coherence
from overlaptop.timeline.coherence import NOT_LAUNCHED_NS
from overlaptop.timeline.lanes import Kind, Lane, LaneRules, describe_look_alikes
from overlaptop.timeline.spans import Spans, empty, from_bounds, union

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
LONG_LAUNCH = 10.0  # A launch this many times as long as the median one was waiting for a free queue slot
_OF_A_DEVICE = re.compile(r"(?:mtia|hpu|xpu|npu|privateuse1|glow)_\w+")
"""Categories of devices that are neither a CPU nor a known GPU."""
ANNOTATION_CATEGORIES = frozenset(("user_annotation", "gpu_user_annotation"))
_RANK_IN_NAME = re.compile(r"rank[-_. ]?(\d{1,6})(?!\d)", re.IGNORECASE | re.ASCII)
PEER_COPY = "Memcpy PtoP"  # torch.profiler's name of copies from one GPU to another
MAX_WORLD = 1_000_000  # Maximum plausible number of ranks
_Processes: TypeAlias = dict[int, Scalar]  # By device, the process that launched on it. None: any process.


@dataclass(frozen=True, slots=True)
class RankTrace:
    """The data of one file."""

    path: Path
    rank: int | None  # None if the trace does not say
    trace: Trace
    activities: Activities
    annotations: tuple[Annotation, ...]  # By number
    remarks: tuple[str, ...] = ()
    """Contradictions that were left out or corrected, as text with their number."""
    on_host: bool = False
    """The trace has no GPU activity: it shows only CPUs, and compute is an upper bound."""
    blocked: Spans = field(default_factory=empty)  # When the GPU blocked the CPU, on the GPU's clock

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
    trace = decode(path, text)
    gpu, calls, marks = _sort_out(trace.events)
    on_host = not gpu and host.is_of_cpus(trace)
    categories = {event.cat for event in trace.events if event.dur is not None and event.cat is not None}
    unread = sorted(each for each in categories - LAUNCH_CATEGORIES if _OF_A_DEVICE.fullmatch(each))
    if on_host and unread:
        raise TraceError(path, f"its device events ({', '.join(unread)}) are not read")
    clock = TraceClock(path, trace)
    launches = clock.possible(calls)
    rank = _rank(path, trace)
    found: Counter[str] = Counter()
    skew_ns = 0
    processes: _Processes = {0: None}
    if on_host:
        activities = host.activities_of(trace, clock, rules)
    else:
        # If none is possible, the first error among them names the reason.
        possible = clock.possible(gpu) or gpu
        activities, processes, found, skew_ns = _gpu_activities(possible, launches, clock, rules)
        found[coherence.ENDS_FIRST] += len(gpu) - len(possible)
    if not activities.names:
        what, activity = ("operator", "CPU") if on_host else ("GPU activity", "CUDA")
        kind = NoTraceOfARankError if rank is None else TraceError
        raise kind(path, f"no {what} in it: trace with ProfilerActivity.{activity}")
    if activities.end_ns.max() >= MAX_NS:
        raise TraceError(path, FAR_AWAY)
    possible_marks = clock.possible(marks, (int(activities.start_ns[0]), int(activities.end_ns.max())))
    remarks = [*coherence.describe(+found), *_look_alikes(activities, rules)]
    if skew_ns:
        skew = duration(skew_ns)
        remarks.append(f"the CPU's clock is {skew} ahead of the GPU's: steps and launches moved")
    if impossible := len(marks) - len(possible_marks):
        remarks.append(f"{plural(impossible, 'ProfilerStep annotation')} left out: its time is impossible")

    def of_device(number: int) -> RankTrace:
        own_marks, own_launches = (_of_process(of, processes[number]) for of in (possible_marks, launches))
        annotations, said = annotations_of(own_marks, clock, skew_ns)
        blocked = _blocked(own_launches, clock, skew_ns)
        own = activities.chosen(activities.device == number) if len(processes) > 1 else activities
        return RankTrace(path, rank, trace, own, annotations, (*remarks, *said), on_host, blocked)

    return tuple(map(of_device, activities.busiest_first(activities.device)))


def _of_process(events: Sequence[Event], process: Scalar) -> Sequence[Event]:
    own = [event for event in events if event.pid == process]
    return own if process is not None and own else events


def _gpu_activities(
    gpu: Sequence[Event], launches: Sequence[Event], clock: TraceClock, rules: LaneRules
) -> tuple[Activities, _Processes, Counter[str], int]:
    """Return the consistent activities, the number of others by kind, and the CPU clock's lead in ns."""
    start_ns, end_ns = clock.bounds_ns(gpu)
    order = np.argsort(start_ns, kind="stable")
    gpu = [gpu[at] for at in order.tolist()]
    args = [event.args or NO_ARGS for event in gpu]
    start_ns, end_ns = start_ns[order], end_ns[order]
    queue = _numbered((event.pid, *_stream(own)) for event, own in zip(gpu, args, strict=True))
    device = _numbered((event.pid, own.device) for event, own in zip(gpu, args, strict=True))
    launched_ns, processes = _launched_ns(args, start_ns, device, launches, clock)
    lanes = (rules.lane((event.name or "")[:MAX_NAME], _kind(event)) for event in gpu)
    lane = np.array([LANES.index(each) for each in lanes], dtype=np.int8)
    checked = coherence.check(
        start_ns,
        end_ns,
        queue,
        identity=_numbered((event.name, own.correlation) for event, own in zip(gpu, args, strict=True)),
        launched_ns=launched_ns,
        # In a CUDA graph, or without a known stream.
        concurrent=np.array([bool(own.graph) or _stream(own)[1] is None for own in args], dtype=np.bool_),
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
        args=args,
    )
    if not checked.keep.all():
        activities = activities.chosen(checked.keep)
    return activities, processes, checked.found, skew_ns


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


def _stream(args: Args) -> tuple[Scalar, Scalar]:
    return args.device, args.stream if args.stream is not None else args.sycl_queue


def _numbered(keys: Iterable[object]) -> NDArray[np.int64]:
    """Return a number for each key: 0 for the first, 1 for the next different one, and so on."""
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _launched_ns(
    activities: Sequence[Args],
    start_ns: Times,
    device: NDArray[np.int64],
    launches: Sequence[Event],
    clock: TraceClock,
) -> tuple[Times, _Processes]:
    """Return when each activity was launched, and which process launched on each device.

    In a merged trace, launch numbers of several processes may clash. A device belongs to the process whose
    launches precede most of its records. Numbers shared by several launches are ignored, and so is 0, which
    means none.
    """
    launched_ns = np.full(len(activities), NOT_LAUNCHED_NS)
    processes: _Processes = dict.fromkeys(np.unique(device).tolist())
    of_process: defaultdict[Scalar, dict[Scalar, int]] = defaultdict(dict)
    for event, at_ns in zip(launches, clock.bounds_ns(launches)[0].tolist(), strict=True):
        if number := (event.args or NO_ARGS).correlation:
            own_ns = of_process[event.pid]
            again = abs(own_ns.get(number, at_ns) - at_ns) > coherence.EARLY_NS
            own_ns[number] = NOT_LAUNCHED_NS if again else at_ns
    for each in processes:
        own = np.flatnonzero(device == each)
        numbers = [activities[at].correlation for at in own.tolist()]
        best = 0, 0.0
        for process, own_ns in of_process.items():
            found_ns = np.array([own_ns.get(number, NOT_LAUNCHED_NS) for number in numbers])
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
    start_ns, end_ns = clock.bounds_ns(waits)
    return union(from_bounds(start_ns - skew_ns, end_ns - skew_ns))


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
