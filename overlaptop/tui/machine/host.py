"""One host as seen by its ranks: its GPUs, and the ranks on each."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from overlaptop.fleet.snapshot import RankView
from overlaptop.text import UNKNOWN
from overlaptop.wire.devices import GpuSite


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of the machine, and the ranks that compute on it."""

    uuid: str
    index: int | None
    """NVML's index; None if only its rank reports it."""
    name: str
    pci_bus_id: str
    node: int | None
    ranks: tuple[RankView, ...] = ()

    @property
    def label(self) -> str:
        """Return such as ``GPU 3``."""
        return f"GPU {UNKNOWN if self.index is None else self.index}"

    def reporting_rank(self, selected: RankView) -> RankView | None:
        """Return the rank whose figures of this GPU are shown: the selected one, else one that has measured
        it.
        """
        if any(view.rank == selected.rank for view in self.ranks):
            return selected
        return next((view for view in self.ranks if view.samples), self.ranks[0] if self.ranks else None)


@dataclass(frozen=True, slots=True)
class Machine:
    """A host of the job."""

    host: str
    gpus: tuple[Gpu, ...]
    """By index."""
    ranks: tuple[RankView, ...]
    """All of this host."""

    def gpu_of(self, view: RankView) -> Gpu | None:
        uuid = view.gpu_uuid
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None) if uuid else None

    @property
    def own_name(self) -> str:
        """Return the host's own name if the user gave it another one; else empty."""
        names = {view.info.host for view in self.ranks if view.info is not None} - {self.host}
        return ", ".join(sorted(names))


def host_of(view: RankView) -> str:
    """Return the rank's host, as the user named it if they did; empty if not known."""
    if view.node:
        return view.node
    if view.info is not None:
        return view.info.host
    return view.machine.host if view.machine is not None else ""


def hosts(ranks: Iterable[RankView]) -> list[str]:
    """Return the hosts in the order of their first rank."""
    return list(dict.fromkeys(host for view in ranks if (host := host_of(view))))


def machine_of(ranks: Sequence[RankView], host: str) -> Machine:
    """Return the host as reported by all its ranks: in containers each may see only a part of it."""
    here = tuple(view for view in ranks if host_of(view) == host)
    sites: dict[str, GpuSite] = {}
    users: dict[str, tuple[RankView, ...]] = {}
    for view in here:
        for site in view.machine.gpus if view.machine is not None else ():
            sites.setdefault(site.uuid, site)
        if uuid := view.gpu_uuid:
            users[uuid] = (*users.get(uuid, ()), view)
    gpus = [_gpu(uuid, sites.get(uuid), users.get(uuid, ())) for uuid in {**sites, **users}]
    gpus.sort(key=lambda gpu: (gpu.index is None, gpu.index or 0, gpu.pci_bus_id))
    return Machine(host, tuple(gpus), here)


def _gpu(uuid: str, site: GpuSite | None, ranks: tuple[RankView, ...]) -> Gpu:
    """``site``: the machine's own entry; None: only its ranks report it."""
    near = [view.numa.gpu_node for view in ranks if view.numa and view.numa.gpu_node is not None]
    node = next(iter(near), None)
    if site is not None:
        node = node if site.numa_node is None else site.numa_node
        return Gpu(uuid, site.index, site.name, site.pci_bus_id, node, ranks)
    device = ranks[0].device
    assert device is not None
    return Gpu(uuid, None, device.gpu_name, device.pci_bus_id, node, ranks)
