"""ProfilerStep annotations: each step once, whatever else a profiler wrote."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from overlaptop.formats.chrome import Event
from overlaptop.formats.trace_clock import TraceClock
from overlaptop.text import plural

STEP_NAME = re.compile(r"ProfilerStep#(\d{1,15})", re.ASCII)
MAX_STEP_MARKS = 20_000
STEPS_TOUCH_NS = 100_000
"""A step's annotation may begin this long before the previous one ends, at most a quarter of that step."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """A ProfilerStep#N interval on the script's thread, or on the GPU if the CPU's is missing."""

    number: int
    start_ns: int
    end_ns: int


def annotations_of(
    marks: Sequence[Event], clock: TraceClock, skew_ns: int = 0
) -> tuple[tuple[Annotation, ...], tuple[str, ...]]:
    """Return each step once, by number, from the CPU if possible, else from the GPU. Also return remarks on
    the annotations left out. CPU times are shifted by `skew_ns` to the GPU's clock.

    Of several annotations of one step, the longest counts. A step within another is part of it, but one
    around several steps is ignored. A step that overlaps the next one ends where that begins.
    """
    by_number: dict[int, list[Event]] = {}
    for event in marks:
        match = STEP_NAME.fullmatch(event.name or "")
        assert match is not None
        by_number.setdefault(int(match[1]), []).append(event)
    chosen: list[tuple[int, Event]] = []
    again = 0
    for number, events in sorted(by_number.items()):
        on_cpu = [event for event in events if event.cat == "user_annotation"] or events
        again += len(on_cpu) - 1
        chosen.append((number, max(on_cpu, key=lambda event: event.dur or 0)))
    events = [event for _, event in chosen]
    of_cpu = np.array([event.cat == "user_annotation" for event in events], dtype=np.bool_)
    starts_ns = clock.times_ns(events) - np.where(of_cpu, skew_ns, 0)
    ends_ns = starts_ns + clock.durations_ns(events)
    found = list(map(Annotation, [number for number, _ in chosen], starts_ns.tolist(), ends_ns.tolist()))
    found.sort(key=lambda each: (each.start_ns, -each.end_ns))
    narrow = [each for at, each in enumerate(found) if not _is_around(each, found[at + 1 : at + 3])]
    apart: list[Annotation] = []
    nested = cut = 0
    for each in narrow:
        if apart and each.end_ns <= apart[-1].end_ns:
            nested += 1
            continue
        if apart and each.start_ns < apart[-1].end_ns - _touching_ns(apart[-1]):
            apart[-1] = replace(apart[-1], end_ns=each.start_ns)
            cut += 1
        apart.append(each)
    left_out = (
        (again, "left out: of a step that is there twice"),
        (nested, "left out: within another step"),
        (len(found) - len(narrow), "left out: around several steps"),
        (cut, "cut: where the next step begins"),
    )
    remarks = (f"{plural(count, 'ProfilerStep annotation')} {what}" for count, what in left_out if count)
    return tuple(sorted(apart, key=lambda each: each.number)), tuple(remarks)


def _is_around(step: Annotation, following: Sequence[Annotation]) -> bool:
    """Whether the next two steps follow one after the other within this one, and so are steps."""
    if len(following) < 2:
        return False
    first, second = following
    return second.start_ns >= first.end_ns - _touching_ns(first) and second.end_ns <= step.end_ns


def _touching_ns(step: Annotation) -> int:
    """Return how long before this step's end the next one may begin."""
    return min(STEPS_TOUCH_NS, (step.end_ns - step.start_ns) // 4)
