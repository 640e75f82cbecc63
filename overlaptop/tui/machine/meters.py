"""The chosen rank's GPU now: its links in both directions, how busy it is, memory, power, clocks."""

from __future__ import annotations

from collections.abc import Callable

from overlaptop.fleet.snapshot import RankView
from overlaptop.report.links import Rate, nvlink_words, pcie_is_turned_down, pcie_words
from overlaptop.text import UNKNOWN, byte_count, gigabytes_per_s, rate, whole_percent
from overlaptop.tui.draw.bars import gauge
from overlaptop.tui.draw.segments import Item, Segment, StyledLine, TextStyle, bold, dim, fit
from overlaptop.tui.machine.host import Gpu
from overlaptop.tui.machine.words import paragraph, watts
from overlaptop.wire.devices import DeviceFacts, DeviceSample

NVLINK, PCIE = TextStyle("hidden"), TextStyle("copy")
_LABEL, _PERCENT, _FIGURES, _GAUGE_LEAST, _GAUGE_MOST = 15, 8, 18, 6, 40


def link_lines(view: RankView, gpu: Gpu, width: int, *, textured: bool) -> list[StyledLine]:
    """The GPU's name and its links. Unknown figures are marked; the list of unknowns gives the reasons."""
    device, now = view.device, view.sample
    if device is None:
        return []
    node = "node unknown" if gpu.node is None else f"node {gpu.node}"
    items = [
        Item((bold(f" {gpu.label}"),)),
        Item((Segment(gpu.name or "name unknown"),), 1),
        Item((dim(node),), 2),
        Item((dim(gpu.pci_bus_id),), 3),
    ]
    lines = [fit(items, [], width), *_links(device, now, _Meters(width, textured=textured))]
    if pcie_is_turned_down(view):
        best = pcie_words(device.pcie_generation_max, device.pcie_width_max)
        warned = (
            f"! in use, and yet slower than the {best} that it could be: look at the slot and the riser"
        )
        lines += paragraph(warned, width, TextStyle("warning", bold=True))
    return lines


def activity_lines(view: RankView, width: int, *, textured: bool) -> list[StyledLine]:
    """How busy the GPU is, and what it takes."""
    device, now = view.device, view.sample
    if device is None:
        return []
    draw = _Meters(width, textured=textured)
    return [
        draw.share("SM", now.sm_activity if now else None),
        draw.share("tensor cores", now.tensor_activity if now else None),
        draw.share("DRAM", now.dram_activity if now else None),
        draw.amount(
            "memory", now.memory_used_bytes if now else None, device.memory_total_bytes, byte_count
        ),
        draw.amount("power", now.power_mw if now else None, device.power_limit_mw, watts),
        draw.amount("SM clock", now.sm_clock_hz if now else None, device.sm_clock_max_hz, _megahertz),
        draw.amount(
            "memory clock", now.memory_clock_hz if now else None, device.memory_clock_max_hz, _megahertz
        ),
        _throttled(now),
    ]


def _links(device: DeviceFacts, now: DeviceSample | None, draw: _Meters) -> list[StyledLine]:
    lines: list[StyledLine] = []
    nvlink = nvlink_words(device)
    if device.nvlink_count == 0:
        lines.append(draw.words(nvlink, "", "this GPU has none"))
    else:
        rx, tx = (now.nvlink_rx_bytes_per_s, now.nvlink_tx_bytes_per_s) if now else (None, None)
        peak = device.nvlink_peak_bytes_per_s
        lines += [
            draw.rate(nvlink, "rx", Rate(rx, peak), NVLINK),
            draw.rate("", "tx", Rate(tx, peak), NVLINK),
        ]
    rx, tx = (now.pcie_rx_bytes_per_s, now.pcie_tx_bytes_per_s) if now else (None, None)
    pcie = f"PCIe {pcie_words(device.pcie_generation, device.pcie_width)}".rstrip()
    peak = device.pcie_peak_bytes_per_s
    return [*lines, draw.rate(pcie, "rx", Rate(rx, peak), PCIE), draw.rate("", "tx", Rate(tx, peak), PCIE)]


def _throttled(now: DeviceSample | None) -> StyledLine:
    reasons = now.throttle_reasons if now else None
    held = Segment("no")
    if reasons is None:
        held = dim("unknown")
    elif reasons:
        held = Segment(", ".join(reasons), TextStyle("warning", bold=True))
    return (dim(f"   {'throttled':<{_LABEL + 3}}"), held)


def _megahertz(clock_hz: int | None) -> str:
    return UNKNOWN if clock_hz is None else f"{clock_hz / 1e6:,.0f} MHz"


class _Meters:
    """Lines of a name, a gauge and the figures, in columns."""

    def __init__(self, width: int, *, textured: bool) -> None:
        self.textured = textured
        room = width - 3 - _LABEL - 3 - _PERCENT - _FIGURES - 1
        # Where there is little room the figures matter more.
        self.gauge = min(_GAUGE_MOST, room) if room >= _GAUGE_LEAST else 0

    def rate(self, label: str, direction: str, known: Rate, style: TextStyle) -> StyledLine:
        if known.bytes_per_s is None:
            return self.words(label, direction, "unknown")
        if known.peak_bytes_per_s is None:
            figures: StyledLine = (bold(rate(known.bytes_per_s)),)
        else:
            of = f" of {rate(known.peak_bytes_per_s)}"
            figures = (bold(gigabytes_per_s(known.bytes_per_s)), dim(of))
        return self._line(label, direction, known.share, style, figures)

    def share(self, label: str, share: float | None) -> StyledLine:
        return self._line(label, "", share, TextStyle("compute"), ())

    def amount(
        self, label: str, used: int | None, most: int | None, words_of: Callable[[int | None], str]
    ) -> StyledLine:
        share = used / most if used is not None and most else None
        figures: StyledLine = ()
        if used is not None and most is not None:
            part, whole = words_of(used), words_of(most)
            figures = (bold(_of(part, whole)), dim(f" of {whole}"))
        elif used is not None:
            figures = (bold(words_of(used)),)
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


def _of(used: str, most: str) -> str:
    """The figure without its unit where the other one says the same: ``72.0`` of ``141 GiB``."""
    figure, _, unit = used.partition(" ")
    return figure if unit == most.partition(" ")[2] else used
