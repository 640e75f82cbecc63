"""What a rank does in a step, how much longer than others, and when its GPU is idle. None: not known."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from statistics import fmean, median

from overlaptop import text
from overlaptop.findings.exposure import computing
from overlaptop.findings.finding import Evidence, JobStep
from overlaptop.findings.lines import ScriptLine, common_line
from overlaptop.fleet.snapshot import RankView
from overlaptop.fleet.waits import LATE_SHARE
from overlaptop.report.order import sees_gaps
from overlaptop.timeline.averages import median_without
from overlaptop.timeline.overlap import MUCH_IDLE, NO_LEAD
from overlaptop.timeline.spans import Spans, difference, from_pairs, length_ns, unflatten, union
from overlaptop.wire.messages import RankInfo, StepDetail, StepTotals

STEADY = 0.8  # Smallest share of steps where a cause lasts longer: medians of equal ranks may differ, too
CPU_SHARE = 0.25  # From this share of transfer time on, waits for a CPU may be its cause
LONG_PAUSE_NS = 1_000_000
"""Shortest long pause. A launch takes about 10 µs, Python between two launches about 100 µs."""
STALL_SHARE = 0.1  # Smallest share of the step that is idle on all ranks
Measure = Callable[[RankInfo | None, StepTotals], int | None]


def _counter(name: str) -> Measure:
    return lambda _info, step: getattr(step, name)


loading_ns, delayed_ns, cpu_ns = map(_counter, ("loading_ns", "delayed_ns", "cpu_ns"))
full_collections, hidden_ns, exposed_ns = map(_counter, ("full_collections", "hidden_ns", "exposed_ns"))
copying_ns = _counter("copy_only_ns")
COUNTERS = (loading_ns, delayed_ns, cpu_ns, full_collections)  # Measures that unmeasured steps have, too


def on_host(info: RankInfo | None) -> bool:
    """Whether the rank's spans come from the host's clock: it has no GPU."""
    return info is not None and info.source == "host"


def computing_ns(info: RankInfo | None, step: StepTotals) -> int | None:
    """Return compute time: of kernels; without a GPU, CPU time. None if the source does not see it."""
    if info is None or info.compute_exact:
        return step.compute_ns
    return step.cpu_ns if on_host(info) else None


def idling_ns(info: RankInfo | None, step: StepTotals) -> int | None:
    """Return the GPU's idle time; without a GPU, the training thread's sleep except waits for other ranks.
    None if the source does not see it.
    """
    if info is None or info.compute_exact:
        return step.idle_ns
    if not on_host(info) or step.cpu_ns is None or step.exposed_ns is None:
        return None
    return max(0, step.step_ns - step.exposed_ns - step.cpu_ns - (step.delayed_ns or 0))


def busy_ns(info: RankInfo | None, step: StepTotals) -> int | None:
    """Return the compute time; without a GPU, including the wait for a CPU, which grows with it."""
    own_ns = computing_ns(info, step)
    if own_ns is None or not on_host(info):
        return own_ns
    return own_ns + (step.delayed_ns or 0)


def unexplained_ns(info: RankInfo | None, step: StepTotals) -> int | None:
    """Return the part of `idling_ns` beyond data, a CPU and garbage: these may not be steady yet."""
    idle_ns = idling_ns(info, step)
    if idle_ns is None or step.full_collections:
        return idle_ns and 0
    delayed_ns = 0 if on_host(info) else step.delayed_ns or 0  # without a GPU it is subtracted already
    return max(0, idle_ns - (step.loading_ns or 0) - delayed_ns)


def cpus_are_short(evidence: Evidence) -> bool:
    """Whether ranks without a GPU wait longer for a CPU than for each other: all else is noise then."""
    on_hosts = [
        [totals.delayed_ns for totals in each.totals.values() if totals.delayed_ns is not None]
        for each in evidence.steps
        if all(on_host(evidence.ranks[rank].info) for rank in each.totals)
    ]
    delays_ns = [fmean(known) for known in on_hosts if known]
    return bool(delays_ns) and median(delays_ns) > evidence.exposed_wait_ns


def cpus_explain(evidence: Evidence, transfer_ns: float) -> bool:
    """Whether a rank's wait for a CPU may cost this time: CPUs move gloo's bytes, and NCCL's on sockets.
    True for ranks without a GPU if their waits are not known.
    """
    steps = [step.totals for step in evidence.steps]
    every = ([totals[rank].delayed_ns for totals in steps] for rank in evidence.ranks)
    delays_ns = [median(known) for each in every if (known := [ns for ns in each if ns is not None])]
    if not delays_ns:
        return any(on_host(view.info) for view in evidence.ranks.values())
    return max(delays_ns) > CPU_SHARE * transfer_ns


def excess(
    evidence: Evidence,
    measure: Measure,
    steps: Iterable[Mapping[int, StepTotals]],
    of: Collection[int],
    ranks: Collection[int],
) -> Mapping[int, list[float]]:
    """Return the excess of some of these ranks over the median of the others, for each step where it is
    known.
    """
    infos = {rank: evidence.ranks[rank].info for rank in ranks}
    more: defaultdict[int, list[float]] = defaultdict(list)
    for totals in steps:
        every = {rank: measure(info, totals[rank]) for rank, info in infos.items()}
        ordered = sorted(amount for amount in every.values() if amount is not None)
        for rank in of if len(ordered) > 1 else ():
            if (own := every[rank]) is not None:
                more[rank].append(own - median_without(ordered, own))
    return more


@lru_cache(maxsize=64)  # of each late rank, several rules and causes ask for the same
def excess_over(evidence: Evidence, rank: int, others: tuple[int, ...], measure: Measure) -> list[float]:
    """Return the rank's excess over the others' median in the newest steps that have this measure."""
    measured = [step.totals for step in evidence.steps]
    steps = evidence.counted or measured if measure in COUNTERS else measured
    return excess(evidence, measure, steps, (rank,), (rank, *others))[rank]


def steady_excess(more: list[float], least: float = 0.0) -> float:
    """Return the median of `excess`; 0 if it is not steadily above ``least``, or not known."""
    steady = more and sum(each > least for each in more) >= STEADY * len(more)
    return median(more) if steady else 0.0


def pauses(detail: StepDetail) -> Spans:
    """Return the spans of LONG_PAUSE_NS or more without work: (n, 2), ns from the step's start."""
    busy = union(computing(detail), *map(unflatten, (detail.comm_spans_ns, detail.copy_spans_ns)))
    idle = difference(from_pairs([(0, detail.step_ns)]), busy)
    found: Spans = idle[idle[:, 1] - idle[:, 0] >= LONG_PAUSE_NS]
    return found


