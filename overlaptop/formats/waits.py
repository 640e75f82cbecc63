"""Who waited for whom: the traces of all ranks, compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from overlaptop.fleet.snapshot import WHOLE_TRACE
from overlaptop.fleet.waits import StepWaits
from overlaptop.formats.summary import RankSummary
from overlaptop.timeline.arrivals import Collective, WaitTimes, waiting
from overlaptop.timeline.matching import match
from overlaptop.wire.messages import StepTotals


def split(ranks: Sequence[RankSummary]) -> Mapping[int, StepWaits]:
    """Match the collectives of all ranks, and split each rank's communication: of each step by its number,
    and of the whole trace as WHOLE_TRACE.

    The traces' clocks are taken to be one, as on one host they are. Between hosts that are further apart
    than a collective takes, its ends disagree, and it is not split.
    """
    members = {group: of for each in ranks for group, of in each.members.items()}
    found = match({each.info.rank: each.calls for each in ranks}, members=members)
    times: dict[int, dict[int, WaitTimes]] = {WHOLE_TRACE: {}}
    begun: dict[int, dict[int, Collective]] = {WHOLE_TRACE: dict(enumerate(found))}
    for each in ranks:
        rank = each.info.rank
        own = _OfRank(rank, found)
        for step in (each.whole, *each.steps):
            times.setdefault(step.step, {})[rank] = own.times(each, step)
        for step in each.steps:
            begun.setdefault(step.step, {}).update(own.last_in(step))
    return {
        step: StepWaits(step, tuple(begun.get(step, {})[at] for at in sorted(begun.get(step, {}))), of_rank)
        for step, of_rank in times.items()
    }


class _OfRank:
    """The collectives in which one rank took part, by their start there."""

    def __init__(self, rank: int, found: Sequence[Collective]) -> None:
        self._rank = rank
        own = [(part, at) for at, each in enumerate(found) if (part := each.part(rank)) is not None]
        own.sort(key=lambda each: (each[0].start_ns, each[0].end_ns))
        self._own = [(at, found[at]) for _, at in own]
        self._starts_ns = np.array([part.start_ns for part, _ in own], dtype=np.int64)
        self._reached_ns = np.maximum.accumulate(np.array([part.end_ns for part, _ in own], dtype=np.int64))

    def times(self, summary: RankSummary, step: StepTotals) -> WaitTimes:
        """What the rank's communication in this step was."""
        end_ns = step.start_ns + step.step_ns
        near = summary.lanes.around(step.start_ns, end_ns).beside_fused()
        first = int(np.searchsorted(self._reached_ns, step.start_ns, side="right"))
        stop = int(np.searchsorted(self._starts_ns, end_ns))
        met = (each for _, each in self._own[first:stop])
        return waiting(self._rank, near.comm, met, step.start_ns, end_ns).times(near.compute)

    def last_in(self, step: StepTotals) -> dict[int, Collective]:
        """The collectives that this rank began in this step as the last one, by their place in all: so each
        is of one step, though others may have begun it in the step before.
        """
        first, stop = np.searchsorted(self._starts_ns, (step.start_ns, step.start_ns + step.step_ns))
        return {
            at: each
            for at, each in self._own[first:stop]
            if (part := each.part(self._rank)) is not None and part.start_ns == each.last_start_ns
        }
