"""The last minute of a GPU's links, on a scale to their peaks."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from statistics import fmean

from overlaptop.fleet.snapshot import RankView
from overlaptop.report.links import has_nvlink, has_pcie, nvlink_rate, pcie_rate
from overlaptop.text import rate
from overlaptop.tui.draw.bars import binned, chart
from overlaptop.tui.draw.layout import titled
from overlaptop.tui.draw.segments import StyledLine, dim
from overlaptop.tui.machine.meters import NVLINK, PCIE
from overlaptop.wire.devices import DeviceSample

MINUTE_S = 60
_COLUMN_S = (1, 2, 3, 4, 5, 6, 10, 15, 20, 30, 60)
"""At least two samples per column: with one, a late sample would leave a gap."""
_LABEL = 7
_LINKS = {
    "nvlink": ("NVLink", NVLINK, has_nvlink, nvlink_rate),
    "pcie": ("PCIe", PCIE, has_pcie, pcie_rate),
}


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


def last_minute(view: RankView, link: str, width: int, rows: int) -> list[StyledLine]:
    """Return charts of rx and tx, ``rows`` lines each, on a scale from 0 to the peak; none without such a
    link.
    """
    name, style, there, known = _LINKS[link]
    if not there(view):
        return []
    space, peak = max(1, width - _LABEL - 1), known(view).peak_bytes_per_s
    drawn = {
        direction: columns(view.samples, space, attrgetter(f"{link}_{direction}_bytes_per_s"))
        for direction in ("rx", "tx")
    }
    top = peak or max((value or 0 for values in drawn.values() for value in values), default=0)
    scale = f"0 to {rate(round(top))}, {'the peak' if peak else 'the highest seen: the peak is unknown'}"
    lines = [titled(f"{name}, one minute", dim(f"{scale}; a column is {column_s(space)} s"))]
    for direction, values in drawn.items():
        for at, line in enumerate(chart(values, top, rows, style=style)):
            lines.append((dim(f"   {'' if at else direction:<4}"), *line))
    return lines
