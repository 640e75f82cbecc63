"""A LightningModule, trained by Lightning's Trainer with DDP."""

import faulty
import torch
from language_model import BATCH, GPUS, ON_GPU, LanguageModel, Text
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.utils.data import DataLoader


class Module(LightningModule):  # type: ignore[misc]
    """The model, its loss and its optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.model = LanguageModel()
        self.losses: list[float] = []

    def training_step(self, batch: dict[str, Tensor], _: int) -> Tensor:
        """Return the loss."""
        loss: Tensor = self.model(**batch)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(self.parameters(), 1e-4)


class EndOfStep(Callback):  # type: ignore[misc]
    """Tells faulty.py of steps."""

    def on_train_batch_end(self, *_: object) -> None:
        """Called by Lightning."""
        faulty.end_step()


Trainer(
    accelerator="gpu" if ON_GPU else "cpu", devices=2 if GPUS != 1 else 1, num_nodes=1 if GPUS != 1 else 2,
    max_steps=-1, max_epochs=-1, logger=False,
    strategy=DDPStrategy(process_group_backend="nccl" if ON_GPU else "gloo"),
    precision="bf16-mixed" if ON_GPU else "32-true", callbacks=[EndOfStep()],
    enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False,
).fit(Module(), DataLoader(Text(), batch_size=BATCH, shuffle=True))  # fmt: skip
