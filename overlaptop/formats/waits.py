"""Compares the traces of all ranks: aligns their clocks, and finds who waited for whom.

No rank leaves an all-reduce, an all-gather or a reduce-scatter long before the others, however late one of
them came. So if the ends differ by about the same amount in all of them, the clocks differ by that amount.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from statistics import fmean
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from overlaptop.fleet.snapshot import WHOLE_TRACE
from overlaptop.fleet.waits import StepWaits
from overlaptop.formats.summary import Lanes, RankSummary
from overlaptop.text import duration
from overlaptop.timeline import collectives as ops
from overlaptop.timeline.arrivals import Collective, WaitTimes, waiting
from overlaptop.timeline.matching import match
from overlaptop.wire.messages import StepTotals

LEAST_OFFSET_NS = 50_000
"""On one clock, ends differ by up to 44 µs in the median, but not by that much in every collective."""
LEAST_COLLECTIVES = 3  # With fewer, one collective with an odd end would look like an offset
CERTAIN = 2  # An offset is corrected if it is at least this many times its possible error
LEAST_STEADY_NS, STEADY = 10_000, 5
"""A smaller offset is corrected if it is at least STEADY times its possible error."""
_TOGETHER = frozenset(("allreduce", "allgather", "reducescatter", "barrier"))


class _Clock(NamedTuple):
    """One rank's clock relative to the first rank that it shares collectives with."""

    ahead_ns: int = 0
    error_ns: int = 0  # Possible error: twice the deviation that nine in ten ends stay within

    @property
    def is_apart(self) -> bool:
        apart_ns, error_ns = abs(self.ahead_ns), self.error_ns
        large = apart_ns > max(LEAST_OFFSET_NS, CERTAIN * error_ns)
        return large or apart_ns > max(LEAST_STEADY_NS, STEADY * error_ns)


def align(ranks: Sequence[RankSummary]) -> tuple[RankSummary, ...]:
    """Shift the ranks whose clocks differ from the others', and add a remark."""
    clocks = _clocks(_matched(ranks), [each.info.rank for each in ranks])
    return tuple(
        _shifted(each, clock) if (clock := clocks[each.info.rank]).is_apart else each for each in ranks
    )


def _shifted(summary: RankSummary, clock: _Clock) -> RankSummary:
    """Shift to the clock that all ranks are compared on."""
    ahead_ns = clock.ahead_ns
    words = (
        f"clock {duration(abs(ahead_ns))} {'ahead' if ahead_ns > 0 else 'behind'}, by the "
        f"ends of collectives (± {duration(clock.error_ns)}): times are shifted"
    )
    return dataclasses.replace(
        summary,
        steps=tuple(replace(each, start_ns=each.start_ns - ahead_ns) for each in summary.steps),
        details=tuple(replace(each, start_ns=each.start_ns - ahead_ns) for each in summary.details),
        whole=replace(summary.whole, start_ns=summary.whole.start_ns - ahead_ns),
        lanes=Lanes(*(lane - ahead_ns for lane in summary.lanes)),
        calls=tuple(
            replace(each, start_ns=each.start_ns - ahead_ns, end_ns=each.end_ns - ahead_ns)
            for each in summary.calls
        ),
        clock_error_ns=clock.error_ns,
        remarks=(*summary.remarks, words),
    )


def _clocks(found: Iterable[Collective], ranks: Sequence[int]) -> Mapping[int, _Clock]:
    """Estimate the ranks' clocks. Offsets and errors add up along chains of common collectives."""
    apart_ns: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for each in found:
        if all(ops.kind_of(part) in _TOGETHER for part in each.op.split("+")):
            (first, (_, first_ns)), *others = each.spans.items()
            for rank, (_, end_ns) in others:
                apart_ns[first, rank].append(end_ns - first_ns)
    pairs: defaultdict[int, dict[int, _Clock]] = defaultdict(dict)
    for (first, second), of in apart_ns.items():
        if len(of) >= LEAST_COLLECTIVES:
            ahead_ns = np.median(of)
            error_ns = int(np.ceil(2 * np.percentile(np.abs(np.array(of) - ahead_ns), 90)))
            pairs[first][second] = _Clock(round(ahead_ns), error_ns)
            pairs[second][first] = _Clock(-round(ahead_ns), error_ns)
    clocks: dict[int, _Clock] = {}
    for root in sorted(ranks):
        reached = [] if root in clocks else [root]
        clocks.setdefault(root, _Clock())
        for known in reached:
            base = clocks[known]
            for other, pair in pairs[known].items():
                if other not in clocks:
                    clocks[other] = _Clock(base.ahead_ns + pair.ahead_ns, base.error_ns + pair.error_ns)
                    reached.append(other)
    return clocks


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
