"""The machine's NUMA nodes and network adapters, and which of them a PCI device is near to.

Read from /sys, which containers mostly show whole; what is not there is unknown, with the reason.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from overlaptop.agent.telemetry.cpus import parse_list
from overlaptop.agent.telemetry.files import UnavailableError, entries, read_int, read_text
from overlaptop.wire.devices import Nic, NumaNode, Unknown

MAX_NODES = 256
"""As many as a message holds."""
MAX_NICS = 64
MAX_PORTS = 8
MAX_MEGABITS = 10_000_000

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_MEMORY = re.compile(r"MemTotal:\s+(\d{1,15}) kB")
_RATE = re.compile(r"(\d{1,6}(?:\.\d+)?) Gb/sec")
_GPU_MEMORY_NODE = re.compile(r"^Node:\s+(\d{1,5})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Adapter:
    """A network adapter and where it is plugged in."""

    nic: Nic
    path: tuple[str, ...]
    """From the host bridge to the device: ``pci0000:15``, ``0000:15:01.0``, ..."""
    is_infiniband: bool


@dataclass(frozen=True, slots=True)
class Topology:
    """What `read` found. Nodes ascend by number; a node without CPUs is memory only."""

    nodes: tuple[NumaNode, ...]
    unknown: tuple[Unknown, ...]
    cpus_by_node: Mapping[int, frozenset[int]]
    """Of the nodes that have CPUs; those that are switched off are left out."""
    socket_by_node: Mapping[int, int]
    """The physical package of a node's CPUs."""
    _root: Path = field(repr=False)
    _adapters: tuple[_Adapter, ...] = field(repr=False)
    _node_by_cpu: Mapping[int, int] = field(repr=False)

    @classmethod
    def read(cls, root: Path = Path("/")) -> Topology:
        """Read the machine below `root`. Never raises: what cannot be read is in `unknown`."""
        unknown: list[Unknown] = []
        nodes: list[NumaNode] = []
        cpus_by_node: dict[int, frozenset[int]] = {}
        try:
            for number in _node_numbers(root):
                node, cpus = _read_node(root, number)
                if not cpus and node.memory_bytes == 0:
                    continue  # a place for memory to come: Grace-Hopper keeps some for parts of its GPU
                nodes.append(node)
                if any(cpus & others for others in cpus_by_node.values()):
                    raise UnavailableError(f"node {number} has CPUs that another node has, too")
                if cpus:
                    cpus_by_node[number] = cpus
        except (UnavailableError, ValueError) as reason:
            nodes, cpus_by_node = [], {}
            unknown.append(Unknown("numa_nodes", str(reason)))
        adapters: tuple[_Adapter, ...] = ()
        try:
            adapters = _adapters(root)
        except UnavailableError as reason:
            unknown.append(Unknown("nics", str(reason)))
        topology = cls(
            nodes=tuple(nodes),
            unknown=tuple(unknown),
            cpus_by_node=cpus_by_node,
            socket_by_node=_sockets(root, cpus_by_node),
            _root=root,
            _adapters=adapters,
            _node_by_cpu={cpu: node for node, cpus in cpus_by_node.items() for cpu in cpus},
        )
        if topology.only_node is not None:
            topology = topology._all_on(topology.only_node)
        return topology.with_gpu_memory(_gpu_memory_nodes(root).values())

    @property
    def nics(self) -> tuple[Nic, ...]:
        """Physical adapters, InfiniBand (and RoCE) before Ethernet, then by name."""
        return tuple(adapter.nic for adapter in self._adapters)

    @property
    def only_node(self) -> int | None:
        """The node with CPUs, where there is just one."""
        return next(iter(self.cpus_by_node)) if len(self.cpus_by_node) == 1 else None

    def with_gpu_memory(self, nodes: Iterable[int]) -> Topology:
        """Return the same machine with these nodes marked as a GPU's memory, besides those known to be."""
        marked = frozenset(nodes)
        return replace(
            self,
            nodes=tuple(
                replace(node, is_gpu_memory=True) if node.node in marked and not node.cpus else node
                for node in self.nodes
            ),
        )

    def node_of_cpu(self, cpu: int) -> int | None:
        """The node that a CPU belongs to."""
        return self._node_by_cpu.get(cpu)

    def node_of_pci(self, bus_id: str) -> int | None:
        """The node whose CPUs are next to a device (``0000:1b:00.0``), None where the kernel does not say.

        Where one node has all CPUs, that is the one, though firmware there often says nothing.
        """
        return _node_of(self._device(bus_id), self.only_node)

    def gpu_memory_node(self, bus_id: str) -> int | None:
        """The node that the memory of this GPU makes, as NVIDIA's driver says in /proc."""
        return _gpu_memory_nodes(self._root).get(bus_id)

    def nic_near(self, bus_id: str) -> Nic | None:
        """The adapter nearest to a device: by the way that their PCI paths share, then by node.

        Several as near: InfiniBand before Ethernet, then the first by name. None where there is no
        adapter, or nothing tells how far the nearest is.
        """
        path, node = _pci_path(self._device(bus_id), self._root), self.node_of_pci(bus_id)
        nearest: tuple[int, Nic | None] = (0, None)
        for adapter in self._adapters:
            shared = 2 * _shared(path, adapter.path)
            if shared == 0 and None not in (node, adapter.nic.numa_node):
                shared = 1 if node == adapter.nic.numa_node else -1
            if shared != 0 and (nearest[1] is None or shared > nearest[0]):
                nearest = shared, adapter.nic
        return nearest[1]

    def _device(self, bus_id: str) -> Path:
        known = _PCI_ADDRESS.fullmatch(bus_id) is not None
        return self._root / "sys/bus/pci/devices" / (bus_id if known else "none")

    def _all_on(self, node: int) -> Topology:
        adapters = (replace(each, nic=replace(each.nic, numa_node=node)) for each in self._adapters)
        return replace(self, _adapters=tuple(adapters))


