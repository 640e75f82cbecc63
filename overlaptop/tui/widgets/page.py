"""Page and PageScreen: lines that are scrolled, and a screen of nothing else."""

from __future__ import annotations

from typing import ClassVar

from overlaptop.tui.draw.segments import StyledLine, dim
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.model.keys import SCROLL_KEYS, bindings
from overlaptop.tui.widgets.screen import DashboardScreen
from overlaptop.tui.widgets.view import JobView, ScrollView


class Page(ScrollView):
    """Lines that do not depend on the height."""

    fades = False
    counts_rest: ClassVar = True
    """Whether the last line says how many come below."""

    def lines(self, width: int) -> list[StyledLine]:
        """All of them."""
        raise NotImplementedError

    def draw(self, width: int, height: int) -> list[StyledLine]:
        lines = self.lines(width)
        self.first = max(0, min(self.first, len(lines) - height))
        shown, below = lines[self.first : self.first + height], len(lines) - self.first - height
        if below > 0 and shown and self.counts_rest:
            shown[-1] = (dim(f"   ▼ {below + 1} more lines: page down"),)
        return shown


class PageScreen(DashboardScreen):
    """One view that is scrolled or has a cursor, and its keys."""

    BINDINGS: ClassVar = bindings(SCROLL_KEYS)

    def __init__(self, dashboard: Dashboard, view: JobView, *above: JobView) -> None:
        """``above``: what stands above it."""
        super().__init__(dashboard, *above, view)
        self._view = view
        view.add_class("page")
        view.set_class(bool(above), "below")

    def action_move(self, lines: int) -> None:
        self._view.move(lines)
