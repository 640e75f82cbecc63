"""TransformerEngine's user buffers: peers write into this memory while a product runs, chunk by chunk.

The setup follows TransformerEngine's own example (examples/pytorch/comm_gemm_overlap in its sources).
"""

import importlib
import os
from types import ModuleType
from typing import TYPE_CHECKING, Any

from overlaptop.workloads.options import OptionsError

if TYPE_CHECKING:
    from torch import Tensor

    from overlaptop.workloads.collective_matmul import Group

ENVIRONMENT = {
    # One hardware queue: kernels start in launch order, so a transfer that was launched first gets its few
    # SMs before the product takes all.
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    # Share memory by CUDA IPC, not by NVLink multicast, which must be set up for the whole machine.
    "UB_SKIPMC": "1",
}
SMS = 4
"""SMs for each transfer that is a kernel. TransformerEngine's default of 16 is taken from the concurrent
product, which then slows down by as much as is hidden (README.md; two GPUs)."""


def prepare_environment() -> None:
    """Set the variables, overriding earlier values, before the process first uses its GPU."""
    os.environ.update(ENVIRONMENT)


def torch_layers() -> ModuleType:
    """Import TransformerEngine's layers, which takes seconds.

    Raises OptionsError if it does not fit the installed libraries.
    """
    try:
        return importlib.import_module("transformer_engine.pytorch")
    except (ImportError, OSError) as fault:
        raise OptionsError(f"TransformerEngine cannot be loaded: {fault}") from None


def allocate(te: Any, tokens: "Tensor", rows: int, group: "Group", *, fp8: bool = False) -> None:
    """Make the buffers for a group with `rows` rows of tokens like these, (..., width), until `free`."""
    os.environ["UB_SKIPMC"] = ENVIRONMENT["UB_SKIPMC"]  # read by the next call
    modes = te.module.base.UserBufferQuantizationMode
    te.module.base.initialize_ub(
        [rows, tokens.shape[-1]],
        group.size(),
        quantization_modes=[modes.FP8 if fp8 else modes.NONE],
        dtype=tokens.dtype,
        ub_cfgs={name: {"num_sm": SMS} for name in ("fc1_dgrad", "fc1_wgrad", "fc2_fprop")},
        bootstrap_backend="nccl",
    )


def free(te: Any) -> None:
    """Free the buffers, before the process group. Only one set can exist at a time."""
    te.module.base.destroy_ub()
