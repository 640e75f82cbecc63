"""The rank that computes longest is late, by another time in each step: batches are uneven.

Raised where one rank is late clearly and what it computes longer varies from step to step (`late`), or
where the late rank changes, and in LATE_SHARE of the steps it is the one that computes longer by EXPLAINS
of what the others wait on average. One slow GPU would be slow in each step, and jitter of the CPU leaves
compute as it is. One of few ranks may be the late one in most steps nonetheless: nothing that it does is
steady then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from statistics import mean, median
from typing import NamedTuple

from overlaptop import text
from overlaptop.findings.evidence import Evidence, JobStep
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.gains import EXPLAINS
from overlaptop.findings.late import (
    STEADY,
    Cause,
    computing_ns,
    cpus_are_short,
    late_by,
    late_ranks,
)
from overlaptop.fleet.split_waits import window_of
from overlaptop.fleet.waits import LATE_SHARE

ADVICE = "divide a step's tokens evenly over ranks: sort or bucket samples by length, or pack sequences"


def look(evidence: Evidence) -> Iterable[Finding]:
    """One for each late rank whose compute varies, or one for the job."""
    for each in late_by(evidence, Cause.UNEVEN):
        yield each.finding(
            f" computes {text.duration(each.computes_ns)} a step longer than {each.than}, by another time "
            "in each",
            each.computes_ns,
            ADVICE,
            Certainty.POSSIBLE,
        )
    found = None if any(each.cause for each in late_ranks(evidence)) else late_by_compute(evidence)
    if found is not None:
        yield Finding(
            title=f"another rank computes {text.duration(found.longer_ns)} longer than the others in each "
            "step",
            measured="in most steps that is the late one, and a rank waits "
            f"{text.duration(found.wait_ns)} a step",
            advice=ADVICE,
            certainty=Certainty.LIKELY,
            gain_ns=min(found.wait_ns, found.longer_ns),
        )


class LateByCompute(NamedTuple):
    """Another rank is late in each step, by what it computes."""

    longer_ns: int
    """By how much longer the steps' late ranks compute than the others, in the mean."""
    wait_ns: int
    """What a rank waits in these steps with nothing beside it, in the mean."""


@lru_cache(maxsize=1)  # three rules ask for the same
def late_by_compute(evidence: Evidence) -> LateByCompute | None:
    """None where late ranks compute no longer, it is nearly always the same one, waiting costs little, or
    CPUs are short.
    """
    if evidence.window is None or cpus_are_short(evidence):
        return None
    # Not that window, which is longer: what has begun since counts in these steps alone.
    split = [step.waits for step in evidence.steps if step.waits is not None]
    window = window_of(split, evidence.window.worth_share)
    if window is None or window.share < window.worth_share:
        return None
    late = [_longer(evidence, step) for step in evidence.steps if step.waits is not None]
    explained = [(rank, ns) for rank, ns in late if ns >= EXPLAINS * window.exposed_wait_ns]
    if not explained or len(explained) < LATE_SHARE * len(late):
        return None
    _, most = Counter(rank for rank, _ in explained).most_common(1)[0]
    if most >= STEADY * len(explained):
        return None
    return LateByCompute(round(mean(ns for _, ns in explained)), window.exposed_wait_ns)


def _longer(evidence: Evidence, step: JobStep) -> tuple[int | None, float]:
    """The step's late rank, and by how much longer it computed than the others; 0: not known."""
    assert step.waits is not None
    late = step.waits.main_late_rank
    times = {rank: computing_ns(evidence.ranks[rank].info, totals) for rank, totals in step.totals.items()}
    own = times.pop(late, None) if late is not None else None
    others = [ns for ns in times.values() if ns is not None]
    return late, own - median(others) if own is not None and others else 0.0
