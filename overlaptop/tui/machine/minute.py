"""A GPU's last minute: gathered into columns, and drawn against its links' peaks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from overlaptop.fleet.snapshot import RankView
from overlaptop.report.links import has_nvlink, has_pcie, nvlink_rate, pcie_rate
from overlaptop.text import rate
from overlaptop.tui.draw.bars import chart
from overlaptop.tui.draw.segments import StyledLine, TextStyle, dim
from overlaptop.tui.machine.meters import NVLINK, PCIE
from overlaptop.tui.machine.words import titled
from overlaptop.wire.devices import DeviceSample

MINUTE_S = 60
_COLUMN_S = (1, 2, 3, 4, 5, 6, 10, 15, 20, 30, 60)
"""Two samples at the least: with one, a late sample would leave a gap."""

_LABEL = 7

Value = Callable[[DeviceSample], int | None]
_NVLINK: tuple[tuple[str, Value], ...] = (
    ("rx", lambda sample: sample.nvlink_rx_bytes_per_s),
    ("tx", lambda sample: sample.nvlink_tx_bytes_per_s),
)
_PCIE: tuple[tuple[str, Value], ...] = (
    ("rx", lambda sample: sample.pcie_rx_bytes_per_s),
    ("tx", lambda sample: sample.pcie_tx_bytes_per_s),
)


def column_s(width: int) -> int:
    """How many seconds a column stands for, so that a minute fits into ``width`` of them."""
    return next((seconds for seconds in _COLUMN_S if seconds * width >= MINUTE_S), MINUTE_S)


def columns(samples: Sequence[DeviceSample], width: int, value: Value) -> list[float | None]:
    """The mean of each column of the minute before the newest sample, oldest first; None where nothing is
    known. Columns begin at whole seconds of the clock: a finished one never changes again.
    """
    each_ns = column_s(width) * 1_000_000_000
    room = min(width, MINUTE_S * 1_000_000_000 // each_ns)
    if not samples or room <= 0:
        return [None] * max(0, room)
    newest = samples[-1].at_ns // each_ns
    gathered: dict[int, list[int]] = {}
    for sample in reversed(samples):
        column = sample.at_ns // each_ns
        if column <= newest - room:
            break
        if (known := value(sample)) is not None:
            gathered.setdefault(column, []).append(known)
    return [
        fmean(gathered[column]) if column in gathered else None
        for column in range(newest - room + 1, newest + 1)
    ]


def nvlink_minute(view: RankView, width: int, rows: int) -> list[StyledLine]:
    """Charts of rx and tx, ``rows`` lines each, on a scale from 0 to the peak; none without NVLink."""
    if not has_nvlink(view):
        return []
    return _charts(view, "NVLink", NVLINK, nvlink_rate(view).peak_bytes_per_s, _NVLINK, width, rows)


def pcie_minute(view: RankView, width: int, rows: int) -> list[StyledLine]:
    """The same of PCIe; none where nothing is known of it."""
    if not has_pcie(view):
        return []
    return _charts(view, "PCIe", PCIE, pcie_rate(view).peak_bytes_per_s, _PCIE, width, rows)


def _charts(
    view: RankView,
    name: str,
    style: TextStyle,
    peak: int | None,
    directions: tuple[tuple[str, Value], ...],
    width: int,
    rows: int,
) -> list[StyledLine]:
    room = max(1, width - _LABEL - 1)
    drawn = {direction: columns(view.samples, room, value) for direction, value in directions}
    highest = max((known for values in drawn.values() for known in values if known is not None), default=0)
    top = peak or highest
    scale = f"0 to {rate(round(top))}" + (
        ", the peak" if peak else ", the highest seen: the peak is unknown"
    )
    each = column_s(room)
    lines = [titled(f"{name}, one minute", dim(f"{scale}; a column is {each} s"))]
    for direction, values in drawn.items():
        charted = chart(values, top, rows, style=style)
        labels = [direction, *[""] * (rows - 1)]
        lines += [(dim(f"   {label:<4}"), *line) for label, line in zip(labels, charted, strict=True)]
    return lines
