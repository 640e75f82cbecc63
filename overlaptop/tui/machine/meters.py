"""The selected rank's GPU now: its links in both directions, activity, memory, power, clocks."""

from collections.abc import Callable

from overlaptop.fleet.snapshot import RankView
from overlaptop.report.links import Rate, nvlink_words, pcie_is_turned_down, pcie_words
from overlaptop.text import (
    UNKNOWN,
    byte_count,
    gigabytes_per_s,
    printable,
    rate,
    shortened,
    watts,
    whole_percent,
)
from overlaptop.tui.draw.bars import gauge
from overlaptop.tui.draw.layout import Item, fit, paragraph, titled
from overlaptop.tui.draw.segments import BOLD_WARNING, Segment, StyledLine, TextStyle, bold, dim
from overlaptop.tui.machine.host import Gpu
from overlaptop.wire.devices import DeviceSample

NVLINK, PCIE, NIC = TextStyle("hidden"), TextStyle("copy"), TextStyle("fused")
_UNKNOWN = DeviceSample(0, 0, None, None, None, None, None, None, None, None, None, None, None, None)
_UNITS = ("_bytes_per_s", "_bits_per_s", "_bytes", "_mw", "_hz", "_max")
_NAMES = {
    "nvlink": "NVLink", "pcie": "PCIe", "sm": "SM", "dram": "DRAM", "numa": "NUMA", "cpu": "CPU",
    "gpu": "GPU", "gpus": "GPUs", "nic": "NIC", "nics": "NICs", "pci": "PCI", "uuid": "UUID",
}  # fmt: skip
_LABEL, _PERCENT, _FIGURES, _GAUGE_LEAST, _GAUGE_MOST = 15, 8, 18, 6, 40


def link_lines(view: RankView, gpu: Gpu, width: int) -> list[StyledLine]:
    """Return the GPU's name and the traffic of NVLink, of PCIe, and of the adapter nearest to it.
    `unknown_lines` gives the reasons for unknown figures.
    """
    device, now = view.device, view.sample or _UNKNOWN
    if device is None:
        return []
    items = [
        Item((bold(f" {gpu.label}"),)),
        Item((Segment(gpu.name or "name unknown"),), 1),
        Item((dim("node unknown" if gpu.node is None else f"node {gpu.node}"),), 2),
        Item((dim(gpu.pci_bus_id),), 3),
    ]
    lines, nvlink = [fit(items, [], width)], nvlink_words(device)
    if device.nvlink_count != 0:
        rates = now.nvlink_rx_bytes_per_s, now.nvlink_tx_bytes_per_s
        lines += _link(nvlink, rates, device.nvlink_peak_bytes_per_s, NVLINK, width)
    else:
        lines.append(_words(nvlink, "this GPU has none"))
    pcie = f"PCIe {pcie_words(device.pcie_generation, device.pcie_width)}".rstrip()
    rates = now.pcie_rx_bytes_per_s, now.pcie_tx_bytes_per_s
    lines += _link(pcie, rates, device.pcie_peak_bytes_per_s, PCIE, width)
    if (nic := view.nic) is not None:
        peak = nic.bits_per_s // 8 if nic.bits_per_s is not None else None
        label = shortened(f"NIC {printable(nic.name)}", _LABEL - 1)
        lines += _link(label, (now.nic_rx_bytes_per_s, now.nic_tx_bytes_per_s), peak, NIC, width)
    if pcie_is_turned_down(view):
        best = pcie_words(device.pcie_generation_max, device.pcie_width_max)
        text = f"! slower than its {best} although in use: check the slot and the riser"
        lines += paragraph(text, width, BOLD_WARNING, indent=3)
    if device.nic_errors:
        counts = ", ".join(f"{each.count:,} {printable(each.counter)}" for each in device.nic_errors)
        lines += paragraph(f"! errors of the NIC since the start: {counts}", width, BOLD_WARNING, indent=3)
    return lines


def activity_lines(view: RankView, width: int) -> list[StyledLine]:
    device, now = view.device, view.sample or _UNKNOWN
    if device is None:
        return []
    held = dim("unknown")
    if now.throttle_reasons is not None:
        reasons = ", ".join(now.throttle_reasons)
        held = Segment(reasons, BOLD_WARNING) if reasons else Segment("no")
    shares = (
        ("SM", now.sm_activity),
        ("tensor cores", now.tensor_activity),
        ("DRAM", now.dram_activity),
    )
    amounts: tuple[tuple[str, int | None, int | None, Callable[[int | None], str]], ...] = (
        ("memory", now.memory_used_bytes, device.memory_total_bytes, byte_count),
        ("power", now.power_mw, device.power_limit_mw, watts),
        ("SM clock", now.sm_clock_hz, device.sm_clock_max_hz, _megahertz),
        ("memory clock", now.memory_clock_hz, device.memory_clock_max_hz, _megahertz),
    )
    return [
        *(_meter(name, share, (), TextStyle("compute"), width) for name, share in shares),
        *(_amount(*amount, width) for amount in amounts),
        _words("throttled", held),
    ]


