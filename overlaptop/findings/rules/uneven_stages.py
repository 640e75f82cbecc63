"""One stage of a pipeline computes longer than the others, and they wait for it in each micro-batch."""

from collections.abc import Collection
from statistics import fmean, median

from overlaptop import text
from overlaptop.findings.exposure import EXPOSED_SHARE
from overlaptop.findings.finding import Certainty, Evidence, Finding, Findings
from overlaptop.findings.late import Cause, late_ranks
from overlaptop.findings.stages import computed_ns, pipelines_of
from overlaptop.fleet.waits import FIRST_STEPS

LONGER = 1.15  # Smallest ratio to the mean of all stages


def look(evidence: Evidence) -> Findings:
    causes = {late.rank: late.cause for late in late_ranks(evidence)}
    for found in pipelines_of(evidence):
        by_rank = found.compute_ns
        slowest, quickest = max(by_rank, key=by_rank.__getitem__), min(by_rank, key=by_rank.__getitem__)
        mean_ns = found.mean_ns
        gain_ns = round(min(found.gain_ns(slowest), found.idle_ns))
        if by_rank[slowest] < LONGER * mean_ns or gain_ns < EXPOSED_SHARE * found.step_ns:
            continue
        if causes.get(slowest, Cause.COMPUTING) is not Cause.COMPUTING:
            continue  # a host's compute is the step without its waits for others
        if slowest in causes and _became_slow(evidence, slowest, by_rank):
            continue  # layers do not change
        longer, less = by_rank[slowest] / mean_ns - 1, 1 - mean_ns / by_rank[slowest]
        yield Finding(
            title=f"rank {slowest}'s stage computes {text.percent(longer)} longer than the mean stage",
            measured=f"{text.duration(by_rank[slowest])} a step, rank {quickest} "
            f"{text.duration(by_rank[quickest])}, the mean {text.duration(mean_ns)}",
            advice=f"move layers worth {text.percent(less)} of its compute away from rank {slowest}, "
            f"towards rank {quickest}: embedding and output head count as well",
            certainty=Certainty.MEASURED,
            gain_ns=gain_ns,
            ranks=(slowest,),
            why_late=True,
        )


def _became_slow(evidence: Evidence, rank: int, stages: Collection[int]) -> bool:
    """Return whether it computed as long as the others before the job last changed."""
    if evidence.first <= FIRST_STEPS:
        return False
    of_stages = ({each: computed_ns(step[each]) for each in stages} for step in evidence.before)
    shares = [each[rank] / fmean(each.values()) for each in of_stages if min(each.values())]
    return bool(shares) and median(shares) < LONGER
