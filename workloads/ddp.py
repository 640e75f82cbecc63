"""A small GPT under DistributedDataParallel: gradients are all-reduced in buckets while backward runs.

    torchrun --nproc-per-node=2 -m overlaptop.agent workloads/ddp.py

With ``--no-overlap`` the same buckets are reduced one after the other when backward has ended. The
numbers are the same, the step is longer: what the difference is worth is what the monitor shows.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from overlaptop.workloads import gpt, job


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the job is where the user does not say."""

    bucket_cap_mb: float
    layers: int
    width: int
    batch: int
    seq: int
    vocabulary: int
    dtype: str


SIZES = {
    # 840 million parameters, 1.7 GB of gradients: about 50 ms a step on two H200s.
    "cuda": Sizes(25, layers=16, width=2048, batch=4, seq=1024, vocabulary=8192, dtype="bfloat16"),
    # 3.7 million parameters, 15 MB of gradients: a step of 0.1 to 0.3 s on two laptop cores.
    "cpu": Sizes(2, layers=4, width=256, batch=4, seq=128, vocabulary=1024, dtype="float32"),
}


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


def train(options: argparse.Namespace, place: job.Place) -> None:
    """Train until the steps or the time are over."""
    model = gpt.build(options, place)
    ddp = DistributedDataParallel(
        model, bucket_cap_mb=options.bucket_cap_mb, gradient_as_bucket_view=not options.no_overlap
    )
    buckets = in_buckets(model, options.bucket_cap_mb)
    optimizer = torch.optim.AdamW(model.parameters(), lr=gpt.LEARNING_RATE, fused=True)
    batches = gpt.Batches(options, place)
    report = job.Report(place, "loss", options.results)

    for _ in job.step_numbers(options.steps, options.seconds, place):
        with ddp.no_sync() if options.no_overlap else nullcontext():
            loss = ddp(batches.next())
            loss.backward()
        if options.no_overlap:
            reduce_after_backward(buckets, place.world_size)
        optimizer.step()
        optimizer.zero_grad()
        report.add(loss)
    report.close()


def parse(argv: list[str] | None = None) -> tuple[argparse.Namespace, job.Place]:
    """The options, complete with the defaults of the device, and this process's place in the job."""
    parser = job.Parser(description="Train a small GPT under DDP.")
    parser.add_argument(
        "--bucket-cap-mb",
        type=job.positive_float,
        metavar="MB",
        help=f"DDP's bucket size in MiB{job.defaults(SIZES, '--bucket-cap-mb')}",
    )
    parser.add_argument("--no-overlap", action="store_true", help="reduce gradients after backward")
    gpt.add_options(parser, SIZES)
    return gpt.parse(parser, SIZES, argv)


def main() -> None:
    """Run the job."""
    options, place = parse()
    with gpt.arithmetic(options), job.process_group(place):
        train(options, place)


if __name__ == "__main__":
    main()
