"""GPUs that are idle at the start of each step on all ranks, and at which line their hosts are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

from overlaptop.findings.evidence import Evidence
from overlaptop.findings.lines import ScriptLine, common_line
from overlaptop.wire.messages import RankInfo, StepDetail, StepTotals

STALL_SHARE = 0.1
"""Of the step."""

Measure = Callable[[RankInfo, StepTotals, StepDetail | None], int | None]


@dataclass(frozen=True, slots=True)
class Stall:
    """Where all hosts are for a part of the step in which their GPUs have nothing to compute."""

    lost_ns: float
    """Of each rank's step at least."""
    line: ScriptLine


@lru_cache(maxsize=1)
def stalled(evidence: Evidence) -> Stall | None:
    """None: GPUs have work, the job has a DataLoader, or ranks have no line in common."""
    lost_ns = before_work_ns(evidence) if evidence.steps else 0.0
    if not lost_ns or lost_ns < STALL_SHARE * evidence.step_ns or may_load(evidence):
        return None
    line = common_line(evidence, lost_ns / evidence.step_ns)
    return Stall(lost_ns, line) if line is not None else None


def may_load(evidence: Evidence) -> bool:
    """Whether a rank's thread was ever in a DataLoader, or that is not known."""
    spent = {step.loading_ns for view in evidence.ranks.values() for step in view.history}
    return spent - {None} != {0}


@lru_cache(maxsize=1)  # two rules ask for it
def before_work_ns(evidence: Evidence) -> float:
    """From the step's start to the first kernel that computes or communicates, on each rank at least."""
    return on_each_rank_ns(evidence, _before_work_ns)


def on_each_rank_ns(evidence: Evidence, measure: Measure) -> float:
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


def _before_work_ns(info: RankInfo, _step: StepTotals, detail: StepDetail | None) -> int | None:
    if detail is None or not info.compute_exact:
        return None
    lanes = (detail.compute_spans_ns, detail.comm_spans_ns, detail.fused_spans_ns)
    begins = [lane[0] for lane in lanes if lane]
    return min(begins, default=None)
