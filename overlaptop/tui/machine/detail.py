"""Below the table: the selected rank's GPU and links, their traffic, and the rank's NUMA node."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from operator import attrgetter
from statistics import fmean
from typing import NamedTuple

from overlaptop.fleet.snapshot import RankView
from overlaptop.fleet.traffic import Traffic
from overlaptop.report.links import (
    NUMA_MARKS,
    has_nvlink,
    has_pcie,
    nvlink_rate,
    nvlink_words,
    pcie_is_turned_down,
    pcie_rate,
    pcie_words,
)
from overlaptop.text import (
    byte_count,
    plural,
    printable,
    rate,
    runs_of,
    shortened,
    watts,
    whole_percent,
)
from overlaptop.tui.draw.bars import binned, chart, gauge
from overlaptop.tui.draw.layout import Item, fit, hanging, pad, paragraph, titled
from overlaptop.tui.draw.segments import (
    BOLD,
    BOLD_WARNING,
    DIM,
    TEXT,
    Segment,
    StyledLine,
    TextStyle,
    bold,
    dim,
)
from overlaptop.tui.machine.host import Gpu, host_of, machine_of
from overlaptop.tui.widgets.view import Page
from overlaptop.wire.devices import DeviceFacts, DeviceSample, NodeShare

NVLINK, PCIE, NIC = TextStyle("hidden"), TextStyle("copy"), TextStyle("fused")
TWO_COLUMNS_FROM = 96
MINUTE_S = 60
NOTABLE_SHARE = 0.1
"""Smallest notable difference: counters and collectives are not read at the same moments."""
_LINKS = {
    "nvlink": ("NVLink", NVLINK, has_nvlink, nvlink_rate),
    "pcie": ("PCIe", PCIE, has_pcie, pcie_rate),
}
_TRAFFIC_OVER = {"nvlink": "NVLink", "pcie": "PCIe", "nic": "NIC"}
_PLACEMENTS = {"bound": "bound to its GPU's node", "wrong node": "on the wrong node", "no gpu": "no GPU"}
_NO_SAMPLE = DeviceSample(0, 0, *(None,) * 12)
_UNIT = re.compile("_(bytes_per_s|bits_per_s|bytes|mw|hz|max)$")
_NAMES = {
    "nvlink": "NVLink", "pcie": "PCIe", "sm": "SM", "dram": "DRAM", "numa": "NUMA", "cpu": "CPU",
    "gpu": "GPU", "gpus": "GPUs", "nic": "NIC", "nics": "NICs", "pci": "PCI", "uuid": "UUID",
}  # fmt: skip
_GAP, _CHART_ROWS, _CHART_LABEL, _FACT_LABEL, _ACCOUNT_LABEL, _ACCOUNT_FIGURE = 2, 3, 7, 12, 15, 12
_LINK_LABEL, _METER_LABEL, _PERCENT, _FIGURES, _GAUGE_LEAST, _GAUGE_MOST = 15, 18, 8, 18, 6, 40
_NAMES_CHARS = 60  # Characters of the names of figures that are unknown for one reason
_WARNING = TextStyle("warning")


class MachineDetail(Page):
    """Two columns if they fit, else one; the rest is scrolled."""

    fades = True

    def lines(self, width: int) -> list[StyledLine]:
        selected = self.state.selected
        if selected is None:
            return []
        if selected.machine is None and selected.device is None and selected.numa is None:
            why = "has not reported its machine yet; with --no-telemetry it never will."
            if selected.ended:
                why = "ended before it had reported its machine."
            return paragraph(f"Rank {selected.rank} {why}", width, _WARNING)
        gpu = machine_of(self.state.snapshot.ranks, host_of(selected)).gpu_of(selected)
        ended = f" rank {selected.rank} ended: these are its last figures"
        lines: list[StyledLine] = [(Segment(ended, _WARNING),)] if selected.ended else []
        if width < TWO_COLUMNS_FROM:
            return [*lines, *_apart(*_columns(selected, gpu, width))]
        size = (width - _GAP) // 2
        both = zip_longest(*_columns(selected, gpu, size), fillvalue=())
        return [*lines, *((*pad(one, size), Segment(" " * _GAP), *other) for one, other in both)]


def _columns(selected: RankView, gpu: Gpu | None, width: int) -> tuple[list[StyledLine], list[StyledLine]]:
    numa, process = _numa_lines(selected, width), _process_lines(selected, width)
    unknown = _unknown_lines(selected, width)
    if gpu is None or selected.device is None:
        return _apart(numa, process), unknown
    charts = (_last_minute(selected, link, width) for link in _LINKS)
    left = _apart(_gpu_lines(selected, selected.device, gpu, width), *charts)
    network = _account(selected.nic_traffic, width) if selected.nic_traffic is not None else []
    return left, _apart(numa, _account(selected.traffic, width), network, process, unknown)


def _apart(*parts: list[StyledLine]) -> list[StyledLine]:
    return [line for part in parts if part for line in ((), *part)][1:]


# The GPU now


class _Meter(NamedTuple):
    """A figure against its maximum; None: unknown."""

    label: str
    used: float | None
    most: float | None
    text: Callable[[int | None], str] | None  # None: a share has no more text
    style: TextStyle


def _gpu_lines(view: RankView, device: DeviceFacts, gpu: Gpu, width: int) -> list[StyledLine]:
    """Return the GPU's name, the traffic of its links and of the adapter nearest to it, its activity,
    memory, power and clocks, and warnings.
    """
    now, nic = view.sample or _NO_SAMPLE, view.nic
    items = [
        Item((bold(f" {gpu.label}"),)),
        Item((Segment(gpu.name or "name unknown"),), 1),
        Item((dim("node unknown" if gpu.node is None else f"node {gpu.node}"),), 2),
        Item((dim(gpu.pci_bus_id),), 3),
    ]
    lines = [fit(items, [], width)]
    meters: list[_Meter] = []
    if device.nvlink_count == 0:
        lines.append(_words(nvlink_words(device), dim("this GPU has none")))
    else:
        meters += _both_ways(nvlink_words(device), now, "nvlink", device.nvlink_peak_bytes_per_s, NVLINK)
    pcie = f"PCIe {pcie_words(device.pcie_generation, device.pcie_width)}".rstrip()
    meters += _both_ways(pcie, now, "pcie", device.pcie_peak_bytes_per_s, PCIE)
    if nic is not None:
        label = shortened(f"NIC {printable(nic.name)}", _LINK_LABEL - 1)
        peak = nic.bits_per_s // 8 if nic.bits_per_s is not None else None
        meters += _both_ways(label, now, "nic", peak, NIC)
    lines += [_meter_line(each, width) for each in meters]
    lines += _warnings(view, device, width)
    busy, amount = TextStyle("compute"), TextStyle("history")
    for meter in (
        _Meter("SM", now.sm_activity, 1, None, busy),
        _Meter("tensor cores", now.tensor_activity, 1, None, busy),
        _Meter("DRAM", now.dram_activity, 1, None, busy),
        _Meter("memory", now.memory_used_bytes, device.memory_total_bytes, byte_count, amount),
        _Meter("power", now.power_mw, device.power_limit_mw, watts, amount),
        _Meter("SM clock", now.sm_clock_hz, device.sm_clock_max_hz, _megahertz, amount),
        _Meter("memory clock", now.memory_clock_hz, device.memory_clock_max_hz, _megahertz, amount),
    ):
        lines.append(_meter_line(meter, width))
    held = dim("unknown")
    if now.throttle_reasons is not None:
        reasons = ", ".join(now.throttle_reasons)
        held = Segment(reasons, BOLD_WARNING) if reasons else Segment("no")
    lines.append(_words("throttled", held))
    if others := [each.rank for each in gpu.ranks if each.rank != view.rank]:
        text = f"! shared with rank {runs_of(others)}: its figures cover all of them"
        lines += paragraph(text, width, _WARNING, indent=3)
    return lines


def _both_ways(
    label: str, now: DeviceSample, link: str, peak_bytes_per_s: int | None, style: TextStyle
) -> list[_Meter]:
    return [
        _Meter(
            f"{name:<{_LINK_LABEL}}{direction}",
            getattr(now, f"{link}_{direction}_bytes_per_s"),
            peak_bytes_per_s,
            rate,
            style,
        )
        for name, direction in ((label, "rx"), ("", "tx"))
    ]


def _warnings(view: RankView, device: DeviceFacts, width: int) -> list[StyledLine]:
    warnings = []
    if pcie_is_turned_down(view):
        best = pcie_words(device.pcie_generation_max, device.pcie_width_max)
        warnings.append(f"! slower than its {best} although in use: check the slot and the riser")
    if device.nic_errors:
        counts = ", ".join(f"{each.count:,} {printable(each.counter)}" for each in device.nic_errors)
        warnings.append(f"! errors of the NIC since the start: {counts}")
    return [line for text in warnings for line in paragraph(text, width, BOLD_WARNING, indent=3)]


def _megahertz(clock_hz: int | None) -> str:
    return "unknown" if clock_hz is None else f"{clock_hz / 1e6:,.0f} MHz"


def _meter_line(meter: _Meter, width: int) -> StyledLine:
    """Return such as ``memory  ━━━━━━╸━━━━━  51 %  72.0 of 141 GiB``."""
    if meter.used is None:
        return _words(meter.label, dim("unknown"))
    figures: StyledLine = ()
    if meter.text is not None:
        part, whole = meter.text(round(meter.used)), ""
        if meter.most is not None:
            whole = meter.text(round(meter.most))
            figure, _, unit = part.partition(" ")
            part = figure if whole.endswith(f" {unit}") else part  # the unit once
        figures = (bold(part), dim(f" of {whole}" if whole else ""))
    share = meter.used / meter.most if meter.most else None
    space = width - 3 - _METER_LABEL - _PERCENT - _FIGURES - 1
    # In a narrow space the figures matter more.
    size = min(_GAUGE_MOST, space) if space >= _GAUGE_LEAST else 0
    bar = gauge(share, size, meter.style) if share is not None else (Segment(" " * size),)
    percent = whole_percent(share) if share is not None else ""
    return _words(meter.label, *bar, bold(f"{percent:>6}  "), *figures)


def _words(label: str, *words: Segment) -> StyledLine:
    return (dim(f"   {label:<{_METER_LABEL}}"), *words)


def _unknown_lines(view: RankView, width: int) -> list[StyledLine]:
    """Return a paragraph for each reason, with all unknown figures that it explains."""
    by_reason: dict[str, dict[str, None]] = {}
    for source in (view.sample, view.device, view.numa, view.machine):
        for unknown in source.unknown if source is not None else ():
            words = _UNIT.sub("", unknown.name).split("_")
            name = " ".join(_NAMES.get(word, word) for word in words)
            by_reason.setdefault(unknown.reason, {})[name] = None
    lines = [
        line
        for reason, names in by_reason.items()
        for line in paragraph(f"{shortened(', '.join(names), _NAMES_CHARS)}: {reason}", width, indent=3)
    ]
    return [titled("unknown"), *lines] if lines else []


# The last minute of a GPU's links


def column_s(width: int) -> int:
    """Return the seconds per column, so that a minute fits into ``width`` columns. At least one: of less
    than two samples, a late one would leave a gap.
    """
    return math.ceil(MINUTE_S / max(1, width))


def columns(
    samples: Sequence[DeviceSample], width: int, value: Callable[[DeviceSample], int | None]
) -> list[float | None]:
    """Return the mean of each column of the minute before the newest sample, oldest first; None if nothing
    is known. Columns begin at whole seconds of the clock.
    """
    each_s = column_s(width)
    known = ((sample.at_ns // (each_s * 1_000_000_000), value(sample)) for sample in reversed(samples))
    return binned(known, max(0, min(width, MINUTE_S // each_s)), fmean)


def _last_minute(view: RankView, link: str, width: int) -> list[StyledLine]:
    """Return charts of rx and tx on a scale from 0 to the peak; none without such a link."""
    name, style, there, known = _LINKS[link]
    if not there(view):
        return []
    space, peak = max(1, width - _CHART_LABEL - 1), known(view).peak_bytes_per_s
    drawn = {
        direction: columns(view.samples, space, attrgetter(f"{link}_{direction}_bytes_per_s"))
        for direction in ("rx", "tx")
    }
    top = peak or max((value or 0 for values in drawn.values() for value in values), default=0)
    scale = f"0 to {rate(round(top))}, {'the peak' if peak else 'the highest seen: the peak is unknown'}"
    lines = [titled(f"{name}, one minute", dim(f"{scale}; a column is {column_s(space)} s"))]
    for direction, values in drawn.items():
        for at, line in enumerate(chart(values, top, _CHART_ROWS, style=style)):
            lines.append((dim(f"   {'' if at else direction:<4}"), *line))
    return lines


# The links' traffic beside the traffic of the job's own collectives


def _account(traffic: Traffic | None, width: int) -> list[StyledLine]:
    """Return a verdict; measured, explained, the rest; and its meaning.

    The verdict is in the heading; on small screens the rest is scrolled.
    """
    if traffic is None:
        text = "unknown: link traffic was not measured"
        return [titled("account"), *paragraph(text, width, indent=3)]
    measured = (traffic.rx_bytes_per_s, traffic.tx_bytes_per_s)
    own = (traffic.collectives_rx_bytes_per_s, traffic.collectives_tx_bytes_per_s)
    rest = [None if m is None or o is None else m - o for m, o in zip(measured, own, strict=True)]

    def row(name: str, figures: Sequence[int | None], style: TextStyle = TEXT) -> StyledLine:
        words = ["unknown" if each is None else rate(each) if each >= 0 else "none" for each in figures]
        cells = zip(words, figures, strict=True)
        shown = (Segment(f"{word:>{_ACCOUNT_FIGURE}}", style if each else DIM) for word, each in cells)
        return (dim(f"   {name:<{_ACCOUNT_LABEL}}"), *shown)

    verdict, meaning, style = _verdict(traffic, measured, rest)
    over = f"{_TRAFFIC_OVER.get(traffic.over, traffic.over)}, over {traffic.window_s:.0f} s  "
    return [
        titled("account", dim(over), verdict),
        (dim(f"{'rx':>{_ACCOUNT_LABEL + 3 + _ACCOUNT_FIGURE}}{'tx':>{_ACCOUNT_FIGURE}}"),),
        row("measured", measured),
        row("collectives", own),
        row("unexplained", rest, BOLD),
        *paragraph(meaning, width, style, indent=3),
        *paragraph(traffic.reason, width, indent=3),
    ]


def _verdict(
    traffic: Traffic, measured: Sequence[int | None], rest: Sequence[int | None]
) -> tuple[Segment, str, TextStyle]:
    """Return the verdict in a word or two, and its reason. ``measured``, ``rest``: of rx and tx."""
    known = [
        (left, seen, direction)
        for left, seen, direction in zip(rest, measured, ("rx", "tx"), strict=True)
        if left is not None and seen is not None
    ]
    if not known:
        return dim("unknown"), "", DIM
    left, seen, direction = max(known, key=lambda each: abs(each[0]))
    share = left / seen if seen else -1.0 if left else 0.0
    if share < -NOTABLE_SHARE:
        text = "the collectives account for more than the counters saw"
        if traffic.over == "nic":  # NCCL chooses adapters, and an algorithm, by itself
            return Segment("less than the collectives", BOLD), f"{text}: other NICs", DIM
        return Segment("! does not add up", BOLD_WARNING), text, _WARNING
    if share <= NOTABLE_SHARE:
        return Segment("✓ explained", TextStyle("good", bold=True)), "", DIM
    text = f"{whole_percent(share)} of {direction} unexplained"
    if traffic.over == "nvlink":
        meaning = "other processes' traffic, or the job's copies"
        return Segment(f"! {text}", BOLD_WARNING), meaning, _WARNING
    # A job's batches arrive over PCIe or the network, which needs no warning.
    data = "the job's data, or packets' headers" if traffic.over == "nic" else "or the job's copies"
    return Segment(text, BOLD), f"other processes' traffic, {data}", TEXT


# The CPUs of the rank


def _numa_lines(view: RankView, width: int) -> list[StyledLine]:
    """Return how near the rank is to its GPU, why, and the command to type if it is far."""
    numa = view.numa
    if numa is None:
        text = f"unknown: rank {view.rank} has not reported it yet"
        return [titled("NUMA"), *paragraph(text, width, indent=3)]
    glyph, color = NUMA_MARKS[numa.state]
    verdict = Segment(f"{glyph} {_PLACEMENTS.get(numa.state, numa.state)}", TextStyle(color, bold=True))
    lines = [titled("NUMA", dim(f"rank {view.rank}  "), verdict)]
    lines += paragraph(numa.reason, width, TEXT, indent=3)
    return lines + paragraph(numa.advice, width, TextStyle("accent", bold=True), indent=3)


def _process_lines(view: RankView, width: int) -> list[StyledLine]:
    numa = view.numa
    if numa is None:
        return []
    facts = [
        ("may use", ": ".join(filter(None, (nodes_text(numa.cpu_nodes, "CPU"), numa.cpu_set)))),
        ("threads", nodes_text(numa.threads_by_node, "thread")),
        ("policy", numa.memory_policy),
    ]
    if numa.gpu_node is not None:
        on = f" on node {numa.nic_node}" if numa.nic_node is not None else ", node unknown"
        facts.append(("nearest NIC", f"{numa.nic}{on}" if numa.nic else ""))
    lines: list[StyledLine] = [titled("process", dim(f"of rank {view.rank}"))]
    for label, text in facts:
        named = (dim(f"   {label:<{_FACT_LABEL}}"),)
        lines += hanging(named, text or "unknown", width, TEXT if text else DIM)
    return lines


def nodes_text(shares: Iterable[NodeShare], noun: str) -> str:
    """Return such as ``34 threads on node 0, 2 on node 1``, most first."""
    known = sorted((each for each in shares if each.amount), key=lambda each: -each.amount)
    amounts = [plural(each.amount, noun) if each is known[0] else f"{each.amount:,}" for each in known]
    return ", ".join(f"{amount} on node {each.node}" for amount, each in zip(amounts, known, strict=True))
