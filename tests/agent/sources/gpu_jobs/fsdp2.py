"""An FSDP2 job on one node's GPUs: each layer sharded by itself, gathered before its use.

torchrun --nproc-per-node=2 gpu_jobs/fsdp2.py [--width 8192] [--batch 8192] [--steps 60]
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

LAYERS = 12


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()

    gpu = int(os.environ["LOCAL_RANK"])
    if int(os.environ["LOCAL_WORLD_SIZE"]) > torch.cuda.device_count():
        from overlaptop.workloads import shared_gpu  # not in a job that is to know nothing of the agent

        gpu = shared_gpu.own_gpu(torch.cuda.device_count())
    device = torch.device("cuda", gpu)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(0)
    layers = [
        nn.Linear(options.width, options.width, bias=False, device=device, dtype=torch.bfloat16)
        for _ in range(LAYERS)
    ]
    model = nn.Sequential(*layers)
    for layer in layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4, foreach=True)
    batch = torch.randn(options.batch, options.width, device=device, dtype=torch.bfloat16)
    for _ in range(options.steps):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
