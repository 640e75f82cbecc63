"""A late rank has fewer CPUs than the others, or runs on another NUMA node than its GPU."""

from overlaptop.findings.finding import Certainty, Evidence, Findings
from overlaptop.findings.late import Cause, late_ranks, misplacement


def look(evidence: Evidence) -> Findings:
    for late in late_ranks(evidence):
        numa = evidence.ranks[late.rank].numa
        if late.cause is Cause.PLACEMENT and numa is not None:
            yield late.finding(
                misplacement(evidence, late.rank, late.others),
                numa.advice
                or f"give it more CPUs than {numa.cpu_set}: taskset, the job's cgroup, or --cpus-per-task "
                "of the scheduler",
                Certainty.LIKELY,
                late.takes_text,
            )
