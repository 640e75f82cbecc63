"""All ranks wait for a CPU: of theirs are too few, or others use them. One rank alone: `busy_cpu`."""

from collections import Counter
from statistics import median

from overlaptop import text
from overlaptop.findings.finding import Certainty, Evidence, Finding, Findings
from overlaptop.fleet.snapshot import RankView

LEAST_SHARE = 0.15
LEAST_STEPS = 16


def look(evidence: Evidence) -> Findings:
    steps = evidence.counted
    if len(steps) < LEAST_STEPS:
        return
    each_ns = [[ns for step in steps if (ns := step[rank].delayed_ns) is not None] for rank in steps[0]]
    step_ns = median(totals.step_ns for step in steps for totals in step.values())
    least_ns = min((median(known) if len(known) >= LEAST_STEPS else 0.0) for known in each_ns)
    if least_ns < LEAST_SHARE * step_ns:
        return
    why, more = _fewest_cpus(evidence), "give the job more CPUs"
    for view in evidence.ranks.values():
        limit_percent = view.numa.cpu_limit_percent if view.numa is not None else None
        if limit_percent is not None and limit_percent < 100 * (cpus := _cpus(view)):
            why = f"its container may use {limit_percent / 100:g} of {text.plural(cpus, 'CPU')}"
            more = "raise the container's limit (docker --cpus, Kubernetes' limits.cpu)"
            break
    yield Finding(
        title=f"each rank waits {text.duration(least_ns)} a step for a CPU{f': {why}' if why else ''}",
        measured="training threads are ready to run and have no CPU for "
        f"{text.percent(least_ns / step_ns)} of the step or more",
        advice=f"{more}, or start fewer threads (OMP_NUM_THREADS, num_workers) or fewer ranks on a host; "
        "top shows what else runs",
        certainty=Certainty.MEASURED,
        gain_ns=round(least_ns),
    )


def _fewest_cpus(evidence: Evidence) -> str:
    """Return such as ``4 ranks share 2 CPUs``: of the ranks with the fewest; empty if it is not known. With
    a CPU for each training thread, others must use it: ``other threads use the 2 CPUs of 2 ranks``.
    """
    ranks_of = Counter(
        (view.info.host, view.numa.cpu_set, _cpus(view))
        for view in evidence.ranks.values()
        if view.info is not None and view.numa is not None and view.numa.cpu_set
    )
    fewest = min(ranks_of, key=lambda each: each[2] / ranks_of[each], default=None)
    if fewest is None:
        return ""
    ranks, cpus = ranks_of[fewest], fewest[2]
    named, known = text.plural(ranks, "rank"), text.plural(cpus, "CPU")
    return f"{named} share {known}" if cpus < ranks else f"other threads use the {known} of {named}"


def _cpus(view: RankView) -> int:
    return sum(share.amount for share in view.numa.cpu_nodes) if view.numa is not None else 0
