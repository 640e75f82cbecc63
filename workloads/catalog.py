"""The bundled workloads, to list or start them. Imports none of them, and no torch."""

from __future__ import annotations

from overlaptop.workloads.entries.data_parallel import DDP, FSDP, ZERO
from overlaptop.workloads.entries.faults import CAN_BE_LATE, FAULTS
from overlaptop.workloads.entries.model_parallel import EXPERT_PARALLEL, PIPELINE, TENSOR_PARALLEL
from overlaptop.workloads.entries.overlapped_products import GEMM_OVERLAP, TE_LAYERNORM_MLP
from overlaptop.workloads.entries.primitives import ALLREDUCE_MATMUL, DOUBLE_BUFFER, SMALL_MESSAGES
from overlaptop.workloads.entries.workload import Workload

__all__ = [
    "ALLREDUCE_MATMUL",
    "DDP",
    "DOUBLE_BUFFER",
    "EXPERT_PARALLEL",
    "FAULTS",
    "FSDP",
    "GEMM_OVERLAP",
    "PIPELINE",
    "SMALL_MESSAGES",
    "TENSOR_PARALLEL",
    "TE_LAYERNORM_MLP",
    "WORKLOADS",
    "ZERO",
    "Workload",
    "find",
]

WORKLOADS: tuple[Workload, ...] = (*CAN_BE_LATE, FAULTS)


def find(name_or_path: str) -> Workload | None:
    """Return the workload with this name (``ddp``, ``ddp.py``) or path; None if it is not bundled."""
    return next((workload for workload in WORKLOADS if workload.is_called(name_or_path)), None)
