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
from overlaptop.wire.devices import DeviceFacts, DeviceSample

NVLINK, PCIE, NIC = TextStyle("hidden"), TextStyle("copy"), TextStyle("fused")
_UNKNOWN = DeviceSample(0, 0, None, None, None, None, None, None, None, None, None, None, None, None)
_UNITS = ("_bytes_per_s", "_bits_per_s", "_bytes", "_mw", "_hz", "_max")
_NAMES = {
    "nvlink": "NVLink", "pcie": "PCIe", "sm": "SM", "dram": "DRAM", "numa": "NUMA", "cpu": "CPU",
    "gpu": "GPU", "gpus": "GPUs", "nic": "NIC", "nics": "NICs", "pci": "PCI", "uuid": "UUID",
}  # fmt: skip
_LABEL, _PERCENT, _FIGURES, _GAUGE_LEAST, _GAUGE_MOST = 15, 8, 18, 6, 40


def link_lines(view: RankView, gpu: Gpu, width: int, *, textured: bool) -> list[StyledLine]:
    """Return the GPU's name and its links. Unknown figures are marked;
    `unknown_lines` gives the reasons.
    """
    device = view.device
    if device is None:
        return []
    node = "node unknown" if gpu.node is None else f"node {gpu.node}"
    items = [
        Item((bold(f" {gpu.label}"),)),
        Item((Segment(gpu.name or "name unknown"),), 1),
        Item((dim(node),), 2),
        Item((dim(gpu.pci_bus_id),), 3),
    ]
    draw = _Meters(width, textured=textured)
    lines = [fit(items, [], width), *_links(view, device, draw)]
    if pcie_is_turned_down(view):
        best = pcie_words(device.pcie_generation_max, device.pcie_width_max)
        text = f"! slower than its {best} although in use: check the slot and the riser"
        lines += paragraph(text, width, BOLD_WARNING, indent=3)
    if device.nic_errors:
        counts = ", ".join(f"{each.count:,} {printable(each.counter)}" for each in device.nic_errors)
        lines += paragraph(f"! errors of the NIC since the start: {counts}", width, BOLD_WARNING, indent=3)
    return lines


def activity_lines(view: RankView, width: int, *, textured: bool) -> list[StyledLine]:
    """Return the GPU's activity, memory, power and clocks."""
    device, now = view.device, view.sample or _UNKNOWN
    if device is None:
        return []
    draw = _Meters(width, textured=textured)
    reasons = now.throttle_reasons
    held = dim("unknown")
    if reasons is not None:
        held = Segment(", ".join(reasons), BOLD_WARNING) if reasons else Segment("no")
    return [
        draw.share("SM", now.sm_activity),
        draw.share("tensor cores", now.tensor_activity),
        draw.share("DRAM", now.dram_activity),
        draw.amount("memory", now.memory_used_bytes, device.memory_total_bytes, byte_count),
        draw.amount("power", now.power_mw, device.power_limit_mw, watts),
        draw.amount("SM clock", now.sm_clock_hz, device.sm_clock_max_hz, _megahertz),
        draw.amount("memory clock", now.memory_clock_hz, device.memory_clock_max_hz, _megahertz),
        (dim(f"   {'throttled':<{_LABEL + 3}}"), held),
    ]


def no_gpu_lines(view: RankView, width: int) -> list[StyledLine]:
    """Return why the rank has no GPU."""
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
                by_reason.setdefault(unknown.reason, {})[_words(unknown.name)] = None
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


def _words(name: str) -> str:
    """Return a field's name as shown on the screen: ``nvlink_rx_bytes_per_s`` is NVLink rx."""
    for unit in _UNITS:
        name = name.removesuffix(unit)
    return " ".join(_NAMES.get(word, word) for word in name.split("_"))


