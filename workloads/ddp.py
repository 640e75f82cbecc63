"""A small GPT whose gradients are averaged over the ranks while backward runs, or behind it.

    torchrun --nproc-per-node=2 -m overlaptop.agent workloads/ddp.py

With ``--mode bucketed`` DistributedDataParallel does it. The other modes are written out here: they give
the same numbers to the last bit, and differ in when what is reduced.

Its knob ``accumulation`` says over how many batches gradients are summed before they are reduced: the more,
the smaller is the share of communication.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from overlaptop.agent import knob
from overlaptop.workloads import catalog, gpt, job

ACCUMULATION = (1, 2, 4, 8)
"""What there is to choose from."""


class Bucket:
    """Some parameters, whose gradients lie one after the other in one tensor."""

    def __init__(self, parameters: list[nn.Parameter], world_size: int) -> None:
        self._parameters, self._world_size = parameters, world_size
        first, sizes = parameters[0], [parameter.numel() for parameter in parameters]
        self.flat = torch.zeros(sum(sizes), dtype=first.dtype, device=first.device)
        self._pieces = self.flat.split_with_sizes(sizes)
        self.attach()

    def attach(self) -> None:
        """Have backward add to, and the optimizer read, these."""
        for parameter, piece in zip(self._parameters, self._pieces, strict=True):
            parameter.grad = piece.view_as(parameter)

    def reduce(self, *, async_op: bool) -> dist.Work | None:
        """Average over the ranks."""
        # Before the sum, as DDP does, so that two ranks agree with it to the last bit.
        self.flat /= self._world_size
        work: dist.Work | None = dist.all_reduce(self.flat, async_op=async_op)
        return work


def whenever_complete(parameters: list[nn.Parameter], call: Callable[[], None]) -> None:
    """Call it in each backward pass, as soon as all of these have their gradients."""
    missing = len(parameters)

    def gradient_is_there(_parameter: Tensor) -> None:
        nonlocal missing
        missing -= 1
        if not missing:
            missing = len(parameters)
            call()

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(gradient_is_there)


class Reducer:
    """Averages a model's gradients: what DDP does, written out.

    Args:
        model: its gradients become views into buckets; zero them with ``set_to_none=False``.
        cap_mb: MiB that a bucket just reaches; 0: each parameter has one of its own.
        world_size: how many ranks there are.
        overlaps: a bucket is reduced as soon as backward has filled it; else all are when it has ended.
    """

    def __init__(self, model: nn.Module, cap_mb: float, world_size: int, *, overlaps: bool) -> None:
        self._buckets: list[Bucket] = []
        self._pending: list[dist.Work | None] = []
        self._overlaps = overlaps
        self.is_last_batch = True
        """The next backward pass completes the gradients."""
        for parameters in in_buckets(model, cap_mb):
            bucket = Bucket(parameters, world_size)
            self._buckets.append(bucket)
            if overlaps:
                whenever_complete(parameters, partial(self._start, bucket))

    def _start(self, bucket: Bucket) -> None:
        if self.is_last_batch:
            self._pending.append(bucket.reduce(async_op=True))

    def finish(self) -> None:
        """Have all gradients averaged before the optimizer uses them."""
        if not self._overlaps:
            for bucket in self._buckets:
                bucket.reduce(async_op=False)
        for work in self._pending:
            if work is not None:
                work.wait()
        self._pending.clear()


def in_buckets(model: nn.Module, cap_mb: float) -> list[list[nn.Parameter]]:
    """The parameters from last to first, in groups that just reach `cap_mb` MiB, as DDP forms them."""
    buckets: list[list[nn.Parameter]] = [[]]
    filled_bytes = 0
    for parameter in reversed(list(model.parameters())):
        if buckets[-1] and filled_bytes >= cap_mb * job.MIB:
            buckets.append([])
            filled_bytes = 0
        buckets[-1].append(parameter)
        filled_bytes += parameter.nbytes
    return buckets


def train_on(model: nn.Module, reducer: Reducer | None, batches: gpt.Batches, count: int) -> Tensor:
    """Gather the gradients of so many batches, each counting for its share, and average them at the last.

    Args:
        model: what is trained; without a reducer a DistributedDataParallel.
        reducer: averages its gradients.
        batches: where they come from.
        count: how many.

    Returns:
        The mean loss, shape ().
    """
    losses = []
    for left in reversed(range(count)):
        keeps_to_itself: AbstractContextManager[None] = nullcontext()
        if reducer is not None:
            reducer.is_last_batch = left == 0
        elif left:
            assert isinstance(model, DistributedDataParallel)
            keeps_to_itself = model.no_sync()
        with keeps_to_itself:
            loss = model(batches.next()) / count
            loss.backward()
        losses.append(loss.detach())
    if reducer is not None:
        reducer.finish()
    return torch.stack(losses).sum()


def run(options: argparse.Namespace, place: job.Place) -> None:
    """Train until the steps or the time are over."""
    with gpt.arithmetic(options):
        train(options, place)


def train(options: argparse.Namespace, place: job.Place) -> None:
    """Train with the numbers as the process has them."""
    model: nn.Module = gpt.build(options, place)
    optimizer = torch.optim.AdamW(model.parameters(), lr=gpt.LEARNING_RATE, fused=True)
    reducer = None
    if options.mode == "bucketed":
        model = DistributedDataParallel(
            model, bucket_cap_mb=options.bucket_cap_mb, gradient_as_bucket_view=True
        )
    else:
        cap_mb = 0.0 if options.mode == "per-parameter" else options.bucket_cap_mb
        reducer = Reducer(model, cap_mb, place.world_size, overlaps=options.mode != "after-backward")
    batches = gpt.Batches(options, place)
    report = job.Report(place, "loss", options.results)
    accumulation = knob(
        "accumulation",
        int(options.accumulation),
        choices=ACCUMULATION,
        unit="batches",
        about="batches whose gradients are summed before they are reduced",
        changes_work=True,
    )

    for _ in job.step_numbers(options, place, lambda: accumulation.value):
        loss = train_on(model, reducer, batches, accumulation.value)
        optimizer.step()
        optimizer.zero_grad(set_to_none=reducer is None)
        report.add(loss)
    report.close()


if __name__ == "__main__":
    job.main(catalog.DDP, run)
