"""A late rank's GPU copies longer, with neither compute nor communication beside the copies.

findings/late.py decides whether it is why a rank is late (`Cause.COPYING`).
"""

from collections.abc import Iterable

from overlaptop import text
from overlaptop.findings.evidence import Evidence
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.late import Cause, late_by
from overlaptop.findings.measures import copying_ns

ADVICE = (
    "copy from pinned memory (pin_memory=True) with non_blocking=True on a stream of its own; nvidia-smi "
    "-q shows whether its PCIe link is slower than the others'"
)


def look(evidence: Evidence) -> Iterable[Finding]:
    for late in late_by(evidence, Cause.COPYING):
        longer_ns = late.excess_ns(copying_ns)
        does = f" copies {text.duration(longer_ns)} a step longer than {late.versus}"
        yield late.finding(does, longer_ns, ADVICE, Certainty.LIKELY)
