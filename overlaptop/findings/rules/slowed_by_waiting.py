"""Waiting beside compute is not free: NCCL's kernels hold SMs and memory while they wait.

Raised where a rank is late clearly, and the others compute WORTH_SHARE of the step longer than it does, by
no more than the time for which they have more communication beside that. A late rank then costs more than
what is exposed of the waiting.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from overlaptop import text
from overlaptop.findings.evidence import Evidence, JobStep
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.late import STEADY, LateRank, late_ranks
from overlaptop.fleet.waits import WORTH_SHARE


def look(evidence: Evidence) -> Iterable[Finding]:
    """One for each late rank."""
    for late in late_ranks(evidence):
        if not all(_is_exact(evidence, rank) for rank in (late.rank, *late.others)):
            continue
        more = [_more_ns(step, late) for step in evidence.steps]
        slowed = [0 < compute_ns <= beside_ns for compute_ns, beside_ns in more]
        slower_ns, beside_ns = (median(each) for each in zip(*more, strict=True))
        if sum(slowed) < STEADY * len(slowed) or slower_ns < WORTH_SHARE * evidence.step_ns:
            continue
        yield Finding(
            title=f"compute takes {text.duration(slower_ns)} a step longer beside waiting for rank "
            f"{late.rank} than on rank {late.rank}",
            measured=f"of {text.named_ranks(late.others)}, with communication beside compute for "
            f"{text.duration(beside_ns)} a step longer; NCCL holds SMs while it waits",
            advice="what ends the waiting ends this, too; NCCL_MAX_CTAS=8 holds fewer SMs, and may make "
            "transfers longer: compare step times",
            certainty=Certainty.POSSIBLE,
            ranks=late.others,
        )


def _is_exact(evidence: Evidence, rank: int) -> bool:
    info = evidence.ranks[rank].info
    return info is not None and info.compute_exact


def _more_ns(step: JobStep, late: LateRank) -> tuple[float, float]:
    """How much longer the others compute, and have communication beside compute, than the late rank; both
    in the median of the others.
    """
    own, others = step.totals[late.rank], [step.totals[rank] for rank in late.others]
    return (
        median(each.compute_ns or 0 for each in others) - (own.compute_ns or 0),
        median(each.hidden_ns or 0 for each in others) - (own.hidden_ns or 0),
    )
