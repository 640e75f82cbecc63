"""What both jobs that train twice, with changes and without, have in common."""

import os
import sys
from collections.abc import Iterable

import torch
import torch.distributed as dist

from overlaptop.workloads.shared_gpu import own_gpu

BACKEND = sys.argv[1]
DEVICE = (
    torch.device("cuda", own_gpu(torch.cuda.device_count())) if BACKEND == "nccl" else torch.device("cpu")
)


def begin(variants: Iterable[str]) -> tuple[int, int, list[str]]:
    """Join the group, to compute the same bits each time. Returns STEPS, CHANGES and VARIANT..., or all."""
    torch.set_num_threads(1)
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    if DEVICE.type == "cuda":
        torch.cuda.set_device(DEVICE)
    dist.init_process_group(BACKEND)
    return int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] or list(variants)


def end() -> None:
    print(dist.get_backend(), flush=True)
    dist.destroy_process_group()


def check_same(plain: dict, changed: dict) -> None:
    assert plain["losses"] == changed["losses"]
    assert torch.equal(plain["weights"], changed["weights"])


def check_alike(*facts: object) -> None:
    theirs: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(theirs, facts)
    assert all(each == facts for each in theirs), theirs
