"""A late rank's GPU copies longer, with neither compute nor communication beside the copies.

findings/late.py decides whether it is why a rank is late (`Cause.COPYING`).
"""

from overlaptop.findings.finding import Certainty, Evidence, Findings
from overlaptop.findings.late import Cause, suspects

ADVICE = (
    "copy from pinned memory (pin_memory=True) with non_blocking=True on a stream of its own; nvidia-smi "
    "-q shows whether its PCIe link is slower than the others'"
)


def look(evidence: Evidence) -> Findings:
    for late in suspects(evidence, Cause.COPYING):
        yield late.finding(f" copies {late.longer} than {late.versus}", ADVICE, Certainty.LIKELY)
