"""Trains under torch.compile: DEVICE BACKEND WAY ...; says its losses and what Dynamo counted, as JSON."""

import json
import sys

import torch
import torch.distributed as dist
from torch import nn

STEPS = 10
KINDS = ("stats", "recompiles", "frames", "graph_break", "resumes", "unimplemented")


class Net(nn.Module):
    """Dynamo compiles what is written here; of torch's own modules it compiles nothing by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 1)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return self.last(self.second(self.first(data).relu()).relu())


def train(way: str, device: str, backend: str) -> list[str]:
    """Compile the model from without, from within, or the whole step; the losses, to the last bit."""
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Net().to(device))
    run = torch.compile(model, backend=backend) if way == "wrapped" else model
    if way == "method":
        model.compile(backend=backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = torch.randn(16, 32, device=device)

    def step() -> torch.Tensor:
        loss = run(data).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    stepped = torch.compile(step, backend=backend) if way == "step" else step
    return [float(stepped()).hex() for _ in range(STEPS)]


def main() -> None:
    from torch._dynamo.utils import counters  # not above: tests, which are to start soon, import this file

    device, backend, *ways = sys.argv[1:]
    dist.init_process_group("gloo" if device == "cpu" else "nccl")
    if device == "cuda":
        torch.cuda.set_device(dist.get_rank())
    for way in ways:
        torch._dynamo.reset()
        counters.clear()
        losses = train(way, device, backend)
        print(json.dumps({"way": way, "losses": losses} | {kind: counters[kind] for kind in KINDS}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
