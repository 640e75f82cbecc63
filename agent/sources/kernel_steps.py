"""Turns CUPTI's activities into steps on the GPU's own timeline.

Marks bound steps and phases: memsets of a few bytes on the compute stream, each with a unique value. Work
that ran between two marks ran in that step. CUPTI numbers launches in order, so work *launched* between two
marks was issued there: collectives are found by this (naming.py).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from overlaptop.agent.clock import now_ns
from overlaptop.agent.sources.base import Edge, StepSpans, phases_of
from overlaptop.agent.sources.cupti import layouts
from overlaptop.agent.sources.cupti.layouts import (
    CONCURRENT_KERNEL,
    MEMCPY,
    MEMSET,
    PEER_MEMCPY,
    STREAM_WAITS,
    SYNCHRONIZATION,
    Activities,
)
from overlaptop.agent.sources.kernel_names import LANES, KernelName, KernelNames
from overlaptop.timeline import coherence, spans
from overlaptop.timeline.lanes import Kind, Lane, LaneRules
from overlaptop.timeline.overlap import MUCH_IDLE, WHOLE_STEP, stalls

MARK_WORDS = 3  # Words of 4 bytes that a mark's memset writes

HIDING_LEAD_NS = 5_000_000
"""With such a lead the host may wait for the GIL: another thread may hold it this long."""
OWN_GAP_NS = 2_000  # The GPU's own gaps between launched kernels are shorter

FULL_QUEUE = 900
"""With as many launches waiting the host may be blocked by the next one: a queue holds some 1,000."""

OTHER_GPU = "ran on another GPU than the steps"
OUT_OF_ORDER = "begins after others that were launched later on its stream"

_KIND_NAMES: dict[int, tuple[Kind, str]] = {
    MEMCPY: ("memcpy", "Memcpy"),
    MEMSET: ("memset", "Memset"),
    PEER_MEMCPY: ("peer_memcpy", "Memcpy PtoP"),
}
"""Kinds without a kernel name, and torch.profiler's name for each, for the user's rules."""


@dataclass(frozen=True, slots=True)
class StreamMark:
    """A mark as the host set it."""

    value: int  # The value that the memset writes, unique for each mark
    step: int  # The step that begins with this mark, or contains this edge
    edge: Edge | None  # None: the beginning of the step, and the end of the one before
    host_ns: int  # Just before the launch, on the agent's clock
    unix_ns: int  # The same moment on the system's clock, which the flight recorder uses


class NcclKernel(NamedTuple):
    """An NCCL kernel; times in ns on the agent's clock."""

    name: str
    collective: str  # In NCCL's names: ``AllReduce``, ``SendRecv``, ``Generic``
    start_ns: int
    end_ns: int
    beside_compute: bool  # True if it ran on another stream than the marks
    replayed: bool  # True if launched by a CUDA graph, whose collectives are not logged
    stream: int = 0  # CUPTI's number of its stream


@dataclass(frozen=True, slots=True)
class LaunchInterval:
    """The launches between two neighbouring marks."""

    from_unix_ns: int
    to_unix_ns: int
    kernels: tuple[NcclKernel, ...]


@dataclass(frozen=True, slots=True)
class TracedStep(StepSpans):
    """One step on the GPU's timeline, with the data to find its collectives."""

    intervals: tuple[LaunchInterval, ...] = ()

    @property
    def waits_for_launches(self) -> bool:
        """Whether the GPU repeatedly idles until the host launches more: a slower host then slows the step.

        The longest gap is ignored: in it the host may have waited for data, or for the GPU itself.
        """
        busy = spans.union(self.compute, self.comm, self.copy, self.fused)
        gaps = spans.difference(spans.from_pairs([(self.start_ns, self.end_ns)]), busy)
        gaps_ns = gaps[:, 1] - gaps[:, 0]
        gaps_ns = gaps_ns[gaps_ns > OWN_GAP_NS]
        idle_ns = int(gaps_ns.sum() - gaps_ns.max(initial=0))
        is_idle = idle_ns > MUCH_IDLE * (self.end_ns - self.start_ns)
        return is_idle and (self.least_lead_ns or 0) < HIDING_LEAD_NS


