"""What the links carried beside what the job's own collectives account for."""

from __future__ import annotations

from overlaptop.fleet.snapshot import RankView
from overlaptop.fleet.traffic import Traffic
from overlaptop.text import rate, whole_percent
from overlaptop.tui.draw.bars import Cell, to_segments
from overlaptop.tui.draw.segments import BOLD, DIM, TEXT, Segment, StyledLine, TextStyle, bold, dim
from overlaptop.tui.machine.words import paragraph, titled

NOTABLE_SHARE = 0.1
"""Counters and collectives are not read at the same moments: what differs by less says nothing."""
_NAMES = {"nvlink": "NVLink", "pcie": "PCIe"}
_LABEL, _FIGURE, _BAR_MOST = 23, 12, 60


def account_lines(view: RankView, width: int, *, textured: bool) -> list[StyledLine]:
    """A verdict; measured, explained, the rest; a bar of it; what it means.

    The verdict stands in the heading: where there is little room the rest is scrolled to.
    """
    traffic = view.traffic
    if traffic is None:
        return [
            titled("account"),
            *paragraph("unknown: nothing is known of what the links carried", width, DIM),
        ]
    over = _NAMES.get(traffic.over, traffic.over)
    label = min(_LABEL, max(12, width - 2 * _FIGURE - 4))
    own = "the job's collectives" if label >= _LABEL else "collectives"
    rest = tuple(_rest(*pair) for pair in _pairs(traffic))
    verdict, meaning = _verdict(traffic, width, textured=textured)
    lines: list[StyledLine] = [
        titled("account", dim(f"{over}, over {traffic.window_s:.0f} s  "), verdict),
        (dim(" " * (label + 3)), dim(f"{'rx':>{_FIGURE}}{'tx':>{_FIGURE}}")),
        _row("measured", label, (traffic.rx_bytes_per_s, traffic.tx_bytes_per_s), TEXT),
        _row(own, label, (traffic.collectives_rx_bytes_per_s, traffic.collectives_tx_bytes_per_s), TEXT),
        _row("unexplained", label, rest, BOLD),
    ]
    return lines + meaning + (paragraph(traffic.reason, width, DIM) if traffic.reason else [])


def _pairs(traffic: Traffic) -> tuple[tuple[int | None, int | None], ...]:
    """Measured and explained, for each direction."""
    return (
        (traffic.rx_bytes_per_s, traffic.collectives_rx_bytes_per_s),
        (traffic.tx_bytes_per_s, traffic.collectives_tx_bytes_per_s),
    )


def _rest(measured: int | None, explained: int | None) -> int | None:
    return None if measured is None or explained is None else measured - explained


def _row(name: str, label: int, figures: tuple[int | None, ...], style: TextStyle) -> StyledLine:
    cells = [
        Segment(
            f"{'unknown' if each is None else rate(each) if each >= 0 else 'none':>{_FIGURE}}",
            style if each else DIM,
        )
        for each in figures
    ]
    return (dim(f"   {name:<{label}}"), *cells)


def _verdict(traffic: Traffic, width: int, *, textured: bool) -> tuple[Segment, list[StyledLine]]:
    """In a word or two, and what shows it."""
    known = [
        (measured, explained, direction)
        for (measured, explained), direction in zip(_pairs(traffic), ("rx", "tx"), strict=True)
        if measured is not None and explained is not None
    ]
    if not known:
        return dim("unknown"), []
    measured, explained, direction = max(known, key=lambda each: abs(each[0] - each[1]))
    if not measured and not explained:
        return dim("the links are quiet"), []
    share = 1 - explained / measured if measured else -1.0
    warned = TextStyle("warning", bold=True)
    if share < -NOTABLE_SHARE:
        text = "the collectives account for more than the counters saw"
        return Segment("! does not add up", warned), paragraph(text, width, TextStyle("warning"))
    share = max(0.0, share)
    is_pcie = traffic.over == "pcie"
    bar = _bar(share, width, TextStyle("copy" if is_pcie else "exposed"), textured=textured)
    shown = (Segment("   "), *bar, bold(f" {whole_percent(share):>5}"), dim(f" of {direction}"))
    if share <= NOTABLE_SHARE:
        return Segment("✓ explained", TextStyle("good", bold=True)), [shown]
    text = f"{whole_percent(share)} unexplained"
    if is_pcie:  # where a job's batches come in: nothing to be warned of
        return bold(text), [shown, *paragraph("copies of the job's own, or somebody else's traffic", width)]
    meaning = paragraph("somebody else's traffic, or copies of the job's own", width, TextStyle("warning"))
    return Segment(f"! {text}", warned), [shown, *meaning]


def _bar(share: float, width: int, style: TextStyle, *, textured: bool) -> StyledLine:
    """What is explained, and in ``style`` the share that is not."""
    size = max(1, min(_BAR_MOST, width - 18))
    rest = round(size * share)
    filled, empty = ("▓", "░") if textured else ("█", "█")
    return to_segments([*[Cell(filled, TextStyle("hidden"))] * (size - rest), *[Cell(empty, style)] * rest])
