"""Page and PageScreen: scrolled lines, and a screen of such a page."""

from typing import ClassVar

from overlaptop.tui.draw.segments import StyledLine, dim
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.model.keys import SCROLL_KEYS, bindings
from overlaptop.tui.widgets.screen import DashboardScreen
from overlaptop.tui.widgets.view import JobView

WHEEL_LINES = 3


class Page(JobView):
    """Lines that do not depend on the height, scrolled by keys and by the wheel."""

    fades = False
    counts_rest: ClassVar = True
    """Whether the last line counts the hidden ones below."""

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard)
        self.first = 0

    def move(self, lines: int) -> None:
        self.first = max(0, self.first + lines)
        self.redraw()

    async def wheel(self, direction: int, x: int) -> None:  # noqa: ARG002
        self.move(WHEEL_LINES * direction)

    def lines(self, width: int) -> list[StyledLine]:
        """Return all lines."""
        raise NotImplementedError

    def draw(self, width: int, height: int) -> list[StyledLine]:
        lines = self.lines(width)
        self.first = max(0, min(self.first, len(lines) - height))
        shown, below = lines[self.first : self.first + height], len(lines) - self.first - height
        if below > 0 and shown and self.counts_rest:
            shown[-1] = (dim(f"   ▼ {below + 1} more lines: page down"),)
        return shown


class PageScreen(DashboardScreen):
    """One view with scrolling or a cursor, and its keys."""

    BINDINGS: ClassVar = bindings(SCROLL_KEYS)

    def __init__(self, dashboard: Dashboard, view: JobView, *above: JobView) -> None:
        super().__init__(dashboard, *above, view)
        self._view = view
        view.add_class("page")
        view.set_class(bool(above), "below")

    def action_move(self, lines: int) -> None:
        self._view.move(lines)
