"""Watches the CPUs that a rank may use and uses, whether they are near its GPU, and how to change them."""

import os
import shutil
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from overlaptop.agent.telemetry import process
from overlaptop.agent.telemetry.files import UnavailableError, format_list
from overlaptop.agent.telemetry.process import MemoryPolicy
from overlaptop.agent.telemetry.topology import Topology
from overlaptop.wire.devices import NodeShare, NumaFacts, Unknown

TORCHRUN = "torchrun --numa-binding=node"
NEEDS = "torch 2.9 and numactl"
"""torchrun's option fails without numactl."""
FIRST_TORCH = "2.9.0.dev0"
"""NVIDIA's containers have pre-releases, too."""


@dataclass(frozen=True, slots=True)
class GpuPlace:
    """The place of a rank's GPU, by NVML."""

    pci_bus_id: str
    """``0000:1b:00.0``."""
    memory_affinity: tuple[int, ...] = ()
    """Nodes whose memory is next to the GPU; empty: NVML does not say."""
    memory_node: int | None = None
    """Node of the GPU's own memory (Grace-Hopper), not of the CPUs next to it."""


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
        """``gpu`` None: the rank uses no GPU."""
        self._rank = rank
        self._root = root
        self._threads = process.ThreadPlaces(root)
        self._by_torchrun = "TORCHELASTIC_RUN_ID" in environ
        torch = sys.modules.get("torch")
        has_option = torch is not None and torch.__version__ >= FIRST_TORCH
        self._torchrun_binds = has_option and shutil.which("numactl") is not None
        self._affinity: Collection[int] = ()
        self._has_gpu = gpu is not None
        self._unknown_for_good: dict[str, str] = {}
        self._gpu_node = self._gpu_memory_node = self._nic = None
        if gpu is not None:
            self._gpu_node = gpu_node(topology, gpu)
            self._gpu_memory_node = gpu.memory_node
            if gpu.memory_node is None:
                self._gpu_memory_node = topology.gpu_memory_node(gpu.pci_bus_id)
            self._nic = topology.nic_near(gpu.pci_bus_id)
            if self._gpu_node is None:
                why = f"neither sysfs nor NVML names one node for {gpu.pci_bus_id}"
                self._unknown_for_good["gpu_node"] = why
            if self._nic is None and topology.nics:
                self._unknown_for_good["nic"] = f"the adapter nearest to {gpu.pci_bus_id} is not known"
        # A process cannot be far from a GPU's memory node, which has no CPUs.
        self._topology = topology.with_gpu_memory((self._gpu_memory_node,))

    def is_moved(self) -> bool:
        """Whether the allowed CPUs have changed since `facts`: one system call."""
        return process.affinity() != self._affinity

    def facts(self) -> NumaFacts:
        """Read the present placement and judge it. Unknown values raise nothing."""
        self._affinity = process.affinity()
        unknown = dict(self._unknown_for_good)
        cpus, policy = None, None
        try:
            cpus = process.cpu_set(self._root)
        except UnavailableError as reason:
            unknown["cpu_set"] = str(reason)
        try:
            policy = process.memory_policy(self._root)
        except UnavailableError as reason:
            unknown["memory_policy"] = str(reason)
        self._threads.read()
        unknown["threads_by_node"] = self._threads.reason
        state, sentence, advice = self._judge(cpus, policy)
        limit = process.cpu_limit(self._root)
        return NumaFacts(
            rank=self._rank,
            gpu_node=self._gpu_node,
            gpu_memory_node=self._gpu_memory_node,
            nic=self._nic.name if self._nic is not None else "",
            nic_node=self._nic.numa_node if self._nic is not None else None,
            cpu_set=format_list(cpus or ()),
            cpu_nodes=self._by_node(dict.fromkeys(cpus or (), 1)),
            threads_by_node=self._by_node(self._threads.cpus or {}),
            memory_policy=policy.text if policy is not None else "",
            state=state,
            reason=sentence,
            advice=advice,
            unknown=tuple(Unknown(name, why) for name, why in unknown.items() if why),
            cpu_limit_percent=None if limit is None else round(100 * limit),
        )

    def _by_node(self, by_cpu: Mapping[int, int]) -> tuple[NodeShare, ...]:
        """Add up values by node; CPUs of unknown nodes are left out."""
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
            near = " of the right socket" if _on_one_socket(topology, nodes) else ""
            reason = f"may run on {_nodes(nodes)}{near}, its GPU is on node {node}"
            return "unbound", reason, self._bind(node)
        return self._judge_memory(node, policy)

    def _judge_memory(self, node: int, policy: MemoryPolicy | None) -> tuple[str, str, str]:
        """Judge the memory policy, as the CPUs are right."""
        where = f"runs on node {node} with its GPU"
        wanted = policy.nodes - {self._gpu_memory_node} if policy is not None else frozenset()
        if policy is not None and wanted - {node}:
            state = "unbound" if node in wanted else "wrong node"
            advice = self._numactl(node)  # binding CPUs does not change a policy
            if self._by_torchrun:
                advice = f"start torchrun without the memory policy {policy.text}"
            return state, f"{where}, but takes memory from {_nodes(wanted)} ({policy.text})", advice
        return "bound", where, ""

    def _bind(self, node: int) -> str:
        """Return the command that binds the rank to the CPUs and memory of `node`."""
        if self._by_torchrun:
            return TORCHRUN if self._torchrun_binds else f"{TORCHRUN} (needs {NEEDS})"
        return self._numactl(node)

    def _move(self, node: int, now: Collection[int]) -> str:
        """Return the advice for a process that may use no CPU of `node`: something outside restricts it."""
        cpus = self._topology.cpus_by_node.get(node)
        if cpus is None:
            return ""
        cgroup_cpus = process.cgroup_cpus(self._root)
        if cgroup_cpus is not None and not cgroup_cpus & cpus:
            return f"the job's cgroup has CPUs of {_nodes(now)} only: have it given {format_list(cpus)}"
        return self._numactl(node, "--all ")

    def _numactl(self, node: int, more: str = "") -> str:
        if any(each.node == node and each.memory_bytes == 0 for each in self._topology.nodes):
            # numactl does not accept the number of a node without memory.
            cpus = self._topology.cpus_by_node.get(node, ())
            return f"numactl {more}--physcpubind={format_list(cpus)}"
        return f"numactl {more}--cpunodebind={node} --preferred={node}"


def _on_one_socket(topology: Topology, nodes: Collection[int]) -> bool:
    sockets = {topology.socket_by_node.get(node) for node in nodes}
    return len(sockets) == 1 and None not in sockets


def _nodes(numbers: Collection[int]) -> str:
    """``node 1``, ``nodes 0-3``."""
    return f"node{'s' * (len(numbers) > 1)} {format_list(numbers)}"
