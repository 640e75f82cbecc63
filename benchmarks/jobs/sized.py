"""A training job whose steps are as long as asked for, bound by the GPU or by launches: DDP.

    torchrun --nproc-per-node=2 benchmarks/jobs/sized.py --step-ms 250 [--launch-bound] --steps 100

A step is as many micro-batches as fill it. Each rank has a GPU of its own.
"""

import argparse
import contextlib
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train random numbers on random numbers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--step-ms", type=float, required=True)
    parser.add_argument("--launch-bound", action="store_true")
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    width, batch = (256, 16) if options.launch_bound else (4096, 2048)
    layers = [nn.Linear(width, width, bias=False, dtype=torch.bfloat16) for _ in range(24)]
    model = DistributedDataParallel(nn.Sequential(*layers).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, foreach=True)
    inputs = torch.randn(batch, width, device="cuda", dtype=torch.bfloat16)

    def micro_batch(last: bool) -> None:
        with contextlib.nullcontext() if last else model.no_sync():
            model(inputs).square().mean().backward()

    for _ in range(2):  # the first time to warm up
        began_s = time.perf_counter()
        for _ in range(20):
            micro_batch(last=False)
        torch.cuda.synchronize()
    micro_batch_s = torch.tensor((time.perf_counter() - began_s) / 20, device="cuda")
    dist.broadcast(micro_batch_s, 0)
    count = max(1, round(options.step_ms / 1e3 / micro_batch_s.item()))
    for _ in range(options.steps):
        for at in range(count):
            micro_batch(last=at == count - 1)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
