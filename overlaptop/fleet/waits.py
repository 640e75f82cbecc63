"""Who waited for whom in one step of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from overlaptop.timeline.arrivals import Collective, WaitTimes, lateness


@dataclass(frozen=True, slots=True)
class StepWaits:
    """One step of all ranks, or a whole trace."""

    step: int
    collectives: tuple[Collective, ...]
    """Those that began in it on any rank, in order of their first start."""
    times: Mapping[int, WaitTimes]
    """Of each rank of which the step is known in detail."""

    def late_rank(self, rank: int) -> int | None:
        """The rank that was late in most of the collectives in which this rank took part; None where
        nobody was, or none of them is split.
        """
        found = lateness(each for each in self.collectives if each.part(rank) is not None)
        return found.late_rank if found is not None else None
