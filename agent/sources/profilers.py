"""Other users of CUPTI: torch.profiler, which comes and goes, and tools that hold it for good."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.autograd.profiler

from overlaptop.agent.patching import replace

_TOOLS = {
    "NSYS_PROFILING_SESSION_ID": "Nsight Systems",
    "NV_COMPUTE_PROFILER_PERFWORKS_DIR": "Nsight Compute",
    "CUDA_INJECTION64_PATH": "a CUDA profiler",
    "KINETO_USE_DAEMON": "Kineto's daemon",
}
"""Environment variables by which a tool attaches itself to CUDA -> its name."""


def tool_in(environ: Mapping[str, str] = os.environ) -> str | None:
    """The profiler that this process was started under."""
    return next((tool for variable, tool in _TOOLS.items() if environ.get(variable)), None)


class KinetoWatch:
    """Calls `pause` just before torch.profiler takes CUPTI and `resume` after it has let go of it."""

    def __init__(self, pause: Callable[[], Any], resume: Callable[[], Any]) -> None:
        self._pause = pause
        self._resume = resume
        self.running = False
        """Whether torch.profiler is at work, or warms up."""

    def install(self) -> None:
        """Patch the functions by which torch.autograd.profiler drives Kineto, for good."""
        replace(torch.autograd.profiler, "_prepare_profiler", self._before)
        replace(torch.autograd.profiler, "_enable_profiler", self._before)
        replace(torch.autograd.profiler, "_disable_profiler", self._after)

    def _before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def paused(*args: Any, **kwargs: Any) -> Any:
            self.running = True
            self._pause()
            try:
                return call(*args, **kwargs)
            except BaseException:
                self._end()
                raise

        return paused

    def _after(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def resumed(*args: Any, **kwargs: Any) -> Any:
            try:
                return call(*args, **kwargs)
            finally:
                self._end()

        return resumed

    def _end(self) -> None:
        self.running = False
        self._resume()
