"""The selected rank's machine: GPUs, nodes, adapters, links, and their traffic."""

from typing import ClassVar

from overlaptop.tui.help.glossary import MACHINE
from overlaptop.tui.machine.detail import MachineDetail
from overlaptop.tui.machine.gpus import GpuTable
from overlaptop.tui.machine.host import host_of, hosts
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.model.keys import MACHINE_KEYS, bindings
from overlaptop.tui.model.state import following
from overlaptop.tui.widgets.job_header import JobHeader
from overlaptop.tui.widgets.screen import DashboardScreen


class MachineScreen(DashboardScreen):
    """The GPUs of one host, and below them the selected rank's details."""

    title_in_help = MACHINE
    BINDINGS: ClassVar = bindings(MACHINE_KEYS)

    def __init__(self, dashboard: Dashboard) -> None:
        self._gpus, self._detail = GpuTable(dashboard), MachineDetail(dashboard)
        super().__init__(dashboard, JobHeader(dashboard), self._gpus, self._detail)

    def action_move(self, rows: int) -> None:
        self.state.move(rows)
        self._select(self.state.rank)

    def action_next(self, direction: int) -> None:
        """Select the first rank of the next host, cyclically; with one host the next rank."""
        selected, rows = self.state.selected, self.state.rows
        if selected is None:
            return
        names = hosts(rows)
        if len(names) > 1:
            wanted = following(host_of(selected), names, direction)
            self._select(next(view.rank for view in rows if host_of(view) == wanted))
        else:
            self._select(following(selected.rank, [view.rank for view in rows], direction))

    def action_scroll(self, lines: int) -> None:
        self._detail.move(lines)

    def _select(self, rank: int) -> None:
        self.state.rank = rank
        self._detail.first = 0
        self.show_selected()
