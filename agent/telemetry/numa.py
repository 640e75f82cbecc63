"""Watches the CPUs that a rank may use and uses, whether they are near its GPU, and how to change them.

Affinity and memory policy belong to threads. The process's are those of its main thread, which /proc/self
shows to any reading thread. The job's other threads begin with a copy of them.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from overlaptop.agent.telemetry.files import (
    UnavailableError,
    entries,
    format_list,
    parse_list,
    read_bytes,
    read_text,
    text_if_any,
)
from overlaptop.agent.telemetry.topology import Topology
from overlaptop.wire.devices import NodeShare, NumaFacts, Unknown

T = TypeVar("T")

MAX_THREADS = 256
THREADS_AT_A_TIME = 32  # Each costs about 10 us of CPU time, and three waits for the GIL of at most 5 ms
HEAD_BYTES = 256
"""Covers the program's own mappings. The heap follows, for which the kernel takes 10 ms per GiB."""

_CPUS_ALLOWED = re.compile(r"^Cpus_allowed_list:\s*(\S*)$", re.MULTILINE)
_POLICY = re.compile(
    r"^[0-9a-f]+ (default|local|prefer(?: \(many\))?|bind|(?:weighted )?interleave)"
    r"(?:=[a-z|]+)?(?::([\d,-]*))?(?: |$)",
    re.MULTILINE,
)


TORCHRUN = "torchrun --numa-binding=node (needs torch 2.9 and numactl)"


@dataclass(frozen=True, slots=True)
class GpuPlace:
    """The place of a rank's GPU, by NVML."""

    pci_bus_id: str  # ``0000:1b:00.0``
    memory_affinity: tuple[int, ...] = ()  # Nodes whose memory is next to the GPU; empty: NVML does not say
    memory_node: int | None = None
    """Node of the GPU's own memory (Grace-Hopper), not of the CPUs next to it."""


@dataclass(frozen=True, slots=True)
class MemoryPolicy:
    """The nodes from which the kernel allocates the process's memory."""

    nodes: frozenset[int]  # Empty: the node of the CPU that touches a page first
    text: str  # In the kernel's format: ``default``, ``bind:0``, ``prefer:1``, ``interleave:0-1``


def cpu_set(root: Path) -> frozenset[int]:
    """Return the online CPUs that the process may use. Raises UnavailableError."""
    status = root / "proc/self/status"
    allowed = _CPUS_ALLOWED.search(read_text(status))
    if allowed is None:
        raise UnavailableError(f"{status} has no Cpus_allowed_list")
    cpus = parse_list(allowed[1])
    online = parse_list(text_if_any(root / "sys/devices/system/cpu/online"))
    return cpus & online if online else cpus


def memory_policy(root: Path) -> MemoryPolicy:
    """Return the most frequent policy of the process's first mappings. Raises UnavailableError.

    A mapping without its own policy shows the main thread's. The kernel inspects only the mappings that are
    read, so the first ones cost microseconds in a process of any size.
    """
    path = root / "proc/self/numa_maps"
    head = read_bytes(path, HEAD_BYTES, once=True)
    whole_words = head[: max(head.rfind(b" "), head.rfind(b"\n")) + 1].decode("ascii", "replace")
    seen = Counter((match[1], match[2] or "") for match in _POLICY.finditer(whole_words))
    if not seen:
        raise UnavailableError(f"{path} names no policy")
    (kind, nodes), _ = seen.most_common(1)[0]
    return MemoryPolicy(parse_list(nodes), f"{kind}:{nodes}" if nodes else kind)


def cgroup_cpus(root: Path) -> frozenset[int] | None:
    """Return the CPUs that the process's cgroup allows; None if unknown.

    The process cannot leave this set by itself.
    """
    for folder, version in _cgroups(root, "cpuset"):
        name = "cpuset.cpus.effective" if version == 2 else "cpuset.effective_cpus"
        if cpus := parse_list(text_if_any(folder / name)):
            return cpus
    return None


