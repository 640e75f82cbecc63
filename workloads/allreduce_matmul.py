"""An all-reduce beside matrix products and a host-to-device copy, with no model around them.

    torchrun --nproc-per-node=2 -m overlaptop.agent workloads/allreduce_matmul.py

``--mode async`` lets all three run at once, ``--mode sequential`` one after the other: the numbers are
the same, the step is longer. There is no optimizer from which the monitor could tell where a step
ends, so the job says so itself.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import Tensor

from overlaptop.agent import step as mark_step
from overlaptop.workloads import catalog, job


class Work:
    """One step after the other: reduce a gradient, fetch the next batch, multiply the present one."""

    def __init__(self, options: argparse.Namespace, place: job.Place) -> None:
        random = torch.Generator().manual_seed(options.seed * place.world_size + place.rank)
        dtype, device, n = job.DTYPES[options.dtype], place.device, options.matrix
        on_gpu = device.type == "cuda"
        elements = max(1, int(options.size_mb * job.MIB) // dtype.itemsize)
        self._gradient = torch.zeros(elements, dtype=dtype, device=device)
        self._news = torch.tensor(place.rank + 1, dtype=dtype, device=device)
        self._halved_mean = 0.5 / place.world_size
        self._weight = (torch.randn(n, n, generator=random) / n**0.5).to(device, dtype)
        self._products = options.products
        host = torch.randn(2, n, n, generator=random).to(dtype)
        self._host = (host.pin_memory() if on_gpu else host).unbind()
        self._batch, self._next_batch = (batch.to(device) for batch in self._host)
        self._step = 0
        self._asynchronous = options.mode == "async"
        # Copies overlap with kernels only on a stream of their own.
        self._copy_stream = torch.cuda.Stream() if on_gpu and self._asynchronous else None

    def step(self) -> Tensor:
        """Do one step; returns a figure, shape (), which every product, copy and sum went into."""
        torch.add(self._news, self._gradient, alpha=self._halved_mean, out=self._gradient)
        reducing = dist.all_reduce(self._gradient, async_op=self._asynchronous)

        if self._copy_stream:
            self._copy_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._copy_stream):
            self._next_batch.copy_(self._host[self._step % 2], non_blocking=True)

        product = self._batch
        for _ in range(self._products):
            product = self._weight @ product

        if self._copy_stream:
            torch.cuda.current_stream().wait_stream(self._copy_stream)
        if reducing:
            reducing.wait()
        self._batch, self._next_batch = self._next_batch, self._batch
        self._step += 1
        return product[0].float().mean() + self._gradient[:1024].float().mean()


def run(options: argparse.Namespace, place: job.Place) -> None:
    """Work until the steps or the time are over."""
    work = Work(options, place)
    report = job.Report(place, "figure", options.results)
    for _ in job.step_numbers(options, place):
        report.add(work.step())
        mark_step()
    report.close()


def main() -> None:
    """Run the job."""
    job.main(catalog.ALLREDUCE_MATMUL, run)


if __name__ == "__main__":
    main()
