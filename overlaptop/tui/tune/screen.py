"""The job's knobs, and the log of changes."""

from typing import ClassVar

from overlaptop.tui.help.glossary import TUNE
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.model.keys import TUNE_KEYS, bindings
from overlaptop.tui.tune.change_log import ChangeLog
from overlaptop.tui.tune.knob_table import KnobDetail, KnobTable
from overlaptop.tui.widgets.job_header import JobHeader
from overlaptop.tui.widgets.screen import DashboardScreen


class TuneScreen(DashboardScreen):
    """Knobs, the selected one in detail, the newest change's progress, and the log."""

    title_in_help = TUNE
    BINDINGS: ClassVar = bindings(TUNE_KEYS)

    def __init__(self, dashboard: Dashboard) -> None:
        self._table, self._log = KnobTable(dashboard), ChangeLog(dashboard)
        detail = KnobDetail(dashboard, self._table)
        super().__init__(dashboard, JobHeader(dashboard), self._table, detail, self._log)
        self._table.cursor = self.state.selected_name

    @property
    def knob(self) -> str:
        selected = self._table.selected
        return selected.knob.name if selected is not None else ""

    def action_move(self, rows: int) -> None:
        self._table.move(rows)
        self.redraw()

    def action_select(self) -> None:
        self.dashboard.select_knob(self.knob)
        self.dashboard.on_change()

    def action_restore(self) -> None:
        self.dashboard.select_knob(self.knob)
        self.dashboard.restore_knob()
        self.dashboard.on_change()

    def action_scroll(self, lines: int) -> None:
        self._log.move(lines)
