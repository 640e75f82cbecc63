"""A training loop with FSDP2: each block compiled, and sharded by itself."""

import os

import faulty
import torch
import torch.distributed as dist
from language_model import BATCH, ON_GPU, LanguageModel, Text
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, DistributedSampler

device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if ON_GPU else torch.device("cpu")
if ON_GPU:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if ON_GPU else "gloo")
mesh = init_device_mesh(device.type, (dist.get_world_size(),))
policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if ON_GPU else MixedPrecisionPolicy()
model = LanguageModel().to(device)
for block in model.blocks:
    block.compile()
    fully_shard(block, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
data = Text()
loader = DataLoader(data, BATCH, sampler=DistributedSampler(data), pin_memory=ON_GPU)
total = 0.0
while True:
    for batch in loader:
        loss = model(**{name: each.to(device, non_blocking=True) for name, each in batch.items()})
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item()
        faulty.end_step()
