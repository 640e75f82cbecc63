"""The small GPT that the bundled training jobs share: model, synthetic text and determinism.

The same seed and sizes give the same weights and batches in all jobs. So a job that splits the model in
another way must reach the same losses.
"""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from overlaptop.workloads import job
from overlaptop.workloads.options import HEAD_WIDTH

LEARNING_RATE = 3e-4


class Block(nn.Module):
    """Causal self-attention and an MLP, each after a norm and with a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, seq, width) to the same shape."""
        heads = self.qkv(self.attention_norm(x)).unflatten(-1, (3, -1, HEAD_WIDTH))
        query, key, value = heads.permute(2, 0, 3, 1, 4)  # each (batch, head, seq, HEAD_WIDTH)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).flatten(-2))
        y: Tensor = x + self.mlp(self.mlp_norm(x))
        return y


class Gpt(nn.Module):
    """Maps tokens to the loss of predicting each next token."""

    def __init__(self, vocabulary: int, seq: int, width: int, layers: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(seq, width))
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens of shape (batch, seq + 1) to the mean loss, shape ()."""
        x = self.token(tokens[:, :-1]) + self.position
        logits = self.head(self.norm(self.blocks(x)))
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


class Batches:
    """Synthetic text that can be learned: each sequence counts upwards from a random token."""

    def __init__(self, options: argparse.Namespace, place: job.Place) -> None:
        self._random = torch.Generator().manual_seed(options.seed * place.world_size + place.rank)
        self._batch = options.batch
        self._vocabulary = options.vocabulary
        self._ahead = torch.arange(options.seq + 1)
        self._device = place.device

    def next(self) -> Tensor:
        """Return tokens of shape (batch, seq + 1) on the device."""
        first = torch.randint(self._vocabulary, (self._batch, 1), generator=self._random)
        tokens: Tensor = (first + self._ahead) % self._vocabulary
        if self._device.type == "cuda":
            tokens = tokens.pin_memory()
        return tokens.to(self._device, non_blocking=True)


def build(options: argparse.Namespace, place: job.Place) -> Gpt:
    """Return the model on its device, with weights from the seed: the same on all ranks."""
    torch.manual_seed(options.seed)
    with place.device:
        model = Gpt(options.vocabulary, options.seq, options.width, options.layers)
    return model.to(job.DTYPES[options.dtype])


@contextmanager
def arithmetic(options: argparse.Namespace) -> Iterator[None]:
    """With ``--deterministic``, make every run give the same bits.

    Enter it before anything runs on the GPU: cuBLAS reads its setting once.
    """
    if not options.deterministic:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    with sdpa_kernel(SDPBackend.MATH):  # flash attention's backward differs from run to run
        yield
