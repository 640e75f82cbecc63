"""Layers whose weights are split over the ranks, as in Megatron-LM: two products, two collectives a layer.

    torchrun --nproc-per-node=2 -m overlaptop.agent workloads/tensor_parallel.py --mode async

A layer normalizes its input, multiplies it by a weight whose columns are split over the ranks, and the
result by a weight whose rows are. Between layers tokens are split over the ranks (sequence parallelism):
they are gathered before the first product, and summed and scattered after the second. With
``--no-sequence-parallel`` each rank has all tokens, and the sum is an all-reduce. Backward does the same in
reverse.

``--mode sync`` waits for each collective at once. ``async`` alternates between two halves of the tokens:
one half's collectives run beside the other half's products, and in backward also beside the weights'
gradients. ``ring`` and ``symmetric-memory`` overlap within each product (collective_matmul.py).

``--decode`` runs forward only, with one token of each request per step, as an LLM server does: collectives
are small, and little work can hide them. With ``--replicas`` the ranks form that many groups, and gradients
are averaged over the groups.

On the screen, ``sync`` exposes every collective and ``async`` few. ``ring`` has many short sends and
receives. Their end is not seen on gloo, so on a CPU such steps have no lanes. ``symmetric-memory`` has
peer-to-peer copies below the products. With ``--decode`` the GPU waits for launches, of which ``async`` has
twice as many.
"""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from overlaptop.workloads import job
from overlaptop.workloads.collective_matmul import Collectives, Group, Ring, Started, SymmetricMemory, Way
from overlaptop.workloads.ddp import Reducer

LEARNING_RATE = 0.02
TOKENS_A_REQUEST = 32


class Layer(nn.Module):
    """The part of two weights on this rank."""

    def __init__(self, width: int, group: Group, random: torch.Generator) -> None:
        super().__init__()
        hidden = 4 * width
        up = torch.randn(width, hidden, generator=random) / width**0.5
        down = torch.randn(hidden, width, generator=random) / hidden**0.5
        self.up = nn.Parameter(up.chunk(group.size(), dim=1)[group.rank()].contiguous())
        self.down = nn.Parameter(down.chunk(group.size(), dim=0)[group.rank()].contiguous())


class Up(torch.autograd.Function):
    """All tokens times this rank's columns."""

    @staticmethod
    def forward(ctx: Any, _own: Tensor, weight: Tensor, way: Way, started: Started) -> Tensor:
        full, product = way.gather_multiply(started, weight)
        ctx.save_for_backward(full, weight)
        ctx.way = way
        return product

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        full, weight = ctx.saved_tensors
        own, summing = ctx.way.multiply_scatter(gradient.contiguous(), weight.t())
        of_weight = full.t() @ gradient
        job.wait(summing)
        return own, of_weight, None, None


class Down(torch.autograd.Function):
    """All tokens times this rank's rows, summed over the ranks. The Work to wait for is stored in `half`.

    Backward uses the gather that `Add` has started.
    """

    @staticmethod
    def forward(ctx: Any, full: Tensor, weight: Tensor, way: Way, half: "Half") -> Tensor:
        own, half.summing = way.multiply_scatter(full, weight)
        ctx.save_for_backward(full, weight)
        ctx.way, ctx.gathering = way, half.gathering_gradient
        return own

    @staticmethod
    def backward(ctx: Any, _gradient: Tensor) -> tuple[Tensor | None, ...]:
        full, weight = ctx.saved_tensors
        gathered, of_full = ctx.way.gather_multiply(ctx.gathering.pop(), weight.t())
        return of_full, full.t() @ gathered, None, None


class Add(torch.autograd.Function):
    """Tokens plus a layer's output for them. Backward starts to gather the gradient long before `Down`
    needs it: with two halves, the other half's products run in between.
    """

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, made: Tensor, half: "Half") -> Tensor:
        ctx.way, ctx.gathering = half.way, half.gathering_gradient
        return tokens + made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        ctx.gathering.append(ctx.way.start_gather(gradient.contiguous()))
        return gradient, gradient, None


