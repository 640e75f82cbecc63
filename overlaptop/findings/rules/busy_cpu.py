"""A late rank's training thread is ready to run and waits for a CPU: something else runs there.

Raised where a rank is late clearly, and by the kernel's count its training thread waits longer for a CPU
than the others' (`late`), on no fewer CPUs than they have.
"""

from __future__ import annotations

from collections.abc import Iterable

from overlaptop import text
from overlaptop.findings.evidence import Evidence
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.late import Cause, late_by


def look(evidence: Evidence) -> Iterable[Finding]:
    """One for each such rank."""
    for late in late_by(evidence, Cause.DELAYED):
        numa = evidence.ranks[late.rank].numa
        cpus = f" (CPUs {numa.cpu_set})" if numa is not None and numa.cpu_set else ""
        yield late.finding(
            f"'s training thread waits {text.duration(late.delays_ns)} a step longer for a CPU than "
            f"{late.whose}",
            late.delays_ns,
            f"top shows what else runs on its CPUs{cpus}: end it, give ranks CPUs of their own "
            "(--numa-binding, taskset), or start fewer threads (OMP_NUM_THREADS, num_workers)",
            Certainty.MEASURED,
        )
