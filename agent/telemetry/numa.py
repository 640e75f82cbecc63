"""Watches where one rank may run, where it runs, and whether that is near its GPU."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from overlaptop.agent.telemetry import numa_verdict, process
from overlaptop.agent.telemetry.cpus import format_list
from overlaptop.agent.telemetry.files import UnavailableError
from overlaptop.agent.telemetry.topology import Topology
from overlaptop.wire.devices import NodeShare, NumaFacts, Unknown


@dataclass(frozen=True, slots=True)
class GpuPlace:
    """The place of a rank's GPU, by NVML."""

    pci_bus_id: str
    """``0000:1b:00.0``."""
    memory_affinity: tuple[int, ...] = ()
    """The nodes whose memory is next to it; empty: NVML does not say."""
    memory_node: int | None = None
    """The node that the GPU's own memory makes (Grace-Hopper), not that of the CPUs next to it."""


def gpu_node(topology: Topology, gpu: GpuPlace) -> int | None:
    """Return the node whose CPUs are next to a GPU: by sysfs, else the one that NVML's answer leaves."""
    node = topology.node_of_pci(gpu.pci_bus_id)
    if node is not None:
        return node
    near = [each for each in gpu.memory_affinity if each in topology.cpus_by_node]  # not its own memory
    return near[0] if len(near) == 1 else None


class NumaMonitor:
    """Makes a rank's NumaFacts. For one thread; each call of `facts` costs about a millisecond at most."""

    def __init__(
        self,
        rank: int,
        topology: Topology,
        gpu: GpuPlace | None,
        bound: str,
        root: Path = Path("/"),
        *,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``gpu`` None: the rank computes on none. ``bound``: the outcome of ``--numa bind``, or empty."""
        self._rank = rank
        self._bound = bound
        self._root = root
        self._threads = process.ThreadPlaces(root)
        self._memory = process.MemoryPlaces(root, clock)
        self._launch = numa_verdict.LaunchOptions.of_this_process(environ)
        self._unknown_for_good: list[Unknown] = []
        self._has_gpu = gpu is not None
        self._gpu_node: int | None = None
        self._gpu_memory_node: int | None = None
        self._nic = ""
        self._nic_node: int | None = None
        if gpu is not None:
            self._place(topology, gpu)
        # A GPU's memory is no place for a process to be far from.
        memory_node = self._gpu_memory_node
        self._topology = topology.with_gpu_memory(() if memory_node is None else (memory_node,))

    def _place(self, topology: Topology, gpu: GpuPlace) -> None:
        self._gpu_node = gpu_node(topology, gpu)
        self._gpu_memory_node = gpu.memory_node
        if self._gpu_memory_node is None:
            self._gpu_memory_node = topology.gpu_memory_node(gpu.pci_bus_id)
        if self._gpu_node is None:
            self._unknown_for_good.append(
                Unknown("gpu_node", f"neither sysfs nor NVML names one node for {gpu.pci_bus_id}")
            )
        nic = topology.nic_near(gpu.pci_bus_id)
        if nic is not None:
            self._nic, self._nic_node = nic.name, nic.numa_node
        elif topology.nics:
            self._unknown_for_good.append(
                Unknown("nic", f"nothing tells which adapter is near {gpu.pci_bus_id}")
            )

    def facts(self) -> NumaFacts:
        """Read what may have changed, and judge it. Never raises for what is not known."""
        unknown = list(self._unknown_for_good)
        cpus, policy = None, None
        try:
            cpus = process.cpu_set(self._root)
        except UnavailableError as reason:
            unknown.append(Unknown("cpu_set", str(reason)))
        try:
            policy = process.memory_policy(self._root)
        except UnavailableError as reason:
            unknown.append(Unknown("memory_policy", str(reason)))
        self._threads.read()
        if self._threads.reason:
            unknown.append(Unknown("threads_by_node", self._threads.reason))
        self._memory.read()
        if self._memory.reason:
            unknown.append(Unknown("memory_by_node", self._memory.reason))
        found = numa_verdict.judge(
            numa_verdict.Situation(
                topology=self._topology,
                has_gpu=self._has_gpu,
                gpu_node=self._gpu_node,
                gpu_memory_node=self._gpu_memory_node,
                cpus=cpus,
                cgroup_cpus=process.cgroup_cpus(self._root),
                policy=policy,
                memory_by_node=self._memory.by_node,
                launch=self._launch,
            )
        )
        return NumaFacts(
            rank=self._rank,
            gpu_node=self._gpu_node,
            gpu_memory_node=self._gpu_memory_node,
            nic=self._nic,
            nic_node=self._nic_node,
            cpu_set=format_list(cpus or ()),
            cpu_nodes=self._by_node((cpu, 1) for cpu in cpus or ()),
            threads_by_node=self._by_node((self._threads.cpus or {}).items()),
            memory_policy=policy.text if policy is not None else "",
            memory_by_node=_shares(self._memory.by_node or {}),
            state=found.state,
            reason=found.reason,
            advice=found.advice,
            bound=self._bound,
            unknown=tuple(unknown),
        )

    def _by_node(self, amounts: Iterable[tuple[int, int]]) -> tuple[NodeShare, ...]:
        """Add up what is known per CPU; CPUs of no known node are left out."""
        by_node: Counter[int] = Counter()
        for cpu, amount in amounts:
            node = self._topology.node_of_cpu(cpu)
            if node is not None:
                by_node[node] += amount
        return _shares(by_node)


def _shares(by_node: Mapping[int, int]) -> tuple[NodeShare, ...]:
    return tuple(NodeShare(node, amount) for node, amount in sorted(by_node.items()))
