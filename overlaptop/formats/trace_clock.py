"""A trace's microseconds as Unix time in ns."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from overlaptop.formats.chrome import Event, Trace
from overlaptop.formats.files import TraceError
from overlaptop.timeline.coherence import FAR_NS

Times: TypeAlias = NDArray[np.int64]
"""Shape (n,), Unix time in ns."""

MAX_NS = 1 << 62
"""Upper bound of all times, required by overlaptop.timeline.spans."""
FAR_AWAY = "a time in it lies centuries away"


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
            ts, dur = event.ts, event.dur
            assert ts is not None
            assert dur is not None
            in_reach = abs(ts) < limit_us and dur < limit_us - abs(ts)
            return dur >= 0 and in_reach and first_us <= ts <= last_us

        return [event for event in events if is_possible(event)]

    def times_ns(self, events: Sequence[Event]) -> Times:
        return self._base_ns + _whole_ns(self._checked([event.ts for event in events], abs(self._base_ns)))

    def durations_ns(self, events: Sequence[Event]) -> Times:
        us = self._checked([event.dur for event in events])
        if us.size and us.min() < 0:
            event = events[int(us.argmin())]
            raise TraceError(
                self._path, f"an event ends before it starts: {(event.name or '')[:60]!r} at {event.ts} µs"
            )
        return _whole_ns(us)

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
