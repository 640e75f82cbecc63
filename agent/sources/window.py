"""A window: consecutive steps that are traced, each read once its records are complete.

Marks bound its steps and phases: memsets of a few bytes, recorded with the value that they write.
"""

import ctypes
import threading
from collections import Counter, deque
from collections.abc import Callable
from time import time_ns

import numpy as np
import torch

from overlaptop.agent.clock import now_ns
from overlaptop.agent.sources.base import Edge
from overlaptop.agent.sources.cupti import layouts
from overlaptop.agent.sources.cupti.layouts import Activities
from overlaptop.agent.sources.kernel_names import KernelNames
from overlaptop.agent.sources.kernel_steps import (
    MARK_WORDS,
    StreamMark,
    TracedStep,
    find_marks,
    launched_after,
    read_steps,
)
from overlaptop.timeline.lanes import LaneRules

LEAD_STEPS = 1
"""Steps traced before the first measured one. Work launched before tracing began is not seen. A step later
it is over, except for collectives that nobody waits for before the next step."""
_TAG = 0xA7 << 24  # Upper byte of each mark's value; the lower three bytes count
_COUNT_MASK = (1 << 24) - 1
MAX_PENDING = 1_000_000  # Records of steps that have not ended, 56 bytes each


class Marker:
    """Sets marks on the current stream of one device; a mark costs the host 4 us and the device 2 us."""

    def __init__(self, device: int) -> None:
        """Raises OSError if there is no CUDA driver."""
        self._device = device
        self._memory = torch.zeros(MARK_WORDS, dtype=torch.int32, device=f"cuda:{device}")
        self._address = ctypes.c_uint64(self._memory.data_ptr())
        self._words = ctypes.c_size_t(MARK_WORDS)
        # Releases the GIL: a launch blocks while the device's queue is full.
        self._memset = ctypes.CDLL("libcuda.so.1").cuMemsetD32Async
        self._count = 0

    def mark(self, step: int, edge: Edge | None) -> StreamMark | None:
        """Set a mark; None if CUDA refuses: the job will soon get the same error."""
        if torch._C._cuda_getDevice() != self._device:  # noqa: SLF001 - 0.1 us instead of 4
            with torch.cuda.device(self._device):
                return self.mark(step, edge)
        self._count = (self._count + 1) & _COUNT_MASK
        value = _TAG | self._count
        stream = torch._C._cuda_getCurrentRawStream(self._device)  # noqa: SLF001
        mark = StreamMark(value, step, edge, now_ns(), time_ns())
        status = self._memset(self._address, ctypes.c_uint(value), self._words, ctypes.c_void_p(stream))
        return mark if status == 0 else None

    def event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def touch(self) -> None:
        with torch.no_grad(), torch.utils._python_dispatch._disable_current_modes():  # noqa: SLF001
            self._memory.add_(1)


class Window:
    """Marks the bounds and edges of steps as the training thread passes them."""

    def __init__(self, marker: Marker, measures: Callable[[int], bool]) -> None:
        """Begin at the boundary before the first step that may be measured, as tracing is switched on.

        `measures(step)`: whether to measure a step.
        """
        self.pending: deque[int] = deque()  # Measured steps begun and not read
        self.finished = threading.Event()
        """Set when no current or near step is to be measured, or the window is broken."""
        self.broken = False
        self._marker = marker
        self._measures = measures
        self._marks: deque[StreamMark] = deque()
        self._open = False
        self._activities: Activities | None = None
        self.contradictions: Counter[str] = Counter()
        """Activities that contradict others, by kind. Those at a step's bounds may count twice."""

    # On the job's threads.

    def boundary(self, step: int) -> None:
        if self.finished.is_set():
            return
        wanted = self._measures(step)
        if wanted:
            self.pending.append(step)
        if wanted or self._open:
            self._set(step, None)
        self._open = wanted
        if not wanted and not any(self._measures(step + ahead) for ahead in range(1, LEAD_STEPS + 2)):
            self.finished.set()

    def edge(self, edge: Edge) -> None:
        if self._open and not self.finished.is_set():
            self._set(self._marks[-1].step, edge)

    def _set(self, step: int, edge: Edge | None) -> None:
        mark = self._marker.mark(step, edge)
        if mark is None:
            self.end()
        else:
            self._marks.append(mark)

    # On the agent's thread.

    def end(self) -> None:
        """Break the window off: unread steps are never read."""
        self.broken = True
        self.finished.set()

    def read(
        self, activities: Activities, until_ns: int, names: KernelNames, rules: LaneRules, offset_ns: int
    ) -> list[TracedStep]:
        """Add the records that CUPTI has returned since the last call, and read the steps that ended before
        `until_ns` on the agent's clock. All activities that began on the GPU before are there.

        `offset_ns`: the agent's clock minus CUPTI's.
        """
        if self._activities is not None:
            activities = np.concatenate([self._activities, activities])
        self._activities = activities
        marks = list(self._marks)
        _, rows = find_marks(activities, marks)
        ends = [
            (at, row)
            for at, (mark, row) in enumerate(zip(marks, rows.tolist(), strict=True))
            if mark.edge is None and row >= 0 and int(activities["start_ns"][row]) + offset_ns < until_ns
        ]
        if not ends or ends[-1][0] == 0:
            return []
        last, row = ends[-1]
        wanted = {step for step in self.pending if step < marks[last].step}
        steps = [
            each
            for each in read_steps(
                activities, marks[: last + 1], names, rules, offset_ns, self.contradictions
            )
            if each.step in wanted
        ]
        still_needed = activities["end_ns"] >= activities["start_ns"][row]
        still_needed |= launched_after(activities, row)
        self._activities = layouts.chosen(activities, still_needed)
        for _ in range(last):
            self._marks.popleft()
        for _ in wanted:
            self.pending.popleft()
        return steps

    @property
    def overflows(self) -> bool:
        return self._activities is not None and len(self._activities) > MAX_PENDING
