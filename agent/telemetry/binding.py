"""``--numa bind``: puts this process on its GPU's node before the script starts.

A refusal is a sentence, never an error: the job goes on as it was started.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from overlaptop.agent.isolation.fault_barrier import logger
from overlaptop.agent.telemetry.files import UnavailableError, format_list
from overlaptop.agent.telemetry.gpu import place
from overlaptop.agent.telemetry.numa import gpu_node
from overlaptop.agent.telemetry.nvml import Nvml, NvmlError, import_library
from overlaptop.agent.telemetry.topology import Topology
from overlaptop.wire.devices import GpuSite

outcome = ""
"""What `bind` did, for NumaFacts.bound; empty: it was not asked for. It is of the process, as the binding
is: a child that forks off has both."""

LOCAL_RANK_NAMES = ("LOCAL_RANK", "SLURM_LOCALID")
"""As for placement, less its guess: the rank itself is no number among this machine's GPUs."""

_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_MPOL_PREFERRED = 1
_MAX_VISIBLE = 256
_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)


def installed_gpus(topology: Topology) -> tuple[GpuSite, ...]:
    """All GPUs that NVML knows, each with the node next to it. Raises UnavailableError."""
    import_library()
    try:
        nvml = Nvml.open()
        try:
            return tuple(
                replace(site, numa_node=gpu_node(topology, place(nvml, site))) for site in nvml.gpus()
            )
        finally:
            nvml.close()
    except NvmlError as fault:
        raise UnavailableError(str(fault)) from None


def bind(
    environ: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
    gpus: Callable[[Topology], Sequence[GpuSite]] = installed_gpus,
) -> str:
    """Bind the calling thread, and all that it will start, to the node of this rank's GPU.

    To be called on the main thread before the job has threads or memory. Takes only CPUs that the process
    may use now: what a launcher or an administrator has narrowed stays as narrow. Returns the sentence
    that is also kept in `outcome`; a refusal is logged.

    ``gpus``: finds all GPUs of the machine, with their nodes.
    """
    global outcome  # a process is bound once, as it has one set of CPUs
    try:
        outcome = _bind(environ, root, gpus)
    except UnavailableError as reason:
        outcome = f"not bound: {reason}"
    except Exception as fault:  # noqa: BLE001 - whatever it is, the job must start
        outcome = f"not bound: {type(fault).__name__}: {fault}"[:400]
    if outcome.startswith("not bound"):
        logger.warning("overlaptop: --numa bind: %s", outcome)
    return outcome


def _bind(environ: Mapping[str, str], root: Path, gpus: Callable[[Topology], Sequence[GpuSite]]) -> str:
    topology = Topology.read(root)
    if not topology.cpus_by_node:
        raise UnavailableError(topology.why_no_nodes)
    if topology.only_node is not None:
        raise UnavailableError(f"all CPUs are on node {topology.only_node}")
    node = _node_of_rank(gpus(topology), environ)
    allowed = frozenset(os.sched_getaffinity(0))
    cpus = allowed & topology.cpus_by_node.get(node, frozenset())
    if not cpus:
        raise UnavailableError(f"the process may use none of the CPUs of node {node}, where its GPU is")
    if cpus == allowed:
        return f"was on node {node} already: CPUs {format_list(cpus)}"
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as fault:
        raise UnavailableError(f"sched_setaffinity: {fault.strerror}") from None
    done = f"bound to node {node}: CPUs {format_list(cpus)}"
    try:
        _prefer_memory_of(node)
    except UnavailableError as reason:
        return f"{done}; memory follows the CPUs ({reason})"
    return f"{done}, memory preferred there"