class Half:
    """Some of the tokens on their way through the layers."""

    def __init__(self, tokens: Tensor, way: Way) -> None:
        self.tokens, self.way = tokens, way
        self.summing: dist.Work | None = None
        self.gathering_gradient: list[Started] = []  # The gather in progress in backward, one at most
        self._sum: Tensor | None = None

    def begin(self) -> None:
        self.collect()
        self._input = functional.layer_norm(self.tokens, self.tokens.shape[-1:])
        self._gathering = self.way.start_gather(self._input.detach())

    def up(self, layer: Layer) -> None:
        self._hidden = functional.gelu(job.apply(Up, self._input, layer.up, self.way, self._gathering))

    def down(self, layer: Layer) -> None:
        self._sum = job.apply(Down, self._hidden, layer.down, self.way, self)

    def collect(self) -> None:
        with torch.no_grad():  # gloo writes into the result, which autograd would take for a new value
            job.wait(self.summing)
        if self._sum is not None:
            self.tokens = job.apply(Add, self.tokens, self._sum, self)


def forward(layers: Sequence[Layer], tokens: Tensor, way: Way, halves: int) -> Tensor:
    """Return tokens after all layers. Of two halves, one begins a layer between the other's products."""
    first, *second = every = [Half(each, way) for each in tokens.chunk(halves)]
    first.begin()
    for layer in layers:
        first.up(layer)
        for half in second:
            half.begin()
        first.down(layer)
        for half in second:
            half.up(layer)
        if layer is not layers[-1]:
            first.begin()
        for half in second:
            half.down(layer)
    for half in every:
        half.collect()
    return torch.cat([half.tokens for half in every])


def groups(place: job.Place, replicas: int) -> tuple[Group, Group | None]:
    """Return this rank's group that splits the weights, and its group with the same part of them, None with
    one replica.
    """
    if replicas == 1:
        assert dist.group.WORLD is not None
        return dist.group.WORLD, None
    split = place.world_size // replicas
    parts = [dist.new_group(range(at, at + split)) for at in range(0, place.world_size, split)]
    alike = [dist.new_group(range(at, place.world_size, split)) for at in range(split)]
    return parts[place.rank // split], alike[place.rank % split]


def first_tokens(options: argparse.Namespace, place: job.Place, group: Group) -> Iterator[Tensor]:
    """Yield this rank's tokens at the start of a step, (tokens, width): in training the same batch forever,
    in decoding those of new requests.
    """
    replica = place.rank // group.size()
    random = torch.Generator(place.device).manual_seed(options.seed * options.replicas + replica + 1)
    count = options.requests if options.decode else options.tokens
    while True:
        tokens = torch.randn(count, options.width, generator=random, device=place.device)
        own = tokens.chunk(group.size())[group.rank()] if options.sequence_parallel else tokens
        batch = own.to(job.DTYPES[options.dtype])
        yield batch
        while not options.decode:
            yield batch


def run(options: argparse.Namespace, place: job.Place) -> None:
    group, alike = groups(place, options.replicas)
    is_async = options.mode == "async"
    way: Way = Collectives(group, asynchronous=is_async, scattered=options.sequence_parallel)
    if options.mode in ("ring", "symmetric-memory"):
        way = Ring(group) if options.mode == "ring" else SymmetricMemory(group)
    random = torch.Generator(place.device).manual_seed(options.seed)
    with place.device:
        layers = [Layer(options.width, group, random) for _ in range(options.layers)]
    model = nn.ModuleList(layers).to(job.DTYPES[options.dtype])
    replicas = None
    if alike is not None and not options.decode:
        replicas = Reducer(model, 0.0, alike, overlaps=is_async)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    batches = first_tokens(options, place, group)
    tokens = next(batches)
    report = job.Report(options, place, "figure" if options.decode else "loss")
    for step in report.steps():
        with torch.set_grad_enabled(not options.decode):
            made = forward(layers, tokens, way, 2 if is_async else 1)
            loss = made.float().square().mean()
        if options.decode:
            # The generated token is the next input.
            ends = (step + 1) % TOKENS_A_REQUEST == 0
            tokens = next(batches) if ends else functional.layer_norm(made, made.shape[-1:])
        else:
            (loss / (group.size() if options.sequence_parallel else 1)).backward()
            if replicas is not None:
                replicas.finish()
            optimizer.step()
            optimizer.zero_grad(set_to_none=replicas is None)
            tokens = next(batches)
        report.add(loss)
    if replicas is not None:
        replicas.close()


if __name__ == "__main__":
    job.main(__file__, run)
