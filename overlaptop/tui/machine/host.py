"""One host as its ranks see it together: NUMA nodes, and on each its adapters, GPUs and ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from overlaptop.fleet.snapshot import RankView
from overlaptop.text import UNKNOWN
from overlaptop.wire.devices import GpuSite, Nic, NumaNode

_CPU_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of the machine, and the ranks that compute on it."""

    uuid: str
    index: int | None
    """NVML's; None where only its rank knows of it."""
    name: str
    pci_bus_id: str
    node: int | None
    ranks: tuple[RankView, ...] = ()

    @property
    def label(self) -> str:
        """``GPU 3``."""
        return f"GPU {UNKNOWN if self.index is None else self.index}"

    def reporting_rank(self, selected: RankView | None) -> RankView | None:
        """The rank whose word on this GPU is shown: the selected one, else one that has measured it."""
        for view in self.ranks:
            if selected is not None and view.rank == selected.rank:
                return view
        return next((view for view in self.ranks if view.samples), self.ranks[0] if self.ranks else None)


@dataclass(slots=True)
class MachineNode:
    """A NUMA node with what is on it; `facts` None: it is not known on which node these are."""

    number: int | None
    facts: NumaNode | None = None
    nics: list[Nic] = field(default_factory=list)
    gpus: list[Gpu] = field(default_factory=list)
    ranks: list[RankView] = field(default_factory=list)
    """Ranks without a GPU that may run here."""

    @property
    def bare(self) -> bool:
        """Memory only, a GPU's for the most part: nothing runs or hangs there."""
        return self.facts is not None and not (self.facts.cpus or self.nics or self.gpus or self.ranks)


@dataclass(frozen=True, slots=True)
class Machine:
    """A host of the job."""

    host: str
    nodes: tuple[MachineNode, ...]
    """By number; last the one that stands for "not known", where something is there."""
    gpus: tuple[Gpu, ...]
    """By index."""
    ranks: tuple[RankView, ...]
    """All of this host."""

    def gpu_of(self, view: RankView | None) -> Gpu | None:
        uuid = gpu_uuid(view) if view is not None else ""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None) if uuid else None

    @property
    def own_name(self) -> str:
        """What the host calls itself, where the user has named it otherwise; else empty."""
        names = {view.info.host for view in self.ranks if view.info is not None} - {self.host}
        return ", ".join(sorted(names))

    def label(self, uuid: str) -> str:
        """``GPU 3``; a GPU that nobody has named: ``another GPU``."""
        return next((gpu.label for gpu in self.gpus if gpu.uuid == uuid), "another GPU")


def host_of(view: RankView) -> str:
    """The name of the rank's host, as the user has named it where they did; empty where not known."""
    if view.node:
        return view.node
    if view.info is not None:
        return view.info.host
    return view.machine.host if view.machine is not None else ""


def hosts(ranks: Iterable[RankView]) -> list[str]:
    """In the order of their first rank."""
    return list(dict.fromkeys(host for view in ranks if (host := host_of(view))))


def gpu_uuid(view: RankView) -> str:
    """Empty: none, or not known."""
    return view.device.gpu_uuid if view.device is not None else ""


def machine_of(ranks: Sequence[RankView], host: str) -> Machine:
    """What the ranks of ``host`` say together: in containers each may see but a part of the machine."""
    here = tuple(view for view in ranks if host_of(view) == host)
    gpus = _gpus(here)
    nodes: dict[int | None, MachineNode] = {}

    def node(number: int | None) -> MachineNode:
        return nodes.setdefault(number, MachineNode(number))

    nics: dict[str, Nic] = {}
    for view in here:
        if view.machine is not None:
            for facts in view.machine.numa_nodes:
                node(facts.node).facts = facts
            nics = {**{nic.name: nic for nic in view.machine.nics}, **nics}
        if view.numa is not None and not gpu_uuid(view):
            for share in view.numa.cpu_nodes:
                node(share.node).ranks.append(view)
    only = next(iter(nodes)) if len(nodes) == 1 else None
    for nic in nics.values():
        node(only if nic.numa_node is None else nic.numa_node).nics.append(nic)
    for gpu in gpus:
        node(only if gpu.node is None else gpu.node).gpus.append(gpu)
    ordered = sorted(nodes.values(), key=lambda each: (each.number is None, each.number or 0))
    return Machine(host, tuple(ordered), gpus, here)


def _gpus(here: Sequence[RankView]) -> tuple[Gpu, ...]:
    sites: dict[str, GpuSite] = {}
    users: dict[str, tuple[RankView, ...]] = {}
    for view in here:
        for site in view.machine.gpus if view.machine is not None else ():
            sites.setdefault(site.uuid, site)
        if view.device is not None and (uuid := view.device.gpu_uuid):
            users[uuid] = (*users.get(uuid, ()), view)
    gpus = []
    for uuid in {**sites, **users}:
        ranks, listed = users.get(uuid, ()), sites.get(uuid)
        near = [view.numa.gpu_node for view in ranks if view.numa and view.numa.gpu_node is not None]
        if listed is not None:
            node = listed.numa_node if listed.numa_node is not None else next(iter(near), None)
            gpus.append(Gpu(uuid, listed.index, listed.name, listed.pci_bus_id, node, ranks))
        elif (device := ranks[0].device) is not None:
            gpus.append(Gpu(uuid, None, device.gpu_name, device.pci_bus_id, next(iter(near), None), ranks))
    return tuple(sorted(gpus, key=lambda gpu: (gpu.index is None, gpu.index or 0, gpu.pci_bus_id)))


def cpu_count(cpus: str) -> int | None:
    """How many CPUs a kernel's list names: ``0-3,8`` has 5; None where it is no such list."""
    total = 0
    for part in cpus.split(",") if cpus else ():
        match = _CPU_RANGE.fullmatch(part.strip())
        if match is None:
            return None
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            return None
        total += last - first + 1
    return total
