"""Activities: what ran, as arrays, and the clock of their trace."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from overlaptop.formats.chrome import Args, Event, Trace
from overlaptop.formats.files import TraceError
from overlaptop.timeline.coherence import FAR_NS
from overlaptop.timeline.lanes import Lane
from overlaptop.timeline.spans import Spans, from_bounds

Times: TypeAlias = NDArray[np.int64]  # Shape (n,), Unix time in ns

LANES = tuple(Lane)  # `Activities.lane` holds indices into this
MAX_NS = 1 << 62  # Upper bound of all times, required by overlaptop.timeline.spans
FAR_AWAY = "a time in it lies centuries away"


@dataclass(frozen=True, slots=True)
class Activities:
    """n activities of a GPU, or of a job on CPUs, sorted by start."""

    start_ns: Times
    end_ns: Times
    launched_ns: Times
    """When the CPU launched each, on the GPU's clock. NOT_LAUNCHED_NS if the launch is not in the trace."""
    lane: NDArray[np.int8]
    is_kernel: NDArray[np.bool_]
    queue: NDArray[np.int64]  # A number for each stream of each device, or for each thread
    device: NDArray[np.int64]  # A number for each GPU; 0 for CPUs
    names: list[str]
    args: list[Args]

    def chosen(self, keep: NDArray[np.bool_]) -> "Activities":
        """Return the activities selected by a mask of shape (n,)."""
        at = np.flatnonzero(keep).tolist()
        return Activities(
            self.start_ns[keep],
            self.end_ns[keep],
            self.launched_ns[keep],
            self.lane[keep],
            self.is_kernel[keep],
            self.queue[keep],
            self.device[keep],
            [self.names[each] for each in at],
            [self.args[each] for each in at],
        )

    def spans(self, lane: Lane) -> Spans:
        of_lane = self.lane == LANES.index(lane)
        return from_bounds(self.start_ns[of_lane], self.end_ns[of_lane])

    def busiest_first(self, numbers: NDArray[np.int64]) -> list[int]:
        """Return the different `numbers`, shape (n,), by the compute of the activities that have them."""
        computing = self.lane == LANES.index(Lane.COMPUTE)
        busy_ns = np.bincount(numbers, weights=np.where(computing, self.end_ns - self.start_ns, 0))
        present = np.unique(numbers)
        return [int(present[at]) for at in np.argsort(-busy_ns[present], kind="stable")]


class TraceClock:
    """Converts microseconds to Unix ns without loss. torch 2.4 and later count from a base time near the
    trace; as Unix time, a float64 would be exact only to a quarter of a microsecond.
    """

    def __init__(self, path: Path, trace: Trace) -> None:
        self._path = path
        self._base_ns = trace.base_ns or 0
        if abs(self._base_ns) >= MAX_NS:
            raise TraceError(path, FAR_AWAY)

    def possible(self, events: Sequence[Event], near_ns: tuple[int, int] | None = None) -> Sequence[Event]:
        """Return the events that do not end before they begin, lie in this century, and within an hour of
        ``near_ns``.
        """
        limit_us = (MAX_NS - abs(self._base_ns)) / 1e3
        first_us, last_us = -limit_us, limit_us
        if near_ns is not None:
            first_us = (near_ns[0] - FAR_NS - self._base_ns) / 1e3
            last_us = (near_ns[1] + FAR_NS - self._base_ns) / 1e3

        def is_possible(event: Event) -> bool:
            ts, dur = event.ts or 0, event.dur or 0
            return abs(ts) < limit_us and 0 <= dur < limit_us - abs(ts) and first_us <= ts <= last_us

        return [event for event in events if is_possible(event)]

    def bounds_ns(self, events: Sequence[Event]) -> tuple[Times, Times]:
        """Return when the events start and end. Raises TraceError if a time is impossible."""
        start_ns = self._base_ns + _whole_ns(
            self._checked([event.ts for event in events], abs(self._base_ns))
        )
        us = self._checked([event.dur for event in events])
        if us.size and us.min() < 0:
            event = events[int(us.argmin())]
            raise TraceError(
                self._path, f"an event ends before it starts: {(event.name or '')[:60]!r} at {event.ts} µs"
            )
        return start_ns, start_ns + _whole_ns(us)

    def _checked(self, values_us: list[int | float | None], base_ns: int = 0) -> NDArray[np.float64]:
        try:
            us = np.array(values_us, dtype=np.float64)
        except OverflowError:
            us = np.full(1, np.inf)
        if us.size and not np.abs(us).max() < (MAX_NS - base_ns) / 1e3:
            raise TraceError(self._path, FAR_AWAY)
        return us


def _whole_ns(us: NDArray[np.float64]) -> Times:
    # us * 1000 would round twice. The whole part is exact, and so is the remainder.
    whole = np.floor(us)
    decimals_ns = np.rint((us - whole) * 1000).astype(np.int64)
    return whole.astype(np.int64) * 1000 + decimals_ns
