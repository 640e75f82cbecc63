"""A late rank's training thread waits for a CPU that something else uses."""

from collections.abc import Iterable

from overlaptop import text
from overlaptop.findings.counters import slow_by
from overlaptop.findings.evidence import Evidence
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.late import Cause, late_by
from overlaptop.findings.measures import delayed_ns


def look(evidence: Evidence) -> Iterable[Finding]:
    for late in late_by(evidence, Cause.DELAYED):
        delays_ns = late.excess_ns(delayed_ns)
        does, advice = _does(delays_ns, late.whose), _advice(evidence, late.rank)
        yield late.finding(does, delays_ns, advice, Certainty.MEASURED)
    if (slow := slow_by(evidence, Cause.DELAYED)) is not None:
        yield slow.finding(_does(slow.longer_ns, slow.whose), _advice(evidence, slow.rank))


def _does(delays_ns: int | None, whose: str) -> str:
    return f"'s training thread waits {text.duration(delays_ns)} a step longer for a CPU than {whose}"


def _advice(evidence: Evidence, rank: int) -> str:
    numa = evidence.ranks[rank].numa
    cpus = f" (CPUs {numa.cpu_set})" if numa is not None and numa.cpu_set else ""
    return (
        f"top shows what else runs on its CPUs{cpus}: end it, give ranks CPUs of their own "
        "(--numa-binding, taskset), or start fewer threads (OMP_NUM_THREADS, num_workers)"
    )
