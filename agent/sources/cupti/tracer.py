"""Switches CUPTI's tracing on and off and gathers its records.

CUPTI requests a buffer on the thread that launches the next kernel, about once in a thousand launches, and
returns it on its own thread (callbacks.py).
"""

import contextlib
import ctypes
import threading
from collections.abc import Iterator

from overlaptop.agent.clock import now_ns
from overlaptop.agent.sources.cupti import layouts
from overlaptop.agent.sources.cupti.callbacks import REQUESTED, CallbackLog
from overlaptop.agent.sources.cupti.layouts import Activities
from overlaptop.agent.sources.cupti.library import CuptiError, load

CLOCK_SAMPLES = 5
MAX_BUFFERS = 256  # With more buffers in use, tracing has to end
NO_END_NS = 2**63 - 1


class Tracer:
    """Runs one trace after another: `start`, `stop`, then `gather` until nothing is `outstanding`.

    Any thread may call it; each call holds a lock.
    """

    def __init__(self) -> None:
        """Raises RuntimeError with the reason if CUPTI is missing or unknown, or its callbacks are."""
        self._cupti = load()
        self._sizes = layouts.sizes_for(self._cupti.version())
        self._callbacks = CallbackLog()
        self._held: dict[int, int] = {}
        """Buffers that CUPTI holds: a time in ns before which it had not requested it, by address."""
        self._filled: dict[int, int] = {}  # Buffers that it has returned: the valid bytes, by address
        self._looked_ns = now_ns()
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
        return len(self._held) + self._tracing

    @property
    def exhausted(self) -> bool:
        return len(self._held) > MAX_BUFFERS

    def start(self) -> None:
        """Trace from now on; raises CuptiError if another tool holds CUPTI."""
        with self._lock:
            self._gathered.clear()
            self._look()
            if not self._registered:
                self._cupti.register(self._callbacks.request, self._callbacks.complete)
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

        That user must not get our buffers, so all come back, complete or not. Buffers that CUPTI holds even
        then stay allocated.
        """
        with self._lock:
            with contextlib.suppress(CuptiError):  # too many: their records are dropped anyway
                self._look()
            if self._tracing or self._held:
                self._disable()
                with contextlib.suppress(CuptiError):  # another tool may have finalised it
                    self._cupti.flush(forced=True)
                    self._look()
            self._gathered.clear()
            while self._filled:
                self._callbacks.free(self._filled.popitem()[0])
            self._held.clear()
            self._registered = False

    def gather(self) -> int:
        """Gather returned buffers: while tracing, those whose records are all complete.

        Returns a time in ns on the agent's clock. All work launched since `start` that began on the GPU
        before that time has been gathered: it was launched even earlier, into a buffer requested before.
        """
        with self._lock:
            began_ns = now_ns()
            self._look()
            if self._held:
                self._cupti.flush()
                self._look()
            until_ns = min(began_ns, *self._held.values()) if self._held else began_ns
            self._gathered += self._drain()
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

    def _look(self) -> None:
        """See what CUPTI has requested and returned. Raises CuptiError if that is too much to follow."""
        before_ns, self._looked_ns = self._looked_ns, now_ns()
        for address, valid_bytes in self._callbacks.entries():
            if valid_bytes == REQUESTED:
                self._held[address] = before_ns
            elif address in self._held:  # otherwise another tool's, or handed over
                self._filled[address] = valid_bytes
                del self._held[address]

    def _drain(self) -> Iterator[bytes]:
        """Yield the contents of returned buffers in order, and free them."""
        filled, self._filled = self._filled, {}
        for address, valid_bytes in filled.items():
            yield ctypes.string_at(address, valid_bytes)
            self._callbacks.free(address)

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
