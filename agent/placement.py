"""Finds the job and the rank of this process.

The launcher's environment is a first guess, so that a rank is shown early. It can be wrong: a batch
system's variables apply to every process in its shell. Once a process group exists, its rank and world size
count.
"""

import hashlib
import os
import socket
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from overlaptop.agent.isolation.job_exceptions import raised_by_job
from overlaptop.wire.bounds import MAX_RANK

MAX_DIGITS = 20  # Digits allowed in a launcher's number, leading zeros included


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """One process's place in its job."""

    job: str  # Key shared by all ranks of a job on this node; concurrent jobs have other keys
    rank: int
    local_rank: int
    world_size: int
    host: str
    starts_hub: bool
    """Whether this rank starts its node's hub: the node's first rank, or any rank if that is unknown."""
    local_world_size: int | None = None  # Ranks of the job on this node; None if unknown


def from_environment(environ: Mapping[str, str] = os.environ) -> RankPlacement | None:
    """Read torchrun's variables (accelerate, DeepSpeed and Lightning set the same), else SLURM's.

    Returns None if neither set is complete: a single process, or a launcher that assigns ranks later.
    """
    for rank, world, local in (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ):
        own, size = _number(environ, rank), _number(environ, world)
        if own is not None and size is not None:
            if rank == "SLURM_PROCID" and not _is_task_of_many(environ):
                return None
            return of_process_group(own, size, environ, local)
    return None


def _number(environ: Mapping[str, str], name: str) -> int | None:
    """Read a rank, a rank count or a step of SLURM's; None if it is unset, or no number that ranks have."""
    value = environ.get(name, "")
    # Check the length first: Python refuses to parse numbers of more than 4,300 digits.
    known = value.isdecimal() and len(value) <= MAX_DIGITS and int(value) <= MAX_RANK
    return int(value) if known else None


def _is_task_of_many(environ: Mapping[str, str]) -> bool:
    """Whether srun started this process as one of several tasks. Processes in the shell of salloc or sbatch
    inherit its variables, which name one of SLURM's own steps (numbered from 0xFFFFFFF0) or a single task.
    """
    return _number(environ, "SLURM_STEP_ID") is not None and _number(environ, "SLURM_NTASKS") != 1


def of_process_group(
    rank: int, world_size: int, environ: Mapping[str, str] = os.environ, local: str = "LOCAL_RANK"
) -> RankPlacement:
    """The placement of a process whose rank only its process group knows (`torch.multiprocessing`).

    ``local``: the environment variable that may name its local rank.
    """
    local_rank = _number(environ, local)
    return RankPlacement(
        job=job_key(environ),
        rank=rank,
        local_rank=rank if local_rank is None else local_rank,
        world_size=world_size,
        host=socket.gethostname(),
        starts_hub=not local_rank,
        local_world_size=_local_world_size(world_size, environ),
    )


def _local_world_size(world_size: int, environ: Mapping[str, str]) -> int | None:
    if is_loopback(environ.get("MASTER_ADDR", "")):
        return world_size
    is_of_this_job = environ.get("WORLD_SIZE") == str(world_size)
    return _number(environ, "LOCAL_WORLD_SIZE") if is_of_this_job else None


def in_process_group(known: RankPlacement | None, *, confirmed: bool) -> RankPlacement | None:
    """Return the placement by torch's process group; ``known`` if it agrees, None without a group.

    The job keeps its key if an earlier group ``confirmed`` ``known``. Otherwise the ranks' meeting place
    names it, as two jobs of one shell may share an environment. torch.distributed must be imported.
    """
    dist = sys.modules["torch.distributed"]
    group = dist.group.WORLD if dist.is_available() else None
    if group is None:
        return None
    try:
        rank, world_size = group.rank(), group.size()
    except (AttributeError, RuntimeError) as fault:  # the job replaced it with its own class
        if raised_by_job(fault):
            raise
        return None
    if known is not None and (known.rank, known.world_size) == (rank, world_size):
        return known
    if known is not None and confirmed:
        return replace(known, rank=rank, world_size=world_size)
    if world_size == 1:
        return alone()
    local = "LOCAL_RANK" if known is None else ""  # if the rank is wrong, so is the local rank
    return of_process_group(rank, world_size, {**os.environ, **meeting_place(dist)}, local)


