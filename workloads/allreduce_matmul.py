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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import profile, schedule

from overlaptop.agent import step as mark_step
from overlaptop.workloads import job
from overlaptop.workloads.host_staging import HostStaging, is_one_host
from overlaptop.workloads.options import OptionsError

TRACED_STEPS = 4


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
        self._fetch_next_batch()
        product = self._multiply()
        if self._staging is not None:
            self._staging.finish(self._gradient)
        if self._copy_stream:
            torch.cuda.current_stream().wait_stream(self._copy_stream)
        job.wait(reducing)
        self._batch, self._next_batch = self._next_batch, self._batch
        self._step += 1
        return product[0].float().mean() + self._gradient[:1024].float().mean()

    def _multiply(self) -> Tensor:
        product = self._batch
        for _ in range(self._products):
            product = self._weight @ product
        return product

    def _fetch_next_batch(self) -> None:
        """Copy on the copy stream, once all work launched so far is done."""
        if self._copy_stream:
            self._copy_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._copy_stream):
            self._next_batch.copy_(self._host[self._step % 2], non_blocking=True)

    def close(self) -> None:
        """Release the memory shared between processes."""
        if self._staging is not None:
            self._staging.close()


@contextmanager
def trace(folder: Path | None, rank: int) -> Iterator[Callable[[], None]]:
    """Have torch.profiler write a Chrome trace of a few steps to ``folder``'s ``rank-0.json`` and so on
    (None: no trace); yields a function to call after each step.
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
    if options.mode == "host-staged" and not is_one_host(place.world_size):
        raise OptionsError("--mode host-staged: all ranks must run on one host")
    work = Work(options, place)
    report = job.Report(options, place, "figure")
    with trace(options.trace, place.rank) as trace_step:
        for _ in report.steps():
            report.add(work.step())
            trace_step()
            mark_step()  # there is no optimizer that shows where a step ends
    work.close()


if __name__ == "__main__":
    job.main(__file__, run)
