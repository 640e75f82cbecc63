"""Why a rank is late: what it does longer than the others, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median

from overlaptop import text
from overlaptop.findings.evidence import Evidence
from overlaptop.report.headline import COSTLY_SHARE
from overlaptop.timeline.arrivals import RankLateness
from overlaptop.wire.messages import StepTotals

EXPLAINS = 0.5
"""A cause explains that a rank is late where it lasts this share of what the others wait. Less than all:
some of the waiting hides behind compute, and causes add up."""


@dataclass(frozen=True, slots=True)
class LateRank:
    """A rank for which the others wait, and what it does longer than they in a step (the median over steps;
    negative: shorter). None: not seen.
    """

    rank: int
    late: int
    collectives: int
    """In so many of which it was late."""
    wait_ns: int
    """What the others wait for it in a step with nothing beside it, in the mean: what mending can win."""
    computes_longer_ns: int | None
    stands_longer_ns: int | None
    """Its GPU idle."""

    @property
    def in_words(self) -> str:
        """``rank 2 is late in 71 of 75 collectives; the others wait 12.1 ms a step``."""
        return (
            f"rank {self.rank} is late in {self.late} of {self.collectives} collectives; "
            f"the others wait {text.duration(self.wait_ns)} a step"
        )

    def explains(self, longer_ns: int | None) -> bool:
        """Whether doing something so much longer explains what the others wait."""
        return longer_ns is not None and longer_ns >= EXPLAINS * self.wait_ns


def late_ranks(evidence: Evidence) -> tuple[LateRank, ...]:
    """The one that is late clearly, or those that are by turns; empty where waiting costs little."""
    window = evidence.window
    if window is None or window.share < COSTLY_SHARE:
        return ()
    clearly = window.clearly_late
    late = (clearly,) if clearly is not None else window.late_by_turns
    ranks = frozenset(each.rank for each in late)
    return tuple(_late_rank(evidence, each, ranks) for each in late if each.rank in evidence.ranks)


def _late_rank(evidence: Evidence, late: RankLateness, all_late: frozenset[int]) -> LateRank:
    others = evidence.ranks.keys() - all_late
    info = evidence.ranks[late.rank].info
    exact = info is not None and info.compute_exact
    return LateRank(
        late.rank,
        late.late,
        late.collectives,
        evidence.exposed_wait_ns,
        _longer_ns(evidence, late.rank, others, lambda step: step.compute_ns) if exact else None,
        _longer_ns(evidence, late.rank, others, lambda step: step.idle_ns) if exact else None,
    )


def _longer_ns(
    evidence: Evidence, rank: int, others: Iterable[int], measure: Callable[[StepTotals], int | None]
) -> int | None:
    """By how much more of it the rank has in a step than the others in their median; None: not known."""
    more: list[float] = []
    for step in evidence.steps:
        own = measure(step.totals[rank])
        theirs = [ns for other in others if (ns := measure(step.totals[other])) is not None]
        if own is not None and theirs:
            more.append(own - median(theirs))
    return round(median(more)) if more else None
