"""Tools that hold CUPTI for the life of a process, recognized by its environment."""

import os
from collections.abc import Mapping

TOOLS = {
    "NSYS_PROFILING_SESSION_ID": "Nsight Systems",
    "NV_COMPUTE_PROFILER_PERFWORKS_DIR": "Nsight Compute",
    "CUDA_INJECTION64_PATH": "a CUDA profiler",
    "KINETO_USE_DAEMON": "Kineto's daemon",
}
"""By environment variable with which a tool attaches itself to CUDA: the tool's name."""


def tool_in(environ: Mapping[str, str] = os.environ) -> str | None:
    return next((tool for variable, tool in TOOLS.items() if environ.get(variable)), None)
