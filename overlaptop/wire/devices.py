"""Messages about a rank's hardware: its GPU, the links, and the CPUs that the process may use.

``None`` and the empty text mean "not known", and `unknown` says why. A GPU is identified by its UUID, a
NUMA node by the kernel's number.
"""

from typing import Annotated

from msgspec import Meta

from overlaptop.wire.bounds import MAX_WORDS, Count, Rank, Share, Text, UnixNs, Words, one_of
from overlaptop.wire.schema import Message, Part

MAX_PARTS = 256  # Maximum nodes, adapters, GPUs or links of one machine

LINK_KINDS = ("nvlink", "nvswitch", "pcie")
"""How one GPU reaches another: direct NVLinks, shared NVSwitches, or PCIe."""

NUMA_STATES = ("bound", "unbound", "wrong node", "one node", "no gpu", "unknown")
"""Whether a process may run on its GPU's node: ``bound`` to it only, ``unbound`` on several nodes, ``wrong
node`` on others only. ``one node``: there is no choice. ``no gpu``: there is no GPU to be near."""


class Unknown(Part, frozen=True):
    """A quantity that is not available here."""

    name: Text  # The field that is None or empty
    reason: Text


Unknowns = Annotated[tuple[Unknown, ...], Meta(max_length=MAX_WORDS)]


class NumaNode(Part, frozen=True):
    """One NUMA node of the machine."""

    node: Count
    cpus: Text  # In the kernel's notation: ``0-31,64-95``. Empty for a node with memory only.
    memory_bytes: Count | None
    is_gpu_memory: bool = False  # Its memory is a GPU's (Grace-Hopper, POWER9)


class Nic(Part, frozen=True):
    """A network adapter."""

    name: Text  # ``mlx5_0``, ``eth0``
    numa_node: Count | None
    bits_per_s: Count | None


class NicErrors(Part, frozen=True):
    """Errors of a network adapter."""

    counter: Text  # ``symbol_error``, ``link_downed``, ``rx_errors``
    count: Count  # Since the rank's telemetry began


class GpuSite(Part, frozen=True):
    """A GPU of the machine, whether the job uses it or not."""

    index: Count  # As in nvidia-smi
    uuid: Text
    name: Text
    pci_bus_id: Text  # ``0000:1b:00.0``
    numa_node: Count | None  # Node of the nearest CPUs


class MachineFacts(Message, frozen=True, tag=12):
    """The machine as one rank sees it. In a container, possibly only a part of it. Sent once."""

    rank: Rank
    host: Text
    numa_nodes: Annotated[tuple[NumaNode, ...], Meta(max_length=MAX_PARTS)]  # Of older agents
    nics: Annotated[tuple[Nic, ...], Meta(max_length=MAX_PARTS)]
    gpus: Annotated[tuple[GpuSite, ...], Meta(max_length=MAX_PARTS)]
    unknown: Unknowns = ()


class GpuLink(Part, frozen=True):
    """The link from a rank's GPU to another one, or to a switch."""

    kind: Annotated[str, one_of(LINK_KINDS)]
    peer_uuid: Text  # UUID of the other GPU. Empty for a switch.
    links: Count | None  # Number of NVLinks. None on PCIe.
    path: Text  # Of older agents, on PCIe: PIX, PXB, PHB, NODE, SYS


class DeviceFacts(Message, frozen=True, tag=13):
    """A rank's GPU and its links. Sent once the rank's device is known, and when a fact changes."""

    rank: Rank
    gpu_uuid: Text  # Empty if the rank uses no GPU that NVML knows
    gpu_name: Text
    pci_bus_id: Text
    nvlink_version: Text  # ``4.0``
    nvlink_count: Count | None
    nvlink_peak_bytes_per_s: Count | None  # Sum over all active links, in one direction
    pcie_generation: Count | None  # Present generation: an idle GPU slows its link down
    pcie_generation_max: Count | None  # Best generation that both GPU and slot support
    pcie_width: Count | None
    pcie_width_max: Count | None
    pcie_peak_bytes_per_s: Count | None
    """Maximum of the link in one direction, with full packets, without their headers."""
    memory_total_bytes: Count | None
    power_limit_mw: Count | None
    sm_clock_max_hz: Count | None
    memory_clock_max_hz: Count | None
    links: Annotated[tuple[GpuLink, ...], Meta(max_length=MAX_PARTS)]
    unknown: Unknowns = ()
    nic_errors: Annotated[tuple[NicErrors, ...], Meta(max_length=MAX_WORDS)] | None = None
    """New errors of the adapter nearest to the GPU. None if there is no adapter, or it does not count."""


class NodeShare(Part, frozen=True):
    """The amount of something on one NUMA node."""

    node: Count
    amount: Count


class NumaFacts(Message, frozen=True, tag=14):
    """Where a rank's process may run, where it runs, and whether that is near its GPU. Sent on change."""

    rank: Rank
    gpu_node: Count | None  # Node with the CPUs next to the GPU
    gpu_memory_node: Count | None  # Node of the GPU's own memory, if that is a node
    nic: Text  # Adapter nearest to the GPU. Empty if there is none, or it is not known.
    nic_node: Count | None
    cpu_set: Text  # CPUs that the process may use. Empty if not known.
    cpu_nodes: Annotated[tuple[NodeShare, ...], Meta(max_length=MAX_PARTS)]
    """Number of these CPUs on each node."""
    threads_by_node: Annotated[tuple[NodeShare, ...], Meta(max_length=MAX_PARTS)]
    """Number of the process's threads that last ran on each node."""
    memory_policy: Text  # ``default``, ``bind:0``, ``prefer:1``, ``interleave:0-1``. Empty if not known.
    state: Annotated[str, one_of(NUMA_STATES)]
    reason: Text  # The state as a sentence, with the nodes' numbers
    advice: Text  # Command that fixes it. Empty if none is needed or known.
    unknown: Unknowns = ()
    cpu_limit_percent: Count | None = None
    """CPU time that the cgroups allow for all of their processes together: 150 for one and a half CPUs.
    None if there is no limit, or it is not known."""


class DeviceSample(Message, frozen=True, tag=15):
    """Activity of a rank's GPU and its links in the half second before."""

    rank: Rank
    at_ns: UnixNs
    nvlink_rx_bytes_per_s: Count | None  # All links together
    nvlink_tx_bytes_per_s: Count | None
    pcie_rx_bytes_per_s: Count | None  # Payload of full packets
    pcie_tx_bytes_per_s: Count | None
    sm_activity: Share | None  # Share of the time that a multiprocessor had work, averaged over all of them
    tensor_activity: Share | None  # Share of the time that the tensor cores' pipes were active
    dram_activity: Share | None  # Share of the time that the memory bus was active
    memory_used_bytes: Count | None
    power_mw: Count | None
    sm_clock_hz: Count | None
    memory_clock_hz: Count | None
    throttle_reasons: Words | None  # Empty if the clocks are not lowered
    unknown: Unknowns = ()
    nic_rx_bytes_per_s: Count | None = None
    """Bytes received by the adapter nearest to the GPU (NumaFacts.nic), for whatever process."""
    nic_tx_bytes_per_s: Count | None = None
