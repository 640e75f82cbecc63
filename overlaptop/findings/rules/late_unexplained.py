"""A rank is late, or a few are by turns, and nothing that was measured says why.

Raised where the first line names them, they cause most of the waiting in most of the newest steps, too,
and no cause explains half of what the others wait in 80 % of these (`late`): it is none of those that are
looked for, or the source does not see it. Not where ranks without a GPU wait longer for a CPU than for one
another, nor where the late one is the one that computes longest (uneven batches).
"""

from __future__ import annotations

from collections.abc import Iterable

from overlaptop import text
from overlaptop.findings.evidence import Evidence, JobStep
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.late import STEADY, LateRank, cpus_are_short, late_ranks
from overlaptop.findings.rules.uneven_batches import late_by_compute
from overlaptop.fleet.waits import LATE_SHARE, MOST


def look(evidence: Evidence) -> Iterable[Finding]:
    """One for the job, or none."""
    late = late_ranks(evidence)
    if not late or any(each.cause for each in late):
        return
    if cpus_are_short(evidence) or late_by_compute(evidence) is not None:
        return
    ranks = tuple(each.rank for each in late)
    newest = [_are_late(ranks, step) for step in evidence.steps if step.split is not None]
    # Half of the ranks are behind most of a step's waiting by chance quite often.
    if newest.count(True) < (LATE_SHARE if len(late) == 1 else STEADY) * len(newest):
        return
    are_late = "is late" if len(late) == 1 else "are late in turn"
    yield Finding(
        title=f"why {text.named_ranks(ranks)} {are_late} is not known",
        measured=_measured(evidence, late),
        advice="T shows the ranks' timelines side by side; overlaptop capture records every launch",
        certainty=Certainty.POSSIBLE,
        gain_ns=evidence.exposed_wait_ns,
        ranks=ranks,
    )


def _are_late(ranks: tuple[int, ...], step: JobStep) -> bool:
    """Whether these ranks together caused most of the step's waiting."""
    found = step.split.lateness if step.split is not None else None
    if found is None or not found.wait_ns:
        return False
    return sum(each.caused_wait_ns for each in found.ranks if each.rank in ranks) >= MOST * found.wait_ns


def _measured(evidence: Evidence, late: tuple[LateRank, ...]) -> str:
    seen = any(each.busy_ns is not None or each.stands_ns is not None for each in late)
    unseen = "how long ranks compute and stand still is not seen"
    if len(late) == 1:
        return f"{late[0].in_words}; {late[0].takes_in_words if seen else unseen}"
    assert evidence.window is not None
    return (
        f"they are late in {sum(each.late for each in late)} of {evidence.window.lateness.collectives} "
        f"collectives; the others wait {text.duration(evidence.exposed_wait_ns)} a step; "
        + ("none of them takes longer between collectives in nearly each step" if seen else unseen)
    )