def read_steps(
    activities: Activities,
    marks: Sequence[StreamMark],
    names: KernelNames,
    rules: LaneRules,
    clock_offset_ns: int = 0,
    contradictions: Counter[str] | None = None,
) -> list[TracedStep]:
    """Return the steps between the boundaries in `marks` (in order) that CUPTI recorded, without
    collectives.

    A step with a missing bound is left out. Activities that do not touch the marks' device are ignored.
    `clock_offset_ns` is added to all times of `activities`. An activity that contradicts others is left out
    or cut, and counted in `contradictions`, as are kernels on other devices.
    """
    found = Counter[str]() if contradictions is None else contradictions
    is_mark, rows = find_marks(activities, marks)
    seen = [(mark, row) for mark, row in zip(marks, rows.tolist(), strict=True) if row >= 0]
    seen = _at_possible_times(seen, activities["start_ns"] + clock_offset_ns, found)
    if not seen:
        return []
    device, stream = activities["device"][seen[0][1]], int(activities["stream"][seen[0][1]])
    first_launch = activities["correlation"][seen[0][1]]
    touches = [activities[field] == device for field in ("device", "from_device", "to_device")]
    here = np.logical_or.reduce(touches)
    elsewhere = ~is_mark & ~here & (activities["kind"] == CONCURRENT_KERNEL)
    if count := int(np.count_nonzero(elsewhere)):
        found[OTHER_GPU] += count
    work = layouts.chosen(activities, ~is_mark & here & (activities["kind"] != SYNCHRONIZATION))
    checked = coherence.check(
        work["start_ns"],
        work["end_ns"],
        work["device"].astype(np.int64) << 32 | work["stream"],
        identity=work["correlation"],
        concurrent=work["graph"] != 0,
    )
    if checked.found:
        work = layouts.chosen(work, checked.keep)
        work["end_ns"] = checked.end_ns[checked.keep]
        found.update(checked.found)
    starts = work["start_ns"] + clock_offset_ns
    ends = work["end_ns"] + clock_offset_ns
    lane_of, nccl_rows, nccl_names = _classify(work, names, rules)
    lanes = {
        lane: spans.from_bounds(starts[lane_of == code], ends[lane_of == code])
        for code, lane in enumerate(LANES)
    }
    # Launch numbers have 32 bits and wrap around: use signed differences from the first mark's.
    nccl_rows = nccl_rows[np.argsort(_since(work["correlation"][nccl_rows], first_launch), kind="stable")]
    nccl_launches = _since(work["correlation"][nccl_rows], first_launch)
    kernels = [
        NcclKernel(name.text, str(name.nccl), start_ns, end_ns, on_stream != stream, replayed, on_stream)
        for name, start_ns, end_ns, on_stream, replayed in zip(
            map(nccl_names.__getitem__, nccl_rows.tolist()),
            starts[nccl_rows].tolist(),
            ends[nccl_rows].tolist(),
            work["stream"][nccl_rows].tolist(),
            (work["graph"][nccl_rows] != 0).tolist(),
            strict=True,
        )
    ]
    marked = activities[[row for _, row in seen]]
    gpu_ns = (marked["start_ns"] + clock_offset_ns).tolist()
    hosts = _HostTimes(activities, seen, gpu_ns, clock_offset_ns)
    cuts = np.searchsorted(nccl_launches, _since(marked["correlation"], first_launch)).tolist()

    steps = []
    boundaries = [at for at, (mark, _) in enumerate(seen) if mark.edge is None]
    for begin, end in pairwise(boundaries):
        first, last = seen[begin][0], seen[end][0]
        if last.step != first.step + 1:
            continue
        start_ns, end_ns = gpu_ns[begin], gpu_ns[end]
        in_step = {lane: spans.clip(of_lane, start_ns, end_ns) for lane, of_lane in lanes.items()}
        fused = in_step[Lane.FUSED]
        computing = spans.union(in_step[Lane.COMPUTE], fused)
        edges = [(mark.edge, gpu_ns[at]) for at in range(begin, end) if (mark := seen[at][0]).edge]
        steps.append(
            TracedStep(
                step=first.step,
                start_ns=start_ns,
                end_ns=end_ns,
                phases=phases_of(start_ns, end_ns, edges),
                collective_count=cuts[end] - cuts[begin],
                detailed=True,
                compute=spans.difference(in_step[Lane.COMPUTE], fused),
                comm=spans.difference(in_step[Lane.COMM], fused),
                copy=spans.difference(in_step[Lane.COPY], fused),
                fused=fused,
                stall=stalls(start_ns, end_ns, computing, lanes[Lane.COMM]),
                named=False,
                launch_lead_ns=end_ns - last.host_ns,
                intervals=tuple(
                    LaunchInterval(
                        seen[at][0].unix_ns,
                        seen[at + 1][0].unix_ns,
                        tuple(kernels[cuts[at] : cuts[at + 1]]),
                    )
                    for at in range(begin, end)
                ),
                least_lead_ns=min(gpu_ns[at] - seen[at][0].host_ns for at in range(begin, end + 1)),
                host_ns=hosts.between(begin, end),
            )
        )
    return steps


