"""JobTimeline: the steps, lanes and collectives of all ranks on one clock, for every export."""

import csv
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TextIO

from msgspec import structs

from overlaptop.fleet.past import in_step
from overlaptop.fleet.records import step_record
from overlaptop.fleet.snapshot import WHOLE_TRACE, Snapshot
from overlaptop.fleet.waits import StepWaits
from overlaptop.formats.job import TracedJob
from overlaptop.formats.summary import Lanes
from overlaptop.records import StepRecord
from overlaptop.timeline.arrivals import Collective, waiting
from overlaptop.timeline.spans import Spans, difference, unflatten, union
from overlaptop.wire.devices import DeviceSample
from overlaptop.wire.messages import RankInfo, StepDetail, StepTotals


@dataclass(frozen=True, slots=True)
class RankTimeline:
    """One rank's steps, lanes and attribution."""

    info: RankInfo
    steps: tuple[StepTotals, ...]  # Oldest first. A running job's steps may lack lane totals.
    drawn: tuple[StepTotals, ...]  # The steps with lanes: all of a trace, few of a running job
    lanes: Lanes  # Unix ns. Beside a fused kernel nothing else counts.
    communication: Mapping[str, Spans]
    """`lanes.comm` in disjoint parts: ``waiting``, ``transfer`` and ``not attributed``."""
    samples: tuple[DeviceSample, ...] = ()  # Samples of the rank's GPU, oldest first
    computing: str = "compute"
    """The name of `lanes.compute`: ``phases`` if the rank's source does not see kernels. A trace of a CPU
    has operators.
    """

    @property
    def rank(self) -> int:
        return self.info.rank


@dataclass(frozen=True, slots=True)
class JobTimeline:
    """The ranks of a job and their collectives."""

    job: str
    ranks: tuple[RankTimeline, ...]  # By rank
    waits: Mapping[int, StepWaits]  # By step, if its waiting is known
    collectives: tuple[Collective, ...]  # In the order of their first starts

    @property
    def start_ns(self) -> int:
        """Unix time of the first step or activity; 0 for an empty job."""
        starts = [step.start_ns for each in self.ranks for step in each.steps[:1]]
        starts += [int(lane[0, 0]) for each in self.ranks for lane in each.lanes if len(lane)]
        return min(starts, default=0)

    def rows_of(self, rank: int) -> list[list[tuple[tuple[int, int], Collective]]]:
        """Return the rank's span of each collective, in as few rows without overlaps as possible."""
        own = [(each.spans[rank], each) for each in self.collectives if rank in each.spans]
        rows: list[list[tuple[tuple[int, int], Collective]]] = []
        for span, each in sorted(own, key=lambda both: both[0]):
            row = next((row for row in rows if row[-1][0][1] <= span[0]), None)
            if row is None:
                rows.append(row := [])
            row.append((span, each))
        return rows

    def step_records(self) -> list[StepRecord]:
        return [
            step_record(self.job, each.info, step, self.waits.get(step.step))
            for each in self.ranks
            for step in each.steps
        ]

    def write_csv(self, out: TextIO) -> None:
        """Write a header and a row for each step record, with the fields of ``--json``; unknown is an empty
        cell. `out` was opened with ``newline=""``.
        """
        writer = csv.writer(out)
        writer.writerow(StepRecord.__struct_fields__)
        for record in self.step_records():
            # true and {"overlap": "≤"}, as in JSON
            values = structs.asdict(record).values()
            writer.writerow(
                json.dumps(each, ensure_ascii=False) if isinstance(each, bool | dict) else each
                for each in values
            )


def from_traces(job: TracedJob) -> JobTimeline:
    """Return the timeline of traces, with the exact times of every activity."""
    found = job.waits[WHOLE_TRACE].collectives if job.waits else ()
    ranks = tuple(
        RankTimeline(of.info, of.steps, of.steps, lanes, _communication(of.info.rank, lanes, found))
        for of in job.ranks
        for lanes in [of.lanes.beside_fused()]
    )
    waits = {step: each for step, each in job.waits.items() if step != WHOLE_TRACE}
    return JobTimeline(job.name, ranks, waits, _in_order(found))


def from_snapshot(snapshot: Snapshot) -> JobTimeline:
    """Return the timeline of the steps in a running job's Snapshot.

    Only steps that were measured while somebody watched have lanes and collectives.
    """
    steps = [{step.step: step for step in (*view.older, *view.history)} for view in snapshot.ranks]
    views = tuple(
        structs.replace(view, history=tuple(of[number] for number in sorted(of)))
        for view, of in zip(snapshot.ranks, steps, strict=True)
    )
    snapshot = replace(snapshot, ranks=views)  # timelines are kept for longer than the history
    drawn = sorted({kept.step for view in views for kept in view.timelines})
    waits = {each.step: each for each in snapshot.kept_step_waits}
    details: dict[int, dict[int, StepDetail]] = {view.rank: {} for view in views}
    for number in drawn:
        past = in_step(snapshot, number)
        if past.waits is not None:
            waits[number] = past.waits
        for view in past.ranks:
            if view.detail is not None:
                details[view.rank][number] = view.detail
    found = _in_order(each for of in waits.values() for each in of.collectives)
    ranks = tuple(
        RankTimeline(
            info=view.info,
            steps=view.history,
            drawn=tuple(step for step in view.history if step.measured and step.step in details[view.rank]),
            lanes=lanes,
            communication=_communication(view.rank, lanes, found),
            samples=view.samples,
            computing="compute" if view.info.compute_exact else "phases",
        )
        for view in views
        if view.info is not None
        for lanes in [_lanes_of(details[view.rank].values())]
    )
    return JobTimeline(snapshot.job.job if snapshot.job is not None else "", ranks, waits, found)


def _communication(rank: int, lanes: Lanes, found: Sequence[Collective]) -> Mapping[str, Spans]:
    """Return `RankTimeline.communication`."""
    if not len(lanes.comm):
        return {}
    own = waiting(rank, lanes.comm, found, int(lanes.comm[0, 0]), int(lanes.comm[-1, 1]))
    rest = difference(own.comm, union(own.wait, own.transfer))
    return {"waiting": own.wait, "transfer": own.transfer, "not attributed": rest}


def _lanes_of(details: Collection[StepDetail]) -> Lanes:
    def lane(name: str) -> Spans:
        return union(*(unflatten(getattr(each, f"{name}_spans_ns")) + each.start_ns for each in details))

    return Lanes(*map(lane, Lanes._fields))


def _in_order(found: Iterable[Collective]) -> tuple[Collective, ...]:
    return tuple(sorted(found, key=lambda each: each.first_start_ns))
