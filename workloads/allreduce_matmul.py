"""An all-reduce beside matrix products and a host-to-device copy, with no model around them.

    torchrun --nproc-per-node=2 -m overlaptop.agent workloads/allreduce_matmul.py

``--mode async`` runs all three at once, ``--mode sequential`` one after another. ``--mode host-staged``
exchanges the gradient through system memory beside the products, as on GPUs with only PCIe: each rank
writes the parts that others add up, adds up its own part, and reads the sums. The numbers are the same in
all modes.

On the screen, the all-reduce lies below the products and the copy beside them. With ``sequential`` the
overlap is 0. ``host-staged`` has copies both ways and no NCCL kernel. The agent counts copies as
communication with ``--lane comm=Memcpy``.
"""

import argparse
import os
from itertools import pairwise, starmap

import torch
import torch.distributed as dist
from torch import Tensor

from overlaptop.workloads import job
from overlaptop.workloads.options import OptionsError


class HostStaging:
    """Sums tensors of the shape of this one, (n,), between the ranks of one host; on a GPU the copies run
    on a separate stream. NCCL's shared-memory transport moves the same bytes.
    """

    def __init__(self, tensor: Tensor, place: job.Place, stream: torch.cuda.Stream | None) -> None:
        self._rank, self._stream = place.rank, stream
        self._group = dist.new_group(backend="gloo")
        bounds = [tensor.numel() * rank // place.world_size for rank in range(place.world_size + 1)]
        self._parts = list(starmap(slice, pairwise(bounds)))
        """The part of the tensor that each rank adds up."""
        self._peers = [rank for rank in range(place.world_size) if rank != place.rank]
        self._shared = self._map(tensor, place)
        """Shape (ranks, n): parts that each rank offers the others, and the sum of its own part."""
        if stream is not None:
            address, size_bytes = self._shared.data_ptr(), self._shared.nbytes
            torch.cuda.check_error(int(torch.cuda.cudart().cudaHostRegister(address, size_bytes, 0)))
        self._written: torch.cuda.Event | None = None
        """Recorded after this rank's last write that the others wait for."""
        self._own = self._parts[place.rank]
        self._addend = torch.empty_like(tensor[self._own])

    def close(self) -> None:
        dist.barrier(self._group)
        if self._stream is not None:
            torch.cuda.check_error(int(torch.cuda.cudart().cudaHostUnregister(self._shared.data_ptr())))
        dist.destroy_process_group(self._group)

    def begin(self, tensor: Tensor) -> None:
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for peer in self._peers:
                part = self._parts[peer]
                self._shared[self._rank, part].copy_(tensor[part], non_blocking=True)
        self._written = self._stream.record_event() if self._stream is not None else None

    def finish(self, tensor: Tensor) -> None:
        """Replace `tensor` by its sum over all ranks. The CPU waits for copies and for other ranks."""
        self._meet()
        with torch.cuda.stream(self._stream):
            for peer in self._peers:
                self._addend.copy_(self._shared[peer, self._own], non_blocking=True)
                tensor[self._own].add_(self._addend)
            self._shared[self._rank, self._own].copy_(tensor[self._own], non_blocking=True)
        self._written = self._stream.record_event() if self._stream is not None else None
        self._meet()
        with torch.cuda.stream(self._stream):
            for peer in self._peers:
                part = self._parts[peer]
                tensor[part].copy_(self._shared[peer, part], non_blocking=True)
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)

    def _meet(self) -> None:
        """Wait until all ranks have written their parts.

        They have then also read everything written before the last meeting: a rank's reads and writes are
        on one stream.
        """
        if self._written is not None:
            self._written.synchronize()
        dist.barrier(self._group)

    def _map(self, tensor: Tensor, place: job.Place) -> Tensor:
        """Map memory of rank 0 into all ranks. It has no name, so nothing is left behind."""
        # A file in /dev/shm would not do: it is small in containers.
        memory = os.memfd_create("overlaptop-host-staged") if place.rank == 0 else -1
        path = [f"/proc/{os.getpid()}/fd/{memory}"]
        dist.broadcast_object_list(path, src=0, group=self._group)
        size = place.world_size * tensor.numel()
        shared = torch.from_file(path[0], shared=True, size=size, dtype=tensor.dtype)
        dist.barrier(self._group)
        if place.rank == 0:
            os.close(memory)
        return shared.view(place.world_size, tensor.numel())


class Work:
    """In each step: reduce a gradient, fetch the next batch, multiply the present one."""

    def __init__(self, options: argparse.Namespace, place: job.Place) -> None:
        random = torch.Generator().manual_seed(options.seed * place.world_size + place.rank)
        dtype, device, n = job.DTYPES[options.dtype], place.device, options.matrix
        self._on_gpu = device.type == "cuda"
        elements = max(1, int(options.size_mb * job.MIB) // dtype.itemsize)
        self._gradient = torch.zeros(elements, dtype=dtype, device=device)
        self._news = torch.tensor(place.rank + 1, dtype=dtype, device=device)
        self._halved_mean = 0.5 / place.world_size
        self._weight = (torch.randn(n, n, generator=random) / n**0.5).to(device, dtype)
        self._products = options.products
        host = torch.randn(2, n, n, generator=random).to(dtype)
        self._host = (host.pin_memory() if self._on_gpu else host).unbind()
        self._batch, self._next_batch = (batch.to(device, copy=True) for batch in self._host)
        self._step = 0
        self._overlaps = options.mode != "sequential"
        # Copies overlap with kernels only on a separate stream.
        self._copy_stream = torch.cuda.Stream() if self._on_gpu and self._overlaps else None
        self._staging: HostStaging | None = None
        if options.mode == "host-staged":
            self._staging = HostStaging(self._gradient, place, self._copy_stream)

    def step(self) -> Tensor:
        """Do one step; returns a figure, shape (), that depends on every product, copy and sum."""
        torch.add(self._news, self._gradient, alpha=self._halved_mean, out=self._gradient)
        reducing: dist.Work | None = None
        if self._staging is None:
            reducing = dist.all_reduce(self._gradient, async_op=self._overlaps)
        else:
            self._staging.begin(self._gradient)
        if self._copy_stream:  # the copy begins once all work launched so far is done
            self._copy_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._copy_stream):
            self._next_batch.copy_(self._host[self._step % 2], non_blocking=True)
        product = self._batch
        for _ in range(self._products):
            product = self._weight @ product
        if self._staging is not None:
            self._staging.finish(self._gradient)
        if self._copy_stream:
            torch.cuda.current_stream().wait_stream(self._copy_stream)
        job.wait(reducing)
        self._batch, self._next_batch = self._next_batch, self._batch
        self._step += 1
        return product[0].float().mean() + self._gradient[:1024].float().mean()

    def close(self) -> None:
        if self._staging is not None:
            self._staging.close()


def run(options: argparse.Namespace, place: job.Place) -> None:
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", place.world_size))
    if options.mode == "host-staged" and ranks_here < place.world_size:
        raise OptionsError("--mode host-staged: all ranks must run on one host")
    work = Work(options, place)
    report = job.Report(options, place, "figure")
    for _ in report.steps():
        report.add(work.step())
    work.close()


if __name__ == "__main__":
    job.main(__file__, run)
