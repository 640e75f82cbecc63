"""The training thread waits for data.

Raised for a late rank whose thread spends longer in its DataLoader than the others' (`late`; before steps
are measured by its counters alone, `counters`), and for the
whole job where on each rank LOADING_SHARE of the step goes by in a DataLoader while the GPU is idle or
copies: what is loaded beside a busy GPU costs nothing. Else where so much of each rank's step goes by
before its first kernel, idle or copying: then the data may come by another way than torch's DataLoader. Not
in a job without a DataLoader of which samples of the stack name the line that makes a rank slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import median

from overlaptop import text
from overlaptop.findings.counters import slow_by
from overlaptop.findings.evidence import Evidence
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.late import Cause, late_by, on_host
from overlaptop.findings.lines import slow_line
from overlaptop.wire.messages import RankInfo, StepDetail, StepTotals

LOADING_SHARE = 0.1
ADVICE = (
    "give its DataLoader more workers (num_workers), prefetch_factor and pin_memory=True, and copy with "
    "non_blocking=True on a stream of its own"
)


def look(evidence: Evidence) -> Iterable[Finding]:
    """One for each late rank that waits for data, else one for the job."""
    late = late_by(evidence, Cause.LOADING)
    for each in late:
        yield each.finding(
            f" waits {text.duration(each.loads_ns)} a step longer for data than {each.than}",
            each.loads_ns,
            ADVICE,
            Certainty.MEASURED,
        )
    if (slow := slow_by(evidence, Cause.LOADING)) is not None:
        yield slow.finding(
            f" waits {text.duration(slow.longer_ns)} a step longer for data than {slow.than}", ADVICE
        )
        return
    if late or not evidence.steps:
        return
    if (lost_ns := _on_each_rank_ns(evidence, _in_loaders_ns)) >= LOADING_SHARE * evidence.step_ns:
        yield Finding(
            title=f"ranks wait {text.duration(lost_ns)} a step for data",
            measured=f"{text.percent(lost_ns / evidence.step_ns)} of the step go by in DataLoaders, with "
            "nothing beside it",
            advice=ADVICE,
            certainty=Certainty.MEASURED,
            gain_ns=round(lost_ns),
        )
        return
    has_loader = _has_loader(evidence)
    if not has_loader and _line_is_known(evidence):
        return
    if (lost_ns := _on_each_rank_ns(evidence, _before_work_ns)) >= LOADING_SHARE * evidence.step_ns:
        yield Finding(
            title=f"GPUs have nothing to compute for the first {text.duration(lost_ns)} of each step",
            measured=f"{text.percent(lost_ns / evidence.step_ns)} of the step are idle or copies, before "
            "its first kernel",
            advice=f"where batches come from a DataLoader, {ADVICE}; else make them while the GPU works"
            if has_loader
            else "make batches while the GPU works",
            certainty=Certainty.POSSIBLE,
            gain_ns=round(lost_ns),
        )


def _has_loader(evidence: Evidence) -> bool:
    """Whether a rank's thread was ever in a DataLoader, or that is not known."""
    spent = {step.loading_ns for view in evidence.ranks.values() for step in view.history}
    return spent - {None} != {0}


def _line_is_known(evidence: Evidence) -> bool:
    """Whether a rank is at a line of its script for longer than the others."""
    ranks = evidence.ranks.keys()
    return any(slow_line(evidence, rank, ranks - {rank}) is not None for rank in ranks)


_Measure = Callable[[RankInfo, StepTotals, StepDetail | None], int | None]


def _on_each_rank_ns(evidence: Evidence, measure: _Measure) -> float:
    """What each rank loses in a step at least, in the median over its steps; 0 where one is not known."""
    least_ns: list[float] = []
    for rank, view in evidence.ranks.items():
        lost = [
            ns
            for step in evidence.steps
            if view.info is not None
            and (ns := measure(view.info, step.totals[rank], step.details.get(rank))) is not None
        ]
        least_ns.append(median(lost) if lost else 0.0)
    return min(least_ns)


def _in_loaders_ns(info: RankInfo, step: StepTotals, _detail: StepDetail | None) -> int | None:
    if step.loading_ns is None or on_host(info):
        return step.loading_ns
    if not info.compute_exact or step.idle_ns is None or step.copy_only_ns is None:
        return None
    return min(step.loading_ns, step.idle_ns + step.copy_only_ns)


def _before_work_ns(info: RankInfo, _step: StepTotals, detail: StepDetail | None) -> int | None:
    """From the step's start to the first kernel that computes or communicates."""
    if detail is None or not info.compute_exact:
        return None
    lanes = (detail.compute_spans_ns, detail.comm_spans_ns, detail.fused_spans_ns)
    begins = [lane[0] for lane in lanes if lane]
    return min(begins, default=None)
