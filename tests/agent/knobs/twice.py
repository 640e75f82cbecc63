"""What both jobs that train twice, with changes and without, have in common."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

import torch
import torch.distributed as dist


def own_device() -> torch.device:
    """A GPU where there is one for each rank."""
    if torch.cuda.device_count() < int(os.environ["WORLD_SIZE"]):
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ["LOCAL_RANK"]))


DEVICE = own_device()


def begin(variants: Iterable[str]) -> tuple[int, int, list[str]]:
    """Join the group, to compute the same bits each time. Returns STEPS, CHANGES and VARIANT..., or all."""
    torch.set_num_threads(1)
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    if DEVICE.type == "cuda":
        torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")
    return int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] or list(variants)


def end() -> None:
    """Say that all was well, and on what."""
    print(dist.get_backend(), flush=True)
    dist.destroy_process_group()


def check_same(plain: dict, changed: dict) -> None:
    """Not a bit of what was trained is another one."""
    assert plain["losses"] == changed["losses"]
    assert torch.equal(plain["weights"], changed["weights"])


def check_alike(*facts: object) -> None:
    """All ranks have the same facts."""
    theirs: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(theirs, facts)
    assert all(each == facts for each in theirs), theirs
