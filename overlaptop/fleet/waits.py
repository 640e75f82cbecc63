"""Who waited for whom: in one step of a job, and in its last seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from overlaptop.timeline.arrivals import Collective, Lateness, RankLateness, WaitTimes, lateness
from overlaptop.timeline.echoes import Echo

MOST = 0.6
"""Who caused this share of a step's waiting is its late rank, whoever else was last by a little."""
LATE_SHARE = 0.6
"""A rank is late clearly from this share of the steps or collectives on."""
SHARED_SHARE = 0.9
"""A few ranks are late by turns clearly from this share of the collectives on, all together."""


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
class SplitStep:
    """A split step of the window."""

    waits: StepWaits
    """Without its collectives in all steps but the newest."""
    start_ns: int
    """When the first rank began it, Unix time."""
    step_ns: int
    """The mean over ranks."""
    lateness: Lateness | None
    """None where none of its collectives is split. Of an echo the root is to blame."""
    echo: Echo | None = None
    """The one of most waiting; None: there is none."""

    @property
    def late_rank(self) -> int | None:
        """The rank that caused most of the step's waiting by far; None where several did, or nobody."""
        if self.lateness is None or not self.lateness.wait_ns:
            return None
        most = max(self.lateness.ranks, key=lambda each: each.caused_wait_ns)
        return most.rank if most.caused_wait_ns >= MOST * self.lateness.wait_ns else None


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
    echo: Echo | None = None
    """By way of whom ranks of other groups wait, in the newest step; None: by nobody's."""

    @property
    def caused_wait_ns(self) -> int | None:
        """What all others together wait in a step for the late rank, in the mean; None where nobody is."""
        late = self.lateness.of(self.late_rank) if self.late_rank is not None else None
        return None if late is None else round(late.caused_wait_ns / self.steps)

    @property
    def clearly_late(self) -> RankLateness | None:
        """Who causes most of the waiting in most steps; else who costs most of those that are late in most
        of their collectives: each group may have one, and some may always be a little late.
        """
        if self.late_rank is not None and self.late_steps >= LATE_SHARE * self.steps:
            return self.lateness.of(self.late_rank)
        ranks = self.lateness.ranks
        often_late = (
            each
            for each in ranks
            if each.share >= LATE_SHARE and each.caused_wait_ns * len(ranks) >= 2 * self.lateness.wait_ns
        )
        return max(often_late, key=lambda each: each.caused_wait_ns, default=None)

    @property
    def late_by_turns(self) -> tuple[RankLateness, ...]:
        """Half of the ranks or fewer that are late in nearly all collectives, by turns; empty where it is
        not so.
        """
        late = self.lateness.fewest(SHARED_SHARE)
        few = len(late) >= 2 and 2 * len(late) <= len(self.lateness.ranks)
        return tuple(sorted(late, key=lambda each: each.rank)) if few else ()
