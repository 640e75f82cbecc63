"""The machine under the selected rank: GPUs, nodes, adapters, links, and what they carry."""

from __future__ import annotations

from typing import ClassVar

from overlaptop.tui.help.glossary import MACHINE
from overlaptop.tui.machine.detail import MachineDetail
from overlaptop.tui.machine.gpus import GpuTable
from overlaptop.tui.machine.host import host_of, hosts
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.model.keys import MACHINE_KEYS, bindings
from overlaptop.tui.widgets.job_header import JobHeader
from overlaptop.tui.widgets.key_bar import BACK_HINT, HELP_HINT, KNOB_HINT, PAUSE_HINT, QUIT_HINT, KeyBar
from overlaptop.tui.widgets.screen import DashboardScreen, Heights

HINTS = (
    BACK_HINT,
    HELP_HINT,
    ("↑ ↓", "rank", "screen.move(1)", "rank"),
    ("tab", "next", "screen.next(1)"),
    ("page down", "scroll", "screen.scroll(8)"),
    ("enter", "open rank", "app.rank"),
    KNOB_HINT,
    PAUSE_HINT,
    QUIT_HINT,
)
_DETAIL_LEAST = 10


class MachineScreen(DashboardScreen):
    """The GPUs of one host, and below them the details of the selected rank there."""

    title_in_help = MACHINE
    BINDINGS: ClassVar = bindings(MACHINE_KEYS)

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard)
        self._header = JobHeader(dashboard)
        self._gpus = GpuTable(dashboard)
        self._detail = MachineDetail(dashboard)
        self._keys = KeyBar(dashboard, HINTS)

    def heights(self, width: int, height: int) -> Heights:
        """The table first; where there is little height, half of it for the details, which scroll."""
        airy = 1 if height >= 28 else 0
        foot = 1 if height >= 8 else 0
        head = 2 if height >= 24 else 1
        rest = height - head - foot - 2 * airy
        wanted = self._gpus.full_height(width, height)
        least = min(_DETAIL_LEAST, rest // 2)
        shown = max(0, min(wanted, rest - least))
        return (
            (self._header, head, 0),
            (self._gpus, shown, airy),
            (self._detail, max(0, rest - shown), airy),
            (self._keys, foot, 0),
        )

    def action_move(self, rows: int) -> None:
        self.state.move(rows)
        self._select(self.state.rank)

    def action_next(self, direction: int) -> None:
        """The first rank of the next host, going round; on one host the next rank."""
        selected, rows = self.state.selected, self.state.rows
        if selected is None:
            return
        names = hosts(rows)
        if len(names) > 1 and host_of(selected) in names:
            wanted = names[(names.index(host_of(selected)) + direction) % len(names)]
            self._select(next(view.rank for view in rows if host_of(view) == wanted))
        else:
            ranks = [view.rank for view in rows]
            self._select(ranks[(ranks.index(selected.rank) + direction) % len(ranks)])

    def action_scroll(self, lines: int) -> None:
        self._detail.move(lines)

    def _select(self, rank: int) -> None:
        self.state.rank = rank
        self._detail.first = 0
        self.show_selected()
