"""All that can be changed of the job, and the log of what was."""

from __future__ import annotations

from typing import ClassVar

from overlaptop.tui.help.glossary import TUNE
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.model.keys import TUNE_KEYS, bindings
from overlaptop.tui.tune.change_log import ChangeLog
from overlaptop.tui.tune.change_panel import ChangeLine
from overlaptop.tui.tune.knob_table import KnobDetail, KnobTable
from overlaptop.tui.widgets.job_header import JobHeader
from overlaptop.tui.widgets.key_bar import BACK_HINT, HELP_HINT, KNOB_HINT, QUIT_HINT, KeyBar
from overlaptop.tui.widgets.screen import DashboardScreen, Heights

HINTS = (
    BACK_HINT,
    HELP_HINT,
    KNOB_HINT,
    ("b", "exact value", "app.exact", "exact"),
    ("r", "the script's", "screen.restore", "script's"),
    ("a", "try values", "app.trials", "try"),
    ("enter", "select", "screen.select"),
    ("↑ ↓", "knob", "screen.move(1)"),
    ("page down", "scroll the log", "screen.scroll(8)"),
    QUIT_HINT,
)
_LOG_LEAST, _KNOBS_MOST = 3, 12


class TuneScreen(DashboardScreen):
    """Knobs, all about the selected one, how the newest change goes, and the log."""

    title_in_help = TUNE
    BINDINGS: ClassVar = bindings(TUNE_KEYS)

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard)
        self._header = JobHeader(dashboard)
        self._table = KnobTable(dashboard)
        self._detail = KnobDetail(dashboard, self._table)
        self._line = ChangeLine(dashboard)
        self._log = ChangeLog(dashboard)
        self._keys = KeyBar(dashboard, HINTS, shows_change=False, offered=self._offered)
        self._table.cursor = self.state.selected_name

    @property
    def knob(self) -> str:
        selected = self._table.selected
        return selected.knob.name if selected is not None else ""

    def heights(self, width: int, height: int) -> Heights:
        """Knobs first, then the selected one in sentences; the log takes what is left."""
        airy = 1 if height >= 24 else 0
        line = self._line.full_height(width)
        rest = height - 2 - line - 3 * airy
        knobs = len(self.state.snapshot.knobs)
        table = min(knobs + 1 if knobs else 6, _KNOBS_MOST, max(2, rest - _LOG_LEAST))
        detail = min(len(self._detail.lines(width)), max(0, rest - table - _LOG_LEAST))
        return (
            (self._header, 1, 0),
            (self._table, table, airy),
            (self._detail, detail, airy if detail else 0),
            (self._line, line, 0),
            (self._log, max(0, height - 2 - line - table - detail - airy * (3 if detail else 2)), airy),
            (self._keys, 1, 0),
        )

    def _offered(self, action: str) -> bool:
        return action != "screen.move(1)" or bool(self.state.snapshot.knobs)

    def action_move(self, rows: int) -> None:
        self._table.move(rows)
        self.redraw()

    def action_select(self) -> None:
        self.dashboard.select_knob(self.knob)
        self.dashboard.on_change()

    def action_restore(self) -> None:
        self.dashboard.select_knob(self.knob)
        self.dashboard.control.restore(self.dashboard.latest)
        self.dashboard.on_change()

    def action_scroll(self, lines: int) -> None:
        self._log.move(lines)
