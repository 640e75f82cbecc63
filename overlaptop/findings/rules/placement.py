"""A late rank may run on fewer CPUs than the others, or on another NUMA node than its GPU.

Raised where a rank is late clearly, what it does longer explains it (`late`), and its CPUs are none of its
GPU's node, or half as many as the others' median or fewer.
"""

from __future__ import annotations

from collections.abc import Iterable

from overlaptop import text
from overlaptop.findings.evidence import Evidence
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.late import Cause, late_ranks, misplacement


def look(evidence: Evidence) -> Iterable[Finding]:
    """One for each such rank."""
    for late in late_ranks(evidence):
        numa = evidence.ranks[late.rank].numa
        if late.cause is not Cause.PLACEMENT or numa is None:
            continue
        longer_ns = max(late.busy_ns or 0, late.stands_ns or 0)
        yield Finding(
            title=misplacement(evidence, late.rank, late.others),
            measured=f"{late.in_words}; between collectives it takes {text.duration(longer_ns)} a step "
            f"longer than {late.than}",
            advice=numa.advice
            or f"give it more CPUs than {numa.cpu_set}: taskset, the job's cgroup, or --cpus-per-task of "
            "the scheduler",
            certainty=Certainty.LIKELY,
            gain_ns=late.gain_ns(longer_ns),
            ranks=(late.rank,),
            why_late=True,
        )
