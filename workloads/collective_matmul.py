"""A matrix product that gathers its rows first, or scatters its sums afterwards: four implementations.

Tensor parallelism consists of these two products. The input's rows are split over the ranks of a group, in
order, and each rank has a part of the weight:

- gather and multiply: all ranks' rows times this rank's weight
- multiply and scatter: the sum of these products over the ranks, whose rows are split over the ranks

`Collectives` runs collective and product one after another, or lets its caller do other work meanwhile.
`Ring` and `SymmetricMemory` cut the product into chunks, one for each rank, and move one chunk while they
multiply another (Wang and others, "Overlap Communication with Dependent Computation via Decomposition",
ASPLOS 2023).
"""

import importlib
import os
from abc import ABC, abstractmethod
from types import ModuleType
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from overlaptop.workloads import job
from overlaptop.workloads.options import OptionsError

Group = dist.ProcessGroup
Started: TypeAlias = tuple[Tensor, dist.Work | None]  # A tensor, and the Work that fills it


class Way(ABC):
    """An implementation of both products. Tensors are contiguous, (rows, columns)."""

    def start_gather(self, rows: Tensor) -> Started:
        """Start work that can run ahead of `gather_multiply`, which takes the result."""
        return rows, None

    @abstractmethod
    def gather_multiply(self, started: Started, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return all ranks' rows, and their product with `weight`."""

    @abstractmethod
    def multiply_scatter(self, rows: Tensor, weight: Tensor) -> Started:
        """Return this rank's rows of the sum over ranks of ``rows @ weight``, and the Work to wait for."""


class Collectives(Way):
    """One collective before the product, one after it. If ``asynchronous``, the caller waits, and can do
    other work first. If not ``scattered``, each rank has all rows: nothing is gathered, and the sum is an
    all-reduce.
    """

    def __init__(self, group: Group, *, asynchronous: bool, scattered: bool = True) -> None:
        self._group, self._asynchronous, self._scattered = group, asynchronous, scattered

    def start_gather(self, rows: Tensor) -> Started:
        if not self._scattered:
            return rows, None
        full = rows.new_empty(self._group.size() * len(rows), rows.shape[1])
        return full, job.all_gather(full, rows, group=self._group, async_op=self._asynchronous)

    def gather_multiply(self, started: Started, weight: Tensor) -> tuple[Tensor, Tensor]:
        full, gathering = started
        job.wait(gathering)
        return full, full @ weight

    def multiply_scatter(self, rows: Tensor, weight: Tensor) -> Started:
        product = rows @ weight
        if not self._scattered or product.device.type == "cpu":
            # Gloo hides when an asynchronous reduce-scatter ends, so each rank keeps its rows of a whole
            # sum.
            work = dist.all_reduce(product, group=self._group, async_op=self._asynchronous)
            own = product.chunk(self._group.size())[self._group.rank()] if self._scattered else product
            return own, work
        own = product.new_empty(len(product) // self._group.size(), product.shape[1])
        return own, job.reduce_scatter(own, product, group=self._group, async_op=self._asynchronous)


class Ring(Way):
    """Ranks pass chunks on by send and receive, and multiply the previous chunk meanwhile."""

    def __init__(self, group: Group) -> None:
        self._group, self._rank, self._ranks = group, group.rank(), group.size()

    def gather_multiply(self, started: Started, weight: Tensor) -> tuple[Tensor, Tensor]:
        rows, _ = started
        full = rows.new_empty(self._ranks * len(rows), rows.shape[1])
        product = rows.new_empty(len(full), weight.shape[1])
        chunks, products = full.chunk(self._ranks), product.chunk(self._ranks)
        chunks[self._rank].copy_(rows)
        for turn in range(self._ranks):
            at = (self._rank - turn) % self._ranks
            moving = self._exchange(chunks[at], chunks[at - 1]) if turn < self._ranks - 1 else []
            torch.mm(chunks[at], weight, out=products[at])
            job.wait(*moving)
        return full, product

    def multiply_scatter(self, rows: Tensor, weight: Tensor) -> Started:
        chunks = rows.chunk(self._ranks)
        arriving: Tensor | None = None
        moving: list[dist.Work] = []
        for turn in range(self._ranks):
            # The rank's own chunk comes last: by then it has received the others' sum.
            total = chunks[(self._rank - 1 - turn) % self._ranks] @ weight
            job.wait(*moving)
            if arriving is not None:
                total += arriving
            if turn < self._ranks - 1:
                arriving = torch.empty_like(total)
                moving = self._exchange(total, arriving)
        return total, None

    def _exchange(self, sent: Tensor, received: Tensor) -> list[dist.Work]:
        following, previous = (self._rank + 1) % self._ranks, (self._rank - 1) % self._ranks
        return dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, sent, group=self._group, group_peer=following),
                dist.P2POp(dist.irecv, received, group=self._group, group_peer=previous),
            ]
        )


