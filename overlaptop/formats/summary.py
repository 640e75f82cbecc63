"""Converts one rank's trace to a live job's records, plus the same figures for the whole trace."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace as replace_fields

from overlaptop.fleet.snapshot import WHOLE_TRACE
from overlaptop.formats.activities import LANES, Activities
from overlaptop.formats.chrome import Args, Distributed
from overlaptop.formats.hta import Figures
from overlaptop.formats.kineto import RankTrace
from overlaptop.formats.steps import Step, find_steps
from overlaptop.text import duration
from overlaptop.timeline.collectives import ELEMENT_BYTES, group_title, kind_of, sum_where_known
from overlaptop.timeline.lanes import Lane
from overlaptop.timeline.overlap import break_down, stalls
from overlaptop.timeline.spans import Spans, clip, coalesce, difference, flatten, length_ns, union
from overlaptop.wire.bounds import MAX_INT64
from overlaptop.wire.messages import MAX_COLLECTIVES, CollectiveSpan, RankInfo, StepDetail, StepTotals

SOURCE_REASON = "torch.profiler trace"
UNKNOWN_PID = UNKNOWN_LOCAL_RANK = -1  # Traces contain neither
MAX_SEGMENTS = 4096
"""Segments of a lane in a step's detail. A terminal has fewer cells, but the user may zoom in."""
MAX_ELEMENTS = 1 << 48  # Elements of one collective. A larger count is ignored as wrong.
MAX_MEMBERS = 1 << 20  # Ranks of a process group
LEAST_COLLECTIVES, START_NS = 4, 1_000_000_000
"""A profiler takes seconds to start. A trace with fewer collectives does not show it."""
MAX_WORDS = 256  # Characters of a name from the trace
_ANY_COLLECTIVE = "ncclKernel_SendRecv_"
_RANKS = re.compile(r"\[(\d{1,7}(?:, ?\d{1,7})*)(, ?\.{3}, ?\d{1,7})?\]", re.ASCII)


@dataclass(frozen=True, slots=True)
class RankSummary:
    """All data in one rank's trace."""

    info: RankInfo
    steps: tuple[StepTotals, ...]
    details: tuple[StepDetail, ...]  # Of the whole trace, then of each step
    whole: StepTotals  # From the first activity to the last, including those outside steps
    lanes: "Lanes" = field(repr=False, compare=False)
    calls: tuple[CollectiveSpan, ...] = ()
    """Its collectives with a known group, Unix ns. The group's name includes its ranks."""
    members: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Ranks of those groups, if the trace has them."""
    remarks: tuple[str, ...] = ()  # Records left out or corrected, as text with their number
    clock_error_ns: int = 0  # Possible error of the rank's times against other ranks', if they were shifted
    knows_rank: bool = True  # False if the rank is only the file's number
    by_hta: Figures | None = field(default=None, compare=False)

    @property
    def path(self) -> Path:
        return Path(self.info.script)


class Lanes(NamedTuple):
    """One rank's trace, by lane, Unix ns."""

    compute: Spans
    comm: Spans
    copy: Spans
    fused: Spans

    def around(self, start_ns: int, end_ns: int) -> "Lanes":
        """Return all spans that overlap ``[start_ns, end_ns)``, uncut: stalls need the parts beyond it."""

        def meeting(lane: Spans) -> Spans:
            first = np.searchsorted(lane[:, 1], start_ns, side="right")
            stop = np.searchsorted(lane[:, 0], end_ns, side="left")
            return lane[first:stop]

        return Lanes(*map(meeting, self))

    def beside_fused(self) -> "Lanes":
        """Return the other lanes without the time of fused kernels."""
        compute, comm, copy = (difference(lane, self.fused) for lane in self[:3])
        return Lanes(compute, comm, copy, self.fused)

    def stalls(self, start_ns: int, end_ns: int) -> Spans:
        """Return when compute stalled on communication in ``[start_ns, end_ns)``. Fused kernels compute."""
        return stalls(start_ns, end_ns, union(self.compute, self.fused), self.comm)


def summarize(traced: RankTrace, rank: int, job: str) -> RankSummary:
    """Summarize one rank's trace, step by step and as a whole. `rank`: as found by the caller."""
    activities = traced.activities
    lanes = Lanes(*map(activities.spans, (Lane.COMPUTE, Lane.COMM, Lane.COPY, Lane.FUSED)))
    found = find_steps(activities, traced.annotations)
    remarks = traced.remarks
    if not traced.annotations and (begun_ns := _all_profilers_up_ns(activities)) is not None and found:
        spent = duration(begun_ns - found[0].start_ns)
        found = [replace(found[0], start_ns=begun_ns)]
        remarks = (
            *remarks,
            f"the first {spent} are one collective, in which other ranks' profilers started: "
            "step 0 is the rest (--step 0)",
        )
    comm = _CommKernels(activities)
    whole = Step(WHOLE_TRACE, int(activities.start_ns[0]), int(activities.end_ns.max()), None)
    shown = [step for step in (whole, *found) if step.start_ns < step.end_ns]
    info = _info(traced, rank, job)
    calls, members = comm.calls(info.world_size)
    return RankSummary(
        info=info,
        steps=tuple(_totals(step, rank, lanes, comm, traced.blocked) for step in found),
        details=tuple(_detail(step, rank, lanes, comm) for step in shown),
        whole=_totals(whole, rank, lanes, comm, traced.blocked),
        lanes=lanes,
        calls=calls,
        members=members,
        remarks=remarks,
        knows_rank=traced.rank is not None,
    )


