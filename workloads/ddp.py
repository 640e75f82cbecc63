"""A small GPT under DistributedDataParallel: gradients are all-reduced in buckets while backward runs.

    torchrun --nproc-per-node=2 -m overlaptop.agent workloads/ddp.py

With ``--no-overlap`` the same buckets are reduced one after the other when backward has ended. The
numbers are the same, the step is longer: what the difference is worth is what the monitor shows.

Its knob ``accumulation`` says over how many batches gradients are summed before they are reduced: the more,
the smaller is the share of communication.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from overlaptop.agent import knob
from overlaptop.workloads import catalog, gpt, job

ACCUMULATION = (1, 2, 4, 8)
"""What there is to choose from; the first is the default."""


def reduce_after_backward(buckets: list[list[nn.Parameter]], world_size: int) -> None:
    """Average the gradients over the ranks, bucket by bucket, with nothing beside it."""
    for bucket in buckets:
        gradients = [parameter.grad for parameter in bucket if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        flat /= world_size  # before the sum, as DDP does, so that two ranks agree with it to the last bit
        dist.all_reduce(flat)
        pieces = flat.split_with_sizes([gradient.numel() for gradient in gradients])
        for gradient, piece in zip(gradients, pieces, strict=True):
            gradient.copy_(piece.view_as(gradient))


def in_buckets(model: nn.Module, cap_mb: float) -> list[list[nn.Parameter]]:
    """The parameters from last to first, in groups that just reach `cap_mb` MiB, as DDP forms them."""
    buckets: list[list[nn.Parameter]] = [[]]
    filled_bytes = 0
    for parameter in reversed(list(model.parameters())):
        if filled_bytes >= cap_mb * job.MIB:
            buckets.append([])
            filled_bytes = 0
        buckets[-1].append(parameter)
        filled_bytes += parameter.nbytes
    return buckets


def train_on(
    ddp: DistributedDataParallel, batches: gpt.Batches, count: int, *, reduces: bool
) -> torch.Tensor:
    """Gather the gradients of so many batches, each counting for its share.

    Args:
        ddp: the model.
        batches: where they come from.
        count: how many.
        reduces: have DDP reduce the gradients in the last backward pass.

    Returns:
        The mean loss, shape ().
    """
    total: torch.Tensor | None = None
    for left in reversed(range(count)):
        with nullcontext() if reduces and left == 0 else ddp.no_sync():
            loss = ddp(batches.next())
            if count > 1:
                loss = loss / count
            loss.backward()
        total = loss.detach() if total is None else total + loss.detach()
    assert total is not None, "there is at least one batch"
    return total


def run(options: argparse.Namespace, place: job.Place) -> None:
    """Train until the steps or the time are over."""
    with gpt.arithmetic(options):
        train(options, place)


def train(options: argparse.Namespace, place: job.Place) -> None:
    """Train with the numbers as the process has them."""
    model = gpt.build(options, place)
    ddp = DistributedDataParallel(
        model, bucket_cap_mb=options.bucket_cap_mb, gradient_as_bucket_view=not options.no_overlap
    )
    buckets = in_buckets(model, options.bucket_cap_mb)
    optimizer = torch.optim.AdamW(model.parameters(), lr=gpt.LEARNING_RATE, fused=True)
    batches = gpt.Batches(options, place)
    report = job.Report(place, "loss", options.results)
    accumulation = knob(
        "accumulation",
        ACCUMULATION[0],
        choices=ACCUMULATION,
        unit="batches",
        about="batches whose gradients are summed before they are reduced",
        changes_work=True,
    )

    for _ in job.step_numbers(options, place, lambda: accumulation.value):
        loss = train_on(ddp, batches, accumulation.value, reduces=not options.no_overlap)
        if options.no_overlap:
            reduce_after_backward(buckets, place.world_size)
        optimizer.step()
        optimizer.zero_grad()
        report.add(loss)
    report.close()


def main() -> None:
    """Run the job."""
    job.main(catalog.DDP, run)


if __name__ == "__main__":
    main()
