"""Page and PageScreen: lines that are scrolled, and a screen of nothing else."""

from __future__ import annotations

from typing import ClassVar

from overlaptop.tui.draw.segments import StyledLine
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.model.keys import SCROLL_KEYS, bindings
from overlaptop.tui.widgets.job_header import JobHeader
from overlaptop.tui.widgets.key_bar import BACK_HINT, HELP_HINT, QUIT_HINT, Hints, KeyBar
from overlaptop.tui.widgets.screen import DashboardScreen, Heights
from overlaptop.tui.widgets.view import JobView, ScrollView


class Page(ScrollView):
    """Lines that do not depend on the height."""

    fades = False

    def lines(self, width: int) -> list[StyledLine]:
        """All of them."""
        raise NotImplementedError

    def draw(self, width: int, height: int) -> list[StyledLine]:
        lines = self.lines(width)
        self.first = max(0, min(self.first, len(lines) - height))
        return lines[self.first : self.first + height]


class PageScreen(DashboardScreen):
    """One view that is scrolled or has a cursor, and its keys."""

    BINDINGS: ClassVar = bindings(SCROLL_KEYS)
    hints: ClassVar[Hints] = (
        BACK_HINT,
        ("↑ ↓", "scroll", "screen.move(1)", "scroll"),
        QUIT_HINT,
        HELP_HINT,
    )
    airy_from: ClassVar[int | None] = None
    """Lines from which a blank one stands below the job's header; None: there is no header."""

    def __init__(self, dashboard: Dashboard, view: JobView) -> None:
        super().__init__(dashboard)
        self._header, self._view = JobHeader(dashboard), view
        self._keys = KeyBar(dashboard, self.hints, offered=self.offered)

    def offered(self, action: str) -> bool:  # noqa: ARG002
        """Whether an action does something just now."""
        return True

    def heights(self, width: int, height: int) -> Heights:  # noqa: ARG002
        foot = 1 if height >= 4 else 0
        if self.airy_from is None:
            return ((self._view, height - foot, 0), (self._keys, foot, 0))
        above = 1 if height >= self.airy_from else 0
        view = max(1, height - 1 - foot - above)
        return ((self._header, 1, 0), (self._view, view, above), (self._keys, foot, 0))

    def action_move(self, lines: int) -> None:
        self._view.move(lines)
