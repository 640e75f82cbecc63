"""A mixture of experts, one on each rank: tokens travel to their expert and back by all-to-all.

    torchrun --nproc-per-node=2 -m overlaptop.agent workloads/expert_parallel.py --mode overlapped

In each layer a router gives every token an expert. The token goes to that expert's rank, through the
expert's two products, and back. In addition, all tokens go through a shared expert that every rank has (as
in DeepSeek-V3). With ``--mode sync`` each all-to-all is waited for at once. With ``overlapped`` the shared
expert's first product runs beside the way to the expert and its second one beside the way back, and
backward does the same. The router draws at random. With ``--skew 0`` all experts are equally likely; with a
larger skew the first ones are more likely (in proportion to ``1 / number**skew``), so some ranks get more
rows, and the others wait for them.

On the screen, ``sync`` exposes four all-to-alls a layer. With ``overlapped`` the shared expert's products
lie above them. The short all-to-alls carry counts. The CPU waits for each, which leaves gaps on a GPU.
"""

import argparse
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from overlaptop.workloads import job

LEARNING_RATE = 0.02


class Transfer:
    """Rows on their way to other ranks, and their gradients on the way back. ``sent`` and ``received``:
    numbers of rows for and from each rank. If it ``overlaps``, wait where the rows are used, not where they
    are sent.
    """

    def __init__(self, sent: list[int], received: list[int], *, overlaps: bool) -> None:
        self._sent, self._received, self._overlaps = sent, received, overlaps
        self._work: dist.Work | None = None
        self._rows = torch.empty(0)

    def start(self, rows: Tensor, *, back: bool = False) -> Tensor:
        """Send rows; the returned tensor is filled once `finish` has returned."""
        there, here = (self._received, self._sent) if back else (self._sent, self._received)
        self._rows = rows.new_empty(sum(here), rows.shape[1])
        sent = rows.contiguous()
        self._work = dist.all_to_all_single(self._rows, sent, here, there, async_op=self._overlaps)
        return self._rows

    def finish(self) -> Tensor:
        job.wait(self._work)
        rows, self._work, self._rows = self._rows, None, torch.empty(0)
        return rows


class Start(torch.autograd.Function):
    """Send rows. Backward waits for their gradients, which `Finish` has sent."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, transfer: Transfer) -> Tensor:
        ctx.transfer = transfer
        return transfer.start(rows)

    @staticmethod
    def backward(ctx: Any, _gradient: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.transfer.finish(), None


class Finish(torch.autograd.Function):
    """Wait for rows. Backward sends their gradients, so it overlaps the same work as the rows did."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, transfer: Transfer) -> Tensor:
        ctx.transfer = transfer
        transfer.finish()
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        ctx.transfer.start(gradient, back=True)
        return gradient, None


class Expert(nn.Module):
    """A feed-forward network of two products."""

    def __init__(self, width: int, random: torch.Generator) -> None:
        super().__init__()
        hidden = 2 * width
        self.up = nn.Parameter(torch.randn(width, hidden, generator=random) / width**0.5)
        self.down = nn.Parameter(torch.randn(hidden, width, generator=random) / hidden**0.5)


class Layer(nn.Module):
    """The shared expert, the same on all ranks, and this rank's own."""

    def __init__(self, options: argparse.Namespace, place: job.Place, number: int) -> None:
        super().__init__()

        def random(which: int) -> torch.Generator:
            seed = (options.seed * options.layers + number) * (place.world_size + 1) + which
            return torch.Generator(place.device).manual_seed(seed)

        with place.device:
            self.shared = Expert(options.width, random(0))
            self.own = Expert(options.width, random(place.rank + 1))
        self._overlaps = options.mode == "overlapped"

    def forward(self, rows: Tensor, experts: Tensor) -> Tensor:
        """Send rows (tokens, width) through the expert of each, (tokens,), and the shared one."""
        order = experts.argsort(stable=True)
        sent = experts.bincount(minlength=dist.get_world_size())
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        counts = sent.tolist(), received.tolist()
        there = Transfer(*counts, overlaps=self._overlaps)
        back = Transfer(*reversed(counts), overlaps=self._overlaps)

        normed = functional.layer_norm(rows, rows.shape[-1:])
        leaving = job.apply(Start, normed[order], there)
        hidden = functional.gelu(normed @ self.shared.up)
        arrived = job.apply(Finish, leaving, there)
        made = functional.gelu(arrived @ self.own.up) @ self.own.down
        returning = job.apply(Start, made, back)
        shared = hidden @ self.shared.down
        returned = job.apply(Finish, returning, back)
        return rows + shared + returned[order.argsort()]


def chances(ranks: int, skew: float) -> Tensor:
    """Return the probability of each expert, (ranks,)."""
    weights = torch.arange(1, ranks + 1, dtype=torch.float64) ** -skew
    return weights / weights.sum()


def run(options: argparse.Namespace, place: job.Place) -> None:
    dtype, ranks = job.DTYPES[options.dtype], place.world_size
    layers = [Layer(options, place, number).to(dtype) for number in range(options.layers)]
    model = nn.ModuleList(layers)
    everywhere = [parameter for layer in layers for parameter in layer.shared.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    random = torch.Generator().manual_seed(options.seed * ranks + place.rank)
    rows = torch.randn(options.tokens, options.width, generator=random).to(place.device, dtype)
    drawn = chances(ranks, options.skew)
    if place.rank == 0:
        print(f"an expert gets up to {drawn.max().item() * ranks:.2f} times the mean", flush=True)
    report = job.Report(options, place)
    for _ in report.steps():
        made = rows
        for layer in layers:
            experts = drawn.multinomial(options.tokens, replacement=True, generator=random)
            made = layer(made, experts.to(place.device))
        loss = made.float().square().mean()
        (loss / ranks).backward()
        job.wait(*[dist.all_reduce(each.grad, async_op=True) for each in everywhere])
        optimizer.step()
        optimizer.zero_grad()
        report.add(loss)


if __name__ == "__main__":
    job.main(__file__, run)
