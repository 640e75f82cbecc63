"""The training thread waits for data.

Raised for a late rank whose thread spends longer in its DataLoader than the others' (`late`), and for the
whole job where on each rank LOADING_SHARE of the step goes by in a DataLoader while the GPU is idle or
copies: what is loaded beside a busy GPU costs nothing. Data that comes by other ways than torch's
DataLoader is not seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from overlaptop import text
from overlaptop.findings.evidence import Evidence
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.late import Cause, late_ranks
from overlaptop.wire.messages import RankInfo, StepTotals

LOADING_SHARE = 0.1
ADVICE = (
    "give its DataLoader more workers (num_workers), prefetch_factor and pin_memory=True, and copy with "
    "non_blocking=True on a stream of its own"
)


def look(evidence: Evidence) -> Iterable[Finding]:
    """One for each late rank that waits for data, else one for the job."""
    late = [each for each in late_ranks(evidence) if each.cause is Cause.LOADING]
    for each in late:
        yield Finding(
            title=f"rank {each.rank} waits {text.duration(each.loads_ns)} a step longer for data than "
            f"{each.than}",
            measured=each.in_words,
            advice=ADVICE,
            certainty=Certainty.MEASURED,
            gain_ns=each.gain_ns(each.loads_ns),
            ranks=(each.rank,),
            why_late=True,
        )
    if late or not evidence.steps:
        return
    lost = [_lost_ns(evidence, rank) for rank in evidence.ranks]
    step_ns = median(totals.step_ns for step in evidence.steps for totals in step.totals.values())
    known = [ns for ns in lost if ns is not None]
    if not known or len(known) < len(lost) or min(known) < LOADING_SHARE * step_ns:
        return
    yield Finding(
        title=f"ranks wait {text.duration(median(known))} a step for data",
        measured=f"{text.percent(median(known) / step_ns)} of the step go by in DataLoaders, with nothing "
        "beside it",
        advice=ADVICE,
        certainty=Certainty.MEASURED,
        gain_ns=round(min(known)),
    )


def _lost_ns(evidence: Evidence, rank: int) -> float | None:
    """What loading costs the rank in a step, the median; None: not known."""
    info = evidence.ranks[rank].info
    lost = [
        ns for step in evidence.steps if rank in step.totals
        if (ns := _lost_in_step_ns(info, step.totals[rank])) is not None
    ]  # fmt: skip
    return median(lost) if lost else None


def _lost_in_step_ns(info: RankInfo | None, step: StepTotals) -> int | None:
    if step.loading_ns is None or info is None:
        return None
    if info.source == "host":
        return step.loading_ns
    if not info.compute_exact or step.idle_ns is None or step.copy_only_ns is None:
        return None
    return min(step.loading_ns, step.idle_ns + step.copy_only_ns)
