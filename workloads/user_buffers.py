"""TransformerEngine's user buffers: memory that peers write into while a product runs, chunk by chunk.

Set up as TransformerEngine's own example does (examples/pytorch/comm_gemm_overlap of its sources).
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import TYPE_CHECKING, Any

from overlaptop.workloads.options import OptionsError

if TYPE_CHECKING:
    from torch import Tensor

    from overlaptop.workloads.collective_matmul import Group

ENVIRONMENT = {
    # One hardware queue: kernels start in the order of their launch, so a transfer that was launched first
    # gets its few SMs before the product takes all.
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    # Peers' memory by CUDA IPC, not by NVLink multicast: that has to be set up on the whole machine.
    "UB_SKIPMC": "1",
}
"""What it needs."""
SMS = 4
"""For each transfer that is a kernel. TransformerEngine's 16 are taken from the product beside it, which
then takes longer by what is hidden (README.md; two GPUs)."""


def prepare_environment() -> None:
    """Set it, whatever it was, before the process first uses its GPU."""
    os.environ.update(ENVIRONMENT)


def torch_layers() -> ModuleType:
    """TransformerEngine's layers; its import takes seconds.

    Raises OptionsError where it is not made for the libraries that are installed.
    """
    try:
        return importlib.import_module("transformer_engine.pytorch")
    except (ImportError, OSError) as fault:
        raise OptionsError(f"TransformerEngine cannot be loaded: {fault}") from None


def allocate(
    te: Any, tokens: Tensor, rows: int, group: Group, *, fp8: bool = False, sms: int = SMS
) -> None:
    """Make the buffers for a group that has so many rows of such tokens, (..., width), until `free`."""
    os.environ["UB_SKIPMC"] = ENVIRONMENT["UB_SKIPMC"]  # it is read here
    modes = te.module.base.UserBufferQuantizationMode
    te.module.base.initialize_ub(
        [rows, tokens.shape[-1]],
        group.size(),
        quantization_modes=[modes.FP8 if fp8 else modes.NONE],
        dtype=tokens.dtype,
        ub_cfgs={name: {"num_sm": sms} for name in ("fc1_dgrad", "fc1_wgrad", "fc2_fprop")},
        bootstrap_backend="nccl",
    )


def free(te: Any) -> None:
    """Free the buffers: there can be one set at a time, and they have to go before the process group."""
    te.module.base.destroy_ub()
