"""GPUs that are idle at the start of each step on all ranks, and their hosts' common script line."""

from collections.abc import Callable
from functools import lru_cache
from statistics import median

from overlaptop.findings.evidence import Evidence
from overlaptop.findings.lines import ScriptLine, common_line
from overlaptop.wire.messages import RankInfo, StepDetail, StepTotals

STALL_SHARE = 0.1
"""Smallest share of the step."""

Measure = Callable[[RankInfo, StepTotals, StepDetail | None], int | None]


@lru_cache(maxsize=1)  # two rules ask for it
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


@lru_cache(maxsize=1)
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
