"""What is found of the job, by what mending it can win."""

from __future__ import annotations

from typing import ClassVar

from overlaptop.tui.dashboard import Dashboard
from overlaptop.tui.findings.view import FindingsView
from overlaptop.tui.help.glossary import FINDINGS
from overlaptop.tui.keys import FINDINGS_KEYS, bindings
from overlaptop.tui.screen import DashboardScreen, Heights
from overlaptop.tui.widgets.job_header import JobHeader
from overlaptop.tui.widgets.key_bar import HELP_HINT, PAUSE_HINT, QUIT_HINT, KeyBar

HINTS = (
    ("esc", "back", "screen.back", "back"),
    HELP_HINT,
    ("↑ ↓", "select", "screen.move(1)", "select"),
    ("enter", "open its rank", "screen.open", "rank"),
    ("C", "collectives", "app.collectives"),
    ("T", "timelines", "app.timelines"),
    PAUSE_HINT,
    QUIT_HINT,
)


class FindingsScreen(DashboardScreen):
    """The list, and the selected one in full."""

    title_in_help = FINDINGS
    BINDINGS: ClassVar = bindings(FINDINGS_KEYS)

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard)
        self._header, self._view = JobHeader(dashboard), FindingsView(dashboard)
        self._keys = KeyBar(dashboard, HINTS)

    def heights(self, width: int, height: int) -> Heights:  # noqa: ARG002
        """All for the list and what is below it."""
        airy, foot = (1 if height >= 28 else 0), (1 if height >= 8 else 0)
        rest = max(1, height - 1 - foot - airy)
        return ((self._header, 1, 0), (self._view, rest, airy), (self._keys, foot, 0))

    def action_move(self, lines: int) -> None:
        self._view.move(lines)

    async def action_open(self) -> None:
        """The first rank that the selected one is about, where it is about some."""
        if (found := self._view.selected) is not None and found.ranks:
            self.state.rank = found.ranks[0]
            self.dashboard.watch()
            await self.run_action("app.rank")
