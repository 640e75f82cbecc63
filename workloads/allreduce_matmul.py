"""An all-reduce beside matrix products and a host-to-device copy, with no model around them.

    torchrun --nproc-per-node=2 -m overlaptop.agent workloads/allreduce_matmul.py

``--mode async`` lets all three run at once, ``--mode sequential`` one after the other. With ``--mode
host-staged`` the ranks add up in system memory, as where no link joins the GPUs: the gradient goes
there, gloo reduces it while the GPU multiplies, and the sum comes back. The numbers are the same in all
three.

There is no optimizer from which the monitor could tell where a step ends, so the job says so itself.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import profile, schedule

from overlaptop.agent import step as mark_step
from overlaptop.agent.telemetry import binding
from overlaptop.workloads import catalog, job

TRACED_STEPS = 4


class Work:
    """One step after the other: reduce a gradient, fetch the next batch, multiply the present one."""

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
        # Copies overlap with kernels only on a stream of their own.
        self._copy_stream = torch.cuda.Stream() if self._on_gpu and self._overlaps else None
        self._in_host: Tensor | None = None
        if options.mode == "host-staged":
            self._in_host = torch.zeros(elements, dtype=dtype, pin_memory=self._on_gpu)
            self._host_group = dist.new_group(backend="gloo")

    def step(self) -> Tensor:
        """Do one step; returns a figure, shape (), which every product, copy and sum went into."""
        torch.add(self._news, self._gradient, alpha=self._halved_mean, out=self._gradient)
        if self._in_host is None:
            reducing = dist.all_reduce(self._gradient, async_op=self._overlaps)
            self._fetch_next_batch()
            product = self._multiply()
        else:
            product, reducing = self._multiply_and_reduce_in_host(self._in_host)
        if self._copy_stream:
            torch.cuda.current_stream().wait_stream(self._copy_stream)
        if reducing:
            reducing.wait()
        if self._in_host is not None:
            self._gradient.copy_(self._in_host, non_blocking=True)
        self._batch, self._next_batch = self._next_batch, self._batch
        self._step += 1
        return product[0].float().mean() + self._gradient[:1024].float().mean()

    def _multiply(self) -> Tensor:
        product = self._batch
        for _ in range(self._products):
            product = self._weight @ product
        return product

    def _fetch_next_batch(self) -> None:
        self._copy(self._host[self._step % 2], self._next_batch)

    def _copy(self, source: Tensor, target: Tensor) -> None:
        """On the copy stream, as soon as what was launched up to here is done."""
        if self._copy_stream:
            self._copy_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._copy_stream):
            target.copy_(source, non_blocking=True)

    def _multiply_and_reduce_in_host(self, in_host: Tensor) -> tuple[Tensor, dist.Work | None]:
        self._copy(self._gradient, in_host)
        copied = self._copy_stream.record_event() if self._copy_stream else None
        self._fetch_next_batch()
        # A GPU multiplies while the CPU goes on; a CPU while gloo's threads reduce.
        product = self._multiply() if copied else None
        if copied:
            copied.synchronize()
        reducing = dist.all_reduce(in_host, group=self._host_group, async_op=True)
        return self._multiply() if product is None else product, reducing


@contextmanager
def trace(folder: Path | None, rank: int) -> Iterator[Callable[[], None]]:
    """Have torch.profiler write a Chrome trace of a few steps; gives what to call behind each step.

    Args:
        folder: where ``rank-0.json`` and so on are written, for Perfetto or ``overlaptop analyze``; None:
            nothing is traced.
        rank: this process's.
    """
    if folder is None:
        yield lambda: None
        return
    folder.mkdir(exist_ok=True)
    with profile(
        schedule=schedule(wait=4, warmup=2, active=TRACED_STEPS, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(folder / f"rank-{rank}.json")),
    ) as profiler:
        yield profiler.step


def run(options: argparse.Namespace, place: job.Place) -> None:
    """Work until the steps or the time are over."""
    work = Work(options, place)
    report = job.Report(place, "figure", options.results)
    with trace(options.trace, place.rank) as trace_step:
        for _ in job.step_numbers(options, place):
            report.add(work.step())
            trace_step()
            mark_step()
    report.close()


def main() -> None:
    """Run the job."""
    options, place = job.parse(catalog.ALLREDUCE_MATMUL)
    if options.numa == "bind":
        # Before there are threads and pinned memory: both stay where they begin.
        binding.bind()
    with job.process_group(place):
        run(options, place)


if __name__ == "__main__":
    main()
