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
    lasts: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for step in evidence.steps:
        for rank, detail in step.details.items():
            took: Counter[str] = Counter()
            for each in detail.collectives:
                if kind_of(each.op) == "alltoall" and each.bytes:
                    of_group[each.group][rank] += each.bytes
                    took[each.group] += each.end_ns - each.start_ns
            for group, ns in took.items():
                lasts[group, rank].append(ns)
    for group, moved in of_group.items():
        most = max(moved, key=lambda rank: moved[rank])
        skew = moved[most] / mean(moved.values())
        if len(moved) < 2 or skew < UNEVEN:
            continue
        last_ns = mean(lasts[group, most])
        yield Finding(
            title=f"rank {most} moves {skew:.2f} times the mean of its group's all-to-alls",
            measured=f"{text.byte_count(moved[most])} there, {text.byte_count(min(moved.values()))} on the "
            f"rank that moves least; group {text.printable(group)}; {text.duration(last_ns)} a step",
            advice="spread tokens over experts: an auxiliary loss or a bias of the router, a lower "
            "capacity factor, or other experts on this rank",
            certainty=Certainty.MEASURED,
            gain_ns=_gain_ns(evidence, most, last_ns * (1 - 1 / skew)),
            ranks=(most,),
        )


def _gain_ns(evidence: Evidence, rank: int, less_ns: float) -> int:
    exposed = [step.totals[rank].exposed_ns or 0 for step in evidence.steps if rank in step.totals]
    return round(min(less_ns, mean(exposed) if exposed else 0))
