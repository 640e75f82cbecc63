"""The needed functions of libcupti, in the library that torch itself has loaded.

A second copy would not see the job's kernels while torch.profiler runs: CUPTI has one client per process.
"""

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from overlaptop.agent.isolation.job_exceptions import raised_by_job

MAPS = Path("/proc/self/maps")
TOOLS = {
    "NSYS_PROFILING_SESSION_ID": "Nsight Systems",
    "NV_COMPUTE_PROFILER_PERFWORKS_DIR": "Nsight Compute",
    "CUDA_INJECTION64_PATH": "a CUDA profiler",
    "KINETO_USE_DAEMON": "Kineto's daemon",
}
"""Tools that hold CUPTI for the life of a process, by the environment variable that attaches them."""


def tool_in(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the tool that holds CUPTI in a process with this environment."""
    return next((tool for variable, tool in TOOLS.items() if environ.get(variable)), None)


class CuptiError(RuntimeError):
    """The refusal of CUPTI, and its reason."""


class Cupti:
    """CUPTI's activity API. Each call releases the GIL and raises CuptiError if CUPTI refuses."""

    def __init__(self, path: str) -> None:
        """Open the library at `path`; raises OSError if that fails."""
        self._library = ctypes.CDLL(path)
        self._library.cuptiGetResultString.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
        self._clock = _unix_clock()

    def version(self) -> int:
        """Return this library's CUPTI_API_VERSION: 26 for CUDA 12.8, 130001 for 13.0."""
        number = ctypes.c_uint32()
        self._call("cuptiGetVersion", ctypes.byref(number))
        return number.value

    def timestamp_ns(self) -> int:
        now_ns = ctypes.c_uint64()
        self._call("cuptiGetTimestamp", ctypes.byref(now_ns))
        return now_ns.value

    def register(self, request: ctypes.c_void_p, complete: ctypes.c_void_p) -> None:
        """Register the callbacks that supply and take back buffers. They must never be freed.

        Times are then in Unix ns: torch.profiler makes CUPTI count processor ticks and never undoes it.
        """
        self._call("cuptiActivityRegisterTimestampCallback", self._clock)
        self._call("cuptiActivityRegisterCallbacks", request, complete)

    def enable(self, kind: int) -> None:
        self._call("cuptiActivityEnable", ctypes.c_int(kind))

    def disable(self, kind: int) -> None:
        """Stop recording this kind; activities already launched still complete."""
        self._call("cuptiActivityDisable", ctypes.c_int(kind))

    def flush(self, *, forced: bool = False) -> None:
        """Have CUPTI return the buffers whose records are all complete; forced: all buffers as they are.

        It synchronises no device.
        """
        self._call("cuptiActivityFlushAll", ctypes.c_uint32(forced))

    def dropped(self) -> int:
        count = ctypes.c_size_t()
        no_context, no_stream = ctypes.c_void_p(None), ctypes.c_uint32(0)
        self._call("cuptiActivityGetNumDroppedRecords", no_context, no_stream, ctypes.byref(count))
        return count.value

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            text = ctypes.c_char_p()
            self._library.cuptiGetResultString(status, ctypes.byref(text))
            raise CuptiError(f"{name}: {(text.value or b'error').decode(errors='replace')} ({status})")


def load() -> Cupti:
    """Open the libcupti that this process has loaded. Raises CuptiError if there is none: torch is for ROCm
    or the CPU, or links CUPTI statically.
    """
    maps = MAPS.read_text() if MAPS.exists() else ""
    files = (line[line.index("/") :] for line in maps.splitlines() if "/" in line)
    path = next((file for file in files if Path(file).name.startswith("libcupti.so")), None)
    if path is None:
        raise CuptiError("this torch has not loaded libcupti")
    try:
        return Cupti(path)
    except OSError as fault:
        if raised_by_job(fault):
            raise
        raise CuptiError(f"libcupti cannot be opened: {fault}") from None


def _unix_clock() -> ctypes.c_void_p:
    """Return a C function without arguments that returns Unix time in ns, for CUPTI to call on any thread.

    std::chrono::system_clock::now() is one: it returns a time_point as the 64-bit integer inside.
    """
    try:
        runtime = ctypes.CDLL("libstdc++.so.6")
        return ctypes.cast(runtime["_ZNSt6chrono3_V212system_clock3nowEv"], ctypes.c_void_p)
    except (OSError, AttributeError) as fault:
        if raised_by_job(fault):
            raise
        raise CuptiError(f"libstdc++ has no clock to give to CUPTI: {fault}") from None
