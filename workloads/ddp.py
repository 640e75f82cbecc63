"""A small GPT whose gradients are averaged over the ranks during backward, or after it.

    torchrun --nproc-per-node=2 -m overlaptop.agent workloads/ddp.py

With ``--mode bucketed`` DistributedDataParallel averages them in buckets, while backward runs. The other
modes are implemented here, with the same numbers to the last bit. ``bucketed-hooks`` does what DDP does,
``per-parameter`` reduces each gradient as soon as it is computed, ``after-backward`` reduces all at the
end.

The knob ``accumulation`` sets the number of batches whose gradients are summed before they are reduced. A
larger number means a smaller share of communication.

On the screen, communication lies below backward. With ``after-backward`` it follows backward, and the step
is longer by what was hidden. ``per-parameter`` has many short collectives with less bandwidth each.
"""

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from overlaptop.agent import knob
from overlaptop.workloads import gpt, job

ACCUMULATION = (1, 2, 4, 8)


class Bucket:
    """Some parameters, whose gradients are consecutive in one tensor. ``group``: None for all ranks."""

    def __init__(self, parameters: list[nn.Parameter], group: dist.ProcessGroup | None = None) -> None:
        self._parameters, self._group = parameters, group
        first, sizes = parameters[0], [parameter.numel() for parameter in parameters]
        self.flat = torch.zeros(sum(sizes), dtype=first.dtype, device=first.device)
        self._pieces = self.flat.split_with_sizes(sizes)
        self.attach()

    def attach(self) -> None:
        """Make these the gradients that backward adds to and the optimizer reads."""
        for parameter, piece in zip(self._parameters, self._pieces, strict=True):
            parameter.grad = piece.view_as(parameter)

    def reduce(self, *, async_op: bool) -> dist.Work | None:
        # Divide before the sum, as DDP does, so that two ranks match it to the last bit.
        self.flat /= dist.get_world_size(self._group)
        work: dist.Work | None = dist.all_reduce(self.flat, group=self._group, async_op=async_op)
        return work


def whenever_complete(parameters: list[nn.Parameter], call: Callable[[], None]) -> list[RemovableHandle]:
    """In each backward pass, call ``call`` as soon as all these parameters have their gradients."""
    missing = len(parameters)

    def gradient_is_there(_parameter: Tensor) -> None:
        nonlocal missing
        missing -= 1
        if not missing:
            missing = len(parameters)
            call()

    return [each.register_post_accumulate_grad_hook(gradient_is_there) for each in parameters]


class Reducer:
    """Averages a model's gradients: DDP's work, implemented here.

    The gradients become views into buckets; zero them with ``set_to_none=False``. A bucket ends at the
    parameter that reaches ``cap_mb`` MiB (0: one bucket for each parameter), and is reduced as soon as
    backward has filled it if this ``overlaps``, otherwise after backward.
    """

    def __init__(
        self, model: nn.Module, cap_mb: float, group: dist.ProcessGroup | None = None, *, overlaps: bool
    ) -> None:
        self._buckets: list[Bucket] = []
        self._hooks: list[RemovableHandle] = []
        self._pending: list[dist.Work | None] = []
        self._overlaps = overlaps
        self.is_last_batch = True  # Whether the next backward pass completes the gradients
        for parameters in in_buckets(model, cap_mb):
            bucket = Bucket(parameters, group)
            self._buckets.append(bucket)
            if overlaps:
                self._hooks += whenever_complete(parameters, partial(self._start, bucket))

    def _start(self, bucket: Bucket) -> None:
        if self.is_last_batch:
            self._pending.append(bucket.reduce(async_op=True))

    def finish(self) -> None:
        """Finish averaging all gradients, before the optimizer uses them."""
        if not self._overlaps:
            for bucket in self._buckets:
                bucket.reduce(async_op=False)
        job.wait(*self._pending)
        self._pending.clear()

    def close(self) -> None:
        """Remove the hooks: through them the parameters would hold the group for good."""
        for hook in self._hooks:
            hook.remove()


def in_buckets(model: nn.Module, cap_mb: float) -> list[list[nn.Parameter]]:
    """Return the parameters from last to first, in groups that just reach `cap_mb` MiB, as in DDP."""
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
    """Sum the gradients of `count` batches, each weighted by 1/count, and average them over the ranks.
    Without a reducer the model is a DistributedDataParallel. Returns the mean loss, shape ().
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
    with gpt.arithmetic(options):
        model: nn.Module = gpt.build(options, place)
        optimizer = torch.optim.AdamW(model.parameters(), lr=gpt.LEARNING_RATE, fused=True)
        reducer = None
        if options.mode == "bucketed":
            model = DistributedDataParallel(
                model, bucket_cap_mb=options.bucket_cap_mb, gradient_as_bucket_view=True
            )
        else:
            cap_mb = 0.0 if options.mode == "per-parameter" else options.bucket_cap_mb
            reducer = Reducer(model, cap_mb, overlaps=options.mode != "after-backward")
        batches = gpt.Batches(options, place)
        report = job.Report(options, place, marks=False)
        accumulation = knob(
            "accumulation", int(options.accumulation), choices=ACCUMULATION, unit="batches",
            about="batches whose gradients are summed before they are reduced", changes_work=True,
        )  # fmt: skip
        for _ in report.steps(lambda: accumulation.value):
            loss = train_on(model, reducer, batches, accumulation.value)
            optimizer.step()
            optimizer.zero_grad(set_to_none=reducer is None)
            report.add(loss)


if __name__ == "__main__":
    job.main(__file__, run)
