"""Tools that hold CUPTI for as long as a process lives, seen by its environment."""

from __future__ import annotations

import os
from collections.abc import Mapping

TOOLS = {
    "NSYS_PROFILING_SESSION_ID": "Nsight Systems",
    "NV_COMPUTE_PROFILER_PERFWORKS_DIR": "Nsight Compute",
    "CUDA_INJECTION64_PATH": "a CUDA profiler",
    "KINETO_USE_DAEMON": "Kineto's daemon",
}
"""Environment variables by which a tool attaches itself to CUDA -> its name."""


def tool_in(environ: Mapping[str, str] = os.environ) -> str | None:
    """The profiler that this process was started under."""
    return next((tool for variable, tool in TOOLS.items() if environ.get(variable)), None)
