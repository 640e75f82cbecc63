"""Below the table: the selected rank's links and their traffic, its GPU, and its NUMA node."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from statistics import fmean
from typing import NamedTuple

from overlaptop.fleet.snapshot import RankView
from overlaptop.fleet.traffic import Traffic
from overlaptop.report.links import (
    NUMA_MARKS,
    Rate,
    has_nvlink,
    has_pcie,
    nvlink_words,
    pcie_is_turned_down,
    pcie_words,
)
from overlaptop.text import byte_count, plural, printable, rate, runs_of, shortened, watts, whole_percent
from overlaptop.tui.draw.bars import binned, chart
from overlaptop.tui.draw.layout import Item, fit, hanging, paragraph, titled, wrap
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
from overlaptop.tui.draw.table import GAP, Column, Table
from overlaptop.tui.machine.host import Gpu, host_of, machine_of
from overlaptop.tui.widgets.view import Page
from overlaptop.wire.devices import DeviceFacts, DeviceSample, NodeShare

NVLINK, PCIE, NIC = TextStyle("hidden"), TextStyle("copy"), TextStyle("fused")
MINUTE_S = 60
NOTABLE_SHARE = 0.1
"""Smallest notable difference: counters and collectives are not read at the same moments."""
_TRAFFIC_OVER = {"nvlink": "NVLink", "pcie": "PCIe", "nic": "NIC"}
_PLACEMENTS = {"bound": "bound to its GPU's node", "wrong node": "on the wrong node", "no gpu": "no GPU"}
_NO_SAMPLE = DeviceSample(0, 0, *(None,) * 12)
_UNIT = re.compile("_(bytes_per_s|bits_per_s|bytes|mw|hz|max)$")
_NAMES = {
    "nvlink": "NVLink", "pcie": "PCIe", "sm": "SM", "dram": "DRAM", "numa": "NUMA", "cpu": "CPU",
    "gpu": "GPU", "gpus": "GPUs", "nic": "NIC", "nics": "NICs", "pci": "PCI", "uuid": "UUID",
}  # fmt: skip
_NAMES_CHARS = 60  # Characters of the names of figures that are unknown for one reason
_FACT_LABEL, _LINK_CHARS, _CHART_LEAST = 12, 16, 8
_WARNING = TextStyle("warning")


class MachineDetail(Page):
    """All of the selected rank's machine; what does not fit is scrolled."""

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
        gpus = machine_of(self.state.snapshot.ranks, host_of(selected)).gpus
        gpu = next((each for each in gpus if each.uuid == selected.gpu_uuid), None)
        ended = f" rank {selected.rank} ended: these are its last figures"
        lines: list[StyledLine] = [(Segment(ended, _WARNING),)] if selected.ended else []
        if gpu is not None and selected.device is not None:
            lines += [*_gpu_lines(selected, selected.device, gpu, width), ()]
            lines += [*_link_lines(selected, selected.device, width), ()]
        for part in (_numa_lines(selected, width), _process_lines(selected, width)):
            lines += [*part, ()]
        return lines + _unknown_lines(selected, width)


# The GPU now


def _gpu_lines(view: RankView, device: DeviceFacts, gpu: Gpu, width: int) -> list[StyledLine]:
    """Return the GPU's name, its activity, memory, power and clocks, and warnings."""
    now = view.sample or _NO_SAMPLE
    name = [
        Item((bold(f" {gpu.label}"),)),
        Item((Segment(gpu.name or "name unknown"),), 1),
        Item((dim("node unknown" if gpu.node is None else f"node {gpu.node}"),), 2),
        Item((dim(gpu.pci_bus_id),), 3),
    ]
    held = "unknown" if now.throttle_reasons is None else ", ".join(now.throttle_reasons) or "no"
    facts = {
        "SM": _share(now.sm_activity),
        "tensor cores": _share(now.tensor_activity),
        "DRAM": _share(now.dram_activity),
        "memory": _amount(now.memory_used_bytes, device.memory_total_bytes, byte_count),
        "power": _amount(now.power_mw, device.power_limit_mw, watts),
        "SM clock": _amount(now.sm_clock_hz, device.sm_clock_max_hz, _megahertz),
        "memory clock": _amount(now.memory_clock_hz, device.memory_clock_max_hz, _megahertz),
        "throttled": Segment(held, BOLD_WARNING if now.throttle_reasons else TEXT),
    }
    items = [Item((dim(f"{label} "), figure)) for label, figure in facts.items()]
    lines = [fit(name, [], width)]
    lines += [(Segment("   "), *line) for line in wrap(items, width - 3, len(items))]
    warnings = []
    if pcie_is_turned_down(view):
        best = pcie_words(device.pcie_generation_max, device.pcie_width_max)
        warnings.append(f"! PCIe is slower than its {best} although in use: check the slot and the riser")
    if device.nic_errors:
        counts = ", ".join(f"{each.count:,} {printable(each.counter)}" for each in device.nic_errors)
        warnings.append(f"! errors of the NIC since the start: {counts}")
    if others := [each.rank for each in gpu.ranks if each.rank != view.rank]:
        warnings.append(f"! shared with rank {runs_of(others)}: its figures cover all of them")
    return lines + [line for text in warnings for line in paragraph(text, width, BOLD_WARNING, indent=3)]