class SymmetricMemory(Way):
    """torch's operators: ranks read each other's memory with the copy engine, beside the product's chunks.

    They need a GPU for each rank, connected by NVLink.
    """

    def __init__(self, group: Group) -> None:
        from torch.distributed._symmetric_memory import enable_symm_mem_for_group

        self._name = group.group_name
        enable_symm_mem_for_group(self._name)

    def gather_multiply(self, started: Started, weight: Tensor) -> tuple[Tensor, Tensor]:
        rows, _ = started
        full, (product,) = torch.ops.symm_mem.fused_all_gather_matmul(
            rows, [weight], gather_dim=0, group_name=self._name
        )
        return full, product

    def multiply_scatter(self, rows: Tensor, weight: Tensor) -> Started:
        own = torch.ops.symm_mem.fused_matmul_reduce_scatter(
            rows, weight, "sum", scatter_dim=0, group_name=self._name
        )
        return own, None


# TransformerEngine's user buffers: peers write into this memory while a product runs, chunk by chunk. The
# setup follows TransformerEngine's own example (examples/pytorch/comm_gemm_overlap in its sources).

USER_BUFFERS_ENVIRONMENT = {
    # One hardware queue: kernels start in launch order, so a transfer that was launched first gets its few
    # SMs before the product takes all.
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    # Share memory by CUDA IPC, not by NVLink multicast, which must be set up for the whole machine.
    "UB_SKIPMC": "1",
}
"""To be set, whatever was set before, until the process first uses its GPU."""
SMS = 4
"""SMs for each transfer that is a kernel. TransformerEngine's default of 16 is taken from the concurrent
product, which then slows down by as much as is hidden (README.md; two GPUs)."""


def torch_layers() -> ModuleType:
    """Import TransformerEngine's layers, which takes seconds.

    Raises OptionsError if it does not fit the installed libraries.
    """
    try:
        return importlib.import_module("transformer_engine.pytorch")
    except (ImportError, OSError) as fault:
        raise OptionsError(f"TransformerEngine cannot be loaded: {fault}") from None


def allocate_buffers(te: Any, tokens: Tensor, rows: int, group: Group) -> None:
    """Make the buffers for a group with `rows` rows of tokens like these, (..., width). Only one set can
    exist at a time: free it with ``te.module.base.destroy_ub()``, before the process group.
    """
    os.environ["UB_SKIPMC"] = USER_BUFFERS_ENVIRONMENT["UB_SKIPMC"]  # read by the next call
    te.module.base.initialize_ub(
        [rows, tokens.shape[-1]],
        group.size(),
        quantization_modes=[te.module.base.UserBufferQuantizationMode.NONE],
        dtype=tokens.dtype,
        ub_cfgs={name: {"num_sm": SMS} for name in ("fc1_dgrad", "fc1_wgrad", "fc2_fprop")},
        bootstrap_backend="nccl",
    )
