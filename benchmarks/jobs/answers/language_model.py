"""A language model and its random text. On a CPU and on a shared GPU they are smaller."""

import os

import faulty
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from overlaptop.workloads.shared_gpu import own_gpu

ON_GPU = torch.cuda.is_available()
GPUS = torch.cuda.device_count()
if ON_GPU:
    os.environ["LOCAL_RANK"] = str(own_gpu(GPUS))  # frameworks take it for the GPU's index
LAYERS, WIDTH, VOCABULARY, TOKENS, BATCH = (
    (12, 1024, 50257, 512, 16) if GPUS > 1 else (12, 512, 8192, 512, 64) if ON_GPU else (2, 128, 512, 64, 8)
)


class Text(Dataset[dict[str, Tensor]]):
    """Random tokens."""

    def __init__(self, batch: int = BATCH) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return 400_000

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        faulty.in_dataset(self._batch)
        tokens = torch.randint(0, VOCABULARY, (TOKENS,))
        return {"input_ids": tokens, "labels": tokens}


class LanguageModel(nn.Module):
    """Transformer blocks between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, WIDTH // 64, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """Return the loss."""
        faulty.in_forward()
        hidden = self.embedding(input_ids)
        for block in self.blocks:
            hidden = block(hidden)
        return cross_entropy(self.head(hidden).flatten(0, 1), labels.flatten())
