"""All-to-alls move far more on one rank than on the others: experts are loaded unevenly.

Bytes are the larger of a rank's input and output.
"""

from collections import Counter, defaultdict
from statistics import mean

from overlaptop import text
from overlaptop.findings.finding import Certainty, Evidence, Finding, Findings
from overlaptop.timeline.collectives import kind_of

UNEVEN = 1.3
"""Smallest ratio. Routers with an auxiliary loss stay below it (capacity factors of 1.25 are usual)."""


def look(evidence: Evidence) -> Findings:
    of_group: defaultdict[str, Counter[int]] = defaultdict(Counter)
    lasts: defaultdict[tuple[str, int], Counter[int]] = defaultdict(Counter)
    for step in evidence.steps:
        for rank, detail in step.details.items():
            for each in detail.collectives:
                if kind_of(each.op) == "alltoall" and each.bytes:
                    of_group[each.group][rank] += each.bytes
                    lasts[each.group, rank][step.number] += each.end_ns - each.start_ns
    for group, moved in of_group.items():
        most = max(moved, key=lambda rank: moved[rank])
        skew = moved[most] / mean(moved.values())
        if len(moved) < 2 or skew < UNEVEN:
            continue
        last_ns = mean(lasts[group, most].values())
        exposed = [step.totals[most].exposed_ns or 0 for step in evidence.steps if most in step.totals]
        yield Finding(
            title=f"rank {most} moves {skew:.2f} times the mean of its group's all-to-alls",
            measured=f"{text.byte_count(moved[most])} there, {text.byte_count(min(moved.values()))} on the "
            f"rank that moves least; group {text.printable(group)}; {text.duration(last_ns)} a step",
            advice="spread tokens over experts: an auxiliary loss or a bias of the router, a lower "
            "capacity factor, or other experts on this rank",
            certainty=Certainty.MEASURED,
            gain_ns=round(min(last_ns * (1 - 1 / skew), mean(exposed) if exposed else 0)),
            ranks=(most,),
        )
