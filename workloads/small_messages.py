"""Many small all-reduces, whose fixed cost exceeds that of their bytes, and four ways to wait for them.

    torchrun --nproc-per-node=2 -m overlaptop.agent workloads/small_messages.py

``--send separate`` reduces each message by itself, ``coalesced`` passes all to the backend as one
operation, ``flat`` copies them into one tensor and back. Then the step multiplies matrices, one for each
message. ``--wait at-once`` waits for each message directly after its start, so nothing overlaps. ``late``
waits for one after each product, ``together`` for all after the last product. ``polling`` checks after each
product which have arrived. The numbers are the same in all of them.

On the screen, compare the number of collectives in a step and their summed time.
"""

import argparse
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _coalescing_manager  # torch has no public one

from overlaptop.workloads import job


class Messages:
    """The tensors to reduce, and how they are sent."""

    def __init__(self, options: argparse.Namespace, place: job.Place) -> None:
        dtype = job.DTYPES[options.dtype]
        elements = max(1, options.kb * 1024 // dtype.itemsize)
        self._rank, self._ranks, self._send = place.rank, place.world_size, options.send
        self._messages = [
            torch.zeros(elements, dtype=dtype, device=place.device) for _ in range(options.messages)
        ]
        self._flat = torch.cat(self._messages) if options.send == "flat" else None

    def start(self) -> Iterator[dist.Work]:
        """Change each message and start to reduce it; yields the Works to wait for."""
        for number, message in enumerate(self._messages):
            message.mul_(0.5 / self._ranks).add_(self._rank + number)
        if self._send == "coalesced":
            with _coalescing_manager(async_ops=True) as manager:
                for message in self._messages:
                    dist.all_reduce(message)
            yield from manager.works
            return
        if self._flat is not None:
            torch.cat(self._messages, out=self._flat)
        for message in self._messages if self._flat is None else [self._flat]:
            work = dist.all_reduce(message, async_op=True)
            assert work is not None, "it is asynchronous"
            yield work

    def finish(self) -> Tensor:
        """Use the results; returns a figure, shape (), that depends on all of them."""
        if self._flat is not None:
            pieces = self._flat.chunk(len(self._messages))
            for message, piece in zip(self._messages, pieces, strict=True):
                message.copy_(piece)
        return torch.stack([message.float().mean() for message in self._messages]).sum()


def step(messages: Messages, matrix: Tensor, products: int, wait: str) -> Tensor:
    """Do one step; returns a figure, shape (), that depends on every product and message."""
    pending = []
    for work in messages.start():
        if wait == "at-once":
            work.wait()
        else:
            pending.append(work)

    product = matrix
    for _ in range(products):
        product = matrix @ product
        arrived = []
        if wait == "late":
            arrived = pending[:1]
        elif wait == "polling":
            arrived = [work for work in pending if work.is_completed()]
        for work in arrived:
            work.wait()
            pending.remove(work)
    job.wait(*pending)
    return messages.finish() + product[0].float().mean()


def run(options: argparse.Namespace, place: job.Place) -> None:
    random = torch.Generator().manual_seed(options.seed)
    n = options.matrix
    matrix = (torch.randn(n, n, generator=random) / n**0.5).to(place.device, job.DTYPES[options.dtype])
    messages = Messages(options, place)
    report = job.Report(options, place, "figure")
    for _ in report.steps():
        report.add(step(messages, matrix, options.messages, options.wait))


if __name__ == "__main__":
    job.main(__file__, run)
