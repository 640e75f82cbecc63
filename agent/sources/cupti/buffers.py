"""The buffers that CUPTI fills, handed out and taken back in two callbacks.

CUPTI asks for a buffer on whichever thread launches the next kernel, once in a thousand launches or so,
and gives it back on a thread of its own. Both callbacks are as short as Python can be.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterator
from typing import Any

from overlaptop.agent.clock import now_ns
from overlaptop.agent.isolation.fault_barrier import defer_exceptions
from overlaptop.agent.isolation.job_exceptions import raised_by_job
from overlaptop.agent.sources.cupti.library import COMPLETE, REQUEST

BUFFER_BYTES = 256 << 10
"""Room for about 1,200 kernels. CUPTI zeroes a buffer before it uses it, on the launching thread: 15 us."""
MAX_BUFFERS = 256
"""More than so many mean that tracing has to end."""
READY = 4
"""Buffers kept ready, so that the launching thread need not allocate one."""
_ALIGNMENT = 8


class Buffers:
    """Memory for CUPTI's records."""

    def __init__(self) -> None:
        self._memory: dict[int, Any] = {}
        self._free: deque[int] = deque()
        self._filled: deque[tuple[int, int]] = deque()
        self._requested_ns: dict[int, int] = {}
        """Buffers that CUPTI has, and when it asked for each."""
        self.request = REQUEST(defer_exceptions(self._on_request))
        self.complete = COMPLETE(defer_exceptions(self._on_complete))
        # CUPTI may call these as long as the process lives, so also when Python has ended.
        _keep_for_good(self.request)
        _keep_for_good(self.complete)
        self.prepare()

    @property
    def outstanding(self) -> int:
        """Buffers that CUPTI still has."""
        return len(self._requested_ns)

    @property
    def oldest_ns(self) -> int | None:
        """When the buffer was requested that CUPTI has had for longest."""
        return min(list(self._requested_ns.values()), default=None)

    @property
    def exhausted(self) -> bool:
        """Whether more buffers are in use than should be."""
        return len(self._memory) - len(self._free) > MAX_BUFFERS

    def prepare(self) -> None:
        """Have some ready. Called on the agent's thread."""
        while len(self._free) < READY:
            self._free.append(self._allocate())

    def drain(self) -> Iterator[bytes]:
        """What is in the buffers that CUPTI has given back, in order; each is then free again."""
        while self._filled:
            address, valid_bytes = self._filled.popleft()
            yield ctypes.string_at(address, valid_bytes)
            self._free.append(address)

    def discard(self) -> None:
        """Leave what CUPTI has given back unread, and expect no more: what is out is in other hands. Its
        memory is kept.
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
        # Never refused: CUPTI before CUDA 12.9 may crash on that.
        try:
            address = self._free.popleft()
        except IndexError as fault:
            if raised_by_job(fault):
                raise
            address = self._allocate()
        buffer[0], size[0], max_records[0] = address, BUFFER_BYTES, 0  # as many records as fit
        self._requested_ns[address] = now_ns()

    def _on_complete(self, _context: Any, _stream: int, buffer: int, _size: int, valid_bytes: int) -> None:
        if buffer not in self._memory:
            return  # another tool's, given out before we were registered
        self._filled.append((buffer, valid_bytes))
        self._requested_ns.pop(buffer, None)


def _keep_for_good(thing: Any) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
