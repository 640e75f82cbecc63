"""Below the table: the selected rank's GPU and links, their traffic, and the rank's NUMA node."""

from itertools import zip_longest

from overlaptop.fleet.snapshot import RankView
from overlaptop.text import runs_of
from overlaptop.tui.draw.layout import pad, paragraph
from overlaptop.tui.draw.segments import Segment, StyledLine, TextStyle
from overlaptop.tui.machine.host import Gpu, host_of, machine_of
from overlaptop.tui.machine.link_history import last_minute
from overlaptop.tui.machine.meters import activity_lines, link_lines, no_gpu_lines, unknown_lines
from overlaptop.tui.machine.numa import process_lines, verdict_lines
from overlaptop.tui.machine.traffic import traffic_lines
from overlaptop.tui.widgets.view import Page

TWO_COLUMNS_FROM = 96
_GAP, _CHART_ROWS = 2, 3
_WARNING = TextStyle("warning")


class MachineDetail(Page):
    """Two columns if they fit, else one; the rest is scrolled."""

    fades = True

    def made_of(self) -> tuple[object, ...] | None:
        """The facts about this rank and its machine, and the scroll position."""
        selected, snapshot = self.state.selected, self.state.snapshot
        if selected is None:
            return None
        host = host_of(selected)
        beside = tuple((view.machine, view.device) for view in snapshot.ranks if host_of(view) == host)
        facts = (selected.numa, selected.sample, selected.ended, selected.info is None)
        traffic = selected.traffic, selected.nic_traffic
        return (selected.rank, self.first, snapshot.hub_state, beside, *facts, *traffic)

    def lines(self, width: int) -> list[StyledLine]:
        selected = self.state.selected
        if selected is None:
            return []
        if selected.machine is None and selected.device is None and selected.numa is None:
            return paragraph(_why_nothing(selected), width, _WARNING)
        gpu = machine_of(self.state.snapshot.ranks, host_of(selected)).gpu_of(selected)
        ended = f" rank {selected.rank} ended: these are its last figures"
        lines: list[StyledLine] = [(Segment(ended, _WARNING),)] if selected.ended else []
        if width < TWO_COLUMNS_FROM:
            left, right = self._columns(selected, gpu, width)
            return [*lines, *_apart(left, right)]
        size = (width - _GAP) // 2
        both = zip_longest(*self._columns(selected, gpu, size), fillvalue=())
        return [*lines, *((*pad(one, size), Segment(" " * _GAP), *other) for one, other in both)]

    def _columns(
        self, selected: RankView, gpu: Gpu | None, width: int
    ) -> tuple[list[StyledLine], list[StyledLine]]:
        """Return the GPU's activity, and the rank's place and the sources of traffic."""
        textured, numa = self.look.textured, verdict_lines(selected, width)
        process, unknown = process_lines(selected, width), unknown_lines(selected, width)
        if gpu is None:
            return _apart(numa, process), _apart(no_gpu_lines(selected, width), unknown)
        links = link_lines(selected, gpu, width, textured=textured)
        charts = (last_minute(selected, link, width, _CHART_ROWS) for link in ("nvlink", "pcie"))
        left = [*links, *_shared(selected, gpu), *activity_lines(selected, width, textured=textured)]
        account, network = traffic_lines(selected.traffic, width), selected.nic_traffic
        between = traffic_lines(network, width) if network is not None else []
        return _apart(left, *charts), _apart(numa, account, between, process, unknown)


def _apart(*parts: list[StyledLine]) -> list[StyledLine]:
    return [line for part in parts if part for line in ((), *part)][1:]


def _shared(selected: RankView, gpu: Gpu) -> list[StyledLine]:
    """Return a note about shared figures, if several ranks compute on one GPU."""
    others = [view.rank for view in gpu.ranks if view.rank != selected.rank]
    text = f"   ! shared with rank {runs_of(others)}: its figures cover all of them"
    return [(Segment(text, _WARNING),)] if others else []


def _why_nothing(selected: RankView) -> str:
    if selected.ended:
        return f"Rank {selected.rank} ended before it had reported its machine."
    return f"Rank {selected.rank} has not reported its machine yet; with --no-telemetry it never will."
