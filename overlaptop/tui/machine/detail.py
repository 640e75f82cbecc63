"""Below the table: the selected rank's GPU and links, their traffic, and the rank's NUMA node."""

from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from operator import attrgetter
from statistics import fmean

from overlaptop.fleet.snapshot import RankView
from overlaptop.fleet.traffic import Traffic
from overlaptop.report.links import NUMA_MARKS, has_nvlink, has_pcie, nvlink_rate, pcie_rate
from overlaptop.text import plural, rate, runs_of, whole_percent
from overlaptop.tui.draw.bars import binned, chart
from overlaptop.tui.draw.layout import hanging, pad, paragraph, titled
from overlaptop.tui.draw.segments import BOLD, BOLD_WARNING, DIM, TEXT, Segment, StyledLine, TextStyle, dim
from overlaptop.tui.machine.host import Gpu, host_of, machine_of
from overlaptop.tui.machine.meters import (
    NVLINK,
    PCIE,
    activity_lines,
    link_lines,
    no_gpu_lines,
    unknown_lines,
)
from overlaptop.tui.widgets.view import Page
from overlaptop.wire.devices import DeviceSample, NodeShare

TWO_COLUMNS_FROM = 96
MINUTE_S = 60
NOTABLE_SHARE = 0.1
"""Smallest notable difference: counters and collectives are not read at the same moments."""
_COLUMN_S = (1, 2, 3, 4, 5, 6, 10, 15, 20, 30, 60)
"""At least two samples per column: with one, a late sample would leave a gap."""
_LINKS = {
    "nvlink": ("NVLink", NVLINK, has_nvlink, nvlink_rate),
    "pcie": ("PCIe", PCIE, has_pcie, pcie_rate),
}
_TRAFFIC_OVER = {"nvlink": "NVLink", "pcie": "PCIe", "nic": "NIC"}
_PLACEMENTS = {"bound": "bound to its GPU's node", "wrong node": "on the wrong node", "no gpu": "no GPU"}
_GAP, _CHART_ROWS, _CHART_LABEL, _LABEL, _FIGURE = 2, 3, 7, 23, 12
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
    numa, process = verdict_lines(selected, width), process_lines(selected, width)
    unknown = unknown_lines(selected, width)
    if gpu is None:
        return _apart(numa, process), _apart(no_gpu_lines(selected, width), unknown)
    left = link_lines(selected, gpu, width)
    if others := [view.rank for view in gpu.ranks if view.rank != selected.rank]:
        text = f"   ! shared with rank {runs_of(others)}: its figures cover all of them"
        left.append((Segment(text, _WARNING),))
    left += activity_lines(selected, width)
    charts = (last_minute(selected, link, width) for link in _LINKS)
    network = traffic_lines(selected.nic_traffic, width) if selected.nic_traffic is not None else []
    account = traffic_lines(selected.traffic, width)
    return _apart(left, *charts), _apart(numa, account, network, process, unknown)


def _apart(*parts: list[StyledLine]) -> list[StyledLine]:
    return [line for part in parts if part for line in ((), *part)][1:]


# The last minute of a GPU's links


def column_s(width: int) -> int:
    """Return the seconds per column, so that a minute fits into ``width`` columns."""
    return next((seconds for seconds in _COLUMN_S if seconds * width >= MINUTE_S), MINUTE_S)


