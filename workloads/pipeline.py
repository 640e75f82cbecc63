"""Layers split over the ranks in order: a pipeline of micro-batches, and its bubble.

    torchrun --nproc-per-node=2 -m overlaptop.agent workloads/pipeline.py --mode 1f1b

The first rank has the first layers, the last rank the last ones. A batch passes through in micro-batches,
so that ranks work at the same time. While the pipeline fills and drains, ranks wait: that is the bubble.

``--mode gpipe``, ``1f1b``, ``interleaved`` and ``zero-bubble`` are schedules of
torch.distributed.pipelining; the last two give each rank two shorter stages. ``hand-written`` is a stage
implemented here: it runs all forwards, then all backwards. It requests the next micro-batch before it
computes the present one, and waits for no send. ``blocking`` is the same without overlap: it waits for each
send and receive.

Every few seconds the job prints the bubble by formula (p ranks, m micro-batches, v stages per rank;
`bubble`) and as measured: the share of a step beyond the time of its micro-batches alone. So the measured
bubble also contains exposed transfers, the optimizer, the loss's broadcast and, with ``zero-bubble``, the
extra time of two half backward passes over a whole one.

On the screen, the last rank is idle at a step's beginning and the first one in its middle, less with more
``--microbatches``. The end of gloo's sends is not seen, so on a CPU steps have no lanes.
"""

import argparse
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.nn import functional

from overlaptop.workloads import job
from overlaptop.workloads.catalog import STAGES_A_RANK

LEARNING_RATE = 0.05

Step = Callable[[Tensor, Tensor], list[Tensor]]
"""Runs a batch forward and backward; returns the micro-batches' losses on the last rank, none elsewhere."""


