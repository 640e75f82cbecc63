"""Ranks of one group issue different collectives, so that they reduce the wrong values.

Raised if the same ranks differ in the same way in all steps with timelines: a collective at a step's edge
may be counted in the next step. Sizes are compared if the operation needs equal sizes. Groups with sends
and receives are not compared: pipeline stages may have groups of the same name.
"""

from collections import Counter
from collections.abc import Iterable
from typing import TypeAlias

from overlaptop import text
from overlaptop.findings.finding import MIN_STEPS, Certainty, Evidence, Finding, Findings, JobStep
from overlaptop.timeline.collectives import is_point_to_point, kind_of

ALIKE = frozenset(("allreduce", "allgather", "reducescatter", "broadcast", "reduce"))
"""Operations that need the same size on all ranks."""
MOST_CALLS = 1024  # A timeline with this many calls may have been truncated

_Calls: TypeAlias = Counter[tuple[str, int | None]]  # Operations and sizes with their counts
_Odd: TypeAlias = tuple[str, tuple[int, ...], str]  # A group, the differing ranks, and the difference


def look(evidence: Evidence) -> Findings:
    steps = [step for step in evidence.steps if step.is_drawn]
    if len(steps) < MIN_STEPS:
        return
    always = frozenset.intersection(*(frozenset(_odd(step)) for step in steps))
    for group, ranks, what in sorted(always):
        yield Finding(
            title=f"{evidence.name(ranks)} and the others do not issue the same collectives in {group}",
            measured=f"in all of {len(steps)} steps: {what}",
            advice="look for a branch that only some ranks take (if rank == 0:, an unused parameter, "
            "batches of different length) around these collectives",
            certainty=Certainty.MEASURED,
            ranks=ranks,
        )


def _odd(step: JobStep) -> Iterable[_Odd]:
    issued: dict[str, dict[int, _Calls]] = {}
    for rank, detail in step.details.items():
        calls = detail.collectives
        if len(calls) >= MOST_CALLS or any(is_point_to_point(call.op) for call in calls):
            return
        for call in calls:
            if call.group:
                size = call.bytes if kind_of(call.op) in ALIKE else None
                issued.setdefault(call.group, {}).setdefault(rank, Counter())[call.op, size] += 1
    for group, by_rank in issued.items():
        kinds = Counter(frozenset(calls.items()) for calls in by_rank.values())
        usual = Counter(dict(kinds.most_common(1)[0][0]))
        by_difference: dict[str, list[int]] = {}
        for rank, own in by_rank.items():
            if own != usual:
                words = zip(("more", "fewer"), (own - usual, usual - own), strict=True)
                what = "; ".join(f"{word} {_named(which)}" for word, which in words if which)
                by_difference.setdefault(what, []).append(rank)
        for what, ranks in by_difference.items():
            yield group, tuple(sorted(ranks)), what


def _named(calls: _Calls) -> str:
    return ", ".join(
        f"{count} {op}" + ("" if size is None else f" of {text.byte_count(size)}")
        for (op, size), count in sorted(calls.items(), key=repr)
    )
