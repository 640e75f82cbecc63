"""Compares the traces of all ranks and finds who waited for whom."""

import dataclasses
from collections.abc import Mapping, Sequence
from operator import itemgetter
from statistics import fmean

import numpy as np
from msgspec.structs import replace

from overlaptop.fleet.snapshot import WHOLE_TRACE
from overlaptop.fleet.waits import StepWaits
from overlaptop.formats.clocks import Clock, estimate
from overlaptop.formats.summary import Lanes, RankSummary
from overlaptop.text import duration
from overlaptop.timeline.arrivals import Collective, WaitTimes, waiting
from overlaptop.timeline.matching import match
from overlaptop.wire.messages import CollectiveSpan, StepDetail, StepTotals


def align(ranks: Sequence[RankSummary]) -> tuple[RankSummary, ...]:
    """Shift the ranks whose clocks differ from the others', and add a remark."""
    clocks = estimate(_matched(ranks), [each.info.rank for each in ranks])
    return tuple(
        _shifted(each, clocks[each.info.rank]) if each.info.rank in clocks else each for each in ranks
    )


def _shifted(summary: RankSummary, clock: Clock) -> RankSummary:
    """Shift to the clock that all ranks are compared on. Durations stay the same."""

    def start_ns(of: StepTotals | StepDetail) -> int:
        return of.start_ns - int(clock.ahead_ns(np.array([of.start_ns]))[0])

    def call(each: CollectiveSpan) -> CollectiveSpan:
        ahead_ns = int(clock.ahead_ns(np.array([each.start_ns]))[0])
        return replace(each, start_ns=each.start_ns - ahead_ns, end_ns=each.end_ns - ahead_ns)

    lanes = summary.lanes
    words = (
        f"clock {duration(abs(clock.offset_ns))} {'ahead' if clock.offset_ns > 0 else 'behind'}, by the "
        f"ends of collectives (± {duration(clock.error_ns)}): times are shifted"
    )
    return dataclasses.replace(
        summary,
        steps=tuple(replace(each, start_ns=start_ns(each)) for each in summary.steps),
        details=tuple(replace(each, start_ns=start_ns(each)) for each in summary.details),
        whole=replace(summary.whole, start_ns=start_ns(summary.whole)),
        lanes=Lanes(
            *(lane - clock.ahead_ns(lane) for lane in (lanes.compute, lanes.comm, lanes.copy, lanes.fused))
        ),
        calls=tuple(map(call, summary.calls)),
        clock_error_ns=clock.error_ns,
        remarks=(*summary.remarks, words),
    )


def _matched(ranks: Sequence[RankSummary]) -> tuple[Collective, ...]:
    members = {group: of for each in ranks for group, of in each.members.items()}
    errors_ns: dict[str, list[int]] = {}
    for each in ranks:
        for group in {call.group for call in each.calls} if each.clock_error_ns else ():
            errors_ns.setdefault(group, []).append(each.clock_error_ns)
    return match(
        {each.info.rank: each.calls for each in ranks},
        members=members,
        clock_error_ns={group: sum(sorted(of)[-2:]) for group, of in errors_ns.items()},
    )


def split(ranks: Sequence[RankSummary]) -> Mapping[int, StepWaits]:
    """Match the collectives of all ranks, and break down each rank's communication into wait and transfer,
    by step number. The whole trace is WHOLE_TRACE.
    """
    found = _matched(ranks)
    times: dict[int, dict[int, WaitTimes]] = {WHOLE_TRACE: {}}
    begun: dict[int, dict[int, Collective]] = {WHOLE_TRACE: dict(enumerate(found))}
    for each in ranks:
        rank = each.info.rank
        own = _OfRank(rank, found)
        for step in (each.whole, *each.steps):
            times.setdefault(step.step, {})[rank] = own.times(each, step)
        for step in each.steps:
            begun.setdefault(step.step, {}).update(own.last_in(step))
    totals: dict[int, list[StepTotals]] = {}
    for step in (step for each in ranks for step in (each.whole, *each.steps)):
        totals.setdefault(step.step, []).append(step)
    return {
        number: StepWaits.of(
            number,
            min(step.start_ns for step in of_all),
            round(fmean(step.step_ns for step in of_all)),
            tuple(each for _, each in sorted(begun.get(number, {}).items(), key=itemgetter(0))),
            times[number],
        )
        for number, of_all in totals.items()
    }


class _OfRank:
    """The collectives of one rank, by their start on it."""

    def __init__(self, rank: int, found: Sequence[Collective]) -> None:
        self._rank = rank
        own = [(each.spans[rank], at) for at, each in enumerate(found) if rank in each.spans]
        own.sort(key=itemgetter(0))
        self._own = [(at, found[at]) for _, at in own]
        bounds_ns = np.array([span for span, _ in own], dtype=np.int64).reshape(-1, 2)
        self._starts_ns, self._reached_ns = bounds_ns[:, 0], np.maximum.accumulate(bounds_ns[:, 1])

    def times(self, summary: RankSummary, step: StepTotals) -> WaitTimes:
        """Return the breakdown of the rank's communication in this step."""
        end_ns = step.start_ns + step.step_ns
        near = summary.lanes.around(step.start_ns, end_ns).beside_fused()
        first = int(np.searchsorted(self._reached_ns, step.start_ns, side="right"))
        stop = int(np.searchsorted(self._starts_ns, end_ns))
        met = (each for _, each in self._own[first:stop])
        return waiting(self._rank, near.comm, met, step.start_ns, end_ns).times(near.compute)

    def last_in(self, step: StepTotals) -> dict[int, Collective]:
        """Return the collectives whose last arrival is this rank in this step, by index: each is of one
        step.
        """
        first, stop = np.searchsorted(self._starts_ns, (step.start_ns, step.start_ns + step.step_ns))
        return {
            at: each
            for at, each in self._own[first:stop]
            if each.spans[self._rank][0] == each.last_start_ns
        }
