"""A rank's links: their traffic, their peak rates, and its GPU's NUMA node. No drawing."""

from collections.abc import Sequence
from typing import NamedTuple

from overlaptop.fleet.snapshot import RankView
from overlaptop.wire.devices import DeviceFacts, NumaFacts

NUMA_MARKS = {
    "bound": ("✓", "good"),
    "one node": ("✓", "good"),
    "unbound": ("~", "warning"),
    "wrong node": ("✗", "error"),
    "no gpu": ("·", "dim"),
    "unknown": ("?", "dim"),
}
"""By state: a glyph, readable without colours, and a colour."""
_MISPLACEMENT = {"bound": 0, "one node": 0, "no gpu": 0, "unbound": 1, "wrong node": 2}
_LOADED_SHARE = 0.01
"""Smallest load as a share of the peak. An idle link may save power by a lower rate, which is no fault."""


class Rate(NamedTuple):
    """Bytes per second in one direction, and the peak; None if not known."""

    bytes_per_s: int | None
    peak_bytes_per_s: int | None

    @property
    def share(self) -> float | None:
        """Share of the peak in [0, 1], slightly more if a counter runs ahead."""
        if self.bytes_per_s is None or not self.peak_bytes_per_s:
            return None
        return self.bytes_per_s / self.peak_bytes_per_s


def nvlink_rate(view: RankView) -> Rate:
    peak = view.device.nvlink_peak_bytes_per_s if view.device else None
    ways = (view.sample.nvlink_rx_bytes_per_s, view.sample.nvlink_tx_bytes_per_s) if view.sample else ()
    return Rate(max((rate for rate in ways if rate is not None), default=None), peak)


def pcie_rate(view: RankView) -> Rate:
    peak = view.device.pcie_peak_bytes_per_s if view.device else None
    ways = (view.sample.pcie_rx_bytes_per_s, view.sample.pcie_tx_bytes_per_s) if view.sample else ()
    return Rate(max((rate for rate in ways if rate is not None), default=None), peak)


def bus_peak_bytes_per_s(views: Sequence[RankView]) -> int | None:
    """Return the largest bus bandwidth, as nccl-tests defines it, between these GPUs: the one-way peak of
    the slowest link in use. None: not known, on one GPU or several hosts, or collectives on the CPU.
    """
    if len({view.info.host for view in views if view.info is not None}) != 1:
        return None
    gpus = {view.device.gpu_uuid for view in views if view.device is not None}
    over = {view.traffic.over for view in views if view.traffic is not None}
    if "" in gpus or len(gpus) != len(views) or len(over) != 1:
        return None
    if any(view.info is None or view.info.source == "host" or view.traffic is None for view in views):
        return None
    rate = nvlink_rate if over == {"nvlink"} else pcie_rate
    peaks = [rate(view).peak_bytes_per_s or 0 for view in views]
    return min(peaks) or None


def has_nvlink(view: RankView) -> bool:
    """Return whether there are NVLink facts to show. A GPU without NVLinks may still count zeros."""
    count = view.device.nvlink_count if view.device is not None else None
    return bool(count) if count is not None else nvlink_rate(view).bytes_per_s is not None


def has_pcie(view: RankView) -> bool:
    rate = pcie_rate(view)
    return bool(rate.peak_bytes_per_s) or rate.bytes_per_s is not None


def numa_matters(view: RankView) -> bool:
    return view.numa is not None and view.numa.state in ("bound", "unbound", "wrong node")


def near_node(numa: NumaFacts) -> int | None:
    """Return the node nearest to the GPU; on a machine with one node, that node."""
    if numa.gpu_node is None and numa.state == "one node" and len(numa.cpu_nodes) == 1:
        return numa.cpu_nodes[0].node
    return numa.gpu_node


def misplacement(view: RankView) -> int | None:
    """Return 0: well placed, 1: may leave its GPU's node, 2: is on another node. None if not known."""
    return _MISPLACEMENT.get(view.numa.state) if view.numa is not None else None


def pcie_is_turned_down(view: RankView) -> bool:
    """Return whether the PCIe link is slower or narrower than possible although it is in use."""
    device, share = view.device, pcie_rate(view).share
    if device is None or share is None or share < _LOADED_SHARE:
        return False
    generation = device.pcie_generation, device.pcie_generation_max
    return any(
        now is not None and most is not None and now < most
        for now, most in (generation, (device.pcie_width, device.pcie_width_max))
    )


def nvlink_words(device: DeviceFacts) -> str:
    if device.nvlink_count == 0:
        return "NVLink none"
    count = f"×{device.nvlink_count}" if device.nvlink_count else ""
    return " ".join(filter(None, ("NVLink", device.nvlink_version, count)))


def pcie_words(generation: int | None, width: int | None) -> str:
    lanes = f"×{width}" if width is not None else ""
    return " ".join(filter(None, (f"gen{generation}" if generation is not None else "", lanes)))
