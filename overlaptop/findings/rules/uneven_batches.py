"""The rank that computes longest is late, by a different time in each step: batches are uneven.

A slow GPU would be slow in each step, and CPU jitter does not change compute. With few ranks, one may be
late in most steps nonetheless, without a steady cause.
"""

from collections import Counter
from functools import lru_cache
from statistics import mean

from overlaptop import text
from overlaptop.findings.finding import Certainty, Evidence, Finding, Findings
from overlaptop.findings.gains import EXPLAINS
from overlaptop.findings.late import Cause, late_ranks, suspects
from overlaptop.findings.measures import STEADY, computing_ns, cpus_are_short, excess
from overlaptop.fleet.wait_breakdown import window_of
from overlaptop.fleet.waits import LATE_SHARE

ADVICE = "divide a step's tokens evenly over ranks: sort or bucket samples by length, or pack sequences"


def look(evidence: Evidence) -> Findings:
    for each in suspects(evidence, Cause.UNEVEN):
        does = f" computes {each.longer} than {each.versus}, by a different time in each"
        yield each.finding(does, ADVICE, Certainty.POSSIBLE)
    found = None if any(each.cause for each in late_ranks(evidence)) else late_by_compute(evidence)
    if found is not None:
        longer, waits = map(text.duration, found)
        yield Finding(
            title=f"another rank computes {longer} longer than the others in each step",
            measured=f"in most steps that is the late one, and a rank waits {waits} a step",
            advice=ADVICE,
            certainty=Certainty.LIKELY,
            gain_ns=min(found),
        )


@lru_cache(maxsize=1)  # three rules ask for the same
def late_by_compute(evidence: Evidence) -> tuple[int, int] | None:
    """Return by how much the steps' late ranks compute longer than the others, and the exposed wait of a
    rank: means, ns. None if late ranks do not compute longer, one rank is nearly always late, waiting
    costs little, or CPUs are short.
    """
    if evidence.window is None or cpus_are_short(evidence):
        return None
    # Not the wait window: it is longer, and uneven batches may have begun only in these steps.
    split = [(step, step.waits) for step in evidence.steps if step.waits is not None]
    window = window_of([waits for _, waits in split], evidence.window.worth_share)
    if window is None or window.share < window.worth_share:
        return None
    explained: list[tuple[int, float]] = []
    enough_ns = EXPLAINS * window.exposed_wait_ns
    for step, waits in split:
        late = waits.main_late_rank
        if late is not None and late in step.totals:
            longer_ns = excess(evidence, computing_ns, [step.totals], (late,), step.totals)[late]
            explained.extend((late, ns) for ns in longer_ns if ns >= enough_ns)
    if not explained or len(explained) < LATE_SHARE * len(split):
        return None
    most = Counter(rank for rank, _ in explained).most_common(1)[0][1]
    if most >= STEADY * len(explained):
        return None
    return round(mean(ns for _, ns in explained)), window.exposed_wait_ns
