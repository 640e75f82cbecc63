"""A small GPT under DistributedDataParallel: gradients are all-reduced in buckets while backward runs.

    torchrun --nproc-per-node=2 -m overlaptop.agent workloads/ddp.py

With ``--no-overlap`` the same buckets are reduced one after the other when backward has ended. The
numbers are the same, the step is longer: what the difference is worth is what the monitor shows.
"""

from __future__ import annotations

import argparse
import os
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel

from overlaptop.workloads import job

LEARNING_RATE = 3e-4


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

HEAD_WIDTH = 64


class Block(nn.Module):
    """Causal self-attention and an MLP, each behind a norm and beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, seq, width) to the same shape."""
        heads = self.qkv(self.attention_norm(x)).unflatten(-1, (3, -1, HEAD_WIDTH))
        query, key, value = heads.permute(2, 0, 3, 1, 4)  # each (batch, head, seq, HEAD_WIDTH)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).flatten(-2))
        y: Tensor = x + self.mlp(self.mlp_norm(x))
        return y


class Gpt(nn.Module):
    """Tokens in, the loss of predicting each next token out."""

    def __init__(self, vocabulary: int, seq: int, width: int, layers: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(seq, width))
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens of shape (batch, seq + 1) to the mean loss, shape ()."""
        x = self.token(tokens[:, :-1]) + self.position
        logits = self.head(self.norm(self.blocks(x)))
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


class Batches:
    """Made-up text that can be learned: each sequence counts upwards from a random token."""

    def __init__(self, options: argparse.Namespace, place: job.Place) -> None:
        self._random = torch.Generator().manual_seed(options.seed * place.world_size + place.rank)
        self._batch = options.batch
        self._vocabulary = options.vocabulary
        self._ahead = torch.arange(options.seq + 1)
        self._device = place.device

    def next(self) -> Tensor:
        """Tokens of shape (batch, seq + 1) on the device."""
        first = torch.randint(self._vocabulary, (self._batch, 1), generator=self._random)
        tokens: Tensor = (first + self._ahead) % self._vocabulary
        if self._device.type == "cuda":
            tokens = tokens.pin_memory()
        return tokens.to(self._device, non_blocking=True)


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
    torch.manual_seed(options.seed)
    with place.device:
        model = Gpt(options.vocabulary, options.seq, options.width, options.layers)
    model.to(job.DTYPES[options.dtype])
    ddp = DistributedDataParallel(
        model, bucket_cap_mb=options.bucket_cap_mb, gradient_as_bucket_view=not options.no_overlap
    )
    buckets = in_buckets(model, options.bucket_cap_mb)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    batches = Batches(options, place)
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


def be_deterministic() -> None:
    """Have every run give the same bits; flash attention's backward does not."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


def parse(argv: list[str] | None = None) -> tuple[argparse.Namespace, job.Place]:
    """The options, complete with the defaults of the device, and this process's place in the job."""
    parser = job.Parser(description="Train a small GPT under DDP.")
    for option, kind, metavar, what in (
        ("--bucket-cap-mb", job.positive_float, "MB", "DDP's bucket size in MiB"),
        ("--layers", job.positive_int, "N", "transformer blocks"),
        ("--width", job.positive_int, "N", f"of the model, a multiple of {HEAD_WIDTH}"),
        ("--batch", job.positive_int, "N", "sequences a rank and step"),
        ("--seq", job.positive_int, "N", "tokens a sequence"),
    ):
        parser.add_argument(option, type=kind, metavar=metavar, help=f"{what}{job.defaults(SIZES, option)}")
    parser.add_argument("--no-overlap", action="store_true", help="reduce gradients after backward")
    parser.add_argument("--deterministic", action="store_true", help="the same bits in each run; slower")
    job.add_common_options(parser, results="--losses")
    options, place = job.parse(parser, SIZES, argv)
    if options.width % HEAD_WIDTH:
        parser.error(f"argument --width: must be a multiple of {HEAD_WIDTH}, not {options.width}")
    return options, place


def main() -> None:
    """Run the job."""
    options, place = parse()
    if options.deterministic:
        be_deterministic()
    with (
        job.process_group(place),
        sdpa_kernel(SDPBackend.MATH) if options.deterministic else nullcontext(),
    ):
        train(options, place)


if __name__ == "__main__":
    main()