def _all_profilers_up_ns(activities: Activities) -> int | None:
    """Return when the first collective ended, if it took most of all communication: other ranks' profilers
    still started then. Else None.
    """
    comm = np.flatnonzero((activities.lane == LANES.index(Lane.COMM)) & activities.is_kernel)
    lengths_ns = (activities.end_ns - activities.start_ns)[comm]
    if len(comm) < LEAST_COLLECTIVES or lengths_ns[0] < START_NS or 2 * lengths_ns[0] < lengths_ns.sum():
        return None
    end_ns = int(activities.end_ns[comm[0]])
    return end_ns if end_ns < activities.end_ns.max() else None


def _info(traced: RankTrace, rank: int, job: str) -> RankInfo:
    distributed = traced.trace.distributed or Distributed()
    backend, version = distributed.backend or "", distributed.nccl_version
    names = {each.id: each.name or "" for each in traced.trace.devices or ()}
    return RankInfo(
        job=job,
        rank=rank,
        local_rank=UNKNOWN_LOCAL_RANK,
        world_size=max(1, distributed.world_size or 1),
        host="",
        pid=UNKNOWN_PID,
        script=str(traced.path),
        device="cpu" if traced.on_host else names.get(traced.gpu, "")[:MAX_WORDS],
        backend=(f"{backend} {version}" if backend == "nccl" and version else backend)[:MAX_WORDS],
        source="host" if traced.on_host else "kernels",
        source_reason=SOURCE_REASON,
        compute_exact=not traced.on_host,
        detail_every=1,
        torch_version="",
    )


def _totals(step: Step, rank: int, lanes: Lanes, comm: "_CommKernels", blocked: Spans) -> StepTotals:
    near = lanes.around(step.start_ns, step.end_ns)
    parts = break_down(step.start_ns, step.end_ns, near.compute, near.comm, near.copy, near.fused)
    begun = comm.begun_in(step)
    matched = [at for at in begun if comm.bytes_of(at) is not None]
    return StepTotals(
        rank=rank,
        step=step.number,
        start_ns=step.start_ns,
        **asdict(parts),
        stall_ns=length_ns(near.stalls(step.start_ns, step.end_ns)),
        forward_ns=None,
        backward_ns=None,
        optimizer_ns=None,
        collectives=len(begun),
        comm_bytes=sum_where_known(comm.bytes_of(at) for at in begun),
        dropped=0,
        launch_lead_ns=step.launch_lead_ns,
        host_ns=_host_ns(step, blocked),
        comm_kernels_ns=sum(map(comm.length_ns, begun)) if comm.any_named else None,
        matched_ns=sum(map(comm.length_ns, matched)) if comm.any_named else None,
    )


def _host_ns(step: Step, blocked: Spans) -> int | None:
    """Return the CPU's time for the step without blocked time. None if the trace has no launches."""
    if step.host_start_ns is None or step.launch_lead_ns is None:
        return None
    host_end_ns = step.end_ns - step.launch_lead_ns
    return host_end_ns - step.host_start_ns - length_ns(clip(blocked, step.host_start_ns, host_end_ns))


def _detail(step: Step, rank: int, lanes: Lanes, comm: "_CommKernels") -> StepDetail:
    near = lanes.around(step.start_ns, step.end_ns)
    drawn = near.beside_fused()

    def flat(lane: Spans) -> tuple[int, ...]:
        clipped = clip(lane, step.start_ns, step.end_ns)
        return flatten(coalesce(clipped, MAX_SEGMENTS) - step.start_ns)

    return StepDetail(
        rank=rank,
        step=step.number,
        start_ns=step.start_ns,
        step_ns=step.end_ns - step.start_ns,
        phases=(),
        compute_spans_ns=flat(drawn.compute),
        comm_spans_ns=flat(drawn.comm),
        copy_spans_ns=flat(drawn.copy),
        stall_spans_ns=flat(near.stalls(step.start_ns, step.end_ns)),
        collectives=tuple(comm.span(at, step.start_ns) for at in comm.begun_in(step)[:MAX_COLLECTIVES]),
        fused_spans_ns=flat(drawn.fused),
    )


