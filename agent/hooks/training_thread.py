"""Measures how the training thread spent a step, from counters of the interpreter and the kernel."""

import gc
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from typing import Any, NamedTuple

from torch.utils.data import dataloader

from overlaptop.agent.clock import now_ns
from overlaptop.agent.isolation.fault_barrier import FaultBarrier
from overlaptop.agent.isolation.patching import replace
from overlaptop.agent.telemetry.files import UnavailableError, entries, read_text, text_if_any

TASKS = Path("/proc/self/task")
MAX_STEPS = 4096  # Steps kept until they are taken; beyond that the oldest are dropped
MAX_SAMPLES = 1024  # Samples of the thread's wait for a CPU; about ten a second
BACKWARD_THREADS = "pt_autograd_"
"""Name prefix of torch's threads that run the backward pass, one for each GPU. The training thread waits
for them."""
ASLEEP = ("S", "D")  # Kernel states: interruptible sleep, and uninterruptible I/O
SEARCH_SAMPLES = 50  # Samples between two searches for backward threads, until they exist


class ThreadTimes(NamedTuple):
    """Times of one step."""

    cpu_ns: int
    loading_ns: int  # Time in a DataLoader's ``next``
    full_collections: int  # Garbage collections of the oldest generation
    delayed_ns: int | None  # Time in which it or a backward thread waited for a CPU; None if not known


class _Boundary(NamedTuple):
    """Totals of the thread when a step began."""

    at_ns: int  # Unix time. The step's own begin may be the GPU's, which is behind.
    cpu_ns: int
    loading_ns: int
    full_collections: int


class TrainingThread:
    """Compares counters at step boundaries.

    Garbage collections are counted, not timed: the interpreter swallows exceptions in gc's callbacks, and a
    signal during a collection is handled in the callback at its end.
    """

    def __init__(self, barrier: FaultBarrier) -> None:
        self._barrier = barrier
        self.begin()

    def begin(self) -> None:
        self._thread = 0
        self._at_boundary = _Boundary(0, 0, 0, 0)
        self._loading_ns = 0
        self._steps: deque[tuple[int, _Boundary, _Boundary]] = deque(maxlen=MAX_STEPS)
        self._native_thread = self._sampled_thread = 0
        self._backward_threads: tuple[str, ...] = ()
        self._until_search = 0
        self._delays: deque[tuple[int, int]] = deque(maxlen=MAX_SAMPLES)
        """Unix time in ns, and the thread's total wait for a CPU by then in ns."""

    def install(self) -> None:
        """Time DataLoaders. The hook stays until the process ends."""
        base, clock = dataloader._BaseDataLoaderIter, perf_counter_ns  # noqa: SLF001 - there is no other hook
        loaded = self._barrier.guarded("the DataLoader hook", self._on_loaded)

        def timed(advance: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def timed_next(iterator: Any) -> Any:
                begun_ns = clock()
                try:
                    return advance(iterator)
                finally:
                    loaded(begun_ns)

            return timed_next

        replace(base, "__next__", timed)

    def boundary(self, step: int) -> None:
        collections = gc.get_stats()[-1]["collections"]
        now = _Boundary(now_ns(), thread_time_ns(), self._loading_ns, collections)
        if self._thread == threading.get_ident():
            self._steps.append((step - 1, self._at_boundary, now))
        self._thread = threading.get_ident()
        self._native_thread = threading.get_native_id()
        self._at_boundary = now

    def _on_loaded(self, begun_ns: int) -> None:
        if self._thread == threading.get_ident():
            self._loading_ns += perf_counter_ns() - begun_ns

    # On the agent's thread.

    def take(self, step: int) -> ThreadTimes | None:
        """Return how the thread spent this step; None if unknown. Steps are taken in order."""
        while self._steps and self._steps[0][0] <= step:
            number, begin, end = self._steps.popleft()
            if number == step:
                spent = (max(0, new - old) for new, old in zip(end[1:], begin[1:], strict=True))
                cpu_ns, loading_ns, collections = spent
                return ThreadTimes(
                    cpu_ns, loading_ns, collections, self._delayed_ns(begin.at_ns, end.at_ns)
                )
        return None

    def sample(self) -> None:
        """Sample the total CPU wait of the thread and its backward threads (proc(5)'s schedstat)."""
        if not (thread := self._native_thread):
            return
        if self._sampled_thread != thread:
            self._delays.clear()
            self._sampled_thread = thread
        try:
            if not self._backward_threads:
                self._search_backward_threads()
            threads = (str(thread), *self._backward_threads)
            waits = [int(read_text(TASKS / each / "schedstat").split()[1]) for each in threads]
            self._delays.append((now_ns(), sum(waits)))
        except (UnavailableError, ValueError, IndexError):
            self._delays.clear()  # a thread ended, or this kernel does not count waits
            self._backward_threads = ()

    def is_asleep(self) -> bool:
        """Whether the thread sleeps (proc(5)'s stat): in a call for time, data or a lock. A thread that
        waits for the GIL is awake by then, as reading the file releases the GIL.
        """
        stat = text_if_any(TASKS / str(self._native_thread) / "stat")
        return stat.rpartition(") ")[2][:1] in ASLEEP

    def _search_backward_threads(self) -> None:
        self._until_search -= 1
        if self._until_search > 0:
            return
        self._until_search = SEARCH_SAMPLES
        self._backward_threads = tuple(
            each
            for each in entries(TASKS)
            if text_if_any(TASKS / each / "comm").startswith(BACKWARD_THREADS)
        )
        if self._backward_threads:  # their waits so far belong to no step
            self._delays.clear()

    def _delayed_ns(self, start_ns: int, end_ns: int) -> int | None:
        """Return the wait for a CPU between two Unix times, interpolated between samples."""
        if len(self._delays) < 2 or start_ns < self._delays[0][0]:
            return None
        waited = waited_ns(self._delays, end_ns) - waited_ns(self._delays, start_ns)
        return min(max(0, waited), end_ns - start_ns)  # the kernel counts a wait after it is over


def waited_ns(samples: Sequence[tuple[int, int]], at_ns: int) -> int:
    """Return the total wait in ns at a moment, interpolated between samples of (moment, total wait) in ns.

    Needs two or more samples in order. Outside of them the first or last one counts.
    """
    after = min(max(bisect_left(samples, (at_ns, 0)), 1), len(samples) - 1)
    (from_ns, before), (to_ns, then) = samples[after - 1], samples[after]
    part = (min(max(at_ns, from_ns), to_ns) - from_ns) / max(to_ns - from_ns, 1)
    return before + round((then - before) * part)
