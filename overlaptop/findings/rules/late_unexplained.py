"""A rank is late, and nothing that was measured says why.

Raised where a rank is late clearly, also in most of the newest steps, and no cause explains half of what
the others wait in 80 % of these (`late`): it is none of those that are looked for, or the source does not
see it. Not where ranks without a GPU wait longer for a CPU than for one another.
"""

from __future__ import annotations

from collections.abc import Iterable

from overlaptop.findings.evidence import Evidence
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.late import cpus_are_short, late_ranks
from overlaptop.findings.rules.uneven_batches import late_by_compute_ns
from overlaptop.fleet.waits import LATE_SHARE


def look(evidence: Evidence) -> Iterable[Finding]:
    """One for each such rank."""
    if cpus_are_short(evidence) or late_by_compute_ns(evidence) is not None:
        return
    newest = [step.split.late_rank for step in evidence.steps if step.split is not None]
    for late in late_ranks(evidence):
        is_over = newest.count(late.rank) < LATE_SHARE * len(newest)
        if is_over or late.cause is not None:
            continue
        seen = late.busy_ns is not None or late.stands_ns is not None
        yield Finding(
            title=f"why rank {late.rank} is late is not known",
            measured=f"{late.in_words}; "
            + (late.takes_in_words if seen else "how long ranks compute and stand still is not seen"),
            advice="T shows its timeline beside the others'; overlaptop capture records every launch",
            certainty=Certainty.POSSIBLE,
            gain_ns=late.wait_ns,
            ranks=(late.rank,),
        )
