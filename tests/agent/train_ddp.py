"""Trains three layers of 1 MiB each under DDP on two ranks.

Ends after argv[1] steps, or when the file ``stop`` is there; uses torch's profiler while there is a file
``profile``, and disables rank 1's agent once there is a file ``fault``.
"""

import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: else it would hold it, with gloo's threads
from torch.nn.parallel import DistributedDataParallel

import overlaptop.agent

os.environ["NCCL_IB_DISABLE"] = "1"
torch.manual_seed(0)
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
dist.init_process_group("gloo")
rank = dist.get_rank()
layers = [torch.nn.Linear(512, 512, bias=False) for _ in range(3)]
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
generator = torch.Generator().manual_seed(rank)
losses, own = [], None
stop = torch.zeros(1)
accumulation = overlaptop.agent.knob("accumulation", 3, choices=(1, 2, 3, 8), about="batches a step")
used = Path(f"accumulation{rank}").open("w", buffering=1)  # noqa: SIM115 - until the end
for _ in range(int(sys.argv[1])):
    if Path("fault").exists() and rank == 1:
        overlaptop.agent._agent.barrier.disable("a test", RuntimeError("on purpose"))
    print(accumulation.value, file=used)
    for left in reversed(range(int(accumulation))):
        with model.no_sync() if left else nullcontext():
            loss = model(torch.randn(4, 512, generator=generator)).square().mean()
            loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
    if overlaptop.agent._agent is not None:
        time.sleep(0.08)  # a change is made a second ahead, and takes as many steps as that is
    stop[0] = Path("stop").exists()
    dist.all_reduce(stop)
    if stop[0]:
        break
    profile = Path("profile").exists()
    if profile and own is None:
        own = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        own.start()
        Path(f"profiling{rank}").touch()
    if own is not None and not profile:
        own.stop()
        own.export_chrome_trace(f"own{rank}.json")
        own = None
Path(f"losses{rank}").write_text("\n".join(map(repr, losses)))
dist.destroy_process_group()
