"""Which rank this process is, of which job.

The launcher's environment is a first guess, from which a rank is shown early. It may be another's: a batch
system's variables hold for all that is started in its shell. Once there is a process group, its rank and
world size are the truth.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from overlaptop.agent.isolation.job_exceptions import raised_by_job
from overlaptop.wire.bounds import MAX_RANK

MAX_DIGITS = 20
"""Of a number in a launcher's variables, leading zeros included."""

SLURM_OWN_STEPS = 0xFFFFFFF0
"""From this number on steps are SLURM's own: the batch script, the shell of salloc."""


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """One process's place in its job."""

    job: str
    """The same for all ranks of a job on this node, and for no other job that runs beside it."""
    rank: int
    local_rank: int
    world_size: int
    host: str
    starts_hub: bool
    """Whether this rank starts its node's hub: the node's first, or any where that one is not known."""
    local_world_size: int | None = None
    """How many of the job's ranks run on this node; None where nobody says."""


def from_environment(environ: Mapping[str, str] = os.environ) -> RankPlacement | None:
    """Read torchrun's variables (accelerate, DeepSpeed and Lightning set the same), else SLURM's.

    Returns None where neither is complete: a single process, or a launcher that assigns ranks later.
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
    """A rank or a number of ranks that a launcher has set; None: it has set none that can be."""
    value = environ.get(name, "")
    # The length first: Python refuses to read numbers of more than 4,300 digits.
    known = value.isdecimal() and len(value) <= MAX_DIGITS and int(value) <= MAX_RANK
    return int(value) if known else None


def _is_task_of_many(environ: Mapping[str, str]) -> bool:
    """Whether SLURM started this process as one of several, as srun does. All that is started in the shell
    of salloc or sbatch has that shell's variables, of no step of srun's or of a task that is alone.
    """
    step = _step_number(environ)
    return step is not None and step < SLURM_OWN_STEPS and _number(environ, "SLURM_NTASKS") != 1


def _step_number(environ: Mapping[str, str]) -> int | None:
    step = environ.get("SLURM_STEP_ID", "")
    return int(step) if step.isdecimal() and len(step) <= MAX_DIGITS else None


def of_process_group(
    rank: int,
    world_size: int,
    environ: Mapping[str, str] = os.environ,
    local: str = "LOCAL_RANK",
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
    if _is_loopback(environ.get("MASTER_ADDR", "")):
        return world_size
    is_of_this_job = environ.get("WORLD_SIZE") == str(world_size)
    return _number(environ, "LOCAL_WORLD_SIZE") if is_of_this_job else None


def in_process_group(known: RankPlacement | None, *, confirmed: bool) -> RankPlacement | None:
    """What torch's process group says, where that is not ``known``; None where there is no group.

    A job keeps its key where ``known`` was ``confirmed`` by an earlier group; else it is named by where its
    ranks have met, as two jobs of one shell may have one environment. torch.distributed must be imported.
    """
    dist = sys.modules["torch.distributed"]
    group = dist.group.WORLD if dist.is_available() else None
    if group is None:
        return None
    try:
        rank, world_size = group.rank(), group.size()
    except (AttributeError, RuntimeError) as fault:  # it is the job's own class
        if raised_by_job(fault):
            raise
        return None
    if known is not None and (known.rank, known.world_size) == (rank, world_size):
        return known
    if known is not None and confirmed:
        return replace(known, rank=rank, world_size=world_size)
    if world_size == 1:
        return alone()
    local = "LOCAL_RANK" if known is None else ""  # what is wrong about the rank is not right about this
    return of_process_group(rank, world_size, {**os.environ, **_meeting_place(dist)}, local)


def _meeting_place(dist: Any) -> dict[str, str]:
    """Where the process group's ranks have met, in torchrun's variables; empty: the environment's."""
    try:
        store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - there is no public way
        while isinstance(store, dist.PrefixStore):
            store = store.underlying_store
        if isinstance(store, dist.TCPStore):
            return {"MASTER_ADDR": store.host, "MASTER_PORT": str(store.port)}
        if isinstance(store, dist.FileStore):
            return {"MASTER_ADDR": "file", "MASTER_PORT": store.path}
    except (AttributeError, ValueError, RuntimeError) as fault:  # destroyed meanwhile
        if raised_by_job(fault):
            raise
    return {}


def alone() -> RankPlacement:
    """The placement of a process that belongs to no group."""
    host = socket.gethostname()
    return RankPlacement(process_key(os.getpid()), 0, 0, 1, host, starts_hub=True, local_world_size=1)


def job_key(environ: Mapping[str, str] = os.environ) -> str:
    """Name the job by what its ranks share and two jobs cannot: where they meet. A loopback address is
    another place on each host.

    The parent process would do as well, but for wrappers (`torchrun --no-python ./wrap.sh`) that give
    each rank a parent of its own.
    """
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID")
    shared = "\0".join(environ.get(name, "") for name in names)
    if not shared.strip("\0"):
        return process_key(os.getpid())
    if _is_loopback(environ.get("MASTER_ADDR", "")):
        shared += "\0" + _machine()
    return _digest(shared, 12)


def process_key(pid: int) -> str:
    """Name the job of a single process. In containers pids are small, and the same in each."""
    return f"pid-{pid}-{_digest(_machine(), 6)}"


def _digest(text: str, length: int) -> str:
    """The text's SHA-256, or rather that of its bytes as the system has them: they need not be UTF-8."""
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:length]


def _machine() -> str:
    """What identifies this machine: two may have one name, two containers one kernel."""
    try:
        # Not as text: that would import a codec, here on the agent's thread, while the job may fork.
        booted = Path("/proc/sys/kernel/random/boot_id").read_bytes().decode("ascii").strip()
    except (OSError, ValueError) as fault:
        if raised_by_job(fault):
            raise
        booted = ""
    return f"{socket.gethostname()}\0{booted}"


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address in ("localhost", "::1")


def on_this_node(ranks: Iterable[int], environ: Mapping[str, str] = os.environ) -> bool | None:
    """Whether all these ranks of the job run on this node; None where the launcher does not say.

    The ranks of a node are consecutive, as torchrun numbers them, unless SLURM numbered them and dealt
    them out. A job that meets at a loopback address has no other node. No rank is on no node.
    """
    members = tuple(ranks)
    if not members:
        return None
    if _is_loopback(environ.get("MASTER_ADDR", "")):
        return True
    rank, local_rank = _number(environ, "RANK"), _number(environ, "LOCAL_RANK")
    local_world_size = _number(environ, "LOCAL_WORLD_SIZE")
    if rank is None or local_rank is None or local_world_size is None:
        return None
    if environ.get("WORLD_SIZE") == environ["LOCAL_WORLD_SIZE"]:
        return True
    if _dealt_out(environ):
        return None
    first = rank - local_rank
    return all(first <= each < first + local_world_size for each in members)


def _dealt_out(environ: Mapping[str, str]) -> bool:
    """Whether SLURM numbered the ranks, and neighbours may be on different nodes."""
    by_slurm = "TORCHELASTIC_RUN_ID" not in environ and environ.get("SLURM_PROCID") == environ["RANK"]
    return by_slurm and not environ.get("SLURM_DISTRIBUTION", "block").startswith("block")


def script_name() -> str:
    """The job's script as it was named on the command line."""
    return sys.argv[0] if sys.argv and sys.argv[0] else "python"


def working_directory() -> Path:
    """Where the job was started; a job may change it later, each rank in its own way."""
    try:
        return Path.cwd()
    except OSError as fault:  # it was deleted
        if raised_by_job(fault):
            raise
        return Path("/")