def meeting_place(dist: Any) -> dict[str, str]:
    """Return the process group's rendezvous in torchrun's variables; empty: use the environment's."""
    try:
        store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - there is no public way
        while isinstance(store, dist.PrefixStore):
            store = store.underlying_store
        if isinstance(store, dist.TCPStore):
            return {"MASTER_ADDR": store.host, "MASTER_PORT": str(store.port)}
        if isinstance(store, dist.FileStore):
            return {"MASTER_ADDR": "file", "MASTER_PORT": store.path}
    except (AttributeError, ValueError, RuntimeError) as fault:  # the group was destroyed meanwhile
        if raised_by_job(fault):
            raise
    return {}


def alone() -> RankPlacement:
    host = socket.gethostname()
    return RankPlacement(process_key(os.getpid()), 0, 0, 1, host, starts_hub=True, local_world_size=1)


def job_key(environ: Mapping[str, str] = os.environ) -> str:
    """Name the job by its rendezvous: its ranks share it, and no other job has it. For a loopback address
    the host is part of the name.

    The parent process would not do: wrappers (`torchrun --no-python ./wrap.sh`) give each rank its own
    parent.
    """
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID")
    shared = "\0".join(environ.get(name, "") for name in names)
    if not shared.strip("\0"):
        return process_key(os.getpid())
    if is_loopback(environ.get("MASTER_ADDR", "")):
        shared += "\0" + _machine()
    return _digest(shared, 12)


def process_key(pid: int) -> str:
    """Name the job of a single process. The machine is part of it, as containers reuse small pids."""
    return f"pid-{pid}-{_digest(_machine(), 6)}"


def _digest(text: str, length: int) -> str:
    """Hash the text's bytes as the system stores them: they need not be UTF-8."""
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:length]


def _machine() -> str:
    """Identify this machine by host name and boot: host names repeat, and containers share a kernel."""
    try:
        # Bytes, not text: text would import a codec on the agent's thread, while the job may fork.
        booted = Path("/proc/sys/kernel/random/boot_id").read_bytes().decode("ascii").strip()
    except (OSError, ValueError) as fault:
        if raised_by_job(fault):
            raise
        booted = ""
    return f"{socket.gethostname()}\0{booted}"


def is_loopback(address: str) -> bool:
    return address.startswith("127.") or address in ("localhost", "::1")


def node_count(ranks: Iterable[int], environ: Mapping[str, str] = os.environ) -> int | None:
    """Return on how many nodes these ranks of the job run, if each has as many of them; None if unknown.

    torchrun numbers the ranks of a node consecutively; SLURM may distribute them over nodes. A job with a
    loopback rendezvous has one node.
    """
    members = tuple(ranks)
    if not members:
        return None
    if is_loopback(environ.get("MASTER_ADDR", "")):
        return 1
    rank, local_rank = _number(environ, "RANK"), _number(environ, "LOCAL_RANK")
    local_world_size = _number(environ, "LOCAL_WORLD_SIZE")
    if rank is None or local_rank is None or local_world_size is None:
        return None
    if environ.get("WORLD_SIZE") == environ["LOCAL_WORLD_SIZE"]:
        return 1
    by_slurm = "TORCHELASTIC_RUN_ID" not in environ and environ.get("SLURM_PROCID") == environ["RANK"]
    if by_slurm and not environ.get("SLURM_DISTRIBUTION", "block").startswith("block"):
        return None
    first = rank - local_rank
    if all(first <= each < first + local_world_size for each in members):
        return 1
    nodes = _number(environ, "GROUP_WORLD_SIZE")
    if not nodes or environ.get("WORLD_SIZE") != str(nodes * local_world_size):
        return None  # torchrun may have started unlike numbers of ranks on the nodes
    by_node = Counter(each // local_world_size for each in members)
    return len(by_node) if len(set(by_node.values())) == 1 else None


def working_directory() -> Path:
    """Return the folder of the start: a job may change its folder later, each rank on its own."""
    try:
        return Path.cwd()
    except OSError as fault:  # it was deleted
        if raised_by_job(fault):
            raise
        return Path("/")
