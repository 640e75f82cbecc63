"""Several NCCL ranks on one GPU, for real jobs with fewer GPUs than ranks.

NCCL refuses two ranks on one GPU of a host. It identifies hosts by an id that can be set. With a different
id for each rank, and all on the loopback interface, NCCL runs its kernels and moves the bytes through
sockets. Transfers run at the speed of sockets, and the ranks' kernels take turns on the GPU. Under NVIDIA's
MPS they run at the same time. The machine's owner decides whether MPS runs, so nothing here starts it.
"""

import os

from overlaptop.agent.sources.events import under_mps


def prepare_nccl(rank: int) -> None:
    """Let this rank share its GPU. Call it before the process group is made."""
    os.environ["NCCL_HOSTID"] = f"overlaptop-rank-{rank}"
    os.environ["NCCL_SOCKET_IFNAME"] = "lo"
    os.environ["NCCL_IB_DISABLE"] = "1"


def own_gpu(gpus: int) -> int:
    """Return this rank's GPU among the host's `gpus`, by torchrun's environment. If there are more ranks,
    it prepares the rank to share one. Call it before the process group is made.
    """
    if gpus < int(os.environ["LOCAL_WORLD_SIZE"]):
        prepare_nccl(int(os.environ["RANK"]))
    return int(os.environ["LOCAL_RANK"]) % gpus


def describe(ranks: int, gpus: int) -> str:
    where = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
    kernels = "take turns; under MPS (nvidia-cuda-mps-control -d) they would run at the same time"
    if under_mps():
        kernels = "run at the same time, under MPS"
    return f"{ranks} ranks share {where}: NCCL goes over loopback sockets, and the ranks' kernels {kernels}"
