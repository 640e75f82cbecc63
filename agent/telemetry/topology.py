"""The machine's NUMA nodes and network adapters, and their nearness to PCI devices.

Read from /sys, which most containers show in full. A missing value is unknown, with the reason.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from overlaptop.agent.telemetry.files import (
    UnavailableError,
    entries,
    names_in,
    parse_list,
    read_int,
    read_text,
    text_if_any,
)
from overlaptop.wire.devices import Nic, Unknown

MAX_NODES = 256
MAX_NICS = 64
MAX_PORTS = 8
MAX_MEGABITS = 10_000_000

_NODE = re.compile(r"node(\d{1,5})")
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_RATE_GBPS = re.compile(r"^(\d{1,6}(?:\.\d+)?) Gb/sec")


@dataclass(frozen=True, slots=True)
class Topology:
    """The machine's topology."""

    cpus_by_node: Mapping[int, frozenset[int]]  # Online CPUs of nodes that have any, ascending
    unknown: tuple[Unknown, ...]
    _root: Path = field(repr=False)
    _nic_by_path: Mapping[tuple[str, ...], Nic] = field(repr=False)
    """The path leads from the host bridge to the device: ``pci0000:15``, ``0000:15:01.0``, ..."""

    @classmethod
    def read(cls, root: Path = Path("/")) -> "Topology":
        """Read the machine below `root`. Never raises: missing values are in `unknown`."""
        unknown: list[Unknown] = []
        cpus_by_node: dict[int, frozenset[int]] = {}
        nic_by_path: dict[tuple[str, ...], Nic] = {}
        try:
            cpus_by_node = _cpus_by_node(root / "sys/devices/system/node")
        except UnavailableError as reason:
            unknown.append(Unknown("numa_nodes", str(reason)))
        try:
            nic_by_path = _nics(root, _only(cpus_by_node))
        except UnavailableError as reason:
            unknown.append(Unknown("nics", str(reason)))
        return cls(cpus_by_node, tuple(unknown), root, nic_by_path)

    @property
    def nics(self) -> tuple[Nic, ...]:
        """Physical adapters, InfiniBand (and RoCE) before Ethernet, then by name."""
        return tuple(self._nic_by_path.values())

    @property
    def why_no_nodes(self) -> str:
        """Why `cpus_by_node` is empty."""
        reasons = (each.reason for each in self.unknown if each.name == "numa_nodes")
        return next(reasons, "no NUMA node has CPUs")

    @property
    def only_node(self) -> int | None:
        return _only(self.cpus_by_node)

    def node_of_pci(self, bus_id: str) -> int | None:
        """Return the node whose CPUs are next to a device (``0000:1b:00.0``); None if unknown.

        If one node has all CPUs, it is that node, though firmware then often names none.
        """
        return _node_of(self._device(bus_id), self.only_node)

    def nic_near(self, bus_id: str) -> Nic | None:
        """Return the adapter nearest to a device: by the common part of their PCI paths, then by node.

        Among equals InfiniBand precedes Ethernet, then the name decides. None if there is no adapter, or
        distances are unknown.
        """
        path, node = _pci_path(self._device(bus_id), self._root), self.node_of_pci(bus_id)
        nearness: dict[tuple[str, ...], int] = {}
        for other, nic in self._nic_by_path.items():
            shared = 2 * _shared(path, other)
            if shared == 0 and None not in (node, nic.numa_node):
                shared = 1 if node == nic.numa_node else -1
            if shared != 0:
                nearness[other] = shared
        return self._nic_by_path[max(nearness, key=nearness.__getitem__)] if nearness else None

    def _device(self, bus_id: str) -> Path:
        known = _PCI_ADDRESS.fullmatch(bus_id) is not None
        return self._root / "sys/bus/pci/devices" / (bus_id if known else "none")


def _only(cpus_by_node: Mapping[int, frozenset[int]]) -> int | None:
    return next(iter(cpus_by_node)) if len(cpus_by_node) == 1 else None


def _cpus_by_node(folder: Path) -> dict[int, frozenset[int]]:
    """Raises UnavailableError."""
    numbers = sorted(int(found[1]) for found in map(_NODE.fullmatch, entries(folder)) if found is not None)
    if not 0 < len(numbers) <= MAX_NODES:
        raise UnavailableError(f"{folder} names {len(numbers)} nodes; 1 to {MAX_NODES} are read")
    cpus_by_node: dict[int, frozenset[int]] = {}
    for number in numbers:
        if cpus := parse_list(read_text(folder / f"node{number}/cpulist")):
            cpus_by_node[number] = cpus
    return cpus_by_node


def _nics(root: Path, only_node: int | None) -> dict[tuple[str, ...], Nic]:
    """Return all physical adapters by path. Raises UnavailableError if /sys shows neither kind."""
    found: dict[tuple[str, ...], Nic] = {}
    reasons = []
    for kind, speed in (("infiniband", _infiniband_speed), ("net", _ethernet_speed)):
        folder = root / "sys/class" / kind
        try:
            names = entries(folder)
        except UnavailableError as reason:
            reasons.append(str(reason))
            continue
        for name in names:
            path = _pci_path(folder / name / "device", root)
            # Most InfiniBand adapters also appear as network adapters: list each once.
            if path and path not in found and len(found) < MAX_NICS:
                node = _node_of(root.joinpath("sys/devices", *path), only_node)
                found[path] = Nic(name, node, speed(folder / name))
    if len(reasons) == 2:
        raise UnavailableError("; ".join(reasons))
    return found


def _infiniband_speed(device: Path) -> int | None:
    ports = names_in(device / "ports")[:MAX_PORTS]
    rates = (_RATE_GBPS.match(text_if_any(device / "ports" / port / "rate")) for port in ports)
    return max((int(float(rate[1]) * 1e9) for rate in rates if rate is not None), default=None)


def _ethernet_speed(device: Path) -> int | None:
    megabits = read_int(device / "speed")
    # Unknown is -1, which older kernels write as 4294967295.
    return megabits * 1_000_000 if megabits is not None and 0 < megabits <= MAX_MEGABITS else None


def _node_of(device: Path, otherwise: int | None) -> int | None:
    node = read_int(device / "numa_node")
    return node if node is not None and node >= 0 else otherwise


def _pci_path(device: Path, root: Path) -> tuple[str, ...]:
    """Return the path to a device from its host bridge; empty if it is not on PCI.

    A virtual machine's adapter (``virtio0``) is a child of its PCI device, whose path counts.
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
    """Count the common steps of two paths; 0 if they begin at different host bridges.

    On some machines the bridges lie in platform folders, which do not count.
    """
    common = 0
    for ours, theirs in zip(one, other, strict=False):
        if ours != theirs:
            break
        common += 1
    on_pci = [part for part in one[:common] if part.startswith("pci") or _PCI_ADDRESS.fullmatch(part)]
    return len(on_pci)