def no_gpu_lines(view: RankView, width: int) -> list[StyledLine]:
    text = f"unknown: rank {view.rank} has not reported it yet"
    if view.device is not None:
        text = f"none: {_why_no_gpu(view) or 'its GPU is not known'}"
    return [titled("GPU"), *paragraph(text, width, indent=3)]


def unknown_lines(view: RankView, width: int) -> list[StyledLine]:
    """Return a paragraph for each reason, with all unknown figures that it explains. Without a GPU all are
    unknown for the reason of `no_gpu_lines`.
    """
    by_reason: dict[str, dict[str, None]] = {}
    for source in (view.sample, view.device, view.numa, view.machine):
        for unknown in source.unknown if source is not None else ():
            if unknown.reason != _why_no_gpu(view):
                by_reason.setdefault(unknown.reason, {})[_name(unknown.name)] = None
    lines = [
        line
        for reason, names in by_reason.items()
        for line in paragraph(f"{', '.join(names)}: {reason}", width, indent=3)
    ]
    return [titled("unknown"), *lines] if lines else []


def _why_no_gpu(view: RankView) -> str:
    if view.device is None or view.device.gpu_uuid:
        return ""
    return next((each.reason for each in view.device.unknown if each.name == "gpu_uuid"), "")


def _name(field: str) -> str:
    """Return a field's name as shown on the screen: ``nvlink_rx_bytes_per_s`` is NVLink rx."""
    for unit in _UNITS:
        field = field.removesuffix(unit)
    return " ".join(_NAMES.get(word, word) for word in field.split("_"))


def _megahertz(clock_hz: int | None) -> str:
    return UNKNOWN if clock_hz is None else f"{clock_hz / 1e6:,.0f} MHz"


def _link(
    label: str, rates: tuple[int | None, int | None], peak: int | None, style: TextStyle, width: int
) -> list[StyledLine]:
    """Return lines of rx and tx; ``rates`` and ``peak`` in bytes a second."""
    lines = []
    for name, direction, bytes_per_s in zip((label, ""), ("rx", "tx"), rates, strict=True):
        figures: StyledLine = ()
        if bytes_per_s is not None:
            figures = (bold(rate(bytes_per_s)),)
            if peak is not None:
                figures = (bold(gigabytes_per_s(bytes_per_s)), dim(f" of {rate(peak)}"))
        share = Rate(bytes_per_s, peak).share
        lines.append(_meter(f"{name:<{_LABEL}}{direction}", share, figures, style, width))
    return lines


def _amount(
    label: str, used: int | None, most: int | None, text_of: Callable[[int | None], str], width: int
) -> StyledLine:
    share: float | None = None
    figures: StyledLine = ()
    if used is not None:
        part, whole = text_of(used), text_of(most)
        figures = (bold(part),)
        if most is not None:
            # 72.0 of 141 GiB: the unit once
            figure, _, unit = part.partition(" ")
            share = used / most if most else None
            figures = (bold(figure if whole.endswith(f" {unit}") else part), dim(f" of {whole}"))
    return _meter(label, share, figures, TextStyle("history"), width)


def _meter(
    label: str, share: float | None, figures: StyledLine, style: TextStyle, width: int
) -> StyledLine:
    if share is None and not figures:
        return _words(label, "unknown")
    space = width - 3 - _LABEL - 3 - _PERCENT - _FIGURES - 1
    # In a narrow space the figures matter more.
    size = min(_GAUGE_MOST, space) if space >= _GAUGE_LEAST else 0
    bar = gauge(share, size, style) if share is not None else (Segment(" " * size),)
    percent = whole_percent(share) if share is not None else ""
    return (dim(f"   {label:<{_LABEL + 3}}"), *bar, bold(f"{percent:>6}  "), *figures)


def _words(label: str, text: Segment | str) -> StyledLine:
    return (dim(f"   {label:<{_LABEL + 3}}"), dim(text) if isinstance(text, str) else text)
