"""A training job with a rank on each of some nodes: each is a socket directory of this machine."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import pytest

from overlaptop.jobs.record import JobRecord, list_jobs
from tests.processes import eventually
from tests.warm import Warm, WarmRanks

PATIENCE_S = 60.0
TRAINING = """
import os, time, torch, torch.distributed as dist
from torch import nn

model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))  # 1 MiB of gradients each
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    time.sleep(0.05 * (1 + int(os.environ.get("RANK", "0"))))  # rank 1 is late
    model(torch.ones(2, 512)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


class NodeJob(WarmRanks):
    """Its ranks are forked from the process that has torch."""

    def __init__(
        self, warm: Warm, folder: Path, nodes: Sequence[Path], *options: str, **variables: str
    ) -> None:
        """``nodes``: their socket directories. ``options``: of the agent. ``variables``: of each rank."""
        folder.mkdir(exist_ok=True)
        self.nodes, self.log = nodes, folder / "log"
        script = folder / "train.py"
        script.write_text(TRAINING)
        words = ["-m", "overlaptop.agent", "--control", *options, str(script)]
        alone = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"} if len(nodes) > 1 else {}
        own = [
            {"OVERLAPTOP_DIR": str(node), "CUDA_VISIBLE_DEVICES": ""} | alone | variables for node in nodes
        ]
        with self.log.open("a") as log:
            super().__init__(warm, words, len(nodes) if len(nodes) > 1 else 0, folder, log, log, own)

    def record(self, node: int = 0) -> JobRecord:
        """Of the newest job on this node."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OVERLAPTOP_DIR", str(self.nodes[node]))
            return eventually(list_jobs)[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it at once. Its hubs see that."""
        ran = self.poll() is None and not self.failed
        self.kill()
        self.wait(PATIENCE_S)
        assert ran, self.log.read_text()
