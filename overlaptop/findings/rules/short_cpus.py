"""All ranks wait for a CPU: of theirs are too few, or others use them. One rank alone: `busy_cpu`."""

from collections import defaultdict
from statistics import median

from overlaptop import text
from overlaptop.findings.finding import Certainty, Evidence, Finding, Findings

LEAST_SHARE = 0.15
LEAST_STEPS = 16


def look(evidence: Evidence) -> Findings:
    steps = evidence.counted
    if len(steps) < LEAST_STEPS:
        return
    known = [
        [totals.delayed_ns for step in steps if (totals := step[rank]).delayed_ns is not None]
        for rank in steps[0]
    ]
    step_ns = median(totals.step_ns for step in steps for totals in step.values())
    least_ns = min((median(each) if len(each) >= LEAST_STEPS else 0.0) for each in known)
    if least_ns < LEAST_SHARE * step_ns:
        return
    why, more = _fewest_cpus(evidence), "give the job more CPUs"
    if limit := _container_limit(evidence):
        why, more = limit, "raise the container's limit (docker --cpus, Kubernetes' limits.cpu)"
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
    cpus = defaultdict(list)  # by CPU set: its size, once for each rank
    for view in evidence.ranks.values():
        if view.info is not None and view.numa is not None and view.numa.cpu_set:
            amount = sum(share.amount for share in view.numa.cpu_nodes)
            cpus[view.info.host, view.numa.cpu_set].append(amount)
    fewest = min(cpus.values(), key=lambda each: each[0] / len(each), default=None)
    if not fewest:
        return ""
    ranks, known = text.plural(len(fewest), "rank"), text.plural(fewest[0], "CPU")
    return (
        f"{ranks} share {known}" if fewest[0] < len(fewest) else f"other threads use the {known} of {ranks}"
    )


def _container_limit(evidence: Evidence) -> str:
    """Return such as ``its container may use 1.5 of 8 CPUs``; empty if no rank's cgroup has a limit."""
    for view in evidence.ranks.values():
        if view.numa is not None and (limit_percent := view.numa.cpu_limit_percent) is not None:
            cpus = sum(share.amount for share in view.numa.cpu_nodes)
            if limit_percent < 100 * cpus:
                return f"its container may use {limit_percent / 100:g} of {text.plural(cpus, 'CPU')}"
    return ""
