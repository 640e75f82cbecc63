"""Who waited for whom: in one step of a job, and in its last seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from overlaptop.timeline.arrivals import Collective, Lateness, WaitTimes, lateness


@dataclass(frozen=True, slots=True)
class StepWaits:
    """One step of all ranks, or a whole trace."""

    step: int
    collectives: tuple[Collective, ...]
    """Those that began in it on any rank, in order of their first start."""
    times: Mapping[int, WaitTimes]
    """Of each rank of which the step is known in detail. What a timeline that was cut down to be sent does
    not tell is unsplit."""

    def late_rank(self, rank: int) -> int | None:
        """The rank that was late in most of the collectives in which this rank took part; None where
        nobody was, or none of them is split.
        """
        found = lateness(each for each in self.collectives if each.part(rank) is not None)
        return found.late_rank if found is not None else None


@dataclass(frozen=True, slots=True)
class WaitWindow:
    """The last seconds of a running job: its split steps together."""

    lateness: Lateness
    steps: int
    exposed_wait_ns: int
    """What a rank waits in a step with no compute beside it: the mean over steps and over all ranks but the
    late one; where there is none, but the one that was last most often."""
    share: float
    """Of those steps' time."""
    unsplit_share: float
    """Of those ranks' steps, what is exposed and not split: it may be waiting, too."""
    late_rank: int | None = None
    """The rank that caused most of the waiting in most steps; None where in most several did, or nobody."""
    late_steps: int = 0
    """In so many of the steps."""

    @property
    def caused_wait_ns(self) -> int | None:
        """What all others together wait in a step for the late rank, in the mean; None where nobody is."""
        late = self.lateness.of(self.late_rank) if self.late_rank is not None else None
        return None if late is None else round(late.caused_wait_ns / self.steps)
