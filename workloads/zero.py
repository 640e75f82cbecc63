"""A small GPT under ZeRO-1 or ZeRO-2, implemented here: each rank optimizes a share of the weights.

    torchrun --nproc-per-node=2 -m overlaptop.agent workloads/zero.py

It is the model of ddp.py, with the same weights and batches. Weights are in buckets, and each rank has an
optimizer for its share of each bucket. In a step, gradients are reduce-scattered, so that each rank gets
the mean of its share. The rank's optimizers step. Then the new weights are gathered from all ranks.

With ``--mode overlapped`` a bucket's gradients are reduce-scattered as soon as backward has filled it, the
optimizers step in the order their shares arrive, and weights are gathered beside the next forward pass,
each module waiting for its own. With ``--mode sequential`` one follows the other. The numbers are the same.
``--stage 1`` keeps a bucket's gradients for good, ``--stage 2`` until they are reduced. gloo has no
reduce-scatter: torch emulates it by an all-reduce, and hides when it ends. So the job uses an all-reduce.

On the screen, reduce-scatters lie below backward and all-gathers below forward. With ``sequential`` all of
them lie between backward and forward, exposed.
"""

import argparse
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from overlaptop.agent import step as mark_step
from overlaptop.workloads import gpt, job
from overlaptop.workloads.ddp import in_buckets, whenever_complete


class Bucket:
    """Some parameters, which become views into one flat tensor, and this rank's share of them.

    ``keeps_gradients``: they are permanent views of another flat tensor; otherwise they are concatenated
    when complete, and freed when they are reduced.
    """

    def __init__(self, parameters: list[nn.Parameter], place: job.Place, *, keeps_gradients: bool) -> None:
        self._parameters = parameters
        self._ranks = place.world_size
        sizes = [parameter.numel() for parameter in parameters]
        share = -(-sum(sizes) // self._ranks)  # rounded up: the last one has padding
        self._padding = [parameters[0].new_zeros(share * self._ranks - sum(sizes))]
        self._weights = torch.cat([p.detach().flatten() for p in parameters] + self._padding)
        self._gradients = torch.zeros_like(self._weights) if keeps_gradients else None
        self._reduced: Tensor | None = None  # Gradients being reduced; kept until the reduction is done
        at = 0
        for parameter, size in zip(parameters, sizes, strict=True):
            parameter.data = self._weights[at : at + size].view_as(parameter)
            if self._gradients is not None:
                parameter.grad = self._gradients[at : at + size].view_as(parameter)
            at += size

        self._scatters = place.device.type != "cpu"
        self._own = slice(place.rank * share, (place.rank + 1) * share)
        self._share = nn.Parameter(self._weights[self._own].clone())
        self._share.grad = torch.zeros_like(self._share)
        self._optimizer = torch.optim.AdamW([self._share], lr=gpt.LEARNING_RATE, fused=True)
        self._reducing: dist.Work | None = None
        self._gathering: dist.Work | None = None

    def reduce(self, *, async_op: bool) -> None:
        flat = self._gradients
        if flat is None:
            gradients = [p.grad.flatten() for p in self._parameters if p.grad is not None]
            flat = torch.cat(gradients + self._padding)
            for parameter in self._parameters:
                parameter.grad = None
        flat /= self._ranks
        self._reduced = flat
        if self._scatters:
            self._reducing = job.reduce_scatter(self._share.grad, flat, async_op=async_op)
        else:
            self._reducing = dist.all_reduce(flat, async_op=async_op)

    def step(self) -> None:
        """Optimize this rank's share as soon as its gradients have arrived."""
        job.wait(self._reducing)
        self._reducing = None
        if not self._scatters and self._reduced is not None:
            self._share.grad = self._reduced[self._own].clone()
        self._optimizer.step()
        if self._gradients is not None:
            self._gradients.zero_()
        self._reduced = None

    def gather(self, *, async_op: bool) -> None:
        self._gathering = job.all_gather(self._weights, self._share.detach(), async_op=async_op)

    def wait_for_weights(self) -> None:
        job.wait(self._gathering)
        self._gathering = None


class Zero:
    """The buckets of a model, and the order of their work."""

    def __init__(self, model: nn.Module, options: argparse.Namespace, place: job.Place) -> None:
        self._overlaps = options.mode == "overlapped"
        self._buckets: list[Bucket] = []  # In the order backward fills them
        self._arriving: list[Bucket] = []
        bucket_of: dict[nn.Parameter, Bucket] = {}
        for parameters in in_buckets(model, options.bucket_cap_mb):
            bucket = Bucket(parameters, place, keeps_gradients=options.stage == "1")
            self._buckets.append(bucket)
            bucket_of |= dict.fromkeys(parameters, bucket)
            if self._overlaps:
                whenever_complete(parameters, partial(self._start, bucket))
        for module in model.modules() if self._overlaps else ():
            needed = {bucket_of[parameter] for parameter in module.parameters(recurse=False)}
            for bucket in needed:
                module.register_forward_pre_hook(lambda *_, bucket=bucket: bucket.wait_for_weights())

    def _start(self, bucket: Bucket) -> None:
        bucket.reduce(async_op=True)
        self._arriving.append(bucket)

    def step(self) -> None:
        """Optimize this rank's shares, after backward."""
        for bucket in () if self._overlaps else self._buckets:
            bucket.reduce(async_op=False)
        for bucket in self._arriving or self._buckets:
            bucket.step()
        self._arriving.clear()

    def gather(self) -> None:
        for bucket in reversed(self._buckets):
            bucket.gather(async_op=self._overlaps)

    def close(self) -> None:
        for bucket in self._buckets:
            bucket.wait_for_weights()


def run(options: argparse.Namespace, place: job.Place) -> None:
    with gpt.arithmetic(options):
        zero = Zero(model := gpt.build(options, place), options, place)
        batches = gpt.Batches(options, place)
        report = job.Report(options, place, marks=False)
        if place.device.type == "cpu" and place.rank == 0:
            print("gloo has no reduce-scatter: an all-reduce takes its place", flush=True)
        for number in report.steps():
            # By hand: there are as many optimizers as buckets. A gather then lies within one step.
            mark_step()
            if number:
                zero.gather()
            loss = model(batches.next())
            loss.backward()
            zero.step()
            report.add(loss)
        zero.gather()
        zero.close()


if __name__ == "__main__":
    job.main(__file__, run)
