"""A rank trails and the others wait for it, but the step would be no shorter if it did not.

Raised where a rank is late clearly and another rank's host or GPU needs the whole step anyway (`gains`).
No other finding then blames the late rank.
"""

from __future__ import annotations

from collections.abc import Iterable

from overlaptop import text
from overlaptop.findings.evidence import Evidence
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.late import trailing


def look(evidence: Evidence) -> Iterable[Finding]:
    """One for each such rank."""
    for late in trailing(evidence):
        longest = max(late.others, key=lambda rank: late.own[rank].longest_ns)
        own = late.own[longest]
        needs = f"{text.duration(own.longest_ns)} a step on"
        bound = (
            f"the CPU needs {needs} all ranks"
            if own.host_ns > own.gpu_ns
            else f"rank {longest} needs {needs} its own"
        )
        yield Finding(
            title=f"rank {late.rank} trails by {evidence.wait_in_words}, which costs nothing: {bound}",
            measured=f"{late.in_words}; what training threads do is alike",
            advice="nothing to mend on this rank: make the step shorter on all of them",
            certainty=Certainty.LIKELY,
            gain_ns=0,
            ranks=(late.rank,),
        )