def _links(view: RankView, device: DeviceFacts, draw: "_Meters") -> list[StyledLine]:
    """Return the traffic of NVLink, of PCIe, and of the adapter nearest to the GPU, if there is one."""
    now, nvlink = view.sample or _UNKNOWN, nvlink_words(device)
    lines = [draw.words(nvlink, "", "this GPU has none")]
    if device.nvlink_count != 0:
        rates = now.nvlink_rx_bytes_per_s, now.nvlink_tx_bytes_per_s
        lines = draw.link(nvlink, rates, device.nvlink_peak_bytes_per_s, NVLINK)
    pcie = f"PCIe {pcie_words(device.pcie_generation, device.pcie_width)}".rstrip()
    rates = now.pcie_rx_bytes_per_s, now.pcie_tx_bytes_per_s
    lines += draw.link(pcie, rates, device.pcie_peak_bytes_per_s, PCIE)
    if (nic := view.nic) is not None:
        peak = nic.bits_per_s // 8 if nic.bits_per_s is not None else None
        label = shortened(f"NIC {printable(nic.name)}", _LABEL - 1)
        lines += draw.link(label, (now.nic_rx_bytes_per_s, now.nic_tx_bytes_per_s), peak, NIC)
    return lines


def _megahertz(clock_hz: int | None) -> str:
    return UNKNOWN if clock_hz is None else f"{clock_hz / 1e6:,.0f} MHz"


class _Meters:
    """Lines of a name, a gauge and the figures, in columns."""

    def __init__(self, width: int, *, textured: bool) -> None:
        self.textured = textured
        space = width - 3 - _LABEL - 3 - _PERCENT - _FIGURES - 1
        # In a narrow space the figures matter more.
        self.gauge = min(_GAUGE_MOST, space) if space >= _GAUGE_LEAST else 0

    def link(
        self, label: str, rates: tuple[int | None, int | None], peak: int | None, style: TextStyle
    ) -> list[StyledLine]:
        """``rates``: rx and tx, as ``peak`` in bytes a second."""
        rx, tx = (Rate(each, peak) for each in rates)
        return [self._rate(label, "rx", rx, style), self._rate("", "tx", tx, style)]

    def _rate(self, label: str, direction: str, known: Rate, style: TextStyle) -> StyledLine:
        if known.bytes_per_s is None:
            return self.words(label, direction, "unknown")
        figures: StyledLine = (bold(rate(known.bytes_per_s)),)
        if known.peak_bytes_per_s is not None:
            of = f" of {rate(known.peak_bytes_per_s)}"
            figures = (bold(gigabytes_per_s(known.bytes_per_s)), dim(of))
        return self._line(label, direction, known.share, style, figures)

    def share(self, label: str, share: float | None) -> StyledLine:
        return self._line(label, "", share, TextStyle("compute"), ())

    def amount(
        self, label: str, used: int | None, most: int | None, words_of: Callable[[int | None], str]
    ) -> StyledLine:
        share: float | None = None
        figures: StyledLine = ()
        if used is not None:
            part, whole = words_of(used), words_of(most)
            figures = (bold(part),)
            if most is not None:
                # 72.0 of 141 GiB: the unit once
                figure, _, unit = part.partition(" ")
                same = whole.endswith(f" {unit}")
                share = used / most if most else None
                figures = (bold(figure if same else part), dim(f" of {whole}"))
        return self._line(label, "", share, TextStyle("history"), figures)

    def words(self, label: str, direction: str, text: str) -> StyledLine:
        return (dim(f"   {label:<{_LABEL}}{direction:<3}"), dim(text))

    def _line(
        self, label: str, direction: str, share: float | None, style: TextStyle, figures: StyledLine
    ) -> StyledLine:
        if share is None and not figures:
            return self.words(label, direction, "unknown")
        bar: StyledLine = (Segment(" " * self.gauge),)
        if share is not None:
            bar = gauge(share, self.gauge, style, textured=self.textured)
        percent = whole_percent(share) if share is not None else ""
        return (dim(f"   {label:<{_LABEL}}{direction:<3}"), *bar, bold(f"{percent:>6}  "), *figures)
