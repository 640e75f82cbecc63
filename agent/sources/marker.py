"""Marks on a CUDA stream: memsets of a few bytes, recorded with the value that they write."""

import ctypes
from time import time_ns

import torch

from overlaptop.agent.clock import now_ns
from overlaptop.agent.sources.base import Edge
from overlaptop.agent.sources.kernel_steps import MARK_WORDS, StreamMark

_TAG = 0xA7 << 24  # Upper byte of each mark's value; the lower three bytes count
_COUNT_MASK = (1 << 24) - 1


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
