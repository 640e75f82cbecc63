"""Compares the traces of all ranks: aligns their clocks, and finds who waited for whom.

No rank leaves an all-reduce, an all-gather or a reduce-scatter long before the others, however late one of
them came. So if the ends differ by about the same amount in all of them, the clocks differ by that amount.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import fmean

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from overlaptop.fleet.snapshot import WHOLE_TRACE
from overlaptop.fleet.waits import StepWaits
from overlaptop.formats.summary import Lanes, RankSummary
from overlaptop.text import duration
from overlaptop.timeline import collectives as ops
from overlaptop.timeline.arrivals import Collective, WaitTimes, waiting
from overlaptop.timeline.matching import match
from overlaptop.wire.messages import CollectiveSpan, StepDetail, StepTotals

LEAST_OFFSET_NS = 50_000
"""On one clock, ends differ by up to 44 µs in the median, but not by that much in every collective."""
LEAST_COLLECTIVES = 3  # With fewer, one collective with an odd end would look like an offset
CERTAIN = 2  # An offset is corrected if it is at least this many times its possible error
LEAST_STEADY_NS, STEADY = 10_000, 5
"""A smaller offset is corrected if it is at least STEADY times its possible error."""
_TOGETHER = frozenset(("allreduce", "allgather", "reducescatter", "barrier"))


@dataclass(frozen=True, slots=True)
class _Clock:
    """One rank's clock relative to the first rank that it shares collectives with."""

    offset_ns: float = 0.0  # How far it is ahead at `at_ns`
    drift: float = 0.0  # Drift in ns per ns
    at_ns: int = 0
    error_ns: int = 0  # Possible error of an offset: twice the deviation that nine in ten ends stay within

    def ahead_ns(self, times_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how far it is ahead at these times, shape (n,)."""
        ahead_ns: NDArray[np.int64] = np.rint(self.offset_ns + self.drift * (times_ns - self.at_ns)).astype(
            np.int64
        )
        return ahead_ns


def align(ranks: Sequence[RankSummary]) -> tuple[RankSummary, ...]:
    """Shift the ranks whose clocks differ from the others', and add a remark."""
    clocks = _clocks(_matched(ranks), [each.info.rank for each in ranks])
    return tuple(
        _shifted(each, clocks[each.info.rank]) if each.info.rank in clocks else each for each in ranks
    )


def _shifted(summary: RankSummary, clock: _Clock) -> RankSummary:
    """Shift to the clock that all ranks are compared on. Durations stay the same."""

    def start_ns(of: StepTotals | StepDetail) -> int:
        return of.start_ns - int(clock.ahead_ns(np.array([of.start_ns]))[0])

    def call(each: CollectiveSpan) -> CollectiveSpan:
        ahead_ns = int(clock.ahead_ns(np.array([each.start_ns]))[0])
        return replace(each, start_ns=each.start_ns - ahead_ns, end_ns=each.end_ns - ahead_ns)

    words = (
        f"clock {duration(abs(clock.offset_ns))} {'ahead' if clock.offset_ns > 0 else 'behind'}, by the "
        f"ends of collectives (± {duration(clock.error_ns)}): times are shifted"
    )
    return dataclasses.replace(
        summary,
        steps=tuple(replace(each, start_ns=start_ns(each)) for each in summary.steps),
        details=tuple(replace(each, start_ns=start_ns(each)) for each in summary.details),
        whole=replace(summary.whole, start_ns=start_ns(summary.whole)),
        lanes=Lanes(*(lane - clock.ahead_ns(lane) for lane in summary.lanes)),
        calls=tuple(map(call, summary.calls)),
        clock_error_ns=clock.error_ns,
        remarks=(*summary.remarks, words),
    )


def _clocks(found: Iterable[Collective], ranks: Sequence[int]) -> Mapping[int, _Clock]:
    """Estimate the clocks of ranks with an offset; others have no entry. Offsets and errors add up along
    chains of ranks with common collectives.
    """
    ends: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for each in found:
        if all(ops.kind_of(part) in _TOGETHER for part in each.op.split("+")):
            (first, (_, first_ns)), *others = each.spans.items()
            for rank, (_, end_ns) in others:
                ends[first, rank].append((end_ns, end_ns - first_ns))
    pairs = {pair: _clock(np.array(of)) for pair, of in ends.items() if len(of) >= LEAST_COLLECTIVES}
    clocks: dict[int, _Clock] = {}
    for rank in sorted(ranks):
        if rank not in clocks:
            clocks[rank] = _Clock()
            _follow(rank, pairs, clocks)
    return {rank: clock for rank, clock in clocks.items() if _is_apart(clock)}


def _is_apart(clock: _Clock) -> bool:
    ahead_ns, error_ns = abs(clock.offset_ns), clock.error_ns
    large = ahead_ns > max(LEAST_OFFSET_NS, CERTAIN * error_ns)
    return large or ahead_ns > max(LEAST_STEADY_NS, STEADY * error_ns)


def _follow(root: int, pairs: Mapping[tuple[int, int], _Clock], clocks: dict[int, _Clock]) -> None:
    """Add the clocks of all ranks that share collectives with `root`, directly or through others."""
    reached = [root]
    for known in reached:
        for (first, second), pair in pairs.items():
            if known not in (first, second):
                continue
            other, sign = (second, 1) if known == first else (first, -1)
            if other not in clocks:
                base = clocks[known]
                at_ns = pair.at_ns
                clocks[other] = _Clock(
                    base.offset_ns + base.drift * (at_ns - base.at_ns) + sign * pair.offset_ns,
                    base.drift + sign * pair.drift,
                    at_ns,
                    base.error_ns + pair.error_ns,
                )
                reached.append(other)


def _clock(ends: NDArray[np.int64]) -> _Clock:
    """Estimate a clock from shape (n, 2): a time, and how far the one clock is ahead of the other then."""
    times_ns, ahead_ns = ends[:, 0].astype(np.float64), ends[:, 1].astype(np.float64)
    at_ns = int(np.median(ends[:, 0]))
    since_ns = times_ns - at_ns
    plain = _Clock(float(np.median(ahead_ns)), 0.0, at_ns, _spread_ns(ahead_ns - np.median(ahead_ns)))
    order = np.argsort(since_ns)
    third = len(order) // 3
    if third < 2:
        return plain
    early, late = order[:third], order[-third:]
    apart_ns = float(np.median(since_ns[late]) - np.median(since_ns[early]))
    if apart_ns <= 0:
        return plain
    drift = float(np.median(ahead_ns[late]) - np.median(ahead_ns[early])) / apart_ns
    left_ns = ahead_ns - drift * since_ns
    offset_ns = float(np.median(left_ns))
    drifting = _Clock(offset_ns, drift, at_ns, _spread_ns(left_ns - offset_ns))
    return drifting if drifting.error_ns * 2 < plain.error_ns else plain


def _spread_ns(left_ns: NDArray[np.float64]) -> int:
    return int(np.ceil(2 * np.percentile(np.abs(left_ns), 90)))


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
