"""What is found of the job, by what mending it can win."""

from __future__ import annotations

from typing import ClassVar

from overlaptop.tui.dashboard import Dashboard
from overlaptop.tui.findings.view import FindingsView
from overlaptop.tui.help.glossary import FINDINGS
from overlaptop.tui.keys import FINDINGS_KEYS, bindings
from overlaptop.tui.page import PageScreen
from overlaptop.tui.widgets.key_bar import (
    BACK_HINT,
    COLLECTIVES_HINT,
    HELP_HINT,
    PAUSE_HINT,
    QUIT_HINT,
    TIMELINES_HINT,
)


class FindingsScreen(PageScreen):
    """The list, and the selected one in full."""

    title_in_help = FINDINGS
    BINDINGS: ClassVar = bindings(FINDINGS_KEYS)
    hints = (
        BACK_HINT,
        HELP_HINT,
        ("↑ ↓", "select", "screen.move(1)", "select"),
        ("enter", "open its rank", "screen.open", "rank"),
        COLLECTIVES_HINT,
        TIMELINES_HINT,
        PAUSE_HINT,
        QUIT_HINT,
    )
    airy_from = 28

    def __init__(self, dashboard: Dashboard) -> None:
        self._list = FindingsView(dashboard)
        super().__init__(dashboard, self._list)

    async def action_open(self) -> None:
        """The first rank that the selected one is about, where it is about some."""
        if (found := self._list.selected) is not None and found.ranks:
            self.state.rank = found.ranks[0]
            self.dashboard.watch()
            await self.run_action("app.rank")
