"""A plain training loop with DistributedDataParallel and a DataLoader."""

import os

import faulty
import torch
import torch.distributed as dist
from language_model import BATCH, ON_GPU, LanguageModel, Text
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if ON_GPU else torch.device("cpu")
if ON_GPU:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if ON_GPU else "gloo")
model = DistributedDataParallel(LanguageModel().to(device))
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
data = Text()
loader = DataLoader(data, BATCH, sampler=DistributedSampler(data), pin_memory=ON_GPU)
total = 0.0
while True:
    for batch in loader:
        inputs = {name: each.to(device, non_blocking=True) for name, each in batch.items()}
        with torch.autocast(device.type, torch.bfloat16, enabled=ON_GPU):
            loss = model(**inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item()
        faulty.end_step()
