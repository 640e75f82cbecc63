"""Ranks of one group issue different collectives, so that they reduce the wrong values.

Raised if the same ranks differ in the same way in all steps with timelines: a collective at a step's edge
may be counted in the next step. Sizes are compared if the operation needs equal sizes. Groups with sends
and receives are not compared: pipeline stages may have groups of the same name.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from overlaptop import text
from overlaptop.findings.finding import MIN_STEPS, Certainty, Evidence, Finding, Findings, JobStep
from overlaptop.timeline.collectives import is_point_to_point, kind_of
from overlaptop.wire.messages import StepDetail

ALIKE = frozenset(("allreduce", "allgather", "reducescatter", "broadcast", "reduce"))
"""Operations that need the same size on all ranks."""
MOST_CALLS = 1024
"""A timeline with this many calls may have been truncated."""

_Odd: TypeAlias = tuple[str, tuple[int, ...], str]
"""A group, the differing ranks, and the difference."""


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
    issued: dict[str, dict[int, Counter[tuple[str, int | None]]]] = {}
    for rank, detail in step.details.items():
        if len(detail.collectives) >= MOST_CALLS or any(
            is_point_to_point(call.op) for call in detail.collectives
        ):
            return
        for group, calls in _by_group(detail).items():
            issued.setdefault(group, {})[rank] = calls
    for group, by_rank in issued.items():
        if len(by_rank) < 2:
            continue
        alike = Counter(frozenset(calls.items()) for calls in by_rank.values()).most_common(1)[0][0]
        usual = Counter(dict(alike))
        by_difference: dict[str, list[int]] = {}
        for rank, calls in by_rank.items():
            if calls != usual:
                by_difference.setdefault(_difference(calls, usual), []).append(rank)
        for what, ranks in by_difference.items():
            yield group, tuple(sorted(ranks)), what


def _by_group(detail: StepDetail) -> Mapping[str, Counter[tuple[str, int | None]]]:
    found: dict[str, Counter[tuple[str, int | None]]] = {}
    for call in detail.collectives:
        if call.group:
            size = call.bytes if kind_of(call.op) in ALIKE else None
            found.setdefault(call.group, Counter())[call.op, size] += 1
    return found


def _difference(calls: Counter[tuple[str, int | None]], usual: Counter[tuple[str, int | None]]) -> str:
    more, less = calls - usual, usual - calls
    return "; ".join(
        f"{word} {_named(which)}" for word, which in (("more", more), ("fewer", less)) if which
    )


def _named(calls: Counter[tuple[str, int | None]]) -> str:
    return ", ".join(
        f"{count} {op}" + ("" if size is None else f" of {text.byte_count(size)}")
        for (op, size), count in sorted(calls.items(), key=repr)
    )