def _share(share: float | None) -> Segment:
    return dim("unknown") if share is None else bold(whole_percent(share))


def _amount(used: int | None, most: int | None, text: Callable[[int | None], str]) -> Segment:
    """Return such as ``72.0 of 141 GiB``: the unit once."""
    if used is None:
        return dim("unknown")
    if most is None:
        return bold(text(used))
    figure, _, unit = text(used).partition(" ")
    whole = text(most)
    return bold(f"{figure if whole.endswith(f' {unit}') else text(used)} of {whole}")


def _megahertz(clock_hz: int | None) -> str:
    return "unknown" if clock_hz is None else f"{clock_hz / 1e6:,.0f} MHz"


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


# Its links: now, over the last minute, and beside the traffic of the job's own collectives


class _Way(NamedTuple):
    """A link in one direction, in bytes a second; None: not known."""

    label: str
    now: Rate
    own: int | None  # The collectives' traffic over some seconds
    rest: int | None  # The link's traffic beyond them over the same seconds
    minute: Sequence[float | None]
    style: TextStyle


def minute(
    samples: Sequence[DeviceSample], width: int, value: Callable[[DeviceSample], int | None]
) -> list[float | None]:
    """Return the mean of each column of the minute before the newest sample, oldest first; None if nothing
    is known. Columns begin at whole seconds of the clock.
    """
    each_s = math.ceil(MINUTE_S / max(1, width))  # with less than two samples, a late one would leave a gap
    known = ((sample.at_ns // (each_s * 1_000_000_000), value(sample)) for sample in reversed(samples))
    return binned(known, max(0, min(width, MINUTE_S // each_s)), fmean)


def _link_lines(view: RankView, device: DeviceFacts, width: int) -> list[StyledLine]:
    """Return a row for each link and direction, and a line for each account of traffic."""
    columns: list[Column[_Way]] = [
        Column("links", _LINK_CHARS + 3, lambda way: way.label, right=False),
        Column("now", 9, lambda way: bold(rate(way.now.bytes_per_s))),
        Column("peak", 9, lambda way: dim(rate(way.now.peak_bytes_per_s)), shown_from=60),
        Column("of peak", 7, lambda way: whole_percent(way.now.share)),
        Column("collectives", 11, lambda way: _rest(way.own), shown_from=75),
        Column("unexplained", 11, lambda way: _rest(way.rest), shown_from=90),
    ]
    space = width - 2 * GAP - sum(each.cells + GAP for each in columns if width >= each.shown_from)
    space = min(MINUTE_S, space)
    if space >= _CHART_LEAST:
        columns.append(Column("last minute", space, _minute, right=False))
    table = Table(columns, width)
    lines = [table.header(), *(table.row(way) for way in _ways(view, device, space))]
    if view.traffic is None:
        lines += paragraph("traffic of the job's collectives: unknown", width, indent=2)
    accounts = [each for each in (view.traffic, view.nic_traffic) if each is not None]
    return lines + [line for each in accounts for line in _account_lines(each, width)]


def _ways(view: RankView, device: DeviceFacts, space: int) -> Iterator[_Way]:
    """``space``: columns of the last minute."""
    pcie = f"PCIe {pcie_words(device.pcie_generation, device.pcie_width)}".rstrip()
    nvlink, nic = nvlink_words(device), view.nic
    links: list[tuple[str, str, int | None, Traffic | None, TextStyle]] = []
    if has_nvlink(view):
        links.append(("nvlink", nvlink, device.nvlink_peak_bytes_per_s, view.traffic, NVLINK))
    if has_pcie(view):
        links.append(("pcie", pcie, device.pcie_peak_bytes_per_s, view.traffic, PCIE))
    if nic is not None:
        peak = nic.bits_per_s // 8 if nic.bits_per_s is not None else None
        links.append(("nic", f"NIC {printable(nic.name)}", peak, view.nic_traffic, NIC))
    for link, words, peak, traffic, style in links:
        for direction in ("rx", "tx"):
            own = rest = None
            if traffic is not None and traffic.over == link:
                own, rest = _explained(traffic, direction)
            of_sample = attrgetter(f"{link}_{direction}_bytes_per_s")
            name = shortened(words, _LINK_CHARS) if direction == "rx" else ""
            yield _Way(
                label=f"{name:<{_LINK_CHARS}} {direction}",
                now=Rate(of_sample(view.sample or _NO_SAMPLE), peak),
                own=own,
                rest=rest,
                minute=minute(view.samples, space, of_sample),
                style=style,
            )


def _explained(traffic: Traffic, direction: str) -> tuple[int | None, int | None]:
    """Return the collectives' traffic, and the counters' beyond it."""
    measured = getattr(traffic, f"{direction}_bytes_per_s")
    own = getattr(traffic, f"collectives_{direction}_bytes_per_s")
    return own, None if measured is None or own is None else measured - own


def _rest(bytes_per_s: int | None) -> Segment:
    return dim("") if bytes_per_s is None else Segment(rate(bytes_per_s) if bytes_per_s >= 0 else "none")


def _minute(way: _Way) -> StyledLine:
    """Return a chart on a scale from 0 to the peak, else to the highest rate seen."""
    top = way.now.peak_bytes_per_s or max((value or 0 for value in way.minute), default=0)
    return chart(way.minute, top, 1, style=way.style)[0]


def _account_lines(traffic: Traffic, width: int) -> list[StyledLine]:
    """Return whether the collectives explain a link's traffic, and what else may."""
    verdict, meaning = _verdict(traffic)
    over = f"  {_TRAFFIC_OVER.get(traffic.over, traffic.over)} over {traffic.window_s:.0f} s: "
    words = ", ".join(filter(None, (meaning, traffic.reason)))
    return (
        hanging((dim(over), verdict, Segment("  ")), words, width, DIM) if words else [(dim(over), verdict)]
    )


def _verdict(traffic: Traffic) -> tuple[Segment, str]:
    """Return the verdict in a word or two, and its reason."""
    known = [
        (rest, seen, direction)
        for direction, seen in (("rx", traffic.rx_bytes_per_s), ("tx", traffic.tx_bytes_per_s))
        if seen is not None and (rest := _explained(traffic, direction)[1]) is not None
    ]
    if not known:
        return dim("unknown"), ""
    rest, seen, direction = max(known, key=lambda each: abs(each[0]))
    share = rest / seen if seen else -1.0 if rest else 0.0
    if share < -NOTABLE_SHARE:
        text = "the collectives account for more than the counters saw"
        if traffic.over == "nic":  # NCCL chooses adapters, and an algorithm, by itself
            return bold("less than the collectives"), f"{text}: other NICs"
        return Segment("! does not add up", BOLD_WARNING), text
    if share <= NOTABLE_SHARE:
        return Segment("✓ explained", TextStyle("good", bold=True)), ""
    text = f"{whole_percent(share)} of {direction} unexplained"
    if traffic.over == "nvlink":
        return Segment(f"! {text}", BOLD_WARNING), "other processes' traffic, or the job's copies"
    # A job's batches arrive over PCIe or the network, which needs no warning.
    data = "the job's data, or packets' headers" if traffic.over == "nic" else "or the job's copies"
    return Segment(text, BOLD), f"other processes' traffic, {data}"


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