def columns(
    samples: Sequence[DeviceSample], width: int, value: Callable[[DeviceSample], int | None]
) -> list[float | None]:
    """Return the mean of each column of the minute before the newest sample, oldest first; None if nothing
    is known. Columns begin at whole seconds of the clock.
    """
    each_s = column_s(width)
    known = ((sample.at_ns // (each_s * 1_000_000_000), value(sample)) for sample in reversed(samples))
    return binned(known, max(0, min(width, MINUTE_S // each_s)), fmean)


def last_minute(view: RankView, link: str, width: int) -> list[StyledLine]:
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


def traffic_lines(traffic: Traffic | None, width: int) -> list[StyledLine]:
    """Return a verdict; measured, explained, the rest; and its meaning.

    The verdict is in the heading; on small screens the rest is scrolled.
    """
    if traffic is None:
        text = "unknown: link traffic was not measured"
        return [titled("account"), *paragraph(text, width, indent=3)]
    label = min(_LABEL, max(12, width - 2 * _FIGURE - 4))
    measured = (traffic.rx_bytes_per_s, traffic.tx_bytes_per_s)
    own = (traffic.collectives_rx_bytes_per_s, traffic.collectives_tx_bytes_per_s)
    rest = [None if m is None or o is None else m - o for m, o in zip(measured, own, strict=True)]

    def row(name: str, figures: Sequence[int | None], style: TextStyle = TEXT) -> StyledLine:
        words = ["unknown" if each is None else rate(each) if each >= 0 else "none" for each in figures]
        cells = zip(words, figures, strict=True)
        shown = (Segment(f"{word:>{_FIGURE}}", style if each else DIM) for word, each in cells)
        return (dim(f"   {name:<{label}}"), *shown)

    verdict, meaning, style = _verdict(traffic, measured, rest)
    over = f"{_TRAFFIC_OVER.get(traffic.over, traffic.over)}, over {traffic.window_s:.0f} s  "
    return [
        titled("account", dim(over), verdict),
        (dim(" " * (label + 3)), dim(f"{'rx':>{_FIGURE}}{'tx':>{_FIGURE}}")),
        row("measured", measured),
        row("the job's collectives" if label >= _LABEL else "collectives", own),
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
    if not left and not seen:
        return dim("the links are quiet"), "", DIM
    share = left / seen if seen else -1.0
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


def verdict_lines(view: RankView, width: int) -> list[StyledLine]:
    """Return how near the rank is to its GPU, why, and the command to type if it is far."""
    numa = view.numa
    if numa is None:
        text = f"unknown: rank {view.rank} has not reported it yet"
        return [titled("NUMA"), *paragraph(text, width, indent=3)]
    glyph, color = NUMA_MARKS[numa.state]
    verdict = Segment(f"{glyph} {_PLACEMENTS.get(numa.state, numa.state)}", TextStyle(color, bold=True))
    lines = [
        titled("NUMA", dim(f"rank {view.rank}  "), verdict),
        *paragraph(numa.reason, width, TEXT, indent=3),
    ]
    if numa.advice:
        style = TextStyle("accent", bold=True)
        beside = hanging(_label("to mend it"), numa.advice, width, style)
        if len(beside) > 1:  # each way on its own lines, so that commands are broken only if necessary
            ways = numa.advice.replace(", or ", "\nor ").split("\n")
            below = (line for way in ways for line in paragraph(way, width, style, indent=5))
            beside = [_label("to mend it"), *below]
        lines += beside
    return lines


def process_lines(view: RankView, width: int) -> list[StyledLine]:
    numa = view.numa
    if numa is None:
        return []
    facts = [
        ("may use", ": ".join(filter(None, (nodes_text(numa.cpu_nodes, "CPU"), numa.cpu_set)))),
        ("threads", nodes_text(numa.threads_by_node, "thread")),
        ("policy", numa.memory_policy),
    ]
    if numa.nic or numa.gpu_node is not None:
        on = f" on node {numa.nic_node}" if numa.nic_node is not None else ", node unknown"
        facts.append(("nearest NIC", f"{numa.nic}{on}" if numa.nic else ""))
    if numa.gpu_memory_node is not None:
        facts.append(("GPU memory", f"is node {numa.gpu_memory_node}"))
    lines: list[StyledLine] = [titled("process", dim(f"of rank {view.rank}"))]
    for label, text in facts:
        lines += hanging(_label(label), text or "unknown", width, TEXT if text else DIM)
    return lines


def nodes_text(shares: Iterable[NodeShare], noun: str) -> str:
    """Return such as ``34 threads on node 0, 2 on node 1``, most first."""
    parts: list[str] = []
    for share in sorted(shares, key=lambda each: -each.amount):
        if share.amount:
            named = plural(share.amount, noun) if not parts else f"{share.amount:,}"
            parts.append(f"{named} on node {share.node}")
    return ", ".join(parts)


def _label(words: str) -> StyledLine:
    return (dim(f"   {words:<12}"),)
