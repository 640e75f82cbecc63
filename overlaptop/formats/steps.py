"""Finds the steps of a trace: ProfilerStep annotations, and where they begin on the GPU's timeline.

A ProfilerStep#N annotation is an interval of the CPU, which runs ahead of the GPU: by more than two whole
steps in the traces used to develop this. torch.profiler projects annotations onto the GPU, but a projection
covers only the kernels launched by the annotated *thread* itself: all of forward and nothing of backward,
which autograd's own thread launches (59 µs of a step of 32 ms).

So a step begins where a marker would be if the CPU had put one on the compute stream when it entered the
annotation: after all work launched there before, or at once if no work was left. The agent in a live job
does the same. Communication that is still running at that time counts in both steps, each with its part.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from overlaptop.formats.activities import Activities, TraceClock
from overlaptop.formats.chrome import Event
from overlaptop.text import plural
from overlaptop.timeline.coherence import NOT_LAUNCHED_NS

STEP_NAME = re.compile(r"ProfilerStep#(\d{1,15})", re.ASCII)
STEPS_TOUCH_NS = 100_000
"""A step's annotation may begin this long before the previous one ends, at most a quarter of that step."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """A ProfilerStep#N interval on the script's thread, or on the GPU if the CPU's is missing."""

    number: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Step:
    """One step on the GPU's timeline, Unix time in ns."""

    number: int
    start_ns: int
    end_ns: int
    launch_lead_ns: int | None
    """From the CPU's end of the step to the GPU's end. None if the trace has no launches."""
    host_start_ns: int | None = None
    """When the CPU began the step, on the GPU's clock. None if the trace has no launches."""


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
    again = 0
    chosen: dict[int, Event] = {}
    for number, events in sorted(by_number.items()):
        on_cpu = [event for event in events if event.cat == "user_annotation"] or events
        again += len(on_cpu) - 1
        chosen[number] = max(on_cpu, key=lambda event: event.dur or 0)
    skews_ns = [skew_ns * (event.cat == "user_annotation") for event in chosen.values()]
    bounds_ns = (each - np.array(skews_ns, np.int64) for each in clock.bounds_ns([*chosen.values()]))
    found = list(map(Annotation, chosen, *(each.tolist() for each in bounds_ns)))
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
    return min(STEPS_TOUCH_NS, (step.end_ns - step.start_ns) // 4)


def find_steps(activities: Activities, annotations: tuple[Annotation, ...]) -> list[Step]:
    """Return the annotated steps in order, or one step over the whole trace if there are no annotations.

    A step ends where the next one begins, or where its own annotation ends if the next number is missing.
    Steps without length are left out, because nothing ran in them.
    """
    if not annotations:
        start_ns, end_ns = int(activities.start_ns[0]), int(activities.end_ns.max())
        return [Step(0, start_ns, end_ns, None)] if start_ns < end_ns else []
    on_stream = activities.queue == activities.busiest_first(activities.queue)[0]
    launched_ns = activities.launched_ns[on_stream]
    has_launches = bool((launched_ns != NOT_LAUNCHED_NS).any())
    # A stream runs in order, so an activity without a launch was launched no earlier than its predecessor.
    launched_ns = np.maximum.accumulate(launched_ns)
    done_ns = np.maximum.accumulate(activities.end_ns[on_stream])

    def reached_ns(put_ns: int) -> int:
        """Return when the stream would have reached a marker that the CPU put on it at `put_ns`. Without
        launches it reaches each at once.
        """
        before = int(np.searchsorted(launched_ns, put_ns, side="left")) if has_launches else 0
        return max(put_ns, int(done_ns[before - 1])) if before else put_ns

    steps = []
    for annotation, following in zip(annotations, [*annotations[1:], None], strict=True):
        left_ns = annotation.end_ns
        if following is not None and following.number == annotation.number + 1:
            left_ns = following.start_ns
        start_ns, end_ns = reached_ns(annotation.start_ns), reached_ns(left_ns)
        if start_ns < end_ns:
            lead_ns = end_ns - left_ns if has_launches else None
            host_start_ns = annotation.start_ns if has_launches else None
            steps.append(Step(annotation.number, start_ns, end_ns, lead_ns, host_start_ns))
    return steps
