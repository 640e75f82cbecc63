"""The rank that computes longest is late, by a different time in each step: batches are uneven.

A slow GPU would be slow in each step, and CPU jitter does not change compute. With few ranks, one may be
late in most steps nonetheless, without a steady cause.
"""

from collections import Counter
from functools import lru_cache
from statistics import mean, median
from typing import NamedTuple

from overlaptop import text
from overlaptop.findings.finding import Certainty, Evidence, Finding, Findings, JobStep
from overlaptop.findings.gains import EXPLAINS
from overlaptop.findings.late import Cause, late_ranks, suspects
from overlaptop.findings.measures import STEADY, computing_ns, cpus_are_short
from overlaptop.fleet.wait_breakdown import window_of
from overlaptop.fleet.waits import LATE_SHARE

ADVICE = "divide a step's tokens evenly over ranks: sort or bucket samples by length, or pack sequences"


def look(evidence: Evidence) -> Findings:
    for each in suspects(evidence, Cause.UNEVEN):
        does = f" computes {each.longer} than {each.versus}, by a different time in each"
        yield each.finding(does, ADVICE, Certainty.POSSIBLE)
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
    """A different rank is late in each step, because of its compute."""

    longer_ns: int
    """Mean extra compute of the steps' late ranks, compared with the others."""
    wait_ns: int
    """Mean exposed wait of a rank in these steps."""


@lru_cache(maxsize=1)  # three rules ask for the same
def late_by_compute(evidence: Evidence) -> LateByCompute | None:
    """Return the mean extra compute and wait. None if late ranks do not compute longer, one rank is nearly
    always late, waiting costs little, or CPUs are short.
    """
    if evidence.window is None or cpus_are_short(evidence):
        return None
    # Not the wait window: it is longer, and uneven batches may have begun only in these steps.
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
    """Return the step's late rank and its extra compute; 0: not known."""
    assert step.waits is not None
    late = step.waits.main_late_rank
    times = {rank: computing_ns(evidence.ranks[rank].info, totals) for rank, totals in step.totals.items()}
    own = times.pop(late, None) if late is not None else None
    others = [ns for ns in times.values() if ns is not None]
    return late, own - median(others) if own is not None and others else 0.0