def _node_numbers(root: Path) -> list[int]:
    folder = root / "sys/devices/system/node"
    numbers = sorted(
        int(name[4:]) for name in entries(folder) if re.fullmatch(r"node\d{1,5}", name) is not None
    )
    if not numbers:
        raise UnavailableError(f"{folder} names no node")
    if len(numbers) > MAX_NODES:
        raise UnavailableError(f"{len(numbers)} NUMA nodes; at most {MAX_NODES} are read")
    return numbers


def _read_node(root: Path, number: int) -> tuple[NumaNode, frozenset[int]]:
    folder = root / f"sys/devices/system/node/node{number}"
    text = read_text(folder / "cpulist")
    try:
        total = _MEMORY.search(read_text(folder / "meminfo"))
    except UnavailableError:
        total = None
    return NumaNode(number, text, int(total[1]) << 10 if total else None), parse_list(text)


def _sockets(root: Path, cpus_by_node: Mapping[int, frozenset[int]]) -> dict[int, int]:
    sockets = {}
    for node, cpus in cpus_by_node.items():
        package = read_int(root / f"sys/devices/system/cpu/cpu{min(cpus)}/topology/physical_package_id")
        if package is not None and package >= 0:
            sockets[node] = package
    return sockets


def _gpu_memory_nodes(root: Path) -> dict[str, int]:
    """From PCI address to node, where a GPU's memory makes one."""
    folder = root / "proc/driver/nvidia/gpus"
    found = {}
    try:
        for name in entries(folder):
            try:
                node = _GPU_MEMORY_NODE.search(read_text(folder / name / "numa_status"))
            except UnavailableError:
                continue
            if node is not None:
                found[name] = int(node[1])
    except UnavailableError:
        pass  # no driver of NVIDIA's, or a GPU whose memory is its own
    return found


def _adapters(root: Path) -> tuple[_Adapter, ...]:
    """All physical adapters. Raises UnavailableError where /sys shows neither class of them."""
    infiniband, ethernet = root / "sys/class/infiniband", root / "sys/class/net"
    found: list[_Adapter] = []
    reasons = []
    for folder, is_infiniband in ((infiniband, True), (ethernet, False)):
        try:
            names = sorted(entries(folder), key=_natural)
        except UnavailableError as reason:
            reasons.append(str(reason))
            continue
        # An adapter of the one class mostly has a face in the other, too: one is enough.
        taken = {adapter.path for adapter in found}
        for name in names:
            path = _pci_path(folder / name / "device", root)
            if not path or path in taken or _is_a_part_of_another(folder / name / "device", root):
                continue
            node = _node_of(root.joinpath("sys/devices", *path))
            speed = _infiniband_speed(folder / name) if is_infiniband else _ethernet_speed(folder / name)
            found.append(_Adapter(Nic(name, node, speed), path, is_infiniband))
    if len(reasons) == 2:
        raise UnavailableError("; ".join(reasons))
    return tuple(found[:MAX_NICS])


def _is_a_part_of_another(device: Path, root: Path) -> bool:
    """Whether it is a virtual function whose physical one is at hand here as well."""
    whole = device / "physfn"
    if not _pci_path(whole, root):
        return False
    for face in ("infiniband", "net"):
        try:
            if entries(whole / face):
                return True
        except UnavailableError:
            continue
    return False


def _infiniband_speed(device: Path) -> int | None:
    try:
        ports = entries(device / "ports")[:MAX_PORTS]
    except UnavailableError:
        return None
    rates = []
    for port in ports:
        try:
            rate = _RATE.match(read_text(device / "ports" / port / "rate"))
        except UnavailableError:
            continue
        if rate is not None:
            rates.append(int(float(rate[1]) * 1e9))
    return max(rates, default=None)


def _ethernet_speed(device: Path) -> int | None:
    megabits = read_int(device / "speed")
    # Not known is -1, which older kernels write as 4294967295.
    return megabits * 1_000_000 if megabits is not None and 0 < megabits <= MAX_MEGABITS else None


def _node_of(device: Path, otherwise: int | None = None) -> int | None:
    node = read_int(device / "numa_node")
    return node if node is not None and node >= 0 else otherwise


def _pci_path(device: Path, root: Path) -> tuple[str, ...]:
    """The way to a device from its host bridge; empty: not on PCI.

    A virtual machine's adapter hangs one step below its PCI device (``virtio0``): the way to that counts.
    """
    real = Path(os.path.realpath(device))
    try:
        parts = real.relative_to(os.path.realpath(root / "sys/devices")).parts
    except ValueError:
        return ()
    if parts and re.fullmatch(r"virtio\d+", parts[-1]):
        parts = parts[:-1]
    if not (len(parts) > 1 and _PCI_ADDRESS.fullmatch(parts[-1]) and os.path.isdir(real)):  # noqa: PTH112 - raises nothing
        return ()
    return parts


def _shared(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """How many steps two paths have in common; 0 where they begin at different host bridges.

    On some machines the bridges lie in folders of the platform's, which are no step.
    """
    common = 0
    for ours, theirs in zip(one, other, strict=False):
        if ours != theirs:
            break
        common += 1
    on_pci = [part for part in one[:common] if part.startswith("pci") or _PCI_ADDRESS.fullmatch(part)]
    return len(on_pci)


def _natural(name: str) -> tuple[tuple[str, int], ...]:
    """Sort ``mlx5_10`` after ``mlx5_2``."""
    return tuple((text, int(number or 0)) for text, number in re.findall(r"(\D+)(\d*)", name))
