"""A burst: a few whole steps that are traced, one after the other; and when to trace the next ones."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Collection
from time import sleep

from overlaptop.agent.clock import now_ns
from overlaptop.agent.sources.base import Edge
from overlaptop.agent.sources.kernel_steps import StreamMark
from overlaptop.agent.sources.marker import Marker

BURST_S = 0.2
"""A burst is of as many steps as take about so long,"""
MAX_STEPS = 64
MAX_KERNELS = 40_000
"""and of no more kernels than so many, once it is known how many a step has."""

IDLE_PERIOD_S, IDLE_SHARE, IDLE_COST = 4.0, 0.05, 0.001
"""Without a dashboard: from the start of one burst to the next at least, of all time at most, and what it
may lengthen steps by, averaged over all of them."""
WATCHED_PERIOD_S, WATCHED_SHARE, WATCHED_COST = 1.0, 0.34, 0.005
"""When a dashboard shows this rank's timeline."""

FIRST_SLOWDOWN = 0.03
"""How much longer traced steps are taken to be, until it has been seen. Nothing where the GPU is busy;
where the CPU launches as fast as it can, tracing slows each launch."""
LONGEST_PERIOD_S = 90.0
"""No slowdown makes the agent wait longer than so: it may have been something else."""
WEIGHT = 0.3
"""Of the newest burst, against all before it."""
REMEMBERED_STEPS = 64
NEVER_S = -math.inf


class Burst:
    """Marks the bounds of `steps` steps and the edges in them, as the training thread passes there."""

    def __init__(self, marker: Marker, steps: int, begins_at: int = 1) -> None:
        """`begins_at`: the number of the first one divides by it."""
        self.steps = steps
        self.marks: list[StreamMark] = []
        self.finished = threading.Event()
        """All its steps have been issued, or it is broken."""
        self.broken = False
        self._marker = marker
        # What ran when tracing began was launched before and is not seen. A whole step later it is over,
        # except for collectives that nobody waits for before the next step; so one step is let pass.
        self._to_skip = 1
        self._begins_at = begins_at
        self._begun = 0

    def boundary(self, step: int) -> None:
        """`step` begins here."""
        if self.finished.is_set():
            return
        if self._to_skip:
            self._to_skip -= 1
            return
        if not self._begun and step % self._begins_at:
            return
        self._set(step, None)
        self._begun += 1
        if self._begun > self.steps:
            self.finished.set()

    def edge(self, edge: Edge) -> None:
        """A phase begins or ends here."""
        if self._begun and not self.finished.is_set():
            self._set(self.marks[-1].step, edge)

    def end(self) -> None:
        """Break it off: what has been marked is not to be read."""
        self.broken = True
        self.finished.set()

    def _set(self, step: int, edge: Edge | None) -> None:
        mark = self._marker.mark(step, edge)
        if mark is None:
            self.end()
        else:
            self.marks.append(mark)


class Schedule:
    """When the next burst is due, and of how many steps.

    With ``every`` steps asked for, each n-th step is traced, in bursts. Else as often as keeps to the
    limits above, by what tracing has cost this job so far.
    """

    def __init__(self, every: int | None) -> None:
        self._every = every
        self._began_s = NEVER_S
        self._took_s = 0.0
        self._slowdown = FIRST_SLOWDOWN
        self._untraced_ns: deque[int] = deque(maxlen=REMEMBERED_STEPS)
        self._traced_ns: list[int] = []
        self.steps = 1
        """Of the next burst."""

    @property
    def begins_at(self) -> int:
        """The number of a burst's first step divides by this: ranks whose clocks, or whose CPUs' leads,
        are a little apart begin with the same one all the same.
        """
        return self.steps if self._every is None else 1

    def due(self, *, watched: bool) -> bool:
        """Whether it is time for the next one."""
        return _now_s() >= self._due_at_s(watched)

    def wait(self, longest_s: float, *, watched: bool) -> None:
        """Wait until it is, if that is not longer: to begin in time, and so when the other ranks do."""
        wait_s = self._due_at_s(watched) - _now_s()
        if 0 < wait_s <= longest_s:
            sleep(wait_s)

    def _due_at_s(self, watched: bool) -> float:
        period_s = self.period_s(watched=watched)
        if self._every is not None or self._began_s == NEVER_S:
            return self._began_s + period_s
        return next_on_grid(self._began_s, period_s)

    def period_s(self, *, watched: bool) -> float:
        """From the beginning of one burst to that of the next, at least."""
        if self._every is not None:
            return self._took_s * self._every
        period_s, share, cost = (
            (WATCHED_PERIOD_S, WATCHED_SHARE, WATCHED_COST)
            if watched
            else (IDLE_PERIOD_S, IDLE_SHARE, IDLE_COST)
        )
        careful_s = min(self._took_s * self._slowdown / cost, LONGEST_PERIOD_S)
        return max(period_s, self._took_s / share, careful_s)

    @property
    def began_s(self) -> float:
        """When the last one began, Unix time."""
        return self._began_s

    def begin(self) -> None:
        """A burst begins now."""
        self._began_s = _now_s()

    def traced(self) -> None:
        """Its tracing has ended."""
        self._took_s = _now_s() - self._began_s

    def note(self, step_ns: int, *, traced: bool) -> None:
        """A step took the host so long. All steps are to be noted, in order."""
        if traced:
            self._traced_ns.append(step_ns)
            return
        if self._traced_ns and self._untraced_ns:
            seen = _median(self._traced_ns) / max(1.0, _median(self._untraced_ns)) - 1
            self._slowdown += WEIGHT * (min(max(seen, 0.0), 1.0) - self._slowdown)
        self._traced_ns.clear()
        self._untraced_ns.append(step_ns)

    def shorten(self) -> None:
        """The last burst was more than can be kept."""
        self.steps = max(1, self.steps // 2)

    def learn(self, step_ns: float, kernels_per_step: float) -> None:
        """Size the next burst by how long the steps of this one took and what they held."""
        by_time = BURST_S * 1e9 / max(step_ns, 1.0)
        by_kernels = MAX_KERNELS / max(kernels_per_step, 1.0)
        most = max(1, min(MAX_STEPS, round(by_time), int(by_kernels)))
        self.steps = 1 << (most.bit_length() - 1)  # a power of two: on all ranks the same, or nearly so


def next_on_grid(began_s: float, period_s: float) -> float:
    """The time of the next burst, about `period_s` after the last or later: a multiple of a power of two
    seconds.

    So all ranks trace the same steps, although each has its own period: their steps can be compared, and a
    traced rank, which is slower, does not make untraced ones wait.
    """
    grid_s = 2.0 ** math.ceil(math.log2(period_s))
    return math.ceil((began_s + grid_s / 2) / grid_s) * grid_s


def _now_s() -> float:
    """Unix time, which all ranks share."""
    return now_ns() / 1e9


def _median(values: Collection[int]) -> float:
    """Not statistics': with it come modules that the script may have files of the same name for."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return (ordered[middle] + ordered[~middle]) / 2
