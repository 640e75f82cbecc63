"""Which GPUs the selected rank's GPU is linked to, and how."""

from __future__ import annotations

from overlaptop.fleet.snapshot import RankView
from overlaptop.report.links import nvlink_words
from overlaptop.text import rate
from overlaptop.tui.draw.segments import TEXT, StyledLine, dim, hanging, titled
from overlaptop.tui.machine.host import Gpu, Machine
from overlaptop.wire.devices import GpuLink

_PATHS = {
    "PIX": "one PCIe bridge",
    "PXB": "PCIe bridges",
    "PHB": "the host bridge",
    "NODE": "host bridges of one node",
    "SYS": "from node to node",
}
"""As ``nvidia-smi topo -m`` explains them, in short."""


def peer_lines(view: RankView, gpu: Gpu, machine: Machine, width: int) -> list[StyledLine]:
    """Peers that are reached alike, on one line."""
    links = view.device.links if view.device is not None else ()
    if not links:
        text = "no other GPU here" if len(machine.gpus) == 1 else "unknown"
        return [titled("links", dim(f"of {gpu.label} to others: {text}"))]
    alike: dict[str, dict[str, None]] = {}
    for link in links:
        peer = machine.label(link.peer_uuid) if link.peer_uuid else "all GPUs on the switch"
        alike.setdefault(_words(link), {})[peer] = None
    lines: list[StyledLine] = [titled("links", dim(f"of {gpu.label}"))]
    for text, peers in alike.items():
        # GPU 1 2 3 of GPU 1, GPU 2, GPU 3
        lines += hanging((dim(f"   {text:<16}  "),), ", ".join(peers).replace(", GPU", ""), width, TEXT)
    return lines


def _words(link: GpuLink) -> str:
    count = f" ×{link.links}" if link.links else ""
    named = {"nvswitch": f"NVSwitch{count}", "nvlink": f"NVLink{count}"}
    return named.get(link.kind, f"PCIe {link.path}".rstrip())


def fabric(machine: Machine) -> str:
    """How this machine's GPUs reach one another, in words; empty where nobody has text."""
    devices = [view.device for view in machine.ranks if view.device is not None and view.device.links]
    if not devices:
        return ""
    links = [link for device in devices for link in device.links]
    kinds = {link.kind for link in links}
    if "nvswitch" in kinds:
        each_way = rate(devices[0].nvlink_peak_bytes_per_s)
        return f"NVSwitch: each GPU by {nvlink_words(devices[0])}, {each_way} each way"
    if "nvlink" in kinds:
        return "NVLink from GPU to GPU"
    paths = sorted({link.path for link in links if link.path})
    text = ", ".join(f"{path}: {_PATHS[path]}" if path in _PATHS else path for path in paths)
    return f"no NVLink: GPU to GPU over PCIe{f' ({text})' if text else ''}"
