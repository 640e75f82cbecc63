"""What cannot be had of a rank's machine, and why."""

from __future__ import annotations

from overlaptop.fleet.snapshot import RankView
from overlaptop.tui.draw.segments import DIM, StyledLine
from overlaptop.tui.machine.words import paragraph, titled

_UNITS = ("_bytes_per_s", "_bits_per_s", "_bytes", "_mw", "_hz", "_max")
_NAMES = {
    "nvlink": "NVLink", "pcie": "PCIe", "sm": "SM", "dram": "DRAM", "numa": "NUMA", "cpu": "CPU",
    "gpu": "GPU", "gpus": "GPUs", "nic": "NIC", "nics": "NICs", "pci": "PCI", "uuid": "UUID",
}  # fmt: skip


def unknown_lines(view: RankView, width: int) -> list[StyledLine]:
    """One paragraph a reason, with all that it stands for. Of a GPU that is not there all is unknown, for
    the one reason that `no_gpu_lines` gives.
    """
    why_no_gpu = _why_no_gpu(view)
    by_reason: dict[str, list[str]] = {}
    for source in (view.sample, view.device, view.numa, view.machine):
        for unknown in source.unknown if source is not None else ():
            if unknown.reason == why_no_gpu:
                continue
            names = by_reason.setdefault(unknown.reason, [])
            if (name := _words(unknown.name)) not in names:
                names.append(name)
    lines: list[StyledLine] = []
    for reason, names in by_reason.items():
        lines += paragraph(f"{', '.join(names)}: {reason}", width, DIM)
    return [titled("unknown"), *lines] if lines else []


def no_gpu_lines(view: RankView, width: int) -> list[StyledLine]:
    """Of a rank without a GPU: why."""
    if view.device is None:
        text = f"unknown: rank {view.rank} has not reported it yet"
    else:
        text = f"none: {_why_no_gpu(view) or 'the rank computes on none that is known'}"
    return [titled("GPU"), *paragraph(text, width, DIM)]


def _why_no_gpu(view: RankView) -> str:
    if view.device is None or view.device.gpu_uuid:
        return ""
    return next((each.reason for each in view.device.unknown if each.name == "gpu_uuid"), "")


def _words(name: str) -> str:
    """A field's name as the screen calls it: ``nvlink_rx_bytes_per_s`` is NVLink rx."""
    for unit in _UNITS:
        name = name.removesuffix(unit)
    return " ".join(_NAMES.get(word, word) for word in name.split("_"))
