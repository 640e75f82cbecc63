"""Python's garbage collector stops a rank, and the others wait.

Collections of the younger generations take microseconds and are not counted.
"""

from operator import attrgetter
from statistics import fmean, median

from overlaptop import text
from overlaptop.findings.finding import Certainty, Evidence, Finding, Findings
from overlaptop.findings.late import Cause, LateRank, late_ranks, suspects
from overlaptop.findings.measures import excess_over, full_collections
from overlaptop.fleet.waits import COSTLY_SHARE
from overlaptop.wire.messages import StepTotals

_COLLECTIONS = attrgetter("full_collections")  # quick: most jobs have none, and a thousand histories
FEWEST = 2  # Fewest steps with a full collection of a rank: one may be long for another reason
ADVICE = (
    "call gc.disable(), and gc.collect() on all ranks in the same step, every few hundred steps; "
    "gc.freeze() after the first steps leaves out what stays"
)


def look(evidence: Evidence) -> Findings:
    found = suspects(evidence, Cause.COLLECTING)
    for each in found:
        does, more = "computes", ""
        if isinstance(each, LateRank):
            does = "takes"
            collections = fmean(excess_over(evidence, each.rank, each.others, full_collections))
            more = f"it makes {collections:.1f} full collections a step more; {each.takes_text}"
        does = f" collects garbage and {does} {each.longer} than {each.versus}"
        yield each.finding(does, ADVICE, Certainty.LIKELY, more)
    if found or late_ranks(evidence) or evidence.window is None:
        return
    costs_ns = {
        rank: cost_ns
        for rank, view in evidence.ranks.items()
        if any(map(_COLLECTIONS, view.history))
        and (cost_ns := _cost_ns([step for step in view.history if step.step >= evidence.first]))
    }
    together_ns = round(sum(costs_ns.values()))
    if together_ns >= COSTLY_SHARE * evidence.step_ns:
        yield Finding(
            title=f"garbage collections stop ranks for {text.duration(together_ns)} a step, in the mean",
            measured=f"steps of {text.named_ranks(sorted(costs_ns))} with a full collection are so much "
            "longer than those without",
            advice=ADVICE,
            certainty=Certainty.LIKELY,
            gain_ns=min(together_ns, evidence.most_wait_ns),
            ranks=tuple(sorted(costs_ns)),
        )


def _cost_ns(steps: list[StepTotals]) -> float:
    """Return the mean cost per step of full collections; 0 if not clear."""
    own_ns: dict[bool, list[int]] = {True: [], False: []}
    for step in steps:
        if step.full_collections is not None and step.exposed_ns is not None and not step.disturbed:
            own_ns[step.full_collections > 0].append(step.step_ns - step.exposed_ns)
    with_ns, without_ns = own_ns[True], own_ns[False]
    if len(with_ns) < FEWEST or len(without_ns) < len(with_ns):
        return 0.0
    longer_ns = median(with_ns) - median(without_ns)
    return max(0.0, longer_ns) * len(with_ns) / (len(with_ns) + len(without_ns))
