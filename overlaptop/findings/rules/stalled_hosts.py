"""All hosts spend long at one script line while their GPUs have nothing to compute."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from statistics import median

from overlaptop import text
from overlaptop.findings.evidence import Evidence
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.late import late_ranks
from overlaptop.findings.lines import ScriptLine, common_line
from overlaptop.wire.messages import RankInfo, StepDetail, StepTotals

STALL_SHARE = 0.1
"""Smallest share of the step."""

Measure = Callable[[RankInfo, StepTotals, StepDetail | None], int | None]


def look(evidence: Evidence) -> Iterable[Finding]:
    line, lost_ns = stalled_at(evidence), before_work_ns(evidence)
    if line is None or late_ranks(evidence):
        return
    yield Finding(
        title=f"GPUs have nothing to compute for the first {text.duration(lost_ns)} of each step",
        measured=f"{text.percent(lost_ns / evidence.step_ns)} of the step go by before the first kernel; "
        f"{line.line}: {text.whole_percent(line.share)} of each rank's step",
        advice=f"look at {line.place}: run it less often, or beside the GPU's work",
        certainty=Certainty.POSSIBLE,
        gain_ns=round(lost_ns),
        line=line.line,
    )


def stalled_at(evidence: Evidence) -> ScriptLine | None:
    """Return the line where all hosts are while their GPUs have nothing to compute. None: GPUs have work,
    the job has a DataLoader, or ranks have no common line.
    """
    lost_ns = before_work_ns(evidence)
    if not lost_ns or lost_ns < STALL_SHARE * evidence.step_ns or may_load(evidence):
        return None
    return common_line(evidence, lost_ns / evidence.step_ns)


def may_load(evidence: Evidence) -> bool:
    """Return whether a rank's thread was ever in a DataLoader, or that is not known."""
    spent = {step.loading_ns for view in evidence.ranks.values() for step in view.history}
    return spent - {None} != {0}


@lru_cache(maxsize=1)  # two rules ask for it
def before_work_ns(evidence: Evidence) -> float:
    """Return the time from the step's start to the first kernel, the smallest of all ranks."""
    return on_each_rank_ns(evidence, _before_work_ns)


def on_each_rank_ns(evidence: Evidence, measure: Measure) -> float:
    """Return the smallest of the ranks' medians over steps; 0 if one is not known."""
    least_ns: list[float] = []
    for rank, view in evidence.ranks.items():
        lost = [
            ns
            for step in evidence.steps
            if view.info is not None
            and (ns := measure(view.info, step.totals[rank], step.details.get(rank))) is not None
        ]
        least_ns.append(median(lost) if lost else 0.0)
    return min(least_ns, default=0.0)


def _before_work_ns(info: RankInfo, _step: StepTotals, detail: StepDetail | None) -> int | None:
    if detail is None or not info.compute_exact:
        return None
    lanes = (detail.compute_spans_ns, detail.comm_spans_ns, detail.fused_spans_ns)
    begins = [lane[0] for lane in lanes if lane]
    return min(begins, default=None)