class _HostTimes:
    """The host's time between marks less its synchronisations."""

    def __init__(
        self,
        activities: Activities,
        seen: Sequence[tuple[StreamMark, int]],
        gpu_ns: Sequence[int],
        clock_offset_ns: int,
    ) -> None:
        launches, is_sync = activities["correlation"], activities["kind"] == SYNCHRONIZATION
        starts_ns = activities["start_ns"] + clock_offset_ns
        self._set_ns = [mark.host_ns for mark, _ in seen]
        self._gpu_ns = gpu_ns
        self._marked = _since(launches[[row for _, row in seen]], launches[seen[0][1]])
        self._copies = _since(layouts.blocking_copies(activities)["correlation"], launches[seen[0][1]])
        is_blocked = is_sync & (activities["value"] != STREAM_WAITS)
        ends_ns = activities["end_ns"][is_blocked] + clock_offset_ns
        self._blocked = spans.from_bounds(starts_ns[is_blocked], ends_ns)
        is_queued = ~is_sync & (activities["graph"] == 0)
        self._is_full = [
            np.count_nonzero(is_queued & (_since(launches, launches[row]) < 0) & (starts_ns > mark.host_ns))
            >= FULL_QUEUE
            for mark, row in seen
        ]

    def between(self, begin: int, end: int) -> int | None:
        """Return it for these places in `seen`, in ns. None: a full queue or a copy to pageable memory may
        have blocked the host, too; CUPTI does not say for how long. A queue did if the host is steps ahead
        and yet takes as long as the GPU.
        """
        copied = (self._copies >= self._marked[begin]) & (self._copies < self._marked[end])
        if copied.any() or any(self._is_full[begin : end + 1]):
            return None
        first_ns, last_ns = self._set_ns[begin], self._set_ns[end]
        own_ns = last_ns - first_ns - spans.length_ns(spans.clip(self._blocked, first_ns, last_ns))
        step_ns = self._gpu_ns[end] - self._gpu_ns[begin]
        is_held = self._gpu_ns[end] - last_ns >= step_ns and own_ns >= WHOLE_STEP * step_ns
        return None if is_held else own_ns


def _at_possible_times(
    seen: Sequence[tuple[StreamMark, int]], start_ns: NDArray[np.int64], found: Counter[str]
) -> list[tuple[StreamMark, int]]:
    """Return the marks that the GPU reached after their launch and before all later marks."""
    at_ns = start_ns[[row for _, row in seen]]
    early = coherence.before_launch(at_ns, np.array([mark.host_ns for mark, _ in seen], dtype=np.int64))
    first_later_ns = np.minimum.accumulate(np.where(early, np.iinfo(np.int64).max, at_ns)[::-1])[::-1]
    late = ~early & (at_ns > first_later_ns)
    for why, bad in ((coherence.BEFORE_LAUNCH, early), (OUT_OF_ORDER, late)):
        if count := int(np.count_nonzero(bad)):
            found[why] += count
    return [each for each, bad in zip(seen, (early | late).tolist(), strict=True) if not bad]


