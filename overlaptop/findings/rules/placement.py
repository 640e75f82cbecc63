"""A late rank has fewer CPUs than the others, or runs on another NUMA node than its GPU."""

from collections.abc import Iterable

from overlaptop.findings.evidence import Evidence
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.late import Cause, late_by, misplacement


def look(evidence: Evidence) -> Iterable[Finding]:
    for late in late_by(evidence, Cause.PLACEMENT):
        numa = evidence.ranks[late.rank].numa
        assert numa is not None
        yield late.finding(
            misplacement(evidence, late.rank, late.others),
            late.takes_ns,
            numa.advice
            or f"give it more CPUs than {numa.cpu_set}: taskset, the job's cgroup, or --cpus-per-task of "
            "the scheduler",
            Certainty.LIKELY,
            late.takes_text,
        )
