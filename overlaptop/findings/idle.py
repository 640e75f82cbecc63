"""When GPUs have nothing to do: pauses, launches that are too slow, and the start of each step."""

from collections.abc import Callable
from functools import lru_cache
from statistics import median

from overlaptop import text
from overlaptop.findings.exposure import computing
from overlaptop.findings.finding import Evidence
from overlaptop.findings.lines import ScriptLine, common_line
from overlaptop.fleet.waits import LATE_SHARE
from overlaptop.timeline.overlap import MUCH_IDLE, NO_LEAD
from overlaptop.timeline.spans import Spans, difference, from_pairs, length_ns, unflatten, union
from overlaptop.wire.messages import RankInfo, StepDetail, StepTotals

LONG_PAUSE_NS = 1_000_000
"""Shortest long pause. A launch takes about 10 µs, Python between two launches about 100 µs."""
STALL_SHARE = 0.1
"""Smallest share of the step that is idle on all ranks."""


def pauses(detail: StepDetail) -> Spans:
    """Return the spans of LONG_PAUSE_NS or more without work: (n, 2), ns from the step's start."""
    busy = union(computing(detail), *map(unflatten, (detail.comm_spans_ns, detail.copy_spans_ns)))
    idle = difference(from_pairs([(0, detail.step_ns)]), busy)
    found: Spans = idle[idle[:, 1] - idle[:, 0] >= LONG_PAUSE_NS]
    return found


def is_launch_bound(evidence: Evidence, rank: int) -> bool:
    """Return whether the CPU mostly has no launch lead, and the GPU many short pauses; False: not known."""
    steps = [step.totals[rank] for step in evidence.steps if rank in step.totals]
    leads = [(lead_ns, step.step_ns) for step in steps if (lead_ns := step.launch_lead_ns) is not None]
    info = evidence.ranks[rank].info
    if not leads or info is None or not info.compute_exact:
        return False
    no_lead = sum(lead_ns < NO_LEAD * step_ns for lead_ns, step_ns in leads) >= LATE_SHARE * len(leads)
    step_ns, short_ns = median(step.step_ns for step in steps), short_pauses_ns(evidence, rank)
    idle_ns = median(idle_ns for idle_ns, _ in _idle(evidence, rank))
    return no_lead and short_ns > MUCH_IDLE * step_ns and 2 * short_ns > idle_ns


def short_pauses_ns(evidence: Evidence, rank: int) -> float:
    """Return the GPU's median idle time per step without long pauses and data loading."""
    less_ns = long_pauses_ns(evidence, rank)
    short_ns = [idle_ns - max(less_ns, loading_ns) for idle_ns, loading_ns in _idle(evidence, rank)]
    return max(0.0, median(short_ns)) if short_ns else 0.0


def _idle(evidence: Evidence, rank: int) -> list[tuple[int, int]]:
    """Return of each step the GPU's idle time, unless another rank computes there, and that of loading."""
    found = []
    for step in evidence.steps:
        if (totals := step.totals.get(rank)) is not None:
            shared = step.waits.shared.get(rank) if step.waits is not None else None
            idle_ns = (totals.idle_ns or 0) - (shared.idle_ns if shared is not None else 0)
            found.append((idle_ns, totals.loading_ns or 0))
    return found


def long_pauses_ns(evidence: Evidence, rank: int) -> float:
    """Return the total of a step's long GPU pauses: the median over steps; 0 without a timeline."""
    known = [length_ns(pauses(step.details[rank])) for step in evidence.steps if rank in step.details]
    return median(known) if known else 0.0


def longest_pause(evidence: Evidence, rank: int) -> str:
    """Return such as ``the longest pause, 20.1 ms, is in backward, 3.20 ms after the step's start``.

    Forward begins with the step, so a pause there may be in data loading or a garbage collection before it.
    """
    detail = next((step.details[rank] for step in reversed(evidence.steps) if rank in step.details), None)
    found = pauses(detail).tolist() if detail is not None else []
    if detail is None or not found:
        return ""
    start_ns, end_ns = max(found, key=lambda pause: pause[1] - pause[0])
    phase = next((each.name for each in detail.phases if each.start_ns <= start_ns < each.end_ns), "")
    inside = {"": "is ", "forward": "is before backward, "}.get(phase, f"is in {phase}, ")
    length, after = text.duration(end_ns - start_ns), text.duration(start_ns)
    return f"the longest pause, {length}, {inside}{after} after the step's start"


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

    def measure(info: RankInfo, _step: StepTotals, detail: StepDetail | None) -> int | None:
        if detail is None or not info.compute_exact:
            return None
        lanes = (detail.compute_spans_ns, detail.comm_spans_ns, detail.fused_spans_ns)
        return min((lane[0] for lane in lanes if lane), default=None)

    return on_each_rank_ns(evidence, measure)


def on_each_rank_ns(
    evidence: Evidence, measure: Callable[[RankInfo, StepTotals, StepDetail | None], int | None]
) -> float:
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
