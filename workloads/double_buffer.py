"""Double buffering: one batch is loaded and copied while the other is used, and one set of gradients is
reduced while the next is computed.

    torchrun --nproc-per-node=2 -m overlaptop.agent workloads/double_buffer.py

The model is a stack of linear layers. ``--mode double-buffered`` loads the next batch on a thread and
copies it on a separate stream. It waits for an all-reduce one step after its start, so the next step's
forward and backward can hide it. ``--mode slow-loader`` does the same with gradients, but loads and copies
each batch when it is needed. ``--mode sequential`` does one after another. Gradients are applied one step
late in all three modes, so the numbers are the same.

On the screen, the all-reduce lies below the next step's forward and backward, and the copy beside them.
With ``slow-loader`` both lanes are empty while a batch is loaded. On a CPU such gaps are drawn as compute.
"""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import Tensor, nn

from overlaptop.workloads import job
from overlaptop.workloads.ddp import Bucket

LEARNING_RATE = 0.1
HOST_BATCHES = 3


class Loader:
    """Provides batches, each rank its own, on the device. They come from host memory and take a while to
    load; ``ahead``: load and copy the next one while the present one is used.
    """

    def __init__(self, options: argparse.Namespace, place: job.Place, *, ahead: bool) -> None:
        random = torch.Generator().manual_seed(options.seed * place.world_size + place.rank)
        shape, dtype = (options.batch, options.width), job.DTYPES[options.dtype]
        on_gpu = place.device.type == "cuda"
        host = torch.randn(HOST_BATCHES, *shape, generator=random).to(dtype)
        self._host = host.pin_memory() if on_gpu else host
        self._buffers = [torch.empty(shape, dtype=dtype, device=place.device) for _ in range(2)]
        self._load_s = options.loader_ms / 1e3
        self._loaded = 0
        self._stream = torch.cuda.Stream() if on_gpu and ahead else None
        if self._stream:
            self._stream.wait_stream(torch.cuda.current_stream())  # it may still use the buffers' memory
        self._thread = ThreadPoolExecutor(1) if ahead else None
        self._coming = self._thread.submit(self._load) if self._thread else None

    def next(self) -> Tensor:
        """Return a batch of shape (batch, width). It is overwritten during the step after this one."""
        if self._thread is None or self._coming is None:
            return self._load()
        batch = self._coming.result()
        if self._stream:
            current = torch.cuda.current_stream()
            current.wait_stream(self._stream)
            self._stream.wait_stream(current)  # the other buffer may still be in use
        self._coming = self._thread.submit(self._load)
        return batch

    def _load(self) -> Tensor:
        time.sleep(self._load_s)  # stands for a disk or a decoder
        batch = self._buffers[self._loaded % 2]
        with torch.cuda.stream(self._stream):
            batch.copy_(self._host[self._loaded % HOST_BATCHES], non_blocking=True)
        self._loaded += 1
        return batch

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()


def run(options: argparse.Namespace, place: job.Place) -> None:
    torch.manual_seed(options.seed)
    with place.device:
        model = nn.Sequential(*(nn.Linear(options.width, options.width) for _ in range(options.layers)))
    model.to(job.DTYPES[options.dtype])
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    filling, reduced = (Bucket(list(model.parameters())) for _ in range(2))
    reducing: dist.Work | None = None
    loader = Loader(options, place, ahead=options.mode == "double-buffered")
    report = job.Report(options, place)

    for _ in report.steps():
        filling.attach()
        filling.flat.zero_()
        loss = model(loader.next()).float().square().mean()
        loss.backward()

        job.wait(reducing)
        reduced.attach()
        optimizer.step()  # with the previous step's gradients; in the first step they are 0
        report.add(loss)  # here, so that an all-reduce begins and ends in the same step
        reducing = filling.reduce(async_op=options.mode != "sequential")
        filling, reduced = reduced, filling
    job.wait(reducing)
    loader.close()


if __name__ == "__main__":
    job.main(__file__, run)
