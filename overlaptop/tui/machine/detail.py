"""Below the table: the selected rank's GPU and links, the traffic on them, its place on the NUMA nodes."""

from __future__ import annotations

from itertools import zip_longest

from overlaptop.fleet.snapshot import RankView
from overlaptop.text import runs_of
from overlaptop.tui.draw.segments import Segment, StyledLine, TextStyle, dim, pad, paragraph
from overlaptop.tui.machine.host import Gpu, Machine, host_of, machine_of
from overlaptop.tui.machine.link_history import last_minute
from overlaptop.tui.machine.meters import activity_lines, link_lines, no_gpu_lines, unknown_lines
from overlaptop.tui.machine.numa import process_lines, verdict_lines
from overlaptop.tui.machine.peers import peer_lines
from overlaptop.tui.machine.traffic import traffic_lines
from overlaptop.tui.widgets.view import ScrollView

TWO_COLUMNS_FROM = 96
AIRY_FROM = 14
"""Lines from which a blank one stands between two parts in one column: below, the verdicts need them."""
_GAP = 2
_CHART_LEAST, _CHART_MOST, _PCIE_MOST = 2, 6, 3
_WARNING = TextStyle("warning")


class MachineDetail(ScrollView):
    """In two columns where there is room, else one below the other; what does not fit is scrolled to."""

    def made_of(self) -> tuple[object, ...] | None:
        """All that is known of this rank and its machine, and how far it is scrolled."""
        selected, snapshot = self.state.selected, self.state.snapshot
        if selected is None:
            return None
        host = host_of(selected)
        beside = tuple((view.machine, view.device) for view in snapshot.ranks if host_of(view) == host)
        facts = (selected.numa, selected.sample, selected.traffic, selected.ended, selected.info is None)
        return (selected.rank, self.first, snapshot.hub_state, beside, *facts)

    def draw(self, width: int, height: int) -> list[StyledLine]:
        selected = self.state.selected
        if selected is None:
            return [(dim(" no rank to show"),)]
        if selected.machine is None and selected.device is None and selected.numa is None:
            return paragraph(_why_nothing(selected), width, _WARNING)
        machine = machine_of(self.state.snapshot.ranks, host_of(selected))
        if width >= TWO_COLUMNS_FROM:
            size = (width - _GAP) // 2
            left, right = self._columns(selected, machine, size, height)
            both = zip_longest(left, right, fillvalue=())
            lines = [(*pad(one, size), Segment(" " * _GAP), *other) for one, other in both]
        else:
            lines = self._one_column(selected, machine, width, height)
        if selected.ended:
            text = f" rank {selected.rank} ended: these are its last figures"
            lines = [(Segment(text, _WARNING),), *lines]
        self.first = max(0, min(self.first, len(lines) - height))
        below = len(lines) - self.first - height
        shown = lines[self.first : self.first + height]
        if below > 0 and shown:
            shown[-1] = (dim(f"   ▼ {below + 1} more lines: page down"),)
        return shown

    def _columns(
        self, selected: RankView, machine: Machine, width: int, height: int
    ) -> tuple[list[StyledLine], list[StyledLine]]:
        gpu, textured = machine.gpu_of(selected), self.look.textured
        verdict, process = verdict_lines(selected, width), process_lines(selected, width)
        unknown = unknown_lines(selected, width)
        if gpu is None:
            return _apart(verdict, process), _apart(no_gpu_lines(selected, width), unknown)
        links = link_lines(selected, gpu, width, textured=textured)
        activity = activity_lines(selected, width, textured=textured)
        peers = [*_shared(selected, gpu), *peer_lines(selected, gpu, machine, width)]
        left = _apart([*links, *activity], peers, unknown)
        right = _apart(verdict, traffic_lines(selected, width, textured=textured), process)
        nvlink = last_minute(selected, "nvlink", width, _rows(height, left))
        pcie = last_minute(selected, "pcie", width, min(_PCIE_MOST, _rows(height, right)))
        return _apart(left, nvlink), _apart(right, pcie)

    def _one_column(
        self, selected: RankView, machine: Machine, width: int, height: int
    ) -> list[StyledLine]:
        gpu, textured = machine.gpu_of(selected), self.look.textured
        parts = [verdict_lines(selected, width), process_lines(selected, width)]
        if gpu is None:
            parts.append(no_gpu_lines(selected, width))
        else:
            parts[:1] = [
                [*link_lines(selected, gpu, width, textured=textured), *_shared(selected, gpu)],
                parts[0],
                traffic_lines(selected, width, textured=textured),
                activity_lines(selected, width, textured=textured),
                last_minute(selected, "nvlink", width, _CHART_LEAST),
                last_minute(selected, "pcie", width, _CHART_LEAST),
            ]
            parts.append(peer_lines(selected, gpu, machine, width))
        parts.append(unknown_lines(selected, width))
        return [line for part in parts for line in part] if height < AIRY_FROM else _apart(*parts)


def _rows(height: int, above: list[StyledLine]) -> int:
    """Lines for each of two charts below ``above``; where there are none left, they are scrolled to."""
    return max(_CHART_LEAST, min(_CHART_MOST, (height - len(above) - 2) // 2))


def _apart(*parts: list[StyledLine]) -> list[StyledLine]:
    return [line for part in parts if part for line in ((), *part)][1:]


def _shared(selected: RankView, gpu: Gpu) -> list[StyledLine]:
    """Whose doing the figures are, where several ranks compute on one GPU."""
    others = [view.rank for view in gpu.ranks if view.rank != selected.rank]
    text = f"   ! shared with rank {runs_of(others)}: its figures are of all together"
    return [(Segment(text, _WARNING),)] if others else []


def _why_nothing(selected: RankView) -> str:
    if selected.ended:
        return f"Rank {selected.rank} ended before it had reported its machine."
    return f"Rank {selected.rank} has not reported its machine yet; with --no-telemetry it never will."
