"""Switches CUPTI's tracing on and off and gathers its records."""

import contextlib
import threading

from overlaptop.agent.clock import now_ns
from overlaptop.agent.sources.cupti import layouts
from overlaptop.agent.sources.cupti.buffers import Buffers
from overlaptop.agent.sources.cupti.layouts import Activities
from overlaptop.agent.sources.cupti.library import CuptiError, load

CLOCK_SAMPLES = 5
NO_END_NS = 2**63 - 1


class Tracer:
    """Runs one trace after another: `start`, `stop`, then `gather` until nothing is `outstanding`.

    Any thread may call it; each call holds a lock.
    """

    def __init__(self) -> None:
        """Raises RuntimeError with the reason if CUPTI is missing or unknown."""
        self._cupti = load()
        self._sizes = layouts.sizes_for(self._cupti.version())
        self._buffers = Buffers()
        self._registered = False
        self._tracing = False
        self._lock = threading.Lock()
        self._gathered: list[bytes] = []
        self.lost = 0  # Records since the start that CUPTI dropped, or that had no times
        self.clock_offset_ns = 0  # The agent's clock minus CUPTI's; measured at each `start`

    @property
    def outstanding(self) -> int:
        """Buffers that CUPTI holds or, while it traces, may still request.

        0 after `stop` and `gather` means that all work launched before has been gathered.
        """
        return self._buffers.outstanding + self._tracing

    @property
    def exhausted(self) -> bool:
        return self._buffers.exhausted

    def start(self) -> None:
        """Trace from now on; raises CuptiError if another tool holds CUPTI."""
        with self._lock:
            self._gathered.clear()
            self._buffers.look()
            if not self._registered:
                self._cupti.register(self._buffers.request, self._buffers.complete)
                self._registered = True
            self.clock_offset_ns = self._measure_clock_offset()
            self._tracing = True
            for kind in layouts.KINDS:
                self._cupti.enable(kind)

    def stop(self) -> None:
        """Stop tracing. Launched work still completes."""
        with self._lock:
            self._disable()

    def hand_over(self) -> None:
        """Release CUPTI to another user in this process, at once.

        That user must not get our buffers, so all come back, complete or not.
        """
        with self._lock:
            with contextlib.suppress(CuptiError):  # too many: their records are dropped anyway
                self._buffers.look()
            if self._tracing or self._buffers.outstanding:
                self._disable()
                with contextlib.suppress(CuptiError):  # another tool may have finalised it
                    self._cupti.flush(forced=True)
                    self._buffers.look()
            self._gathered.clear()
            self._buffers.discard()
            self._registered = False

    def gather(self) -> int:
        """Gather returned buffers: while tracing, those whose records are all complete.

        Returns a time in ns on the agent's clock. All work launched since `start` that began on the GPU
        before that time has been gathered: it was launched even earlier, into a buffer requested before.
        """
        with self._lock:
            began_ns = now_ns()
            self._buffers.look()
            if self._buffers.outstanding:
                self._cupti.flush()
                self._buffers.look()
            until_ns = min(began_ns, self._buffers.oldest_ns or began_ns)
            self._gathered += self._buffers.drain()
            if self._registered:
                self.lost += self._cupti.dropped()
            return until_ns if self.outstanding else NO_END_NS

    def taken(self) -> Activities:
        """Return the activities gathered since `start` and not taken yet. Raises UnknownRecordError if
        another tool uses CUPTI in this process.
        """
        with self._lock:
            gathered, self._gathered = self._gathered, []
        activities = layouts.read(b"".join(gathered), self._sizes)
        has_times = (activities["start_ns"] > 0) & (activities["end_ns"] >= activities["start_ns"])
        self.lost += int((~has_times & (activities["kind"] != layouts.SYNCHRONIZATION)).sum())
        return layouts.chosen(activities, has_times)

    def _measure_clock_offset(self) -> int:
        """Return our clock minus CUPTI's, by the quickest of several tries: it was not interrupted."""
        samples = []
        for _ in range(CLOCK_SAMPLES):
            before_ns = now_ns()
            cupti_ns = self._cupti.timestamp_ns()
            after_ns = now_ns()
            samples.append((after_ns - before_ns, (before_ns + after_ns) // 2 - cupti_ns))
        return min(samples)[1]

    def _disable(self) -> None:
        if not self._tracing:
            return
        self._tracing = False
        for kind in layouts.KINDS:
            with contextlib.suppress(CuptiError):  # another tool may have finalised CUPTI
                self._cupti.disable(kind)