def find_marks(
    activities: Activities, marks: Sequence[StreamMark]
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return which activities (n,) are marks, and the row of each of `marks`; -1 if not recorded."""
    is_mark = (activities["kind"] == MEMSET) & (activities["bytes"] == MARK_WORDS * 4)
    is_mark &= np.isin(activities["value"], [mark.value for mark in marks])
    rows = np.flatnonzero(is_mark)
    row_of = dict(zip(activities["value"][rows].tolist(), rows.tolist(), strict=True))
    return is_mark, np.array([row_of.get(mark.value, -1) for mark in marks], dtype=np.int64)


def _classify(
    work: Activities, names: KernelNames, rules: LaneRules
) -> tuple[NDArray[np.int64], NDArray[np.int64], dict[int, KernelName]]:
    """Return each activity's lane as an index into LANES (n,), and rows and names of NCCL's kernels."""
    lane_of = np.empty(len(work), dtype=np.int64)
    for kind, (kind_name, name) in _KIND_NAMES.items():
        lane_of[work["kind"] == kind] = LANES.index(rules.lane(name, kind_name))
    rows = np.flatnonzero(work["kind"] == CONCURRENT_KERNEL)
    known, which = names.look_up(work["name"][rows])
    if not known:
        return lane_of, rows, {}
    lane_of[rows] = np.array([LANES.index(name.lane) for name in known])[which]
    is_nccl = np.array([name.nccl is not None for name in known])[which]
    nccl_rows = rows[is_nccl]
    name_of = {row: known[at] for row, at in zip(nccl_rows.tolist(), which[is_nccl].tolist(), strict=True)}
    return lane_of, nccl_rows, name_of


def launched_after(activities: Activities, row: int) -> NDArray[np.bool_]:
    """Return which activities (n,) were launched after that of `row`, including it."""
    return _since(activities["correlation"], activities["correlation"][row]) >= 0


def _since(launches: NDArray[np.uint32], first: np.uint32) -> NDArray[np.int32]:
    return (launches - first).astype(np.int32)


CLOCK_SLACK_NS = 1_000_000  # CUPTI aligns the GPU's clock with the host's to some tens of microseconds


def fault_in(before: StreamMark, after: StreamMark, activities: Activities, clock_offset_ns: int) -> str:
    """Return the fault in the records of a mark, a kernel and a mark that were launched in this order on
    one stream; empty without a fault.

    The job's own work may lie between them. `clock_offset_ns` is added to the activities' times.
    """
    values = (before.value, after.value)
    marks = activities[(activities["kind"] == MEMSET) & np.isin(activities["value"], values)]
    if sorted(marks["value"].tolist()) != sorted(values):
        return "the marks did not come back"
    marks = marks[np.argsort(marks["start_ns"])]
    if marks["value"].tolist() != list(values):
        return "the marks came back in the wrong order"
    stream, first = marks["stream"][0], marks["correlation"][0]
    launches = np.diff(marks["correlation"])[0]  # 32-bit numbers, which wrap around
    kernels = activities[(activities["kind"] == CONCURRENT_KERNEL) & (activities["stream"] == stream)]
    between = kernels[kernels["correlation"] - first < launches]
    if marks["stream"][1] != stream or not len(between) or not between["name"].all():
        return "the kernel between the marks did not come back"
    start_ns, end_ns = marks["start_ns"].tolist()
    if between["start_ns"].min() < start_ns or between["end_ns"].max() > end_ns:
        return "the kernel between the marks is not between them in time"
    earliest_ns, latest_ns = before.host_ns - CLOCK_SLACK_NS, now_ns() + CLOCK_SLACK_NS
    if not earliest_ns <= start_ns + clock_offset_ns <= end_ns + clock_offset_ns <= latest_ns:
        return "its times are not the host's"
    return ""