def cpu_limit(root: Path) -> float | None:
    """Return the CPU limit of the process's cgroups, in CPUs for all their processes, as set by docker's
    ``--cpus`` and Kubernetes' ``limits.cpu``; None: no limit, or unknown.
    """
    limits = []
    for folder, version in _cgroups(root, "cpu"):
        names = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = " ".join(text_if_any(folder / name) for name in names).split()
        try:
            quota_us, period_us = map(int, words)  # "max" is no number; -1 means no limit
        except ValueError:
            continue
        if quota_us > 0 and period_us > 0:
            limits.append(quota_us / period_us)
    return min(limits, default=None)


def _cgroups(root: Path, controller: str) -> Iterator[tuple[Path, int]]:
    """Yield the folders of the process's cgroup and its ancestors, innermost first, for each cgroup version
    that may have the controller.
    """
    for line in text_if_any(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            base, version = root / "sys/fs/cgroup", 2
        elif controller in controllers.split(","):
            base, version = root / "sys/fs/cgroup" / controller, 1
        else:
            continue
        # In a container the path may be the host's, or leave the mounted part.
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts), -1, -1):
            yield base.joinpath(*parts[:depth]), version


def threads_by_cpu(root: Path) -> Iterator[tuple[Counter[int], str]]:
    """Yield the process's threads by the CPU that they last ran on, and why they are not all; empty: they
    are. Each time a few threads are read; the counts change once all were.
    """
    folder = root / "proc/self/task"
    counts, reason = Counter[int](), "still being read"
    while True:
        try:
            names = [name for name in entries(folder) if name.isdecimal()]
        except UnavailableError as fault:
            yield Counter(), str(fault)
            continue
        read = names[:MAX_THREADS]
        cpus: list[int] = []
        for at in range(0, len(read), THREADS_AT_A_TIME):
            if at:
                yield counts, reason
            now = (last_cpu(folder / name) for name in read[at : at + THREADS_AT_A_TIME])
            cpus += (cpu for cpu in now if cpu is not None)
        counts, reason = Counter(cpus), ""
        if len(read) < len(names):
            reason = f"{MAX_THREADS} of {len(names)} threads were read"
        yield counts, reason


def last_cpu(task: Path) -> int | None:
    """Return the CPU that a thread last ran on; None if the thread has ended."""
    # The second field, the thread's name in parentheses, may contain any character.
    fields = text_if_any(task / "stat").rpartition(")")[2].split()
    return int(fields[36]) if fields else None  # field 39 in total


def gpu_node(topology: Topology, gpu: GpuPlace) -> int | None:
    """Return the node whose CPUs are next to a GPU: by sysfs, else by NVML if that leaves one node."""
    node = topology.node_of_pci(gpu.pci_bus_id)
    if node is not None:
        return node
    near = [each for each in gpu.memory_affinity if each in topology.cpus_by_node]  # skips its own memory
    return near[0] if len(near) == 1 else None


