"""The messages about the machine under a rank: its GPU, the links, and where the process may run.

``None`` and the empty text mean "not known"; why, stands in `unknown`. A GPU goes by its UUID, a NUMA node
by the kernel's number.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from overlaptop.wire.bounds import MAX_WORDS, Count, Rank, Share, Text, UnixNs, Words, one_of
from overlaptop.wire.schema import Message, Part

MAX_PARTS = 256
"""Nodes, adapters, GPUs or links of one machine."""

LINK_KINDS = ("nvlink", "nvswitch", "pcie")
"""How a GPU reaches another: NVLinks between the two, through switches that all share, or over PCIe."""


NUMA_STATES = ("bound", "unbound", "wrong node", "one node", "no gpu", "unknown")
"""Whether a process may run where its GPU is: on that node only, on several, on others only; or there is
nothing to choose, or nothing to be near to, or it is not known."""


class Unknown(Part, frozen=True):
    """A quantity that cannot be had here."""

    name: Text
    """The field that is None or empty."""
    reason: Text


Unknowns = Annotated[tuple[Unknown, ...], Meta(max_length=MAX_WORDS)]


class NumaNode(Part, frozen=True):
    """One NUMA node of the machine."""

    node: Count
    cpus: Text
    """As the kernel lists them: ``0-31,64-95``; empty for a node that is memory only."""
    memory_bytes: Count | None
    is_gpu_memory: bool = False
    """Its memory is a GPU's (Grace-Hopper, POWER9)."""


class Nic(Part, frozen=True):
    """A network adapter."""

    name: Text
    """``mlx5_0``, ``eth0``."""
    numa_node: Count | None
    bits_per_s: Count | None


class GpuSite(Part, frozen=True):
    """A GPU of the machine, whether the job uses it or not."""

    index: Count
    """NVML's, as nvidia-smi shows it."""
    uuid: Text
    name: Text
    pci_bus_id: Text
    """``0000:1b:00.0``."""
    numa_node: Count | None
    """Of the CPUs next to it."""


class MachineFacts(Message, frozen=True, tag=12):
    """The machine as one rank sees it; in a container that may be a part. Sent once."""

    rank: Rank
    host: Text
    numa_nodes: Annotated[tuple[NumaNode, ...], Meta(max_length=MAX_PARTS)]
    nics: Annotated[tuple[Nic, ...], Meta(max_length=MAX_PARTS)]
    gpus: Annotated[tuple[GpuSite, ...], Meta(max_length=MAX_PARTS)]
    unknown: Unknowns = ()


class GpuLink(Part, frozen=True):
    """How a rank's GPU reaches another, or a switch."""

    kind: Annotated[str, one_of(LINK_KINDS)]
    peer_uuid: Text
    """The other GPU's; empty: a switch's."""
    links: Count | None
    """NVLinks; None on PCIe."""
    path: Text
    """On PCIe, as ``nvidia-smi topo`` has it: PIX, PXB, PHB, NODE, SYS; else empty."""


class DeviceFacts(Message, frozen=True, tag=13):
    """A rank's GPU and its links. Sent once the rank's device is known, and when a fact changes."""

    rank: Rank
    gpu_uuid: Text
    """Empty: the rank computes on no GPU that NVML knows."""
    gpu_name: Text
    pci_bus_id: Text
    nvlink_version: Text
    """``4.0``."""
    nvlink_count: Count | None
    """Active links; 0: it has none."""
    nvlink_peak_bytes_per_s: Count | None
    """Of all active links together, in one direction."""
    pcie_generation: Count | None
    """As it is now: an idle GPU turns its link down."""
    pcie_generation_max: Count | None
    """What GPU and slot can do together."""
    pcie_width: Count | None
    pcie_width_max: Count | None
    pcie_peak_bytes_per_s: Count | None
    """Of the link at its best, in one direction, in full packets, less their headers."""
    memory_total_bytes: Count | None
    power_limit_mw: Count | None
    sm_clock_max_hz: Count | None
    memory_clock_max_hz: Count | None
    links: Annotated[tuple[GpuLink, ...], Meta(max_length=MAX_PARTS)]
    unknown: Unknowns = ()


class NodeShare(Part, frozen=True):
    """How much of something is on one NUMA node."""

    node: Count
    amount: Count


class NumaFacts(Message, frozen=True, tag=14):
    """Where a rank's process may run, where it runs, and whether that is near its GPU. Sent on change."""

    rank: Rank
    gpu_node: Count | None
    """The node whose CPUs are next to the GPU."""
    gpu_memory_node: Count | None
    """The node that the GPU's own memory makes, where it does."""
    nic: Text
    """The adapter nearest to the GPU; empty: none, or not known."""
    nic_node: Count | None
    cpu_set: Text
    """The CPUs that the process may use, as the kernel lists them; empty: not known."""
    cpu_nodes: Annotated[tuple[NodeShare, ...], Meta(max_length=MAX_PARTS)]
    """How many of these CPUs each node has."""
    threads_by_node: Annotated[tuple[NodeShare, ...], Meta(max_length=MAX_PARTS)]
    """On which node the process's threads last ran."""
    memory_policy: Text
    """``default``, ``bind:0``, ``prefer:1``, ``interleave:0-1``; empty: not known."""
    state: Annotated[str, one_of(NUMA_STATES)]
    reason: Text
    """The state in a sentence, with the nodes' numbers."""
    advice: Text
    """What to type to mend it; empty: there is nothing to mend, or nothing is known."""
    unknown: Unknowns = ()
    cpu_limit_percent: Count | None = None
    """The CPU time that its cgroups allow all of their processes together: 150 for one and a half CPUs.
    None: no limit, or not known."""


class DeviceSample(Message, frozen=True, tag=15):
    """What a rank's GPU and its links did in the half second before."""

    rank: Rank
    at_ns: UnixNs
    """Unix time of the end of that half second."""
    nvlink_rx_bytes_per_s: Count | None
    """Of all links together, as the GPU receives."""
    nvlink_tx_bytes_per_s: Count | None
    pcie_rx_bytes_per_s: Count | None
    """Payload of full packets."""
    pcie_tx_bytes_per_s: Count | None
    sm_activity: Share | None
    """Share of the time in which a multiprocessor had work, averaged over them, in [0, 1]."""
    tensor_activity: Share | None
    """Share of the time in which the tensor cores' pipes were in use, in [0, 1]."""
    dram_activity: Share | None
    """Share of the time in which the memory's bus was in use, in [0, 1]."""
    memory_used_bytes: Count | None
    power_mw: Count | None
    sm_clock_hz: Count | None
    memory_clock_hz: Count | None
    throttle_reasons: Words | None
    """Why the clocks are lower than they might be, in words; empty: they are not."""
    unknown: Unknowns = ()
    """Why what is None cannot be had."""