class Layer(nn.Module):
    """A product with a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.product = nn.Linear(width, width)

    def forward(self, rows: Tensor) -> Tensor:
        return rows + functional.gelu(self.product(rows))


def build(options: argparse.Namespace, place: job.Place) -> list[nn.Sequential]:
    """Return all stages of the model, the same on all ranks; each rank uses its own."""
    torch.manual_seed(options.seed)
    with place.device:
        layers = [Layer(options.width) for _ in range(options.layers)]
    each = options.layers // (place.world_size * STAGES_A_RANK.get(options.mode, 1))
    stages = [nn.Sequential(*layers[at : at + each]) for at in range(0, options.layers, each)]
    return [stage.to(job.DTYPES[options.dtype]) for stage in stages]


def mean_square(output: Tensor, target: Tensor) -> Tensor:
    return functional.mse_loss(output.float(), target.float())


def bubble(mode: str, ranks: int, microbatches: int) -> float:
    """Return the share of a step that a rank waits, if transfers took no time and a micro-batch's forward,
    its input's gradient and its weights' gradient took the same time each.

    ``(p-1)/(m+p-1)`` for GPipe (Huang and others, 2019) and 1F1B, ``(p-1)/(v*m+p-1)`` interleaved
    (Narayanan and others, 2021). Zero bubble's ZB1P fills two thirds of it with gradients of weights:
    ``(p-1)/(3*v*m+p-1)`` (Qi and others, 2023).
    """
    filled = (3 if mode == "zero-bubble" else 1) * STAGES_A_RANK.get(mode, 1) * microbatches
    return (ranks - 1) / (filled + ranks - 1)


class Neighbour:
    """Transfers of tensors like this one to and from the rank before this one, or after it; None: no such
    rank. If it ``overlaps``, it requests receives ahead, and waits for sends only at the step's end.
    """

    def __init__(self, rank: int | None, like: Tensor, *, overlaps: bool) -> None:
        self.rank, self._like, self._overlaps = rank, like, overlaps
        self._left = 0
        self._arriving: tuple[Tensor, dist.Work | None] | None = None
        self._sending: list[dist.Work | None] = []

    def begin(self, count: int) -> None:
        self._left = count
        self._ask()

    def receive(self) -> Tensor:
        if self._arriving is None:
            rows = torch.empty_like(self._like)
            dist.recv(rows, self.rank)
            return rows
        rows, work = self._arriving
        self._ask()
        job.wait(work)
        return rows

    def _ask(self) -> None:
        self._arriving = None
        if self.rank is not None and self._overlaps and self._left:
            self._left -= 1
            rows = torch.empty_like(self._like)
            self._arriving = rows, dist.irecv(rows, self.rank)

    def send(self, rows: Tensor) -> None:
        if self.rank is not None and self._overlaps:
            self._sending.append(dist.isend(rows, self.rank))
        elif self.rank is not None:
            dist.send(rows, self.rank)

    def settle(self) -> None:
        job.wait(*self._sending)
        self._sending.clear()


class Stage:
    """One rank's layers, implemented here: all micro-batches forward, then all backward."""

    def __init__(
        self, layers: nn.Module, options: argparse.Namespace, place: job.Place, *, overlaps: bool
    ) -> None:
        self._layers, self._count = layers, options.microbatches
        last = place.world_size - 1
        rows = torch.empty(
            (options.batch // self._count, options.width),
            dtype=job.DTYPES[options.dtype], device=place.device,
        )  # fmt: skip
        self._before = Neighbour(place.rank - 1 if place.rank else None, rows, overlaps=overlaps)
        self._behind = Neighbour(place.rank + 1 if place.rank < last else None, rows, overlaps=overlaps)

    def step(self, batch: Tensor, target: Tensor) -> list[Tensor]:
        """Run a batch. Only the first stage uses the rows, and only the last the target."""
        before, behind = self._before, self._behind
        inputs, outputs, losses = [], [], []
        before.begin(self._count)
        for own, wanted in zip(batch.chunk(self._count), target.chunk(self._count), strict=True):
            rows = own if before.rank is None else before.receive().requires_grad_()
            output = self._layers(rows)
            behind.send(output.detach())
            if behind.rank is None:
                loss = mean_square(output, wanted)
                losses.append(loss.detach())
                output = loss / self._count
            inputs.append(rows)
            outputs.append(output)
        behind.begin(self._count)
        for rows, output in zip(inputs, outputs, strict=True):
            gradient = None if behind.rank is None else behind.receive()
            output.backward(gradient)
            if rows.grad is not None:
                before.send(rows.grad)
        before.settle()
        behind.settle()
        return losses


def torchs(
    options: argparse.Namespace, place: job.Place, stages: list[nn.Sequential], own: list[int]
) -> Step:
    """Return the step of one of torch's schedules over this rank's stages."""
    made = [pipelining.PipelineStage(stages[at], at, len(stages), place.device) for at in own]
    kinds = {
        "gpipe": pipelining.ScheduleGPipe,
        "1f1b": pipelining.Schedule1F1B,
        "interleaved": pipelining.ScheduleInterleaved1F1B,
        "zero-bubble": pipelining.ScheduleInterleavedZeroBubble,
    }
    several = options.mode in STAGES_A_RANK
    schedule = kinds[options.mode](made if several else made[0], options.microbatches, loss_fn=mean_square)

    def step(batch: Tensor, target: Tensor) -> list[Tensor]:
        losses: list[Tensor] = []
        rows = (batch,) if place.rank == 0 else ()
        if place.rank == place.world_size - 1:
            schedule.step(*rows, target=target, losses=losses)
        else:
            schedule.step(*rows)
        return losses

    return step


class BubbleMeter:
    """Prints the bubble on rank 0 every few seconds, by formula and as measured: a step's micro-batches
    alone take ``busy_s``.
    """

    def __init__(self, place: job.Place, formula: float, busy_s: float) -> None:
        self._prints, self._formula, self._busy_s = place.rank == 0, formula, busy_s
        self._steps = -1  # a schedule's first step exchanges shapes between ranks, and is slower
        self._since_s = time.monotonic()

    def step(self, *, last: bool = False) -> None:
        now_s = time.monotonic()
        self._steps += 1
        if self._steps == 0:
            self._since_s = now_s
        elif self._prints and (last or now_s - self._since_s >= job.REPORT_EVERY_S):
            step_s = (now_s - self._since_s) / self._steps
            measured = max(0.0, 1 - self._busy_s / step_s)
            print(f"bubble {self._formula:.1%} by formula, {measured:.1%} measured", flush=True)
            self._steps, self._since_s = 0, now_s


def time_alone(stages: list[nn.Sequential], options: argparse.Namespace, place: job.Place) -> float:
    """Return the seconds that a step's micro-batches take in these stages, forward and backward, without
    waiting for other ranks.
    """
    rows = torch.randn(options.batch // options.microbatches, options.width, device=place.device)
    took_s: list[float] = []
    for _ in range(4):
        began_s = time.monotonic()
        for stage in stages:
            micro = rows.to(job.DTYPES[options.dtype]).requires_grad_()
            stage(micro).float().square().mean().backward()
        if place.device.type == "cuda":
            torch.cuda.synchronize()
        took_s.append(time.monotonic() - began_s)
    for stage in stages:
        stage.zero_grad()
    count: int = options.microbatches
    return min(took_s) * count


def run(options: argparse.Namespace, place: job.Place) -> None:
    stages = build(options, place)
    own = list(range(place.rank, len(stages), place.world_size))
    mine = [stages[at] for at in own]
    step: Step
    if options.mode in ("hand-written", "blocking"):
        step = Stage(mine[0], options, place, overlaps=options.mode == "hand-written").step
    else:
        step = torchs(options, place, stages, own)
    optimizer = torch.optim.SGD(nn.ModuleList(mine).parameters(), lr=LEARNING_RATE)
    random = torch.Generator(place.device).manual_seed(options.seed + 1)
    size = (2, options.batch, options.width)
    batch, target = torch.randn(size, generator=random, device=place.device).to(job.DTYPES[options.dtype])
    meter = BubbleMeter(
        place,
        bubble(options.mode, place.world_size, options.microbatches),
        time_alone(mine, options, place),
    )
    report = job.Report(options, place)
    for number in report.steps():
        losses = step(batch, target)
        optimizer.step()
        optimizer.zero_grad()
        loss = torch.stack(losses).mean() if losses else torch.zeros((), device=place.device)
        dist.broadcast(loss, src=place.world_size - 1)  # rank 0 reports it
        report.add(loss)
        meter.step(last=number + 1 == options.steps)


if __name__ == "__main__":
    job.main(__file__, run)