def is_launch_bound(evidence: Evidence, rank: int) -> bool:
    """Return whether the CPU mostly has no launch lead, and the GPU many short pauses; False: not known."""
    steps = evidence.steps_of(rank)
    leads = [(lead_ns, step.step_ns) for step in steps if (lead_ns := step.launch_lead_ns) is not None]
    if not leads or not sees_gaps(evidence.ranks[rank]):
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
    for step, totals in zip(evidence.steps, evidence.steps_of(rank), strict=True):
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

    def measure(view: RankView, step: JobStep) -> int | None:
        if (detail := step.details.get(view.rank)) is None or not sees_gaps(view):
            return None
        lanes = (detail.compute_spans_ns, detail.comm_spans_ns, detail.fused_spans_ns)
        return min((lane[0] for lane in lanes if lane), default=None)

    return on_each_rank_ns(evidence, measure)


def on_each_rank_ns(evidence: Evidence, measure: Callable[[RankView, JobStep], int | None]) -> float:
    """Return the smallest of the ranks' medians over steps; 0 if one is not known."""
    every = ([measure(view, step) for step in evidence.steps] for view in evidence.ranks.values())
    known_ns = ([ns for ns in of_rank if ns is not None] for of_rank in every)
    return min((median(of_rank) if of_rank else 0.0 for of_rank in known_ns), default=0.0)