class _CommKernels:
    """The kernels of the comm lane by their start: each is a collective or a point-to-point operation.

    torch 2.4 and later name the operation in the kernel's own args. Without them it is not known, for
    example for kernels launched before the trace began.
    """

    def __init__(self, activities: Activities) -> None:
        self._activities = activities
        kernels = (activities.lane == LANES.index(Lane.COMM)) & activities.is_kernel
        self._at = np.flatnonzero(kernels)
        self._starts_ns = activities.start_ns[self._at]
        self._compute_queue = activities.busiest_first(activities.queue)[0]
        self.any_named = any(isinstance(activities.args[at].collective, str) for at in self._at.tolist())
        """False if this trace names no collective, as with an older torch."""
        self._all_alike = not self.any_named and all(
            activities.names[at].startswith(_ANY_COLLECTIVE) for at in self._at.tolist()
        )
        """NCCL 2.12 and 2.13 name every kernel SendRecv, which may then be any collective."""

    def begun_in(self, step: Step) -> list[int]:
        """Return the kernels that started in this step, as indices into the activities."""
        first, stop = np.searchsorted(self._starts_ns, (step.start_ns, step.end_ns))
        begun: list[int] = self._at[first:stop].tolist()
        return begun

    def length_ns(self, at: int) -> int:
        return int(self._activities.end_ns[at] - self._activities.start_ns[at])

    def bytes_of(self, at: int) -> int | None:
        """Return the larger of its input and output, as in messages. None if the trace does not say."""
        args = self._activities.args[at]
        size = ELEMENT_BYTES.get(args.dtype) if isinstance(args.dtype, str) else None
        sizes = (args.in_elements, args.out_elements)
        counts = [n for n in sizes if isinstance(n, int) and 0 <= n < MAX_ELEMENTS]
        return max(counts) * size if counts and size is not None else None

    def calls(self, world_size: int) -> tuple[tuple[CollectiveSpan, ...], dict[str, Sequence[int]]]:
        """Return the collectives, for matching with the other ranks' traces, and the ranks of each group.

        If no kernel of the trace names its collective, all count as collectives of one group of all ranks.
        Otherwise kernels without a name are left out. So are several sends and receives in one kernel,
        because their partners are not known.
        """
        calls: list[CollectiveSpan] = []
        members: dict[str, Sequence[int]] = {}
        for at in self._at.tolist():
            args, op = self._activities.args[at], self._op(at)
            if "SendRecv" in self._activities.names[at] and kind_of(op) is None and not self._all_alike:
                continue
            if not self.any_named:
                group = ""
            elif isinstance(args.collective, str) and args.group is not None:
                group = f"{_group(args)} {args.group_ranks}"
            else:
                continue
            if group not in members:
                members[group] = _members_of(args, world_size) if group else range(world_size)
            kind = kind_of(op)
            calls.append(
                replace_fields(
                    self.span(at),
                    group=group,
                    sequence=_number(args.sequence),
                    sends_to=_number(args.target) if kind == "send" else None,
                    receives_from=_number(args.source) if kind == "recv" else None,
                )
            )
        return tuple(calls), {group: ranks for group, ranks in members.items() if ranks}

    def _op(self, at: int) -> str:
        if self._all_alike:
            return "collective"
        named = self._activities.args[at].collective
        return (named if isinstance(named, str) else self._activities.names[at].partition("(")[0])[
            :MAX_WORDS
        ]

    def span(self, at: int, origin_ns: int = 0) -> CollectiveSpan:
        """Return the collective as a message: asynchronous if on another stream than compute."""
        activities = self._activities
        args = activities.args[at]
        return CollectiveSpan(
            op=self._op(at),
            bytes=self.bytes_of(at),
            group=_group(args)[:MAX_WORDS],
            is_async=bool(activities.queue[at] != self._compute_queue),
            start_ns=int(activities.start_ns[at]) - origin_ns,
            end_ns=int(activities.end_ns[at]) - origin_ns,
        )


def _number(value: object) -> int | None:
    """Return a rank or a sequence number. Newer torch writes some numbers as text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        return int(value)
    return value if isinstance(value, int) and 0 <= value <= MAX_INT64 else None


def _group(args: Args) -> str:
    return "" if args.group is None else group_title(args.group, args.group_description)


def _members_of(args: Args, world_size: int) -> Sequence[int]:
    """Return the ranks of a process group from a kernel's args. Empty if they are not known.

    torch cuts a long list to its first ranks, an ellipsis and its last one. The list is completed if all
    ranks are equally far apart, as in a device mesh.
    """
    size = args.group_size if isinstance(args.group_size, int) else None
    written = args.group_ranks
    if isinstance(written, list):
        written = f"[{', '.join(map(str, written))}]"
    found = _RANKS.fullmatch(written) if isinstance(written, str) else None
    if found is None:
        # An empty list stands for all ranks.
        whole = size == world_size or (written == "[]" and size is None)
        return range(world_size) if whole else ()
    ranks = tuple(map(int, found[1].split(",")))
    if found[2] is None:
        return tuple(sorted(set(ranks)))
    if size is None or not len(ranks) < size <= MAX_MEMBERS or len(ranks) < 2 or ranks[1] <= ranks[0]:
        return ()
    stride = ranks[1] - ranks[0]
    complete = range(ranks[0], ranks[0] + size * stride, stride)
    last = int(found[2].rpartition(".")[2].strip(", "))
    return complete if tuple(complete[: len(ranks)]) == ranks and complete[-1] == last else ()
