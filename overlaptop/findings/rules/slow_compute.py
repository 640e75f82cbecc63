"""One rank is late, launches in time and computes longer: its GPU is slow, or it has more to do.

Raised where a rank is late clearly and `late` finds that it computes longer by about the same in each step.
"""

from __future__ import annotations

from collections.abc import Iterable

from overlaptop import text
from overlaptop.findings.evidence import Evidence
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.late import Cause, late_by, on_host

ON_GPU = (
    "nvidia-smi -q -d CLOCK,POWER,TEMPERATURE,PIDS shows whether its GPU is slower or shared; if it has "
    "more to do, divide the work evenly"
)
ON_CPU = "top shows whether its CPU is slower or shared; if it has more to do, divide the work evenly"


def look(evidence: Evidence) -> Iterable[Finding]:
    """One for each such rank."""
    for late in late_by(evidence, Cause.COMPUTING):
        yield late.finding(
            f" computes {text.duration(late.computes_ns)} a step longer than {late.than}",
            late.computes_ns,
            ON_CPU if on_host(evidence.ranks[late.rank].info) else ON_GPU,
            Certainty.LIKELY,
        )