class NumaMonitor:
    """Makes a rank's NumaFacts. For one thread; each call of `facts` takes about a millisecond at most."""

    def __init__(
        self,
        rank: int,
        topology: Topology,
        gpu: GpuPlace | None,
        root: Path = Path("/"),
        *,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._rank = rank
        self._root = root
        self._threads = threads_by_cpu(root)
        self._by_torchrun = "TORCHELASTIC_RUN_ID" in environ
        self._has_gpu = gpu is not None
        self._unknown_for_good: dict[str, str] = {}
        self._gpu_node = self._gpu_memory_node = self._nic = None
        if gpu is not None:
            self._gpu_node = gpu_node(topology, gpu)
            self._gpu_memory_node = gpu.memory_node
            self._nic = topology.nic_near(gpu.pci_bus_id)
            if self._gpu_node is None:
                why = f"neither sysfs nor NVML names one node for {gpu.pci_bus_id}"
                self._unknown_for_good["gpu_node"] = why
            if self._nic is None and topology.nics:
                self._unknown_for_good["nic"] = f"the adapter nearest to {gpu.pci_bus_id} is not known"
        self._topology = topology

    def facts(self) -> NumaFacts:
        """Read the present placement and judge it. Unknown values raise nothing."""
        unknown = dict(self._unknown_for_good)

        def known(name: str, read: Callable[[Path], T]) -> T | None:
            try:
                return read(self._root)
            except UnavailableError as reason:
                unknown[name] = str(reason)
                return None

        cpus, policy = known("cpu_set", cpu_set), known("memory_policy", memory_policy)
        threads, unknown["threads_by_node"] = next(self._threads)
        state, sentence, advice = self._judge(cpus, policy)
        limit = cpu_limit(self._root)
        return NumaFacts(
            rank=self._rank,
            gpu_node=self._gpu_node,
            gpu_memory_node=self._gpu_memory_node,
            nic=self._nic.name if self._nic is not None else "",
            nic_node=self._nic.numa_node if self._nic is not None else None,
            cpu_set=format_list(cpus or ()),
            cpu_nodes=self._by_node(dict.fromkeys(cpus or (), 1)),
            threads_by_node=self._by_node(threads),
            memory_policy=policy.text if policy is not None else "",
            state=state,
            reason=sentence,
            advice=advice,
            unknown=tuple(Unknown(name, why) for name, why in unknown.items() if why),
            cpu_limit_percent=None if limit is None else round(100 * limit),
        )

    def _by_node(self, by_cpu: Mapping[int, int]) -> tuple[NodeShare, ...]:
        shares = (
            NodeShare(node, sum(map(by_cpu.__getitem__, cpus & by_cpu.keys())))
            for node, cpus in sorted(self._topology.cpus_by_node.items())
        )
        return tuple(share for share in shares if share.amount)

    def _judge(self, allowed: frozenset[int] | None, policy: MemoryPolicy | None) -> tuple[str, str, str]:
        """Return state, reason and advice for the rank's binding.

        Its CPUs count, and a memory policy that names nodes.
        """
        topology, node = self._topology, self._gpu_node
        if not topology.cpus_by_node:
            return "unknown", f"the machine's NUMA nodes are not known: {topology.why_no_nodes}", ""
        if topology.only_node is not None:
            return "one node", f"all CPUs are on node {topology.only_node}: there is nothing to choose", ""
        if not self._has_gpu:
            return "no gpu", "the rank computes on no GPU that it could be near to", ""
        if node is None:
            return "unknown", "the NUMA node of the rank's GPU is not known", ""
        if allowed is None:
            return "unknown", "the CPUs that the process may use are not known", ""
        nodes = {number for number, cpus in topology.cpus_by_node.items() if cpus & allowed}
        if not nodes:
            return "unknown", "the CPUs that the process may use are on no node that is known", ""
        if node not in nodes:
            reason = f"runs on {_nodes(nodes)}, its GPU is on node {node}"
            return "wrong node", reason, self._move(node, nodes)
        if nodes != {node}:
            advice = TORCHRUN if self._by_torchrun else self._numactl(node)
            return "unbound", f"may run on {_nodes(nodes)}, its GPU is on node {node}", advice
        return self._judge_memory(node, policy)

    def _judge_memory(self, node: int, policy: MemoryPolicy | None) -> tuple[str, str, str]:
        where = f"runs on node {node} with its GPU"
        wanted = policy.nodes - {self._gpu_memory_node} if policy is not None else frozenset()
        if policy is not None and wanted - {node}:
            state = "unbound" if node in wanted else "wrong node"
            advice = self._numactl(node)  # binding CPUs does not change a policy
            if self._by_torchrun:
                advice = f"start torchrun without the memory policy {policy.text}"
            return state, f"{where}, but takes memory from {_nodes(wanted)} ({policy.text})", advice
        return "bound", where, ""

    def _move(self, node: int, now: Collection[int]) -> str:
        """Return the advice for a process that may use no CPU of `node`: something outside restricts it."""
        cpus = self._topology.cpus_by_node.get(node)
        if cpus is None:
            return ""
        given = cgroup_cpus(self._root)
        if given is not None and not given & cpus:
            return f"the job's cgroup has CPUs of {_nodes(now)} only: have it given {format_list(cpus)}"
        return self._numactl(node, "--all ")

    @staticmethod
    def _numactl(node: int, more: str = "") -> str:
        return f"numactl {more}--cpunodebind={node} --preferred={node}"


def _nodes(numbers: Collection[int]) -> str:
    return f"node{'s' * (len(numbers) > 1)} {format_list(numbers)}"
