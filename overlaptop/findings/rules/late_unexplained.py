"""A rank is late, or a few ranks are late in turn, and no measurement says why.

The cause is then none of `Cause` (findings/late.py), or one that the source does not see. Not raised while
lateness has just begun, since no cause is steady yet; nor if ranks without a GPU wait longer for a CPU than
for each other; nor if the late rank is the one that computes longest (uneven batches).
"""

from statistics import fmean

from overlaptop import text
from overlaptop.findings.finding import VAGUE_STEPS, Certainty, Evidence, Finding, Findings
from overlaptop.findings.gains import EXPLAINS
from overlaptop.findings.late import LateRank, caused_wait_ns, late_ranks, slow_host
from overlaptop.findings.measures import STEADY, busy_ns, cpus_are_short, excess_over, idling_ns
from overlaptop.findings.rules.uneven_batches import late_by_compute
from overlaptop.fleet.waits import LATE_SHARE, MOST


def look(evidence: Evidence) -> Findings:
    late = late_ranks(evidence)
    if not late or any(each.cause for each in late) or slow_host(evidence) is not None:
        return
    line = late[0].line if len(late) == 1 else None
    if line is None and len(evidence.steps) < VAGUE_STEPS and not evidence.is_trace:
        return
    if cpus_are_short(evidence) or late_by_compute(evidence) is not None:
        return
    ranks = tuple(each.rank for each in late)
    split = [step for step in evidence.steps if step.waits is not None]
    caused_ns = [caused_wait_ns(step, ranks) for step in split]
    waits_ns = [found.wait_ns if (found := each.waits and each.waits.lateness) else 0 for each in split]
    pairs = zip(caused_ns, waits_ns, strict=True)
    late_steps = sum(0 < MOST * all_ns <= own_ns for own_ns, all_ns in pairs)
    # Half of the ranks often cause most of a step's wait by chance.
    if late_steps < (LATE_SHARE if len(late) == 1 else STEADY) * len(split):
        return
    much_ns = EXPLAINS * fmean(caused_ns)
    much = [ns >= much_ns for ns in caused_ns]
    if all(much[len(much) // 2 :]) and much.count(True) < STEADY * len(much):
        return  # in all newer steps only: it has just begun, and no cause is steady yet
    if line is not None:
        own, others = map(text.whole_percent, (line.share, line.others_share))
        does = f" is at {line.line} for {own} of its step, {late[0].versus} for {others}"
        yield late[0].finding(does, f"look at {line.place}", Certainty.POSSIBLE)
        return
    more = "; overlaptop capture records every launch" if evidence.obeys_commands else ""
    verb = "is late" if len(late) == 1 else "are late in turn"
    yield Finding(
        title=f"why {evidence.name(ranks)} {verb} is not known",
        measured=_measured(evidence, late),
        advice=f"T shows the ranks' timelines side by side{more}",
        certainty=Certainty.POSSIBLE,
        gain_ns=max(each.gain_ns or 0 for each in late),
        ranks=ranks,
    )


def _measured(evidence: Evidence, late: tuple[LateRank, ...]) -> str:
    seen = any(
        excess_over(evidence, each.rank, each.others, measure)
        for each in late
        for measure in (busy_ns, idling_ns)
    )
    unseen = "ranks' compute and idle times are not seen"
    if len(late) == 1:
        return f"{late[0].measured}; {late[0].takes_text if seen else unseen}"
    assert evidence.window is not None
    return (
        f"they are late in {sum(each.lateness.late_count for each in late)} of "
        f"{evidence.window.lateness.collectives} collectives; the others wait {evidence.wait_text} a step; "
        + ("none of them takes longer between collectives in nearly every step" if seen else unseen)
    )
