"""One host as seen by its ranks: its GPUs, and the ranks on each."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from overlaptop.fleet.snapshot import RankView
from overlaptop.text import UNKNOWN
from overlaptop.wire.devices import GpuSite


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of the machine, and the ranks that compute on it; or a rank without a GPU."""

    uuid: str  # Empty: none
    index: int | None  # NVML's index; None if only its rank reports it
    name: str
    pci_bus_id: str
    node: int | None
    ranks: tuple[RankView, ...]

    @property
    def label(self) -> str:
        return f"GPU {UNKNOWN if self.index is None else self.index}"


@dataclass(frozen=True, slots=True)
class Machine:
    """A host of the job."""

    host: str
    gpus: tuple[Gpu, ...]  # By index
    ranks: tuple[RankView, ...]  # All of this host

    @property
    def rows(self) -> tuple[Gpu, ...]:
        without = (view for view in self.ranks if not view.gpu_uuid)
        return (*self.gpus, *(Gpu("", None, "", "", None, (view,)) for view in without))


def host_of(view: RankView) -> str:
    """Return the rank's host, as the user named it if they did; empty if not known."""
    reported = view.machine.host if view.machine is not None else ""
    return view.node or (view.info.host if view.info is not None else reported)


def hosts(ranks: Iterable[RankView]) -> list[str]:
    """Return the hosts in the order of their first rank."""
    return list(dict.fromkeys(host for view in ranks if (host := host_of(view))))


def machine_of(ranks: Sequence[RankView], host: str) -> Machine:
    """Return the host as reported by all its ranks: in containers each may see only a part of it."""
    here = tuple(view for view in ranks if host_of(view) == host)
    sites = {site.uuid: site for view in here[::-1] if view.machine for site in view.machine.gpus}
    uuids = dict.fromkeys((*sites, *(view.gpu_uuid for view in here if view.gpu_uuid)))
    gpus = [_gpu(uuid, sites.get(uuid), [view for view in here if view.gpu_uuid == uuid]) for uuid in uuids]
    gpus.sort(key=lambda gpu: (gpu.index is None, gpu.index or 0, gpu.pci_bus_id))
    return Machine(host, tuple(gpus), here)


def _gpu(uuid: str, site: GpuSite | None, ranks: Sequence[RankView]) -> Gpu:
    """``site``: the machine's own entry; None: only its ranks report it."""
    nodes = [site.numa_node if site is not None else None, *(v.numa.gpu_node for v in ranks if v.numa)]
    node = next((each for each in nodes if each is not None), None)
    if site is not None:
        return Gpu(uuid, site.index, site.name, site.pci_bus_id, node, tuple(ranks))
    device = ranks[0].device
    assert device is not None
    return Gpu(uuid, None, device.gpu_name, device.pci_bus_id, node, tuple(ranks))