def _node_of_rank(gpus: Sequence[GpuSite], environ: Mapping[str, str]) -> int:
    words = (environ.get(name, "") for name in LOCAL_RANK_NAMES)
    local_rank = next((int(word) for word in words if word.isdecimal()), None)
    candidates = gpus_of_rank(local_rank, gpus, environ)
    nodes = {gpu.numa_node for gpu in candidates}
    if len(nodes) > 1:
        raise UnavailableError(
            "no LOCAL_RANK says which GPU is this process's, and they are on several nodes"
        )
    node = nodes.pop()
    if node is None:
        raise UnavailableError(f"neither sysfs nor NVML names one node for {candidates[0].pci_bus_id}")
    return node


def gpus_of_rank(
    local_rank: int | None, gpus: Sequence[GpuSite], environ: Mapping[str, str]
) -> Sequence[GpuSite]:
    """Return the GPU that a rank will use, or all that it may, where nobody says which rank it is.

    Training scripts take the visible GPU with the number of their local rank; a launcher that shows each
    rank one GPU only leaves them no choice. Raises UnavailableError, also where a rank has no GPU.
    """
    shown = _visible_gpus(gpus, environ)
    if len(shown) == 1 or local_rank is None:
        return shown
    if local_rank >= len(shown):
        raise UnavailableError(f"local rank {local_rank} has none of the {len(shown)} visible GPUs")
    return shown[local_rank : local_rank + 1]


def _visible_gpus(gpus: Sequence[GpuSite], environ: Mapping[str, str]) -> Sequence[GpuSite]:
    """The GPUs that CUDA, not initialised yet, will show to this process, in CUDA's order."""
    if not gpus:
        raise UnavailableError("NVML knows no GPU here")
    wanted = environ.get("CUDA_VISIBLE_DEVICES")
    by_number = wanted is None or wanted.strip()[:1].isdigit()
    same = len({gpu.name for gpu in gpus}) == 1
    if by_number and not same and environ.get("CUDA_DEVICE_ORDER", "") != "PCI_BUS_ID":
        raise UnavailableError(
            "CUDA numbers GPUs of different kinds by speed: set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
    if wanted is None:
        return gpus
    shown: list[GpuSite] = []
    for entry in map(str.strip, wanted.split(",")[:_MAX_VISIBLE]):
        gpu = _named(entry, gpus) if entry[:1].isdigit() == by_number else None
        if gpu is None:
            break  # as CUDA does: the list ends at the first that names no GPU, or names it otherwise
        if gpu in shown:
            raise UnavailableError(f"CUDA_VISIBLE_DEVICES names GPU {gpu.index} twice")
        shown.append(gpu)
    if not shown:
        raise UnavailableError(f"CUDA_VISIBLE_DEVICES={wanted[:40]} shows no GPU")
    return shown


def _named(entry: str, gpus: Sequence[GpuSite]) -> GpuSite | None:
    """The GPU that an entry of CUDA_VISIBLE_DEVICES names: its number, its UUID or the UUID's beginning."""
    if entry.startswith("MIG-"):
        raise UnavailableError("CUDA_VISIBLE_DEVICES names a MIG slice, which does not tell its GPU")
    if entry.startswith("GPU-"):
        matches = [gpu for gpu in gpus if gpu.uuid.lower().startswith(entry.lower())]
        return matches[0] if len(matches) == 1 else None
    return next((gpu for gpu in gpus if str(gpu.index) == entry), None)


def _prefer_memory_of(node: int) -> None:
    """Have the kernel take this thread's memory from `node` where it can. Raises UnavailableError."""
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        raise UnavailableError(f"no memory policy on {platform.machine()}")
    words = (ctypes.c_ulong * (node // _BITS + 1))()
    words[node // _BITS] = 1 << node % _BITS
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel leaves out the last of as many bits as it is given.
    status = libc.syscall(
        ctypes.c_long(number),
        ctypes.c_long(_MPOL_PREFERRED),
        words,
        ctypes.c_ulong(len(words) * _BITS + 1),
    )
    if status != 0:
        raise UnavailableError(f"set_mempolicy: {os.strerror(ctypes.get_errno())}")
