"""The buffers that CUPTI fills, supplied and returned in two callbacks.

CUPTI requests a buffer on the thread that launches the next kernel, about once in a thousand launches. It
returns the buffer on its own thread. Both callbacks are as short as possible in Python.
"""

import ctypes
from collections import deque
from collections.abc import Iterator
from typing import Any

from overlaptop.agent.clock import now_ns
from overlaptop.agent.isolation.fault_barrier import defer_exceptions
from overlaptop.agent.isolation.job_exceptions import raised_by_job
from overlaptop.agent.sources.cupti.library import COMPLETE, REQUEST

BUFFER_BYTES = 256 << 10
"""Holds about 1,200 kernels. CUPTI zeroes a buffer before use, on the launching thread: 15 us."""
MAX_BUFFERS = 256
"""With more buffers in use, tracing has to end."""
READY = 4
"""Buffers kept ready, so that the launching thread rarely allocates one."""
_ALIGNMENT = 8


class Buffers:
    """Memory for CUPTI's records."""

    def __init__(self) -> None:
        self._memory: dict[int, Any] = {}
        self._free: deque[int] = deque()
        self._filled: deque[tuple[int, int]] = deque()
        self._requested_ns: dict[int, int] = {}
        """Buffers that CUPTI holds, and when it requested each."""
        self.request = REQUEST(defer_exceptions(self._on_request))
        self.complete = COMPLETE(defer_exceptions(self._on_complete))
        # CUPTI may call these for the whole life of the process, even after Python has ended.
        _keep_for_good(self.request)
        _keep_for_good(self.complete)
        self.prepare()

    @property
    def outstanding(self) -> int:
        return len(self._requested_ns)

    @property
    def oldest_ns(self) -> int | None:
        """Request time of the buffer that CUPTI has held longest."""
        return min(list(self._requested_ns.values()), default=None)

    @property
    def exhausted(self) -> bool:
        return len(self._memory) - len(self._free) > MAX_BUFFERS

    def prepare(self) -> None:
        """Allocate the ready buffers. On the agent's thread."""
        while len(self._free) < READY:
            self._free.append(self._allocate())

    def drain(self) -> Iterator[bytes]:
        """Yield the contents of returned buffers in order; each is then free again."""
        while self._filled:
            address, valid_bytes = self._filled.popleft()
            yield ctypes.string_at(address, valid_bytes)
            self._free.append(address)

    def discard(self) -> None:
        """Drop the contents of returned buffers, and expect no more: another user has taken CUPTI. Buffers
        that it still holds stay allocated.
        """
        while self._filled:
            self._free.append(self._filled.popleft()[0])
        self._requested_ns.clear()

    def _allocate(self) -> int:
        memory = ctypes.create_string_buffer(BUFFER_BYTES + _ALIGNMENT)
        address = (ctypes.addressof(memory) + _ALIGNMENT - 1) & ~(_ALIGNMENT - 1)
        self._memory[address] = memory
        _keep_for_good(memory)
        return address

    def _on_request(self, buffer: Any, size: Any, max_records: Any) -> None:
        # Never refuse a request: CUPTI before CUDA 12.9 may crash.
        try:
            address = self._free.popleft()
        except IndexError as fault:
            if raised_by_job(fault):
                raise
            address = self._allocate()
        buffer[0], size[0], max_records[0] = address, BUFFER_BYTES, 0  # 0: no limit on records
        self._requested_ns[address] = now_ns()

    def _on_complete(self, _context: Any, _stream: int, buffer: int, _size: int, valid_bytes: int) -> None:
        if buffer not in self._memory:
            return  # another tool's buffer, supplied before our registration
        self._filled.append((buffer, valid_bytes))
        self._requested_ns.pop(buffer, None)


def _keep_for_good(thing: Any) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
