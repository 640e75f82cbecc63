"""JobView and ScrollView: widgets that draw lines about the job."""

from __future__ import annotations

from textual import events

from overlaptop.tui.dashboard import Dashboard
from overlaptop.tui.draw.line_view import LineView

WHEEL_LINES = 3


class JobView(LineView):
    """A LineView that is given the dashboard."""

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard.look)
        self.dashboard, self.state = dashboard, dashboard.state

    async def wheel(self, direction: int, x: int) -> None:
        """1: it was turned down, -1: up, with the pointer in column ``x``."""

    async def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        await self.wheel(1, event.x)

    async def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        await self.wheel(-1, event.x)


class ScrollView(JobView):
    """More lines than fit, moved by keys and by the wheel: draws from the line `first` on; `draw` keeps
    that within what there is.
    """

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard)
        self.first = 0

    def scroll_lines(self, lines: int) -> None:
        """Down, or up where negative."""
        self.first = max(0, self.first + lines)
        self.redraw()

    async def wheel(self, direction: int, x: int) -> None:  # noqa: ARG002
        """Scroll."""
        self.scroll_lines(WHEEL_LINES * direction)
