"""Below the map: the chosen rank's GPU and links, its account of traffic, its place on the NUMA nodes."""

from __future__ import annotations

from overlaptop.fleet.snapshot import RankView
from overlaptop.tui.draw.segments import Segment, StyledLine, TextStyle, crop, dim, pad
from overlaptop.tui.machine.account import account_lines
from overlaptop.tui.machine.host import Gpu, Machine, host_of, machine_of
from overlaptop.tui.machine.meters import activity_lines, link_lines
from overlaptop.tui.machine.minute import nvlink_minute, pcie_minute
from overlaptop.tui.machine.peers import peer_lines
from overlaptop.tui.machine.place import no_gpu_lines, place_lines, unknown_lines, verdict_lines
from overlaptop.tui.machine.words import paragraph
from overlaptop.tui.view import ScrollView

TWO_COLUMNS_FROM = 96
AIRY_FROM = 14
"""Lines from which a blank one stands between two parts in one column: below, the verdicts need them."""
_GAP = 2
_CHART_LEAST, _CHART_MOST, _PCIE_MOST = 2, 6, 3


class MachineDetail(ScrollView):
    """In two columns where there is room, else one below the other; what does not fit is scrolled to."""

    def made_of(self) -> tuple[object, ...] | None:
        """All that is known of this rank and its machine, and how far it is scrolled."""
        chosen, snapshot = self.state.chosen, self.state.snapshot
        if chosen is None:
            return None
        host = host_of(chosen)
        beside = tuple((view.machine, view.device) for view in snapshot.ranks if host_of(view) == host)
        facts = (chosen.numa, chosen.sample, chosen.traffic, chosen.ended, chosen.info is None)
        return (chosen.rank, self.first, snapshot.link, beside, *facts)

    def draw(self, width: int, height: int) -> list[StyledLine]:
        """The visible lines; the last one counts those below."""
        chosen = self.state.chosen
        if chosen is None:
            return [(dim(" no rank to show"),)]
        if chosen.machine is None and chosen.device is None and chosen.numa is None:
            return paragraph(_why_nothing(chosen), width, TextStyle("warning"), 1)
        machine = machine_of(self.state.snapshot.ranks, host_of(chosen))
        if width >= TWO_COLUMNS_FROM:
            left, right = self._columns(chosen, machine, (width - _GAP) // 2, height)
            tall = max(len(left), len(right))
            blank: StyledLine = ()
            size = (width - _GAP) // 2
            lines = [
                (*pad(crop(a, size), size), Segment(" " * _GAP), *b)
                for a, b in zip(
                    [*left, *[blank] * (tall - len(left))],
                    [*right, *[blank] * (tall - len(right))],
                    strict=True,
                )
            ]
        else:
            parts = self._one_column(chosen, machine, width)
            low = height < AIRY_FROM
            lines = [line for part in parts for line in part] if low else _apart(*parts)
        if chosen.ended:
            text = f" rank {chosen.rank} ended: these are its last figures"
            lines = [(Segment(text, TextStyle("warning")),), *lines]
        self.first = max(0, min(self.first, len(lines) - height))
        below = len(lines) - self.first - height
        shown = lines[self.first : self.first + height]
        if below > 0 and shown:
            shown[-1] = (dim(f"   ▼ {below + 1} more lines: page down"),)
        return shown

    def _columns(
        self, chosen: RankView, machine: Machine, width: int, height: int
    ) -> tuple[list[StyledLine], list[StyledLine]]:
        gpu, textured = machine.gpu_of(chosen), self.look.textured
        if gpu is None:
            left = _apart(verdict_lines(chosen, width), place_lines(chosen, width))
            return left, _apart(no_gpu_lines(chosen, width), unknown_lines(chosen, width))
        left = _apart(
            [
                *link_lines(chosen, gpu, width, textured=textured),
                *activity_lines(chosen, width, textured=textured),
            ],
            [*_shared(chosen, gpu), *peer_lines(chosen, gpu, machine, width)],
            unknown_lines(chosen, width),
        )
        right = _apart(
            verdict_lines(chosen, width),
            account_lines(chosen, width, textured=textured),
            place_lines(chosen, width),
        )
        return (
            _apart(left, nvlink_minute(chosen, width, _rows(height, left))),
            _apart(right, pcie_minute(chosen, width, min(_PCIE_MOST, _rows(height, right)))),
        )

    def _one_column(self, chosen: RankView, machine: Machine, width: int) -> list[list[StyledLine]]:
        gpu, textured = machine.gpu_of(chosen), self.look.textured
        if gpu is None:
            return [
                verdict_lines(chosen, width),
                place_lines(chosen, width),
                no_gpu_lines(chosen, width),
                unknown_lines(chosen, width),
            ]
        return [
            [*link_lines(chosen, gpu, width, textured=textured), *_shared(chosen, gpu)],
            verdict_lines(chosen, width),
            account_lines(chosen, width, textured=textured),
            activity_lines(chosen, width, textured=textured),
            nvlink_minute(chosen, width, _CHART_LEAST),
            pcie_minute(chosen, width, _CHART_LEAST),
            place_lines(chosen, width),
            peer_lines(chosen, gpu, machine, width),
            unknown_lines(chosen, width),
        ]


def _rows(height: int, above: list[StyledLine]) -> int:
    """Lines for each of two charts below ``above``; where there are none left, they are scrolled to."""
    return max(_CHART_LEAST, min(_CHART_MOST, (height - len(above) - 2) // 2))


def _apart(*parts: list[StyledLine]) -> list[StyledLine]:
    """The parts that have lines, a blank one between two."""
    lines: list[StyledLine] = []
    for part in parts:
        if part:
            lines += [(), *part] if lines else part
    return lines


def _shared(chosen: RankView, gpu: Gpu) -> list[StyledLine]:
    """Whose doing the figures are, where several ranks compute on one GPU."""
    others = [str(view.rank) for view in gpu.ranks if view.rank != chosen.rank]
    if not others:
        return []
    text = (
        f"! shared with rank{'s' * (len(others) > 1)} {', '.join(others)}: its figures are of all together"
    )
    return [(Segment(f"   {text}", TextStyle("warning")),)]


def _why_nothing(chosen: RankView) -> str:
    if chosen.ended:
        return f"Rank {chosen.rank} ended before it had reported its machine."
    if chosen.info is None:
        return f"Nothing is known of the machine: rank {chosen.rank} has not been seen yet."
    return f"Rank {chosen.rank} has not reported its machine yet; with --no-telemetry it never will."
