"""Finds the step boundaries of a trace on the GPU's timeline.

A ProfilerStep#N annotation is an interval of the CPU, which runs ahead of the GPU: by more than two whole
steps in the traces used to develop this. torch.profiler projects annotations onto the GPU, but a projection
covers only the kernels launched by the annotated *thread* itself: all of forward and nothing of backward,
which autograd's own thread launches (59 µs of a step of 32 ms).

So a step begins where a marker would be if the CPU had put one on the compute stream when it entered the
annotation: after all work launched there before, or at once if no work was left. The agent in a live job
does the same. Communication that is still running at that time counts in both steps, each with its part.
"""

from dataclasses import dataclass

import numpy as np

from overlaptop.formats.kineto import LANES, Activities
from overlaptop.formats.step_marks import Annotation
from overlaptop.timeline.coherence import NOT_LAUNCHED_NS
from overlaptop.timeline.lanes import Lane


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


def find_steps(activities: Activities, annotations: tuple[Annotation, ...]) -> list[Step]:
    """Return the annotated steps in order, or one step over the whole trace if there are no annotations.

    A step ends where the next one begins, or where its own annotation ends if the next number is missing.
    Steps without length are left out, because nothing ran in them.
    """
    if not annotations:
        start_ns, end_ns = int(activities.start_ns[0]), int(activities.end_ns.max())
        return [Step(0, start_ns, end_ns, None)] if start_ns < end_ns else []
    markers = _Markers(activities)
    steps = []
    for annotation, following in zip(annotations, [*annotations[1:], None], strict=True):
        left_ns = annotation.end_ns
        if following is not None and following.number == annotation.number + 1:
            left_ns = following.start_ns
        start_ns, end_ns = markers.reached_ns(annotation.start_ns), markers.reached_ns(left_ns)
        if start_ns < end_ns:
            lead_ns = end_ns - left_ns if markers.exact else None
            host_start_ns = annotation.start_ns if markers.exact else None
            steps.append(Step(annotation.number, start_ns, end_ns, lead_ns, host_start_ns))
    return steps


class _Markers:
    """Finds when the compute stream would have reached a marker put on it at a given time."""

    def __init__(self, activities: Activities) -> None:
        on_stream = activities.queue == compute_queue(activities)
        launched_ns = activities.launched_ns[on_stream]
        known = launched_ns != NOT_LAUNCHED_NS
        self.exact = bool(known.any())
        """False if the trace has no launches: markers then count as reached at once."""
        # A stream runs in order, so an activity without a launch was launched no earlier than its
        # predecessor.
        self._launched_ns = np.maximum.accumulate(launched_ns)
        self._end_ns = np.maximum.accumulate(activities.end_ns[on_stream])

    def reached_ns(self, put_ns: int) -> int:
        """Return when the stream would have reached a marker that the CPU put on it at `put_ns`."""
        before = int(np.searchsorted(self._launched_ns, put_ns, side="left")) if self.exact else 0
        return max(put_ns, int(self._end_ns[before - 1])) if before else put_ns


def compute_queue(activities: Activities) -> int:
    """Return the stream that computes most."""
    duration_ns = activities.end_ns - activities.start_ns
    computing = np.where(activities.lane == LANES.index(Lane.COMPUTE), duration_ns, 0)
    return int(np.bincount(activities.queue, weights=computing).argmax())
