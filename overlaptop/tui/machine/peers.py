"""Which GPUs the chosen rank's GPU is linked to, and how."""

from __future__ import annotations

from overlaptop.fleet.snapshot import RankView
from overlaptop.report.links import nvlink_words
from overlaptop.text import rate
from overlaptop.tui.draw.segments import StyledLine, dim
from overlaptop.tui.machine.host import Gpu, Machine
from overlaptop.tui.machine.words import paragraph, titled
from overlaptop.wire.devices import GpuLink

_LABEL = 18
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
        alone = len(machine.gpus) == 1
        text = "no other GPU here" if alone else "unknown"
        return [titled("links", dim(f"of {gpu.label} to others: {text}"))]
    alike: dict[str, list[str]] = {}
    for link in links:
        peers = alike.setdefault(_words(link), [])
        peer = machine.label(link.peer_uuid) if link.peer_uuid else "all GPUs on the switch"
        if peer not in peers:
            peers.append(peer)
    lines: list[StyledLine] = [titled("links", dim(f"of {gpu.label}"))]
    for text, peers in alike.items():
        wrapped = paragraph(_together(peers), width, indent=_LABEL + 3)
        head = dim(f"   {text:<{_LABEL}}") if len(text) < _LABEL else dim(f"   {text}  ")
        lines += [(head, *wrapped[0][1:]), *wrapped[1:]]
    return lines


def _words(link: GpuLink) -> str:
    count = f" ×{link.links}" if link.links else ""
    if link.kind == "nvswitch":
        return f"NVSwitch{count}"
    if link.kind == "nvlink":
        return f"NVLink{count}"
    return f"PCIe {link.path}".rstrip()


def _together(labels: list[str]) -> str:
    """``GPU 1 2 3`` of ``GPU 1``, ``GPU 2``, ``GPU 3``."""
    numbers = [label.removeprefix("GPU ") for label in labels if label.startswith("GPU ")]
    others = [label for label in labels if not label.startswith("GPU ")]
    return ", ".join(([f"GPU {' '.join(numbers)}"] if numbers else []) + others)


def fabric(machine: Machine) -> str:
    """How this machine's GPUs reach one another, in words; empty where nobody has text."""
    devices = [view.device for view in machine.ranks if view.device is not None and view.device.links]
    if not devices:
        return ""
    kinds = {link.kind for device in devices for link in device.links}
    if "nvswitch" in kinds:
        one = devices[0]
        each_way = rate(one.nvlink_peak_bytes_per_s)
        return f"NVSwitch: each GPU by {nvlink_words(one)}, {each_way} each way"
    if "nvlink" in kinds:
        return "NVLink from GPU to GPU"
    paths = sorted({link.path for device in devices for link in device.links if link.path})
    text = ", ".join(f"{path}: {_PATHS[path]}" if path in _PATHS else path for path in paths)
    return f"no NVLink: GPU to GPU over PCIe{f' ({text})' if text else ''}"
