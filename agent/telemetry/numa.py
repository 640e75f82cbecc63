"""Watches where one rank may run, where it runs, and whether that is near its GPU."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from overlaptop.agent.telemetry import numa_verdict, process
from overlaptop.agent.telemetry.files import UnavailableError, format_list
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
                self._unknown_for_good["nic"] = f"nothing tells which adapter is near {gpu.pci_bus_id}"
        # A GPU's memory is no place for a process to be far from.
        self._topology = topology.with_gpu_memory((self._gpu_memory_node,))

    def facts(self) -> NumaFacts:
        """Read what may have changed, and judge it. Never raises for what is not known."""
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
        self._memory.read()
        unknown["memory_by_node"] = self._memory.reason
        state, sentence, advice = numa_verdict.judge(
            numa_verdict.Situation(
                topology=self._topology,
                has_gpu=self._has_gpu,
                gpu_node=self._gpu_node,
                gpu_memory_node=self._gpu_memory_node,
                cpus=cpus,
                cgroup_cpus=process.cgroup_cpus(self._root),
                policy=policy,
                memory_by_node=self._memory.by_node or {},
                launch=self._launch,
            )
        )
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
            memory_by_node=_shares(self._memory.by_node or {}),
            state=state,
            reason=sentence,
            advice=advice,
            bound=self._bound,
            unknown=tuple(Unknown(name, why) for name, why in unknown.items() if why),
        )

    def _by_node(self, by_cpu: Mapping[int, int]) -> tuple[NodeShare, ...]:
        """Add up what is known per CPU; CPUs of no known node are left out."""
        return _shares(
            {
                node: sum(map(by_cpu.__getitem__, cpus & by_cpu.keys()))
                for node, cpus in self._topology.cpus_by_node.items()
            }
        )


def _shares(by_node: Mapping[int, int]) -> tuple[NodeShare, ...]:
    return tuple(NodeShare(node, amount) for node, amount in sorted(by_node.items()) if amount)
