"""What a rank does in a step, and how much longer than the others. None: not known."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from statistics import fmean, median

from overlaptop.findings.finding import Evidence
from overlaptop.timeline.averages import median_without
from overlaptop.wire.messages import RankInfo, StepTotals

STEADY = 0.8
"""Smallest share of steps where a cause lasts longer: medians of equal ranks may differ, too."""
CPU_SHARE = 0.25
"""From this share of transfer time on, waits for a CPU may be its cause."""
Measure = Callable[[RankInfo | None, StepTotals], int | None]


def _counter(name: str) -> Measure:
    return lambda _info, step: getattr(step, name)


loading_ns, delayed_ns, cpu_ns = map(_counter, ("loading_ns", "delayed_ns", "cpu_ns"))
full_collections, hidden_ns, exposed_ns = map(_counter, ("full_collections", "hidden_ns", "exposed_ns"))
copying_ns = _counter("copy_only_ns")


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
    rank: int,
    others: Collection[int],
    measure: Measure,
    steps: Iterable[Mapping[int, StepTotals]],
) -> list[float]:
    """Return the rank's excess over the others' median, for each step where it is known."""

    def of(each: int, step: StepTotals) -> int | None:
        return measure(evidence.ranks[each].info, step)

    more: list[float] = []
    for totals in steps:
        own = of(rank, totals[rank])
        theirs = [value for other in others if (value := of(other, totals[other])) is not None]
        if own is not None and theirs:
            more.append(own - median(theirs))
    return more


def each_excess(
    evidence: Evidence, measure: Measure, steps: Iterable[Mapping[int, StepTotals]]
) -> Mapping[int, list[float]]:
    """Return `excess` of each rank over all other ranks, by rank."""
    infos = {rank: view.info for rank, view in evidence.ranks.items()}
    more: defaultdict[int, list[float]] = defaultdict(list)
    for totals in steps:
        every = [(rank, measure(infos[rank], step)) for rank, step in totals.items()]
        known = [(rank, value) for rank, value in every if value is not None]
        ordered = sorted(value for _, value in known)
        for rank, value in known if len(known) > 1 else ():
            more[rank].append(value - median_without(ordered, value))
    return more


def steady_excess(more: list[float], least: float = 0.0) -> float:
    """Return the median of `excess`; 0 if it is not steadily above ``least``, or not known."""
    steady = more and sum(each > least for each in more) >= STEADY * len(more)
    return median(more) if steady else 0.0
