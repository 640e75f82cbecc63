"""Hugging Face Trainer on a GPT-2 with random weights."""

from typing import Any

import faulty
from language_model import GPUS, LAYERS, ON_GPU, TOKENS, VOCABULARY, WIDTH, Text
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

BATCH = 32 if GPUS == 1 else 8


class Model(GPT2LMHeadModel):  # type: ignore[misc]
    """The bundled one."""

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        """Return loss and logits."""
        faulty.in_forward()
        return super().forward(input_ids=input_ids, labels=labels)


class EndOfStep(TrainerCallback):  # type: ignore[misc]
    """Tells faulty.py of steps."""

    def on_step_end(self, *_: object, **__: object) -> None:
        """Called by the Trainer."""
        faulty.end_step()


config = GPT2Config(
    vocab_size=VOCABULARY, n_layer=LAYERS, n_embd=WIDTH, n_head=WIDTH // 64, n_positions=TOKENS
)
arguments = TrainingArguments(
    output_dir="/tmp/hf-trainer", per_device_train_batch_size=BATCH, max_steps=1_000_000, bf16=ON_GPU,
    use_cpu=not ON_GPU, ddp_backend=None if ON_GPU else "gloo", report_to=[], logging_steps=50,
    save_strategy="no", disable_tqdm=True, dataloader_num_workers=0,
)  # fmt: skip
Trainer(model=Model(config), args=arguments, train_dataset=Text(BATCH), callbacks=[EndOfStep()]).train()
