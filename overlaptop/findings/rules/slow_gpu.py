"""One rank is late since it computes longer: a slow GPU, or more to do.

Raised where a rank is late clearly, and the compute that it has more of than the others explains what they
wait (see `late`), and its GPU does not stand idle longer instead.
"""

from __future__ import annotations

from collections.abc import Iterable

from overlaptop import text
from overlaptop.findings.evidence import Evidence
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.late import late_ranks


def look(evidence: Evidence) -> Iterable[Finding]:
    """One for each late rank that computes longer."""
    for late in late_ranks(evidence):
        longer_ns, stands_ns = late.computes_longer_ns, late.stands_longer_ns or 0
        if longer_ns is None or not late.explains(longer_ns) or stands_ns > longer_ns:
            continue
        longer = text.duration(longer_ns)
        yield Finding(
            title=f"rank {late.rank} computes {longer} a step longer than the others, and they wait for it",
            measured=late.in_words,
            advice=f"look at the clock, power, temperature and processes of rank {late.rank}'s GPU "
            "(nvidia-smi -q -d CLOCK,POWER,TEMPERATURE,PIDS); if it has more to do, divide it evenly",
            certainty=Certainty.LIKELY,
            gain_ns=min(late.wait_ns, longer_ns),
            ranks=(late.rank,),
        )
