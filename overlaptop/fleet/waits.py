"""Who waited for whom, as far as is known, in a step and in the last seconds; and who is called late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import comb, log
from statistics import fmean
from typing import NamedTuple

from overlaptop.timeline.arrivals import Collective, Lateness, RankLateness, WaitTimes, lateness
from overlaptop.timeline.echoes import Echo, echoes

MOST = 0.6
"""Who caused this share of a step's waiting is its late rank, whoever else was last by a little."""
LATE_SHARE = 0.6
"""A rank is late clearly from this share of the steps or collectives on."""
SHARED_SHARE = 0.9
"""A few ranks are late by turns clearly from this share of the collectives on, all together."""
WORTH_SHARE = 0.04
"""Nobody is called late where waiting is less of the step: in healthy jobs ranks differ by a few
hundredths."""
HOST_WORTH_SHARE = 0.1
"""The same of ranks without a GPU: what a busy machine does to one of them is more."""
RECEIVES_SHARE = 0.25
"""From this share of the waiting on that is in receives, ranks may wait as a pipeline's schedule has it."""
COSTLY_SHARE = 0.02
"""What costs less of the step is worth no warning, and what is not split leaves no doubt."""
CHANCE = 0.05
"""Nor where ranks that are all alike would look so in more windows than this: which of two comes last is a
coin's toss, and of 20 tosses 60 % are heads every fourth time."""


@dataclass(frozen=True, slots=True)
class StepWaits:
    """One step of all ranks, or a whole trace."""

    step: int
    start_ns: int
    """When the first rank began it, Unix time."""
    step_ns: int
    """The mean over ranks."""
    collectives: tuple[Collective, ...]
    """Those that began in it on any rank, in order of their first start. Of a running job only the newest
    step has them."""
    times: Mapping[int, WaitTimes]
    """Of each rank of which the step is known in detail. What a timeline that was cut down to be sent does
    not tell is unsplit."""
    lateness: Lateness | None
    """None where none of its collectives is split. Of an echo the root is to blame."""
    echo: Echo | None
    """The one of most waiting; None: there is none."""

    @classmethod
    def of(
        cls,
        step: int,
        start_ns: int,
        step_ns: int,
        collectives: tuple[Collective, ...],
        times: Mapping[int, WaitTimes],
    ) -> StepWaits:
        """The step, with who was late in these collectives."""
        found = echoes(collectives)
        most = max(found, key=lambda at: collectives[at].caused_wait_ns, default=None)
        late = lateness(collectives, {at: echo.root for at, echo in found.items()})
        echo = None if most is None else found[most]
        return cls(step, start_ns, step_ns, collectives, times, late, echo)

    @property
    def main_late_rank(self) -> int | None:
        """The rank that caused most of the step's waiting by far; None where several did, or nobody."""
        if self.lateness is None or self.lateness.awaited.caused_wait_ns < MOST * self.lateness.wait_ns:
            return None
        return self.lateness.late_rank

    def late_rank(self, rank: int) -> int | None:
        """The rank that caused most of the waiting in collectives in which this rank took part; None where
        nobody is to blame, or none of them is split.
        """
        found = lateness(each for each in self.collectives if each.part(rank) is not None)
        return found.late_rank if found is not None else None


class StepTransfer(NamedTuple):
    """What the transfers of one step took."""

    step: int
    start_ns: int
    """When the first rank began it, Unix time."""
    collectives: int
    bytes: int
    """Of all collectives."""
    transfer_ns: float
    """The mean over ranks."""


@dataclass(frozen=True, slots=True)
class WaitWindow:
    """A running job since it changed: its newest split steps together."""

    lateness: Lateness
    steps: int
    exposed_wait_ns: int
    """What a rank waits in a step with no compute beside it: the mean over steps and over all ranks but the
    late one; where there is none, but the one that caused most of the waiting."""
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
    waits_ns: Mapping[int, float] = field(default_factory=dict)
    """What each rank waits in a step with no compute beside it: the mean over steps."""
    worth_share: float = WORTH_SHARE
    """Nobody is called late where waiting is less of the step."""
    chances: int | None = None
    """How often another rank could have been late: the steps; of a whole trace, which has few, the
    collectives. None: it is one chosen step, and what is said is of that one only."""

    @property
    def is_split(self) -> bool:
        """Whether so little of it is not split that waiting is known, and not a lower bound."""
        return self.unsplit_share < COSTLY_SHARE

    @property
    def late(self) -> tuple[RankLateness, ...]:
        """The rank that is late, or the few that are by turns, by number: for the first line and for the
        findings alike. Empty where waiting costs little, and where it may be chance.

        That is who causes most of the waiting in most steps; else who costs most of those that are late in
        most of their collectives: each group may have one, and some may always be a little late; else half
        of the ranks or fewer that are late in nearly all collectives. Where ranks wait in receives, only
        who itself waits half as long as the others or less. The steps of all ranks are equally long, so by
        that difference it does something else for longer; what all wait alike is a pipeline's schedule.
        """
        if self.share < self.worth_share:
            return ()
        found = self._latest()
        late = {each.rank for each in found}
        own_ns = [ns for rank, ns in self.waits_ns.items() if rank in late]
        others_ns = [ns for rank, ns in self.waits_ns.items() if rank not in late]
        if self.in_receives and own_ns and others_ns and 2 * fmean(own_ns) > fmean(others_ns):
            return ()
        return found

    @property
    def in_receives(self) -> bool:
        """Whether so much of the waiting is in receives that a pipeline's schedule may be all there is."""
        return self.lateness.receive_wait_ns > RECEIVES_SHARE * self.lateness.wait_ns

    def _latest(self) -> tuple[RankLateness, ...]:
        """Who is late, be it by a schedule or not."""
        ranks = self.lateness.ranks
        most = self.lateness.of(self.late_rank) if self.late_rank is not None else None
        if most is not None and self.late_steps >= LATE_SHARE * self.steps:
            share = self.late_steps / self.steps if self.chances == self.steps else most.share
            if not self._may_be_chance(share, 1 / len(ranks), len(ranks)):
                return (most,)
        often_late = [
            each
            for each in ranks
            if each.share >= LATE_SHARE
            and each.caused_wait_ns * len(ranks) >= 2 * self.lateness.wait_ns
            and not self._may_be_chance(each.share, 1 / 2, len(ranks))  # groups have two ranks or more
        ]
        if often_late:
            return (max(often_late, key=lambda each: each.caused_wait_ns),)
        few = self.lateness.fewest(SHARED_SHARE)
        if len(few) < 2 or 2 * len(few) > len(ranks):
            return ()
        share = sum(each.late for each in few) / self.lateness.collectives
        if self._may_be_chance(share, len(few) / len(ranks), comb(len(ranks), len(few))):
            return ()
        return tuple(sorted(few, key=lambda each: each.rank))

    @property
    def is_enough(self) -> bool:
        """Whether a rank that was late always would be named in it."""
        ranks = len(self.lateness.ranks)
        return not self._may_be_chance(1.0, 1 / ranks, ranks)

    def _may_be_chance(self, share: float, expected: float, choices: int) -> bool:
        """Whether one of so many choices of ranks would be late in this share with a probability of CHANCE
        or more where each is late in the expected share: by Hoeffding's bound (1963, theorem 1), which
        holds also where the collectives of a step depend on each other.
        """
        if self.chances is None:
            return False
        if share <= expected:
            return True
        surprise = share * log(share / expected)
        if share < 1:
            surprise += (1 - share) * log((1 - share) / (1 - expected))
        return log(choices) - self.chances * surprise >= log(CHANCE)
