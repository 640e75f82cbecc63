"""A late rank's training thread waits for a CPU that something else uses."""

from overlaptop import text
from overlaptop.findings.finding import Certainty, Evidence, Findings
from overlaptop.findings.late import Cause, suspects


def look(evidence: Evidence) -> Findings:
    for each in suspects(evidence, Cause.DELAYED):
        waits = f"waits {text.duration(each.longer_ns)} a step longer for a CPU than {each.whose}"
        numa = evidence.ranks[each.rank].numa
        cpus = f" (CPUs {numa.cpu_set})" if numa is not None and numa.cpu_set else ""
        yield each.finding(
            f"'s training thread {waits}",
            f"top shows what else runs on its CPUs{cpus}: end it, give ranks CPUs of their own "
            "(--numa-binding, taskset), or start fewer threads (OMP_NUM_THREADS, num_workers)",
            Certainty.MEASURED,
        )
